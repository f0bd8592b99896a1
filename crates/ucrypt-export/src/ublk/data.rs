//! Moves the data of requests between the kernel and us.
//!
//! - *User copy*: we copy, with pread and pwrite at the request's position in the character device.
//!   Memory is needed only while a request is in flight.
//! - *Buffers*: the kernel copies to and from a buffer that the tag keeps. It copies inside our own
//!   system calls (while a command is submitted or waited for), never while we access the memory.
//!   Devices of users without privileges have only this.

use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::io::{Errno, pread, pwrite};
use ucrypt_engine::{Buf, Pool};

use super::abi::data_position;

pub(super) enum Data {
    UserCopy {
        device: Arc<File>,
        queue: u16,
    },
    /// One buffer for each tag.
    Buffers(Vec<Buf>),
}

impl Data {
    /// Allocates a buffer for each of `depth` tags.
    pub(super) fn buffers(depth: u16, io_bytes_max: u32) -> io::Result<Self> {
        let pool = Pool::new(usize::from(depth) * io_bytes_max as usize)?;
        let buffers = (0..depth).map(|_| pool.alloc(io_bytes_max as usize));
        let buffers: Option<_> = buffers.collect();
        Ok(Self::Buffers(buffers.ok_or(io::ErrorKind::OutOfMemory)?))
    }

    /// The address of the tag's buffer, which lives as long as `self`; 0 if there is none.
    pub(super) fn address(&mut self, tag: u16) -> u64 {
        match self {
            Self::UserCopy { .. } => 0,
            Self::Buffers(buffers) => {
                buffers.get_mut(usize::from(tag)).map_or(0, |buffer| buffer.as_mut_ptr() as u64)
            }
        }
    }

    /// Fills `to` with the data of a write request.
    pub(super) fn take(&mut self, tag: u16, to: &mut [u8]) -> Result<(), Errno> {
        match self {
            Self::UserCopy { device, queue } => {
                let position = data_position(*queue, tag);
                whole(to.len(), |done| pread(&*device, &mut to[done..], position + done as u64))
            }
            Self::Buffers(buffers) => {
                let from = buffers.get(usize::from(tag)).and_then(|from| from.get(..to.len()));
                to.copy_from_slice(from.ok_or(Errno::INVAL)?);
                Ok(())
            }
        }
    }

    /// Hands `from` to a read request, from its byte `at` on.
    pub(super) fn give(&mut self, tag: u16, from: &[u8], at: u64) -> Result<(), Errno> {
        match self {
            Self::UserCopy { device, queue } => {
                let position = data_position(*queue, tag) + at;
                whole(from.len(), |done| pwrite(&*device, &from[done..], position + done as u64))
            }
            Self::Buffers(buffers) => {
                let to = buffers.get_mut(usize::from(tag)).and_then(|to| to.get_mut(at as usize..));
                let to = to.and_then(|to| to.get_mut(..from.len()));
                to.ok_or(Errno::INVAL)?.copy_from_slice(from);
                Ok(())
            }
        }
    }

    /// Leaks the buffers: the kernel may still write to them.
    pub(super) fn leak(&mut self) {
        if let Self::Buffers(buffers) = self {
            std::mem::forget(std::mem::take(buffers));
        }
    }
}

/// Repeats `transfer` until all `len` bytes are done.
fn whole(
    len: usize,
    mut transfer: impl FnMut(usize) -> rustix::io::Result<usize>,
) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        match transfer(done) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
