//! Loads by dd, as in 2015: one request at a time, from the start of a file or device to its end.
//!
//! dd times its own copy, so that starting it costs nothing. It says nothing of latencies. It reads into
//! nowhere and writes zeroes.

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::Pattern;
use crate::catalogue::Cell;
use crate::fio::{Address, is_direct};
use crate::load::Load;
use crate::process;
use crate::sample::Sample;

/// Requests of the first run, which is not measured.
const FIRST: u64 = 16;

/// How much longer than its load dd may take: the server is killed before, if it hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// The version of dd, if it is the one of the GNU coreutils, which has direct I/O.
pub fn version() -> Option<String> {
    process::first_line(process::program("dd").arg("--version"))
        .filter(|it| it.contains("coreutils"))
}

/// Whether dd can send the load of a cell.
pub(crate) fn sends(cell: &Cell) -> bool {
    let in_order = matches!(cell.pattern, Pattern::Read | Pattern::Write);
    in_order && cell.depth <= 1 && cell.jobs <= 1
}

/// Runs a load by dd, in the directory `scratch`, as often as its time is not over. A `server` that hangs
/// is killed.
///
/// # Errors
/// If the cell is none of dd's, dd fails, hangs or prints something else, or `stop` is set.
pub fn run(
    address: &Address,
    load: Load<'_>,
    (scratch, server): (&Path, Option<u32>),
    stop: &AtomicBool,
) -> io::Result<Sample> {
    let Address::Path(path) = address else {
        return Err(io::Error::other("dd has no way to NBD"));
    };
    if !sends(load.cell) {
        return Err(io::Error::other("dd sends one request after the other, in their order"));
    }
    // A server that stands still keeps whoever opens its file.
    let direct = process::guarded(server, load.limit(), stop, || Ok(is_direct(address)))?;
    let all = (load.region_bytes / load.cell.block_bytes).max(1);
    let once = |blocks: u64| -> io::Result<(u64, f64)> {
        let mut dd = command(path, load.cell, blocks, direct);
        let limit = load.limit();
        let said = process::guarded(server, limit, stop, || {
            process::output(&mut dd, scratch, limit + PATIENCE, stop)
        })?;
        copied(&said).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("dd printed no speed: {said}"))
        })
    };
    let (mut bytes, mut seconds) = (0, 0.0);
    let (first, took) = once(load.requests.unwrap_or(FIRST).min(FIRST).min(all))?;
    // As many as fit into the time: a slow device does not come to the end of the region.
    let wanted = load.times.measured.as_secs_f64();
    let a_second = first as f64 / load.cell.block_bytes as f64 / took.max(1e-6);
    #[expect(clippy::cast_sign_loss, reason = "times are not negative")]
    let in_time = ((a_second * wanted) as u64).clamp(1, all);
    let blocks = load.requests.unwrap_or(in_time).min(all);
    while bytes == 0 || (load.requests.is_none() && seconds < wanted) {
        let (more, longer) = once(blocks)?;
        bytes += more;
        seconds += longer.max(1e-9);
    }
    let version = version().unwrap_or_else(|| "dd".into());
    let way = if direct { "" } else { ", through the page cache" };
    Ok(Sample {
        mb_s: bytes as f64 / 1e6 / seconds,
        requests: bytes / load.cell.block_bytes,
        seconds,
        load: format!("{version}{way}"),
        ..Sample::default()
    })
}

fn command(path: &Path, cell: &Cell, blocks: u64, direct: bool) -> Command {
    let mut dd = process::program("dd");
    dd.env("LC_ALL", "C");
    let operand = |name: &str| {
        let mut word = std::ffi::OsString::from(name);
        word.push(path);
        word
    };
    let flag = if cell.pattern == Pattern::Read {
        dd.arg(operand("if=")).arg("of=/dev/null");
        "iflag=direct"
    } else {
        dd.arg("if=/dev/zero").arg(operand("of=")).arg("conv=notrunc,nocreat");
        "oflag=direct"
    };
    dd.arg(format!("bs={}", cell.block_bytes)).arg(format!("count={blocks}"));
    if direct {
        dd.arg(flag);
    }
    dd
}

