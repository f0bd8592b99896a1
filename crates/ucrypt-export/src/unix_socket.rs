//! Listening Unix sockets: private from the first moment, and removed with their server.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen};
use ucrypt_backend::lock_directory;

use crate::creatable::check_creatable;

/// Most clients that may wait to be accepted.
const BACKLOG: i32 = 128;

/// How long another server may take until it listens. Others lock directories for longer, for other reasons.
const TURN_PATIENCE: Duration = Duration::from_secs(2);

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Somebody listens there.
    #[error("{0} is in use by another server; choose another path or end that server")]
    InUse(PathBuf),
    /// A file that is no socket is in the way.
    #[error("{0} exists and is not a socket; choose another path or remove it")]
    NotASocket(PathBuf),
    /// The system refused.
    #[error("cannot listen on {path}: {source}{}", remedy(.source))]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What to do where the system refuses a socket, if that is known.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; make its directory first",
        io::ErrorKind::PermissionDenied => "; choose a directory in which you may write",
        _ => "",
    }
}

/// A socket that listens and does not block. Dropping it removes its file.
#[derive(Debug)]
pub struct UnixSocket {
    socket: OwnedFd,
    /// From the root on: the program may change its directory.
    path: PathBuf,
    /// The numbers of the file's device and of the file.
    identity: (u64, u64),
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    path.symlink_metadata().map(|meta| (meta.dev(), meta.ino()))
}

impl UnixSocket {
    /// Listens at `path`, for this user only; replaces the socket of a server that is gone.
    ///
    /// # Errors
    /// Somebody else listens there, another file is in the way, or the system refuses.
    pub fn listen(path: &Path) -> Result<Self, SocketError> {
        let failed = |source| SocketError::Io { path: path.to_owned(), source };
        // Before anything is made.
        let absolute = std::path::absolute(path).map_err(failed)?;
        let turn = turn(&absolute);
        remove_stale(path)?;
        let socket = bound(path).map_err(|errno| failed(errno.into()))?;
        let identity = identity(&absolute).map_err(failed)?;
        drop(turn);
        Ok(Self { socket, path: absolute, identity })
    }

    /// Where it listens, from the root on.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a socket could listen at `path` now. Nothing appears there meanwhile.
    ///
    /// # Errors
    /// As [`UnixSocket::listen`].
    pub fn check(path: &Path) -> Result<(), SocketError> {
        let failed = |source| SocketError::Io { path: path.to_owned(), source };
        SocketAddrUnix::new(path).map_err(|errno| failed(errno.into()))?;
        is_stale(path)?;
        check_creatable(path).map_err(failed)
    }
}

impl AsFd for UnixSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for UnixSocket {
    /// Removes the socket's file, unless another server has put its own there.
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            // Best effort: the next server recognises a leftover file as stale.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Has the servers that begin to listen in the directory of `path` do so one after the other: a socket that does
/// not listen yet looks stale, and one that replaces a stale one would be removed in its stead. `None` if the
/// directory cannot be locked in time: what can go wrong then takes microseconds.
fn turn(path: &Path) -> Option<File> {
    lock_directory(path.parent()?, TURN_PATIENCE)
}

/// Removes the socket of a server that is gone.
fn remove_stale(path: &Path) -> Result<(), SocketError> {
    if !is_stale(path)? {
        return Ok(());
    }
    std::fs::remove_file(path).map_err(|source| SocketError::Io { path: path.to_owned(), source })
}

/// Whether the socket of a server that is gone is at `path`. Anything else there is an error.
fn is_stale(path: &Path) -> Result<bool, SocketError> {
    let Ok(meta) = path.symlink_metadata() else { return Ok(false) };
    if !meta.file_type().is_socket() {
        return Err(SocketError::NotASocket(path.to_owned()));
    }
    match try_connect(path) {
        Ok(true) => Err(SocketError::InUse(path.to_owned())),
        Ok(false) => Ok(true),
        Err(errno) => Err(SocketError::Io { path: path.to_owned(), source: errno.into() }),
    }
}

/// Whether somebody listens at `path`. Does not wait: the clients of a server that stands still may
/// have taken all places.
fn try_connect(path: &Path) -> Result<bool, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(connect(&socket, &SocketAddrUnix::new(path)?) != Err(Errno::CONNREFUSED))
}

fn bound(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Before bind, so that the file never has another mode: whoever can connect sees plaintext.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::socket_with;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_socket_is_private_and_goes_with_its_listener() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("sock");
        let socket = UnixSocket::listen(&path).expect("a socket");
        let mode = path.symlink_metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(matches!(UnixSocket::listen(&path), Err(SocketError::InUse(_))));
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_relative_path_is_kept_from_the_root_on() {
        let dir = tempfile::tempdir().expect("a directory");
        let here = std::env::current_dir().expect("a directory");
        let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
        let relative = up.join(dir.path().strip_prefix("/").expect("absolute")).join("sock");
        let socket = UnixSocket::listen(&relative).expect("a socket");
        assert!(relative.is_relative() && socket.path().is_absolute(), "{:?}", socket.path());
        assert!(dir.path().join("sock").exists());
        drop(socket);
        assert!(!dir.path().join("sock").exists());
    }

    #[test]
    fn of_servers_that_find_a_stale_socket_at_once_one_has_the_place_and_keeps_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("sock");
        for round in 0..500 {
            // As a killed server leaves it.
            drop(bound(&path).expect("a socket"));
            let start = std::sync::Barrier::new(4);
            let listen = || {
                start.wait();
                UnixSocket::listen(&path)
            };
            let listeners: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(listen)).collect();
                threads.into_iter().map(|thread| thread.join().expect("it ends")).collect()
            });
            let has_place = |it: &&Result<UnixSocket, SocketError>| match it {
                Ok(_) => true,
                Err(SocketError::InUse(_)) => false,
                Err(error) => panic!("round {round}: {error}"),
            };
            assert_eq!(listeners.iter().filter(has_place).count(), 1, "round {round}");
            assert_eq!(try_connect(&path), Ok(true), "round {round}");
            drop(listeners);
            assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 0, "round {round}");
        }
    }

    #[test]
    fn a_server_that_stands_still_keeps_nobody_waiting_who_wants_its_place() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("sock");
        let still = UnixSocket::listen(&path).expect("a socket");
        let mut clients = Vec::new();
        let is_full = loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let client = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
            let client = client.expect("a socket");
            let address = SocketAddrUnix::new(&path).expect("an address");
            match connect(&client, &address) {
                Ok(()) if clients.len() < 10_000 => clients.push(client),
                refused => break refused == Err(Errno::AGAIN),
            }
        };
        assert!(is_full, "every place is taken");
        let (said, heard) = std::sync::mpsc::channel();
        let place = path.clone();
        let listen = move || said.send(UnixSocket::listen(&place).map(drop)).expect("a listener");
        let waits = std::thread::spawn(listen);
        let answer = heard.recv_timeout(Duration::from_secs(20));
        // Whoever still waits gets a place.
        drop(clients);
        drop(still);
        waits.join().expect("it ends");
        assert!(matches!(answer, Ok(Err(SocketError::InUse(_)))), "{answer:?}");
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_file_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("sock");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        assert!(path.exists(), "the standard library leaves its socket behind");
        drop(UnixSocket::listen(&path).expect("a socket"));
        std::fs::write(&path, "mine").expect("written");
        assert!(matches!(UnixSocket::listen(&path), Err(SocketError::NotASocket(_))));
        assert_eq!(std::fs::read(&path).expect("read"), b"mine");
    }
}
