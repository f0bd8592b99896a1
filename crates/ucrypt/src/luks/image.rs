//! Images as the header code sees them.

use std::fs::OpenOptions as CreateOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use ucrypt_backend::{Backend, FileBackend, OpenOptions};
use ucrypt_luks::{Header, ReadAt, Write};

use crate::failure::Failure;
use crate::stdio::say_line;

/// An image that a header is read from.
pub(crate) struct HeaderImage<'a>(pub(crate) &'a FileBackend);

impl ReadAt for HeaderImage<'_> {
    fn len(&self) -> u64 {
        self.0.limits().len
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        Ok(self.0.read_exact_at(offset, buf)?)
    }
}

/// Opens an image to look at its header, in use or not.
pub(super) fn open_to_look(path: &Path) -> Result<FileBackend, Failure> {
    let options = OpenOptions { read_only: true, unlocked: true, ..OpenOptions::default() };
    Ok(FileBackend::open(path, options)?)
}

/// Opens an image that is going to be overwritten: nobody else may have it.
pub(super) fn open_to_format(path: &Path) -> Result<FileBackend, Failure> {
    Ok(FileBackend::open(path, OpenOptions::default())?)
}

/// Makes an empty file for a detached header, if there is none.
pub(super) fn create_header_file(path: &Path) -> Result<(), Failure> {
    let made = CreateOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(Failure::device(format!("cannot create {}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

/// Reads the header; a damaged LUKS2 copy is told and left as it is.
pub(super) fn read_header(image: &FileBackend, path: &Path) -> Result<Header, Failure> {
    let (header, damage) = Header::read(&HeaderImage(image))
        .map_err(|error| Failure::from(error).about(path.display()))?;
    if let Some(damage) = damage {
        say_line(damage);
    }
    Ok(header)
}

/// Carries out writes in their order, each durable before the next begins.
pub(crate) fn write_durably(image: &FileBackend, writes: &[Write]) -> Result<(), Failure> {
    for write in writes {
        let failed = |error: ucrypt_backend::Errno| {
            Failure::device(format!("cannot write the header at byte {}: {error}", write.offset))
        };
        image.write_all_at(write.offset, &write.bytes).map_err(failed)?;
        image.sync().map_err(failed)?;
    }
    Ok(())
}
