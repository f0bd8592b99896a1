//! What was measured of the cipher, the workers and the backend.
//!
//! Most figures are measured while requests run, and are moving averages over about the last dozen
//! observations. A sample is capped at four times the present value, so that a preempted thread
//! does not pass for a slow cipher. Three figures are measured once, by the calibration when the
//! volume is opened, and stay: enqueue cost, copy penalty and copy. None of them can be seen in a
//! request, which is carried out in one way only.

use crate::tuning::{
    CIPHER_NS_PER_BYTE, DRIFT_WEIGHT, ENQUEUE_COST_NS, OUTLIER_FACTOR, SAMPLE_WEIGHT, SLEEPS_NS,
    WAKE_COST_SHARE, WAKE_LATENCY_NS,
};

/// Number of size classes: powers of two, from 512 bytes to 512 MiB.
const SIZES: usize = 21;

/// Number of wake latencies: the longer the workers have slept, the deeper sleep their cores.
const SLEEPS: usize = SLEEPS_NS.len() + 1;

/// A moving average.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Average {
    value: f64,
    samples: u64,
}

impl Average {
    /// Adds a sample.
    pub fn add(&mut self, sample: f64) {
        if !sample.is_finite() || sample < 0.0 {
            return;
        }
        // Before the first sample there may be a value to start from.
        self.value = if self.samples == 0 && self.value == 0.0 {
            sample
        } else {
            let sample = sample.min(self.value * OUTLIER_FACTOR + 1.0);
            self.value + (sample - self.value) * SAMPLE_WEIGHT
        };
        self.samples += 1;
    }

    /// Moves the average towards `value`: old samples are forgotten slowly.
    fn drift_to(&mut self, value: f64) {
        self.value += (value - self.value) * DRIFT_WEIGHT;
    }

    /// The average, or `default` before the first sample.
    pub fn or(&self, default: f64) -> f64 {
        if self.samples == 0 { default } else { self.value }
    }

    /// The average; `None` before the first sample.
    pub fn get(&self) -> Option<f64> {
        (self.samples > 0).then_some(self.value)
    }

    /// The number of samples.
    pub fn samples(&self) -> u64 {
        self.samples
    }
}

/// Cipher time in one direction, in nanoseconds per byte.
#[derive(Debug, Clone, Copy, Default)]
struct Cipher {
    here: Average,
    worker: Average,
}

impl Cipher {
    fn add(&mut self, by_worker: bool, ns_per_byte: f64) {
        if by_worker {
            if self.worker.samples == 0 {
                self.worker.value = self.here.value;
            }
            self.worker.add(ns_per_byte);
        } else {
            self.here.add(ns_per_byte);
            self.worker.drift_to(self.here.value);
        }
    }
}

/// The estimates of one queue about the cipher, the workers and the backend.
#[derive(Debug, Clone, Default)]
pub struct Estimates {
    /// Reads and writes: read data may come from memory, write data has just been received.
    ciphers: [Cipher; 2],
    /// By how long the workers had slept.
    wake_latencies: [Average; SLEEPS],
    wake_cost: Average,
    /// Measured once, as the next two, which are nanoseconds per byte.
    enqueue_cost: Option<f64>,
    copy_penalty: Option<f64>,
    copy: Option<f64>,
    writes: [Average; SIZES],
}

/// The measurements so far, in nanoseconds. Without samples, decisions use a default.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measured {
    /// Cipher time per byte read.
    pub decrypt_ns_per_byte: Average,
    /// Cipher time per byte written.
    pub encrypt_ns_per_byte: Average,
    /// Cipher time per byte read, on a worker.
    pub worker_decrypt_ns_per_byte: Average,
    /// Cipher time per byte written, on a worker.
    pub worker_encrypt_ns_per_byte: Average,
    /// Wake latency: from waking a worker to having its answer, without the cipher time. For workers
    /// that had slept for less than 0.1 ms, less than 1 ms, and longer.
    pub wake_latencies_ns: [Average; SLEEPS],
    /// The part of the wake latency that is the queue thread's own time.
    pub wake_cost_ns: Average,
    /// Enqueue cost: to give a chunk to an awake worker, and to take it back. Measured once, when
    /// the volume was opened, as the next two.
    pub enqueue_cost_ns: Option<f64>,
    /// Extra time to copy a byte that a worker has transformed.
    pub copy_penalty_ns_per_byte: Option<f64>,
    /// Time for which the kernel copies a byte written to a backend in memory.
    pub copy_ns_per_byte: Option<f64>,
    /// From submission to answer of a write, by its length: [`Measured::write_bytes_min`].
    pub writes_ns: [Average; SIZES],
}

