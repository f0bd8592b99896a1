//! `open --as loop`: a kernel disk, judged by the kernel's file systems and their checkers.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use ucrypt_testkit::Random;

use crate::aligned::Aligned;
use crate::image::{DATA, Image, Kind, LUKS1, LUKS2, LUKS2_512};
use crate::load::{Disk, Load, volume_len};
use crate::namespace::{OWN_DEV, script};
use crate::process::{Ran, run, tool};
use crate::scratch::{Scratch, UCRYPT};
use crate::server::await_that;

const LEN: u64 = 64 << 20;
/// mkfs.xfs and mkfs.btrfs make no smaller file systems.
const LARGE: u64 = 320 << 20;

/// Opens under the test's own name.
fn open(scratch: &Scratch, image: &Image, options: &[&str]) -> Ran {
    let mut command = image.ucrypt(scratch, "open");
    run(command.arg(scratch.unique()).args(["--as", "loop"]).args(options), b"")
}

fn close(scratch: &Scratch, options: &[&str]) -> Ran {
    run(scratch.ucrypt(&["close"]).args(options).arg(scratch.unique()), b"")
}

/// The device that the link names.
fn node(scratch: &Scratch) -> String {
    let link = fs::read_link(scratch.device()).expect("a link");
    link.to_str().expect("ASCII").to_owned()
}

/// An attribute of a device in sysfs.
fn queue(node: &str, attribute: &str) -> String {
    let name = node.strip_prefix("/dev/").expect("a device");
    let path = format!("/sys/block/{name}/{attribute}");
    fs::read_to_string(&path).expect(&path).trim().to_owned()
}

/// A device with a certain file attached to it.
#[derive(Debug, PartialEq, Eq)]
struct Attached {
    name: String,
    /// The kernel's sequence number, which counts attachments to any disk.
    sequence: String,
}

impl Attached {
    /// The device that the link names now.
    fn now(scratch: &Scratch) -> Self {
        let node = node(scratch);
        Self { sequence: queue(&node, "diskseq"), name: node.replace("/dev/", "") }
    }

    fn is_there(&self) -> bool {
        let device = Path::new("/sys/block").join(&self.name);
        let sequence = fs::read_to_string(device.join("diskseq")).unwrap_or_default();
        device.join("loop").exists() && sequence.trim() == self.sequence
    }
}

#[track_caller]
fn nothing_is_left(scratch: &Scratch) {
    scratch.processes().into_iter().for_each(|process| scratch.await_end(process));
    assert!(scratch.device().symlink_metadata().is_err(), "the link is left");
    let left: Vec<_> = fs::read_dir(scratch.runtime("")).expect("a directory").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn file_systems_hold_a_tree_and_pass_their_checks() {
    for (kind, len, make, check) in [
        (LUKS1, LEN, "mkfs.ext4 -q", "e2fsck -fn"),
        (LUKS2, LEN, "mkfs.ext4 -q", "e2fsck -fn"),
        (LUKS2_512, LARGE, "mkfs.xfs -q -f", "xfs_repair -n"),
        (LUKS2, LARGE, "mkfs.btrfs -q -f", "btrfs check --readonly"),
    ] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, len);
        let path = open(&scratch, &image, &[]).text();
        assert_eq!(path.trim_end(), scratch.device().to_str().expect("ASCII"));
        fs::create_dir(scratch.path("tree")).expect("a directory");
        for (number, len) in [0, 1, 511, 4096, 4097, 100_000, 9 << 20].into_iter().enumerate() {
            scratch.file(&format!("tree/{number}"), &Random::new(number as u64).bytes(len));
        }
        let text = format!(
            "{make} $1; mount $1 m; cp -r tree m; mkdir m/d; for i in $(seq 300); do
                 head -c 3000 /dev/urandom > m/d/$i; done
             (cd m; find . -type f | xargs sha256sum) > sums
             umount m; mount $1 m; (cd m; sha256sum --quiet -c ../sums)
             umount m; {check} $1 >&2"
        );
        run(&mut script(&scratch, &text, &[path.trim_end()]), b"").passes();
        let attached = Attached::now(&scratch);
        close(&scratch, &[]).passes();
        nothing_is_left(&scratch);
        assert!(!attached.is_there());

        open(&scratch, &image, &["--readonly"]).passes();
        let text = format!(
            "{check} $1 >&2; mount -o ro $1 m
             cd m; sha256sum --quiet -c ../sums; diff -r ../tree tree"
        );
        run(&mut script(&scratch, &text, &[scratch.device()]), b"").passes();
        close(&scratch, &[]).passes();
        nothing_is_left(&scratch);
    }
}

