//! The machine's promises, in virtual time: thousands of small worlds in which everything goes
//! wrong that the fault model allows.

use ucrypt_dispatch::Policy;
use ucrypt_lab::sim::{Cipher, Costs, DeviceModel, Experiment, Faults, Job, Pattern};

/// splitmix64: the same configurations on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn rate(&mut self, most: u64) -> u32 {
        let rate = self.below(most) as u32;
        if self.below(2) == 0 { 0 } else { rate }
    }
}

fn device(name: &str) -> DeviceModel {
    DeviceModel::by_name(name).expect("a model of that name")
}

/// A small world of its own for every seed.
fn torture(seed: u64) -> Experiment {
    let mut random = Random(seed);
    let devices: Vec<_> = DeviceModel::all().collect();
    let unit = [1, 8][random.below(2) as usize];
    let depth = 1 + random.below(12) as u32;
    let job = Job {
        pattern: Pattern::Torture,
        block_sectors: unit * (1 + random.below(60)),
        depth,
        requests: 20 + random.below(60),
        region_sectors: unit * (64 + random.below(200)),
    };
    let policy = Policy::ALL[random.below(Policy::ALL.len() as u64) as usize];
    let model = devices[random.below(devices.len() as u64) as usize];
    let cores = 1 + random.below(5) as u32;
    Experiment {
        queues: 1 + random.below(3) as u32,
        workers: 1 + random.below(4) as u32,
        cipher: Cipher { ns_per_byte: random.below(400) as f64 / 100.0, ns_per_call: 100 },
        transfer_sectors_max: unit * (1 + random.below(40)),
        sector_sectors: unit,
        chunks_max: 1 + random.below(16) as u32,
        requests_max: 1 + random.below(12) as u32,
        queues_help: random.below(2) == 0,
        free_cores_only: random.below(2) == 0,
        calibrated: random.below(2) == 0,
        verify: true,
        faults: Faults {
            error: random.rate(40),
            delay: random.rate(300),
            delay_max_ns: 1 + random.below(2_000_000),
            stall: random.rate(50),
            stall_max_ns: 1 + random.below(500_000),
            cancel: random.rate(60),
            crash_at: (random.below(2) == 0).then(|| 1 + random.below(1500)),
        },
        seed,
        ..Experiment::new(cores, model, job, policy)
    }
}

#[test]
fn two_thousand_worlds_keep_every_promise_whatever_goes_wrong() {
    let (mut lost, mut failed, mut joined, mut handed) = (0, 0, 0, 0);
    for seed in 0..2000 {
        let experiment = torture(seed);
        let report = std::panic::catch_unwind(|| experiment.run())
            .unwrap_or_else(|_| panic!("seed {seed} panics: {experiment:#?}"));
        assert!(report.violations.is_empty(), "{:#?}\n{experiment:#?}", report.violations);
        let asked = experiment.job.requests * u64::from(experiment.queues);
        assert_eq!(report.finished + report.lost, asked, "seed {seed}: {experiment:#?}");
        lost += report.lost;
        failed += report.failed;
        joined += report.tally.joined;
        handed += report.tally.handed;
    }
    // The faults and the decisions that this is about did happen.
    assert!(lost > 500 && failed > 1000 && joined > 100 && handed > 1000);
}

#[test]
fn the_same_seed_gives_the_same_run_to_the_event() {
    for seed in 0..50 {
        let experiment = torture(seed);
        let (first, second) = (experiment.run(), experiment.run());
        assert_eq!(first, second, "seed {seed}");
        let other = Experiment { seed: seed + 1000, ..experiment }.run();
        assert_ne!(first.trace, other.trace, "seed {seed}");
    }
}

fn job(pattern: Pattern, block_sectors: u64, depth: u32) -> Job {
    Job { pattern, block_sectors, depth, requests: 2000, region_sectors: 1 << 21 }
}

fn mb_s(experiment: &Experiment) -> f64 {
    let report = experiment.run();
    assert!(report.violations.is_empty(), "{:?}", report.violations);
    report.mb_s
}

#[test]
fn one_request_at_a_time_takes_exactly_what_its_steps_cost() {
    let costs = Costs::default();
    let policy = Policy::Inline;
    let experiment = Experiment::new(1, device("null"), job(Pattern::RandRead, 8, 1), policy);
    let report = experiment.run();
    let cipher_ns = Cipher::AES_NI.ns_per_call + 1024;
    let step_ns = costs.round + costs.accept + costs.submit + cipher_ns + costs.finish;
    assert_eq!((report.reads.p50_ns, report.reads.p99_ns), (step_ns, step_ns));
    assert!((report.mb_s - 4096.0 * 1000.0 / step_ns as f64).abs() < 1.0, "{}", report.mb_s);
}

