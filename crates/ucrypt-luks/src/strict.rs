//! A strict check: the header describes what `luksFormat` makes, and nothing else.
//!
//! Whoever can write to the image can put a header there that opens with the right passphrase and
//! still is a trap: a null cipher, a segment that leads elsewhere, a key that is cheap to guess.

use ucrypt_sector::CipherSpec;

use crate::area::{STRIPES, parse_cipher};
use crate::error::{Error, Result};
use crate::hash::find_hash;
use crate::header::Header;
use crate::kdf::Kdf;
use crate::luks1::{self, DIGEST_BYTES, SALT_BYTES};
use crate::luks2::{
    self, Damage, Digest, DigestKind, Keyslot, KeyslotKind, SegmentKind, area_size,
};
use crate::new_volume::{OFFSET_ALIGNMENT, wrong_size};
use crate::pbkdf::{ARGON2_MEMORY_MIN_KIB, ARGON2_TIME_MIN, PBKDF2_ITERATIONS_MIN};
use crate::volume::Flag;

/// Where the data of a header is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataPlace {
    /// Whether the header lies in an image of its own.
    pub detached: bool,
    /// Length in bytes of the image that holds the data.
    pub image_len: u64,
}

impl DataPlace {
    /// Refuses data that begins in the header, which ends at `header_end`, or behind its image.
    fn check(self, begin: u64, header_end: u64) -> Result<()> {
        if !self.detached && begin < header_end {
            return refused(format!(
                "the data begins at byte {begin}, inside the header, which ends at byte {header_end}"
            ));
        }
        if begin > self.image_len {
            return refused(format!(
                "the data begins at byte {begin}, behind the end of its image of {} bytes",
                self.image_len
            ));
        }
        Ok(())
    }
}

fn refused<T>(what: String) -> Result<T> {
    Err(Error::Strict(what))
}

impl Header {
    /// Refuses what no `luksFormat` makes: null ciphers, more than one segment, segments with a
    /// fixed size, an IV offset or flags, unknown flags and types, key derivations below
    /// cryptsetup's least costs, sizes of keys, salts, digests and areas that do not fit together,
    /// and a damaged header copy. With `data`, also data that lies over the header or behind its image.
    pub fn check_strictly(&self, damage: Option<&Damage>, data: Option<DataPlace>) -> Result<()> {
        if let Some(damage) = damage {
            return refused(damage.to_string());
        }
        match self {
            Self::Luks1(header) => header.check_strictly()?,
            Self::Luks2(header) => header.check_strictly()?,
        }
        data.map_or(Ok(()), |data| data.check(self.data_offset(), self.backup_len()))
    }
}

/// Refuses a key of `len` bytes that the cipher of `what` does not take.
fn check_key_size(what: &str, cipher: &CipherSpec, len: u32) -> Result<()> {
    if cipher.key_sizes().contains(len as usize) {
        return Ok(());
    }
    refused(format!("{what}: {}", wrong_size(cipher, len)))
}

/// Refuses a salt of `what` that was not drawn by `luksFormat`.
fn check_salt(what: &str, salt: &[u8]) -> Result<()> {
    if salt.len() == SALT_BYTES {
        return Ok(());
    }
    refused(format!("{what} has a salt of {} bytes instead of {SALT_BYTES}", salt.len()))
}

impl luks1::Header {
    fn check_strictly(&self) -> Result<()> {
        let cipher = self.cipher()?;
        if cipher.is_null() {
            return refused(format!("the volume has the null cipher, {cipher}"));
        }
        check_key_size("the volume", &cipher, self.key_bytes)?;
        if let Err(problem) = self.check_states() {
            return refused(problem.to_string());
        }
        let active = self.keyslots.iter().enumerate().filter(|(_, keyslot)| keyslot.is_active());
        let costs =
            active.map(|(number, keyslot)| (format!("keyslot {number}"), keyslot.iterations));
        for (what, iterations) in costs.chain([("the digest".into(), self.digest_iterations)]) {
            check_iterations(&what, iterations)?;
        }
        Ok(())
    }
}

