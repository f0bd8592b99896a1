//! Files and devices through io_uring.
//!
//! Ownership: an operation under way is in `slots` with its buffers, so the buffers outlive the
//! kernel's use of them; the slot's index is its token on the ring. Dropping the queue waits for
//! every operation. If the ring itself fails then, the buffers are leaked, because the kernel may
//! still use them.

#![expect(unsafe_code, reason = "the kernel uses buffers and descriptors by address")]

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use io_uring::{opcode, squeue, types};
use libc::iovec;
use rustix::io::{ReadWriteFlags, preadv2};
use slab::Slab;

use super::bounce::{Bounce, Bounces, Through};
use super::{Files, Flusher, Flushing, ops};
use crate::ring::{Ring, SharedRing};
use crate::{Buf, Done, Errno, Io, Pool, Queue, total_len};

const RWF_DSYNC: i32 = 0x2;
const FALLOC_FL_PUNCH_KEEP_SIZE: i32 = 0x2 | 0x1;

/// Checks whether a ring can be created here.
pub(super) fn available() -> io::Result<()> {
    Ring::new(2).map(drop)
}

pub(super) struct UringQueue {
    ring: Ring,
    /// The pool registered with the ring. Declared after the ring, so that it is unmapped after the
    /// ring is gone.
    fixed: Option<Fixed>,
    /// A pool to be registered at its first use: an idle queue pins nothing.
    offered: Option<Pool>,
    files: Arc<Files>,
    flusher: Flusher,
    depth: usize,
    slots: Slab<Slot>,
    /// By slot.
    vectors: Vec<Vectors>,
    /// Operations to push to the ring at the next poll: new ones, and ones to be continued.
    staged: VecDeque<u32>,
    /// Operations that need bounce buffers, for which there was no room. First come first served.
    unbounced: VecDeque<u32>,
    /// Operations answered without the ring: cached reads, and discards of nothing.
    answered: Vec<Done>,
    cached: Cached,
    bounces: Bounces,
    /// The length of the file, for the writes that go to the kernel together.
    len: Option<u64>,
}

struct Slot {
    io: Io,
    /// Used in place of the operation's buffers.
    bounce: Option<Bounce>,
    /// Bytes already transferred: the kernel may transfer less than asked.
    done: usize,
    /// Of a flush.
    flushing: Option<Flushing>,
    /// How often the kernel has put the operation off since its last progress.
    put_off: u32,
}

/// How often in a row the kernel may put an operation off (`EAGAIN`, `EINTR`) before it is carried
/// out without the ring. The kernel normally waits by itself.
const PUT_OFF_MAX: u32 = 8;

/// The addresses of an operation's buffers, kept while the kernel may read them.
struct Vectors(Vec<iovec>);

// SAFETY: the pointers are only handed to the kernel; they point into buffers of the same queue.
unsafe impl Send for Vectors {}

/// Buffers per operation for which room is reserved; for more, the list grows.
const VECTORS: usize = 64;
/// Maximum buffers in one operation of the kernel (`IOV_MAX`).
const VECTORS_MAX: usize = 1024;

/// Memory that all queues of the process together may register, in bytes. Its pages stay resident,
/// for every queue that was ever busy. Twice as much would help more busy queues of direct I/O, and
/// cost as much memory.
const PINNED_BYTES_MAX: usize = 256 << 20;

/// Bytes registered now.
static PINNED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// A pool that is or is about to be registered; counted in [`PINNED_BYTES`].
struct Fixed(Pool);

impl Fixed {
    /// `None` if the pool exceeds [`PINNED_BYTES_MAX`].
    fn new(pool: &Pool) -> Option<Self> {
        let (_, len) = pool.span();
        let add =
            |pinned: usize| pinned.checked_add(len).filter(|&pinned| pinned <= PINNED_BYTES_MAX);
        PINNED_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Self(pool.clone()))
    }
}

