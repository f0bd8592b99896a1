//! The key derivation costs of a new keyslot: forced, or calibrated to take a given time here.

use std::time::Duration;

use zeroize::Zeroizing;

use crate::derivations::Purpose;
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::kdf::{ARGON2_LANES_MAX, ARGON2_MEMORY_MAX_KIB, Argon2Variant, Kdf};
use crate::medium::{Clock, Time};
use crate::memory;

/// Fewest iterations of a new PBKDF2 (NIST SP 800-132; cryptsetup's limit).
pub const PBKDF2_ITERATIONS_MIN: u32 = 1000;

/// Fewest passes of a new Argon2 (cryptsetup's limit).
pub const ARGON2_TIME_MIN: u32 = 4;

/// Least memory of a new Argon2, in KiB (cryptsetup's limit).
pub const ARGON2_MEMORY_MIN_KIB: u32 = 32;

/// Least memory of a new Argon2 whose cost is measured, in KiB, unless there may be less (cryptsetup's limit). A
/// machine that is slow or busy at this moment makes no keyslot that is cheap to guess elsewhere.
const ARGON2_MEASURED_MIN_KIB: u32 = 64 * 1024;

/// Target time for computing the digest of a volume key.
const DIGEST_TIME: Duration = Duration::from_millis(125);

/// A shorter run is too short to measure the speed.
const SAMPLE_TIME_MIN: Duration = Duration::from_millis(250);

/// A key derivation function for a new keyslot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PbkdfKind {
    /// PBKDF2, the only one that LUKS1 has.
    Pbkdf2,
    /// Argon2i.
    Argon2i,
    /// Argon2id, the default of LUKS2.
    Argon2id,
}

impl PbkdfKind {
    /// The name as headers and options spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pbkdf2 => "pbkdf2",
            Self::Argon2i => "argon2i",
            Self::Argon2id => "argon2id",
        }
    }

    /// Finds a function by its name.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "pbkdf2" => Ok(Self::Pbkdf2),
            "argon2i" => Ok(Self::Argon2i),
            "argon2id" => Ok(Self::Argon2id),
            other => Err(Error::unsupported("PBKDF", other)),
        }
    }
}

/// How a new keyslot's key derivation is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pbkdf {
    /// The function.
    pub kind: PbkdfKind,
    /// The hash of PBKDF2 and of the volume key's digest.
    pub hash: Hash,
    /// Its cost.
    pub cost: Cost,
    /// The limit of Argon2's memory in KiB; with a forced cost, the memory itself. The machine's
    /// limit applies in any case.
    pub memory_kib: u32,
    /// The limit of Argon2's lanes; with a forced cost, the number of lanes itself. The machine's
    /// limit applies in any case.
    pub lanes: u32,
}

/// The cost of a key derivation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// As much as this machine computes in this time.
    Time(Duration),
    /// This many iterations (PBKDF2) or passes (Argon2), without a measurement.
    Iterations(u32),
}

/// The machine's resources. As in cryptsetup, they limit forced costs too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Number of online CPUs.
    pub cpus: u32,
    /// Memory that Argon2 may take, in KiB. cryptsetup allows half of the memory, or without swap
    /// half of the free memory.
    pub memory_kib: u32,
}

impl Pbkdf {
    /// Two seconds, 1 GiB, four lanes, sha256: cryptsetup's defaults.
    pub fn new(kind: PbkdfKind) -> Self {
        Self {
            kind,
            hash: Hash::Sha256,
            cost: Cost::Time(Duration::from_secs(2)),
            memory_kib: 1024 * 1024,
            lanes: 4,
        }
    }

