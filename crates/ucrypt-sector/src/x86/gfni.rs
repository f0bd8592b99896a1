//! Bit matrices.

/// The linear map that turns bit `i` into `columns[i]`, as the GFNI instructions take it: row `i`
/// is byte `7 - i`.
pub(crate) const fn matrix(columns: [u8; 8]) -> i64 {
    let mut matrix = 0u64;
    let mut place = 0;
    while place < 64 {
        let (row, column) = (7 - place / 8, place % 8);
        matrix |= ((columns[column] >> row & 1) as u64) << place;
        place += 1;
    }
    matrix.cast_signed()
}
