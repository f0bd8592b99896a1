//! Calibration before the first request, in a few milliseconds, so that the first decisions are
//! sensible.
//!
//! A volume may be opened while every core is busy, as at boot. A trip to a worker then takes as
//! long as the scheduler makes this thread wait, and the volume would keep that figure: what looks
//! too expensive is never tried again. So trips in which this thread waited for a core do not
//! count. If none is left, the measurement is repeated after a rest, twice at most. If none is left
//! then either, the figure stays unmeasured.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use ucrypt_backend::{Buf, Pool};
use ucrypt_dispatch::{ChunkId, Estimates};
use ucrypt_sector::{SectorCipher, SectorOptions};

use crate::executor::{Clock, Monotonic, WorkerPool as _};
use crate::residue;
use crate::segments::{CipherOp, Segment, Segments};
use crate::waker::Waker;
use crate::workers::{Inbox, Job, Transformed, Workers};

/// Bytes per encryption, and number of encryptions: 64 KiB is a usual chunk.
const SAMPLE_BYTES: usize = 65536;
const ROUNDS: u32 = 8;

/// Number of trips of a job to a worker and back.
const TRIPS: u32 = 16;

/// How long workers sleep before they are woken: so briefly that their cores sleep lightly, and
/// longer than any estimate tells apart. Two trips with the second: `open` waits for them.
const NAP: (Duration, u32) = (Duration::from_micros(50), TRIPS);
const SLEEP: (Duration, u32) = (Duration::from_micros(1_200), 2);

/// How often it is tried to measure figures, and the rest before the next time.
const ATTEMPTS: u32 = 3;
const REST: Duration = Duration::from_millis(2);

/// A small chunk.
const SMALL_BYTES: usize = 4096;

/// Figures of a machine, in nanoseconds; `None`: there was nothing to measure.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Calibration {
    /// Time to encrypt 64 KiB.
    pub cipher: Option<u64>,
    /// From handing an empty job to a worker that has just fallen asleep until its answer arrives.
    pub wake_latency: Option<u64>,
    /// The same, if the worker has slept for milliseconds.
    pub wake_latency_slept: Option<u64>,
    /// The part of the wake latency that the thread that hands the job over spends on waking.
    pub wake_cost: Option<u64>,
    /// Time to give 4 KiB to an awake worker and to take them back, less the encryption.
    pub enqueue_cost: Option<u64>,
    /// Extra time to copy 64 KiB that come from another core's cache.
    pub copy_penalty: Option<u64>,
    /// Time to copy 64 KiB.
    pub copy: Option<u64>,
}

impl Calibration {
    pub(crate) fn new(segments: &Segments, workers: Option<&Workers>) -> Self {
        let waits = Waits::of_this_thread();
        let measured = Self::measure(segments, workers, &|| waits.ns());
        // The caller may not run a cipher again.
        residue::scrub();
        measured
    }

