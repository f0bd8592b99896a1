//! Data that the kernel could not write: everybody is told.
//!
//! The kernel reports such data once for each open file, to whoever asks first. Of several durable writes
//! by one open file that fail at the same time, the others are told that all is well; so is an open file
//! that is younger than the report to another program. So one open file does nothing but watch, and what
//! it reports is remembered. A write or flush that the kernel calls durable is answered after a look.

#![expect(unsafe_code, reason = "rustix has no sync_file_range")]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use super::open_again;
use crate::Errno;

/// See the module's comment.
pub(super) struct Losses {
    /// `None`: nothing is written, or the image may not be opened again.
    watch: Option<OwnedFd>,
    /// The first that was reported.
    first: Mutex<Option<Errno>>,
}

impl Losses {
    /// Watches an image from now on.
    ///
    /// # Errors
    /// The system has no room for a descriptor now.
    pub(super) fn of(image: BorrowedFd<'_>) -> Result<Self, Errno> {
        Ok(Self { watch: open_again(image)?, first: Mutex::new(None) })
    }

    /// Whether an open file watches.
    #[cfg(test)]
    pub(super) fn watches(&self) -> bool {
        self.watch.is_some()
    }

    /// Watches nothing: for images in memory or that are only read.
    pub(super) fn none() -> Self {
        Self { watch: None, first: Mutex::new(None) }
    }

    /// Remembers a failure that the kernel does not report to everybody.
    pub(super) fn note(&self, error: Errno) {
        // Nothing is known of what was asked for.
        if !matches!(error, Errno::INTR | Errno::AGAIN | Errno::CANCELED) {
            self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }

    /// Fails once data was lost since the image was opened. Waits for no disk.
    pub(super) fn check(&self) -> Result<(), Errno> {
        // Held while asking: who is told remembers it before anybody else asks.
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(watch), None) = (&self.watch, *first) {
            // SAFETY: the call takes numbers only. No file has that last byte, so none of it is being
            // written, and nothing is waited for.
            let asked = unsafe {
                let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE;
                libc::sync_file_range(watch.as_raw_fd(), i64::MAX - 1, 1, wait)
            };
            if asked == -1 {
                let error = Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO);
                // Where the system lacks or forbids the call, every queue's own open file has to do.
                let lacks =
                    matches!(error, Errno::NOSYS | Errno::PERM | Errno::INVAL | Errno::SPIPE);
                *first = (!lacks).then_some(error);
            }
        }
        first.map_or(Ok(()), Err)
    }
}
