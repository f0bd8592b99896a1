//! Measures a volume and its alternatives, in interleaved rounds.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ucrypt_backend::{Backend, FileBackend, OpenOptions};
use ucrypt_engine::{Policies, PolicyKind, Segment, Volume, VolumeOptions};
use ucrypt_sector::{CipherSpec, SectorCipher, SectorOptions};

use super::{Advice, Drive, Finding, GAIN_MIN, Gain, Line, WayLine};
use crate::Pattern;
use crate::analysis::Spread;
use crate::catalogue::Cell;
use crate::load::{self, INTERRUPTED, Load, Place, Times};
use crate::ours::Way;
use crate::sample::{Own, Sample, Watch};
use crate::served::{Exported, Left};
use crate::shell;

/// The format whose volumes can be changed in place.
pub const LUKS2: &str = "luks2";

/// A volume without a header.
const PLAIN: &str = "plain";

/// A volume, as its header or the user describes it.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The image.
    pub image: PathBuf,
    /// Where its header is, if not on the image.
    pub header: Option<PathBuf>,
    /// What it is: `luks1`, [`LUKS2`] or `plain`.
    pub format: &'static str,
    /// Cipher, mode and IV.
    pub cipher: CipherSpec,
    /// Bytes of the volume key.
    pub key_bytes: usize,
    /// Bytes that are encrypted as one.
    pub sector_size: u32,
    /// Whether IVs count these instead of units of 512 bytes.
    pub iv_large_sectors: bool,
    /// First byte of the data.
    pub offset: u64,
    /// Bytes of the data; to the end of the image if not given.
    pub len: Option<u64>,
    /// How the volume's own flags dispatch requests.
    pub policies: Policies,
}

/// How a volume is measured.
pub struct Plan<'a> {
    /// How long all measurements take together, about.
    pub time: Duration,
    /// A scratch file for writes, of this many bytes, already written.
    pub scratch: Option<(Arc<dyn Backend>, u64)>,
    /// The command `ucrypt`, which serves the volume on its ways.
    pub ucrypt: &'a Path,
    /// The ways that this system has, the usual one first.
    pub ways: &'a [Way],
    /// A directory for sockets and files of the ways; removed by the caller.
    pub dir: &'a Path,
    /// Gets what cannot be ended.
    pub left: &'a Left,
    /// Set when it is to end.
    pub stop: &'a AtomicBool,
    /// Is told before each measurement: what, how many were made, and all.
    pub progress: &'a dyn Fn(&str, u64, u64),
}

/// Interleaved rounds. Fewer give no quartiles worth the name.
const ROUNDS: u32 = 5;

/// The least volume that is measured: long reads in flight need some room.
const LEN_MIN: u64 = 16 << 20;

/// Requests that are in flight in the deepest loads.
const DEPTH: u32 = 32;

/// The least and the longest measurement.
const TIME_MIN: Duration = Duration::from_millis(15);
const TIME_MAX: Duration = Duration::from_secs(2);

/// How much faster a cipher must be in memory to be measured on the drive.
const FASTER: f64 = 1.2;

/// How many times as fast several clients have to be: a fair share of them are.
const CLIENTS_GAIN_MIN: f64 = 1.15;

/// Ciphers that are good on some machines: name, and bytes of the key.
const CIPHERS: [(&str, usize); 2] =
    [("aes-xts-plain64", 64), ("xchacha20,aes-adiantum-plain64", 32)];

/// Whose figures a measurement is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Drive,
    WithoutCipher,
    Volume,
    /// An alternative, by its index.
    Other(usize),
    /// The volume on a way, by its index.
    On(usize),
}

/// A change that can be measured.
struct Other {
    id: &'static str,
    what: String,
    change: String,
    shape: Shape,
}

/// How the engine encrypts.
#[derive(Debug, Clone)]
struct Shape {
    cipher: CipherSpec,
    key_bytes: usize,
    sector_size: u32,
    iv_large_sectors: bool,
    offset: u64,
    policies: Policies,
}

impl Shape {
    fn of(subject: &Subject) -> Self {
        Self {
            cipher: subject.cipher.clone(),
            key_bytes: subject.key_bytes,
            sector_size: subject.sector_size,
            iv_large_sectors: subject.iv_large_sectors,
            offset: subject.offset,
            policies: subject.policies,
        }
    }

    /// A cipher of this shape, under a key that is thrown away.
    fn sector_cipher(&self) -> io::Result<SectorCipher> {
        let key: Vec<u8> = (0..self.key_bytes).map(|at| (at * 37 + 11) as u8).collect();
        let iv_large_sectors = self.iv_large_sectors;
        let options =
            SectorOptions { sector_size: self.sector_size, iv_offset: 0, iv_large_sectors };
        SectorCipher::new(&self.cipher, &key, options).map_err(io::Error::other)
    }

    /// The volume over `len` bytes of data.
    fn volume(&self, over: &Arc<dyn Backend>, len: u64, read_only: bool) -> io::Result<Volume> {
        let len = len / u64::from(self.sector_size) * u64::from(self.sector_size);
        let cipher = Some(self.sector_cipher()?);
        let segment = Segment { len, backend_offset: self.offset, cipher };
        let options =
            VolumeOptions { policies: self.policies, read_only, ..VolumeOptions::default() };
        Volume::new(over.clone(), vec![segment], options).map_err(io::Error::other)
    }

