//! A server that ends while its image does not answer: the kernel keeps the process until the image does, and its
//! users get errors all the same.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::endings::stop;
use crate::process::{Ran, run, tool};
use crate::scratch::Scratch;
use crate::server::await_that;
use crate::suspend::waits_for;

/// How a volume is served, and whether its name is gone already.
#[derive(Debug, Clone, Copy)]
struct Case {
    served: &'static str,
    deferred: bool,
}

/// The server of the image, stopped. At the end of a test it answers again, so that nothing is left behind.
struct Stopped {
    holder: Pid,
    users: Vec<Child>,
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.holder, Signal::CONT);
        for user in &mut self.users {
            let _ = user.wait();
        }
    }
}

/// A program that reads or writes without a cache, or asks for a flush.
fn user(arguments: &[&str], device: &str) -> Child {
    let side = if arguments.contains(&"iflag=direct") { "if" } else { "of" };
    let other = if side == "if" { "of=/dev/null" } else { "if=/dev/zero" };
    let mut dd = tool("dd", "coreutils");
    dd.args(arguments).args([&format!("{side}={device}"), other, "bs=4096"]);
    dd.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts")
}

fn users_get_errors(Case { served, deferred }: Case) {
    let scratch = Scratch::new();
    let act = |words: &[&str]| -> Ran { run(&mut scratch.ucrypt(words), b"") };
    let image = scratch.sparse("image", 64 << 20).display().to_string();
    let below = act(&["open", "--cipher", "none", "--as", "fuse", &image, "below"]).text();
    let holder = scratch.server();
    let (name, log) = (scratch.unique(), scratch.path("log"));
    let open = ["open", "--cipher", "none", "--as", served, "--log"];
    let path = [open.as_slice(), &[log.to_str().expect("text"), below.trim(), &name]].concat();
    let path = act(&path).text();
    let device = Path::new(path.trim()).canonicalize().expect("a device");
    let device = device.to_str().expect("text");
    let above = scratch.server_beside(&[holder]);
    // The kernel asks the image once whether it can be polled; a thread that does I/O would wait for the answer.
    let image = fs::File::open(below.trim()).expect("opened");
    poll(&mut [PollFd::new(&image, PollFlags::IN)], None).expect("polled");
    drop(image);
    stop(holder);
    let users = [
        &["iflag=direct", "count=1", "skip=7"][..],
        &["oflag=direct", "count=1", "conv=notrunc"],
        &["count=0", "conv=notrunc,fsync"],
    ];
    let users = users.map(|arguments| user(arguments, device));
    let mut stopped = Stopped { holder, users: users.into() };
    // The loop device may pass nothing on beside a flush.
    await_that("a request to wait for the image", || {
        let status = act(&["status", "--json", &name]).passes();
        let status: Value = serde_json::from_slice(&status).expect("JSON");
        status["activity"]["in_flight"].as_u64() >= Some(1)
    });
    for user in &stopped.users {
        await_that("the users to wait", || waits_for(user.id(), device));
    }
    if deferred {
        act(&["close", "--deferred", &name]).passes();
    }
    kill_process(above, Signal::TERM).expect("a signal");
    let said = || fs::read_to_string(&log).unwrap_or_default();
    await_that("the server to wait for its users", || said().contains("waits for at most"));
    kill_process(above, Signal::TERM).expect("a signal");
    for (number, user) in stopped.users.iter_mut().enumerate() {
        await_that(&format!("user {number} of {served} to end, deferred: {deferred}"), || {
            user.try_wait().expect("waited").is_some()
        });
        assert!(!user.wait().expect("waited").success(), "user {number} was told of a success");
    }
    await_that("the log", || said().contains("did not answer"));
    // What can be cleaned up is, although the process is still there.
    if let Some(number) = device.strip_prefix("/dev/") {
        let attached = Path::new("/sys/block").join(number).join("loop");
        await_that("the device to be free", || !attached.exists());
    } else {
        assert!(!scratch.mounts().contains(&device.into()), "{device} is left");
    }
    drop(stopped);
    scratch.await_end(above);
    act(&["close", "below"]).passes();
}

#[test]
fn users_of_a_volume_whose_image_does_not_answer_get_errors_when_its_server_has_to_end() {
    std::thread::scope(|scope| {
        for served in ["fuse", "loop"] {
            for deferred in [false, true] {
                scope.spawn(move || users_get_errors(Case { served, deferred }));
            }
        }
    });
}

/// The kernel keeps a killed process until its image answers, and with it the socket that takes connections.
#[test]
fn no_action_waits_for_a_killed_server_that_its_image_keeps() {
    let scratch = Scratch::new();
    let act = |words: &[&str]| -> Ran { run(&mut scratch.ucrypt(words), b"") };
    let image = scratch.sparse("image", 64 << 20).display().to_string();
    let below = act(&["open", "--cipher", "none", "--as", "fuse", &image, "below"]).text();
    let holder = scratch.server();
    act(&["open", "--cipher", "none", "--as", "nbd", below.trim(), "above"]).passes();
    let above = scratch.server_beside(&[holder]);
    stop(holder);
    let stopped = Stopped { holder, users: Vec::new() };
    kill_process(above, Signal::KILL).expect("killed");
    for action in [&["close", "above"][..], &["umount", "above"], &["status", "above"]] {
        let message = act(action).exits(4).stderr;
        assert!(message.contains("was killed"), "{action:?}: {message}");
    }
    drop(stopped);
    scratch.await_end(above);
    act(&["close", "above"]).exits(4);
    act(&["close", "below"]).passes();
}
