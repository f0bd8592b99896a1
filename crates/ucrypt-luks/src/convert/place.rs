//! Places of keyslot areas on the medium.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::ops::Range;

use crate::luks2::AREA_ALIGNMENT;

/// A range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) start: u64,
    pub(super) len: u64,
}

impl Place {
    pub(super) fn end(self) -> u64 {
        self.start.saturating_add(self.len)
    }

    pub(super) fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    pub(super) fn overlaps_any(self, others: &[Self]) -> bool {
        others.iter().any(|other| self.overlaps(*other))
    }

    /// The parts in front of `other` and behind it.
    pub(super) fn without(self, other: Self) -> impl Iterator<Item = Self> {
        let before = self.start..self.end().min(other.start);
        let behind = self.start.max(other.end())..self.end();
        let parts =
            if self.overlaps(other) { [before, behind] } else { [self.start..self.end(), 0..0] };
        parts
            .into_iter()
            .filter(|part| part.start < part.end)
            .map(|part| Self { start: part.start, len: part.end - part.start })
    }
}

/// The first aligned place of `len` bytes inside `room` that overlaps none of `taken`.
pub(super) fn gap(room: Range<u64>, len: u64, taken: &[Place]) -> Option<Place> {
    let ends = taken.iter().map(|place| place.end().next_multiple_of(AREA_ALIGNMENT));
    let mut starts: Vec<u64> = ends.chain([room.start]).collect();
    starts.sort_unstable();
    let places = starts.into_iter().map(|start| Place { start, len });
    let mut places = places.filter(|place| place.start >= room.start && place.end() <= room.end);
    places.find(|place| !place.overlaps_any(taken))
}

/// Most arrangements that [`moves`] looks at. Where there is room, it needs a few hundred.
const ARRANGEMENTS_MAX: usize = 20_000;

/// An arrangement of areas, with the number of the one before it and the move between them.
type Arrangement = (Vec<Place>, usize, Option<(usize, Place)>);

/// Moves that bring `areas` to their `targets`, each into a place inside `room` that is free, also
/// of the area itself. `None` if none are found.
///
/// The search goes on with the arrangement that has cost the fewest moves, areas that are not at
/// their targets counted twice.
pub(super) fn moves(
    areas: Vec<Place>,
    targets: &[Place],
    room: &Range<u64>,
) -> Option<Vec<(usize, Place)>> {
    let pending = |areas: &[Place]| areas.iter().zip(targets).filter(|(a, b)| a != b).count();
    let mut found: Vec<Arrangement> = vec![(areas, 0, None)];
    let mut seen: HashSet<Vec<u64>> = HashSet::new();
    let mut next = BinaryHeap::from([Reverse((0, 0, 0))]);
    while let Some(Reverse((_, at, made))) = next.pop() {
        let areas = found[at].0.clone();
        if pending(&areas) == 0 {
            let mut path = Vec::new();
            let mut at = at;
            while let Some(step) = found[at].2 {
                path.push(step);
                at = found[at].1;
            }
            path.reverse();
            return Some(path);
        }
        for number in (0..areas.len()).filter(|number| areas[*number] != targets[*number]) {
            for place in free_places(&areas, areas[number].len, targets[number], room) {
                let mut moved = areas.clone();
                moved[number] = place;
                if found.len() < ARRANGEMENTS_MAX
                    && seen.insert(moved.iter().map(|place| place.start).collect())
                {
                    let cost = made + 1 + 2 * pending(&moved);
                    next.push(Reverse((cost, found.len(), made + 1)));
                    found.push((moved, at, Some((number, place))));
                }
            }
        }
    }
    None
}

/// Free places that touch an area, the target or a border of the room.
fn free_places(areas: &[Place], len: u64, target: Place, room: &Range<u64>) -> Vec<Place> {
    let others = areas.iter().chain([&target]);
    let behind = others.clone().map(|place| place.end().next_multiple_of(AREA_ALIGNMENT));
    let before = others.map(|place| place.start).chain([room.end]);
    let before = before.filter_map(|end| end.checked_sub(len));
    let before = before.map(|start| start - start % AREA_ALIGNMENT);
    let mut starts: Vec<u64> = behind.chain(before).chain([target.start, room.start]).collect();
    starts.sort_unstable();
    starts.dedup();
    let places = starts.into_iter().map(|start| Place { start, len });
    places
        .filter(|place| place.start >= room.start && place.end() <= room.end)
        .filter(|place| !place.overlaps_any(areas))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(start: u64, len: u64) -> Place {
        Place { start, len }
    }

    #[test]
    fn a_gap_is_the_first_that_is_large_enough() {
        let taken = [place(4096, 4096), place(12288, 8192)];
        assert_eq!(gap(0..65536, 4096, &taken), Some(place(0, 4096)));
        assert_eq!(gap(4096..65536, 4096, &taken), Some(place(8192, 4096)));
        assert_eq!(gap(0..65536, 8192, &taken), Some(place(20480, 8192)));
        assert_eq!(gap(0..24576, 8192, &taken), None);
        assert_eq!(gap(0..8192, 8192, &[]), Some(place(0, 8192)));
    }

    #[test]
    fn areas_reach_their_targets_through_free_places_only() {
        const LEN: u64 = 16 * 4096;
        let row = |start: u64, numbers: &[u64]| {
            numbers.iter().map(|n| place(start + n * LEN, LEN)).collect::<Vec<_>>()
        };
        let room = 0..8 * LEN + 7 * 4096;
        for numbers in [&[0][..], &[7], &[0, 1, 2, 3, 4, 5], &[0, 1, 2, 3, 6, 7], &[1, 2, 4, 5, 7]]
        {
            for (from, to) in [(0, 7 * 4096), (7 * 4096, 0)] {
                let (mut areas, targets) = (row(from, numbers), row(to, numbers));
                let path = moves(areas.clone(), &targets, &room);
                for (number, to) in path.unwrap_or_else(|| panic!("{numbers:?} from {from}")) {
                    assert!(!to.overlaps_any(&areas) && to.end() <= room.end, "{numbers:?}");
                    areas[number] = to;
                }
                assert_eq!(areas, targets);
            }
        }
        // Exchanged places.
        let (areas, mut targets) = (row(0, &[0, 1]), row(0, &[0, 1]));
        targets.reverse();
        assert_eq!(moves(areas.clone(), &targets, &(0..3 * LEN)).map(|path| path.len()), Some(3));
        assert_eq!(moves(areas, &targets, &(0..2 * LEN)), None);
        assert_eq!(moves(Vec::new(), &[], &room), Some(Vec::new()));
    }

    #[test]
    fn what_is_left_of_a_place_lies_outside_the_other_one() {
        let left = |one: Place, other| one.without(other).collect::<Vec<_>>();
        assert_eq!(left(place(10, 10), place(15, 10)), [place(10, 5)]);
        assert_eq!(left(place(10, 10), place(5, 10)), [place(15, 5)]);
        assert_eq!(left(place(10, 10), place(12, 2)), [place(10, 2), place(14, 6)]);
        assert_eq!(left(place(10, 10), place(30, 2)), [place(10, 10)]);
        assert_eq!(left(place(10, 10), place(10, 10)), []);
    }
}
