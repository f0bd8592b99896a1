//! The one file: decides which requests are answered at once and which go to the volume.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;
use ucrypt_engine::{Errno, Io, Volume, VolumeInfo};

use super::abi::{Attr, Body, Request, Time};
use super::hidden::{Hole, Holes};

/// Longest range that is zeroed in one request, in bytes. To the backend, plaintext zeroes are data: `mkfs` punching a
/// whole volume would write all of it. Meanwhile the kernel keeps other writers and every fsync out of the file, and who
/// asked cannot be killed. Programs that are refused write zeroes, or do without. Twice as much takes twice as long.
const ZEROES_BYTES_MAX: u64 = 64 << 20;

const S_IFREG: u32 = 0o100_000;
const FALLOC_KEEP_SIZE: u32 = 1;
const FALLOC_PUNCH_HOLE: u32 = 2;
const FALLOC_ZERO_RANGE: u32 = 16;

/// What to do about a request.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Answer this.
    Now(Result<Body, Errno>),
    /// Do not answer: nobody waits for it.
    Silent,
    /// Read from the volume; the data is the answer.
    Read { offset: u64, len: usize },
    /// Write the first `len` bytes of the request's data to the volume; the answer is that count.
    Write { offset: u64, len: usize, fua: bool },
    /// Have the volume do this. The answer has no body; with `refuse`, it is `EOPNOTSUPP` even
    /// after success.
    Do { io: Io<'static>, refuse: bool },
}

/// What to answer after the volume has done what a request needs.
#[derive(Debug, Clone, Copy)]
pub(super) enum Success {
    /// Nothing.
    Nothing,
    /// That many bytes, which were read.
    Data(usize),
    /// That many bytes were written.
    Written(u32),
    /// The request is refused all the same (see [`Outcome::Do`]).
    Refused,
}

/// Who uses the file.
#[derive(Debug)]
pub(super) enum User {
    /// Programs, which open it by name.
    Programs,
    /// The loop driver, whose holes need special care (see `hidden`).
    LoopDriver(Arc<Holes>),
}

/// The file that a volume is served as.
#[derive(Debug)]
pub(super) struct VolumeFile {
    pub(super) volume: Arc<Volume>,
    attr: Attr,
    modified: Mutex<Modified>,
    /// Number of open files that programs have.
    opened: AtomicU64,
    user: User,
}

/// When the content last changed since the server started, as of the last look at the file.
#[derive(Debug, Clone, Copy)]
struct Modified {
    /// How many requests had changed the content by then.
    changes: u64,
    /// Since the epoch.
    at: Duration,
}

impl VolumeFile {
    pub(super) fn new(volume: Arc<Volume>, user: User) -> Self {
        let info = volume.info();
        let attr = Attr {
            size: info.len,
            time: now(),
            mode: S_IFREG | if info.read_only { 0o400 } else { 0o600 },
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            block: info.preferred_io,
        };
        let modified = Mutex::new(Modified { changes: changes(&volume), at: attr.time });
        Self { volume, attr, modified, opened: AtomicU64::new(0), user }
    }

    /// Whether a program has the file open.
    pub(super) fn is_open(&self) -> bool {
        self.opened.load(Ordering::Acquire) > 0
    }

    fn info(&self) -> VolumeInfo {
        self.volume.info()
    }

    fn len(&self) -> u64 {
        self.info().len
    }

    /// What is known about the loop driver's holes, if the driver is the user.
    fn driver(&self) -> Option<&Holes> {
        match &self.user {
            User::Programs => None,
            User::LoopDriver(holes) => Some(holes),
        }
    }

    /// Decides what to do about a request. `data` is the number of bytes that came with a write;
    /// `zeroes` tells whether they are all zero.
    pub(super) fn take(
        &self,
        request: Request,
        data: usize,
        zeroes: impl FnOnce() -> bool,
    ) -> Outcome {
        match request {
            Request::Getattr => Outcome::Now(Ok(self.attr())),
            Request::Setattr { size, ownership, modified } => {
                Outcome::Now(self.setattr(size, ownership, modified))
            }
            Request::Open => {
                self.opened.fetch_add(1, Ordering::AcqRel);
                Outcome::Now(Ok(Body::open()))
            }
            Request::Release => {
                self.opened.fetch_sub(1, Ordering::AcqRel);
                Outcome::Now(Ok(Body::EMPTY))
            }
            Request::Statfs => Outcome::Now(self.statfs()),
            Request::Nothing => Outcome::Now(Ok(Body::EMPTY)),
            Request::Silent => Outcome::Silent,
            // INIT comes only once, at the start.
            Request::Init { .. } => Outcome::Now(Err(Errno::IO)),
            Request::Read { offset, size } => self.read(offset, size),
            Request::Write { offset, size, flags } => self.write(offset, size, flags, data, zeroes),
            Request::Fsync => Outcome::Do { io: Io::Flush, refuse: false },
            Request::Fallocate { offset, len, mode } => self.fallocate(offset, len, mode),
        }
    }

    fn attr(&self) -> Body {
        Body::attr(&Attr { size: self.len(), time: self.modified(None), ..self.attr })
    }

