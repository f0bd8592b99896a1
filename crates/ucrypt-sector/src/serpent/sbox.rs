//! The S-boxes of Serpent as circuits. Each bit position of the four words is one input.
//!
//! The sequences of operations are from Dag Arne Osvik: "Speeding up Serpent" (third AES candidate
//! conference, 2000), with a name for every intermediate result. The tests check them against the
//! tables.

#![allow(clippy::many_single_char_names, reason = "inputs `a` to `d`, outputs `w` to `z`")]
#![allow(clippy::inline_always, reason = "they must merge with the function that enables vectors")]

use std::ops::{BitAnd, BitOr, BitXor, Not};

/// Words of any width.
pub(super) trait Bits:
    Copy + BitXor<Output = Self> + BitAnd<Output = Self> + BitOr<Output = Self> + Not<Output = Self>
{
}

impl<T> Bits for T where
    T: Copy + BitXor<Output = T> + BitAnd<Output = T> + BitOr<Output = T> + Not<Output = T>
{
}

/// The S-box `BOX`, 0 to 7.
#[inline(always)]
pub(super) fn substitute<const BOX: usize, T: Bits>(words: [T; 4]) -> [T; 4] {
    const { assert!(BOX < 8) };
    match BOX {
        0 => s0(words),
        1 => s1(words),
        2 => s2(words),
        3 => s3(words),
        4 => s4(words),
        5 => s5(words),
        6 => s6(words),
        _ => s7(words),
    }
}

#[inline(always)]
fn s0<T: Bits>([a, b, c, d]: [T; 4]) -> [T; 4] {
    let t0 = d ^ a;
    let t1 = b & t0;
    let t2 = b ^ c;
    let t3 = t1 ^ a;
    let t4 = a | t0;
    let z = t4 ^ t2;
    let t5 = t2 ^ t0;
    let t6 = t0 ^ c;
    let t7 = c | t3;
    let y = t7 ^ t5;
    let t8 = !t5;
    let t9 = t8 | t3;
    let t10 = t3 ^ t6;
    let t11 = t10 ^ t9;
    let t12 = t6 | z;
    let w = t11 ^ t12;
    let x = t9 ^ t12;
    [w, x, y, z]
}

#[inline(always)]
fn s1<T: Bits>([a, b, c, d]: [T; 4]) -> [T; 4] {
    let t0 = !a;
    let t1 = !c;
    let t2 = t0 & b;
    let t3 = t1 ^ t2;
    let t4 = t2 | d;
    let y = d ^ t3;
    let t5 = b ^ t4;
    let t6 = t4 ^ t0;
    let t7 = t0 | t5;
    let t8 = t5 ^ y;
    let t9 = t3 | t6;
    let w = t9 & t7;
    let t10 = t6 ^ t8;
    let t11 = t8 & w;
    let z = t11 ^ t10;
    let t12 = t10 & w;
    let x = t7 ^ t12;
    [w, x, y, z]
}

#[inline(always)]
fn s2<T: Bits>([a, b, c, d]: [T; 4]) -> [T; 4] {
    let t0 = a & c;
    let t1 = t0 ^ d;
    let t2 = c ^ b;
    let w = t2 ^ t1;
    let t3 = d | a;
    let t4 = t3 ^ b;
    let t5 = a ^ w;
    let t6 = t4 | t5;
    let x = t6 ^ t1;
    let t7 = t1 & t4;
    let t8 = t5 ^ t7;
    let t9 = t4 ^ x;
    let y = t9 ^ t8;
    let z = !t8;
    [w, x, y, z]
}

#[inline(always)]
fn s3<T: Bits>([a, b, c, d]: [T; 4]) -> [T; 4] {
    let t0 = a | d;
    let t1 = d ^ b;
    let t2 = b & a;
    let t3 = a ^ c;
    let t4 = c ^ t1;
    let t5 = t1 & t0;
    let t6 = t3 | t2;
    let y = t5 ^ t6;
    let t7 = t0 ^ t2;
    let t8 = t6 & t7;
    let t9 = t2 ^ y;
    let z = t8 ^ t4;
    let t10 = t9 | t7;
    let x = t10 ^ t4;
    let t11 = t7 ^ y;
    let t12 = x | y;
    let w = t11 ^ t12;
    [w, x, y, z]
}

#[inline(always)]
fn s4<T: Bits>([a, b, c, d]: [T; 4]) -> [T; 4] {
    let t0 = b ^ d;
    let t1 = !d;
    let t2 = c ^ t1;
    let t3 = t1 ^ a;
    let t4 = t0 & t3;
    let w = t4 ^ t2;
    let t5 = t0 ^ t3;
    let t6 = a ^ t5;
    let t7 = t2 & t5;
    let t8 = t7 ^ t6;
    let t9 = t6 & w;
    let z = t3 ^ t9;
    let t10 = t5 | w;
    let t11 = t10 ^ t9;
    let t12 = t9 | z;
    let t13 = t12 ^ t8;
    let t14 = t8 & z;
    let y = !t13;
    let x = t11 ^ t14;
    [w, x, y, z]
}