    fn measure(segments: &Segments, workers: Option<&Workers>, waited: Waited<'_>) -> Self {
        let cipher = cipher_ns(segments);
        let mut measured = Self { cipher, ..Self::default() };
        let (Some(workers), Ok(waker)) = (workers, Waker::new().map(Arc::new)) else {
            return measured;
        };
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(REST);
            }
            measured = measured.or(Self::trips(workers, &waker, waited));
            if measured.is_complete() {
                break;
            }
        }
        measured
    }

    /// What trips to a worker take.
    fn trips(workers: &Workers, waker: &Arc<Waker>, waited: Waited<'_>) -> Self {
        let (wake_latency, wake_cost) = wake_ns(workers, waker, waited, NAP).unzip();
        let slept = wake_ns(workers, waker, waited, SLEEP);
        let wake_latency_slept = slept.map(|(latency, _)| latency);
        let small = memory_ns(workers, waker, waited, SMALL_BYTES);
        let large = memory_ns(workers, waker, waited, SAMPLE_BYTES);
        let (copy_penalty, copy) = (large.map(|trip| trip.penalty), large.map(|trip| trip.copy));
        let enqueue_cost = small.zip(copy_penalty).map(|(small, penalty)| {
            small.all.saturating_sub(penalty * SMALL_BYTES as u64 / SAMPLE_BYTES as u64)
        });
        let cipher = None;
        Self {
            cipher,
            wake_latency,
            wake_latency_slept,
            wake_cost,
            enqueue_cost,
            copy_penalty,
            copy,
        }
    }

    /// These figures, and those of `other` that are missing.
    fn or(self, other: Self) -> Self {
        Self {
            cipher: self.cipher.or(other.cipher),
            wake_latency: self.wake_latency.or(other.wake_latency),
            wake_latency_slept: self.wake_latency_slept.or(other.wake_latency_slept),
            wake_cost: self.wake_cost.or(other.wake_cost),
            enqueue_cost: self.enqueue_cost.or(other.enqueue_cost),
            copy_penalty: self.copy_penalty.or(other.copy_penalty),
            copy: self.copy.or(other.copy),
        }
    }

    fn is_complete(&self) -> bool {
        let Self { wake_latency, wake_latency_slept, enqueue_cost, .. } = *self;
        // The others come with these.
        [wake_latency, wake_latency_slept, enqueue_cost].iter().all(Option::is_some)
    }

    /// Gives a queue's estimates their first samples, and those figures that are measured only here.
    pub(crate) fn teach(&self, estimates: &mut Estimates) {
        if let Some(ns) = self.cipher {
            estimates.calibrated(SAMPLE_BYTES as u64, ns);
        }
        if let Some(ns) = self.wake_latency {
            estimates.wake_latency(0, ns);
        }
        if let Some(ns) = self.wake_latency_slept {
            estimates.wake_latency(u64::MAX, ns);
        }
        if let Some(ns) = self.wake_cost {
            estimates.wake_cost(ns);
        }
        if let Some(ns) = self.enqueue_cost {
            estimates.set_enqueue_cost(ns);
        }
        if let Some(ns) = self.copy_penalty {
            estimates.set_copy_penalty(SAMPLE_BYTES as u64, ns);
        }
        if let Some(ns) = self.copy {
            estimates.set_copy(SAMPLE_BYTES as u64, ns);
        }
    }
}

/// Measures the cost of a worker on data that the kernel copies afterwards, as it does for most
/// backends and exports.
fn memory_ns(
    workers: &Workers,
    waker: &Arc<Waker>,
    waited: Waited<'_>,
    bytes: usize,
) -> Option<Trip> {
    let file = memfd_create("ucrypt-calibration", MemfdFlags::CLOEXEC).ok()?;
    let copy = |bytes: &[u8]| rustix::io::pwrite(&file, bytes, 0).map(|_| ()).map_err(Into::into);
    let (pool, segments) = (Pool::new(bytes).ok()?, Arc::new(quick()?));
    trip_ns((workers, waker, waited), &segments, pool.alloc(bytes)?, copy)
}

/// Tells how long this thread has waited for a core, in nanoseconds; `None`: nobody knows.
type Waited<'a> = &'a dyn Fn() -> Option<u64>;

/// The kernel's figure of how long this thread has waited for a core.
struct Waits(Option<File>);

impl Waits {
    fn of_this_thread() -> Self {
        Self(File::open("/proc/thread-self/schedstat").ok())
    }

    /// Nanoseconds for which this thread could run and had no core, since it was started. `None`
    /// where the kernel does not tell.
    fn ns(&self) -> Option<u64> {
        let mut text = [0; 64];
        let len = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        // Time on a core, time waiting for one, number of times on a core.
        std::str::from_utf8(&text[..len]).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
    }
}

