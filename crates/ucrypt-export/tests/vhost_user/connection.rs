//! Front ends that come and go, and the messages that they may not send.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{MemfdFlags, OFlags, memfd_create};
use ucrypt_testkit::Random;

use crate::driver::{Driver, OK, READ, started};
use crate::front_end::{FrontEnd, Memory, USER_BASE, event, memfd, message, words};
use crate::harness::{Harness, aes};
use crate::requests::DATA;

/// Checks that a well-behaved front end is still served.
#[track_caller]
pub(crate) fn assert_serves(harness: &Harness) {
    let memory = Memory::new();
    let (_front_end, mut driver) = started(harness, &memory);
    assert_eq!(driver.run(READ, 0, &[(DATA, 4096)]), (OK, 4097));
}

#[test]
fn front_ends_are_served_one_after_the_other_and_never_two() {
    let harness = Harness::start(aes(512));
    for _ in 0..3 {
        assert_serves(&harness);
    }
    let memory = Memory::new();
    let (front_end, mut driver) = started(&harness, &memory);
    let mut second = FrontEnd::connect(&harness.socket());
    assert!(second.receive().is_err(), "it is turned away");
    harness.reports.wait_for("turned away");
    assert_eq!(driver.run(READ, 0, &[(DATA, 4096)]), (OK, 4097), "the first one goes on");
    drop(front_end);
    assert_serves(&harness);
}

#[test]
fn a_front_end_in_the_middle_of_a_message_keeps_nobody_waiting() {
    let harness = Harness::start(aes(512));
    let mut message = Vec::new();
    for word in [message::SET_PROTOCOL_FEATURES, 1, 8] {
        message.extend(word.to_le_bytes());
    }
    message.extend([0; 8]);
    for cut in 1..message.len() {
        let mut first = FrontEnd::connect(&harness.socket());
        first.ask_u64(message::GET_FEATURES);
        first.send_raw(&message[..cut], &[]).expect("sent");
        let mut second = FrontEnd::connect(&harness.socket());
        assert!(second.receive().is_err(), "it is turned away at byte {cut}");
        first.send_raw(&message[cut..], &[]).expect("sent");
        assert!(first.ask_u64(message::GET_FEATURES) != 0, "it goes on");
    }
    // It may also leave there.
    let mut first = FrontEnd::connect(&harness.socket());
    first.send_raw(&message[..5], &[]).expect("sent");
    drop(first);
    assert_serves(&harness);
}

/// A setuid program that the server started had the plaintext in a guest's memory.
#[test]
fn what_came_with_messages_is_closed_in_programs_that_the_process_starts() {
    let harness = Harness::start(aes(512));
    let name = format!("guest-{}", Random::new(u64::from(std::process::id())).below(1 << 40));
    let file = File::from(memfd_create(&name, MemfdFlags::CLOEXEC).expect("a memfd"));
    file.set_len(1 << 20).expect("as long as that");
    let mut front_end = FrontEnd::negotiated(&harness.socket(), 0);
    front_end.set_table(1, &[0, 1 << 20, USER_BASE, 0], &[&file]).expect("accepted");
    let mut found = 0;
    for entry in std::fs::read_dir("/proc/self/fd").expect("descriptors").flatten() {
        let link = std::fs::read_link(entry.path()).unwrap_or_default();
        if !link.to_string_lossy().contains(&name) {
            continue;
        }
        let info = Path::new("/proc/self/fdinfo").join(entry.file_name());
        let info = std::fs::read_to_string(info).expect("of an open file");
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).expect("flags");
        let flags = u32::from_str_radix(flags.trim(), 8).expect("octal");
        assert!(flags & OFlags::CLOEXEC.bits() != 0, "{link:?}: {info}");
        found += 1;
    }
    assert!(found >= 2, "ours and the server's");
}

