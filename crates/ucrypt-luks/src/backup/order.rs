//! The order of a restore's writes.
//!
//! The keyslots of the header that is there and those of the backup may lie in the same place; where they
//! do not, the keys of one of the two headers open the volume at every instant. Key material of the backup
//! that lies beside all keyslots of the old header is written first, then the header, then the rest. If
//! there is none, old keyslots that lie beside all of the backup's are overwritten last.

use std::ops::Range;

use super::Backup;
use crate::area::material_len;
use crate::header::Header;
use crate::luks1::{self, HEADER_BYTES, KEYSLOTS, State};
use crate::luks2::{self, Copy, Damage};
use crate::medium::Write;

/// A keyslot of the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// Its number, where two headers cannot have two keyslots of one number at the same time: LUKS1
    /// changes keyslot by keyslot.
    number: Option<usize>,
    area: Range<u64>,
}

impl Place {
    fn all_of(header: &Header) -> Vec<Self> {
        match header {
            Header::Luks1(header) => {
                let active = (0..KEYSLOTS).filter(|number| header.keyslots[*number].is_active());
                let place = |number: usize| {
                    let keyslot = &header.keyslots[number];
                    let begin = keyslot.material_start();
                    let area = begin..begin + material_len(header.key_bytes, keyslot.stripes);
                    Self { number: Some(number), area }
                };
                active.map(place).collect()
            }
            Header::Luks2(luks2) => {
                let numbers = header.volume_keyslots().into_iter();
                let found = numbers.filter_map(|number| luks2.metadata.keyslots.get(&number));
                let areas = found.map(|keyslot| &keyslot.area);
                let areas = areas.map(|area| area.offset..area.offset + area.size);
                areas.map(|area| Self { number: None, area }).collect()
            }
        }
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

    fn of(old: &Header, new: &Header) -> Self {
        let (old, new) = (Place::all_of(old), Place::all_of(new));
        let beside = |places: &[Place], others: &[Place]| -> Vec<Place> {
            places.iter().filter(|place| place.is_beside(others)).cloned().collect()
        };
        let ready = beside(&new, &old);
        if !ready.is_empty() {
            return Self { kept: old, ready };
        }
        match beside(&old, &new) {
            kept if kept.is_empty() => Self::NONE,
            kept => Self { kept, ready: new },
        }
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

/// The writes that restore `backup` over `old`, a header of which a copy may be damaged.
pub(super) fn writes(backup: &Backup<'_>, old: Option<(&Header, Option<&Damage>)>) -> Vec<Write> {
    match backup.header {
        Header::Luks1(new) => writes_of_luks1(backup, new, old.map(|(old, _)| old)),
        Header::Luks2(new) => writes_of_luks2(backup, new, old),
    }
}

fn writes_of_luks2(
    backup: &Backup<'_>,
    new: &luks2::Header,
    old: Option<(&Header, Option<&Damage>)>,
) -> Vec<Write> {
    let order = match old {
        Some((old @ Header::Luks2(_), _)) => Order::of(old, backup.header),
        _ => Order::NONE,
    };
    let size = new.binary.header_size;
    let [first, last] = order.split(backup, 2 * size..backup.header.backup_len());
    // The copy that cannot be used is written first: the other one is whole meanwhile.
    let damaged = old.and_then(|(_, damage)| damage).map(|damage| damage.copy);
    let copies = match damaged {
        Some(Copy::Primary) => [0..size, size..2 * size],
        _ => [size..2 * size, 0..size],
    };
    let copies = copies.into_iter().filter_map(|copy| backup.put(copy));
    first.into_iter().chain(copies).chain(last).collect()
}

fn writes_of_luks1(backup: &Backup<'_>, new: &luks1::Header, old: Option<&Header>) -> Vec<Write> {
    let (order, between) = match old {
        Some(old_header @ Header::Luks1(old)) if is_same_volume(old, new) => {
            let order = Order::of(old_header, backup.header);
            let between = headers_between(old, new, &order);
            (order, between)
        }
        _ => (Order::NONE, Vec::new()),
    };
    let length = backup.header.backup_len();
    let begins = new.keyslots.iter().map(luks1::Keyslot::material_start);
    let areas = begins.min().unwrap_or(length).min(length);
    let [first, last] = order.split(backup, areas..length);
    // No keyslot becomes active while the header is half old and half new.
    let inactive = header_write(&with_active(new, &order.ready));
    let whole = backup.put(0..areas.min(HEADER_BYTES as u64));
    let ends = std::iter::once(inactive).chain(whole);
    first.into_iter().chain(between).chain(last).chain(ends).collect()
}

/// Whether two headers differ only in their UUIDs and in the keys that their keyslots hold.
fn is_same_volume(old: &luks1::Header, new: &luks1::Header) -> bool {
    let places = |header: &luks1::Header| {
        header.keyslots.map(|keyslot| (keyslot.material_offset, keyslot.stripes))
    };
    let with_news = luks1::Header { uuid: new.uuid.clone(), keyslots: new.keyslots, ..old.clone() };
    with_news == *new && places(old) == places(new)
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
