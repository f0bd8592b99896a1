//! The requests of a well-behaved driver.

use std::sync::Arc;

use ucrypt_backend::Errno;
use ucrypt_engine::VolumeOptions;
use ucrypt_testkit::Random;
use ucrypt_testkit::fault::{Access, Fate, Rule};

use crate::driver::{
    DISCARD, Driver, FLUSH, GET_ID, IO_ERR, OK, READ, Run, UNSUPPORTED, WRITE, WRITE_ZEROES,
    started,
};
use crate::front_end::{FrontEnd, Memory};
use crate::harness::{Harness, LEN, aes, faulty, over, with_options};

/// Address of the data in the guest's memory.
pub(crate) const DATA: u64 = 1 << 32;

/// The feature bit.
const EVENT_IDX: u64 = 1 << 29;

#[test]
fn random_requests_in_any_pieces_do_what_an_array_of_bytes_would() {
    for (sector_size, without) in [(512, 0), (4096, 0), (512, EVENT_IDX)] {
        let seed = 5 + u64::from(sector_size);
        println!("sectors of {sector_size}, without features {without:#x}, seed {seed}");
        random_requests(sector_size, without, seed);
    }
}

fn random_requests(sector_size: u32, without: u64, seed: u64) {
    let harness = Harness::start(aes(sector_size));
    let memory = Memory::new();
    let mut front_end = FrontEnd::negotiated(&harness.socket(), without);
    front_end.set_memory(&memory);
    let mut driver = Driver::new(&memory.map, 0, 128);
    driver.event_idx = without & EVENT_IDX == 0;
    driver.start(&mut front_end, 0).expect("started");

    let mut random = Random::new(seed);
    let mut model = vec![0; LEN as usize];
    for chunk in 0..LEN / (1 << 20) {
        // From now on all content is known.
        let zeroes = driver.run_range(WRITE_ZEROES, DATA, (chunk * 2048, 2048, 0));
        assert_eq!(zeroes, OK);
    }
    for round in 0..300u64 {
        let sectors = 1 + random.below(300);
        let sector = random.below(LEN / 512 - sectors);
        let runs = runs(&mut random, sectors * 512);
        let range = (sector * 512) as usize..((sector + sectors) * 512) as usize;
        match random.below(8) {
            0 => {
                let unmap = random.below(2) as u32;
                let range_at = DATA + (8 << 20) - 16;
                let zeroes = (sector, sectors as u32, unmap);
                assert_eq!(driver.run_range(WRITE_ZEROES, range_at, zeroes), OK);
                model[range].fill(0);
            }
            1 => assert_eq!(driver.run(FLUSH, 0, &[]), (OK, 1)),
            2..5 => {
                let bytes: Vec<u8> = (0..sectors * 512).map(|at| (at / 3 + round) as u8).collect();
                let mut rest = &bytes[..];
                for &(at, len) in &runs {
                    let (part, behind) = rest.split_at(len as usize);
                    driver.write(at, part);
                    rest = behind;
                }
                assert_eq!(driver.run(WRITE, sector, &runs), (OK, 1));
                let after: Vec<u8> =
                    runs.iter().flat_map(|&(at, len)| driver.read(at, len as usize)).collect();
                assert!(after == bytes, "the guest's memory was changed by a write");
                model[range].copy_from_slice(&bytes);
            }
            _ => {
                for &(at, len) in &runs {
                    driver.write(at, &vec![0xdd; len as usize]);
                }
                let written = (sectors * 512 + 1) as u32;
                assert_eq!(driver.run(READ, sector, &runs), (OK, written));
                let read: Vec<u8> =
                    runs.iter().flat_map(|&(at, len)| driver.read(at, len as usize)).collect();
                assert!(read == model[range], "round {round}: {sectors} at {sector} ({seed})");
            }
        }
    }
    assert_eq!(harness.reports.lines(), [""; 0]);
}

/// Runs of the guest's memory with `len` bytes in all, at most 126 runs: whole sectors, any bytes,
/// or one run.
pub(crate) fn runs(random: &mut Random, len: u64) -> Vec<Run> {
    let mut runs = Vec::new();
    let (mut left, mut at) = (len, DATA + random.below(1 << 20));
    let unit = [512, 4096, 1, len][random.below(4) as usize];
    while left > 0 {
        let last = runs.len() == 125;
        let run =
            if last { left } else { (1 + random.below(16384)).next_multiple_of(unit).min(left) };
        runs.push((at, run as u32));
        at += run + random.below(5000);
        left -= run;
    }
    runs
}

#[test]
fn the_disk_says_what_it_is() {
    let harness = Harness::start(aes(4096));
    let memory = Memory::new();
    let mut front_end = FrontEnd::negotiated(&harness.socket(), 0);
    front_end.set_memory(&memory);
    let mut driver = Driver::new(&memory.map, 0, 64);
    driver.start(&mut front_end, 0).expect("started");
    driver.write(DATA, &[0xdd; 64]);
    assert_eq!(driver.run(GET_ID, 0, &[(DATA, 20)]), (OK, 21));
    assert_eq!(driver.read(DATA, 21), *b"test-disk\0\0\0\0\0\0\0\0\0\0\0\xdd");
    assert_eq!(driver.run(GET_ID, 0, &[(DATA, 4), (DATA + 8, 56)]), (OK, 21));
    assert_eq!(driver.read(DATA, 4), *b"test");
}

