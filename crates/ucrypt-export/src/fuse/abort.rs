//! Aborts a connection whose requests can no longer be answered.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::device::Device;

/// Where systemd mounts the file system of FUSE connections.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Ends one connection of an export to the kernel: programs that wait for an answer get an error. It holds the
/// connection's control file open, so it ends no other connection that gets the same number later.
#[derive(Debug, Clone)]
pub struct Abort(Arc<File>);

impl Abort {
    /// For the connection with this number, which must exist now.
    ///
    /// # Errors
    /// Without root, an error if the file system of connections is not mounted.
    pub(super) fn of(connection: u32) -> io::Result<Self> {
        let open = |connections: &Path| {
            let file = connections.join(connection.to_string()).join("abort");
            Ok(Self(Arc::new(File::options().write(true).open(file)?)))
        };
        // A mount of our own first: the other one must not be in use because of us.
        own_connections()
            .map_err(io::Error::from)
            .and_then(|mount| open(Path::new(&format!("/proc/self/fd/{}", mount.as_raw_fd()))))
            .or_else(|_| open(Path::new(CONNECTIONS)))
    }

    /// Fails every present and future request of the connection. Does nothing if it has ended. Waits for nothing.
    ///
    /// # Errors
    /// The system's.
    pub fn now(&self) -> io::Result<()> {
        (&*self.0).write_all(b"1")
    }
}

/// The file system of connections, mounted nowhere.
fn own_connections() -> Result<OwnedFd, Errno> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

/// Fails every present and future request of the connection that `device` belongs to, unless it has ended.
///
/// # Errors
/// As [`Abort::of`]; `ENOENT` if the kernel does not report the connection's number: older kernels
/// with rings do not.
pub(super) fn abort(device: &Device) -> io::Result<()> {
    let number = device.as_raw_fd();
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
    let abort = Abort::of(connection(&facts).ok_or(Errno::NOENT)?)?;
    // The number of one that has ended may be another's. Asked after the file was opened: then it was this one's.
    if device.is_connected() { abort.now() } else { Ok(()) }
}

/// The connection's number in the kernel's facts (fdinfo) about a descriptor of `/dev/fuse`.
fn connection(facts: &str) -> Option<u32> {
    let line = facts.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_is_found_among_other_facts() {
        assert_eq!(connection("pos:\t0\nflags:\t02\nfuse_connection:\t47\n"), Some(47));
        for none in ["", "pos:\t0\n", "fuse_connection:\n", "fuse_connection:\t-1\n"] {
            assert_eq!(connection(none), None, "{none:?}");
        }
    }
}
