//! `lab advise`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use ucrypt_backend::{Backend, FileBackend, OpenOptions, Ring};
use ucrypt_engine::Policies;
use ucrypt_lab::advise::{Advice, Drive, Finding, Gain, LUKS2, Plan, Subject, advise};
use ucrypt_lab::analysis::Spread;
use ucrypt_lab::bench::Bench;
use ucrypt_lab::catalogue::Method;
use ucrypt_lab::held::Held;
use ucrypt_lab::ours::Way;
use ucrypt_lab::served::Left;
use ucrypt_lab::shell;
use ucrypt_lab::target::Target;
use ucrypt_luks::luks2::{KeyslotKind, SegmentKind};
use ucrypt_luks::{Error, Flag, Header, Kdf};
use ucrypt_sector::CipherSpec;

use super::run::failure as target_failure;
use crate::available;
use crate::background;
use crate::ending::signals;
use crate::failure::Failure;
use crate::luks::{HeaderImage, check_bits};
use crate::stdio::{self, say_line};
use crate::volume::policies_of;

/// Arguments of `lab advise`.
#[derive(Debug, clap::Args)]
pub(crate) struct AdviseArgs {
    /// The image or device of the volume; it may be open meanwhile
    #[arg(value_name = "IMAGE|DEVICE")]
    image: PathBuf,
    /// Where the LUKS header is, if not on the image
    #[arg(long, value_name = "FILE", conflicts_with = "cipher")]
    header: Option<PathBuf>,
    /// A plain volume: its cipher, mode and IV
    #[arg(short = 'c', long, value_name = "SPEC")]
    cipher: Option<String>,
    /// A plain volume: length of its key in bits [default: the longest that the cipher takes]
    #[arg(short = 's', long, value_name = "BITS", requires = "cipher")]
    key_size: Option<u32>,
    /// A plain volume: bytes that are encrypted as one [default: 512]
    #[arg(long, value_name = "BYTES", requires = "cipher")]
    sector_size: Option<u32>,
    /// A plain volume: where its data starts, in 512-byte sectors [default: 0]
    #[arg(short = 'o', long, value_name = "SECTORS", requires = "cipher")]
    offset: Option<u64>,
    /// Seconds that the measurements take, about
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    time: u64,
    /// Measure writes, too, on a scratch file of 256 MiB in this directory of the same drive, which is
    /// removed after it
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Bytes of the scratch file.
const SCRATCH_BYTES: u64 = 256 << 20;

pub(super) fn run(args: &AdviseArgs) -> Result<(), Failure> {
    let found = find(args)?;
    let scratch_target = args.scratch.as_deref().map(scratch_target).transpose()?;
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    signals(move |_| {
        asked.store(true, Ordering::Relaxed);
        true
    })?;
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let progress = |what: &str, done: u64, all: u64| {
        bar.set_length(all);
        bar.set_position(done);
        bar.set_message(what.to_owned());
    };
    let left = Left::default();
    let ended = measure(args, &found, scratch_target.as_ref(), (&stop, &left), &progress);
    bar.finish_and_clear();
    for what in left.take() {
        say_line(what);
    }
    let mut advice = ended?;
    if found.in_use {
        advice.not_measured.push(
            "the volume is in use: whatever its users read and write meanwhile is in these figures"
                .into(),
        );
    }
    if args.json {
        let json = serde_json::to_string_pretty(&advice).map_err(Failure::memory)?;
        return stdio::print_line(json);
    }
    stdio::print(&advice.text())
}

/// A volume, and the key derivations of its keyslots.
struct Found {
    subject: Subject,
    /// Where its header is.
    header: PathBuf,
    /// With the bytes that it derives for the keyslot.
    kdfs: BTreeMap<u32, (Kdf, u32)>,
    in_use: bool,
}

impl Found {
    /// The command that gives a keyslot another key derivation. LUKS1 has one kind of it, which changes
    /// with the passphrase only.
    fn new_derivation(&self, slot: u32, options: &str) -> String {
        let header = shell::path(&self.header);
        if self.subject.format == LUKS2 {
            format!("ucrypt luksConvertKey --key-slot {slot} {options}{header}")
        } else {
            format!(
                "ucrypt luksChangeKey --key-slot {slot} {options}{header} (the new passphrase may be the old \
                 one)"
            )
        }
    }

