//! Storage of the ciphertext.
//!
//! A [`Backend`] is a disk: a length, block limits, and operations that are submitted in batches to
//! a [`Queue`] and completed by token. Every layer between a volume and its bytes is another
//! backend around a backend.
//!
//! Contract of a queue, which its users rely on:
//!
//! - A queue belongs to one thread at a time. Any number of queues may serve one backend; an
//!   operation sees every operation that was completed before it was submitted, on any queue.
//! - [`Queue::submit`] takes at most [`Queue::room`] operations. Each is answered by exactly one
//!   [`Done`] with its token and its buffers, whole or with an error: the queue continues short
//!   transfers itself. Answers come in any order.
//! - Buffers belong to the queue from `submit` to the answer. Dropping a queue waits for its
//!   operations under way.
//! - `Flush` makes every write durable that was answered before the flush was submitted, on any
//!   queue; a write with `fua` is durable when it is answered. Once a file has lost data, its flushes
//!   and writes with `fua` fail until it is opened again. Other backends may report a loss once for
//!   each queue that existed then: the user must remember it.
//!
//! `unsafe` is confined to [`buf`] (memory that the kernel writes while Rust code holds a handle
//! to it), to mappings in [`map`] and the signal handler of [`Watch`], to the memory locking of
//! [`keep_resident`], to the stores of [`copy_streaming`], to the initialiser of
//! [`was_closed_at_start`], to the descriptors of [`Inherited`], to the question of [`Peer`], to the signal handler
//! of [`move_other_threads`], to the ring in [`ring`] and to its use in [`mod@file`], which also contains the ioctls of zoned devices, the locks
//! of images and the look for lost data.

mod at_once;
pub mod buf;
mod core_list;
mod directory_lock;
pub mod file;
mod inherited;
mod kernel_table;
pub mod map;
mod memory;
pub mod model;
mod namespace;
mod peer;
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
pub use core_list::count_cores;
pub use directory_lock::lock_directory;
pub use file::{FileBackend, OpenError, OpenOptions};
pub use inherited::Inherited;
pub use kernel_table::kernel_table;
pub use map::{Map, Mapping};
pub use memory::memory;
pub use namespace::move_other_threads;
pub use peer::{Peer, is_this_user};
pub use resident::{keep_resident, lock_on_fault, may_lock_all};
pub use ring::{Ring, SharedRing};
pub use rustix::io::Errno;
pub use stream::copy_streaming;
pub use streams::was_closed_at_start;
pub use watch::{Access, Watch};
pub use zero::ZeroBackend;
pub use zoned::{Zone, ZoneAction, ZoneKind, ZoneLimits, Zones};

/// Maximum [`Limits::write_unit`], in bytes.
pub const WRITE_UNIT_MAX: u32 = 64 << 10;

/// The capabilities of an open backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Length in bytes.
    pub len: u64,
    /// Bytes to which offsets and lengths should be aligned for full speed; a power of two, at
    /// least 512. Unaligned operations are not refused.
    pub block: u32,
    /// Bytes that must be written as a whole, aligned in offset and length; a power of two from 512
    /// to [`WRITE_UNIT_MAX`]. A backend carries out other writes as well, but one that meets another
    /// write in a unit may undo it. 512 where the system keeps them apart.
    pub write_unit: u32,
    /// Largest transfer in one operation, in bytes; a multiple of 4096.
    pub transfer_max: u32,
    /// Bytes to which buffers should be aligned in memory, at least 1. Others are not refused, but
    /// copied, and few of them at a time.
    pub memory_align: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether [`Io::Discard`] does something.
    pub discard: bool,
    /// Whether seeks cost time, so that order matters.
    pub rotational: bool,
    /// Whether every operation is carried out within `submit`, from memory.
    pub synchronous: bool,
    /// Whether a core copies the written data, to the page cache or to memory, and no device
    /// fetches it: then it matters which core has the data in its cache.
    pub copies: bool,
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
        /// Their total length is read, as one operation.
        bufs: Vec<Buf>,
    },
    /// Write the buffers, one after the other.
    Write {
        /// Returned in [`Done::token`].
        token: u64,
        /// First byte.
        offset: u64,
        /// Their total length is written, as one operation.
        bufs: Vec<Buf>,
        /// Durable before it is answered.
        fua: bool,
    },
    /// Make all answered writes durable.
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
    /// The range reads as zeroes afterwards. Refused with `EINVAL` or `EOPNOTSUPP` where the zeroes
    /// have to be written as data.
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

