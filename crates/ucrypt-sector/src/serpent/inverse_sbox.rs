//! The inverse S-boxes of Serpent as circuits, with the source and the tests of [`super::sbox`].

#![allow(clippy::many_single_char_names, reason = "inputs `a` to `d`, outputs `w` to `z`")]
#![allow(clippy::inline_always, reason = "they must merge with the function that enables vectors")]

use super::sbox::Bits;

/// The inverse of the S-box `BOX`, 0 to 7.
#[inline(always)]
pub(super) fn invert<const BOX: usize, T: Bits>(words: [T; 4]) -> [T; 4] {
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
    let t0 = !c;
    let t1 = b | a;
    let t2 = !b;
    let t3 = t1 ^ t0;
    let t4 = t0 | t2;
    let y = t3 ^ d;
    let t5 = a ^ t2;
    let t6 = t4 ^ t5;
    let t7 = t5 & d;
    let t8 = t2 ^ t7;
    let t9 = t7 | y;
    let w = t9 ^ t6;
    let t10 = d ^ t8;
    let t11 = t6 ^ y;
    let t12 = t10 ^ w;
    let z = t12 ^ y;
    let t13 = t11 & z;
    let x = t8 ^ t13;
    [w, x, y, z]
}

#[inline(always)]
fn s1<T: Bits>([a, b, c, d]: [T; 4]) -> [T; 4] {
    let t0 = b ^ d;
    let t1 = d & t0;
    let t2 = b ^ c;
    let t3 = t1 ^ a;
    let t4 = a | t0;
    let z = c ^ t3;
    let t5 = t4 ^ t2;
    let t6 = t5 | z;
    let t7 = t0 ^ t3;
    let x = t6 ^ t7;
    let t8 = t7 | t3;
    let t9 = t8 ^ x;
    let t10 = !t2;
    let w = t10 ^ t9;
    let t11 = t9 | x;
    let t12 = t11 ^ x;
    let t13 = t12 | w;
    let y = t3 ^ t13;
    [w, x, y, z]
}

#[inline(always)]
fn s2<T: Bits>([a, b, c, d]: [T; 4]) -> [T; 4] {
    let t0 = c ^ d;
    let t1 = d ^ a;
    let t2 = t1 & t0;
    let t3 = t2 ^ b;
    let t4 = b | t0;
    let w = t4 ^ t1;
    let t5 = t1 & t3;
    let t6 = t0 ^ t3;
    let t7 = t5 & a;
    let x = t7 ^ t6;
    let t8 = t6 & w;
    let t9 = t8 | a;
    let t10 = !t3;
    let y = t9 ^ t10;
    let t11 = a ^ t10;
    let t12 = t11 & w;
    let t13 = t10 ^ x;
    let z = t13 ^ t12;
    [w, x, y, z]
}

#[inline(always)]
fn s3<T: Bits>([a, b, c, d]: [T; 4]) -> [T; 4] {
    let t0 = c ^ b;
    let t1 = a ^ t0;
    let t2 = c & t0;
    let t3 = t2 ^ t1;
    let t4 = t1 & b;
    let t5 = b ^ d;
    let t6 = d | t3;
    let w = t0 ^ t6;
    let t7 = t4 ^ t6;
    let t8 = t5 ^ t3;
    let t9 = t6 & w;
    let y = t9 ^ t8;
    let t10 = t8 ^ t7;
    let t11 = t10 | w;
    let t12 = t7 ^ y;
    let x = t11 ^ t3;
    let z = t12 ^ x;
    [w, x, y, z]
}

#[inline(always)]
fn s4<T: Bits>([a, b, c, d]: [T; 4]) -> [T; 4] {
    let t0 = c & d;
    let t1 = t0 ^ b;
    let t2 = b | d;
    let t3 = t2 & a;
    let t4 = c ^ t1;
    let z = t4 ^ t3;
    let t5 = t3 & t1;
    let t6 = !a;
    let t7 = d ^ z;
    let t8 = t5 ^ t7;
    let t9 = t7 & t6;
    let t10 = t9 ^ t1;
    let w = t6 ^ t8;
    let t11 = t1 & w;
    let t12 = t10 ^ w;
    let t13 = t11 ^ z;
    let t14 = t13 | t12;
    let x = t12 ^ w;
    let y = t14 ^ t8;
    [w, x, y, z]
}

#[inline(always)]
fn s5<T: Bits>([a, b, c, d]: [T; 4]) -> [T; 4] {
    let t0 = !b;
    let t1 = c ^ t0;
    let t2 = d | a;
    let t3 = t2 ^ t1;
    let t4 = t1 | t0;
    let t5 = t4 & a;
    let t6 = d ^ t3;
    let z = t5 ^ t6;
    let t7 = t6 | a;
    let t8 = t7 ^ t0;
    let t9 = t0 & z;
    let w = t9 ^ t3;
    let t10 = t8 ^ z;
    let t11 = t3 & t10;
    let t12 = t10 ^ w;
    let t13 = t11 ^ t12;
    let x = !t12;
    let y = t13 ^ a;
    [w, x, y, z]
}

#[inline(always)]
fn s6<T: Bits>([a, b, c, d]: [T; 4]) -> [T; 4] {
    let t0 = a ^ c;
    let t1 = c & t0;
    let t2 = c ^ d;
    let t3 = !t1;
    let t4 = d ^ b;
    let x = t3 ^ t4;
    let t5 = t2 | t0;
    let t6 = t0 ^ x;
    let t7 = t4 ^ t5;
    let t8 = t5 ^ b;
    let t9 = b & t7;
    let w = t9 ^ t6;
    let t10 = t6 ^ t7;
    let t11 = t10 | x;
    let z = t7 ^ w;
    let y = t8 ^ t11;
    [w, x, y, z]
}

#[inline(always)]
fn s7<T: Bits>([a, b, c, d]: [T; 4]) -> [T; 4] {
    let t0 = c ^ a;
    let t1 = a & d;
    let t2 = c | d;
    let t3 = !t0;
    let t4 = d ^ b;
    let t5 = b | t1;
    let t6 = t1 ^ t3;
    let t7 = t3 & t2;
    let t8 = t4 & t2;
    let y = t5 ^ t7;
    let t9 = t7 ^ t6;
    let t10 = t6 | t9;
    let t11 = t2 ^ y;
    let x = t10 ^ t8;
    let t12 = t8 ^ t11;
    let t13 = t11 | x;
    let w = t12 ^ t9;
    let z = t13 ^ t9;
    [w, x, y, z]
}
