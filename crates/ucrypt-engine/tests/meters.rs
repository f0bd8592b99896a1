//! What operators watch is counted by each queue, and kept when the queue ends.

mod common;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::{backends, run, volume, volume_under};
use ucrypt_backend::memory;
use ucrypt_engine::meters::{Failed, Latencies, Meters};
use ucrypt_engine::{
    Calibration, Clock, Decisions, Errno, Executor, Fixed, Io, Job, PolicyKind, Queue, QueueConfig,
    Rejected, Segment, Volume, VolumeOptions, WorkerPool,
};
use ucrypt_testkit::engine::aes;

const LEN: u64 = 4 << 20;

const ROUNDS: u64 = 512;

fn timed(all: &[Latencies]) -> u64 {
    all.iter().map(Latencies::count).sum()
}

fn chunks(meters: &Meters) -> [u64; 4] {
    let (inline, workers) = (meters.inline, meters.workers);
    [inline.encrypted, inline.decrypted, workers.encrypted, workers.decrypted]
}

#[test]
fn what_a_queue_has_counted_stays_when_it_ends() {
    for (name, backend, _dir) in backends(LEN) {
        let volume = volume(backend, 0, LEN, 4096);
        assert_eq!(volume.meters(), Meters::default(), "{name}");
        let mut queue = volume.queue(QueueConfig::new(1 << 20, 8)).unwrap();
        let data = vec![7; 65536];
        for round in 0..ROUNDS {
            run(&mut queue, Io::write_borrowed(round % 64 * 4096, &data[..4096], false))
                .result
                .unwrap();
            run(&mut queue, Io::read(0, 65536)).result.unwrap();
        }
        run(&mut queue, Io::Flush).result.unwrap();
        let before = volume.meters();
        drop(queue);
        let after = volume.meters();
        assert_eq!(before, after, "{name}");
        let requests = 2 * ROUNDS + 1;
        assert_eq!(after.depths.count(), requests, "{name}");
        assert_eq!((after.depths.sum, after.in_flight), (requests, 0), "{name}");
        // A sample: at least the first, by the largest size of its class.
        assert!(after.writes[0].count() > 0 && timed(&after.writes[1..]) == 0, "{name}");
        assert!(after.reads[2].count() > 0 && after.reads[0].count() == 0, "{name}");
        assert!(timed(&after.writes) < ROUNDS && after.writes[0].sum > 0, "{name}");
        let [encrypted, decrypted, ..] = chunks(&after);
        assert!(chunks(&after).iter().sum::<u64>() >= 2 * ROUNDS, "{name}: {after:?}");
        assert!(encrypted + after.workers.encrypted >= ROUNDS, "{name}");
        assert!(decrypted + after.workers.decrypted >= ROUNDS, "{name}");
        assert!(after.inline.encrypt_ns + after.workers.encrypt_ns > 0, "{name}");
    }
}

/// A clock, and a pool whose workers never take a job.
#[derive(Default)]
struct Asleep {
    jobs: Mutex<VecDeque<Job>>,
    ns: AtomicU64,
}

impl Clock for Asleep {
    fn now_ns(&self) -> u64 {
        self.ns.fetch_add(1, Ordering::Relaxed)
    }

    fn spin_until(&self, until_ns: u64) {
        self.ns.fetch_max(until_ns, Ordering::Relaxed);
    }
}

impl WorkerPool for Asleep {
    fn count(&self) -> u32 {
        1
    }

    fn idle(&self) -> u32 {
        1
    }

    fn offload(&self, job: Job, _: bool) -> Result<(), Job> {
        self.jobs.lock().unwrap().push_back(job);
        Ok(())
    }

    fn offload_same_core(&self, job: Job) -> Result<(), Job> {
        self.offload(job, true)
    }

    fn take(&self) -> Option<Job> {
        self.jobs.lock().unwrap().pop_front()
    }
}

