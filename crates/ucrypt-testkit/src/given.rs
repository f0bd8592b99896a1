//! What the environment asks of a run: other seeds, more of them, more kills.

use std::ops::Range;

/// The number that the environment variable holds, or `default`.
///
/// # Panics
/// If it holds something else than a number.
pub fn number(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// `count` seeds from 1 on: `UCRYPT_SEED=N` begins with that one, `UCRYPT_SEEDS=N` takes N times as many.
///
/// # Panics
/// As [`number`].
pub fn seeds(count: u64) -> Range<u64> {
    let first = number("UCRYPT_SEED", 1);
    first..first + count * number("UCRYPT_SEEDS", 1)
}
