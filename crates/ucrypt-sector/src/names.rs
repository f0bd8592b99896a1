//! The names of ciphers, modes, IVs and hashes, as dm-crypt and the kernel's crypto API spell them.

use std::fmt;

use crate::{KeySizes, SpecError};

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

named! {
    /// A hash that makes the key of an ESSIV.
    Hash, "hash";
    /// MD4 (RFC 1320).
    Md4 = "md4",
    /// MD5 (RFC 1321).
    Md5 = "md5",
    /// SHA-1 (FIPS 180).
    Sha1 = "sha1",
    /// SHA-224 (FIPS 180).
    Sha224 = "sha224",
    /// SHA-256 (FIPS 180).
    Sha256 = "sha256",
    /// SHA-384 (FIPS 180).
    Sha384 = "sha384",
    /// SHA-512 (FIPS 180).
    Sha512 = "sha512",
    /// SHA3-224 (FIPS 202).
    Sha3_224 = "sha3-224",
    /// SHA3-256 (FIPS 202).
    Sha3_256 = "sha3-256",
    /// SHA3-384 (FIPS 202).
    Sha3_384 = "sha3-384",
    /// SHA3-512 (FIPS 202).
    Sha3_512 = "sha3-512",
    /// `BLAKE2b` of 20 bytes (RFC 7693).
    Blake2b160 = "blake2b-160",
    /// `BLAKE2b` of 32 bytes (RFC 7693).
    Blake2b256 = "blake2b-256",
    /// `BLAKE2b` of 48 bytes (RFC 7693).
    Blake2b384 = "blake2b-384",
    /// `BLAKE2b` of 64 bytes (RFC 7693).
    Blake2b512 = "blake2b-512",
    /// RIPEMD-160.
    Ripemd160 = "rmd160" | "ripemd160",
    /// SM3 (GB/T 32905).
    Sm3 = "sm3",
    /// Streebog of 32 bytes (GOST R 34.11-2012).
    Streebog256 = "streebog256",
    /// Streebog of 64 bytes (GOST R 34.11-2012).
    Streebog512 = "streebog512",
    /// Whirlpool.
    Whirlpool = "wp512" | "whirlpool",
    /// The first 32 bytes of Whirlpool.
    Whirlpool256 = "wp256",
    /// The first 48 bytes of Whirlpool.
    Whirlpool384 = "wp384",
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
    Essiv(Hash),
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
            ("essiv", Some(hash)) => Self::Essiv(Hash::parse(hash)?),
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
