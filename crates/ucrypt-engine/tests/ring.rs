//! An export's entries share the queue's ring with the queue's reads and writes, on any backend.

#![expect(unsafe_code, reason = "entries of a ring name memory and descriptors by address")]

mod common;

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;

use common::{backends, run, volume_under};
use io_uring::{opcode, types};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use ucrypt_backend::model::ModelBackend;
use ucrypt_backend::{Backend, memory};
use ucrypt_engine::{
    Fixed, Io, PolicyKind, Poll, Queue, QueueConfig, Rejected, Segment, Volume, VolumeOptions,
};
use ucrypt_testkit::fault::{Fate, Rule};
use ucrypt_testkit::{FaultBackend, Faults, Random};

const MIB: u64 = 1 << 20;
const CONFIG: QueueConfig = QueueConfig::new(8 << 20, 16);
const ENTRIES: u32 = 32;
/// `-ETIME`: the result of a timeout.
const TIMED_OUT: i32 = -62;

/// All kinds of backends: with neither ring nor descriptor, with a ring, with a descriptor.
fn every_backend() -> Vec<(&'static str, Arc<dyn Backend>, Option<tempfile::TempDir>)> {
    let mut all = backends(4 * MIB);
    all.push(("model", Arc::new(ModelBackend::new("optane2020", 4 * MIB).unwrap()), None));
    all
}

fn every_queue(prove: impl Fn(&str, &mut Queue)) {
    for policy in [PolicyKind::Adaptive, Fixed::Unbound { sorted: true }.into()] {
        every_queue_under(policy, &prove);
    }
}

