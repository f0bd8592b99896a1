//! The end of a server whose volume is in use, or whose image does not answer. The server waits for
//! users, but not for ever, and reports what is lost.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::held_exec::nobody_hangs;
use crate::image::{DATA, Image, LUKS2};
use crate::namespace::script;
use crate::nbd_client::NbdClient;
use crate::process::{Ran, run, tool};
use crate::scratch::Scratch;
use crate::server::{On, Server};
use crate::suspend::{image_in, unseen_dd, unseen_writer};

const LEN: u64 = 64 << 20;

/// Time limit of every wait.
const PATIENCE: Duration = Duration::from_secs(60);

fn open(scratch: &Scratch, image: &Image, options: &[&str]) -> Ran {
    let mut command = image.ucrypt(scratch, "open");
    run(command.arg(scratch.unique()).args(options), b"")
}

fn close(scratch: &Scratch) -> Ran {
    run(scratch.ucrypt(&["close"]).arg(scratch.unique()), b"")
}

#[track_caller]
fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a file contains this text.
#[track_caller]
fn await_said(log: &PathBuf, text: &str) {
    await_that(&format!("'{text}' in {}", log.display()), || {
        fs::read_to_string(log).unwrap_or_default().contains(text)
    });
}

/// A shell that keeps the device mounted until its standard input is closed, and then writes a file
/// and unmounts it.
fn mounted(scratch: &Scratch) -> Child {
    let text = "mount $1 m; echo on >on; read -r _ || :; cp data m/file; umount m";
    let mut shell = script(scratch, text, &[scratch.device()]);
    let shell = shell.stdin(Stdio::piped()).spawn().expect("a shell");
    await_that("the mount", || scratch.path("on").exists());
    shell
}

/// An open loop device with a file system, its log, and something to write. Its image is in memory: who unmounts it has
/// to be done before the server's patience ends, and a disk may have others to serve.
fn with_file_system(scratch: &Scratch, memory: &TempDir) -> (Image, PathBuf) {
    let image = image_in(scratch, LEN, Some(memory.path()));
    let log = scratch.path("log");
    open(scratch, &image, &["--as", "loop", "--log", log.to_str().expect("text")]).passes();
    run(tool("mkfs.ext4", "e2fsprogs").arg("-q").arg(scratch.device()), b"").passes();
    scratch.file("data", &vec![7; 1 << 20]);
    (image, log)
}

fn in_memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").expect("tmpfs")
}

/// The signals that a process has been sent and has not got.
fn pending(process: Pid) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero()));
    let status = status.expect("a process");
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).expect("a field");
    u64::from_str_radix(pending.trim(), 16).expect("a number")
}

#[test]
fn sigterm_waits_for_who_unmounts_the_volume_and_loses_nothing() {
    let (scratch, memory) = (Scratch::new(), in_memory());
    let (image, log) = with_file_system(&scratch, &memory);
    let mut shell = mounted(&scratch);
    let server = scratch.server();
    kill_process(server, Signal::TERM).expect("a signal");
    await_said(&log, "waits for at most");
    let said = fs::read_to_string(&log).expect("a log");
    assert!(said.contains("SIGTERM") && said.contains("mounted at"), "{said}");
    drop(shell.stdin.take());
    assert!(shell.wait().expect("waited").success(), "it was served to the end");
    scratch.await_end(server);
    let said = fs::read_to_string(&log).expect("a log");
    assert!(!said.contains("lost"), "{said}");
    assert!(scratch.device().symlink_metadata().is_err(), "the link is left");

    open(&scratch, &image, &["--as", "loop"]).passes();
    let text = "mount $1 m; cmp data m/file; umount m; e2fsck -fn $1 >&2";
    run(&mut script(&scratch, text, &[scratch.device()]), b"").passes();
    close(&scratch).passes();
}

#[test]
fn sigterm_says_what_is_lost_by_who_does_not_go_and_status_is_clear() {
    let (scratch, memory) = (Scratch::new(), in_memory());
    let (_image, log) = with_file_system(&scratch, &memory);
    let mut shell = mounted(&scratch);
    let server = scratch.server();
    kill_process(server, Signal::TERM).expect("a signal");
    // Ask at every stage: while it waits for users, while it ends, and after its end.
    let mut asked = 0;
    await_that("the end of the server", || {
        let ran = run(scratch.ucrypt(&["status"]).arg(scratch.unique()), b"");
        assert!(!ran.stderr.contains("EOF"), "{}", ran.stderr);
        asked += 1;
        !PathBuf::from(format!("/proc/{}", server.as_raw_nonzero())).exists()
    });
    assert!(asked > 0);
    let said = fs::read_to_string(&log).expect("a log");
    assert!(said.contains("mounted at") && said.contains("not synced is lost"), "{said}");
    let ran = run(scratch.ucrypt(&["status"]).arg(scratch.unique()), b"").exits(4);
    assert!(String::from_utf8_lossy(&ran.stdout).contains("is inactive"));
    // The remaining mount fails.
    drop(shell.stdin.take());
    let _ = shell.wait();
}

