//! What each request waits for, to report a hang.

use std::fmt::Write as _;

use super::Machine;
use crate::chunk::{Chunk, ChunkId, Phase, RequestId};

impl<E, P> Machine<E, P> {
    /// What a request waits for, in words; empty if there is no such request.
    pub fn describe(&self, request: RequestId) -> String {
        let mut text = String::new();
        let Some(state) = self.requests.get(request.0) else { return text };
        // Writing to a string cannot fail.
        let _ = write!(text, "{:?} of sectors {}..{}", state.op, state.start, state.end);
        if state.error.is_some() {
            text += ", which has failed";
        }
        if self.wait_for_zeroes.contains(&request) {
            let free = self.zeroes_free;
            let _ = write!(text, "; from {} on waits for zeroes, {free} units free", state.next);
        } else if state.waits {
            let (next, of) = (state.next, self.bounds.chunks_max);
            let _ = write!(
                text,
                "; from {next} on waits for a chunk, {} of {of} in use",
                self.chunks.in_use()
            );
        }
        for (index, chunk) in self.chunks.iter() {
            if chunk.parts.as_slice().iter().any(|part| part.request == request) {
                let (first, end) = (chunk.parts.sector(), chunk.parts.end());
                let _ = write!(text, "; {first}..{end} ");
                text += &self.describe_chunk(ChunkId(index), chunk);
            }
        }
        text
    }

    fn describe_chunk(&self, id: ChunkId, chunk: &Chunk<E>) -> String {
        let mut text = match chunk.phase {
            Phase::Transform if chunk.offloaded => "is with a worker".to_owned(),
            Phase::Transform => "waits for its transform on this thread".to_owned(),
            Phase::InOrder => {
                let before = self.order.iter().take_while(|&&other| other != id).count();
                format!("is encrypted and waits for {before} earlier writes to leave")
            }
            Phase::Io => "is with the backend".to_owned(),
        };
        if chunk.asks_flush {
            text += ", as a flush after two errors";
        } else if chunk.retried_after.is_some() {
            text += ", again after an error";
        }
        text
    }
}
