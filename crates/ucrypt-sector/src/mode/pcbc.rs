//! Propagating cipher block chaining, as in the kernel's `pcbc`: each block is chained to the XOR
//! of the previous block's plaintext and ciphertext.

use cipher::InOutBuf;

use super::{BLOCK_MAX, SectorMode, xor};
use crate::block::BlockCipher;

pub(crate) struct Pcbc(pub(crate) Box<dyn BlockCipher>);

impl Pcbc {
    fn crypt(
        &self,
        ivs: &[u8],
        data: InOutBuf<'_, '_, u8>,
        sector_size: usize,
        crypt: impl Fn(&mut [u8], &[u8]),
    ) {
        let len = self.0.block_len();
        let sectors = data.into_out_with_copied_in().chunks_exact_mut(sector_size);
        for (iv, sector) in ivs.chunks_exact(len).zip(sectors) {
            let mut chain = [0; BLOCK_MAX];
            let chain = &mut chain[..len];
            chain.copy_from_slice(iv);
            for block in sector.chunks_exact_mut(len) {
                let mut before = [0; BLOCK_MAX];
                before[..len].copy_from_slice(block);
                crypt(block, chain);
                chain.copy_from_slice(block);
                xor(chain, &before);
            }
        }
    }
}

impl SectorMode for Pcbc {
    fn iv_len(&self) -> usize {
        self.0.block_len()
    }

    fn encrypt(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        self.crypt(ivs, data, sector_size, |block, chain| {
            xor(block, chain);
            self.0.encrypt_blocks(block);
        });
    }

    fn decrypt(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        self.crypt(ivs, data, sector_size, |block, chain| {
            self.0.decrypt_blocks(block);
            xor(block, chain);
        });
    }
}
