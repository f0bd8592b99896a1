//! The state machine of one queue.
//!
//! Contract:
//!
//! - A [`Request`] that [`Machine::request`] accepts ends in exactly one [`Output::Finish`]. A full
//!   machine refuses it instead: nothing is allocated after [`Machine::new`], nothing is dropped.
//! - Every `Crypt` is answered by [`Machine::crypted`], every `Store` by [`Machine::stored`], once.
//!   Stores may be answered in any order.
//! - A read's chunk is stored (read), then crypted; a write's is crypted, then stored. Stores of
//!   data leave in the order in which their requests came, and within a request in the order of
//!   its sectors; only [`Op::EncryptZeroes`] yields to later requests between its chunks.
//! - `Finish` of a write comes after the backend has answered for each of its chunks; with `fua`
//!   each of them was stored durably. `Finish` of a flush comes after the backend's flush, which
//!   starts after every write that was finished before.
//! - After a chunk fails, no further chunk of its request is started; the request finishes with the
//!   first error when those under way are answered.
//! - A chunk never crosses one of [`Limits::borders`].

use std::collections::VecDeque;

use crate::policy::{Place, Policy};
use crate::slab::Slab;

/// Names a request between [`Machine::request`] and its `Finish`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(u32);

/// Names a chunk between its first output and the answer to its last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChunkId(u32);

impl RequestId {
    /// An index below [`Limits::requests_max`], for tables beside the machine.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl ChunkId {
    /// An index below [`Limits::chunks_max`], for tables beside the machine.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The token under which the chunk's store is submitted to a backend.
    pub fn token(self) -> u64 {
        u64::from(self.0)
    }

    /// The chunk of a token that a backend answered; `None` if it names no possible chunk.
    pub fn from_token(token: u64) -> Option<Self> {
        u32::try_from(token).ok().map(Self)
    }
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Read and decrypt.
    Read,
    /// Encrypt and write; `fua`: durable before it finishes.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Write sectors whose plaintext is zero, where the backend cannot do it (it would store
    /// ciphertext that is zero).
    EncryptZeroes {
        /// Force unit access.
        fua: bool,
    },
    /// Make every finished write durable.
    Flush,
    /// Tell the backend that the content is no longer needed.
    Discard,
    /// Have the backend write zeroes itself (no cipher in between).
    BackendZeroes,
}

/// One request, in 512-byte sectors of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub op: Op,
    /// First sector, in units of 512 bytes. 0 for a flush.
    pub sector: u64,
    /// Number of 512-byte sectors, at least 1. 0 for a flush.
    pub sectors: u64,
}

/// Bounds of a machine, fixed at start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Most requests between acceptance and finish.
    pub requests_max: u32,
    /// Most chunks under way.
    pub chunks_max: u32,
    /// Largest store, in 512-byte sectors; a multiple of the volume's sector size.
    pub transfer_sectors_max: u64,
    /// Sectors that no chunk may cross (segment borders), ascending.
    pub borders: Vec<u64>,
}

/// What a `Store` asks of the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    /// Read the chunk's ciphertext.
    Read,
    /// Write the chunk's ciphertext; durable if `fua`.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Flush the backend.
    Flush,
    /// Discard the chunk's sectors.
    Discard,
    /// Write zeroes to the chunk's sectors.
    Zeroes,
}

/// Where a chunk lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The request it belongs to.
    pub request: RequestId,
    /// First 512-byte sector, in the volume.
    pub sector: u64,
    /// Number of 512-byte sectors.
    pub sectors: u64,
}

/// What the caller has to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output<E> {
    /// Encrypt (write) or decrypt (read) the chunk, then call [`Machine::crypted`].
    Crypt {
        /// The chunk.
        chunk: ChunkId,
        /// Its sectors.
        span: Span,
        /// Where to do it.
        place: Place,
    },
    /// Submit the chunk to the backend, then call [`Machine::stored`] with the result.
    Store {
        /// The chunk.
        chunk: ChunkId,
        /// Its sectors.
        span: Span,
        /// What to do.
        kind: StoreKind,
    },
    /// The request has ended; its id is free again.
    Finish {
        /// The request.
        request: RequestId,
        /// How it ended.
        result: Result<(), E>,
    },
}

