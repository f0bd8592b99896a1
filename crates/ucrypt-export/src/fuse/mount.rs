//! One file mounted over another, and taken away again.

use std::ffi::CString;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, unmount};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};

pub(super) const DEVICE: &str = "/dev/fuse";

/// Mounts over `path` and returns the server's side of the connection. The file belongs to the
/// user of this process; nobody else gets at it.
pub(super) fn mount(path: &Path, read_only: bool) -> io::Result<OwnedFd> {
    match mount_as_root(path, read_only) {
        Err(Errno::PERM | Errno::ACCESS) => mount_by_helper(path, read_only),
        mounted => Ok(mounted?),
    }
}

fn mount_as_root(path: &Path, read_only: bool) -> Result<OwnedFd, Errno> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    // The root is a regular file; the kernel checks permissions by its mode and owner.
    let options = format!(
        "fd={},rootmode=100600,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        user.as_raw(),
        group.as_raw()
    );
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, read_only);
    rustix::mount::mount("ucrypt", path, "fuse.ucrypt", flags, options.as_c_str())?;
    Ok(device)
}

/// Without root: the setuid program mounts, and sends the descriptor over a socket, which it gets
/// as its standard input.
fn mount_by_helper(path: &Path, read_only: bool) -> io::Result<OwnedFd> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let mut options = String::from("fsname=ucrypt,subtype=ucrypt,noatime,default_permissions");
    if read_only {
        options.push_str(",ro");
    }
    let ran = Command::new("fusermount3")
        .args(["-o", &options, "--"])
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .output()?;
    if !ran.status.success() {
        let said = String::from_utf8_lossy(&ran.stderr);
        return Err(io::Error::other(said.trim().to_owned()));
    }
    receive_descriptor(&ours)
}

fn receive_descriptor(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [io::IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    recvmsg(socket.as_fd(), &mut parts, &mut ancillary, flags)?;
    ancillary
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        })
        .ok_or_else(|| io::Error::other("fusermount3 mounted but sent no descriptor"))
}

/// Takes a mount away from its path, whether or not its server is alive or it is in use.
pub fn unmount_stale(path: &Path) {
    if unmount(path, UnmountFlags::DETACH) == Err(Errno::PERM) {
        // Says nothing and fails if nothing is mounted there, which is what is wanted.
        let mut helper = Command::new("fusermount3");
        let _ = helper.args(["-u", "-z", "-q", "--"]).arg(path).stderr(Stdio::null()).status();
    }
}

/// Unmounts without force; `false` if it is in use.
pub(super) fn unmount_unused(path: &Path) -> bool {
    match unmount(path, UnmountFlags::NOFOLLOW) {
        Ok(()) => true,
        Err(Errno::PERM) => {
            let mut helper = Command::new("fusermount3");
            helper
                .arg("-u")
                .arg(path)
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
        }
        // Not mounted any more counts as unmounted.
        Err(error) => error == Errno::INVAL,
    }
}

/// Makes the file to mount over if there is none. Returns whether it did.
pub(super) fn prepare(path: &Path) -> io::Result<bool> {
    let mut found = fs::metadata(path);
    if found.as_ref().is_err_and(|error| Errno::from_io_error(error) == Some(Errno::NOTCONN)) {
        // A server that was killed left its mount.
        unmount_stale(path);
        found = fs::metadata(path);
    }
    match found {
        Ok(found) if found.is_file() && found.len() == 0 => Ok(false),
        Ok(found) if found.is_file() => Err(io::Error::other(
            "the file has content, which the mount would hide; name an empty or a new file",
        )),
        Ok(_) => Err(io::Error::other("it exists and is no regular file; name a new file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::OpenOptions::new().write(true).create_new(true).open(path).map(|_| true)
        }
        Err(error) => Err(error),
    }
}

/// Cores that the kernel may ever have, for each of which it has a queue.
pub(super) fn possible_cores() -> io::Result<u16> {
    let list = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count_list(list.trim()).ok_or_else(|| io::Error::other("a list of cores that is none"))
}

/// Numbers in a list as `0-3,8`.
fn count_list(list: &str) -> Option<u16> {
    list.split(',').try_fold(0u16, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        count.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_counted_from_the_kernels_list() {
        assert_eq!(count_list("0"), Some(1));
        assert_eq!(count_list("0-1"), Some(2));
        assert_eq!(count_list("0-3,8,10-11"), Some(7));
        for wrong in ["", "a", "3-1", "0-", "0-65535"] {
            assert_eq!(count_list(wrong), None, "{wrong}");
        }
    }
}
