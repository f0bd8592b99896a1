//! Locks against other users of an image.
//!
//! Image files carry QEMU's byte locks (`block/file-posix.c`: one byte per permission; the
//! permissions that a user uses from byte 100, those that it does not share from byte 200). They
//! keep QEMU, its tools and a second ucrypt away. cryptsetup, which locks the whole file with
//! `flock`, can still read the header of an open volume.
//!
//! The kernel gives such a lock free when nobody has the open file any more. A process that was
//! forked has it for as long as it lives, and does not know of it. So who took the lock gives it
//! free by its own ([`Locked`]), for all that share the open file, and a child does not.

#![expect(unsafe_code, reason = "rustix has no locks of open file descriptions")]

use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, statx};
use rustix::process::{Pid, getpid};

use crate::Errno;

/// Permissions by bit, as QEMU numbers them.
const CONSISTENT_READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

const USED: i64 = 100;
const UNSHARED: i64 = 200;

fn range(start: i64) -> libc::flock {
    libc::flock {
        l_type: libc::F_RDLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: 1,
        l_pid: 0,
    }
}

fn take(fd: BorrowedFd<'_>, byte: i64) -> Result<(), Errno> {
    fcntl(fd, libc::F_OFD_SETLK, &mut range(byte))
}

/// Whether no other holder has the byte.
fn is_free(fd: BorrowedFd<'_>, byte: i64) -> Result<bool, Errno> {
    let mut lock = range(byte);
    lock.l_type = libc::F_WRLCK as libc::c_short;
    fcntl(fd, libc::F_OFD_GETLK, &mut lock)?;
    Ok(lock.l_type == libc::F_UNLCK as libc::c_short)
}

/// Calls one of the commands for locks of open file descriptions.
fn fcntl(fd: BorrowedFd<'_>, command: libc::c_int, lock: &mut libc::flock) -> Result<(), Errno> {
    // SAFETY: these commands access only the structure, which is exclusively theirs during the
    // call.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut *lock) };
    match result {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        _ => Ok(()),
    }
}

/// The descriptor of an image, with its lock if it has one.
pub(super) struct Locked {
    fd: OwnedFd,
    /// The process that has taken the lock.
    holder: Option<Pid>,
}

impl Locked {
    pub(super) fn without(fd: OwnedFd) -> Self {
        Self { fd, holder: None }
    }

    /// With the lock that this process has taken.
    #[cfg(test)]
    pub(super) fn of(fd: OwnedFd, holder: Pid) -> Self {
        Self { fd, holder: Some(holder) }
    }

    /// Locks the image as [`acquire`] does. Returns whether it has the lock now.
    pub(super) fn lock(&mut self, read_only: bool, patience: Duration) -> Result<bool, Errno> {
        let is_locked = acquire(self.fd.as_fd(), read_only, patience)?;
        self.holder = is_locked.then(getpid);
        Ok(is_locked)
    }
}

impl AsFd for Locked {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Locked {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.holder == Some(getpid()) {
            // If this fails, the lock goes with the last descriptor.
            let _ = release(self.fd.as_fd());
        }
    }
}

/// How long to wait for another holder. A server that was just killed holds its image until the
/// kernel has ended the operations in flight, as it should.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
pub(super) const PAUSE: Duration = Duration::from_millis(10);

/// Locks the image for this process; `false` if another holder still has it after `patience`. The
/// lock lives as long as the open file description. File systems without locks let everyone in.
fn acquire(fd: BorrowedFd<'_>, read_only: bool, patience: Duration) -> Result<bool, Errno> {
    let until = Instant::now() + patience;
    loop {
        let taken = match attempt(fd, read_only) {
            Err(Errno::AGAIN | Errno::ACCESS) => false,
            Err(Errno::INVAL | Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => true,
            other => other?,
        };
        if taken {
            return Ok(true);
        }
        // Two processes that wait for each other would wait for ever; and who goes on without the lock has no part of it.
        release(fd)?;
        if Instant::now() >= until {
            return Ok(false);
        }
        std::thread::sleep(PAUSE);
    }
}

fn attempt(fd: BorrowedFd<'_>, read_only: bool) -> Result<bool, Errno> {
    let used: &[i64] = if read_only { &[CONSISTENT_READ] } else { &[CONSISTENT_READ, WRITE] };
    let unshared: &[i64] = &[WRITE, RESIZE];
    // First lock, then check: of two that lock at the same time, at least one sees the other.
    for bit in used {
        take(fd, USED + bit)?;
    }
    for bit in unshared {
        take(fd, UNSHARED + bit)?;
    }
    let conflicts =
        unshared.iter().map(|bit| USED + bit).chain(used.iter().map(|bit| UNSHARED + bit));
    for byte in conflicts {
        if !is_free(fd, byte)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Releases all bytes.
fn release(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut all = range(USED);
    (all.l_type, all.l_len) = (libc::F_UNLCK as libc::c_short, 2 * (UNSHARED - USED));
    fcntl(fd, libc::F_OFD_SETLK, &mut all)
}

/// The loop device attached to the file, if any: by this name or another.
pub(super) fn loop_device_of(path: &Path, fd: BorrowedFd<'_>) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let file = statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::NLINK).ok()?;
    let devices = fs::read_dir("/sys/block").ok()?;
    devices.filter_map(Result::ok).find_map(|device| {
        let name = device.file_name().into_string().ok().filter(|name| name.starts_with("loop"))?;
        let backing = fs::read(device.path().join("loop/backing_file")).ok()?;
        let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
        let backing = Path::new(OsStr::from_bytes(backing));
        // A hard link has any name, and another mount another directory. Other files are not looked at:
        // that could wait for a server that does not answer.
        let may_be = file.stx_nlink > 1 || backing.file_name() == path.file_name();
        let is_it = backing == path || may_be && is_file(backing, &file);
        is_it.then(|| format!("/dev/{name}"))
    })
}

/// Whether the path leads to the file.
fn is_file(path: &Path, file: &Statx) -> bool {
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO);
    found.is_ok_and(|found| {
        let of = |stat: &Statx| (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino);
        of(&found) == of(file)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who went on without the lock, because it may share the image, held a part of it for ever.
    #[test]
    fn an_attempt_that_fails_leaves_no_byte_locked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        fs::write(&path, []).unwrap();
        let open = || fs::File::options().read(true).write(true).open(&path).unwrap();
        let (other, ours, third) = (open(), open(), open());
        // The byte of a program that lets nobody share it.
        let mut byte = range(UNSHARED + WRITE);
        byte.l_type = libc::F_WRLCK as libc::c_short;
        fcntl(other.as_fd(), libc::F_OFD_SETLK, &mut byte).unwrap();
        assert_eq!(acquire(ours.as_fd(), true, Duration::ZERO), Ok(false));
        for byte in [CONSISTENT_READ, WRITE, RESIZE] {
            assert_eq!(is_free(third.as_fd(), USED + byte), Ok(true));
        }
        assert_eq!(is_free(third.as_fd(), UNSHARED + RESIZE), Ok(true));
        drop(other);
        assert_eq!(acquire(ours.as_fd(), true, Duration::ZERO), Ok(true));
        assert_eq!(is_free(third.as_fd(), USED + CONSISTENT_READ), Ok(false));
    }
}
