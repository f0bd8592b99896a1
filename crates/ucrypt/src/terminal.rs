//! Prompts at a terminal: for passphrases, which nobody else may see, and for consent.
//!
//! While a passphrase is typed, the terminal echoes nothing and delivers each key at once. This
//! module edits the line itself, with the keys that the terminal is set to: a key that ends or
//! stops the program must restore the echo first. `rpassword` has no time limit, leaves the echo off
//! when the program is stopped, and does not edit UTF-8.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, kill_current_process_group};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcsetattr,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag::{
    register_conditional_default, register_conditional_shutdown, register_usize,
};
use signal_hook::low_level::{emulate_default_handler, exit, pipe};
use zeroize::Zeroizing;

use crate::ending::is_ignored;
use crate::failure::Failure;
use crate::passphrase::Secret;
use crate::stdio;

/// How many bytes of a typed passphrase count, as in cryptsetup: those behind them are dropped.
const TYPED_MAX: usize = 512;

/// Longest line in bytes that a terminal delivers to a program that does not edit it itself. Keys behind
/// it do nothing.
const LINE_MAX: usize = 4095;

/// A terminal with a person at it.
#[derive(Debug)]
pub(crate) enum Terminal {
    /// The one that controls this process.
    Controlling(File),
    /// Standard input, if the process has no controlling terminal. Prompts go to standard error.
    StandardInput,
}

/// Why there is no passphrase.
enum Without {
    Interrupted,
    Ended,
    TimedOut,
    Failed(io::Error),
}

impl Terminal {
    /// The terminal to ask at, if standard input is a terminal: the controlling one if there is
    /// one.
    pub(crate) fn of_stdin() -> Option<Self> {
        let is_terminal = stdio::Stdin::get().is_some() && isatty(rustix::stdio::stdin());
        is_terminal.then(|| Self::controlling().unwrap_or(Self::StandardInput))
    }