/// Total bytes of all buffers.
pub fn total_len(bufs: &[Buf]) -> usize {
    bufs.iter().map(|buf| buf.len()).sum()
}

/// The answer to one [`Io`].
#[derive(Debug)]
pub struct Done {
    /// The operation's token.
    pub token: u64,
    /// Success only if all of it was done.
    pub result: Result<(), Errno>,
    /// The operation's buffers, if it had any.
    pub bufs: Vec<Buf>,
}

/// Appends all answers to `done`; swaps the lists if `done` is empty, as both have room for all
/// answers.
pub(crate) fn hand_out(answered: &mut Vec<Done>, done: &mut Vec<Done>) {
    if done.is_empty() {
        std::mem::swap(answered, done);
    } else {
        done.append(answered);
    }
}

/// Access of one thread to a backend. See the crate's contract.
pub trait Queue: Send {
    /// How many operations [`Queue::submit`] takes now.
    fn room(&self) -> usize;

    /// Starts an operation, or stages it for the next [`Queue::poll`] or [`Queue::wait`].
    ///
    /// # Panics
    /// If there is no room.
    fn submit(&mut self, io: Io);

    /// Hands staged operations to the backend and appends the available answers. Never blocks on
    /// the backend.
    fn poll(&mut self, done: &mut Vec<Done>) -> io::Result<()>;

    /// As [`Queue::poll`], but blocks until at least one answer is there if any operation is under
    /// way. May return early without an answer after a signal.
    fn wait(&mut self, done: &mut Vec<Done>) -> io::Result<()>;

    /// A descriptor that becomes readable when [`Queue::poll`] has answers, after a `poll` that had
    /// none; `None` if answers are always there at once.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Announces the pool that most buffers will come from. When the first of its buffers is used,
    /// the queue registers the pool with the kernel, if that saves anything and other queues have
    /// not registered too much. Registered memory stays resident. Buffers from elsewhere work as
    /// before. Returns whether the pool may be registered.
    fn register(&mut self, pool: &Pool) -> bool;

    /// The queue's ring, for entries of others: they are submitted with the queue's own, and its
    /// [`Queue::wait`] also returns for them. `None` if the queue has no ring, or its ring takes no
    /// entries of others.
    fn shared_ring(&mut self) -> Option<SharedRing<'_>>;
}

/// A piece of a backend, for block status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub len: u64,
    /// Whether nothing is allocated for the extent; it reads as zeroes then.
    pub hole: bool,
}

/// A disk. Neither this trait nor [`Queue`] has default methods: a backend around another one has
/// to decide for each method whether to pass it on.
pub trait Backend: Send + Sync {
    /// Its properties and capabilities.
    fn limits(&self) -> &Limits;

    /// The length in bytes now; it can change while the backend is open if the image grows.
    /// Operations may reach up to here.
    fn len_now(&self) -> io::Result<u64>;

    /// Nobody needs what lies behind `end` bytes any more: that it is cut off is no loss, also of what was written there
    /// and is answered later. A volume tells so after it was made smaller, and before it is made larger again.
    fn use_until(&self, end: u64);

    /// A new queue for at most `depth` operations under way.
    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>>;

    /// The allocation of `len` bytes from `offset`, at most `max` extents, which together may end
    /// early. Ranges of unknown allocation count as allocated.
    fn extents(&self, offset: u64, len: u64, max: usize) -> Vec<Extent>;

    /// Its bytes in place, if it is in memory; `None` if they can only be read.
    fn map(&self) -> Option<Arc<dyn Map>>;

    /// Its zones, if it is a zoned device.
    fn zones(&self) -> Option<&dyn Zones>;

    /// A one-line description, e.g. `file /x.img (io_uring)`.
    fn describe(&self) -> String;
}
