//! Wakes a queue that sleeps.
//!
//! A signal makes a descriptor readable; to take the signals is a system call. A mark tells whether there
//! are any, so that a queue that was woken by something else makes none. Contract: the mark is set after the
//! descriptor has become readable. A queue that finds the descriptor readable before the mark is set takes
//! nothing, is woken again, and finds the mark then: no signal is lost, and no descriptor stays readable.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};

#[derive(Debug)]
pub(crate) struct Waker {
    fd: OwnedFd,
    signalled: AtomicBool,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, signalled: AtomicBool::new(false) })
    }

    /// Makes the descriptor readable.
    pub(crate) fn signal(&self) {
        // The write fails only if the counter would overflow: then the descriptor is readable already.
        let _ = write(&self.fd, &1u64.to_ne_bytes());
        self.signalled.store(true, Ordering::Release);
    }

    /// Takes the signals that have arrived.
    pub(crate) fn take(&self) -> io::Result<()> {
        if !self.signalled.load(Ordering::Relaxed) || !self.signalled.swap(false, Ordering::Acquire)
        {
            return Ok(());
        }
        match read(&self.fd, &mut [0; 8]) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
impl Waker {
    /// Whether the descriptor is readable, or becomes so within `patience_s` seconds.
    pub(crate) fn is_readable(&self, patience_s: i64) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let patience = Timespec { tv_sec: patience_s, tv_nsec: 0 };
        poll(&mut [PollFd::new(self, PollFlags::IN)], Some(&patience)).expect("polled") > 0
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::thread;

    use super::*;

    #[test]
    fn it_is_readable_from_a_signal_until_it_is_taken() {
        let waker = Waker::new().expect("a waker");
        for _ in 0..3 {
            waker.take().expect("nothing to take");
            assert!(!waker.is_readable(0));
            waker.signal();
            waker.signal();
            assert!(waker.is_readable(0));
            waker.take().expect("taken");
            assert!(!waker.is_readable(0));
        }
    }

    #[test]
    fn a_sleeper_sees_all_that_came_before_a_signal_and_never_stays_awake() {
        const SIGNALS: u32 = 20_000;
        let (waker, sent) = (Waker::new().expect("a waker"), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..SIGNALS {
                        sent.fetch_add(1, Ordering::SeqCst);
                        waker.signal();
                    }
                });
            }
            while sent.load(Ordering::SeqCst) < 2 * SIGNALS {
                assert!(waker.is_readable(20), "a signal is lost");
                waker.take().expect("taken");
            }
        });
        waker.take().expect("the last ones");
        assert!(!waker.is_readable(0), "it stays readable without a mark");
    }
}
