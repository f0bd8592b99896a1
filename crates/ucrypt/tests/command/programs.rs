//! Third-party programs on the FUSE file and on the loop device: they verify what they wrote, fill
//! a file system up, or lose their server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use ucrypt_testkit::Random;
use ucrypt_testkit::given::number;

use crate::image::{Image, LUKS2, LUKS2_512};
use crate::namespace::script;
use crate::process::{run, tool};
use crate::scratch::Scratch;

const LEN: u64 = 64 << 20;
/// mkfs.xfs and mkfs.btrfs make no smaller file systems.
const LARGE: u64 = 320 << 20;

const SERVED: [&str; 2] = ["fuse", "loop"];

/// Opens under the test's own name. Returns the path of the file or device.
fn open(scratch: &Scratch, image: &Image, served: &str, options: &[&str]) -> String {
    let mut open = image.ucrypt(scratch, "open");
    open.arg(scratch.unique()).args(["--as", served]).args(options);
    run(&mut open, b"").text().trim_end().into()
}

#[track_caller]
fn close(scratch: &Scratch) {
    run(scratch.ucrypt(&["close"]).arg(scratch.unique()), b"").passes();
}

/// fio on a disk of [`LEN`] bytes, which it must not create or grow.
fn fio(scratch: &Scratch, path: &str, job: &[&str]) -> Command {
    let mut fio = tool("fio", "fio");
    fio.args(["--name=job", "--allow_file_create=0", "--ioengine=libaio", "--direct=1"]);
    fio.arg(format!("--filename={path}")).args(job).current_dir(scratch.path(""));
    fio
}

#[test]
fn fio_verifies_at_every_depth() {
    for served in SERVED {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
        let path = open(&scratch, &image, served, &[]);
        for depth in [1, 4, 32, 128] {
            let depth = format!("--iodepth={depth}");
            let mut job =
                vec!["--rw=randwrite", "--bsrange=4k-256k", "--blockalign=4k", "--size=64m"];
            job.extend([&depth, "--verify=crc32c", "--verify_fatal=1", "--do_verify=1"]);
            job.extend(["--randseed=7", "--fsync=64", "--io_size=32m"]);
            run(&mut fio(&scratch, &path, &job), b"").passes();
        }
        close(&scratch);
    }
}

/// A program that copies sparsely either reports that it can't or has copied everything.
#[test]
fn sparse_copies_to_a_loop_device_are_those_of_any_disk() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
    let path = open(&scratch, &image, "loop", &[]);
    let source = scratch.sparse("source", LEN);
    let file = fs::File::options().write(true).open(&source).expect("the source");
    let data = Random::new(81).bytes(3_000_000);
    std::os::unix::fs::FileExt::write_all_at(&file, &data, 7_000_000).expect("written");
    let expected = fs::read(&source).expect("read");
    let text = "head -c 64M /dev/urandom | dd of=$1 bs=1M conv=fsync status=none
        $2; sync; echo 3 > /proc/sys/vm/drop_caches";
    for line in [
        "cp source $1",
        "cp --sparse=never source $1",
        "dd if=source of=$1 bs=1M conv=fsync",
        "rsync --inplace --write-devices source $1",
        "cat source > $1",
    ] {
        tool("rsync", "rsync");
        let text = text.replace("$2", line);
        run(&mut script(&scratch, &text, &[&path]), b"").passes();
        assert!(fs::read(&path).expect("read") == expected, "{line}");
    }
    close(&scratch);
}

