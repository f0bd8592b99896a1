//! The surroundings of a queue besides its backend: time and workers.
//!
//! In production the time is the machine's and the workers are threads. A simulator has both in
//! virtual time, and drives the same queues step by step ([`Queue::step`](crate::Queue::step)).

use std::sync::Arc;
use std::time::Instant;

use crate::calibrate::Calibration;
use crate::workers::Job;

/// Tells the time, and lets it pass.
pub trait Clock: Send + Sync {
    /// Nanoseconds since a fixed origin.
    fn now_ns(&self) -> u64;

    /// Keeps the calling thread's core busy until the time is `until_ns`.
    fn spin_until(&self, until_ns: u64);
}

/// Threads that transform chunks for queues.
pub trait WorkerPool: Send + Sync {
    /// Number of workers, at least one.
    fn count(&self) -> u32;

    /// Number of workers that sleep, or are about to.
    fn idle(&self) -> u32;

    /// Hands a job to any worker, unless too many jobs are waiting. With `wakes`, a sleeping worker
    /// is woken for it; otherwise one is woken only if all sleep, because an awake worker looks for
    /// jobs before it sleeps.
    ///
    /// # Errors
    /// The job, if it was not taken.
    fn offload(&self, job: Job, wakes: bool) -> Result<(), Job>;

    /// Hands a job to the worker of the calling thread's core.
    ///
    /// # Errors
    /// The job, if it was not taken.
    fn offload_same_core(&self, job: Job) -> Result<(), Job>;

    /// Takes one waiting job, for a queue that has no work of its own ([`Queue::run`]); `None` if there is none, or
    /// if the pool itself gives jobs to such queues.
    ///
    /// [`Queue::run`]: crate::Queue::run
    fn take(&self) -> Option<Job>;
}

/// Time and workers of a volume.
pub struct Executor {
    /// The clock of all queues and workers.
    pub clock: Arc<dyn Clock>,
    /// Workers to offload to; `None`: each queue transforms its own chunks.
    pub workers: Option<Arc<dyn WorkerPool>>,
    /// Cores that workers and queues share; `None`: workers are used whatever that costs others. Queues
    /// that decide whether to spin count the machine's then.
    pub cores: Option<u32>,
    /// Figures measured with this clock and these workers.
    pub calibration: Calibration,
}

/// The machine's monotonic clock.
#[derive(Debug)]
pub(crate) struct Monotonic(Instant);

impl Monotonic {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }
}

impl Clock for Monotonic {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn spin_until(&self, until_ns: u64) {
        while self.now_ns() < until_ns {
            std::hint::spin_loop();
        }
    }
}
