//! The mark of a conversion that is under way. An interrupted conversion may leave a copy of key
//! material, or of the old header, where the header that is valid names nothing. The mark stays
//! until all of that is overwritten.
//!
//! In a LUKS2 header it is a token. A LUKS1 header has no room for it: there it lies behind the
//! header, where no program writes, with the digest of the volume key, which no change of the header
//! touches, and the byte up to which something may be left.

use std::ops::Range;

use super::moves::luks1_place;
use super::place::Place;
use super::to_luks2::check_luksmeta;
use super::{Conversion, LUKS1_AREAS};
use crate::backup::BACKUP_MAX;
use crate::error::Result;
use crate::header::Header;
use crate::json::Json;
use crate::luks1::{self, DIGEST_BYTES, HEADER_BYTES, KEYSLOTS};
use crate::luks2::{self, Damage, Metadata};
use crate::medium::{Random, ReadAt, Write, read_bytes, wipe_range};

/// The type of the token.
const TOKEN: &str = "ucrypt-conversion";

/// First byte of the mark of a LUKS1 header: in the first 4096 bytes, behind the header.
pub(super) const OFFSET: u64 = 2048;

const MAGIC: &[u8; 16] = b"ucrypt-convert-1";
const BYTES: usize = MAGIC.len() + DIGEST_BYTES + 8;

/// The token, still without a number.
pub(super) fn token() -> Json {
    Json::object([("type", TOKEN.into()), ("keyslots", Json::Array(Vec::new()))])
}

/// Whether a token is the mark.
pub(super) fn is_mark(token: &luks2::Token) -> bool {
    token.kind == TOKEN
}

/// Whether a LUKS2 header says that a conversion is under way, or was interrupted.
pub(crate) fn is_marked(metadata: &Metadata) -> bool {
    token_number(metadata).is_some()
}

fn token_number(metadata: &Metadata) -> Option<u32> {
    let mut tokens = metadata.tokens.iter();
    tokens.find(|(_, token)| is_mark(token)).map(|(number, _)| *number)
}

/// The mark beside a LUKS1 header: up to byte `end` something may be left.
pub(super) fn bytes(header: &luks1::Header, end: u64) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(header.digest);
    bytes.extend(end.to_be_bytes());
    bytes
}

/// The write that puts the mark beside a LUKS1 header. Zeroes around it overwrite what an earlier use
/// of the disk has left between header and keyslots: it would lie in the LUKS2 header for a moment.
pub(super) fn put(header: &luks1::Header, end: u64) -> Write {
    let (start, at) = (HEADER_BYTES, OFFSET as usize);
    let mut gap = vec![0; LUKS1_AREAS as usize - start];
    gap[at - start..][..BYTES].copy_from_slice(&bytes(header, end));
    Write { offset: start as u64, bytes: gap }
}

/// The write that removes the mark beside a LUKS1 header.
pub(crate) fn removal() -> Write {
    Write { offset: OFFSET, bytes: vec![0; BYTES] }
}

/// The byte up to which an interrupted conversion may have left something beside a LUKS1 header.
fn marked_end(header: &luks1::Header, image: &dyn ReadAt) -> Result<Option<u64>> {
    let place = Place { start: OFFSET, len: BYTES as u64 };
    let areas: Vec<Place> =
        (0..KEYSLOTS as u32).map(|number| luks1_place(header, number)).collect();
    if place.overlaps_any(&areas) || place.end() > image.len() {
        return Ok(None);
    }
    let found = read_bytes(image, "the mark of a conversion", OFFSET, place.len, place.len)?;
    let end = found.last_chunk().map(|end| u64::from_be_bytes(*end));
    Ok(end.filter(|end| *end <= BACKUP_MAX && found == bytes(header, *end)))
}

/// The bytes in which an interrupted conversion may have left something beside a LUKS1 header, if it
/// is marked. Keyslots lie among them.
pub(crate) fn left(header: &luks1::Header, image: &dyn ReadAt) -> Result<Option<Range<u64>>> {
    let Some(end) = marked_end(header, image)? else { return Ok(None) };
    let areas: Vec<Place> =
        (0..KEYSLOTS as u32).map(|number| luks1_place(header, number)).collect();
    let data = if header.payload_offset == 0 { image.len() } else { header.data_offset() };
    // What somebody has put behind the keyslots since then is not overwritten.
    let end = match check_luksmeta(&areas, image) {
        Ok(()) => end.min(data).min(image.len()),
        Err(_) => header.areas_end().min(end),
    };
    Ok(Some(LUKS1_AREAS..end))
}

