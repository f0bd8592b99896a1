//! The handshake over a socket. The unit tests check the answer to each option; these tests check
//! what needs a server: entering transmission, the bounds on clients, and who is admitted.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ucrypt_engine::VolumeOptions;
use ucrypt_export::nbd::ServerConfig;

use crate::client::Client;
use crate::harness::{Harness, SMALL, plain, with_options};

#[test]
fn go_tells_size_and_abilities_of_the_volume() {
    let harness = Harness::start(plain(SMALL));
    // has-flags, flush, fua, write-zeroes, multi-conn, fast-zero; no trim, no df
    assert_eq!(Client::connect(&harness).go(), (SMALL, 0b1001_0100_1101));
    let discards = VolumeOptions { allow_discards: true, ..VolumeOptions::default() };
    let harness = Harness::start(with_options(SMALL, discards));
    assert_eq!(Client::connect(&harness).go().1, 0b1001_0110_1101);
    let read_only = VolumeOptions { read_only: true, ..VolumeOptions::default() };
    let harness = Harness::start(with_options(SMALL, read_only));
    assert_eq!(Client::connect(&harness).go().1, 0b0001_0000_0111);
}

#[test]
fn every_way_into_transmission_serves_reads() {
    let config = ServerConfig { export_name: "disk".into(), ..ServerConfig::default() };
    let harness = Harness::with_config(plain(SMALL), config);
    for name in [&b""[..], b"disk"] {
        for (flags, answer) in [(3, 10), (1, 134), (0, 134)] {
            let mut client = Client::with_flags(&harness, flags);
            client.send(b"IHAVEOPT\0\0\0\x01");
            client.send(&(name.len() as u32).to_be_bytes());
            client.send(name);
            let answer = client.take(answer);
            assert_eq!(answer[..8], SMALL.to_be_bytes());
            assert_eq!(client.read(0, 512), [0; 512]);
        }
    }
    let mut client = Client::connect(&harness);
    client.send(b"IHAVEOPT\0\0\0\x01\0\0\0\x04tape");
    assert!(client.is_closed(), "an unknown name cannot be refused otherwise");
    harness.reports.wait_for("no such export");
}

#[test]
fn a_client_that_never_negotiates_is_cut_off() {
    let handshake_timeout = Duration::from_millis(50);
    let config = ServerConfig { handshake_timeout, ..ServerConfig::default() };
    let harness = Harness::with_config(plain(SMALL), config);
    let mut stream = UnixStream::connect(harness.socket()).expect("connected");
    let mut all = Vec::new();
    stream.read_to_end(&mut all).expect("the end");
    assert_eq!(all, b"NBDMAGICIHAVEOPT\0\x03", "the greeting, and then the end");
    harness.reports.wait_for("handshake");
}

#[test]
fn no_more_clients_than_allowed_and_a_place_becomes_free_again() {
    let config = ServerConfig { connections_max: 2, ..ServerConfig::default() };
    let harness = Harness::with_config(plain(SMALL), config);
    let mut first = Client::simple(&harness);
    let _second = Client::simple(&harness);
    let mut third = Client::connect(&harness);
    let refusal = third.option(7, &[0; 6]);
    assert_eq!(refusal[0].0, (1 << 31) + 2, "a matter of policy");
    assert_eq!(refusal[0].1, b"2 clients are connected, which is the most");
    assert!(third.is_closed());
    harness.reports.wait_for("turned away");
    for _ in 0..20 {
        assert_eq!(Client::connect(&harness).option(7, &[0; 6])[0].0, (1 << 31) + 2);
    }
    assert_eq!(harness.reports.count("turned away"), 1, "refused clients could fill the log");
    first.request(crate::client::DISC, 0, 0, 0);
    assert!(first.is_closed());
    // The place becomes free when the thread ends, shortly after the connection.
    let until = Instant::now() + Duration::from_secs(30);
    let welcome = || Client::connect(&harness).option(6, &[0; 6])[0].0 == 3;
    while !welcome() {
        assert!(Instant::now() < until, "the place stays taken");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// It was asked to be quick only when it was silent.
#[test]
fn a_client_that_talks_all_the_time_has_to_come_to_an_end() {
    let handshake_timeout = Duration::from_millis(200);
    let config = ServerConfig { handshake_timeout, ..ServerConfig::default() };
    let harness = Harness::with_config(plain(SMALL), config);
    let mut client = UnixStream::connect(harness.socket()).expect("connected");
    client.set_write_timeout(Some(Duration::from_secs(30))).expect("a limit");
    client.write_all(&3_u32.to_be_bytes()).expect("it listens");
    let option = [&b"IHAVEOPT\0\0\0\x63"[..], &(32_u32 << 20).to_be_bytes()].concat();
    let talk = |client: &mut UnixStream| {
        client.write_all(&option)?;
        (0..2048).try_for_each(|_| client.write_all(&[0; 1 << 14]))
    };
    // Gigabytes, for which no machine is quick enough.
    let ended = (0..256).find_map(|_| talk(&mut client).err());
    let ended = ended.expect("it is cut off");
    assert!([ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&ended.kind()), "{ended}");
    harness.reports.wait_for("the handshake took longer");
}

#[test]
fn silent_sockets_keep_nobody_out() {
    let harness = Harness::start(plain(SMALL));
    let mut served = Client::simple(&harness);
    let mut silent: Vec<_> =
        (0..100).map(|_| UnixStream::connect(harness.socket()).expect("connected")).collect();
    for _ in 0..4 {
        assert_eq!(Client::simple(&harness).read(0, 1), [0]);
    }
    harness.reports.wait_for("cut off: it did not negotiate");
    assert_eq!(harness.reports.count("cut off"), 1, "silent sockets could fill the log");
    assert_eq!(served.read(0, 1), [0], "who is served stays");
    // The oldest was cut off first.
    let mut rest = Vec::new();
    silent[0].read_to_end(&mut rest).expect("the end");
}

#[test]
fn a_server_is_stopped_only_when_nobody_is_served() {
    let mut harness = Harness::start(plain(SMALL));
    let mut client = Client::simple(&harness);
    let greeted = Client::connect(&harness);
    assert!(!harness.server().try_stop() && harness.server().clients() == 1);
    assert_eq!(client.read(0, 1), [0]);
    harness.server().detach();
    assert_eq!(client.read(0, 1), [0], "who is served stays");
    assert!(!harness.server().has_ended());
    // The listening thread may remove the socket a little later.
    let until = Instant::now() + Duration::from_secs(30);
    while UnixStream::connect(harness.socket()).is_ok() {
        assert!(Instant::now() < until, "the server still listens");
        std::thread::sleep(Duration::from_millis(2));
    }
    drop(client);
    while !harness.server().has_ended() {
        assert!(Instant::now() < until, "the last has gone, and it goes on");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(harness.server().try_stop());
    harness.stop();
    drop(greeted);
}
