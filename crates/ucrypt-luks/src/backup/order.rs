//! The order of a restore's writes: at every instant a key of the old header or one of the backup opens
//! the volume.
//!
//! Two keyslots carry the volume over: an old one that stays until the new header is there, and one of the
//! backup that is written before. They must not lie in the same place, nor under the header of the other
//! one. If no two are like that, an old one is copied to free room first, into the keyslots area of LUKS2
//! or into the place of an inactive keyslot of LUKS1. Then:
//!
//! 1. all areas of the backup are written but for the place of the old keyslot,
//! 2. the header is exchanged: a LUKS2 header copy by copy; one of LUKS1 by the sector with its magic, in
//!    front of which its second sector holds nothing that is in use,
//! 3. the rest is written.
//!
//! Without free room, an interruption may leave no key ([`Plan::survives`]). A header of which a copy or the
//! keyslots cannot be read, or that lies beside the content of somebody else, is not changed first: the
//! restore is the way out.

use std::ops::Range;

use super::Backup;
use crate::area::material_len;
use crate::convert::{SECTOR, gap_beside};
use crate::error::{Error, Result};
use crate::header::Header;
use crate::luks1::{self, HEADER_BYTES, KEYSLOTS, State};
use crate::luks2::{self, BINARY_BYTES, Copy, Damage};
use crate::medium::{Random, ReadAt, Write, read_bytes, wipe};

/// Longest keyslot area that is copied, in bytes: that of a key of 1024 bytes.
const AREA_MAX: u64 = 4 << 20;

/// The writes of a restore.
pub(super) struct Plan {
    pub(super) writes: Vec<Write>,
    /// Whether a key opens the volume after an interruption at any of them, or the old header is damaged.
    pub(super) survives: bool,
}

/// A keyslot of the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// Its number, where two headers cannot have two keyslots of one number at the same time: LUKS1
    /// changes keyslot by keyslot.
    number: Option<usize>,
    area: Range<u64>,
}

impl Place {
    /// Those that hold the key of the volume.
    fn all_of(header: &Header) -> Vec<Self> {
        match header {
            Header::Luks1(header) => Self::of_luks1(header),
            Header::Luks2(header) => Self::of_luks2(header),
        }
    }

    fn of_luks1(header: &luks1::Header) -> Vec<Self> {
        let active = (0..KEYSLOTS).filter(|number| header.keyslots[*number].is_active());
        active.map(|number| Self::in_luks1(header, number)).collect()
    }

    /// A keyslot of LUKS1, active or not.
    fn in_luks1(header: &luks1::Header, number: usize) -> Self {
        let keyslot = &header.keyslots[number];
        let begin = keyslot.material_start();
        let area = begin..begin + material_len(header.key_bytes, keyslot.stripes);
        Self { number: Some(number), area }
    }

    fn of_luks2(header: &luks2::Header) -> Vec<Self> {
        let of_volume = header.metadata.keyslots.iter();
        let of_volume = of_volume.filter(|(number, _)| !header.metadata.is_unbound(**number));
        let areas = of_volume.map(|(_, keyslot)| &keyslot.area);
        let areas = areas.map(|area| area.offset..area.offset + area.size);
        areas.map(|area| Self { number: None, area }).collect()
    }

    /// Whether there is room for only one of two keyslots.
    fn excludes(&self, other: &Self) -> bool {
        let overlap = self.area.start < other.area.end && other.area.start < self.area.end;
        overlap || self.number.is_some() && self.number == other.number
    }

    fn is_beside(&self, others: &[Self]) -> bool {
        !others.iter().any(|other| self.excludes(other))
    }
}

/// The keyslots that open the volume while the header is exchanged.
struct Order {
    /// Of the old header: whole until the new header is there.
    kept: Vec<Place>,
    /// Of the backup: whole before the new header is there.
    ready: Vec<Place>,
}

impl Order {
    const NONE: Self = Self { kept: Vec::new(), ready: Vec::new() };

