//! The zones of a zoned device: management, reports and appends.
//!
//! The encryption of a sector depends on its number, so the offset of an append must be known
//! before it is encrypted: an append becomes a write at the write pointer. One append is in flight
//! in a zone at a time; others wait in `parked` until it has ended. A zoned device has one queue,
//! and only that queue's thread has this state.
//!
//! The last append tells where a write pointer is; if it is unknown, the device is asked. It
//! becomes unknown when anything else may have moved it. An append that does not fit into the rest
//! of its zone is refused here: it would go into the next zone.
//!
//! Whenever an append ends, even by a refusal, the next one that is parked for its zone starts: see
//! [`Zones::next`].

use rustix::io::Errno;
use ucrypt_engine::{VolumeZones, Zone, ZoneAction, ZoneChange};

use super::abi::{Descriptor, ZONE_LEN, zone_to_bytes};

/// Most zones to ask the device for at once.
const BATCH: usize = 32;

/// The state of all zones. Positions are in bytes of the volume.
pub(super) struct Zones {
    device: VolumeZones,
    states: Vec<State>,
    /// By tag: the offset of its append in flight.
    appends: Vec<Option<u64>>,
    /// Tags that wait for an append to end, in order of arrival, and their zones.
    parked: Vec<(u16, usize)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    room: Option<Room>,
    is_appended: bool,
    /// The write pointer was moved while an append was in flight.
    is_moved: bool,
}

/// Where the next write to a zone goes, and where the zone's writable part ends.
#[derive(Debug, Clone, Copy)]
struct Room {
    write_pointer: u64,
    end: u64,
}

impl State {
    fn forget(&mut self) {
        (self.room, self.is_moved) = (None, self.is_appended);
    }
}

impl Zones {
    /// For a queue of this depth.
    pub(super) fn new(device: VolumeZones, depth: u16) -> Self {
        let count = usize::try_from(device.count()).unwrap_or(0);
        let depth = usize::from(depth);
        Self {
            device,
            states: vec![State::default(); count],
            appends: vec![None; depth],
            parked: Vec::with_capacity(depth),
        }
    }

    /// Where to append `len` bytes to the zone that holds the byte `start`; `None` if the tag was
    /// parked because another append is in flight there.
    pub(super) fn place(&mut self, tag: u16, start: u64, len: u64) -> Result<Option<u64>, Errno> {
        let zone = self.index(start)?;
        if self.states[zone].is_appended {
            self.parked.push((tag, zone));
            return Ok(None);
        }
        let room = match self.states[zone].room {
            Some(room) => room,
            None => self.ask(start)?,
        };
        self.states[zone].room = Some(room);
        let fits = room.write_pointer.checked_add(len).is_some_and(|end| end <= room.end);
        if fits { Ok(Some(room.write_pointer)) } else { Err(Errno::NOSPC) }
    }

    /// Asks the device for a zone's state.
    fn ask(&self, start: u64) -> Result<Room, Errno> {
        let mut found = [Zone::default()];
        if self.device.report(start, &mut found)? == 0 {
            return Err(Errno::IO);
        }
        let [zone] = found;
        if !zone.is_sequential() {
            return Err(Errno::INVAL);
        }
        let end = zone.start.saturating_add(zone.capacity.min(zone.len));
        let write_pointer = if zone.condition == Zone::FULL { end } else { zone.write_pointer };
        Ok(Room { write_pointer, end })
    }

    /// Notes that the tag's append is in flight, to the `offset` that [`Zones::place`] returned.
    pub(super) fn appending(&mut self, tag: u16, offset: u64) {
        if let (Ok(zone), Some(append)) =
            (self.index(offset), self.appends.get_mut(usize::from(tag)))
        {
            *append = Some(offset);
            self.states[zone].is_appended = true;
        }
    }

    /// Notes that a write or an append of `len` bytes has ended; a write was at byte `start`.
    /// Returns the offset of an append: then another one may be [next](Zones::next).
    pub(super) fn wrote(&mut self, tag: u16, start: u64, len: u64, is_ok: bool) -> Option<u64> {
        let append = self.appends.get_mut(usize::from(tag)).and_then(Option::take);
        let zone = self.index(append.unwrap_or(start)).ok()?;
        let state = &mut self.states[zone];
        let Some(offset) = append else {
            state.forget();
            return None;
        };
        state.is_appended = false;
        let knows = is_ok && !std::mem::take(&mut state.is_moved);
        let moved = |room: Room| Room { write_pointer: offset + len, ..room };
        state.room = state.room.filter(|_| knows).map(moved);
        Some(offset)
    }

