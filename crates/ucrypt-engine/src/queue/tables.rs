//! A queue's records of client requests, of the machine requests that they become, and of chunks.

use std::ops::Range;

use ucrypt_backend::{Buf, Errno};
use ucrypt_dispatch::{Op as MachineOp, PARTS_MAX, Part, Urgency};

use crate::data::Data;
use crate::meters::Kind;
use crate::range_lock::{Mode, Ticket};
use crate::zones::ZoneChange;

/// A client's request, from acceptance to answer.
#[derive(Debug)]
pub(super) struct ClientRequest {
    pub(super) tag: u64,
    pub(super) kind: Kind,
    /// Byte range of the volume that the request touches, and how the range is locked.
    pub(super) range: Range<u64>,
    pub(super) mode: Mode,
    pub(super) locked: bool,
    /// Its place among those who wait for their range.
    pub(super) ticket: Option<Ticket>,
    /// The whole sectors to start once the range is locked.
    pub(super) body: Option<Body>,
    /// Memory for the body until it is started; the data read once it has ended.
    pub(super) buf: Option<Buf>,
    /// The sectors that the request writes only in part.
    pub(super) edges: [Option<Edge>; 2],
    /// The change of zones to make once the range is locked; there are no sectors then.
    pub(super) zones: Option<ZoneChange>,
    /// The client's own memory, unless a machine request has it. The list itself is reused.
    pub(super) pieces: Vec<Buf>,
    /// Pieces that the client gave.
    pub(super) piece_count: usize,
    pub(super) fua: bool,
    /// Zeroes that the backend does not make itself are refused.
    pub(super) fast: bool,
    pub(super) urgency: Urgency,
    /// Machine requests that have not ended.
    pub(super) pending: u8,
    pub(super) error: Option<Errno>,
    /// A worker transformed a part of it.
    pub(super) offloaded: bool,
    /// For a read: offset of the requested bytes in the whole sectors.
    pub(super) head: usize,
    /// Bytes requested by the client, for the counters and the answer.
    pub(super) len: u64,
    /// When it arrived, if it is timed.
    pub(super) arrived_ns: Option<u64>,
}

/// Pieces of client memory that each request has room for. The list of one with more is allocated, and given
/// back; together the requests in flight have no more than all have room for.
pub(super) const PIECES: usize = 16;

/// Pieces of all requests that even a queue of few requests has in flight.
pub(super) const PIECES_MIN: usize = 2048;

impl Default for ClientRequest {
    fn default() -> Self {
        Self {
            tag: 0,
            kind: Kind::Flush,
            range: 0..0,
            mode: Mode::Shared,
            locked: false,
            ticket: None,
            body: None,
            buf: None,
            edges: [None, None],
            zones: None,
            pieces: Vec::with_capacity(PIECES),
            piece_count: 0,
            fua: false,
            fast: false,
            urgency: Urgency::Normal,
            pending: 0,
            error: None,
            offloaded: false,
            head: 0,
            len: 0,
            arrived_ns: None,
        }
    }
}

/// The whole sectors of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Body {
    pub(super) op: MachineOp,
    /// First sector, and number of sectors, in 512-byte sectors of the volume.
    pub(super) sector: u64,
    pub(super) sectors: u64,
}

/// A partly written unit of the backend (a cipher sector, or more where the backend writes no less): read, modified,
/// written back.
#[derive(Debug)]
pub(super) struct Edge {
    /// First 512-byte sector of the volume, and 512-byte sectors of the unit.
    pub(super) sector: u64,
    pub(super) sectors: u64,
    /// Memory for the sector, until the machine request has it.
    pub(super) buf: Option<Buf>,
    /// Offset of the new bytes in the sector.
    pub(super) at: usize,
    pub(super) patch: Buf,
}

/// The part of a client's request that a machine request stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Role {
    #[default]
    Body,
    /// The index of the edge.
    Edge(usize),
}

/// The engine's record of a machine request.
#[derive(Debug)]
pub(super) struct MachineRequest {
    /// Index of the client's request.
    pub(super) client: u32,
    pub(super) role: Role,
    pub(super) op: MachineOp,
    pub(super) first_sector: u64,
    pub(super) data: Data,
}

impl MachineRequest {
    /// Moves a part's bytes from the request's data to `chunk`. Returns whether all were there.
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
            role: Role::Body,
            op: MachineOp::Flush,
            first_sector: 0,
            data: Data::default(),
        }
    }
}

/// The buffers of a chunk. The lists travel with the buffers and come back, so that no list is
/// allocated after start.
#[derive(Debug)]
pub(super) struct Chunk {
    /// The buffers, while neither a worker nor the backend has them.
    pub(super) bufs: Vec<Buf>,
    /// After an error: buffers of the parts that are submitted again one by one. Otherwise an empty
    /// list without memory.
    pub(super) again: Vec<Buf>,
}

/// Buffers that each chunk has room for, for joined requests in pieces. The list grows while there are
/// more.
pub(super) const CHUNK_BUFS: usize = 2 * PARTS_MAX;

impl Default for Chunk {
    fn default() -> Self {
        Self { bufs: Vec::with_capacity(CHUNK_BUFS), again: Vec::new() }
    }
}
