//! Opening an image: determines its kind, length and access, and excludes other users.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, SeekFrom, Stat, StatxFlags, fstat, fstatfs, ioctl_blksszget,
    major, minor, openat, seek, statx,
};

use super::cut::Cut;
use super::lock::Locked;
use super::losses::Losses;
use super::zones::DeviceZones;
use super::{Direct, Files, lock};
use crate::{Access, Errno, Limits, Mapping, WRITE_UNIT_MAX};

/// See [`Limits::transfer_max`].
pub(super) const TRANSFER_MAX: u32 = 1 << 20;

/// How to open an image.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// Bypass the page cache where the alignment of an operation allows it. Zoned devices are
    /// always opened like this: the page cache keeps no order.
    pub direct: bool,
    /// Neither check nor take the lock: for reading the header of a volume in use.
    pub unlocked: bool,
    /// Take the lock unless another program has the image for writing; continue without it in that
    /// case: for reading a volume that may be in use. Such an image may change while it is read.
    /// [`FileBackend::is_in_use`](super::FileBackend::is_in_use) tells whether it is in use. Only
    /// with `read_only`.
    pub shared: bool,
}

/// Why an image was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process uses the file.
    #[error("{path} is in use by another program that may write to it; close it there first")]
    Locked {
        /// The image.
        path: PathBuf,
    },
    /// A loop device is attached to the file.
    #[error("{path} is attached to {device}; detach it first (losetup -d {device})")]
    Attached {
        /// The image.
        path: PathBuf,
        /// The loop device.
        device: String,
    },
    /// The device is mounted or held by the kernel.
    #[error("{path} is mounted or in use by the kernel; unmount or close it first")]
    Busy {
        /// The device.
        path: PathBuf,
    },
    /// Neither a regular file nor a block device.
    #[error("{path} is a {what}, neither a file nor a block device")]
    Unsuitable {
        /// The path.
        path: PathBuf,
        /// The kind of file.
        what: &'static str,
    },
    /// The system refused.
    #[error("cannot open {path}: {error}")]
    Io {
        /// The image.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

impl OpenError {
    /// Whether another program or the kernel has the image.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Locked { .. } | Self::Attached { .. } | Self::Busy { .. })
    }

    /// Whether the file cannot be opened for writing, and perhaps can be for reading: a missing
    /// permission, a read-only file system or device, a file that nobody may change.
    pub fn is_of_writing(&self) -> bool {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        let Self::Io { error, .. } = self else { return false };
        matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem)
    }

    /// Whether the permission is missing.
    pub fn is_permission(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::PermissionDenied)
    }
}

pub(super) struct Opened {
    pub(super) files: Arc<Files>,
    pub(super) limits: Limits,
    pub(super) name: String,
    /// The file is in memory (tmpfs): every operation is a memory copy.
    pub(super) in_memory: bool,
    pub(super) zones: Option<DeviceZones>,
    /// Another program has the image and may write to it.
    pub(super) in_use: bool,
    /// Direct I/O was asked for, and there is none.
    pub(super) not_direct: bool,
}

