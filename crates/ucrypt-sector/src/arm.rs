//! Vectors of `AArch64`, and the proof that a processor has their AES instructions.
//!
//! As in `x86`, the `unsafe` code relies on [`Features`], which exists only where the processor has
//! the instructions, and on pointers that come from buffers whose length was checked.

#![allow(unsafe_code, reason = "vector instructions are the point of it")]
#![allow(clippy::inline_always, reason = "the drivers must merge with the enabling function")]

mod neon;

use std::arch::{asm, is_aarch64_feature_detected};

use crate::Kernel;
/// The vector of one block.
pub(crate) use neon::Neon as OneBlock;

/// A kernel whose instructions this processor has. A value of this type is the proof.
#[derive(Clone, Copy)]
pub(crate) struct Features(());

impl Features {
    /// `None` if `kernel` is not for this architecture, or if the processor does not support it.
    pub(crate) fn detect(kernel: Kernel) -> Option<Self> {
        // The tweaks are stored as little-endian words.
        let supported = cfg!(target_endian = "little") && is_aarch64_feature_detected!("aes");
        (kernel == Kernel::Armv8Aes && supported).then_some(Self(()))
    }

    /// The same features: products are never used.
    #[cfg(test)]
    pub(crate) fn with_free_products(self, _products_are_free: bool) -> Self {
        self
    }

    /// Whether carry-less products are the best way to make tweaks. One block is best served by
    /// general-purpose registers, as on x86-64.
    #[inline]
    pub(crate) fn products_are_free(self) -> bool {
        false
    }
}

/// Whether a round adds its key before it substitutes.
pub(crate) const KEYS_FIRST: bool = true;

/// Fetches the line at an address into the cache, if there is memory.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    // SAFETY: only a hint: any address is allowed.
    unsafe {
        asm!(
            "prfm pldl1keep, [{}]", in(reg) address,
            options(readonly, nostack, preserves_flags),
        );
    }
}

/// Nothing: [`Vector::stream`](crate::vector::Vector::stream) is an ordinary store.
#[inline]
pub(crate) fn fence_streams() {}

/// Declares a function with the AES instructions enabled, and a safe one that calls it. Takes the
/// three widths of x86-64 and uses the last one.
macro_rules! kernel {
    (fn $name:ident($($arg:ident: $Arg:ty),*): $zmm:path, $ymm:path, $one_block:path) => {
        fn $name(_proof: Features, $($arg: $Arg),*) {
            #[target_feature(enable = "neon,aes")]
            unsafe fn neon($($arg: $Arg),*) {
                // SAFETY: the instructions are enabled, and the arguments are checked.
                unsafe { $one_block($($arg),*) }
            }
            // SAFETY: `Features` is the proof that the processor has the instructions; `Run` has
            // checked what the drivers require of runs and IVs.
            unsafe { neon($($arg),*) }
        }
    };
}
pub(crate) use kernel;