#[test]
fn the_device_is_the_volume_sector_by_sector() {
    for kind in [LUKS2, LUKS2_512] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, DATA);
        open(&scratch, &image, &[]).passes();
        let node = node(&scratch);
        assert_eq!(queue(&node, "queue/logical_block_size"), kind.sector.to_string());
        assert_eq!(queue(&node, "size"), (DATA / 512).to_string());
        assert_eq!(queue(&node, "queue/write_cache"), "write back");
        assert_eq!(queue(&node, "loop/dio"), "1");
        assert_eq!(queue(&node, "ro"), "0");
        let data = Random::new(11).bytes(DATA as usize);
        let device = File::options().write(true).open(scratch.device()).expect("opened");
        device.write_all_at(&data, 0).expect("written");
        device.sync_all().expect("flushed");
        drop(device);
        close(&scratch, &[]).passes();
        assert!(run(&mut image.ucrypt(&scratch, "read"), b"").passes() == data);

        open(&scratch, &image, &["--readonly"]).passes();
        assert!(fs::read(scratch.device()).expect("read") == data);
        assert_eq!(queue(&self::node(&scratch), "ro"), "1");
        close(&scratch, &[]).passes();
    }
}

#[test]
fn the_kernel_looks_for_partitions_on_request() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2_512, DATA);
    for (options, expected) in [(&[][..], "0"), (&["--partscan"], "1")] {
        open(&scratch, &image, options).passes();
        // Its result depends on the partition tables that the kernel supports.
        assert_eq!(queue(&node(&scratch), "loop/partscan"), expected);
        close(&scratch, &[]).passes();
    }
}

/// Bytes allocated for the image.
fn allocated(image: &Image) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(&image.path).expect("metadata").blocks() * 512
}

#[test]
fn fstrim_gives_space_back_where_it_is_allowed_and_zeroes_are_zeroes() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
    open(&scratch, &image, &["--allow-discards"]).passes();
    // The block device's own ways to zero must still zero, including those that may unmap.
    let text = "
        # Nothing is to be written later, when the image is measured.
        mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 $1; mount $1 m
        head -c 30M /dev/urandom > m/large; head -c 1M /dev/urandom > m/small; sync
        sha256sum < m/small > sum; du -k image | cut -f 1 > full
        # ext4 has a removed file's blocks free some time after sync, and at the latest when it is unmounted.
        rm m/large; umount m; mount $1 m; fstrim m
        du -k image | cut -f 1 > trimmed
        echo 3 > /proc/sys/vm/drop_caches; sha256sum < m/small | cmp - sum
        umount m; e2fsck -fn $1 >&2
        head -c 8M /dev/urandom > $1; sync
        blkdiscard --zeroout --offset 0 --length 1M $1
        fallocate --zero-range --offset 1M --length 1M $1
        fallocate --punch-hole --offset 2M --length 1M $1 || head -c 1M /dev/zero |
            dd of=$1 bs=1M seek=2 conv=notrunc status=none
        sync; echo 3 > /proc/sys/vm/drop_caches
        head -c 3M /dev/zero | cmp -n 3145728 - $1";
    run(&mut script(&scratch, text, &[scratch.device()]), b"").passes();
    let kib =
        |name: &str| fs::read_to_string(scratch.path(name)).expect(name).trim().parse::<u64>();
    let (full, trimmed) = (kib("full").expect("a number"), kib("trimmed").expect("a number"));
    assert!(trimmed + 28_000 < full, "{full} KiB, and {trimmed} KiB after fstrim");
    close(&scratch, &[]).passes();

    open(&scratch, &image, &[]).passes();
    assert_eq!(queue(&node(&scratch), "queue/discard_max_bytes"), "0");
    let before = allocated(&image);
    run(tool("blkdiscard", "util-linux").arg(scratch.device()), b"").exits(1);
    assert_eq!(allocated(&image), before);
    close(&scratch, &[]).passes();
    nothing_is_left(&scratch);
}

