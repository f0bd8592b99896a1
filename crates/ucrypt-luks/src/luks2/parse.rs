//! Parses JSON into the types of [`super::metadata`]. Checks the mandatory members and the form of
//! each value (on-disk format 1.1, chapter 3). Every error names the path of the member.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::metadata::{
    Af, Area, Config, Digest, DigestKind, Keyslot, KeyslotKind, Metadata, Pbkdf2Digest, Priority,
    Segment, SegmentKind, Token,
};
use super::reencryption;
use crate::error::{Error, Result};
use crate::json::{Json, Text};
use crate::kdf::{Argon2Variant, Kdf};

/// Largest number of objects of each kind in a header: cryptsetup's limits.
pub(crate) const KEYSLOTS_MAX: u32 = 32;
pub(crate) const TOKENS_MAX: u32 = 32;
const SEGMENTS_MAX: u32 = 32;
pub(crate) const DIGESTS_MAX: u32 = 8;

/// Longest salt or digest in bytes.
const BINARY_MAX: usize = 512;

/// A value and its path.
pub(crate) struct Node<'a> {
    path: String,
    value: &'a Json,
}

impl<'a> Node<'a> {
    pub(crate) fn root(value: &'a Json) -> Self {
        Self { path: "JSON".to_owned(), value }
    }

    pub(crate) fn metadata(&self) -> Result<Metadata> {
        Ok(Metadata {
            keyslots: self.numbered("keyslots", KEYSLOTS_MAX, Self::keyslot)?,
            tokens: self.numbered("tokens", TOKENS_MAX, Self::token)?,
            segments: self.numbered("segments", SEGMENTS_MAX, Self::segment)?,
            digests: self.numbered("digests", DIGESTS_MAX, Self::digest)?,
            config: self.member("config")?.config()?,
        })
    }

    fn keyslot(&self) -> Result<Keyslot> {
        let area = self.member("area")?;
        let kind = match self.member("type")?.name()? {
            "luks2" => self.luks2_keyslot(&area)?,
            reencryption::KEYSLOT => {
                reencryption::check_keyslot(self, &area)?;
                KeyslotKind::Other(reencryption::KEYSLOT.to_owned())
            }
            other => KeyslotKind::Other(other.to_owned()),
        };
        Ok(Keyslot {
            kind,
            key_size: self.member("key_size")?.number()?,
            priority: self.optional("priority").map_or(Ok(Priority::Normal), |n| n.priority())?,
            area: Area {
                kind: area.member("type")?.name()?.to_owned(),
                offset: area.member("offset")?.decimal()?,
                size: area.member("size")?.decimal()?,
            },
        })
    }

    fn luks2_keyslot(&self, area: &Self) -> Result<KeyslotKind> {
        let af = self.member("af")?;
        let members = self.member("kdf")?;
        let kdf = members.kdf()?;
        let salt = match (&kdf, members.optional("salt")) {
            // Nothing is known of the other members of an unknown one, which only luksDump shows.
            (Kdf::Unknown(_), salt) => salt.and_then(|salt| salt.salt().ok()).unwrap_or_default(),
            _ => members.member("salt")?.salt()?,
        };
        Ok(KeyslotKind::Luks2 {
            kdf,
            salt,
            af: Af {
                kind: af.member("type")?.name()?.to_owned(),
                stripes: af.member("stripes")?.number()?,
                hash: af.member("hash")?.name()?.to_owned(),
            },
            encryption: area.member("encryption")?.name()?.to_owned(),
            area_key_size: area.member("key_size")?.number()?,
        })
    }

    fn kdf(&self) -> Result<Kdf> {
        let variant = match self.member("type")?.name()? {
            "pbkdf2" => {
                return Ok(Kdf::Pbkdf2 {
                    hash: self.member("hash")?.name()?.to_owned(),
                    iterations: self.member("iterations")?.number()?,
                });
            }
            "argon2i" => Argon2Variant::I,
            "argon2id" => Argon2Variant::Id,
            other => return Ok(Kdf::Unknown(other.to_owned())),
        };
        Ok(Kdf::Argon2 {
            variant,
            time: self.member("time")?.number()?,
            memory_kib: self.member("memory")?.number()?,
            lanes: self.member("cpus")?.number()?,
        })
    }

    fn priority(&self) -> Result<Priority> {
        match self.number()? {
            0 => Ok(Priority::Ignore),
            1 => Ok(Priority::Normal),
            2 => Ok(Priority::Prefer),
            other => Err(self.broken(format!("{other} is none of 0, 1 and 2"))),
        }
    }

    fn token(&self) -> Result<Token> {
        Ok(Token {
            kind: self.member("type")?.name()?.to_owned(),
            keyslots: self.member("keyslots")?.references(KEYSLOTS_MAX)?,
            json: self.value.clone(),
        })
    }

    fn segment(&self) -> Result<Segment> {
        let size = self.member("size")?;
        let kind = match self.member("type")?.name()? {
            "crypt" => SegmentKind::Crypt {
                iv_tweak: self.member("iv_tweak")?.decimal()?,
                encryption: self.member("encryption")?.name()?.to_owned(),
                sector_size: self.member("sector_size")?.number()?,
                integrity: match self.optional("integrity") {
                    Some(integrity) => Some(integrity.integrity()?),
                    None => None,
                },
            },
            other => SegmentKind::Other(other.to_owned()),
        };
        Ok(Segment {
            offset: self.member("offset")?.decimal()?,
            size: if size.text()? == "dynamic" { None } else { Some(size.decimal()?) },
            flags: self.optional("flags").map_or(Ok(Vec::new()), |flags| flags.texts())?,
            kind,
        })
    }

