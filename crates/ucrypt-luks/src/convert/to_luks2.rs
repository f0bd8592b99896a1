//! From LUKS1 to LUKS2.

use std::collections::BTreeMap;
use std::ops::Range;

use super::moves::{
    Materials, in_one_sector, luks1_place, move_in_luks1, move_in_luks2, read_materials,
};
use super::place::{Place, gap};
use super::{COPIES_BYTES, Conversion, LUKS1_AREAS, SECTOR, SHIFT, mark};
use crate::area::STRIPES;
use crate::error::{Error, Result};
use crate::header::Header;
use crate::json::Json;
use crate::luks1::{self, KEYSLOTS};
use crate::luks2::{
    self, AREA_ALIGNMENT, BINARY_BYTES, Binary, Copy, HEADER_SIZES, KEYSLOTS_SIZE_MAX, area_size,
    base64, decimal,
};
use crate::medium::{Random, ReadAt, Write, read_bytes};

/// The first bytes of what the luksmeta program keeps behind the keyslots.
const LUKSMETA: &[u8] = b"LUKSMETA";

/// Plans the conversion of a LUKS1 header, which was read from `image`, to LUKS2.
///
/// Refused: no room for the moved areas, metadata of luksmeta, the null cipher, and a keyslot that is
/// neither active nor inactive.
pub fn to_luks2(
    header: &luks1::Header,
    image: &dyn ReadAt,
    random: Random<'_>,
) -> Result<Conversion> {
    let plan = Plan::new(header, image)?;
    // What an interrupted conversion has left is nobody's any more in the new header.
    let mut writes = mark::finish_luks1(header, image, random)?;
    let done = plan.safely(random)?;
    let survives = done.is_some();
    let (header, more) = match done {
        Some(done) => done,
        None => plan.at_once(random)?,
    };
    writes.extend(more);
    Ok(conversion(header, writes, survives))
}

/// Bytes that a file has to have for [`to_luks2`] in which no data follows the header. `None` if they
/// would not be in front of the data, which lies elsewhere, where the header says that it begins.
pub fn room_for_luks2(header: &luks1::Header) -> Option<u64> {
    let ends = (0..KEYSLOTS as u32).map(|number| luks1_place(header, number).end());
    let all = COPIES_BYTES + KEYSLOTS as u64 * area_size(header.key_bytes);
    let needed = ends.fold(all, u64::max);
    match header.data_offset() {
        0 => Some(needed),
        // As in cryptsetup, the keyslots area reaches up to the data, as if that were here.
        data => (needed <= data).then(|| data.min(COPIES_BYTES + KEYSLOTS_SIZE_MAX).max(needed)),
    }
}

fn conversion(header: luks2::Header, writes: Vec<Write>, survives: bool) -> Conversion {
    let header = Header::Luks2(Box::new(header));
    Conversion { header, writes, survives, lost: Vec::new() }
}

struct Plan<'a> {
    header: &'a luks1::Header,
    /// The future keyslots area.
    room: Range<u64>,
    materials: Materials,
    /// The final places of active keyslots.
    targets: BTreeMap<u32, Place>,
}

impl<'a> Plan<'a> {
    fn new(header: &'a luks1::Header, image: &dyn ReadAt) -> Result<Self> {
        if header.cipher().is_ok_and(|cipher| cipher.is_null()) {
            return Err(refused("keyslots with the null cipher protect nothing in LUKS2"));
        }
        header.check_states().map_err(|problem| refused(&problem.to_string()))?;
        let len = area_size(header.key_bytes);
        let end = match header.data_offset() {
            0 => image.len(),
            offset => offset.min(image.len()),
        };
        let places: Vec<Place> = (0..KEYSLOTS as u32).map(|n| luks1_place(header, n)).collect();
        let collides = |(at, place): (usize, &Place)| place.overlaps_any(&places[at + 1..]);
        // Whole blocks are moved and wiped, which must be nobody else's.
        let is_outside = |place: &Place| place.start < LUKS1_AREAS || place.end() > end;
        if places.iter().any(is_outside) || places.iter().enumerate().any(collides) {
            return Err(refused(
                "its keyslot areas do not have blocks of 4096 bytes to themselves",
            ));
        }
        check_luksmeta(&places, image)?;
        let needed = COPIES_BYTES + KEYSLOTS as u64 * len;
        if end < needed {
            let at_data = end == header.data_offset();
            let place = if at_data { "the data begins" } else { "its file ends" };
            return Err(refused(&format!(
                "not enough space to move the keyslot areas: {place} at byte {end}, and they need \
                 {needed}"
            )));
        }
        let size = (end - COPIES_BYTES).min(KEYSLOTS_SIZE_MAX);
        let room = COPIES_BYTES..COPIES_BYTES + size - size % AREA_ALIGNMENT;
        let active = header.active_keyslots();
        let materials = read_materials(image, active.iter().map(|n| (*n, places[*n as usize])))?;
        let targets = targets(&active, &places, &room)?;
        Ok(Self { header, room, materials, targets })
    }

