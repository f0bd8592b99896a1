//! One thread's way into a volume: requests in, answers out.
//!
//! Contract:
//!
//! - [`Queue::submit`] accepts or refuses at once; what it accepts ends in exactly one [`Done`].
//!   A refusal is final except [`Rejected::Busy`], which gives the operation back to be submitted
//!   again after the next [`Done`] (or after a buffer was dropped).
//! - Offsets and lengths are bytes, at any alignment. What is not aligned to sectors is served by
//!   read-modify-write, during which nothing else touches those sectors.
//! - [`Queue::poll`] never blocks; [`Queue::wait`] blocks until something has ended. To wait for
//!   something else too, poll(2) on [`Queue::wait_fd`] after [`Queue::may_sleep`] said so, or put
//!   it on the queue's ring: [`Volume::queue_with_ring`] makes a queue whose [`Queue::ring`] takes
//!   entries of its owner. `poll` and `wait` submit them; a completion ends `wait` as an answer does.
//! - All memory is bounded by [`QueueConfig`].
//! - Dropping a queue waits for what the backend has under way; requests that have not ended are
//!   not acknowledged.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use ucrypt_backend::{Buf, Errno, Pool, Ring};
use ucrypt_dispatch::{
    BackendTraits, Configured, Environment, Explored, Limits, Machine, PARTS_MAX, Stats, Urgency,
    ZEROES_UNIT_SECTORS,
};

use crate::counters::Counters;
use crate::range_lock::Mode;
use crate::volume::Volume;
use crate::workers::Inbox;

mod chunk_io;
mod driver;
mod job;
mod pieces;
mod plan;
mod requests;
mod sleep;

use job::{Edge, Job, Slot};
use sleep::Wakers;

/// Bounds of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueConfig {
    /// Buffer memory in bytes. Pages are used when they are first touched.
    pub memory: usize,
    /// Most requests between submit and answer.
    pub depth: u32,
}

/// What a client asks for. Offsets and lengths in bytes of the volume.
#[derive(Debug)]
pub enum Op {
    /// Read and decrypt.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: usize,
    },
    /// Encrypt and write.
    Write {
        /// First byte.
        offset: u64,
        /// Plaintext; encrypted in place.
        data: Buf,
        /// Durable before it is answered.
        fua: bool,
    },
    /// Make every answered write durable.
    Flush,
    /// The range is no longer needed. Sectors that it covers only in part are left alone.
    Discard {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Durable before it is answered.
        fua: bool,
        /// The backend keeps the space allocated.
        no_unmap: bool,
    },
}

/// Why an operation was not accepted.
#[derive(Debug)]
pub enum Rejected {
    /// No room now: submit it again after the next answer.
    Busy(Op),
    /// As `Busy`, for what takes no [`Op`]: [`Queue::write_from`], which borrows,
    /// [`Queue::read_into`] and [`Queue::write_pieces`].
    BusyBorrowed,
    /// It reaches beyond the end of the volume.
    OutOfRange,
    /// The volume is read-only.
    ReadOnly,
    /// The volume does not do this (discards that were not allowed).
    NotSupported,
    /// It needs more buffer memory than the queue has in all.
    TooLarge,
}

/// How one request ended.
#[derive(Debug)]
pub struct Done {
    /// The tag it was submitted with.
    pub tag: u64,
    /// Whether all of it was done.
    pub result: Result<(), Errno>,
    /// What was read, just the bytes that were asked for.
    pub data: Option<Buf>,
}

