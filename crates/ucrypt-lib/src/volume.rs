//! An open volume.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use ucrypt_engine::Io;
use ucrypt_image::transfer::{self, Writer};
use ucrypt_luks::Unlocked;

use crate::error::{IoError, ServeError};
use crate::file::VolumeFile;
use crate::queues::Queues;
use crate::serve::{NbdServer, ServedFile};

/// Most bytes that are zeroed at a time: who writes a part of a sector nearby waits for no more than that.
const PIECE_BYTES: u64 = 64 << 20;

/// Where the description of a volume comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// No header.
    Plain,
    /// A LUKS1 header.
    Luks1,
    /// A LUKS2 header.
    Luks2,
}

impl Format {
    /// `plain`, `luks1` or `luks2`, as cryptsetup's `--type`.
    pub fn name(self) -> &'static str {
        self.to_luks().name()
    }

    pub(crate) fn to_luks(self) -> ucrypt_luks::Format {
        match self {
            Self::Plain => ucrypt_luks::Format::Plain,
            Self::Luks1 => ucrypt_luks::Format::Luks1,
            Self::Luks2 => ucrypt_luks::Format::Luks2,
        }
    }

    pub(crate) fn of_luks(format: ucrypt_luks::Format) -> Self {
        match format {
            ucrypt_luks::Format::Plain => Self::Plain,
            ucrypt_luks::Format::Luks1 => Self::Luks1,
            ucrypt_luks::Format::Luks2 => Self::Luks2,
        }
    }
}

/// What is known of an open volume.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Facts {
    /// Where the description comes from.
    pub format: Format,
    /// Cipher, mode and IV in dm-crypt's notation.
    pub cipher: String,
    /// Length of the volume key in bits.
    pub key_bits: usize,
    /// Bytes that are encrypted as one: 512, 1024, 2048 or 4096.
    pub sector_size: u32,
    /// Where the data starts in the image, in bytes.
    pub data_offset: u64,
    /// Bytes of the volume.
    pub size: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether discards reach the image.
    pub discards: bool,
    /// The UUID of the header.
    pub uuid: Option<String>,
    /// The label of a LUKS2 header, if it has one.
    pub label: Option<String>,
    /// The keyslot that the passphrase has opened.
    pub keyslot: Option<u32>,
}

pub(crate) fn facts(volume: &ucrypt_engine::Volume, unlocked: &Unlocked) -> Facts {
    let info = volume.info();
    let first = unlocked.segments.first();
    Facts {
        format: Format::of_luks(unlocked.format),
        cipher: first.map_or_else(String::new, |segment| segment.cipher.to_string()),
        key_bits: unlocked.volume_key.len() * 8,
        sector_size: info.sector_size,
        data_offset: first.map_or(0, |segment| segment.offset),
        size: info.len,
        read_only: info.read_only,
        discards: info.discard,
        uuid: unlocked.uuid.clone(),
        label: unlocked.label.clone().filter(|label| !label.is_empty()),
        keyslot: unlocked.keyslot,
    }
}

/// An open volume: what is in the image, decrypted. [`OpenOptions::open`](crate::OpenOptions::open) gives
/// one.
///
/// All methods may be called from any thread at any time. Eight calls are carried out at the same time,
/// more wait for their turn. Calls that touch the same sector are carried out one after the other, so that
/// a write of part of a sector costs no byte beside it.
///
/// A clone is the same volume. The image is closed with the last of them, with their
/// [files](Volume::file) and servers. That flushes nothing: call [`Volume::close`] or [`Volume::flush`].
///
/// ```
/// # use ucrypt_lib::{Key, OpenOptions, Plain};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let image = dir.path().join("disk.img");
/// # std::fs::File::create(&image)?.set_len(1 << 20)?;
/// # let volume = OpenOptions::new().plain(Plain::new()).open(&image, Key::Passphrase(b"secret"))?;
/// // Two threads write at once, at offsets of any alignment.
/// std::thread::scope(|scope| {
///     for at in [1000, 5000] {
///         let volume = volume.clone();
///         scope.spawn(move || volume.write_at(at, b"something").expect("written"));
///     }
/// });
/// let mut read = [0; 9];
/// volume.read_at(5000, &mut read)?;
/// assert_eq!(&read, b"something");
/// volume.close()?; // everything is durable
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Volume(Arc<Inner>);

struct Inner {
    queues: Queues,
    facts: Facts,
    notices: Vec<String>,
    in_use: bool,
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume").field("facts", &self.0.facts).finish_non_exhaustive()
    }
}

impl Volume {
    pub(crate) fn new(
        volume: Arc<ucrypt_engine::Volume>,
        facts: Facts,
        notices: Vec<String>,
        in_use: bool,
    ) -> Self {
        Self(Arc::new(Inner { queues: Queues::new(volume), facts, notices, in_use }))
    }

    /// The engine's volume, for servers.
    pub(crate) fn engine(&self) -> Result<&Arc<ucrypt_engine::Volume>, IoError> {
        self.0.queues.volume()
    }

    /// Bytes of the volume.
    pub fn size(&self) -> u64 {
        self.0.facts.size
    }

    /// Bytes that are encrypted as one: 512, 1024, 2048 or 4096. Requests may have any offset and length,
    /// but writes of whole sectors need not read before.
    pub fn sector_size(&self) -> u32 {
        self.0.facts.sector_size
    }

    /// What is known of it.
    pub fn facts(&self) -> &Facts {
        &self.0.facts
    }

    /// What a person should be told: a header copy that was damaged, with what was done about it, or why
    /// the volume is slower than it could be. Mostly empty.
    pub fn notices(&self) -> &[String] {
        &self.0.notices
    }

