//! The hashes that make the key of an ESSIV.

use sha2::Digest;
use zeroize::{Zeroize, Zeroizing};

use crate::Hash;

/// Declares the implementation of each hash, from one table.
macro_rules! hashes {
    ($($Hash:ident = $Digest:ty $([..$cut:literal])?,)+) => {
        impl Hash {
            /// Length of the digest in bytes.
            pub(crate) fn digest_len(self) -> usize {
                match self {
                    $(Self::$Hash => {
                        let len = <$Digest as Digest>::output_size();
                        $(let len = len.min($cut);)?
                        len
                    })+
                }
            }

            /// The digest of a key.
            pub(crate) fn digest(self, key: &[u8]) -> Zeroizing<Vec<u8>> {
                let mut digest = match self {
                    $(Self::$Hash => digest::<$Digest>(key),)+
                };
                digest.truncate(self.digest_len());
                digest
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
    Whirlpool256 = whirlpool::Whirlpool[..32],
    Whirlpool384 = whirlpool::Whirlpool[..48],
}

/// Hashes `key`. The digest is a key too, so its temporary copy is wiped.
fn digest<D: Digest>(key: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut digest = D::digest(key);
    let kept = Zeroizing::new(digest.to_vec());
    digest.as_mut_slice().zeroize();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vector for an empty input in ISO/IEC 10118-3, truncated as in the kernel
    /// (`crypto/testmgr.h`: `wp256_tv_template`, `wp384_tv_template`).
    #[test]
    fn whirlpool_is_cut_to_its_shorter_forms() {
        let expected = "19fa61d75522a4669b44e39c1d2e1726c530232130d407f89afee0964997f7a7\
                        3e83be698b288febcf88e3e03c4f0757ea8964e59b63d93708b138cc42a66eb3";
        for (hash, len) in
            [(Hash::Whirlpool, 64), (Hash::Whirlpool256, 32), (Hash::Whirlpool384, 48)]
        {
            let digest = hash.digest(b"");
            for (byte, hex) in digest.iter().zip(expected.as_bytes().chunks(2)) {
                assert_eq!(format!("{byte:02x}").as_bytes(), hex);
            }
            assert_eq!(digest.len(), len);
            assert_eq!(hash.digest_len(), len);
        }
    }
}
