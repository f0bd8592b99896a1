//! What a queue has from the world besides its backend: time, and workers.
//!
//! In production the time is the machine's and the workers are threads. A simulator has both in virtual
//! time, and drives the same queues step by step ([`Queue::step`](crate::Queue::step)).

use std::sync::Arc;
use std::time::Instant;

use crate::calibrate::Calibration;
use crate::workers::Job;

/// Tells the time, and lets it pass.
pub trait Clock: Send + Sync {
    /// Nanoseconds since an origin that stays the same.
    fn now_ns(&self) -> u64;

    /// Keeps the calling thread's core busy until it is `until_ns`.
    fn spin_until(&self, until_ns: u64);
}

/// Threads that do the cipher's work for queues.
pub trait WorkerPool: Send + Sync {
    /// How many there are, at least one.
    fn count(&self) -> u32;

    /// Those among them that sleep, or are about to.
    fn idle(&self) -> u32;

    /// Hands a job to any worker; gives it back if too many wait. Unless it `wakes`, a worker is only
    /// woken for it if all sleep: who does not looks for jobs before it sleeps.
    ///
    /// # Errors
    /// The job, if it was not taken.
    fn offload(&self, job: Job, wakes: bool) -> Result<(), Job>;

    /// Hands a job to the worker of the calling thread's core.
    ///
    /// # Errors
    /// The job, if it was not taken.
    fn offload_same_core(&self, job: Job) -> Result<(), Job>;

    /// Does one job that waits for a worker, on the calling thread. Returns whether there was one.
    fn help(&self) -> bool;
}

/// Time and workers of a volume.
pub struct Executor {
    /// The time, for all queues and workers.
    pub clock: Arc<dyn Clock>,
    /// Where the cipher's work may be handed to; `None`: each queue does its own.
    pub workers: Option<Arc<dyn WorkerPool>>,
    /// Cores that workers and queues share; `None`: workers are used whatever that costs others.
    pub cores: Option<u32>,
    /// What was measured of both.
    pub calibration: Calibration,
}

/// The time of this machine.
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
