//! Loads by fio: one run, and its JSON.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;

use crate::catalogue::Cell;
use crate::load::{Load, Times};
use crate::process;
use crate::runner::is_full;
use crate::sample::{self, Sample};

/// Where a server can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A file or device.
    Path(PathBuf),
    /// An NBD server on a Unix socket.
    Nbd(PathBuf),
}

/// The version of the installed fio; `None` if there is none.
pub fn version() -> Option<String> {
    static VERSION: OnceLock<Option<String>> = OnceLock::new();
    let ask = || process::first_line(process::program("fio").arg("--version"));
    VERSION.get_or_init(ask).clone()
}

/// fio's output, as far as it is read here.
#[derive(Debug, Deserialize)]
struct Output {
    jobs: Vec<JobOutput>,
}

#[derive(Debug, Deserialize)]
struct JobOutput {
    error: i32,
    read: Side,
    write: Side,
}

#[derive(Debug, Deserialize)]
struct Side {
    /// Bytes a second.
    bw_bytes: f64,
    total_ios: u64,
    /// Milliseconds.
    runtime: f64,
    lat_ns: Latency,
}

#[derive(Debug, Deserialize)]
struct Latency {
    mean: f64,
    #[serde(default)]
    percentile: std::collections::BTreeMap<String, f64>,
}

/// The percentiles that fio is asked for.
const PERCENTILES: &str = "1:5:10:20:30:40:50:60:70:80:85:90:95:97:98:99:99.5:99.9:99.99:100";

/// How much longer than its load fio may take: the server is killed before, if it hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs that tell fio's own time. At least 3: the first and the last in size do not count.
const STARTUPS: usize = 7;

/// How much longer a load is tried in which no request ended.
const LONGER: [u32; 4] = [1, 5, 25, 125];

/// Runs a load by fio, in the directory `scratch`. Where a request takes longer than the load, the
/// load takes longer. A `server` that hangs is killed.
///
/// # Errors
/// If fio fails, hangs or prints something else, or `stop` is set.
pub fn run(
    address: &Address,
    load: Load<'_>,
    (scratch, server): (&Path, Option<u32>),
    stop: &AtomicBool,
) -> io::Result<Sample> {
    run_watched(address, load, (scratch, server), stop, &mut || {})
}

/// As [`run`]; `begin` is called before each try.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_watched(
    address: &Address,
    load: Load<'_>,
    (scratch, server): (&Path, Option<u32>),
    stop: &AtomicBool,
    begin: &mut dyn FnMut(),
) -> io::Result<Sample> {
    for factor in LONGER {
        begin();
        let Times { ramp, measured } = load.times;
        let times = Times { ramp: ramp * factor, measured: measured * factor };
        let load = Load { times, ..load };
        let once = || once(address, load, scratch, stop);
        if let Some(sample) = process::guarded(server, load.limit(), stop, once)? {
            return Ok(sample);
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "no request ended while fio measured"))
}

/// `None`: no request ended.
fn once(
    address: &Address,
    load: Load<'_>,
    scratch: &Path,
    stop: &AtomicBool,
) -> io::Result<Option<Sample>> {
    let output = scratch.join("fio.json");
    let direct = is_direct(address);
    let mut fio = command(address, load, &output, direct);
    process::run(fio.current_dir(scratch), scratch, load.limit() + PATIENCE, stop)?;
    let text = std::fs::read_to_string(&output)?;
    let mut version = version().unwrap_or_else(|| "fio".into());
    if huge_page_bytes(load.cell).is_some() {
        version += ", huge pages";
    }
    read_json(&text, &if direct { version } else { format!("{version}, through the page cache") })
}

/// Whether there is a way past the page cache; NBD has none.
pub(crate) fn is_direct(address: &Address) -> bool {
    let Address::Path(path) = address else { return true };
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::NONBLOCK | OFlags::CLOEXEC;
    // Other errors are fio's to tell.
    rustix::fs::open(path, flags, Mode::empty()).err() != Some(Errno::INVAL)
}

