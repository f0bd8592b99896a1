//! What is measured before the first request, in a few milliseconds: it lets the first decisions
//! be sensible ones.

use std::sync::Arc;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use ucrypt_dispatch::Learned;

use crate::segments::Segments;
use crate::workers::{Workers, elapsed_ns};

/// Bytes that are encrypted at a time, and how often: 64 KiB is a usual chunk.
const BYTES: usize = 65536;
const ROUNDS: u32 = 8;

/// Figures of this machine; `None` where there was nothing to measure.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Calibration {
    /// Nanoseconds for [`BYTES`].
    cipher_ns: Option<u64>,
    handover_ns: Option<u64>,
}

impl Calibration {
    pub(crate) fn new(segments: &Segments, workers: Option<&Workers>) -> Self {
        let handover_ns = workers.and_then(|workers| {
            let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
            Some(workers.calibrate(&Arc::new(waker))).filter(|&ns| ns < u64::MAX)
        });
        Self { cipher_ns: cipher_ns(segments), handover_ns }
    }

    /// Tells a queue what it would have learned by itself.
    pub(crate) fn teach(&self, learned: &mut Learned) {
        if let Some(ns) = self.cipher_ns {
            learned.crypt(BYTES as u64, ns);
        }
        if let Some(ns) = self.handover_ns {
            learned.handover(ns);
        }
    }
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
