//! Records the requests in flight in memory that outlives this process (the vhost-user protocol's
//! inflight area for split rings, version 1).
//!
//! The front end keeps the area while there is no server and gives it to the next one, which
//! carries out again what was taken and not answered. A request that was already carried out is
//! then done twice. This changes nothing: as long as the guest waits for a request, it cannot tell
//! a repeated one from a slow one.
//!
//! The order of the steps keeps the area right whenever the process ends: a request is marked
//! before it is carried out; at its end, its number is noted, then the ring's index moves, then the
//! mark goes. A server that finds the index ahead of the area's copy knows that the noted request
//! has ended.
//!
//! The front end may write here at any time: values are read once, and checked.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vm_memory::{Bytes, VolatileSlice};

use super::config::{QUEUES_MAX, RING_SIZE_MAX};
use super::memory::Mapped;

const VERSION: u16 = 1;
const HEADER_LEN: usize = 16;
/// Bytes of a request's entry: a mark, and a counter for the order of requests.
const ENTRY_LEN: usize = 16;
/// Alignment of a ring's part of the area, in bytes.
const ALIGN: usize = 64;

// Offsets of the fields in bytes, in a ring's part and in an entry.
const VERSION_AT: usize = 8;
const SIZE_AT: usize = 10;
const LAST_HEAD_AT: usize = 12;
const USED_AT: usize = 14;
const NEXT_AT: usize = 6;
const COUNTER_AT: usize = 8;

fn part_len(ring_size: u16) -> usize {
    (HEADER_LEN + ENTRY_LEN * usize::from(ring_size)).next_multiple_of(ALIGN)
}

/// The area of all rings.
#[derive(Clone, Debug)]
pub(super) struct Inflight {
    mapping: Arc<Mapped>,
    queues: u16,
    ring_size: u16,
}

impl Inflight {
    /// Creates an area, and the file in which it lies.
    pub(super) fn create(queues: u16, ring_size: u16) -> io::Result<(Self, File)> {
        let len = Self::check(queues, ring_size)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("ucrypt-inflight", flags)?);
        ftruncate(&file, len as u64)?;
        fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        let area = Self::open(file.try_clone()?, 0, len as u64, queues, ring_size)?;
        Ok((area, file))
    }

    /// Opens the area that the front end has kept.
    pub(super) fn open(
        file: File,
        offset: u64,
        len: u64,
        queues: u16,
        ring_size: u16,
    ) -> io::Result<Self> {
        let needed = Self::check(queues, ring_size)?;
        if len < needed as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mapping = Mapped::new(file, offset, needed as u64)?;
        Ok(Self { mapping: Arc::new(mapping), queues, ring_size })
    }

    /// The length of an area in bytes, if its bounds are within ours.
    fn check(queues: u16, ring_size: u16) -> io::Result<usize> {
        let fits = (1..=QUEUES_MAX).contains(&queues) && (1..=RING_SIZE_MAX).contains(&ring_size);
        if !fits {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(part_len(ring_size) * usize::from(queues))
    }

    /// Length of the area in bytes.
    pub(super) fn len(&self) -> u64 {
        (part_len(self.ring_size) * usize::from(self.queues)) as u64
    }

    /// The part of one ring; `None` if the area has none for it.
    pub(super) fn ring(&self, index: usize, ring_size: u16) -> Option<Track> {
        let fits = index < usize::from(self.queues) && ring_size <= self.ring_size;
        fits.then(|| Track {
            mapping: self.mapping.clone(),
            base: part_len(self.ring_size) * index,
            ring_size,
            area_size: self.ring_size,
            counter: 0,
        })
    }
}

/// The requests of one ring. Requests are named by the number of their first descriptor.
#[derive(Debug)]
pub(super) struct Track {
    mapping: Arc<Mapped>,
    base: usize,
    ring_size: u16,
    area_size: u16,
    /// Requests so far.
    counter: u64,
}

