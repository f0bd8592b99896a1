//! Which content of a sector is a legal one.
//!
//! A write has a version and an interval: from when its client asked to when it was answered. A
//! version is illegal as soon as another write has replaced it for certain: one that began after
//! the version's own write was answered, and that was itself answered with success before the read
//! began. After a power failure the same holds for writes that are durable for certain: answered
//! with success before the client asked for a flush that succeeded, or written with FUA.

use std::collections::BTreeMap;

/// Names a write; 0 is what is there at first.
pub(crate) type Version = u64;

/// Counts the beginnings and ends of requests: a time without ties.
pub(crate) type Clock = u64;

/// Not yet.
const NEVER: Clock = Clock::MAX;

#[derive(Debug, Clone, Copy)]
struct Write {
    start: Clock,
    end: Clock,
}

/// The writes of one sector that were answered with success.
#[derive(Debug, Default)]
struct Sector {
    done: Vec<Write>,
    /// Latest start of those that are durable by themselves.
    fua_start: Clock,
}

impl Sector {
    /// Latest start of the writes that ended before `clock`.
    fn replaced_from(&self, clock: Clock) -> Clock {
        let ended = self.done.iter().filter(|write| write.end < clock);
        ended.map(|write| write.start).max().unwrap_or(0)
    }
}

/// The history of all sectors since the last power failure.
#[derive(Debug)]
pub(crate) struct Judge {
    clock: Clock,
    writes: Vec<Write>,
    sectors: BTreeMap<u64, Sector>,
    /// Every write that ended before is durable.
    flushed: Clock,
}

impl Judge {
    pub(crate) fn new() -> Self {
        let first = Write { start: 0, end: 0 };
        Self { clock: 1, writes: vec![first], sectors: BTreeMap::new(), flushed: 0 }
    }

    /// A request begins.
    pub(crate) fn begin(&mut self) -> Clock {
        self.clock += 1;
        self.clock
    }

    /// A write begins: its version.
    pub(crate) fn begin_write(&mut self) -> Version {
        let start = self.begin();
        self.writes.push(Write { start, end: NEVER });
        self.writes.len() as u64 - 1
    }

    /// A write has been answered.
    pub(crate) fn end_write(
        &mut self,
        version: Version,
        sectors: std::ops::Range<u64>,
        ok: bool,
        fua: bool,
    ) {
        self.clock += 1;
        let write = &mut self.writes[version as usize];
        write.end = self.clock;
        let write = *write;
        if !ok {
            return;
        }
        for sector in sectors {
            let sector = self.sectors.entry(sector).or_default();
            sector.done.push(write);
            if fua {
                sector.fua_start = sector.fua_start.max(write.start);
            }
        }
    }

    /// A flush that began at `begun` has succeeded.
    pub(crate) fn end_flush(&mut self, begun: Clock) {
        self.clock += 1;
        self.flushed = self.flushed.max(begun);
    }

    /// Whether a read that began at `begun` may find that version in the sector.
    pub(crate) fn may_read(&self, sector: u64, version: Version, begun: Clock) -> bool {
        let replaced = self.sectors.get(&sector).map_or(0, |state| state.replaced_from(begun));
        self.is_newer(version, replaced)
    }

    /// Whether a power failure now may leave that version in the sector.
    pub(crate) fn may_survive(&self, sector: u64, version: Version) -> bool {
        let durable = self
            .sectors
            .get(&sector)
            .map_or(0, |state| state.fua_start.max(state.replaced_from(self.flushed)));
        self.is_newer(version, durable)
    }

    fn is_newer(&self, version: Version, replaced_from: Clock) -> bool {
        self.writes.get(version as usize).is_some_and(|write| write.end >= replaced_from)
    }

    /// Everything in flight is gone: what a sector holds now is what it has to hold. Returns the
    /// versions under which the content goes on.
    pub(crate) fn restart(&mut self, sectors: impl Iterator<Item = u64>) -> Vec<(u64, Version)> {
        self.sectors.clear();
        let mut renamed = Vec::new();
        for sector in sectors {
            let version = self.begin_write();
            self.end_write(version, sector..sector + 1, true, true);
            renamed.push((sector, version));
        }
        self.flushed = self.clock;
        renamed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_may_find_what_is_being_written_and_not_what_was_replaced() {
        let mut judge = Judge::new();
        let first = judge.begin_write();
        let early = judge.begin();
        assert!(judge.may_read(7, 0, early) && judge.may_read(7, first, early));
        judge.end_write(first, 7..8, true, false);
        assert!(judge.may_read(7, 0, early), "it began before the write ended");
        let late = judge.begin();
        assert!(!judge.may_read(7, 0, late) && judge.may_read(7, first, late));
        assert!(judge.may_read(8, 0, late), "another sector");
        let failed = judge.begin_write();
        judge.end_write(failed, 7..8, false, false);
        let last = judge.begin();
        assert!(judge.may_read(7, first, last) && judge.may_read(7, failed, last));
    }

    #[test]
    fn only_what_was_flushed_or_forced_must_survive() {
        let mut judge = Judge::new();
        let write = |judge: &mut Judge, fua| {
            let version = judge.begin_write();
            judge.end_write(version, 0..1, true, fua);
            version
        };
        let first = write(&mut judge, false);
        let flush = judge.begin();
        let second = write(&mut judge, false);
        assert!(judge.may_survive(0, 0), "nothing is durable yet");
        judge.end_flush(flush);
        assert!(!judge.may_survive(0, 0));
        assert!(judge.may_survive(0, first) && judge.may_survive(0, second));
        let forced = write(&mut judge, true);
        assert!(!judge.may_survive(0, second) && judge.may_survive(0, forced));
        let renamed = judge.restart(0..1);
        assert!(!judge.may_survive(0, forced) && judge.may_survive(0, renamed[0].1));
    }
}
