//! Decides whether a queue whose only request is at the backend spins for the answer, or sleeps.
//!
//! To sleep and to be woken takes 5 to 100 microseconds, which a spinning thread saves; it takes its
//! core from others instead, in a virtual machine also from the host's own threads. Which of them is
//! faster no estimate tells: so the two are tried in turns, and judged by what the client gets, the
//! time from one of its requests to the next. It contains all that spinning takes from others.
//!
//! Disks and machines change their speed from one second to the next by more than the two ways differ.
//! So only neighbours in time are compared, and a queue sleeps unless spinning wins again and again.

use std::io;
use std::sync::{MutexGuard, PoisonError};

use super::Queue;
use crate::tuning::{
    POLL_AGAIN_EPOCHS, POLL_EPOCH_REQUESTS, POLL_GAIN_PERCENT, POLL_PAUSE_ASLEEP_EPOCHS_MAX,
    POLL_PAUSE_EPOCHS_MIN, POLL_PAUSE_SPINNING_EPOCHS_MAX, POLL_SPIN_NS_MAX, POLL_TRIAL_PAIRS,
    POLL_WON_PAIRS_MIN, POLL_WON_TRIALS_MIN,
};
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

/// Epochs of a trial.
const TRIAL_EPOCHS: u32 = 4 * POLL_TRIAL_PAIRS;

/// The way the queues of a volume wait, from what was measured with all of them.
#[derive(Debug)]
pub(crate) struct Polling {
    poll: Poll,
    state: Polled,
    /// When the last lone request came.
    last_ns: Option<u64>,
    /// Times of this epoch, from request to request.
    times: [u64; POLL_EPOCH_REQUESTS],
    count: usize,
    /// Epochs left of the trial, if there is one; a pair is complete when their number is a multiple of four.
    trial: u32,
    /// Median of the first way of the pair.
    first_ns: u64,
    /// Pairs of this trial, and trials in a row, that spinning has won.
    wins: u32,
    won: u32,
    /// Epochs until the next trial, and between the next two.
    left: u32,
    pause: u32,
}

impl Polling {
    pub(crate) fn new(poll: Poll) -> Self {
        Self {
            poll,
            state: Polled { spins: matches!(poll, Poll::Spin(_)), ..Polled::default() },
            last_ns: None,
            times: [0; POLL_EPOCH_REQUESTS],
            count: 0,
            trial: 0,
            first_ns: 0,
            wins: 0,
            won: 0,
            left: POLL_PAUSE_EPOCHS_MIN,
            pause: POLL_PAUSE_EPOCHS_MIN,
        }
    }