impl Track {
    /// The requests that were taken and not answered, in the order in which they were taken.
    /// `used`: the ring's index of answers.
    pub(super) fn recover(&mut self, used: u16) -> Vec<u16> {
        if self.load::<u16>(VERSION_AT) != VERSION {
            self.store(VERSION_AT, VERSION);
            self.store(SIZE_AT, self.area_size);
            self.store(USED_AT, used);
            return Vec::new();
        }
        if self.load::<u16>(USED_AT) != used {
            let head = self.load::<u16>(LAST_HEAD_AT);
            if head < self.ring_size {
                self.store(entry(head), 0u8);
            }
            self.store(USED_AT, used);
        }
        let marked = |head: &u16| self.load::<u8>(entry(*head)) == 1;
        let taken = |head: u16| (self.load::<u64>(entry(head) + COUNTER_AT), head);
        let mut found: Vec<_> = (0..self.ring_size).filter(marked).map(taken).collect();
        found.sort_unstable();
        self.counter = found.last().map_or(0, |&(counter, _)| counter.wrapping_add(1));
        found.into_iter().map(|(_, head)| head).collect()
    }

    /// Marks a request. Call before it is carried out.
    pub(super) fn taken(&mut self, head: u16) {
        self.store(entry(head) + COUNTER_AT, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.store(entry(head), 1u8);
    }

    /// Notes a request. Call before the ring's index of answers moves past it.
    pub(super) fn ends(&self, head: u16) {
        self.store(entry(head) + NEXT_AT, self.load::<u16>(LAST_HEAD_AT));
        self.store(LAST_HEAD_AT, head);
    }

    /// Removes a request's mark. Call after the index has moved to `used`.
    pub(super) fn ended(&self, head: u16, used: u16) {
        self.store(entry(head), 0u8);
        self.store(USED_AT, used);
    }

    fn load<T: vm_memory::AtomicAccess + Default>(&self, at: usize) -> T {
        self.bytes().load(self.base + at, Ordering::Acquire).unwrap_or_default()
    }

    fn store<T: vm_memory::AtomicAccess>(&self, at: usize, value: T) {
        let stored = self.bytes().store(value, self.base + at, Ordering::Release);
        debug_assert!(stored.is_ok(), "the field lies in the area");
    }

    fn bytes(&self) -> VolatileSlice<'_> {
        self.mapping.bytes()
    }
}

/// Offset of a request's entry in its ring's part.
fn entry(head: u16) -> usize {
    HEADER_LEN + ENTRY_LEN * usize::from(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: [u16; 0] = [];

    fn area() -> (Inflight, File) {
        Inflight::create(2, 8).expect("an area")
    }

    #[test]
    fn what_was_taken_and_not_answered_is_found_by_the_next_server_in_order() {
        let (area, file) = area();
        let mut track = area.ring(1, 8).expect("the second ring");
        assert_eq!(track.recover(0), NOTHING);
        for head in [5, 2, 7, 0] {
            track.taken(head);
        }
        track.ends(2);
        track.ended(2, 1);
        // The server ends after the ring's index has moved and before the mark is gone.
        track.ends(7);
        drop((track, area));
        let area = Inflight::open(file, 0, 1024, 2, 8).expect("the same area");
        assert_eq!(area.ring(0, 8).expect("the first ring").recover(0), NOTHING);
        let mut track = area.ring(1, 8).expect("the second ring");
        assert_eq!(track.recover(2), [5, 0]);
        track.taken(3);
        assert_eq!(track.recover(2), [5, 0, 3]);
        // The server ends before the index has moved: the request must be done again.
        track.ends(5);
        assert_eq!(track.recover(2), [5, 0, 3]);
    }

    #[test]
    fn nonsense_in_the_area_stays_within_its_bounds() {
        let (area, _file) = area();
        let bytes = area.mapping.bytes();
        for at in 0..bytes.len() {
            bytes.write_obj(1u8, at).expect("written");
        }
        bytes.write_obj(VERSION, VERSION_AT).expect("written");
        let mut track = area.ring(0, 4).expect("a ring");
        let found = track.recover(7);
        assert!(found.len() <= 4 && found.iter().all(|&head| head < 4));
        assert!(area.ring(2, 8).is_none() && area.ring(0, 16).is_none());
    }

    #[test]
    fn an_area_of_other_bounds_is_refused() {
        for (queues, ring_size) in [(0, 8), (1, 0), (QUEUES_MAX + 1, 8), (1, RING_SIZE_MAX + 1)] {
            assert!(Inflight::create(queues, ring_size).is_err(), "{queues} of {ring_size}");
        }
        let (area, file) = area();
        assert!(
            Inflight::open(file.try_clone().expect("a file"), 0, area.len() - 1, 2, 8).is_err()
        );
        assert!(Inflight::open(file, 64, area.len(), 2, 8).is_err());
    }
}
