//! Guests that break the rules of virtqueues, and front ends that cut their memory off: the request
//! fails or the ring stops; the server and the other rings go on.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::ftruncate;
use ucrypt_engine::{Io, QueueConfig};
use ucrypt_testkit::Random;
use ucrypt_testkit::fault::{Fate, Rule};

use crate::connection::assert_serves;
use crate::driver::{
    DEVICE_WRITES, Descriptor, Driver, INDIRECT, IO_ERR, NEXT, OK, READ, WRITE, started,
};
use crate::front_end::{FrontEnd, Memory, message};
use crate::harness::{Harness, aes, faulty, over};
use crate::requests::DATA;

const HEADER: u64 = DATA + (4 << 20);
const STATUS: u64 = HEADER + 0x100;
const TABLE: u64 = HEADER + 0x1000;

/// A header of a request for sector 0, and no status yet.
fn prepare(driver: &Driver<'_>, kind: u32) {
    let mut header = kind.to_le_bytes().to_vec();
    header.resize(16, 0);
    driver.write(HEADER, &header);
    driver.write(STATUS, &[0xee]);
}

fn put(driver: &Driver<'_>, table: u64, descriptors: &[Descriptor]) {
    for (index, &descriptor) in descriptors.iter().enumerate() {
        driver.put_descriptor(table, index as u16, descriptor);
    }
}

#[test]
fn descriptors_of_no_sense_fail_their_request_and_no_other() {
    let harness = Harness::start(aes(512));
    let memory = Memory::new();
    let (_front_end, mut driver) = started(&harness, &memory);
    let header = (HEADER, 16, NEXT, 1);
    let status = |index: u16| (STATUS, 1, DEVICE_WRITES, index);
    let data = |at: u64, len: u32, next: u16| (at, len, DEVICE_WRITES | NEXT, next);
    let cases: [(&str, u32, Vec<Descriptor>); 17] = [
        ("data outside of memory", READ, vec![header, data(1 << 40, 4096, 2), status(0)]),
        (
            "data at the end of everything",
            READ,
            vec![header, data(u64::MAX - 511, 512, 2), status(0)],
        ),
        (
            "data that leaves memory",
            READ,
            vec![header, data(DATA + (8 << 20) - 512, 1024, 2), status(0)],
        ),
        ("data of 4 GiB", READ, vec![header, data(DATA, u32::MAX, 2), status(0)]),
        (
            "a header outside of memory",
            READ,
            vec![(1 << 40, 16, NEXT, 1), data(DATA, 512, 2), status(0)],
        ),
        ("half a header", READ, vec![(HEADER, 8, NEXT, 1), data(DATA, 512, 2), status(0)]),
        ("no header", READ, vec![data(DATA, 512, 1), status(0)]),
        ("a loop", READ, vec![header, data(DATA, 512, 1), status(0)]),
        ("a loop of itself", READ, vec![(HEADER, 16, NEXT, 0)]),
        ("a next one beyond the table", READ, vec![header, data(DATA, 512, 64), status(0)]),
        (
            "what the device reads behind what it writes",
            READ,
            vec![
                header,
                data(DATA, 512, 2),
                (STATUS, 1, DEVICE_WRITES | NEXT, 3),
                (HEADER, 16, 0, 0),
            ],
        ),
        ("a table outside of memory", READ, vec![(1 << 40, 48, INDIRECT, 0)]),
        ("a table of half a descriptor", READ, vec![(TABLE, 40, INDIRECT, 0)]),
        ("an empty table", READ, vec![(TABLE, 0, INDIRECT, 0)]),
        ("something behind a table", READ, vec![(TABLE, 48, INDIRECT | NEXT, 1), status(0)]),
        (
            "a status outside of memory",
            READ,
            vec![header, data(DATA, 512, 2), (1 << 40, 1, DEVICE_WRITES, 0)],
        ),
        ("no room for a status", WRITE, vec![header, (DATA, 512, 0, 0)]),
    ];
    for (what, kind, descriptors) in cases {
        prepare(&driver, kind);
        put(
            &driver,
            TABLE,
            &[(HEADER, 16, NEXT, 1), (DATA, 512, DEVICE_WRITES | NEXT, 2), status(0)],
        );
        put(&driver, driver.table(), &descriptors);
        driver.offer(0);
        let (head, written) = driver.answer();
        let status = driver.read(STATUS, 1)[0];
        assert_eq!(head, 0, "{what}");
        assert!(written <= 1 && (status == IO_ERR || status == 0xee), "{what}: {status}");
        assert_eq!(driver.run(READ, 0, &[(DATA, 4096)]), (OK, 4097), "after: {what}");
    }
    assert_eq!(harness.reports.lines(), [""; 0]);
}

