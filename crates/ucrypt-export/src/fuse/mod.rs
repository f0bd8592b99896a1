//! A volume as a file.
//!
//! One regular file is mounted over another: no directory, no names. Its size is the volume's and
//! does not change. Requests are answered by the thread that receives them, on an engine queue of
//! its own. Without root this needs the setuid helper `fusermount3` (package `fuse3`).

mod file;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use ucrypt_engine::Volume;

use file::VolumeFile;

/// Threads for a volume whose requests wait for a device: each waits for one.
const WAITING_THREADS: usize = 16;

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
}

/// A mounted file. Dropping it unmounts.
#[derive(Debug)]
pub struct FuseExport {
    path: PathBuf,
    /// Whether the file below the mount was made by us.
    made: bool,
    session: Option<BackgroundSession>,
}

impl FuseExport {
    /// Mounts the volume over `path`, which is made if it is not there, and serves it from threads
    /// in the background.
    pub fn start(volume: &Arc<Volume>, path: &Path) -> Result<Self, FuseError> {
        if !Path::new("/dev/fuse").exists() {
            return Err(FuseError::Missing);
        }
        let at = |error| FuseError::MountPoint { path: path.into(), error };
        let made = prepare(path).map_err(at)?;
        let path = path.canonicalize().map_err(at)?;
        match mount(volume, &path) {
            Ok(session) => Ok(Self { path, made, session: Some(session) }),
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

    /// Whether it has ended by itself: somebody else has unmounted it.
    pub fn has_ended(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.guard.is_finished())
    }

    /// Unmounts if no program has the file open. Returns whether it did.
    pub fn try_stop(&mut self) -> bool {
        if !self.has_ended() && !unmount_unused(&self.path) {
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
        let Some(session) = self.session.take() else { return };
        if !session.guard.is_finished() {
            unmount_stale(&self.path);
        }
        let ended = Instant::now() + STOP_PATIENCE;
        let stopper = std::thread::spawn(move || session.umount_and_join());
        while !stopper.is_finished() && Instant::now() < ended {
            std::thread::sleep(Duration::from_millis(5));
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

/// Takes a mount away from its path, whether or not its server is alive or it is in use.
pub fn unmount_stale(path: &Path) {
    if unmount(path, UnmountFlags::DETACH) == Err(Errno::PERM) {
        // Says nothing and fails if nothing is mounted there, which is what is wanted.
        let mut helper = Command::new("fusermount3");
        let _ = helper.args(["-u", "-z", "-q", "--"]).arg(path).stderr(Stdio::null()).status();
    }
}

/// Unmounts without force; `false` if it is in use.
fn unmount_unused(path: &Path) -> bool {
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
fn prepare(path: &Path) -> io::Result<bool> {
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

fn mount(volume: &Arc<Volume>, path: &Path) -> io::Result<BackgroundSession> {
    let info = volume.info();
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let threads = if info.synchronous { cores.max(2) } else { cores.max(WAITING_THREADS) };
    let mut options = vec![
        MountOption::FSName("ucrypt".into()),
        MountOption::Subtype("ucrypt".into()),
        MountOption::NoAtime,
        MountOption::DefaultPermissions,
    ];
    if info.read_only {
        options.push(MountOption::RO);
    }
    let mut config = Config::default();
    config.mount_options = options;
    config.acl = SessionACL::Owner;
    config.n_threads = Some(threads);
    Session::new(VolumeFile::new(volume.clone()), path, &config)?.spawn()
}