impl luks2::Header {
    fn check_strictly(&self) -> Result<()> {
        let metadata = &self.metadata;
        if metadata.segments.len() != 1 {
            return refused(format!("the volume has {} segments", metadata.segments.len()));
        }
        for (number, segment) in &metadata.segments {
            if !segment.offset.is_multiple_of(OFFSET_ALIGNMENT) {
                let offset = segment.offset;
                return refused(format!(
                    "segment {number} begins at byte {offset}, no multiple of {OFFSET_ALIGNMENT}"
                ));
            }
            let SegmentKind::Crypt { iv_tweak, encryption, integrity, .. } = &segment.kind else {
                return refused(format!("segment {number} is of the type {}", segment.kind.name()));
            };
            if let Some(size) = segment.size {
                return refused(format!("segment {number} has a fixed size, {size} bytes"));
            }
            if let Some(flag) = segment.flags.first() {
                return refused(format!("segment {number} has the flag \"{flag}\""));
            }
            if *iv_tweak != 0 {
                return refused(format!("segment {number} has an IV offset, {iv_tweak}"));
            }
            if integrity.is_some() {
                return refused(format!("segment {number} has integrity protection"));
            }
            let cipher = parse_cipher(&format!("segment {number}"), encryption)?;
            if cipher.is_null() {
                return refused(format!("segment {number} has the null cipher, {encryption}"));
            }
            let digests = metadata.digests.values().filter(|it| it.segments.contains(number));
            let digests: Vec<&Digest> = digests.collect();
            let [digest] = digests[..] else {
                return refused(format!("segment {number} has {} digests", digests.len()));
            };
            for keyslot in &digest.keyslots {
                if let Some(Keyslot { key_size, .. }) = metadata.keyslots.get(keyslot) {
                    check_key_size(&format!("the key in keyslot {keyslot}"), &cipher, *key_size)?;
                }
            }
        }
        for (number, keyslot) in &metadata.keyslots {
            check_keyslot(*number, keyslot)?;
        }
        for (number, digest) in &metadata.digests {
            check_digest(*number, digest)?;
        }
        if let Some(requirement) = metadata.config.requirements.first() {
            return refused(format!("the header has the requirement \"{requirement}\""));
        }
        let unknown = |name: &&String| Flag::from_header_name(name).is_none();
        if let Some(flag) = metadata.config.flags.iter().find(unknown) {
            return refused(format!("the header has the unknown flag \"{flag}\""));
        }
        Ok(())
    }
}

fn check_keyslot(number: u32, keyslot: &Keyslot) -> Result<()> {
    let KeyslotKind::Luks2 { kdf, salt, af, encryption, area_key_size } = &keyslot.kind else {
        return refused(format!("keyslot {number} is of the type {}", keyslot.kind.name()));
    };
    let cipher = parse_cipher(&format!("area of keyslot {number}"), encryption)?;
    if cipher.is_null() {
        return refused(format!("keyslot {number} has the null cipher, {encryption}"));
    }
    check_key_size(&format!("the area of keyslot {number}"), &cipher, *area_key_size)?;
    if af.stripes != STRIPES {
        let stripes = af.stripes;
        return refused(format!("keyslot {number} has {stripes} stripes instead of {STRIPES}"));
    }
    let (size, expected) = (keyslot.area.size, area_size(keyslot.key_size));
    if size != expected {
        return refused(format!(
            "the area of keyslot {number} has {size} bytes instead of {expected}"
        ));
    }
    check_salt(&format!("keyslot {number}"), salt)?;
    check_cost(&format!("keyslot {number}"), kdf)
}

fn check_digest(number: u32, digest: &Digest) -> Result<()> {
    let what = format!("digest {number}");
    let DigestKind::Pbkdf2(pbkdf2) = &digest.kind else {
        return refused(format!("{what} is of the type {}", digest.kind.name()));
    };
    check_iterations(&what, pbkdf2.iterations)?;
    check_salt(&what, &pbkdf2.salt)?;
    // A header that was LUKS1 before keeps that digest.
    let (len, whole) = (pbkdf2.digest.len(), find_hash(&pbkdf2.hash)?.size());
    if len == whole || len == DIGEST_BYTES {
        return Ok(());
    }
    let hash = &pbkdf2.hash;
    refused(format!(
        "{what} has {len} bytes; {hash} makes {whole}, and LUKS1 stores {DIGEST_BYTES}"
    ))
}

fn check_cost(what: &str, kdf: &Kdf) -> Result<()> {
    kdf.check()?;
    match kdf {
        Kdf::Pbkdf2 { iterations, .. } => check_iterations(what, *iterations),
        Kdf::Argon2 { time, memory_kib, .. } => {
            if *time < ARGON2_TIME_MIN || *memory_kib < ARGON2_MEMORY_MIN_KIB {
                return refused(format!("{what} costs only {time} passes over {memory_kib} KiB"));
            }
            Ok(())
        }
        Kdf::Unknown(name) => Err(Error::unsupported("key derivation function", name)),
    }
}

fn check_iterations(what: &str, iterations: u32) -> Result<()> {
    if iterations < PBKDF2_ITERATIONS_MIN {
        return refused(format!("{what} costs only {iterations} iterations"));
    }
    Ok(())
}
