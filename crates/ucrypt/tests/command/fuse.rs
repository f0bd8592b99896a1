//! The FUSE export: a file that behaves as a disk, judged by fio and two file systems.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::process::{Pid, Signal, kill_process};

use crate::image::{Image, LUKS1, LUKS2, LUKS2_512};
use crate::process::{judge, run};
use crate::random::Random;
use crate::scratch::Scratch;
use crate::server::{On, Server};

const LEN: u64 = 32 << 20;
/// mkfs.xfs makes no smaller file systems.
const XFS_LEN: u64 = 300 << 20;

/// Both ways of the requests; the first falls back to the second where the kernel lacks it.
const TRANSPORTS: [&str; 2] = ["--fuse-transport=io_uring", "--fuse-transport=classic"];

fn serve(scratch: &Scratch, image: &Image, options: &[&str]) -> Server {
    let mut line = image.with_key();
    line.extend(options.iter().map(Into::into));
    Server::start(scratch, On::Fuse, &line)
}

#[test]
fn fio_verifies_four_jobs_of_random_sizes() {
    for (kind, align, transport) in
        TRANSPORTS.iter().flat_map(|by| [(LUKS2, 4096, by), (LUKS2_512, 512, by)])
    {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, LEN);
        let server = serve(&scratch, &image, &[transport]);
        let mut fio = judge("fio", "fio");
        fio.args(["--name=verify", "--ioengine=libaio", "--direct=1", "--rw=randwrite"]);
        fio.arg("--filename").arg(server.file()).arg("--allow_file_create=0");
        fio.arg(format!("--bsrange={align}-1m")).arg(format!("--blockalign={align}"));
        fio.args(["--iodepth=8", "--numjobs=4", "--size=8m", "--offset_increment=8m"]);
        fio.args(["--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--randseed=5"]);
        fio.args(["--output-format=json", "--group_reporting", "--fsync=32"]);
        fio.arg("--output").arg(scratch.path("fio.json"));
        run(fio.current_dir(scratch.path("")), b"").passes();
        let text = fs::read_to_string(scratch.path("fio.json")).expect("a report");
        let json = &text[text.find('{').expect("an object")..];
        let report: serde_json::Value = serde_json::from_str(json).expect("JSON");
        assert_eq!(report["jobs"][0]["error"], 0);
        assert_eq!(report["jobs"][0]["read"]["io_bytes"], LEN, "all of it was verified");
        server.terminate();
    }
}

#[test]
fn unaligned_copies_arrive_byte_for_byte() {
    for (kind, transport) in TRANSPORTS.iter().flat_map(|by| [(LUKS1, by), (LUKS2, by)]) {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, 4 << 20);
        let data = Random(31).bytes(3_000_001);
        let source = scratch.file("source", &data);
        let server = serve(&scratch, &image, &[transport]);
        let before = server.read(0, 4 << 20);
        let mut dd = judge("dd", "coreutils");
        dd.arg(format!("if={}", source.display())).arg(format!("of={}", server.file().display()));
        run(dd.args(["bs=1000", "seek=7", "conv=notrunc"]), b"").passes();
        let mut expected = before;
        expected[7000..7000 + data.len()].copy_from_slice(&data);
        assert!(fs::read(server.file()).expect("read") == expected);
        server.terminate();
        assert!(run(&mut image.ucrypt(&scratch, "read"), b"").passes() == expected);
    }
}

/// A directory with files of every length that matters.
fn tree(scratch: &Scratch) -> Vec<(String, Vec<u8>)> {
    fs::create_dir(scratch.path("tree")).expect("a directory");
    let lengths = [0, 1, 511, 4096, 4097, 100_000, 2 << 20];
    let files = lengths.map(|len| (format!("file-{len}"), Random(len as u64).bytes(len)));
    for (name, content) in &files {
        scratch.file(&format!("tree/{name}"), content);
    }
    files.into()
}

