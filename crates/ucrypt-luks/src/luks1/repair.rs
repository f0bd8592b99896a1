//! Mending a LUKS1 header, as cryptsetup's `repair` does and in its words.
//!
//! Nothing in a LUKS1 header tells which of its bytes are damaged. What can be computed is computed again: the
//! places of the keyslots that hold no key, and the spelling of names that old programs wrote or read in another
//! way. A keyslot that holds a key stays as it is, and so does one of which only the state is damaged: it may hold
//! one.

use super::format::free_keyslots;
use super::header::{HEADER_BYTES, Header, Keyslot, State};
use crate::error::{Error, Result};
use crate::hash::find_hash;
use crate::medium::{ReadAt, Write, read_bytes};
use crate::volume::SECTOR_BYTES;

/// The volume key lengths in bytes with which a header is mended. A damaged length would move every keyslot.
const KEY_BYTES: [u32; 3] = [16, 32, 64];

/// Where a partition table in the first sector has its signature: in the salt of keyslot 6.
const PARTITIONS: (usize, [u8; 2]) = (510, [0x55, 0xaa]);

/// What mends a header.
#[derive(Debug)]
pub struct Repair {
    /// The header afterwards.
    pub header: Header,
    /// What is mended, a sentence each.
    pub mended: Vec<String>,
    /// The write, for [`write_verified`](crate::write_verified). What another program has put behind the header
    /// stays.
    pub write: Write,
}

impl Header {
    /// What mends the header at the start of `image`; `None` if nothing has to be mended.
    ///
    /// # Errors
    /// [`Error::NotLuks`] and [`Error::UnknownVersion`] if it is not LUKS1. The rule that is broken, if that
    /// cannot be mended: where a keyslot holds a key, only a header backup brings it back.
    pub fn repair(image: &dyn ReadAt) -> Result<Option<Repair>> {
        let bytes = read_bytes(image, "the LUKS1 header", 0, HEADER_BYTES as u64, 4096)?;
        let before = Self::parse_unchecked(&bytes)?;
        let mut header = before.clone();
        let mut mended = spell(&mut header);
        let broken = header.check().is_err();
        if broken || !mended.is_empty() {
            check_names(&header)?;
        }
        if broken {
            mended.extend(place(&mut header, &bytes)?);
            // Also tells that nothing here could be mended.
            header.check()?;
        }
        let (end, image_len) = (header.areas_end(), image.len());
        if end > image_len {
            let what = "the keyslot areas of LUKS1".to_owned();
            return Err(Error::Truncated { what, offset: SECTOR_BYTES, end, image_len });
        }
        let write = Write { offset: 0, bytes: put(&bytes, &before, &header) };
        Ok((!mended.is_empty()).then_some(Repair { header, mended, write }))
    }
}

/// Refuses a header whose names are damaged: the cipher also tells whether the length of its key is right.
fn check_names(header: &Header) -> Result<()> {
    find_hash(&header.hash)?;
    if header.cipher_mode.is_empty() {
        return Err(Error::damaged("cipher mode", "it is empty"));
    }
    let (cipher, len) = (header.cipher()?, header.key_bytes);
    if cipher.is_null() || cipher.key_sizes().contains(len as usize) {
        return Ok(());
    }
    Err(Error::damaged("key bytes", format!("{cipher} takes no key of {len} bytes")))
}

/// The bytes of a header with what is new in `after`. What lies behind a name stays.
fn put(bytes: &[u8], before: &Header, after: &Header) -> Vec<u8> {
    let (before, after) = (before.to_bytes(), after.to_bytes());
    let both = before.iter().zip(&after);
    bytes
        .iter()
        .zip(both)
        .map(|(old, (before, after))| if before == after { *old } else { *after })
        .collect()
}

/// Spells names as every program reads them.
fn spell(header: &mut Header) -> Vec<String> {
    let mut mended = Vec::new();
    // ECB has no IV; old kernels ignored the name of one.
    if header.cipher_mode.starts_with("ecb-") {
        mended.push(format!("Cipher mode repaired ({} -> ecb).", header.cipher_mode));
        "ecb".clone_into(&mut header.cipher_mode);
    }
    if header.hash.bytes().any(|byte| byte.is_ascii_uppercase()) {
        header.hash.make_ascii_lowercase();
        mended.push(format!("Cipher hash repaired to lowercase ({}).", header.hash));
    }
    mended
}

/// Gives keyslots without a key the places that a new header has.
fn place(header: &mut Header, bytes: &[u8]) -> Result<Vec<String>> {
    if !KEY_BYTES.contains(&header.key_bytes) {
        let problem =
            format!("a key of {} bytes is not usual; repair it by hand", header.key_bytes);
        return Err(Error::damaged("key bytes", problem));
    }
    let new = free_keyslots(header.key_bytes);
    if header.keyslots[0].material_offset < new[0].material_offset {
        // The first versions of cryptsetup did not align keyslots.
        let problem = "its key material begins before byte 4096; repair it by hand";
        return Err(Error::damaged("keyslot 0", problem));
    }
    let (at, signature) = PARTITIONS;
    let has_table = bytes[at..].starts_with(&signature);
    let mut mended = Vec::new();
    for (number, new) in new.into_iter().enumerate() {
        let old = header.keyslots[number];
        if old.is_active() {
            continue;
        }
        let mut found = Vec::new();
        if old.material_offset != new.material_offset {
            let (old, new) = (old.material_offset, new.material_offset);
            found.push(format!("Keyslot {number}: offset repaired ({old} -> {new})."));
        }
        if old.stripes != new.stripes {
            let (old, new) = (old.stripes, new.stripes);
            found.push(format!("Keyslot {number}: stripes repaired ({old} -> {new})."));
        }
        if number == 6 && has_table {
            found.push(format!("Keyslot {number}: bogus partition signature."));
        }
        if found.is_empty() {
            continue;
        }
        if let State::Unknown(word) = old.state {
            // Whatever key it held, its header bytes are gone.
            found.push(format!("Keyslot {number}: state repaired ({word:#010x} -> inactive)."));
        }
        found.push(format!("Keyslot {number}: salt wiped."));
        mended.extend(found);
        header.keyslots[number] = Keyslot { state: State::Inactive, ..new };
    }
    Ok(mended)
}
