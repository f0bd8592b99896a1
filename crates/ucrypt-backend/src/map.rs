//! A backend's bytes in place: data in memory can be decrypted from there and encrypted to there
//! without a copy.
//!
//! Contract:
//!
//! - [`Map::at_hand`] says whether a range can be used in place without waiting for a disk and
//!   without allocating memory for a hole. It is a hint: the answer may be outdated at once.
//! - [`Map::read`] and [`Map::write`] lend the bytes, piece by piece. Among the users of one
//!   mapping, the writer of a piece has exclusive access to it. Other processes, and the kernel on
//!   behalf of this one (pwrite), may write to it meanwhile. So the bytes are data only: they are
//!   decrypted or copied, but no length, index or decision is ever taken from them. A concurrent
//!   write spoils that read only, as it would with pread.
//! - **A process that is killed** leaves a piece half written, down to parts of a sector; a write
//!   by the kernel does not. So only data whose 16-byte units are independent of each other may be
//!   written in place.
//! - **A file that is cut off** while it is mapped leaves zeroes behind its new end, and a mark
//!   ([`Watch`]). A user who read such a zero, or wrote there, finds the mark afterwards and gets
//!   `None`. A broken mapping is not used again: all operations go to the file, which knows its
//!   end. The same happens if there is no memory for a hole.
//!
//! Only files in memory (tmpfs) are mapped: data in the page cache of a disk is read no faster this
//! way (`docs/reports/2026-11-21-engine.md`), and may be evicted at any time. The kernel tells which
//! pages are not holes (mincore), which takes a microsecond; the answer is cached by blocks of
//! 64 KiB, and only punching a hole changes it (`Mapping::forget`). Swapped-out pages come back by
//! themselves. A write by the kernel takes the file's lock, so that only one core can write at a
//! time, and a lock for each page; a write in place takes neither.

#![expect(unsafe_code, reason = "a mapping is reached by address")]

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munlock, munmap};

use crate::file::{Cut, read_full};
use crate::stream::prefetch;
use crate::{Access, Errno, Watch};

/// Size of a block, in bytes: the unit whose presence is cached, and the longest piece lent.
const BLOCK_BYTES: usize = 64 << 10;
const PAGE_BYTES_MIN: usize = 4096;

/// Number of block locks: blocks this many blocks apart share a lock.
const LOCKS: usize = 1024;

/// Uses lent bytes, piece by piece: the piece's place in the range, and its bytes.
pub type UseBytes<'a> = &'a mut dyn FnMut(Range<usize>, &[u8]) -> Result<(), Errno>;

/// Overwrites lent bytes, piece by piece.
pub type PutBytes<'a> = &'a mut dyn FnMut(Range<usize>, &mut [u8]) -> Result<(), Errno>;

/// A backend's bytes in place; see the module's contract. Offsets and lengths are bytes.
pub trait Map: std::fmt::Debug + Send + Sync {
    /// Whether [`Map::write`] is allowed.
    fn is_writable(&self) -> bool;

    /// Whether using the range in place ([`Map::read`], [`Map::write`]) is worth it now.
    fn at_hand(&self, offset: u64, len: usize) -> bool;

