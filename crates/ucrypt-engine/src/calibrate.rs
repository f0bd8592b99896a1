//! What is measured before the first request, in a few milliseconds: it lets the first decisions
//! be sensible ones.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use ucrypt_backend::{Buf, Pool};
use ucrypt_dispatch::{ChunkId, Estimates};
use ucrypt_sector::{SectorCipher, SectorOptions};

use crate::executor::{Clock, Monotonic, WorkerPool as _};
use crate::segments::{CipherOp, Segment, Segments};
use crate::workers::{Inbox, Job, Transformed, Workers};

/// Bytes that are encrypted at a time, and how often: 64 KiB is a usual chunk.
const BYTES: usize = 65536;
const ROUNDS: u32 = 8;

/// How often a job goes to a worker and back.
const TRIPS: u32 = 16;

/// A small chunk.
const SMALL: usize = 4096;

/// Figures of a machine, in nanoseconds; `None` where there was nothing to measure.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Calibration {
    /// To encrypt 64 KiB.
    pub cipher: Option<u64>,
    /// From handing an empty job to a worker that sleeps until its answer is here.
    pub wake_latency: Option<u64>,
    /// What the thread that hands it over takes of that to wake the worker.
    pub wake_cost: Option<u64>,
    /// To give 4 KiB to a worker that is awake and to get them back, beyond encrypting them.
    pub enqueue_cost: Option<u64>,
    /// More to copy 64 KiB because they come from another core's cache.
    pub copy_penalty: Option<u64>,
    /// To copy 64 KiB.
    pub copy: Option<u64>,
}

impl Calibration {
    pub(crate) fn new(segments: &Segments, workers: Option<&Workers>) -> Self {
        let cipher = cipher_ns(segments);
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (Some(workers), Ok(waker)) = (workers, waker.map(Arc::new)) else {
            return Self { cipher, ..Self::default() };
        };
        let (wake_latency, wake_cost) = wake_ns(workers, &waker).unzip();
        let small = memory_ns(workers, &waker, SMALL);
        let large = memory_ns(workers, &waker, BYTES);
        let (copy_penalty, copy) = (large.map(|trip| trip.penalty), large.map(|trip| trip.copy));
        let enqueue_cost = small.zip(copy_penalty).map(|(small, penalty)| {
            small.all.saturating_sub(penalty * SMALL as u64 / BYTES as u64)
        });
        Self { cipher, wake_latency, wake_cost, enqueue_cost, copy_penalty, copy }
    }

    /// Tells a queue what it would measure by itself.
    pub(crate) fn teach(&self, estimates: &mut Estimates) {
        if let Some(ns) = self.cipher {
            estimates.calibrated(BYTES as u64, ns);
        }
        if let Some(ns) = self.wake_latency {
            estimates.wake_latency(ns);
        }
        if let Some(ns) = self.wake_cost {
            estimates.wake_cost(ns);
        }
        if let Some(ns) = self.enqueue_cost {
            estimates.enqueue_cost(ns);
        }
        if let Some(ns) = self.copy_penalty {
            estimates.copy_penalty(BYTES as u64, ns);
        }
        if let Some(ns) = self.copy {
            estimates.copy(BYTES as u64, ns);
        }
    }
}

/// What a worker costs over data that the kernel copies then, as most backends and exports have it
/// done.
fn memory_ns(workers: &Workers, waker: &Arc<OwnedFd>, bytes: usize) -> Option<Trip> {
    let file = memfd_create("ucrypt-calibration", MemfdFlags::CLOEXEC).ok()?;
    let copy = |bytes: &[u8]| rustix::io::pwrite(&file, bytes, 0).map(|_| ()).map_err(Into::into);
    let (pool, segments) = (Pool::new(bytes).ok()?, Arc::new(quick()?));
    trip_ns(workers, waker, &segments, pool.alloc(bytes)?, copy)
}

/// What waking a worker costs: nanoseconds from giving an empty job to a parked worker until its
/// answer is here, the smallest of several; and what this thread takes of that to wake it, the median.
/// About a millisecond in all.
fn wake_ns(workers: &Workers, waker: &Arc<OwnedFd>) -> Option<(u64, u64)> {
    let clock = Monotonic::new();
    let inbox = Arc::new(Inbox::new(1, waker.clone()));
    let segments: Arc<Segments> = nothing();
    let (mut least_ns, mut wakes) = (u64::MAX, Vec::new());
    for _ in 0..TRIPS {
        std::thread::sleep(std::time::Duration::from_micros(50));
        let started = clock.now_ns();
        workers.offload(empty(&inbox, &segments)?, true).ok()?;
        wakes.push(clock.now_ns() - started);
        receive(&inbox);
        least_ns = least_ns.min(clock.now_ns() - started);
    }
    Some((least_ns, median(&mut wakes)))
}

