//! What an administrator relies on beside the data: logs, the control socket, what a server leaves alone.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::endings::stop;
use crate::image::{DATA, Image, LUKS2};
use crate::namespace::script;
use crate::process::{run, tool};
use crate::scratch::{Scratch, UCRYPT};
use crate::server::{await_end, await_that};

const LEN: u64 = 64 << 20;

/// Opens the volume `above`, whose image is the file of the volume `below`. Returns the servers of both:
/// without the first, the image does not answer.
fn below_and_above(scratch: &Scratch, served: &str) -> (Pid, Pid) {
    let image = scratch.sparse("image", LEN);
    let mut below = scratch.ucrypt(&["open", "--cipher", "none", "--as", "fuse"]);
    let path = run(below.arg(&image).arg("below"), b"").text();
    let holder = scratch.server();
    let mut above = scratch.ucrypt(&["open", "--cipher", "none", "--as", served]);
    run(above.args([path.trim(), "above"]), b"").passes();
    (holder, scratch.server_beside(&[holder]))
}

fn log(scratch: &Scratch, name: &str) -> String {
    let log: PathBuf = scratch.runtime(&format!(".{name}.log"));
    fs::read_to_string(&log).unwrap_or_else(|error| panic!("{}: {error}", log.display()))
}

/// A log that says nothing is removed at the end, and the last flush fails only then.
#[test]
fn a_last_flush_that_fails_is_in_a_log_that_stays() {
    for signal in [true, false] {
        let scratch = Scratch::new();
        let (holder, above) = below_and_above(&scratch, "fuse");
        kill_process(holder, Signal::KILL).expect("killed");
        scratch.await_end(holder);
        if signal {
            kill_process(above, Signal::TERM).expect("a signal");
        } else {
            let said = run(&mut scratch.ucrypt(&["close", "above"]), b"").refuses(4);
            assert!(said.contains("last flush failed"), "{said}");
        }
        scratch.await_end(above);
        let said = log(&scratch, "above");
        assert!(said.contains("the last flush failed, recent writes may be lost"), "{said}");
    }
}

/// A volume in memory, `volume`, served by NBD.
fn open_volume(scratch: &Scratch) {
    let mut open =
        scratch.ucrypt(&["open", "--as", "nbd", "--backend", "mem:1M", "volume", "--log"]);
    // The path lets the server be found.
    run(open.arg(scratch.path("log")), b"").passes();
}

fn status(scratch: &Scratch, name: &str) -> Value {
    let status = run(&mut scratch.ucrypt(&["status", "--json", name]), b"").passes();
    serde_json::from_slice(&status).expect("JSON")
}

/// One after the other, they would take longer than an action waits for an answer.
#[test]
fn clients_that_send_nothing_or_take_no_answer_keep_nobody_else_waiting() {
    for says in [&b""[..], b"\"stat", b"\"status\"\n"] {
        let scratch = Scratch::new();
        open_volume(&scratch);
        let connect = || {
            let mut client =
                UnixStream::connect(scratch.runtime(".volume.sock")).expect("connected");
            client.write_all(says).expect("sent");
            client
        };
        let clients: Vec<_> = (0..40).map(|_| connect()).collect();
        assert_eq!(status(&scratch, "volume")["state"], "open", "behind {says:?}");
        run(&mut scratch.ucrypt(&["close", "volume"]), b"").passes();
        drop(clients);
    }
}

/// Lets an image answer again, so that nothing is left behind whatever fails.
struct Stopped(Pid, Child);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
        let _ = self.1.kill();
        let _ = self.1.wait();
    }
}

