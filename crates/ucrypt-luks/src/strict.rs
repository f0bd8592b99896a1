//! A strict check: the header describes what `luksFormat` makes, and nothing else.
//!
//! Whoever can write to the image can put a header there that opens with the right passphrase and
//! still is a trap: a null cipher, a segment that leads elsewhere, a key that is cheap to guess.

use crate::area::parse_cipher;
use crate::error::{Error, Result};
use crate::header::Header;
use crate::kdf::Kdf;
use crate::luks1;
use crate::luks2::{self, Damage, DigestKind, KeyslotKind, SegmentKind};
use crate::pbkdf::{ARGON2_MEMORY_MIN_KIB, ARGON2_TIME_MIN, PBKDF2_ITERATIONS_MIN};
use crate::volume::Flag;

fn refused<T>(what: String) -> Result<T> {
    Err(Error::Strict(what))
}

impl Header {
    /// Refuses what no `luksFormat` makes: null ciphers, more than one segment, segments with a
    /// fixed size, an IV offset or flags, unknown flags and types, key derivations below
    /// cryptsetup's least costs, and a damaged header copy.
    pub fn check_strictly(&self, damage: Option<&Damage>) -> Result<()> {
        if let Some(damage) = damage {
            return refused(damage.to_string());
        }
        match self {
            Self::Luks1(header) => header.check_strictly(),
            Self::Luks2(header) => header.check_strictly(),
        }
    }
}

impl luks1::Header {
    fn check_strictly(&self) -> Result<()> {
        let cipher = self.cipher()?;
        if cipher.is_null() {
            return refused(format!("the volume has the null cipher, {cipher}"));
        }
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
            if parse_cipher(&format!("segment {number}"), encryption)?.is_null() {
                return refused(format!("segment {number} has the null cipher, {encryption}"));
            }
        }
        for (number, keyslot) in &metadata.keyslots {
            let KeyslotKind::Luks2 { kdf, encryption, .. } = &keyslot.kind else {
                return refused(format!("keyslot {number} is of the type {}", keyslot.kind.name()));
            };
            if parse_cipher(&format!("area of keyslot {number}"), encryption)?.is_null() {
                return refused(format!("keyslot {number} has the null cipher, {encryption}"));
            }
            check_cost(&format!("keyslot {number}"), kdf)?;
        }
        for (number, digest) in &metadata.digests {
            match &digest.kind {
                DigestKind::Pbkdf2(pbkdf2) => {
                    check_iterations(&format!("digest {number}"), pbkdf2.iterations)?;
                }
                DigestKind::Other(name) => {
                    return refused(format!("digest {number} is of the type {name}"));
                }
            }
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
