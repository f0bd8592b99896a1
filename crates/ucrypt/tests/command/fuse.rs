//! The FUSE export: a file that behaves as a disk, judged by fio and two file systems.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek, sendfile};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use ucrypt_testkit::Random;

use crate::image::{Image, LUKS1, LUKS2, LUKS2_512};
use crate::namespace::script;
use crate::nbd_client::NbdClient;
use crate::process::{Ran, run, tool};
use crate::scratch::Scratch;
use crate::server::{On, Server, await_that};

const LEN: u64 = 32 << 20;
/// mkfs.xfs makes no smaller file systems.
const XFS_LEN: u64 = 300 << 20;

/// Both transports; the first falls back to the second if the kernel lacks it.
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
        let mut fio = tool("fio", "fio");
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
        let data = Random::new(31).bytes(3_000_001);
        let source = scratch.file("source", &data);
        let server = serve(&scratch, &image, &[transport]);
        let before = server.read(0, 4 << 20);
        let mut dd = tool("dd", "coreutils");
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
    let files = lengths.map(|len| (format!("file-{len}"), Random::new(len as u64).bytes(len)));
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
        let mut mkfs = tool("mkfs.ext4", "e2fsprogs");
        run(mkfs.args(["-F", "-q", "-d"]).arg(scratch.path("tree")).arg(server.file()), b"")
            .passes();
        run(tool("e2fsck", "e2fsprogs").arg("-fn").arg(server.file()), b"").passes();
        server.terminate();

        let server = serve(&scratch, &image, &["--readonly"]);
        run(tool("e2fsck", "e2fsprogs").arg("-fn").arg(server.file()), b"").passes();
        fs::create_dir(scratch.path("out")).expect("a directory");
        let mut debugfs = tool("debugfs", "e2fsprogs");
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
    run(tool("mkfs.xfs", "xfsprogs").args(["-q", "-f"]).arg(server.file()), b"").passes();
    run(tool("xfs_repair", "xfsprogs").args(["-n", "-f"]).arg(server.file()), b"").passes();
    server.terminate();
    let server = serve(&scratch, &image, &["--readonly"]);
    run(tool("xfs_repair", "xfsprogs").args(["-n", "-f"]).arg(server.file()), b"").passes();
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
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    }
    assert_eq!(fs::metadata(server.file()).expect("metadata").len(), LEN);
    assert_eq!(server.read(0, 7), b"content");
    drop(file);
    server.terminate();
}

#[test]
fn opening_it_for_truncation_is_refused_and_its_size_stays_known() {
    for transport in TRANSPORTS {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
        let server = serve(&scratch, &image, &[transport]);
        server.open().write_all_at(b"content", 0).expect("written");
        let error = File::create(server.file()).expect_err("opened with O_TRUNC");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        // Nobody has queried the file's size since. An append still goes to the end.
        let mut file = File::options().append(true).open(server.file()).expect("opened");
        let error = file.write(b"appended").expect_err("behind the end");
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert_eq!(server.read(0, 7), b"content");
        drop(file);
        server.terminate();
    }
}

