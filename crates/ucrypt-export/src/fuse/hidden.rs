//! The file for the loop driver: mounted nowhere, so that no other program can reach it and nothing
//! of it is left when the server dies.
//!
//! The driver punches the same hole in its file for two requests: a discard, after which the
//! content does not matter, and a write of zeroes that may be unmapped, after which the range must
//! read as zeroes. Only the discard can be passed on to an encrypted volume. To tell the two apart:
//!
//! - Since Linux 6.11 the driver gives up write-zeroes requests once the file refuses to zero a
//!   range. [`HiddenFile::settle_holes`] causes this on a new device: it has the driver zero a short
//!   range, the probe. The kernel then writes the probe's zeroes as data; the file drops only these
//!   writes. Others may use the device meanwhile, so the range is random: nobody else happens to
//!   write zeroes there at that moment. From then on a hole is a discard.
//! - The driver renews its limits when its block size changes (`losetup --sector-size`), and may
//!   then zero by holes again. It asks for `statfs` each time before. From then on the file refuses
//!   holes, and the driver gives them up.
//! - Before Linux 6.11, the file discards every hole and answers `EOPNOTSUPP`: the kernel's block
//!   layer ignores this error after a discard, and writes the zeroes itself otherwise.
//!
//! Where the volume has neither discards nor fast zeroes, `statfs` fails, so that the driver does
//! not offer discards.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, open, statx};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};
use ucrypt_engine::Volume;

use super::abort::Abort;
use super::device::Device;
use super::file::{User, VolumeFile};
use super::{FuseError, How, Preference, STOP_PATIENCE, Transport, cores, mount, serve};
use crate::ending::holds_by;

/// Most threads: the driver has requests of one disk only, and the threads hold locked memory.
const THREADS_MAX: usize = 4;

/// Length of the probe in bytes. At least the page size of any kernel: the kernel drops whole cached
/// pages, but zeroes parts of pages. Twice as much would do no harm.
const PROBE_BYTES: u64 = 64 << 10;

/// How long to wait for the driver to close the file of a device that nobody uses. It does so at once;
/// on a machine that has better things to do, that takes a while.
const DRIVER_PATIENCE: Duration = Duration::from_secs(30);

/// What a hole that the driver punches means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hole {
    /// A discard.
    Discard,
    /// A discard, or zeroes that the kernel writes itself if the hole is refused.
    DiscardOrNothing,
    /// Perhaps zeroes; after a refusal the driver gives up holes.
    Unclear,
}

/// What is known about the holes that the driver punches.
#[derive(Debug)]
pub(super) struct Holes {
    /// The meaning is not settled yet: requests to zero a range are refused.
    asking: AtomicBool,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    meaning: Hole,
    /// How often the driver has renewed its limits.
    renewals: u64,
    /// The probe's range, whose zeroes are not written, and how many of its bytes are still to
    /// come.
    probe: Range<u64>,
    left: u64,
}

