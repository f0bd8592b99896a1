//! `luksSuspend` and `luksResume`: an open volume without its key.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::endings::stop;
use crate::held_exec::nobody_hangs;
use crate::image::{DATA, Image, LUKS1, LUKS2, PASSPHRASE};
use crate::nbd_client::NbdClient;
use crate::other_users;
use crate::process::{Ran, limited, python, run, tool};
use crate::scratch::{Scratch, UCRYPT};
use crate::secrets::{found_in, volume_key};
use crate::server::await_that;

fn open(scratch: &Scratch, image: &Image, served: &str) -> String {
    let mut open = scratch.ucrypt(&["open", "--as", served]);
    run(open.args(image.with_key()).arg("volume"), b"").text().trim_end().to_owned()
}

fn action(scratch: &Scratch, line: &[&str], input: &[u8]) -> Ran {
    run(&mut scratch.ucrypt(line), input)
}

fn status(scratch: &Scratch) -> serde_json::Value {
    let text = action(scratch, &["status", "--json", "volume"], b"").text();
    serde_json::from_str(&text).expect("JSON")
}

/// Number of requests that the volume has not answered.
fn in_flight(scratch: &Scratch) -> u64 {
    status(scratch)["activity"]["in_flight"].as_u64().expect("a number")
}

/// A program that writes one block of data to the served file, and waits until it is durable.
fn writer(path: &str) -> Child {
    let mut dd = tool("dd", "coreutils");
    dd.args(["bs=4096", "count=1", "conv=notrunc,fsync", "oflag=direct", &format!("of={path}")]);
    let dd = dd.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut dd = dd.expect("it starts");
    dd.stdin.take().expect("a pipe").write_all(&[0xa5; 4096]).expect("written");
    dd
}

#[test]
fn a_suspended_volume_has_no_key_in_memory_and_gets_it_back() {
    for kind in [LUKS1, LUKS2] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, DATA);
        let key = volume_key(&scratch, &image);
        let path = open(&scratch, &image, "fuse");
        let server = scratch.server();
        let file = File::options().read(true).write(true).open(&path).expect("the served file");
        for round in 0..8_u8 {
            file.write_all_at(&vec![round; 70_000], u64::from(round) * 70_001).expect("written");
        }
        file.sync_all().expect("synced");
        let mut before = vec![0; DATA as usize];
        file.read_exact_at(&mut before, 0).expect("read");
        // The first round keys are the key itself, in whatever order the kernels keep them.
        let found = || -> usize { key.chunks(16).map(|part| found_in(server, part).len()).sum() };
        assert!(found() > 0, "the search does not find the key of an open volume");
        action(&scratch, &["luksSuspend", "volume"], b"").passes();
        for part in key.chunks(16) {
            assert_eq!(found_in(server, part), [""; 0], "a part of the key was left");
        }
        assert_eq!(status(&scratch)["state"], "suspended");
        let shown = action(&scratch, &["status", "volume"], b"").text();
        assert!(shown.contains("is active and is suspended"), "{shown}");
        let said = action(&scratch, &["luksSuspend", "volume"], b"").refuses(1);
        assert!(said.contains("suspended already"), "{said}");
        let mut waiting = writer(&path);
        await_that("the write waits for the key", || in_flight(&scratch) > 0);
        assert!(waiting.try_wait().expect("waited").is_none(), "it wrote without a key");
        action(&scratch, &["luksResume", "volume"], b"wrong").refuses(2);
        assert!(waiting.try_wait().expect("waited").is_none(), "a wrong passphrase gave a key");
        action(&scratch, &["luksResume", "volume"], PASSPHRASE).passes();
        assert!(waiting.wait().expect("it ends").success());
        assert!(found() > 0, "the key is not back");
        assert_eq!(status(&scratch)["state"], "open");
        action(&scratch, &["luksResume", "volume"], PASSPHRASE).refuses(1);
        let mut after = vec![0; DATA as usize];
        file.read_exact_at(&mut after, 0).expect("read");
        before[..4096].fill(0xa5);
        assert!(after == before, "the data is another one");
        // By the volume key too.
        action(&scratch, &["luksSuspend", "volume"], b"").passes();
        let key_file = scratch.path("volume-key").display().to_string();
        let other = scratch.file("other-key", &vec![7; key.len()]).display().to_string();
        let by = |file: &str| {
            action(&scratch, &["luksResume", "volume", "--volume-key-file", file], b"")
        };
        by(&other).refuses(2);
        for (len, code) in [(0, 1), (key.len() - 1, 1), (2000, 2)] {
            let odd = scratch.file("odd-key", &vec![7; len]).display().to_string();
            let said = by(&odd).refuses(code);
            assert!(said.contains("key"), "{said}");
        }
        by(&key_file).passes();
        // What is behind the key in its file is no part of it.
        action(&scratch, &["luksSuspend", "volume"], b"").passes();
        let longer = [&key[..], b"\nmore"].concat();
        by(&scratch.file("longer-key", &longer).display().to_string()).passes();
        drop(file);
        action(&scratch, &["close", "volume"], b"").passes();
        assert!(image.decrypted_by_python(&scratch)[..4096] == before[..4096]);
    }
}

