//! Volumes: the state that all queues of a volume share.

mod suspend;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ucrypt_backend::{Backend, Errno, Extent, Pool};
use ucrypt_dispatch::{Fixed, Policies, PolicyKind};

use crate::calibrate::Calibration;
use crate::cores::Cores;
use crate::counters::{Counted, Counters, Decisions, Totals};
use crate::executor::{Clock, Executor, Monotonic, WorkerPool};
use crate::meters::Meters;
use crate::queue::{Poll, Polling, Queue, QueueConfig};
use crate::range_lock::RangeLock;
use crate::segments::{CipherModel, Segment, Segments};
use crate::workers::Workers;

/// Options of a volume.
#[derive(Debug, Clone, Copy, Default)]
pub struct VolumeOptions {
    /// Refuse everything that changes the volume.
    pub read_only: bool,
    /// Pass discards to the backend. They tell an onlooker which sectors are unused.
    pub allow_discards: bool,
    /// The policies that dispatch requests.
    pub policies: Policies,
    /// A slower cipher to model in place of the real one.
    pub cipher_model: Option<CipherModel>,
    /// Buffer memory in bytes that queues share, in addition to [`QueueConfig::memory`]. Pages are
    /// allocated when they are first touched.
    pub shared_memory: usize,
    /// Number of workers; `None`: one per core. With `None`, the adaptive policy uses as
    /// many workers as there are spare cores at the time, and all while it tries offloading
    /// everything; on one core it has none.
    pub workers: Option<usize>,
    /// How queues wait for the backend while requests come one at a time.
    pub poll: Poll,
}

impl VolumeOptions {
    fn workers(&self) -> Result<Option<Workers>, VolumeError> {
        let cores = cores();
        // On one core a worker gains nothing. The static policies offload all the same, whatever it
        // costs, as dm-crypt does.
        let adaptive = self.policies == Policies::from(PolicyKind::Adaptive);
        let none = self.shares_cores() && adaptive && cores == 1;
        let count = self.workers.unwrap_or(if none { 0 } else { cores });
        if !self.policies.uses_workers() || count == 0 {
            return Ok(None);
        }
        let same_cpu = |policy| matches!(policy, PolicyKind::Fixed(Fixed::SameCpu { .. }));
        let pinned = same_cpu(self.policies.reads) || same_cpu(self.policies.writes);
        Workers::start(count, pinned)
            .map(Some)
            .map_err(|error| VolumeError::Workers { error: error.to_string() })
    }

    /// Whether the adaptive policy uses workers only while there are spare cores.
    fn shares_cores(&self) -> bool {
        let Policies { reads, writes } = self.policies;
        self.workers.is_none() && [reads, writes].contains(&PolicyKind::Adaptive)
    }
}

/// Number of cores that this process may use, at least one.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The properties of a volume that exports report to their clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Length in bytes, a multiple of `write_unit`. [`Volume::resize`] changes it.
    pub len: u64,
    /// Bytes that are encrypted as a whole.
    pub sector_size: u32,
    /// Bytes that are written as a whole, a multiple of `sector_size`: more than a sector where the
    /// blocks of the disk are larger. Writes aligned to it need no read-modify-write.
    pub write_unit: u32,
    /// Best length and alignment of requests, in bytes.
    pub preferred_io: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether discards are accepted.
    pub discard: bool,
    /// Whether the backend zeroes ranges itself, without written data.
    pub fast_write_zeroes: bool,
    /// Whether the thread that submits a request finishes it without waiting.
    pub synchronous: bool,
    /// Whether seeks slow the backend down.
    pub rotational: bool,
}

