//! Turns jobs into figures: medians of short slices, taken in turn.
//!
//! On a busy machine, other work spoils the slices that it meets. A slice is shorter than the time
//! that a scheduler gives a thread at once, so that most slices meet nothing and the median is one
//! of these. All jobs of a row take turns, so that a burst affects each of them a little.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cores::{Cores, Job};
use crate::failure::Failure;

/// Fewest slices for a meaningful median.
pub(super) const SLICES_MIN: u32 = 5;

/// The longest slice; a call that takes longer is a slice by itself.
const SLICE_MAX: Duration = Duration::from_millis(1);

/// The speed of a job, in bytes per second.
#[derive(Debug, Clone, Copy)]
pub(super) struct Speed {
    /// On one CPU.
    pub(super) one_core: f64,
    /// On all of them together.
    pub(super) all_cores: f64,
}

/// The length of one slice of a figure that takes `time`.
pub(super) fn slice(time: Duration) -> Duration {
    (time / SLICES_MIN).min(SLICE_MAX)
}

/// The speed of each job. Each of its two figures takes `time`, or longer if a few calls do.
pub(super) fn speeds(cores: &Cores, jobs: &[Job], time: Duration) -> Result<Vec<Speed>, Failure> {
    let slice = slice(time);
    let total = time * 2 * jobs.len() as u32;
    let mut slices = vec![(Vec::new(), Vec::new()); jobs.len()];
    let begin = Instant::now();
    let mut rounds = 0;
    while rounds < SLICES_MIN || begin.elapsed() < total {
        for (job, (one_core, all_cores)) in jobs.iter().zip(&mut slices) {
            one_core.push(cores.on_one(job, slice)?);
            all_cores.push(cores.on_all(job, slice)?);
        }
        rounds += 1;
    }
    let medians = slices.into_iter().map(|(one_core, all_cores)| Speed {
        one_core: median(one_core),
        all_cores: median(all_cores),
    });
    Ok(medians.collect())
}

/// The speed of copying: what a cipher between two buffers cannot exceed.
pub(super) fn memcpy(cores: &Cores, time: Duration) -> Result<Speed, Failure> {
    let job: Job = Arc::new(|src, dst| {
        dst.copy_from_slice(src);
        Ok(())
    });
    Ok(speeds(cores, &[job], time)?[0])
}

/// The median; of two middle values, the higher.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn a_disturbed_slice_does_not_move_the_median() {
        assert!((median(vec![5.0, 0.1, 5.2, 5.1, 900.0]) - 5.1).abs() < 1e-9);
    }
}
