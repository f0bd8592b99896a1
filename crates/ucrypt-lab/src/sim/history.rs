//! The published rows on presets of the published machines, in virtual time.
//!
//! A preset is a device model, a number of cores, a cipher and a fixed policy that stands for the
//! dm-crypt of that time. The cipher of each is taken from the published rows named beside it; the
//! rows that it is taken from are no test of the model, all others are. The dispatcher of
//! `adaptive` is told the costs of the machine as the engine's calibration measures them when it
//! starts (cipher, waking, enqueueing, copying); what a device wants it learns as it does on a disk.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use ucrypt_backend::model::Profile;
use ucrypt_engine::{CipherModel, Fixed, PolicyKind};

use crate::analysis::OF_RAW_MIN;
use crate::catalogue::{Scale, luks_2017, size_name};
use crate::contender::Contender;
use crate::experiment::{AES_2017, Experiment};
use crate::load::{INTERRUPTED, is_stopped};
use crate::published::{self, Row as Published};
use crate::world::{Costs, Stalls};
use crate::{Job, Pattern, Report};

use super::calibrate::{Check, Drive, Measured};
use super::drives;

/// A published figure, and what the simulator makes of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The experiment.
    pub experiment: String,
    /// The row of the table.
    pub row: String,
    /// Of all three figures.
    pub unit: String,
    /// As it was published.
    pub published: f64,
    /// What stands for the dm-crypt of that time, or `raw`.
    pub policy: String,
    /// Under that policy, simulated.
    pub simulated: f64,
    /// Under adaptive dispatch, simulated; none for raw rows.
    pub adaptive: Option<f64>,
    /// Not encrypted, simulated under the same load; none for raw rows, and where nothing is simulated without
    /// encryption.
    #[serde(default)]
    pub raw: Option<f64>,
    /// Whether the preset or its device model was fitted to this row: then it is no test of them.
    pub fitted: bool,
}

/// The rows of a simulation, and how it was made: the content of `sim.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Simulation {
    /// The version of the command, with its commit.
    pub version: String,
    /// The command line that asked for it; empty in files of earlier versions.
    #[serde(default)]
    pub command: String,
    /// Rows, and virtual time.
    pub scale: Scale,
    /// What the presets were changed to.
    pub changes: Changes,
    /// In the order of the experiments.
    pub rows: Vec<Row>,
    /// Loads on the machine that was measured for [`Changes::measured`], and in the simulator.
    #[serde(default)]
    pub checks: Vec<Check>,
    /// Rows that failed, and why.
    #[serde(default)]
    pub failed: Vec<String>,
    /// Whether it was ended before it had all rows.
    #[serde(default)]
    pub interrupted: bool,
}

/// What came of the rows of some experiments.
#[derive(Debug, Default)]
pub struct Rows {
    /// Those that were simulated, in the order of the experiments.
    pub rows: Vec<Row>,
    /// Those that failed, and why.
    pub failed: Vec<String>,
    /// Whether others are missing, because the simulation was stopped.
    pub interrupted: bool,
}

/// A row in which adaptive is worse than something else.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Short<'a> {
    /// The row.
    pub row: &'a Row,
    /// Worse than this: the fixed policy of the row, or `raw`.
    pub other: &'a str,
    /// The other's figure.
    pub figure: f64,
    /// Adaptive over the other; of latencies, the other way round.
    pub ratio: f64,
}

/// Rows within [`ERROR_MAX`], and all rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Within [`ERROR_MAX`].
    pub good: usize,
    /// All.
    pub all: usize,
}

impl Simulation {
    /// All rows, and those that nothing was fitted to.
    pub fn counts(&self) -> (Count, Count) {
        let of = |rows: &mut dyn Iterator<Item = &Row>| {
            rows.fold(Count::default(), |Count { good, all }, row| Count {
                good: good + usize::from(row.is_trusted()),
                all: all + 1,
            })
        };
        (of(&mut self.rows.iter()), of(&mut self.rows.iter().filter(|row| !row.fitted)))
    }

    /// Adaptive beside the fixed policy of each row and beside raw. Rows of one load repeat adaptive and raw, which are
    /// compared once.
    fn comparisons(&self) -> Vec<Short<'_>> {
        let mut all: Vec<Short<'_>> = Vec::new();
        for short in self.rows.iter().flat_map(|row| row.compared().into_iter().flatten()) {
            let same = |it: &Short<'_>| {
                let of = |it: &Short<'_>| (it.row.adaptive, it.row.raw, it.other == RAW);
                of(it) == of(&short) && it.row.experiment == short.row.experiment
            };
            if short.other != RAW || !all.iter().any(same) {
                all.push(short);
            }
        }
        all
    }

    /// Where adaptive is worse than the fixed policy by any amount, or than raw by more than 3 %. The worst first.
    pub fn shortfalls(&self) -> Vec<Short<'_>> {
        let mut all = self.comparisons();
        all.retain(|short| {
            let least = if short.other == RAW { OF_RAW_MIN } else { 1.0 - ROUNDING };
            short.ratio < least
        });
        all.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
        all
    }

    /// How many those are, as a sentence.
    pub fn short(&self) -> String {
        let count = |all: &[Short<'_>]| {
            let of_raw = all.iter().filter(|it| it.other == RAW).count();
            (all.len() - of_raw, of_raw)
        };
        let (fixed, raw) = count(&self.comparisons());
        match count(&self.shortfalls()) {
            (0, 0) => format!(
                "Nowhere in virtual time (compared with the fixed policy: {fixed} rows, with raw: {raw})."
            ),
            (of_fixed, of_raw) => format!(
                "In virtual time, on the published machines, adaptive is worse than the fixed policy in \
                 {of_fixed} of {fixed} rows, and more than 3 % worse than raw in {of_raw} of {raw}."
            ),
        }
    }

    /// The counts as a sentence, after another one if rows are missing.
    pub fn verdict(&self) -> String {
        let (rows, tests) = self.counts();
        let part = if self.interrupted { "It was interrupted, and rows are missing. " } else { "" };
        let failed = match self.failed.as_slice() {
            [] => String::new(),
            failed => format!("{} rows failed: {}. ", failed.len(), failed.join("; ")),
        };
        format!(
            "{part}{failed}{} of {} rows are within 15 % of what was published; of the rows that no preset was \
             fitted to, {} of {}.",
            rows.good, rows.all, tests.good, tests.all
        )
    }
}

