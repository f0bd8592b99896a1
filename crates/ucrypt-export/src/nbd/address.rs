//! Where a server listens, and the sockets for that.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen};

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket at this path, for this user only.
    Unix(PathBuf),
    /// `HOST:PORT` on TCP. Every address of the host must be loopback; port 0 takes a free one.
    Tcp(String),
}

/// Why an address cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// Neither form.
    #[error("'{0}' is no NBD address; use unix:PATH or tcp:HOST:PORT")]
    Syntax(String),
    /// The address would send plaintext over a network.
    #[error(
        "{0} is not a loopback address: NBD beyond loopback needs TLS, which ucrypt does not have; use a Unix socket or 127.0.0.1 and forward it, for example with ssh -L"
    )]
    NotLoopback(SocketAddr),
    /// The host has no address.
    #[error("'{0}' has no address")]
    NoAddress(String),
    /// Somebody listens there.
    #[error("{0} is in use by another server; choose another path or end that server")]
    InUse(PathBuf),
    /// A file that is no socket is in the way.
    #[error("{0} exists and is not a socket; choose another path or remove it")]
    NotASocket(PathBuf),
    /// The system refused.
    #[error("cannot listen on {address}: {source}")]
    Io {
        /// Where.
        address: Address,
        /// Why.
        source: io::Error,
    },
}

impl FromStr for Address {
    type Err = AddressError;

    /// Reads `unix:PATH` or `tcp:HOST:PORT`.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let syntax = || AddressError::Syntax(text.to_owned());
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
        }
    }
}

/// A socket that listens.
pub(super) struct Listener {
    pub(super) socket: OwnedFd,
    /// For clients, as the NBD URI specification has it.
    pub(super) uri: String,
    pub(super) tcp: bool,
    /// The file of a Unix socket, and its inode while it is ours.
    file: Option<(PathBuf, u64)>,
}

impl Listener {
    pub(super) fn open(address: &Address) -> Result<Self, AddressError> {
        let io = |source| AddressError::Io { address: address.clone(), source };
        match address {
            Address::Unix(path) => {
                remove_stale(path)?;
                let socket = listen_unix(path).map_err(|errno| io(errno.into()))?;
                let inode = path.symlink_metadata().map_err(io)?.ino();
                let uri = format!("nbd+unix:///?socket={}", percent_encode(path));
                Ok(Self { socket, uri, tcp: false, file: Some((path.clone(), inode)) })
            }
            Address::Tcp(host_port) => {
                let all: Vec<_> = host_port.to_socket_addrs().map_err(io)?.collect();
                let beyond = all.iter().find(|one| !one.ip().to_canonical().is_loopback());
                if let Some(beyond) = beyond {
                    return Err(AddressError::NotLoopback(*beyond));
                }
                let first =
                    all.first().ok_or_else(|| AddressError::NoAddress(host_port.clone()))?;
                let listener = TcpListener::bind(first).map_err(io)?;
                listener.set_nonblocking(true).map_err(io)?;
                let uri = format!("nbd://{}", listener.local_addr().map_err(io)?);
                Ok(Self { socket: listener.into(), uri, tcp: true, file: None })
            }
        }
    }
}

impl Drop for Listener {
    /// Removes the socket's file, unless another server has put its own there.
    fn drop(&mut self) {
        if let Some((path, inode)) = &self.file
            && path.symlink_metadata().is_ok_and(|meta| meta.ino() == *inode)
        {
            // Best effort: a file that stays is recognised as stale by the next server.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Removes the socket of a server that is gone.
fn remove_stale(path: &Path) -> Result<(), AddressError> {
    let Ok(meta) = path.symlink_metadata() else { return Ok(()) };
    if !meta.file_type().is_socket() {
        return Err(AddressError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            let address = Address::Unix(path.to_owned());
            std::fs::remove_file(path).map_err(|source| AddressError::Io { address, source })
        }
        _ => Err(AddressError::InUse(path.to_owned())),
    }
}

fn listen_unix(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Before bind, so that the file never has another mode. Whoever may connect sees plaintext.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
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
    use std::os::unix::fs::PermissionsExt;

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
    fn tcp_beyond_loopback_is_refused() {
        for beyond in ["tcp:0.0.0.0:0", "tcp:192.0.2.1:0", "tcp:[::]:0", "tcp:[2001:db8::1]:0"] {
            assert!(matches!(tcp(beyond), Err(AddressError::NotLoopback(_))), "{beyond}");
        }
        let listener = tcp("tcp:127.0.0.1:0").expect("loopback");
        assert!(listener.uri.starts_with("nbd://127.0.0.1:") && !listener.uri.ends_with(":0"));
    }

    #[test]
    fn a_unix_socket_is_private_and_goes_with_its_listener() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a b.sock");
        let address = Address::Unix(path.clone());
        let listener = Listener::open(&address).expect("a listener");
        let mode = path.symlink_metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(listener.uri.ends_with("/a%20b.sock"));
        assert!(matches!(Listener::open(&address), Err(AddressError::InUse(_))));
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_file_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("sock");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        assert!(path.exists(), "the standard library leaves its socket behind");
        let listener = Listener::open(&Address::Unix(path.clone())).expect("a listener");
        drop(listener);
        std::fs::write(&path, "mine").expect("written");
        let refused = Listener::open(&Address::Unix(path.clone()));
        assert!(matches!(refused, Err(AddressError::NotASocket(_))));
        assert_eq!(std::fs::read(&path).expect("read"), b"mine");
    }
}
