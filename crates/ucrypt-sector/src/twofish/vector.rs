//! Twofish on 64 blocks at a time, with AVX-512.
//!
//! A key-dependent S-box has no circuit, but its 256 bytes fit into four registers, in which
//! `VPERMI2B` looks up 64 bytes at once. No memory access has an address or a time that depends on
//! key or data. The multiplications by the MDS matrix are GFNI's affine transformations.
//!
//! Sums and rotations work on words, S-boxes and the matrix on bytes. The words of four vectors are
//! sorted into one vector for each byte of a word, and sorted back afterwards. The price is that a
//! single block takes as long as 64: see CBC encryption.

#![allow(unsafe_code, reason = "vector instructions and unchecked pointers are the point of it")]
#![allow(clippy::wildcard_imports, reason = "the names of instructions are unmistakable")]
#![allow(clippy::needless_range_loop, reason = "one index runs through several arrays")]

use std::arch::x86_64::*;

use super::{MDS_REDUCTION, ROUNDS, Schedule, multiply};
use crate::{
    block::BlockCipher,
    vector::Vector,
    x86::{Features, Width, Words, Zmm, matrix},
};

/// Vectors that hold the same word of all blocks.
const SETS: usize = 4;

/// Bytes of all blocks of a step.
const STEP: usize = SETS * 4 * 64;

/// The same word of all blocks.
type Word = [__m512i; SETS];

/// Two words of all blocks.
type Half = [Word; 2];

/// A keyed Twofish.
pub(crate) struct Twofish {
    /// The proof that `crypt` may be called.
    _features: Features,
    schedule: Box<Schedule>,
}

impl Twofish {
    /// `None` if the key is not 16, 24 or 32 bytes long, or if the vectors are not 512 bits wide.
    pub(crate) fn new(features: Features, key: &[u8]) -> Option<Self> {
        match features.width() {
            Width::Zmm => Some(Self { _features: features, schedule: Schedule::new(key)? }),
            Width::Ymm | Width::Xmm => None,
        }
    }

    fn crypt_blocks<const DECRYPT: bool>(&self, data: &mut [u8]) {
        let (steps, rest) = data.as_chunks_mut::<STEP>();
        for blocks in steps {
            // SAFETY: the processor has the instructions, or there would be no `self`.
            unsafe { crypt::<DECRYPT>(&self.schedule, blocks) }
        }
        if !rest.is_empty() {
            let mut padded = [0; STEP];
            padded[..rest.len()].copy_from_slice(rest);
            // SAFETY: as above.
            unsafe { crypt::<DECRYPT>(&self.schedule, &mut padded) }
            rest.copy_from_slice(&padded[..rest.len()]);
        }
    }
}

impl BlockCipher for Twofish {
    fn block_len(&self) -> usize {
        16
    }

    fn encrypt_blocks(&self, data: &mut [u8]) {
        self.crypt_blocks::<false>(data);
    }

    fn decrypt_blocks(&self, data: &mut [u8]) {
        self.crypt_blocks::<true>(data);
    }
}

/// Transforms every block.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,gfni")]
fn crypt<const DECRYPT: bool>(schedule: &Schedule, blocks: &mut [u8; STEP]) {
    let (input, output) = schedule.subkeys[..8].split_at(4);
    let (before, after) = if DECRYPT { (output, input) } else { (input, output) };
    let [mut left, mut right] = load(blocks, before);
    for pair in 0..ROUNDS / 2 {
        let round = if DECRYPT { ROUNDS - 1 - 2 * pair } else { 2 * pair };
        feistel::<DECRYPT>(schedule, round, &left, &mut right);
        feistel::<DECRYPT>(schedule, round ^ 1, &right, &mut left);
    }
    // The halves are not swapped after the last round.
    store(&[right, left], after, blocks);
}

/// The whitened words of the blocks, in an order that [`store`] undoes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,gfni")]
fn load(blocks: &[u8; STEP], whitening: &[u32]) -> [Half; 2] {
    let mut halves = [[[_mm512_setzero_si512(); SETS]; 2]; 2];
    for (set, blocks) in blocks.as_chunks::<256>().0.iter().enumerate() {
        let mut vectors = [Zmm(_mm512_setzero_si512()); 4];
        for (vector, bytes) in vectors.iter_mut().zip(blocks.as_chunks::<64>().0) {
            // SAFETY: the bytes of a vector.
            *vector = unsafe { Zmm::load(bytes.as_ptr()) };
        }
        for (index, vector) in Zmm::transpose(vectors).into_iter().enumerate() {
            let key = _mm512_set1_epi32(whitening[index].cast_signed());
            halves[index / 2][index % 2][set] = _mm512_xor_si512(vector.0, key);
        }
    }
    halves
}

/// The inverse of [`load`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,gfni")]
fn store(halves: &[Half; 2], whitening: &[u32], blocks: &mut [u8; STEP]) {
    for (set, blocks) in blocks.as_chunks_mut::<256>().0.iter_mut().enumerate() {
        let mut vectors = [Zmm(_mm512_setzero_si512()); 4];
        for (index, vector) in vectors.iter_mut().enumerate() {
            let key = _mm512_set1_epi32(whitening[index].cast_signed());
            vector.0 = _mm512_xor_si512(halves[index / 2][index % 2][set], key);
        }
        let bytes = blocks.as_chunks_mut::<64>().0;
        for (vector, bytes) in Zmm::transpose(vectors).into_iter().zip(bytes) {
            // SAFETY: the bytes of a vector.
            unsafe { vector.store(bytes.as_mut_ptr()) }
        }
    }
}

