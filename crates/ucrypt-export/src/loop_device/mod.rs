//! A volume as a loop device: a real disk on any Linux, for root.
//!
//! The export attaches a file that nobody else can reach ([`HiddenFile`]) to a free device of the
//! loop driver, with direct I/O. Reads, writes and flushes of the driver become the same requests
//! of that file; see [`HiddenFile`] for discards.
//!
//! If the server dies, the device stays attached and answers with errors until [`detach_stale`]
//! detaches it: only the device's users can unmount the file systems on it. Before [`LoopExport::keep`],
//! when nobody may know of the device yet, it goes with the server.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use ucrypt_engine::Volume;

use crate::fuse::{Abort, FuseError, HiddenFile};
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
    #[error(
        "there is no free loop device: {0}; losetup -d frees one that losetup --list shows, or use --as fuse"
    )]
    NoneFree(Errno),
    /// The file could not be attached.
    #[error("cannot attach {device}: {error}; it needs Linux 5.8 and its node, or use --as fuse")]
    Attach {
        /// The device.
        device: PathBuf,
        /// The reason.
        error: Errno,
    },
    /// The driver cannot be asked.
    #[error("cannot use /dev/loop-control: {0}; or use --as fuse")]
    Control(Errno),
    /// The device did not take the new size.
    #[error("cannot resize {device}: {error}")]
    Resize {
        /// The device.
        device: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The device stays attached.
    #[error("cannot detach {device}: {error}")]
    Detach {
        /// The device.
        device: PathBuf,
        /// The reason.
        error: io::Error,
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
            Errno::NOENT | Errno::NXIO | Errno::NODEV => Self::Missing,
            error => Self::Control(error),
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
    /// It was detached while nobody used it.
    unused: bool,
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
        Ok(Self { file, device, unused: false })
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

    /// What fails all requests of the device, without waiting for anything; `None` if there is no permission.
    pub fn abort(&self) -> Option<Abort> {
        self.file.abort()
    }

    /// Whether somebody else has detached the device.
    pub fn has_ended(&self) -> bool {
        self.file.has_ended()
    }

    /// Detaches if nobody has it open or mounted. Returns whether it is detached. `is_awaited` tells
    /// whether requests wait for the caller: the driver, which would wait for them, is then asked
    /// nothing.
    pub fn try_stop(&mut self, is_awaited: impl Fn() -> bool) -> bool {
        self.unused = self.has_ended() || self.device.try_detach(is_awaited);
        self.unused
    }

    /// Whether a [`LoopExport::try_stop`] that found users is still being taken back, because the driver
    /// waits for requests under way. Whoever opens the device waits too.
    pub fn is_held(&self) -> bool {
        self.device.is_held()
    }

    /// Detaches as soon as nobody has it open or mounted; then the export has ended.
    ///
    /// # Errors
    /// [`LoopError::Detach`]: the driver was not reached, and the export goes on as before.
    pub fn detach(&self) -> Result<(), LoopError> {
        let failed = |error| LoopError::Detach { device: self.path().into(), error };
        self.device.detach().map_err(failed)
    }

    /// Tells the kernel the volume's present size. Call the function in a thread of its own: the
    /// driver waits for requests under way.
    pub fn size_taker(&self) -> impl FnOnce() -> Result<(), LoopError> + Send + use<> {
        let device = self.device.another();
        move || {
            let failed = |error| LoopError::Resize { device: device.path().into(), error };
            device.take_size().map_err(failed)
        }
    }

    /// Detaches, at once if nobody uses the device, and ends the export. Remaining users get errors
    /// once the process ends, or from [`LoopExport::abort`] on.
    ///
    /// # Errors
    /// [`LoopError::Aborted`] if the file's connection ended while the device was attached;
    /// [`LoopError::Detach`] if the device stays.
    pub fn stop(mut self) -> Result<(), LoopError> {
        self.device.free_spare();
        let aborted = self.has_ended() && self.device.is_orphan();
        let device: PathBuf = self.path().into();
        // One that is detached already need not be found again.
        let is_detached = self.unused || self.has_ended();
        let detached = self.device.detach_at_the_end();
        drop(self);
        if aborted {
            return Err(LoopError::Aborted { device });
        }
        match detached {
            Err(error) if !is_detached => Err(LoopError::Detach { device, error }),
            _ => Ok(()),
        }
    }
}

impl Drop for LoopExport {
    fn drop(&mut self) {
        // [`LoopExport::stop`] has told of a failure.
        let _ = self.device.detach_at_the_end();
        // If the device is unused, the driver closes the file when it detaches the device.
        self.file.end(!self.unused);
    }
}

/// Detaches the device that a dead server attached at `path` under this label, as soon as nobody
/// has it open or mounted. `sequence` is its [`LoopExport::sequence`], if known: the device's number
/// may be somebody else's by now.
pub fn detach_stale(path: &Path, label: &str, sequence: Option<u64>) {
    // A device that cannot be detached now is found again by the next call.
    let _ = Device::at(path, label, sequence).detach();
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use ucrypt_engine::{Volume, VolumeOptions};

    use super::*;

    #[test]
    fn a_device_that_cannot_be_detached_is_not_called_detached() {
        let device = Device::at(Path::new("/dev/null"), "nobody's", None);
        device.detach().expect_err("it is no loop device");
        Device::at(Path::new("/dev/null/gone"), "nobody's", None).detach().expect_err("no path");
    }

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

    /// Whether the disk of this number is attached at `path`.
    fn is_there(path: &Path, sequence: u64) -> bool {
        let attributes = Path::new("/sys/block").join(path.file_name().expect("a name"));
        let number = std::fs::read_to_string(attributes.join("diskseq")).unwrap_or_default();
        attributes.join("loop").exists() && number.trim().parse() == Ok(sequence)
    }

    fn export() -> LoopExport {
        let memory = Arc::new(ucrypt_backend::memory(1 << 20).expect("memory"));
        let volume = Arc::new(Volume::raw(memory, VolumeOptions::default()).expect("a volume"));
        LoopExport::start(&volume, LABEL, false).expect("a device, as root")
    }

    /// Attaches a device, says where, and waits for the end of its input.
    fn attach(keep: bool) {
        let mut export = export();
        if keep {
            export.keep().expect("kept");
        }
        let sequence = export.sequence().expect("Linux 5.15");
        println!("\ndevice {} {sequence}", export.path().display());
        let _ = io::stdin().read(&mut [0]);
    }

    /// Leaves this process so many descriptors that are free.
    fn limit_descriptors(free: u64) {
        let open = std::fs::read_dir("/proc/self/fd").expect("readable");
        let open =
            open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok());
        // All below the limit are taken first.
        let highest = open.max().unwrap_or(0);
        let all = getrlimit(Resource::Nofile);
        let limit = Rlimit { current: Some(highest + 1), ..all };
        setrlimit(Resource::Nofile, limit).expect("a lower limit");
        let mut taken = Vec::new();
        while let Ok(one) = std::fs::File::open("/dev/null") {
            taken.push(one);
        }
        taken.truncate(taken.len().saturating_sub(free as usize));
        std::mem::forget(taken);
    }

    /// It may be mounted.
    #[test]
    fn a_device_that_cannot_be_looked_at_is_in_use_and_is_detached_all_the_same_at_the_end() {
        if std::env::var_os(CHILD).is_some() {
            let mut export = export();
            export.keep().expect("kept");
            let (path, sequence) = (export.path().to_owned(), export.sequence());
            let user = std::fs::File::open(&path).expect("opened");
            let all = getrlimit(Resource::Nofile);
            for free in 0..4 {
                limit_descriptors(free);
                assert!(!export.try_stop(|| false), "with {free} descriptors left");
                setrlimit(Resource::Nofile, all).expect("a higher limit");
            }
            drop(user);
            limit_descriptors(0);
            drop(export);
            setrlimit(Resource::Nofile, all).expect("a higher limit");
            println!("\ndetached {} {}", path.display(), sequence.expect("Linux 5.15"));
            return;
        }
        let mut child = Command::new(std::env::current_exe().expect("a path"));
        let thread = std::thread::current();
        child.args(["--exact", "--nocapture", thread.name().expect("the test's")]);
        let ended = child.env(CHILD, "scarce").output().expect("it starts");
        let said = String::from_utf8_lossy(&ended.stdout);
        let said = said.lines().find_map(|line| line.strip_prefix("detached "));
        let said = said.unwrap_or_else(|| panic!("{ended:?}"));
        let (path, sequence) = said.split_once(' ').expect("two words");
        let is_left = is_there(Path::new(path), sequence.parse().expect("a number"));
        detach_stale(Path::new(path), LABEL, sequence.parse().ok());
        assert!(!is_left, "{path} is left");
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
            let (path, sequence) = (Path::new(path), sequence.parse().expect("a number"));
            drop(child);
            if keep == "no" {
                let deadline = Instant::now() + PATIENCE;
                while is_there(path, sequence) {
                    let late = Instant::now() > deadline;
                    if late {
                        detach_stale(path, LABEL, Some(sequence));
                    }
                    assert!(!late, "{} is left", path.display());
                    std::thread::sleep(Duration::from_millis(5));
                }
            } else {
                let stays = is_there(path, sequence);
                detach_stale(path, LABEL, Some(sequence));
                assert!(stays, "{} has gone with its dirty pages", path.display());
            }
        }
    }
}