/// Bytes and seconds of dd's last line: `65536 bytes (66 kB, 64 KiB) copied, 0.00012 s, 546 MB/s`.
pub(crate) fn copied(said: &str) -> Option<(u64, f64)> {
    let line = said.lines().find(|line| line.contains(" copied, "))?;
    let bytes = line.split(' ').next()?.parse().ok().filter(|bytes| *bytes > 0)?;
    let time = line.split(" copied, ").nth(1)?.split(' ').next()?;
    let seconds = time.parse().ok().filter(|seconds: &f64| *seconds >= 0.0 && seconds.is_finite());
    Some((bytes, seconds?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{Scale, by_name};
    use crate::load::Times;

    #[test]
    fn what_dd_prints_is_read_and_anything_else_is_refused() {
        let said = "1+0 records in\n1+0 records out\n65536 bytes (66 kB, 64 KiB) copied, \
                    4.2e-05 s, 1.6 GB/s\n";
        assert_eq!(copied(said), Some((65536, 4.2e-5)));
        let short = "512 bytes copied, 0.5 s, 1.0 kB/s";
        assert_eq!(copied(short), Some((512, 0.5)));
        for bad in ["", "x bytes copied, 1 s, 1", "0 bytes copied, 1 s, 1", "9 bytes copied, inf s"]
        {
            assert_eq!(copied(bad), None, "{bad}");
        }
    }

    #[test]
    fn dd_reads_and_writes_what_it_is_asked_for_and_leaves_the_rest() {
        assert!(version().is_some(), "dd is missing; install it with: apt-get install coreutils");
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a file");
        let go = AtomicBool::new(false);
        let cells = by_name("request-merge").expect("an experiment").cells(Scale::Quick);
        for cell in cells {
            assert!(sends(&cell), "{}", cell.name);
            std::fs::write(&path, vec![7; 4 << 20]).expect("written");
            let times = Times { ramp: Duration::ZERO, measured: Duration::from_millis(1) };
            let load = Load {
                cell: &cell,
                region_bytes: 2 << 20,
                times,
                slices: false,
                seed: 1,
                requests: Some(20),
            };
            let place = (dir.path(), None);
            let sample = run(&Address::Path(path.clone()), load, place, &go).expect("it runs");
            assert_eq!((sample.requests, sample.has_latencies()), (20, false));
            let bytes = sample.mb_s * 1e6 * sample.seconds;
            assert!((bytes - (20 * cell.block_bytes) as f64).abs() < 1.0, "{bytes}");
            assert!(sample.load.starts_with("dd (coreutils)"), "{}", sample.load);
            let content = std::fs::read(&path).expect("read");
            let written = if cell.pattern == Pattern::Read { 0 } else { 20 * cell.block_bytes };
            assert_eq!(content.len(), 4 << 20);
            assert!(content[..written as usize].iter().all(|byte| *byte == 0));
            assert!(content[written as usize..].iter().all(|byte| *byte == 7), "{}", cell.name);
            let timed = Load { requests: None, ..load };
            let sample = run(&Address::Path(path.clone()), timed, place, &go).expect("it runs");
            assert!(sample.seconds >= 0.001 && sample.requests > 0, "{sample:?}");
        }
        let deep = by_name("workqueues").expect("an experiment").cells(Scale::Quick).remove(0);
        let times = Times { ramp: Duration::ZERO, measured: Duration::ZERO };
        let load = Load {
            cell: &deep,
            region_bytes: 2 << 20,
            times,
            slices: false,
            seed: 1,
            requests: None,
        };
        assert!(run(&Address::Path(path), load, (dir.path(), None), &go).is_err());
    }
}
