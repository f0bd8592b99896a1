//! Where the ciphertext lives.
//!
//! A [`Backend`] is a disk: a length, block limits, and operations that are submitted in batches
//! to a [`Queue`] and completed by token. Everything that stands between a volume and its bytes is
//! one more backend around a backend.
//!
//! Contract of a queue, which its users rely on:
//!
//! - A queue belongs to one thread at a time. Any number of queues may serve one backend; an
//!   operation sees every operation that was completed before it was submitted, on any queue.
//! - [`Queue::submit`] takes at most [`Queue::room`] operations; each is answered by exactly one
//!   [`Done`] with its token and its buffers, whole or with an error: short transfers are continued
//!   inside. Answers come in any order.
//! - Buffers are the queue's from `submit` to its answer. Dropping a queue waits for what is under
//!   way.
//! - `Flush` makes every write durable that was answered before it was submitted, on any queue; a
//!   write with `fua` is durable when it is answered. Data that was lost is told once to each queue
//!   that was there, by the next flush of it: not to remember that is the user's mistake.
//!
//! `unsafe` is confined to [`buf`] (memory that the kernel writes to while Rust code holds its
//! name), to mappings in [`map`] and the handler of [`Watch`], to the lock of [`keep_resident`], to the
//! stores of [`copy_streaming`], to the initialiser of [`was_closed_at_start`], to the ring in [`ring`]
//! and to its use in [`mod@file`], where ioctls of zoned devices and locks are, too.

mod at_once;
pub mod buf;
pub mod file;
pub mod map;
mod memory;
pub mod model;
mod resident;
pub mod ring;
mod stream;
mod streams;
mod watch;
mod zero;
mod zoned;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub use buf::{Buf, Pool};
pub use file::{FileBackend, OpenError, OpenOptions};
pub use map::{Map, Mapping};
pub use memory::memory;
pub use resident::{keep_resident, lock_on_fault, may_lock_all};
pub use ring::{Guest, Ring};
pub use rustix::io::Errno;
pub use stream::copy_streaming;
pub use streams::was_closed_at_start;
pub use watch::{Access, Watch};
pub use zero::ZeroBackend;
pub use zoned::{Zone, ZoneAction, ZoneKind, ZoneLimits, Zones};

/// What a backend can do, as it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Length in bytes.
    pub len: u64,
    /// Bytes to which offsets and lengths should be aligned to be served at full speed; a power of
    /// two, at least 512. Nothing is refused for being unaligned.
    pub block: u32,
    /// Largest transfer in one operation, in bytes; a multiple of 4096.
    pub transfer_max: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether [`Io::Discard`] does something.
    pub discard: bool,
    /// Whether seeks cost time, so that order matters.
    pub rotational: bool,
    /// Whether every operation is answered within `submit`, from memory.
    pub synchronous: bool,
    /// Whether a core copies what is written, to the page cache or to memory, and no device fetches
    /// it: then it matters which core has it in its cache.
    pub copies: bool,
    /// Operations in flight beyond which it gets no faster; `u32::MAX` if unknown.
    pub depth_max: u32,
}

