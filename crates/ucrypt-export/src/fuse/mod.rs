//! A volume as a file.
//!
//! The export mounts one regular file, of the volume's size, over another: the file system has no
//! directory and no names. The FUSE server is written for just this: `abi` knows the kernel's
//! structures, `mount` mounts and unmounts, and `file` knows what a request means. Two transports
//! move requests and answers between the kernel and engine queues: `classic` by read(2) and
//! write(2) on `/dev/fuse`, `ring` by io_uring. Without root, mounting needs the setuid helper
//! `fusermount3` (package `fuse3`).

mod abi;
mod abort;
mod answers;
mod classic;
mod device;
mod file;
mod hidden;
mod mount;
mod mount_point;
mod peers;
mod ring;
mod transport;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use ucrypt_engine::Volume;

use crate::ending::{holds_by, spawn};
use crate::memory::{self, Share};
pub use abort::Abort;
use classic::Classic;
use device::{Device, Wanted};
use file::{User, VolumeFile};
pub use hidden::HiddenFile;
use mount::Mounted;
use mount_point::MountPoint;
pub use mount_point::{is_served, remove_stale};
use peers::Peer;
use ring::{Ring, WORK_REQUESTS};
pub use transport::{InUse, Preference, Reason, Transport, kernel_has_rings};

/// Largest request in bytes, if there is memory for it: the kernel's limit without privileges.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Most requests that a thread has in flight.
const DEPTH: u32 = 128;

/// How long [`FuseExport::stop`] waits for programs that still have the file open.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// How long [`FuseExport::try_stop_all`] waits for the kernel to report that a file was closed, which
/// happens a little after close(2).
const CLOSE_PATIENCE: Duration = Duration::from_millis(500);

/// Why a volume could not be served as a file.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// There is no `/dev/fuse`.
    #[error(
        "this system has no FUSE (/dev/fuse is missing); load it (modprobe fuse) or use NBD (--as nbd)"
    )]
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
         and access to /dev/fuse; or use NBD (--as nbd)"
    )]
    Mount {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The connection to the kernel ended while the file was mounted.
    #[error(
        "the kernel no longer asks for {path}: somebody aborted its connection, or unmounted it by \
         force; programs that used it got errors, serve it again"
    )]
    Aborted {
        /// The file.
        path: PathBuf,
    },
    /// The file keeps its name.
    #[error("cannot take the name {path} away from its file: {error}")]
    Detach {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The path leads to something else.
    #[error("something is mounted over {path}, or it was moved; unmount that first")]
    OutOfReach {
        /// The file.
        path: PathBuf,
    },
    /// The service goes on: nothing ends those who use the file.
    #[error(
        "{path} could not be ended: it is mounted elsewhere by now, or programs have it open and there is \
         no permission to abort its connection; end them, or unmount it where it is"
    )]
    GoesOn {
        /// The file.
        path: PathBuf,
    },
    /// The service has ended, but the file is still mounted.
    #[error(
        "{path} is served no more, but stays mounted: something is mounted over it, or it was moved; unmount \
         that, and then {path} (umount)"
    )]
    Stays {
        /// The file.
        path: PathBuf,
    },
    /// The kernel refused a mount that is attached to no path.
    #[error("cannot mount a file for the loop driver: {error}; it needs root and Linux 5.2")]
    Hidden {
        /// The reason.
        error: io::Error,
    },
}

/// How a volume is served as a file.
#[derive(Debug, Clone, Copy, Default)]
pub struct FuseOptions {
    /// The preferred transport. Where the kernel has no rings for FUSE, or none for us, the export
    /// uses [`Transport::Classic`].
    pub transport: Preference,
    /// The volume has other exports, such as another file. Then programs may not map the file
    /// shared: the kernel caches mapped pages and does not see writes through other exports.
    pub others: bool,
}

/// A mounted file. Dropping it unmounts.
#[derive(Debug)]
pub struct FuseExport {
    place: MountPoint,
    mounted: Mounted,
    /// The threads keep it.
    device: Weak<Device>,
    file: Arc<VolumeFile>,
    transport: InUse,
    /// Empty once the export is stopped and has ended.
    threads: Vec<JoinHandle<()>>,
    /// When an export that is to stop waits no longer for programs that have the file open.
    until: Option<Instant>,
    /// Aborts the connection. Made at the start: later the path may be gone, or lead elsewhere.
    abort: Option<Abort>,
    /// How it ended, if not as it should.
    problem: Option<FuseError>,
}

