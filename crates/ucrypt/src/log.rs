//! What a server says while it runs: one line for each event, with a level.
//!
//! A server installs a [`Log`] once it serves. Until then, and in actions of the foreground, events
//! are messages on standard error like any other, except those of level [`Level::Info`], which are
//! not said.
//!
//! A file gets its lines as they are. The system's log and the journal get datagrams from a thread,
//! to which the lines travel as JSON through a pipe. That pipe is also the standard error of a
//! server in the background, so that what is not an event (an abort of the C library) is logged too.

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use rustix::fs::OFlags;
use serde_json::{Value, json};

use crate::failure::{Failure, without_numbers};
use crate::stdio;
use crate::volume::is_same;

/// The system's log takes datagrams here (RFC 3164, as syslog(3) sends them).
const SYSLOG: &str = "/dev/log";

/// The journal takes datagrams here (systemd's native journal protocol).
const JOURNAL: &str = "/run/systemd/journal/socket";

/// `LOG_DAEMON` of syslog(3).
const DAEMON: u8 = 3 << 3;

/// Longest message in bytes: a line and its fields fit into a datagram, and into one write of a pipe.
const MESSAGE_MAX: usize = 2048;

/// How long a line may wait for a log that takes nothing: a pipe whose reader stands still.
const PATIENCE: Duration = Duration::from_secs(1);

/// How much an event matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Level {
    /// Data may be lost, or the volume cannot be used
    Error,
    /// Something is wrong, and the volume goes on
    Warning,
    /// Clients that come and go, and what the user has asked for
    Info,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }

    /// As syslog(3) numbers it.
    fn priority(self) -> u8 {
        match self {
            Self::Error => 3,
            Self::Warning => 4,
            Self::Info => 6,
        }
    }
}

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// Time, level and message
    #[default]
    Text,
    /// An object: time, level, event, volume, message
    Json,
}

/// Where lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum To {
    Stderr,
    Syslog,
    Journal,
    File(PathBuf),
}

/// Where a server says what happens, and how.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Operation")]
pub(crate) struct LogArgs {
    /// Where the server says what happens: syslog, journal, stderr or a file
    ///
    /// Without this option, `open` logs to a file in the runtime directory, which stays if something
    /// was logged, and `serve` to standard error.
    #[arg(long, value_name = "syslog|journal|stderr|FILE")]
    log: Option<To>,
    /// One line an event: as text, or as a JSON object
    #[arg(long, value_name = "text|json", hide_possible_values = true)]
    log_format: Option<Format>,
    /// Log only what matters so much; without it warning, and info with --log
    #[arg(long, value_name = "error|warning|info", hide_possible_values = true)]
    log_level: Option<Level>,
}

impl LogArgs {
    /// Opens the log of the volume `volume`; without `--log` it goes to `usual`.
    pub(crate) fn open(&self, usual: To, volume: &str) -> Result<Log, Failure> {
        let usual_level = if self.log.is_some() { Level::Info } else { Level::Warning };
        let to = self.log.clone().unwrap_or(usual);
        let (written, sender) = to.open(self.format())?;
        Ok(Log {
            to,
            format: self.format(),
            level: self.log_level.unwrap_or(usual_level),
            volume: volume.into(),
            written,
            sender,
            has_stderr: false,
            is_stuck: Mutex::default(),
        })
    }

    /// Fails if the log that the user chose cannot be written, or is one of the `files` that a volume
    /// is made of or opened with.
    pub(crate) fn check<'a>(
        &self,
        files: impl IntoIterator<Item = &'a Path>,
    ) -> Result<(), Failure> {
        let Some(to) = &self.log else { return Ok(()) };
        if let To::File(log) = to
            && let Some(file) = files.into_iter().find(|file| is_same(log, file))
        {
            let (log, file) = (log.display(), file.display());
            return Err(Failure::wrong(format!(
                "the log {log} would be written into {file}, which the volume needs; use --log with \
                 another file"
            )));
        }
        to.open(self.format()).map(drop)
    }

    /// Whether the user wants it on standard error, or `serve` logs there anyway.
    pub(crate) fn is_stderr(&self) -> bool {
        matches!(self.log, None | Some(To::Stderr))
    }

    fn format(&self) -> Format {
        self.log_format.unwrap_or_default()
    }
}

impl FromStr for To {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "syslog" => Ok(Self::Syslog),
            "journal" => Ok(Self::Journal),
            "stderr" => Ok(Self::Stderr),
            "" => Err("name a file, or syslog, journal or stderr".into()),
            file => std::path::absolute(file).map(Self::File).map_err(|error| error.to_string()),
        }
    }
}

