//! From a client's bytes to whole sectors: checks, buffers, and the edges that need
//! read-modify-write.

use std::ops::Range;

use ucrypt_backend::Buf;
use ucrypt_dispatch::Op as MachineOp;

use super::job::{Edge, Job, Kind, Middle};
use super::pieces::copy_from;
use super::{Op, Queue, Rejected};
use crate::range_lock::Mode;

/// A write's data as it arrives.
pub(super) enum Source<'a> {
    Owned(Buf),
    Borrowed(&'a [u8]),
    Pieces(&'a [Buf]),
    Zeroes,
}

/// Buffer memory that is not to be had.
pub(super) enum Lack {
    Now,
    Ever,
}

/// A byte range as whole sectors: an incomplete one at each end, and those between.
struct Cut {
    head: Option<Range<u64>>,
    middle: Range<u64>,
    tail: Option<Range<u64>>,
}

/// Cuts a non-empty range at sector borders. A range within one sector is all head.
fn cut(range: &Range<u64>, sector: u64) -> Cut {
    let up = |at: u64| at.next_multiple_of(sector);
    let down = |at: u64| at / sector * sector;
    let head_end = up(range.start).min(range.end);
    let head = (!range.start.is_multiple_of(sector)).then_some(range.start..head_end);
    let start = head.as_ref().map_or(range.start, |head| head.end);
    let tail_start = down(range.end).max(start);
    let tail = (tail_start < range.end).then_some(tail_start..range.end);
    Cut { head, middle: start..tail_start, tail }
}

impl Queue {
    pub(super) fn sector_size(&self) -> u64 {
        u64::from(self.volume.info().sector_size)
    }

    pub(super) fn check(&self, offset: u64, len: u64) -> Result<Range<u64>, Rejected> {
        let end = offset.checked_add(len).ok_or(Rejected::OutOfRange)?;
        if end > self.volume.info().len { Err(Rejected::OutOfRange) } else { Ok(offset..end) }
    }

    pub(super) fn check_writable(&self) -> Result<(), Rejected> {
        if self.volume.info().read_only { Err(Rejected::ReadOnly) } else { Ok(()) }
    }

    /// The place of the job that starts next.
    fn next_job(&mut self) -> &mut Job {
        let index = *self.free.last().expect("the callers saw a free job");
        &mut self.jobs[index as usize]
    }

    /// Fills in the job that starts next. It holds nothing of the last one that stood there.
    pub(super) fn fill_in(
        &mut self,
        tag: u64,
        kind: Kind,
        range: Range<u64>,
        middle: Option<Middle>,
    ) -> &mut Job {
        let urgency = self.urgency;
        let job = self.next_job();
        debug_assert!(job.buf.is_none() && job.pending == 0 && !job.locked);
        (job.tag, job.kind, job.middle) = (tag, kind, middle);
        job.len = range.end - range.start;
        job.range = range;
        (job.mode, job.fua, job.urgency) = (Mode::Shared, false, urgency);
        (job.error, job.head) = (None, 0);
        job
    }

    /// Turns an operation into the job that starts next, which then only needs its range.
    pub(super) fn plan(&mut self, tag: u64, op: Op) -> Result<(), Rejected> {
        if self.free.is_empty() {
            return Err(Rejected::Busy(op));
        }
        match op {
            Op::Read { offset, len } => self.plan_read(tag, offset, len),
            Op::Write { offset, data, fua } => {
                self.check_writable()?;
                let range = self.check(offset, data.len() as u64)?;
                self.plan_write(tag, &range, Source::Owned(data), MachineOp::Write { fua }).map_err(
                    |(lack, source)| match (lack, source) {
                        (Lack::Now, Source::Owned(data)) => {
                            Rejected::Busy(Op::Write { offset, data, fua })
                        }
                        _ => Rejected::TooLarge,
                    },
                )
            }
            Op::Flush => {
                self.fill_in(tag, Kind::Flush, 0..0, Some(flush()));
                Ok(())
            }
            Op::Discard { offset, len } => self.plan_discard(tag, offset, len),
            Op::WriteZeroes { offset, len, fua, no_unmap } => {
                self.check_writable()?;
                let range = self.check(offset, len)?;
                let fast = self.volume.info().fast_write_zeroes && !no_unmap && !fua;
                let op =
                    if fast { MachineOp::BackendZeroes } else { MachineOp::EncryptZeroes { fua } };
                self.plan_write(tag, &range, Source::Zeroes, op)
                    .map_err(|_| Rejected::Busy(Op::WriteZeroes { offset, len, fua, no_unmap }))
            }
        }
    }

    pub(super) fn plan_read(&mut self, tag: u64, offset: u64, len: usize) -> Result<(), Rejected> {
        let range = self.check(offset, len as u64)?;
        if range.is_empty() {
            self.fill_in(tag, Kind::Read, range, None);
            return Ok(());
        }
        let sector = self.sector_size();
        let whole = range.start / sector * sector..range.end.next_multiple_of(sector);
        let bytes = usize::try_from(whole.end - whole.start).map_err(|_| Rejected::TooLarge)?;
        let Some(buf) = self.pool.alloc(bytes) else {
            return Err(self.no_memory(bytes, Op::Read { offset, len }));
        };
        let head = (range.start - whole.start) as usize;
        let job = self.fill_in(tag, Kind::Read, range, Some(middle(MachineOp::Read, &whole)));
        (job.head, job.buf) = (head, Some(buf));
        Ok(())
    }

    fn plan_discard(&mut self, tag: u64, offset: u64, len: u64) -> Result<(), Rejected> {
        self.check_writable()?;
        if !self.volume.info().discard {
            return Err(Rejected::NotSupported);
        }
        let range = self.check(offset, len)?;
        let sector = self.sector_size();
        let whole = range.start.next_multiple_of(sector)..range.end / sector * sector;
        let job = self.fill_in(tag, Kind::Discard, range, None);
        if whole.start < whole.end {
            job.middle = Some(middle(MachineOp::Discard, &whole));
            job.range = whole;
        }
        Ok(())
    }

    /// As [`Queue::plan`] for borrowed data; also tells which part of it the middle is.
    pub(super) fn plan_write_from<'a>(
        &mut self,
        tag: u64,
        offset: u64,
        data: &'a [u8],
        fua: bool,
    ) -> Result<&'a [u8], Rejected> {
        self.check_writable()?;
        let range = self.check(offset, data.len() as u64)?;
        if self.free.is_empty() {
            return Err(Rejected::BusyBorrowed);
        }
        let middle = cut(&range, self.sector_size()).middle;
        let part = &data[(middle.start - offset) as usize..(middle.end - offset) as usize];
        self.plan_write(tag, &range, Source::Borrowed(data), MachineOp::Write { fua }).map_err(
            |(lack, _)| match lack {
                Lack::Now => Rejected::BusyBorrowed,
                Lack::Ever => Rejected::TooLarge,
            },
        )?;
        Ok(part)
    }

    /// A write of whole sectors, with an edge for each sector of which only a part is written, which
    /// goes to the place of the job that starts next.
    /// Gives the source back with an error.
    pub(super) fn plan_write<'a>(
        &mut self,
        tag: u64,
        range: &Range<u64>,
        source: Source<'a>,
        op: MachineOp,
    ) -> Result<(), (Lack, Source<'a>)> {
        if range.is_empty() {
            self.fill_in(tag, Kind::Write, range.clone(), None);
            return Ok(());
        }
        let cut = cut(range, self.sector_size());
        let has_edges = cut.head.is_some() || cut.tail.is_some();
        let mut edges = [None, None];
        for (slot, part) in edges.iter_mut().zip([&cut.head, &cut.tail]) {
            let Some(part) = part else { continue };
            match self.edge(part, range.start, &source) {
                Some(edge) => *slot = Some(edge),
                None => return Err((Lack::Now, source)),
            }
        }
        let bytes = (cut.middle.end - cut.middle.start) as usize;
        let buf = match source {
            _ if bytes == 0 => None,
            Source::Zeroes => None,
            Source::Owned(mut data) => {
                // Moved, not skipped: direct I/O asks for aligned memory, and what cannot go past the
                // page cache would collide with what does.
                let skip = (cut.middle.start - range.start) as usize;
                if skip > 0 {
                    data.copy_within(skip..skip + bytes, 0);
                }
                data.truncate(bytes);
                Some(data)
            }
            Source::Borrowed(_) | Source::Pieces(_) => match self.pool.alloc(bytes) {
                Some(buf) => Some(buf),
                None if self.pool.could_hold(bytes) => return Err((Lack::Now, source)),
                None => return Err((Lack::Ever, source)),
            },
        };
        let middle = (bytes > 0).then(|| middle(op, &cut.middle));
        let job = self.fill_in(tag, Kind::Write, range.clone(), middle);
        job.buf = buf;
        job.fua =
            matches!(op, MachineOp::Write { fua: true } | MachineOp::EncryptZeroes { fua: true });
        if has_edges {
            job.mode = Mode::Exclusive;
            let index = *self.free.last().expect("the callers saw a free job") as usize;
            self.edges[index] = edges;
        }
        Ok(())
    }

    /// The edge that writes `part` of one sector; `None` when there is no memory for it now.
    fn edge(&mut self, part: &Range<u64>, start: u64, source: &Source<'_>) -> Option<Edge> {
        let sector = self.sector_size();
        let base = part.start / sector * sector;
        let bytes = (part.start - start) as usize..(part.end - start) as usize;
        let buf = self.edge_pool.alloc(sector as usize)?;
        let mut patch = self.edge_pool.alloc(bytes.len())?;
        match source {
            Source::Owned(data) => patch.copy_from_slice(&data[bytes]),
            Source::Borrowed(data) => patch.copy_from_slice(&data[bytes]),
            Source::Pieces(pieces) => copy_from(pieces, bytes.start, &mut patch),
            Source::Zeroes => patch.fill(0),
        }
        Some(Edge {
            sector: base / 512,
            sectors: sector / 512,
            buf: Some(buf),
            at: (part.start - base) as usize,
            patch,
        })
    }

    fn no_memory(&self, bytes: usize, op: Op) -> Rejected {
        if self.pool.could_hold(bytes) { Rejected::Busy(op) } else { Rejected::TooLarge }
    }
}

pub(super) fn middle(op: MachineOp, bytes: &Range<u64>) -> Middle {
    Middle { op, sector: bytes.start / 512, sectors: (bytes.end - bytes.start) / 512 }
}

fn flush() -> Middle {
    Middle { op: MachineOp::Flush, sector: 0, sectors: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_into_whole_sectors_and_at_most_two_parts() {
        for start in 0..40u64 {
            for end in start + 1..60 {
                let Cut { head, middle, tail } = cut(&(start..end), 8);
                let pieces = [head.clone(), Some(middle.clone()), tail.clone()];
                let mut at = start;
                for piece in pieces.into_iter().flatten().filter(|piece| !piece.is_empty()) {
                    assert_eq!(piece.start, at, "{start}..{end}");
                    at = piece.end;
                }
                assert_eq!(at, end, "{start}..{end}");
                assert!(middle.is_empty() || middle.start % 8 == 0 && middle.end % 8 == 0);
                for edge in [head, tail].into_iter().flatten() {
                    assert!(edge.end - edge.start < 8 && edge.start / 8 == (edge.end - 1) / 8);
                }
            }
        }
    }
}
