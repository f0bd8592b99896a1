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

/// Bounce memory of a queue or thread in bytes, reserved when it is first needed: room for the largest
/// transfer of the engine with a block on each side. A transfer for which others leave no room waits for
/// them, because guests choose where their memory lies. With twice as much, more of them run at once.
const BOUNCES_BYTES: usize = 2 << 20;

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

/// The memory that a transfer uses.
#[derive(Debug)]
pub(super) enum Through {
    /// The client's own.
    Client,
    Bounce(Bounce),
    /// A bounce buffer, for which there is no room before another one is dropped.
    Later,
}

impl Through {
    /// The bounce buffer, if one is used, for who uses one at a time.
    pub(super) fn alone(self) -> Result<Option<Bounce>, Errno> {
        match self {
            Self::Client => Ok(None),
            Self::Bounce(bounce) => Ok(Some(bounce)),
            Self::Later => Err(Errno::NOMEM),
        }
    }
}

/// The bounce buffers of one queue, or of one thread.
#[derive(Debug, Default)]
pub(super) struct Bounces {
    pool: Option<Pool>,
}

impl Bounces {
    /// Memory for a read: a bounce buffer if its memory, offset or length does not meet the rules of
    /// direct I/O. The transfer then consists of whole blocks.
    pub(super) fn for_read(
        &mut self,
        direct: Option<&Direct>,
        offset: u64,
        bufs: &[Buf],
    ) -> Result<Through, Errno> {
        let Some(direct) = direct.filter(|direct| !direct.takes(offset, bufs)) else {
            return Ok(Through::Client);
        };
        let asked = total_len(bufs);
        let before = (offset % direct.offset_align) as usize;
        let whole = (before + asked).checked_next_multiple_of(direct.offset_align as usize);
        let len = whole.ok_or(Errno::INVAL)?;
        let Some(buf) = self.take(len)? else { return Ok(Through::Later) };
        let (part, offset) = (before..before + asked, offset - before as u64);
        Ok(Through::Bounce(Bounce { buf, len, part, offset }))
    }

    /// Memory for a write: a bounce buffer with its data if its memory does not meet the rules of
    /// direct I/O. Parts of blocks are not written directly.
    pub(super) fn for_write(
        &mut self,
        direct: Option<&Direct>,
        offset: u64,
        bufs: &[Buf],
    ) -> Result<Through, Errno> {
        let len = total_len(bufs);
        let needs =
            |direct: &&Direct| direct.is_whole(offset, len as u64) && !direct.takes(offset, bufs);
        if !direct.as_ref().is_some_and(needs) {
            return Ok(Through::Client);
        }
        let Some(mut buf) = self.take(len)? else { return Ok(Through::Later) };
        let mut at = 0;
        for from in bufs {
            buf[at..at + from.len()].copy_from_slice(from);
            at += from.len();
        }
        Ok(Through::Bounce(Bounce { buf, len, part: 0..len, offset }))
    }

    /// `len` bytes; `None` if others have too much now.
    fn take(&mut self, len: usize) -> Result<Option<Buf>, Errno> {
        if len > BOUNCES_BYTES {
            // Longer than any transfer of the engine.
            return Pool::single(len).map(Some).map_err(|_| Errno::NOMEM);
        }
        let pool = match &mut self.pool {
            Some(pool) => pool,
            none => none.insert(Pool::new(BOUNCES_BYTES).map_err(|_| Errno::NOMEM)?),
        };
        Ok(pool.alloc(len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WRITE_UNIT_MAX;

    #[test]
    fn the_largest_transfer_of_the_engine_has_room_with_a_block_on_each_side() {
        let most = super::super::open::TRANSFER_MAX as usize + 2 * WRITE_UNIT_MAX as usize;
        let mut bounces = Bounces::default();
        let one = bounces.take(most).unwrap();
        assert!(one.is_some() && bounces.take(most).unwrap().is_none(), "one at a time");
        drop(one);
        let small: Vec<_> = (0..512).map(|_| bounces.take(4096).unwrap()).collect();
        assert!(small.iter().all(Option::is_some), "or many small ones");
        drop(small);
        assert!(bounces.take(most).unwrap().is_some());
    }
}
