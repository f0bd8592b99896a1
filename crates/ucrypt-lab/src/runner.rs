//! Carries a run out: every contender in every cell, in interleaved rounds.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::catalogue::{Cell, Description, Method, Scale, by_name};
use crate::contender::{Contender, PEERS};
use crate::load::{INTERRUPTED, Load, Times};
use crate::process;
use crate::sample::Sample;
use crate::served::{Generator, Images};
use crate::sim;
use crate::store::{About, LeftOut, Record, Settings, Store};
use crate::tree::Trees;

/// What a run needs from its caller.
pub struct Surroundings<'a> {
    /// The command `ucrypt`, which serves scratch images.
    pub ucrypt: &'a Path,
    /// Set when the run is to end.
    pub stop: &'a AtomicBool,
    /// Is told before each measurement.
    pub progress: &'a dyn Fn(Progress),
}

/// How far a run is.
#[derive(Debug, Clone)]
pub struct Progress {
    /// Measurements made, those of an earlier run included.
    pub done: u64,
    /// All measurements.
    pub total: u64,
    /// Estimate of the remaining time.
    pub left: Duration,
    /// The next measurement.
    pub what: String,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every measurement was made, or failed and is recorded as such.
    Complete,
    /// The caller stopped it; results so far are kept.
    Interrupted,
}

/// Least time of a measurement in slices, in milliseconds.
const SLICES_MS: u64 = 300;

/// Seconds that a measurement takes besides its load: served contenders are started anew.
const SERVED_S: f64 = 0.7;
const STEP_S: f64 = 0.02;

/// What a run of one experiment consists of.
struct Plan {
    description: &'static Description,
    cells: Vec<Cell>,
    contenders: Vec<Contender>,
    left_out: Vec<LeftOut>,
}

impl Settings {
    fn times(&self, method: Method) -> Times {
        // A distribution of slices needs slices.
        let least = if method == Method::Slices { SLICES_MS } else { 0 };
        let measured = Duration::from_millis(self.time_ms.max(least));
        Times { ramp: measured / 4, measured }
    }

    fn plan(&self, description: &'static Description) -> Plan {
        let mut left_out = Vec::new();
        let mut leave = |what: &dyn ToString, why: &str| {
            let (experiment, what) = (description.name.to_owned(), what.to_string());
            left_out.push(LeftOut { experiment, what, why: why.to_owned() });
        };
        let mut cells = description.cells(self.scale);
        if description.has_target() {
            cells.retain(|cell| {
                let fits = cell.block_bytes <= self.len;
                if !fits {
                    leave(&cell.name, "the block is longer than the target; use a larger --size");
                }
                fits
            });
        }
        let wanted = match (&self.against, description.method) {
            (Some(named), method) if method != Method::Tree => named.clone(),
            (_, Method::Tree) => vec![
                Contender::Loop,
                Contender::UcryptNone,
                Contender::UcryptLoop(ucrypt_engine::PolicyKind::Adaptive),
            ],
            _ => {
                let mut wanted: Vec<Contender> =
                    description.against.iter().filter_map(|name| name.parse().ok()).collect();
                if description.peers {
                    wanted.extend(PEERS);
                }
                wanted
            }
        };
        let mut contenders = Vec::new();
        for contender in wanted {
            match self.obstacle(description, contender) {
                Some(why) => leave(&contender, &why),
                None => contenders.push(contender),
            }
        }
        if description.has_target() {
            let base = [Contender::Raw, Contender::Null, Contender::Memory];
            let served = contenders.iter().any(|contender| contender.is_served());
            let file = served.then_some(Contender::File);
            for ceiling in base.into_iter().chain(file).rev() {
                let same = ceiling == Contender::Memory && self.on.is_memory();
                if !same && !contenders.contains(&ceiling) {
                    contenders.insert(0, ceiling);
                }
            }
        }
        Plan { description, cells, contenders, left_out }
    }

    /// Why a contender cannot take part, with the remedy.
    fn obstacle(&self, description: &Description, contender: Contender) -> Option<String> {
        if let Some((program, package)) = contender.program()
            && !process::is_installed(program)
        {
            return Some(format!(
                "{program} is not installed; install it with: apt-get install {package}"
            ));
        }
        if contender.needs_root() && !rustix::process::geteuid().is_root() {
            return Some("it attaches a loop device, which needs root".into());
        }
        if description.method == Method::Drives && !matches!(contender, Contender::Ucrypt(_)) {
            return Some("only ucrypt's policies run in virtual time".into());
        }
        if !contender.is_served() || description.method == Method::Tree {
            return None;
        }
        if matches!(description.method, Method::Order | Method::Slices) {
            return Some("this experiment looks into the engine; compare ucrypt's policies".into());
        }
        if self.on.scratch_dir().is_none() {
            return Some(format!(
                "servers need scratch images beside the target, and {} has no directory; run on \
                 memory, a file or a directory",
                self.on
            ));
        }
        None
    }

