//! A backend's bytes where they are: reads of what is in memory need no copy to be decrypted from.
//!
//! Contract:
//!
//! - [`Mapping::at_hand`] says whether a range can be read in place without waiting for a disk and
//!   without taking memory for a hole. It is a hint: what it says may change at once.
//! - [`Mapping::read`] lends the bytes. Other processes, and other queues of this one, may write to
//!   them meanwhile, so they are data and nothing else: they are decrypted or copied, but no length,
//!   index or decision is ever taken from them. What is written in between spoils that read only,
//!   as it would with pread.
//! - **A file that is cut off** while it is mapped leaves zeroes behind its new end, and a mark
//!   ([`Watch`]): whoever saw such a zero finds the mark afterwards, and [`Mapping::read`] says
//!   `None`. A broken mapping is not used again: reads go to the file, which knows its end.
//!
//! Files that live in memory (tmpfs) are mapped, others are not: what is in the page cache of a disk
//! is read no faster this way (`docs/benchmarks.md`), and may leave at any time. What is no hole is
//! asked of the kernel (mincore), which takes a microsecond, and kept by blocks of 64 KiB: only a
//! hole that is punched changes it (`Mapping::forget`). Swapped-out pages come back by themselves.

#![expect(unsafe_code, reason = "a mapping is reached by address")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munlock, munmap};

use crate::file::read_full;
use crate::{Access, Errno, Watch};

/// Bytes whose presence is remembered as one.
const BLOCK: usize = 64 << 10;
const PAGE_MIN: usize = 4096;

/// See the module's contract.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    what: What,
}

#[derive(Debug)]
enum What {
    /// Zeroes, however far one reads.
    Zeroes,
    File {
        fd: OwnedFd,
        watch: Watch,
        /// By block: known to be no hole.
        present: Box<[AtomicU64]>,
    },
}