    /// MB/s of one core in memory: the fastest of some calls.
    fn speed(&self) -> io::Result<f64> {
        const BYTES: usize = 64 << 10;
        const CALLS: u32 = 40;
        let cipher = self.sector_cipher()?;
        let mut data = vec![0x5a; BYTES];
        let mut fastest = f64::INFINITY;
        for _ in 0..CALLS {
            let started = Instant::now();
            cipher.decrypt_in_place(0, &mut data).map_err(io::Error::other)?;
            fastest = fastest.min(started.elapsed().as_secs_f64());
        }
        Ok(BYTES as f64 / 1e6 / fastest.max(1e-9))
    }
}

/// Where a load runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    Image,
    Scratch,
}

/// A load with its name.
struct Named {
    name: String,
    cell: Cell,
    on: Where,
}

fn named(name: &str, pattern: Pattern, block_bytes: u64, depth: u32, jobs: u32) -> Named {
    let (name, published) = (name.to_owned(), Vec::new());
    let cell = Cell { name: name.clone(), pattern, block_bytes, depth, jobs, published };
    let reads = matches!(pattern, Pattern::Read | Pattern::RandRead);
    Named { name, cell, on: if reads { Where::Image } else { Where::Scratch } }
}

fn loads(clients: u32, scratch: bool) -> Vec<Named> {
    let mut all = vec![
        named("reads of 4 KiB, one at a time", Pattern::RandRead, 4096, 1, 1),
        named("reads of 4 KiB, 32 at a time", Pattern::RandRead, 4096, DEPTH, 1),
        named("reads of 1 MiB, one at a time", Pattern::Read, 1 << 20, 1, 1),
        named("reads of 1 MiB, 8 at a time", Pattern::Read, 1 << 20, 8, 1),
    ];
    if clients > 1 {
        let name = format!("reads of 4 KiB, 32 at a time × {clients} clients");
        all.push(named(&name, Pattern::RandRead, 4096, DEPTH, clients));
    }
    if scratch {
        all.push(named("writes of 4 KiB, 32 at a time", Pattern::RandWrite, 4096, DEPTH, 1));
        all.push(named("writes of 1 MiB, 8 at a time", Pattern::Write, 1 << 20, 8, 1));
    }
    all
}

/// The loads that show a way: the first two and the one of long reads.
const OF_WAYS: [usize; 3] = [0, 1, 3];

/// Rounds of the ways where one server runs at a time.
const ALONE_ROUNDS: u32 = 3;

/// Rounds without which nothing is concluded: of fewer, quartiles tell nothing.
const ENOUGH: usize = ALONE_ROUNDS as usize;

/// Where several clients load the volume, and where one does.
const CLIENTS: usize = 4;
const ONE_CLIENT: usize = 1;

/// Figures by load and by whose they are, in the order of the rounds.
type Figures = BTreeMap<(usize, Who), Vec<Sample>>;

/// Measures a volume, and says what to change.
///
/// # Errors
/// If the image cannot be opened or is too small, its cipher is unknown, a request fails, or the stop is
/// set.
pub fn advise(subject: &Subject, plan: &Plan<'_>) -> io::Result<Advice> {
    let options =
        OpenOptions { read_only: true, direct: true, unlocked: true, ..OpenOptions::default() };
    let file = FileBackend::open(&subject.image, options).map_err(io::Error::other)?;
    let image: Arc<dyn Backend> = Arc::new(file);
    let limits = image.limits().clone();
    let there = limits.len.saturating_sub(subject.offset);
    let len = subject.len.map_or(there, |len| len.min(there)) / 4096 * 4096;
    if len < LEN_MIN {
        return Err(io::Error::other(format!(
            "the volume has {len} bytes of data; less than {LEN_MIN} cannot be measured"
        )));
    }
    let drive = Drive {
        direct: !limits.copies,
        in_memory: limits.synchronous,
        ..Drive::of(&subject.image)
    };
    let mut advice = Advice { volume: describe(subject, len), drive, ..Advice::default() };
    let others = alternatives(subject, &mut advice)?;
    let mut exports = Exports::new(subject, len, plan, &mut advice)?;
    let clients = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let loads = loads(clients, plan.scratch.is_some());
    let places = Places::new((subject, &others), (&image, len), plan)?;
    let figures = measure(&loads, &places, &mut exports, (&others, plan))?;
    for (way, why) in &exports.failed {
        advice.not_measured.push(format!("{}: {why}", exports.ways[*way].name()));
    }
    let usual = plan.ways.first().copied();
    conclude(&mut advice, (&loads, &figures), &others, (&exports.ways, usual));
    if plan.scratch.is_none() {
        advice.not_measured.push(
            "writes: nothing is written to the volume; --scratch DIR measures them on a scratch file in \
             a directory of the same drive"
                .into(),
        );
    }
    Ok(advice)
}

fn describe(subject: &Subject, len: u64) -> String {
    let Subject { image, format, cipher, key_bytes, sector_size, .. } = subject;
    let flags = if subject.policies == Policies::default() {
        String::new()
    } else {
        format!(", dispatched {} by its flags", subject.policies)
    };
    format!(
        "{}: {format}, {cipher}, {} bits, sectors of {sector_size} bytes, {:.1} GiB{flags}",
        image.display(),
        key_bytes * 8,
        len as f64 / f64::from(1 << 30)
    )
}

