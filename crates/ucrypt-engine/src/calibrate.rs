//! What is measured before the first request, in a few milliseconds: it lets the first decisions
//! be sensible ones.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use ucrypt_backend::Pool;
use ucrypt_dispatch::Learned;
use ucrypt_sector::{SectorCipher, SectorOptions};

use crate::segments::{Segment, Segments};
use crate::workers::{Workers, elapsed_ns};

/// Bytes that are encrypted at a time, and how often: 64 KiB is a usual chunk.
const BYTES: usize = 65536;
const ROUNDS: u32 = 8;

/// A small chunk.
const SMALL: usize = 4096;

/// Figures of this machine, in nanoseconds; `None` where there was nothing to measure.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Calibration {
    /// Of [`BYTES`].
    cipher: Option<u64>,
    handover: Option<u64>,
    wake: Option<u64>,
    hand: Option<u64>,
    /// Of [`BYTES`].
    carry: Option<u64>,
}

impl Calibration {
    pub(crate) fn new(segments: &Segments, workers: Option<&Workers>) -> Self {
        let cipher = cipher_ns(segments);
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (Some(workers), Ok(waker)) = (workers, waker.map(Arc::new)) else {
            return Self { cipher, ..Self::default() };
        };
        let (handover, wake) = workers.handover_ns(&waker).unzip();
        let (hand, carry) = memory_ns(workers, &waker).unzip();
        Self { cipher, handover, wake, hand, carry }
    }

    /// Tells a queue what it would have learned by itself.
    pub(crate) fn teach(&self, learned: &mut Learned) {
        if let Some(ns) = self.cipher {
            learned.cipher(BYTES as u64, ns);
        }
        if let Some(ns) = self.handover {
            learned.handover(ns);
        }
        if let Some(ns) = self.wake {
            learned.wake(ns);
        }
        if let Some(ns) = self.hand {
            learned.hand(ns);
        }
        if let Some(ns) = self.carry {
            learned.carry(BYTES as u64, ns);
        }
    }
}

/// What a small chunk costs beside its bytes, and what [`BYTES`] cost that come from another core.
/// Copied by the kernel, as most backends and exports have it done.
fn memory_ns(workers: &Workers, waker: &Arc<OwnedFd>) -> Option<(u64, u64)> {
    let file = memfd_create("ucrypt-calibration", MemfdFlags::CLOEXEC).ok()?;
    let copy = |bytes: &[u8]| rustix::io::pwrite(&file, bytes, 0).map(|_| ()).map_err(Into::into);
    let (pool, segments) = (Pool::new(BYTES + SMALL).ok()?, Arc::new(quick()?));
    let trip = |bytes| workers.trip_ns(waker, &segments, pool.alloc(bytes)?, copy);
    let (small, large) = (trip(SMALL)?, trip(BYTES)?);
    let carried = large.copy * SMALL as u64 / BYTES as u64;
    Some((small.all.saturating_sub(carried), large.copy))
}

fn quick() -> Option<Segments> {
    let options = SectorOptions { sector_size: 4096, iv_offset: 0, iv_large_sectors: false };
    let key: Vec<u8> = (0..64).collect();
    let cipher = SectorCipher::new(&"aes-xts-plain64".parse().ok()?, &key, options).ok()?;
    let segment = Segment { len: BYTES as u64, backend_offset: 0, cipher: Some(cipher) };
    Some(Segments::new(vec![segment], None, None))
}

/// The fastest of a few rounds: what disturbs a round only makes it slower.
fn cipher_ns(segments: &Segments) -> Option<u64> {
    let Some(segment) = segments.iter().position(|segment| segment.cipher.is_some()) else {
        // Without a cipher a chunk costs nothing to crypt.
        return Some(0);
    };
    let plain = vec![0; BYTES];
    let mut data = vec![0; BYTES];
    let rounds = (0..ROUNDS).map(|_| {
        let started = Instant::now();
        let done = segments.encrypt_from(segment, 0, &plain, &mut data)?;
        done.ok().map(|()| elapsed_ns(started))
    });
    rounds.flatten().min()
}
