//! A volume on a zoned device: its zones are those of the device, one by one.

use std::sync::Arc;

use ucrypt_backend::{Errno, Zone, ZoneAction, ZoneLimits};

use crate::volume::Volume;

/// Zones that are looked at at once.
const BATCH: usize = 32;

/// Why a volume on a zoned device has no zones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ZonesError {
    /// It begins or ends within a zone.
    #[error(
        "the image has zones of {zone_len} bytes, and the volume, from byte {offset} to {end}, \
         begins or ends within one; begin it at a zone (--header FILE for a header elsewhere, or \
         --offset for a plain volume)"
    )]
    Unaligned {
        /// Bytes of a zone.
        zone_len: u64,
        /// Where the volume begins on the image, in bytes.
        offset: u64,
        /// Where it ends.
        end: u64,
    },
    /// It is in several pieces.
    #[error("the volume consists of {segments} segments, and has no zones therefore")]
    Segments {
        /// How many.
        segments: usize,
    },
}

/// The zones of a volume. Positions are bytes of the volume. What is asked of them waits for the
/// device.
#[derive(Debug, Clone)]
pub struct VolumeZones {
    volume: Arc<Volume>,
    /// Where the volume begins on the backend, in bytes.
    offset: u64,
    len: u64,
    limits: ZoneLimits,
}

impl Volume {
    /// Its zones, if its backend has any.
    pub fn zones(self: &Arc<Self>) -> Result<Option<VolumeZones>, ZonesError> {
        let Some(zones) = self.backend.zones() else { return Ok(None) };
        let [segment] = &self.segments[..] else {
            return Err(ZonesError::Segments { segments: self.segments.len() });
        };
        let limits = zones.limits();
        let (offset, len) = (segment.backend_offset, self.info().len);
        if !offset.is_multiple_of(limits.len) || !len.is_multiple_of(limits.len) {
            let end = offset.saturating_add(len);
            return Err(ZonesError::Unaligned { zone_len: limits.len, offset, end });
        }
        Ok(Some(VolumeZones { volume: self.clone(), offset, len, limits }))
    }
}

impl VolumeZones {
    /// What the device is.
    pub fn limits(&self) -> ZoneLimits {
        self.limits
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.len / self.limits.len
    }

    /// Reports on the zone that holds the byte `offset` and those behind it. Returns how many there
    /// were, at most as many as `zones` has room for.
    ///
    /// # Errors
    /// `EINVAL` behind the end of the volume, and the device's.
    pub fn report(&self, offset: u64, zones: &mut [Zone]) -> Result<usize, Errno> {
        let left = self.len.checked_sub(offset).filter(|&left| left > 0).ok_or(Errno::INVAL)?;
        let room = usize::try_from(left.div_ceil(self.limits.len)).unwrap_or(usize::MAX);
        let room = room.min(zones.len());
        let count = self.device()?.report(self.offset + offset, &mut zones[..room])?;
        for zone in &mut zones[..count] {
            zone.start = zone.start.saturating_sub(self.offset);
            zone.write_pointer = zone.write_pointer.saturating_sub(self.offset);
        }
        Ok(count)
    }

    /// Does something to the zone that begins at byte `start`.
    ///
    /// # Errors
    /// `EROFS` if the volume is read-only, `EINVAL` if no zone begins there, and the device's.
    pub fn act(&self, action: ZoneAction, start: u64) -> Result<(), Errno> {
        self.act_on(action, start, self.limits.len)
    }

    /// Resets all that are written in order.
    pub fn reset_all(&self) -> Result<(), Errno> {
        let mut zones = [Zone::default(); BATCH];
        let mut at = 0;
        while at < self.len {
            let count = self.report(at, &mut zones)?;
            let batch = &zones[..count];
            for run in batch.chunk_by(|a, b| a.is_sequential() == b.is_sequential()) {
                if run[0].is_sequential() {
                    let len = run.len() as u64 * self.limits.len;
                    self.act_on(ZoneAction::Reset, run[0].start, len)?;
                }
            }
            at += count as u64 * self.limits.len;
            if count == 0 {
                return Err(Errno::IO);
            }
        }
        Ok(())
    }

    fn act_on(&self, action: ZoneAction, start: u64, len: u64) -> Result<(), Errno> {
        if self.volume.info().read_only {
            return Err(Errno::ROFS);
        }
        if !start.is_multiple_of(self.limits.len) || start >= self.len {
            return Err(Errno::INVAL);
        }
        self.device()?.act(action, self.offset + start, len)
    }

    fn device(&self) -> Result<&dyn ucrypt_backend::Zones, Errno> {
        self.volume.backend.zones().ok_or(Errno::NODEV)
    }
}
