//! Page cache or direct I/O: which loses least, on an image that fits into memory and on one that does not?
//!
//!     cargo run --release -p ucrypt-lab --example page_cache -- [--ucrypt COMMAND] [--dir DIR] [--memory MIB]
//!         [--rounds N] [--seconds S] [--only WORD]
//!
//! A volume is served from its image through the page cache (the default) and past it (`--direct`), in turns. Server
//! and client each have a memory group of `--memory` MiB, as a host and its guest: the small image fits into either,
//! the large one, three times as large, into neither. Two kinds of client: one without a cache, as a virtual machine
//! whose disk has `cache=none` (by FUSE, whose file is not cached), and one with a page cache of its own, as a file
//! system on a loop device, where the one memory holds ciphertext and the other plaintext.
//!
//! What distorts this measurement: the host of a virtual machine has a page cache too, so that reads which the machine's
//! memory does not hold need not be reads of a disk. Version 1 of memory groups does not throttle a group that writes
//! too much: its writers wait for memory instead. Needs root and fio.

mod shared;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};
use ucrypt_lab::analysis::Spread;
use ucrypt_lab::options::{number, value};

use shared::{Result, Stop};

/// How long a volume may stay in use after its measurement: requests of its last user drain.
const CLOSE_LIMIT: Duration = Duration::from_secs(90);

/// Seconds that a program may take.
const LIMIT: &str = "600";

/// The exit code of `ucrypt close` for a volume that is in use.
const IN_USE: i32 = 5;

/// Runs of fio without a job, of which the least is its own time.
const STARTUPS: u32 = 5;

/// Name, fio's options, whether the image is read once before. A job without a time counts until everything is on the
/// disk.
const JOBS: [(&str, &str, bool); 9] = [
    ("64k read, one at a time, first time", "--rw=read --bs=64k --iodepth=1", false),
    ("1m read, 4 at a time, first time", "--rw=read --bs=1m --iodepth=4", false),
    ("1m read, 4 at a time, again", "--rw=read --bs=1m --iodepth=4", true),
    ("4k random read, one at a time", "--rw=randread --bs=4k --iodepth=1 TIMED", true),
    ("4k random read, 32 at a time", "--rw=randread --bs=4k --iodepth=32 TIMED", true),
    (
        "4k random read, 32 at a time, some places more often",
        "--rw=randread --bs=4k --iodepth=32 --random_distribution=zipf:1.2 TIMED",
        true,
    ),
    ("1m write, 4 at a time, then fsync", "--rw=write --bs=1m --iodepth=4 --end_fsync=1", false),
    (
        "4k random write, 32 at a time, then fsync",
        "--rw=randwrite --bs=4k --iodepth=32 --io_size=PARTm --end_fsync=1",
        true,
    ),
    (
        "4k random write, fsync after each 32",
        "--rw=randwrite --bs=4k --iodepth=32 --fsync=32 TIMED",
        true,
    ),
];

const MODES: [(&str, &[&str]); 2] = [("page cache", &[]), ("direct", &["--direct"])];

struct Asked {
    ucrypt: PathBuf,
    dir: PathBuf,
    memory_mib: u64,
    rounds: u32,
    seconds: f64,
    only: String,
}

impl Asked {
    fn parse() -> std::result::Result<Self, String> {
        let mut asked = Self {
            ucrypt: "target/release/ucrypt".into(),
            dir: "/var/tmp".into(),
            memory_mib: 256,
            rounds: 7,
            seconds: 2.0,
            only: String::new(),
        };
        let mut words = std::env::args().skip(1);
        while let Some(option) = words.next() {
            match option.as_str() {
                "--ucrypt" => asked.ucrypt = value(&option, &mut words)?.into(),
                "--dir" => asked.dir = value(&option, &mut words)?.into(),
                "--memory" => asked.memory_mib = number(&option, &mut words)?,
                "--rounds" => asked.rounds = number(&option, &mut words)?,
                "--seconds" => asked.seconds = number(&option, &mut words)?,
                "--only" => asked.only = value(&option, &mut words)?,
                _ => return Err(format!("{option} is not known")),
            }
        }
        Ok(asked)
    }
}

/// A memory group. Removed when dropped.
struct Group(PathBuf);

