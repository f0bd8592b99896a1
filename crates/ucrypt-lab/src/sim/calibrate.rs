//! The costs of this machine, for the simulator: cores, cipher, offloading to workers, and a drive.
//!
//! What is measured once and then computed with has to be checked: [`Calibrated::checks`] holds loads
//! that were carried out here and in the simulator, with the same engine. Those that a cost was taken
//! from are marked as fitted.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use ucrypt_backend::model::{FlashProfile, Media, Profile, Rate};
use ucrypt_backend::{Backend, ZeroBackend, count_cores};
use ucrypt_engine::{CipherModel, Fixed, PolicyKind, Segment, Volume, VolumeOptions};

use crate::bench::CIPHER;
use crate::catalogue::{Cell, size_name};
use crate::experiment::Experiment;
use crate::load::{self, Load, Place, Times};
use crate::real::cipher;
use crate::sample::Sample;
use crate::world::Costs;
use crate::{Job, Pattern};

/// The costs of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Processors that this process may use: cores, or threads of cores.
    pub cores: u32,
    /// Threads of a core.
    pub threads_per_core: u32,
    /// Nanoseconds a byte of aes-xts-plain64 with sectors of 4096 bytes, on one core.
    pub cipher_ns_per_byte: f64,
    /// Nanoseconds of a call besides its bytes.
    pub cipher_ns_per_call: u64,
    /// Nanoseconds of waking a thread, for the waking one.
    pub wake_call_ns: u64,
    /// Nanoseconds from there until the woken thread runs.
    pub wake_ns: u64,
    /// Nanoseconds to hand a chunk to a worker, or to take it back.
    pub enqueue_ns: u64,
    /// Extra picoseconds a byte to copy what another core has transformed.
    pub carry_ps_per_byte: u64,
    /// The engine's own time of a request over that of the machine to which the simulator was fitted.
    pub engine: f64,
    /// The drive, if one was measured.
    pub drive: Option<Drive>,
}

/// A drive without moving parts, as [`FlashProfile`] describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drive {
    /// Nanoseconds from a read to its first byte.
    pub read_ns: u64,
    /// Reads at once.
    pub lanes: u32,
    /// Units of 1000 bytes a second at which one read gets its data.
    pub lane_kb_s: u64,
    /// Units of 1000 bytes a second of all reads together.
    pub bus_kb_s: u64,
    /// Nanoseconds of a write besides those below.
    pub write_ns: u64,
    /// Units of 1000 bytes a second of all writes together.
    pub program_kb_s: u64,
    /// Nanoseconds of each write besides its data, one after the other.
    pub program_ns: u64,
}

/// A load, on this machine and in the simulator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The load and what it ran on.
    pub load: String,
    /// MB/s here: the median of the runs.
    pub measured: f64,
    /// MB/s in the simulator.
    pub simulated: f64,
    /// Whether a cost was taken from it.
    pub fitted: bool,
}

impl Check {
    /// The simulated figure over the measured one, less 1.
    pub fn error(&self) -> f64 {
        self.simulated / self.measured.max(1e-9) - 1.0
    }
}

/// What a calibration has found.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibrated {
    /// The costs.
    pub measured: Measured,
    /// How far the simulator agrees with this machine.
    pub checks: Vec<Check>,
}

impl Measured {
    /// In words.
    pub fn describe(&self) -> String {
        let Self { cores, threads_per_core, cipher_ns_per_byte, cipher_ns_per_call, .. } = *self;
        let threads = match threads_per_core {
            0 | 1 => String::new(),
            threads => format!(" ({threads} threads of a core)"),
        };
        let drive = self.drive.map_or_else(String::new, |drive| format!("; {}", drive.describe()));
        format!(
            "measured here: {cores} cores{threads}; the cipher {cipher_ns_per_byte:.3} ns a byte and \
             {cipher_ns_per_call} ns a call; to wake a thread {} ns, until it runs {} ns more; to hand \
             a chunk over {} ns; to copy another core's data {} ps a byte more; the engine {:.2} of \
             the time that the simulator was fitted to{drive}",
            self.wake_call_ns, self.wake_ns, self.enqueue_ns, self.carry_ps_per_byte, self.engine
        )
    }

