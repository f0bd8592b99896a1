//! What the servers of ucrypt are to reach, beside what a run of `ucrypt lab run exports` has measured.
//!
//!     ucrypt lab run exports --on DIR --before OLD --rounds 9 --out disk
//!     cargo run --release -p ucrypt-lab --example aims disk [memory]
//!
//! `memory` is a run of the same in memory, for what is compared with another build there. Where an aim is missed,
//! the server that only copies tells whether anybody could reach it: it was measured in the same rounds.

use std::path::Path;
use std::process::ExitCode;

use ucrypt_lab::analysis::Spread;
use ucrypt_lab::catalogue::{EXPORTS, Scale, by_name};
use ucrypt_lab::contender::Contender;
use ucrypt_lab::sample::Sample;
use ucrypt_lab::store::{self, Record};

/// The image itself, and the kernel's loop device over it.
const IMAGE: &str = "file";
const KERNEL: &str = "loop";

const WAYS: [&str; 3] = ["fuse", "loop", "nbd"];

/// What is compared.
#[derive(Clone, Copy)]
enum Measure {
    /// Throughput over that of the base.
    Speed,
    /// Latency added to that of the image, over what the base adds. Not to be exceeded.
    Added,
    /// Processor time of a request, of client, server and kernel together, over that of the base. Not to be exceeded.
    Processor,
}

struct Aim {
    measure: Measure,
    ours: String,
    base: String,
    /// The server that only copies, where it limits what anybody reaches.
    ceiling: Option<String>,
    cell: String,
    wanted: f64,
}

struct Records<'a>(&'a [Record]);

impl Records<'_> {
    fn rounds(&self, name: &str, cell: &str) -> Vec<(u32, &Sample)> {
        let Ok(contender) = name.parse::<Contender>() else { return Vec::new() };
        let of_it = |record: &&Record| record.contender == contender && record.cell == cell;
        let all = self.0.iter().filter(of_it);
        all.filter_map(|record| Some((record.round, record.sample.as_ref()?))).collect()
    }

    /// Round by round, of two contenders and the image.
    fn spread(&self, (measure, ours, base): (Measure, &str, &str), cell: &str) -> Option<Spread> {
        let (bases, images) = (self.rounds(base, cell), self.rounds(IMAGE, cell));
        let at = |all: &[(u32, &Sample)], round| {
            all.iter().find(|(of, _)| *of == round).map(|(_, sample)| (*sample).clone())
        };
        let rounds = self.rounds(ours, cell).into_iter();
        let pair = |(round, sample): (u32, &Sample)| -> Option<(f64, f64)> {
            let base = at(&bases, round)?;
            Some(match measure {
                Measure::Speed => (sample.mb_s, base.mb_s),
                Measure::Added => {
                    let image = at(&images, round)?.mean_us;
                    (sample.mean_us - image, base.mean_us - image)
                }
                Measure::Processor => (sample.processor?.all_us(), base.processor?.all_us()),
            })
        };
        let pairs: Vec<_> = rounds.filter_map(pair).collect();
        match measure {
            Measure::Added => of_differences(&pairs),
            _ => {
                Spread::of(pairs.iter().filter(|(_, base)| *base > 0.0).map(|(of, base)| of / base))
            }
        }
    }
}

/// The ratio of medians: a difference may be near 0 or below it in one round, where a ratio says nothing. The quartiles
/// are of rounds drawn anew (B. Efron, Annals of Statistics 7, 1979). `None` if the base adds nothing.
fn of_differences(pairs: &[(f64, f64)]) -> Option<Spread> {
    const DRAWS: usize = 1000;
    let ratio = |pairs: &[(f64, f64)]| {
        let median =
            |side: fn(&(f64, f64)) -> f64| Some(Spread::of(pairs.iter().map(side))?.median);
        let base = median(|pair| pair.1).filter(|base| *base > 0.0)?;
        Some(median(|pair| pair.0)? / base)
    };
    let median = ratio(pairs)?;
    let mut random = fastrand::Rng::with_seed(1);
    let draws = (0..DRAWS).map(|_| {
        let drawn: Vec<_> = pairs.iter().map(|_| pairs[random.usize(..pairs.len())]).collect();
        // Where the base adds nothing, ours adds beyond all measure.
        ratio(&drawn).unwrap_or(f64::MAX)
    });
    let drawn = Spread::of(draws)?;
    Some(Spread { median, count: pairs.len(), ..drawn })
}

