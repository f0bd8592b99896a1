//! The decisions of `adaptive`, each from costs: those that were measured, and the few constants
//! here.

use crate::policy::{Place, Situation, Work};
use crate::request::{Op, Urgency};

/// What is decrypted while it still sits in the core's cache: half of a usual L2.
const CACHE_BYTES: f64 = 512.0 * 1024.0;

/// What is shared among cores is cut this small, so that they finish together.
const SHARE_BYTES: f64 = 128.0 * 1024.0;

/// Shortest chunk that a request is cut into for the sake of overlapping.
const CHUNK_BYTES_MIN: f64 = 4096.0;

/// Chunks in flight that a device needs to be busy: fewer than that never become one.
const IN_FLIGHT_MIN: u32 = 4;

/// As many chunks keep workers busy too, beside the device.
const IN_FLIGHT_MANY: u32 = 16;

/// A joined chunk takes at most this many times as long to crypt as an operation costs.
const JOIN_WORTH: f64 = 8.0;

/// What a job costs the thread that gives it to a worker which is awake, and takes it back.
const HAND_NS: f64 = 400.0;

/// The share of a hand-over that is the waking thread's own time; the rest passes while the worker
/// gets going.
const WAKE_SHARE: f64 = 0.25;

impl Situation<'_> {
    /// The length of a chunk, in bytes.
    ///
    /// Cutting a request of `c` nanoseconds of cipher into `n` chunks leaves `c/n` of them that
    /// nothing overlaps with, and costs `n - 1` further operations of `k` nanoseconds: the sum is
    /// least at `n = sqrt(c/k)`. When other requests are in flight they overlap anyway: so many
    /// fewer chunks are needed.
    pub(crate) fn chunk_bytes(&self) -> f64 {
        let bytes = self.sectors as f64 * 512.0;
        if self.device.synchronous {
            return self.synchronous_chunk_bytes(bytes);
        }
        let depth = f64::from(self.depth.max(1));
        let chunks = (self.cipher_ns(bytes) / self.request_ns()).sqrt() / depth;
        (bytes / chunks.floor().max(1.0)).max(CHUNK_BYTES_MIN)
    }

    /// Nothing overlaps with such a backend: it is this thread that copies. But every core can have
    /// a chunk; what one more costs is the hand-over, and of that each request in flight pays. What is
    /// not worth two hand-overs stays whole: half of it would be here before a worker has the other.
    fn synchronous_chunk_bytes(&self, bytes: f64) -> f64 {
        let (cipher_ns, handover_ns) = (self.cipher_ns(bytes), self.learned.handover_ns());
        if self.surroundings.workers == 0 || cipher_ns < 2.0 * handover_ns {
            return bytes.min(CACHE_BYTES);
        }
        let depth = f64::from(self.depth.max(1));
        let chunks = (cipher_ns / (handover_ns * WAKE_SHARE * depth)).sqrt();
        (bytes / chunks.floor().max(1.0)).min(SHARE_BYTES)
    }

    /// How many requests may travel as one, and in how many bytes. Others must stay in flight to
    /// keep the device and the workers busy; and a chunk is crypted on one core, so it must not
    /// become longer than the operations are worth that it saves. A disk that turns is the exception:
    /// there nothing costs as much as one more operation.
    pub(crate) fn join(&self) -> (u32, f64) {
        if self.device.rotational {
            return (u32::MAX, f64::INFINITY);
        }
        let stay = if self.depth >= IN_FLIGHT_MANY { 2 } else { IN_FLIGHT_MIN };
        let worth_ns = JOIN_WORTH * self.request_ns();
        (self.depth / stay, worth_ns / self.learned.cipher_ns_per_byte())
    }

    /// Where a chunk is crypted.
    pub(crate) fn adaptive_place(&self, work: &Work) -> Place {
        match self.urgency {
            Urgency::Urgent => Place::Here,
            _ if self.surroundings.workers == 0 => Place::Here,
            Urgency::Background => Place::Worker,
            Urgency::Normal if self.is_worth_a_hand_over(work) => Place::Worker,
            Urgency::Normal => Place::Here,
        }
    }

    /// What a worker has done before this thread would. And when others wait: everything that takes
    /// longer than handing it on, once a worker is awake or has been missed for longer than waking it
    /// takes. This thread then sees to the backend and the clients, and helps the workers when there
    /// is nothing else.
    fn is_worth_a_hand_over(&self, work: &Work) -> bool {
        let mine_ns = self.cipher_ns(work.bytes as f64);
        let others = self.depth.saturating_sub(1);
        if mine_ns <= HAND_NS {
            return false;
        }
        let awake = work.awake.min(self.surroundings.workers);
        let sleeps = self.surroundings.idle_workers > 0;
        let handover_ns = self.learned.handover_ns();
        if others > 0 && (awake > 0 || sleeps && work.waited_ns > handover_ns) {
            return true;
        }
        let handed_ns = self.cipher_ns((work.handed_bytes + work.bytes) as f64);
        let there_ns = |cost_ns, workers: u32| cost_ns + handed_ns / f64::from(workers);
        let to_awake_ns = if awake > 0 { there_ns(HAND_NS, awake) } else { f64::INFINITY };
        let to_idle_ns = if sleeps { there_ns(handover_ns, awake + 1) } else { f64::INFINITY };
        let ahead_bytes = work.ahead_bytes as f64;
        let here_ns = self.cipher_ns(ahead_bytes) + mine_ns + self.stores_ns(work);
        to_awake_ns.min(to_idle_ns) < here_ns
    }

    /// What this thread has to copy before it gets to a chunk: encrypted chunks of others, where the
    /// backend is memory. (Reads are all here before the first one is decrypted.)
    fn stores_ns(&self, work: &Work) -> f64 {
        if !self.device.synchronous || self.op == Op::Read {
            return 0.0;
        }
        let each_ns = self.learned.store_ns(true, work.bytes).unwrap_or(0.0);
        each_ns * (work.ahead_bytes + work.handed_bytes) as f64 / work.bytes as f64
    }

    fn cipher_ns(&self, bytes: f64) -> f64 {
        bytes * self.learned.cipher_ns_per_byte()
    }

    /// What one more operation costs this thread and the backend.
    fn request_ns(&self) -> f64 {
        self.learned.request_ns() + self.device.request_ns as f64
    }
}
