//! Images as the header code sees them.

use std::fs::{File, OpenOptions as CreateOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use ucrypt_backend::{Backend, FileBackend, OpenOptions};
use ucrypt_luks::{Header, Medium, ReadAt, Write};

use crate::failure::Failure;
use crate::stdio::say_line;

/// An image that a header is read from and written to.
pub(crate) struct HeaderImage<'a>(pub(crate) &'a FileBackend);

impl ReadAt for HeaderImage<'_> {
    fn len(&self) -> u64 {
        self.0.limits().len
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        Ok(self.0.read_exact_at(offset, buf)?)
    }
}

impl Medium for HeaderImage<'_> {
    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        Ok(self.0.write_all_at(offset, bytes)?)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(self.0.sync()?)
    }

    fn forget_cached(&self, offset: u64, length: u64) {
        self.0.forget_cached(offset, length);
    }
}

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

/// Makes the file of a header at least `len` bytes long.
pub(super) fn grow(path: &Path, len: u64) -> Result<(), Failure> {
    let grow = || {
        let file = File::options().write(true).open(path)?;
        if file.metadata()?.len() < len {
            file.set_len(len)?;
            file.sync_all()?;
        }
        Ok(())
    };
    grow().map_err(|error: io::Error| {
        Failure::device(format!("no room for the header in {}: {error}", path.display()))
    })
}

/// Opens an image to read its header, even if the image is in use.
pub(super) fn open_to_look(path: &Path) -> Result<FileBackend, Failure> {
    let options = OpenOptions { read_only: true, unlocked: true, ..OpenOptions::default() };
    Ok(FileBackend::open(path, options)?)
}

/// Opens an image to overwrite it: nobody else may be using it.
pub(super) fn open_to_format(path: &Path) -> Result<FileBackend, Failure> {
    Ok(FileBackend::open(path, OpenOptions::default())?)
}

/// A new file for a detached header. Dropping it removes the file unless it was kept.
pub(super) struct NewFile<'a> {
    path: &'a Path,
    kept: bool,
}

impl<'a> NewFile<'a> {
    /// Creates the file. Returns `None` if it exists.
    pub(super) fn create(path: &'a Path) -> Result<Option<Self>, Failure> {
        let made = CreateOptions::new().write(true).create_new(true).mode(0o600).open(path);
        match made {
            Ok(_) => Ok(Some(Self { path, kept: false })),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => {
                Err(Failure::device(format!("cannot create {}: {error}", path.display())))
            }
        }
    }

    /// Keeps the file, and makes its name durable.
    pub(super) fn keep(mut self) -> Result<(), Failure> {
        self.kept = true;
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(|error| {
            Failure::device(format!("cannot make {} durable: {error}", self.path.display()))
        })
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if !self.kept {
            // The file is empty or half written: it does no harm if it stays.
            let _ = std::fs::remove_file(self.path);
        }
    }
}

/// Reserves the space of `writes` in a file before anything is written, so that a full disk is
/// reported while everything is still as it was.
pub(super) fn reserve(path: &Path, writes: &[Write]) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        Failure::device(format!("no room for the header in {}: {error}", path.display()))
    };
    let file = File::options().write(true).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Ok(());
    }
    for write in writes {
        let length = write.bytes.len() as u64;
        match fallocate(&file, FallocateFlags::KEEP_SIZE, write.offset, length) {
            // Where space cannot be reserved, the write itself has to find it.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(failed(error.into())),
        }
    }
    Ok(())
}

/// Reads the header. Reports a damaged LUKS2 copy and leaves it as it is.
pub(super) fn read_header(image: &FileBackend, path: &Path) -> Result<Header, Failure> {
    let (header, damage) = Header::read(&HeaderImage(image))
        .map_err(|error| Failure::from(error).about(path.display()))?;
    if let Some(damage) = damage {
        say_line(format_args!("{damage}; using the other one"));
    }
    Ok(header)
}
