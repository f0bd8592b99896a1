//! The round limit: the speed of the AES units when the core does nothing else.
//!
//! AES-256 rounds on independent registers, with no load, no store and no tweak.

#![allow(unsafe_code, reason = "bare instructions are the point of it")]

use ucrypt_sector::Kernel;

/// The name of the row in the table.
pub const NAME: &str = "limit, AES-256 rounds";

/// A function that runs the rounds of a number of blocks, with the AES instructions of `kernel`;
/// `None` if the kernel has none or is not available.
pub fn rounds(kernel: Kernel) -> Option<fn(usize) -> u64> {
    #[cfg(target_arch = "x86_64")]
    if kernel.is_available() {
        return match kernel {
            // SAFETY: the processor runs the kernel, so it has these instructions.
            Kernel::VaesAvx512 => Some(|blocks| unsafe { zmm(blocks) }),
            // SAFETY: as above.
            Kernel::VaesAvx2 => Some(|blocks| unsafe { ymm(blocks) }),
            // SAFETY: as above.
            Kernel::AesNi => Some(|blocks| unsafe { xmm(blocks) }),
            _ => None,
        };
    }
    let _ = kernel;
    None
}

/// Declares the rounds for one register width.
#[cfg(target_arch = "x86_64")]
macro_rules! rounds {
    ($name:ident, $features:literal, $lanes:literal, $count:literal,
     $set:ident, $round:ident, $xor:ident, $low:expr) => {
        #[target_feature(enable = $features)]
        fn $name(blocks: usize) -> u64 {
            use std::arch::x86_64::*;

            let key = $set(7);
            let mut x = [$set(5); $count];
            for _ in 0..blocks / ($lanes * $count) {
                for _ in 0..14 {
                    for x in &mut x {
                        *x = $round(*x, key);
                    }
                }
            }
            let sum = x.into_iter().reduce(|a, b| $xor(a, b)).unwrap_or(key);
            _mm_cvtsi128_si64($low(sum)).cast_unsigned()
        }
    };
}

#[cfg(target_arch = "x86_64")]
rounds!(
    zmm,
    "avx512f,vaes",
    4,
    16,
    _mm512_set1_epi64,
    _mm512_aesenc_epi128,
    _mm512_xor_si512,
    |sum| _mm512_castsi512_si128(sum)
);
#[cfg(target_arch = "x86_64")]
rounds!(
    ymm,
    "avx2,vaes",
    2,
    8,
    _mm256_set1_epi64x,
    _mm256_aesenc_epi128,
    _mm256_xor_si256,
    |sum| _mm256_castsi256_si128(sum)
);
#[cfg(target_arch = "x86_64")]
rounds!(xmm, "aes", 1, 8, _mm_set1_epi64x, _mm_aesenc_si128, _mm_xor_si128, |sum| sum);
