//! Puts a server's thread to sleep until its engine queue or a watched descriptor has something.
//!
//! Where the backend has a ring, the descriptors are polled by entries on it: one system call
//! submits what the queue has staged, and sleeps. Elsewhere the thread sleeps in an epoll set.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use ucrypt_engine::{Queue, QueueConfig, Volume};

pub(crate) use epoll::EventFlags;

/// Most descriptors that a thread watches beside its queue.
const WATCHED_MAX: usize = 2;
/// Most poll entries on the ring: the events of a descriptor may need one each.
const ENTRIES: u32 = 2 * WATCHED_MAX as u32;
/// The queue's number in the epoll set.
const QUEUE: u64 = u64::MAX;

/// A descriptor that may end a thread's sleep, and by which events; empty: not this time. A thread
/// passes the same descriptors in the same order each time. On a ring, an event that is no longer
/// waited for may end one more sleep.
pub(crate) type Watched<'a> = (BorrowedFd<'a>, EventFlags);

/// Everything that can end a thread's sleep.
pub(crate) struct Waiter {
    means: Means,
    /// The events for which each descriptor is watched now.
    watched: [EventFlags; WATCHED_MAX],
}

enum Means {
    /// Poll entries on the ring that the queue shares with its backend.
    Ring,
    Epoll(OwnedFd),
}

impl Waiter {
    /// Makes a queue of the volume, and its waiter.
    pub(crate) fn new(volume: &Arc<Volume>, config: QueueConfig) -> io::Result<(Queue, Self)> {
        let mut queue = volume.queue_on_backend_ring(config, ENTRIES)?;
        match queue.ring() {
            Some(_) => {
                let watched = [EventFlags::empty(); WATCHED_MAX];
                Ok((queue, Self { means: Means::Ring, watched }))
            }
            None => Self::in_epoll(queue),
        }
    }

    /// The same, where a descriptor is also watched by other threads, and its event is to wake one
    /// of them that sleeps. (A poll entry on a ring takes an event even if its thread is busy.)
    pub(crate) fn for_shared(
        volume: &Arc<Volume>,
        config: QueueConfig,
    ) -> io::Result<(Queue, Self)> {
        Self::in_epoll(volume.queue(config)?)
    }

