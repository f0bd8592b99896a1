//! One thread's access to a volume: requests in, answers out.
//!
//! Contract:
//!
//! - [`Queue::submit`] accepts or refuses a request at once; an accepted request ends in exactly
//!   one [`Done`]. A refusal is final except [`Rejected::Busy`], which gives the request back to be
//!   submitted again after the next [`Done`] (or after a buffer was dropped).
//! - Offsets and lengths are bytes, at any alignment. Sectors that are written only in part are
//!   served by read-modify-write, during which no other request touches them.
//! - [`Queue::poll`] never blocks; [`Queue::wait`] blocks until a request has ended. To wait for
//!   other events as well, call poll(2) on [`Queue::wait_fd`] after [`Queue::may_sleep`] returned
//!   true, or wait for them on the queue's ring: [`Volume::queue_with_ring`] makes a queue whose
//!   owner can put entries on [`Queue::ring`]. `poll` and `wait` submit these entries, and their
//!   completions end `wait` as answers do.
//! - All memory is bounded by [`QueueConfig`] and by what the volume's queues share.
//! - Dropping a queue waits for the backend's operations under way; requests that have not ended
//!   are not acknowledged.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ucrypt_backend::{Buf, Errno};
use ucrypt_dispatch::{BackendTraits, Bounds, Configured, Explored, Machine, Slab, Stats, Urgency};

use crate::counters::Counters;
use crate::residue;
use crate::tuning::ALONE_REQUESTS_MIN;
use crate::volume::Volume;
use crate::workers::Inbox;

mod chunk_io;
mod counting;
mod describe;
mod driver;
mod io;
mod memory;
mod pairs;
mod pieces;
mod plan;
mod polling;
mod requests;
mod sleep;
mod tables;
mod time;

use counting::Counting;
use driver::{BackendQueue, Round};
pub use io::{Done, Io, ReadTo, Rejected, WriteFrom};
use memory::Memory;
pub(crate) use polling::Polling;
pub use polling::{Poll, Polled};
use sleep::{RingOf, Wakers};
use tables::{Chunk, ClientRequest, MachineRequest, PIECES, PIECES_MIN};
use time::Time;

/// Resource bounds of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueConfig {
    /// The queue's own buffer memory in bytes. Pages are allocated when they are first touched. It
    /// also takes from [`VolumeOptions::shared_memory`](crate::VolumeOptions::shared_memory).
    pub memory: usize,
    /// Length in bytes up to which a request gets memory of its own if there is no other, while
    /// nothing else is in flight. Longer ones are refused ([`Rejected::TooLarge`]) if they find no
    /// memory, which goes back to the system with the answer's data.
    pub request_max: usize,
    /// Maximum number of requests between submission and answer.
    pub depth: u32,
}

impl QueueConfig {
    /// A queue with this many bytes of buffer memory, which bounds its requests' length too, and
    /// this depth.
    pub const fn new(memory: usize, depth: u32) -> Self {
        Self { memory, request_max: memory, depth }
    }
}

/// See the module's contract.
pub struct Queue {
    volume: Arc<Volume>,
    owner: Owner,
    presence: Presence,
    counting: Counting,
    time: Time,
    memory: Memory,
    requests: Slab<ClientRequest>,
    /// Pieces of client memory of all requests.
    pieces: usize,
    /// Requests that wait for their range, in order of arrival.
    parked: VecDeque<u32>,
    done: VecDeque<Done>,
    machine: Machine<Errno, Configured>,
    /// By index of the machine's request.
    machine_requests: Vec<MachineRequest>,
    /// By index of the machine's chunk.
    chunks: Vec<Chunk>,
    round: Round,
    backend: BackendQueue,
    offloads: Offloads,
    wakers: Wakers,
    ring: RingOf,
}

/// What the queue's owner has said.
#[derive(Default)]
struct Owner {
    /// Urgency of the requests submitted from now on.
    urgency: Urgency,
    /// See [`Queue::set_clients_here`].
    clients_here: bool,
    /// See [`Queue::set_reads_in_place`].
    reads_in_place: bool,
    /// See [`Queue::set_holds_answers`].
    holds_answers: bool,
}

/// What the volume, and by that its other queues, know of this queue.
struct Presence {
    /// The volume counts this queue as busy.
    is_busy: bool,
    /// The volume counts this queue as awake.
    is_awake: bool,
    /// See [`Queue::alone`].
    alone: u32,
}

/// The chunks that workers have.
struct Offloads {
    /// Where workers put transformed chunks.
    inbox: Arc<Inbox>,
    count: usize,
}

/// Maximum number of machine requests per client request: two edges and the body.
const MACHINE_REQUESTS_EACH: u32 = 3;

/// Encrypted zeroes under way, in 512-byte sectors (256 KiB): enough to keep a disk busy.
const ZEROES_SECTORS_MAX: u64 = 512;