#[test]
fn workers_add_the_speed_of_their_cores() {
    let slow = Cipher { ns_per_byte: 4.0, ns_per_call: 0 };
    let run = |cores, policy| {
        let job = job(Pattern::RandWrite, 256, 32);
        mb_s(&Experiment { cipher: slow, ..Experiment::new(cores, device("null"), job, policy) })
    };
    let inline = run(4, Policy::Inline);
    assert!((inline - 250.0).abs() < 3.0, "one core encrypts 250 MB/s, not {inline}");
    let spread = run(4, Policy::Unbound { sorted: true });
    assert!(spread > 3.8 * inline && spread < 4.0 * inline, "four cores: {spread}");
    let same = run(4, Policy::SameCpu { sorted: true });
    assert!(same < 1.01 * inline, "one core by another name: {same}");
}

#[test]
fn more_cores_than_work_change_nothing() {
    let job = job(Pattern::Read, 8, 1);
    let run = |cores| mb_s(&Experiment::new(cores, device("optane2020"), job, Policy::Inline));
    assert!((run(2) - run(64)).abs() < f64::EPSILON);
}

#[test]
fn a_zoned_disk_refuses_no_write_of_a_policy_that_keeps_order() {
    let errors = |policy| {
        let mut job = job(Pattern::Write, 512, 16);
        // The first zone may be written anywhere; the others are written once, in order.
        job.region_sectors = job.requests * job.block_sectors;
        let stalls = Faults { stall: 100, stall_max_ns: 300_000, ..Faults::default() };
        let cipher = Cipher { ns_per_byte: 2.0, ns_per_call: 0 };
        let experiment = Experiment::new(4, device("zoned"), job, policy);
        let report = Experiment { faults: stalls, cipher, ..experiment }.run();
        assert!(report.violations.is_empty(), "{:?}", report.violations);
        report.failed
    };
    for policy in [Policy::Adaptive, Policy::Inline, Policy::Unbound { sorted: true }] {
        assert_eq!(errors(policy), 0, "{policy}");
    }
    assert!(errors(Policy::Unbound { sorted: false }) > 0, "the judge sees writes out of order");
}

#[test]
fn no_write_leaves_out_of_order_on_a_disk_that_turns_though_workers_encrypt() {
    for pattern in [Pattern::Write, Pattern::RandWrite, Pattern::RandRw] {
        let job = Job { requests: 400, ..job(pattern, 512, 16) };
        let stalls = Faults { stall: 100, stall_max_ns: 300_000, ..Faults::default() };
        let cipher = Cipher { ns_per_byte: 20.0, ns_per_call: 0 };
        let experiment = Experiment::new(4, device("hdd"), job, Policy::Adaptive);
        let report = Experiment { faults: stalls, cipher, ..experiment }.run();
        // The judge of every run complains of a write that leaves before an earlier one.
        assert!(report.violations.is_empty(), "{:?}", report.violations);
        assert!(report.tally.handed > 20, "{}: {:?}", pattern.name(), report.tally);
    }
}

#[test]
fn ways_are_tried_amid_faults_and_every_promise_is_kept() {
    let (mut kept, mut given) = (0, 0);
    for seed in 1..=24 {
        let name = ["null", "optane2020", "sata2017"][seed as usize % 3];
        let mut job =
            job([Pattern::RandRw, Pattern::RandWrite][seed as usize % 2], 8 << (seed % 4), 16);
        job.region_sectors = 1 << 13;
        let faults = Faults {
            error: 1,
            delay: 20,
            delay_max_ns: 100_000,
            stall: 10,
            stall_max_ns: 50_000,
            cancel: 1,
            ..Faults::default()
        };
        let experiment = Experiment::new(4, device(name), job, Policy::Adaptive);
        let report = Experiment { verify: true, faults, seed, ..experiment }.run();
        assert!(report.violations.is_empty(), "seed {seed}: {:?}", report.violations);
        assert_eq!(report.finished, job.requests, "seed {seed}");
        (kept, given) = (kept + report.tally.kept, given + report.tally.given);
    }
    assert!(kept > 1000 && given > 1000, "{kept} kept, {given} given by trial");
}

#[test]
fn a_wrong_estimate_is_found_out() {
    // What carrying costs is not known here: the estimates hand chunks on that are better kept.
    let costs = Costs { carry_ps_per_byte: 1000, ..Costs::default() };
    let job = Job { requests: 6000, ..job(Pattern::RandRead, 128, 1) };
    let run = |policy| {
        let experiment = Experiment::new(4, device("null"), job, policy);
        let report = Experiment { costs, calibrated: false, ..experiment }.run();
        assert!(report.violations.is_empty(), "{:?}", report.violations);
        report
    };
    let (inline, adaptive) = (run(Policy::Inline), run(Policy::Adaptive));
    assert!(adaptive.tally.kept > job.requests / 2, "{:?}", adaptive.tally);
    assert!(adaptive.mb_s > 0.97 * inline.mb_s, "{}, and {} inline", adaptive.mb_s, inline.mb_s);
}