    pub(crate) fn cipher(&self) -> CipherModel {
        let ns_per_byte = self.cipher_ns_per_byte;
        CipherModel { ns_per_byte, ns_per_call: self.cipher_ns_per_call }
    }

    /// The costs of a machine with those that were measured in their place.
    pub(crate) fn costs(&self, of: Costs) -> Costs {
        #[expect(clippy::cast_sign_loss, reason = "a share of a time is not negative")]
        let scaled = |ns: u64| (ns as f64 * self.engine.clamp(0.01, 100.0)).round() as u64;
        Costs {
            accept: scaled(of.accept),
            finish: scaled(of.finish),
            round: scaled(of.round),
            submit: scaled(of.submit),
            answer: scaled(of.answer),
            wake_call: self.wake_call_ns,
            wake: self.wake_ns,
            enqueue: self.enqueue_ns,
            carry_ps_per_byte: self.carry_ps_per_byte,
            ..of
        }
    }
}

impl Drive {
    fn describe(&self) -> String {
        format!(
            "the drive {:.1} µs to the first byte, {} reads at once, {:.0} MB/s each and {:.0} MB/s \
             together; a write {:.1} µs, {:.0} MB/s together",
            self.read_ns as f64 / 1000.0,
            self.lanes,
            self.lane_kb_s as f64 / 1000.0,
            self.bus_kb_s as f64 / 1000.0,
            self.write_ns.saturating_add(self.program_ns) as f64 / 1000.0,
            self.program_kb_s as f64 / 1000.0,
        )
    }

    /// The device model, made once for each drive.
    ///
    /// # Errors
    /// If a figure is one that no drive has: a file may have been changed.
    pub(crate) fn profile(self) -> io::Result<&'static Profile> {
        static MADE: Mutex<Vec<(Drive, &'static Profile)>> = Mutex::new(Vec::new());
        let rates = [self.lane_kb_s, self.bus_kb_s, self.program_kb_s];
        if self.lanes == 0 || rates.contains(&0) {
            let message = "the drive of the calibration has a speed of zero; calibrate again";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, profile)) = made.iter().find(|(drive, _)| *drive == self) {
            return Ok(profile);
        }
        let profile: &'static Profile = Box::leak(Box::new(Profile {
            name: "measured",
            about: "a drive of this machine",
            block: 4096,
            discard: false,
            media: Media::Flash(FlashProfile {
                command_max: 1 << 20,
                command_ns: 0,
                bus: Rate::kb_s(self.bus_kb_s),
                lanes: self.lanes,
                read_ns: self.read_ns,
                lane: Rate::kb_s(self.lane_kb_s),
                spread_percent: 0,
                write_ns: self.write_ns,
                program: Rate::kb_s(self.program_kb_s),
                program_ns: self.program_ns,
                // Included in program_ns: the writes that it was taken from are random.
                program_far_ns: 0,
                cache: 0,
                flush_ns: 0,
            }),
            zones: None,
        }));
        made.push((self, profile));
        Ok(profile)
    }
}

/// Runs of each load; their median counts.
const RUNS: usize = 5;

/// Time of a run.
const TIME: Duration = Duration::from_millis(120);

/// Bytes of the disk that takes no time.
const ZERO_BYTES: u64 = 1 << 30;

/// Corrections of a drive's latencies: each halves their error at least.
const CORRECTIONS: usize = 4;

/// Most reads at once that a drive is given.
const LANES_MAX: f64 = 64.0;

/// A load, and the policy of the engine; `None`: the target itself.
type Wanted = (Pattern, u64, u32, Option<Fixed>);

/// What runs loads, and says what it does.
struct Calibrator<'a> {
    stop: &'a AtomicBool,
    progress: &'a dyn Fn(&str),
}

