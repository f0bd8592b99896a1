//! Programs of others, which end when they are told to or when they take too long.
//!
//! A program that is started here leads a process group of its own. Ctrl-C reaches this program
//! only, which ends the whole group. A program that waits for a server's file system or device
//! cannot end before that server does: [`guarded`] kills a server that holds its requests for too
//! long.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};

use crate::load::INTERRUPTED;

/// How often a program is looked at.
const POLL: Duration = Duration::from_millis(5);

/// How long a program may take to end after SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(20);

/// How long a program may take to end after SIGKILL. One that waits for a device does not end
/// before the device answers; it is left to the system then.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// How long a short program, such as losetup, may take.
const SHORT_LIMIT: Duration = Duration::from_secs(30);

/// How long a server may hold requests after this program was told to stop. Requests to a server
/// that works end within milliseconds.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// Bytes of a program's messages that are quoted.
const MESSAGE_MAX: u64 = 2000;

/// Where root's programs are: the path of a user often lacks these.
const OF_ROOT: [&str; 2] = ["/usr/sbin", "/sbin"];

/// The program of that name, in the path or where root's programs are.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(OF_ROOT.map(PathBuf::from));
    let is_program = |file: &PathBuf| {
        fs::metadata(file).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    dirs.filter(|dir| dir.is_absolute()).map(|dir| dir.join(program)).find(is_program)
}

/// Whether a program of that name can be started by [`program`].
pub(crate) fn is_installed(program: &str) -> bool {
    find(program).is_some()
}

/// A program of others, also where the path does not lead to it. One that is not there fails when it is
/// started.
pub(crate) fn program(name: &str) -> Command {
    Command::new(find(name).unwrap_or_else(|| name.into()))
}

/// The first line that a short program prints, if it begins its output with one. `None`: it does not
/// start, or does not end in time and is killed.
pub(crate) fn first_line(command: &mut Command) -> Option<String> {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = quiet.process_group(0).spawn().ok()?;
    let mut output = child.stdout.take()?;
    ends_soon(&mut child)?;
    // What it has started may have the pipe open for as long as it likes.
    ioctl_fionbio(&output, true).ok()?;
    let mut start = [0; MESSAGE_MAX as usize];
    let count = output.read(&mut start).ok()?;
    let text = String::from_utf8_lossy(&start[..count]);
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

/// Whether a short program runs and succeeds.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    ended(command).is_some_and(|status| status.success())
}

/// Runs a short program without its messages, in a process group of its own. `None`: it does not
/// start, or does not end in time and is killed.
pub(crate) fn ended(command: &mut Command) -> Option<ExitStatus> {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    ends_soon(&mut quiet.process_group(0).spawn().ok()?)
}

/// Waits for a short program. `None`: it does not end in time and is killed.
fn ends_soon(child: &mut Child) -> Option<ExitStatus> {
    let deadline = Instant::now() + SHORT_LIMIT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL),
            _ => break,
        }
    }
    let _ = child.kill();
    // Reaped if it ends soon, like every other program here.
    let deadline = Instant::now() + KILL_LIMIT;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
        std::thread::sleep(POLL);
    }
    None
}

/// The number of a process, for a signal.
fn pid_of(number: u32) -> Option<Pid> {
    i32::try_from(number).ok().and_then(Pid::from_raw)
}

/// Kills a process, which may have ended just now.
pub(crate) fn kill(number: u32) {
    if let Some(process) = pid_of(number) {
        let _ = kill_process(process, Signal::KILL);
    }
}

/// Whether a process of this group lives. What nobody has waited for is dead, although the kernel
/// still counts it.
fn group_lives(group: Pid) -> bool {
    if test_kill_process_group(group).is_err() {
        return false;
    }
    let group = group.as_raw_nonzero().get();
    let lives = |entry: fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // The state, the parent and the group follow the name, which is in parentheses.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let state = fields.next()?;
        let is_member = fields.nth(1)?.parse() == Ok(group);
        Some(is_member && !matches!(state, "Z" | "X"))
    };
    let all = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    all.filter_map(lives).any(|lives| lives)
}

/// Why a server was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Killed {
    Stopped,
    Hung,
}

/// Does `work`, which sends requests to the server with the process number `server`, if that is
/// known. Kills the server with SIGKILL if `work` takes longer than `limit`, or goes on for some
/// seconds after `stop` was set: otherwise neither this program nor another one could end a
/// request that the server holds.
///
/// # Errors
/// Those of `work`. `Interrupted` or `TimedOut` if the server was killed and `work` failed.
pub(crate) fn guarded<T>(
    server: Option<u32>,
    limit: Duration,
    stop: &AtomicBool,
    work: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    guarded_for(server, limit, (stop, GRACE), work)
}

