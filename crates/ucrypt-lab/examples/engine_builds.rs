//! Two builds of the engine's benchmark, in turn, so that both see the same machine.
//!
//!     cargo run --release -p ucrypt-lab --example engine_builds -- OLD NEW [--rounds N] [--experiment NAME]
//!
//! OLD and NEW are programs made by `cargo bench --package ucrypt-engine --bench engine --no-run`, of two commits.
//! Prints, for each row of the experiment's table, the least time of both, which other programs on the machine
//! disturb least, and the median of the rounds' ratios with its quartiles.

mod shared;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use ucrypt_lab::analysis::Spread;
use ucrypt_lab::options::{number, value};

use shared::{Result, Stop};

struct Asked {
    /// The old one and the new one.
    programs: [PathBuf; 2],
    rounds: usize,
    experiment: String,
}

impl Asked {
    fn parse() -> std::result::Result<Self, String> {
        let (mut programs, mut rounds, mut experiment) = (Vec::new(), 15, "alone".to_owned());
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "--rounds" => rounds = number(&word, &mut words)?,
                "--experiment" => experiment = value(&word, &mut words)?,
                _ => programs.push(word.into()),
            }
        }
        let programs = programs.try_into().map_err(|_| "two programs are compared: OLD NEW")?;
        Ok(Self { programs, rounds, experiment })
    }
}

/// The first two columns of a table, and nanoseconds of the engine.
type Row = ((String, String), f64);

fn rows(program: &PathBuf, experiment: &str) -> Result<Vec<Row>> {
    let done = Command::new(program).arg(experiment).output()?;
    if !done.status.success() {
        return Err(format!("{}: {}", program.display(), done.status).into());
    }
    let said = String::from_utf8(done.stdout)?;
    let table = said.lines().filter(|line| line.starts_with('|'));
    let table: Vec<Vec<&str>> =
        table.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect();
    let place = |row: &Vec<&str>| row.iter().position(|name| *name == "engine ns");
    let at = table.iter().find_map(place).ok_or("the benchmark printed no engine ns")?;
    let row = |row: &Vec<&str>| {
        let ns = row.get(at)?.parse().ok()?;
        Some((((*row.first()?).to_owned(), (*row.get(1)?).to_owned()), ns))
    };
    Ok(table.iter().filter_map(row).collect())
}

fn measure(asked: &Asked, stop: &Stop) -> Result<()> {
    let mut found: [Vec<Vec<Row>>; 2] = [Vec::new(), Vec::new()];
    for round in 0..asked.rounds {
        // Each goes first as often as second.
        for at in [round % 2, 1 - round % 2] {
            stop.check()?;
            found[at].push(rows(&asked.programs[at], &asked.experiment)?);
        }
    }
    println!("| request | sector | least old ns | least new ns | median of new/old | quartiles |");
    println!("|---|---:|---:|---:|---:|---|");
    let mut medians = Vec::new();
    let ns = |rows: &[Row], key: &(String, String)| {
        rows.iter().find(|(of, _)| of == key).map(|(_, ns)| *ns)
    };
    for (key, _) in found[0].first().ok_or("no rounds")? {
        let least = found
            .each_ref()
            .map(|rounds| rounds.iter().filter_map(|rows| ns(rows, key)).fold(f64::MAX, f64::min));
        let pairs = found[0].iter().zip(&found[1]);
        let ratio = Spread::of(pairs.filter_map(|(old, new)| Some(ns(new, key)? / ns(old, key)?)));
        let ratio = ratio.ok_or("the builds have other rows")?;
        medians.push(ratio.median);
        println!(
            "| {} | {} | {} | {} | {:.3} | {:.3} to {:.3} |",
            key.0, key.1, least[0], least[1], ratio.median, ratio.low, ratio.high
        );
    }
    let all = Spread::of(medians).ok_or("no rows")?;
    println!("\nall rows: {:.4} of the rounds' medians", all.median);
    Ok(())
}

fn main() -> ExitCode {
    shared::carry_out("engine_builds", Asked::parse(), measure)
}
