//! What a new header needs beside itself: a sector size, room, and an image that may be overwritten.

use std::fs::File;
use std::path::Path;

use ucrypt_backend::{Backend, FileBackend};
use ucrypt_luks::{Header, Write};

use crate::error::Error;

/// The default sector size for `image` with `data_len` bytes of data: larger sectors cost less. A file
/// takes 4096, a device its physical block size, if the data length is a multiple of it; else 512.
pub fn best_sector_size(image: &Path, data_len: u64) -> u32 {
    let physical = File::open(image).ok().and_then(|file| {
        if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Some(4096);
        }
        rustix::fs::ioctl_blkpbszget(&file).ok()
    });
    match physical {
        Some(size @ (1024 | 2048 | 4096)) if data_len.is_multiple_of(u64::from(size)) => size,
        _ => 512,
    }
}

/// Refuses an image that a new header does not fit into: `medium` at `path`, a file of its own if the
/// header is `detached`. Returns whether it leaves room for data.
pub fn check_room(
    made: &Header,
    writes: &[Write],
    medium: &FileBackend,
    path: &Path,
    detached: bool,
) -> Result<bool, Error> {
    let needed = writes.iter().map(|write| write.offset + write.bytes.len() as u64).max();
    let data_offset = if detached { 0 } else { made.data_offset() };
    let needed = needed.unwrap_or(0).max(data_offset);
    // A header file grows as it is written.
    let may_grow = detached && path.is_file();
    let len = medium.limits().len;
    if needed > len && !may_grow {
        let remedy = if detached { "use another one" } else { "enlarge it, or use --header" };
        return Err(Error::TooShort { path: path.into(), len, needed, remedy });
    }
    Ok(needed != len || detached)
}