fn guarded_for<T>(
    server: Option<u32>,
    limit: Duration,
    (stop, grace): (&AtomicBool, Duration),
    work: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let Some(server) = server.and_then(pid_of) else { return work() };
    // Dropped when `work` has ended, however it does.
    let (working, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watch = move || watch(server, limit, (stop, grace), &ended);
        let guard = std::thread::Builder::new().name("guard".into()).spawn_scoped(scope, watch)?;
        let result = work();
        drop(working);
        match (result, guard.join()) {
            (Err(_), Ok(Some(Killed::Stopped))) => {
                Err(io::Error::new(io::ErrorKind::Interrupted, INTERRUPTED))
            }
            (Err(_), Ok(Some(Killed::Hung))) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("the server was killed: a load took more than {} s", limit.as_secs()),
            )),
            (result, _) => result,
        }
    })
}

/// Waits for the end of the work, or kills the server.
fn watch(
    server: Pid,
    limit: Duration,
    (stop, grace): (&AtomicBool, Duration),
    ended: &Receiver<()>,
) -> Option<Killed> {
    let deadline = Instant::now() + limit;
    let mut stopped: Option<Instant> = None;
    while ended.recv_timeout(POLL) == Err(RecvTimeoutError::Timeout) {
        let now = Instant::now();
        if stopped.is_none() && stop.load(Ordering::Relaxed) {
            stopped = Some(now);
        }
        let killed = if stopped.is_some_and(|since| now - since > grace) {
            Killed::Stopped
        } else if now > deadline {
            Killed::Hung
        } else {
            continue;
        };
        // It may have ended just now.
        let _ = kill_process(server, Signal::KILL);
        return Some(killed);
    }
    None
}

/// A program under way. Dropping it ends it.
pub(crate) struct Running {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Running {
    /// Starts a program in a process group of its own: Ctrl-C reaches this program, which ends it.
    /// Its messages go to `log`; its standard output too, unless it was set.
    pub(crate) fn start(command: &mut Command, log: &Path, pipe: bool) -> io::Result<Self> {
        let program = Path::new(command.get_program());
        let name = match program.to_str() {
            Some("/proc/self/exe") => "ucrypt".to_owned(),
            _ => program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned(),
        };
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

    /// Waits for its end. `look` is called again and again with its number.
    fn wait(
        &mut self,
        limit: Duration,
        stop: &AtomicBool,
        look: &mut dyn FnMut(u32),
    ) -> io::Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            look(self.pid());
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

impl Running {
    fn signal(&self, signal: Signal) {
        if let Some(group) = pid_of(self.pid()) {
            // It may have ended just now.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Waits until nothing of its process group lives. Its number belongs to nobody else until
    /// then.
    fn await_group(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.is_alive() || pid_of(self.pid()).is_some_and(group_lives) {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(POLL);
        }
        true
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_alive() {
            return;
        }
        self.signal(Signal::TERM);
        if !self.await_group(END_LIMIT) {
            self.signal(Signal::KILL);
            self.await_group(KILL_LIMIT);
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
    Running::start(command, &scratch.join(MESSAGES), false)?.wait(limit, stop, &mut |_| {})
}

/// Where the messages of a program are that runs to its end.
const MESSAGES: &str = "messages";

/// As [`output`]. `begun` is called with the program's number when it has printed the line `mark`.
pub(crate) fn output_with_mark(
    command: &mut Command,
    scratch: &Path,
    (limit, stop): (Duration, &AtomicBool),
    (mark, begun): (&str, impl FnOnce(u32)),
) -> io::Result<String> {
    let log = scratch.join(MESSAGES);
    let mut begun = Some(begun);
    let mut look = |pid| {
        if begun.is_some()
            && fs::read_to_string(&log).is_ok_and(|said| said.lines().any(|line| line == mark))
            && let Some(begun) = begun.take()
        {
            begun(pid);
        }
    };
    Running::start(command, &log, false)?.wait(limit, stop, &mut look)?;
    fs::read_to_string(&log)
}

/// Runs a program to its end and returns what it prints, in full.
pub(crate) fn output(
    command: &mut Command,
    scratch: &Path,
    limit: Duration,
    stop: &AtomicBool,
) -> io::Result<String> {
    run(command, scratch, limit, stop)?;
    fs::read_to_string(scratch.join(MESSAGES))
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

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn lines(path: &Path) -> Vec<String> {
        fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_first_line_does_not_wait_for_what_a_program_has_started() {
        let line = |script: &str| first_line(Command::new("sh").args(["-c", script]));
        assert_eq!(line("echo ' 1.2 '; echo more; exit 3").as_deref(), Some("1.2"));
        let sleeper = line("sleep 100 & echo $!").expect("its number").parse().expect("a number");
        assert!(Path::new(&format!("/proc/{sleeper}")).exists(), "it was waited for");
        kill(sleeper);
        assert_eq!(line(":"), None);
        assert_eq!(first_line(&mut Command::new("no-such-program")), None);
    }

    #[test]
    fn a_program_is_found_where_roots_programs_are_and_what_cannot_be_started_is_not_installed() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("no-program");
        fs::write(&file, "#!/bin/sh\n").expect("written");
        assert!(is_installed("sh") && !is_installed("no-such-program"));
        // Absolute, as `find` joins it to each place: there, but not to be started.
        assert!(!is_installed(file.to_str().expect("text")));
        assert_eq!(program("no-such-program").get_program(), "no-such-program");
    }

    #[test]
    fn a_mark_is_seen_while_its_program_goes_on() {
        let dir = tempfile::tempdir().expect("a directory");
        let stop = AtomicBool::new(false);
        // It ends only after the mark was seen.
        let script = "echo unmarked; echo mark; until [ -e seen ]; do sleep 0.01; done; echo after";
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).current_dir(dir.path());
        let begun = |pid: u32| {
            let said = fs::read_to_string(dir.path().join(MESSAGES)).expect("read");
            fs::write(dir.path().join("seen"), format!("{pid} {said}")).expect("written");
        };
        let how = (Duration::from_secs(60), &stop);
        let said = output_with_mark(&mut shell, dir.path(), how, ("mark", begun)).expect("it ran");
        assert_eq!(said, "unmarked\nmark\nafter\n");
        let seen = fs::read_to_string(dir.path().join("seen")).expect("read");
        assert!(seen.ends_with(" unmarked\nmark\n"), "{seen}");
    }

    #[test]
    fn a_program_that_is_ended_takes_its_whole_process_group_with_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let stop = AtomicBool::new(false);
        // The shell passes no signal on to its children, and one of them ignores SIGINT.
        let script = "sleep 1000 & echo $! >>pids; (trap '' INT; sleep 1000) & echo $! >>pids; \
                      echo ready >>pids; sleep 1000";
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).current_dir(dir.path());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let deadline = Instant::now() + Duration::from_secs(60);
                while lines(&dir.path().join("pids")).len() < 3 && Instant::now() < deadline {
                    std::thread::sleep(POLL);
                }
                stop.store(true, Ordering::Relaxed);
            });
            let ended = run(&mut shell, dir.path(), Duration::from_secs(100), &stop);
            assert_eq!(ended.expect_err("stopped").kind(), io::ErrorKind::Interrupted);
        });
        let pids = lines(&dir.path().join("pids"));
        assert_eq!(pids.len(), 3, "{pids:?}");
        for pid in &pids[..2] {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let state = stat.rsplit_once(") ").map_or("gone", |(_, fields)| &fields[..1]);
            assert!(["gone", "Z", "X"].contains(&state), "{pid} lives: {state}");
        }
    }

