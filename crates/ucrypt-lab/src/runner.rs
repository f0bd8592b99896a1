//! Carries a run out: every contender in every cell, in interleaved rounds.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ucrypt_export::fuse::{Transport, kernel_has_rings};

use crate::bench::Bench;
use crate::catalogue::{Cell, Description, EXPORTS, Method, Scale, by_name, size_name};
use crate::contender::{Contender, PEERS};
use crate::dd;
use crate::held::Held;
use crate::load::{Load, Times, is_stopped};
use crate::mounted;
use crate::ours::{Build, Image, Server, Way};
use crate::packages;
use crate::process;
use crate::sample::Sample;
use crate::served::{self, Filling, Generator, Images, Left, Service};
use crate::sim::{self, history::Changes};
use crate::store::{About, LeftOut, Record, Settings, Store};
use crate::target::{Target, no_memory};
use crate::tree::{self, Trees};

/// What a run needs from its caller.
pub struct Surroundings<'a> {
    /// The command `ucrypt`, which serves scratch images.
    pub ucrypt: &'a Path,
    /// Set when the run is to end.
    pub stop: &'a AtomicBool,
    /// Is told before each measurement, and while its target is written.
    pub progress: &'a dyn Fn(Progress),
    /// Gets what could not be ended.
    pub left: &'a Left,
    /// What the run is on.
    pub target: &'a Held,
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

/// Longest request of NBD, in bytes (NBD protocol, "Block size constraints": what a client may
/// assume). Servers end the connection at a longer one.
const NBD_BYTES_MAX: u64 = 32 << 20;

/// What a run of one experiment consists of.
pub(crate) struct Plan {
    description: &'static Description,
    cells: Vec<Cell>,
    contenders: Vec<Contender>,
    /// What sends the load of served contenders.
    generator: Generator,
    /// Bytes of the target.
    len: u64,
    left_out: Vec<LeftOut>,
}

impl Plan {
    /// How it is carried out.
    pub(crate) fn method(&self) -> Method {
        self.description.method
    }

    /// Whether it uses the target of the run.
    pub(crate) fn has_target(&self) -> bool {
        self.description.has_target()
    }

    /// Who takes part.
    pub(crate) fn contenders(&self) -> impl Iterator<Item = Contender> {
        self.contenders.iter().copied()
    }

    /// Whether a contender can carry out a cell. fio sends a block in one request; this program
    /// sends pieces.
    fn has(&self, contender: Contender, cell: &Cell) -> bool {
        if !self.description.has_target() || !contender.is_served() {
            return true;
        }
        if contender.below_file_system().is_some() {
            return cell.block_bytes <= mounted::file_bytes(self.len);
        }
        match self.generator {
            Generator::Fio => !contender.is_nbd() || cell.block_bytes <= NBD_BYTES_MAX,
            Generator::Dd => dd::sends(cell),
            Generator::BuiltIn => true,
        }
    }

