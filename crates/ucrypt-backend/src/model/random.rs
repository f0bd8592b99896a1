//! Random numbers that are the same on every machine: splitmix64 (Steele, Lea, Flood 2014).

/// A generator, determined by its seed.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A time of `mean` ns that varies by `percent` to either side.
    pub(super) fn spread(&mut self, mean: u64, percent: u64) -> u64 {
        let reach = mean * percent.min(100) / 100;
        mean - reach + self.next() % (2 * reach + 1)
    }
}