#[test]
fn a_resize_that_waits_for_its_image_keeps_nobody_waiting_and_ends_with_the_server() {
    let scratch = Scratch::new();
    let (holder, above) = below_and_above(&scratch, "nbd");
    let resize = |size: &str| {
        let mut resize = scratch.ucrypt_child(&["resize", "above", "--size", size]);
        let resize = resize.stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
        resize.expect("started")
    };
    stop(holder);
    let mut stopped = Stopped(holder, resize("0"));
    await_that("the image to be asked", || {
        let tasks = fs::read_dir(format!("/proc/{}/task", above.as_raw_nonzero())).expect("tasks");
        let mut names = tasks.flatten().map(|task| fs::read_to_string(task.path().join("comm")));
        names.any(|name| name.is_ok_and(|name| name == "resize\n"))
    });
    assert_eq!(status(&scratch, "above")["state"], "open");
    for action in [&["close", "above"][..], &["resize", "above"]] {
        let said = run(&mut scratch.ucrypt(action), b"").refuses(5);
        assert!(said.contains("is being resized"), "{said}");
    }
    kill_process(above, Signal::TERM).expect("a signal");
    // Though the image still does not answer.
    let ended = await_end(&mut stopped.1);
    let mut said = String::new();
    let stderr = stopped.1.stderr.as_mut().expect("a pipe");
    stderr.read_to_string(&mut said).expect("read");
    assert_eq!(ended.code(), Some(5), "{said}");
    assert!(said.contains("about to end"), "{said}");
    drop(stopped);
    scratch.await_end(above);
    run(&mut scratch.ucrypt(&["close", "below"]), b"").passes();
}

#[test]
fn close_writes_nothing_through_a_link_that_another_user_has_put_in_the_place_of_a_lock() {
    const NOBODY: u32 = 65534;
    let scratch = Scratch::new();
    let directory = scratch.runtime("");
    fs::DirBuilder::new().mode(0o755).create(&directory).expect("a directory");
    let victim = scratch.file("victim", b"of root");
    std::os::unix::fs::symlink(&victim, directory.join(".volume.lock")).expect("a link");
    chown(&directory, Some(NOBODY), Some(NOBODY)).expect("given away");
    let closed = run(&mut scratch.ucrypt(&["close", "volume"]), b"");
    assert_eq!(fs::read(&victim).expect("read"), b"of root");
    let said = closed.refuses(2);
    assert!(said.contains("only you can write to"), "{said}");
    // In a directory of its own, nothing but a file of its own is a lock.
    chown(&directory, Some(0), Some(0)).expect("taken back");
    let said = run(&mut scratch.ucrypt(&["close", "volume"]), b"").refuses(4);
    assert!(said.contains("not open"), "{said}");
    assert_eq!(fs::read(&victim).expect("read"), b"of root");
}

/// systemd-tmpfiles removes old files of `/tmp`, where users without a session have their directory.
#[test]
fn a_server_whose_lock_was_removed_is_neither_replaced_nor_said_to_be_killed() {
    let scratch = Scratch::new();
    open_volume(&scratch);
    fs::remove_file(scratch.runtime(".volume.lock")).expect("removed");
    let mut open =
        scratch.ucrypt(&["open", "--as", "nbd", "--backend", "mem:2M", "volume", "--log"]);
    let said = run(open.arg(scratch.path("log")), b"").refuses(5);
    assert!(said.contains("open already"), "{said}");
    assert_eq!(status(&scratch, "volume")["volume"]["size"], 1 << 20);
    let closed = run(&mut scratch.ucrypt(&["close", "volume"]), b"");
    assert_eq!(closed.stderr, "");
    closed.passes();
    scratch.processes().into_iter().for_each(|process| scratch.await_end(process));
    let left: Vec<_> = fs::read_dir(scratch.runtime("")).expect("a directory").collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The command in a PID namespace below, from which no process outside can be seen.
fn contained(scratch: &Scratch, arguments: &[&str]) -> Command {
    let mut command = tool("unshare", "util-linux");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", UCRYPT]).args(arguments);
    command.env("XDG_RUNTIME_DIR", scratch.path("run"));
    command
}

#[test]
fn a_server_answers_who_it_cannot_see_in_its_pid_namespace() {
    let scratch = Scratch::new();
    let text = "$1 open --as nbd --backend mem:1M --log log volume; echo on >on; read -r _ || :";
    let mut shell = tool("unshare", "util-linux");
    shell.args(["--pid", "--fork", "--kill-child", "sh", "-euc", text, "sh", UCRYPT]);
    shell.current_dir(scratch.path("")).env("XDG_RUNTIME_DIR", scratch.path("run"));
    let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("started");
    scratch.await_file("on");
    let shown = run(&mut scratch.ucrypt(&["status", "--json", "volume"]), b"");
    let closed = run(&mut scratch.ucrypt(&["close", "volume"]), b"");
    drop(shell.stdin.take());
    await_end(&mut shell);
    let shown: Value = serde_json::from_slice(&shown.passes()).expect("JSON");
    // Not 2 or so, which is another process here.
    assert!(shown["server"]["pid"].as_u64().is_some_and(|pid| pid > 20), "{}", shown["server"]);
    closed.passes();
}

#[test]
fn a_server_that_cannot_be_seen_gets_its_key_and_has_no_number() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    run(image.ucrypt(&scratch, "open").args(["volume", "--as", "nbd"]), b"").passes();
    run(&mut scratch.ucrypt(&["luksSuspend", "volume"]), b"").passes();
    let key = image.key.to_str().expect("text");
    run(&mut contained(&scratch, &["luksResume", "volume", "--key-file", key]), b"").passes();
    assert_eq!(status(&scratch, "volume")["state"], "open");
    let shown = run(&mut contained(&scratch, &["status", "--json", "volume"]), b"").passes();
    let shown: Value = serde_json::from_slice(&shown).expect("JSON");
    assert_eq!(shown["server"]["pid"], Value::Null);
    let shown = run(&mut contained(&scratch, &["status", "volume"]), b"").text();
    assert!(shown.contains("in another PID namespace, up "), "{shown}");
    run(&mut scratch.ucrypt(&["close", "volume"]), b"").passes();
}

