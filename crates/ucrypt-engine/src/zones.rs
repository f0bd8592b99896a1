//! Volumes on zoned devices: each zone of the volume is one zone of the device.

use std::sync::Arc;

use ucrypt_backend::{Errno, Zone, ZoneAction, ZoneLimits};

use crate::volume::Volume;

/// Zones per report when all are reset.
const BATCH: usize = 32;

/// Why a volume on a zoned device has no zones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ZonesError {
    /// The volume begins or ends within a zone.
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
        /// Where the volume ends on the image, in bytes.
        end: u64,
    },
    /// The volume has several segments.
    #[error("the volume consists of {segments} segments, and has no zones therefore")]
    Segments {
        /// Number of segments.
        segments: usize,
    },
}

/// The zones of a volume. Positions are bytes of the volume. A report waits for the device, and needs no
/// key; changes are requests of a queue ([`Io::Zones`](crate::Io::Zones)).
#[derive(Debug, Clone)]
pub struct VolumeZones {
    volume: Arc<Volume>,
    /// Where the volume begins on the backend, in bytes.
    offset: u64,
    len: u64,
    limits: ZoneLimits,
}

impl Volume {
    /// The volume's zones, if its backend has any.
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

/// A change of the state of zones, which [`Io::Zones`](crate::Io::Zones) makes. Positions are bytes of the
/// volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneChange {
    /// Of the zone that begins at byte `start`. Fails with `EINVAL` if no zone begins there.
    One {
        /// What to do.
        action: ZoneAction,
        /// First byte of the zone.
        start: u64,
    },
    /// Resets all sequential zones.
    ResetAll,
}

impl VolumeZones {
    /// The zone limits of the device.
    pub fn limits(&self) -> ZoneLimits {
        self.limits
    }

    /// Number of zones.
    pub fn count(&self) -> u64 {
        self.len / self.limits.len
    }

    /// Reports on the zone that holds the byte `offset` and on the zones behind it. Returns the
    /// number of zones reported, at most `zones.len()`.
    ///
    /// # Errors
    /// `EINVAL` if `offset` is behind the end of the volume, and the device's errors.
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

    /// Makes a change. The caller holds the range of the zones, so that the volume is not suspended.
    pub(crate) fn change(&self, change: ZoneChange) -> Result<(), Errno> {
        match change {
            ZoneChange::One { action, start } => self.act_on(action, start, self.limits.len),
            ZoneChange::ResetAll => self.reset_all(),
        }
    }

    fn reset_all(&self) -> Result<(), Errno> {
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
        if !start.is_multiple_of(self.limits.len) || start >= self.len {
            return Err(Errno::INVAL);
        }
        self.device()?.act(action, self.offset + start, len)
    }

    fn device(&self) -> Result<&dyn ucrypt_backend::Zones, Errno> {
        self.volume.backend.zones().ok_or(Errno::NODEV)
    }
}