    /// Whether another program may write to the image:
    /// [`OpenOptions::shared`](crate::OpenOptions::shared).
    pub fn is_in_use(&self) -> bool {
        self.0.in_use
    }

    /// Reads up to `buf.len()` bytes from byte `offset` on, and returns how many: fewer only at the end of
    /// the volume, none behind it. Long reads keep several requests in flight.
    ///
    /// # Errors
    /// [`IoError::Failed`] if the image cannot be read; `buf` may then hold parts of what was read.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, IoError> {
        let left = self.size().saturating_sub(offset);
        let len = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
        if len > 0 {
            self.0.queues.with(|queue| {
                transfer::read(queue, offset..offset + len as u64, |at, data| {
                    buf[(at - offset) as usize..][..data.len()].copy_from_slice(&data);
                    Ok(())
                })
            })?;
        }
        Ok(len)
    }

    /// Fills `buf` from byte `offset` on.
    ///
    /// # Errors
    /// [`IoError::OutOfRange`] if it reaches beyond the end of the volume, and those of
    /// [`Volume::read_at`].
    pub fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.check_range(offset, buf.len() as u64)?;
        self.read_at(offset, buf).map(drop)
    }

    /// Writes all of `data` from byte `offset` on. Long writes keep several requests in flight. What is
    /// written survives the end of this process, and after [`Volume::flush`] that of the machine.
    ///
    /// # Errors
    /// [`IoError::OutOfRange`] if it reaches beyond the end of the volume, and [`IoError::ReadOnly`]: then
    /// nothing was written. [`IoError::Failed`] if the image cannot be written: then each of the sectors is
    /// old or new.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), IoError> {
        self.check_write(offset, data.len() as u64)?;
        self.0.queues.with(|queue| {
            let mut writer = Writer::new(queue, offset);
            writer.put_borrowed(data)?;
            writer.finish()
        })
    }

    /// Makes `len` bytes from byte `offset` on read as zeroes. On an encrypted volume, encrypted zeroes are
    /// written.
    ///
    /// # Errors
    /// Those of [`Volume::write_at`].
    pub fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.check_write(offset, len)?;
        let (fua, no_unmap, fast) = (false, false, false);
        self.in_pieces("write of zeroes", offset, len, |offset, len| Io::WriteZeroes {
            offset,
            len,
            fua,
            no_unmap,
            fast,
        })
    }

    /// Carries out `io` for each piece of a range: others wait for a piece, and not for all of it.
    fn in_pieces(
        &self,
        what: &'static str,
        offset: u64,
        len: u64,
        io: impl Fn(u64, u64) -> Io<'static>,
    ) -> Result<(), IoError> {
        if len == 0 {
            return self.engine().map(drop);
        }
        let mut done = 0;
        while done < len {
            let offset = offset + done;
            // The next pieces begin at whole sectors.
            let len = (len - done).min(PIECE_BYTES - offset % PIECE_BYTES);
            self.one(what, offset, io(offset, len))?;
            done += len;
        }
        Ok(())
    }

    /// Tells the image that `len` bytes from byte `offset` on are no longer needed. They may read as
    /// anything afterwards. Sectors that the range covers only in part are left alone.
    ///
    /// # Errors
    /// [`IoError::NoDiscards`] unless the volume was opened with
    /// [`OpenOptions::allow_discards`](crate::OpenOptions::allow_discards), or its header says so; and
    /// those of [`Volume::write_at`].
    pub fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.check_write(offset, len)?;
        if !self.0.facts.discards {
            return Err(IoError::NoDiscards);
        }
        self.in_pieces("discard", offset, len, |offset, len| Io::Discard { offset, len })
    }

    /// Makes every write durable that has returned, on any thread.
    ///
    /// # Errors
    /// [`IoError::Failed`] if something was lost; then all later flushes of the volume fail, too.
    pub fn flush(&self) -> Result<(), IoError> {
        if self.0.facts.read_only {
            return self.engine().map(drop);
        }
        self.one("flush", 0, Io::Flush)
    }

    /// [Flushes](Volume::flush), and closes the volume if there is no clone, file or server of it.
    ///
    /// # Errors
    /// Those of [`Volume::flush`]. The volume is closed all the same.
    pub fn close(self) -> Result<(), IoError> {
        self.flush()
    }

    /// The volume as a file with a position, at the start.
    pub fn file(&self) -> VolumeFile {
        VolumeFile::new(self.clone())
    }

    /// Serves the volume by NBD on a Unix socket at `path`, for this user only, until the server is
    /// stopped or dropped.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn serve_nbd(&self, path: impl AsRef<Path>) -> Result<NbdServer, ServeError> {
        NbdServer::start(self, path.as_ref())
    }

    /// Serves the volume as a file at `path`, which is made if there is none, until it is stopped or
    /// dropped. It needs FUSE, and without root the program `fusermount3`.
    ///
    /// Programs can map the file for writing (`MAP_SHARED`) only if the volume is read-only: the kernel
    /// would not see what is written by [`Volume::write_at`].
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn serve_file(&self, path: impl AsRef<Path>) -> Result<ServedFile, ServeError> {
        ServedFile::start(self, path.as_ref())
    }

    fn one(&self, what: &'static str, offset: u64, io: Io<'_>) -> Result<(), IoError> {
        self.0.queues.with(|queue| transfer::one(queue, what, offset, io).map(drop))
    }

    fn check_write(&self, offset: u64, len: u64) -> Result<(), IoError> {
        if self.0.facts.read_only {
            return Err(IoError::ReadOnly);
        }
        self.check_range(offset, len)
    }

    fn check_range(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let size = self.size();
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ if len == 0 => Ok(()),
            _ => Err(IoError::OutOfRange { offset, len, size }),
        }
    }
}