/// What might be changed; what need not be is noted.
fn alternatives(subject: &Subject, advice: &mut Advice) -> io::Result<Vec<Other>> {
    let now = Shape::of(subject);
    let mut others = Vec::new();
    let block = advice.drive.physical_block.unwrap_or(4096).max(512);
    let aligned = subject.offset.next_multiple_of(4096);
    if subject.sector_size < 4096 {
        let drive = match advice.drive.physical_block {
            Some(4096) => ", and the drive has blocks of 4096",
            _ => "",
        };
        others.push(Other {
            id: "sector-size",
            what: format!(
                "The volume has sectors of {} bytes{drive}: the cipher begins anew {} times as often as \
                 with 4096.",
                subject.sector_size,
                4096 / subject.sector_size.max(1)
            ),
            change: anew(subject, "--sector-size 4096"),
            shape: Shape { sector_size: 4096, offset: aligned, ..now.clone() },
        });
    } else {
        advice.fine.push("sectors of 4096 bytes are the best there are".into());
    }
    if subject.offset.is_multiple_of(u64::from(block)) {
        advice.fine.push("the data begins at a block of the drive".into());
    } else {
        others.push(Other {
            id: "alignment",
            what: format!(
                "The data begins at byte {}, inside a block of the drive ({block} bytes): every request \
                 touches one block more.",
                subject.offset
            ),
            change: if subject.format == PLAIN {
                "copy the data to a partition that begins at a multiple of 1 MiB, opened with an --offset \
                 that is a multiple of 8"
            } else {
                "make the volume anew with luksFormat, which aligns the data, on a partition that begins \
                 at a multiple of 1 MiB, and copy"
            }
            .into(),
            shape: Shape { offset: aligned, ..now.clone() },
        });
    }
    if subject.policies == Policies::default() {
        advice.fine.push("requests are dispatched as measured (adaptive)".into());
    } else {
        others.push(Other {
            id: "dispatch",
            what: format!(
                "Flags of the volume fix how requests are dispatched: {}.",
                subject.policies
            ),
            change: if subject.format == LUKS2 {
                "open it with --dispatch adaptive, or store other flags: open --persistent without \
                     --perf options"
            } else {
                "open it with --dispatch adaptive"
            }
            .into(),
            shape: Shape { policies: PolicyKind::Adaptive.into(), ..now.clone() },
        });
    }
    others.extend(faster_cipher(subject, &now, advice)?);
    Ok(others)
}

/// How a volume gets another cipher or sector size. In place, that is cryptsetup's work, and only LUKS2
/// has the fields for it; the options of a plain volume are all that says how it is encrypted.
fn anew(subject: &Subject, options: &str) -> String {
    let image = shell::path(&subject.image);
    let header = subject.header.as_deref();
    let header = header.map_or_else(String::new, |path| format!("--header {} ", shell::path(path)));
    match subject.format {
        LUKS2 => format!(
            "make the volume anew (ucrypt luksFormat {options} {header}{image}, which loses the data) and \
             copy it back, or let cryptsetup do it in place, after a backup: cryptsetup reencrypt \
             {options} {header}{image}"
        ),
        PLAIN => format!(
            "copy the data elsewhere, open the volume with {options} from then on, and copy the data back: \
             with other options it reads as noise"
        ),
        _ => format!(
            "copy the data elsewhere, make the volume anew (ucrypt luksFormat --type luks2 {options} \
             {header}{image}, which loses the data), and copy it back"
        ),
    }
}

/// A cipher that is faster than the present one in memory.
fn faster_cipher(subject: &Subject, now: &Shape, advice: &mut Advice) -> io::Result<Option<Other>> {
    let speed = now.speed()?;
    let mut best: Option<(Shape, f64)> = None;
    for (name, key_bytes) in CIPHERS {
        let cipher: CipherSpec = name.parse().map_err(io::Error::other)?;
        let shape = Shape { cipher, key_bytes, ..now.clone() };
        let its = shape.speed()?;
        if best.as_ref().is_none_or(|(_, fastest)| its > *fastest) {
            best = Some((shape, its));
        }
    }
    let Some((shape, fastest)) = best.filter(|(_, fastest)| *fastest > FASTER * speed) else {
        advice.fine.push(format!(
            "{} decrypts {speed:.0} MB/s on one core: no other cipher is much faster here",
            now.cipher
        ));
        return Ok(None);
    };
    Ok(Some(Other {
        id: "cipher",
        what: format!(
            "{} decrypts {speed:.0} MB/s on one core here, {} would decrypt {fastest:.0} MB/s.",
            now.cipher, shape.cipher
        ),
        change: anew(
            subject,
            &format!("--cipher {} --key-size {}", shape.cipher, shape.key_bytes * 8),
        ),
        shape,
    }))
}

/// The volume on its ways.
struct Exports<'a> {
    plan: &'a Plan<'a>,
    image: &'a Path,
    /// The options that describe the volume.
    words: Vec<String>,
    len: u64,
    ways: Vec<Way>,
    /// One server at a time: the kernel gives a block device to nobody else.
    alone: bool,
    /// The servers that run, by the index of their way. Those that are not asked do nothing.
    running: BTreeMap<usize, Exported>,
    /// By the index of a way: why it is asked no more.
    failed: BTreeMap<usize, String>,
}