/// See the module's contract.
pub struct Queue {
    volume: Arc<Volume>,
    counters: Arc<Counters>,
    pool: Pool,
    /// Memory for the sectors of which jobs write only a part, two for each job: there is always
    /// enough, so that nothing waits for it that holds memory itself.
    edge_pool: Pool,
    /// Memory for encrypted zeroes, apart from what clients' data can use up: as much as the machine
    /// lets be under way, and taken in its units.
    zeroes: Pool,
    machine: Machine<Errno, Configured>,
    /// `None` only while the queue is being dropped.
    backend: Option<Box<dyn ucrypt_backend::Queue>>,
    answers: Vec<ucrypt_backend::Done>,
    /// By the machine's request: what belongs to it.
    slots: Vec<Slot>,
    /// By the machine's chunk: its buffers while they are in no other hands. The lists travel with
    /// the buffers and come back, so that none is made after start.
    chunks: Vec<Vec<Buf>>,
    /// By the machine's chunk: the buffers of the parts that it submits again one by one, after an
    /// error. Lists without memory otherwise.
    again: Box<[Vec<Buf>]>,
    jobs: Vec<Job>,
    /// By job: the sectors of which it writes only a part. Apart from the job, which is moved about.
    edges: Vec<[Option<Edge>; 2]>,
    /// By job: the client's own memory, as long as it is not with the machine's requests. The
    /// lists are kept.
    pieces: Vec<Vec<Buf>>,
    free: Vec<u32>,
    /// Jobs that wait for their range, first come first served.
    parked: VecDeque<u32>,
    done: VecDeque<Done>,
    /// Where workers put what they have done.
    inbox: Arc<Inbox>,
    /// Chunks that are with a worker.
    offloaded: usize,
    /// Chunks transformed on this thread, for sampling.
    inline: u32,
    /// Of the requests that are submitted next.
    urgency: Urgency,
    /// See [`Queue::set_clients_here`].
    clients_here: bool,
    /// See [`Queue::set_reads_in_place`].
    reads_in_place: bool,
    /// Counted among the volume's queues that are awake.
    awake: bool,
    /// The backend answers at once.
    synchronous: bool,
    /// The workers that it may use: looked at when a round begins and after what came in it.
    environment: Environment,
    /// The machine was asked for a plan, and what came of it is not all carried out.
    planned: bool,
    /// Something was carried out since.
    carried_out: bool,
    /// How often something came while nothing was in flight.
    rounds: u32,
    /// The clock is looked at, for as long as something is in flight.
    keeps_time: bool,
    /// When the clock was last read, in its nanoseconds.
    now_ns: u64,
    /// Rounds since the decisions were last shown.
    unpublished: u32,
    /// Signalled when a range that a parked job waits for may be free, and by workers while this
    /// queue sleeps.
    waker: Arc<OwnedFd>,
    /// The waker may have been signalled since it was last read.
    waker_used: bool,
    /// Somebody else knows the waker, and may signal it late: workers, or a range lock.
    waker_known: bool,
    wakers: Wakers,
    /// Who uses [`Queue::ring`]: nobody, or somebody on the backend's ring or on one of the queue's.
    ring: RingOf,
}

enum RingOf {
    Nobody,
    Backend,
    Queue(Box<Ring>),
}

/// A job needs at most this many machine requests at once: two edges and the middle.
const REQUESTS_PER_JOB: u32 = 3;

/// Memory that an edge takes at most, in bytes: its sector, and the bytes that go there.
const EDGE_BYTES: usize = 2 * 4096;

/// Buffers of a chunk for which room is kept: requests that travel together, in pieces. More make
/// the list grow.
const CHUNK_BUFS: usize = 4 * PARTS_MAX;

/// Pieces of a client's memory for which each job keeps room; more make its list grow, once.
const PIECES: usize = 16;

/// Room for the chunks of one 32 MiB request.
const CHUNKS_MIN: u32 = 32;

impl Queue {
    pub(crate) fn new(
        volume: Arc<Volume>,
        config: QueueConfig,
        ring_entries: u32,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let depth = config.depth.clamp(1, 4096);
        let limits = volume.backend.limits();
        let (transfer_max, borders) = (limits.transfer_max, &volume.starts[1..]);
        let sector_sectors = u64::from(volume.info().sector_size / 512);
        let chunks = depth.max(CHUNKS_MIN);
        let zeroes_sectors_max = 2 * (u64::from(transfer_max) / 512).max(ZEROES_UNIT_SECTORS);
        let backend_traits = BackendTraits {
            synchronous: limits.synchronous,
            copies: limits.copies,
            mapped: volume.segments.are_mapped(),
            rotational: limits.rotational,
            depth_max: limits.depth_max,
        };
        let mut machine = Machine::new(
            Limits {
                requests_max: depth * REQUESTS_PER_JOB,
                chunks_max: chunks,
                transfer_sectors_max: u64::from(transfer_max) / 512,
                zeroes_sectors_max,
                sector_sectors,
                borders: borders.iter().map(|border| border / 512).collect(),
            },
            Configured::new(volume.policies),
            backend_traits,
        );
        volume.calibration.teach(machine.policy_mut().estimates_mut());
        // The backend's ring, if it has one, is as large as its queue is deep.
        let mut backend = volume.backend.queue(chunks + ring_entries)?;
        let ring = match (ring_entries, backend.guest()) {
            (0, _) => RingOf::Nobody,
            (_, Some(_)) => RingOf::Backend,
            (entries, None) => RingOf::Queue(Box::new(sleep::own_ring(entries)?)),
        };
        let waker = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let own_ring = if let RingOf::Queue(ring) = &ring { Some(ring.fd()) } else { None };
        let wakers = Wakers::new(&waker, backend.fd(), own_ring)?;
        let pool = Pool::new(config.memory)?;
        backend.register(&pool);
        Ok(Self {
            pool,
            edge_pool: Pool::new(depth as usize * 2 * EDGE_BYTES)?,
            zeroes: Pool::new(
                zeroes_sectors_max.next_multiple_of(ZEROES_UNIT_SECTORS) as usize * 512,
            )?,
            machine,
            backend: Some(backend),
            answers: Vec::with_capacity(chunks as usize),
            slots: (0..depth * REQUESTS_PER_JOB).map(|_| Slot::default()).collect(),
            chunks: (0..chunks).map(|_| Vec::with_capacity(CHUNK_BUFS)).collect(),
            again: (0..chunks).map(|_| Vec::new()).collect(),
            inbox: Arc::new(Inbox::new(chunks as usize, waker.clone())),
            offloaded: 0,
            inline: 0,
            urgency: Urgency::Normal,
            clients_here: false,
            reads_in_place: false,
            awake: false,
            synchronous: limits.synchronous,
            environment: Environment::default(),
            planned: false,
            carried_out: false,
            rounds: 0,
            keeps_time: false,
            now_ns: 0,
            unpublished: 0,
            waker_used: false,
            waker_known: volume.workers.is_some(),
            jobs: (0..depth).map(|_| Job::default()).collect(),
            edges: (0..depth).map(|_| [None, None]).collect(),
            pieces: (0..depth).map(|_| Vec::with_capacity(PIECES)).collect(),
            free: (0..depth).rev().collect(),
            parked: VecDeque::with_capacity(depth as usize),
            done: VecDeque::with_capacity(depth as usize),
            volume,
            counters,
            waker,
            wakers,
            ring,
        })
    }

