//! A volume as a loop device: a real disk on any Linux, for root.
//!
//! The export attaches a file that nobody else can reach ([`HiddenFile`]) to a free device of the
//! loop driver, with direct I/O. Reads, writes and flushes of the driver become the same requests
//! of that file; see [`HiddenFile`] for discards.
//!
//! If the server dies, the device stays attached and answers with errors until [`detach_stale`]
//! detaches it: only the device's users can unmount the file systems on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use ucrypt_engine::Volume;

use crate::fuse::{FuseError, HiddenFile, Transport};
use device::{Attach, Device};

mod device;
mod ioctl;

/// Why there is no loop device.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    /// The driver is not there.
    #[error(
        "this system has no loop devices (/dev/loop-control is missing); load the driver (modprobe \
         loop) or use --as fuse"
    )]
    Missing,
    /// Only root may attach.
    #[error("no permission to use /dev/loop-control; run as root, or use --as fuse")]
    Permission,
    /// The driver made no device.
    #[error("there is no free loop device: {0}; detach one (losetup --list) or use --as fuse")]
    NoneFree(Errno),
    /// The file could not be attached.
    #[error("cannot attach {device}: {error}; it needs Linux 5.8 and its node, or use --as fuse")]
    Attach {
        /// The device.
        device: PathBuf,
        /// The reason.
        error: Errno,
    },
    /// The device did not take the new size.
    #[error("cannot resize {device}: {error}")]
    Resize {
        /// The device.
        device: PathBuf,
        /// The reason.
        error: Errno,
    },
    /// The connection of the attached file to the kernel ended.
    #[error(
        "the kernel no longer asks for {device}: somebody aborted its connection; programs that used \
         it got errors: unmount it, and open the volume again"
    )]
    Aborted {
        /// The device.
        device: PathBuf,
    },
    /// There is no file to attach.
    #[error(transparent)]
    File(#[from] FuseError),
}

impl LoopError {
    fn control(error: Errno) -> Self {
        match error {
            Errno::ACCESS | Errno::PERM => Self::Permission,
            _ => Self::Missing,
        }
    }
}

/// Takes the first steps to a device, and attaches none: whether the driver has a free device, with a
/// node that this process may use. Another process may take it at any moment.
///
/// # Errors
/// Why there can be no device.
pub fn check() -> Result<(), LoopError> {
    Device::check_free()
}

/// An attached device. Dropping it detaches it as [`LoopExport::detach`] does.
#[derive(Debug)]
pub struct LoopExport {
    file: HiddenFile,
    device: Device,
}

impl LoopExport {
    /// Attaches the volume to a free device, whose logical block size is the volume's sector size.
    /// `losetup` shows `label`, and [`detach_stale`] recognises the device by it. With `partitions`
    /// the kernel looks for a partition table.
    pub fn start(volume: &Arc<Volume>, label: &str, partitions: bool) -> Result<Self, LoopError> {
        Device::check_driver()?;
        let info = volume.info();
        let (file, opened) = HiddenFile::start(volume)?;
        let how =
            Attach { block_size: info.sector_size, read_only: info.read_only, partitions, label };
        let device = Device::attach(&opened, how)?;
        file.settle_holes(|offset, len| device.zero(offset, len));
        Ok(Self { file, device })
    }

    /// Its node, `/dev/loopN`.
    pub fn path(&self) -> &Path {
        self.device.path()
    }

    /// The kernel's sequence number of the attached disk, for [`detach_stale`]; `None` where the
    /// kernel has none.
    pub fn sequence(&self) -> Option<u64> {
        self.device.sequence()
    }

    /// The transport of the driver's requests.
    pub fn transport(&self) -> Transport {
        self.file.transport()
    }

    /// Whether somebody else has detached the device.
    pub fn has_ended(&self) -> bool {
        self.file.has_ended()
    }

    /// Detaches if nobody has it open or mounted. Returns whether it is detached. `is_awaited` tells
    /// whether requests wait for the caller: the driver, which would wait for them, is then asked
    /// nothing.
    pub fn try_stop(&mut self, is_awaited: impl Fn() -> bool) -> bool {
        self.has_ended() || self.device.try_detach(is_awaited)
    }

    /// Whether a [`LoopExport::try_stop`] that found users is still being taken back, because the driver
    /// waits for requests under way. Whoever opens the device waits too.
    pub fn is_held(&self) -> bool {
        self.device.is_held()
    }

    /// Detaches as soon as nobody has it open or mounted; then the export has ended.
    pub fn detach(&self) {
        self.device.detach();
    }

    /// Tells the kernel the volume's present size.
    pub fn take_size(&self) -> Result<(), LoopError> {
        let device = &self.device;
        device
            .take_size()
            .map_err(|error| LoopError::Resize { device: device.path().into(), error })
    }

    /// Detaches, at once if nobody uses the device, and ends the export. Remaining users get errors
    /// once the process ends.
    ///
    /// # Errors
    /// [`LoopError::Aborted`] if the file's connection ended while the device was attached.
    pub fn stop(self) -> Result<(), LoopError> {
        let aborted = self.has_ended() && self.device.is_orphan();
        let device = self.path().into();
        drop(self);
        if aborted { Err(LoopError::Aborted { device }) } else { Ok(()) }
    }
}

impl Drop for LoopExport {
    fn drop(&mut self) {
        self.device.detach_at_the_end();
        // If the device is unused, the driver closes the file when it detaches the device.
        self.file.end();
    }
}

/// Detaches the device that a dead server attached at `path` under this label, as soon as nobody
/// has it open or mounted. `sequence` is its [`LoopExport::sequence`], if known: the device's number
/// may be somebody else's by now.
pub fn detach_stale(path: &Path, label: &str, sequence: Option<u64>) {
    Device::of_the_dead(path, label, sequence).detach();
}
