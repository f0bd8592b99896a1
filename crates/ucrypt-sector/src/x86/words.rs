//! Vectors of 32-bit words, for bitsliced ciphers.

use std::{
    arch::x86_64::*,
    ops::{BitAnd, BitOr, BitXor, Not},
};

use super::{Xmm, Ymm, Zmm};
use crate::vector::Vector;

/// A vector of 32-bit words.
///
/// Only [`Vector::load`] and [`splat`](Self::splat) need a promise. A value exists only if the
/// processor has its instructions, so functions that take a value are safe.
pub(crate) trait Words:
    Vector + BitXor<Output = Self> + BitAnd<Output = Self> + BitOr<Output = Self> + Not<Output = Self>
{
    /// One word, repeated everywhere.
    ///
    /// # Safety
    ///
    /// The processor must have the instructions that the implementing type names.
    unsafe fn splat(word: u32) -> Self;

    /// Each word rotated to the left by `LEFT` bits; `RIGHT` must be `32 - LEFT`.
    fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self;

    /// Each word shifted to the left by `LEFT` bits.
    fn shift<const LEFT: i32>(self) -> Self;

    /// Each word shifted to the right by `RIGHT` bits.
    fn shift_right<const RIGHT: i32>(self) -> Self;

    /// Collects word `i` of each block in vector `i`, or undoes this, for the blocks in four
    /// vectors. The order of the blocks between the two is unspecified.
    fn transpose(x: [Self; 4]) -> [Self; 4];
}

macro_rules! words {
    (
        $Type:ident: $xor:ident, $and:ident, $or:ident, $splat:ident,
        $left:ident, $right:ident,
        $low32:ident, $high32:ident, $low64:ident, $high64:ident
    ) => {
        impl BitXor for $Type {
            type Output = Self;

            #[inline(always)]
            fn bitxor(self, other: Self) -> Self {
                // SAFETY: a vector exists only where its instructions do.
                unsafe { Self($xor(self.0, other.0)) }
            }
        }

        impl BitAnd for $Type {
            type Output = Self;

            #[inline(always)]
            fn bitand(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { Self($and(self.0, other.0)) }
            }
        }

        impl BitOr for $Type {
            type Output = Self;

            #[inline(always)]
            fn bitor(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { Self($or(self.0, other.0)) }
            }
        }

        impl Not for $Type {
            type Output = Self;

            #[inline(always)]
            fn not(self) -> Self {
                // SAFETY: as above.
                unsafe { Self($xor(self.0, $splat(-1))) }
            }
        }

        impl Words for $Type {
            #[inline(always)]
            unsafe fn splat(word: u32) -> Self {
                // SAFETY: the caller promises the instructions.
                unsafe { Self($splat(word.cast_signed())) }
            }

            #[inline(always)]
            fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self {
                const { assert!(LEFT + RIGHT == 32) };
                self.shift::<LEFT>() | self.shift_right::<RIGHT>()
            }

            #[inline(always)]
            fn shift<const LEFT: i32>(self) -> Self {
                // SAFETY: a vector exists only where its instructions do.
                unsafe { Self($left(self.0, _mm_cvtsi32_si128(LEFT))) }
            }

            #[inline(always)]
            fn shift_right<const RIGHT: i32>(self) -> Self {
                // SAFETY: as above.
                unsafe { Self($right(self.0, _mm_cvtsi32_si128(RIGHT))) }
            }

            #[inline(always)]
            fn transpose([a, b, c, d]: [Self; 4]) -> [Self; 4] {
                // SAFETY: as above.
                unsafe {
                    let (ab, cd) = ($low32(a.0, b.0), $low32(c.0, d.0));
                    let (low0, low1) = ($low64(ab, cd), $high64(ab, cd));
                    let (ab, cd) = ($high32(a.0, b.0), $high32(c.0, d.0));
                    [Self(low0), Self(low1), Self($low64(ab, cd)), Self($high64(ab, cd))]
                }
            }
        }
    };
}

words!(
    Zmm: _mm512_xor_si512, _mm512_and_si512, _mm512_or_si512, _mm512_set1_epi32,
    _mm512_sll_epi32, _mm512_srl_epi32,
    _mm512_unpacklo_epi32, _mm512_unpackhi_epi32, _mm512_unpacklo_epi64, _mm512_unpackhi_epi64
);
words!(
    Ymm: _mm256_xor_si256, _mm256_and_si256, _mm256_or_si256, _mm256_set1_epi32,
    _mm256_sll_epi32, _mm256_srl_epi32,
    _mm256_unpacklo_epi32, _mm256_unpackhi_epi32, _mm256_unpacklo_epi64, _mm256_unpackhi_epi64
);
words!(
    Xmm: _mm_xor_si128, _mm_and_si128, _mm_or_si128, _mm_set1_epi32,
    _mm_sll_epi32, _mm_srl_epi32,
    _mm_unpacklo_epi32, _mm_unpackhi_epi32, _mm_unpacklo_epi64, _mm_unpackhi_epi64
);
