//! Tests of the backend: data, order of answers, bounds, refusals. None depends on the wall clock.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Counts, Device, DeviceOp, Kind, ModelBackend, ModelError, Profile};
use crate::{Backend, Buf, Done, Errno, FileBackend, Io, Limits, OpenOptions, Pool, Queue};

const PAGE: usize = 4096;
const MIB: u64 = 1 << 20;

fn every_model(len: u64, prove: impl Fn(&str, &ModelBackend)) {
    for name in Profile::names() {
        prove(name, &ModelBackend::new(name, len).unwrap());
    }
}

fn drain(queue: &mut dyn Queue, count: usize) -> Vec<Done> {
    let mut done = Vec::new();
    while done.len() < count {
        queue.wait(&mut done).unwrap();
    }
    done
}

fn filled(pool: &Pool, len: usize, fill: u8) -> Buf {
    let mut buf = pool.alloc(len).unwrap();
    buf.fill(fill);
    buf
}

/// Code that decides by [`Limits`] must know no more of a model than of a disk: whether it rotates,
/// or whether it is memory. Otherwise measurements on models say nothing about disks.
#[test]
fn a_model_tells_no_more_about_its_speed_than_a_disk_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    std::fs::File::create(&path).unwrap().set_len(64 * MIB).unwrap();
    let file = FileBackend::open(&path, OpenOptions::default()).unwrap();
    every_model(64 * MIB, |name, backend| {
        let of_model = backend.limits();
        // The page cache copies, as a model does. Alignment and discard support do not concern
        // speed. Rotating or in-memory models report that like a disk, or a file in memory, does.
        let of_disk = Limits {
            copies: true,
            block: of_model.block,
            write_unit: of_model.write_unit,
            discard: of_model.discard,
            rotational: of_model.rotational,
            synchronous: of_model.synchronous,
            ..file.limits().clone()
        };
        assert_eq!(*of_model, of_disk, "{name}");
    });
}

#[test]
fn what_is_written_reads_back_on_every_model() {
    every_model(64 * MIB, |name, backend| {
        let pool = Pool::new(1 << 20).unwrap();
        let mut queue = backend.queue(8).unwrap();
        // Within the first zone, which may be written anywhere.
        let places = [(0, PAGE), (PAGE as u64, 512), (70_001, 3), (131_072, 300_000)];
        for (token, &(offset, len)) in places.iter().enumerate() {
            let bufs = vec![filled(&pool, len, token as u8 + 1)];
            queue.submit(Io::Write { token: token as u64, offset, bufs, fua: token == 1 });
        }
        for done in drain(queue.as_mut(), places.len()) {
            assert_eq!(done.result, Ok(()), "{name}");
        }
        let mut other = backend.queue(8).unwrap();
        for (token, &(offset, len)) in places.iter().enumerate() {
            let bufs = vec![pool.alloc(len).unwrap()];
            other.submit(Io::Read { token: token as u64, offset, bufs });
        }
        for done in drain(other.as_mut(), places.len()) {
            let buf = &done.bufs[0];
            assert_eq!((done.result, buf.len()), (Ok(()), places[done.token as usize].1), "{name}");
            assert!(buf.iter().all(|&byte| byte == done.token as u8 + 1), "{name} {}", done.token);
        }
        assert_eq!(backend.counts().requests, 8, "{name}: both queues are one device");
    });
}

#[test]
fn discarded_and_zeroed_ranges_read_as_zeroes_and_a_flush_is_answered() {
    every_model(16 * MIB, |name, backend| {
        let pool = Pool::new(1 << 20).unwrap();
        let mut queue = backend.queue(4).unwrap();
        queue.submit(Io::Write {
            token: 0,
            offset: 0,
            bufs: vec![filled(&pool, 65536, 9)],
            fua: false,
        });
        queue.submit(Io::Flush { token: 1 });
        drain(queue.as_mut(), 2);
        queue.submit(Io::Discard { token: 2, offset: 8192, len: 8192 });
        queue.submit(Io::WriteZeroes { token: 3, offset: 32768, len: 4096 });
        for done in drain(queue.as_mut(), 2) {
            assert_eq!(done.result, Ok(()), "{name}");
        }
        queue.submit(Io::Read { token: 4, offset: 0, bufs: vec![pool.alloc(65536).unwrap()] });
        let buf = drain(queue.as_mut(), 1).remove(0).bufs.remove(0);
        for (offset, fill) in [(0, 9), (8192, 0), (16383, 0), (16384, 9), (32768, 0), (36864, 9)] {
            assert_eq!(buf[offset], fill, "{name} at {offset}");
        }
        let extents = backend.extents(0, 16 * MIB, 16);
        assert!(extents.iter().any(|extent| extent.hole), "{name}");
    });
}

