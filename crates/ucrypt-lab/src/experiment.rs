//! One run in virtual time: the machine, the disk, the clients and the policy.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ucrypt_backend::Backend;
use ucrypt_backend::model::Profile;
use ucrypt_engine::{
    Calibration, CipherModel, Io, PolicyKind, Queue, QueueConfig, Rejected, Segment, Urgency,
    Volume, VolumeOptions,
};
use ucrypt_sector::{CipherSpec, SectorCipher, SectorOptions};

use crate::client::{Job, Request, Requests};
use crate::load::INTERRUPTED;
use crate::report::{Latency, Report};
use crate::world::{Clients, Costs, Present, Stalls, World};

/// AES-256-XTS on a core with AES instructions, 4 GB/s.
pub const AES_NI: CipherModel = CipherModel { ns_per_byte: 0.25, ns_per_call: 60 };

/// The same at the speed of the machine measured in 2017, 1.1 GB/s.
pub const AES_2017: CipherModel = CipherModel { ns_per_byte: 0.9, ns_per_call: 60 };

/// A run with more events than this loops for ever: a request takes some twenty events, and each
/// chunk as many more.
const EVENTS_MAX: u64 = 200_000_000;

/// Events between two looks whether the run is to stop.
const STOP_EVERY: u64 = 4096;

/// Bytes of an encrypted sector.
pub(crate) const SECTOR_BYTES: u32 = 4096;

/// What the engine's calibration finds when the volume is opened. A real machine measures its costs with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CalibrationKind {
    /// The costs of the simulated machine as they are.
    #[default]
    Exact,
    /// Each of them wrong by a factor of 1/2 to 2, by the seed.
    Off,
    /// Nothing, as if no worker had answered in time: only requests teach the estimates.
    Missing,
}

impl FromStr for CalibrationKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "exact" => Ok(Self::Exact),
            "off" => Ok(Self::Off),
            "missing" => Ok(Self::Missing),
            _ => Err(format!("there is no calibration {name}; there are exact, off and missing")),
        }
    }
}

/// One run.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// Cores of the machine, or threads of cores; at least 1.
    pub cores: u32,
    /// Threads that share a core's cipher unit.
    pub threads_per_core: u32,
    /// Queues, each a thread on a core of its own while there are enough cores; at least 1.
    pub queues: u32,
    /// Workers, placed on cores without a queue while there are enough.
    pub workers: u32,
    /// The speed of the cipher.
    pub cipher: CipherModel,
    /// All other costs.
    pub costs: Costs,
    /// The disk, shared by all queues.
    pub device: &'static Profile,
    /// The job of each queue's clients.
    pub job: Job,
    /// The policy of every queue.
    pub policy: PolicyKind,
    /// How urgently the clients wait for their requests.
    pub urgency: Urgency,
    /// What the queues start with.
    pub calibration: CalibrationKind,
    /// How often a core is taken away from its thread.
    pub stalls: Stalls,
    /// Seed of everything random.
    pub seed: u64,
}

impl Experiment {
    /// An experiment with one queue, and as many workers as the engine starts: one for each core.
    pub fn new(
        cores: u32,
        device: &'static Profile,
        job: Job,
        policy: impl Into<PolicyKind>,
    ) -> Self {
        Self {
            cores,
            threads_per_core: 1,
            queues: 1,
            workers: cores,
            cipher: AES_NI,
            costs: Costs::default(),
            device,
            job,
            policy: policy.into(),
            urgency: Urgency::Normal,
            calibration: CalibrationKind::Exact,
            stalls: Stalls::default(),
            seed: 1,
        }
    }

    /// Runs the experiment to its end.
    ///
    /// # Panics
    /// If a request fails or never ends, or a count that must be at least 1 is 0.
    pub fn run(&self) -> Report {
        self.run_over(|disk| disk)
    }

    /// As [`Experiment::run`], over the backend that `wrap` makes of the disk.
    ///
    /// # Panics
    /// As [`Experiment::run`].
    pub fn run_over(&self, wrap: impl FnOnce(Arc<dyn Backend>) -> Arc<dyn Backend>) -> Report {
        self.steps(wrap, &|| false).unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`Experiment::run`], until `stop` is set.
    ///
    /// # Errors
    /// If `stop` was set, or the experiment takes too many steps.
    ///
    /// # Panics
    /// If a request fails or never ends, or a count that must be at least 1 is 0.
    pub fn run_until(&self, stop: &AtomicBool) -> io::Result<Report> {
        self.steps(|disk| disk, &|| stop.load(Ordering::Relaxed))
    }

