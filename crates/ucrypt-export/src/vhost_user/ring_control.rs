//! State control by a ring's thread and the control connection.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::event::Signal;

/// There is one per ring; the control connection writes, the ring's thread reads.
pub(super) struct RingControl {
    /// Readable when something here has changed.
    wake: OwnedFd,
    stop: AtomicBool,
    /// Number of requests that were taken and not answered, for messages about them.
    under_way: AtomicUsize,
    /// Signalled when there are answers.
    call: Mutex<Option<Signal>>,
    /// Signalled when the ring is broken.
    error: Mutex<Option<Signal>>,
}

impl RingControl {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            call: Mutex::new(None),
            error: Mutex::new(None),
        })
    }

    /// Asks the thread to take no more requests and to end when it has answered those it has; with
    /// `false`, allows the next thread to start.
    pub(super) fn stop(&self, stop: bool) {
        self.stop.store(stop, Ordering::Release);
        if stop {
            self.wake();
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(super) fn set_under_way(&self, count: usize) {
        self.under_way.store(count, Ordering::Relaxed);
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// # Errors
    /// It is no event.
    pub(super) fn set_call(&self, event: Option<File>) -> io::Result<()> {
        let signal = event.map(Signal::new).transpose()?;
        let before = std::mem::replace(&mut *lock(&self.call), signal);
        drop(before);
        // Answers may have been put into the ring while there was no event to signal.
        self.call();
        Ok(())
    }

    /// # Errors
    /// It is no event.
    pub(super) fn set_error(&self, event: Option<File>) -> io::Result<()> {
        let signal = event.map(Signal::new).transpose()?;
        let before = std::mem::replace(&mut *lock(&self.error), signal);
        drop(before);
        Ok(())
    }

    pub(super) fn call(&self) {
        if let Some(signal) = &mut *lock(&self.call) {
            signal.give();
        }
    }

    pub(super) fn tell_broken(&self) {
        if let Some(signal) = &mut *lock(&self.error) {
            signal.give();
        }
    }

    fn wake(&self) {
        // Fails only when the counter is about to overflow: then it is readable already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Clears the wake event. Call before looking at what has changed.
    pub(super) fn clear_wake(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }
}

impl AsFd for RingControl {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Makes an event readable when it is dropped, however its thread ends.
pub(super) struct AtEnd(pub(super) OwnedFd);

impl Drop for AtEnd {
    fn drop(&mut self) {
        // Cannot fail: it is the only write.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
