//! Tests the FUSE export with the random client over a backend that fails: system calls with direct I/O, from
//! several threads, by both transports. Needs the right to mount.
//!
//! `UCRYPT_SEEDS=N` multiplies the number of seeds, `UCRYPT_SEED=N` starts with seed N.

use std::sync::Arc;
use std::time::Duration;

use ucrypt_backend::{Errno, memory};
use ucrypt_engine::PolicyKind;
use ucrypt_export::fuse::{FuseExport, FuseOptions, Preference, Transport};
use ucrypt_testkit::disk::DiskPort;
use ucrypt_testkit::engine::VolumeKind;
use ucrypt_testkit::fault::{Access, Fate, Rule};
use ucrypt_testkit::given::seeds;
use ucrypt_testkit::{
    Client, FaultBackend, Faults, Plan, Port, Random, Report, Shape, Watchdog, Whole,
};

const MIB: u64 = 1 << 20;
const LEN: u64 = 8 * MIB;
/// Bytes of the longest transfer, and the threads of a port.
const TRANSFER_MAX: u64 = 512 << 10;
const THREADS: usize = 4;

fn run(seed: u64, transport: Transport, faults: &Faults) -> Report {
    let mut random = Random::new(seed);
    let policies = PolicyKind::ALL[random.below(PolicyKind::ALL.len() as u64) as usize].into();
    let sector_size = [None, Some(512), Some(4096)][random.below(3) as usize];
    let kind = VolumeKind { sector_size, policies, workers: 2, offset: 0, shared_memory: 4 << 20 };
    let sector = u64::from(sector_size.unwrap_or(512));
    faults.delay(seed % 5).tears_between(sector);
    let inner = Arc::new(memory(LEN).expect("memory"));
    let volume = kind.over(Arc::new(FaultBackend::new(inner, faults.clone())), LEN);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("volume");
    let options = FuseOptions { transport: Preference::Only(transport), ..FuseOptions::default() };
    let export = FuseExport::start(&volume, &path, options).expect("served");
    let in_use = export.transport().transport;
    if in_use != transport {
        println!("{transport} is not to be had here, {in_use} is tried once more");
    }
    let plan = Plan {
        sector,
        // Two writes to a sector of an image in memory may leave blocks of both.
        whole: Whole::mapped(),
        operations: 300,
        depth: 2 * THREADS,
        watchdog: Watchdog::Time(Duration::from_secs(30)),
        faults: Some((faults.clone(), 0)),
        ..Plan::new(
            seed,
            Shape {
                mix: [35, 45, 10, 0, 10],
                transfer_max: TRANSFER_MAX,
                zeroes_max: MIB,
                grain: 512,
                ..Shape::everything(LEN)
            },
        )
    };
    let mut ports: Vec<Box<dyn Port>> = (0..3)
        .map(|_| {
            let port = DiskPort::open(&path, THREADS, TRANSFER_MAX as usize);
            Box::new(port.expect("it opens")) as Box<dyn Port>
        })
        .collect();
    let report = Client::new(plan, ports.len()).run(&mut ports);
    drop(ports);
    let stopped = export.stop();
    let report = report.unwrap_or_else(|failure| panic!("{in_use}, {kind:?}: {failure}"));
    stopped.expect("stopped");
    report
}

#[test]
fn errors_of_the_backend_reach_the_system_calls_that_they_concern() {
    let mut failed = [0; 3];
    for seed in seeds(12) {
        let faults = Faults::new(seed);
        let which = (seed % 3) as usize;
        match which {
            0 => faults.add(Rule::new(Fate::Fail(Errno::IO)).range(MIB..4 * MIB)),
            1 => faults.add(Rule::new(Fate::Tear(Errno::NOSPC)).on(Access::Write).chance(5)),
            _ => faults.add(Rule::new(Fate::Fail(Errno::IO)).on(Access::Flush).nth(1)),
        };
        let transport = [Transport::Ring, Transport::Classic][seed as usize / 3 % 2];
        failed[which] += run(seed, transport, &faults).failed;
    }
    assert!(failed.iter().all(|&count| count > 10), "{failed:?} requests failed, by fault");
}
