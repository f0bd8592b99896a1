//! XTS (IEEE 1619) over whole blocks.
//!
//! The tweaks of all sectors of a call are encrypted together. The tweaks of all blocks of a sector
//! are computed first, so that the cipher gets the whole sector at once.

use cipher::InOutBuf;

use super::{SectorMode, whitened};
use crate::block::BlockCipher;

/// Two keyed ciphers with 16-byte blocks: one for the data, one for the tweaks.
pub(crate) struct Xts {
    pub(crate) data: Box<dyn BlockCipher>,
    pub(crate) tweak: Box<dyn BlockCipher>,
}

impl SectorMode for Xts {
    fn iv_len(&self) -> usize {
        16
    }

    fn encrypt(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        self.tweak.encrypt_blocks(ivs);
        whitened(ivs, data, sector_size, multiply_out, |blocks| self.data.encrypt_blocks(blocks));
    }

    fn decrypt(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        self.tweak.encrypt_blocks(ivs);
        whitened(ivs, data, sector_size, multiply_out, |blocks| self.data.decrypt_blocks(blocks));
    }
}

/// Fills `mask` with the tweaks of successive blocks: each is the previous one times x in
/// GF(2^128), where the first byte holds the lowest coefficients.
fn multiply_out(tweak: [u8; 16], mask: &mut [u8]) {
    let mut tweak = u128::from_le_bytes(tweak);
    for block in mask.as_chunks_mut::<16>().0 {
        *block = tweak.to_le_bytes();
        let carry = (tweak.cast_signed() >> 127).cast_unsigned();
        tweak = (tweak << 1) ^ (carry & 0x87);
    }
}
