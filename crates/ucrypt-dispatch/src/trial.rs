//! Trials: what the estimates say is tried against the two plain ways, and what turned out faster is
//! done.
//!
//! An estimate can be wrong where what it is made of is not measured: what a worker's cache costs
//! somebody else, two cores that share a memory, a host that is slow to wake a processor. What counts
//! in the end is how many requests are done in a time, and that is known. So requests are dispatched in
//! epochs, each in one way; the time that its requests took is the epoch's result, and the way that takes
//! least is gone on with. The others are tried again after a pause that doubles each time that they
//! lose. Loads are told apart by direction, length and depth, each with results of its own.
//!
//! Where the estimates hand nothing on and no worker could be worth it, there is nothing to try.

use crate::request::Op;

/// How chunks are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// As the estimates say.
    Estimated,
    /// All on the thread that has the requests.
    Kept,
    /// All by workers.
    Given,
}

const WAYS: [Way; 3] = [Way::Estimated, Way::Kept, Way::Given];

/// Requests of an epoch, at least; nor fewer than are in flight.
const REQUESTS_MIN: u32 = 16;

/// Nanoseconds that an epoch takes, at least: longer than what disturbs a thread now and then.
const EPOCH_NS_MIN: u64 = 100_000;

/// An epoch of so many times as many requests ends however many are in flight.
const ENOUGH: u32 = 4;

/// A trial ends after so many epochs, after so many nanoseconds, or when it has shown that the way takes
/// so many times as long as the best one.
const TRIAL: u32 = 4;
const TRIAL_NS: u64 = 10_000_000;
const HOPELESS: f64 = 1.5;

/// Epochs until a way that has lost is tried again, for the first time and at most.
const PAUSE: u32 = 512;
const PAUSE_MAX: u32 = 8192;
/// How much longer the pause is for a way that takes twice as long, so that what is lost by trying
/// stays below a percent.
const DEAR: f64 = 8.0;

/// Another way has to be better by this factor: what is done is not changed for nothing.
const BETTER: f64 = 0.98;

/// Weight of a new result, where it is better and where it is worse; a worse one counts at most so
/// many times the present value. A stall says nothing about a way.
const WEIGHT_BETTER: f64 = 0.5;
const WEIGHT_WORSE: f64 = 0.125;
const WORSE_MAX: f64 = 1.25;

/// What one way has shown under one load.
#[derive(Debug, Clone, Copy, Default)]
struct Outcome {
    /// [`Epoch::each_ns`] on average; 0: never tried.
    each_ns: f64,
    /// Epochs of its last trial and since then, and nanoseconds.
    epochs: u32,
    spent_ns: u64,
    /// Epochs until it is tried again, and how many it was to pause when it last lost; 0 if it did not.
    pause: u32,
    paused: u32,
}

impl Outcome {
    fn add(&mut self, epoch: &Epoch) {
        self.epochs = self.epochs.saturating_add(1);
        self.spent_ns = self.spent_ns.saturating_add(epoch.spent_ns);
        let each_ns = epoch.each_ns();
        let was = self.each_ns;
        self.each_ns = match each_ns {
            first if was == 0.0 => first,
            better if better < was => was + (better - was) * WEIGHT_BETTER,
            worse => was + (worse.min(was * WORSE_MAX) - was) * WEIGHT_WORSE,
        };
    }

    /// Another way has `best_ns`.
    fn lose(&mut self, best_ns: f64) {
        self.paused = (2 * self.paused).clamp(PAUSE, PAUSE_MAX);
        let behind = (self.each_ns / best_ns - 1.0).max(0.0);
        #[expect(clippy::cast_sign_loss, reason = "no factor is negative")]
        let pause = (f64::from(self.paused) * (1.0 + DEAR * behind)) as u32;
        self.pause = pause;
    }
}

/// What is known of one load.
#[derive(Debug, Clone, Copy)]
struct Record {
    outcomes: [Outcome; WAYS.len()],
    best: Way,
}

impl Record {
    const NEW: Self = Self {
        outcomes: [Outcome { each_ns: 0.0, epochs: 0, spent_ns: 0, pause: 0, paused: 0 };
            WAYS.len()],
        best: Way::Estimated,
    };

