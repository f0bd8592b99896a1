//! Descriptors that whoever started this process has left open for it.
//!
//! A server outlives its caller. The caller's pipes would not end, nor its locks be released, as long as
//! the server has them open without knowing.

#![expect(unsafe_code, reason = "a descriptor is known by its number only")]

use std::fs;
use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_getfd};

/// The first descriptor that is not a standard stream.
const FIRST: RawFd = 3;

/// The descriptors beside the standard streams that this process was started with. Dropping it closes
/// them.
#[derive(Debug, Default)]
pub struct Inherited(Vec<OwnedFd>);

impl Inherited {
    /// Takes them, once: a later call gets none. Call before any is taken in another way, as the sockets
    /// that a service manager passes on.
    ///
    /// They are known by the missing `FD_CLOEXEC`: no descriptor comes through execve(2) with it, and all
    /// that this process opens by the standard library, by rustix and by this project have it.
    pub fn take() -> Self {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        if TAKEN.swap(true, Ordering::SeqCst) {
            return Self::default();
        }
        let listed = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let numbers: Vec<RawFd> =
            listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        let came = |number: &RawFd| {
            // SAFETY: the descriptor is only asked for its flags. One that is not open, as that of the
            // list by now, gives an error.
            let descriptor = unsafe { BorrowedFd::borrow_raw(*number) };
            fcntl_getfd(descriptor).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC))
        };
        let numbers = numbers.into_iter().filter(|number| *number >= FIRST).filter(came);
        // SAFETY: each is open and was opened before this process's program began, so nothing in it owns
        // it, and because of `TAKEN` nothing else is given it.
        Self(numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) }).collect())
    }

    /// How many they are.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::Inherited;

    #[test]
    fn what_a_test_opens_is_not_inherited_and_what_is_is_taken_once() {
        let own = std::fs::File::open("/dev/null").expect("open");
        // Forgotten: other tests of this process may hold what the harness was given.
        std::mem::forget(Inherited::take());
        assert!(own.metadata().is_ok());
        assert_eq!(Inherited::take().count(), 0);
    }
}