    /// The terminal that controls this process, whatever standard input is.
    pub(crate) fn controlling() -> Option<Self> {
        let opened = File::options().read(true).write(true).open("/dev/tty");
        opened.ok().map(Self::Controlling)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Controlling(file) => file.as_fd(),
            Self::StandardInput => rustix::stdio::stdin(),
        }
    }

    fn show(&self, text: &str) {
        match self {
            // Ignore errors: a terminal that cannot be written to cannot be read either, which is
            // reported.
            Self::Controlling(file) => drop(io::Write::write_all(&mut &*file, text.as_bytes())),
            Self::StandardInput => stdio::say(text),
        }
    }

    /// Asks for a passphrase, which has to be complete within `limit`. `prompt` has no colon.
    pub(crate) fn ask(&self, prompt: &str, limit: Option<Duration>) -> Result<Secret, Failure> {
        // One that is beyond all times is none.
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        self.type_passphrase(prompt, deadline).map_err(|without| match without {
            Without::Interrupted => Failure::wrong("interrupted"),
            Without::Ended => Failure::wrong("no passphrase was typed: the input has ended"),
            Without::TimedOut => Failure::wrong("no passphrase was typed within the time limit"),
            Without::Failed(error) => {
                Failure::wrong(format!("cannot read from the terminal: {error}"))
            }
        })
    }

    fn type_passphrase(&self, prompt: &str, deadline: Option<Instant>) -> Result<Secret, Without> {
        loop {
            let signals = Signals::catch().map_err(Without::Failed)?;
            let (line, ended) = {
                // Turn the echo off before the prompt, so that an immediate answer is not echoed.
                let quiet = Quiet::new(self.fd()).map_err(Without::Failed)?;
                self.show(&format!("{prompt}: "));
                let mut line = Line::new(Keys::of(&quiet.before));
                let ended = self.type_line(&mut line, deadline, &signals);
                (line, ended)
            };
            self.show("\n");
            let signal = match ended? {
                End::Done => return Ok(self.cut(line.typed)),
                End::Interrupt => {
                    // The others of the job, such as a script that would go on, get it as well.
                    let _ = kill_current_process_group(Signal::INT);
                    LAST.store(0, Ordering::SeqCst);
                    return Err(Without::Interrupted);
                }
                // Dropping `signals` ends the program, unless somebody else has taken the signal.
                End::Signal => return Err(Without::Interrupted),
                End::Input => return Err(Without::Ended),
                End::Quit => Signal::QUIT,
                End::Suspend => Signal::TSTP,
            };
            // Signal every process of the job, as the terminal would have done. After a stop, ask
            // again once the job is back in the foreground.
            kill_current_process_group(signal).map_err(|error| Without::Failed(error.into()))?;
            if signal == Signal::QUIT {
                return Err(Without::Interrupted);
            }
        }
    }

    /// The part of a passphrase that counts. Says so if that is not all of it: cryptsetup drops the rest
    /// without a word, and a passphrase that was typed there has to open the volume here.
    fn cut(&self, mut typed: Secret) -> Secret {
        if typed.len() > TYPED_MAX {
            self.show(&format!(
                "Only the first {TYPED_MAX} bytes of a typed passphrase count, as in cryptsetup.\n"
            ));
            typed.truncate(TYPED_MAX);
        }
        typed
    }

    fn type_line(
        &self,
        line: &mut Line,
        deadline: Option<Instant>,
        signals: &Signals,
    ) -> Result<End, Without> {
        let mut key = Zeroizing::new([0]);
        loop {
            if !self.wait(deadline, signals)? {
                return Ok(End::Signal);
            }
            match rustix::io::read(self.fd(), &mut *key) {
                Ok(0) => return Ok(End::Input),
                Ok(_) => {}
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(error) => return Err(Without::Failed(error.into())),
            }
            if let Some(end) = line.take(key[0]) {
                return Ok(end);
            }
        }
    }

    /// Waits for a key. Returns false if a signal has come.
    fn wait(&self, deadline: Option<Instant>, signals: &Signals) -> Result<bool, Without> {
        loop {
            let left = match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return Err(Without::TimedOut),
                left => left.and_then(|left| Timespec::try_from(left).ok()),
            };
            let waited = [self.fd(), signals.came.as_fd()];
            let mut waited = waited.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            match poll(&mut waited, left.as_ref()) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(waited[1].revents().is_empty()),
                Err(error) => return Err(Without::Failed(error.into())),
            }
        }
    }

    /// Shows a warning and asks for consent. Returns whether the answer is `YES`.
    pub(crate) fn agrees(&self, warning: &str) -> io::Result<bool> {
        self.show(&format!(
            "\nWARNING!\n========\n{warning}\n\nAre you sure? (Type 'yes' in capital letters): "
        ));
        // A terminal delivers one line at a time. A line that does not fit is no YES.
        let mut answer = [0; 64];
        loop {
            match rustix::io::read(self.fd(), &mut answer) {
                Ok(len) => return Ok(answer[..len].trim_ascii_end() == b"YES"),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// How a line ends.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Done,
    /// The input ended, and nothing was typed.
    Input,
    Interrupt,
    Quit,
    Suspend,
    /// A signal from outside asks the program to end.
    Signal,
}

/// Whether a signal ends the program at once: nobody types, and nobody else takes the signals.
static AT_ONCE: AtomicBool = AtomicBool::new(true);

/// The same of SIGQUIT, which nobody else takes.
static QUITS_AT_ONCE: AtomicBool = AtomicBool::new(true);

/// The signal that has come and waits; 0 if there is none.
static LAST: AtomicUsize = AtomicUsize::new(0);

/// Readable when a signal has come.
static CAME: OnceLock<UnixStream> = OnceLock::new();

/// The kernel spares the first process of a PID namespace, as the program of a container is, signals that it does not
/// handle: it could not be interrupted while it unlocks a volume. This has them end it, with 128 and their number, until
/// somebody takes them.
pub(crate) fn end_by_signals_as_init() -> io::Result<()> {
    if process::id() != 1 {
        return Ok(());
    }
    for signal in [SIGHUP, SIGINT, SIGTERM, SIGQUIT].into_iter().filter(|it| !is_ignored(*it)) {
        let at_once = if signal == SIGQUIT { &QUITS_AT_ONCE } else { &AT_ONCE };
        register_conditional_shutdown(signal, 128 + signal, at_once)?;
    }
    Ok(())
}

/// Ends the process as a signal does that nobody handles. Returns only where the signal is blocked.
pub(crate) fn end_by(signal: i32) {
    if process::id() == 1 {
        // It would be spared the signal, and crash instead.
        exit(128 + signal);
    }
    let _ = emulate_default_handler(signal);
}

/// From now on, somebody else takes the signals that end the program.
pub(crate) fn leave_signals() {
    AT_ONCE.store(false, Ordering::SeqCst);
}

/// While somebody types, signals that end the program wait: first the terminal has to be as before.
struct Signals {
    came: &'static UnixStream,
    at_once: bool,
}

impl Signals {
    fn catch() -> io::Result<Self> {
        let came = if let Some(came) = CAME.get() {
            came
        } else {
            let (came, wake) = UnixStream::pair()?;
            came.set_nonblocking(true)?;
            // One that whoever started this process has it ignore stays ignored, also by the server it becomes.
            let signals = [SIGHUP, SIGINT, SIGTERM, SIGQUIT];
            for signal in signals.into_iter().filter(|it| !is_ignored(*it)) {
                let at_once = if signal == SIGQUIT { &QUITS_AT_ONCE } else { &AT_ONCE };
                register_conditional_default(signal, at_once)?;
                register_usize(signal, &LAST, signal.unsigned_abs() as usize)?;
                pipe::register(signal, wake.try_clone()?)?;
            }
            CAME.get_or_init(|| came)
        };
        let at_once = AT_ONCE.swap(false, Ordering::SeqCst);
        QUITS_AT_ONCE.store(false, Ordering::SeqCst);
        // What came before was for somebody else.
        LAST.store(0, Ordering::SeqCst);
        while (&mut &*came).read(&mut [0; 64]).is_ok_and(|len| len > 0) {}
        Ok(Self { came, at_once })
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        AT_ONCE.store(self.at_once, Ordering::SeqCst);
        QUITS_AT_ONCE.store(true, Ordering::SeqCst);
        let last = i32::try_from(LAST.swap(0, Ordering::SeqCst)).unwrap_or(0);
        let ends = last > 0 && (self.at_once || last == SIGQUIT);
        if ends {
            end_by(last);
        }
    }
}

/// The special keys of this terminal; 0 for those that are off.
#[derive(Debug, Clone, Copy)]
struct Keys {
    interrupt: u8,
    quit: u8,
    suspend: u8,
    end: u8,
    erase: u8,
    erase_word: u8,
    erase_line: u8,
    literal: u8,
}

impl Keys {
    fn of(modes: &Termios) -> Self {
        let key = |index| modes.special_codes[index];
        Self {
            interrupt: key(SpecialCodeIndex::VINTR),
            quit: key(SpecialCodeIndex::VQUIT),
            suspend: key(SpecialCodeIndex::VSUSP),
            end: key(SpecialCodeIndex::VEOF),
            erase: key(SpecialCodeIndex::VERASE),
            erase_word: key(SpecialCodeIndex::VWERASE),
            erase_line: key(SpecialCodeIndex::VKILL),
            literal: key(SpecialCodeIndex::VLNEXT),
        }
    }
}

/// A line that is being typed.
struct Line {
    keys: Keys,
    typed: Secret,
    /// Whether the next key is taken literally.
    literal: bool,
}

impl Line {
    fn new(keys: Keys) -> Self {
        Self { keys, typed: Zeroizing::new(Vec::with_capacity(LINE_MAX)), literal: false }
    }

    /// Takes a key. Returns how the line ends, if it does.
    fn take(&mut self, key: u8) -> Option<End> {
        let keys = self.keys;
        if std::mem::take(&mut self.literal) {
            self.add(key);
            return None;
        }
        match key {
            b'\n' | b'\r' => return Some(End::Done),
            0 => self.add(key),
            key if key == keys.interrupt => return Some(End::Interrupt),
            key if key == keys.quit => return Some(End::Quit),
            key if key == keys.suspend => return Some(End::Suspend),
            key if key == keys.end && self.typed.is_empty() => return Some(End::Input),
            key if key == keys.end => return Some(End::Done),
            key if key == keys.erase_line => self.typed.clear(),
            key if key == keys.erase_word => self.erase_word(),
            key if key == keys.literal => self.literal = true,
            // Accept both: the key often sends the one that the terminal is not set to.
            8 | 127 => self.erase(),
            key if key == keys.erase => self.erase(),
            key => self.add(key),
        }
        None
    }

    fn add(&mut self, key: u8) {
        // The line must not grow: what it leaves behind would not be wiped.
        if self.typed.len() < LINE_MAX {
            self.typed.push(key);
        }
    }

    /// Removes the last character: all its bytes if they are UTF-8, or else one byte.
    fn erase(&mut self) {
        let len = self.typed.len();
        let is_whole = |bytes: &usize| std::str::from_utf8(&self.typed[len - bytes..]).is_ok();
        let last = (1..=len.min(4)).find(is_whole).unwrap_or(1);
        self.typed.truncate(len.saturating_sub(last));
    }

    fn erase_word(&mut self) {
        let word = self.typed.trim_ascii_end();
        let start = word.iter().rposition(u8::is_ascii_whitespace).map_or(0, |space| space + 1);
        self.typed.truncate(start);
    }
}

/// Turns the terminal's echo off until dropped.
struct Quiet<'a> {
    terminal: BorrowedFd<'a>,
    before: Termios,
}

impl<'a> Quiet<'a> {
    fn new(terminal: BorrowedFd<'a>) -> io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut quiet = before.clone();
        quiet.local_modes -=
            LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG | LocalModes::IEXTEN;
        quiet.special_codes[SpecialCodeIndex::VMIN] = 1;
        quiet.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(terminal, OptionalActions::Flush, &quiet)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        // Nothing better can be done if the terminal is gone.
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux's settings of a new terminal.
    const KEYS: Keys = Keys {
        interrupt: 3,
        quit: 28,
        suspend: 26,
        end: 4,
        erase: 127,
        erase_word: 23,
        erase_line: 21,
        literal: 22,
    };

    fn typed(keys: &[u8]) -> (Option<End>, Vec<u8>) {
        let mut line = Line::new(KEYS);
        let end = keys.iter().find_map(|key| line.take(*key));
        (end, line.typed.to_vec())
    }

    #[test]
    fn what_was_typed_can_be_corrected() {
        for (keys, line) in [
            (&b"abd\x7fc\n"[..], &b"abc"[..]),
            (b"abd\x08c\n", b"abc"),
            (b"\x7f\x7fa\n", b"a"),
            (b"wrong\x15right\n", b"right"),
            (b"right word wrong \x17\n", b"right word "),
            (b"one\x17\x17two\r", b"two"),
            (b"ctrl\x16\x03\n", b"ctrl\x03"),
            (b"partly\x04", b"partly"),
        ] {
            assert_eq!(typed(keys), (Some(End::Done), line.to_vec()), "{keys:?}");
        }
    }

    #[test]
    fn backspace_takes_a_character_and_not_a_byte_of_it() {
        for character in ["e", "ä", "€", "🔑"] {
            let keys = format!("pass{character}\x7fword\n");
            assert_eq!(typed(keys.as_bytes()).1, b"password", "{character}");
        }
        // Bytes that are no UTF-8, one by one.
        assert_eq!(typed(b"a\xe4\xf6\x7f\n").1, b"a\xe4");
    }

    #[test]
    fn keys_that_end_or_stop_a_program_are_no_part_of_a_passphrase() {
        assert_eq!(typed(b"secret\x03").0, Some(End::Interrupt));
        assert_eq!(typed(b"secret\x1c").0, Some(End::Quit));
        assert_eq!(typed(b"secret\x1a").0, Some(End::Suspend));
        assert_eq!(typed(b"\x04").0, Some(End::Input));
        let off = Keys { suspend: 0, ..KEYS };
        let mut line = Line::new(off);
        assert_eq!(line.take(0), None);
        assert_eq!(line.take(26), None);
        assert_eq!(*line.typed, [0, 26]);
    }

    #[test]
    fn a_line_that_is_too_long_stays_in_its_memory_and_can_be_corrected() {
        let (end, line) = typed(&[b'x'; LINE_MAX + 9]);
        assert_eq!((end, line.len()), (None, LINE_MAX));
        let mut line = Line::new(KEYS);
        let place = line.typed.as_ptr();
        let keys = [&[b'x'; TYPED_MAX + 2][..], &[127; 5], b"y\n"].concat();
        assert_eq!(keys.iter().find_map(|key| line.take(*key)), Some(End::Done));
        assert_eq!((line.typed.len(), line.typed.last()), (TYPED_MAX - 2, Some(&b'y')));
        assert_eq!(line.typed.as_ptr(), place, "it has grown");
    }
}
