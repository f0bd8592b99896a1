//! The description of a device. The devices themselves are in [`super::table`].

use crate::Limits;

use super::table::PROFILES;

/// A speed, in units of 1000 bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate(u64);

impl Rate {
    /// Takes no time.
    pub const INFINITE: Self = Self(u64::MAX);

    /// `value` × 1000 bytes per second.
    ///
    /// # Panics
    /// If it is zero.
    pub const fn kb_s(value: u64) -> Self {
        assert!(value > 0, "a rate of zero never ends");
        Self(value)
    }

    /// Nanoseconds for `len` bytes.
    pub const fn time_ns(self, len: u64) -> u64 {
        len.saturating_mul(1_000_000) / self.0
    }

    /// Whole bytes in `time_ns` nanoseconds; below 2^64 / rate.
    pub(super) const fn bytes(self, time_ns: u64) -> u64 {
        self.0.saturating_mul(time_ns) / 1_000_000
    }
}

/// One device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The name, as in `model:NAME,SIZE`.
    pub name: &'static str,
    /// A one-line description.
    pub about: &'static str,
    /// See [`Limits::block`].
    pub block: u32,
    /// See [`Limits::discard`].
    pub discard: bool,
    /// The timing.
    pub media: Media,
    /// Whether zones must be written in order.
    pub zones: Option<ZoneLayout>,
}

/// The timing of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Media {
    /// Nothing moves: flash, 3D `XPoint`, a network volume, or nothing at all.
    Flash(FlashProfile),
    /// A rotating disk under a head.
    Disk(DiskProfile),
}

/// Parameters of a device without moving parts.
///
/// A request is cut into commands that run concurrently. A read waits for a free lane, then for the
/// lane's data, then for the bus, which all commands share; it crosses the bus in one go as soon as
/// it can do so without a pause. A write crosses the bus and is programmed afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlashProfile {
    /// Largest command, in bytes; not zero.
    pub command_max: u64,
    /// Time that each command takes on the bus besides its data.
    pub command_ns: u64,
    /// Speed of the bus.
    pub bus: Rate,
    /// Read commands that the device works on at once; not zero.
    pub lanes: u32,
    /// Time from a read command to its first byte.
    pub read_ns: u64,
    /// Speed at which one read command gets its data.
    pub lane: Rate,
    /// How far `read_ns` varies to either side, in percent (uniform); at most 100.
    pub spread_percent: u64,
    /// Time from the last byte of a write on the bus to its answer; also the time of commands
    /// without data.
    pub write_ns: u64,
    /// Speed at which writes reach the medium, all lanes together.
    pub program: Rate,
    /// Time that each write command takes on the medium besides its data.
    pub program_ns: u64,
    /// The same for a write far from the recent ones (garbage collection, lost merging).
    pub program_far_ns: u64,
    /// Bytes that are answered before they reach the medium; 0 if every write is durable when it is
    /// answered.
    pub cache: u64,
    /// Time of a flush besides that of the cached writes; charged only if there is a cache.
    pub flush_ns: u64,
}

/// Parameters of a disk. Requests are carried out in the order in which they arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskProfile {
    /// Speed of the medium under the head.
    pub rate: Rate,
    /// Time of one turn; not zero.
    pub rotation_ns: u64,
    /// Seek to the next track.
    pub seek_min_ns: u64,
    /// Seek from the first byte of `capacity` to the last; shorter seeks scale with the square root
    /// of the distance.
    pub seek_max_ns: u64,
    /// Bytes over which `seek_max_ns` reaches, however short the backend is; not zero.
    pub capacity: u64,
    /// Time of each request besides the medium's.
    pub command_ns: u64,
    /// How far the buffer lets the medium lag behind answered writes, and read ahead of requests.
    pub buffer_ns: u64,
}

/// Zones as on host-managed disks (ZBC, ZNS): each has a write pointer, a write must begin there,
/// and a discard of the whole zone resets the pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZoneLayout {
    /// Bytes of a zone; not zero.
    pub zone_bytes: u64,
    /// Leading zones that may be written anywhere.
    pub conventional: u64,
}

impl Profile {
    /// The profile of that name.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        PROFILES.iter().find(|profile| profile.name == name)
    }

    /// The names of all profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PROFILES.iter().map(|profile| profile.name)
    }

    /// The limits that a backend of `len` bytes of this device reports. Order matters on a zoned
    /// device as it does on a rotational one.
    pub fn limits(&self, len: u64) -> Limits {
        Limits {
            len,
            block: self.block,
            write_unit: self.block,
            transfer_max: TRANSFER_BYTES_MAX,
            memory_align: 1,
            read_only: false,
            discard: self.discard,
            rotational: matches!(self.media, Media::Disk(_)) || self.zones.is_some(),
            synchronous: self.takes_no_time(),
            copies: true,
        }
    }

    fn takes_no_time(&self) -> bool {
        let Media::Flash(flash) = &self.media else { return false };
        let rates = [flash.bus, flash.lane, flash.program];
        let times = [
            flash.command_ns,
            flash.read_ns,
            flash.write_ns,
            flash.program_ns,
            flash.program_far_ns,
            flash.flush_ns,
        ];
        rates.iter().all(|rate| *rate == Rate::INFINITE) && times.iter().all(|time| *time == 0)
    }
}

/// One bio of the measured kernels: 256 pages.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;