    /// Lends the range to `use_`, in pieces with their places in the range; `None` if the bytes
    /// seen may not be the file's. Allocates memory for pages that are not [at hand](Map::at_hand).
    ///
    /// # Errors
    /// The first error of `use_`, which ends the read.
    fn read(&self, offset: u64, len: usize, use_: UseBytes<'_>) -> Option<Result<(), Errno>>;

    /// Lends the range to `put` to be overwritten, in pieces with their places in the range; `None`
    /// if the range may not be the file's, or the mapping is read-only. Allocates memory for pages
    /// that are not [at hand](Map::at_hand).
    ///
    /// # Errors
    /// The first error of `put`, which ends the write.
    fn write(&self, offset: u64, len: usize, put: PutBytes<'_>) -> Option<Result<(), Errno>>;

    /// Reads the range from the file, waiting for it.
    ///
    /// # Errors
    /// `EIO` behind the end of the file, and the system's errors.
    fn read_exact(&self, offset: u64, buf: &mut [u8]) -> Result<(), Errno>;
}

/// A mapping of a file in memory, or of zeroes.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    what: What,
}

#[derive(Debug)]
enum What {
    /// Zeroes, at any offset.
    Zeroes,
    File {
        fd: OwnedFd,
        watch: Watch,
        /// By block: known not to be a hole.
        present: Box<[AtomicU64]>,
        access: Access,
        cut: Arc<Cut>,
        /// Locks of the blocks, shared as described at [`LOCKS`].
        locks: Box<[RwLock<()>]>,
    },
}

// SAFETY: the memory is reached only through `read` and `write`, which give a writing thread
// exclusive access to its piece.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroes, for reads of at most `len` bytes.
    pub(crate) fn zeroes(len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice. It is never written, so all
        // its pages are the kernel's one page of zeroes.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE)?
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len, what: What::Zeroes })
    }

    /// The first `len` bytes of a file in memory.
    pub(crate) fn file(
        fd: BorrowedFd<'_>,
        len: u64,
        access: Access,
        cut: Arc<Cut>,
    ) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let fd = fd.try_clone_to_owned()?;
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base =
            unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, &fd, 0)? };
        // If the process locks its memory (secrets), ciphertext need not stay resident. Best
        // effort.
        // SAFETY: the range is the mapping just made.
        let _ = unsafe { munlock(base, len) };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the mapping just made, of a file in memory, used only through `Map::read` and
        // `Map::write`. `Drop` ends the watch before the mapping.
        let watch = unsafe { Watch::new(base, len, rustix::param::page_size(), access) };
        let Some(watch) = watch else {
            // SAFETY: the mapping just made, which is not used yet.
            let _ = unsafe { munmap(base.as_ptr().cast(), len) };
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let words = len.div_ceil(BLOCK_BYTES).div_ceil(64);
        let present = (0..words).map(|_| AtomicU64::new(0)).collect();
        let locks = len.div_ceil(BLOCK_BYTES).min(LOCKS);
        let locks = (0..locks).map(|_| RwLock::new(())).collect();
        Ok(Self { base, len, what: What::File { fd, watch, present, access, cut, locks } })
    }

    /// Forgets the presence of a range that has become a hole.
    pub(crate) fn forget(&self, offset: u64, len: u64) {
        let What::File { present, .. } = &self.what else { return };
        let end = offset.saturating_add(len).min(self.len as u64);
        let blocks = offset / BLOCK_BYTES as u64..end.div_ceil(BLOCK_BYTES as u64);
        for block in blocks {
            let block = block as usize;
            present[block / 64].fetch_and(!(1 << (block % 64)), Ordering::Relaxed);
        }
    }

    /// Splits a range into pieces of at most a block; `None` if it reaches beyond the end.
    fn pieces(&self, offset: u64, len: usize) -> Option<impl Iterator<Item = Piece> + use<>> {
        let start = self.place(offset, len)?;
        let pieces = (0..len).step_by(BLOCK_BYTES);
        Some(
            pieces.map(move |at| Piece { start: start + at, place: at..len.min(at + BLOCK_BYTES) }),
        )
    }

    /// The range's place in the mapping; `None` if it reaches beyond the end, or is cut off.
    fn place(&self, offset: u64, len: usize) -> Option<usize> {
        if let What::File { cut, .. } = &self.what {
            cut.check(offset.checked_add(len as u64)?).ok()?;
        }
        let offset = usize::try_from(offset).ok()?;
        (offset.checked_add(len)? <= self.len).then_some(offset)
    }

    /// Enters resident pages into this process's page tables, all at once. Entering them one by
    /// one, when they are touched, takes several times as long, and would be measured as a slow
    /// cipher.
    fn populate(&self, offset: usize, len: usize, access: Access) {
        let advice = match access {
            Access::Read => Advice::LinuxPopulateRead,
            Access::ReadWrite => Advice::LinuxPopulateWrite,
        };
        // Kernels before 5.14 refuse this advice.
        // SAFETY: the range lies in the mapping; its bytes stay what they are.
        let _ = unsafe { madvise(self.base.as_ptr().add(offset).cast(), len, advice) };
    }

    /// Whether all pages of a block are in memory, according to the kernel.
    fn is_resident(&self, offset: usize, len: usize) -> bool {
        let mut pages = [0; BLOCK_BYTES / PAGE_BYTES_MIN];
        let start = offset / PAGE_BYTES_MIN * PAGE_BYTES_MIN;
        let count = (offset + len).div_ceil(PAGE_BYTES_MIN) - start / PAGE_BYTES_MIN;
        let Some(pages) = pages.get_mut(..count) else { return false };
        // SAFETY: the range lies in the mapping; there is a byte for each of its pages, which are
        // no smaller than `PAGE_BYTES_MIN`.
        let asked = unsafe {
            libc::mincore(
                self.base.as_ptr().add(start).cast(),
                offset + len - start,
                pages.as_mut_ptr(),
            )
        };
        // With larger pages there are fewer answers than entries; the remaining zeroes mean "not
        // resident".
        asked == 0 && pages.iter().all(|page| page & 1 != 0)
    }
}