#[test]
fn a_second_signal_ends_a_server_that_waits_and_it_fails() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let server = Server::start(&scratch, On::Fuse, &image.with_key());
    let _user = server.open();
    server.signal(Signal::INT);
    server.await_said("waits for at most");
    server.signal(Signal::INT);
    let said = server.exits(5);
    assert!(said.contains("SIGINT ended the volume"), "{said}");
}

#[test]
fn many_files_in_use_end_at_the_same_time_and_leave_time_for_the_last_flush() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    // One after the other they would take longer than the end may.
    let paths: Vec<_> = (0..20).map(|number| scratch.path(&format!("file-{number}"))).collect();
    let mut arguments = image.with_key();
    for path in &paths {
        arguments.extend(["--fuse".into(), path.to_str().expect("text").into()]);
    }
    let server = Server::start(&scratch, On::Fuse, &arguments);
    let users: Vec<_> = paths.iter().map(|path| File::open(path).expect("it opens")).collect();
    let said = server.terminate_in_use();
    assert!(!said.contains("did not answer"), "{said}");
    drop(users);
}

/// A service manager sends both, in no order, to all processes of a session that ends (`SendSIGHUP=`).
#[test]
fn sighup_beside_sigterm_is_no_second_signal_and_loses_nothing() {
    for signals in [[Signal::TERM, Signal::HUP], [Signal::HUP, Signal::TERM]] {
        let (scratch, memory) = (Scratch::new(), in_memory());
        let (_image, log) = with_file_system(&scratch, &memory);
        let mut shell = mounted(&scratch);
        let server = scratch.server();
        for signal in signals {
            kill_process(server, signal).expect("a signal");
        }
        await_said(&log, "waits for at most");
        // A second signal would end it now: it is with the server, which answers behind it.
        await_that("both signals to be taken", || pending(server) == 0);
        let status = run(scratch.ucrypt(&["status", "--json"]).arg(scratch.unique()), b"").passes();
        let status: Value = serde_json::from_slice(&status).expect("JSON");
        assert_eq!(status["state"], "ending");
        drop(shell.stdin.take());
        assert!(shell.wait().expect("waited").success(), "it was served to the end");
        scratch.await_end(server);
        let said = fs::read_to_string(&log).expect("a log");
        assert!(!said.contains("lost"), "{said}");
    }
}

/// Stops all threads of a process. They go on until they have seen the signal.
pub(crate) fn stop(process: Pid) {
    kill_process(process, Signal::STOP).expect("a signal");
    await_that("all threads to stop", || {
        let tasks =
            fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).expect("tasks");
        tasks.flatten().all(|task| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // The state follows the name, which may contain anything.
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        })
    });
}

#[test]
fn a_server_whose_image_does_not_answer_ends_and_says_so() {
    let scratch = Scratch::new();
    let image = scratch.sparse("image", LEN);
    let mut below = scratch.ucrypt(&["open", "--cipher", "none", "--as", "fuse"]);
    let path = run(below.arg(&image).arg("below"), b"").text();
    let holder = scratch.server();
    let above = Server::start(&scratch, On::Both, &["--cipher", "none", path.trim()]);
    let mut client = NbdClient::connect(above.socket()).expect("connected");
    client.write(0, &[1; 4096]).expect("written");
    let file = above.open();
    file.write_all_at(&[1; 4096], 4096).expect("written");
    stop(holder);
    let writers = [
        std::thread::spawn(move || client.write(8192, &[2; 4096]).is_ok()),
        std::thread::spawn(move || file.write_all_at(&[2; 4096], 12288).is_ok()),
        // Who stops to write waits for the image, too.
        std::thread::spawn({
            let file = above.open();
            move || file.sync_all().is_ok()
        }),
    ];
    above.signal(Signal::TERM);
    above.await_said("waits for at most");
    above.signal(Signal::TERM);
    above.await_said("did not answer");
    // The process exits, but the kernel releases it only once nothing is left for it to wait for.
    kill_process(holder, Signal::KILL).expect("killed");
    above.exits(4);
    for writer in writers {
        assert!(!writer.join().expect("it ends"), "nothing was acknowledged");
    }
}

