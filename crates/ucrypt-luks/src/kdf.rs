//! Key derivation: PBKDF2, Argon2i and Argon2id with bounded costs.
//!
//! A header is hostile input and names the costs itself, so they are checked before any memory is
//! allocated: memory up to 4 GiB, which is cryptsetup's bound for new keyslots. cryptsetup's lower bounds
//! and its 4 lanes apply only to new keyslots ([`crate::pbkdf`]); an existing one still opens, as there.

use std::time::{Duration, Instant};

use argon2::{Algorithm, Argon2, Block, Params, Version};
use rayon::iter::{IntoParallelRefMutIterator, ParallelIterator};
use zeroize::Zeroize;

use crate::derivations::{self, Purpose};
use crate::error::{Error, Result};
use crate::hash::find_hash;
use crate::memory::{self, Permit};
use crate::stack::scrub_stack;

/// Largest memory cost of Argon2, in KiB.
pub const ARGON2_MEMORY_MAX_KIB: u32 = 4 * 1024 * 1024;

/// Memory of the Argon2 by which a longer one is estimated, in KiB: more than the caches of a core have, of which a
/// longer one gets nothing either. With twice as much, the estimate takes twice as long.
const SAMPLE_MEMORY_KIB: u32 = 32 * 1024;

/// Iterations of the PBKDF2 by which a longer one is estimated: some milliseconds.
const SAMPLE_ITERATIONS: u32 = 20_000;

/// A derivation that is not so many times as long as its sample is not estimated.
const SAMPLE_RATIO_MIN: f64 = 16.0;

/// Largest number of Argon2 lanes of a new keyslot.
pub const ARGON2_LANES_MAX: u32 = 4;

/// Largest number of Argon2 lanes (RFC 9106, section 3.1).
const LANES_MAX: u32 = (1 << 24) - 1;

/// Most threads that compute lanes. The lanes of a header are many only if somebody has made it up.
const THREADS_MAX: usize = 64;

/// Longest key that is derived or stored, in bytes: 8192 bits, as in cryptsetup.
pub const KEY_LEN_MAX: usize = 1024;

/// The two Argon2 variants of LUKS2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argon2Variant {
    /// Data-independent addressing.
    I,
    /// The hybrid of RFC 9106, the default.
    Id,
}

/// A key derivation function with its costs, as a header holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kdf {
    /// PBKDF2 with HMAC.
    Pbkdf2 {
        /// Name of the hash, as the header spells it.
        hash: String,
        /// Number of iterations.
        iterations: u32,
    },
    /// Argon2 version 1.3.
    Argon2 {
        /// Which variant.
        variant: Argon2Variant,
        /// Number of passes.
        time: u32,
        /// Memory in KiB.
        memory_kib: u32,
        /// Number of lanes, computed in parallel.
        lanes: u32,
    },
    /// An unknown type, with its name.
    Unknown(String),
}

impl Kdf {
    /// The name of the function as a LUKS2 header spells it.
    pub fn name(&self) -> &str {
        match self {
            Self::Pbkdf2 { .. } => "pbkdf2",
            Self::Argon2 { variant: Argon2Variant::I, .. } => "argon2i",
            Self::Argon2 { variant: Argon2Variant::Id, .. } => "argon2id",
            Self::Unknown(name) => name,
        }
    }

