//! The workers of a volume: threads that transform offloaded chunks.
//!
//! Contract:
//!
//! - A job owns a chunk's buffers. It comes back, once and with its buffers, through the inbox of
//!   its queue. The rings between queues and workers are bounded and take no lock. A full ring
//!   refuses the job, and the queue does the work itself.
//! - A worker without work spins briefly, then parks. Adding a job wakes one parked worker, or
//!   leaves the job to an awake one.
//! - A queue that is about to sleep says so in its inbox; the next answer then signals its waker.
//! - Dropping the pool ends the threads once their jobs are done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::thread::{JoinHandle, Thread};

use crossbeam_queue::ArrayQueue;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use ucrypt_backend::{Buf, Errno};
use ucrypt_dispatch::ChunkId;

use crate::executor::WorkerPool;
use crate::jobs::{JobRings, wakes_worker};
use crate::residue;
use crate::segments::{CipherOp, Segments};
use crate::tuning::WORKER_SPIN_LOOKS;
use crate::waker::Waker;

/// Stack of a worker, in bytes: it only runs ciphers.
const STACK_BYTES: usize = 128 << 10;

/// In place of a core: the worker is awake.
const AWAKE: usize = usize::MAX;

/// A chunk to be transformed.
pub struct Job {
    pub(crate) chunk: ChunkId,
    pub(crate) segments: Arc<Segments>,
    pub(crate) segment: usize,
    /// First 512-byte sector in the segment.
    pub(crate) sector: u64,
    pub(crate) bufs: Vec<Buf>,
    pub(crate) op: CipherOp,
    pub(crate) inbox: Arc<Inbox>,
}

/// The result of a job.
pub(crate) struct Transformed {
    pub(crate) chunk: ChunkId,
    pub(crate) bufs: Vec<Buf>,
    pub(crate) result: Result<(), Errno>,
    /// Nanoseconds of the transform.
    pub(crate) spent_ns: u64,
    /// The queue itself did it.
    pub(crate) taken_back: bool,
}

/// A finished job, on its way back.
pub struct DoneJob {
    transformed: Transformed,
    inbox: Arc<Inbox>,
}

/// Receives the answers for one queue.
pub(crate) struct Inbox {
    pub(crate) answers: ArrayQueue<Transformed>,
    sleeping: AtomicBool,
    waker: Arc<Waker>,
}

impl Inbox {
    /// `depth`: maximum number of jobs that the queue has under way.
    pub(crate) fn new(depth: usize, waker: Arc<Waker>) -> Self {
        Self { answers: ArrayQueue::new(depth), sleeping: AtomicBool::new(false), waker }
    }

    /// From now on answers signal the waker, until [`Inbox::awake`]. The caller must check
    /// `answers` once more before it sleeps.
    pub(crate) fn going_to_sleep(&self) {
        self.sleeping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    fn put(&self, transformed: Transformed) {
        // A queue has at most as many jobs under way as its inbox has room for.
        let refused = self.answers.push(transformed).is_err();
        debug_assert!(!refused, "an answer without a job");
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) {
            self.waker.signal();
        }
    }
}

impl Job {
    /// The memory that the job transforms.
    pub fn memory(&self) -> impl Iterator<Item = &[u8]> {
        self.bufs.iter().map(|buf| &buf[..])
    }

    /// Whether the job came from the queue with this inbox.
    pub(crate) fn is_of(&self, inbox: &Arc<Inbox>) -> bool {
        Arc::ptr_eq(&self.inbox, inbox)
    }

    /// Does the work on a worker.
    pub fn run(self) -> DoneJob {
        self.run_as(false)
    }

    /// Does the work. `taken_back`: on the thread of its own queue.
    pub(crate) fn run_as(self, taken_back: bool) -> DoneJob {
        let Self { chunk, segments, segment, sector, mut bufs, op, inbox } = self;
        let started_ns = segments.clock.now_ns();
        let result = segments.transform(segment, sector, &mut bufs, op);
        let spent_ns = segments.clock.now_ns() - started_ns;
        let transformed = Transformed { chunk, bufs, result, spent_ns, taken_back };
        DoneJob { transformed, inbox }
    }
}

impl DoneJob {
    /// Returns the job to its queue, and wakes the queue if it sleeps.
    pub fn deliver(self) {
        self.inbox.put(self.transformed);
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("chunk", &self.chunk).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for DoneJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DoneJob").field("chunk", &self.transformed.chunk).finish_non_exhaustive()
    }
}

struct Shared {
    /// A lane for each worker, unless workers move between cores.
    jobs: JobRings<Job>,
    /// Per worker: the core on which it parked, or is about to; [`AWAKE`].
    asleep: Box<[AtomicUsize]>,
    idle: AtomicU32,
    closed: AtomicBool,
}

