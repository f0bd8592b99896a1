//! How long does a passphrase take, beside cryptsetup?
//!
//!     cargo run --release -p ucrypt-lab --example unlock -- [--ucrypt COMMAND] [--rounds N] [--pbkdf NAME]
//!         [--memory KIB] [--lanes N] [--passes N]
//!
//! One LUKS2 volume with argon2id, 1 GiB and 4 lanes by default is unlocked by `open --test-passphrase` of both
//! programs, in turns. What distorts this measurement: the derivation takes as many cores as there are lanes, and all
//! of the memory's bandwidth, so that anything else on the machine counts twice. A virtual machine gets memory from
//! its host when it first touches it: one turn of each program that does not count goes before the others.

mod shared;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use ucrypt_lab::analysis::Spread;
use ucrypt_lab::options::{number, value};

use shared::{Result, Stop};

const PASSPHRASE: &[u8] = b"correct horse battery staple";

/// A library in which programs find so many cores: no program makes more lanes than there are.
const CORES: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
long sysconf(int name)
{
    long (*real)(int) = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    return name == _SC_NPROCESSORS_ONLN ? LANES : real(name);
}
"#;

struct Asked {
    ucrypt: PathBuf,
    rounds: u32,
    pbkdf: String,
    memory_kib: u32,
    lanes: usize,
    passes: u32,
}

impl Asked {
    fn parse() -> std::result::Result<Self, String> {
        let mut asked = Self {
            ucrypt: "target/release/ucrypt".into(),
            rounds: 9,
            pbkdf: "argon2id".into(),
            memory_kib: 1 << 20,
            lanes: 4,
            passes: 4,
        };
        let mut words = std::env::args().skip(1);
        while let Some(option) = words.next() {
            match option.as_str() {
                "--ucrypt" => asked.ucrypt = value(&option, &mut words)?.into(),
                "--rounds" => asked.rounds = number(&option, &mut words)?,
                "--pbkdf" => asked.pbkdf = value(&option, &mut words)?,
                "--memory" => asked.memory_kib = number(&option, &mut words)?,
                "--lanes" => asked.lanes = number(&option, &mut words)?,
                "--passes" => asked.passes = number(&option, &mut words)?,
                _ => return Err(format!("{option} is not known")),
            }
        }
        Ok(asked)
    }
}

/// Runs a program that gets the passphrase.
fn run(command: &mut Command) -> Result<()> {
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    child.stdin.take().ok_or("no pipe")?.write_all(PASSPHRASE)?;
    let status = child.wait()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}

/// A volume by cryptsetup.
fn make(asked: &Asked, image: &Path, dir: &Path) -> Result<()> {
    File::create(image)?.set_len(20 << 20)?;
    let mut format = Command::new("cryptsetup");
    format.args(["luksFormat", "-q", "--type", "luks2", "--pbkdf", &asked.pbkdf]);
    format.args(["--pbkdf-force-iterations", &asked.passes.to_string()]);
    if asked.pbkdf != "pbkdf2" {
        format.args(["--pbkdf-memory", &asked.memory_kib.to_string()]);
        format.args(["--pbkdf-parallel", &asked.lanes.to_string()]);
    }
    if asked.lanes > std::thread::available_parallelism()?.get() {
        let (source, library) = (dir.join("cores.c"), dir.join("cores.so"));
        std::fs::write(&source, CORES.replace("LANES", &asked.lanes.to_string()))?;
        run(Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .arg("-ldl"))?;
        format.env("LD_PRELOAD", library);
    }
    run(format.arg(image))
}

/// Seconds.
fn unlock(program: &Path, image: &Path) -> Result<f64> {
    let started = Instant::now();
    run(Command::new(program).args(["open", "--test-passphrase"]).arg(image))?;
    Ok(started.elapsed().as_secs_f64())
}

fn measure(asked: &Asked, stop: &Stop) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("image");
    make(asked, &image, dir.path())?;
    // What cryptsetup has made of that.
    let dump = Command::new(&asked.ucrypt).arg("luksDump").arg(&image).output()?;
    for line in String::from_utf8_lossy(&dump.stdout).lines().map(str::trim) {
        if ["PBKDF:", "Time cost:", "Memory:", "Threads:", "Iterations:"]
            .iter()
            .any(|it| line.starts_with(it))
        {
            println!("{line}");
        }
    }
    let programs = [("ucrypt", asked.ucrypt.as_path()), ("cryptsetup", Path::new("cryptsetup"))];
    let mut seconds = [Vec::new(), Vec::new()];
    for round in 0..=asked.rounds {
        // Each goes first as often as second.
        let first = (round % 2) as usize;
        for at in [first, 1 - first] {
            stop.check()?;
            let took = unlock(programs[at].1, &image)?;
            if round > 0 {
                seconds[at].push(took);
            }
        }
    }
    for ((name, _), seconds) in programs.iter().zip(&seconds) {
        let of = Spread::of(seconds.iter().copied()).ok_or("no rounds")?;
        println!("{name:<10} {:7.3} s ({:.3} to {:.3})", of.median, of.low, of.high);
    }
    let pairs = seconds[0].iter().zip(&seconds[1]).map(|(ours, theirs)| ours / theirs);
    let ratio = Spread::of(pairs).ok_or("no rounds")?;
    println!("ratio of each round {:.3} ({:.3} to {:.3})", ratio.median, ratio.low, ratio.high);
    Ok(())
}

fn main() -> ExitCode {
    shared::carry_out("unlock", Asked::parse(), measure)
}
