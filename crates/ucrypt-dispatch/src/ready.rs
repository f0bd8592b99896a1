//! The ready queue: chunks that wait to be transformed, and what workers have of them.

use std::collections::VecDeque;

use crate::chunk::ChunkId;

/// Chunks that are looked at for one to offload.
const LOOK_AHEAD: usize = 32;

/// How long a worker without work stays awake, in nanoseconds.
const SPIN_NS: u64 = 4_000;

/// See the module's comment.
#[derive(Debug)]
pub(crate) struct ReadyQueue {
    /// Decryptions of what has arrived: ahead of new work, because the data is in the cache now
    /// and its client has waited longest.
    arrived: VecDeque<ChunkId>,
    /// Encryptions of new chunks.
    fresh: VecDeque<ChunkId>,
    /// Chunks that workers have, and their bytes.
    offloaded: u32,
    offloaded_bytes: u64,
    /// When a worker last gave one back.
    returned_ns: Option<u64>,
}

impl ReadyQueue {
    /// A queue with room for so many chunks.
    pub(crate) fn new(chunks: usize) -> Self {
        Self {
            arrived: VecDeque::with_capacity(chunks),
            fresh: VecDeque::with_capacity(chunks),
            offloaded: 0,
            offloaded_bytes: 0,
            returned_ns: None,
        }
    }

    /// A read has arrived.
    pub(crate) fn push_arrived(&mut self, chunk: ChunkId) {
        self.arrived.push_back(chunk);
    }

    /// A write is to be encrypted.
    pub(crate) fn push_fresh(&mut self, chunk: ChunkId) {
        self.fresh.push_back(chunk);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.arrived.is_empty() && self.fresh.is_empty()
    }

    /// The first chunks in line.
    pub(crate) fn front(&self) -> impl Iterator<Item = ChunkId> {
        self.arrived.iter().chain(&self.fresh).take(LOOK_AHEAD).copied()
    }

    /// Takes the chunk out that stands at `at`.
    pub(crate) fn remove(&mut self, at: usize) -> Option<ChunkId> {
        match at.checked_sub(self.arrived.len()) {
            None => self.arrived.remove(at),
            Some(at) => self.fresh.remove(at),
        }
    }

    /// A worker gets a chunk that was taken out.
    pub(crate) fn offload(&mut self, bytes: u64) {
        self.offloaded += 1;
        self.offloaded_bytes += bytes;
    }

    /// A worker gives a chunk back.
    pub(crate) fn take_back(&mut self, bytes: u64, now_ns: u64) {
        self.offloaded -= 1;
        self.offloaded_bytes -= bytes;
        self.returned_ns = Some(now_ns);
    }

    /// Bytes that workers have.
    pub(crate) fn offloaded_bytes(&self) -> u64 {
        self.offloaded_bytes
    }

    /// Whether workers have a chunk, or gave one back a moment ago.
    pub(crate) fn has_workers(&self, now_ns: u64) -> bool {
        let spins = |ns| now_ns.saturating_sub(ns) < SPIN_NS;
        self.offloaded > 0 || self.returned_ns.is_some_and(spins)
    }
}
