//! Decides whether a queue whose only request is at the backend spins for the answer, or sleeps.
//!
//! To sleep and to be woken takes 5 to 100 microseconds, which a spinning thread saves; it takes its
//! core from others instead, in a virtual machine also from the host's own threads. Which of them is
//! faster no estimate tells: so the two are tried in turns, and judged by what the client gets, the
//! time from one of its requests to the next. It contains all that spinning takes from others.

use std::io;
use std::sync::{MutexGuard, PoisonError};

use super::Queue;
use crate::volume::Volume;

/// How a queue waits for an answer of the backend while a request is alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Poll {
    /// It sleeps at once.
    #[default]
    Off,
    /// It spins if that is measured to be faster, and no other thread wants the core.
    Auto,
    /// It spins for at most this many nanoseconds, then sleeps.
    Spin(u64),
}

/// What a volume has learned of spinning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Polled {
    /// Whether its queues spin at present.
    pub spins: bool,
    /// Median time from a lone request to the next in nanoseconds, where they slept.
    pub asleep_ns: Option<u64>,
    /// The same where they spun.
    pub spinning_ns: Option<u64>,
    /// How often an answer came while a queue spun.
    pub caught: u64,
    /// How often a queue spun in vain.
    pub missed: u64,
}

/// Longest spin of [`Poll::Auto`]: longer than a read of a fast disk, shorter than any of a slow one.
const SPIN_NS: u64 = 200_000;

/// Requests of an epoch, which has one way to wait; the median judges it.
const EPOCH: usize = 32;

/// Epochs of a trial, which sleep and spin in turns.
const TRIAL: u32 = 4;

/// Epochs between two trials: at first, and at most. They double with each trial that confirms.
const PAUSE_MIN: u32 = 16;
const PAUSE_MAX: u32 = 1024;

/// Spinning has to save this share of the time, in per cent.
const GAIN_PERCENT: u64 = 5;

/// The way the queues of a volume wait, from what was measured with all of them.
#[derive(Debug)]
pub(crate) struct Polling {
    poll: Poll,
    state: Polled,
    /// When the last lone request came.
    last_ns: Option<u64>,
    /// Times of this epoch, from request to request.
    times: [u64; EPOCH],
    count: usize,
    /// Epochs left of the trial.
    trial: u32,
    /// Medians of the trial's epochs so far: the shortest asleep, and spinning.
    best: [u64; 2],
    /// Epochs until the next trial, and between the next two.
    left: u32,
    pause: u32,
    /// Whether the last trial favoured spinning.
    favours: bool,
}

impl Polling {
    pub(crate) fn new(poll: Poll) -> Self {
        Self {
            poll,
            state: Polled { spins: matches!(poll, Poll::Spin(_)), ..Polled::default() },
            last_ns: None,
            times: [0; EPOCH],
            count: 0,
            trial: 0,
            best: [u64::MAX; 2],
            // The first epoch only shows that there are lone requests.
            left: 1,
            pause: PAUSE_MIN,
            favours: false,
        }
    }

    /// How long to spin now, in nanoseconds; 0: not at all.
    fn budget_ns(&self, has_spare_core: bool) -> u64 {
        match self.poll {
            Poll::Spin(ns) => ns,
            Poll::Auto if self.state.spins && has_spare_core => SPIN_NS,
            _ => 0,
        }
    }

    /// Counts a spin that has ended.
    fn spun(&mut self, caught: bool) {
        let count = if caught { &mut self.state.caught } else { &mut self.state.missed };
        *count += 1;
    }

    /// A request came that is alone in flight; the one before it was, too.
    fn lone_request(&mut self, now_ns: u64) {
        let Some(last_ns) = self.last_ns.replace(now_ns) else { return };
        self.times[self.count] = now_ns.saturating_sub(last_ns);
        self.count += 1;
        if self.count == EPOCH {
            self.count = 0;
            self.end_epoch();
        }
    }

    /// The client's requests are no longer alone: times that span this say nothing.
    fn interrupted(&mut self) {
        self.last_ns = None;
    }

    fn end_epoch(&mut self) {
        self.times.sort_unstable();
        let median = self.times[EPOCH / 2];
        let of =
            if self.state.spins { &mut self.state.spinning_ns } else { &mut self.state.asleep_ns };
        *of = Some(median);
        if self.trial == 0 {
            self.left -= 1;
            if self.left == 0 {
                (self.trial, self.best) = (TRIAL, [u64::MAX; 2]);
                self.state.spins = !self.favours;
            }
            return;
        }
        let best = &mut self.best[usize::from(self.state.spins)];
        *best = median.min(*best);
        self.trial -= 1;
        if self.trial > 0 {
            self.state.spins = !self.state.spins;
            return;
        }
        let [asleep, spinning] = self.best;
        let favours = spinning < asleep - asleep / 100 * GAIN_PERCENT;
        let confirms = favours == self.favours;
        self.pause = if confirms { (2 * self.pause).min(PAUSE_MAX) } else { PAUSE_MIN };
        (self.favours, self.left, self.state.spins) = (favours, self.pause, favours);
    }
}

