//! The guest's memory changes under running rings.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use ucrypt_testkit::fault::{Fate, Rule};

use crate::connection::assert_serves;
use crate::driver::{Driver, IO_ERR, OK, READ, WRITE, started};
use crate::front_end::{FrontEnd, Memory, REGIONS, USER_BASE, memfd, message};
use crate::harness::{Harness, aes, faulty, over};
use crate::requests::DATA;

/// Indices of the regions with the rings and with the data.
const RINGS: usize = 0;
const DATA_REGION: usize = 2;

#[test]
fn a_ring_whose_memory_is_removed_and_added_again_goes_on() {
    let harness = Harness::start(aes(512));
    let memory = Memory::new();
    let (mut front_end, mut driver) = started(&harness, &memory);
    for round in 0..20 {
        front_end.remove_region(&memory, RINGS);
        if round % 2 == 0 {
            // The guest goes on meanwhile.
            driver.submit(0, READ, 0, &[(DATA, 4096)]);
        }
        front_end.add_region(&memory, RINGS);
        if round % 2 == 0 {
            let (head, written) = driver.answer();
            assert_eq!((head, driver.status_of(head), written), (0, OK, 4097), "round {round}");
        }
        assert_eq!(driver.run(READ, 0, &[(DATA, 4096)]), (OK, 4097), "round {round}");
    }
    assert_eq!(harness.reports.lines(), [""; 0]);
}

#[test]
fn a_request_whose_data_is_removed_and_added_again_does_not_fail() {
    let harness = Harness::start(aes(512));
    let memory = Memory::new();
    let mut front_end = FrontEnd::negotiated(&harness.socket(), 0);
    front_end.set_memory(&memory);
    let mut drivers = [0, 1].map(|index| Driver::new(&memory.map, index, 64));
    for driver in &drivers {
        driver.start(&mut front_end, 0).expect("started");
    }
    let [driver, other] = &mut drivers;
    // A page beside the data, for the other ring.
    let beside = (6 << 20, 4096);
    for round in 0..20 {
        front_end.remove_region(&memory, DATA_REGION);
        driver.submit(0, READ, 0, &[(DATA, 4096)]);
        // This gives the first ring time to look at its request.
        assert_eq!(other.run(READ, 0, &[beside]), (OK, 4097), "round {round}: another ring");
        front_end.add_region(&memory, DATA_REGION);
        let (head, written) = driver.answer();
        assert_eq!((head, driver.status_of(head), written), (0, OK, 4097), "round {round}");
    }
    // An address that was never memory fails at once, even while other memory is away.
    front_end.remove_region(&memory, DATA_REGION);
    assert_eq!(driver.run(READ, 0, &[(1 << 40, 4096)]), (IO_ERR, 1));
    // A request that waits for its memory does not prevent the ring from stopping, and is not taken.
    driver.submit(0, WRITE, 0, &[(DATA, 4096)]);
    let base = front_end.stop_ring(0).expect("stopped");
    assert_eq!(base, u32::from(driver.available) - 1);
    front_end.add_region(&memory, DATA_REGION);
    driver.start(&mut front_end, base).expect("started");
    assert_eq!(driver.answer(), (0, 1));
    assert_eq!(driver.status_of(0), OK);
    assert_eq!(harness.reports.lines(), [""; 0]);
}

#[test]
fn memory_is_taken_back_only_when_no_request_uses_it() {
    let (disk, faults) = faulty();
    let harness = Harness::start(over(disk, 512));
    let memory = Memory::new();
    let (mut front_end, mut driver) = started(&harness, &memory);
    driver.write(DATA, &[4; 4096]);
    assert_eq!(driver.run(WRITE, 0, &[(DATA, 4096)]), (OK, 1));
    faults.add(Rule::new(Fate::Hang));
    driver.submit(0, READ, 0, &[(DATA + 8192, 4096)]);
    faults.await_met(1);
    let opened = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            opened.store(true, Ordering::SeqCst);
            faults.resume();
        });
        front_end.remove_region(&memory, DATA_REGION);
        assert!(opened.load(Ordering::SeqCst), "it was taken back under a request");
    });
    let (head, written) = driver.answer();
    assert_eq!((driver.status_of(head), written), (OK, 4097));
    assert_eq!(driver.read(DATA + 8192, 4096), [4; 4096]);
    front_end.add_region(&memory, DATA_REGION);
    assert_eq!(driver.run(READ, 0, &[(DATA, 4096)]), (OK, 4097));
}

#[test]
fn a_ring_waits_for_a_table_of_memory_in_which_it_is() {
    let harness = Harness::start(aes(512));
    let memory = Memory::new();
    let (mut front_end, mut driver) = started(&harness, &memory);
    // Set the whole table anew, under a running ring.
    front_end.set_memory(&memory);
    assert_eq!(driver.run(READ, 0, &[(DATA, 4096)]), (OK, 4097));
    // Set a table without the ring, then with it again; and stop the ring in between.
    let (at, len) = REGIONS[DATA_REGION];
    let other = memfd(len);
    let without = [at, len, USER_BASE + at, 0];
    front_end.set_table(1, &without, &[&other]).expect("accepted");
    driver.submit(0, READ, 0, &[(DATA, 4096)]);
    front_end.set_memory(&memory);
    assert_eq!(driver.answer(), (0, 4097));
    front_end.set_table(1, &without, &[&other]).expect("accepted");
    let base = front_end.stop_ring(0).expect("stopped");
    assert_eq!(base, u32::from(driver.available));
    front_end.set_memory(&memory);
    driver.start(&mut front_end, base).expect("started");
    assert_eq!(driver.run(READ, 0, &[(DATA, 4096)]), (OK, 4097));
    assert_eq!(harness.reports.lines(), [""; 0]);
}

#[test]
fn a_ring_that_is_broken_stays_so_when_memory_changes() {
    let harness = Harness::start(aes(512));
    let memory = Memory::new();
    let (mut front_end, mut driver) = started(&harness, &memory);
    driver.offer(64);
    harness.reports.wait_for("not in its table");
    front_end.set_memory(&memory);
    front_end.remove_region(&memory, DATA_REGION);
    front_end.add_region(&memory, DATA_REGION);
    assert_eq!(harness.reports.lines().len(), 1, "{:?}", harness.reports.lines());
    drop(front_end);
    assert_serves(&harness);
}

#[test]
fn front_ends_with_many_regions_do_not_lock_others_out() {
    let harnesses = [(); 4].map(|()| Harness::start(aes(512)));
    let file = memfd(509 * 4096);
    let front_ends = harnesses.each_ref().map(|harness| {
        let mut front_end = FrontEnd::negotiated(&harness.socket(), 0);
        let slots = front_end.ask_u64(message::GET_MAX_MEM_SLOTS);
        for number in 0..slots {
            let at = number * 8192;
            let words = [0, at, 4096, USER_BASE + at, number * 4096];
            let body: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
            let added = front_end.order(message::ADD_MEM_REG, &body, &[&file.as_fd()]);
            added.unwrap_or_else(|_| panic!("region {number} was refused"));
        }
        front_end
    });
    drop(front_ends);
    harnesses.iter().for_each(assert_serves);
}
