//! Cores and the threads bound to them.
//!
//! A core runs one thread at a time. The thread keeps the core until it has nothing to do, or until
//! others have waited for a slice. A woken queue takes the core from a worker at once.

use std::collections::VecDeque;

use ucrypt_engine::DoneJob;

/// The role of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The loop of a queue.
    Queue(usize),
    /// The worker on a queue's own core.
    Local(usize),
    /// A worker of the pool.
    Pool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Asleep since this time.
    Asleep(u64),
    Waking,
    /// Waits for its core, or runs.
    Awake,
}

/// The current work of a thread.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) left_ns: u64,
    /// A job to deliver when it is done, and its queue.
    pub(super) done: Option<(usize, DoneJob)>,
}

#[derive(Debug)]
pub(super) struct Thread {
    pub(super) role: Role,
    pub(super) core: usize,
    pub(super) state: State,
    pub(super) work: Option<Work>,
    /// Time of calls made but not yet spent.
    pub(super) debt_ns: u64,
    /// It was woken by a thread of its core, which continues until it has nothing more to do.
    pub(super) waits: bool,
    /// The worker has found nothing to do and has spun in vain.
    pub(super) has_spun: bool,
}

impl Thread {
    pub(super) fn new(role: Role, core: usize) -> Self {
        Self {
            role,
            core,
            state: State::Asleep(0),
            work: None,
            debt_ns: 0,
            waits: false,
            has_spun: false,
        }
    }
}

/// How long a thread keeps its core while others wait.
const SLICE_NS: u64 = 500_000;

/// How often the core checks which other threads want it.
const QUANTUM_NS: u64 = 50_000;

#[derive(Debug, Default)]
pub(super) struct Core {
    pub(super) running: Option<usize>,
    /// Queues that were woken.
    woken: VecDeque<usize>,
    ready: VecDeque<usize>,
    last: Option<usize>,
    since_ns: u64,
    pub(super) busy_ns: u64,
    /// Number of threads bound to this core.
    pub(super) threads: u32,
}

impl Core {
    pub(super) fn add(&mut self, thread: usize, role: Role, waits: bool) {
        match role {
            Role::Queue(_) if !waits => self.woken.push_back(thread),
            _ => self.ready.push_back(thread),
        }
    }

    /// Runs the next thread; returns whether the core changed threads, or `None` if no thread is
    /// ready.
    pub(super) fn pick(&mut self, now_ns: u64) -> Option<bool> {
        let next = self.woken.pop_front().or_else(|| self.ready.pop_front())?;
        let changed = self.last.is_some_and(|last| last != next);
        (self.running, self.last, self.since_ns) = (Some(next), Some(next), now_ns);
        Some(changed)
    }

    /// Whether the running thread must yield.
    pub(super) fn must_yield(&self, role: Role, now_ns: u64) -> bool {
        let preempted = !self.woken.is_empty() && !matches!(role, Role::Queue(_));
        let waits = !self.woken.is_empty() || !self.ready.is_empty();
        preempted || (waits && now_ns - self.since_ns >= SLICE_NS)
    }

    /// Puts the running thread at the end of the line.
    pub(super) fn put_back(&mut self) {
        self.ready.extend(self.running.take());
    }

    /// How much of a piece of work is done before the core checks for other threads.
    pub(super) fn quantum(&self, left_ns: u64) -> u64 {
        if self.threads > 1 { left_ns.min(QUANTUM_NS) } else { left_ns }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none()
    }
}