/// Who sends a signal may kill after 10 s: clients that do not take their replies must not add up,
/// and nothing that was acknowledged waits for them.
#[test]
fn slow_nbd_clients_keep_neither_other_sockets_nor_the_flush_waiting_at_the_end() {
    let scratch = Scratch::new();
    let image = scratch.sparse("image", LEN);
    let mut below = scratch.ucrypt(&["open", "--cipher", "none", "--as", "fuse"]);
    let path = run(below.arg(&image).arg("below"), b"").text();
    // Without a program for each look: the slow client is waited for only so long.
    let flushes = || {
        let mut server = UnixStream::connect(scratch.runtime(".below.sock")).expect("connected");
        server.write_all(b"\"status\"\n").expect("asked");
        let mut status = String::new();
        server.read_to_string(&mut status).expect("answered");
        let status: Value = serde_json::from_str(&status).expect("JSON");
        status["counters"]["flushes"].as_u64().expect("a number")
    };
    let other = scratch.path("other");
    let address = format!("unix:{}", other.display());
    let arguments = ["--cipher", "none", path.trim(), "--nbd", &address];
    let above = Server::start(&scratch, On::Nbd, &arguments);
    let mut slow = NbdClient::connect(above.socket()).expect("connected");
    let mut idle = NbdClient::connect(&other).expect("connected");
    slow.write(0, &[1; 4096]).expect("written");
    slow.begin_read(0, 8 << 20).expect("the data comes");
    let before = flushes();
    above.signal(Signal::TERM);
    await_that("the other socket stops", || {
        let waits = !slow.is_over();
        let stopped = idle.send_write(4096, &[1; 512]).is_err();
        assert!(waits || !stopped, "only after the slow client");
        stopped
    });
    await_that("the flush", || {
        let waits = !slow.is_over();
        let flushed = flushes() > before;
        assert!(waits || !flushed, "only after the slow client");
        flushed
    });
    drop(slow);
    above.ends();
    run(&mut scratch.ucrypt(&["close", "below"]), b"").passes();
}

#[test]
fn close_names_who_uses_a_device() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    open(&scratch, &image, &["--as", "loop"]).passes();
    let device = File::open(scratch.device()).expect("opened");
    let mut sleep = Command::new("sleep").arg("300").stdin(device).spawn().expect("started");
    let message = close(&scratch).refuses(5);
    assert!(message.contains(&format!("sleep (process {})", sleep.id())), "{message}");
    sleep.kill().expect("killed");
    sleep.wait().expect("waited");
    close(&scratch).passes();
}

/// Partitions of a loop device that go with their test. (The kernel need not know any partition table.)
struct Partition<'a> {
    disk: &'a str,
}

impl<'a> Partition<'a> {
    fn new(disk: &'a str) -> Self {
        run(tool("addpart", "util-linux").args([disk, "1", "2048", "65536"]), b"").passes();
        Self { disk }
    }
}

impl Drop for Partition<'_> {
    fn drop(&mut self) {
        let _ = run(tool("delpart", "util-linux").args([self.disk, "1"]), b"");
    }
}

#[test]
fn close_names_who_uses_a_device_by_a_partition_or_by_another_node() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, LEN);
    open(&scratch, &image, &["--as", "loop", "--partscan"]).passes();
    let disk = fs::read_link(scratch.device()).expect("a link").display().to_string();
    let partition = Partition::new(&disk);
    // As `docker --device /dev/loop0:/dev/xvda` makes one.
    let other = scratch.path("xvda").display().to_string();
    let number = disk.trim_start_matches("/dev/loop");
    run(tool("mknod", "coreutils").args([other.as_str(), "b", "7", number]), b"").passes();
    let first = format!("{disk}p1");
    for node in [disk.as_str(), &first, &other] {
        let user = File::open(node).expect("opened");
        let mut sleep = Command::new("sleep").arg("300").stdin(user).spawn().expect("started");
        let refused = close(&scratch);
        sleep.kill().expect("killed");
        sleep.wait().expect("waited");
        let message = refused.refuses(5);
        let name = format!("sleep (process {})", sleep.id());
        assert!(message.contains(&name), "{node}: {message}");

        run(tool("mkfs.ext4", "e2fsprogs").args(["-q", "-F", node]), b"").passes();
        let text = "mount $1 m; echo on >on; read -r _ || :; umount m; rm on";
        let mut shell = script(&scratch, text, &[node]);
        let mut shell = shell.stdin(Stdio::piped()).spawn().expect("a shell");
        scratch.await_file("on");
        let refused = close(&scratch);
        drop(shell.stdin.take());
        assert!(shell.wait().expect("waited").success());
        let message = refused.refuses(5);
        assert!(message.contains("mounted at"), "{node}: {message}");
    }
    drop(partition);
    close(&scratch).passes();
}

