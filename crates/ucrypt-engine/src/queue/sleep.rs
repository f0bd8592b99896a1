//! How a queue waits: for its backend, for workers, for a range, and for foreign entries.
//!
//! Depending on the backend and on the use of the queue's ring, there are three ways:
//!
//! - There are no foreign entries: the backend's own `wait`, or poll(2) on the waker and the backend's
//!   descriptor.
//! - The backend has a ring: foreign entries are on it, and the backend's `wait` covers both. A
//!   poll entry on the ring watches the waker.
//! - The backend has no ring: the queue has its own, where a poll entry watches the waker and the
//!   backend's descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, epoll, poll};
use ucrypt_backend::{Errno, Ring, SharedRing};

use super::Queue;
use crate::residue;
use crate::tuning::ANSWER_SPIN_LOOKS;
use crate::waker::Waker;
use crate::workers::{DoneJob, Job};

/// Which ring [`Queue::ring`] is: none, the backend's, or the queue's own.
pub(super) enum RingOf {
    Nobody,
    Backend,
    Queue(Box<Ring>),
}

/// The descriptors that end a sleep, joined with each other.
pub(super) struct Wakers {
    /// The waker: signalled when a range that a parked request waits for may be free, and by
    /// workers while this queue sleeps.
    own: Arc<Waker>,
    /// The waker may have been signalled since it was last read.
    may_be_signalled: bool,
    /// Workers or a range lock know the waker, and may signal it late.
    is_known: bool,
    /// The waker joined with the backend's descriptor; `None` if the backend has none.
    with_backend: Option<OwnedFd>,
    /// `inner` joined with the queue's own ring; `None` if the queue has no ring of its own.
    all: Option<OwnedFd>,
}

impl Wakers {
    /// `has_workers`: workers will know the waker.
    pub(super) fn new(
        has_workers: bool,
        backend: Option<BorrowedFd<'_>>,
        own_ring: Option<BorrowedFd<'_>>,
    ) -> io::Result<Self> {
        let own = Arc::new(Waker::new()?);
        let with_backend = backend.map(|backend| join_fds(own.as_fd(), backend)).transpose()?;
        let mut wakers =
            Self { own, may_be_signalled: false, is_known: has_workers, with_backend, all: None };
        wakers.all = own_ring.map(|ring| join_fds(wakers.inner(), ring)).transpose()?;
        Ok(wakers)
    }

    /// The waker, joined with the backend's descriptor if there is one.
    fn inner(&self) -> BorrowedFd<'_> {
        self.with_backend.as_ref().map_or_else(|| self.own.as_fd(), AsFd::as_fd)
    }

    /// The waker, for those who wake the queue.
    pub(super) fn own(&self) -> &Arc<Waker> {
        &self.own
    }

    /// Notes that a range lock knows the waker and may have signalled it already.
    pub(super) fn is_with_a_lock(&mut self) {
        (self.may_be_signalled, self.is_known) = (true, true);
    }

    /// The queue is about to sleep: from now on the waker may be signalled by those who know it.
    fn arm(&mut self) {
        self.may_be_signalled |= self.is_known;
    }

    /// Whether there may be signals to take. Resets the mark until the queue sleeps again.
    pub(super) fn may_be_signalled(&mut self) -> bool {
        std::mem::take(&mut self.may_be_signalled)
    }

    /// Takes the signals that have arrived.
    pub(super) fn take_signals(&self) -> io::Result<()> {
        self.own.take()
    }
}

/// One descriptor that is readable when either of the two is.
fn join_fds(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let data = epoll::EventData::new_u64(0);
    epoll::add(&both, one, data, epoll::EventFlags::IN)?;
    epoll::add(&both, other, data, epoll::EventFlags::IN)?;
    Ok(both)
}

