//! The IV and whitening of TrueCrypt before version 4.1 (`tcw`), both made from key material and
//! the sector number.

use cipher::InOutBuf;
use zeroize::Zeroizing;

use super::number_of;
use crate::mode::{SECTORS_MAX, SectorMode, xor};

/// Bytes of the key that whiten a sector.
pub(super) const WHITENING: usize = 16;

/// A mode, and the key material in addition to its key.
pub(crate) struct Tcw {
    pub(crate) inner: Box<dyn SectorMode>,
    /// As long as the IV.
    pub(crate) iv_seed: Zeroizing<Vec<u8>>,
    pub(crate) whitening: Zeroizing<[u8; WHITENING]>,
}

impl Tcw {
    /// The eight bytes that every eight bytes of a sector's ciphertext are combined with, by XOR.
    fn whitening(&self, number: u64) -> [u8; 8] {
        let number = number.to_le_bytes();
        let mut mixed = Zeroizing::new(*self.whitening);
        for half in mixed.as_chunks_mut::<8>().0 {
            xor(half, &number);
        }
        let mut sums = [0; 4];
        for (sum, bytes) in sums.iter_mut().zip(mixed.as_chunks::<4>().0) {
            *sum = crc32(u32::from_le_bytes(*bytes));
        }
        let mut whitening = [0; 8];
        whitening[..4].copy_from_slice(&(sums[0] ^ sums[3]).to_le_bytes());
        whitening[4..].copy_from_slice(&(sums[1] ^ sums[2]).to_le_bytes());
        whitening
    }

    fn whiten(&self, number: u64, sector: &mut [u8]) {
        let whitening = self.whitening(number);
        for bytes in sector.as_chunks_mut::<8>().0 {
            xor(bytes, &whitening);
        }
    }

    fn iv(&self, number: u64, iv: &mut [u8]) {
        iv.copy_from_slice(&self.iv_seed);
        for half in iv.as_chunks_mut::<8>().0 {
            xor(half, &number.to_le_bytes());
        }
    }
}

impl SectorMode for Tcw {
    fn iv_len(&self) -> usize {
        self.inner.iv_len()
    }

    fn encrypt(&self, ivs: &mut [u8], mut data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        let mut numbers = [0; SECTORS_MAX];
        for (number, iv) in numbers.iter_mut().zip(ivs.chunks_exact_mut(self.iv_len())) {
            *number = number_of(iv);
            self.iv(*number, iv);
        }
        self.inner.encrypt(ivs, data.reborrow(), sector_size);
        for (number, sector) in
            numbers.into_iter().zip(data.get_out().chunks_exact_mut(sector_size))
        {
            self.whiten(number, sector);
        }
    }

    fn decrypt(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        let data = data.into_out_with_copied_in();
        let ivs_and_sectors =
            ivs.chunks_exact_mut(self.iv_len()).zip(data.chunks_exact_mut(sector_size));
        for (iv, sector) in ivs_and_sectors {
            let number = number_of(iv);
            self.whiten(number, sector);
            self.iv(number, iv);
        }
        self.inner.decrypt(ivs, data.into(), sector_size);
    }
}

/// The CRC-32 of four little-endian bytes, with initial value zero and without the customary
/// inversions. There is no table, because the bytes are secret.
fn crc32(mut word: u32) -> u32 {
    for _ in 0..32 {
        word = (word >> 1) ^ ((word & 1).wrapping_neg() & 0xedb8_8320);
    }
    word
}
