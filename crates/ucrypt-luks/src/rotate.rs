//! Replacing a passphrase by another one in steps that can be interrupted and run again.
//!
//! 1. The new key is added.
//! 2. Both header copies are read again, and the new key has to open the volume.
//! 3. A token of the type [`MARK`] names the new keyslot and those that the old key opens, with their
//!    salts and the digests of their key material as it lies on the medium (LUKS2).
//! 4. The old keyslots are wiped and removed, and the token with them.
//!
//! If step 4 was interrupted, the token still names keyslots that nobody opens any more: their key
//! material has another digest now. Only these are removed without a key that opens them. A rotation
//! that was given up, or taken back, costs no key later, whatever is taken for the old key then. LUKS1
//! has no tokens: there an old keyslot becomes inactive before it is wiped, and keeps its salt until
//! the end.

use subtle::ConstantTimeEq;

use crate::area::{STRIPES, material_len};
use crate::dump::hex;
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::header::Header;
use crate::json::Json;
use crate::kdf::KEY_LEN_MAX;
use crate::keys::{HeaderChange, NewKey, same_key};
use crate::luks2::{self, Damage};
use crate::medium::{Medium, Write, read_bytes, settle_cache, write_reserved};
use crate::new_volume::Tools;
use crate::volume::Unlocked;

/// The type of the token that names keyslots to be removed.
const MARK: &str = "ucrypt-rotation";

/// What a rotation found and did. All numbers are keyslots.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// Those that the old key opened.
    pub found_old: Vec<u32>,
    /// The one that the new key opened already. A keyslot of the priority `ignore` does not do.
    pub found_new: Option<u32>,
    /// The one that was added.
    pub added: Option<u32>,
    /// The one that the new key opens, proven by a fresh look at the header.
    pub verified: u32,
    /// Those that were wiped and removed.
    pub retired: Vec<u32>,
}

/// Makes `new` open the volume on `medium`, and `old` not. The medium must be locked against other
/// changes, and what earlier ones have left be settled ([`settle_cache`]).
pub fn rotate(
    medium: &dyn Medium,
    old: &[u8],
    new: &NewKey<'_>,
    tools: &mut Tools<'_>,
) -> Result<Rotation> {
    if bool::from(old.ct_eq(new.passphrase)) {
        return Err(same_key());
    }
    let (header, damage) = Header::read(medium)?;
    if let Header::Luks1(header) = &header {
        // What holds a key only perhaps cannot be tried.
        header.check_states()?;
    }
    let mut rotation = Rotation::default();
    let mut volume = None;
    let mut marked = Marked::default();
    let mut attempts = Attempts::default();
    if let Some(mark) = mark(&header)
        && header.is_tried(mark.new)
        && let Some(unlocked) = attempts.open(&header, medium, new.passphrase, mark.new)?
    {
        rotation.found_new = Some(mark.new);
        volume = Some(unlocked);
        marked = Marked::look(medium, &header, mark.old);
    }
    for number in header.volume_keyslots() {
        if rotation.found_new == Some(number) || names(&marked.wiped, number) {
            continue;
        }
        if let Some(unlocked) = attempts.open(&header, medium, old, number)? {
            rotation.found_old.push(number);
            volume.get_or_insert(unlocked);
        } else if rotation.found_new.is_none()
            && header.is_tried(number)
            && let Some(unlocked) = attempts.open(&header, medium, new.passphrase, number)?
        {
            rotation.found_new = Some(number);
            volume.get_or_insert(unlocked);
        }
    }
    let found_old = &rotation.found_old;
    if !found_old.is_empty() && !found_old.iter().any(|number| marked.has(*number)) {
        // The mark is that of another key's rotation.
        marked.unreadable.clear();
    }
    let volume = attempts.check(volume, &marked.unreadable)?;
    let mut retire = marked.wiped;
    retire.extend(marked.unreadable);
    for number in &rotation.found_old {
        retire.push(Old { number: *number, material: material(medium, &header, *number)? });
    }
    retire.sort_unstable_by_key(|old| old.number);
    let number = if let Some(number) = rotation.found_new {
        header.check_new_key(number, old, new.passphrase)?;
        number
    } else {
        let change = header.add_key(damage.as_ref(), &volume, None, new, tools)?;
        change.header.check_new_key(change.keyslot, old, new.passphrase)?;
        let added = add(medium, &change, &retire, tools)?;
        rotation.added = Some(added);
        added
    };
    let (header, damage) = prove(medium, &volume, new.passphrase, number)?;
    rotation.verified = number;
    rotation.retired = finish(medium, &header, damage.as_ref(), number, &retire, tools)?;
    Ok(rotation)
}