impl FuseExport {
    /// Whether a file could be served at `path` now. Nothing appears there meanwhile.
    ///
    /// # Errors
    /// [`FuseError::MountPoint`] says what is in the way.
    pub fn check(path: &Path) -> Result<(), FuseError> {
        MountPoint::check(path).map_err(|error| FuseError::MountPoint { path: path.into(), error })
    }

    /// Mounts the volume over `path`, creating the file if there is none, and serves it from
    /// background threads.
    pub fn start(
        volume: &Arc<Volume>,
        path: &Path,
        options: FuseOptions,
    ) -> Result<Self, FuseError> {
        if !Path::new(mount::DEVICE).exists() {
            return Err(FuseError::Missing);
        }
        let mut place = MountPoint::prepare(path)
            .map_err(|error| FuseError::MountPoint { path: path.into(), error })?;
        let file = Arc::new(VolumeFile::new(volume.clone(), User::Programs));
        let started = mount::mount(&mut place, volume.info().read_only);
        let started = started.and_then(|(mounted, device)| {
            let how = How {
                transport: options.transport,
                threads: cores().max(2),
                shared_mappings: !options.others,
            };
            let device = Arc::new(Device::new(device));
            match serve(&file, &device, how) {
                Ok((transport, threads)) => {
                    Ok((mounted, Arc::downgrade(&device), transport, threads))
                }
                Err(error) => {
                    // The reason why it is not served is the one that counts.
                    let _ = mounted.detach();
                    Err(error)
                }
            }
        });
        match started {
            Ok((mounted, device, transport, threads)) => {
                let (until, abort, problem) = (None, mounted.abort(), None);
                Ok(Self { place, mounted, device, file, transport, threads, until, abort, problem })
            }
            Err(error) => {
                place.remove();
                Err(FuseError::Mount { path: place.path().into(), error })
            }
        }
    }

    /// Where the file was put. Its directory may have been renamed since.
    pub fn path(&self) -> &Path {
        self.place.path()
    }

    /// Tells the kernel the volume's present size. Call the function in a thread of its own: while
    /// requests have used up the threads of the file, the kernel waits for them.
    pub fn size_taker(&self) -> impl FnOnce() -> io::Result<()> + Send + use<> {
        let path = self.mounted.path();
        move || {
            // A forced statx(2) makes the kernel ask us for the size.
            statx(CWD, &path, AtFlags::STATX_FORCE_SYNC, StatxFlags::SIZE)?;
            Ok(())
        }
    }

    /// The transport in use, and why.
    pub fn transport(&self) -> InUse {
        self.transport
    }