    /// `None` if each keyslot of either header excludes each of the other.
    fn of(old: &[Place], new: &[Place]) -> Option<Self> {
        let beside = |places: &[Place], others: &[Place]| -> Vec<Place> {
            places.iter().filter(|place| place.is_beside(others)).cloned().collect()
        };
        let (ready, kept) = (beside(new, old), beside(old, new));
        if !ready.is_empty() {
            return Some(Self { kept: old.to_vec(), ready });
        }
        if !kept.is_empty() {
            return Some(Self { kept, ready: new.to_vec() });
        }
        old.iter().find_map(|kept| Self::around(kept, new))
    }

    /// With this old keyslot, and the first new one that it does not exclude.
    fn around(kept: &Place, new: &[Place]) -> Option<Self> {
        let ready = new.iter().find(|ready| !ready.excludes(kept))?;
        Some(Self { kept: vec![kept.clone()], ready: vec![ready.clone()] })
    }

    /// The writes of a range of the backup, but for the places of kept keyslots; and of those.
    fn split(&self, backup: &Backup<'_>, range: Range<u64>) -> [Vec<Write>; 2] {
        let mut kept: Vec<_> = self.kept.iter().map(|place| place.area.clone()).collect();
        kept.sort_by_key(|area| area.start);
        let (mut first, mut last, mut at) = (Vec::new(), Vec::new(), range.start);
        for area in kept {
            let (from, to) = (area.start.clamp(at, range.end), area.end.clamp(at, range.end));
            first.extend(backup.put(at..from));
            last.extend(backup.put(from..to));
            at = to;
        }
        first.extend(backup.put(at..range.end));
        [first, last]
    }
}

/// The writes that restore `backup` over `old`, a header of `image` of which a copy may be damaged.
pub(super) fn plan(
    image: &dyn ReadAt,
    backup: &Backup<'_>,
    old: Option<(&Header, Option<&Damage>)>,
    random: Random<'_>,
) -> Result<Plan> {
    let has_key = |header: &Header| !header.volume_keyslots().is_empty();
    let carried = match (old, backup.header) {
        (Some((old, _)), new) if !has_key(old) || !has_key(new) => Ok(None),
        (Some((Header::Luks1(old), _)), Header::Luks1(new)) => {
            luks1_over_luks1(image, backup, new, old)
        }
        (Some((Header::Luks1(old), _)), Header::Luks2(new)) => {
            luks2_over_luks1(image, backup, new, old, random)
        }
        (Some((Header::Luks2(old), damage)), Header::Luks1(new)) => {
            luks1_over_luks2(image, backup, new, (old, damage), random)
        }
        (Some((Header::Luks2(old), damage)), Header::Luks2(new)) => {
            luks2_over_luks2(image, backup, new, (old, damage), random)
        }
        (None, _) => Ok(None),
    };
    let carried = match carried {
        Err(Error::Read { .. }) => None,
        carried => carried?,
    };
    let is_unreadable = |old: &Header| matches!(old.backup(image), Err(Error::Read { .. }));
    let is_damaged = carried.is_none()
        && old.is_some_and(|(old, damage)| damage.is_some() || is_unreadable(old));
    let is_nothing_lost = old.is_none_or(|(old, _)| !has_key(old)) || !has_key(backup.header);
    Ok(match carried {
        Some(writes) => Plan { writes, survives: true },
        None => Plan { writes: at_once(backup, old), survives: is_nothing_lost || is_damaged },
    })
}

/// The writes where no key has to open the volume meanwhile, or none can.
fn at_once(backup: &Backup<'_>, old: Option<(&Header, Option<&Damage>)>) -> Vec<Write> {
    match backup.header {
        Header::Luks1(new) => {
            let areas = backup.put(areas_begin(backup, new)..backup.header.backup_len());
            // No keyslot becomes active while the header is half old and half new.
            let inactive = header_write(&with_active(new, &[]));
            areas.into_iter().chain([inactive]).chain(whole_header(backup, new)).collect()
        }
        Header::Luks2(new) => {
            let damaged = old.and_then(|(_, damage)| damage).map(|damage| damage.copy);
            exchange_luks2(backup, new, damaged, &Order::NONE)
        }
    }
}

