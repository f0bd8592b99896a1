//! What trying one keyslot after another adds up to.
//!
//! One keyslot that cannot be tried (an unknown hash, a cipher that is not there) must not keep
//! the others from opening, and must not be forgotten if none of them does.

use crate::error::{Error, Result};

/// The outcome so far.
#[derive(Default)]
pub(crate) struct Attempts {
    /// Whether the passphrase was really tried on some keyslot.
    refused: bool,
    /// The first keyslot that could not be tried.
    skipped: Option<(u32, Error)>,
}

impl Attempts {
    /// Takes note of one attempt: hands on the key if it opened, and the errors that no other
    /// keyslot would cure.
    pub(crate) fn note<K>(&mut self, number: u32, outcome: Result<Option<K>>) -> Result<Option<K>> {
        match outcome {
            Ok(Some(key)) => return Ok(Some(key)),
            Ok(None) => self.refused = true,
            Err(
                error @ (Error::Unsupported { .. }
                | Error::Cipher { .. }
                | Error::KdfCost { .. }
                | Error::Damaged { .. }
                | Error::OutOfMemory { .. }
                | Error::Threads { .. }),
            ) => {
                self.skipped.get_or_insert((number, error));
            }
            Err(error) => return Err(error),
        }
        Ok(None)
    }

    /// The error to give when no keyslot opened.
    pub(crate) fn failed(self) -> Error {
        match (self.refused, self.skipped) {
            (false, None) => Error::NoKeyslot,
            (false, Some((_, error))) => error,
            (true, skipped) => Error::WrongPassphrase {
                skipped: skipped.map(|(number, error)| format!("keyslot {number}: {error}")),
            },
        }
    }
}
