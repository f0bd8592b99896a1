//! One ring for two parties: the operations of a backend, and the entries of others (foreign entries).
//!
//! An export whose kernel interface is io_uring (ublk, FUSE over io_uring) would otherwise run a
//! second ring beside the backend's. With one ring, one system call submits what both have staged
//! and sleeps until either has a completion.
//!
//! Contract:
//!
//! - User data tells the parties apart: bit 63 marks the backend's entries. The user data of
//!   foreign entries is below 2^63 and comes back unchanged. Neither party sees the other's completions.
//! - [`SharedRing::push`] stages an entry. The next `poll` or `wait` of the queue submits it to the
//!   kernel, in the order of staging, together with everything else. There is always room: the
//!   table grows if more entries are under way than the ring was made for.
//! - [`SharedRing::next`] returns completions in the order in which the kernel gave them. A pending
//!   completion keeps the queue's `wait` from blocking.
//! - Memory and descriptors that an entry names live until its (last) completion was taken.
//!   Dropping the ring cancels the foreign entries and waits for them, but only for a bounded time:
//!   if the owner is dropped while [`SharedRing::under_way`] is not zero, it must leak what its entries
//!   name.
//! - Like its queue, a ring belongs to one thread at a time. Some kernel interfaces (ublk) require
//!   all entries from the same thread.

#![expect(unsafe_code, reason = "entries name memory by address; see the contract")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use io_uring::squeue::{Entry, Entry128, EntryMarker};
use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{Builder, IoUring, cqueue, opcode};
use libc::iovec;

use crate::Errno;

/// Marks the backend's entries in their user data.
const OWN: u64 = 1 << 63;
/// User data of the poll entry of [`Ring::watch`], and of the entry that cancels foreign
/// entries.
const WATCH: u64 = OWN | 1 << 62;
const CANCEL: u64 = OWN | 1 << 61;

/// How long a dropped ring waits for cancelled entries.
const PATIENCE: Duration = Duration::from_secs(1);

/// See the module's contract.
pub struct Ring {
    rings: Rings,
    /// Foreign entries that found the submission ring full.
    staged: VecDeque<Entry128>,
    completions: VecDeque<Completion>,
    /// Foreign entries whose last completion has not been taken from the kernel.
    under_way: usize,
    /// A poll entry of `watch` is under way.
    watching: bool,
}

/// ublk's control commands and FUSE's commands need entries of 128 bytes. Kernels before 5.19 have
/// none; there a ring takes no foreign entries.
enum Rings {
    Large(IoUring<Entry128>),
    Small(IoUring),
}

/// The completion of a foreign entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The entry's user data.
    pub user_data: u64,
    /// The result as of a system call; a negative errno for an error.
    pub result: i32,
    /// For a multi-shot entry: further completions follow.
    pub more: bool,
}

/// With the `quiet` flags, completions wait for the next system call instead of interrupting the
/// cipher. Kernels before 5.19 do not know the flags.
fn build<E: EntryMarker>(entries: u32) -> io::Result<IoUring<E>> {
    let builder = || -> Builder<E> {
        let mut builder = IoUring::<E>::builder();
        builder.setup_clamp();
        builder
    };
    let mut quiet = builder();
    quiet.setup_coop_taskrun().setup_taskrun_flag();
    quiet.build(entries).or_else(|_| builder().build(entries))
}

impl Ring {
    /// A ring with room for `entries` entries under way.
    ///
    /// # Errors
    /// The system's error if io_uring is missing or forbidden.
    pub fn new(entries: u32) -> io::Result<Self> {
        let entries = entries.max(1);
        let rings =
            build(entries).map(Rings::Large).or_else(|_| build(entries).map(Rings::Small))?;
        Ok(Self {
            rings,
            staged: VecDeque::with_capacity(entries as usize),
            completions: VecDeque::with_capacity(2 * entries as usize),
            under_way: 0,
            watching: false,
        })
    }