#[test]
fn close_while_suspended_is_refused_to_users_and_ends_without_them() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let path = open(&scratch, &image, "fuse");
    let server = scratch.server();
    action(&scratch, &["luksSuspend", "volume"], b"").passes();
    let user = File::open(&path).expect("opened");
    action(&scratch, &["close", "volume"], b"").refuses(5);
    assert_eq!(status(&scratch)["state"], "suspended");
    drop(user);
    action(&scratch, &["close", "volume"], b"").passes();
    scratch.await_end(server);
}

/// dd as a program that cannot be seen: under this name it counts as a device manager.
pub(crate) fn unseen_dd(scratch: &Scratch) -> Command {
    limited(scratch.program("blkid", "/bin/dd"))
}

/// A program that cannot be seen. It writes one block
/// to the served file or device.
pub(crate) fn unseen_writer(scratch: &Scratch, path: &str) -> Child {
    let mut dd = unseen_dd(scratch);
    dd.args(["bs=4096", "count=1", "conv=notrunc,fsync", "oflag=direct", &format!("of={path}")]);
    let dd = dd.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut dd = dd.expect("it starts");
    dd.stdin.take().expect("a pipe").write_all(&[0x5a; 4096]).expect("written");
    await_that("the write waits", || waits_for(dd.id(), path));
    dd
}

/// `close` gives up only what nobody waits for: after its refusal everything is as before.
#[test]
fn a_refused_close_of_a_suspended_volume_loses_no_write_of_who_cannot_be_seen() {
    let _quiet = nobody_hangs();
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let path = open(&scratch, &image, "fuse");
    action(&scratch, &["luksSuspend", "volume"], b"").passes();
    let mut waiting = unseen_writer(&scratch, &path);
    let said = action(&scratch, &["close", "volume"], b"").refuses(5);
    assert!(said.contains("cannot be seen"), "{said}");
    assert!(waiting.try_wait().expect("waited").is_none(), "the write did not wait");
    assert_eq!(status(&scratch)["state"], "suspended");
    action(&scratch, &["luksResume", "volume"], PASSPHRASE).passes();
    assert!(waiting.wait().expect("it ends").success(), "the write is lost");
    action(&scratch, &["close", "volume"], b"").passes();
    assert!(image.decrypted_by_python(&scratch)[..4096].iter().all(|byte| *byte == 0x5a));
}

/// A file or device: who waits for the key still uses it.
#[test]
fn a_signal_ends_a_suspended_volume_and_says_what_was_not_written() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let key = volume_key(&scratch, &image);
    // As `open` starts it, but as a child of this process, which sees its exit code.
    fs::DirBuilder::new().mode(0o700).create(scratch.runtime("")).expect("a directory");
    let mut server = scratch.ucrypt_child(&["serve-in-background", "--as", "fuse"]);
    server.args(image.with_key()).arg("volume").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = server.spawn().expect("it starts");
    server.stdin.take().expect("a pipe").write_all(&key).expect("written");
    let mut ready = String::new();
    let said = server.stdout.take().expect("a pipe");
    BufReader::new(said).read_line(&mut ready).expect("it is ready");
    let path = ready.trim_end().strip_prefix("ready ").expect("it is ready");
    action(&scratch, &["luksSuspend", "volume"], b"").passes();
    let mut waiting = writer(path);
    await_that("the write has arrived", || waits_for(waiting.id(), path));
    let started = Instant::now();
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signalled");
    assert_eq!(server.wait().expect("it ends").code(), Some(5));
    assert!(started.elapsed() < Duration::from_secs(100), "its own limits are 36 s");
    assert!(!waiting.wait().expect("it ends").success(), "the write did not fail");
    let log = fs::read_to_string(scratch.runtime(".volume.log")).expect("a log");
    assert!(log.contains("writes that waited for the key are lost (1, 4096 bytes)"), "{log}");
    assert!(log.contains("SIGTERM ended volume while it was in use"), "{log}");
}