#[test]
fn ext4_is_made_checked_and_read_back() {
    for kind in [LUKS1, LUKS2] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, LEN);
        let files = tree(&scratch);
        let server = serve(&scratch, &image, &["--allow-discards"]);
        let mut mkfs = judge("mkfs.ext4", "e2fsprogs");
        run(mkfs.args(["-F", "-q", "-d"]).arg(scratch.path("tree")).arg(server.file()), b"")
            .passes();
        run(judge("e2fsck", "e2fsprogs").arg("-fn").arg(server.file()), b"").passes();
        server.terminate();

        let server = serve(&scratch, &image, &["--readonly"]);
        run(judge("e2fsck", "e2fsprogs").arg("-fn").arg(server.file()), b"").passes();
        fs::create_dir(scratch.path("out")).expect("a directory");
        let mut debugfs = judge("debugfs", "e2fsprogs");
        let dump = format!("rdump / {}", scratch.path("out").display());
        run(debugfs.args(["-R", &dump]).arg(server.file()), b"").passes();
        for (name, content) in files {
            assert!(fs::read(scratch.path("out").join(&name)).expect(&name) == content, "{name}");
        }
        server.terminate();
    }
}

#[test]
fn xfs_is_made_and_checked() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, XFS_LEN);
    let server = serve(&scratch, &image, &[]);
    run(judge("mkfs.xfs", "xfsprogs").args(["-q", "-f"]).arg(server.file()), b"").passes();
    run(judge("xfs_repair", "xfsprogs").args(["-n", "-f"]).arg(server.file()), b"").passes();
    server.terminate();
    let server = serve(&scratch, &image, &["--readonly"]);
    run(judge("xfs_repair", "xfsprogs").args(["-n", "-f"]).arg(server.file()), b"").passes();
    server.terminate();
}

#[test]
fn the_file_has_the_size_of_a_disk_and_keeps_it() {
    for transport in TRANSPORTS {
        keeps_its_size(transport);
    }
}

fn keeps_its_size(transport: &str) {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
    let server = serve(&scratch, &image, &[transport]);
    let metadata = fs::metadata(server.file()).expect("metadata");
    assert!(metadata.is_file() && metadata.len() == LEN && metadata.mode() & 0o777 == 0o600);
    let file = server.open();
    file.write_all_at(b"content", 0).expect("written");
    file.set_len(LEN).expect("its own size is no change");
    for other in [0, LEN - 1, LEN + 1] {
        let error = file.set_len(other).expect_err("a disk does not change its size");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    // As with a block device, opening with O_TRUNC keeps the content.
    File::create(server.file()).expect("opened with O_TRUNC");
    assert_eq!(fs::metadata(server.file()).expect("metadata").len(), LEN);
    assert_eq!(server.read(0, 7), b"content");
    drop(file);
    server.terminate();
}

#[test]
fn the_end_of_the_file_is_the_end_of_the_disk() {
    for transport in TRANSPORTS {
        ends_as_a_disk(transport);
    }
}

fn ends_as_a_disk(transport: &str) {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2_512, 1 << 20);
    let server = serve(&scratch, &image, &[transport]);
    let dd = |seek: &str| {
        let mut dd = judge("dd", "coreutils");
        dd.arg("if=/dev/zero").arg(format!("of={}", server.file().display()));
        run(dd.args(["bs=4096", "count=2", "conv=notrunc", seek]), b"")
    };
    // One of the two blocks fits.
    let ran = dd("seek=255").exits(1);
    assert!(ran.stderr.contains("No space left on device"), "{}", ran.stderr);
    assert!(ran.stderr.contains("\n1+0 records out"), "{}", ran.stderr);
    assert_eq!(server.read((1 << 20) - 4096, 4096), [0; 4096]);
    assert!(dd("seek=256").exits(1).stderr.contains("No space left on device"));

    let file = server.open();
    let mut buf = [1; 100];
    assert_eq!(file.read_at(&mut buf, (1 << 20) - 10).expect("read"), 10);
    assert_eq!(file.read_at(&mut buf, 1 << 20).expect("read"), 0);
    assert_eq!(file.write_at(&buf, (1 << 20) - 10).expect("a short write"), 10);
    drop(file);
    server.terminate();
}

