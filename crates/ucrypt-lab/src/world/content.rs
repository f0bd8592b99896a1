//! The bytes of a disk, and their use in place.

use std::sync::{Arc, Mutex};

use ucrypt_backend::map::{Map, PutBytes, UseBytes};
use ucrypt_backend::model::DeviceOp;
use ucrypt_backend::{Errno, Io};

use super::disk::{device_op, lock};

const PAGE: usize = 4096;

/// The longest piece that a mapping lends, in bytes.
const PIECE: usize = 64 << 10;

/// The bytes of a disk, zeroes at first.
#[derive(Debug)]
pub(super) struct Content {
    bytes: Vec<u8>,
    /// By page: it is no hole.
    present: Vec<bool>,
}

impl Content {
    pub(super) fn new(len: u64) -> Self {
        let len = len as usize;
        Self { bytes: vec![0; len], present: vec![false; len.div_ceil(PAGE)] }
    }

    pub(super) fn carry_out(&mut self, io: &mut Io) -> Result<(), Errno> {
        let DeviceOp { offset, len, .. } = device_op(io);
        let (mut place, pages) = self.range(offset, len as usize).ok_or(Errno::IO)?;
        match io {
            Io::Flush { .. } => {}
            Io::Read { bufs, .. } => {
                for buf in bufs {
                    let (part, rest) = place.split_at_mut(buf.len());
                    buf.copy_from_slice(part);
                    place = rest;
                }
            }
            Io::Write { bufs, .. } => {
                for buf in bufs {
                    let (part, rest) = place.split_at_mut(buf.len());
                    part.copy_from_slice(buf);
                    place = rest;
                }
                pages.fill(true);
            }
            Io::Discard { .. } | Io::WriteZeroes { .. } => {
                place.fill(0);
                // Of a page that is in the range in part, the rest stays.
                let (offset, end) = (offset as usize, (offset + len) as usize);
                let (first, after) = (offset.div_ceil(PAGE), end / PAGE);
                if first < after {
                    self.present[first..after].fill(false);
                }
            }
        }
        Ok(())
    }

    /// The bytes of a range, and its pages; `None` if it is not on the disk.
    fn range(&mut self, offset: u64, len: usize) -> Option<(&mut [u8], &mut [bool])> {
        let first = usize::try_from(offset).ok()?;
        let end = first.checked_add(len)?;
        let bytes = self.bytes.get_mut(first..end)?;
        Some((bytes, &mut self.present[first / PAGE..end.div_ceil(PAGE)]))
    }
}

/// A disk's bytes in place, as a file in memory has them. Using them takes no time but the cipher's.
#[derive(Debug)]
pub(super) struct VirtualMap {
    content: Arc<Mutex<Content>>,
    /// Uses until the mapping breaks, as when its file is cut off; `None`: it never does.
    left: Mutex<Option<u64>>,
}

impl VirtualMap {
    pub(super) fn new(content: Arc<Mutex<Content>>, breaks_at: Option<u64>) -> Self {
        Self { content, left: Mutex::new(breaks_at) }
    }

    fn is_broken(&self) -> bool {
        *lock(&self.left) == Some(0)
    }

    /// Counts a use. Returns whether the mapping is broken after it.
    fn breaks(&self) -> bool {
        let mut left = lock(&self.left);
        *left = left.map(|left| left.saturating_sub(1));
        *left == Some(0)
    }
}

impl Map for VirtualMap {
    fn is_writable(&self) -> bool {
        !self.is_broken()
    }

    fn at_hand(&self, offset: u64, len: usize) -> bool {
        let mut content = lock(&self.content);
        let range = content.range(offset, len);
        !self.is_broken() && range.is_some_and(|(_, pages)| pages.iter().all(|present| *present))
    }

    fn read(&self, offset: u64, len: usize, use_: UseBytes<'_>) -> Option<Result<(), Errno>> {
        if self.is_broken() {
            return None;
        }
        let mut content = lock(&self.content);
        let (range, _) = content.range(offset, len)?;
        let is_broken = self.breaks();
        for (number, piece) in range.chunks(PIECE).enumerate() {
            let at = number * PIECE;
            // Behind the end of a file that was cut off there are zeroes.
            let zeroes = vec![0; if is_broken { piece.len() } else { 0 }];
            let seen = if is_broken { &zeroes } else { piece };
            if let Err(error) = use_(at..at + seen.len(), seen) {
                return Some(Err(error));
            }
        }
        (!is_broken).then_some(Ok(()))
    }

    fn write(&self, offset: u64, len: usize, put: PutBytes<'_>) -> Option<Result<(), Errno>> {
        if self.is_broken() {
            return None;
        }
        let mut content = lock(&self.content);
        let (range, pages) = content.range(offset, len)?;
        pages.fill(true);
        let is_broken = self.breaks();
        for (number, piece) in range.chunks_mut(PIECE).enumerate() {
            let at = number * PIECE;
            let mut lost = vec![0; if is_broken { piece.len() } else { 0 }];
            let kept = if is_broken { &mut lost } else { piece };
            let place = at..at + kept.len();
            if let Err(error) = put(place, kept) {
                return Some(Err(error));
            }
        }
        (!is_broken).then_some(Ok(()))
    }

    fn read_exact(&self, offset: u64, buf: &mut [u8]) -> Result<(), Errno> {
        let mut content = lock(&self.content);
        let (range, _) = content.range(offset, buf.len()).ok_or(Errno::IO)?;
        buf.copy_from_slice(range);
        Ok(())
    }
}
