//! Files and block devices.
//!
//! Operations are carried out in one of three ways, chosen at open: `uring` where io_uring works;
//! `threads` where it is missing or forbidden, and on file systems in user space; directly in
//! `submit` for files in memory (tmpfs, memfd), where a system call is the shortest way and io_uring
//! would hand each operation to a kernel thread.

mod bounce;
mod cut;
mod lock;
mod losses;
mod open;
mod ops;
mod threads;
mod uring;
mod zone_order;
mod zones;

#[cfg(test)]
mod tests;

use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::fs::{Advice, Mode, OFlags, SeekFrom, fadvise, fstat};

pub use open::{OpenError, OpenOptions};

pub(crate) use cut::Cut;
pub(crate) use ops::read_full;

use cut::Flushing;

use crate::at_once::AtOnce;
use crate::{Backend, Buf, Errno, Extent, Limits, Map, Mapping, Queue, Zones};

/// An open file or block device.
pub struct FileBackend {
    files: Arc<Files>,
    limits: Limits,
    name: String,
    method: IoMethod,
    zones: Option<zones::DeviceZones>,
    in_use: bool,
    not_direct: bool,
    /// Used by queues that cannot get a ring although io_uring works.
    instead: OnceLock<threads::Threads>,
}

/// The page cache drops only what lies in a range as a whole: pages, and folios of several pages,
/// which lie at multiples of their size. This is the largest folio of Linux with pages of 4 KiB, and
/// a multiple of every size of a page. With larger pages there may be larger folios; such a folio
/// stays.
const FOLIO_BYTES_MAX: u64 = 2 << 20;

/// How operations are carried out.
enum IoMethod {
    Uring,
    AtOnce,
    Threads(threads::Threads),
}

/// The descriptors of one image.
pub(crate) struct Files {
    buffered: lock::Locked,
    direct: Option<Direct>,
    /// The mapping of a file in memory.
    mapping: Option<Arc<Mapping>>,
    /// Alignment of discarded or zeroed ranges, in bytes: a device refuses less than a block.
    punch_align: u64,
    /// Whether ranges are zeroed without written data. A device that cannot do it drops the page cache
    /// of the range, and with it what was written there, before it refuses: it is not asked.
    punches: bool,
    losses: losses::Losses,
    cut: Arc<Cut>,
    /// For a file system in user space. Its server gets each flush with the open file that asks for it, and may report
    /// what was lost once, to the one that wrote it (sshfs): the open files that write are flushed, by one thread at a
    /// time, and what is reported to one is everybody's.
    by_file: Option<Mutex<()>>,
}

/// The same image opened with `O_DIRECT`, and its alignment rules.
struct Direct {
    fd: OwnedFd,
    /// Alignment of the buffer's address, in bytes.
    memory_align: usize,
    /// Alignment of offset and length, in bytes.
    offset_align: u64,
}

impl Direct {
    /// Whether a range consists of whole blocks.
    fn is_whole(&self, offset: u64, len: u64) -> bool {
        (offset | len).is_multiple_of(self.offset_align)
    }

    fn takes(&self, offset: u64, bufs: &[Buf]) -> bool {
        offset.is_multiple_of(self.offset_align)
            && bufs.iter().all(|buf| {
                (buf.len() as u64).is_multiple_of(self.offset_align)
                    && (buf.as_ptr() as usize).is_multiple_of(self.memory_align)
            })
    }
}

impl Files {
    /// The whole blocks of a range, as start and length: only these can be discarded. The rest may
    /// keep its content.
    fn discardable(&self, offset: u64, len: u64) -> Option<(u64, u64)> {
        let align = self.punch_align;
        let start = offset.checked_next_multiple_of(align)?;
        let end = offset.checked_add(len)? / align * align;
        (start < end).then(|| (start, end - start))
    }

    /// The descriptor for a transfer whose memory is aligned if it consists of whole blocks (see
    /// [`bounce`]): writes of parts of blocks need the page cache.
    fn for_transfer(&self, offset: u64, len: u64) -> BorrowedFd<'_> {
        match &self.direct {
            Some(direct) if direct.is_whole(offset, len) => direct.fd.as_fd(),
            _ => self.buffered.as_fd(),
        }
    }

    /// Flushes on the calling thread.
    fn flush(&self, flusher: &Flusher) -> Result<(), Errno> {
        let Some(turn) = &self.by_file else { return ops::flush(flusher.descriptor(self)) };
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut flushed = ops::flush(self.buffered.as_fd());
        if let Some(direct) = &self.direct {
            flushed = ops::flush(direct.fd.as_fd()).and(flushed);
        }
        flushed.inspect_err(|error| self.losses.note(*error))
    }

    /// The answer to a flush that ended so: it fails once data that was written before is lost.
    fn flushed(&self, flushing: Flushing, result: Result<(), Errno>) -> Result<(), Errno> {
        let result = result.and_then(|()| self.losses.check());
        self.cut.end_flush(flushing, self.buffered.as_fd(), result)
    }

    /// The answer to a write that ended so: `end` bytes is the range's end.
    fn written(&self, end: u64, fua: bool, result: Result<(), Errno>) -> Result<(), Errno> {
        result?;
        if fua {
            self.losses.check()?;
            return self.cut.check_write(end, self.cut.len_now(self.buffered.as_fd()));
        }
        self.cut.note_write(end);
        Ok(())
    }
}

