//! A volume as a file.
//!
//! One regular file is mounted over another: no directory, no names. Its size is the volume's. The server is our own, for just this: `abi` knows the kernel's structures,
//! [`mount`] the way into the file tree, `file` what a request means, and `classic` moves requests
//! and answers between the kernel and an engine queue. Without root this needs the setuid helper
//! `fusermount3` (package `fuse3`).

mod abi;
mod classic;
mod device;
mod file;
mod hidden;
mod mount;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use ucrypt_engine::Volume;

use classic::Classic;
use device::Device;
use file::{User, VolumeFile};
pub use hidden::HiddenFile;
pub use mount::unmount_stale;

/// Bytes of the largest request: what the kernel allows without privileges.
const REQUEST_MAX: u32 = 1 << 20;

/// Requests that a thread has under way at most.
const DEPTH: u32 = 128;

/// How long [`FuseExport::stop`] waits for programs that still have the file open.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// Why a volume could not be served as a file.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// There is no `/dev/fuse`.
    #[error("this system has no FUSE (/dev/fuse is missing); load it (modprobe fuse) or use NBD")]
    Missing,
    /// The file to mount over cannot be used.
    #[error("cannot serve a file at {path}: {error}")]
    MountPoint {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: io::Error,
    },
    /// The kernel or the helper refused.
    #[error(
        "cannot mount at {path}: {error}; without root this needs fusermount3 (package fuse3) \
         and access to /dev/fuse"
    )]
    Mount {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The kernel refused a mount without a place.
    #[error("cannot mount a file for the loop driver: {error}; it needs root and Linux 5.2")]
    Hidden {
        /// The reason.
        error: io::Error,
    },
}

/// A mounted file. Dropping it unmounts.
#[derive(Debug)]
pub struct FuseExport {
    path: PathBuf,
    /// Whether the file below the mount was made by us.
    made: bool,
    /// Empty once it is stopped.
    threads: Vec<JoinHandle<()>>,
}

impl FuseExport {
    /// Mounts the volume over `path`, which is made if it is not there, and serves it from threads
    /// in the background.
    pub fn start(volume: &Arc<Volume>, path: &Path) -> Result<Self, FuseError> {
        if !Path::new(mount::DEVICE).exists() {
            return Err(FuseError::Missing);
        }
        let at = |error| FuseError::MountPoint { path: path.into(), error };
        let made = mount::prepare(path).map_err(at)?;
        let path = path.canonicalize().map_err(at)?;
        let served = mount::mount(&path, volume.info().read_only).and_then(|device| {
            let cores = thread::available_parallelism().map_or(2, usize::from).max(2);
            serve(volume, Device::new(device), User::Programs, cores)
                .inspect_err(|_| unmount_stale(&path))
        });
        match served {
            Ok(threads) => Ok(Self { path, made, threads }),
            Err(error) => {
                if made {
                    // The error of the mount is what counts.
                    let _ = fs::remove_file(&path);
                }
                Err(FuseError::Mount { path, error })
            }
        }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the volume's present size known to the kernel.
    pub fn take_size(&self) -> io::Result<()> {
        // It asks us when the file is looked at anew.
        statx(CWD, &self.path, AtFlags::STATX_FORCE_SYNC, StatxFlags::SIZE)?;
        Ok(())
    }

    /// Whether it has ended by itself: somebody else has unmounted it.
    pub fn has_ended(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Unmounts if no program has the file open. Returns whether it did.
    pub fn try_stop(&mut self) -> bool {
        if !self.has_ended() && !mount::unmount_unused(&self.path) {
            return false;
        }
        self.unmount();
        true
    }

    /// Takes the name away. Programs that have the file open go on; when the last of them closes
    /// it, the export has ended.
    pub fn detach(&self) {
        unmount_stale(&self.path);
    }

    /// Unmounts. Programs that have the file open can no longer reach it by name; they get errors
    /// once the process ends.
    pub fn stop(mut self) {
        self.unmount();
    }

    fn unmount(&mut self) {
        let threads = std::mem::take(&mut self.threads);
        if threads.is_empty() {
            return;
        }
        if !threads.iter().all(JoinHandle::is_finished) {
            unmount_stale(&self.path);
        }
        let ended = Instant::now() + STOP_PATIENCE;
        while !threads.iter().all(JoinHandle::is_finished) && Instant::now() < ended {
            thread::sleep(Duration::from_millis(5));
        }
        if self.made {
            // It is empty and was made for this mount.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for FuseExport {
    fn drop(&mut self) {
        self.unmount();
    }
}

/// Starts the threads, which end when the file is not mounted any more.
fn serve(
    volume: &Arc<Volume>,
    device: Device,
    user: User,
    threads: usize,
) -> io::Result<Vec<JoinHandle<()>>> {
    device.negotiate(REQUEST_MAX, false)?;
    let file = Arc::new(VolumeFile::new(volume.clone(), user));
    let mut devices = (1..threads).map(|_| device.another()).collect::<io::Result<Vec<_>>>()?;
    devices.push(device);
    let start = |(index, device)| {
        let classic = Classic::new(file.clone(), device)?;
        thread::Builder::new().name(format!("fuse-{index}")).spawn(move || classic.run())
    };
    devices.into_iter().enumerate().map(start).collect()
}
