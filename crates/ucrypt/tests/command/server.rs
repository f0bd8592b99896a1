//! `ucrypt serve` while it runs.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::scratch::Scratch;

/// How long a server may take to start, and to notice a request to end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A server in the foreground; killed when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    log: PathBuf,
    socket: PathBuf,
    file: PathBuf,
}

/// The exports of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum On {
    Nbd,
    Fuse,
    Both,
}

impl Server {
    /// Starts a server with the given arguments and waits until it says that it is ready.
    #[track_caller]
    pub(crate) fn start<S: AsRef<OsStr>>(scratch: &Scratch, on: On, arguments: &[S]) -> Self {
        let mut command = scratch.ucrypt_child(&["serve"]);
        let log = scratch.path("server.log");
        let (socket, file) = (scratch.path("socket"), scratch.path("served"));
        let mut exports = 0;
        if on != On::Fuse {
            command.arg("--nbd").arg(format!("unix:{}", socket.display()));
            exports += 1;
        }
        if on != On::Nbd {
            command.arg("--fuse").arg(&file);
            exports += 1;
        }
        // Behind those above, so that exports among them are announced later.
        command.args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(File::create(&log).expect("a log"));
        let mut server = Self { child: command.spawn().expect("ucrypt starts"), log, socket, file };
        server.await_announcements(exports);
        server
    }

    /// One line for each export.
    #[track_caller]
    fn await_announcements(&mut self, exports: usize) {
        let stdout = self.child.stdout.take().expect("a pipe");
        let (said, heard) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = said.send(line);
            }
        });
        for _ in 0..exports {
            let Ok(line) = heard.recv_timeout(PATIENCE) else {
                panic!("the server does not start: {}", self.stderr());
            };
            let expected =
                [format!("nbd: {}", self.uri()), format!("fuse: {}", self.file().display())];
            assert!(expected.contains(&line), "the server announces {line:?}, not {expected:?}");
        }
    }

    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The served file.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// The served file, open for reading and writing.
    pub(crate) fn open(&self) -> File {
        File::options().read(true).write(true).open(&self.file).expect("the served file opens")
    }

    /// Bytes of the served file.
    pub(crate) fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        let file = File::open(&self.file).expect("the served file opens");
        file.read_exact_at(&mut data, offset).expect("the served file is read");
        data
    }

    /// The server's messages on standard error.
    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("waited").is_none()
    }

    /// Ends it as an administrator does. It must succeed.
    #[track_caller]
    pub(crate) fn terminate(mut self) {
        let status = self.end(Signal::TERM);
        assert!(status.success(), "after SIGTERM: {status}: {}", self.stderr());
    }

    /// Ends it as an administrator does, while a user of the volume does not go. The server reports
    /// that and fails.
    #[track_caller]
    pub(crate) fn terminate_in_use(mut self) -> String {
        let status = self.end(Signal::TERM);
        assert_eq!(status.code(), Some(5), "after SIGTERM: {}", self.stderr());
        let said = self.stderr();
        assert!(said.contains("is in use") && said.contains("not synced is lost"), "{said}");
        said
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a signal");
    }

    /// Waits for this text on standard error.
    #[track_caller]
    pub(crate) fn await_said(&self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.stderr().contains(text) {
            assert!(Instant::now() < deadline, "it did not say '{text}' but: {}", self.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Asserts that it ends by itself, with success.
    #[track_caller]
    pub(crate) fn ends(self) {
        self.exits(0);
    }

    /// Asserts that it ends by itself, with this exit code and a message of one line, which is
    /// returned.
    #[track_caller]
    pub(crate) fn fails(self, code: i32) -> String {
        let said = self.exits(code);
        let line = said.strip_suffix('\n').unwrap_or_default();
        assert!(line.starts_with("ucrypt: ") && !line.contains('\n'), "{said:?}");
        line.into()
    }

    /// Waits for its end, and asserts this exit code.
    #[track_caller]
    pub(crate) fn exits(mut self, code: i32) -> String {
        let deadline = Instant::now() + PATIENCE;
        while self.is_running() {
            assert!(Instant::now() < deadline, "the server goes on: {}", self.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
        let status = self.child.wait().expect("waited");
        assert_eq!(status.code(), Some(code), "{status}: {}", self.stderr());
        self.stderr()
    }

    /// Ends it as a crash does.
    pub(crate) fn kill(mut self) {
        self.end(Signal::KILL);
    }

    fn end(&mut self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), signal).expect("a signal");
        self.child.wait().expect("waited")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a program has ended, and returns how.
#[track_caller]
pub(crate) fn await_end(child: &mut Child) -> ExitStatus {
    let mut ended = None;
    await_that("the program ends", || {
        ended = child.try_wait().expect("waited");
        ended.is_some()
    });
    ended.expect("it has ended")
}

/// Waits until a process has opened a pipe for reading, and returns the other end.
#[track_caller]
pub(crate) fn await_reader(fifo: &Path) -> File {
    let mut pipe = None;
    await_that("somebody reads the pipe", || {
        // Opening fails without a reader.
        let mut options = File::options();
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        pipe = options.write(true).custom_flags(nonblocking).open(fifo).ok();
        pipe.is_some()
    });
    pipe.expect("it is open")
}

/// Waits until a condition holds; fails after [`PATIENCE`].
#[track_caller]
pub(crate) fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
