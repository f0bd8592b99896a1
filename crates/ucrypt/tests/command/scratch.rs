//! The directory of a test, and everything that must end with it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::SIGINT;
use tempfile::TempDir;

use crate::process::{limited, run};

/// The command under test.
pub(crate) const UCRYPT: &str = env!("CARGO_BIN_EXE_ucrypt");

/// How long a background server may take to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// A directory of one test. Dropping it also ends the processes that name it on their command line (after a failure,
/// also those that work in it or have it in their environment), the mounts below it and the loop devices over its files.
#[derive(Debug)]
pub(crate) struct Scratch {
    dir: TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        heed_interrupts();
        let dir = tempfile::Builder::new().prefix("ucrypt-test-").tempdir().expect("a directory");
        fs::create_dir(dir.path().join("run")).expect("a runtime directory");
        Self { dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file with this content.
    pub(crate) fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).expect("written");
        path
    }

    /// A copy of a program, which can be started at once. If this process wrote it, the kernel might
    /// refuse that (`ETXTBSY`): a command that another test starts holds the descriptor for a moment.
    pub(crate) fn program(&self, name: &str, from: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        let copied = Command::new("cp").arg(from.as_ref()).arg(&path).status().expect("cp starts");
        assert!(copied.success(), "{}: {copied}", path.display());
        path
    }

    /// A file of this length without content.
    pub(crate) fn sparse(&self, name: &str, len: u64) -> PathBuf {
        let path = self.path(name);
        fs::File::create(&path).and_then(|file| file.set_len(len)).expect("a sparse file");
        path
    }

    /// A path in the command's runtime directory.
    pub(crate) fn runtime(&self, name: &str) -> PathBuf {
        self.path("run/ucrypt").join(name)
    }

    /// A name that no other test has, because all tests see the name of a device.
    pub(crate) fn unique(&self) -> String {
        self.dir.path().file_name().and_then(OsStr::to_str).expect("a name").to_lowercase()
    }

    /// The path of the device of [`Scratch::unique`].
    pub(crate) fn device(&self) -> PathBuf {
        Path::new("/dev/ucrypt").join(self.unique())
    }

    /// The command, with a runtime directory of this test.
    pub(crate) fn ucrypt<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        self.prepare(limited(UCRYPT), arguments)
    }

    /// As [`Scratch::ucrypt`], but a child without a time limit.
    pub(crate) fn ucrypt_child<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        self.prepare(Command::new(UCRYPT), arguments)
    }

    fn prepare<S: AsRef<OsStr>>(&self, mut command: Command, arguments: &[S]) -> Command {
        command.args(arguments).env("XDG_RUNTIME_DIR", self.path("run"));
        command
    }

    /// The processes that name this directory on their command line, including background servers.
    pub(crate) fn processes(&self) -> Vec<Pid> {
        let names_it = |pid: &i32| self.is_in(&format!("/proc/{pid}/cmdline"));
        all_processes().filter(names_it).filter_map(Pid::from_raw).collect()
    }

    /// Whether a file contains the path of this directory.
    fn is_in(&self, file: &str) -> bool {
        let wanted = self.dir.path().as_os_str().as_encoded_bytes();
        let content = fs::read(file).unwrap_or_default();
        content.windows(wanted.len()).any(|part| part == wanted)
    }

    /// The processes that work in this directory or below, or have it in their environment: shells, and what they and
    /// the command have started.
    fn workers(&self) -> Vec<Pid> {
        let own = std::process::id().cast_signed();
        let works_here = |pid: &i32| {
            let place = fs::read_link(format!("/proc/{pid}/cwd"));
            *pid != own
                && (place.is_ok_and(|place| place.starts_with(self.dir.path()))
                    || self.is_in(&format!("/proc/{pid}/environ")))
        };
        all_processes().filter(works_here).filter_map(Pid::from_raw).collect()
    }

    /// Kills the background server of the only open volume, as a crash would.
    pub(crate) fn kill_background_server(&self) {
        let server = self.server();
        kill_process(server, Signal::KILL).expect("killed");
        self.await_end(server);
    }

    /// The background server of the only open volume. One whose volume was just closed may need a moment to
    /// end.
    pub(crate) fn server(&self) -> Pid {
        self.server_beside(&[])
    }

    /// As [`Scratch::server`], of the only open volume beside those of these servers.
    pub(crate) fn server_beside(&self, known: &[Pid]) -> Pid {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut found = self.processes();
            found.retain(|process| !known.contains(process));
            match found[..] {
                [server] => return server,
                ref others => assert!(Instant::now() < deadline, "{others:?}: not one server"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until a process that is no child of ours has ended.
    pub(crate) fn await_end(&self, process: Pid) {
        let deadline = Instant::now() + PATIENCE;
        while is_running(process) {
            assert!(Instant::now() < deadline, "{process:?} in {self:?} does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until there is a file of this name.
    pub(crate) fn await_file(&self, name: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.path(name).exists() {
            assert!(Instant::now() < deadline, "there is no file {name} in {self:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Mounts below this directory, the innermost first.
    pub(crate) fn mounts(&self) -> Vec<PathBuf> {
        let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let places = table.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
        let mut below: Vec<_> = places.filter(|path| path.starts_with(self.dir.path())).collect();
        below.reverse();
        below
    }

    fn detach_loop_devices(&self) {
        let lock = format!(".{}.lock", self.unique());
        let number = |file: PathBuf| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
        if let Ok(device) = fs::read_link(self.device()) {
            // Of a killed server, the device may be another test's by now.
            let name = device.file_name().unwrap_or_default();
            let now = number(Path::new("/sys/class/block").join(name).join("diskseq"));
            if now.is_some() && now == number(Path::new("/dev/ucrypt").join(&lock)) {
                let _ = Command::new("losetup").arg("--detach").arg(device).status();
            }
        }
        for left in [self.unique(), lock] {
            // Only a failed test leaves mounts.
            let _ = fs::remove_file(Path::new("/dev/ucrypt").join(left));
        }
        for entry in fs::read_dir("/sys/block").into_iter().flatten().filter_map(Result::ok) {
            let backing = fs::read_to_string(entry.path().join("loop/backing_file"));
            if backing.is_ok_and(|file| Path::new(file.trim_end()).starts_with(self.dir.path())) {
                let device = Path::new("/dev").join(entry.file_name());
                let _ = Command::new("losetup").arg("--detach").arg(device).status();
            }
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for process in self.processes() {
            // The process may end by itself meanwhile.
            let _ = kill_process(process, Signal::KILL);
        }
        if std::thread::panicking() {
            // What a failed test has not ended, and what waits for it: it would fail the whole program.
            for process in self.workers() {
                let _ = kill_process(process, Signal::KILL);
            }
        }
        self.detach_loop_devices();
        for mount in self.mounts() {
            run(Command::new("umount").arg("--lazy").arg(&mount), b"");
        }
    }
}

/// A shell without job control has what it starts in the background ignore SIGINT, these tests perhaps, and the command
/// keeps to that. What is handled here instead, children do not inherit.
fn heed_interrupts() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = fs::read_to_string("/proc/self/status").expect("/proc");
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        if ignored.expect("a mask") & 1 << (SIGINT - 1) != 0 {
            signal_hook::flag::register(SIGINT, Arc::default()).expect("a handler");
        }
    });
}

/// The numbers of all processes.
fn all_processes() -> impl Iterator<Item = i32> {
    let listed = fs::read_dir("/proc").expect("/proc").filter_map(Result::ok);
    listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether any thread of a process still lives.
fn is_running(process: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    let state = |stat: String| stat.rsplit_once(") ")?.1.chars().next();
    threads.into_iter().flatten().filter_map(Result::ok).any(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat"));
        // The state follows the name, which is in parentheses.
        !matches!(stat.ok().and_then(state), None | Some('Z' | 'X'))
    })
}
