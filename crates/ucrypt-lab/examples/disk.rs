//! Prints the policies side by side on a real disk, with slow ciphers: `disk DIR [OPTION]...`, with
//! `--cipher SPEC,...` (of 512 bits; `SPEC@NS` slows a cipher down to NS nanoseconds per byte),
//! `--block`, `--depth` and `--pattern` of [`ucrypt_lab::options`], `--ms 400` (least length of a run) and
//! `--rounds 5` (runs of each policy, interleaved).
//!
//! Makes an image in DIR, opens it with direct I/O, and removes it at the end. `speed` is
//! adaptive's throughput relative to the fixed policy that does best against it, in the median of
//! the rounds; `again` is the same of the policy `inline` against itself (a second volume), and so
//! tells how much of a difference is the machine's.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ucrypt_backend::{Backend, FileBackend, OpenOptions};
use ucrypt_engine::{CipherModel, Fixed, PolicyKind};
use ucrypt_lab::grid::Grid;
use ucrypt_lab::real::{Bench, DISK_BYTES};
use ucrypt_lab::{Job, options};

/// Minimum throughput relative to the best fixed policy.
const SPEED_MIN: f64 = 0.97;

/// Minimum length of a run, in times that the requests in flight take: in the first half, which is
/// not measured, the explorer tries arms.
const ROUNDS_MIN: f64 = 24.0;

/// By default a cipher in software that is fast for one, one that is slow, and dm-crypt's AES of
/// a slow core.
const CIPHERS: &str = "serpent-xts-plain64,aria-xts-plain64,aes-xts-plain64@1";

struct Arguments {
    dir: PathBuf,
    ciphers: String,
    grid: Grid,
    time: Duration,
    rounds: u64,
}

fn arguments(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let dir = words.next().ok_or("name a directory on the disk")?.into();
    let (blocks, depths) = (vec![4 << 10, 64 << 10, 1 << 20], vec![1, 4, 32]);
    let mut grid = Grid { blocks, depths, ..Grid::quick() };
    options::take(&mut grid, "--pattern", &mut ["randread,randwrite".into()].into_iter())?;
    let (ciphers, time) = (CIPHERS.into(), Duration::from_millis(400));
    let mut arguments = Arguments { dir, ciphers, grid, time, rounds: 5 };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--cipher" => arguments.ciphers = options::value(&word, &mut words)?,
            "--ms" => arguments.time = Duration::from_millis(options::number(&word, &mut words)?),
            "--rounds" => arguments.rounds = options::number(&word, &mut words)?,
            "--block" | "--depth" | "--pattern" => {
                options::take(&mut arguments.grid, &word, &mut words)?;
            }
            _ => return Err(format!("there is no option {word}")),
        }
    }
    Ok(arguments)
}

/// An image that is removed at the end.
struct Image(PathBuf);

impl Drop for Image {
    fn drop(&mut self) {
        // Nobody is left to tell.
        let _ = fs::remove_file(&self.0);
    }
}

impl Image {
    fn new(dir: &Path) -> io::Result<Self> {
        let path = dir.join(format!("ucrypt-disk-{}", std::process::id()));
        let file = File::create_new(&path)?;
        let image = Self(path);
        file.set_len(DISK_BYTES)?;
        Ok(image)
    }

    fn backend(&self) -> io::Result<Arc<dyn Backend>> {
        let options = OpenOptions { direct: true, unlocked: true, ..OpenOptions::default() };
        Ok(Arc::new(FileBackend::open(&self.0, options).map_err(io::Error::other)?))
    }
}

fn bench(image: &Image, cipher: &str, policies: &[PolicyKind]) -> io::Result<Bench> {
    let (spec, model) = match cipher.split_once('@') {
        None => (cipher, None),
        Some((spec, ns)) => {
            let ns_per_byte = ns.parse().map_err(io::Error::other)?;
            (spec, Some(CipherModel { ns_per_byte, ns_per_call: 0 }))
        }
    };
    Bench::over(&image.backend()?, spec, model, policies)
}

/// The throughputs of all policies in each round, in MB/s; the last is `inline` once more.
fn measure(
    (all, again): (&Bench, &Bench),
    job: Job,
    arguments: &Arguments,
) -> io::Result<Vec<Vec<f64>>> {
    let count = PolicyKind::ALL.len() + 1;
    let pilot = again.run(Fixed::Inline.into(), job, arguments.time, 1)?;
    let in_flight = job.block_bytes as f64 * f64::from(job.depth);
    let settled = Duration::from_secs_f64(ROUNDS_MIN * in_flight / (pilot.mb_s * 1e6));
    let time = arguments.time.max(settled);
    let mut rounds = Vec::new();
    for round in 0..arguments.rounds {
        let mut mb_s = vec![0.0; count];
        // Rotate the order, so that no policy is always the first.
        for turn in 0..count {
            let of = (turn + 3 * round as usize) % count;
            let run = match PolicyKind::ALL.get(of) {
                Some(&policy) => all.run(policy, job, time, round + 1),
                None => again.run(Fixed::Inline.into(), job, time, round + 1),
            };
            mb_s[of] = run?.mb_s;
        }
        rounds.push(mb_s);
    }
    Ok(rounds)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn run(arguments: &Arguments) -> io::Result<()> {
    println!(
        "| cipher | ns/byte | block | depth | pattern | adaptive MB/s | best | speed | again | |"
    );
    println!("|---|---:|---:|---:|---|---:|---|---:|---:|---|");
    let (mut cells, mut short) = (0, 0);
    let image = Image::new(&arguments.dir)?;
    for cipher in arguments.ciphers.split(',') {
        let all = bench(&image, cipher, &PolicyKind::ALL)?;
        let again = bench(&image, cipher, &[Fixed::Inline.into()])?;
        let Grid { blocks, depths, patterns, .. } = &arguments.grid;
        for (&block_bytes, &depth, &pattern) in blocks.iter().flat_map(|block| {
            let with = move |depth| patterns.iter().map(move |pattern| (block, depth, pattern));
            depths.iter().flat_map(with)
        }) {
            let requests = u64::MAX;
            let job = Job { pattern, block_bytes, depth, requests, region_bytes: DISK_BYTES };
            let rounds = measure((&all, &again), job, arguments)?;
            let ratio = |of: usize, to: usize| median(rounds.iter().map(|r| r[of] / r[to]));
            let inline = PolicyKind::ALL.iter().position(|&p| p == Fixed::Inline.into());
            let repeated = ratio(PolicyKind::ALL.len(), inline.unwrap_or(0));
            let against = (1..PolicyKind::ALL.len()).map(|policy| (ratio(0, policy), policy));
            let (speed, best) =
                against.min_by(|a, b| a.0.total_cmp(&b.0)).expect("there are fixed policies");
            let falls_short = speed < SPEED_MIN;
            (cells, short) = (cells + 1, short + u32::from(falls_short));
            println!(
                "| {cipher} | {:.2} | {}k | {depth} | {} | {:.1} | {} | {speed:.3} | {repeated:.3} | {} |",
                all.cipher().ns_per_byte,
                block_bytes >> 10,
                pattern.name(),
                median(rounds.iter().map(|r| r[0])),
                PolicyKind::ALL[best].name(),
                if falls_short { "short" } else { "" },
            );
        }
    }
    println!("\n{short} of {cells} cells are below {SPEED_MIN}.");
    Ok(())
}

fn main() -> ExitCode {
    let result = arguments(std::env::args().skip(1));
    let result = result.and_then(|arguments| run(&arguments).map_err(|error| error.to_string()));
    if let Err(error) = result {
        eprintln!("disk: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