    /// What keeps a passphrase from being tried on every keyslot.
    fn fewer_trials(&self) -> String {
        let header = shell::path(&self.header);
        let first = "name the keyslot when opening (--key-slot)";
        let remove = format!("remove those that nobody uses (ucrypt luksKillSlot {header} N)");
        if self.subject.format == LUKS2 {
            let prefer = format!("ucrypt config --key-slot N --priority prefer {header}");
            format!("{first}, {remove}, or let one be tried first ({prefer})")
        } else {
            format!("{first}, or {remove}")
        }
    }
}

/// Looks at the volume. Nothing is written, and nobody is asked for a passphrase.
fn find(args: &AdviseArgs) -> Result<Found, Failure> {
    // Whether it is in use, only the lock tells.
    let look = OpenOptions { read_only: true, shared: true, ..OpenOptions::default() };
    let unlocked = OpenOptions { read_only: true, unlocked: true, ..OpenOptions::default() };
    let (file, in_use) = match FileBackend::open(&args.image, look) {
        Ok(file) => {
            let in_use = file.is_in_use();
            (file, in_use)
        }
        // It is only read: that it is attached or mounted does no harm.
        Err(error) if error.is_busy() => (FileBackend::open(&args.image, unlocked)?, true),
        Err(error) => return Err(error.into()),
    };
    let image = args.image.canonicalize().map_err(Failure::device)?;
    if let Some(cipher) = &args.cipher {
        let subject = plain(args, cipher, image)?;
        return Ok(Found { subject, header: args.image.clone(), kdfs: BTreeMap::new(), in_use });
    }
    let detached = args.header.as_deref().map(|header| FileBackend::open(header, unlocked));
    let detached = detached.transpose()?;
    let place = args.header.as_deref().unwrap_or(&args.image).display();
    let header = Header::read(&HeaderImage(detached.as_ref().unwrap_or(&file)));
    let (header, damage) = header.map_err(|error| match error {
        Error::NotLuks { .. } => Failure::wrong(format!(
            "{place} has no LUKS header; name the file with --header, or for a plain volume its --cipher \
             (and --key-size, --sector-size, --offset)"
        )),
        error => Failure::from(error).about(place),
    })?;
    if let Some(damage) = damage {
        say_line(format_args!("{damage}; using the other one"));
    }
    let subject = Subject { header: args.header.clone(), ..luks(&header, image)? };
    let place = args.header.as_ref().unwrap_or(&args.image).clone();
    Ok(Found { subject, header: place, kdfs: kdfs(&header), in_use })
}

fn plain(args: &AdviseArgs, cipher: &str, image: PathBuf) -> Result<Subject, Failure> {
    let cipher: CipherSpec = cipher.parse().map_err(Failure::wrong)?;
    let longest = cipher.key_sizes().iter().max().unwrap_or(0);
    let key_bytes = args.key_size.map_or(longest, |bits| bits as usize / 8);
    let sector_size = args.sector_size.unwrap_or(512);
    let offset = args.offset.unwrap_or(0).checked_mul(512);
    let offset = offset.ok_or_else(|| Failure::wrong("--offset is beyond every image"))?;
    args.key_size.map_or(Ok(()), |bits| check_bits("--key-size", bits as usize))?;
    check_sector_size(sector_size)?;
    if !cipher.key_sizes().contains(key_bytes) {
        let said = ucrypt_luks::wrong_size(&cipher, key_bytes as u32);
        return Err(Failure::wrong(format!("--key-size: {said}")));
    }
    Ok(Subject {
        image,
        header: None,
        format: "plain",
        cipher,
        key_bytes,
        sector_size,
        iv_large_sectors: false,
        offset,
        len: None,
        policies: Policies::default(),
    })
}

fn check_sector_size(bytes: u32) -> Result<(), Failure> {
    match bytes {
        512 | 1024 | 2048 | 4096 => Ok(()),
        _ => {
            Err(Failure::wrong(format!("sectors have 512, 1024, 2048 or 4096 bytes, not {bytes}")))
        }
    }
}

fn luks(header: &Header, image: PathBuf) -> Result<Subject, Failure> {
    match header {
        Header::Luks1(header) => {
            let parts = CipherSpec::from_parts(&header.cipher_name, &header.cipher_mode);
            Ok(Subject {
                image,
                header: None,
                format: "luks1",
                cipher: parts.map_err(Failure::wrong)?,
                key_bytes: header.key_bytes as usize,
                sector_size: 512,
                iv_large_sectors: false,
                offset: header.data_offset(),
                len: None,
                policies: Policies::default(),
            })
        }
        Header::Luks2(header) => {
            let metadata = &header.metadata;
            let mut parts = metadata.segments.iter().filter(|(_, it)| !it.is_backup());
            let (number, segment) =
                parts.next().ok_or_else(|| Failure::wrong("the header has no data segment"))?;
            let SegmentKind::Crypt { encryption, sector_size, integrity, .. } = &segment.kind
            else {
                let kind = segment.kind.name();
                return Err(Failure::wrong(format!(
                    "data segments of the type {kind} are unknown"
                )));
            };
            if let Some(integrity) = integrity {
                return Err(Failure::wrong(format!(
                    "the volume has integrity protection ({integrity}), which ucrypt does not open"
                )));
            }
            check_sector_size(*sector_size)?;
            let cipher: CipherSpec = encryption.parse().map_err(Failure::wrong)?;
            // The key of the segment is in the keyslots of its digest.
            let digest = metadata.digest_of_segment(*number);
            let slots = digest.map(|(_, digest)| digest.keyslots.as_slice()).unwrap_or_default();
            let key = slots.iter().find_map(|slot| metadata.keyslots.get(slot));
            let longest = cipher.key_sizes().iter().max().unwrap_or(0);
            let flags = metadata.config.flags.iter();
            let flags = flags.filter_map(|name| Flag::from_header_name(name)).collect();
            Ok(Subject {
                image,
                header: None,
                format: LUKS2,
                cipher,
                key_bytes: key.map_or(longest, |slot| slot.key_size as usize),
                sector_size: *sector_size,
                iv_large_sectors: false,
                offset: segment.offset,
                len: segment.size,
                policies: policies_of(&flags),
            })
        }
    }
}

/// The key derivations of the keyslots, by number.
fn kdfs(header: &Header) -> BTreeMap<u32, (Kdf, u32)> {
    match header {
        Header::Luks1(header) => {
            let of = |slot: u32| {
                let iterations = header.keyslots.get(slot as usize)?.iterations;
                let kdf = Kdf::Pbkdf2 { hash: header.hash.clone(), iterations };
                Some((slot, (kdf, header.key_bytes)))
            };
            header.active_keyslots().into_iter().filter_map(of).collect()
        }
        Header::Luks2(header) => {
            let slots = header.metadata.keyslots.iter();
            slots
                .filter_map(|(number, slot)| match &slot.kind {
                    KeyslotKind::Luks2 { kdf, area_key_size, .. } => {
                        Some((*number, (kdf.clone(), *area_key_size)))
                    }
                    KeyslotKind::Other(_) => None,
                })
                .collect()
        }
    }
}

fn scratch_target(dir: &Path) -> Result<Target, Failure> {
    if !dir.is_dir() {
        return Err(Failure::wrong(format!(
            "{} is no directory; --scratch takes one, in which a scratch file is made and removed",
            dir.display()
        )));
    }
    let dir = dir.canonicalize().map_err(Failure::device)?;
    let target = Target::Scratch(dir.join(format!("ucrypt-lab-{}.scratch", std::process::id())));
    target.check(SCRATCH_BYTES).map_err(target_failure)?;
    Ok(target)
}

fn measure(
    args: &AdviseArgs,
    found: &Found,
    target: Option<&Target>,
    (stop, left): (&AtomicBool, &Left),
    progress: &dyn Fn(&str, u64, u64),
) -> Result<Advice, Failure> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::Interrupted => Failure::wrong("interrupted"),
        _ => Failure::device(error),
    };
    // Its file goes when this does, whatever fails.
    let mut made = None;
    let mut scratch: Option<(Arc<dyn Backend>, u64)> = None;
    if let Some(target) = target {
        let held = Held::make(target, SCRATCH_BYTES).map_err(target_failure)?;
        let backend = held.open().map_err(target_failure)?;
        made = Some(held);
        progress("writes the scratch file", 0, 0);
        let bench = Bench::new(backend.clone(), SCRATCH_BYTES, Method::Load);
        bench.fill(stop, &|_, _| {}).map_err(failed)?;
        scratch = Some((backend, SCRATCH_BYTES));
    }
    let dir = tempfile::Builder::new().prefix("ucrypt-lab-").tempdir();
    let mut dir = dir.map_err(|error| {
        Failure::device(format!("cannot make a directory for sockets (TMPDIR): {error}"))
    })?;
    let (ways, lacking) = ways();
    let plan = Plan {
        time: Duration::from_secs(args.time),
        scratch,
        // The program that runs, even if its file was replaced meanwhile.
        ucrypt: Path::new("/proc/self/exe"),
        ways: &ways,
        dir: dir.path(),
        left,
        stop,
        progress,
    };
    let measured = advise(&found.subject, &plan).map_err(failed);
    if left.any() {
        // It holds the socket by which what is left can be closed.
        dir.disable_cleanup(true);
    }
    drop(made);
    let mut advice = measured?;
    advice.not_measured.extend(lacking);
    let scratch = args.scratch.as_deref().map(Drive::of);
    advice.not_measured.extend(scratch.and_then(|scratch| advice.drive.elsewhere(&scratch)));
    if let Err(error) = Ring::new(1) {
        advice.findings.push(Finding {
            id: "io-uring",
            what: format!("This system permits no io_uring ({error}): threads take its place."),
            change:
                "sysctl kernel.io_uring_disabled=0, or permit io_uring_setup in the seccomp profile"
                    .into(),
            gain: None,
        });
    }
    unlocking(found, &mut advice, stop, progress)?;
    advice.sort();
    Ok(advice)
}

