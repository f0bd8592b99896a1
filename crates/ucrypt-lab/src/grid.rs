//! Every fixed policy against `adaptive`, in every cell of a grid of machines, disks and jobs.
//!
//! A cell falls short when adaptive reaches less than [`SPEED_MIN`] of the throughput of the cell's
//! best fixed policy, or when the 99th percentile of its latency is more than [`TAIL_MAX`] times
//! that policy's. Cells are judged one by one; nothing is averaged over them.

use ucrypt_backend::model::Profile;
use ucrypt_engine::{CipherModel, PolicyKind};

use crate::experiment::{AES_NI, CalibrationKind, Experiment};
use crate::world::Costs;
use crate::{Job, Pattern, Report};

/// Minimum throughput relative to the best fixed policy.
pub const SPEED_MIN: f64 = 0.97;

/// Maximum p99 latency relative to the best fixed policy.
pub const TAIL_MAX: f64 = 1.1;

/// The axes of the grid.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    /// Numbers of cores.
    pub cores: Vec<u32>,
    /// Disks.
    pub devices: Vec<&'static Profile>,
    /// Lengths of a request, in bytes; multiples of 4096.
    pub blocks: Vec<u64>,
    /// Requests in flight.
    pub depths: Vec<u32>,
    /// Access patterns.
    pub patterns: Vec<Pattern>,
    /// The cipher of all cells.
    pub cipher: CipherModel,
    /// The costs of all cells.
    pub costs: Costs,
    /// Length of the region that a job accesses, in bytes.
    pub region_bytes: u64,
    /// Queues of all cells; each has the cell's depth.
    pub queues: u32,
    /// Minimum requests of a job. Adaptive's first trials fall into short jobs.
    pub requests_min: u64,
    /// What the queues of all cells start with.
    pub calibration: CalibrationKind,
    /// Seed of all runs.
    pub seed: u64,
}

impl Grid {
    /// 2 to 64 cores, four disks, 4 KiB to 1 MiB, depth 1 to 128, the five patterns of fio, one
    /// queue.
    pub fn full() -> Self {
        let devices = ["sata2017", "optane2020", "hdd", "null"];
        Self {
            cores: vec![2, 4, 16, 64],
            devices: devices.into_iter().filter_map(Profile::by_name).collect(),
            blocks: vec![4 << 10, 16 << 10, 64 << 10, 128 << 10, 1 << 20],
            depths: vec![1, 4, 32, 128],
            patterns: Pattern::ALL.to_vec(),
            cipher: AES_NI,
            costs: Costs::default(),
            region_bytes: REGION_BYTES,
            queues: 1,
            requests_min: REQUESTS_MIN,
            calibration: CalibrationKind::Exact,
            seed: 1,
        }
    }

    /// About a tenth of the full grid.
    pub fn quick() -> Self {
        Self {
            cores: vec![2, 16],
            blocks: vec![4 << 10, 64 << 10, 1 << 20],
            depths: vec![1, 32],
            patterns: vec![Pattern::Read, Pattern::RandWrite, Pattern::RandRw],
            ..Self::full()
        }
    }

    /// All cells, in the order of the axes.
    pub fn cells(&self) -> Vec<Cell<'_>> {
        let mut cells = Vec::new();
        for &device in &self.devices {
            for &cores in &self.cores {
                for &block in &self.blocks {
                    for &depth in &self.depths {
                        for &pattern in &self.patterns {
                            cells.push(Cell { grid: self, cores, device, block, depth, pattern });
                        }
                    }
                }
            }
        }
        cells
    }
}

/// One cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell<'a> {
    grid: &'a Grid,
    /// Cores of the machine.
    pub cores: u32,
    /// The disk.
    pub device: &'static Profile,
    /// Bytes of a request.
    pub block: u64,
    /// Requests in flight.
    pub depth: u32,
    /// The access pattern.
    pub pattern: Pattern,
}

