//! What *should* happen to requests. The machine knows what *may*: admission, order, barriers,
//! cancellation, bounds. Whatever a policy answers, the machine keeps its contract.
//!
//! A [`Policy`] answers two questions, and is told what really happened:
//!
//! ```text
//! asked     split (how long is the next chunk, what may join it) · target (where is it transformed)
//! told      on_time · on_round · on_split · on_placed · on_wake · on_cipher_done · on_io_done · on_end
//! ```

use std::fmt;

use crate::limits::{BackendTraits, Environment};
use crate::request::{Op, Urgency};

/// Where a chunk is encrypted or decrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// On the thread that has the request, at once.
    Inline,
    /// On a worker that runs on the same core.
    SameCore,
    /// On whichever worker is free, and one is woken for it if any sleeps.
    Offload,
    /// On a worker that is awake, when it gets there: none is woken unless all sleep.
    OffloadAwake,
}

/// Everything that a decision about a request may depend on, besides what the policy has been told.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// What is asked for.
    pub op: Op,
    /// Length of the request in 512-byte sectors.
    pub sectors: u64,
    /// Those of them that are in no chunk yet.
    pub left_sectors: u64,
    /// How much somebody waits for it.
    pub urgency: Urgency,
    /// Requests in flight, this one included.
    pub in_flight: u32,
    /// The backend.
    pub backend: &'a BackendTraits,
    /// The workers.
    pub environment: &'a Environment,
}

/// How the next chunk of a request is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Longest chunk, in 512-byte sectors. The machine rounds it to whole cipher sectors, at least one, and
    /// keeps to the backend's largest operation.
    pub chunk_sectors: u64,
    /// The chunk of a write leaves for the backend behind those of earlier writes.
    pub ordered: bool,
    /// Most whole requests that may become one chunk if they are neighbours and wait together; at most 1:
    /// none is joined.
    pub join_requests: u32,
    /// Longest such chunk, in 512-byte sectors.
    pub join_sectors: u64,
}

/// The work that there is when a chunk is to be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Bytes of the chunk.
    pub bytes: u64,
    /// Bytes of the others that this thread transforms before it.
    pub ahead_bytes: u64,
    /// Bytes that workers have of this queue.
    pub offloaded_bytes: u64,
    /// Workers that have some of them, or had a moment ago and do not sleep yet.
    pub awake: u32,
}

/// How a request became a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A chunk of its own.
    Whole,
    /// Several chunks; told with the last one.
    Split,
    /// One chunk together with others: so many requests.
    Joined(u32),
}

/// A chunk was placed, in truth: a worker that had no room for it does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// What it is.
    pub op: Op,
    /// Its length.
    pub bytes: u64,
    /// Whether a worker has it.
    pub offloaded: bool,
}

/// A chunk was transformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CipherDone {
    /// What it is.
    pub op: Op,
    /// Its length.
    pub bytes: u64,
    /// Nanoseconds of some core, if that was measured.
    pub spent_ns: Option<u64>,
    /// Whether a worker had it.
    pub offloaded: bool,
    /// Whether workers had other chunks of this queue.
    pub beside_workers: bool,
    /// Nanoseconds from waking a worker for it until its answer was here, less `spent_ns`; `None` if none was
    /// woken.
    pub wake_latency_ns: Option<u64>,
}

/// See the module's comment. Times are nanoseconds since the same origin.
pub trait Policy: fmt::Debug {
    /// How the next chunk of a request is made.
    fn split(&self, context: &Context<'_>) -> Split;

    /// Where a chunk is transformed.
    fn target(&self, context: &Context<'_>, work: &Work) -> Target;

    /// Whether a chunk may be offloaded while one before it in line is not.
    fn looks_ahead(&self) -> bool {
        true
    }

    /// Whether the times that it is told have to be exact.
    fn needs_time(&self) -> bool {
        false
    }

    /// What a request that is accepted now is to keep for [`Policy::on_end`].
    fn stamp(&self) -> u32 {
        0
    }

    /// It is `now_ns`, and from now on so many requests are in flight, until some end.
    fn on_time(&mut self, now_ns: u64, in_flight: usize) {
        let _ = (now_ns, in_flight);
    }

    /// Requests that wait are about to be started.
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

    /// A chunk was placed.
    fn on_placed(&mut self, placed: &Placed) {
        let _ = placed;
    }

    /// Waking a worker took this thread `spent_ns`.
    fn on_wake(&mut self, spent_ns: u64) {
        let _ = spent_ns;
    }

    /// A chunk was transformed.
    fn on_cipher_done(&mut self, done: &CipherDone) {
        let _ = done;
    }

    /// The backend took `spent_ns` from submission to answer, with success.
    fn on_io_done(&mut self, op: Op, bytes: u64, spent_ns: u64) {
        let _ = (op, bytes, spent_ns);
    }

    /// A request has ended that was given this [`Policy::stamp`].
    fn on_end(&mut self, op: Op, bytes: u64, succeeded: bool, stamp: u32) {
        let _ = (op, bytes, succeeded, stamp);
    }
}
