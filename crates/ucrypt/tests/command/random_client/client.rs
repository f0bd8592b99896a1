//! Carries out a generator's operations on a real file or disk, and compares it with the model.

use std::fmt::Write;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags, SeekFrom, copy_file_range, fallocate, seek, sendfile};
use rustix::io::Errno;
use ucrypt_testkit::Random;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

use super::model::Model;
use super::operation::{Abilities, By, Operation};
use super::watchdog::Progress;
use crate::aligned::Aligned;
use crate::process::{run, tool};

/// The kind of export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// A regular file.
    File,
    /// A block device, and whether it takes discards.
    Device { discards: bool },
}

impl Target {
    /// `sector` is the device's logical block size in bytes.
    pub(crate) fn abilities(self, sector: u64, mapping: bool) -> Abilities {
        match self {
            Self::File => Abilities {
                direct_unit: 1,
                zero_unit: 1,
                hole_unit: 1,
                mapping,
                copy: true,
                append: true,
                discard: false,
            },
            Self::Device { discards } => Abilities {
                direct_unit: sector,
                zero_unit: sector,
                // The kernel zeroes the part of a cached page that belongs to a hole, even if the
                // hole is then refused, as it is here and by many devices.
                hole_unit: 64 << 10,
                mapping,
                copy: false,
                append: false,
                discard: discards,
            },
        }
    }
}

/// A client with descriptors of its own.
#[derive(Debug)]
pub(crate) struct Client {
    target: Target,
    path: PathBuf,
    plain: [File; 2],
    direct: File,
    append: File,
    mapping: Option<MmapRegion>,
    /// The target of sendfile(2).
    sent: File,
    end: u64,
    model: Model,
    random: Random,
    /// The operations so far.
    history: Vec<Operation>,
}

impl Client {
    /// Opens `path`, of `end` bytes, for operations on `part`. `sent` is a file of this client's
    /// own.
    pub(crate) fn open(
        target: Target,
        path: &Path,
        end: u64,
        part: Range<u64>,
        mapping: bool,
        sent: &Path,
        seed: u64,
    ) -> Self {
        let options = |flags: OFlags| {
            let mut options = File::options();
            options.read(true).write(true).custom_flags(flags.bits().cast_signed());
            options
        };
        let open = |flags: OFlags| options(flags).open(path).expect("it opens");
        let plain = [open(OFlags::empty()), open(OFlags::empty())];
        let mut content = vec![0; (part.end - part.start) as usize];
        plain[0].read_exact_at(&mut content, part.start).expect("the first content");
        let mapping = mapping.then(|| {
            let file = FileOffset::new(open(OFlags::empty()), 0);
            MmapRegion::from_file(file, end as usize).expect("a mapping")
        });
        Self {
            target,
            path: path.into(),
            plain,
            direct: open(OFlags::DIRECT),
            append: open(OFlags::APPEND),
            mapping,
            sent: File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(sent)
                .expect("a file"),
            end,
            model: Model::new(part.start, &content),
            random: Random::new(seed ^ 0x5eed),
            history: Vec::new(),
        }
    }

    /// Carries out one operation.
    pub(crate) fn step(&mut self, operation: Operation, progress: &Progress) {
        progress.begin(format!("{operation:?}"));
        self.history.push(operation);
        if let Err(wrong) = self.apply(operation) {
            panic!("{operation:?}: {wrong}");
        }
    }

    /// Checks the whole part by a new descriptor. Returns the model.
    pub(crate) fn check_all(mut self, part: Range<u64>, progress: &Progress) -> Model {
        progress.begin("to read everything again".into());
        self.mapping = None;
        self.plain[0].sync_all().expect("flushed");
        let file = File::open(&self.path).expect("it opens");
        let mut found = vec![0; (part.end - part.start) as usize];
        file.read_exact_at(&mut found, part.start).expect("read");
        self.check(part.start, &found).unwrap_or_else(|wrong| panic!("at the end: {wrong}"));
        self.model
    }

    fn check(&self, at: u64, found: &[u8]) -> Result<(), String> {
        let Some(wrong) = self.model.difference(at, found) else { return Ok(()) };
        let first = self.model.first_difference(at, found).expect("a difference");
        let mut text = format!("{wrong}\nwhat was done there, and all flushes since:");
        let touched = |operation: &&Operation| {
            matches!(operation, Operation::Sync | Operation::SyncData)
                || operation.range().contains(&first)
        };
        for operation in self.history.iter().rev().filter(touched).take(16) {
            let _ = write!(text, "\n  before: {operation:?}");
        }
        Err(text)
    }

