//! The start of chunks: admission, splitting, joining neighbours, memory for zeroes.

use crate::chunk::{ChunkId, PARTS_MAX, Part, Parts, Phase, RequestId};
use crate::environment::Bounds;
use crate::policy::{Policy, Shape, Split};
use crate::request::Op;
use crate::tuning::{JOIN_SCAN_REQUESTS, ZEROES_CHUNKS_MAX, ZEROES_UNIT_SECTORS};

use super::{Machine, Output, RequestState};

impl<E: Copy, P: Policy> Machine<E, P> {
    /// Starts one chunk of the request that has waited longest. Returns whether to go on.
    pub(super) fn start_chunk(&mut self, now_ns: u64) -> bool {
        let Some(&id) = self.waiting.front() else { return false };
        let request = &self.requests[id.0];
        if request.may_start_no_more() {
            self.stop_waiting(id);
            return true;
        }
        if self.chunks.is_full() {
            return false;
        }
        let split = self.policy.split(&self.context(request));
        let is_zeroes = matches!(request.op, Op::EncryptZeroes { .. });
        if is_zeroes && (!self.wait_for_zeroes.is_empty() || !self.has_zeroes(request, &split)) {
            self.waiting.pop_front();
            self.wait_for_zeroes.push_back(id);
            return true;
        }
        self.begin_chunk(id, &split, now_ns);
        true
    }

    /// Moves the request's next sectors into a chunk. There is room for it, and memory if it is one of
    /// zeroes.
    fn begin_chunk(&mut self, id: RequestId, split: &Split, now_ns: u64) {
        let request = &self.requests[id.0];
        let (op, first) = (request.op, request.next == request.start);
        let part = self.take_part(id, split.chunk_sectors);
        if matches!(op, Op::EncryptZeroes { .. }) {
            self.zeroes_free -= zeroes_units(part.sectors);
        }
        let request = &self.requests[id.0];
        let last = request.next >= request.end;
        let chunk = self.launch(op, part, split.ordered, now_ns);
        let mut joined = 1;
        // A durable write is never joined: whether it became durable must be known for each write.
        if last && split.join_requests > 1 && matches!(op, Op::Read | Op::Write { fua: false }) {
            joined = self.join_neighbours(op, split, chunk);
        }
        self.note_shape(op, joined, first, last);
    }

    /// Counts how requests became chunks when a chunk starts. `joined`: requests in the chunk;
    /// `first`, `last`: whether it is the first or last chunk of its request.
    fn note_shape(&mut self, op: Op, joined: u32, first: bool, last: bool) {
        let shape = match joined {
            1 if first && last => Shape::Whole,
            1 if last => Shape::Split,
            1 => return,
            joined => Shape::Joined(joined),
        };
        match shape {
            Shape::Whole => self.stats.whole += 1,
            Shape::Split => self.stats.split += 1,
            Shape::Joined(requests) => self.stats.joined += u64::from(requests),
        }
        self.policy.on_split(op, shape, &self.backend);
    }

    /// Starts a chunk of the request that has waited longest for memory for zeroes, if there is
    /// enough now. Returns whether to go on.
    pub(super) fn start_zeroes(&mut self, now_ns: u64) -> bool {
        if self.chunks.is_full() {
            return false;
        }
        let Some(&id) = self.wait_for_zeroes.front() else {
            self.zeroes_freed = false;
            return false;
        };
        let request = &self.requests[id.0];
        if request.may_start_no_more() {
            self.stop_waiting(id);
            return true;
        }
        let split = self.policy.split(&self.context(request));
        self.zeroes_freed = self.has_zeroes(request, &split);
        if self.zeroes_freed {
            self.begin_chunk(id, &split, now_ns);
        }
        self.zeroes_freed
    }

    /// Whether there is memory for the next chunk of a write of zeroes.
    fn has_zeroes(&self, request: &RequestState<E>, split: &Split) -> bool {
        let RequestState { op, next, end, .. } = *request;
        let until = chunk_end(&self.bounds, op, next, end, split.chunk_sectors);
        zeroes_units(until - next) <= self.zeroes_free
    }

    /// Takes a request out of the waiting list; finishes it if nothing of it is under way.
    pub(super) fn stop_waiting(&mut self, id: RequestId) {
        self.leave_waiting(id);
        let request = &mut self.requests[id.0];
        request.waits = false;
        self.finish_if_done(id);
    }

    /// Moves the request's next sectors into a chunk.
    #[inline]
    fn take_part(&mut self, id: RequestId, chunk_sectors: u64) -> Part {
        let request = &mut self.requests[id.0];
        let sector = request.next;
        let until = chunk_end(&self.bounds, request.op, sector, request.end, chunk_sectors);
        request.next = until;
        request.under_way += 1;
        if until == request.end {
            // Not `stop_waiting`: the request has a chunk under way now.
            request.waits = false;
            self.leave_waiting(id);
        }
        Part { request: id, sector, sectors: until - sector }
    }

