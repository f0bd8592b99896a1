//! `lab sim`.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::builder::PossibleValuesParser;
use indicatif::{ProgressBar, ProgressStyle};
use ucrypt_lab::analysis::Analysis;
use ucrypt_lab::bench::Bench;
use ucrypt_lab::catalogue::{self, Description, Method, Scale};
use ucrypt_lab::held::Held;
use ucrypt_lab::sim::calibrate::{Calibrated, calibrate};
use ucrypt_lab::sim::history::{self, Changes, EXPERIMENTS, Rows, Simulation};
use ucrypt_lab::sim::preset::{self, Asked};
use ucrypt_lab::store::{self, Record, Store};
use ucrypt_lab::target::Target;
use ucrypt_lab::text::{self, figure, short_in_virtual_time};

use super::run::{command_line, duration, failure as target_failure};
use crate::VERSION;
use crate::ending::signals;
use crate::failure::Failure;
use crate::serve::raise_descriptor_limit;
use crate::stdio;

/// The file that `lab report` shows beside a run.
pub(super) const FILE: &str = "sim.json";

/// Arguments of `lab sim`.
#[derive(Debug, clap::Args)]
pub(crate) struct SimArgs {
    /// The experiments [default: all that can be simulated]
    #[arg(value_name = "EXPERIMENT")]
    experiments: Vec<String>,
    /// Carry the experiments out on a model of this published machine, under every policy, as lab run does here
    #[arg(long, value_name = "NAME", conflicts_with_all = ["drives", "time"], value_parser = PossibleValuesParser::new(preset::names()))]
    preset: Option<String>,
    /// Fewer rows, less virtual time
    #[arg(long)]
    quick: bool,
    /// Cores of the machines [default: those of the published machine]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    cores: Option<u32>,
    /// Nanoseconds that a cipher takes for a byte [default: those of the published machine]
    #[arg(long, value_name = "NS", value_parser = nanoseconds)]
    cipher_ns: Option<f64>,
    /// Nanoseconds until a woken thread runs [default: 5000]
    #[arg(long, value_name = "NS", value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    wake_ns: Option<u64>,
    /// Nanoseconds to hand a chunk to a worker, or to take it back [default: 200]
    #[arg(long, value_name = "NS", value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    enqueue_ns: Option<u64>,
    /// Hyper-threads: this many of the cores share the cipher unit of one [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8))]
    threads_per_core: Option<u32>,
    /// Drives of many-drives [default: 20]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    drives: Option<u32>,
    /// Virtual time of a run of many-drives in milliseconds [default: 200, with --quick 10]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    time: Option<u64>,
    /// Measure cores, cipher and offloading of this machine first, and take them
    #[arg(long)]
    calibrate: bool,
    /// Measure the drive of this directory, too, by a scratch file of 256 MiB in it, and take it
    #[arg(long, value_name = "DIR", requires = "calibrate")]
    on: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also keep the rows in this directory, where `lab report` finds them
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

fn nanoseconds(text: &str) -> Result<f64, String> {
    let value: Option<f64> = text.parse().ok();
    value
        .filter(|value| (0.0..=1e6).contains(value))
        .ok_or_else(|| format!("'{text}' is no number of nanoseconds from 0 to 1000000"))
}

/// Progress with the remaining time.
struct Bar {
    bar: ProgressBar,
    since: Instant,
}

/// Parts of the whole that the bar tells apart.
const PARTS: u64 = 1000;

impl Bar {
    fn new() -> Self {
        let bar = ProgressBar::new(PARTS);
        let style = ProgressStyle::with_template("{wide_bar} {percent} % {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, since: Instant::now() }
    }

    /// `share`: of all work that is done, 0 to 1.
    fn show(&self, what: &str, share: f64) {
        #[expect(clippy::cast_sign_loss, reason = "a share is not negative")]
        self.bar.set_position((share * PARTS as f64) as u64);
        self.bar.set_message(match left(self.since.elapsed(), share) {
            Some(left) => format!("{} left; {what}", duration(left)),
            None => what.to_owned(),
        });
    }
}

/// The time that the rest takes, if this share took so long. `None`: nothing is known yet.
fn left(elapsed: Duration, share: f64) -> Option<Duration> {
    let rest = elapsed.as_secs_f64() * (1.0 - share) / share;
    (share > 0.0).then(|| Duration::try_from_secs_f64(rest).ok()).flatten()
}

/// The experiments that are carried out on a published machine.
fn on_preset(names: &[String]) -> Result<Vec<&'static Description>, Failure> {
    let all = || catalogue::ALL.iter().filter(|it| preset::takes(it));
    if names.is_empty() {
        return Ok(all().collect());
    }
    let one = |name: &String| {
        all().find(|it| it.name == name).ok_or_else(|| {
            let known = all().map(|it| it.name).collect::<Vec<_>>().join(", ");
            Failure::wrong(format!(
                "'{name}' does not run on a published machine; there are {known}"
            ))
        })
    };
    names.iter().map(one).collect()
}

/// Carries out `lab sim --preset`.
fn run_preset(
    args: &SimArgs,
    (preset, experiments): (&str, &[&'static Description]),
    changes: Changes,
    (stop, bar): (&AtomicBool, &Bar),
) -> Result<(), Failure> {
    let scale = if args.quick { Scale::Quick } else { Scale::Full };
    let command = command_line();
    let asked = Asked { preset, experiments, scale, changes, command: (VERSION, &command) };
    let about = asked.about().map_err(failure)?;
    let mut store = match &args.out {
        Some(dir) => Some(
            Store::create(dir, &about)
                .map_err(|error| Failure::device(format!("{}: {error}", dir.display())))?,
        ),
        None => None,
    };
    let mut records = Vec::new();
    let mut keep = |record: Record| {
        let kept = store.as_mut().map_or(Ok(()), |store| store.add(&record));
        records.push(record);
        kept
    };
    let ended = asked.run(&about, &mut keep, (stop, &|what, share| bar.show(what, share)));
    bar.bar.finish_and_clear();
    let is_whole = ended.map_err(failure)?;
    let analysis = Analysis::new(about, &records);
    if args.json {
        stdio::print_line(text::json(Some(&analysis), None).map_err(Failure::memory)?)?;
    } else {
        stdio::print(&text::tables(&analysis))?;
    }
    if is_whole { Ok(()) } else { Err(Failure::wrong("interrupted; the loads so far are above")) }
}

pub(super) fn run(args: &SimArgs) -> Result<(), Failure> {
    let on_preset = match &args.preset {
        Some(preset) => Some((preset.as_str(), on_preset(&args.experiments)?)),
        None => None,
    };
    let mut experiments: Vec<&str> = args.experiments.iter().map(String::as_str).collect();
    if let Some(unknown) =
        experiments.iter().find(|name| !EXPERIMENTS.contains(name)).filter(|_| on_preset.is_none())
    {
        return Err(Failure::wrong(format!(
            "nothing that was published of '{unknown}' can be simulated; there are {}; --preset NAME \
             carries out others",
            EXPERIMENTS.join(", ")
        )));
    }
    if experiments.is_empty() {
        experiments = EXPERIMENTS.into();
    }
    if let Some(file) = args.out.as_ref().map(|dir| dir.join(FILE)).filter(|file| file.exists()) {
        return Err(Failure::wrong(format!(
            "{} holds a simulation already; name another directory, or remove it",
            file.display()
        )));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    signals(move |_| {
        asked.store(true, Ordering::Relaxed);
        true
    })?;
    // Each queue of a simulated drive has one.
    raise_descriptor_limit();
    let many = experiments.contains(&"many-drives");
    let useless = [(args.drives.is_some(), "--drives"), (args.time.is_some(), "--time")];
    if let Some((_, option)) = useless.iter().find(|(given, _)| *given && !many) {
        return Err(Failure::wrong(format!(
            "{option} has an effect on many-drives only; leave it out"
        )));
    }
    let scale = if args.quick { Scale::Quick } else { Scale::Full };
    let mut bar = Bar::new();
    let calibrates = |what: &str| bar.show(what, 0.0);
    let measured = args.calibrate.then(|| measured(args, (&stop, &calibrates))).transpose();
    let measured = measured.inspect_err(|_| bar.bar.finish_and_clear())?;
    // The rest takes no time that calibrating tells.
    bar.since = Instant::now();
    let changes = Changes {
        cores: args.cores,
        threads_per_core: args.threads_per_core,
        drives: args.drives,
        cipher_ns: args.cipher_ns,
        wake_ns: args.wake_ns,
        enqueue_ns: args.enqueue_ns,
        virtual_ms: args.time,
        measured: measured.as_ref().map(|found| found.measured),
    };
    if let Some((preset, experiments)) = on_preset {
        return run_preset(args, (preset, &experiments), changes, (&stop, &bar));
    }
    let progress = |what: &str, share: f64| bar.show(what, share);
    let Rows { rows, failed, interrupted } =
        history::rows(&experiments, scale, changes, (&stop, &progress));
    bar.bar.finish_and_clear();
    if rows.is_empty() {
        return Err(if interrupted {
            Failure::wrong("interrupted before the first row")
        } else {
            Failure::device(failed.join("; "))
        });
    }
    let checks = measured.map_or_else(Vec::new, |found| found.checks);
    let (version, command) = (VERSION.into(), command_line());
    let simulation =
        Simulation { version, command, scale, changes, rows, checks, failed, interrupted };
    let json = serde_json::to_string_pretty(&simulation).map_err(Failure::wrong)?;
    if let Some(dir) = &args.out {
        let file = dir.join(FILE);
        let written = fs::create_dir_all(dir).and_then(|()| store::replace(&file, json.as_bytes()));
        written.map_err(|error| {
            Failure::device(format!("cannot write {}: {error}", file.display()))
        })?;
    }
    if args.json {
        stdio::print_line(json)?;
    } else {
        stdio::print(&table(&simulation))?;
    }
    if interrupted {
        return Err(Failure::wrong(match &args.out {
            Some(_) => "interrupted; the rows so far are kept, the others are missing",
            None => "interrupted; the rows so far are above, the others are missing",
        }));
    }
    match simulation.failed.as_slice() {
        [] => Ok(()),
        failed => Err(Failure::device(format!("rows failed: {}", failed.join("; ")))),
    }
}

fn failure(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::Interrupted => Failure::wrong("interrupted"),
        _ => Failure::device(error),
    }
}

/// Bytes of the scratch file that a drive is measured by.
const SCRATCH_BYTES: u64 = 256 << 20;

/// Measures this machine, and the drive of a directory if one is named.
fn measured(
    args: &SimArgs,
    (stop, progress): (&AtomicBool, &dyn Fn(&str)),
) -> Result<Calibrated, Failure> {
    let Some(dir) = &args.on else {
        return calibrate(None, (stop, progress)).map_err(failure);
    };
    if !dir.is_dir() {
        return Err(Failure::wrong(format!(
            "{} is no directory; --on takes one, in which a scratch file is made and removed",
            dir.display()
        )));
    }
    let path = dir.canonicalize().map_err(Failure::device)?;
    let target = Target::Scratch(path.join(format!("ucrypt-lab-{}.scratch", std::process::id())));
    let len = target.check(SCRATCH_BYTES).map_err(target_failure)?;
    let target = Held::make(&target, len).map_err(target_failure)?;
    let backend = target.open().map_err(target_failure)?;
    progress("writes the scratch file");
    let bench = Bench::new(backend.clone(), len, Method::Load);
    bench.fill(stop, &|_, _| {}).map_err(failure)?;
    calibrate(Some((&backend, len)), (stop, progress)).map_err(failure)
}

fn table(simulation: &Simulation) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    if let Some(changes) = simulation.changes.describe() {
        let _ = writeln!(text, "the machines were changed: {changes}\n");
    }
    if !simulation.checks.is_empty() {
        let _ = writeln!(text, "{:<46} {:>10} {:>10} {:>7}", "load", "here", "simulated", "error");
        for check in &simulation.checks {
            let _ = writeln!(
                text,
                "{:<46} {:>10} {:>10} {:>+5.0} %  MB/s{}",
                check.load,
                figure(check.measured),
                figure(check.simulated),
                check.error() * 100.0,
                if check.fitted { "; fitted" } else { "" }
            );
        }
        text.push('\n');
    }
    let _ = writeln!(
        text,
        "{:<14} {:<46} {:>10} {:>10} {:>7} {:>10}  unit",
        "experiment", "row", "published", "simulated", "error", "adaptive"
    );
    for row in &simulation.rows {
        let error =
            row.error().map_or_else(String::new, |error| format!("{:+.0} %", error * 100.0));
        let adaptive = row.adaptive.map_or_else(String::new, figure);
        let _ = writeln!(
            text,
            "{:<14} {:<46} {:>10} {:>10} {error:>7} {adaptive:>10}  {}{}{}",
            row.experiment,
            row.row,
            figure(row.published),
            figure(row.simulated),
            row.unit,
            if row.fitted { "; fitted" } else { "" },
            if row.is_trusted() { "" } else { "; not to be trusted" }
        );
    }
    let _ = writeln!(text, "\n{}\n", simulation.verdict());
    text + &short_in_virtual_time(simulation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_for_each_part_as_what_is_done() {
        let left = |share| left(Duration::from_secs(30), share);
        assert_eq!(left(0.25), Some(Duration::from_secs(90)));
        assert_eq!(left(1.0), Some(Duration::ZERO));
        assert_eq!(left(0.0), None);
        assert_eq!(left(1e-30), None, "longer than anybody can say");
    }
}
