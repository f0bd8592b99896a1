//! Modes without an IV: ECB and no encryption.

use cipher::InOutBuf;

use super::SectorMode;
use crate::block::BlockCipher;

/// ECB: each block is independent.
pub(crate) struct Ecb(pub(crate) Box<dyn BlockCipher>);

impl SectorMode for Ecb {
    fn iv_len(&self) -> usize {
        0
    }

    fn encrypt(&self, _ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, _sector_size: usize) {
        self.0.encrypt_blocks(data.into_out_with_copied_in());
    }

    fn decrypt(&self, _ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, _sector_size: usize) {
        self.0.decrypt_blocks(data.into_out_with_copied_in());
    }
}

/// `cipher_null`: bytes stay unchanged.
pub(crate) struct Identity;

impl SectorMode for Identity {
    fn iv_len(&self) -> usize {
        0
    }

    fn encrypt(&self, _ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, _sector_size: usize) {
        let _ = data.into_out_with_copied_in();
    }

    fn decrypt(&self, _ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, _sector_size: usize) {
        let _ = data.into_out_with_copied_in();
    }
}