    /// Returns when the content last changed; `set` replaces that time. Changes through other
    /// exports count too: programs that copy only new content go by this time.
    fn modified(&self, set: Option<Time>) -> Duration {
        let changes = changes(&self.volume);
        let mut modified = self.modified.lock().unwrap_or_else(PoisonError::into_inner);
        let at = match set {
            Some(Time::At(at)) => at,
            // Later than before, whatever the clock says.
            Some(Time::Now) => now().max(modified.at + Duration::from_nanos(1)),
            None if changes == modified.changes => modified.at,
            None if now() == modified.at => modified.at + Duration::from_nanos(1),
            None => now(),
        };
        *modified = Modified { changes, at };
        at
    }

    /// The loop driver uses the block size as its discard granularity, and offers no discards if
    /// this request fails.
    fn statfs(&self) -> Result<Body, Errno> {
        let info = self.info();
        if let Some(holes) = self.driver() {
            holes.limits_are_renewed();
            if !info.discard && !info.fast_write_zeroes {
                return Err(Errno::NOSYS);
            }
        }
        Ok(Body::statfs(info.sector_size))
    }

    /// A disk keeps its size: as for a sealed file, changing it is not permitted. Opening with
    /// `O_TRUNC` is such an attempt. Nor do mode and owner change: whoever opened the volume decided
    /// who may use the file.
    fn setattr(
        &self,
        size: Option<u64>,
        ownership: bool,
        modified: Option<Time>,
    ) -> Result<Body, Errno> {
        if ownership || size.is_some_and(|size| size != self.len()) {
            return Err(Errno::PERM);
        }
        if modified.is_some() {
            self.modified(modified);
        }
        Ok(self.attr())
    }

    /// As for a file: a read ends at the end of the file.
    fn read(&self, offset: u64, size: u32) -> Outcome {
        match u64::from(size).min(self.len().saturating_sub(offset)) {
            0 => Outcome::Now(Ok(Body::EMPTY)),
            len => Outcome::Read { offset, len: len as usize },
        }
    }

    /// As for a block device: writes as much as fits; beyond the end there is no space.
    fn write(
        &self,
        offset: u64,
        size: u32,
        flags: u32,
        data: usize,
        zeroes: impl FnOnce() -> bool,
    ) -> Outcome {
        if size as usize != data {
            return Outcome::Now(Err(Errno::INVAL));
        }
        if data == 0 {
            return Outcome::Now(Ok(Body::written(0)));
        }
        match self.len().saturating_sub(offset).min(data as u64) as usize {
            0 => Outcome::Now(Err(Errno::NOSPC)),
            len if self.driver().is_some_and(|holes| holes.is_probe(offset, len, zeroes)) => {
                Outcome::Now(Ok(Body::written(len as u32)))
            }
            len => Outcome::Write { offset, len, fua: flags & OFlags::DSYNC.bits() != 0 },
        }
    }

    fn fallocate(&self, offset: u64, len: u64, mode: u32) -> Outcome {
        if mode & FALLOC_KEEP_SIZE == 0 && offset.saturating_add(len) > self.len() {
            return Outcome::Now(Err(Errno::NOSPC));
        }
        // As for a file: there is nothing to zero beyond its end.
        let len_there = len.min(self.len().saturating_sub(offset));
        let fast = self.info().fast_write_zeroes;
        let unsupported = Outcome::Now(Err(Errno::OPNOTSUPP));
        let no_unmap = match (mode & !FALLOC_KEEP_SIZE, self.driver()) {
            (FALLOC_PUNCH_HOLE, Some(holes)) if !fast => {
                return self.hole(holes, offset, len_there);
            }
            (FALLOC_PUNCH_HOLE, _) if len_there > ZEROES_BYTES_MAX && !fast => return unsupported,
            (FALLOC_PUNCH_HOLE, _) => false,
            (FALLOC_ZERO_RANGE, Some(holes)) if holes.asking() => return unsupported,
            // Also where the image zeroes fast: the space has to stay allocated, so it may have to be written. The
            // loop driver would never ask again, and no inode of its file keeps others out.
            (FALLOC_ZERO_RANGE, None) if len_there > ZEROES_BYTES_MAX => return unsupported,
            (FALLOC_ZERO_RANGE, _) => true,
            // Reserving space, too: a sparse image cannot promise that later writes find any.
            _ => return unsupported,
        };
        if len_there == 0 {
            return Outcome::Now(Ok(Body::EMPTY));
        }
        let io = Io::WriteZeroes { offset, len: len_there, fua: false, no_unmap, fast: false };
        Outcome::Do { io, refuse: false }
    }

    /// Handles a hole that the loop driver punches.
    fn hole(&self, holes: &Holes, offset: u64, len: u64) -> Outcome {
        if !self.info().discard {
            return Outcome::Now(Err(Errno::OPNOTSUPP));
        }
        let io = Io::Discard { offset, len };
        match holes.meaning() {
            Hole::Discard => Outcome::Do { io, refuse: false },
            Hole::DiscardOrNothing => Outcome::Do { io, refuse: true },
            Hole::Unclear => Outcome::Now(Err(Errno::OPNOTSUPP)),
        }
    }
}

/// How many requests have changed the content or may have changed it.
fn changes(volume: &Volume) -> u64 {
    let totals = volume.totals();
    totals.writes + totals.discards + totals.errors
}

/// Since the epoch.
fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO)
}
