//! An unlocked header as the engine's segments and policies.

use std::collections::BTreeSet;

use ucrypt_engine::{Fixed, Policies, PolicyKind, Segment};
use ucrypt_luks::{Flag, Unlocked};
use ucrypt_sector::SectorCipher;

use crate::error::Error;
use crate::weak_key;

/// The segments of an unlocked volume inside an image of `image_len` bytes.
pub fn segments(unlocked: &Unlocked, image_len: u64) -> Result<Vec<Segment>, Error> {
    weak_key::check(unlocked)?;
    let lengths = unlocked.segment_lengths(image_len)?;
    let described = unlocked.segments.iter().zip(lengths);
    let segments = described.map(|(segment, len)| {
        let cipher = cipher(segment, &unlocked.volume_key)?;
        Ok(Segment { len, backend_offset: segment.offset, cipher })
    });
    segments.collect()
}

/// The cipher of a segment under `key`; the null cipher is none.
pub fn cipher(segment: &ucrypt_luks::Segment, key: &[u8]) -> Result<Option<SectorCipher>, Error> {
    if segment.cipher.is_null() {
        return Ok(None);
    }
    Ok(Some(segment.cipher(key)?))
}

/// Translates dm-crypt's flags into policies. What no flag sets is adaptive.
pub fn policies(flags: &BTreeSet<Flag>) -> Policies {
    let has = |flag| flags.contains(&flag);
    let sorted = !has(Flag::SubmitFromCryptCpus);
    let queues = match (has(Flag::SameCpuCrypt), sorted) {
        (true, sorted) => Fixed::SameCpu { sorted }.into(),
        (false, false) => Fixed::Unbound { sorted: false }.into(),
        (false, true) => PolicyKind::Adaptive,
    };
    let choose = |inline| if inline { Fixed::Inline.into() } else { queues };
    Policies {
        reads: choose(has(Flag::NoReadWorkqueue)),
        writes: choose(has(Flag::NoWriteWorkqueue)),
    }
}
