//! A queue's buffers.
//!
//! Each queue has memory of its own, so that it gets on whatever the volume's other queues and their
//! clients do. Where that is used up, it takes from memory that all queues of the volume share.
//! A request that is too long for either gets memory of its own once nothing else is in flight.

use std::io;

use ucrypt_backend::{Buf, Pool};

use super::{Io, QueueConfig, Rejected};

/// Minimum room for an edge, in bytes: its unit, and the new bytes.
const EDGE_BYTES_MIN: usize = 2 * 4096;

/// Maximum number of requests with edges between submission and answer. More would not make
/// read-modify-writes faster, whose reads and writes take turns anyway.
const EDGE_REQUESTS_MAX: usize = 32;

pub(super) struct Memory {
    /// For clients' data.
    pub(super) own: Pool,
    /// For the same, if `own` is used up.
    shared: Option<Pool>,
    /// Length in bytes up to which a request gets memory that neither pool has.
    request_max: usize,
    /// For partly written units. Separate, so that a request that holds data never waits for
    /// another one's data.
    edges: Pool,
    /// For encrypted zeroes, separate so that clients' data cannot use it up: as much as the
    /// machine allows under way, allocated in the machine's units.
    zeroes: Pool,
}

/// Why there is no memory for a request's data.
pub(super) enum Lack {
    /// Something that is in flight has it.
    Now,
    /// The request is too long.
    Ever,
    /// The system refuses more.
    System,
}

impl Lack {
    /// The refusal of the request.
    pub(super) fn reject(self, io: Io<'_>) -> Rejected<'_> {
        match self {
            Self::Now => Rejected::Busy(io),
            Self::Ever => Rejected::TooLarge,
            Self::System => Rejected::NoMemory,
        }
    }
}

impl Memory {
    pub(super) fn new(
        config: QueueConfig,
        write_unit: u32,
        zeroes_bytes: usize,
        shared: Option<Pool>,
    ) -> io::Result<Self> {
        let edge_requests = (config.depth as usize).clamp(1, EDGE_REQUESTS_MAX);
        let edge_bytes = EDGE_BYTES_MIN.max(2 * write_unit as usize);
        Ok(Self {
            own: Pool::new(config.memory)?,
            shared,
            request_max: config.request_max,
            edges: Pool::new(edge_requests * 2 * edge_bytes)?,
            zeroes: Pool::new(zeroes_bytes)?,
        })
    }

    /// Allocates `len` bytes for a request's data. `is_idle`: the queue's owner holds no memory that
    /// it will free, and nothing is in flight.
    pub(super) fn alloc(&self, len: usize, is_idle: bool) -> Result<Buf, Lack> {
        let shared = || self.shared.as_ref()?.alloc(len);
        if let Some(buf) = self.own.alloc(len).or_else(shared) {
            return Ok(buf);
        }
        if len > self.request_max {
            return Err(Lack::Ever);
        }
        if !is_idle {
            return Err(Lack::Now);
        }
        Pool::single(len).map_err(|_| Lack::System)
    }

    /// Allocates part of an edge; `None` if other requests have all that there is now.
    pub(super) fn alloc_edge(&self, len: usize) -> Option<Buf> {
        self.edges.alloc(len)
    }

    /// Allocates one of the machine's units of zeroes, or a part of one.
    pub(super) fn alloc_zeroes(&self, len: usize) -> Option<Buf> {
        self.zeroes.alloc(len)
    }
}
