//! The crate's interface to the outside: how header bytes come in and how changes go out.
//!
//! The crate does no I/O. It reads through [`ReadAt`], returns changes as a list of [`Write`]s in
//! the order in which they have to reach the medium, and takes randomness and time as arguments.
//! This makes the crate testable on plain byte arrays.

use std::io;
use std::ops::Range;
use std::time::Duration;

use crate::backup::BACKUP_MAX;
use crate::error::{Error, Result};

/// A readable image: a file, a device or a byte array.
pub trait ReadAt {
    /// Length of the image in bytes.
    fn len(&self) -> u64;

    /// Fills `buf` from byte `offset` on. Callers request only ranges inside [`len`](Self::len).
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Whether the image has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl ReadAt for [u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let bytes = start
            .and_then(|start| Some(start..start.checked_add(buf.len())?))
            .and_then(|range| self.get(range))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }
}

impl ReadAt for Vec<u8> {
    fn len(&self) -> u64 {
        ReadAt::len(self.as_slice())
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.as_slice().read_exact_at(offset, buf)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for &T {
    fn len(&self) -> u64 {
        (**self).len()
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        (**self).read_exact_at(offset, buf)
    }
}

/// An image that can also be written.
pub trait Medium: ReadAt {
    /// Writes all of `bytes` from byte `offset` on. The write need not be durable yet.
    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Takes the space of `writes` before any of them is carried out, where that can be done: a change that
    /// finds no room half-way would be left half-done.
    fn reserve(&self, _writes: &[Write]) -> io::Result<()> {
        Ok(())
    }

    /// Makes all earlier writes durable.
    fn sync(&self) -> io::Result<()>;

    /// Forgets what is cached of these bytes, where the system can, so that the next read asks the
    /// medium. Bytes that are not synced stay.
    fn forget_cached(&self, offset: u64, length: u64);
}

/// Carries out `writes` in order, each durable before the next begins.
pub fn write_durably(medium: &dyn Medium, writes: &[Write]) -> Result<()> {
    for Write { offset, bytes } in writes {
        let (offset, length) = (*offset, bytes.len());
        let written = medium.write_all_at(offset, bytes).and_then(|()| medium.sync());
        written.map_err(|source| {
            // After a failed flush the system reports the loss once, and goes on showing the bytes.
            medium.forget_cached(offset, length as u64);
            Error::Write { offset, length, source }
        })?;
    }
    Ok(())
}

/// Makes durable what earlier changes have written, and forgets what is cached of the header, up to
/// its greatest length: what is read from now on is on the medium.
///
/// A change that was interrupted, or whose flush failed, leaves bytes in the system's cache that
/// look as if they were stored. Whoever reads a header to change it calls this first: otherwise a
/// key could be wiped because of a new one that exists only in memory.
pub fn settle_cache(medium: &dyn Medium) -> Result<()> {
    let synced = medium.sync().map_err(Error::Sync);
    medium.forget_cached(0, medium.len().min(BACKUP_MAX));
    synced
}

/// As [`write_durably`], and reads each write back before the next begins. Nothing is destroyed
/// before what replaces it is known to be on the medium.
pub fn write_verified(medium: &dyn Medium, writes: &[Write]) -> Result<()> {
    for write in writes {
        write_durably(medium, std::slice::from_ref(write))?;
        let length = write.bytes.len();
        medium.forget_cached(write.offset, length as u64);
        let mut stored = zeroed(length as u64)?;
        medium.read_exact_at(write.offset, &mut stored).map_err(|source| Error::Read {
            offset: write.offset,
            length,
            source,
        })?;
        if stored != write.bytes {
            return Err(Error::NotStored { offset: write.offset, length });
        }
    }
    Ok(())
}

/// As [`write_verified`], and begins only if there is room for all of `writes`.
pub fn write_reserved(medium: &dyn Medium, writes: &[Write]) -> Result<()> {
    medium.reserve(writes).map_err(Error::NoRoom)?;
    write_verified(medium, writes)
}

/// A write of `length` random bytes: what lay there cannot be read again.
pub(crate) fn wipe(offset: u64, length: u64, random: Random<'_>) -> Result<Write> {
    let mut bytes = zeroed(length)?;
    fill_random(random, &mut bytes)?;
    Ok(Write { offset, bytes })
}

/// As [`wipe`], for a range of any length, in writes of a MiB: what is wiped of it grows steadily.
pub(crate) fn wipe_range(range: Range<u64>, random: Random<'_>) -> Result<Vec<Write>> {
    const PIECE_BYTES: usize = 1 << 20;
    let pieces = range.clone().step_by(PIECE_BYTES);
    pieces.map(|start| wipe(start, (range.end - start).min(PIECE_BYTES as u64), random)).collect()
}

/// Bytes to be written to the image that holds the header.
///
/// A list of writes must be carried out in order, each durable (`fdatasync`) before the next begins
/// ([`write_durably`], [`write_verified`]). An interruption then never leaves a header that looks
/// whole but is not.
#[derive(Clone, PartialEq, Eq)]
pub struct Write {
    /// First byte in the image.
    pub offset: u64,
    /// The bytes to write.
    pub bytes: Vec<u8>,
}

impl std::fmt::Debug for Write {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The bytes may be key material.
        write!(f, "Write {{ offset: {}, length: {} }}", self.offset, self.bytes.len())
    }
}

/// A source of cryptographic-quality random bytes; it fills the whole buffer or fails.
pub type Random<'a> = &'a mut dyn FnMut(&mut [u8]) -> io::Result<()>;

/// What a [`Clock`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// Real time, for what several threads do together.
    Real,
    /// Time for which the calling thread ran. Other programs, and a control group's limit, do not
    /// lengthen it. Real time where the system does not count it.
    Thread,
}

/// A clock: time since some fixed moment, never running backwards.
pub type Clock<'a> = &'a mut dyn FnMut(Time) -> Duration;

/// Fills `buf` with random bytes.
pub(crate) fn fill_random(random: Random<'_>, buf: &mut [u8]) -> Result<()> {
    random(buf).map_err(Error::Random)
}

/// Reads `length` bytes, which errors call `what`. Allocates only after checking that the range
/// lies inside the image and that `length` does not exceed `limit`.
pub(crate) fn read_bytes(
    image: &dyn ReadAt,
    what: &str,
    offset: u64,
    length: u64,
    limit: u64,
) -> Result<Vec<u8>> {
    if length > limit {
        return Err(Error::damaged(what, format!("its {length} bytes exceed {limit}")));
    }
    let end = offset.checked_add(length);
    if end.is_none_or(|end| end > image.len()) {
        return Err(Error::Truncated {
            what: what.to_owned(),
            offset,
            end: end.unwrap_or(u64::MAX),
            image_len: image.len(),
        });
    }
    let mut buf = zeroed(length)?;
    let length = buf.len();
    image.read_exact_at(offset, &mut buf).map_err(|source| Error::Read {
        offset,
        length,
        source,
    })?;
    Ok(buf)
}

/// A buffer of `length` zero bytes, or [`Error::OutOfMemory`].
pub(crate) fn zeroed(length: u64) -> Result<Vec<u8>> {
    let failed = Error::OutOfMemory { bytes: length };
    let Ok(length) = usize::try_from(length) else { return Err(failed) };
    let mut buf = Vec::new();
    if buf.try_reserve_exact(length).is_err() {
        return Err(failed);
    }
    buf.resize(length, 0);
    Ok(buf)
}
