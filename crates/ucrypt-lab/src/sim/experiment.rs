//! What is simulated: the machine, the disk, the clients, the policy and the faults.

use ucrypt_dispatch::{Policy, StoreKind};

use super::device::DeviceModel;
use super::report::Report;
use super::world::World;

/// How fast the cipher is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cipher {
    /// Nanoseconds per byte.
    pub ns_per_byte: f64,
    /// Nanoseconds per call, whatever its length; a chunk is one call.
    pub ns_per_call: u64,
}

impl Cipher {
    /// AES-256-XTS on a core with AES instructions, 4 GB/s.
    pub const AES_NI: Self = Self { ns_per_byte: 0.25, ns_per_call: 60 };

    /// The same on the machine of the 2017 measurements, 1.1 GB/s.
    pub const AES_2017: Self = Self { ns_per_byte: 0.9, ns_per_call: 60 };

    /// Nanoseconds for a call of that many 512-byte sectors.
    pub(crate) fn ns(&self, sectors: u64) -> u64 {
        #[expect(clippy::cast_sign_loss, reason = "a rate is positive")]
        let bytes_ns = (sectors as f64 * 512.0 * self.ns_per_byte) as u64;
        bytes_ns + self.ns_per_call
    }
}

/// What everything but the cipher and the disk costs a core, or delays, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// To accept a request of a client.
    pub accept: u64,
    /// To answer a request to its client.
    pub finish: u64,
    /// One round of a queue's loop, beside what it takes in.
    pub round: u64,
    /// To stage one operation for the backend.
    pub submit: u64,
    /// For the thread that has submitted one, if it moves the data itself while the device takes its
    /// time; `None` if the device does.
    pub copy: Option<Copying>,
    /// Picoseconds a byte for the client of a read to copy what it has got, on the queue's thread.
    pub take_ps_per_byte: u64,
    /// The call that hands what is staged to the kernel; `None` if each operation begins when it is
    /// submitted.
    pub enter: Option<u64>,
    /// To take one answer of the backend.
    pub answer: u64,
    /// To put a crypt job into the workers' queue, and to take its result from there.
    pub enqueue: u64,
    /// Picoseconds a byte that copying takes longer when another core has crypted it; the engine
    /// measures it when a volume is opened.
    pub carry_ps_per_byte: u64,
    /// To wake a sleeping thread, for the one that wakes it.
    pub wake_call: u64,
    /// From the call until a sleeping thread runs on a free core.
    pub wake: u64,
    /// From the device's answer until a sleeping queue runs on a free core.
    pub interrupt: u64,
    /// How long a worker without work, and a queue that may hear from one, spins before it sleeps.
    pub spin: u64,
    /// Until one that spins sees what has come.
    pub spin_wake: u64,
    /// For a thread to go to sleep, and to find out what has woken it.
    pub sleep: u64,
    /// For a core to change from one thread to another.
    pub switch: u64,
}

/// What it costs to move the data of an operation: nanoseconds a call, picoseconds a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copying {
    /// Of reads.
    pub read: (u64, u64),
    /// Of writes: page by page, each with its locks.
    pub write: (u64, u64),
}

impl Costs {
    /// What is the same over every backend. Fitted to `examples/real.rs` over `null`, on two virtual
    /// cores of an Intel Xeon (Granite Rapids).
    const ENGINE: Self = Self {
        accept: 80,
        finish: 80,
        round: 250,
        submit: 60,
        copy: None,
        take_ps_per_byte: 0,
        enter: None,
        answer: 50,
        enqueue: 200,
        carry_ps_per_byte: 78,
        wake_call: 1_500,
        wake: 5_000,
        interrupt: 0,
        spin: 2_500,
        spin_wake: 150,
        sleep: 1_000,
        switch: 1_500,
    };

    /// The engine over a device, through a ring.
    pub const DEVICE: Self = Self { enter: Some(400), interrupt: 3_000, ..Self::ENGINE };

    /// The engine over a device model: memory, which the thread that submits copies, and answers
    /// for which the queue spins. Fitted as above; a virtual machine's host has to be asked to wake a
    /// core.
    pub const MODEL: Self = Self {
        copy: Some(Copying { read: (180, 130), write: (950, 200) }),
        take_ps_per_byte: 60,
        wake_call: 2_500,
        wake: 12_000,
        ..Self::ENGINE
    };

    /// Nanoseconds more to copy so many 512-byte sectors that another core has crypted.
    pub(crate) fn carry_ns(&self, sectors: u64) -> u64 {
        sectors * 512 * self.carry_ps_per_byte / 1000
    }

    /// Nanoseconds to answer a request that reads so many 512-byte sectors, some of which another
    /// core has decrypted.
    pub(crate) fn finish_ns(&self, sectors: u64, carried: u64) -> u64 {
        self.finish + sectors * 512 * self.take_ps_per_byte / 1000 + self.carry_ns(carried)
    }

