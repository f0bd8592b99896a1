//! A volume as a block device of the kernel: `/dev/ublkbN`.
//!
//! The kernel's driver `ublk_drv` provides the device and hands its requests to threads of this
//! process through io_uring. There is one queue per core; each is served by one thread, which owns
//! an engine queue and submits its commands on that queue's ring. Needs Linux 6.5 or newer; see
//! `docs/ublk.md`.
//!
//! - `abi`: the kernel's commands and structures;
//! - `control`: commands to `/dev/ublk-control`;
//! - `device`: one device, added or taken over, started and stopped;
//! - `queue`: the loop of a thread, which uses `commands`, `descriptors`, `data` and `zones`.

mod abi;
mod commands;
mod control;
mod data;
mod descriptors;
mod device;
mod error;
mod limits;
mod queue;
mod zones;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use ucrypt_engine::{QueueConfig, Volume, VolumeZones};

use crate::ending::spawn;
use crate::memory::{self, Share};
use device::{Bounds, Device};
use error::failed;
use queue::{QueueParams, Server};

pub use error::UblkError;

/// Depth of a queue, and its largest request in bytes if there is memory for it.
const DEPTH: u16 = 128;
const IO_BYTES_MAX: usize = 1 << 20;

/// The same for users without privileges, whose queues keep a buffer for every request.
const USER_DEPTH: u16 = 32;
const USER_IO_BYTES_MAX: usize = 128 << 10;

/// Most queues, however many cores there are.
const QUEUES_MAX: usize = 64;

/// What happens to a device whose server dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDeath {
    /// Its requests fail, and it ends.
    #[default]
    Fail,
    /// Its requests wait for a server that takes the device over.
    Wait,
}

/// Whether to take over a dead server's device instead of adding one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recover {
    /// Add a device.
    #[default]
    No,
    /// Take over the device of this number.
    Device(u32),
    /// Take over the volume's device, if one waits for a server; else add one.
    IfWaiting,
    /// Add a device, unless one of the volume waits for a server: for a volume of which nobody knows whether it has the
    /// right key.
    Refuse,
}

/// How a volume is served.
#[derive(Debug, Clone, Copy, Default)]
pub struct UblkOptions {
    /// The device's number; `None`: the first that is free.
    pub number: Option<u32>,
    /// What happens to the device if this process dies.
    pub on_death: OnDeath,
    /// Whether to take over a device.
    pub recover: Recover,
    /// A number that identifies this volume, so that no other volume's device is taken over or
    /// deleted. It is not secret: every privileged process can read it.
    pub identity: u64,
}

/// Takes the first steps to a device, and makes none: whether the driver is there, this process may use
/// it, and it is new enough.
///
/// # Errors
/// Why there can be no device.
pub fn check() -> Result<(), UblkError> {
    device::check()
}

/// A running device. Dropping it stops and deletes it; one that was taken over only after [`UblkExport::own`].
pub struct UblkExport {
    path: PathBuf,
    /// `None` only while the export starts or ends.
    device: Option<Device>,
    threads: Vec<JoinHandle<()>>,
    failed: BrokenQueue,
    detached: AtomicBool,
}

impl UblkExport {
    /// Adds a device or takes one over, and serves the volume there from background threads.
    pub fn start(volume: &Arc<Volume>, options: &UblkOptions) -> Result<Self, UblkError> {
        let zones = volume.zones()?;
        let parameters = |io_bytes_max, privileged| {
            let basic = limits::parameters(&volume.info(), io_bytes_max, privileged);
            zones.as_ref().map_or(basic, |zones| limits::zoned(basic, zones))
        };
        let bounds = |privileged| {
            let bounds = bounds(volume, privileged);
            // A single queue, because one thread has to order the appends.
            if zones.is_some() { Bounds { queues: 1, ..bounds } } else { bounds }
        };
        let mut device = Device::new(options, bounds, parameters)?;
        let info = *device.info();
        let has_user_copy = device.has(abi::feature::USER_COPY);
        let longest = info.io_bytes_max as usize;
        let kept = if has_user_copy { 0 } else { usize::from(info.depth) * longest };
        let each = memory::bytes(volume) / usize::from(info.queues.max(1));
        // At least for two requests, also on a device that another server has made.
        let memory = each.saturating_sub(kept).max(2 * longest);
        let mut starting = Starting::default();
        for queue in 0..info.queues {
            let place = QueueParams {
                queue,
                depth: info.depth,
                io_bytes_max: info.io_bytes_max,
                memory,
                user_copy: has_user_copy,
            };
            starting.prepare(volume, place, zones.clone()).map_err(failed("start the queues"))?;
        }
        let mut export = Self {
            path: device.path(),
            device: None,
            threads: vec![],
            failed: starting.failed.clone(),
            detached: false.into(),
        };
        // Everything that could be missing is there: from here on the kernel depends on us.
        let attached = starting.await_all().map_err(failed("prepare the queues")).and_then(|()| {
            let file = device.open_for_queues()?;
            starting.attach(&file);
            starting.await_all().map_err(failed("attach the queues"))
        });
        export.threads = starting.into_threads();
        let started = attached.and_then(|()| device.start());
        export.device = Some(device);
        // A failure drops the export, which ends whatever has been started.
        started.map(|()| export)
    }

    /// Has a device that was taken over end with this export, as every other one does. Until then it is left if the
    /// export is dropped: this process serves it until it ends, and then it waits for the next server. So a server
    /// whose start fails later costs those nothing who use the device.
    pub fn own(&mut self) {
        if let Some(device) = &mut self.device {
            device.own();
        }
    }