/// The cores of pinned workers: those that the process may use, which need not be the first of the machine.
struct Places {
    cores: Vec<usize>,
    /// Worker by core.
    workers: Vec<usize>,
}

impl Places {
    /// Places for `count` workers on these cores, at least one.
    fn new(cores: Vec<usize>, count: usize) -> Self {
        let last = cores.iter().max().map_or(0, |&core| core);
        let mut workers: Vec<usize> = (0..=last).map(|core| core % count).collect();
        for (place, &core) in cores.iter().enumerate() {
            workers[core] = place % count;
        }
        Self { cores, workers }
    }

    /// The cores that the calling thread may use, in ascending order.
    fn allowed() -> Vec<usize> {
        let allowed = sched_getaffinity(None).unwrap_or_default();
        (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect()
    }

    /// Where a worker runs; `None` if the system does not tell the cores.
    fn core(&self, worker: usize) -> Option<usize> {
        self.cores.get(worker % self.cores.len().max(1)).copied()
    }

    /// The worker of a core. Of one that the process may not use, any.
    fn worker(&self, core: usize, count: usize) -> usize {
        self.workers.get(core).copied().unwrap_or(core % count)
    }
}

/// The worker pool. See the module's contract.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    places: Places,
    threads: Box<[Thread]>,
    handles: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts `count` workers, at least one. `pinned`: each stays on its own core.
    pub(crate) fn start(count: usize, pinned: bool) -> std::io::Result<Self> {
        let count = count.max(1);
        let lanes = if pinned { count } else { 0 };
        let shared = Arc::new(Shared {
            jobs: JobRings::new(lanes),
            asleep: (0..count).map(|_| AtomicUsize::new(AWAKE)).collect(),
            idle: AtomicU32::new(0),
            closed: AtomicBool::new(false),
        });
        let places = Places::new(if pinned { Places::allowed() } else { Vec::new() }, count);
        let mut workers = Self { shared, places, threads: Box::default(), handles: Vec::new() };
        for index in 0..count {
            let (shared, core) = (workers.shared.clone(), workers.places.core(index));
            let run = move || {
                if let Some(core) = core {
                    pin(core);
                }
                shared.serve(index);
            };
            let thread = std::thread::Builder::new().name(format!("crypt-{index}"));
            let thread = thread.stack_size(STACK_BYTES);
            workers.handles.push(thread.spawn(run)?);
        }
        workers.threads = workers.handles.iter().map(|handle| handle.thread().clone()).collect();
        Ok(workers)
    }
}

impl WorkerPool for Workers {
    fn count(&self) -> u32 {
        self.threads.len() as u32
    }

    fn idle(&self) -> u32 {
        self.shared.idle.load(Ordering::Relaxed)
    }

    fn offload(&self, job: Job, wakes: bool) -> Result<(), Job> {
        self.shared.jobs.push(job)?;
        fence(Ordering::SeqCst);
        let idle = self.shared.idle.load(Ordering::SeqCst);
        if wakes_worker(wakes, idle, self.count())
            && let Some(index) = self.shared.rouse_any(sched_getcpu())
        {
            self.threads[index].unpark();
        }
        Ok(())
    }

    fn offload_same_core(&self, job: Job) -> Result<(), Job> {
        if self.shared.jobs.lanes() == 0 {
            return self.offload(job, true);
        }
        let index = self.places.worker(sched_getcpu(), self.threads.len());
        self.shared.jobs.push_to(index, job)?;
        fence(Ordering::SeqCst);
        if self.shared.rouse(index) {
            self.threads[index].unpark();
        }
        Ok(())
    }

    fn take(&self) -> Option<Job> {
        self.shared.jobs.take()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        for handle in &self.handles {
            handle.thread().unpark();
        }
        for handle in self.handles.drain(..) {
            // A panic of the worker has been reported already.
            let _ = handle.join();
        }
    }
}

impl Shared {
    /// Claims a parked worker for waking; the caller unparks it. Returns whether it was parked.
    fn rouse(&self, index: usize) -> bool {
        let claimed = self.asleep[index].swap(AWAKE, Ordering::SeqCst) != AWAKE;
        if claimed {
            self.idle.fetch_sub(1, Ordering::SeqCst);
        }
        claimed
    }

    /// Claims any parked worker for waking by a thread on the core `here`, if possible one that
    /// parked on another core: kernels tend to wake a thread where it ran last, which would stop the
    /// one that wakes it.
    fn rouse_any(&self, here: usize) -> Option<usize> {
        let is_elsewhere = |index: &usize| {
            let core = self.asleep[*index].load(Ordering::Relaxed);
            core != here && core != AWAKE
        };
        let claimed = (0..self.asleep.len()).filter(is_elsewhere).find(|&index| self.rouse(index));
        claimed.or_else(|| (0..self.asleep.len()).find(|&index| self.rouse(index)))
    }