/// A program that skips zeroes leaves there what was there before, as on any disk, and nothing else.
#[test]
fn programs_that_skip_zeroes_on_a_loop_device_leave_there_what_was_there() {
    for options in [&[][..], &["--allow-discards"]] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
        let path = open(&scratch, &image, "loop", options);
        let source = scratch.sparse("source", LEN);
        let file = fs::File::options().write(true).open(&source).expect("the source");
        let data = Random::new(82).bytes(3_000_000);
        std::os::unix::fs::FileExt::write_all_at(&file, &data, 7_000_000).expect("written");
        let wanted = fs::read(&source).expect("read");
        let before = Random::new(83).bytes(LEN as usize);
        scratch.file("before", &before);
        for line in
            ["cp --sparse=always source $1", "dd if=source of=$1 bs=1M conv=sparse,notrunc,fsync"]
        {
            let text = format!(
                "cp before $1; {line}; sync; echo 3 > /proc/sys/vm/drop_caches
                if cmp -s before $1; then exit 1; fi"
            );
            run(&mut script(&scratch, &text, &[&path]), b"").passes();
            let found = fs::read(&path).expect("read");
            for (at, block) in found.chunks(512).enumerate() {
                let place = at * 512..(at + 1) * 512;
                let is_zero = wanted[place.clone()].iter().all(|&byte| byte == 0);
                let is_right =
                    block == &wanted[place.clone()] || is_zero && block == &before[place];
                assert!(is_right, "{line}, {options:?}: sector {at}");
            }
        }
        close(&scratch);
    }
}

/// Only the file system on the volume is full: the image is sparse, and its own file system has
/// room.
#[test]
fn a_full_file_system_keeps_what_it_took_and_passes_its_check() {
    for (kind, len, make, check) in [
        (LUKS2, LEN, "mkfs.ext4 -q", "e2fsck -fn"),
        (LUKS2_512, LARGE, "mkfs.xfs -q -f", "xfs_repair -n"),
        (LUKS2, LARGE, "mkfs.btrfs -q -f", "btrfs check --readonly"),
    ] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, len);
        let path = open(&scratch, &image, "loop", &["--allow-discards"]);
        let text = format!(
            "{make} $1; mount $1 m
            head -c 7M /dev/urandom > block
            # Until nothing fits; each file that is whole is counted.
            for i in $(seq 200); do
                cp block m/$i 2>said || break
                cmp block m/$i
            done
            grep -q 'No space left' said
            sync -f m || :
            rm m/$i
            umount m; mount $1 m
            for i in $(seq $((i - 1))); do cmp block m/$i; done
            fstrim m || :
            rm m/1; cp block m/again; sync -f m; cmp block m/again
            umount m; {check} $1 >&2"
        );
        run(&mut script(&scratch, &text, &[&path]), b"").passes();
        close(&scratch);
    }
}

/// The served disk, as an option of fio.
struct Disk(String);

impl Disk {
    fn open(scratch: &Scratch, image: &Image, served: &str) -> Self {
        let path = open(scratch, image, served, &[]);
        Self(if served == "nbd" { format!("--uri={path}") } else { format!("--filename={path}") })
    }

    fn fio(&self, scratch: &Scratch, job: &[&str]) -> Command {
        let engine = if self.0.starts_with("--uri") { "nbd" } else { "libaio" };
        let mut fio = tool("fio", "fio");
        fio.args(["--name=job", "--allow_file_create=0", "--direct=1"]);
        // Options that only one engine knows must follow `--ioengine`.
        fio.args([&format!("--ioengine={engine}"), &self.0]).args(job);
        fio.current_dir(scratch.path(""));
        fio
    }
}

/// One write after the other, each flushed.
const WRITES: [&str; 7] = [
    "--rw=randwrite",
    "--bs=4k",
    "--iodepth=1",
    "--size=64m",
    "--fsync=1",
    "--randseed=9",
    "--number_ios=200000",
];

/// fio, which runs until its disk goes. Dropping it kills fio and its children.
struct Load(Child);

impl Load {
    /// Each write is flushed, so that what fio counts as written is in the image.
    fn start(scratch: &Scratch, disk: &Disk) -> Self {
        let job = ["--verify=crc32c", "--do_verify=0", "--verify_state_save=1"];
        let mut command = disk.fio(scratch, &[&WRITES[..], &job, &["--exitall_on_error"]].concat());
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(quiet.spawn().expect("fio starts"))
    }

