//! Runs the actions on headers as processes, beside cryptsetup.
#![allow(dead_code, reason = "each test program uses a part of this module")]

pub(crate) mod both;
pub(crate) mod user_key;

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

pub(crate) const UCRYPT: &str = env!("CARGO_BIN_EXE_ucrypt");
pub(crate) const PASSPHRASE: &[u8] = b"correct horse battery staple";
pub(crate) const CHEAP: &[&str] = &["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];

pub(crate) fn run(program: &str, args: &[&str], stdin: &[u8]) -> Output {
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.unwrap_or_else(|error| {
        panic!("{program} cannot be run ({error}): apt-get install cryptsetup-bin bsdutils")
    });
    // A child that ends without reading closes the pipe; its exit code tells why.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    child.wait_with_output().unwrap()
}

pub(crate) fn ucrypt(args: &[&str], stdin: &[u8]) -> Output {
    run(UCRYPT, args, stdin)
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().expect("killed by a signal")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Standard output of a program that has to succeed.
pub(crate) fn good(output: &Output) -> String {
    assert_eq!(code(output), 0, "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        let scratch = Self(tempfile::tempdir().unwrap());
        scratch.make("image", 18 << 20);
        scratch
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn make(&self, name: &str, len: u64) -> PathBuf {
        let path = self.path(name);
        fs::File::create(&path).unwrap().set_len(len).unwrap();
        path
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.path("image")
    }

    /// Formats the image with `args`; the passphrase comes through standard input.
    pub(crate) fn format(&self, args: &[&str]) -> Output {
        let image = self.image();
        let args: Vec<&str> =
            ["luksFormat"].iter().chain(args).copied().chain([text(&image)]).collect();
        ucrypt(&args, PASSPHRASE)
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A program on a terminal of its own, by `script` of util-linux.
pub(crate) struct Terminal {
    child: Child,
    seen: String,
}

impl Terminal {
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::of(UCRYPT, args)
    }

    pub(crate) fn of(program: &str, args: &[&str]) -> Self {
        let quoted: Vec<String> =
            [program].iter().chain(args).map(|word| format!("'{word}'")).collect();
        let child = Command::new("timeout")
            .args(["60", "script", "-qefc", &quoted.join(" "), "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("script cannot be run ({error}): apt-get install bsdutils")
        });
        Self { child, seen: String::new() }
    }

    /// Waits until `text` is on the terminal, then types `answer`.
    pub(crate) fn expect(&mut self, text: &str, answer: &str) {
        let stdout = self.child.stdout.as_mut().unwrap();
        while !self.seen.contains(text) {
            let mut buf = [0; 256];
            let got = stdout.read(&mut buf).unwrap();
            assert!(got > 0, "{text} did not come: {}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&buf[..got]));
        }
        self.seen.clear();
        self.answer(answer);
    }

    /// Types `answer`.
    pub(crate) fn answer(&mut self, answer: &str) {
        self.child.stdin.as_mut().unwrap().write_all(answer.as_bytes()).unwrap();
    }

    /// The exit code, and the output after the last answer.
    pub(crate) fn end(mut self) -> (i32, String) {
        self.child.stdout.as_mut().unwrap().read_to_string(&mut self.seen).unwrap();
        (self.child.wait().unwrap().code().unwrap(), self.seen)
    }
}
