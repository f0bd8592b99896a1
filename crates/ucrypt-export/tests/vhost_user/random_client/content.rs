//! Sectors that say by whom they were written, and where.

/// Bytes of a sector.
pub(crate) const SECTOR: usize = 512;

/// What a sector holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Zeroes,
    /// What the write of that number has put there.
    Tag(u64),
    /// Of a model: whatever there is. Of a disk: what nobody has written.
    Any,
}

/// Fills the sectors from number `first` on with the write `tag`, which is not 0.
pub(crate) fn fill(bytes: &mut [u8], first: u64, tag: u64) {
    for (number, sector) in bytes.chunks_exact_mut(SECTOR).enumerate() {
        let start = first + number as u64;
        for (word, into) in sector.chunks_exact_mut(8).enumerate() {
            into.copy_from_slice(&self::word(start, tag, word).to_le_bytes());
        }
    }
}

/// What is in a sector.
pub(crate) fn look(sector: &[u8], number: u64) -> Content {
    let words = || sector.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    if words().all(|word| word == 0) {
        return Content::Zeroes;
    }
    let tag = words().next().unwrap_or(0);
    let is_whole = words().enumerate().all(|(at, found)| found == word(number, tag, at));
    if is_whole { Content::Tag(tag) } else { Content::Any }
}

/// Bytes that the cipher of the tests treats as one (a block of AES-XTS).
const BLOCK: usize = 16;

/// Whether each block of the sector is from one of `contents`.
pub(crate) fn is_mix<I: Iterator<Item = Content>>(
    sector: &[u8],
    number: u64,
    contents: impl Fn() -> I,
) -> bool {
    let is_from = |at: usize, block: &[u8], content: Content| match content {
        Content::Any => true,
        Content::Zeroes => block.iter().all(|&byte| byte == 0),
        Content::Tag(tag) => block.chunks_exact(8).enumerate().all(|(word, bytes)| {
            bytes == self::word(number, tag, at * BLOCK / 8 + word).to_le_bytes()
        }),
    };
    let mut blocks = sector.chunks_exact(BLOCK).enumerate();
    blocks.all(|(at, block)| contents().any(|content| is_from(at, block, content)))
}

fn word(sector: u64, tag: u64, at: usize) -> u64 {
    match at {
        0 => tag,
        _ => (tag ^ sector << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(at as u32),
    }
}

#[test]
fn a_sector_is_told_from_others_and_from_torn_ones() {
    let mut bytes = [0; 2 * SECTOR];
    assert_eq!(look(&bytes[..SECTOR], 9), Content::Zeroes);
    fill(&mut bytes, 9, 77);
    assert_eq!(look(&bytes[..SECTOR], 9), Content::Tag(77));
    assert_eq!(look(&bytes[SECTOR..], 10), Content::Tag(77));
    assert_eq!(look(&bytes[..SECTOR], 10), Content::Any, "misplaced");
    bytes[500] ^= 1;
    assert_eq!(look(&bytes[..SECTOR], 9), Content::Any);
}