/// The descriptor by which a queue flushes: its own open file where possible. The kernel reports
/// lost data once for each open file; if two queues shared one, the second would be told that all
/// is well.
struct Flusher(Option<OwnedFd>);

impl Flusher {
    /// Opens the image once more. If that is not allowed (no /proc), the shared descriptor is used.
    fn new(files: &Files) -> io::Result<Self> {
        Ok(Self(open_again(files.buffered.as_fd())?))
    }

    /// Uses the shared descriptor: for files in memory, which lose no write.
    fn shared() -> Self {
        Self(None)
    }

    fn descriptor<'a>(&'a self, files: &'a Files) -> BorrowedFd<'a> {
        self.0.as_ref().map_or_else(|| files.buffered.as_fd(), AsFd::as_fd)
    }
}

/// Opens an image once more, for reading; `None` if that is never allowed (no /proc).
///
/// # Errors
/// The system has no room for a descriptor now: who went on without it would not be told of what is lost.
fn open_again(image: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
    let path = format!("/proc/self/fd/{}", image.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(again) => Ok(Some(again)),
        Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => Err(error),
        Err(_) => Ok(None),
    }
}

impl FileBackend {
    /// Opens an image as the options say.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self, OpenError> {
        Ok(Self::new(open::open(path, options)?))
    }

    /// A backend over a descriptor that nobody else shares, e.g. a memfd.
    pub(crate) fn from_fd(fd: OwnedFd, name: String, read_only: bool) -> io::Result<Self> {
        Ok(Self::new(open::from_fd(fd, name, read_only)?))
    }

    fn new(opened: open::Opened) -> Self {
        let open::Opened { files, limits, name, in_memory, zones, in_use, not_direct } = opened;
        let (method, instead) = (choose_method(&files, in_memory), OnceLock::new());
        Self { files, limits, name, method, zones, in_use, not_direct, instead }
    }

    /// The reason and the remedy, if io_uring could not be used, or that there is no direct I/O; the
    /// caller reports it once.
    pub fn notice(&self) -> Option<String> {
        let no_ring = match &self.method {
            IoMethod::Threads(threads) => threads.reason().map(str::to_owned),
            IoMethod::Uring | IoMethod::AtOnce => None,
        };
        let cached = || {
            format!("{} has no direct I/O on its file system: the page cache is used", self.name)
        };
        no_ring.or_else(|| self.not_direct.then(cached))
    }

    /// Whether the image was opened as [`OpenOptions::shared`] while another program may write to
    /// it.
    pub fn is_in_use(&self) -> bool {
        self.in_use
    }

    /// Whether this descriptor is of the same file or device as the image.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn is_file(&self, other: BorrowedFd<'_>) -> Result<bool, Errno> {
        Ok(open::is_same(&fstat(self.files.buffered.as_fd())?, &fstat(other)?))
    }

    /// Fills `buf` from `offset` bytes, outside of any queue: for headers.
    pub fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Errno> {
        read_full(self.files.buffered.as_fd(), buf, offset)
    }

    /// Writes `buf` at `offset` bytes, outside of any queue: for headers. Not durable before
    /// [`FileBackend::sync`].
    pub fn write_all_at(&self, offset: u64, buf: &[u8]) -> Result<(), Errno> {
        ops::write_full(self.files.buffered.as_fd(), buf, offset, false)
    }

    /// Makes all writes durable.
    pub fn sync(&self) -> Result<(), Errno> {
        ops::flush(self.files.buffered.as_fd())
    }

    /// Drops `length` bytes at `offset` bytes from the page cache, as far as they are clean and
    /// nobody maps them, so that the next [`FileBackend::read_exact_at`] asks the disk. Drops their
    /// surroundings, too.
    pub fn forget_cached(&self, offset: u64, length: u64) {
        let end = offset.saturating_add(length).checked_next_multiple_of(FOLIO_BYTES_MAX);
        let begin = offset - offset % FOLIO_BYTES_MAX;
        // `None` reaches to the end of the file.
        let whole = end.and_then(|end| NonZero::new(end - begin));
        // Advice: where it is refused, the cache answers as before.
        let _ = fadvise(&self.files.buffered, begin, whole, Advice::DontNeed);
    }

    /// The threads that stand in for rings. Where none can be started, the next queue tries again.
    fn instead(&self, error: &io::Error) -> io::Result<&threads::Threads> {
        if let Some(threads) = self.instead.get() {
            return Ok(threads);
        }
        let threads = threads::Threads::new(&self.files, Some(error));
        threads.check()?;
        Ok(self.instead.get_or_init(|| threads))
    }

    /// A queue that keeps no order.
    fn plain_queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
        Ok(match &self.method {
            IoMethod::Uring => {
                let flusher = Flusher::new(&self.files)?;
                match uring::UringQueue::new(self.files.clone(), flusher, depth) {
                    Ok(queue) => Box::new(queue),
                    // The rings of all processes of a user together count against RLIMIT_MEMLOCK, and
                    // other processes' rings come and go.
                    Err(error) => {
                        let flusher = Flusher::new(&self.files)?;
                        Box::new(self.instead(&error)?.queue(depth, flusher)?)
                    }
                }
            }
            IoMethod::AtOnce => {
                let (files, flusher) = (self.files.clone(), Flusher::shared());
                let mut bounces = bounce::Bounces::default();
                Box::new(AtOnce::new(depth, move |io| {
                    ops::perform(&files, &flusher, &mut bounces, io)
                }))
            }
            IoMethod::Threads(threads) => {
                Box::new(threads.queue(depth, Flusher::new(&self.files)?)?)
            }
        })
    }
}

