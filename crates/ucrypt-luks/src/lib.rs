//! LUKS1, LUKS2 and plain dm-crypt: bytes of a header in, volume key and segments out.
//!
//! The crate is pure. It opens no file, reads no clock and draws no random number: an image comes
//! in through [`ReadAt`], changes leave as a list of [`Write`]s, time and randomness are
//! arguments. The only threads it starts run the lanes of Argon2, and they end with the call.
//!
//! A header is hostile input. The crate checks every length against the format's bounds and
//! against the image before it allocates memory or reads a byte, and no header makes it panic.
//! Valid but unknown items (a keyslot type, a requirement) are kept, shown, and refused by name.
//!
//! ```
//! use ucrypt_luks::{Error, Header};
//!
//! let image = vec![0_u8; 1 << 20]; // in real life a file or a device
//! match Header::read(&image) {
//!     Ok((header, damage)) => {
//!         if let Some(damage) = damage {
//!             eprintln!("{damage}");
//!         }
//!         let unlocked = header.unlock(&image, b"a passphrase", None)?;
//!         let length = unlocked.volume_len(image.len() as u64)?;
//!         println!("{length} bytes in {} segments", unlocked.segments.len());
//!     }
//!     Err(Error::NotLuks { .. }) => println!("not a LUKS image"),
//!     Err(error) => return Err(error),
//! }
//! # Ok::<(), Error>(())
//! ```
//!
//! Sources: LUKS1 On-Disk Format Specification 1.2.3, LUKS2 On-Disk Format Specification 1.1.3,
//! and the behaviour of cryptsetup 2.6 to 2.8 where these leave a question open.
#![forbid(unsafe_code)]

mod af;
mod area;
mod attempt;
mod backup;
mod convert;
mod derivations;
mod dump;
mod error;
mod fields;
mod hash;
mod header;
mod json;
mod kdf;
mod key_check;
mod keys;
pub mod luks1;
pub mod luks2;
mod medium;
mod memory;
mod new_volume;
mod pbkdf;
mod pinned;
pub mod plain;
mod rotate;
pub mod signature;
mod stack;
mod strict;
mod table;
mod uuid;
mod volume;

pub use backup::{Restore, restore};
pub use convert::{Conversion, finish as finish_conversion, room_for_luks2, to_luks1, to_luks2};
pub use derivations::{Purpose, watch_derivations};
pub use error::{Error, Result};
pub use fields::FieldText;
pub use hash::{Hash, find_hash};
pub use header::Header;
pub use json::{Json, JsonError};
pub use kdf::{ARGON2_LANES_MAX, ARGON2_MEMORY_MAX_KIB, Argon2Variant, KEY_LEN_MAX, Kdf};
pub use key_check::KeyCheck;
pub use keys::{HeaderChange, NewKey, OpenedKey};
pub use medium::{
    Clock, Medium, Random, ReadAt, Time, Write, settle_cache, write_durably, write_reserved,
    write_verified,
};
pub use memory::{Permit, guard_memory};
pub use new_volume::{NewVolume, Tools, overwrite, random_volume_key, wrong_size};
pub use pbkdf::{
    ARGON2_MEMORY_MIN_KIB, ARGON2_TIME_MIN, Cost, Machine, PBKDF2_ITERATIONS_MIN, Pbkdf, PbkdfKind,
};
pub use pinned::{HeaderCopy, HeaderDigest};
pub use rotate::{Rotation, rotate};
pub use stack::scrub_stack;
pub use strict::DataPlace;
pub use table::Table;
pub use volume::{Flag, Format, SECTOR_BYTES, Segment, Unlocked};
