//! Why an image does not become a volume. Each message is one line: what is wrong, and what to do.

use std::io;
use std::path::PathBuf;

use ucrypt_backend::OpenError;
use ucrypt_engine::VolumeError;

/// Why an image does not become a volume.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The image, or the file of its header, was not opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The header was not read, unlocked, made or changed.
    #[error(transparent)]
    Luks(#[from] ucrypt_luks::Error),
    /// The same, with the file that it is about.
    #[error("{}: {error}", .path.display())]
    About {
        /// The file that holds the header.
        path: PathBuf,
        /// What is wrong with it.
        error: ucrypt_luks::Error,
    },
    /// The segments and the image form no volume.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// No key derivation may take as much memory as all keyslots need. The text says why and what to
    /// do.
    #[error("{0}")]
    Memory(String),
    /// A key file gives no key. The text says why and what to do.
    #[error("{0}")]
    Key(String),
    /// The header is of another version than asked for.
    #[error("the header is {found}, not {wanted}; use --type {found}")]
    OtherFormat {
        /// The version that was read.
        found: &'static str,
        /// The version that was asked for.
        wanted: &'static str,
    },
    /// A detached header was taken for an image with data.
    #[error(
        "{name} holds a detached header, which has no data of its own; name the data image and \
         --header {name}"
    )]
    NoData {
        /// The file.
        name: String,
    },
    /// The volume key is weak, and the kernel forbids that here.
    #[error("the volume key is weak, which the kernel's FIPS mode forbids: {0}")]
    WeakKey(&'static str),
    /// The header cannot be locked.
    #[error("cannot lock the header of {}: {error}", .path.display())]
    Lock {
        /// The file that holds the header.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Another program changes the header.
    #[error(
        "another program has held the header of {} for {seconds} s; try again later",
        .path.display()
    )]
    HeaderBusy {
        /// The file that holds the header.
        path: PathBuf,
        /// How long this one has waited.
        seconds: u64,
    },
    /// The file of a detached header cannot be made.
    #[error("cannot create {}: {error}", .path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Another file has got the name of one that was opened, or made, just before.
    #[error("{} was replaced by another file meanwhile; nothing was written there", .path.display())]
    Replaced {
        /// The name.
        path: PathBuf,
    },
    /// A key would be read from a file that is overwritten then.
    #[error(
        "the key in {} would be overwritten: {} is the same file; use another one for the key",
        .key.display(), .path.display()
    )]
    Overwrites {
        /// The file with the key.
        key: PathBuf,
        /// The image, or the file of the header.
        path: PathBuf,
    },
    /// The name of a new file cannot be made durable.
    #[error("cannot make {} durable: {error}", .path.display())]
    NotDurable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// There is no room for the header.
    #[error("no room for the header in {}: {error}", .path.display())]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The length of the data is no multiple of the sector size that was asked for.
    #[error(
        "Device size is not aligned to requested sector size: {} has {len} bytes, which is no \
         multiple of {sector_size}; use sectors of 512 bytes",
        .path.display()
    )]
    SectorSize {
        /// The image that holds the data.
        path: PathBuf,
        /// Its length in bytes.
        len: u64,
        /// The sector size in bytes.
        sector_size: u32,
    },
    /// The image is shorter than its header.
    #[error("{} has {len} bytes, the header needs {needed}; {remedy}", .path.display())]
    TooShort {
        /// The image.
        path: PathBuf,
        /// Its length in bytes.
        len: u64,
        /// Bytes that the header needs.
        needed: u64,
        /// What to do.
        remedy: &'static str,
    },
}