/// An open loop device. Ends the server if the test fails: every `sync` of the machine waits for a
/// device that is suspended.
struct Disk<'a> {
    scratch: &'a Scratch,
    name: String,
}

impl<'a> Disk<'a> {
    fn open(scratch: &'a Scratch, image: &Image) -> Self {
        let name = scratch.unique();
        let mut open = scratch.ucrypt(&["open", "--as", "loop"]);
        run(open.args(image.with_key()).arg(&name), b"").passes();
        Self { scratch, name }
    }

    fn act(&self, action: &[&str], input: &[u8]) -> Ran {
        run(self.scratch.ucrypt(action).arg(&self.name), input)
    }

    fn device(&self) -> String {
        self.scratch.device().display().to_string()
    }

    fn server(&self) -> rustix::process::Pid {
        let servers = self.scratch.processes();
        servers.into_iter().find(|process| is_server(*process)).expect("a server")
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        for process in self.scratch.processes() {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
        }
    }
}

fn is_server(process: rustix::process::Pid) -> bool {
    let line = fs::read(format!("/proc/{}/cmdline", process.as_raw_nonzero())).unwrap_or_default();
    String::from_utf8_lossy(&line).contains("serve-in-background")
}

/// The driver waits for requests under way when it is asked to detach. So it is not asked while some
/// wait for the key, which the same thread of the server takes back.
#[test]
fn a_suspended_device_with_a_waiting_write_of_who_cannot_be_seen_answers_every_action() {
    let _quiet = nobody_hangs();
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let disk = Disk::open(&scratch, &image);
    disk.act(&["luksSuspend"], b"").passes();
    let mut waiting = unseen_writer(&scratch, &disk.device());
    let said = disk.act(&["close"], b"").refuses(5);
    assert!(said.contains("cannot be seen"), "{said}");
    let said = disk.act(&["resize", "--size", "1024"], b"").refuses(5);
    assert!(said.contains("luksResume"), "{said}");
    let shown = disk.act(&["status", "--json"], b"").text();
    assert!(shown.contains("\"state\": \"suspended\""), "{shown}");
    assert!(waiting.try_wait().expect("waited").is_none(), "the write did not wait");
    disk.act(&["luksResume"], PASSPHRASE).passes();
    assert!(waiting.wait().expect("it ends").success(), "the write is lost");
    disk.act(&["close"], b"").passes();
    assert!(image.decrypted_by_python(&scratch)[..4096].iter().all(|byte| *byte == 0x5a));
}

#[test]
fn a_signal_ends_a_suspended_device_whatever_waits_for_its_key() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let disk = Disk::open(&scratch, &image);
    disk.act(&["luksSuspend"], b"").passes();
    let mut waiting = unseen_writer(&scratch, &disk.device());
    let server = disk.server();
    rustix::process::kill_process(server, rustix::process::Signal::TERM).expect("signalled");
    scratch.await_end(server);
    assert!(!waiting.wait().expect("it ends").success(), "the write did not fail");
    let log = scratch.runtime(&format!(".{}.log", disk.name));
    let log = fs::read_to_string(log).expect("a log");
    assert!(log.contains("writes that waited for the key are lost (1, 4096 bytes)"), "{log}");
    assert!(scratch.device().symlink_metadata().is_err(), "the link is left");
}

