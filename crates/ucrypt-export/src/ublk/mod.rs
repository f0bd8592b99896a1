//! A volume as a block device of the kernel: `/dev/ublkbN`.
//!
//! The kernel's driver `ublk_drv` makes the device, and hands its requests to threads of this
//! process through io_uring: one queue per core, each served by one thread, which owns an engine
//! queue and gives its commands on that queue's ring. Linux 6.5 or newer; see `docs/ublk.md`.
//!
//! - `abi`: the kernel's commands and structures;
//! - `control`: commands to `/dev/ublk-control`;
//! - `device`: one device, made or taken over, started and ended;
//! - `queue`: the loop of a thread; `commands`, `descriptors`, `data` and `zones` are what it works
//!   on.

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
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use ucrypt_engine::{QueueConfig, Volume, VolumeZones};

use device::{Bounds, Device};
use queue::{Place, Server};

pub use error::UblkError;

/// Requests of a queue, and the largest of them in bytes.
const DEPTH: u16 = 128;
const IO_BYTES_MAX: u32 = 1 << 20;

/// The same for users without privileges, whose queues keep a buffer for every request.
const USER_DEPTH: u16 = 32;
const USER_IO_BYTES_MAX: u32 = 512 << 10;

/// Buffer memory of an engine queue, in bytes. What finds none waits.
const MEMORY: usize = 8 << 20;

/// Most queues, however many cores there are.
const QUEUES_MAX: usize = 64;

/// What becomes of a device whose server dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnDeath {
    /// Its requests fail, and it ends.
    #[default]
    Fail,
    /// Its requests wait for a server that takes the device over.
    Wait,
}

/// Whether the device of a dead server is taken over instead of making one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recover {
    /// It is not.
    #[default]
    No,
    /// The device of this number.
    Device(u32),
    /// The volume's device, if there is one that waits.
    IfWaiting,
}

/// How a volume is served.
#[derive(Debug, Clone, Copy, Default)]
pub struct UblkOptions {
    /// The number of the device; `None`: the first that is free.
    pub number: Option<u32>,
    /// What becomes of it if this process dies.
    pub on_death: OnDeath,
    /// Whether a device is taken over.
    pub recover: Recover,
    /// A number that tells this volume from others, so that no device is taken over or deleted for
    /// a wrong one. It is not secret: every privileged process can read it.
    pub identity: u64,
}

/// Whether this system has ublk.
pub fn is_available() -> bool {
    Path::new(control::PATH).exists()
}

/// A running device. Dropping it stops and deletes it.
pub struct UblkExport {
    path: PathBuf,
    /// `None` only while it ends.
    device: Option<Device>,
    threads: Vec<JoinHandle<()>>,
    detached: AtomicBool,
}

impl UblkExport {
    /// Makes a device, or takes one over, and serves the volume there from threads in the
    /// background.
    pub fn start(volume: &Arc<Volume>, options: &UblkOptions) -> Result<Self, UblkError> {
        let zones = volume.zones()?;
        let parameters = |io_bytes_max| {
            let basic = limits::parameters(&volume.info(), io_bytes_max);
            zones.as_ref().map_or(basic, |zones| limits::zoned(basic, zones))
        };
        let bounds = |privileged| {
            let bounds = bounds(privileged);
            // One thread puts appends in order.
            if zones.is_some() { Bounds { queues: 1, ..bounds } } else { bounds }
        };
        let mut device = Device::new(options, bounds, parameters)?;
        let info = *device.info();
        let mut starting = Starting::default();
        for queue in 0..info.queues {
            let place = Place {
                queue,
                depth: info.depth,
                io_bytes_max: info.io_bytes_max,
                user_copy: device.has(abi::feature::USER_COPY),
            };
            starting.prepare(volume, place, zones.clone()).map_err(failed("start the queues"))?;
        }
        let mut export =
            Self { path: device.path(), device: None, threads: vec![], detached: false.into() };
        // Everything that can be lacking is there: from here on the kernel counts on us.
        let attached = starting.await_all().map_err(failed("prepare the queues")).and_then(|()| {
            let file = Arc::new(device.open_for_queues()?);
            starting.attach(&file);
            starting.await_all().map_err(failed("attach the queues"))
        });
        export.threads = starting.into_threads();
        let started = attached.and_then(|()| device.start());
        export.device = Some(device);
        // A failure drops the export, which ends what was begun.
        started.map(|()| export)
    }

