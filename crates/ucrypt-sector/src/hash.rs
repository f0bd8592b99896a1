//! The hashes, behind one enum: those that LUKS headers and cryptsetup's options name, and those that
//! make the key of an ESSIV.
//!
//! Each hash is used directly (checksums, anti-forensic diffusion, plain mode, ESSIV), as the HMAC
//! inside PBKDF2 (keyslots, digests), and by its name. The names are those of cryptsetup's crypto
//! backends; headers may spell them in upper or lower case. The kernel has other names for some
//! ([`EssivHash`](crate::EssivHash)).

use blake2::digest::consts::{U16, U20, U28, U32, U48};
use blake2::{Blake2b, Blake2b512, Blake2s, Blake2s256};
use digest::{Digest, Output};
use hmac::{Hmac, SimpleHmac};
use md4::Md4;
use md5::Md5;
use ripemd::Ripemd160;
use sha1::Sha1;
use sha2::{Sha224, Sha256, Sha384, Sha512, Sha512_224, Sha512_256};
use sha3::{Sha3_224, Sha3_256, Sha3_384, Sha3_512};
use sm3::Sm3;
use streebog::{Streebog256, Streebog512};
use whirlpool::Whirlpool;
use zeroize::{Zeroize, Zeroizing};

mod gcrypt_bug;
mod md5_sha1;

use gcrypt_bug::GcryptWhirlpool;
use md5_sha1::Md5Sha1;

use crate::stack::scrub_stack;

/// Bytes of stack, at most, that PBKDF2 takes.
const PBKDF2_STACK_BYTES: usize = 16 << 10;

/// Declares the enum, its names and the dispatch to the implementations from one table, so that
/// they cannot drift apart.
macro_rules! hashes {
    ($($variant:ident $name:literal $hmac:ident<$inner:ty> $digest:ty),+ $(,)?) => {
        /// A hash function, by the name that cryptsetup gives it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "the names of published hash functions")]
        pub enum Hash {
            $($variant),+
        }

        impl Hash {
            /// Every supported hash.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name as headers and options spell it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }

            /// Length of the digest in bytes.
            pub fn size(self) -> usize {
                match self {
                    $(Self::$variant => <$digest as Digest>::output_size()),+
                }
            }

            /// Writes the digest of the concatenated `parts` to the start of `out`, truncated if
            /// `out` is shorter than the digest.
            pub fn digest_into(self, parts: &[&[u8]], out: &mut [u8]) {
                match self {
                    $(Self::$variant => digest_into::<$digest>(parts, out)),+
                }
            }

            // Never part of its caller, which scrubs the stack below itself.
            #[inline(never)]
            fn fill_by_pbkdf2(self, password: &[u8], salt: &[u8], iterations: u32, out: &mut [u8]) {
                // `pbkdf2` fails only for a key length that HMAC refuses, and HMAC accepts all.
                let _: Result<(), digest::InvalidLength> = match self {
                    $(Self::$variant => pbkdf2::pbkdf2::<$hmac<$inner>>(
                        password, salt, iterations, out,
                    )),+
                };
            }
        }
    };
}

