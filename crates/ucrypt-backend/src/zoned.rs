//! Devices of zones, most of which are written from their start to their end and are reset as a
//! whole (ZBC, ZAC, ZNS).

use crate::Errno;

/// What a zoned device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZoneLimits {
    /// Bytes of a zone; a power of two. The last zone may be shorter.
    pub len: u64,
    /// Zones that may be open at once; 0: any number.
    pub open_max: u32,
    /// Zones that may be open or closed at once; 0: any number.
    pub active_max: u32,
}

/// Whether a zone is written in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ZoneKind {
    /// It is written anywhere.
    #[default]
    Conventional,
    /// It must be written at its write pointer.
    SequentialRequired,
    /// It is better written at its write pointer.
    SequentialPreferred,
}

/// A zone. Positions in bytes of the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Zone {
    /// Its first byte.
    pub start: u64,
    /// Bytes to the next zone.
    pub len: u64,
    /// Bytes from its start that can be written.
    pub capacity: u64,
    /// Where it is written next; means nothing where it is full, or not written in order.
    pub write_pointer: u64,
    /// Whether it is written in order.
    pub kind: ZoneKind,
    /// Its state, by the numbers of `enum blk_zone_cond` (`linux/blkzoned.h`).
    pub condition: u8,
}

impl Zone {
    /// [`Zone::condition`]: it cannot be written before it is reset.
    pub const FULL: u8 = 14;

    /// Whether it has a write pointer.
    pub fn is_sequential(&self) -> bool {
        self.kind != ZoneKind::Conventional
    }
}

/// What can be done to a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneAction {
    /// Keeps the device's resources for writes to it.
    Open,
    /// Gives them back.
    Close,
    /// Makes it full.
    Finish,
    /// Forgets its content: it is written from its start again.
    Reset,
}

/// A zoned device. Its functions wait for the device, outside of any queue.
pub trait Zones: Send + Sync {
    /// What it is.
    fn limits(&self) -> ZoneLimits;

    /// Reports on the zone that holds the byte `offset` and those behind it, as many as there are,
    /// at most as many as `zones` has room for. Returns how many.
    fn report(&self, offset: u64, zones: &mut [Zone]) -> Result<usize, Errno>;

    /// Does something to all zones of a range of whole zones, none of them conventional.
    fn act(&self, action: ZoneAction, offset: u64, len: u64) -> Result<(), Errno>;
}