impl Calibrator<'_> {
    /// The run with the median speed.
    fn run(&self, place: &Place, wanted: Wanted, len: u64) -> io::Result<Sample> {
        let (pattern, block_bytes, depth, _) = wanted;
        (self.progress)(&name(wanted));
        let cell = Cell {
            name: String::new(),
            pattern,
            block_bytes,
            depth,
            jobs: 1,
            published: Vec::new(),
        };
        let times = Times { ramp: TIME / 4, measured: TIME };
        let mut all = Vec::new();
        for seed in 1..=RUNS as u64 {
            let region_bytes = len / block_bytes * block_bytes;
            let load =
                Load { cell: &cell, region_bytes, times, slices: false, seed, requests: None };
            all.push(load::run(place, load, self.stop)?);
        }
        all.sort_by(|a, b| a.mb_s.total_cmp(&b.mb_s));
        Ok(all.swap_remove(RUNS / 2))
    }
}

fn name((pattern, block_bytes, depth, policy): Wanted) -> String {
    let with = policy.map_or_else(|| "not encrypted".into(), |it| PolicyKind::from(it).to_string());
    format!("{} {} qd{depth}, {with}", size_name(block_bytes), pattern.name())
}

/// The same load in virtual time. `cipher`: `None` for the target itself.
fn simulated(
    measured: &Measured,
    device: &'static Profile,
    (pattern, block_bytes, depth, policy): Wanted,
    null: bool,
) -> f64 {
    let requests = (16 * u64::from(depth)).max(400);
    let job = Job { pattern, block_bytes, depth, requests, region_bytes: ZERO_BYTES };
    let mut experiment =
        Experiment::new(measured.cores, device, job, policy.unwrap_or(Fixed::Inline));
    experiment.threads_per_core = measured.threads_per_core;
    experiment.costs = measured.costs(experiment.costs);
    experiment.cipher = if null || policy.is_none() {
        CipherModel { ns_per_byte: 0.0, ns_per_call: 0 }
    } else {
        measured.cipher()
    };
    experiment.run().mb_s
}

fn volume(backend: Arc<dyn Backend>, len: u64, spec: &str, policy: Fixed) -> io::Result<Volume> {
    let segment = Segment { len, backend_offset: 0, cipher: Some(cipher(spec)?) };
    let policies = PolicyKind::from(policy).into();
    let options = VolumeOptions { policies, ..VolumeOptions::default() };
    Volume::new(backend, vec![segment], options).map_err(io::Error::other)
}

const UNBOUND: Fixed = Fixed::Unbound { sorted: true };

/// Measures this machine, and a drive if `drive` is given: a backend of that many bytes, whose content
/// is lost and which must have been written before. Takes some seconds.
///
/// # Errors
/// If a request fails, a volume cannot be opened, or `stop` is set.
pub fn calibrate(
    drive: Option<(&Arc<dyn Backend>, u64)>,
    (stop, progress): (&AtomicBool, &dyn Fn(&str)),
) -> io::Result<Calibrated> {
    let calibrator = Calibrator { stop, progress };
    let zero: Arc<dyn Backend> = Arc::new(ZeroBackend::new(ZERO_BYTES));
    progress("cipher and workers");
    let mut measured = machine(&zero)?;
    // The engine alone: no cipher, and a disk that takes no time.
    let null_device =
        Profile::by_name("null").ok_or_else(|| io::Error::other("no model of memory"))?;
    let alone = (Pattern::RandRead, 4096, 1, Some(Fixed::Inline));
    let null = volume(zero.clone(), ZERO_BYTES, "cipher_null-ecb", Fixed::Inline)?;
    let real = calibrator.run(&Place::Engine(Arc::new(null)), alone, ZERO_BYTES)?;
    for _ in 0..CORRECTIONS {
        let virtual_mb_s = simulated(&measured, null_device, alone, true);
        measured.engine *= virtual_mb_s / real.mb_s.max(1e-9);
    }
    let mut checks = vec![Check {
        load: "no disk, no cipher: 4k randread qd1".into(),
        measured: real.mb_s,
        simulated: simulated(&measured, null_device, alone, true),
        fitted: true,
    }];
    let mut check = |measured: &Measured, on: &str, device, place: &Place, wanted, len| {
        let real = calibrator.run(place, wanted, len)?.mb_s;
        checks.push(Check {
            load: format!("{on}: {}", name(wanted)),
            measured: real,
            simulated: simulated(measured, device, wanted, false),
            fitted: false,
        });
        Ok::<_, io::Error>(())
    };
    let mut of_drive: Vec<Check> = Vec::new();
    let encrypted = |backend: &Arc<dyn Backend>, len, policy| {
        volume(backend.clone(), len, CIPHER, policy).map(|it| Place::Engine(Arc::new(it)))
    };
    for (block_bytes, depth, policy) in
        [(4096, 1, Fixed::Inline), (1 << 16, 1, Fixed::Inline), (1 << 20, 8, UNBOUND)]
    {
        let place = encrypted(&zero, ZERO_BYTES, policy)?;
        let wanted = (Pattern::RandRead, block_bytes, depth, Some(policy));
        check(&measured, "no disk", null_device, &place, wanted, ZERO_BYTES)?;
    }
    if let Some((backend, len)) = drive {
        let (fitted, speeds) = fit(&calibrator, &measured, backend, len)?;
        measured.drive = Some(fitted);
        let device = fitted.profile()?;
        of_drive = FITTED
            .into_iter()
            .zip(speeds)
            .map(|(wanted, real)| Check {
                load: format!("drive: {}", name(wanted)),
                measured: real,
                simulated: simulated(&measured, device, wanted, true),
                fitted: true,
            })
            .collect();
        for (pattern, block_bytes, depth, policy) in [
            (Pattern::RandRead, 4096, 1, Fixed::Inline),
            (Pattern::RandRead, 1 << 16, 8, Fixed::Inline),
            (Pattern::RandRead, 1 << 16, 8, UNBOUND),
            (Pattern::Write, 1 << 20, 8, UNBOUND),
        ] {
            let place = encrypted(backend, len, policy)?;
            let wanted = (pattern, block_bytes, depth, Some(policy));
            check(&measured, "drive", device, &place, wanted, len)?;
        }
    }
    checks.extend(of_drive);
    Ok(Calibrated { measured, checks })
}

