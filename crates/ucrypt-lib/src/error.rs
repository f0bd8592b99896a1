//! The errors, one enum for each family of calls.

use std::io;

use ucrypt_backend::OpenError as ImageError;
use ucrypt_engine::VolumeError;
use ucrypt_export::SocketError;
use ucrypt_export::fuse::FuseError;
use ucrypt_export::nbd::{AddressError, ServerError};
use ucrypt_image::Error as Image;
use ucrypt_image::transfer::TransferError;
use ucrypt_luks::Error as Luks;

/// An error of a crate below. No `From`: that would make the crates below a part of the public interface.
pub(crate) trait ToOpenError {
    /// What the library's users get.
    fn to_open_error(self) -> OpenError;
}

/// Why a volume was not opened, or a header not read. Each variant stands for another next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The passphrase or key opens nothing: ask for another one. The text names a keyslot that could not be tried.
    #[error("{0}")]
    WrongKey(String),
    /// Somebody else uses the image: close it there, or open with
    /// [`OpenOptions::shared`](crate::OpenOptions::shared).
    #[error("{0}")]
    InUse(String),
    /// The system refuses access to the image: get the rights, or open read-only.
    #[error("{0}")]
    Denied(String),
    /// There is no header, or it is damaged, or of a kind that is not supported: look for another image,
    /// or a backup of the header.
    #[error("{0}")]
    Header(String),
    /// There is not enough memory here: free some, or use a keyslot that costs less.
    #[error("{0}")]
    Memory(String),
    /// The options do not go together, or not with this image: correct them.
    #[error("{0}")]
    Options(String),
    /// The image, the header or the key file cannot be read or written, or the system lacks something.
    #[error("{0}")]
    System(String),
}

impl ToOpenError for ImageError {
    fn to_open_error(self) -> OpenError {
        let text = self.to_string();
        if self.is_busy() {
            OpenError::InUse(text)
        } else if self.is_of_writing() {
            OpenError::Denied(text)
        } else {
            OpenError::System(text)
        }
    }
}

impl OpenError {
    /// The variant for an error of the header, whose message is `text`.
    fn of_header(error: &Luks, text: String) -> Self {
        match error {
            Luks::WrongPassphrase { .. } | Luks::WrongVolumeKey => Self::WrongKey(text),
            Luks::OutOfMemory { .. } | Luks::NoMemory(_) | Luks::Threads { .. } => {
                Self::Memory(text)
            }
            Luks::Read { .. }
            | Luks::Write { .. }
            | Luks::Sync(_)
            | Luks::NotStored { .. }
            | Luks::NotWiped(_)
            | Luks::Random(_) => Self::System(text),
            Luks::Request(_)
            | Luks::InactiveKeyslot(_)
            | Luks::OnlyIgnored(_)
            | Luks::OtherHeader { .. }
            | Luks::Strict(_) => Self::Options(text),
            _ => Self::Header(text),
        }
    }
}

impl ToOpenError for Luks {
    fn to_open_error(self) -> OpenError {
        let text = self.to_string();
        OpenError::of_header(&self, text)
    }
}

impl ToOpenError for VolumeError {
    fn to_open_error(self) -> OpenError {
        let text = self.to_string();
        match self {
            Self::Memory { .. } => OpenError::Memory(text),
            Self::Workers { .. } => OpenError::System(text),
            // The header is good: it does not go with `direct` on this disk.
            Self::PartOfUnit { .. } => OpenError::Options(text),
            _ => OpenError::Header(text),
        }
    }
}

impl ToOpenError for Image {
    fn to_open_error(self) -> OpenError {
        let text = self.to_string();
        match self {
            Self::Open(error) => error.to_open_error(),
            Self::Luks(error) => error.to_open_error(),
            Self::Volume(error) => error.to_open_error(),
            Self::About { error, .. } => OpenError::of_header(&error, text),
            Self::Memory(_) => OpenError::Memory(text),
            Self::HeaderBusy { .. } | Self::Replaced { .. } => OpenError::InUse(text),
            Self::Key(_)
            | Self::OtherFormat { .. }
            | Self::NoData { .. }
            | Self::SectorSize { .. }
            | Self::TooShort { .. }
            | Self::Overwrites { .. } => OpenError::Options(text),
            Self::WeakKey(_) => OpenError::Header(text),
            _ => OpenError::System(text),
        }
    }
}

