//! The cost model: what splitting, joining and offloading cost and gain, from what was measured. Pure: the
//! same numbers give the same answer.

use crate::estimates::Estimates;
use crate::explorer::Load;
use crate::policy::{Context, Target, Work};
use crate::request::Op;
use crate::tuning::{
    BACKLOG_SHARE, CACHE_BYTES, IN_FLIGHT_MANY, IN_FLIGHT_MIN, JOIN_WORTH, PAGE_BYTES, WRONG,
};

/// What is known when something is to be decided.
#[derive(Debug)]
pub(crate) struct CostModel<'a> {
    pub(crate) context: &'a Context<'a>,
    pub(crate) estimates: &'a Estimates,
    /// What one more operation costs this thread and the backend, in nanoseconds.
    pub(crate) operation_ns: f64,
}

impl CostModel<'_> {
    /// The length of the next chunk, in bytes.
    ///
    /// Splitting a request of `c` nanoseconds of cipher into `n` chunks leaves `c/n` of them that
    /// nothing overlaps with, and costs `n - 1` further operations of `k` nanoseconds: the sum is
    /// least at `n = sqrt(c/k)`. What the others in flight are split into delays this one as well: of
    /// `d` requests the last ends soonest at `n = sqrt(c/dk)`.
    pub(crate) fn chunk_bytes(&self) -> f64 {
        let bytes = self.context.sectors as f64 * 512.0;
        if self.context.backend.synchronous {
            return self.synchronous_chunk_bytes(bytes);
        }
        if self.context.op == Op::Read {
            return self.read_chunk_bytes();
        }
        let chunks = (self.cipher_ns(bytes) / self.operation_ns_all()).sqrt();
        (bytes / chunks.round().max(1.0)).max(PAGE_BYTES)
    }

    /// Only the last chunk of a read has nothing to overlap with. A longer one before it costs
    /// nothing as long as it is decrypted before the next one is here: as bytes take no less time on
    /// their way than in the cipher, it may be longer by what the cipher does while one more operation
    /// is begun. Each chunk that much shorter than the one before it: of the `k` nanoseconds of each
    /// further operation half is hidden, and the sum is least at `n = sqrt(2c/dk)`. What is left of a
    /// read is split as a read of its own would be, which comes to the same.
    fn read_chunk_bytes(&self) -> f64 {
        let left = self.context.left_sectors as f64 * 512.0;
        let operation_ns = self.operation_ns_all();
        let chunks = (2.0 * self.cipher_ns(left) / operation_ns).sqrt().round().max(1.0);
        let shorter = operation_ns / self.cipher_ns(1.0);
        let bytes = left / chunks + shorter * (chunks - 1.0) / 2.0;
        let bytes = (bytes / PAGE_BYTES).round().max(1.0) * PAGE_BYTES;
        // A page at least stays for each of the chunks behind.
        let longest = left - (chunks - 1.0) * PAGE_BYTES;
        bytes.min(longest).max(PAGE_BYTES)
    }

    /// What one more operation costs all requests in flight.
    fn operation_ns_all(&self) -> f64 {
        f64::from(self.context.in_flight.max(1)) * self.operation_ns
    }

    /// Nothing overlaps with such a backend: it is this thread that copies. But every core can have
    /// a chunk; what one more costs is the wake-up, and of that each request in flight pays. What is
    /// not worth two wake-ups stays whole: half of it would be here before a worker has the other.
    ///
    /// Up to one chunk for each core the rule is the one above. Beyond, `c/n` is only what the
    /// last core to end is behind the others, on average half of it, and less if each gets as many.
    /// Where there are more requests than cores, every core has one.
    fn synchronous_chunk_bytes(&self, bytes: f64) -> f64 {
        let workers = self.context.environment.workers;
        let saved_ns = self.saved_ns(bytes);
        if workers == 0 || saved_ns < 2.0 * self.estimates.wake_latency_ns() {
            return bytes.min(CACHE_BYTES);
        }
        let in_flight = f64::from(self.context.in_flight.max(1));
        let cores = f64::from(workers + 1) / in_flight;
        let worth = saved_ns / (self.estimates.wake_cost_ns() * in_flight);
        let chunks = match worth.sqrt() {
            _ if cores < 1.0 => 1.0,
            chunks if chunks <= cores => chunks.floor(),
            _ => ((worth / 2.0).sqrt() / cores).round().max(1.0) * cores,
        };
        (bytes / chunks.max(1.0)).min(CACHE_BYTES)
    }

    /// How many requests may travel as one, and in how many bytes. Others must stay in flight to
    /// keep the device and the workers busy; and a chunk is transformed on one core, so it must not
    /// become longer than the operations are worth that it saves. A disk that turns is the exception:
    /// there nothing costs as much as one more operation.
    pub(crate) fn join(&self) -> (u32, f64) {
        if self.context.backend.rotational {
            return (u32::MAX, f64::INFINITY);
        }
        let in_flight = self.context.in_flight;
        let stay = if in_flight >= IN_FLIGHT_MANY { 2 } else { IN_FLIGHT_MIN };
        (in_flight / stay, JOIN_WORTH * self.operation_ns / self.cipher_ns(1.0))
    }

    /// What a worker has done before this thread would is offloaded. And when others wait, everything
    /// that takes longer than enqueueing it, once a worker is awake, or would spare this thread two wake-ups;
    /// one more is woken when those that are awake have work for as long as that takes. This thread then sees to the backend and the clients. Once the workers
    /// have enough it takes the next chunk itself.
    pub(crate) fn target(&self, work: &Work) -> Target {
        let mine_ns = self.cipher_ns(work.bytes as f64);
        let others = self.context.in_flight.saturating_sub(1);
        let saved_ns = self.saved_ns(work.bytes as f64);
        let enqueue_ns = self.estimates.enqueue_cost_ns();
        if saved_ns <= enqueue_ns {
            return Target::Inline;
        }
        let awake = work.awake;
        let sleeps = self.context.environment.idle_workers > 0;
        let wake_ns = self.estimates.wake_latency_ns();
        let offloaded_ns = self.worker_ns((work.offloaded_bytes + work.bytes) as f64);
        if others > 0 && awake > 0 {
            if !sleeps && self.have_enough(work) {
                return Target::Inline;
            }
            let late = sleeps && offloaded_ns / f64::from(awake) > wake_ns;
            return if late { Target::Offload } else { Target::OffloadAwake };
        }
        if others > 0 && sleeps && saved_ns > 2.0 * wake_ns {
            return Target::Offload;
        }
        let penalty_ns = self.copy_penalty_ns(work.bytes as f64);
        let there_ns =
            |cost_ns, workers: u32| cost_ns + penalty_ns + offloaded_ns / f64::from(workers);
        let to_awake_ns = if awake > 0 { there_ns(enqueue_ns, awake) } else { f64::INFINITY };
        // A lone request's thread is spared nothing if it has to wake a worker for more than that.
        let wakes = sleeps && (others > 0 || saved_ns > self.estimates.wake_cost_ns() + enqueue_ns);
        let to_idle_ns = if wakes { there_ns(wake_ns, awake + 1) } else { f64::INFINITY };
        let ahead_bytes = work.ahead_bytes as f64;
        let here_ns = self.cipher_ns(ahead_bytes) + mine_ns + self.writes_ns(work);
        if to_awake_ns.min(to_idle_ns) >= here_ns {
            Target::Inline
        } else if sleeps {
            Target::Offload
        } else {
            Target::OffloadAwake
        }
    }

    /// Whether workers do not run dry while this thread transforms a chunk and sees to the others: each has
    /// a large share of all that is in flight.
    fn have_enough(&self, work: &Work) -> bool {
        let each_has = work.offloaded_bytes as f64 / f64::from(work.awake);
        let in_flight = f64::from(self.context.in_flight);
        each_has > work.bytes as f64 * (in_flight * BACKLOG_SHARE).max(f64::from(IN_FLIGHT_MIN))
    }

    /// What this thread has to copy before it gets to a chunk: encrypted chunks of others, where the
    /// backend is memory. (Reads are all here before the first one is decrypted.) To the first one in
    /// line it gets before any of them: writes leave in order.
    fn writes_ns(&self, work: &Work) -> f64 {
        let Context { op, backend, .. } = self.context;
        if !backend.synchronous || *op == Op::Read || work.ahead_bytes == 0 {
            return 0.0;
        }
        let each_ns = self.estimates.write_ns(work.bytes).unwrap_or(0.0);
        each_ns * (work.ahead_bytes + work.offloaded_bytes) as f64 / work.bytes as f64
    }

    /// What this thread is spared when a worker transforms so much for it.
    fn saved_ns(&self, bytes: f64) -> f64 {
        let cipher_ns = if self.context.op != Op::Read && self.context.backend.mapped {
            // What this thread takes has the writing in it, which a worker leaves to it. The rest of
            // it is not more than what a worker takes.
            let rest_ns = self.cipher_ns(bytes) - bytes * self.estimates.copy_ns_per_byte();
            rest_ns.min(self.worker_ns(bytes))
        } else {
            self.cipher_ns(bytes)
        };
        cipher_ns - self.copy_penalty_ns(bytes)
    }

    /// What this thread takes longer to copy so much from a worker's cache: reads to the client, writes
    /// to the backend if that does not fetch them itself.
    fn copy_penalty_ns(&self, bytes: f64) -> f64 {
        let copies = match self.context.op {
            Op::Read => !self.context.environment.reads_in_place,
            _ => self.context.backend.copies,
        };
        if copies { bytes * self.estimates.copy_penalty_ns_per_byte() } else { 0.0 }
    }

    fn cipher_ns(&self, bytes: f64) -> f64 {
        bytes * self.estimates.cipher_ns_per_byte(self.context.op != Op::Read)
    }

    /// The same for a worker.
    fn worker_ns(&self, bytes: f64) -> f64 {
        bytes * self.estimates.worker_ns_per_byte(self.context.op != Op::Read)
    }

    /// Whether workers could be worth it under a load, if the estimates were wrong by a factor of [`WRONG`].
    pub(crate) fn may_gain(estimates: &Estimates, load: &Load) -> bool {
        let cipher_ns = load.bytes * estimates.cipher_ns_per_byte(load.is_write());
        let offload_ns =
            if load.depth < 2 { estimates.wake_latency_ns() } else { estimates.enqueue_cost_ns() };
        cipher_ns * WRONG > offload_ns
    }
}
