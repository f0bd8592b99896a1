//! The state machine of one queue.
//!
//! Contract:
//!
//! - A [`Request`] that [`Machine::request`] accepts ends in exactly one [`Output::Finish`]. A full
//!   machine refuses the request instead: nothing is allocated after [`Machine::new`], nothing is
//!   dropped.
//! - Accepted requests wait until [`Machine::plan`]. Adjacent requests that wait together may
//!   become one chunk, if they are equally urgent. Call `plan` whenever requests were accepted, or a
//!   `Finish` or `Drop` was taken.
//! - The caller answers every `Transform` and `DecryptMapped` with [`Machine::cipher_done`] and
//!   every `SubmitIo` with [`Machine::io_done`], once, in any order. A read's chunk is submitted,
//!   then transformed; a write's is transformed, then submitted.
//! - **Mapped I/O has outputs and answers of its own.** If a read's ciphertext lies in the
//!   backend's mapping, the caller answers with [`Machine::io_mapped`] instead, and the chunk is
//!   decrypted from there. If the backend has mappings, a write that leaves next and that this
//!   thread encrypts is output as [`Output::EncryptMapped`]. [`Machine::mapped_done`] answers that
//!   the ciphertext is where the backend keeps it; [`Machine::cipher_done`] answers that it is in
//!   the chunk's buffers, as after any `Transform`.
//! - [`Machine::offloaded`] reports that a chunk was handed to workers, before `cipher_done`. Any
//!   other chunk counts as transformed by this thread, whatever target the output named.
//!   [`Machine::taken_back`] reports that this thread transformed a chunk that it had handed to
//!   workers.
//! - `SubmitIo`s and `Finish`es are output before any transform, so that the backend and the
//!   clients have work while this thread transforms. Reads' `SubmitIo`s come in the order of their
//!   chunks. Transforms come in any order, one at a time: each call of [`Machine::next_output`]
//!   decides which chunk and where, from the chunks that wait then.
//! - Where the policy keeps order, writes leave for the backend in the order in which their chunks
//!   were made: requests by arrival, within a request by sector. Only [`Op::EncryptZeroes`] yields
//!   to later requests between its chunks.
//! - `Finish` of a write comes after the backend has answered for each of its chunks; with `fua`
//!   each of them was stored durably. `Finish` of a flush comes after the backend's flush, which
//!   starts after every write that was finished before.
//! - After a chunk fails, no further chunk of its requests is made. These requests finish with the
//!   first error once their chunks under way are answered.
//! - **An error reaches only the requests that it concerns.** If a chunk of several requests fails,
//!   its parts are submitted again one by one: [`Machine::parts`] then returns that single part.
//!   [`Machine::will_retry`] tells beforehand that the chunk's buffers are still needed. Retried
//!   writes queue behind the operations that left meanwhile.
//! - **A durable write that fails** is submitted again without `fua`. If the retry succeeds, the
//!   data could be written but not made durable: the request fails all the same. A caller that sees
//!   success for a chunk that [is a retry](Machine::retried_after) must treat it as a failed flush.
//!   If the retry fails, too, [a flush of the backend](Machine::asks_flush) is submitted for the chunk,
//!   which tells whether the flush of the first attempt is what failed.
//!   Such writes share a chunk with no other request. To a zoned backend they are submitted once
//!   only: what was written in part has moved the zone's write pointer, so a retry would be refused
//!   and hide that the data may not be durable. The caller must treat their first error as a failed
//!   flush.
//! - **Memory for zeroes is reserved before a chunk starts**: at most
//!   [`Bounds::zeroes_sectors_max`] sectors of [`Op::EncryptZeroes`] are under way, each chunk
//!   counted in whole [`ZEROES_UNIT_SECTORS`]. Requests that wait for
//!   this memory hold no resources and block no other request.
//! - [`Machine::cancel`] acts like an error from outside. The caller still answers all earlier
//!   outputs, but the answers no longer matter; operations that were submitted are not undone. If
//!   no request of a chunk can succeed any more, the chunk goes no further: [`Output::Drop`]
//!   replaces its next output.
//! - A chunk never crosses one of [`Bounds::borders`].
//! - Time only goes forward and is only compared; its origin does not matter.
//! - The [`Policy`] decides within this contract. No answer of a policy breaks it.

use std::collections::VecDeque;