/// The kernel and device managers release a device some time after its last user.
#[test]
fn close_waits_for_who_only_looks_at_a_device() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    open(&scratch, &image, &["--as", "loop"]).passes();
    // Under this name it counts as a device manager, as udev does.
    let looks = scratch.program("blkid", "/bin/cat");
    let mut look = tool("sh", "dash");
    look.args(["-euc", "exec \"$1\" 3<\"$2\"", "sh"]).arg(&looks).arg(scratch.device());
    let mut look = look.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("started");
    let device = fs::read_link(scratch.device()).expect("a link");
    let is_open = || {
        scratch.processes().iter().any(|pid| {
            let fd = format!("/proc/{}/fd/3", pid.as_raw_nonzero());
            fs::read_link(fd).is_ok_and(|target| target == device)
        })
    };
    await_that("the device to be looked at", is_open);
    let closing = {
        let mut close = scratch.ucrypt(&["close"]);
        close.arg(scratch.unique()).stdin(Stdio::null()).stdout(Stdio::null());
        close.stderr(Stdio::piped()).spawn().expect("started")
    };
    await_that("close to wait", || {
        let status = run(scratch.ucrypt(&["status", "--json"]).arg(scratch.unique()), b"").passes();
        let status: Value = serde_json::from_slice(&status).expect("JSON");
        status["state"] == "closing"
    });
    drop(look.stdin.take());
    look.wait().expect("waited");
    let closed = closing.wait_with_output().expect("waited");
    assert!(closed.status.success(), "{}", String::from_utf8_lossy(&closed.stderr));
}

#[test]
fn close_after_a_deferred_close_is_refused_while_the_file_is_in_use() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    open(&scratch, &image, &["--as", "fuse"]).passes();
    let file = File::options().read(true).write(true).open(scratch.runtime(&scratch.unique()));
    let file = file.expect("opened");
    run(scratch.ucrypt(&["close", "--deferred"]).arg(scratch.unique()), b"").passes();
    close(&scratch).refuses(5);
    file.write_all_at(b"still here", 0).expect("the volume goes on");
    let text = run(scratch.ucrypt(&["status"]).arg(scratch.unique()), b"").text();
    assert!(text.contains("closes with its last user"), "{text}");
    let server = scratch.server();
    drop(file);
    scratch.await_end(server);
    let mut read = image.ucrypt(&scratch, "read");
    assert_eq!(run(read.args(["--length", "10"]), b"").passes(), b"still here");
}

#[test]
fn a_server_keeps_no_file_system_busy_that_is_mounted_below_dev() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    scratch.sparse("other", 16 << 20);
    let text = "
        place=$(mktemp -d /dev/shm/ucrypt-test-XXXXXX)
        other=$(losetup --find --show other)
        trap 'umount $place || :; losetup --detach $other || :; rmdir $place' EXIT
        mkfs.ext4 -q $other
        mount $other $place
        echo $other
        ucrypt=$1 name=$2; shift 2
        $ucrypt open --as loop --key-file passphrase image $name >&2
        umount $place
        status=0
        # For itself alone: mkfs does not touch what is in use.
        mkfs.ext4 -q -F $other || status=$?
        $ucrypt close $name
        exit $status";
    let mut shell = script(&scratch, text, &[crate::scratch::UCRYPT, &scratch.unique()]);
    run(shell.env("XDG_RUNTIME_DIR", scratch.path("run")), b"").passes();
    drop(image);
}

#[test]
fn a_server_that_was_killed_before_it_listened_is_cleaned_up_by_close() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    open(&scratch, &image, &["--as", "fuse"]).passes();
    fs::remove_file(scratch.runtime(&format!(".{}.sock", scratch.unique()))).expect("removed");
    scratch.kill_background_server();
    let message = close(&scratch).refuses(4);
    assert!(message.contains("was killed"), "{message}");
    assert!(scratch.mounts().is_empty());
    let left: Vec<_> = fs::read_dir(scratch.runtime("")).expect("a directory").collect();
    assert!(left.is_empty(), "{left:?}");
    let message = close(&scratch).refuses(4);
    assert!(message.contains("not open"), "{message}");
}

