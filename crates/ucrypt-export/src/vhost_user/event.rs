//! Events that are shared with the front end: kicks, calls and errors.
//!
//! The front end owns such an eventfd as much as we do: at any time it may clear `O_NONBLOCK`, or
//! fill or empty the counter, so that any plain read(2) or write(2) may block. Therefore:
//!
//! - The kernel gives a [`Signal`]: an io_uring of its own has the event registered for its
//!   completions, and completes a no-op. The kernel adds to an event without waiting; a full counter
//!   stays full, and readable.
//! - A kick is watched edge-triggered (`EPOLLET`), so that nobody need read it.

#![expect(unsafe_code, reason = "an entry of io_uring that names no memory")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The link of an eventfd in /proc.
const EVENTFD: &[u8] = b"anon_inode:[eventfd]";

/// An event of the front end that we signal.
pub(super) struct Signal {
    event: File,
    /// `None` where io_uring is missing or forbidden.
    ring: Option<IoUring>,
}

impl Signal {
    /// # Errors
    /// `InvalidInput` if `event` is no eventfd.
    pub(super) fn new(event: File) -> io::Result<Self> {
        check(&event)?;
        let ring = IoUring::new(2).and_then(|ring| {
            ring.submitter().register_eventfd(event.as_raw_fd())?;
            Ok(ring)
        });
        Ok(Self { event, ring: ring.ok() })
    }

    /// Makes the event readable. Never blocks with io_uring; without, it might if the front end
    /// fills the counter right between two system calls.
    pub(super) fn give(&mut self) {
        let given = self.ring.as_mut().is_some_and(|ring| complete(ring).is_ok());
        if !given {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let has_room = poll(&mut [PollFd::new(&self.event, PollFlags::OUT)], Some(&now));
            // A full event is readable already.
            if has_room.is_ok_and(|count| count > 0) {
                let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
            }
        }
    }
}

/// Causes one completion, which signals the ring's event.
fn complete(ring: &mut IoUring) -> io::Result<()> {
    // SAFETY: the entry names neither memory nor a descriptor.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
    // If this fails, an entry that could not be submitted before is still there, and will do.
    drop(pushed);
    ring.submit()?;
    ring.completion().for_each(drop);
    Ok(())
}

/// Refuses anything but an eventfd: other files may block in any system call, like a file of a FUSE
/// file system whose server does not answer.
pub(super) fn check(file: &File) -> io::Result<()> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let is_event = match rustix::fs::readlink(link, Vec::new()) {
        Ok(link) => link.as_bytes() == EVENTFD,
        // Without /proc, there is no way to tell without asking the file itself.
        Err(_) => true,
    };
    if is_event {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "a descriptor that is to signal is no eventfd"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::Errno;
    use std::os::fd::OwnedFd;

    /// An event that blocks, as a front end may make it.
    fn event() -> File {
        File::from(eventfd(0, EventfdFlags::CLOEXEC).expect("an event"))
    }

    fn is_readable(event: &File) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(event, PollFlags::IN)], Some(&now)) == Ok(1)
    }

    #[test]
    fn a_full_event_that_blocks_does_not_stop_its_user() {
        let event = event();
        let mut signal = Signal::new(event.try_clone().expect("a descriptor")).expect("an event");
        assert!(!is_readable(&event));
        signal.give();
        let mut counter = [0; 8];
        assert_eq!(rustix::io::read(&event, &mut counter), Ok(8));
        assert!(!is_readable(&event), "its counter was read");
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).expect("filled");
        for _ in 0..10 {
            signal.give();
        }
        assert!(is_readable(&event));
    }

    #[test]
    fn without_io_uring_a_full_event_does_not_block_either() {
        let event = event();
        let mut signal = Signal { event: event.try_clone().expect("a descriptor"), ring: None };
        signal.give();
        let mut counter = [0; 8];
        assert_eq!(rustix::io::read(&event, &mut counter), Ok(8));
        assert_eq!(u64::from_ne_bytes(counter), 1);
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).expect("filled");
        signal.give();
    }

    #[test]
    fn what_is_no_event_is_refused() {
        let (read, write) = io::pipe().expect("a pipe");
        let (read, write) = (OwnedFd::from(read), OwnedFd::from(write));
        assert!(check(&File::from(read)).is_err() && Signal::new(File::from(write)).is_err());
        assert!(check(&tempfile::tempfile().expect("a file")).is_err());
        assert_eq!(check(&event()).map_err(|_| Errno::INVAL), Ok(()));
    }
}
