//! `demo`: makes an encrypted volume in a scratch file, serves it and checks it. Measures it
//! against an unencrypted file through the same export.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use rustix::fs::statvfs;
use serde_json::json;
use tempfile::TempDir;
use ucrypt_backend::{Backend, FileBackend, OpenOptions};
use ucrypt_engine::{Buf, Io, Queue, QueueConfig, Rejected, Segment, Volume, VolumeOptions};
use ucrypt_export::fuse::{FuseExport, FuseOptions};
use ucrypt_export::nbd::{Address, Server, ServerConfig};
use ucrypt_lab::nbd_client::NbdClient;
use ucrypt_luks::luks2;
use ucrypt_luks::{Cost, Header, Machine, NewVolume, Pbkdf, PbkdfKind, Tools, Unlocked, find_hash};

use crate::ending::{flush, signals};
use crate::failure::Failure;
use crate::luks::HeaderImage;
use crate::{secrecy, size, stdio};

mod load;

use load::{JOBS, Job, Kind};

/// Interleaved rounds; the median of them is shown.
const ROUNDS: usize = 3;

const CIPHER: &str = "aes-xts-plain64";

/// Arguments of `demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Length of the volume
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "256M")]
    size: u64,
    /// Directory for the scratch files; /dev/shm if there is room
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Time for each figure, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 400, value_parser = clap::value_parser!(u64).range(10..=10_000))]
    time: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One line of the result: MB/s without and with encryption.
struct Row {
    export: &'static str,
    job: Job,
    raw: f64,
    encrypted: f64,
}

pub(crate) fn run(args: &DemoArgs) -> Result<(), Failure> {
    let (send, stop) = mpsc::channel();
    signals(move |signal| send.send(signal).is_ok())?;
    let len = args.size / (1 << 20) * (1 << 20);
    if len < 16 << 20 {
        return Err(Failure::wrong("the demo needs a volume of at least 16M"));
    }
    let scratch = scratch_dir(args.dir.as_deref(), len)?;
    let say = |text: &str| stdio::say(&format!("{text}\n"));
    say(&format!("scratch files: {} ({len} bytes each)", scratch.path().display()));

    let started = Instant::now();
    let (raw, encrypted, image) = volumes(scratch.path(), len, &stop)?;
    say(&format!("made and unlocked a LUKS2 volume, {CIPHER}, in {:.1?}", started.elapsed()));
    check(&encrypted, &image)?;
    say("checked: what was written reads back, and the image holds only ciphertext");

    let mut rows = Vec::new();
    for export in [ExportKind::Fuse, ExportKind::Nbd] {
        match measure(export, &raw, &encrypted, scratch.path(), args, &stop) {
            Ok(measured) => rows.extend(measured),
            Err(Outcome::Interrupted) => return Err(interrupted()),
            // Containers often lack FUSE: go on with the other export.
            Err(Outcome::Failed(failure)) => say(&format!("{}: {failure}", export.name())),
        }
    }
    if rows.is_empty() {
        return Err(Failure::device("nothing could be served here"));
    }
    if args.json {
        stdio::print_line(as_json(&rows))?;
    } else {
        stdio::print(&as_table(&rows))?;
    }
    flush(&encrypted)
}

fn interrupted() -> Failure {
    Failure::wrong("interrupted")
}

/// Whether a signal asked for the end. Steps that take longer than a moment check this.
fn is_asked(stop: &Receiver<i32>) -> bool {
    stop.try_recv().is_ok()
}

/// A directory for the scratch files: in memory if there is room, so that the disk is not measured.
fn scratch_dir(wanted: Option<&Path>, len: u64) -> Result<TempDir, Failure> {
    let memory = Path::new("/dev/shm");
    let room = |dir: &Path| statvfs(dir).map_or(0, |fs| fs.f_bavail.saturating_mul(fs.f_frsize));
    let needed = 2 * len + (64 << 20);
    let default = std::env::temp_dir();
    let dir = wanted.unwrap_or(if room(memory) > needed { memory } else { &default });
    if room(dir) < needed {
        return Err(Failure::device(format!(
            "{} has no room for {needed} bytes; use --dir or a smaller --size",
            dir.display()
        )));
    }
    let failed =
        |error| Failure::device(format!("cannot make a directory in {}: {error}", dir.display()));
    tempfile::Builder::new().prefix("ucrypt-demo-").tempdir_in(dir).map_err(failed)
}

type Volumes = (Arc<Volume>, Arc<Volume>, Arc<FileBackend>);

