//! A guest that asks for anything in any order, on several rings at once, while its machine is paused,
//! its memory changes and its front end comes and goes: each request is answered once, and each sector
//! holds what it may hold.
//!
//! `generator` makes requests, `model` knows what sectors may hold, `watchdog` ends what hangs; here
//! they are put together.

mod content;
mod generator;
mod model;
mod watchdog;

use std::fmt::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use ucrypt_backend::{Backend, FileBackend, OpenOptions};
use ucrypt_engine::{Policies, Policy, Segment, Volume, VolumeOptions};
use ucrypt_sector::{CipherSpec, SectorCipher, SectorOptions};

use crate::driver::{DISCARD, Driver, FLUSH, OK, READ, Run, STRIDE, WRITE, WRITE_ZEROES};
use crate::front_end::{FrontEnd, Memory, message};
use crate::harness::Harness;

use content::{Content, SECTOR};
use generator::{Asked, Event, Generator};
use model::Model;
use watchdog::Watchdog;

/// Bytes of the disk.
const DISK: u64 = 32 << 20;
/// Entries of a ring, and requests that it has at a time.
const RING: u16 = 256;
const SLOTS: u16 = RING / STRIDE;
/// Of a ring's slots, those with room for requests of any size; and that size.
const LARGE_SLOTS: u16 = 3;
const LARGE: u64 = 4 << 20;
const SMALL: u64 = 128 << 10;
/// Room for gaps between the pieces of a request's data, in bytes.
const GAPS: u64 = 128 << 10;
/// Where the data is in the guest's memory, by region.
const DATA: [u64; 2] = [1 << 32, 2 << 32];

struct Case {
    name: &'static str,
    rings: u32,
    requests: u64,
    area: bool,
}

/// A request under way.
struct Pending {
    asked: Asked,
    name: u64,
    runs: Vec<Run>,
}

struct Guest<'a> {
    memory: &'a Memory,
    drivers: Vec<Driver<'a>>,
    /// By ring and slot.
    pending: Vec<Vec<Option<Pending>>>,
    model: Model,
    generator: Generator,
    watchdog: Watchdog,
    answered: u64,
}

fn large_slots(rings: u32) -> u16 {
    // One ring has more of them than its server has memory for.
    if rings == 1 { SLOTS - 4 } else { LARGE_SLOTS }
}

fn slot_bytes(rings: u32, slot: u16) -> u64 {
    if slot < large_slots(rings) { LARGE } else { SMALL }
}

/// Bytes of the data of all rings.
fn data_bytes(rings: u32) -> u64 {
    let slots = (0..SLOTS).map(|slot| slot_bytes(rings, slot) + GAPS);
    u64::from(rings) * slots.sum::<u64>()
}

impl<'a> Guest<'a> {
    fn new(memory: &'a Memory, rings: u32, seed: u64) -> Self {
        let drivers = (0..rings).map(|index| Driver::new(&memory.map, index, RING)).collect();
        let pending = (0..rings).map(|_| (0..SLOTS).map(|_| None).collect()).collect();
        let sectors = DISK / SECTOR as u64;
        Self {
            memory,
            drivers,
            pending,
            model: Model::new(sectors),
            generator: Generator::new(seed, sectors),
            watchdog: Watchdog::new(),
            answered: 0,
        }
    }

    /// Where the data of a slot is.
    fn data(&self, ring: usize, slot: u16) -> u64 {
        let rings = self.drivers.len() as u32;
        let before: u64 = (0..slot).map(|slot| slot_bytes(rings, slot) + GAPS).sum();
        // The rings' data lies in two regions of memory.
        let base = DATA[ring % 2];
        base + (ring / 2) as u64 * (data_bytes(rings) / u64::from(rings)) + before
    }

    fn under_way(&self) -> usize {
        self.pending.iter().flatten().flatten().count()
    }

