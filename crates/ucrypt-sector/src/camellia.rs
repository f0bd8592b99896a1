//! Camellia on many blocks at a time, with vectors of x86-64.
//!
//! RFC 3713. The blocks are sliced into bytes: one vector holds the first byte of every block, one
//! the second, and so on. The S-boxes use the inversion of the AES instructions (see [`sbox`]), so
//! there is no lookup in memory and the time depends only on the length. The price is that a single
//! block takes as long as many: see CBC encryption. On processors without these instructions, the
//! `camellia` crate encrypts one block at a time.

#![allow(unsafe_code, reason = "vector instructions and unchecked pointers are the point of it")]
#![allow(clippy::inline_always, reason = "the drivers must merge with the enabling function")]

mod sbox;
mod schedule;

use crate::{
    block::BlockCipher,
    x86::{Bytes, Features, Width, Words, Xmm, Ymm, Zmm, kernel},
};
use sbox::Substitute;
use schedule::Schedule;

/// A subkey, with each byte repeated to fill a word.
type Subkey = [u32; 8];

/// One half of each block, one vector per byte.
type Half<V> = [V; 8];

/// The most bytes in one step.
const STEP_MAX: usize = 16 * 64;

/// A keyed Camellia.
pub(crate) struct Camellia {
    features: Features,
    encryption: Box<Schedule>,
    decryption: Box<Schedule>,
}

impl Camellia {
    /// `None` if the key is not 16, 24 or 32 bytes long.
    pub(crate) fn new(features: Features, key: &[u8]) -> Option<Self> {
        let encryption = Schedule::encryption(features, key)?;
        let decryption = encryption.decryption();
        Some(Self { features, encryption, decryption })
    }
}

impl BlockCipher for Camellia {
    fn block_len(&self) -> usize {
        16
    }

    fn encrypt_blocks(&self, data: &mut [u8]) {
        crypt_all(self.features, &self.encryption, data);
    }

    fn decrypt_blocks(&self, data: &mut [u8]) {
        crypt_all(self.features, &self.decryption, data);
    }
}

kernel!(fn crypt_all(keys: &Schedule, data: &mut [u8]): all::<Zmm>, all::<Ymm>, all::<Xmm>);
kernel!(fn feistel_once(half: u64, key: &Subkey, other: &mut u64):
    once::<Zmm>, once::<Ymm>, once::<Xmm>);

/// Transforms every block of `data`.
///
/// # Safety
///
/// The processor must have `V`'s instructions.
#[inline(always)]
unsafe fn all<V: Substitute>(keys: &Schedule, data: &mut [u8]) {
    // SAFETY: the caller promises the instructions, and each step gets the bytes that it needs.
    unsafe {
        let mut steps = data.chunks_exact_mut(16 * V::BYTES);
        for blocks in &mut steps {
            step::<V>(keys, blocks.as_mut_ptr());
        }
        let rest = steps.into_remainder();
        if !rest.is_empty() {
            let mut padded = [0; STEP_MAX];
            padded[..rest.len()].copy_from_slice(rest);
            step::<V>(keys, padded.as_mut_ptr());
            rest.copy_from_slice(&padded[..rest.len()]);
        }
    }
}

/// One Feistel round on one block: XORs the round function of `half` into `other`.
///
/// # Safety
///
/// The processor must have `V`'s instructions.
#[inline(always)]
unsafe fn once<V: Substitute>(half: u64, key: &Subkey, other: &mut u64) {
    // SAFETY: the caller promises the instructions; the buffer is as long as the longest vector.
    unsafe {
        let mut from = [V::splat(0); 8];
        for (x, byte) in from.iter_mut().zip(half.to_be_bytes()) {
            *x = V::splat(byte.into());
        }
        let mut to = [V::splat(0); 8];
        feistel(&from, &mut to, key);
        let mut result = [0; 8];
        for (byte, x) in result.iter_mut().zip(to) {
            let mut buffer = [0; 64];
            x.store(buffer.as_mut_ptr());
            *byte = buffer[0];
        }
        *other ^= u64::from_be_bytes(result);
    }
}

/// Transforms 16 vectors of blocks.
#[inline(always)]
unsafe fn step<V: Substitute>(keys: &Schedule, blocks: *mut u8) {
    // SAFETY: the caller promises the instructions and the blocks.
    unsafe {
        let mut x = [V::splat(0); 16];
        for (index, x) in x.iter_mut().enumerate() {
            *x = V::load(blocks.add(index * V::BYTES));
        }
        transpose(&mut x);
        let mut left = [V::splat(0); 8];
        let mut right = left;
        left.copy_from_slice(&x[..8]);
        right.copy_from_slice(&x[8..]);

        let (first, rounds, last) = keys.parts();
        add(&mut left, &first[0]);
        add(&mut right, &first[1]);
        for (index, keys) in rounds.iter().enumerate() {
            if index > 0 {
                fl(&mut left, &keys[0]);
                inverse_fl(&mut right, &keys[1]);
            }
            for keys in keys[2..].as_chunks::<2>().0 {
                feistel(&left, &mut right, &keys[0]);
                feistel(&right, &mut left, &keys[1]);
            }
        }
        add(&mut right, &last[0]);
        add(&mut left, &last[1]);

        x[..8].copy_from_slice(&right);
        x[8..].copy_from_slice(&left);
        transpose(&mut x);
        for (index, x) in x.into_iter().enumerate() {
            x.store(blocks.add(index * V::BYTES));
        }
    }
}