// The hash inside PBKDF2, and the one outside. The block-wise `Hmac` is faster. SHA-3, BLAKE2
// and the pair of MD5 and SHA-1 do not support it.
hashes! {
    Sha1 "sha1" Hmac<Sha1> Sha1,
    Sha224 "sha224" Hmac<Sha224> Sha224,
    Sha256 "sha256" Hmac<Sha256> Sha256,
    Sha384 "sha384" Hmac<Sha384> Sha384,
    Sha512 "sha512" Hmac<Sha512> Sha512,
    Sha512_224 "sha512-224" Hmac<Sha512_224> Sha512_224,
    Sha512_256 "sha512-256" Hmac<Sha512_256> Sha512_256,
    Sha3_224 "sha3-224" SimpleHmac<Sha3_224> Sha3_224,
    Sha3_256 "sha3-256" SimpleHmac<Sha3_256> Sha3_256,
    Sha3_384 "sha3-384" SimpleHmac<Sha3_384> Sha3_384,
    Sha3_512 "sha3-512" SimpleHmac<Sha3_512> Sha3_512,
    Ripemd160 "ripemd160" Hmac<Ripemd160> Ripemd160,
    Whirlpool "whirlpool" Hmac<Whirlpool> Whirlpool,
    GcryptWhirlpool "whirlpool_gcryptbug" Hmac<Whirlpool> GcryptWhirlpool,
    Blake2b160 "blake2b-160" SimpleHmac<Blake2b<U20>> Blake2b<U20>,
    Blake2b256 "blake2b-256" SimpleHmac<Blake2b<U32>> Blake2b<U32>,
    Blake2b384 "blake2b-384" SimpleHmac<Blake2b<U48>> Blake2b<U48>,
    Blake2b512 "blake2b-512" SimpleHmac<Blake2b512> Blake2b512,
    Blake2s128 "blake2s-128" SimpleHmac<Blake2s<U16>> Blake2s<U16>,
    Blake2s160 "blake2s-160" SimpleHmac<Blake2s<U20>> Blake2s<U20>,
    Blake2s224 "blake2s-224" SimpleHmac<Blake2s<U28>> Blake2s<U28>,
    Blake2s256 "blake2s-256" SimpleHmac<Blake2s256> Blake2s256,
    Streebog256 "stribog256" Hmac<Streebog256> Streebog256,
    Streebog512 "stribog512" Hmac<Streebog512> Streebog512,
    Sm3 "sm3" Hmac<Sm3> Sm3,
    Md5Sha1 "md5-sha1" SimpleHmac<Md5Sha1> Md5Sha1,
    // Too short for a new volume.
    Md5 "md5" Hmac<Md5> Md5,
    Md4 "md4" Hmac<Md4> Md4,
}

/// Other names of hashes. cryptsetup takes every name that OpenSSL has, and stores it as it was given.
const ALIASES: &[(&str, Hash)] = &[
    ("sha-1", Hash::Sha1),
    ("ssl3-sha1", Hash::Sha1),
    ("sha-224", Hash::Sha224),
    ("sha2-224", Hash::Sha224),
    ("sha-256", Hash::Sha256),
    ("sha2-256", Hash::Sha256),
    ("sha-384", Hash::Sha384),
    ("sha2-384", Hash::Sha384),
    ("sha-512", Hash::Sha512),
    ("sha2-512", Hash::Sha512),
    ("sha-512/224", Hash::Sha512_224),
    ("sha2-512/224", Hash::Sha512_224),
    ("sha-512/256", Hash::Sha512_256),
    ("sha2-512/256", Hash::Sha512_256),
    ("ripemd", Hash::Ripemd160),
    ("ripemd-160", Hash::Ripemd160),
    ("rmd160", Hash::Ripemd160),
    ("blake2b512", Hash::Blake2b512),
    ("blake2s256", Hash::Blake2s256),
    ("ssl3-md5", Hash::Md5),
];

impl Hash {
    /// Finds a hash by one of its names, ignoring case.
    pub fn from_name(name: &str) -> Option<Self> {
        let names = Self::ALL.iter().map(|hash| (hash.name(), *hash));
        names
            .chain(ALIASES.iter().copied())
            .find_map(|(known, hash)| known.eq_ignore_ascii_case(name).then_some(hash))
    }

    /// PBKDF2 with HMAC of this hash (RFC 8018), filling `out`.
    pub fn pbkdf2(self, password: &[u8], salt: &[u8], iterations: u32, out: &mut [u8]) {
        self.fill_by_pbkdf2(password, salt, iterations, out);
        scrub_stack::<PBKDF2_STACK_BYTES>();
    }

    /// The digest of the concatenated `parts`.
    pub fn digest(self, parts: &[&[u8]]) -> Vec<u8> {
        let mut out = vec![0; self.size()];
        self.digest_into(parts, &mut out);
        out
    }

