//! What a queue counts of its requests and decisions, for status and metrics.

use std::sync::Arc;

use ucrypt_backend::Errno;

use super::Queue;
use super::tables::ClientRequest;
use super::time::Time;
use crate::counters::{Counters, Decisions};
use crate::meters::Sampler;
use crate::volume::Volume;

/// Rounds of the loop between two publications of the queue's decisions.
const PUBLISH_EVERY_ROUNDS: u32 = 64;
/// The same when nothing is in flight: after that there may be no further round.
const PUBLISH_IDLE_ROUNDS: u32 = 8;

pub(super) struct Counting {
    pub(super) counters: Arc<Counters>,
    /// Which requests are timed.
    sampler: Sampler,
    /// Rounds since the decisions were last published.
    unpublished: u32,
}

impl Counting {
    pub(super) fn new(counters: Arc<Counters>, synchronous: bool) -> Self {
        Self { counters, sampler: Sampler::new(synchronous), unpublished: 0 }
    }

    /// Whether to time the next request.
    pub(super) fn times_next(&mut self) -> bool {
        self.sampler.picks()
    }

    /// Counts a request that has ended.
    pub(super) fn ended(&self, request: &ClientRequest, time: &Time, volume: &Volume) {
        let (kind, counters) = (request.kind, &self.counters);
        match request.error {
            None => {}
            // No failure: the client has cancelled the request, or refuses slow writes of zeroes.
            Some(Errno::CANCELED) => return,
            Some(Errno::OPNOTSUPP) if request.fast => return,
            Some(error) => {
                counters.count_error(error);
                counters.cells.failed(kind, error);
                return volume.tell();
            }
        }
        if let Some(arrived_ns) = request.arrived_ns {
            let latency_ns = time.exact_ns().saturating_sub(arrived_ns);
            counters.cells.took(kind, request.len, latency_ns);
        }
        counters.count(kind, request.len);
    }
}

impl Queue {
    /// Publishes the queue's decisions and estimates, now and then.
    pub(super) fn publish(&mut self) {
        let is_idle = self.in_flight() == 0;
        let unpublished = &mut self.counting.unpublished;
        *unpublished += 1;
        if *unpublished >= PUBLISH_EVERY_ROUNDS || is_idle && *unpublished >= PUBLISH_IDLE_ROUNDS {
            *unpublished = 0;
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
}
