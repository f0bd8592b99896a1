//! Changing the header of an image that may be in use.
//!
//! As in cryptsetup, keys change while a volume is open: a server reads the header only when it
//! opens the volume, and never writes data there. So a change does not take the locks that exclude
//! users of the data. It takes the lock that excludes other changes ([`ucrypt_image::header_lock`]).
//!
//! The lock is not held while a person types. What was found before is checked again under it.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};

use ucrypt_backend::{Backend as _, FileBackend, OpenOptions};
pub(crate) use ucrypt_image::header_lock::disable_locks;
use ucrypt_image::header_lock::{Access, HeaderLock, lock, lock_header};
use ucrypt_luks::luks2::{self, Damage};
use ucrypt_luks::{Flag, Header, Medium, ReadAt, Tools, Write, settle_cache, write_verified};

use super::image::{HeaderImage, check_same, open_to_look, read_header, reserve, reserve_in};
use super::show::Kind;
use crate::failure::Failure;
use crate::machine::{clock, machine};
use crate::progress::Counted;
use crate::secrecy;
use crate::volume::is_same;

/// How many extents are asked for at once.
const EXTENTS_MAX: usize = 64;

/// How a header is read.
type ReadHeader = fn(&dyn ReadAt) -> ucrypt_luks::Result<(Header, Option<Damage>)>;

/// The header that an action is about.
#[derive(Debug, clap::Args)]
pub(crate) struct HeaderArgs {
    /// The image: a file or a block device
    pub(super) image: PathBuf,
    /// Where the LUKS header is, if not on the image
    #[arg(long, value_name = "FILE")]
    header: Option<PathBuf>,
    /// Refuse a header of another version
    #[arg(short = 'M', long = "type", value_enum, ignore_case = true, value_name = "TYPE", default_value_t = Kind::Luks)]
    kind: Kind,
    /// Ask no questions
    #[arg(short = 'q', long)]
    pub(super) batch_mode: bool,
}

impl HeaderArgs {
    /// The file or device that holds the header.
    pub(super) fn place(&self) -> &Path {
        self.header.as_ref().unwrap_or(&self.image)
    }

    /// Whether the header has a file of its own, in which nothing follows it.
    pub(super) fn is_detached(&self) -> bool {
        self.header.as_ref().is_some_and(|header| !is_same(header, &self.image))
    }

    /// The name of the image in messages.
    pub(super) fn name(&self) -> String {
        self.image.display().to_string()
    }

    /// As [`HeaderArgs::look`], while nobody changes the header.
    pub(super) fn look_locked(&self) -> Result<(HeaderLock, FileBackend, Header), Failure> {
        let lock = lock(self.place(), Access::Shared)?;
        let (image, header) = self.look()?;
        check_same(&image, lock.file(), self.place())?;
        Ok((lock, image, header))
    }

    /// Opens the image to read its header.
    pub(super) fn look(&self) -> Result<(FileBackend, Header), Failure> {
        let image = self.open_to_look()?;
        let header = read_header(&image, self.place())?;
        self.check_kind(&header)?;
        Ok((image, header))
    }

    /// As [`HeaderArgs::look`], with what is wrong with one of the copies of a LUKS2 header, if anything
    /// is. A foreign signature does not keep it from being read.
    pub(super) fn look_at_damage(&self) -> Result<(FileBackend, Header, Option<Damage>), Failure> {
        let image = self.open_to_look()?;
        let (header, damage) = Header::read_beside_foreign(&HeaderImage(&image))
            .map_err(|error| Failure::from(error).about(self.place().display()))?;
        self.check_kind(&header)?;
        Ok((image, header, damage))
    }

    fn open_to_look(&self) -> Result<FileBackend, Failure> {
        open_to_look(self.place())
            .map_err(|error| Failure::from(error).of_header(self.header.as_deref()))
    }

    /// Locks the header for a change, and reads it.
    pub(super) fn lock(&self) -> Result<Locked, Failure> {
        self.lock_and_read(Header::read)
    }

    /// As [`HeaderArgs::lock`], to repair what [`HeaderArgs::look_at_damage`] has found.
    pub(super) fn lock_to_repair(&self) -> Result<Locked, Failure> {
        self.lock_and_read(Header::read_beside_foreign)
    }