/// How programs copy a sparse image to the volume. None may report success while the holes still
/// have the old content.
#[test]
fn a_copy_that_succeeds_leaves_no_old_content_in_holes() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
    let mut source = vec![0; LEN as usize];
    source[5 << 20..6 << 20].copy_from_slice(&Random::new(34).bytes(1 << 20));
    source[20 << 20..(20 << 20) + 700].copy_from_slice(&Random::new(35).bytes(700));
    let path = scratch.sparse("source", LEN);
    let file = File::options().write(true).open(&path).expect("the source");
    file.write_all_at(&source[5 << 20..6 << 20], 5 << 20).expect("written");
    file.write_all_at(&source[20 << 20..(20 << 20) + 700], 20 << 20).expect("written");
    // Files of the same length that were changed in the same second are the same to rsync.
    file.set_modified(SystemTime::UNIX_EPOCH).expect("an old file");
    let server = serve(&scratch, &image, &[]);
    let old = Random::new(36).bytes(LEN as usize);
    for (line, succeeds) in [
        ("cp source served", false),
        ("cp --sparse=always source served", false),
        ("cp --sparse=never source served", false),
        ("cp -f source served", false),
        ("dd if=source of=served bs=64k", false),
        ("dd if=source of=served bs=64k conv=sparse", false),
        ("dd if=source of=served bs=64k conv=notrunc,fsync", true),
        ("cat source > served", false),
        ("cat source 1<> served", true),
        ("mv source served", false),
        ("rsync --inplace source served", true),
        ("rsync --inplace --sparse source served", true),
        ("rsync source served", false),
        ("truncate -s 0 served", false),
        ("python3 -c 'import shutil; shutil.copyfile(\"source\", \"served\")'", false),
    ] {
        tool("rsync", "rsync");
        server.open().write_all_at(&old, 0).expect("written");
        let mut shell = tool("sh", "dash");
        shell.args(["-c", line]).current_dir(scratch.path(""));
        let ran = run(&mut shell, b"");
        assert_eq!(ran.succeeded(), succeeds, "{line}: {}", ran.stderr);
        let now = server.read(0, LEN as usize);
        if succeeds {
            assert!(now == source, "{line} left old content");
        } else {
            assert!(ran.stderr.contains("served"), "{line} did not say why: {}", ran.stderr);
            assert!(now == old, "{line} failed after it changed the content: {}", ran.stderr);
        }
        assert!(scratch.path("source").exists());
    }
    server.terminate();
}

#[test]
fn space_cannot_be_reserved_and_holes_are_data() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, 1 << 20);
    let server = serve(&scratch, &image, &[]);
    let file = server.open();
    let keep = FallocateFlags::KEEP_SIZE;
    for (flags, offset, len, error) in [
        (FallocateFlags::empty(), 0, 4096, Errno::OPNOTSUPP),
        (keep, 0, 4096, Errno::OPNOTSUPP),
        (FallocateFlags::empty(), 1 << 20, 1, Errno::NOSPC),
        (FallocateFlags::ZERO_RANGE, (1 << 20) - 1, 2, Errno::NOSPC),
        (FallocateFlags::COLLAPSE_RANGE, 0, 4096, Errno::OPNOTSUPP),
        (FallocateFlags::INSERT_RANGE, 0, 4096, Errno::OPNOTSUPP),
    ] {
        assert_eq!(fallocate(&file, flags, offset, len), Err(error), "{flags:?}");
    }
    for behind in [FallocateFlags::ZERO_RANGE, FallocateFlags::PUNCH_HOLE] {
        fallocate(&file, behind | keep, 2 << 20, 4096).expect("there is nothing to zero");
    }
    assert_eq!(seek(&file, SeekFrom::Data(4097)), Ok(4097));
    assert_eq!(seek(&file, SeekFrom::Hole(4097)), Ok(1 << 20));
    assert_eq!(seek(&file, SeekFrom::Data(1 << 20)), Err(Errno::NXIO));
    assert_eq!(fs::metadata(server.file()).expect("metadata").len(), 1 << 20);
    drop(file);
    server.terminate();
}

/// Programs that copy changed files (rsync, make, backups) rely on the time of the last change.
#[test]
fn its_time_tells_of_every_change_also_over_other_exports() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, 1 << 20);
    let server = Server::start(&scratch, On::Both, &image.with_key());
    let modified = || {
        let metadata = fs::metadata(server.file()).expect("metadata");
        (metadata.mtime(), metadata.mtime_nsec())
    };
    let mut last = modified();
    assert_eq!(modified(), last);
    let mut changed = |by: &str| {
        let now = modified();
        assert!(now != last, "{by} is not seen");
        assert_eq!(modified(), now);
        last = now;
    };
    let file = server.open();
    file.write_all_at(b"content", 0).expect("written");
    changed("a write");
    fallocate(&file, FallocateFlags::ZERO_RANGE, 0, 5).expect("fallocate");
    changed("zeroes");
    let mut client = NbdClient::connect(server.socket()).expect("connected");
    client.write(4096, &[1; 4096]).expect("written");
    changed("a write over NBD");
    let past = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    file.set_modified(past).expect("set");
    assert_eq!(modified(), (1_000_000_000, 0));
    file.read_exact_at(&mut [0; 512], 0).expect("read");
    file.sync_all().expect("flushed");
    assert_eq!(modified(), (1_000_000_000, 0));
    drop(file);
    server.terminate();
}

