//! Tells which of two ways to do something is faster, where no estimate can: both are used in turns, and
//! judged by what the client gets, the time from one lone request to the next.
//!
//! - **Only neighbours in time are compared**, because disks and machines change their speed from one second
//!   to the next by more than two ways differ. Two windows of time, one for each way, are a pair; every other
//!   pair begins with the other way, so that a drift favours neither.
//! - **Right after a change nothing is measured**: threads and cores are not yet where they will be, and a
//!   host's own estimate of how long a core will be idle is that of the way before.
//! - The usual way stays unless the other one wins most pairs of several trials in a row.
//!
//! Time is that of the clock, so that a fast disk has no shorter windows than a slow one.

use crate::tuning::{
    PAIRS_AGAIN_NS, PAIRS_GAIN_PERCENT, PAIRS_GAP_NS, PAIRS_MEASURE_NS, PAIRS_OF_TRIAL,
    PAIRS_PAUSE_NS_MIN, PAIRS_PAUSE_OTHER_NS_MAX, PAIRS_PAUSE_USUAL_NS_MAX, PAIRS_SETTLE_NS,
    PAIRS_TRIALS_WON_MIN, PAIRS_WON_MIN,
};

/// Fewest times of a window, and most that its median is of: the last ones.
const TIMES_MIN: usize = 64;
const TIMES_MAX: usize = 256;

/// Most interruptions of a trial, and windows in a row that may be broken off while the other way is in use.
const INTERRUPTIONS_MAX: u32 = 4;

/// Which of the two ways is in use, and what was measured of both.
#[derive(Debug)]
pub(super) struct Pairs {
    /// The other way is in use.
    other: bool,
    /// It is the better one, as far as is known.
    chosen: bool,
    /// Median time between two requests by the usual way and by the other, in nanoseconds.
    medians_ns: [Option<u64>; 2],
    window: Window,
    trial: Option<Trial>,
    /// Trials in a row that the other way has won.
    won: u32,
    /// When the next trial begins, once there was a request, and how long the next pause is.
    next_ns: Option<u64>,
    pause_ns: u64,
    /// When the last time ended.
    last_ns: u64,
    /// Windows in a row that were broken off.
    broken: u32,
}

/// A trial under way.
#[derive(Debug, Default)]
struct Trial {
    /// Median of the pair's first window, if that has ended.
    first_ns: Option<u64>,
    /// Pairs that have ended, that the other way has won, and interruptions.
    pairs: u32,
    wins: u32,
    interruptions: u32,
}

impl Default for Pairs {
    fn default() -> Self {
        Self {
            other: false,
            chosen: false,
            medians_ns: [None; 2],
            window: Window::new(0),
            trial: None,
            won: 0,
            next_ns: None,
            pause_ns: PAIRS_PAUSE_NS_MIN,
            last_ns: 0,
            broken: 0,
        }
    }
}

impl Pairs {
    /// Whether to use the other way now.
    pub(super) fn other(&self) -> bool {
        self.other
    }

    /// Median time between two requests in nanoseconds: by the usual way, and by the other.
    pub(super) fn medians_ns(&self) -> [Option<u64>; 2] {
        self.medians_ns
    }

    /// A lone request came at `now_ns`, `took_ns` after the one before it.
    pub(super) fn time(&mut self, now_ns: u64, took_ns: u64) {
        let begun_ns = now_ns.saturating_sub(took_ns);
        let last_ns = std::mem::replace(&mut self.last_ns, now_ns);
        let next_ns = *self.next_ns.get_or_insert(now_ns + self.pause_ns);
        if begun_ns.saturating_sub(last_ns).max(took_ns) > PAIRS_GAP_NS {
            return self.interrupt();
        }
        let Some(median_ns) = self.window.add(now_ns, took_ns) else { return };
        (self.window, self.broken) = (Window::new(0), 0);
        self.medians_ns[usize::from(self.other)] = Some(median_ns);
        match &mut self.trial {
            None if now_ns < next_ns => {}
            None => {
                // Its last window is a neighbour, too.
                self.trial = Some(Trial { first_ns: Some(median_ns), ..Trial::default() });
                self.switch();
            }
            Some(trial) => match trial.first_ns.take() {
                None => {
                    trial.first_ns = Some(median_ns);
                    self.switch();
                }
                Some(first_ns) => {
                    let of = if self.other { [first_ns, median_ns] } else { [median_ns, first_ns] };
                    let [usual_ns, other_ns] = of;
                    let saves = other_ns < usual_ns - usual_ns / 100 * PAIRS_GAIN_PERCENT;
                    trial.wins += u32::from(saves);
                    trial.pairs += 1;
                    if trial.pairs == PAIRS_OF_TRIAL {
                        let won = trial.wins >= PAIRS_WON_MIN;
                        self.end_trial(now_ns, won);
                    }
                }
            },
        }
    }