impl Holes {
    /// With `asking`, [`HiddenFile::settle_holes`] will settle the meaning.
    fn new(asking: bool) -> Self {
        let meaning = if asking { Hole::Unclear } else { Hole::DiscardOrNothing };
        let known = Mutex::new(Known { meaning, renewals: 0, probe: 0..0, left: 0 });
        Self { asking: AtomicBool::new(asking), known }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn asking(&self) -> bool {
        self.asking.load(Ordering::Acquire)
    }

    pub(super) fn meaning(&self) -> Hole {
        self.known().meaning
    }

    /// Whether a write must be dropped because it brings the probe's zeroes, which come only once.
    pub(super) fn is_probe(&self, offset: u64, len: usize, zeroes: impl FnOnce() -> bool) -> bool {
        if !self.asking() {
            return false;
        }
        let mut known = self.known();
        let (len, end) = (len as u64, offset.saturating_add(len as u64));
        let inside = offset >= known.probe.start && end <= known.probe.end && len <= known.left;
        if !inside || !zeroes() {
            return false;
        }
        known.left -= len;
        true
    }

    /// The driver renews its limits.
    pub(super) fn limits_are_renewed(&self) {
        let mut known = self.known();
        known.renewals += 1;
        if known.meaning == Hole::Discard {
            known.meaning = Hole::Unclear;
        }
    }

    /// Settles the meaning of holes. `probe` has the driver zero `range`, and tells whether the
    /// driver has given up write-zeroes requests.
    fn settle(&self, range: Range<u64>, probe: impl FnOnce() -> bool) {
        let renewals = {
            let mut known = self.known();
            (known.left, known.probe) = (range.end - range.start, range);
            known.renewals
        };
        let given_up = probe();
        let mut known = self.known();
        (known.left, known.probe) = (0, 0..0);
        known.meaning = match given_up {
            true if known.renewals == renewals => Hole::Discard,
            true => Hole::Unclear,
            false => Hole::DiscardOrNothing,
        };
        self.asking.store(false, Ordering::Release);
    }
}

/// A file that only holders of its descriptor can use. It ends when the last descriptor is closed.
#[derive(Debug)]
pub struct HiddenFile {
    threads: Vec<JoinHandle<()>>,
    /// Bytes.
    len: u64,
    holes: Arc<Holes>,
    abort: Option<Abort>,
}

impl HiddenFile {
    /// Serves the volume from background threads and opens the file. Needs root and Linux 5.2.
    pub fn start(volume: &Arc<Volume>) -> Result<(Self, OwnedFd), FuseError> {
        let device = open(mount::DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let device = device.map_err(|error| match error {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => FuseError::Missing,
            error => FuseError::Hidden { error: error.into() },
        })?;
        start(volume, device).map_err(|error| FuseError::Hidden { error })
    }

    /// Finds out what holes mean, if they can be discards. To be called as soon as there is a
    /// device. `probe(offset, len)` has the device zero a range of bytes, which leaves the volume's
    /// content unchanged, and tells whether the driver has given up write-zeroes requests.
    pub(crate) fn settle_holes(&self, probe: impl FnOnce(u64, u64) -> bool) {
        if self.holes.asking() {
            let range = random_range(self.len);
            let (offset, len) = (range.start, range.end - range.start);
            self.holes.settle(range, || probe(offset, len));
        }
    }

    /// What fails all requests of the driver, without waiting for anything; `None` if there is no permission.
    pub(crate) fn abort(&self) -> Option<Abort> {
        self.abort.clone()
    }

    /// Whether nobody has the file open any more.
    pub fn has_ended(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits until nobody has the file open: briefly, if there may be users. If somebody still has it
    /// then, the file is served until the process ends.
    pub(crate) fn end(&self, has_users: bool) {
        let patience = if has_users { STOP_PATIENCE } else { DRIVER_PATIENCE };
        holds_by(Instant::now() + patience, || self.has_ended());
    }
}

fn start(volume: &Arc<Volume>, device: OwnedFd) -> io::Result<(HiddenFile, OwnedFd)> {
    let info = volume.info();
    let read_only = info.read_only;
    let mount = detached_mount(&device, read_only)?;
    let holes = Arc::new(Holes::new(info.discard && !info.fast_write_zeroes));
    let file = Arc::new(VolumeFile::new(volume.clone(), User::LoopDriver(holes.clone())));
    let how = How {
        transport: Preference::Only(Transport::Classic),
        threads: cores().clamp(2, THREADS_MAX),
        shared_mappings: false,
    };
    let (_, threads) = serve(&file, &Arc::new(Device::new(device)), how)?;
    // The mount ends with its descriptor, but the opened file keeps it alive as long as needed.
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let root = format!("/proc/self/fd/{}", mount.as_raw_fd());
    let opened = open(Path::new(&root), access | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())?;
    // The size of a root inode is 0 until somebody asks for it; the driver does only since
    // Linux 6.16.
    let found =
        statx(&opened, "", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, StatxFlags::SIZE)?;
    // The kernel names a connection after the device number of its file system.
    let abort = Abort::of(found.stx_dev_minor).ok();
    Ok((HiddenFile { threads, len: info.len, holes, abort }, opened))
}

/// A random range of [`PROBE_BYTES`] bytes in a volume of `len` bytes, or all of a shorter one.
fn random_range(len: u64) -> Range<u64> {
    // From the source of std's hash map keys.
    let random = RandomState::new().build_hasher().finish();
    match len / PROBE_BYTES {
        0 => 0..len,
        count => {
            let start = random % count * PROBE_BYTES;
            start..start + PROBE_BYTES
        }
    }
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
    use std::os::fd::AsFd;
    use std::sync::mpsc::{self, RecvTimeoutError};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::fuse::abort::abort;

    #[test]
    fn only_the_zeroes_of_the_probe_are_not_carried_out() {
        let holes = Holes::new(true);
        assert!(holes.asking() && !holes.is_probe(4096, 4096, || true), "there is none yet");
        holes.settle(4096..12288, || {
            assert!(!holes.is_probe(0, 8192, || true) && !holes.is_probe(8192, 8192, || true));
            assert!(!holes.is_probe(4096, 4096, || false), "somebody's data");
            assert!(holes.is_probe(4096, 4096, || true), "the kernel may cut it");
            assert!(!holes.is_probe(4096, 8192, || true), "somebody's zeroes");
            assert!(holes.is_probe(8192, 4096, || true));
            assert!(!holes.is_probe(4096, 4096, || true), "it comes once");
            true
        });
        assert!(!holes.asking() && !holes.is_probe(4096, 4096, || true));
    }

    #[test]
    fn holes_are_unclear_from_when_the_driver_may_write_zeroes_again() {
        let holes = Holes::new(true);
        assert_eq!(holes.meaning(), Hole::Unclear);
        // When it is attached.
        holes.limits_are_renewed();
        holes.settle(0..4096, || true);
        assert_eq!(holes.meaning(), Hole::Discard);
        holes.limits_are_renewed();
        assert_eq!(holes.meaning(), Hole::Unclear);
        // The limits are renewed during the probe.
        let holes = Holes::new(true);
        holes.settle(0..4096, || {
            holes.limits_are_renewed();
            true
        });
        assert_eq!(holes.meaning(), Hole::Unclear);
        // A driver that never gives up.
        let holes = Holes::new(true);
        holes.settle(0..4096, || false);
        holes.limits_are_renewed();
        assert_eq!(holes.meaning(), Hole::DiscardOrNothing);
    }

    #[test]
    fn the_probe_lies_in_the_volume() {
        assert_eq!(random_range(512), 0..512);
        for count in 1..20 {
            let range = random_range(count * PROBE_BYTES + 512);
            assert!(range.start.is_multiple_of(PROBE_BYTES) && range.end <= count * PROBE_BYTES);
            assert_eq!(range.end - range.start, PROBE_BYTES);
        }
    }

    /// Regression: the number of a mount that was just unmounted is free for others before its server's
    /// threads have ended, and `close` took another's mount for its own.
    ///
    /// Needs root and FUSE.
    #[test]
    fn the_end_of_a_connection_is_known_before_its_number_is_anothers() {
        let device = open(mount::DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let device = Device::new(device.expect("/dev/fuse, as root"));
        let mounted = |device: &Device| {
            let raw = device.as_fd().try_clone_to_owned().expect("a descriptor");
            detached_mount(&raw, false).expect("a mount, as root")
        };
        let mount = mounted(&device);
        let number = |mount: &OwnedFd| {
            let found =
                statx(mount, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::INO);
            let found = found.expect("it is there");
            (found.stx_dev_major, found.stx_dev_minor)
        };
        let (first, another) = (number(&mount), device.another().expect("a descriptor"));
        assert!(device.is_connected() && another.is_connected());
        drop(mount);
        // Numbers of ended mounts are taken again; other tests may take this one.
        let mut others = Vec::new();
        for _ in 0..64 {
            let device = open(mount::DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
            let device = Device::new(device.expect("/dev/fuse"));
            let mount = mounted(&device);
            if number(&mount) == first {
                assert!(!another.is_connected(), "{first:?} is another's");
                // Its number is read from the kernel, which still tells it.
                abort(&another).expect("nothing to do");
                assert!(device.is_connected(), "another's connection was aborted");
                break;
            }
            others.push((device, mount));
        }
        assert!(!device.is_connected() && !another.is_connected());
    }

    /// Needs root and FUSE.
    #[test]
    fn what_waits_for_a_server_that_cannot_answer_fails_when_the_connection_is_aborted() {
        let device = open(mount::DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let device = device.expect("/dev/fuse, as root");
        let mount = detached_mount(&device, false).expect("a mount, as root");
        let device = Device::new(device);
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