/// The region that a job accesses; large, so that a disk has to seek.
const REGION_BYTES: u64 = 64 << 30;

/// Minimum requests of a job unless the grid says otherwise: enough for its p99, and many times its
/// depth.
const REQUESTS_MIN: u64 = 6000;
const REQUESTS_PER_DEPTH: u64 = 128;

/// Minimum bytes of a job on a rotating disk: the first quarter, which is not measured, fills the
/// disk's buffer.
const ROTATIONAL_BYTES: u64 = 40 << 20;

impl Cell<'_> {
    /// The cell's job.
    pub fn job(&self) -> Job {
        let fill = if self.device.limits(0).rotational { ROTATIONAL_BYTES / self.block } else { 0 };
        let enough = self.grid.requests_min.max(REQUESTS_PER_DEPTH * u64::from(self.depth));
        Job {
            pattern: self.pattern,
            block_bytes: self.block,
            depth: self.depth,
            requests: enough.max(fill),
            region_bytes: self.grid.region_bytes,
        }
    }

    /// The cell's experiment under a policy.
    pub fn experiment(&self, policy: impl Into<PolicyKind>) -> Experiment {
        let Grid { cipher, costs, queues, calibration, seed, .. } = *self.grid;
        let experiment = Experiment::new(self.cores, self.device, self.job(), policy);
        Experiment { queues, cipher, costs, calibration, seed, ..experiment }
    }

    /// Runs the cell under every policy.
    ///
    /// # Panics
    /// If a request fails or never ends.
    pub fn compare(&self) -> Comparison {
        let run = |policy| {
            let report = self.experiment(policy).run();
            assert_eq!(report.failed, 0, "{self:?} {policy}");
            (policy, report)
        };
        let fixed = PolicyKind::ALL.into_iter().filter(|&policy| policy != PolicyKind::Adaptive);
        Comparison { adaptive: run(PolicyKind::Adaptive).1, fixed: fixed.map(run).collect() }
    }
}

/// The results of one cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The report of `adaptive`.
    pub adaptive: Report,
    /// The reports of all other policies.
    pub fixed: Vec<(PolicyKind, Report)>,
}

impl Comparison {
    /// The fixed policy with the largest throughput.
    ///
    /// # Panics
    /// If there is none.
    pub fn best(&self) -> &(PolicyKind, Report) {
        let best = self.fixed.iter().max_by(|(_, a), (_, b)| a.mb_s.total_cmp(&b.mb_s));
        best.expect("a fixed policy")
    }

    /// Adaptive's throughput relative to the best fixed policy.
    pub fn speed(&self) -> f64 {
        self.adaptive.mb_s / self.best().1.mb_s
    }

    /// Adaptive's p99 latency relative to the best fixed policy, of the direction where the ratio
    /// is worse.
    pub fn tail(&self) -> f64 {
        let ratio = |ours: u64, best: u64| ours as f64 / best.max(1) as f64;
        let best = &self.best().1;
        let reads = ratio(self.adaptive.reads.p99_ns, best.reads.p99_ns);
        reads.max(ratio(self.adaptive.writes.p99_ns, best.writes.p99_ns))
    }

    /// Whether the cell falls short; see the module's comment.
    pub fn falls_short(&self) -> bool {
        self.speed() < SPEED_MIN || self.tail() > TAIL_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_grid_has_every_cell_once_and_one_of_them_runs() {
        let grid = Grid::full();
        let cells = grid.cells();
        assert_eq!(cells.len(), 4 * 4 * 5 * 4 * 5);
        let same = |cell: &Cell<'_>| cells.iter().filter(|&other| other == cell).count();
        assert!(cells.iter().step_by(37).all(|cell| same(cell) == 1));
        let comparison = cells[0].compare();
        assert_eq!(comparison.fixed.len(), PolicyKind::ALL.len() - 1);
        assert!(comparison.speed() > 0.5 && comparison.tail() > 0.0, "{comparison:?}");
    }
}