/// A round: mixes the function `F` of `from` into `to`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,gfni")]
fn feistel<const DECRYPT: bool>(schedule: &Schedule, round: usize, from: &Half, to: &mut Half) {
    let [key0, key1] = schedule.of_rounds()[round];
    let (key0, key1) =
        (_mm512_set1_epi32(key0.cast_signed()), _mm512_set1_epi32(key1.cast_signed()));
    let first = g::<0>(schedule, &from[0]);
    let second = g::<1>(schedule, &from[1]);
    let [to0, to1] = to;
    for set in 0..SETS {
        let sum = _mm512_add_epi32(first[set], second[set]);
        let f0 = _mm512_add_epi32(sum, key0);
        let f1 = _mm512_add_epi32(_mm512_add_epi32(sum, second[set]), key1);
        if DECRYPT {
            to0[set] = _mm512_xor_si512(_mm512_rol_epi32::<1>(to0[set]), f0);
            to1[set] = _mm512_ror_epi32::<1>(_mm512_xor_si512(to1[set], f1));
        } else {
            to0[set] = _mm512_ror_epi32::<1>(_mm512_xor_si512(to0[set], f0));
            to1[set] = _mm512_xor_si512(_mm512_rol_epi32::<1>(to1[set]), f1);
        }
    }
}

/// The function `g` of the paper, on a word that is first rotated to the left by `ROTATED` bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,gfni")]
fn g<const ROTATED: usize>(schedule: &Schedule, word: &Word) -> Word {
    /// The first bytes of the four words of a block, then the second ones, and so on.
    const SORT: [i8; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];
    // SAFETY: the array is as long as the load.
    let sort = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(SORT.as_ptr().cast()) });
    let mut sorted = [Zmm(sort); SETS];
    for (sorted, vector) in sorted.iter_mut().zip(word) {
        sorted.0 = _mm512_shuffle_epi8(*vector, sort);
    }
    let bytes = Zmm::transpose(sorted);
    let mut s = [_mm512_setzero_si512(); 4];
    for column in 0..4 {
        let byte = bytes[(column + 4 - ROTATED) % 4].0;
        s[column] = substitute(&schedule.sboxes[column], byte);
    }
    let s = multiply_by_mds(s);
    let (low, high) = (_mm512_unpacklo_epi8(s[0], s[1]), _mm512_unpackhi_epi8(s[0], s[1]));
    let (low2, high2) = (_mm512_unpacklo_epi8(s[2], s[3]), _mm512_unpackhi_epi8(s[2], s[3]));
    [
        _mm512_unpacklo_epi16(low, low2),
        _mm512_unpackhi_epi16(low, low2),
        _mm512_unpacklo_epi16(high, high2),
        _mm512_unpackhi_epi16(high, high2),
    ]
}

/// Substitutes each byte with an S-box.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,gfni")]
fn substitute(sbox: &[u8; 256], byte: __m512i) -> __m512i {
    let mut quarters = [_mm512_setzero_si512(); 4];
    for (quarter, bytes) in quarters.iter_mut().zip(sbox.as_chunks::<64>().0) {
        // SAFETY: the bytes of a vector.
        *quarter = unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) };
    }
    let low = _mm512_permutex2var_epi8(quarters[0], byte, quarters[1]);
    let high = _mm512_permutex2var_epi8(quarters[2], byte, quarters[3]);
    _mm512_mask_blend_epi8(_mm512_movepi8_mask(byte), low, high)
}

/// The product of the MDS matrix and four bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,gfni")]
fn multiply_by_mds(s: [__m512i; 4]) -> [__m512i; 4] {
    const BY_5B: i64 = multiplication(0x5b);
    const BY_EF: i64 = multiplication(0xef);
    let (by_5b, by_ef) = (_mm512_set1_epi64(BY_5B), _mm512_set1_epi64(BY_EF));
    let (mut x5b, mut xef) = (s, s);
    for row in 0..4 {
        x5b[row] = _mm512_gf2p8affine_epi64_epi8::<0>(s[row], by_5b);
        xef[row] = _mm512_gf2p8affine_epi64_epi8::<0>(s[row], by_ef);
    }
    [
        xor4(s[0], xef[1], x5b[2], x5b[3]),
        xor4(x5b[0], xef[1], xef[2], s[3]),
        xor4(xef[0], x5b[1], s[2], xef[3]),
        xor4(xef[0], s[1], xef[2], x5b[3]),
    ]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,gfni")]
fn xor4(a: __m512i, b: __m512i, c: __m512i, d: __m512i) -> __m512i {
    _mm512_xor_si512(_mm512_ternarylogic_epi64::<0x96>(a, b, c), d)
}

/// The matrix of the multiplication by `factor` in the field of the MDS matrix.
const fn multiplication(factor: u8) -> i64 {
    let mut columns = [0; 8];
    let mut bit = 0;
    while bit < 8 {
        columns[bit] = multiply(factor, 1 << bit, MDS_REDUCTION);
        bit += 1;
    }
    matrix(columns)
}
