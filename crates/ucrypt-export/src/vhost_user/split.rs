//! The split virtqueue from the device's side (virtio 1.2, 2.7).
//!
//! The ring lies in memory that the guest may change at any time. Each value is read once, and a
//! value that cannot be right is an error, after which the ring must not be used any further.

use std::num::Wrapping;
use std::sync::atomic::{Ordering, fence};

use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

use super::config::RING_SIZE_MAX;
use super::memory::{GuestMap, Outside};

/// Bytes of a descriptor.
const DESCRIPTOR_LEN: u64 = 16;
/// Descriptor flags: there is a next one; the device writes to the segment; the segment is a table
/// of descriptors.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Flag of the ring of requests: the guest needs no call. Of the ring of answers: the device needs
/// no kick.
const NO_SIGNAL: u16 = 1;
/// Most descriptors that are read of one request. A table may have more, but nobody needs them.
const DESCRIPTORS_MAX: u32 = 4096;

/// Location and position of a ring, as told by the front end. Addresses are the front end's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RingLayout {
    /// Entries; a power of two.
    pub(super) size: u16,
    pub(super) descriptors: u64,
    pub(super) available: u64,
    pub(super) used: u64,
    /// The next request to be taken.
    pub(super) base: u16,
}

/// Why a ring makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Broken {
    #[error("it is not where the front end says")]
    Memory,
    #[error("its index of requests went further than it is long")]
    Index,
    #[error("a request is not in its table")]
    Head,
    #[error("a request was made available twice")]
    Twice,
}

/// Why a ring cannot be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotThere {
    #[error("its size is no power of two up to 1024")]
    Size,
    #[error("it is not in the guest's memory, or not aligned")]
    Memory,
}

/// A run of the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) at: u64,
    /// Bytes.
    pub(super) len: u32,
    pub(super) writable: bool,
}

/// A ring, by the guest's addresses.
#[derive(Debug)]
pub(super) struct SplitRing {
    size: u16,
    descriptors: GuestAddress,
    available: GuestAddress,
    used: GuestAddress,
    event_idx: bool,
    next_available: Wrapping<u16>,
    next_used: Wrapping<u16>,
    /// Answers since the guest was last called, or needed no call.
    uncalled: Wrapping<u16>,
}

impl SplitRing {
    /// Finds a ring in the guest's memory. The next request is at `layout.base`; the position of
    /// answers is read from the ring itself.
    pub(super) fn locate(
        layout: &RingLayout,
        map: &GuestMap,
        event_idx: bool,
    ) -> Result<Self, NotThere> {
        let size = layout.size;
        if !size.is_power_of_two() || size > RING_SIZE_MAX {
            return Err(NotThere::Size);
        }
        let entries = u64::from(size);
        let find = |user: u64, align: u64, len: u64| {
            let at = map.translate(user).filter(|at| at.0.is_multiple_of(align));
            at.filter(|&at| map.memory().check_range(at, len as usize)).ok_or(NotThere::Memory)
        };
        let mut ring = Self {
            size,
            descriptors: find(layout.descriptors, 16, entries * DESCRIPTOR_LEN)?,
            available: find(layout.available, 2, 4 + 2 * entries + 2)?,
            used: find(layout.used, 4, 4 + 8 * entries + 2)?,
            event_idx,
            next_available: Wrapping(layout.base),
            next_used: Wrapping(0),
            uncalled: Wrapping(0),
        };
        let used = load(map, ring.used.0 + 2).map_err(|_| NotThere::Memory)?;
        ring.next_used = Wrapping(used);
        Ok(ring)
    }

    pub(super) fn next_available(&self) -> u16 {
        self.next_available.0
    }

    pub(super) fn set_next_available(&mut self, index: u16) {
        self.next_available = Wrapping(index);
    }

    pub(super) fn next_used(&self) -> u16 {
        self.next_used.0
    }

    /// Takes the next request, if there is one: the number of its first descriptor.
    pub(super) fn take(&mut self, map: &GuestMap) -> Result<Option<u16>, Broken> {
        let ahead = Wrapping(load(map, self.available.0 + 2)?) - self.next_available;
        if ahead.0 == 0 {
            return Ok(None);
        }
        if ahead.0 > self.size {
            return Err(Broken::Index);
        }
        let slot = u64::from(self.next_available.0 % self.size);
        let head = load(map, self.available.0 + 4 + 2 * slot)?;
        if head >= self.size {
            return Err(Broken::Head);
        }
        self.next_available += 1;
        Ok(Some(head))
    }

    /// Undoes the last [`SplitRing::take`].
    pub(super) fn put_back(&mut self) {
        self.next_available -= 1;
    }