fn luks2_over_luks2(
    image: &dyn ReadAt,
    backup: &Backup<'_>,
    new: &luks2::Header,
    (old, damage): (&luks2::Header, Option<&Damage>),
    random: Random<'_>,
) -> Result<Option<Vec<Write>>> {
    let places = Place::all_of(backup.header);
    if let Some(order) = Order::of(&Place::of_luks2(old), &places) {
        let damaged = damage.map(|damage| damage.copy);
        return Ok(Some(exchange_luks2(backup, new, damaged, &order)));
    }
    let Some((moved, mut writes)) = shelter_in_luks2(image, (old, damage), &places, random)? else {
        return Ok(None);
    };
    let Some(order) = Order::of(&Place::of_luks2(&moved), &places) else { return Ok(None) };
    writes.extend(exchange_luks2(backup, new, None, &order));
    Ok(Some(writes))
}

/// The writes of a LUKS2 backup over a header with copies of the same size.
fn exchange_luks2(
    backup: &Backup<'_>,
    new: &luks2::Header,
    damaged: Option<Copy>,
    order: &Order,
) -> Vec<Write> {
    let size = new.binary.header_size;
    let [first, last] = order.split(backup, 2 * size..backup.header.backup_len());
    // The copy that cannot be used is written first: the other one is whole meanwhile.
    let copies = match damaged {
        Some(Copy::Primary) => [0..size, size..2 * size],
        _ => [size..2 * size, 0..size],
    };
    let copies = copies.into_iter().filter_map(|copy| backup.put(copy));
    first.into_iter().chain(copies).chain(last).collect()
}

/// An old header with a keyslot in free room beside all of `new`, or beside one of them, and the writes
/// that move it there. `None` if there is no room, or the header must not be changed.
fn shelter_in_luks2(
    image: &dyn ReadAt,
    (old, damage): (&luks2::Header, Option<&Damage>),
    new: &[Place],
    random: Random<'_>,
) -> Result<Option<(luks2::Header, Vec<Write>)>> {
    let Ok(mut change) = old.change(damage) else { return Ok(None) };
    let begin = 2 * old.binary.header_size;
    let room = begin..begin + old.metadata.config.keyslots_size;
    let own = old.metadata.keyslots.values().map(|keyslot| &keyslot.area);
    let own: Vec<Range<u64>> = own.map(|area| area.offset..area.offset + area.size).collect();
    let all: Vec<Range<u64>> = new.iter().map(|place| place.area.clone()).collect();
    let ones = all.iter().map(|one| vec![one.clone()]);
    let mut unreadable = None;
    for beside in std::iter::once(all.clone()).chain(ones) {
        let taken: Vec<Range<u64>> = own.iter().cloned().chain(beside).collect();
        for number in Header::Luks2(Box::new(old.clone())).volume_keyslots() {
            let area = &old.metadata.keyslots[&number].area;
            let Some(to) = gap_beside(room.clone(), area.size, &taken) else { continue };
            match read_bytes(image, "a keyslot area", area.offset, area.size, AREA_MAX) {
                Ok(material) => {
                    change.move_area(number, to, &material, random)?;
                    return change.finish(random).map(Some);
                }
                Err(error) => unreadable = Some(error),
            }
        }
    }
    unreadable.map_or(Ok(None), Err)
}

