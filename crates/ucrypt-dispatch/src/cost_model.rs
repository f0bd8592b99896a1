//! The cost model: what splitting, joining and offloading cost and gain, computed from the
//! estimates. Pure: the same numbers give the same answer.

use std::cell::Cell;

use crate::estimates::Estimates;
use crate::explorer::{Load, MayGain};
use crate::policy::{Context, Target, Work};
use crate::request::Op;
use crate::tuning::{
    BACKLOG_SHARE, CACHE_BYTES, IN_FLIGHT_REQUESTS_MANY, IN_FLIGHT_REQUESTS_MIN,
    JOIN_WORTH_OPERATIONS, PAGE_BYTES, SHARE_WORTH_WAKES, STAY_REQUESTS_OF_MANY, WAKE_WORTH_WAKES,
    WRONG_FACTOR,
};

/// The inputs of a decision.
#[derive(Debug)]
pub(crate) struct CostModel<'a> {
    pub(crate) context: &'a Context<'a>,
    pub(crate) estimates: &'a Estimates,
    /// What one more operation costs this thread and the backend, in nanoseconds.
    pub(crate) operation_ns: f64,
    /// Takes down the wake latency that a decision applied, for the status.
    pub(crate) wake_latency_applied_ns: &'a Cell<Option<f64>>,
}

