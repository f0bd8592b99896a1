//! Images as the header code sees them; reading, pinning and repairing headers.

use std::fs::{self, File, OpenOptions as CreateOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate, syncfs};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Resource, getrlimit};
use ucrypt_backend::{Backend, FileBackend, OpenError, OpenOptions};
use ucrypt_luks::luks2::Damage;
use ucrypt_luks::{
    DataPlace, Format, Header, HeaderCopy, HeaderDigest, Medium, ReadAt, Unlocked, Write,
    settle_cache, write_durably,
};

use crate::error::Error;
use crate::header_lock::{Access, HeaderLock, lock, lock_header, lock_header_soon};
use crate::secrecy;

/// An image that a header is read from and written to.
pub struct HeaderImage<'a>(pub &'a FileBackend);

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

/// Opens an image to read its header, even if the image is in use.
pub fn open_to_look(path: &Path) -> Result<FileBackend, Error> {
    let options = OpenOptions { read_only: true, unlocked: true, ..OpenOptions::default() };
    Ok(FileBackend::open(path, options)?)
}

/// Opens an image to overwrite it: nobody else may be using it.
pub fn open_to_format(path: &Path) -> Result<FileBackend, Error> {
    Ok(FileBackend::open(path, OpenOptions::default())?)
}

/// Whether two paths lead to the same file or device.
pub fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| {
        let found = fs::metadata(path).ok()?;
        // A device is the same wherever its node is.
        let device = found.rdev();
        Some(if device > 0 { (0, device) } else { (found.dev(), found.ino()) })
    };
    identity(one).is_some_and(|one| Some(one) == identity(other))
}

/// Reads the header of `image` at `path`. One that is not whole may be in the middle of a change: it is
/// read again once nobody changes it.
///
/// # Errors
/// Those of [`Header::read`].
pub fn read_header(
    image: &dyn ReadAt,
    path: &Path,
) -> Result<(Header, Option<Damage>), ucrypt_luks::Error> {
    let found = Header::read(image);
    if matches!(found, Ok((_, None)) | Err(ucrypt_luks::Error::NotLuks { .. })) {
        return found;
    }
    // Without the lock, what was found counts.
    lock(path, Access::Shared).map_or(found, |_lock| Header::read(image))
}

/// Which header is asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted<'a> {
    /// The file of a detached header. The image itself is the same as `None`.
    pub header: Option<&'a Path>,
    /// The digest of the only header that will do; it is then read once.
    pub digest: Option<HeaderDigest>,
    /// Its version; `None` takes either.
    pub format: Option<Format>,
    /// Refuse what `luksFormat` does not make.
    pub strict: bool,
}

/// A header that was read.
pub struct Found {
    /// The header.
    pub header: Header,
    /// The header copy that is damaged, if any.
    pub damage: Option<Damage>,
    /// The file of a detached header.
    pub detached: Option<FileBackend>,
    /// What stands for the image, if the header is pinned.
    pinned: Option<HeaderCopy>,
}

impl Found {
    /// Reads the header of `image` at `path`, and refuses one that is not `wanted`. The file of a
    /// detached header is opened as `options` say; if it cannot be written, for reading only, which
    /// leaves a damaged copy as it is.
    ///
    /// # Errors
    /// The file of the header cannot be read, or the header is none, damaged or not `wanted`.
    pub fn read(
        image: &FileBackend,
        path: &Path,
        wanted: &Wanted<'_>,
        options: OpenOptions,
    ) -> Result<Self, Error> {
        let elsewhere = wanted.header.filter(|header| !is_same(header, path));
        let options = OpenOptions { direct: false, ..options };
        let detached = elsewhere.map(|header| open_detached(header, options)).transpose()?;
        let place = elsewhere.unwrap_or(path);
        let about = |error| Error::About { path: place.into(), error };
        let medium = HeaderImage(detached.as_ref().unwrap_or(image));
        let pinned = wanted.digest.map(|digest| pinned_copy(&medium, digest));
        let pinned = pinned.transpose().map_err(about)?;
        let read = match &pinned {
            Some(copy) => Header::read(copy),
            None => read_header(&medium, place),
        };
        let (header, damage) = read.map_err(about)?;
        let found = header.format();
        if let Some(format) = wanted.format.filter(|format| *format != found) {
            return Err(Error::OtherFormat { found: found.name(), wanted: format.name() });
        }
        if wanted.strict {
            // Who only tries a passphrase may do so on the file of a header, or on its backup.
            let data = DataPlace { detached: elsewhere.is_some(), image_len: image.limits().len };
            let data = (!options.unlocked).then_some(data);
            header.check_strictly(damage.as_ref(), data).map_err(about)?;
        }
        Ok(Self { header, damage, detached, pinned })
    }