/// Whether a process has a thread of this name.
fn has_thread(process: Pid, name: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    let names = tasks.into_iter().flatten().flatten();
    let mut names = names.flat_map(|task| fs::read_to_string(task.path().join("comm")));
    names.any(|found| found.trim_end() == name)
}

/// While a server ends, a second `close` waits for its lock. What it then gets is no remains.
#[test]
fn a_close_that_meets_the_end_of_an_orderly_server_does_not_say_that_it_was_killed() {
    for by_signal in [false, true] {
        let scratch = Scratch::new();
        let image = scratch.sparse("image", DATA);
        let mut below = scratch.ucrypt(&["open", "--cipher", "none", "--as", "fuse"]);
        let path = run(below.arg(&image).arg("below"), b"").text();
        let holder = scratch.server();
        let mut above = scratch.ucrypt(&["open", "--cipher", "none", "--as", "nbd"]);
        run(above.args([path.trim(), "above"]), b"").passes();
        let above = scratch.server_beside(&[holder]);
        // The last flush waits for the image.
        stop(holder);
        let close = || {
            let mut close = scratch.ucrypt(&["close", "above"]);
            let close = close.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
            close.spawn().expect("started")
        };
        let first = (!by_signal).then(close);
        if by_signal {
            kill_process(above, Signal::TERM).expect("a signal");
        }
        await_that("the end to begin", || has_thread(above, "watchdog"));
        let second = close();
        // It needs a moment to get to the lock; without it the test proves less.
        std::thread::sleep(Duration::from_millis(500));
        kill_process(holder, Signal::CONT).expect("it goes on");
        if let Some(first) = first {
            let ended = first.wait_with_output().expect("waited");
            assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        }
        let said = second.wait_with_output().expect("waited").stderr;
        let said = String::from_utf8_lossy(&said);
        assert!(!said.contains("killed"), "{said}");
        scratch.await_end(above);
    }
}

/// Begins an action while the server `above` ends, whose last flush waits for its image, served by `holder`.
fn meets_the_end(scratch: &Scratch, holder: Pid, above: Pid, words: &[&str]) -> Child {
    stop(holder);
    kill_process(above, Signal::TERM).expect("a signal");
    await_that("the end to begin", || has_thread(above, "watchdog"));
    let mut second = scratch.ucrypt(words);
    let second = second.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    second.spawn().expect("started")
}

/// `detach` and `close --all` want a volume closed. Another who closes it just then has done their work.
#[test]
fn a_volume_that_is_closed_meanwhile_is_no_failure_of_who_wants_all_closed() {
    for words in [&["detach", "above"][..], &["close", "--all"]] {
        let scratch = Scratch::new();
        // These actions do not close the volume below, whose server has another runtime directory.
        let elsewhere = Scratch::new();
        let image = elsewhere.sparse("image", DATA);
        let mut below = elsewhere.ucrypt(&["open", "--cipher", "none", "--as", "fuse"]);
        let path = run(below.arg(&image).arg("below"), b"").text();
        let holder = elsewhere.server();
        let mut above = scratch.ucrypt(&["open", "--cipher", "none", "--as", "nbd"]);
        run(above.args([path.trim(), "above"]), b"").passes();
        let above = elsewhere.server_beside(&[holder]);
        let second = meets_the_end(&scratch, holder, above, words);
        // It needs a moment to get to the lock; without it the test proves less.
        std::thread::sleep(Duration::from_millis(500));
        kill_process(holder, Signal::CONT).expect("it goes on");
        let ended = second.wait_with_output().expect("waited");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{words:?}: {}: {said}", ended.status);
        scratch.await_end(above);
    }
}

/// How many sockets of the kernel have this path: the one that listens, and one for each client.
fn sockets_at(path: &str) -> usize {
    let table = fs::read_to_string("/proc/net/unix").expect("/proc");
    table.lines().filter(|line| line.ends_with(path)).count()
}

