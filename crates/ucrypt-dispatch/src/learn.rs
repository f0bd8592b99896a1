//! What is measured while requests run.
//!
//! Every figure is a moving average over the last dozen or so observations, in which one outlier
//! counts for little: a sample is cut at four times the present value, so a preempted thread does
//! not pass for a slow cipher.

/// Weight of a new sample.
const WEIGHT: f64 = 1.0 / 8.0;

/// A sample counts for at most this many times the present value.
const OUTLIER: f64 = 4.0;

/// Sizes are told apart by powers of two, from 512 bytes to 512 MiB.
const SIZES: usize = 21;

/// A moving average.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Average {
    value: f64,
    samples: u64,
}

impl Average {
    /// Takes a sample in.
    pub fn add(&mut self, sample: f64) {
        if !sample.is_finite() || sample < 0.0 {
            return;
        }
        self.value = if self.samples == 0 {
            sample
        } else {
            let sample = sample.min(self.value * OUTLIER + 1.0);
            self.value + (sample - self.value) * WEIGHT
        };
        self.samples += 1;
    }

    /// The average, or `default` before the first sample.
    pub fn or(&self, default: f64) -> f64 {
        if self.samples == 0 { default } else { self.value }
    }

    /// How many samples were taken.
    pub fn samples(&self) -> u64 {
        self.samples
    }
}

/// Before anything was measured: a slow cipher, so that the first decisions are careful.
const CIPHER_NS_PER_BYTE: f64 = 0.5;
const HANDOVER_NS: f64 = 5_000.0;
const REQUEST_NS: f64 = 1_500.0;

/// What one queue knows about the cipher, the workers and the backend.
#[derive(Debug, Clone, Default)]
pub struct Learned {
    cipher: Average,
    handover: Average,
    request: Average,
    reads: [Average; SIZES],
    writes: [Average; SIZES],
}

fn class(bytes: u64) -> usize {
    (bytes.max(512).ilog2() as usize - 9).min(SIZES - 1)
}

impl Learned {
    /// A crypt of `bytes` took `ns`.
    pub fn crypt(&mut self, bytes: u64, ns: u64) {
        if bytes > 0 {
            self.cipher.add(ns as f64 / bytes as f64);
        }
    }

    /// A worker that slept was handed a chunk, and it came back `ns` later than its crypt took.
    pub fn handover(&mut self, ns: u64) {
        self.handover.add(ns as f64);
    }

    /// Submitting one operation and taking its answer cost this thread `ns`.
    pub fn request(&mut self, ns: u64) {
        self.request.add(ns as f64);
    }

    /// The backend took `ns` from submission to answer.
    pub fn store(&mut self, write: bool, bytes: u64, ns: u64) {
        let table = if write { &mut self.writes } else { &mut self.reads };
        table[class(bytes)].add(ns as f64);
    }

    /// Nanoseconds that the cipher takes per byte.
    pub fn cipher_ns_per_byte(&self) -> f64 {
        self.cipher.or(CIPHER_NS_PER_BYTE)
    }

    /// Nanoseconds from waking a worker to having its answer, beyond the crypt itself.
    pub fn handover_ns(&self) -> f64 {
        self.handover.or(HANDOVER_NS)
    }

    /// Nanoseconds that one more backend operation costs the thread that submits it.
    pub fn request_ns(&self) -> f64 {
        self.request.or(REQUEST_NS)
    }

    /// Nanoseconds that the backend takes for an operation of this size; `None` if none was seen.
    pub fn store_ns(&self, write: bool, bytes: u64) -> Option<f64> {
        let table = if write { &self.writes } else { &self.reads };
        let average = &table[class(bytes)];
        (average.samples() > 0).then(|| average.or(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn sizes_are_told_apart_by_powers_of_two() {
        let mut learned = Learned::default();
        learned.store(false, 4096, 80_000);
        learned.store(true, 1 << 40, 5);
        assert_eq!(learned.store_ns(false, 8191), Some(80_000.0));
        assert_eq!(learned.store_ns(false, 8192), None);
        assert_eq!(learned.store_ns(true, 4096), None);
        assert_eq!(learned.store_ns(true, u64::MAX), Some(5.0));
    }
}
