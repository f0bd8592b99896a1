//! What operators watch: latencies, depths, where chunks were transformed, errors by kind.
//!
//! Each queue counts into cells of its own, which only its thread writes; they are added up when
//! somebody asks. The clock is read for a sample of the requests only, because reading it costs as
//! much as a few per cent of a short request.

use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use ucrypt_backend::Errno;

use crate::counters::add;

/// Upper bounds of the latency buckets in nanoseconds; one more bucket has no bound.
pub const LATENCY_BOUNDS_NS: [u64; 20] = {
    let (micro, milli, second) = (1_000, 1_000_000, 1_000_000_000);
    #[rustfmt::skip]
    let bounds = [
        micro, 2 * micro, 5 * micro, 10 * micro, 20 * micro, 50 * micro, 100 * micro, 200 * micro, 500 * micro,
        milli, 2 * milli, 5 * milli, 10 * milli, 20 * milli, 50 * milli, 100 * milli, 200 * milli, 500 * milli,
        second, 10 * second,
    ];
    bounds
};

/// Upper bounds of the size classes of reads and writes in bytes; one more class has no bound.
pub const SIZE_BOUNDS_BYTES: [u64; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];

/// Upper bounds of the depth buckets, in requests in flight; one more bucket has no bound.
pub const DEPTH_BOUNDS_REQUESTS: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// Classes of reads and of writes.
const SIZES: usize = SIZE_BOUNDS_BYTES.len() + 1;

/// One request of so many, on average, is timed over a backend that answers within `submit`.
const TIMED_SYNCHRONOUS_ONE_IN: u32 = 32;
/// The same over a backend with a queue, whose requests take longer.
const TIMED_QUEUED_ONE_IN: u32 = 4;

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Reads.
    Read,
    /// Writes, and writes of zeroes.
    Write,
    /// Flushes.
    Flush,
    /// Discards, and changes of zones.
    Discard,
}

impl Kind {
    /// All kinds, in the order of [`Meters::errors`].
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Flush, Self::Discard];
}

/// Values by bucket, and their sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Histogram<const BUCKETS: usize> {
    /// Number of values in each bucket, the one without a bound last.
    pub buckets: [u64; BUCKETS],
    /// Sum of the values.
    pub sum: u64,
}

impl<const BUCKETS: usize> Default for Histogram<BUCKETS> {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], sum: 0 }
    }
}

impl<const BUCKETS: usize> Histogram<BUCKETS> {
    /// Number of values.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    fn add(&mut self, other: &Self) {
        self.sum += other.sum;
        self.buckets.iter_mut().zip(other.buckets).for_each(|(all, one)| *all += one);
    }
}

/// Latencies in nanoseconds, of a sample of the requests.
pub type Latencies = Histogram<{ LATENCY_BOUNDS_NS.len() + 1 }>;

/// Requests in flight in a queue, counted by each request that arrives, itself included.
pub type Depths = Histogram<{ DEPTH_BOUNDS_REQUESTS.len() + 1 }>;

/// Chunks transformed inline, or by workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Transforms {
    /// Chunks encrypted.
    pub encrypted: u64,
    /// Chunks decrypted.
    pub decrypted: u64,
    /// Nanoseconds of encryption. Of short inline chunks one in 16 is timed and counts 16 times.
    pub encrypt_ns: u64,
    /// The same for decryption.
    pub decrypt_ns: u64,
}

/// Requests that failed, by error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Failed {
    /// `EIO`.
    pub io: u64,
    /// `ENOSPC`.
    pub no_space: u64,
    /// All others.
    pub other: u64,
}

/// The sums of a volume since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Meters {
    /// Latencies of reads by size class ([`SIZE_BOUNDS_BYTES`]).
    pub reads: [Latencies; SIZES],
    /// Latencies of writes by size class.
    pub writes: [Latencies; SIZES],
    /// Latencies of flushes.
    pub flushes: Latencies,
    /// Latencies of discards.
    pub discards: Latencies,
    /// What arriving requests found.
    pub depths: Depths,
    /// Chunks transformed by the threads that receive requests.
    pub inline: Transforms,
    /// Chunks transformed by workers, or by other queues in their place.
    pub workers: Transforms,
    /// Requests that failed, by kind ([`Kind::ALL`]).
    pub errors: [Failed; Kind::ALL.len()],
    /// Requests in flight now.
    pub in_flight: u64,
}

