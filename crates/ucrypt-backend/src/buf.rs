//! Buffers that can be handed to the kernel, owned by value: page-aligned pieces of one mapping,
//! or somebody else's memory.
//!
//! A [`Pool`] is a mapping taken at start; a [`Buf`] is exclusive access to a run of its pages,
//! freed when dropped. A buffer can be split so that its parts travel separately (each part is as
//! exclusive as the whole), and joined again.
//!
//! Who owns what: the pages of an allocation belong to its `Buf`s, whose ranges never overlap; the
//! allocation's reference count is the number of them, and the last one to go gives the pages
//! back. Only `Pool::alloc`, `Buf::split_off` and `Buf::join` make or change ranges.
//!
//! **Foreign memory** ([`Buf::foreign`]) is shared with another process, a virtual machine for
//! example, which may read and write it at any time. A `Buf` keeps the mapping alive and knows its
//! bounds; it cannot make the bytes hold still. So they are data and nothing else: they are
//! copied, encrypted, decrypted and transferred, but no length, index or decision is ever taken
//! from them. What another process writes in between spoils its own data.

#![expect(unsafe_code, reason = "the mapping is shared by pointer; see the ownership rule above")]

use std::any::Any;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Alignment and granularity of buffers, in bytes.
pub const PAGE: usize = 4096;

/// A fixed amount of buffer memory. Clones share it.
#[derive(Clone)]
pub struct Pool(Arc<Region>);

struct Region {
    base: NonNull<u8>,
    len: usize,
    /// Per page: how many `Buf`s the allocation has that starts there.
    refs: Box<[AtomicU32]>,
    runs: Mutex<Runs>,
}

// SAFETY: `base` is only dereferenced through `Buf`s, whose ranges are disjoint; the rest is Sync.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and every `Buf` holds the region alive, so none is left.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

impl Pool {
    /// Reserves `bytes` (rounded up to whole pages). Untouched pages cost address space only.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let len = bytes.max(PAGE).next_multiple_of(PAGE);
        let pages = u32::try_from(len / PAGE)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the pool is too large"))?;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        // Plaintext passes through: keep it out of core dumps. Advice only, so not an error.
        // SAFETY: the range is the mapping just made.
        let _ = unsafe { madvise(base, len, Advice::LinuxDontDump) };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self(Arc::new(Region {
            base,
            len,
            refs: (0..pages).map(|_| AtomicU32::new(0)).collect(),
            runs: Mutex::new(Runs::new(pages)),
        })))
    }

    /// Takes `len` bytes, page-aligned; `None` when no run of free pages is long enough. The
    /// content is what the last owner left (zeroes at first).
    pub fn alloc(&self, len: usize) -> Option<Buf> {
        let pages = u32::try_from(len.div_ceil(PAGE).max(1)).ok()?;
        let first = self.0.runs.lock().unwrap_or_else(PoisonError::into_inner).take(pages)?;
        self.0.refs[first as usize].store(1, Ordering::Relaxed);
        // SAFETY: page `first` lies in the mapping.
        let start = unsafe { self.0.base.add(first as usize * PAGE) };
        Some(Buf { start, len, memory: self.0.clone(), pages, first })
    }

    /// Where it lies, and its length in bytes.
    pub(crate) fn span(&self) -> (*mut u8, usize) {
        (self.0.base.as_ptr(), self.0.len)
    }

    /// Whether an allocation of `len` bytes can ever succeed.
    pub fn could_hold(&self, len: usize) -> bool {
        // Runs are aligned powers of two before their surplus is given back.
        len.div_ceil(PAGE).next_power_of_two() <= 1 << (self.0.len / PAGE).ilog2()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("len", &self.0.len).finish_non_exhaustive()
    }
}

/// Bytes of a [`Pool`], exclusive, or of foreign memory.
// Five words and no enum: a request's buffer is moved often, and what is moved as words stays in
// registers.
pub struct Buf {
    start: NonNull<u8>,
    len: usize,
    /// Keeps the bytes where they are: a pool's `Region`, or whatever foreign memory comes with.
    memory: Arc<dyn Any + Send + Sync>,
    /// Pages of the pool's allocation (not of this part); 0: the memory is foreign, and only then is
    /// `memory` no `Region`.
    pages: u32,
    /// Of a pool's: the first page of the allocation. Of foreign memory: [`WIPE`], or 0.
    first: u32,
}

/// See [`Buf::wipe_when_dropped`].
const WIPE: u32 = 1;

// SAFETY: a pool's bytes are exclusive to their `Buf`, so they may go where it goes; foreign bytes
// are accessible from every thread (the contract of `Buf::foreign`).
unsafe impl Send for Buf {}
// SAFETY: through a shared reference the bytes are only read.
unsafe impl Sync for Buf {}

