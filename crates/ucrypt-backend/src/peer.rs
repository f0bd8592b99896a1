//! Who is at the other end of a Unix socket.
//!
//! The kernel names a process of another PID namespace, which has no number here, by 0. rustix reads that
//! number into a type that is never 0, so this module asks itself.

#![expect(unsafe_code, reason = "rustix has no type for a process that cannot be seen")]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// The process that has connected a Unix socket, or that listens there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its effective user when it connected or began to listen, as seen from here.
    pub user: u32,
    /// Its number; `None` if it has none in the PID namespace of this process.
    pub process: Option<u32>,
}

impl Peer {
    /// The other end of a connected Unix socket (`SO_PEERCRED`, unix(7)).
    ///
    /// # Errors
    /// The system's; a socket of another kind has no such option.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `found`, three numbers of which each value is
        // valid, and the length to `len`. The descriptor is open during the call.
        let asked = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut len,
            )
        };
        if asked == -1 {
            return Err(io::Error::last_os_error());
        }
        let process = u32::try_from(found.pid).ok().filter(|number| *number != 0);
        Ok(Self { user: found.uid, process })
    }
}

/// Whether a user number, as seen from here, is for certain that of this process. In a user namespace the
/// kernel shows all users without a number there as one (`overflowuid`, `user_namespaces(7)`), which may be
/// this process's own.
pub fn is_this_user(user: u32) -> bool {
    let read = |file| std::fs::read_to_string(file).unwrap_or_default();
    let in_namespace = || {
        let map = read("/proc/self/uid_map");
        !map.is_empty() && map.split_whitespace().ne(["0", "0", "4294967295"])
    };
    let overflow = || read("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(65534);
    user == rustix::process::geteuid().as_raw() && !(user == overflow() && in_namespace())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_other_end_is_this_process_and_a_file_has_none() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let peer = Peer::of(&one).expect("a peer");
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(peer, Peer { user, process: Some(std::process::id()) });
        assert!(Peer::of(std::fs::File::open("/dev/null").expect("open")).is_err());
    }
}
