//! The descriptors of a queue's requests: memory that the kernel writes and we read.
//!
//! The kernel owns a descriptor until it hands the request out, and does not change it until the
//! request is committed; in between we may read it. We read it as numbers, so that whatever it
//! holds is at worst a request to refuse.

#![expect(unsafe_code, reason = "a mapping that is shared with the kernel")]

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::abi::{Descriptor, descriptors_stride};
use rustix::param::page_size;

const DESCRIPTOR_WORDS: usize = Descriptor::LEN / size_of::<u64>();

/// The mapped descriptors of one queue.
pub(super) struct Descriptors {
    base: NonNull<[u64; DESCRIPTOR_WORDS]>,
    len: usize,
    depth: u16,
}

// SAFETY: the mapping is only read, and belongs to the value.
unsafe impl Send for Descriptors {}

impl Descriptors {
    /// Maps the `depth` descriptors of `queue` from the character device.
    pub(super) fn map(device: impl AsFd, queue: u16, depth: u16) -> Result<Self, Errno> {
        let page = page_size();
        let len = (usize::from(depth) * Descriptor::LEN).next_multiple_of(page);
        let offset = u64::from(queue) * descriptors_stride(page as u64);
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base =
            unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, flags, device, offset) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len, depth })
    }

    /// The descriptor of a request that the kernel has handed out; `None` if there is no such tag.
    pub(super) fn read(&self, tag: u16) -> Option<Descriptor> {
        if tag >= self.depth {
            return None;
        }
        // SAFETY: `tag` is below `depth`, so the descriptor lies in the mapping, which is aligned to
        // pages; the kernel may write to it at any time, which is why it is read as volatile.
        let words = unsafe { self.base.as_ptr().add(usize::from(tag)).read_volatile() };
        Some(Descriptor::from_words(words))
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference into it is ever given out.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}