    fn integrity(&self) -> Result<String> {
        for key in ["journal_encryption", "journal_integrity"] {
            self.member(key)?.name()?;
        }
        Ok(self.member("type")?.name()?.to_owned())
    }

    fn digest(&self) -> Result<Digest> {
        let kind = match self.member("type")?.name()? {
            "pbkdf2" => DigestKind::Pbkdf2(Pbkdf2Digest {
                hash: self.member("hash")?.text()?.to_owned(),
                iterations: self.member("iterations")?.number()?,
                salt: self.member("salt")?.binary()?,
                digest: self.member("digest")?.binary()?,
            }),
            other => DigestKind::Other(other.to_owned()),
        };
        Ok(Digest {
            keyslots: self.member("keyslots")?.references(KEYSLOTS_MAX)?,
            segments: self.member("segments")?.references(SEGMENTS_MAX)?,
            kind,
        })
    }

    fn config(&self) -> Result<Config> {
        let requirements = self.optional("requirements");
        if let Some(requirements) = &requirements {
            requirements.members()?;
        }
        let mandatory = requirements.and_then(|requirements| requirements.optional("mandatory"));
        Ok(Config {
            json_size: self.member("json_size")?.decimal()?,
            keyslots_size: self.member("keyslots_size")?.decimal()?,
            flags: self.optional("flags").map_or(Ok(Vec::new()), |flags| flags.texts())?,
            requirements: mandatory.map_or(Ok(Vec::new()), |names| names.texts())?,
        })
    }

    pub(super) fn broken(&self, problem: impl Into<String>) -> Error {
        Error::damaged(self.path.clone(), problem)
    }

    fn below(&self, key: &str, value: &'a Json) -> Self {
        Self { path: format!("{}/{key}", self.path), value }
    }

    fn optional(&self, key: &str) -> Option<Self> {
        self.value.get(key).map(|value| self.below(key, value))
    }

    pub(super) fn member(&self, key: &str) -> Result<Self> {
        self.members()?;
        self.optional(key).ok_or_else(|| self.broken(format!("\"{key}\" is missing")))
    }

    fn members(&self) -> Result<&'a [(Text, Json)]> {
        match self.value {
            Json::Object(members) => Ok(members),
            _ => Err(self.broken("it is not an object")),
        }
    }

    /// An object whose keys are numbers below `limit`.
    fn numbered<T>(
        &self,
        key: &str,
        limit: u32,
        parse: impl Fn(&Self) -> Result<T>,
    ) -> Result<BTreeMap<u32, T>> {
        let object = self.member(key)?;
        let mut entries = BTreeMap::new();
        for (key, value) in object.members()? {
            // Whatever a key is, it stands in messages.
            let node = object.below(&key.escape_debug().to_string(), value);
            let number = parse_number(key, limit)
                .ok_or_else(|| node.broken(format!("not a number below {limit}")))?;
            entries.insert(number, parse(&node)?);
        }
        Ok(entries)
    }

    pub(super) fn text(&self) -> Result<&'a str> {
        match self.value {
            Json::String(text) if !text.chars().any(char::is_control) => Ok(text),
            Json::String(_) => Err(self.broken("it holds control characters")),
            _ => Err(self.broken("it is not a string")),
        }
    }

    /// A non-empty text.
    pub(super) fn name(&self) -> Result<&'a str> {
        match self.text()? {
            "" => Err(self.broken("it is empty")),
            name => Ok(name),
        }
    }

    fn texts(&self) -> Result<Vec<String>> {
        let text = |(number, value): (usize, &'a Json)| {
            self.below(&number.to_string(), value).text().map(str::to_owned)
        };
        self.items()?.iter().enumerate().map(text).collect()
    }

    fn items(&self) -> Result<&'a [Json]> {
        match self.value {
            Json::Array(items) => Ok(items),
            _ => Err(self.broken("it is not an array")),
        }
    }

    /// A JSON number that fits into 32 bits.
    pub(super) fn number(&self) -> Result<u32> {
        match self.value {
            Json::Number(number) => number.as_u64().and_then(|number| u32::try_from(number).ok()),
            _ => None,
        }
        .ok_or_else(|| self.broken("it is not a number from 0 to 4294967295"))
    }

    /// A 64-bit number as a string of decimal digits: JSON numbers are not safe above 2^53.
    pub(super) fn decimal(&self) -> Result<u64> {
        let broken = || self.broken("it is not a string of decimal digits below 2^64");
        parse_decimal(self.text()?).ok_or_else(broken)
    }

    fn binary(&self) -> Result<Vec<u8>> {
        let text = self.text()?;
        if text.len() > 2 * BINARY_MAX {
            return Err(self.broken(format!("it is longer than {BINARY_MAX} bytes")));
        }
        BASE64.decode(text).map_err(|_| self.broken("it is not base64"))
    }

    fn salt(&self) -> Result<Vec<u8>> {
        self.name()?;
        self.binary()
    }

    /// An array of references to other objects: numbers below `limit`, each as a string.
    fn references(&self, limit: u32) -> Result<Vec<u32>> {
        let mut numbers = Vec::new();
        for name in self.texts()? {
            let number = parse_number(&name, limit);
            let number = number.ok_or_else(|| self.broken(format!("\"{name}\" is no number")))?;
            if !numbers.contains(&number) {
                numbers.push(number);
            }
        }
        Ok(numbers)
    }
}

/// The number of an object in its only valid spelling: "5" and not "05".
fn parse_number(text: &str, limit: u32) -> Option<u32> {
    let number: u32 = text.parse().ok()?;
    (number < limit && number.to_string() == text).then_some(number)
}

/// A 64-bit number from decimal digits alone, without a sign.
fn parse_decimal(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}