#[test]
fn tables_of_tables_and_endless_tables_fail_their_request() {
    let harness = Harness::start(aes(512));
    let memory = Memory::new();
    let (_front_end, mut driver) = started(&harness, &memory);
    prepare(&driver, READ);
    put(&driver, TABLE, &[(TABLE, 48, INDIRECT, 0)]);
    put(&driver, driver.table(), &[(TABLE, 48, INDIRECT, 0)]);
    driver.offer(0);
    assert_eq!(driver.answer(), (0, 0));
    // 65536 descriptors that name the same byte; the first one is a header.
    let whole = 1 << 20;
    for index in 0..=u16::MAX {
        let next = index.wrapping_add(1);
        let flags = if index == 0 { NEXT } else { DEVICE_WRITES | NEXT };
        driver.put_descriptor(DATA, index, (HEADER, 16, flags, next));
    }
    put(&driver, driver.table(), &[(DATA, whole, INDIRECT, 0)]);
    driver.offer(0);
    assert_eq!(driver.answer().0, 0);
    // More data than the agreed limit, with a status at the end.
    prepare(&driver, READ);
    for index in 1..=200u16 {
        driver.put_descriptor(TABLE, index, (DATA, 512, DEVICE_WRITES | NEXT, index + 1));
    }
    driver.put_descriptor(TABLE, 0, (HEADER, 16, NEXT, 1));
    driver.put_descriptor(TABLE, 201, (STATUS, 1, DEVICE_WRITES, 0));
    put(&driver, driver.table(), &[(TABLE, 202 * 16, INDIRECT, 0)]);
    driver.offer(0);
    assert_eq!((driver.answer(), driver.read(STATUS, 1)[0]), ((0, 1), IO_ERR));
    assert_eq!(driver.run(READ, 0, &[(DATA, 4096)]), (OK, 4097));
}

#[test]
fn a_header_in_pieces_is_a_header() {
    let harness = Harness::start(aes(512));
    let memory = Memory::new();
    let (_front_end, mut driver) = started(&harness, &memory);
    prepare(&driver, READ);
    // The status is the last writable byte, wherever the segments end.
    let pieces = [
        (HEADER, 5, NEXT, 1),
        (HEADER + 5, 0, NEXT, 2),
        (HEADER + 5, 11, NEXT, 3),
        (DATA, 500, DEVICE_WRITES | NEXT, 4),
        (DATA + 500, 13, DEVICE_WRITES, 0),
    ];
    put(&driver, driver.table(), &pieces);
    driver.write(DATA, &[0xee; 513]);
    driver.offer(0);
    assert_eq!(driver.answer(), (0, 513));
    assert_eq!(driver.read(DATA + 512, 1), [OK]);
}

#[test]
fn a_guest_that_breaks_its_ring_over_and_over_cannot_fill_the_log() {
    let harness = Harness::start(aes(512));
    let memory = Memory::new();
    let mut front_end = FrontEnd::negotiated(&harness.socket(), 0);
    front_end.set_memory(&memory);
    for _ in 0..100 {
        // As after a reset of the device.
        let mut driver = Driver::new(&memory.map, 0, 64);
        driver.start(&mut front_end, 0).expect("started");
        spoil_head(&mut driver);
        let mut told = [PollFd::new(&driver.error, PollFlags::IN)];
        poll(&mut told, None).expect("the front end is told");
        front_end.stop_ring(0).expect("stopped");
    }
    let lines = harness.reports.lines();
    assert!((1..=20).contains(&lines.len()), "{lines:?}");
    assert!(lines[0].contains("not in its table"), "{lines:?}");
    drop(front_end);
    assert_serves(&harness);
}

