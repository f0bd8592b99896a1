//! Programs of others, which end when they are told to or when they take too long.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::load::INTERRUPTED;

/// How often a program is looked at.
const POLL: Duration = Duration::from_millis(5);

/// How long a program may take to end after SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(20);

/// Bytes of a program's messages that are quoted.
const MESSAGE_MAX: u64 = 2000;

/// Whether a program of that name is in the path, or where root's programs are.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    dirs.map(|dir| dir.join(program)).any(|file| file.is_file())
}

/// The first line that a program prints; `None` if it cannot be run.
pub(crate) fn first_line(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

/// Whether a program runs and succeeds.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// A program under way. Dropping it ends it.
pub(crate) struct Running {
    child: Child,
    name: String,
    log: std::path::PathBuf,
}

impl Running {
    /// Starts a program in a process group of its own: Ctrl-C reaches this program, which ends it.
    /// Its messages go to `log`; its standard output too, unless it was set.
    pub(crate) fn start(command: &mut Command, log: &Path, pipe: bool) -> io::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let messages = File::create(log)?;
        command.stdin(Stdio::null()).stderr(messages.try_clone()?).process_group(0);
        command.stdout(if pipe { Stdio::piped() } else { messages.into() });
        let failed = |error| io::Error::other(format!("{name} cannot be started: {error}"));
        let child = command.spawn().map_err(failed)?;
        Ok(Self { child, name, log: log.into() })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The error that quotes its messages.
    pub(crate) fn failure(&self, what: &str) -> io::Error {
        let mut said = String::new();
        if let Ok(log) = File::open(&self.log) {
            // What cannot be read is not quoted.
            let _ = log.take(MESSAGE_MAX).read_to_string(&mut said);
        }
        let said = said.trim().replace('\n', "; ");
        let colon = if said.is_empty() { "" } else { ": " };
        io::Error::other(format!("{} {what}{colon}{said}", self.name))
    }

    /// Waits for its end.
    fn wait(&mut self, limit: Duration, stop: &AtomicBool) -> io::Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return if status.success() {
                    Ok(())
                } else {
                    Err(self.failure(&format!("failed ({status})")))
                };
            }
            if stop.load(Ordering::Relaxed) {
                return Err(io::Error::new(io::ErrorKind::Interrupted, INTERRUPTED));
            }
            if Instant::now() > deadline {
                return Err(self.failure("does not end"));
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_alive() {
            return;
        }
        if let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
            // It may have ended just now.
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + END_LIMIT;
        while self.is_alive() {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(POLL);
        }
    }
}

/// Runs a program to its end. Its messages are in the error if it fails.
pub(crate) fn run(
    command: &mut Command,
    scratch: &Path,
    limit: Duration,
    stop: &AtomicBool,
) -> io::Result<()> {
    Running::start(command, &scratch.join("messages"), false)?.wait(limit, stop)
}

/// Runs a program to its end and returns what it prints, in full.
pub(crate) fn output(
    command: &mut Command,
    scratch: &Path,
    limit: Duration,
    stop: &AtomicBool,
) -> io::Result<String> {
    run(command, scratch, limit, stop)?;
    std::fs::read_to_string(scratch.join("messages"))
}

/// Waits until `ready`, which is asked again and again.
pub(crate) fn wait_until(
    limit: Duration,
    stop: &AtomicBool,
    mut ready: impl FnMut() -> io::Result<bool>,
) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    while !ready()? {
        if stop.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, INTERRUPTED));
        }
        if Instant::now() > deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it is not ready in time"));
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}