#[inline(always)]
fn s5<T: Bits>([a, b, c, d]: [T; 4]) -> [T; 4] {
    let t0 = a ^ b;
    let t1 = b ^ d;
    let t2 = !d;
    let t3 = t1 & t0;
    let t4 = c ^ t2;
    let w = t3 ^ t4;
    let t5 = t4 | t1;
    let t6 = t1 ^ t2;
    let t7 = t2 & w;
    let x = t7 ^ t0;
    let t8 = t6 ^ w;
    let t9 = t8 ^ t5;
    let t10 = t5 ^ t0;
    let t11 = t0 & x;
    let t12 = !t10;
    let y = t11 ^ t9;
    let t13 = t9 | x;
    let z = t13 ^ t12;
    [w, x, y, z]
}

#[inline(always)]
fn s6<T: Bits>([a, b, c, d]: [T; 4]) -> [T; 4] {
    let t0 = !c;
    let t1 = d & a;
    let t2 = a ^ d;
    let t3 = t1 ^ t0;
    let t4 = t0 | d;
    let x = b ^ t3;
    let t5 = t4 ^ t2;
    let t6 = t2 | x;
    let t7 = t5 ^ x;
    let t8 = d ^ t6;
    let t9 = t6 | t3;
    let w = t9 ^ t7;
    let t10 = t8 ^ t3;
    let y = t10 ^ w;
    let t11 = !t3;
    let t12 = t7 & y;
    let z = t11 ^ t12;
    [w, x, y, z]
}

#[inline(always)]
fn s7<T: Bits>([a, b, c, d]: [T; 4]) -> [T; 4] {
    let t0 = b | c;
    let t1 = t0 ^ d;
    let t2 = b ^ c;
    let t3 = c ^ t1;
    let t4 = d | t2;
    let t5 = t4 & a;
    let t6 = t2 ^ t3;
    let x = t5 ^ t1;
    let t7 = t1 | t6;
    let t8 = t7 ^ a;
    let t9 = a | t6;
    let z = t9 ^ t3;
    let t10 = t8 ^ t6;
    let t11 = t3 ^ t10;
    let t12 = t10 & z;
    let y = t12 ^ t6;
    let t13 = !t11;
    let t14 = t13 | z;
    let w = t6 ^ t14;
    [w, x, y, z]
}

#[cfg(test)]
mod tests {
    use super::{super::inverse_sbox::invert, substitute};

    /// From "Serpent: a proposal for the advanced encryption standard" (Anderson, Biham, Knudsen,
    /// 1998), appendix A.5.
    const TABLES: [[u8; 16]; 8] = [
        [3, 8, 15, 1, 10, 6, 5, 11, 14, 13, 4, 2, 7, 0, 9, 12],
        [15, 12, 2, 7, 9, 0, 5, 10, 1, 11, 14, 8, 6, 13, 3, 4],
        [8, 6, 7, 9, 3, 12, 10, 15, 13, 1, 14, 4, 0, 11, 5, 2],
        [0, 15, 11, 8, 12, 9, 6, 3, 13, 1, 2, 4, 10, 7, 5, 14],
        [1, 15, 8, 3, 12, 0, 11, 6, 2, 5, 4, 10, 9, 14, 7, 13],
        [15, 5, 2, 11, 4, 10, 9, 12, 0, 3, 14, 8, 13, 6, 7, 1],
        [7, 2, 12, 5, 8, 4, 6, 11, 14, 9, 1, 15, 13, 3, 10, 0],
        [1, 13, 15, 0, 14, 8, 2, 11, 7, 4, 12, 10, 9, 3, 5, 6],
    ];

    #[test]
    fn every_circuit_computes_its_table_and_the_inverse_undoes_it() {
        // The bits at position `n` of the four words form the number `n`.
        let numbers = [0xaaaa, 0xcccc, 0xf0f0, 0xff00];
        assert_eq!(check::<0>(numbers), numbers);
        assert_eq!(check::<1>(numbers), numbers);
        assert_eq!(check::<2>(numbers), numbers);
        assert_eq!(check::<3>(numbers), numbers);
        assert_eq!(check::<4>(numbers), numbers);
        assert_eq!(check::<5>(numbers), numbers);
        assert_eq!(check::<6>(numbers), numbers);
        assert_eq!(check::<7>(numbers), numbers);
    }

    /// Compares an S-box with its table, and returns the result of its inverse on the output.
    fn check<const BOX: usize>(numbers: [u32; 4]) -> [u32; 4] {
        let out = substitute::<BOX, u32>(numbers);
        for (input, expected) in TABLES[BOX].iter().enumerate() {
            let bit = |word: usize| out[word] >> input & 1;
            let number = bit(0) | bit(1) << 1 | bit(2) << 2 | bit(3) << 3;
            assert_eq!(number, u32::from(*expected));
        }
        invert::<BOX, u32>(out).map(|word| word & 0xffff)
    }
}