/// The writes that overwrite everything between the areas in `taken`.
fn wipe_between(range: Range<u64>, taken: &[Place], random: Random<'_>) -> Result<Vec<Write>> {
    let mut taken = taken.to_vec();
    taken.sort_unstable_by_key(|place| place.start);
    let (mut writes, mut free) = (Vec::new(), range.start);
    for place in taken {
        writes.extend(wipe_range(free..place.start.clamp(free, range.end.max(free)), random)?);
        free = free.max(place.end());
    }
    writes.extend(wipe_range(free..range.end.max(free), random)?);
    Ok(writes)
}

/// The writes that overwrite what an interrupted conversion has left, and remove its mark; none if
/// there is no mark.
pub(super) fn finish_luks1(
    header: &luks1::Header,
    image: &dyn ReadAt,
    random: Random<'_>,
) -> Result<Vec<Write>> {
    let Some(left) = left(header, image)? else { return Ok(Vec::new()) };
    header.check_states()?;
    let active = header.active_keyslots().into_iter();
    let active: Vec<Place> = active.map(|number| luks1_place(header, number)).collect();
    let mut writes = wipe_between(left, &active, random)?;
    writes.push(removal());
    Ok(writes)
}

/// The writes that overwrite what an interrupted conversion has left, if the header is marked.
fn wipe_luks2(header: &luks2::Header, random: Random<'_>) -> Result<Vec<Write>> {
    let areas = header.metadata.keyslots.values().map(|keyslot| &keyslot.area);
    let areas: Vec<Place> =
        areas.map(|area| Place { start: area.offset, len: area.size }).collect();
    wipe_between(2 * header.binary.header_size..header.end(), &areas, random)
}

/// Marks a LUKS2 header, or overwrites what was left since it was marked. The other copy is written
/// again, if it needs that.
pub(super) fn begin_luks2(
    header: &luks2::Header,
    damage: Option<&Damage>,
    random: Random<'_>,
) -> Result<(luks2::Header, Vec<Write>)> {
    let mut change = header.change(damage)?;
    let mut writes = Vec::new();
    if is_marked(&header.metadata) {
        writes = wipe_luks2(header, random)?;
    } else {
        change.put_token(None, token(), false)?;
    }
    let (header, more) = change.finish(random)?;
    writes.extend(more);
    Ok((header, writes))
}

/// Removes the mark of a LUKS2 header.
pub(super) fn end_luks2(
    header: &luks2::Header,
    damage: Option<&Damage>,
    random: Random<'_>,
) -> Result<(luks2::Header, Vec<Write>)> {
    let mut change = header.change(damage)?;
    if let Some(number) = token_number(&header.metadata) {
        change.remove_token(number)?;
    }
    change.finish(random)
}

/// Finishes a conversion that was interrupted after the new header became valid: overwrites what it
/// has left of key material and of the old header. `None` if nothing says that there is something
/// left. `header` was read from `image`, with `damage`.
pub fn finish(
    header: &Header,
    damage: Option<&Damage>,
    image: &dyn ReadAt,
    random: Random<'_>,
) -> Result<Option<Conversion>> {
    let (header, writes) = match header {
        Header::Luks1(luks1) => (header.clone(), finish_luks1(luks1, image, random)?),
        Header::Luks2(luks2) if is_marked(&luks2.metadata) => {
            let mut writes = wipe_luks2(luks2, random)?;
            let (header, more) = end_luks2(luks2, damage, random)?;
            writes.extend(more);
            (Header::Luks2(Box::new(header)), writes)
        }
        Header::Luks2(_) => return Ok(None),
    };
    let conversion = Conversion { header, writes, survives: true, lost: Vec::new() };
    Ok(Some(conversion).filter(|conversion| !conversion.writes.is_empty()))
}
