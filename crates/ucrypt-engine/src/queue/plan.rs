//! Plans requests: checks, buffers, and the cut of a byte range into whole units and edges that
//! need read-modify-write.

use std::ops::Range;

use ucrypt_backend::{Buf, total_len};
use ucrypt_dispatch::Op as MachineOp;

use super::memory::Lack;
use super::pieces::copy_from;
use super::tables::{Body, ClientRequest, Edge};
use super::{Io, Queue, ReadTo, Rejected, WriteFrom};
use crate::meters::Kind;
use crate::range_lock::Mode;
use crate::zones::ZoneChange;

/// The index of a request, and the plaintext of its body, if that is borrowed.
pub(super) type Planned<'a> = (u32, Option<&'a [u8]>);

/// A byte range cut at unit borders: a partial unit at each end, and whole units between.
struct Cut {
    head: Option<Range<u64>>,
    body: Range<u64>,
    tail: Option<Range<u64>>,
}

/// Cuts a range at unit borders. A range within one unit is all head, or all tail if it begins
/// where the unit begins.
fn cut(range: &Range<u64>, unit: u64) -> Cut {
    let up = |at: u64| at.next_multiple_of(unit);
    let down = |at: u64| at / unit * unit;
    let head_end = up(range.start).min(range.end);
    let head = range.start..head_end;
    let head = (!head.is_empty() && !head.start.is_multiple_of(unit)).then_some(head);
    let start = head.as_ref().map_or(range.start, |head| head.end);
    let tail_start = down(range.end).max(start);
    let tail = (tail_start < range.end).then_some(tail_start..range.end);
    Cut { head, body: start..tail_start, tail }
}

impl Queue {
    /// Bytes that are read, encrypted and written as a whole.
    fn unit(&self) -> u64 {
        u64::from(self.volume.info().write_unit)
    }

