//! From LUKS2 to LUKS1.

use std::collections::BTreeMap;
use std::ops::Range;

use super::moves::{
    Materials, in_one_sector, in_sectors, luks1_place, move_in_luks1, move_in_luks2, read_materials,
};
use super::place::{Place, gap};
use super::{Conversion, LUKS1_AREAS, SECTOR, SHIFT, mark};
use crate::area::STRIPES;
use crate::error::{Error, Result};
use crate::header::Header;
use crate::kdf::Kdf;
use crate::luks1::{self, DIGEST_BYTES, KEYSLOTS, NAME_BYTES, SALT_BYTES};
use crate::luks2::{
    self, Damage, DigestKind, KeyslotKind, Metadata, Pbkdf2Digest, SegmentKind, area_size,
};
use crate::medium::{Random, ReadAt, Write, wipe};
use crate::volume::SECTOR_BYTES;

/// Plans the conversion of a LUKS2 header, which was read from `image`, to LUKS1. `damage` is what
/// [`luks2::Header::read`] returned beside it.
///
/// Refused by name: all that LUKS1 has no field for, except labels and flags, which are lost.
pub fn to_luks1(
    header: &luks2::Header,
    damage: Option<&Damage>,
    image: &dyn ReadAt,
    random: Random<'_>,
) -> Result<Conversion> {
    // Refuses headers of newer programs.
    let change = header.change(damage)?;
    let plan = Plan::new(header, image)?;
    let (marked, mut writes) = mark::begin_luks2(header, damage, random)?;
    let done = plan.safely(marked, random)?;
    let survives = done.is_some();
    let (luks1, more) = if let Some(done) = done {
        done
    } else {
        // A copy that is damaged or out of date is written again first.
        writes = damage.map_or(Ok(Vec::new()), |_| change.finish(random).map(|done| done.1))?;
        plan.at_once(random)?
    };
    writes.extend(more);
    let binary = &header.binary;
    let lost = [
        (!binary.label.is_empty(), "the label"),
        (!binary.subsystem.is_empty(), "the subsystem label"),
        (!header.metadata.config.flags.is_empty(), "the persistent flags"),
        (plan.has_priorities(), "the priorities of keyslots"),
    ];
    Ok(Conversion {
        header: Header::Luks1(Box::new(luks1)),
        writes,
        survives,
        lost: lost.into_iter().filter_map(|(is, what)| is.then_some(what)).collect(),
    })
}

struct Plan<'a> {
    metadata: &'a Metadata,
    /// Where keyslot areas may lie as long as the header is LUKS2.
    room: Range<u64>,
    materials: Materials,
    /// The header of LUKS1, with all keyslots in their final places.
    luks1: luks1::Header,
}

impl<'a> Plan<'a> {
    fn new(header: &'a luks2::Header, image: &dyn ReadAt) -> Result<Self> {
        let metadata = &header.metadata;
        let start = 2 * header.binary.header_size;
        let room = start..start + metadata.config.keyslots_size;
        let mut luks1 = new_header(header)?;
        for (place, keyslot) in
            final_places(metadata, luks1.key_bytes, &room)?.iter().zip(&mut luks1.keyslots)
        {
            keyslot.material_offset = in_sectors(place.start);
        }
        // What was made has to be readable.
        luks1::Header::parse(&luks1.to_bytes())?;
        let areas = metadata.keyslots.iter().map(|(number, keyslot)| {
            (*number, Place { start: keyslot.area.offset, len: keyslot.area.size })
        });
        let materials = read_materials(image, areas)?;
        Ok(Self { metadata, room, materials, luks1 })
    }

    fn has_priorities(&self) -> bool {
        let mut keyslots = self.metadata.keyslots.values();
        keyslots.any(|keyslot| keyslot.priority != luks2::Priority::Normal)
    }

    fn finals(&self) -> Vec<Place> {
        (0..KEYSLOTS as u32).map(|number| luks1_place(&self.luks1, number)).collect()
    }

