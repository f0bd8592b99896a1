//! The end of a connection, in every state: accepted requests are completed, the server lives on.

use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ucrypt_backend::model::ModelBackend;
use ucrypt_engine::VolumeOptions;
use ucrypt_testkit::Random;

use crate::client::{Client, DISC, READ, WRITE};
use crate::harness::{Harness, SMALL, aes, over, plain};

/// Checks that the server still serves a new client.
fn assert_alive(harness: &Harness) {
    assert_eq!(Client::simple(harness).read(0, 1).len(), 1);
}

#[test]
fn a_client_may_leave_in_any_state_of_the_handshake() {
    let harness = Harness::start(plain(SMALL));
    let hello = b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0";
    for cut in 0..hello.len() {
        let stream = std::os::unix::net::UnixStream::connect(harness.socket()).expect("connected");
        std::io::Write::write_all(&mut &stream, &hello[..cut]).expect("sent");
        drop(stream);
    }
    assert_alive(&harness);
}

#[test]
fn a_write_that_came_in_part_is_not_done() {
    let harness = Harness::start(plain(SMALL));
    let mut whole = Client::header(WRITE, 0, 1, 0, 100_000);
    whole.extend(vec![9; 100_000]);
    for cut in [1, 4, 27, 28, 29, 50_000, whole.len() - 1] {
        let mut client = Client::simple(&harness);
        client.send(&whole[..cut]);
        client.stream.shutdown(Shutdown::Write).expect("half closed");
        assert!(client.is_closed(), "cut at {cut}");
    }
    assert_eq!(Client::simple(&harness).read(0, 100_000), vec![0; 100_000]);
}

#[test]
fn writes_before_a_disconnect_are_done_and_answered() {
    let harness = Harness::start(aes(SMALL, 512));
    let mut client = Client::structured(&harness);
    for at in 0..64 {
        client.request_write(0, at * 4096, &[at as u8 + 1; 4096]);
    }
    client.request(DISC, 0, 0, 0);
    for _ in 0..64 {
        assert_eq!(client.reply().error, 0);
    }
    assert!(client.is_closed());
    let mut client = Client::structured(&harness);
    for at in 0..64 {
        assert_eq!(client.read(at * 4096, 4096), [at as u8 + 1; 4096]);
    }
}

#[test]
fn a_half_closed_client_still_gets_its_replies() {
    let harness = Harness::start(plain(SMALL));
    let mut client = Client::simple(&harness);
    for _ in 0..20 {
        client.request(READ, 0, 0, 1 << 20);
    }
    client.stream.shutdown(Shutdown::Write).expect("half closed");
    for _ in 0..20 {
        assert_eq!(client.reply().data.len(), 1 << 20);
    }
    assert!(client.is_closed());
}

#[test]
fn a_client_that_leaves_its_replies_unread_harms_nobody() {
    let harness = Harness::start(plain(SMALL));
    for _ in 0..8 {
        let mut client = Client::simple(&harness);
        for _ in 0..64 {
            client.request(READ, 0, 0, SMALL as u32);
        }
        client.hang_up();
    }
    assert_alive(&harness);
}

#[test]
fn nothing_more_is_read_for_a_client_that_has_gone() {
    // This card takes 57 ms for 1 MiB.
    let card = ModelBackend::new("sd2015", SMALL).expect("a model");
    let volume = over(Arc::new(card), VolumeOptions::default());
    let mut harness = Harness::start(volume.clone());
    let mut client = Client::simple(&harness);
    for _ in 0..64 {
        client.request(READ, 0, 0, 1 << 20);
    }
    client.reply();
    client.hang_up();
    harness.stop();
    let totals = volume.totals();
    assert!((1..64).contains(&totals.reads), "{totals:?}");
    assert_eq!(totals.errors, 0, "a client that goes is no error");
}

#[test]
fn a_bad_magic_ends_the_connection_after_the_replies() {
    let harness = Harness::start(plain(SMALL));
    let mut client = Client::simple(&harness);
    client.request_write(0, 0, b"kept");
    client.send(&[0x55; 28]);
    assert_eq!(client.reply().error, 0);
    assert!(client.is_closed());
    harness.reports.wait_for("bad request magic");
    assert_eq!(Client::simple(&harness).read(0, 4), b"kept");
}