/// What it costs to have a worker that is awake encrypt a buffer, beyond what it costs to do it here;
/// then it is copied by `copy`. `segments`: one, with a cipher that hardly takes time. A millisecond
/// for 64 KiB. `None` if something fails.
fn trip_ns(
    workers: &Workers,
    waker: &Arc<OwnedFd>,
    segments: &Arc<Segments>,
    mut buf: Buf,
    mut copy: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> Option<Trip> {
    let clock = Monotonic::new();
    let inbox = Arc::new(Inbox::new(1, waker.clone()));
    let (mut trips, mut copies, mut penalties) = (Vec::new(), Vec::new(), Vec::new());
    // The first one wakes it.
    for _ in 0..=TRIPS {
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
        let copy_ns = here_ns - crypted_ns;
        trips.push(there_ns.saturating_sub(here_ns));
        copies.push(copy_ns);
        penalties.push((there_ns - arrived_ns).saturating_sub(copy_ns));
    }
    // Not the smallest: a worker may be on this core in one round.
    let [all, copy, penalty] = [trips, copies, penalties].map(|mut times| median(&mut times));
    Some(Trip { all, copy, penalty })
}

/// Nanoseconds.
#[derive(Clone, Copy)]
struct Trip {
    /// More than without a worker, from giving it away until it was copied.
    all: u64,
    /// To copy what was transformed here.
    copy: u64,
    /// More to copy it because it comes from another core's cache.
    penalty: u64,
}

/// A segment of no length, for jobs that only measure the way.
fn nothing() -> Arc<Segments> {
    let segment = Segment { len: 0, backend_offset: 0, cipher: None };
    Arc::new(Segments::new(vec![segment], None, None, Arc::new(Monotonic::new())))
}

/// Of at least one.
fn median(times: &mut [u64]) -> u64 {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Waits for an answer that must come.
fn receive(inbox: &Inbox) -> Transformed {
    loop {
        if let Some(transformed) = inbox.answers.pop() {
            return transformed;
        }
        // With fewer cores than threads, spinning alone would wait for the time slice.
        std::thread::yield_now();
    }
}

fn empty(inbox: &Arc<Inbox>, segments: &Arc<Segments>) -> Option<Job> {
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

/// A cipher that hardly takes time.
fn quick() -> Option<Segments> {
    let options = SectorOptions { sector_size: 4096, iv_offset: 0, iv_large_sectors: false };
    let key: Vec<u8> = (0..64).collect();
    let cipher = SectorCipher::new(&"aes-xts-plain64".parse().ok()?, &key, options).ok()?;
    let segment = Segment { len: BYTES as u64, backend_offset: 0, cipher: Some(cipher) };
    Some(Segments::new(vec![segment], None, None, Arc::new(Monotonic::new())))
}

/// The fastest of a few rounds: what disturbs a round only makes it slower.
fn cipher_ns(segments: &Segments) -> Option<u64> {
    let Some(segment) = segments.iter().position(|segment| segment.cipher.is_some()) else {
        // Without a cipher a chunk costs nothing to transform.
        return Some(0);
    };
    let clock = Monotonic::new();
    let plain = vec![0; BYTES];
    let mut data = vec![0; BYTES];
    let rounds = (0..ROUNDS).map(|_| {
        let started = clock.now_ns();
        let done = segments.encrypt_from(segment, 0, &plain, &mut data)?;
        done.ok().map(|()| clock.now_ns() - started)
    });
    rounds.flatten().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_measured_where_there_are_workers() {
        let segments = quick().unwrap();
        let workers = Workers::start(2, true).unwrap();
        let Calibration { cipher, wake_latency, wake_cost, enqueue_cost, copy_penalty, copy } =
            Calibration::new(&segments, Some(&workers));
        assert!(cipher > Some(0), "64 KiB in {cipher:?} ns");
        assert!(wake_latency > Some(0) && wake_cost > Some(0), "{wake_latency:?}, {wake_cost:?}");
        assert!(copy > Some(0), "64 KiB in {copy:?} ns");
        // Differences: nothing is gained or lost if both ways take the same time.
        assert!(enqueue_cost.is_some() && copy_penalty.is_some());
        let alone = Calibration::new(&segments, None);
        assert!(
            alone.cipher.is_some() && alone.wake_latency.is_none() && alone.copy_penalty.is_none()
        );
    }
}