    /// Path of the block device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether somebody else stopped the device, or a queue broke.
    pub fn is_dead(&self) -> bool {
        // With one broken queue, a part of the disk does not answer.
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Whether it was stopped: its number may be another device's by now.
    pub fn is_stopped(&self) -> bool {
        self.device.is_none()
    }

    /// Whether the export has ended by itself: it [is dead](UblkExport::is_dead), or after
    /// [`UblkExport::detach`] no file system and no other device uses it any more.
    pub fn has_ended(&self) -> bool {
        self.is_dead() || self.detached.load(Ordering::Relaxed) && !self.is_in_use()
    }

    /// Stops the device if no file system and no other device uses it. Returns whether it did.
    /// It does not notice programs that merely have the device open; they get errors. `stops` is
    /// called just before: the kernel then waits for the requests under way.
    pub fn try_stop(&mut self, stops: impl FnOnce()) -> bool {
        let Some(device) = &mut self.device else { return true };
        let claim = device.claim();
        if claim.is_none() && self.threads.iter().all(|thread| !thread.is_finished()) {
            return false;
        }
        stops();
        device.stop();
        // Nobody can start to use the device any more.
        drop(claim);
        self.end();
        true
    }

    /// Makes the export end as soon as nobody uses the device. The device's name stays until then.
    pub fn detach(&self) {
        self.detached.store(true, Ordering::Relaxed);
    }

    /// Stops the device. Requests in flight are finished, later ones get errors.
    ///
    /// # Errors
    /// [`UblkError::Broken`] if a queue broke.
    pub fn stop(mut self) -> Result<(), UblkError> {
        self.end();
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let device = self.path.clone();
        failed.map_or(Ok(()), |error| Err(UblkError::Broken { device, error }))
    }

    fn is_in_use(&self) -> bool {
        self.device.as_ref().is_some_and(|device| device.claim().is_none())
    }

    fn end(&mut self) {
        let Some(mut device) = self.device.take() else { return };
        if device.is_left() {
            return self.threads.clear();
        }
        if self.failed.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            device.close_file();
        }
        device.stop();
        for thread in self.threads.drain(..) {
            // A thread that panicked has ended too.
            let _ = thread.join();
        }
        // The threads have ended, so the kernel's device may go.
        drop(device);
    }
}

impl Drop for UblkExport {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for UblkExport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UblkExport").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Why the last queue that broke did.
type BrokenQueue = Arc<Mutex<Option<io::Error>>>;

/// Queues that are starting: first each takes what it needs, then all attach to the device.
#[derive(Default)]
struct Starting {
    threads: Vec<JoinHandle<()>>,
    failed: BrokenQueue,
    /// By thread: sends the device to attach to, and receives the result of each step.
    go: Vec<Sender<Arc<File>>>,
    said: Vec<Receiver<io::Result<()>>>,
}

impl Starting {
    /// Starts the thread of a queue, which creates its engine queue and waits.
    fn prepare(
        &mut self,
        volume: &Arc<Volume>,
        params: QueueParams,
        zones: Option<VolumeZones>,
    ) -> io::Result<()> {
        let ((go, device), (say, said)) = (channel::<Arc<File>>(), channel());
        let (served, failed) = (volume.clone(), self.failed.clone());
        let serve = move || {
            let config = QueueConfig {
                memory: params.memory,
                request_max: 2 * params.io_bytes_max as usize,
                depth: u32::from(params.depth),
            };
            let engine = match served.queue_with_ring(config, u32::from(params.depth)) {
                Ok(engine) => engine,
                Err(error) => return tell(&say, Err(error)),
            };
            tell(&say, Ok(()));
            // There is none if another queue has failed.
            let Ok(device) = device.recv() else { return };
            let server = match Server::attach(engine, device, params, zones) {
                Ok(server) => server,
                Err(error) => return tell(&say, Err(error)),
            };
            tell(&say, Ok(()));
            // A broken queue ends the export, see `has_ended`.
            if let Err(error) = server.run() {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        };
        let name = format!("ublk-{}", params.queue);
        self.threads.push(spawn(name, volume, serve)?);
        self.go.push(go);
        self.said.push(said);
        Ok(())
    }

    fn attach(&self, device: &Arc<File>) {
        for go in &self.go {
            // `await_all` notices a thread that has ended: its result does not come.
            let _ = go.send(device.clone());
        }
    }

    /// Waits until all threads have taken a step.
    fn await_all(&self) -> io::Result<()> {
        let ended = |_| io::Error::other("a thread has ended");
        self.said.iter().try_for_each(|said| said.recv().map_err(ended).and_then(|said| said))
    }

    /// The threads. Those that still wait for a device end, because its senders are dropped.
    fn into_threads(self) -> Vec<JoinHandle<()>> {
        self.threads
    }
}

/// Reports the result of a step to the thread that waits for it.
fn tell(say: &Sender<io::Result<()>>, result: io::Result<()>) {
    // Nobody waits after another thread's failure.
    let _ = say.send(result);
}

fn bounds(volume: &Volume, privileged: bool) -> Bounds {
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(QUEUES_MAX);
    if privileged {
        let Share { queues, request_max, .. } = memory::divide(volume, cores, IO_BYTES_MAX);
        let (queues, io_bytes_max) = (queues as u16, request_max as u32);
        Bounds { queues, depth: DEPTH, io_bytes_max }
    } else {
        let fit = memory::bytes(volume) / (2 * usize::from(USER_DEPTH) * USER_IO_BYTES_MAX);
        let queues = cores.min(fit.max(1)) as u16;
        Bounds { queues, depth: USER_DEPTH, io_bytes_max: USER_IO_BYTES_MAX as u32 }
    }
}