/// Cells of a histogram.
#[derive(Debug)]
struct HistogramCells<const BUCKETS: usize> {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

impl<const BUCKETS: usize> Default for HistogramCells<BUCKETS> {
    fn default() -> Self {
        Self { buckets: std::array::from_fn(|_| AtomicU64::new(0)), sum: AtomicU64::new(0) }
    }
}

impl<const BUCKETS: usize> HistogramCells<BUCKETS> {
    fn count(&self, bucket: usize, value: u64) {
        add(&self.buckets[bucket.min(BUCKETS - 1)], 1);
        add(&self.sum, value);
    }

    fn get(&self) -> Histogram<BUCKETS> {
        Histogram { buckets: std::array::from_fn(|at| get(&self.buckets[at])), sum: get(&self.sum) }
    }
}

type LatencyCells = HistogramCells<{ LATENCY_BOUNDS_NS.len() + 1 }>;

#[derive(Debug, Default)]
struct TransformCells {
    encrypted: AtomicU64,
    decrypted: AtomicU64,
    encrypt_ns: AtomicU64,
    decrypt_ns: AtomicU64,
}

/// The cells of one queue. Only the queue's own thread writes them.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    reads: [LatencyCells; SIZES],
    writes: [LatencyCells; SIZES],
    flushes: LatencyCells,
    discards: LatencyCells,
    depths: HistogramCells<{ DEPTH_BOUNDS_REQUESTS.len() + 1 }>,
    inline: TransformCells,
    workers: TransformCells,
    errors: [[AtomicU64; 3]; Kind::ALL.len()],
    in_flight: AtomicU64,
}

impl Cells {
    /// A request has arrived; `in_flight` counts it.
    pub(crate) fn arrived(&self, in_flight: usize) {
        let depth = in_flight as u64;
        // The bounds are the powers of two.
        let bucket = depth.saturating_sub(1).checked_ilog2().map_or(0, |log| log as usize + 1);
        self.depths.count(bucket, depth);
        self.in_flight.store(depth, Ordering::Relaxed);
    }

    /// A request has ended, or its owner has taken the answer.
    pub(crate) fn left(&self, in_flight: usize) {
        self.in_flight.store(in_flight as u64, Ordering::Relaxed);
    }

    /// A request that was timed has ended well.
    pub(crate) fn took(&self, kind: Kind, bytes: u64, latency_ns: u64) {
        let by_size = |classes| -> &LatencyCells {
            let classes: &[LatencyCells; SIZES] = classes;
            &classes[SIZE_BOUNDS_BYTES.partition_point(|bound| *bound < bytes)]
        };
        let cells = match kind {
            Kind::Read => by_size(&self.reads),
            Kind::Write => by_size(&self.writes),
            Kind::Flush => &self.flushes,
            Kind::Discard => &self.discards,
        };
        cells.count(LATENCY_BOUNDS_NS.partition_point(|bound| *bound < latency_ns), latency_ns);
    }

    /// A chunk was transformed, inline or by a worker.
    pub(crate) fn transformed(&self, offloaded: bool, decrypts: bool, spent_ns: u64) {
        let cells = if offloaded { &self.workers } else { &self.inline };
        let (chunks, time) = if decrypts {
            (&cells.decrypted, &cells.decrypt_ns)
        } else {
            (&cells.encrypted, &cells.encrypt_ns)
        };
        add(chunks, 1);
        if spent_ns > 0 {
            add(time, spent_ns);
        }
    }

    pub(crate) fn failed(&self, kind: Kind, error: Errno) {
        let class = match error {
            Errno::IO => 0,
            Errno::NOSPC => 1,
            _ => 2,
        };
        add(&self.errors[kind as usize][class], 1);
    }
}