fn luks1_over_luks1(
    image: &dyn ReadAt,
    backup: &Backup<'_>,
    new: &luks1::Header,
    old: &luks1::Header,
) -> Result<Option<Vec<Write>>> {
    let places = Place::all_of(backup.header);
    if is_same_volume(old, new) {
        if let Some(order) = Order::of(&Place::of_luks1(old), &places) {
            return Ok(Some(exchange_same_luks1(backup, new, old, &order)));
        }
        // Beside the copy of an old keyslot there is one of the backup.
        let fits = |to: &Place| Order::around(to, &places).is_some();
        let Some((old, mut writes)) = shelter_in_luks1(image, old, fits)? else { return Ok(None) };
        let Some(order) = Order::of(&Place::of_luks1(&old), &places) else { return Ok(None) };
        writes.extend(exchange_same_luks1(backup, new, &old, &order));
        return Ok(Some(writes));
    }
    if !has_same_rest(old, new) {
        return Ok(None);
    }
    // One sector holds them with hash, cipher and digest.
    let in_first = |place: &Place| place.number.is_some_and(is_in_first_sector);
    let ready: Vec<Place> = places.into_iter().filter(in_first).collect();
    let order_of = |old: &luks1::Header| {
        let mut kept = Place::of_luks1(old).into_iter().filter(in_first);
        kept.find_map(|kept| Order::around(&kept, &ready))
    };
    let (old, mut writes, order) = if let Some(order) = order_of(old) {
        (old.clone(), Vec::new(), order)
    } else {
        let fits = |to: &Place| in_first(to) && Order::around(to, &ready).is_some();
        let Some((old, writes)) = shelter_in_luks1(image, old, fits)? else { return Ok(None) };
        let Some(order) = order_of(&old) else { return Ok(None) };
        (old, writes, order)
    };
    let length = backup.header.backup_len();
    let [first, last] = order.split(backup, areas_begin(backup, new)..length);
    writes.push(header_write(&with_active(&old, &order.kept)));
    writes.extend(first);
    writes.extend(by_sectors(&with_active(new, &order.ready)));
    writes.extend(last);
    writes.extend(whole_header(backup, new));
    Ok(Some(writes))
}

/// The writes of a LUKS1 backup over a header of the same volume.
fn exchange_same_luks1(
    backup: &Backup<'_>,
    new: &luks1::Header,
    old: &luks1::Header,
    order: &Order,
) -> Vec<Write> {
    let areas = areas_begin(backup, new)..backup.header.backup_len();
    let [first, last] = order.split(backup, areas);
    // No keyslot becomes active while the header is half old and half new.
    let inactive = header_write(&with_active(new, &order.ready));
    let ends = std::iter::once(inactive).chain(whole_header(backup, new));
    let between = headers_between(old, new, order);
    first.into_iter().chain(between).chain(last).chain(ends).collect()
}

/// An old header with a copy of a keyslot in the place of an inactive one that `fits`, and the writes that
/// put it there. `None` if there is none.
fn shelter_in_luks1(
    image: &dyn ReadAt,
    old: &luks1::Header,
    fits: impl Fn(&Place) -> bool,
) -> Result<Option<(luks1::Header, Vec<Write>)>> {
    let active = (0..KEYSLOTS).find(|number| old.keyslots[*number].is_active());
    let free = (0..KEYSLOTS).filter(|number| old.keyslots[*number].is_free());
    let to = free.map(|number| Place::in_luks1(old, number)).find(fits);
    let (Some(from), Some(to)) = (active, to) else { return Ok(None) };
    let Some(number) = to.number else { return Ok(None) };
    let (source, len) = (&old.keyslots[from], to.area.end - to.area.start);
    let material = read_bytes(image, "a keyslot area", source.material_start(), len, AREA_MAX)?;
    let mut header = old.clone();
    let place = &mut header.keyslots[number];
    (place.salt, place.iterations) = (source.salt, source.iterations);
    let mut writes = vec![Write { offset: to.area.start, bytes: material }, header_write(&header)];
    header.keyslots[number].state = State::Active;
    writes.push(header_write(&header));
    Ok(Some((header, writes)))
}

fn luks2_over_luks1(
    image: &dyn ReadAt,
    backup: &Backup<'_>,
    new: &luks2::Header,
    old: &luks1::Header,
    random: Random<'_>,
) -> Result<Option<Vec<Write>>> {
    let size = new.binary.header_size;
    let places = Place::all_of(backup.header);
    let order_of = |place: &Place| {
        let is_behind = place.area.start >= 2 * size;
        is_behind.then(|| Order::around(place, &places)).flatten()
    };
    let mut writes = Vec::new();
    let mut own = Place::of_luks1(old);
    if own.iter().find_map(order_of).is_none() {
        let sheltered = shelter_in_luks1(image, old, |to| order_of(to).is_some())?;
        let Some((old, more)) = sheltered else { return Ok(None) };
        (own, writes) = (Place::of_luks1(&old), more);
    }
    let Some(order) = own.iter().find_map(order_of) else { return Ok(None) };
    let [first, last] = order.split(backup, 2 * size..backup.header.backup_len());
    writes.extend(first);
    // The old header is valid until its first sector is gone. Without the rest of the first copy, the
    // second one is valid.
    let (sector, binary) = (SECTOR as u64, BINARY_BYTES as u64);
    let parts = [binary..size, size..2 * size, 0..sector, sector..binary];
    writes.extend(parts.into_iter().filter_map(|part| backup.put(part)));
    writes.extend(last);
    writes.extend(forget_behind(backup.header, &own, random)?);
    Ok(Some(writes))
}

