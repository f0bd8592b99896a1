//! Serpent on many blocks at a time, with vectors of x86-64.
//!
//! Anderson, Biham, Knudsen: "Serpent: a proposal for the advanced encryption standard" (1998).
//! Serpent is designed to be bitsliced: the S-boxes are circuits on the four words of a block. Here
//! a vector holds the same word of as many blocks as it has words. There are no tables, so the time
//! depends only on the length. On processors without these vectors, the `serpent` crate encrypts
//! one block at a time.

#![allow(unsafe_code, reason = "vector instructions and unchecked pointers are the point of it")]
#![allow(clippy::inline_always, reason = "the drivers must merge with the enabling function")]

mod inverse_sbox;
mod sbox;

use cipher::KeyInit;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::{
    block::BlockCipher,
    x86::{Features, Width, Words, Xmm, Ymm, Zmm, kernel},
};
use inverse_sbox::invert;
use sbox::substitute;

/// Sets of four vectors that are processed side by side in long runs. The rounds of a single set
/// are a chain of instructions that each wait for the previous one.
const SIDE_BY_SIDE: usize = 4;

/// As above, for the rest of a run.
const REST: usize = 2;

/// The most bytes that [`REST`] sets hold.
const REST_MAX: usize = REST * 4 * 64;

/// One key per round, and one for the output.
type Keys = [[u32; 4]; 33];

/// A keyed Serpent.
#[derive(ZeroizeOnDrop)]
pub(crate) struct Serpent {
    #[zeroize(skip)]
    features: Features,
    keys: Keys,
    /// For a single block, for which vectors are useless.
    #[zeroize(skip)]
    single: serpent::Serpent,
}

impl Serpent {
    /// `key` must be padded.
    pub(crate) fn new(features: Features, key: &[u8; 32]) -> Option<Box<Self>> {
        let mut words = [0; 8 + 132];
        for (word, bytes) in words.iter_mut().zip(key.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        for i in 0..132 {
            let sum = words[i] ^ words[i + 3] ^ words[i + 5] ^ words[i + 7];
            words[i + 8] = (sum ^ 0x9e37_79b9 ^ i as u32).rotate_left(11);
        }
        let single = serpent::Serpent::new_from_slice(key).ok()?;
        let mut serpent = Box::new(Self { features, keys: [[0; 4]; 33], single });
        let boxes = [
            substitute::<3, u32>,
            substitute::<2, u32>,
            substitute::<1, u32>,
            substitute::<0, u32>,
            substitute::<7, u32>,
            substitute::<6, u32>,
            substitute::<5, u32>,
            substitute::<4, u32>,
        ];
        let words_of_keys = words[8..].as_chunks().0;
        for (index, (key, words)) in serpent.keys.iter_mut().zip(words_of_keys).enumerate() {
            *key = boxes[index % 8](*words);
        }
        words.zeroize();
        Some(serpent)
    }
}

impl BlockCipher for Serpent {
    fn block_len(&self) -> usize {
        16
    }

    fn encrypt_blocks(&self, data: &mut [u8]) {
        if data.len() == 16 {
            BlockCipher::encrypt_blocks(&self.single, data);
        } else {
            encrypt_all(self.features, &self.keys, data);
        }
    }