impl<'a> Exports<'a> {
    /// Serves the volume on each way. What cannot be served is noted.
    fn new(
        subject: &'a Subject,
        len: u64,
        plan: &'a Plan<'a>,
        advice: &mut Advice,
    ) -> io::Result<Self> {
        let key = plan.dir.join("key");
        let bytes: Vec<u8> = (0..subject.key_bytes).map(|at| (at * 37 + 11) as u8).collect();
        std::fs::write(&key, bytes)?;
        let mut words: Vec<String> =
            ["--type", "plain", "--readonly", "--direct", "-q"].map(Into::into).into();
        for (option, value) in [
            ("--cipher", subject.cipher.to_string()),
            ("--key-size", (subject.key_bytes * 8).to_string()),
            ("--sector-size", subject.sector_size.to_string()),
            ("--offset", (subject.offset / 512).to_string()),
            ("--size", (len / 512).to_string()),
            ("--volume-key-file", key.display().to_string()),
        ] {
            words.extend([option.to_owned(), value]);
        }
        if subject.iv_large_sectors {
            words.push("--iv-large-sectors".into());
        }
        let found = std::fs::metadata(&subject.image)?;
        let mut exports = Self {
            plan,
            image: &subject.image,
            words,
            len,
            ways: plan.ways.to_vec(),
            alone: found.file_type().is_block_device(),
            running: BTreeMap::new(),
            failed: BTreeMap::new(),
        };
        let mut index = 0;
        while let Some(way) = exports.ways.get(index) {
            let name = way.name();
            (plan.progress)(&format!("serves it by {name}"), 0, 0);
            match exports.start(index) {
                Ok(()) => index += 1,
                Err(error) if load::is_stopped(&error, plan.stop) => return Err(error),
                Err(error) => {
                    advice.not_measured.push(format!("{name}: {error}"));
                    exports.ways.remove(index);
                }
            }
        }
        Ok(exports)
    }

    fn start(&mut self, index: usize) -> io::Result<()> {
        if self.running.contains_key(&index) {
            return Ok(());
        }
        if self.alone {
            self.running.clear();
        }
        let plan = self.plan;
        // In the name of a device.
        let dir = tempfile::Builder::new().prefix("ucrypt-lab-").tempdir_in(plan.dir)?.keep();
        let volume = (self.image, self.words.as_slice(), self.len);
        let way = (plan.ucrypt, self.ways[index]);
        let served = Exported::start(way, volume, (&dir, plan.left), plan.stop)?;
        self.running.insert(index, served);
        Ok(())
    }

    /// Measures a load on a way; `None`: it is asked no more.
    fn run(&mut self, index: usize, load: Load<'_>) -> io::Result<Option<Sample>> {
        if self.failed.contains_key(&index) {
            return Ok(None);
        }
        let ran = self.start(index).and_then(|()| self.running[&index].run(load, self.plan.stop));
        match ran {
            Ok(sample) => Ok(Some(sample)),
            Err(error) if load::is_stopped(&error, self.plan.stop) => Err(error),
            Err(error) => {
                self.failed.insert(index, error.to_string());
                self.running.remove(&index);
                Ok(None)
            }
        }
    }
}

/// What loads run against, in this process.
struct Places {
    image: BTreeMap<Who, Place>,
    image_len: u64,
    scratch: BTreeMap<Who, Place>,
    scratch_len: u64,
}

impl Places {
    fn new(
        (subject, others): (&Subject, &[Other]),
        (image, len): (&Arc<dyn Backend>, u64),
        plan: &Plan<'_>,
    ) -> io::Result<Self> {
        let null: CipherSpec = "cipher_null-ecb".parse().map_err(io::Error::other)?;
        let now = Shape::of(subject);
        let of = |over: &Arc<dyn Backend>, len, read_only, offset: &dyn Fn(u64) -> u64| {
            let engine = |shape: &Shape| {
                let offset = offset(shape.offset);
                let len = len - (offset - offset.min(now.offset)).min(len);
                let shape = Shape { offset, ..shape.clone() };
                Ok::<_, io::Error>(Place::Engine(Arc::new(shape.volume(over, len, read_only)?)))
            };
            let without = Shape { cipher: null.clone(), key_bytes: 0, ..now.clone() };
            let mut places = BTreeMap::from([
                (Who::Drive, Place::Raw(over.clone())),
                (Who::WithoutCipher, engine(&without)?),
                (Who::Volume, engine(&now)?),
            ]);
            for (at, other) in others.iter().enumerate() {
                places.insert(Who::Other(at), engine(&other.shape)?);
            }
            Ok::<_, io::Error>(places)
        };
        let (scratch, scratch_len) = match &plan.scratch {
            // What is in the image's head is not in the scratch file: only where it lies in a block.
            Some((scratch, len)) => {
                (of(scratch, *len - 4096, false, &|offset| offset % 4096)?, *len)
            }
            None => (BTreeMap::new(), 0),
        };
        let image = of(image, len, true, &|offset| offset)?;
        // All but what an alternative that begins later leaves out.
        Ok(Self {
            image,
            image_len: len - 4096,
            scratch,
            scratch_len: scratch_len.saturating_sub(8192),
        })
    }

