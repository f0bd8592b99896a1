//! Who uses a volume is named, however they use it: by `close` and by `status`.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::process::{Ran, run, tool};
use crate::scratch::Scratch;
use crate::server::await_that;

/// A program that is killed when its test ends.
struct User(Child);

impl Drop for User {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Has the device open and nothing else.
fn opener(device: &Path) -> User {
    let file = File::open(device).expect("opened");
    User(Command::new("sleep").arg("600").stdin(file).spawn().expect("started"))
}

/// Has the device mapped, and no descriptor of it.
fn mapper(device: &Path) -> User {
    let text = "import mmap, os, sys\n\
        file = os.open(sys.argv[1], os.O_RDWR)\n\
        memory = mmap.mmap(file, 4096)\n\
        os.closerange(3, 256)\n\
        print('mapped', flush=True)\n\
        sys.stdin.read()";
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", text]).arg(device).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut user = User(python.spawn().expect("started"));
    let mut line = String::new();
    let stdout = user.0.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("it says something");
    assert_eq!(line, "mapped\n");
    user
}

fn open(scratch: &Scratch, served: &str) -> String {
    let image = scratch.sparse("image", 16 << 20).display().to_string();
    let mut open = scratch.ucrypt(&["open", "--cipher", "none", "--as", served, &image]);
    let path = run(open.arg(scratch.unique()), b"").text();
    let path = Path::new(path.trim());
    if served == "loop" {
        path.canonicalize().expect("a device").display().to_string()
    } else {
        path.display().to_string()
    }
}

fn act(scratch: &Scratch, words: &[&str]) -> Ran {
    run(scratch.ucrypt(words).arg(scratch.unique()), b"")
}

#[track_caller]
fn is_named(scratch: &Scratch, name: &str, case: &str) {
    let status = act(scratch, &["status"]).text();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words(&status).contains(name), "{case}, {name}: {status}");
    let message = act(scratch, &["close"]).refuses(5);
    assert!(message.contains(name), "{case}, {name}: {message}");
}

#[test]
fn who_has_a_volume_open_or_only_mapped_is_named_also_when_its_name_is_gone() {
    for served in ["fuse", "loop"] {
        let scratch = Scratch::new();
        let device = open(&scratch, served);
        for start in [opener as fn(&Path) -> User, mapper] {
            let user = start(Path::new(&device));
            is_named(&scratch, &format!("(process {})", user.0.id()), served);
        }
        if served == "fuse" {
            let users = [opener(Path::new(&device)), mapper(Path::new(&device))];
            act(&scratch, &["close", "--deferred"]).passes();
            // The kernel would have no path to ask for the new size.
            let message = act(&scratch, &["resize", "--size", "1024"]).refuses(5);
            assert!(message.contains("about to end"), "{message}");
            for user in users {
                is_named(&scratch, &format!("(process {})", user.0.id()), "deferred");
            }
        } else {
            await_that("the device to be released", || act(&scratch, &["close"]).succeeded());
        }
    }
}

#[test]
fn a_loop_device_over_a_served_file_or_device_is_named() {
    for served in ["fuse", "loop"] {
        let scratch = Scratch::new();
        let device = open(&scratch, served);
        let mut losetup = tool("losetup", "mount");
        let above = run(losetup.args(["--find", "--show", &device]), b"").text();
        let detach = || run(tool("losetup", "mount").args(["--detach", above.trim()]), b"");
        let named = std::panic::catch_unwind(|| is_named(&scratch, above.trim(), served));
        detach().passes();
        named.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        await_that("the device to be released", || act(&scratch, &["close"]).succeeded());
    }
}
