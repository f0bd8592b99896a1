//! The AES key schedule (FIPS 197), in the layout that the kernels read.
//!
//! It uses the single rounds of the `aes` crate, which are constant-time on every processor: no
//! table lookup depends on the key.

use aes::{Block, hazmat};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::arch::KEYS_FIRST;

/// Largest number of round keys: that of AES-256.
const KEYS_MAX: usize = 15;

/// One round key, repeated to the widest vector so that no kernel has to broadcast it.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct RoundKey(pub(crate) [[u8; 16]; 4]);

/// The round keys of one direction.
pub(super) struct Schedule {
    keys: [RoundKey; KEYS_MAX],
    rounds: usize,
}

impl Schedule {
    /// For encryption; `None` if AES takes no key of that length.
    ///
    /// Built on the heap, because a move would leave copies of the keys behind.
    pub(super) fn encryption(key: &[u8]) -> Option<Box<Self>> {
        if !matches!(key.len(), 16 | 24 | 32) {
            return None;
        }
        let key_words = key.len() / 4;
        let rounds = key_words + 6;
        let mut words = [[0; 4]; 4 * KEYS_MAX];
        for (word, bytes) in words.iter_mut().zip(key.chunks_exact(4)) {
            word.copy_from_slice(bytes);
        }
        let mut round_constant = 1u8;
        for index in key_words..4 * (rounds + 1) {
            let mut word = words[index - 1];
            if index % key_words == 0 {
                word.rotate_left(1);
                word = sub_word(word);
                word[0] ^= round_constant;
                round_constant = (round_constant << 1) ^ ((round_constant >> 7) * 0x1b);
            } else if key_words > 6 && index % key_words == 4 {
                word = sub_word(word);
            }
            for (byte, earlier) in word.iter_mut().zip(words[index - key_words]) {
                *byte ^= earlier;
            }
            words[index] = word;
        }
        let mut schedule = Self::zero(rounds);
        for (round_key, words) in schedule.keys.iter_mut().zip(words.as_chunks::<4>().0) {
            let mut block = [0; 16];
            block.copy_from_slice(words.as_flattened());
            *round_key = RoundKey([block; 4]);
        }
        words.zeroize();
        Some(schedule)
    }

    /// For decryption by the equivalent inverse cipher (FIPS 197, section 5.3.5).
    pub(super) fn decryption(&self) -> Box<Self> {
        let rounds = self.rounds;
        let mut schedule = Self::zero(rounds);
        schedule.keys.copy_from_slice(&self.keys);
        schedule.keys[..=rounds].reverse();
        for round_key in &mut schedule.keys[1..rounds] {
            let mut block = Block::from(round_key.0[0]);
            hazmat::inv_mix_columns(&mut block);
            *round_key = RoundKey([block.0; 4]);
        }
        schedule
    }

    fn zero(rounds: usize) -> Box<Self> {
        Box::new(Self { keys: [RoundKey([[0; 16]; 4]); KEYS_MAX], rounds })
    }

    /// The key that whitens the input.
    #[inline]
    pub(super) fn first(&self) -> &RoundKey {
        &self.keys[0]
    }

    /// The keys of all rounds but the last: 9, 11 or 13. They begin with the first key where rounds
    /// begin with their key, else with the second.
    #[inline]
    pub(super) fn middle(&self) -> &[RoundKey] {
        if KEYS_FIRST { &self.keys[..self.rounds - 1] } else { &self.keys[1..self.rounds] }
    }

    /// The key with which the last round begins where rounds begin with their key.
    #[inline]
    pub(super) fn before_last(&self) -> &RoundKey {
        &self.keys[self.rounds - 1]
    }

    /// The key of the last round.
    #[inline]
    pub(super) fn last(&self) -> &RoundKey {
        &self.keys[self.rounds]
    }
}

impl Drop for Schedule {
    fn drop(&mut self) {
        for key in &mut self.keys {
            key.0.zeroize();
        }
    }
}

impl ZeroizeOnDrop for Schedule {}

/// The S-box on each byte. With four equal columns `ShiftRows` changes nothing, so a round without
/// `MixColumns` is just the S-box.
fn sub_word(word: [u8; 4]) -> [u8; 4] {
    let mut block = Block::from_fn(|index| word[index % 4]);
    hazmat::cipher_round(&mut block, &Block::default());
    hazmat::inv_mix_columns(&mut block);
    [block[0], block[1], block[2], block[3]]
}