    /// The function and its costs for a key of `key_len` bytes. Costs that are not forced are
    /// measured with `clock`.
    pub fn resolve(&self, key_len: usize, machine: Machine, clock: Clock<'_>) -> Result<Kdf> {
        self.check()?;
        let variant = match self.kind {
            PbkdfKind::Pbkdf2 => {
                let iterations = match self.cost {
                    Cost::Iterations(forced) => forced,
                    Cost::Time(target) => calibrate_pbkdf2(self.hash, key_len, target, clock)?,
                };
                return Ok(pbkdf2(self.hash, iterations));
            }
            PbkdfKind::Argon2i => Argon2Variant::I,
            PbkdfKind::Argon2id => Argon2Variant::Id,
        };
        let lanes = self.lanes.min(ARGON2_LANES_MAX).min(machine.cpus.max(1));
        let memory_kib = self.memory_kib.min(machine.memory_kib);
        let argon2 = |time, memory_kib, lanes| Kdf::Argon2 { variant, time, memory_kib, lanes };
        match self.cost {
            Cost::Iterations(time) => Ok(argon2(time, memory_kib.max(8 * lanes), lanes)),
            Cost::Time(target) => {
                // Held until the end: whoever waits for it now would be measured with it.
                let _permit = memory::permit(u64::from(memory_kib) << 10)?;
                let make = |time, memory_kib| argon2(time, memory_kib, lanes);
                calibrate_argon2(make, key_len, memory_kib, lanes, target, clock)
            }
        }
    }

    /// Iterations for the PBKDF2 digest of a volume key of `key_len` bytes.
    pub(crate) fn digest_iterations(&self, key_len: usize, clock: Clock<'_>) -> Result<u32> {
        match self.cost {
            Cost::Iterations(_) => Ok(PBKDF2_ITERATIONS_MIN),
            Cost::Time(_) => calibrate_pbkdf2(self.hash, key_len, DIGEST_TIME, clock),
        }
    }