impl CostModel<'_> {
    /// The length of the next chunk, in bytes.
    ///
    /// Splitting a request of `c` nanoseconds of cipher into `n` chunks leaves `c/n` of them
    /// without overlap, and costs `n - 1` further operations of `k` nanoseconds: the sum is least
    /// at `n = sqrt(c/k)`. The chunks of the other requests in flight delay this one as well: the
    /// last of `d` requests ends soonest at `n = sqrt(c/dk)`.
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

    /// Only the last chunk of a read has no I/O to overlap with. A longer chunk before it costs
    /// nothing as long as it is decrypted before the next one arrives. If bytes take at least as
    /// long to arrive as to decrypt, a chunk may be longer than the next one by as much as the cipher
    /// decrypts while one more operation starts. With each chunk shorter than the one before it by
    /// that much, half of the `k` nanoseconds of each further operation is hidden, and the sum is
    /// least at `n = sqrt(2c/dk)`. The rest of a read is split as a read of its own would be, which
    /// gives the same lengths.
    fn read_chunk_bytes(&self) -> f64 {
        let left = self.context.left_sectors as f64 * 512.0;
        let operation_ns = self.operation_ns_all();
        let chunks = (2.0 * self.cipher_ns(left) / operation_ns).sqrt().round().max(1.0);
        if chunks <= 1.0 {
            return left;
        }
        let shorter = operation_ns / self.cipher_ns(1.0);
        let bytes = left / chunks + shorter * (chunks - 1.0) / 2.0;
        let bytes = (bytes / PAGE_BYTES).round().max(1.0) * PAGE_BYTES;
        // Leave at least one page for each of the following chunks.
        let longest = left - (chunks - 1.0) * PAGE_BYTES;
        bytes.min(longest).max(PAGE_BYTES)
    }

    /// What one more operation costs all requests in flight.
    fn operation_ns_all(&self) -> f64 {
        f64::from(self.context.in_flight.max(1)) * self.operation_ns
    }

    /// I/O of such a backend overlaps with nothing: this thread copies. But every core can have a
    /// chunk. One more chunk costs a wake-up, for which each request in flight pays. A request
    /// whose cipher time is not worth two wake-ups stays whole: this thread would finish half of it
    /// before a worker has the other half.
    ///
    /// Up to one chunk for each core the rule of [`CostModel::chunk_bytes`] holds. Beyond, `c/n` is
    /// only the time by which the last core ends after the others, on average half of it, and less
    /// if each core gets the same number of chunks. With more requests than cores, every core has
    /// one.
    fn synchronous_chunk_bytes(&self, bytes: f64) -> f64 {
        let workers = self.context.environment.workers;
        let saved_ns = self.saved_ns(bytes);
        if workers == 0 || saved_ns < SHARE_WORTH_WAKES * self.wake_latency_ns() {
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

    /// How many requests may be joined into one chunk, and up to how many bytes. Other requests
    /// must stay in flight to keep the device and the workers busy. And a chunk is transformed on
    /// one core: its transform must not grow longer than the saved operations are worth. A rotating
    /// disk is the exception: there nothing costs as much as one more operation.
    pub(crate) fn join(&self) -> (u32, f64) {
        if self.context.backend.rotational {
            return (u32::MAX, f64::INFINITY);
        }
        let in_flight = self.context.in_flight;
        let many = in_flight >= IN_FLIGHT_REQUESTS_MANY;
        let stay = if many { STAY_REQUESTS_OF_MANY } else { IN_FLIGHT_REQUESTS_MIN };
        (in_flight / stay, JOIN_WORTH_OPERATIONS * self.operation_ns / self.cipher_ns(1.0))
    }

    /// Offloads a chunk if a worker would finish it before this thread does. With other requests in
    /// flight, it also offloads a chunk that saves this thread more than the enqueue cost if a
    /// worker is awake, or more than two wake latencies if none is awake. It wakes one more worker when
    /// the awake ones have work for longer than the wake latency. This thread then serves the
    /// backend and the clients. Once no worker sleeps and all have enough work, this thread takes
    /// the next chunk itself.
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
        let wake_ns = self.wake_latency_ns();
        let offloaded_ns = self.worker_ns((work.offloaded_bytes + work.bytes) as f64);
        if others > 0 && awake > 0 {
            if !sleeps && self.have_enough(work) {
                return Target::Inline;
            }
            let late = sleeps && offloaded_ns / f64::from(awake) > wake_ns;
            return if late { Target::Offload } else { Target::OffloadAwake };
        }
        if others > 0 && sleeps && saved_ns > WAKE_WORTH_WAKES * wake_ns {
            return Target::Offload;
        }
        let penalty_ns = self.copy_penalty_ns(work.bytes as f64);
        let there_ns =
            |cost_ns, workers: u32| cost_ns + penalty_ns + offloaded_ns / f64::from(workers);
        let to_awake_ns = if awake > 0 { there_ns(enqueue_ns, awake) } else { f64::INFINITY };
        // For a lone request, waking a worker must save this thread more than it costs.
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

    /// Whether the workers will not run dry while this thread transforms a chunk and serves the
    /// other requests: each worker has a large share of all that is in flight.
    fn have_enough(&self, work: &Work) -> bool {
        let each_has = work.offloaded_bytes as f64 / f64::from(work.awake);
        let in_flight = f64::from(self.context.in_flight);
        each_has
            > work.bytes as f64 * (in_flight * BACKLOG_SHARE).max(f64::from(IN_FLIGHT_REQUESTS_MIN))
    }

    /// Time for which this thread copies other encrypted chunks before it gets to this one, if the
    /// backend is memory. (All reads have arrived before the first one is decrypted.) There is no
    /// such delay for the first chunk in line: writes leave in order.
    fn writes_ns(&self, work: &Work) -> f64 {
        let Context { op, backend, .. } = self.context;
        if !backend.synchronous || *op == Op::Read || work.ahead_bytes == 0 {
            return 0.0;
        }
        let each_ns = self.estimates.write_ns(work.bytes).unwrap_or(0.0);
        each_ns * (work.ahead_bytes + work.offloaded_bytes) as f64 / work.bytes as f64
    }

    /// Time that this thread saves when a worker transforms `bytes`.
    fn saved_ns(&self, bytes: f64) -> f64 {
        let cipher_ns = if self.context.op != Op::Read && self.context.backend.mapped {
            // This thread's cipher time includes the writing, which a worker leaves to this thread.
            // Without it, this thread takes no longer than a worker.
            let rest_ns = self.cipher_ns(bytes) - bytes * self.estimates.copy_ns_per_byte();
            rest_ns.min(self.worker_ns(bytes))
        } else {
            self.cipher_ns(bytes)
        };
        cipher_ns - self.copy_penalty_ns(bytes)
    }

    /// How much longer this thread takes to copy `bytes` from a worker's cache: reads to the
    /// client, writes to the backend unless that fetches them itself.
    fn copy_penalty_ns(&self, bytes: f64) -> f64 {
        let copies = match self.context.op {
            Op::Read => !self.context.environment.reads_in_place,
            _ => self.context.backend.copies,
        };
        if copies { bytes * self.estimates.copy_penalty_ns_per_byte() } else { 0.0 }
    }

    /// What waking a worker takes now.
    fn wake_latency_ns(&self) -> f64 {
        let slept_ns = self.context.workers_slept_ns;
        self.wake_latency_applied_ns.set(self.estimates.measured_wake_latency_ns(slept_ns));
        self.estimates.wake_latency_ns(slept_ns)
    }

    fn cipher_ns(&self, bytes: f64) -> f64 {
        bytes * self.estimates.cipher_ns_per_byte(self.context.op != Op::Read)
    }

    /// Cipher time of a worker.
    fn worker_ns(&self, bytes: f64) -> f64 {
        bytes * self.estimates.worker_ns_per_byte(self.context.op != Op::Read)
    }

    /// What could pay off under a load if the estimates were wrong by a factor of [`WRONG_FACTOR`]. Not
    /// splitting costs a request at most its cipher's time, so it is tried where a request takes
    /// [`WRONG_FACTOR`] times as long.
    pub(crate) fn may_gain(estimates: &Estimates, load: &Load, has_workers: bool) -> MayGain {
        let cipher_ns = load.bytes * estimates.cipher_ns_per_byte(load.is_write());
        let offload_ns =
            if load.depth < 2 { estimates.wake_latency_ns(0) } else { estimates.enqueue_cost_ns() };
        MayGain {
            offload: has_workers && cipher_ns * WRONG_FACTOR > offload_ns,
            whole: load.each_ns > cipher_ns * WRONG_FACTOR,
        }
    }
}
