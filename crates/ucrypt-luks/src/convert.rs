//! Converting a header between LUKS1 and LUKS2 in place, with the result of cryptsetup's `convert`.
//!
//! Keyslots, digest and data stay as they are. Only the header is new, and the key material moves
//! by 28 KiB, because two LUKS2 header copies lie where the first keyslot area of LUKS1 begins.
//! Three steps make an interruption harmless:
//!
//! 1. The material that lies where the new header will be is copied elsewhere, and the old header
//!    is told.
//! 2. The new header is written in front of it. The sector with the magic comes last: it alone
//!    decides which of the two headers is valid, and a sector is written as a whole.
//! 3. The new header moves each keyslot area to its final place, through a free place if the two
//!    overlap. Old copies are overwritten with random bytes.
//!
//! A mark in the header says that something may be left ([`finish`]); it goes last.
//!
//! Each step needs free room for one keyslot. If there is none, [`Conversion::survives`] is false:
//! an interruption then loses keyslots, as it does with cryptsetup.

mod mark;
mod moves;
mod place;
mod to_luks1;
mod to_luks2;

pub use mark::finish;
pub(crate) use mark::{is_marked, left as left_beside_luks1, removal as mark_removal};
pub use to_luks1::to_luks1;
pub use to_luks2::{room_for_luks2, to_luks2};

use std::ops::Range;

use crate::header::Header;
use crate::medium::Write;

/// Both LUKS2 copies of the smallest size, in bytes.
const COPIES_BYTES: u64 = 2 * crate::luks2::HEADER_SIZES[0];

/// Where the first keyslot area of LUKS1 begins, in bytes.
const LUKS1_AREAS: u64 = 4096;

/// How far keyslot areas move, in bytes.
const SHIFT: u64 = COPIES_BYTES - LUKS1_AREAS;

/// The unit that a disk writes as a whole, in bytes.
pub(crate) const SECTOR: usize = 512;

/// The first byte of an aligned gap of `len` bytes inside `room`, beside all of `taken`.
pub(crate) fn gap_beside(room: Range<u64>, len: u64, taken: &[Range<u64>]) -> Option<u64> {
    let places = taken.iter().map(|it| place::Place { start: it.start, len: it.end - it.start });
    let places: Vec<place::Place> = places.collect();
    place::gap(room, len, &places).map(|place| place.start)
}

/// A conversion: the header afterwards, and the writes that lead there.
#[derive(Debug)]
pub struct Conversion {
    /// The header afterwards.
    pub header: Header,
    /// The writes, for [`write_verified`](crate::write_verified).
    pub writes: Vec<Write>,
    /// Whether the volume opens with every passphrase after an interruption at any of the writes.
    /// If not, a header backup has to exist before the first write.
    pub survives: bool,
    /// What the old header says and the new one has no field for.
    pub lost: Vec<&'static str>,
}