    /// Everything that a run with these settings leaves out.
    ///
    /// # Errors
    /// Names an experiment that does not exist.
    pub fn left_out(&self) -> Result<Vec<LeftOut>, String> {
        Ok(self.plans()?.into_iter().flat_map(|plan| plan.left_out).collect())
    }

    fn plans(&self) -> Result<Vec<Plan>, String> {
        let plan = |name: &String| {
            let description =
                by_name(name).ok_or_else(|| format!("no experiment is called {name}"));
            description.map(|description| self.plan(description))
        };
        self.experiments.iter().map(plan).collect()
    }

    /// About how long a run takes.
    ///
    /// # Errors
    /// Names an experiment that does not exist.
    pub fn estimate(&self) -> Result<Duration, String> {
        let plans = self.plans()?;
        let seconds = plans.iter().map(|plan| {
            let one: f64 =
                plan.contenders.iter().map(|it| self.step_s(plan.description, *it)).sum();
            one * plan.cells.len() as f64 * f64::from(rounds(plan.description, self))
        });
        Ok(Duration::from_secs_f64(seconds.sum()))
    }

    fn step_s(&self, description: &Description, contender: Contender) -> f64 {
        match (description.method, self.scale) {
            (Method::Tree, Scale::Full) => 40.0,
            (Method::Tree, Scale::Quick) => 6.0,
            (Method::Drives, Scale::Full) => 20.0,
            (Method::Drives, Scale::Quick) => 3.0,
            _ => {
                let times = self.times(description.method);
                let load = (times.ramp + times.measured).as_secs_f64() + STEP_S;
                if contender.is_served() { load + SERVED_S } else { load }
            }
        }
    }
}

/// Virtual time gives the same result each time.
fn rounds(description: &Description, settings: &Settings) -> u32 {
    if description.method == Method::Drives { 1 } else { settings.rounds.max(1) }
}

/// See [`run`].
const FAILURES_MAX: usize = 3;

/// Carries out what is left of a run.
///
/// # Errors
/// If results cannot be kept, or a target cannot be used at all. A contender that fails is recorded
/// and left out of the other rounds of that cell, and after `FAILURES_MAX` cells of the rest of
/// its experiment.
pub fn run(about: &About, store: &mut Store, around: &Surroundings<'_>) -> io::Result<Outcome> {
    let settings = &about.settings;
    let plans = settings.plans().map_err(io::Error::other)?;
    let mut steps = Vec::new();
    for (at, plan) in plans.iter().enumerate() {
        for round in 0..rounds(plan.description, settings) {
            for cell in 0..plan.cells.len() {
                let count = plan.contenders.len();
                // Rotated, so that no contender is always the first.
                steps.extend(
                    (0..count).map(|turn| (at, cell, (turn + round as usize) % count, round)),
                );
            }
        }
    }
    let mut clock = Pace::new(&plans, settings, steps.len());
    let mut stage = Stage::default();
    let mut failed: HashMap<(usize, Contender), Vec<String>> = HashMap::new();
    for (at, cell, contender, round) in steps {
        let plan = &plans[at];
        let (cell, contender) = (&plan.cells[cell], plan.contenders[contender]);
        let key = (plan.description.name.to_owned(), cell.name.clone(), contender, round);
        let expected_s = settings.step_s(plan.description, contender);
        let gave_up = failed
            .get(&(at, contender))
            .is_some_and(|cells| cells.len() >= FAILURES_MAX || cells.contains(&cell.name));
        if store.has(&key) || gave_up {
            clock.skip(expected_s);
            continue;
        }
        if around.stop.load(Ordering::Relaxed) {
            return Ok(Outcome::Interrupted);
        }
        (around.progress)(clock.progress(format!("{}: {contender}, {}", key.0, key.1)));
        let started = Instant::now();
        let turn = Turn { at, plan, cell, contender, round };
        let ran = stage.step(&turn, settings, around);
        clock.done(expected_s, started.elapsed());
        let (experiment, cell, contender, round) = key;
        let mut record = Record { experiment, cell, contender, round, sample: None, error: None };
        match ran {
            Ok(sample) => record.sample = Some(sample),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                return Ok(Outcome::Interrupted);
            }
            Err(error) => {
                failed.entry((at, contender)).or_default().push(record.cell.clone());
                record.error = Some(error.to_string());
            }
        }
        store.add(&record)?;
    }
    (around.progress)(clock.progress(String::new()));
    Ok(Outcome::Complete)
}