    /// The way of the next epoch, after one in the way `now`.
    fn next(&mut self, now: Way) -> Way {
        let each_ns = |way: Way| match self.outcomes[way as usize].each_ns {
            0.0 => f64::INFINITY,
            ns if way == self.best => ns * BETTER,
            ns => ns,
        };
        let best = WAYS.into_iter().min_by(|&a, &b| each_ns(a).total_cmp(&each_ns(b)));
        self.best = best.unwrap_or(now);
        let best_ns = self.outcomes[self.best as usize].each_ns;
        let Outcome { each_ns, epochs, spent_ns, .. } = self.outcomes[now as usize];
        if epochs < TRIAL && spent_ns < TRIAL_NS && each_ns < best_ns * HOPELESS {
            return now;
        }
        for (way, outcome) in WAYS.into_iter().zip(&mut self.outcomes) {
            outcome.pause = outcome.pause.saturating_sub(1);
            if way == self.best {
                (outcome.pause, outcome.paused) = (0, 0);
            } else if outcome.each_ns > 0.0 && (way == now || outcome.paused == 0) {
                outcome.lose(best_ns);
            }
        }
        let due = |way: &Way| *way != self.best && self.outcomes[*way as usize].pause == 0;
        let Some(due) = WAYS.into_iter().find(due) else { return self.best };
        let tried = &mut self.outcomes[due as usize];
        (tried.epochs, tried.spent_ns) = (0, 0);
        due
    }
}

/// Mean lengths in bytes and depths from which on a load is another one.
const LENGTHS: [f64; 4] = [6e3, 24e3, 96e3, 384e3];
const DEPTHS: [u32; 3] = [2, 6, 24];

/// What is asked for in an epoch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// How many there were.
    reads: u32,
    writes: u32,
    /// Mean length.
    pub(crate) bytes: f64,
    /// Most requests in flight at a time.
    pub(crate) depth: u32,
}

impl Load {
    /// Whether most are writes.
    pub(crate) fn is_write(&self) -> bool {
        self.writes > self.reads
    }

    /// Below [`LOADS`].
    fn class(&self) -> usize {
        let direction = match (self.reads, self.writes) {
            (_, 0) => 0,
            (0, _) => 1,
            _ => 2,
        };
        let length = LENGTHS.partition_point(|&from| from <= self.bytes);
        let depth = DEPTHS.partition_point(|&from| from <= self.depth);
        (direction * (LENGTHS.len() + 1) + length) * (DEPTHS.len() + 1) + depth
    }
}

/// Loads that are told apart: reads, writes and both; lengths; depths.
const LOADS: usize = 3 * (LENGTHS.len() + 1) * (DEPTHS.len() + 1);

/// What has ended in an epoch.
#[derive(Debug, Clone, Copy, Default)]
struct Epoch {
    reads: u32,
    writes: u32,
    bytes: u64,
    /// Nanoseconds in which any request was in flight; and after that at most as many in which none
    /// was: what clients do between two requests depends on where the data is.
    spent_ns: u64,
    /// Most requests in flight at a time. (Not the mean, which depends on the way.)
    depth: u32,
    /// Chunks that went to workers.
    handed: u32,
    /// Something ended whose time says nothing about the cipher's place.
    odd: bool,
}

impl Epoch {
    fn requests(&self) -> u32 {
        self.reads + self.writes
    }

    fn load(&self) -> Load {
        Load {
            reads: self.reads,
            writes: self.writes,
            bytes: self.bytes as f64 / f64::from(self.requests().max(1)),
            depth: self.depth,
        }
    }

    /// What a request has taken of the time in which there were any. (Not the mean latency: that passes
    /// also outside, before a request is seen.)
    fn each_ns(&self) -> f64 {
        self.spent_ns as f64 / f64::from(self.requests())
    }
}

/// See the module's comment.
#[derive(Debug)]
pub(crate) struct Trials {
    /// Apart from what is touched for each request.
    records: Box<[Record; LOADS]>,
    way: Way,
    /// How often the way has changed.
    changes: u32,
    /// Requests that were begun in another way: an epoch begins when they have ended.
    left_over: u32,
    /// The present epoch is not counted: the way has changed in it.
    settles: bool,
    epoch: Epoch,
    /// There is something to compare, and so a clock is needed.
    compares: bool,
    now_ns: u64,
    in_flight: usize,
    /// For how long requests have been in flight since there was none, less the idle time that counted.
    burst_ns: u64,
}

