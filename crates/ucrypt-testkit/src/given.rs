//! Parameters of a run from the environment: other seeds, more seeds, more kills.

use std::ops::Range;

/// The number in the environment variable, or `default`.
///
/// # Panics
/// If the variable is set to anything but a number.
pub fn number(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// `count` seeds from 1 on. `UCRYPT_SEED=N` starts with seed N, `UCRYPT_SEEDS=N` takes N times as
/// many.
///
/// # Panics
/// As [`number`].
pub fn seeds(count: u64) -> Range<u64> {
    let first = number("UCRYPT_SEED", 1);
    first..first + count * number("UCRYPT_SEEDS", 1)
}
