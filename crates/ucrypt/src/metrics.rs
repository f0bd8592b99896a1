//! `--metrics`: what a server does, for Prometheus.
//!
//! One thread answers one client at a time, from counters that the queues keep anyway. It shares
//! nothing with the threads that serve the volume but the memory of these counters.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::SystemTime;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, fstat, openat, statat, unlinkat};
use ucrypt_engine::Volume;
use ucrypt_export::UnixSocket;
use ucrypt_export::nbd::Admitted;

use crate::failure::Failure;
use crate::volume::{Facts, Opened};

mod http;
mod text;

/// Where metrics are served.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Operation")]
pub(crate) struct MetricsArgs {
    /// Serve metrics for Prometheus by HTTP on HOST:PORT or unix:PATH
    #[arg(long, value_name = "HOST:PORT|unix:PATH")]
    metrics: Option<Place>,
    /// Serve metrics also on an address that other machines reach; they tell who asks how much is
    /// read and written, and when
    #[arg(long, requires = "metrics")]
    metrics_any_host: bool,
}

/// An address for metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// A Unix socket at this absolute path, for this user and root.
    Unix(PathBuf),
    /// `HOST:PORT`; port 0 takes a free one.
    Tcp(String),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no address; use HOST:PORT, :PORT or unix:PATH");
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(wrong());
            }
            return std::path::absolute(path).map(Self::Unix).map_err(|error| error.to_string());
        }
        let text = text.strip_prefix("tcp:").unwrap_or(text);
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        if port.parse::<u16>().is_err() {
            return Err(wrong());
        }
        // A port alone is not to be one that others reach.
        Ok(Self::Tcp(if host.is_empty() { format!("127.0.0.1:{port}") } else { text.into() }))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(host_port) => f.write_str(host_port),
        }
    }
}

/// A listening socket. Does not block.
enum Listener {
    Unix(UnixSocket),
    Tcp(TcpListener),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(socket) => socket.as_fd(),
            Self::Tcp(socket) => socket.as_fd(),
        }
    }
}

impl MetricsArgs {
    /// Refuses an address that cannot be used, before a passphrase is asked for.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if matches!(self.metrics, Some(Place::Unix(_))) && self.metrics_any_host {
            return Err(Failure::wrong(
                "--metrics-any-host has no effect on a Unix socket; leave it out",
            ));
        }
        // Only a test: the server listens for good.
        self.listen().map(drop)
    }

    fn resolve(&self, host_port: &str) -> Result<SocketAddr, Failure> {
        let failed = |why: String| Failure::wrong(format!("--metrics {host_port}: {why}"));
        let all: Vec<_> =
            host_port.to_socket_addrs().map_err(|error| failed(error.to_string()))?.collect();
        let beyond = all.iter().find(|one| !one.ip().to_canonical().is_loopback());
        if let (Some(beyond), false) = (beyond, self.metrics_any_host) {
            return Err(failed(format!(
                "{beyond} can be reached from other machines, which nothing protects; use \
                 127.0.0.1 or unix:PATH, or allow it with --metrics-any-host"
            )));
        }
        all.first().copied().ok_or_else(|| failed("this host has no address".into()))
    }

    /// Listens, if that is asked for: nobody is answered before [`Bound::serve`].
    pub(crate) fn listen(&self) -> Result<Option<Bound>, Failure> {
        let Some(place) = &self.metrics else { return Ok(None) };
        let failed = |error: io::Error| {
            let why = format!("cannot serve metrics on {place}: {error}");
            match error.kind() {
                io::ErrorKind::AddrInUse => Failure::busy(why),
                io::ErrorKind::PermissionDenied => Failure::denied(why),
                _ => Failure::device(why),
            }
        };
        let bound = match place {
            Place::Unix(path) => {
                let listener = Listener::Unix(UnixSocket::listen(path)?);
                let file = SocketFile::of(path).map_err(failed)?;
                Bound { listener, place: place.to_string(), file: Some(file) }
            }
            Place::Tcp(host_port) => {
                let listener = TcpListener::bind(self.resolve(host_port)?).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                let place = listener.local_addr().map_err(failed)?;
                let place = format!("http://{place}/metrics");
                Bound { listener: Listener::Tcp(listener), place, file: None }
            }
        };
        Ok(Some(bound))
    }
}