    /// Where the keyslots are read. `medium`: the image that holds the header.
    pub fn source<'a>(&'a self, medium: &'a HeaderImage<'a>) -> &'a dyn ReadAt {
        self.pinned.as_ref().map_or(medium, |copy| copy)
    }
}

/// Opens the file of a detached header as `options` say, or for reading only: it is written only to
/// repair a damaged copy.
fn open_detached(path: &Path, options: OpenOptions) -> Result<FileBackend, OpenError> {
    match FileBackend::open(path, options) {
        Err(error) if error.is_of_writing() && !options.read_only => {
            FileBackend::open(path, OpenOptions { read_only: true, ..options })
        }
        opened => opened,
    }
}

/// The copy of the header of `image` that stands for the image from now on, if it has this digest.
pub fn pinned_copy(
    image: &HeaderImage<'_>,
    wanted: HeaderDigest,
) -> Result<HeaderCopy, ucrypt_luks::Error> {
    let copy = HeaderCopy::read(image)?;
    copy.check(wanted)?;
    Ok(copy)
}

/// An unlocked volume and its header.
pub struct UnlockedImage {
    /// The volume.
    pub volume: Unlocked,
    /// The header, if it has one.
    pub header: Option<Header>,
    /// The header copy that is damaged, if any.
    pub damage: Option<Damage>,
    /// The file of a detached header.
    pub detached: Option<FileBackend>,
}

impl UnlockedImage {
    /// A volume without a header.
    pub fn plain(volume: Unlocked) -> Self {
        Self { volume, header: None, damage: None, detached: None }
    }

    /// The volume that a header was unlocked to.
    pub fn of(found: Found, volume: Unlocked) -> Self {
        let Found { header, damage, detached, .. } = found;
        Self { volume, header: Some(header), damage, detached }
    }

    /// Refuses the file of a detached header, `name`, as the image of a volume.
    pub fn check_data(&self, name: &str) -> Result<(), Error> {
        let without_data = self.header.as_ref().is_some_and(|header| header.data_offset() == 0);
        if without_data && self.detached.is_none() {
            return Err(Error::NoData { name: name.into() });
        }
        Ok(())
    }

    /// Says what is wrong with a header copy, if anything is. Repairs it if there is an image to write
    /// to, the header can be written, and the repair can lose nothing. `image` comes with the path of the
    /// header. What keeps the copy from being written does not keep the volume from opening: the other
    /// copy is good.
    ///
    /// # Errors
    /// The header cannot be read again.
    pub fn settle_damage(
        &self,
        image: Option<(&FileBackend, &Path)>,
    ) -> Result<Option<String>, Error> {
        let (Some(Header::Luks2(_)), Some(damage)) = (&self.header, &self.damage) else {
            return Ok(None);
        };
        let is_read_only = |file: &FileBackend| file.limits().read_only;
        let image = image.filter(|_| !self.detached.as_ref().is_some_and(is_read_only));
        let done = match (image, damage.kept()) {
            (None, _) => "using the other one; nothing was repaired".to_owned(),
            (Some(_), Some(kept)) => format!(
                "using the other one; nothing was repaired, for {kept}; if the volume is this one \
                 without any doubt, \"ucrypt repair\" writes the copy again"
            ),
            (Some((image, place)), None) => match self.repair(image, place) {
                Ok(true) => "it was written again from the other one".to_owned(),
                Ok(false) => return Ok(None),
                Err(
                    why @ (Error::Lock { .. }
                    | Error::HeaderBusy { .. }
                    | Error::Replaced { .. }
                    | Error::Luks(ucrypt_luks::Error::Write { .. })),
                ) => format!("using the other one; nothing was repaired: {why}"),
                Err(error) => return Err(error),
            },
        };
        Ok(Some(format!("{damage}; {done}")))
    }

    /// Writes a damaged copy of the header again, in the image or the file at `place`. Returns whether
    /// there still was one that may be written.
    fn repair(&self, image: &FileBackend, place: &Path) -> Result<bool, Error> {
        let medium = self.detached.as_ref().unwrap_or(image);
        let lock = lock_header_soon(place)?;
        check_same(medium, lock.file(), place)?;
        let medium = HeaderImage(medium);
        // Another program may have changed the header since it was read, and what was read may be a
        // change that is not stored.
        settle_cache(&medium)?;
        let (Header::Luks2(header), Some(damage)) = Header::read(&medium)? else {
            return Ok(false);
        };
        if damage.kept().is_some() {
            return Ok(false);
        }
        let write = header.repair(&damage, &mut secrecy::random)?;
        write_durably(&medium, &[write])?;
        Ok(true)
    }
}