    /// A server that takes a connection and then answers nothing: `cat`, stopped, between a pipe
    /// and a socket.
    fn hung() -> (Child, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let mut cat = Command::new("cat");
        let output: std::os::fd::OwnedFd = theirs.try_clone().expect("a clone").into();
        let input: std::os::fd::OwnedFd = theirs.into();
        let cat = cat.stdin(Stdio::from(input)).stdout(Stdio::from(output)).spawn();
        let cat = cat.expect("cat starts");
        kill_process(pid_of(cat.id()).expect("a process"), Signal::STOP).expect("it is there");
        (cat, ours)
    }

    #[test]
    fn a_server_that_answers_nothing_is_killed_when_the_time_has_passed_or_the_user_stops() {
        let ms = Duration::from_millis;
        for (limit, stopped, kind) in [
            (ms(100), false, io::ErrorKind::TimedOut),
            (Duration::from_secs(100), true, io::ErrorKind::Interrupted),
        ] {
            let (mut cat, mut socket) = hung();
            let stop = AtomicBool::new(stopped);
            let ended = guarded_for(Some(cat.id()), limit, (&stop, ms(100)), || {
                socket.write_all(b"?")?;
                socket.read_exact(&mut [0])
            });
            assert_eq!(ended.expect_err("killed").kind(), kind);
            assert!(!cat.wait().expect("ended").success());
        }
        // Work that ends in time ends nobody.
        let (mut cat, _socket) = hung();
        let stop = AtomicBool::new(true);
        let done = guarded_for(Some(cat.id()), ms(1000), (&stop, ms(1000)), || Ok(7));
        assert_eq!(done.expect("done"), 7);
        assert!(cat.try_wait().expect("asked").is_none(), "it lives");
        cat.kill().and_then(|()| cat.wait()).expect("killed");
    }
}
