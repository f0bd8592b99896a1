//! `read` copies a volume to standard output; `write` copies standard input into a volume.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::{FileType, SeekFrom};
use ucrypt_engine::{Buf, Done, Io, Queue, QueueConfig, Rejected};

use crate::failure::Failure;
use crate::size;
use crate::stdio::{Stdin, Stdout};
use crate::volume::{KeySource, VolumeArgs};

/// Bytes of one request.
const CHUNK: usize = 1 << 20;

/// Requests in flight.
const DEPTH: u32 = 8;

const QUEUE: QueueConfig = QueueConfig::new((DEPTH as usize + 2) * CHUNK * 2, DEPTH);

/// Arguments of `read`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("data_offset", |arg| arg.long("data-offset")))]
pub(crate) struct ReadArgs {
    /// The image: a file or a block device
    image: Option<PathBuf>,
    /// First byte of the volume
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "0")]
    offset: u64,
    /// How many bytes; to the end if not given
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    length: Option<u64>,
    #[command(flatten)]
    volume: VolumeArgs,
}

/// Arguments of `write`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("data_offset", |arg| arg.long("data-offset")))]
pub(crate) struct WriteArgs {
    /// The image: a file or a block device
    image: Option<PathBuf>,
    /// First byte of the volume
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "0")]
    offset: u64,
    #[command(flatten)]
    volume: VolumeArgs,
}

pub(crate) fn read(args: &ReadArgs) -> Result<(), Failure> {
    let mut output = Stdout::get()?;
    let volume = args.volume.clone().for_looking();
    let opened = volume.open(args.image.as_deref(), KeySource::Arguments)?;
    let size = opened.volume.info().len;
    let rest = size.checked_sub(args.offset).ok_or_else(|| beyond(args.offset, size))?;
    let length = args.length.unwrap_or(rest);
    if length > rest {
        return Err(beyond(args.offset.saturating_add(length), size));
    }
    let queue = opened.volume.queue(QUEUE).map_err(broken)?;
    let progress = Progress::new(length);
    let end = args.offset + length;
    Reader { queue, next: args.offset, end, waiting: BTreeMap::new(), written: args.offset }
        .run(&mut output, &progress)
}

/// Keeps several reads in flight, and writes their data in order.
struct Reader {
    queue: Queue,
    /// Offset of the next read.
    next: u64,
    end: u64,
    /// Data of reads that completed early, by offset.
    waiting: BTreeMap<u64, Buf>,
    written: u64,
}

impl Reader {
    fn run(mut self, output: &mut Stdout, progress: &Progress) -> Result<(), Failure> {
        while self.written < self.end {
            self.ask()?;
            self.queue.wait().map_err(broken)?;
            while let Some(Done { tag: offset, result, data }) = self.queue.next_done() {
                result.map_err(|error| failed_at("read", offset, error))?;
                self.waiting.extend(data.map(|data| (offset, data)));
            }
            while let Some(data) = self.waiting.remove(&self.written) {
                output.put(&data)?;
                self.written += data.len() as u64;
                progress.add(data.len());
            }
        }
        Ok(())
    }

    /// Submits reads while the queue has room.
    fn ask(&mut self) -> Result<(), Failure> {
        while self.next < self.end {
            let len = (self.end - self.next).min(CHUNK as u64) as usize;
            match self.queue.submit(self.next, Io::read(self.next, len)) {
                Ok(()) => self.next += len as u64,
                Err(Rejected::Busy(_)) => return Ok(()),
                Err(rejected) => return Err(refused(&rejected)),
            }
        }
        Ok(())
    }
}

pub(crate) fn write(args: &WriteArgs) -> Result<(), Failure> {
    let Some(mut input) = Stdin::get() else {
        return Err(Failure::wrong("standard input is closed; there is nothing to write"));
    };
    let volume = args.volume.clone().with_data_on_stdin();
    let opened = volume.open(args.image.as_deref(), KeySource::Arguments)?;
    let size = opened.volume.info().len;
    if args.offset > size {
        return Err(beyond(args.offset, size));
    }
    let queue = opened.volume.queue(QUEUE).map_err(broken)?;
    let progress = Progress::new(left_in_stdin());
    let mut writer = Writer { queue, next: args.offset, size };
    let written = writer.run(&mut input, &progress);
    drop(progress);
    // Flush however the write ended: data reported as written must persist. The first failure is
    // reported.
    let flushed = crate::ending::flush(&opened.volume);
    let end = written?;
    flushed?;
    let kept = format!("everything before byte {} was written", writer.next);
    match end {
        End::OfInput => Ok(()),
        End::OfVolume => Err(Failure::device(format!(
            "standard input does not fit: the volume ends at byte {size}; {kept}"
        ))),
        End::Unreadable(error) => {
            Err(Failure::wrong(format!("cannot read standard input: {error}; {kept}")))
        }
    }
}