    /// The ring as others use it; `None` where the kernel has no entries of 128 bytes (before 5.19).
    pub fn shared_ring(&mut self) -> Option<SharedRing<'_>> {
        matches!(self.rings, Rings::Large(_)).then_some(SharedRing(self))
    }

    /// Whether there is a completion of a foreign entry.
    pub fn has_completion(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Stages an entry of the backend; false if there is no room before the next [`Ring::enter`].
    /// [`Ring::reap`] reports its completion with `token`.
    ///
    /// # Safety
    /// What the entry names lives until its completion was reaped; for ever if that never happens.
    pub(crate) unsafe fn push_own(&mut self, entry: Entry, token: u32) -> bool {
        self.push_marked(entry.user_data(OWN | u64::from(token)))
    }

    /// Registers memory as the ring's buffer 0. The kernel keeps it resident.
    ///
    /// # Safety
    /// The memory stays mapped as long as entries name it as buffer 0.
    pub(crate) unsafe fn register_buffer(&self, start: *mut u8, len: usize) -> io::Result<()> {
        let submitter = match &self.rings {
            Rings::Large(ring) => ring.submitter(),
            Rings::Small(ring) => ring.submitter(),
        };
        // SAFETY: the caller's promise.
        unsafe { submitter.register_buffers(&[iovec { iov_base: start.cast(), iov_len: len }]) }
    }

    /// Whether [`Ring::register_buffer`] waits for all entries under way, as on old kernels.
    pub(crate) fn registering_waits(&self) -> bool {
        matches!(self.rings, Rings::Small(_))
    }

    fn push_marked(&mut self, entry: Entry) -> bool {
        match &mut self.rings {
            // SAFETY: the callers' contract (`push_own`), or the entry names no memory.
            Rings::Large(ring) => unsafe { ring.submission().push(&entry.into()) }.is_ok(),
            // SAFETY: as above.
            Rings::Small(ring) => unsafe { ring.submission().push(&entry) }.is_ok(),
        }
    }

    /// Makes the next waiting [`Ring::enter`] also return when `fd` is readable. Returns false if
    /// there is no room for that now. All calls must pass the same descriptor.
    pub fn watch(&mut self, fd: BorrowedFd<'_>) -> io::Result<bool> {
        if !self.watching {
            let readable = u32::from(rustix::event::PollFlags::IN.bits());
            let entry = opcode::PollAdd::new(Fd(fd.as_raw_fd()), readable).build();
            let entry = entry.user_data(WATCH);
            self.watching =
                self.push_marked(entry.clone()) || self.enter(0)? && self.push_marked(entry);
        }
        Ok(self.watching)
    }

    /// Whether the descriptor of [`Ring::watch`] is watched now: it was not readable at the last
    /// [`Ring::reap`].
    pub(crate) fn is_watching(&self) -> bool {
        self.watching
    }

    /// Whether any completion can be expected.
    pub(crate) fn is_awaited(&self) -> bool {
        self.watching || self.under_way > 0
    }

    /// Whether the kernel has to be entered to make progress.
    fn needs_enter(&mut self) -> bool {
        fn wants<E: EntryMarker>(ring: &mut IoUring<E>) -> bool {
            let submission = ring.submission();
            !submission.is_empty() || submission.taskrun() || submission.cq_overflow()
        }
        !self.staged.is_empty()
            || match &mut self.rings {
                Rings::Large(ring) => wants(ring),
                Rings::Small(ring) => wants(ring),
            }
    }

    /// Whether the kernel has taken all entries of the submission ring.
    fn is_submitted(&mut self) -> bool {
        match &mut self.rings {
            Rings::Large(ring) => ring.submission().is_empty(),
            Rings::Small(ring) => ring.submission().is_empty(),
        }
    }

    /// Pushes foreign entries into the submission ring; false if some found no room.
    fn push_staged(&mut self) -> bool {
        let Rings::Large(ring) = &mut self.rings else { return true };
        let mut submission = ring.submission();
        while let Some(entry) = self.staged.front() {
            // SAFETY: the promise of `SharedRing::push`.
            if unsafe { submission.push(entry) }.is_err() {
                return false;
            }
            self.staged.pop_front();
        }
        true
    }

    /// Submits staged entries to the kernel and waits for `want` completions of either party.
    /// Returns false if interrupted: completions have to be taken first, or a signal came.
    pub fn enter(&mut self, want: usize) -> io::Result<bool> {
        loop {
            if want == 0 && !self.needs_enter() {
                return Ok(true);
            }
            let all = self.push_staged();
            let want = if all { want } else { 0 };
            match self.submit(want, None) {
                // The kernel may take only some of the entries, and then it has not waited.
                Ok(()) if all && self.is_submitted() => return Ok(true),
                Ok(()) => {}
                Err(error) => match Errno::from_io_error(&error) {
                    // The completion ring is full or the kernel is short of memory: take
                    // completions first. Or a signal came.
                    Some(Errno::BUSY | Errno::AGAIN | Errno::INTR) => return Ok(false),
                    _ => return Err(error),
                },
            }
        }
    }

    fn submit(&mut self, want: usize, patience: Option<Duration>) -> io::Result<()> {
        let submitter = match &self.rings {
            Rings::Large(ring) => ring.submitter(),
            Rings::Small(ring) => ring.submitter(),
        };
        match patience {
            None => submitter.submit_and_wait(want),
            Some(patience) => {
                let timespec = Timespec::from(patience);
                submitter.submit_with_args(want, &SubmitArgs::new().timespec(&timespec))
            }
        }
        .map(drop)
    }

    /// Takes completions: passes the backend's to `own` as token and result, keeps the
    /// others.
    pub fn reap(&mut self, mut own: impl FnMut(u32, i32)) {
        let completion_ring = match &mut self.rings {
            Rings::Large(ring) => ring.completion(),
            Rings::Small(ring) => ring.completion(),
        };
        for completion in completion_ring {
            let (user_data, result) = (completion.user_data(), completion.result());
            match user_data {
                WATCH => self.watching = false,
                CANCEL => {}
                #[expect(clippy::cast_possible_truncation, reason = "the mark is cut off")]
                _ if user_data & OWN != 0 => own(user_data as u32, result),
                _ => {
                    let more = cqueue::more(completion.flags());
                    self.under_way -= usize::from(!more);
                    self.completions.push_back(Completion { user_data, result, more });
                }
            }
        }
    }

    /// A descriptor that is readable when a completion is there.
    pub fn fd(&self) -> BorrowedFd<'_> {
        let fd = match &self.rings {
            Rings::Large(ring) => ring.as_raw_fd(),
            Rings::Small(ring) => ring.as_raw_fd(),
        };
        // SAFETY: the descriptor lives as long as the ring, which `self` owns.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Entries that the kernel never saw need no cancelling.
        self.under_way -= self.staged.len();
        self.staged.clear();
        let until = Instant::now() + PATIENCE;
        let mut cancelled = false;
        while self.under_way > 0 {
            if !cancelled {
                let everything = opcode::AsyncCancel2::new(CancelBuilder::any());
                cancelled = self.push_marked(everything.build().user_data(CANCEL));
            }
            let left = until.saturating_duration_since(Instant::now());
            let submitted = self.submit(usize::from(cancelled), Some(left));
            self.reap(|_, _| {});
            self.completions.clear();
            let goes_on = match submitted {
                Ok(()) => true,
                Err(error) => matches!(
                    Errno::from_io_error(&error),
                    Some(Errno::BUSY | Errno::AGAIN | Errno::INTR)
                ),
            };
            if !goes_on || left.is_zero() {
                break;
            }
        }
    }
}