/// A keyslot that is to be removed.
struct Old {
    number: u32,
    /// The digest of its key material before it is wiped. LUKS1 stores none.
    material: Json,
}

fn names(keyslots: &[Old], number: u32) -> bool {
    keyslots.iter().any(|old| old.number == number)
}

/// What an interrupted rotation has left.
struct Mark {
    /// The keyslot that it added.
    new: u32,
    /// Those that it was to remove.
    old: Vec<Old>,
}

/// The mark of an interrupted rotation, as far as it is true: a keyslot that got another key
/// meanwhile has another salt.
fn mark(header: &Header) -> Option<Mark> {
    let Header::Luks2(header) = header else { return None };
    let token = header.metadata.tokens.get(&mark_number(header)?)?;
    let (salts, materials) = (token.json.get("salts")?, token.json.get("materials")?);
    let same = |number: &u32| {
        let salt = salts.get(&number.to_string());
        salt.is_some() && salt == salt_of(&header.json, *number)
    };
    let Json::String(new) = token.json.get("new")? else { return None };
    let new = new.parse::<u32>().ok().filter(same)?;
    let old = token.keyslots.iter().filter(|number| same(number)).filter_map(|number| {
        let material = materials.get(&number.to_string())?.clone();
        Some(Old { number: *number, material })
    });
    Some(Mark { new, old: old.collect() })
}

/// The keyslots of a mark, by what has become of them.
#[derive(Default)]
struct Marked {
    /// Nobody opens them any more.
    wiped: Vec<Old>,
    /// They may be in the middle of the wipe.
    unreadable: Vec<Old>,
    /// They open as before.
    whole: Vec<Old>,
}

impl Marked {
    fn look(medium: &dyn Medium, header: &Header, keyslots: Vec<Old>) -> Self {
        let mut marked = Self::default();
        for old in keyslots {
            match material(medium, header, old.number) {
                Ok(material) if material == old.material => marked.whole.push(old),
                Ok(_) => marked.wiped.push(old),
                Err(_) => marked.unreadable.push(old),
            }
        }
        marked
    }

    fn has(&self, number: u32) -> bool {
        [&self.wiped, &self.unreadable, &self.whole].iter().any(|part| names(part, number))
    }
}

/// The digest of a keyslot's key material as it lies on the medium, in hex. A change of any byte of
/// it loses the key.
fn material(medium: &dyn Medium, header: &Header, number: u32) -> Result<Json> {
    let Header::Luks2(header) = header else { return Ok("".into()) };
    let keyslot = header.metadata.keyslots.get(&number).ok_or(Error::InactiveKeyslot(number))?;
    let length = material_len(keyslot.key_size, STRIPES).min(keyslot.area.size);
    let limit = material_len(KEY_LEN_MAX as u32, STRIPES);
    let bytes = read_bytes(&medium, "a keyslot area", keyslot.area.offset, length, limit)?;
    Ok(hex(&Hash::Sha256.digest(&[&bytes])))
}

/// The salt of a keyslot in the metadata of a header.
fn salt_of(metadata: &Json, number: u32) -> Option<&Json> {
    metadata.get("keyslots")?.get(&number.to_string())?.get("kdf")?.get("salt")
}

/// The outcomes of trying keyslots.
#[derive(Default)]
struct Attempts {
    /// The keyslots that could not be tried.
    failed: Vec<(u32, Error)>,
    /// Whether another one refused a passphrase.
    refused: bool,
}

impl Attempts {
    /// Opens one keyslot; `None` if the passphrase is wrong or the keyslot cannot be tried.
    fn open(
        &mut self,
        header: &Header,
        medium: &dyn Medium,
        passphrase: &[u8],
        number: u32,
    ) -> Result<Option<Unlocked>> {
        match header.unlock(&medium, passphrase, Some(number)) {
            Ok(unlocked) => Ok(Some(unlocked)),
            Err(Error::WrongPassphrase { .. }) => {
                self.refused = true;
                Ok(None)
            }
            // The keyslot is sound; it can be tried another time.
            Err(
                error @ (Error::OutOfMemory { .. } | Error::NoMemory(_) | Error::Threads { .. }),
            ) => Err(error),
            Err(error) => {
                self.failed.push((number, error));
                Ok(None)
            }
        }
    }

    /// The volume that was opened. Refused if the old key may open a keyslot that was not tried: it
    /// would go on opening the volume. The keyslots in `marked` are removed anyway.
    fn check(self, volume: Option<Unlocked>, marked: &[Old]) -> Result<Unlocked> {
        let first = self.failed.into_iter().find(|(number, _)| !names(marked, *number));
        match (volume, first) {
            (Some(volume), None) => Ok(volume),
            (Some(_), Some((number, error))) => Err(Error::Unchangeable(format!(
                "the old key may open a keyslot that cannot be tried (keyslot {number}: {error}); \
                 if nobody needs it, remove it with luksKillSlot, then run this again"
            ))),
            (None, Some((_, error))) if !self.refused => Err(error),
            (None, first) => Err(Error::WrongPassphrase {
                skipped: first.map(|(number, error)| format!("keyslot {number}: {error}")),
            }),
        }
    }
}

