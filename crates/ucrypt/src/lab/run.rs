//! `lab run`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use ucrypt_lab::analysis::{Analysis, Experiment};
use ucrypt_lab::catalogue::{self, Method, Scale};
use ucrypt_lab::contender::{self, Contender};
use ucrypt_lab::held::Held;
use ucrypt_lab::runner::{self, Outcome, Progress, Surroundings};
use ucrypt_lab::served::{Generator, Left};
use ucrypt_lab::store::{About, Machine, OtherBuild, Settings, Store};
use ucrypt_lab::target::{LEN_MAX, LEN_MIN, Target, TargetError};
use ucrypt_lab::{dd, packages, shell, text};

use crate::VERSION;
use crate::ending::signals;
use crate::failure::Failure;
use crate::luks::confirm_at;
use crate::size;
use crate::stdio::{self, say_line};
use crate::terminal::Terminal;

/// Arguments of `lab run`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Contenders: raw, ucrypt, null, memory, file, loop, qemu-storage-daemon, qemu-nbd, \
    nbdkit, dm-crypt, dm-crypt-inline, gocryptfs, loop-ext4, ucrypt-loop-ext4, copy-fuse, copy-nbd, \
    copy-loop (servers that only copy), and ucrypt's servers: \
    ucrypt-fuse, ucrypt-nbd, ucrypt-loop, ucrypt-ublk, each also with -4096 (sectors of 4096 bytes) or -none (no \
    cipher) behind it, files with -classic or -io_uring (how requests come), and with before- instead of ucrypt- for \
    the build that --before names (control-: the same once more). Those of ucrypt take a dispatch policy, as in ucrypt:unbound."
)]
pub(crate) struct RunArgs {
    /// The experiments; `ucrypt lab list` shows them [default: all]
    #[arg(value_name = "EXPERIMENT")]
    experiments: Vec<String>,
    /// Run on memory, zero, model:NAME, a directory, a file or a block device; everything on a file
    /// or device is lost [default: memory; of added-latency zero]
    #[arg(long, value_name = "TARGET", conflicts_with = "resume")]
    on: Option<String>,
    /// Compare these contenders, separated by commas; the target without encryption is always one
    #[arg(long, value_name = "LIST", conflicts_with = "resume")]
    against: Option<String>,
    /// Interleaved rounds [default: 5, with --quick 3]
    #[arg(long, value_name = "N", conflicts_with = "resume", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Fewer cells, shorter measurements
    #[arg(long, conflicts_with = "resume")]
    quick: bool,
    /// Bytes of the target that are used [default: 1G, with --quick 128M]
    #[arg(long, value_name = "BYTES", value_parser = size::parse, conflicts_with = "resume")]
    size: Option<u64>,
    /// Time of a measurement in milliseconds [default: 1000, with --quick 60]
    #[arg(long, value_name = "MS", conflicts_with = "resume", value_parser = clap::value_parser!(u64).range(1..=600_000))]
    time: Option<u64>,
    /// What makes the load on servers: fio, dd (sequential, one at a time), built-in [default: fio if it
    /// is installed]
    #[arg(long, value_name = "NAME", conflicts_with = "resume", value_parser = generator)]
    load: Option<Generator>,
    /// Another build of ucrypt, for the contenders before-fuse, before-nbd, before-loop, which exports measures then
    #[arg(long, value_name = "COMMAND", conflicts_with = "resume")]
    before: Option<PathBuf>,
    /// Keep the results in this directory
    #[arg(
        long,
        value_name = "DIR",
        default_value = "ucrypt-lab-results",
        conflicts_with = "resume"
    )]
    out: PathBuf,
    /// Go on with the run in this directory
    #[arg(long, value_name = "DIR", conflicts_with = "experiments")]
    resume: Option<PathBuf>,
    /// Ask nothing
    #[arg(short = 'q', long)]
    batch_mode: bool,
    /// Print the result as JSON: where it is kept, verdicts, where ucrypt falls short, what was left out
    #[arg(long)]
    json: bool,
}

fn generator(name: &str) -> Result<Generator, String> {
    match name {
        "fio" => packages::missing("fio").map_or(Ok(Generator::Fio), Err),
        "dd" if dd::version().is_none() => {
            Err("the dd of the GNU coreutils is not installed; install it with: apt-get install coreutils"
                .into())
        }
        "dd" => Ok(Generator::Dd),
        "built-in" => Ok(Generator::BuiltIn),
        _ => Err("known are fio, dd, built-in".into()),
    }
}