impl Measured {
    /// The least length in bytes of the writes that `writes_ns[class]` counts; the first class has
    /// all shorter ones, too.
    pub fn write_bytes_min(class: usize) -> u64 {
        512 << class
    }
}

fn class(bytes: u64) -> usize {
    (bytes.max(512).ilog2() as usize - 9).min(SIZES - 1)
}

fn sleep_class(slept_ns: u64) -> usize {
    SLEEPS_NS.partition_point(|&from_ns| from_ns <= slept_ns)
}

impl Estimates {
    /// What was measured so far.
    pub fn measured(&self) -> Measured {
        let [reads, writes] = self.ciphers;
        Measured {
            decrypt_ns_per_byte: reads.here,
            encrypt_ns_per_byte: writes.here,
            worker_decrypt_ns_per_byte: reads.worker,
            worker_encrypt_ns_per_byte: writes.worker,
            wake_latencies_ns: self.wake_latencies,
            wake_cost_ns: self.wake_cost,
            enqueue_cost_ns: self.enqueue_cost,
            copy_penalty_ns_per_byte: self.copy_penalty,
            copy_ns_per_byte: self.copy,
            writes_ns: self.writes,
        }
    }

    /// Adds a calibration made before the first request: the cipher takes `ns` to encrypt `bytes`.
    pub fn calibrated(&mut self, bytes: u64, ns: u64) {
        self.cipher(true, false, bytes, ns);
    }

    /// Adds a sample: the cipher took `ns` for `bytes`.
    pub fn cipher(&mut self, write: bool, by_worker: bool, bytes: u64, ns: u64) {
        if bytes == 0 {
            return;
        }
        let other = self.ciphers[usize::from(!write)].here;
        let cipher = &mut self.ciphers[usize::from(write)];
        if cipher.here.samples == 0 {
            // Both directions start from what was measured first.
            cipher.here.value = other.value;
        }
        cipher.add(by_worker, ns as f64 / bytes as f64);
    }

    /// Adds a sample: from waking a worker to having its chunk back took `ns`, without the cipher
    /// time. The workers had slept for `slept_ns`.
    pub fn wake_latency(&mut self, slept_ns: u64, ns: u64) {
        self.wake_latencies[sleep_class(slept_ns)].add(ns as f64);
    }

    /// A worker that had slept for `slept_ns` had not begun `ns` after it was woken. That says
    /// something only if its wake latency was thought to be shorter.
    pub fn wakes_later(&mut self, slept_ns: u64, ns: u64) {
        if ns as f64 > self.wake_latency_ns(slept_ns) {
            self.wake_latency(slept_ns, ns);
        }
    }

    /// Adds a sample: waking a worker took this thread `ns`, whatever the worker did then.
    pub fn wake_cost(&mut self, ns: u64) {
        self.wake_cost.add(ns as f64);
    }

    /// Sets what giving a chunk to an awake worker, and taking it back, costs this thread: `ns`.
    pub fn set_enqueue_cost(&mut self, ns: u64) {
        self.enqueue_cost = Some(ns as f64);
    }

    /// Sets the copy penalty: copying `bytes` takes `ns` longer if a worker has transformed them.
    pub fn set_copy_penalty(&mut self, bytes: u64, ns: u64) {
        self.copy_penalty = Some(ns as f64 / bytes.max(1) as f64);
    }

    /// Sets how long the kernel copies: it takes `ns` to write `bytes` to a backend in memory.
    pub fn set_copy(&mut self, bytes: u64, ns: u64) {
        self.copy = Some(ns as f64 / bytes.max(1) as f64);
    }