#[derive(Debug)]
struct RequestState<E> {
    op: Op,
    /// Next sector that is not in a chunk yet.
    next: u64,
    end: u64,
    under_way: u32,
    /// Whether it stands in `Machine::waiting`.
    waits: bool,
    error: Option<E>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Crypt,
    Store,
}

#[derive(Debug)]
struct Chunk {
    span: Span,
    phase: Phase,
}

/// See the module's contract. `E` is the backend's error.
#[derive(Debug)]
pub struct Machine<E> {
    limits: Limits,
    policy: Policy,
    requests: Slab<RequestState<E>>,
    chunks: Slab<Chunk>,
    /// Requests with sectors that are in no chunk yet and that may start one, in arrival order.
    waiting: VecDeque<RequestId>,
    /// Decryptions of what has arrived: ahead of new work, because the data is in the cache now
    /// and its client has waited longest.
    arrived: VecDeque<Output<E>>,
    outputs: VecDeque<Output<E>>,
}

impl<E: Copy> Machine<E> {
    /// A machine with no request in it. All memory it will ever use is taken here.
    ///
    /// # Panics
    /// If a bound is zero.
    pub fn new(limits: Limits, policy: Policy) -> Self {
        assert!(limits.requests_max > 0 && limits.chunks_max > 0);
        assert!(limits.transfer_sectors_max > 0);
        let outputs_max = limits.requests_max as usize + limits.chunks_max as usize;
        Self {
            requests: Slab::new(limits.requests_max),
            chunks: Slab::new(limits.chunks_max),
            waiting: VecDeque::with_capacity(limits.requests_max as usize),
            arrived: VecDeque::with_capacity(limits.chunks_max as usize),
            outputs: VecDeque::with_capacity(outputs_max),
            policy,
            limits,
        }
    }

    /// Whether [`Machine::request`] would refuse.
    pub fn is_full(&self) -> bool {
        self.requests.is_full()
    }

    /// Requests accepted and not yet finished.
    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    /// Accepts a request, or returns `None` when the machine is full.
    ///
    /// # Panics
    /// If the request is empty and no flush, or its end overflows: the caller checks both
    /// against the volume's size.
    pub fn request(&mut self, request: Request) -> Option<RequestId> {
        let Request { op, sector, sectors } = request;
        assert!((op == Op::Flush) == (sectors == 0), "only a flush is empty");
        let end = sector.checked_add(sectors).expect("the request lies in the volume");
        let state = RequestState { op, next: sector, end, under_way: 0, waits: true, error: None };
        let id = RequestId(self.requests.insert(state)?);
        self.waiting.push_back(id);
        self.start_chunks();
        Some(id)
    }

    /// The chunk's crypt has ended. After an error the chunk goes nowhere: neither to the backend
    /// nor to the client.
    ///
    /// # Panics
    /// If no crypt of that chunk was asked for.
    pub fn crypted(&mut self, chunk: ChunkId, result: Result<(), E>) {
        let state = self.chunks.get_mut(chunk.0).expect("a chunk under way");
        assert!(state.phase == Phase::Crypt, "crypted without a Crypt");
        let span = state.span;
        let op = self.requests.get(span.request.0).expect("its request").op;
        match op {
            Op::Write { fua } | Op::EncryptZeroes { fua } if result.is_ok() => {
                state.phase = Phase::Store;
                let kind = StoreKind::Write { fua };
                self.outputs.push_back(Output::Store { chunk, span, kind });
            }
            _ => self.end_chunk(chunk, result),
        }
    }

    /// Where a chunk under way lies; `None` if there is no such chunk.
    pub fn span(&self, chunk: ChunkId) -> Option<Span> {
        self.chunks.get(chunk.0).map(|chunk| chunk.span)
    }

