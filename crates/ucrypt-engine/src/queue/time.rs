//! Decides when a queue reads the clock, which costs as much as a short transform.

use std::sync::Arc;

use crate::executor::Clock;
use crate::tuning::{LONG_SECTORS, TIMED_ONE_IN};

/// How many transforms of this length a timed one stands for.
pub(super) fn timed_for(sectors: u64) -> u64 {
    if sectors >= LONG_SECTORS { 1 } else { u64::from(TIMED_ONE_IN) }
}

/// The time as a queue knows it, in nanoseconds of the volume's clock.
pub(super) struct Time {
    clock: Arc<dyn Clock>,
    /// Whether the clock is read in each round while something is in flight.
    is_kept: bool,
    /// Result of the last reading.
    now_ns: u64,
    /// Requests that arrived while nothing was in flight.
    rounds: u32,
    /// Transforms on this thread.
    transforms: u32,
}

impl Time {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, is_kept: false, now_ns: 0, rounds: 0, transforms: 0 }
    }

    /// Reads the clock for all steps until the next reading: once in each round of the loop and
    /// after long steps, not in each step.
    pub(super) fn read(&mut self) {
        if self.is_kept {
            self.now_ns = self.clock.now_ns();
        }
    }

    /// The time of the last reading.
    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// The time now, whether it is kept or not.
    pub(super) fn exact_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Sets whether the time is kept, until the next call or sample.
    pub(super) fn keep(&mut self, yes: bool) {
        self.is_kept = yes;
    }

    /// A request arrives while nothing is in flight and no decision depends on the time: the time
    /// is kept now and then, for the estimates.
    pub(super) fn sample(&mut self) {
        self.rounds = self.rounds.wrapping_add(1);
        self.is_kept = self.rounds.is_multiple_of(TIMED_ONE_IN);
    }

    /// The start time of a transform of `sectors` on this thread, if it is to be timed.
    pub(super) fn start(&self, sectors: u64) -> Option<u64> {
        let is_timed = sectors >= LONG_SECTORS || self.transforms.is_multiple_of(TIMED_ONE_IN);
        is_timed.then(|| self.clock.now_ns())
    }

    /// Duration of a transform that has just ended, if it was timed.
    pub(super) fn since(&self, started_ns: Option<u64>) -> Option<u64> {
        started_ns.map(|started_ns| self.clock.now_ns().saturating_sub(started_ns))
    }

    /// Notes that a transform on this thread has ended, and its duration.
    pub(super) fn transformed(&mut self, spent_ns: Option<u64>) {
        self.transforms = self.transforms.wrapping_add(1);
        self.now_ns += spent_ns.unwrap_or(0);
    }
}