    /// Submits a request by chance to a ring, if it has room.
    fn submit(&mut self, ring: usize) {
        let Some(slot) = self.pending[ring].iter().position(Option::is_none) else { return };
        let slot = slot as u16;
        if self.under_way() == 0 {
            self.watchdog.pat();
        }
        let rings = self.drivers.len() as u32;
        let asked = self.generator.request(slot_bytes(rings, slot));
        let at = self.data(ring, slot);
        let driver = &mut self.drivers[ring];
        let runs = match asked.kind {
            READ | WRITE => self.generator.runs(at, asked.bytes() as u64),
            FLUSH => vec![],
            _ => vec![(at, 16)],
        };
        let name = match asked.kind {
            WRITE => {
                let tag = self.model.begin_write(asked.first, asked.count, Content::Tag);
                // Its name is its tag.
                let mut bytes = vec![0; asked.bytes()];
                content::fill(&mut bytes, asked.first, tag);
                let mut rest = &bytes[..];
                for &(at, len) in &runs {
                    let (part, behind) = rest.split_at(len as usize);
                    driver.write(at, part);
                    rest = behind;
                }
                tag
            }
            WRITE_ZEROES | DISCARD => {
                let unmap = u32::from(asked.kind == WRITE_ZEROES && self.generator.one_in(2));
                driver.put_range(at, (asked.first, asked.count as u32, unmap));
                let leaves = if asked.kind == DISCARD { Content::Any } else { Content::Zeroes };
                self.model.begin_write(asked.first, asked.count, |_| leaves)
            }
            READ => {
                for &(at, len) in &runs {
                    driver.write(at, &vec![0xdd; len as usize]);
                }
                self.model.begin_read()
            }
            _ => self.model.begin_read(),
        };
        driver.submit(slot, asked.kind, asked.first, &runs);
        self.pending[ring][usize::from(slot)] = Some(Pending { asked, name, runs });
    }

    /// Takes the answers that are there. Returns how many there were.
    fn take_answers(&mut self) -> usize {
        let mut count = 0;
        for ring in 0..self.drivers.len() {
            while let Some((head, _)) = self.drivers[ring].answer_within(std::time::Duration::ZERO)
            {
                count += 1;
                self.answer(ring, head);
            }
        }
        if count > 0 {
            self.watchdog.pat();
        }
        count
    }

    fn answer(&mut self, ring: usize, head: u16) {
        let pending = self.pending[ring][usize::from(head / STRIDE)].take();
        let Some(Pending { asked, name, runs }) = pending else {
            panic!("ring {ring}: an answer for {head}, where nothing is under way");
        };
        self.answered += 1;
        let driver = &self.drivers[ring];
        let status = driver.status_of(head);
        assert_eq!(status, OK, "ring {ring}: {asked:?}");
        if asked.changes() {
            let names = self.pending.iter().flatten().flatten().map(|pending| pending.name);
            let oldest = names.min().unwrap_or(name);
            self.model.end_write(asked.first, asked.count, name, oldest);
        } else if asked.kind == READ {
            let bytes: Vec<u8> =
                runs.iter().flat_map(|&(at, len)| driver.read(at, len as usize)).collect();
            for (number, sector) in bytes.chunks_exact(SECTOR).enumerate() {
                let number = asked.first + number as u64;
                assert!(
                    self.model.allows(number, name, sector),
                    "ring {ring}: {asked:?} ({name}) found {:?} in sector {number}, which may hold \
                     {}: {sector:x?}",
                    content::look(sector, number),
                    self.model.describe(number),
                );
            }
        }
    }

    /// Waits until there is something to take.
    fn await_answers(&mut self) {
        loop {
            if self.under_way() == 0 || self.take_answers() > 0 {
                return;
            }
            self.watchdog.check(|| self.describe());
            let mut fds: Vec<_> = self
                .drivers
                .iter()
                .map(|driver| PollFd::new(&driver.call, PollFlags::IN))
                .collect();
            let timeout = Timespec::try_from(self.watchdog.left()).expect("seconds");
            // Whatever it returns, the rings tell.
            let _ = poll(&mut fds, Some(&timeout));
        }
    }

    fn await_all(&mut self) {
        while self.under_way() > 0 {
            self.await_answers();
        }
    }

