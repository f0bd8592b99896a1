//! The addresses that a server can listen on, and their sockets.

use std::env;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use listenfd::ListenFd;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

use crate::unix_socket::{SocketError, UnixSocket};

/// How [`Address::Service`] is written.
const SERVICE: &str = "systemd";

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket at this path, for this user only.
    Unix(PathBuf),
    /// `HOST:PORT` on TCP. Every address of the host must be loopback; port 0 takes a free one.
    Tcp(String),
    /// The socket on which a service manager listens, and which it passes on (`sd_listen_fds`(3)): the
    /// first one. Its mode decides who may connect to a Unix socket; TCP must be loopback.
    Service,
}

/// Why an address cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// The text has neither form.
    #[error(
        "'{0}' is no NBD address; use unix:PATH or tcp:HOST:PORT, or systemd for the socket of a unit"
    )]
    Syntax(String),
    /// No service manager has passed a socket on.
    #[error(
        "no service manager has passed a listening stream socket on to this process; start it by a socket unit, or use unix:PATH"
    )]
    NoService,
    /// The address would send plaintext over a network.
    #[error(
        "{0} is not a loopback address: NBD beyond loopback needs TLS, which ucrypt does not have; use a Unix socket or 127.0.0.1 and forward it, for example with ssh -L"
    )]
    NotLoopback(SocketAddr),
    /// The host has no address.
    #[error("'{0}' has no address")]
    NoAddress(String),
    /// The Unix socket cannot be used.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The system refused.
    #[error("cannot listen on {address}: {source}{}", remedy(.source))]
    Io {
        /// Where.
        address: Address,
        /// Why.
        source: io::Error,
    },
}

/// What to do where the system refuses a port, if that is known.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; another program listens there: choose another port",
        io::ErrorKind::PermissionDenied => "; choose a port from 1024 on",
        _ => "",
    }
}

impl FromStr for Address {
    type Err = AddressError;

    /// Reads `unix:PATH`, `tcp:HOST:PORT` or `systemd`.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let syntax = || AddressError::Syntax(text.to_owned());
        if text == SERVICE {
            return Ok(Self::Service);
        }
        match text.split_once(':').ok_or_else(syntax)? {
            ("unix", path) if !path.is_empty() => Ok(Self::Unix(path.into())),
            ("tcp", host_port) => {
                let (host, port) = host_port.rsplit_once(':').ok_or_else(syntax)?;
                if host.is_empty() || port.parse::<u16>().is_err() {
                    return Err(syntax());
                }
                Ok(Self::Tcp(host_port.to_owned()))
            }
            _ => Err(syntax()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(host_port) => write!(f, "tcp:{host_port}"),
            Self::Service => f.write_str(SERVICE),
        }
    }
}

impl Address {
    /// Whether a server could listen here now. Nobody can connect meanwhile.
    ///
    /// # Errors
    /// As [`Server::start`](super::Server::start).
    pub fn check(&self) -> Result<(), AddressError> {
        match self {
            Self::Unix(path) => Ok(UnixSocket::check(path)?),
            Self::Tcp(host_port) => {
                let address = self.loopback(host_port)?;
                bind_only(&address).map_err(|errno| self.refused(errno.into()))
            }
            // Only looked at: who takes the sockets clears the variable.
            Self::Service if is_passed_on() => Ok(()),
            Self::Service => Err(AddressError::NoService),
        }
    }

    /// The first address of the host, all of which must be loopback.
    fn loopback(&self, host_port: &str) -> Result<SocketAddr, AddressError> {
        let all: Vec<_> =
            host_port.to_socket_addrs().map_err(|error| self.refused(error))?.collect();
        if let Some(beyond) = all.iter().find(|one| !one.ip().to_canonical().is_loopback()) {
            return Err(AddressError::NotLoopback(*beyond));
        }
        all.first().copied().ok_or_else(|| AddressError::NoAddress(host_port.to_owned()))
    }

    fn refused(&self, source: io::Error) -> AddressError {
        AddressError::Io { address: self.clone(), source }
    }
}

/// Whether a service manager has passed sockets on, and to this process.
fn is_passed_on() -> bool {
    let ours = std::process::id().to_string();
    env::var_os("LISTEN_FDS").is_some() && env::var_os("LISTEN_PID").is_none_or(|pid| *pid == *ours)
}

/// Binds a socket that does not listen, so that nobody can connect, and closes it.
fn bind_only(address: &SocketAddr) -> Result<(), Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // As listeners of the standard library: a port that was closed a moment ago is free.
    set_socket_reuseaddr(&socket, true)?;
    bind(&socket, address)
}

/// A listening socket.
pub(super) struct Listener {
    socket: Socket,
    /// For clients, in the form of the NBD URI specification.
    pub(super) uri: String,
}

enum Socket {
    Unix(UnixSocket),
    Tcp(OwnedFd),
    /// A Unix socket that belongs to the service manager, as does its file.
    OfService(OwnedFd),
}