    /// The backend has answered for the chunk.
    ///
    /// # Panics
    /// If no store of that chunk was asked for.
    pub fn stored(&mut self, chunk: ChunkId, result: Result<(), E>) {
        let state = self.chunks.get_mut(chunk.0).expect("a chunk under way");
        assert!(state.phase == Phase::Store, "stored without a Store");
        let span = state.span;
        let op = self.requests.get(span.request.0).expect("its request").op;
        if op == Op::Read && result.is_ok() {
            state.phase = Phase::Crypt;
            let place = self.policy.plan(op, self.limits.transfer_sectors_max).place;
            self.arrived.push_back(Output::Crypt { chunk, span, place });
        } else {
            self.end_chunk(chunk, result);
        }
    }

    /// The next thing to do; `None` when the machine waits for an input.
    pub fn next_output(&mut self) -> Option<Output<E>> {
        let output = self.arrived.pop_front().or_else(|| self.outputs.pop_front())?;
        if let Output::Finish { request, .. } = output {
            // Not earlier: until it is told, the id must not name another request.
            self.requests.remove(request.0);
        }
        Some(output)
    }

    fn end_chunk(&mut self, chunk: ChunkId, result: Result<(), E>) {
        let ended = self.chunks.remove(chunk.0).expect("a chunk under way");
        let id = ended.span.request;
        let request = self.requests.get_mut(id.0).expect("its request");
        request.under_way -= 1;
        if let Err(error) = result {
            request.error.get_or_insert(error);
            request.next = request.end;
        }
        if request.next < request.end {
            if !request.waits {
                request.waits = true;
                self.waiting.push_back(id);
            }
        } else if request.under_way == 0 {
            let result = request.error.map_or(Ok(()), Err);
            if !request.waits {
                self.outputs.push_back(Output::Finish { request: id, result });
            }
        }
        self.start_chunks();
    }

    /// Starts chunks of the waiting requests, in arrival order, while there is room.
    fn start_chunks(&mut self) {
        while let Some(&id) = self.waiting.front() {
            let request = self.requests.get_mut(id.0).expect("a waiting request");
            if request.error.is_some() {
                // Failed while it waited: nothing more is started.
                self.waiting.pop_front();
                request.waits = false;
                if request.under_way == 0 {
                    let result = request.error.map_or(Ok(()), Err);
                    self.outputs.push_back(Output::Finish { request: id, result });
                }
                continue;
            }
            let plan = self.policy.plan(request.op, self.limits.transfer_sectors_max);
            if request.under_way >= plan.window {
                self.waiting.pop_front();
                request.waits = false;
                continue;
            }
            if self.chunks.is_full() {
                return;
            }
            let sector = request.next;
            let until =
                chunk_end(&self.limits, request.op, sector, request.end, plan.chunk_sectors);
            let span = Span { request: id, sector, sectors: until - sector };
            let (phase, kind) = match request.op {
                Op::Write { .. } | Op::EncryptZeroes { .. } => (Phase::Crypt, None),
                Op::Read => (Phase::Store, Some(StoreKind::Read)),
                Op::Flush => (Phase::Store, Some(StoreKind::Flush)),
                Op::Discard => (Phase::Store, Some(StoreKind::Discard)),
                Op::BackendZeroes => (Phase::Store, Some(StoreKind::Zeroes)),
            };
            let chunk = self.chunks.insert(Chunk { span, phase }).expect("there is room");
            let chunk = ChunkId(chunk);
            request.next = until;
            request.under_way += 1;
            if until == request.end {
                self.waiting.pop_front();
                request.waits = false;
            }
            self.outputs.push_back(match kind {
                None => Output::Crypt { chunk, span, place: plan.place },
                Some(kind) => Output::Store { chunk, span, kind },
            });
        }
    }
}

/// Where the chunk that starts at `sector` ends.
fn chunk_end(limits: &Limits, op: Op, sector: u64, end: u64, chunk_sectors: u64) -> u64 {
    let longest = match op {
        // No data is moved: only borders cut these.
        Op::Discard | Op::BackendZeroes | Op::Flush => end - sector,
        _ => chunk_sectors.min(limits.transfer_sectors_max),
    };
    let border =
        limits.borders[limits.borders.partition_point(|&border| border <= sector)..].first();
    let until = end.min(sector.saturating_add(longest));
    border.map_or(until, |&border| until.min(border))
}