/// Cores, cipher and workers.
fn machine(zero: &Arc<dyn Backend>) -> io::Result<Measured> {
    let fitted = Costs::default();
    let (cipher_ns_per_byte, cipher_ns_per_call) = cipher_costs()?;
    // Several: a figure is not measured where this thread had to wait for a core.
    let volumes = (0..RUNS).map(|_| volume(zero.clone(), ZERO_BYTES, CIPHER, UNBOUND));
    let all = volumes.map(|it| it.map(|volume| volume.calibration()));
    let all = all.collect::<io::Result<Vec<_>>>()?;
    let median = |of: &dyn Fn(&ucrypt_engine::Calibration) -> Option<u64>| {
        let mut figures: Vec<u64> = all.iter().filter_map(of).collect();
        figures.sort_unstable();
        figures.get(figures.len() / 2).copied()
    };
    let twice_enqueue = median(&|it| it.enqueue_cost);
    let wake_call_ns = median(&|it| it.wake_cost);
    let trip = median(&|it| it.wake_latency);
    let penalty = median(&|it| it.copy_penalty);
    let enqueue_ns = twice_enqueue.map_or(fitted.enqueue, |ns| ns / 2);
    // The trip has both passages of the queue in it, as that of a simulated calibration.
    let wake_ns = trip
        .zip(wake_call_ns)
        .map(|(trip, call)| trip.saturating_sub(call).saturating_sub(twice_enqueue.unwrap_or(0)));
    Ok(Measured {
        cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
        threads_per_core: threads_per_core(),
        cipher_ns_per_byte,
        cipher_ns_per_call,
        wake_call_ns: wake_call_ns.unwrap_or(fitted.wake_call),
        wake_ns: wake_ns.unwrap_or(fitted.wake),
        enqueue_ns,
        carry_ps_per_byte: penalty.map_or(fitted.carry_ps_per_byte, |ns| ns * 1000 / 65536),
        engine: 1.0,
        drive: None,
    })
}

/// Threads of the first core (kernel: `Documentation/admin-guide/cputopology.rst`).
fn threads_per_core() -> u32 {
    let list = "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list";
    std::fs::read_to_string(list).ok().and_then(|text| count_cores(&text)).unwrap_or(1)
}