/// The device exists before the server can tell zeroes from discards. A program that writes to it
/// at once must find its data again.
#[test]
fn what_is_written_while_a_device_appears_is_there_afterwards() {
    const OFFSET: usize = 1 << 20;
    let scratch = Scratch::new();
    // The length identifies the device: what others have must not change. Nobody else has an odd number of sectors,
    // and two of these tests have different ones.
    let name =
        scratch.unique().bytes().fold(0, |sum: u64, byte| sum * 31 % 99_991 + u64::from(byte));
    let mut len = (2 << 20) + (2 * name + 1) * 512;
    while of_length(len).is_some() {
        len += 1024;
    }
    let image = Image::by_cryptsetup(&scratch, LUKS2_512, len);
    for round in 1..=15 {
        let mut data = Aligned::copy_of(&[round; 4096]);
        let mut opening = image.ucrypt(&scratch, "open");
        let opening = opening.arg(scratch.unique()).args(["--as", "loop", "--allow-discards"]);
        let mut opening = opening.stdout(Stdio::null()).spawn().expect("ucrypt starts");
        let deadline = Instant::now() + Duration::from_secs(60);
        // The first write that the device takes, by direct I/O.
        loop {
            assert!(Instant::now() < deadline, "the device takes no write");
            std::thread::yield_now();
            let Some(node) = of_length(len) else { continue };
            let mut options = File::options();
            options.write(true).custom_flags(OFlags::DIRECT.bits().cast_signed());
            let Ok(device) = options.open(node) else { continue };
            if device.write_all_at(data.bytes(), OFFSET as u64).is_ok() {
                break;
            }
        }
        assert!(opening.wait().expect("waited").success());
        close(&scratch, &[]).passes();
        let now = run(&mut image.ucrypt(&scratch, "read"), b"").passes();
        assert!(now[OFFSET..OFFSET + 4096] == [round; 4096], "round {round}: the write is lost");
    }
    nothing_is_left(&scratch);
}

/// The server's probe of the driver changes nothing on the volume, however often it is opened.
#[test]
fn opening_with_discards_allowed_changes_nothing() {
    let scratch = Scratch::new();
    for kind in [LUKS2, LUKS2_512] {
        // One so short that every probe uses the same range, and the usual one.
        for len in [8192, DATA] {
            let image = Image::by_cryptsetup(&scratch, kind, len);
            let before = run(&mut image.ucrypt(&scratch, "read"), b"").passes();
            for _ in 0..5 {
                open(&scratch, &image, &["--allow-discards"]).passes();
                assert_eq!(queue(&node(&scratch), "queue/write_zeroes_max_bytes"), "0");
                assert!(fs::read(scratch.device()).expect("read") == before);
                close(&scratch, &[]).passes();
            }
            assert!(run(&mut image.ucrypt(&scratch, "read"), b"").passes() == before);
        }
    }
    nothing_is_left(&scratch);
}

/// `losetup --sector-size` makes the driver read its limits again.
#[test]
fn zeroes_are_zeroes_after_the_block_size_was_changed() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
    for first in ["punch", "discard"] {
        open(&scratch, &image, &["--allow-discards"]).passes();
        let text = "
            losetup --sector-size 512 $1
            head -c 4M /dev/urandom > data; dd if=data of=$1 bs=1M conv=fsync status=none
            test $2 = punch || blkdiscard --offset 3M --length 1M $1 || :
            zeroed=0
            if fallocate --punch-hole --offset 0 --length 1M $1; then zeroed=1M; fi
            echo 3 > /proc/sys/vm/drop_caches
            # Either it was done, or nothing was.
            if [ $zeroed = 1M ]; then head -c 1M /dev/zero; else head -c 1M data; fi |
                cmp -n 1048576 - $1
            dd if=data bs=1M skip=1 count=2 status=none > expected
            dd if=$1 bs=1M skip=1 count=2 status=none | cmp - expected
            blkdiscard --zeroout --offset 1M --length 1M $1
            fallocate --zero-range --offset 2M --length 1M $1
            sync; echo 3 > /proc/sys/vm/drop_caches
            dd if=$1 bs=1M skip=1 count=2 status=none | cmp -n 2097152 - /dev/zero";
        let device = scratch.device().to_str().expect("text").to_owned();
        run(&mut script(&scratch, text, &[&device, first]), b"").passes();
        close(&scratch, &[]).passes();
    }
    nothing_is_left(&scratch);
}