#[test]
fn rings_of_no_sense_stop_and_others_do_not() {
    for (what, spoil, reason) in [
        ("an index that jumps", spoil_index as fn(&mut Driver<'_>), "further than it is long"),
        ("a head beyond the table", spoil_head, "not in its table"),
        ("a request made available twice", offer_twice, "twice"),
    ] {
        let (disk, faults) = faulty();
        let harness = Harness::start(over(disk, 512));
        let memory = Memory::new();
        let mut front_end = FrontEnd::negotiated(&harness.socket(), 0);
        front_end.set_memory(&memory);
        let mut drivers = [0, 1].map(|index| Driver::new(&memory.map, index, 64));
        for driver in &drivers {
            driver.start(&mut front_end, 0).expect("started");
        }
        let [first, second] = &mut drivers;
        faults.add(Rule::new(Fate::Hang));
        first.submit(0, READ, 0, &[(DATA, 512)]);
        faults.await_met(1);
        spoil(first);
        harness.reports.wait_for(reason);
        faults.resume();
        assert_eq!(first.answer(), (0, 513), "{what}: what was taken is answered");
        let told = rustix::io::read(&first.error, &mut [0; 8]);
        assert_eq!(told, Ok(8), "{what}: the front end is told");
        assert_eq!(second.run(READ, 0, &[(DATA, 4096)]), (OK, 4097), "{what}: the other ring");
        // The ring works again after it was stopped and set up anew.
        front_end.stop_ring(0).expect("stopped");
        let mut again = Driver::new(&memory.map, 0, 64);
        again.write(again.available_ring(), &[0; 0x1000]);
        again.write(again.used_ring(), &[0; 0x1000]);
        again.start(&mut front_end, 0).expect("started again");
        assert_eq!(again.run(READ, 0, &[(DATA, 4096)]), (OK, 4097), "{what}: again");
    }
}

fn spoil_index(driver: &mut Driver<'_>) {
    driver.store(driver.available_ring() + 2, driver.available + 1000);
    driver.kick();
}

fn spoil_head(driver: &mut Driver<'_>) {
    driver.offer(64);
}

fn offer_twice(driver: &mut Driver<'_>) {
    driver.offer(0);
}

/// The front end has cut its memory off under a request's data: the request fails.
#[test]
fn data_in_memory_that_is_cut_off_fails_its_request_and_the_server_lives() {
    for kind in [READ, WRITE] {
        let harness = Harness::start(aes(512));
        let memory = Memory::new();
        let (front_end, mut driver) = started(&harness, &memory);
        driver.write(DATA, &[7; 4096]);
        assert_eq!(driver.run(WRITE, 0, &[(DATA, 4096)]), (OK, 1));
        ftruncate(&memory.files[2], 0).expect("cut off");
        assert_eq!(driver.run(kind, 0, &[(DATA, 4096)]).0, IO_ERR);
        harness.reports.wait_for("cut its memory off");
        let told = rustix::io::read(&driver.error, &mut [0; 8]);
        assert_eq!(told, Ok(8), "the front end is told");
        drop(front_end);
        assert_serves(&harness);
    }
}

#[test]
fn memory_that_is_cut_off_under_load_is_survived() {
    let harness = Harness::start(aes(512));
    let seed = 5;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    for _ in 0..20 {
        let memory = Memory::new();
        let (front_end, mut driver) = started(&harness, &memory);
        for slot in 0..8 {
            let kind = if slot % 2 == 0 { READ } else { WRITE };
            driver.submit(slot, kind, 0, &[(DATA + (1 << 19) * u64::from(slot), 1 << 19)]);
        }
        // Cut at any moment and anywhere, even the rings and the headers. From then on the test
        // does not touch the guest's own mapping.
        std::thread::sleep(Duration::from_micros(random.below(3000)));
        for file in &memory.files {
            let len = file.metadata().expect("a file").len();
            ftruncate(file, random.below(3) * len / 4 / 4096 * 4096).expect("cut off");
        }
        driver.kick();
        drop(front_end);
    }
    assert_serves(&harness);
}

#[test]
fn a_guest_whose_ring_never_runs_dry_keeps_no_other_client_from_the_sectors_that_it_writes() {
    let (disk, _faults) = faulty();
    let volume = over(disk, 4096);
    let harness = Harness::start(volume.clone());
    let memory = Memory::new();
    let mut front_end = FrontEnd::negotiated(&harness.socket(), 0);
    front_end.set_memory(&memory);
    let driver = Driver::new(&memory.map, 0, 8);
    // Both rings lie in one place: each answer of the server makes another request available.
    let (index, ring) = (driver.index, driver.used_ring());
    let word = |words: &[u16]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    // Two requests, in places 4 and 5. The first one writes a part of a sector, which needs the sector
    // for itself.
    let (base, end) = (4, 6);
    driver.write(ring, &word(&[0, end, 0, 0, 0, 0, 1, 0]));
    prepare(&driver, WRITE);
    let write = [(HEADER, 16, NEXT, 2), (DATA, 512, NEXT, 3), (STATUS, 1, DEVICE_WRITES, 0)];
    // The second one, and all later ones, have no room for a status: they are answered at once.
    put(&driver, driver.table(), &[&[(HEADER, 16, 0, 0)][..], &write].concat());
    front_end.ring_word(message::SET_VRING_NUM, index, 8).expect("accepted");
    front_end.ring_addresses(index, driver.table(), ring, ring).expect("accepted");
    front_end.ring_word(message::SET_VRING_BASE, index, base).expect("accepted");
    front_end.ring_event(message::SET_VRING_KICK, 0, &driver.kick).expect("accepted");
    front_end.ring_word(message::SET_VRING_ENABLE, index, 1).expect("started");
    let until = Instant::now() + Duration::from_secs(30);
    while driver.answered() == end {
        assert!(Instant::now() < until, "the ring does not run");
        std::thread::yield_now();
    }
    let mut queue = volume.queue(QueueConfig::new(1 << 16, 1)).expect("a queue");
    assert!(queue.submit(0, Io::read(0, 4096)).is_ok());
    while !queue.has_done() {
        assert!(Instant::now() < until, "another client gets no turn");
        queue.poll().expect("a queue that works");
        std::thread::yield_now();
    }
    assert!(queue.next_done().expect("an answer").result.is_ok());
}