/// Converts vectors of blocks to vectors of bytes, or back: swaps byte `j` of vector `i` with byte
/// `i` of vector `j`, in each block of 16 bytes.
///
/// A byte's position has eight bits: four for the vector and four for the byte. Each interleaving
/// rotates them by one, so four of them swap the two numbers.
#[inline(always)]
fn transpose<V: Bytes>(x: &mut [V; 16]) {
    for _ in 0..4 {
        let from = *x;
        for index in 0..8 {
            (x[2 * index], x[2 * index + 1]) = from[index].interleave(from[index + 8]);
        }
    }
}

/// Adds a subkey.
#[inline(always)]
unsafe fn add<V: Words>(half: &mut Half<V>, key: &Subkey) {
    for (x, key) in half.iter_mut().zip(key) {
        // SAFETY: the caller promises the instructions.
        *x = *x ^ unsafe { V::splat(*key) };
    }
}

/// A Feistel round: XORs the function F of `from` into `to` (section 2.4.1).
#[inline(always)]
unsafe fn feistel<V: Substitute>(from: &Half<V>, to: &mut Half<V>, key: &Subkey) {
    let mut x = *from;
    // SAFETY: the caller promises the instructions.
    unsafe { add(&mut x, key) };
    x[0] = x[0].substitute::<1>();
    x[1] = x[1].substitute::<2>();
    x[2] = x[2].substitute::<3>();
    x[3] = x[3].substitute::<4>();
    x[4] = x[4].substitute::<2>();
    x[5] = x[5].substitute::<3>();
    x[6] = x[6].substitute::<4>();
    x[7] = x[7].substitute::<1>();
    // The permutation P in four steps, which leave the halves swapped.
    add_bytes(&mut x, [0, 1, 2, 3], [5, 6, 7, 4]);
    add_bytes(&mut x, [4, 5, 6, 7], [2, 3, 0, 1]);
    add_bytes(&mut x, [0, 1, 2, 3], [7, 4, 5, 6]);
    add_bytes(&mut x, [4, 5, 6, 7], [3, 0, 1, 2]);
    for index in 0..8 {
        to[index] = to[index] ^ x[(index + 4) % 8];
    }
}

/// Adds four bytes of a half to four others.
#[inline(always)]
fn add_bytes<V: Words>(x: &mut Half<V>, to: [usize; 4], from: [usize; 4]) {
    x[to[0]] = x[to[0]] ^ x[from[0]];
    x[to[1]] = x[to[1]] ^ x[from[1]];
    x[to[2]] = x[to[2]] ^ x[from[2]];
    x[to[3]] = x[to[3]] ^ x[from[3]];
}

/// The function FL (section 2.4.2).
#[inline(always)]
unsafe fn fl<V: Words>(x: &mut Half<V>, key: &Subkey) {
    // SAFETY: the caller promises the instructions.
    unsafe {
        take_rotated(x, key);
        for index in 0..4 {
            x[index] = x[index] ^ (x[index + 4] | V::splat(key[index + 4]));
        }
    }
}

/// The inverse of [`fl`].
#[inline(always)]
unsafe fn inverse_fl<V: Words>(x: &mut Half<V>, key: &Subkey) {
    // SAFETY: the caller promises the instructions.
    unsafe {
        for index in 0..4 {
            x[index] = x[index] ^ (x[index + 4] | V::splat(key[index + 4]));
        }
        take_rotated(x, key);
    }
}

/// XORs the first half of `x`, masked with the subkey and rotated to the left by one bit, into the
/// second half.
#[inline(always)]
unsafe fn take_rotated<V: Words>(x: &mut Half<V>, key: &Subkey) {
    // SAFETY: the caller promises the instructions.
    unsafe {
        let mut masked = [V::splat(0); 4];
        for index in 0..4 {
            masked[index] = x[index] & V::splat(key[index]);
        }
        for index in 0..4 {
            let high = masked[index].shift::<1>() & V::splat(0xfefe_fefe);
            let low = masked[(index + 1) % 4].shift_right::<7>() & V::splat(0x0101_0101);
            x[index + 4] = x[index + 4] ^ high ^ low;
        }
    }
}