/// The node of the loop device with this length.
fn of_length(len: u64) -> Option<PathBuf> {
    let list = fs::read_dir("/sys/block").expect("/sys").filter_map(Result::ok);
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let mut devices = list.map(|entry| entry.path());
    devices
        .find(|device| {
            let sectors = read(device.join("size"));
            device.join("loop").exists() && sectors.trim() == (len / 512).to_string()
        })
        .map(|device| Path::new("/dev").join(device.file_name().expect("a name")))
}

/// A shell that keeps the device mounted until its standard input is closed.
fn mounted(scratch: &Scratch) -> Child {
    let mut shell =
        script(scratch, "mount $1 m; echo on > on; read -r _ || :", &[scratch.device()]);
    let shell = shell.stdin(Stdio::piped()).spawn().expect("a shell");
    scratch.await_file("on");
    shell
}

fn end(mut shell: Child) {
    drop(shell.stdin.take());
    assert!(shell.wait().expect("waited").success());
}

#[test]
fn the_server_sees_no_mounts_but_its_own() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    open(&scratch, &image, &[]).passes();
    let server = scratch.server().as_raw_nonzero();
    let mounts = fs::read_to_string(format!("/proc/{server}/mountinfo")).expect("mounts");
    let places: Vec<_> = mounts.lines().filter_map(|line| line.split(' ').nth(4)).collect();
    let runtime = scratch.runtime("");
    let runtime = runtime.to_str().expect("text").trim_end_matches('/');
    for expected in ["/", "/dev", "/proc", "/sys", runtime] {
        assert!(places.contains(&expected), "no {expected} in {mounts}");
    }
    let below = |place: &str| ["/dev", "/proc", "/sys"].iter().any(|dir| place.starts_with(dir));
    let others = places.iter().filter(|place| !below(place) && !["/", runtime].contains(place));
    assert_eq!(others.count(), 0, "{mounts}");
    // One that stayed would keep all that the user has mounted.
    let namespace = |task: &Path| fs::read_link(task.join("ns/mnt")).expect("a namespace");
    let main = namespace(&Path::new("/proc").join(server.to_string()));
    assert_ne!(main, namespace(Path::new("/proc/self")));
    for thread in fs::read_dir(format!("/proc/{server}/task")).expect("threads") {
        let thread = thread.expect("a thread").path();
        let name = fs::read_to_string(thread.join("comm")).expect("a name");
        assert_eq!(namespace(&thread), main, "{name}");
    }
    close(&scratch, &[]).passes();
    nothing_is_left(&scratch);
}

/// Regression: threads of the server kept the namespace, and what was mounted in it. The last one, if the server was
/// killed, had to store what lay on the server's own device, and never ended; nor did anybody's `sync`.
#[test]
fn a_mount_namespace_that_ends_takes_its_mount_of_the_device_with_it() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let text = "
        PATH=$PATH:/usr/sbin:/sbin
        XDG_RUNTIME_DIR=$PWD/run $1 open --as loop --key-file $2 $3 $4
        mkfs.ext4 -q /dev/ucrypt/$4; mount /dev/ucrypt/$4 m; echo kept >m/file";
    let [key, path] = [&image.key, &image.path].map(|file| file.display().to_string());
    let mut own = script(&scratch, text, &[UCRYPT, &key, &path, &scratch.unique()]);
    run(&mut own, b"").passes();
    // The kernel unmounts a little after the last process has gone.
    await_that("the device to be free", || close(&scratch, &[]).succeeded());
    open(&scratch, &image, &[]).passes();
    let read = script(&scratch, "mount $1 m; cat m/file", &[scratch.device()]).output();
    assert_eq!(read.expect("a shell").stdout, b"kept\n");
    close(&scratch, &[]).passes();
    nothing_is_left(&scratch);
}

