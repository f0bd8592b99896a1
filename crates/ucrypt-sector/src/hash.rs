//! The hashes that make the key of an ESSIV.

use sha2::Digest;
use zeroize::{Zeroize, Zeroizing};

use crate::Hash;

/// The implementation of each hash, from one table.
macro_rules! hashes {
    ($($Hash:ident = $Digest:ty,)+) => {
        impl Hash {
            /// Length of the digest in bytes.
            pub(crate) fn digest_len(self) -> usize {
                match self {
                    $(Self::$Hash => <$Digest as Digest>::output_size(),)+
                }
            }

            /// The digest of a key.
            pub(crate) fn digest(self, key: &[u8]) -> Zeroizing<Vec<u8>> {
                match self {
                    $(Self::$Hash => digest::<$Digest>(key),)+
                }
            }
        }
    };
}

hashes! {
    Md4 = md4::Md4,
    Md5 = md5::Md5,
    Sha1 = sha1::Sha1,
    Sha224 = sha2::Sha224,
    Sha256 = sha2::Sha256,
    Sha384 = sha2::Sha384,
    Sha512 = sha2::Sha512,
    Sha3_224 = sha3::Sha3_224,
    Sha3_256 = sha3::Sha3_256,
    Sha3_384 = sha3::Sha3_384,
    Sha3_512 = sha3::Sha3_512,
    Blake2b160 = blake2::Blake2b<blake2::digest::consts::U20>,
    Blake2b256 = blake2::Blake2b<blake2::digest::consts::U32>,
    Blake2b384 = blake2::Blake2b<blake2::digest::consts::U48>,
    Blake2b512 = blake2::Blake2b512,
    Ripemd160 = ripemd::Ripemd160,
    Sm3 = sm3::Sm3,
    Streebog256 = streebog::Streebog256,
    Streebog512 = streebog::Streebog512,
    Whirlpool = whirlpool::Whirlpool,
}

/// The digest is a key: the array that it came in is wiped.
fn digest<D: Digest>(key: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut digest = D::digest(key);
    let kept = Zeroizing::new(digest.to_vec());
    digest.as_mut_slice().zeroize();
    kept
}
