//! 256-bit vectors: two blocks.

use std::arch::{asm, x86_64::*};

use crate::vector::{Counts, GROUP, POLYNOMIAL, Vector};

static UP: Counts<4> = Counts::UP;
static DOWN: Counts<4> = Counts::DOWN;
static POWERS: Counts<4> = Counts::POWERS;

/// AVX2, VAES and VPCLMULQDQ.
#[derive(Clone, Copy)]
pub(crate) struct Ymm(pub(crate) __m256i);

// SAFETY throughout: the caller promises the instructions, the pointers, and their alignment where
// it is needed.
#[expect(clippy::undocumented_unsafe_blocks, reason = "the one reason above holds for all")]
impl Vector for Ymm {
    const LANES: usize = 2;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        unsafe { Self(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        unsafe { _mm256_stream_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn broadcast(from: *const u8) -> Self {
        unsafe { Self(_mm256_broadcastsi128_si256(_mm_loadu_si128(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn gather(from: impl Fn(usize) -> *const u8) -> Self {
        unsafe { Self(_mm256_loadu2_m128i(from(1).cast(), from(0).cast())) }
    }

    #[inline(always)]
    unsafe fn scatter(self, to: impl Fn(usize) -> *mut u8) {
        unsafe { _mm256_storeu2_m128i(to(1).cast(), to(0).cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn shift_in(self, first: Self) -> Self {
        unsafe { Self(_mm256_permute2x128_si256::<0x20>(first.0, self.0)) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        unsafe { Self(_mm256_xor_si256(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn encrypt(self, key: Self) -> Self {
        unsafe { Self(_mm256_aesenc_epi128(self.0, key.0)) }
    }

    #[inline(always)]
    unsafe fn encrypt_last(self, key: Self) -> Self {
        unsafe { Self(_mm256_aesenclast_epi128(self.0, key.0)) }
    }

    #[inline(always)]
    unsafe fn decrypt(self, key: Self) -> Self {
        unsafe { Self(_mm256_aesdec_epi128(self.0, key.0)) }
    }

    #[inline(always)]
    unsafe fn decrypt_last(self, key: Self) -> Self {
        unsafe { Self(_mm256_aesdeclast_epi128(self.0, key.0)) }
    }

    #[inline(always)]
    unsafe fn tweaks(first: *const u8, index: usize) -> Self {
        unsafe {
            let Self(first) = Self::broadcast(first);
            let swapped = _mm256_shuffle_epi32::<0x4e>(first);
            let count = _mm256_loadu_si256(UP.0[index].as_ptr().cast());
            let up = _mm256_sllv_epi64(first, count);
            let count = _mm256_loadu_si256(DOWN.0[index].as_ptr().cast());
            // The bits that left the low half go into the high half. The bits that left the block
            // are reduced; their lowest term is already in the right place.
            let carry = _mm256_srlv_epi64(swapped, count);
            let polynomial = _mm256_set1_epi64x(POLYNOMIAL - 1);
            let reduced = _mm256_clmulepi64_epi128::<0>(carry, polynomial);
            Self(_mm256_xor_si256(_mm256_xor_si256(up, carry), reduced))
        }
    }

    #[inline(always)]
    unsafe fn powers(index: usize) -> Self {
        unsafe { Self(_mm256_loadu_si256(POWERS.0[index].as_ptr().cast())) }
    }

    #[inline(always)]
    unsafe fn polynomial() -> Self {
        unsafe { Self(_mm256_set1_epi64x(POLYNOMIAL)) }
    }

    #[inline(always)]
    unsafe fn product<const HALF: i32>(self, other: Self) -> Self {
        unsafe { Self(_mm256_clmulepi64_epi128::<HALF>(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn half_up(self) -> Self {
        unsafe { Self(_mm256_bslli_epi128::<8>(self.0)) }
    }

    #[inline]
    #[target_feature(enable = "avx")]
    unsafe fn fence(group: &mut [Self; GROUP]) {
        let [x0, x1, x2, x3, x4, x5, x6, x7] = group;
        unsafe {
            asm!(
                "/* {} {} {} {} {} {} {} {} */",
                inout(ymm_reg) x0.0, inout(ymm_reg) x1.0, inout(ymm_reg) x2.0, inout(ymm_reg) x3.0,
                inout(ymm_reg) x4.0, inout(ymm_reg) x5.0, inout(ymm_reg) x6.0, inout(ymm_reg) x7.0,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
    }
}