fn luks1_over_luks2(
    image: &dyn ReadAt,
    backup: &Backup<'_>,
    new: &luks1::Header,
    (old, damage): (&luks2::Header, Option<&Damage>),
    random: Random<'_>,
) -> Result<Option<Vec<Write>>> {
    let copies_end = 2 * old.binary.header_size;
    // Each active keyslot in its own place, or in that of an inactive one, behind the old header.
    let mut stages = Vec::new();
    for number in (0..KEYSLOTS).filter(|number| new.keyslots[*number].is_active()) {
        // One write changes the places of both, or none.
        let others = (0..KEYSLOTS).filter(|other| {
            new.keyslots[*other].is_free()
                && is_in_first_sector(*other)
                && is_in_first_sector(number)
        });
        for at in std::iter::once(number).chain(others) {
            let area = Place::in_luks1(new, at).area;
            if area.start >= copies_end {
                stages.push((number, at, Place { number: None, area }));
            }
        }
    }
    let places: Vec<Place> = stages.iter().map(|(.., place)| place.clone()).collect();
    let around = |old: &luks2::Header| {
        Place::of_luks2(old).iter().find_map(|kept| Order::around(kept, &places))
    };
    let (mut writes, mut present) = (Vec::new(), Place::of_luks2(old));
    let order = match around(old) {
        // Between the two headers, the second copy alone is valid.
        Some(order) if damage.is_none() => order,
        Some(order) => {
            let Ok(change) = old.change(damage) else { return Ok(None) };
            writes = change.finish(random)?.1;
            order
        }
        None => {
            let sheltered = shelter_in_luks2(image, (old, damage), &places, random)?;
            let Some((old, more)) = sheltered else { return Ok(None) };
            let Some(order) = around(&old) else { return Ok(None) };
            (present, writes) = (Place::of_luks2(&old), more);
            order
        }
    };
    let stage = stages.iter().find(|(.., place)| order.ready.contains(place));
    let Some((number, at, place)) = stage else { return Ok(None) };
    let own = Place::in_luks1(new, *number);
    let mut staged = with_active(new, std::slice::from_ref(&own));
    let offsets = [*at, *number].map(|number| new.keyslots[number].material_offset);
    staged.keyslots[*number].material_offset = offsets[0];
    staged.keyslots[*at].material_offset = offsets[1];
    if luks1::Header::parse(&staged.to_bytes()).is_err() {
        return Ok(None);
    }
    writes
        .extend(backup.put(own.area.clone()).map(|own| Write { offset: place.area.start, ..own }));
    writes.extend(by_sectors(&staged));
    // If it was written to its own place, nothing has to be kept.
    let kept = if at == number { Vec::new() } else { vec![place.clone()] };
    let rest = Order { kept, ready: Vec::new() };
    let [first, last] = rest.split(backup, areas_begin(backup, new)..backup.header.backup_len());
    writes.extend(first);
    writes.extend(whole_header(backup, new));
    writes.extend(last);
    writes.extend(forget_behind(backup.header, &present, random)?);
    Ok(Some(writes))
}

/// The writes that wipe what lies behind the new header of the old keyslots: no later action on it would.
fn forget_behind(new: &Header, old: &[Place], random: Random<'_>) -> Result<Vec<Write>> {
    let end = new.backup_len();
    let behind = old.iter().map(|place| place.area.start.max(end)..place.area.end);
    let behind = behind.filter(|area| area.start < area.end);
    behind.map(|area| wipe(area.start, area.end - area.start, random)).collect()
}