/// Measures the cost of waking a worker that has slept for so long, that many times: nanoseconds from
/// giving an empty job to a parked worker until its answer arrives (the minimum), and this thread's
/// part of them (the median). `None` if something fails, or this thread waited for a core in every
/// trip.
fn wake_ns(
    workers: &Workers,
    waker: &Arc<Waker>,
    waited: Waited<'_>,
    (slept, count): (Duration, u32),
) -> Option<(u64, u64)> {
    let clock = Monotonic::new();
    let inbox = Arc::new(Inbox::new(1, waker.clone()));
    let segments: Arc<Segments> = nothing();
    let (mut trips, mut wakes) = (Vec::new(), Vec::new());
    for _ in 0..count {
        std::thread::sleep(slept);
        let before = waited();
        let started = clock.now_ns();
        workers.offload(empty(&inbox, &segments)?, true).ok()?;
        let woken_ns = clock.now_ns() - started;
        receive(&inbox);
        let trip_ns = clock.now_ns() - started;
        if waited() == before {
            wakes.push(woken_ns);
            trips.push(trip_ns);
        }
    }
    Some((trips.into_iter().min()?, median(&mut wakes)?))
}

/// Measures what it costs to have an awake worker encrypt a buffer instead of this thread; `copy`
/// then copies the buffer. `segments`: one segment, with a cipher that hardly takes time. Takes a
/// millisecond for 64 KiB. `None` if something fails, or this thread waited for a core in every
/// trip.
fn trip_ns(
    (workers, waker, waited): (&Workers, &Arc<Waker>, Waited<'_>),
    segments: &Arc<Segments>,
    mut buf: Buf,
    mut copy: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> Option<Trip> {
    let clock = Monotonic::new();
    let inbox = Arc::new(Inbox::new(1, waker.clone()));
    let (mut trips, mut copies, mut penalties) = (Vec::new(), Vec::new(), Vec::new());
    // The first trip wakes the worker.
    for _ in 0..=TRIPS {
        let before = waited();
        buf.fill(0);
        let started = clock.now_ns();
        segments.transform(0, 0, std::slice::from_mut(&mut buf), CipherOp::Encrypt).ok()?;
        let crypted_ns = clock.now_ns() - started;
        copy(&buf).ok()?;
        let here_ns = clock.now_ns() - started;
        buf.fill(0);
        let job = Job { bufs: vec![buf], ..empty(&inbox, segments)? };
        let started = clock.now_ns();
        workers.offload(job, false).ok()?;
        let mut transformed = receive(&inbox);
        buf = transformed.bufs.pop()?;
        let arrived_ns = clock.now_ns() - started;
        copy(&buf).ok()?;
        let there_ns = clock.now_ns() - started;
        if waited() == before {
            let copy_ns = here_ns - crypted_ns;
            trips.push(there_ns.saturating_sub(here_ns));
            copies.push(copy_ns);
            penalties.push((there_ns - arrived_ns).saturating_sub(copy_ns));
        }
    }
    // Medians, not minima: where the kernel does not tell waits, the worker may be on this core in
    // some trip.
    let all = median(&mut trips)?;
    Some(Trip { all, copy: median(&mut copies)?, penalty: median(&mut penalties)? })
}

/// Medians, in nanoseconds.
#[derive(Clone, Copy)]
struct Trip {
    /// Extra time compared to no worker, from handing the buffer over until it was copied.
    all: u64,
    /// Time to copy a buffer that this thread has transformed.
    copy: u64,
    /// Extra time to copy a buffer that comes from another core's cache.
    penalty: u64,
}

/// An empty segment, for jobs that only make the trip.
pub(crate) fn nothing() -> Arc<Segments> {
    let segment = Segment { len: 0, backend_offset: 0, cipher: None };
    Arc::new(Segments::new(vec![segment], None, None, Arc::new(Monotonic::new())))
}

/// The median; `None` of nothing.
fn median(times: &mut [u64]) -> Option<u64> {
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

/// Waits for an answer that must come.
fn receive(inbox: &Inbox) -> Transformed {
    loop {
        if let Some(transformed) = inbox.answers.pop() {
            return transformed;
        }
        // With fewer cores than threads, a loop without a yield would use up its time slice.
        std::thread::yield_now();
    }
}

/// A job without memory.
pub(crate) fn empty(inbox: &Arc<Inbox>, segments: &Arc<Segments>) -> Option<Job> {
    Some(Job {
        chunk: ChunkId::from_token(0)?,
        segments: segments.clone(),
        segment: 0,
        sector: 0,
        bufs: Vec::new(),
        op: CipherOp::Encrypt,
        inbox: inbox.clone(),
    })
}

/// A segment with a cipher that hardly takes time.
fn quick() -> Option<Segments> {
    let options = SectorOptions { sector_size: 4096, iv_offset: 0, iv_large_sectors: false };
    let key: Vec<u8> = (0..64).collect();
    let cipher = SectorCipher::new(&"aes-xts-plain64".parse().ok()?, &key, options).ok()?;
    let segment = Segment { len: SAMPLE_BYTES as u64, backend_offset: 0, cipher: Some(cipher) };
    Some(Segments::new(vec![segment], None, None, Arc::new(Monotonic::new())))
}

/// Time to encrypt 64 KiB: the fastest round, because disturbances only make a round slower.
fn cipher_ns(segments: &Segments) -> Option<u64> {
    let Some(segment) = segments.iter().position(|segment| segment.is_encrypted) else {
        // Without a cipher a chunk costs nothing to transform.
        return Some(0);
    };
    let clock = Monotonic::new();
    // Nobody finds the ciphertext of something known in the memory that is freed here.
    let mut plain = vec![0; SAMPLE_BYTES];
    fastrand::fill(&mut plain);
    let mut data = vec![0; SAMPLE_BYTES];
    let rounds = (0..ROUNDS).map(|_| {
        let started = clock.now_ns();
        let done = segments.encrypt_from(segment, 0, &plain, &mut data)?;
        done.ok().map(|()| clock.now_ns() - started)
    });
    rounds.flatten().min()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn every_figure_is_measured_where_there_are_workers() {
        let segments = quick().unwrap();
        let workers = Workers::start(2, true).unwrap();
        // Where the kernel does not tell waits, every trip counts, however busy the cores are.
        let measured = Calibration::measure(&segments, Some(&workers), &|| None);
        let Calibration {
            cipher, wake_latency, wake_cost, enqueue_cost, copy_penalty, copy, ..
        } = measured;
        assert!(cipher > Some(0), "64 KiB in {cipher:?} ns");
        assert!(wake_latency > Some(0) && wake_cost > Some(0), "{wake_latency:?}, {wake_cost:?}");
        assert!(measured.wake_latency_slept > Some(0), "{measured:?}");
        assert!(copy > Some(0), "64 KiB in {copy:?} ns");
        // Differences: zero if both ways take the same time.
        assert!(enqueue_cost.is_some() && copy_penalty.is_some());
        let alone = Calibration::new(&segments, None);
        assert!(
            alone.cipher.is_some() && alone.wake_latency.is_none() && alone.copy_penalty.is_none()
        );
    }

    #[test]
    fn trips_that_waited_for_a_core_do_not_count() {
        let workers = Workers::start(2, false).unwrap();
        let figure = Cell::new(0);
        let always = || Some(figure.replace(figure.get() + 1));
        let measured = Calibration::measure(&quick().unwrap(), Some(&workers), &always);
        assert!(measured.cipher.is_some());
        let wakes = [measured.wake_latency, measured.wake_latency_slept, measured.wake_cost];
        assert_eq!((wakes, measured.enqueue_cost), ([None; 3], None));
        assert_eq!((measured.copy_penalty, measured.copy), (None, None));
        // Here the trips waited only at the first attempt.
        let first = u64::from(2 * (TRIPS + SLEEP.1 + 2 * (TRIPS + 1)));
        let at_first = || Some(figure.replace((figure.get() + 1).min(first)));
        figure.set(0);
        let measured = Calibration::measure(&quick().unwrap(), Some(&workers), &at_first);
        assert!(measured.is_complete() && measured.copy.is_some(), "{measured:?}");
        // Here no trip waited.
        let measured = Calibration::measure(&quick().unwrap(), Some(&workers), &|| Some(7));
        assert!(measured.wake_latency.is_some() && measured.copy.is_some());
    }
}
