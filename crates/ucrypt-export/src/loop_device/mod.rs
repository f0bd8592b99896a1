//! A volume as a loop device: a real disk on any Linux, for root.
//!
//! The export attaches a file that nobody else can reach ([`HiddenFile`]) to a free device of the
//! loop driver, with direct I/O. Reads, writes and flushes of the driver become the same requests
//! of that file; see [`HiddenFile`] for discards.
//!
//! If the server dies, the device stays attached and answers with errors until [`detach_stale`]
//! detaches it: only the device's users can unmount the file systems on it. Before [`LoopExport::keep`],
//! when nobody may know of the device yet, it goes with the server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use ucrypt_engine::Volume;

use crate::fuse::{FuseError, HiddenFile};
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
    /// the kernel looks for a partition table. The device goes with this process until
    /// [`LoopExport::keep`].
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

    /// Has the device stay if this process dies. Call when it is known where [`detach_stale`] finds it.
    ///
    /// # Errors
    /// The driver refuses; the device still goes with the process.
    pub fn keep(&mut self) -> Result<(), LoopError> {
        let device = self.path().into();
        self.device.keep().map_err(|error| LoopError::Attach { device, error })
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

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use ucrypt_engine::{Volume, VolumeOptions};

    use super::*;

    /// Names what the test does in a process of its own.
    const CHILD: &str = "UCRYPT_TEST_LOOP_CHILD";
    const LABEL: &str = "ucrypt test of a device that is kept";
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A process that is killed when its test ends.
    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Attaches a device, says where, and waits for the end of its input.
    fn attach(keep: bool) {
        let memory = Arc::new(ucrypt_backend::memory(1 << 20).expect("memory"));
        let volume = Arc::new(Volume::raw(memory, VolumeOptions::default()).expect("a volume"));
        let mut export = LoopExport::start(&volume, LABEL, false).expect("a device, as root");
        if keep {
            export.keep().expect("kept");
        }
        let sequence = export.sequence().expect("Linux 5.15");
        println!("\ndevice {} {sequence}", export.path().display());
        let _ = std::io::stdin().read(&mut [0]);
    }

    #[test]
    fn a_device_goes_with_a_process_that_is_killed_before_it_keeps_the_device() {
        if let Some(keep) = std::env::var_os(CHILD) {
            return attach(keep == "keep");
        }
        for keep in ["no", "keep"] {
            let mut child = Command::new(std::env::current_exe().expect("a path"));
            let thread = std::thread::current();
            child.args(["--exact", "--nocapture", thread.name().expect("the test's")]);
            child.env(CHILD, keep).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = Killed(child.spawn().expect("it starts"));
            let said = BufReader::new(child.0.stdout.take().expect("a pipe"));
            let mut said = said.lines().map_while(Result::ok);
            let said = said.find_map(|line| Some(line.strip_prefix("device ")?.to_owned()));
            let said = said.expect("a device");
            let (path, sequence) = said.split_once(' ').expect("two words");
            let (path, sequence) = (Path::new(path), sequence.parse().ok());
            drop(child);
            let attributes = Path::new("/sys/block").join(path.file_name().expect("a name"));
            let number = || std::fs::read_to_string(attributes.join("diskseq")).ok();
            let is_there = || {
                let number = number().and_then(|number| number.trim().parse::<u64>().ok());
                attributes.join("loop").exists() && number == sequence
            };
            if keep == "no" {
                let deadline = Instant::now() + PATIENCE;
                while is_there() {
                    let late = Instant::now() > deadline;
                    if late {
                        detach_stale(path, LABEL, sequence);
                    }
                    assert!(!late, "{} is left", path.display());
                    std::thread::sleep(Duration::from_millis(5));
                }
            } else {
                let stays = is_there();
                detach_stale(path, LABEL, sequence);
                assert!(stays, "{} has gone with its dirty pages", path.display());
            }
        }
    }
}