    /// What is under way, by ring, for messages: writing to a text cannot fail.
    fn describe(&self) -> String {
        let mut lines = format!("after {} answers these wait:", self.answered);
        for (ring, (driver, slots)) in self.drivers.iter().zip(&self.pending).enumerate() {
            let (available, answered) = (driver.available, driver.answered());
            let _ = write!(lines, "\nring {ring}: {available} available, {answered} answered");
            for (slot, pending) in slots.iter().enumerate() {
                if let Some(Pending { asked, name, .. }) = pending {
                    let _ = write!(lines, "\n  slot {slot}: {asked:?}, submitted as {name}");
                }
            }
        }
        lines
    }

    /// Every sector once more, when nothing is under way.
    fn read_all(&mut self) {
        let (step, at) = (LARGE / SECTOR as u64, self.data(0, 0));
        for first in (0..DISK / SECTOR as u64).step_by(step as usize) {
            let asked = Asked { kind: READ, first, count: step };
            let (name, runs) = (self.model.begin_read(), vec![(at, LARGE as u32)]);
            self.watchdog.pat();
            self.drivers[0].submit(0, READ, first, &runs);
            self.pending[0][0] = Some(Pending { asked, name, runs });
            self.await_all();
        }
    }
}

/// The connection of a guest.
struct Machine<'a> {
    harness: &'a Harness,
    memory: &'a Memory,
    front_end: Option<FrontEnd>,
    area: Option<(Vec<u8>, OwnedFd)>,
}

impl Machine<'_> {
    /// Connects, and starts the rings where their answers stand.
    fn connect(&mut self, guest: &mut Guest<'_>, area: bool) {
        let mut front_end = FrontEnd::negotiated(&self.harness.socket(), 0);
        if area {
            let area = self.area.take().unwrap_or_else(|| {
                front_end.get_inflight(guest.drivers.len() as u16, RING).expect("an area")
            });
            front_end.order(message::SET_INFLIGHT_FD, &area.0, &[&area.1]).expect("accepted");
            self.area = Some(area);
        }
        if !guest.generator.one_in(8) {
            // As a machine that starts: there is a write cache from now on.
            front_end.config(0, 60).expect("the configuration");
        }
        front_end.set_memory(self.memory);
        for driver in &guest.drivers {
            // Nobody answers any more: the last connection has ended.
            driver.start(&mut front_end, u32::from(driver.answered())).expect("started");
        }
        self.front_end = Some(front_end);
    }

    fn act(&mut self, guest: &mut Guest<'_>, event: Event, area: bool) {
        let front_end = self.front_end.as_mut().expect("connected");
        let rings = guest.drivers.len() as u64;
        match event {
            Event::Ring => {
                let ring = guest.generator.below(rings) as usize;
                let base = front_end.stop_ring(ring as u32).expect("stopped");
                let driver = &guest.drivers[ring];
                assert_eq!(base, u32::from(driver.answered()), "something was not answered");
                driver.start(front_end, base).expect("started");
            }
            Event::Machine => {
                let stop = |driver: &Driver<'_>| front_end.stop_ring(driver.index);
                let bases: Vec<_> = guest.drivers.iter().map(stop).collect();
                let features = front_end.ask_u64(message::GET_FEATURES).to_le_bytes();
                front_end.order(message::SET_FEATURES, &features, &[]).expect("accepted");
                for (driver, base) in guest.drivers.iter().zip(bases) {
                    driver.start(front_end, base.expect("stopped")).expect("started");
                }
            }
            Event::Region => {
                let number = guest.generator.below(guest.memory.regions.len() as u64) as usize;
                front_end.remove_region(self.memory, number);
                for ring in 0..guest.drivers.len() {
                    guest.submit(ring);
                }
                front_end.add_region(self.memory, number);
            }
            Event::Table => front_end.set_memory(self.memory),
            Event::Reconnect => {
                drop(self.front_end.take());
                self.connect(guest, area);
            }
        }
    }
}