    /// fio notices that its disk has gone.
    fn fails(&mut self) {
        assert!(!self.0.wait().expect("waited").success(), "fio does not notice");
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // `timeout` forwards the signal.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

fn status(scratch: &Scratch) -> serde_json::Value {
    let mut status = scratch.ucrypt(&["status", "--json"]);
    let text = run(status.arg(scratch.unique()), b"").passes();
    serde_json::from_slice(&text).expect("JSON")
}

/// Kills the server of the test's volume once it has written this many bytes.
fn kill_after(scratch: &Scratch, bytes: u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let server = loop {
        let status = status(scratch);
        if status["counters"]["written_bytes"].as_u64().expect("a number") >= bytes {
            break status["server"]["pid"].as_i64().expect("a number");
        }
        assert!(Instant::now() < deadline, "fio does not write {bytes} bytes");
    };
    let server = Pid::from_raw(i32::try_from(server).expect("a process")).expect("a process");
    kill_process(server, Signal::KILL).expect("killed");
    scratch.await_end(server);
}

#[test]
fn fio_finds_what_it_had_flushed_when_the_server_is_killed() {
    let seed = number("UCRYPT_SEED", 1);
    println!("UCRYPT_SEED={seed}");
    let mut random = Random::new(seed);
    for served in ["fuse", "loop", "nbd"] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, LUKS2_512, LEN);
        for _ in 0..number("UCRYPT_KILLS", 2) {
            let disk = Disk::open(&scratch, &image, served);
            let mut load = Load::start(&scratch, &disk);
            kill_after(&scratch, (1 << 20) + random.below(2 << 20));
            load.fails();
            drop(load);
            let disk = Disk::open(&scratch, &image, served);
            // fio saved its progress.
            assert!(has_state(&scratch), "fio saved no state");
            let job = ["--verify_only", "--verify=crc32c", "--verify_fatal=1"];
            let job = [&WRITES[..], &job, &["--verify_state_load=1"]].concat();
            run(&mut disk.fio(&scratch, &job), b"").passes();
            close(&scratch);
            forget_state(&scratch);
        }
    }
}

/// The file in which fio saves its progress.
fn states(scratch: &Scratch) -> impl Iterator<Item = PathBuf> {
    let files = fs::read_dir(scratch.path("")).expect("a directory").filter_map(Result::ok);
    let names = files.map(|file| file.path());
    names.filter(|path| path.extension() == Some("state".as_ref()))
}

fn has_state(scratch: &Scratch) -> bool {
    states(scratch).any(|path| len(&path) > 0)
}

fn forget_state(scratch: &Scratch) {
    for path in states(scratch) {
        fs::remove_file(path).expect("removed");
    }
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |file| file.len())
}

/// Where `scripts/setup tools` installs programs that are no packages.
const FSX: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/bin/fsx");

/// fsx on a disk of a megabyte or more: it never changes its length.
const FSX_DISK: &str = "flen = 1048576
blockmode = true
[opsize]
max = 65536
[weights]
read = 10
write = 10
mapread = 5
mapwrite = 5
truncate = 0
fsync = 1
fdatasync = 1
sendfile = 2
posix_fadvise = 1
";

const FSX_FILE: &str = "flen = 1048576
[opsize]
max = 65536
[weights]
read = 10
write = 10
mapread = 5
mapwrite = 5
truncate = 3
fsync = 1
fdatasync = 1
punch_hole = 3
posix_fallocate = 1
sendfile = 2
copy_file_range = 3
close_open = 1
invalidate = 1
";

#[test]
fn fsx_finds_what_it_wrote_in_a_file_on_a_device_and_in_a_file_system() {
    assert!(Path::new(FSX).exists(), "fsx is missing; scripts/setup tools installs it");
    let text = "for seed in 1 2 3; do $1 -q -f $2 -N 3000 -S $seed -P . $(eval echo $3); done";
    for served in SERVED {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, LUKS2, 4 << 20);
        let path = open(&scratch, &image, served, &[]);
        scratch.file("fsx.toml", FSX_DISK.as_bytes());
        run(&mut script(&scratch, text, &[FSX, "fsx.toml", &path]), b"").passes();
        close(&scratch);
    }
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
    let path = open(&scratch, &image, "loop", &[]);
    scratch.file("fsx.toml", FSX_FILE.as_bytes());
    let text = format!("mkfs.ext4 -q $4; mount $4 m; {text}; umount m; fsck.ext4 -fn $4");
    run(&mut script(&scratch, &text, &[FSX, "fsx.toml", "m/$seed", &path]), b"").passes();
    close(&scratch);
}
