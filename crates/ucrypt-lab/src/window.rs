//! The time that a measurement counts: the same for all jobs of a load.
//!
//! Rates of jobs that were measured at different times do not add up: while one of them has not
//! begun or has ended, the others are faster. So:
//!
//! - the clock of a load starts when every job is ready, or has failed;
//! - the window opens at the first request of any job that ends after the ramp, and closes at the
//!   first that ends after the time is over and enough requests are counted;
//! - a request counts if it ends after the opening and not after the closing. The one that opens
//!   the window does not count: the time in which it was under way lies before it;
//! - every job keeps its requests in flight until the window is closed.
//!
//! A load with a fixed number of requests counts all of them, from the start to the last end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::load::Times;

/// How often a stop is looked for while other jobs get ready.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Not yet: times are nanoseconds since the start, and none is as late as this.
const NEVER: u64 = u64::MAX;

/// See the module. Jobs share it.
#[derive(Debug)]
pub(crate) struct Window {
    /// From here on the ramp is over; none if all requests count.
    ramp_end_ns: u64,
    until_ns: u64,
    /// Whether every request counts.
    is_counted: bool,
    /// Requests that have to be counted at least.
    enough: u64,
    /// Jobs that are not ready, and the start.
    gate: Mutex<(u32, Option<Instant>)>,
    opened: Condvar,
    from_ns: AtomicU64,
    to_ns: AtomicU64,
    /// Counted before there were enough of them. Later ones are not added: jobs would wait for
    /// each other's cache line at every request.
    counted: AtomicU64,
    has_enough: AtomicBool,
    /// Makes the closing one decision.
    closing: Mutex<()>,
}

impl Window {
    /// Of a load of `jobs`, which counts at least `enough` requests. `is_counted`: the load has a
    /// fixed number of requests, and all of them count.
    pub(crate) fn new(times: Times, jobs: u32, enough: u64, is_counted: bool) -> Self {
        let ramp_end_ns = times.ramp.as_nanos() as u64;
        Self {
            ramp_end_ns,
            until_ns: ramp_end_ns.saturating_add(times.measured.as_nanos() as u64),
            is_counted,
            enough,
            gate: Mutex::new((jobs, None)),
            opened: Condvar::new(),
            from_ns: AtomicU64::new(if is_counted { 0 } else { NEVER }),
            to_ns: AtomicU64::new(NEVER),
            counted: AtomicU64::new(0),
            has_enough: AtomicBool::new(enough == 0),
            closing: Mutex::new(()),
        }
    }

    /// A job that gets ready. The others wait for it until this is dropped or it [`begins`](Entrant::begin).
    pub(crate) fn entrant(&self) -> Entrant<'_> {
        Entrant { window: self, is_in: false }
    }

    /// Whether a request that ends `at_ns` after the start counts.
    pub(crate) fn counts(&self, at_ns: u64) -> bool {
        if self.is_counted {
            self.to_ns_max(at_ns);
            return true;
        }
        if at_ns < self.ramp_end_ns {
            return false;
        }
        let from = self.from_ns.load(Ordering::Acquire);
        if from == NEVER {
            // Whoever is first opens it; both ends are then measured by the same clock.
            let opened = (Ordering::AcqRel, Ordering::Acquire);
            let found = self.from_ns.compare_exchange(NEVER, at_ns, opened.0, opened.1);
            return found.is_err_and(|from| at_ns > from) && self.is_before_end(at_ns);
        }
        at_ns > from && self.is_before_end(at_ns)
    }

    /// Counts a request after the opening, unless the window was closed before.
    fn is_before_end(&self, at_ns: u64) -> bool {
        if at_ns < self.until_ns {
            self.add();
            return true;
        }
        let _closing = self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        let to = self.to_ns.load(Ordering::Acquire);
        if to != NEVER {
            return at_ns <= to;
        }
        self.add();
        if self.has_enough.load(Ordering::Relaxed) {
            self.to_ns.store(at_ns, Ordering::Release);
        }
        true
    }

    fn add(&self) {
        if !self.has_enough.load(Ordering::Relaxed)
            && self.counted.fetch_add(1, Ordering::Relaxed) + 1 >= self.enough
        {
            self.has_enough.store(true, Ordering::Relaxed);
        }
    }

    fn to_ns_max(&self, at_ns: u64) {
        let is_later = |to: u64| (to == NEVER || to < at_ns).then_some(at_ns);
        // An error says that another job has ended later.
        let _ = self.to_ns.fetch_update(Ordering::AcqRel, Ordering::Acquire, is_later);
    }

    /// Whether no request that ends from now on counts.
    pub(crate) fn is_closed(&self) -> bool {
        !self.is_counted && self.to_ns.load(Ordering::Acquire) != NEVER
    }

    /// When the window opened, in nanoseconds since the start; 0 before that.
    pub(crate) fn opened_ns(&self) -> u64 {
        let from = self.from_ns.load(Ordering::Acquire);
        if from == NEVER { 0 } else { from }
    }

    /// Its length in seconds; 0 if nothing was counted.
    pub(crate) fn seconds(&self) -> f64 {
        let to = self.to_ns.load(Ordering::Acquire);
        let ns = if to == NEVER { 0 } else { to.saturating_sub(self.opened_ns()) };
        Duration::from_nanos(ns).as_secs_f64()
    }
}

