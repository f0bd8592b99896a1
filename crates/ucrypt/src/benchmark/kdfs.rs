//! Measures key derivations: iterations of PBKDF2 per second, and the costs of Argon2 for a keyslot
//! that opens in the requested time.

use std::time::{Duration, Instant};

use ucrypt_luks::{
    Cost, Hash, KEY_LEN_MAX, Kdf, PBKDF2_ITERATIONS_MIN, Pbkdf, PbkdfKind, Time, find_hash,
};
use zeroize::Zeroizing;

use super::BenchmarkArgs;
use super::measure::{SLICES_MIN, median, slice};
use super::report::Report;
use crate::failure::Failure;
use crate::machine::{clock, machine};
use crate::memory;

/// Hashes to measure without `--hash`: cryptsetup's set.
const HASHES: &[Hash] = &[Hash::Sha1, Hash::Sha256, Hash::Sha512, Hash::Ripemd160, Hash::Whirlpool];

/// Length of the key unless --key-size says otherwise.
const KEY_BITS: usize = 256;

/// Key derivations with their limits.
pub(super) struct Kdfs {
    wanted: Vec<Pbkdf>,
    key_bits: usize,
    target: Duration,
}

impl Kdfs {
    /// The empty set.
    pub(super) fn none() -> Self {
        Self { wanted: Vec::new(), key_bits: KEY_BITS, target: Duration::ZERO }
    }

    /// Collects the key derivations to measure. Refuses what cannot be measured.
    pub(super) fn new(args: &BenchmarkArgs) -> Result<Self, Failure> {
        let target = Duration::from_millis(args.iter_time);
        let with = |kind, hash| Pbkdf {
            kind,
            hash,
            cost: Cost::Time(target),
            memory_kib: args.pbkdf_memory,
            lanes: args.pbkdf_parallel,
        };
        let hash = args.hash.as_deref().map(hash).transpose()?;
        let wanted = match (args.pbkdf.as_deref().map(kind).transpose()?, hash) {
            (Some(kind), hash) => vec![with(kind, hash.unwrap_or(Hash::Sha256))],
            (None, Some(hash)) => vec![with(PbkdfKind::Pbkdf2, hash)],
            (None, None) => {
                let pbkdf2 = HASHES.iter().map(|hash| with(PbkdfKind::Pbkdf2, *hash));
                let argon2 = [PbkdfKind::Argon2i, PbkdfKind::Argon2id];
                pbkdf2.chain(argon2.map(|kind| with(kind, Hash::Sha256))).collect()
            }
        };
        for pbkdf in &wanted {
            check(pbkdf)?;
        }
        let key_bits = args.key_size.unwrap_or(KEY_BITS);
        if !wanted.is_empty() && !(8..=8 * KEY_LEN_MAX).contains(&key_bits) {
            return Err(Failure::wrong(format!(
                "keys of 8 to {} bits can be derived, not of {key_bits}",
                8 * KEY_LEN_MAX
            )));
        }
        Ok(Self { wanted, key_bits, target })
    }

    /// Measures one after the other. `time` applies to each PBKDF2.
    pub(super) fn measure(&self, time: Duration, report: &mut Report) -> Result<(), Failure> {
        for pbkdf in &self.wanted {
            match pbkdf.kind {
                PbkdfKind::Pbkdf2 => {
                    let speed = pbkdf2(pbkdf.hash, self.key_bits / 8, time)?;
                    report.pbkdf2(pbkdf.hash.name(), speed, self.key_bits)?;
                }
                PbkdfKind::Argon2i | PbkdfKind::Argon2id => {
                    memory::tell_of_bound(pbkdf);
                    let kdf = pbkdf.resolve(self.key_bits / 8, machine(), &mut clock())?;
                    report.argon2(&kdf, self.key_bits, self.target)?;
                }
            }
        }
        Ok(())
    }
}

fn kind(name: &str) -> Result<PbkdfKind, Failure> {
    PbkdfKind::from_name(name)
        .map_err(|error| Failure::wrong(format!("{error}; use pbkdf2, argon2i or argon2id")))
}

fn hash(name: &str) -> Result<Hash, Failure> {
    find_hash(name).map_err(|error| {
        let names: Vec<_> = Hash::ALL.iter().map(|hash| hash.name()).collect();
        Failure::wrong(format!("{error}; known are {}", names.join(", ")))
    })
}

/// Refuses limits that no keyslot can have, without running anything.
fn check(pbkdf: &Pbkdf) -> Result<(), Failure> {
    let forced = Pbkdf { cost: Cost::Iterations(PBKDF2_ITERATIONS_MIN), ..*pbkdf };
    let mut clock = |_| Duration::ZERO;
    forced.resolve(KEY_BITS / 8, machine(), &mut clock)?;
    Ok(())
}

/// Iterations per second, the median of slices that take `time` together.
fn pbkdf2(hash: Hash, key_len: usize, time: Duration) -> Result<f64, Failure> {
    let slice = slice(time);
    let mut iterations = PBKDF2_ITERATIONS_MIN;
    while run(hash, key_len, iterations)? < slice && iterations < u32::MAX / 2 {
        iterations *= 2;
    }
    let mut speeds = Vec::new();
    let begin = Instant::now();
    while speeds.len() < SLICES_MIN as usize || begin.elapsed() < time {
        speeds.push(f64::from(iterations) / run(hash, key_len, iterations)?.as_secs_f64());
    }
    Ok(median(speeds))
}

/// The time of this many iterations; never zero.
fn run(hash: Hash, key_len: usize, iterations: u32) -> Result<Duration, Failure> {
    let kdf = Kdf::Pbkdf2 { hash: hash.name().to_owned(), iterations };
    let mut key = Zeroizing::new(vec![0; key_len]);
    // The same time as counts for a new keyslot.
    let mut clock = clock();
    let begin = clock(Time::Thread);
    kdf.derive(b"measuring the speed", &[0x5a; 32], &mut key)?;
    Ok(clock(Time::Thread).saturating_sub(begin).max(Duration::from_nanos(1)))
}
