//! The names of ciphers, modes, IVs and hashes, as dm-crypt and the kernel's crypto API spell them.

use std::fmt;

use zeroize::Zeroizing;

use crate::{Hash, KeySizes, SpecError};

/// Declares an enum and the names of its members in specifications, from one table.
macro_rules! named {
    (
        $(#[$doc:meta])* $Enum:ident, $kind:literal;
        $($(#[$member_doc:meta])* $Member:ident = $name:literal $(| $alias:literal)*,)+
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $Enum { $($(#[$member_doc])* $Member,)+ }

        impl $Enum {
            /// Every member, in the order of its documentation.
            pub const ALL: &[Self] = &[$(Self::$Member,)+];

            /// The name in a specification.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$Member => $name,)+ }
            }

            pub(crate) fn parse(name: &str) -> Result<Self, SpecError> {
                match name {
                    $($name $(| $alias)* => Ok(Self::$Member),)+
                    _ => Err(SpecError::Unknown {
                        kind: $kind,
                        name: name.to_owned(),
                        known: [$($name,)+].join(", "),
                    }),
                }
            }
        }

        impl fmt::Display for $Enum {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

named! {
    /// A block cipher.
    Cipher, "cipher";
    /// AES (FIPS 197).
    Aes = "aes",
    /// Serpent.
    Serpent = "serpent",
    /// Twofish.
    Twofish = "twofish",
    /// Camellia (RFC 3713).
    Camellia = "camellia",
    /// CAST-128 (RFC 2144), with blocks of 8 bytes.
    Cast5 = "cast5",
    /// CAST-256 (RFC 2612).
    Cast6 = "cast6",
    /// Blowfish, with blocks of 8 bytes.
    Blowfish = "blowfish",
    /// Triple DES (FIPS 46-3), with blocks of 8 bytes.
    Des3Ede = "des3_ede",
    /// ARIA (RFC 5794).
    Aria = "aria",
    /// SM4 (GB/T 32907).
    Sm4 = "sm4",
    /// The cipher pair of Adiantum: `XChaCha12` and AES-256.
    XChaCha12Aes = "xchacha12,aes",
    /// The cipher pair of Adiantum: `XChaCha20` and AES-256.
    XChaCha20Aes = "xchacha20,aes",
    /// No encryption: bytes stay unchanged.
    Null = "cipher_null" | "null",
}

named! {
    /// A mode of operation over the blocks of a sector.
    Mode, "mode";
    /// XEX with two keys (IEEE 1619), without ciphertext stealing: sectors are whole blocks.
    Xts = "xts",
    /// Cipher block chaining over one sector.
    Cbc = "cbc",
    /// Each block on its own, without an IV.
    Ecb = "ecb",
    /// Counter mode.
    Ctr = "ctr",
    /// The predecessor of XTS, by Liskov, Rivest and Wagner.
    Lrw = "lrw",
    /// Propagating cipher block chaining.
    Pcbc = "pcbc",
    /// A wide-block mode from a stream cipher, a hash and one AES block.
    Adiantum = "adiantum",
    /// A wide-block mode from a block cipher in counter mode and a hash.
    Hctr2 = "hctr2",
}

/// A hash that makes the key of an ESSIV, by the name that the kernel gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EssivHash {
    name: &'static str,
    hash: Hash,
    /// The digest is cut to so many bytes.
    len_max: usize,
}

impl EssivHash {
    /// Every hash that the kernel takes.
    pub const ALL: &[Self] = &[
        Self::whole("md4", Hash::Md4),
        Self::whole("md5", Hash::Md5),
        Self::whole("sha1", Hash::Sha1),
        Self::whole("sha224", Hash::Sha224),
        Self::whole("sha256", Hash::Sha256),
        Self::whole("sha384", Hash::Sha384),
        Self::whole("sha512", Hash::Sha512),
        Self::whole("sha3-224", Hash::Sha3_224),
        Self::whole("sha3-256", Hash::Sha3_256),
        Self::whole("sha3-384", Hash::Sha3_384),
        Self::whole("sha3-512", Hash::Sha3_512),
        Self::whole("blake2b-160", Hash::Blake2b160),
        Self::whole("blake2b-256", Hash::Blake2b256),
        Self::whole("blake2b-384", Hash::Blake2b384),
        Self::whole("blake2b-512", Hash::Blake2b512),
        Self::whole("rmd160", Hash::Ripemd160),
        Self::whole("sm3", Hash::Sm3),
        Self::whole("streebog256", Hash::Streebog256),
        Self::whole("streebog512", Hash::Streebog512),
        Self::whole("wp512", Hash::Whirlpool),
        Self { len_max: 32, ..Self::whole("wp256", Hash::Whirlpool) },
        Self { len_max: 48, ..Self::whole("wp384", Hash::Whirlpool) },
    ];

    /// Other names that the kernel takes.
    const ALIASES: &[(&str, &str)] = &[("ripemd160", "rmd160"), ("whirlpool", "wp512")];

    const fn whole(name: &'static str, hash: Hash) -> Self {
        Self { name, hash, len_max: usize::MAX }
    }

    /// The name in a specification.
    pub const fn name(self) -> &'static str {
        self.name
    }

    fn parse(name: &str) -> Result<Self, SpecError> {
        let alias = Self::ALIASES.iter().find(|(alias, _)| *alias == name);
        let known = alias.map_or(name, |(_, known)| known);
        Self::ALL.iter().find(|hash| hash.name == known).copied().ok_or_else(|| {
            SpecError::Unknown {
                kind: "hash",
                name: name.to_owned(),
                known: Self::ALL.iter().map(|hash| hash.name).collect::<Vec<_>>().join(", "),
            }
        })
    }

    /// Length of the digest in bytes.
    pub(crate) fn digest_len(self) -> usize {
        self.hash.size().min(self.len_max)
    }

    /// The digest of a key.
    pub(crate) fn digest(self, key: &[u8]) -> Zeroizing<Vec<u8>> {
        self.hash.digest_of_key(key, self.digest_len())
    }
}

impl fmt::Display for EssivHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// How the IV of a sector is made from its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IvMode {
    /// Zero for every sector (`null`), or no IV if the mode takes none (`ecb`).
    Null,
    /// The low 32 bits of the number, little-endian: repeats after 2 TiB of 512-byte sectors.
    Plain,
    /// The number, little-endian.
    Plain64,
    /// The number, big-endian in the last 8 bytes.
    Plain64Be,
    /// The number of the first cipher block, counted from 1, big-endian.
    Benbi,
    /// `plain64`, encrypted under the hash of the key.
    Essiv(EssivHash),
    /// The encrypted byte offset of `BitLocker`.
    Eboiv,
    /// `eboiv` with the diffuser of `BitLocker`, which takes the second half of the key.
    Elephant,
    /// loop-AES with several keys: version 2, or version 3 with one more key. 512-byte sectors.
    Lmk,
    /// TrueCrypt before version 4.1, with whitening. 512-byte sectors.
    Tcw,
}

impl IvMode {
    const KNOWN: &str =
        "null, plain, plain64, plain64be, benbi, essiv:HASH, eboiv, elephant, lmk, tcw";

    /// Parses `plain64`, `essiv:sha256`, …
    pub(crate) fn parse(text: &str) -> Result<Self, SpecError> {
        let (name, option) = match text.split_once(':') {
            Some((name, option)) => (name, Some(option)),
            None => (text, None),
        };
        Ok(match (name, option) {
            // dm-crypt ignores options that the IV does not use.
            ("null", _) => Self::Null,
            ("plain", _) => Self::Plain,
            ("plain64", _) => Self::Plain64,
            ("plain64be", _) => Self::Plain64Be,
            ("benbi", _) => Self::Benbi,
            ("eboiv", _) => Self::Eboiv,
            ("elephant", _) => Self::Elephant,
            ("lmk", _) => Self::Lmk,
            ("tcw", _) => Self::Tcw,
            ("essiv", Some(hash)) => Self::Essiv(EssivHash::parse(hash)?),
            _ => {
                return Err(SpecError::Unknown {
                    kind: "IV",
                    name: text.to_owned(),
                    known: Self::KNOWN.to_owned(),
                });
            }
        })
    }
}

impl fmt::Display for IvMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Plain => f.write_str("plain"),
            Self::Plain64 => f.write_str("plain64"),
            Self::Plain64Be => f.write_str("plain64be"),
            Self::Benbi => f.write_str("benbi"),
            Self::Eboiv => f.write_str("eboiv"),
            Self::Elephant => f.write_str("elephant"),
            Self::Lmk => f.write_str("lmk"),
            Self::Tcw => f.write_str("tcw"),
            Self::Essiv(hash) => write!(f, "essiv:{hash}"),
        }
    }
}

impl Cipher {
    /// Key lengths of the cipher itself, without mode and IV, in bytes.
    pub(crate) fn key_sizes(self) -> KeySizes {
        KeySizes::new(match self {
            Self::Aes | Self::Twofish | Self::Camellia | Self::Aria => vec![16, 24, 32],
            Self::Serpent => (1..=32).collect(),
            Self::Cast5 => (5..=16).collect(),
            Self::Cast6 => vec![16, 20, 24, 28, 32],
            Self::Blowfish => (4..=56).collect(),
            Self::Des3Ede => vec![24],
            Self::Sm4 => vec![16],
            Self::XChaCha12Aes | Self::XChaCha20Aes => vec![32],
            // The kernel's null cipher takes no key, but LUKS headers carry one, of up to 8192 bits.
            Self::Null => (0..=1024).collect(),
        })
    }

    /// Length of a block in bytes.
    pub(crate) const fn block_len(self) -> usize {
        match self {
            Self::Cast5 | Self::Blowfish | Self::Des3Ede => 8,
            _ => 16,
        }
    }
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
        for (name, len) in [("whirlpool", 64), ("wp512", 64), ("wp256", 32), ("wp384", 48)] {
            let hash = EssivHash::parse(name).expect("a known name");
            let digest = hash.digest(b"");
            let hex: Vec<_> = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!((&*hex.concat(), hash.digest_len()), (&expected[..2 * len], len), "{name}");
        }
    }
}