/// fio with a load, which writes its JSON to `output`.
fn command(address: &Address, load: Load<'_>, output: &Path, direct: bool) -> Command {
    let cell = load.cell;
    let mut fio = process::program("fio");
    fio.args(["--name=job", "--norandommap", "--randrepeat=0", "--thread"])
        .args(["--group_reporting", "--lat_percentiles=1", "--output-format=json"])
        .arg(format!("--direct={}", u8::from(direct)))
        .arg(format!("--percentile_list={PERCENTILES}"))
        // On its standard output, the nbd engine writes lines of its own.
        .arg(format!("--output={}", output.display()))
        .arg(format!("--bs={}", cell.block_bytes))
        .arg(format!("--rw={}", cell.pattern.name()))
        .arg(format!("--iodepth={}", cell.depth))
        .arg(format!("--numjobs={}", cell.jobs))
        .arg(format!("--randseed={}", load.seed))
        .arg(format!("--size={}", load.region_bytes));
    if let Some(requests) = load.requests {
        fio.arg(format!("--number_ios={requests}"));
    } else {
        fio.arg("--time_based")
            .arg(format!("--runtime={}ms", load.times.measured.as_millis().max(1)))
            .arg(format!("--ramp_time={}ms", load.times.ramp.as_millis()));
    }
    if let Some(bytes) = huge_page_bytes(cell) {
        fio.arg("--mem=shmhuge").arg(format!("--hugepage-size={bytes}"));
    }
    match address {
        Address::Path(path) => {
            fio.args(["--allow_file_create=0", &format!("--ioengine={}", engine())]);
            fio.arg(format!("--filename={}", escaped(path)));
        }
        Address::Nbd(socket) => {
            fio.arg("--ioengine=nbd").arg(format!("--uri=nbd+unix:///?socket={}", uri(socket)));
        }
    }
    fio
}

/// Bytes of a huge page, if enough of them are reserved for the buffers of a cell. A block device splits a request
/// whose pages lie apart, so that its length would depend on the pages that fio happens to get.
fn huge_page_bytes(cell: &Cell) -> Option<u64> {
    let (page, free) = huge_pages()?;
    let buffers = u64::from(cell.depth) * cell.block_bytes;
    let pages = (buffers.div_ceil(page) + 1) * u64::from(cell.jobs);
    (free >= pages).then_some(page)
}

/// Bytes of a huge page, and how many are free, if fio gets one, which takes a right. Asked once: all contenders in a
/// cell get the same.
fn huge_pages() -> Option<(u64, u64)> {
    static RESERVED: OnceLock<Option<(u64, u64)>> = OnceLock::new();
    *RESERVED.get_or_init(|| {
        let info = std::fs::read_to_string("/proc/meminfo").ok()?;
        let field = |name: &str| {
            let rest = info.lines().find_map(|line| line.strip_prefix(name))?;
            rest.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok()
        };
        // Not every kernel has them.
        let page = field("Hugepagesize")?.checked_mul(1024).filter(|bytes| *bytes > 0)?;
        let free = field("HugePages_Free").filter(|free| *free > 0)?;
        let mut probe = process::program("fio");
        probe.args(["--name=probe", "--ioengine=psync", "--rw=read", "--size=4k", "--bs=4k"]);
        probe.args(["--filename=/dev/zero", "--mem=shmhuge", &format!("--hugepage-size={page}")]);
        process::succeeds(&mut probe).then_some((page, free))
    })
}

/// A path as fio's `--filename` takes it, which separates files by colons.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace('\\', "\\\\").replace(':', "\\:")
}

