//! The crypto workers of a volume: threads that encrypt what queues hand on.
//!
//! Contract:
//!
//! - A job is a chunk's buffers, by value; it comes back through the inbox of its queue, once,
//!   with the buffers. The rings between are bounded and take no lock; a full ring refuses the job
//!   and the queue does the work itself.
//! - A worker without work spins briefly, then parks. Whoever adds a job wakes one parked worker, or
//!   leaves the job to one that is awake.
//! - A queue that is about to sleep says so in its inbox; the next answer then signals its waker.
//! - Dropping the pool ends the threads when their jobs are done.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::thread::{JoinHandle, Thread};
use std::time::Instant;

use crossbeam_queue::ArrayQueue;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use ucrypt_backend::{Buf, Errno};
use ucrypt_dispatch::ChunkId;

use crate::segments::{Segment, Segments, Way};

/// Jobs that may wait for a worker.
const JOBS_MAX: usize = 1024;

/// How often an idle worker looks for work before it parks: a few microseconds.
const SPINS: u32 = 200;

/// Rounds of the calibration.
const CALIBRATION_ROUNDS: u32 = 16;

/// A chunk to be crypted.
pub(crate) struct Job {
    pub(crate) chunk: ChunkId,
    pub(crate) segments: Arc<Segments>,
    pub(crate) segment: usize,
    /// First 512-byte sector in the segment.
    pub(crate) sector: u64,
    pub(crate) bufs: Vec<Buf>,
    pub(crate) way: Way,
    pub(crate) inbox: Arc<Inbox>,
}

/// A job that is done.
pub(crate) struct Crypted {
    pub(crate) chunk: ChunkId,
    pub(crate) bufs: Vec<Buf>,
    pub(crate) result: Result<(), Errno>,
    /// What the cipher took, in nanoseconds.
    pub(crate) spent_ns: u64,
}

/// Where the answers for one queue arrive.
pub(crate) struct Inbox {
    pub(crate) answers: ArrayQueue<Crypted>,
    sleeping: AtomicBool,
    waker: Arc<OwnedFd>,
}

impl Inbox {
    /// `depth`: most jobs that the queue has under way.
    pub(crate) fn new(depth: usize, waker: Arc<OwnedFd>) -> Self {
        Self { answers: ArrayQueue::new(depth), sleeping: AtomicBool::new(false), waker }
    }

    /// From now on an answer signals the waker, until [`Inbox::awake`]. The caller looks into
    /// `answers` once more before it sleeps.
    pub(crate) fn going_to_sleep(&self) {
        self.sleeping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    fn put(&self, crypted: Crypted) {
        // The queue has no more jobs under way than its inbox has room for.
        let refused = self.answers.push(crypted).is_err();
        debug_assert!(!refused, "an answer without a job");
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) {
            signal(&self.waker);
        }
    }
}

/// Makes the waker's descriptor readable.
pub(crate) fn signal(waker: &OwnedFd) {
    // Fails only when the counter is about to overflow: then it is readable already.
    let _ = rustix::io::write(waker, &1u64.to_ne_bytes());
}

impl Job {
    /// Does the work and delivers it.
    fn run(self) {
        let Self { chunk, segments, segment, sector, mut bufs, way, inbox } = self;
        let started = Instant::now();
        let result = segments.crypt(segment, sector, &mut bufs, way);
        let spent_ns = elapsed_ns(started);
        inbox.put(Crypted { chunk, bufs, result, spent_ns });
    }
}

