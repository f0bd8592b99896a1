//! `top`: what all open volumes of this user do, again and again.
//!
//! One thread asks the servers, so that one that hangs keeps no key waiting; this one draws. Rates are
//! differences of two answers.

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Signal, kill_current_process_group};
use rustix::termios::isatty;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};

use crate::background::{Answers, statuses};
use crate::failure::Failure;
use crate::stdio::Stdin;
use crate::terminal::leave_signals;

mod keys;
mod screen;
mod table;

use keys::{Key, Keys};
use screen::Screen;
use table::{Sort, Table};

/// How long a server may take to answer before its volume is shown without figures.
const PATIENCE: Duration = Duration::from_secs(2);

/// Arguments of `top`.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Seconds between two looks
    #[arg(short = 'd', long, value_name = "SECONDS", default_value = "1", value_parser = parse_delay)]
    delay: Duration,
    /// The column that decides the order
    #[arg(long, value_enum, value_name = "COLUMN", default_value_t)]
    sort: Sort,
}

fn parse_delay(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("'{text}' is no number of seconds"))?;
    if !(0.1..=3600.0).contains(&seconds) {
        return Err("between 0.1 and 3600 seconds".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// The answers of all servers at one time.
struct Look {
    at: Instant,
    volumes: Answers,
}

/// Carries out `top`.
pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    let is_terminal =
        Stdin::get().is_some() && isatty(rustix::stdio::stdin()) && isatty(rustix::stdio::stdout());
    if !is_terminal {
        return Err(Failure::wrong(
            "top needs a terminal; ucrypt list and ucrypt status --json are for programs",
        ));
    }
    let failed = |error: io::Error| Failure::device(format!("cannot show the volumes: {error}"));
    let (news, wake) = io::pipe().map_err(failed)?;
    for signal in [SIGWINCH, SIGTERM, SIGINT, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, wake.try_clone().map_err(failed)?)
            .map_err(failed)?;
    }
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, ended.clone()).map_err(failed)?;
    }
    leave_signals();
    let (sender, looks) = mpsc::channel();
    let (again, asked) = mpsc::channel();
    let delay = args.delay;
    std::thread::Builder::new()
        .name("look".into())
        .spawn(move || look(&sender, &asked, wake, delay))
        .map_err(failed)?;
    let mut top = Top { table: Table::new(args.sort), keys: Keys::default(), looks, again, news };
    let mut screen = Screen::enter().map_err(failed)?;
    loop {
        if ended.load(Ordering::Relaxed) || !top.step(&mut screen).map_err(failed)? {
            // Restores the terminal, before anything is said.
            drop(screen);
            return Ok(());
        }
    }
}

/// Asks the servers every `delay`, and at once when `asked` says so, until nobody wants the answers.
fn look(
    sender: &Sender<Result<Look, Failure>>,
    asked: &Receiver<()>,
    mut wake: io::PipeWriter,
    delay: Duration,
) {
    loop {
        let begin = Instant::now();
        let volumes = statuses(PATIENCE);
        let look = volumes.map(|volumes| Look { at: Instant::now(), volumes });
        if sender.send(look).is_err() {
            return;
        }
        // If the pipe is full, it wakes whoever reads it anyway.
        let _ = wake.write_all(b"!");
        match asked.recv_timeout(delay.saturating_sub(begin.elapsed())) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

struct Top {
    table: Table,
    keys: Keys,
    looks: Receiver<Result<Look, Failure>>,
    /// Has the servers asked at once.
    again: Sender<()>,
    /// Readable when there is an answer or a signal.
    news: io::PipeReader,
}

impl Top {
    /// Draws, and waits for a key, an answer or a signal. Returns whether to go on.
    fn step(&mut self, screen: &mut Screen) -> io::Result<bool> {
        let (columns, lines) = Screen::size();
        Screen::draw(&self.table.lines(columns, lines), columns)?;
        let stdin = rustix::stdio::stdin();
        let mut fds = [
            PollFd::from_borrowed_fd(stdin, PollFlags::IN),
            PollFd::from_borrowed_fd(self.news.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
        let [keys, news] = fds.map(|fd| !fd.revents().is_empty());
        if news {
            // One byte for each: what is left wakes the next step.
            let mut some = [0; 64];
            let _ = self.news.read(&mut some)?;
            while let Ok(look) = self.looks.try_recv() {
                let look = look.map_err(|failure| io::Error::other(failure.message))?;
                self.table.take(look.at, look.volumes);
            }
        }
        if !keys {
            return Ok(true);
        }
        let mut typed = [0; 64];
        let count = match rustix::io::read(stdin, &mut typed) {
            Ok(0) => return Ok(false),
            Ok(count) => count,
            Err(Errno::INTR | Errno::AGAIN) => 0,
            Err(error) => return Err(error.into()),
        };
        for byte in &typed[..count] {
            match self.keys.take(*byte) {
                None => {}
                Some(Key::Quit) => return Ok(false),
                Some(Key::Stop) => {
                    screen.leave();
                    kill_current_process_group(Signal::TSTP)?;
                    // Here again once the job is back in the foreground.
                    *screen = Screen::enter()?;
                }
                Some(Key::Again) => drop(self.again.send(())),
                Some(key) => self.table.key(key, usize::from(lines)),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_between_looks_is_bounded() {
        assert_eq!(parse_delay("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "inf", "NaN", "3601", "x", ""] {
            assert!(parse_delay(wrong).is_err(), "{wrong}");
        }
    }
}
