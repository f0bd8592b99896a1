//! The explorer: tries other arms than the cost model, and continues with the fastest.
//!
//! A cost model is wrong where one of its inputs is not measured: the cost of one more operation on
//! this disk, of a cache line in a worker's cache, of waking a processor of a busy host. The goal
//! is completed requests per time, and that can be measured. So requests are served in epochs, each
//! by one [`Arm`]. The result of an epoch is its time per request; the arm with the shortest time
//! continues. The others are tried again after a pause that doubles each time they lose. Loads are
//! classed by direction, length and depth; each class has its own results.
//!
//! The explorer knows nothing of ciphers and disks. It does not try an arm that cannot differ from
//! the model: coarser splits where no request is split or joined, whole requests where none is
//! split or a request takes less than three times as long as its cipher, all inline where nothing is
//! offloaded, all offloaded where no worker could pay off.

use crate::request::Op;
use crate::trials::Trials;
use crate::tuning::{
    COARSE_FACTOR, DEPTHS_REQUESTS, EPOCH_ENOUGH_FACTOR, EPOCH_NS_MIN, EPOCH_REQUESTS_MIN,
    LENGTHS_BYTES,
};

/// What decides about the requests of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arm {
    /// The cost model.
    Model,
    /// The cost model, with an operation that costs more than any cipher: no request is split, and
    /// joins are as long as the requests in flight allow. On a memory card, one more command may
    /// cost a thousand times the assumed cost.
    Whole,
    /// The cost model, with the assumed cost of one more operation multiplied by [`COARSE_FACTOR`]: about
    /// half as many chunks, and longer joins.
    Coarse,
    /// Every chunk inline, on the thread that has the request.
    AllInline,
    /// Every chunk on a worker.
    AllOffload,
}

const ARMS: [Arm; 5] = [Arm::Model, Arm::Whole, Arm::Coarse, Arm::AllInline, Arm::AllOffload];

impl Arm {
    /// The factor on the cost that the model assumes for one more operation.
    pub(crate) fn operation_factor(self) -> f64 {
        match self {
            Self::Coarse => COARSE_FACTOR,
            Self::Whole => f64::INFINITY,
            Self::Model | Self::AllInline | Self::AllOffload => 1.0,
        }
    }
}

/// The load of an epoch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Number of reads and of writes.
    reads: u32,
    writes: u32,
    /// Mean length in bytes.
    pub(crate) bytes: f64,
    /// Most requests in flight at a time.
    pub(crate) depth: u32,
    /// Nanoseconds per request, as in [`Epoch::each_ns`].
    pub(crate) each_ns: f64,
}

/// The arms that could pay off under a load, if the model is as wrong as it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MayGain {
    /// Offloading.
    pub(crate) offload: bool,
    /// Not splitting.
    pub(crate) whole: bool,
}

impl Load {
    /// Whether most are writes.
    pub(crate) fn is_write(&self) -> bool {
        self.writes > self.reads
    }

    /// The class of the load, below [`LOADS`].
    fn class(&self) -> usize {
        let direction = match (self.reads, self.writes) {
            (_, 0) => 0,
            (0, _) => 1,
            _ => 2,
        };
        let length = LENGTHS_BYTES.partition_point(|&from| from <= self.bytes);
        let depth = DEPTHS_REQUESTS.partition_point(|&from| from <= self.depth);
        (direction * (LENGTHS_BYTES.len() + 1) + length) * (DEPTHS_REQUESTS.len() + 1) + depth
    }
}

/// Number of load classes: reads, writes and both; lengths; depths.
const LOADS: usize = 3 * (LENGTHS_BYTES.len() + 1) * (DEPTHS_REQUESTS.len() + 1);

/// The requests that ended in an epoch.
#[derive(Debug, Clone, Copy, Default)]
struct Epoch {
    reads: u32,
    writes: u32,
    bytes: u64,
    /// Nanoseconds with requests in flight, plus the idle time after them, up to the same length:
    /// what clients do between two requests depends on where the data is.
    spent_ns: u64,
    /// Most requests in flight at a time. (Not the mean, which depends on the arm.)
    depth: u32,
    /// Chunks that went to workers.
    offloaded: u32,
    /// Requests that were split because of the cost of an operation.
    split: u32,
    /// Chunks that join several requests.
    joined: u32,
    /// An operation ended whose time does not depend on the arm.
    odd: bool,
}

