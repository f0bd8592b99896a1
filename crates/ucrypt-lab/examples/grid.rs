//! Prints the grid of policies in virtual time: `grid [OPTION]...`, with the options of
//! [`ucrypt_lab::options`] and
//!
//! - `--policies`: prints every policy's results, each with adaptive's throughput relative to it;
//! - `--csv FILE`: writes every policy's throughput and p99 latency, a line for each cell.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ucrypt_lab::grid::{Cell, Comparison, Grid};
use ucrypt_lab::{Report, options};

struct Arguments {
    grid: Grid,
    /// Print every policy.
    policies: bool,
    csv: Option<PathBuf>,
}

fn arguments(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments { grid: Grid::full(), policies: false, csv: None };
    while let Some(word) = words.next() {
        if word == "--policies" {
            arguments.policies = true;
        } else if word == "--csv" {
            arguments.csv = Some(options::value(&word, &mut words)?.into());
        } else if !options::take(&mut arguments.grid, &word, &mut words)? {
            return Err(format!("there is no option {word}"));
        }
    }
    Ok(arguments)
}

/// Adaptive and the fixed policies, with their names.
fn all(comparison: &Comparison) -> impl Iterator<Item = (&'static str, &Report)> {
    let fixed = comparison.fixed.iter().map(|(policy, report)| (policy.name(), report));
    std::iter::once(("adaptive", &comparison.adaptive)).chain(fixed)
}

/// Throughput in MB/s and p99 latency in microseconds of every policy in every cell.
fn table(cells: &[Cell<'_>], results: &[Comparison]) -> String {
    let names = results.first().into_iter().flat_map(all).map(|(name, _)| {
        // The names have commas.
        let name = name.replace(',', " ");
        format!("{name} MB/s,{name} p99 us")
    });
    let head = ["device,cores,block,depth,pattern".to_owned()].into_iter().chain(names);
    let mut lines = vec![head.collect::<Vec<_>>().join(",")];
    for (cell, comparison) in cells.iter().zip(results) {
        let Cell { cores, block, depth, .. } = cell;
        let (device, pattern) = (cell.device.name, cell.pattern.name());
        let figures = all(comparison).map(|(_, report)| {
            format!("{:.3},{:.1}", report.mb_s, report.p99_ns() as f64 / 1000.0)
        });
        let place = [format!("{device},{cores},{block},{depth},{pattern}")];
        lines.push(place.into_iter().chain(figures).collect::<Vec<_>>().join(","));
    }
    lines.join("\n") + "\n"
}

/// Runs all cells, in parallel on the available cores.
fn run<'a>(cells: &'a [Cell<'a>]) -> Vec<Comparison> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let index = cells.iter().position(|other| std::ptr::eq(other, cell));
                    let comparison = cell.compare();
                    done.lock().expect("no thread panics with it").push((index, comparison));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no thread panics with it");
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, comparison)| comparison).collect()
}

fn line(cell: &Cell<'_>, comparison: &Comparison) -> String {
    let (policy, best) = comparison.best();
    format!(
        "{:10} {:5} {:7} {:5} {:9} {:9.1} {:9.1} {:17} {:6.3} {:6.2}{}",
        cell.device.name,
        cell.cores,
        cell.block,
        cell.depth,
        cell.pattern.name(),
        comparison.adaptive.mb_s,
        best.mb_s,
        policy.name(),
        comparison.speed(),
        comparison.tail(),
        if comparison.falls_short() { " short" } else { "" },
    )
}

fn print_policies(comparison: &Comparison) {
    for (name, report) in all(comparison) {
        let p99_us = report.p99_ns() as f64 / 1000.0;
        let (speed, busy) = (report.mb_s, report.busy * 100.0);
        let ahead = comparison.adaptive.mb_s / speed;
        let (stats, explored) = (report.stats, report.explored);
        println!(
            "    {name:17} {speed:9.1} MB/s {ahead:6.3}  p99 {p99_us:9.1} us  busy {busy:3.0} %  {stats:?} {explored:?}"
        );
    }
}

/// Adaptive's throughput relative to that of each fixed policy, over all cells.
fn print_summary(results: &[Comparison]) {
    println!(
        "\n{:17} {:>6} {:>6} {:>6} {:>6} {:>6}",
        "adaptive over", "mean", "least", "most", ">1.02", "<0.98"
    );
    let policies = results.first().map_or(0, |comparison| comparison.fixed.len());
    for index in 0..policies {
        let of =
            |comparison: &Comparison| comparison.adaptive.mb_s / comparison.fixed[index].1.mb_s;
        let mut ahead: Vec<f64> = results.iter().map(of).collect();
        ahead.sort_by(f64::total_cmp);
        let mean = ahead.iter().map(|ahead| ahead.ln()).sum::<f64>() / ahead.len() as f64;
        let count = |is: &dyn Fn(f64) -> bool| ahead.iter().filter(|ahead| is(**ahead)).count();
        println!(
            "{:17} {:6.3} {:6.3} {:6.3} {:6} {:6}",
            results[0].fixed[index].0.name(),
            mean.exp(),
            ahead[0],
            ahead[ahead.len() - 1],
            count(&|ahead| ahead > 1.02),
            count(&|ahead| ahead < 0.98),
        );
    }
}

fn main() -> ExitCode {
    let Arguments { grid, policies, csv } = match arguments(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("grid: {error}");
            return ExitCode::FAILURE;
        }
    };
    let cells = grid.cells();
    let results = run(&cells);
    if let Some(path) = csv
        && let Err(error) = std::fs::write(&path, table(&cells, &results))
    {
        eprintln!("grid: {}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    let header = format!(
        "{:10} {:>5} {:>7} {:>5} {:9} {:>9} {:>9} {:17} {:>6} {:>6}",
        "device", "cores", "block", "depth", "pattern", "adaptive", "best", "which", "speed", "p99"
    );
    println!("{header}");
    for (cell, comparison) in cells.iter().zip(&results) {
        println!("{}", line(cell, comparison));
        if policies {
            print_policies(comparison);
        }
    }
    let pairs = cells.iter().zip(&results);
    let short: Vec<_> = pairs.filter(|(_, comparison)| comparison.falls_short()).collect();
    println!("\n{} of {} cells fall short:\n{header}", short.len(), cells.len());
    for (cell, comparison) in &short {
        println!("{}", line(cell, comparison));
    }
    print_summary(&results);
    ExitCode::SUCCESS
}