/// Whether an address lies in a pool.
fn holds(pool: &Pool, at: *const u8) -> bool {
    let (start, len) = pool.span();
    at.addr() >= start.addr() && at.addr() - start.addr() < len
}

impl Drop for Fixed {
    fn drop(&mut self) {
        PINNED_BYTES.fetch_sub(self.0.span().1, Ordering::Relaxed);
    }
}

impl UringQueue {
    pub(super) fn new(files: Arc<Files>, flusher: Flusher, depth: u32) -> io::Result<Self> {
        let depth = depth.clamp(1, 4096);
        Ok(Self {
            ring: Ring::new(depth)?,
            fixed: None,
            offered: None,
            files,
            flusher,
            depth: depth as usize,
            slots: Slab::with_capacity(depth as usize),
            vectors: (0..depth).map(|_| Vectors(Vec::with_capacity(VECTORS))).collect(),
            staged: VecDeque::with_capacity(depth as usize),
            unbounced: VecDeque::with_capacity(depth as usize),
            answered: Vec::with_capacity(depth as usize),
            cached: Cached::default(),
            bounces: Bounces::default(),
            len: None,
        })
    }

    /// Pushes staged operations into the submission ring; false if some found no room.
    fn push_staged(&mut self) -> bool {
        while let Some(index) = self.staged.pop_front() {
            let Some(slot) = self.slots.get_mut(index as usize) else { continue };
            let vectors = &mut self.vectors[index as usize].0;
            let put_off = slot.put_off > 0;
            let entry = entry(&self.files, &self.flusher, self.fixed.as_ref(), slot, vectors);
            // An operation that was put off goes to a kernel thread, which may sleep.
            let entry = if put_off { entry.flags(squeue::Flags::ASYNC) } else { entry };
            // SAFETY: the buffers, their vectors and the descriptor that the entry names are held
            // by the slot, by `vectors`, by `files` and by `flusher` until the completion is taken;
            // what is registered, by `fixed`.
            if !unsafe { self.ring.push_own(entry, index) } {
                self.staged.push_front(index);
                return false;
            }
        }
        true
    }

    /// Submits everything to the kernel and waits for `want` completions. Returns false if
    /// interrupted: completions have to be taken first.
    fn enter(&mut self, want: usize) -> io::Result<bool> {
        self.len = None;
        loop {
            let all = self.push_staged();
            let entered = self.ring.enter(if all { want } else { 0 })?;
            if all || !entered {
                return Ok(entered);
            }
        }
    }

    /// Submits everything to the kernel and takes the completions. Operations done in part are
    /// submitted again at once: otherwise a caller that then sleeps on the descriptor would not be
    /// woken for them.
    fn turn(&mut self, mut want: usize, done: &mut Vec<Done>) -> io::Result<()> {
        loop {
            let entered = self.enter(want)?;
            self.reap(done);
            if entered && self.staged.is_empty() {
                return Ok(());
            }
            want = 0;
        }
    }

    fn reap(&mut self, done: &mut Vec<Done>) {
        let Self { ring, slots, vectors, staged, bounces, files, flusher, .. } = self;
        ring.reap(|index, result| {
            let Some(slot) = slots.get_mut(index as usize) else { return };
            let progress = slot.advance(result);
            if !matches!(progress, Progress::Continue) {
                // A client chooses how many buffers it has: not each slot keeps the longest list.
                let list = &mut vectors[index as usize].0;
                list.clear();
                list.shrink_to(VECTORS);
            }
            match progress {
                Progress::Continue => staged.push_back(index),
                Progress::Refused => {
                    let slot = slots.remove(index as usize);
                    done.push(slot.without_ring(files, flusher, bounces));
                }
                Progress::Ended(result) => {
                    let slot = slots.remove(index as usize);
                    let result = slot.answer(files, result);
                    done.push(slot.into_done(result));
                }
            }
        });
        if !self.unbounced.is_empty() {
            self.stage_unbounced(done);
        }
    }