fn volume(backend: Arc<dyn Backend>, sector_size: u32, policy: Policy) -> Arc<Volume> {
    let spec: CipherSpec = "aes-xts-plain64".parse().expect("a cipher");
    let key: Vec<u8> = (0..64).collect();
    let sectors = SectorOptions { sector_size, ..SectorOptions::default() };
    let cipher = SectorCipher::new(&spec, &key, sectors).expect("a key");
    let segment = Segment { len: DISK, backend_offset: 0, cipher: Some(cipher) };
    let options = VolumeOptions {
        allow_discards: true,
        policies: Policies::from(policy),
        workers: Some(2),
        ..VolumeOptions::default()
    };
    Arc::new(Volume::new(backend, vec![segment], options).expect("a volume"))
}

/// The seed: the same in each run, unless `UCRYPT_SEED` says another.
fn seed() -> u64 {
    let given = std::env::var("UCRYPT_SEED").ok();
    given.map_or(1, |seed| seed.parse().expect("UCRYPT_SEED is a number"))
}

fn run(case: &Case, volume: Arc<Volume>) {
    let seed = seed();
    println!("{}: UCRYPT_SEED={seed}", case.name);
    let harness = Harness::start(volume);
    let half = data_bytes(case.rings).next_multiple_of(1 << 20);
    let memory =
        Memory::with(&[(0, 1 << 20), (1 << 20, 8 << 20), (DATA[0], half), (DATA[1], half)]);
    let mut guest = Guest::new(&memory, case.rings, seed);
    let mut machine = Machine { harness: &harness, memory: &memory, front_end: None, area: None };
    machine.connect(&mut guest, case.area);
    while guest.answered < case.requests {
        // A burst, from one request to all there is room for.
        let burst = match guest.generator.below(4) {
            0 => 1,
            1 => 1 + guest.generator.below(8),
            _ => 1 + guest.generator.below(u64::from(case.rings) * u64::from(SLOTS)),
        };
        for _ in 0..burst {
            let ring = guest.generator.below(u64::from(case.rings)) as usize;
            guest.submit(ring);
            if guest.generator.one_in(4) {
                guest.take_answers();
            }
        }
        if guest.generator.one_in(6) {
            let event = guest.generator.event();
            machine.act(&mut guest, event, case.area);
        }
        if guest.generator.one_in(3) {
            guest.await_all();
        } else {
            guest.await_answers();
        }
    }
    guest.await_all();
    guest.read_all();
    drop(machine);
    assert_eq!(harness.reports(), [""; 0]);
    harness.stop_or_fail();
}

/// An image on a disk: the system's directory for such files may be in memory.
fn image(direct: bool) -> (tempfile::TempDir, Arc<FileBackend>) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = dir.path().join("image");
    std::fs::File::create(&path).and_then(|file| file.set_len(DISK)).expect("an image");
    let options = OpenOptions { direct, ..OpenOptions::default() };
    (dir, Arc::new(FileBackend::open(&path, options).expect("opened")))
}

#[test]
fn any_requests_on_a_disk_in_memory_find_what_was_written() {
    let case = Case { name: "in memory", rings: 8, requests: 4000, area: true };
    let backend = Arc::new(ucrypt_backend::memory(DISK).expect("memory"));
    run(&case, volume(backend, 512, Policy::Adaptive));
}

#[test]
fn any_requests_on_an_image_find_what_was_written() {
    let case = Case { name: "image", rings: 4, requests: 3000, area: false };
    let (_dir, backend) = image(false);
    run(&case, volume(backend, 512, Policy::Adaptive));
}

#[test]
fn any_requests_on_large_sectors_and_direct_io_find_what_was_written() {
    let case = Case { name: "large sectors, direct", rings: 2, requests: 1200, area: true };
    let (_dir, backend) = image(true);
    run(&case, volume(backend, 4096, "unbound".parse().expect("a policy")));
}

#[test]
fn bursts_beyond_the_memory_of_a_ring_find_what_was_written() {
    let case = Case { name: "bursts", rings: 1, requests: 600, area: true };
    let (_dir, backend) = image(false);
    run(&case, volume(backend, 512, "merge".parse().expect("a policy")));
}
