//! The one file: what is answered at once, and what is asked of the volume.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;
use ucrypt_engine::{Errno, Io, Volume, VolumeInfo};

use super::abi::{Attr, Body, Request, Time};
use super::hidden::{Hole, Holes};

/// Longest range that a hole punched into the file may have. Plaintext zeroes are data to the
/// backend: `mkfs` punching a whole volume would write all of it. It goes on without.
const PUNCH_MAX: u64 = 64 << 20;

const S_IFREG: u32 = 0o100_000;
const FALLOC_KEEP_SIZE: u32 = 1;
const FALLOC_PUNCH_HOLE: u32 = 2;
const FALLOC_ZERO_RANGE: u32 = 16;

/// What a request comes to.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The answer.
    Now(Result<Body, Errno>),
    /// Nobody waits for an answer.
    Silent,
    /// The volume has to read, and the data is the answer.
    Read { offset: u64, len: usize },
    /// The volume has to write the first `len` bytes of the request's data; the answer tells how
    /// many that were.
    Write { offset: u64, len: usize, fua: bool },
    /// The volume has to do this. The answer has no body, or, if it is to be refused all the same, is
    /// `EOPNOTSUPP`.
    Do { io: Io<'static>, refuse: bool },
}

/// Who uses the file.
#[derive(Debug)]
pub(super) enum User {
    /// Programs, by its name.
    Programs,
    /// The loop driver, which has ways of its own (see `hidden`).
    LoopDriver(Arc<Holes>),
}

/// See the module.
#[derive(Debug)]
pub(super) struct VolumeFile {
    pub(super) volume: Arc<Volume>,
    attr: Attr,
    modified: Mutex<Modified>,
    /// How often programs have it open.
    opened: AtomicU64,
    user: User,
}

/// When the content was changed: since its server started, as seen by who looks at the file.
#[derive(Debug, Clone, Copy)]
struct Modified {
    /// How many requests had changed it by then.
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

    /// Whether a program has it open.
    pub(super) fn is_open(&self) -> bool {
        self.opened.load(Ordering::Acquire) > 0
    }

    fn info(&self) -> VolumeInfo {
        self.volume.info()
    }

    fn len(&self) -> u64 {
        self.info().len
    }

    /// What the loop driver does, if it is the user.
    fn driver(&self) -> Option<&Holes> {
        match &self.user {
            User::Programs => None,
            User::LoopDriver(holes) => Some(holes),
        }
    }

    /// `data`: bytes that came with a write; `zeroes` tells whether they are all zero.
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
            // Once only, at the start.
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

    /// When the content was changed, and from now on the time that is given. What others have changed
    /// counts too: programs that copy what is new go by it.
    fn modified(&self, set: Option<Time>) -> Duration {
        let changes = changes(&self.volume);
        let mut modified = self.modified.lock().unwrap_or_else(PoisonError::into_inner);
        let at = match set {
            Some(Time::At(at)) => at,
            // Another time than before, whatever the clock says.
            Some(Time::Now) => now().max(modified.at + Duration::from_nanos(1)),
            None if changes == modified.changes => modified.at,
            None if now() == modified.at => modified.at + Duration::from_nanos(1),
            None => now(),
        };
        *modified = Modified { changes, at };
        at
    }

    /// The driver takes the block size for the granularity of discards, and offers none if there
    /// is no answer.
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

    /// A disk keeps its size: as for a sealed file, another one is not permitted. Opening with
    /// `O_TRUNC` is such an attempt. Who may use the file was decided by who opened the volume.
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

    /// As for a file: a read ends where the file does.
    fn read(&self, offset: u64, size: u32) -> Outcome {
        match u64::from(size).min(self.len().saturating_sub(offset)) {
            0 => Outcome::Now(Ok(Body::EMPTY)),
            len => Outcome::Read { offset, len: len as usize },
        }
    }

    /// As for a block device: what fits is written, behind the end there is no space.
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
        // As for a file: what lies behind its end is not there to be zeroed.
        let len_there = len.min(self.len().saturating_sub(offset));
        let fast = self.info().fast_write_zeroes;
        let unsupported = Outcome::Now(Err(Errno::OPNOTSUPP));
        let no_unmap = match (mode & !FALLOC_KEEP_SIZE, self.driver()) {
            (FALLOC_PUNCH_HOLE, Some(holes)) if !fast => {
                return self.hole(holes, offset, len_there);
            }
            (FALLOC_PUNCH_HOLE, _) if len > PUNCH_MAX && !fast => return unsupported,
            (FALLOC_PUNCH_HOLE, _) => false,
            (FALLOC_ZERO_RANGE, Some(holes)) if holes.asking() => return unsupported,
            (FALLOC_ZERO_RANGE, _) => true,
            // Also to reserve space: an image that has holes cannot promise that later writes find
            // any.
            _ => return unsupported,
        };
        if len_there == 0 {
            return Outcome::Now(Ok(Body::EMPTY));
        }
        let io = Io::WriteZeroes { offset, len: len_there, fua: false, no_unmap };
        Outcome::Do { io, refuse: false }
    }

    /// The driver makes a hole.
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

/// How many requests have changed the content, or may have.
fn changes(volume: &Volume) -> u64 {
    let totals = volume.totals();
    totals.writes + totals.discards + totals.errors
}

/// Since the epoch.
fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO)
}
