//! The built-in generator of load: like fio, it keeps a number of requests in flight.
//!
//! Each job is a thread with a queue of its own, and is client and server of it. Requests longer
//! than [`PIECE_MAX`] are passed on in pieces of that length, as the kernel passes a long read on
//! in bios; a request ends with its last piece. Latencies and bytes are those of requests that
//! ended in the window (`window.rs`), which all jobs share. Writes carry random bytes, made before the first
//! request.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ucrypt_backend::{Backend, Buf, Pool};
use ucrypt_engine::{Queue, QueueConfig, Rejected, Volume};

use crate::bounded::{self, END_PATIENCE, Work};
use crate::catalogue::{Cell, SLICE_MS};
use crate::client::{Job, Requests};
use crate::sample::{Sample, distribution};
use crate::store::TIME_MS_MAX;
use crate::window::Window;

/// Longest piece of a request, in bytes: a bio of 256 pages.
pub const PIECE_MAX: u64 = 1 << 20;

/// Pieces that a job keeps in flight when its requests are longer than a piece.
const LONG_PIECES: usize = 32;

/// A run of long requests measures at least this many for each job, however long they take.
const REQUESTS_MIN: u64 = 2;

/// Slices kept: those of the longest measurement, and some seconds that its last request may take.
const SLICES_MAX: usize = (TIME_MS_MAX / SLICE_MS) as usize + 1000;

/// How much longer than its time a load may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What a load is expected to move in a second at least, in bytes: a slow card. Doubled, slower
/// disks than that count as hanging.
pub(crate) const SLOW_BYTES_S: u64 = 4_000_000;

/// How long a measurement takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Not measured.
    pub ramp: Duration,
    /// Measured.
    pub measured: Duration,
}

/// What a job sends its pieces to.
trait Disk {
    /// Submits a piece. Returns whether there was room.
    fn submit(&mut self, tag: u64, is_read: bool, offset: u64, len: usize) -> io::Result<bool>;

    /// Waits for an answer, and appends the tags of the pieces that have ended.
    fn wait(&mut self, ended: &mut Vec<u64>) -> io::Result<()>;
}

/// A backend without anything on top.
struct Raw {
    queue: Box<dyn ucrypt_backend::Queue>,
    pool: Pool,
    answers: Vec<ucrypt_backend::Done>,
}

impl Disk for Raw {
    fn submit(&mut self, token: u64, is_read: bool, offset: u64, len: usize) -> io::Result<bool> {
        if self.queue.room() == 0 {
            return Ok(false);
        }
        let Some(buf) = self.pool.alloc(len) else { return Ok(false) };
        let bufs = vec![buf];
        self.queue.submit(if is_read {
            ucrypt_backend::Io::Read { token, offset, bufs }
        } else {
            ucrypt_backend::Io::Write { token, offset, bufs, fua: false }
        });
        Ok(true)
    }

    fn wait(&mut self, ended: &mut Vec<u64>) -> io::Result<()> {
        self.queue.wait(&mut self.answers)?;
        for answer in self.answers.drain(..) {
            answer.result?;
            ended.push(answer.token);
        }
        Ok(())
    }
}

/// A volume of the engine.
struct Engine {
    queue: Queue,
    /// The client's own memory, to which reads are copied.
    taken: Vec<u8>,
}

impl Disk for Engine {
    fn submit(&mut self, tag: u64, is_read: bool, offset: u64, len: usize) -> io::Result<bool> {
        let op = if is_read {
            ucrypt_engine::Io::read(offset, len)
        } else {
            let Some(data) = self.queue.alloc(len) else { return Ok(false) };
            ucrypt_engine::Io::write(offset, data, false)
        };
        match self.queue.submit(tag, op) {
            Ok(()) => Ok(true),
            Err(Rejected::Busy(_)) => Ok(false),
            Err(rejected) => Err(rejected
                .errno()
                .map_or_else(|| io::Error::other("the engine refused a request"), io::Error::from)),
        }
    }

    fn wait(&mut self, ended: &mut Vec<u64>) -> io::Result<()> {
        self.queue.wait()?;
        while let Some(done) = self.queue.next_done() {
            done.result?;
            // A client takes its data, from whichever cache it is in.
            if let Some(data) = &done.data {
                self.taken[..data.len()].copy_from_slice(data);
            }
            ended.push(done.tag);
        }
        Ok(())
    }
}

/// What a load runs against, in this process.
#[derive(Clone)]
pub enum Place {
    /// A backend.
    Raw(Arc<dyn Backend>),
    /// A volume.
    Engine(Arc<Volume>),
}

