//! Who else uses an image.
//!
//! Image files carry QEMU's byte locks (`block/file-posix.c`: one byte per permission from 100 for
//! what a user does, from 200 for what it does not let others do), so that QEMU, its tools and a
//! second ucrypt keep away, while cryptsetup, which locks the whole file by `flock`, can still read
//! the header of a volume that is open.

use std::fs;
use std::os::fd::BorrowedFd;
use std::path::Path;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

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
    fcntl(fd, FcntlArg::F_OFD_SETLK(&range(byte))).map(drop).map_err(errno)
}

/// Whether nobody else holds the byte.
fn is_free(fd: BorrowedFd<'_>, byte: i64) -> Result<bool, Errno> {
    let mut lock = range(byte);
    lock.l_type = libc::F_WRLCK as libc::c_short;
    fcntl(fd, FcntlArg::F_OFD_GETLK(&mut lock)).map_err(errno)?;
    Ok(lock.l_type == libc::F_UNLCK as libc::c_short)
}

fn errno(error: nix::errno::Errno) -> Errno {
    Errno::from_raw_os_error(error as i32)
}

/// Takes the image for this process; `false` if somebody else has it. The lock lives as long as
/// the open file description. File systems without locks let everyone in.
pub(super) fn acquire(fd: BorrowedFd<'_>, read_only: bool) -> Result<bool, Errno> {
    let used: &[i64] = if read_only { &[CONSISTENT_READ] } else { &[CONSISTENT_READ, WRITE] };
    let unshared: &[i64] = &[WRITE, RESIZE];
    let attempt = || -> Result<bool, Errno> {
        for bit in used {
            take(fd, USED + bit)?;
        }
        for bit in unshared {
            take(fd, UNSHARED + bit)?;
        }
        for bit in unshared {
            if !is_free(fd, USED + bit)? {
                return Ok(false);
            }
        }
        for bit in used {
            if !is_free(fd, UNSHARED + bit)? {
                return Ok(false);
            }
        }
        Ok(true)
    };
    match attempt() {
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(Errno::INVAL | Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(true),
        other => other,
    }
}

/// The loop device that is attached to the file, if any.
pub(super) fn loop_device_of(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let devices = fs::read_dir("/sys/block").ok()?;
    devices.filter_map(Result::ok).find_map(|device| {
        let name = device.file_name().into_string().ok().filter(|name| name.starts_with("loop"))?;
        let backing = fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        (Path::new(backing.trim_end_matches('\n')) == path).then(|| format!("/dev/{name}"))
    })
}