use crate::chunk::{Chunk, ChunkId, Part, Phase, RequestId};
use crate::environment::{BackendTraits, Bounds, Environment};
use crate::policy::{CipherDone, Context, Policy, Target, TransformedBy, WakeLatency, Work};
use crate::ready::ReadyQueue;
use crate::request::{IoKind, Op, Request, Urgency};
use crate::slab::Slab;
use crate::tuning::{SLEEPS_NS, ZEROES_UNIT_SECTORS};
use crate::writers::Writers;

mod describe;
mod end;
mod start;

/// What the caller has to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output<E> {
    /// Encrypt (write) or decrypt (read) the chunk in its buffers, then call [`Machine::cipher_done`].
    Transform {
        /// The chunk; [`Machine::parts`] tells its sectors.
        chunk: ChunkId,
        /// Where to do it.
        target: Target,
    },
    /// Decrypt the chunk from the backend's mapping into its buffers, then call [`Machine::cipher_done`].
    DecryptMapped {
        /// The chunk; [`Machine::parts`] tells its sectors.
        chunk: ChunkId,
        /// Where to do it.
        target: Target,
    },
    /// Encrypt the chunk on this thread directly to where the backend keeps it, if that is mapped
    /// now, and call [`Machine::mapped_done`]. If it is not mapped, proceed as for
    /// [`Output::Transform`].
    EncryptMapped {
        /// The chunk; [`Machine::parts`] tells its sectors.
        chunk: ChunkId,
    },
    /// Submit the chunk to the backend, then call [`Machine::io_done`] with the result.
    SubmitIo {
        /// The chunk; [`Machine::parts`] tells its sectors.
        chunk: ChunkId,
        /// The backend operation.
        kind: IoKind,
    },
    /// Nothing more is to be done for the chunk: every request of it has failed or was cancelled.
    /// Its id is free again.
    Drop {
        /// The chunk.
        chunk: ChunkId,
    },
    /// The request has ended; its id is free again.
    Finish {
        /// The request.
        request: RequestId,
        /// How it ended.
        result: Result<(), E>,
    },
}

/// Event counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests that became one chunk of their own.
    pub whole: u64,
    /// Requests that were split.
    pub split: u64,
    /// Requests that were joined with a neighbour.
    pub joined: u64,
    /// Chunks transformed inline, on the thread that had them.
    pub inline: u64,
    /// Chunks transformed on another thread: by a worker, or by another queue that had no work.
    pub offloaded: u64,
    /// Those of `inline` that waited for a worker until this thread took them back.
    pub taken_back: u64,
}

impl std::iter::Sum for Stats {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, of| Self {
            whole: sum.whole + of.whole,
            split: sum.split + of.split,
            joined: sum.joined + of.joined,
            inline: sum.inline + of.inline,
            offloaded: sum.offloaded + of.offloaded,
            taken_back: sum.taken_back + of.taken_back,
        })
    }
}

#[derive(Debug)]
struct RequestState<E> {
    op: Op,
    urgency: Urgency,
    start: u64,
    /// Next sector that is not in a chunk yet.
    next: u64,
    end: u64,
    under_way: u32,
    /// Whether it is in `Machine::waiting` or `Machine::wait_for_zeroes`.
    waits: bool,
    error: Option<E>,
    /// See [`Context::sequential`].
    sequential: bool,
    /// See [`Policy::stamp`].
    stamp: u32,
}

impl<E> RequestState<E> {
    /// A free entry.
    fn spare() -> Self {
        Self {
            op: Op::Flush,
            urgency: Urgency::Normal,
            start: 0,
            next: 0,
            end: 0,
            under_way: 0,
            waits: false,
            error: None,
            sequential: false,
            stamp: 0,
        }
    }
}

/// See the module's contract. `E` is the backend's error.
#[derive(Debug)]
pub struct Machine<E, P> {
    bounds: Bounds,
    backend: BackendTraits,
    policy: P,
    environment: Environment,
    stats: Stats,
    requests: Slab<RequestState<E>>,
    /// Requests in `requests` that have failed or were cancelled.
    failed: u32,
    chunks: Slab<Chunk<E>>,
    /// Requests that still have sectors in no chunk and that may start one, in arrival order.
    waiting: VecDeque<RequestId>,
    /// Requests that wait for memory for zeroes, first come first served.
    wait_for_zeroes: VecDeque<RequestId>,
    /// Free units of memory for zeroes.
    zeroes_free: u64,
    /// Memory for zeroes was freed since the first of `wait_for_zeroes` was refused.
    zeroes_freed: bool,
    /// The sequential writers.
    writers: Writers,
    /// Ordered writes that have not left.
    order: VecDeque<ChunkId>,
    /// Outputs that cost this thread little time: operations and finishes.
    outputs: VecDeque<Output<E>>,
    /// Chunks that are to be transformed.
    ready: ReadyQueue,
    /// The latest time passed in.
    now_ns: u64,
}