#[test]
fn what_breaks_the_protocol_ends_the_connection_and_nothing_else() {
    let harness = Harness::start(aes(512));
    let socket = harness.socket();
    let connect = || FrontEnd::negotiated(&socket, 0);
    let file = memfd(1 << 20);
    let fd: &dyn AsFd = &file;
    let region = |at: u64, len: u64| [at, len, USER_BASE.wrapping_add(at), 0];

    // Memory that is not there, overlaps, or ends beyond the address space.
    assert!(connect().set_table(1, &region(0, 2 << 20), &[fd]).is_err(), "beyond the file");
    let twice = [region(0, 1 << 20), region(4096, 4096)].concat();
    assert!(connect().set_table(2, &twice, &[fd, fd]).is_err(), "overlapping");
    assert!(connect().set_table(1, &region(u64::MAX - 4095, 8192), &[fd]).is_err(), "wraps");
    assert!(connect().set_table(1, &region(0, 0), &[fd]).is_err(), "empty");
    assert!(connect().set_table(2, &region(0, 4096), &[fd]).is_err(), "a region is missing");
    assert!(connect().set_table(1, &region(0, 4096), &[]).is_err(), "a file is missing");
    assert!(connect().set_table(99, &[0; 396], &[fd]).is_err(), "too many");
    assert!(connect().set_table(1, &region(0, 4096), &[&event()]).is_err(), "no memory at all");

    // Impossible rings.
    for size in [0, 3, 100, 2048, 65536, u32::MAX] {
        assert!(connect().ring_word(message::SET_VRING_NUM, 0, size).is_err(), "size {size}");
    }
    assert!(connect().ring_word(message::SET_VRING_NUM, 64, 128).is_err(), "no such ring");
    assert!(connect().ring_word(message::SET_VRING_BASE, 0, 65536).is_err(), "no such index");
    assert!(connect().stop_ring(u32::MAX).is_err(), "no such ring");
    assert!(connect().ring_event(message::SET_VRING_KICK, 65, &event()).is_err(), "no such ring");
    assert!(connect().ring_event(message::SET_VRING_KICK, 0, &file).is_err(), "no event");
    assert!(connect().ring_event(message::SET_VRING_CALL, 0, &file).is_err(), "no event");
    assert!(connect().ring_event(message::SET_VRING_ERR, 0, &file).is_err(), "no event");
    let no_event = connect().order(message::SET_VRING_KICK, &0x100u64.to_le_bytes(), &[]);
    assert!(no_event.is_err(), "a ring that has to be polled");
    let memory = Memory::new();
    let start = |driver: &Driver<'_>, place: [u64; 3]| {
        let mut front_end = connect();
        front_end.set_memory(&memory);
        driver.start(&mut front_end, 0)?;
        front_end.ring_addresses(0, place[0], place[1], place[2])
    };
    let driver = Driver::new(&memory.map, 0, 128);
    for place in [
        [(1 << 20) * 8, 0xa000, 0x8000],
        [0x8, 0xa000, 0x8000],
        [0, 0xa001, 0x8000],
        [0, 0xa000, (8 << 20) - 100],
        [0, u64::MAX - USER_BASE - 16, 0x8000],
    ] {
        assert!(start(&driver, place).is_err(), "a ring at {place:x?}");
    }

    // Features that were not offered, configuration that is not there, areas that make no sense.
    assert!(connect().order(message::SET_FEATURES, &[0xff; 8], &[]).is_err());
    assert!(connect().config(0xf00, 0x200).is_err());
    assert!(connect().set_config(32, &[2]).is_err());
    assert!(connect().get_inflight(65, 128).is_err());
    assert!(connect().get_inflight(1, 0).is_err());
    assert!(connect().get_inflight(1, u16::MAX).is_err());
    let area = |len: u64, offset: u64| {
        let mut body = [len.to_le_bytes(), offset.to_le_bytes()].concat();
        body.extend([1, 0, 128, 0, 0, 0, 0, 0]);
        body
    };
    for body in [area(8, 0), area(1 << 30, u64::MAX - 4095), area(1 << 30, 1 << 30)] {
        assert!(connect().order(message::SET_INFLIGHT_FD, &body, &[fd]).is_err());
    }
    // Messages of the wrong length, without their file, or of an unknown kind.
    assert!(connect().order(message::SET_VRING_NUM, &[0; 4], &[]).is_err());
    assert!(connect().order(message::SET_INFLIGHT_FD, &area(1 << 20, 0), &[]).is_err());
    assert!(connect().order(9999, &[], &[]).is_err());
    let mut front_end = connect();
    front_end.send_raw(&words(&[message::SET_OWNER, 1, u32::MAX]), &[]).expect("sent");
    assert!(front_end.receive().is_err());
    let mut front_end = connect();
    front_end.send_raw(&[1, 2, 3], &[]).expect("sent");
    drop(front_end);
    assert_serves(&harness);
}

#[test]
fn a_front_end_that_stops_in_a_message_does_not_keep_the_server_from_ending() {
    let mut harness = Harness::start(aes(512));
    let mut front_end = FrontEnd::connect(&harness.socket());
    front_end.send_raw(&[1, 2, 3], &[]).expect("sent");
    std::thread::sleep(std::time::Duration::from_millis(50));
    harness.stop();
    assert!(!harness.socket().exists());
    assert!(front_end.receive().is_err());
}

#[test]
fn random_messages_harm_nobody() {
    let harness = Harness::start(aes(512));
    let seed = 77;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let file = memfd(1 << 20);
    for _ in 0..300 {
        let mut front_end = FrontEnd::connect(&harness.socket());
        let messages = random.below(12);
        for _ in 0..messages {
            let code = random.below(45) as u32;
            let flags = if random.below(2) == 0 { 0 } else { random.bits() as u32 };
            let len = [0, 8, 12, 16, 40, random.below(200)][random.below(6) as usize];
            let word = |random: &mut Random| match random.below(4) {
                0 => random.bits(),
                1 => USER_BASE + random.below(1 << 20) / 4096 * 4096,
                2 => 1 << random.below(20),
                _ => random.below(4),
            };
            let mut body = Vec::new();
            while (body.len() as u64) < len {
                body.extend(word(&mut random).to_le_bytes());
            }
            body.truncate(len as usize);
            let event = event();
            let fds: [&dyn AsFd; 2] = [&file, &event];
            let from = random.below(2) as usize;
            let fds = &fds[from..from + random.below(2) as usize];
            if front_end.send(code, flags & !3, &body, fds).is_err() {
                break;
            }
        }
    }
    assert_serves(&harness);
}
