//! The rules of LUKS2 metadata that concern more than one value: sizes must agree, areas must not
//! overlap, references must resolve (on-disk format 1.1, chapter 3).

use super::binary::{BINARY_BYTES, HEADER_SIZES};
use super::metadata::{Keyslot, KeyslotKind, Metadata, SegmentKind};
use super::reencryption;
use crate::area::material_len;
use crate::error::{Error, Result};
use crate::kdf::KEY_LEN_MAX;
use crate::volume::SECTOR_BYTES;

/// Largest keyslots area in bytes.
pub(crate) const KEYSLOTS_SIZE_MAX: u64 = 128 << 20;

/// Alignment of the keyslots area and everything in it, in bytes.
pub(crate) const AREA_ALIGNMENT: u64 = 4096;

/// Checks metadata that was found in a copy of `header_size` bytes.
pub(crate) fn check(metadata: &Metadata, header_size: u64) -> Result<()> {
    check_config(metadata, header_size)?;
    check_references(metadata)?;
    check_segments(metadata)?;
    for (number, keyslot) in &metadata.keyslots {
        check_keyslot(*number, keyslot)?;
    }
    check_areas(metadata, header_size)?;
    check_bindings(metadata)?;
    reencryption::check(metadata)
}

/// Each `luks2` keyslot must have exactly one digest. With none or two, a key could be mistaken for
/// another one.
fn check_bindings(metadata: &Metadata) -> Result<()> {
    for (number, keyslot) in &metadata.keyslots {
        let digests = metadata.digests_of_keyslot(*number).len();
        if matches!(keyslot.kind, KeyslotKind::Luks2 { .. }) && digests != 1 {
            let problem = format!("{digests} digests belong to it instead of one");
            return Err(Error::damaged(format!("JSON/keyslots/{number}"), problem));
        }
    }
    Ok(())
}

fn check_config(metadata: &Metadata, header_size: u64) -> Result<()> {
    let config = &metadata.config;
    let broken =
        |member: &str, problem| Err(Error::damaged(format!("JSON/config/{member}"), problem));
    if config.json_size.checked_add(BINARY_BYTES as u64) != Some(header_size)
        || !HEADER_SIZES.contains(&header_size)
    {
        let problem =
            format!("{} does not go with a copy of {header_size} bytes", config.json_size);
        return broken("json_size", problem);
    }
    let size = config.keyslots_size;
    if size > KEYSLOTS_SIZE_MAX || !size.is_multiple_of(AREA_ALIGNMENT) {
        return broken("keyslots_size", format!("{size} bytes: not 4096-aligned up to 128 MiB"));
    }
    // Backups are no data: they describe it as it was, or will be.
    let segments = metadata.segments.values().filter(|segment| !segment.is_backup());
    let data = segments.map(|segment| segment.offset).min();
    if let Some(data) = data
        && data != 0
        && data < 2 * header_size + size
    {
        return broken("keyslots_size", format!("{size} bytes reach into the data at byte {data}"));
    }
    Ok(())
}

fn check_references(metadata: &Metadata) -> Result<()> {
    let missing = |place: String, what: &str, number: u32| {
        Err(Error::damaged(place, format!("there is no {what} {number}")))
    };
    for (number, digest) in &metadata.digests {
        for keyslot in &digest.keyslots {
            if !metadata.keyslots.contains_key(keyslot) {
                return missing(format!("JSON/digests/{number}/keyslots"), "keyslot", *keyslot);
            }
        }
        for segment in &digest.segments {
            if !metadata.segments.contains_key(segment) {
                return missing(format!("JSON/digests/{number}/segments"), "segment", *segment);
            }
        }
    }
    for (number, token) in &metadata.tokens {
        for keyslot in &token.keyslots {
            if !metadata.keyslots.contains_key(keyslot) {
                return missing(format!("JSON/tokens/{number}/keyslots"), "keyslot", *keyslot);
            }
        }
    }
    Ok(())
}

fn check_segments(metadata: &Metadata) -> Result<()> {
    if metadata.segments.is_empty() {
        return Err(Error::damaged("JSON/segments", "there is none"));
    }
    for (number, segment) in &metadata.segments {
        let broken =
            |problem: &str| Err(Error::damaged(format!("JSON/segments/{number}"), problem));
        if !segment.offset.is_multiple_of(SECTOR_BYTES) {
            return broken("its offset is not a multiple of 512");
        }
        if segment.size.is_some_and(|size| size == 0 || !size.is_multiple_of(SECTOR_BYTES)) {
            return broken("its size is not a multiple of 512 above 0");
        }
        if let SegmentKind::Crypt { sector_size, .. } = segment.kind {
            if !matches!(sector_size, 512 | 1024 | 2048 | 4096) {
                return broken("its sector size is none of 512, 1024, 2048 and 4096");
            }
            if segment.size.is_some_and(|size| !size.is_multiple_of(u64::from(sector_size))) {
                return broken("its size is not a multiple of its sector size");
            }
            if metadata.digest_of_segment(*number).is_none() {
                return broken("no digest belongs to it");
            }
        }
    }
    check_order(metadata)
}

