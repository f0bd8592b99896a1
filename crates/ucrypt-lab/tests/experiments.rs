//! Experiments in virtual time: they cost as much as their steps, are reproducible, and show the
//! known properties of the policies.

use std::sync::Arc;

use ucrypt_backend::Errno;
use ucrypt_backend::model::Profile;
use ucrypt_engine::{CipherModel, Fixed, PolicyKind, Urgency};
use ucrypt_lab::experiment::AES_NI;
use ucrypt_lab::world::{Costs, Stalls};
use ucrypt_lab::{CalibrationKind, Experiment, Job, Pattern, Report};
use ucrypt_testkit::fault::{Access, Fate, Rule};
use ucrypt_testkit::{FaultBackend, Faults, Random};

fn device(name: &str) -> &'static Profile {
    Profile::by_name(name).expect("a model of that name")
}

fn job(pattern: Pattern, block_bytes: u64, depth: u32) -> Job {
    Job { pattern, block_bytes, depth, requests: 2000, region_bytes: 1 << 30 }
}

fn run(experiment: &Experiment) -> Report {
    let report = experiment.run();
    assert_eq!((report.failed, report.finished), (0, experiment.job.requests));
    report
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_one_mostly_does_not() {
    let mut others = 0;
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let pattern = Pattern::ALL[random.below(5) as usize];
        let policy = PolicyKind::ALL[random.below(PolicyKind::ALL.len() as u64) as usize];
        let names: Vec<_> = Profile::names().filter(|name| !name.contains("zoned")).collect();
        let name = names[random.below(names.len() as u64) as usize];
        let job = Job {
            requests: 300,
            ..job(pattern, 4096 << random.below(6), 1 + random.below(40) as u32)
        };
        let experiment = Experiment {
            queues: 1 + random.below(3) as u32,
            stalls: Stalls { per_mille: 20, max_ns: 100_000 },
            seed,
            ..Experiment::new(1 + random.below(5) as u32, device(name), job, policy)
        };
        let first = experiment.run();
        assert_eq!(first, experiment.run(), "seed {seed}");
        assert_eq!(first.finished, u64::from(experiment.queues) * job.requests, "seed {seed}");
        let other = Experiment { seed: seed + 1000, ..experiment }.run();
        others += u32::from(first.end_ns != other.end_ns);
    }
    // A job may be limited by a disk without randomness.
    assert!(others > 30, "{others} of 40 runs differ");
}

#[test]
fn one_request_at_a_time_takes_exactly_what_its_steps_cost() {
    let costs = Costs::default();
    let job = job(Pattern::RandRead, 4096, 1);
    let report = run(&Experiment::new(1, device("null"), job, Fixed::Inline));
    let cipher_ns = AES_NI.ns_per_call + 1024;
    let step_ns = costs.round + costs.accept + costs.submit + cipher_ns + costs.finish;
    assert_eq!((report.reads.p50_ns, report.reads.p99_ns), (step_ns, step_ns));
    assert!((report.mb_s - 4096.0 * 1000.0 / step_ns as f64).abs() < 1.0, "{}", report.mb_s);
}

#[test]
fn workers_add_the_speed_of_their_cores() {
    let cipher = CipherModel { ns_per_byte: 4.0, ns_per_call: 0 };
    let mb_s = |policy| {
        let job = job(Pattern::RandWrite, 128 << 10, 32);
        run(&Experiment { cipher, ..Experiment::new(4, device("null"), job, policy) }).mb_s
    };
    let inline = mb_s(Fixed::Inline);
    assert!((inline - 250.0).abs() < 3.0, "one core encrypts 250 MB/s, not {inline}");
    let spread = mb_s(Fixed::Unbound { sorted: true });
    assert!(spread > 3.8 * inline && spread < 4.0 * inline, "four cores: {spread}");
    let same = mb_s(Fixed::SameCpu { sorted: true });
    assert!(same < 1.01 * inline, "one core by another name: {same}");
}

#[test]
fn more_cores_than_work_change_nothing() {
    let job = job(Pattern::Read, 4096, 1);
    let mb_s = |cores| run(&Experiment::new(cores, device("optane2020"), job, Fixed::Inline)).mb_s;
    assert!((mb_s(2) - mb_s(64)).abs() < f64::EPSILON);
}

#[test]
fn urgency_decides_where_adaptive_transforms() {
    // Neither obviously here nor obviously elsewhere: 16 us of cipher, and other requests.
    let job = job(Pattern::RandRead, 65536, 4);
    let adaptive = Experiment::new(4, device("optane2020"), job, PolicyKind::Adaptive);
    let chunks = |urgency| {
        let stats = run(&Experiment { urgency, ..adaptive.clone() }).stats;
        // The queue, which has nothing else to do, takes some back.
        (stats.inline - stats.taken_back, stats.offloaded + stats.taken_back)
    };
    let (inline, offloaded) = chunks(Urgency::Normal);
    assert!(inline > 0 && offloaded > 0, "{inline} inline, {offloaded} offloaded");
    assert_eq!(chunks(Urgency::Urgent).1, 0, "a client that polls waits for no other core");
    assert_eq!(chunks(Urgency::Background).0, 0, "read-ahead does not keep the queue's thread");
}