    fn in_epoll(queue: Queue) -> io::Result<(Queue, Self)> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, queue.wait_fd(), epoll::EventData::new_u64(QUEUE), EventFlags::IN)?;
        let watched = [EventFlags::empty(); WATCHED_MAX];
        Ok((queue, Self { means: Means::Epoll(epoll), watched }))
    }

    /// Polls the queue, and sleeps until it has an answer, a descriptor has an event, or `timeout`
    /// has passed. May return early. Passes the number and the events of each descriptor that has
    /// some to `has_event`.
    pub(crate) fn sleep(
        &mut self,
        queue: &mut Queue,
        watched: &[Watched<'_>],
        timeout: Option<Duration>,
        has_event: impl FnMut(usize, EventFlags),
    ) -> io::Result<()> {
        match &self.means {
            Means::Ring if timeout.is_some() => sleep_at_most(queue, watched, timeout, has_event),
            Means::Ring => self.sleep_on_ring(queue, watched, has_event),
            Means::Epoll(_) => self.sleep_in_epoll(queue, watched, timeout, has_event),
        }
    }

    fn sleep_on_ring(
        &mut self,
        queue: &mut Queue,
        watched: &[Watched<'_>],
        mut has_event: impl FnMut(usize, EventFlags),
    ) -> io::Result<()> {
        for (number, (&(fd, events), polled)) in watched.iter().zip(&mut self.watched).enumerate() {
            let missing = events - *polled;
            if !missing.is_empty()
                && let Some(mut ring) = queue.ring()
            {
                ring.poll_add(fd, missing, (number as u64) << 32 | u64::from(missing.bits()));
                *polled |= missing;
            }
        }
        queue.wait()?;
        while let Some(completion) = queue.ring().and_then(|mut ring| ring.next()) {
            let number = (completion.user_data >> 32) as usize;
            if !completion.more {
                self.watched[number] -= EventFlags::from_bits_retain(completion.user_data as u32);
            }
            // An error, too, is a reason to look at the descriptor.
            let bits = u32::try_from(completion.result).unwrap_or(EventFlags::ERR.bits());
            has_event(number, EventFlags::from_bits_retain(bits));
        }
        Ok(())
    }

    fn sleep_in_epoll(
        &mut self,
        queue: &mut Queue,
        watched: &[Watched<'_>],
        timeout: Option<Duration>,
        mut has_event: impl FnMut(usize, EventFlags),
    ) -> io::Result<()> {
        let Means::Epoll(epoll) = &self.means else { return Ok(()) };
        queue.poll()?;
        if queue.has_done() || !queue.may_sleep() {
            return Ok(());
        }
        for (number, (&(fd, events), before)) in watched.iter().zip(&mut self.watched).enumerate() {
            let data = epoll::EventData::new_u64(number as u64);
            match (before.is_empty(), events.is_empty()) {
                _ if *before == events => {}
                (true, _) => epoll::add(epoll, fd, data, events)?,
                (false, true) => epoll::delete(epoll, fd)?,
                (false, false) => epoll::modify(epoll, fd, data, events)?,
            }
            *before = events;
        }
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut events = [MaybeUninit::uninit(); WATCHED_MAX + 1];
        let woken = match epoll::wait(epoll, &mut events, timeout.as_ref()) {
            Ok((woken, _)) => woken,
            Err(Errno::INTR) => &mut [],
            Err(error) => return Err(error.into()),
        };
        for event in woken {
            let (number, flags) = (event.data.u64(), event.flags);
            if number != QUEUE {
                has_event(number as usize, flags);
            }
        }
        Ok(())
    }
}

/// For the rare sleep with a limit.
fn sleep_at_most(
    queue: &mut Queue,
    watched: &[Watched<'_>],
    timeout: Option<Duration>,
    mut has_event: impl FnMut(usize, EventFlags),
) -> io::Result<()> {
    queue.poll()?;
    if queue.has_done() || !queue.may_sleep() {
        return Ok(());
    }
    let flags = |events: EventFlags| PollFlags::from_bits_retain(events.bits() as u16);
    let mut fds = vec![PollFd::from_borrowed_fd(queue.wait_fd(), PollFlags::IN)];
    fds.extend(watched.iter().map(|&(fd, events)| PollFd::from_borrowed_fd(fd, flags(events))));
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    for (number, fd) in fds[1..].iter().enumerate() {
        if !fd.revents().is_empty() {
            has_event(number, EventFlags::from_bits_retain(fd.revents().bits().into()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use ucrypt_backend::{FileBackend, OpenOptions};
    use ucrypt_engine::{Io, Segment, VolumeOptions};

    use super::*;

    const LEN: u64 = 1 << 20;
    const CONFIG: QueueConfig = QueueConfig { memory: 1 << 20, depth: 4 };

    /// A volume in memory, which has no ring, and one on a disk.
    fn each_kind(test: impl Fn(Queue, Waiter)) {
        let beside = std::env::current_exe().expect("a path");
        let dir = tempfile::tempdir_in(beside.parent().expect("a directory")).expect("created");
        let path = dir.path().join("image");
        std::fs::write(&path, vec![7; LEN as usize]).expect("written");
        let file = FileBackend::open(&path, OpenOptions::default()).expect("opened");
        let memory = ucrypt_backend::memory(LEN).expect("memory");
        for backend in [file, memory] {
            let segment = Segment { len: LEN, backend_offset: 0, cipher: None };
            let volume = Volume::new(Arc::new(backend), vec![segment], VolumeOptions::default());
            let volume = Arc::new(volume.expect("a volume"));
            for new in [Waiter::new, Waiter::for_shared] {
                let (queue, waiter) = new(&volume, CONFIG).expect("a queue");
                println!("on a ring: {}", matches!(waiter.means, Means::Ring));
                test(queue, waiter);
            }
        }
    }

    /// Sleeps until any of the descriptors has an event; returns their numbers.
    fn events(queue: &mut Queue, waiter: &mut Waiter, watched: &[Watched<'_>]) -> Vec<usize> {
        let mut found = Vec::new();
        while found.is_empty() {
            waiter.sleep(queue, watched, None, |number, _| found.push(number)).expect("slept");
        }
        found
    }

    #[test]
    fn whatever_is_watched_ends_the_sleep_and_an_answer_does() {
        each_kind(|mut queue, mut waiter| {
            let [(near, mut far), (near2, far2)] =
                [(); 2].map(|()| UnixStream::pair().expect("a pair"));
            for (round, count) in [1, 2, 7].into_iter().enumerate() {
                far.write_all(&vec![1; count]).expect("written");
                let watched = [(near.as_fd(), EventFlags::IN), (near2.as_fd(), EventFlags::IN)];
                assert_eq!(events(&mut queue, &mut waiter, &watched), [0], "in round {round}");
                (&near).read_exact(&mut vec![0; count]).expect("read");
            }
            // An event that is watched for later, while the first one still is.
            let both = EventFlags::IN | EventFlags::OUT;
            let watched = [(near.as_fd(), EventFlags::IN), (near2.as_fd(), both)];
            assert_eq!(events(&mut queue, &mut waiter, &watched), [1]);
            queue.submit(9, Io::read(0, 4096)).expect("accepted");
            let nothing = [(near.as_fd(), EventFlags::IN), (near2.as_fd(), EventFlags::IN)];
            while !queue.has_done() {
                waiter.sleep(&mut queue, &nothing, None, |_, _| {}).expect("slept");
            }
            assert_eq!(queue.next_done().map(|done| (done.tag, done.result)), Some((9, Ok(()))));
            drop(far2);
            assert_eq!(events(&mut queue, &mut waiter, &nothing), [1], "a hang-up");
        });
    }

    #[test]
    fn an_edge_ends_one_sleep_even_if_nobody_reads() {
        each_kind(|mut queue, mut waiter| {
            let [(near, mut far), (near2, mut far2)] =
                [(); 2].map(|()| UnixStream::pair().expect("a pair"));
            let edge = EventFlags::IN | EventFlags::ET;
            let watched = [(near.as_fd(), edge), (near2.as_fd(), EventFlags::IN)];
            far.write_all(&[1]).expect("written");
            assert_eq!(events(&mut queue, &mut waiter, &watched), [0]);
            let later = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                far2.write_all(&[1]).expect("written");
                far2
            });
            assert_eq!(events(&mut queue, &mut waiter, &watched), [1]);
            far.write_all(&[1]).expect("written");
            (&near2).read_exact(&mut [0]).expect("read");
            assert_eq!(events(&mut queue, &mut waiter, &watched), [0], "the next edge");
            later.join().expect("no panic");
        });
    }

    #[test]
    fn a_sleep_with_a_limit_ends() {
        each_kind(|mut queue, mut waiter| {
            let (near, mut far) = UnixStream::pair().expect("a pair");
            let limit = Some(Duration::from_millis(5));
            let mut found = Vec::new();
            let watched = [(near.as_fd(), EventFlags::IN)];
            waiter.sleep(&mut queue, &watched, limit, |n, _| found.push(n)).expect("slept");
            assert!(found.is_empty(), "{found:?}");
            far.write_all(&[1]).expect("written");
            waiter.sleep(&mut queue, &watched, limit, |n, _| found.push(n)).expect("slept");
            assert_eq!(found, [0]);
        });
    }
}
