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
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

mod pool;
mod runs;

pub use pool::Pool;
use pool::Region;

/// Alignment and granularity of buffers, in bytes.
pub const PAGE: usize = 4096;

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
            region.share(self.first);
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
        region.let_go(self.first, self.pages);
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_foreign() { "foreign " } else { "" };
        write!(f, "Buf({kind}{:p} + {})", self.start, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