/// A server whose last flush fails says so to who asks it to end meanwhile: nobody else would, if its log is elsewhere.
#[test]
fn who_wants_a_volume_closed_that_ends_with_a_loss_hears_of_it_wherever_the_log_is() {
    for words in [&["detach", "above"][..], &["close", "--all"]] {
        let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
        let image = elsewhere.sparse("image", DATA);
        let mut below = elsewhere.ucrypt(&["open", "--cipher", "none", "--as", "fuse"]);
        let path = run(below.arg(&image).arg("below"), b"").text();
        let holder = elsewhere.server();
        let log = elsewhere.path("log");
        let mut above = scratch.ucrypt(&["open", "--cipher", "none", "--as", "nbd", "--log"]);
        run(above.arg(&log).args([path.trim(), "above"]), b"").passes();
        let above = elsewhere.server_beside(&[holder]);
        let mut client = NbdClient::connect(&scratch.runtime(".above.nbd")).expect("connected");
        client.write(0, &[1; 4096]).expect("written");
        drop(client);
        let second = meets_the_end(&scratch, holder, above, words);
        let socket = scratch.runtime(".above.sock").display().to_string();
        await_that("the second one to ask", || sockets_at(&socket) > 1);
        kill_process(holder, Signal::KILL).expect("killed");
        let ended = second.wait_with_output().expect("waited");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(4), "{words:?}: {said}");
        assert!(said.contains("the last flush failed"), "{said}");
        scratch.await_end(above);
        run(&mut elsewhere.ucrypt(&["close", "below"]), b"").exits(4);
    }
}

/// A service that starts is no volume that is not open: it would be, a moment after `detach` has succeeded.
#[test]
fn an_action_that_meets_the_start_of_a_server_waits_for_it() {
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    let image = elsewhere.sparse("image", DATA);
    let mut below = elsewhere.ucrypt(&["open", "--cipher", "none", "--as", "fuse"]);
    let path = run(below.arg(&image).arg("below"), b"").text();
    let holder = elsewhere.server();
    stop(holder);
    // It holds its name, and waits for its image.
    let mut start = scratch.ucrypt(&["open", "--foreground", "--cipher", "none", "--as", "nbd"]);
    start.args([path.trim(), "above"]).stdin(Stdio::null()).stdout(Stdio::null());
    let mut start = start.spawn().expect("started");
    let lock = scratch.runtime(".above.lock");
    await_that("the name to be held", || fs::read(&lock).is_ok_and(|held| !held.is_empty()));
    let mut status = scratch.ucrypt(&["status", "above"]);
    let status = status.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let status = status.spawn().expect("started");
    // It needs a moment to ask; without it the test proves less.
    std::thread::sleep(Duration::from_millis(500));
    kill_process(holder, Signal::CONT).expect("it goes on");
    let shown = status.wait_with_output().expect("waited");
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    run(&mut scratch.ucrypt(&["close", "above"]), b"").passes();
    assert!(start.wait().expect("it ends").success());
    run(&mut elsewhere.ucrypt(&["close", "below"]), b"").passes();
}

/// The number of a loop device is free when the device was detached, before the last flush.
#[test]
fn no_name_leads_to_a_device_that_may_be_anothers() {
    let scratch = Scratch::new();
    let (holder, above) = loop_over_a_file(&scratch);
    let link = scratch.device();
    assert!(fs::symlink_metadata(&link).is_ok(), "{}", link.display());
    stop(holder);
    let mut close = scratch.ucrypt(&["close", &scratch.unique()]);
    let close = close.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let close = close.spawn().expect("started");
    await_that("the end to begin", || has_thread(above, "watchdog"));
    let deadline = Instant::now() + Duration::from_secs(10);
    while fs::symlink_metadata(&link).is_ok() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let is_left = fs::symlink_metadata(&link).is_ok();
    kill_process(holder, Signal::CONT).expect("it goes on");
    let ended = close.wait_with_output().expect("waited");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(!is_left, "{} was there while the image was flushed", link.display());
    scratch.await_end(above);
}

#[test]
fn a_full_image_is_in_the_log() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("small")).expect("a directory");
    let mut mount = tool("mount", "mount");
    mount.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]);
    run(mount.arg(scratch.path("small")), b"").passes();
    let image = scratch.sparse("small/image", 8 << 20);
    let server =
        Server::start(&scratch, On::Fuse, &["--cipher", "none", image.to_str().expect("text")]);
    let file = server.open();
    file.write_all_at(&vec![5; 4 << 20], 0).expect_err("there is no room");
    server.await_said("No space left on device");
    assert!(server.stderr().contains("small/image"), "{}", server.stderr());
    let told = |text: &str| text.matches("failed, the last: ").count();
    assert_eq!(told(&server.stderr()), 1);
    // Soon after: the next line would come a minute later.
    file.write_all_at(&vec![5; 4 << 20], 4 << 20).expect_err("there is no room");
    drop(file);
    server.signal(Signal::TERM);
    let said = server.exits(0);
    assert_eq!(told(&said), 2, "{said}");
}