#[test]
fn chunks_that_a_queue_takes_back_count_as_inline() {
    let unbound = Fixed::Unbound { sorted: true };
    // Every chunk is handed to workers, eight for each request.
    let stats = |cipher| {
        let job = Job { requests: 400, ..job(Pattern::RandRead, 1 << 20, 16) };
        let experiment = Experiment::new(4, device("optane2020"), job, unbound);
        run(&Experiment { cipher, ..experiment }).stats
    };
    // Faster than the disk: the queue has nothing else to do, and takes each chunk back before the
    // worker is awake.
    let fast = stats(AES_NI);
    assert_eq!((fast.inline, fast.offloaded, fast.taken_back), (3200, 0, 3200));
    // Slower than the disk: workers wake up while the queue transforms one.
    let slow = stats(CipherModel { ns_per_byte: 2.0, ns_per_call: 60 });
    assert_eq!(slow.inline + slow.offloaded, 3200, "{slow:?}");
    assert_eq!(slow.inline, slow.taken_back, "{slow:?}");
    assert!(slow.offloaded > 1600, "{slow:?}");
}

/// A run in which cores stall, over a disk that logs its operations. Returns how many requests
/// failed, how many chunks workers transformed, and where the writes began.
fn logged(mut experiment: Experiment) -> (u64, u64, Vec<u64>) {
    experiment.stalls = Stalls { per_mille: 100, max_ns: 300_000 };
    let faults = Faults::new(1);
    let log = faults.clone();
    let report = experiment.run_over(|disk| Arc::new(FaultBackend::new(disk, log)));
    let mut writes = faults.log();
    writes.retain(|reached| reached.access == Access::Write);
    let starts = writes.iter().map(|write| write.range.start).collect();
    (report.failed, report.stats.offloaded, starts)
}

#[test]
fn writes_leave_in_order_though_workers_encrypt_and_a_zoned_disk_refuses_none() {
    for (name, ns_per_byte) in [("zoned", 2.0), ("hdd", 20.0)] {
        let run = |policy| {
            let mut job = Job { requests: 400, ..job(Pattern::Write, 256 << 10, 16) };
            // Each run covers the region once from start to end.
            job.region_bytes = job.requests * job.block_bytes;
            let cipher = CipherModel { ns_per_byte, ns_per_call: 0 };
            logged(Experiment { cipher, ..Experiment::new(4, device(name), job, policy) })
        };
        for policy in [PolicyKind::Adaptive, Fixed::Unbound { sorted: true }.into()] {
            let (failed, handed, starts) = run(policy);
            assert_eq!(failed, 0, "{name}, {policy}");
            assert!(handed > 20, "{name}, {policy}: {handed} chunks went to workers");
            assert!(starts.is_sorted(), "{name}, {policy}: a write left before an earlier one");
        }
        let (failed, _, starts) = run(Fixed::Unbound { sorted: false }.into());
        assert!(!starts.is_sorted(), "{name}: nothing has shuffled the writes");
        assert!(name != "zoned" || failed > 0, "a zoned disk takes writes out of order");
    }
}

#[test]
fn placement_is_tried_amid_faults_and_every_request_ends() {
    let (mut kept, mut given, mut failed) = (0, 0, 0);
    for seed in 1..=24 {
        let name = ["null", "optane2020", "sata2017"][seed as usize % 3];
        let pattern = [Pattern::RandRw, Pattern::RandWrite][seed as usize % 2];
        let job = Job { region_bytes: 4 << 20, ..job(pattern, 4096 << (seed % 4), 16) };
        let stalls = Stalls { per_mille: 10, max_ns: 50_000 };
        let faults = Faults::new(seed);
        faults.add(Rule::new(Fate::Fail(Errno::IO)).chance(1));
        let experiment = Experiment::new(4, device(name), job, PolicyKind::Adaptive);
        let report = Experiment { stalls, seed, ..experiment }
            .run_over(|disk| Arc::new(FaultBackend::new(disk, faults)));
        assert_eq!(report.finished, job.requests, "seed {seed}");
        (kept, given) = (kept + report.explored.all_inline, given + report.explored.all_offload);
        failed += report.failed;
    }
    assert!(kept > 1000 && given > 1000, "{kept} inline, {given} offloaded by the explorer");
    assert!(failed > 100, "{failed} requests failed");
}

#[test]
fn a_wrong_estimate_is_found_out() {
    // The copy penalty is not calibrated here: the estimates offload chunks that are better kept
    // inline.
    let costs = Costs { carry_ps_per_byte: 1000, ..Costs::default() };
    let job = Job { requests: 6000, ..job(Pattern::RandRead, 64 << 10, 1) };
    let reached = |policy| {
        let experiment = Experiment::new(4, device("null"), job, policy);
        run(&Experiment { costs, calibration: CalibrationKind::Missing, ..experiment })
    };
    let (inline, adaptive) = (reached(Fixed::Inline.into()), reached(PolicyKind::Adaptive));
    assert!(adaptive.explored.all_inline > job.requests / 2, "{:?}", adaptive.explored);
    assert!(adaptive.mb_s > 0.97 * inline.mb_s, "{}, and {} inline", adaptive.mb_s, inline.mb_s);
}