/// Whether the program below `timeout` has this file or device open as its input or output, and waits for
/// it in the kernel.
pub(crate) fn waits_for(parent: u32, path: &str) -> bool {
    let children = format!("/proc/{parent}/task/{parent}/children");
    let children = fs::read_to_string(children).unwrap_or_default();
    let place = fs::canonicalize(path).expect("it is there");
    children.split_whitespace().any(|pid| {
        let is_it = |fd| fs::read_link(format!("/proc/{pid}/fd/{fd}")).is_ok_and(|it| it == place);
        let is_open = is_it(0) || is_it(1);
        is_open && waits(&format!("/proc/{pid}"))
    })
}

/// Whether a task waits for an answer in the kernel: for a file's server, or as for a disk.
fn waits(task: &str) -> bool {
    let stack = fs::read_to_string(format!("{task}/wchan")).unwrap_or_default();
    let stat = fs::read_to_string(format!("{task}/stat")).unwrap_or_default();
    // Uninterruptibly. The state follows the name, which is in parentheses.
    let for_disk = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D'));
    stack.contains("request") || for_disk
}

/// A volume whose image is the file of another server, and that server, which answers nothing until
/// this is dropped.
struct Stuck {
    path: String,
    holder: rustix::process::Pid,
    server: rustix::process::Pid,
}

impl Stuck {
    /// Also starts a program whose write waits for the image.
    fn new(scratch: &Scratch) -> (Self, Child) {
        let image = Image::by_cryptsetup(scratch, LUKS2, DATA);
        let mut below = scratch.ucrypt(&["open", "--cipher", "none", "--as", "fuse"]);
        let below = run(below.arg(&image.path).arg("below"), b"").text();
        let holder = scratch.server();
        let above = Image { path: below.trim_end().into(), ..image };
        let path = open(scratch, &above, "fuse");
        let stuck = Self { path, holder, server: scratch.server_beside(&[holder]) };
        stop(holder);
        let writer = writer(&stuck.path);
        await_that("the write waits for the image", || {
            let tasks = fs::read_dir(format!("/proc/{}/task", stuck.server.as_raw_nonzero()));
            let mut tasks = tasks.expect("its threads").filter_map(Result::ok);
            tasks.any(|task| waits(&task.path().display().to_string()))
        });
        (stuck, writer)
    }

    /// Lets the image answer again.
    fn go_on(&self) {
        let _ = rustix::process::kill_process(self.holder, rustix::process::Signal::CONT);
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        self.go_on();
    }
}

/// A suspension that waits for the image is taken back: users get the time that they always get.
#[test]
fn a_signal_during_a_suspension_loses_no_write_that_waits() {
    let scratch = Scratch::new();
    let (stuck, first) = Stuck::new(&scratch);
    let mut writers = vec![first];
    let suspended = std::thread::scope(|scope| {
        let suspending = scope.spawn(|| action(&scratch, &["luksSuspend", "volume"], b""));
        await_that("the suspension begins", || status(&scratch)["state"] == "suspending");
        writers.push(writer(&stuck.path));
        await_that("the write waits", || waits_for(writers[1].id(), &stuck.path));
        let signal = rustix::process::Signal::TERM;
        rustix::process::kill_process(stuck.server, signal).expect("signalled");
        let suspended = suspending.join().expect("no panic");
        stuck.go_on();
        suspended
    });
    let said = suspended.refuses(5);
    assert!(said.contains("about to end"), "{said}");
    for mut writer in writers {
        assert!(writer.wait().expect("it ends").success(), "a write is lost");
    }
    scratch.await_end(stuck.server);
    let log = fs::read_to_string(scratch.runtime(".volume.log")).unwrap_or_default();
    assert!(!log.contains("lost"), "{log}");
    action(&scratch, &["close", "below"], b"").passes();
}