    /// Whose figures a load has, and where it runs.
    fn of(&self, on: Where) -> (&BTreeMap<Who, Place>, u64) {
        match on {
            Where::Image => (&self.image, self.image_len),
            Where::Scratch => (&self.scratch, self.scratch_len),
        }
    }
}

/// Measures all loads.
fn measure(
    loads: &[Named],
    places: &Places,
    exports: &mut Exports<'_>,
    (others, plan): (&[Other], &Plan<'_>),
) -> io::Result<Figures> {
    let mut steps = Vec::new();
    // Where each measurement starts a server, fewer are made.
    let of_ways: &[usize] = if exports.alone { &OF_WAYS[..1] } else { &OF_WAYS };
    for (at, load) in loads.iter().enumerate() {
        let mut whose = vec![Who::Drive, Who::WithoutCipher, Who::Volume];
        if at == CLIENTS && load.cell.jobs > 1 {
            whose.remove(1);
        } else {
            whose.extend((0..others.len()).map(Who::Other));
        }
        if of_ways.contains(&at) {
            whose.extend((0..exports.ways.len()).map(Who::On));
        }
        steps.push(whose);
    }
    let count: usize = steps.iter().map(Vec::len).sum();
    let total = count as u64 * u64::from(ROUNDS);
    let each = plan.time.mul_f64(0.8 / (total as f64 * 1.25)).clamp(TIME_MIN, TIME_MAX);
    let times = Times { ramp: each / 4, measured: each };
    let mut figures = Figures::new();
    let mut done = 0;
    for round in 0..ROUNDS {
        for (at, load) in loads.iter().enumerate() {
            let whose = &steps[at];
            for turn in 0..whose.len() {
                let who = whose[(turn + round as usize) % whose.len()];
                if plan.stop.load(Ordering::Relaxed) {
                    return Err(io::Error::new(io::ErrorKind::Interrupted, INTERRUPTED));
                }
                (plan.progress)(&load.name, done, total);
                done += 1;
                let (engine, len) = places.of(load.on);
                let region_bytes = len / load.cell.block_bytes * load.cell.block_bytes;
                let seed = u64::from(round) + 1;
                let cell = &load.cell;
                let load = Load { cell, region_bytes, times, slices: false, seed, requests: None };
                let sample = match who {
                    Who::On(_) if exports.alone && round >= ALONE_ROUNDS => continue,
                    Who::On(way) => match exports.run(way, load)? {
                        Some(sample) => sample,
                        None => continue,
                    },
                    _ => {
                        let place = engine
                            .get(&who)
                            .ok_or_else(|| io::Error::other("nothing to measure"))?;
                        let watch = Watch::start(Own::default());
                        let sample = load::run(place, load, plan.stop)?;
                        Sample { disturbance: watch.end(), ..sample }
                    }
                };
                figures.entry((at, who)).or_default().push(sample);
            }
        }
    }
    Ok(figures)
}

fn of(figures: &[Sample], value: impl Fn(&Sample) -> f64) -> Option<Spread> {
    Spread::of(figures.iter().map(value))
}

/// The speed of one over that of another, round by round.
fn ratio(ours: &[Sample], others: &[Sample]) -> Option<Spread> {
    Spread::of(ours.iter().zip(others).map(|(a, b)| a.mb_s / b.mb_s.max(1e-9)))
}

/// The gain from one to the other in the load in which it is largest, if it is beyond chance.
fn gain(
    (loads, figures): (&[Named], &Figures),
    (before, after): (Who, Who),
    least: f64,
) -> Option<Gain> {
    let of_load = |at: usize| {
        let (before, after) = (figures.get(&(at, before))?, figures.get(&(at, after))?);
        let times = ratio(after, before)?;
        let is_certain =
            times.count >= ENOUGH && times.median >= least && times.low > 1.0 + (least - 1.0) / 2.0;
        Some(Gain {
            load: loads[at].name.clone(),
            before: of(before, |it| it.mb_s)?.median,
            after: of(after, |it| it.mb_s)?.median,
            unit: "MB/s",
            times,
        })
        .filter(|_| is_certain)
    };
    let all = (0..loads.len()).filter_map(of_load);
    all.max_by(|a, b| a.times.median.total_cmp(&b.times.median))
}

/// Whether the figures are too far apart to exclude such a gain.
fn is_open(times: &Spread, least: f64) -> bool {
    times.is_wide() && times.high >= least
}

/// Whether [`gain`] has found none only because the figures of a load are too far apart.
fn scatters(figures: &Figures, (before, after): (Who, Who), least: f64) -> bool {
    let of_load = |(at, who): &(usize, Who)| {
        let before = figures.get(&(*at, before)).filter(|_| *who == after)?;
        ratio(figures.get(&(*at, after))?, before)
    };
    figures.keys().filter_map(of_load).any(|times| is_open(&times, least))
}

/// What is said of what nobody could tell.
const SCATTERS: &str =
    "The measurements are too far apart to tell what that costs; repeat this on a quiet machine";

/// From figures to words.
fn conclude(
    advice: &mut Advice,
    (loads, figures): (&[Named], &Figures),
    others: &[Other],
    (ways, usual): (&[Way], Option<Way>),
) {
    let samples = || figures.values().flatten();
    let disturbed = samples().filter(|sample| sample.disturbance.is_marked()).count();
    advice.disturbed = (disturbed, samples().count());
    for (at, load) in loads.iter().enumerate() {
        let get = |who| figures.get(&(at, who)).map(Vec::as_slice);
        let (Some(drive), Some(volume)) = (get(Who::Drive), get(Who::Volume)) else { continue };
        let speed = |it: &Sample| it.mb_s;
        let added = Spread::of(volume.iter().zip(drive).map(|(a, b)| a.mean_us - b.mean_us));
        let spreads = (of(drive, speed), of(volume, speed), ratio(volume, drive), added);
        let (Some(drive_mb_s), Some(volume_mb_s), Some(left), Some(added_us)) = spreads else {
            continue;
        };
        advice.loads.push(Line {
            load: load.name.clone(),
            drive_mb_s,
            without_cipher_mb_s: get(Who::WithoutCipher).and_then(|it| of(it, speed)),
            volume_mb_s,
            left,
            added_us,
        });
        for (index, way) in ways.iter().enumerate() {
            let Some(on_way) = get(Who::On(index)) else { continue };
            let Some((mb_s, left)) = of(on_way, speed).zip(ratio(on_way, volume)) else { continue };
            if left.count < ENOUGH {
                continue;
            }
            let load = load.name.clone();
            advice.ways.push(WayLine { way: way.name(), load, mb_s, left });
        }
    }
    for (index, other) in others.iter().enumerate() {
        let found = gain((loads, figures), (Who::Volume, Who::Other(index)), GAIN_MIN);
        match found {
            Some(gain) => advice.findings.push(Finding {
                id: other.id,
                what: other.what.clone(),
                change: other.change.clone(),
                gain: Some(gain),
            }),
            None if scatters(figures, (Who::Volume, Who::Other(index)), GAIN_MIN) => {
                advice.not_measured.push(format!("{} {SCATTERS}", other.what));
            }
            None => {
                advice
                    .fine
                    .push(format!("{} That makes no measurable difference here", other.what));
            }
        }
    }
    clients(advice, (loads, figures));
    // Without the usual one, nothing is better than it.
    if ways.first().copied() == usual {
        the_way(advice, (loads, figures), ways);
    }
}

/// Whether several clients at once get more.
fn clients(advice: &mut Advice, (loads, figures): (&[Named], &Figures)) {
    let get = |at| figures.get(&(at, Who::Volume));
    let Some((many, one)) =
        get(CLIENTS).filter(|_| loads[CLIENTS].cell.jobs > 1).zip(get(ONE_CLIENT))
    else {
        return;
    };
    let Some(times) = ratio(many, one) else { return };
    let jobs = loads[CLIENTS].cell.jobs;
    if times.median < CLIENTS_GAIN_MIN || times.low < 1.0 + (CLIENTS_GAIN_MIN - 1.0) / 2.0 {
        if is_open(&times, CLIENTS_GAIN_MIN) {
            let what = "One client may get less than several at once.";
            advice.not_measured.push(format!("{what} {SCATTERS}"));
        } else {
            advice.fine.push("one client with 32 requests in flight gets all there is".into());
        }
        return;
    }
    let median = |it: &[Sample]| of(it, |sample| sample.mb_s).map_or(0.0, |it| it.median);
    advice.findings.push(Finding {
        id: "one-queue",
        what: format!("One client, on one queue, does not use up the drive and the {jobs} cores."),
        change: "let several threads use the volume at once, and serve it on a way with a queue for each \
                 (ublk, vhost-user-blk, or NBD with several connections: nbd-client -C)"
            .into(),
        gain: Some(Gain {
            load: loads[CLIENTS].name.clone(),
            before: median(one),
            after: median(many),
            unit: "MB/s",
            times,
        }),
    });
}

/// Whether another way is faster than the usual one.
fn the_way(advice: &mut Advice, (loads, figures): (&[Named], &Figures), ways: &[Way]) {
    let Some(usual) = ways.first() else { return };
    // One that has failed after some measurements is neither faster nor slower.
    let enough = |way: usize| {
        (0..loads.len())
            .any(|at| figures.get(&(at, Who::On(way))).is_some_and(|it| it.len() >= ENOUGH))
    };
    if !enough(0) {
        return;
    }
    let others: Vec<usize> = (1..ways.len()).filter(|way| enough(*way)).collect();
    let gains = others.iter().filter_map(|&way| {
        let found = gain((loads, figures), (Who::On(0), Who::On(way)), GAIN_MIN)?;
        Some((ways[way], found))
    });
    let best = gains.max_by(|a, b| a.1.times.median.total_cmp(&b.1.times.median));
    let Some((way, gain)) = best else {
        let usual = usual.name();
        let open = |way: &usize| scatters(figures, (Who::On(0), Who::On(*way)), GAIN_MIN);
        if others.iter().any(open) {
            let what = format!("Another way may be faster than {usual}, the usual one here.");
            advice.not_measured.push(format!("{what} {SCATTERS}"));
        } else if !others.is_empty() {
            advice
                .fine
                .push(format!("{usual}, the usual way here, is the fastest of those measured"));
        }
        return;
    };
    advice.findings.push(Finding {
        id: "transport",
        what: format!(
            "open serves the volume by {} here; {} is faster for some loads.",
            usual.name(),
            way.name()
        ),
        change: match way {
            Way::Nbd => {
                "ucrypt open --as nbd, where the program speaks NBD itself (QEMU, libnbd)".into()
            }
            _ => format!("ucrypt open --as {}", way.name()),
        },
        gain: Some(gain),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(image: &Path, cipher: &str, key_bytes: usize, sector_size: u32) -> Subject {
        Subject {
            image: image.into(),
            header: None,
            format: LUKS2,
            cipher: cipher.parse().expect("a cipher"),
            key_bytes,
            sector_size,
            iv_large_sectors: false,
            offset: 1 << 20,
            len: None,
            policies: Policies::default(),
        }
    }

    fn image(dir: &Path) -> PathBuf {
        let image = dir.join("image");
        let mut content = vec![0; 20 << 20];
        fastrand::Rng::with_seed(1).fill(&mut content);
        std::fs::write(&image, content).expect("written");
        image
    }

    fn advice(subject: &Subject, dir: &Path, stop: &AtomicBool) -> io::Result<Advice> {
        let plan = Plan {
            time: Duration::from_millis(1),
            scratch: None,
            ucrypt: Path::new("ucrypt"),
            ways: &[],
            dir,
            left: &Left::default(),
            stop,
            progress: &|_, done, all| assert!(done <= all),
        };
        advise(subject, &plan)
    }

    #[test]
    fn a_slow_cipher_with_short_sectors_is_found_and_the_image_stays_as_it_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let (image, go) = (image(dir.path()), AtomicBool::new(false));
        let before = std::fs::read(&image).expect("read");
        // A slow cipher: others are many times as fast.
        let slow = subject(&image, "cast5-cbc-plain64", 16, 512);
        let found = advice(&slow, dir.path(), &go).expect("advice");
        // Beside other load, the gain may be lost in the noise.
        if let Some(cipher) = found.findings.iter().find(|it| it.id == "cipher") {
            assert!(cipher.gain.as_ref().is_some_and(|it| it.after > it.before), "{cipher:?}");
            assert!(cipher.change.contains("luksFormat --cipher"), "{cipher:?}");
        } else {
            let is_told = |it: &String| it.contains("cast5") && it.contains("too far apart");
            assert!(found.not_measured.iter().any(is_told), "{found:?}");
        }
        assert!(found.not_measured.iter().any(|it| it.contains("--scratch")), "{found:?}");
        assert!(found.loads.len() >= 4 && found.loads.iter().all(|it| it.left.median > 0.0));
        assert!(std::fs::read(&image).expect("read") == before, "something was written");
        // What is as good as it can be is not changed.
        let good = advice(&subject(&image, "aes-xts-plain64", 64, 4096), dir.path(), &go);
        let good = good.expect("advice");
        assert!(good.findings.iter().all(|it| it.id != "sector-size" && it.id != "alignment"));
        assert!(good.fine.iter().any(|it| it.contains("4096 bytes are the best")), "{good:?}");
    }

    #[test]
    fn only_commands_of_the_format_are_named_and_paths_are_quoted() {
        let volume = |format| Subject {
            format,
            policies: "inline".parse::<PolicyKind>().expect("a policy").into(),
            offset: 512,
            ..subject(Path::new("/a disk.img"), "cast5-cbc-plain64", 16, 512)
        };
        let all = |subject: &Subject| {
            let others = alternatives(subject, &mut Advice::default()).expect("alternatives");
            let ids: Vec<_> = others.iter().map(|it| it.id).collect();
            assert_eq!(ids, ["sector-size", "alignment", "dispatch", "cipher"]);
            others.into_iter().map(|it| it.change).collect::<Vec<_>>().join("\n")
        };
        let new = all(&volume(LUKS2));
        assert!(new.contains("cryptsetup reencrypt --sector-size 4096 '/a disk.img'"), "{new}");
        assert!(new.contains("--persistent"), "{new}");
        let detached = Subject { header: Some("-my header".into()), ..volume(LUKS2) };
        assert!(all(&detached).contains("4096 --header './-my header' '/a disk.img'"));
        let old = all(&volume("luks1"));
        assert!(old.contains("luksFormat --type luks2 --sector-size 4096 '/a disk.img'"), "{old}");
        let plain = all(&volume(PLAIN));
        for wrong in ["reencrypt", "--persistent", "convert"] {
            assert!(!old.contains(wrong) && !plain.contains(wrong), "{wrong}: {old}\n{plain}");
        }
        assert!(!plain.contains("luksFormat"), "{plain}");
    }

    #[test]
    fn a_volume_that_is_too_small_a_stop_and_an_unknown_image_end_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let (image, go) = (image(dir.path()), AtomicBool::new(false));
        let good = subject(&image, "aes-xts-plain64", 64, 4096);
        let small = Subject { offset: 10 << 20, ..good.clone() };
        let refused = advice(&small, dir.path(), &go).expect_err("too small");
        assert!(refused.to_string().contains("cannot be measured"), "{refused}");
        let none = Subject { image: dir.path().join("none"), ..good.clone() };
        assert!(advice(&none, dir.path(), &go).is_err());
        let key = Subject { key_bytes: 7, ..good.clone() };
        assert!(advice(&key, dir.path(), &go).is_err(), "no cipher has such a key");
        let stopped = advice(&good, dir.path(), &AtomicBool::new(true)).expect_err("stopped");
        assert_eq!(stopped.kind(), io::ErrorKind::Interrupted);
    }

    #[test]
    fn a_gain_counts_only_beyond_chance() {
        let loads = loads(1, false);
        let sample = |mb_s| Sample { mb_s, ..Sample::default() };
        let figures = |after: [f64; 3]| {
            Figures::from([
                ((0, Who::Volume), [100.0; 3].map(sample).into()),
                ((0, Who::Other(0)), after.map(sample).into()),
            ])
        };
        let found = |after| gain((&loads, &figures(after)), (Who::Volume, Who::Other(0)), GAIN_MIN);
        assert!(found([130.0, 140.0, 150.0]).is_some_and(|it| it.times.median > 1.39));
        assert!(found([101.0, 102.0, 103.0]).is_none(), "too little");
        assert!(found([60.0, 120.0, 180.0]).is_none(), "the quartiles reach below");
        assert!(found([90.0, 80.0, 70.0]).is_none(), "a loss");
    }

    #[test]
    fn nothing_is_advised_from_what_failed_after_a_measurement_or_two() {
        let loads = loads(1, false);
        let sample = |mb_s| Sample { mb_s, ..Sample::default() };
        for rounds in [1, 2] {
            let figures = |usual: usize, other: usize| {
                Figures::from([
                    ((ONE_CLIENT, Who::Drive), [100.0; 5].map(sample).into()),
                    ((ONE_CLIENT, Who::Volume), [100.0; 5].map(sample).into()),
                    ((ONE_CLIENT, Who::On(0)), vec![sample(100.0); usual]),
                    ((ONE_CLIENT, Who::On(1)), vec![sample(300.0); other]),
                ])
            };
            for figures in [figures(5, rounds), figures(rounds, 5)] {
                let mut advice = Advice::default();
                let ways = [Way::Loop, Way::Nbd];
                conclude(&mut advice, (&loads, &figures), &[], (&ways, Some(Way::Loop)));
                assert!(advice.findings.is_empty() && advice.fine.is_empty(), "{advice:?}");
                assert_eq!(advice.ways.len(), 1, "{advice:?}");
            }
        }
    }

    #[test]
    fn of_what_scatters_it_is_not_said_that_it_makes_no_difference() {
        let now = subject(Path::new("image"), "serpent-cbc-plain64", 32, 4096);
        let other = Other {
            id: "cipher",
            what: "It is slow.".into(),
            change: "change it".into(),
            shape: Shape::of(&now),
        };
        let loads = loads(2, false);
        let sample = |mb_s| Sample { mb_s, ..Sample::default() };
        let before: Vec<_> = [100.0; 5].map(sample).into();
        let concluded = |after: [f64; 5]| {
            let after: Vec<_> = after.map(sample).into();
            let figures = Figures::from([
                ((ONE_CLIENT, Who::Volume), before.clone()),
                ((ONE_CLIENT, Who::Other(0)), after.clone()),
                ((ONE_CLIENT, Who::On(0)), before.clone()),
                ((ONE_CLIENT, Who::On(1)), after.clone()),
                ((CLIENTS, Who::Volume), after),
            ]);
            let mut advice = Advice::default();
            let ways = [Way::Loop, Way::Nbd];
            conclude(
                &mut advice,
                (&loads, &figures),
                std::slice::from_ref(&other),
                (&ways, Some(Way::Loop)),
            );
            (advice.findings.len(), advice.not_measured.len(), advice.fine.len())
        };
        assert_eq!(concluded([130.0, 140.0, 150.0, 140.0, 140.0]), (3, 0, 0), "gains");
        assert_eq!(concluded([99.0, 100.0, 101.0, 100.0, 102.0]), (0, 0, 3), "no difference");
        assert_eq!(concluded([36.0, 40.0, 90.0, 146.0, 170.0]), (0, 3, 0), "nobody can tell");
        assert_eq!(
            concluded([40.0, 60.0, 70.0, 80.0, 90.0]),
            (0, 0, 3),
            "losses, whatever they are"
        );
    }

    #[test]
    fn writes_are_measured_on_the_scratch_file_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let (image, go) = (image(dir.path()), AtomicBool::new(false));
        let before = std::fs::read(&image).expect("read");
        let len = 32 << 20;
        let scratch: Arc<dyn Backend> = Arc::new(ucrypt_backend::memory(len).expect("memory"));
        // Its data begins inside a block of the drive.
        let odd =
            Subject { offset: (1 << 20) + 512, ..subject(&image, "aes-xts-plain64", 64, 512) };
        let plan = Plan {
            time: Duration::from_millis(1),
            scratch: Some((scratch, len)),
            ucrypt: Path::new("ucrypt"),
            ways: &[],
            dir: dir.path(),
            left: &Left::default(),
            stop: &go,
            progress: &|_, _, _| {},
        };
        let found = advise(&odd, &plan).expect("advice");
        let writes: Vec<_> =
            found.loads.iter().filter(|it| it.load.starts_with("writes")).collect();
        assert_eq!(writes.len(), 2, "{found:?}");
        // Beside other load, measurements may be too far apart.
        assert!(found.not_measured.iter().all(|it| it.contains("too far apart")), "{found:?}");
        assert!(std::fs::read(&image).expect("read") == before, "something was written");
    }
}