    fn steps(
        &self,
        wrap: impl FnOnce(Arc<dyn Backend>) -> Arc<dyn Backend>,
        stops: &dyn Fn() -> bool,
    ) -> io::Result<Report> {
        let count = |number: u32| number as usize;
        let workers = if self.policy.uses_workers() { self.workers } else { 0 };
        let machine = (count(self.cores), count(self.queues), count(workers));
        let mut world = World::new(machine.0, machine.1, machine.2, self.costs);
        world.set_stalls(self.stalls, self.seed);
        world.set_threads_per_core(self.threads_per_core);
        let disk = wrap(world.empty_disk(self.device, self.job.region_bytes, self.seed));
        let volume = self.volume(&world, disk);
        let block = self.job.block_bytes as usize;
        let depth = self.job.depth.max(1);
        // Buffers are rounded up to powers of two.
        let memory = 2 * count(depth) * block.next_power_of_two();
        let measured = Rc::new(RefCell::new(Measured::default()));
        let queues: Vec<_> = (0..machine.1)
            .map(|index| {
                let queue = world.queue(&volume, QueueConfig::new(memory, depth)).expect("a queue");
                queue.borrow_mut().set_clients_here(true);
                queue.borrow_mut().set_urgency(self.urgency);
                let requests = Requests::new(self.job, (index as u64, machine.1 as u64), self.seed);
                world.attach(index, Box::new(Asking::new(self.job, requests, &measured)));
                queue
            })
            .collect();
        let mut events = 0;
        while world.advance() {
            events += 1;
            if events % STOP_EVERY == 0 && (stops() || events >= EVENTS_MAX) {
                let error = if events < EVENTS_MAX {
                    io::Error::new(io::ErrorKind::Interrupted, INTERRUPTED)
                } else {
                    io::Error::other(format!(
                        "a simulation takes more than {EVENTS_MAX} steps: the cipher is too slow for its \
                         requests, or it goes round in a circle ({})",
                        world.describe()
                    ))
                };
                // Whoever drops a queue waits for what is under way, which never ends now.
                std::mem::forget((world, queues));
                return Err(error);
            }
        }
        let stuck: usize = queues.iter().map(|queue| queue.borrow().in_flight()).sum();
        assert!(stuck == 0, "{stuck} requests never end: {}", world.describe());
        let measured = &mut *measured.borrow_mut();
        let in_flight = self.queues * depth;
        Ok(Report {
            // Clients without think time keep their depth: throughput is what is in flight over its
            // latency (Little's law). Unlike a count in a window, this does not depend on where
            // bursts begin.
            mb_s: f64::from(in_flight) * measured.bytes as f64 * 1000.0
                / measured.latencies_ns.max(1) as f64,
            reads: Latency::of(&mut measured.reads),
            writes: Latency::of(&mut measured.writes),
            busy: world.busy(),
            stats: queues.iter().map(|queue| queue.borrow().stats()).sum(),
            explored: queues.iter().map(|queue| queue.borrow().explored()).sum(),
            end_ns: world.now_ns(),
            finished: measured.finished,
            failed: measured.failed,
        })
    }

    fn volume(&self, world: &World, disk: Arc<dyn Backend>) -> Arc<Volume> {
        let exact = self.costs.calibration(&self.cipher);
        let calibration = match self.calibration {
            CalibrationKind::Exact => exact,
            CalibrationKind::Off => off(exact, self.seed),
            CalibrationKind::Missing => Calibration::default(),
        };
        let cores = (self.policy == PolicyKind::Adaptive).then_some(self.cores);
        let len = self.job.region_bytes / u64::from(SECTOR_BYTES) * u64::from(SECTOR_BYTES);
        let segment = Segment { len, backend_offset: 0, cipher: Some(nothing()) };
        let options = VolumeOptions {
            policies: self.policy.into(),
            cipher_model: Some(self.cipher),
            ..VolumeOptions::default()
        };
        let executor = world.executor(cores, calibration);
        let volume = Volume::with_executor(disk, vec![segment], options, executor);
        Arc::new(volume.expect("a volume"))
    }
}

