//! 512-bit vectors: four blocks.

use std::arch::{asm, x86_64::*};

use crate::vector::{Counts, GROUP, POLYNOMIAL, Vector};

static UP: Counts<8> = Counts::UP;
static DOWN: Counts<8> = Counts::DOWN;
static POWERS: Counts<8> = Counts::POWERS;

/// AVX-512 F, BW and VBMI, VAES, VPCLMULQDQ and GFNI.
#[derive(Clone, Copy)]
pub(crate) struct Zmm(pub(crate) __m512i);

// SAFETY throughout: the caller promises the instructions, the pointers, and their alignment where
// it is needed.
#[expect(clippy::undocumented_unsafe_blocks, reason = "the one reason above holds for all")]
impl Vector for Zmm {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        unsafe { Self(_mm512_loadu_si512(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        unsafe { _mm512_stream_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn broadcast(from: *const u8) -> Self {
        unsafe { Self(_mm512_broadcast_i32x4(_mm_loadu_si128(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn gather(from: impl Fn(usize) -> *const u8) -> Self {
        unsafe {
            let block = |lane| _mm_loadu_si128(from(lane).cast());
            let x = _mm512_castsi128_si512(block(0));
            let x = _mm512_inserti32x4::<1>(x, block(1));
            let x = _mm512_inserti32x4::<2>(x, block(2));
            Self(_mm512_inserti32x4::<3>(x, block(3)))
        }
    }

    #[inline(always)]
    unsafe fn scatter(self, to: impl Fn(usize) -> *mut u8) {
        unsafe {
            _mm_storeu_si128(to(0).cast(), _mm512_castsi512_si128(self.0));
            _mm_storeu_si128(to(1).cast(), _mm512_extracti32x4_epi32::<1>(self.0));
            _mm_storeu_si128(to(2).cast(), _mm512_extracti32x4_epi32::<2>(self.0));
            _mm_storeu_si128(to(3).cast(), _mm512_extracti32x4_epi32::<3>(self.0));
        }
    }

    #[inline(always)]
    unsafe fn shift_in(self, first: Self) -> Self {
        unsafe { Self(_mm512_alignr_epi64::<6>(self.0, first.0)) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        unsafe { Self(_mm512_xor_si512(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn xor3(self, a: Self, b: Self) -> Self {
        unsafe { Self(_mm512_ternarylogic_epi64::<0x96>(self.0, a.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn encrypt(self, key: Self) -> Self {
        unsafe { Self(_mm512_aesenc_epi128(self.0, key.0)) }
    }

    #[inline(always)]
    unsafe fn encrypt_last(self, key: Self) -> Self {
        unsafe { Self(_mm512_aesenclast_epi128(self.0, key.0)) }
    }

    #[inline(always)]
    unsafe fn decrypt(self, key: Self) -> Self {
        unsafe { Self(_mm512_aesdec_epi128(self.0, key.0)) }
    }

    #[inline(always)]
    unsafe fn decrypt_last(self, key: Self) -> Self {
        unsafe { Self(_mm512_aesdeclast_epi128(self.0, key.0)) }
    }

    #[inline(always)]
    unsafe fn tweaks(first: *const u8, index: usize) -> Self {
        unsafe {
            let Self(first) = Self::broadcast(first);
            let swapped = _mm512_shuffle_epi32::<0x4e>(first);
            let up = _mm512_sllv_epi64(first, _mm512_loadu_epi64(UP.0[index].as_ptr().cast()));
            let down = _mm512_loadu_epi64(DOWN.0[index].as_ptr().cast());
            // The bits that left the low half go into the high half. The bits that left the block
            // are reduced; their lowest term is already in the right place.
            let carry = _mm512_srlv_epi64(swapped, down);
            let polynomial = _mm512_set1_epi64(POLYNOMIAL - 1);
            let reduced = _mm512_clmulepi64_epi128::<0>(carry, polynomial);
            Self(_mm512_ternarylogic_epi64::<0x96>(up, carry, reduced))
        }
    }

    #[inline(always)]
    unsafe fn powers(index: usize) -> Self {
        unsafe { Self(_mm512_loadu_epi64(POWERS.0[index].as_ptr().cast())) }
    }

    #[inline(always)]
    unsafe fn polynomial() -> Self {
        unsafe { Self(_mm512_set1_epi64(POLYNOMIAL)) }
    }

    #[inline(always)]
    unsafe fn product<const HALF: i32>(self, other: Self) -> Self {
        unsafe { Self(_mm512_clmulepi64_epi128::<HALF>(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn half_up(self) -> Self {
        unsafe { Self(_mm512_bslli_epi128::<8>(self.0)) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn fence(group: &mut [Self; GROUP]) {
        let [x0, x1, x2, x3, x4, x5, x6, x7] = group;
        unsafe {
            asm!(
                "/* {} {} {} {} {} {} {} {} */",
                inout(zmm_reg) x0.0, inout(zmm_reg) x1.0, inout(zmm_reg) x2.0, inout(zmm_reg) x3.0,
                inout(zmm_reg) x4.0, inout(zmm_reg) x5.0, inout(zmm_reg) x6.0, inout(zmm_reg) x7.0,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
    }
}
