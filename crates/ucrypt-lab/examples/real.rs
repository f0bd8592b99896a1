//! Prints the grid of policies in real time, on the cores of this machine: `real [OPTION]...`, with
//! the options of [`ucrypt_lab::options`] and `--ms 240` (length of a run), `--rounds 3` (runs of
//! each policy, interleaved; the medians count) and `--policies`.
//!
//! Next to each cell stands the simulator's result, with the costs of the engine over a device
//! model and this machine's cipher speed. A cell falls short when adaptive reaches less than 0.95
//! of the best fixed policy's throughput; it disagrees when a policy's real throughput differs
//! from its virtual one by more than 15 %.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use ucrypt_engine::{Fixed, PolicyKind};
use ucrypt_lab::grid::{Cell, Grid};
use ucrypt_lab::options;
use ucrypt_lab::real::{Bench, DISK_BYTES, Sample};
use ucrypt_lab::world::Costs;

/// Minimum throughput relative to the best fixed policy.
const SPEED_MIN: f64 = 0.95;

/// Minimum length of a run, in times that the requests in flight take: in the first half, which is
/// not measured, the explorer tries arms. On a rotating disk there is nothing to try, and
/// everything takes long.
const ROUNDS_MIN: f64 = 24.0;
const ROUNDS_MIN_ROTATIONAL: f64 = 10.0;

/// Largest relative difference between real and virtual throughput.
const DISAGREES: f64 = 0.15;

struct Arguments {
    grid: Grid,
    time: Duration,
    rounds: u64,
    policies: bool,
}

fn arguments(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let region_bytes = DISK_BYTES;
    let costs = Costs::MODEL;
    let grid = Grid { cores: vec![cores], region_bytes, costs, ..Grid::full() };
    let time = Duration::from_millis(240);
    let mut arguments = Arguments { grid, time, rounds: 3, policies: false };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--ms" => arguments.time = Duration::from_millis(options::number(&word, &mut words)?),
            "--rounds" => arguments.rounds = options::number(&word, &mut words)?,
            "--policies" => arguments.policies = true,
            _ if options::take(&mut arguments.grid, &word, &mut words)? => {}
            _ => return Err(format!("there is no option {word}")),
        }
    }
    Ok(arguments)
}

/// A policy's results in a cell.
struct Reached {
    policy: PolicyKind,
    /// The run with the median throughput.
    real: Sample,
    virtual_mb_s: f64,
}

impl Reached {
    /// Virtual throughput relative to the real one.
    fn agreement(&self) -> f64 {
        self.virtual_mb_s / self.real.mb_s
    }
}

/// The requested time, or longer, so that every request in flight is answered a few times even on
/// slow devices.
fn time(cell: &Cell<'_>, arguments: &Arguments) -> Duration {
    let in_flight = cell.block as f64 * f64::from(cell.depth);
    let mb_s = cell.experiment(Fixed::Inline).run().mb_s;
    let rounds = if cell.device.limits(0).rotational { ROUNDS_MIN_ROTATIONAL } else { ROUNDS_MIN };
    arguments.time.max(Duration::from_secs_f64(rounds * in_flight / (mb_s * 1e6)))
}

fn measure(bench: &Bench, cell: &Cell<'_>, arguments: &Arguments) -> io::Result<Vec<Reached>> {
    let mut samples = vec![Vec::new(); PolicyKind::ALL.len()];
    let time = time(cell, arguments);
    for round in 0..arguments.rounds as usize {
        // Rotate the order, so that no policy is always the first.
        for turn in 0..PolicyKind::ALL.len() {
            let of = (turn + 3 * round) % PolicyKind::ALL.len();
            let seed = round as u64 + 1;
            samples[of].push(bench.run(PolicyKind::ALL[of], cell.job(), time, seed)?);
        }
    }
    let reached = samples.into_iter().zip(PolicyKind::ALL).map(|(mut samples, policy)| {
        samples.sort_by(|a, b| a.mb_s.total_cmp(&b.mb_s));
        let real = samples[samples.len() / 2];
        Reached { policy, real, virtual_mb_s: cell.experiment(policy).run().mb_s }
    });
    Ok(reached.collect())
}

/// A cell's line, whether it falls short, and whether it disagrees.
fn judge(cell: &Cell<'_>, reached: &[Reached]) -> (String, bool, bool) {
    let (adaptive, fixed) = reached.split_first().expect("adaptive is the first of all");
    let best = fixed.iter().max_by(|a, b| a.real.mb_s.total_cmp(&b.real.mb_s));
    let best = best.expect("there are fixed policies");
    let off = |of: &&Reached| (of.agreement().ln()).abs();
    let worst = reached.iter().max_by(|a, b| off(a).total_cmp(&off(b))).expect("there are some");
    let speed = adaptive.real.mb_s / best.real.mb_s;
    let short = speed < SPEED_MIN;
    let disagrees = !(1.0 - DISAGREES..=1.0 / (1.0 - DISAGREES)).contains(&worst.agreement());
    let line = format!(
        "{:10} {:7} {:5} {:9} {:9.1} {:9.1} {:17} {:6.3} {:9.1} {:6.2} {:6.2} {:17}{}{}",
        cell.device.name,
        cell.block,
        cell.depth,
        cell.pattern.name(),
        adaptive.real.mb_s,
        best.real.mb_s,
        best.policy.name(),
        speed,
        adaptive.virtual_mb_s,
        adaptive.agreement(),
        worst.agreement(),
        worst.policy.name(),
        if short { " short" } else { "" },
        if disagrees { " disagrees" } else { "" },
    );
    (line, short, disagrees)
}

fn print_policies(reached: &[Reached]) {
    for Reached { policy, real, virtual_mb_s } in reached {
        println!(
            "    {:17} {:9.1} MB/s, p99 {:9.1} us; virtual {virtual_mb_s:9.1} MB/s; {:?}",
            policy.name(),
            real.mb_s,
            real.p99_ns as f64 / 1000.0,
            real.stats
        );
    }
}

fn run(arguments: &Arguments) -> io::Result<()> {
    let header = format!(
        "{:10} {:>7} {:>5} {:9} {:>9} {:>9} {:17} {:>6} {:>9} {:>6} {:>6} {:17}",
        "device",
        "block",
        "depth",
        "pattern",
        "adaptive",
        "best",
        "which",
        "speed",
        "virtual",
        "v/r",
        "worst",
        "which"
    );
    println!("{header}");
    let (mut all, mut short, mut disagree) = (0, Vec::new(), 0);
    for &device in &arguments.grid.devices {
        let bench = Bench::new(device, arguments.grid.cipher, &PolicyKind::ALL)?;
        let grid = Grid { cipher: bench.cipher(), ..arguments.grid.clone() };
        for cell in grid.cells().iter().filter(|cell| cell.device == device) {
            let reached = measure(&bench, cell, arguments)?;
            let (line, falls_short, disagrees) = judge(cell, &reached);
            println!("{line}");
            if arguments.policies {
                print_policies(&reached);
            }
            all += 1;
            disagree += usize::from(disagrees);
            if falls_short {
                short.push(line);
            }
        }
    }
    println!("\n{} of {all} cells fall short, {disagree} disagree:\n{header}", short.len());
    for line in &short {
        println!("{line}");
    }
    Ok(())
}

fn main() -> ExitCode {
    let result = arguments(std::env::args().skip(1));
    let result = result.and_then(|arguments| run(&arguments).map_err(|error| error.to_string()));
    if let Err(error) = result {
        eprintln!("real: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
