//! Write pointers of a zoned device.

use std::collections::BTreeMap;

use super::profile::ZoneLayout;

/// Why a device refuses an operation; no part of it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A write that does not begin at the write pointer of its zone.
    #[error(
        "the write at byte {offset} is not at its zone's write pointer, byte {pointer}: zoned \
         devices are written in order; a discard of the whole zone resets the pointer"
    )]
    NotAtWritePointer {
        /// First byte to be written in that zone.
        offset: u64,
        /// Where the zone must be written next.
        pointer: u64,
    },
}

#[derive(Debug, Clone)]
pub(super) struct Zones {
    layout: ZoneLayout,
    /// Write pointers of zones that are not empty, by zone.
    pointers: BTreeMap<u64, u64>,
}

impl Zones {
    pub(super) fn new(layout: ZoneLayout) -> Self {
        Self { layout, pointers: BTreeMap::new() }
    }

    /// Accepts a write, or refuses all of it. A write across the end of a zone is split there, as
    /// the block layer does.
    pub(super) fn write(&mut self, offset: u64, len: u64) -> Result<(), Refusal> {
        for (zone, offset, _) in pieces(self.layout, offset, len) {
            let start = zone * self.layout.zone_bytes;
            let pointer = self.pointers.get(&zone).copied().unwrap_or(start);
            if zone >= self.layout.conventional && offset != pointer {
                return Err(Refusal::NotAtWritePointer { offset, pointer });
            }
        }
        for (zone, _, end) in pieces(self.layout, offset, len) {
            if zone >= self.layout.conventional {
                self.pointers.insert(zone, end);
            }
        }
        Ok(())
    }

    /// Resets the zones that lie completely in the range.
    pub(super) fn discard(&mut self, offset: u64, len: u64) {
        let zone_bytes = self.layout.zone_bytes;
        let (first, end) = (offset.div_ceil(zone_bytes), offset.saturating_add(len) / zone_bytes);
        if first < end {
            let mut rest = self.pointers.split_off(&first);
            self.pointers.append(&mut rest.split_off(&end));
        }
    }
}

/// The parts of a range by zone: zone, first byte, byte behind the last.
fn pieces(layout: ZoneLayout, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    let (mut at, end) = (offset, offset.saturating_add(len));
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let zone = at / layout.zone_bytes;
        let from = at;
        at = (zone + 1).saturating_mul(layout.zone_bytes).min(end);
        Some((zone, from, at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zones() -> Zones {
        Zones::new(ZoneLayout { zone_bytes: 100, conventional: 1 })
    }

    #[test]
    fn a_zone_is_written_in_order_and_the_conventional_one_anywhere() {
        let mut zones = zones();
        for (offset, len) in [(50, 10), (0, 10), (50, 10), (100, 10), (110, 5), (300, 1)] {
            assert_eq!(zones.write(offset, len), Ok(()), "{offset}");
        }
        for (offset, pointer) in [(100, 115), (116, 115), (250, 200)] {
            let refused = Err(Refusal::NotAtWritePointer { offset, pointer });
            assert_eq!(zones.write(offset, 1), refused);
        }
        assert_eq!(zones.write(115, 1), Ok(()), "a refused write moves nothing");
    }

    #[test]
    fn a_write_over_the_end_of_a_zone_is_taken_whole_or_not_at_all() {
        let mut zones = zones();
        assert_eq!(zones.write(90, 120), Ok(()), "through zone 1 into zone 2");
        assert_eq!(zones.write(300, 10), Ok(()));
        let refused = Err(Refusal::NotAtWritePointer { offset: 300, pointer: 310 });
        assert_eq!(zones.write(210, 100), refused);
        assert_eq!(zones.write(210, 90), Ok(()), "zone 2 was left alone");
    }

    #[test]
    fn a_discard_resets_whole_zones_only() {
        let mut zones = zones();
        for zone in 1..6 {
            zones.write(zone * 100, 50).unwrap();
        }
        zones.discard(150, 350);
        for (zone, pointer) in [(1, 150), (2, 200), (3, 300), (4, 400), (5, 550)] {
            assert_eq!(zones.write(pointer, 1), Ok(()), "zone {zone}");
        }
    }
}