impl Trials {
    pub(crate) fn new() -> Self {
        Self {
            records: Box::new([Record::NEW; LOADS]),
            way: Way::Estimated,
            changes: 0,
            left_over: 0,
            settles: false,
            epoch: Epoch::default(),
            compares: false,
            now_ns: 0,
            in_flight: 0,
            burst_ns: 0,
        }
    }

    /// How chunks are placed now.
    pub(crate) fn way(&self) -> Way {
        self.way
    }

    /// What a request that begins now is to remember for [`Trials::end`].
    pub(crate) fn changes(&self) -> u32 {
        self.changes
    }

    /// Whether the times that [`Trials::pass`] is told have to be exact.
    pub(crate) fn compares(&self) -> bool {
        self.compares
    }

    /// It is `now_ns`, and from now on so many are in flight, until some end.
    #[inline]
    pub(crate) fn pass(&mut self, now_ns: u64, in_flight: usize) {
        let passed_ns = now_ns.saturating_sub(self.now_ns);
        self.now_ns = now_ns;
        if self.in_flight > 0 {
            self.burst_ns += passed_ns;
            self.epoch.spent_ns += passed_ns;
        } else {
            let counts_ns = passed_ns.min(self.burst_ns);
            self.burst_ns -= counts_ns;
            self.epoch.spent_ns += counts_ns;
            if in_flight > 0 {
                self.burst_ns = 0;
            }
        }
        self.in_flight = in_flight;
    }

    /// Requests were accepted before the last [`Trials::pass`]. `gains`: whether requests of such a load
    /// could gain by workers, be the estimates as wrong as they may.
    ///
    /// Requests may come and end in bursts: an epoch begins and ends with as many in flight.
    #[inline]
    pub(crate) fn turn(&mut self, gains: impl FnOnce(&Load) -> bool) {
        let in_flight = self.in_flight as u32;
        let Epoch { depth, .. } = self.epoch;
        let requests = self.epoch.requests();
        self.epoch.depth = depth.max(in_flight);
        let enough = if self.settles { 0 } else { REQUESTS_MIN.max(depth) };
        let full = in_flight >= depth || requests >= ENOUGH * REQUESTS_MIN.max(depth);
        let short = !self.settles && self.epoch.spent_ns < EPOCH_NS_MIN;
        if self.left_over > 0 || short || requests < enough || !full {
            return;
        }
        let epoch = std::mem::take(&mut self.epoch);
        self.epoch.depth = in_flight;
        if std::mem::take(&mut self.settles) {
            return;
        }
        let load = epoch.load();
        let gains = gains(&load);
        let counts = self.compares && !epoch.odd && epoch.spent_ns > 0;
        self.compares = gains || epoch.handed > 0;
        if counts {
            let way = self.judge(&epoch, &load, gains);
            if way != self.way {
                self.way = way;
                self.changes = self.changes.wrapping_add(1);
                (self.left_over, self.settles) = (in_flight, true);
            }
        }
    }

    /// A chunk goes to a worker.
    pub(crate) fn hand(&mut self) {
        self.epoch.handed += 1;
    }

    /// There is no choice now, or again one; so many requests are in flight.
    pub(crate) fn rest(&mut self, now_ns: u64, in_flight: usize) {
        (self.epoch, self.now_ns, self.in_flight) = (Epoch::default(), now_ns, in_flight);
        (self.way, self.left_over, self.settles) = (Way::Estimated, 0, false);
        self.compares = false;
    }

