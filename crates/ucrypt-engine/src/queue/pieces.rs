//! Requests over the client's own memory, in pieces: reads are decrypted in it, writes are
//! encrypted out of it.
//!
//! A read whose pieces are all whole sectors is read straight into them and decrypted there; any
//! other goes through a buffer of the queue and is copied at the end. A write always has a buffer
//! of the queue for its ciphertext; its plaintext is read once, when a chunk of it is encrypted.
//! The pieces are the queue's until the request has ended.

use ucrypt_backend::{Buf, Errno, total_len};
use ucrypt_dispatch::{Op as MachineOp, Part};

use super::job::{Job, Kind, Role, Slot};
use super::plan::{Lack, Source, middle};
use super::{Queue, Rejected};
use crate::segments::Segments;

/// The largest sector in bytes.
const SECTOR_MAX: usize = 4096;

impl Queue {
    /// Reads and decrypts into the client's memory: the pieces one after the other hold the bytes
    /// from `offset`. The answer carries no data. If the request fails, no ciphertext is left in
    /// foreign memory.
    ///
    /// The list is emptied if the request is accepted and left alone if not.
    pub fn read_into(
        &mut self,
        tag: u64,
        offset: u64,
        pieces: &mut Vec<Buf>,
    ) -> Result<(), Rejected> {
        self.plan_read_into(tag, offset, pieces)?;
        self.start_with(pieces);
        Ok(())
    }

    /// Encrypts and writes the pieces one after the other. Their bytes may be read at any time
    /// until the answer, and are never changed.
    ///
    /// The list is emptied if the request is accepted and left alone if not.
    pub fn write_pieces(
        &mut self,
        tag: u64,
        offset: u64,
        pieces: &mut Vec<Buf>,
        fua: bool,
    ) -> Result<(), Rejected> {
        self.check_writable()?;
        let range = self.check(offset, total_len(pieces) as u64)?;
        if self.free.is_empty() {
            return Err(Rejected::BusyBorrowed);
        }
        self.plan_write(tag, &range, Source::Pieces(pieces), MachineOp::Write { fua }).map_err(
            |(lack, _)| match lack {
                Lack::Now => Rejected::BusyBorrowed,
                Lack::Ever => Rejected::TooLarge,
            },
        )?;
        self.start_with(pieces);
        Ok(())
    }

    fn plan_read_into(&mut self, tag: u64, offset: u64, pieces: &[Buf]) -> Result<(), Rejected> {
        if self.free.is_empty() {
            return Err(Rejected::BusyBorrowed);
        }
        let len = total_len(pieces);
        let sector = self.sector_size();
        let whole = |bytes: u64| bytes.is_multiple_of(sector);
        if len == 0 || !whole(offset) || pieces.iter().any(|piece| !whole(piece.len() as u64)) {
            return self.plan_read(tag, offset, len).map_err(|rejected| match rejected {
                Rejected::Busy(_) => Rejected::BusyBorrowed,
                other => other,
            });
        }
        let range = self.check(offset, len as u64)?;
        let middle = middle(MachineOp::Read, &range);
        self.fill_in(tag, Kind::Read, range, Some(middle));
        Ok(())
    }

    fn start_with(&mut self, pieces: &mut Vec<Buf>) {
        let index = *self.free.last().expect("the plan saw a free job");
        self.pieces[index as usize].append(pieces);
        self.start(None);
    }

    /// At the end of a request over the client's memory: copies what was read there if it is not there
    /// yet, and lets that memory go.
    pub(super) fn deliver(&mut self, job: u32, data: Option<Buf>) {
        let pieces = &mut self.pieces[job as usize];
        if let Some(data) = data {
            let mut rest = &data[..];
            for piece in pieces.iter_mut() {
                let (part, behind) = rest.split_at(piece.len().min(rest.len()));
                piece[..part.len()].copy_from_slice(part);
                rest = behind;
            }
        }
        pieces.clear();
    }
}