/// The calibration with each figure multiplied by a factor of 1/2 to 2, drawn by the seed.
fn off(exact: Calibration, seed: u64) -> Calibration {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut off = |figure: Option<u64>| {
        let factor = (2.0 * random.f64() - 1.0).exp2();
        #[expect(clippy::cast_sign_loss, reason = "both are positive")]
        figure.map(|ns| (ns as f64 * factor) as u64)
    };
    Calibration {
        cipher: off(exact.cipher),
        wake_latency: off(exact.wake_latency),
        wake_latency_slept: off(exact.wake_latency_slept),
        wake_cost: off(exact.wake_cost),
        enqueue_cost: off(exact.enqueue_cost),
        copy_penalty: off(exact.copy_penalty),
        copy: off(exact.copy),
    }
}

/// A cipher that changes nothing: its time comes from the model.
fn nothing() -> SectorCipher {
    let spec = CipherSpec::from_str("cipher_null-ecb").expect("a known cipher");
    let options =
        SectorOptions { sector_size: SECTOR_BYTES, iv_offset: 0, iv_large_sectors: false };
    SectorCipher::new(&spec, &[], options).expect("it takes any key")
}

/// The measurements for the report, over all queues.
#[derive(Debug, Default)]
struct Measured {
    /// Bytes of the requests in `reads` and `writes`.
    bytes: u64,
    latencies_ns: u64,
    reads: Vec<u64>,
    writes: Vec<u64>,
    finished: u64,
    failed: u64,
}

/// A request in flight: when it was sent, and whether it is a read.
#[derive(Debug, Clone, Copy)]
struct Sent {
    at_ns: u64,
    is_read: bool,
}

/// The clients of one queue, on its thread: each sends its next request as soon as its last one is
/// answered.
struct Asking {
    job: Job,
    requests: Requests,
    /// By tag.
    sent: Vec<Sent>,
    /// Tags without a request in flight, and since when.
    free: Vec<(u64, u64)>,
    /// The next request, if the queue had no room for it.
    held: Option<Request>,
    /// Requests of this queue that ended.
    finished: u64,
    measured: Rc<RefCell<Measured>>,
}

impl Asking {
    fn new(job: Job, requests: Requests, measured: &Rc<RefCell<Measured>>) -> Self {
        let depth = job.depth.max(1);
        Self {
            job,
            requests,
            sent: vec![Sent { at_ns: 0, is_read: false }; depth as usize],
            free: (0..u64::from(depth)).rev().map(|tag| (tag, 0)).collect(),
            held: None,
            finished: 0,
            measured: measured.clone(),
        }
    }

    /// Leaves out the first quarter, and the end, where the depth is no longer kept.
    fn is_measured(&self) -> bool {
        self.finished > self.job.requests / 4
            && self.finished + u64::from(self.job.depth) <= self.job.requests
    }

    fn take(&mut self, done: &ucrypt_engine::Done, present: &mut Present<'_>) {
        present.finish(done.data.as_deref());
        let Sent { at_ns, is_read } = self.sent[done.tag as usize];
        self.finished += 1;
        let measured = &mut *self.measured.borrow_mut();
        measured.finished += 1;
        measured.failed += u64::from(done.result.is_err());
        if self.is_measured() {
            let latency_ns = present.now_ns() - at_ns;
            measured.bytes += self.job.block_bytes;
            measured.latencies_ns += latency_ns;
            if is_read { &mut measured.reads } else { &mut measured.writes }.push(latency_ns);
        }
        self.free.push((done.tag, present.now_ns()));
    }
}

impl Clients for Asking {
    fn turn(&mut self, queue: &mut Queue, present: &mut Present<'_>) -> bool {
        let mut any = false;
        while let Some(done) = queue.next_done() {
            any = true;
            self.take(&done, present);
        }
        while let Some(&(tag, at_ns)) = self.free.last() {
            let Some(request) = self.held.take().or_else(|| self.requests.next()) else { break };
            let (offset, len) = (request.offset, self.job.block_bytes as usize);
            let op = if request.is_read {
                Some(Io::read(offset, len))
            } else {
                queue.alloc(len).map(|data| Io::write(offset, data, false))
            };
            match op.map(|op| queue.submit(tag, op)) {
                Some(Ok(())) => {}
                None | Some(Err(Rejected::Busy(_))) => {
                    self.held = Some(request);
                    break;
                }
                Some(Err(rejected)) => panic!("{request:?} is refused: {rejected:?}"),
            }
            self.free.pop();
            self.sent[tag as usize] = Sent { at_ns, is_read: request.is_read };
            present.accept();
            any = true;
        }
        if any {
            present.round();
        }
        any
    }
}