impl Epoch {
    fn requests(&self) -> u32 {
        self.reads + self.writes
    }

    /// Whether the cost of an operation changed the shape of anything.
    fn is_reshaped(&self) -> bool {
        self.split > 0 || self.joined > 0
    }

    fn load(&self) -> Load {
        Load {
            reads: self.reads,
            writes: self.writes,
            bytes: self.bytes as f64 / f64::from(self.requests().max(1)),
            depth: self.depth,
            each_ns: self.each_ns(),
        }
    }

    /// Time per request, counted as in [`Epoch::spent_ns`]. (Not the mean latency, which includes
    /// time outside the queue, before a request is seen.)
    fn each_ns(&self) -> f64 {
        self.spent_ns as f64 / f64::from(self.requests().max(1))
    }
}

/// See the module's comment.
#[derive(Debug)]
pub(crate) struct Explorer {
    /// Boxed to keep them apart from the data used for each request.
    records: Box<[Trials<{ ARMS.len() }>; LOADS]>,
    arm: Arm,
    /// How often the arm has changed.
    changes: u32,
    /// Requests in flight that began under another arm: the epoch begins when they have ended.
    left_over: u32,
    /// The present epoch is not counted because the arm changed in it.
    settles: bool,
    epoch: Epoch,
    /// There is something to compare, so a clock is needed.
    compares: bool,
    now_ns: u64,
    in_flight: usize,
    /// Nanoseconds for which requests have been in flight since the last idle time, less the idle
    /// time already counted.
    burst_ns: u64,
}

