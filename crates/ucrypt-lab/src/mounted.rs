//! Reads through a file system: a file on ext4, over a loop device or over a volume of ours that is
//! attached as one.
//!
//! Each turn makes the file system anew and mounts it in a mount namespace of its own, so that nothing
//! stays mounted however it ends. dd reads the file there, past the page cache.

use std::io;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::contender::Contender;
use crate::load::Load;
use crate::process;
use crate::sample::{Sample, Watch};
use crate::served::Images;
use crate::{Pattern, dd};

/// A file system or a file that takes longer to make hangs.
const MAKE_LIMIT: Duration = Duration::from_secs(600);

/// How long the programs of a turn that hangs may take to end before the server is killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes that a run of dd reads, unless one block is longer.
const RUN_BYTES: u64 = 64 << 20;

/// Bytes of the file for a device of `len` bytes: the rest is the file system's.
pub(crate) fn file_bytes(len: u64) -> u64 {
    len / 5 * 4 / PIECE_BYTES * PIECE_BYTES
}

/// The file is written in pieces of random bytes.
const PIECE_BYTES: u64 = 4 << 20;

/// $1: the device, $2: pieces of the file, $3: bytes of a block, $4: blocks of a run, $5: blocks of the
/// file, $6: nanoseconds to measure. The first run is not measured.
const SCRIPT: &str = r#"
set -eu
export LC_ALL=C
mkdir -p m
mount -t ext4 "$1" m
head -c 4194304 /dev/urandom >piece
for at in $(seq "$2"); do cat piece; done |
    dd of=m/file bs=4M iflag=fullblock oflag=direct 2>/dev/null
sync -f m
dd if=m/file of=/dev/null bs="$3" count=1 iflag=direct 2>/dev/null
echo measured
end=$(($(date +%s%N) + $6))
at=0
while :; do
    dd if=m/file of=/dev/null bs="$3" count="$4" skip="$at" iflag=direct
    [ "$(date +%s%N)" -lt "$end" ] || break
    at=$((at + $4))
    [ $((at + $4)) -le "$5" ] || at=0
done
umount m
"#;

/// The line that the script prints before it measures.
const MEASURED: &str = "measured";

/// Whether a cell can be measured so: dd reads in order, one request after the other.
pub(crate) fn reads(cell: &crate::catalogue::Cell) -> bool {
    dd::sends(cell) && cell.pattern == Pattern::Read
}

/// One turn of a contender, over the device that it has below its file system.
///
/// # Errors
/// If it has none, the block is longer than the file, a program fails or hangs, or `stop` is set.
pub(crate) fn run(
    images: &Images,
    contender: Contender,
    load: Load<'_>,
    stop: &AtomicBool,
) -> io::Result<Sample> {
    let wrong = |why: &str| io::Error::other(format!("{contender}: {why}"));
    let below = contender.below_file_system().ok_or_else(|| wrong("it has no file system"))?;
    let block = load.cell.block_bytes;
    let len = file_bytes(images.len());
    if !reads(load.cell) || block == 0 || block > len {
        return Err(wrong("dd cannot send this load to a file in it"));
    }
    let dir = images.dir();
    let (device, own, _end) = images.device(below, stop)?;
    let limit = MAKE_LIMIT + load.limit();
    let mut make = process::program("mkfs.ext4");
    // Nothing is left to be written while reads are measured, and nearly all is left to the file.
    make.args(["-q", "-F", "-b", "4096", "-m", "0", "-O", "^has_journal", "-E"])
        .arg("nodiscard,lazy_itable_init=0")
        .arg(&device)
        // A block device may have more than a run uses.
        .arg(format!("{}k", images.len() >> 10));
    process::guarded(own.server, MAKE_LIMIT + PATIENCE, stop, || {
        process::run(&mut make, dir, MAKE_LIMIT, stop)
    })?;
    let blocks = len / block;
    let of_run = (RUN_BYTES / block).clamp(1, blocks);
    let mut turn = process::program("unshare");
    turn.args(["--mount", "--propagation", "slave", "--", "sh", "-c", SCRIPT, "sh"]).arg(&device);
    for number in [len / PIECE_BYTES, block, of_run, blocks] {
        turn.arg(number.to_string());
    }
    turn.arg(load.times.measured.as_nanos().to_string()).current_dir(dir);
    // What happens while the file is written disturbs no read.
    let mut watch = None;
    let begun = |program| watch = Some(Watch::within(own.clone(), program));
    let said = process::guarded(own.server, limit + PATIENCE, stop, || {
        process::output_with_mark(&mut turn, dir, (limit, stop), (MEASURED, begun))
    })?;
    let disturbance = watch.map(|watch| watch.end()).ok_or_else(|| wrong("nothing was read"))?;
    let (_, measured) =
        said.split_once(&format!("{MEASURED}\n")).ok_or_else(|| wrong("nothing was read"))?;
    let runs: Vec<(u64, f64)> = measured.lines().filter_map(dd::copied).collect();
    let (bytes, seconds) =
        runs.iter().fold((0, 0.0), |(bytes, seconds), run| (bytes + run.0, seconds + run.1));
    if bytes == 0 || seconds <= 0.0 {
        return Err(wrong(&format!("dd printed no speed: {said}")));
    }
    let version = dd::version().unwrap_or_else(|| "dd".into());
    Ok(Sample {
        mb_s: bytes as f64 / 1e6 / seconds,
        requests: bytes / block,
        seconds,
        load: format!("{version}, a file on ext4"),
        disturbance,
        ..Sample::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{Scale, by_name};

    #[test]
    fn the_file_leaves_room_for_its_file_system_and_every_load_of_the_sweep_can_be_read() {
        for len in [16 << 20, 128 << 20, 1 << 30] {
            let file = file_bytes(len);
            assert!(
                file <= len * 4 / 5 && file > len / 2 && file.is_multiple_of(PIECE_BYTES),
                "{file}"
            );
        }
        let cells = by_name("block-sweep").expect("an experiment").cells(Scale::Full);
        assert!(cells.iter().all(reads));
        let writes = by_name("request-merge").expect("an experiment").cells(Scale::Full);
        assert!(!writes.iter().all(reads));
        assert_eq!(SCRIPT.matches(&format!("echo {MEASURED}\n")).count(), 1);
        assert_eq!(SCRIPT.matches("iflag=direct").count(), 2, "each read is past the page cache");
    }
}
