//! Vectors of x86-64: their three widths, and the proof that a processor has them.
//!
//! All `unsafe` code of this crate is here, in `arm`, and in the kernels that build on them:
//! `aes/kernels`, `serpent`, `camellia` and `twofish/vector`. It relies on two promises of safe
//! types: [`Features`] exists only for a kernel whose instructions the processor has, and pointers
//! come from buffers whose length was checked.

#![allow(unsafe_code, reason = "vector instructions are the point of it")]
#![allow(clippy::wildcard_imports, reason = "the names of instructions are unmistakable")]
#![allow(clippy::inline_always, reason = "the drivers must merge with the enabling function")]

mod bytes;
mod gfni;
mod registers;
mod words;
mod xmm;
mod ymm;
mod zmm;

use std::arch::x86_64::{__cpuid, _MM_HINT_T0, _mm_prefetch, _mm_sfence};

use crate::Kernel;
pub(crate) use bytes::Bytes;
pub(crate) use gfni::matrix;
pub(crate) use registers::clear_vectors;
pub(crate) use words::Words;
pub(crate) use xmm::Xmm;
/// The vector of one block.
pub(crate) use xmm::Xmm as OneBlock;
pub(crate) use ymm::Ymm;
pub(crate) use zmm::Zmm;

/// A kernel whose instructions this processor has. A value of this type is the proof.
#[derive(Clone, Copy)]
pub(crate) struct Features {
    width: Width,
    /// Whether carry-less products leave the AES units free, which shifts do not.
    products_are_free: bool,
}

/// The width of a vector: 512, 256 or 128 bits.
#[derive(Clone, Copy)]
pub(crate) enum Width {
    Zmm,
    Ymm,
    Xmm,
}

impl Features {
    /// `None` if `kernel` is not for x86-64, or if the processor does not support it.
    pub(crate) fn detect(kernel: Kernel) -> Option<Self> {
        let aes_ni = is_x86_feature_detected!("aes")
            && is_x86_feature_detected!("pclmulqdq")
            && is_x86_feature_detected!("ssse3");
        let vaes = aes_ni
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("vaes")
            && is_x86_feature_detected!("vpclmulqdq");
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("gfni");
        let width = match kernel {
            Kernel::VaesAvx512 if vaes && avx512 => Width::Zmm,
            Kernel::VaesAvx2 if vaes => Width::Ymm,
            Kernel::AesNi if aes_ni => Width::Xmm,
            _ => return None,
        };
        Some(Self { width, products_are_free: is_of_intel() })
    }

    /// The width of the kernel's vectors.
    #[inline]
    pub(crate) fn width(self) -> Width {
        self.width
    }

    /// The same features, as on another vendor's processor.
    #[cfg(test)]
    pub(crate) fn with_free_products(self, products_are_free: bool) -> Self {
        Self { products_are_free, ..self }
    }

    /// Whether carry-less products leave the AES units free, which shifts do not.
    #[inline]
    pub(crate) fn products_are_free(self) -> bool {
        self.products_are_free
    }
}

/// Intel's cores multiply on a different port than the one with the AES unit and the shifts.
fn is_of_intel() -> bool {
    let vendor = __cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx] == [*b"Genu", *b"ineI", *b"ntel"].map(u32::from_le_bytes)
}

/// Whether a round adds its key before it substitutes.
pub(crate) const KEYS_FIRST: bool = false;

/// Fetches the line at an address into the cache, if there is memory.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    // SAFETY: only a hint: any address is allowed.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
}

/// Orders streaming stores before anybody learns that the data is there.
#[inline]
pub(crate) fn fence_streams() {
    // SAFETY: every x86-64 processor has this instruction.
    unsafe { _mm_sfence() };
}

/// Declares one function per width, with its instructions enabled, and a safe one that selects.
macro_rules! kernel {
    (fn $name:ident($($arg:ident: $Arg:ty),*): $zmm:path, $ymm:path, $xmm:path) => {
        fn $name(features: Features, $($arg: $Arg),*) {
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,gfni,avx2,vaes,vpclmulqdq,aes,pclmulqdq,ssse3")]
            unsafe fn zmm($($arg: $Arg),*) {
                // SAFETY: the instructions are enabled, and the arguments are checked.
                unsafe { $zmm($($arg),*) }
            }
            #[target_feature(enable = "avx2,vaes,vpclmulqdq,aes,pclmulqdq,ssse3")]
            unsafe fn ymm($($arg: $Arg),*) {
                // SAFETY: as above.
                unsafe { $ymm($($arg),*) }
            }
            #[target_feature(enable = "aes,pclmulqdq,ssse3")]
            unsafe fn xmm($($arg: $Arg),*) {
                // SAFETY: as above.
                unsafe { $xmm($($arg),*) }
            }
            // SAFETY: `features` is the proof that the processor has the instructions; `Run` has
            // checked what the drivers require of runs and IVs.
            unsafe {
                match features.width() {
                    Width::Zmm => zmm($($arg),*),
                    Width::Ymm => ymm($($arg),*),
                    Width::Xmm => xmm($($arg),*),
                }
            }
        }
    };
}
pub(crate) use kernel;