/// A run of these experiments with nothing chosen.
pub(super) fn defaults(experiments: Vec<String>, scale: Scale) -> Settings {
    let (rounds, len, time_ms) = match scale {
        Scale::Full => (5, 1 << 30, 1000),
        Scale::Quick => (3, 128 << 20, 60),
    };
    Settings {
        experiments,
        on: Target::Memory,
        against: None,
        rounds,
        scale,
        len,
        time_ms,
        added_on_zero: false,
        generator: runner::generator(),
        before: None,
        command: String::new(),
    }
}

/// A duration as people say it.
pub(super) fn duration(time: Duration) -> String {
    match time.as_secs() {
        0..=90 => format!("{} s", time.as_secs().max(1)),
        91..=5400 => format!("{} min", time.as_secs().div_ceil(60)),
        seconds => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}

pub(super) fn failure(error: TargetError) -> Failure {
    match error {
        TargetError::Open(error) => error.into(),
        TargetError::Unknown(message) => Failure::wrong(message),
        TargetError::Io { ref error, .. } if error.kind() == ErrorKind::PermissionDenied => {
            Failure::denied(error)
        }
        error => Failure::device(error),
    }
}

/// The settings that the arguments ask for. Looks at the target, and writes nothing.
fn settings(args: &RunArgs) -> Result<Settings, Failure> {
    let scale = if args.quick { Scale::Quick } else { Scale::Full };
    let mut experiments = args.experiments.clone();
    if experiments.is_empty() {
        experiments = catalogue::ALL.iter().map(|it| it.name.to_owned()).collect();
    }
    let mut descriptions = Vec::new();
    for name in &experiments {
        let known = || catalogue::ALL.iter().map(|it| it.name).collect::<Vec<_>>().join(", ");
        let found = catalogue::by_name(name).ok_or_else(|| {
            Failure::wrong(format!("no experiment is called '{name}'; there are {}", known()))
        })?;
        if descriptions.iter().any(|other: &&catalogue::Description| other.name == found.name) {
            return Err(Failure::wrong(format!("{name} is named twice")));
        }
        descriptions.push(found);
    }
    let any = |has: fn(&catalogue::Description) -> bool| descriptions.iter().any(|it| has(it));
    let has_target = any(catalogue::Description::has_target);
    // Virtual time is the same each time.
    let has_rounds = any(|description| description.method != Method::Drives);
    // Its images are in the directory.
    let has_tree = any(|description| description.method == Method::Tree);
    let useless = [
        (args.on.is_some() && !has_target && !has_tree, "--on"),
        (args.size.is_some() && !has_target, "--size"),
        (args.time.is_some() && !has_target, "--time"),
        (args.rounds.is_some() && !has_rounds, "--rounds"),
    ];
    if let Some((_, option)) = useless.iter().find(|(useless, _)| *useless) {
        let names = experiments.join(", ");
        return Err(Failure::wrong(format!("{option} has no effect on {names}; leave it out")));
    }
    let mut settings = defaults(experiments, scale);
    let is_added = |it: &catalogue::Description| it.method == Method::Added;
    match &args.on {
        Some(on) => settings.on = Target::parse(on).map_err(failure)?,
        // Nothing else uses the target.
        None if has_target && !any(|it| it.has_target() && it.method != Method::Added) => {
            settings.on = Target::Zero;
        }
        None => settings.added_on_zero = any(is_added),
    }
    let is_place = matches!(settings.on, Target::Memory | Target::Scratch(_));
    if has_tree && !has_target && !is_place {
        return Err(Failure::wrong(format!(
            "kernel-tree has its images in memory or in a directory, not on {}; name a directory by --on",
            settings.on
        )));
    }
    if let Some(list) = &args.against {
        settings.against = Some(contender::list(list).map_err(Failure::wrong)?);
    }
    if let Some(before) = &args.before {
        let wrong = |why| Failure::wrong(format!("--before {why}"));
        settings.before = Some(OtherBuild::at(before).map_err(wrong)?);
    }
    settings.rounds = args.rounds.unwrap_or(settings.rounds);
    settings.time_ms = args.time.unwrap_or(settings.time_ms);
    settings.generator = args.load.unwrap_or(settings.generator);
    let len = args.size.unwrap_or(settings.len);
    if !(LEN_MIN..=LEN_MAX).contains(&len) {
        return Err(Failure::wrong(format!("--size {len} is not from {LEN_MIN} to {LEN_MAX}")));
    }
    settings.len = if has_target { settings.on.check(len).map_err(failure)? } else { len };
    let served = |contender: &Contender| contender.is_served();
    let any_served = match &settings.against {
        Some(named) => any(catalogue::Description::takes_servers) && named.iter().any(served),
        None => any(|description| description.peers),
    };
    if args.load.is_some() && !any_served {
        return Err(Failure::wrong(
            "--load has an effect on servers only, and none takes part; leave it out",
        ));
    }
    if settings.before.is_some() && !settings.has_other_build() {
        return Err(Failure::wrong(
            "--before has an effect on exports and on contenders such as before-nbd, and none takes part; leave it \
             out, or name them by --against",
        ));
    }
    settings.command = command_line();
    Ok(settings)
}

/// The command line, to repeat what it does.
pub(super) fn command_line() -> String {
    let words = std::env::args_os().skip(1).map(|word| shell::quoted(&word));
    format!("ucrypt {}", words.collect::<Vec<_>>().join(" "))
}

/// Asks before data is lost. Without a terminal, only --batch-mode agrees.
fn ask(target: &Target, batch_mode: bool) -> Result<(), Failure> {
    let Some(path) = target.destroys() else { return Ok(()) };
    if batch_mode {
        return Ok(());
    }
    let path = path.display();
    match Terminal::of_stdin() {
        Some(terminal) => {
            confirm_at(&terminal, &format!("This will overwrite data on {path} irrevocably."))
        }
        None => Err(Failure::wrong(format!(
            "the run overwrites {path}, and there is no terminal to ask at; give --batch-mode if \
             that is meant"
        ))),
    }
}

/// A run that can be carried out.
type Begun = (About, Store, Held);

/// Has signals end the run. Called after the question, which Ctrl-C ends, and before there is anything to
/// be removed.
type Catch<'a> = &'a dyn Fn() -> Result<(), Failure>;

/// The run in a directory, to go on with, if this is the machine, the build and the target that it
/// began with.
fn resumed(dir: &Path, args: &RunArgs, catch: Catch<'_>) -> Result<Begun, Failure> {
    let failed = |error| Failure::device(format!("{}: {error}", dir.display()));
    let (store, mut about) = Store::resume(dir).map_err(failed)?;
    let programs = about.settings.programs();
    if let Some(difference) = Machine::this(VERSION).difference(&about.machine, &programs) {
        return Err(Failure::wrong(format!(
            "{}: {difference}; figures of both do not compare, begin another run",
            dir.display()
        )));
    }
    if let Some(before) = &about.settings.before {
        let now = OtherBuild::at(&before.command).map_err(Failure::device)?;
        if now != *before {
            return Err(Failure::wrong(format!(
                "{} is {} now, and was {} when the run began; begin another run",
                before.command.display(),
                now.version,
                before.version
            )));
        }
    }
    let on = &about.settings.on;
    let len = on.check(about.settings.len).map_err(failure)?;
    if len != about.settings.len {
        return Err(Failure::device(format!("{on} has become shorter since the run began")));
    }
    about.settings.check_room().map_err(Failure::device)?;
    let target = Held::take(on, len).map_err(failure)?;
    if on.destroys().is_some() {
        // Before the question: nobody should agree to the wrong device.
        same_storage(&about, &target)?;
    }
    ask(on, args.batch_mode)?;
    catch()?;
    let target = target.made().map_err(failure)?;
    same_storage(&about, &target)?;
    about.left_out = about.settings.left_out().map_err(Failure::wrong)?;
    about.contenders = about.settings.contenders().map_err(Failure::wrong)?;
    store.write_about(&about).map_err(failed)?;
    Ok((about, store, target))
}

/// Refuses a target that is not the one that a run began with.
fn same_storage(about: &About, target: &Held) -> Result<(), Failure> {
    let now = target.storage().map_err(failure)?;
    let on = &about.settings.on;
    if now.device != about.storage.device {
        return Err(Failure::device(format!(
            "{on} is not the disk that the run began with, or it was attached anew, or its size \
             differs; begin another run"
        )));
    }
    if now.device.as_ref().is_some_and(|device| device.disk.is_none()) {
        return Err(Failure::device(format!(
            "nothing tells {on} from another disk of its size: it has no wwid, no serial number and no \
             diskseq (/sys/block); begin another run"
        )));
    }
    if now != about.storage {
        return Err(Failure::device(format!(
            "{on} is accessed in another way than when the run began; begin another run"
        )));
    }
    Ok(())
}

/// A new run.
fn begun(dir: &Path, args: &RunArgs, catch: Catch<'_>) -> Result<Begun, Failure> {
    let failed = |error| Failure::device(format!("{}: {error}", dir.display()));
    let settings = settings(args)?;
    settings.check_room().map_err(Failure::device)?;
    let target = Held::take(&settings.on, settings.len).map_err(failure)?;
    ask(&settings.on, args.batch_mode)?;
    catch()?;
    let target = target.made().map_err(failure)?;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let left_out = settings.left_out().map_err(Failure::wrong)?;
    let about = About {
        machine: Machine::this(VERSION),
        storage: target.storage().map_err(failure)?,
        started_s: since.map_or(0, |since| since.as_secs()),
        left_out,
        contenders: settings.contenders().map_err(Failure::wrong)?,
        settings,
        simulated: None,
    };
    let store = Store::create(dir, &about).map_err(failed)?;
    Ok((about, store, target))
}

pub(super) fn run(args: &RunArgs) -> Result<(), Failure> {
    let dir = args.resume.as_ref().unwrap_or(&args.out);
    let failed = |error| Failure::device(format!("{}: {error}", dir.display()));
    let stop = Arc::new(AtomicBool::new(false));
    let catch = || {
        let asked = stop.clone();
        signals(move |_| {
            asked.store(true, Ordering::Relaxed);
            true
        })
    };
    let begin = if args.resume.is_some() { resumed } else { begun };
    let (about, mut store, target) = begin(dir, args, &catch)?;
    let mut named: Vec<(&str, &str)> = Vec::new();
    for left in &about.left_out {
        if !named.contains(&(&left.what, &left.why)) {
            named.push((&left.what, &left.why));
            say_line(format_args!("{} is left out: {}", left.what, left.why));
        }
    }
    if about.storage.cached {
        say_line(format_args!(
            "the file system of {} has no direct I/O: the page cache is measured with it",
            about.settings.on
        ));
    }
    let left = Left::default();
    let ended = carry_out(&about, &mut store, &target, (&stop, &left));
    drop(target);
    for what in left.take() {
        say_line(what);
    }
    let go_on = format!(
        "results so far are kept, go on with: ucrypt lab run --resume {}",
        shell::path(dir)
    );
    let outcome = ended.map_err(|error| match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            Failure::device(format!("{error}; make room first; {go_on}"))
        }
        _ => Failure::device(format!("{error}; {go_on}")),
    })?;
    if outcome == Outcome::Interrupted {
        return Err(Failure::wrong(format!("interrupted; {go_on}")));
    }
    let analysis = Analysis::of(ucrypt_lab::store::read(dir).map_err(failed)?);
    if args.json {
        stdio::print_line(result(&analysis, dir))?;
    } else {
        stdio::print(&text::tables(&analysis))?;
    }
    if analysis.experiments.iter().all(|experiment| experiment.cells.is_empty()) {
        return Err(Failure::device("nothing could be measured"));
    }
    say_line(format_args!("the results are in {}", dir.display()));
    Ok(())
}