impl Group {
    fn new(who: &str, mib: u64) -> Result<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let is_v1 = root.join("memory").is_dir();
        let root = if is_v1 { root.join("memory") } else { root.to_owned() };
        if !is_v1 {
            fs::write(root.join("cgroup.subtree_control"), "+memory")?;
        }
        let group = Self(root.join(format!("ucrypt-cache-{who}-{}", std::process::id())));
        let failed = |error| format!("{}: {error}; memory groups need root", group.0.display());
        fs::create_dir(&group.0).map_err(failed)?;
        let limit = if is_v1 { "memory.limit_in_bytes" } else { "memory.max" };
        fs::write(group.0.join(limit), (mib << 20).to_string())?;
        Ok(group)
    }

    /// A program in the group.
    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("timeout");
        command
            .args(["--kill-after=10", LIMIT, "sh", "-c", "echo $$ >\"$0\" && exec \"$@\""])
            .arg(self.0.join("cgroup.procs"));
        command.arg(program.as_ref());
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its last process may be on its way out.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        eprintln!("{} is left", self.0.display());
    }
}

fn run(command: &mut Command) -> Result<String> {
    let done = command.output()?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&done.stderr).trim()).into())
}

/// An open volume. Closed when dropped.
struct Open<'a> {
    asked: &'a Asked,
    scratch: &'a Path,
    name: String,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let deadline = Instant::now() + CLOSE_LIMIT;
        let close = || {
            let mut close = Command::new(&self.asked.ucrypt);
            close.arg("close").arg(&self.name).env("XDG_RUNTIME_DIR", self.scratch);
            close.status().ok().and_then(|status| status.code())
        };
        let mut code = close();
        // Whatever else it says would be said again.
        while code == Some(IN_USE) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(100));
            code = close();
        }
        if code == Some(IN_USE) {
            let dir = self.scratch.display();
            eprintln!(
                "{} is still in use: XDG_RUNTIME_DIR={dir} ucrypt close {}",
                self.name, self.name
            );
        }
    }
}

/// What a measurement is of.
struct Place<'a> {
    asked: &'a Asked,
    scratch: &'a Path,
    host: &'a Group,
    guest: &'a Group,
    startup_s: f64,
}

impl Place<'_> {
    fn fio(&self) -> Command {
        let mut fio = self.guest.command("fio");
        fio.args(["--name=job", "--ioengine=io_uring", "--thread", "--output-format=json"]);
        fio.current_dir(self.scratch);
        fio
    }

    /// MB/s of a job.
    fn measure(
        &self,
        image: &Path,
        has_cache: bool,
        (words, is_warm): (&str, bool),
        mode: &[&str],
    ) -> Result<f64> {
        forget(image)?;
        let bytes = fs::metadata(image)?.len();
        let kind = if has_cache { "loop" } else { "fuse" };
        let name = self.scratch.file_name().ok_or("no name")?.to_string_lossy().to_lowercase();
        let mut open = self.host.command(&self.asked.ucrypt);
        open.args(["open", "--as", kind, "--type", "plain", "--cipher", "aes-xts-plain64"]);
        open.args(["--key-size", "512", "--key-file"]).arg(self.scratch.join("key"));
        open.args(mode).arg(image).arg(&name).env("XDG_RUNTIME_DIR", self.scratch);
        // Closed also if it fails half-way.
        let _open = Open { asked: self.asked, scratch: self.scratch, name };
        let place = run(&mut open)?;
        let fio = || {
            let mut fio = self.fio();
            fio.arg(format!("--direct={}", u8::from(!has_cache))).arg(format!("--size={bytes}"));
            fio.args(["--allow_file_create=0", "--randrepeat=0", "--refill_buffers=0"]);
            fio.arg("--invalidate=0").arg(format!("--filename={place}"));
            fio
        };
        if is_warm {
            run(fio().args(["--rw=read", "--bs=1m", "--iodepth=4"]))?;
        }
        let ms = self.asked.seconds * 1000.0;
        let timed = format!("--time_based --runtime={ms:.0}ms --ramp_time=500ms --norandommap");
        let words = words.replace("TIMED", &timed);
        let words = words.replace("PART", &(self.asked.memory_mib / 2).to_string());
        let started = Instant::now();
        let said = run(fio().args(words.split(' ')))?;
        let took = started.elapsed().as_secs_f64() - self.startup_s;
        let start = said.find('{').ok_or("fio printed no JSON")?;
        let said: serde_json::Value = serde_json::from_str(&said[start..])?;
        let side = &said["jobs"][0][if words.contains("write") { "write" } else { "read" }];
        let number = |field: &str| side[field].as_f64().ok_or("fio's JSON lacks a field");
        // What is timed ends before the last fsync.
        let bytes_s = if words.contains("--time_based") {
            number("bw_bytes")?
        } else {
            number("io_bytes")? / took
        };
        Ok(bytes_s / 1e6)
    }
}

/// Drops an image from the page cache.
fn forget(image: &Path) -> Result<()> {
    let file = File::open(image)?;
    file.sync_all()?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    Ok(())
}

