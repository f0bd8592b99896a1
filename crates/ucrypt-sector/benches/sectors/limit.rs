//! The round limit: how fast the AES units are when nothing else is asked of the core.

/// The rounds of AES-256 for `blocks` blocks on independent registers.
#[cfg(target_arch = "x86_64")]
pub(crate) fn rounds(blocks: usize) -> u64 {
    if is_x86_feature_detected!("vaes") && is_x86_feature_detected!("avx512f") {
        // SAFETY: the instructions are there.
        unsafe { zmm(blocks) }
    } else if is_x86_feature_detected!("aes") {
        // SAFETY: the instructions are there.
        unsafe { xmm(blocks) }
    } else {
        0
    }
}

/// Elsewhere there is no limit to compare with.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn rounds(_blocks: usize) -> u64 {
    0
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,vaes")]
fn zmm(blocks: usize) -> u64 {
    use std::arch::x86_64::{_mm_cvtsi128_si64, _mm512_aesenc_epi128, _mm512_castsi512_si128};
    use std::arch::x86_64::{_mm512_set1_epi64, _mm512_xor_si512};

    let key = _mm512_set1_epi64(7);
    let mut x = [_mm512_set1_epi64(5); 16];
    for _ in 0..blocks / 64 {
        for _ in 0..14 {
            for x in &mut x {
                *x = _mm512_aesenc_epi128(*x, key);
            }
        }
    }
    let sum = x.into_iter().reduce(|a, b| _mm512_xor_si512(a, b)).unwrap_or(key);
    _mm_cvtsi128_si64(_mm512_castsi512_si128(sum)).cast_unsigned()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "aes")]
fn xmm(blocks: usize) -> u64 {
    use std::arch::x86_64::{_mm_aesenc_si128, _mm_cvtsi128_si64, _mm_set1_epi64x, _mm_xor_si128};

    let key = _mm_set1_epi64x(7);
    let mut x = [_mm_set1_epi64x(5); 8];
    for _ in 0..blocks / 8 {
        for _ in 0..14 {
            for x in &mut x {
                *x = _mm_aesenc_si128(*x, key);
            }
        }
    }
    let sum = x.into_iter().reduce(|a, b| _mm_xor_si128(a, b)).unwrap_or(key);
    _mm_cvtsi128_si64(sum).cast_unsigned()
}