/// A ring as others than its backend use it. See the module's contract.
pub struct SharedRing<'a>(&'a mut Ring);

impl SharedRing<'_> {
    /// Stages an entry, whose user data is below 2^63.
    ///
    /// # Safety
    /// The memory and the descriptors that the entry names are valid for its operation, and nothing
    /// else uses them, until its last completion was taken from [`SharedRing::next`]; for ever if that
    /// never happens.
    ///
    /// # Panics
    /// If bit 63 of the user data is set.
    pub unsafe fn push(&mut self, entry: impl Into<Entry128>) {
        let entry = entry.into();
        assert!(entry.get_user_data() & OWN == 0, "bit 63 of the user data is the backend's");
        self.0.staged.push_back(entry);
        self.0.under_way += 1;
        self.0.push_staged();
    }

    /// The next completion that the queue's `poll` or `wait` took from the kernel.
    #[expect(clippy::should_implement_trait, reason = "an end now is no end")]
    pub fn next(&mut self) -> Option<Completion> {
        self.0.completions.pop_front()
    }

    /// Whether there is a completion to take.
    pub fn has_next(&self) -> bool {
        !self.0.completions.is_empty()
    }

    /// Entries whose last completion has not been taken from the kernel.
    pub fn under_way(&self) -> usize {
        self.0.under_way
    }

    /// See [`Ring::watch`].
    pub fn watch(&mut self, fd: BorrowedFd<'_>) -> io::Result<bool> {
        self.0.watch(fd)
    }
}
