//! Buffers that can be handed to the kernel, owned by value: page-aligned parts of one mapping, or
//! foreign memory.
//!
//! A [`Pool`] is a mapping made at start. A [`Buf`] is exclusive access to a run of its pages,
//! which are freed when the `Buf` is dropped. A buffer can be split, so that its parts travel
//! separately (each part is as exclusive as the whole), and joined again.
//!
//! Ownership: the pages of an allocation belong to its `Buf`s, whose ranges never overlap. The
//! allocation's reference count is the number of its `Buf`s; dropping the last one frees the pages.
//! Only `Pool::alloc`, `Pool::single`, `Buf::split_off` and `Buf::join` create or extend ranges of a
//! pool.
//!
//! **Foreign memory** ([`Buf::foreign`]) is shared with another process, for example a virtual
//! machine, which may read and write it at any time. A `Buf` keeps the mapping alive and knows its
//! bounds, but cannot keep the bytes from changing. So the bytes are data only: they are copied,
//! encrypted, decrypted and transferred, but no length, index or decision is ever taken from them.
//! A process that changes them meanwhile spoils only its own data.

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

/// Exclusive bytes of a [`Pool`], or foreign memory.
// Five words and no enum: a request's buffer is moved often, and a plain struct of words is moved
// in registers.
pub struct Buf {
    start: NonNull<u8>,
    len: usize,
    /// Keeps the bytes mapped: the `Region` of a pool, or the owner of foreign memory.
    memory: Arc<dyn Any + Send + Sync>,
    /// Pages of the pool's whole allocation (not of this part). 0: the memory is foreign, and only
    /// then `memory` is not a `Region`.
    pages: u32,
    /// In a pool: the first page of the allocation. In foreign memory: [`WIPE`], or 0.
    first: u32,
}

/// See [`Buf::wipe_when_dropped`].
const WIPE: u32 = 1;

// SAFETY: a pool's bytes are exclusive to their `Buf`, so they may move to another thread with it;
// foreign bytes are accessible from every thread (the contract of `Buf::foreign`).
unsafe impl Send for Buf {}
// SAFETY: through a shared reference the bytes are only read.
unsafe impl Sync for Buf {}

impl Buf {
    /// Bytes that belong to another owner. `memory` keeps them mapped.
    ///
    /// # Safety
    /// - While `memory` or a clone of it lives, the `len` bytes from `start` are mapped, readable
    ///   and writable from every thread of this process.
    /// - No code of this process has a Rust reference into them except through `Buf`s, or accesses
    ///   them in any other way than volatile or atomic.
    /// - Users of the `Buf` treat the bytes as data only (see the module), and never pass two
    ///   slices of foreign memory, one of them mutable, to one function: they may overlap, because
    ///   nothing keeps the other process from naming the same bytes twice.
    pub unsafe fn foreign(
        memory: Arc<dyn Any + Send + Sync>,
        start: NonNull<u8>,
        len: usize,
    ) -> Self {
        Self { start, len, memory, pages: 0, first: 0 }
    }

    /// Sets whether dropping the buffer fills it with zeroes. Only foreign memory is filled. For
    /// bytes that the memory's owner must not see unless all goes well, e.g. ciphertext that is yet
    /// to be decrypted. Parts that are split off inherit the setting; bytes cut off by `truncate`
    /// or `advance` are not filled.
    pub fn wipe_when_dropped(&mut self, yes: bool) {
        if self.is_foreign() {
            self.first = if yes { WIPE } else { 0 };
        }
    }

    /// Splits the buffer at `at` bytes: `self` keeps the bytes before, the rest is returned.
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

    /// Joins a part that [`Buf::split_off`] returned to `self` again.
    ///
    /// # Errors
    /// Gives `rest` back if it does not directly follow `self`.
    pub fn join(&mut self, mut rest: Self) -> Result<(), Self> {
        let same = Arc::ptr_eq(&self.memory, &rest.memory)
            && (self.pages, self.first) == (rest.pages, rest.first);
        if !same || self.behind(self.len) != rest.start {
            return Err(rest);
        }
        // Dropping `rest` drops one reference; its range is now part of `self`.
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
    /// If the buffer is shorter.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.len, "advance beyond the end");
        self.start = self.behind(count);
        self.len -= count;
    }

    fn is_foreign(&self) -> bool {
        self.pages == 0
    }

    /// The pool's region; `None` if the memory is foreign.
    #[expect(clippy::cast_ptr_alignment, reason = "it was a pointer to a `Region` before")]
    fn region(&self) -> Option<&Region> {
        // SAFETY: only `Pool::alloc` and `Pool::single` make a `Buf` with pages, from an `Arc<Region>`, and nothing
        // changes either field.
        (!self.is_foreign()).then(|| unsafe { &*Arc::as_ptr(&self.memory).cast::<Region>() })
    }

    /// The address `count` bytes behind the start; `count` is at most the length.
    fn behind(&self, count: usize) -> NonNull<u8> {
        debug_assert!(count <= self.len);
        // SAFETY: the address is within the mapping, or right behind its end.
        unsafe { self.start.add(count) }
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: a pool's range lies in the mapping, is initialised (anonymous memory), and is
        // exclusive to this `Buf` while it lives; the kernel writes to it only while a queue owns
        // the `Buf`. A foreign range is mapped while `memory` lives and holds arbitrary bytes. They
        // may change meanwhile, which the contract of `foreign` provides for: the code that gets
        // the slice moves bytes and takes no decision from them.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes the access exclusive. For foreign memory it is
        // exclusive among the users of `Buf`s: one function never gets two such slices.
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
