//! Files that are cut off while they are served (`truncate`, `> image`).
//!
//! A write behind the new end makes such a file grow again, and what was cut off then reads as zeroes, which decrypt
//! to noise. So a write looks for the end first, and from the first look on that finds the file too short nothing
//! behind that end is read or written. Who truncates and extends it between two looks is not noticed.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{AtFlags, StatxFlags, statx};

use crate::Errno;

/// See the module's comment.
#[derive(Debug)]
pub(crate) struct Cut {
    /// Devices keep their length, and what is only read does not grow.
    is_watched: bool,
    /// Where the file was found to end too early, in bytes.
    at: AtomicU64,
    /// The greatest end of what was written and is not known to be flushed, in bytes: of writes answered before
    /// [`Cut::epoch`] changed, and since. No write waits for another one to note its end.
    written: [AtomicU64; 2],
    /// Even or odd: which of both is for the writes that are answered now.
    epoch: AtomicU32,
    /// Flushes under way.
    flushes: AtomicU32,
    /// What lies behind so many bytes may be cut off: see [`crate::Backend::use_until`].
    used: AtomicU64,
}

/// Which of [`Cut::written`] is for an epoch.
fn index(epoch: u32) -> usize {
    epoch as usize & 1
}

/// A flush under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flushing {
    /// The greatest end of what was written before it, in bytes.
    written: u64,
    /// Which of [`Cut::written`] holds nothing that was answered after the flush began.
    covered: Option<usize>,
}

impl Cut {
    pub(crate) fn new(is_watched: bool) -> Self {
        Self {
            is_watched,
            at: AtomicU64::new(u64::MAX),
            written: [const { AtomicU64::new(0) }; 2],
            epoch: AtomicU32::new(0),
            flushes: AtomicU32::new(0),
            used: AtomicU64::new(u64::MAX),
        }
    }

    /// See [`crate::Backend::use_until`].
    pub(super) fn use_until(&self, end: u64) {
        self.used.store(end, Ordering::SeqCst);
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
    pub(crate) fn check(&self, end: u64) -> Result<(), Errno> {
        if end > self.at.load(Ordering::Relaxed) { Err(Errno::IO) } else { Ok(()) }
    }

    /// Fails if a range that is or was to be written does not lie in the file, which now has `len` bytes.
    pub(super) fn check_write(&self, end: u64, len: u64) -> Result<(), Errno> {
        if end > len {
            self.at.fetch_min(len, Ordering::Relaxed);
        }
        self.check(end)
    }

    /// A range that ends at `end` bytes is written. Noted before its answer: a flush covers what was answered before it.
    pub(crate) fn note_write(&self, end: u64) {
        if !self.is_watched {
            return;
        }
        loop {
            let epoch = self.epoch.load(Ordering::SeqCst);
            let written = &self.written[index(epoch)];
            if written.load(Ordering::SeqCst) < end {
                written.fetch_max(end, Ordering::SeqCst);
            }
            // A flush that begins from here on sees it. One that began meanwhile may not, and would forget it.
            if self.epoch.load(Ordering::SeqCst) == epoch {
                return;
            }
        }
    }

    /// A flush begins. [`Cut::end_flush`] follows.
    pub(super) fn begin_flush(&self) -> Flushing {
        // What two of them cover cannot be told apart: the first alone forgets what it has covered.
        let is_first = self.flushes.fetch_add(1, Ordering::SeqCst) == 0;
        let covered = is_first.then(|| index(self.epoch.fetch_add(1, Ordering::SeqCst)));
        let [one, other] = self.written.each_ref().map(|written| written.load(Ordering::SeqCst));
        // What was written behind it may be noted as long as it likes: flushes that overlap forget nothing, and a write
        // may be answered after the volume was made smaller.
        let used = self.used.load(Ordering::SeqCst);
        Flushing { written: one.max(other).min(used), covered }
    }

    /// A flush has ended so. It fails if something that was written before is cut off, and so do all from then on. What
    /// was flushed may be given up later, by a volume that is made smaller.
    pub(super) fn end_flush(
        &self,
        flushing: Flushing,
        file: BorrowedFd<'_>,
        mut result: Result<(), Errno>,
    ) -> Result<(), Errno> {
        let Flushing { written, covered } = flushing;
        if result.is_ok() && written > 0 {
            result = self.check_write(written, self.len_now(file));
        }
        if let (Ok(()), Some(covered)) = (result, covered) {
            self.written[covered].store(0, Ordering::SeqCst);
        }
        self.flushes.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// A read that ends at `end` bytes has found the end of the file before.
    pub(super) fn found_end(&self, file: BorrowedFd<'_>, end: u64) {
        let len = self.len_now(file);
        if end > len {
            self.at.fetch_min(len, Ordering::Relaxed);
        }
    }
}