    /// Takes the tag that may append next out of `parked`, after an append to the zone that holds
    /// the byte `start` has ended or was refused.
    pub(super) fn next(&mut self, start: u64) -> Option<u16> {
        let zone = self.index(start).ok()?;
        if self.states[zone].is_appended {
            return None;
        }
        let next = self.parked.iter().position(|&(_, waits_for)| waits_for == zone)?;
        Some(self.parked.remove(next).0)
    }

    /// The change that the zone operation `op` makes to the zone whose first byte is `start`.
    pub(super) fn change(op: u8, start: u64) -> Option<ZoneChange> {
        let action = match op {
            Descriptor::ZONE_OPEN => ZoneAction::Open,
            Descriptor::ZONE_CLOSE => ZoneAction::Close,
            Descriptor::ZONE_FINISH => ZoneAction::Finish,
            Descriptor::ZONE_RESET => ZoneAction::Reset,
            Descriptor::ZONE_RESET_ALL => return Some(ZoneChange::ResetAll),
            _ => return None,
        };
        Some(ZoneChange::One { action, start })
    }

    /// Notes that the zone operation `op` has ended.
    pub(super) fn changed(&mut self, op: u8, start: u64) {
        match Self::change(op, start) {
            Some(ZoneChange::ResetAll) => self.states.iter_mut().for_each(State::forget),
            Some(ZoneChange::One { start, .. }) => {
                if let Ok(zone) = self.index(start) {
                    self.states[zone].forget();
                }
            }
            None => {}
        }
    }

    /// Passes `give` a report on `count` zones from byte `start` on, in the kernel's format: bytes,
    /// and their position in the report.
    pub(super) fn report(
        &self,
        start: u64,
        count: u32,
        mut give: impl FnMut(&[u8], u64) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let (mut at, mut left, mut done) = (start, count as usize, 0);
        while left > 0 {
            let mut zones = [Zone::default(); BATCH];
            let found = self.device.report(at, &mut zones[..left.min(BATCH)])?;
            if found == 0 {
                return Err(Errno::IO);
            }
            let mut bytes = [0; BATCH * ZONE_LEN];
            for (zone, bytes) in zones[..found].iter().zip(bytes.chunks_exact_mut(ZONE_LEN)) {
                bytes.copy_from_slice(&zone_to_bytes(zone));
            }
            give(&bytes[..found * ZONE_LEN], done)?;
            (at, left) = (at + found as u64 * self.device.limits().len, left - found);
            done += (found * ZONE_LEN) as u64;
        }
        Ok(())
    }

    fn index(&self, offset: u64) -> Result<usize, Errno> {
        let zone = usize::try_from(offset / self.device.limits().len).unwrap_or(usize::MAX);
        if zone < self.states.len() { Ok(zone) } else { Err(Errno::INVAL) }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use ucrypt_backend::{Backend, Extent, FileBackend, Limits, Queue};
    use ucrypt_engine::{Io, QueueConfig, Segment, Volume, VolumeOptions, ZoneKind, ZoneLimits};

    use super::*;

    const ZONE: u64 = 1 << 20;
    const COUNT: u64 = 4;
    /// Writable bytes of a zone.
    const CAPACITY: u64 = ZONE - 64 * 1024;
    const PAGE: u64 = 4096;

    /// A zoned disk. The write pointers are relative to the starts of their zones.
    struct Disk {
        inner: FileBackend,
        pointers: Mutex<[u64; COUNT as usize]>,
    }

    impl Backend for Disk {
        fn limits(&self) -> &Limits {
            self.inner.limits()
        }

        fn use_until(&self, _end: u64) {}

        fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
            self.inner.queue(depth)
        }

        fn extents(&self, offset: u64, len: u64, max: usize) -> Vec<Extent> {
            self.inner.extents(offset, len, max)
        }

        fn len_now(&self) -> io::Result<u64> {
            self.inner.len_now()
        }

        fn map(&self) -> Option<Arc<dyn ucrypt_backend::Map>> {
            None
        }

        fn zones(&self) -> Option<&dyn ucrypt_backend::Zones> {
            Some(self)
        }

        fn describe(&self) -> String {
            "zones".into()
        }
    }

    impl ucrypt_backend::Zones for Disk {
        fn limits(&self) -> ZoneLimits {
            ZoneLimits { len: ZONE, open_max: 0, active_max: 0 }
        }

