//! The file for the loop driver: mounted nowhere, so that no other program can reach it, and
//! nothing is left of it when the server dies.
//!
//! The driver makes the same hole in its file for two requests: a discard, after which the content
//! does not matter, and a write of zeroes that may be unmapped, after which it must be zeroes. Only
//! the first can be passed on to an encrypted volume. How they are told apart:
//!
//! - Since Linux 6.11 the driver gives up writing zeroes, for good, once the file refuses a range
//!   of zeroes. [`HiddenFile::settle_holes`] brings this about before anybody uses the device; from
//!   then on a hole is a discard.
//! - Before, every hole is discarded and answered with `EOPNOTSUPP`: the kernel's block layer does
//!   not mind this after a discard, and writes zeroes itself after the other.
//!
//! Where discards are not allowed, `statfs` fails, by which the driver knows not to offer them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, open, statx};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};
use ucrypt_engine::Volume;

use super::device::Device;
use super::file::User;
use super::{FuseError, STOP_PATIENCE, Transport, mount, serve};

/// Threads at most: the driver has requests of one disk only, and what they have is locked memory.
const THREADS_MAX: usize = 4;

/// What is known about the holes that the driver makes.
#[derive(Debug, Default)]
pub(super) struct Holes {
    /// It is being found out: ranges of zeroes are refused, and what is written instead of one is
    /// not stored.
    asking: AtomicBool,
    /// They are all discards.
    discards: AtomicBool,
}

impl Holes {
    pub(super) fn asking(&self) -> bool {
        self.asking.load(Ordering::Acquire)
    }

    pub(super) fn are_discards(&self) -> bool {
        self.discards.load(Ordering::Acquire)
    }
}

/// A file that only who has its descriptor can use. It ends when the last of them is closed.
#[derive(Debug)]
pub struct HiddenFile {
    transport: Transport,
    threads: Vec<JoinHandle<()>>,
    holes: Arc<Holes>,
}

impl HiddenFile {
    /// Serves the volume from threads in the background, and opens the file. Needs root, and
    /// Linux 5.2.
    pub fn start(volume: &Arc<Volume>) -> Result<(Self, OwnedFd), FuseError> {
        let device = open(mount::DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let device = device.map_err(|error| match error {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => FuseError::Missing,
            error => FuseError::Hidden { error: error.into() },
        })?;
        start(volume, device).map_err(|error| FuseError::Hidden { error })
    }

    /// Finds out what holes mean, before anybody uses the device. `probe` zeroes the first sector
    /// of the device, which here leaves it as it is, and tells whether the driver has given up
    /// writing zeroes.
    pub(crate) fn settle_holes(&self, probe: impl FnOnce() -> bool) {
        self.holes.asking.store(true, Ordering::Release);
        self.holes.discards.store(probe(), Ordering::Release);
        self.holes.asking.store(false, Ordering::Release);
    }

    /// How requests come and answers go.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Whether nobody has it open any more.
    pub fn has_ended(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits a moment until nobody has it open. If somebody still does, the file is served until
    /// the process ends.
    pub(crate) fn end(&self) {
        let ended = Instant::now() + STOP_PATIENCE;
        while !self.has_ended() && Instant::now() < ended {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn start(volume: &Arc<Volume>, device: OwnedFd) -> io::Result<(HiddenFile, OwnedFd)> {
    let read_only = volume.info().read_only;
    let mount = detached_mount(&device, read_only)?;
    let holes = Arc::new(Holes::default());
    let count = thread::available_parallelism().map_or(2, usize::from).clamp(2, THREADS_MAX);
    let user = User::LoopDriver(holes.clone());
    let (transport, threads) =
        serve(volume, &Device::new(device), user, count, Transport::Classic)?;
    // The mount goes with its descriptor; the opened file keeps it alive as long as it is needed.
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let root = format!("/proc/self/fd/{}", mount.as_raw_fd());
    let opened = open(Path::new(&root), access | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())?;
    // Until it is asked for, the size of a root is 0. The driver asks since Linux 6.16 only.
    statx(&opened, "", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, StatxFlags::SIZE)?;
    Ok((HiddenFile { transport, threads, holes }, opened))
}

/// A mount of one regular file, attached to no directory.
fn detached_mount(device: &OwnedFd, read_only: bool) -> io::Result<OwnedFd> {
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let owner = rustix::process::geteuid().as_raw().to_string();
    let group = rustix::process::getegid().as_raw().to_string();
    for (key, value) in [
        ("source", "ucrypt"),
        ("subtype", "ucrypt"),
        ("fd", &device.as_raw_fd().to_string()),
        ("rootmode", "100600"),
        ("user_id", &owner),
        ("group_id", &group),
    ] {
        fsconfig_set_string(&context, key, value)?;
    }
    if read_only {
        fsconfig_set_flag(&context, "ro")?;
    }
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, RecvTimeoutError};

    use super::*;
    use crate::fuse::abort::abort;

    /// Needs root and FUSE.
    #[test]
    fn what_waits_for_a_server_that_cannot_answer_fails_when_the_connection_is_aborted() {
        let device = open(mount::DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let device = device.expect("/dev/fuse, as root");
        let mount = detached_mount(&device, false).expect("a mount, as root");
        let root = format!("/proc/self/fd/{}", mount.as_raw_fd());
        let (said, heard) = mpsc::channel();
        let user = thread::spawn(move || {
            // The kernel's first request has no answer, so this waits.
            let opened = open(Path::new(&root), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
            said.send(opened.map(drop)).expect("the test listens");
        });
        assert_eq!(heard.recv_timeout(Duration::from_millis(50)), Err(RecvTimeoutError::Timeout));
        abort(&device).expect("aborted");
        let opened = heard.recv_timeout(Duration::from_secs(20)).expect("it waits no longer");
        assert!(opened.is_err());
        user.join().expect("it ends");
    }
}