    /// The first `len` bytes of the digest of a key. They are a key, too, and are wiped.
    pub(crate) fn digest_of_key(self, key: &[u8], len: usize) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(vec![0; len]);
        self.digest_into(&[key], &mut out);
        out
    }
}

fn digest_into<D: Digest>(parts: &[&[u8]], out: &mut [u8]) {
    let mut hasher = D::new();
    for part in parts {
        hasher.update(part);
    }
    let mut digest: Output<D> = hasher.finalize();
    let length = out.len().min(digest.len());
    out[..length].copy_from_slice(&digest[..length]);
    digest.as_mut_slice().zeroize();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks bytes against hexadecimal digits.
    pub(super) fn assert_hex(bytes: &[u8], expected: &str) {
        let hex: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex.concat(), expected);
    }

    /// The hashes that Debian's cryptsetup lacks; the others are compared with it on whole headers.
    /// BLAKE2: Python's `hashlib.blake2b(b"abc", digest_size=20).hexdigest()` and so on;
    /// SM3: draft-sca-cfrg-sm3-02, appendix A.1.
    #[test]
    fn digests_of_abc_are_the_published_ones() {
        for (hash, expected) in [
            (Hash::Blake2b160, "384264f676f39536840523f284921cdc68b6846b"),
            (Hash::Blake2b256, "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319"),
            (
                Hash::Blake2b384,
                "6f56a82c8e7ef526dfe182eb5212f7db9df1317e57815dbda46083fc30f54ee6c66ba83be64b302d7cba6ce15bb556f4",
            ),
            (Hash::Blake2s128, "aa4938119b1dc7b87cbad0ffd200d0ae"),
            (Hash::Blake2s160, "5ae3b99be29b01834c3b508521ede60438f8de17"),
            (Hash::Blake2s224, "0b033fc226df7abde29f67a05d3dc62cf271ef3dfea4d387407fbd55"),
            (Hash::Sm3, "66c7f0f462eeedd9d1f2d46bdc10e4e24167c4875cf2f7a2297da02b8f4ba8e0"),
        ] {
            assert_hex(&hash.digest(&[b"a", b"bc"]), expected);
            assert_eq!(expected.len(), 2 * hash.size());
        }
    }

    /// RFC 9337, appendix A (PBKDF2 with HMAC of Streebog-512).
    #[test]
    fn pbkdf2_with_streebog_gives_the_published_keys() {
        let mut key = [0; 64];
        Hash::Streebog512.pbkdf2(b"password", b"salt", 1, &mut key);
        assert_hex(
            &key,
            "64770af7f748c3b1c9ac831dbcfd85c26111b30a8a657ddc3056b80ca73e040d\
             2854fd36811f6d825cc4ab66ec0a68a490a9e5cf5156b3a2b7eecddbf9a16b47",
        );
    }

    /// RFC 6070, section 2.
    #[test]
    fn pbkdf2_with_sha1_gives_the_published_keys() {
        let mut key = [0; 20];
        Hash::Sha1.pbkdf2(b"password", b"salt", 4096, &mut key);
        assert_hex(&key, "4b007901b765489abead49d926f721d065a429c1");
        let mut key = [0; 25];
        Hash::Sha1.pbkdf2(
            b"passwordPASSWORDpassword",
            b"saltSALTsaltSALTsaltSALTsaltSALTsalt",
            4096,
            &mut key,
        );
        assert_hex(&key, "3d2eec4fe41c849b80c8d83662c0e44a8b291a964cf2f07038");
    }

    #[test]
    fn names_are_found_in_any_case_and_only_if_they_are_known() {
        for hash in Hash::ALL {
            assert_eq!(Hash::from_name(&hash.name().to_uppercase()), Some(*hash));
        }
        for (name, hash) in ALIASES {
            assert_eq!(Hash::from_name(&name.to_uppercase()), Some(*hash));
        }
        assert_eq!(Hash::from_name("md6"), None);
    }
}
