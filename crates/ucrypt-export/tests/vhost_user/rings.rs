//! Several rings, many requests in flight, and rings that stop and start.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ucrypt_testkit::fault::{Fate, Rule};

use crate::driver::{Driver, FLUSH, OK, READ, WRITE, started};
use crate::front_end::{FrontEnd, Memory, message};
use crate::harness::{Harness, aes, faulty, over};
use crate::requests::DATA;

#[test]
fn several_rings_serve_one_disk_at_the_same_time() {
    let harness = Harness::start(aes(512));
    let memory = Memory::new();
    let mut front_end = FrontEnd::negotiated(&harness.socket(), 0);
    assert!(front_end.ask_u64(message::GET_QUEUE_NUM) >= 4);
    front_end.set_memory(&memory);
    let drivers: Vec<_> = (0..4).map(|index| Driver::new(&memory.map, index, 128)).collect();
    for driver in &drivers {
        driver.start(&mut front_end, 0).expect("started");
    }
    std::thread::scope(|scope| {
        for mut driver in drivers {
            scope.spawn(move || {
                let ring = u64::from(driver.index);
                let data = DATA + ring * (1 << 20);
                for round in 0..50u64 {
                    // Each ring has every fourth page of the disk; 16 requests at a time.
                    for (kind, tag) in [(WRITE, round), (READ, 0xdd)] {
                        for slot in 0..16u64 {
                            let at = data + slot * 4096;
                            driver.write(at, &[(tag + slot + ring) as u8; 4096]);
                            let page = (slot * 4 + ring) * 8;
                            driver.submit(slot as u16, kind, page, &[(at, 4096)]);
                        }
                        for _ in 0..16 {
                            let (head, _) = driver.answer();
                            assert_eq!(driver.status_of(head), OK);
                        }
                    }
                    for slot in 0..16u64 {
                        let expected = [(round + slot + ring) as u8; 4096];
                        assert!(driver.read(data + slot * 4096, 4096) == expected);
                    }
                    assert_eq!(driver.run(FLUSH, 0, &[]), (OK, 1));
                }
            });
        }
    });
    assert_eq!(harness.reports.lines(), [""; 0]);
}

#[test]
fn a_ring_that_is_stopped_answers_what_it_took_and_goes_on_where_it_was() {
    let (disk, faults) = faulty();
    let harness = Harness::start(over(disk, 512));
    let memory = Memory::new();
    let (mut front_end, mut driver) = started(&harness, &memory);
    driver.write(DATA, &[3; 4096]);
    assert_eq!(driver.run(WRITE, 0, &[(DATA, 4096)]), (OK, 1));
    faults.add(Rule::new(Fate::Hang));
    for slot in 0..4 {
        driver.submit(slot, READ, 0, &[(DATA + 8192 * u64::from(slot + 1), 4096)]);
    }
    faults.await_met(4);
    let opened = AtomicBool::new(false);
    let base = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            opened.store(true, Ordering::SeqCst);
            faults.resume();
        });
        let base = front_end.stop_ring(0).expect("stopped");
        assert!(opened.load(Ordering::SeqCst), "it stopped before its requests were answered");
        base
    });
    assert_eq!(base, 5);
    for slot in 0..4 {
        let (head, _) = driver.answer_within(Duration::ZERO).expect("answered before it stopped");
        assert_eq!(driver.status_of(head), OK);
        assert_eq!(driver.read(DATA + 8192 * (slot + 1), 4096), [3; 4096]);
    }
    driver.submit(0, READ, 0, &[(DATA, 4096)]);
    assert!(driver.answer_within(Duration::from_millis(100)).is_none(), "it stands still");
    driver.start(&mut front_end, base).expect("started again");
    assert_eq!(driver.answer().1, 4097);
    front_end.ring_word(message::SET_VRING_ENABLE, 0, 0).expect("disabled");
    driver.submit(0, READ, 0, &[(DATA, 4096)]);
    assert!(driver.answer_within(Duration::from_millis(100)).is_none(), "it is disabled");
    front_end.ring_word(message::SET_VRING_ENABLE, 0, 1).expect("enabled");
    assert_eq!(driver.answer().1, 4097);
}
