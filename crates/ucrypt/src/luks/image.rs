//! Images as the header code sees them.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use ucrypt_backend::FileBackend;
use ucrypt_image::header;
pub(crate) use ucrypt_image::header::HeaderImage;
pub(super) use ucrypt_image::header::{
    NewFile, PRIVATE, READ_ONLY, check_same, lock_and_reserve, lock_opened, open_to_format,
    open_to_look, reserve, reserve_in,
};
use ucrypt_luks::{Header, ReadAt};

use crate::failure::Failure;
use crate::stdio::say_line;

/// An image with zeroes behind its end: what the file of a header is after [`grow`].
pub(super) struct Grown<'a> {
    pub(super) image: HeaderImage<'a>,
    /// The least length in bytes.
    pub(super) len: u64,
}

impl ReadAt for Grown<'_> {
    fn len(&self) -> u64 {
        self.image.len().max(self.len)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let there = self.image.len().saturating_sub(offset);
        let there = usize::try_from(there).map_or(buf.len(), |there| there.min(buf.len()));
        let (there, behind) = buf.split_at_mut(there);
        behind.fill(0);
        if there.is_empty() { Ok(()) } else { self.image.read_exact_at(offset, there) }
    }
}

/// Makes the file of a header, which was opened by `path` as `look`, at least `len` bytes long.
pub(super) fn grow(path: &Path, look: &FileBackend, len: u64) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::device(format!("no room for the header in {}: {error}", path.display()))
    };
    // Else a pipe in its place would wait for somebody at its other end.
    let no_wait = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().write(true).custom_flags(no_wait).open(path).map_err(failed)?;
    check_same(look, &file, path)?;
    let grow = || {
        if file.metadata()?.len() < len {
            file.set_len(len)?;
            file.sync_all()?;
        }
        Ok(())
    };
    grow().map_err(failed)
}

/// Reads the header. Reports a damaged LUKS2 copy and leaves it as it is.
pub(super) fn read_header(image: &FileBackend, path: &Path) -> Result<Header, Failure> {
    let (header, damage) = header::read_header(&HeaderImage(image), path)
        .map_err(|error| Failure::from(error).about(path.display()))?;
    if let Some(damage) = damage {
        say_line(format_args!("{damage}; using the other one"));
    }
    Ok(header)
}