#[test]
fn what_the_server_has_to_say_goes_to_a_log() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let log = scratch.path("log");
    open(&scratch, &image, &["--log", log.to_str().expect("text")]).passes();
    // The server says so once `open` has its answer.
    let said = || fs::read_to_string(&log).expect("a log");
    await_that("the server says that it is open", || said().ends_with('\n'));
    assert!(said().contains("info: opened ") && said().lines().count() == 1, "{}", said());
    close(&scratch, &[]).passes();
    open(&scratch, &image, &["--log", "/no/such/place"]).refuses(4);
    nothing_is_left(&scratch);
}

#[test]
fn what_is_missing_is_named_and_what_works_instead() {
    for (served, nodes, missing, remedy) in [
        ("ublk", "fuse loop-control", "ublk-control", "--as fuse"),
        ("ublk", "fuse loop-control null:ublk-control", "Linux 6.5", "--as fuse"),
        ("loop", "fuse", "loop-control", "--as fuse"),
        ("loop", "loop-control", "/dev/fuse", "--as nbd"),
        // The free device has no node; or the driver has no free device.
        ("loop", "fuse loop-control", "cannot attach", "--as fuse"),
        ("loop", "fuse null:loop-control", "no free loop device", "--as fuse"),
        ("fuse", "loop-control", "/dev/fuse", "--as nbd"),
    ] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
        let text = format!("{OWN_DEV}\nnodes $1\nshift; exec \"$@\"");
        let mut open = script(&scratch, &text, &[nodes, UCRYPT, "open"]);
        open.env("XDG_RUNTIME_DIR", scratch.path("run")).args(image.with_key());
        let message = run(open.arg(scratch.unique()).args(["--as", served]), b"").refuses(4);
        assert!(message.contains(missing) && message.contains(remedy), "{message}");
        nothing_is_left(&scratch);
    }
}

#[test]
fn a_device_in_use_is_not_closed_until_it_is_free() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
    open(&scratch, &image, &[]).passes();
    run(tool("mkfs.ext4", "e2fsprogs").arg("-q").arg(scratch.device()), b"").passes();
    let shell = mounted(&scratch);
    close(&scratch, &[]).refuses(5);
    end(shell);
    // The refusal is final: the device is not detached when its last user goes.
    let file = File::open(scratch.device()).expect("opened");
    close(&scratch, &[]).refuses(5);
    file.read_exact_at(&mut [0; 4096], 0).expect("read");
    drop(file);
    close(&scratch, &[]).passes();
    nothing_is_left(&scratch);
}

#[test]
fn a_deferred_close_ends_with_the_last_user() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    open(&scratch, &image, &[]).passes();
    let attached = Attached::now(&scratch);
    let file = File::options().read(true).write(true).open(scratch.device()).expect("opened");
    close(&scratch, &["--deferred"]).passes();
    assert!(scratch.device().symlink_metadata().is_err(), "the name is gone");
    file.write_all_at(b"to the end", 0).expect("the volume goes on");
    assert_eq!(scratch.processes().len(), 1);
    assert!(attached.is_there());
    drop(file);
    nothing_is_left(&scratch);
    assert!(!attached.is_there());
    let mut read = image.ucrypt(&scratch, "read");
    assert_eq!(run(read.args(["--length", "10"]), b"").passes(), b"to the end");
}

#[test]
fn a_killed_server_leaves_errors_and_the_next_open_cleans_up() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    open(&scratch, &image, &[]).passes();
    let (device, first) = (scratch.device(), Attached::now(&scratch));
    scratch.kill_background_server();
    let mut dd = tool("dd", "coreutils");
    dd.arg(format!("if={}", device.display())).args(["of=/dev/null", "iflag=direct"]);
    run(&mut dd, b"").exits(1);
    open(&scratch, &image, &[]).passes();
    assert_eq!(fs::read(&device).expect("read").len() as u64, DATA);
    let second = Attached::now(&scratch);
    assert!(first != second && !first.is_there() && second.is_there());
    scratch.kill_background_server();
    let message = close(&scratch, &[]).refuses(4);
    assert!(message.contains("killed"), "{message}");
    nothing_is_left(&scratch);
    assert!(!second.is_there());
    let message = close(&scratch, &[]).refuses(4);
    assert!(message.contains("not open"), "{message}");
}

