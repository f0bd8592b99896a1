//! One device of the loop driver, by its path.
//!
//! Once it is kept ([`Device::keep`]), no descriptor stays open; each change opens the device anew. A dying
//! server must not be the last to close the device: its dirty pages could be written only through that
//! server.
//!
//! While its settings are changed, the driver lets no request begin and waits for those under way.
//! If these wait for this process, so does the thread that makes the change: it is one of its own.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use super::LoopError;
use super::ioctl::{self, Info};
use crate::ending::holds_by;

const CONTROL: &str = "/dev/loop-control";

/// Retries when another process takes the free device first.
const RACES_MAX: u32 = 64;

/// How long to wait for programs that only look at a device, as udev does after every change.
const LOOKS: Duration = Duration::from_millis(500);

/// How long to wait for a detachment that is being taken back.
const CANCEL_PATIENCE: Duration = Duration::from_secs(2);

/// A device that a file is attached to.
#[derive(Debug)]
pub(super) struct Device {
    path: PathBuf,
    label: String,
    /// The kernel's sequence number of the attached disk; `None` before Linux 5.15, which has none.
    sequence: Option<u64>,
    cancelling: Option<Cancelling>,
    /// Until it is kept: the driver detaches the device when this is closed, however this process ends.
    unkept: Option<OwnedFd>,
    /// What the driver knows of the device, from when it was kept.
    info: Option<Info>,
    /// Descriptors in reserve, for a detachment when there are no others left.
    spare: Option<[OwnedFd; 2]>,
}

/// Takes a detachment back that others prevented. Meanwhile the driver keeps everybody waiting who
/// opens the device.
#[derive(Debug)]
struct Cancelling {
    thread: JoinHandle<()>,
    /// Whether the thread then has to detach after all. Whoever comes first decides: the thread, once
    /// it is done, or who wants to detach meanwhile.
    detaches: Arc<OnceLock<bool>>,
}

/// Sequence number of the disk at `path` now. The kernel never reuses one.
fn sequence(path: &Path) -> io::Result<u64> {
    let name = path.file_name().unwrap_or_default();
    let file = Path::new("/sys/block").join(name).join("diskseq");
    fs::read_to_string(file)?.trim().parse().map_err(io::Error::other)
}

/// How to attach a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attach<'a> {
    /// Logical block size in bytes.
    pub(super) block_size: u32,
    pub(super) read_only: bool,
    pub(super) partitions: bool,
    /// Distinguishes our device from somebody else's.
    pub(super) label: &'a str,
}

impl Device {
    /// Checks that the driver is there and that we may use it.
    pub(super) fn check_driver() -> Result<(), LoopError> {
        open_rw(Path::new(CONTROL)).map(drop).map_err(LoopError::control)
    }

    /// Checks that there is a free device, and that we may use its node.
    pub(super) fn check_free() -> Result<(), LoopError> {
        let control = open_rw(Path::new(CONTROL)).map_err(LoopError::control)?;
        let number = ioctl::free_number(&control).map_err(LoopError::NoneFree)?;
        let device = PathBuf::from(format!("/dev/loop{number}"));
        match open_rw(&device) {
            // Another process may have taken it, and given it back.
            Ok(_) | Err(Errno::BUSY | Errno::NXIO) => Ok(()),
            Err(error) => Err(LoopError::Attach { device, error }),
        }
    }

    /// Attaches the file to a free device, with direct I/O. It stays attached only as long as this process
    /// lives, until [`Device::keep`].
    pub(super) fn attach(file: &OwnedFd, how: Attach<'_>) -> Result<Self, LoopError> {
        let control = open_rw(Path::new(CONTROL)).map_err(LoopError::control)?;
        let mut flags = ioctl::DIRECT_IO | ioctl::AUTOCLEAR;
        flags |= if how.read_only { ioctl::READ_ONLY } else { 0 };
        flags |= if how.partitions { ioctl::PARTSCAN } else { 0 };
        let mut races = 0;
        loop {
            let number = ioctl::free_number(&control).map_err(LoopError::NoneFree)?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let attached = open_rw(&path).and_then(|device| {
                ioctl::configure(&device, file, how.block_size, Info::new(flags, how.label))?;
                let spare = [fcntl_dupfd_cloexec(&control, 0)?, fcntl_dupfd_cloexec(&control, 0)?];
                // While the device is open, nobody else can get it.
                Ok((sequence(&path).ok(), device, spare))
            });
            match attached {
                Ok((sequence, device, spare)) => {
                    let (unkept, spare) = (Some(device), Some(spare));
                    return Ok(Self { unkept, spare, ..Self::at(&path, how.label, sequence) });
                }
                Err(Errno::BUSY) if races < RACES_MAX => races += 1,
                Err(error) => return Err(LoopError::Attach { device: path, error }),
            }
        }
    }