    fn decrypt_blocks(&self, data: &mut [u8]) {
        if data.len() == 16 {
            BlockCipher::decrypt_blocks(&self.single, data);
        } else {
            decrypt_all(self.features, &self.keys, data);
        }
    }
}

kernel!(fn encrypt_all(keys: &Keys, data: &mut [u8]):
    all::<Zmm, Encrypt>, all::<Ymm, Encrypt>, all::<Xmm, Encrypt>);
kernel!(fn decrypt_all(keys: &Keys, data: &mut [u8]):
    all::<Zmm, Decrypt>, all::<Ymm, Decrypt>, all::<Xmm, Decrypt>);

/// A direction as a type.
trait Direction {
    /// All rounds on `G` sets of words.
    ///
    /// # Safety
    ///
    /// The processor must have `V`'s instructions.
    unsafe fn crypt<V: Words, const G: usize>(keys: &Keys, sets: &mut [[V; 4]; G]);
}

struct Encrypt;
struct Decrypt;

impl Direction for Encrypt {
    #[inline(always)]
    unsafe fn crypt<V: Words, const G: usize>(keys: &Keys, sets: &mut [[V; 4]; G]) {
        let (octets, [last]) = keys.as_chunks::<8>() else { unreachable!("33 keys") };
        // SAFETY: the caller promises the instructions.
        unsafe {
            for (index, keys) in octets.iter().enumerate() {
                encrypt_round::<0, V, G>(sets, &keys[0]);
                encrypt_round::<1, V, G>(sets, &keys[1]);
                encrypt_round::<2, V, G>(sets, &keys[2]);
                encrypt_round::<3, V, G>(sets, &keys[3]);
                encrypt_round::<4, V, G>(sets, &keys[4]);
                encrypt_round::<5, V, G>(sets, &keys[5]);
                encrypt_round::<6, V, G>(sets, &keys[6]);
                if index < 3 {
                    encrypt_round::<7, V, G>(sets, &keys[7]);
                }
            }
            for x in &mut *sets {
                *x = add(substitute::<7, V>(add(*x, &octets[3][7])), last);
            }
        }
    }
}

impl Direction for Decrypt {
    #[inline(always)]
    unsafe fn crypt<V: Words, const G: usize>(keys: &Keys, sets: &mut [[V; 4]; G]) {
        let (octets, [last]) = keys.as_chunks::<8>() else { unreachable!("33 keys") };
        // SAFETY: the caller promises the instructions.
        unsafe {
            for x in &mut *sets {
                *x = add(invert::<7, V>(add(*x, last)), &octets[3][7]);
            }
            for (index, keys) in octets.iter().enumerate().rev() {
                if index < 3 {
                    decrypt_round::<7, V, G>(sets, &keys[7]);
                }
                decrypt_round::<6, V, G>(sets, &keys[6]);
                decrypt_round::<5, V, G>(sets, &keys[5]);
                decrypt_round::<4, V, G>(sets, &keys[4]);
                decrypt_round::<3, V, G>(sets, &keys[3]);
                decrypt_round::<2, V, G>(sets, &keys[2]);
                decrypt_round::<1, V, G>(sets, &keys[1]);
                decrypt_round::<0, V, G>(sets, &keys[0]);
            }
        }
    }
}

/// Any round of encryption except the last.
#[inline(always)]
unsafe fn encrypt_round<const BOX: usize, V: Words, const G: usize>(
    sets: &mut [[V; 4]; G],
    key: &[u32; 4],
) {
    // SAFETY: the caller promises the instructions.
    unsafe {
        for x in &mut *sets {
            *x = mix(substitute::<BOX, V>(add(*x, key)));
        }
        fence(sets);
    }
}

/// Any round of decryption except the first.
#[inline(always)]
unsafe fn decrypt_round<const BOX: usize, V: Words, const G: usize>(
    sets: &mut [[V; 4]; G],
    key: &[u32; 4],
) {
    // SAFETY: the caller promises the instructions.
    unsafe {
        for x in &mut *sets {
            *x = add(invert::<BOX, V>(unmix(*x)), key);
        }
        fence(sets);
    }
}

/// Keeps the compiler from starting the next round of a set before all sets finish this one.
#[inline(always)]
unsafe fn fence<V: Words, const G: usize>(sets: &mut [[V; 4]; G]) {
    for vectors in sets.as_flattened_mut().as_chunks_mut().0 {
        // SAFETY: the caller promises the instructions.
        unsafe { V::fence(vectors) }
    }
}

/// Transforms every block of `data`.
///
/// # Safety
///
/// The processor must have `V`'s instructions.
#[inline(always)]
unsafe fn all<V: Words, D: Direction>(keys: &Keys, data: &mut [u8]) {
    // SAFETY: the caller promises the instructions, and each step gets the bytes that it needs.
    unsafe {
        let mut steps = data.chunks_exact_mut(SIDE_BY_SIDE * 4 * V::BYTES);
        for blocks in &mut steps {
            step::<V, D, SIDE_BY_SIDE>(keys, blocks.as_mut_ptr());
        }
        let mut steps = steps.into_remainder().chunks_exact_mut(REST * 4 * V::BYTES);
        for blocks in &mut steps {
            step::<V, D, REST>(keys, blocks.as_mut_ptr());
        }
        let rest = steps.into_remainder();
        if !rest.is_empty() {
            let mut padded = [0; REST_MAX];
            padded[..rest.len()].copy_from_slice(rest);
            step::<V, D, REST>(keys, padded.as_mut_ptr());
            rest.copy_from_slice(&padded[..rest.len()]);
        }
    }
}

/// Transforms `G` sets of four vectors of blocks.
#[inline(always)]
unsafe fn step<V: Words, D: Direction, const G: usize>(keys: &Keys, blocks: *mut u8) {
    // SAFETY: the caller promises the instructions and the blocks.
    unsafe {
        let at = |set: usize, index: usize| blocks.add((4 * set + index) * V::BYTES);
        let mut sets = [[V::splat(0); 4]; G];
        for (set, words) in sets.iter_mut().enumerate() {
            for (index, vector) in words.iter_mut().enumerate() {
                *vector = V::load(at(set, index));
            }
            *words = V::transpose(*words);
        }
        D::crypt(keys, &mut sets);
        for (set, words) in sets.into_iter().enumerate() {
            for (index, vector) in V::transpose(words).into_iter().enumerate() {
                vector.store(at(set, index));
            }
        }
    }
}

/// Adds a round key.
#[inline(always)]
unsafe fn add<V: Words>([a, b, c, d]: [V; 4], key: &[u32; 4]) -> [V; 4] {
    // SAFETY: the caller promises the instructions.
    unsafe {
        [a ^ V::splat(key[0]), b ^ V::splat(key[1]), c ^ V::splat(key[2]), d ^ V::splat(key[3])]
    }
}

/// The linear transformation.
#[inline(always)]
fn mix<V: Words>([a, b, c, d]: [V; 4]) -> [V; 4] {
    let (a, c) = (a.rotate::<13, 19>(), c.rotate::<3, 29>());
    let b = (b ^ a ^ c).rotate::<1, 31>();
    let d = (d ^ c ^ a.shift::<3>()).rotate::<7, 25>();
    let a = (a ^ b ^ d).rotate::<5, 27>();
    let c = (c ^ d ^ b.shift::<7>()).rotate::<22, 10>();
    [a, b, c, d]
}

/// The inverse of [`mix`].
#[inline(always)]
fn unmix<V: Words>([a, b, c, d]: [V; 4]) -> [V; 4] {
    let c = c.rotate::<10, 22>() ^ d ^ b.shift::<7>();
    let a = a.rotate::<27, 5>() ^ b ^ d;
    let d = d.rotate::<25, 7>() ^ c ^ a.shift::<3>();
    let b = b.rotate::<31, 1>() ^ a ^ c;
    [a.rotate::<19, 13>(), b, c.rotate::<29, 3>(), d]
}
