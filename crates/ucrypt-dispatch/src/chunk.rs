//! Chunks: the units that are transformed and submitted to the backend.

use crate::request::Op;

/// Identifies a request between its acceptance and its `Finish`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(pub(crate) u32);

/// Identifies a chunk between its first output and the answer to its last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChunkId(pub(crate) u32);

impl RequestId {
    /// An index below the machine's `requests_max`, for the caller's own tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl ChunkId {
    /// An index below the machine's `chunks_max`, for the caller's own tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The token under which the chunk is submitted to a backend.
    pub fn token(self) -> u64 {
        u64::from(self.0)
    }

    /// The chunk with this token, as answered by a backend; `None` if the token cannot name a
    /// chunk.
    pub fn from_token(token: u64) -> Option<Self> {
        u32::try_from(token).ok().map(Self)
    }
}

/// The sectors of a chunk that belong to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The request.
    pub request: RequestId,
    /// First 512-byte sector, in the volume.
    pub sector: u64,
    /// Number of 512-byte sectors.
    pub sectors: u64,
}

/// Maximum number of requests in one chunk.
pub const PARTS_MAX: usize = 16;

/// The parts of a chunk: at least one, adjacent, in ascending order.
#[derive(Debug, Default)]
pub(crate) struct Parts(Vec<Part>);

impl Parts {
    /// An empty list with room for all parts.
    fn new() -> Self {
        Self(Vec::with_capacity(PARTS_MAX))
    }

    /// Clears the list and starts it with the first part of another chunk.
    pub(crate) fn begin(&mut self, part: Part) {
        self.0.clear();
        self.0.push(part);
    }

    /// Appends a part that begins where the last one ends.
    pub(crate) fn push(&mut self, part: Part) {
        debug_assert_eq!(part.sector, self.end());
        debug_assert!(self.0.len() < PARTS_MAX);
        self.0.push(part);
    }

    /// Keeps the first part; moves the others to `rest`, the last one first.
    pub(crate) fn split(&mut self, rest: &mut Vec<Part>) {
        rest.extend(self.0.drain(1..).rev());
    }

    pub(crate) fn as_slice(&self) -> &[Part] {
        &self.0
    }

    pub(crate) fn sector(&self) -> u64 {
        self.0[0].sector
    }

    pub(crate) fn end(&self) -> u64 {
        let last = &self.0[self.0.len() - 1];
        last.sector + last.sectors
    }

    pub(crate) fn sectors(&self) -> u64 {
        self.end() - self.sector()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.sectors() * 512
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// `Transform` was output.
    Transform,
    /// Encrypted; waits for earlier chunks to leave.
    InOrder,
    /// `SubmitIo` was output.
    Io,
}

#[derive(Debug)]
pub(crate) struct Chunk<E> {
    pub(crate) op: Op,
    pub(crate) parts: Parts,
    pub(crate) phase: Phase,
    /// Whether the chunk must leave in order.
    pub(crate) ordered: bool,
    /// When the present phase began, in nanoseconds.
    pub(crate) since_ns: u64,
    /// Its ciphertext lies in the backend's mapping.
    pub(crate) mapped: bool,
    /// It was handed to workers.
    pub(crate) offloaded: bool,
    /// See [`Machine::taken_back`](crate::Machine::taken_back).
    pub(crate) taken_back: bool,
    /// For how many nanoseconds the worker had slept, if it did and no other chunk was with a
    /// worker: then the time until the answer shows the wake latency.
    pub(crate) woke_after_ns: Option<u64>,
    /// The error because of which the chunk is submitted again, part by part.
    pub(crate) retried_after: Option<E>,
    /// See [`Machine::asks_flush`](crate::Machine::asks_flush).
    pub(crate) asks_flush: bool,
    /// Parts that are still to be submitted again, the last one first.
    pub(crate) rest: Vec<Part>,
}

impl<E> Chunk<E> {
    /// A free entry.
    pub(crate) fn spare() -> Self {
        Self {
            op: Op::Flush,
            parts: Parts::new(),
            phase: Phase::Io,
            ordered: false,
            since_ns: 0,
            mapped: false,
            offloaded: false,
            taken_back: false,
            woke_after_ns: None,
            retried_after: None,
            asks_flush: false,
            rest: Vec::new(),
        }
    }
}