impl<E: Copy, P: Policy> Machine<E, P> {
    /// Creates a machine without requests. Allocates all the memory that it will ever use.
    ///
    /// # Panics
    /// If a bound is zero, the largest transfer is no multiple of the sector size, or there is room
    /// for fewer than two units of zeroes.
    pub fn new(bounds: Bounds, policy: P, backend: BackendTraits) -> Self {
        assert!(bounds.requests_max > 0 && bounds.chunks_max > 0 && bounds.sector_sectors > 0);
        assert!(bounds.transfer_sectors_max >= bounds.sector_sectors);
        assert!(bounds.transfer_sectors_max.is_multiple_of(bounds.sector_sectors));
        assert!(bounds.zeroes_sectors_max >= 2 * ZEROES_UNIT_SECTORS, "a chunk must fit");
        let (requests, chunks) = (bounds.requests_max as usize, bounds.chunks_max as usize);
        Self {
            requests: Slab::new(bounds.requests_max, RequestState::spare),
            chunks: Slab::new(bounds.chunks_max, Chunk::spare),
            failed: 0,
            waiting: VecDeque::with_capacity(requests),
            wait_for_zeroes: VecDeque::with_capacity(requests),
            zeroes_free: start::zeroes_units(bounds.zeroes_sectors_max),
            zeroes_freed: false,
            writers: Writers::new(),
            order: VecDeque::with_capacity(chunks),
            ready: ReadyQueue::new(chunks),
            now_ns: 0,
            outputs: VecDeque::with_capacity(requests + chunks),
            environment: Environment::default(),
            stats: Stats::default(),
            policy,
            backend,
            bounds,
        }
    }

    /// Requests accepted and not yet finished.
    pub fn in_flight(&self) -> usize {
        self.requests.in_use()
    }

    /// The policy.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// The policy, for passing on measurements made elsewhere.
    pub fn policy_mut(&mut self) -> &mut P {
        &mut self.policy
    }

    /// Event counts since the start.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Accepts a request, or returns `None` when the machine is full.
    ///
    /// # Panics
    /// If the request is empty but no flush (or a flush that is not empty), or its end overflows:
    /// the caller checks both against the volume's size.
    pub fn request(&mut self, request: Request) -> Option<RequestId> {
        let Request { op, sector, sectors, urgency } = request;
        assert!((op == Op::Flush) == (sectors == 0), "only a flush is empty");
        let end = sector.checked_add(sectors).expect("the request lies in the volume");
        let (id, state) = self.requests.take()?;
        *state = RequestState {
            op,
            urgency,
            start: sector,
            next: sector,
            end,
            under_way: 0,
            waits: true,
            error: None,
            sequential: op.is_write() && self.writers.is_sequential(sector, end),
            stamp: self.policy.stamp(),
        };
        let id = RequestId(id);
        self.waiting.push_back(id);
        Some(id)
    }

    /// Cancels a request. It finishes with `error` once its chunks under way are answered, unless
    /// it failed before or all of it is already done. Any part of a cancelled write may have been
    /// written. Does nothing if there is no such request.
    pub fn cancel(&mut self, request: RequestId, error: E) {
        let Some(state) = self.requests.get(request.0) else { return };
        let (waits, ends) = (state.waits, !state.waits && state.under_way == 0);
        if ends {
            return;
        }
        self.fail(request, error);
        if waits {
            self.stop_waiting(request);
        }
    }

    /// The request with that [`RequestId::index`], between its acceptance and its `Finish`.
    pub fn request_at(&self, index: usize) -> Option<RequestId> {
        let index = u32::try_from(index).ok()?;
        self.requests.get(index).map(|_| RequestId(index))
    }

    /// The requests that a chunk under way serves, adjacent and ascending; empty if there is no
    /// such chunk.
    pub fn parts(&self, chunk: ChunkId) -> &[Part] {
        self.chunks.get(chunk.0).map_or(&[], |chunk| chunk.parts.as_slice())
    }