impl Meters {
    pub(crate) fn add(&mut self, cells: &Cells) {
        let by_size = |all: &mut [Latencies; SIZES], cells: &[LatencyCells; SIZES]| {
            all.iter_mut().zip(cells).for_each(|(all, cells)| all.add(&cells.get()));
        };
        by_size(&mut self.reads, &cells.reads);
        by_size(&mut self.writes, &cells.writes);
        self.flushes.add(&cells.flushes.get());
        self.discards.add(&cells.discards.get());
        self.depths.add(&cells.depths.get());
        self.inline.add(&cells.inline);
        self.workers.add(&cells.workers);
        for (all, [io, no_space, other]) in self.errors.iter_mut().zip(&cells.errors) {
            all.io += get(io);
            all.no_space += get(no_space);
            all.other += get(other);
        }
        self.in_flight += get(&cells.in_flight);
    }
}

impl Transforms {
    fn add(&mut self, cells: &TransformCells) {
        self.encrypted += get(&cells.encrypted);
        self.decrypted += get(&cells.decrypted);
        self.encrypt_ns += get(&cells.encrypt_ns);
        self.decrypt_ns += get(&cells.decrypt_ns);
    }
}

fn get(cell: &AtomicU64) -> u64 {
    cell.load(Ordering::Relaxed)
}

/// Picks the requests to time: one of `every` on average, at irregular distances, so that a client
/// that alternates between reads and writes has both timed.
#[derive(Debug)]
pub(crate) struct Sampler {
    every: u32,
    /// Requests until the next one that is timed.
    left: u32,
    /// Of the distances.
    random: Rng,
}

impl Sampler {
    pub(crate) fn new(synchronous: bool) -> Self {
        let every = if synchronous { TIMED_SYNCHRONOUS_ONE_IN } else { TIMED_QUEUED_ONE_IN };
        Self { every, left: 0, random: Rng::with_seed(1) }
    }

    /// Whether to time the next request.
    pub(crate) fn picks(&mut self) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        self.left = self.random.u32(..2 * self.every - 1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_in_the_first_bucket_whose_bound_they_do_not_pass() {
        let cells = Cells::default();
        for (depth, bucket) in
            [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (128, 7), (129, 8), (4096, 8)]
        {
            let before = cells.depths.get().buckets[bucket];
            cells.arrived(depth);
            assert_eq!(cells.depths.get().buckets[bucket], before + 1, "{depth}");
        }
        cells.took(Kind::Read, 4096, 1_000);
        cells.took(Kind::Read, 4097, 1_001);
        cells.took(Kind::Write, 1 << 30, u64::MAX >> 1);
        let mut meters = Meters::default();
        meters.add(&cells);
        assert_eq!((meters.reads[0].buckets[0], meters.reads[1].buckets[1]), (1, 1));
        assert_eq!(meters.writes[4].buckets[LATENCY_BOUNDS_NS.len()], 1);
        assert_eq!(meters.in_flight, 4096);
    }

    #[test]
    fn one_request_of_so_many_is_timed_and_the_first_is_one() {
        for (synchronous, every) in [(true, TIMED_SYNCHRONOUS_ONE_IN), (false, TIMED_QUEUED_ONE_IN)]
        {
            let mut sampler = Sampler::new(synchronous);
            let picked: Vec<_> = (0..2000 * every).map(|_| sampler.picks()).collect();
            assert!(picked[0]);
            for offset in [0, 1] {
                let picked = picked.iter().skip(offset).step_by(2).filter(|picked| **picked);
                let count = picked.count();
                assert!((900..1100).contains(&count), "{count} of {every} at {offset}");
            }
        }
    }

    #[test]
    fn errors_and_transforms_are_told_apart() {
        let cells = Cells::default();
        cells.failed(Kind::Flush, Errno::IO);
        cells.failed(Kind::Write, Errno::NOSPC);
        cells.failed(Kind::Write, Errno::INVAL);
        cells.transformed(false, true, 0);
        cells.transformed(true, false, 7);
        let mut meters = Meters::default();
        meters.add(&cells);
        meters.add(&cells);
        assert_eq!(meters.errors[Kind::Flush as usize], Failed { io: 2, ..Failed::default() });
        assert_eq!(meters.errors[Kind::Write as usize], Failed { no_space: 2, other: 2, io: 0 });
        assert_eq!((meters.inline.decrypted, meters.inline.decrypt_ns), (2, 0));
        assert_eq!((meters.workers.encrypted, meters.workers.encrypt_ns), (2, 14));
    }
}