/// A write behind the new end made the file grow again, and nobody was told of what was lost.
#[test]
fn an_image_that_is_cut_off_is_in_the_log() {
    const LEN: u64 = 8 << 20;
    let scratch = Scratch::new();
    let image = scratch.sparse("image", LEN);
    let words = ["--direct", "--cipher", "none", image.to_str().expect("text")];
    let server = Server::start(&scratch, On::Fuse, &words);
    let file = server.open();
    file.write_all_at(&vec![5; 1 << 20], LEN - (1 << 20)).expect("written");
    file.sync_all().expect("flushed");
    // `> image`, by mistake.
    File::create(&image).expect("cut off");
    let write = |offset| {
        let written = file.write_all_at(&vec![6; 1 << 20], offset).and_then(|()| file.sync_all());
        written.map_err(|error| error.raw_os_error())
    };
    assert_eq!(write(LEN - (1 << 20)), Err(Some(Errno::IO.raw_os_error())));
    assert_eq!(fs::metadata(&image).expect("there").len(), 0);
    server.await_said(&format!("the image was cut off: {LEN} bytes of the volume are missing"));
    drop(file);
    server.signal(Signal::TERM);
    server.exits(0);
}

/// Opens a loop device whose image is the file of another server. Returns the other server, which can
/// be stopped so that the image does not answer, and the device's.
fn loop_over_a_file(scratch: &Scratch) -> (Pid, Pid) {
    let image = scratch.sparse("image", 64 << 20);
    let mut below = scratch.ucrypt(&["open", "--cipher", "none", "--as", "fuse"]);
    let path = run(below.arg(&image).arg("below"), b"").text();
    let holder = scratch.server();
    let mut above = scratch.ucrypt(&["open", "--cipher", "none", "--as", "loop"]);
    run(above.args([path.trim(), &scratch.unique()]), b"").passes();
    (holder, scratch.server_beside(&[holder]))
}

/// A mounted loop device whose image does not answer: nothing on the way to the end waits for it.
#[test]
fn a_mounted_device_whose_image_does_not_answer_does_not_keep_its_server_from_the_end() {
    let scratch = Scratch::new();
    let (holder, above) = loop_over_a_file(&scratch);
    let device = scratch.device();
    let mut shell = script(
        &scratch,
        "mkfs.ext4 -q $1; mount $1 m; echo on > on; read -r _
        dd if=/dev/zero of=m/file bs=1M count=8 conv=fsync || :
        read -r _ || :; umount -l m",
        &[&device],
    );
    let mut shell = shell.stdin(Stdio::piped()).spawn().expect("a shell");
    scratch.await_file("on");
    stop(holder);
    let mut input = shell.stdin.take().expect("its input");
    input.write_all(b"\n").expect("told");
    // The write needs a moment to get to the image; without it the test proves less.
    std::thread::sleep(Duration::from_millis(500));
    close(&scratch).refuses(5);
    kill_process(above, Signal::TERM).expect("a signal");
    kill_process(above, Signal::TERM).expect("a signal");
    // What is left waits only for the image.
    std::thread::sleep(Duration::from_secs(1));
    kill_process(holder, Signal::CONT).expect("it goes on");
    scratch.await_end(above);
    drop(input);
    shell.wait().expect("waited");
}

/// Lets the image answer again, so that nothing is left behind whatever fails.
struct Stopped {
    holder: Pid,
    writer: Child,
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.holder, Signal::CONT);
        let _ = self.writer.wait();
    }
}

/// What a refused `close` takes back waits for the requests under way, in the kernel. The server does
/// not.
#[test]
fn no_action_after_a_refused_close_waits_for_an_image_that_does_not_answer() {
    let _quiet = nobody_hangs();
    let scratch = Scratch::new();
    let (holder, above) = loop_over_a_file(&scratch);
    let device = scratch.device().display().to_string();
    stop(holder);
    let mut stopped = Stopped { holder, writer: unseen_writer(&scratch, &device) };
    let act = |words: &[&str]| run(scratch.ucrypt(words).arg(scratch.unique()), b"");
    let said = act(&["close"]).refuses(5);
    assert!(said.contains("cannot be seen"), "{said}");
    let said = act(&["resize", "--size", "1024"]).refuses(5);
    assert!(said.contains("try again"), "{said}");
    for _ in 0..2 {
        act(&["close", "--deferred"]).passes();
    }
    let status: Value = serde_json::from_slice(&act(&["status", "--json"]).passes()).expect("JSON");
    assert_eq!(status["state"], "deferred");
    kill_process(holder, Signal::CONT).expect("it goes on");
    assert!(stopped.writer.wait().expect("it ends").success(), "the write is lost");
    // It was detached for good, and ends with its last user.
    scratch.await_end(above);
    run(&mut scratch.ucrypt(&["close", "below"]), b"").passes();
}

