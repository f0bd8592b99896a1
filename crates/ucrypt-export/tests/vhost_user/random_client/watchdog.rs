//! A run in which nothing is answered for a while is a failure, and says what is waited for.

use std::time::{Duration, Instant};

/// How long nothing may be answered while something is under way.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Watchdog {
    last: Instant,
}

impl Watchdog {
    pub(crate) fn new() -> Self {
        Self { last: Instant::now() }
    }

    /// Something was answered, or begins after a rest.
    pub(crate) fn pat(&mut self) {
        self.last = Instant::now();
    }

    /// How long to wait for the next answer.
    pub(crate) fn left(&self) -> Duration {
        PATIENCE.saturating_sub(self.last.elapsed())
    }

    /// Fails with `waits` if it took too long.
    #[track_caller]
    pub(crate) fn check(&self, waits: impl FnOnce() -> String) {
        assert!(!self.left().is_zero(), "nothing was answered for {PATIENCE:?}; {}", waits());
    }
}