/// By image, client and job: the speeds of both modes, by round. What failed has none.
type Found = BTreeMap<(usize, bool, usize), [Vec<Option<f64>>; 2]>;

fn measured(asked: &Asked, stop: &Stop) -> Result<()> {
    let dir = tempfile::Builder::new().prefix("ucrypt-cache-").tempdir_in(&asked.dir)?;
    let scratch = dir.path();
    let (host, guest) =
        (Group::new("host", asked.memory_mib)?, Group::new("guest", asked.memory_mib)?);
    let mut random = fastrand::Rng::with_seed(1);
    let mut bytes = vec![0; 1 << 20];
    random.fill(&mut bytes);
    fs::write(scratch.join("key"), &bytes[..64])?;
    let sizes = [asked.memory_mib / 4, asked.memory_mib * 3];
    let images = sizes.map(|mib| scratch.join(format!("{mib}.img")));
    for (image, mib) in images.iter().zip(sizes) {
        let mut file = File::create(image)?;
        for _ in 0..mib {
            random.fill(&mut bytes);
            file.write_all(&bytes)?;
        }
        file.sync_all()?;
    }
    let mut place = Place { asked, scratch, host: &host, guest: &guest, startup_s: f64::MAX };
    for _ in 0..STARTUPS {
        let started = Instant::now();
        run(place.fio().args(["--rw=read", "--bs=4k", "--size=4k", "--filename=/dev/zero"]))?;
        place.startup_s = place.startup_s.min(started.elapsed().as_secs_f64());
    }
    let mut found = Found::new();
    for round in 0..asked.rounds {
        for (at, image) in images.iter().enumerate() {
            for has_cache in [false, true] {
                for (job, (name, words, is_warm)) in JOBS.iter().enumerate() {
                    if !name.contains(&asked.only) {
                        continue;
                    }
                    eprintln!("{round}: {} MiB, cache {has_cache}, {name}", sizes[at]);
                    // Each goes first as often as second.
                    let first = (round % 2) as usize;
                    for mode in [first, 1 - first] {
                        stop.check()?;
                        let speed =
                            place.measure(image, has_cache, (words, *is_warm), MODES[mode].1);
                        // A server may have been killed because its group has no memory left.
                        let speed =
                            speed.inspect_err(|error| eprintln!("page_cache: {error}")).ok();
                        found.entry((at, has_cache, job)).or_default()[mode].push(speed);
                    }
                }
            }
        }
    }
    print(asked, sizes, &found);
    Ok(())
}

fn print(asked: &Asked, sizes: [u64; 2], found: &Found) {
    println!(
        "{} MiB of memory for the server, and as much for the client; images of {} MiB (fits) and {} MiB; {} rounds. \
         MB/s: medians; ratio: median of the rounds (quartiles).\n",
        asked.memory_mib, sizes[0], sizes[1], asked.rounds
    );
    println!("| image | client | job | page cache | direct | page cache : direct |");
    println!("|---|---|---|---:|---:|---:|");
    let mut worst = [(1.0, String::new()), (1.0, String::new())];
    for ((at, has_cache, job), speeds) in found {
        let fits = ["fits", "does not fit"][*at];
        let client = if *has_cache { "with a cache" } else { "without a cache" };
        let name = JOBS[*job].0;
        let shown = speeds.each_ref().map(|speeds| {
            let failed = speeds.iter().filter(|speed| speed.is_none()).count();
            let middle = Spread::of(speeds.iter().copied().flatten());
            let middle = middle.map_or_else(String::new, |it| format!("{:.0}", it.median));
            if failed == 0 { middle } else { format!("{middle} ({failed} failed)") }
        });
        // Of the rounds in which both have a speed.
        let pairs = speeds[0].iter().zip(&speeds[1]);
        let ratio = Spread::of(pairs.filter_map(|(cached, direct)| Some((*cached)? / (*direct)?)));
        let of = ratio.map_or_else(String::new, |it| {
            format!("{:.2} ({:.2} to {:.2})", it.median, it.low, it.high)
        });
        println!("| {fits} | {client} | {name} | {} | {} | {of} |", shown[0], shown[1]);
        for (worst, loss) in
            worst.iter_mut().zip(ratio.map(|it| [1.0 / it.median, it.median]).into_iter().flatten())
        {
            if loss > worst.0 {
                *worst = (loss, format!("{name}, {client}, {fits}"));
            }
        }
    }
    for ((mode, _), (loss, at)) in MODES.iter().zip(&worst) {
        println!("\nAt most, *{mode}* loses a factor of {loss:.1} ({at}).");
    }
}

fn main() -> ExitCode {
    shared::carry_out("page_cache", Asked::parse(), measured)
}