/// Why segments and a backend cannot form a volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// There is no segment, or all segments are empty.
    #[error("the volume is empty: the image holds no data after its header")]
    Empty,
    /// The system refused a thread.
    #[error(
        "cannot start the workers that encrypt: {error}; raise the limit on threads (ulimit -u)"
    )]
    Workers {
        /// The system's error.
        error: String,
    },
    /// The system refused memory.
    #[error("cannot reserve the buffer memory: {error}; use less (--memory)")]
    Memory {
        /// The system's error.
        error: String,
    },
    /// The backend ends before a segment does.
    #[error(
        "the volume ends at byte {needed} but its image has only {available} bytes; the image is \
         truncated, or the wrong one"
    )]
    TooLarge {
        /// Bytes that the segments need.
        needed: u64,
        /// Bytes that the backend has.
        available: u64,
    },
    /// The ciphers of a resumed volume are not those of its segments.
    #[error("the ciphers are not those of the volume")]
    OtherCiphers,
    /// A segment is not a whole number of sectors, or its offset is not a multiple of 512 bytes.
    #[error("a segment of {len} bytes at byte {offset} is not aligned to sectors of {sector_size}")]
    Unaligned {
        /// Length of the segment in bytes.
        len: u64,
        /// Offset of the segment on the backend, in bytes.
        offset: u64,
        /// Sector size in bytes.
        sector_size: u32,
    },
    /// A segment is not made of whole units of the backend ([`Limits::write_unit`]).
    ///
    /// [`Limits::write_unit`]: ucrypt_backend::Limits::write_unit
    #[error(
        "direct I/O writes whole blocks of {write_unit} bytes here, and {len} bytes at byte {offset} \
         of the image do not consist of such blocks; open it read-only, or, if the disk has no zones, \
         without --direct"
    )]
    PartOfUnit {
        /// Length of the segment in bytes.
        len: u64,
        /// Offset of the segment on the backend, in bytes.
        offset: u64,
        /// The backend's unit in bytes.
        write_unit: u32,
    },
}

/// A decrypted disk over a backend. Use it through [`Volume::queue`].
pub struct Volume {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) segments: Arc<Segments>,
    /// The start of each segment in the volume, in bytes, then the initial end of the last one.
    pub(crate) starts: Vec<u64>,
    pub(crate) locks: RangeLock,
    pub(crate) policies: Policies,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) workers: Option<Arc<dyn WorkerPool>>,
    /// Cores that queues share with workers, or that they spin on; `None`: nobody asks.
    cores: Option<Cores>,
    /// Workers are used whatever that costs others.
    takes_any_core: bool,
    pub(crate) calibration: Calibration,
    pub(crate) shared_memory: Option<Pool>,
    /// Number of queues with requests in flight.
    pub(crate) busy: AtomicU32,
    pub(crate) poll: Poll,
    pub(crate) polling: Mutex<Polling>,
    info: VolumeInfo,
    units: Units,
    /// The present length in bytes; `info.len` is the initial length.
    len: AtomicU64,
    counted: Mutex<Counted>,
    /// The error number of the first flush that failed; 0 if none has.
    flush_error: AtomicI32,
    /// See [`Volume::abandon`].
    abandoned: AtomicBool,
    unwritten: AtomicU64,
    unwritten_bytes: AtomicU64,
    /// See [`Volume::listen`].
    listener: OnceLock<Listener>,
}

type Listener = Box<dyn Fn() + Send + Sync>;

const SECTOR_BYTES: u64 = 512;

impl Volume {
    /// A volume of these segments, end to end.
    pub fn new(
        backend: Arc<dyn Backend>,
        segments: Vec<Segment>,
        options: VolumeOptions,
    ) -> Result<Self, VolumeError> {
        let workers = options.workers()?.map(Arc::new);
        let clock = Arc::new(Monotonic::new());
        let measure = |segments: &Segments| Executor {
            clock: clock.clone(),
            calibration: Calibration::new(segments, workers.as_deref()),
            cores: options.shares_cores().then(|| cores() as u32),
            workers: workers.clone().map(|workers| workers as Arc<dyn WorkerPool>),
        };
        Self::build(backend, segments, options, clock.clone(), measure)
    }

    /// A volume with its own clock and workers, for simulators: see [`Executor`].
    pub fn with_executor(
        backend: Arc<dyn Backend>,
        segments: Vec<Segment>,
        options: VolumeOptions,
        executor: Executor,
    ) -> Result<Self, VolumeError> {
        let clock = executor.clock.clone();
        Self::build(backend, segments, options, clock, |_| executor)
    }

