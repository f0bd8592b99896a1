//! Zoned devices (ZBC, ZAC, ZNS): most zones are written from start to end and are reset as a
//! whole.

use crate::Errno;

/// The limits of a zoned device.
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
    /// Can be written anywhere.
    #[default]
    Conventional,
    /// Must be written at its write pointer.
    SequentialRequired,
    /// Should be written at its write pointer.
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
    /// Where it is written next; meaningless if the zone is full or not sequential.
    pub write_pointer: u64,
    /// Whether it is written in order.
    pub kind: ZoneKind,
    /// Its state, by the numbers of `enum blk_zone_cond` (`linux/blkzoned.h`).
    pub condition: u8,
}

impl Zone {
    /// [`Zone::condition`]: cannot be written before a reset.
    pub const FULL: u8 = 14;

    /// Whether it has a write pointer.
    pub fn is_sequential(&self) -> bool {
        self.kind != ZoneKind::Conventional
    }
}

/// An action on zones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneAction {
    /// Reserves the device's resources for writes to it.
    Open,
    /// Releases these resources.
    Close,
    /// Makes it full.
    Finish,
    /// Drops its content: it is written from its start again.
    Reset,
}

/// The zones of a device. The methods wait for the device, outside of any queue.
pub trait Zones: Send + Sync {
    /// The limits of the device.
    fn limits(&self) -> ZoneLimits;

    /// Reports the zone that contains the byte `offset` and the ones behind it, at most as many as
    /// `zones` has room for. Returns their number.
    fn report(&self, offset: u64, zones: &mut [Zone]) -> Result<usize, Errno>;

    /// Applies an action to all zones of a range of whole zones, none of them conventional.
    fn act(&self, action: ZoneAction, offset: u64, len: u64) -> Result<(), Errno>;
}
