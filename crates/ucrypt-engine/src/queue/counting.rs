//! What a queue counts of its requests and decisions, for status and metrics.

use std::sync::Arc;

use ucrypt_backend::Errno;

use super::Queue;
use super::tables::ClientRequest;
use super::time::Time;
use crate::counters::{Counters, Decisions};
use crate::meters::{Kind, Sampler};
use crate::volume::Volume;

/// Rounds of the loop between two publications of the queue's decisions.
const PUBLISH_EVERY_ROUNDS: u32 = 64;

pub(super) struct Counting {
    pub(super) counters: Arc<Counters>,
    /// Which requests are timed.
    sampler: Sampler,
    /// Rounds since the decisions were last published.
    unpublished: u32,
    /// A request has come since the decisions were last published.
    is_untold: bool,
    /// The kind of the last request that was submitted, accepted or not.
    pub(super) offered: Kind,
}

impl Counting {
    pub(super) fn new(counters: Arc<Counters>, synchronous: bool) -> Self {
        Self {
            counters,
            sampler: Sampler::new(synchronous),
            unpublished: 0,
            is_untold: false,
            offered: Kind::Flush,
        }
    }

    /// Whether to time the next request.
    pub(super) fn times_next(&mut self) -> bool {
        self.sampler.picks()
    }

    /// Notes that the queue has decisions that it has not published.
    pub(super) fn begun(&mut self) {
        self.is_untold = true;
    }

    /// Counts a request that has ended.
    pub(super) fn ended(&self, request: &ClientRequest, time: &Time, volume: &Volume) {
        let (kind, counters) = (request.kind, &self.counters);
        match request.error {
            None => {}
            // No failure: the client has cancelled the request, refuses slow writes of zeroes, or gives space back to
            // a disk that does not take it.
            Some(Errno::CANCELED) => return,
            Some(Errno::OPNOTSUPP) if request.fast || kind == Kind::Discard => return,
            Some(error) => return self.failed(kind, error, volume),
        }
        if let Some(arrived_ns) = request.arrived_ns {
            let latency_ns = time.exact_ns().saturating_sub(arrived_ns);
            counters.cells.took(kind, request.len, latency_ns);
        }
        counters.count(kind, request.len);
    }

    /// Counts a request that has failed.
    pub(super) fn failed(&self, kind: Kind, error: Errno, volume: &Volume) {
        self.counters.count_error(error);
        self.counters.cells.failed(kind, error);
        volume.tell();
    }
}

impl Queue {
    /// Publishes the queue's decisions and estimates, now and then.
    pub(super) fn publish(&mut self) {
        self.counting.unpublished += 1;
        if self.counting.unpublished >= PUBLISH_EVERY_ROUNDS {
            self.publish_now();
        }
    }

    /// Publishes the rest before the queue sleeps for longer than a request: perhaps for ever.
    pub(super) fn publish_rest(&mut self) {
        if self.in_flight() == 0 && self.counting.is_untold {
            self.publish_now();
        }
    }

    fn publish_now(&mut self) {
        (self.counting.unpublished, self.counting.is_untold) = (0, false);
        let policy = self.machine.policy();
        self.counting.counters.publish(|| Decisions {
            stats: self.machine.stats(),
            explored: policy.explored(),
            measured: policy.estimates().measured(),
            wake_latency_applied_ns: policy.wake_latency_applied_ns(),
            workers: self.round.environment.workers,
        });
    }
}