    /// The contenders that have a cell, as often as it has them, with the time that each takes.
    fn seconds(&self, settings: &Settings) -> f64 {
        let pairs =
            self.cells.iter().flat_map(|cell| self.contenders.iter().map(move |it| (cell, it)));
        let had = pairs.filter(|(cell, contender)| self.has(**contender, cell));
        let once: f64 = had.map(|(_, it)| settings.step_s(self.description, *it)).sum();
        once * f64::from(rounds(self.description, settings))
    }
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
        if description.method == Method::Tree {
            cells.retain(|cell| {
                let missing = tree::no_maker(&cell.name);
                if let Some(why) = &missing {
                    leave(&cell.name, why);
                }
                missing.is_none()
            });
        }
        let mut contenders = Vec::new();
        for contender in self.wanted(description) {
            let obstacle =
                || self.obstacle(description, contender).or_else(|| self.no_memory(contender));
            let below = contender.below_file_system();
            let over_loop = contender.is_dm_crypt() && !self.on.is_device();
            let below = below.or(over_loop.then_some(Contender::Loop));
            let programs = [Some(contender), below].into_iter().flatten();
            let missing = programs.filter_map(Contender::program).find_map(packages::missing);
            match missing.or_else(obstacle) {
                Some(why) => leave(&contender, &why),
                None => contenders.push(contender),
            }
        }
        if description.has_target() {
            let base = [Contender::Raw, Contender::Null, Contender::Memory];
            let served = contenders.iter().any(|contender| contender.is_served());
            let file = served.then_some(Contender::File);
            for ceiling in base.into_iter().chain(file).rev() {
                let same =
                    ceiling == Contender::Memory && *self.on_for(description) == Target::Memory;
                if same || contenders.contains(&ceiling) {
                    continue;
                }
                match self.no_memory(ceiling) {
                    Some(why) => leave(&ceiling, &why),
                    None => contenders.insert(0, ceiling),
                }
            }
        }
        let is_loaded = |it: &Contender| it.is_served() && it.below_file_system().is_none();
        let is_loaded = description.has_target() && contenders.iter().any(is_loaded);
        if let Some(why) = self.no_fio(packages::missing("fio")).filter(|_| is_loaded) {
            leave(&"fio", &why);
        }
        let through = contenders.iter().position(|it| *it == Contender::UcryptLoopExt4);
        if let Some(at) = through.filter(|_| !contenders.contains(&Contender::LoopExt4)) {
            contenders.insert(at, Contender::LoopExt4);
        }
        if description.method == Method::Tree {
            add_ceilings_of_tree(&mut contenders);
        }
        let mut plan = Plan {
            description,
            cells,
            contenders,
            generator: self.generator,
            len: self.len,
            left_out: Vec::new(),
        };
        let long: Vec<_> = plan
            .contenders
            .iter()
            .copied()
            .filter(|contender| plan.cells.iter().any(|cell| !plan.has(*contender, cell)))
            .collect();
        for contender in long {
            let (what, why) = if contender.below_file_system().is_some() {
                let most = size_name(mounted::file_bytes(self.len));
                let what = format!("{contender} at blocks above {most}");
                (what, "the block is longer than the file; use a larger --size")
            } else if self.generator == Generator::Dd {
                let what = format!("{contender} in cells that are not sequential or of depth 1");
                (what, "dd sends one request after the other, in their order; use another --load")
            } else {
                let what = format!("{contender} at blocks above {}", size_name(NBD_BYTES_MAX));
                let why = "fio sends a block in one NBD request, and servers take no longer ones; use \
                           --load built-in, which sends pieces";
                (what, why)
            };
            leave(&what, why);
        }
        plan.left_out = left_out;
        plan
    }

    /// The contenders of an experiment, if nothing keeps them from it.
    fn wanted(&self, description: &Description) -> Vec<Contender> {
        if let Some(named) = &self.against {
            return named.clone();
        }
        let mut wanted: Vec<Contender> =
            description.against.iter().filter_map(|name| name.parse().ok()).collect();
        if description.peers {
            wanted.extend(PEERS);
        }
        if description.name == EXPORTS && self.before.is_some() {
            let before = |way| Server { build: Build::Before, ..Server::new(way) };
            wanted.extend([Way::Fuse, Way::Nbd, Way::Loop].map(before).map(Contender::Ours));
        }
        wanted
    }

    /// Whether the other build has an effect.
    pub fn has_other_build(&self) -> bool {
        let experiments = self.experiments.iter().filter_map(|name| by_name(name));
        let mut ours = experiments.flat_map(|of| self.wanted(of)).filter_map(Contender::ours);
        ours.any(|server| server.build != Build::This)
    }

    /// The programs of others on which the figures of a run depend, if they are installed.
    pub fn programs(&self) -> Vec<&'static str> {
        let mut programs = Vec::new();
        for description in self.experiments.iter().filter_map(|name| by_name(name)) {
            for contender in self.wanted(description) {
                if self.obstacle(description, contender).is_some() {
                    continue;
                }
                let below = contender.below_file_system();
                let started = [Some(contender), below].into_iter().flatten();
                programs.extend(started.filter_map(Contender::program));
                if contender.is_dm_crypt() && !self.on.is_device() {
                    programs.extend(Contender::Loop.program());
                }
                if description.method == Method::Tree {
                    let cells = description.cells(self.scale);
                    programs.extend(cells.iter().map(|cell| tree::maker(&cell.name)));
                }
                if below.is_some() {
                    // It reads there whatever makes the load of others.
                    programs.push("dd");
                    continue;
                }
                let is_loaded = contender.is_served() && description.method != Method::Tree;
                if is_loaded {
                    programs.extend(match self.generator {
                        Generator::Fio => Some("fio"),
                        Generator::Dd => Some("dd"),
                        Generator::BuiltIn => None,
                    });
                }
            }
        }
        programs
    }

    /// Whether an experiment does not run on the target of the run, but on `zero`.
    fn is_moved_to_zero(&self, description: &Description) -> bool {
        self.added_on_zero && description.method == Method::Added
    }

    /// What an experiment runs on.
    pub fn on_for(&self, description: &Description) -> &Target {
        if self.is_moved_to_zero(description) { &Target::Zero } else { &self.on }
    }

    /// Why a contender whose program is installed cannot take part, with the remedy.
    fn obstacle(&self, description: &Description, contender: Contender) -> Option<String> {
        if let Some(server) = contender.ours()
            && let Some(why) = self.no_server(server)
        {
            return Some(why);
        }
        if contender == Contender::Copy(Way::Fuse)
            && let Some(why) = served::no_mounts()
        {
            return Some(why);
        }
        let on = self.on_for(description);
        let is_on_device = on.is_device() && description.has_target();
        if contender.attaches_loop()
            && !(is_on_device && contender.is_dm_crypt())
            && let Some(why) = served::no_block_devices()
        {
            return Some(why);
        }
        if contender.is_dm_crypt()
            && let Some(why) = served::no_device_mapper()
        {
            return Some(why);
        }
        if description.method == Method::Drives && !matches!(contender, Contender::Ucrypt(_)) {
            return Some("only ucrypt's policies run in virtual time".into());
        }
        if description.method == Method::Tree {
            let is_choice = contender.is_device() && !contender.is_ceiling();
            let why =
                "it mounts block devices; compare loop, ucrypt-loop-none, ucrypt-loop, dm-crypt";
            return (!is_choice).then(|| why.into());
        }
        if !contender.is_served() {
            return None;
        }
        if matches!(description.method, Method::Order | Method::Slices) {
            return Some("this experiment looks into the engine; compare ucrypt's policies".into());
        }
        let all_reads = || description.cells(self.scale).iter().all(mounted::reads);
        if contender.below_file_system().is_some() && !all_reads() {
            return Some(
                "dd reads its file, one request after the other; block-sweep does that".into(),
            );
        }
        if self.generator == Generator::Dd && contender.is_nbd() {
            return Some("dd has no way to NBD; use another --load".into());
        }
        if is_on_device {
            let why = "it encrypts files in a directory, and a block device has none; run on a directory \
                       (--on)";
            return (contender == Contender::Gocryptfs).then(|| why.into());
        }
        if on.scratch_dir().is_none() {
            return Some(format!(
                "servers need scratch images beside the target, and {on} has no directory; run on \
                 memory, a file, a directory or a block device (--on)"
            ));
        }
        None
    }

    /// What a run lacks without fio, which is `missing`.
    fn no_fio(&self, missing: Option<String>) -> Option<String> {
        let why = missing.filter(|_| self.generator == Generator::BuiltIn)?;
        let lacks = "the lab's own generator makes the load on servers, and their processor times are \
                     left out";
        Some(format!("{why}; {lacks}"))
    }

    pub(crate) fn other_build(&self) -> Option<&Path> {
        self.before.as_ref().map(|before| before.command.as_path())
    }

    /// Why a server of ours cannot take part, with the remedy.
    fn no_server(&self, server: Server) -> Option<String> {
        if server.build != Build::This && self.before.is_none() {
            return Some("it is another build of ucrypt; name it by --before COMMAND".into());
        }
        if server.transport == Some(Transport::Ring) && !kernel_has_rings() {
            return Some(
                "FUSE over io_uring is off (Linux 6.14 and later have it); as root: echo Y \
                 >/sys/module/fuse/parameters/enable_uring"
                    .into(),
            );
        }
        if server.way == Way::Ublk
            && let Err(error) = File::options().read(true).write(true).open("/dev/ublk-control")
        {
            return Some(format!(
                "there are no ublk devices for it (/dev/ublk-control: {error}): modprobe ublk_drv, as root"
            ));
        }
        None
    }

    /// Why a contender does not get the memory that it takes.
    fn no_memory(&self, contender: Contender) -> Option<String> {
        if contender == Contender::Memory { no_memory(self.len) } else { None }
    }

    /// Everything that a run with these settings leaves out.
    ///
    /// # Errors
    /// Names an experiment that does not exist.
    pub fn left_out(&self) -> Result<Vec<LeftOut>, String> {
        Ok(self.plans()?.into_iter().flat_map(|plan| plan.left_out).collect())
    }

    pub(crate) fn plans(&self) -> Result<Vec<Plan>, String> {
        let plan = |name: &String| {
            let description =
                by_name(name).ok_or_else(|| format!("no experiment is called {name}"));
            description.map(|description| self.plan(description))
        };
        self.experiments.iter().map(plan).collect()
    }

    /// Who takes part, by experiment.
    ///
    /// # Errors
    /// Names an experiment that does not exist.
    pub fn contenders(&self) -> Result<BTreeMap<String, Vec<Contender>>, String> {
        let of = |plan: Plan| (plan.description.name.to_owned(), plan.contenders);
        Ok(self.plans()?.into_iter().map(of).collect())
    }

    /// About how long a run takes.
    ///
    /// # Errors
    /// Names an experiment that does not exist.
    pub fn estimate(&self) -> Result<Duration, String> {
        let plans = self.plans()?;
        Ok(Duration::from_secs_f64(plans.iter().map(|plan| plan.seconds(self)).sum()))
    }

    fn step_s(&self, description: &Description, contender: Contender) -> f64 {
        match (description.method, self.scale) {
            (Method::Tree, Scale::Full) => 40.0,
            (Method::Tree, Scale::Quick) => 6.0,
            (Method::Drives, Scale::Full) => 20.0,
            (Method::Drives, Scale::Quick) => 1.0,
            _ => {
                let times = self.times(description.method);
                let load = (times.ramp + times.measured).as_secs_f64() + STEP_S;
                if contender.below_file_system().is_some() {
                    // The file is written in each turn.
                    return load + 2.0 * SERVED_S + self.len as f64 / 1e9;
                }
                if contender.is_served() { load + SERVED_S } else { load }
            }
        }
    }
}