    /// Adds a sample: the backend took `ns` from submission to answer for a write.
    pub fn write(&mut self, bytes: u64, ns: u64) {
        self.writes[class(bytes)].add(ns as f64);
    }

    /// Nanoseconds of cipher per byte on a worker. A worker takes longer than this thread where it
    /// has to fetch the data from this core's cache, or where both fetch it from memory that they
    /// share.
    pub fn worker_ns_per_byte(&self, write: bool) -> f64 {
        self.ciphers[usize::from(write)].worker.or(self.cipher_ns_per_byte(write))
    }

    /// Nanoseconds of cipher per byte on this thread. A direction that is not measured yet is taken for as
    /// fast as the other.
    pub fn cipher_ns_per_byte(&self, write: bool) -> f64 {
        let [this, other] = [write, !write].map(|write| self.ciphers[usize::from(write)].here);
        this.or(other.or(CIPHER_NS_PER_BYTE))
    }

    /// Nanoseconds from waking a worker that has slept for `slept_ns` to having its answer, without
    /// the cipher time. Where no such wake-up was seen, that of a worker that had slept for less
    /// long, else for longer.
    pub fn wake_latency_ns(&self, slept_ns: u64) -> f64 {
        self.measured_wake_latency_ns(slept_ns).unwrap_or(WAKE_LATENCY_NS)
    }

    /// The same; `None` while no wake latency is measured.
    pub(crate) fn measured_wake_latency_ns(&self, slept_ns: u64) -> Option<f64> {
        let (shorter, longer) = self.wake_latencies.split_at(sleep_class(slept_ns) + 1);
        shorter.iter().rev().chain(longer).find_map(Average::get)
    }

    /// The part of the wake latency that is this thread's own time; the rest passes while the worker
    /// starts.
    pub fn wake_cost_ns(&self) -> f64 {
        self.wake_cost.or(self.wake_latency_ns(0) * WAKE_COST_SHARE)
    }

    /// Nanoseconds that giving a chunk to an awake worker, and taking it back, costs this thread.
    pub fn enqueue_cost_ns(&self) -> f64 {
        self.enqueue_cost.unwrap_or(ENQUEUE_COST_NS)
    }

    /// Extra nanoseconds per byte to copy data that a worker has transformed, because it is in
    /// another core's cache.
    pub fn copy_penalty_ns_per_byte(&self) -> f64 {
        self.copy_penalty.unwrap_or(0.0)
    }

    /// Nanoseconds per byte that the kernel takes to write to a backend in memory.
    pub fn copy_ns_per_byte(&self) -> f64 {
        self.copy.unwrap_or(0.0)
    }

