//! Loads by fio: one run, and its JSON.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::Deserialize;

use crate::load::{Load, Times};
use crate::process;
use crate::sample::Sample;

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
    process::first_line(Command::new("fio").arg("--version"))
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

/// How much longer than its load fio may take before it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// How much longer a load is tried in which no request ended.
const LONGER: [u32; 4] = [1, 5, 25, 125];

/// Runs a load by fio, in `scratch`. Where a request takes longer than the load, the load takes
/// longer.
///
/// # Errors
/// If fio fails, hangs or prints something else, or `stop` is set.
pub fn run(
    address: &Address,
    load: Load<'_>,
    scratch: &Path,
    stop: &AtomicBool,
) -> io::Result<Sample> {
    for factor in LONGER {
        let Times { ramp, measured } = load.times;
        let times = Times { ramp: ramp * factor, measured: measured * factor };
        if let Some(sample) = once(address, Load { times, ..load }, scratch, stop)? {
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
    let cell = load.cell;
    let mut fio = Command::new("fio");
    fio.current_dir(scratch)
        .args(["--name=job", "--direct=1", "--norandommap", "--randrepeat=0", "--thread"])
        .args(["--group_reporting", "--lat_percentiles=1", "--output-format=json"])
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
    match address {
        Address::Path(path) => {
            fio.args(["--allow_file_create=0", &format!("--ioengine={}", engine())]);
            fio.arg(format!("--filename={}", escaped(path)));
        }
        Address::Nbd(socket) => {
            fio.arg("--ioengine=nbd").arg(format!("--uri=nbd+unix:///?socket={}", uri(socket)));
        }
    }
    let limit = load.times.ramp + load.times.measured + PATIENCE;
    process::run(&mut fio, scratch, limit, stop)?;
    let text = std::fs::read_to_string(&output)?;
    sample(&text, &version().unwrap_or_else(|| "fio".into()))
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
fn sample(text: &str, version: &str) -> io::Result<Option<Sample>> {
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let start = text.find('{').ok_or_else(|| wrong("fio printed no JSON".into()))?;
    let output: Output = serde_json::from_str(&text[start..])
        .map_err(|error| wrong(format!("fio's JSON is not understood: {error}")))?;
    let job = output.jobs.first().ok_or_else(|| wrong("fio ran no job".into()))?;
    if job.error != 0 {
        return Err(wrong(format!("fio counts error {}", job.error)));
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

/// `io_uring` where the system allows it, else `libaio`.
fn engine() -> &'static str {
    static ENGINE: OnceLock<&'static str> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let mut probe = Command::new("fio");
        probe.args(["--name=probe", "--ioengine=io_uring", "--rw=read", "--size=4k", "--bs=4k"]);
        let works = process::succeeds(probe.arg("--filename=/dev/zero"));
        if works { "io_uring" } else { "libaio" }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use ucrypt_backend::{FileBackend, OpenOptions};

    use super::*;
    use crate::Pattern;
    use crate::catalogue::Cell;
    use crate::load::Place;

    #[test]
    fn what_is_not_fios_json_is_refused_and_warnings_are_skipped() {
        for bad in ["", "no", "{", "{}", r#"{"jobs":[]}"#] {
            assert!(sample(bad, "fio").is_err(), "{bad}");
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
        let read = sample(&text(0), "fio-3").expect("JSON").expect("requests");
        assert_eq!((read.requests, read.p50_us, read.p99_us), (40, 1.5, 9.0));
        assert!(sample(&text(5), "fio-3").is_err());
    }

    #[test]
    fn fio_and_the_built_in_generator_send_the_same_load() {
        assert!(version().is_some(), "fio is missing; install it with: apt-get install fio");
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("with:colon");
        let len = 16 << 20;
        std::fs::File::create(&path).and_then(|file| file.set_len(len)).expect("a file");
        let go = AtomicBool::new(false);
        for (pattern, block_bytes, depth, jobs) in
            [(Pattern::Read, 65536, 1, 1), (Pattern::RandWrite, 4096, 8, 2)]
        {
            let name = String::new();
            let cell = Cell { name, pattern, block_bytes, depth, jobs, published: Vec::new() };
            let times = Times { ramp: Duration::ZERO, measured: Duration::ZERO };
            let requests = Some(100);
            let load =
                Load { cell: &cell, region_bytes: len, times, slices: false, seed: 1, requests };
            let address = Address::Path(path.clone());
            let theirs = run(&address, load, dir.path(), &go).expect("fio runs");
            let options = OpenOptions { direct: true, ..OpenOptions::default() };
            let place = Place::Raw(Arc::new(FileBackend::open(&path, options).expect("opened")));
            let ours = crate::load::run(&place, load, &go).expect("it runs");
            assert_eq!(theirs.requests, ours.requests, "{pattern:?}");
            for sample in [&ours, &theirs] {
                assert!(sample.mb_s > 0.0 && sample.mean_us > 0.0, "{sample:?}");
                assert!(sample.p50_us <= sample.p99_us, "{sample:?}");
            }
        }
    }
}