    /// Removes a request from the list in which it waits; mostly it is the first there.
    fn leave_waiting(&mut self, id: RequestId) {
        if self.waiting.front() == Some(&id) {
            self.waiting.pop_front();
            return;
        }
        for list in [&mut self.waiting, &mut self.wait_for_zeroes] {
            if let Some(at) = list.iter().position(|&waiting| waiting == id) {
                list.remove(at);
                return;
            }
        }
    }

    /// Joins whole waiting requests to a chunk that they continue. Returns how many requests it
    /// then has.
    fn join_neighbours(&mut self, op: Op, split: &Split, chunk: ChunkId) -> u32 {
        let state = &mut self.chunks[chunk.0];
        let mut parts = std::mem::take(&mut state.parts);
        self.find_neighbours(op, split, &mut parts);
        let joined = parts.as_slice().len() as u32;
        let state = &mut self.chunks[chunk.0];
        state.parts = parts;
        joined
    }

    fn find_neighbours(&mut self, op: Op, split: &Split, parts: &mut Parts) {
        // The chunk is placed as urgently as each of its requests is awaited.
        let urgency = self.requests[parts.as_slice()[0].request.0].urgency;
        let longest = split.join_sectors.min(self.bounds.transfer_sectors_max);
        let requests = PARTS_MAX.min(split.join_requests as usize);
        while parts.as_slice().len() < requests {
            let end = parts.end();
            let room = longest.saturating_sub(parts.sectors());
            let neighbour = self.waiting.iter().take(JOIN_SCAN_REQUESTS).copied().find(|id| {
                let request = &self.requests[id.0];
                request.op == op
                    && request.urgency == urgency
                    && request.next == end
                    && request.start == end
                    && request.error.is_none()
                    && request.end - end <= room
            });
            let Some(id) = neighbour else { return };
            let from = parts.sector();
            let until = self.requests[id.0].end;
            if self.bounds.borders.iter().any(|&border| border > from && border < until) {
                return;
            }
            parts.push(self.take_part(id, room));
        }
    }

    /// Starts a chunk with its first part.
    fn launch(&mut self, op: Op, part: Part, ordered: bool, now_ns: u64) -> ChunkId {
        let transforms_first = op.is_write();
        let (chunk, state) = self.chunks.take().expect("start_chunk saw room");
        state.parts.begin(part);
        (state.op, state.since_ns) = (op, now_ns);
        state.phase = if transforms_first { Phase::Transform } else { Phase::Io };
        state.ordered = transforms_first && ordered;
        (state.woke_after_ns, state.offloaded, state.mapped) = (None, false, false);
        debug_assert!(state.retried_after.is_none() && state.rest.is_empty() && !state.taken_back);
        let chunk = ChunkId(chunk);
        if !transforms_first {
            self.outputs.push_back(Output::SubmitIo { chunk, kind: op.into() });
            return chunk;
        }
        if ordered {
            debug_assert!(self.order.len() < self.chunks.in_use(), "each stands there once");
            self.order.push_back(chunk);
        }
        self.ready.push_fresh(chunk);
        chunk
    }
}

impl<E> RequestState<E> {
    /// Whether the request may start no chunk now: after an error, or with enough chunks under way.
    fn may_start_no_more(&self) -> bool {
        let window =
            if let Op::EncryptZeroes { .. } = self.op { ZEROES_CHUNKS_MAX } else { u32::MAX };
        self.error.is_some() || self.under_way >= window
    }
}

/// Units of memory that this many sectors of zeroes take.
pub(super) fn zeroes_units(sectors: u64) -> u64 {
    sectors.div_ceil(ZEROES_UNIT_SECTORS)
}

/// Where the chunk that starts at `sector` ends.
fn chunk_end(bounds: &Bounds, op: Op, sector: u64, end: u64, chunk_sectors: u64) -> u64 {
    let transfer = |most: u64| {
        let most = most.min(bounds.transfer_sectors_max);
        chunk_sectors.min(most).max(1).next_multiple_of(bounds.sector_sectors)
    };
    let longest = match op {
        // These move no data: only borders cut them.
        Op::Discard | Op::BackendZeroes | Op::Flush => end - sector,
        Op::EncryptZeroes { .. } => {
            transfer(bounds.zeroes_sectors_max / 2 / ZEROES_UNIT_SECTORS * ZEROES_UNIT_SECTORS)
        }
        Op::Read | Op::Write { .. } => transfer(u64::MAX),
    };
    let border =
        bounds.borders[bounds.borders.partition_point(|&border| border <= sector)..].first();
    let until = end.min(sector.saturating_add(longest));
    border.map_or(until, |&border| until.min(border))
}