/// Adds the new key, as `change` says.
fn add(
    medium: &dyn Medium,
    change: &HeaderChange,
    retire: &[Old],
    tools: &mut Tools<'_>,
) -> Result<u32> {
    if let Header::Luks2(after) = &change.header {
        // Refused before anything is written: the mark has to fit, too.
        with_mark(after, None, change.keyslot, retire, tools)?;
    }
    write_reserved(medium, &change.writes)?;
    Ok(change.keyslot)
}

/// The header with the mark that names the keyslots to be removed, and the writes.
fn with_mark(
    header: &luks2::Header,
    damage: Option<&Damage>,
    new: u32,
    retire: &[Old],
    tools: &mut Tools<'_>,
) -> Result<(luks2::Header, Vec<Write>)> {
    let numbers: Vec<String> = retire.iter().map(|old| old.number.to_string()).collect();
    let names: Vec<&str> = numbers.iter().map(String::as_str).collect();
    let marked = retire.iter().map(|old| old.number).chain([new]);
    let salts = marked.filter_map(|number| {
        salt_of(&header.json, number).map(|salt| (number.to_string(), salt.clone()))
    });
    let materials = retire.iter().map(|old| (old.number.to_string(), old.material.clone()));
    let token = Json::object([
        ("type", MARK.into()),
        ("keyslots", Json::strings(&names)),
        ("new", new.to_string().into()),
        ("salts", salts.collect::<Vec<_>>().into()),
        ("materials", materials.collect::<Vec<_>>().into()),
    ]);
    let number = mark_number(header);
    let mut change = header.change(damage)?;
    change.put_token(number, token, number.is_some())?;
    change.finish(tools.random)
}

/// The number of the token that an interrupted rotation has left.
fn mark_number(header: &luks2::Header) -> Option<u32> {
    let mut tokens = header.metadata.tokens.iter();
    tokens.find(|(_, token)| token.kind == MARK).map(|(number, _)| *number)
}

/// Reads both header copies again, from the medium, and opens the volume with the new key. The
/// keyslot has to be one that is tried without its number.
fn prove(
    medium: &dyn Medium,
    volume: &Unlocked,
    passphrase: &[u8],
    number: u32,
) -> Result<(Header, Option<Damage>)> {
    settle_cache(medium)?;
    let (header, damage) = Header::read(medium)?;
    let unlocked = header.unlock(&medium, passphrase, Some(number))?;
    if !bool::from(unlocked.volume_key.as_slice().ct_eq(&volume.volume_key)) {
        return Err(Error::WrongVolumeKey);
    }
    if !header.is_tried(number) {
        return Err(Error::OnlyIgnored(vec![number]));
    }
    Ok((header, damage))
}

/// Marks the old keyslots, and removes them and the mark. Returns the keyslots that were removed.
fn finish(
    medium: &dyn Medium,
    header: &Header,
    damage: Option<&Damage>,
    new: u32,
    retire: &[Old],
    tools: &mut Tools<'_>,
) -> Result<Vec<u32>> {
    let mut numbers: Vec<u32> = retire.iter().map(|old| old.number).collect();
    match header {
        Header::Luks1(luks1) => {
            numbers.extend(luks1.unfinished_keyslots());
            let (_, writes) = luks1.retire_keys(&numbers, tools.random)?;
            write_reserved(medium, &writes)?;
            Ok(numbers)
        }
        Header::Luks2(luks2) => {
            // A copy that is out of date still shows the old keyslots.
            if retire.is_empty() && mark_number(luks2).is_none() && damage.is_none() {
                return Ok(Vec::new());
            }
            let marked;
            let (mut luks2, mut damage) = (luks2.as_ref(), damage);
            if !retire.is_empty() {
                let (header, writes) = with_mark(luks2, damage, new, retire, tools)?;
                write_reserved(medium, &writes)?;
                marked = header;
                (luks2, damage) = (&marked, None);
            }
            let mut change = luks2.change(damage)?;
            for number in &numbers {
                change.remove_keyslot(*number, tools.random)?;
            }
            if let Some(mark) = mark_number(luks2) {
                change.remove_token(mark)?;
            }
            let (_, writes) = change.finish(tools.random)?;
            write_reserved(medium, &writes)?;
            Ok(numbers)
        }
    }
}
