//! Zones of a block device, through the kernel's ioctls (`linux/blkzoned.h`).

#![expect(unsafe_code, reason = "ioctl(2) is typed by its number only")]

use std::sync::Arc;

use rustix::fd::AsFd;
use rustix::ioctl::{Getter, Opcode, Setter, Updater, ioctl, opcode};

use super::Files;
use crate::{Errno, Zone, ZoneAction, ZoneKind, ZoneLimits, Zones};

const SECTOR_BYTES: u64 = 512;

/// Zones reported by one ioctl.
const BATCH: usize = 32;

const BLKREPORTZONE: Opcode = opcode::read_write::<ReportHeader>(0x12, 130);
const BLKRESETZONE: Opcode = opcode::write::<Range>(0x12, 131);
const BLKGETZONESZ: Opcode = opcode::read::<u32>(0x12, 132);
const BLKOPENZONE: Opcode = opcode::write::<Range>(0x12, 134);
const BLKCLOSEZONE: Opcode = opcode::write::<Range>(0x12, 135);
const BLKFINISHZONE: Opcode = opcode::write::<Range>(0x12, 136);

/// `struct blk_zone_report`; the zones follow.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ReportHeader {
    sector: u64,
    zones: u32,
    flags: u32,
}

/// [`ReportHeader::flags`]: capacities are valid.
const HAS_CAPACITY: u32 = 1;

/// `struct blk_zone`. Positions and lengths in sectors.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Entry {
    start: u64,
    len: u64,
    write_pointer: u64,
    kind: u8,
    condition: u8,
    flags: [u8; 6],
    capacity: u64,
    reserved: [u64; 3],
}

#[repr(C)]
#[derive(Default)]
struct Report {
    header: ReportHeader,
    entries: [Entry; BATCH],
}

/// `struct blk_zone_range`, in sectors.
#[repr(C)]
struct Range {
    sector: u64,
    sectors: u64,
}

/// The zones of an open device.
#[derive(Clone)]
pub(super) struct DeviceZones {
    files: Arc<Files>,
    limits: ZoneLimits,
}

impl DeviceZones {
    /// `None` if the device has no zones.
    pub(super) fn of(files: &Arc<Files>, open_max: u32, active_max: u32) -> Option<Self> {
        // SAFETY: the ioctl writes one u32.
        let get = unsafe { Getter::<BLKGETZONESZ, u32>::new() };
        // SAFETY: as above.
        let sectors = unsafe { ioctl(files.buffered.as_fd(), get) }.ok()?;
        let limits = ZoneLimits { len: u64::from(sectors) * SECTOR_BYTES, open_max, active_max };
        limits.len.is_power_of_two().then(|| Self { files: files.clone(), limits })
    }

    fn set<const OPCODE: Opcode>(&self, range: Range) -> Result<(), Errno> {
        // SAFETY: the opcodes that it is called with read one `Range`.
        unsafe { ioctl(self.files.buffered.as_fd(), Setter::<OPCODE, Range>::new(range)) }
    }
}

impl Zones for DeviceZones {
    fn limits(&self) -> ZoneLimits {
        self.limits
    }

    fn report(&self, offset: u64, zones: &mut [Zone]) -> Result<usize, Errno> {
        let (mut at, mut done) = (offset, 0);
        while done < zones.len() {
            let wanted = (zones.len() - done).min(BATCH);
            let header = ReportHeader { sector: at / SECTOR_BYTES, zones: wanted as u32, flags: 0 };
            let mut report = Report { header, ..Report::default() };
            // SAFETY: the ioctl writes the header and at most as many entries behind it as the
            // header says, for which there is room; both are plain numbers.
            unsafe {
                let update = Updater::<BLKREPORTZONE, Report>::new(&mut report);
                ioctl(self.files.buffered.as_fd(), update)?;
            }
            let count = (report.header.zones as usize).min(wanted);
            let has_capacity = report.header.flags & HAS_CAPACITY != 0;
            for (zone, entry) in zones[done..].iter_mut().zip(&report.entries[..count]) {
                *zone = entry.to_zone(has_capacity);
                at = zone.start.saturating_add(zone.len);
            }
            done += count;
            if count == 0 {
                break;
            }
        }
        Ok(done)
    }

    fn act(&self, action: ZoneAction, offset: u64, len: u64) -> Result<(), Errno> {
        let range = Range { sector: offset / SECTOR_BYTES, sectors: len / SECTOR_BYTES };
        match action {
            ZoneAction::Open => self.set::<BLKOPENZONE>(range),
            ZoneAction::Close => self.set::<BLKCLOSEZONE>(range),
            ZoneAction::Finish => self.set::<BLKFINISHZONE>(range),
            ZoneAction::Reset => self.set::<BLKRESETZONE>(range),
        }
    }
}

impl Entry {
    fn to_zone(self, has_capacity: bool) -> Zone {
        let bytes = |sectors: u64| sectors.saturating_mul(SECTOR_BYTES);
        Zone {
            start: bytes(self.start),
            len: bytes(self.len),
            capacity: bytes(if has_capacity { self.capacity } else { self.len }),
            write_pointer: bytes(self.write_pointer),
            kind: match self.kind {
                2 => ZoneKind::SequentialRequired,
                3 => ZoneKind::SequentialPreferred,
                _ => ZoneKind::Conventional,
            },
            condition: self.condition,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_and_commands_are_the_kernels() {
        assert_eq!((size_of::<Entry>(), size_of::<Report>()), (64, 16 + 64 * BATCH));
        // As `gcc -include linux/blkzoned.h` prints them.
        assert_eq!(BLKREPORTZONE, 0xc010_1282);
        assert_eq!(BLKRESETZONE, 0x4010_1283);
        assert_eq!(BLKGETZONESZ, 0x8004_1284);
        assert_eq!(BLKFINISHZONE, 0x4010_1288);
    }
}