/// Why a write ended.
enum End {
    OfInput,
    OfVolume,
    Unreadable(io::Error),
}

struct Writer {
    queue: Queue,
    /// Offset of the next write.
    next: u64,
    size: u64,
}

impl Writer {
    fn run(&mut self, input: &mut impl Read, progress: &Progress) -> Result<End, Failure> {
        let mut end = End::OfInput;
        loop {
            let Some(mut data) = self.queue.alloc(CHUNK) else {
                self.settle()?;
                continue;
            };
            let filled = match fill(input, &mut data) {
                Ok(filled) => filled,
                Err(error) => {
                    end = End::Unreadable(error);
                    break;
                }
            };
            let room = self.size - self.next;
            let len = usize::try_from(room).map_or(filled, |room| filled.min(room));
            if len > 0 {
                data.truncate(len);
                self.put(data)?;
                self.next += len as u64;
                progress.add(len);
            }
            if len < filled {
                end = End::OfVolume;
                break;
            }
            if filled == 0 {
                break;
            }
        }
        self.drain()?;
        Ok(end)
    }

    fn put(&mut self, data: Buf) -> Result<(), Failure> {
        let mut io = Io::write(self.next, data, false);
        loop {
            io = match self.queue.submit(self.next, io) {
                Ok(()) => return self.queue.poll().map_err(broken),
                Err(Rejected::Busy(io)) => io,
                Err(rejected) => return Err(refused(&rejected)),
            };
            self.settle()?;
        }
    }

    /// Waits for a completion and takes all that are there.
    fn settle(&mut self) -> Result<(), Failure> {
        self.queue.wait().map_err(broken)?;
        while let Some(Done { tag: offset, result, .. }) = self.queue.next_done() {
            result.map_err(|error| failed_at("write", offset, error))?;
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<(), Failure> {
        while self.queue.in_flight() > 0 {
            self.settle()?;
        }
        Ok(())
    }
}

/// Reads until the buffer is full or the input ends.
fn fill(input: &mut impl Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buf.len() {
        match input.read(&mut buf[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Bytes that standard input still has, if it is a file; 0 if nobody knows.
fn left_in_stdin() -> u64 {
    let stdin = rustix::stdio::stdin();
    let Ok(found) = rustix::fs::fstat(stdin) else { return 0 };
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return 0;
    }
    let at = rustix::fs::seek(stdin, SeekFrom::Current(0)).unwrap_or(0);
    u64::try_from(found.st_size).unwrap_or(0).saturating_sub(at)
}

/// A progress bar on a terminal, for transfers that take longer than a second.
struct Progress(ProgressBar);

impl Progress {
    /// `length` is 0 if unknown.
    fn new(length: u64) -> Self {
        if !io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = if length > 0 { ProgressBar::new(length) } else { ProgressBar::no_length() };
        let template = if length > 0 {
            "{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}"
        } else {
            "{spinner} {bytes} {bytes_per_sec}"
        };
        let style = ProgressStyle::with_template(template);
        let bar = bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_secs(1));
        Self(bar)
    }

    fn add(&self, bytes: usize) {
        self.0.inc(bytes as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn beyond(at: u64, size: u64) -> Failure {
    Failure::wrong(format!("byte {at} is behind the end of the volume, which has {size} bytes"))
}

fn broken(error: impl std::fmt::Display) -> Failure {
    Failure::device(format!("the image cannot be used any longer: {error}"))
}

fn failed_at(what: &str, offset: u64, error: impl std::fmt::Display) -> Failure {
    Failure::device(format!("{what} of the volume at byte {offset} failed: {error}"))
}

fn refused(rejected: &Rejected) -> Failure {
    match rejected {
        Rejected::ReadOnly => {
            Failure::denied("the volume is read-only; open it without --readonly")
        }
        other => Failure::wrong(format!("the volume refused the request: {other:?}")),
    }
}
