//! The results of a run.

use ucrypt_engine::{Explored, Stats};

/// Latencies of one direction, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Latency {
    /// Requests measured.
    pub count: u64,
    /// Their mean.
    pub mean_ns: f64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
}

impl Latency {
    /// Computes the latencies of these samples, and sorts them.
    pub(crate) fn of(samples: &mut [u64]) -> Self {
        samples.sort_unstable();
        let Some(last) = samples.len().checked_sub(1) else { return Self::default() };
        let sum: u128 = samples.iter().map(|&sample| u128::from(sample)).sum();
        Self {
            count: samples.len() as u64,
            mean_ns: sum as f64 / samples.len() as f64,
            p50_ns: samples[last / 2],
            p99_ns: samples[last * 99 / 100],
        }
    }
}

/// The results of one run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// Bytes per microsecond, i.e. MB/s, while the clients kept their depth.
    pub mb_s: f64,
    /// Latencies of reads.
    pub reads: Latency,
    /// Latencies of writes and everything else.
    pub writes: Latency,
    /// Share of the cores' time in which something ran on them, 0 to 1.
    pub busy: f64,
    /// Counts of all queues together.
    pub stats: Stats,
    /// Chunks that the explorer decided, in trials or because of them.
    pub explored: Explored,
    /// Virtual time from start to end, in nanoseconds.
    pub end_ns: u64,
    /// Requests that ended.
    pub finished: u64,
    /// Those of `finished` that ended with an error.
    pub failed: u64,
}

impl Report {
    /// The larger p99 of both directions, in nanoseconds.
    pub fn p99_ns(&self) -> u64 {
        self.reads.p99_ns.max(self.writes.p99_ns)
    }
}
