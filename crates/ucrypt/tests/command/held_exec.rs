//! A process that hangs while it runs another program: whoever looks at it waits for it, and no action may do so.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::fs::{FlockOperation, flock};

use crate::process::{Ran, python, run, tool};
use crate::scratch::Scratch;

/// A lock of all who see the same processes: of the directory where they do.
fn lock(how: FlockOperation) -> File {
    let processes = File::open("/proc").expect("opened");
    flock(&processes, how).expect("locked");
    processes
}

/// For tests in which nothing but their own programs may be in doubt: while this lives, no test of this machine has a
/// process that hangs.
#[must_use]
pub(crate) fn nobody_hangs() -> File {
    lock(FlockOperation::LockShared)
}

/// Hangs until it is dropped. All that look at the machine's processes see it, also from a PID namespace above.
struct Held {
    script: Child,
    /// Dropped last: see [`nobody_hangs`].
    _alone: File,
}

impl Held {
    fn new(scratch: &Scratch) -> Self {
        let alone = lock(FlockOperation::LockExclusive);
        let place = scratch.path("held");
        fs::create_dir(&place).expect("a directory");
        let mut script = python(include_str!("scripts/held_exec.py"), "ctypes", "python3");
        let script = script.arg(&place).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut held = Self { script: script.spawn().expect("started"), _alone: alone };
        let mut line = String::new();
        let stdout = held.script.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("read");
        assert!(line.trim().parse::<u32>().is_ok(), "no process hangs: {line}");
        held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.script.stdin.take());
        let _ = self.script.wait();
    }
}

#[test]
fn a_volume_that_nobody_uses_is_closed_beside_a_process_that_hangs() {
    for served in ["loop", "fuse"] {
        let scratch = Scratch::new();
        let act = |words: &[&str]| -> Ran { run(&mut scratch.ucrypt(words), b"") };
        let image = scratch.sparse("image", 16 << 20).display().to_string();
        let name = scratch.unique();
        act(&["open", "--cipher", "none", "--as", served, &image, &name]).passes();
        let held = Held::new(&scratch);
        act(&["close", &name]).passes();
        drop(held);
    }
}

#[test]
fn who_keeps_a_directory_from_being_unmounted_is_named_beside_a_process_that_hangs() {
    let scratch = Scratch::new();
    let act = |words: &[&str]| -> Ran { run(&mut scratch.ucrypt(words), b"") };
    let image = scratch.sparse("image", 16 << 20);
    run(tool("mkfs.ext4", "e2fsprogs").arg("-q").arg(&image), b"").passes();
    let (image, name) = (image.display().to_string(), scratch.unique());
    let place = scratch.path("mounted");
    fs::create_dir(&place).expect("a directory");
    let dir = place.display().to_string();
    act(&["mount", "--cipher", "none", "--name", &name, &image, &dir]).passes();
    let mut user = Command::new("sleep").arg("600").current_dir(&place).spawn().expect("begun");
    let held = Held::new(&scratch);
    let refused = act(&["umount", &dir]);
    user.kill().expect("killed");
    user.wait().expect("ended");
    let message = refused.refuses(5);
    assert!(message.contains(&format!("sleep (process {})", user.id())), "{message}");
    act(&["umount", &dir]).passes();
    drop(held);
}
