//! One thread's way into a volume: requests in, answers out.
//!
//! Contract:
//!
//! - [`Queue::submit`] accepts or refuses at once; what it accepts ends in exactly one [`Done`].
//!   A refusal is final except [`Rejected::Busy`], which gives the request back to be submitted
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
use std::sync::Arc;

use ucrypt_backend::{Buf, Errno, Pool};
use ucrypt_dispatch::{
    BackendTraits, Configured, Environment, Explored, Limits, Machine, Stats, Urgency,
    ZEROES_UNIT_SECTORS,
};

use crate::counters::Counters;
use crate::range_lock::Mode;
use crate::volume::Volume;
use crate::workers::Inbox;

mod chunk_io;
mod driver;
mod io;
mod pieces;
mod plan;
mod requests;
mod sleep;
mod tables;
mod time;

pub use io::{Done, Io, ReadTo, Rejected, WriteFrom};
use sleep::{RingOf, Wakers};
use tables::{Chunk, ClientRequest, MachineRequest};
use time::Time;

/// Bounds of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueConfig {
    /// Buffer memory in bytes. Pages are used when they are first touched.
    pub memory: usize,
    /// Most requests between submit and answer.
    pub depth: u32,
}

/// See the module's contract.
pub struct Queue {
    volume: Arc<Volume>,
    counters: Arc<Counters>,
    memory: Memory,
    machine: Machine<Errno, Configured>,
    /// `None` only while the queue is being dropped.
    backend: Option<Box<dyn ucrypt_backend::Queue>>,
    answers: Vec<ucrypt_backend::Done>,
    requests: Vec<ClientRequest>,
    /// Places in `requests` that are free.
    free: Vec<u32>,
    /// By the machine's request.
    machine_requests: Vec<MachineRequest>,
    /// By the machine's chunk.
    chunks: Vec<Chunk>,
    /// Requests that wait for their range, first come first served.
    parked: VecDeque<u32>,
    done: VecDeque<Done>,
    /// Where workers put what they have done.
    inbox: Arc<Inbox>,
    /// Chunks that are with a worker.
    offloaded: usize,
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
    time: Time,
    /// Rounds since the decisions were last shown.
    unpublished: u32,
    wakers: Wakers,
    ring: RingOf,
}

/// The queue's buffers.
struct Memory {
    /// For clients' data.
    data: Pool,
    /// For the sectors of which requests write only a part, two for each: there is always enough, so
    /// that nothing waits for it that holds memory itself.
    edges: Pool,
    /// For encrypted zeroes, apart from what clients' data can use up: as much as the machine lets be
    /// under way, and taken in its units.
    zeroes: Pool,
}

/// A client's request needs at most this many of the machine's at once: two edges and the middle.
const MACHINE_REQUESTS_EACH: u32 = 3;

/// Memory that an edge takes at most, in bytes: its sector, and the bytes that go there.
const EDGE_BYTES: usize = 2 * 4096;

/// Room for the chunks of one 32 MiB request.
const CHUNKS_MIN: u32 = 32;

impl Queue {
    pub(crate) fn new(
        volume: Arc<Volume>,
        config: QueueConfig,
        ring_entries: u32,
        counters: Arc<Counters>,
    ) -> std::io::Result<Self> {
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
                requests_max: depth * MACHINE_REQUESTS_EACH,
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
        let own_ring = if let RingOf::Queue(ring) = &ring { Some(ring.fd()) } else { None };
        let wakers = Wakers::new(volume.workers.is_some(), backend.fd(), own_ring)?;
        let zeroes_bytes = zeroes_sectors_max.next_multiple_of(ZEROES_UNIT_SECTORS) as usize * 512;
        let memory = Memory {
            data: Pool::new(config.memory)?,
            edges: Pool::new(depth as usize * 2 * EDGE_BYTES)?,
            zeroes: Pool::new(zeroes_bytes)?,
        };
        backend.register(&memory.data);
        Ok(Self {
            memory,
            machine,
            backend: Some(backend),
            answers: Vec::with_capacity(chunks as usize),
            requests: table(depth),
            free: (0..depth).rev().collect(),
            machine_requests: table(depth * MACHINE_REQUESTS_EACH),
            chunks: table(chunks),
            inbox: Arc::new(Inbox::new(chunks as usize, wakers.own().clone())),
            offloaded: 0,
            urgency: Urgency::Normal,
            clients_here: false,
            reads_in_place: false,
            awake: false,
            synchronous: limits.synchronous,
            environment: Environment::default(),
            planned: false,
            carried_out: false,
            time: Time::new(volume.clock.clone()),
            unpublished: 0,
            parked: VecDeque::with_capacity(depth as usize),
            done: VecDeque::with_capacity(depth as usize),
            volume,
            counters,
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
        self.memory.data.alloc(len)
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

    /// Accepts a request, or refuses it and leaves its memory alone. Its answer carries `tag`.
    pub fn submit<'a>(&mut self, tag: u64, io: Io<'a>) -> Result<(), Rejected<'a>> {
        if self.free.is_empty() {
            return Err(Rejected::Busy(io));
        }
        let borrowed = self.plan(tag, io)?;
        self.start(borrowed);
        Ok(())
    }

    /// Gives up the requests whose tag `which` picks. Each of them still ends once: with
    /// [`Errno::CANCELED`], unless it is done already or fails. What the backend has under way for it is
    /// waited for; of a write, any part may have been done.
    pub fn cancel(&mut self, which: impl Fn(u64) -> bool) {
        for _ in 0..self.parked.len() {
            let Some(index) = self.parked.pop_front() else { break };
            let request = &mut self.requests[index as usize];
            if !which(request.tag) {
                self.parked.push_back(index);
                continue;
            }
            request.error = Some(Errno::CANCELED);
            if request.mode == Mode::Exclusive {
                self.volume.locks.give_up(&request.range);
            }
            self.end_request(index);
        }
        for (index, part) in self.machine_requests.iter().enumerate() {
            let Some(id) = self.machine.request_at(index) else { continue };
            if which(self.requests[part.client as usize].tag) {
                self.machine.cancel(id, Errno::CANCELED);
            }
        }
    }

    /// Starts what is queued and takes what is complete, without blocking.
    ///
    /// # Errors
    /// The backend's queue is broken; nothing more will complete.
    pub fn poll(&mut self) -> std::io::Result<()> {
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
        self.requests.len() - self.free.len() + self.done.len()
    }
}

fn table<T: Default>(len: u32) -> Vec<T> {
    (0..len).map(|_| T::default()).collect()
}

impl Drop for Queue {
    fn drop(&mut self) {
        // First the backend, which waits for its operations; only then are ranges free. Workers
        // have only memory of ours, and may end after us.
        drop(self.backend.take());
        self.set_awake(false);
        for request in self.requests.iter().filter(|request| !request.range.is_empty()) {
            match (request.locked, request.mode) {
                (true, mode) => self.volume.locks.unlock(&request.range, mode),
                (false, Mode::Exclusive) => self.volume.locks.give_up(&request.range),
                (false, Mode::Shared) => {}
            }
        }
        self.volume.retire(&self.counters);
    }
}