    /// All passphrases open the volume after an interruption. `None` if that needs more room.
    fn safely(
        &self,
        header: luks2::Header,
        random: Random<'_>,
    ) -> Result<Option<(luks1::Header, Vec<Write>)>> {
        let mut writes = Vec::new();
        let finals = self.finals();
        // The header as it is when it becomes valid: no keyslot lies where the old header was.
        let mut luks1 = self.luks1.clone();
        let mut swaps = Vec::new();
        let mut shelters: Vec<Place> = Vec::new();
        for number in self.luks1.active_keyslots() {
            let own = finals[number as usize];
            if own.start >= self.room.start {
                continue;
            }
            let Some((place, swapped)) = self.shelter(number, &luks1, &shelters) else {
                return Ok(None);
            };
            luks1.keyslots[number as usize].material_offset = in_sectors(place.start);
            if let Some(other) = swapped {
                luks1.keyslots[other as usize].material_offset = in_sectors(own.start);
            }
            shelters.push(place);
            swaps.push((number, swapped));
        }
        let active = luks1.active_keyslots();
        let targets: BTreeMap<u32, Place> =
            active.iter().map(|number| (*number, luks1_place(&luks1, *number))).collect();
        let moved =
            move_in_luks2(header, &self.materials, &targets, &self.room, random, &mut writes)?;
        if moved.is_none() {
            return Ok(None);
        }
        writes.extend(put_header(&luks1, Some(self.room.end))?);
        // A copy of the old header must not come back.
        writes.push(wipe(LUKS1_AREAS, self.room.start - LUKS1_AREAS, random)?);
        for (number, swapped) in swaps {
            let material = (number, self.materials[&number].as_slice());
            let to = finals[number as usize].start;
            move_in_luks1(&mut luks1, material, to, swapped, random, &mut writes)?;
        }
        writes.push(mark::removal());
        Ok(Some((luks1, writes)))
    }

    /// A place behind the old header for a keyslot whose final place is there; with the inactive
    /// keyslot whose place it is, if any.
    fn shelter(
        &self,
        number: u32,
        luks1: &luks1::Header,
        shelters: &[Place],
    ) -> Option<(Place, Option<u32>)> {
        let area = &self.metadata.keyslots[&number].area;
        let here = Place { start: area.offset, len: area.size };
        let taken: Vec<Place> = self.finals().into_iter().chain(shelters.iter().copied()).collect();
        if !here.overlaps_any(&taken) {
            return Some((here, None));
        }
        if let Some(place) = gap(self.room.clone(), here.len, &taken) {
            return Some((place, None));
        }
        let mut inactive = (0..KEYSLOTS as u32).filter(|other| {
            let place = luks1_place(luks1, *other);
            let is_free =
                luks1.keyslots[*other as usize].is_free() && in_one_sector(number, *other);
            is_free && place.start >= self.room.start && place.end() <= self.room.end
        });
        inactive.next().map(|other| (luks1_place(luks1, other), Some(other)))
    }

    /// Everything goes to its final place at once.
    fn at_once(&self, random: Random<'_>) -> Result<(luks1::Header, Vec<Write>)> {
        let mut writes = vec![wipe(LUKS1_AREAS, self.room.start - LUKS1_AREAS, random)?];
        for (number, material) in &self.materials {
            let offset = luks1_place(&self.luks1, *number).start;
            writes.push(Write { offset, bytes: material.clone() });
        }
        writes.extend(put_header(&self.luks1, None)?);
        Ok((self.luks1.clone(), writes))
    }
}

