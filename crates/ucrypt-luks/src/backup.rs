//! Header backups: the bytes of header and keyslot areas, as cryptsetup's `luksHeaderBackup` writes
//! them.
//!
//! `order` has the order of a restore's writes; after an interruption, the restore has to be run again.

use std::borrow::Cow;
use std::ops::Range;

use crate::area::material_len;
use crate::error::{Error, Result};
use crate::header::Header;
use crate::luks1::HEADER_BYTES;
use crate::luks2::{self, Damage, HEADER_SIZES, Kept, KeyslotKind};
use crate::medium::{Random, ReadAt, Write, read_bytes};
use crate::signature::{self, Signature};

mod order;

use order::Plan;

/// The length of a backup is a multiple of this, in bytes.
const BACKUP_ALIGNMENT: u64 = 4096;

/// Largest backup in bytes: two copies of 4 MiB and 128 MiB of keyslots; LUKS1 headers are smaller,
/// but their areas may lie anywhere in front of the data.
pub(crate) const BACKUP_MAX: u64 = 2 * HEADER_SIZES[HEADER_SIZES.len() - 1] + (128 << 20);

/// A backup that fits an image.
#[derive(Debug)]
pub struct Restore {
    /// The header of the backup.
    pub header: Header,
    /// The header that is overwritten, if the image has one that can be read.
    pub old: Option<Header>,
    /// The signature of somebody else on the image.
    pub foreign: Option<Signature>,
    /// The writes, for [`write_verified`](crate::write_verified).
    pub writes: Vec<Write>,
    /// Whether a key of the old header or of the backup opens the volume after an interruption at any of
    /// the writes, as far as the old header is whole. If not, it has to be saved before the first write.
    pub survives: bool,
    /// What is wrong with one copy of the old header.
    damage: Option<Damage>,
}

impl Restore {
    /// The old header as a backup that can be restored: with the good LUKS2 copy in both places.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn old_backup(&self, image: &dyn ReadAt, random: Random<'_>) -> Result<Option<Vec<u8>>> {
        let Some(old) = &self.old else { return Ok(None) };
        let mut bytes = old.backup(image)?;
        if let (Header::Luks2(old), Some(damage)) = (old, &self.damage) {
            let Write { offset, bytes: copy } = old.write_of(damage.copy, random)?;
            bytes[offset as usize..][..copy.len()].copy_from_slice(&copy);
        }
        Ok(Some(bytes))
    }

    /// Whether a file that was there before holds a header with each key of the old one that the backup does
    /// not have: then an interrupted restore of this backup saved it there, or it is the old header itself.
    pub fn is_old_in(&self, file: &[u8]) -> bool {
        let Ok((saved, _)) = Header::read(&file) else { return false };
        let kept = [salts(&saved), salts(&self.header)].concat();
        let old = self.old.as_ref().map(salts).unwrap_or_default();
        check_fits(&saved, &self.header).is_ok() && old.iter().all(|salt| kept.contains(salt))
    }
}

/// The salts of all keyslots in use. Each key has its own, wherever its keyslot lies.
fn salts(header: &Header) -> Vec<&[u8]> {
    match header {
        Header::Luks1(header) => {
            let active = header.keyslots.iter().filter(|keyslot| keyslot.is_active());
            active.map(|keyslot| &keyslot.salt[..]).collect()
        }
        Header::Luks2(header) => {
            let kinds = header.metadata.keyslots.values().map(|keyslot| &keyslot.kind);
            let salts = kinds.filter_map(|kind| match kind {
                KeyslotKind::Luks2 { salt, .. } => Some(&salt[..]),
                KeyslotKind::Other(_) => None,
            });
            salts.collect()
        }
    }
}

impl Header {
    /// The backup of this header, which was read from `image`.
    pub fn backup(&self, image: &dyn ReadAt) -> Result<Vec<u8>> {
        let length = self.backup_len();
        let mut bytes = read_bytes(image, "the header", 0, length, BACKUP_MAX)?;
        if let Self::Luks1(header) = self
            && header.keyslots[0].material_start() == BACKUP_ALIGNMENT
        {
            // Between header and keyslots lies nothing, unless it is an old signature.
            bytes[HEADER_BYTES..BACKUP_ALIGNMENT as usize].fill(0);
        }
        bytes.resize(length.next_multiple_of(BACKUP_ALIGNMENT) as usize, 0);
        Ok(bytes)
    }

    /// Bytes from the start of the image that belong to the header.
    pub fn backup_len(&self) -> u64 {
        match self {
            Self::Luks1(header) => {
                let ends = header.keyslots.iter().map(|keyslot| {
                    keyslot.material_start() + material_len(header.key_bytes, keyslot.stripes)
                });
                ends.max().unwrap_or(HEADER_BYTES as u64)
            }
            Self::Luks2(header) => {
                2 * header.binary.header_size + header.metadata.config.keyslots_size
            }
        }
    }
}