// SAFETY: the memory is only read, and only through `read`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroes, for reads of at most `len` bytes.
    pub(crate) fn zeroes(len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice. Never written, so that all
        // its pages are the kernel's one page of zeroes.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE)?
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len, what: What::Zeroes })
    }

    /// The first `len` bytes of a file that lives in memory.
    pub(crate) fn file(fd: BorrowedFd<'_>, len: u64) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let fd = fd.try_clone_to_owned()?;
        // SAFETY: a new mapping at an address of the kernel's choice; read-only.
        let base =
            unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, &fd, 0)? };
        // Where the process locks its memory (secrets), ciphertext need not stay: advice only.
        // SAFETY: the range is the mapping just made.
        let _ = unsafe { munlock(base, len) };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the mapping just made, of a file that lives in memory, and read only through
        // `Mapping::read`. `Drop` ends the watch before it.
        let watch = unsafe { Watch::new(base, len, Access::Read) };
        let Some(watch) = watch else {
            // SAFETY: the mapping just made, which nobody knows yet.
            let _ = unsafe { munmap(base.as_ptr().cast(), len) };
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let words = len.div_ceil(BLOCK).div_ceil(64);
        let present = (0..words).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { base, len, what: What::File { fd, watch, present } })
    }

    /// Whether [`Mapping::read`] of the range is worth it now.
    pub fn at_hand(&self, offset: u64, len: usize) -> bool {
        let What::File { watch, present, .. } = &self.what else { return len <= self.len };
        let Some(offset) = self.place(offset, len) else { return false };
        if watch.is_broken() {
            return false;
        }
        (offset / BLOCK..(offset + len).div_ceil(BLOCK)).all(|block| {
            let (word, bit) = (&present[block / 64], 1 << (block % 64));
            if word.load(Ordering::Relaxed) & bit != 0 {
                return true;
            }
            let start = block * BLOCK;
            let is = self.is_resident(start, BLOCK.min(self.len - start));
            if is {
                word.fetch_or(bit, Ordering::Relaxed);
            }
            is
        })
    }

    /// The range is about to become a hole.
    pub(crate) fn forget(&self, offset: u64, len: u64) {
        let What::File { present, .. } = &self.what else { return };
        let end = offset.saturating_add(len).min(self.len as u64);
        let blocks = offset / BLOCK as u64..end.div_ceil(BLOCK as u64);
        for block in blocks {
            let block = block as usize;
            present[block / 64].fetch_and(!(1 << (block % 64)), Ordering::Relaxed);
        }
    }

    /// Lends the range to `use_`; `None` if what it saw may not be the file's. Takes memory for what
    /// is not [at hand](Mapping::at_hand).
    pub fn read<R>(&self, offset: u64, len: usize, use_: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let start = match self.what {
            What::Zeroes => (len <= self.len).then_some(0)?,
            What::File { .. } => self.place(offset, len)?,
        };
        // SAFETY: the range lies in the mapping, which lives as long as `self`. Its bytes may
        // change while the slice exists, which the module's contract provides for: the code that
        // gets it moves bytes and draws no conclusion from any of them. Behind the end of a file
        // that was cut off, `Watch` puts memory in its place.
        let bytes = unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(start), len) };
        let done = use_(bytes);
        let What::File { watch, .. } = &self.what else { return Some(done) };
        (!watch.is_broken()).then_some(done)
    }

    /// Reads the range from the file, waiting for it.
    ///
    /// # Errors
    /// `EIO` behind the end of the file, and the system's.
    pub fn read_exact(&self, offset: u64, buf: &mut [u8]) -> Result<(), Errno> {
        match &self.what {
            What::Zeroes => {
                buf.fill(0);
                Ok(())
            }
            What::File { fd, .. } => read_full(fd.as_fd(), buf, offset),
        }
    }

    /// The range's place in the mapping; `None` if it reaches beyond its end.
    fn place(&self, offset: u64, len: usize) -> Option<usize> {
        let offset = usize::try_from(offset).ok()?;
        (offset.checked_add(len)? <= self.len).then_some(offset)
    }

    /// Whether all pages of a block are in memory, as the kernel says.
    fn is_resident(&self, offset: usize, len: usize) -> bool {
        let mut pages = [0; BLOCK / PAGE_MIN];
        let start = offset / PAGE_MIN * PAGE_MIN;
        let count = (offset + len).div_ceil(PAGE_MIN) - start / PAGE_MIN;
        let Some(pages) = pages.get_mut(..count) else { return false };
        // SAFETY: the range lies in the mapping; there is a byte for each of its pages, which are
        // no smaller than `PAGE_MIN`.
        let asked = unsafe {
            libc::mincore(
                self.base.as_ptr().add(start).cast(),
                offset + len - start,
                pages.as_mut_ptr(),
            )
        };
        // With larger pages there are fewer answers than bytes, and the rest says no.
        asked == 0 && pages.iter().all(|page| page & 1 != 0)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The watch ends first.
        self.what = What::Zeroes;
        // SAFETY: the mapping is ours, and nothing lends from it any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt as _;

    const LEN: u64 = 1 << 20;

    /// A file in memory, of ones, except for a hole in its second half.
    fn file() -> std::fs::File {
        let fd = rustix::fs::memfd_create("mapped", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = std::fs::File::from(fd);
        file.set_len(LEN).unwrap();
        file.write_all_at(&vec![1; 512 << 10], 0).unwrap();
        file
    }

    #[test]
    fn what_is_there_is_lent_and_holes_are_left_alone() {
        use std::os::unix::fs::MetadataExt as _;
        let file = file();
        let mapping = Mapping::file(file.as_fd(), LEN).unwrap();
        assert!(mapping.at_hand(100, 300_000) && mapping.at_hand(0, 512 << 10));
        assert!(!mapping.at_hand(512 << 10, 1) && !mapping.at_hand((512 << 10) - 1, 2));
        assert!(!mapping.at_hand(LEN - 1, 2) && !mapping.at_hand(u64::MAX, 1));
        assert!(mapping.read(LEN - 1, 2, |_| ()).is_none());
        let sum =
            mapping.read(4000, 5000, |bytes| bytes.iter().map(|&b| u64::from(b)).sum::<u64>());
        assert_eq!(sum, Some(5000));
        assert_eq!(file.metadata().unwrap().blocks(), 1024, "no memory was taken for the hole");
        file.write_all_at(&[2], 0).unwrap();
        assert_eq!(mapping.read(0, 1, |bytes| bytes[0]), Some(2));
        mapping.forget(0, 1);
        assert!(mapping.at_hand(0, 10), "it is asked about again");
    }

    #[test]
    fn a_file_that_is_cut_off_ends_in_an_error_for_every_reader() {
        for _ in 0..20 {
            let file = file();
            let mapping = Mapping::file(file.as_fd(), LEN).unwrap();
            assert!(mapping.at_hand(0, 512 << 10));
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        // Until the mapping is broken, everything is ones.
                        while let Some(ones) =
                            mapping.read(0, 512 << 10, |bytes| bytes.iter().all(|&byte| byte == 1))
                        {
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

    #[test]
    fn zeroes_are_at_hand_anywhere() {
        let zeroes = Mapping::zeroes(1 << 20).unwrap();
        assert!(zeroes.at_hand(1 << 60, 1 << 20) && !zeroes.at_hand(0, (1 << 20) + 1));
        assert_eq!(zeroes.read(5, 4096, |bytes| bytes.iter().all(|&byte| byte == 0)), Some(true));
    }
}
