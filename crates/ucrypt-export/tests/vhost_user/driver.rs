//! A virtio-blk driver on one ring of a guest's memory.

use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::front_end::{Closed, FrontEnd, Memory, event, message};
use crate::harness::Harness;

pub(crate) const READ: u32 = 0;
pub(crate) const WRITE: u32 = 1;
pub(crate) const FLUSH: u32 = 4;
pub(crate) const GET_ID: u32 = 8;
pub(crate) const DISCARD: u32 = 11;
pub(crate) const WRITE_ZEROES: u32 = 13;

pub(crate) const OK: u8 = 0;
pub(crate) const IO_ERR: u8 = 1;
pub(crate) const UNSUPPORTED: u8 = 2;

pub(crate) const NEXT: u16 = 1;
pub(crate) const DEVICE_WRITES: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// A descriptor: address, bytes, flags, the next one.
pub(crate) type Descriptor = (u64, u32, u16, u16);

/// A run of the guest's memory: address and bytes.
pub(crate) type Run = (u64, u32);

/// Descriptors in the table that belong to each request.
pub(crate) const STRIDE: u16 = 8;

/// The ring with the number `index` in the guest's memory, with its events.
pub(crate) struct Driver<'a> {
    pub(crate) memory: &'a GuestMemoryMmap,
    pub(crate) index: u32,
    pub(crate) size: u16,
    pub(crate) event_idx: bool,
    pub(crate) kick: OwnedFd,
    pub(crate) call: OwnedFd,
    pub(crate) error: OwnedFd,
    /// Number of requests made available, and of answers taken.
    pub(crate) available: u16,
    pub(crate) used: u16,
}

/// A front end that has agreed on everything, and the driver of its first ring, of 64 entries.
pub(crate) fn started<'a>(harness: &Harness, memory: &'a Memory) -> (FrontEnd, Driver<'a>) {
    let mut front_end = FrontEnd::negotiated(&harness.socket(), 0);
    front_end.set_memory(memory);
    let driver = Driver::new(&memory.map, 0, 64);
    driver.start(&mut front_end, 0).expect("started");
    (front_end, driver)
}

impl<'a> Driver<'a> {
    pub(crate) fn new(memory: &'a GuestMemoryMmap, index: u32, size: u16) -> Self {
        let (kick, call, error) = (event(), event(), event());
        Self { memory, index, size, event_idx: true, kick, call, error, available: 0, used: 0 }
    }

    pub(crate) fn table(&self) -> u64 {
        0x1_0000 * u64::from(self.index)
    }

    pub(crate) fn available_ring(&self) -> u64 {
        self.table() + 0x8000
    }

    pub(crate) fn used_ring(&self) -> u64 {
        self.table() + 0xa000
    }

    /// Tells the server where the ring is, and starts it.
    pub(crate) fn start(&self, front_end: &mut FrontEnd, base: u32) -> Result<(), Closed> {
        let index = self.index;
        front_end.ring_word(message::SET_VRING_NUM, index, u32::from(self.size))?;
        let (table, used) = (self.table(), self.used_ring());
        front_end.ring_addresses(index, table, used, self.available_ring())?;
        front_end.ring_word(message::SET_VRING_BASE, index, base)?;
        front_end.ring_event(message::SET_VRING_CALL, u64::from(index), &self.call)?;
        front_end.ring_event(message::SET_VRING_ERR, u64::from(index), &self.error)?;
        front_end.ring_event(message::SET_VRING_KICK, u64::from(index), &self.kick)?;
        front_end.ring_word(message::SET_VRING_ENABLE, index, 1)
    }