impl Buf {
    /// Bytes that belong to somebody else. `memory` is what keeps them mapped.
    ///
    /// # Safety
    /// - While `memory` or a clone of it lives, the `len` bytes from `start` are mapped, readable
    ///   and writable from every thread of this process.
    /// - No code of this process has a Rust reference into them except through `Buf`s, or accesses
    ///   them other than volatile or atomically.
    /// - Whoever gets the `Buf` uses the bytes as data only (see the module) and never passes two
    ///   slices of foreign memory, one of them mutable, to one function: they may overlap, because
    ///   nothing keeps the other process from naming the same bytes twice.
    pub unsafe fn foreign(
        memory: Arc<dyn Any + Send + Sync>,
        start: NonNull<u8>,
        len: usize,
    ) -> Self {
        Self { start, len, memory, pages: 0, first: 0 }
    }

    /// Whether dropping the buffer fills it with zeroes first; only foreign memory is. For what
    /// its owner must not see unless all goes well, e.g. ciphertext that is still to be decrypted.
    /// Parts that are split off inherit it; what is cut by `truncate` or `advance` stays as it is.
    pub fn wipe_when_dropped(&mut self, yes: bool) {
        if self.is_foreign() {
            self.first = if yes { WIPE } else { 0 };
        }
    }

    /// Cuts the buffer at `at` bytes: `self` keeps what is before, the rest is returned.
    ///
    /// # Panics
    /// If `at` is larger than the length.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.len, "split beyond the end");
        if let Some(region) = self.region() {
            region.refs[self.first as usize].fetch_add(1, Ordering::Relaxed);
        }
        let rest = Self {
            start: self.behind(at),
            len: self.len - at,
            memory: self.memory.clone(),
            pages: self.pages,
            first: self.first,
        };
        self.len = at;
        rest
    }

    /// Undoes [`Buf::split_off`].
    ///
    /// # Errors
    /// Gives `rest` back if it is not what follows `self`.
    pub fn join(&mut self, mut rest: Self) -> Result<(), Self> {
        let same = Arc::ptr_eq(&self.memory, &rest.memory)
            && (self.pages, self.first) == (rest.pages, rest.first);
        if !same || self.behind(self.len) != rest.start {
            return Err(rest);
        }
        // `rest` is dropped: one reference fewer, and its range is ours.
        self.len += rest.len;
        rest.len = 0;
        Ok(())
    }

    /// Keeps the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Drops the first `count` bytes.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.len, "advance beyond the end");
        self.start = self.behind(count);
        self.len -= count;
    }

    fn is_foreign(&self) -> bool {
        self.pages == 0
    }

    /// The pool that the bytes are of; `None` if they are foreign.
    #[expect(clippy::cast_ptr_alignment, reason = "it was a pointer to a `Region` before")]
    fn region(&self) -> Option<&Region> {
        // SAFETY: only `Pool::alloc` makes a `Buf` with pages, out of an `Arc<Region>`, and nothing
        // changes either field.
        (!self.is_foreign()).then(|| unsafe { &*Arc::as_ptr(&self.memory).cast::<Region>() })
    }

    /// The address `count` bytes behind the start; at most the length.
    fn behind(&self, count: usize) -> NonNull<u8> {
        debug_assert!(count <= self.len);
        // SAFETY: it stays within the mapping, or right behind its end.
        unsafe { self.start.add(count) }
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: a pool's range lies in the mapping, is initialised (anonymous memory), and is
        // ours alone while this `Buf` lives; the kernel writes to it only while a queue owns the
        // `Buf`. A foreign range is mapped while `owner` lives and holds whatever bytes it holds;
        // that they may change meanwhile is what the contract of `foreign` provides for: the code
        // that gets the slice moves bytes and draws no conclusion from any of them.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes it exclusive, for foreign memory among those
        // who ask here: one function never gets two such slices.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        let Some(region) = self.region() else {
            if self.first == WIPE {
                self.fill(0);
            }
            return;
        };
        let refs = &region.refs[self.first as usize];
        // Release what this part wrote to whoever takes the pages next (through the lock). Who has
        // the last part needs no read-modify-write to know: only a part could make another.
        if refs.load(Ordering::Acquire) == 1 || refs.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut runs = region.runs.lock().unwrap_or_else(PoisonError::into_inner);
            runs.give_back(self.first, self.pages);
        }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_foreign() { "foreign " } else { "" };
        write!(f, "Buf({kind}{:p} + {})", self.start, self.len)
    }
}