impl Map for Mapping {
    fn is_writable(&self) -> bool {
        matches!(self.what, What::File { access: Access::ReadWrite, .. })
    }

    fn at_hand(&self, offset: u64, len: usize) -> bool {
        let What::File { watch, present, access, .. } = &self.what else { return len <= self.len };
        let Some(offset) = self.place(offset, len) else { return false };
        if watch.is_broken() {
            return false;
        }
        (offset / BLOCK_BYTES..(offset + len).div_ceil(BLOCK_BYTES)).all(|block| {
            let (word, bit) = (&present[block / 64], 1 << (block % 64));
            if word.load(Ordering::Relaxed) & bit != 0 {
                return true;
            }
            let start = block * BLOCK_BYTES;
            let len = BLOCK_BYTES.min(self.len - start);
            let is = self.is_resident(start, len);
            if is {
                self.populate(start, len, *access);
                word.fetch_or(bit, Ordering::Relaxed);
            }
            is
        })
    }

    fn read(&self, offset: u64, len: usize, use_: UseBytes<'_>) -> Option<Result<(), Errno>> {
        let What::File { watch, locks, .. } = &self.what else {
            // SAFETY: the mapping is as long and lives as long as `self`; nobody writes to it.
            let zeroes = unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) };
            return Some(use_(0..len, zeroes.get(..len)?));
        };
        for piece in self.pieces(offset, len)? {
            let (first, second) = piece.locks(locks);
            // Poisoned or not, the locks are held.
            let _held = (first.read(), second.map(RwLock::read));
            // SAFETY: the range lies in the mapping, which lives as long as `self`. A writer
            // through this mapping waits for the lock. Others may change the memory while the slice
            // exists, which the module's contract provides for: the code that gets it moves bytes
            // and draws no conclusion from any of them. Behind the end of a file that was cut off,
            // `Watch` puts memory in its place.
            let bytes = unsafe {
                std::slice::from_raw_parts(self.base.as_ptr().add(piece.start), piece.place.len())
            };
            prefetch(bytes);
            if let Err(error) = use_(piece.place, bytes) {
                return Some(Err(error));
            }
        }
        (!watch.is_broken()).then_some(Ok(()))
    }

    fn write(&self, offset: u64, len: usize, put: PutBytes<'_>) -> Option<Result<(), Errno>> {
        let What::File { watch, cut, locks, access: Access::ReadWrite, .. } = &self.what else {
            return None;
        };
        for piece in self.pieces(offset, len)? {
            let (first, second) = piece.locks(locks);
            let _held = (first.write(), second.map(RwLock::write));
            // SAFETY: as in `read`; the locks exclude all other users of this mapping.
            let bytes = unsafe {
                let start = self.base.as_ptr().add(piece.start);
                std::slice::from_raw_parts_mut(start, piece.place.len())
            };
            if let Err(error) = put(piece.place, bytes) {
                return Some(Err(error));
            }
        }
        cut.note_write(offset + len as u64);
        (!watch.is_broken()).then_some(Ok(()))
    }

    fn read_exact(&self, offset: u64, buf: &mut [u8]) -> Result<(), Errno> {
        match &self.what {
            What::Zeroes => {
                buf.fill(0);
                Ok(())
            }
            What::File { fd, cut, .. } => {
                cut.check(offset.saturating_add(buf.len() as u64))?;
                read_full(fd.as_fd(), buf, offset)
            }
        }
    }
}