/// The header of LUKS1, over a LUKS2 header whose secondary copy is valid until the first sector is
/// there. It is marked if something may be left up to byte `left`.
fn put_header(header: &luks1::Header, left: Option<u64>) -> Result<[Write; 2]> {
    let mut bytes = header.to_bytes();
    luks1::Header::parse(&bytes)?;
    if let Some(left) = left {
        bytes.resize(mark::OFFSET as usize, 0);
        bytes.extend(mark::bytes(header, left));
    }
    let (first, rest) = bytes.split_at(SECTOR);
    Ok([
        Write { offset: SECTOR as u64, bytes: rest.to_vec() },
        Write { offset: 0, bytes: first.to_vec() },
    ])
}

/// The final places of all eight keyslots: 28 KiB further in front, inactive ones in the first gaps.
/// After an interrupted conversion the gaps may be too small; then one behind the other.
fn final_places(metadata: &Metadata, key_bytes: u32, room: &Range<u64>) -> Result<Vec<Place>> {
    let len = area_size(key_bytes);
    let active = |number: u32| {
        let area = &metadata.keyslots.get(&number)?.area;
        Some(Place { start: area.offset, len: area.size })
    };
    let mut taken: Vec<Place> = (0..KEYSLOTS as u32).filter_map(active).collect();
    let mut places = Vec::new();
    for number in 0..KEYSLOTS as u32 {
        let Some(place) = active(number).or_else(|| gap(room.clone(), len, &taken)) else { break };
        taken.push(place);
        places.push(Place { start: place.start - SHIFT, ..place });
    }
    if places.len() == KEYSLOTS {
        return Ok(places);
    }
    if KEYSLOTS as u64 * len <= room.end - room.start {
        let start = |number: u64| room.start - SHIFT + number * len;
        return Ok((0..KEYSLOTS as u64)
            .map(|number| Place { start: start(number), len })
            .collect());
    }
    Err(refused("its keyslots area has no room for the eight keyslots of LUKS1"))
}

/// The LUKS1 header, still without the places of its keyslots.
fn new_header(header: &luks2::Header) -> Result<luks1::Header> {
    let metadata = &header.metadata;
    let mut tokens = metadata.tokens.iter().filter(|(_, token)| !mark::is_mark(token));
    if let Some((number, token)) = tokens.next() {
        return Err(refused(format!(
            "it has tokens (token {number} is a {}); remove them first",
            token.kind
        )));
    }
    let (encryption, payload_offset) = segment(metadata)?;
    let digest = digest(metadata)?;
    let key_bytes = metadata.keyslots.values().next().map(|keyslot| keyslot.key_size);
    let key_bytes = key_bytes
        .ok_or_else(|| refused("it has no keyslot that tells the length of the volume key"))?;
    let (cipher_name, cipher_mode) = split_cipher(encryption)?;
    let mut keyslots = [luks1::Keyslot { stripes: STRIPES, ..Default::default() }; KEYSLOTS];
    for number in metadata.keyslots.keys() {
        let Some(keyslot) = keyslots.get_mut(*number as usize) else {
            return Err(refused(format!("it has a keyslot {number}, and LUKS1 only 0 to 7")));
        };
        let (iterations, salt) = kdf(metadata, *number, key_bytes, encryption, &digest.hash)?;
        (keyslot.state, keyslot.iterations, keyslot.salt) =
            (luks1::State::Active, iterations, salt);
    }
    let (stored, digest_salt) = (digest.digest.first_chunk(), digest.salt.as_slice().try_into());
    let (Some(stored), Ok(digest_salt)) = (stored, digest_salt) else {
        return Err(refused("its digest is not that of a LUKS1 header"));
    };
    let stored: &[u8; DIGEST_BYTES] = stored;
    Ok(luks1::Header {
        cipher_name,
        cipher_mode,
        hash: digest.hash.clone(),
        payload_offset,
        key_bytes,
        digest: *stored,
        digest_salt,
        digest_iterations: digest.iterations,
        uuid: header.binary.uuid.clone(),
        keyslots,
    })
}