    fn check(&self, offset: u64, len: u64) -> Result<Range<u64>, Rejected<'static>> {
        let end = offset.checked_add(len).ok_or(Rejected::OutOfRange)?;
        if end > self.volume.info().len { Err(Rejected::OutOfRange) } else { Ok(offset..end) }
    }

    fn check_writable(&self) -> Result<(), Rejected<'static>> {
        if self.volume.info().read_only { Err(Rejected::ReadOnly) } else { Ok(()) }
    }

    /// Takes the slot of a request and fills it in. The slot holds nothing of the previous request.
    fn fill_in(
        &mut self,
        tag: u64,
        kind: Kind,
        range: Range<u64>,
        body: Option<Body>,
    ) -> (u32, &mut ClientRequest) {
        let (index, request) = self.requests.take().expect("submit() saw a free slot");
        debug_assert!(request.buf.is_none() && request.pending == 0);
        debug_assert!(!request.locked && request.ticket.is_none());
        (request.tag, request.kind, request.body) = (tag, kind, body);
        request.len = range.end - range.start;
        request.range = range;
        (request.mode, request.urgency) = (Mode::Shared, self.owner.urgency);
        (request.fua, request.fast, request.zones) = (false, false, None);
        (request.error, request.head) = (None, 0);
        (index, request)
    }

    /// Checks a client's request and fills it in: then it needs only its range lock.
    pub(super) fn plan<'a>(&mut self, tag: u64, io: Io<'a>) -> Result<Planned<'a>, Rejected<'a>> {
        match io {
            Io::Read { offset, to } => Ok((self.plan_read(tag, offset, to)?, None)),
            Io::Write { offset, from, fua } => {
                self.check_writable()?;
                let len = match &from {
                    WriteFrom::Owned(data) => data.len(),
                    WriteFrom::Borrowed(data) => data.len(),
                    WriteFrom::Scattered(pieces) => total_len(pieces),
                };
                let range = self.check(offset, len as u64)?;
                let op = MachineOp::Write { fua };
                self.plan_write(tag, &range, Some(from), op).map_err(|lack| match lack {
                    (lack, Some(from)) => lack.reject(Io::Write { offset, from, fua }),
                    (_, None) => Rejected::TooLarge,
                })
            }
            Io::Flush => {
                let body = Body { op: MachineOp::Flush, sector: 0, sectors: 0 };
                Ok((self.fill_in(tag, Kind::Flush, 0..0, Some(body)).0, None))
            }
            Io::Discard { offset, len } => Ok((self.plan_discard(tag, offset, len)?, None)),
            Io::Zones(change) => Ok((self.plan_zones(tag, change)?, None)),
            Io::WriteZeroes { offset, len, fua, no_unmap, fast } => {
                self.check_writable()?;
                let range = self.check(offset, len)?;
                let op = if self.volume.info().fast_write_zeroes && !no_unmap && !fua {
                    MachineOp::BackendZeroes
                } else if fast {
                    return Err(Rejected::NotSupported);
                } else {
                    MachineOp::EncryptZeroes { fua }
                };
                let busy = Io::WriteZeroes { offset, len, fua, no_unmap, fast };
                let planned = self.plan_write(tag, &range, None, op);
                let (index, borrowed) = planned.map_err(|_| Rejected::Busy(busy))?;
                self.requests[index].fast = fast;
                Ok((index, borrowed))
            }
        }
    }

    /// Plans a read of whole units: straight into the client's pieces if the range and each piece are
    /// whole units, and lie where the backend needs no memory of its own for them; otherwise into a
    /// buffer of the queue, which is trimmed to the requested bytes at the end.
    fn plan_read<'a>(
        &mut self,
        tag: u64,
        offset: u64,
        mut to: ReadTo<'a>,
    ) -> Result<u32, Rejected<'a>> {
        let unit = self.unit();
        let len = match &to {
            ReadTo::Allocate(len) => *len,
            ReadTo::Scattered(pieces) => total_len(pieces),
        };
        let range = self.check(offset, len as u64)?;
        let whole = range.start / unit * unit..range.end.next_multiple_of(unit);
        let is_direct = match &to {
            ReadTo::Allocate(_) => false,
            ReadTo::Scattered(pieces) => {
                let align = self.volume.backend.limits().memory_align as usize;
                let fits = |piece: &Buf| {
                    (piece.len() as u64).is_multiple_of(unit)
                        && piece.as_ptr().addr().is_multiple_of(align)
                };
                range == whole && pieces.iter().all(fits)
            }
        };
        let mut buf = None;
        if !range.is_empty() && !is_direct {
            let bytes = usize::try_from(whole.end - whole.start).map_err(|_| Rejected::TooLarge)?;
            buf = match self.memory.alloc(bytes, self.is_idle()) {
                Ok(buf) => Some(buf),
                Err(lack) => return Err(lack.reject(Io::Read { offset, to })),
            };
        }
        let head = (range.start - whole.start) as usize;
        let body = (!range.is_empty()).then(|| body(MachineOp::Read, &whole));
        let (index, request) = self.fill_in(tag, Kind::Read, range, body);
        (request.head, request.buf) = (head, buf);
        if let ReadTo::Scattered(pieces) = &mut to {
            request.pieces.append(pieces);
        }
        Ok(index)
    }

    fn plan_discard(&mut self, tag: u64, offset: u64, len: u64) -> Result<u32, Rejected<'static>> {
        self.check_writable()?;
        if !self.volume.info().discard {
            return Err(Rejected::NotSupported);
        }
        let range = self.check(offset, len)?;
        let unit = self.unit();
        let whole = range.start.next_multiple_of(unit)..range.end / unit * unit;
        let (index, request) = self.fill_in(tag, Kind::Discard, range, None);
        if whole.start < whole.end {
            request.body = Some(body(MachineOp::Discard, &whole));
            request.range = whole;
        }
        Ok(index)
    }

    /// Plans a change of zones. It takes the range lock as every request does, which a suspended volume
    /// refuses.
    fn plan_zones(&mut self, tag: u64, change: ZoneChange) -> Result<u32, Rejected<'static>> {
        self.check_writable()?;
        let zones = self.volume.zones().ok().flatten().ok_or(Rejected::NotSupported)?;
        let (offset, len) = match change {
            ZoneChange::One { start, .. } => (start, zones.limits().len),
            ZoneChange::ResetAll => (0, self.volume.info().len),
        };
        let range = self.check(offset, len)?;
        let (index, request) = self.fill_in(tag, Kind::Discard, range, None);
        request.zones = Some(change);
        Ok(index)
    }

    /// Plans a write of whole units, with an edge for each partly written unit. Without `from`,
    /// the write is one of zeroes.
    ///
    /// # Errors
    /// Gives `from` back if there is no memory.
    fn plan_write<'a>(
        &mut self,
        tag: u64,
        range: &Range<u64>,
        from: Option<WriteFrom<'a>>,
        op: MachineOp,
    ) -> Result<Planned<'a>, (Lack, Option<WriteFrom<'a>>)> {
        let cut = cut(range, self.unit());
        let has_edges = cut.head.is_some() || cut.tail.is_some();
        let mut edges = [None, None];
        for (edge, part) in edges.iter_mut().zip([&cut.head, &cut.tail]) {
            let Some(part) = part else { continue };
            *edge = self.edge(part, range.start, from.as_ref());
            if edge.is_none() {
                return Err((Lack::Now, from));
            }
        }
        let skip = (cut.body.start - range.start) as usize;
        let bytes = (cut.body.end - cut.body.start) as usize;
        let mut buf = None;
        let is_elsewhere = matches!(from, Some(WriteFrom::Borrowed(_) | WriteFrom::Scattered(_)));
        if is_elsewhere && bytes > 0 {
            buf = match self.memory.alloc(bytes, self.is_idle()) {
                Ok(buf) => Some(buf),
                Err(lack) => return Err((lack, from)),
            };
        }
        let body = (bytes > 0).then(|| body(op, &cut.body));
        let (index, request) = self.fill_in(tag, Kind::Write, range.clone(), body);
        request.fua =
            matches!(op, MachineOp::Write { fua: true } | MachineOp::EncryptZeroes { fua: true });
        if has_edges {
            let [first, last] = [&edges[0], &edges[1]].map(Option::is_some);
            (request.mode, request.edges) = (Mode::Ends { first, last }, edges);
        }
        let mut borrowed = None;
        match from {
            None => {}
            Some(WriteFrom::Owned(_)) if bytes == 0 => {}
            Some(WriteFrom::Owned(mut data)) => {
                // Moved to the front instead of skipped: direct I/O needs aligned memory, and a
                // write through the page cache would conflict with direct ones.
                if skip > 0 {
                    data.copy_within(skip..skip + bytes, 0);
                }
                data.truncate(bytes);
                buf = Some(data);
            }
            Some(WriteFrom::Borrowed(data)) => borrowed = data.get(skip..skip + bytes),
            Some(WriteFrom::Scattered(pieces)) => request.pieces.append(pieces),
        }
        request.buf = buf;
        Ok((index, borrowed))
    }

    /// The edge that writes `part` of one unit; `None` if there is no memory for it now.
    fn edge(
        &mut self,
        part: &Range<u64>,
        start: u64,
        from: Option<&WriteFrom<'_>>,
    ) -> Option<Edge> {
        let unit = self.unit();
        let base = part.start / unit * unit;
        let bytes = (part.start - start) as usize..(part.end - start) as usize;
        let buf = self.memory.alloc_edge(unit as usize)?;
        let mut patch = self.memory.alloc_edge(bytes.len())?;
        match from {
            Some(WriteFrom::Owned(data)) => patch.copy_from_slice(&data[bytes]),
            Some(WriteFrom::Borrowed(data)) => patch.copy_from_slice(&data[bytes]),
            Some(WriteFrom::Scattered(pieces)) => copy_from(pieces, bytes.start, &mut patch),
            None => patch.fill(0),
        }
        Some(Edge {
            sector: base / 512,
            sectors: unit / 512,
            buf: Some(buf),
            at: (part.start - base) as usize,
            patch,
        })
    }
}

fn body(op: MachineOp, bytes: &Range<u64>) -> Body {
    Body { op, sector: bytes.start / 512, sectors: (bytes.end - bytes.start) / 512 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_into_whole_units_and_at_most_two_parts() {
        for start in 0..40u64 {
            for end in start..60 {
                let Cut { head, body, tail } = cut(&(start..end), 8);
                let pieces = [head.clone(), Some(body.clone()), tail.clone()];
                let mut at = start;
                for piece in pieces.into_iter().flatten().filter(|piece| !piece.is_empty()) {
                    assert_eq!(piece.start, at, "{start}..{end}");
                    at = piece.end;
                }
                assert_eq!(at, end, "{start}..{end}");
                assert!(body.is_empty() || body.start % 8 == 0 && body.end % 8 == 0);
                for edge in [head, tail].into_iter().flatten() {
                    assert!(edge.end - edge.start < 8 && edge.start / 8 == (edge.end - 1) / 8);
                }
            }
        }
    }
}