    /// The volume it serves.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Takes `len` bytes of buffer memory; `None` when there is not enough now.
    pub fn alloc(&mut self, len: usize) -> Option<Buf> {
        self.pool.alloc(len)
    }

    /// How much somebody waits for what is submitted from now on, under the adaptive policy: what is
    /// polled for is never offloaded, what is read ahead always. `Normal` at first.
    pub fn set_urgency(&mut self, urgency: Urgency) {
        self.urgency = urgency;
    }

    /// Whether what is submitted comes from the thread that drives this queue, and not from a client
    /// on another core, which keeps that core busy. `false` at first.
    pub fn set_clients_here(&mut self, here: bool) {
        self.clients_here = here;
    }

    /// Whether the memory that [`Queue::read_into`] is given is where clients want their data, as a
    /// guest's is, so that the thread that drives this queue copies none of it. `false` at first.
    pub fn set_reads_in_place(&mut self, in_place: bool) {
        self.reads_in_place = in_place;
    }

    /// Accepts an operation. Its answer carries `tag`.
    pub fn submit(&mut self, tag: u64, op: Op) -> Result<(), Rejected> {
        self.plan(tag, op)?;
        self.start(None);
        Ok(())
    }

    /// As a [`Op::Write`] of borrowed data, which is encrypted out of place and never changed.
    pub fn write_from(
        &mut self,
        tag: u64,
        offset: u64,
        data: &[u8],
        fua: bool,
    ) -> Result<(), Rejected> {
        let middle = self.plan_write_from(tag, offset, data, fua)?;
        self.start(Some(middle));
        Ok(())
    }

    /// Gives up the requests whose tag `which` picks. Each of them still ends once: with
    /// [`Errno::CANCELED`], unless it is done already or fails. What the backend has under way for it is
    /// waited for; of a write, any part may have been done.
    pub fn cancel(&mut self, which: impl Fn(u64) -> bool) {
        for _ in 0..self.parked.len() {
            let Some(index) = self.parked.pop_front() else { break };
            let job = &mut self.jobs[index as usize];
            if !which(job.tag) {
                self.parked.push_back(index);
                continue;
            }
            job.error = Some(Errno::CANCELED);
            if job.mode == Mode::Exclusive {
                self.volume.locks.give_up(&job.range);
            }
            self.end_job(index);
        }
        for index in 0..self.slots.len() {
            let Some(request) = self.machine.request_at(index) else { continue };
            if which(self.jobs[self.slots[index].job as usize].tag) {
                self.machine.cancel(request, Errno::CANCELED);
            }
        }
    }

    /// Starts what is queued and takes what is complete, without blocking.
    ///
    /// # Errors
    /// The backend's queue is broken; nothing more will complete.
    pub fn poll(&mut self) -> io::Result<()> {
        self.advance(false)
    }

    /// Takes the next answer.
    pub fn next_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// Whether there is an answer to take.
    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// How often what has happened.
    pub fn stats(&self) -> Stats {
        self.machine.stats()
    }

    /// What was decided by trials, or for one.
    pub fn explored(&self) -> Explored {
        self.machine.policy().explored()
    }

    /// Requests accepted whose answers have not been taken.
    pub fn in_flight(&self) -> usize {
        self.jobs.len() - self.free.len() + self.done.len()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // First the backend, which waits for its operations; only then are ranges free. Workers
        // have only memory of ours, and may end after us.
        drop(self.backend.take());
        self.set_awake(false);
        for job in self.jobs.iter().filter(|job| !job.range.is_empty()) {
            match (job.locked, job.mode) {
                (true, mode) => self.volume.locks.unlock(&job.range, mode),
                (false, Mode::Exclusive) => self.volume.locks.give_up(&job.range),
                (false, Mode::Shared) => {}
            }
        }
        self.volume.retire(&self.counters);
    }
}
