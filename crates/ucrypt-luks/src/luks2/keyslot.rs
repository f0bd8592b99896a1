//! The parts of a new LUKS2 keyslot or digest: JSON, and the bytes of the keyslot area.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use ucrypt_sector::CipherSpec;
use zeroize::Zeroizing;

use super::validate::AREA_ALIGNMENT;
use crate::area::{Area, STRIPES, key_buffer, material_len};
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::json::Json;
use crate::kdf::Kdf;
use crate::medium::fill_random;
use crate::new_volume::Tools;
use crate::pbkdf::Pbkdf;

/// Cipher and key length of a keyslot area if the volume has the null cipher.
pub(super) const FALLBACK_AREA_CIPHER: &str = "aes-xts-plain64";
pub(super) const FALLBACK_AREA_KEY_LEN: u32 = 64;

const SALT_BYTES: usize = 32;

/// Bytes that the area of a key of `key_len` bytes takes, as cryptsetup allocates it.
pub(crate) fn area_size(key_len: u32) -> u64 {
    material_len(key_len, STRIPES).next_multiple_of(AREA_ALIGNMENT)
}

/// A keyslot to be made.
pub(super) struct Plan<'a> {
    pub(super) key: &'a [u8],
    pub(super) passphrase: &'a [u8],
    pub(super) pbkdf: Pbkdf,
    /// Hash of the anti-forensic splitter.
    pub(super) hash: Hash,
    /// Cipher of the area, and the length of its key in bytes.
    pub(super) cipher: CipherSpec,
    pub(super) area_key_len: u32,
    /// First byte of the area.
    pub(super) offset: u64,
}

impl Plan<'_> {
    /// The keyslot that the passphrase opens, and its key material, which was opened once to see
    /// that it holds the key.
    pub(super) fn make(&self, tools: &mut Tools<'_>) -> Result<(Json, Vec<u8>)> {
        if self.cipher.is_null() {
            return Err(Error::unsupported("keyslot cipher", self.cipher.to_string()));
        }
        let key_len = self.key.len() as u32;
        let mut area_key = Zeroizing::new(key_buffer(&self.cipher, self.area_key_len)?);
        let kdf = self.pbkdf.resolve(self.area_key_len as usize, tools.machine, tools.clock)?;
        let mut salt = [0; SALT_BYTES];
        fill_random(tools.random, &mut salt)?;
        kdf.derive(self.passphrase, &salt, &mut area_key)?;
        let hash = self.hash;
        let area =
            Area { offset: self.offset, key_len, stripes: STRIPES, hash, cipher: &self.cipher };
        let material = area.seal_verified(self.key, &area_key, tools.random)?;
        let keyslot = Json::object([
            ("type", "luks2".into()),
            ("key_size", key_len.into()),
            (
                "af",
                Json::object([
                    ("type", "luks1".into()),
                    ("stripes", STRIPES.into()),
                    ("hash", hash.name().into()),
                ]),
            ),
            (
                "area",
                Json::object([
                    ("type", "raw".into()),
                    ("offset", decimal(self.offset)),
                    ("size", decimal(area_size(key_len))),
                    ("encryption", self.cipher.to_string().as_str().into()),
                    ("key_size", self.area_key_len.into()),
                ]),
            ),
            ("kdf", kdf_json(&kdf, &salt)),
        ]);
        Ok((keyslot, material))
    }
}

/// The digest of `key`, for these keyslots and segments.
pub(super) fn digest(
    key: &[u8],
    pbkdf: &Pbkdf,
    keyslots: &[&str],
    segments: &[&str],
    tools: &mut Tools<'_>,
) -> Result<Json> {
    let hash = pbkdf.hash;
    let mut salt = [0; SALT_BYTES];
    fill_random(tools.random, &mut salt)?;
    let iterations = pbkdf.digest_iterations(key.len(), tools.clock)?;
    let mut digest = vec![0; hash.size()];
    hash.pbkdf2(key, &salt, iterations, &mut digest);
    Ok(Json::object([
        ("type", "pbkdf2".into()),
        ("keyslots", Json::strings(keyslots)),
        ("segments", Json::strings(segments)),
        ("hash", hash.name().into()),
        ("iterations", iterations.into()),
        ("salt", base64(&salt)),
        ("digest", base64(&digest)),
    ]))
}

/// A decimal string, because JSON numbers are not safe above 2^53.
pub(crate) fn decimal(number: u64) -> Json {
    number.to_string().into()
}

pub(crate) fn base64(bytes: &[u8]) -> Json {
    BASE64.encode(bytes).into()
}

fn kdf_json(kdf: &Kdf, salt: &[u8]) -> Json {
    let mut members = vec![("type".to_owned(), Json::from(kdf.name()))];
    let mut put = |name: &str, value: Json| members.push((name.to_owned(), value));
    match kdf {
        Kdf::Pbkdf2 { hash, iterations } => {
            put("hash", hash.as_str().into());
            put("iterations", (*iterations).into());
        }
        Kdf::Argon2 { time, memory_kib, lanes, .. } => {
            put("time", (*time).into());
            put("memory", (*memory_kib).into());
            put("cpus", (*lanes).into());
        }
        Kdf::Unknown(_) => {}
    }
    put("salt", base64(salt));
    members.into()
}