    /// Refuses costs outside cryptsetup's limits, in its words.
    fn check(&self) -> Result<()> {
        let (name, is_pbkdf2) = (self.kind.name(), self.kind == PbkdfKind::Pbkdf2);
        let mut problems = Vec::new();
        let forced = match self.cost {
            Cost::Time(time) if time.is_zero() => {
                problems.push("an iteration time of zero gives no security".to_owned());
                None
            }
            // The most that the command's --iter-time takes.
            Cost::Time(time) if time.as_millis() > u32::MAX.into() => {
                problems.push("an iteration time of more than 49 days".to_owned());
                None
            }
            Cost::Time(_) => None,
            Cost::Iterations(forced) => Some(forced),
        };
        let min = if is_pbkdf2 { PBKDF2_ITERATIONS_MIN } else { ARGON2_TIME_MIN };
        if forced.is_some_and(|forced| forced < min) {
            problems
                .push(format!("forced iteration count is too low for {name} (minimum is {min})"));
        }
        if !is_pbkdf2 {
            if self.memory_kib < ARGON2_MEMORY_MIN_KIB {
                let what = if forced.is_some() { "forced" } else { "requested maximum" };
                problems.push(format!(
                    "{what} memory cost is too low for {name} (minimum is {ARGON2_MEMORY_MIN_KIB} \
                     kilobytes)"
                ));
            }
            if self.memory_kib > ARGON2_MEMORY_MAX_KIB {
                problems.push(format!(
                    "requested maximum PBKDF memory cost is too high (maximum is \
                     {ARGON2_MEMORY_MAX_KIB} kilobytes)"
                ));
            }
            if self.lanes == 0 {
                problems.push("requested PBKDF parallel threads cannot be zero".to_owned());
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(Error::request(problems.join("; "))) }
    }
}

fn pbkdf2(hash: Hash, iterations: u32) -> Kdf {
    Kdf::Pbkdf2 { hash: hash.name().to_owned(), iterations }
}

/// The time that `kdf` takes for a key of `key_len` bytes; never zero. PBKDF2 is one thread, whose
/// own time does not depend on who else runs: a busy machine makes no weaker keyslot. (cryptsetup
/// does the same.)
fn measure(kdf: &Kdf, key_len: usize, clock: Clock<'_>) -> Result<Duration> {
    let time = match kdf {
        Kdf::Pbkdf2 { .. } => Time::Thread,
        Kdf::Argon2 { .. } | Kdf::Unknown(_) => Time::Real,
    };
    let mut key = Zeroizing::new(vec![0; key_len]);
    let begin = clock(time);
    kdf.derive_permitted(
        b"measuring the speed",
        &[0x5a; 32],
        &mut key,
        Purpose::Measurement,
        None,
    )?;
    Ok(clock(time).saturating_sub(begin).max(Duration::from_nanos(1)))
}

/// Scales `amount`, which took `elapsed`, to `target`.
fn scale(amount: u64, elapsed: Duration, target: Duration) -> u64 {
    let scaled = u128::from(amount) * target.as_nanos() / elapsed.as_nanos().max(1);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

fn calibrate_pbkdf2(hash: Hash, key_len: usize, target: Duration, clock: Clock<'_>) -> Result<u32> {
    let mut iterations: u32 = 1 << 14;
    loop {
        let elapsed = measure(&pbkdf2(hash, iterations), key_len, clock)?;
        let next = iterations.saturating_mul(4);
        if elapsed >= SAMPLE_TIME_MIN.min(target / 2) || next == u32::MAX {
            let scaled = scale(u64::from(iterations), elapsed, target);
            let scaled = u32::try_from(scaled).unwrap_or(u32::MAX);
            return Ok(scaled.max(PBKDF2_ITERATIONS_MIN));
        }
        iterations = next;
    }
}

/// Finds the memory that takes `target`, and raises the passes only once the memory is at its
/// limit. Memory comes first because it makes guessing expensive.
fn calibrate_argon2(
    make: impl Fn(u32, u32) -> Kdf,
    key_len: usize,
    memory_max_kib: u32,
    lanes: u32,
    target: Duration,
    clock: Clock<'_>,
) -> Result<Kdf> {
    let memory_max = memory_max_kib.max(ARGON2_MEMORY_MIN_KIB).max(8 * lanes);
    let memory_min = memory_max.min(ARGON2_MEASURED_MIN_KIB);
    let (mut time, mut memory) = (ARGON2_TIME_MIN, memory_min);
    // The time grows as passes × memory.
    for _ in 0..16 {
        let elapsed = measure(&make(time, memory), key_len, clock)?;
        let (low, high) = (target * 95 / 100, target * 110 / 100);
        if (low..=high).contains(&elapsed) {
            break;
        }
        // A short run may be far off: scale it by 16 at most.
        let work = u64::from(time) * u64::from(memory);
        let trusted = if elapsed < SAMPLE_TIME_MIN { work.saturating_mul(16) } else { u64::MAX };
        let wanted = scale(work, elapsed, target).min(trusted);
        let next_memory = wanted / u64::from(ARGON2_TIME_MIN);
        let next_memory = next_memory.clamp(u64::from(memory_min), u64::from(memory_max)) as u32;
        let next_time = (wanted / u64::from(next_memory)).max(u64::from(ARGON2_TIME_MIN));
        let next_time = u32::try_from(next_time).unwrap_or(u32::MAX);
        if (next_time, next_memory) == (time, memory) {
            break;
        }
        (time, memory) = (next_time, next_memory);
    }
    Ok(make(time, memory))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Machine = Machine { cpus: 2, memory_kib: 4096 };

    /// A clock that advances by `step` at every reading.
    fn ticking(step: Duration) -> impl FnMut(Time) -> Duration {
        let mut now = Duration::ZERO;
        move |_| {
            now += step;
            now
        }
    }

    #[test]
    fn pbkdf2_iterations_are_scaled_to_the_target() {
        let mut clock = ticking(Duration::from_millis(500));
        let kdf = Pbkdf::new(PbkdfKind::Pbkdf2).resolve(32, MACHINE, &mut clock).unwrap();
        assert_eq!(kdf, Kdf::Pbkdf2 { hash: "sha256".to_owned(), iterations: 4 << 14 });
    }

    #[test]
    fn a_busy_machine_does_not_weaken_pbkdf2() {
        // The thread gets a tenth of the time.
        let mut real = ticking(Duration::from_secs(5));
        let mut own = ticking(Duration::from_millis(500));
        let mut clock = |time| match time {
            Time::Real => real(time),
            Time::Thread => own(time),
        };
        let pbkdf2 = Pbkdf::new(PbkdfKind::Pbkdf2);
        let Kdf::Pbkdf2 { iterations, .. } = pbkdf2.resolve(32, MACHINE, &mut clock).unwrap()
        else {
            panic!("PBKDF2 was asked for")
        };
        assert_eq!(iterations, 4 << 14);
        assert_eq!(pbkdf2.digest_iterations(32, &mut clock).unwrap(), 4 << 10);
    }

    #[test]
    fn forced_costs_are_taken_without_a_look_at_the_clock() {
        let mut clock = |_| -> Duration { panic!("a forced cost needs no clock") };
        let pbkdf = Pbkdf {
            cost: Cost::Iterations(7),
            memory_kib: 100,
            lanes: 9,
            ..Pbkdf::new(PbkdfKind::Argon2i)
        };
        let kdf = pbkdf.resolve(32, MACHINE, &mut clock).unwrap();
        let expected =
            Kdf::Argon2 { variant: Argon2Variant::I, time: 7, memory_kib: 100, lanes: 2 };
        assert_eq!(kdf, expected);
        assert_eq!(pbkdf.digest_iterations(32, &mut clock).unwrap(), 1000);
    }

    #[test]
    fn memory_grows_to_its_limit_before_the_passes_grow() {
        // The first run takes half of the target, the second one all of it.
        let mut times = [0, 1, 1, 3].into_iter().map(Duration::from_millis);
        let mut clock = |_| times.next().expect("two runs are enough");
        let pbkdf =
            Pbkdf { cost: Cost::Time(Duration::from_millis(2)), ..Pbkdf::new(PbkdfKind::Argon2id) };
        let machine = Machine { memory_kib: 80 << 10, ..MACHINE };
        let Kdf::Argon2 { time, memory_kib, lanes, .. } =
            pbkdf.resolve(32, machine, &mut clock).unwrap()
        else {
            panic!("argon2 was asked for")
        };
        // Twice the work of 4 passes over 64 MiB.
        assert_eq!((memory_kib, lanes, time), (80 << 10, 2, 6));
    }

    #[test]
    fn a_slow_or_busy_machine_makes_no_keyslot_of_little_memory() {
        for (machine_kib, asked_kib, expected_kib) in
            [(1 << 20, 1 << 20, 64 << 10), (1 << 20, 20_000, 20_000), (4096, 1 << 20, 4096)]
        {
            // Every run takes a minute.
            let mut clock = ticking(Duration::from_secs(60));
            let pbkdf = Pbkdf {
                cost: Cost::Time(Duration::from_millis(1)),
                memory_kib: asked_kib,
                ..Pbkdf::new(PbkdfKind::Argon2id)
            };
            let machine = Machine { memory_kib: machine_kib, ..MACHINE };
            let Kdf::Argon2 { time, memory_kib, .. } =
                pbkdf.resolve(32, machine, &mut clock).unwrap()
            else {
                panic!("argon2 was asked for")
            };
            assert_eq!((time, memory_kib), (ARGON2_TIME_MIN, expected_kib));
        }
    }

    #[test]
    fn costs_outside_the_limits_are_refused() {
        let mut clock = ticking(Duration::from_secs(1));
        let argon2 = Pbkdf::new(PbkdfKind::Argon2id);
        for bad in [
            Pbkdf { cost: Cost::Time(Duration::ZERO), ..argon2 },
            Pbkdf { cost: Cost::Time(Duration::MAX), ..argon2 },
            Pbkdf { cost: Cost::Time(Duration::MAX), ..Pbkdf::new(PbkdfKind::Pbkdf2) },
            Pbkdf { cost: Cost::Iterations(3), ..argon2 },
            Pbkdf { cost: Cost::Iterations(999), ..Pbkdf::new(PbkdfKind::Pbkdf2) },
            Pbkdf { memory_kib: 31, ..argon2 },
            Pbkdf { memory_kib: ARGON2_MEMORY_MAX_KIB + 1, ..argon2 },
            Pbkdf { lanes: 0, ..argon2 },
        ] {
            let result = bad.resolve(32, MACHINE, &mut clock);
            assert!(matches!(result, Err(Error::Request(_))), "{bad:?}: {result:?}");
        }
    }
}
