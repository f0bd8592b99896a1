//! The options of a dm-crypt table line that affect the ciphertext of a sector.

use crate::KeyError;

/// How a segment is divided into encryption sectors, and how the IV numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectorOptions {
    /// Bytes that are encrypted as one unit: 512, 1024, 2048 or 4096 (`sector_size`).
    pub sector_size: u32,
    /// Added to the sector number before the IV is made, in 512-byte sectors; a multiple of the
    /// sector size (`iv_offset`).
    pub iv_offset: u64,
    /// Whether the IV counts sectors of `sector_size` instead of 512 bytes (`iv_large_sectors`).
    pub iv_large_sectors: bool,
}

/// Bytes of a 512-byte sector, the unit of every sector number.
pub(crate) const SECTOR: u32 = 512;

impl Default for SectorOptions {
    /// 512-byte sectors, numbered from zero, as in LUKS1 and in LUKS keyslot areas.
    fn default() -> Self {
        Self { sector_size: SECTOR, iv_offset: 0, iv_large_sectors: false }
    }
}

impl SectorOptions {
    /// Refuses the options that dm-crypt refuses.
    pub(crate) fn check(&self) -> Result<(), KeyError> {
        if !matches!(self.sector_size, 512 | 1024 | 2048 | 4096) {
            return Err(KeyError::SectorSize { sector_size: self.sector_size });
        }
        if !self.iv_offset.is_multiple_of(self.step()) {
            return Err(KeyError::IvOffset {
                iv_offset: self.iv_offset,
                sector_size: self.sector_size,
            });
        }
        Ok(())
    }

    /// Length of an encryption sector in 512-byte sectors.
    pub(crate) fn step(&self) -> u64 {
        u64::from(self.sector_size / SECTOR)
    }
}
