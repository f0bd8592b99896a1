//! Cores and the threads bound to them.
//!
//! A core runs one thread at a time, which keeps it until it has nothing to do, or until others
//! have waited for a slice. A queue that is woken takes the core from a worker at once.

use std::collections::VecDeque;

use ucrypt_dispatch::{ChunkId, Place, RequestId, StoreKind};

use super::disk::Failure;

/// What a thread is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The loop of a queue.
    Queue(usize),
    /// The worker on a queue's own core.
    Local(usize),
    /// A worker of the pool.
    Pool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Since when.
    Asleep(u64),
    Waking,
    /// Waits for its core, or runs.
    Awake,
}

/// A chunk on its way to a worker and back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CryptJob {
    pub(crate) queue: usize,
    pub(crate) chunk: ChunkId,
    pub(crate) cipher_ns: u64,
}

/// What happens when a piece of work has been done.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Then {
    /// A chunk was crypted, here or by a worker.
    Crypted { job: CryptJob, spent_ns: u64, handed: bool },
    /// A chunk goes to a worker.
    Hand { job: CryptJob, place: Place },
    /// An operation is staged for the disk.
    Stage { queue: usize, chunk: ChunkId, kind: StoreKind },
    /// What is staged goes to the disk.
    Enter { queue: usize },
    /// The disk has answered on this thread.
    Stored { operation: usize },
    /// A client gets its answer.
    Finish { queue: usize, request: RequestId, result: Result<(), Failure> },
    /// That many answers and requests are taken in.
    Take { queue: usize, answers: usize, arrivals: usize },
    /// A call was made on the way.
    Nothing,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub(crate) left_ns: u64,
    pub(crate) then: Then,
}

#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) role: Role,
    pub(crate) core: usize,
    pub(crate) state: State,
    pub(crate) work: Option<Work>,
    /// Calls that it made on the way and has not spent the time for.
    pub(crate) debt_ns: u64,
    /// It was woken by a thread of its core, which goes on until it has nothing more to do.
    pub(crate) waits: bool,
    /// A worker that has found nothing to do and spins.
    pub(crate) spins: bool,
}

/// How long a thread keeps its core while others wait.
const SLICE_NS: u64 = 500_000;

/// How long until the core looks who else wants it.
const QUANTUM_NS: u64 = 50_000;

#[derive(Debug, Default)]
pub(crate) struct Core {
    pub(crate) running: Option<usize>,
    /// Queues that were woken.
    woken: VecDeque<usize>,
    ready: VecDeque<usize>,
    last: Option<usize>,
    since_ns: u64,
    pub(crate) busy_ns: u64,
    /// Threads that live here.
    pub(crate) threads: u32,
}

impl Core {
    pub(crate) fn add(&mut self, thread: usize, role: Role, waits: bool) {
        match role {
            Role::Queue(_) if !waits => self.woken.push_back(thread),
            _ => self.ready.push_back(thread),
        }
    }

    /// The next thread runs; returns whether the core changed threads, or `None` if none wants to.
    pub(crate) fn pick(&mut self, now_ns: u64) -> Option<bool> {
        let next = self.woken.pop_front().or_else(|| self.ready.pop_front())?;
        let changed = self.last.is_some_and(|last| last != next);
        (self.running, self.last, self.since_ns) = (Some(next), Some(next), now_ns);
        Some(changed)
    }

    /// Whether the running thread has to make room.
    pub(crate) fn must_yield(&self, role: Role, now_ns: u64) -> bool {
        let preempted = !self.woken.is_empty() && !matches!(role, Role::Queue(_));
        let waits = !self.woken.is_empty() || !self.ready.is_empty();
        preempted || (waits && now_ns - self.since_ns >= SLICE_NS)
    }

    /// The running thread goes to the end of the line.
    pub(crate) fn put_back(&mut self) {
        self.ready.extend(self.running.take());
    }

    /// How much of a piece of work is done before the core looks around.
    pub(crate) fn quantum(&self, left_ns: u64) -> u64 {
        if self.threads > 1 { left_ns.min(QUANTUM_NS) } else { left_ns }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_none()
    }
}
