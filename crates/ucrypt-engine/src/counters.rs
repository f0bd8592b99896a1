//! Statistics of a volume: counted per queue without contention, added up on request.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ucrypt_backend::Errno;
use ucrypt_dispatch::{Explored, Measured, Stats};

use crate::meters::{Cells, Kind, Meters};

/// Counts of one queue. Only the queue's own thread writes them.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Requests that succeeded, by kind, and their bytes.
    requests: [AtomicU64; Kind::ALL.len()],
    bytes: [AtomicU64; Kind::ALL.len()],
    errors: AtomicU64,
    pub(crate) cells: Cells,
    /// Error number of the last request that failed; 0 if none has.
    error: AtomicI32,
    /// As last published by the queue.
    decided: Mutex<Decisions>,
}

/// The decisions of one queue, and the estimates behind them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Decisions {
    /// Event counts of the dispatch machine.
    pub stats: Stats,
    /// Chunks served by another arm than the cost model.
    pub explored: Explored,
    /// The measured estimates.
    pub measured: Measured,
    /// The wake latency that the last decision applied that needed one, in nanoseconds: that of
    /// workers who had slept as long, or of another sleep if that is not measured yet. `None` while
    /// none is measured.
    pub wake_latency_applied_ns: Option<f64>,
    /// Workers that the queue might use when it last published, limited by the free cores.
    pub workers: u32,
}

impl Counters {
    /// Publishes the decisions and estimates of a queue. Who reads them only copies them.
    pub(crate) fn publish(&self, decisions: impl FnOnce() -> Decisions) {
        *self.decided.lock().unwrap_or_else(PoisonError::into_inner) = decisions();
    }

    pub(crate) fn count(&self, kind: Kind, bytes: u64) {
        add(&self.requests[kind as usize], 1);
        add(&self.bytes[kind as usize], bytes);
    }

    pub(crate) fn count_error(&self, error: Errno) {
        self.error.store(error.raw_os_error(), Ordering::Relaxed);
        add(&self.errors, 1);
    }

    fn decisions(&self) -> Decisions {
        *self.decided.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What clients have done with a volume since it was opened; counts finished requests only.
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
    /// The last error of one of the queues.
    pub last_error: Option<Errno>,
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    // Only one thread writes: no read-modify-write instruction is needed.
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}

impl Totals {
    fn add(&mut self, counters: &Counters) {
        let requests = |kind| counters.requests[kind as usize].load(Ordering::Relaxed);
        let bytes = |kind| counters.bytes[kind as usize].load(Ordering::Relaxed);
        self.reads += requests(Kind::Read);
        self.read_bytes += bytes(Kind::Read);
        self.writes += requests(Kind::Write);
        self.written_bytes += bytes(Kind::Write);
        self.flushes += requests(Kind::Flush);
        self.discards += requests(Kind::Discard);
        self.errors += counters.errors.load(Ordering::Relaxed);
        let error = counters.error.load(Ordering::Relaxed);
        self.last_error = (error != 0).then(|| Errno::from_raw_os_error(error)).or(self.last_error);
    }
}

/// The counters of a volume: of its present queues, and the totals of those that have ended.
#[derive(Default)]
pub(crate) struct Counted {
    queues: Vec<Arc<Counters>>,
    ended: Totals,
    ended_meters: Box<Meters>,
}

impl Counted {
    pub(crate) fn add(&mut self, counters: Arc<Counters>) {
        self.queues.push(counters);
    }

    /// Adds the counts of a queue that ends to the totals, and forgets its counters.
    pub(crate) fn retire(&mut self, counters: &Arc<Counters>) {
        self.queues.retain(|known| !Arc::ptr_eq(known, counters));
        self.ended.add(counters);
        counters.cells.left(0);
        self.ended_meters.add(&counters.cells);
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut totals = self.ended;
        self.queues.iter().for_each(|counters| totals.add(counters));
        totals
    }

    pub(crate) fn meters(&self) -> Meters {
        let mut meters = *self.ended_meters;
        self.queues.iter().for_each(|counters| meters.add(&counters.cells));
        meters
    }

    pub(crate) fn decisions(&self) -> Vec<Decisions> {
        self.queues.iter().map(|counters| counters.decisions()).collect()
    }
}