    /// The next request cannot be compared with the last one: the client has paused, or the other way could not be
    /// used. A client without a steady stretch that is long enough decides nothing and keeps the usual way.
    pub(super) fn interrupt(&mut self) {
        self.window = Window::new(PAIRS_SETTLE_NS);
        self.broken = self.broken.saturating_add(1);
        let now_ns = self.last_ns;
        match &mut self.trial {
            None if self.chosen && self.broken > INTERRUPTIONS_MAX => self.end_trial(now_ns, false),
            None => {}
            Some(trial) if trial.interruptions == INTERRUPTIONS_MAX => {
                self.end_trial(now_ns, false);
            }
            Some(trial) => {
                (trial.first_ns, trial.interruptions) = (None, trial.interruptions + 1);
                if self.other != self.chosen {
                    self.switch();
                }
            }
        }
    }

    fn switch(&mut self) {
        self.other = !self.other;
        self.window = Window::new(PAIRS_SETTLE_NS);
    }

    fn end_trial(&mut self, now_ns: u64, won: bool) {
        self.trial = None;
        let was_chosen = self.chosen;
        self.won = if won { (self.won + 1).min(PAIRS_TRIALS_WON_MIN) } else { 0 };
        self.chosen = self.won >= PAIRS_TRIALS_WON_MIN;
        if self.other != self.chosen {
            self.switch();
        }
        if self.chosen != was_chosen {
            self.pause_ns = PAIRS_PAUSE_NS_MIN;
        }
        let is_undecided = self.won > 0 && !self.chosen;
        self.next_ns = Some(now_ns + if is_undecided { PAIRS_AGAIN_NS } else { self.pause_ns });
        let pause_max =
            if self.chosen { PAIRS_PAUSE_OTHER_NS_MAX } else { PAIRS_PAUSE_USUAL_NS_MAX };
        self.pause_ns = (2 * self.pause_ns).min(pause_max);
    }
}

/// A time in which one way is measured.
#[derive(Debug)]
struct Window {
    /// Nanoseconds until times count.
    settle_ns: u64,
    begun_ns: Option<u64>,
    times: [u64; TIMES_MAX],
    count: usize,
}

impl Window {
    fn new(settle_ns: u64) -> Self {
        Self { settle_ns, begun_ns: None, times: [0; TIMES_MAX], count: 0 }
    }

    /// Returns the median when the window is over.
    fn add(&mut self, now_ns: u64, took_ns: u64) -> Option<u64> {
        let begun_ns = *self.begun_ns.get_or_insert(now_ns.saturating_sub(took_ns));
        let measured_ns = now_ns.saturating_sub(begun_ns).checked_sub(self.settle_ns)?;
        self.times[self.count % TIMES_MAX] = took_ns;
        self.count += 1;
        if measured_ns < PAIRS_MEASURE_NS || self.count < TIMES_MIN {
            return None;
        }
        let times = &mut self.times[..self.count.min(TIMES_MAX)];
        times.sort_unstable();
        Some(times[times.len() / 2])
    }
}

#[cfg(test)]
mod tests {
    use ucrypt_testkit::Random;

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// A client that sends a request when it has the answer to the last one: times in nanoseconds
    /// from request to request, with noise.
    struct Client {
        pairs: Pairs,
        now_ns: u64,
        random: Random,
        /// When the way last changed, and which it is.
        changed_ns: u64,
        other: bool,
    }

    impl Client {
        fn new(seed: u64) -> Self {
            let random = Random::new(seed);
            Self { pairs: Pairs::default(), now_ns: 0, random, changed_ns: 0, other: false }
        }

        /// Runs for some time. `time` gets which way is used, and for how long. Returns the time with the
        /// other way, without pauses, in per cent.
        fn run(&mut self, seconds: u64, mut time: impl FnMut(bool, u64) -> u64) -> f64 {
            let (begin_ns, mut by_other_ns) = (self.now_ns, 0);
            while self.now_ns < begin_ns + seconds * SECOND_NS {
                let other = self.pairs.other();
                if other != self.other {
                    (self.other, self.changed_ns) = (other, self.now_ns);
                }
                let ns = time(other, self.now_ns - self.changed_ns);
                let stall = if self.random.percent(2) { 3_000_000 } else { 0 };
                let took_ns = ns + self.random.below(ns / 3) + stall;
                self.now_ns += took_ns;
                // In a pause the client waits for nothing.
                by_other_ns += if other && took_ns <= PAIRS_GAP_NS { took_ns } else { 0 };
                self.pairs.time(self.now_ns, took_ns);
            }
            by_other_ns as f64 / (self.now_ns - begin_ns) as f64 * 100.0
        }
    }