#[test]
fn the_servers_end_leaves_the_users_own_file_alone() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, 1 << 20);
    let server = Server::start(&scratch, On::Both, &image.with_key());
    let path = server.file().to_owned();
    run(tool("umount", "mount").arg(&path), b"").passes();
    assert!(File::options().write(true).open(&path).is_err(), "the placeholder is no file");
    // The server removes it while the other export goes on.
    server.await_said("the other exports go on");
    await_that("the placeholder to go", || !path.exists());
    fs::write(&path, b"precious").expect("written");
    server.terminate();
    assert_eq!(fs::read(&path).expect("read"), b"precious");
}

/// A mount that another server made at the same path meanwhile must stay.
#[test]
fn the_servers_end_leaves_another_mount_at_its_path_alone() {
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    let image = Image::by_cryptsetup(&scratch, LUKS2, 1 << 20);
    let other = Image::by_cryptsetup(&elsewhere, LUKS2, 2 << 20);
    let first = Server::start(&scratch, On::Both, &image.with_key());
    run(tool("umount", "mount").arg("--lazy").arg(first.file()), b"").passes();
    let mut line = vec!["serve".into()];
    line.extend(other.with_key());
    line.extend(["--fuse".into(), first.file().into()]);
    let mut second = elsewhere.ucrypt_child(&line);
    let mut second = second.stdout(Stdio::piped()).spawn().expect("ucrypt starts");
    let stdout = second.stdout.take().expect("a pipe");
    let path = first.file().to_owned();
    let announced = BufReader::new(stdout).read_line(&mut String::new());
    first.terminate();
    let len = fs::metadata(&path).map(|file| file.len());
    kill_process(Pid::from_child(&second), Signal::TERM).expect("a signal");
    assert!(second.wait().expect("waited").success());
    assert!(announced.is_ok_and(|len| len > 0));
    assert_eq!(len.expect("the second volume"), 2 << 20);
    assert!(!path.exists());
}

#[test]
fn what_a_killed_server_leaves_is_no_file_that_could_be_taken_for_the_volume() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, 1 << 20);
    let server = serve(&scratch, &image, &[]);
    let path = server.file().to_owned();
    server.kill();
    run(tool("umount", "mount").arg(&path), b"").passes();
    let error = File::options().write(true).open(&path).expect_err("opened");
    assert_eq!(Errno::from_io_error(&error), Some(Errno::NXIO));
    // The next server replaces the placeholder, and removes it at its end.
    serve(&scratch, &image, &[]).terminate();
    assert!(path.symlink_metadata().is_err());
}

#[test]
fn an_aborted_connection_is_an_error_and_leaves_no_mount() {
    for transport in TRANSPORTS {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, LUKS2, 1 << 20);
        let server = serve(&scratch, &image, &[transport]);
        let (file, path) = (server.open(), server.file().to_owned());
        // A FUSE connection has the number of its file system.
        let number = fs::metadata(&path).expect("metadata").dev();
        let text = "mount -t fusectl none /sys/fs/fuse/connections || :
            echo 1 > /sys/fs/fuse/connections/$1/abort";
        run(&mut script(&scratch, text, &[number.to_string()]), b"").passes();
        let said = server.fails(4);
        assert!(said.contains("abort") && said.contains("served"), "{said}");
        file.write_all_at(b"lost", 0).expect_err("the volume is gone");
        assert!(scratch.mounts().is_empty() && path.symlink_metadata().is_err());
    }
}

