//! How a server's thread sleeps: until its engine queue has something, or a descriptor that it watches.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use ucrypt_engine::Queue;

pub(crate) use epoll::EventFlags;

/// Descriptors that a thread watches beside its queue, at most.
const WATCHED_MAX: usize = 2;
/// The queue, in the kernel's list.
const QUEUE: u64 = u64::MAX;

/// What ends the sleep of a thread.
pub(crate) struct Waiter {
    epoll: OwnedFd,
    /// By number of the descriptor: what is watched for; empty: nothing.
    watched: [EventFlags; WATCHED_MAX],
}

impl Waiter {
    /// Watches a queue.
    pub(crate) fn new(queue: &Queue) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, queue.wait_fd(), epoll::EventData::new_u64(QUEUE), EventFlags::IN)?;
        Ok(Self { epoll, watched: [EventFlags::empty(); WATCHED_MAX] })
    }

    /// Watches a descriptor, from now on under the same `number`, for these events; for none if they are
    /// empty, also not for its hang-up.
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

    /// Sleeps until there is something, or the time is over; at once if the queue can go on. Tells which
    /// descriptors have something, by number. The caller has just polled the queue.
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

/// Sleeps until the queue has something; at once if it can go on. The caller has just polled it.
pub(crate) fn sleep_for_queue(queue: &mut Queue) -> io::Result<()> {
    if !queue.may_sleep() {
        return Ok(());
    }
    match poll(&mut [PollFd::from_borrowed_fd(queue.wait_fd(), PollFlags::IN)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