impl To {
    fn open(&self, format: Format) -> Result<(Option<OwnedFd>, Option<JoinHandle<()>>), Failure> {
        let sent = |(written, sender)| (Some(written), Some(sender));
        let opened = match self {
            Self::Stderr => Ok((None, None)),
            Self::File(path) => open_file(path).map(|file| (Some(file), None)),
            Self::Syslog => {
                open_sender(self.place(), move |event| for_syslog(event, format)).map(sent)
            }
            Self::Journal => {
                open_sender(self.place(), move |event| for_journal(event, format)).map(sent)
            }
        };
        opened.map_err(|error| {
            Failure::device(format!(
                "cannot log to {}: {error}; use --log FILE with a file that can be written",
                self.place().display()
            ))
        })
    }

    fn place(&self) -> &Path {
        match self {
            Self::Stderr => Path::new("stderr"),
            Self::File(path) => path,
            Self::Syslog => Path::new(SYSLOG),
            Self::Journal => Path::new(JOURNAL),
        }
    }

    /// For `status`.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Stderr => "standard error".into(),
            Self::Syslog => "syslog".into(),
            Self::Journal => "journal".into(),
            Self::File(path) => path.display().to_string(),
        }
    }
}

/// An open log.
pub(crate) struct Log {
    to: To,
    format: Format,
    /// What matters less is not logged.
    level: Level,
    volume: String,
    /// The end to write to; `None` is standard error.
    written: Option<OwnedFd>,
    sender: Option<JoinHandle<()>>,
    /// Standard error was redirected to it.
    has_stderr: bool,
    /// The last line was lost because the log took nothing. One line is written at a time: what is free
    /// for one need not be free for two.
    is_stuck: Mutex<bool>,
}

/// The log of this process.
static LOG: RwLock<Option<Log>> = RwLock::new(None);

impl Log {
    /// From now on, events go to this log, and panics too.
    pub(crate) fn install(self) {
        *LOG.write().unwrap_or_else(PoisonError::into_inner) = Some(self);
        std::panic::set_hook(Box::new(|panic| event(Level::Error, "panic", panic)));
    }

    /// Redirects standard error to the log.
    pub(crate) fn take_stderr(&mut self) -> io::Result<()> {
        if let Some(written) = &self.written {
            rustix::stdio::dup2_stderr(written)?;
            self.has_stderr = true;
        }
        Ok(())
    }

    pub(crate) fn to(&self) -> &To {
        &self.to
    }

    /// Writes one event. Ignores errors: there is nobody else to tell. The line is lost if the log takes
    /// nothing: whoever reads it must not keep the server, or its end, waiting.
    fn write(&self, level: Level, event: &str, message: &str) {
        let line = self.line(level, event, message);
        let stream = match &self.written {
            Some(written) => written.as_fd(),
            None => rustix::stdio::stderr(),
        };
        let mut is_stuck = self.is_stuck.lock().unwrap_or_else(PoisonError::into_inner);
        let patience = if *is_stuck { Duration::ZERO } else { PATIENCE };
        *is_stuck = !stdio::offer(stream, &line, patience);
    }

    fn line(&self, level: Level, event: &str, message: &str) -> String {
        let is_sent = matches!(self.to, To::Syslog | To::Journal);
        if is_sent || self.format == Format::Json {
            let event = json!({
                "time": utc(SystemTime::now()),
                "level": level.name(),
                "event": event,
                "volume": self.volume,
                "message": message,
            });
            return format!("{event}\n");
        }
        match self.to {
            // As messages of the foreground look.
            To::Stderr => format!("ucrypt: {message}\n"),
            _ => format!("{} {}: {message}\n", utc(SystemTime::now()), level.name()),
        }
    }
}

/// Says that something has happened: in the log if there is one, else on standard error. `kind` names
/// the event for programs.
pub(crate) fn event(level: Level, kind: &str, message: impl Display) {
    match &*LOG.read().unwrap_or_else(PoisonError::into_inner) {
        Some(log) if level <= log.level => {
            log.write(level, kind, &one_line(&without_numbers(message)));
        }
        None if level <= Level::Warning => {
            stdio::say(&format!("ucrypt: {}\n", without_numbers(message)));
        }
        Some(_) | None => {}
    }
}

/// Waits until all lines have arrived, and closes the log. Later events are messages on standard
/// error again, which goes nowhere if the log had it.
pub(crate) fn finish() -> io::Result<()> {
    let log = LOG.write().unwrap_or_else(PoisonError::into_inner).take();
    let Some(Log { written, sender, has_stderr, .. }) = log else { return Ok(()) };
    if has_stderr {
        // Else the sender would wait for the end of what this process could still write.
        rustix::stdio::dup2_stderr(File::options().write(true).open("/dev/null")?)?;
    }
    drop(written);
    if let Some(sender) = sender {
        // A sender that panicked sends nothing more.
        let _ = sender.join();
    }
    Ok(())
}

