//! Puts a server's thread to sleep until its engine queue or a watched descriptor has something.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use ucrypt_engine::Queue;

pub(crate) use epoll::EventFlags;

/// Most descriptors that a thread watches beside its queue.
const WATCHED_MAX: usize = 2;
/// The queue's number in the epoll set.
const QUEUE: u64 = u64::MAX;

/// Sleeps until the queue can go on or `fd` is readable, without a [`Waiter`]: for threads that
/// seldom wait for both. The caller must have just polled the queue.
pub(crate) fn sleep_for_either(queue: &mut Queue, fd: impl AsFd) -> io::Result<()> {
    if !queue.may_sleep() {
        return Ok(());
    }
    let (queue, fd) = (queue.wait_fd(), fd.as_fd());
    let mut fds = [queue, fd].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    match poll(&mut fds, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Everything that can end a thread's sleep.
pub(crate) struct Waiter {
    epoll: OwnedFd,
    /// Events watched for, by the descriptor's number; empty: not watched.
    watched: [EventFlags; WATCHED_MAX],
}

impl Waiter {
    /// Watches a queue.
    pub(crate) fn new(queue: &Queue) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, queue.wait_fd(), epoll::EventData::new_u64(QUEUE), EventFlags::IN)?;
        Ok(Self { epoll, watched: [EventFlags::empty(); WATCHED_MAX] })
    }

    /// Watches `fd` for `events`; every call for one descriptor uses the same `number`. Empty events
    /// stop the watch, even for a hang-up.
    pub(crate) fn watch(
        &mut self,
        number: usize,
        fd: impl AsFd,
        events: EventFlags,
    ) -> io::Result<()> {
        let before = std::mem::replace(&mut self.watched[number], events);
        let data = epoll::EventData::new_u64(number as u64);
        match (before.is_empty(), events.is_empty()) {
            _ if before == events => {}
            (true, _) => epoll::add(&self.epoll, fd, data, events)?,
            (false, true) => epoll::delete(&self.epoll, fd)?,
            (false, false) => epoll::modify(&self.epoll, fd, data, events)?,
        }
        Ok(())
    }

    /// Sleeps until the queue or a descriptor has something, or until `timeout`; returns at once if
    /// the queue can go on. Passes each ready descriptor's number and events to `has_something`. The
    /// caller must have just polled the queue.
    pub(crate) fn sleep(
        &self,
        queue: &mut Queue,
        timeout: Option<Duration>,
        mut has_something: impl FnMut(usize, EventFlags),
    ) -> io::Result<()> {
        if !queue.may_sleep() {
            return Ok(());
        }
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut events = [MaybeUninit::uninit(); WATCHED_MAX + 1];
        let woken = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((woken, _)) => woken,
            Err(Errno::INTR) => &mut [],
            Err(error) => return Err(error.into()),
        };
        for event in woken {
            let (number, flags) = (event.data.u64(), event.flags);
            if number != QUEUE {
                has_something(number as usize, flags);
            }
        }
        Ok(())
    }
}