/// A measurement.
struct Turn<'a> {
    /// Index of the experiment.
    at: usize,
    plan: &'a Plan,
    cell: &'a Cell,
    contender: Contender,
    round: u32,
}

/// What is open for the current experiment.
#[derive(Default)]
struct Stage {
    of: Option<usize>,
    bench: Option<Bench>,
    images: Option<Images>,
    trees: Option<Trees>,
}

impl Stage {
    fn step(
        &mut self,
        turn: &Turn<'_>,
        settings: &Settings,
        around: &Surroundings<'_>,
    ) -> io::Result<Sample> {
        let Turn { at, plan, cell, contender, round } = *turn;
        if self.of != Some(at) {
            // The target is released before it is opened again.
            *self = Self { of: Some(at), images: self.images.take(), ..Self::default() };
        }
        let region = settings.len / cell.block_bytes.max(1) * cell.block_bytes;
        let load = Load {
            cell,
            region_bytes: region,
            times: settings.times(plan.description.method),
            slices: plan.description.method == Method::Slices,
            seed: u64::from(round) + 1,
            requests: None,
        };
        match plan.description.method {
            Method::Tree => {
                let trees = match &mut self.trees {
                    Some(trees) => trees,
                    none => none.insert(Trees::new(settings.scale, around.ucrypt, around.stop)?),
                };
                trees.run(contender, &cell.name, around.stop)
            }
            Method::Drives => sim::drives::run(cell, contender, settings.scale, around.stop),
            _ if contender.is_served() => {
                let images = if let Some(images) = &self.images {
                    images
                } else {
                    let dir = settings.on.scratch_dir().ok_or_else(|| {
                        io::Error::other("there is no directory for scratch images")
                    })?;
                    let with = (around.ucrypt, !settings.on.is_memory());
                    let made =
                        Images::make(dir, settings.len, with, settings.generator, around.stop)?;
                    self.images.insert(made)
                };
                images.run(contender, load, around.stop)
            }
            method => {
                let bench = match &mut self.bench {
                    Some(bench) => bench,
                    none => {
                        let target = settings.on.open(settings.len).map_err(io::Error::other)?;
                        let bench = Bench::new(target, settings.len, method);
                        bench.fill(around.stop, &|_, _| {})?;
                        none.insert(bench)
                    }
                };
                bench.run(contender, load, around.stop)
            }
        }
    }
}

/// Counts measurements and estimates the remaining time.
struct Pace {
    done: u64,
    total: u64,
    /// Seconds that the measurements left were expected to take.
    left_s: f64,
    /// Of the measurements made: expected, and taken.
    expected_s: f64,
    taken_s: f64,
}

impl Pace {
    fn new(plans: &[Plan], settings: &Settings, total: usize) -> Self {
        let left_s = plans.iter().map(|plan| {
            let one: f64 =
                plan.contenders.iter().map(|it| settings.step_s(plan.description, *it)).sum();
            one * plan.cells.len() as f64 * f64::from(rounds(plan.description, settings))
        });
        Self { done: 0, total: total as u64, left_s: left_s.sum(), expected_s: 0.0, taken_s: 0.0 }
    }

    fn skip(&mut self, expected_s: f64) {
        self.done += 1;
        self.left_s = (self.left_s - expected_s).max(0.0);
    }

    fn done(&mut self, expected_s: f64, taken: Duration) {
        self.skip(expected_s);
        self.expected_s += expected_s;
        self.taken_s += taken.as_secs_f64();
    }

    fn progress(&self, what: String) -> Progress {
        let slower = if self.expected_s > 0.0 { self.taken_s / self.expected_s } else { 1.0 };
        let left = Duration::from_secs_f64((self.left_s * slower).clamp(0.0, 1e9));
        Progress { done: self.done, total: self.total, left, what }
    }
}

/// The generator for served contenders: fio where it is installed.
pub fn generator() -> Generator {
    if process::is_installed("fio") { Generator::Fio } else { Generator::BuiltIn }
}

/// Whether an error is a stop that somebody asked for.
pub fn is_interrupted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted && error.to_string() == INTERRUPTED
}