    /// The descriptors of a request.
    pub(super) fn chain<'a>(&self, map: &'a GuestMap, head: u16) -> Chain<'a> {
        Chain {
            map,
            table: self.descriptors.0,
            entries: u32::from(self.size),
            next: Some(u32::from(head)),
            left: u32::from(self.size),
            indirect: false,
        }
    }

    /// Answers a request; `len` bytes were written to the guest.
    pub(super) fn answer(&mut self, map: &GuestMap, head: u16, len: u32) -> Result<(), Broken> {
        let slot = u64::from(self.next_used.0 % self.size);
        let mut entry = [0; 8];
        entry[..4].copy_from_slice(&u32::from(head).to_le_bytes());
        entry[4..].copy_from_slice(&len.to_le_bytes());
        let at = GuestAddress(self.used.0 + 4 + 8 * slot);
        map.memory().write_slice(&entry, at).map_err(|_| Broken::Memory)?;
        self.next_used += 1;
        self.uncalled += 1;
        // A release store, which publishes the data, the status and the entry.
        store(map, self.used.0 + 2, self.next_used.0)
    }

    /// Asks for a kick with the next request. Returns whether there is one already.
    pub(super) fn ask_for_kick(&self, map: &GuestMap) -> Result<bool, Broken> {
        if self.event_idx {
            let event = self.used.0 + 4 + 8 * u64::from(self.size);
            store(map, event, self.next_available.0)?;
        } else {
            store(map, self.used.0, 0)?;
        }
        // The guest looks at this after it has moved its index: either it kicks, or we see the
        // index.
        fence(Ordering::SeqCst);
        Ok(load(map, self.available.0 + 2)? != self.next_available.0)
    }

    /// Tells the guest that no kick is needed for now. With event indices none comes anyway.
    pub(super) fn need_no_kick(&self, map: &GuestMap) -> Result<(), Broken> {
        if self.event_idx { Ok(()) } else { store(map, self.used.0, NO_SIGNAL) }
    }

    /// Whether to call the guest for the answers since this was last asked.
    pub(super) fn wants_call(&mut self, map: &GuestMap) -> Result<bool, Broken> {
        let answered = std::mem::take(&mut self.uncalled);
        if answered.0 == 0 {
            return Ok(false);
        }
        fence(Ordering::SeqCst);
        if !self.event_idx {
            return Ok(load(map, self.available.0)? & NO_SIGNAL == 0);
        }
        let event = Wrapping(load(map, self.available.0 + 4 + 2 * u64::from(self.size))?);
        Ok(self.next_used - event - Wrapping(1) < answered)
    }
}

fn load(map: &GuestMap, at: u64) -> Result<u16, Broken> {
    let loaded = map.memory().load(GuestAddress(at), Ordering::Acquire);
    loaded.map(u16::from_le).map_err(|_| Broken::Memory)
}

fn store(map: &GuestMap, at: u64, value: u16) -> Result<(), Broken> {
    let stored = map.memory().store(value.to_le(), GuestAddress(at), Ordering::Release);
    stored.map_err(|_| Broken::Memory)
}

/// The `N` bytes from `at` on, which must lie in `bytes`.
pub(super) fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

/// The segments of a request, in order. The iterator always ends, whatever the descriptors say; an
/// error is its last item.
pub(super) struct Chain<'a> {
    map: &'a GuestMap,
    table: u64,
    entries: u32,
    /// Index of the next descriptor in the table.
    next: Option<u32>,
    /// Descriptors that may still follow: a chain visits each at most once.
    left: u32,
    indirect: bool,
}

impl Chain<'_> {
    fn read(&mut self, index: u32) -> Result<Option<Segment>, Outside> {
        if index >= self.entries || self.left == 0 {
            return Err(Outside::Nowhere);
        }
        self.left -= 1;
        let offset = u64::from(index) * DESCRIPTOR_LEN;
        let at = self.table.checked_add(offset).ok_or(Outside::Nowhere)?;
        let mut bytes = [0; DESCRIPTOR_LEN as usize];
        self.map.read(at, &mut bytes)?;
        let at = u64::from_le_bytes(field(&bytes, 0));
        let len = u32::from_le_bytes(field(&bytes, 8));
        let flags = u16::from_le_bytes(field(&bytes, 12));
        let next = u32::from(u16::from_le_bytes(field(&bytes, 14)));
        if flags & INDIRECT == 0 {
            self.next = (flags & NEXT != 0).then_some(next);
            return Ok(Some(Segment { at, len, writable: flags & WRITE != 0 }));
        }
        let (entries, odd) = (len / DESCRIPTOR_LEN as u32, len % DESCRIPTOR_LEN as u32);
        // A table of tables is forbidden, and so is anything behind a table.
        if self.indirect || flags & NEXT != 0 || odd != 0 {
            return Err(Outside::Nowhere);
        }
        (self.table, self.entries, self.indirect) = (at, entries, true);
        self.left = entries.min(DESCRIPTORS_MAX);
        self.next = Some(0);
        Ok(None)
    }
}

impl Iterator for Chain<'_> {
    type Item = Result<Segment, Outside>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let index = self.next.take()?;
            match self.read(index) {
                Ok(None) => {}
                Ok(Some(segment)) => return Some(Ok(segment)),
                Err(bad) => return Some(Err(bad)),
            }
        }
    }
}
