//! From an image to a volume, without anything that a person sees: what the command and the library
//! for programs (`ucrypt-lib`) both need.
//!
//! - [`header`]: images as the header code sees them; reading, pinning and repairing headers;
//! - [`header_lock`]: the lock against other changes of a header;
//! - [`key_file`]: secrets out of files;
//! - [`new_header`]: what a new header needs beside itself;
//! - [`segments`]: an unlocked header as the engine's segments;
//! - [`memory`] and [`machine`]: what a key derivation may take here, and turns where it is short;
//! - [`secrecy`]: random numbers, and secrets that stay inside the process;
//! - [`transfer`]: runs of bytes into and out of a volume;
//! - [`runtime_directory`] and [`user`]: whose process this is, and where it keeps its files.

#![forbid(unsafe_code)]

mod cryptsetup_locks;
mod error;
mod flock;
pub mod header;
pub mod header_lock;
pub mod key_file;
pub mod machine;
pub mod memory;
pub mod new_header;
pub mod runtime_directory;
pub mod secrecy;
pub mod segments;
pub mod transfer;
pub mod user;
mod weak_key;

pub use error::Error;
