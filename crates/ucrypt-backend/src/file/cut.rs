//! Files that are cut off while they are served (`truncate`, `> image`).
//!
//! A write behind the new end makes such a file grow again, and what was cut off then reads as zeroes, which decrypt
//! to noise. So a write looks for the end first, and from the first look on that finds the file too short nothing
//! behind that end is read or written. Who truncates and extends it between two looks is not noticed.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, StatxFlags, statx};

use crate::Errno;

/// See the module's comment.
pub(super) struct Cut {
    /// Devices keep their length, and a mapped file does not grow.
    is_watched: bool,
    /// Where the file was found to end too early, in bytes.
    at: AtomicU64,
    /// The greatest end of what was written since the last flush, in bytes.
    written: AtomicU64,
}

impl Cut {
    pub(super) fn new(is_watched: bool) -> Self {
        Self { is_watched, at: AtomicU64::new(u64::MAX), written: AtomicU64::new(0) }
    }

    /// The length of the file now, in bytes, as far as the kernel knows it: no server of a file system is asked, which
    /// may not answer.
    pub(super) fn len_now(&self, file: BorrowedFd<'_>) -> u64 {
        if !self.is_watched {
            return u64::MAX;
        }
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        // Linux before 4.11 does not tell it this way; such a file is not watched.
        statx(file, c"", flags, StatxFlags::SIZE).map_or(u64::MAX, |found| found.stx_size)
    }

    /// Fails if a range that ends at `end` bytes is known to be cut off.
    pub(super) fn check(&self, end: u64) -> Result<(), Errno> {
        if end > self.at.load(Ordering::Relaxed) { Err(Errno::IO) } else { Ok(()) }
    }

    /// Fails if a range that is to be written does not lie in the file, which now has `len` bytes.
    pub(super) fn check_write(&self, end: u64, len: u64) -> Result<(), Errno> {
        if end > len {
            self.at.fetch_min(len, Ordering::Relaxed);
        }
        self.check(end)?;
        if self.is_watched {
            self.written.fetch_max(end, Ordering::Relaxed);
        }
        Ok(())
    }

    /// After a flush: fails if something that was written before is cut off, then and from then on. What was flushed
    /// may be given up later, by a volume that is made smaller.
    pub(super) fn check_written(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        let written = self.written.load(Ordering::Relaxed);
        if written > 0 {
            self.check_write(written, self.len_now(file))?;
            // Unless more was written meanwhile.
            let _ = self.written.compare_exchange(written, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A read that ends at `end` bytes has found the end of the file before.
    pub(super) fn found_end(&self, file: BorrowedFd<'_>, end: u64) {
        let len = self.len_now(file);
        if end > len {
            self.at.fetch_min(len, Ordering::Relaxed);
        }
    }
}