/// The cipher of the one segment, and its offset in sectors.
fn segment(metadata: &Metadata) -> Result<(&str, u32)> {
    let [segment] = metadata.segments.values().collect::<Vec<_>>()[..] else {
        return Err(refused("it has more than one data segment"));
    };
    let SegmentKind::Crypt { iv_tweak, encryption, sector_size, integrity } = &segment.kind else {
        return Err(refused(format!("its segment is a {}", segment.kind.name())));
    };
    if let Some(integrity) = integrity {
        return Err(refused(format!("it has integrity protection ({integrity})")));
    }
    if *sector_size != 512 {
        return Err(refused(format!("its sector size is {sector_size}, not 512 bytes")));
    }
    if *iv_tweak != 0 {
        return Err(refused(format!("its IVs begin at sector {iv_tweak}, not at 0")));
    }
    if let Some(size) = segment.size {
        return Err(refused(format!("its segment has a fixed size of {size} bytes")));
    }
    let offset = u32::try_from(segment.offset / SECTOR_BYTES);
    Ok((encryption, offset.map_err(|_| refused("its data begins behind 2 TiB"))?))
}

fn digest(metadata: &Metadata) -> Result<&Pbkdf2Digest> {
    let unbound = metadata.keyslots.keys().find(|number| metadata.is_unbound(**number));
    if let Some(number) = unbound {
        return Err(refused(format!("keyslot {number} is unbound; remove it first")));
    }
    match metadata.digests.values().collect::<Vec<_>>()[..] {
        [digest] => match &digest.kind {
            DigestKind::Pbkdf2(digest) => Ok(digest),
            DigestKind::Other(name) => Err(refused(format!("its digest is a {name}"))),
        },
        _ => Err(refused("it has more than one digest")),
    }
}

/// Name and mode as LUKS1 stores them.
fn split_cipher(encryption: &str) -> Result<(String, String)> {
    let (name, mode) = match encryption.split_once('-') {
        Some(parts) => parts,
        None => (encryption, "cbc-plain"),
    };
    if name.contains(':') || name.len() >= NAME_BYTES || mode.len() >= NAME_BYTES {
        return Err(refused(format!("LUKS1 has no field for the cipher {encryption}")));
    }
    Ok((name.to_owned(), mode.to_owned()))
}

/// Iterations and salt of a keyslot that LUKS1 can have.
fn kdf(
    metadata: &Metadata,
    number: u32,
    key_bytes: u32,
    encryption: &str,
    hash: &str,
) -> Result<(u32, [u8; SALT_BYTES])> {
    let keyslot = &metadata.keyslots[&number];
    let refused = |why: String| refused(format!("keyslot {number} {why}"));
    let KeyslotKind::Luks2 { kdf, salt, af, encryption: cipher, area_key_size } = &keyslot.kind
    else {
        return Err(refused(format!("is a {}", keyslot.kind.name())));
    };
    let Kdf::Pbkdf2 { hash: kdf_hash, iterations } = kdf else {
        return Err(refused(format!(
            "uses {}; run luksConvertKey --pbkdf pbkdf2 -S {number} first",
            kdf.name()
        )));
    };
    if kdf_hash != hash || af.hash != hash {
        return Err(refused(format!("uses the hash {kdf_hash} and the volume {hash}")));
    }
    if af.kind != "luks1" || af.stripes != STRIPES || keyslot.area.kind != "raw" {
        return Err(refused("is not stored as LUKS1 stores keys".to_owned()));
    }
    if cipher != encryption || *area_key_size != key_bytes || keyslot.key_size != key_bytes {
        return Err(refused(format!(
            "is encrypted with {cipher} and the volume with {encryption}"
        )));
    }
    if keyslot.area.size != area_size(key_bytes) {
        return Err(refused(format!("has an area of {} bytes", keyslot.area.size)));
    }
    let salt = salt.as_slice().try_into();
    Ok((*iterations, salt.map_err(|_| refused("has a salt of another length".to_owned()))?))
}

fn refused(why: impl std::fmt::Display) -> Error {
    Error::request(format!("the header cannot be converted to LUKS1: {why}"))
}