#[test]
fn many_operations_under_way_are_each_answered_once_within_the_bound() {
    every_model(16 * MIB, |name, backend| {
        let pool = Pool::new(1 << 20).unwrap();
        let mut queue = backend.queue(32).unwrap();
        let (mut next, mut seen, mut done) = (0u64, vec![false; 200], Vec::new());
        while seen.contains(&false) {
            while queue.room() > 0 && next < 200 {
                let bufs = vec![pool.alloc(PAGE).unwrap()];
                queue.submit(Io::Read { token: next, offset: next * PAGE as u64, bufs });
                next += 1;
            }
            assert!(next == 200 || queue.room() == 0, "{name}");
            queue.wait(&mut done).unwrap();
            assert!(queue.room() <= 32, "{name}");
            for done in done.drain(..) {
                assert!(!std::mem::replace(&mut seen[done.token as usize], true), "{name}: twice");
                assert_eq!(done.result, Ok(()), "{name}");
            }
        }
        assert_eq!(backend.counts().requests, 200, "{name}");
    });
}

#[test]
#[should_panic(expected = "submit without room")]
fn a_full_queue_takes_nothing() {
    let backend = ModelBackend::new("remote", MIB).unwrap();
    let mut queue = backend.queue(1).unwrap();
    queue.submit(Io::Flush { token: 0 });
    queue.submit(Io::Flush { token: 1 });
}

#[test]
fn dropping_a_queue_waits_for_what_is_under_way() {
    every_model(16 * MIB, |name, backend| {
        let pool = Pool::new(1 << 20).unwrap();
        let mut queue = backend.queue(16).unwrap();
        for token in 0..16 {
            let bufs = vec![filled(&pool, PAGE, 5)];
            queue.submit(Io::Write { token, offset: token * PAGE as u64, bufs, fua: true });
        }
        drop(queue);
        assert!(pool.alloc(1 << 20).is_some(), "{name}: a buffer is still held");
        let mut queue = backend.queue(1).unwrap();
        queue.submit(Io::Read { token: 0, offset: 0, bufs: vec![pool.alloc(16 * PAGE).unwrap()] });
        let buf = drain(queue.as_mut(), 1).remove(0).bufs.remove(0);
        assert!(buf.iter().all(|&byte| byte == 5), "{name}: a write was lost");
    });
}

#[test]
fn the_descriptor_becomes_readable_for_each_answer_and_is_quiet_when_there_is_none() {
    let backend = ModelBackend::new("sd2015", 16 * MIB).unwrap();
    let pool = Pool::new(1 << 20).unwrap();
    let mut queue = backend.queue(8).unwrap();
    for token in 0..8 {
        queue.submit(Io::Read {
            token,
            offset: token * MIB,
            bufs: vec![pool.alloc(PAGE).unwrap()],
        });
    }
    let (mut done, mut polls) = (Vec::new(), 0);
    queue.poll(&mut done).unwrap();
    while done.len() < 8 {
        let fd = queue.fd().expect("answers take their time");
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).unwrap();
        queue.poll(&mut done).unwrap();
        polls += 1;
    }
    assert!(polls > 0);
    queue.poll(&mut done).unwrap();
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let fd = queue.fd().unwrap();
    let readable = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&at_once)).unwrap();
    assert_eq!(readable, 0, "nothing is under way");
}

#[test]
fn a_device_without_time_answers_at_once_and_says_so() {
    let backend = ModelBackend::new("null", MIB).unwrap();
    assert!(backend.limits().synchronous);
    let pool = Pool::new(1 << 20).unwrap();
    let mut queue = backend.queue(2).unwrap();
    assert!(queue.fd().is_none());
    queue.submit(Io::Read { token: 3, offset: 0, bufs: vec![pool.alloc(PAGE).unwrap()] });
    let mut done = Vec::new();
    queue.poll(&mut done).unwrap();
    assert_eq!(done.len(), 1);
}

