//! Reproducible random numbers.

use fastrand::Rng;

/// A generator, with the choices that a random client makes.
#[derive(Debug, Clone)]
pub struct Random(Rng);

impl Random {
    /// A generator. Consecutive seeds give unrelated numbers.
    pub fn new(seed: u64) -> Self {
        Self(Rng::with_seed(mix(seed)))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.fill(&mut bytes);
        bytes
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.u64(..bound)
    }

    /// True `percent` times in a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A length from 1 to `max`, short ones as often as long ones.
    pub fn length(&mut self, max: u64) -> u64 {
        let bits = self.below(u64::from(max.max(1).ilog2()) + 1);
        (1 + self.below(2 << bits)).min(max)
    }
}

/// splitmix64's last step: a hash of 64 bits.
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