    /// Whether the chunk, now being transformed or submitted, would be submitted again after an
    /// error, so that its buffers are still needed.
    pub fn will_retry(&self, chunk: ChunkId) -> bool {
        self.chunks.get(chunk.0).is_some_and(|state| match (state.phase, state.op) {
            _ if state.retried_after.is_some() => false,
            (Phase::Io, op) if op.is_fua() => !self.backend.zoned,
            (Phase::Io, _) | (Phase::Transform, Op::Read) => state.parts.as_slice().len() > 1,
            _ => false,
        })
    }

    /// The error because of which a chunk under way is submitted again, part by part; `None` if it
    /// is not a retry.
    pub fn retried_after(&self, chunk: ChunkId) -> Option<E> {
        self.chunks.get(chunk.0).and_then(|state| state.retried_after)
    }

    /// Whether the chunk, a durable write that failed twice, is now with the backend as a flush. The request
    /// fails whether the flush succeeds or not.
    pub fn asks_flush(&self, chunk: ChunkId) -> bool {
        self.chunks.get(chunk.0).is_some_and(|state| state.asks_flush)
    }

    /// The operation of a chunk under way; `None` if there is no such chunk.
    pub fn op(&self, chunk: ChunkId) -> Option<Op> {
        self.chunks.get(chunk.0).map(|chunk| chunk.op)
    }

    /// The next thing to do; `None` when the machine waits for an input.
    #[inline]
    pub fn next_output(&mut self) -> Option<Output<E>> {
        let Some(output) = self.outputs.pop_front() else {
            return if self.ready.is_empty() { None } else { self.next_transform() };
        };
        match output {
            Output::Finish { request, result } => {
                if let Some(ended) = self.requests.give_back(request.0) {
                    let bytes = (ended.end - ended.start) * 512;
                    self.policy.on_end(ended.op, bytes, result.is_ok(), ended.stamp);
                }
                self.failed -= u32::from(result.is_err());
            }
            Output::SubmitIo { chunk, .. } if self.is_in_vain(chunk) => {
                return Some(self.drop_chunk(chunk));
            }
            _ => {}
        }
        Some(output)
    }

    /// The next chunk to transform, and where. Decided only now, when all the waiting chunks are
    /// known.
    ///
    /// This thread takes the chunk at the head of the line. Before it does, it offloads the first
    /// one that the policy wants to offload.
    fn next_transform(&mut self) -> Option<Output<E>> {
        let (at, target) = self.choose()?;
        let chunk = self.ready.remove(at).expect("it was looked at");
        if self.is_in_vain(chunk) {
            return Some(self.drop_chunk(chunk));
        }
        let state = &mut self.chunks[chunk.0];
        state.since_ns = self.now_ns;
        let (op, mapped, ordered) = (state.op, state.mapped, state.ordered);
        let leaves_next = !ordered || self.order.front() == Some(&chunk);
        Some(match op {
            Op::Read if mapped => Output::DecryptMapped { chunk, target },
            Op::Write { .. } if self.backend.mapped && target == Target::Inline && leaves_next => {
                Output::EncryptMapped { chunk }
            }
            _ => Output::Transform { chunk, target },
        })
    }

    /// Chooses the next chunk of the line and its target.
    fn choose(&self) -> Option<(usize, Target)> {
        if self.environment.workers == 0 || !self.policy.looks_ahead() {
            let (target, _) = self.target(self.ready.first()?, 0);
            return Some((0, target));
        }
        let mut ahead_bytes = 0;
        let mut first = None;
        for (at, chunk) in self.ready.front().enumerate() {
            let (target, bytes) = self.target(chunk, ahead_bytes);
            if target != Target::Inline {
                return Some((at, target));
            }
            first = first.or(Some((at, target)));
            ahead_bytes += bytes;
        }
        first
    }

    /// The target of a chunk with `ahead_bytes` before it in line, and the chunk's length in bytes.
    fn target(&self, chunk: ChunkId, ahead_bytes: u64) -> (Target, u64) {
        let parts = &self.chunks[chunk.0].parts;
        let request = self.first_request(chunk);
        let bytes = parts.bytes();
        let offloaded_bytes = self.ready.offloaded_bytes();
        let work = Work { bytes, ahead_bytes, offloaded_bytes, awake: self.awake() };
        (self.policy.target(&self.context(request), &work), bytes)
    }

    /// The first request of a chunk. The others have its operation and its urgency.
    fn first_request(&self, chunk: ChunkId) -> &RequestState<E> {
        &self.requests[self.chunks[chunk.0].parts.as_slice()[0].request.0]
    }