    /// Stages operations that need bounce buffers, as far as there is room for these. One that is
    /// under way has some if there is none. Failed ones go to `done`.
    fn stage_unbounced(&mut self, done: &mut Vec<Done>) {
        while let Some(&index) = self.unbounced.front() {
            let slot = &mut self.slots[index as usize];
            // The file may have been cut off since it was submitted.
            let in_file = Self::check_end(&self.files, &mut self.len, &slot.io);
            match in_file.and_then(|()| through(&mut self.bounces, &self.files, &slot.io)) {
                Ok(Through::Later) => return,
                Ok(Through::Client) => self.staged.push_back(index),
                Ok(Through::Bounce(bounce)) => {
                    slot.bounce = Some(bounce);
                    self.staged.push_back(index);
                }
                Err(error) => done.push(self.slots.remove(index as usize).into_done(Err(error))),
            }
            self.unbounced.pop_front();
        }
    }

    /// Fails for what is cut off from the file.
    /// `len_now` is the file's length as far as this round has asked for it.
    fn check_end(files: &Files, len_now: &mut Option<u64>, io: &Io) -> Result<(), Errno> {
        let Files { cut, buffered, .. } = files;
        match io {
            Io::Read { offset, bufs, .. } => cut.check(offset + total_len(bufs) as u64),
            Io::Write { offset, bufs, .. } => {
                let len = *len_now.get_or_insert_with(|| cut.len_now(buffered.as_fd()));
                cut.check_write(offset + total_len(bufs) as u64, len)
            }
            Io::WriteZeroes { offset, len, .. } => {
                let now = *len_now.get_or_insert_with(|| cut.len_now(buffered.as_fd()));
                cut.check_write(offset + len, now)
            }
            Io::Discard { offset, len, .. } => cut.check(offset + len),
            Io::Flush { .. } => Ok(()),
        }
    }

    fn under_way(&self) -> usize {
        self.slots.len()
    }

    /// Registers the offered pool, if the operation uses it.
    fn register_for(&mut self, io: &Io) {
        let Some(pool) = &self.offered else { return };
        let (Io::Read { bufs, .. } | Io::Write { bufs, .. }) = io else { return };
        let waits = self.under_way() > 0 || self.ring.is_awaited();
        if waits && self.ring.registering_waits() {
            return;
        }
        if !matches!(bufs.as_slice(), [buf] if holds(pool, buf.as_ptr())) {
            return;
        }
        let Some(fixed) = Fixed::new(pool) else { return };
        let (start, len) = pool.span();
        // SAFETY: `fixed` keeps the pool until the ring is dropped.
        let registered = unsafe { self.ring.register_buffer(start, len) };
        // Registration is refused if RLIMIT_MEMLOCK is too small: then the kernel looks pages up
        // each time.
        self.fixed = registered.is_ok().then_some(fixed);
        self.offered = None;
    }
}

enum Progress {
    Continue,
    /// The ring does not do it.
    Refused,
    Ended(Result<(), Errno>),
}

impl Slot {
    fn new(io: Io, files: &Files) -> Self {
        let flushing = matches!(io, Io::Flush { .. }).then(|| files.cut.begin_flush());
        Self { io, bounce: None, done: 0, flushing, put_off: 0 }
    }

    /// Applies the result of a completion.
    fn advance(&mut self, result: i32) -> Progress {
        let Ok(count) = usize::try_from(result) else {
            return match Errno::from_raw_os_error(-result) {
                Errno::INTR | Errno::AGAIN if self.put_off < PUT_OFF_MAX => {
                    self.put_off += 1;
                    Progress::Continue
                }
                // The kernel could start no thread for an operation that may sleep (a limit of
                // processes): it cancels what nobody has asked it to cancel.
                Errno::INTR | Errno::AGAIN | Errno::CANCELED => Progress::Refused,
                error => Progress::Ended(Err(error)),
            };
        };
        let (Io::Read { bufs, .. } | Io::Write { bufs, .. }) = &self.io else {
            return Progress::Ended(Ok(()));
        };
        self.done += count;
        self.put_off = 0;
        let asked = self.bounce.as_ref().map_or_else(|| total_len(bufs), Bounce::asked);
        match count {
            _ if self.done >= asked => Progress::Ended(Ok(())),
            // The file ends before the buffer does.
            0 => Progress::Ended(Err(Errno::IO)),
            _ => Progress::Continue,
        }
    }

