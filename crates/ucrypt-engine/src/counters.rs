//! What a volume has done so far: counted per queue without contention, added up on request.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use ucrypt_backend::Errno;
use ucrypt_dispatch::{Learned, Tally};

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
    /// Of the last request that failed; 0 if none has.
    error: AtomicI32,
    decided: Decided,
}

/// The last published state of a queue's machine.
#[derive(Debug, Default)]
struct Decided {
    whole: AtomicU64,
    cut: AtomicU64,
    joined: AtomicU64,
    inline: AtomicU64,
    offloaded: AtomicU64,
    all_inline: AtomicU64,
    all_offload: AtomicU64,
    coarse: AtomicU64,
    /// Picoseconds, so that a fast cipher has digits.
    decrypt_ps_per_byte: AtomicU64,
    encrypt_ps_per_byte: AtomicU64,
    handover_ns: AtomicU64,
    wake_ns: AtomicU64,
    hand_ns: AtomicU64,
    carry_ps_per_byte: AtomicU64,
    workers: AtomicU32,
}

/// What one queue has decided, and the estimates it decides by.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Decisions {
    /// How often was decided what.
    pub tally: Tally,
    /// Nanoseconds of cipher per byte read.
    pub decrypt_ns_per_byte: f64,
    /// Nanoseconds of cipher per byte written.
    pub encrypt_ns_per_byte: f64,
    /// Nanoseconds that handing a chunk to a sleeping worker costs.
    pub handover_ns: u64,
    /// Those of them that the queue's own thread takes.
    pub wake_ns: u64,
    /// Nanoseconds that handing a chunk to a worker which is awake costs.
    pub hand_ns: u64,
    /// Nanoseconds per byte that copying takes longer after a worker.
    pub carry_ns_per_byte: f64,
    /// Workers that it might use when it last told: no more than cores were free.
    pub workers: u32,
}

impl Counters {
    /// Shows others what a queue knows.
    pub(crate) fn publish(&self, tally: Tally, learned: &Learned, workers: u32) {
        let set = |cell: &AtomicU64, value: u64| cell.store(value, Ordering::Relaxed);
        let decided = &self.decided;
        set(&decided.whole, tally.whole);
        set(&decided.cut, tally.cut);
        set(&decided.joined, tally.joined);
        set(&decided.inline, tally.inline);
        set(&decided.offloaded, tally.offloaded);
        set(&decided.all_inline, tally.all_inline);
        set(&decided.all_offload, tally.all_offload);
        set(&decided.coarse, tally.coarse);
        set(&decided.decrypt_ps_per_byte, whole(learned.cipher_ns_per_byte(false) * 1000.0));
        set(&decided.encrypt_ps_per_byte, whole(learned.cipher_ns_per_byte(true) * 1000.0));
        set(&decided.handover_ns, whole(learned.handover_ns()));
        set(&decided.wake_ns, whole(learned.wake_ns()));
        set(&decided.hand_ns, whole(learned.hand_ns()));
        set(&decided.carry_ps_per_byte, whole(learned.carry_ns_per_byte() * 1000.0));
        decided.workers.store(workers, Ordering::Relaxed);
    }

    pub(crate) fn decisions(&self) -> Decisions {
        let get = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let decided = &self.decided;
        Decisions {
            tally: Tally {
                whole: get(&decided.whole),
                cut: get(&decided.cut),
                joined: get(&decided.joined),
                inline: get(&decided.inline),
                offloaded: get(&decided.offloaded),
                all_inline: get(&decided.all_inline),
                all_offload: get(&decided.all_offload),
                coarse: get(&decided.coarse),
            },
            decrypt_ns_per_byte: get(&decided.decrypt_ps_per_byte) as f64 / 1000.0,
            encrypt_ns_per_byte: get(&decided.encrypt_ps_per_byte) as f64 / 1000.0,
            handover_ns: get(&decided.handover_ns),
            wake_ns: get(&decided.wake_ns),
            hand_ns: get(&decided.hand_ns),
            carry_ns_per_byte: get(&decided.carry_ps_per_byte) as f64 / 1000.0,
            workers: decided.workers.load(Ordering::Relaxed),
        }
    }
}

#[expect(clippy::cast_sign_loss, reason = "averages of durations are not negative")]
fn whole(value: f64) -> u64 {
    value as u64
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
    /// One of the last errors of them.
    pub last_error: Option<Errno>,
}

impl Counters {
    pub(crate) fn count_error(&self, error: Errno) {
        self.error.store(error.raw_os_error(), Ordering::Relaxed);
        add(&self.errors, 1);
    }
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
        let error = counters.error.load(Ordering::Relaxed);
        self.last_error = (error != 0).then(|| Errno::from_raw_os_error(error)).or(self.last_error);
    }
}
