//! Cipher block chaining over one sector (NIST SP 800-38A).
//!
//! Encryption is serial within a chain, but the chains of different sectors are independent: block
//! `n` of all sectors of a call is encrypted together.

use cipher::InOutBuf;

use super::{SECTOR_MAX, SectorMode, sectors_together, xor};
use crate::block::BlockCipher;

pub(crate) struct Cbc(pub(crate) Box<dyn BlockCipher>);

impl SectorMode for Cbc {
    fn iv_len(&self) -> usize {
        self.0.block_len()
    }

    fn encrypt(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        let data = data.into_out_with_copied_in();
        match self.0.block_len() {
            8 => encrypt::<8>(&*self.0, ivs, data, sector_size),
            _ => encrypt::<16>(&*self.0, ivs, data, sector_size),
        }
    }

    fn decrypt(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        let block = self.0.block_len();
        let mut ciphertext = [0; SECTOR_MAX];
        let batch = sectors_together(sector_size);
        let batches = data.into_out_with_copied_in().chunks_mut(batch * sector_size);
        for (ivs, sectors) in ivs.chunks(batch * block).zip(batches) {
            let ciphertext = &mut ciphertext[..sectors.len()];
            ciphertext.copy_from_slice(sectors);
            self.0.decrypt_blocks(sectors);
            let chains = ciphertext.chunks_exact(sector_size);
            for ((iv, ciphertext), sector) in
                ivs.chunks_exact(block).zip(chains).zip(sectors.chunks_exact_mut(sector_size))
            {
                let (head, tail) = sector.split_at_mut(block);
                xor(head, iv);
                xor(tail, ciphertext);
            }
        }
    }
}

/// Encrypts sectors with blocks of `B` bytes. Leaves the last block of each chain in `ivs`.
fn encrypt<const B: usize>(
    cipher: &dyn BlockCipher,
    ivs: &mut [u8],
    data: &mut [u8],
    sector_size: usize,
) {
    for index in 0..sector_size / B {
        let sectors = data.chunks_exact_mut(sector_size);
        for (chain, sector) in ivs.as_chunks_mut::<B>().0.iter_mut().zip(sectors) {
            xor(chain, &sector.as_chunks::<B>().0[index]);
        }
        cipher.encrypt_blocks(ivs);
        let sectors = data.chunks_exact_mut(sector_size);
        for (chain, sector) in ivs.as_chunks::<B>().0.iter().zip(sectors) {
            sector.as_chunks_mut::<B>().0[index] = *chain;
        }
    }
}