    /// The answer to an operation that the kernel has ended so.
    fn answer(&self, files: &Files, result: Result<(), Errno>) -> Result<(), Errno> {
        match &self.io {
            Io::Read { offset, bufs, .. } => {
                if result == Err(Errno::IO) {
                    let end = offset + total_len(bufs) as u64;
                    files.cut.found_end(files.buffered.as_fd(), end);
                }
                result
            }
            Io::Write { offset, bufs, fua, .. } => {
                files.written(offset + total_len(bufs) as u64, *fua, result)
            }
            Io::WriteZeroes { offset, len, .. } => files.written(offset + len, false, result),
            Io::Discard { .. } => result,
            Io::Flush { .. } => {
                self.flushing.map_or(result, |flushing| files.flushed(flushing, result))
            }
        }
    }

    /// Carries the operation out on this thread, from its beginning.
    fn without_ring(self, files: &Files, flusher: &Flusher, bounces: &mut Bounces) -> Done {
        // If it needs one, this makes room for it.
        drop(self.bounce);
        if let Some(flushing) = self.flushing {
            // Another one follows, and says how it ends.
            let _ = files.flushed(flushing, Err(Errno::CANCELED));
        }
        ops::perform(files, flusher, bounces, self.io)
    }

    fn into_done(self, result: Result<(), Errno>) -> Done {
        let is_read = matches!(self.io, Io::Read { .. });
        let (token, mut bufs) = self.io.into_parts();
        if let Some(bounce) = self.bounce.filter(|_| is_read && result.is_ok()) {
            bounce.hand_to(&mut bufs);
        }
        Done { token, result, bufs }
    }
}

/// The memory that an operation uses.
fn through(bounces: &mut Bounces, files: &Files, io: &Io) -> Result<Through, Errno> {
    let direct = files.direct.as_ref();
    match io {
        Io::Read { offset, bufs, .. } => bounces.for_read(direct, *offset, bufs),
        Io::Write { offset, bufs, .. } => bounces.for_write(direct, *offset, bufs),
        Io::Flush { .. } | Io::Discard { .. } | Io::WriteZeroes { .. } => Ok(Through::Client),
    }
}

/// Lists what is left of an operation behind the first `done` bytes, in its bounce buffer if it has
/// one, and returns where it begins in the image and its length, both in bytes.
fn rest(
    offset: u64,
    bufs: &mut [Buf],
    bounce: &mut Option<Bounce>,
    done: usize,
    vectors: &mut Vec<iovec>,
) -> (u64, u64) {
    let (offset, len) = if let Some(bounce) = bounce {
        vectors.clear();
        let rest = &mut bounce.bytes()[done..];
        vectors.push(iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() });
        (bounce.offset, bounce.len)
    } else {
        list(bufs, done, vectors);
        (offset, total_len(bufs))
    };
    (offset + done as u64, (len - done) as u64)
}

/// Lists the rest of the buffers behind the first `done` bytes, as far as one operation takes them:
/// the remainder follows when that operation is done.
fn list(bufs: &mut [Buf], mut done: usize, vectors: &mut Vec<iovec>) {
    vectors.clear();
    for buf in bufs {
        if vectors.len() == VECTORS_MAX {
            break;
        }
        let skipped = done.min(buf.len());
        done -= skipped;
        let rest = &mut buf[skipped..];
        if !rest.is_empty() {
            vectors.push(iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() });
        }
    }
}

/// Whether a buffer lies in the registered memory.
fn is_fixed(fixed: Option<&Fixed>, buf: &iovec) -> bool {
    fixed.is_some_and(|fixed| holds(&fixed.0, buf.iov_base.cast()))
}