#[test]
fn clients_that_break_the_protocol_over_and_over_cannot_fill_the_log() {
    let harness = Harness::start(plain(SMALL));
    for _ in 0..20 {
        let mut client = Client::simple(&harness);
        client.send(&[0x55; 28]);
        assert!(client.is_closed());
        let mut greeted = Client::connect(&harness);
        greeted.send(&[0x55; 16]);
        assert!(greeted.is_closed());
    }
    harness.reports.wait_for("broke the protocol");
    assert_eq!(harness.reports.count("NBD client"), 1);
    assert_alive(&harness);
}

#[test]
fn a_server_that_is_told_to_stop_takes_nothing_more_before_anybody_waits_for_it() {
    let mut harness = Harness::start(plain(SMALL));
    let mut client = Client::simple(&harness);
    harness.server().stop();
    assert!(client.is_closed());
    harness.stop();
}

#[test]
fn a_write_too_long_to_skip_ends_the_connection_and_a_shorter_one_is_skipped() {
    let harness = Harness::start(plain(SMALL));
    let mut client = Client::simple(&harness);
    // Beyond the end, and longer than a write may be.
    for len in [32 << 20, 64 << 20] {
        assert_ne!(client.write(0, SMALL, &vec![1; len]), 0);
    }
    assert_eq!(client.read(0, 4), [0; 4]);
    client.send(&Client::header(WRITE, 0, 9, 0, (64 << 20) + 1));
    assert!(client.is_closed());
    harness.reports.wait_for("too long to skip");
    assert_alive(&harness);
}

#[test]
fn shutdown_finishes_what_was_taken_and_keeps_every_acknowledged_write() {
    let volume = aes(SMALL, 4096);
    let mut harness = Harness::start(volume.clone());
    let threads: Vec<_> = (0..4_u64)
        .map(|number| {
            let mut client = Client::structured(&harness);
            let shut = client.stream.try_clone().expect("a clone");
            let thread = std::thread::spawn(move || {
                let mut random = Random::new(number + 1);
                let mut acknowledged = Vec::new();
                // Each thread has a quarter of the volume, and writes each block once.
                for block in 0..SMALL / 4 / 4096 {
                    let at = number * (SMALL / 4) + block * 4096;
                    let data = random.bytes(4096);
                    let mut bytes = Client::header(WRITE, 0, block, at, 4096);
                    bytes.extend(&data);
                    if std::io::Write::write_all(&mut client.stream, &bytes).is_err() {
                        break;
                    }
                    let mut reply = [0; 16];
                    if std::io::Read::read_exact(&mut client.stream, &mut reply).is_err() {
                        break;
                    }
                    acknowledged.push((at, data));
                }
                acknowledged
            });
            (thread, shut)
        })
        .collect();
    std::thread::sleep(Duration::from_millis(20));
    harness.stop();
    let harness = Harness::start(volume);
    let mut client = Client::simple(&harness);
    for (thread, _) in threads {
        for (at, data) in thread.join().expect("a thread") {
            assert!(client.read(at, 4096) == data, "acknowledged and gone: byte {at}");
        }
    }
}

#[test]
fn shutdown_does_not_wait_for_ever_for_a_client_that_reads_nothing() {
    let volume = plain(SMALL);
    let mut harness = Harness::start(volume.clone());
    let mut deaf = Client::simple(&harness);
    for _ in 0..32 {
        deaf.request(READ, 0, 0, SMALL as u32);
    }
    // Wait until a reply waits for the client, and the next read for its memory.
    let until = Instant::now() + Duration::from_secs(30);
    while volume.totals().reads < 1 {
        assert!(Instant::now() < until, "the reads were not taken");
        std::thread::sleep(Duration::from_millis(1));
    }
    let _idle = Client::simple(&harness);
    let _greeted = Client::connect(&harness);
    harness.stop();
    assert!(!harness.socket().exists(), "the socket's file is gone");
}