    /// Where the block device is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it has ended by itself: somebody else has stopped it, or nobody uses it any more
    /// after [`UblkExport::detach`].
    pub fn has_ended(&self) -> bool {
        // One queue that broke is a part of the disk that does not answer.
        self.threads.iter().any(JoinHandle::is_finished)
            || self.detached.load(Ordering::Relaxed) && !self.is_in_use()
    }

    /// Stops the device if no file system and no other device uses it. Returns whether it did.
    /// Programs that merely have it open are not seen; they get errors.
    pub fn try_stop(&mut self) -> bool {
        let Some(device) = &mut self.device else { return true };
        let claim = device.claim();
        if claim.is_none() && self.threads.iter().all(|thread| !thread.is_finished()) {
            return false;
        }
        device.stop();
        // Nobody can begin to use it any more.
        drop(claim);
        self.end();
        true
    }

    /// From now on the export has ended as soon as nobody uses the device. Its name stays until
    /// then.
    pub fn detach(&self) {
        self.detached.store(true, Ordering::Relaxed);
    }

    /// Stops the device. Requests in flight are finished, later ones get errors.
    pub fn stop(mut self) {
        self.end();
    }

    fn is_in_use(&self) -> bool {
        self.device.as_ref().is_some_and(|device| device.claim().is_none())
    }

    fn end(&mut self) {
        let Some(mut device) = self.device.take() else { return };
        device.stop();
        for thread in self.threads.drain(..) {
            // One that panicked has ended too.
            let _ = thread.join();
        }
        // Their files are closed, and the kernel's device may go.
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

/// Queues on their way: first each takes what it needs, then all are attached to the device.
#[derive(Default)]
struct Starting {
    threads: Vec<JoinHandle<()>>,
    /// By thread: the device to attach to, and what it says after each step.
    go: Vec<Sender<Arc<File>>>,
    said: Vec<Receiver<io::Result<()>>>,
}

impl Starting {
    /// Starts the thread of a queue, which makes its engine queue and waits.
    fn prepare(
        &mut self,
        volume: &Arc<Volume>,
        place: Place,
        zones: Option<VolumeZones>,
    ) -> io::Result<()> {
        let ((go, device), (say, said)) = (channel::<Arc<File>>(), channel());
        let volume = volume.clone();
        let serve = move || {
            let config = QueueConfig { memory: MEMORY, depth: u32::from(place.depth) };
            let engine = match volume.queue_with_ring(config, u32::from(place.depth)) {
                Ok(engine) => engine,
                Err(error) => return tell(&say, Err(error)),
            };
            tell(&say, Ok(()));
            // None comes if the others have failed.
            let Ok(device) = device.recv() else { return };
            let server = match Server::attach(engine, device, place, zones) {
                Ok(server) => server,
                Err(error) => return tell(&say, Err(error)),
            };
            tell(&say, Ok(()));
            // A queue that breaks takes the export with it, see `has_ended`.
            let _ = server.run();
        };
        let name = format!("ublk-{}", place.queue);
        self.threads.push(std::thread::Builder::new().name(name).spawn(serve)?);
        self.go.push(go);
        self.said.push(said);
        Ok(())
    }

    fn attach(&self, device: &Arc<File>) {
        for go in &self.go {
            // One that has ended says so by its silence.
            let _ = go.send(device.clone());
        }
    }

    /// Waits until all have taken a step.
    fn await_all(&self) -> io::Result<()> {
        let ended = |_| io::Error::other("a thread has ended");
        self.said.iter().try_for_each(|said| said.recv().map_err(ended).and_then(|said| said))
    }

    fn into_threads(self) -> Vec<JoinHandle<()>> {
        self.threads
    }
}

/// Says how a step went to who waits for it.
fn tell(say: &Sender<io::Result<()>>, result: io::Result<()>) {
    // Nobody waits after another thread's failure.
    let _ = say.send(result);
}

fn bounds(privileged: bool) -> Bounds {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let queues = cores.min(QUEUES_MAX) as u16;
    if privileged {
        Bounds { queues, depth: DEPTH, io_bytes_max: IO_BYTES_MAX }
    } else {
        Bounds { queues, depth: USER_DEPTH, io_bytes_max: USER_IO_BYTES_MAX }
    }
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> UblkError {
    move |error| UblkError::Control { what, error }
}