/// Free runs of pages: a buddy allocator whose surplus pages go back at once, so that an
/// allocation takes just what it needs. What came back last goes out first, in one piece: that is
/// what the caches still have, and it saves splitting and merging.
struct Runs {
    /// First page and number of pages of runs that came back, the last one last.
    recent: Vec<(u32, u32)>,
    /// Heads of the free lists by order (runs of `1 << order` pages).
    heads: [u32; ORDERS],
    /// Per page: links of the free list, valid for the first page of a free run.
    next: Box<[u32]>,
    prev: Box<[u32]>,
    /// Per page: order of the free run that starts here, or `TAKEN`.
    order: Box<[u8]>,
}

/// Runs that are kept in one piece.
const RECENT_MAX: usize = 64;
/// Runs of up to 2^18 pages: 1 GiB.
const ORDERS: usize = 19;
const NONE: u32 = u32::MAX;
const TAKEN: u8 = u8::MAX;

impl Runs {
    fn new(pages: u32) -> Self {
        let table = || vec![NONE; pages as usize].into_boxed_slice();
        let mut runs = Self {
            recent: Vec::with_capacity(RECENT_MAX),
            heads: [NONE; ORDERS],
            next: table(),
            prev: table(),
            order: vec![TAKEN; pages as usize].into_boxed_slice(),
        };
        runs.give(0, pages);
        runs
    }

    fn take(&mut self, pages: u32) -> Option<u32> {
        if let Some(at) = self.recent.iter().rposition(|&(_, count)| count == pages) {
            return Some(self.recent.remove(at).0);
        }
        self.take_new(pages).or_else(|| {
            self.merge_recent();
            self.take_new(pages)
        })
    }

    /// Frees a run that was taken.
    fn give_back(&mut self, first: u32, pages: u32) {
        if self.recent.len() == RECENT_MAX {
            // They may be of lengths that nobody asks for any more.
            self.merge_recent();
        }
        self.recent.push((first, pages));
    }

    fn merge_recent(&mut self) {
        while let Some((first, pages)) = self.recent.pop() {
            self.give(first, pages);
        }
    }

    fn take_new(&mut self, pages: u32) -> Option<u32> {
        let wanted = pages.next_power_of_two().trailing_zeros() as usize;
        let found = (wanted..ORDERS).find(|&order| self.heads[order] != NONE)?;
        let first = self.heads[found];
        self.unlink(first, found);
        self.give(first + pages, (1u32 << found) - pages);
        Some(first)
    }

    /// Frees `pages` pages from `first` as runs of aligned powers of two, merged with neighbours.
    fn give(&mut self, mut first: u32, mut pages: u32) {
        while pages > 0 {
            let aligned = if first == 0 { ORDERS - 1 } else { first.trailing_zeros() as usize };
            let order = aligned.min(pages.ilog2() as usize).min(ORDERS - 1);
            self.free_run(first, order);
            first += 1 << order;
            pages -= 1 << order;
        }
    }

    fn free_run(&mut self, mut first: u32, mut order: usize) {
        while order + 1 < ORDERS {
            let buddy = first ^ (1 << order);
            if self.order.get(buddy as usize).copied() != Some(order as u8) {
                break;
            }
            self.unlink(buddy, order);
            first &= !(1 << order);
            order += 1;
        }
        let head = self.heads[order];
        if head != NONE {
            self.prev[head as usize] = first;
        }
        self.next[first as usize] = head;
        self.prev[first as usize] = NONE;
        self.order[first as usize] = order as u8;
        self.heads[order] = first;
    }

