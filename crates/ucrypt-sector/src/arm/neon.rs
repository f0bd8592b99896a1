//! 128-bit vectors: one block.
//!
//! `AESE` and `AESD` add the key first, then substitute. Only the last round has a key after it.
//! There, [`Vector::end`] is an XOR that the compiler moves into the instruction.

#![allow(unknown_lints, reason = "older compilers do not know the next one")]
#![allow(
    inline_always_mismatching_target_features,
    reason = "both are inlined: the function that the drivers merge with enables the instructions"
)]

use std::arch::{aarch64::*, asm};

use crate::vector::{Counts, GROUP, POLYNOMIAL, Vector};

static UP: Counts<2> = Counts::UP;
static DOWN: Counts<2> = Counts::DOWN;

/// NEON with the AES instructions.
#[derive(Clone, Copy)]
pub(crate) struct Neon(uint8x16_t);

// SAFETY throughout: the caller promises the instructions and the pointers.
#[expect(clippy::undocumented_unsafe_blocks, reason = "the one reason above holds for all")]
impl Vector for Neon {
    const LANES: usize = 1;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        unsafe { Self(vld1q_u8(from)) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        unsafe { vst1q_u8(to, self.0) }
    }

    /// Processors recognise by themselves that whole lines are overwritten, and do not fetch them.
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        unsafe { self.store(to) }
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
        unsafe { Self(veorq_u8(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn begin(self, _key: Self) -> Self {
        self
    }

    #[inline(always)]
    unsafe fn begin_masked(self, mask: Self, _key: Self) -> Self {
        unsafe { self.xor(mask) }
    }

    #[inline(always)]
    unsafe fn end(self, key: Self) -> Self {
        unsafe { self.xor(key) }
    }

    #[inline(always)]
    unsafe fn encrypt(self, key: Self) -> Self {
        unsafe { Self(vaesmcq_u8(vaeseq_u8(self.0, key.0))) }
    }

    #[inline(always)]
    unsafe fn encrypt_last(self, key: Self) -> Self {
        unsafe { Self(vaeseq_u8(self.0, vdupq_n_u8(0))).xor(key) }
    }

    #[inline(always)]
    unsafe fn decrypt(self, key: Self) -> Self {
        unsafe { Self(vaesimcq_u8(vaesdq_u8(self.0, key.0))) }
    }

    #[inline(always)]
    unsafe fn decrypt_last(self, key: Self) -> Self {
        unsafe { Self(vaesdq_u8(self.0, vdupq_n_u8(0))).xor(key) }
    }

    #[inline(always)]
    unsafe fn tweaks(first: *const u8, index: usize) -> Self {
        unsafe {
            let first = vreinterpretq_u64_u8(vld1q_u8(first));
            let swapped = vextq_u64::<1>(first, first);
            let up = vshlq_u64(first, vld1q_s64(UP.0[index].as_ptr().cast()));
            // A shift to the left by a negative number goes to the right.
            let down = vnegq_s64(vld1q_s64(DOWN.0[index].as_ptr().cast()));
            // The bits that left the low half go into the high half. The bits that left the block
            // are reduced; their lowest term is already in the right place.
            let carry = vshlq_u64(swapped, down);
            let polynomial = (POLYNOMIAL - 1).cast_unsigned();
            let left = vgetq_lane_u64::<0>(carry);
            let reduced = vreinterpretq_u64_p128(vmull_p64(left, polynomial));
            Self(vreinterpretq_u8_u64(veorq_u64(veorq_u64(up, carry), reduced)))
        }
    }

    #[inline(always)]
    unsafe fn fence(group: &mut [Self; GROUP]) {
        let [x0, x1, x2, x3, x4, x5, x6, x7] = group;
        unsafe {
            asm!(
                "/* {:v} {:v} {:v} {:v} {:v} {:v} {:v} {:v} */",
                inout(vreg) x0.0, inout(vreg) x1.0, inout(vreg) x2.0, inout(vreg) x3.0,
                inout(vreg) x4.0, inout(vreg) x5.0, inout(vreg) x6.0, inout(vreg) x7.0,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
    }
}
