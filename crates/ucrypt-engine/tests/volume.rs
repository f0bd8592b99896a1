//! What a volume does with single requests. That it returns what was written, whatever the alignment,
//! the backend, the policy and the number of queues, is left to the random client of the test kit.

mod common;

use std::sync::Arc;

use common::{backends, drain, run, volume, volume_under, write};
use ucrypt_backend::{Backend, FileBackend, OpenOptions, memory};
use ucrypt_engine::{
    Errno, Fixed, Io, PolicyKind, Queue, QueueConfig, Rejected, Segment, Urgency, Volume,
    VolumeError, VolumeOptions,
};
use ucrypt_testkit::engine::aes;
use ucrypt_testkit::fault::{Access, Fate, Rule};
use ucrypt_testkit::{FaultBackend, Faults, Random};

const MIB: u64 = 1 << 20;
const CONFIG: QueueConfig = QueueConfig::new(8 << 20, 16);

#[test]
fn writers_of_neighbouring_bytes_on_several_queues_lose_nothing() {
    // Each thread owns every fourth range of 100 bytes, so that all threads share the sectors.
    for ((name, backend, _dir), policy) in backends(MIB)
        .into_iter()
        .zip([PolicyKind::Adaptive, Fixed::Unbound { sorted: true }.into()])
    {
        let volume = volume_under(policy, backend, 0, MIB, 4096);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let volume = volume.clone();
                scope.spawn(move || {
                    let mut queue = volume.queue(CONFIG).unwrap();
                    let mut random = Random::new(thread + 1);
                    let mut last = vec![None; 250];
                    for _ in 0..400 {
                        let slot = random.below(250);
                        let offset = (slot * 4 + thread) * 100;
                        let fill = random.below(256) as u8;
                        write(&mut queue, offset, &[fill; 100]);
                        last[slot as usize] = Some(fill);
                        let other = random.below(250);
                        let Some(fill) = last[other as usize] else { continue };
                        let offset = (other * 4 + thread) * 100;
                        let data = run(&mut queue, Io::read(offset, 100)).data.unwrap();
                        assert!(data.iter().all(|&byte| byte == fill), "{name}: lost a write");
                    }
                });
            }
        });
    }
}

#[test]
fn what_is_read_ahead_goes_to_workers_and_what_is_polled_for_does_not() {
    for (urgency, handed) in [(Urgency::Urgent, false), (Urgency::Background, true)] {
        for (name, backend, _dir) in backends(MIB) {
            let volume = volume(backend, 0, MIB, 512);
            let mut queue = volume.queue(CONFIG).unwrap();
            queue.set_urgency(urgency);
            for block in 0..64 {
                let done = run(&mut queue, Io::read(block * 16384, 16384));
                assert_eq!(done.data.expect("a read has data").len(), 16384);
            }
            // Published figures may be a few rounds old.
            let decided = volume.decisions()[0].stats;
            let offered = decided.offloaded + decided.taken_back;
            let kept = decided.inline - decided.taken_back;
            assert_eq!(offered > kept, handed, "{name}, {urgency:?}: {decided:?}");
        }
    }
}

#[test]
fn a_queue_is_alone_while_its_requests_come_one_at_a_time_and_no_other_queue_has_any() {
    for (name, backend, _dir) in backends(4 * MIB) {
        let volume = volume(backend, MIB, 2 * MIB, 512);
        let [mut one, mut other] = [(); 2].map(|()| volume.queue(CONFIG).unwrap());
        let lone = |queue: &mut Queue| assert_eq!(run(queue, Io::read(0, 4096)).result, Ok(()));
        for _ in 0..8 {
            lone(&mut one);
        }
        assert_eq!(one.alone(), Some(16), "{name}: it begins with 8");
        // Another queue has a request.
        other.submit(1, Io::read(8192, 4096)).unwrap();
        lone(&mut one);
        assert_eq!(one.alone(), None, "{name}");
        // The same, if that queue ends.
        drop(other);
        for _ in 0..7 {
            lone(&mut one);
            assert_eq!(one.alone(), None, "{name}");
        }
        lone(&mut one);
        assert_eq!(one.alone(), Some(8), "{name}");
        // Two requests at a time.
        one.submit(1, Io::read(0, 4096)).unwrap();
        one.submit(2, Io::read(4096, 4096)).unwrap();
        assert_eq!(one.alone(), None, "{name}");
        drain(&mut one);
        for _ in 0..8 {
            lone(&mut one);
        }
        assert_eq!(one.alone(), Some(8), "{name}");
    }
}

