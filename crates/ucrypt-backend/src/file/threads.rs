//! A pool of threads that call pread and pwrite, for systems where io_uring is missing or
//! forbidden.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::bounce::Bounces;
use super::{Files, Flusher, ops};
use crate::{Done, Io, Pool, Queue, SharedRing};

/// Enough to keep one SSD busy; more threads would only wait for each other.
const THREADS: usize = 8;
/// For a file system in user space, which may have a network to wait for.
const THREADS_OF_USER_SPACE: usize = 32;

/// The threads of one backend, shared by its queues.
pub(super) struct Threads {
    jobs: Arc<Jobs>,
    handles: Vec<JoinHandle<()>>,
    reason: Option<String>,
}

struct Jobs {
    state: Mutex<JobState>,
    added: Condvar,
}

#[derive(Default)]
struct JobState {
    queue: VecDeque<(Io, Arc<Inbox>)>,
    closed: bool,
}

/// Receives the answers of one queue.
struct Inbox {
    answered: Mutex<Vec<Done>>,
    /// Counts answers; readable while there are any.
    event: OwnedFd,
    flusher: Flusher,
}

impl Threads {
    /// `error`: why io_uring cannot be used, if it would be.
    pub(super) fn new(files: &Arc<Files>, error: Option<&io::Error>) -> Self {
        let jobs = Arc::new(Jobs { state: Mutex::new(JobState::default()), added: Condvar::new() });
        let count = if files.by_file.is_some() { THREADS_OF_USER_SPACE } else { THREADS };
        let handles = (0..count)
            .filter_map(|index| {
                let (files, jobs) = (files.clone(), jobs.clone());
                std::thread::Builder::new()
                    .name(format!("backend-{index}"))
                    .spawn(move || jobs.serve(&files))
                    .ok()
            })
            .collect();
        let reason = error.map(|error| {
            format!(
                "io_uring cannot be used ({error}): falling back to threads, which are slower; \
                 to allow it: sysctl kernel.io_uring_disabled=0, or permit io_uring_setup in the \
                 container's seccomp profile"
            )
        });
        Self { jobs, handles, reason }
    }

    pub(super) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Fails if no thread could be started.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.handles.is_empty() {
            return Err(io::Error::other("no thread could be started for the backend"));
        }
        Ok(())
    }

    pub(super) fn queue(&self, depth: u32, flusher: Flusher) -> io::Result<ThreadsQueue> {
        self.check()?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let depth = depth as usize;
        let answered = Mutex::new(Vec::with_capacity(depth));
        let inbox = Arc::new(Inbox { answered, event, flusher });
        Ok(ThreadsQueue { jobs: self.jobs.clone(), inbox, depth, under_way: 0 })
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.jobs.state.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.jobs.added.notify_all();
        for handle in self.handles.drain(..) {
            // A panicked thread has already been reported by the panic itself.
            let _ = handle.join();
        }
    }
}

impl Jobs {
    fn serve(&self, files: &Files) {
        let mut bounces = Bounces::default();
        loop {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let (io, inbox) = loop {
                if let Some(job) = state.queue.pop_front() {
                    break job;
                }
                if state.closed {
                    return;
                }
                state = self.added.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            let done = ops::perform(files, &inbox.flusher, &mut bounces, io);
            inbox.answered.lock().unwrap_or_else(PoisonError::into_inner).push(done);
            // Cannot fail before 2^64 - 2 answers are unread.
            let _ = rustix::io::write(&inbox.event, &1u64.to_ne_bytes());
        }
    }
}

pub(super) struct ThreadsQueue {
    jobs: Arc<Jobs>,
    inbox: Arc<Inbox>,
    depth: usize,
    under_way: usize,
}

impl Queue for ThreadsQueue {
    fn room(&self) -> usize {
        self.depth - self.under_way
    }

    fn submit(&mut self, io: Io) {
        assert!(self.room() > 0, "submit without room");
        self.under_way += 1;
        let mut state = self.jobs.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.queue.push_back((io, self.inbox.clone()));
        drop(state);
        self.jobs.added.notify_one();
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        // Reset the event first: an answer that arrives in between makes it readable again.
        let mut count = [0; 8];
        match rustix::io::read(&self.inbox.event, &mut count) {
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut answered = self.inbox.answered.lock().unwrap_or_else(PoisonError::into_inner);
        self.under_way -= answered.len();
        done.append(&mut answered);
        Ok(())
    }

    fn wait(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        if self.under_way > 0 {
            let mut fds = [PollFd::new(&self.inbox.event, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.poll(done)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.inbox.event.as_fd())
    }

    fn register(&mut self, _pool: &Pool) -> bool {
        false
    }

    fn shared_ring(&mut self) -> Option<SharedRing<'_>> {
        None
    }
}

impl Drop for ThreadsQueue {
    fn drop(&mut self) {
        let mut done = Vec::new();
        while self.under_way > 0 && self.wait(&mut done).is_ok() {
            done.clear();
        }
    }
}