/// Two volumes of the same length: a raw file, and a LUKS2 volume. Both are filled, so that holes
/// flatter neither.
fn volumes(dir: &Path, len: u64, stop: &Receiver<i32>) -> Result<Volumes, Failure> {
    let raw = Arc::new(image(&dir.join("raw.img"), len)?);
    let encrypted = Arc::new(image(&dir.join("luks.img"), len + (16 << 20))?);
    let unlocked = format(&encrypted)?;
    let lengths = unlocked.segment_lengths(encrypted.limits().len)?;
    let mut segments = Vec::new();
    for (segment, len) in unlocked.segments.iter().zip(lengths) {
        let cipher = Some(segment.cipher(&unlocked.volume_key)?);
        segments.push(Segment { len, backend_offset: segment.offset, cipher });
    }
    let options = VolumeOptions::default();
    let raw = Volume::raw(raw, options).map_err(Failure::wrong)?;
    let volume = Volume::new(encrypted.clone(), segments, options).map_err(Failure::wrong)?;
    let (raw, volume) = (Arc::new(raw), Arc::new(volume));
    fill(&raw, stop)?;
    fill(&volume, stop)?;
    Ok((raw, volume, encrypted))
}

fn image(path: &Path, len: u64) -> Result<FileBackend, Failure> {
    let made = File::options().read(true).write(true).create_new(true).open(path);
    made.and_then(|file| file.set_len(len))
        .map_err(|error| Failure::device(format!("cannot make {}: {error}", path.display())))?;
    Ok(FileBackend::open(path, OpenOptions::default())?)
}

/// Makes a LUKS2 header under a random passphrase, and unlocks it with that.
fn format(image: &FileBackend) -> Result<Unlocked, Failure> {
    let mut random = secrecy::random;
    let started = Instant::now();
    let mut passphrase = [0; 32];
    random(&mut passphrase).map_err(Failure::device)?;
    let pbkdf = Pbkdf {
        kind: PbkdfKind::Argon2id,
        hash: find_hash("sha256")?,
        // A throw-away key needs no more than cryptsetup's minimum.
        cost: Cost::Iterations(ucrypt_luks::ARGON2_TIME_MIN),
        memory_kib: 65536,
        lanes: 2,
    };
    let new = NewVolume {
        cipher: CIPHER.parse().map_err(Failure::wrong)?,
        volume_key: ucrypt_luks::random_volume_key(64, &mut random)?,
        hash: pbkdf.hash,
        pbkdf,
        keyslot: 0,
        uuid: None,
        data_offset: None,
        data_alignment: None,
        area: None,
        detached: false,
    };
    let options = luks2::Options {
        label: "demo".into(),
        subsystem: String::new(),
        sector_size: 4096,
        metadata_size: None,
        keyslots_size: None,
    };
    let mut tools = Tools {
        random: &mut random,
        clock: &mut |_| started.elapsed(),
        machine: Machine { cpus: 2, memory_kib: 65536 },
    };
    let (_, writes) = luks2::format(&new, &options, &passphrase, &mut tools)?;
    let medium = HeaderImage(image);
    ucrypt_luks::write_durably(&medium, &writes)?;
    let (header, _) = Header::read(&medium)?;
    Ok(header.unlock(&medium, &passphrase, None)?)
}

const QUEUE: QueueConfig = QueueConfig::new(8 << 20, 4);

/// Fills the volume with random bytes.
fn fill(volume: &Arc<Volume>, stop: &Receiver<i32>) -> Result<(), Failure> {
    let mut queue = volume.queue(QUEUE).map_err(Failure::memory)?;
    let mut data = vec![0; 1 << 20];
    secrecy::random(&mut data).map_err(Failure::device)?;
    let mut offset = 0;
    while offset < volume.info().len {
        if is_asked(stop) {
            return Err(interrupted());
        }
        let len = (volume.info().len - offset).min(data.len() as u64);
        one(&mut queue, Io::write_borrowed(offset, &data[..len as usize], false))?;
        offset += len;
    }
    Ok(())
}

fn one(queue: &mut Queue, io: Io<'_>) -> Result<Option<Buf>, Failure> {
    let refused = |rejected: Rejected<'_>| {
        let why = rejected.errno().map_or_else(String::new, |errno| errno.to_string());
        Failure::device(format!("the volume of the demo has refused a request: {why}"))
    };
    queue.submit(0, io).map_err(refused)?;
    queue.wait().map_err(Failure::device)?;
    let done = queue.next_done().ok_or_else(|| {
        Failure::device("the volume of the demo has not answered a request; run the demo again")
    })?;
    done.result.map_err(Failure::device)?;
    Ok(done.data)
}

