//! Counter mode (NIST SP 800-38A): the IV is the counter of a sector's first block, big-endian.

use cipher::InOutBuf;

use super::{SECTOR_MAX, SectorMode, xor};
use crate::block::BlockCipher;

pub(crate) struct Ctr(pub(crate) Box<dyn BlockCipher>);

impl Ctr {
    fn crypt(&self, ivs: &[u8], data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        let block = self.0.block_len();
        let mut stream = [0; SECTOR_MAX];
        let stream = &mut stream[..sector_size];
        let sectors = data.into_out_with_copied_in().chunks_exact_mut(sector_size);
        for (iv, sector) in ivs.chunks_exact(block).zip(sectors) {
            // A shorter counter is the low end of a longer one, cut off where it overflows.
            let mut wide = [0; 16];
            wide[16 - block..].copy_from_slice(iv);
            let mut counter = u128::from_be_bytes(wide);
            for input in stream.chunks_exact_mut(block) {
                input.copy_from_slice(&counter.to_be_bytes()[16 - block..]);
                counter = counter.wrapping_add(1);
            }
            self.0.encrypt_blocks(stream);
            xor(sector, stream);
        }
    }
}

impl SectorMode for Ctr {
    fn iv_len(&self) -> usize {
        self.0.block_len()
    }

    fn encrypt(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        self.crypt(ivs, data, sector_size);
    }

    fn decrypt(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        self.crypt(ivs, data, sector_size);
    }
}