/// The ring entry for the rest of an operation.
fn entry(
    files: &Files,
    flusher: &Flusher,
    fixed: Option<&Fixed>,
    slot: &mut Slot,
    vectors: &mut Vec<iovec>,
) -> squeue::Entry {
    let done = slot.done;
    let buffered = types::Fd(files.buffered.as_raw_fd());
    match &mut slot.io {
        Io::Read { offset, bufs, .. } => {
            let (at, len) = rest(*offset, bufs, &mut slot.bounce, done, vectors);
            let fd = types::Fd(files.for_transfer(at, len).as_raw_fd());
            match vectors.as_slice() {
                [one] if is_fixed(fixed, one) => {
                    opcode::ReadFixed::new(fd, one.iov_base.cast(), one.iov_len as u32, 0)
                        .offset(at)
                        .build()
                }
                [one] => opcode::Read::new(fd, one.iov_base.cast(), one.iov_len as u32)
                    .offset(at)
                    .build(),
                many => opcode::Readv::new(fd, many.as_ptr(), many.len() as u32).offset(at).build(),
            }
        }
        Io::Write { offset, bufs, fua, .. } => {
            let (at, len) = rest(*offset, bufs, &mut slot.bounce, done, vectors);
            let fd = types::Fd(files.for_transfer(at, len).as_raw_fd());
            let flags = if *fua { RWF_DSYNC } else { 0 };
            match vectors.as_slice() {
                [one] if is_fixed(fixed, one) => {
                    opcode::WriteFixed::new(fd, one.iov_base.cast(), one.iov_len as u32, 0)
                        .offset(at)
                        .rw_flags(flags)
                        .build()
                }
                [one] => opcode::Write::new(fd, one.iov_base.cast(), one.iov_len as u32)
                    .offset(at)
                    .rw_flags(flags)
                    .build(),
                many => opcode::Writev::new(fd, many.as_ptr(), many.len() as u32)
                    .offset(at)
                    .rw_flags(flags)
                    .build(),
            }
        }
        Io::Flush { .. } => opcode::Fsync::new(types::Fd(flusher.descriptor(files).as_raw_fd()))
            .flags(types::FsyncFlags::DATASYNC)
            .build(),
        Io::Discard { offset, len, .. } | Io::WriteZeroes { offset, len, .. } => {
            opcode::Fallocate::new(buffered, *len)
                .offset(*offset)
                .mode(FALLOC_FL_PUNCH_KEEP_SIZE)
                .build()
        }
    }
}

/// Reads from the page cache at submission: shorter than the way through the ring, as long as the
/// data is mostly there.
#[derive(Default)]
struct Cached {
    /// Consecutive failed attempts.
    misses: u32,
    /// Reads not attempted since then.
    skipped: u32,
}

/// Consecutive failed attempts after which only every [`RETRY_EVERY`]th read is attempted.
const MISSES_MAX: u32 = 4;
const RETRY_EVERY: u32 = 32;

impl Cached {
    /// Carries out a read if that needs no waiting. Only if nothing is staged: several operations
    /// go to the ring in one call.
    fn read(&mut self, files: &Files, io: &mut Io) -> bool {
        let Io::Read { offset, bufs, .. } = io else { return false };
        let [buf] = bufs.as_mut_slice() else { return false };
        if files.direct.is_some() {
            return false;
        }
        if self.misses >= MISSES_MAX {
            self.skipped += 1;
            if !self.skipped.is_multiple_of(RETRY_EVERY) {
                return false;
            }
        }
        let nowait = ReadWriteFlags::NOWAIT;
        let mut into = [IoSliceMut::new(buf)];
        let len = into[0].len();
        let read = preadv2(&files.buffered, &mut into, *offset, nowait);
        let hit = read.is_ok_and(|count| count == len);
        self.misses = if hit { 0 } else { self.misses.saturating_add(1) };
        hit
    }
}