    /// Refuses unknown functions, unknown hashes, and costs outside the accepted ranges.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Pbkdf2 { hash, iterations } => {
                find_hash(hash)?;
                let given = u64::from(*iterations);
                bounded("pbkdf2", "iteration count", given, given >= 1, "1 to 4294967295")
            }
            Self::Argon2 { time, memory_kib, lanes, .. } => {
                let (time, memory, lanes) =
                    (u64::from(*time), u64::from(*memory_kib), u64::from(*lanes));
                bounded("argon2", "pass count", time, time >= 1, "1 to 4294967295")?;
                let few = (1..=u64::from(LANES_MAX)).contains(&lanes);
                bounded("argon2", "lane count", lanes, few, "1 to 16777215")?;
                let fits = (8 * lanes..=u64::from(ARGON2_MEMORY_MAX_KIB)).contains(&memory);
                bounded("argon2", "memory (KiB)", memory, fits, "8 per lane to 4194304")
            }
            Self::Unknown(name) => Err(Error::unsupported("key derivation function", name)),
        }
    }

    /// Derives a key of `out.len()` bytes (1 to [`KEY_LEN_MAX`]).
    ///
    /// The lanes of Argon2 run in parallel on threads that end with this call. Its memory is asked
    /// for first ([`guard_memory`](crate::guard_memory)).
    pub fn derive(&self, passphrase: &[u8], salt: &[u8], out: &mut [u8]) -> Result<()> {
        self.check()?;
        let mut permit = self.memory_bytes().map(memory::permit).transpose()?;
        self.derive_permitted(passphrase, salt, out, Purpose::Key, permit.as_deref_mut())
    }

    /// How long this derivation will take on this machine as it is now, by a short one of the same kind, which takes
    /// some hundredths of a second and 32 MiB. `None` where it is not known, or where the
    /// derivation is hardly longer than that.
    pub fn estimate(&self) -> Option<Duration> {
        let (sample, ratio) = match self {
            Self::Pbkdf2 { hash, iterations } => {
                let sample = Self::Pbkdf2 { hash: hash.clone(), iterations: SAMPLE_ITERATIONS };
                (sample, f64::from(*iterations) / f64::from(SAMPLE_ITERATIONS))
            }
            Self::Argon2 { variant, time, memory_kib, lanes } => {
                let memory = SAMPLE_MEMORY_KIB.max(lanes.checked_mul(8)?);
                let sample =
                    Self::Argon2 { variant: *variant, time: 1, memory_kib: memory, lanes: *lanes };
                (sample, f64::from(*time) * f64::from(*memory_kib) / f64::from(memory))
            }
            Self::Unknown(_) => return None,
        };
        if ratio < SAMPLE_RATIO_MIN || sample.check().is_err() {
            return None;
        }
        let begun = Instant::now();
        sample.compute(b"measuring the speed", &[0x5a; 32], &mut [0; 32], None).ok()?;
        Some(begun.elapsed().mul_f64(ratio))
    }

    /// Bytes of memory that a derivation takes; `None` if that is next to nothing.
    pub fn memory_bytes(&self) -> Option<u64> {
        match self {
            Self::Argon2 { memory_kib, .. } => Some(u64::from(*memory_kib) << 10),
            Self::Pbkdf2 { .. } | Self::Unknown(_) => None,
        }
    }

    /// As [`derive`](Self::derive), for whoever holds a permit for this much memory. `permit` is
    /// told when it has been taken.
    pub(crate) fn derive_permitted(
        &self,
        passphrase: &[u8],
        salt: &[u8],
        out: &mut [u8],
        purpose: Purpose,
        permit: Option<&mut (dyn Permit + 'static)>,
    ) -> Result<()> {
        self.check()?;
        if out.is_empty() || out.len() > KEY_LEN_MAX {
            return Err(Error::damaged("key size", format!("{} bytes", out.len())));
        }
        let _watched = derivations::begin(self, purpose);
        let result = self.compute(passphrase, salt, out, permit);
        scrub_stack();
        result
    }

    /// Never part of its caller, which wipes the stack below itself.
    #[inline(never)]
    fn compute(
        &self,
        passphrase: &[u8],
        salt: &[u8],
        out: &mut [u8],
        permit: Option<&mut (dyn Permit + 'static)>,
    ) -> Result<()> {
        match self {
            Self::Pbkdf2 { hash, iterations } => {
                find_hash(hash)?.pbkdf2(passphrase, salt, *iterations, out);
                Ok(())
            }
            Self::Argon2 { variant, time, memory_kib, lanes } => {
                let algorithm = match variant {
                    Argon2Variant::I => Algorithm::Argon2i,
                    Argon2Variant::Id => Algorithm::Argon2id,
                };
                let params = Params::new(*memory_kib, *time, *lanes, Some(out.len()))
                    .map_err(|problem| Error::damaged("argon2", problem.to_string()))?;
                argon2(algorithm, params, passphrase, salt, out, permit)
            }
            Self::Unknown(name) => Err(Error::unsupported("key derivation function", name)),
        }
    }
}

fn bounded(
    kdf: &'static str,
    parameter: &'static str,
    value: u64,
    good: bool,
    range: &'static str,
) -> Result<()> {
    if good { Ok(()) } else { Err(Error::KdfCost { kdf, parameter, value, range }) }
}

/// Runs Argon2 on memory allocated here, so that a failed allocation is an error and not an abort,
/// and so that the memory can be wiped: its last column determines the key.
fn argon2(
    algorithm: Algorithm,
    params: Params,
    passphrase: &[u8],
    salt: &[u8],
    out: &mut [u8],
    permit: Option<&mut (dyn Permit + 'static)>,
) -> Result<()> {
    let blocks = params.block_count();
    let out_of_memory = || Error::OutOfMemory { bytes: blocks as u64 * Block::SIZE as u64 };
    let mut memory: Vec<Block> = Vec::new();
    memory.try_reserve_exact(blocks).map_err(|_| out_of_memory())?;
    let threads = (params.p_cost() as usize).min(THREADS_MAX);
    let hasher = Argon2::new(algorithm, Version::V0x13, params);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|problem| Error::Threads { threads, problem: problem.to_string() })?;
    memory.resize(blocks, Block::default());
    if let Some(permit) = permit {
        permit.taken();
    }
    let result = pool.install(|| {
        let result = hasher.hash_password_into_with_memory(passphrase, salt, out, &mut memory);
        memory.par_iter_mut().for_each(Zeroize::zeroize);
        scrub_stack();
        result
    });
    // The threads have stacks of their own.
    pool.broadcast(|_| scrub_stack());
    result.map_err(|problem| Error::damaged("argon2", problem.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_derivation_that_is_long_is_estimated_and_in_proportion_to_its_cost() {
        let pbkdf2 = |iterations| Kdf::Pbkdf2 { hash: "sha256".into(), iterations };
        assert_eq!(pbkdf2(100_000).estimate(), None);
        // Hours, on every machine.
        assert!(pbkdf2(u32::MAX).estimate() > Some(Duration::from_secs(60)));
        let argon2 = |time, memory_kib| Kdf::Argon2 {
            variant: Argon2Variant::Id,
            time,
            memory_kib,
            lanes: 4,
        };
        assert_eq!(argon2(4, 64 << 10).estimate(), None);
        assert!(argon2(1 << 20, 1 << 20).estimate() > Some(Duration::from_secs(60)));
        assert_eq!(Kdf::Unknown("scrypt".into()).estimate(), None);
        let unknown = Kdf::Pbkdf2 { hash: "md6".into(), iterations: u32::MAX };
        assert_eq!(unknown.estimate(), None);
    }

    #[test]
    fn more_lanes_than_threads_give_the_key_that_one_thread_gives() {
        let lanes = THREADS_MAX as u32 + 7;
        let (time, memory_kib) = (1, 8 * lanes);
        let kdf = Kdf::Argon2 { variant: Argon2Variant::Id, time, memory_kib, lanes };
        let (mut key, mut expected) = ([0; 32], [0; 32]);
        kdf.derive(b"passphrase", b"salt and more salt", &mut key).unwrap();
        let params = Params::new(memory_kib, time, lanes, Some(32)).unwrap();
        let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        one.install(|| {
            Argon2::new(Algorithm::Argon2id, Version::V0x13, params).hash_password_into(
                b"passphrase",
                b"salt and more salt",
                &mut expected,
            )
        })
        .unwrap();
        assert_eq!(key, expected);
    }
}