/// Device numbers are reused, and a dead server's device cannot tell its owner.
#[test]
fn the_remains_of_a_killed_server_take_no_device_away_that_is_anothers_by_now() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    open(&scratch, &image, &[]).passes();
    let attached = Attached::now(&scratch);
    scratch.kill_background_server();
    // The remains of another server whose device had this number before.
    let other = format!("{}-other", scratch.unique());
    let link = Path::new("/dev/ucrypt").join(&other);
    let lock = Path::new("/dev/ucrypt").join(format!(".{other}.lock"));
    let before: u64 = attached.sequence.parse().expect("a number");
    fs::write(&lock, (before - 1).to_string()).expect("written");
    std::os::unix::fs::symlink(node(&scratch), &link).expect("linked");
    let message = run(scratch.ucrypt(&["close"]).arg(&other), b"").refuses(4);
    assert!(message.contains("was killed"), "{message}");
    assert!(!link.exists() && !lock.exists());
    assert!(attached.is_there(), "the device of the other one is detached");
    close(&scratch, &[]).refuses(4);
    assert!(!attached.is_there());
    nothing_is_left(&scratch);
}

/// The link of a killed server leads to the device that got the number of its own.
#[test]
fn a_reused_number_names_the_volume_that_has_the_device_now() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    open(&scratch, &image, &[]).passes();
    let sequence: u64 = Attached::now(&scratch).sequence.parse().expect("a number");
    let others = ["0", "zz"].map(|end| format!("{}-{end}", scratch.unique()));
    let lock = |name: &str| Path::new("/dev/ucrypt").join(format!(".{name}.lock"));
    for other in &others {
        fs::write(lock(other), (sequence - 1).to_string()).expect("written");
        std::os::unix::fs::symlink(node(&scratch), Path::new("/dev/ucrypt").join(other))
            .expect("linked");
    }
    let status = run(scratch.ucrypt(&["status", "--json"]).arg(node(&scratch)), b"");
    let closed = run(scratch.ucrypt(&["close"]).arg(node(&scratch)), b"");
    for other in &others {
        let _ = fs::remove_file(Path::new("/dev/ucrypt").join(other));
        let _ = fs::remove_file(lock(other));
    }
    let status: serde_json::Value = serde_json::from_slice(&status.passes()).expect("JSON");
    assert_eq!(status["name"], scratch.unique().as_str());
    closed.passes();
    nothing_is_left(&scratch);
}

#[test]
fn a_mount_that_lost_its_server_is_detached_when_it_is_unmounted() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
    open(&scratch, &image, &[]).passes();
    run(tool("mkfs.ext4", "e2fsprogs").arg("-q").arg(scratch.device()), b"").passes();
    let (shell, old) = (mounted(&scratch), Attached::now(&scratch));
    scratch.kill_background_server();
    open(&scratch, &image, &[]).passes();
    assert!(Attached::now(&scratch) != old && old.is_there(), "the old device is in use");
    run(tool("e2fsck", "e2fsprogs").arg("-fy").arg(scratch.device()), b"");
    end(shell);
    // The kernel takes some time to remove a mount namespace.
    let deadline = Instant::now() + Duration::from_secs(30);
    while old.is_there() {
        assert!(Instant::now() < deadline, "{old:?} is left");
        std::thread::sleep(Duration::from_millis(5));
    }
    close(&scratch, &[]).passes();
    nothing_is_left(&scratch);
}

#[test]
fn what_was_flushed_survives_a_killed_server() {
    const WRITERS: u64 = 4;
    let survive = |kind: Kind, seed: u64| {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, volume_len(WRITERS));
        for (round, writes) in (0..).zip([40, 170]) {
            open(&scratch, &image, &[]).passes();
            // A write counts as acknowledged once it is flushed, because the device has a cache of
            // its own.
            let disk = || {
                let mut options = File::options();
                options.read(true).write(true).custom_flags(OFlags::DSYNC.bits().cast_signed());
                Disk::Fuse(options.open(scratch.device()).expect("opened"))
            };
            let load = Load::start(seed + round, (0..WRITERS).map(|_| disk()).collect());
            load.await_writes(writes);
            scratch.kill_background_server();
            load.check(&run(&mut image.ucrypt(&scratch, "read"), b"").passes());
        }
        close(&scratch, &[]).refuses(4);
    };
    survive(LUKS2, 900);
    survive(LUKS2_512, 950);
}

