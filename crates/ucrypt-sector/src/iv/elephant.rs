//! The diffuser of `BitLocker` in Windows Vista and 7 (`elephant`), around CBC with `eboiv`.
//!
//! Niels Ferguson: "AES-CBC + Elephant diffuser: a disk encryption algorithm for Windows Vista"
//! (Microsoft, 2006). Before encryption, the sector is combined with a sector key by XOR, and two diffusers
//! mix it as a ring of little-endian words.

use cipher::InOutBuf;
use zeroize::{Zeroize, Zeroizing};

use super::{Eboiv, number_of};
use crate::{
    block::BlockCipher,
    mode::{SECTOR_MAX, SECTORS_MAX, SectorMode, xor},
};

/// A mode, its IV, and AES under the second half of the key.
pub(crate) struct Elephant {
    pub(crate) inner: Box<dyn SectorMode>,
    pub(crate) iv: Eboiv,
    pub(crate) sector_key: Box<dyn BlockCipher>,
}

impl Elephant {
    /// XORs the key of sector `number` into `sector`.
    fn add_sector_key(&self, number: u64, sector: &mut [u8]) {
        let offset = number.wrapping_mul(u64::from(self.iv.sector_size));
        let mut key = Zeroizing::new([0; 32]);
        key[..8].copy_from_slice(&offset.to_le_bytes());
        key[16..24].copy_from_slice(&offset.to_le_bytes());
        key[31] = 0x80;
        self.sector_key.encrypt_blocks(&mut *key);
        for bytes in sector.as_chunks_mut::<32>().0 {
            xor(bytes, &*key);
        }
    }
}

impl SectorMode for Elephant {
    fn iv_len(&self) -> usize {
        self.inner.iv_len()
    }

    fn encrypt(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        let data = data.into_out_with_copied_in();
        let sectors = data.chunks_exact_mut(sector_size);
        for (iv, sector) in ivs.chunks_exact(self.iv_len()).zip(sectors) {
            self.add_sector_key(number_of(iv), sector);
            as_words(sector, |words| {
                A.stir(words);
                B.stir(words);
            });
        }
        self.iv.replace_numbers(ivs);
        self.inner.encrypt(ivs, data.into(), sector_size);
    }

    fn decrypt(&self, ivs: &mut [u8], mut data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        let mut numbers = [0; SECTORS_MAX];
        for (number, iv) in numbers.iter_mut().zip(ivs.chunks_exact(self.iv_len())) {
            *number = number_of(iv);
        }
        self.iv.replace_numbers(ivs);
        self.inner.decrypt(ivs, data.reborrow(), sector_size);
        for (number, sector) in
            numbers.into_iter().zip(data.get_out().chunks_exact_mut(sector_size))
        {
            as_words(sector, |words| {
                B.settle(words);
                A.settle(words);
            });
            self.add_sector_key(number, sector);
        }
    }
}

/// A diffuser: mixes into word `i` the words at two distances, the farther one rotated.
struct Diffuser {
    cycles: usize,
    near: isize,
    far: isize,
    /// Indexed by `i` modulo 4.
    rotations: [u32; 4],
}

const A: Diffuser = Diffuser { cycles: 5, near: -2, far: -5, rotations: [9, 0, 13, 0] };
const B: Diffuser = Diffuser { cycles: 3, near: 2, far: 5, rotations: [0, 10, 0, 25] };

impl Diffuser {
    /// The value that is mixed into word `i`.
    fn mixed(&self, words: &[u32], i: usize) -> u32 {
        // The length of a sector is a power of two.
        let at = |distance| words[i.wrapping_add_signed(distance) & (words.len() - 1)];
        at(self.near) ^ at(self.far).rotate_left(self.rotations[i % 4])
    }

    /// The direction of encryption.
    fn stir(&self, words: &mut [u32]) {
        for _ in 0..self.cycles {
            for i in (0..words.len()).rev() {
                words[i] = words[i].wrapping_sub(self.mixed(words, i));
            }
        }
    }

    /// The direction of decryption.
    fn settle(&self, words: &mut [u32]) {
        for _ in 0..self.cycles {
            for i in 0..words.len() {
                words[i] = words[i].wrapping_add(self.mixed(words, i));
            }
        }
    }
}

/// Applies `change` to a sector as little-endian words.
fn as_words(sector: &mut [u8], change: impl FnOnce(&mut [u32])) {
    let mut words = [0; SECTOR_MAX / 4];
    let (bytes, _) = sector.as_chunks_mut::<4>();
    let words = &mut words[..bytes.len()];
    for (word, bytes) in words.iter_mut().zip(&*bytes) {
        *word = u32::from_le_bytes(*bytes);
    }
    change(words);
    for (word, bytes) in words.iter().zip(bytes) {
        *bytes = word.to_le_bytes();
    }
    words.zeroize();
}