/// A message without line ends and control characters, cut to [`MESSAGE_MAX`].
fn one_line(message: &str) -> String {
    let mut line: String =
        message.trim_end().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.len() > MESSAGE_MAX {
        let end = (0..=MESSAGE_MAX).rev().find(|end| line.is_char_boundary(*end));
        line.truncate(end.unwrap_or(0));
    }
    line
}

fn open_file(path: &Path) -> io::Result<OwnedFd> {
    // A pipe without a reader is an error, and nothing to wait for.
    let no_wait = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().create(true).append(true).custom_flags(no_wait).open(path)?;
    if file.metadata()?.file_type().is_block_device() {
        // A log would overwrite it from its start.
        return Err(io::Error::other("it is a disk"));
    }
    Ok(file.into())
}

/// Opens a pipe whose lines a thread of its own sends to a socket, as `datagram` makes them.
fn open_sender(
    place: &Path,
    datagram: impl Fn(&Value) -> String + Send + 'static,
) -> io::Result<(OwnedFd, JoinHandle<()>)> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(place)?;
    // A log that takes nothing must not block the server: its lines are lost.
    socket.set_nonblocking(true)?;
    let (lines, written) = io::pipe()?;
    let place = place.to_owned();
    let send = move || {
        for line in BufReader::new(lines).split(b'\n').map_while(Result::ok) {
            let datagram = datagram(&received(&line));
            let sent = socket.send(datagram.as_bytes());
            // A log that was started anew has another socket at the same place. If there is none, the line
            // is lost; there is nobody else to tell.
            if sent.is_err_and(|error| has_gone(&error)) && socket.connect(&place).is_ok() {
                let _ = socket.send(datagram.as_bytes());
            }
        }
    };
    let sender = std::thread::Builder::new().name("log".into()).spawn(send)?;
    Ok((written.into(), sender))
}

/// Whether nobody has the other socket any more.
fn has_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotConnected)
}

/// The event of a line. A line that is none comes from elsewhere, for example from the C library.
fn received(line: &[u8]) -> Value {
    let event = serde_json::from_slice::<Value>(line).ok();
    event.filter(|event| event["message"].is_string()).unwrap_or_else(|| {
        let message = one_line(&String::from_utf8_lossy(line));
        json!({ "level": Level::Error.name(), "event": "unknown", "message": message })
    })
}

fn priority(event: &Value) -> u8 {
    let level = Level::value_variants().iter().find(|level| event["level"] == level.name());
    level.copied().unwrap_or(Level::Error).priority()
}

/// What the log shows of an event.
fn shown(event: &Value, format: Format) -> String {
    match format {
        Format::Json => event.to_string(),
        Format::Text => event["message"].as_str().unwrap_or_default().to_owned(),
    }
}

fn for_syslog(event: &Value, format: Format) -> String {
    let priority = DAEMON | priority(event);
    format!("<{priority}>ucrypt[{}]: {}", std::process::id(), shown(event, format))
}

/// One field a line. No value has a line end: [`one_line`] took them out, and JSON escapes them.
fn for_journal(event: &Value, format: Format) -> String {
    let text = |key: &str| event[key].as_str().unwrap_or_default();
    format!(
        "PRIORITY={}\nSYSLOG_IDENTIFIER=ucrypt\nSYSLOG_PID={}\nUCRYPT_EVENT={}\nUCRYPT_VOLUME={}\n\
         MESSAGE={}\n",
        priority(event),
        std::process::id(),
        text("event"),
        one_line(text("volume")),
        shown(event, format)
    )
}

/// A time as RFC 3339 has it, in UTC and milliseconds.
fn utc(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86400, since.as_secs() % 86400);
    let (year, month, day) = date(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_millis()
    )
}