    /// The device that was attached at `path` under this label, by a process that is dead by now or by
    /// this one.
    pub(super) fn at(path: &Path, label: &str, sequence: Option<u64>) -> Self {
        let (path, label) = (path.into(), label.into());
        Self { path, label, sequence, cancelling: None, unkept: None, info: None, spare: None }
    }

    /// The same device, for another thread.
    pub(super) fn another(&self) -> Self {
        Self::at(&self.path, &self.label, self.sequence)
    }

    /// From now on the device stays attached until it is detached: its users may write what only the next
    /// server reads, and whoever finds the device knows whose it is.
    pub(super) fn keep(&mut self) -> Result<(), Errno> {
        let Some(device) = &self.unkept else { return Ok(()) };
        let mut info = ioctl::status(device)?;
        info.flags &= !ioctl::AUTOCLEAR;
        ioctl::set_status(device, info)?;
        (self.info, self.unkept) = (Some(info), None);
        Ok(())
    }

    pub(super) fn sequence(&self) -> Option<u64> {
        self.sequence
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the device; `None` if it is no longer the one that was attached. Its status is asked for
    /// only where the kernel has no sequence numbers: the driver asks the file then, which may not
    /// answer.
    fn open_to_detach(&self) -> io::Result<Option<OwnedFd>> {
        match self.sequence {
            Some(_) => self.open_attached(),
            None => Ok(self.open()?.map(|(device, _)| device)),
        }
    }

    /// Opens the device; `None` if it has another sequence number than the one that was attached.
    fn open_attached(&self) -> io::Result<Option<OwnedFd>> {
        // Read-only, so that nobody takes the close for a change of the content.
        let device = match open_ro(&self.path) {
            // The driver has removed it.
            Err(Errno::NXIO) => return Ok(None),
            opened => opened?,
        };
        let is_ours = match self.sequence {
            Some(attached) => sequence(&self.path)? == attached,
            None => true,
        };
        Ok(is_ours.then_some(device))
    }

    /// Opens the device; `None` if it is no longer the one that was attached.
    fn open(&self) -> io::Result<Option<(OwnedFd, Option<Info>)>> {
        let Some(device) = self.open_attached()? else { return Ok(None) };
        match ioctl::status(&device) {
            Ok(info) => Ok(info.has_label(&self.label).then_some((device, Some(info)))),
            // The file's server has died, so there will never be a status to check the label in.
            // Without a sequence number the device could be anybody's.
            Err(Errno::NOTCONN | Errno::CONNABORTED) => Ok(Some((device, None))),
            Err(error) if is_detached(error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether it is still attached to our file, which nobody serves any more.
    pub(super) fn is_orphan(&self) -> bool {
        matches!(self.open(), Ok(Some((_, None))))
    }

    /// Detaches if nobody has it open or mounted. Returns whether it is detached. `is_awaited` tells
    /// whether somebody waits for the file: then the driver is asked nothing.
    pub(super) fn try_detach(&mut self, is_awaited: impl Fn() -> bool) -> bool {
        let deadline = Instant::now() + LOOKS;
        while is_awaited() || self.is_cancelling(LOOKS) || !self.detach_if_unused(&is_awaited) {
            if Instant::now() > deadline {
                return false;
            }
            thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Tells the driver to detach at the last close. If our descriptor is the only one, the driver
    /// refuses everybody else from then on. A device that cannot be looked at counts as used.
    fn detach_if_unused(&mut self, is_awaited: impl Fn() -> bool) -> bool {
        // Of a device with a file system on it nothing more is asked: the driver would stop its
        // requests meanwhile, and wait for those that are under way.
        let exclusive = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        match open(&self.path, exclusive, Mode::empty()) {
            Ok(_) => {}
            Err(error) => return is_detached(error),
        }
        let device = match self.open_to_detach() {
            Ok(Some(device)) => device,
            Ok(None) => return true,
            Err(_) => return false,
        };
        if is_awaited() {
            return false;
        }
        // What it has begun to detach, the driver calls detached when it is told to again.
        for _ in 0..2 {
            if let Err(error) = ioctl::clear(&device) {
                return is_detached(error);
            }
        }
        if let Some(info) = self.info {
            // Others have it open: cancel, so that the device stays after they close it. Fails if it
            // has been detached.
            let detaches = Arc::new(OnceLock::new());
            let decision = detaches.clone();
            let cancel = move || {
                let _ = ioctl::set_status(&device, info);
                if *decision.get_or_init(|| false) {
                    let _ = ioctl::clear(&device);
                }
            };
            // Without a thread the device is detached after all, but not before its last user goes.
            let thread = thread::Builder::new().name("loop".into()).spawn(cancel).ok();
            self.cancelling = thread.map(|thread| Cancelling { thread, detaches });
        }
        false
    }

    /// Whether a detachment is still being taken back: who opens the device now waits.
    pub(super) fn is_held(&self) -> bool {
        self.is_cancelling(CANCEL_PATIENCE)
    }

    /// Whether a detachment is still being taken back after `patience`.
    fn is_cancelling(&self, patience: Duration) -> bool {
        let is_over = || self.cancelling.as_ref().is_none_or(|it| it.thread.is_finished());
        !holds_by(Instant::now() + patience, is_over)
    }

    /// Detaches as soon as nobody has it open or mounted.
    pub(super) fn detach(&self) -> io::Result<()> {
        // What is being taken back would take this back too, and this thread may be the one that it
        // waits for: then its own thread detaches.
        let is_left_to = |it: &Cancelling| *it.detaches.get_or_init(|| true);
        if self.is_held() && self.cancelling.as_ref().is_some_and(is_left_to) {
            return Ok(());
        }
        // Somebody else may have detached it.
        let Some(device) = self.open_to_detach()? else { return Ok(()) };
        match ioctl::clear(&device) {
            Err(error) if !is_detached(error) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Gives up the descriptors in reserve, because others are needed now.
    pub(super) fn free_spare(&mut self) {
        self.spare = None;
    }

    /// As [`Device::detach`], but waits for a detachment that is being taken back, however long that
    /// takes.
    pub(super) fn detach_at_the_end(&mut self) -> io::Result<()> {
        self.unkept = None;
        self.free_spare();
        let detached = self.detach();
        if let Some(cancelling) = self.cancelling.take() {
            // A thread that panicked has ended too.
            let _ = cancelling.thread.join();
        }
        detached
    }

    /// Zeroes `len` bytes. Returns whether the driver has given up write-zeroes requests.
    pub(super) fn zero(&self, offset: u64, len: u64) -> bool {
        let zeroed = open_rw(&self.path).and_then(|it| ioctl::zero_out(it, offset, len));
        let name = self.path.file_name().unwrap_or_default();
        let limit = Path::new("/sys/block").join(name).join("queue/write_zeroes_max_bytes");
        zeroed.is_ok() && fs::read_to_string(limit).is_ok_and(|limit| limit.trim() == "0")
    }

    /// Adopts the backing file's present size.
    pub(super) fn take_size(&self) -> io::Result<()> {
        // `open` asks for the status, which makes the driver look at the file's size again: it may
        // be cached.
        let (device, _) = self.open()?.ok_or(Errno::NXIO)?;
        Ok(ioctl::set_capacity(&device)?)
    }
}

fn is_detached(error: Errno) -> bool {
    error == Errno::NXIO
}

fn open_rw(path: &Path) -> Result<OwnedFd, Errno> {
    open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

fn open_ro(path: &Path) -> Result<OwnedFd, Errno> {
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}