    /// How many bytes of a range lie before the end.
    fn there(&self, at: u64, len: u64) -> u64 {
        len.min(self.end.saturating_sub(at))
    }

    fn apply(&mut self, operation: Operation) -> Result<(), String> {
        let is_file = self.target == Target::File;
        if !is_file && matches!(operation, Operation::Punch { .. } | Operation::Reserve { .. }) {
            // The kernel drops its cache of any block device, dirty pages too, before it finds that
            // it can't do this.
            self.plain[0].sync_all().map_err(|error| error.to_string())?;
        }
        match operation {
            Operation::Read { at, len, by } => {
                let found = self.read(at, len, by).map_err(|error| error.to_string())?;
                is(found.len() as u64, self.there(at, len as u64), "bytes read")?;
                self.check(at, &found)
            }
            Operation::Write { at, len, by } => {
                let data = self.random.bytes(len);
                let there = self.there(at, len as u64) as usize;
                match self.write(at, &data, by) {
                    Ok(written) => {
                        is(written, there, "bytes written")?;
                        self.model.write(at, &data[..written]);
                        Ok(())
                    }
                    Err(error) => is_error(&error, Errno::NOSPC, there == 0),
                }
            }
            Operation::Zero { at, len, keep_size } => {
                let flags = FallocateFlags::ZERO_RANGE;
                self.zero(flags, at, len, keep_size)
            }
            Operation::Punch { at, len } => self.zero(FallocateFlags::PUNCH_HOLE, at, len, true),
            Operation::Copy { from, to, len } => self.copy(from, to, len),
            Operation::Send { at, len } => self.send(at, len),
            Operation::Discard { at, len } => {
                let mut discard = tool("blkdiscard", "util-linux");
                discard.args(["--offset", &at.to_string(), "--length", &len.to_string()]);
                run(discard.arg(&self.path), b"").passes();
                self.model.forget(at, len);
                Ok(())
            }
            Operation::Sync => self.plain[0].sync_all().map_err(|error| error.to_string()),
            Operation::SyncData => self.direct.sync_data().map_err(|error| error.to_string()),
            other => self.try_in_vain(other),
        }
    }

    /// Operations that change nothing: they are refused, or only query.
    fn try_in_vain(&self, operation: Operation) -> Result<(), String> {
        let is_file = self.target == Target::File;
        match operation {
            Operation::Append { len } => {
                let data = vec![1; len];
                match io::Write::write(&mut &self.append, &data) {
                    Ok(written) => Err(format!("{written} bytes were appended")),
                    Err(error) => is_error(&error, Errno::NOSPC, true),
                }
            }
            Operation::Resize { len } => match self.plain[0].set_len(len) {
                Ok(()) => is(len, self.end, "another length"),
                Err(error) if is_file => is_error(&error, Errno::PERM, len != self.end),
                Err(error) => is_error(&error, Errno::INVAL, true),
            },
            Operation::OpenTruncated => match File::create(&self.path) {
                Ok(_) => is(is_file, false, "opened for truncation"),
                Err(error) => is_error(&error, Errno::PERM, is_file),
            },
            Operation::Reserve { at, len, keep_size } => {
                let behind = is_file && !keep_size && at + len > self.end;
                let expected = if behind { Errno::NOSPC } else { Errno::OPNOTSUPP };
                let flags =
                    if keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
                match fallocate(&self.plain[0], flags, at, len) {
                    // Block devices check the range first.
                    Err(Errno::INVAL) if !is_file => Ok(()),
                    done => is(done, Err(expected), "reserved"),
                }
            }
            Operation::Collapse { at, len } => {
                let done = fallocate(&self.plain[0], FallocateFlags::COLLAPSE_RANGE, at, len);
                is(done, Err(Errno::OPNOTSUPP), "collapsed")
            }
            // Block devices do not support this query.
            Operation::SeekData { at } if !is_file => {
                is(seek(&self.plain[1], SeekFrom::Data(at)), Err(Errno::INVAL), "the next data")
            }
            Operation::SeekHole { at } if !is_file => {
                is(seek(&self.plain[1], SeekFrom::Hole(at)), Err(Errno::INVAL), "the next hole")
            }
            Operation::SeekData { at } => {
                let expected = if at < self.end { Ok(at) } else { Err(Errno::NXIO) };
                is(seek(&self.plain[1], SeekFrom::Data(at)), expected, "the next data")
            }
            Operation::SeekHole { at } => {
                let expected = if at < self.end { Ok(self.end) } else { Err(Errno::NXIO) };
                is(seek(&self.plain[1], SeekFrom::Hole(at)), expected, "the next hole")
            }
            _ => Err("it is not done by anybody".into()),
        }
    }