impl Volume {
    /// How queues wait for the backend while requests come one at a time.
    pub fn poll(&self) -> Poll {
        self.poll
    }

    /// What is known of spinning for the backend's answers.
    pub fn polled(&self) -> Polled {
        self.polling().state
    }

    fn polling(&self) -> MutexGuard<'_, Polling> {
        self.polling.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// A request was accepted. `was_alone`: the ones before it came one at a time.
    pub(super) fn note_arrival(&self, was_alone: bool) {
        if self.synchronous || self.volume.poll != Poll::Auto {
            return;
        }
        if self.alone().is_some() {
            self.volume.polling().lone_request(self.time.exact_ns());
        } else if was_alone {
            self.volume.polling().interrupted();
        }
    }

    /// Spins for an answer of the backend, if that pays. The caller has just polled, and sleeps
    /// otherwise. Returns whether there is something to do.
    ///
    /// # Errors
    /// As [`Queue::poll`].
    pub(super) fn spin(&mut self) -> io::Result<bool> {
        let may_spin = self.volume.poll != Poll::Off && !self.synchronous && self.in_flight() > 0;
        if !may_spin || self.alone().is_none() || !self.awaits_backend_only() {
            return Ok(false);
        }
        let budget_ns = self.volume.polling().budget_ns(self.volume.spare_cores(false) > 0);
        if budget_ns == 0 {
            return Ok(false);
        }
        let until_ns = self.time.exact_ns().saturating_add(budget_ns);
        let caught = loop {
            if self.take_stored(false)? || self.ring().is_some_and(|ring| ring.has_next()) {
                break true;
            }
            if self.time.exact_ns() >= until_ns {
                break false;
            }
            std::hint::spin_loop();
        };
        self.volume.polling().spun(caught);
        Ok(caught)
    }
}

#[cfg(test)]
mod tests {
    use ucrypt_testkit::Random;

    use super::*;

    /// A client that sends a request when it has the answer to the last one: times in nanoseconds
    /// from request to request, with noise.
    struct Client {
        polling: Polling,
        now_ns: u64,
        random: Random,
    }

    impl Client {
        fn new(seed: u64) -> Self {
            let random = Random::new(seed);
            Self { polling: Polling::new(Poll::Auto), now_ns: 0, random }
        }

        /// Returns how many of the requests were spun for.
        fn run(&mut self, requests: u32, asleep_ns: u64, spinning_ns: u64) -> u32 {
            let mut spun = 0;
            for _ in 0..requests {
                let spins = self.polling.budget_ns(true) > 0;
                spun += u32::from(spins);
                let ns = if spins { spinning_ns } else { asleep_ns };
                let stall = if self.random.percent(2) { 3_000_000 } else { 0 };
                self.now_ns += ns + self.random.below(ns / 3) + stall;
                self.polling.lone_request(self.now_ns);
            }
            spun
        }
    }

    #[test]
    fn the_faster_way_is_found_and_the_other_is_seldom_tried() {
        for seed in 0..100 {
            let mut client = Client::new(seed);
            let spun = client.run(20_000, 100_000, 75_000);
            assert!(spun > 17_000, "seed {seed}: {spun} of 20000");
            let mut client = Client::new(seed);
            let spun = client.run(20_000, 75_000, 100_000);
            assert!(spun < 1_000, "seed {seed}: {spun} of 20000");
        }
    }

    #[test]
    fn where_neither_is_faster_the_queue_sleeps() {
        for seed in 0..100 {
            let spun = Client::new(seed).run(20_000, 80_000, 80_000);
            assert!(spun < 3_000, "seed {seed}: {spun} of 20000");
        }
    }

    #[test]
    fn what_has_changed_is_noticed() {
        for seed in 0..100 {
            let mut client = Client::new(seed);
            client.run(20_000, 100_000, 75_000);
            // Within the longest pause between two trials, and one trial.
            client.run((PAUSE_MAX + TRIAL + 1) * EPOCH as u32, 75_000, 100_000);
            let spun = client.run(1_000, 75_000, 100_000);
            assert!(spun < 300, "seed {seed}: {spun} of 1000");
        }
    }

    #[test]
    fn times_in_which_requests_came_together_do_not_count() {
        let mut polling = Polling::new(Poll::Auto);
        for at_ns in 1..=1000 {
            polling.lone_request(at_ns * 1_000_000_000);
            polling.interrupted();
        }
        assert_eq!(polling.state, Polled::default());
    }

    #[test]
    fn a_core_that_others_want_is_not_spun_on_unless_told_to() {
        let mut polling = Polling::new(Poll::Auto);
        polling.state.spins = true;
        assert_eq!((polling.budget_ns(true), polling.budget_ns(false)), (SPIN_NS, 0));
        assert_eq!(Polling::new(Poll::Spin(7)).budget_ns(false), 7);
        assert_eq!(Polling::new(Poll::Off).budget_ns(true), 0);
    }
}
