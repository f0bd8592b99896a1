//! A guest that sends any requests in any order, on several rings at once, while its machine is
//! paused, its memory changes and its front end comes and goes: each request is answered once, and
//! each sector holds what it may hold.
//!
//! `ring` makes a ring a port of the random client; this module acts on the machine.

mod ring;

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use ucrypt_backend::{Backend, Errno, FileBackend, OpenOptions};
use ucrypt_engine::PolicyKind;
use ucrypt_testkit::engine::VolumeKind;
use ucrypt_testkit::fault::{Access, Fate, Rule};
use ucrypt_testkit::given::number;
use ucrypt_testkit::{Client, FaultBackend, Faults, Plan, Port, Random, Report, Shape, Whole};

use crate::driver::Driver;
use crate::front_end::{FrontEnd, Memory, message};
use crate::harness::Harness;

use ring::{DATA, LARGE, RING, Ring, RingPort, SLOTS, data_bytes};

/// Bytes of the disk.
const DISK: u64 = 32 << 20;

struct Case {
    name: &'static str,
    rings: u32,
    requests: u64,
    area: bool,
    sector_size: u32,
    policy: &'static str,
    /// By the sector's bytes.
    whole: fn(u64) -> Whole,
}

/// What happens to the machine.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A ring stops and goes on.
    Ring,
    /// All rings stop and go on.
    Machine,
    /// A region of memory goes and comes back.
    Region,
    /// The whole table of memory is given again.
    Table,
    /// The front end goes and comes back.
    Reconnect,
}

const EVENTS: [Event; 8] = [
    Event::Ring,
    Event::Ring,
    Event::Machine,
    Event::Region,
    Event::Region,
    Event::Table,
    Event::Reconnect,
    Event::Reconnect,
];

/// The connection of a guest.
struct Machine<'a> {
    harness: &'a Harness,
    memory: &'a Memory,
    rings: Vec<Rc<RefCell<Ring<'a>>>>,
    random: Random,
    front_end: Option<FrontEnd>,
    /// The server's area for requests in flight, if the case has one.
    area: Option<(Vec<u8>, OwnedFd)>,
    with_area: bool,
}

impl Machine<'_> {
    /// Connects, and starts the rings at their index of answers.
    fn connect(&mut self) {
        let mut front_end = FrontEnd::negotiated(&self.harness.socket(), 0);
        if self.with_area {
            let area = self.area.take().unwrap_or_else(|| {
                front_end.get_inflight(self.rings.len() as u16, RING).expect("an area")
            });
            front_end.order(message::SET_INFLIGHT_FD, &area.0, &[&area.1]).expect("accepted");
            self.area = Some(area);
        }
        if self.random.below(8) > 0 {
            // Like a machine that starts: from now on there is a write cache.
            front_end.config(0, 60).expect("the configuration");
        }
        front_end.set_memory(self.memory);
        for ring in &self.rings {
            let driver = &ring.borrow().driver;
            // Nobody answers any more: the last connection has ended.
            driver.start(&mut front_end, u32::from(driver.answered())).expect("started");
        }
        self.front_end = Some(front_end);
    }

    /// Lets a random event happen. The client goes on in `meanwhile`.
    fn act(&mut self, meanwhile: impl FnOnce()) {
        let event = EVENTS[self.random.below(8) as usize];
        let front_end = self.front_end.as_mut().expect("connected");
        match event {
            Event::Ring => {
                let ring = self.random.below(self.rings.len() as u64) as usize;
                let driver = &self.rings[ring].borrow().driver;
                let base = front_end.stop_ring(driver.index).expect("stopped");
                assert_eq!(base, u32::from(driver.answered()), "something was not answered");
                driver.start(front_end, base).expect("started");
            }
            Event::Machine => {
                let stop = |ring: &Rc<RefCell<Ring<'_>>>| {
                    front_end.stop_ring(ring.borrow().driver.index).expect("stopped")
                };
                let bases: Vec<_> = self.rings.iter().map(stop).collect();
                let features = front_end.ask_u64(message::GET_FEATURES).to_le_bytes();
                front_end.order(message::SET_FEATURES, &features, &[]).expect("accepted");
                for (ring, base) in self.rings.iter().zip(bases) {
                    ring.borrow().driver.start(front_end, base).expect("started");
                }
            }
            Event::Region => {
                let number = self.random.below(self.memory.regions.len() as u64) as usize;
                front_end.remove_region(self.memory, number);
                meanwhile();
                front_end.add_region(self.memory, number);
            }
            Event::Table => front_end.set_memory(self.memory),
            Event::Reconnect => {
                drop(self.front_end.take());
                self.connect();
            }
        }
    }
}

fn run(case: &Case, backend: Arc<dyn Backend>) {
    let report = run_with(case, backend, None);
    assert_eq!((report.failed, report.refused), (0, 0));
}