#[test]
fn a_chunk_counts_where_it_was_transformed_whoever_was_asked_to() {
    let pool = Arc::new(Asleep::default());
    let executor = Executor {
        clock: pool.clone(),
        workers: Some(pool.clone()),
        cores: None,
        calibration: Calibration::default(),
    };
    let policies = PolicyKind::Fixed(Fixed::Unbound { sorted: true }).into();
    let options = VolumeOptions { policies, ..VolumeOptions::default() };
    let segment = Segment { len: LEN, backend_offset: 0, cipher: Some(aes(512)) };
    let backend = Arc::new(memory(LEN).unwrap());
    let volume = Volume::with_executor(backend, vec![segment], options, executor).unwrap();
    let volume = Arc::new(volume);
    let queue = || volume.queue(QueueConfig::new(1 << 20, 8)).unwrap();
    let (mut queue, other) = (queue(), queue());
    // Who runs the job of each read in turn: the queue itself, a worker, another queue.
    for round in 0..6 {
        if round % 3 == 0 {
            assert!(!run(&mut queue, Io::read(0, 8192)).offloaded, "round {round}");
            continue;
        }
        queue.submit(1, Io::read(0, 8192)).unwrap();
        queue.poll().unwrap();
        let job = pool.take().expect("the policy offloads everything");
        if round % 3 == 1 { job.run() } else { other.run(job) }.deliver();
        queue.wait().unwrap();
        let done = queue.next_done().expect("an answer");
        assert_eq!((done.result, done.offloaded), (Ok(()), true), "round {round}");
    }
    assert_eq!(chunks(&volume.meters()), [0, 2, 0, 4]);
    let stats = queue.stats();
    assert_eq!((stats.inline, stats.offloaded, stats.taken_back), (2, 4, 2));
}

#[test]
fn chunks_of_a_queue_without_workers_are_its_own() {
    let inline = PolicyKind::Fixed(Fixed::Inline);
    let volume = volume_under(inline, Arc::new(memory(LEN).unwrap()), 0, LEN, 512);
    let mut queue = volume.queue(QueueConfig::new(1 << 20, 8)).unwrap();
    for _ in 0..8 {
        run(&mut queue, Io::write_borrowed(0, &[1; 8192], false)).result.unwrap();
        run(&mut queue, Io::read(0, 8192)).result.unwrap();
    }
    assert_eq!(chunks(&volume.meters()), [8, 8, 0, 0]);
}

#[test]
fn requests_under_way_are_seen_and_failed_ones_are_told_by_kind_and_error() {
    let volume = volume(Arc::new(memory(LEN).unwrap()), 0, LEN, 512);
    let mut queue = volume.queue(QueueConfig::new(1 << 20, 8)).unwrap();
    volume.halt();
    for tag in 0..3 {
        queue.submit(tag, Io::read(0, 512)).unwrap();
    }
    assert_eq!(volume.meters().in_flight, 3);
    // Requests that waited for a key that does not come.
    volume.abandon();
    queue.poll().unwrap();
    let mut failed = 0;
    while failed < 3 {
        queue.wait().unwrap();
        while let Some(done) = queue.next_done() {
            assert_eq!(done.result, Err(Errno::IO));
            failed += 1;
        }
    }
    let meters = volume.meters();
    assert_eq!((meters.in_flight, meters.errors[0].io), (0, 3));
    assert_eq!(meters.errors[1..].iter().map(|kind| kind.io + kind.other).sum::<u64>(), 0);
    assert_eq!(timed(&meters.reads), 0, "a failed request has no latency");
}

/// Regression: what a queue did in its last rounds was told with its next requests, if any came.
#[test]
fn a_queue_that_sleeps_has_told_what_it_decided() {
    let volume = volume(Arc::new(memory(LEN).unwrap()), 0, LEN, 512);
    let mut queue = volume.queue(QueueConfig::new(1 << 20, 8)).unwrap();
    let mut chunks = 0;
    for sleeps in [Queue::rest, |queue: &mut Queue| assert!(queue.may_sleep())] {
        for _ in 0..3 {
            run(&mut queue, Io::read(0, 512)).result.unwrap();
            chunks += 1;
        }
        sleeps(&mut queue);
        let [Decisions { stats, .. }] = volume.decisions()[..] else { panic!("one queue") };
        assert_eq!(stats.inline + stats.offloaded, chunks);
    }
}

#[test]
fn a_request_that_is_given_up_for_lack_of_memory_has_failed() {
    let volume = volume(Arc::new(memory(LEN).unwrap()), 0, LEN, 512);
    let mut queue = volume.queue(QueueConfig::new(1 << 20, 1)).unwrap();
    queue.submit(1, Io::read(0, 512)).unwrap();
    assert!(matches!(
        queue.submit(2, Io::write_borrowed(0, &[1; 512], false)),
        Err(Rejected::Busy(_))
    ));
    queue.given_up();
    let (meters, totals) = (volume.meters(), volume.totals());
    assert_eq!(meters.errors[1], Failed { other: 1, ..Failed::default() });
    assert_eq!((totals.errors, totals.last_error), (1, Some(Errno::NOMEM)));
}