/// The policy of rows without encryption.
const RAW: &str = "raw";

/// Two figures that are less apart than this part of them differ in their rounding.
const ROUNDING: f64 = 1e-9;

/// The model is trusted where its error is at most this.
pub const ERROR_MAX: f64 = 0.15;

impl Row {
    /// The simulated figure over the published one, less 1.
    pub fn error(&self) -> Option<f64> {
        (self.published > 0.0).then(|| self.simulated / self.published - 1.0)
    }

    /// Adaptive beside the fixed policy, and beside raw, where there is such a figure: 1 is as good, less is worse.
    /// Latencies are better when they are less.
    fn compared(&self) -> [Option<Short<'_>>; 2] {
        let with = |other, figure: Option<f64>| {
            let (adaptive, figure) = self.adaptive.zip(figure)?;
            let is_latency = self.unit.starts_with("µs");
            let (of, base) = if is_latency { (figure, adaptive) } else { (adaptive, figure) };
            (base > 0.0).then(|| Short { row: self, other, figure, ratio: of / base })
        };
        [with(&self.policy, Some(self.simulated)), with(RAW, self.raw)]
    }

    /// Whether the error is small enough.
    pub fn is_trusted(&self) -> bool {
        self.error().is_some_and(|error| error.abs() <= ERROR_MAX)
    }
}

/// What presets are changed to.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Changes {
    /// Cores of every machine, each with its threads.
    pub cores: Option<u32>,
    /// Threads that share a core's cipher unit: this part of `cores` are cores.
    pub threads_per_core: Option<u32>,
    /// Drives of `many-drives`.
    pub drives: Option<u32>,
    /// Nanoseconds a byte of every cipher.
    pub cipher_ns: Option<f64>,
    /// Nanoseconds until a woken thread runs.
    pub wake_ns: Option<u64>,
    /// Nanoseconds to hand a chunk to a worker, or to take it back.
    pub enqueue_ns: Option<u64>,
    /// Virtual milliseconds of a run of `many-drives`.
    pub virtual_ms: Option<u64>,
    /// All that was measured on a machine; the options above override it.
    pub measured: Option<Measured>,
}

impl Changes {
    /// In words; `None` if the presets are as they were published.
    pub fn describe(&self) -> Option<String> {
        let measured = self.measured.map(|measured| measured.describe());
        let cores = self.cores.map(|cores| format!("{cores} cores"));
        let threads = self
            .threads_per_core
            .filter(|threads| *threads > 1)
            .map(|threads| format!("of which {threads} share a cipher unit"));
        let drives = self.drives.map(|drives| format!("{drives} drives (many-drives)"));
        let cipher = self.cipher_ns.map(|ns| format!("a cipher of {ns} ns a byte"));
        let wake = self.wake_ns.map(|ns| format!("{ns} ns until a woken thread runs"));
        let enqueue = self.enqueue_ns.map(|ns| format!("{ns} ns to hand a chunk over"));
        let time = self.virtual_ms.map(|ms| format!("{ms} ms of virtual time (many-drives)"));
        let all = [measured, cores, threads, drives, cipher, wake, enqueue, time];
        let all: Vec<_> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// The cipher in the place of that of a machine.
    pub(crate) fn cipher(&self, of: CipherModel) -> CipherModel {
        let measured = self.measured.map_or(of, |measured| measured.cipher());
        CipherModel { ns_per_byte: self.cipher_ns.unwrap_or(measured.ns_per_byte), ..measured }
    }

    /// The costs in the place of those of a machine.
    pub(crate) fn costs(&self, of: Costs) -> Costs {
        let costs = self.measured.map_or(of, |measured| measured.costs(of));
        Costs {
            wake: self.wake_ns.unwrap_or(costs.wake),
            enqueue: self.enqueue_ns.unwrap_or(costs.enqueue),
            ..costs
        }
    }

    /// The drive in the place of that of a machine, if one was measured.
    pub(crate) fn drive(&self) -> io::Result<Option<&'static Profile>> {
        self.measured.and_then(|measured| measured.drive).map(Drive::profile).transpose()
    }

    pub(crate) fn threads_per_core(&self) -> u32 {
        let measured = self.measured.map_or(1, |measured| measured.threads_per_core);
        self.threads_per_core.unwrap_or(measured)
    }

    pub(crate) fn cores(&self, of: u32) -> u32 {
        self.cores.or(self.measured.map(|measured| measured.cores)).unwrap_or(of)
    }
}

/// A published machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Preset {
    pub(super) device: &'static str,
    pub(super) cores: u32,
    pub(super) cipher: CipherModel,
    /// Threads lose their cores for a moment, as on every machine that does something else too.
    pub(super) stalls: Stalls,
}