/// Runs the case; `faults` are those of the backend.
fn run_with(case: &Case, backend: Arc<dyn Backend>, faults: Option<Faults>) -> Report {
    let seed = number("UCRYPT_SEED", 1);
    println!("{}: UCRYPT_SEED={seed}", case.name);
    let policies = case.policy.parse::<PolicyKind>().expect("a policy").into();
    let kind = VolumeKind {
        sector_size: Some(case.sector_size),
        policies,
        workers: 2,
        offset: 0,
        shared_memory: 1 << 20,
    };
    let harness = Harness::start(kind.over(backend, DISK));
    let half = data_bytes(case.rings).next_multiple_of(1 << 20);
    let memory =
        Memory::with(&[(0, 1 << 20), (1 << 20, 8 << 20), (DATA[0], half), (DATA[1], half)]);
    let rings: Vec<_> = (0..case.rings)
        .map(|index| {
            let driver = Driver::new(&memory.map, index, RING);
            Rc::new(RefCell::new(Ring::new(driver, case.rings, seed)))
        })
        .collect();
    let mut ports: Vec<Box<dyn Port + '_>> =
        rings.iter().map(|ring| Box::new(RingPort(ring.clone())) as Box<dyn Port + '_>).collect();
    let mut machine = Machine {
        harness: &harness,
        memory: &memory,
        rings: rings.clone(),
        random: Random::new(!seed),
        front_end: None,
        area: None,
        with_area: case.area,
    };
    machine.connect();
    let shape = Shape {
        transfer_max: LARGE,
        zeroes_max: LARGE,
        unaligned: 30,
        grain: 512,
        fua: 0,
        ..Shape::everything(DISK)
    };
    let plan = Plan {
        operations: case.requests,
        depth: usize::from(SLOTS),
        sector: u64::from(case.sector_size),
        whole: (case.whole)(u64::from(case.sector_size)),
        faults: faults.map(|faults| (faults, 0)),
        // Some machines never ask for a write cache.
        writes_through: true,
        ..Plan::new(seed, shape)
    };
    let mut client = Client::new(plan, ports.len());
    let mut events = Random::new(seed ^ 3);
    while !client.is_done() {
        client.step(&mut ports).unwrap_or_else(|failure| panic!("{failure}"));
        if events.percent(5) {
            machine.act(|| {
                for _ in 0..case.rings {
                    client.step(&mut ports).unwrap_or_else(|failure| panic!("{failure}"));
                }
            });
        }
        if events.percent(3) {
            client.finish(&mut ports).unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
    let report = client.end(&mut ports).unwrap_or_else(|failure| panic!("{failure}"));
    drop((machine, ports));
    assert_eq!(harness.reports.lines(), [""; 0]);
    harness.stop_or_fail();
    report
}

/// An image on a disk: the system's directory for temporary files may be in memory.
fn image(direct: bool) -> (tempfile::TempDir, Arc<FileBackend>) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = dir.path().join("image");
    std::fs::File::create(&path).and_then(|file| file.set_len(DISK)).expect("an image");
    let options = OpenOptions { direct, ..OpenOptions::default() };
    (dir, Arc::new(FileBackend::open(&path, options).expect("opened")))
}

const IMAGE: Case = Case {
    name: "image",
    rings: 4,
    requests: 3000,
    area: false,
    sector_size: 512,
    policy: "adaptive",
    whole: Whole::cached,
};

#[test]
fn any_requests_on_a_disk_in_memory_find_what_was_written() {
    let whole = |_| Whole::mapped();
    let case = Case { name: "in memory", rings: 8, requests: 4000, area: true, whole, ..IMAGE };
    run(&case, Arc::new(ucrypt_backend::memory(DISK).expect("memory")));
}

#[test]
fn any_requests_on_an_image_find_what_was_written() {
    let (_dir, backend) = image(false);
    run(&IMAGE, backend);
}

#[test]
fn any_requests_on_large_sectors_and_direct_io_find_what_was_written() {
    let case = Case {
        name: "large sectors, direct",
        rings: 2,
        requests: 1200,
        area: true,
        sector_size: 4096,
        policy: "unbound",
        whole: Whole::sectors,
    };
    let (_dir, backend) = image(true);
    run(&case, backend);
}

#[test]
fn bursts_beyond_the_memory_of_a_ring_find_what_was_written() {
    let case =
        Case { name: "bursts", rings: 1, requests: 600, area: true, policy: "merge", ..IMAGE };
    let (_dir, backend) = image(false);
    run(&case, backend);
}

#[test]
fn errors_of_the_disk_reach_the_requests_that_they_concern() {
    const MIB: u64 = 1 << 20;
    // A guest is told no kind of error.
    let failing = || Rule::new(Fate::Fail(Errno::IO));
    for (number, rule) in [
        failing().range(MIB..4 * MIB),
        Rule::new(Fate::Tear(Errno::IO)).on(Access::Write).chance(10),
        failing().on(Access::Flush).nth(1),
    ]
    .into_iter()
    .enumerate()
    {
        let faults = Faults::new(number as u64);
        faults.delay(number as u64).tears_between(512).add(rule);
        let inner = Arc::new(ucrypt_backend::memory(DISK).expect("memory"));
        let backend = Arc::new(FaultBackend::new(inner, faults.clone()));
        let case = Case { name: "faults", requests: 800, area: number == 1, ..IMAGE };
        let report = run_with(&case, backend, Some(faults));
        assert!(report.failed > 2 && report.refused == 0, "fault {number}: {report:?}");
    }
}