    /// Nanoseconds to copy what an operation of that many 512-byte sectors moves; `carried`: what
    /// another core has encrypted.
    pub(crate) fn copy_ns(&self, kind: StoreKind, sectors: u64, carried: bool) -> u64 {
        let Some(copy) = self.copy else { return 0 };
        let ((call, ps_per_byte), carried) = match kind {
            StoreKind::Read => (copy.read, false),
            StoreKind::Write { .. } => (copy.write, carried),
            _ => return 0,
        };
        let carry_ns = if carried { self.carry_ns(sectors) } else { 0 };
        call + sectors * 512 * ps_per_byte / 1000 + carry_ns
    }
}

impl Default for Costs {
    fn default() -> Self {
        Self::DEVICE
    }
}

/// What the clients do, in fio's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Reads at random places.
    RandRead,
    /// Writes at random places.
    RandWrite,
    /// Half reads, half writes, at random places.
    RandRw,
    /// Everything at once: reads, writes, zeroes, discards and flushes of any length up to the
    /// block size, overlapping, with every urgency, with and without FUA.
    Torture,
}

impl Pattern {
    /// The five of fio's.
    pub const FIO: [Self; 5] =
        [Self::Read, Self::Write, Self::RandRead, Self::RandWrite, Self::RandRw];

    /// fio's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::RandRead => "randread",
            Self::RandWrite => "randwrite",
            Self::RandRw => "randrw",
            Self::Torture => "torture",
        }
    }
}

/// The clients of one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// What they ask for.
    pub pattern: Pattern,
    /// Length of a request in 512-byte sectors; the largest one for [`Pattern::Torture`].
    pub block_sectors: u64,
    /// Requests that each queue's clients keep in flight.
    pub depth: u32,
    /// Requests of each queue in all.
    pub requests: u64,
    /// Sectors that are touched, from the start of the disk.
    pub region_sectors: u64,
}

/// What goes wrong; rates are per mille.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// Operations that the backend fails; of a failed write, any part may have been done.
    pub error: u32,
    /// Operations that take up to `delay_max_ns` longer, and so are overtaken by others.
    pub delay: u32,
    /// Longest such delay, in nanoseconds.
    pub delay_max_ns: u64,
    /// Steps of a thread during which its core is taken away for up to `stall_max_ns`.
    pub stall: u32,
    /// Longest such stall, in nanoseconds.
    pub stall_max_ns: u64,
    /// Steps of a queue after which one of its requests is cancelled.
    pub cancel: u32,
    /// The power fails after that many events; the run goes on with what the medium kept.
    pub crash_at: Option<u64>,
}

/// One run.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// Cores of the machine, at least 1.
    pub cores: u32,
    /// Queues, each a thread on a core of its own while there are enough cores; at least 1.
    pub queues: u32,
    /// Workers, on the cores that no queue is on while there are enough.
    pub workers: u32,
    /// The cipher.
    pub cipher: Cipher,
    /// What the rest costs.
    pub costs: Costs,
    /// The disk, shared by all queues.
    pub device: DeviceModel,
    /// What each queue's clients do.
    pub job: Job,
    /// The policy of every queue's machine.
    pub policy: Policy,
    /// Largest transfer of the backend, in 512-byte sectors.
    pub transfer_sectors_max: u64,
    /// 512-byte sectors that are encrypted as one.
    pub sector_sectors: u64,
    /// Most chunks of a queue under way.
    pub chunks_max: u32,
    /// Most requests that a queue's machine accepts; clients wait for room beyond that.
    pub requests_max: u32,
    /// Whether a queue without work takes a job of the workers before it sleeps.
    pub queues_help: bool,
    /// Whether a queue is told of no more workers than there are cores on which no queue is awake,
    /// or of all there are.
    pub free_cores_only: bool,
    /// Whether the machines start with what the engine calibrates: cipher, hand-over, caches.
    pub calibrated: bool,
    /// Whether each sector's content is followed and judged. Costs time and memory.
    pub verify: bool,
    /// What goes wrong.
    pub faults: Faults,
    /// Decides everything that is random.
    pub seed: u64,
}

impl Experiment {
    /// One queue, no faults, and as many workers as the engine starts: one for each core.
    pub fn new(cores: u32, device: DeviceModel, job: Job, policy: Policy) -> Self {
        Self {
            cores,
            queues: 1,
            workers: cores,
            cipher: Cipher::AES_NI,
            costs: Costs::default(),
            device,
            job,
            policy,
            transfer_sectors_max: 2048,
            sector_sectors: 8,
            chunks_max: job.depth.max(32),
            requests_max: job.depth.max(1),
            queues_help: true,
            free_cores_only: policy == Policy::Adaptive,
            calibrated: true,
            verify: false,
            faults: Faults::default(),
            seed: 1,
        }
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// If the machine's own assertions fail, or a count that must be at least 1 is 0.
    pub fn run(&self) -> Report {
        World::new(self).run()
    }
}