/// Whether all of a LUKS1 keyslot lies in the first sector of the header; of the others, at least the
/// offset is in the second one.
fn is_in_first_sector(number: usize) -> bool {
    number < 6
}

/// Where the first keyslot area of a LUKS1 backup begins.
fn areas_begin(backup: &Backup<'_>, new: &luks1::Header) -> u64 {
    let length = backup.header.backup_len();
    let begins = new.keyslots.iter().map(luks1::Keyslot::material_start);
    begins.min().unwrap_or(length).min(length)
}

/// The whole header of a LUKS1 backup.
fn whole_header(backup: &Backup<'_>, new: &luks1::Header) -> Option<Write> {
    backup.put(0..areas_begin(backup, new).min(HEADER_BYTES as u64))
}

/// Another LUKS1 header, its first sector last.
fn by_sectors(header: &luks1::Header) -> [Write; 2] {
    let bytes = header.to_bytes();
    let (first, rest) = bytes.split_at(SECTOR);
    [
        Write { offset: SECTOR as u64, bytes: rest.to_vec() },
        Write { offset: 0, bytes: first.to_vec() },
    ]
}

/// Whether what two headers have in their second sectors gives the same places, and whether their data
/// and the lengths of their areas are the same: the first sector of one fits the second one of the other.
fn has_same_rest(one: &luks1::Header, other: &luks1::Header) -> bool {
    let rest = |header: &luks1::Header| {
        let second = (0..KEYSLOTS).filter(|number| !is_in_first_sector(*number));
        let second: Vec<u32> = second.map(|it| header.keyslots[it].material_offset).collect();
        (second, header.key_bytes, header.payload_offset)
    };
    rest(one) == rest(other)
}

/// Whether the keyslots of two headers lie in the same places, and their data.
fn has_same_places(one: &luks1::Header, other: &luks1::Header) -> bool {
    let places = |header: &luks1::Header| {
        let offsets = header.keyslots.map(|keyslot| (keyslot.material_offset, keyslot.stripes));
        (offsets, header.key_bytes, header.payload_offset)
    };
    places(one) == places(other)
}

/// Whether two headers differ only in their UUIDs and in the keys that their keyslots hold.
fn is_same_volume(old: &luks1::Header, new: &luks1::Header) -> bool {
    let with_news = luks1::Header { uuid: new.uuid.clone(), keyslots: new.keyslots, ..old.clone() };
    with_news == *new && has_same_places(old, new)
}

/// The header with no active keyslots but these.
fn with_active(header: &luks1::Header, active: &[Place]) -> luks1::Header {
    let mut header = header.clone();
    for number in 0..KEYSLOTS {
        if !active.iter().any(|place| place.number == Some(number)) {
            header.keyslots[number].state = State::Inactive;
        }
    }
    header
}

/// The headers from the old one to one in which only the ready keyslots are active. Each differs from
/// the one before in the states of keyslots or in inactive ones alone: what is half written opens the
/// volume as well.
fn headers_between(old: &luks1::Header, new: &luks1::Header, order: &Order) -> Vec<Write> {
    if order.ready.is_empty() {
        return Vec::new();
    }
    let numbers =
        |places: &[Place]| places.iter().filter_map(|place| place.number).collect::<Vec<_>>();
    let (kept, ready) = (numbers(&order.kept), numbers(&order.ready));
    let mut header = with_active(old, &order.kept);
    let mut headers = vec![old.clone(), header.clone()];
    for &number in &ready {
        header.keyslots[number] = luks1::Keyslot { state: State::Inactive, ..new.keyslots[number] };
    }
    headers.push(header.clone());
    for &number in &ready {
        header.keyslots[number].state = State::Active;
    }
    headers.push(header.clone());
    for &number in &kept {
        header.keyslots[number].state = State::Inactive;
    }
    headers.push(header);
    headers.dedup();
    headers.iter().skip(1).map(header_write).collect()
}

fn header_write(header: &luks1::Header) -> Write {
    Write { offset: 0, bytes: header.to_bytes() }
}