/// Checks that `backup` fits `image`, and returns the writes that restore it. The data is not
/// touched. Of a backup with a damaged LUKS2 copy, the good one is restored to both places.
///
/// Refused: a file that is no backup, an image that is too small, and another data offset, key
/// length or size than the header has that is there now. Refused by name is what no change touches,
/// in the backup or on the image: a header of a newer program, and one in the middle of a
/// reencryption, whose data only this header describes.
pub fn restore(image: &dyn ReadAt, backup: &[u8], random: Random<'_>) -> Result<Restore> {
    let unusable = |error| Error::Backup(Box::new(error));
    let (header, damage) = Header::read(&backup).map_err(unusable)?;
    check_known(&header, damage.as_ref(), "the backup")?;
    let length = header.backup_len();
    if (backup.len() as u64) < length || length > BACKUP_MAX {
        let len = backup.len();
        return Err(Error::request(format!(
            "the backup is cut off: it has {len} bytes, its header needs {length}"
        )));
    }
    // The data may be in another image.
    if length > image.len() {
        return Err(Error::LargerThanImage { needed: length, image_len: image.len() });
    }
    let (old, foreign) = header_before(image)?;
    if let Some((old, _)) = &old {
        check_fits(old, &header)?;
    }
    let before = old.as_ref().map(|(old, damage)| (old, damage.as_ref()));
    let mut bytes = Cow::Borrowed(backup);
    if let (Header::Luks2(header), Some(damage)) = (&header, &damage) {
        let Write { offset, bytes: copy } = header.write_of(damage.copy, random)?;
        bytes.to_mut()[offset as usize..][..copy.len()].copy_from_slice(&copy);
    }
    let Plan { writes, survives } =
        order::plan(image, &Backup { header: &header, bytes: &bytes }, before, random)?;
    let (old, damage) = old.unzip();
    Ok(Restore { header, old, foreign, writes, survives, damage: damage.flatten() })
}

/// A backup and its header.
struct Backup<'a> {
    header: &'a Header,
    bytes: &'a [u8],
}

impl Backup<'_> {
    /// The write that restores this range.
    fn put(&self, range: Range<u64>) -> Option<Write> {
        let bytes = self.bytes[range.start as usize..range.end as usize].to_vec();
        (!bytes.is_empty()).then_some(Write { offset: range.start, bytes })
    }
}

/// A header, and what is wrong with one of its copies.
type Before = (Header, Option<Damage>);

/// The header that the image has, and the signature of somebody else. There is no header where an
/// interrupted restore has left none: its copies are torn. What is there and cannot be read for
/// another reason may be what only another program understands.
fn header_before(image: &dyn ReadAt) -> Result<(Option<Before>, Option<Signature>)> {
    match Header::read_beside_foreign(image) {
        Ok((old, damage)) => {
            check_known(&old, damage.as_ref(), "the header that is there")?;
            let foreign = damage.as_ref().and_then(Damage::foreign);
            Ok((Some((old, damage)), foreign))
        }
        Err(Error::NotLuks { found }) => Ok((None, found)),
        Err(Error::Damaged { .. } | Error::Truncated { .. }) => {
            match luks2::Header::not_torn(image) {
                Some(problem) => Err(unreadable(problem)),
                None => Ok((None, signature::find_foreign(image)?)),
            }
        }
        Err(error) => Err(unreadable(error)),
    }
}

fn unreadable(problem: Error) -> Error {
    match problem {
        Error::Read { .. } | Error::OutOfMemory { .. } => problem,
        problem => not_known("the header that is there", &problem),
    }
}

/// Refuses a header that no change touches.
fn check_known(header: &Header, damage: Option<&Damage>, what: &str) -> Result<()> {
    let Header::Luks2(header) = header else { return Ok(()) };
    header.check_known().map_err(|error| not_known(what, &error))?;
    match damage {
        Some(damage) if matches!(damage.kept(), Some(Kept::Unknown)) => {
            Err(not_known(what, damage))
        }
        _ => Ok(()),
    }
}

fn not_known(what: &str, problem: &dyn std::fmt::Display) -> Error {
    Error::Unchangeable(format!(
        "{what} is not known in full: {problem}; whoever means it uses cryptsetup luksHeaderRestore"
    ))
}

fn check_fits(old: &Header, new: &Header) -> Result<()> {
    if let (Header::Luks2(old), Header::Luks2(new)) = (old, new) {
        let sizes = |header: &luks2::Header| {
            (header.binary.header_size, header.metadata.config.keyslots_size)
        };
        // With other sizes, an interruption could leave neither header.
        if sizes(old) != sizes(new) {
            let (old, new) = (sizes(old), sizes(new));
            return Err(Error::request(format!(
                "the size of header or keyslots area differs on device and backup: {} and {} bytes, \
                 {} and {} bytes; nothing was restored",
                old.0, old.1, new.0, new.1
            )));
        }
    }
    let same_key = match (old.volume_key_len(), new.volume_key_len()) {
        (Some(old), Some(new)) => old == new,
        _ => true,
    };
    if same_key && old.data_offset() == new.data_offset() {
        return Ok(());
    }
    Err(Error::request(format!(
        "the data offset or key size differs on device and backup: {} and {} bytes; nothing was \
         restored",
        old.data_offset(),
        new.data_offset()
    )))
}