impl Preset {
    /// Runs a load on the machine with changes.
    pub(super) fn run(
        &self,
        changes: &Changes,
        Load { job, queues }: Load,
        policy: PolicyKind,
        stop: &AtomicBool,
    ) -> io::Result<Report> {
        let device = Profile::by_name(self.device)
            .ok_or_else(|| io::Error::other(format!("no device model {}", self.device)))?;
        // The drive that was measured stands for disks, not for devices that take no time.
        let device = match changes.drive()? {
            Some(drive) if self.device != "null" => drive,
            _ => device,
        };
        let mut experiment = Experiment::new(changes.cores(self.cores), device, job, policy);
        experiment.queues = queues;
        experiment.threads_per_core = changes.threads_per_core();
        experiment.stalls = self.stalls;
        // Without a cipher, there is none to change.
        let model = self.cipher;
        experiment.cipher = if model == NO_CIPHER { model } else { changes.cipher(model) };
        experiment.costs = changes.costs(experiment.costs);
        let report = experiment.run_until(stop)?;
        if report.failed > 0 {
            return Err(io::Error::other(format!("{} requests failed", report.failed)));
        }
        Ok(report)
    }
}

const STEADY: Stalls = Stalls { per_mille: 0, max_ns: 0 };

const fn cipher(ns_per_byte: f64, ns_per_call: u64) -> CipherModel {
    CipherModel { ns_per_byte, ns_per_call }
}

pub(super) const NO_CIPHER: CipherModel = cipher(0.0, 0);

/// 2015: one core and an engine. The engine takes 34.1 ns a byte (`block_sizes_2015.csv`); asked for
/// each sector of 512 bytes, as bio-based dm-crypt did, 124 ns (`request_based_2015.csv`, read by
/// dd: 11.7 ms for 64 KiB, of which the card takes 3.6 ms).
pub(super) const BEAGLEBONE: Preset =
    Preset { device: "sd2015", cores: 1, cipher: cipher(34.1, 20_000), stalls: STEADY };
const PER_SECTOR: CipherModel = cipher(124.0, 0);

/// 2017: a desktop of that year; the number of cores is chosen. Nobody noted which rows the speed
/// of the cipher was taken from: all encrypted rows of `luks_sweep_2017.csv` count as fitted.
pub(super) const SSD: Preset =
    Preset { device: "sata2017", cores: 4, cipher: AES_2017, stalls: STEADY };

/// 2020: the cipher of one core is what the row of one job without work queues shows
/// (`workqueues_2020.csv`: 2056 MB/s). The number of cores is chosen. Each job has a queue, whose
/// answers are decrypted on its own core; in the rows of four jobs without work queues they seem to
/// have been decrypted on one core, that of the interrupts (1703 and 1758 MB/s).
pub(super) const OPTANE: Preset =
    Preset { device: "optane2020", cores: 8, cipher: cipher(0.5, 60), stalls: STEADY };

/// 2013: one disk of two, so only ratios compare; cores, cipher and stalls are chosen.
const DISK: Preset = Preset {
    device: "hdd",
    cores: 8,
    cipher: cipher(4.0, 0),
    stalls: Stalls { per_mille: 100, max_ns: 300_000 },
};

/// 2011: "cipher about 80 MB/s", over a device that takes no time.
const ZERO: Preset = Preset { device: "null", cores: 2, cipher: cipher(12.5, 0), stalls: STEADY };

/// A job for each of some queues.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) job: Job,
    pub(super) queues: u32,
}

impl Load {
    /// How much there is to simulate, in units of about as much time each.
    pub(super) fn work(&self) -> f64 {
        let Job { requests, block_bytes, .. } = self.job;
        // The engine cuts long requests.
        let of_request = 1.0 + block_bytes as f64 / f64::from(1 << 16);
        f64::from(self.queues) * requests as f64 * of_request
    }
}

impl From<Job> for Load {
    fn from(job: Job) -> Self {
        Self { job, queues: 1 }
    }
}

/// Runs of one simulation.
struct Simulator<'a> {
    changes: Changes,
    stop: &'a AtomicBool,
    progress: Progress<'a>,
    work: Work,
    rows: Vec<Row>,
    failed: Vec<String>,
}

/// Is told the last row, and which share of all work is done, 0 to 1.
pub type Progress<'a> = &'a dyn Fn(&str, f64);

/// How much there is to simulate, in the units of [`Load::work`].
#[derive(Debug, Default)]
struct Work {
    /// Nothing is simulated: it is counted how much there is.
    is_counted: bool,
    done: Cell<f64>,
    all: f64,
}

impl Work {
    fn add(&self, work: f64) {
        self.done.set(self.done.get() + work);
    }

    fn share(&self) -> f64 {
        if self.all > 0.0 { (self.done.get() / self.all).min(1.0) } else { 0.0 }
    }
}

/// Work of a run of `many-drives` for each millisecond of virtual time.
const MANY_WORK: f64 = 1000.0;

/// A result under the old policy and under adaptive.
struct Both {
    fixed: Report,
    adaptive: Report,
}

