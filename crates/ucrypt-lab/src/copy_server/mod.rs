//! Servers that do nothing but copy: what a server adds to an image at the least, with three system calls a request.
//!
//! They are the ceilings of the ways on which programs reach a volume: a file by FUSE, and a Unix socket by NBD.
//! One of several threads takes a request, reads or writes the image past the page cache, and answers.

mod fuse;
mod nbd;

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

pub use fuse::serve as by_fuse;
pub use nbd::serve as by_nbd;

/// Requests under way at once.
const THREADS: usize = 32;

/// Alignment that direct I/O takes everywhere.
const PAGE_BYTES: usize = 4096;

/// Longest request of FUSE in bytes, and of NBD for which there is memory from the start.
const DATA_MAX: usize = 1 << 20;

/// Memory for direct I/O.
struct Pages {
    memory: Vec<u8>,
    start: usize,
}

impl Pages {
    fn new(len: usize) -> Self {
        let memory = vec![0; len + PAGE_BYTES];
        let start = memory.as_ptr().align_offset(PAGE_BYTES);
        Self { memory, start }
    }

    /// The first `len` bytes. There are more from now on if there were too few.
    fn front(&mut self, len: usize) -> &mut [u8] {
        if self.memory.len() < len + PAGE_BYTES {
            *self = Self::new(len);
        }
        &mut self.memory[self.start..self.start + len]
    }
}

/// An image that is read and written past the page cache, where requests are aligned.
struct Image {
    direct: File,
    cached: File,
    len: u64,
}

impl Image {
    fn open(path: &Path) -> io::Result<Self> {
        let direct = i32::try_from(OFlags::DIRECT.bits()).map_err(io::Error::other)?;
        let open = |flags| File::options().read(true).write(true).custom_flags(flags).open(path);
        let mut cached = open(0)?;
        // Of a block device, too.
        let len = cached.seek(SeekFrom::End(0))?;
        let direct = match open(direct) {
            // There is no direct I/O on older tmpfs.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => cached.try_clone()?,
            other => other?,
        };
        Ok(Self { direct, cached, len })
    }

    fn file(&self, offset: u64, len: usize) -> &File {
        let page = PAGE_BYTES as u64;
        let is_aligned = offset.is_multiple_of(page) && (len as u64).is_multiple_of(page);
        if is_aligned { &self.direct } else { &self.cached }
    }

    /// Bytes that were read: fewer than asked for at the end of the image.
    fn read(&self, data: &mut [u8], offset: u64) -> io::Result<usize> {
        let wanted = self.len.saturating_sub(offset).min(data.len() as u64) as usize;
        self.file(offset, wanted).read_exact_at(&mut data[..wanted], offset)?;
        Ok(wanted)
    }

    fn write(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.file(offset, data.len()).write_all_at(data, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.cached.sync_data()
    }
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}
