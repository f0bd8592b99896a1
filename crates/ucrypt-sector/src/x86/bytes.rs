//! Vectors of bytes, for byte-sliced ciphers.

use std::arch::x86_64::*;

use super::{Words, Xmm, Ymm, Zmm};

/// A vector of bytes, in blocks of 16.
pub(crate) trait Bytes: Words {
    /// Replaces each byte of `self`, which is below 16, by that byte of the same block of `table`.
    fn look_up(self, table: Self) -> Self;

    /// Interleaves the bytes of each block of `self` and `other`: first those of the first halves,
    /// then those of the second halves.
    fn interleave(self, other: Self) -> (Self, Self);
}

macro_rules! bytes {
    ($Type:ident: $look_up:ident, $low:ident, $high:ident) => {
        impl Bytes for $Type {
            #[inline(always)]
            fn look_up(self, table: Self) -> Self {
                // SAFETY: a vector exists only where its instructions do.
                unsafe { Self($look_up(table.0, self.0)) }
            }

            #[inline(always)]
            fn interleave(self, other: Self) -> (Self, Self) {
                // SAFETY: as above.
                unsafe { (Self($low(self.0, other.0)), Self($high(self.0, other.0))) }
            }
        }
    };
}

bytes!(Zmm: _mm512_shuffle_epi8, _mm512_unpacklo_epi8, _mm512_unpackhi_epi8);
bytes!(Ymm: _mm256_shuffle_epi8, _mm256_unpacklo_epi8, _mm256_unpackhi_epi8);
bytes!(Xmm: _mm_shuffle_epi8, _mm_unpacklo_epi8, _mm_unpackhi_epi8);