    /// A request has ended that was begun after so many `changes`.
    #[inline]
    pub(crate) fn end(&mut self, op: Op, bytes: u64, changes: u32) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if self.left_over > 0 {
            self.left_over -= u32::from(changes != self.changes);
            return;
        }
        match op {
            Op::Read => self.epoch.reads += 1,
            Op::Write { .. } => self.epoch.writes += 1,
            _ => self.epoch.odd = true,
        }
        self.epoch.bytes += bytes;
    }

    /// Takes an epoch in; returns the way of the next one.
    fn judge(&mut self, epoch: &Epoch, load: &Load, gains: bool) -> Way {
        let record = &mut self.records[load.class()];
        let outcomes = &mut record.outcomes;
        outcomes[self.way as usize].add(epoch);
        if self.way == Way::Estimated && epoch.handed == 0 {
            // That is the same, and nothing to try.
            let estimated = outcomes[Way::Estimated as usize];
            outcomes[Way::Kept as usize] = Outcome { pause: 2, paused: 0, ..estimated };
        }
        if !gains {
            // Not now. It keeps its pause: estimates may move around where a gain begins.
            let given = &mut outcomes[Way::Given as usize];
            *given =
                Outcome { pause: given.pause.max(2), paused: given.paused, ..Outcome::default() };
        }
        record.next(self.way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue whose clients keep `depth` requests in flight; how long one takes depends on the way in
    /// which it was begun.
    struct Clients {
        trials: Trials,
        now_ns: u64,
        random: u64,
        /// Requests that were begun in each way.
        begun: [u64; WAYS.len()],
    }

    const ALL_GAIN: fn(&Load) -> bool = |_| true;

    impl Clients {
        fn new(seed: u64) -> Self {
            println!("seed {seed}");
            Self { trials: Trials::new(), now_ns: 0, random: seed, begun: [0; WAYS.len()] }
        }

        fn random(&mut self, below: u64) -> u64 {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.random >> 33) % below
        }

        /// So many bursts of `depth` requests, each of which takes `each_ns` of its way, more or less; one
        /// burst in 500 is held up by 50 of them.
        fn run(&mut self, op: Op, depth: usize, bursts: u64, each_ns: [u64; WAYS.len()]) {
            self.run_with(op, depth, bursts, each_ns, ALL_GAIN);
        }

        fn run_with(
            &mut self,
            op: Op,
            depth: usize,
            bursts: u64,
            each_ns: [u64; WAYS.len()],
            mut gains: impl FnMut(&Load) -> bool,
        ) {
            for _ in 0..bursts {
                let way = self.trials.way();
                let changes = self.trials.changes();
                self.trials.pass(self.now_ns, depth);
                self.trials.turn(&mut gains);
                self.begun[way as usize] += depth as u64;
                if way != Way::Kept {
                    self.trials.hand();
                }
                let each = each_ns[way as usize];
                let stall = if self.random(500) == 0 { 50 * each } else { 0 };
                let noise = self.random(each / 5 + 1) * depth as u64;
                self.now_ns += each * depth as u64 + noise + stall;
                self.trials.pass(self.now_ns, depth);
                for _ in 0..depth {
                    self.trials.end(op, 4096, changes);
                }
            }
        }

        fn share(&self, way: Way) -> f64 {
            self.begun[way as usize] as f64 / self.begun.iter().sum::<u64>() as f64
        }
    }

    #[test]
    fn the_fastest_way_is_found_and_the_others_cost_next_to_nothing() {
        let speeds =
            [[1000, 1100, 1300], [1100, 1000, 5000], [1300, 1200, 1000], [1000, 20_000, 9000]];
        for (seed, each_ns) in (1u64..).zip(speeds) {
            for depth in [1, 4, 32, 128] {
                let mut load = Clients::new(seed);
                load.run(Op::Read, depth, 40_000 / depth as u64, each_ns);
                load.begun = [0; WAYS.len()];
                load.run(Op::Read, depth, 2_000_000 / depth as u64, each_ns);
                let best = each_ns.into_iter().min().unwrap();
                let best = WAYS[each_ns.iter().position(|&ns| ns == best).unwrap()];
                let clear =
                    each_ns.iter().filter(|&&ns| ns < each_ns[best as usize] * 6 / 5).count();
                // What is close may be taken for the other, for a while.
                let (share, most) = if clear == 1 { (0.95, 1.02) } else { (0.5, 1.05) };
                assert!(load.share(best) > share, "{each_ns:?} at {depth}: {:?}", load.begun);
                // The rest, as if all had been done in the best way.
                let each = |way: Way| each_ns[way as usize] * load.begun[way as usize];
                let lost = WAYS.into_iter().map(each).sum::<u64>() as f64
                    / (each_ns[best as usize] * 2_000_000) as f64;
                assert!(lost < most, "{each_ns:?} at {depth}: {lost}");
            }
        }
    }

    #[test]
    fn a_way_that_becomes_the_fastest_is_found_again() {
        let mut load = Clients::new(5);
        load.run(Op::Read, 4, 20_000, [1000, 1200, 1400]);
        assert!(load.share(Way::Estimated) > 0.95, "{:?}", load.begun);
        load.run(Op::Read, 4, 200_000, [2000, 1200, 1400]);
        load.begun = [0; WAYS.len()];
        load.run(Op::Read, 4, 20_000, [2000, 1200, 1400]);
        assert!(load.share(Way::Kept) > 0.95, "{:?}", load.begun);
    }

    #[test]
    fn every_load_has_its_own() {
        let mut load = Clients::new(6);
        for _ in 0..50 {
            load.run(Op::Read, 4, 500, [1200, 1000, 3000]);
            load.run(Op::Write { fua: false }, 32, 100, [3000, 2500, 1000]);
        }
        load.begun = [0; WAYS.len()];
        load.run(Op::Read, 4, 5000, [1200, 1000, 3000]);
        assert!(load.share(Way::Kept) > 0.9, "{:?}", load.begun);
        load.begun = [0; WAYS.len()];
        load.run(Op::Write { fua: false }, 32, 1000, [3000, 2500, 1000]);
        assert!(load.share(Way::Given) > 0.9, "{:?}", load.begun);
    }

    #[test]
    fn nothing_is_tried_where_nothing_can_be_gained() {
        let mut trials = Trials::new();
        for now_ns in (0..10_000_000).step_by(2000) {
            trials.pass(now_ns, 1);
            trials.turn(|_| false);
            assert_eq!((trials.way(), trials.compares()), (Way::Estimated, false));
            trials.pass(now_ns + 1000, 1);
            trials.end(Op::Read, 4096, trials.changes());
        }
        assert!(trials.records.iter().all(|record| record.outcomes[0].each_ns == 0.0));
    }

    #[test]
    fn what_has_lost_is_not_tried_more_often_where_it_is_not_sure_that_anything_can_be_gained() {
        let mut load = Clients::new(8);
        let mut epoch = 0;
        load.run_with(Op::Read, 4, 100_000, [1000, 1100, 3000], |_| {
            epoch += 1;
            epoch % 5 != 0
        });
        assert!(load.begun[Way::Given as usize] > 0, "{:?}", load.begun);
        assert!(load.share(Way::Given) < 0.005, "{:?}", load.begun);
    }

    #[test]
    fn who_has_no_choice_tries_nothing() {
        let mut load = Clients::new(7);
        load.run(Op::Read, 4, 20_000, [1300, 1200, 1000]);
        assert_eq!(load.trials.way(), Way::Given);
        load.trials.rest(load.now_ns, 0);
        assert_eq!((load.trials.way(), load.trials.compares()), (Way::Estimated, false));
    }

    #[test]
    fn idle_time_counts_no_more_than_the_time_before_it() {
        let mut trials = Trials::new();
        trials.pass(1000, 1);
        trials.pass(1300, 1);
        trials.end(Op::Read, 4096, 0);
        // From 1300 on there is none.
        trials.pass(1400, 1);
        assert_eq!(trials.epoch.spent_ns, 300 + 100);
        trials.pass(1500, 1);
        trials.end(Op::Read, 4096, 0);
        trials.pass(1_000_000, 1);
        assert_eq!(trials.epoch.spent_ns, 400 + 100 + 100);
    }

    #[test]
    fn what_says_nothing_of_the_cipher_spoils_an_epoch() {
        let mut trials = Trials::new();
        for round in 0..1000 {
            trials.pass(round * 10_000, 1);
            trials.turn(ALL_GAIN);
            trials.hand();
            trials.pass(round * 10_000 + 9000, 1);
            let op = if round % 8 == 0 { Op::Flush } else { Op::Read };
            trials.end(op, 4096, trials.changes());
        }
        assert!(trials.records.iter().all(|record| record.outcomes[0].each_ns == 0.0));
    }
}