/// What a run came to, for programs. The figures are in its directory: `lab report --json`.
fn result(analysis: &Analysis, dir: &Path) -> serde_json::Value {
    let path = |name: &str| dir.join(name).display().to_string();
    let verdict = |of: &Experiment| {
        let (name, on, verdict, notes) = (of.name, &of.on, &of.verdict, &of.notes);
        json!({ "experiment": name, "on": on, "verdict": verdict, "notes": notes })
    };
    let (disturbed, measurements) = analysis.disturbed();
    json!({
        "directory": dir.display().to_string(),
        "run": path("run.json"),
        "results": path("results.jsonl"),
        "measurements": measurements,
        "disturbed": disturbed,
        "warning": analysis.warning(),
        "verdicts": analysis.experiments.iter().map(verdict).collect::<Vec<_>>(),
        "shortfalls": analysis.shortfalls,
        "compared": analysis.compared,
        "left_out": analysis.about.left_out,
    })
}

fn carry_out(
    about: &About,
    store: &mut Store,
    target: &Held,
    (stop, left): (&AtomicBool, &Left),
) -> std::io::Result<Outcome> {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let progress = |progress: Progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
        bar.set_message(format!("{} left; {}", duration(progress.left), progress.what));
    };
    // The program that runs, even if its file was replaced meanwhile: a path would name another
    // build, or none.
    let ucrypt = Path::new("/proc/self/exe");
    let around = Surroundings { ucrypt, stop, progress: &progress, left, target };
    let outcome = runner::run(about, store, &around);
    bar.finish_and_clear();
    outcome
}
