//! The server ends while requests are in flight, and another one takes its place: each request is
//! answered once, however the server ended.

use std::os::fd::OwnedFd;

use ucrypt_testkit::fault::{Fate, Rule};

use crate::driver::{Driver, OK, READ, WRITE, started};
use crate::front_end::{FrontEnd, Memory, message};
use crate::harness::{Harness, aes, faulty, over};
use crate::requests::DATA;

/// A front end with an area for requests in flight: a new one, or that of an earlier connection.
fn with_area(
    harness: &Harness,
    memory: &Memory,
    area: Option<(Vec<u8>, OwnedFd)>,
) -> (FrontEnd, (Vec<u8>, OwnedFd)) {
    let mut front_end = FrontEnd::negotiated(&harness.socket(), 0);
    let area = area.unwrap_or_else(|| front_end.get_inflight(2, 64).expect("an area"));
    front_end.order(message::SET_INFLIGHT_FD, &area.0, &[&area.1]).expect("accepted");
    front_end.set_memory(memory);
    (front_end, area)
}

#[test]
fn a_server_that_ends_orderly_answers_what_it_took_and_the_next_goes_on() {
    let (disk, faults) = faulty();
    let mut harness = Harness::start(over(disk.clone(), 512));
    let memory = Memory::new();
    let (front_end, area) = with_area(&harness, &memory, None);
    let mut front_end = front_end;
    let mut driver = Driver::new(&memory.map, 0, 64);
    driver.start(&mut front_end, 0).expect("started");
    faults.add(Rule::new(Fate::Hang));
    for slot in 0..4 {
        driver.write(DATA + 4096 * slot, &[slot as u8 + 1; 4096]);
        // Not adjacent: neighbours would be merged into one operation.
        driver.submit(slot as u16, WRITE, 80 * slot, &[(DATA + 4096 * slot, 4096)]);
    }
    faults.await_met(4);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            faults.resume();
        });
        harness.stop();
    });
    for _ in 0..4 {
        let (head, _) = driver.answer_within(std::time::Duration::ZERO).expect("answered");
        assert_eq!(driver.status_of(head), OK);
    }
    // The guest goes on without noticing.
    driver.submit(4, READ, 80, &[(DATA + (1 << 20), 4096)]);
    drop(front_end);
    harness.restart(over(disk, 512));
    let (mut front_end, _) = with_area(&harness, &memory, Some(area));
    driver.start(&mut front_end, u32::from(driver.used)).expect("started");
    let (head, _) = driver.answer();
    assert_eq!(driver.status_of(head), OK);
    assert_eq!(driver.read(DATA + (1 << 20), 4096), [2; 4096]);
}

#[test]
fn requests_of_a_server_that_was_killed_are_done_by_the_next_one() {
    // A killed server leaves requests taken and marked, in the area and nowhere else.
    let first = Harness::start(over(faulty().0, 512));
    let (disk, faults) = faulty();
    faults.add(Rule::new(Fate::Hang));
    let killed = Harness::start(over(disk, 512));
    let (memory, copy) = (Memory::new(), Memory::new());
    let (mut front_end, area) = with_area(&killed, &memory, None);
    let mut driver = Driver::new(&memory.map, 1, 64);
    driver.start(&mut front_end, 0).expect("started");
    driver.write(DATA, &[7; 8192]);
    for (slot, sector) in [(5, 0), (2, 80)] {
        driver.submit(slot, WRITE, sector, &[(DATA, 4096)]);
    }
    faults.await_met(2);
    // Copy memory and area: the state at this moment, as if the process were gone.
    for ((at, len), _) in crate::front_end::REGIONS.into_iter().zip(&memory.files) {
        let bytes = driver.read(at, len as usize);
        vm_memory::Bytes::write_slice(&copy.map, &bytes, vm_memory::GuestAddress(at))
            .expect("copied");
    }
    let area_len = usize::try_from(rustix::fs::fstat(&area.1).expect("a file").st_size);
    let mut bytes = vec![0; area_len.expect("a length")];
    let frozen = crate::front_end::memfd(bytes.len() as u64);
    rustix::io::pread(&area.1, &mut bytes, 0).expect("read");
    rustix::io::pwrite(&frozen, &bytes, 0).expect("written");
    faults.resume();
    drop(front_end);

    let mut taken_over = Driver::new(&copy.map, 1, 64);
    taken_over.available = driver.available;
    // One more request that nobody has taken yet.
    taken_over.submit(0, READ, 80, &[(DATA + (1 << 20), 4096)]);
    let frozen = (area.0, OwnedFd::from(frozen));
    let (mut front_end, _) = with_area(&first, &copy, Some(frozen));
    taken_over.start(&mut front_end, 0).expect("started");
    let mut heads = Vec::new();
    for _ in 0..3 {
        let (head, _) = taken_over.answer();
        assert_eq!(taken_over.status_of(head), OK);
        heads.push(head);
    }
    heads.sort_unstable();
    assert_eq!(heads, [0, 16, 40], "each once");
    for sector in [0, 80] {
        assert_eq!(taken_over.run(READ, sector, &[(DATA + (2 << 20), 4096)]), (OK, 4097));
        assert_eq!(taken_over.read(DATA + (2 << 20), 4096), [7; 4096]);
    }
}

#[test]
fn a_front_end_that_comes_back_without_its_area_finds_the_ring_where_it_was() {
    let harness = Harness::start(aes(512));
    let memory = Memory::new();
    let (front_end, mut driver) = started(&harness, &memory);
    assert_eq!(driver.run(READ, 0, &[(DATA, 4096)]), (OK, 4097));
    drop(front_end);
    driver.submit(3, READ, 0, &[(DATA, 4096)]);
    let mut front_end = FrontEnd::negotiated(&harness.socket(), 0);
    front_end.set_memory(&memory);
    driver.start(&mut front_end, 1).expect("started");
    assert_eq!(driver.answer(), (24, 4097));
}
