//! Collects the outcomes of trying one keyslot after another.
//!
//! A keyslot that cannot be tried (an unknown hash, an unsupported cipher, an unreadable area) must
//! not keep the others from opening. If no keyslot opens, the error must mention it.

use crate::error::{Error, Result};

/// The outcome so far.
#[derive(Default)]
pub(crate) struct Attempts {
    /// Whether at least one keyslot refused the passphrase.
    refused: bool,
    /// The first keyslot that could not be tried.
    skipped: Option<(u32, Error)>,
}

impl Attempts {
    /// Records one attempt. Returns the key if the keyslot opened, and fails on an error that
    /// would affect every other keyslot too.
    pub(crate) fn note<K>(&mut self, number: u32, outcome: Result<Option<K>>) -> Result<Option<K>> {
        match outcome {
            Ok(Some(key)) => return Ok(Some(key)),
            Ok(None) => self.refused = true,
            Err(
                error @ (Error::Read { .. }
                | Error::Unsupported { .. }
                | Error::Cipher { .. }
                | Error::KdfCost { .. }
                | Error::Damaged { .. }
                | Error::OutOfMemory { .. }
                | Error::NoMemory(_)
                | Error::Threads { .. }),
            ) => {
                self.skipped.get_or_insert((number, error));
            }
            Err(error) => return Err(error),
        }
        Ok(None)
    }

    /// The error to return when no keyslot opened.
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