    /// Nanoseconds that the backend takes for a write of this size; `None` if none was seen.
    pub fn write_ns(&self, bytes: u64) -> Option<f64> {
        self.writes[class(bytes)].get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_up_costs_what_it_took_after_a_sleep_as_long() {
        const MS: u64 = 1_000_000;
        let mut estimates = Estimates::default();
        assert!((estimates.wake_latency_ns(0) - WAKE_LATENCY_NS).abs() < f64::EPSILON);
        estimates.wake_latency(u64::MAX, 40_000);
        for slept_ns in [0, MS / 2, u64::MAX] {
            assert!((estimates.wake_latency_ns(slept_ns) - 40_000.0).abs() < 1.0, "{slept_ns}");
        }
        estimates.wake_latency(5_000, 6_000);
        for (slept_ns, expected) in [(0, 6e3), (MS / 2, 6e3), (MS, 4e4), (u64::MAX, 4e4)] {
            let seen = estimates.wake_latency_ns(slept_ns);
            assert!((seen - expected).abs() < 1.0, "after {slept_ns} ns: {seen}");
        }
    }

    #[test]
    fn a_worker_that_had_not_begun_makes_no_wake_latency_shorter() {
        let mut estimates = Estimates::default();
        estimates.wakes_later(0, 1);
        assert_eq!(estimates.measured_wake_latency_ns(0), None, "that is no wake latency");
        estimates.wake_latency(0, 6_000);
        estimates.wakes_later(0, 2_000);
        assert!((estimates.wake_latency_ns(0) - 6_000.0).abs() < 1.0);
        estimates.wakes_later(0, 9_000);
        assert!(estimates.wake_latency_ns(0) > 6_100.0);
    }

    /// Regression: the calibration, which encrypts, was a sample of decryption, too.
    #[test]
    fn a_direction_that_is_not_measured_is_as_fast_as_the_other_and_says_so() {
        let mut estimates = Estimates::default();
        estimates.calibrated(1000, 100);
        assert_eq!(estimates.measured().decrypt_ns_per_byte.get(), None);
        for ns_per_byte in
            [estimates.cipher_ns_per_byte(false), estimates.worker_ns_per_byte(false)]
        {
            assert!((ns_per_byte - 0.1).abs() < 1e-9, "{ns_per_byte}");
        }
        // The first sample may be odd.
        estimates.cipher(false, false, 1000, 100_000);
        assert_eq!(estimates.measured().decrypt_ns_per_byte.samples(), 1);
        assert!(estimates.cipher_ns_per_byte(false) < 0.4);
        assert!((estimates.cipher_ns_per_byte(true) - 0.1).abs() < 1e-9);
    }

    #[test]
    fn a_sample_of_a_worker_counts_as_one() {
        let mut estimates = Estimates::default();
        for _ in 0..20 {
            estimates.calibrated(1000, 100);
        }
        estimates.cipher(true, true, 1000, 200);
        let measured = estimates.measured();
        assert_eq!(measured.worker_encrypt_ns_per_byte.samples(), 1);
        assert_eq!(measured.encrypt_ns_per_byte.samples(), 20);
    }

    #[test]
    fn an_average_follows_what_changes_and_not_what_is_odd() {
        let mut average = Average::default();
        assert!((average.or(7.0) - 7.0).abs() < f64::EPSILON);
        for _ in 0..50 {
            average.add(100.0);
        }
        average.add(1e9);
        assert!(average.or(0.0) < 150.0, "one outlier counts for little");
        for _ in 0..50 {
            average.add(200.0);
        }
        assert!((average.or(0.0) - 200.0).abs() < 2.0, "a change is followed");
        average.add(f64::NAN);
        average.add(-1.0);
        assert!((average.or(0.0) - 200.0).abs() < 2.0, "what is no duration is ignored");
    }

    #[test]
    fn a_worker_is_as_fast_as_this_thread_until_it_is_seen_and_again_when_it_was_not_for_long() {
        let mut estimates = Estimates::default();
        estimates.calibrated(1000, 100);
        assert!((estimates.worker_ns_per_byte(true) - 0.1).abs() < 1e-9);
        estimates.cipher(true, true, 1000, 200);
        assert!(estimates.worker_ns_per_byte(true) > 0.11);
        for _ in 0..50 {
            estimates.cipher(true, true, 1000, 200);
        }
        assert!(estimates.worker_ns_per_byte(true) > 0.19);
        assert!(
            (estimates.worker_ns_per_byte(false) - 0.1).abs() < 1e-9,
            "reads are another matter"
        );
        for _ in 0..100 {
            estimates.cipher(true, false, 1000, 100);
        }
        assert!(estimates.worker_ns_per_byte(true) > 0.18);
        for _ in 0..10_000 {
            estimates.cipher(true, false, 1000, 100);
        }
        assert!(estimates.worker_ns_per_byte(true) < 0.101);
    }

    #[test]
    fn sizes_are_told_apart_by_powers_of_two() {
        let mut estimates = Estimates::default();
        estimates.write(4096, 80_000);
        estimates.write(1 << 40, 5);
        assert_eq!(estimates.write_ns(8191), Some(80_000.0));
        assert_eq!(estimates.write_ns(8192), None);
        assert_eq!(estimates.write_ns(u64::MAX), Some(5.0));
        let measured = estimates.measured();
        let seen =
            measured.writes_ns.iter().enumerate().filter(|(_, average)| average.samples() > 0);
        let seen: Vec<_> = seen.map(|(class, _)| Measured::write_bytes_min(class)).collect();
        assert_eq!(seen, [4096, 512 << 20]);
    }
}
