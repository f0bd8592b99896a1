//! A ring of a guest as a port of the random client.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use ucrypt_backend::Errno;
use ucrypt_testkit::model::Tag;
use ucrypt_testkit::operation::{Kind, Operation};
use ucrypt_testkit::{Completion, Port, Random, Submitted};

use crate::driver::{DISCARD, Driver, FLUSH, OK, READ, Run, STRIDE, WRITE, WRITE_ZEROES};

/// Entries of a ring, and most requests that it has at a time.
pub(super) const RING: u16 = 256;
pub(super) const SLOTS: u16 = RING / STRIDE;
/// Bytes of the largest request.
pub(super) const LARGE: u64 = 4 << 20;
const SMALL: u64 = 128 << 10;
/// Room for gaps between the pieces of a request's data, in bytes.
const GAPS: u64 = 128 << 10;
/// Where the data is in the guest's memory, by region.
pub(super) const DATA: [u64; 2] = [1 << 32, 2 << 32];

/// Slots with room for requests of any size.
fn large_slots(rings: u32) -> u16 {
    // A single ring has more of these slots than its server has memory for.
    if rings == 1 { SLOTS - 4 } else { 3 }
}

fn slot_bytes(rings: u32, slot: u16) -> u64 {
    if slot < large_slots(rings) { LARGE } else { SMALL }
}

/// Bytes of the data of all rings.
pub(super) fn data_bytes(rings: u32) -> u64 {
    let slots = (0..SLOTS).map(|slot| slot_bytes(rings, slot) + GAPS);
    u64::from(rings) * slots.sum::<u64>()
}

struct Pending {
    tag: Tag,
    operation: Operation,
    runs: Vec<Run>,
}

/// The driver of a ring, and its requests in flight.
pub(super) struct Ring<'a> {
    pub(super) driver: Driver<'a>,
    random: Random,
    rings: u32,
    slots: Vec<Option<Pending>>,
}

impl<'a> Ring<'a> {
    pub(super) fn new(driver: Driver<'a>, rings: u32, seed: u64) -> Self {
        let random = Random::new(seed ^ u64::from(driver.index));
        Self { driver, random, rings, slots: (0..SLOTS).map(|_| None).collect() }
    }

    /// Address of a slot's data.
    fn data(&self, slot: u16) -> u64 {
        let before: u64 = (0..slot).map(|slot| slot_bytes(self.rings, slot) + GAPS).sum();
        // The rings' data lies in two regions of memory.
        let index = u64::from(self.driver.index);
        let base = DATA[(index % 2) as usize];
        base + (index / 2) * (data_bytes(self.rings) / u64::from(self.rings)) + before
    }

    /// A free slot with enough room.
    fn slot_for(&self, operation: &Operation) -> Option<u16> {
        let has_data = matches!(operation.kind, Kind::Read | Kind::Write { .. });
        let need = if has_data { operation.len } else { 0 };
        let fits = |slot: &u16| slot_bytes(self.rings, *slot) >= need;
        // Small requests leave the large slots alone as long as they can.
        (0..SLOTS).rev().filter(fits).find(|&slot| self.slots[usize::from(slot)].is_none())
    }

    /// Runs of memory for `bytes` bytes, from address `at` on, with gaps of at most 1 KiB.
    fn runs(&mut self, at: u64, bytes: u64) -> Vec<Run> {
        let random = &mut self.random;
        let unit = [bytes, 4096, 512, 1][random.below(4) as usize];
        let mut at = at + random.below(4) * random.below(1024);
        let mut runs = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let most = 2 * left.div_ceil(1 + random.below(16));
            let run = (1 + random.below(most)).next_multiple_of(unit);
            let run = if runs.len() == 100 { left } else { run.min(left) };
            runs.push((at, run as u32));
            at += run + random.below(2) * random.below(1024);
            left -= run;
        }
        runs
    }

    fn submit(&mut self, slot: u16, tag: Tag, operation: Operation, data: &[u8]) {
        let at = self.data(slot);
        let (kind, runs) = match operation.kind {
            Kind::Read => (READ, self.runs(at, operation.len)),
            Kind::Write { .. } => (WRITE, self.runs(at, operation.len)),
            Kind::WriteZeroes { .. } => (WRITE_ZEROES, vec![(at, 16)]),
            Kind::Discard => (DISCARD, vec![(at, 16)]),
            Kind::Flush => (FLUSH, vec![]),
        };
        let (first, sectors) = (operation.offset / 512, operation.len / 512);
        if kind == WRITE_ZEROES || kind == DISCARD {
            let unmap = u32::from(kind == WRITE_ZEROES && self.random.percent(50));
            self.driver.put_range(at, (first, sectors as u32, unmap));
        }
        let mut rest = data;
        for &(at, len) in &runs {
            if kind == READ {
                self.driver.write(at, &vec![0xdd; len as usize]);
            } else if kind == WRITE {
                let (part, behind) = rest.split_at(len as usize);
                self.driver.write(at, part);
                rest = behind;
            }
        }
        // Some requests may wait until the disk is idle; somebody waits for the others.
        let priority = if self.random.percent(25) { 3 << 13 } else { self.random.below(4) as u32 };
        self.driver.submit_with(priority, slot, kind, first, &runs);
        self.slots[usize::from(slot)] = Some(Pending { tag, operation, runs });
    }

    fn take_answers(&mut self, done: &mut Vec<Completion>) {
        while let Some((head, _)) = self.driver.answer_within(Duration::ZERO) {
            let pending = self.slots[usize::from(head / STRIDE)].take();
            let Some(Pending { tag, operation, runs }) = pending else {
                panic!("ring {}: an answer for {head}, where nothing is", self.driver.index);
            };
            let is_good = self.driver.status_of(head) == OK;
            let read = || runs.iter().flat_map(|&(at, len)| self.driver.read(at, len as usize));
            done.push(Completion {
                tag,
                result: if is_good { Ok(()) } else { Err(Errno::IO) },
                data: (operation.kind == Kind::Read).then(|| read().collect()),
            });
        }
    }
}

/// A ring as a port of the random client. The machine stops and starts the ring meanwhile.
pub(super) struct RingPort<'a>(pub(super) Rc<RefCell<Ring<'a>>>);

impl Port for RingPort<'_> {
    fn submit(&mut self, tag: Tag, operation: &Operation, data: &[u8]) -> Submitted {
        let mut ring = self.0.borrow_mut();
        let Some(slot) = ring.slot_for(operation) else { return Submitted::Busy };
        ring.submit(slot, tag, *operation, data);
        Submitted::Accepted
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> io::Result<()> {
        let mut ring = self.0.borrow_mut();
        ring.take_answers(done);
        if wait && done.is_empty() {
            let patience = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            // Whatever this returns, the ring shows the answer.
            let _ = poll(&mut [PollFd::new(&ring.driver.call, PollFlags::IN)], Some(&patience));
            let _ = rustix::io::read(&ring.driver.call, &mut [0; 8]);
            ring.take_answers(done);
        }
        Ok(())
    }

    fn cancel(&mut self, _tag: Tag) {}

    fn describe(&self) -> String {
        let ring = self.0.borrow();
        let Driver { index, available, .. } = ring.driver;
        let mut text =
            format!("ring {index}: {available} available, {} answered", ring.driver.answered());
        for (slot, pending) in ring.slots.iter().enumerate() {
            if let Some(Pending { tag, operation, .. }) = pending {
                // Writing to a text cannot fail.
                let _ = write!(text, "\n  slot {slot}: {tag}, {operation}");
            }
        }
        text
    }
}
