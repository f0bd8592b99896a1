//! HCTR2, a wide-block mode: every bit of a sector depends on every other.
//!
//! Crowley, Huckleberry, Biggers: "Length-preserving encryption with HCTR2" (ePrint 2021/1441),
//! with the 32-byte tweak of the kernel's `hctr2`. Sectors are whole blocks, so there is never a
//! partial last block.

use cipher::InOutBuf;
use polyval::{Polyval, universal_hash::UniversalHash};
use zeroize::Zeroizing;

use super::{SECTOR_MAX, SectorMode, WIDE_TWEAK, xor};
use crate::block::BlockCipher;

/// A keyed cipher with 16-byte blocks, and the values derived from its key.
pub(crate) struct Hctr2 {
    cipher: Box<dyn BlockCipher>,
    /// Keyed, and already fed with the block that encodes the tweak length.
    hash: Polyval,
    stream_mask: Zeroizing<[u8; 16]>,
}

impl Hctr2 {
    pub(crate) fn new(cipher: Box<dyn BlockCipher>) -> Self {
        let mut hash_key = Zeroizing::new([0; 16]);
        cipher.encrypt_blocks(&mut *hash_key);
        let mut stream_mask = Zeroizing::new([0; 16]);
        stream_mask[0] = 1;
        cipher.encrypt_blocks(&mut *stream_mask);
        let mut hash = Polyval::new((&*hash_key).into());
        // Twice the length in bits, plus 2 for a message of whole blocks.
        let tweak_len = (2 * 8 * WIDE_TWEAK + 2) as u128;
        hash.update(&[tweak_len.to_le_bytes().into()]);
        Self { cipher, hash, stream_mask }
    }

    /// Transforms each sector. `block` is the block cipher in one direction, applied to the first
    /// block between the two hashes.
    fn crypt(
        &self,
        ivs: &[u8],
        data: InOutBuf<'_, '_, u8>,
        sector_size: usize,
        block: impl Fn(&mut [u8]),
    ) {
        let sectors = data.into_out_with_copied_in().chunks_exact_mut(sector_size);
        for (tweak, sector) in ivs.chunks_exact(WIDE_TWEAK).zip(sectors) {
            let mut hash = self.hash.clone();
            hash.update_padded(tweak);
            let (first, bulk) = sector.split_at_mut(16);
            xor(first, &hashed(&hash, bulk));
            let mut stream_iv = *self.stream_mask;
            xor(&mut stream_iv, first);
            block(first);
            xor(&mut stream_iv, first);
            self.stream(stream_iv, bulk);
            xor(first, &hashed(&hash, bulk));
        }
    }

    /// XCTR: XORs the IV with a little-endian counter that starts at one.
    fn stream(&self, iv: [u8; 16], data: &mut [u8]) {
        let mut stream = [0; SECTOR_MAX];
        let stream = &mut stream[..data.len()];
        let iv = u128::from_le_bytes(iv);
        for (counter, input) in (1..).zip(stream.as_chunks_mut::<16>().0) {
            *input = (iv ^ counter).to_le_bytes();
        }
        self.cipher.encrypt_blocks(stream);
        xor(data, stream);
    }
}

fn hashed(hash: &Polyval, message: &[u8]) -> [u8; 16] {
    let mut hash = hash.clone();
    hash.update_padded(message);
    hash.finalize().into()
}

impl SectorMode for Hctr2 {
    fn iv_len(&self) -> usize {
        WIDE_TWEAK
    }

    fn encrypt(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        self.crypt(ivs, data, sector_size, |block| self.cipher.encrypt_blocks(block));
    }

    fn decrypt(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        self.crypt(ivs, data, sector_size, |block| self.cipher.decrypt_blocks(block));
    }
}