    /// Whether the export has ended by itself: somebody else unmounted it or aborted its
    /// connection.
    pub fn has_ended(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Unmounts each of these that no program has open. Returns whether none is left. Tries every one,
    /// and takes no longer for many than for one.
    pub fn try_stop_all(exports: &mut [Self]) -> bool {
        let until = Instant::now() + CLOSE_PATIENCE;
        exports.iter_mut().filter_map(|export| (!export.try_stop(until)).then_some(())).count() == 0
    }

    /// Major and minor device number of the file's file system, by which it is known wherever it is mounted.
    pub fn number(&self) -> (u32, u32) {
        self.mounted.number()
    }

    /// What fails all requests of the programs that use the file, without waiting for anything; `None` if there
    /// is no permission.
    pub fn abort(&self) -> Option<Abort> {
        self.abort.clone()
    }

    /// Whether the file cannot be unmounted, because something is mounted over it or it was moved.
    pub fn is_out_of_reach(&self) -> bool {
        self.mounted.is_out_of_reach(|| self.is_connected())
    }

    /// Whether the kernel still sends requests. It stops when the last user has gone; the threads end a little
    /// later, and the [number](FuseExport::number) may be another's by then.
    pub fn is_connected(&self) -> bool {
        self.device.upgrade().is_some_and(|device| device.is_connected())
    }

    /// Unmounts if no program has the file open. Returns whether it did.
    fn try_stop(&mut self, until: Instant) -> bool {
        // First, so that a file keeps its name while programs have it open that opened it under
        // another name, in another mount namespace.
        if !holds_by(until, || self.has_ended() || !self.file.is_open()) {
            return false;
        }
        if !self.has_ended() && !self.mounted.unmount_unused(|| self.is_connected()) {
            return false;
        }
        // Somebody may have opened it meanwhile.
        if !holds_by(until, || self.has_ended() || !self.file.is_open()) {
            return false;
        }
        self.unmount();
        self.has_ended()
    }

    /// Removes the name. Programs that have the file open go on; when the last of them closes it,
    /// the export ends.
    ///
    /// # Errors
    /// [`FuseError::OutOfReach`] and [`FuseError::Detach`]: the name is still there, and the export
    /// goes on as before.
    pub fn detach(&self) -> Result<(), FuseError> {
        let path = self.mounted.path();
        if self.is_out_of_reach() {
            return Err(FuseError::OutOfReach { path });
        }
        if let Err(error) = self.mounted.detach() {
            return Err(FuseError::Detach { path, error });
        }
        self.place.remove_at(&path);
        Ok(())
    }

    /// Begins to [`FuseExport::stop`], and returns at once. So the programs that use several files have
    /// the same time to close them, not one after the other.
    pub fn begin_to_stop(&mut self) {
        if self.threads.is_empty() || self.until.is_some() {
            return;
        }
        // When somebody else unmounts the file, its name goes before the threads end.
        if self.has_ended() && self.mounted.is_there() {
            self.problem = Some(FuseError::Aborted { path: self.path().into() });
        }
        if let Err(error) = self.detach() {
            // The file that was made for it goes all the same.
            self.place.remove_at(&self.mounted.path());
            self.problem.get_or_insert(match error {
                FuseError::OutOfReach { path } => FuseError::Stays { path },
                error => error,
            });
        }
        self.until = Some(Instant::now() + STOP_PATIENCE);
    }

    /// Unmounts, and ends the service. Programs that still have the file open after two seconds get
    /// errors from then on, so that nothing of theirs is acknowledged later than this returns.
    ///
    /// # Errors
    /// [`FuseError::Aborted`] if the connection ended while the file was still mounted;
    /// [`FuseError::GoesOn`] if the service could not be ended; [`FuseError::Stays`] and
    /// [`FuseError::Detach`] if it has ended, but the file could not be unmounted.
    pub fn stop(mut self) -> Result<(), FuseError> {
        self.unmount();
        if !self.threads.is_empty() {
            return Err(FuseError::GoesOn { path: self.path().into() });
        }
        self.problem.take().map_or(Ok(()), Err)
    }

    fn unmount(&mut self) {
        self.begin_to_stop();
        let threads = std::mem::take(&mut self.threads);
        let Some(until) = self.until.filter(|_| !threads.is_empty()) else { return };
        let ended = || threads.iter().all(JoinHandle::is_finished);
        // The threads end with the last mount. Others may have copies of it: each mount namespace that
        // began while the file was mounted.
        if !holds_by(until, ended)
            && let Some(abort) = &self.abort
        {
            // If this fails, the threads do not end.
            let _ = abort.now();
        }
        if !holds_by(until + STOP_PATIENCE, ended) {
            self.threads = threads;
        }
    }
}

impl Drop for FuseExport {
    fn drop(&mut self) {
        self.unmount();
    }
}

/// How a file is served.
#[derive(Debug, Clone, Copy)]
struct How {
    /// The preferred transport.
    transport: Preference,
    /// Number of threads for [`Transport::Classic`].
    threads: usize,
    shared_mappings: bool,
}

/// Starts the threads, which end when the file is no longer mounted, and keep the device until then.
fn serve(
    file: &Arc<VolumeFile>,
    device: &Arc<Device>,
    how: How,
) -> io::Result<(InUse, Vec<JoinHandle<()>>)> {
    let mut share = memory::divide(&file.volume, how.threads, REQUEST_BYTES_MAX);
    let first = device.first_request()?;
    // Created now: whatever can fail must fail before the kernel is told to wait for rings.
    let mut rings_made = Vec::new();
    if how.transport.wants_rings()
        && first.offers_rings()
        && let Ok((rings, request_max)) = rings(file, device)
    {
        share.request_max = share.request_max.min(request_max);
        rings_made = rings;
    }
    let ring = !rings_made.is_empty();
    let wanted = Wanted { ring, shared_mappings: how.shared_mappings };
    device.negotiate(&first, share.request_max as u32, wanted);
    let mut threads = Vec::new();
    let mut transport = Transport::Classic;
    if ring && start_rings(rings_made, device, &file.volume, &mut threads)? {
        transport = Transport::Ring;
    }
    // With rings, one classic thread takes the requests that do not come by them.
    if transport == Transport::Ring {
        share = Share { queues: 1, memory: 2 * share.request_max, ..share };
    }
    for (index, peer) in Peer::all(share.queues).enumerate() {
        let classic = Classic::new(file.clone(), device.another()?, peer, share)?;
        let kept = device.clone();
        threads.push(spawn(format!("fuse-{index}"), &file.volume, move || {
            classic.run();
            drop(kept);
        })?);
    }
    let reason = how.transport.reason(transport, first.offers_rings());
    Ok((InUse { transport, reason }, threads))
}

fn cores() -> usize {
    thread::available_parallelism().map_or(2, usize::from)
}

/// Threads that have entries in each kernel queue: two threads can work on the requests of one
/// core's programs.
const SPREAD: usize = 2;

/// Most entries that a thread has in one kernel queue, and so the most requests it takes from that
/// queue at once; the rest are for other threads.
const ENTRIES: usize = 8;

/// Requests that each ring's thread, and the classic one, has memory for beside the entries.
const BESIDE_ENTRIES: usize = WORK_REQUESTS + 1;

/// Creates a ring for each core that we may use; together they serve the queues of all possible
/// cores. Returns the largest request in bytes, too.
fn rings(file: &Arc<VolumeFile>, device: &Device) -> io::Result<(Vec<Ring>, usize)> {
    let all = usize::from(mount::possible_cores()?);
    let threads = cores().min(all);
    // Fewer entries where a thread has many queues, so that its memory does not grow with them.
    let each = (ENTRIES * threads / all.max(1)).max(1);
    // And fewer, or no second thread for a queue, where the memory is too little: each entry keeps
    // memory for a request.
    let sizes = (1..=each).rev().map(|each| (each, SPREAD)).chain([(1, 1)]);
    let (each, spread, request_max) = sizes
        .into_iter()
        .find_map(|(each, spread)| {
            let requests = all * each * spread.min(threads) + threads * BESIDE_ENTRIES;
            let request = memory::request_max(&file.volume, requests, REQUEST_BYTES_MAX)?;
            Some((each, spread, request))
        })
        .ok_or(io::ErrorKind::OutOfMemory)?;
    let ring = |thread: usize| {
        let serves =
            |queue: &u16| (0..spread).any(|next| (usize::from(*queue) + next) % threads == thread);
        let queues: Vec<u16> = (0..all as u16).filter(serves).collect();
        Ring::new(file.clone(), device.another()?, &queues, each, request_max)
    };
    Ok(((0..threads).map(ring).collect::<io::Result<_>>()?, request_max))
}

/// Starts a thread for each ring. Returns whether the kernel took all of them.
fn start_rings(
    rings: Vec<Ring>,
    device: &Arc<Device>,
    volume: &Arc<Volume>,
    threads: &mut Vec<JoinHandle<()>>,
) -> io::Result<bool> {
    let (said, heard) = mpsc::channel();
    for (index, mut ring) in rings.into_iter().enumerate() {
        let (said, kept) = (said.clone(), device.clone());
        threads.push(spawn(format!("fuse-ring-{index}"), volume, move || {
            // This fails only if another thread could not be started, so that nobody listens.
            let _ = said.send(ring.register());
            drop(said);
            ring.run();
            drop(kept);
        })?);
    }
    drop(said);
    Ok(heard.iter().all(|taken| taken))
}
