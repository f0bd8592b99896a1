//! What a volume has done so far: counted per queue without contention, added up on request.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of one queue. Only its own thread adds.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) discards: AtomicU64,
    pub(crate) errors: AtomicU64,
}

/// What the clients of a volume have asked for since it was opened, finished requests only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write and write-zeroes requests.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Requests that ended with an error.
    pub errors: u64,
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    // One writer: no read-modify-write instruction needed.
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}

impl Totals {
    pub(crate) fn add(&mut self, counters: &Counters) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.reads += get(&counters.reads);
        self.read_bytes += get(&counters.read_bytes);
        self.writes += get(&counters.writes);
        self.written_bytes += get(&counters.written_bytes);
        self.flushes += get(&counters.flushes);
        self.discards += get(&counters.discards);
        self.errors += get(&counters.errors);
    }
}
