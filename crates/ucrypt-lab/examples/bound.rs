//! `bound [DEVICE]`: the fastest possible encrypted reads at depth 1, over all ways to split them.
//!
//! For each length, every split of a request into blocks of the device is tried. The engine costs
//! nothing here: all chunks are submitted at once, and each is decrypted as soon as it has arrived
//! and a core is free. Next to the bound stands what `adaptive` reaches in the simulator, with the
//! engine's costs.
//!
//! Each further chunk adds a command, and a command occupies the bus besides its data. A second
//! table shows how fast reads could be if commands occupied it for a shorter time, and data for as
//! much longer that long reads stay as fast as they are.

use std::process::ExitCode;

use ucrypt_backend::model::{Device, DeviceOp, FlashProfile, Kind, Media, Profile, Rate};
use ucrypt_engine::{CipherModel, Fixed, PolicyKind};
use ucrypt_lab::world::Costs;
use ucrypt_lab::{Experiment, Job, Pattern};

/// The cipher of 2017: 1.1 GB/s.
const CIPHER: CipherModel = CipherModel { ns_per_byte: 1.0 / 1.1, ns_per_call: 0 };
const UNIT: u64 = 4096;
/// Longer requests have too many splits.
const UNITS_MAX: u32 = 16;
const REQUESTS: u64 = 100;

/// Mean time of a request split at the set bits of `cuts`: after unit 1, 2, …
fn time_ns(profile: &Profile, units: u32, cuts: u32, cipher: Option<(CipherModel, bool)>) -> f64 {
    let mut device = Device::new(profile, 1);
    let mut now = 0;
    let mut arrived = Vec::new();
    for request in 0..REQUESTS {
        let at = request * u64::from(units) * UNIT;
        let mut from = 0;
        arrived.clear();
        for unit in 1..=units {
            if unit == units || cuts >> (unit - 1) & 1 == 1 {
                let (offset, len) = (at + u64::from(from) * UNIT, u64::from(unit - from) * UNIT);
                let op = DeviceOp { kind: Kind::Read, offset, len };
                arrived.push((device.submit(now, op).expect("a read is not refused"), len));
                from = unit;
            }
        }
        now = ended(&mut arrived, cipher);
    }
    now as f64 / REQUESTS as f64
}

/// When all arrived chunks are decrypted: by one core, or by one core for each chunk.
fn ended(arrived: &mut [(u64, u64)], cipher: Option<(CipherModel, bool)>) -> u64 {
    arrived.sort_unstable();
    let mut end = 0;
    for &(at, len) in arrived.iter() {
        #[expect(clippy::cast_sign_loss, reason = "a rate is positive")]
        let crypt = |cipher: CipherModel| (len as f64 * cipher.ns_per_byte) as u64;
        end = match cipher {
            None => end.max(at),
            Some((cipher, true)) => end.max(at) + crypt(cipher),
            Some((cipher, false)) => end.max(at + crypt(cipher)),
        };
    }
    end
}

/// The best split, as lengths in units, and its time.
fn best(profile: &Profile, units: u32, one_core: bool) -> (String, f64) {
    let times = (0..1u32 << (units - 1))
        .map(|cuts| (cuts, time_ns(profile, units, cuts, Some((CIPHER, one_core)))));
    let (cuts, time) = times.min_by(|a, b| a.1.total_cmp(&b.1)).expect("whole is one way");
    let mut from = 0;
    let mut lengths = Vec::new();
    for unit in 1..=units {
        if unit == units || cuts >> (unit - 1) & 1 == 1 {
            lengths.push((u64::from(unit - from) * UNIT / 1024).to_string());
            from = unit;
        }
    }
    (lengths.join("+"), time)
}

/// Throughput in the simulator, in MB/s.
fn simulated(device: &'static Profile, bytes: u64, cipher: CipherModel, policy: PolicyKind) -> f64 {
    let job = Job {
        pattern: Pattern::Read,
        block_bytes: bytes,
        depth: 1,
        requests: 1000,
        region_bytes: 64 << 30,
    };
    let experiment = Experiment::new(2, device, job, policy);
    Experiment { cipher, costs: Costs::MODEL, ..experiment }.run().mb_s
}

fn table(profile: &'static Profile) {
    println!("| read | whole | best, one core | cut into KiB | best, cores enough | adaptive |");
    println!("|---|---:|---:|---|---:|---:|");
    for shift in 0..=UNITS_MAX.ilog2() {
        let units = 1 << shift;
        let raw = time_ns(profile, units, 0, None);
        let whole = raw / time_ns(profile, units, 0, Some((CIPHER, true)));
        let (cut, one) = best(profile, units, true);
        let (_, many) = best(profile, units, false);
        let bytes = u64::from(units) * UNIT;
        let none = CipherModel { ns_per_byte: 0.0, ns_per_call: 0 };
        let simulated_raw = simulated(profile, bytes, none, Fixed::Inline.into());
        let adaptive = simulated(profile, bytes, CIPHER, PolicyKind::Adaptive) / simulated_raw;
        println!(
            "| {} KiB | {whole:.3} | {:.3} | {cut} | {:.3} | {adaptive:.3} |",
            u64::from(units) * UNIT / 1024,
            raw / one,
            raw / many,
        );
    }
}

/// The same device, with commands that occupy the bus for `command_ns` besides their data.
fn with_command_ns(profile: &Profile, flash: &FlashProfile, command_ns: u64) -> Profile {
    let longest_ns = flash.command_ns + flash.bus.time_ns(flash.command_max);
    let data_ns = longest_ns.saturating_sub(command_ns).max(1);
    let bus = Rate::kb_s(flash.command_max * 1_000_000 / data_ns);
    let media = Media::Flash(FlashProfile { command_ns, bus, ..flash.clone() });
    Profile { media, ..profile.clone() }
}

fn holds(profile: &Profile) {
    let Media::Flash(flash) = &profile.media else { return };
    if flash.command_ns == 0 {
        return;
    }
    let profiles = [3, 2, 1, 0].map(|thirds| {
        let command_ns = flash.command_ns * thirds / 3;
        (command_ns as f64 / 1e3, with_command_ns(profile, flash, command_ns))
    });
    println!("\nBest, one core, if a command holds the bus for so many us:\n");
    print!("| read |");
    for (us, _) in &profiles {
        print!(" {us:.2} |");
    }
    println!("\n|---|---:|---:|---:|---:|");
    for shift in 1..=UNITS_MAX.ilog2() {
        let units = 1 << shift;
        print!("| {} KiB |", u64::from(units) * UNIT / 1024);
        for (_, profile) in &profiles {
            print!(" {:.3} |", time_ns(profile, units, 0, None) / best(profile, units, true).1);
        }
        println!();
    }
}

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_else(|| "sata2017".into());
    let Some(profile) = Profile::by_name(&name) else {
        eprintln!("bound: no device model is called '{name}'");
        return ExitCode::FAILURE;
    };
    println!("Encrypted over raw, {name}:\n");
    table(profile);
    holds(profile);
    ExitCode::SUCCESS
}
