//! Counter mode (NIST SP 800-38A): the IV is the counter of a sector's first block, big-endian.

use cipher::InOutBuf;

use super::{SECTOR_MAX, SectorMode, sectors_together, xor};
use crate::block::BlockCipher;

pub(crate) struct Ctr(pub(crate) Box<dyn BlockCipher>);

impl Ctr {
    fn crypt(&self, ivs: &[u8], data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        let block = self.0.block_len();
        let mut stream = [0; SECTOR_MAX];
        let batch = sectors_together(sector_size);
        let batches = data.into_out_with_copied_in().chunks_mut(batch * sector_size);
        for (ivs, sectors) in ivs.chunks(batch * block).zip(batches) {
            let stream = &mut stream[..sectors.len()];
            for (iv, stream) in ivs.chunks_exact(block).zip(stream.chunks_exact_mut(sector_size)) {
                count_from(iv, stream);
            }
            self.0.encrypt_blocks(stream);
            xor(sectors, stream);
        }
    }
}

/// Fills `stream` with successive counters that start at `iv`, which is one block long.
fn count_from(iv: &[u8], stream: &mut [u8]) {
    // A shorter counter is the low end of a longer one, whose overflow is cut off.
    let mut wide = [0; 16];
    wide[16 - iv.len()..].copy_from_slice(iv);
    let mut counter = u128::from_be_bytes(wide);
    for block in stream.chunks_exact_mut(iv.len()) {
        block.copy_from_slice(&counter.to_be_bytes()[16 - iv.len()..]);
        counter = counter.wrapping_add(1);
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
