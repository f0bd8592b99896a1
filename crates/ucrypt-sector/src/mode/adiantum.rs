//! Adiantum, a wide-block mode for processors without AES instructions.
//!
//! Crowley, Biggers: "Adiantum: length-preserving encryption for entry-level processors" (ePrint
//! 2018/720), with the 32-byte tweak of the kernel's `adiantum`. `XChaCha` encrypts the bulk of a
//! sector and AES-256 its last block. A hash of the tweak and the bulk is added to the last block
//! before AES and subtracted at the end; the result of AES is the nonce of `XChaCha`.

use cipher::{InOutBuf, KeyIvInit, StreamCipher};
use poly1305::{
    Poly1305,
    universal_hash::{KeyInit, UniversalHash},
};
use zeroize::Zeroizing;

use super::{SectorMode, WIDE_TWEAK};
use crate::{Cipher, Kernel, block::BlockCipher};

/// Longest message of one NH hash, in bytes.
const NH_MESSAGE: usize = 1024;

/// Words of the NH key: those of a message, and 4 for each of the 3 further passes.
const NH_KEY_WORDS: usize = NH_MESSAGE / 4 + 12;

/// Bytes of derived key material: block cipher, two Poly1305 keys, NH.
const DERIVED: usize = 32 + 16 + 16 + 4 * NH_KEY_WORDS;

pub(crate) struct Adiantum {
    stream: Stream,
    stream_key: Zeroizing<[u8; 32]>,
    block: Box<dyn BlockCipher>,
    header_hash: Poly1305,
    message_hash: Poly1305,
    nh_key: Zeroizing<[u32; NH_KEY_WORDS]>,
}

#[derive(Clone, Copy)]
enum Stream {
    XChaCha12,
    XChaCha20,
}

impl Adiantum {
    /// `None` if the key is not 32 bytes long, or if the cipher is not a pair for Adiantum.
    pub(crate) fn new(cipher: Cipher, kernel: Kernel, key: &[u8]) -> Option<Self> {
        let stream = match cipher {
            Cipher::XChaCha12Aes => Stream::XChaCha12,
            Cipher::XChaCha20Aes => Stream::XChaCha20,
            _ => return None,
        };
        let stream_key: Zeroizing<[u8; 32]> = Zeroizing::new(key.try_into().ok()?);
        let mut derived = Zeroizing::new([0; DERIVED]);
        let mut nonce = [0; 24];
        nonce[0] = 1;
        stream.apply(&stream_key, &nonce, &mut *derived);

        let (block_key, rest) = derived.split_at(32);
        let (header_key, rest) = rest.split_at(16);
        let (message_key, nh_bytes) = rest.split_at(16);
        let mut nh_key = Zeroizing::new([0; NH_KEY_WORDS]);
        for (word, bytes) in nh_key.iter_mut().zip(nh_bytes.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        Some(Self {
            stream,
            block: kernel.block_cipher(block_key)?,
            header_hash: poly1305_without_nonce(header_key),
            message_hash: poly1305_without_nonce(message_key),
            nh_key,
            stream_key,
        })
    }

    fn crypt(
        &self,
        ivs: &[u8],
        data: InOutBuf<'_, '_, u8>,
        sector_size: usize,
        encrypt: impl Fn(&mut [u8]),
        decrypt: impl Fn(&mut [u8]),
    ) {
        let sectors = data.into_out_with_copied_in().chunks_exact_mut(sector_size);
        for (tweak, sector) in ivs.chunks_exact(WIDE_TWEAK).zip(sectors) {
            let (bulk, last) = sector.split_at_mut(sector_size - 16);
            let header = self.hash_header(tweak, bulk.len());
            let mut block = [0; 16];
            block.copy_from_slice(last);
            let hash = header.wrapping_add(self.hash_message(bulk));
            block = u128::from_le_bytes(block).wrapping_add(hash).to_le_bytes();
            encrypt(&mut block);
            let mut nonce = [0; 24];
            nonce[..16].copy_from_slice(&block);
            nonce[16] = 1;
            self.stream.apply(&self.stream_key, &nonce, bulk);
            decrypt(&mut block);
            let hash = header.wrapping_add(self.hash_message(bulk));
            let block = u128::from_le_bytes(block).wrapping_sub(hash).to_le_bytes();
            last.copy_from_slice(&block);
        }
    }

    /// The hash of the tweak and of the length of the bulk in bytes.
    fn hash_header(&self, tweak: &[u8], bulk_len: usize) -> u128 {
        let mut hash = self.header_hash.clone();
        hash.update(&[(8 * bulk_len as u128).to_le_bytes().into()]);
        hash.update_padded(tweak);
        tag(hash)
    }

    /// The hash of the bulk: Poly1305 over the NH hashes of its parts.
    fn hash_message(&self, bulk: &[u8]) -> u128 {
        let mut hash = self.message_hash.clone();
        for part in bulk.chunks(NH_MESSAGE) {
            let mut digest = [0; 32];
            for (bytes, sum) in digest.as_chunks_mut::<8>().0.iter_mut().zip(self.nh(part)) {
                *bytes = sum.to_le_bytes();
            }
            hash.update_padded(&digest);
        }
        tag(hash)
    }

    /// NH in four passes, each with the key shifted by 4 more words.
    fn nh(&self, message: &[u8]) -> [u64; 4] {
        let mut sums = [0u64; 4];
        for (index, unit) in message.as_chunks::<16>().0.iter().enumerate() {
            let mut words = [0; 4];
            for (word, bytes) in words.iter_mut().zip(unit.as_chunks::<4>().0) {
                *word = u32::from_le_bytes(*bytes);
            }
            let keys = &self.nh_key[4 * index..][..16];
            for (sum, key) in sums.iter_mut().zip(keys.as_chunks::<4>().0) {
                let mixed = |i: usize| u64::from(words[i].wrapping_add(key[i]));
                *sum = sum.wrapping_add(mixed(0) * mixed(2)).wrapping_add(mixed(1) * mixed(3));
            }
        }
        sums
    }
}

impl SectorMode for Adiantum {
    fn iv_len(&self) -> usize {
        WIDE_TWEAK
    }

    fn encrypt(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        self.crypt(ivs, data, sector_size, |block| self.block.encrypt_blocks(block), |_| ());
    }

    fn decrypt(&self, ivs: &mut [u8], data: InOutBuf<'_, '_, u8>, sector_size: usize) {
        self.crypt(ivs, data, sector_size, |_| (), |block| self.block.decrypt_blocks(block));
    }
}

impl Stream {
    fn apply(self, key: &[u8; 32], nonce: &[u8; 24], data: &mut [u8]) {
        let (key, nonce) = (key.into(), nonce.into());
        match self {
            Self::XChaCha12 => chacha20::XChaCha12::new(key, nonce).apply_keystream(data),
            Self::XChaCha20 => chacha20::XChaCha20::new(key, nonce).apply_keystream(data),
        }
    }
}

/// Poly1305 as a plain polynomial hash: nothing is added at the end.
fn poly1305_without_nonce(key: &[u8]) -> Poly1305 {
    let mut whole = Zeroizing::new([0; 32]);
    whole[..16].copy_from_slice(key);
    Poly1305::new((&*whole).into())
}

fn tag(hash: Poly1305) -> u128 {
    u128::from_le_bytes(hash.finalize().into())
}