    fn lock_and_read(&self, read: ReadHeader) -> Result<Locked, Failure> {
        let (lock, image) = lock_to_change(self.place())
            .map_err(|failure| failure.of_header(self.header.as_deref()))?;
        let (header, damage) = read(&HeaderImage(&image))
            .map_err(|error| Failure::from(error).about(self.place().display()))?;
        self.check_kind(&header)?;
        Ok(Locked { image, header, damage, path: self.place().into(), lock })
    }

    pub(super) fn check_kind(&self, header: &Header) -> Result<(), Failure> {
        self.kind.check(header, self.place())
    }
}

/// A header that nobody else changes.
pub(super) struct Locked {
    pub(super) image: FileBackend,
    pub(super) header: Header,
    pub(super) damage: Option<Damage>,
    path: PathBuf,
    lock: HeaderLock,
}

impl Locked {
    /// Carries out a change and makes it durable.
    pub(super) fn carry_out(&self, writes: &[Write]) -> Result<(), Failure> {
        carry_out(&self.image, &self.lock, &self.path, writes)
    }

    /// Carries out `what`, which destroys all keys, as far as that is possible: after a write that fails the others are tried.
    /// Where nothing is stored there is nothing to destroy, and on a full disk no room.
    pub(super) fn destroy(&self, what: &str, writes: &[Write]) -> Result<(), Failure> {
        let medium = HeaderImage(&self.image);
        let mut failed = None;
        let destroy = |write: &Write| {
            let result = match write_verified(&medium, std::slice::from_ref(write)) {
                Err(error) if is_of_room(&error) => write_verified(&medium, &self.stored(write)),
                result => result,
            };
            failed = failed.take().or(result.err());
            Ok::<_, Infallible>(())
        };
        let Ok(()) = Counted::of(what, writes).each(writes, destroy);
        // The header itself may have found no room.
        match (failed, Header::read(&medium)?) {
            (Some(error), _) => Err(Failure::device(format!(
                "{error}; some keys may not be erased, run this again"
            ))),
            (None, (header, None)) if header.keyslots().is_empty() => Ok(()),
            (None, _) => Err(Failure::device(format!(
                "the keys are erased, but there is no room for the header in {}: {}",
                self.path.display(),
                io::Error::from(io::ErrorKind::StorageFull)
            ))),
        }
    }

    /// The parts of a write for which the file has room.
    fn stored(&self, write: &Write) -> Vec<Write> {
        let len = write.bytes.len() as u64;
        let mut at = write.offset;
        let mut parts = Vec::new();
        while at < write.offset + len {
            let extents = self.image.extents(at, write.offset + len - at, EXTENTS_MAX);
            if extents.is_empty() {
                break;
            }
            for extent in extents {
                let from = (at - write.offset) as usize;
                let bytes = &write.bytes[from..][..extent.len as usize];
                if !extent.hole {
                    parts.push(Write { offset: at, bytes: bytes.into() });
                }
                at += extent.len;
            }
        }
        parts
    }

    /// Refuses to go on if this is not what a person was asked about, or has typed a passphrase for, when
    /// `before` was read from `look`.
    pub(super) fn check_volume(&self, look: &FileBackend, before: &Header) -> Result<(), Failure> {
        check_same(look, self.lock.file(), &self.path)?;
        if is_same_volume(&self.header, before) { Ok(()) } else { Err(changed()) }
    }

    /// As [`Locked::check_volume`], and if the keyslot is not the one that `before` has shown.
    pub(super) fn check_keyslot(
        &self,
        look: &FileBackend,
        before: &Header,
        number: u32,
    ) -> Result<(), Failure> {
        self.check_volume(look, before)?;
        if self.header.has_same_keyslot(before, number) {
            return Ok(());
        }
        Err(Failure::busy(format!(
            "keyslot {number} was changed by another program meanwhile; nothing was done"
        )))
    }

    /// Refuses to go on if the token is not the one that `before` has shown.
    pub(super) fn check_token(&self, before: &Header, number: u32) -> Result<(), Failure> {
        let of = |header: &Header| match header {
            Header::Luks2(header) => {
                header.metadata.tokens.get(&number).map(|token| token.json.to_stored())
            }
            Header::Luks1(_) => None,
        };
        if of(&self.header) == of(before) {
            return Ok(());
        }
        Err(Failure::busy(format!(
            "token {number} was changed by another program meanwhile; nothing was done"
        )))
    }
}

