//! Tests the NBD server with the random client, over several connections.
//!
//! `UCRYPT_SEEDS=N` multiplies the number of seeds, `UCRYPT_SEED=N` starts with seed N.

use std::sync::Arc;
use std::time::Duration;

use ucrypt_backend::{Backend, Errno, FileBackend, OpenOptions, memory};
use ucrypt_engine::{PolicyKind, Volume};
use ucrypt_export::nbd::{Address, Server, ServerConfig};
use ucrypt_testkit::engine::VolumeKind;
use ucrypt_testkit::fault::{Access, Fate, Rule};
use ucrypt_testkit::given::seeds;
use ucrypt_testkit::model::Beside;
use ucrypt_testkit::nbd::{NbdOptions, NbdPort};
use ucrypt_testkit::{
    Client, FaultBackend, Faults, Plan, Port, Random, Report, Shape, Watchdog, Whole,
};

const MIB: u64 = 1 << 20;

/// Serves the volume, connects, and runs the plan.
fn run(volume: Arc<Volume>, plan: Plan, connections: u64) -> Report {
    let seed = plan.seed;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("nbd.sock");
    let config = ServerConfig { report: Arc::new(|_| {}), ..ServerConfig::default() };
    let address = Address::Unix(path.clone());
    let server = Server::start(volume, &address, config).expect("a server");
    let mut ports: Vec<Box<dyn Port>> = (0..connections)
        .map(|index| {
            let options =
                NbdOptions { structured: (seed + index).is_multiple_of(2), unsent_max: 4 << 20 };
            Box::new(NbdPort::connect(&path, options).expect("a connection")) as Box<dyn Port>
        })
        .collect();
    let report = Client::new(plan, ports.len()).run(&mut ports);
    drop(ports);
    server.shutdown();
    report.unwrap_or_else(|failure| panic!("{failure}"))
}

struct Setting {
    kind: VolumeKind,
    connections: u64,
    plan: Plan,
}

/// The parameters derived from the seed.
fn setting(seed: u64, len: u64) -> Setting {
    let mut random = Random::new(seed);
    let policies = PolicyKind::ALL[random.below(PolicyKind::ALL.len() as u64) as usize].into();
    let sector_size = [None, Some(512), Some(4096)][random.below(3) as usize];
    let shared_memory = [0, 1 << 20, 16 << 20][random.below(3) as usize];
    let kind = VolumeKind { sector_size, policies, workers: 2, offset: 0, shared_memory };
    let shape = match random.below(4) {
        0 => Shape { mix: [20, 20, 50, 5, 5], zeroes_max: len, ..Shape::everything(len) },
        1 => Shape { transfer_max: 32 << 20, ..Shape::everything(len) },
        2 => Shape { transfer_max: 4096, unaligned: 5, ..Shape::everything(len) },
        _ => Shape { transfer_max: MIB, ..Shape::everything(len) },
    };
    let plan = Plan {
        sector: u64::from(sector_size.unwrap_or(512)),
        whole: Whole::cached(u64::from(sector_size.unwrap_or(512))),
        operations: if shape.transfer_max > MIB { 60 } else { 250 },
        depth: 1 + random.below(160) as usize,
        watchdog: Watchdog::Time(Duration::from_secs(30)),
        ..Plan::new(seed, shape)
    };
    Setting { kind, connections: 1 + random.below(8), plan }
}

#[test]
fn connections_over_a_file_and_memory_lose_nothing_and_do_not_hang() {
    let dir = tempfile::tempdir().expect("a directory");
    for seed in seeds(12) {
        let len = 48 * MIB;
        let Setting { kind, connections, mut plan } = setting(seed, len);
        let backend: Arc<dyn Backend> = if seed.is_multiple_of(3) {
            plan.whole = Whole::mapped();
            Arc::new(memory(len).expect("memory"))
        } else {
            let path = dir.path().join("image");
            std::fs::File::create(&path).expect("a file").set_len(len).expect("room");
            let direct = seed % 3 == 1;
            if direct {
                plan.whole.beside = Beside::AsAtRest;
            }
            let options = OpenOptions { direct, ..OpenOptions::default() };
            Arc::new(FileBackend::open(&path, options).expect("the image opens"))
        };
        run(kind.over(backend, len), plan, connections);
    }
}

#[test]
fn errors_of_the_backend_reach_the_replies_that_they_concern() {
    let mut failed = 0;
    for seed in seeds(12) {
        let len = 8 * MIB;
        let Setting { kind, connections, plan } = setting(seed, len);
        let faults = Faults::new(seed);
        faults.delay(seed % 5).tears_between(u64::from(kind.sector_size.unwrap_or(512)));
        match seed % 3 {
            0 => faults.add(Rule::new(Fate::Fail(Errno::IO)).range(MIB..MIB + 65536)),
            1 => faults.add(Rule::new(Fate::Tear(Errno::NOSPC)).on(Access::Write).chance(5)),
            _ => faults.add(Rule::new(Fate::Fail(Errno::IO)).on(Access::Flush).nth(1)),
        };
        let inner = Arc::new(memory(len).expect("memory"));
        let volume = kind.over(Arc::new(FaultBackend::new(inner, faults.clone())), len);
        let plan = Plan { faults: Some((faults, 0)), ..plan };
        failed += run(volume, plan, connections).failed;
    }
    assert!(failed > 30, "{failed} requests failed");
}