#[test]
fn the_backend_sees_ciphertext_and_the_sectors_lie_where_the_segment_says() {
    let backend = Arc::new(memory(MIB).unwrap());
    let volume = volume(backend.clone(), 65536, 131_072, 512);
    let mut queue = volume.queue(CONFIG).unwrap();
    queue.submit(0, Io::write_borrowed(1024, &[0x5a; 512], true)).unwrap();
    queue.wait().unwrap();
    let mut stored = [0; 512];
    backend.read_exact_at(65536 + 1024, &mut stored).unwrap();
    let mut expected = [0x5a; 512];
    aes(512).encrypt_in_place(2, &mut expected).unwrap();
    assert_eq!(stored, expected);
}

#[test]
fn two_segments_are_one_disk() {
    let backend = Arc::new(memory(MIB).unwrap());
    let segments = vec![
        Segment { len: 8192, backend_offset: 65536, cipher: Some(aes(512)) },
        Segment { len: 4096, backend_offset: 0, cipher: None },
    ];
    let volume = Volume::new(backend.clone(), segments, VolumeOptions::default()).unwrap();
    let mut queue = Arc::new(volume).queue(CONFIG).unwrap();
    let pattern: Vec<u8> = (0..12288u32).map(|at| (at / 7) as u8).collect();
    write(&mut queue, 0, &pattern);
    let data = run(&mut queue, Io::read(100, 12_000)).data.unwrap();
    assert!(data[..] == pattern[100..12_100]);
    let mut plain = vec![0; 4096];
    backend.read_exact_at(0, &mut plain).unwrap();
    assert!(plain == pattern[8192..], "the second segment is not encrypted");
}

#[test]
fn what_the_volume_does_not_allow_is_refused_by_kind() {
    let backend = Arc::new(memory(MIB).unwrap());
    let options = VolumeOptions { read_only: true, ..VolumeOptions::default() };
    let read_only = Arc::new(Volume::raw(backend.clone(), options).unwrap());
    let mut queue = read_only.queue(CONFIG).unwrap();
    assert!(matches!(queue.submit(0, Io::write_borrowed(0, &[0], false)), Err(Rejected::ReadOnly)));
    let volume = Arc::new(Volume::raw(backend, VolumeOptions::default()).unwrap());
    let mut queue = volume.queue(CONFIG).unwrap();
    let past = Io::read(MIB - 1, 2);
    assert!(matches!(queue.submit(0, past), Err(Rejected::OutOfRange)));
    let overflow = Io::Discard { offset: u64::MAX, len: 2 };
    assert!(matches!(queue.submit(0, overflow), Err(Rejected::NotSupported)));
    let overflow = Io::read(u64::MAX, 2);
    assert!(matches!(queue.submit(0, overflow), Err(Rejected::OutOfRange)));
    assert_eq!(queue.in_flight(), 0);
}

#[test]
fn segments_beyond_the_backend_make_no_volume() {
    let backend: Arc<dyn Backend> = Arc::new(memory(MIB).unwrap());
    let segment = |offset, len| vec![Segment { len, backend_offset: offset, cipher: None }];
    let refuse = |segments| {
        Volume::new(backend.clone(), segments, VolumeOptions::default()).expect_err("refused")
    };
    assert_eq!(
        refuse(segment(512, MIB)),
        VolumeError::TooLarge { needed: MIB + 512, available: MIB }
    );
    assert!(matches!(refuse(segment(u64::MAX - 511, 1024)), VolumeError::TooLarge { .. }));
    assert!(matches!(refuse(segment(0, 100)), VolumeError::Unaligned { .. }));
    assert_eq!(refuse(segment(0, 0)), VolumeError::Empty);
}