#[test]
fn a_read_only_volume_refuses_every_change() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
    let before = image.bytes();
    let server = serve(&scratch, &image, &["--readonly"]);
    let error = File::options().write(true).open(server.file()).expect_err("opened for writing");
    assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fs::metadata(server.file()).expect("metadata").mode() & 0o777, 0o400);
    let mut data = vec![0; 1 << 20];
    File::open(server.file()).and_then(|mut file| file.read_exact(&mut data)).expect("read");
    server.terminate();
    assert!(image.bytes() == before);
}

#[test]
fn zeroed_and_punched_ranges_read_back_as_zeroes() {
    for options in [&[TRANSPORTS[0]][..], &[TRANSPORTS[1], "--allow-discards"]] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
        let server = serve(&scratch, &image, options);
        let file = server.open();
        let mut expected = Random(33).bytes(LEN as usize);
        file.write_all_at(&expected, 0).expect("written");
        let keep = FallocateFlags::KEEP_SIZE;
        for (flags, offset, len) in [
            (FallocateFlags::ZERO_RANGE, 4096, 1 << 20),
            (FallocateFlags::ZERO_RANGE | keep, (3 << 20) + 1, 5000),
            (FallocateFlags::PUNCH_HOLE | keep, 8 << 20, 2 << 20),
            (FallocateFlags::PUNCH_HOLE | keep, (12 << 20) + 700, 333),
            (FallocateFlags::PUNCH_HOLE | keep, LEN - 100, 100),
        ] {
            fallocate(&file, flags, offset, len).expect("fallocate");
            expected[offset as usize..(offset + len) as usize].fill(0);
        }
        file.sync_all().expect("synchronized");
        assert!(server.read(0, LEN as usize) == expected, "{options:?}");
        drop(file);
        server.terminate();
        assert!(run(&mut image.ucrypt(&scratch, "read"), b"").passes() == expected);
    }
}

#[test]
fn a_file_with_content_is_never_hidden_by_a_mount() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, 1 << 20);
    let precious = scratch.file("precious", b"data");
    let serve_at = |path: &Path| {
        let mut serve = image.ucrypt(&scratch, "serve");
        run(serve.arg("--fuse").arg(path), b"")
    };
    serve_at(&precious).refuses(4);
    serve_at(&scratch.path("run")).refuses(4);
    serve_at(&scratch.path("no/such/place")).refuses(4);
    assert_eq!(fs::read(&precious).expect("read"), b"data");
    assert!(scratch.mounts().is_empty());
}

/// Serves, looks at the transport that it says it uses, and moves data.
fn transport_in_use(wanted: &str) -> String {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, 4 << 20);
    let mut serve = scratch.ucrypt_child(&["serve"]);
    serve.args(image.with_key()).args(["--json", wanted, "--fuse"]).arg(scratch.path("served"));
    let mut child = serve.stdout(Stdio::piped()).spawn().expect("ucrypt starts");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("a pipe");
    let read = BufReader::new(stdout).read_line(&mut line);
    let served = read.and_then(|_| {
        let file = File::options().read(true).write(true).open(scratch.path("served"))?;
        let data = Random(51).bytes(2_000_000);
        file.write_all_at(&data, 4096)?;
        file.sync_all()?;
        let mut back = vec![0; data.len()];
        file.read_exact_at(&mut back, 4096)?;
        Ok(back == data)
    });
    kill_process(Pid::from_child(&child), Signal::TERM).expect("a signal");
    assert!(child.wait().expect("waited").success(), "it ends cleanly");
    assert!(served.expect("it serves"), "the data comes back");
    let said: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    said["transport"].as_str().expect("a transport").to_owned()
}

#[test]
fn requests_come_by_io_uring_where_the_kernel_has_it_and_else_by_read() {
    let parameter = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    let here =
        if parameter.is_ok_and(|value| value.trim() == "Y") { "io_uring" } else { "classic" };
    assert_eq!(transport_in_use(TRANSPORTS[0]), here);
    assert_eq!(transport_in_use(TRANSPORTS[1]), "classic");
}
