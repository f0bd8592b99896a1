//! The ready queue: chunks that wait for their transform, and the bytes that workers have.

use std::collections::VecDeque;

use crate::chunk::ChunkId;
use crate::tuning::{LOOK_AHEAD_CHUNKS, SPIN_NS};

/// See the module's comment.
#[derive(Debug)]
pub(crate) struct ReadyQueue {
    /// Reads to decrypt. They come before new work, because their data is in the cache now and
    /// their clients have waited longest.
    arrived: VecDeque<ChunkId>,
    /// New writes to encrypt.
    fresh: VecDeque<ChunkId>,
    /// Number and bytes of the chunks that workers have.
    offloaded: u32,
    offloaded_bytes: u64,
    /// When a worker last gave a chunk back.
    returned_ns: Option<u64>,
}

impl ReadyQueue {
    /// A queue with room for this many chunks.
    pub(crate) fn new(chunks: usize) -> Self {
        Self {
            arrived: VecDeque::with_capacity(chunks),
            fresh: VecDeque::with_capacity(chunks),
            offloaded: 0,
            offloaded_bytes: 0,
            returned_ns: None,
        }
    }

    /// Adds a read that has arrived.
    pub(crate) fn push_arrived(&mut self, chunk: ChunkId) {
        self.arrived.push_back(chunk);
    }

    /// Adds a write to encrypt.
    pub(crate) fn push_fresh(&mut self, chunk: ChunkId) {
        self.fresh.push_back(chunk);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.arrived.is_empty() && self.fresh.is_empty()
    }

    /// The first chunk in line.
    pub(crate) fn first(&self) -> Option<ChunkId> {
        self.arrived.front().or(self.fresh.front()).copied()
    }

    /// The first chunks in line, at most [`LOOK_AHEAD_CHUNKS`].
    pub(crate) fn front(&self) -> impl Iterator<Item = ChunkId> {
        self.arrived.iter().chain(&self.fresh).take(LOOK_AHEAD_CHUNKS).copied()
    }

    /// Removes the chunk at position `at`.
    pub(crate) fn remove(&mut self, at: usize) -> Option<ChunkId> {
        match at.checked_sub(self.arrived.len()) {
            // Mostly the first one, for which `VecDeque::remove` does more than is needed.
            None if at == 0 => self.arrived.pop_front(),
            Some(0) => self.fresh.pop_front(),
            None => self.arrived.remove(at),
            Some(at) => self.fresh.remove(at),
        }
    }

    /// Counts a removed chunk as given to a worker.
    pub(crate) fn offload(&mut self, bytes: u64) {
        self.offloaded += 1;
        self.offloaded_bytes += bytes;
    }

    /// Counts a chunk as given back by a worker.
    pub(crate) fn offload_ended(&mut self, bytes: u64, now_ns: u64) {
        self.offloaded -= 1;
        self.offloaded_bytes -= bytes;
        self.returned_ns = Some(now_ns);
    }

    /// Bytes of the chunks that workers have.
    pub(crate) fn offloaded_bytes(&self) -> u64 {
        self.offloaded_bytes
    }

    /// Whether workers have a chunk, or gave one back within the last [`SPIN_NS`].
    pub(crate) fn has_workers(&self, now_ns: u64) -> bool {
        self.workers_slept_ns(now_ns) < SPIN_NS
    }

    /// Nanoseconds since workers last had a chunk; `u64::MAX`: they never had one.
    pub(crate) fn workers_slept_ns(&self, now_ns: u64) -> u64 {
        match self.returned_ns {
            _ if self.offloaded > 0 => 0,
            Some(returned_ns) => now_ns.saturating_sub(returned_ns),
            None => u64::MAX,
        }
    }
}