/// The file of a Unix socket, which is removed with it. The server may have left the mounts of its
/// user when it ends, and then finds no path there.
struct SocketFile {
    dir: OwnedFd,
    name: OsString,
    /// While it is open, no other file gets its numbers, whoever has removed it.
    file: OwnedFd,
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        let parts = path.parent().zip(path.file_name());
        let (dir, name) = parts.ok_or(io::ErrorKind::InvalidInput)?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let dir = openat(CWD, dir, flags | OFlags::DIRECTORY, Mode::empty())?;
        let file = openat(&dir, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Self { dir, name: name.into(), file })
    }

    /// Whether the file is still at its place.
    fn is_there(&self) -> bool {
        let numbers = |file: Stat| (file.st_dev, file.st_ino);
        let found = statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW).map(numbers);
        fstat(&self.file).map(numbers).is_ok_and(|own| found == Ok(own))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_there() {
            // Best effort: the next server recognises a leftover file as stale.
            let _ = unlinkat(&self.dir, &self.name, AtFlags::empty());
        }
    }
}

/// A socket on which metrics will be served.
pub(crate) struct Bound {
    listener: Listener,
    place: String,
    file: Option<SocketFile>,
}

impl Bound {
    /// Starts to serve. `name` is the volume's.
    pub(crate) fn serve(
        self,
        name: &str,
        export: &str,
        opened: &Opened,
        clients: Vec<Clients>,
    ) -> Result<Metrics, Failure> {
        let failed = |error| Failure::device(format!("cannot serve metrics: {error}"));
        let subject = Subject {
            name: name.into(),
            export: export.into(),
            facts: opened.facts.clone(),
            volume: opened.volume.clone(),
            started: SystemTime::now(),
            clients,
        };
        let Self { listener, place, file } = self;
        let (ended, end) = io::pipe().map_err(failed)?;
        let serve = move || http::serve(&listener, &ended, |out| text::write(&subject, out));
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(serve);
        let thread = Some(thread.map_err(failed)?);
        Ok(Metrics { place, end: Some(end), thread, _file: file })
    }
}

/// Counts the clients of an export.
pub(crate) struct Clients {
    pub(crate) export: &'static str,
    pub(crate) count: Box<dyn Fn() -> Admitted + Send + Sync>,
}

/// What metrics are about.
struct Subject {
    name: String,
    export: String,
    facts: Facts,
    volume: Arc<Volume>,
    started: SystemTime,
    clients: Vec<Clients>,
}

/// Metrics that are being served, until this is dropped. It holds the volume until then.
pub(crate) struct Metrics {
    place: String,
    /// Closing it ends the thread.
    end: Option<io::PipeWriter>,
    thread: Option<JoinHandle<()>>,
    _file: Option<SocketFile>,
}

impl Metrics {
    /// Where they are served: an URL, or `unix:PATH`.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been told already and leaves nothing to do.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(place: &str, any: bool) -> MetricsArgs {
        MetricsArgs { metrics: Some(place.parse().unwrap()), metrics_any_host: any }
    }

    #[test]
    fn addresses_are_read_as_the_command_line_has_them() {
        let tcp = |text: &str| Place::Tcp(text.into());
        assert_eq!("127.0.0.1:9".parse(), Ok(tcp("127.0.0.1:9")));
        assert_eq!("tcp:[::1]:9".parse(), Ok(tcp("[::1]:9")));
        assert_eq!(":9".parse(), Ok(tcp("127.0.0.1:9")));
        assert_eq!("unix:/run/x".parse(), Ok(Place::Unix("/run/x".into())));
        for bad in ["", "unix:", "9", "host", "host:port", "127.0.0.1:99999"] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_socket_that_another_has_put_in_the_place_of_a_removed_one_stays() {
        // File systems of disks give the next file the number of a removed one at once.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let first = UnixSocket::listen(&path).unwrap();
        let file = SocketFile::of(&path).unwrap();
        drop(first);
        let _second = UnixSocket::listen(&path).unwrap();
        drop(file);
        assert!(path.exists(), "it was another's");
    }

    #[test]
    fn what_other_machines_reach_has_to_be_asked_for() {
        for beyond in ["0.0.0.0:0", "192.0.2.1:0", "[::]:0", "[2001:db8::1]:0"] {
            let refused = args(beyond, false).check().unwrap_err();
            assert!(refused.message.contains("--metrics-any-host"), "{refused}");
            assert!(args(beyond, true).resolve(beyond).is_ok(), "{beyond}");
        }
        assert!(args("127.0.0.1:0", false).check().is_ok());
        assert!(args("unix:/run/x", true).check().is_err());
    }
}