/// A job that others wait for.
#[derive(Debug)]
pub(crate) struct Entrant<'a> {
    window: &'a Window,
    is_in: bool,
}

impl Entrant<'_> {
    /// Waits for the other jobs. Returns the common start, or none if `stop` was set.
    pub(crate) fn begin(mut self, stop: &AtomicBool) -> Option<Instant> {
        self.enter();
        let window = self.window;
        let mut gate = window.gate.lock().unwrap_or_else(PoisonError::into_inner);
        while gate.1.is_none() && !stop.load(Ordering::Relaxed) {
            let waited = window.opened.wait_timeout(gate, LOOK_EVERY);
            gate = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        gate.1
    }

    fn enter(&mut self) {
        if std::mem::replace(&mut self.is_in, true) {
            return;
        }
        let mut gate = self.window.gate.lock().unwrap_or_else(PoisonError::into_inner);
        gate.0 = gate.0.saturating_sub(1);
        if gate.0 == 0 {
            gate.1.get_or_insert_with(Instant::now);
            self.window.opened.notify_all();
        }
    }
}

impl Drop for Entrant<'_> {
    fn drop(&mut self) {
        self.enter();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn window(jobs: u32, enough: u64) -> Window {
        let (ramp, measured) = (Duration::from_millis(10), Duration::from_millis(100));
        Window::new(Times { ramp, measured }, jobs, enough, false)
    }

    #[test]
    fn jobs_out_of_step_are_counted_in_one_window_and_their_rate_is_that_of_the_device() {
        // The device ends a request of one of the two jobs every 10 ms.
        let window = window(2, 4);
        let ends = (1..40).map(|step| step * 10 * MS);
        let mut counted = 0;
        for at in ends {
            if window.is_closed() {
                assert!(!window.counts(at), "{at} ns is after the end");
            }
            counted += u64::from(!window.is_closed() && window.counts(at));
        }
        assert_eq!((window.opened_ns(), counted), (10 * MS, 10));
        assert!((window.seconds() - 0.1).abs() < 1e-9, "{}", window.seconds());
    }

    #[test]
    fn the_window_waits_for_enough_requests_and_keeps_what_ended_before_it_closed() {
        let window = window(2, 3);
        assert!(!window.counts(5 * MS), "in the ramp");
        assert!(!window.counts(300 * MS), "it opens the window");
        assert!(!window.counts(290 * MS), "another job looked at its clock before");
        assert!(window.counts(310 * MS) && window.counts(500 * MS) && !window.is_closed());
        assert!(window.counts(700 * MS) && window.is_closed(), "the third closes it");
        assert!(window.counts(650 * MS), "it ended before, and was told later");
        assert!(window.counts(700 * MS) && !window.counts(701 * MS));
        assert!((window.seconds() - 0.4).abs() < 1e-9, "{}", window.seconds());
    }

    #[test]
    fn a_fixed_number_of_requests_counts_from_the_start_to_the_last_end() {
        let times = Times { ramp: Duration::from_secs(9), measured: Duration::from_secs(9) };
        let window = Window::new(times, 2, 0, true);
        for at in [1, 900, 20] {
            assert!(window.counts(at * MS));
        }
        assert!(!window.is_closed());
        assert!((window.seconds() - 0.9).abs() < 1e-9, "{}", window.seconds());
    }

    #[test]
    fn the_clock_starts_when_the_last_job_is_ready_and_a_failed_one_is_not_waited_for() {
        let window = window(3, 1);
        let go = AtomicBool::new(false);
        let (early, late) = std::thread::scope(|scope| {
            let early = scope.spawn(|| (Instant::now(), window.entrant().begin(&go)));
            let failed = window.entrant();
            let last = window.entrant();
            drop(failed);
            assert!(window.gate.lock().expect("a gate").1.is_none(), "one is not ready");
            let before = Instant::now();
            let late = (before, last.begin(&go));
            (early.join().expect("a job"), late)
        });
        assert_eq!(early.1, late.1);
        assert!(late.1.expect("a start") >= late.0);
        let window =
            Window::new(Times { ramp: Duration::ZERO, measured: Duration::ZERO }, 2, 1, false);
        assert_eq!(window.entrant().begin(&AtomicBool::new(true)), None);
    }
}