    fn build(
        backend: Arc<dyn Backend>,
        segments: Vec<Segment>,
        options: VolumeOptions,
        clock: Arc<dyn Clock>,
        executor: impl FnOnce(&Segments) -> Executor,
    ) -> Result<Self, VolumeError> {
        let shared_memory = match options.shared_memory {
            0 => None,
            bytes => Some(
                Pool::new(bytes)
                    .map_err(|error| VolumeError::Memory { error: error.to_string() })?,
            ),
        };
        let limits = backend.limits().clone();
        let sector_size = segments.iter().map(Segment::sector_size).max().unwrap_or(512);
        let read_only = options.read_only || limits.read_only;
        let units =
            Units { sector: sector_size, write: if read_only { 512 } else { limits.write_unit } };
        let mut starts = vec![0];
        for segment in &segments {
            let extent = (segment.len, segment.backend_offset);
            starts.push(units.check(extent, limits.len, starts[starts.len() - 1])?);
        }
        let len = starts[starts.len() - 1];
        if len == 0 {
            return Err(VolumeError::Empty);
        }
        let mapping = backend.map();
        let segments = Arc::new(Segments::new(segments, options.cipher_model, mapping, clock));
        let Executor { clock, workers, cores: shared, calibration } = executor(&segments);
        let counts_cores = options.poll == Poll::Auto || workers.is_some() && shared.is_some();
        let info = VolumeInfo {
            len,
            sector_size,
            write_unit: units.both(),
            preferred_io: limits.block.max(sector_size).max(4096),
            read_only,
            discard: options.allow_discards && limits.discard && !read_only,
            fast_write_zeroes: segments.iter().all(|segment| !segment.is_encrypted),
            synchronous: limits.synchronous,
            rotational: limits.rotational,
        };
        Ok(Self {
            backend,
            calibration,
            shared_memory,
            busy: AtomicU32::new(0),
            segments,
            starts,
            locks: RangeLock::new(),
            policies: options.policies,
            clock,
            workers,
            cores: counts_cores.then(|| Cores::new(shared.unwrap_or_else(|| cores() as u32))),
            takes_any_core: shared.is_none(),
            poll: options.poll,
            polling: Mutex::new(Polling::new(options.poll)),
            info,
            units,
            len: AtomicU64::new(len),
            counted: Mutex::default(),
            flush_error: AtomicI32::new(0),
            abandoned: AtomicBool::new(false),
            unwritten: AtomicU64::new(0),
            unwritten_bytes: AtomicU64::new(0),
            listener: OnceLock::new(),
        })
    }

    /// A volume of one segment: the whole backend, unencrypted.
    pub fn raw(backend: Arc<dyn Backend>, options: VolumeOptions) -> Result<Self, VolumeError> {
        let len = backend.limits().len / SECTOR_BYTES * SECTOR_BYTES;
        Self::new(backend, vec![Segment { len, backend_offset: 0, cipher: None }], options)
    }

    /// What was measured of this machine when the volume was opened.
    pub fn calibration(&self) -> Calibration {
        self.calibration
    }

    /// Properties that clients need to know.
    pub fn info(&self) -> VolumeInfo {
        VolumeInfo { len: self.len(), ..self.info }
    }

    /// Bytes of buffer memory that the queues share ([`VolumeOptions::shared_memory`]).
    pub fn shared_memory(&self) -> usize {
        self.shared_memory.as_ref().map_or(0, Pool::len)
    }

    /// Has `listener` called when a request has failed, and by [`Volume::tell`], on the thread where it
    /// happens. Only the first listener is taken.
    pub fn listen(&self, listener: impl Fn() + Send + Sync + 'static) {
        let _ = self.listener.set(Box::new(listener));
    }

    /// Calls the listener: something of the volume has changed, for example an export has ended.
    pub fn tell(&self) {
        if let Some(listener) = self.listener.get() {
            listener();
        }
    }

