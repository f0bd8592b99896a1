//! What *should* happen to requests. The machine knows what *may* happen: admission, order,
//! barriers, cancellation, bounds. Whatever a policy answers, the machine keeps its contract.
//!
//! A [`Policy`] answers two questions, and is told what actually happened. (Its other methods say how
//! it wants to be asked: whether the machine looks ahead, and whether times have to be exact.)
//!
//! ```text
//! asked     split (how long is the next chunk, what may join it) · target (where is it transformed)
//! told      on_time · on_round · on_split · on_placed · on_wake · on_cipher_done · on_io_done · on_end
//! ```

use std::fmt;

use crate::environment::{BackendTraits, Environment};
use crate::request::{Op, Urgency};

/// Where a chunk is encrypted or decrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// At once, on the thread that has the request.
    Inline,
    /// On a worker that runs on the same core.
    SameCore,
    /// On any free worker; one is woken if any sleeps.
    Offload,
    /// On an awake worker, once it is free: none is woken unless all sleep.
    OffloadAwake,
}

/// The inputs of a decision about a request, besides what the policy has been told.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The operation.
    pub op: Op,
    /// Length of the request in 512-byte sectors.
    pub sectors: u64,
    /// Sectors of the request that are in no chunk yet.
    pub left_sectors: u64,
    /// Whether the request is a write that continues a recent one, or comes where others do.
    pub sequential: bool,
    /// How urgently the request is awaited.
    pub urgency: Urgency,
    /// Requests in flight, this one included.
    pub in_flight: u32,
    /// The backend.
    pub backend: &'a BackendTraits,
    /// The workers.
    pub environment: &'a Environment,
    /// Nanoseconds since a worker last had a chunk of this machine; `u64::MAX`: none ever had.
    pub workers_slept_ns: u64,
}

/// How the next chunk of a request is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Longest chunk, in 512-byte sectors. The machine rounds it up to whole cipher sectors, at
    /// least one, and limits it to the backend's largest operation.
    pub chunk_sectors: u64,
    /// Whether the chunk of a write leaves for the backend behind the chunks of earlier writes.
    pub ordered: bool,
    /// Maximum number of whole requests joined into one chunk if they are adjacent and wait
    /// together; 0 or 1: none is joined.
    pub join_requests: u32,
    /// Longest joined chunk, in 512-byte sectors.
    pub join_sectors: u64,
}

/// The pending work when a chunk is to be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Bytes of the chunk.
    pub bytes: u64,
    /// Bytes of the other chunks that this thread would transform before it.
    pub ahead_bytes: u64,
    /// Bytes of this queue that workers have.
    pub offloaded_bytes: u64,
    /// Awake workers, if workers have chunks of this queue or had some a moment ago; else 0.
    pub awake: u32,
}

/// How a request became a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A chunk of its own.
    Whole,
    /// Several chunks; reported with the last one.
    Split,
    /// One chunk together with other requests; the number of requests in it.
    Joined(u32),
}

/// How long it took to wake a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WakeLatency {
    /// Nanoseconds since a worker last had a chunk of the machine; `u64::MAX`: none ever had.
    pub slept_ns: u64,
    /// Nanoseconds from waking the worker until its answer, without the transform; if this thread
    /// took the chunk back, until it began, before the worker did: the wake latency is longer.
    pub ns: u64,
}

/// Who transformed a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransformedBy {
    /// The thread that has the request.
    ThisThread,
    /// The same, after workers were handed the chunk and none had begun.
    ThisThreadAfterAll,
    /// A worker.
    Worker,
}

/// A chunk was transformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CipherDone {
    /// The operation.
    pub op: Op,
    /// Its length.
    pub bytes: u64,
    /// Nanoseconds of transform on some core, if measured.
    pub spent_ns: Option<u64>,
    /// Where: by a worker, here, or here after a worker that was handed it had not begun.
    pub by: TransformedBy,
    /// Whether workers had other chunks of this queue at the end.
    pub beside_workers: bool,
    /// `None` if no worker was woken for the chunk.
    pub wake_latency: Option<WakeLatency>,
}

/// Decides how requests are split and where chunks are transformed; see the module's comment. Times
/// are nanoseconds since the same origin.
pub trait Policy: fmt::Debug {
    /// Decides how the next chunk of a request is made.
    fn split(&self, context: &Context<'_>) -> Split;

    /// Decides where a chunk is transformed.
    fn target(&self, context: &Context<'_>, work: &Work) -> Target;

    /// Whether a chunk may be offloaded while one before it in line is not.
    fn looks_ahead(&self) -> bool {
        true
    }

    /// Whether the times passed to the policy have to be exact.
    fn needs_time(&self) -> bool {
        false
    }

    /// A value that the machine keeps with a request accepted now, for [`Policy::on_end`].
    fn stamp(&self) -> u32 {
        0
    }

    /// The time is `now_ns`, and from now on `in_flight` requests are in flight, until some end.
    fn on_time(&mut self, now_ns: u64, in_flight: usize) {
        let _ = (now_ns, in_flight);
    }

    /// Waiting requests are about to be started.
    fn on_round(
        &mut self,
        now_ns: u64,
        in_flight: usize,
        backend: &BackendTraits,
        environment: &Environment,
    ) {
        let _ = (now_ns, in_flight, backend, environment);
    }

    /// A chunk was made.
    fn on_split(&mut self, op: Op, shape: Shape, backend: &BackendTraits) {
        let _ = (op, shape, backend);
    }

    /// A chunk was placed: workers were handed it (`offloaded`), or this thread transformed it. An
    /// offload that no worker had room for counts as inline.
    fn on_placed(&mut self, op: Op, urgency: Urgency, offloaded: bool) {
        let _ = (op, urgency, offloaded);
    }

    /// Waking a worker took this thread `spent_ns`.
    fn on_wake(&mut self, spent_ns: u64) {
        let _ = spent_ns;
    }

    /// A chunk was transformed.
    fn on_cipher_done(&mut self, done: &CipherDone) {
        let _ = done;
    }

    /// The backend answered with success, `spent_ns` after submission.
    fn on_io_done(&mut self, op: Op, bytes: u64, spent_ns: u64) {
        let _ = (op, bytes, spent_ns);
    }

    /// A request has ended that was accepted with this [`Policy::stamp`].
    fn on_end(&mut self, op: Op, bytes: u64, succeeded: bool, stamp: u32) {
        let _ = (op, bytes, succeeded, stamp);
    }
}
