//! A disk in memory: a file without a name. The kernel keeps concurrent access to it sound, it has
//! holes, and it takes the same path as an image on tmpfs.

use std::io;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::file::FileBackend;

/// A disk of `len` zero bytes in memory; pages are allocated when they are written.
pub fn memory(len: u64) -> io::Result<FileBackend> {
    let fd = memfd_create("ucrypt-memory", MemfdFlags::CLOEXEC)?;
    ftruncate(&fd, len)?;
    FileBackend::from_fd(fd, format!("mem:{len}"), false)
}
