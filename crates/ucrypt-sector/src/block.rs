//! Block ciphers behind one small trait, and their construction from a name and a key.
//!
//! A call handles many blocks, so dynamic dispatch costs once per sector or batch, and each mode is
//! written once for all ciphers.

use cipher::{
    Array, BlockCipherDecrypt, BlockCipherEncrypt, BlockSizeUser, KeyInit, typenum::Unsigned,
};
use zeroize::Zeroizing;

use crate::{Cipher, Kernel, twofish::Twofish};
#[cfg(target_arch = "x86_64")]
use crate::{camellia::Camellia, serpent::Serpent, twofish, x86::Features};

/// A keyed block cipher that handles many blocks per call.
pub(crate) trait BlockCipher: Send + Sync {
    /// Length of a block in bytes: 8 or 16.
    fn block_len(&self) -> usize;

    /// Encrypts each block of `data` independently. `data` is a whole number of blocks.
    fn encrypt_blocks(&self, data: &mut [u8]);

    /// Decrypts each block of `data` independently. `data` is a whole number of blocks.
    fn decrypt_blocks(&self, data: &mut [u8]);
}

impl<C> BlockCipher for C
where
    C: BlockCipherEncrypt + BlockCipherDecrypt + BlockSizeUser + Send + Sync,
{
    fn block_len(&self) -> usize {
        C::BlockSize::USIZE
    }

    fn encrypt_blocks(&self, data: &mut [u8]) {
        let (blocks, _) = Array::slice_as_chunks_mut(data);
        BlockCipherEncrypt::encrypt_blocks(self, blocks);
    }

    fn decrypt_blocks(&self, data: &mut [u8]) {
        let (blocks, _) = Array::slice_as_chunks_mut(data);
        BlockCipherDecrypt::decrypt_blocks(self, blocks);
    }
}

/// The cipher keyed with `key`; `None` if the cipher does not take a key of that length.
pub(crate) fn block_cipher(
    cipher: Cipher,
    kernel: Kernel,
    key: &[u8],
) -> Option<Box<dyn BlockCipher>> {
    #[cfg(target_arch = "x86_64")]
    if let Some(features) = Features::detect(kernel) {
        match cipher {
            Cipher::Serpent => return Some(Serpent::new(features, &*padded(key)?)?),
            Cipher::Camellia => return Some(Box::new(Camellia::new(features, key)?)),
            Cipher::Twofish if kernel.is_for(cipher) => {
                return Some(Box::new(twofish::vector::Twofish::new(features, key)?));
            }
            _ => {}
        }
    }
    match (cipher, key.len()) {
        (Cipher::Aes, _) => kernel.block_cipher(key),
        (Cipher::Serpent, _) => keyed::<serpent::Serpent>(&*padded(key)?),
        (Cipher::Twofish, _) => Some(Twofish::new(key)?),
        (Cipher::Camellia, 16) => keyed::<camellia::Camellia128>(key),
        (Cipher::Camellia, 24) => keyed::<camellia::Camellia192>(key),
        (Cipher::Camellia, _) => keyed::<camellia::Camellia256>(key),
        (Cipher::Cast5, _) => keyed::<cast5::Cast5>(key),
        (Cipher::Cast6, _) => keyed::<cast6::Cast6>(key),
        (Cipher::Blowfish, _) => keyed::<blowfish::Blowfish>(key),
        (Cipher::Des3Ede, _) => keyed::<des::TdesEde3>(key),
        (Cipher::Aria, 16) => keyed::<aria::Aria128>(key),
        (Cipher::Aria, 24) => keyed::<aria::Aria192>(key),
        (Cipher::Aria, _) => keyed::<aria::Aria256>(key),
        (Cipher::Sm4, _) => keyed::<sm4::Sm4>(key),
        (Cipher::XChaCha12Aes | Cipher::XChaCha20Aes | Cipher::Null, _) => None,
    }
}

/// AES from the `aes` crate.
pub(crate) fn portable_aes(key: &[u8]) -> Option<Box<dyn BlockCipher>> {
    match key.len() {
        16 => keyed::<aes::Aes128>(key),
        24 => keyed::<aes::Aes192>(key),
        _ => keyed::<aes::Aes256>(key),
    }
}

/// Pads a Serpent key. Serpent takes keys up to 32 bytes and defines short ones by their padding.
fn padded(key: &[u8]) -> Option<Zeroizing<[u8; 32]>> {
    let mut padded = Zeroizing::new([0; 32]);
    padded.get_mut(..key.len())?.copy_from_slice(key);
    if let Some(end) = padded.get_mut(key.len()) {
        *end = 1;
    }
    Some(padded)
}

fn keyed<C: KeyInit + BlockCipher + 'static>(key: &[u8]) -> Option<Box<dyn BlockCipher>> {
    Some(Box::new(C::new_from_slice(key).ok()?))
}