        fn report(&self, offset: u64, zones: &mut [Zone]) -> Result<usize, Errno> {
            let pointers = self.pointers.lock().expect("no test has failed");
            let from = offset / ZONE;
            let mut count = 0;
            for (zone, number) in zones.iter_mut().zip(from..COUNT) {
                let (start, written) = (number * ZONE, pointers[number as usize]);
                *zone = Zone {
                    start,
                    len: ZONE,
                    capacity: CAPACITY,
                    // Means nothing in a full zone.
                    write_pointer: if written == CAPACITY { u64::MAX } else { start + written },
                    kind: ZoneKind::SequentialRequired,
                    condition: if written == CAPACITY { Zone::FULL } else { 1 },
                };
                count += 1;
            }
            Ok(count)
        }

        fn act(&self, action: ZoneAction, offset: u64, len: u64) -> Result<(), Errno> {
            assert_eq!((action, len), (ZoneAction::Reset, ZONE));
            self.pointers.lock().expect("no test has failed")[(offset / ZONE) as usize] = 0;
            Ok(())
        }
    }

    /// The zones of a disk with these pointers, and a queue of the volume on it.
    fn zones(pointers: [u64; COUNT as usize]) -> (Zones, ucrypt_engine::Queue) {
        let inner = ucrypt_backend::memory(COUNT * ZONE).expect("memory");
        let disk = Arc::new(Disk { inner, pointers: Mutex::new(pointers) });
        let segment = Segment { len: COUNT * ZONE, backend_offset: 0, cipher: None };
        let volume = Volume::new(disk, vec![segment], VolumeOptions::default()).expect("a volume");
        let volume = Arc::new(volume);
        let queue = volume.queue(QueueConfig::new(1 << 16, 1)).expect("a queue");
        (Zones::new(volume.zones().expect("whole zones").expect("zones"), 16), queue)
    }

    fn reset(zones: &mut Zones, queue: &mut ucrypt_engine::Queue, start: u64) {
        let change = Zones::change(Descriptor::ZONE_RESET, start).expect("a change");
        assert!(queue.submit(0, Io::Zones(change)).is_ok());
        queue.wait().expect("a queue that works");
        queue.next_done().expect("an answer").result.expect("reset");
        zones.changed(Descriptor::ZONE_RESET, start);
    }

    #[test]
    fn an_append_to_a_zone_that_was_just_filled_does_not_go_to_the_next() {
        let (mut zones, mut queue) = zones([CAPACITY - PAGE, 0, CAPACITY, 0]);
        let last = CAPACITY - PAGE;
        assert_eq!(zones.place(0, 0, PAGE), Ok(Some(last)));
        zones.appending(0, last);
        assert_eq!(zones.wrote(0, 0, PAGE, true), Some(last));
        assert_eq!(zones.place(1, 0, PAGE), Err(Errno::NOSPC), "it is full");
        assert_eq!(zones.place(1, 2 * ZONE, PAGE), Err(Errno::NOSPC), "the device says so");
        // Nor does an append that is longer than the rest of its zone.
        assert_eq!(zones.place(1, ZONE, CAPACITY), Ok(Some(ZONE)));
        assert_eq!(zones.place(1, ZONE, CAPACITY + 512), Err(Errno::NOSPC));
        reset(&mut zones, &mut queue, 2 * ZONE);
        assert_eq!(zones.place(1, 2 * ZONE, PAGE), Ok(Some(2 * ZONE)));
    }

    #[test]
    fn appends_behind_one_that_is_refused_are_not_forgotten() {
        let (mut zones, _queue) = zones([CAPACITY - PAGE, 0, 0, 0]);
        let at = zones.place(0, 0, PAGE).expect("room").expect("nobody is there");
        zones.appending(0, at);
        for tag in 1..4 {
            assert_eq!(zones.place(tag, 0, PAGE), Ok(None), "parked");
        }
        assert_eq!(zones.place(9, ZONE, PAGE), Ok(Some(ZONE)), "another zone is free");
        assert_eq!(zones.next(0), None, "one is under way");
        zones.wrote(0, 0, PAGE, true);
        // Each of them is refused, as the zone is full, and the next one gets its turn.
        for tag in 1..4 {
            assert_eq!(zones.next(0), Some(tag));
            assert_eq!(zones.place(tag, 0, PAGE), Err(Errno::NOSPC));
        }
        assert_eq!(zones.next(0), None);
    }

    #[test]
    fn a_zone_that_is_reset_under_an_append_is_asked_for_again() {
        let (mut zones, mut queue) = zones([PAGE, 0, 0, 0]);
        zones.appending(0, PAGE);
        reset(&mut zones, &mut queue, 0);
        zones.wrote(0, 0, PAGE, true);
        assert_eq!(zones.place(1, 0, PAGE), Ok(Some(0)));
        // A write that is not an append makes the pointer unknown.
        zones.wrote(2, 0, PAGE, true);
        assert_eq!(zones.place(1, 0, PAGE), Ok(Some(0)));
    }
}