/// Nanoseconds a byte and a call, from the fastest calls of two lengths.
fn cipher_costs() -> io::Result<(f64, u64)> {
    const SHORT: usize = 4096;
    const LONG: usize = 65536;
    let cipher = cipher(CIPHER)?;
    let mut data = vec![0x5a; LONG];
    let mut fastest = [f64::INFINITY; 2];
    for _ in 0..200 {
        for (at, bytes) in [SHORT, LONG].into_iter().enumerate() {
            let started = Instant::now();
            cipher.decrypt_in_place(0, &mut data[..bytes]).map_err(io::Error::other)?;
            fastest[at] = fastest[at].min(started.elapsed().as_nanos() as f64);
        }
    }
    let ns_per_byte = ((fastest[1] - fastest[0]) / (LONG - SHORT) as f64).max(1e-4);
    #[expect(clippy::cast_sign_loss, reason = "a time is not negative")]
    let ns_per_call = (fastest[0] - ns_per_byte * SHORT as f64).max(0.0) as u64;
    Ok((ns_per_byte, ns_per_call))
}

/// The loads that a drive is taken from: small and longer reads alone, many small ones, long ones;
/// the same of writes.
const FITTED: [Wanted; 7] = [
    (Pattern::RandRead, 4096, 1, None),
    (Pattern::RandRead, 1 << 16, 1, None),
    (Pattern::RandRead, 4096, 32, None),
    (Pattern::Read, 1 << 20, 8, None),
    (Pattern::RandWrite, 4096, 1, None),
    (Pattern::RandWrite, 4096, 32, None),
    (Pattern::Write, 1 << 20, 8, None),
];

/// The drive, and the speeds that it was taken from.
fn fit(
    calibrator: &Calibrator<'_>,
    measured: &Measured,
    backend: &Arc<dyn Backend>,
    len: u64,
) -> io::Result<(Drive, Vec<f64>)> {
    let place = Place::Raw(backend.clone());
    let samples = FITTED.iter().map(|wanted| calibrator.run(&place, *wanted, len));
    let samples = samples.collect::<io::Result<Vec<_>>>()?;
    let [small, longer, many, long, write, many_writes, long_writes] = &samples[..] else {
        return Err(io::Error::other("a load is missing"));
    };
    let mut drive = first_guess(small, longer, many, long, write, many_writes, long_writes);
    // The engine's and the kernel's part of a latency is the simulator's own.
    for _ in 0..CORRECTIONS {
        let excess = |wanted: Wanted, real: &Sample| {
            let virtual_ns = 4096.0 * 1000.0 / simulated(measured, drive.profile()?, wanted, true);
            Ok::<_, io::Error>(virtual_ns - 4096.0 * 1000.0 / real.mb_s.max(1e-9))
        };
        let (read, write) = (excess(FITTED[0], small)?, excess(FITTED[4], write)?);
        #[expect(clippy::cast_sign_loss, reason = "never below zero")]
        let less = |ns: u64, excess: f64| (ns as f64 - excess).max(0.0) as u64;
        drive.read_ns = less(drive.read_ns, read);
        drive.write_ns = less(drive.write_ns, write);
    }
    Ok((drive, samples.iter().map(|sample| sample.mb_s).collect()))
}

#[expect(clippy::cast_sign_loss, reason = "speeds and times are positive")]
fn first_guess(
    small: &Sample,
    longer: &Sample,
    many: &Sample,
    long: &Sample,
    write: &Sample,
    many_writes: &Sample,
    long_writes: &Sample,
) -> Drive {
    let kb_s = |mb_s: f64| ((mb_s * 1000.0) as u64).max(1);
    let bus_kb_s = kb_s(long.mb_s.max(longer.mb_s).max(many.mb_s));
    // The longer read has 60 KiB more.
    let more_us = (longer.mean_us - small.mean_us).max(1e-3);
    let lane_kb_s = kb_s(61_440.0 / more_us).min(bus_kb_s);
    let program_kb_s = kb_s(long_writes.mb_s.max(many_writes.mb_s));
    let each_write_ns = 4096.0 * 1000.0 / many_writes.mb_s.max(1e-9);
    let program_ns = (each_write_ns - 4096.0 * 1e6 / program_kb_s as f64).max(0.0);
    Drive {
        read_ns: (small.mean_us * 1000.0) as u64,
        lanes: (many.mb_s / small.mb_s.max(1e-9)).round().clamp(1.0, LANES_MAX) as u32,
        lane_kb_s,
        bus_kb_s,
        write_ns: (write.mean_us * 1000.0) as u64,
        program_kb_s,
        program_ns: program_ns as u64,
    }
}