/// The descriptors and directories that the threads of a process have open.
fn has_open(process: Pid) -> Vec<PathBuf> {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).expect("tasks");
    let links = tasks.flatten().flat_map(|task| {
        let descriptors = fs::read_dir(task.path().join("fd")).into_iter().flatten().flatten();
        let mut links: Vec<_> = descriptors.map(|entry| entry.path()).collect();
        links.extend(["cwd", "root"].map(|link| task.path().join(link)));
        links
    });
    links.filter_map(|link| fs::read_link(link).ok()).collect()
}

/// `x=$(ucrypt open …)` would wait for the end of a pipe, `flock` for its lock, and `umount` for a directory.
#[test]
fn a_server_keeps_neither_descriptors_nor_the_directory_of_its_caller() {
    for served in ["nbd", "fuse", "loop"] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
        fs::create_dir(scratch.path("work")).expect("a directory");
        let text = "cd work; exec 7>../lock 8<../image; flock 7; ucrypt=$1; shift; exec $ucrypt open \"$@\"";
        let mut shell = tool("sh", "dash");
        shell.args(["-euc", text, "sh", UCRYPT]).args(["--as", served, "--key-file"]);
        shell.arg(&image.key);
        // The image by a descriptor, which the server opens for itself.
        shell.args(["/dev/fd/8", &scratch.unique(), "--log", "../log"]);
        shell.current_dir(scratch.path("")).env("XDG_RUNTIME_DIR", scratch.path("run"));
        run(&mut shell, b"").passes();
        // The server detaches once `open` has its answer.
        let server = scratch.server();
        let opened = || fs::read_to_string(scratch.path("log")).unwrap_or_default();
        await_that("the server to be alone", || opened().contains("opened"));
        let open = has_open(server);
        let callers = [scratch.path("lock"), scratch.path("work")];
        assert!(!open.iter().any(|path| callers.contains(path)), "{served}: {open:?}");
        run(tool("flock", "util-linux").arg("-n").arg(scratch.path("lock")).arg("true"), b"")
            .passes();
        run(scratch.ucrypt(&["close"]).arg(scratch.unique()), b"").passes();
    }
}

/// A session's directory goes with the session; `sudo -E` and `su` leave root that of somebody else.
#[test]
fn roots_volumes_are_not_in_the_directory_of_a_session_or_of_another_user() {
    const NOBODY: u32 = 65534;
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(""), Permissions::from_mode(0o755)).expect("set");
    let foreign = scratch.path("foreign");
    fs::create_dir(&foreign).expect("a directory");
    chown(&foreign, Some(NOBODY), Some(NOBODY)).expect("given away");
    // A /run that no other test sees.
    let text = "mount -t tmpfs none /run; mkdir -p /run/user/0 own
        for dir in /run/user/0 $PWD/foreign $PWD/own; do
            export XDG_RUNTIME_DIR=$dir
            $1 open --as nbd --backend mem:1M --log $PWD/log volume
            XDG_RUNTIME_DIR= $1 list >&2
            $1 close volume
        done";
    let mut shell = script(&scratch, text, &[UCRYPT]);
    let places = run(&mut shell, b"").text();
    let own = scratch.path("own").display().to_string();
    let expected = ["/run/ucrypt", "/run/ucrypt", &format!("{own}/ucrypt")]
        .map(|dir| format!("nbd+unix:///?socket={dir}/.volume.nbd\n"));
    assert_eq!(places, expected.concat());
    let left = fs::read_dir(&foreign).expect("a directory").count();
    assert_eq!(left, 0, "nothing of root's is in it");
}

