//! What a new header needs beside itself: a sector size, room, and an image that may be overwritten.

use std::fs::File;
use std::path::Path;

use ucrypt_backend::{Backend, FileBackend};
use ucrypt_luks::luks2::SegmentKind;
use ucrypt_luks::{Header, SECTOR_BYTES, Write};
use ucrypt_sector::CipherSpec;

use crate::error::Error;
use crate::header::is_same;

/// Refuses to overwrite what a key is read from: `keys` are files that are read, `overwritten` the image
/// and the file of the header. Of what does not exist yet, only the names are compared.
///
/// # Errors
/// [`Error::Overwrites`].
pub fn check_apart<'a>(
    overwritten: impl IntoIterator<Item = &'a Path>,
    keys: &[&Path],
) -> Result<(), Error> {
    for path in overwritten {
        if let Some(key) = keys.iter().find(|key| **key == path || is_same(key, path)) {
            return Err(Error::Overwrites { key: key.into(), path: path.into() });
        }
    }
    Ok(())
}

/// The sector size in bytes of a new LUKS2 volume whose data is in `image`, which has `data_len` bytes:
/// the one `asked` for, else the default.
///
/// # Errors
/// [`Error::SectorSize`] if more than 512 bytes were asked for and the length is no multiple of them:
/// dm-crypt does not activate such a volume. A size that no header takes is left to the format.
pub fn sector_size(
    asked: Option<u32>,
    cipher: &CipherSpec,
    image: &Path,
    data_len: u64,
) -> Result<u32, Error> {
    let Some(sector_size) = asked else { return Ok(best_sector_size(cipher, image, data_len)) };
    // As in cryptsetup, what is less than a sector of 512 bytes at the end is not used.
    let is_larger = matches!(sector_size, 1024 | 2048 | 4096);
    if is_larger && !data_len.is_multiple_of(u64::from(sector_size)) {
        return Err(Error::SectorSize { path: image.into(), len: data_len, sector_size });
    }
    Ok(sector_size)
}

/// The default sector size: larger sectors cost less. A file takes 4096, a device its physical block
/// size, if the data length is a multiple of it and the cipher takes such sectors; else 512.
fn best_sector_size(cipher: &CipherSpec, image: &Path, data_len: u64) -> u32 {
    if !cipher.takes_large_sectors() {
        return 512;
    }
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
/// header is `detached`.
///
/// # Errors
/// [`Error::TooShort`].
pub fn check_room(
    made: &Header,
    writes: &[Write],
    medium: &FileBackend,
    path: &Path,
    detached: bool,
) -> Result<(), Error> {
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
    Ok(())
}

/// Whether the image `data` has room for at least one sector of the volume. Without, the volume does not
/// open.
pub fn has_room_for_data(made: &Header, data: &FileBackend) -> bool {
    let sector_size = match made {
        Header::Luks1(_) => SECTOR_BYTES,
        Header::Luks2(header) => {
            let sizes = header.metadata.segments.values().map(|segment| match segment.kind {
                SegmentKind::Crypt { sector_size, .. } => u64::from(sector_size),
                SegmentKind::Other(_) => SECTOR_BYTES,
            });
            sizes.max().unwrap_or(SECTOR_BYTES)
        }
    };
    data.limits().len.saturating_sub(made.data_offset()) >= sector_size
}