/// The mode of a new file that only its owner may read and write.
pub const PRIVATE: u32 = 0o600;

/// The mode of a new file that its owner may only read, once it is written.
pub const READ_ONLY: u32 = 0o400;

/// A new file for a header, its backup or a key. Dropping it removes the file unless it was kept.
///
/// Whoever owns the directory can put another file, or a link to one, in its place at any time: what
/// is opened by the same path later has to be [the same](NewFile::check).
pub struct NewFile<'a> {
    path: &'a Path,
    file: File,
    kept: bool,
}

impl<'a> NewFile<'a> {
    /// Creates the file with this mode, as far as the umask lets it. Returns `None` if it exists.
    pub fn create(path: &'a Path, mode: u32) -> Result<Option<Self>, Error> {
        let made = CreateOptions::new().write(true).create_new(true).mode(mode).open(path);
        match made {
            Ok(file) => Ok(Some(Self { path, file, kept: false })),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(Error::Create { path: path.into(), error }),
        }
    }

    /// Whether there is no file yet, and one can be made. None is left: whoever waits for a person or a
    /// derivation may be killed meanwhile.
    ///
    /// # Errors
    /// Those of [`NewFile::create`].
    pub fn is_possible(path: &'a Path) -> Result<bool, Error> {
        Ok(Self::create(path, PRIVATE)?.is_some())
    }

    /// As [`NewFile::create`] where [`NewFile::is_possible`] has said so, and opens it to write a header.
    ///
    /// # Errors
    /// [`Error::Replaced`] if somebody else has made the file meanwhile, or has put another one in its
    /// place.
    pub fn create_opened(path: &'a Path) -> Result<(Self, FileBackend), Error> {
        let made = Self::create(path, PRIVATE)?;
        let made = made.ok_or_else(|| Error::Replaced { path: path.into() })?;
        let opened = open_to_format(path)?;
        made.check(&opened)?;
        Ok((made, opened))
    }

    /// Writes the content of the file, and makes it durable.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.file.sync_all()
    }

    /// Refuses what was opened by the path of this file, and is another one.
    ///
    /// # Errors
    /// [`Error::Replaced`].
    pub fn check(&self, opened: &FileBackend) -> Result<(), Error> {
        check_same(opened, &self.file, self.path)
    }

    /// Keeps the file, and makes its name durable.
    ///
    /// # Errors
    /// [`Error::Replaced`] if its name is another file's by now, [`Error::NotDurable`].
    pub fn keep(mut self) -> Result<(), Error> {
        if !self.is_in_its_place() {
            return Err(Error::Replaced { path: self.path.into() });
        }
        self.kept = true;
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        let synced = synced.or_else(|error| match Errno::from_io_error(&error) {
            // Who may write to a directory need not be allowed to read it, and not every file system
            // flushes one.
            Some(Errno::ACCESS | Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP) => {
                syncfs(&self.file).map_err(io::Error::from)
            }
            _ => Err(error),
        });
        synced.map_err(|error| Error::NotDurable { path: self.path.into(), error })
    }

    /// Whether the path still names this file, and no link to it.
    fn is_in_its_place(&self) -> bool {
        let identity = |found: fs::Metadata| (found.dev(), found.ino());
        let there = fs::symlink_metadata(self.path).ok().map(identity);
        there.is_some() && there == self.file.metadata().ok().map(identity)
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if !self.kept && self.is_in_its_place() {
            // The file is empty or half written: it does no harm if it stays.
            let _ = fs::remove_file(self.path);
        }
    }
}

/// Refuses a file that was opened by the same path as `opened`, and is another one.
///
/// # Errors
/// [`Error::Replaced`].
pub fn check_same(opened: &FileBackend, file: &File, path: &Path) -> Result<(), Error> {
    // What cannot be compared is not known to be the same.
    let is_same = opened.is_file(file.as_fd()).unwrap_or(false);
    if is_same { Ok(()) } else { Err(Error::Replaced { path: path.into() }) }
}

/// Locks the header of `medium`, which was opened by `path`.
///
/// # Errors
/// Those of [`lock_header`]; [`Error::Replaced`] if the path is another file's by now.
pub fn lock_opened(medium: &FileBackend, path: &Path) -> Result<HeaderLock, Error> {
    let lock = lock_header(path)?;
    check_same(medium, lock.file(), path)?;
    Ok(lock)
}

