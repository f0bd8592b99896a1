//! What the disk holds: a version for each sector, in a cache that forgets and on a medium that
//! does not.

use std::collections::BTreeMap;

use super::judge::Version;
use super::random::Random;

/// A sector's durable version, and the later ones that a power failure may forget.
#[derive(Debug, Default)]
struct Sector {
    durable: Version,
    /// With the number of the operation that wrote it, ascending.
    cached: Vec<(u64, Version)>,
}

/// Part of an operation: sectors and the version that is written to them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) sector: u64,
    pub(crate) sectors: u64,
    pub(crate) version: Version,
}

/// The content of all sectors that were ever written.
#[derive(Debug, Default)]
pub(crate) struct Content {
    sectors: BTreeMap<u64, Sector>,
    /// Operations that were carried out.
    done: u64,
}

impl Content {
    /// What a flush that is submitted now has to make durable: everything before the mark.
    pub(crate) fn mark(&self) -> u64 {
        self.done
    }

    pub(crate) fn read(&self, sector: u64) -> Version {
        self.sectors
            .get(&sector)
            .map_or(0, |state| state.cached.last().map_or(state.durable, |&(_, version)| version))
    }

    /// Carries a write out, or any part of it if it is `torn`.
    pub(crate) fn write(&mut self, pieces: &[Piece], fua: bool, torn: Option<&mut Random>) {
        self.done += 1;
        let mut random = torn;
        for piece in pieces {
            for sector in piece.sector..piece.sector + piece.sectors {
                if random.as_mut().is_some_and(|random| random.below(2) == 0) {
                    continue;
                }
                let state = self.sectors.entry(sector).or_default();
                if fua && random.is_none() {
                    state.durable = piece.version;
                    state.cached.clear();
                } else {
                    state.cached.push((self.done, piece.version));
                }
            }
        }
    }

    /// Carries out a flush that was submitted at `mark`.
    pub(crate) fn flush(&mut self, mark: u64) {
        self.done += 1;
        for state in self.sectors.values_mut() {
            let kept = state.cached.partition_point(|&(done, _)| done <= mark);
            if let Some(&(_, version)) = state.cached[..kept].last() {
                state.durable = version;
                state.cached.drain(..kept);
            }
        }
    }

    /// The power fails while `in_flight` is under way. Each sector keeps its durable version or
    /// any later one.
    pub(crate) fn crash(&mut self, in_flight: &[Piece], random: &mut Random) {
        self.write(in_flight, false, Some(random));
        for state in self.sectors.values_mut() {
            let choice = random.below(state.cached.len() as u64 + 1) as usize;
            if let Some(&(_, version)) = state.cached.get(choice) {
                state.durable = version;
            }
            state.cached.clear();
        }
    }

    /// Every sector that was ever written.
    pub(crate) fn touched(&self) -> impl Iterator<Item = u64> {
        self.sectors.keys().copied()
    }

    /// Gives a sector's content another name.
    pub(crate) fn rename(&mut self, sector: u64, version: Version) {
        self.sectors.entry(sector).or_default().durable = version;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(sector: u64, version: Version) -> [Piece; 1] {
        [Piece { sector, sectors: 1, version }]
    }

    #[test]
    fn a_power_failure_forgets_only_what_was_not_flushed() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..64 {
            let mut content = Content::default();
            content.write(&piece(0, 1), false, None);
            let mark = content.mark();
            content.write(&piece(0, 2), false, None);
            content.flush(mark);
            content.write(&piece(1, 3), true, None);
            assert_eq!((content.read(0), content.read(1), content.read(2)), (2, 3, 0));
            content.crash(&piece(1, 4), &mut Random::new(seed, 0));
            seen.insert((content.read(0), content.read(1)));
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [(1, 3), (1, 4), (2, 3), (2, 4)]);
    }
}