#[test]
fn only_a_file_that_is_the_only_export_can_be_mapped_shared() {
    for (on, expected) in [(On::Fuse, "mapped"), (On::Both, "ENODEV")] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, LUKS2, 1 << 20);
        let server = Server::start(&scratch, on, &image.with_key());
        let text = "import errno, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    m = mmap.mmap(fd, 8192)
    m[4096:4100] = b'data'
    m.flush()
    assert os.pread(fd, 4, 4096) == b'data'
    print('mapped')
except OSError as error:
    print(errno.errorcode[error.errno])";
        let mut python = tool("python3", "python3");
        let said = run(python.args(["-c", text]).arg(server.file()), b"").text();
        assert_eq!(said.trim(), expected);
        server.terminate();
    }
}

/// A new open sees what other exports wrote, also if the kernel reads through its page cache.
#[test]
fn what_another_export_wrote_is_seen_by_programs_that_open_the_file() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, 1 << 20);
    let server = Server::start(&scratch, On::Both, &image.with_key());
    let mut client = NbdClient::connect(server.socket()).expect("connected");
    for round in 1..20 {
        let data = vec![round; 65536];
        client.write(0, &data).expect("written");
        assert!(server.read(0, 65536) == data);
        let copy = File::create(scratch.path("copy")).expect("a file");
        let file = File::open(server.file()).expect("opened");
        sendfile(&copy, &file, None, 65536).expect("sent");
        assert!(fs::read(scratch.path("copy")).expect("read") == data, "{round}");
    }
    server.terminate();
}

fn open(scratch: &Scratch, image: &Image) {
    let mut command = image.ucrypt(scratch, "open");
    run(command.args(["--as", "fuse", "volume"]), b"").passes();
}

fn close(scratch: &Scratch, options: &[&str]) -> Ran {
    run(scratch.ucrypt(&["close", "volume"]).args(options), b"")
}

#[test]
fn after_a_deferred_close_there_is_no_file_at_the_path() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, 1 << 20);
    open(&scratch, &image);
    let path = scratch.runtime("volume");
    let file = File::options().read(true).write(true).open(&path).expect("opened");
    close(&scratch, &["--deferred"]).passes();
    assert!(path.symlink_metadata().is_err(), "something is left that may be written to");
    drop(file);
    scratch.processes().into_iter().for_each(|process| scratch.await_end(process));
}

#[test]
fn a_volume_in_use_stays_in_use_after_a_deferred_close() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, 1 << 20);
    open(&scratch, &image);
    let file = File::options().read(true).write(true).open(scratch.runtime("volume"));
    let file = file.expect("opened");
    close(&scratch, &["--deferred"]).passes();
    for _ in 0..2 {
        close(&scratch, &[]).refuses(5);
        file.write_all_at(b"still here", 0).expect("the volume goes on");
    }
    drop(file);
    scratch.processes().into_iter().for_each(|process| scratch.await_end(process));
    let mut read = image.ucrypt(&scratch, "read");
    assert_eq!(run(read.args(["--length", "10"]), b"").passes(), b"still here");
}

/// A mount namespace that was created meanwhile has the file under the same name.
#[test]
fn a_volume_that_is_open_in_another_mount_namespace_is_in_use() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, 1 << 20);
    open(&scratch, &image);
    let mut shell = script(
        &scratch,
        "exec 3<> $1; echo on > on; read -r _; printf written >&3; exec 3>&-; echo off > off
        read -r _ || :",
        &[scratch.runtime("volume")],
    );
    let mut shell = shell.stdin(Stdio::piped()).spawn().expect("a shell");
    scratch.await_file("on");
    close(&scratch, &[]).refuses(5);
    File::open(scratch.runtime("volume")).expect("the file has kept its name");
    let mut input = shell.stdin.take().expect("its input");
    input.write_all(b"\n").expect("told");
    scratch.await_file("off");
    // Nobody has the file open. The name in the other namespace does not count.
    close(&scratch, &[]).passes();
    drop(input);
    assert!(shell.wait().expect("waited").success());
    scratch.processes().into_iter().for_each(|process| scratch.await_end(process));
    let mut read = image.ucrypt(&scratch, "read");
    assert_eq!(run(read.args(["--length", "7"]), b"").passes(), b"written");
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
        let mut dd = tool("dd", "coreutils");
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
        let mut expected = Random::new(33).bytes(LEN as usize);
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