#[test]
fn what_is_refused_while_a_volume_is_being_suspended_says_so() {
    let scratch = Scratch::new();
    let (stuck, mut writer) = Stuck::new(&scratch);
    std::thread::scope(|scope| {
        let suspending = scope.spawn(|| action(&scratch, &["luksSuspend", "volume"], b""));
        await_that("the suspension begins", || status(&scratch)["state"] == "suspending");
        let resized = action(&scratch, &["resize", "volume", "--size", "1024"], b"");
        let shown = action(&scratch, &["status", "volume"], b"");
        stuck.go_on();
        suspending.join().expect("no panic").passes();
        let said = resized.refuses(5);
        assert!(said.contains("being suspended") && !said.contains("luksResume"), "{said}");
        assert!(shown.text().contains("is being suspended"));
    });
    assert!(writer.wait().expect("it ends").success(), "it was under way before");
    let said = action(&scratch, &["resize", "volume", "--size", "1024"], b"").refuses(5);
    assert!(said.contains("luksResume"), "{said}");
    let open = ["open", "--as", "fuse", "--cipher", "none", &stuck.path, "volume"];
    let said = action(&scratch, &open, b"").refuses(5);
    assert!(said.contains("open already"), "{said}");
    action(&scratch, &["luksResume", "volume"], PASSPHRASE).passes();
    action(&scratch, &["close", "volume"], b"").passes();
    action(&scratch, &["close", "below"], b"").passes();
}

/// A machine that goes to sleep while `close` waits for who cannot be seen.
#[test]
fn a_suspension_asked_for_during_a_close_that_is_refused_is_carried_out() {
    let _quiet = nobody_hangs();
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let path = open(&scratch, &image, "fuse");
    // Under this name it counts as a device manager.
    let mut looks = tool("sh", "dash");
    looks.args(["-euc", "exec \"$1\" 3<\"$2\"", "sh"]);
    looks.arg(scratch.program("blkid", "/bin/cat")).arg(&path);
    let mut looks = looks.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("started");
    await_that("the file to be open", || {
        scratch.processes().iter().any(|pid| {
            let process = format!("/proc/{}", pid.as_raw_nonzero());
            let name = fs::read_to_string(format!("{process}/comm")).unwrap_or_default();
            let open = fs::read_link(format!("{process}/fd/3"));
            name == "blkid\n" && open.is_ok_and(|open| open == Path::new(&path))
        })
    });
    let closed = std::thread::scope(|scope| {
        let closing = scope.spawn(|| action(&scratch, &["close", "volume"], b""));
        await_that("close to wait", || status(&scratch)["state"] == "closing");
        action(&scratch, &["luksSuspend", "volume"], b"").passes();
        closing.join().expect("no panic")
    });
    let said = closed.refuses(5);
    assert!(said.contains("cannot be seen"), "{said}");
    assert_eq!(status(&scratch)["state"], "suspended");
    drop(looks.stdin.take());
    looks.wait().expect("waited");
    action(&scratch, &["luksResume", "volume"], PASSPHRASE).passes();
    action(&scratch, &["close", "volume"], b"").passes();
}

#[test]
fn only_a_luks_volume_is_suspended() {
    let scratch = Scratch::new();
    let image = scratch.sparse("image", DATA);
    let mut open = scratch.ucrypt(&["open", "--as", "nbd", "--type", "plain", "-q"]);
    run(open.arg(&image).arg("volume"), PASSPHRASE).passes();
    let said = action(&scratch, &["luksSuspend", "volume"], b"").refuses(1);
    assert!(said.contains("no LUKS header"), "{said}");
    action(&scratch, &["luksResume", "volume"], PASSPHRASE).refuses(1);
    action(&scratch, &["close", "volume"], b"").passes();
}

#[test]
fn nbd_clients_wait_and_who_has_gone_does_not_keep_a_suspended_volume_open() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let uri = open(&scratch, &image, "nbd");
    let server = scratch.server();
    action(&scratch, &["luksSuspend", "volume"], b"").passes();
    let mut copy = tool("qemu-io", "qemu-utils");
    copy.args(["-f", "raw", "-c", "write -P 5 0 64k", &uri]);
    let mut copy = copy.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts");
    await_that("the client's write waits for the key", || in_flight(&scratch) > 0);
    let said = action(&scratch, &["close", "volume"], b"").refuses(5);
    assert!(said.contains("NBD client"), "{said}");
    assert!(copy.try_wait().expect("waited").is_none(), "it wrote without a key");
    action(&scratch, &["luksResume", "volume"], PASSPHRASE).passes();
    assert!(copy.wait().expect("it ends").success());
    action(&scratch, &["close", "volume"], b"").passes();
    scratch.await_end(server);
    assert!(image.decrypted_by_python(&scratch)[..65536].iter().all(|byte| *byte == 5));
}