pub(super) fn open(path: &Path, options: OpenOptions) -> Result<Opened, OpenError> {
    let failed = |errno: Errno| match errno {
        Errno::BUSY => OpenError::Busy { path: path.into() },
        errno => OpenError::Io { path: path.into(), error: errno.into() },
    };
    let access = if options.read_only { OFlags::RDONLY } else { OFlags::RDWR } | OFlags::CLOEXEC;
    // Without NONBLOCK, opening a pipe would hang.
    let fd = open_at(path, access | OFlags::NONBLOCK).map_err(failed)?;
    let stat = fstat(&fd).map_err(failed)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    let shared = options.shared && options.read_only;
    // An opener that goes on without the lock need not wait for it.
    let patience = if shared { Duration::ZERO } else { lock::PATIENCE };
    let mut in_use = false;
    let fd = match kind {
        FileType::BlockDevice if !options.unlocked => {
            match open_exclusive(path, access, patience) {
                Err(Errno::BUSY) if shared => {
                    in_use = true;
                    fd
                }
                exclusive => {
                    let exclusive = exclusive.map_err(failed)?;
                    check_same(&stat, &exclusive).map_err(failed)?;
                    exclusive
                }
            }
        }
        FileType::RegularFile | FileType::BlockDevice => fd,
        _ => return Err(OpenError::Unsuitable { path: path.into(), what: kind_name(kind) }),
    };
    let mut fd = Locked::without(fd);
    if kind == FileType::RegularFile && !options.unlocked {
        let attached = lock::loop_device_of(path, fd.as_fd());
        let locked = attached.is_none() && fd.lock(options.read_only, patience).map_err(failed)?;
        match attached {
            _ if shared => in_use = !locked,
            Some(device) => return Err(OpenError::Attached { path: path.into(), device }),
            None if !locked => return Err(OpenError::Locked { path: path.into() }),
            None => {}
        }
    }
    let is_zoned = kind == FileType::BlockDevice && is_zoned(stat.st_rdev);
    let direct = (options.direct || is_zoned).then(|| open_direct(path, access, kind)).flatten();
    if let Some(direct) = &direct {
        check_same(&stat, &direct.fd).map_err(failed)?;
    }
    let name = path.display().to_string();
    let opened = describe(fd, direct, name, options.read_only).map_err(failed)?;
    let not_direct = options.direct && !opened.in_memory && opened.files.direct.is_none();
    Ok(Opened { in_use, not_direct, ..opened })
}

pub(super) fn from_fd(fd: OwnedFd, name: String, read_only: bool) -> io::Result<Opened> {
    Ok(describe(Locked::without(fd), None, name, read_only)?)
}

/// Refuses a second descriptor of another file, which has got the path meanwhile.
fn check_same(stat: &Stat, second: &OwnedFd) -> Result<(), Errno> {
    if is_same(stat, &fstat(second)?) { Ok(()) } else { Err(Errno::STALE) }
}

/// Whether both are of one file or device.
pub(super) fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino, one.st_rdev) == (other.st_dev, other.st_ino, other.st_rdev)
}

fn open_at(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    openat(rustix::fs::CWD, path, flags, Mode::empty())
}

/// Opens a device that nobody else has opened in this way, and that is neither mounted nor mapped.
/// Waits for `patience` at most: the kernel ends the operations of a server that was killed, and a
/// child that was just forked has the device until it runs its program.
fn open_exclusive(path: &Path, access: OFlags, patience: Duration) -> Result<OwnedFd, Errno> {
    let until = Instant::now() + patience;
    loop {
        match open_at(path, access | OFlags::EXCL) {
            Err(Errno::BUSY) if Instant::now() < until => std::thread::sleep(lock::PAUSE),
            opened => return opened,
        }
    }
}

/// Opens a second descriptor with `O_DIRECT`; `None` if the file system does not support it, or
/// only for very large blocks.
fn open_direct(path: &Path, access: OFlags, kind: FileType) -> Option<Direct> {
    let fd = open_at(path, access | OFlags::DIRECT).ok()?;
    let stat = statx(&fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    let told = stat
        .filter(|stat| StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN));
    let (memory_align, offset_align) = match told {
        // It may be opened with `O_DIRECT` all the same, and goes through the page cache.
        Some(stat) if stat.stx_dio_offset_align == 0 => return None,
        Some(stat) => (stat.stx_dio_mem_align as usize, u64::from(stat.stx_dio_offset_align)),
        None if kind == FileType::BlockDevice => {
            let block = ioctl_blksszget(&fd).ok()?;
            (block as usize, u64::from(block))
        }
        // Kernels before 6.1 do not report the alignment: 4096 is accepted everywhere.
        None => (4096, 4096),
    };
    let is_usual = offset_align.is_power_of_two() && offset_align <= u64::from(WRITE_UNIT_MAX);
    is_usual.then(|| Direct { fd, memory_align: memory_align.max(1), offset_align })
}

