//! What surrounds a machine: its bounds, its backend, its workers.

/// What memory for zeroes is counted in, in 512-byte sectors (32 KiB): a chunk takes whole units,
/// so that no memory lies between two chunks in pieces that are too small for a third. Half of it
/// would let more small writes of zeroes be under way, and cut large ones into twice as many buffers.
pub const ZEROES_UNIT_SECTORS: u64 = 64;

/// Bounds of a machine, fixed at start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Most requests between acceptance and finish.
    pub requests_max: u32,
    /// Most chunks under way.
    pub chunks_max: u32,
    /// Largest operation of the backend, in 512-byte sectors; a multiple of `sector_sectors`.
    pub transfer_sectors_max: u64,
    /// Most 512-byte sectors of [`Op::EncryptZeroes`](crate::Op::EncryptZeroes) that are under way,
    /// each chunk rounded up to [`ZEROES_UNIT_SECTORS`]; at least `transfer_sectors_max`. The caller
    /// has memory for as many.
    pub zeroes_sectors_max: u64,
    /// 512-byte sectors that are encrypted as one: chunks are whole multiples of it.
    pub sector_sectors: u64,
    /// Sectors that no chunk may cross (segment borders), ascending.
    pub borders: Vec<u64>,
}

/// What is known of the backend without measuring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendTraits {
    /// Operations are carried out by the thread that submits them.
    pub synchronous: bool,
    /// A core copies what is written, and no device fetches it.
    pub copies: bool,
    /// Where it can, this thread encrypts to where the backend keeps the data
    /// ([`Output::EncryptMapped`](crate::Output::EncryptMapped)). What a worker encrypts has to be written.
    pub mapped: bool,
    /// It has moving parts: order matters to it, and one more operation costs more than anything.
    pub rotational: bool,
    /// Operations in flight beyond which the backend gets no faster.
    pub depth_max: u32,
}

/// What the queue may use right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Environment {
    /// Workers that may be used now, as far as there are cores for them. What the explorer offloads may
    /// wake others.
    pub workers: u32,
    /// Those of them that sleep.
    pub idle_workers: u32,
    /// What was read lies where its client wants it: this thread copies none of it.
    pub reads_in_place: bool,
}