/// A piece to lend.
struct Piece {
    /// Its start in the mapping.
    start: usize,
    /// Its place in the requested range.
    place: Range<usize>,
}

impl Piece {
    /// The locks of the blocks that the piece touches, in the order in which all users take them.
    fn locks<'a>(&self, locks: &'a [RwLock<()>]) -> (&'a RwLock<()>, Option<&'a RwLock<()>>) {
        let last = self.start + self.place.len() - 1;
        let [one, other] = [self.start, last].map(|at| at / BLOCK_BYTES % locks.len());
        (&locks[one.min(other)], (one != other).then(|| &locks[one.max(other)]))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The watch ends first.
        self.what = What::Zeroes;
        // SAFETY: the mapping belongs to `self`, and nothing borrows from it any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy_streaming;
    use std::os::unix::fs::FileExt as _;

    const LEN: u64 = 1 << 20;

    /// A file in memory, filled with ones, with a hole as its second half.
    fn file() -> std::fs::File {
        let fd = rustix::fs::memfd_create("mapped", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = std::fs::File::from(fd);
        file.set_len(LEN).unwrap();
        file.write_all_at(&vec![1; 512 << 10], 0).unwrap();
        file
    }

    fn map(file: &std::fs::File, access: Access) -> Mapping {
        Mapping::file(file.as_fd(), LEN, access, Arc::new(Cut::new(true))).unwrap()
    }

    fn byte(mapping: &Mapping, offset: u64) -> Option<u8> {
        let mut found = None;
        let done = mapping.read(offset, 1, &mut |_, bytes| {
            found = bytes.first().copied();
            Ok(())
        });
        done?.ok().and(found)
    }

    #[test]
    fn what_is_there_is_lent_and_holes_are_left_alone() {
        use std::os::unix::fs::MetadataExt as _;
        let file = file();
        let mapping = map(&file, Access::Read);
        assert!(mapping.at_hand(100, 300_000) && mapping.at_hand(0, 512 << 10));
        assert!(!mapping.at_hand(512 << 10, 1) && !mapping.at_hand((512 << 10) - 1, 2));
        assert!(!mapping.at_hand(LEN - 1, 2) && !mapping.at_hand(u64::MAX, 1));
        assert!(mapping.read(LEN - 1, 2, &mut |_, _| Ok(())).is_none());
        let (mut sum, mut end) = (0, 0);
        let done = mapping.read(4000, 200_000, &mut |place, bytes| {
            assert_eq!((place.start, place.len()), (end, bytes.len()));
            end = place.end;
            sum += bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
            Ok(())
        });
        assert_eq!((done, sum, end), (Some(Ok(())), 200_000, 200_000));
        assert_eq!(file.metadata().unwrap().blocks(), 1024, "no memory was taken for the hole");
        file.write_all_at(&[2], 0).unwrap();
        assert_eq!(byte(&mapping, 0), Some(2));
        mapping.forget(0, 1);
        assert!(mapping.at_hand(0, 10), "it is asked about again");
    }

    #[test]
    fn a_file_that_is_cut_off_ends_in_an_error_for_every_reader() {
        for _ in 0..20 {
            let file = file();
            let mapping = map(&file, Access::Read);
            assert!(mapping.at_hand(0, 512 << 10));
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        // Until the mapping is broken, everything is ones.
                        loop {
                            let mut ones = true;
                            let done = mapping.read(0, 512 << 10, &mut |_, bytes| {
                                ones &= bytes.iter().all(|&byte| byte == 1);
                                Ok(())
                            });
                            if done.is_none() {
                                break;
                            }
                            assert!(ones, "zeroes were taken for the file's");
                        }
                    });
                }
                file.set_len(8192).unwrap();
            });
            assert!(!mapping.at_hand(0, 4096), "a broken mapping is not used again");
            let mut buf = [0; 4096];
            assert_eq!(mapping.read_exact(4096, &mut buf), Ok(()));
            assert_eq!(mapping.read_exact(8192, &mut buf), Err(Errno::IO));
        }
    }

    fn fill(mapping: &Mapping, offset: u64, len: usize, with: u8) -> Option<Result<(), Errno>> {
        let from = vec![with; BLOCK_BYTES];
        mapping.write(offset, len, &mut |_, bytes| {
            copy_streaming(bytes, &from);
            Ok(())
        })
    }

    #[test]
    fn what_is_written_in_place_is_in_the_file_and_nowhere_else() {
        let file = file();
        let mapping = map(&file, Access::ReadWrite);
        assert!(mapping.is_writable());
        assert_eq!(fill(&mapping, 512, 200_000, 7), Some(Ok(())));
        let mut all = vec![0; 512 << 10];
        file.read_exact_at(&mut all, 0).unwrap();
        assert!(all[512..200_512].iter().all(|&byte| byte == 7));
        assert!(all[..512].iter().chain(&all[200_512..]).all(|&byte| byte == 1));
        assert!(fill(&mapping, LEN - 1, 2, 7).is_none(), "beyond the end");
        let failed = mapping.write(0, 200_000, &mut |place, _| {
            if place.start > 0 { Err(Errno::IO) } else { Ok(()) }
        });
        assert_eq!(failed, Some(Err(Errno::IO)));
        let to_read = map(&file, Access::Read);
        assert!(!to_read.is_writable() && fill(&to_read, 0, 512, 7).is_none());
    }

    #[test]
    fn a_piece_is_never_seen_half_written() {
        let file = file();
        let mapping = map(&file, Access::ReadWrite);
        // The pieces span two blocks each.
        let (offset, len) = (4096 + 512, 200_000);
        fill(&mapping, offset, len, 1);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for with in 2..4 {
                let (mapping, stop) = (&mapping, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        assert_eq!(fill(mapping, offset, len, with), Some(Ok(())));
                    }
                });
            }
            for _ in 0..200 {
                let mut whole = true;
                let done = mapping.read(offset, len, &mut |_, bytes| {
                    whole &= bytes.iter().all(|byte| *byte == bytes[0]);
                    Ok(())
                });
                let seen = (done, whole);
                // Set `stop` before the assertion, or the writers would never end after a failure.
                stop.fetch_or(seen != (Some(Ok(())), true), Ordering::Relaxed);
                assert_eq!(seen, (Some(Ok(())), true));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_file_that_is_cut_off_is_not_taken_for_written() {
        for _ in 0..20 {
            let file = file();
            let mapping = map(&file, Access::ReadWrite);
            std::thread::scope(|scope| {
                for with in 2..4 {
                    let mapping = &mapping;
                    scope.spawn(move || while fill(mapping, 0, 512 << 10, with).is_some() {});
                }
                file.set_len(8192).unwrap();
            });
            assert!(!mapping.at_hand(0, 4096), "a broken mapping is not used again");
            assert_eq!(file.metadata().unwrap().len(), 8192, "it did not grow again");
        }
    }

    #[test]
    fn zeroes_are_at_hand_anywhere() {
        let zeroes = Mapping::zeroes(1 << 20).unwrap();
        assert!(zeroes.at_hand(1 << 60, 1 << 20) && !zeroes.at_hand(0, (1 << 20) + 1));
        let mut look =
            |_, bytes: &[u8]| if bytes == [0; 4096] { Ok(()) } else { Err(Errno::INVAL) };
        assert_eq!(zeroes.read(5, 4096, &mut look), Some(Ok(())));
        assert!(zeroes.write(5, 4096, &mut |_, _| Ok(())).is_none());
    }
}
