//! The decisions of `adaptive`, each from costs: those that were measured, and the few constants
//! here.

use crate::explorer::{Arm, Load};
use crate::learn::Learned;
use crate::policy::{Situation, Target, Work};
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

/// The share of a chunk's way to a worker that is awake and back which is this thread's own time. The
/// rest is a wait, in which it sees to the others in flight if those are many.
const HAND_OWN: f64 = 1.0 / 3.0;

/// What one more operation is assumed to cost, thread and device together. Nobody measures it: the explorer
/// multiplies it. Twice or half of that moves chunk lengths by 1.4.
const OPERATION_NS: f64 = 1_500.0;

/// How wrong an estimate may be, together with what it leaves out.
const WRONG: f64 = 3.0;

impl Situation<'_> {
    /// The length of the next chunk, in bytes.
    ///
    /// Cutting a request of `c` nanoseconds of cipher into `n` chunks leaves `c/n` of them that
    /// nothing overlaps with, and costs `n - 1` further operations of `k` nanoseconds: the sum is
    /// least at `n = sqrt(c/k)`. What the others in flight are cut into delays this one as well: of
    /// `d` requests the last ends soonest at `n = sqrt(c/dk)`.
    pub(crate) fn chunk_bytes(&self) -> f64 {
        let bytes = self.sectors as f64 * 512.0;
        if self.device.synchronous {
            return self.synchronous_chunk_bytes(bytes);
        }
        if self.op == Op::Read {
            return self.read_chunk_bytes();
        }
        let chunks = (self.cipher_ns(bytes) / self.operation_ns_all()).sqrt();
        (bytes / chunks.round().max(1.0)).max(CHUNK_BYTES_MIN)
    }

    /// Only the last chunk of a read has nothing to overlap with. A longer one before it costs
    /// nothing as long as it is decrypted before the next one is here: as bytes take no less time on
    /// their way than in the cipher, it may be longer by what the cipher does while one more operation
    /// is begun. Each chunk that much shorter than the one before it: of the `k` nanoseconds of each
    /// further operation half is hidden, and the sum is least at `n = sqrt(2c/dk)`. What is left of a
    /// read is cut as a read of its own would be, which comes to the same.
    fn read_chunk_bytes(&self) -> f64 {
        let left = self.left_sectors as f64 * 512.0;
        let operation_ns = self.operation_ns_all();
        let chunks = (2.0 * self.cipher_ns(left) / operation_ns).sqrt().round().max(1.0);
        let shorter = operation_ns / self.cipher_ns(1.0);
        let bytes = left / chunks + shorter * (chunks - 1.0) / 2.0;
        let bytes = (bytes / CHUNK_BYTES_MIN).round().max(1.0) * CHUNK_BYTES_MIN;
        // A block at least stays for each of the chunks behind.
        let longest = left - (chunks - 1.0) * CHUNK_BYTES_MIN;
        bytes.min(longest).max(CHUNK_BYTES_MIN)
    }

    /// What one more operation costs all requests in flight.
    fn operation_ns_all(&self) -> f64 {
        f64::from(self.depth.max(1)) * self.operation_ns()
    }

    /// Nothing overlaps with such a backend: it is this thread that copies. But every core can have
    /// a chunk; what one more costs is the hand-over, and of that each request in flight pays. What is
    /// not worth two hand-overs stays whole: half of it would be here before a worker has the other.
    ///
    /// Up to one chunk for each core the rule is the one above. Beyond, `c/n` is only what the
    /// last core to end is behind the others, on average half of it, and less if each gets as many.
    /// Where there are more requests than cores, every core has one.
    fn synchronous_chunk_bytes(&self, bytes: f64) -> f64 {
        match self.arm {
            Arm::Model | Arm::Coarse | Arm::Coarser => {}
            Arm::AllInline => return bytes.min(CACHE_BYTES),
            Arm::AllOffload => return bytes.min(SHARE_BYTES),
        }
        let (saved_ns, handover_ns) = (self.saved_ns(bytes), self.learned.handover_ns());
        if self.surroundings.workers == 0 || saved_ns < 2.0 * handover_ns {
            return bytes.min(CACHE_BYTES);
        }
        let depth = f64::from(self.depth.max(1));
        let cores = f64::from(self.surroundings.workers + 1) / depth;
        let worth = saved_ns / (self.learned.wake_ns() * depth);
        let chunks = match worth.sqrt() {
            _ if cores < 1.0 => 1.0,
            chunks if chunks <= cores => chunks.floor(),
            _ => ((worth / 2.0).sqrt() / cores).round().max(1.0) * cores,
        };
        (bytes / chunks.max(1.0)).min(SHARE_BYTES)
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
        let worth_ns = JOIN_WORTH * self.operation_ns();
        (self.depth / stay, worth_ns / self.cipher_ns(1.0))
    }

    /// Where a chunk is crypted.
    pub(crate) fn adaptive_target(&self, work: &Work) -> Target {
        match self.urgency {
            Urgency::Urgent => Target::Inline,
            _ if self.surroundings.workers == 0 => Target::Inline,
            Urgency::Background => Target::Offload,
            Urgency::Normal => match self.arm {
                Arm::Model | Arm::Coarse | Arm::Coarser => self.ordinary_target(work),
                Arm::AllInline => Target::Inline,
                Arm::AllOffload => Target::Offload,
            },
        }
    }

    /// What a worker has done before this thread would is handed on. And when others wait, everything
    /// that takes longer than handing it on, once a worker is awake, or has been missed for longer than
    /// waking it takes, or would spare this thread two hand-overs; one more is woken when those that are
    /// awake have work for as long. This thread then sees to the backend and the clients, and helps the
    /// workers when there is nothing else.
    fn ordinary_target(&self, work: &Work) -> Target {
        let mine_ns = self.cipher_ns(work.bytes as f64);
        let others = self.depth.saturating_sub(1);
        let saved_ns = self.saved_ns(work.bytes as f64);
        let hand_ns = own_hand_ns(self.learned, self.depth);
        if saved_ns <= hand_ns {
            return Target::Inline;
        }
        let awake = work.awake;
        let sleeps = self.surroundings.idle_workers > 0;
        let handover_ns = self.learned.handover_ns();
        let handed_ns = self.worker_ns((work.handed_bytes + work.bytes) as f64);
        if others > 0 && awake > 0 {
            let late = sleeps && handed_ns / f64::from(awake) > handover_ns;
            return if late { Target::Offload } else { Target::OffloadAwake };
        }
        if others > 0 && sleeps && work.waited_ns.max(saved_ns / 2.0) > handover_ns {
            return Target::Offload;
        }
        let carry_ns = self.carry_ns(work.bytes as f64);
        let there_ns = |cost_ns, workers: u32| cost_ns + carry_ns + handed_ns / f64::from(workers);
        let to_awake_ns = if awake > 0 { there_ns(hand_ns, awake) } else { f64::INFINITY };
        // A lone request's thread is spared nothing if it has to wake a worker for more than that.
        let wakes = sleeps && (others > 0 || saved_ns > self.learned.wake_ns() + hand_ns);
        let to_idle_ns = if wakes { there_ns(handover_ns, awake + 1) } else { f64::INFINITY };
        let ahead_bytes = work.ahead_bytes as f64;
        let here_ns = self.cipher_ns(ahead_bytes) + mine_ns + self.stores_ns(work);
        if to_awake_ns.min(to_idle_ns) >= here_ns {
            Target::Inline
        } else if sleeps {
            Target::Offload
        } else {
            Target::OffloadAwake
        }
    }

    /// What this thread has to copy before it gets to a chunk: encrypted chunks of others, where the
    /// backend is memory. (Reads are all here before the first one is decrypted.) To the first one in
    /// line it gets before any of them: writes leave in order.
    fn stores_ns(&self, work: &Work) -> f64 {
        if !self.device.synchronous || self.op == Op::Read || work.ahead_bytes == 0 {
            return 0.0;
        }
        let each_ns = self.learned.store_ns(true, work.bytes).unwrap_or(0.0);
        each_ns * (work.ahead_bytes + work.handed_bytes) as f64 / work.bytes as f64
    }

    /// What this thread is spared when a worker crypts so much for it.
    fn saved_ns(&self, bytes: f64) -> f64 {
        let crypt_ns = if self.op != Op::Read && self.device.in_place {
            // What this thread takes has the writing in it, which a worker leaves to it. The rest of
            // it is not more than what a worker takes.
            let rest_ns = self.cipher_ns(bytes) - bytes * self.learned.copy_ns_per_byte();
            rest_ns.min(self.worker_ns(bytes))
        } else {
            self.cipher_ns(bytes)
        };
        crypt_ns - self.carry_ns(bytes)
    }

    /// What this thread takes longer to copy so much from a worker's cache: reads to the client, writes
    /// to the backend if that does not fetch them itself.
    fn carry_ns(&self, bytes: f64) -> f64 {
        let copies = match self.op {
            Op::Read => !self.surroundings.reads_in_place,
            _ => self.device.copies,
        };
        if copies { bytes * self.learned.carry_ns_per_byte() } else { 0.0 }
    }

    fn cipher_ns(&self, bytes: f64) -> f64 {
        bytes * self.learned.cipher_ns_per_byte(self.op != Op::Read)
    }

    /// The same for a worker.
    fn worker_ns(&self, bytes: f64) -> f64 {
        bytes * self.learned.worker_ns_per_byte(self.op != Op::Read)
    }

    /// What one more operation costs this thread and the backend: what is assumed, times what the explorer
    /// has found.
    fn operation_ns(&self) -> f64 {
        OPERATION_NS * self.arm.operation_factor()
    }
}

/// What it costs this thread to give a chunk to a worker that is awake, with so many requests in flight.
fn own_hand_ns(learned: &Learned, depth: u32) -> f64 {
    let others = depth.saturating_sub(1).max(1);
    let idle = (f64::from(IN_FLIGHT_MIN) / f64::from(others)).min(1.0);
    learned.hand_ns() * (HAND_OWN + (1.0 - HAND_OWN) * idle)
}

/// Whether workers could be worth it under a load, if the estimates were wrong by a factor of [`WRONG`].
pub(crate) fn may_gain(learned: &Learned, load: &Load) -> bool {
    let crypt_ns = load.bytes * learned.cipher_ns_per_byte(load.is_write());
    let lone = load.depth < 2;
    let hand_ns = if lone { learned.handover_ns() } else { own_hand_ns(learned, load.depth) };
    crypt_ns * WRONG > hand_ns
}