impl Simulator<'_> {
    fn experiment(&mut self, name: &str, scale: Scale) -> io::Result<()> {
        match name {
            "block-sweep" => sweep(self, scale),
            "workqueues" => workqueues(self),
            "added-latency" => latency(self),
            "other-ssd" => other(self),
            "instant" => self.attempt(name, instant),
            "sorted-writes" => self.attempt(name, sorted),
            "request-merge" => merged(self, scale),
            "many-drives" => self.attempt(name, |simulator| many(simulator, scale)),
            _ => Ok(()),
        }
    }

    /// Simulates some rows. If they fail, that is noted, and the others go on.
    ///
    /// # Errors
    /// If the simulation was stopped.
    fn attempt(
        &mut self,
        what: &str,
        rows: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        match rows(self) {
            Err(error) if !is_stopped(&error, self.stop) => {
                self.failed.push(format!("{what}: {error}"));
                Ok(())
            }
            ended => ended,
        }
    }

    fn run(
        &self,
        preset: Preset,
        model: CipherModel,
        load: impl Into<Load>,
        policy: impl Into<PolicyKind>,
    ) -> io::Result<Report> {
        let load = load.into();
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, INTERRUPTED));
        }
        self.work.add(load.work());
        if self.work.is_counted {
            return Ok(Report::default());
        }
        Preset { cipher: model, ..preset }.run(&self.changes, load, policy.into(), self.stop)
    }

    fn raw(&self, preset: Preset, load: impl Into<Load>) -> io::Result<Report> {
        self.run(preset, NO_CIPHER, load, Fixed::Inline)
    }

    fn both(&self, preset: Preset, load: impl Into<Load>, policy: Fixed) -> io::Result<Both> {
        let load = load.into();
        let fixed = self.run(preset, preset.cipher, load, policy)?;
        let adaptive = self.run(preset, preset.cipher, load, PolicyKind::Adaptive)?;
        Ok(Both { fixed, adaptive })
    }

    fn add(
        &mut self,
        experiment: &str,
        row: impl Into<String>,
        unit: &str,
        policy: &str,
        (published, simulated, adaptive): (f64, f64, Option<f64>),
    ) {
        let row = Row {
            experiment: experiment.into(),
            row: row.into(),
            unit: unit.into(),
            published,
            policy: policy.into(),
            simulated,
            adaptive,
            raw: None,
            fitted: false,
        };
        (self.progress)(&format!("{experiment}: {}", row.row), self.work.share());
        self.rows.push(row);
    }

    /// Says of the last row that the preset was fitted to it, if it was.
    fn fitted(&mut self, fitted: bool) {
        if let Some(row) = self.rows.last_mut() {
            row.fitted = fitted;
        }
    }

    /// Says of the last row what the load has without encryption.
    fn beside_raw(&mut self, raw: f64) {
        if let Some(row) = self.rows.last_mut() {
            row.raw = Some(raw);
        }
    }

    /// A raw row and an encrypted one in MB/s, where they were published. `fitted`: whether the
    /// cipher was fitted to the encrypted one. Device models were fitted to the raw ones.
    fn pair(
        &mut self,
        (experiment, name): (&str, &str),
        preset: Preset,
        load: impl Into<Load>,
        (policy, label, fitted): (Fixed, &str, bool),
        (raw, encrypted): (Option<f64>, Option<f64>),
    ) -> io::Result<()> {
        let load = load.into();
        self.attempt(&format!("{experiment}, {name}"), |simulator| {
            let unencrypted = simulator.raw(preset, load)?.mb_s;
            if let Some(raw) = raw {
                let figures = (raw, unencrypted, None);
                simulator.add(experiment, format!("{name}, raw"), "MB/s", RAW, figures);
                simulator.fitted(true);
            }
            if let Some(encrypted) = encrypted {
                let Both { fixed, adaptive } = simulator.both(preset, load, policy)?;
                let figures = (encrypted, fixed.mb_s, Some(adaptive.mb_s));
                simulator.add(
                    experiment,
                    format!("{name}, {label}"),
                    "MB/s",
                    policy.name(),
                    figures,
                );
                simulator.fitted(fitted);
                simulator.beside_raw(unencrypted);
            }
            Ok(())
        })
    }
}

/// Enough requests for the explorer to learn what a device wants: on a slow one it takes 160 of them. The
/// first quarter is not measured.
pub(super) fn job(pattern: Pattern, block_bytes: u64, depth: u32) -> Job {
    let requests = if block_bytes >= 4 << 20 { 100 } else { 400 };
    let requests = (16 * u64::from(depth)).max(requests);
    Job { pattern, block_bytes, depth, requests, region_bytes: 64 << 30 }
}

/// The longest simulated request: above it, every published row is at the speed of the bus.
pub(super) const BLOCK_MAX: u64 = 32 << 20;