#[test]
fn sectors_are_encrypted_where_they_belong_and_discarded_when_asked() {
    let backend = Arc::new(ucrypt_backend::memory(LEN).expect("memory"));
    let harness = Harness::start(over(backend.clone(), 512));
    let memory = Memory::new();
    let (_front_end, mut driver) = started(&harness, &memory);
    driver.write(DATA, &[7; 8192]);
    assert_eq!(driver.run(WRITE, 8, &[(DATA, 8192)]), (OK, 1));
    let mut stored = [0; 8192];
    backend.read_exact_at(4096, &mut stored).expect("read");
    assert_ne!(stored, [7; 8192]);
    assert_ne!(stored[..512], stored[512..1024], "each sector is encrypted for itself");
    assert_eq!(driver.run_range(DISCARD, DATA, (8, 8, 0)), OK);
    backend.read_exact_at(4096, &mut stored).expect("read");
    assert!(stored[..4096] == [0; 4096] && stored[4096..] != [0; 4096]);
}

#[test]
fn what_cannot_be_done_fails_and_the_next_request_does_not() {
    let harness = Harness::start(aes(512));
    let memory = Memory::new();
    let (_front_end, mut driver) = started(&harness, &memory);
    let end = LEN / 512;
    let page = [(DATA, 4096)];
    for (what, kind, sector, data, status) in [
        ("beyond the end", READ, end - 7, &page[..], IO_ERR),
        ("beyond the end", WRITE, end, &page, IO_ERR),
        ("beyond 2^64", READ, u64::MAX / 512 + 1, &page, IO_ERR),
        ("beyond 2^64 by its length", WRITE, u64::MAX / 512 - 1, &page, IO_ERR),
        ("half a sector", READ, 0, &[(DATA, 4096), (DATA + 8192, 256)], IO_ERR),
        ("half a sector", WRITE, 0, &[(DATA, 100)], IO_ERR),
        ("an unknown kind", 99, 0, &page, UNSUPPORTED),
        ("a passed-through SCSI command", 2, 0, &page, UNSUPPORTED),
        ("no range", DISCARD, 0, &[], IO_ERR),
        ("half a range", WRITE_ZEROES, 0, &[(DATA, 8)], IO_ERR),
        ("two ranges", WRITE_ZEROES, 0, &[(DATA, 32)], IO_ERR),
    ] {
        let failed = driver.run(kind, sector, data);
        assert_eq!(failed, (status, 1), "{what}");
        assert_eq!(driver.run(READ, 0, &page), (OK, 4097), "after: {what}");
    }
    for (what, kind, range, status) in [
        ("discard with a flag", DISCARD, (0, 8, 1), UNSUPPORTED),
        ("an unknown flag", WRITE_ZEROES, (0, 8, 2), UNSUPPORTED),
        ("too much", WRITE_ZEROES, (0, 32769, 0), IO_ERR),
        ("too much", DISCARD, (0, u32::MAX, 0), IO_ERR),
        ("beyond the end", WRITE_ZEROES, (end - 1, 2, 0), IO_ERR),
        ("beyond 2^64", DISCARD, (u64::MAX, 1, 0), IO_ERR),
    ] {
        assert_eq!(driver.run_range(kind, DATA, range), status, "{what}");
    }
    assert_eq!(harness.reports.lines(), [""; 0], "a guest's errors are its own affair");
}

#[test]
fn a_read_only_volume_refuses_what_would_change_it() {
    let backend = Arc::new(ucrypt_backend::memory(LEN).expect("memory"));
    let options = VolumeOptions { read_only: true, ..VolumeOptions::default() };
    let harness = Harness::start(with_options(backend, 512, options));
    let memory = Memory::new();
    let mut front_end = FrontEnd::connect(&harness.socket());
    let features = front_end.ask_u64(crate::front_end::message::GET_FEATURES);
    assert_eq!(features & (1 << 5 | 1 << 13 | 1 << 14), 1 << 5);
    drop(front_end);
    let (_front_end, mut driver) = started(&harness, &memory);
    let page = [(DATA, 4096)];
    assert_eq!(driver.run(WRITE, 0, &page), (IO_ERR, 1));
    assert_eq!(driver.run_range(WRITE_ZEROES, DATA, (0, 8, 0)), IO_ERR);
    assert_ne!(driver.run_range(DISCARD, DATA, (0, 8, 0)), OK);
    assert_eq!(driver.run(READ, 0, &page), (OK, 4097));
    assert_eq!(driver.run(FLUSH, 0, &[]), (OK, 1));
}

#[test]
fn an_error_of_the_backend_reaches_the_guest_and_nobody_else() {
    let (disk, faults) = faulty();
    let rule = Rule::new(Fate::Fail(Errno::IO)).on(Access::Write);
    faults.add(rule.range(LEN - (1 << 20)..LEN));
    let harness = Harness::start(over(disk, 512));
    let memory = Memory::new();
    let (_front_end, mut driver) = started(&harness, &memory);
    let last = LEN / 512 - 8;
    assert_eq!(driver.run(WRITE, last, &[(DATA, 4096)]), (IO_ERR, 1));
    assert_eq!(driver.run(WRITE, 0, &[(DATA, 4096)]), (OK, 1));
    assert_eq!(driver.run(READ, last, &[(DATA, 4096)]), (OK, 4097));
}
