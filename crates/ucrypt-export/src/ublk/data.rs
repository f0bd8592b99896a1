//! How the data of requests crosses between the kernel and us.
//!
//! - *User copy*: we copy, by pread and pwrite at a place of the character device that stands for
//!   the request. Memory is needed only while a request is under way.
//! - *Buffers*: the kernel copies, to and from a buffer that the tag keeps. It does so inside our
//!   own system calls (while a command is handed over or waited for), never while we look at the
//!   memory. Devices of users without privileges have only this.

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
    /// By tag.
    Buffers(Vec<Buf>),
}

impl Data {
    /// A buffer for each of `depth` tags.
    pub(super) fn buffers(depth: u16, io_bytes_max: u32) -> io::Result<Self> {
        let pool = Pool::new(usize::from(depth) * io_bytes_max as usize)?;
        let buffers = (0..depth).map(|_| pool.alloc(io_bytes_max as usize));
        let buffers: Option<_> = buffers.collect();
        Ok(Self::Buffers(buffers.ok_or(io::ErrorKind::OutOfMemory)?))
    }

    /// The address of the tag's buffer, if it has one; it lives as long as `self`.
    pub(super) fn address(&mut self, tag: u16) -> u64 {
        match self {
            Self::UserCopy { .. } => 0,
            Self::Buffers(buffers) => {
                buffers.get_mut(usize::from(tag)).map_or(0, |buffer| buffer.as_mut_ptr() as u64)
            }
        }
    }

    /// Fills `to` with what a request wants written.
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

    /// Hands over what a request wanted to read, from byte `at` of it on.
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

    /// Never frees the buffers: the kernel may still write to them.
    pub(super) fn leak(&mut self) {
        if let Self::Buffers(buffers) = self {
            std::mem::forget(std::mem::take(buffers));
        }
    }
}

/// Goes on until all of `len` bytes are transferred.
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