/// A group of aims.
type Group = (&'static str, Vec<Aim>);

fn aims(cells: &[String]) -> Vec<Group> {
    let some = |keep: fn(&str) -> bool| cells.iter().filter(move |cell| keep(cell));
    let deep =
        |cell: &str| cell.starts_with("4k") && (cell.ends_with("qd32") || cell.ends_with("qd128"));
    let one = |measure, way: &str, base: &str, cell: &str, wanted| {
        let (ours, base, cell) = (format!("ucrypt-{way}"), base.to_owned(), cell.to_owned());
        Aim { measure, ours, base, ceiling: Some(format!("copy-{way}")), cell, wanted }
    };
    let lone = "4k randread qd1";
    let every = |base: fn(&str) -> String, keep: fn(&str) -> bool, measure: Measure, aim: f64| {
        let of_way = move |way: &&'static str| {
            let (way, base) = (*way, base(way));
            some(keep).map(move |cell| one(measure, way, &base, cell, aim)).collect::<Vec<_>>()
        };
        WAYS.iter().flat_map(of_way).collect::<Vec<_>>()
    };
    let peers = [("fuse", "qemu-storage-daemon"), ("nbd", "qemu-nbd")];
    let of_peers = peers.iter().flat_map(|(way, peer)| {
        cells.iter().map(move |cell| {
            one(Measure::Speed, way, peer, cell, if cell.ends_with("qd1") { 1.2 } else { 1.5 })
        })
    });
    let without_ceiling =
        |aims: Vec<Aim>| aims.into_iter().map(|it| Aim { ceiling: None, ..it }).collect();
    vec![
        (
            "File: latency added to the image's, over what the kernel's loop device adds",
            vec![one(Measure::Added, "fuse", KERNEL, lone, 0.75)],
        ),
        ("Loop device: the same", vec![one(Measure::Added, "loop", KERNEL, lone, 1.4)]),
        ("Of QEMU's LUKS by the same way: 1.2 at depth 1, 1.5 elsewhere", of_peers.collect()),
        (
            "64k and 1m: of the image",
            every(|_| IMAGE.into(), |cell| !cell.starts_with("4k"), Measure::Speed, 0.95),
        ),
        (
            "64k and 1m: of the kernel's loop device",
            every(|_| KERNEL.into(), |cell| !cell.starts_with("4k"), Measure::Speed, 1.0),
        ),
        (
            "4k at depths 32 and 128: of the image",
            every(|_| IMAGE.into(), deep, Measure::Speed, 0.92),
        ),
        (
            "Encrypted, of not encrypted",
            without_ceiling(every(
                |way| format!("ucrypt-{way}-none"),
                |_| true,
                Measure::Speed,
                0.98,
            )),
        ),
        (
            "Of the build of before",
            without_ceiling(every(|way| format!("before-{way}"), |_| true, Measure::Speed, 0.98)),
        ),
        (
            "The build of before, of itself",
            without_ceiling(every(|way| format!("before-{way}"), |_| true, Measure::Speed, 0.98))
                .into_iter()
                .map(|it: Aim| Aim { ours: it.ours.replace("ucrypt", "control"), ..it })
                .collect(),
        ),
        (
            "4k at depth 32: processor time of a request, of that of before",
            without_ceiling(every(
                |way| format!("before-{way}"),
                |cell| cell.starts_with("4k") && cell.ends_with("qd32"),
                Measure::Processor,
                0.7,
            )),
        ),
    ]
}

fn shown(spread: Spread) -> String {
    format!("{:.2} ({:.2} to {:.2})", spread.median, spread.low, spread.high)
}

const VERDICTS: [&str; 4] = ["reached", "ceiling", "within the quartiles", "**not reached**"];

/// Prints the groups as two tables: how many aims are reached, and each of them.
fn print(title: &str, records: &Records<'_>, groups: &[Group]) {
    println!("## {title}\n\n| aims | measured | {} |", VERDICTS.join(" | "));
    println!("|---|---:|---:|---:|---:|---:|");
    let mut every = Vec::new();
    for (what, aims) in groups {
        let mut counts = [0; 4];
        let mut rows = Vec::new();
        for aim in aims {
            let Some(seen) = records.spread((aim.measure, &aim.ours, &aim.base), &aim.cell) else {
                continue;
            };
            let ceiling = aim.ceiling.as_ref();
            let ceiling = ceiling
                .and_then(|ceiling| records.spread((aim.measure, ceiling, &aim.base), &aim.cell));
            let is_most = !matches!(aim.measure, Measure::Speed);
            let meets =
                |value: f64| if is_most { value <= aim.wanted } else { value >= aim.wanted };
            let verdict = if meets(seen.median) {
                0
            } else if ceiling.is_some_and(|ceiling| !meets(ceiling.median)) {
                1
            } else if meets(if is_most { seen.low } else { seen.high }) {
                2
            } else {
                3
            };
            counts[verdict] += 1;
            let (sign, ceiling) =
                (if is_most { "≤" } else { "≥" }, ceiling.map_or_else(String::new, shown));
            rows.push(format!(
                "| {} | {} : {} | {} | {sign} {} | {ceiling} | {} |",
                aim.cell,
                aim.ours,
                aim.base,
                shown(seen),
                aim.wanted,
                VERDICTS[verdict]
            ));
        }
        if !rows.is_empty() {
            let counts = counts.map(|count: usize| count.to_string()).join(" | ");
            println!("| {what} | {} | {counts} |", rows.len());
            every.push(format!("| *{what}* | | | | | |"));
            every.extend(rows);
        }
    }
    println!(
        "\n*Ceiling*: missed, and a server that only copies misses it too. *Within the quartiles*: the median"
    );
    println!("misses it, and one of the quartiles does not.\n");
    println!("| cell | measured | median (quartiles) | aim | ceiling | |");
    println!("|---|---|---:|---:|---:|---|\n{}\n", every.join("\n"));
}

fn main() -> ExitCode {
    let dirs: Vec<_> = std::env::args().skip(1).collect();
    let Some(experiment) = by_name(EXPORTS).filter(|_| (1..=2).contains(&dirs.len())) else {
        eprintln!("usage: aims DISK [MEMORY], directories of `ucrypt lab run exports`");
        return ExitCode::FAILURE;
    };
    let cells: Vec<String> =
        experiment.cells(Scale::Full).into_iter().map(|cell| cell.name).collect();
    for (at, dir) in dirs.iter().enumerate() {
        let kept = match store::read(Path::new(dir)) {
            Ok(kept) => kept,
            Err(error) => {
                eprintln!("aims: {dir}: {error}");
                return ExitCode::FAILURE;
            }
        };
        let mut groups = aims(&cells);
        // In memory there is nothing but the other build to compare with.
        groups.retain(|(what, _)| at == 0 || what.contains("before"));
        print(&format!("{} ({dir})", kept.about.settings.on), &Records(&kept.records), &groups);
    }
    ExitCode::SUCCESS
}