#[test]
fn what_nbd_clients_that_have_gone_wrote_is_given_up_by_close_and_told() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    open(&scratch, &image, "nbd");
    action(&scratch, &["luksSuspend", "volume"], b"").passes();
    let mut client = NbdClient::connect(&scratch.runtime(".volume.nbd")).expect("connected");
    client.send_write(0, &[5; 4096]).expect("sent");
    await_that("the server has the write", || in_flight(&scratch) > 0);
    drop(client);
    let said = action(&scratch, &["close", "volume"], b"").refuses(4);
    assert!(said.contains("waited for the key are lost (1, 4096 bytes)"), "{said}");
    scratch.processes().into_iter().for_each(|process| scratch.await_end(process));
}

/// A `close` that gives up what waits for the key lets nobody in. With the key it has no reason to.
#[test]
fn a_volume_that_gets_its_key_back_during_a_close_that_is_refused_takes_clients_again() {
    let _quiet = nobody_hangs();
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    volume_key(&scratch, &image);
    let mut below = scratch.ucrypt(&["open", "--cipher", "none", "--as", "fuse"]);
    let below = run(below.arg(&image.path).arg("below"), b"").text();
    let holder = scratch.server();
    open(&scratch, &Image { path: below.trim_end().into(), ..image }, "nbd");
    let socket = scratch.runtime(".volume.nbd");
    action(&scratch, &["luksSuspend", "volume"], b"").passes();
    let stuck = Stuck { path: below, holder, server: scratch.server_beside(&[holder]) };
    let mut client = NbdClient::connect(&socket).expect("connected");
    stop(holder);
    // The write waits for the key. The flush needs none: it waits for the image.
    client.send_write(0, &[5; 4096]).expect("sent");
    client.send_flush().expect("sent");
    await_that("the server has both", || in_flight(&scratch) == 2);
    drop(client);
    let closed = std::thread::scope(|scope| {
        let closing = scope.spawn(|| action(&scratch, &["close", "volume"], b""));
        await_that("the write is given up", || in_flight(&scratch) == 1);
        let key = scratch.path("volume-key").display().to_string();
        let resume = ["luksResume", "volume", "--volume-key-file", &key];
        action(&scratch, &resume, b"").passes();
        closing.join().expect("no panic")
    });
    let said = closed.refuses(5);
    assert!(said.contains("the image has not answered"), "{said}");
    drop(stuck);
    let mut client = NbdClient::connect(&socket).expect("clients are taken");
    client.write(0, &[6; 4096]).expect("written");
    drop(client);
    let said = action(&scratch, &["close", "volume"], b"").refuses(4);
    assert!(said.contains("(1, 4096 bytes)"), "{said}");
    action(&scratch, &["close", "below"], b"").passes();
}

/// Names of devices are the machine's, other names those of a runtime directory.
#[test]
fn the_device_of_another_runtime_directory_is_not_taken_for_the_volume_of_its_name() {
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    let name = elsewhere.unique();
    let image = Image::by_cryptsetup(&elsewhere, LUKS2, DATA);
    let disk = Disk::open(&elsewhere, &image);
    let link = disk.device();
    let node = fs::canonicalize(&link).expect("a device").display().to_string();
    let refused = || {
        for device in [&link, &node] {
            for line in
                [&["luksSuspend"][..], &["status"], &["close"], &["resize"], &["luksResume"]]
            {
                let said = action(&scratch, &[line, &[device]].concat(), PASSPHRASE).refuses(5);
                assert!(said.contains("another runtime directory"), "{said}");
            }
        }
    };
    refused();
    let own = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let mut open = scratch.ucrypt(&["open", "--as", "fuse"]);
    let path = run(open.args(own.with_key()).arg(&name), b"").text();
    refused();
    let shown = action(&scratch, &["status", &name, "--json"], b"").text();
    assert!(shown.contains("\"state\": \"open\""), "{shown}");
    action(&scratch, &["close", path.trim()], b"").passes();
    for device in [&link, &node] {
        run(elsewhere.ucrypt(&["status", device.as_str()]).arg("--json"), b"").passes();
    }
    run(&mut elsewhere.ucrypt(&["close", &node]), b"").passes();
}