impl Listener {
    pub(super) fn open(address: &Address) -> Result<Self, AddressError> {
        let io = |source| address.refused(source);
        match address {
            Address::Unix(path) => {
                let socket = UnixSocket::listen(path)?;
                let uri = format!("nbd+unix:///?socket={}", percent_encode(socket.path()));
                Ok(Self { socket: Socket::Unix(socket), uri })
            }
            Address::Tcp(host_port) => {
                let listener = TcpListener::bind(address.loopback(host_port)?).map_err(io)?;
                listener.set_nonblocking(true).map_err(io)?;
                let uri = format!("nbd://{}", listener.local_addr().map_err(io)?);
                Ok(Self { socket: Socket::Tcp(listener.into()), uri })
            }
            Address::Service => Self::of_service(&mut ListenFd::from_env()),
        }
    }

    /// The first socket of those that the service manager has passed on.
    fn of_service(passed: &mut ListenFd) -> Result<Self, AddressError> {
        let io = |source| AddressError::Io { address: Address::Service, source };
        if let Ok(Some(listener)) = passed.take_unix_listener(0) {
            listener.set_nonblocking(true).map_err(io)?;
            let address = listener.local_addr().map_err(io)?;
            let path = address.as_pathname().map(percent_encode).unwrap_or_default();
            let uri = format!("nbd+unix:///?socket={path}");
            return Ok(Self { socket: Socket::OfService(listener.into()), uri });
        }
        let Ok(Some(listener)) = passed.take_tcp_listener(0) else {
            return Err(AddressError::NoService);
        };
        let address = listener.local_addr().map_err(io)?;
        if !address.ip().to_canonical().is_loopback() {
            return Err(AddressError::NotLoopback(address));
        }
        listener.set_nonblocking(true).map_err(io)?;
        Ok(Self { socket: Socket::Tcp(listener.into()), uri: format!("nbd://{address}") })
    }

    pub(super) fn is_tcp(&self) -> bool {
        matches!(self.socket, Socket::Tcp(_))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Unix(socket) => socket.as_fd(),
            Socket::Tcp(socket) | Socket::OfService(socket) => socket.as_fd(),
        }
    }
}

fn percent_encode(path: &Path) -> String {
    let encode = |byte: &u8| match byte {
        b'/' | b'-' | b'.' | b'_' | b'~' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
            char::from(*byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    path.as_os_str().as_bytes().iter().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(text: &str) -> Result<Listener, AddressError> {
        Listener::open(&text.parse().expect("an address"))
    }

    #[test]
    fn addresses_are_read_as_the_command_line_has_them() {
        assert_eq!("unix:/run/x".parse::<Address>().ok(), Some(Address::Unix("/run/x".into())));
        let tcp = "tcp:[::1]:10809".parse::<Address>().expect("an address");
        assert_eq!(tcp.to_string(), "tcp:[::1]:10809");
        for bad in ["", "unix:", "/run/x", "tcp:host", "tcp::1", "tcp:host:port", "udp:h:1"] {
            assert!(matches!(bad.parse::<Address>(), Err(AddressError::Syntax(_))), "{bad}");
        }
    }

    #[test]
    fn without_a_service_manager_there_is_no_socket_of_one() {
        let address: Address = "systemd".parse().expect("an address");
        assert_eq!(address.to_string(), "systemd");
        let none = Listener::of_service(&mut ListenFd::empty());
        assert!(matches!(none, Err(AddressError::NoService)));
    }

    #[test]
    fn tcp_beyond_loopback_is_refused() {
        for beyond in ["tcp:0.0.0.0:0", "tcp:192.0.2.1:0", "tcp:[::]:0", "tcp:[2001:db8::1]:0"] {
            let refused = tcp(beyond).err().expect("refused");
            assert!(matches!(refused, AddressError::NotLoopback(_)), "{beyond}");
            assert!(refused.to_string().contains("needs TLS"), "{refused}");
        }
        let listener = tcp("tcp:127.0.0.1:0").expect("loopback");
        assert!(listener.uri.starts_with("nbd://127.0.0.1:") && !listener.uri.ends_with(":0"));
    }

    #[test]
    fn a_check_finds_what_listening_would_and_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let free = Address::Unix(dir.path().join("sock"));
        free.check().expect("free");
        assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 0);
        let taken = Listener::open(&free).expect("a listener");
        assert!(matches!(free.check(), Err(AddressError::Socket(SocketError::InUse(_)))));
        drop(taken);
        free.check().expect("free again");
        let missing = Address::Unix(dir.path().join("no/sock"));
        assert!(matches!(missing.check(), Err(AddressError::Socket(SocketError::Io { .. }))));

        let taken = tcp("tcp:127.0.0.1:0").expect("loopback");
        let place = taken.uri.replace("nbd://", "tcp:").parse::<Address>().expect("an address");
        assert!(matches!(place.check(), Err(AddressError::Io { .. })));
        drop(taken);
        place.check().expect("free again");
        let beyond: Address = "tcp:192.0.2.1:0".parse().expect("an address");
        assert!(matches!(beyond.check(), Err(AddressError::NotLoopback(_))));
    }

    #[test]
    fn a_unix_socket_has_an_uri_for_any_path() {
        let dir = tempfile::tempdir().expect("a directory");
        let address = Address::Unix(dir.path().join("a b.sock"));
        let listener = Listener::open(&address).expect("a listener");
        assert!(listener.uri.ends_with("/a%20b.sock"));
        let again = Listener::open(&address);
        assert!(matches!(again, Err(AddressError::Socket(SocketError::InUse(_)))));
    }
}