    /// How long to spin now, in nanoseconds; 0: not at all.
    fn budget_ns(&self, has_spare_core: bool) -> u64 {
        match self.poll {
            Poll::Spin(ns) => ns,
            Poll::Auto if self.state.spins && has_spare_core => POLL_SPIN_NS_MAX,
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
        if self.count == POLL_EPOCH_REQUESTS {
            self.count = 0;
            self.end_epoch();
        }
    }

    /// The client's requests are no longer alone: times that span this say nothing.
    fn interrupted(&mut self) {
        self.last_ns = None;
    }

    fn end_epoch(&mut self) {
        let is_trial = self.trial > 0;
        self.trial = self.trial.saturating_sub(1);
        if self.trial % 2 == 1 {
            return;
        }
        self.times.sort_unstable();
        let median = self.times[POLL_EPOCH_REQUESTS / 2];
        let of = &mut self.state;
        *(if of.spins { &mut of.spinning_ns } else { &mut of.asleep_ns }) = Some(median);
        match (is_trial, self.trial % 4) {
            (false, _) => {
                self.left -= 1;
                if self.left > 0 {
                    return;
                }
                (self.trial, self.wins) = (TRIAL_EPOCHS, 0);
            }
            (true, 2) => self.first_ns = median,
            (true, _) => {
                let (asleep_ns, spinning_ns) =
                    if of.spins { (self.first_ns, median) } else { (median, self.first_ns) };
                let saves = spinning_ns < asleep_ns - asleep_ns / 100 * POLL_GAIN_PERCENT;
                self.wins += u32::from(saves);
            }
        }
        self.state.spins = !self.state.spins;
        if self.trial == 0 {
            self.end_trial();
        }
    }

    fn end_trial(&mut self) {
        let was_chosen = self.won >= POLL_WON_TRIALS_MIN;
        self.won = if self.wins >= POLL_WON_PAIRS_MIN {
            (self.won + 1).min(POLL_WON_TRIALS_MIN)
        } else {
            0
        };
        let is_chosen = self.won >= POLL_WON_TRIALS_MIN;
        self.state.spins = is_chosen;
        if is_chosen != was_chosen {
            self.pause = POLL_PAUSE_EPOCHS_MIN;
        }
        self.left = if self.won > 0 && !is_chosen { POLL_AGAIN_EPOCHS } else { self.pause };
        let pause_max =
            if is_chosen { POLL_PAUSE_SPINNING_EPOCHS_MAX } else { POLL_PAUSE_ASLEEP_EPOCHS_MAX };
        self.pause = (2 * self.pause).min(pause_max);
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
        if self.backend.synchronous || self.volume.poll != Poll::Auto {
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
    #[inline]
    pub(super) fn spin(&mut self) -> io::Result<bool> {
        if self.volume.poll == Poll::Off || self.backend.synchronous {
            return Ok(false);
        }
        self.spin_if_alone()
    }

    fn spin_if_alone(&mut self) -> io::Result<bool> {
        if self.in_flight() == 0 || self.alone().is_none() || !self.awaits_backend_only() {
            return Ok(false);
        }
        let budget_ns = self.volume.polling().budget_ns(self.volume.has_spare_core());
        if budget_ns == 0 {
            return Ok(false);
        }
        let until_ns = self.time.exact_ns().saturating_add(budget_ns);
        let caught = loop {
            if self.take_completions(false)? {
                break true;
            }
            self.poll_own_ring()?;
            if self.has_foreign() {
                return Ok(true);
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
            println!("seed {seed}: {spun} of 20000 spun for where that is faster");
            assert!(spun > 15_000, "seed {seed}: {spun} of 20000");
            let mut client = Client::new(seed);
            let spun = client.run(20_000, 75_000, 100_000);
            println!("seed {seed}: {spun} of 20000 spun for where that is slower");
            assert!(spun < 2_000, "seed {seed}: {spun} of 20000");
        }
    }

    #[test]
    fn where_neither_is_faster_the_queue_sleeps() {
        for seed in 0..100 {
            let spun = Client::new(seed).run(20_000, 80_000, 80_000);
            assert!(spun < 2_000, "seed {seed}: {spun} of 20000");
        }
    }

    #[test]
    fn a_disk_that_changes_its_speed_does_not_make_spinning_look_good() {
        for seed in 0..100 {
            let mut client = Client::new(seed);
            let mut spun = 0;
            for _ in 0..200 {
                let ns = 50_000 + client.random.below(300_000);
                let requests = client.random.below(1_000) as u32;
                spun += client.run(requests, ns, ns * 5 / 4);
            }
            println!("seed {seed}: {spun} of some 100000 spun for in vain");
            assert!(spun < 6_000, "seed {seed}: {spun} of some 100000");
        }
    }

    #[test]
    fn what_has_changed_is_noticed() {
        for seed in 0..100 {
            let mut client = Client::new(seed);
            client.run(20_000, 100_000, 75_000);
            // The longest pause between two trials, and one trial.
            client.run(
                (POLL_PAUSE_SPINNING_EPOCHS_MAX + TRIAL_EPOCHS) * POLL_EPOCH_REQUESTS as u32,
                75_000,
                100_000,
            );
            let spun = client.run(1_000, 75_000, 100_000);
            assert!(spun < 600, "seed {seed}: {spun} of 1000");
            // And back.
            let most = POLL_PAUSE_ASLEEP_EPOCHS_MAX + POLL_AGAIN_EPOCHS + 2 * TRIAL_EPOCHS;
            client.run(most * POLL_EPOCH_REQUESTS as u32, 100_000, 75_000);
            let spun = client.run(10_000, 100_000, 75_000);
            assert!(spun > 7_500, "seed {seed}: {spun} of 10000");
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
        assert_eq!((polling.budget_ns(true), polling.budget_ns(false)), (POLL_SPIN_NS_MAX, 0));
        assert_eq!(Polling::new(Poll::Spin(7)).budget_ns(false), 7);
        assert_eq!(Polling::new(Poll::Off).budget_ns(true), 0);
    }
}
