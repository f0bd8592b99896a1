//! Python's exceptions for the library's errors, with its messages.

use pyo3::create_exception;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use ucrypt_lib::{IoError, OpenError};

/// Linux's numbers of errors that the system has not reported itself.
const EROFS: i32 = 30;
const ENOSPC: i32 = 28;
const EOPNOTSUPP: i32 = 95;

create_exception!(ucrypt, Error, PyOSError, "What goes wrong with an image or a volume.");
create_exception!(ucrypt, WrongKey, Error, "The passphrase or key opens nothing.");
create_exception!(ucrypt, InUse, Error, "Another program uses the image.");
create_exception!(ucrypt, Denied, Error, "The system refuses access to the image.");
create_exception!(ucrypt, HeaderError, Error, "There is no header that can be used.");
create_exception!(ucrypt, NotEnoughMemory, Error, "There is not enough memory for the keyslot.");
create_exception!(
    ucrypt,
    OptionsError,
    Error,
    "The arguments do not go together or not with the image."
);

pub(crate) fn raised_by_open(error: OpenError) -> PyErr {
    let text = error.to_string();
    match error {
        OpenError::WrongKey(_) => WrongKey::new_err(text),
        OpenError::InUse(_) => InUse::new_err(text),
        OpenError::Denied(_) => Denied::new_err(text),
        OpenError::Header(_) => HeaderError::new_err(text),
        OpenError::Memory(_) => NotEnoughMemory::new_err(text),
        OpenError::Options(_) => OptionsError::new_err(text),
        _ => Error::new_err(text),
    }
}

/// What an error of a volume raises, as often as it is asked for.
pub(crate) struct Raised {
    number: Option<i32>,
    text: String,
}

impl Raised {
    pub(crate) fn of(error: &IoError) -> Self {
        let number = match error {
            IoError::OutOfRange { .. } => Some(ENOSPC),
            IoError::ReadOnly => Some(EROFS),
            IoError::NoDiscards => Some(EOPNOTSUPP),
            IoError::Failed { error, .. } | IoError::NoRoom(error) | IoError::Broken(error) => {
                error.raw_os_error()
            }
            _ => None,
        };
        Self { number, text: error.to_string() }
    }

    pub(crate) fn error(&self) -> PyErr {
        match self.number {
            Some(number) => Error::new_err((number, self.text.clone())),
            None => Error::new_err(self.text.clone()),
        }
    }
}

pub(crate) fn raised_by_io(error: IoError) -> PyErr {
    Raised::of(&error).error()
}
