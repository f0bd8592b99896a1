//! The crate's error type. Each message is one line: what is wrong, where, and what to do about it.
//!
//! Each variant stands for a different next step of the caller: ask for the passphrase again, free
//! memory, look for another image, correct the options. The text inside is for people.

use std::io;

use thiserror::Error;

use crate::pinned::HeaderDigest;
use crate::signature::Signature;

/// Why a header could not be read, unlocked or made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// No LUKS magic at any offset where a header may begin.
    #[error(
        "no LUKS header: neither byte 0 nor the place of a LUKS2 copy holds one{}",
        .found.map_or_else(String::new, |found| format!("; there is {found}"))
    )]
    NotLuks {
        /// What the image seems to hold instead.
        found: Option<Signature>,
    },

    /// cryptsetup encrypts a LUKS1 volume with another key, or was interrupted. Only its files beside the
    /// header tell how far it has come.
    #[error(
        "this LUKS1 volume is in the middle of a reencryption (its magic is LUKS\\xde\\xad); finish it with \
         \"cryptsetup reencrypt\", in the directory that has its LUKS-UUID.log"
    )]
    Luks1Reencrypted,

    /// One header copy cannot be used and the image bears a foreign signature, so the image may no
    /// longer be a LUKS volume.
    #[error(
        "ambiguous signatures: {damage}, and there is {found}; if the image is to be a LUKS volume \
         again, run \"ucrypt repair\" on it"
    )]
    Ambiguous {
        /// What is wrong with the copy.
        damage: String,
        /// The foreign signature.
        found: Signature,
    },

    /// The newer of the two header copies is whole but cannot be used. The other copy is out of
    /// date: keyslots and segments may have changed since.
    #[error(
        "the {copy} LUKS2 header copy is the newer one (sequence id {sequence_id}, the other one \
         has {older}) and cannot be used: {problem}"
    )]
    NewerUnusable {
        /// Which copy.
        copy: &'static str,
        /// Its sequence id.
        sequence_id: u64,
        /// The sequence id of the other copy.
        older: u64,
        /// Why it cannot be used.
        problem: Box<Error>,
    },

    /// The magic is right, but the version is neither 1 nor 2.
    #[error("LUKS version {0} is not known, only 1 and 2 are: a newer program made this header")]
    UnknownVersion(u16),

    /// A structure reaches beyond the end of the image. All numbers are in bytes.
    #[error("the image is truncated: {what} needs bytes {offset} to {end}, it ends at {image_len}")]
    Truncated {
        /// The structure that is cut off.
        what: String,
        /// Its first byte.
        offset: u64,
        /// The byte after its last one.
        end: u64,
        /// The length of the image.
        image_len: u64,
    },

    /// The medium failed to read.
    #[error("cannot read {length} bytes at byte {offset}: {source}")]
    Read {
        /// First byte of the read.
        offset: u64,
        /// Its length in bytes.
        length: usize,
        /// The system's error.
        source: io::Error,
    },

    /// The medium failed to write. The previous content may be lost.
    #[error("cannot write {length} bytes at byte {offset}: {source}")]
    Write {
        /// First byte of the write.
        offset: u64,
        /// Its length in bytes.
        length: usize,
        /// The system's error.
        source: io::Error,
    },

    /// There is no room for what has to be written. Nothing of it was.
    #[error("no room for the header: {0}; make room, then run this again")]
    NoRoom(io::Error),

    /// What earlier changes have written cannot be made durable.
    #[error(
        "cannot make earlier writes durable, some may be lost: {0}; look at the header and try again"
    )]
    Sync(io::Error),

    /// What was written is not what can be read.
    #[error(
        "{length} bytes at byte {offset} are not what was written there: does somebody else write \
         to the image? nothing more was changed"
    )]
    NotStored {
        /// First byte of the write.
        offset: u64,
        /// Its length in bytes.
        length: usize,
    },

    /// The header must not be changed by this program.
    #[error("the header is not changed: {0}")]
    Unchangeable(String),

    /// A foreign signature is on the image although it was wiped.
    #[error("{0} does not go away: does somebody else write to the image?")]
    NotWiped(Signature),

    /// The header is not the one that was asked for.
    #[error("the header is another one: its digest is {found}, and {wanted} was asked for")]
    OtherHeader {
        /// The digest of the header that was read.
        found: HeaderDigest,
        /// The digest that was asked for.
        wanted: HeaderDigest,
    },

    /// The header has what a strict check refuses.
    #[error("refused by a strict check: {0}")]
    Strict(String),

    /// What is to be restored cannot be read.
    #[error("the backup cannot be used: {0}")]
    Backup(Box<Error>),

    /// The header breaks a rule of its format.
    #[error("damaged header: {place}: {problem}")]
    Damaged {
        /// The field or structure, with its path or byte offset.
        place: String,
        /// The rule that is broken.
        problem: String,
    },

    /// The header is valid but needs something that this program does not support.
    #[error("{what} \"{name}\" is not supported")]
    Unsupported {
        /// The kind of thing: "keyslot type", "hash", "requirement" …
        what: &'static str,
        /// Its name as the header gives it.
        name: String,
    },

    /// The volume is in the middle of a reencryption by another program.
    #[error(
        "the volume is in the middle of a reencryption ({what} \"{name}\"); \"cryptsetup reencrypt \
         --resume-only\" brings it to its end, before that it is neither opened nor changed"
    )]
    Reencryption {
        /// What says so: "requirement", "segment flag".
        what: &'static str,
        /// Its name as the header gives it.
        name: String,
    },

    /// The cipher of a segment or keyslot area cannot be used.
    #[error("{place}: {problem}")]
    Cipher {
        /// Which cipher, with its specification.
        place: String,
        /// The objection of the cipher crate.
        problem: String,
    },

    /// A cost of a key derivation is outside the accepted range.
    #[error("{kdf} {parameter} of {value} is outside of {range}")]
    KdfCost {
        /// Name of the function.
        kdf: &'static str,
        /// The parameter.
        parameter: &'static str,
        /// Its value.
        value: u64,
        /// The accepted range.
        range: &'static str,
    },

    /// A buffer, such as the memory of a key derivation or a keyslot area, cannot be allocated.
    #[error("out of memory: {bytes} bytes are needed; free some, or use a keyslot that costs less")]
    OutOfMemory {
        /// The size of the allocation.
        bytes: u64,
    },

    /// A key derivation may not take its memory here, or not now. The text says why and what to do.
    #[error("{0}")]
    NoMemory(String),

    /// The threads of a key derivation cannot be started.
    #[error("cannot start {threads} threads for argon2 ({problem}); raise the limit of processes")]
    Threads {
        /// How many were needed.
        threads: usize,
        /// The system's error.
        problem: String,
    },

    /// The passphrase opened none of the keyslots that were tried.
    #[error(
        "no keyslot is available with this passphrase{}",
        .skipped.as_ref().map_or_else(String::new, |why| format!(" (not tried: {why})"))
    )]
    WrongPassphrase {
        /// A keyslot that could not be tried at all, and why.
        skipped: Option<String>,
    },

    /// The volume key does not match the digest.
    #[error("the volume key does not match the volume")]
    WrongVolumeKey,

    /// The requested keyslot holds no key, or no key of this volume.
    #[error("keyslot {0} is not active")]
    InactiveKeyslot(u32),

    /// There is no keyslot to try.
    #[error("the header has no active keyslot: only the volume key or a header backup can help")]
    NoKeyslot,

    /// All keyslots that could be tried have the priority `ignore`.
    #[error(
        "no keyslot is tried without its number: {} the priority ignore; name the keyslot, or change \
         its priority with config",
        have(.0)
    )]
    OnlyIgnored(Vec<u32>),

    /// The data segments do not fit into the image.
    #[error(
        "the volume is larger than its image: it needs {needed} bytes, the image has {image_len}"
    )]
    LargerThanImage {
        /// Bytes from the start of the image to the end of the last segment.
        needed: u64,
        /// The length of the image in bytes.
        image_len: u64,
    },

    /// The request cannot be carried out: its options break a rule.
    #[error("{0}")]
    Request(String),

    /// The source of randomness failed.
    #[error("cannot draw random bytes: {0}")]
    Random(io::Error),
}

/// "1 has", "1, 2 have".
fn have(numbers: &[u32]) -> String {
    let text: Vec<String> = numbers.iter().map(u32::to_string).collect();
    format!("{} {}", text.join(", "), if numbers.len() == 1 { "has" } else { "have" })
}

impl Error {
    pub(crate) fn damaged(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Damaged { place: place.into(), problem: problem.into() }
    }

    pub(crate) fn unsupported(what: &'static str, name: impl Into<String>) -> Self {
        Self::Unsupported { what, name: name.into() }
    }

    pub(crate) fn request(problem: impl Into<String>) -> Self {
        Self::Request(problem.into())
    }
}

/// The result of everything fallible in this crate.
pub type Result<T> = std::result::Result<T, Error>;