/// Minimum number of chunks: room for one request of 32 MiB in chunks of 1 MiB.
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
        let sector_sectors = u64::from(volume.info().write_unit / 512);
        let chunks = depth.max(CHUNKS_MIN);
        let backend_traits = BackendTraits {
            synchronous: limits.synchronous,
            copies: limits.copies,
            mapped: volume.segments.are_mapped(),
            rotational: limits.rotational,
            zoned: volume.backend.zones().is_some(),
        };
        let mut machine = Machine::new(
            Bounds {
                requests_max: depth * MACHINE_REQUESTS_EACH,
                chunks_max: chunks,
                transfer_sectors_max: u64::from(transfer_max) / 512,
                zeroes_sectors_max: ZEROES_SECTORS_MAX,
                sector_sectors,
                borders: borders.iter().map(|border| border / 512).collect(),
            },
            Configured::new(volume.policies),
            backend_traits,
        );
        volume.calibration.teach(machine.policy_mut().estimates_mut());
        // If the backend has a ring, the ring's size follows the depth of the backend's queue.
        let mut backend = volume.backend.queue(chunks + ring_entries)?;
        let ring = match (ring_entries, backend.shared_ring()) {
            (0, _) => RingOf::Nobody,
            (_, Some(_)) => RingOf::Backend,
            (entries, None) => RingOf::Queue(Box::new(sleep::own_ring(entries)?)),
        };
        let own_ring = if let RingOf::Queue(ring) = &ring { Some(ring.fd()) } else { None };
        let wakers = Wakers::new(volume.workers.is_some(), backend.fd(), own_ring)?;
        let config = QueueConfig { depth, ..config };
        let zeroes_bytes = ZEROES_SECTORS_MAX as usize * 512;
        let write_unit = volume.info().write_unit;
        let memory = Memory::new(config, write_unit, zeroes_bytes, volume.shared_memory.clone())?;
        // The shared memory is not registered: each queue would pin all of it.
        backend.register(&memory.own);
        let inbox = Arc::new(Inbox::new(chunks as usize, wakers.own().clone()));
        Ok(Self {
            owner: Owner::default(),
            presence: Presence { is_busy: false, is_awake: false, alone: ALONE_REQUESTS_MIN },
            counting: Counting::new(counters, limits.synchronous),
            time: Time::new(volume.clock.clone()),
            memory,
            requests: Slab::new(depth, ClientRequest::default),
            pieces: 0,
            parked: VecDeque::with_capacity(depth as usize),
            done: VecDeque::with_capacity(depth as usize),
            machine,
            machine_requests: table(depth * MACHINE_REQUESTS_EACH),
            chunks: table(chunks),
            round: Round::default(),
            backend: BackendQueue::new(backend, chunks, limits.synchronous),
            offloads: Offloads { inbox, count: 0 },
            volume,
            wakers,
            ring,
        })
    }

    /// The volume that the queue serves.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Allocates `len` bytes of buffer memory; `None` if there is not enough now.
    pub fn alloc(&mut self, len: usize) -> Option<Buf> {
        self.memory.alloc(len, self.is_idle()).ok()
    }

    /// Whether the owner still holds data of answers, which it will drop. Until then a long request
    /// waits for that memory and gets none of its own. `false` at first.
    pub fn set_holds_answers(&mut self, holds: bool) {
        self.owner.holds_answers = holds;
    }

    /// Whether no memory will be freed by waiting.
    fn is_idle(&self) -> bool {
        self.in_flight() == 0 && !self.owner.holds_answers
    }

    /// How urgently clients wait for the requests submitted from now on. The adaptive policy never
    /// offloads requests that are polled for, and always offloads read-ahead if a core is spare for a worker. `Normal`
    /// at first.
    pub fn set_urgency(&mut self, urgency: Urgency) {
        self.owner.urgency = urgency;
    }

    /// Whether the thread that drives this queue makes the requests itself. Otherwise they come
    /// from a client on another core, which keeps that core busy. `false` at first.
    pub fn set_clients_here(&mut self, here: bool) {
        self.owner.clients_here = here;
    }

    /// Whether the memory passed to [`Io::read_into`] is where clients want their data, as a
    /// guest's memory is, so that the thread that drives this queue copies none of it. `false` at
    /// first.
    pub fn set_reads_in_place(&mut self, in_place: bool) {
        self.owner.reads_in_place = in_place;
    }

    /// How many requests in a row arrived while no other request of the volume was in flight;
    /// `None` if so few that the next one may well have company.
    pub fn alone(&self) -> Option<u32> {
        Some(self.presence.alone).filter(|&alone| alone >= ALONE_REQUESTS_MIN)
    }

    /// Accepts a request, or refuses it and does not touch its memory. The answer carries `tag`.
    pub fn submit<'a>(&mut self, tag: u64, io: Io<'a>) -> Result<(), Rejected<'a>> {
        let pieces = io.pieces();
        self.counting.offered = io.kind();
        if self.requests.is_full() || !self.has_room_for(pieces) {
            return Err(Rejected::Busy(io));
        }
        let is_first = self.in_flight() == 0;
        let (index, borrowed) = match self.plan(tag, io) {
            Ok(planned) => planned,
            Err(refused) => {
                if matches!(refused, Rejected::NoMemory) {
                    self.given_up();
                }
                return Err(refused);
            }
        };
        self.requests[index].piece_count = pieces;
        self.pieces += pieces;
        let (is_alone, was_alone) = (is_first && self.set_busy(true), self.alone().is_some());
        let alone = &mut self.presence.alone;
        *alone = if is_alone { alone.saturating_add(1) } else { 0 };
        self.note_arrival(was_alone);
        self.counting.begun();
        self.start(index, borrowed);
        Ok(())
    }

    /// Whether one more request of so many pieces leaves the lists of pieces within their bound. A request
    /// that comes alone may have any number.
    fn has_room_for(&self, pieces: usize) -> bool {
        let most = PIECES_MIN.max(PIECES * self.requests.capacity() as usize);
        pieces == 0 || self.pieces == 0 || self.pieces + pieces <= most
    }

    /// The last request that was submitted was refused and fails with [`Errno::NOMEM`], because nothing is
    /// in flight that will make room: counts it as failed.
    pub fn given_up(&mut self) {
        self.counting.failed(self.counting.offered, Errno::NOMEM, &self.volume);
    }

    /// Cancels the requests whose tag `which` picks. Each of them still ends once: with
    /// [`Errno::CANCELED`], unless it has completed already or fails. The queue waits for the
    /// backend's operations under way; any part of a cancelled write may have been done.
    pub fn cancel(&mut self, which: impl Fn(u64) -> bool) {
        for _ in 0..self.parked.len() {
            let Some(index) = self.parked.pop_front() else { break };
            let request = &mut self.requests[index];
            if !which(request.tag) {
                self.parked.push_back(index);
                continue;
            }
            request.error = Some(Errno::CANCELED);
            self.stop_waiting(index);
            self.end_request(index);
        }
        for (index, part) in self.machine_requests.iter().enumerate() {
            let Some(id) = self.machine.request_at(index) else { continue };
            if which(self.requests[part.client].tag) {
                self.machine.cancel(id, Errno::CANCELED);
            }
        }
    }

    /// Starts queued work and takes completed work, without blocking.
    ///
    /// # Errors
    /// The backend's queue is broken; nothing more will complete.
    pub fn poll(&mut self) -> std::io::Result<()> {
        self.advance(false)
    }

    /// Takes the next answer.
    pub fn next_done(&mut self) -> Option<Done> {
        let done = self.done.pop_front()?;
        if self.in_flight() == 0 {
            self.set_busy(false);
        }
        Some(done)
    }

    /// Tells the volume whether this queue has requests in flight. Returns whether no other has any.
    fn set_busy(&mut self, busy: bool) -> bool {
        match (std::mem::replace(&mut self.presence.is_busy, busy), busy) {
            (false, true) => self.volume.busy.fetch_add(1, Ordering::Relaxed) == 0,
            (true, false) => self.volume.busy.fetch_sub(1, Ordering::Relaxed) == 1,
            _ => false,
        }
    }

    /// Whether there is an answer to take.
    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Event counts of the dispatch machine.
    pub fn stats(&self) -> Stats {
        self.machine.stats()
    }

    /// Chunks served by another arm than the cost model.
    pub fn explored(&self) -> Explored {
        self.machine.policy().explored()
    }

    /// Whether all requests in flight wait for sectors that other requests use, or for the key of a
    /// suspended volume: only others can end a wait, whenever they like.
    pub fn waits_for_others(&self) -> bool {
        !self.parked.is_empty() && self.in_flight() == self.parked.len()
    }

    /// Number of accepted requests whose answers have not been taken.
    pub fn in_flight(&self) -> usize {
        self.requests.in_use() + self.done.len()
    }
}

fn table<T: Default>(len: u32) -> Vec<T> {
    (0..len).map(|_| T::default()).collect()
}

impl Drop for Queue {
    fn drop(&mut self) {
        // First the backend, whose drop waits for its operations; only then may ranges be unlocked.
        // Workers use only the buffers of their jobs, and may finish after this queue is gone.
        self.backend.close();
        self.set_awake(false);
        self.set_busy(false);
        for index in 0..self.requests.capacity() {
            if self.requests.get(index).is_some() {
                self.stop_waiting(index);
                self.unlock(index);
            }
        }
        self.volume.counted().retire(&self.counting.counters);
        residue::scrub();
    }
}
