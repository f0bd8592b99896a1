//! Tells a service manager what a server does: `sd_notify`(3), whose protocol is a datagram of lines.
//!
//! The watchdog is served only while the volume gets on. A request that is under way while no other one
//! ends, and no part of one is transformed, keeps the server from saying that it is well.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use ucrypt_engine::Volume;

use crate::ending::END_LIMIT;
use crate::failure::Failure;

/// How often the watchdog is served, as a part of its time.
const BEATS: u32 = 4;

/// How long a manager may take to take a message.
const PATIENCE: Duration = Duration::from_secs(5);

/// How much longer than its own limit the end of a server may take for the watchdog.
const SLACK: Duration = Duration::from_secs(60);

/// The service manager of this process, if it has one that listens.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    socket: Option<UnixDatagram>,
}

impl Notifier {
    /// The manager that the environment names. It is connected now, because a server leaves the mounts
    /// of its user.
    pub(crate) fn of_service() -> Self {
        let connected = || {
            let place = std::env::var_os("NOTIFY_SOCKET")?;
            let address = match place.as_bytes() {
                [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok()?,
                [b'/', ..] => SocketAddr::from_pathname(&place).ok()?,
                _ => return None,
            };
            let socket = UnixDatagram::unbound().ok()?;
            socket.connect_addr(&address).ok()?;
            // A manager that takes nothing must not block the server for long.
            socket.set_write_timeout(Some(PATIENCE)).ok()?;
            Some(socket)
        };
        Self { socket: connected() }
    }

    fn tell(&self, lines: &str) {
        if let Some(socket) = &self.socket {
            // Nobody else can be told.
            let _ = socket.send(lines.as_bytes());
        }
    }

    /// The device can be used.
    pub(crate) fn ready(&self, what: &str) {
        self.tell(&format!("READY=1\nSTATUS={}", one_line(what)));
    }

    /// The volume ends, which takes at most as long as its end may take.
    pub(crate) fn stopping(&self) {
        let limit = (END_LIMIT + SLACK).as_micros();
        self.tell(&format!("STOPPING=1\nSTATUS=writes what is left\nWATCHDOG_USEC={limit}"));
    }

    /// Shows why the service failed.
    pub(crate) fn failed(&self, failure: &Failure) {
        if !failure.message.is_empty() {
            self.tell(&format!("STATUS={}", one_line(&failure.message)));
        }
    }

    /// What serves the watchdog, if the service has one.
    pub(crate) fn heartbeat(&self) -> Heartbeat {
        let is_ours =
            std::env::var("WATCHDOG_PID").map_or(true, |pid| pid.parse() == Ok(std::process::id()));
        let time = std::env::var("WATCHDOG_USEC").ok().and_then(|time| time.parse::<u64>().ok());
        let time = time.filter(|time| *time > 0 && is_ours && self.socket.is_some());
        Heartbeat {
            every: time.map(|time| Duration::from_micros(time) / BEATS),
            next: None,
            progress: Progress::default(),
        }
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// Serves the watchdog of a service.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    every: Option<Duration>,
    next: Option<Instant>,
    progress: Progress,
}

impl Heartbeat {
    /// Serves the watchdog if it is time to, and if the volume gets on. Returns when it is time again.
    pub(crate) fn beat(&mut self, notifier: &Notifier, volume: &Volume) -> Option<Instant> {
        let every = self.every?;
        let now = Instant::now();
        if let Some(next) = self.next.filter(|next| now < *next) {
            return Some(next);
        }
        let (totals, meters) = (volume.totals(), volume.meters());
        let ended = [totals.reads, totals.writes, totals.flushes, totals.discards, totals.errors];
        // One request may write gigabytes of zeroes: it gets on as long as its chunks do.
        let chunks = [meters.inline, meters.workers];
        let chunks = chunks.map(|it| it.encrypted.wrapping_add(it.decrypted));
        let done = ended.into_iter().chain(chunks).fold(0, u64::wrapping_add);
        if self.progress.gets_on(done, volume.is_at_work()) {
            notifier.tell("WATCHDOG=1");
        }
        self.next = Some(now + every);
        self.next
    }
}

/// Whether requests end.
#[derive(Debug, Default)]
struct Progress {
    done: u64,
}

impl Progress {
    /// `done`: how many, and how many parts of them, have ended so far. `at_work`: whether one is under way.
    fn gets_on(&mut self, done: u64, at_work: bool) -> bool {
        let before = std::mem::replace(&mut self.done, done);
        !at_work || done != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_gets_on_if_it_is_idle_or_its_requests_end() {
        let mut progress = Progress::default();
        assert!(progress.gets_on(0, false), "nothing to do");
        assert!(progress.gets_on(7, true), "seven have ended");
        assert!(!progress.gets_on(7, true), "one is under way, and none has ended");
        assert!(!progress.gets_on(7, true));
        assert!(progress.gets_on(8, true));
        assert!(progress.gets_on(8, false));
    }

    #[test]
    fn a_manager_gets_one_line_a_field_and_none_is_no_error() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let notifier = Notifier { socket: Some(ours) };
        notifier.failed(&Failure::denied("no\nkey"));
        notifier.ready("/dev/ucrypt/x");
        let mut buf = [0; 200];
        let len = theirs.recv(&mut buf).unwrap();
        assert_eq!(&buf[..len], b"STATUS=no key");
        let len = theirs.recv(&mut buf).unwrap();
        assert_eq!(&buf[..len], b"READY=1\nSTATUS=/dev/ucrypt/x");
        drop(theirs);
        notifier.stopping();
        Notifier::default().stopping();
    }
}
