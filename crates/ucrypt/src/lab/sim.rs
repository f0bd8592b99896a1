//! `lab sim`.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::ProgressBar;
use ucrypt_lab::catalogue::Scale;
use ucrypt_lab::sim::history::{self, Changes, EXPERIMENTS, Simulation};
use ucrypt_lab::text::figure;

use crate::VERSION;
use crate::ending::signals;
use crate::failure::Failure;
use crate::stdio;

/// The file that `lab report` shows beside a run.
pub(super) const FILE: &str = "sim.json";

/// Arguments of `lab sim`.
#[derive(Debug, clap::Args)]
pub(crate) struct SimArgs {
    /// The experiments [default: all that can be simulated]
    #[arg(value_name = "EXPERIMENT")]
    experiments: Vec<String>,
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
    #[arg(long, value_name = "NS", value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    wake_ns: Option<u64>,
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

pub(super) fn run(args: &SimArgs) -> Result<(), Failure> {
    let mut experiments: Vec<&str> = args.experiments.iter().map(String::as_str).collect();
    if let Some(unknown) = experiments.iter().find(|name| !EXPERIMENTS.contains(name)) {
        return Err(Failure::wrong(format!(
            "'{unknown}' cannot be simulated; there are {}",
            EXPERIMENTS.join(", ")
        )));
    }
    if experiments.is_empty() {
        experiments = EXPERIMENTS.into();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    signals(move |_| {
        asked.store(true, Ordering::Relaxed);
        true
    })?;
    let changes = Changes { cores: args.cores, cipher_ns: args.cipher_ns, wake_ns: args.wake_ns };
    let scale = if args.quick { Scale::Quick } else { Scale::Full };
    let bar = ProgressBar::new_spinner();
    let progress = |row: &str| {
        bar.set_message(row.to_owned());
        bar.tick();
    };
    let rows = history::rows(&experiments, scale, changes, (&stop, &progress));
    bar.finish_and_clear();
    let rows = rows.map_err(|error| match error.kind() {
        std::io::ErrorKind::Interrupted => Failure::wrong("interrupted"),
        _ => Failure::device(error),
    })?;
    let simulation = Simulation { version: VERSION.into(), scale, changes, rows };
    let json = serde_json::to_string_pretty(&simulation).map_err(Failure::wrong)?;
    if let Some(dir) = &args.out {
        let file = dir.join(FILE);
        let written = fs::create_dir_all(dir).and_then(|()| fs::write(&file, &json));
        written.map_err(|error| {
            Failure::device(format!("cannot write {}: {error}", file.display()))
        })?;
    }
    if args.json { stdio::print_line(json) } else { stdio::print(&table(&simulation)) }
}

fn table(simulation: &Simulation) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    if let Some(changes) = simulation.changes.describe() {
        let _ = writeln!(text, "the machines were changed: {changes}\n");
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
    let _ = writeln!(text, "\n{}", simulation.verdict());
    text
}
