//! Requests over the client's own memory, in pieces: reads are decrypted in the pieces, writes are
//! encrypted from them.
//!
//! A read of whole sectors whose pieces are all whole sectors, at addresses that the backend takes, is
//! read straight into them and decrypted there; any other read goes through a buffer of the queue and is
//! copied at the end. A write always has a buffer of the queue for its ciphertext; its plaintext is read
//! once, when a chunk of it is encrypted. The pieces belong to the queue until the request has ended.

use ucrypt_backend::{Buf, Errno};
use ucrypt_dispatch::Part;

use super::Queue;
use super::tables::{ClientRequest, MachineRequest, Role};
use crate::segments::Segments;

/// The largest sector in bytes.
const SECTOR_BYTES_MAX: usize = 4096;

impl Queue {
    /// Ends a request over the client's memory: copies `data`, if it was read into a buffer of the
    /// queue, to the client's pieces, and drops them.
    pub(super) fn deliver(&mut self, index: u32, data: Option<Buf>) {
        let pieces = &mut self.requests[index].pieces;
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

/// The plaintext of a write, in its owner's memory.
pub(super) enum Plain<'a> {
    One(&'a [u8]),
    /// Pieces end to end, from the byte with this number on.
    Pieces(&'a [Buf], usize),
}

impl<'a> Plain<'a> {
    /// The plaintext of a part of the machine request `request`, which belongs to `client`; `None`
    /// if the part's buffer holds it. `borrowed`: the borrowed plaintext of `request`, if it has
    /// any.
    pub(super) fn of(
        part: &Part,
        request: &MachineRequest,
        borrowed: Option<&'a [u8]>,
        client: &'a ClientRequest,
    ) -> Option<Self> {
        if let Some(plain) = borrowed {
            let first = (part.sector - request.first_sector) as usize * 512;
            return plain.get(first..first + part.sectors as usize * 512).map(Self::One);
        }
        // The buffer of an edge holds its whole sector, with the new bytes in it.
        if client.pieces.is_empty() || request.role != Role::Body {
            return None;
        }
        Some(Self::Pieces(&client.pieces, (part.sector * 512 - client.range.start) as usize))
    }

    /// Copies plaintext to `to`; bytes behind the end of the pieces stay as they are.
    pub(super) fn copy(&self, to: &mut [u8]) {
        match *self {
            Self::One(plain) => to.copy_from_slice(plain),
            Self::Pieces(pieces, first) => copy_from(pieces, first, to),
        }
    }

    /// Encrypts `to.len()` bytes into `to`. `None`: the segment has no cipher.
    pub(super) fn encrypt(
        &self,
        segments: &Segments,
        segment: usize,
        sector: u64,
        to: &mut [u8],
    ) -> Option<Result<(), Errno>> {
        let size = segments[segment].sector_size as usize;
        self.runs(to.len(), size, |at, plain| {
            let to = to.get_mut(at..at + plain.len())?;
            segments.encrypt_from(segment, sector + at as u64 / 512, plain, to)
        })
    }

    /// Encrypts `len` bytes to where the backend keeps them. `None`: they may not have arrived.
    pub(super) fn encrypt_mapped(
        &self,
        segments: &Segments,
        segment: usize,
        sector: u64,
        len: usize,
    ) -> Option<Result<(), Errno>> {
        let size = segments[segment].sector_size as usize;
        self.runs(len, size, |at, plain| {
            segments.encrypt_mapped(segment, sector + at as u64 / 512, plain)
        })
    }

    /// Passes `len` bytes to `put` with their offsets, in runs of whole sectors as long as the
    /// pieces allow. A sector that spans several pieces is assembled first. Stops at the first
    /// result of `put` that is not success, and returns it.
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
                let mut together = [0; SECTOR_BYTES_MAX];
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

/// The rest of the piece that holds byte `first`, counted over all pieces; empty behind the last.
fn piece_at(pieces: &[Buf], mut first: usize) -> &[u8] {
    for piece in pieces {
        if first < piece.len() {
            return &piece[first..];
        }
        first -= piece.len();
    }
    &[]
}

/// Fills `to` with bytes from `first` on, counted over all pieces.
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
