//! The S-boxes of Camellia, computed with the inversion of AES.
//!
//! The S-boxes of both ciphers are an inversion in GF(2^8) between two affine maps. They represent
//! the field differently, which adds a linear map. In the field of AES,
//! `s1(x) = AFTER · (BEFORE · x + BEFORE_ADD)⁻¹ + AFTER_ADD`. The matrices solve this equation for
//! the table of RFC 3713; there are eight solutions, one for each automorphism of the field.
//!
//! The other S-boxes rotate the output of `s1` (`s2` to the left, `s3` to the right) or its input
//! (`s4`, to the left).

use std::arch::x86_64::{
    _mm512_gf2p8affine_epi64_epi8, _mm512_gf2p8affineinv_epi64_epi8, _mm512_set1_epi64,
};

use crate::x86::{Bytes, Xmm, Ymm, Zmm};

/// A matrix over GF(2) as the GFNI instructions take it: row `i` is byte `7 - i`.
type Matrix = u64;

const BEFORE: Matrix = 0xff38_108a_a65c_c0bc;
const BEFORE_ADD: u8 = 0x08;
const AFTER: Matrix = 0xeb36_241e_33d3_b1b7;
const AFTER_ADD: u8 = 0x6e;

/// The matrix before the inversion in the S-box `number`, 1 to 4.
const fn before(number: usize) -> Matrix {
    if number != 4 {
        return BEFORE;
    }
    let mut rows = BEFORE.to_le_bytes();
    let mut row = 0;
    while row < 8 {
        rows[row] = rows[row].rotate_right(1);
        row += 1;
    }
    Matrix::from_le_bytes(rows)
}

/// The matrix after the inversion, and the constant that is added.
const fn after(number: usize) -> (Matrix, u8) {
    match number {
        2 => (AFTER.rotate_right(8), AFTER_ADD.rotate_left(1)),
        3 => (AFTER.rotate_left(8), AFTER_ADD.rotate_right(1)),
        _ => (AFTER, AFTER_ADD),
    }
}

/// A vector with a way to run the S-boxes.
pub(super) trait Substitute: Bytes {
    /// The S-box `NUMBER`, 1 to 4, on each byte.
    fn substitute<const NUMBER: usize>(self) -> Self;
}

/// With GFNI instructions.
impl Substitute for Zmm {
    #[inline(always)]
    fn substitute<const NUMBER: usize>(self) -> Self {
        const ADD: i32 = BEFORE_ADD as i32;
        const ADD_1: i32 = after(1).1 as i32;
        const ADD_2: i32 = after(2).1 as i32;
        const ADD_3: i32 = after(3).1 as i32;
        // SAFETY: a vector exists only where its instructions do.
        unsafe {
            let before = _mm512_set1_epi64(const { before(NUMBER).cast_signed() });
            let after = _mm512_set1_epi64(const { after(NUMBER).0.cast_signed() });
            let x = _mm512_gf2p8affine_epi64_epi8::<ADD>(self.0, before);
            Self(match NUMBER {
                2 => _mm512_gf2p8affineinv_epi64_epi8::<ADD_2>(x, after),
                3 => _mm512_gf2p8affineinv_epi64_epi8::<ADD_3>(x, after),
                _ => _mm512_gf2p8affineinv_epi64_epi8::<ADD_1>(x, after),
            })
        }
    }
}

impl Substitute for Ymm {
    #[inline(always)]
    fn substitute<const NUMBER: usize>(self) -> Self {
        by_aes::<Self, NUMBER>(self)
    }
}

impl Substitute for Xmm {
    #[inline(always)]
    fn substitute<const NUMBER: usize>(self) -> Self {
        by_aes::<Self, NUMBER>(self)
    }
}

/// With the last round of AES, and the affine maps as tables.
#[inline(always)]
fn by_aes<V: Bytes, const NUMBER: usize>(x: V) -> V {
    let before = const { &Tables::before(NUMBER) };
    let after = const { &Tables::after_aes(NUMBER) };
    // SAFETY: a vector exists only where its instructions do; the pointer is to a block.
    unsafe {
        let x = before.look_up(x).encrypt_last(V::splat(0));
        after.look_up(V::broadcast(UNDO_SHIFT_ROWS.as_ptr()).look_up(x))
    }
}

/// The position of each byte after `ShiftRows`.
const UNDO_SHIFT_ROWS: [u8; 16] = [0, 13, 10, 7, 4, 1, 14, 11, 8, 5, 2, 15, 12, 9, 6, 3];

/// An affine map as two tables: the contributions of the low half and the high half of a byte. The
/// tables are in registers, so every lookup takes the same time.
struct Tables {
    low: [u8; 16],
    high: [u8; 16],
}

impl Tables {
    /// The map before the inversion in the S-box `number`.
    const fn before(number: usize) -> Self {
        let mut tables = Self { low: [0; 16], high: [0; 16] };
        let mut half = 0;
        while half < 16 {
            tables.low[half as usize] = multiply(before(number), half) ^ BEFORE_ADD;
            tables.high[half as usize] = multiply(before(number), half << 4);
            half += 1;
        }
        tables
    }

    /// The map after the inversion, which first undoes the affine map of AES (FIPS 197, section
    /// 5.3.2).
    const fn after_aes(number: usize) -> Self {
        const fn linear(x: u8) -> u8 {
            x.rotate_left(1) ^ x.rotate_left(3) ^ x.rotate_left(6)
        }
        let (matrix, add) = after(number);
        let mut tables = Self { low: [0; 16], high: [0; 16] };
        let mut half = 0;
        while half < 16 {
            tables.low[half as usize] = multiply(matrix, linear(half) ^ 0x05) ^ add;
            tables.high[half as usize] = multiply(matrix, linear(half << 4));
            half += 1;
        }
        tables
    }

    #[inline(always)]
    fn look_up<V: Bytes>(&self, x: V) -> V {
        // SAFETY: a vector exists only where its instructions do; the pointers are to blocks.
        unsafe {
            let mask = V::splat(0x0f0f_0f0f);
            let low = (x & mask).look_up(V::broadcast(self.low.as_ptr()));
            let high = (x.shift_right::<4>() & mask).look_up(V::broadcast(self.high.as_ptr()));
            low ^ high
        }
    }
}

/// The product of a matrix and a column of bits.
const fn multiply(matrix: Matrix, x: u8) -> u8 {
    let rows = matrix.to_be_bytes();
    let mut product = 0;
    let mut row = 0;
    while row < 8 {
        product |= ((rows[row] & x).count_ones() as u8 & 1) << row;
        row += 1;
    }
    product
}
