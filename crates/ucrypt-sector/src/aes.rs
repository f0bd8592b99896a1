//! AES: nearly every volume uses it, so it is the cipher whose modes have kernels of their own.
//!
//! A [`Kernel`] is a way to run a cipher on a processor. All kernels give the same bytes. For AES,
//! the portable kernel is the `aes` crate and the others are in `kernels`.

#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod kernels;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
mod schedule;

use std::fmt;

#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
use crate::arch::Features;
use crate::{
    Cipher,
    block::{BlockCipher, portable_aes},
    mode::{Cbc, SectorMode, Xts},
};
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
pub(crate) use schedule::RoundKey;

/// A way to run AES, Serpent, Camellia or Twofish on this processor.
///
/// The other ciphers have one implementation only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kernel {
    /// 512-bit vectors, with VAES, GFNI and VBMI (x86-64 with AVX-512).
    VaesAvx512,
    /// 256-bit vectors, with VAES (x86-64 with AVX2).
    VaesAvx2,
    /// 128-bit vectors, with AES-NI (x86-64).
    AesNi,
    /// 128-bit vectors, with the AES instructions of `ARMv8` (`AArch64`).
    Armv8Aes,
    /// The crates `aes`, `serpent` and `camellia`, and this crate's table-based Twofish. AES is
    /// constant-time everywhere and uses the acceleration of its crate. Camellia and Twofish use
    /// tables, so their time depends on the data.
    Portable,
}

impl Kernel {
    /// Every kernel, the fastest first.
    pub const ALL: &[Self] =
        &[Self::VaesAvx512, Self::VaesAvx2, Self::AesNi, Self::Armv8Aes, Self::Portable];

    /// The fastest kernel that this processor supports.
    pub fn best() -> Self {
        Self::ALL.iter().copied().find(|kernel| kernel.is_available()).unwrap_or(Self::Portable)
    }

    /// Whether this processor supports the kernel.
    pub fn is_available(self) -> bool {
        #[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
        return self == Self::Portable || Features::detect(self).is_some();
        #[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
        return self == Self::Portable;
    }

    /// Whether the kernel has code of its own for `cipher`; otherwise the cipher runs as it does
    /// under [`Portable`](Self::Portable).
    pub const fn is_for(self, cipher: Cipher) -> bool {
        match cipher {
            Cipher::Aes => !matches!(self, Self::Portable),
            Cipher::Serpent | Cipher::Camellia => {
                matches!(self, Self::VaesAvx512 | Self::VaesAvx2 | Self::AesNi)
            }
            // Shorter vectors have no lookup of a byte among 256.
            Cipher::Twofish => matches!(self, Self::VaesAvx512),
            _ => false,
        }
    }

    /// The name that reports show.
    pub const fn name(self) -> &'static str {
        match self {
            Self::VaesAvx512 => "vaes-avx512",
            Self::VaesAvx2 => "vaes-avx2",
            Self::AesNi => "aes-ni",
            Self::Armv8Aes => "armv8-aes",
            Self::Portable => "portable",
        }
    }

    /// AES-XTS under the data key and the tweak key; `None` if AES takes no key of such a length.
    pub(crate) fn xts(self, data: &[u8], tweak: &[u8]) -> Option<Box<dyn SectorMode>> {
        #[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
        if let Some(features) = Features::detect(self) {
            return Some(Box::new(kernels::Xts::new(features, data, tweak)?));
        }
        Some(Box::new(Xts { data: portable_aes(data)?, tweak: portable_aes(tweak)? }))
    }

    /// AES-CBC; `None` if AES takes no key of that length.
    pub(crate) fn cbc(self, key: &[u8]) -> Option<Box<dyn SectorMode>> {
        #[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
        if let Some(features) = Features::detect(self) {
            return Some(Box::new(kernels::Cbc::new(features, key)?));
        }
        Some(Box::new(Cbc(portable_aes(key)?)))
    }

    /// AES without a mode; `None` if it takes no key of that length.
    pub(crate) fn block_cipher(self, key: &[u8]) -> Option<Box<dyn BlockCipher>> {
        #[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
        if let Some(features) = Features::detect(self) {
            return Some(Box::new(kernels::Ecb::new(features, key)?));
        }
        portable_aes(key)
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