/// Servers that listen and do not answer. Each would be waited for as long as an action has patience.
#[test]
fn servers_that_stand_still_keep_the_others_neither_from_the_list_nor_from_their_end() {
    let scratch = Scratch::new();
    open_volume(&scratch);
    // Before and after it in the list.
    let names = ["a", "b", "x", "y"];
    let still = names.map(|name| {
        UnixListener::bind(scratch.runtime(&format!(".{name}.sock"))).expect("a socket")
    });
    let mut list = scratch.ucrypt_child(&["list", "--json"]);
    let mut list = list.stdout(Stdio::piped()).spawn().expect("started");
    let mut asked = Vec::new();
    for listener in &still {
        // Nobody is answered, and yet all are asked.
        asked.push(listener.accept().expect("asked").0);
    }
    drop(asked);
    assert!(await_end(&mut list).success());
    let mut said = String::new();
    list.stdout.take().expect("a pipe").read_to_string(&mut said).expect("read");
    assert!(said.contains("has ended meanwhile"), "{said}");
    assert!(!said.contains("does not answer"), "one after the other: {said}");
    let server = scratch.server();
    let mut close = scratch.ucrypt_child(&["close", "--all"]);
    let close = close.stdin(Stdio::null()).stderr(Stdio::null()).spawn();
    // It ends when nobody listens any more, however this test ends.
    let mut close = close.expect("started");
    scratch.await_end(server);
    drop(still);
    assert_eq!(await_end(&mut close).code(), Some(4));
}

/// As one whose close was deferred ends with its last user.
#[test]
fn a_volume_that_is_closed_while_it_is_asked_is_not_listed_as_a_dead_one() {
    let scratch = Scratch::new();
    fs::DirBuilder::new().mode(0o700).create(scratch.runtime("")).expect("a directory");
    let socket = scratch.runtime(".volume.sock");
    let server = UnixListener::bind(&socket).expect("a socket");
    for (is_orderly, expected) in [(false, 1), (true, 0)] {
        let mut list = scratch.ucrypt_child(&["list", "--json"]);
        let mut list = list.stdout(Stdio::piped()).spawn().expect("started");
        let asked = server.accept().expect("asked");
        if is_orderly {
            fs::remove_file(&socket).expect("removed");
        }
        drop(asked);
        let mut listed = Vec::new();
        list.stdout.take().expect("a pipe").read_to_end(&mut listed).expect("read");
        assert!(await_end(&mut list).success());
        let listed: Value = serde_json::from_slice(&listed).expect("JSON");
        assert_eq!(listed.as_array().map(Vec::len), Some(expected), "{listed}");
    }
}

/// A server that is killed between its lock in `/dev/ucrypt` and its link leaves no link to find it by.
#[test]
fn what_a_killed_server_left_beside_the_links_of_devices_goes_with_its_name() {
    let scratch = Scratch::new();
    let name = scratch.unique();
    let lock = PathBuf::from(format!("/dev/ucrypt/.{name}.lock"));
    // Makes the directory.
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    run(image.ucrypt(&scratch, "open").args([&name, "--as", "loop"]), b"").passes();
    run(&mut scratch.ucrypt(&["close", &name]), b"").passes();
    fs::write(&lock, "7").expect("written");
    run(image.ucrypt(&scratch, "open").args([&name, "--as", "nbd"]), b"").passes();
    let is_left = lock.exists();
    let _ = fs::remove_file(&lock);
    run(&mut scratch.ucrypt(&["close", &name]), b"").passes();
    assert!(!is_left, "{}", lock.display());
}