    #[test]
    fn the_faster_way_is_found_and_the_other_is_seldom_tried() {
        for seed in 0..100 {
            let by_other =
                Client::new(seed).run(100, |other, _| if other { 75_000 } else { 100_000 });
            println!("seed {seed}: {by_other:.2} % by the other way where that is faster");
            assert!(by_other > 90.0, "seed {seed}: {by_other} %");
            let by_other =
                Client::new(seed).run(100, |other, _| if other { 100_000 } else { 75_000 });
            println!("seed {seed}: {by_other:.2} % by the other way where that is slower");
            assert!(by_other < 3.0, "seed {seed}: {by_other} %");
        }
    }

    #[test]
    fn where_neither_is_faster_the_usual_way_stays() {
        for seed in 0..100 {
            let by_other = Client::new(seed).run(100, |_, _| 80_000);
            assert!(by_other < 3.0, "seed {seed}: {by_other} %");
        }
    }

    /// As measured where a host shortens its own spinning while a guest spins: a core that had been busy is
    /// slow to wake for some milliseconds.
    #[test]
    fn what_a_change_costs_is_not_taken_for_what_the_way_costs() {
        for seed in 0..100 {
            let by_other = Client::new(seed).run(100, |other, for_ns| match other {
                true => 80_000,
                false if for_ns < 20_000_000 => 150_000,
                false => 75_000,
            });
            println!(
                "seed {seed}: {by_other:.2} % by the other way that looks faster after a change"
            );
            assert!(by_other < 3.0, "seed {seed}: {by_other} %");
        }
    }

    #[test]
    fn a_disk_that_changes_its_speed_does_not_make_the_other_way_look_good() {
        for seed in 0..100 {
            let mut client = Client::new(seed);
            let mut by_other = 0.0;
            for _ in 0..100 {
                let ns = 50_000 + client.random.below(300_000);
                by_other += client.run(1, |other, _| if other { ns * 5 / 4 } else { ns }) / 100.0;
            }
            println!("seed {seed}: {by_other:.2} % by the other way in vain");
            assert!(by_other < 6.0, "seed {seed}: {by_other} %");
        }
    }

    #[test]
    fn what_has_changed_is_noticed() {
        let pause_s = |ns: u64| ns.div_ceil(SECOND_NS);
        for seed in 0..100 {
            let mut client = Client::new(seed);
            client.run(100, |other, _| if other { 75_000 } else { 100_000 });
            let usual = |other: bool, _: u64| if other { 100_000 } else { 75_000 };
            // The longest pause between two trials, and a trial.
            client.run(pause_s(PAIRS_PAUSE_OTHER_NS_MAX) + 2, usual);
            let by_other = client.run(10, usual);
            assert!(by_other < 30.0, "seed {seed}: {by_other} %");
            // And back.
            let other = |other: bool, _: u64| if other { 75_000 } else { 100_000 };
            client.run(pause_s(PAIRS_PAUSE_USUAL_NS_MAX) + 4, other);
            let by_other = client.run(10, other);
            assert!(by_other > 75.0, "seed {seed}: {by_other} %");
        }
    }

    #[test]
    fn who_comes_seldom_judges_nothing() {
        let mut client = Client::new(1);
        let by_other = client.run(1000, |_, _| 2 * PAIRS_GAP_NS);
        assert!(by_other == 0.0 && client.pairs.medians_ns() == [None; 2], "{by_other} %");
    }

    /// Regression: a trial that a client's pauses broke off stayed in the other way for ever.
    #[test]
    fn a_client_that_is_never_steady_for_long_has_the_usual_way() {
        for (seed, requests) in (0..20).flat_map(|seed| [20, 100, 300, 1000].map(|n| (seed, n))) {
            // First steady, so that a trial begins; and where the other way was chosen.
            for seconds in [1, 100] {
                let mut client = Client::new(seed);
                client.run(seconds, |other, _| if other { 75_000 } else { 100_000 });
                let mut count = 0;
                let mut bursts = |_: bool, _: u64| {
                    count += 1;
                    if count % requests == 0 { SECOND_NS } else { 100_000 }
                };
                client.run(20, &mut bursts);
                let by_other = client.run(1000, &mut bursts);
                assert!(by_other < 3.0, "seed {seed}, {requests} at a time: {by_other} %");
            }
            let mut client = Client::new(seed);
            client.run(1, |_, _| 100_000);
            let by_other = client.run(1000, |_, _| PAIRS_GAP_NS * 11 / 10);
            assert!(by_other < 3.0, "seed {seed}, one each 33 ms: {by_other} %");
        }
    }
}
