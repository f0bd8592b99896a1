//! The state machine of one queue.
//!
//! Contract:
//!
//! - A [`Request`] that [`Machine::request`] accepts ends in exactly one [`Output::Finish`]. A full
//!   machine refuses it instead: nothing is allocated after [`Machine::new`], nothing is dropped.
//! - Accepted requests wait until [`Machine::plan`]: those that wait together may become one chunk
//!   if they are neighbours. Call it whenever requests were accepted, or a
//!   `Finish` or `Drop` was taken.
//! - Every `Crypt` is answered by [`Machine::crypted`], every `Store` by [`Machine::stored`], once,
//!   in any order. A read's chunk is stored (read), then crypted; a write's is crypted, then
//!   stored.
//! - `Store`s and `Finish`es are told before any `Crypt`, so that the backend and the clients have
//!   work while this thread crypts; reads' `Store`s in the order of their chunks. `Crypt`s come in
//!   any order, one at a time: which one and where is decided when [`Machine::next_output`] is
//!   asked, from what waits then.
//! - Where the policy keeps order, writes leave for the backend in the order in which their chunks
//!   were made: requests as they came, within a request by sector. Only [`Op::EncryptZeroes`]
//!   yields to later requests between its chunks.
//! - `Finish` of a write comes after the backend has answered for each of its chunks; with `fua`
//!   each of them was stored durably. `Finish` of a flush comes after the backend's flush, which
//!   starts after every write that was finished before.
//! - After a chunk fails, no further chunk of its requests is made; they finish with the first
//!   error when those under way are answered.
//! - **An error reaches the requests that it concerns.** A chunk of several requests that fails is
//!   stored again, one part after the other: [`Machine::parts`] then tells the one part, and
//!   [`Machine::tries_again`] told before that its buffers are still needed. These writes leave when
//!   it is their turn, behind what left meanwhile.
//! - **A durable write that fails** is stored again without `fua`. If that succeeds, it was not
//!   writing that failed but making durable: the request fails all the same, and the caller, who
//!   sees success for a chunk that [is stored again](Machine::stored_again), must treat it as a
//!   failed flush. Such writes share a chunk with nobody.
//! - **Memory for zeroes is reserved before a chunk starts**: at most
//!   [`Limits::zeroes_sectors_max`] sectors of [`Op::EncryptZeroes`] are under way, each chunk
//!   counted in whole [`ZEROES_UNIT_SECTORS`]. Requests that wait for it hold nothing and stand in
//!   nobody's way.
//! - [`Machine::cancel`] is such an error from outside. A `Crypt` or `Store` that was told is still
//!   to be answered, and the answer changes nothing any more: what has left stays. A chunk that is
//!   left with no request that could succeed goes no further: instead of its next `Crypt` or
//!   `Store`, [`Output::Drop`] is told.
//! - A chunk never crosses one of [`Limits::borders`].
//! - Time only goes forward and is only compared; its origin does not matter.

use std::collections::VecDeque;

use crate::adaptive::may_gain;
use crate::around::{Device, Limits, Surroundings, ZEROES_UNIT_SECTORS};
use crate::chunk::{Chunk, ChunkId, PARTS_MAX, Part, Parts, Phase, RequestId};
use crate::explorer::{Arm, Explorer};
use crate::learn::Learned;
use crate::line::Line;
use crate::policy::{Plan, Policies, Policy, Situation, Tally, Target, Work};
use crate::request::{Op, Request, StoreKind, Urgency};
use crate::slab::Slab;

/// What the caller has to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output<E> {
    /// Encrypt (write) or decrypt (read) the chunk's parts, then call [`Machine::crypted`].
    Crypt {
        /// The chunk; [`Machine::parts`] tells its sectors.
        chunk: ChunkId,
        /// Where to do it.
        target: Target,
    },
    /// Submit the chunk to the backend, then call [`Machine::stored`] with the result.
    Store {
        /// The chunk; [`Machine::parts`] tells its sectors.
        chunk: ChunkId,
        /// What to do.
        kind: StoreKind,
    },
    /// Nothing more is to be done for the chunk, whose id is free again: every request of it has
    /// failed or was cancelled.
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