impl Queue for UringQueue {
    fn room(&self) -> usize {
        self.depth - self.slots.len() - self.answered.len()
    }

    fn submit(&mut self, mut io: Io) {
        if let Err(error) = Self::check_end(&self.files, &mut self.len, &io) {
            let (token, bufs) = io.into_parts();
            return self.answered.push(Done { token, result: Err(error), bufs });
        }
        if self.staged.is_empty() && self.cached.read(&self.files, &mut io) {
            let (token, bufs) = io.into_parts();
            return self.answered.push(Done { token, result: Ok(()), bufs });
        }
        if let Io::Discard { token, offset, len } = &mut io {
            let Some(whole) = self.files.discardable(*offset, *len) else {
                let done = Done { token: *token, result: Ok(()), bufs: Vec::new() };
                return self.answered.push(done);
            };
            (*offset, *len) = whole;
        }
        if let Io::Discard { token, .. } | Io::WriteZeroes { token, .. } = &io
            && !self.files.punches
        {
            let result = Err(Errno::OPNOTSUPP);
            return self.answered.push(Done { token: *token, result, bufs: Vec::new() });
        }
        if self.offered.is_some() {
            self.register_for(&io);
        }
        assert!(self.slots.len() < self.depth, "submit without room");
        let takes = |offset: &u64, bufs: &[Buf]| {
            self.files.direct.as_ref().is_none_or(|direct| direct.takes(*offset, bufs))
        };
        let is_plain = match &io {
            Io::Read { offset, bufs, .. } | Io::Write { offset, bufs, .. } => takes(offset, bufs),
            Io::Flush { .. } | Io::Discard { .. } | Io::WriteZeroes { .. } => true,
        };
        let index = self.slots.insert(Slot::new(io, &self.files)) as u32;
        if is_plain {
            return self.staged.push_back(index);
        }
        self.unbounced.push_back(index);
        if self.unbounced.len() == 1 {
            let mut answered = std::mem::take(&mut self.answered);
            self.stage_unbounced(&mut answered);
            self.answered = answered;
        }
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        done.append(&mut self.answered);
        self.turn(0, done)
    }

    fn wait(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        let before = done.len();
        done.append(&mut self.answered);
        let watched = self.ring.is_watching();
        self.reap(done);
        // The watched descriptor has become readable: that is an event, and the watch is over.
        let fired = watched && !self.ring.is_watching();
        let awaited = self.under_way() > 0 || self.ring.is_awaited();
        if done.len() == before && awaited && !fired && !self.ring.has_completion() {
            self.turn(1, done)
        } else if self.staged.is_empty() {
            Ok(())
        } else {
            self.turn(0, done)
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ring.fd())
    }

    /// Only direct I/O gains: otherwise the kernel copies and looks up no pages.
    fn register(&mut self, pool: &Pool) -> bool {
        if self.files.direct.is_none() || self.fixed.is_some() || self.offered.is_some() {
            return false;
        }
        self.offered = Some(pool.clone());
        true
    }

    fn shared_ring(&mut self) -> Option<SharedRing<'_>> {
        self.ring.shared_ring()
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        let mut done = Vec::new();
        while self.under_way() > 0 {
            // Not `wait`, which returns at once while there is an untaken completion of a foreign entry.
            if self.enter(1).is_err() {
                std::mem::forget(std::mem::take(&mut self.slots));
                return;
            }
            self.reap(&mut done);
            done.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FileBackend, OpenOptions};
    use super::*;

    const DEPTH: u32 = 32;

