//! A backend that fails, and one that takes its time.

use std::sync::Arc;

use ucrypt_backend::Errno;
use ucrypt_engine::{Volume, VolumeOptions};
use ucrypt_testkit::fault::{Access, Fate, Rule};
use ucrypt_testkit::{FaultBackend, Faults};

use crate::client::{Client, EIO, ENOSPC, ENOTSUP, FLUSH, READ, WRITE_ZEROES};
use crate::harness::{Harness, SMALL, over};

/// From here on, writes fail with `ENOSPC` and reads with `EIO`.
const BROKEN_FROM: u64 = SMALL / 2;

/// A plain volume in memory with injected faults.
fn faulty() -> (Arc<Volume>, Faults) {
    let (memory, faults) = (ucrypt_backend::memory(SMALL).expect("memory"), Faults::new(1));
    let backend = FaultBackend::new(Arc::new(memory), faults.clone()).without_map();
    (over(Arc::new(backend), VolumeOptions::default()), faults)
}

#[test]
fn the_client_gets_the_backends_error_and_the_server_lives_on() {
    let (volume, faults) = faulty();
    for (access, error) in [(Access::Read, Errno::IO), (Access::Write, Errno::NOSPC)] {
        faults.add(Rule::new(Fate::Fail(error)).on(access).range(BROKEN_FROM..SMALL));
    }
    let harness = Harness::start(volume);
    for mut client in [Client::simple(&harness), Client::structured(&harness)] {
        assert_eq!(client.ask(READ, 0, BROKEN_FROM, 4096).error, EIO);
        assert_eq!(client.ask(READ, 0, BROKEN_FROM - 4096, 8192).error, EIO);
        assert_eq!(client.write(0, BROKEN_FROM, &[1; 4096]), ENOSPC);
        assert_eq!(client.write(0, 0, &[2; 4096]), 0);
        assert_eq!(client.read(0, 4096), [2; 4096]);
        assert_eq!(client.ask(FLUSH, 0, 0, 0).error, 0);
    }
}

#[test]
fn fast_zeroes_that_the_backend_refuses_are_not_written_slowly() {
    const FAST_ZERO: u16 = 16;
    for refuses in [Errno::OPNOTSUPP, Errno::NOSYS, Errno::INVAL] {
        let (volume, faults) = faulty();
        faults.add(Rule::new(Fate::Fail(refuses)).on(Access::Punch));
        let harness = Harness::start(volume.clone());
        let mut client = Client::structured(&harness);
        assert_eq!(client.write(0, 0, &[7; 8192]), 0);
        assert_eq!(client.ask(WRITE_ZEROES, FAST_ZERO, 0, 8192).error, ENOTSUP, "{refuses}");
        assert_eq!(client.read(0, 8192), [7; 8192], "{refuses}");
        assert_eq!(client.ask(WRITE_ZEROES, 0, 0, 8192).error, 0, "{refuses}");
        assert_eq!(client.read(0, 8192), [0; 8192], "{refuses}");
        assert_eq!(volume.totals().errors, 0, "{refuses}: the log tells of a failure of the image");
    }
}

/// The whole range was kept for hours, and who wrote a part of a sector somewhere waited as long.
#[test]
fn a_long_write_of_zeroes_keeps_nobody_from_the_rest_of_the_disk() {
    const PIECE: u64 = 64 << 20;
    let (memory, faults) = (ucrypt_backend::memory(3 * PIECE).expect("memory"), Faults::new(1));
    faults.add(Rule::new(Fate::Hang).on(Access::Punch).range(PIECE..2 * PIECE));
    let backend = FaultBackend::new(Arc::new(memory), faults.clone()).without_map();
    let harness = Harness::start(over(Arc::new(backend), VolumeOptions::default()));
    let [mut zeroes, mut writes] = [Client::simple(&harness), Client::simple(&harness)];
    assert_eq!(writes.write(0, 2 * PIECE + 700, &[7; 100]), 0);
    zeroes.request(WRITE_ZEROES, 0, 512, (3 * PIECE - 1024) as u32);
    faults.await_met(1);
    assert_eq!(writes.write(0, 2 * PIECE + 800, &[8; 100]), 0, "part of a sector");
    assert_eq!(writes.read(2 * PIECE + 700, 200), [[7; 100], [8; 100]].concat());
    faults.resume();
    assert_eq!(zeroes.reply().error, 0);
    assert_eq!(writes.read(2 * PIECE + 700, 200), [0; 200]);
}

#[test]
fn writes_of_a_client_that_is_gone_reach_the_backend() {
    let (volume, faults) = faulty();
    faults.add(Rule::new(Fate::Hang));
    let mut harness = Harness::start(volume.clone());
    let mut client = Client::simple(&harness);
    // Not adjacent: neighbours would reach the backend as one operation.
    for at in 0..32 {
        client.request_write(0, at * 8192, &[7; 4096]);
    }
    client.hang_up();
    faults.await_met(32);
    faults.resume();
    harness.stop();
    let harness = Harness::start(volume);
    let mut client = Client::simple(&harness);
    for at in 0..32 {
        assert_eq!(client.read(at * 8192, 4096), [7; 4096]);
    }
}

#[test]
fn shutdown_waits_for_a_slow_backend() {
    let (volume, faults) = faulty();
    faults.add(Rule::new(Fate::Hang));
    let mut harness = Harness::start(volume.clone());
    let mut client = Client::simple(&harness);
    client.request_write(0, 0, &[3; 4096]);
    faults.await_met(1);
    let stopping = std::thread::spawn(move || harness.stop());
    faults.resume();
    let reply = client.reply();
    assert_eq!((reply.cookie, reply.error), (1, 0), "taken, so done and answered");
    stopping.join().expect("stopped");
    assert_eq!(Client::simple(&Harness::start(volume)).read(0, 4096), [3; 4096]);
}