pub(crate) fn elapsed_ns(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// A segment of no length, for jobs that only measure the way.
fn nothing() -> Arc<Segments> {
    let segment = Segment { len: 0, backend_offset: 0, cipher: None };
    Arc::new(Segments::new(vec![segment], None, None))
}

/// Of at least one.
fn median(times: &mut [u64]) -> u64 {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Waits for an answer that must come.
fn receive(inbox: &Inbox) -> Crypted {
    loop {
        if let Some(crypted) = inbox.answers.pop() {
            return crypted;
        }
        // With fewer cores than threads, spinning alone would wait for the time slice.
        std::thread::yield_now();
    }
}

fn empty(inbox: &Arc<Inbox>, segments: &Arc<Segments>) -> Option<Job> {
    Some(Job {
        chunk: ChunkId::from_token(0)?,
        segments: segments.clone(),
        segment: 0,
        sector: 0,
        bufs: Vec::new(),
        way: Way::Encrypt,
        inbox: inbox.clone(),
    })
}

struct Shared {
    /// For any worker.
    jobs: ArrayQueue<Job>,
    /// For the worker of one core.
    lanes: Box<[ArrayQueue<Job>]>,
    /// Workers that are parked, or about to.
    asleep: Box<[AtomicBool]>,
    idle: AtomicU32,
    closed: AtomicBool,
}

/// The pool. See the module's contract.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    threads: Box<[Thread]>,
    handles: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts `count` workers, at least one. `pinned`: each stays on a core of its own.
    pub(crate) fn start(count: usize, pinned: bool) -> std::io::Result<Self> {
        let count = count.max(1);
        let shared = Arc::new(Shared {
            jobs: ArrayQueue::new(JOBS_MAX),
            lanes: (0..count).map(|_| ArrayQueue::new(JOBS_MAX)).collect(),
            asleep: (0..count).map(|_| AtomicBool::new(false)).collect(),
            idle: AtomicU32::new(0),
            closed: AtomicBool::new(false),
        });
        let mut workers = Self { shared, threads: Box::default(), handles: Vec::new() };
        for index in 0..count {
            let shared = workers.shared.clone();
            let run = move || {
                if pinned {
                    pin(index);
                }
                shared.serve(index);
            };
            let thread = std::thread::Builder::new().name(format!("crypt-{index}"));
            workers.handles.push(thread.spawn(run)?);
        }
        workers.threads = workers.handles.iter().map(|handle| handle.thread().clone()).collect();
        Ok(workers)
    }

    pub(crate) fn count(&self) -> u32 {
        self.threads.len() as u32
    }

    /// Workers that are parked, or about to.
    pub(crate) fn idle(&self) -> u32 {
        self.shared.idle.load(Ordering::Relaxed)
    }

    /// Hands a job to any worker; gives it back if too many wait. Unless it `wakes`, a worker is only
    /// woken for it if all are parked: who is not looks for jobs before it parks.
    pub(crate) fn hand(&self, job: Job, wakes: bool) -> Result<(), Job> {
        self.shared.jobs.push(job)?;
        fence(Ordering::SeqCst);
        let idle = self.shared.idle.load(Ordering::SeqCst);
        if idle > 0 && (wakes || idle >= self.count()) {
            let asleep = (0..self.threads.len()).find(|&index| self.shared.rouse(index));
            if let Some(index) = asleep {
                self.threads[index].unpark();
            }
        }
        Ok(())
    }

    /// Hands a job to the worker of this core.
    pub(crate) fn hand_same_core(&self, job: Job) -> Result<(), Job> {
        let index = sched_getcpu() % self.threads.len();
        self.shared.lanes[index].push(job)?;
        fence(Ordering::SeqCst);
        if self.shared.rouse(index) {
            self.threads[index].unpark();
        }
        Ok(())
    }

    /// Does one job that waits for a worker, on the calling thread. Returns whether there was one.
    pub(crate) fn help(&self) -> bool {
        match self.shared.jobs.pop() {
            Some(job) => {
                job.run();
                true
            }
            None => false,
        }
    }

    /// What a hand-over costs: nanoseconds from handing an empty job to a parked worker until its
    /// answer is here, the smallest of several; and what this thread takes of that to wake it, the median.
    /// About a millisecond in all.
    pub(crate) fn handover_ns(&self, waker: &Arc<OwnedFd>) -> Option<(u64, u64)> {
        let inbox = Arc::new(Inbox::new(1, waker.clone()));
        let segments: Arc<Segments> = nothing();
        let (mut least_ns, mut wakes) = (u64::MAX, Vec::new());
        for _ in 0..CALIBRATION_ROUNDS {
            std::thread::sleep(std::time::Duration::from_micros(50));
            let started = Instant::now();
            self.hand(empty(&inbox, &segments)?, true).ok()?;
            wakes.push(elapsed_ns(started));
            receive(&inbox);
            least_ns = least_ns.min(elapsed_ns(started));
        }
        Some((least_ns, median(&mut wakes)))
    }

    /// What it costs to have a worker that is awake encrypt a buffer, beyond what it costs to do it here;
    /// then it is copied by `copy`. `segments`: one, with a cipher that hardly takes time. A millisecond
    /// for 64 KiB. `None` if something fails.
    pub(crate) fn trip_ns(
        &self,
        waker: &Arc<OwnedFd>,
        segments: &Arc<Segments>,
        mut buf: Buf,
        mut copy: impl FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Option<Trip> {
        let inbox = Arc::new(Inbox::new(1, waker.clone()));
        let (mut trips, mut copies) = (Vec::new(), Vec::new());
        // The first one wakes it.
        for _ in 0..=CALIBRATION_ROUNDS {
            buf.fill(0);
            let started = Instant::now();
            segments.crypt(0, 0, std::slice::from_mut(&mut buf), Way::Encrypt).ok()?;
            let crypted_ns = elapsed_ns(started);
            copy(&buf).ok()?;
            let here_ns = elapsed_ns(started);
            buf.fill(0);
            let job = Job { bufs: vec![buf], ..empty(&inbox, segments)? };
            let started = Instant::now();
            self.hand(job, true).ok()?;
            let mut crypted = receive(&inbox);
            buf = crypted.bufs.pop()?;
            let arrived_ns = elapsed_ns(started);
            copy(&buf).ok()?;
            let there_ns = elapsed_ns(started);
            trips.push(there_ns.saturating_sub(here_ns));
            copies.push((there_ns - arrived_ns).saturating_sub(here_ns - crypted_ns));
        }
        // Not the smallest: a worker may be on this core in one round.
        Some(Trip { all: median(&mut trips), copy: median(&mut copies) })
    }
}

/// Nanoseconds more than without a worker.
pub(crate) struct Trip {
    /// From giving it away until it was copied.
    pub(crate) all: u64,
    /// To copy it, because it comes from another core's cache.
    pub(crate) copy: u64,
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        for handle in &self.handles {
            handle.thread().unpark();
        }
        for handle in self.handles.drain(..) {
            // A worker that panicked has been reported by the panic itself.
            let _ = handle.join();
        }
    }
}

impl Shared {
    /// Claims a parked worker; the caller unparks it.
    fn rouse(&self, index: usize) -> bool {
        let claimed = self.asleep[index].swap(false, Ordering::SeqCst);
        if claimed {
            self.idle.fetch_sub(1, Ordering::SeqCst);
        }
        claimed
    }

    fn next(&self, index: usize) -> Option<Job> {
        self.lanes[index].pop().or_else(|| self.jobs.pop())
    }

    fn serve(&self, index: usize) {
        loop {
            if let Some(job) = self.spin(index) {
                job.run();
                continue;
            }
            self.asleep[index].store(true, Ordering::SeqCst);
            self.idle.fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            // A job that came before the two lines above has woken nobody.
            let job = self.next(index);
            while job.is_none() && self.asleep[index].load(Ordering::SeqCst) {
                if self.closed.load(Ordering::SeqCst) {
                    return;
                }
                std::thread::park();
            }
            // Nothing to undo if somebody claimed it already.
            self.rouse(index);
            if let Some(job) = job {
                job.run();
            }
        }
    }

    fn spin(&self, index: usize) -> Option<Job> {
        for _ in 0..SPINS {
            if let Some(job) = self.next(index) {
                return Some(job);
            }
            std::hint::spin_loop();
        }
        None
    }
}

/// Keeps the calling thread on one core; where that is not allowed it goes where it goes.
fn pin(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core % CpuSet::MAX_CPU);
    let _ = sched_setaffinity(None, &cores);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn waker() -> Arc<OwnedFd> {
        Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap())
    }

    #[test]
    fn every_job_comes_back_once_through_its_own_inbox() {
        let workers = Workers::start(3, false).unwrap();
        let segments: Arc<Segments> = nothing();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let inbox = Arc::new(Inbox::new(64, waker()));
                    let mut seen = vec![0; 20_000];
                    let (mut sent, mut received) = (0, 0);
                    while received < seen.len() {
                        if sent < seen.len() && sent - received < 64 {
                            let job = Job {
                                chunk: ChunkId::from_token(sent as u64).unwrap(),
                                segments: segments.clone(),
                                segment: 0,
                                sector: 0,
                                bufs: Vec::new(),
                                way: [Way::Encrypt, Way::Decrypt][sent % 2],
                                inbox: inbox.clone(),
                            };
                            sent += usize::from(workers.hand(job, sent.is_multiple_of(3)).is_ok());
                        } else if inbox.answers.is_empty() && !workers.help() {
                            std::thread::yield_now();
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
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let workers = Workers::start(1, true).unwrap();
        let waker = waker();
        let inbox = Arc::new(Inbox::new(1, waker.clone()));
        for round in 0..200 {
            inbox.going_to_sleep();
            let job = Job {
                chunk: ChunkId::from_token(round).unwrap(),
                segments: nothing(),
                segment: 0,
                sector: 0,
                bufs: Vec::new(),
                way: Way::Encrypt,
                inbox: inbox.clone(),
            };
            assert!(workers.hand_same_core(job).is_ok());
            let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
            let woken = poll(&mut [PollFd::new(&*waker, PollFlags::IN)], Some(&patience));
            assert_eq!(woken, Ok(1), "round {round}: nobody woke the queue");
            inbox.awake();
            rustix::io::read(&*waker, &mut [0; 8]).unwrap();
            assert!(inbox.answers.pop().is_some());
        }
        assert!(workers.handover_ns(&waker).is_some());
    }
}
