//! Operations carried out at once on the calling thread.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FallocateFlags, fallocate, fdatasync};
use rustix::io::{ReadWriteFlags, pread, pwrite, pwritev2, retry_on_intr};

use super::bounce::Bounces;
use super::{Files, Flusher};
use crate::{Buf, Done, Errno, Io, total_len};

/// Fills `buf` from `offset`. A file that ends earlier is an I/O error.
pub(crate) fn read_full(fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> Result<(), Errno> {
    read_at_least(fd, buf, buf.len(), offset)
}

/// Fills at least `len` bytes of `buf` from `offset`: direct I/O reads whole blocks, and a file may
/// end within one.
fn read_at_least(fd: BorrowedFd<'_>, buf: &mut [u8], len: usize, offset: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        match pread(fd, &mut buf[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all of `buf` at `offset`; durable if `fua`.
pub(super) fn write_full(
    fd: BorrowedFd<'_>,
    buf: &[u8],
    offset: u64,
    fua: bool,
) -> Result<(), Errno> {
    let mut done = 0;
    // Linux before 4.7 and other kernels with its calls cannot make a single write durable.
    let mut by_flush = false;
    while done < buf.len() {
        let rest = &buf[done..];
        let at = offset + done as u64;
        let written = if fua && !by_flush {
            pwritev2(fd, &[std::io::IoSlice::new(rest)], at, ReadWriteFlags::DSYNC)
        } else {
            pwrite(fd, rest, at)
        };
        match written {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) if fua && !by_flush => {
                by_flush = true;
            }
            Err(error) => return Err(error),
        }
    }
    if by_flush { flush(fd) } else { Ok(()) }
}

pub(super) fn flush(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    retry_on_intr(|| fdatasync(fd))
}

/// Punches a hole: returns the range to the file system or device. It reads as zeroes afterwards.
fn punch(files: &Files, offset: u64, len: u64) -> Result<(), Errno> {
    if !files.punches {
        return Err(Errno::OPNOTSUPP);
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let punched = retry_on_intr(|| fallocate(files.buffered.as_fd(), flags, offset, len));
    if let Some(mapping) = &files.mapping {
        mapping.forget(offset, len);
    }
    punched
}

fn read(
    files: &Files,
    bounces: &mut Bounces,
    mut offset: u64,
    bufs: &mut [Buf],
) -> Result<(), Errno> {
    if let Some(mut bounce) = bounces.for_read(files.direct.as_ref(), offset, bufs)?.alone()? {
        let fd = files.for_transfer(bounce.offset, bounce.len as u64);
        let (at, len) = (bounce.offset, bounce.asked());
        let result = read_at_least(fd, bounce.bytes(), len, at);
        if result.is_ok() {
            bounce.hand_to(bufs);
        }
        return result;
    }
    let fd = files.for_transfer(offset, total_len(bufs) as u64);
    bufs.iter_mut().try_for_each(|buf| {
        let at = offset;
        offset += buf.len() as u64;
        read_full(fd, buf, at)
    })
}

fn write(
    files: &Files,
    bounces: &mut Bounces,
    mut offset: u64,
    bufs: &[Buf],
    fua: bool,
) -> Result<(), Errno> {
    let len = total_len(bufs) as u64;
    files.cut.check_write(offset + len, files.cut.len_now(files.buffered.as_fd()))?;
    let fd = files.for_transfer(offset, len);
    if let Some(mut bounce) = bounces.for_write(files.direct.as_ref(), offset, bufs)?.alone()? {
        return write_full(fd, bounce.bytes(), offset, fua);
    }
    bufs.iter().try_for_each(|buf| {
        let at = offset;
        offset += buf.len() as u64;
        write_full(fd, buf, at, fua)
    })
}

/// Carries out one operation.
pub(super) fn perform(files: &Files, flusher: &Flusher, bounces: &mut Bounces, io: Io) -> Done {
    match io {
        Io::Read { token, offset, mut bufs } => {
            let end = offset + total_len(&bufs) as u64;
            let result =
                files.cut.check(end).and_then(|()| read(files, bounces, offset, &mut bufs));
            if result == Err(Errno::IO) {
                files.cut.found_end(files.buffered.as_fd(), end);
            }
            Done { token, result, bufs }
        }
        Io::Write { token, offset, bufs, fua } => {
            let end = offset + total_len(&bufs) as u64;
            let by_flush = fua && files.by_file.is_some();
            let mut written = write(files, bounces, offset, &bufs, fua && !by_flush);
            if by_flush {
                // The kernel leaves the flush out where such a write goes past the page cache.
                written = written.and_then(|()| files.flush(flusher));
            }
            Done { token, result: files.written(end, fua, written), bufs }
        }
        Io::Flush { token } => {
            let flushing = files.cut.begin_flush();
            let flushed = files.flush(flusher);
            Done { token, result: files.flushed(flushing, flushed), bufs: Vec::new() }
        }
        Io::Discard { token, offset, len } => {
            let whole = files.discardable(offset, len);
            let punched = |()| whole.map_or(Ok(()), |(offset, len)| punch(files, offset, len));
            let result = files.cut.check(offset + len).and_then(punched);
            Done { token, result, bufs: Vec::new() }
        }
        Io::WriteZeroes { token, offset, len } => {
            let now = files.cut.len_now(files.buffered.as_fd());
            let in_file = files.cut.check_write(offset + len, now);
            let zeroed = in_file.and_then(|()| punch(files, offset, len));
            Done { token, result: files.written(offset + len, false, zeroed), bufs: Vec::new() }
        }
    }
}