    fn unlink(&mut self, first: u32, order: usize) {
        let (next, prev) = (self.next[first as usize], self.prev[first as usize]);
        if prev == NONE {
            self.heads[order] = next;
        } else {
            self.next[prev as usize] = next;
        }
        if next != NONE {
            self.prev[next as usize] = prev;
        }
        self.order[first as usize] = TAKEN;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small generator, so that the run is the same each time.
    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn buffers_never_overlap_and_all_memory_comes_back() {
        let pool = Pool::new(100 * PAGE).unwrap();
        let mut state = 0x9e37_79b9_7f4a_7c15;
        let mut held: Vec<(Buf, u8)> = Vec::new();
        for round in 0..20_000u32 {
            if random(&mut state).is_multiple_of(2) {
                let len = (random(&mut state) % (20 * PAGE as u64)) as usize;
                if let Some(mut buf) = pool.alloc(len) {
                    assert_eq!(buf.as_ptr() as usize % PAGE, 0);
                    assert_eq!(buf.len(), len);
                    buf.fill(round as u8);
                    held.push((buf, round as u8));
                }
            } else if !held.is_empty() {
                let index = (random(&mut state) % held.len() as u64) as usize;
                let (buf, fill) = held.swap_remove(index);
                assert!(buf.iter().all(|&byte| byte == fill), "another buffer wrote here");
            }
        }
        held.clear();
        assert!(pool.alloc(100 * PAGE).is_none(), "100 pages are no single aligned run");
        let whole = pool.alloc(64 * PAGE).expect("the largest run is whole again");
        assert!(pool.alloc(32 * PAGE).is_some(), "and the next");
        drop(whole);
    }

    #[test]
    fn an_allocation_takes_only_the_pages_it_needs() {
        let pool = Pool::new(16 * PAGE).unwrap();
        let nine = pool.alloc(9 * PAGE).unwrap();
        let four = pool.alloc(4 * PAGE).unwrap();
        assert_eq!((nine.len(), four.len()), (9 * PAGE, 4 * PAGE));
        assert!(pool.alloc(4 * PAGE).is_none());
    }

    #[test]
    fn parts_of_a_split_buffer_free_it_together_and_join_in_order() {
        let pool = Pool::new(2 * PAGE).unwrap();
        let mut head = pool.alloc(2 * PAGE).unwrap();
        let mut tail = head.split_off(PAGE);
        let last = tail.split_off(100);
        head.fill(1);
        assert!(pool.alloc(1).is_none());
        let last = head.join(last).expect_err("not adjacent");
        head.join(tail).unwrap();
        head.join(last).unwrap();
        assert_eq!(head.len(), 2 * PAGE);
        drop(head);
        assert!(pool.alloc(2 * PAGE).is_some());
    }
    /// Memory of "another process": a heap block that its `Buf`s keep alive.
    struct Block(NonNull<u8>, usize);

    // SAFETY: a plain allocation, accessed through `Buf`s and volatile reads.
    unsafe impl Send for Block {}
    // SAFETY: as above.
    unsafe impl Sync for Block {}

    impl Block {
        fn new(len: usize) -> Arc<Self> {
            let bytes: Box<[u8]> = vec![7; len].into();
            Arc::new(Self(NonNull::new(Box::into_raw(bytes).cast::<u8>()).unwrap(), len))
        }

        fn buf(self: &Arc<Self>, at: usize, len: usize) -> Buf {
            assert!(at + len <= self.1);
            // SAFETY: within the block, which the owner keeps.
            unsafe { Buf::foreign(self.clone(), self.0.add(at), len) }
        }

        fn bytes(&self) -> Vec<u8> {
            // SAFETY: within the block.
            (0..self.1).map(|at| unsafe { self.0.add(at).read_volatile() }).collect()
        }
    }

    impl Drop for Block {
        fn drop(&mut self) {
            let bytes = std::ptr::slice_from_raw_parts_mut(self.0.as_ptr(), self.1);
            // SAFETY: made by `Box::into_raw` of a slice of this length.
            drop(unsafe { Box::from_raw(bytes) });
        }
    }

    #[test]
    fn foreign_memory_lives_as_long_as_its_buffers_and_is_split_and_joined_like_a_pools() {
        let block = Block::new(100);
        let weak = Arc::downgrade(&block);
        let mut head = block.buf(10, 80);
        drop(block);
        let mut tail = head.split_off(30);
        head.fill(1);
        tail.fill(2);
        tail.advance(10);
        let tail = head.join(tail).expect_err("ten bytes are missing between them");
        assert_eq!((head.len(), tail.len()), (30, 40));
        let pool = Pool::new(PAGE).unwrap();
        assert!(head.join(pool.alloc(1).unwrap()).is_err());
        let bytes = weak.upgrade().expect("alive").bytes();
        assert_eq!((bytes[9], bytes[10], bytes[39], bytes[40], bytes[90]), (7, 1, 1, 2, 7));
        drop((head, tail));
        assert!(weak.upgrade().is_none(), "the last buffer lets the memory go");
    }

    #[test]
    fn foreign_memory_is_wiped_when_told_and_only_where_it_still_counts() {
        let block = Block::new(40);
        let mut buf = block.buf(0, 30);
        buf.wipe_when_dropped(true);
        let mut rest = buf.split_off(10);
        rest.wipe_when_dropped(false);
        let mut last = rest.split_off(10);
        last.wipe_when_dropped(true);
        drop((buf, rest));
        assert_eq!(block.bytes()[..20], [[0; 10], [7; 10]].concat());
        let mut joined = block.buf(10, 10);
        joined.wipe_when_dropped(true);
        joined.join(last).expect("adjacent");
        assert_eq!(block.bytes()[20..], [7; 20], "nothing is wiped by joining");
        drop(joined);
        assert_eq!(block.bytes(), [[0; 30].as_slice(), &[7; 10]].concat());
    }
}