#[derive(Debug)]
struct RequestState<E> {
    op: Op,
    urgency: Urgency,
    start: u64,
    /// Next sector that is not in a chunk yet.
    next: u64,
    end: u64,
    under_way: u32,
    /// Whether it stands in `Machine::waiting` or `Machine::wait_for_zeroes`.
    waits: bool,
    error: Option<E>,
    /// See [`Explorer::changes`].
    changes: u32,
}

impl<E> RequestState<E> {
    /// An entry for requests to come.
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
            changes: 0,
        }
    }
}

/// Requests that are looked at for a neighbour.
const JOIN_SCAN: usize = 32;

/// See the module's contract. `E` is the backend's error.
#[derive(Debug)]
pub struct Machine<E> {
    limits: Limits,
    policies: Policies,
    device: Device,
    surroundings: Surroundings,
    learned: Learned,
    explorer: Explorer,
    tally: Tally,
    requests: Slab<RequestState<E>>,
    /// Those among them that have failed or were cancelled.
    failed: u32,
    chunks: Slab<Chunk<E>>,
    /// Requests with sectors that are in no chunk yet and that may start one, in arrival order.
    waiting: VecDeque<RequestId>,
    /// Those that wait for memory for zeroes, first come first served.
    wait_for_zeroes: VecDeque<RequestId>,
    /// Units of memory for zeroes that no chunk has.
    zeroes_free: u64,
    /// Some of it became free since the first of `wait_for_zeroes` was refused.
    zeroes_freed: bool,
    /// Ordered writes that have not left.
    order: VecDeque<ChunkId>,
    /// What takes this thread little time: stores and finishes.
    outputs: VecDeque<Output<E>>,
    /// What is to be crypted.
    line: Line,
    /// The latest time that was told.
    now_ns: u64,
}

impl<E: Copy> Machine<E> {
    /// A machine with no request in it. All memory it will ever use is taken here.
    ///
    /// # Panics
    /// If a bound is zero, or the largest transfer is no multiple of the sector size.
    pub fn new(limits: Limits, policies: impl Into<Policies>, device: Device) -> Self {
        assert!(limits.requests_max > 0 && limits.chunks_max > 0 && limits.sector_sectors > 0);
        assert!(limits.transfer_sectors_max >= limits.sector_sectors);
        assert!(limits.transfer_sectors_max.is_multiple_of(limits.sector_sectors));
        assert!(limits.zeroes_sectors_max >= limits.transfer_sectors_max, "a chunk must fit");
        let (requests, chunks) = (limits.requests_max as usize, limits.chunks_max as usize);
        Self {
            requests: Slab::new(limits.requests_max, RequestState::spare),
            chunks: Slab::new(limits.chunks_max, Chunk::spare),
            failed: 0,
            waiting: VecDeque::with_capacity(requests),
            wait_for_zeroes: VecDeque::with_capacity(requests),
            zeroes_free: zeroes_units(limits.zeroes_sectors_max),
            zeroes_freed: false,
            order: VecDeque::with_capacity(chunks),
            line: Line::new(chunks),
            now_ns: 0,
            outputs: VecDeque::with_capacity(requests + chunks),
            surroundings: Surroundings::default(),
            learned: Learned::default(),
            explorer: Explorer::new(),
            tally: Tally::default(),
            policies: policies.into(),
            device,
            limits,
        }
    }

    /// Whether [`Machine::request`] would refuse.
    pub fn is_full(&self) -> bool {
        self.requests.is_full()
    }

    /// Requests accepted and not yet finished.
    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    /// What has been measured; measurements from outside (a calibration) may be added.
    pub fn learned_mut(&mut self) -> &mut Learned {
        &mut self.learned
    }

    /// What has been measured.
    pub fn learned(&self) -> &Learned {
        &self.learned
    }

