//! Reproducible random numbers.

/// xorshift64*, seeded by splitmix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator; every seed is valid, including 0.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed).max(1))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.bits() >> 11) % bound
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