/// A loop device whose requests have used up all that its server has, and wait for the image: whoever asks
/// the driver, or the kernel for the size of the file behind the device, waits for them.
#[test]
fn a_server_with_all_its_requests_at_an_image_that_does_not_answer_answers_itself() {
    for action in ["resize", "close"] {
        let scratch = Scratch::new();
        let (holder, above) = loop_over_a_file(&scratch);
        let name = scratch.unique();
        stop(holder);
        let mut dd = unseen_dd(&scratch);
        dd.args(["if=/dev/zero", "bs=1M", "count=48", "conv=notrunc,fsync"]);
        let dd = dd.arg(format!("of={}", scratch.device().display())).stderr(Stdio::null()).spawn();
        let mut stopped = Stopped { holder, writer: dd.expect("it starts") };
        let status = || -> Value {
            let said = run(scratch.ucrypt(&["status", "--json"]).arg(&name), b"").passes();
            serde_json::from_slice(&said).expect("JSON")
        };
        let in_flight = || status()["activity"]["in_flight"].as_u64().expect("a number");
        // As many as there can be.
        let (mut before, mut looks) = (0, 0);
        await_that("requests to wait for the image", || {
            std::thread::sleep(Duration::from_millis(100));
            let now = in_flight();
            looks = if now == before && now > 0 { looks + 1 } else { 0 };
            before = now;
            looks == 10
        });
        let asked = scratch.ucrypt_child(&[action, &name]).stderr(Stdio::piped()).spawn();
        let asked = asked.expect("it starts");
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(status()["active"], true, "behind {action}");
        let asked = if action == "close" {
            // Nobody can be seen who has it open.
            let ended = asked.wait_with_output().expect("it ends");
            assert_eq!(ended.status.code(), Some(5), "{ended:?}");
            None
        } else {
            Some(asked)
        };
        kill_process(holder, Signal::CONT).expect("it goes on");
        assert!(stopped.writer.wait().expect("it ends").success(), "a write is lost");
        if let Some(asked) = asked {
            let ended = asked.wait_with_output().expect("it ends");
            assert!(ended.status.success(), "{ended:?}");
        }
        await_that("the device to be closed", || close(&scratch).succeeded());
        scratch.await_end(above);
        run(&mut scratch.ucrypt(&["close", "below"]), b"").passes();
    }
}

#[test]
fn a_log_that_cannot_be_written_is_named_before_the_passphrase_is_asked_for() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let mut open = scratch.ucrypt(&["open", "--key-file", "/no/such/key", "--as", "nbd"]);
    open.arg(&image.path).arg("volume").args(["--log", "/no/such/log"]);
    let message = run(&mut open, b"").refuses(4);
    assert!(message.contains("/no/such/log"), "{message}");
    let text = "
        mount -t tmpfs none /dev; touch /dev/null /dev/urandom
        $1 open --key-file /no/such/key --as nbd --log syslog image volume";
    let mut open = script(&scratch, text, &[crate::scratch::UCRYPT]);
    let message = run(open.env("XDG_RUNTIME_DIR", scratch.path("run")), b"").refuses(4);
    assert!(message.contains("/dev/log"), "{message}");
}

#[test]
fn one_export_that_ends_is_told_and_the_others_go_on() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let server = Server::start(&scratch, On::Both, &image.with_key());
    let number = std::os::unix::fs::MetadataExt::dev(&fs::metadata(server.file()).expect("a file"));
    let text = "mount -t fusectl none /sys/fs/fuse/connections || :
        echo 1 > /sys/fs/fuse/connections/$1/abort";
    run(&mut script(&scratch, text, &[number.to_string()]), b"").passes();
    server.await_said("the other exports go on");
    assert!(scratch.mounts().is_empty(), "no dead file stays");
    let mut client = NbdClient::connect(server.socket()).expect("connected");
    client.write(0, &[1; 4096]).expect("the volume goes on");
    drop(client);
    server.signal(Signal::TERM);
    let said = server.exits(4);
    assert!(said.contains("abort"), "{said}");
}
