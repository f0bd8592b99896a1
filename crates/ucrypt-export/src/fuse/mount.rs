//! Mounts one file over another, and unmounts it.

use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, unmount};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};
use ucrypt_backend::kernel_table;
use ucrypt_engine::count_cores;

use super::abort::Abort;
use super::mount_point::MountPoint;

pub(super) const DEVICE: &str = "/dev/fuse";

/// A flag of statx(2). A kernel that does not know it returns the mount ID that can be reused.
const STATX_MNT_ID_UNIQUE: u32 = 0x4000;

/// A file system that is mounted at a path.
#[derive(Debug)]
pub(super) struct Mounted {
    /// Its directory, which others may rename: an `O_PATH` descriptor.
    dir: OwnedFd,
    name: OsString,
    identity: Identity,
}

/// Distinguishes a mount from whatever others may mount at its path later.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    /// Major and minor device number of the file system; reused once the file system is gone.
    device: (u32, u32),
    /// Mount ID: never reused since Linux 6.8, 0 before 5.8.
    mount: u64,
}

/// Mounts over `place`. Also returns the server's side of the connection. The file belongs to the
/// user of this process; nobody else can access it.
pub(super) fn mount(place: &mut MountPoint, read_only: bool) -> io::Result<(Mounted, OwnedFd)> {
    let path = place.path().to_owned();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path.parent().unwrap_or(&path), flags, Mode::empty())?;
    let name = path.file_name().unwrap_or_default().to_owned();
    let device = match mount_as_root(place.path(), read_only) {
        Err(Errno::PERM | Errno::ACCESS) => {
            place.unlock()?;
            let device = mount_by_helper(place.path(), read_only);
            place.lock();
            device?
        }
        mounted => mounted?,
    };
    match identity(&path) {
        Ok(identity) => Ok((Mounted { dir, name, identity }, device)),
        Err(error) => {
            unmount_stale(&path);
            Err(error.into())
        }
    }
}

/// Identity of the mount that `path` leads to now. Does not wait for a server.
fn identity(path: &Path) -> Result<Identity, Errno> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW;
    let found = statx(CWD, path, flags, StatxFlags::from_bits_retain(STATX_MNT_ID_UNIQUE))?;
    let device = (found.stx_dev_major, found.stx_dev_minor);
    Ok(Identity { device, mount: found.stx_mnt_id })
}

impl Mounted {
    /// Where it was mounted, under the name that its directory has now.
    pub(super) fn path(&self) -> PathBuf {
        let dir = PathBuf::from(format!("/proc/self/fd/{}", self.dir.as_raw_fd()));
        fs::read_link(&dir).unwrap_or(dir).join(&self.name)
    }

    /// Major and minor device number of the file system.
    pub(super) fn number(&self) -> (u32, u32) {
        self.identity.device
    }

    /// Whether the path still leads to this mount.
    pub(super) fn is_there(&self) -> bool {
        identity(&self.path()).is_ok_and(|now| now == self.identity)
    }

    /// Whether it is mounted, but its path does not lead to it: something is mounted over it, or it was
    /// moved. `is_connected` tells whether its connection lives: the number of a dead one is another
    /// mount's soon, often before the server's threads have ended.
    pub(super) fn is_out_of_reach(&self, is_connected: impl FnOnce() -> bool) -> bool {
        let (major, minor) = self.identity.device;
        let number = format!("{major}:{minor}");
        let mounts = kernel_table("/proc/self/mountinfo").unwrap_or_default();
        !self.is_there()
            && mounts.lines().any(|line| line.split(' ').nth(2) == Some(&number))
            // Asked after the table was read: then its line was of this mount.
            && is_connected()
    }

    /// What aborts this mount's connection, wherever it will be mounted by then. `None` if the path does
    /// not lead to it, or there is no permission. Does not wait for a server.
    pub(super) fn abort(&self) -> Option<Abort> {
        // While this is open, the connection keeps its number.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let pin = rustix::fs::open(self.path(), flags, Mode::empty()).ok()?;
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(&pin, "", flags, StatxFlags::INO).ok()?;
        let device = (found.stx_dev_major, found.stx_dev_minor);
        // The kernel names a connection after the device number of its file system.
        if device == self.identity.device { Abort::of(device.1).ok() } else { None }
    }

    /// Detaches the mount from its path, whether or not it is in use. Does nothing if the path does not
    /// lead to it.
    pub(super) fn detach(&self) -> io::Result<()> {
        if !self.is_there() {
            return Ok(());
        }
        let detached = detach(&self.path());
        // Somebody else may have unmounted it meanwhile.
        detached.or_else(|error| if self.is_there() { Err(error) } else { Ok(()) })
    }

    /// Unmounts without force, if the path still leads to this mount. Returns `false` if the mount
    /// is in use, or out of reach. `is_connected`: as [`Mounted::is_out_of_reach`].
    pub(super) fn unmount_unused(&self, is_connected: impl FnOnce() -> bool) -> bool {
        if !self.is_there() {
            return !self.is_out_of_reach(is_connected);
        }
        let path = self.path();
        match unmount(&path, UnmountFlags::NOFOLLOW) {
            Err(Errno::PERM) => {
                let mut helper = Command::new("fusermount3");
                helper.args(["-u", "--"]).arg(&path).stderr(Stdio::null());
                helper.status().is_ok_and(|status| status.success())
            }
            unmounted => {
                unmounted.is_ok() || !self.is_there() && !self.is_out_of_reach(is_connected)
            }
        }
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

/// Mounts without root: the setuid helper mounts, and sends the descriptor over a socket that it
/// gets as its standard input.
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

/// Detaches a mount from its path, whether or not its server is alive and whether or not it is in
/// use.
fn detach(path: &Path) -> io::Result<()> {
    match unmount(path, UnmountFlags::DETACH) {
        Err(Errno::PERM) => {}
        detached => return Ok(detached?),
    }
    let mut helper = Command::new("fusermount3");
    let ran = helper.args(["-u", "-z", "--"]).arg(path).stdout(Stdio::null()).output();
    let ran = ran.map_err(|error| io::Error::new(error.kind(), format!("fusermount3: {error}")))?;
    if ran.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ran.stderr);
    Err(io::Error::other(match said.trim() {
        "" => format!("fusermount3: {}", ran.status),
        said => said.to_owned(),
    }))
}

/// Detaches what a server that has ended has left mounted, if anything.
pub(super) fn unmount_stale(path: &Path) {
    // Nothing may be mounted there. Who mounts there next is told of what stays.
    let _ = detach(path);
}

/// Number of cores that the kernel may ever have; it keeps a queue for each.
pub(super) fn possible_cores() -> io::Result<u16> {
    let list = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let count = count_cores(&list).and_then(|count| u16::try_from(count).ok());
    count.ok_or_else(|| io::Error::other("a list of cores that is none"))
}