#[test]
fn a_zoned_device_refuses_writes_that_are_not_at_the_write_pointer() {
    let backend = ModelBackend::new("zoned", 64 * MIB).unwrap();
    assert!(backend.limits().rotational, "order matters");
    let pool = Pool::new(1 << 20).unwrap();
    let mut queue = backend.queue(8).unwrap();
    let zone = 16 * MIB;
    let mut write = |offset, fill| {
        let buf = filled(&pool, PAGE, fill);
        queue.submit(Io::Write { token: 0, offset, bufs: vec![buf], fua: false });
        let done = drain(queue.as_mut(), 1).remove(0);
        assert_eq!(crate::total_len(&done.bufs), PAGE);
        done.result
    };
    assert_eq!(write(zone, 1), Ok(()));
    assert_eq!(write(zone + 2 * PAGE as u64, 2), Err(Errno::IO), "ahead of the pointer");
    assert_eq!(write(zone, 3), Err(Errno::IO), "behind the pointer");
    assert_eq!(write(zone + PAGE as u64, 4), Ok(()));
    assert_eq!(backend.counts(), Counts { requests: 2, commands: 2, refused: 2 });
    queue.submit(Io::Read { token: 1, offset: zone, bufs: vec![pool.alloc(3 * PAGE).unwrap()] });
    let buf = drain(queue.as_mut(), 1).remove(0).bufs.remove(0);
    assert_eq!([buf[0], buf[PAGE], buf[2 * PAGE]], [1, 4, 0], "refused writes leave nothing");
    queue.submit(Io::Discard { token: 2, offset: zone, len: zone });
    let buf = filled(&pool, PAGE, 5);
    queue.submit(Io::Write { token: 3, offset: zone, bufs: vec![buf], fua: false });
    assert!(drain(queue.as_mut(), 2).iter().all(|done| done.result.is_ok()), "the zone was reset");
}

#[test]
fn what_lies_beyond_the_end_is_refused() {
    every_model(MIB, |name, backend| {
        let pool = Pool::new(1 << 20).unwrap();
        let mut queue = backend.queue(4).unwrap();
        let page = || pool.alloc(PAGE).unwrap();
        queue.submit(Io::Read { token: 0, offset: MIB - 512, bufs: vec![page()] });
        queue.submit(Io::Write { token: 1, offset: MIB - 512, bufs: vec![page()], fua: false });
        queue.submit(Io::Write { token: 2, offset: u64::MAX, bufs: vec![page()], fua: false });
        queue.submit(Io::WriteZeroes { token: 3, offset: 0, len: MIB + 1 });
        for done in drain(queue.as_mut(), 4) {
            assert_eq!(done.result, Err(Errno::IO), "{name} {}", done.token);
        }
        assert_eq!(backend.counts(), Counts::default(), "{name}");
    });
}

#[test]
fn an_unknown_name_is_refused_with_the_known_ones() {
    let refused = ModelBackend::new("sata", MIB).err().expect("refused");
    assert!(matches!(refused, ModelError::Unknown { .. }));
    let text = refused.to_string();
    assert!(text.contains("`sata`") && text.contains("sata2017, optane2020"), "{text}");
}

#[test]
fn the_same_seed_gives_the_same_times_and_another_does_not() {
    for name in Profile::names() {
        let profile = Profile::by_name(name).unwrap();
        let times = |seed| {
            let mut device = Device::new(profile, seed);
            let kinds = [Kind::Read, Kind::Write { fua: false }, Kind::Read, Kind::Flush];
            (0..400u64)
                .map(|step| {
                    let offset = step * 7919 % 4096 * PAGE as u64;
                    let kind = kinds[step as usize % kinds.len()];
                    let op = DeviceOp { kind, offset, len: PAGE as u64 * (1 + step % 5) };
                    device.submit(step * 50_000, op)
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(times(1), times(1), "{name}");
        assert_eq!(times(1) == times(2), name == "null", "{name}");
    }
}

#[test]
fn nothing_completes_before_it_arrives_and_a_copy_goes_on_alike() {
    for name in Profile::names() {
        let mut device = Device::new(Profile::by_name(name).unwrap(), 3);
        for step in 0..400u64 {
            let kind = if step % 3 == 0 { Kind::Write { fua: step % 2 == 0 } } else { Kind::Read };
            let op = DeviceOp { kind, offset: step * 997 % 64 * PAGE as u64, len: 65536 };
            let mut copy = device.clone();
            let done = device.submit(step * 10_000, op);
            assert_eq!(done, copy.submit(step * 10_000, op), "{name}");
            assert!(done.is_ok_and(|done| done >= step * 10_000), "{name}");
        }
    }
}