fn every_queue_under(policy: PolicyKind, prove: impl Fn(&str, &mut Queue)) {
    for (name, backend, _dir) in every_backend() {
        let volume = volume_under(policy, backend, 0, 4 * MIB, 512);
        let mut queue = volume.queue_with_ring(CONFIG, ENTRIES).unwrap();
        prove(&format!("{name}, {policy}"), &mut queue);
    }
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// Stages an entry of one of three kinds: it ends at once, after `delay`, or when `event` is
/// signalled.
fn push(queue: &mut Queue, tag: u64, delay: &types::Timespec, event: &OwnedFd) {
    let entry = match tag % 3 {
        0 => opcode::Nop::new().build(),
        1 => opcode::Timeout::new(delay).build(),
        _ => opcode::PollAdd::new(types::Fd(event.as_raw_fd()), 1).build(),
    };
    // SAFETY: `delay` and `event` outlive the queue's entries: the callers take all completions.
    unsafe { queue.ring().unwrap().push(entry.user_data(tag)) };
}

fn expected(tag: u64) -> i32 {
    [0, TIMED_OUT, 1][(tag % 3) as usize]
}

#[test]
fn entries_and_requests_under_load_each_end_once_with_their_own_result() {
    const COUNT: u64 = 600;
    every_queue(|name, queue| {
        let seed = 11;
        let mut random = Random::new(seed);
        let delay = types::Timespec::new().nsec(30_000);
        let event = event();
        let (mut pushed, mut ended) = (0, vec![false; COUNT as usize]);
        let (mut sent, mut done) = (0u64, 0u64);
        let mut under_way = 0;
        // Each block is read after it was written, so that its content is known.
        while ended.contains(&false) || done < 2 * COUNT {
            while under_way < ENTRIES && pushed < COUNT && random.below(4) > 0 {
                push(queue, pushed, &delay, &event);
                (pushed, under_way) = (pushed + 1, under_way + 1);
            }
            if random.below(8) == 0 || queue.in_flight() == 0 {
                // Ends the poll entries; without a request they may be all that is in flight.
                rustix::io::write(&event, &1u64.to_ne_bytes()).unwrap();
            }
            while sent < 2 * COUNT && random.below(8) > 0 {
                let (block, second) = (sent / 16 % 60, sent % 16);
                let offset = block * 65536 + second / 2 * 4096;
                let fill = [second as u8; 4096];
                let asked = if sent.is_multiple_of(2) {
                    queue.submit(sent, Io::write_borrowed(offset, &fill, false))
                } else {
                    queue.submit(sent, Io::read((block + 1) * 65536 % (4 * MIB), 9))
                };
                match asked {
                    Ok(()) => sent += 1,
                    Err(Rejected::Busy(_)) => break,
                    Err(other) => panic!("{name}: {other:?}"),
                }
            }
            if random.below(3) == 0 { queue.poll() } else { queue.wait() }.unwrap();
            while let Some(answer) = queue.next_done() {
                assert_eq!(answer.result, Ok(()), "{name}, seed {seed}: request {}", answer.tag);
                done += 1;
            }
            while let Some(completion) = queue.ring().unwrap().next() {
                let tag = completion.user_data;
                let twice = std::mem::replace(&mut ended[tag as usize], true);
                assert!(!twice && !completion.more, "{name}, seed {seed}: entry {tag}");
                assert_eq!(completion.result, expected(tag), "{name}, seed {seed}: entry {tag}");
                under_way -= 1;
                let mut count = [0; 8];
                let _ = rustix::io::read(&event, &mut count);
            }
        }
        assert_eq!((queue.in_flight(), queue.ring().unwrap().under_way()), (0, 0), "{name}");
        for block in 0..8 {
            let offset = block * 4096;
            queue.submit(0, Io::read(offset, 4096)).unwrap();
            queue.wait().unwrap();
            let data = queue.next_done().unwrap().data.unwrap();
            assert!(data.iter().all(|&byte| u64::from(byte) == 2 * block), "{name}");
        }
    });
}

#[test]
fn a_queue_with_nothing_in_flight_waits_for_entries_and_a_batch_goes_with_the_wait() {
    every_queue(|name, queue| {
        let delay = types::Timespec::new().nsec(100_000);
        let event = event();
        // More than the ring was made for.
        let count = u64::from(ENTRIES) * 3 * 3;
        for tag in 0..count {
            push(queue, tag, &delay, &event);
        }
        assert_eq!(queue.ring().unwrap().under_way() as u64, count, "{name}");
        assert!(!queue.ring().unwrap().has_next(), "{name}: pushing submits nothing");
        let mut ended = 0;
        while ended < count {
            if ended == count / 3 * 2 {
                rustix::io::write(&event, &1u64.to_ne_bytes()).unwrap();
            }
            queue.wait().unwrap();
            while let Some(completion) = queue.ring().unwrap().next() {
                assert_eq!(completion.result, expected(completion.user_data), "{name}");
                ended += 1;
            }
        }
        // Nothing is left to wait for.
        queue.wait().unwrap();
    });
}

#[test]
fn the_queues_descriptor_tells_of_completions() {
    every_queue(|name, queue| {
        let delay = types::Timespec::new().nsec(1_000_000);
        push(queue, 1, &delay, &event());
        let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
        loop {
            queue.poll().unwrap();
            if queue.ring().unwrap().has_next() {
                break;
            }
            assert!(queue.may_sleep(), "{name}");
            let ready = poll(&mut [PollFd::new(&queue.wait_fd(), PollFlags::IN)], Some(&patience));
            assert_eq!(ready, Ok(1), "{name}: nothing told of the completion");
        }
        assert!(!queue.may_sleep(), "{name}");
        assert_eq!(queue.ring().unwrap().next().unwrap().result, TIMED_OUT, "{name}");
    });
}

#[test]
fn a_completion_ends_a_spin_for_the_disk() {
    for (name, inner, _dir) in backends(MIB) {
        let faults = Faults::new(1);
        let backend = FaultBackend::new(inner, faults.clone()).without_map();
        let segment = Segment { len: MIB, backend_offset: 0, cipher: None };
        let options = VolumeOptions {
            policies: PolicyKind::from(Fixed::Inline).into(),
            poll: Poll::Spin(3_600_000_000_000),
            ..VolumeOptions::default()
        };
        let volume = Volume::new(Arc::new(backend), vec![segment], options).unwrap();
        let volume = Arc::new(volume);
        let mut queue = volume.queue_with_ring(CONFIG, ENTRIES).unwrap();
        // Requests that come one at a time are spun for.
        for _ in 0..40 {
            assert_eq!(run(&mut queue, Io::read(0, 4096)).result, Ok(()), "{name}");
        }
        let caught = volume.polled().caught;
        assert!(caught > 0, "{name}: {:?}", volume.polled());
        faults.add(Rule::new(Fate::Hang));
        queue.submit(7, Io::read(0, 4096)).unwrap();
        // It ends while the queue spins.
        let delay = types::Timespec::new().nsec(20_000_000);
        push(&mut queue, 1, &delay, &event());
        queue.wait().unwrap();
        assert!(queue.next_done().is_none(), "{name}: it has waited for the disk");
        assert_eq!(queue.ring().unwrap().next().map(|ended| ended.result), Some(TIMED_OUT));
        assert_eq!(volume.polled().caught, caught, "{name}: no answer was caught");
        faults.resume();
        queue.wait().unwrap();
        assert_eq!(queue.next_done().expect("an answer").result, Ok(()), "{name}");
    }
}

#[test]
fn a_queue_that_is_dropped_cancels_entries_and_finishes_what_its_backend_has() {
    // Inline, because chunks that workers have at the drop never reach the backend.
    every_queue_under(Fixed::Inline.into(), |name, queue| {
        let volume = queue.volume().clone();
        let mut queue = volume.queue_with_ring(CONFIG, ENTRIES).unwrap();
        let hour = types::Timespec::new().sec(3600);
        let event = event();
        for tag in [1, 2, 4, 5, 0] {
            push(&mut queue, tag, &hour, &event);
        }
        for block in 0..8 {
            queue.submit(block, Io::write_borrowed(block * 4096, &[9; 4096], false)).unwrap();
        }
        queue.poll().unwrap();
        // There are completions not taken, entries under way, and one never submitted.
        push(&mut queue, 7, &hour, &event);
        drop(queue);
        let mut queue = volume.queue(CONFIG).unwrap();
        assert!(queue.ring().is_none(), "{name}: nobody asked for a ring");
        queue.submit(0, Io::read(0, 4096)).unwrap();
        queue.wait().unwrap();
        let data = queue.next_done().unwrap().data.unwrap();
        assert!(data.iter().all(|&byte| byte == 9), "{name}: a write under way was lost");
    });
}

#[test]
fn user_data_of_the_host_is_refused() {
    let volume = volume_under(Fixed::Inline.into(), Arc::new(memory(MIB).unwrap()), 0, MIB, 512);
    let mut queue = volume.queue_with_ring(CONFIG, 1).unwrap();
    let entry = opcode::Nop::new().build().user_data(1 << 63);
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // SAFETY: the entry names no memory and no descriptor.
        unsafe { queue.ring().unwrap().push(entry) };
    }));
    assert!(refused.is_err(), "bit 63 is the host's");
    assert_eq!(queue.ring().unwrap().under_way(), 0);
}