    fn next(&self, index: usize) -> Option<Job> {
        self.jobs.take_from(index).or_else(|| self.jobs.take())
    }

    fn serve(&self, index: usize) {
        loop {
            if let Some(job) = self.spin(index) {
                job.run().deliver();
                continue;
            }
            residue::scrub();
            self.asleep[index].store(sched_getcpu(), Ordering::SeqCst);
            self.idle.fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            // A job added before the two lines above woke no worker: look once more.
            let job = self.next(index);
            while job.is_none() && self.asleep[index].load(Ordering::SeqCst) != AWAKE {
                if self.closed.load(Ordering::SeqCst) {
                    return;
                }
                std::thread::park();
            }
            // No effect if another thread has claimed this worker already.
            self.rouse(index);
            if let Some(job) = job {
                job.run().deliver();
            }
        }
    }

    fn spin(&self, index: usize) -> Option<Job> {
        for _ in 0..WORKER_SPIN_LOOKS {
            if let Some(job) = self.next(index) {
                return Some(job);
            }
            std::hint::spin_loop();
        }
        None
    }
}

/// Pins the calling thread to one core, where that is allowed.
fn pin(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    let _ = sched_setaffinity(None, &cores);
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::calibrate::{empty, nothing};

    fn waker() -> Arc<Waker> {
        Arc::new(Waker::new().unwrap())
    }

    fn job(number: u64, inbox: &Arc<Inbox>, segments: &Arc<Segments>) -> Job {
        let chunk = ChunkId::from_token(number).unwrap();
        Job { chunk, ..empty(inbox, segments).unwrap() }
    }

    /// Regression: in a container that may use cores 2 and 3, the workers were for cores 0 and 1, and ran anywhere.
    #[test]
    fn each_worker_has_a_core_that_is_allowed_and_each_core_its_worker() {
        for (cores, count) in [(vec![2, 3], 2), (vec![0, 1, 2, 3], 4), (vec![1, 5, 6], 3)] {
            let places = Places::new(cores.clone(), count);
            for (worker, &core) in cores.iter().enumerate() {
                let seen = (places.core(worker), places.worker(core, count));
                assert_eq!(seen, (Some(core), worker), "{cores:?}");
            }
        }
        // More workers than cores, and fewer; and a core that was allowed only later.
        let places = Places::new(vec![2, 3], 3);
        assert_eq!([0, 1, 2].map(|worker| places.core(worker)), [Some(2), Some(3), Some(2)]);
        let places = Places::new(vec![2, 3, 4], 2);
        assert_eq!([2, 3, 4, 0, 9].map(|core| places.worker(core, 2)), [0, 1, 0, 0, 1]);
        assert_eq!(Places::new(Vec::new(), 2).core(1), None);
    }

    #[test]
    fn a_worker_that_parked_on_another_core_is_woken_first() {
        let shared = Shared {
            jobs: JobRings::new(0),
            asleep: [3, AWAKE, 5, 3].map(AtomicUsize::new).into(),
            idle: AtomicU32::new(3),
            closed: AtomicBool::new(false),
        };
        let woken: Vec<_> = std::iter::from_fn(|| shared.rouse_any(3)).collect();
        assert_eq!(woken, [2, 0, 3]);
        assert_eq!(shared.idle.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn every_job_comes_back_once_through_its_own_inbox() {
        let workers = Workers::start(3, false).unwrap();
        let segments = nothing();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let inbox = Arc::new(Inbox::new(64, waker()));
                    let mut seen = vec![0; 20_000];
                    let (mut sent, mut received) = (0, 0);
                    while received < seen.len() {
                        if sent < seen.len() && sent - received < 64 {
                            let job = job(sent as u64, &inbox, &segments);
                            let taken = workers.offload(job, sent.is_multiple_of(3));
                            sent += usize::from(taken.is_ok());
                        } else if inbox.answers.is_empty() {
                            match workers.take() {
                                Some(job) => job.run().deliver(),
                                None => std::thread::yield_now(),
                            }
                        }
                        while let Some(answer) = inbox.answers.pop() {
                            seen[answer.chunk.index()] += 1;
                            received += 1;
                        }
                    }
                    assert!(seen.iter().all(|&count| count == 1));
                });
            }
        });
    }

    #[test]
    fn a_queue_that_sleeps_is_woken_by_its_answer() {
        let workers = Workers::start(1, true).unwrap();
        let waker = waker();
        let inbox = Arc::new(Inbox::new(1, waker.clone()));
        for round in 0..200 {
            inbox.going_to_sleep();
            assert!(workers.offload_same_core(job(round, &inbox, &nothing())).is_ok());
            assert!(waker.is_readable(20), "round {round}: nobody woke the queue");
            inbox.awake();
            while waker.is_readable(0) {
                waker.take().unwrap();
            }
            assert!(inbox.answers.pop().is_some());
        }
    }
}