    /// All passphrases open the volume after an interruption. `None` if that needs more room.
    fn safely(&self, random: Random<'_>) -> Result<Option<(luks2::Header, Vec<Write>)>> {
        let mut luks1 = self.header.clone();
        let mut writes = vec![mark::put(&luks1, self.room.end)];
        for number in luks1.active_keyslots() {
            if luks1_place(&luks1, number).start >= COPIES_BYTES {
                continue;
            }
            let Some((to, swapped)) = self.shelter(&luks1, number) else { return Ok(None) };
            let material = (number, self.materials[&number].as_slice());
            move_in_luks1(&mut luks1, material, to, swapped, random, &mut writes)?;
        }
        let places = luks1.active_keyslots();
        let places = places.iter().map(|number| (*number, luks1_place(&luks1, *number))).collect();
        let luks2 = self.new_header(&places, true)?;
        writes.extend(put_header(&luks2, random)?);
        let moved =
            move_in_luks2(luks2, &self.materials, &self.targets, &self.room, random, &mut writes)?;
        let Some(moved) = moved else { return Ok(None) };
        let (header, more) = mark::end_luks2(&moved, None, random)?;
        writes.extend(more);
        Ok(Some((header, writes)))
    }

    /// A place behind the new header for a keyslot that lies in its way; with the inactive keyslot
    /// whose place it is, if any. Best is one that the keyslot can leave again directly.
    fn shelter(&self, luks1: &luks1::Header, number: u32) -> Option<(u64, Option<u32>)> {
        let own = luks1_place(luks1, number);
        let inactive = (0..KEYSLOTS as u32).filter(|other| {
            let is_free =
                luks1.keyslots[*other as usize].is_free() && in_one_sector(number, *other);
            is_free && luks1_place(luks1, *other).start >= COPIES_BYTES
        });
        let inactive: Vec<(u32, Place)> =
            inactive.map(|other| (other, luks1_place(luks1, other))).collect();
        let mut taken: Vec<Place> =
            (0..KEYSLOTS as u32).map(|other| luks1_place(luks1, other)).collect();
        let outside = gap(self.room.clone(), own.len, &taken);
        let target = self.targets[&number];
        taken.push(target);
        let spared = inactive.iter().find(|(_, place)| !place.overlaps(target));
        let swap = |found: &(u32, Place)| (found.1.start, Some(found.0));
        let plain = |place: Place| (place.start, None);
        spared
            .map(swap)
            .or_else(|| gap(self.room.clone(), own.len, &taken).map(plain))
            .or_else(|| inactive.first().map(swap))
            .or(outside.map(plain))
    }

    /// Everything goes to its final place at once.
    fn at_once(&self, random: Random<'_>) -> Result<(luks2::Header, Vec<Write>)> {
        let luks2 = self.new_header(&self.targets, false)?;
        let moved = self.targets.iter().map(|(number, place)| Write {
            offset: place.start,
            bytes: self.materials[number].clone(),
        });
        let mut writes: Vec<Write> = moved.collect();
        writes.extend(put_header(&luks2, random)?);
        Ok((luks2, writes))
    }

