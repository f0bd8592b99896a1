//! `lab report`.

use std::fs;
use std::io;
use std::path::PathBuf;

use ucrypt_lab::analysis::Analysis;
use ucrypt_lab::sim::history::Simulation;
use ucrypt_lab::{markdown, page, shell, store, text};

use super::sim;
use crate::failure::Failure;
use crate::stdio;

/// Arguments of `lab report`.
#[derive(Debug, clap::Args)]
pub(crate) struct ReportArgs {
    /// The directory of a run, finished or not
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Print every figure as CSV instead of writing a page
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print the analysis as JSON instead of writing a page
    #[arg(long)]
    json: bool,
    /// Print all tables as Markdown instead of writing a page
    #[arg(long, conflicts_with_all = ["csv", "json"])]
    markdown: bool,
    /// Write the page here [default: report.html in DIR]
    #[arg(short = 'o', long, value_name = "FILE", conflicts_with_all = ["csv", "json", "markdown"])]
    output: Option<PathBuf>,
}

/// Longest simulation in bytes: it is read into memory.
const SIMULATION_MAX: u64 = 16 << 20;

pub(super) fn run(args: &ReportArgs) -> Result<(), Failure> {
    let failed = |error| Failure::device(format!("{}: {error}", args.dir.display()));
    let kept = store::read(&args.dir).map_err(failed)?;
    let error = kept.records.iter().find_map(|record| record.error.clone());
    let analysis = Analysis::of(kept);
    if analysis.experiments.iter().all(|experiment| experiment.cells.is_empty()) {
        if let Some(error) = error {
            return Err(Failure::device(format!(
                "{}: every measurement has failed, the first one: {error}",
                args.dir.display()
            )));
        }
        return Err(Failure::device(format!(
            "{} holds no results yet; go on with: ucrypt lab run --resume {}",
            args.dir.display(),
            shell::path(&args.dir)
        )));
    }
    if args.csv {
        return stdio::print(&text::csv(&analysis).map_err(Failure::memory)?);
    }
    if args.json {
        let json = serde_json::to_string_pretty(&analysis).map_err(Failure::memory)?;
        return stdio::print_line(json);
    }
    let simulated = args.dir.join(sim::FILE);
    let read = store::open(&simulated, SIMULATION_MAX).and_then(io::read_to_string);
    let simulation: Option<Simulation> = match read {
        Ok(text) => Some(serde_json::from_str(&text).map_err(|error| {
            Failure::wrong(format!("{} is not what lab sim writes: {error}", simulated.display()))
        })?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            return Err(Failure::device(format!("cannot read {}: {error}", simulated.display())));
        }
    };
    if args.markdown {
        return stdio::print(&markdown::markdown(&analysis, simulation.as_ref()));
    }
    // Only the user's own links are followed, not those of the run, which may be somebody else's.
    let output = match &args.output {
        Some(output) => fs::canonicalize(output).unwrap_or_else(|_| output.clone()),
        None => args.dir.join("report.html"),
    };
    store::replace(&output, page::html(&analysis, simulation.as_ref()).as_bytes())
        .map_err(|error| Failure::device(format!("cannot write {}: {error}", output.display())))?;
    stdio::print_line(output.display())
}