/// Simulates the published rows of these experiments, until `stop` is set. A row that fails is left out.
pub fn rows(
    experiments: &[&str],
    scale: Scale,
    changes: Changes,
    (stop, progress): (&AtomicBool, Progress<'_>),
) -> Rows {
    let simulator = |progress, work| {
        let (rows, failed) = (Vec::new(), Vec::new());
        Simulator { changes, stop, progress, work, rows, failed }
    };
    let mut counter = simulator(&|_, _| {}, Work { is_counted: true, ..Work::default() });
    // A simulation that is stopped at once has no rows either.
    let _ = experiments.iter().try_for_each(|name| counter.experiment(name, scale));
    let all = counter.work.done.get();
    let mut simulator = simulator(progress, Work { all, ..Work::default() });
    // Nothing else ends an experiment early.
    let interrupted = experiments.iter().any(|name| simulator.experiment(name, scale).is_err());
    Rows { rows: simulator.rows, failed: simulator.failed, interrupted }
}

/// The experiments that can be simulated. `heat-map` has no published rows, and nothing was
/// published about the disk of `kernel-tree` that a model could be fitted to.
pub const EXPERIMENTS: [&str; 8] = [
    "block-sweep",
    "workqueues",
    "added-latency",
    "other-ssd",
    "instant",
    "sorted-writes",
    "request-merge",
    "many-drives",
];

fn sweep(simulator: &mut Simulator<'_>, scale: Scale) -> io::Result<()> {
    let rows = published::LUKS_SWEEP_2017.rows();
    let device = rows.iter().filter(|row| row.text("where") == "device");
    for (at, row) in device.enumerate() {
        let Some(block) = row.number::<u64>("block_size").filter(|block| *block <= BLOCK_MAX)
        else {
            continue;
        };
        if scale == Scale::Quick && (at % 4 != 0 || block > 1 << 20) {
            continue;
        }
        let name = size_name(block);
        let figures = (row.number("raw"), row.number("luks"));
        let how = (luks_2017(Pattern::Read).0, "LUKS", true);
        simulator.pair(("block-sweep", &name), SSD, job(Pattern::Read, block, 1), how, figures)?;
    }
    Ok(())
}

fn other(simulator: &mut Simulator<'_>) -> io::Result<()> {
    let rows = published::LUKS_OTHER_2017.rows();
    let figures = |test: &str, with: &str| {
        let row =
            rows.iter().find(|row| row.text("test") == test && row.text("job").contains(with));
        (row.and_then(|row| row.number("raw")), row.and_then(|row| row.number("luks")))
    };
    // dd reads ahead; the published block size is not known.
    let read = job(Pattern::Read, 128 << 10, 4);
    let loads = [
        ("linear write", Load::from(job(Pattern::Write, 1 << 20, 1)), figures("linear write", "")),
        ("linear read", read.into(), figures("linear read", "whole")),
        (
            "random write 64k × 20",
            Load { job: job(Pattern::RandWrite, 64 << 10, 1), queues: 20 },
            figures("random write", ""),
        ),
    ];
    for (name, load, figures) in loads {
        let how = (luks_2017(load.job.pattern).0, "LUKS", false);
        simulator.pair(("other-ssd", name), SSD, load, how, figures)?;
    }
    Ok(())
}

fn workqueues(simulator: &mut Simulator<'_>) -> io::Result<()> {
    for row in published::WORKQUEUES_2020.rows() {
        let (block, size) = match row.text("block_size") {
            "1m" => (1 << 20, "1m"),
            "64k" => (64 << 10, "64k"),
            _ => (4 << 10, "4k"),
        };
        let number = |column| row.number::<f64>(column).unwrap_or_default();
        let [depth, jobs] = ["iodepth", "jobs"].map(|column| row.number(column).unwrap_or(1));
        let load = Load { job: job(Pattern::RandRead, block, depth), queues: jobs };
        let name = format!("{size}/{depth}/{jobs}");
        let us = |report: &Report| report.reads.mean_ns / 1000.0;
        let policy = match row.text("device") {
            "nvme base" => None,
            "crypt default" => Some(Fixed::Unbound { sorted: true }),
            _ => Some(Fixed::Inline),
        };
        let what = format!("workqueues, {name}, {}", row.text("device"));
        simulator.attempt(&what, |simulator| {
            let raw = simulator.raw(OPTANE, load)?;
            let Some(policy) = policy else {
                let figures = (number("mb_s"), raw.mb_s, None);
                simulator.add("workqueues", format!("{name}, raw"), "MB/s", RAW, figures);
                simulator.fitted(true);
                let figures = (number("clat_mean_us"), us(&raw), None);
                simulator.add("workqueues", format!("{name}, raw, mean"), "µs", RAW, figures);
                simulator.fitted(true);
                return Ok(());
            };
            let Both { fixed, adaptive } = simulator.both(OPTANE, load, policy)?;
            let figures = (number("mb_s"), fixed.mb_s, Some(adaptive.mb_s));
            let row = format!("{name}, {}", row.text("device"));
            // The long requests without work queues gave the speed of the cipher, and their mean
            // follows from it.
            let fitted = policy == Fixed::Inline && block >= 64 << 10;
            simulator.add("workqueues", &*row, "MB/s", policy.name(), figures);
            simulator.fitted(fitted);
            simulator.beside_raw(raw.mb_s);
            let figures = (number("clat_mean_us"), us(&fixed), Some(us(&adaptive)));
            simulator.add("workqueues", format!("{row}, mean"), "µs", policy.name(), figures);
            simulator.fitted(fitted);
            simulator.beside_raw(us(&raw));
            let p99 = |report: &Report| report.reads.p99_ns as f64 / 1000.0;
            let figures = (number("clat_p99_us"), p99(&fixed), Some(p99(&adaptive)));
            simulator.add("workqueues", format!("{row}, p99"), "µs", policy.name(), figures);
            simulator.beside_raw(p99(&raw));
            Ok(())
        })?;
    }
    Ok(())
}

fn latency(simulator: &mut Simulator<'_>) -> io::Result<()> {
    for row in published::LATENCY_2011.rows() {
        let (Some(block), Some(ms)) =
            (row.number("block_size"), row.number::<f64>("added_latency_ms"))
        else {
            continue;
        };
        let job = job(Pattern::RandRead, block, 1);
        let name = size_name(block);
        simulator.attempt(&format!("added-latency, {name}"), |simulator| {
            let raw = simulator.raw(ZERO, job)?.reads.mean_ns;
            let Both { fixed, adaptive } =
                simulator.both(ZERO, job, Fixed::Unbound { sorted: true })?;
            let added = |report: &Report| (report.reads.mean_ns - raw) / 1000.0;
            let figures = (ms * 1000.0, added(&fixed), Some(added(&adaptive)));
            simulator.add("added-latency", &*name, "µs added", "unbound", figures);
            Ok(())
        })?;
    }
    Ok(())
}

fn instant(simulator: &mut Simulator<'_>) -> io::Result<()> {
    let rows = published::INSTANT_2020.rows();
    let Some(mib_s) = rows.iter().find_map(|row| row.number::<f64>("average_mib_s")) else {
        return Ok(());
    };
    let preset = Preset { cipher: NO_CIPHER, ..ZERO };
    let job = job(Pattern::RandRw, 4096, 1);
    let raw = simulator.raw(preset, job)?.mb_s;
    let both = simulator.both(preset, job, Fixed::Unbound { sorted: true })?;
    let figures = (mib_s * 1.048_576, both.fixed.mb_s, Some(both.adaptive.mb_s));
    simulator.add("instant", "average, null cipher", "MB/s", "unbound", figures);
    simulator.beside_raw(raw);
    Ok(())
}

/// Two disks were measured and one is modelled: ratios to raw.
fn sorted(simulator: &mut Simulator<'_>) -> io::Result<()> {
    let rows = published::PARALLEL_2013.rows();
    let speed = |dispatch: &str| {
        let row = rows.iter().find(|row: &&Published| {
            row.text("device").starts_with("2-disk") && row.text("dispatch") == dispatch
        });
        row.and_then(|row| row.number::<f64>("mb_s"))
    };
    let job = Job { requests: 400, ..job(Pattern::Write, 256 << 10, 16) };
    let raw = simulator.raw(DISK, job)?.mb_s;
    let Both { fixed, adaptive } = simulator.both(DISK, job, Fixed::Unbound { sorted: true })?;
    if let Some((of, base)) = speed("hand-built dispatch").zip(speed("none (raw)")) {
        let figures = (of / base, fixed.mb_s / raw, Some(adaptive.mb_s / raw));
        simulator.add("sorted-writes", "sorted", "of raw", "unbound", figures);
        simulator.beside_raw(1.0);
    }
    let unsorted = Fixed::Unbound { sorted: false };
    let unsorted = simulator.run(DISK, DISK.cipher, job, unsorted)?.mb_s / raw;
    // "8 times slower than one worker": the disk of the model has no scheduler either.
    let figures = (1.0 / 8.0, unsorted, Some(adaptive.mb_s / raw));
    simulator.add("sorted-writes", "not sorted, CFQ", "of raw", "unbound,unsorted", figures);
    // `docs/models.md` compares the seeks of the model with it.
    simulator.fitted(true);
    Ok(())
}

fn merged(simulator: &mut Simulator<'_>, scale: Scale) -> io::Result<()> {
    let pattern = |row: &Published| match row.text("pattern") {
        "sequential read" => Pattern::Read,
        _ => Pattern::Write,
    };
    for row in published::REQUEST_BASED_2015.rows().iter().filter(|row| row.text("tool") == "dd") {
        let Some(block) = row.number("block_size") else { continue };
        let job = job(pattern(row), block, 1);
        let name = format!("{} {}", size_name(block), job.pattern.name());
        let how = (Fixed::Merge, "request-based", true);
        let figures = (row.number("no_encryption"), row.number("request_based"));
        simulator.pair(("request-merge", &name), BEAGLEBONE, job, how, figures)?;
        let Some(bio) = row.number("bio_based") else { continue };
        simulator.attempt(&format!("request-merge, {name}, bio-based"), |simulator| {
            let fixed = simulator.run(BEAGLEBONE, PER_SECTOR, job, Fixed::Inline)?.mb_s;
            let adaptive =
                simulator.run(BEAGLEBONE, BEAGLEBONE.cipher, job, PolicyKind::Adaptive)?.mb_s;
            let raw = simulator.raw(BEAGLEBONE, job)?.mb_s;
            let row = format!("{name}, bio-based");
            let figures = (bio, fixed, Some(adaptive));
            simulator.add("request-merge", row, "MB/s", "inline, 512 bytes a call", figures);
            // See `PER_SECTOR`.
            simulator.fitted(job.pattern == Pattern::Read);
            simulator.beside_raw(raw);
            Ok(())
        })?;
    }
    let sizes = published::BLOCK_SIZES_2015.rows();
    for row in sizes.iter().filter(|row| row.number("block_size") != Some(65536_u64)) {
        if scale == Scale::Quick {
            break;
        }
        let Some(block) = row.number("block_size") else { continue };
        let job = job(pattern(row), block, 1);
        let name = format!("{} {}", size_name(block), job.pattern.name());
        let how = (Fixed::Merge, "request-based", true);
        let figures = (None, row.number("request_based_mb_s"));
        simulator.pair(("request-merge", &name), BEAGLEBONE, job, how, figures)?;
    }
    Ok(())
}

fn many(simulator: &mut Simulator<'_>, scale: Scale) -> io::Result<()> {
    let how = (scale, simulator.changes);
    let cells = drives::cells();
    let mut runs = Vec::new();
    for (at, cell) in cells.iter().enumerate() {
        runs.push((at, Contender::Ucrypt(PolicyKind::Adaptive)));
        let of = cell.published.iter().filter(|of| drives::is_simulated(of) && of.mb_s.is_some());
        runs.extend(of.filter_map(|of| Some((at, of.contender.parse().ok()?))));
    }
    let work = MANY_WORK * drives::virtual_ms(how.0, how.1) as f64;
    if simulator.work.is_counted {
        simulator.work.add(work * runs.len() as f64);
        return Ok(());
    }
    let before = simulator.work.done.get();
    let tick = |done: usize| {
        simulator.work.done.set(before + work * done as f64);
        (simulator.progress)("many-drives", simulator.work.share());
    };
    let speeds = drives::run_all(&cells, &runs, how, (simulator.stop, &tick));
    let gb_s = |at, contender| {
        let found = runs.iter().position(|run| *run == (at, contender));
        match found.map(|found| &speeds[found]) {
            Some(Ok(mb_s)) => Ok(mb_s / 1000.0),
            // Several rows may need it.
            Some(Err(error)) => Err(io::Error::new(error.kind(), error.to_string())),
            None => Err(io::Error::other(format!("{contender} was not simulated"))),
        }
    };
    for (at, cell) in cells.iter().enumerate() {
        for of in cell.published.iter().filter(|of| drives::is_simulated(of)) {
            let Some((mb_s, contender)) = of.mb_s.zip(of.contender.parse().ok()) else { continue };
            let policy = of.contender.trim_start_matches("ucrypt:");
            let row = format!("{}, {policy}", cell.name);
            simulator.attempt(&format!("many-drives, {row}"), |simulator| {
                let simulated = gb_s(at, contender)?;
                let adaptive = gb_s(at, Contender::Ucrypt(PolicyKind::Adaptive))?;
                let figures = (mb_s / 1000.0, simulated, Some(adaptive));
                simulator.add("many-drives", row, "GB/s", policy, figures);
                simulator.fitted(drives::is_fitted(cell, policy));
                Ok(())
            })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::by_name;

    #[test]
    fn every_experiment_has_rows_that_repeat_published_figures() {
        let go = AtomicBool::new(false);
        for experiment in ["request-merge", "sorted-writes", "added-latency", "instant"] {
            let done = rows(&[experiment], Scale::Quick, Changes::default(), (&go, &|_, _| {}));
            assert!(!done.rows.is_empty() && !done.interrupted, "{experiment}");
            assert!(done.failed.is_empty(), "{:?}", done.failed);
            for row in done.rows {
                assert!(row.published > 0.0 && row.simulated.is_finite(), "{row:?}");
                assert_eq!(row.adaptive.is_none(), row.policy == RAW, "{row:?}");
            }
        }
        // Stopped at its first row: that is kept.
        let stop = AtomicBool::new(false);
        let progress = |_: &str, _: f64| stop.store(true, Ordering::Relaxed);
        let experiments = ["instant", "added-latency"];
        let ended = rows(&experiments, Scale::Quick, Changes::default(), (&stop, &progress));
        assert_eq!((ended.rows.len(), ended.interrupted), (1, true));
    }

    #[test]
    fn the_share_that_is_done_grows_to_the_whole() {
        let go = AtomicBool::new(false);
        let seen = std::cell::RefCell::new(Vec::new());
        let progress = |_: &str, share: f64| seen.borrow_mut().push(share);
        let changes = Changes { virtual_ms: Some(1), ..Changes::default() };
        let experiments = ["instant", "request-merge", "many-drives", "added-latency"];
        let done = rows(&experiments, Scale::Quick, changes, (&go, &progress));
        assert!(done.failed.is_empty(), "{:?}", done.failed);
        let seen = seen.into_inner();
        assert!(seen.len() >= done.rows.len() && seen.is_sorted(), "{seen:?}");
        assert!(seen[0] < 0.5 && seen.last().is_some_and(|it| (it - 1.0).abs() < 1e-9), "{seen:?}");
    }

    /// One thing stands for what was published, whether it is measured or simulated.
    #[test]
    fn the_same_policy_stands_for_a_published_figure_in_a_run_and_in_virtual_time() {
        let go = AtomicBool::new(false);
        let mut compared = 0;
        for experiment in ["block-sweep", "other-ssd", "workqueues", "instant", "added-latency"] {
            let cells = by_name(experiment).expect("an experiment").cells(Scale::Full);
            let done = rows(&[experiment], Scale::Quick, Changes::default(), (&go, &|_, _| {}));
            for row in done.rows.iter().filter(|row| row.policy != RAW) {
                let name = format!("ucrypt:{}", row.policy);
                let figures = cells.iter().flat_map(|cell| &cell.published).filter(|it| {
                    let all = [it.mb_s, it.mean_us, it.p99_us];
                    all.into_iter().flatten().any(|its| (its / row.published - 1.0).abs() < 1e-9)
                });
                let stand: Vec<_> = figures.map(|it| it.contender).collect();
                assert!(stand.contains(&&*name), "{row:?}: {stand:?}");
                compared += 1;
            }
        }
        assert!(compared > 20, "{compared}");
    }

    #[test]
    fn each_job_of_a_published_load_has_a_queue() {
        let go = AtomicBool::new(false);
        let changes = Changes::default();
        let (stop, progress): (_, Progress<'_>) = (&go, &|_, _| {});
        let simulator = simulator_until(&go);
        // A core's cipher makes 2 GB/s, so that the device is faster than one queue and not than four.
        let at = |queues, depth| {
            let load = Load { job: job(Pattern::RandRead, 1 << 20, depth), queues };
            simulator.run(OPTANE, OPTANE.cipher, load, Fixed::Inline).expect("simulated").mb_s
        };
        let (one, four) = (at(1, 128), at(4, 32));
        assert!(four > 1.1 * one, "{four} of four queues, {one} of one");
        let Rows { rows, .. } = rows(&["workqueues"], Scale::Quick, changes, (stop, progress));
        let row = rows.iter().find(|row| row.row == "1m/32/4, crypt no_workqueues");
        assert!((row.expect("a row").simulated - four).abs() < 1e-9 * four, "{row:?}");
    }

    #[test]
    fn rows_that_a_preset_was_fitted_to_are_marked_and_counted_apart() {
        let go = AtomicBool::new(false);
        let changes = Changes::default();
        let experiments = ["request-merge", "sorted-writes"];
        let Rows { rows, .. } = rows(&experiments, Scale::Quick, changes, (&go, &|_, _| {}));
        let tests: Vec<_> = rows.iter().filter(|row| !row.fitted).map(|row| &*row.row).collect();
        assert_eq!(tests, ["64k write, bio-based", "sorted"]);
        let simulation = Simulation { rows: rows.clone(), ..simulation() };
        let (all, of_tests) = simulation.counts();
        assert_eq!((all.all, of_tests.all), (rows.len(), 2));
        assert!(of_tests.good <= all.good && all.good <= all.all, "{all:?}, {of_tests:?}");
        assert!(simulation.verdict().ends_with(" of 2."), "{}", simulation.verdict());
        let json = serde_json::to_string(&simulation).expect("JSON");
        assert_eq!(serde_json::from_str::<Simulation>(&json).expect("read"), simulation);
    }

    /// A simulation without rows.
    fn simulation() -> Simulation {
        Simulation {
            version: "1".into(),
            command: "ucrypt lab sim".into(),
            scale: Scale::Quick,
            changes: Changes::default(),
            rows: Vec::new(),
            checks: Vec::new(),
            failed: Vec::new(),
            interrupted: false,
        }
    }

    #[test]
    fn rows_in_which_adaptive_is_worse_by_any_amount_are_listed_the_worst_first() {
        let row = |row: &str, unit: &str, simulated, adaptive, raw| Row {
            experiment: "workqueues".into(),
            row: row.into(),
            unit: unit.into(),
            published: 1.0,
            policy: "unbound".into(),
            simulated,
            adaptive,
            raw,
            fitted: false,
        };
        let rows = vec![
            row("raw", "MB/s", 100.0, None, None),
            row("as fast", "MB/s", 100.0, Some(100.0), None),
            row("nearly raw", "MB/s", 90.0, Some(97.5), Some(100.0)),
            row("a little slower", "MB/s", 100.0, Some(99.5), Some(100.0)),
            row("slower", "MB/s", 100.0, Some(90.0), Some(120.0)),
            row("later", "µs", 100.0, Some(200.0), Some(100.0)),
            row("sooner", "µs added", 100.0, Some(50.0), None),
            row("nothing", "MB/s", 0.0, Some(1.0), None),
        ];
        let mut simulation = Simulation { rows, ..simulation() };
        let short =
            simulation.shortfalls().into_iter().map(|it| (&*it.row.row, it.other, it.ratio));
        let expected = [
            ("later", "unbound", 0.5),
            ("later", RAW, 0.5),
            ("slower", RAW, 0.75),
            ("slower", "unbound", 0.9),
            ("a little slower", "unbound", 0.995),
        ];
        assert_eq!(short.collect::<Vec<_>>(), expected);
        // Of one load there may be two rows.
        let again = simulation.rows[4].clone();
        simulation.rows.push(Row { policy: "inline".into(), simulated: 80.0, ..again });
        let said = simulation.short();
        assert!(said.contains("in 3 of 7 rows") && said.contains("raw in 2 of 4"), "{said}");
        simulation.rows.truncate(3);
        assert!(simulation.short().starts_with("Nowhere"), "{}", simulation.short());
    }

    fn simulator_until(stop: &AtomicBool) -> Simulator<'_> {
        let (changes, work) = (Changes::default(), Work::default());
        let (rows, failed) = (Vec::new(), Vec::new());
        Simulator { changes, stop, progress: &|_, _| {}, work, rows, failed }
    }

    #[test]
    fn a_row_that_fails_loses_no_other_one() {
        let go = AtomicBool::new(false);
        let mut simulator = simulator_until(&go);
        let fails = |_: &mut Simulator<'_>| Err(io::Error::other("too many steps"));
        simulator.attempt("a, 4k", fails).expect("it goes on");
        simulator.experiment("instant", Scale::Quick).expect("it goes on");
        assert_eq!(
            (simulator.rows.len(), &*simulator.failed),
            (1, &["a, 4k: too many steps".into()][..])
        );
        let (rows, failed) = (simulator.rows, simulator.failed);
        let said = Simulation { rows, failed, ..simulation() }.verdict();
        assert!(said.contains("1 rows failed: a, 4k: too many steps"), "{said}");
        // A stop is none.
        let stop = AtomicBool::new(true);
        let mut simulator = simulator_until(&stop);
        let stops =
            |_: &mut Simulator<'_>| Err(io::Error::new(io::ErrorKind::Interrupted, INTERRUPTED));
        assert!(simulator.attempt("a, 4k", stops).is_err() && simulator.failed.is_empty());
    }

    #[test]
    fn a_change_reaches_every_experiment_and_is_named() {
        let go = AtomicBool::new(false);
        let changes = Changes {
            cores: Some(2),
            threads_per_core: Some(2),
            drives: Some(3),
            cipher_ns: Some(7.0),
            wake_ns: Some(90_000),
            enqueue_ns: Some(640),
            virtual_ms: Some(5),
            measured: None,
        };
        assert_eq!(Changes::default().describe(), None);
        let named = changes.describe().expect("changes");
        for needed in ["2 cores", "2 share", "3 drives", "7 ns", "90000 ns", "640 ns", "5 ms"] {
            assert!(named.contains(needed), "{needed}: {named}");
        }
        // A file of an earlier version has fewer of them.
        let earlier: Changes = serde_json::from_str(r#"{"cores":2}"#).expect("JSON");
        assert_eq!(earlier, Changes { cores: Some(2), ..Changes::default() });
        let at = |changes, experiment: &str| {
            let Rows { rows, .. } = rows(&[experiment], Scale::Quick, changes, (&go, &|_, _| {}));
            rows.into_iter().filter_map(|row| row.adaptive).collect::<Vec<_>>()
        };
        assert_ne!(at(changes, "added-latency"), at(Changes::default(), "added-latency"));
    }

    #[test]
    fn the_card_and_the_engine_of_2015_are_reproduced() {
        let go = AtomicBool::new(false);
        let rows = rows(&["request-merge"], Scale::Full, Changes::default(), (&go, &|_, _| {}));
        for row in rows.rows {
            println!("{row:?}");
            assert!(row.is_trusted(), "{row:?}: {:?}", row.error());
        }
    }

    /// A command of the card costs a thousand times what the model assumes, and nothing tells it.
    #[test]
    fn adaptive_learns_that_a_card_wants_whole_requests() {
        let go = AtomicBool::new(false);
        let rows = rows(&["request-merge"], Scale::Quick, Changes::default(), (&go, &|_, _| {}));
        let Rows { rows, .. } = rows;
        for name in ["64k read, request-based", "64k write, request-based"] {
            let row = rows.iter().find(|row| row.row == name).expect("a published row");
            // The first quarter of the 400 requests is not counted.
            assert!(row.adaptive > Some(0.85 * row.simulated), "{row:?}");
        }
    }
}
