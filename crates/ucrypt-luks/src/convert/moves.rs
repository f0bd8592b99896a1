//! Moving the key material of a keyslot, in either version of the header. At every instant the
//! header names a place that holds all of it.

use std::collections::BTreeMap;
use std::ops::Range;

use super::place::{Place, moves};
use crate::error::Result;
use crate::luks2::area_size;
use crate::medium::{Random, ReadAt, Write, read_bytes, wipe};
use crate::volume::SECTOR_BYTES;
use crate::{luks1, luks2};

/// Longest keyslot area that is moved, in bytes: that of a key of 512 bytes.
const AREA_MAX: u64 = 4 << 20;

/// The bytes of keyslot areas, by the number of the keyslot.
pub(super) type Materials = BTreeMap<u32, Vec<u8>>;

/// Reads the areas of keyslots.
pub(super) fn read_materials(
    image: &dyn ReadAt,
    places: impl IntoIterator<Item = (u32, Place)>,
) -> Result<Materials> {
    let read = |(number, place): (u32, Place)| {
        let bytes = read_bytes(image, "a keyslot area", place.start, place.len, AREA_MAX)?;
        Ok((number, bytes))
    };
    places.into_iter().map(read).collect()
}

/// The place of a keyslot of LUKS1, active or not.
pub(super) fn luks1_place(header: &luks1::Header, number: u32) -> Place {
    let start = header.keyslots[number as usize].material_start();
    Place { start, len: area_size(header.key_bytes) }
}

/// The offset of an area as a LUKS1 header gives it. Keyslot areas end far below 2 TiB.
pub(super) fn in_sectors(bytes: u64) -> u32 {
    (bytes / SECTOR_BYTES) as u32
}

/// Whether one sector of a LUKS1 header holds the offsets of both keyslots. Only then one write
/// changes both or none.
pub(super) fn in_one_sector(one: u32, other: u32) -> bool {
    // The offset of keyslot 6 is the first behind byte 512.
    (one < 6) == (other < 6)
}

/// Moves the material of a LUKS1 keyslot to `to`, and wipes the old place. If `swapped` is an
/// inactive keyslot, it takes the old place.
pub(super) fn move_in_luks1(
    header: &mut luks1::Header,
    (number, material): (u32, &[u8]),
    to: u64,
    swapped: Option<u32>,
    random: Random<'_>,
    writes: &mut Vec<Write>,
) -> Result<()> {
    let old = luks1_place(header, number);
    let new = Place { start: to, ..old };
    header.keyslots[number as usize].material_offset = in_sectors(to);
    if let Some(other) = swapped {
        header.keyslots[other as usize].material_offset = in_sectors(old.start);
    }
    let bytes = header.to_bytes();
    // What was made has to be readable.
    luks1::Header::parse(&bytes)?;
    writes.push(Write { offset: to, bytes: material.to_vec() });
    writes.push(Write { offset: 0, bytes });
    for part in old.without(new) {
        writes.push(wipe(part.start, part.len, random)?);
    }
    Ok(())
}

/// Moves the areas of LUKS2 keyslots to their targets, one after another, each into free space
/// inside `room`. `None` if there is too little of it.
pub(super) fn move_in_luks2(
    mut header: luks2::Header,
    materials: &Materials,
    targets: &BTreeMap<u32, Place>,
    room: &Range<u64>,
    random: Random<'_>,
    writes: &mut Vec<Write>,
) -> Result<Option<luks2::Header>> {
    let keyslots = &header.metadata.keyslots;
    let numbers: Vec<u32> = keyslots.keys().copied().collect();
    let areas = keyslots.values().map(|keyslot| &keyslot.area);
    let areas = areas.map(|area| Place { start: area.offset, len: area.size }).collect();
    let targets: Vec<Place> = numbers.iter().map(|number| targets[number]).collect();
    let Some(moves) = moves(areas, &targets, room) else { return Ok(None) };
    for (at, to) in moves {
        let number = numbers[at];
        let mut change = header.change(None)?;
        change.move_area(number, to.start, &materials[&number], random)?;
        let (moved, more) = change.finish(random)?;
        writes.extend(more);
        header = moved;
    }
    Ok(Some(header))
}