#[cfg(test)]
mod tests {
    use ucrypt_backend::model::ModelBackend;

    use super::*;

    fn measured() -> Measured {
        Measured {
            cores: 2,
            threads_per_core: 1,
            cipher_ns_per_byte: 0.5,
            cipher_ns_per_call: 100,
            wake_call_ns: 1_000,
            wake_ns: 4_000,
            enqueue_ns: 300,
            carry_ps_per_byte: 50,
            engine: 2.0,
            drive: None,
        }
    }

    #[test]
    fn the_figures_of_a_machine_reach_the_simulator() {
        let of = Costs::default();
        let costs = measured().costs(of);
        assert_eq!((costs.wake, costs.wake_call, costs.enqueue), (4_000, 1_000, 300));
        assert_eq!((costs.round, costs.interrupt), (2 * of.round, of.interrupt));
        let said = measured().describe();
        for needed in ["2 cores", "0.500 ns a byte", "4000 ns more", "300 ns"] {
            assert!(said.contains(needed), "{needed}: {said}");
        }
    }

    #[test]
    fn a_drive_that_was_described_is_found_again() {
        let described = Drive {
            read_ns: 80_000,
            lanes: 8,
            lane_kb_s: 400_000,
            bus_kb_s: 2_000_000,
            write_ns: 20_000,
            program_kb_s: 900_000,
            program_ns: 3_000,
        };
        let profile = described.profile().expect("a drive");
        assert!(std::ptr::eq(profile, described.profile().expect("a drive")), "it is made once");
        // The simulator stands for the machine: what is fitted is the drive that made the figures.
        let (measured, sample) = (measured(), |wanted: Wanted| {
            let mb_s = simulated(&measured(), profile, wanted, true);
            let mean_us = f64::from(wanted.2) * wanted.1 as f64 / mb_s;
            Sample { mb_s, mean_us, ..Sample::default() }
        });
        let samples: Vec<_> = FITTED.map(sample).into();
        let [small, longer, many, long, write, many_writes, long_writes] = &samples[..] else {
            panic!("seven loads");
        };
        let mut found = first_guess(small, longer, many, long, write, many_writes, long_writes);
        found.read_ns = found.read_ns.min(80_000);
        found.write_ns = found.write_ns.min(20_000);
        for (wanted, real) in FITTED.into_iter().zip(&samples) {
            let again = simulated(&measured, found.profile().expect("a drive"), wanted, true);
            let error = again / real.mb_s - 1.0;
            assert!(error.abs() < 0.2, "{}: {error:+.2}, {found:?}", name(wanted));
        }
        assert!(Drive { lanes: 0, ..described }.profile().is_err());
        assert!(Drive { bus_kb_s: 0, ..described }.profile().is_err());
    }

    #[test]
    fn a_machine_and_its_drive_are_measured_and_checked() {
        let go = AtomicBool::new(false);
        let len = 64 << 20;
        let drive: Arc<dyn Backend> =
            Arc::new(ModelBackend::new("optane2020", len).expect("a model"));
        let found = calibrate(Some((&drive, len)), (&go, &|_| {})).expect("measured");
        let Calibrated { measured, checks } = found;
        assert!(measured.cores > 0 && measured.cipher_ns_per_byte > 0.0, "{measured:?}");
        assert!(measured.engine > 0.0 && measured.drive.is_some(), "{measured:?}");
        assert!(checks.len() == 4 + FITTED.len() + 4, "{checks:?}");
        for check in &checks {
            assert!(check.measured > 0.0 && check.simulated > 0.0, "{check:?}");
        }
        assert!(checks.iter().any(|check| !check.fitted));
        let stopped = calibrate(None, (&AtomicBool::new(true), &|_| {}));
        assert_eq!(stopped.expect_err("stopped").kind(), io::ErrorKind::Interrupted);
    }
}
