//! The grid of policies, printed: `grid [--quick] [OPTION VALUE]...`.
//!
//! Options narrow the grid or change its costs: `--cores 2,16`, `--device hdd`, `--block 4096,65536`,
//! `--depth 1,32`, `--pattern randread`, `--cipher-ns 0.9` (per byte), `--queues 4`, `--wake-ns`,
//! `--poll-ns`, `--seed`, `--free-cores` (queues are told of no more workers than there are cores
//! without an awake queue) and `--policies` (prints every policy's results).

use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ucrypt_lab::grid::{Cell, Comparison, Grid};
use ucrypt_lab::sim::{DeviceModel, Pattern};

fn list<T: FromStr>(text: &str) -> Result<Vec<T>, String> {
    let parse = |word: &str| word.parse().map_err(|_| format!("'{word}' is no such value"));
    text.split(',').map(parse).collect()
}

fn names<T>(text: &str, find: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, String> {
    let find = |word| find(word).ok_or_else(|| format!("'{word}' is not known"));
    text.split(',').map(find).collect()
}

/// The grid that is asked for, and whether every policy is to be printed.
fn options(mut words: impl Iterator<Item = String>) -> Result<(Grid, bool), String> {
    let (mut grid, mut policies) = (Grid::full(), false);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quick" => grid = Grid::quick(),
            "--free-cores" => grid.free_cores_only = true,
            "--policies" => policies = true,
            _ => {
                let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
                option(&mut grid, &word, &value)?;
            }
        }
    }
    Ok((grid, policies))
}

fn option(grid: &mut Grid, word: &str, value: &str) -> Result<(), String> {
    let number = |text: &str| list(text)?.pop().ok_or_else(|| format!("{word} needs a number"));
    let pattern = |name: &str| Pattern::FIO.into_iter().find(|pattern| pattern.name() == name);
    match word {
        "--cores" => grid.cores = list(value)?,
        "--device" => grid.devices = names(value, DeviceModel::by_name)?,
        "--block" => grid.blocks = list(value)?,
        "--depth" => grid.depths = list(value)?,
        "--pattern" => grid.patterns = names(value, pattern)?,
        "--cipher-ns" => grid.cipher.ns_per_byte = list(value)?[0],
        "--queues" => grid.queues = list(value)?[0],
        "--poll-ns" => grid.poll_ns = Some(number(value)?),
        "--wake-ns" => grid.costs.wake = number(value)?,
        "--seed" => grid.seed = number(value)?,
        _ => return Err(format!("there is no option {word}")),
    }
    Ok(())
}

/// Runs all cells on the cores that there are.
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
        cell.device.name(),
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
    let adaptive = ("adaptive", &comparison.adaptive);
    let statics = comparison.statics.iter().map(|(policy, report)| (policy.name(), report));
    for (name, report) in std::iter::once(adaptive).chain(statics) {
        let p99_us = report.p99_ns() as f64 / 1000.0;
        let (speed, busy, tally) = (report.mb_s, report.busy * 100.0, report.tally);
        println!(
            "    {name:17} {speed:9.1} MB/s  p99 {p99_us:9.1} us  busy {busy:3.0} %  {tally:?}"
        );
    }
}

fn main() -> ExitCode {
    let (grid, policies) = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("grid: {error}");
            return ExitCode::FAILURE;
        }
    };
    let cells = grid.cells();
    let results = run(&cells);
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
    ExitCode::SUCCESS
}
