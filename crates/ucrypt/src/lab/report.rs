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
    /// The directory of a run, finished or not, or of a simulation
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
    let simulation = simulation(args)?;
    let analysis = analysis(args, simulation.is_some())?;
    let (run, simulated) = (analysis.as_ref(), simulation.as_ref());
    if args.csv {
        return stdio::print(&text::csv(run, simulated).map_err(Failure::memory)?);
    }
    if args.json {
        return stdio::print_line(text::json(run, simulated).map_err(Failure::memory)?);
    }
    if args.markdown {
        let text = match (run, simulated) {
            (None, Some(simulated)) => markdown::of_simulation(simulated),
            (run, simulated) => {
                run.map_or_else(String::new, |it| markdown::markdown(it, simulated))
            }
        };
        return stdio::print(&text);
    }
    let page = match (run, simulated) {
        (None, Some(simulated)) => page::of_simulation(simulated),
        (run, simulated) => run.map_or_else(String::new, |it| page::html(it, simulated)),
    };
    // Only the user's own links are followed, not those of the run, which may be somebody else's.
    let output = match &args.output {
        Some(output) => fs::canonicalize(output).unwrap_or_else(|_| output.clone()),
        None => args.dir.join("report.html"),
    };
    store::replace(&output, page.as_bytes())
        .map_err(|error| Failure::device(format!("cannot write {}: {error}", output.display())))?;
    stdio::print_line(output.display())
}

/// The run in the directory; `None` if there is none, or none with results, and a simulation stands for
/// it.
fn analysis(args: &ReportArgs, has_simulation: bool) -> Result<Option<Analysis>, Failure> {
    let dir = args.dir.display();
    let kept = match store::read(&args.dir) {
        Err(error) if has_simulation && error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|error| Failure::device(format!("{dir}: {error}")))?,
    };
    let error = kept.records.iter().find_map(|record| record.error.clone());
    let analysis = Analysis::of(kept);
    if analysis.experiments.iter().any(|experiment| !experiment.cells.is_empty()) {
        return Ok(Some(analysis));
    }
    match error {
        Some(error) => Err(Failure::device(format!(
            "{dir}: every measurement has failed, the first one: {error}"
        ))),
        None if has_simulation => Ok(None),
        None => Err(Failure::device(format!(
            "{dir} holds no results yet; go on with: ucrypt lab run --resume {}",
            shell::path(&args.dir)
        ))),
    }
}

/// The simulation in the directory, if there is one.
fn simulation(args: &ReportArgs) -> Result<Option<Simulation>, Failure> {
    let path = args.dir.join(sim::FILE);
    match store::open(&path, SIMULATION_MAX).and_then(io::read_to_string) {
        Ok(text) => serde_json::from_str(&text).map(Some).map_err(|error| {
            Failure::wrong(format!("{} is not what lab sim writes: {error}", path.display()))
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::device(format!("cannot read {}: {error}", path.display()))),
    }
}
