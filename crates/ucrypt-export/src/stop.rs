//! A stop flag for threads that run and for threads that wait in poll(2).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Set once, never reset.
pub(crate) struct Stop {
    set: AtomicBool,
    event: OwnedFd,
}

impl Stop {
    pub(crate) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { set: AtomicBool::new(false), event })
    }

    pub(crate) fn set(&self) {
        self.set.store(true, Ordering::Release);
        // Cannot fail: one write of 1 per server is far from the counter's limit.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    pub(crate) fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }
}

impl AsFd for Stop {
    /// Stays readable once the flag is set.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
