//! A server ends within bounded time, whatever its front end and its image do.

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use ucrypt_testkit::fault::{Fate, Rule};

use crate::driver::{Driver, OK, READ, started};
use crate::front_end::{Memory, message, words};
use crate::harness::{Harness, aes, faulty, over};
use crate::requests::DATA;

/// Makes a shared event block whoever uses it, as a front end may.
fn let_block(event: &OwnedFd) {
    let flags = fcntl_getfl(event).expect("flags");
    fcntl_setfl(event, flags & !OFlags::NONBLOCK).expect("blocks from now on");
}

/// Fills an event's counter, so that the next signal has no room. The server may signal meanwhile.
fn fill(event: &OwnedFd) {
    let full = (u64::MAX - 1).to_ne_bytes();
    while let Err(error) = rustix::io::write(event, &full) {
        assert_eq!(error, Errno::AGAIN, "an event that does not block");
        let _ = rustix::io::read(event, &mut [0; 8]);
    }
}

/// Waits for an answer without using the call event.
fn await_answer(driver: &mut Driver<'_>) -> u8 {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some((head, _)) = driver.answer_within(Duration::ZERO) {
            return driver.status_of(head);
        }
        assert!(Instant::now() < until, "no answer within 30 s");
        std::thread::yield_now();
    }
}

#[test]
fn a_front_end_that_makes_its_call_block_does_not_keep_the_server_from_ending() {
    let harness = Harness::start(aes(512));
    let memory = Memory::new();
    let (_front_end, mut driver) = started(&harness, &memory);
    for event in [&driver.call, &driver.error] {
        fill(event);
        let_block(event);
    }
    for slot in 0..4 {
        driver.submit(slot, READ, 0, &[(DATA, 4096)]);
        assert_eq!(await_answer(&mut driver), OK);
    }
    // The same for the error event: break the ring.
    driver.offer(64);
    harness.reports.wait_for("not in its table");
    harness.stop_or_fail();
}

#[test]
fn a_front_end_that_takes_its_kicks_back_does_not_keep_the_server_from_ending() {
    let harness = Harness::start(aes(512));
    let memory = Memory::new();
    let (_front_end, driver) = started(&harness, &memory);
    let_block(&driver.kick);
    // Aims at the time between the server's poll and its read.
    let take_back = || {
        let mut counter = [0; 8];
        let counter = &mut [IoSliceMut::new(&mut counter)];
        let _ = preadv2(&driver.kick, counter, u64::MAX, ReadWriteFlags::NOWAIT);
    };
    std::thread::scope(|scope| {
        let kicker = scope.spawn(|| (0..50_000).for_each(|_| driver.kick()));
        while !kicker.is_finished() {
            take_back();
        }
    });
    take_back();
    harness.stop_or_fail();
}

#[test]
fn requests_that_never_end_do_not_keep_the_server_from_ending() {
    for waits_for_ring in [false, true] {
        let (disk, faults) = faulty();
        let harness = Harness::impatient(over(disk, 512));
        let memory = Memory::new();
        let (mut front_end, mut driver) = started(&harness, &memory);
        faults.add(Rule::new(Fate::Hang));
        for slot in 0..3 {
            driver.submit(slot, READ, 80 * u64::from(slot), &[(DATA, 4096)]);
        }
        faults.await_met(3);
        if waits_for_ring {
            // The front end wants the ring to stop, and the connection waits for that.
            let body = words(&[0, 0]);
            front_end.send(message::GET_VRING_BASE, 0, &body, &[]).expect("sent");
        }
        let reports = harness.stop_or_fail();
        faults.resume();
        assert!(
            reports.iter().any(|line| line.contains("3 requests did not end")),
            "it is said: {reports:?}"
        );
    }
}

#[test]
fn a_front_end_that_reads_nothing_does_not_keep_the_server_from_ending() {
    let harness = Harness::start(aes(512));
    let memory = Memory::new();
    let (mut front_end, _driver) = started(&harness, &memory);
    // Send until the server cannot answer any more, and therefore reads nothing either.
    front_end.set_nonblocking();
    while front_end.send(message::GET_FEATURES, 0, &[], &[]).is_ok() {}
    harness.stop_or_fail();
}