/// Segment numbers must have no gaps, and the volume's segments must come before the backups. Only
/// the last segment of the volume may reach to the end of the image, and none may overlap.
fn check_order(metadata: &Metadata) -> Result<()> {
    let mut volume: Vec<(u64, Option<u64>, u32)> = Vec::new();
    let mut endless = false;
    for (expected, (number, segment)) in (0..).zip(&metadata.segments) {
        let broken =
            |problem: &str| Err(Error::damaged(format!("JSON/segments/{number}"), problem));
        if *number != expected {
            return broken(&format!("there is no segment {expected} in front of it"));
        }
        if segment.is_backup() {
            if volume.is_empty() {
                return broken("it is a backup, and the volume has no segment");
            }
            continue;
        }
        if volume.len() != expected as usize {
            return broken("it lies behind a backup");
        }
        if endless {
            let place = format!("JSON/segments/{}", expected - 1);
            return Err(Error::damaged(place, "only the last segment may have no size"));
        }
        endless = segment.size.is_none();
        let end = segment.size.map_or(Some(u64::MAX), |size| segment.offset.checked_add(size));
        volume.push((segment.offset, end, *number));
    }
    // As in cryptsetup: one alone is never compared.
    let beyond = volume.iter().find(|(_, end, _)| end.is_none() && volume.len() > 1);
    if let Some((_, _, number)) = beyond {
        return Err(Error::damaged(format!("JSON/segments/{number}"), "it ends beyond 2^64 bytes"));
    }
    volume.sort_unstable();
    for pair in volume.windows(2) {
        let ((_, end, first), (start, _, second)) = (pair[0], pair[1]);
        if end.is_some_and(|end| start < end) {
            let problem = format!("segments {first} and {second} overlap");
            return Err(Error::damaged("JSON/segments", problem));
        }
    }
    Ok(())
}

fn check_keyslot(number: u32, keyslot: &Keyslot) -> Result<()> {
    let broken = |problem| Err(Error::damaged(format!("JSON/keyslots/{number}"), problem));
    let KeyslotKind::Luks2 { af, area_key_size, .. } = &keyslot.kind else { return Ok(()) };
    for (what, size) in [("key_size", keyslot.key_size), ("area/key_size", *area_key_size)] {
        if size == 0 || size as usize > KEY_LEN_MAX {
            return broken(format!("{what} of {size} is not in 1 to {KEY_LEN_MAX}"));
        }
    }
    // As in cryptsetup: a keyslot with another one has another type.
    for (what, kind, known) in [("af", &af.kind, "luks1"), ("area", &keyslot.area.kind, "raw")] {
        if kind != known {
            return broken(format!("its {what} is of the type \"{kind}\" instead of \"{known}\""));
        }
    }
    let needed = material_len(keyslot.key_size, af.stripes);
    if needed > keyslot.area.size {
        let size = keyslot.area.size;
        return broken(format!("its area of {size} bytes is too small for {needed}"));
    }
    Ok(())
}

/// Keyslot areas must lie inside the keyslots area, which follows both header copies, and must not
/// overlap.
fn check_areas(metadata: &Metadata, header_size: u64) -> Result<()> {
    let begin = 2 * header_size;
    let end = begin + metadata.config.keyslots_size;
    let mut areas = Vec::with_capacity(metadata.keyslots.len());
    for (number, keyslot) in &metadata.keyslots {
        let area = &keyslot.area;
        let area_end = area.offset.checked_add(area.size);
        let inside = area.size > 0 && area.offset >= begin && area_end.is_some_and(|e| e <= end);
        if !inside {
            let place = format!("JSON/keyslots/{number}/area");
            let problem = format!(
                "{} bytes at {} are not inside the keyslots area, bytes {begin} to {end}",
                area.size, area.offset
            );
            return Err(Error::damaged(place, problem));
        }
        areas.push((area.offset, area.offset + area.size, *number));
    }
    areas.sort_unstable();
    for pair in areas.windows(2) {
        let ((_, end, first), (start, _, second)) = (pair[0], pair[1]);
        if start < end {
            let problem = format!("the areas of keyslots {first} and {second} overlap");
            return Err(Error::damaged("JSON/keyslots", problem));
        }
    }
    Ok(())
}