pub(crate) fn kernel_has_rings() -> bool {
    let parameter = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    parameter.is_ok_and(|value| value.trim() == "Y")
}

/// Serves, checks the transport that the server reports, and moves data.
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
        let data = Random::new(51).bytes(2_000_000);
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
    let here = if kernel_has_rings() { "io_uring" } else { "classic" };
    assert_eq!(transport_in_use(TRANSPORTS[0]), here);
    assert_eq!(transport_in_use(TRANSPORTS[1]), "classic");
}

#[test]
fn status_says_which_transport_an_open_file_has_and_why() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, 1 << 20);
    for direct in [&[][..], &["--direct"]] {
        let mut opens = image.ucrypt(&scratch, "open");
        run(opens.args(["--as", "fuse", "volume"]).args(direct), b"").passes();
        let status =
            |options: &[&str]| run(scratch.ucrypt(&["status", "volume"]).args(options), b"");
        let said: serde_json::Value =
            serde_json::from_slice(&status(&["--json"]).passes()).expect("JSON");
        let transport = "classic";
        let reason =
            if kernel_has_rings() { "faster at depth" } else { "io_uring is off in the kernel" };
        assert_eq!(said["export"]["transport"], transport);
        assert_eq!(said["export"]["transport_reason"], reason);
        let line = format!("fuse (FUSE, {transport}: {reason})");
        assert!(status(&[]).text().contains(&line), "{}", status(&[]).text());
        close(&scratch, &[]).passes();
    }
}

/// The second server waited for the first one as long as that stood still.
#[test]
fn a_path_whose_server_stands_still_is_refused() {
    let scratch = Scratch::new();
    let [image, other] = [(); 2].map(|()| Image::by_cryptsetup(&scratch, LUKS2, 1 << 20));
    let server = serve(&scratch, &image, &[]);
    server.signal(Signal::STOP);
    let mut second = scratch.ucrypt(&["serve"]);
    second.args(other.with_key()).arg("--fuse").arg(server.file());
    let said = run(&mut second, b"").refuses(4);
    server.signal(Signal::CONT);
    assert!(said.contains("does not answer; unmount it"), "{said}");
    assert_eq!(server.read(0, 512).len(), 512, "it is served as before");
    server.terminate();
}

/// What was mounted at a path by then was ended only if nobody had renamed the directory.
#[test]
fn a_served_file_whose_directory_was_renamed_is_ended_where_it_is() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
    for in_use in [false, true] {
        let (before, after) = (scratch.path("before"), scratch.path("after"));
        fs::create_dir(&before).expect("a directory");
        let file = before.join("file").display().to_string();
        let mut line = image.with_key();
        line.extend(["--fuse".into(), file.into()]);
        let server = Server::start(&scratch, On::Nbd, &line);
        fs::rename(&before, &after).expect("renamed");
        let user = in_use.then(|| File::open(after.join("file")).expect("it is served"));
        if in_use {
            server.terminate_in_use();
        } else {
            server.terminate();
        }
        assert!(scratch.mounts().is_empty(), "a dead file is left");
        drop(user);
        // With the placeholder it would not be empty.
        fs::remove_dir(&after).expect("nothing is left");
    }
}