/// Adds what the run times of file systems are compared with, and the null cipher where ours encrypt.
fn add_ceilings_of_tree(contenders: &mut Vec<Contender>) {
    if !contenders.is_empty() && !contenders.contains(&Contender::Loop) {
        contenders.insert(0, Contender::Loop);
    }
    let null = Contender::Ours(Server::new(Way::Loop).plain());
    let is_ours = |it: &Contender| it.ours().is_some_and(|server| server.image != Image::Plain);
    let first = contenders.iter().position(is_ours);
    if let Some(at) = first.filter(|_| !contenders.contains(&null)) {
        contenders.insert(at, null);
    }
}

/// Virtual time gives the same result each time.
fn rounds(description: &Description, settings: &Settings) -> u32 {
    if description.method == Method::Drives { 1 } else { settings.rounds.max(1) }
}

/// How much of a run there is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extent {
    /// Measurements that were to be made.
    pub planned: u64,
    /// Those of them that were neither made nor failed, nor were dropped because others had failed.
    pub missing: u64,
    /// Cells in which a contender has failed and never succeeded.
    pub failed: u64,
    /// Experiments without any measurement.
    pub untouched: Vec<&'static str>,
}

/// How much of a run its records are.
pub fn extent(about: &About, records: &[Record]) -> Extent {
    let mut extent = Extent::default();
    for description in about.settings.experiments.iter().filter_map(|name| by_name(name)) {
        let mut contenders = about.contenders.get(description.name).cloned().unwrap_or_default();
        let mut is_touched = false;
        // Rounds made, and rounds that failed.
        let mut counts: HashMap<(Contender, &str), (u64, u64)> = HashMap::new();
        for record in records.iter().filter(|record| record.experiment == description.name) {
            is_touched = true;
            if !contenders.contains(&record.contender) {
                contenders.push(record.contender);
            }
            let (made, failed) = counts.entry((record.contender, &record.cell)).or_default();
            *(if record.sample.is_some() { made } else { failed }) += 1;
        }
        let mut left_out = about.left_out.iter().filter(|it| it.experiment == description.name);
        let mut cells = description.cells(about.settings.scale);
        cells.retain(|cell| left_out.clone().all(|left| left.what != cell.name));
        if !is_touched {
            // Where nobody can take part, the notes say why.
            let has_turns = !contenders.is_empty() && !cells.is_empty();
            if has_turns || left_out.next().is_none() {
                extent.untouched.push(description.name);
            }
            continue;
        }
        let rounds = u64::from(rounds(description, &about.settings));
        let Settings { generator, len, .. } = about.settings;
        let plan = Plan { description, cells, contenders, generator, len, left_out: Vec::new() };
        for (cell, contender) in
            plan.cells.iter().flat_map(|cell| plan.contenders.iter().map(move |it| (cell, *it)))
        {
            if !plan.has(contender, cell) {
                continue;
            }
            let counted = counts.get(&(contender, cell.name.as_str()));
            let (made, failed) = counted.copied().unwrap_or_default();
            extent.planned += rounds;
            if made == 0 && failed > 0 {
                extent.failed += 1;
            } else {
                extent.missing += rounds.saturating_sub(made + failed);
            }
        }
    }
    extent
}