/// Writes a known text, reads it back, and looks for it in the image.
fn check(volume: &Arc<Volume>, image: &FileBackend) -> Result<(), Failure> {
    let text = b"This sentence must not be found on the disk. ".repeat(1000);
    let mut queue = volume.queue(QUEUE).map_err(Failure::memory)?;
    let offset = 12_345;
    one(&mut queue, Io::write_borrowed(offset, &text, true))?;
    let data = one(&mut queue, Io::read(offset, text.len()))?;
    if data.as_deref() != Some(&text[..]) {
        return Err(Failure::device("the volume did not give back what was written"));
    }
    let mut stored = vec![0; 65536];
    image.read_exact_at(16 << 20, &mut stored).map_err(Failure::device)?;
    if stored.windows(8).any(|window| text.starts_with(window)) {
        return Err(Failure::device("plaintext was found in the image"));
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum ExportKind {
    Fuse,
    Nbd,
}

impl ExportKind {
    fn name(self) -> &'static str {
        match self {
            Self::Fuse => "FUSE",
            Self::Nbd => "NBD",
        }
    }
}

/// An export with a client on it.
struct Served {
    client: Box<dyn Backend>,
    _export: Running,
}

enum Running {
    Fuse { _export: FuseExport },
    Nbd { _server: Server },
}

fn serve(kind: ExportKind, volume: &Arc<Volume>, at: &Path) -> Result<Served, Failure> {
    match kind {
        ExportKind::Fuse => {
            let export = FuseExport::start(volume, at, FuseOptions::default())?;
            // The image is locked already, and only this process uses the file.
            let options = OpenOptions { direct: true, unlocked: true, ..OpenOptions::default() };
            let client = Box::new(FileBackend::open(export.path(), options)?);
            Ok(Served { client, _export: Running::Fuse { _export: export } })
        }
        ExportKind::Nbd => {
            let address = Address::Unix(at.into());
            let server = Server::start(volume.clone(), &address, ServerConfig::default());
            let server = server.map_err(Failure::device)?;
            let client = NbdClient::new(at, volume.info().len);
            Ok(Served { client: Box::new(client), _export: Running::Nbd { _server: server } })
        }
    }
}

enum Outcome {
    Interrupted,
    Failed(Failure),
}

impl From<Failure> for Outcome {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<io::Error> for Outcome {
    fn from(error: io::Error) -> Self {
        Self::Failed(Failure::device(error))
    }
}

fn measure(
    kind: ExportKind,
    raw: &Arc<Volume>,
    encrypted: &Arc<Volume>,
    dir: &Path,
    args: &DemoArgs,
    stop: &Receiver<i32>,
) -> Result<Vec<Row>, Outcome> {
    let raw = serve(kind, raw, &dir.join("raw"))?;
    let encrypted = serve(kind, encrypted, &dir.join("encrypted"))?;
    let time = Duration::from_millis(args.time);
    let mut rows = Vec::new();
    for job in JOBS {
        let mut speeds = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (speeds, served) in speeds.iter_mut().zip([&raw, &encrypted]) {
                match job.run(served.client.as_ref(), time, || is_asked(stop))? {
                    Some(speed) => speeds.push(speed),
                    None => return Err(Outcome::Interrupted),
                }
            }
        }
        let [raw, encrypted] = speeds.map(median);
        rows.push(Row { export: kind.name(), job, raw, encrypted });
    }
    Ok(rows)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn as_table(rows: &[Row]) -> String {
    let mut table = format!(
        "{:<6} {:<18} {:>12} {:>14} {:>8}\n",
        "export", "load", "raw MB/s", "encrypted MB/s", "ratio"
    );
    for Row { export, job, raw, encrypted } in rows {
        let (name, ratio) = (job.name(), encrypted / raw);
        // Writing to a string cannot fail.
        let _ =
            writeln!(table, "{export:<6} {name:<18} {raw:>12.0} {encrypted:>14.0} {ratio:>8.2}");
    }
    table
}

fn as_json(rows: &[Row]) -> serde_json::Value {
    let row = |row: &Row| {
        json!({
            "export": row.export.to_lowercase(),
            "block_bytes": row.job.block,
            "depth": row.job.depth,
            "write": row.job.kind == Kind::Write,
            "random": row.job.random,
            "raw_mb_s": row.raw,
            "encrypted_mb_s": row.encrypted,
        })
    };
    rows.iter().map(row).collect()
}