    pub(crate) fn put_descriptor(&self, table: u64, index: u16, descriptor: Descriptor) {
        let (at, len, flags, next) = descriptor;
        let mut bytes = at.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.write(table + 16 * u64::from(index), &bytes);
    }

    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(at)).expect("in the guest's memory");
    }

    pub(crate) fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_slice(&mut bytes, GuestAddress(at)).expect("in the guest's memory");
        bytes
    }

    fn load(&self, at: u64) -> u16 {
        self.memory.load(GuestAddress(at), Ordering::Acquire).expect("in the guest's memory")
    }

    pub(crate) fn store(&self, at: u64, value: u16) {
        self.memory.store(value, GuestAddress(at), Ordering::Release).expect("in the memory");
    }

    /// Makes a request available, and kicks if the server wants a kick.
    pub(crate) fn offer(&mut self, head: u16) {
        let slot = u64::from(self.available % self.size);
        self.store(self.available_ring() + 4 + 2 * slot, head);
        let old = self.available;
        self.available = self.available.wrapping_add(1);
        self.store(self.available_ring() + 2, self.available);
        fence(Ordering::SeqCst);
        let is_asked = if self.event_idx {
            self.load(self.used_ring() + 4 + 8 * u64::from(self.size)) == old
        } else {
            self.load(self.used_ring()) & 1 == 0
        };
        if is_asked {
            self.kick();
        }
    }

    pub(crate) fn kick(&self) {
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).expect("kicked");
    }

    /// Waits for the next answer: the first descriptor, and the bytes written.
    pub(crate) fn answer(&mut self) -> (u16, u32) {
        self.answer_within(Duration::from_secs(30)).expect("no answer within 30 s")
    }

    pub(crate) fn answer_within(&mut self, patience: Duration) -> Option<(u16, u32)> {
        let until = Instant::now() + patience;
        loop {
            // Ask for a call with the next answer, then look: either it is there or the call
            // will come.
            if self.event_idx {
                let event = self.available_ring() + 4 + 2 * u64::from(self.size);
                self.store(event, self.used);
            }
            fence(Ordering::SeqCst);
            if self.load(self.used_ring() + 2) != self.used {
                let slot = u64::from(self.used % self.size);
                let entry = self.read(self.used_ring() + 4 + 8 * slot, 8);
                self.used = self.used.wrapping_add(1);
                let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().unwrap());
                return Some((word(0) as u16, word(4)));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let timeout = Timespec::try_from(left).expect("seconds");
            // Whatever this returns, the ring shows the answer.
            let _ = poll(&mut [PollFd::new(&self.call, PollFlags::IN)], Some(&timeout));
            let _ = rustix::io::read(&self.call, &mut [0; 8]);
        }
    }

    /// As [`Driver::answer`], but polls and asks for no call.
    pub(crate) fn poll_for_answer(&mut self) -> u16 {
        let until = Instant::now() + Duration::from_secs(30);
        // As Linux does for a queue without interrupts.
        self.store(self.available_ring() + 4 + 2 * u64::from(self.size), 0);
        while self.load(self.used_ring() + 2) == self.used {
            assert!(Instant::now() < until, "no answer within 30 s");
            std::thread::yield_now();
        }
        let slot = u64::from(self.used % self.size);
        let entry = self.read(self.used_ring() + 4 + 8 * slot, 4);
        self.used = self.used.wrapping_add(1);
        u32::from_le_bytes(entry.try_into().unwrap()) as u16
    }

    /// Puts a request into slot `slot` and makes it available: the header, the data, the status.
    /// With more than 6 runs of data, in a table of its own.
    pub(crate) fn submit(&mut self, slot: u16, kind: u32, sector: u64, data: &[Run]) {
        self.submit_with(0, slot, kind, sector, data);
    }

    /// The same with a priority in the form of `ioprio_set(2)`.
    pub(crate) fn submit_with(
        &mut self,
        priority: u32,
        slot: u16,
        kind: u32,
        sector: u64,
        data: &[Run],
    ) {
        let (header, status) = (Self::header(self.index, slot), Self::status(self.index, slot));
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend(priority.to_le_bytes());
        bytes.extend(sector.to_le_bytes());
        self.write(header, &bytes);
        self.write(status, &[0xee]);
        let data_flags = if matches!(kind, READ | GET_ID) { DEVICE_WRITES } else { 0 };
        let mut list = vec![(header, 16, 0, 0)];
        list.extend(data.iter().map(|&(at, len)| (at, len, data_flags, 0)));
        list.push((status, 1, DEVICE_WRITES, 0));
        let (table, first) = if list.len() <= usize::from(STRIDE) {
            (self.table(), slot * STRIDE)
        } else {
            (Self::indirect(self.index, slot), 0)
        };
        let last = list.len() - 1;
        for (index, descriptor) in list.iter_mut().enumerate() {
            let number = first + index as u16;
            if index < last {
                (descriptor.2, descriptor.3) = (descriptor.2 | NEXT, number + 1);
            }
            self.put_descriptor(table, number, *descriptor);
        }
        if table != self.table() {
            let len = 16 * list.len() as u32;
            self.put_descriptor(self.table(), slot * STRIDE, (table, len, INDIRECT, 0));
        }
        self.offer(slot * STRIDE);
    }

    pub(crate) fn header(index: u32, slot: u16) -> u64 {
        0x8_0000 + u64::from(index) * 0x1_0000 + u64::from(slot) * 64
    }

    pub(crate) fn status(index: u32, slot: u16) -> u64 {
        Self::header(index, slot) + 32
    }

    /// Of up to 256 descriptors.
    fn indirect(index: u32, slot: u16) -> u64 {
        (1 << 20) + u64::from(index) * 0x10_0000 + u64::from(slot) * 0x1000
    }

    /// The status of an answered request.
    pub(crate) fn status_of(&self, head: u16) -> u8 {
        self.read(Self::status(self.index, head / STRIDE), 1)[0]
    }

    /// Runs one request to its end: returns its status, and the bytes written.
    pub(crate) fn run(&mut self, kind: u32, sector: u64, data: &[Run]) -> (u8, u32) {
        self.submit(0, kind, sector, data);
        let (head, written) = self.answer();
        assert_eq!(head, 0);
        (self.status_of(0), written)
    }

    /// A discard or write-zeroes request; the range is put at `at`.
    pub(crate) fn run_range(&mut self, kind: u32, at: u64, range: (u64, u32, u32)) -> u8 {
        self.put_range(at, range);
        self.run(kind, 0, &[(at, 16)]).0
    }

    /// The range of a discard or write-zeroes request: first sector, sectors, flags.
    pub(crate) fn put_range(&self, at: u64, range: (u64, u32, u32)) {
        let (sector, sectors, flags) = range;
        let mut bytes = sector.to_le_bytes().to_vec();
        bytes.extend(sectors.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        self.write(at, &bytes);
    }

    /// The ring's index of answers, whether they were taken or not.
    pub(crate) fn answered(&self) -> u16 {
        self.load(self.used_ring() + 2)
    }
}
