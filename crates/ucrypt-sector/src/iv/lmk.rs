//! The IV of loop-AES (`lmk`): a hash of the sector's plaintext without its first block, of the
//! sector number, and in version 3 of a seed.
//!
//! The IV is not known before the sector is decrypted. Decryption therefore uses a zero IV, which
//! garbles only the first block, and then corrects this block by XOR with the IV.

use cipher::InOutBuf;
use zeroize::Zeroizing;

use super::number_of;
use crate::mode::{SECTORS_MAX, SectorMode, xor};

/// The initial state of MD5 (RFC 1321, section 3.3).
const MD5_START: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// The only sector size of loop-AES.
const SECTOR: usize = 512;

/// A mode, and the seed if this is version 3.
pub(crate) struct Lmk {
    pub(crate) inner: Box<dyn SectorMode>,
    pub(crate) seed: Option<Zeroizing<[u8; 16]>>,
}

impl Lmk {
    fn iv(&self, number: u64, plaintext: &[u8]) -> [u8; 16] {
        let mut state = MD5_START;
        if let Some(seed) = &self.seed {
            let mut block = Zeroizing::new([0; 64]);
            block[..16].copy_from_slice(&**seed);
            md5::block_api::compress(&mut state, &[*block]);
        }
        // The 56-bit number and the constants of loop-AES take as much room as the omitted first
        // block. MD5 is not padded.
        let mut message = [0; SECTOR];
        message[..SECTOR - 16].copy_from_slice(&plaintext[16..]);
        let number = number & ((1 << 56) - 1) | 1 << 63;
        message[SECTOR - 16..SECTOR - 8].copy_from_slice(&number.to_le_bytes());
        message[SECTOR - 8..SECTOR - 4].copy_from_slice(&4024u32.to_le_bytes());
        md5::block_api::compress(&mut state, message.as_chunks().0);
        let mut iv = [0; 16];
        for (bytes, word) in iv.as_chunks_mut().0.iter_mut().zip(state) {
            *bytes = word.to_le_bytes();
        }
        iv
    }
}

impl SectorMode for Lmk {
    fn iv_len(&self) -> usize {
        self.inner.iv_len()
    }

    fn encrypt(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        let len = self.iv_len();
        for (iv, sector) in ivs.chunks_exact_mut(len).zip(data.get_in().chunks_exact(sector_size)) {
            iv.copy_from_slice(&self.iv(number_of(iv), sector)[..len]);
        }
        self.inner.encrypt(ivs, data, sector_size);
    }

    fn decrypt(&self, ivs: &mut [u8], mut data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        let len = self.iv_len();
        let mut numbers = [0; SECTORS_MAX];
        for (number, iv) in numbers.iter_mut().zip(ivs.chunks_exact(len)) {
            *number = number_of(iv);
        }
        ivs.fill(0);
        self.inner.decrypt(ivs, data.reborrow(), sector_size);
        for (number, sector) in
            numbers.into_iter().zip(data.get_out().chunks_exact_mut(sector_size))
        {
            let iv = self.iv(number, sector);
            xor(&mut sector[..len], &iv);
        }
    }
}