impl Place {
    /// A queue for pieces of `piece` bytes. `seed` determines what they write.
    fn disk(&self, depth: u32, piece: usize, seed: u64) -> io::Result<Box<dyn Disk>> {
        let memory = depth as usize * piece.next_power_of_two().max(4096);
        Ok(match self {
            Self::Raw(backend) => {
                let pool = Pool::new(memory)?;
                fill(std::iter::from_fn(|| pool.alloc(piece)).collect(), seed);
                Box::new(Raw { queue: backend.queue(depth)?, pool, answers: Vec::new() })
            }
            Self::Engine(volume) => {
                let mut queue = volume.queue(QueueConfig::new(2 * memory, depth))?;
                queue.set_clients_here(true);
                // Both of a piece's buffers.
                let buffers = 2 * depth as usize;
                fill((0..buffers).map_while(|_| queue.alloc(piece)).collect(), seed);
                Box::new(Engine { queue, taken: vec![0; piece] })
            }
        })
    }
}

/// Fills the buffers of a queue with random bytes, and gives them back: what a write carries
/// later is random, as ciphertext is, and takes no time of the measurement. Storage may store
/// zeroes faster than data.
fn fill(buffers: Vec<Buf>, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    for mut buf in buffers {
        random.fill(&mut buf);
    }
}

/// A load: a cell over the first `region_bytes` of a place.
#[derive(Debug, Clone, Copy)]
pub struct Load<'a> {
    /// Pattern, block size, depth and jobs.
    pub cell: &'a Cell,
    /// Bytes from the start that are accessed; at least a block.
    pub region_bytes: u64,
    /// How long.
    pub times: Times,
    /// Whether to count the bytes of each slice of [`SLICE_MS`].
    pub slices: bool,
    /// Determines the offsets of random requests.
    pub seed: u64,
    /// At most this many requests for each job, if given: then the ramp is left out.
    pub requests: Option<u64>,
}

impl Load<'_> {
    /// When it counts as hanging, since its start. Long requests on a slow disk take their time.
    pub(crate) fn limit(&self) -> Duration {
        let Cell { block_bytes, depth, jobs, .. } = *self.cell;
        // Before and after the ramp, and those that are measured at least.
        let rounds = REQUESTS_MIN + 2;
        let requests = self.requests.unwrap_or(0).max(rounds.saturating_mul(depth.into()));
        let bytes = block_bytes.saturating_mul(requests).saturating_mul(jobs.into());
        let Times { ramp, measured } = self.times;
        ramp + measured + PATIENCE + Duration::from_secs(bytes / SLOW_BYTES_S)
    }
}

/// What a run left behind if it was interrupted.
pub const INTERRUPTED: &str = "interrupted";

fn interrupted() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, INTERRUPTED)
}

/// Whether work ended with this error because `stop` was set: a request that a signal interrupts fails with
/// an error of the same kind.
pub(crate) fn is_stopped(error: &io::Error, stop: &AtomicBool) -> bool {
    error.kind() == io::ErrorKind::Interrupted && stop.load(Ordering::Relaxed)
}

/// Runs a load. `stop` ends it early, with an error of kind `Interrupted`.
///
/// # Errors
/// If a request fails, memory or threads are missing, `stop` was set, or the place does not answer
/// (`TimedOut`).
///
/// # Panics
/// If the region has no room for a block.
pub fn run(place: &Place, load: Load<'_>, stop: &AtomicBool) -> io::Result<Sample> {
    // Whoever guards a server of the place comes first.
    run_within(place, load, stop, load.limit() + END_PATIENCE)
}

/// As [`run`]; after `limit`, the place counts as hanging.
fn run_within(
    place: &Place,
    load: Load<'_>,
    stop: &AtomicBool,
    limit: Duration,
) -> io::Result<Sample> {
    let jobs = load.cell.jobs.max(1);
    let Load { cell, region_bytes, times, slices, seed, requests } = load;
    let enough = if requests.is_some() { 0 } else { REQUESTS_MIN * u64::from(jobs) };
    let window = Arc::new(Window::new(times, jobs, enough, requests.is_some()));
    let job = |job: u32| -> Work<Counts> {
        let (place, cell, window) = (place.clone(), cell.clone(), window.clone());
        Box::new(move |stop| {
            let load = Load { cell: &cell, region_bytes, times, slices, seed, requests };
            let entrant = window.entrant();
            let run = Run::new(&place, load, (job, jobs))?;
            let started = entrant.begin(stop).ok_or_else(interrupted)?;
            run.go(&window, started, stop)
        })
    };
    let ran = bounded::carry_out((0..jobs).map(job).collect(), limit, stop, &|| {})?;
    let mut all = Counts::new();
    for counts in ran {
        all.add(&counts)?;
    }
    let seconds = window.seconds();
    let slice_s = SLICE_MS as f64 / 1000.0;
    // The first and the last slice are not whole.
    let whole = all.slices.len().saturating_sub(1).max(1).min(all.slices.len());
    let slices = all.slices.get(1..whole).unwrap_or_default();
    Ok(Sample {
        mb_s: all.bytes as f64 / 1e6 / seconds.max(1e-9),
        seconds,
        slices_mb_s: slices.iter().map(|&bytes| bytes as f64 / 1e6 / slice_s).collect(),
        load: "built-in".into(),
        ..Sample::of_latencies(&all.latencies)
    })
}

