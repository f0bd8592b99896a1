//! Bounce buffers: aligned memory for direct I/O in place of a client's memory that is not.
//!
//! Without them such transfers would go through the page cache, beside direct ones to the same
//! pages. The kernel keeps the two apart only as far as they do not overlap in time: a page that is
//! read into the cache while a direct write to it is under way may stay there as it was before, is
//! what later reads see, and takes the write back when it is written for the sake of another of its
//! sectors.

use std::ops::Range;

use super::Direct;
use crate::{Buf, Errno, Pool, total_len};

/// Buffers that a queue or thread keeps for later transfers, of at most [`KEPT_BYTES`] each.
const KEPT: usize = 4;
const KEPT_BYTES: usize = 1 << 20;

/// The aligned memory of one transfer.
#[derive(Debug)]
pub(super) struct Bounce {
    buf: Buf,
    /// Bytes that the transfer has; `buf` may have more.
    pub(super) len: usize,
    /// What the client asked for, in the bytes of the transfer.
    part: Range<usize>,
    /// Where the transfer begins, in bytes of the image.
    pub(super) offset: u64,
}

impl Bounce {
    /// The bytes of the transfer.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.buf[..self.len]
    }

    /// The first bytes of the transfer that hold all that the client asked for: a read of whole
    /// blocks may reach beyond the end of a file.
    pub(super) fn asked(&self) -> usize {
        self.part.end
    }

    /// Copies what was read to the client.
    pub(super) fn hand_to(&self, bufs: &mut [Buf]) {
        let mut rest = &self.buf[self.part.clone()];
        for buf in bufs {
            let (now, later) = rest.split_at(buf.len());
            buf.copy_from_slice(now);
            rest = later;
        }
    }
}

/// The bounce buffers of one queue, or of one thread.
#[derive(Debug, Default)]
pub(super) struct Bounces {
    kept: Vec<Buf>,
}

impl Bounces {
    /// A bounce buffer for a read, if it needs one: if its memory, offset or length does not meet the
    /// rules of direct I/O. The transfer consists of whole blocks.
    pub(super) fn for_read(
        &mut self,
        direct: Option<&Direct>,
        offset: u64,
        bufs: &[Buf],
    ) -> Result<Option<Bounce>, Errno> {
        let Some(direct) = direct.filter(|direct| !direct.takes(offset, bufs)) else {
            return Ok(None);
        };
        let asked = total_len(bufs);
        let before = (offset % direct.offset_align) as usize;
        let whole = (before + asked).checked_next_multiple_of(direct.offset_align as usize);
        let len = whole.ok_or(Errno::INVAL)?;
        let (part, offset) = (before..before + asked, offset - before as u64);
        Ok(Some(Bounce { buf: self.take(len)?, len, part, offset }))
    }

    /// A bounce buffer with the data of a write, if it needs one: if its memory does not meet the
    /// rules of direct I/O. Parts of blocks are not written directly.
    pub(super) fn for_write(
        &mut self,
        direct: Option<&Direct>,
        offset: u64,
        bufs: &[Buf],
    ) -> Result<Option<Bounce>, Errno> {
        let len = total_len(bufs);
        let needs =
            |direct: &&Direct| direct.is_whole(offset, len as u64) && !direct.takes(offset, bufs);
        if !direct.as_ref().is_some_and(needs) {
            return Ok(None);
        }
        let mut buf = self.take(len)?;
        let mut at = 0;
        for from in bufs {
            buf[at..at + from.len()].copy_from_slice(from);
            at += from.len();
        }
        Ok(Some(Bounce { buf, len, part: 0..len, offset }))
    }

    /// At least `len` bytes.
    fn take(&mut self, len: usize) -> Result<Buf, Errno> {
        if let Some(fits) = self.kept.iter().position(|buf| buf.len() >= len) {
            return Ok(self.kept.swap_remove(fits));
        }
        Pool::single(len).map_err(|_| Errno::NOMEM)
    }

    /// Keeps the memory for later.
    pub(super) fn give_back(&mut self, bounce: Bounce) {
        if bounce.buf.len() > KEPT_BYTES {
            return;
        }
        self.kept.push(bounce.buf);
        if self.kept.len() > KEPT {
            // Larger ones serve more transfers.
            self.kept.sort_unstable_by_key(|buf| std::cmp::Reverse(buf.len()));
            self.kept.truncate(KEPT);
        }
    }
}