/// A path as a part of a URI.
fn uri(path: &Path) -> String {
    let mut text = String::new();
    for byte in path.as_os_str().as_encoded_bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(byte) {
            text.push(char::from(*byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// Reads fio's JSON. Warnings may stand before it.
fn read_json(text: &str, version: &str) -> io::Result<Option<Sample>> {
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let start = text.find('{').ok_or_else(|| wrong("fio printed no JSON".into()))?;
    let output: Output = serde_json::from_str(&text[start..])
        .map_err(|error| wrong(format!("fio's JSON is not understood: {error}")))?;
    let job = output.jobs.first().ok_or_else(|| wrong("fio ran no job".into()))?;
    if job.error != 0 {
        let error = io::Error::from_raw_os_error(job.error);
        let what = format!("fio counts an error: {error}");
        // A full disk ends the run; no other error of fio's is one of the run.
        return Err(if is_full(&error) { io::Error::new(error.kind(), what) } else { wrong(what) });
    }
    let sides = [&job.read, &job.write];
    let requests: u64 = sides.iter().map(|side| side.total_ios).sum();
    if requests == 0 {
        return Ok(None);
    }
    // With both directions, the larger one's percentiles stand for both.
    let main = if job.read.total_ios >= job.write.total_ios { sides[0] } else { sides[1] };
    let weighted = sides.iter().map(|side| side.lat_ns.mean * side.total_ios as f64).sum::<f64>();
    let quantiles = main.lat_ns.percentile.iter().filter_map(|(name, ns)| {
        name.parse::<f64>().ok().map(|percent| (percent / 100.0, ns / 1000.0))
    });
    let mut quantiles: Vec<_> = quantiles.collect();
    quantiles.sort_by(|a, b| a.0.total_cmp(&b.0));
    let at = |wanted: f64| {
        let found = quantiles.iter().find(|(quantile, _)| (quantile - wanted).abs() < 1e-6);
        found.map_or(0.0, |(_, us)| *us)
    };
    Ok(Some(Sample {
        mb_s: sides.iter().map(|side| side.bw_bytes).sum::<f64>() / 1e6,
        mean_us: weighted / requests as f64 / 1000.0,
        p50_us: at(0.5),
        p99_us: at(0.99),
        p999_us: at(0.999),
        requests,
        seconds: main.runtime / 1000.0,
        load: version.into(),
        quantiles,
        ..Sample::default()
    }))
}

/// Seconds of processor time that fio takes before and after its load: of some runs that do nothing else, the mean of
/// those in the middle. `None` if fio fails. Measured once; what a load asks of fio first is asked then, too.
pub(crate) fn startup_s() -> Option<f64> {
    static SECONDS: OnceLock<Option<f64>> = OnceLock::new();
    *SECONDS.get_or_init(|| {
        version()?;
        engine();
        huge_pages();
        let mut seconds = Vec::new();
        for _ in 0..STARTUPS {
            let before = sample::own_s();
            let mut probe = process::program("fio");
            probe.args(["--name=probe", "--ioengine=psync", "--rw=read", "--bs=4k", "--size=4k"]);
            probe.args(["--filename=/dev/zero", "--thread", "--output-format=json"]);
            if !process::succeeds(&mut probe) {
                return None;
            }
            seconds.push(sample::own_s() - before);
        }
        seconds.sort_by(f64::total_cmp);
        let middle = &seconds[1..STARTUPS - 1];
        Some(middle.iter().sum::<f64>() / middle.len() as f64)
    })
}

/// `io_uring` where the system allows it, else `libaio`.
fn engine() -> &'static str {
    static ENGINE: OnceLock<&'static str> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let mut probe = process::program("fio");
        probe.args(["--name=probe", "--ioengine=io_uring", "--rw=read", "--size=4k", "--bs=4k"]);
        let works = process::succeeds(probe.arg("--filename=/dev/zero"));
        if works { "io_uring" } else { "libaio" }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use ucrypt_backend::{FileBackend, OpenOptions};
    use ucrypt_testkit::fault::{Access, Reached};
    use ucrypt_testkit::{FaultBackend, Faults};

    use super::*;
    use crate::Pattern;
    use crate::load::Place;

    #[test]
    fn what_is_not_fios_json_is_refused_and_warnings_are_skipped() {
        for bad in ["", "no", "{", "{}", r#"{"jobs":[]}"#] {
            assert!(read_json(bad, "fio").is_err(), "{bad}");
        }
        let side = |ios: u64| {
            format!(
                r#"{{"bw_bytes":1000000,"total_ios":{ios},"runtime":500,"lat_ns":{{"mean":2000.0,
                "percentile":{{"50.000000":1500,"99.000000":9000,"99.900000":9500}}}}}}"#
            )
        };
        let text = |error: i32| {
            let (read, write) = (side(0), side(40));
            format!(r#"note: x {{"jobs":[{{"error":{error},"read":{read},"write":{write}}}]}}"#)
        };
        let read = read_json(&text(0), "fio-3").expect("JSON").expect("requests");
        assert_eq!((read.requests, read.p50_us, read.p99_us), (40, 1.5, 9.0));
        assert!(read_json(&text(5), "fio-3").is_err());
    }

    /// A request as it reached the storage: whether it reads, offset, length.
    type Sent = (bool, u64, u64);

    /// The requests of fio's own log. The fields of its versions differ at the front.
    fn logged(text: &str) -> Vec<Sent> {
        let request = |line: &str| {
            let mut fields = line.split_whitespace().rev();
            let len = fields.next()?.parse().ok()?;
            let offset = fields.next()?.parse().ok()?;
            let is_read = match fields.next()? {
                "read" => true,
                "write" => false,
                _ => return None,
            };
            Some((is_read, offset, len))
        };
        text.lines().filter_map(request).collect()
    }

    fn seen(log: &[Reached]) -> Vec<Sent> {
        let request = |it: &Reached| match it.access {
            Access::Read => Some((true, it.range.start, it.range.end - it.range.start)),
            Access::Write => Some((false, it.range.start, it.range.end - it.range.start)),
            _ => None,
        };
        log.iter().filter_map(request).collect()
    }

    #[test]
    fn fio_and_the_built_in_generator_send_the_same_load() {
        const REQUESTS: u64 = 100;
        assert!(version().is_some(), "fio is missing; install it with: apt-get install fio");
        let dir = tempfile::tempdir().expect("a directory");
        let (path, log) = (dir.path().join("with:colon"), dir.path().join("log"));
        let (len, region) = (16 << 20, 8u64 << 20);
        let go = AtomicBool::new(false);
        for (pattern, block_bytes, depth) in
            [(Pattern::Read, 65536, 1), (Pattern::RandWrite, 4096, 8), (Pattern::RandRw, 16384, 4)]
        {
            let name = String::new();
            let cell = Cell { name, pattern, block_bytes, depth, jobs: 1, published: Vec::new() };
            let times = Times { ramp: Duration::ZERO, measured: Duration::ZERO };
            let requests = Some(REQUESTS);
            let load =
                Load { cell: &cell, region_bytes: region, times, slices: false, seed: 1, requests };
            // A buffer that was read into is written later: what is read must be random, too.
            let filled = if pattern == Pattern::RandRw { region } else { 0 };
            let prepare = || {
                let mut content = vec![0; len];
                fastrand::Rng::with_seed(3).fill(&mut content[..filled as usize]);
                std::fs::write(&path, content).expect("a file");
            };
            let check = |sent: &[Sent], who: &str| {
                assert_eq!(sent.len() as u64, REQUESTS, "{who}, {pattern:?}");
                let content = std::fs::read(&path).expect("read");
                for (is_read, offset, len) in sent {
                    assert_eq!((*len, offset % block_bytes), (block_bytes, 0), "{who}");
                    assert!(offset + len <= region, "{who}: {offset}");
                    let (from, to) = (*offset as usize, (offset + len) as usize);
                    for block in content[from..to].chunks(4096).filter(|_| !is_read) {
                        let kinds: BTreeSet<_> = block.iter().collect();
                        assert!(kinds.len() > 200, "{who} writes {} values", kinds.len());
                    }
                }
                assert!(content[region as usize..].iter().all(|byte| *byte == 0), "{who}");
                let places: BTreeSet<_> = sent.iter().map(|(_, offset, _)| offset).collect();
                assert!(places.len() > 60, "{who}: {} places", places.len());
                assert!(places.last().is_some_and(|last| **last > region / 2), "{who}");
                let reads = sent.iter().filter(|(is_read, ..)| *is_read).count();
                match pattern {
                    Pattern::Read | Pattern::RandRead => assert_eq!(reads, 100, "{who}"),
                    Pattern::Write | Pattern::RandWrite => assert_eq!(reads, 0, "{who}"),
                    Pattern::RandRw => assert!((25..=75).contains(&reads), "{who}: {reads}"),
                }
            };
            prepare();
            let address = Address::Path(path.clone());
            let output = dir.path().join("fio.json");
            let mut fio = command(&address, load, &output, is_direct(&address));
            let log = log.with_extension(pattern.name());
            fio.current_dir(dir.path()).arg(format!("--write_iolog={}", log.display()));
            process::run(&mut fio, dir.path(), Duration::from_secs(60), &go).expect("fio runs");
            let theirs = logged(&std::fs::read_to_string(&log).expect("fio's log"));
            check(&theirs, "fio");
            prepare();
            let options = OpenOptions { direct: true, ..OpenOptions::default() };
            let file = Arc::new(FileBackend::open(&path, options).expect("opened"));
            let faults = Faults::new(1);
            let place = Place::Raw(Arc::new(FaultBackend::new(file, faults.clone())));
            let sample = crate::load::run(&place, load, &go).expect("it runs");
            assert_eq!(sample.requests, REQUESTS);
            let ours = seen(&faults.log());
            check(&ours, "ours");
            if pattern == Pattern::Read {
                assert_eq!(ours, theirs);
            }
        }
    }

    #[test]
    fn both_generators_count_the_requests_of_all_jobs() {
        assert!(version().is_some(), "fio is missing; install it with: apt-get install fio");
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        let len = 16 << 20;
        std::fs::File::create(&path).and_then(|file| file.set_len(len)).expect("a file");
        let go = AtomicBool::new(false);
        let (name, pattern, block_bytes, depth, jobs) = (String::new(), Pattern::Read, 4096, 8, 2);
        let cell = Cell { name, pattern, block_bytes, depth, jobs, published: Vec::new() };
        let times = Times { ramp: Duration::ZERO, measured: Duration::ZERO };
        let requests = Some(100);
        let load = Load { cell: &cell, region_bytes: len, times, slices: false, seed: 1, requests };
        let address = Address::Path(path.clone());
        let theirs = run(&address, load, (dir.path(), None), &go).expect("fio runs");
        let options = OpenOptions { direct: true, ..OpenOptions::default() };
        let place = Place::Raw(Arc::new(FileBackend::open(&path, options).expect("opened")));
        let ours = crate::load::run(&place, load, &go).expect("it runs");
        assert_eq!((theirs.requests, ours.requests), (200, 200));
        for sample in [&ours, &theirs] {
            assert!(sample.mb_s > 0.0 && sample.mean_us > 0.0, "{sample:?}");
            assert!(sample.p50_us <= sample.p99_us, "{sample:?}");
        }
    }
}
