//! The surroundings of a machine: its bounds, its backend, its workers.

/// Bounds of a machine, fixed at start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of requests between acceptance and finish.
    pub requests_max: u32,
    /// Maximum number of chunks under way.
    pub chunks_max: u32,
    /// Largest operation of the backend, in 512-byte sectors; a multiple of `sector_sectors`.
    pub transfer_sectors_max: u64,
    /// Maximum number of 512-byte sectors of [`Op::EncryptZeroes`](crate::Op::EncryptZeroes) under
    /// way, each chunk rounded up to [`ZEROES_UNIT_SECTORS`](crate::ZEROES_UNIT_SECTORS); at least
    /// two of these units. A chunk has at most half of them. The caller has memory for as many.
    pub zeroes_sectors_max: u64,
    /// Length of an encrypted sector, in 512-byte sectors: chunks are whole multiples of it.
    pub sector_sectors: u64,
    /// Sectors that no chunk may cross (segment borders), ascending.
    pub borders: Vec<u64>,
}

/// Properties of the backend that are known without measuring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendTraits {
    /// The thread that submits an operation carries it out.
    pub synchronous: bool,
    /// A core copies the written data; no device fetches it.
    pub copies: bool,
    /// Where it can, this thread encrypts directly to where the backend keeps the data
    /// ([`Output::EncryptMapped`](crate::Output::EncryptMapped)). Data that a worker encrypts has
    /// to be written.
    pub mapped: bool,
    /// The backend has moving parts: order matters, and one more operation costs more than
    /// anything else.
    pub rotational: bool,
    /// The backend takes the writes of a zone in order only.
    pub zoned: bool,
}

/// The resources that the queue may use now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Environment {
    /// Workers that may be used now, limited by the cores available. Chunks that the explorer
    /// offloads may wake further workers.
    pub workers: u32,
    /// Those of `workers` that are asleep.
    pub idle_workers: u32,
    /// Read data lies where its client wants it: this thread copies none of it.
    pub reads_in_place: bool,
}
