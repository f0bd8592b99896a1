//! How a queue waits for its backend: asleep, or spinning.

mod common;

use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use common::{drain, run};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use ucrypt_backend::{Backend, FileBackend, OpenOptions, memory};
use ucrypt_engine::{
    Fixed, Io, Policies, PolicyKind, Poll, Polled, Queue, QueueConfig, Segment, Volume,
    VolumeOptions,
};
use ucrypt_testkit::engine::aes;
use ucrypt_testkit::{FaultBackend, Faults};

const LEN: u64 = 1 << 20;
const SECTOR: u64 = 4096;
/// How long a trial may take to begin on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than it takes until spinning would be tried.
const MEASURED: Duration = Duration::from_secs(1);
/// Longer than any answer takes.
const ALWAYS: Poll = Poll::Spin(60_000_000_000);

fn volume(backend: Arc<dyn Backend>, poll: Poll) -> Arc<Volume> {
    let segment = Segment { len: LEN, backend_offset: 0, cipher: Some(aes(4096)) };
    let options = VolumeOptions { poll, ..VolumeOptions::default() };
    Arc::new(Volume::new(backend, vec![segment], options).expect("a volume"))
}

/// A file whose answers come only after some more polls.
fn slow_file() -> (Arc<dyn Backend>, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    std::fs::File::create(&path).and_then(|file| file.set_len(LEN)).expect("an image");
    let file = FileBackend::open(&path, OpenOptions::default()).expect("a backend");
    let faults = Faults::new(1);
    faults.delay(5);
    (Arc::new(FaultBackend::new(Arc::new(file), faults)), dir)
}

fn queue(volume: &Arc<Volume>) -> Queue {
    volume.queue(QueueConfig::new(1 << 20, 8)).expect("a queue")
}

/// Writes sectors one at a time and reads them again.
fn one_at_a_time(queue: &mut Queue) {
    for round in 0..40 {
        let (offset, data) = (round % 16 * SECTOR, vec![round as u8; SECTOR as usize]);
        assert_eq!(run(queue, Io::write_borrowed(offset, &data, false)).result, Ok(()));
        let done = run(queue, Io::read(offset, data.len()));
        assert_eq!(done.data.as_deref(), Some(data.as_slice()), "round {round}");
    }
}

#[test]
fn a_lone_request_is_spun_for_if_asked_for() {
    let (backend, _dir) = slow_file();
    let volume = volume(backend, ALWAYS);
    let mut queue = queue(&volume);
    one_at_a_time(&mut queue);
    let Polled { spins, caught, missed, .. } = volume.polled();
    // The first ones may have had company.
    assert!(spins && caught > 50 && missed == 0, "{:?}", volume.polled());
}

#[test]
fn a_spin_ends_in_sleep_when_its_time_is_over() {
    let (backend, _dir) = slow_file();
    let volume = volume(backend, Poll::Spin(1));
    let mut queue = queue(&volume);
    one_at_a_time(&mut queue);
    assert!(volume.polled().missed > 0, "{:?}", volume.polled());
}

#[test]
fn automatic_polling_tries_both_ways_and_measures_them() {
    let (backend, _dir) = slow_file();
    let volume = volume(backend, Poll::Auto);
    let mut queue = queue(&volume);
    if available_parallelism().expect("the system tells").get() == 1 {
        // There is no core to spin on.
        one_at_a_time(&mut queue);
        assert_eq!(volume.polled().spinning_ns, None);
        return;
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        one_at_a_time(&mut queue);
        let polled = volume.polled();
        if polled.asleep_ns.is_some() && polled.spinning_ns.is_some() && polled.caught > 0 {
            return;
        }
        assert!(Instant::now() < deadline, "{polled:?}");
    }
}

/// Regression: only the adaptive policy, with its own number of workers, asked for a free core.
#[test]
fn automatic_polling_leaves_the_only_core_to_others_under_any_policy() {
    let allowed = sched_getaffinity(None).expect("the system tells");
    let only = (0..CpuSet::MAX_CPU).find(|&core| allowed.is_set(core)).expect("a core");
    let mut one = CpuSet::new();
    one.set(only);
    // Of this thread, which drives the queues.
    sched_setaffinity(None, &one).expect("fewer are always allowed");
    let adaptive = Policies::from(PolicyKind::default());
    let inline = Policies::from(PolicyKind::Fixed(Fixed::Inline));
    for (policies, workers) in [(adaptive, None), (adaptive, Some(2)), (inline, None)] {
        let (backend, _dir) = slow_file();
        let segment = Segment { len: LEN, backend_offset: 0, cipher: Some(aes(4096)) };
        let options =
            VolumeOptions { poll: Poll::Auto, policies, workers, ..VolumeOptions::default() };
        let volume = Arc::new(Volume::new(backend, vec![segment], options).expect("a volume"));
        let mut queue = queue(&volume);
        let begun = Instant::now();
        while begun.elapsed() < MEASURED {
            one_at_a_time(&mut queue);
        }
        let Polled { caught, missed, spinning_ns, .. } = volume.polled();
        assert_eq!((caught, missed), (0, 0), "{policies:?}, {workers:?} workers");
        assert_eq!(spinning_ns, None, "nothing is known of it");
    }
}

#[test]
fn several_requests_or_memory_are_not_spun_for() {
    let (backend, _dir) = slow_file();
    let file = volume(backend, ALWAYS);
    let mut several = queue(&file);
    for _ in 0..40 {
        for tag in 0..4 {
            several.submit(tag, Io::read(tag * SECTOR, 4096)).expect("room");
        }
        drain(&mut several);
    }
    let in_memory = volume(Arc::new(memory(LEN).expect("memory")), ALWAYS);
    one_at_a_time(&mut queue(&in_memory));
    for volume in [file, in_memory] {
        assert_eq!((volume.polled().caught, volume.polled().missed), (0, 0));
    }
}
