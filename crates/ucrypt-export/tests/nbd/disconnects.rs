//! The end of a connection, in every state: accepted requests are completed, the server lives on.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ucrypt_backend::model::ModelBackend;
use ucrypt_engine::VolumeOptions;
use ucrypt_testkit::fault::{Fate, Rule};
use ucrypt_testkit::{FaultBackend, Faults, Random};

use crate::client::{Client, DISC, READ, WRITE, WRITE_ZEROES};
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
        (&stream).write_all(&hello[..cut]).expect("sent");
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
fn nothing_more_is_read_or_zeroed_for_a_client_that_has_gone() {
    // Flag 2: without holes; the card has to be written to.
    for (command, flags, length) in [(READ, 0, 1 << 20), (WRITE_ZEROES, 2, 256 << 10)] {
        let faults = Faults::new(1);
        let card = Arc::new(ModelBackend::new("sd2015", SMALL).expect("a model"));
        let backend = FaultBackend::new(card, faults.clone()).without_map();
        let volume = over(Arc::new(backend), VolumeOptions::default());
        let mut harness = Harness::start(volume.clone());
        let mut client = Client::simple(&harness);
        client.request(command, flags, 0, length);
        client.reply();
        // The disk answers nothing more until the client has gone.
        faults.add(Rule::new(Fate::Hang));
        for _ in 1..64 {
            client.request(command, flags, 0, length);
        }
        faults.await_met(1);
        client.hang_up();
        faults.resume();
        harness.stop();
        let totals = volume.totals();
        assert!((1..64).contains(&(totals.reads + totals.writes)), "{totals:?}");
        assert_eq!(totals.errors, 0, "a client that goes is no error");
    }
}

/// Over TCP the thread of an idle client spun, and never heard that the server was to end.
#[test]
fn a_server_ends_beside_a_client_that_asks_for_nothing() {
    for mut harness in [Harness::start(plain(SMALL)), Harness::on_tcp(plain(SMALL))] {
        let mut client = Client::simple(&harness);
        client.read(0, 4096);
        let server = harness.take();
        let (ended, has_ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            server.shutdown();
            // Nobody may wait for it any more.
            let _ = ended.send(());
        });
        assert!(client.is_closed());
        client.hang_up();
        has_ended.recv_timeout(Duration::from_secs(30)).expect("it ends");
    }
}

/// The replies that a client had yet to take were lost, one of them in its middle: the system drops what is not
/// sent when a connection on TCP is closed while requests are unread.
#[test]
fn the_last_replies_are_whole_also_if_requests_are_unread() {
    const LEN: u32 = 256 << 10;
    for mut harness in [Harness::start(plain(SMALL)), Harness::on_tcp(plain(SMALL))] {
        let mut client = Client::simple(&harness);
        let requests = client.stream.try_clone().expect("a clone");
        // More than the server takes: those that follow are unread.
        let many = Client::header(READ, 0, 1, 0, LEN).repeat(1000);
        let asks = std::thread::spawn(move || while (&requests).write_all(&many).is_ok() {});
        let (mut replies, mut stops) = (0, None);
        loop {
            let mut magic = [0; 4];
            // At a reply's border a connection may end; inside, `take` fails the test.
            if client.stream.read_exact(&mut magic).is_err() {
                break;
            }
            assert_eq!(magic, 0x6744_6698_u32.to_be_bytes());
            assert_eq!(client.take(12)[..4], [0; 4]);
            (0..LEN / 4096).for_each(|_| drop(client.take(4096)));
            // At its own pace.
            std::thread::sleep(Duration::from_millis(2));
            replies += 1;
            if replies == 4 {
                let server = harness.take();
                stops = Some(std::thread::spawn(move || server.shutdown()));
            }
        }
        client.hang_up();
        asks.join().expect("it ends");
        stops.expect("four replies").join().expect("it ends");
    }
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
            std::thread::spawn(move || {
                let mut random = Random::new(number + 1);
                let mut acknowledged = Vec::new();
                // Each thread has a quarter of the volume, and writes each block once.
                for block in 0..SMALL / 4 / 4096 {
                    let at = number * (SMALL / 4) + block * 4096;
                    let data = random.bytes(4096);
                    let mut bytes = Client::header(WRITE, 0, block, at, 4096);
                    bytes.extend(&data);
                    if client.stream.write_all(&bytes).is_err() {
                        break;
                    }
                    let mut reply = [0; 16];
                    if client.stream.read_exact(&mut reply).is_err() {
                        break;
                    }
                    acknowledged.push((at, data));
                }
                acknowledged
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(20));
    harness.stop();
    let harness = Harness::start(volume);
    let mut client = Client::simple(&harness);
    for thread in threads {
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