/// The counts of one job.
struct Counts {
    latencies: hdrhistogram::Histogram<u64>,
    bytes: u64,
    /// Bytes by slice.
    slices: Vec<u64>,
}

impl Counts {
    fn new() -> Self {
        Self { latencies: distribution(), bytes: 0, slices: Vec::new() }
    }

    fn add(&mut self, other: &Self) -> io::Result<()> {
        self.latencies.add(&other.latencies).map_err(io::Error::other)?;
        self.bytes += other.bytes;
        self.slices.resize(self.slices.len().max(other.slices.len()), 0);
        for (sum, bytes) in self.slices.iter_mut().zip(&other.slices) {
            *sum += bytes;
        }
        Ok(())
    }
}

/// A request under way.
#[derive(Debug, Clone, Copy)]
struct Active {
    sent: Instant,
    is_read: bool,
    /// Of the next piece.
    offset: u64,
    /// Bytes that are in no piece yet.
    left: u64,
    /// Pieces under way.
    pieces: u32,
}

/// One job.
struct Run<'a> {
    load: Load<'a>,
    disk: Box<dyn Disk>,
    requests: Requests,
    active: Vec<Active>,
    /// Requests without a request in their place.
    free: Vec<usize>,
    /// The request that is being passed on in pieces.
    current: Option<usize>,
    /// By piece: its request.
    pieces: Vec<usize>,
    free_pieces: Vec<usize>,
    counts: Counts,
}

impl<'a> Run<'a> {
    fn new(place: &Place, load: Load<'a>, (job, jobs): (u32, u32)) -> io::Result<Self> {
        let Cell { pattern, block_bytes, depth, .. } = *load.cell;
        let piece = block_bytes.min(PIECE_MAX);
        let depth = depth.max(1) as usize;
        let pieces = if block_bytes > PIECE_MAX { depth.max(LONG_PIECES) } else { depth };
        let content = load.seed.wrapping_mul(jobs.into()).wrapping_add(job.into());
        let disk = place.disk(pieces as u32, piece as usize, content)?;
        let job_of = Job {
            pattern,
            block_bytes,
            depth: depth as u32,
            requests: load.requests.unwrap_or(u64::MAX),
            region_bytes: load.region_bytes,
        };
        let now = Instant::now();
        let unused = Active { sent: now, is_read: true, offset: 0, left: 0, pieces: 0 };
        Ok(Self {
            load,
            disk,
            requests: Requests::new(job_of, (job.into(), jobs.into()), load.seed),
            active: vec![unused; depth],
            free: (0..depth).rev().collect(),
            current: None,
            pieces: vec![0; pieces],
            free_pieces: (0..pieces).rev().collect(),
            counts: Counts::new(),
        })
    }

    fn go(mut self, window: &Window, started: Instant, stop: &AtomicBool) -> io::Result<Counts> {
        let mut now = Instant::now();
        let mut ended = Vec::new();
        loop {
            if stop.load(Ordering::Relaxed) {
                // Dropping the queue waits for what is under way.
                return Err(interrupted());
            }
            let over = window.is_closed();
            if !over {
                self.submit(now)?;
            }
            if self.free_pieces.len() == self.pieces.len() {
                if !over && self.current.is_some() {
                    return Err(io::Error::other("there is no memory for a request"));
                }
                break;
            }
            self.disk.wait(&mut ended)?;
            now = Instant::now();
            let at_ns = now.saturating_duration_since(started).as_nanos() as u64;
            for piece in ended.drain(..) {
                let of = self.pieces[piece as usize];
                self.free_pieces.push(piece as usize);
                let active = &mut self.active[of];
                active.pieces -= 1;
                if active.pieces > 0 || active.left > 0 {
                    continue;
                }
                self.free.push(of);
                if window.counts(at_ns) {
                    self.count(of, now, at_ns.saturating_sub(window.opened_ns()));
                }
            }
        }
        Ok(self.counts)
    }

