//! What a queue remembers about a client's request, about the machine's requests that it became, and
//! about their chunks.

use std::ops::Range;

use ucrypt_backend::{Buf, Errno};
use ucrypt_dispatch::{Op as MachineOp, PARTS_MAX, Part, Urgency};

use crate::data::Data;
use crate::range_lock::Mode;

/// A client's request, from acceptance to answer.
#[derive(Debug)]
pub(super) struct ClientRequest {
    pub(super) tag: u64,
    pub(super) kind: Kind,
    /// Bytes of the volume that it touches, and how it holds them.
    pub(super) range: Range<u64>,
    pub(super) mode: Mode,
    pub(super) locked: bool,
    /// What is to be started once it has its range.
    pub(super) middle: Option<Middle>,
    /// Memory for the middle until it is started; what was read once it has ended.
    pub(super) buf: Option<Buf>,
    /// The sectors of which it writes only a part.
    pub(super) edges: [Option<Edge>; 2],
    /// The client's own memory, as long as it is not with a machine's request. The list is kept.
    pub(super) pieces: Vec<Buf>,
    pub(super) fua: bool,
    pub(super) urgency: Urgency,
    /// Machine requests that have not finished.
    pub(super) pending: u8,
    pub(super) error: Option<Errno>,
    /// Of a read: where in the whole sectors the bytes lie that were asked for.
    pub(super) head: usize,
    /// Bytes that the client asked for, for the counters and the answer.
    pub(super) len: u64,
}

/// Pieces of a client's memory for which each request keeps room; more make its list grow, once.
const PIECES: usize = 16;

impl Default for ClientRequest {
    fn default() -> Self {
        Self {
            tag: 0,
            kind: Kind::Flush,
            range: 0..0,
            mode: Mode::Shared,
            locked: false,
            middle: None,
            buf: None,
            edges: [None, None],
            pieces: Vec::with_capacity(PIECES),
            fua: false,
            urgency: Urgency::Normal,
            pending: 0,
            error: None,
            head: 0,
            len: 0,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Flush,
    Discard,
}

/// The part of a request that is whole sectors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Middle {
    pub(super) op: MachineOp,
    /// 512-byte sectors of the volume.
    pub(super) sector: u64,
    pub(super) sectors: u64,
}

/// A sector of which a write changes only a part: read, changed, written back.
#[derive(Debug)]
pub(super) struct Edge {
    /// First 512-byte sector of the volume, and how many make one sector of the cipher.
    pub(super) sector: u64,
    pub(super) sectors: u64,
    /// Memory for the sector, until it is handed to the machine.
    pub(super) buf: Option<Buf>,
    /// Where in the sector the new bytes go.
    pub(super) at: usize,
    pub(super) patch: Buf,
}

/// What a machine request stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Role {
    #[default]
    Middle,
    /// Which of the client request's two edges.
    Edge(usize),
}

/// What belongs to a machine request.
#[derive(Debug)]
pub(super) struct MachineRequest {
    /// The client's request that it is a part of.
    pub(super) client: u32,
    pub(super) role: Role,
    pub(super) op: MachineOp,
    pub(super) first_sector: u64,
    pub(super) data: Data,
}

impl MachineRequest {
    /// Moves a part's bytes out of the request's data. Returns whether all of them were there.
    #[must_use]
    pub(super) fn cut(&mut self, part: &Part, chunk: &mut Vec<Buf>) -> bool {
        let offset = (part.sector - self.first_sector) as usize * 512;
        self.data.cut(offset, part.sectors as usize * 512, chunk)
    }
}

impl Default for MachineRequest {
    fn default() -> Self {
        Self {
            client: 0,
            role: Role::Middle,
            op: MachineOp::Flush,
            first_sector: 0,
            data: Data::default(),
        }
    }
}

/// The buffers of a chunk. The lists travel with the buffers and come back, so that none is made after
/// start.
#[derive(Debug)]
pub(super) struct Chunk {
    /// While they are in no other hands.
    pub(super) bufs: Vec<Buf>,
    /// Those of the parts that are submitted again one by one, after an error. A list without memory
    /// otherwise.
    pub(super) again: Vec<Buf>,
}

/// Buffers of a chunk for which room is kept: requests that travel together, in pieces. More make
/// the list grow.
const CHUNK_BUFS: usize = 4 * PARTS_MAX;

impl Default for Chunk {
    fn default() -> Self {
        Self { bufs: Vec::with_capacity(CHUNK_BUFS), again: Vec::new() }
    }
}