/// Why a volume was not made. Each variant stands for another next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The image holds something, and nothing was changed: choose another image, or
    /// [`FormatOptions::overwrite`](crate::FormatOptions::overwrite).
    #[error("{image} holds a '{found}' signature; choose another image, or allow to overwrite it")]
    NotEmpty {
        /// The image, or the file for the header.
        image: String,
        /// The name of what is there.
        found: String,
    },
    /// Nothing was changed: the image was not opened, or the options are not right. The variants of
    /// [`OpenError`] tell the next step.
    #[error(transparent)]
    Refused(#[from] OpenError),
    /// Writing the header failed. There is no volume, or none that is sure to survive the end of power: format it again.
    /// The text says what was lost: what the image held or, with a detached header, nothing of the image.
    #[error("{0}")]
    Unfinished(String),
}

/// Why bytes were not read or written. [`std::io::Error`] takes each of them.
///
/// ```
/// use std::io::{Error, ErrorKind};
/// use ucrypt_lib::IoError;
///
/// let error = IoError::OutOfRange { offset: 4096, len: 10, size: 4096 };
/// assert_eq!(Error::from(error).kind(), ErrorKind::InvalidInput);
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IoError {
    /// The range reaches beyond the end of the volume; nothing was read or written.
    #[error(
        "{len} bytes at byte {offset} reach beyond the end of the volume, which has {size} bytes; \
         ask for less"
    )]
    OutOfRange {
        /// First byte of the range.
        offset: u64,
        /// Its length in bytes.
        len: u64,
        /// The size of the volume in bytes.
        size: u64,
    },
    /// The volume is read-only: open it for writing.
    #[error("the volume is read-only; open it for writing")]
    ReadOnly,
    /// Discards do not reach the image, as they show which sectors are unused.
    #[error("discards do not reach the image; allow them when the volume is opened")]
    NoDiscards,
    /// The image failed a request. Of a write, each sector is old or new. After a flush that failed, no
    /// later one succeeds: what was written since the last one that succeeded is in doubt.
    #[error(
        "{what} at byte {offset} failed: {error}; look at the system's log and at the image's disk"
    )]
    Failed {
        /// The kind of request: read, write, flush, discard, write of zeroes.
        what: &'static str,
        /// The first byte of the part that failed.
        offset: u64,
        /// The system's error.
        error: io::Error,
    },
    /// The system has no memory, descriptors or rings for the request: free some and try again.
    #[error(
        "the system has no room for the request: {0}; free memory or descriptors and try again"
    )]
    NoRoom(io::Error),
    /// The image answers no more: close the volume.
    #[error("the image cannot be used any longer: {0}; close the volume and open it again")]
    Broken(io::Error),
    /// The volume was opened before a fork, by the parent: open it in this process.
    #[error("the volume was opened by another process, before a fork; open it in this one")]
    OtherProcess,
}

pub(crate) fn io_error(error: TransferError) -> IoError {
    match error {
        TransferError::Broken(error) => IoError::Broken(error),
        TransferError::ReadOnly => IoError::ReadOnly,
        TransferError::Failed { what, offset, error } => {
            IoError::Failed { what, offset, error: error.into() }
        }
        TransferError::Refused { error, .. } => IoError::NoRoom(error.into()),
    }
}

impl From<IoError> for io::Error {
    fn from(error: IoError) -> Self {
        let kind = match &error {
            IoError::OutOfRange { .. } => io::ErrorKind::InvalidInput,
            IoError::ReadOnly => io::ErrorKind::ReadOnlyFilesystem,
            IoError::NoDiscards => io::ErrorKind::Unsupported,
            IoError::Failed { error, .. } | IoError::NoRoom(error) | IoError::Broken(error) => {
                error.kind()
            }
            IoError::OtherProcess => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// Why a volume is not served, or how its service ended. Each variant stands for another next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Another server is there: choose another path.
    #[error("{0}")]
    InUse(String),
    /// The system does not permit this kind of service to this user: take the other kind.
    #[error("{0}")]
    Denied(String),
    /// The path or the system is not fit for this kind of service.
    #[error("{0}")]
    System(String),
    /// The service ended, but what clients have written could not be made durable.
    #[error(transparent)]
    Flush(#[from] IoError),
}

pub(crate) fn nbd_error(error: &ServerError) -> ServeError {
    let text = error.to_string();
    match error {
        ServerError::Address(AddressError::Socket(SocketError::InUse(_))) => {
            ServeError::InUse(text)
        }
        _ => ServeError::System(text),
    }
}

pub(crate) fn fuse_error(error: &FuseError) -> ServeError {
    let text = error.to_string();
    match error {
        FuseError::Mount { .. } => ServeError::Denied(text),
        _ => ServeError::System(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_only_opens_for_reading_is_denied() {
        use io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem};
        for (kind, is_denied) in
            [(PermissionDenied, true), (ReadOnlyFilesystem, true), (NotFound, false)]
        {
            let error = ImageError::Io { path: "image".into(), error: kind.into() };
            let found = error.to_open_error();
            assert_eq!(matches!(found, OpenError::Denied(_)), is_denied, "{found:?}");
        }
    }
}