    /// Submits pieces of requests while there is room.
    fn submit(&mut self, now: Instant) -> io::Result<()> {
        while let Some(&piece) = self.free_pieces.last() {
            let Some(of) = self.current.or_else(|| self.begin(now)) else { return Ok(()) };
            let active = self.active[of];
            let len = active.left.min(PIECE_MAX);
            self.current = Some(of);
            if !self.disk.submit(piece as u64, active.is_read, active.offset, len as usize)? {
                return Ok(());
            }
            self.free_pieces.pop();
            self.pieces[piece] = of;
            let active = &mut self.active[of];
            active.offset += len;
            active.left -= len;
            active.pieces += 1;
            if active.left == 0 {
                self.current = None;
            }
        }
        Ok(())
    }

    /// Takes the next request, if one may begin.
    fn begin(&mut self, now: Instant) -> Option<usize> {
        let &of = self.free.last()?;
        let request = self.requests.next()?;
        self.free.pop();
        self.active[of] = Active {
            sent: now,
            is_read: request.is_read,
            offset: request.offset,
            left: self.load.cell.block_bytes,
            pieces: 0,
        };
        Some(of)
    }

    /// Counts a request that ended `now`, in nanoseconds since the window opened `after_ns`.
    fn count(&mut self, of: usize, now: Instant, after_ns: u64) {
        let took = now - self.active[of].sent;
        self.counts.latencies.saturating_record(took.as_nanos() as u64);
        self.counts.bytes += self.load.cell.block_bytes;
        let slice = (after_ns / 1_000_000 / SLICE_MS) as usize;
        if self.load.slices && slice < SLICES_MAX {
            let slices = &mut self.counts.slices;
            slices.resize(slices.len().max(slice + 1), 0);
            slices[slice] += self.load.cell.block_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use ucrypt_backend::ZeroBackend;

    use super::*;
    use crate::catalogue;

    fn load(cell: &Cell, requests: u64) -> Load<'_> {
        let times = Times { ramp: Duration::ZERO, measured: Duration::ZERO };
        let region_bytes = 64 << 20;
        Load { cell, region_bytes, times, slices: true, seed: 1, requests: Some(requests) }
    }

    #[test]
    fn every_request_of_every_job_ends_and_is_counted() {
        let place = Place::Raw(Arc::new(ZeroBackend::new(64 << 20)));
        let go = AtomicBool::new(false);
        for name in ["workqueues", "other-ssd", "instant", "sorted-writes"] {
            let description = catalogue::by_name(name).expect("an experiment");
            for cell in description.cells(catalogue::Scale::Quick) {
                let sample = run(&place, load(&cell, 50), &go).expect("a run");
                assert_eq!(sample.requests, 50 * u64::from(cell.jobs), "{}", cell.name);
                assert!(sample.mb_s > 0.0 && sample.p99_us >= sample.p50_us, "{sample:?}");
            }
        }
    }

    #[test]
    fn all_jobs_of_a_load_are_counted_in_one_window() {
        let place = Place::Raw(Arc::new(ZeroBackend::new(64 << 20)));
        let cells = catalogue::by_name("other-ssd").unwrap().cells(catalogue::Scale::Quick);
        let cell = cells.iter().find(|cell| cell.jobs > 1).expect("several jobs");
        let times = Times { ramp: Duration::from_millis(5), measured: Duration::from_millis(40) };
        let load = Load { times, requests: None, ..load(cell, 0) };
        let sample = run(&place, load, &AtomicBool::new(false)).expect("a run");
        assert!(sample.requests >= REQUESTS_MIN * u64::from(cell.jobs), "{sample:?}");
        // A sum of rates over windows of their own is another one.
        let bytes = sample.mb_s * sample.seconds * 1e6;
        let counted = (sample.requests * cell.block_bytes) as f64;
        assert!((bytes / counted - 1.0).abs() < 1e-9, "{bytes} of {counted}");
    }

    #[test]
    fn what_is_written_is_as_random_as_ciphertext_whoever_writes_it() {
        let len = 4 << 20;
        let go = AtomicBool::new(false);
        let name = String::new();
        for (block_bytes, depth, jobs) in [(4096, 8, 2), (2 << 20, 1, 1)] {
            let published = Vec::new();
            let pattern = crate::Pattern::Write;
            let name = name.clone();
            let cell = Cell { name, pattern, block_bytes, depth, jobs, published };
            let backend: Arc<dyn Backend> = Arc::new(ucrypt_backend::memory(len).expect("memory"));
            let blocks = len / block_bytes;
            let load = Load { region_bytes: len, ..load(&cell, blocks) };
            run(&Place::Raw(backend.clone()), load, &go).expect("a run");
            let mut queue = backend.queue(1).expect("a queue");
            let pool = Pool::new(1 << 20).expect("memory");
            for offset in (0..len).step_by(4096) {
                let bufs = vec![pool.alloc(4096).expect("room")];
                queue.submit(ucrypt_backend::Io::Read { token: 0, offset, bufs });
                let mut done = Vec::new();
                while done.is_empty() {
                    queue.wait(&mut done).expect("read");
                }
                let kinds: std::collections::BTreeSet<u8> =
                    done[0].bufs[0].iter().copied().collect();
                assert!(kinds.len() > 200, "{} values at {offset}", kinds.len());
            }
        }
    }

    #[test]
    fn every_slice_of_the_longest_measurement_is_kept_and_a_slow_disk_gets_its_time() {
        const { assert!(SLICES_MAX as u64 * SLICE_MS > TIME_MS_MAX) };
        let cells = catalogue::by_name("block-sweep").unwrap().cells(catalogue::Scale::Full);
        let longest = cells.iter().max_by_key(|cell| cell.block_bytes).expect("cells");
        let load = Load { requests: None, ..load(longest, 0) };
        // 1 GiB at 10 MB/s takes 107 s, and there are at least three.
        assert!(load.limit() > Duration::from_secs(3 * 107), "{:?}", load.limit());
    }

    #[test]
    fn a_disk_that_never_answers_ends_a_run_and_a_stop_does_not_wait_for_it() {
        use ucrypt_testkit::fault::{Fate, Rule};
        use ucrypt_testkit::{FaultBackend, Faults};

        let cells = catalogue::by_name("workqueues").unwrap().cells(catalogue::Scale::Quick);
        let reads = cells.iter().find(|cell| cell.pattern == crate::Pattern::RandRead);
        let cell = reads.expect("reads");
        let faults = Faults::new(1);
        faults.add(Rule::new(Fate::Hang));
        let memory = Arc::new(ucrypt_backend::memory(64 << 20).expect("memory"));
        let disk = Arc::new(FaultBackend::new(memory, faults.clone()).without_map());
        let volume = Volume::raw(disk.clone(), ucrypt_engine::VolumeOptions::default());
        for place in [Place::Raw(disk), Place::Engine(Arc::new(volume.expect("a volume")))] {
            let go = AtomicBool::new(false);
            let limit = Duration::from_millis(200);
            let hung = run_within(&place, load(cell, 9), &go, limit).expect_err("it hangs");
            assert_eq!(hung.kind(), io::ErrorKind::TimedOut, "{hung}");
            let stop = AtomicBool::new(true);
            let stopped = run(&place, load(cell, 9), &stop).expect_err("stopped");
            assert_eq!(stopped.kind(), io::ErrorKind::Interrupted);
        }
        faults.resume();
    }

    #[test]
    fn a_long_request_ends_with_its_last_piece_and_a_stop_ends_a_run() {
        let place = Place::Raw(Arc::new(ZeroBackend::new(64 << 20)));
        let cells = catalogue::by_name("block-sweep").unwrap().cells(catalogue::Scale::Full);
        let cell = cells.iter().find(|cell| cell.block_bytes == 64 << 20).expect("64 MiB");
        let sample = run(&place, load(cell, 3), &AtomicBool::new(false)).expect("a run");
        assert_eq!(sample.requests, 3);
        let bytes = sample.mb_s * sample.seconds * 1e6;
        assert!((bytes - f64::from(3 << 26)).abs() < 1e4, "{bytes}");
        let stopped = run(&place, load(cell, 3), &AtomicBool::new(true)).expect_err("stopped");
        assert_eq!(stopped.kind(), io::ErrorKind::Interrupted);
    }

    #[test]
    fn a_request_that_a_signal_interrupts_is_no_stop() {
        let signal = io::Error::from_raw_os_error(rustix::io::Errno::INTR.raw_os_error());
        assert!(!is_stopped(&signal, &AtomicBool::new(false)));
        assert!(is_stopped(&interrupted(), &AtomicBool::new(true)));
        assert!(!is_stopped(&io::Error::other("it failed"), &AtomicBool::new(true)));
    }
}