    /// How often was decided what.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Accepts a request, or returns `None` when the machine is full.
    ///
    /// # Panics
    /// If the request is empty and no flush, or its end overflows: the caller checks both
    /// against the volume's size.
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
            changes: self.explorer.changes(),
        };
        let id = RequestId(id);
        self.waiting.push_back(id);
        Some(id)
    }

    /// Gives a request up. It finishes with `error`, unless it has failed before or all of it is done
    /// already, once what is under way for it is answered. Of a write, any part may have been done.
    /// Nothing happens if there is no such request.
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

    /// Whether a chunk that is crypted or stored now would be stored again after an error, so that
    /// its buffers are still needed.
    pub fn tries_again(&self, chunk: ChunkId) -> bool {
        self.chunks.get(chunk.0).is_some_and(|state| match (state.phase, state.op) {
            _ if state.again.is_some() => false,
            (Phase::Store, op) if op.is_fua() => true,
            (Phase::Store, _) | (Phase::Crypt, Op::Read) => state.parts.as_slice().len() > 1,
            _ => false,
        })
    }

    /// The error after which a chunk under way is stored again, part by part; `None` if it is not.
    pub fn stored_again(&self, chunk: ChunkId) -> Option<E> {
        self.chunks.get(chunk.0).and_then(|state| state.again)
    }

    /// What a chunk under way is; `None` if there is no such chunk.
    pub fn op(&self, chunk: ChunkId) -> Option<Op> {
        self.chunks.get(chunk.0).map(|chunk| chunk.op)
    }

    /// Whether a write's chunk that is being crypted leaves for the backend as soon as it is crypted:
    /// nothing has to leave before it.
    pub fn leaves_next(&self, chunk: ChunkId) -> bool {
        self.chunks.get(chunk.0).is_some_and(|state| {
            state.phase == Phase::Crypt
                && state.op.is_write()
                && (!state.ordered || self.order.front() == Some(&chunk))
        })
    }

    /// The next thing to do; `None` when the machine waits for an input.
    #[inline]
    pub fn next_output(&mut self) -> Option<Output<E>> {
        let Some(output) = self.outputs.pop_front() else {
            return if self.line.is_empty() { None } else { self.next_crypt() };
        };
        match output {
            Output::Finish { request, result } => {
                self.explore(request, result.is_ok());
                // Not earlier: until it is told, the id must not name another request.
                self.requests.give_back(request.0);
                self.failed -= u32::from(result.is_err());
            }
            Output::Store { chunk, .. } if self.is_in_vain(chunk) => {
                return Some(self.drop_chunk(chunk));
            }
            _ => {}
        }
        Some(output)
    }

    /// Whether there is a choice: a worker to give something to, or a device that works beside the cipher.
    #[inline]
    fn explores(&self) -> bool {
        (self.surroundings.workers > 0 || !self.device.synchronous) && self.policies.adapts()
    }

    /// Takes the end of a request into account for the explorer.
    #[inline]
    fn explore(&mut self, id: RequestId, ok: bool) {
        if self.explores()
            && let Some(request) = self.requests.get(id.0)
        {
            // Of one that has failed, who knows what was done.
            let op = if ok { request.op } else { Op::Flush };
            self.explorer.end(op, (request.end - request.start) * 512, request.changes);
        }
    }

    /// It is `now_ns`.
    #[inline]
    fn pass(&mut self, now_ns: u64) {
        if self.explores() {
            self.explorer.pass(now_ns, self.requests.len());
        }
        self.now_ns = now_ns;
    }

    /// Whether no request of the chunk can succeed any more.
    fn is_in_vain(&self, chunk: ChunkId) -> bool {
        let fails =
            |part: &Part| self.requests.get(part.request.0).is_some_and(|r| r.error.is_some());
        // What is stored again has others behind it, which may succeed.
        self.failed > 0 && self.parts(chunk).iter().all(fails) && self.stored_again(chunk).is_none()
    }

    /// Ends a chunk that is in nobody's hands.
    fn drop_chunk(&mut self, chunk: ChunkId) -> Output<E> {
        self.end_chunk(chunk, Ok(()));
        self.release(self.now_ns);
        Output::Drop { chunk }
    }

    /// The next chunk to crypt, and where: decided only now, when it is known what else waits.
    ///
    /// This thread takes the chunk at the head of the line. Before it does, it hands on the first one
    /// that the policy wants to be handed on.
    fn next_crypt(&mut self) -> Option<Output<E>> {
        let (at, target) = self.choose()?;
        let chunk = self.line.remove(at).expect("it was looked at");
        if self.is_in_vain(chunk) {
            return Some(self.drop_chunk(chunk));
        }
        let alone = self.line.is_empty() && self.awake() == 0;
        let state = self.chunks.get_mut(chunk.0).expect("a chunk under way");
        state.since_ns = self.now_ns;
        state.handed = target != Target::Inline;
        let (op, write) = (state.op, state.op.is_write());
        state.woke_worker = state.handed && alone && self.surroundings.idle_workers > 0;
        let bytes = state.parts.bytes();
        if state.handed {
            self.line.hand(bytes);
        } else {
            self.line.keep(bytes as f64 * self.learned.cipher_ns_per_byte(write));
        }
        self.tally_target(op, target);
        Some(Output::Crypt { chunk, target })
    }

    /// Which chunk of the line is next, and where.
    fn choose(&self) -> Option<(usize, Target)> {
        let mut ahead_bytes = 0;
        let mut first = None;
        for (at, chunk) in self.line.front().enumerate() {
            let (target, bytes) = self.target(chunk, ahead_bytes);
            if target != Target::Inline {
                return Some((at, target));
            }
            first = first.or(Some((at, target)));
            let all_kept = self.explorer.arm() == Arm::AllInline && self.policies.are_adaptive();
            if self.surroundings.workers == 0 || all_kept {
                break;
            }
            ahead_bytes += bytes;
        }
        first
    }

    /// Starts chunks of the waiting requests while there is room.
    #[inline]
    pub fn plan(&mut self, now_ns: u64, surroundings: Surroundings) {
        self.pass(now_ns);
        let explored = self.explores();
        self.surroundings = surroundings;
        if self.explores() != explored {
            self.explorer.rest(now_ns, self.requests.len());
        }
        if self.explores() {
            let learned = &self.learned;
            let workers = surroundings.workers > 0;
            self.explorer.turn(|load| workers && may_gain(learned, load));
        }
        while self.start_zeroes(now_ns) || self.start_chunk(now_ns) {}
    }

    /// The chunk's crypt has ended; it took `spent_ns` of some core, if that was measured. After
    /// an error the chunk goes nowhere: neither to the backend nor to the client.
    ///
    /// # Panics
    /// If no crypt of that chunk was asked for.
    pub fn crypted(
        &mut self,
        chunk: ChunkId,
        result: Result<(), E>,
        spent_ns: Option<u64>,
        now_ns: u64,
    ) {
        self.pass(now_ns);
        let state = self.chunks.get_mut(chunk.0).expect("a chunk under way");
        assert!(state.phase == Phase::Crypt, "crypted without a Crypt");
        let bytes = state.parts.bytes();
        let handed = std::mem::take(&mut state.handed);
        if handed {
            self.line.take_back(bytes, now_ns);
        }
        if let Some(spent_ns) = spent_ns {
            // Beside a worker this thread is slower: that is the worker's doing.
            if handed || self.line.handed_bytes() == 0 {
                self.learned.crypt(state.op.is_write(), handed, bytes, spent_ns);
            }
            if state.woke_worker {
                let waited = now_ns.saturating_sub(state.since_ns);
                self.learned.handover(waited.saturating_sub(spent_ns));
            }
        }
        if !state.op.is_write() || result.is_err() {
            match result {
                Err(error) if self.tries_again(chunk) => self.store_again(chunk, error),
                _ => self.end_chunk(chunk, result),
            }
            self.release(now_ns);
        } else if state.ordered {
            state.phase = Phase::InOrder;
            self.release(now_ns);
        } else {
            self.leave(chunk, now_ns);
        }
    }

    /// Tells from when to when a worker was given the chunk, if time has passed since it was asked for.
    ///
    /// # Panics
    /// If no crypt of that chunk was asked for.
    pub fn handed(&mut self, chunk: ChunkId, from_ns: u64, now_ns: u64) {
        self.pass(now_ns);
        let state = self.chunks.get_mut(chunk.0).expect("a chunk under way");
        state.since_ns = from_ns;
        if state.woke_worker {
            self.learned.wake(now_ns.saturating_sub(from_ns));
        }
    }

    /// Whether decisions depend on the time: a worker has a chunk, or had one a moment ago and does not
    /// sleep yet; or arms are compared.
    pub fn needs_time(&self) -> bool {
        self.line.has_workers(self.now_ns) || self.explorer.compares()
    }

    /// The backend has answered for the chunk. No time since it was asked for means that nobody has
    /// looked at a clock.
    ///
    /// # Panics
    /// If no store of that chunk was asked for.
    pub fn stored(&mut self, chunk: ChunkId, result: Result<(), E>, now_ns: u64) {
        self.pass(now_ns);
        let state = self.chunks.get_mut(chunk.0).expect("a chunk under way");
        assert!(state.phase == Phase::Store, "stored without a Store");
        let (op, bytes) = (state.op, state.parts.bytes());
        if result.is_ok() && matches!(op, Op::Read | Op::Write { .. }) {
            let took = now_ns.saturating_sub(state.since_ns);
            if took > 0 {
                self.learned.store(op.is_write(), bytes, took);
            }
        }
        let result = match (result, state.again) {
            (Err(error), _) if self.tries_again(chunk) => return self.store_again(chunk, error),
            // It can be written, but it was not made durable.
            (Ok(()), Some(error)) if op.is_fua() => Err(error),
            (result, _) => result,
        };
        if op != Op::Read || result.is_err() {
            return self.end_chunk(chunk, result);
        }
        let state = self.chunks.get_mut(chunk.0).expect("a chunk under way");
        state.phase = Phase::Crypt;
        self.line.arrived(chunk);
    }

    /// Begins to store a chunk again, part by part, after it failed as a whole.
    fn store_again(&mut self, chunk: ChunkId, error: E) {
        let state = self.chunks.get_mut(chunk.0).expect("a chunk under way");
        state.again = Some(error);
        state.parts.split(&mut state.rest);
        self.leave_again(chunk);
    }

    fn leave_again(&mut self, chunk: ChunkId) {
        let state = self.chunks.get_mut(chunk.0).expect("a chunk under way");
        (state.phase, state.since_ns) = (Phase::Store, self.now_ns);
        let kind = match state.op.into() {
            StoreKind::Write { .. } => StoreKind::Write { fua: false },
            kind => kind,
        };
        self.outputs.push_back(Output::Store { chunk, kind });
    }

    /// Hands an encrypted chunk to the backend.
    fn leave(&mut self, chunk: ChunkId, now_ns: u64) {
        let state = self.chunks.get_mut(chunk.0).expect("a chunk under way");
        (state.phase, state.since_ns) = (Phase::Store, now_ns);
        self.outputs.push_back(Output::Store { chunk, kind: state.op.into() });
    }

    /// Hands on the encrypted chunks whose turn it is.
    fn release(&mut self, now_ns: u64) {
        while let Some(&chunk) = self.order.front() {
            let state = self.chunks.get(chunk.0).expect("a chunk under way");
            if state.phase != Phase::InOrder {
                return;
            }
            self.order.pop_front();
            self.leave(chunk, now_ns);
        }
    }

    /// Ends the parts of a chunk, and the chunk itself unless others are still to be stored again.
    fn end_chunk(&mut self, chunk: ChunkId, result: Result<(), E>) {
        let ended = self.chunks.get_mut(chunk.0).expect("a chunk under way");
        let mut parts = std::mem::take(&mut ended.parts);
        if matches!(ended.op, Op::EncryptZeroes { .. }) {
            self.zeroes_free += zeroes_units(parts.sectors());
            self.zeroes_freed = true;
        }
        if ended.ordered && ended.phase == Phase::Crypt {
            // It never leaves: those behind it wait for nothing.
            self.order.retain(|&other| other != chunk);
        }
        for part in parts.as_slice() {
            if let Err(error) = result {
                self.fail(part.request, error);
            }
            let request = self.requests.get_mut(part.request.0).expect("its request");
            request.under_way -= 1;
            if request.next < request.end && !request.waits {
                request.waits = true;
                self.waiting.push_back(part.request);
            }
            self.finish_if_done(part.request);
        }
        let ended = self.chunks.get_mut(chunk.0).expect("a chunk under way");
        if let Some(next) = ended.rest.pop() {
            parts.begin(next);
            ended.parts = parts;
            return self.leave_again(chunk);
        }
        (ended.parts, ended.again) = (parts, None);
        self.chunks.give_back(chunk.0);
    }

    /// Nothing more of the request is begun, and it ends with its first error.
    fn fail(&mut self, id: RequestId, error: E) {
        let request = self.requests.get_mut(id.0).expect("its request");
        self.failed += u32::from(request.error.is_none());
        request.error.get_or_insert(error);
        request.next = request.end;
    }

    /// Tells the end of a request that has nothing left to start or to wait for.
    fn finish_if_done(&mut self, id: RequestId) {
        let request = self.requests.get(id.0).expect("its request");
        if request.under_way == 0 && request.next >= request.end && !request.waits {
            let result = request.error.map_or(Ok(()), Err);
            self.outputs.push_back(Output::Finish { request: id, result });
        }
    }

    /// Starts one chunk of the request that has waited longest. Returns whether to go on.
    fn start_chunk(&mut self, now_ns: u64) -> bool {
        let Some(&id) = self.waiting.front() else { return false };
        let request = self.requests.get(id.0).expect("a waiting request");
        let plan = self.policies.of(request.op).plan(&self.situation(request));
        if request.error.is_some() || request.under_way >= plan.window {
            self.stop_waiting(id);
            return true;
        }
        if self.is_out_of_chunks() {
            return false;
        }
        if matches!(request.op, Op::EncryptZeroes { .. }) {
            if !self.wait_for_zeroes.is_empty() || !self.has_zeroes(request, &plan) {
                self.waiting.pop_front();
                self.wait_for_zeroes.push_back(id);
                return true;
            }
            self.take_zeroes(id, &plan, now_ns);
            return true;
        }
        let (op, whole) = (request.op, request.next == request.start);
        let part = self.take_part(id, &plan);
        let more = self.requests.get(id.0).is_some_and(|request| request.next < request.end);
        let chunk = self.launch(op, part, &plan, now_ns);
        let mut joined = 1;
        // Whether it was made durable must be known of each write by itself.
        if !more && plan.join_max.0 > 1 && matches!(op, Op::Read | Op::Write { fua: false }) {
            joined = self.join_neighbours(op, &plan, chunk);
        }
        self.tally_cut(op, joined, whole, more);
        true
    }

    /// Counts how a request became chunks, when its chunk was begun: of so many requests, its first
    /// (`whole`), not its last (`more`).
    fn tally_cut(&mut self, op: Op, joined: usize, whole: bool, more: bool) {
        // A backend in memory splits for the sake of workers, whatever an operation costs.
        let reshaped = match (joined, whole && !more) {
            (1, true) => {
                self.tally.whole += 1;
                false
            }
            (1, false) if more => false,
            (1, false) => {
                self.tally.cut += 1;
                !self.device.synchronous
            }
            (joined, _) => {
                self.tally.joined += joined as u64;
                true
            }
        };
        if reshaped && self.explores() && self.policies.of(op) == Policy::Adaptive {
            self.explorer.reshaped();
        }
    }

    fn is_out_of_chunks(&self) -> bool {
        self.chunks.is_full() || self.chunks.len() >= self.device.depth_max as usize
    }

    /// Starts a chunk of the request that has waited longest for memory for zeroes, if there is
    /// enough now. Returns whether to go on.
    fn start_zeroes(&mut self, now_ns: u64) -> bool {
        if !self.zeroes_freed || self.is_out_of_chunks() {
            return false;
        }
        let Some(&id) = self.wait_for_zeroes.front() else {
            self.zeroes_freed = false;
            return false;
        };
        let request = self.requests.get(id.0).expect("a waiting request");
        let plan = self.policies.of(request.op).plan(&self.situation(request));
        if request.error.is_some() || request.under_way >= plan.window {
            self.stop_waiting(id);
            return true;
        }
        self.zeroes_freed = self.has_zeroes(request, &plan);
        if self.zeroes_freed {
            self.take_zeroes(id, &plan, now_ns);
        }
        self.zeroes_freed
    }

    /// Whether there is memory for the next chunk of a write of zeroes.
    fn has_zeroes(&self, request: &RequestState<E>, plan: &Plan) -> bool {
        let RequestState { op, next, end, .. } = *request;
        let until = chunk_end(&self.limits, op, next, end, plan.chunk_sectors);
        zeroes_units(until - next) <= self.zeroes_free
    }

    /// Starts a chunk of a write of zeroes, for which there is memory.
    fn take_zeroes(&mut self, id: RequestId, plan: &Plan, now_ns: u64) {
        let request = self.requests.get(id.0).expect("a waiting request");
        let (op, whole) = (request.op, request.next == request.start);
        let part = self.take_part(id, plan);
        self.zeroes_free -= zeroes_units(part.sectors);
        let more = self.requests.get(id.0).is_some_and(|request| request.next < request.end);
        self.launch(op, part, plan, now_ns);
        self.tally_cut(op, 1, whole, more);
    }

    fn situation<'a>(&'a self, request: &RequestState<E>) -> Situation<'a> {
        Situation {
            op: request.op,
            sectors: request.end - request.start,
            left_sectors: request.end - request.next,
            urgency: request.urgency,
            depth: self.requests.len() as u32,
            transfer_sectors_max: self.limits.transfer_sectors_max,
            device: &self.device,
            surroundings: &self.surroundings,
            learned: &self.learned,
            arm: self.explorer.arm(),
        }
    }

    /// Where a chunk would be crypted that has so many bytes before it in line, and its length.
    fn target(&self, chunk: ChunkId, ahead_bytes: u64) -> (Target, u64) {
        let parts = &self.chunks.get(chunk.0).expect("a chunk under way").parts;
        let request = self.requests.get(parts.as_slice()[0].request.0).expect("its request");
        let bytes = parts.bytes();
        let work = Work {
            bytes,
            ahead_bytes,
            handed_bytes: self.line.handed_bytes(),
            awake: self.awake(),
            waited_ns: self.line.waited_ns(),
        };
        (self.policies.of(request.op).target(&self.situation(request), &work), bytes)
    }

    /// Workers that do not sleep, if they have or just had chunks of this machine.
    fn awake(&self) -> u32 {
        let Surroundings { workers, idle_workers, .. } = self.surroundings;
        let awake = workers.saturating_sub(idle_workers);
        if self.line.has_workers(self.now_ns) { awake } else { 0 }
    }

    /// Takes a request out of the waiting line; it finishes if nothing of it is under way.
    fn stop_waiting(&mut self, id: RequestId) {
        self.leave_waiting(id);
        let request = self.requests.get_mut(id.0).expect("a waiting request");
        request.waits = false;
        self.finish_if_done(id);
    }

    /// Moves the request's next sectors into a chunk.
    #[inline]
    fn take_part(&mut self, id: RequestId, plan: &Plan) -> Part {
        let request = self.requests.get_mut(id.0).expect("a waiting request");
        let sector = request.next;
        let until = chunk_end(&self.limits, request.op, sector, request.end, plan.chunk_sectors);
        request.next = until;
        request.under_way += 1;
        let all = until == request.end;
        if all {
            // Not `stop_waiting`: it has a chunk under way now.
            request.waits = false;
            self.leave_waiting(id);
        }
        Part { request: id, sector, sectors: until - sector }
    }

    /// Takes a request out of the list in which it waits, mostly as its first.
    fn leave_waiting(&mut self, id: RequestId) {
        for list in [&mut self.waiting, &mut self.wait_for_zeroes] {
            if let Some(at) = list.iter().position(|&waiting| waiting == id) {
                list.remove(at);
                return;
            }
        }
    }

    /// Adds whole requests to a chunk that continue it and wait as well. Returns how many it has then.
    fn join_neighbours(&mut self, op: Op, plan: &Plan, chunk: ChunkId) -> usize {
        let state = self.chunks.get_mut(chunk.0).expect("it was just begun");
        let mut parts = std::mem::take(&mut state.parts);
        self.find_neighbours(op, plan, &mut parts);
        let joined = parts.as_slice().len();
        let state = self.chunks.get_mut(chunk.0).expect("it was just begun");
        state.parts = parts;
        joined
    }

    fn find_neighbours(&mut self, op: Op, plan: &Plan, parts: &mut Parts) {
        let (requests, sectors) = plan.join_max;
        let longest = sectors.min(self.limits.transfer_sectors_max);
        let requests = PARTS_MAX.min(requests as usize);
        while parts.as_slice().len() < requests {
            let end = parts.end();
            let room = longest.saturating_sub(parts.sectors());
            let neighbour = self.waiting.iter().take(JOIN_SCAN).copied().find(|id| {
                self.requests.get(id.0).is_some_and(|request| {
                    request.op == op
                        && request.next == end
                        && request.start == end
                        && request.error.is_none()
                        && request.end - end <= room
                })
            });
            let Some(id) = neighbour else { return };
            let from = parts.sector();
            let until = self.requests.get(id.0).map_or(end, |request| request.end);
            let crosses = |border: &&u64| **border > from && **border < until;
            if self.limits.borders.iter().any(|border| crosses(&border)) {
                return;
            }
            let whole = Plan { chunk_sectors: room, ..*plan };
            parts.push(self.take_part(id, &whole));
        }
    }

    /// Begins a chunk with its first part.
    fn launch(&mut self, op: Op, part: Part, plan: &Plan, now_ns: u64) -> ChunkId {
        let crypts = op.is_write();
        let (chunk, state) = self.chunks.take().expect("start_chunk saw room");
        state.parts.begin(part);
        (state.op, state.since_ns) = (op, now_ns);
        state.phase = if crypts { Phase::Crypt } else { Phase::Store };
        state.ordered = crypts && plan.ordered;
        (state.woke_worker, state.handed) = (false, false);
        debug_assert!(state.again.is_none() && state.rest.is_empty());
        let chunk = ChunkId(chunk);
        if !crypts {
            self.outputs.push_back(Output::Store { chunk, kind: op.into() });
            return chunk;
        }
        if plan.ordered {
            debug_assert!(self.order.len() < self.chunks.len(), "each stands there once");
            self.order.push_back(chunk);
        }
        self.line.begun(chunk);
        chunk
    }

    fn tally_target(&mut self, op: Op, target: Target) {
        if self.policies.of(op) == Policy::Adaptive {
            match self.explorer.arm() {
                Arm::Model => {}
                Arm::Coarse | Arm::Coarser => self.tally.coarse += 1,
                Arm::AllInline => self.tally.all_inline += 1,
                Arm::AllOffload => self.tally.all_offload += 1,
            }
            if target != Target::Inline {
                self.explorer.offloaded();
            }
        }
        if target == Target::Inline {
            self.tally.inline += 1;
        } else {
            self.tally.offloaded += 1;
            let woken = u32::from(target != Target::OffloadAwake);
            self.surroundings.idle_workers = self.surroundings.idle_workers.saturating_sub(woken);
        }
    }
}

/// Memory for so many sectors of zeroes, in units.
fn zeroes_units(sectors: u64) -> u64 {
    sectors.div_ceil(ZEROES_UNIT_SECTORS)
}

/// Where the chunk that starts at `sector` ends.
fn chunk_end(limits: &Limits, op: Op, sector: u64, end: u64, chunk_sectors: u64) -> u64 {
    let longest = match op {
        // No data is moved: only borders cut these.
        Op::Discard | Op::BackendZeroes | Op::Flush => end - sector,
        _ => chunk_sectors.next_multiple_of(limits.sector_sectors).min(limits.transfer_sectors_max),
    };
    let border =
        limits.borders[limits.borders.partition_point(|&border| border <= sector)..].first();
    let until = end.min(sector.saturating_add(longest));
    border.map_or(until, |&border| until.min(border))
}
