//! The JSON metadata of a LUKS2 header as types (on-disk format 1.1, chapter 3).
//!
//! An unknown type, such as a keyslot type of a newer program, is kept with its name: it can be
//! shown and written back, and is refused by name when it would have to be used.

use std::collections::BTreeMap;

use super::parse::Node;
use super::validate;
use crate::error::{Error, Result};
use crate::json::Json;
use crate::kdf::Kdf;

/// How the flags of segments begin that are kept for a reencryption.
const BACKUP: &str = "backup-";

/// All metadata of a header. The keys of the maps are the numbers that the header gives as strings.
#[derive(Debug, Clone, PartialEq)]
pub struct Metadata {
    /// Keyslots, numbered 0 to 31.
    pub keyslots: BTreeMap<u32, Keyslot>,
    /// Tokens, numbered 0 to 31.
    pub tokens: BTreeMap<u32, Token>,
    /// Data segments, numbered 0 to 31.
    pub segments: BTreeMap<u32, Segment>,
    /// Digests, numbered 0 to 7.
    pub digests: BTreeMap<u32, Digest>,
    /// Sizes, flags and requirements.
    pub config: Config,
}

impl Metadata {
    /// Parses and checks the metadata of a header whose copies are `header_size` bytes long.
    pub(crate) fn parse(json: &Json, header_size: u64) -> Result<Self> {
        let metadata = Node::root(json).metadata()?;
        validate::check(&metadata, header_size)?;
        Ok(metadata)
    }

    /// The digest that a segment is assigned to, with its number.
    pub fn digest_of_segment(&self, segment: u32) -> Option<(u32, &Digest)> {
        let mut digests = self.digests.iter();
        digests.find(|(_, digest)| digest.segments.contains(&segment)).map(|(id, d)| (*id, d))
    }

    /// Refuses a volume that needs what this program does not know, or that is in the middle of a
    /// reencryption.
    pub(crate) fn check_requirements(&self) -> Result<()> {
        if let Some(name) = self.config.requirements.first() {
            // `online-reencrypt-v2`, and the `offline-reencrypt` of cryptsetup-reencrypt.
            if name.contains("-reencrypt") {
                return Err(Error::Reencryption { what: "requirement", name: name.clone() });
            }
            return Err(Error::unsupported("LUKS2 requirement", name));
        }
        let mut flags = self.segments.values().flat_map(|segment| &segment.flags);
        match flags.find(|flag| *flag == "in-reencryption" || flag.starts_with(BACKUP)) {
            Some(name) => Err(Error::Reencryption { what: "segment flag", name: name.clone() }),
            None => Ok(()),
        }
    }

    /// First byte of the data, the smallest offset of a segment; 0 if the header is detached.
    pub fn data_offset(&self) -> u64 {
        self.segments.values().map(|segment| segment.offset).min().unwrap_or(0)
    }
}

/// A keyslot.
#[derive(Debug, Clone, PartialEq)]
pub struct Keyslot {
    /// Its type.
    pub kind: KeyslotKind,
    /// Length of the key that it holds, in bytes.
    pub key_size: u32,
    /// Its place in the order of attempts.
    pub priority: Priority,
    /// Its place in the header image.
    pub area: Area,
}

/// The type of a keyslot, with its parameters.
#[derive(Debug, Clone, PartialEq)]
pub enum KeyslotKind {
    /// `luks2`: opened with a passphrase.
    Luks2 {
        /// The key derivation.
        kdf: Kdf,
        /// Its salt.
        salt: Vec<u8>,
        /// The anti-forensic splitter.
        af: Af,
        /// Cipher of the area.
        encryption: String,
        /// Length of the area's key in bytes.
        area_key_size: u32,
    },
    /// Any other type, with its name.
    Other(String),
}

impl KeyslotKind {
    /// The name of the type.
    pub fn name(&self) -> &str {
        match self {
            Self::Luks2 { .. } => "luks2",
            Self::Other(name) => name,
        }
    }
}

/// The anti-forensic splitter of a keyslot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Af {
    /// Its type; only `luks1` is known.
    pub kind: String,
    /// Number of stripes.
    pub stripes: u32,
    /// Name of the hash.
    pub hash: String,
}

/// The place of a keyslot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Area {
    /// Its type; only `raw` is known.
    pub kind: String,
    /// First byte in the header image.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
}

/// The order in which keyslots are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// 0: only if requested by number.
    Ignore,
    /// 1: after the preferred ones.
    Normal,
    /// 2: first.
    Prefer,
}

/// A token, which says how a program may get a passphrase. It is kept and shown, but not used.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Its type.
    pub kind: String,
    /// The keyslots that it opens.
    pub keyslots: Vec<u32>,
    /// The whole token.
    pub json: Json,
}

/// A data segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// First byte in the data image.
    pub offset: u64,
    /// Length in bytes; `None` reaches to the end of the image.
    pub size: Option<u64>,
    /// Flags of the segment.
    pub flags: Vec<String>,
    /// Its type.
    pub kind: SegmentKind,
}

impl Segment {
    /// Whether this is a backup for a reencryption and no part of the volume.
    pub fn is_backup(&self) -> bool {
        self.flags.iter().any(|flag| flag.starts_with(BACKUP))
    }
}

/// The type of a segment, with its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SegmentKind {
    /// `crypt`: encrypted.
    Crypt {
        /// Added to the sector number that makes the IV, in 512-byte sectors.
        iv_tweak: u64,
        /// Cipher, mode and IV.
        encryption: String,
        /// Bytes that are encrypted as one unit.
        sector_size: u32,
        /// The type of the integrity protection, if there is one.
        integrity: Option<String>,
    },
    /// Any other type, with its name.
    Other(String),
}

impl SegmentKind {
    /// The name of the type.
    pub fn name(&self) -> &str {
        match self {
            Self::Crypt { .. } => "crypt",
            Self::Other(name) => name,
        }
    }
}

/// A digest: verifies a volume key, and ties keyslots to the segments that the key encrypts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digest {
    /// The keyslots that hold the key.
    pub keyslots: Vec<u32>,
    /// The segments that the key encrypts.
    pub segments: Vec<u32>,
    /// Its type.
    pub kind: DigestKind,
}

/// The type of a digest, with its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DigestKind {
    /// `pbkdf2`.
    Pbkdf2(Pbkdf2Digest),
    /// Any other type, with its name.
    Other(String),
}

impl DigestKind {
    /// The name of the type.
    pub fn name(&self) -> &str {
        match self {
            Self::Pbkdf2(_) => "pbkdf2",
            Self::Other(name) => name,
        }
    }
}

/// A digest made with PBKDF2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pbkdf2Digest {
    /// Name of the hash.
    pub hash: String,
    /// Number of iterations.
    pub iterations: u32,
    /// The salt.
    pub salt: Vec<u8>,
    /// The digest.
    pub digest: Vec<u8>,
}

/// Sizes, flags and requirements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Length of the JSON area of one copy in bytes.
    pub json_size: u64,
    /// Length of the keyslots area in bytes; it begins after the secondary copy.
    pub keyslots_size: u64,
    /// Names of the activation flags.
    pub flags: Vec<String>,
    /// Names of the features that a program must support to use this volume.
    pub requirements: Vec<String>,
}
