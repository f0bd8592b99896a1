//! LRW, "tweakable block ciphers" by Liskov, Rivest and Wagner, as in the IEEE 1619 draft that XTS
//! replaced and in the kernel's `lrw`.
//!
//! The tweak of block `i` is the tweak key times `IV + i` in GF(2^128), where the last byte holds
//! the lowest coefficients. An increment of the counter changes a run of bits at its low end, so
//! the products of all such runs are precomputed.

use cipher::InOutBuf;
use zeroize::Zeroizing;

use super::{SectorMode, whitened};
use crate::block::BlockCipher;

/// A keyed cipher with 16-byte blocks, and the tweak key.
pub(crate) struct Lrw {
    data: Box<dyn BlockCipher>,
    tweak_key: Zeroizing<u128>,
    /// At `n`, the tweak key times x^n + … + x + 1: the change if the counter ends in `n` ones.
    increments: Zeroizing<[u128; 128]>,
}

impl Lrw {
    pub(crate) fn new(data: Box<dyn BlockCipher>, tweak_key: [u8; 16]) -> Self {
        let tweak_key = Zeroizing::new(u128::from_be_bytes(tweak_key));
        let mut increments = Zeroizing::new([0; 128]);
        let mut power = *tweak_key;
        let mut sum = 0;
        for increment in increments.iter_mut() {
            sum ^= power;
            *increment = sum;
            power = double(power);
        }
        Self { data, tweak_key, increments }
    }

    fn fill_mask(&self, iv: [u8; 16], mask: &mut [u8]) {
        let mut counter = u128::from_be_bytes(iv);
        let mut tweak = multiply(*self.tweak_key, counter);
        for block in mask.as_chunks_mut::<16>().0 {
            *block = tweak.to_be_bytes();
            // The counter is public, so it may be an index. When it wraps to zero, all bits change.
            tweak ^= self.increments[(counter.trailing_ones() as usize).min(127)];
            counter = counter.wrapping_add(1);
        }
    }
}

impl SectorMode for Lrw {
    fn iv_len(&self) -> usize {
        16
    }

    fn encrypt(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        let fill = |iv, mask: &mut [u8]| self.fill_mask(iv, mask);
        whitened(ivs, data, sector_size, fill, |blocks| self.data.encrypt_blocks(blocks));
    }

    fn decrypt(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        let fill = |iv, mask: &mut [u8]| self.fill_mask(iv, mask);
        whitened(ivs, data, sector_size, fill, |blocks| self.data.decrypt_blocks(blocks));
    }
}

/// Times x, modulo x^128 + x^7 + x^2 + x + 1, in constant time.
fn double(a: u128) -> u128 {
    (a << 1) ^ ((a.cast_signed() >> 127).cast_unsigned() & 0x87)
}

/// The product of a secret and a public polynomial.
fn multiply(secret: u128, public: u128) -> u128 {
    let mut product = 0;
    for bit in (0..128).rev() {
        product = double(product);
        if public >> bit & 1 == 1 {
            product ^= secret;
        }
    }
    product
}
