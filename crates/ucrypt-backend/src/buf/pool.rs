//! A fixed amount of page-aligned memory, and the owners of its parts.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::runs::Runs;
use super::{Buf, PAGE};

/// A fixed amount of buffer memory. Clones share the memory.
#[derive(Clone)]
pub struct Pool(Arc<Region>);

/// The mapping of a pool.
pub(super) struct Region {
    base: NonNull<u8>,
    len: usize,
    /// Per page: the number of `Buf`s of the allocation that starts there.
    refs: Box<[AtomicU32]>,
    runs: Mutex<Runs>,
}

// SAFETY: `base` is only dereferenced through `Buf`s, whose ranges are disjoint; the rest is Sync.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no `Buf` is left, because every `Buf` keeps the region
        // alive.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

impl Region {
    /// Counts one more `Buf` of the allocation that starts at page `first`.
    pub(super) fn share(&self, first: u32) {
        self.refs[first as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one `Buf` fewer of the allocation of `pages` pages; the last one frees the pages.
    pub(super) fn let_go(&self, first: u32, pages: u32) {
        let refs = &self.refs[first as usize];
        // Release: what this part wrote must be visible to the next owner of the pages (through the
        // lock). The last part needs no read-modify-write to know that it is the last: only an
        // existing part can make another.
        if refs.load(Ordering::Acquire) == 1 || refs.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
            runs.give_back(first, pages);
        }
    }
}

impl Pool {
    /// Reserves `bytes`, rounded up to whole pages. Untouched pages use only address space.
    pub fn new(bytes: usize) -> io::Result<Self> {
        Self::with(bytes, Runs::new)
    }

    /// A buffer of `len` bytes with memory of its own, which is unmapped with the buffer.
    pub fn single(len: usize) -> io::Result<Buf> {
        let Self(region) = Self::with(len, |_| Runs::new(0))?;
        region.refs[0].store(1, Ordering::Relaxed);
        let (start, pages) = (region.base, region.refs.len() as u32);
        Ok(Buf { start, len, memory: region, pages, first: 0 })
    }

    /// A mapping of `bytes`, rounded up to whole pages. `free` makes its free runs from its number of
    /// pages.
    fn with(bytes: usize, free: impl FnOnce(u32) -> Runs) -> io::Result<Self> {
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
        // Plaintext passes through: keep it out of core dumps. This is advice, so errors are
        // ignored.
        // SAFETY: the range is the mapping just made.
        let _ = unsafe { madvise(base, len, Advice::LinuxDontDump) };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self(Arc::new(Region {
            base,
            len,
            refs: (0..pages).map(|_| AtomicU32::new(0)).collect(),
            runs: Mutex::new(free(pages)),
        })))
    }

    /// Allocates `len` bytes, page-aligned; `None` if no run of free pages is long enough. The
    /// content is what the last owner left (zeroes at first).
    pub fn alloc(&self, len: usize) -> Option<Buf> {
        let pages = u32::try_from(len.div_ceil(PAGE).max(1)).ok()?;
        let first = self.0.runs.lock().unwrap_or_else(PoisonError::into_inner).take(pages)?;
        self.0.refs[first as usize].store(1, Ordering::Relaxed);
        // SAFETY: page `first` lies in the mapping.
        let start = unsafe { self.0.base.add(first as usize * PAGE) };
        Some(Buf { start, len, memory: self.0.clone(), pages, first })
    }

    /// The pool's address, and its length in bytes.
    pub(crate) fn span(&self) -> (*mut u8, usize) {
        (self.0.base.as_ptr(), self.0.len)
    }

    /// The pool's size in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a pool is never empty")]
    pub fn len(&self) -> usize {
        self.0.len
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("len", &self.0.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_never_overlap_and_all_memory_comes_back() {
        let pool = Pool::new(100 * PAGE).unwrap();
        let mut random = fastrand::Rng::with_seed(1);
        let mut held: Vec<(Buf, u8)> = Vec::new();
        for round in 0..20_000u32 {
            if random.bool() {
                let len = random.usize(..20 * PAGE);
                if let Some(mut buf) = pool.alloc(len) {
                    assert_eq!(buf.as_ptr() as usize % PAGE, 0);
                    assert_eq!(buf.len(), len);
                    buf.fill(round as u8);
                    held.push((buf, round as u8));
                }
            } else if !held.is_empty() {
                let index = random.usize(..held.len());
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
    fn a_single_buffer_takes_what_it_needs_and_its_parts_keep_it_mapped() {
        let mut all = Pool::single(9 * PAGE + 1).unwrap();
        assert_eq!(all.len(), 9 * PAGE + 1);
        all.fill(3);
        let rest = all.split_off(PAGE);
        drop(all);
        assert!(rest.iter().all(|&byte| byte == 3));
    }

    #[test]
    fn an_allocation_takes_only_the_pages_it_needs() {
        let pool = Pool::new(16 * PAGE).unwrap();
        let nine = pool.alloc(9 * PAGE).unwrap();
        let four = pool.alloc(4 * PAGE).unwrap();
        assert_eq!((nine.len(), four.len()), (9 * PAGE, 4 * PAGE));
        assert!(pool.alloc(4 * PAGE).is_none());
    }
}
