//! Runs jobs on the CPUs: one pinned thread for each, with its own buffers.
//!
//! The threads are pinned, not the process, because Argon2's threads must be free to use every CPU.
//! A job for several threads starts on all at the same moment. Each thread counts only its own
//! time, so that a late one does not count as a slow one.

use std::hint::black_box;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use ucrypt_backend::{Buf, Pool};
use ucrypt_sector::RunError;

use crate::failure::Failure;

/// One call on a source and a destination of one length.
pub(super) type Job = Arc<dyn Fn(&[u8], &mut [u8]) -> Result<(), RunError> + Send + Sync>;

/// Calls between two reads of the clock take at least this long, so that the reads cost nothing.
const LOOK: Duration = Duration::from_micros(20);

/// The threads, at least one.
pub(super) struct Cores {
    workers: Vec<Sender<Order>>,
    /// The CPU of the first thread; `None` if the threads could not be pinned.
    first_cpu: Option<usize>,
}

/// A job for a thread.
struct Order {
    job: Job,
    time: Duration,
    start: Arc<Barrier>,
    answer: Sender<Result<f64, RunError>>,
}

impl Cores {
    /// Starts a thread on each CPU that this process may use, with buffers of `len` bytes.
    pub(super) fn start(len: usize) -> Result<Self, Failure> {
        let count = thread::available_parallelism().map_or(1, usize::from);
        let cpus = allowed_cpus();
        let mut workers = Vec::new();
        let mut pinned = true;
        for index in 0..count {
            let cpu = cpus.get(index).copied();
            let (src, dst) = (buffer(len)?, buffer(len)?);
            let (worker, orders) = mpsc::channel();
            let (ready, is_pinned) = mpsc::channel();
            let work = move || {
                let pinned = cpu.is_some_and(pin);
                // The starter waits for the answer; if it has gone, nobody needs it.
                let _ = ready.send(pinned);
                serve(src, dst, &orders);
            };
            let spawned = thread::Builder::new().name(format!("benchmark {index}")).spawn(work);
            spawned.map_err(|error| {
                Failure::memory(format!(
                    "cannot start {count} threads: {error}; raise the limit of processes"
                ))
            })?;
            pinned &= is_pinned.recv().unwrap_or(false);
            workers.push(worker);
        }
        let first_cpu = cpus.first().copied().filter(|_| pinned);
        Ok(Self { workers, first_cpu })
    }

    /// The number of threads.
    pub(super) fn count(&self) -> usize {
        self.workers.len()
    }

    /// The CPU that is measured alone; `None` if the system did not let threads be pinned.
    pub(super) fn first_cpu(&self) -> Option<usize> {
        self.first_cpu
    }

    /// Bytes per second of `job` on the first CPU, called repeatedly for `time`.
    pub(super) fn on_one(&self, job: &Job, time: Duration) -> Result<f64, Failure> {
        run(&self.workers[..1], job, time)
    }

    /// Bytes per second of `job` on all CPUs together.
    pub(super) fn on_all(&self, job: &Job, time: Duration) -> Result<f64, Failure> {
        run(&self.workers, job, time)
    }
}

fn run(workers: &[Sender<Order>], job: &Job, time: Duration) -> Result<f64, Failure> {
    let start = Arc::new(Barrier::new(workers.len()));
    let (answer, answers) = mpsc::channel();
    for worker in workers {
        let order = Order { job: job.clone(), time, start: start.clone(), answer: answer.clone() };
        worker.send(order).map_err(|_| Failure::wrong("a measuring thread has ended"))?;
    }
    drop(answer);
    answers.iter().sum::<Result<f64, RunError>>().map_err(Failure::wrong)
}

/// The CPUs that this process may use; empty if the system does not say.
fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Binds the calling thread to a CPU; false if the system refuses.
fn pin(cpu: usize) -> bool {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).is_ok()
}

/// Page-aligned memory, as requests have it.
fn buffer(len: usize) -> Result<Buf, Failure> {
    let memory = |why: String| Failure::memory(format!("{why}; use a smaller --buffer-size"));
    let pool = Pool::new(len.next_power_of_two())
        .map_err(|error| memory(format!("cannot take {len} bytes of memory: {error}")))?;
    pool.alloc(len).ok_or_else(|| memory(format!("cannot take {len} bytes of memory")))
}

/// The loop of a thread: carries out orders until nobody can send one any more.
fn serve(mut src: Buf, mut dst: Buf, orders: &Receiver<Order>) {
    // Write the buffers here, not in the starter: pages come from the memory next to the CPU that
    // touches them first, and pages never written are all the same one.
    src.fill(0x5a);
    dst.fill(0xa5);
    for Order { job, time, start, answer } in orders {
        // The first call brings code, keys and data into the caches.
        let warm = job(&src, &mut dst);
        start.wait();
        let speed = warm.and_then(|()| speed(&job, &src, &mut dst, time));
        // The sender of the order still waits, or has failed and said so.
        let _ = answer.send(speed);
    }
}

/// Bytes per second of `job`, called for at least `time`.
fn speed(job: &Job, src: &[u8], dst: &mut [u8], time: Duration) -> Result<f64, RunError> {
    let (mut calls, mut batch) = (0_u64, 1_u64);
    let begin = Instant::now();
    let mut last = Duration::ZERO;
    loop {
        for _ in 0..batch {
            job(black_box(src), black_box(&mut *dst))?;
        }
        calls += batch;
        let elapsed = begin.elapsed();
        if elapsed >= time {
            let seconds = elapsed.max(Duration::from_nanos(1)).as_secs_f64();
            return Ok(calls as f64 * src.len() as f64 / seconds);
        }
        if elapsed.saturating_sub(last) < LOOK {
            batch *= 2;
        }
        last = elapsed;
    }
}