/// A ring for foreign entries, for backends without one.
pub(super) fn own_ring(entries: u32) -> io::Result<Ring> {
    let mut ring = Ring::new(entries)?;
    if ring.shared_ring().is_none() {
        let text = "the kernel is too old for a shared ring: Linux 5.19 or newer is needed";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    Ok(ring)
}

impl Queue {
    /// The ring for entries of the queue's owner; `None` unless the queue was made by
    /// [`crate::Volume::queue_with_ring`].
    pub fn ring(&mut self) -> Option<SharedRing<'_>> {
        match &mut self.ring {
            RingOf::Nobody => None,
            RingOf::Backend => self.backend.queue().shared_ring(),
            RingOf::Queue(ring) => ring.shared_ring(),
        }
    }

    /// Submits the foreign entries that are staged on the queue's own ring, and takes completions.
    pub(super) fn poll_own_ring(&mut self) -> io::Result<()> {
        if let RingOf::Queue(ring) = &mut self.ring {
            ring.enter(0)?;
            ring.reap(|_, _| {});
        }
        Ok(())
    }

    /// Foreign entries: how many are under way, and whether there is a completion to take.
    fn foreign_entries(&mut self) -> (usize, bool) {
        self.ring().map_or((0, false), |ring| (ring.under_way(), ring.has_next()))
    }

    /// Blocks until there is an answer or a completion on [`Queue::ring`]. Returns at once if
    /// neither requests nor foreign entries are in flight.
    ///
    /// # Errors
    /// As [`Queue::poll`].
    pub fn wait(&mut self) -> io::Result<()> {
        loop {
            let (foreign, completed) = self.foreign_entries();
            if !self.done.is_empty() || completed || self.in_flight() == 0 && foreign == 0 {
                return Ok(());
            }
            let beside = foreign > 0 && matches!(self.ring, RingOf::Queue(_));
            if beside && self.in_flight() == 0 && self.may_sleep() {
                // Only foreign entries are in flight: one system call submits staged entries and
                // sleeps.
                self.sleep()?;
            }
            self.advance(!beside)?;
            let elsewhere = beside || !self.awaits_backend_only();
            if elsewhere && self.done.is_empty() && !self.help() && self.may_sleep() {
                self.sleep()?;
            }
        }
    }

    /// Sleeps until an event arrives. The caller has just checked all sources of events.
    fn sleep(&mut self) -> io::Result<()> {
        residue::scrub();
        match &mut self.ring {
            RingOf::Nobody => {}
            RingOf::Backend => {
                let ring = self.backend.queue().shared_ring();
                if ring.map_or(Ok(false), |mut ring| ring.watch(self.wakers.own.as_fd()))? {
                    self.take_completions(true)?;
                }
                return Ok(());
            }
            RingOf::Queue(ring) => {
                if !ring.has_completion() && ring.watch(self.wakers.inner())? {
                    ring.enter(1)?;
                    ring.reap(|_, _| {});
                }
                return Ok(());
            }
        }
        match poll(&mut [PollFd::from_borrowed_fd(self.wakers.inner(), PollFlags::IN)], None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The thread that drives this queue is about to sleep elsewhere; nothing is in flight.
    pub fn rest(&mut self) {
        residue::scrub();
        self.publish_rest();
        self.set_awake(false);
    }

    /// Whether nothing can be done before [`Queue::wait_fd`] becomes readable. Call this after
    /// [`Queue::poll`], right before poll(2).
    pub fn may_sleep(&mut self) -> bool {
        if !self.done.is_empty() || self.has_foreign() {
            return false;
        }
        // A broken queue fails again at the next poll, which reports the error.
        if self.spin().unwrap_or(true) {
            return false;
        }
        self.publish_rest();
        self.wakers.arm();
        if self.offloads.count > 0 {
            self.offloads.inbox.going_to_sleep();
            if !self.offloads.inbox.answers.is_empty() {
                return false;
            }
        }
        self.set_awake(false);
        residue::scrub();
        true
    }

    /// A descriptor that becomes readable when [`Queue::poll`] can make progress.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.wakers.all.as_ref().map_or_else(|| self.wakers.inner(), AsFd::as_fd)
    }

    /// Runs a job of this or another queue that waits for a worker, on the thread that drives this
    /// queue. A job of this queue counts as inline.
    pub fn run(&self, job: Job) -> DoneJob {
        let taken_back = job.is_of(&self.offloads.inbox);
        job.run_as(taken_back)
    }

    /// Runs a job that waits for a worker, or spins briefly for an answer. Returns whether to look
    /// for answers again before sleeping.
    fn help(&self) -> bool {
        let Some(workers) = self.volume.workers.as_ref().filter(|_| self.offloads.count > 0) else {
            return false;
        };
        if let Some(job) = workers.take() {
            self.run(job).deliver();
            return true;
        }
        for _ in 0..ANSWER_SPIN_LOOKS {
            if !self.offloads.inbox.answers.is_empty() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }
}
