//! A volume without its key: what was under way ends, everything else waits, and nothing is lost.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use common::{backends, run, volume, volume_under};
use ucrypt_engine::{Errno, Fixed, Io, PolicyKind, Queue, QueueConfig, Volume, VolumeError};
use ucrypt_testkit::Random;
use ucrypt_testkit::engine::aes;

const MIB: u64 = 1 << 20;
const CONFIG: QueueConfig = QueueConfig::new(4 << 20, 16);

fn suspend(volume: &Volume) {
    volume.halt();
    while !volume.suspend() {
        std::thread::yield_now();
    }
}

fn resume(volume: &Volume) {
    volume.resume(vec![Some(aes(4096))]).unwrap();
}

/// Writes and reads back blocks of its own, at any byte, until it is told to stop.
fn client(volume: &Arc<Volume>, number: u64, stop: &AtomicBool, done: &AtomicU64) {
    let mut queue = volume.queue(CONFIG).unwrap();
    let mut random = Random::new(500 + number);
    while !stop.load(Ordering::SeqCst) {
        let offset = number * 4 * MIB + random.below(3 * MIB);
        let len = 1 + random.below(70_000) as usize;
        let data = random.bytes(len);
        run(&mut queue, Io::write_borrowed(offset, &data, false)).result.unwrap();
        let read = run(&mut queue, Io::read(offset, data.len()));
        assert!(read.data.expect("data")[..] == data, "client {number} at {offset}");
        done.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn requests_wait_while_the_key_is_gone_and_lose_nothing() {
    for policy in [PolicyKind::default(), PolicyKind::Fixed(Fixed::Inline)] {
        for (name, backend, _dir) in backends(16 * MIB) {
            let volume = volume_under(policy, backend, 0, 16 * MIB, 4096);
            let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
            std::thread::scope(|scope| {
                for number in 0..4 {
                    let (volume, stop, done) = (&volume, &stop, &done);
                    scope.spawn(move || client(volume, number, stop, done));
                }
                for round in 0..20 {
                    let before = done.load(Ordering::SeqCst);
                    while done.load(Ordering::SeqCst) < before + 4 {
                        std::thread::yield_now();
                    }
                    suspend(&volume);
                    // A pair whose read has ended may still be counted, once for each client.
                    let at_most = done.load(Ordering::SeqCst) + 4;
                    std::thread::sleep(Duration::from_millis(2));
                    let after = done.load(Ordering::SeqCst);
                    assert!(after <= at_most, "{name}, round {round}: requests went on");
                    resume(&volume);
                }
                stop.store(true, Ordering::SeqCst);
            });
        }
    }
}

#[test]
fn a_suspended_volume_answers_flushes_and_nothing_else() {
    for (name, backend, _dir) in backends(4 * MIB) {
        let volume = volume(backend, 0, 4 * MIB, 4096);
        let mut queue = volume.queue(CONFIG).unwrap();
        let data = [7; 10_000];
        run(&mut queue, Io::write_borrowed(100, &data, false)).result.unwrap();
        assert!(!volume.is_halted());
        suspend(&volume);
        assert!(run(&mut queue, Io::Flush).result.is_ok(), "{name}");
        assert!(volume.is_halted() && !volume.has_waiting());
        queue.submit(1, Io::read(100, 10_000)).unwrap();
        assert!(volume.has_waiting());
        queue.submit(2, Io::write_borrowed(5, &[9; 20], false)).unwrap();
        for _ in 0..50 {
            queue.poll().unwrap();
            assert!(!queue.has_done(), "{name}: a request without a key was answered");
        }
        let wrong = volume.resume(vec![Some(aes(512))]);
        assert_eq!(wrong, Err(VolumeError::OtherCiphers), "{name}");
        assert_eq!(volume.resume(Vec::new()), Err(VolumeError::OtherCiphers), "{name}");
        resume(&volume);
        let mut answered = take(&mut queue, 2);
        answered.sort_by_key(|done| done.tag);
        assert!(!volume.is_halted() && !volume.has_waiting());
        assert!(answered[1].result.is_ok());
        assert!(answered[0].data.as_ref().expect("data")[..] == data, "{name}");
        assert!(run(&mut queue, Io::read(5, 20)).data.expect("data")[..] == [9; 20]);
    }
}

fn take(queue: &mut Queue, count: usize) -> Vec<ucrypt_engine::Done> {
    let mut taken = Vec::new();
    while taken.len() < count {
        queue.wait().unwrap();
        taken.extend(queue.next_done());
    }
    taken
}

#[test]
fn what_waits_for_a_key_that_never_comes_back_fails_and_is_counted() {
    for (name, backend, _dir) in backends(4 * MIB) {
        let volume = volume(backend, 0, 4 * MIB, 4096);
        suspend(&volume);
        let (sender, ended) = mpsc::channel();
        std::thread::scope(|scope| {
            let (volume, sender) = (&volume, sender);
            scope.spawn(move || {
                let mut queue = volume.queue(CONFIG).unwrap();
                queue.submit(1, Io::write_borrowed(0, &[1; 8192], false)).unwrap();
                queue.submit(2, Io::write_borrowed(9000, &[1; 100], false)).unwrap();
                queue.submit(3, Io::read(0, 512)).unwrap();
                sender.send(()).unwrap();
                for done in take(&mut queue, 3) {
                    assert_eq!(done.result, Err(Errno::IO));
                }
                // Later requests do not wait at all.
                assert_eq!(run(&mut queue, Io::read(0, 512)).result, Err(Errno::IO));
                assert!(run(&mut queue, Io::Flush).result.is_ok());
            });
            ended.recv().unwrap();
            volume.abandon();
        });
        assert_eq!(volume.unwritten(), (2, 8292), "{name}");
        // If the volume goes on after all, what comes waits again.
        volume.unabandon();
        let mut late = volume.queue(CONFIG).unwrap();
        late.submit(4, Io::write_borrowed(0, &[3; 512], false)).unwrap();
        for _ in 0..50 {
            late.poll().unwrap();
            assert!(!late.has_done(), "{name}: a request without a key was answered");
        }
        // The key may come back all the same.
        resume(&volume);
        assert!(!volume.is_abandoned());
        assert!(take(&mut late, 1)[0].result.is_ok(), "{name}");
        let mut queue = volume.queue(CONFIG).unwrap();
        assert!(run(&mut queue, Io::read(0, 512)).result.is_ok(), "{name}");
    }
}