/// A server of the user `nobody`, which keeps what it is sent. It says that the volume is suspended.
const SERVER_OF_ANOTHER: &str = r#"
import json, os, socket, sys
directory, image = sys.argv[1:]
os.setgid(65534)
os.setuid(65534)
listener = socket.socket(socket.AF_UNIX)
listener.bind(directory + "/.volume.sock")
listener.listen(8)
os.chmod(directory + "/.volume.sock", 0o777)
print("listens", flush=True)
while True:
    client, _ = listener.accept()
    stream = client.makefile("rwb", 0)
    request = json.loads(stream.readline() or b'""')
    if isinstance(request, dict):
        stream.write(b'{"waits_for": "key"}\n')
        with open(directory + "/key", "wb") as file:
            file.write(stream.read(request["resume"]["key_len"]))
        stream.write(b'{"resumed": true}\n')
    elif request:
        volume = {"image": image}
        answer = {"active": True, "state": "suspended", "suspended": True, "volume": volume}
        stream.write(json.dumps(answer).encode() + b"\n")
    client.close()
"#;

/// `su` keeps `XDG_RUNTIME_DIR`, so root may look for a server where another user listens.
#[test]
fn another_users_server_gets_no_key_and_nobody_is_asked_for_a_passphrase() {
    const NOBODY: u32 = 65534;
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    fs::set_permissions(scratch.path(""), Permissions::from_mode(0o755)).expect("set");
    let directory = scratch.runtime("");
    fs::create_dir(&directory).expect("a directory");
    chown(&directory, Some(NOBODY), Some(NOBODY)).expect("given away");
    let mut server = python(SERVER_OF_ANOTHER, "socket", "python3");
    server.arg(&directory).arg(&image.path).stdout(Stdio::piped());
    let mut server = server.spawn().expect("it starts");
    let mut said = [0; 8];
    server.stdout.take().expect("a pipe").read_exact(&mut said).expect("it listens");
    let key = scratch.file("volume-key", &[7; 64]).display().to_string();
    let by_key = action(&scratch, &["luksResume", "volume", "--volume-key-file", &key], b"");
    let by_passphrase = action(&scratch, &["luksResume", "volume"], PASSPHRASE);
    let stolen = directory.join("key").exists();
    // Root may ask it for everything else.
    let shown = action(&scratch, &["status", "volume", "--json"], b"");
    // Others may not: they would believe what it says.
    fs::set_permissions(&directory, Permissions::from_mode(0o755)).expect("set");
    let program = scratch.path("ucrypt");
    fs::copy(UCRYPT, &program).expect("copied");
    let user = other_users::unused_user().to_string();
    let as_user = |words: &[&str]| {
        let mut command = limited("setpriv");
        command
            .args(["--reuid", &user, "--regid", &user, "--clear-groups"])
            .arg(&program)
            .args(words);
        run(command.env("XDG_RUNTIME_DIR", scratch.path("run")), b"")
    };
    let actions: [&[&str]; 3] =
        [&["status", "volume"], &["close", "volume"], &["resize", "volume"]];
    let others = actions.map(as_user);
    let mounted = as_user(&["mount", "volume", "/mnt"]);
    let listed = as_user(&["list"]);
    for process in scratch.processes() {
        let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
    }
    server.wait().expect("waited");
    let listed = listed.text();
    assert!(listed.contains("dead") && !listed.contains("suspended"), "{listed}");
    for refused in others.into_iter().chain([mounted]) {
        refused.refuses(2);
    }
    for refused in [by_key, by_passphrase] {
        let said = refused.refuses(2);
        assert!(said.contains("user 65534"), "{said}");
    }
    assert!(!stolen, "the key was passed on");
    shown.passes();
}

/// Waits for a thread of the test, which must not take longer than `patience`.
fn ends<T: Send + 'static>(what: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (say, said) = mpsc::channel();
    std::thread::spawn(move || say.send(act()));
    said.recv_timeout(Duration::from_secs(30)).unwrap_or_else(|_| panic!("{what} hangs"))
}