/// The date so many days after 1 January 1970.
fn date(mut days: u64) -> (u64, usize, u64) {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let mut year = 1970;
    loop {
        let len = 365 + u64::from(is_leap(year));
        if days < len {
            break;
        }
        days -= len;
        year += 1;
    }
    let lens = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lens[month] {
        days -= lens[month];
        month += 1;
    }
    (year, month + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn log(to: To, format: Format) -> Log {
        let volume = "work".into();
        let (level, is_stuck) = (Level::Info, Mutex::default());
        Log { to, format, level, volume, written: None, sender: None, has_stderr: false, is_stuck }
    }

    #[test]
    fn a_log_is_the_systems_or_a_file_wherever_it_is_named_from() {
        assert_eq!("syslog".parse(), Ok(To::Syslog));
        assert_eq!("journal".parse(), Ok(To::Journal));
        assert_eq!("stderr".parse(), Ok(To::Stderr));
        assert_eq!("/var/log/x".parse(), Ok(To::File("/var/log/x".into())));
        let relative: To = "x".parse().unwrap();
        assert!(matches!(relative, To::File(path) if path.is_absolute()));
        assert!("".parse::<To>().is_err());
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |seconds: u64| utc(UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 7));
        // Of date(1).
        assert_eq!(at(0), "1970-01-01T00:00:00.007Z");
        assert_eq!(at(951_827_696), "2000-02-29T12:34:56.007Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59.007Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.007Z");
    }

    #[test]
    fn an_event_is_one_line_whatever_is_in_its_message() {
        let text = log(To::File("x".into()), Format::Text).line(Level::Error, "e", "message");
        assert!(text.ends_with("Z error: message\n"), "{text}");
        assert_eq!(one_line("two\nlines\x1b[31m\n"), "two lines [31m");
        assert_eq!(one_line(&"ä".repeat(MESSAGE_MAX)).len(), MESSAGE_MAX);
        let line = log(To::Stderr, Format::Json).line(Level::Info, "e", "a \"quoted\" one");
        let event: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&event["level"], &event["volume"]), (&json!("info"), &json!("work")));
        assert_eq!(event["message"], "a \"quoted\" one");
    }

    #[test]
    fn the_systems_logs_get_the_level_and_the_journal_the_fields() {
        let line = log(To::Journal, Format::Text).line(Level::Warning, "client", "gone");
        let event = received(line.trim_end().as_bytes());
        let pid = std::process::id();
        assert_eq!(for_syslog(&event, Format::Text), format!("<28>ucrypt[{pid}]: gone"));
        let fields = for_journal(&event, Format::Text);
        for field in ["PRIORITY=4", "UCRYPT_EVENT=client", "UCRYPT_VOLUME=work", "MESSAGE=gone"] {
            assert!(fields.lines().any(|line| line == field), "{field} in {fields}");
        }
        // What is no event is an error, and adds no fields.
        for foreign in [&b"free(): invalid pointer"[..], b"\xff{\"level\":1}", b"{}", b"3", b""] {
            let event = received(foreign);
            assert_eq!(priority(&event), 3);
            assert_eq!(for_journal(&event, Format::Text).lines().count(), 6);
        }
    }

    #[test]
    fn a_log_that_takes_nothing_loses_lines_and_keeps_nobody_waiting() {
        let (mut lines, written) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&written, true).unwrap();
        let mut full = 0;
        while let Ok(count) = io::Write::write(&mut &written, &[b'x'; 4096]) {
            full += count;
        }
        // As a program that is started with a pipe has it.
        rustix::io::ioctl_fionbio(&written, false).unwrap();
        let log = log(To::File("pipe".into()), Format::Text);
        let log = Log { written: Some(written.into()), ..log };
        for _ in 0..20 {
            log.write(Level::Error, "e", "lost");
        }
        io::Read::read_exact(&mut lines, &mut vec![0; full]).unwrap();
        log.write(Level::Error, "e", "said");
        drop(log);
        let mut said = String::new();
        io::Read::read_to_string(&mut lines, &mut said).unwrap();
        assert!(said.ends_with("error: said\n") && !said.contains("lost"), "{said}");
    }

    #[test]
    fn a_system_log_that_was_started_anew_gets_what_comes_then() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("log");
        let bound = || {
            let socket = UnixDatagram::bind(&place).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            socket
        };
        let first = bound();
        let (written, sender) =
            open_sender(&place, |event| event["message"].as_str().unwrap().to_owned()).unwrap();
        let say = |text: &str| {
            let line = log(To::Syslog, Format::Text).line(Level::Info, "e", text);
            stdio::offer(&written, &line, PATIENCE)
        };
        let heard = |socket: &UnixDatagram| {
            let mut buf = [0; 100];
            let len = socket.recv(&mut buf).expect("a line");
            String::from_utf8_lossy(&buf[..len]).into_owned()
        };
        assert!(say("one"));
        assert_eq!(heard(&first), "one");
        drop(first);
        std::fs::remove_file(&place).unwrap();
        let second = bound();
        for text in ["two", "three"] {
            assert!(say(text));
            assert_eq!(heard(&second), text);
        }
        drop(written);
        sender.join().unwrap();
    }
}