#[test]
fn a_volume_that_is_written_is_made_of_whole_units_of_its_backend() {
    let backend: Arc<dyn Backend> = Arc::new(
        FaultBackend::new(Arc::new(memory(MIB).unwrap()), Faults::new(1)).with_write_unit(4096),
    );
    let open = |offset, len, read_only| {
        let options = VolumeOptions { read_only, ..VolumeOptions::default() };
        let segment = Segment { len, backend_offset: offset, cipher: Some(aes(512)) };
        Volume::new(backend.clone(), vec![segment], options)
    };
    for (offset, len) in [(512, 8192), (4096, 512), (0, 8192 + 512)] {
        let refused = open(offset, len, false).expect_err("refused");
        assert_eq!(refused, VolumeError::PartOfUnit { len, offset, write_unit: 4096 });
        assert!(refused.to_string().ends_with("without --direct"));
        assert_eq!(open(offset, len, true).unwrap().info().write_unit, 512);
    }
    let volume = open(4096, 8192, false).unwrap();
    assert_eq!((volume.info().sector_size, volume.info().write_unit), (512, 4096));
    assert!(matches!(volume.resize(4096 + 512), Err(VolumeError::PartOfUnit { .. })));
    assert_eq!(volume.info().len, 8192);
    assert_eq!(volume.resize(4096), Ok(()));
}

#[test]
fn a_volume_gives_up_what_no_segment_of_it_needs() {
    // The last segment comes first in the image.
    for (shorter_by, flushed) in [(0, Ok(())), (4096, Err(Errno::IO))] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(3 * MIB).unwrap();
        let backend = FileBackend::open(&path, OpenOptions::default()).unwrap();
        let segment =
            |len, backend_offset| Segment { len, backend_offset, cipher: Some(aes(4096)) };
        let segments = vec![segment(MIB, 2 * MIB), segment(2 * MIB, 0)];
        let volume = Volume::new(Arc::new(backend), segments, VolumeOptions::default()).unwrap();
        let volume = Arc::new(volume);
        let mut queue = volume.queue(CONFIG).unwrap();
        write(&mut queue, MIB - 4096, &[1; 8192]);
        volume.resize(2 * MIB).unwrap();
        volume.give_up_rest();
        // The first segment ends where the image does.
        file.set_len(3 * MIB - shorter_by).unwrap();
        assert_eq!(run(&mut queue, Io::Flush).result, flushed);
    }
    // The last segment is the last of the image, too.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(3 * MIB).unwrap();
    let backend = FileBackend::open(&path, OpenOptions::default()).unwrap();
    let volume = volume(Arc::new(backend), MIB, 2 * MIB, 4096);
    let mut queue = volume.queue(CONFIG).unwrap();
    write(&mut queue, 2 * MIB - 4096, &[1; 4096]);
    volume.resize(MIB).unwrap();
    volume.give_up_rest();
    file.set_len(2 * MIB).unwrap();
    assert_eq!(run(&mut queue, Io::Flush).result, Ok(()));
    file.set_len(3 * MIB).unwrap();
    volume.resize(2 * MIB).unwrap();
    write(&mut queue, 2 * MIB - 4096, &[1; 4096]);
    file.set_len(2 * MIB).unwrap();
    assert_eq!(run(&mut queue, Io::Flush).result, Err(Errno::IO));
}

