//! Programs that run to their end: the command and the interop tools.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Key derivations of a machine take turns. So any test can be told this because of any other.
const WAITS: &str = "ucrypt: waiting for the memory of other key derivations\n";

/// Seconds after which a program counts as hanging and is killed. Copies of hundreds of megabytes with a
/// sync take minutes beside other suites.
const LIMIT_S: &str = "600";

/// The result of a program that has ended. Standard error is without [`WAITS`].
#[derive(Debug)]
pub(crate) struct Ran {
    line: String,
    code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Ran {
    /// Asserts success. Returns standard output.
    #[track_caller]
    pub(crate) fn passes(self) -> Vec<u8> {
        self.exits(0).stdout
    }

    /// Asserts success. Returns standard output, which must be text.
    #[track_caller]
    pub(crate) fn text(self) -> String {
        String::from_utf8(self.passes()).expect("standard output is text")
    }

    /// Its exit code, if it was not killed.
    pub(crate) fn code(&self) -> Option<i32> {
        self.code
    }

    /// Whether its exit code is 0.
    pub(crate) fn succeeded(&self) -> bool {
        self.code == Some(0)
    }

    /// Asserts this exit code.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        let stdout = String::from_utf8_lossy(&self.stdout[..self.stdout.len().min(4000)]);
        assert_eq!(
            self.code,
            Some(code),
            "exit code of {}\nstandard output: {stdout}\nstandard error: {}",
            self.line,
            self.stderr
        );
        self
    }

    /// Asserts that the command refused: this exit code, nothing on standard output, and a message
    /// of one line, which is returned.
    #[track_caller]
    pub(crate) fn refuses(self, code: i32) -> String {
        let ran = self.exits(code);
        assert!(ran.stdout.is_empty(), "{} printed something", ran.line);
        let message = ran.stderr.strip_suffix('\n').unwrap_or_default();
        assert!(
            message.starts_with("ucrypt: ") && !message.contains('\n'),
            "{} did not say why in one line: {:?}",
            ran.line,
            ran.stderr
        );
        message.into()
    }
}

/// Runs a program to its end, with `input` on its standard input.
#[track_caller]
pub(crate) fn run(command: &mut Command, input: &[u8]) -> Ran {
    let line = format!("{command:?}");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{line}: {error}"));
    let mut stdin = child.stdin.take().expect("a pipe");
    let output = std::thread::scope(|scope| {
        // A program that does not read its input closes the pipe, which is no failure.
        scope.spawn(move || stdin.write_all(input));
        child.wait_with_output().expect("output")
    });
    Ran {
        line,
        code: output.status.code(),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).replacen(WAITS, "", 1),
    }
}

/// A program that is killed if it hangs.
pub(crate) fn limited(program: impl Into<OsString>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", LIMIT_S]).arg(program.into());
    command
}

/// A third-party program from a Debian package.
pub(crate) fn tool(program: &str, package: &str) -> Command {
    // nbdsh starts the first python3 in the path; only Debian's has its module.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = vec![PathBuf::from("/usr/bin")];
    places.extend(std::env::split_paths(&path));
    places.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
    let found = places.iter().map(|place| place.join(program)).find(|file| file.is_file());
    let found = found.unwrap_or_else(|| {
        panic!("the tool {program} is missing; install it with: apt-get install {package}")
    });
    let mut command = limited(found);
    command.env("PATH", std::env::join_paths(places).expect("a path")).env("LC_ALL", "C");
    command
}

pub(crate) fn cryptsetup() -> Command {
    tool("cryptsetup", "cryptsetup-bin")
}

/// Debian's Python with a script of this directory; `module` is what the script imports.
pub(crate) fn python(script: &str, module: &str, package: &str) -> Command {
    let mut probe = tool("python3", "python3");
    let there = run(probe.args(["-c", &format!("import {module}")]), b"");
    assert!(
        there.code == Some(0),
        "Debian's Python has no module {module}; install it with: apt-get install {package}"
    );
    let mut command = tool("python3", "python3");
    command.arg("-c").arg(script);
    command
}
