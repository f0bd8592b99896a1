//! Statistics of a volume: counted per queue without contention, added up on request.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use ucrypt_backend::Errno;
use ucrypt_dispatch::{Configured, Explored, Measured, Stats};

/// Counts of one queue. Only the queue's own thread writes them.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) discards: AtomicU64,
    pub(crate) errors: AtomicU64,
    /// Error number of the last request that failed; 0 if none has.
    error: AtomicI32,
    decided: Decided,
}

/// The last published state of a queue's dispatch machine.
#[derive(Debug, Default)]
struct Decided {
    whole: AtomicU64,
    split: AtomicU64,
    joined: AtomicU64,
    inline: AtomicU64,
    offloaded: AtomicU64,
    all_inline: AtomicU64,
    all_offload: AtomicU64,
    coarse: AtomicU64,
    decrypt_per_byte: Estimate,
    encrypt_per_byte: Estimate,
    wake_latency: Estimate,
    wake_cost: Estimate,
    enqueue_cost: Estimate,
    copy_penalty_per_byte: Estimate,
    workers: AtomicU32,
}

/// An estimate in nanoseconds. Stored as picoseconds plus one, so that a fast cipher keeps some
/// digits; 0: not measured yet.
#[derive(Debug, Default)]
struct Estimate(AtomicU64);

impl Estimate {
    #[expect(clippy::cast_sign_loss, reason = "averages of durations are not negative")]
    fn set(&self, ns: Option<f64>) {
        self.0.store(ns.map_or(0, |ns| (ns * 1000.0) as u64 + 1), Ordering::Relaxed);
    }

    fn get(&self) -> Option<f64> {
        let stored = self.0.load(Ordering::Relaxed);
        stored.checked_sub(1).map(|picoseconds| picoseconds as f64 / 1000.0)
    }
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
    /// Workers that the queue might use when it last published, limited by the free cores.
    pub workers: u32,
}

impl Counters {
    /// Publishes the decisions and estimates of a queue.
    pub(crate) fn publish(&self, stats: Stats, policy: &Configured, workers: u32) {
        let set = |cell: &AtomicU64, value: u64| cell.store(value, Ordering::Relaxed);
        let decided = &self.decided;
        set(&decided.whole, stats.whole);
        set(&decided.split, stats.split);
        set(&decided.joined, stats.joined);
        set(&decided.inline, stats.inline);
        set(&decided.offloaded, stats.offloaded);
        let explored = policy.explored();
        set(&decided.all_inline, explored.all_inline);
        set(&decided.all_offload, explored.all_offload);
        set(&decided.coarse, explored.coarse);
        let measured = policy.estimates().measured();
        decided.decrypt_per_byte.set(measured.decrypt_ns_per_byte);
        decided.encrypt_per_byte.set(measured.encrypt_ns_per_byte);
        decided.wake_latency.set(measured.wake_latency_ns);
        decided.wake_cost.set(measured.wake_cost_ns);
        decided.enqueue_cost.set(measured.enqueue_cost_ns);
        decided.copy_penalty_per_byte.set(measured.copy_penalty_ns_per_byte);
        decided.workers.store(workers, Ordering::Relaxed);
    }

    pub(crate) fn decisions(&self) -> Decisions {
        let get = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let decided = &self.decided;
        Decisions {
            stats: Stats {
                whole: get(&decided.whole),
                split: get(&decided.split),
                joined: get(&decided.joined),
                inline: get(&decided.inline),
                offloaded: get(&decided.offloaded),
            },
            explored: Explored {
                all_inline: get(&decided.all_inline),
                all_offload: get(&decided.all_offload),
                coarse: get(&decided.coarse),
            },
            measured: Measured {
                decrypt_ns_per_byte: decided.decrypt_per_byte.get(),
                encrypt_ns_per_byte: decided.encrypt_per_byte.get(),
                wake_latency_ns: decided.wake_latency.get(),
                wake_cost_ns: decided.wake_cost.get(),
                enqueue_cost_ns: decided.enqueue_cost.get(),
                copy_penalty_ns_per_byte: decided.copy_penalty_per_byte.get(),
            },
            workers: decided.workers.load(Ordering::Relaxed),
        }
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

impl Counters {
    pub(crate) fn count_error(&self, error: Errno) {
        self.error.store(error.raw_os_error(), Ordering::Relaxed);
        add(&self.errors, 1);
    }
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    // Only one thread writes: no read-modify-write instruction is needed.
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
        let error = counters.error.load(Ordering::Relaxed);
        self.last_error = (error != 0).then(|| Errno::from_raw_os_error(error)).or(self.last_error);
    }
}