/// As [`lock_opened`], and reserves the space of `writes` in the file before anything is written, so
/// that a full disk is reported while everything is still as it was.
///
/// # Errors
/// Those of [`lock_opened`]; [`Error::NoRoom`].
pub fn lock_and_reserve(
    medium: &FileBackend,
    path: &Path,
    writes: &[Write],
) -> Result<HeaderLock, Error> {
    let lock = lock_opened(medium, path)?;
    reserve(&lock, path, writes)?;
    Ok(lock)
}

/// Reserves the space of `writes` in the file of a header, at `path`, before any of them is carried out: an image may
/// have holes in its header, where a copy has skipped zeroes, and on a full disk a change would end half-way.
///
/// # Errors
/// [`Error::NoRoom`].
pub fn reserve(lock: &HeaderLock, path: &Path, writes: &[Write]) -> Result<(), Error> {
    reserve_in(lock, writes).map_err(|error| Error::NoRoom { path: path.into(), error })
}

/// As [`reserve`], with the system's error.
///
/// # Errors
/// There is no room.
pub fn reserve_in(lock: &HeaderLock, writes: &[Write]) -> io::Result<()> {
    let file = lock.file();
    if !file.metadata()?.is_file() {
        return Ok(());
    }
    // No room behind the limit of this process (`ulimit -f`) is of any use to it.
    let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    let end = |write: &Write| write.offset.saturating_add(write.bytes.len() as u64);
    if writes.iter().any(|write| end(write) > limit) {
        return Err(Errno::FBIG.into());
    }
    for write in writes {
        let length = write.bytes.len() as u64;
        let allocate = || fallocate(file, FallocateFlags::KEEP_SIZE, write.offset, length);
        // Where space cannot be reserved at all, the write itself has to find it.
        if let Err(error @ (Errno::NOSPC | Errno::DQUOT)) = retry_on_intr(allocate) {
            return Err(error.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    /// A new file that somebody has put a link to `victim` in the place of.
    fn replaced(dir: &Path) -> (PathBuf, PathBuf) {
        let (path, victim) = (dir.join("new"), dir.join("victim"));
        fs::write(&victim, b"precious").expect("written");
        (path, victim)
    }

    fn put_link(path: &Path, victim: &Path) {
        fs::remove_file(path).expect("removed");
        symlink(victim, path).expect("a link");
    }

    #[test]
    fn a_backup_is_not_written_through_a_link_in_the_place_of_its_new_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, victim) = replaced(dir.path());
        let mut made = NewFile::create(&path, PRIVATE).expect("made").expect("new");
        put_link(&path, &victim);
        made.write(b"a backup").expect("written");
        assert_eq!(fs::read(&victim).expect("read"), b"precious");
        // The backup has no name: that is no success. What is not ours stays.
        assert!(matches!(made.keep(), Err(Error::Replaced { .. })));
        assert_eq!(fs::read_link(&path).expect("a link"), victim);
        // Undisturbed, it is there under its name.
        fs::remove_file(&path).expect("removed");
        let mut made = NewFile::create(&path, PRIVATE).expect("made").expect("new");
        made.write(b"a backup").expect("written");
        made.keep().expect("kept");
        assert_eq!(fs::read(&path).expect("read"), b"a backup");
        assert!(NewFile::create(&path, PRIVATE).expect("looked at").is_none());
    }

    #[test]
    fn a_header_is_not_written_through_a_link_in_the_place_of_its_new_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, victim) = replaced(dir.path());
        let made = NewFile::create(&path, PRIVATE).expect("made").expect("new");
        let opened = open_to_format(&path).expect("opened");
        made.check(&opened).expect("the same");
        let writes = [Write { offset: 0, bytes: vec![1; 4096] }];
        drop(lock_and_reserve(&opened, &path, &writes).expect("locked"));
        put_link(&path, &victim);
        let wrong = open_to_format(&path).expect("opened");
        assert!(matches!(made.check(&wrong), Err(Error::Replaced { .. })));
        // What was opened before is written; the lock would be the other file's.
        let locked = lock_and_reserve(&opened, &path, &writes);
        assert!(matches!(locked, Err(Error::Replaced { .. })));
        let blocks = fs::metadata(&victim).expect("there").blocks();
        assert!(blocks <= 8, "nothing was reserved in the other file");
        assert_eq!(fs::read(&victim).expect("read"), b"precious");
    }
}