#[test]
fn a_failing_backend_fails_its_requests_and_no_others() {
    let faults = Faults::new(1);
    let rule = Rule::new(Fate::Fail(Errno::NOSPC)).on(Access::Read).on(Access::Write);
    faults.add(rule.range(MIB..2 * MIB));
    let faulty = FaultBackend::at_once(Arc::new(memory(4 * MIB).unwrap()), faults).without_map();
    let volume = volume(Arc::new(faulty), 0, 4 * MIB, 512);
    let mut queue = volume.queue(CONFIG).unwrap();
    for (offset, len, expected) in [
        (0, 4096, Ok(())),
        (MIB, 512, Err(Errno::NOSPC)),
        (MIB - 4096, 8192, Err(Errno::NOSPC)),
        (MIB + 100, 10, Err(Errno::NOSPC)),
        (3 * MIB, 4096, Ok(())),
    ] {
        queue.submit(9, Io::write_borrowed(offset, &vec![1; len], false)).unwrap();
        queue.wait().unwrap();
        assert_eq!(queue.next_done().unwrap().result, expected, "write at {offset}");
        let done = run(&mut queue, Io::read(offset, len));
        assert_eq!(done.result, expected, "read at {offset}");
        assert_eq!(done.data.is_some(), expected.is_ok(), "no data with an error");
    }
    assert_eq!(queue.in_flight(), 0);
    assert_eq!(volume.totals().errors, 6);
}

#[test]
fn discards_reach_the_backend_only_when_allowed_and_only_whole_sectors() {
    let backend = Arc::new(memory(MIB).unwrap());
    let options = VolumeOptions { allow_discards: true, ..VolumeOptions::default() };
    let segment = Segment { len: MIB, backend_offset: 0, cipher: Some(aes(4096)) };
    let volume = Arc::new(Volume::new(backend.clone(), vec![segment], options).unwrap());
    let mut queue = volume.queue(CONFIG).unwrap();
    write(&mut queue, 0, &[7; 16384]);
    assert_eq!(run(&mut queue, Io::Discard { offset: 1, len: 12_000 }).result, Ok(()));
    assert_eq!(run(&mut queue, Io::Discard { offset: 4097, len: 100 }).result, Ok(()));
    let data = run(&mut queue, Io::read(0, 16384)).data.unwrap();
    assert!(data[..4096].iter().all(|&byte| byte == 7));
    assert!(data[8192..].iter().all(|&byte| byte == 7));
    let mut stored = [1; 4096];
    backend.read_exact_at(4096, &mut stored).unwrap();
    assert_eq!(stored, [0; 4096]);
}

/// Regression: the error was taken for that of the write alone, and the next flush succeeded, although the disk
/// may have lost what its cache held.
#[test]
fn after_a_durable_write_that_failed_twice_flushes_succeed_only_if_the_disk_can_flush() {
    for flushes in [true, false] {
        let faults = Faults::new(1);
        let backend = FaultBackend::new(Arc::new(memory(MIB).unwrap()), faults.clone());
        let volume = volume(Arc::new(backend.without_map()), 0, MIB, 512);
        let mut queue = volume.queue(QueueConfig::new(1 << 20, 4)).unwrap();
        write(&mut queue, 0, &[1; 4096]);
        faults.add(Rule::new(Fate::Fail(Errno::IO)).on(Access::Write));
        let mut fails = |durable| {
            let done = run(&mut queue, Io::write_borrowed(8192, &[1; 512], durable));
            assert_eq!(done.result, Err(Errno::IO));
        };
        fails(false);
        assert_eq!(volume.flush_error(), None, "nothing was to be durable");
        if !flushes {
            faults.add(Rule::new(Fate::Fail(Errno::NODEV)).on(Access::Flush));
        }
        fails(true);
        // The disk is there again.
        faults.clear();
        let expected = if flushes { Ok(()) } else { Err(Errno::NODEV) };
        assert_eq!(run(&mut queue, Io::Flush).result, expected);
        let again = Io::write_borrowed(8192, &[1; 512], true);
        assert_eq!(run(&mut queue, again).result, expected);
    }
}
