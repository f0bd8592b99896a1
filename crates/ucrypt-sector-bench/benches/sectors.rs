//! Measures the speed of sector encryption against other libraries and the limits of the core.
//!
//! ```text
//! make bench-ciphers
//! cargo bench -p ucrypt-sector-bench --features peers [-- --quiet FILTER]
//! ```
//!
//! One thread, pinned to a CPU, works on 64 KiB that stay in the cache, as they do between a read
//! and its client. Criterion measures each row for a fraction of a second. A pass measures all rows
//! one after the other, and there are several passes. Compared rows thus run at the same clock, and
//! a burst of other work spoils at most one pass. The table has the median of the passes' medians.
//! Results of earlier runs are not read.
//!
//! At the end, the benchmark runs a second time in a process whose libraries are told that the
//! processor has only AES-NI (`OPENSSL_ia32cap`, which both read at startup).

use std::{
    env, fs,
    path::Path,
    process::{Command, ExitCode},
    time::Duration,
};

use criterion::{Criterion, SamplingMode, Throughput};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use ucrypt_sector::Kernel;
use ucrypt_sector_bench::{Direction, Work, limit, rows};

const PASSES: usize = 3;
const RUN: usize = 64 * 1024;

/// Tells the libraries the processor's features; `:0` means AES-NI, but no AVX2 or later.
const CAPABILITIES: (&str, &str) = ("OPENSSL_ia32cap", ":0");

/// The work that this process measures: everything, or the comparisons with AES-NI.
fn work(restricted: bool) -> Vec<Work> {
    let mut work = Vec::new();
    let mut add = |spec, sector_size, len| {
        for direction in [Direction::Encrypt, Direction::Decrypt] {
            work.push(Work { spec, sector_size, len, direction });
        }
    };
    for sector_size in [512, 4096] {
        add("aes-xts-plain64", sector_size, RUN);
        if restricted {
            continue;
        }
        add("aes-xts-plain64", sector_size, sector_size);
        add("aes-cbc-plain64", sector_size, RUN);
        for spec in ["serpent-xts-plain64", "twofish-xts-plain64", "camellia-xts-plain64"] {
            add(spec, sector_size, RUN);
        }
    }
    work
}

/// A group of the table.
struct Group {
    work: Work,
    rows: Vec<Measured>,
}

/// A row with the median nanoseconds per call of each pass.
struct Measured {
    name: String,
    medians: Vec<f64>,
}

impl Measured {
    /// Bytes per nanosecond: GB/s.
    fn speed(&self, len: usize) -> f64 {
        len as f64 / self.ns()
    }

    fn ns(&self) -> f64 {
        let mut sorted = self.medians.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }
}

/// Measures every row once. Criterion leaves its results under `results`.
fn pass(groups: &mut [Group], kernel: Kernel, results: &Path) {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(30))
        .measurement_time(Duration::from_millis(150))
        .nresamples(1000)
        .output_directory(results)
        .configure_from_args();
    for Group { work, rows } in groups {
        let title = work.to_string();
        let mut group = criterion.benchmark_group(&title);
        group.sampling_mode(SamplingMode::Flat);
        group.throughput(Throughput::Bytes(work.len as u64));
        for mut row in rows::all(*work, kernel) {
            group.bench_function(&row.name, |bencher| bencher.iter(|| (row.run)()));
            let file = results.join(&title).join(&row.name).join("new/estimates.json");
            // The file is missing if a filter excluded the row.
            let Ok(file) = fs::read(file) else { continue };
            let estimates: serde_json::Value = serde_json::from_slice(&file).expect("JSON");
            let median = estimates["median"]["point_estimate"].as_f64().expect("a median");
            match rows.iter_mut().find(|measured| measured.name == row.name) {
                Some(measured) => measured.medians.push(median),
                None => rows.push(Measured { name: row.name, medians: vec![median] }),
            }
        }
        group.finish();
    }
}

fn print_table(groups: &[Group], kernel: Kernel) {
    let restricted = env::var(CAPABILITIES.0).map(|value| format!(", libraries with {value}"));
    println!("\n# kernel {kernel}{}", restricted.unwrap_or_default());
    println!("# {}", ucrypt_sector_bench::versions());
    for Group { work, rows } in groups.iter().filter(|group| !group.rows.is_empty()) {
        let limit = rows.iter().find(|row| row.name == limit::NAME);
        let of_limit = if limit.is_some() { "of limit" } else { "" };
        println!("\n{:46} {:>9} {:>7} {of_limit:>8}", work.to_string(), "ns", "GB/s");
        for row in rows {
            let speed = row.speed(work.len);
            let share = limit.map(|limit| format!("{:8.3}", speed / limit.speed(work.len)));
            let share = share.unwrap_or_default();
            println!("  {:44} {:9.1} {speed:7.2} {share}", row.name, row.ns());
        }
    }
}

/// Pins this process to the last CPU that it may use: the first CPUs take more interrupts.
fn pin() {
    let allowed = sched_getaffinity(None).expect("the CPUs that may be used");
    let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu)).expect("a CPU");
    let mut set = CpuSet::new();
    set.set(last);
    sched_setaffinity(None, &set).expect("a pinned thread");
}

fn main() -> ExitCode {
    pin();
    let restricted = env::var_os(CAPABILITIES.0).is_some();
    let kernel = if restricted { Kernel::AesNi } else { Kernel::best() };
    if !kernel.is_available() {
        return ExitCode::SUCCESS;
    }
    let results = tempfile::tempdir().expect("a directory for Criterion");
    let mut groups: Vec<Group> =
        work(restricted).into_iter().map(|work| Group { work, rows: Vec::new() }).collect();
    for number in 0..PASSES {
        pass(&mut groups, kernel, &results.path().join(number.to_string()));
    }
    print_table(&groups, kernel);
    if restricted {
        return ExitCode::SUCCESS;
    }
    let program = env::current_exe().expect("this program");
    let status = Command::new(program)
        .args(env::args_os().skip(1))
        .env(CAPABILITIES.0, CAPABILITIES.1)
        .status()
        .expect("the second part");
    if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
