//! Clients that keep a number of requests in flight, like fio's jobs.

use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// The access pattern of the clients, in fio's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Reads at random places.
    RandRead,
    /// Writes at random places.
    RandWrite,
    /// Half reads, half writes, at random places.
    RandRw,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Self; 5] =
        [Self::Read, Self::Write, Self::RandRead, Self::RandWrite, Self::RandRw];

    /// fio's name for the pattern.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::RandRead => "randread",
            Self::RandWrite => "randwrite",
            Self::RandRw => "randrw",
        }
    }
}

/// The clients of one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// The access pattern.
    pub pattern: Pattern,
    /// Length of a request in bytes, a multiple of 4096.
    pub block_bytes: u64,
    /// Requests that each queue's clients keep in flight.
    pub depth: u32,
    /// Total requests of each queue.
    pub requests: u64,
    /// Length of the accessed region, from the start of the disk.
    pub region_bytes: u64,
}

/// A request of a [`Job`]; its length is the job's block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) is_read: bool,
    /// Where it starts, in bytes.
    pub(crate) offset: u64,
}

/// The sequence of requests of one queue's clients.
#[derive(Debug)]
pub(crate) struct Requests {
    job: Job,
    random: Rng,
    /// The next sequential block.
    next: u64,
    issued: u64,
}

impl Requests {
    /// The requests of queue `index` of `queues`; the queues' sequential streams start evenly
    /// spread.
    ///
    /// # Panics
    /// If the region has no room for a block.
    pub(crate) fn new(job: Job, (index, queues): (u64, u64), seed: u64) -> Self {
        let blocks = job.region_bytes / job.block_bytes;
        assert!(blocks > 0, "the region has no room for a block");
        // Consecutive seeds must give unrelated streams.
        let random = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index);
        Self { job, random, next: blocks * index / queues, issued: 0 }
    }
}

impl Iterator for Requests {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        if self.issued >= self.job.requests {
            return None;
        }
        self.issued += 1;
        let Job { pattern, block_bytes, region_bytes, .. } = self.job;
        let blocks = region_bytes / block_bytes;
        let block = match pattern {
            Pattern::Read | Pattern::Write => {
                self.next += 1;
                (self.next - 1) % blocks
            }
            _ => self.random.u64(..blocks),
        };
        let is_read = match pattern {
            Pattern::Read | Pattern::RandRead => true,
            Pattern::Write | Pattern::RandWrite => false,
            Pattern::RandRw => self.random.bool(),
        };
        Some(Request { is_read, offset: block * block_bytes })
    }
}