/// Plaintext of a write where its owner has it.
pub(super) enum Plain<'a> {
    One(&'a [u8]),
    /// From the byte of that number in all of them together.
    Pieces(&'a [Buf], usize),
}

impl<'a> Plain<'a> {
    /// The plaintext of a part of a chunk; `None` if its buffer holds it. `borrowed` is that of
    /// its request, `pieces` are those of its job.
    pub(super) fn of(
        part: &Part,
        slot: &Slot,
        borrowed: Option<&'a [u8]>,
        jobs: &[Job],
        pieces: &'a [Buf],
    ) -> Option<Self> {
        if let Some(plain) = borrowed {
            let first = (part.sector - slot.first_sector) as usize * 512;
            return plain.get(first..first + part.sectors as usize * 512).map(Self::One);
        }
        // An edge has its sector in the buffer, with the piece's bytes in it.
        if pieces.is_empty() || slot.role != Role::Middle {
            return None;
        }
        let job = &jobs[slot.job as usize];
        Some(Self::Pieces(pieces, (part.sector * 512 - job.range.start) as usize))
    }

    /// Copies as much as `to` holds; leaves it alone where there is nothing.
    pub(super) fn copy(&self, to: &mut [u8]) {
        match *self {
            Self::One(plain) => to.copy_from_slice(plain),
            Self::Pieces(pieces, first) => copy_from(pieces, first, to),
        }
    }

    /// Encrypts as much as `to` holds. `None`: the segment has no cipher.
    pub(super) fn encrypt(
        &self,
        segments: &Segments,
        segment: usize,
        sector: u64,
        to: &mut [u8],
    ) -> Option<Result<(), Errno>> {
        let size = segments[segment].sector_size() as usize;
        self.runs(to.len(), size, |at, plain| {
            let to = to.get_mut(at..at + plain.len())?;
            segments.encrypt_from(segment, sector + at as u64 / 512, plain, to)
        })
    }

    /// Encrypts `len` bytes to where they are kept. `None`: they may not have arrived there.
    pub(super) fn encrypt_mapped(
        &self,
        segments: &Segments,
        segment: usize,
        sector: u64,
        len: usize,
    ) -> Option<Result<(), Errno>> {
        let size = segments[segment].sector_size() as usize;
        self.runs(len, size, |at, plain| {
            segments.encrypt_mapped(segment, sector + at as u64 / 512, plain)
        })
    }

    /// Tells `len` bytes to `put` with their places, in runs of whole sectors as long as the pieces
    /// allow; a sector that lies in several of them is put together first. Ends with what `put` says
    /// unless that is that all is well.
    fn runs(
        &self,
        len: usize,
        size: usize,
        mut put: impl FnMut(usize, &[u8]) -> Option<Result<(), Errno>>,
    ) -> Option<Result<(), Errno>> {
        let (pieces, first) = match *self {
            Self::One(plain) => return put(0, plain),
            Self::Pieces(pieces, first) => (pieces, first),
        };
        let mut done = 0;
        while done < len {
            let plain = piece_at(pieces, first + done);
            let run = plain.len().min(len - done) / size * size;
            let result = if run > 0 {
                put(done, &plain[..run])
            } else {
                let mut together = [0; SECTOR_MAX];
                let Some(together) = together.get_mut(..size) else { return Some(Err(Errno::IO)) };
                copy_from(pieces, first + done, together);
                put(done, together)
            };
            match result {
                Some(Ok(())) => done += run.max(size),
                failed => return failed,
            }
        }
        Some(Ok(()))
    }
}

/// The rest of the piece that holds byte `first` of all of them; empty behind the last.
fn piece_at(pieces: &[Buf], mut first: usize) -> &[u8] {
    for piece in pieces {
        if first < piece.len() {
            return &piece[first..];
        }
        first -= piece.len();
    }
    &[]
}

/// Copies bytes from `first` on.
pub(super) fn copy_from(pieces: &[Buf], mut first: usize, mut to: &mut [u8]) {
    for piece in pieces {
        if first >= piece.len() {
            first -= piece.len();
            continue;
        }
        let from = &piece[first..];
        let len = from.len().min(to.len());
        to[..len].copy_from_slice(&from[..len]);
        (to, first) = (&mut to[len..], 0);
    }
}