impl Explorer {
    pub(crate) fn new() -> Self {
        Self {
            records: Box::new([Trials::NEW; LOADS]),
            arm: Arm::Model,
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

    /// The arm that decides now.
    pub(crate) fn arm(&self) -> Arm {
        self.arm
    }

    /// The value that a request which begins now must pass to [`Explorer::end`].
    pub(crate) fn changes(&self) -> u32 {
        self.changes
    }

    /// Whether the times passed to [`Explorer::pass`] have to be exact.
    pub(crate) fn compares(&self) -> bool {
        self.compares
    }

    /// Advances the time to `now_ns`. From now on `in_flight` requests are in flight, until some
    /// end.
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

    /// Ends the epoch if it is complete, and chooses the arm of the next one. Called after requests
    /// were accepted and [`Explorer::pass`] was called. `may_gain` says what could pay off for the
    /// load of the epoch.
    ///
    /// Requests may arrive and end in bursts, so an epoch begins and ends with the same number in
    /// flight.
    #[inline]
    pub(crate) fn turn(&mut self, may_gain: impl FnOnce(&Load) -> MayGain) {
        let in_flight = self.in_flight as u32;
        let Epoch { depth, .. } = self.epoch;
        let requests = self.epoch.requests();
        self.epoch.depth = depth.max(in_flight);
        let enough = if self.settles { 0 } else { EPOCH_REQUESTS_MIN.max(depth) };
        let many = requests >= EPOCH_ENOUGH_FACTOR * EPOCH_REQUESTS_MIN.max(depth);
        let full = in_flight >= depth || many;
        let short = !self.settles && self.epoch.spent_ns < EPOCH_NS_MIN;
        // A request of the arm before may take as long as it likes, such as one that zeroes the whole disk.
        let is_awaited = self.left_over > 0 && !many;
        if is_awaited || short || requests < enough || !full {
            return;
        }
        self.left_over = 0;
        let epoch = std::mem::take(&mut self.epoch);
        self.epoch.depth = in_flight;
        if std::mem::take(&mut self.settles) {
            return;
        }
        let load = epoch.load();
        let may_gain = may_gain(&load);
        let counts = self.compares && !epoch.odd && epoch.spent_ns > 0;
        let shapes = epoch.is_reshaped() || matches!(self.arm, Arm::Coarse | Arm::Whole);
        self.compares = may_gain.offload || epoch.offloaded > 0 || shapes;
        if counts {
            let arm = self.judge(&epoch, &load, may_gain);
            if arm != self.arm {
                self.arm = arm;
                self.changes = self.changes.wrapping_add(1);
                (self.left_over, self.settles) = (in_flight, true);
            }
        }
    }

    /// A chunk went to a worker.
    pub(crate) fn offloaded(&mut self) {
        self.epoch.offloaded += 1;
    }

    /// A request was split because of the cost of an operation.
    pub(crate) fn split(&mut self) {
        self.epoch.split += 1;
    }

    /// Requests were joined.
    pub(crate) fn joined(&mut self) {
        self.epoch.joined += 1;
    }

    /// There is no choice any more, or there is one again; starts over with `in_flight` requests.
    pub(crate) fn rest(&mut self, now_ns: u64, in_flight: usize) {
        (self.epoch, self.now_ns, self.in_flight) = (Epoch::default(), now_ns, in_flight);
        (self.arm, self.left_over, self.settles) = (Arm::Model, 0, false);
        self.compares = false;
    }

    /// A request has ended that began when [`Explorer::changes`] had this value.
    #[inline]
    pub(crate) fn end(&mut self, op: Op, bytes: u64, changes: u32) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if changes != self.changes {
            self.left_over = self.left_over.saturating_sub(1);
            return;
        }
        match op {
            Op::Read => self.epoch.reads += 1,
            Op::Write { .. } => self.epoch.writes += 1,
            _ => self.epoch.odd = true,
        }
        self.epoch.bytes += bytes;
    }

    /// Records an epoch; returns the arm of the next one.
    fn judge(&mut self, epoch: &Epoch, load: &Load, may_gain: MayGain) -> Arm {
        let trials = &mut self.records[load.class()];
        trials.add(self.arm as usize, load.each_ns, epoch.spent_ns);
        if self.arm == Arm::Model && epoch.offloaded == 0 {
            trials.equate(Arm::AllInline as usize);
        }
        if self.arm == Arm::Model && !epoch.is_reshaped() {
            trials.equate(Arm::Coarse as usize);
        }
        if self.arm == Arm::Model && epoch.split == 0 {
            trials.equate(Arm::Whole as usize);
        } else if self.arm != Arm::Whole && !may_gain.whole {
            trials.suspend(Arm::Whole as usize);
        }
        if !may_gain.offload {
            trials.suspend(Arm::AllOffload as usize);
        }
        ARMS[trials.next(self.arm as usize)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue whose clients keep `depth` requests in flight; the duration of a request depends on
    /// the arm under which it began.
    struct Clients {
        explorer: Explorer,
        now_ns: u64,
        random: fastrand::Rng,
        /// Requests that began under each arm.
        begun: [u64; ARMS.len()],
        /// Requests under way that never end.
        hangs: usize,
    }

    const ALL_GAIN: fn(&Load) -> MayGain = |_| MayGain { offload: true, whole: true };

    /// Nanoseconds of the model, all inline and all offloaded; other splits are not worth it.
    fn arms([model, inline, offload]: [u64; 3]) -> [u64; ARMS.len()] {
        [model, 2 * model, 2 * model, inline, offload]
    }

    impl Clients {
        fn new(seed: u64) -> Self {
            println!("seed {seed}");
            let random = fastrand::Rng::with_seed(seed);
            Self { explorer: Explorer::new(), now_ns: 0, random, begun: [0; ARMS.len()], hangs: 0 }
        }

        /// Runs bursts of `depth` requests. Each request takes about its arm's `each_ns`; one burst
        /// in 500 stalls for 50 times that.
        fn run(&mut self, op: Op, depth: usize, bursts: u64, each_ns: [u64; ARMS.len()]) {
            self.run_with(op, depth, bursts, each_ns, ALL_GAIN);
        }

        fn run_with(
            &mut self,
            op: Op,
            depth: usize,
            bursts: u64,
            each_ns: [u64; ARMS.len()],
            mut gains: impl FnMut(&Load) -> MayGain,
        ) {
            for _ in 0..bursts {
                let arm = self.explorer.arm();
                let changes = self.explorer.changes();
                self.explorer.pass(self.now_ns, depth + self.hangs);
                self.explorer.turn(&mut gains);
                self.begun[arm as usize] += depth as u64;
                if arm != Arm::AllInline {
                    self.explorer.offloaded();
                }
                self.explorer.split();
                let each = each_ns[arm as usize];
                let stall = if self.random.u64(..500) == 0 { 50 * each } else { 0 };
                let noise = self.random.u64(..=each / 5) * depth as u64;
                self.now_ns += each * depth as u64 + noise + stall;
                self.explorer.pass(self.now_ns, depth + self.hangs);
                for _ in 0..depth {
                    self.explorer.end(op, 4096, changes);
                }
            }
        }

        fn share(&self, arm: Arm) -> f64 {
            self.begun[arm as usize] as f64 / self.begun.iter().sum::<u64>() as f64
        }
    }

    /// A trial had no end as long as one request did.
    #[test]
    fn a_request_that_never_ends_keeps_no_trial_going() {
        let each_ns = arms([1000, 20_000, 9000]);
        let mut load = Clients::new(1);
        load.hangs = 1;
        load.run(Op::Read, 4, 100_000, each_ns);
        assert!(load.share(Arm::Model) > 0.9, "{:?}", load.begun);
        assert!(load.share(Arm::AllInline) > 0.0, "there was a trial");
    }

    #[test]
    fn the_fastest_arm_is_found_and_the_others_cost_next_to_nothing() {
        let speeds = [
            arms([1000, 1100, 1300]),
            arms([1100, 1000, 5000]),
            arms([1300, 1200, 1000]),
            arms([1000, 20_000, 9000]),
        ];
        for (seed, each_ns) in (1u64..).zip(speeds) {
            for depth in [1, 4, 32, 128] {
                let mut load = Clients::new(seed);
                load.run(Op::Read, depth, 40_000 / depth as u64, each_ns);
                load.begun = [0; ARMS.len()];
                load.run(Op::Read, depth, 2_000_000 / depth as u64, each_ns);
                let best = each_ns.into_iter().min().unwrap();
                let best = ARMS[each_ns.iter().position(|&ns| ns == best).unwrap()];
                let clear =
                    each_ns.iter().filter(|&&ns| ns < each_ns[best as usize] * 6 / 5).count();
                // Arms that are close may be confused for a while.
                let (share, most) = if clear == 1 { (0.95, 1.02) } else { (0.5, 1.05) };
                assert!(load.share(best) > share, "{each_ns:?} at {depth}: {:?}", load.begun);
                // Time relative to the best arm serving everything.
                let each = |arm: Arm| each_ns[arm as usize] * load.begun[arm as usize];
                let lost = ARMS.into_iter().map(each).sum::<u64>() as f64
                    / (each_ns[best as usize] * 2_000_000) as f64;
                assert!(lost < most, "{each_ns:?} at {depth}: {lost}");
            }
        }
    }

    /// With one seed this says nothing: an explorer that stayed with the wrong arm in one run of
    /// ten passed for months.
    #[test]
    fn the_fastest_arm_is_found_whatever_the_stalls() {
        for (each_ns, best) in [
            ([2000, 2500, 1500, 2500, 2500], Arm::Coarse),
            ([2000, 2500, 2500, 1500, 2500], Arm::AllInline),
            ([70_000, 80_000, 60_000, 90_000, 50_000], Arm::AllOffload),
            ([1000, 1300, 1100, 2500, 2500], Arm::Model),
            ([1000, 1100, 1200, 1300, 9000], Arm::Model),
            ([20_000_000, 6_000_000, 20_000_000, 20_000_000, 20_000_000], Arm::Whole),
        ] {
            let best_ns = each_ns[best as usize];
            // Nearly always soon, and always in the end.
            for (requests, mean_max, most_max) in [(20_000, 1.035, 1.5), (200_000, 1.01, 1.1)] {
                let lost = |seed| {
                    let mut load = Clients::new(seed);
                    load.run(Op::Read, 1, requests, each_ns);
                    let each = |arm: Arm| each_ns[arm as usize] * load.begun[arm as usize];
                    ARMS.into_iter().map(each).sum::<u64>() as f64 / (best_ns * requests) as f64
                };
                let lost: Vec<f64> = (0..100).map(lost).collect();
                let mean = lost.iter().sum::<f64>() / 100.0;
                let most = lost.into_iter().fold(0.0, f64::max);
                println!("{each_ns:?}, {requests} requests: {mean:.3}, worst seed {most:.3}");
                assert!(mean < mean_max && most < most_max, "{each_ns:?}: {mean}, {most}");
            }
        }
    }

    #[test]
    fn an_arm_that_becomes_the_fastest_is_found_again() {
        let mut load = Clients::new(5);
        load.run(Op::Read, 4, 20_000, arms([1000, 1200, 1400]));
        assert!(load.share(Arm::Model) > 0.95, "{:?}", load.begun);
        load.run(Op::Read, 4, 200_000, arms([2000, 1200, 1400]));
        load.begun = [0; ARMS.len()];
        load.run(Op::Read, 4, 20_000, arms([2000, 1200, 1400]));
        assert!(load.share(Arm::AllInline) > 0.95, "{:?}", load.begun);
    }

    #[test]
    fn every_load_has_its_own() {
        let reads = arms([1200, 1000, 3000]);
        let writes = arms([3000, 2500, 1000]);
        let mut late = Vec::new();
        for seed in 0..100 {
            let mut load = Clients::new(seed);
            for _ in 0..50 {
                load.run(Op::Read, 4, 500, reads);
                load.run(Op::Write { fua: false }, 32, 100, writes);
            }
            let mut settled = |op, depth, bursts, each_ns, arm| {
                load.begun = [0; ARMS.len()];
                load.run(op, depth, bursts, each_ns);
                load.share(arm) > 0.9
            };
            let mut both = || {
                settled(Op::Read, 4, 5000, reads, Arm::AllInline)
                    && settled(Op::Write { fua: false }, 32, 1000, writes, Arm::AllOffload)
            };
            if !both() {
                late.push(seed);
                assert!((0..10).any(|_| both()), "seed {seed} has not settled");
            }
        }
        // An arm that lost by a stall and is the fastest waits for its next trial.
        assert!(late.len() <= 3, "{late:?} settle late");
    }

    #[test]
    fn nothing_is_tried_where_nothing_can_be_gained() {
        let mut explorer = Explorer::new();
        for now_ns in (0..10_000_000).step_by(2000) {
            explorer.pass(now_ns, 1);
            explorer.turn(|_| MayGain { offload: false, whole: false });
            assert_eq!((explorer.arm(), explorer.compares()), (Arm::Model, false));
            explorer.pass(now_ns + 1000, 1);
            explorer.end(Op::Read, 4096, explorer.changes());
        }
        assert!(explorer.records.iter().all(Trials::is_new));
    }

    #[test]
    fn what_has_lost_is_not_tried_more_often_where_it_is_not_sure_that_anything_can_be_gained() {
        let mut load = Clients::new(8);
        let mut epoch = 0;
        load.run_with(Op::Read, 4, 100_000, arms([1000, 1100, 3000]), |_| {
            epoch += 1;
            MayGain { offload: epoch % 5 != 0, whole: true }
        });
        assert!(load.begun[Arm::AllOffload as usize] > 0, "{:?}", load.begun);
        assert!(load.share(Arm::AllOffload) < 0.005, "{:?}", load.begun);
    }

    #[test]
    fn who_has_no_choice_tries_nothing() {
        let mut load = Clients::new(7);
        load.run(Op::Read, 4, 20_000, arms([1300, 1200, 1000]));
        assert_eq!(load.explorer.arm(), Arm::AllOffload);
        load.explorer.rest(load.now_ns, 0);
        assert_eq!((load.explorer.arm(), load.explorer.compares()), (Arm::Model, false));
    }

    #[test]
    fn idle_time_counts_no_more_than_the_time_before_it() {
        let mut explorer = Explorer::new();
        explorer.pass(1000, 1);
        explorer.pass(1300, 1);
        explorer.end(Op::Read, 4096, 0);
        // From 1300 on no request is in flight.
        explorer.pass(1400, 1);
        assert_eq!(explorer.epoch.spent_ns, 300 + 100);
        explorer.pass(1500, 1);
        explorer.end(Op::Read, 4096, 0);
        explorer.pass(1_000_000, 1);
        assert_eq!(explorer.epoch.spent_ns, 400 + 100 + 100);
    }

    #[test]
    fn what_says_nothing_of_the_cipher_spoils_an_epoch() {
        let mut explorer = Explorer::new();
        for round in 0..1000 {
            explorer.pass(round * 10_000, 1);
            explorer.turn(ALL_GAIN);
            explorer.offloaded();
            explorer.pass(round * 10_000 + 9000, 1);
            let op = if round % 8 == 0 { Op::Flush } else { Op::Read };
            explorer.end(op, 4096, explorer.changes());
        }
        assert!(explorer.records.iter().all(Trials::is_new));
    }
}
