//! `read` copies a volume to standard output; `write` copies standard input into a volume.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::{FileType, SeekFrom};
use ucrypt_image::transfer::{self, QUEUE, TransferError, Writer};

use crate::failure::Failure;
use crate::size;
use crate::stdio::{Stdin, Stdout};
use crate::volume::{KeySource, VolumeArgs};

/// Arguments of `read`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("data_offset", |arg| arg.long("data-offset")))]
pub(crate) struct ReadArgs {
    /// The image: a file or a block device
    image: Option<PathBuf>,
    /// First byte of the volume; where the volume begins in its image is --data-offset
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
    /// First byte of the volume; where the volume begins in its image is --data-offset
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
    let mut queue = opened.volume.queue(QUEUE).map_err(TransferError::Broken)?;
    let progress = Progress::new(length);
    // Data of reads that completed early, by offset.
    let mut waiting = BTreeMap::new();
    let mut written = args.offset;
    transfer::read(&mut queue, args.offset..args.offset + length, |offset, data| {
        waiting.insert(offset, data);
        while let Some(data) = waiting.remove(&written) {
            output.put(&data)?;
            written += data.len() as u64;
            progress.add(data.len());
        }
        Ok(())
    })
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
    let mut queue = opened.volume.queue(QUEUE).map_err(TransferError::Broken)?;
    let progress = Progress::new(left_in_stdin());
    let mut end = args.offset;
    let written = copy(&mut input, Writer::new(&mut queue, args.offset), size, &progress, &mut end);
    drop(progress);
    // Flush however the write ended: data reported as written must persist. The first failure is
    // reported.
    let flushed = crate::ending::flush(&opened.volume);
    let why = written?;
    flushed?;
    let kept = format!("everything before byte {end} was written");
    match why {
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

/// Copies the input into the volume of `size` bytes. `next` is where the next byte would go.
fn copy(
    input: &mut impl Read,
    mut writer: Writer<'_>,
    size: u64,
    progress: &Progress,
    next: &mut u64,
) -> Result<End, TransferError> {
    let why = loop {
        let mut data = writer.alloc()?;
        let filled = match fill(input, &mut data) {
            Ok(filled) => filled,
            Err(error) => break End::Unreadable(error),
        };
        let room = size - writer.position();
        let len = usize::try_from(room).map_or(filled, |room| filled.min(room));
        if len > 0 {
            data.truncate(len);
            writer.put(data)?;
            *next = writer.position();
            progress.add(len);
        }
        if len < filled {
            break End::OfVolume;
        }
        if filled == 0 {
            break End::OfInput;
        }
    };
    writer.finish()?;
    Ok(why)
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
    Failure::wrong(format!(
        "offset {} is behind the end of the volume, which has {}",
        size::exact(at),
        size::exact(size)
    ))
}
