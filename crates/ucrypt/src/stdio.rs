//! Standard input, output and error, without buffers and without panics.
//!
//! All input and output of this command on these streams goes through this module. Rust's print
//! macros panic if a write fails, and its streams treat a closed stream as an empty one and keep
//! input, passphrases included, in a buffer that nobody wipes.

use std::fmt::Display;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use ucrypt_backend::was_closed_at_start;

use crate::failure::Failure;
use crate::log::{Level, event};

/// Standard input.
#[derive(Debug)]
pub(crate) struct Stdin(());

impl Stdin {
    /// `None` if this process was started without it.
    pub(crate) fn get() -> Option<Self> {
        (!was_closed_at_start(0)).then_some(Self(()))
    }
}

impl Read for Stdin {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let stream = rustix::stdio::stdin();
        whole(stream, PollFlags::IN, || rustix::io::read(stream, &mut *buf))
    }
}

/// Standard output.
#[derive(Debug)]
pub(crate) struct Stdout(());

impl Stdout {
    /// Fails if this process was started without it.
    pub(crate) fn get() -> Result<Self, Failure> {
        if was_closed_at_start(1) {
            return Err(Failure::wrong("standard output is closed; nothing can be written to it"));
        }
        Ok(Self(()))
    }

    /// Writes all bytes. If the reader has gone, fails with [`Failure::nobody_reads`].
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.write_all(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::nobody_reads(),
            _ => Failure::wrong(format!("cannot write to standard output: {error}")),
        })
    }
}

impl Write for Stdout {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let stream = rustix::stdio::stdout();
        whole(stream, PollFlags::OUT, || rustix::io::write(stream, buf))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Carries out a transfer. Retries after a signal, and waits if somebody made the stream
/// non-blocking.
fn whole(
    stream: BorrowedFd<'_>,
    ready: PollFlags,
    mut transfer: impl FnMut() -> Result<usize, Errno>,
) -> io::Result<usize> {
    loop {
        match transfer() {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => match poll(&mut [PollFd::from_borrowed_fd(stream, ready)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            },
            done => return Ok(done?),
        }
    }
}

/// Prints a result on standard output, unchanged.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    Stdout::get()?.put(text.as_bytes())
}

/// Prints a result on standard output, and ends the line.
pub(crate) fn print_line(line: impl Display) -> Result<(), Failure> {
    print(&format!("{line}\n"))
}

/// Prints where a volume can be found. Succeeds also if nobody reads it, because the volume stays.
pub(crate) fn announce(line: impl Display) -> Result<(), Failure> {
    if was_closed_at_start(1) {
        return Ok(());
    }
    match print_line(line) {
        Err(failure) if failure.is_nobody_reads() => Ok(()),
        printed => printed,
    }
}

/// Writes text to standard error, unchanged. Ignores errors: there is nobody else to tell.
pub(crate) fn say(text: &str) {
    let (mut rest, stream) = (text.as_bytes(), rustix::stdio::stderr());
    while !rest.is_empty() {
        match whole(stream, PollFlags::OUT, || rustix::io::write(stream, rest)) {
            Ok(written) if written > 0 => rest = &rest[written..],
            _ => return,
        }
    }
}

/// What a pipe takes whole, or not at all (`PIPE_BUF` in pipe(7)): once it is writable, such a write
/// does not wait.
const AT_ONCE: usize = 4096;

/// Writes text to a stream if it takes it within `patience`. Returns whether it did, or never will: a
/// stream that fails is not waited for.
pub(crate) fn offer(stream: impl AsFd, text: &str, patience: Duration) -> bool {
    let (mut rest, stream) = (text.as_bytes(), stream.as_fd());
    let until = Instant::now() + patience;
    while !rest.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut [PollFd::from_borrowed_fd(stream, PollFlags::OUT)], Some(&left)) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return true,
        }
        match rustix::io::write(stream, &rest[..rest.len().min(AT_ONCE)]) {
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            // Somebody else was faster.
            Err(Errno::AGAIN) if Instant::now() < until => {}
            Err(Errno::AGAIN) => return false,
            Err(_) => return true,
        }
    }
    true
}

/// Whether the user asked for more messages.
static VERBOSE: AtomicBool = AtomicBool::new(false);

/// From now on, [`say_verbose`] writes.
pub(crate) fn be_verbose() {
    VERBOSE.store(true, Ordering::Relaxed);
}

/// Writes one line to standard error if the user asked for more messages. Such lines have
/// cryptsetup's words, without the name of the command.
pub(crate) fn say_verbose(line: impl Display) {
    if VERBOSE.load(Ordering::Relaxed) {
        say(&format!("{line}\n"));
    }
}

/// Writes one line to standard error, after the name of the command. In a server that logs: to the
/// log.
pub(crate) fn say_line(line: impl Display) {
    event(Level::Warning, "message", line);
}