/// For a change in several steps, each of which is begun only if there is room for all of it.
impl Medium for Locked {
    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        HeaderImage(&self.image).write_all_at(offset, bytes)
    }

    fn reserve(&self, writes: &[Write]) -> io::Result<()> {
        reserve_in(&self.lock, writes)
    }

    fn sync(&self) -> io::Result<()> {
        Medium::sync(&HeaderImage(&self.image))
    }

    fn forget_cached(&self, offset: u64, length: u64) {
        Medium::forget_cached(&HeaderImage(&self.image), offset, length);
    }
}

impl ReadAt for Locked {
    fn len(&self) -> u64 {
        HeaderImage(&self.image).len()
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        HeaderImage(&self.image).read_exact_at(offset, buf)
    }
}

/// Carries out a change of the header in `image`, which is locked by its path, and makes it durable. Nothing is written
/// if there is no room for all of it.
pub(super) fn carry_out(
    image: &FileBackend,
    lock: &HeaderLock,
    path: &Path,
    writes: &[Write],
) -> Result<(), Failure> {
    reserve(lock, path, writes)?;
    Ok(write_verified(&HeaderImage(image), writes)?)
}

/// Whether a write has found no room.
fn is_of_room(error: &ucrypt_luks::Error) -> bool {
    let kind = match error {
        ucrypt_luks::Error::Write { source, .. } => source.kind(),
        _ => return false,
    };
    matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Opens an image whose header is to be changed, under the lock against other changes. What is read
/// of it comes from the medium.
pub(super) fn lock_to_change(path: &Path) -> Result<(HeaderLock, FileBackend), Failure> {
    let options = OpenOptions { unlocked: true, ..OpenOptions::default() };
    // Its errors name the cause before anybody waits for the lock.
    drop(FileBackend::open(path, options)?);
    let lock = lock_header(path)?;
    // What was opened before the lock may have another length by now, or another file its name.
    let image = FileBackend::open(path, options)?;
    check_same(&image, lock.file(), path)?;
    settle_cache(&HeaderImage(&image))
        .map_err(|error| Failure::from(error).about(path.display()))?;
    Ok((lock, image))
}

/// As [`lock_to_change`], of what `look` was opened from before a person was asked.
pub(super) fn lock_asked(
    path: &Path,
    look: &FileBackend,
) -> Result<(HeaderLock, FileBackend), Failure> {
    let (lock, image) = lock_to_change(path)?;
    check_same(look, lock.file(), path)?;
    Ok((lock, image))
}

/// Whether two readings are of one volume: neither was it made anew between them nor converted.
pub(super) fn is_same_volume(one: &Header, other: &Header) -> bool {
    one.format() == other.format() && one.uuid() == other.uuid()
}

/// The failure of who was asked about something else than is there now.
pub(super) fn changed() -> Failure {
    Failure::busy("another program has changed the header meanwhile; nothing was done")
}

/// Stores the flags with which the volume is opened from now on, if they are not there.
pub(crate) fn store_flags(place: &Path, flags: &[Flag]) -> Result<(), Failure> {
    let (lock, image) = lock_to_change(place)?;
    let (header, damage) = Header::read(&HeaderImage(&image))?;
    let header = header.luks2("persistent flags")?;
    if has_flags(header, flags) {
        return Ok(());
    }
    let mut change = header.change(damage.as_ref())?;
    change.set_flags(flags)?;
    let (_, writes) = change.finish(&mut secrecy::random)?;
    carry_out(&image, &lock, place, &writes)
}

/// Whether a header has other flags than these. Refuses one that stores no flags, or has others and cannot be written.
pub(crate) fn has_to_store(place: &Path, flags: &[Flag]) -> Result<bool, Failure> {
    let image = open_to_look(place)?;
    let header = read_header(&image, place)?;
    let differs = !has_flags(header.luks2("persistent flags")?, flags);
    if differs {
        let options = OpenOptions { unlocked: true, ..OpenOptions::default() };
        FileBackend::open(place, options)?;
    }
    Ok(differs)
}

/// Whether these flags are stored, and no others.
fn has_flags(header: &luks2::Header, flags: &[Flag]) -> bool {
    let mut names: Vec<&str> = flags.iter().map(|flag| flag.header_name()).collect();
    let mut stored = header.metadata.config.flags.clone();
    names.sort_unstable();
    stored.sort_unstable();
    stored == names
}

/// Calls `make` with the kernel's random numbers, a clock and what this machine has.
pub(super) fn with_tools<T>(make: impl FnOnce(&mut Tools<'_>) -> T) -> T {
    let mut random = secrecy::random;
    make(&mut Tools { random: &mut random, clock: &mut clock(), machine: machine() })
}