/// See [`Failures`].
const FAILURES_MAX: usize = 3;

/// Where contenders have succeeded and failed, by experiment.
#[derive(Default)]
struct Failures {
    succeeded: HashSet<(String, Contender, String)>,
    failed: HashMap<(String, Contender), Vec<String>>,
}

/// What becomes of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Made,
    /// It failed in this cell before and has never succeeded in it.
    Dropped,
    /// It failed in so many cells, and succeeded in none, that this one is not tried.
    GivenUp,
}

impl Failures {
    /// With the measurements of an earlier part of the run.
    fn of(store: &Store) -> Self {
        let done = store
            .done()
            .map(|(experiment, cell, contender, _)| (experiment.clone(), *contender, cell.clone()));
        Self { succeeded: done.collect(), failed: HashMap::new() }
    }

    /// Whether a contender is tried in a cell. Where it has succeeded once, it always is. One that
    /// has failed in [`FAILURES_MAX`] cells and succeeded in none is tried in no other one.
    fn fate(&self, experiment: &str, contender: Contender, cell: &str) -> Fate {
        let of = |cell: &str| (experiment.to_owned(), contender, cell.to_owned());
        let Some(cells) = self.failed.get(&(experiment.to_owned(), contender)) else {
            return Fate::Made;
        };
        if self.succeeded.contains(&of(cell)) {
            return Fate::Made;
        }
        if cells.iter().any(|failed| failed == cell) {
            return Fate::Dropped;
        }
        let any = self.succeeded.iter().any(|(of, it, _)| of == experiment && *it == contender);
        if cells.len() >= FAILURES_MAX && !any { Fate::GivenUp } else { Fate::Made }
    }

    fn add(&mut self, record: &Record) {
        let Record { experiment, cell, contender, .. } = record;
        if record.sample.is_some() {
            self.succeeded.insert((experiment.clone(), *contender, cell.clone()));
            return;
        }
        let cells = self.failed.entry((experiment.clone(), *contender)).or_default();
        if !cells.contains(cell) {
            cells.push(cell.clone());
        }
    }
}

/// The order of `count` contenders in a round: each begins equally often, and each follows each other one equally
/// often, in `count` rounds if that is even and in twice as many if it is not (E. J. Williams, Australian Journal of
/// Chemistry 2, 1949). What a contender leaves behind in caches and in the disk falls on all.
fn turns(count: usize, round: usize) -> Vec<usize> {
    // 0, 1, n-1, 2, n-2 …: all steps differ.
    let step = |at: usize| if at % 2 == 1 { at.div_ceil(2) } else { (count - at / 2) % count };
    let mut order: Vec<usize> = (0..count).map(step).collect();
    let mut shift = round;
    if count % 2 == 1 {
        // Of an odd number each step comes twice, in one of two directions.
        if round % 2 == 1 {
            order.reverse();
        }
        shift = round / 2;
    }
    order.into_iter().map(|at| (at + shift) % count).collect()
}