    /// The LUKS2 header with the keyslots at these places, marked if something may be left.
    fn new_header(&self, places: &BTreeMap<u32, Place>, marked: bool) -> Result<luks2::Header> {
        let luks1 = self.header;
        let cipher = match luks1.cipher_mode.as_str() {
            "" => luks1.cipher_name.clone(),
            mode => format!("{}-{mode}", luks1.cipher_name),
        };
        let keyslots = places.iter().map(|(number, place)| {
            let keyslot = &luks1.keyslots[*number as usize];
            let keyslot = Json::object([
                ("type", "luks2".into()),
                ("key_size", luks1.key_bytes.into()),
                (
                    "kdf",
                    Json::object([
                        ("type", "pbkdf2".into()),
                        ("hash", luks1.hash.as_str().into()),
                        ("iterations", keyslot.iterations.into()),
                        ("salt", base64(&keyslot.salt)),
                    ]),
                ),
                (
                    "af",
                    Json::object([
                        ("type", "luks1".into()),
                        ("hash", luks1.hash.as_str().into()),
                        ("stripes", STRIPES.into()),
                    ]),
                ),
                (
                    "area",
                    Json::object([
                        ("type", "raw".into()),
                        ("encryption", cipher.as_str().into()),
                        ("key_size", luks1.key_bytes.into()),
                        ("offset", decimal(place.start)),
                        ("size", decimal(place.len)),
                    ]),
                ),
            ]);
            (number.to_string(), keyslot)
        });
        let segment = Json::object([
            ("type", "crypt".into()),
            ("offset", decimal(luks1.data_offset())),
            ("iv_tweak", decimal(0)),
            ("size", "dynamic".into()),
            ("encryption", cipher.as_str().into()),
            ("sector_size", 512_u32.into()),
        ]);
        let numbers: Vec<String> = places.keys().map(u32::to_string).collect();
        let numbers: Vec<&str> = numbers.iter().map(String::as_str).collect();
        let digest = Json::object([
            ("type", "pbkdf2".into()),
            ("keyslots", Json::strings(&numbers)),
            ("segments", Json::strings(&["0"])),
            ("hash", luks1.hash.as_str().into()),
            ("salt", base64(&luks1.digest_salt)),
            ("digest", base64(&luks1.digest)),
            ("iterations", luks1.digest_iterations.into()),
        ]);
        let config = Json::object([
            ("json_size", decimal(HEADER_SIZES[0] - BINARY_BYTES as u64)),
            ("keyslots_size", decimal(self.room.end - self.room.start)),
        ]);
        let tokens = marked.then(|| ("0".into(), mark::token())).into_iter();
        let json = Json::object([
            (
                "keyslots",
                Json::Object(keyslots.map(|(number, keyslot)| (number.into(), keyslot)).collect()),
            ),
            ("tokens", Json::Object(tokens.collect())),
            ("segments", Json::object([("0", segment)])),
            ("digests", Json::object([("0", digest)])),
            ("config", config),
        ]);
        let binary = Binary {
            header_size: HEADER_SIZES[0],
            sequence_id: 1,
            label: "".into(),
            checksum: "sha256".to_owned(),
            uuid: luks1.uuid.clone(),
            subsystem: "".into(),
        };
        luks2::Header::new(&binary, &json)
    }
}

/// The final places: 28 KiB further back, or where there is room after an interrupted conversion.
fn targets(active: &[u32], places: &[Place], room: &Range<u64>) -> Result<BTreeMap<u32, Place>> {
    let mut targets = BTreeMap::new();
    let mut taken = Vec::new();
    for number in active {
        let old = places[*number as usize];
        let moved = Place { start: old.start + SHIFT, ..old };
        if moved.end() <= room.end {
            taken.push(moved);
            targets.insert(*number, moved);
        }
    }
    for number in active {
        if targets.contains_key(number) {
            continue;
        }
        let len = places[*number as usize].len;
        let full = || refused("not enough space to move the keyslot areas");
        let place = gap(room.clone(), len, &taken).ok_or_else(full)?;
        taken.push(place);
        targets.insert(*number, place);
    }
    Ok(targets)
}

/// Both copies of the header, over a LUKS1 header that is valid until its first sector is gone.
/// Without the rest of it, the secondary copy is valid.
fn put_header(header: &luks2::Header, random: Random<'_>) -> Result<Vec<Write>> {
    let primary = header.write_of(Copy::Primary, random)?.bytes;
    let part =
        |range: Range<usize>| Write { offset: range.start as u64, bytes: primary[range].to_vec() };
    Ok(vec![
        part(BINARY_BYTES..primary.len()),
        header.write_of(Copy::Secondary, random)?,
        part(0..SECTOR),
        part(SECTOR..BINARY_BYTES),
    ])
}

pub(super) fn check_luksmeta(places: &[Place], image: &dyn ReadAt) -> Result<()> {
    let end = places.iter().map(|place| place.end()).max().unwrap_or(0);
    let len = LUKSMETA.len() as u64;
    if end + len > image.len() || read_bytes(image, "luksmeta", end, len, len)? != LUKSMETA {
        return Ok(());
    }
    Err(refused("it has metadata of luksmeta behind its keyslots, which would be overwritten"))
}

fn refused(why: &str) -> Error {
    Error::request(format!("the header cannot be converted to LUKS2: {why}"))
}
