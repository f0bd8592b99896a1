//! One error type for the crate: what is wrong, where, and what to do about it, in one line.
//!
//! The variants are cut along what a caller does next: ask again for the passphrase, free memory,
//! look for another image, correct the options. The text inside is for people.

use std::io;

use thiserror::Error;

use crate::signature::Signature;

/// Why a header could not be read, unlocked or made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no LUKS magic at any place where a header may begin.
    #[error(
        "no LUKS header: neither byte 0 nor the place of a LUKS2 copy holds one{}",
        .found.map_or_else(String::new, |found| format!("; there is {found}"))
    )]
    NotLuks {
        /// What the image seems to hold instead.
        found: Option<Signature>,
    },

    /// One header copy cannot be used, and somebody else has left a mark on the image: whose the
    /// image is cannot be told.
    #[error(
        "ambiguous signatures: {damage}, and there is {found}; if the image is to be a LUKS volume \
         again, run \"cryptsetup repair\" on it"
    )]
    Ambiguous {
        /// What is wrong with the copy.
        damage: String,
        /// The mark of somebody else.
        found: Signature,
    },

    /// The newer one of two header copies is whole and cannot be used. The other one is out of
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
        /// The sequence id of the other one.
        older: u64,
        /// Why it cannot be used.
        problem: Box<Error>,
    },

    /// The magic is right, the version is neither 1 nor 2.
    #[error("LUKS version {0} is not known, only 1 and 2 are: a newer program made this header")]
    UnknownVersion(u16),

    /// Something that must be inside the image lies behind its end. All numbers are bytes.
    #[error("the image is truncated: {what} needs bytes {offset} to {end}, it ends at {image_len}")]
    Truncated {
        /// The structure that is cut off.
        what: String,
        /// Its first byte.
        offset: u64,
        /// The byte behind its last one.
        end: u64,
        /// The length of the image.
        image_len: u64,
    },

    /// The medium failed.
    #[error("cannot read {length} bytes at byte {offset}: {source}")]
    Read {
        /// First byte of the read.
        offset: u64,
        /// Its length in bytes.
        length: usize,
        /// What the system said.
        source: io::Error,
    },

    /// The medium did not take what was written. What was there before may be gone.
    #[error("cannot write {length} bytes at byte {offset}: {source}")]
    Write {
        /// First byte of the write.
        offset: u64,
        /// Its length in bytes.
        length: usize,
        /// What the system said.
        source: io::Error,
    },

    /// A signature is there again after it was wiped.
    #[error("{0} does not go away: does somebody else write to the image?")]
    NotWiped(Signature),

    /// The header breaks a rule of its format.
    #[error("damaged header: {place}: {problem}")]
    Damaged {
        /// The field or structure, with its path or byte offset.
        place: String,
        /// The rule that is broken.
        problem: String,
    },

    /// The header is sound and asks for something this program does not have.
    #[error("{what} \"{name}\" is not supported")]
    Unsupported {
        /// The kind of thing: "keyslot type", "hash", "requirement" …
        what: &'static str,
        /// Its name as the header gives it.
        name: String,
    },

    /// The cipher of a segment or keyslot area cannot be used.
    #[error("{place}: {problem}")]
    Cipher {
        /// Which cipher, with its specification.
        place: String,
        /// What the cipher crate objects to.
        problem: String,
    },

    /// The costs of a key derivation are outside of the accepted range.
    #[error("{kdf} {parameter} of {value} is outside of {range}")]
    KdfCost {
        /// Name of the function.
        kdf: &'static str,
        /// Which of its parameters.
        parameter: &'static str,
        /// Its value.
        value: u64,
        /// What is accepted.
        range: &'static str,
    },

    /// Memory for a key derivation or a keyslot area cannot be had.
    #[error("out of memory: {bytes} bytes are needed; free some, or use a keyslot that costs less")]
    OutOfMemory {
        /// How much was asked for.
        bytes: u64,
    },

    /// The threads of a key derivation cannot be started.
    #[error("cannot start {lanes} threads for argon2 ({problem}); raise the limit of processes")]
    Threads {
        /// How many were needed.
        lanes: usize,
        /// What the system said.
        problem: String,
    },

    /// No keyslot that was tried opened.
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

    /// The keyslot that was asked for holds no key.
    #[error("keyslot {0} is not active")]
    InactiveKeyslot(u32),

    /// There is no keyslot that may be tried.
    #[error("the header has no active keyslot: only the volume key or a header backup can help")]
    NoKeyslot,

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

    /// What was asked of this crate cannot be done: the options contradict a rule.
    #[error("{0}")]
    Request(String),

    /// The source of randomness failed.
    #[error("cannot draw random bytes: {0}")]
    Random(io::Error),
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
