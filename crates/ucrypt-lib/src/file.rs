//! A volume as a file with a position.

use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::volume::Volume;

/// A volume as a file with a position, for code that takes [`Read`], [`Write`] and [`Seek`].
///
/// Each call is a request to the volume; put a [`BufReader`](io::BufReader) or
/// [`BufWriter`](io::BufWriter) around it for small ones. [`Write::flush`] makes everything durable that
/// was written, as [`Volume::flush`] does. The file keeps the volume open.
///
/// ```
/// use std::io::{BufReader, Read, Seek, SeekFrom, Write};
/// # use ucrypt_lib::{Key, OpenOptions, Plain};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let image = dir.path().join("disk.img");
/// # std::fs::File::create(&image)?.set_len(1 << 20)?;
/// # let volume = OpenOptions::new().plain(Plain::new()).open(&image, Key::Passphrase(b"secret"))?;
/// let mut file = volume.file();
/// file.seek(SeekFrom::Start(1000))?;
/// file.write_all(b"one line\n")?;
///
/// let mut reader = BufReader::new(volume.file());
/// reader.seek(SeekFrom::Start(1004))?;
/// let mut word = [0; 4];
/// reader.read_exact(&mut word)?;
/// assert_eq!(&word, b"line");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct VolumeFile {
    volume: Volume,
    position: u64,
}

impl VolumeFile {
    pub(crate) fn new(volume: Volume) -> Self {
        Self { volume, position: 0 }
    }

    /// The volume.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }
}

impl Read for VolumeFile {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.volume.read_at(self.position, buf)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Write for VolumeFile {
    /// Writes as much as there is room for.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`] at the end of the volume, which has a fixed size.
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let left = self.volume.size().saturating_sub(self.position);
        let count = usize::try_from(left).map_or(data.len(), |left| left.min(data.len()));
        if count == 0 && !data.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!("the volume ends at byte {}; write less", self.volume.size()),
            ));
        }
        self.volume.write_at(self.position, &data[..count])?;
        self.position += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(self.volume.flush()?)
    }
}

impl Seek for VolumeFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (base, distance) = match to {
            SeekFrom::Start(position) => (position, 0),
            SeekFrom::End(distance) => (self.volume.size(), distance),
            SeekFrom::Current(distance) => (self.position, distance),
        };
        self.position = base.checked_add_signed(distance).ok_or_else(|| {
            let text = "the position would lie before the start, or beyond 2^64";
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })?;
        Ok(self.position)
    }
}