    fn context<'a>(&'a self, request: &RequestState<E>) -> Context<'a> {
        Context {
            op: request.op,
            sectors: request.end - request.start,
            left_sectors: request.end - request.next,
            sequential: request.sequential,
            urgency: request.urgency,
            in_flight: self.requests.in_use() as u32,
            backend: &self.backend,
            environment: &self.environment,
            workers_slept_ns: self.ready.workers_slept_ns(self.now_ns),
        }
    }

    /// Workers that are not asleep, if they have chunks of this machine or had some a moment ago.
    fn awake(&self) -> u32 {
        let Environment { workers, idle_workers, .. } = self.environment;
        let awake = workers.saturating_sub(idle_workers);
        if self.ready.has_workers(self.now_ns) { awake } else { 0 }
    }

    /// Advances the time to `now_ns`.
    #[inline]
    fn pass(&mut self, now_ns: u64) {
        self.policy.on_time(now_ns, self.requests.in_use());
        self.now_ns = now_ns;
    }

    /// Starts chunks of the waiting requests while there is room.
    #[inline]
    pub fn plan(&mut self, now_ns: u64, environment: Environment) {
        self.pass(now_ns);
        self.environment = environment;
        let in_flight = self.requests.in_use();
        self.policy.on_round(now_ns, in_flight, &self.backend, &environment);
        while self.zeroes_freed && self.start_zeroes(now_ns)
            || !self.waiting.is_empty() && self.start_chunk(now_ns)
        {}
    }

    /// Reports that a chunk was handed to a worker, from `from_ns` to `now_ns`; the chunk's wait is
    /// counted from `from_ns`, not from the output. `target` tells whether a worker was woken.
    ///
    /// # Panics
    /// If no transform of that chunk was asked for.
    pub fn offloaded(&mut self, chunk: ChunkId, target: Target, from_ns: u64, now_ns: u64) {
        let alone = self.ready.is_empty() && self.awake() == 0;
        let slept_ns = self.ready.workers_slept_ns(from_ns);
        self.pass(now_ns);
        let state = &mut self.chunks[chunk.0];
        assert!(state.phase == Phase::Transform, "offloaded without a transform");
        let (op, bytes) = (state.op, state.parts.bytes());
        state.since_ns = from_ns;
        state.offloaded = true;
        let woke = alone && self.environment.idle_workers > 0;
        state.woke_after_ns = woke.then_some(slept_ns);
        if woke {
            self.policy.on_wake(now_ns.saturating_sub(from_ns));
        }
        self.ready.offload(bytes);
        let woken = u32::from(target != Target::OffloadAwake);
        self.environment.idle_workers = self.environment.idle_workers.saturating_sub(woken);
        let urgency = self.first_request(chunk).urgency;
        self.policy.on_placed(op, urgency, true);
    }

    /// Reports that this thread transformed an offloaded chunk itself, because no worker had taken
    /// it yet. The chunk counts as inline.
    ///
    /// # Panics
    /// If that chunk was not offloaded.
    pub fn taken_back(&mut self, chunk: ChunkId) {
        let state = &mut self.chunks[chunk.0];
        assert!(state.phase == Phase::Transform && state.offloaded, "no worker could have it");
        state.taken_back = true;
    }

    /// Reports that the chunk was transformed; it took `spent_ns` of some core, if measured. After
    /// an error its data goes neither to the backend nor to the client.
    ///
    /// # Panics
    /// If no transform of that chunk was asked for.
    pub fn cipher_done(
        &mut self,
        chunk: ChunkId,
        result: Result<(), E>,
        spent_ns: Option<u64>,
        now_ns: u64,
    ) {
        let is_write = self.transformed(chunk, spent_ns, now_ns);
        if !is_write || result.is_err() {
            match result {
                Err(error) if self.will_retry(chunk) => self.retry(chunk, error),
                _ => self.end_chunk(chunk, result),
            }
            return self.release(now_ns);
        }
        let state = &mut self.chunks[chunk.0];
        if state.ordered {
            state.phase = Phase::InOrder;
            self.release(now_ns);
        } else {
            self.leave(chunk, now_ns);
        }
    }

    /// Reports that the chunk was encrypted to where the backend keeps it, with this `result`: the
    /// write needs no submission.
    ///
    /// # Panics
    /// If no [`Output::EncryptMapped`] of that chunk was output.
    pub fn mapped_done(
        &mut self,
        chunk: ChunkId,
        result: Result<(), E>,
        spent_ns: Option<u64>,
        now_ns: u64,
    ) {
        assert!(self.transformed(chunk, spent_ns, now_ns), "only a write is encrypted");
        let state = &mut self.chunks[chunk.0];
        if state.ordered {
            // `end_chunk` then treats the chunk as one that has left.
            state.phase = Phase::Io;
            assert_eq!(self.order.pop_front(), Some(chunk), "it leaves next");
        }
        self.end_chunk(chunk, result);
        self.release(now_ns);
    }

    /// Records the end of a transform. Returns whether the chunk is a write's.
    fn transformed(&mut self, chunk: ChunkId, spent_ns: Option<u64>, now_ns: u64) -> bool {
        self.pass(now_ns);
        let state = &mut self.chunks[chunk.0];
        assert!(state.phase == Phase::Transform, "done without a transform");
        let (op, bytes) = (state.op, state.parts.bytes());
        let offloaded = std::mem::take(&mut state.offloaded);
        let taken_back = std::mem::take(&mut state.taken_back);
        let waited_ns = now_ns.saturating_sub(state.since_ns);
        let wake_latency = spent_ns.zip(state.woke_after_ns.take()).map(|(spent_ns, slept_ns)| {
            WakeLatency { slept_ns, ns: waited_ns.saturating_sub(spent_ns) }
        });
        if offloaded {
            self.ready.offload_ended(bytes, now_ns);
        } else {
            let urgency = self.first_request(chunk).urgency;
            self.policy.on_placed(op, urgency, false);
        }
        let by = match (offloaded, taken_back) {
            (false, _) => TransformedBy::ThisThread,
            (true, true) => TransformedBy::ThisThreadAfterAll,
            (true, false) => TransformedBy::Worker,
        };
        match by {
            TransformedBy::Worker => self.stats.offloaded += 1,
            TransformedBy::ThisThread | TransformedBy::ThisThreadAfterAll => self.stats.inline += 1,
        }
        self.stats.taken_back += u64::from(by == TransformedBy::ThisThreadAfterAll);
        let beside_workers = self.ready.offloaded_bytes() > 0;
        let done = CipherDone { op, bytes, spent_ns, by, beside_workers, wake_latency };
        self.policy.on_cipher_done(&done);
        op.is_write()
    }

    /// Whether decisions depend on the time: a worker has a chunk, or had one so lately that waking
    /// it does not take the longest yet; or the policy compares times.
    pub fn needs_time(&self) -> bool {
        let [.., deepest_ns] = SLEEPS_NS;
        self.ready.workers_slept_ns(self.now_ns) < deepest_ns || self.policy.needs_time()
    }

    /// Reports the backend's answer for the chunk. If no time has passed since the output, the
    /// caller has read no clock, and the operation is not measured.
    ///
    /// # Panics
    /// If no operation of that chunk was asked for.
    pub fn io_done(&mut self, chunk: ChunkId, result: Result<(), E>, now_ns: u64) {
        self.pass(now_ns);
        let state = &mut self.chunks[chunk.0];
        assert!(state.phase == Phase::Io, "an answer to nothing");
        let (op, bytes) = (state.op, state.parts.bytes());
        let spent_ns = now_ns.saturating_sub(state.since_ns);
        let asked_flush = state.asks_flush;
        if result.is_ok() && spent_ns > 0 && !asked_flush {
            self.policy.on_io_done(op, bytes, spent_ns);
        }
        let result = match (result, self.retried_after(chunk)) {
            (Err(error), _) if self.will_retry(chunk) => return self.retry(chunk, error),
            (Err(_), Some(first)) if op.is_fua() && !asked_flush => {
                return self.ask_flush(chunk, first);
            }
            // The data could be written but was not made durable, or could not even be written.
            (_, Some(error)) if op.is_fua() => Err(error),
            (result, _) => result,
        };
        if op != Op::Read || result.is_err() {
            return self.end_chunk(chunk, result);
        }
        self.arrived(chunk, false);
    }

    /// Reports that the read chunk's ciphertext lies in the backend's mapping: nothing was
    /// submitted.
    ///
    /// # Panics
    /// If no read of that chunk was asked for.
    pub fn io_mapped(&mut self, chunk: ChunkId, now_ns: u64) {
        self.pass(now_ns);
        let state = &mut self.chunks[chunk.0];
        assert!(state.phase == Phase::Io && state.op == Op::Read, "an answer to nothing");
        self.arrived(chunk, true);
    }

    fn arrived(&mut self, chunk: ChunkId, mapped: bool) {
        let state = &mut self.chunks[chunk.0];
        (state.phase, state.mapped) = (Phase::Transform, mapped);
        self.ready.push_arrived(chunk);
    }
}