fn choose_method(files: &Arc<Files>, in_memory: bool) -> IoMethod {
    if in_memory {
        return IoMethod::AtOnce;
    }
    match uring::available() {
        // A ring would give most operations on such a file to threads, too, and tells how a flush ended only when its
        // queue looks.
        _ if files.by_file.is_some() => IoMethod::Threads(threads::Threads::new(files, None)),
        Ok(()) => IoMethod::Uring,
        Err(error) => IoMethod::Threads(threads::Threads::new(files, Some(&error))),
    }
}

impl Backend for FileBackend {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn len_now(&self) -> io::Result<u64> {
        Ok(open::len(self.files.buffered.as_fd())?)
    }

    fn use_until(&self, end: u64) {
        self.files.cut.use_until(end);
    }

    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
        let queue = self.plain_queue(depth)?;
        let Some(zones) = &self.zones else { return Ok(queue) };
        let kinds = zone_order::Asked::new(zones.clone(), self.limits.len);
        Ok(Box::new(zone_order::ZoneOrder::new(queue, kinds)))
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> Vec<Extent> {
        extents(self.files.buffered.as_fd(), offset, len, max)
    }

    fn map(&self) -> Option<Arc<dyn Map>> {
        self.files.mapping.clone().map(|mapping| mapping as Arc<dyn Map>)
    }

    fn zones(&self) -> Option<&dyn Zones> {
        self.zones.as_ref().map(|zones| zones as &dyn Zones)
    }

    fn describe(&self) -> String {
        let method = match &self.method {
            IoMethod::Uring if self.files.direct.is_some() => "io_uring, direct",
            IoMethod::Uring => "io_uring",
            IoMethod::AtOnce => "in memory",
            IoMethod::Threads(_) => "threads",
        };
        format!("{} ({method})", self.name)
    }
}

/// The allocation as reported by `SEEK_HOLE` and `SEEK_DATA`; if the device or file system cannot
/// report it, everything counts as allocated.
fn extents(fd: BorrowedFd<'_>, offset: u64, len: u64, max: usize) -> Vec<Extent> {
    let end = offset.saturating_add(len);
    let mut at = offset;
    let mut extents = Vec::new();
    while at < end && extents.len() < max {
        let data = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
            Ok(data) => data.min(end),
            Err(Errno::NXIO) => end,
            Err(_) => {
                extents.push(Extent { len: end - at, hole: false });
                break;
            }
        };
        if data > at {
            extents.push(Extent { len: data - at, hole: true });
            at = data;
            continue;
        }
        let hole = rustix::fs::seek(fd, SeekFrom::Hole(at)).map_or(end, |hole| hole.min(end));
        // A file that shrinks meanwhile must not stop this loop from advancing.
        let hole = if hole <= at { end } else { hole };
        extents.push(Extent { len: hole - at, hole: false });
        at = hole;
    }
    extents
}