/// An image on a disk, or in this directory. Those in memory are served in another way.
pub(crate) fn image_in(scratch: &Scratch, len: u64, directory: Option<&Path>) -> Image {
    let mut image = Image::by_cryptsetup(scratch, LUKS2, len);
    if let Some(directory) = directory {
        let path = directory.join("image");
        fs::copy(&image.path, &path).expect("copied");
        image.path = path;
    }
    image
}

#[test]
fn the_file_of_a_suspended_volume_is_looked_at_and_opened_while_programs_wait_for_its_data() {
    for in_memory in [true, false] {
        let scratch = Scratch::new();
        let memory = tempfile::tempdir_in("/dev/shm").expect("tmpfs");
        let image = image_in(&scratch, DATA, in_memory.then_some(memory.path()));
        let path = open(&scratch, &image, "fuse");
        action(&scratch, &["luksSuspend", "volume"], b"").passes();
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let file = Arc::new(File::open(&path).expect("opened"));
        let readers: Vec<_> = (0..2 * cores)
            .map(|number| {
                let file = file.clone();
                std::thread::spawn(move || {
                    file.read_exact_at(&mut [0; 8192], number as u64 * 512).expect("read");
                })
            })
            .collect();
        let mut writers = [writer(&path), writer(&path)];
        let waits = |writer: &Child| waits_for(writer.id(), &path);
        await_that("the writers wait", || writers.iter().all(waits));
        for _ in 0..4 * cores {
            let path = path.clone();
            let len = ends("stat", move || fs::metadata(path).expect("metadata").len());
            assert_eq!(len, DATA);
        }
        let opened = path.clone();
        drop(ends("open", move || File::open(opened).expect("opened")));
        assert!(
            !readers.iter().any(std::thread::JoinHandle::is_finished),
            "one read without a key"
        );
        action(&scratch, &["luksResume", "volume"], PASSPHRASE).passes();
        for reader in readers {
            reader.join().expect("it read");
        }
        for writer in &mut writers {
            assert!(writer.wait().expect("it ends").success());
        }
        drop(file);
        action(&scratch, &["close", "volume"], b"").passes();
    }
}

/// Number of threads of a process with a name that begins like this.
fn threads_named(process: rustix::process::Pid, name: &str) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).expect("tasks");
    let names =
        tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|found| found.starts_with(name)).count()
}

#[test]
fn more_reads_of_a_suspended_volume_than_its_threads_have_room_for_keep_nobody_from_its_file() {
    /// Most requests that a thread of the server has in the engine.
    const DEPTH: usize = 128;
    for in_memory in [true, false] {
        let scratch = Scratch::new();
        let memory = tempfile::tempdir_in("/dev/shm").expect("tmpfs");
        let image = image_in(&scratch, DATA, in_memory.then_some(memory.path()));
        let path = open(&scratch, &image, "fuse");
        let threads = threads_named(scratch.server(), "fuse-");
        assert!(threads > 0);
        let file = Arc::new(File::open(&path).expect("opened"));
        action(&scratch, &["luksSuspend", "volume"], b"").passes();
        let (say, said) = mpsc::channel();
        let count = threads * DEPTH + 8;
        let readers: Vec<_> = (0..count as u64)
            .map(|number| {
                let (file, say) = (file.clone(), say.clone());
                let reader = std::thread::Builder::new().stack_size(128 << 10);
                let reader = reader.spawn(move || {
                    let own = fs::read_link("/proc/thread-self").expect("a link");
                    say.send(format!("/proc/{}", own.display())).expect("heard");
                    file.read_exact_at(&mut [0; 4096], number * 4096 % DATA)
                });
                reader.expect("a thread")
            })
            .collect();
        for reader in said.iter().take(count) {
            await_that("the read waits", || waits(&reader));
        }
        let looked = path.clone();
        let len = ends("stat", move || fs::metadata(looked).expect("metadata").len());
        assert_eq!(len, DATA);
        drop(ends("open", move || File::open(path).expect("opened")));
        action(&scratch, &["luksResume", "volume"], PASSPHRASE).passes();
        for reader in readers {
            reader.join().expect("no panic").expect("it read");
        }
        drop(file);
        action(&scratch, &["close", "volume"], b"").passes();
    }
}
