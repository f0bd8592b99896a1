//! Helpers shared by the tests of the machine.

#![allow(dead_code, reason = "each binary uses a part of it")]

use ucrypt_dispatch::policy::Policy;
use ucrypt_dispatch::{
    BackendTraits, Bounds, ChunkId, Configured, Environment, Machine, Op, Output, Part, Policies,
    Request, Target, Urgency, ZEROES_UNIT_SECTORS,
};

pub(crate) const BORDERS: [u64; 3] = [100, 1000, 1008];

pub(crate) fn bounds() -> Bounds {
    Bounds {
        requests_max: 8,
        chunks_max: 12,
        transfer_sectors_max: 16,
        zeroes_sectors_max: ZEROES_CHUNKS * ZEROES_UNIT_SECTORS,
        sector_sectors: 1,
        borders: BORDERS.to_vec(),
    }
}

/// Chunks of zeroes that memory suffices for: fewer than requests may need.
pub(crate) const ZEROES_CHUNKS: u64 = 3;

/// The errors of backend failures and of cancels.
pub(crate) const FAILED: u32 = 7;
pub(crate) const CANCELLED: u32 = 8;

pub(crate) const DISK: BackendTraits = BackendTraits {
    synchronous: false,
    copies: false,
    mapped: false,
    rotational: false,
    zoned: false,
};

pub(crate) const WORKERS: Environment =
    Environment { workers: 4, idle_workers: 2, reads_in_place: false };

pub(crate) const WRITE: Op = Op::Write { fua: false };

pub(crate) fn request(op: Op, sector: u64, sectors: u64) -> Request {
    Request { op, sector, sectors, urgency: Urgency::Normal }
}

/// A machine with a shipped policy.
pub(crate) type Shipped = Machine<u32, Configured>;

/// A machine over [`DISK`].
pub(crate) fn machine(policies: impl Into<Policies>) -> Shipped {
    Machine::new(bounds(), Configured::new(policies), DISK)
}

/// Hands a chunk to a worker, if it is to be offloaded.
pub(crate) fn offload<P: Policy>(
    machine: &mut Machine<u32, P>,
    chunk: ChunkId,
    target: Target,
    now: u64,
) {
    if target != Target::Inline {
        machine.offloaded(chunk, target, now, now);
    }
}

/// Plans, and returns the chunks of all outputs except `Finish`.
pub(crate) fn started(machine: &mut Shipped) -> Vec<(ChunkId, Vec<Part>)> {
    machine.plan(0, WORKERS);
    let mut started = Vec::new();
    while let Some(output) = machine.next_output() {
        match output {
            Output::Transform { chunk, target } => offload(machine, chunk, target, 0),
            Output::SubmitIo { .. } => {}
            _ => continue,
        }
        if let Output::Transform { chunk, .. } | Output::SubmitIo { chunk, .. } = output {
            started.push((chunk, machine.parts(chunk).to_vec()));
        }
    }
    started
}

/// All outputs of the machine, as words with the first sector of the chunk.
pub(crate) fn told(machine: &mut Shipped) -> Vec<String> {
    machine.plan(0, Environment::default());
    let mut told = Vec::new();
    while let Some(output) = machine.next_output() {
        let sector = |chunk| machine.parts(chunk)[0].sector;
        told.push(match output {
            Output::Transform { chunk, .. } => format!("transform {}", sector(chunk)),
            Output::DecryptMapped { chunk, .. } => format!("decrypt mapped {}", sector(chunk)),
            Output::EncryptMapped { chunk } => format!("encrypt mapped {}", sector(chunk)),
            Output::SubmitIo { chunk, .. } => format!("submit {}", sector(chunk)),
            Output::Drop { .. } => "drop".into(),
            Output::Finish { result, .. } => format!("finish {result:?}"),
        });
    }
    told
}