/// One operation; offsets and lengths in bytes of the backend.
#[derive(Debug)]
pub enum Io {
    /// Fill the buffers, one after the other.
    Read {
        /// Returned in [`Done::token`].
        token: u64,
        /// First byte.
        offset: u64,
        /// Their whole length is read, as one operation.
        bufs: Vec<Buf>,
    },
    /// Write the buffers, one after the other.
    Write {
        /// Returned in [`Done::token`].
        token: u64,
        /// First byte.
        offset: u64,
        /// Their whole length is written, as one operation.
        bufs: Vec<Buf>,
        /// Durable before it is answered.
        fua: bool,
    },
    /// Make what was answered durable.
    Flush {
        /// Returned in [`Done::token`].
        token: u64,
    },
    /// The range's content is no longer needed; it may read as anything.
    Discard {
        /// Returned in [`Done::token`].
        token: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// The range reads as zeroes afterwards. Refused with `EINVAL` or `EOPNOTSUPP` where it has to be
    /// written.
    WriteZeroes {
        /// Returned in [`Done::token`].
        token: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

impl Io {
    /// The token, and the buffers that go back with the answer.
    pub fn into_parts(self) -> (u64, Vec<Buf>) {
        match self {
            Self::Read { token, bufs, .. } | Self::Write { token, bufs, .. } => (token, bufs),
            Self::Flush { token }
            | Self::Discard { token, .. }
            | Self::WriteZeroes { token, .. } => (token, Vec::new()),
        }
    }
}

/// Bytes of all buffers together.
pub fn total_len(bufs: &[Buf]) -> usize {
    bufs.iter().map(|buf| buf.len()).sum()
}

/// The answer to one [`Io`].
#[derive(Debug)]
pub struct Done {
    /// The operation's token.
    pub token: u64,
    /// Whether all of it was done.
    pub result: Result<(), Errno>,
    /// The operation's buffers, if it had any.
    pub bufs: Vec<Buf>,
}

/// Appends all answers, by changing lists where the other has none: both have room for all there
/// can be.
pub(crate) fn hand_out(answered: &mut Vec<Done>, done: &mut Vec<Done>) {
    if done.is_empty() {
        std::mem::swap(answered, done);
    } else {
        done.append(answered);
    }
}

/// One thread's way to a backend. See the crate's contract.
pub trait Queue: Send {
    /// How many operations [`Queue::submit`] takes now.
    fn room(&self) -> usize;

    /// Starts an operation, or stages it for the next [`Queue::poll`] or [`Queue::wait`].
    ///
    /// # Panics
    /// If there is no room.
    fn submit(&mut self, io: Io);

    /// Hands staged operations on and appends what is answered. Never blocks on the backend.
    fn poll(&mut self, done: &mut Vec<Done>) -> io::Result<()>;

    /// As [`Queue::poll`], but blocks until at least one answer is there if any operation is under
    /// way. May return early without an answer when a signal comes.
    fn wait(&mut self, done: &mut Vec<Done>) -> io::Result<()>;

    /// Becomes readable when [`Queue::poll`] has answers, after a call of it that had none; `None` if
    /// they are always there at once.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Tells the queue of the memory that most buffers will come from: when the first of them is used
    /// it is registered with the kernel, if that saves anything and not too much is registered by
    /// other queues, and stays resident then. Buffers from elsewhere work as before. Returns whether it
    /// may be registered.
    fn register(&mut self, pool: &Pool) -> bool;

    /// The queue's ring, for entries of others: they go with the queue's own, and its
    /// [`Queue::wait`] also returns for them. `None` if it has none, or none for guests.
    fn guest(&mut self) -> Option<Guest<'_>>;
}

/// A piece of a backend, for block status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// Whether nothing is allocated for it; it reads as zeroes then.
    pub hole: bool,
}

/// A disk. No method has a default, and none of [`Queue`]: what stands around another backend has to
/// say of each whether it passes it on.
pub trait Backend: Send + Sync {
    /// What it is and can do.
    fn limits(&self) -> &Limits;

    /// Its length in bytes now, where that can change while it is open: an image that was grown.
    /// Operations may reach up to here.
    fn len_now(&self) -> io::Result<u64>;

    /// A new queue for at most `depth` operations under way.
    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>>;

    /// The allocation of `len` bytes from `offset`, at most `max` extents, which together may
    /// end early. What cannot be told counts as allocated.
    fn extents(&self, offset: u64, len: u64, max: usize) -> Vec<Extent>;

    /// Its bytes in place, for what is in memory; `None` if they can only be read.
    fn map(&self) -> Option<Arc<dyn Map>>;

    /// Its zones, if it is a zoned device.
    fn zones(&self) -> Option<&dyn Zones>;

    /// One line that says what it is, e.g. `file /x.img (io_uring)`.
    fn describe(&self) -> String;
}

/// A backend shared by the queues of several exports.
pub type SharedBackend = Arc<dyn Backend>;
