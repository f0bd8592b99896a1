//! What a ring's thread and the control connection have in common.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::memory::GuestMap;

/// One per ring; the control connection writes, the ring's thread reads.
pub(super) struct Shared {
    /// Readable when something here has changed.
    wake: OwnedFd,
    stop: AtomicBool,
    memory_changed: AtomicBool,
    memory: Mutex<Arc<GuestMap>>,
    /// Signalled when there are answers.
    call: Mutex<Option<File>>,
    /// Signalled when the ring is broken.
    error: Mutex<Option<File>>,
}

impl Shared {
    pub(super) fn new(memory: Arc<GuestMap>) -> io::Result<Self> {
        Ok(Self {
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stop: AtomicBool::new(false),
            memory_changed: AtomicBool::new(true),
            memory: Mutex::new(memory),
            call: Mutex::new(None),
            error: Mutex::new(None),
        })
    }

    /// Asks the thread to take no more requests and to end when it has answered those it has; or
    /// allows the next one to start.
    pub(super) fn stop(&self, stop: bool) {
        self.stop.store(stop, Ordering::Release);
        if stop {
            self.wake();
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(super) fn set_memory(&self, memory: Arc<GuestMap>) {
        *lock(&self.memory) = memory;
        self.memory_changed.store(true, Ordering::Release);
        self.wake();
    }

    /// The map, if it has changed since it was last taken.
    pub(super) fn changed_memory(&self) -> Option<Arc<GuestMap>> {
        let changed = self.memory_changed.load(Ordering::Relaxed)
            && self.memory_changed.swap(false, Ordering::AcqRel);
        changed.then(|| lock(&self.memory).clone())
    }

    /// The map, whether it has changed or not.
    pub(super) fn memory(&self) -> Arc<GuestMap> {
        lock(&self.memory).clone()
    }

    pub(super) fn set_call(&self, file: Option<File>) {
        *lock(&self.call) = file;
        // Answers may have been put while there was nobody to call.
        self.call();
    }

    pub(super) fn set_error(&self, file: Option<File>) {
        *lock(&self.error) = file;
    }

    pub(super) fn call(&self) {
        signal(&self.call);
    }

    pub(super) fn tell_broken(&self) {
        signal(&self.error);
    }

    fn wake(&self) {
        // Fails only when the counter is about to overflow: then it is readable already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Takes the signal back. Call before looking at what has changed.
    pub(super) fn clear_wake(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }
}

impl AsFd for Shared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes an event readable for the front end, if it has one. It never blocks (see
/// [`check_event`]), and a front end that gave something useless only misses its own calls.
fn signal(event: &Mutex<Option<File>>) {
    if let Some(file) = &*lock(event) {
        let _ = rustix::io::write(file, &1u64.to_ne_bytes());
    }
}

/// Accepts a descriptor of the front end as an event: one that neither blocks nor is a file.
pub(super) fn check_event(file: &File) -> io::Result<()> {
    // eventfd(2) has no file type; a regular file would always be readable.
    let mode = rustix::fs::fstat(file)?.st_mode;
    if rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a file is no event"));
    }
    let flags = rustix::fs::fcntl_getfl(file)?;
    Ok(rustix::fs::fcntl_setfl(file, flags | rustix::fs::OFlags::NONBLOCK)?)
}
