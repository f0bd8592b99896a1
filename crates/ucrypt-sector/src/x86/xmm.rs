//! 128-bit vectors: one block.

use std::arch::{asm, x86_64::*};

use crate::vector::{Counts, GROUP, POLYNOMIAL, Vector};

static UP: Counts<2> = Counts::UP;
static DOWN: Counts<2> = Counts::DOWN;
static POWERS: Counts<2> = Counts::POWERS;

/// AES-NI and PCLMULQDQ without AVX, as on the processors of small servers.
#[derive(Clone, Copy)]
pub(crate) struct Xmm(pub(crate) __m128i);

// SAFETY throughout: the caller promises the instructions, the pointers, and their alignment where
// it is needed.
#[expect(clippy::undocumented_unsafe_blocks, reason = "the one reason above holds for all")]
impl Vector for Xmm {
    const LANES: usize = 1;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        unsafe { Self(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        unsafe { _mm_storeu_si128(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        unsafe { _mm_stream_si128(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn broadcast(from: *const u8) -> Self {
        unsafe { Self::load(from) }
    }

    #[inline(always)]
    unsafe fn gather(from: impl Fn(usize) -> *const u8) -> Self {
        unsafe { Self::load(from(0)) }
    }

    #[inline(always)]
    unsafe fn scatter(self, to: impl Fn(usize) -> *mut u8) {
        unsafe { self.store(to(0)) }
    }

    #[inline(always)]
    unsafe fn shift_in(self, first: Self) -> Self {
        first
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        unsafe { Self(_mm_xor_si128(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn encrypt(self, key: Self) -> Self {
        unsafe { Self(_mm_aesenc_si128(self.0, key.0)) }
    }

    #[inline(always)]
    unsafe fn encrypt_last(self, key: Self) -> Self {
        unsafe { Self(_mm_aesenclast_si128(self.0, key.0)) }
    }

    #[inline(always)]
    unsafe fn decrypt(self, key: Self) -> Self {
        unsafe { Self(_mm_aesdec_si128(self.0, key.0)) }
    }

    #[inline(always)]
    unsafe fn decrypt_last(self, key: Self) -> Self {
        unsafe { Self(_mm_aesdeclast_si128(self.0, key.0)) }
    }

    #[inline(always)]
    unsafe fn tweaks(first: *const u8, index: usize) -> Self {
        unsafe {
            let Self(first) = Self::broadcast(first);
            let swapped = _mm_shuffle_epi32::<0x4e>(first);
            let up = _mm_sll_epi64(first, _mm_loadu_si128(UP.0[index].as_ptr().cast()));
            let down = _mm_loadu_si128(DOWN.0[index].as_ptr().cast());
            // The bits that left the low half go into the high half. The bits that left the block
            // are reduced; their lowest term is already in the right place.
            let carry = _mm_srl_epi64(swapped, down);
            let polynomial = _mm_set1_epi64x(POLYNOMIAL - 1);
            let reduced = _mm_clmulepi64_si128::<0>(carry, polynomial);
            Self(_mm_xor_si128(_mm_xor_si128(up, carry), reduced))
        }
    }

    #[inline(always)]
    unsafe fn powers(index: usize) -> Self {
        unsafe { Self(_mm_loadu_si128(POWERS.0[index].as_ptr().cast())) }
    }

    #[inline(always)]
    unsafe fn polynomial() -> Self {
        unsafe { Self(_mm_set1_epi64x(POLYNOMIAL)) }
    }

    #[inline(always)]
    unsafe fn product<const HALF: i32>(self, other: Self) -> Self {
        unsafe { Self(_mm_clmulepi64_si128::<HALF>(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn half_up(self) -> Self {
        unsafe { Self(_mm_bslli_si128::<8>(self.0)) }
    }

    #[inline(always)]
    unsafe fn fence(group: &mut [Self; GROUP]) {
        let [x0, x1, x2, x3, x4, x5, x6, x7] = group;
        unsafe {
            asm!(
                "/* {} {} {} {} {} {} {} {} */",
                inout(xmm_reg) x0.0, inout(xmm_reg) x1.0, inout(xmm_reg) x2.0, inout(xmm_reg) x3.0,
                inout(xmm_reg) x4.0, inout(xmm_reg) x5.0, inout(xmm_reg) x6.0, inout(xmm_reg) x7.0,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
    }
}
