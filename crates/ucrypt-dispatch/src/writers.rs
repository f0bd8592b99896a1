//! Tells sequential writes from random ones by where the last writes ended.

use crate::tuning::{RANDOM_WRITES_MIN, WRITERS_MAX};

/// Where recent writes ended.
#[derive(Debug)]
pub(crate) struct Writers {
    /// Ends in sectors, the latest first. No write starts at `u64::MAX`.
    ends: [u64; WRITERS_MAX],
    /// Writes in a row that continued no other.
    random_writes: u32,
}

impl Writers {
    pub(crate) fn new() -> Self {
        Self { ends: [u64::MAX; WRITERS_MAX], random_writes: 0 }
    }

    /// Records a write of the sectors from `start` to `end`. Returns whether it is sequential: it
    /// continues a recent one, or others lately did.
    pub(crate) fn is_sequential(&mut self, start: u64, end: u64) -> bool {
        let continues = self.continues(start, end);
        let is_random = !continues && self.random_writes >= RANDOM_WRITES_MIN;
        self.random_writes = if continues { 0 } else { self.random_writes.saturating_add(1) };
        !is_random
    }

    /// Whether the write continues a recent one.
    fn continues(&mut self, start: u64, end: u64) -> bool {
        let known = self.ends.iter().position(|&known| known == start);
        self.ends[..=known.unwrap_or(WRITERS_MAX - 1)].rotate_right(1);
        self.ends[0] = end;
        known.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::Writers;
    use crate::tuning::WRITERS_MAX;

    #[test]
    fn writers_are_told_apart_until_they_are_too_many() {
        let mut writers = Writers::new();
        for round in 0..10_u64 {
            for writer in 0..WRITERS_MAX as u64 {
                let start = writer * 1000 + round * 8;
                assert_eq!(writers.continues(start, start + 8), round > 0, "{writer}, {round}");
            }
        }
        assert!(!writers.continues(500, 508), "the first writer's place is taken");
        assert!(!writers.continues(80, 88) && writers.continues(2080, 2088));
    }

    #[test]
    fn a_write_is_random_only_among_random_ones() {
        let mut writers = Writers::new();
        let sequential = |writers: &mut Writers, starts: &[u64]| -> Vec<bool> {
            starts.iter().map(|&start| writers.is_sequential(start, start + 8)).collect()
        };
        assert_eq!(sequential(&mut writers, &[0, 8, 16, 0, 8]), [true; 5], "laps of one writer");
        let first = sequential(&mut writers, &[100, 300, 500, 700, 900, 1100]);
        assert_eq!(first, [true, true, true, true, false, false]);
        assert_eq!(sequential(&mut writers, &[1108, 2000]), [true; 2]);
    }

    #[test]
    fn a_random_writer_does_not_hide_a_sequential_one() {
        let mut writers = Writers::new();
        let mut random = fastrand::Rng::with_seed(3);
        for round in 0..100_u64 {
            assert_eq!(writers.continues(round, round + 1), round > 0);
            for _ in 0..WRITERS_MAX / 4 {
                let start = 1000 + random.u64(..1 << 40);
                writers.continues(start, start + 1);
            }
        }
    }
}