fn describe(
    fd: Locked,
    direct: Option<Direct>,
    name: String,
    read_only: bool,
) -> Result<Opened, Errno> {
    let stat = fstat(&fd)?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let len = len(fd.as_fd())?;
    let device_block = if is_device { ioctl_blksszget(&fd)?.max(512) } else { 512 };
    let in_memory = !is_device && is_memory_fs(fd.as_fd());
    let punches = !is_device || zeroes_ranges(stat.st_rdev);
    // Such a file has nothing but its page cache, also where it may be opened with `O_DIRECT`.
    let direct = direct.filter(|_| !in_memory);
    let block = direct.as_ref().map_or(512, |direct| direct.offset_align as u32).max(device_block);
    let limits = Limits {
        len,
        block,
        write_unit: direct.as_ref().map_or(512, |direct| direct.offset_align.max(512) as u32),
        transfer_max: TRANSFER_MAX,
        memory_align: direct.as_ref().map_or(1, |direct| direct.memory_align as u32),
        read_only,
        discard: !read_only && punches,
        rotational: is_device && is_rotational(stat.st_rdev),
        synchronous: in_memory,
        copies: direct.is_none(),
    };
    // Without write access or ownership, the kernel does not report which pages are resident
    // (mincore).
    let is_told = !read_only || stat.st_uid == rustix::process::geteuid().as_raw();
    let cut = Arc::new(Cut::new(!is_device && !read_only));
    let mapping = (in_memory && is_told && len > 0)
        .then(|| map(fd.as_fd(), len, read_only, &cut).map(Arc::new))
        .flatten();
    let punch_align = if is_device { u64::from(device_block) } else { 1 };
    let is_watched = !read_only && !in_memory;
    let losses = if is_watched { Losses::of(fd.as_fd())? } else { Losses::none() };
    let by_file = (!is_device && is_fuse(fd.as_fd())).then(Mutex::default);
    let files = Files { buffered: fd, direct, mapping, punch_align, punches, losses, cut, by_file };
    let files = Arc::new(files);
    let zones = (is_device && is_zoned(stat.st_rdev)).then(|| {
        let number = |name| attribute(stat.st_rdev, name).and_then(|text| text.parse().ok());
        let [open_max, active_max] = ["max_open_zones", "max_active_zones"].map(number);
        DeviceZones::of(&files, open_max.unwrap_or(0), active_max.unwrap_or(0))
    });
    Ok(Opened {
        files,
        limits,
        name,
        in_memory,
        zones: zones.flatten(),
        in_use: false,
        not_direct: false,
    })
}

/// Maps a file for writing if possible, else for reading: a sealed file cannot be mapped for
/// writing.
fn map(fd: BorrowedFd<'_>, len: u64, read_only: bool, cut: &Arc<Cut>) -> Option<Mapping> {
    let by = |access| Mapping::file(fd, len, access, cut.clone()).ok();
    let to_write = (!read_only).then(|| by(Access::ReadWrite)).flatten();
    to_write.or_else(|| by(Access::Read))
}

/// Length of a file or device in bytes.
pub(super) fn len(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let stat = fstat(fd)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
        return seek(fd, SeekFrom::End(0));
    }
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;
const FUSE_MAGIC: i64 = 0x6573_5546;

fn is_memory_fs(fd: BorrowedFd<'_>) -> bool {
    fstatfs(fd).is_ok_and(|stat| matches!(stat.f_type, TMPFS_MAGIC | RAMFS_MAGIC))
}

/// Also where the system does not tell: it asks the server.
fn is_fuse(fd: BorrowedFd<'_>) -> bool {
    fstatfs(fd).map_or(true, |stat| stat.f_type == FUSE_MAGIC)
}

fn is_rotational(device: u64) -> bool {
    attribute(device, "rotational").is_some_and(|text| text == "1")
}

fn is_zoned(device: u64) -> bool {
    attribute(device, "zoned").is_some_and(|text| text != "none")
}

/// Whether a device zeroes ranges without written data; the kernel discards by that, too.
fn zeroes_ranges(device: u64) -> bool {
    attribute(device, "write_zeroes_max_bytes").is_none_or(|text| text != "0")
}

/// An attribute of a block device's queue, from sysfs.
fn attribute(device: u64, name: &str) -> Option<String> {
    // A partition has no queue of its own: its disk's is one level up.
    let base = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let found = ["queue", "../queue"]
        .iter()
        .find_map(|queue| std::fs::read_to_string(format!("{base}/{queue}/{name}")).ok());
    found.map(|text| text.trim().to_owned())
}

fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "directory",
        FileType::CharacterDevice => "character device",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        _ => "special file",
    }
}
