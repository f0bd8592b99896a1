//! The hashes that make the key of an ESSIV.

use sha2::Digest;
use zeroize::Zeroizing;

use crate::Hash;

impl Hash {
    /// Length of the digest in bytes.
    pub(crate) const fn digest_len(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha1 | Self::Ripemd160 => 20,
            Self::Sha224 => 28,
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 | Self::Whirlpool => 64,
        }
    }

    /// The digest of a key.
    pub(crate) fn digest(self, key: &[u8]) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(match self {
            Self::Md5 => md5::Md5::digest(key).to_vec(),
            Self::Sha1 => sha1::Sha1::digest(key).to_vec(),
            Self::Sha224 => sha2::Sha224::digest(key).to_vec(),
            Self::Sha256 => sha2::Sha256::digest(key).to_vec(),
            Self::Sha384 => sha2::Sha384::digest(key).to_vec(),
            Self::Sha512 => sha2::Sha512::digest(key).to_vec(),
            Self::Ripemd160 => ripemd::Ripemd160::digest(key).to_vec(),
            Self::Whirlpool => whirlpool::Whirlpool::digest(key).to_vec(),
        })
    }
}