/// The ways that this system has, the usual one first; and what the others lack.
fn ways() -> (Vec<Way>, Vec<String>) {
    let usual = background::usual_export();
    let (mut ways, mut lacking) = (Vec::new(), Vec::new());
    for (name, missing) in available::exports() {
        match (Way::by_name(name), missing) {
            (Some(way), None) if name == usual => ways.insert(0, way),
            (Some(way), None) => ways.push(way),
            (_, Some(why)) => lacking.push(format!("{name}: {why}")),
            (None, None) => {}
        }
    }
    (ways, lacking)
}

/// An unlock that takes longer than this is slow, in seconds.
const SLOW_S: f64 = 3.0;

/// One that takes less than this is cheap to guess, in seconds.
const CHEAP_S: f64 = 0.1;

/// What a new keyslot takes, in milliseconds.
const USUAL_MS: u32 = 2000;

/// How often a stop is looked for during a key derivation.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Most iterations that are carried out: a header may ask for years.
const ITERATIONS_MAX: u32 = 200_000;

/// Most passes of Argon2 that are carried out.
const PASSES_MAX: u32 = 4;

/// Longest key of a keyslot in bytes: a damaged header may name any.
const KEY_BYTES_MAX: u32 = 512;

/// How often a key derivation is measured, unless that takes longer than this.
const DERIVATIONS: u32 = 5;
const DERIVATIONS_LIMIT: Duration = Duration::from_secs(2);