/// Carries out what is left of a run.
///
/// # Errors
/// If results cannot be kept, or a target cannot be used at all. A contender that fails is recorded
/// and left out of the other rounds of that cell, unless it has succeeded there; one that has
/// failed in three cells and succeeded in none is recorded as failed in the others. A full disk is
/// nobody's failure: it ends the run, which can go on when there is room.
pub fn run(about: &About, store: &mut Store, around: &Surroundings<'_>) -> io::Result<Outcome> {
    let settings = &about.settings;
    let plans = settings.plans().map_err(io::Error::other)?;
    let mut steps = Vec::new();
    for (at, plan) in plans.iter().enumerate() {
        for round in 0..rounds(plan.description, settings) {
            for cell in 0..plan.cells.len() {
                let turns = turns(plan.contenders.len(), round as usize).into_iter();
                let had = turns.filter(|it| plan.has(plan.contenders[*it], &plan.cells[cell]));
                steps.extend(had.map(|contender| (at, cell, contender, round)));
            }
        }
    }
    let mut clock = Pace::new(&plans, settings, steps.len());
    let mut stage = Stage::default();
    let mut failures = Failures::of(store);
    for (at, cell, contender, round) in steps {
        let plan = &plans[at];
        let (cell, contender) = (&plan.cells[cell], plan.contenders[contender]);
        let key = (plan.description.name.to_owned(), cell.name.clone(), contender, round);
        let expected_s = settings.step_s(plan.description, contender);
        let fate = failures.fate(&key.0, contender, &key.1);
        if store.has(&key) || fate == Fate::Dropped {
            clock.skip(expected_s);
            continue;
        }
        if around.stop.load(Ordering::Relaxed) {
            return Ok(Outcome::Interrupted);
        }
        let (experiment, cell_name, contender, round) = key;
        let mut record =
            Record { experiment, cell: cell_name, contender, round, sample: None, error: None };
        if fate == Fate::GivenUp {
            clock.skip(expected_s);
            record.error = Some(format!(
                "not tried, because it had failed in {FAILURES_MAX} cells and succeeded in none"
            ));
        } else {
            let what = format!("{}: {contender}, {}", record.experiment, record.cell);
            (around.progress)(clock.progress(what));
            let started = Instant::now();
            let turn = Turn { at, plan, cell, contender, round };
            let filling = |done: u64, all: u64| {
                let percent = 100 * done / all.max(1);
                let what = format!("{}: writes what is measured, {percent} %", record.experiment);
                (around.progress)(clock.progress(what));
            };
            let ran = stage.step(&turn, about, around, &filling);
            clock.done(expected_s, started.elapsed());
            match ran {
                Ok(sample) => record.sample = Some(sample),
                Err(error) if is_stopped(&error, around.stop) => {
                    return Ok(Outcome::Interrupted);
                }
                Err(error) if is_full(&error) => {
                    let Record { experiment, contender, .. } = record;
                    let what = format!("{experiment}: {contender}: {error}");
                    return Err(io::Error::new(error.kind(), what));
                }
                Err(error) => record.error = Some(error.to_string()),
            }
        }
        failures.add(&record);
        store.add(&record)?;
    }
    (around.progress)(clock.progress(String::new()));
    Ok(Outcome::Complete)
}