    fn copy(&mut self, from: u64, to: u64, len: usize) -> Result<(), String> {
        let (mut at, mut onto, mut left) = (from, to, len);
        while left > 0 {
            let (source, target) = (&self.plain[0], &self.plain[1]);
            let copied = copy_file_range(source, Some(&mut at), target, Some(&mut onto), left);
            match copied.map_err(|error| error.to_string())? {
                0 => return Err(format!("the copy ends {left} bytes too early")),
                copied => left -= copied,
            }
        }
        self.model.copy(from, to, len);
        Ok(())
    }

    fn send(&self, at: u64, len: usize) -> Result<(), String> {
        let there = self.there(at, len as u64) as usize;
        seek(&self.sent, SeekFrom::Start(0)).map_err(|error| error.to_string())?;
        let (mut from, mut left) = (at, len);
        while left > 0 {
            let sent = sendfile(&self.sent, &self.plain[0], Some(&mut from), left);
            match sent.map_err(|error| error.to_string())? {
                0 => break,
                sent => left -= sent,
            }
        }
        is(len - left, there, "bytes sent")?;
        let mut found = vec![0; there];
        self.sent.read_exact_at(&mut found, 0).map_err(|error| error.to_string())?;
        self.check(at, &found)
    }

    fn file(&self, by: By) -> &File {
        match by {
            By::Plain(number) => &self.plain[number],
            By::Direct | By::Mapping => &self.direct,
        }
    }

    fn read(&self, at: u64, len: usize, by: By) -> io::Result<Vec<u8>> {
        let mut buffer = Aligned::new(len);
        let bytes = buffer.bytes();
        let len = match (by, &self.mapping) {
            (By::Mapping, Some(mapping)) => {
                let slice = mapping.get_slice(at as usize, len).expect("in the mapping");
                slice.copy_to(bytes)
            }
            _ => self.file(by).read_at(bytes, at)?,
        };
        Ok(bytes[..len].to_vec())
    }

    fn write(&self, at: u64, data: &[u8], by: By) -> io::Result<usize> {
        match (by, &self.mapping) {
            (By::Mapping, Some(mapping)) => {
                let slice = mapping.get_slice(at as usize, data.len()).expect("in the mapping");
                slice.copy_from(data);
                Ok(data.len())
            }
            _ => self.file(by).write_at(Aligned::copy_of(data).bytes(), at),
        }
    }

    fn zero(
        &mut self,
        flags: FallocateFlags,
        at: u64,
        len: u64,
        keep_size: bool,
    ) -> Result<(), String> {
        let behind = at + len > self.end;
        let there = self.there(at, len);
        let keep = if keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
        let done = fallocate(&self.plain[0], flags | keep, at, len);
        let expected = match self.target {
            Target::File if behind && !keep_size => Err(Errno::NOSPC),
            // As for every block device: nothing may start behind the end.
            Target::Device { .. } if at >= self.end || behind && !keep_size => Err(Errno::INVAL),
            // The device does not offer zeroes without a write.
            Target::Device { .. } if flags == FallocateFlags::PUNCH_HOLE => Err(Errno::OPNOTSUPP),
            Target::File | Target::Device { .. } => Ok(()),
        };
        is(done, expected, "zeroed")?;
        if done.is_ok() && there > 0 {
            self.model.zero(at, there);
        }
        Ok(())
    }
}

fn is<T: Copy + PartialEq + std::fmt::Debug>(
    found: T,
    expected: T,
    what: &str,
) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?}, not {expected:?}")) }
}

/// `due` tells whether an error is expected.
fn is_error(error: &io::Error, expected: Errno, due: bool) -> Result<(), String> {
    if due && Errno::from_io_error(error) == Some(expected) {
        return Ok(());
    }
    Err(format!("{error}; expected {}", if due { expected.to_string() } else { "success".into() }))
}