/// Does `work` in a thread, because nothing ends a key derivation, which may take minutes. `None`: `stop` was set, and
/// the thread is left to the end of this process.
fn unless_stopped<T: Send + 'static>(
    stop: &AtomicBool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let worker = std::thread::spawn(work);
    while !worker.is_finished() {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        std::thread::park_timeout(LOOK_EVERY);
    }
    Some(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

/// What it costs to unlock the volume.
fn unlocking(
    found: &Found,
    advice: &mut Advice,
    stop: &AtomicBool,
    progress: &dyn Fn(&str, u64, u64),
) -> Result<(), Failure> {
    let mut slots = Vec::new();
    for (slot, (kdf, bytes)) in &found.kdfs {
        if stop.load(Ordering::Relaxed) {
            return Err(Failure::wrong("interrupted"));
        }
        progress(&format!("keyslot {slot}"), 0, 0);
        let (its, bytes) = (kdf.clone(), *bytes);
        let measured = unless_stopped(stop, move || derivation_s(&its, bytes));
        match measured.ok_or_else(|| Failure::wrong("interrupted"))? {
            Ok(seconds) => slots.push((*slot, seconds, kdf)),
            Err(why) => advice.not_measured.push(format!("unlocking by keyslot {slot}: {why}")),
        }
    }
    let kind = |kdf: &Kdf| kdf.name().to_owned();
    for (slot, seconds, kdf) in &slots {
        if *seconds > SLOW_S {
            advice.findings.push(Finding {
                id: "pbkdf",
                what: format!(
                    "Keyslot {slot} takes {seconds:.1} s to unlock here ({}), at each open.",
                    kind(kdf)
                ),
                change: format!(
                    "{}, on this machine, which aims at {} s: it also makes guessing as much cheaper",
                    found.new_derivation(*slot, &format!("--iter-time {USUAL_MS} ")),
                    USUAL_MS / 1000
                ),
                // Only a new keyslot would tell.
                gain: None,
            });
        } else if *seconds < CHEAP_S {
            advice.findings.push(Finding {
                id: "pbkdf-cheap",
                what: format!(
                    "Keyslot {slot} takes {:.0} ms to unlock ({}): nothing is lost, but a passphrase is \
                     cheap to guess.",
                    seconds * 1000.0,
                    kind(kdf)
                ),
                change: format!(
                    "unless the passphrase is a random key: {}",
                    found.new_derivation(*slot, "")
                ),
                gain: None,
            });
        } else {
            advice.fine.push(format!(
                "keyslot {slot} takes {seconds:.1} s to unlock ({}), which is usual",
                kind(kdf)
            ));
        }
    }
    let all: f64 = slots.iter().map(|(_, seconds, _)| seconds).sum();
    let each = slots.iter().map(|(_, seconds, _)| *seconds).fold(0.0, f64::max);
    if slots.len() > 1 && all > SLOW_S && all > 1.5 * each {
        let times = Spread::of([all / each.max(1e-9)]).unwrap_or_default();
        advice.findings.push(Finding {
            id: "keyslots",
            what: format!(
                "There are {} keyslots: the passphrase of the last one is tried on all before, {all:.1} s \
                 in all.",
                slots.len()
            ),
            change: found.fewer_trials(),
            gain: Some(Gain { load: "unlocking".into(), before: all, after: each, unit: "s", times }),
        });
    }
    Ok(())
}

/// Seconds in which a key derivation makes `bytes`. What would take long is measured at lower costs, from which it follows.
fn derivation_s(kdf: &Kdf, bytes: u32) -> Result<f64, String> {
    match kdf {
        Kdf::Pbkdf2 { hash, iterations } => {
            let fewer = (*iterations).min(ITERATIONS_MAX);
            let shorter = Kdf::Pbkdf2 { hash: hash.clone(), iterations: fewer };
            Ok(shortest_s(&shorter, bytes)? * f64::from(*iterations) / f64::from(fewer.max(1)))
        }
        Kdf::Argon2 { variant, time, memory_kib, lanes } => {
            let (variant, memory_kib, lanes) = (*variant, *memory_kib, *lanes);
            let of = |time| shortest_s(&Kdf::Argon2 { variant, time, memory_kib, lanes }, bytes);
            // The first pass is also the first to touch the memory.
            let first = of((*time).min(1))?;
            if *time < 2 {
                return Ok(first);
            }
            let few = (*time).min(PASSES_MAX);
            let longer = of(few)?;
            // Where a pass is lost in the noise, the mean of all.
            let each = (longer - first) / f64::from(few - 1);
            let each = if each > 0.0 { each } else { longer / f64::from(few) };
            Ok(longer + each * f64::from(*time - few))
        }
        Kdf::Unknown(name) => Err(format!("its key derivation, {name}, is unknown")),
    }
}

/// Seconds of a key derivation, the shortest of some: what else runs makes it longer, never shorter.
fn shortest_s(kdf: &Kdf, bytes: u32) -> Result<f64, String> {
    let (begun, mut shortest) = (Instant::now(), f64::INFINITY);
    let mut key = vec![0; bytes.min(KEY_BYTES_MAX) as usize];
    for _ in 0..DERIVATIONS {
        let started = Instant::now();
        // No secret is needed: another passphrase takes as long.
        let derived = kdf.derive(b"another passphrase", &[0x5a; 32], &mut key);
        derived.map_err(|error| error.to_string())?;
        shortest = shortest.min(started.elapsed().as_secs_f64());
        if begun.elapsed() > DERIVATIONS_LIMIT {
            break;
        }
    }
    Ok(shortest)
}

#[cfg(test)]
mod tests {
    use ucrypt_luks::Argon2Variant;

    use super::*;

    /// A volume without keyslots.
    fn of(format: &'static str) -> Found {
        let subject = Subject {
            image: "/my disk.img".into(),
            header: None,
            format,
            cipher: "aes-xts-plain64".parse().expect("a cipher"),
            key_bytes: 64,
            sector_size: 512,
            iv_large_sectors: false,
            offset: 0,
            len: None,
            policies: Policies::default(),
        };
        Found { subject, header: "my disk.img".into(), kdfs: BTreeMap::new(), in_use: false }
    }

    #[test]
    fn commands_about_keyslots_are_those_of_the_format_and_can_be_pasted() {
        let (old, new) = (of("luks1"), of(LUKS2));
        let said = |found: &Found| {
            format!("{}; {}", found.new_derivation(3, "--iter-time 2000 "), found.fewer_trials())
        };
        assert!(said(&old).contains("luksChangeKey --key-slot 3 --iter-time 2000 'my disk.img'"));
        assert!(!said(&old).contains("luksConvertKey") && !said(&old).contains("--priority"));
        assert!(said(&new).contains("luksConvertKey --key-slot 3 --iter-time 2000 'my disk.img'"));
        assert!(said(&new).contains("--priority prefer 'my disk.img'"));
    }

    #[test]
    fn a_stop_does_not_wait_for_a_key_derivation() {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let stop = AtomicBool::new(true);
        // It goes on until this test has ended.
        assert_eq!(unless_stopped(&stop, move || held.recv().is_ok()), None);
        drop(hold);
        assert_eq!(unless_stopped(&AtomicBool::new(false), || 7), Some(7));
    }

    #[test]
    fn what_a_new_key_derivation_gains_is_not_claimed() {
        let mut found = of("luks1");
        let slow = Kdf::Pbkdf2 { hash: "sha256".into(), iterations: u32::MAX };
        found.kdfs.insert(3, (slow, 64));
        let mut advice = Advice::default();
        let done = unlocking(&found, &mut advice, &AtomicBool::new(false), &|_, _, _| {});
        assert!(done.is_ok() && advice.findings.len() == 1, "{:?}", advice.findings);
        let finding = &advice.findings[0];
        assert_eq!((finding.id, &finding.gain), ("pbkdf", &None));
        assert!(finding.change.contains("aims at 2 s"), "{}", finding.change);
        assert!(advice.text().contains("gain:   not measured"), "{}", advice.text());
    }

    #[test]
    fn a_key_derivation_that_takes_years_is_told_in_a_moment() {
        let started = Instant::now();
        let years = Kdf::Pbkdf2 { hash: "sha256".into(), iterations: u32::MAX };
        assert!(derivation_s(&years, 64).is_ok_and(|seconds| seconds > 100.0));
        let variant = Argon2Variant::Id;
        let years = Kdf::Argon2 { variant, time: u32::MAX, memory_kib: 1024, lanes: 1 };
        assert!(derivation_s(&years, 64).is_ok_and(|seconds| seconds > 1000.0));
        assert!(
            derivation_s(&Kdf::Unknown("scrypt".into()), 64).is_err_and(|it| it.contains("scrypt"))
        );
        let nothing = Kdf::Pbkdf2 { hash: "sha256".into(), iterations: 0 };
        assert!(derivation_s(&nothing, 64).is_err());
        assert!(started.elapsed() < Duration::from_secs(60));
    }
}