#[test]
fn a_device_is_resized_and_its_file_system_with_it() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
    open(&scratch, &image, &[]).passes();
    let resize = |options: &[&str]| {
        run(scratch.ucrypt(&["resize"]).args(options).arg(scratch.unique()), b"")
    };
    let sectors = || queue(&node(&scratch), "size").parse::<u64>().expect("a number");
    let status = || {
        let mut status = scratch.ucrypt(&["status", "--json"]);
        let text = run(status.arg(scratch.unique()), b"").passes();
        let status: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        status["volume"]["size"].as_u64().expect("a number")
    };
    resize(&["--size", "65536"]).passes();
    assert_eq!((sectors(), status()), (65536, 32 << 20));
    let text =
        "mkfs.ext4 -q $1; mount $1 m; head -c 5M /dev/urandom > m/file; sha256sum < m/file > sum";
    run(&mut script(&scratch, text, &[scratch.device()]), b"").passes();

    // Resize to the whole image, which has grown.
    let grown = image.kind.data_offset() + 2 * LEN;
    File::options().write(true).open(&image.path).and_then(|it| it.set_len(grown)).expect("grown");
    resize(&[]).passes();
    assert_eq!((sectors(), status()), (2 * LEN / 512, 2 * LEN));
    let text = "e2fsck -fp $1 >&2; resize2fs $1 >&2; mount $1 m; sha256sum < m/file | cmp - sum
        head -c 90M /dev/urandom > m/large; sha256sum < m/large > large
        umount m; mount $1 m; sha256sum < m/large | cmp - large; umount m; e2fsck -fn $1 >&2";
    run(&mut script(&scratch, text, &[scratch.device()]), b"").passes();

    resize(&["--device-size", "129M"]).refuses(1);
    resize(&["--size", "8191"]).refuses(1);
    assert_eq!((sectors(), status()), (2 * LEN / 512, 2 * LEN));
    close(&scratch, &[]).passes();
    resize(&[]).refuses(4);
    nothing_is_left(&scratch);
}

#[test]
fn a_name_in_use_by_another_runtime_directory_is_refused() {
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let other = Image::by_cryptsetup(&elsewhere, LUKS2, DATA);
    open(&scratch, &image, &[]).passes();
    let mut second = other.ucrypt(&elsewhere, "open");
    run(second.arg(scratch.unique()).args(["--as", "loop"]), b"").refuses(5);
    open(&scratch, &image, &[]).refuses(5);
    close(&scratch, &[]).passes();
    nothing_is_left(&scratch);
}

#[test]
fn an_aborted_connection_below_a_device_is_told() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let log = scratch.path("log");
    open(&scratch, &image, &["--log", log.to_str().expect("text")]).passes();
    let server = scratch.server();
    // A FUSE connection has the number of its file system, which is that of the attached file.
    let text = "mount -t fusectl none /sys/fs/fuse/connections || :
        echo 1 > /sys/fs/fuse/connections/$(losetup -nlO BACK-MAJ:MIN $(realpath $1) | sed 's/.*://; s/ //g')/abort";
    run(&mut script(&scratch, text, &[scratch.device()]), b"").passes();
    scratch.await_end(server);
    let said = fs::read_to_string(&log).expect("a log");
    assert!(said.contains("aborted its connection") && said.contains("/dev/loop"), "{said}");
    nothing_is_left(&scratch);
}

/// The node of a loop device is somebody else's after its detachment.
#[test]
fn udev_is_not_told_the_name_of_a_killed_server_for_a_device_that_is_anothers_now() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    run(image.ucrypt(&scratch, "open").args([&scratch.unique(), "--as", "loop"]), b"").passes();
    let node = fs::read_link(scratch.device()).expect("a link");
    let udev = || run(scratch.ucrypt(&["udev"]).arg(&node), b"").text();
    assert_eq!(udev(), format!("UCRYPT_NAME={}\n", scratch.unique()));
    scratch.kill_background_server();
    assert_eq!(udev(), "");
    run(&mut scratch.ucrypt(&["close", &scratch.unique()]), b"").exits(4);
}