    /// A queue of an image of `len` bytes, whose byte at offset N is N / 4096; `None` where there is
    /// no ring, or no direct I/O if that is asked for.
    fn queue(len: usize, direct: bool) -> Option<(UringQueue, tempfile::TempDir)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let content: Vec<u8> = (0..len).map(|at| (at / 4096) as u8).collect();
        std::fs::write(&path, content).unwrap();
        let options = OpenOptions { direct, ..OpenOptions::default() };
        let files = FileBackend::open(&path, options).unwrap().files.clone();
        if available().is_err() || direct && files.direct.is_none() {
            println!("not checked: no ring, or no direct I/O in {}", dir.path().display());
            return None;
        }
        let flusher = Flusher::new(&files).unwrap();
        Some((UringQueue::new(files, flusher, DEPTH).unwrap(), dir))
    }

    fn drain(queue: &mut UringQueue, count: usize) -> Vec<Done> {
        let mut done = Vec::new();
        while done.len() < count {
            queue.wait(&mut done).unwrap();
        }
        done
    }

    /// Regression: guests choose the addresses of their data, and each transfer to an odd one mapped memory
    /// of its own: 1 GiB for a ring of 1024.
    #[test]
    fn transfers_to_unaligned_memory_wait_for_each_other_instead_of_taking_more_and_more() {
        const LEN: usize = 1 << 20;
        let Some((mut queue, _dir)) = queue(2 * LEN, true) else { return };
        let pool = Pool::new(64 << 20).unwrap();
        for (round, short) in [(1, LEN), (2, 4096), (3, LEN)] {
            for token in 0..u64::from(DEPTH) {
                let len = if token % 3 == 0 { short } else { LEN };
                let mut buf = pool.alloc(len + 1).unwrap();
                buf.advance(1);
                queue.submit(Io::Read { token, offset: token * 4096, bufs: vec![buf] });
            }
            let bounced: usize = queue
                .slots
                .iter()
                .filter_map(|(_, slot)| slot.bounce.as_ref().map(|bounce| bounce.len))
                .sum();
            assert!((1..=2 * LEN).contains(&bounced), "round {round}: {bounced} bytes at once");
            for done in drain(&mut queue, DEPTH as usize) {
                assert_eq!(done.result, Ok(()), "round {round}");
                let first = done.token as usize;
                let is_right = |(at, &byte): (usize, &u8)| byte == (first + at / 4096) as u8;
                assert!(done.bufs[0].iter().enumerate().all(is_right), "round {round}: {first}");
            }
        }
        // And one that nobody waits for any more.
        for token in 0..4 {
            let mut buf = pool.alloc(LEN + 1).unwrap();
            buf.advance(1);
            queue.submit(Io::Read { token, offset: 0, bufs: vec![buf] });
        }
    }

    /// Regression: every slot kept the longest list that it ever had, 16 KiB, for as long as the queue lived.
    #[test]
    fn the_lists_of_operations_in_many_pieces_are_given_back() {
        let Some((mut queue, _dir)) = queue(1 << 20, false) else { return };
        let pool = Pool::new(256 * 4096).unwrap();
        for _ in 0..2 {
            for token in 0..u64::from(DEPTH) {
                let bufs = (0..256).map(|_| pool.alloc(512).unwrap()).collect();
                queue.submit(Io::Read { token, offset: 0, bufs });
                assert_eq!(drain(&mut queue, 1)[0].result, Ok(()));
            }
            for token in 0..u64::from(DEPTH) {
                queue.submit(Io::Flush { token });
            }
            drain(&mut queue, DEPTH as usize);
        }
        let kept = queue.vectors.iter().map(|list| list.0.capacity()).max();
        assert_eq!(kept, Some(VECTORS));
    }

    #[test]
    fn an_operation_that_is_put_off_for_ever_or_cancelled_by_the_kernel_needs_no_ring() {
        let [again, cancelled] = [Errno::AGAIN, Errno::CANCELED].map(|error| -error.raw_os_error());
        let io = Io::Flush { token: 1 };
        let mut slot = Slot { io, bounce: None, done: 0, flushing: None, put_off: 0 };
        assert!(matches!(slot.advance(cancelled), Progress::Refused));
        let continues = (0..100).take_while(|_| matches!(slot.advance(again), Progress::Continue));
        assert_eq!(continues.count() as u32, PUT_OFF_MAX);
        assert!(matches!(slot.advance(again), Progress::Refused));
    }
}