/// A path that leads elsewhere was taken for unmounted, the volume for closed.
#[test]
fn a_file_over_which_something_is_mounted_is_not_closed() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
    let mut open = image.ucrypt(&scratch, "open");
    run(open.args(["volume", "--as", "fuse"]), b"").passes();
    let file = scratch.runtime("volume");
    let over = scratch.file("over", b"something else");
    let mount = |option: &str| tool(option, "mount");
    run(mount("mount").arg("--bind").arg(&over).arg(&file), b"").passes();
    let refused = [&["close", "volume"][..], &["close", "--deferred", "volume"]]
        .map(|close| run(&mut scratch.ucrypt(close), b""));
    run(mount("umount").arg(&file), b"").passes();
    for refused in refused {
        let message = refused.refuses(5);
        assert!(message.contains("mounted over"), "{message}");
    }
    assert_eq!(fs::metadata(&file).expect("it is served").len(), LEN);
    run(&mut scratch.ucrypt(&["close", "volume"]), b"").passes();
    assert!(scratch.mounts().is_empty() && !file.exists(), "something is left");
}

/// To the kernel a range that is zeroed is one request, in which nobody else writes to the file or flushes it, and
/// whose program cannot be killed: encrypted zeroes of a disk take hours.
#[test]
fn a_range_that_takes_long_to_zero_is_refused_and_programs_write_zeroes_instead() {
    const MAX: u64 = 64 << 20;
    for transport in TRANSPORTS {
        let scratch = Scratch::new();
        let image = scratch.sparse("image", 2 * MAX);
        let key = scratch.file("key", &[7; 64]);
        let (image, key) = (image.to_str().expect("text"), key.to_str().expect("text"));
        let line = ["--type", "plain", "-c", "aes-xts-plain64", "-s", "512", "--key-file", key];
        let line = [&line[..], &["--sector-size", "512", transport, image]].concat();
        let server = Server::start(&scratch, On::Fuse, &line);
        let file = server.open();
        let marks = [0, MAX - 1, MAX, MAX + 1, 2 * MAX - 1];
        let mark = |byte: u8| {
            for at in marks {
                file.write_all_at(&[byte], at).expect("written");
            }
        };
        let marked = || marks.map(|at| server.read(at, 1)[0]);
        mark(1);
        let (zero, keep) = (FallocateFlags::ZERO_RANGE, FallocateFlags::KEEP_SIZE);
        for (flags, offset, len) in [
            (zero, 0, MAX + 1),
            (zero | keep, 0, 2 * MAX),
            (zero | keep, 1, 1 << 62),
            (FallocateFlags::PUNCH_HOLE | keep, 0, MAX + 1),
        ] {
            let refused = fallocate(&file, flags, offset, len);
            assert_eq!(refused, Err(Errno::OPNOTSUPP), "{flags:?}, {offset}, {len}");
        }
        assert_eq!(marked(), [1; 5], "a refused range was changed");
        fallocate(&file, zero, 1, MAX).expect("not too long");
        assert_eq!(marked(), [1, 0, 0, 1, 1]);
        fallocate(&file, zero | keep, MAX + 1, 1 << 62).expect("as much as is there");
        assert_eq!(marked(), [1, 0, 0, 0, 0]);
        mark(2);
        let mut qemu = tool("qemu-io", "qemu-utils");
        qemu.args(["-f", "raw", "-c", &format!("write -z 0 {}", 2 * MAX)]);
        run(qemu.arg(server.file()), b"").passes();
        assert_eq!(marked(), [0; 5], "zeroes of QEMU");
        drop(file);
        server.terminate();
    }
}

/// A program that was about to run another one stood still, and so did everybody who looked at it, such as ps.
#[test]
fn a_file_is_closed_while_its_server_stands_still() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, 1 << 20);
    let server = serve(&scratch, &image, &[]);
    // The kernel asks once whether somebody wants to know.
    drop(server.open());
    let file = server.open();
    server.signal(Signal::STOP);
    let (closed, is_closed) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(file);
        // Nobody may wait for it any more.
        let _ = closed.send(());
    });
    let closed = is_closed.recv_timeout(Duration::from_secs(30));
    server.signal(Signal::CONT);
    closed.expect("it is closed");
    server.terminate();
}
