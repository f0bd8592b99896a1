//! When a queue looks at the clock, which costs as much as a short transform.

use std::sync::Arc;

use crate::executor::Clock;

/// A transform of at least this many sectors takes long: it is timed always, a shorter one now and then,
/// and the backend and the workers do not wait for its end.
pub(super) const LONG_SECTORS: u64 = 32;

/// The clock is looked at once in so many rounds where time decides nothing, and so is the time of
/// short transforms.
const TIMED_EVERY: u32 = 16;

/// What a queue knows of the time, in nanoseconds of the volume's clock.
pub(super) struct Time {
    clock: Arc<dyn Clock>,
    /// The clock is looked at, for as long as something is in flight.
    is_kept: bool,
    /// When it was last read.
    now_ns: u64,
    /// How often something came while nothing was in flight.
    rounds: u32,
    /// Transforms on this thread.
    transforms: u32,
}

impl Time {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, is_kept: false, now_ns: 0, rounds: 0, transforms: 0 }
    }

    /// Reads the clock, for all that happens until it is read again: once for each round of the
    /// loop and after what takes time, not for each step.
    pub(super) fn read(&mut self) {
        if self.is_kept {
            self.now_ns = self.clock.now_ns();
        }
    }

    /// As of the last reading.
    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Now, whether time is kept or not.
    pub(super) fn exact_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Keeps the time or not, until it is chosen again.
    pub(super) fn keep(&mut self, yes: bool) {
        self.is_kept = yes;
    }

    /// Something comes while nothing is in flight, and time decides nothing: it is kept now and then,
    /// for the estimates.
    pub(super) fn sample(&mut self) {
        self.rounds = self.rounds.wrapping_add(1);
        self.is_kept = self.rounds.is_multiple_of(TIMED_EVERY);
    }

    /// When a transform of so many sectors on this thread starts, if it is to be timed.
    pub(super) fn start(&self, sectors: u64) -> Option<u64> {
        let is_timed = sectors >= LONG_SECTORS || self.transforms.is_multiple_of(TIMED_EVERY);
        is_timed.then(|| self.clock.now_ns())
    }

    /// How long one has taken that has just ended, if it was timed.
    pub(super) fn since(&self, started_ns: Option<u64>) -> Option<u64> {
        started_ns.map(|started_ns| self.clock.now_ns().saturating_sub(started_ns))
    }

    /// A transform on this thread has ended, which took so long.
    pub(super) fn transformed(&mut self, spent_ns: Option<u64>) {
        self.transforms = self.transforms.wrapping_add(1);
        self.now_ns += spent_ns.unwrap_or(0);
    }
}
