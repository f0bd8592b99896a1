//! LUKS1, LUKS2 and plain dm-crypt volumes for programs: open an image, read and write what is in it,
//! serve it to other programs, make a new one. It needs no device-mapper, no root and no async runtime.
//!
//! ```
//! use ucrypt_lib::{FormatOptions, Key, KeyDerivation, OpenOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let image = dir.path().join("disk.img");
//! # std::fs::File::create(&image)?.set_len(24 << 20)?;
//! let key = Key::Passphrase(b"correct horse battery staple");
//! # let fast = KeyDerivation::pbkdf2().iterations(1000);
//! FormatOptions::new().label("backup").key_derivation(fast).format(&image, key)?;
//!
//! let volume = OpenOptions::new().open(&image, key)?;
//! volume.write_at(4096, b"hello")?;
//! volume.flush()?;
//!
//! let mut text = [0; 5];
//! volume.read_exact_at(4096, &mut text)?;
//! assert_eq!(&text, b"hello");
//! assert_eq!(volume.facts().cipher, "aes-xts-plain64");
//! volume.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! - [`OpenOptions`], [`Plain`] and [`Key`] open a [`Volume`];
//! - [`Volume`] reads and writes at any offset, from any number of threads;
//! - [`VolumeFile`] is the same as [`std::io::Read`], [`std::io::Write`] and [`std::io::Seek`];
//! - [`NbdServer`] and [`ServedFile`] serve a volume until they are stopped;
//! - [`FormatOptions`] makes a new volume;
//! - [`inspect()`] tells what a header says, without a key.
//!
//! # What holds for all of it
//! **Bounds.** Calls share half of [`OpenOptions::memory`] as buffers, 8 MiB if not said; each of the eight
//! that are carried out at the same time takes at most 2 MiB beside, and each server as much as all share.
//! A key derivation takes what its keyslot asks for, once it is sure
//! that the machine and its control groups have it; derivations of several processes take turns. Reads and
//! writes take up to 96 KiB of the calling thread's stack.
//!
//! **Secrets.** Keys are wiped when they are no longer needed, and so is the stack on which they were
//! handled. A passphrase that is passed in belongs to the caller, who wipes it. The process itself is
//! not changed: it may leave core dumps, and its memory may be swapped.
//!
//! **Locks.** An image is locked while a volume of it is open, as by the command, QEMU and its tools:
//! one may write, or any number may read. The lock is released with the last clone of the [`Volume`], its
//! files and its servers.
//!
//! **Durability.** A write that has returned survives the end of the process. [`Volume::flush`] makes it
//! survive the end of the machine. After a flush that failed, no later one succeeds: what was written
//! before is in doubt.
//!
//! **Fork.** A process that was forked must not use the volumes of its parent:
//! [`IoError::OtherProcess`] refuses. It may drop its copies of them and of their servers, which changes
//! nothing. It can open the image itself once the parent has closed it; a block device only once
//! the other children that were forked meanwhile have ended, or have started other programs.
//!
//! **Errors.** There is one enum for each family of calls, [`OpenError`], [`IoError`], [`ServeError`] and
//! [`FormatError`]. Each variant is another next step; its text says cause and remedy in one line. Where
//! a text names an option of the command, the option here has a similar name.
//!
//! # Versions
//! Enums and structs with public fields may grow ([`non_exhaustive`]). `api.txt` in the crate's source
//! lists the public interface, and a test checks that no version takes away from it what a compatible
//! version had.
//!
//! [`non_exhaustive`]: https://doc.rust-lang.org/reference/attributes/type_system.html

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod error;
mod file;
mod format;
mod inspect;
mod key;
mod open;
mod plain;
mod queues;
mod serve;
mod stack;
mod volume;

pub use error::{FormatError, IoError, OpenError, ServeError};
pub use file::VolumeFile;
pub use format::{FormatOptions, Formatted, KeyDerivation};
pub use inspect::{HeaderFacts, inspect};
pub use key::Key;
pub use open::OpenOptions;
pub use plain::Plain;
pub use serve::{NbdServer, ServedFile};
pub use volume::{Facts, Format, Volume};

/// The page of the book, whose examples run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
struct Page;
