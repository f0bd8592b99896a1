//! Many volumes open at once: time to open and to close, memory, threads, and wake-ups while nobody uses them.
//!
//!     cargo run --release -p ucrypt-lab --example many -- [--ucrypt COMMAND] [--dir DIR] [--volumes N] [--size MIB]
//!         [--as KIND,KIND] [--idle SECONDS]
//!
//! Each volume has an image of its own, a LUKS2 header with PBKDF2 of 1000 iterations, and a server of its own; every
//! volume is read once before anything is counted. Memory is what the machine has less after opening (`MemAvailable`), so
//! nothing else may take or free any meanwhile. Wake-ups are the context switches of all threads of all servers.
//! Loop devices need root.

mod shared;

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use ucrypt_lab::analysis::Spread;
use ucrypt_lab::options::{number, value};

use shared::{Result, Stop};

/// For some seconds after the first requests, threads of io_uring end.
const SETTLE: Duration = Duration::from_secs(8);

struct Asked {
    ucrypt: PathBuf,
    dir: PathBuf,
    volumes: u32,
    size_mib: u64,
    kinds: Vec<String>,
    idle_s: f64,
}

impl Asked {
    fn parse() -> std::result::Result<Self, String> {
        let mut asked = Self {
            ucrypt: "target/release/ucrypt".into(),
            dir: "/var/tmp".into(),
            volumes: 100,
            size_mib: 64,
            kinds: ["loop", "fuse", "nbd"].map(Into::into).into(),
            idle_s: 10.0,
        };
        let mut words = std::env::args().skip(1);
        while let Some(option) = words.next() {
            match option.as_str() {
                "--ucrypt" => asked.ucrypt = value(&option, &mut words)?.into(),
                "--dir" => asked.dir = value(&option, &mut words)?.into(),
                "--volumes" => asked.volumes = number(&option, &mut words)?,
                "--size" => asked.size_mib = number(&option, &mut words)?,
                "--as" => {
                    asked.kinds = value(&option, &mut words)?.split(',').map(Into::into).collect();
                }
                "--idle" => asked.idle_s = number(&option, &mut words)?,
                _ => return Err(format!("{option} is not known")),
            }
        }
        Ok(asked)
    }
}

/// The images. What is open is closed when they are dropped.
struct Volumes<'a> {
    asked: &'a Asked,
    scratch: &'a Path,
    names: Vec<String>,
    opened: Vec<String>,
}

impl<'a> Volumes<'a> {
    fn make(asked: &'a Asked, scratch: &'a Path) -> Result<Self> {
        let unique = std::process::id();
        let names = (0..asked.volumes).map(|index| format!("many-{unique}-{index}"));
        let volumes = Self { asked, scratch, names: names.collect(), opened: Vec::new() };
        fs::write(scratch.join("key"), "many")?;
        for name in &volumes.names {
            let image = volumes.image(name);
            File::create(&image)?.set_len(asked.size_mib << 20)?;
            let words =
                ["luksFormat", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "-q"];
            run(volumes.command(&words).arg("--key-file").arg(scratch.join("key")).arg(image))?;
        }
        Ok(volumes)
    }

    fn image(&self, name: &str) -> PathBuf {
        self.scratch.join(name).with_extension("img")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.asked.ucrypt);
        command.args(words).env("XDG_RUNTIME_DIR", self.scratch);
        command
    }

    fn open(&mut self, name: &str, kind: &str) -> Result<()> {
        let mut open = self.command(&["open", "--direct", "--as", kind, "--key-file"]);
        let place = run(open.arg(self.scratch.join("key")).arg(self.image(name)).arg(name))?;
        self.opened.push(name.to_owned());
        if kind != "nbd" {
            File::open(place)?.read_exact(&mut vec![0; 1 << 20])?;
        }
        Ok(())
    }

    fn close(&mut self, name: &str) -> Result<()> {
        run(self.command(&["close"]).arg(name))?;
        self.opened.retain(|open| open != name);
        Ok(())
    }

    /// The directories in /proc of processes that have one of our names on their command line.
    fn servers(&self) -> Vec<PathBuf> {
        let serves = |entry: fs::DirEntry| {
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let is_name = |word: &[u8]| self.names.iter().any(|name| name.as_bytes() == word);
            line.split(|byte| *byte == 0).any(is_name).then(|| entry.path())
        };
        fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .filter_map(|entry| serves(entry.ok()?))
            .collect()
    }
}

impl Drop for Volumes<'_> {
    fn drop(&mut self) {
        for name in &self.opened {
            let _ = self.command(&["close"]).arg(name).status();
        }
    }
}

/// What a program printed.
fn run(command: &mut Command) -> Result<String> {
    let done = command.output()?;
    let said = String::from_utf8_lossy(&done.stdout).trim().to_owned();
    if done.status.success() {
        return Ok(said);
    }
    let why = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    Err(format!("{command:?}: {why}").into())
}

/// Median of the milliseconds that each takes, one after the other.
fn timed(names: &[String], stop: &Stop, mut act: impl FnMut(&str) -> Result<()>) -> Result<f64> {
    let mut ms = Vec::new();
    for name in names {
        stop.check()?;
        let started = Instant::now();
        act(name)?;
        ms.push(started.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(ms))
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    Spread::of(values).map_or(0.0, |spread| spread.median)
}

/// A field of a file in /proc that is in kB, in MiB.
fn mib(path: &Path, field: &str) -> f64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let rest = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
    rest.split_whitespace().next().and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

fn tasks(server: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(server.join("task")).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Context switches of all threads so far.
fn switches(servers: &[PathBuf]) -> f64 {
    let of_task = |task: PathBuf| {
        let text = fs::read_to_string(task.join("status")).unwrap_or_default();
        let lines = text.lines().filter(|line| line.contains("ctxt_switches"));
        lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok()).sum::<f64>()
    };
    servers.iter().flat_map(|server| tasks(server)).map(of_task).sum()
}

fn measure(asked: &Asked, stop: &Stop) -> Result<()> {
    let dir = tempfile::Builder::new().prefix("ucrypt-many-").tempdir_in(&asked.dir)?;
    let mut volumes = Volumes::make(asked, dir.path())?;
    let names = volumes.names.clone();
    println!(
        "| `open --as` | to open each | to close | memory of the machine, each | of a server | threads | wake-ups |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for kind in &asked.kinds {
        let available = || mib(Path::new("/proc/meminfo"), "MemAvailable:");
        let before = available();
        let opening = timed(&names, stop, |name| volumes.open(name, kind))?;
        std::thread::sleep(SETTLE);
        stop.check()?;
        let servers = volumes.servers();
        let each = (before - available()) / f64::from(asked.volumes);
        let size = median(servers.iter().map(|server| mib(&server.join("status"), "VmRSS:")));
        let threads = median(servers.iter().map(|server| tasks(server).len() as f64));
        let counted = switches(&servers);
        std::thread::sleep(Duration::from_secs_f64(asked.idle_s));
        let woken = (switches(&servers) - counted) / asked.idle_s;
        let closing = timed(&names, stop, |name| volumes.close(name))?;
        println!(
            "| {kind} | {opening:.0} ms | {closing:.0} ms | {each:.1} MiB | {size:.1} MiB | {threads:.0} | \
             {woken:.1} a second |"
        );
    }
    Ok(())
}

fn main() -> ExitCode {
    shared::carry_out("many", Asked::parse(), measure)
}