    /// The length for which the backend has room now, in bytes.
    pub fn len_max(&self) -> io::Result<u64> {
        let last = self.segments.len() - 1;
        let room = self.backend.len_now()?.saturating_sub(self.segments[last].backend_offset);
        let unit = u64::from(self.info.write_unit);
        Ok(self.starts[last] + room / unit * unit)
    }

    /// Changes the length, to at most [`Volume::len_max`]: the last segment grows or shrinks.
    /// Requests that were accepted before are not affected. Exports tell their clients.
    ///
    /// # Errors
    /// [`VolumeError::Unaligned`] or [`VolumeError::PartOfUnit`] if `len` is not a whole number of
    /// sectors or units, [`VolumeError::Empty`] if nothing of the last segment is left,
    /// [`VolumeError::TooLarge`] if the backend is too short.
    pub fn resize(&self, len: u64) -> Result<(), VolumeError> {
        let last = self.segments.len() - 1;
        if len <= self.starts[last] {
            return Err(VolumeError::Empty);
        }
        let segment = &self.segments[last];
        let available = self.backend.len_now().unwrap_or(self.backend.limits().len);
        let grown = (len - self.starts[last], segment.backend_offset);
        self.units.check(grown, available, self.starts[last])?;
        if len > self.len() {
            self.backend.use_until(self.backend_end(len));
        }
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    /// Gives up what lies behind the end of a volume that was made smaller: from now on that is no loss if the image is
    /// cut off there, also if it was written and not flushed. A flush before it tells what was lost until then.
    pub fn give_up_rest(&self) {
        self.backend.use_until(self.backend_end(self.len()));
    }

    /// The end, in the backend and in bytes, of all segments of a volume of `len` bytes.
    fn backend_end(&self, len: u64) -> u64 {
        let ends = self.segments.iter().enumerate().map(|(index, segment)| {
            let is_last = index + 1 == self.segments.len();
            let end = if is_last { len } else { self.starts[index + 1] };
            segment.backend_offset + (end - self.starts[index])
        });
        ends.max().unwrap_or(u64::MAX)
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// A one-line description of the backend.
    pub fn describe_backend(&self) -> String {
        self.backend.describe()
    }

    /// The policies that dispatch requests.
    pub fn policies(&self) -> Policies {
        self.policies
    }

    /// A new queue, for one thread.
    pub fn queue(self: &Arc<Self>, config: QueueConfig) -> io::Result<Queue> {
        self.queue_with_ring(config, 0)
    }

    /// A new queue whose [`Queue::ring`] has room for `entries` entries of its owner under way.
    ///
    /// # Errors
    /// The system's errors; `Unsupported` if the kernel has no entries of 128 bytes (before 5.19).
    pub fn queue_with_ring(
        self: &Arc<Self>,
        config: QueueConfig,
        entries: u32,
    ) -> io::Result<Queue> {
        let counters = Arc::new(Counters::default());
        let queue = Queue::new(self.clone(), config, entries, counters.clone())?;
        self.counted().add(counters);
        Ok(queue)
    }

    /// Totals of all clients since the volume was opened.
    pub fn totals(&self) -> Totals {
        self.counted().totals()
    }

    /// What operators watch, added up over all queues since the volume was opened.
    pub fn meters(&self) -> Meters {
        self.counted().meters()
    }

    pub(crate) fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The decisions of the queues and the estimates behind them, one entry per queue in use.
    pub fn decisions(&self) -> Vec<Decisions> {
        self.counted().decisions()
    }

    /// The error of the first flush that failed, or of the first write that could not be made
    /// durable. After it no flush and no write with FUA succeeds until the volume is opened again:
    /// the system reports lost data once, and nobody knows which writes are lost.
    pub fn flush_error(&self) -> Option<Errno> {
        match self.flush_error.load(Ordering::SeqCst) {
            0 => None,
            error => Some(Errno::from_raw_os_error(error)),
        }
    }

    pub(crate) fn fail_flushes(&self, error: Errno) {
        let number = error.raw_os_error();
        let _ = self.flush_error.compare_exchange(0, number, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Cores that workers may use; see [`Cores::spare`].
    pub(crate) fn spare_cores(&self, busy_client: bool) -> u32 {
        match &self.cores {
            Some(cores) if !self.takes_any_core => cores.spare(busy_client),
            _ => u32::MAX,
        }
    }

    /// Whether a queue may spin on its core without taking it from another one.
    pub(crate) fn has_spare_core(&self) -> bool {
        self.cores.as_ref().is_none_or(|cores| cores.spare(false) > 0)
    }

    /// Counts a queue that wakes up or goes to sleep.
    pub(crate) fn count_awake(&self, was: bool, is: bool) {
        if let Some(cores) = &self.cores {
            match (was, is) {
                (false, true) => cores.awake(),
                (true, false) => cores.asleep(),
                _ => {}
            }
        }
    }

    /// The allocation of `len` bytes from `offset` of the volume, as at most `max` extents, which
    /// together may end early. A hole in the image of an encrypted segment does not read as zeroes.
    pub fn extents(&self, offset: u64, len: u64, max: usize) -> Vec<VolumeExtent> {
        let mut extents = Vec::new();
        let end = offset.saturating_add(len).min(self.len());
        let mut at = offset;
        while at < end && extents.len() < max {
            let index = self.segment_at(at);
            let segment = &self.segments[index];
            let is_last = index + 1 == self.segments.len();
            let until = if is_last { end } else { end.min(self.starts[index + 1]) };
            let backend_offset = segment.backend_offset + (at - self.starts[index]);
            let found = self.backend.extents(backend_offset, until - at, max - extents.len());
            let covered: u64 = found.iter().map(|extent| extent.len).sum();
            let zero = !segment.is_encrypted;
            extents.extend(found.into_iter().map(|Extent { len, hole }| VolumeExtent {
                len,
                hole,
                zero: hole && zero,
            }));
            at += covered;
            if covered == 0 || at < until {
                break;
            }
        }
        extents
    }

    /// The segment that holds a 512-byte sector of the volume, and the sector's number in it.
    pub(crate) fn locate(&self, sector: u64) -> (usize, u64) {
        let segment = self.segment_at(sector * 512);
        (segment, sector - self.starts[segment] / 512)
    }

    /// The index of the segment that holds the byte at `offset`.
    pub(crate) fn segment_at(&self, offset: u64) -> usize {
        if self.segments.len() == 1 {
            return 0;
        }
        // The last segment may have grown beyond the last of the starts.
        let after = self.starts.partition_point(|&start| start <= offset);
        after.min(self.segments.len()) - 1
    }
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("info", &self.info).finish_non_exhaustive()
    }
}

/// An extent of a volume, for block status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeExtent {
    /// Length in bytes.
    pub len: u64,
    /// Whether nothing is allocated for the extent.
    pub hole: bool,
    /// Whether the extent reads as zeroes.
    pub zero: bool,
}

/// Bytes that must stay together.
#[derive(Debug, Clone, Copy)]
struct Units {
    /// The largest sector of the segments' ciphers.
    sector: u32,
    /// The backend's, if anything is written.
    write: u32,
}

impl Units {
    /// Both are powers of two.
    fn both(self) -> u32 {
        self.sector.max(self.write)
    }

    /// Checks a segment's length and backend offset. Returns where the segment ends in the volume if
    /// it starts at `start`.
    fn check(
        self,
        (len, offset): (u64, u64),
        available: u64,
        start: u64,
    ) -> Result<u64, VolumeError> {
        if !len.is_multiple_of(u64::from(self.sector)) || !offset.is_multiple_of(SECTOR_BYTES) {
            return Err(VolumeError::Unaligned { len, offset, sector_size: self.sector });
        }
        if !(len | offset).is_multiple_of(u64::from(self.write)) {
            return Err(VolumeError::PartOfUnit { len, offset, write_unit: self.write });
        }
        let needed = offset.saturating_add(len);
        let end = start.checked_add(len);
        match end {
            Some(end) if needed <= available => Ok(end),
            _ => Err(VolumeError::TooLarge { needed, available }),
        }
    }
}
