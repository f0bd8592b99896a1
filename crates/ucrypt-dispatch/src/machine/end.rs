//! The end of chunks and requests: leaving in order, retries after errors, chunks that nobody wants.

use crate::chunk::{ChunkId, Part, Phase, RequestId};
use crate::policy::Policy;
use crate::request::{IoKind, Op};

use super::start::zeroes_units;
use super::{Machine, Output};

impl<E: Copy, P: Policy> Machine<E, P> {
    /// Hands an encrypted chunk to the backend.
    pub(super) fn leave(&mut self, chunk: ChunkId, now_ns: u64) {
        let state = &mut self.chunks[chunk.0];
        (state.phase, state.since_ns) = (Phase::Io, now_ns);
        self.outputs.push_back(Output::SubmitIo { chunk, kind: state.op.into() });
    }

    /// Hands encrypted chunks to the backend while the next one in order is ready.
    pub(super) fn release(&mut self, now_ns: u64) {
        while let Some(&chunk) = self.order.front() {
            let state = &self.chunks[chunk.0];
            if state.phase != Phase::InOrder {
                return;
            }
            self.order.pop_front();
            self.leave(chunk, now_ns);
        }
    }

    /// Starts to submit a failed chunk again, part by part.
    pub(super) fn retry(&mut self, chunk: ChunkId, error: E) {
        let state = &mut self.chunks[chunk.0];
        state.retried_after = Some(error);
        state.parts.split(&mut state.rest);
        self.leave_again(chunk);
    }

    fn leave_again(&mut self, chunk: ChunkId) {
        let state = &mut self.chunks[chunk.0];
        (state.phase, state.since_ns) = (Phase::Io, self.now_ns);
        let kind = match state.op.into() {
            IoKind::Write { .. } => IoKind::Write { fua: false },
            kind => kind,
        };
        self.outputs.push_back(Output::SubmitIo { chunk, kind });
    }

    /// Submits a flush for a durable write that failed twice: first with this `error`.
    pub(super) fn ask_flush(&mut self, chunk: ChunkId, error: E) {
        let state = &mut self.chunks[chunk.0];
        (state.asks_flush, state.since_ns) = (true, self.now_ns);
        // It shares its chunk with no other request.
        let request = state.parts.as_slice()[0].request;
        self.fail(request, error);
        self.outputs.push_back(Output::SubmitIo { chunk, kind: IoKind::Flush });
    }

    /// Ends the parts of a chunk, and the chunk itself unless further parts are to be submitted
    /// again.
    pub(super) fn end_chunk(&mut self, chunk: ChunkId, result: Result<(), E>) {
        let ended = &mut self.chunks[chunk.0];
        let mut parts = std::mem::take(&mut ended.parts);
        if matches!(ended.op, Op::EncryptZeroes { .. }) {
            self.zeroes_free += zeroes_units(parts.sectors());
            self.zeroes_freed = true;
        }
        if ended.ordered && ended.phase == Phase::Transform {
            // It never leaves, so the chunks behind it must not wait for it.
            self.order.retain(|&other| other != chunk);
        }
        for part in parts.as_slice() {
            if let Err(error) = result {
                self.fail(part.request, error);
            }
            let request = &mut self.requests[part.request.0];
            request.under_way -= 1;
            if request.next < request.end && !request.waits {
                request.waits = true;
                self.waiting.push_back(part.request);
            }
            self.finish_if_done(part.request);
        }
        let ended = &mut self.chunks[chunk.0];
        if let Some(next) = ended.rest.pop() {
            parts.begin(next);
            ended.parts = parts;
            return self.leave_again(chunk);
        }
        (ended.parts, ended.retried_after, ended.asks_flush) = (parts, None, false);
        self.chunks.give_back(chunk.0);
    }

    /// Fails a request: no further chunk of it starts, and it ends with its first error.
    pub(super) fn fail(&mut self, id: RequestId, error: E) {
        let request = &mut self.requests[id.0];
        self.failed += u32::from(request.error.is_none());
        request.error.get_or_insert(error);
        request.next = request.end;
    }

    /// Outputs `Finish` for a request that has nothing left to start or to wait for.
    pub(super) fn finish_if_done(&mut self, id: RequestId) {
        let request = &self.requests[id.0];
        if request.under_way == 0 && request.next >= request.end && !request.waits {
            let result = request.error.map_or(Ok(()), Err);
            self.outputs.push_back(Output::Finish { request: id, result });
        }
    }

    /// Whether no request of the chunk can succeed any more.
    pub(super) fn is_in_vain(&self, chunk: ChunkId) -> bool {
        let fails = |part: &Part| self.requests[part.request.0].error.is_some();
        // The remaining parts of a retried chunk may still succeed.
        self.failed > 0
            && self.parts(chunk).iter().all(fails)
            && self.retried_after(chunk).is_none()
    }

    /// Ends a chunk that neither a worker nor the backend has.
    pub(super) fn drop_chunk(&mut self, chunk: ChunkId) -> Output<E> {
        self.end_chunk(chunk, Ok(()));
        self.release(self.now_ns);
        Output::Drop { chunk }
    }
}
