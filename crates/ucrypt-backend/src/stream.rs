//! Memory outside the caches: prefetching it, and storing to it past the caches.

#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "vector stores go by address"))]

/// Bytes to prefetch before use.
#[cfg(target_arch = "x86_64")]
const EARLY: usize = 2048;

/// Prefetches the first bytes: processors prefetch by themselves only after a few accesses.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "nothing to ask"))]
pub(crate) fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes[..bytes.len().min(EARLY)].chunks(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}

/// Copies as many bytes as both slices have. Stores bypass the caches if the processor supports it
/// and `to` is aligned: a destination that is not cached then need not be fetched first.
pub fn copy_streaming(to: &mut [u8], from: &[u8]) {
    let len = to.len().min(from.len());
    let (to, from) = (&mut to[..len], &from[..len]);
    #[cfg(target_arch = "x86_64")]
    if to.as_ptr().addr().is_multiple_of(64) {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
        let (lines, rest) = to.as_chunks_mut::<64>();
        let (from_lines, from_rest) = from.as_chunks::<64>();
        for (to, from) in lines.iter_mut().zip(from_lines) {
            #[expect(clippy::cast_ptr_alignment, reason = "one is aligned, the other need not be")]
            let (to, from) = (to.as_mut_ptr().cast::<__m128i>(), from.as_ptr().cast::<__m128i>());
            for vector in 0..4 {
                // SAFETY: four vectors are in 64 bytes, which are aligned in `to`; every x86-64
                // processor has these instructions.
                unsafe { _mm_stream_si128(to.add(vector), _mm_loadu_si128(from.add(vector))) };
            }
        }
        // SAFETY: as above. Orders the stores before any later notice that the data is there.
        unsafe { _mm_sfence() };
        rest.copy_from_slice(from_rest);
        return;
    }
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_copied_and_nothing_else_at_any_alignment_and_length() {
        let from: Vec<u8> = (0..1000u32).map(|byte| (byte % 251) as u8 + 1).collect();
        for start in 0..70 {
            for len in [0, 1, 63, 64, 65, 512, 777] {
                let mut room = vec![0; 1000];
                copy_streaming(&mut room[start..start + len], &from[7..7 + len]);
                assert!(room[start..start + len] == from[7..7 + len], "{start}, {len}");
                let around = room[..start].iter().chain(&room[start + len..]);
                assert!(around.copied().all(|byte| byte == 0), "{start}, {len}");
            }
        }
        let mut short = [0; 3];
        copy_streaming(&mut short, &from);
        copy_streaming(&mut short, &[9]);
        assert_eq!(short, [9, from[1], from[2]]);
    }
}