/// Whether a disk is full, or the part of it that the user may have.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
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
        about: &About,
        around: &Surroundings<'_>,
        filling: Filling<'_>,
    ) -> io::Result<Sample> {
        let settings = &about.settings;
        let Turn { at, plan, cell, contender, round } = *turn;
        if self.of != Some(at) {
            // Memory is released before more of it is taken.
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
                    none => {
                        let with = (around.ucrypt, around.left);
                        none.insert(Trees::new(about, with, (around.stop, filling))?)
                    }
                };
                trees.run(contender, &cell.name, around.stop)
            }
            Method::Drives => {
                let changes = Changes::default();
                sim::drives::run(cell, contender, (settings.scale, changes), around.stop)
            }
            _ if contender.is_served() => {
                let images = if let Some(images) = &self.images {
                    images
                } else {
                    // Beside a block device there is but its headers.
                    let on_device = || settings.on.is_device().then(std::env::temp_dir);
                    let dir = settings.on.scratch_dir().map(Path::to_owned).or_else(on_device);
                    let dir = dir.ok_or_else(|| {
                        io::Error::other("there is no directory for scratch images")
                    })?;
                    let service = Service {
                        ucrypt: around.ucrypt,
                        before: settings.other_build(),
                        direct: about.storage.direct,
                        generator: settings.generator,
                        left: around.left,
                        remedy: "use a smaller --size",
                        device: Some(around.target),
                    };
                    let how = (around.stop, filling);
                    self.images.insert(Images::make(&dir, settings.len, service, how)?)
                };
                // Nothing is written to a device that somebody else has taken since the last turn.
                around.target.claim()?;
                images.prepare(contender, around.stop)?;
                let run = || images.run(contender, load, around.stop);
                if contender.claims_device() { around.target.lend(run) } else { run() }
            }
            method => {
                around.target.claim()?;
                let bench = match &mut self.bench {
                    Some(bench) => bench,
                    none => {
                        let target = if settings.is_moved_to_zero(plan.description) {
                            Held::make(&Target::Zero, settings.len)?.open()?
                        } else {
                            around.target.open()?
                        };
                        let bench = Bench::new(target, settings.len, method);
                        bench.fill(around.stop, filling)?;
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
        let left_s = plans.iter().map(|plan| plan.seconds(settings));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{LEN_MAX, LEN_MIN};

    fn settings(generator: Generator) -> Settings {
        Settings {
            experiments: vec!["block-sweep".into()],
            on: Target::Memory,
            against: Some(crate::contender::list("ucrypt-nbd,ucrypt-fuse").expect("contenders")),
            rounds: 1,
            scale: Scale::Full,
            len: 1 << 30,
            time_ms: 10,
            added_on_zero: false,
            generator,
            before: None,
            command: String::new(),
        }
    }

    #[test]
    fn blocks_that_nbd_does_not_carry_are_left_out_with_the_reason() {
        let nbd = "ucrypt-nbd".parse().expect("a contender");
        for (generator, longest) in [(Generator::Fio, 32 << 20), (Generator::BuiltIn, 1 << 30)] {
            let settings = settings(generator);
            let plans = settings.plans().expect("a plan");
            let had = |contender| {
                let cells = plans[0].cells.iter().filter(|cell| plans[0].has(contender, cell));
                cells.map(|cell| cell.block_bytes).max()
            };
            assert_eq!(had(nbd), Some(longest));
            assert_eq!(had(Contender::Raw), Some(1 << 30));
            let left_out = settings.left_out().expect("a plan");
            let named =
                left_out.iter().any(|left| left.what.contains("ucrypt-nbd at blocks above 32m"));
            assert_eq!(named, generator == Generator::Fio, "{left_out:?}");
        }
    }

    #[test]
    fn a_run_without_fio_says_which_package_has_it_and_what_is_left_out() {
        let missing = || Some("fio is not installed; install it with: apt-get install fio".into());
        let said = settings(Generator::BuiltIn).no_fio(missing()).expect("it is missing");
        assert!(said.contains("apt-get install fio; "), "{said}");
        assert!(said.contains("processor times are left out"), "{said}");
        // Who asked for dd does not miss it.
        assert_eq!(settings(Generator::Dd).no_fio(missing()), None);
        assert_eq!(settings(Generator::BuiltIn).no_fio(None), None);
    }

    #[test]
    fn another_build_takes_part_in_exports_and_where_it_is_named() {
        let of = |experiment: &str, against: Option<&str>, is_named| {
            let command = "/usr/bin/ucrypt".into();
            let before = crate::store::OtherBuild { command, version: String::new() };
            let settings = Settings {
                experiments: vec![experiment.into()],
                against: against.map(|list| crate::contender::list(list).expect("contenders")),
                before: Some(before).filter(|_| is_named),
                ..settings(Generator::Fio)
            };
            let takes_part =
                settings.contenders().expect("known").into_values().flatten().any(|contender| {
                    contender.ours().is_some_and(|server| server.build != Build::This)
                });
            (settings.has_other_build(), takes_part)
        };
        assert_eq!(of("exports", None, true), (true, true));
        assert_eq!(of("exports", None, false), (false, false));
        assert_eq!(of("block-sweep", None, true), (false, false));
        assert_eq!(of("block-sweep", Some("control-nbd"), true), (true, true));
        // Nobody has said which build it is.
        assert_eq!(of("block-sweep", Some("before-nbd"), false), (true, false));
    }

    #[test]
    fn dd_has_the_loads_that_it_can_send_and_the_others_are_left_out_with_the_reason() {
        let of = |experiment: &str, against: &str| Settings {
            experiments: vec![experiment.into()],
            against: Some(crate::contender::list(against).expect("contenders")),
            ..settings(Generator::Dd)
        };
        let file = Contender::File;
        for (experiment, has_all) in [("request-merge", true), ("other-ssd", false)] {
            let settings = of(experiment, "file,ucrypt");
            let plan = &settings.plans().expect("a plan")[0];
            let had = plan.cells.iter().filter(|cell| plan.has(file, cell)).count();
            assert_eq!(had == plan.cells.len(), has_all, "{experiment}");
            // What runs in this process has another load.
            assert!(plan.cells.iter().all(|cell| plan.has(Contender::Raw, cell)));
            let left_out = settings.left_out().expect("a plan");
            let named = left_out.iter().any(|left| left.what.contains("not sequential"));
            assert_eq!(named, !has_all, "{left_out:?}");
            assert_eq!(settings.programs(), ["dd"]);
        }
        let nbd = of("request-merge", "file,ucrypt-nbd").left_out().expect("a plan");
        assert!(nbd.iter().any(|it| it.what == "ucrypt-nbd" && it.why.contains("dd")), "{nbd:?}");
    }

    #[test]
    fn files_on_a_file_system_are_read_in_the_sweep_alone_and_not_beyond_their_end() {
        let of = |experiment: &str| Settings {
            experiments: vec![experiment.into()],
            against: Some(vec![Contender::UcryptLoopExt4]),
            ..settings(Generator::BuiltIn)
        };
        let left_out = of("request-merge").left_out().expect("a plan");
        assert!(left_out.iter().any(|it| it.what == "ucrypt-loop-ext4"), "{left_out:?}");
        let settings = of("block-sweep");
        let plan = &settings.plans().expect("a plan")[0];
        if plan.contenders.contains(&Contender::UcryptLoopExt4) {
            assert!(plan.contenders.contains(&Contender::LoopExt4), "what it is compared with");
            let had = plan.cells.iter().filter(|cell| plan.has(Contender::LoopExt4, cell));
            assert_eq!(had.map(|cell| cell.block_bytes).max(), Some(512 << 20));
            let left_out = settings.left_out().expect("a plan");
            assert!(left_out.iter().any(|it| it.why.contains("longer than the file")));
        } else {
            // Without root, with the reason.
            assert!(plan.left_out.iter().any(|it| it.what == "ucrypt-loop-ext4"));
        }
    }

    #[test]
    fn file_systems_run_on_the_devices_that_were_asked_for_and_the_rest_is_named() {
        let named =
            crate::contender::list("raw,ucrypt-loop:inline,ucrypt-nbd").expect("contenders");
        let experiments = vec!["kernel-tree".to_owned()];
        let settings =
            Settings { experiments, against: Some(named), ..settings(Generator::BuiltIn) };
        let plan = &settings.plans().expect("a plan")[0];
        let left_out: Vec<_> = plan.left_out.iter().map(|left| left.what.as_str()).collect();
        assert!(left_out.contains(&"raw") && left_out.contains(&"ucrypt-nbd"), "{left_out:?}");
        let ours = "ucrypt-loop:inline".parse().expect("a contender");
        if !left_out.contains(&"ucrypt-loop:inline") {
            let null = "ucrypt-loop-none".parse().expect("a contender");
            assert_eq!(plan.contenders, [Contender::Loop, null, ours]);
        }
        // What cannot run at all leaves no ceiling behind that runs alone.
        let none = Settings { against: Some(vec![Contender::Raw]), ..settings };
        assert_eq!(none.plans().expect("a plan")[0].contenders, []);
        // The kernel's dm-crypt is asked for unless others are named.
        let all = Settings { against: None, ..none };
        let tree = by_name("kernel-tree").expect("an experiment");
        assert!(all.wanted(tree).contains(&Contender::DmCrypt));
    }

    #[test]
    fn memory_alone_is_left_out_where_there_is_not_enough_of_it() {
        for (len, against, has_it) in [
            (LEN_MIN, None, true),
            (LEN_MAX, None, false),
            (LEN_MAX, Some(vec![Contender::Memory]), false),
        ] {
            let settings =
                Settings { len, against, on: Target::Zero, ..settings(Generator::BuiltIn) };
            let plan = &settings.plans().expect("a plan")[0];
            assert_eq!(plan.contenders.contains(&Contender::Memory), has_it, "{len}");
            let named = plan.left_out.iter().filter(|left| left.what == "memory").count();
            assert_eq!(named == 0, has_it, "{:?}", plan.left_out);
        }
    }

    #[test]
    fn a_run_depends_on_the_programs_of_its_contenders_and_of_their_load() {
        let of = |experiment: &str, against: &str, generator| {
            let experiments = vec![experiment.to_owned()];
            let against = Some(crate::contender::list(against).expect("contenders"));
            Settings { experiments, against, ..settings(generator) }.programs()
        };
        let none: [&str; 0] = [];
        assert_eq!(of("block-sweep", "raw,ucrypt", Generator::Fio), none);
        assert_eq!(of("block-sweep", "ucrypt-nbd", Generator::BuiltIn), none);
        assert_eq!(of("block-sweep", "ucrypt-nbd", Generator::Fio), ["fio"]);
        assert_eq!(of("block-sweep", "raw,nbdkit", Generator::BuiltIn), ["nbdkit"]);
        assert_eq!(of("sorted-writes", "ucrypt,nbdkit", Generator::Fio), none, "it has no turn");
        if served::no_block_devices().is_none() {
            let through = of("block-sweep", "loop-ext4,ucrypt-loop-ext4", Generator::Fio);
            for needed in ["mkfs.ext4", "losetup", "dd", "fusermount3"] {
                assert!(through.contains(&needed), "{needed}: {through:?}");
            }
            let tree = of("kernel-tree", "loop", Generator::Fio);
            assert!(tree.contains(&"mkfs.xfs") && !tree.contains(&"fio"), "{tree:?}");
        }
        // Whether it is installed here or not: a run without it is another one.
        let peers = Settings { against: None, ..settings(Generator::BuiltIn) };
        assert!(peers.programs().contains(&"nbdkit"));
    }

    #[test]
    fn memory_alone_is_a_ceiling_of_every_target_but_memory() {
        for (on, is_one) in
            [(Target::Memory, false), (Target::Zero, true), (Target::Model("hdd".into()), true)]
        {
            let settings = Settings { on, against: None, ..settings(Generator::BuiltIn) };
            let plans = settings.plans().expect("a plan");
            assert_eq!(plans[0].contenders.contains(&Contender::Memory), is_one, "{}", settings.on);
        }
    }

    #[test]
    fn a_contender_is_dropped_where_it_never_succeeded_and_given_up_if_it_never_did() {
        let contender = Contender::Nbdkit;
        let record = |cell: &str, ok: bool| Record {
            experiment: "an experiment".into(),
            cell: cell.into(),
            contender,
            round: 0,
            sample: ok.then(Sample::default),
            error: (!ok).then(|| "it failed".into()),
        };
        let fate = |of: &Failures, cell| of.fate("an experiment", contender, cell);
        let mut failures = Failures::default();
        failures.add(&record("a", true));
        for cell in ["a", "b", "c", "d"] {
            failures.add(&record(cell, false));
        }
        // Three failures elsewhere do not end what works.
        assert_eq!(fate(&failures, "a"), Fate::Made);
        assert_eq!(fate(&failures, "b"), Fate::Dropped);
        assert_eq!(fate(&failures, "new"), Fate::Made);
        let mut failures = Failures::default();
        for cell in ["b", "c"] {
            failures.add(&record(cell, false));
        }
        assert_eq!(fate(&failures, "new"), Fate::Made);
        failures.add(&record("d", false));
        assert_eq!(fate(&failures, "new"), Fate::GivenUp);
        assert_eq!(failures.fate("another one", contender, "new"), Fate::Made);
        failures.add(&record("d", true));
        assert_eq!(fate(&failures, "new"), Fate::Made);
    }

    #[test]
    fn no_contender_is_always_the_first_or_always_behind_the_same_one() {
        for count in 1..=18_usize {
            let rounds = if count % 2 == 0 { count } else { 2 * count };
            let mut first = vec![0; count];
            let mut follows = vec![vec![0; count]; count];
            for round in 0..rounds {
                let order = turns(count, round);
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..count).collect::<Vec<_>>(), "round {round}");
                first[order[0]] += 1;
                order.windows(2).for_each(|pair| follows[pair[1]][pair[0]] += 1);
            }
            assert!(first.iter().all(|it| *it == rounds / count), "{count}: {first:?}");
            for (of, all) in follows.iter().enumerate() {
                let others = all.iter().enumerate().filter(|(other, _)| *other != of);
                assert!(others.clone().all(|(_, it)| *it == rounds / count), "{count}: {all:?}");
            }
            // A run has a few rounds: there, too, the one before is another one.
            if count > 2 {
                let before = |round| {
                    let order = turns(count, round);
                    order
                        .iter()
                        .position(|it| *it == 1)
                        .and_then(|at| Some(order[at.checked_sub(1)?]))
                };
                assert!((0..3).any(|round| before(round) != before(0)), "{count}");
            }
        }
        assert!(turns(0, 3).is_empty());
    }

    #[test]
    fn a_contender_that_is_given_up_is_recorded_as_such() {
        let dir = tempfile::tempdir().expect("a directory");
        let against = Some(vec!["ucrypt-nbd".parse().expect("a contender")]);
        let experiments = vec!["request-merge".into()];
        let on = Target::parse(dir.path().to_str().expect("text")).expect("a directory");
        let len = 16 << 20;
        let settings = Settings {
            experiments,
            against,
            on,
            len,
            scale: Scale::Quick,
            time_ms: 1,
            ..settings(Generator::BuiltIn)
        };
        let target = Held::make(&settings.on, len).expect("made");
        let storage = target.storage().expect("looked at");
        let machine = crate::store::Machine::default();
        let about = About {
            settings,
            machine,
            storage,
            started_s: 1,
            left_out: Vec::new(),
            contenders: BTreeMap::new(),
            simulated: None,
        };
        let out = dir.path().join("out");
        let mut store = Store::create(&out, &about).expect("a directory");
        let (stop, left) = (false.into(), Left::default());
        let ucrypt = Path::new("/nowhere/at/all/ucrypt");
        let progress = &|_| {};
        let around = Surroundings { ucrypt, stop: &stop, progress, left: &left, target: &target };
        assert_eq!(run(&about, &mut store, &around).expect("ran"), Outcome::Complete);
        let records = crate::store::read(&out).expect("read").records;
        let of_run = extent(&about, &records);
        // The image of served volumes, which ucrypt makes, and ucrypt itself.
        assert_eq!((of_run.missing, of_run.failed), (0, 8), "{of_run:?}");
        let of_part = extent(&about, &records[..records.len() - 3]);
        assert_eq!(of_part.missing, 3, "{of_part:?}");
        // Of a run that has ended early, nothing may be there of most who take part.
        let contenders = about.settings.contenders().expect("known");
        let planned = About { contenders, ..about.clone() };
        let of_first = extent(&planned, &records[..1]);
        assert_eq!(of_first.missing, of_first.planned - 1, "{of_first:?}");
        assert_eq!(of_first.planned, extent(&planned, &records).planned, "{of_first:?}");
        assert!(of_first.planned > 4, "{of_first:?}");
        assert_eq!(extent(&about, &[]).untouched, ["request-merge"]);
        let of = |name: &str| {
            let contender: Contender = name.parse().expect("a contender");
            records.iter().filter(|record| record.contender == contender).collect::<Vec<_>>()
        };
        assert!(of("raw").len() == 4 && of("raw").iter().all(|record| record.sample.is_some()));
        let served = of("ucrypt-nbd");
        assert_eq!(served.len(), 4);
        let said = |at: usize| served[at].error.clone().expect("it failed");
        assert!(!said(2).contains("not tried"), "{}", said(2));
        assert!(said(3).contains("not tried"), "{}", said(3));
    }
}
