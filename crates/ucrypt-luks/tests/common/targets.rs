//! What is done with each mutated image: by the tests with seeded damage, and by the fuzzer in
//! `fuzz/`, which is guided by coverage and keeps a corpus.

use std::cell::Cell;
use std::io;
use std::sync::OnceLock;

use ucrypt_luks::luks2::{Damage, Priority, keyring_token};
use ucrypt_luks::{
    Error, Flag, Header, HeaderCopy, Json, NewKey, PbkdfKind, ReadAt, Result, Tools, Write, luks1,
    restore, rotate, to_luks1, to_luks2,
};

use super::recorder::Recorder;
use super::{
    PASSPHRASE, apply, cheap_argon2, cheap_pbkdf2, is_quick, put_json, roomy_luks2, seal,
    small_luks1, with_tools, zeroes,
};

/// The largest header copy of LUKS2, in bytes. No single read is larger.
const READ_MAX: usize = 4 << 20;

/// Bytes of a LUKS1 header.
const LUKS1_BYTES: usize = 592;

/// Bytes of the binary header of a LUKS2 copy.
const BINARY_BYTES: usize = 512;

const NEW: &[u8] = b"the new one";

/// The image that an input of the fuzzer stands for. Its first byte is the kind: 0, a LUKS1 header;
/// 1, the JSON text of both LUKS2 copies; 2, the binary headers of both; 3, the JSON text of the
/// primary copy; 4, that of the secondary copy; 5, all bytes of an image. Checksums are right.
pub(crate) fn image_of(input: &[u8]) -> Vec<u8> {
    static LUKS1: OnceLock<Vec<u8>> = OnceLock::new();
    static LUKS2: OnceLock<Vec<u8>> = OnceLock::new();
    let Some((kind, input)) = input.split_first() else { return Vec::new() };
    let luks2 = || LUKS2.get_or_init(roomy_luks2).clone();
    match kind {
        0 => {
            let mut image = LUKS1.get_or_init(small_luks1).clone();
            put(&mut image[..LUKS1_BYTES], input);
            image
        }
        1 => {
            let mut image = luks2();
            put_json(&mut image, input);
            image
        }
        2 => {
            let mut image = luks2();
            let parts = input.split_at(input.len().min(BINARY_BYTES));
            for (copy, part) in image[..0x8000].chunks_mut(0x4000).zip([parts.0, parts.1]) {
                put(&mut copy[..BINARY_BYTES], part);
                seal(copy);
            }
            image
        }
        3 | 4 => {
            let (mut image, sound) = (luks2(), luks2());
            put_json(&mut image, input);
            let other = if *kind == 3 { 0x4000..0x8000 } else { 0..0x4000 };
            image[other.clone()].copy_from_slice(&sound[other]);
            image
        }
        _ => input.to_vec(),
    }
}

fn put(to: &mut [u8], bytes: &[u8]) {
    let length = bytes.len().min(to.len());
    to[..length].copy_from_slice(&bytes[..length]);
}

/// An image that checks its reads.
struct Watched<'a> {
    bytes: &'a [u8],
    reads: Cell<usize>,
}

impl ReadAt for Watched<'_> {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.reads.set(self.reads.get() + 1);
        assert!(buf.len() <= READ_MAX, "a read of {} bytes", buf.len());
        let end = offset.checked_add(buf.len() as u64).expect("a read beyond 2^64");
        assert!(end <= ReadAt::len(self), "a read behind the image, to {end}");
        self.bytes.read_exact_at(offset, buf)
    }
}

/// What became of a header that was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looked {
    Refused,
    Read,
    /// The passphrase opens it.
    Opened,
}

/// Does everything with the image that a command does that writes nothing.
pub(crate) fn look(bytes: &[u8]) -> Looked {
    mends(bytes);
    let image = Watched { bytes, reads: Cell::new(0) };
    let _ = HeaderCopy::read(&image).map(|copy| copy.digest());
    image.reads.set(0);
    let Ok((header, damage)) = Header::read(&image) else { return Looked::Refused };
    assert!(image.reads.get() < 100, "{} reads", image.reads.get());
    assert!(!header.dump("image").is_empty());
    assert!(!header.dump_json().to_compact().is_empty());
    if let Some(damage) = &damage {
        assert!(!damage.to_string().is_empty());
    }
    let _ = header.check_strictly(damage.as_ref(), None);
    if is_quick(&header)
        && let Ok(unlocked) = header.unlock(&image, PASSPHRASE, None)
    {
        if let Ok(length) = unlocked.volume_len(bytes.len() as u64) {
            assert!(length <= bytes.len() as u64 * unlocked.segments.len() as u64);
        }
        return Looked::Opened;
    }
    Looked::Read
}

/// Mends what may be a LUKS1 header. If that works, the header can be read, and its keys are where they were.
fn mends(bytes: &[u8]) {
    let image = Watched { bytes, reads: Cell::new(0) };
    let Ok(Some(repair)) = luks1::Header::repair(&image) else { return };
    assert!(!repair.mended.is_empty());
    let mut after = bytes.to_vec();
    apply(&mut after, &[repair.write]);
    assert!(after.len() == bytes.len() && after[LUKS1_BYTES..] == bytes[LUKS1_BYTES..]);
    let header = luks1::Header::read(&after).expect("the header is mended");
    assert!(header == repair.header && matches!(luks1::Header::repair(&after), Ok(None)));
    for number in header.active_keyslots() {
        let keyslot = 208 + 48 * number as usize..256 + 48 * number as usize;
        assert!(after[keyslot.clone()] == bytes[keyslot], "keyslot {number} was changed");
    }
}

fn new_key() -> NewKey<'static> {
    NewKey { passphrase: NEW, pbkdf: cheap_pbkdf2(), area: None }
}

/// What an action may do to the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaves {
    /// The passphrase opens as before.
    Key,
    /// The new passphrase opens instead.
    NewKey,
    /// Neither need open.
    Anything,
}

type Make = fn(&[u8], &Header, Option<&Damage>, &mut Tools<'_>) -> Result<Vec<Write>>;

/// An action that changes a header.
pub(crate) struct Action {
    pub(crate) name: &'static str,
    leaves: Leaves,
    make: Make,
}

const fn action(name: &'static str, leaves: Leaves, make: Make) -> Action {
    Action { name, leaves, make }
}

fn luks2(header: &Header) -> Result<&ucrypt_luks::luks2::Header> {
    match header {
        Header::Luks2(header) => Ok(header),
        Header::Luks1(_) => Err(Error::Request("LUKS1".into())),
    }
}

fn config(
    header: &Header,
    damage: Option<&Damage>,
    tools: &mut Tools<'_>,
    change: impl FnOnce(&mut ucrypt_luks::luks2::Change) -> Result<()>,
) -> Result<Vec<Write>> {
    let mut begun = luks2(header)?.change(damage)?;
    change(&mut begun)?;
    Ok(begun.finish(tools.random)?.1)
}

/// Every action on a mutated header; [`rotates`] and [`restores`] are two more.
pub(crate) const ACTIONS: &[Action] = &[
    action("add-key", Leaves::Key, |image, header, damage, tools| {
        let volume = header.unlock(&image, PASSPHRASE, None)?;
        Ok(header.add_key(damage, &volume, None, &new_key(), tools)?.writes)
    }),
    action("add-unbound-key", Leaves::Key, |_, header, damage, tools| {
        Ok(header.add_unbound_key(damage, &[7; 32], Some(5), &new_key(), tools)?.writes)
    }),
    action("change-key", Leaves::NewKey, |image, header, damage, tools| {
        let opened = header.open_key(&image, PASSPHRASE, None)?;
        Ok(header.change_key(damage, &opened, false, &new_key(), tools)?.writes)
    }),
    action("convert-key", Leaves::Key, |image, header, damage, tools| {
        let opened = header.open_key(&image, PASSPHRASE, None)?;
        let pbkdf = match header {
            Header::Luks1(_) => return Err(Error::Request("LUKS1".into())),
            Header::Luks2(_) => cheap_argon2(PbkdfKind::Argon2id),
        };
        let new = NewKey { passphrase: PASSPHRASE, pbkdf, area: None };
        Ok(header.change_key(damage, &opened, true, &new, tools)?.writes)
    }),
    action("remove-keyslot-0", Leaves::Anything, |_, header, damage, tools| {
        Ok(header.remove_key(damage, 0, tools.random)?.writes)
    }),
    action("remove-keyslot-1", Leaves::Anything, |_, header, damage, tools| {
        Ok(header.remove_key(damage, 1, tools.random)?.writes)
    }),
    action("erase", Leaves::Anything, |image, header, damage, tools| {
        Ok(header.erase(&image, damage, tools.random)?.writes)
    }),
    action("set-uuid", Leaves::Key, |_, header, damage, tools| {
        Ok(header.change_uuid(damage, None, tools.random)?.writes)
    }),
    action("set-labels-and-flags", Leaves::Key, |_, header, damage, tools| {
        config(header, damage, tools, |change| {
            change.set_label("label")?;
            change.set_subsystem("subsystem")?;
            change.set_flags(&[Flag::AllowDiscards, Flag::NoReadWorkqueue])
        })
    }),
    action("set-priority", Leaves::Key, |_, header, damage, tools| {
        config(header, damage, tools, |change| change.set_priority(0, Priority::Prefer))
    }),
    action("add-token", Leaves::Key, |_, header, damage, tools| {
        config(header, damage, tools, |change| {
            let number = change.put_token(None, keyring_token("a key"), false)?;
            change.assign_token(number, None)
        })
    }),
    action("import-token", Leaves::Key, |_, header, damage, tools| {
        let token = Json::parse(br#"{"type":"some","keyslots":["0"]}"#).expect("JSON");
        config(header, damage, tools, |change| change.put_token(Some(0), token, true).map(drop))
    }),
    action("unassign-token", Leaves::Key, |_, header, damage, tools| {
        config(header, damage, tools, |change| change.unassign_token(0, 0))
    }),
    action("remove-token", Leaves::Key, |_, header, damage, tools| {
        config(header, damage, tools, |change| change.remove_token(0))
    }),
    action("repair", Leaves::Key, |_, header, damage, tools| {
        let damage = damage.ok_or_else(|| Error::Request("nothing is damaged".into()))?;
        Ok(vec![luks2(header)?.repair(damage, tools.random)?])
    }),
    action("repair-by-request", Leaves::Key, |_, header, damage, tools| {
        let damage = damage.ok_or_else(|| Error::Request("nothing is damaged".into()))?;
        Ok(vec![luks2(header)?.repair_by_request(damage, tools.random)?])
    }),
    action("restore", Leaves::Key, |image, header, _, _| {
        let backup = header.backup(&image)?;
        Ok(restore(&image, &backup, &mut zeroes)?.writes)
    }),
    action("convert", Leaves::Key, |image, header, damage, tools| match header {
        Header::Luks1(header) => Ok(to_luks2(header, &image, tools.random)?.writes),
        Header::Luks2(header) => Ok(to_luks1(header, damage, &image, tools.random)?.writes),
    }),
];

/// The name of [`rotates`] beside [`ACTIONS`].
pub(crate) const ROTATION: &str = "rotate-key";

/// The name of [`restores`] beside [`ACTIONS`].
pub(crate) const RESTORE: &str = "restore-mutated-backup";

/// A header that was read, and the volume key that the passphrase opens.
pub(crate) struct Subject {
    header: Header,
    damage: Option<Damage>,
    key: Option<zeroize::Zeroizing<Vec<u8>>>,
}

impl Subject {
    /// `None` if the header is refused or derivations would take too long.
    pub(crate) fn of(image: &[u8]) -> Option<Self> {
        let (header, damage) = Header::read(&image).ok()?;
        if !is_quick(&header) {
            return None;
        }
        let key = header.unlock(&image, PASSPHRASE, None).map(|opened| opened.volume_key);
        Some(Self { header, damage, key: key.ok() })
    }
}

/// Carries out an action on a mutated image. It may refuse; if it does not, the header must be
/// readable afterwards, the data untouched and the key the same. Returns whether something changed.
pub(crate) fn acts(action: &Action, seed: u64, image: &[u8], subject: &Subject) -> bool {
    let what = format!("seed {seed}: {}", action.name);
    let Subject { header, damage, key } = subject;
    let made = with_tools(seed, |tools| (action.make)(image, header, damage.as_ref(), tools));
    let Ok(writes) = made else { return false };
    let data = usize::try_from(header.data_offset()).unwrap_or(usize::MAX);
    let mut after = image.to_vec();
    apply(&mut after, &writes);
    assert_eq!(after.len(), image.len(), "{what}: the image grew");
    if data > 0 && data < image.len() {
        assert!(after[data..] == image[data..], "{what}: the data was touched");
    }
    let (header, _) =
        Header::read(&after).unwrap_or_else(|error| panic!("{what}: the header is lost: {error}"));
    let right = match action.leaves {
        Leaves::Key => PASSPHRASE,
        Leaves::NewKey => NEW,
        Leaves::Anything => return true,
    };
    if let Some(key) = key {
        let opened = header.unlock(&after, right, None);
        let opened = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(opened.volume_key == *key, "{what}: another key");
    }
    true
}

/// Restores a mutated backup over a sound header. It may be refused; if it is not, the header is that
/// of the backup, and the data is untouched. Returns whether it was taken.
pub(crate) fn restores(seed: u64, image: &[u8], subject: &Subject) -> bool {
    let sound = match &subject.header {
        Header::Luks1(_) => small_luks1(),
        Header::Luks2(_) => roomy_luks2(),
    };
    let len = usize::try_from(subject.header.backup_len()).unwrap_or(usize::MAX);
    let backup = &image[..len.min(image.len())];
    let Ok(restore) = restore(&sound, backup, &mut zeroes) else { return false };
    let mut after = sound.clone();
    apply(&mut after, &restore.writes);
    assert_eq!(after.len(), sound.len(), "seed {seed}: the image grew");
    let data = usize::try_from(subject.header.data_offset()).unwrap_or(usize::MAX);
    assert!(after[data..] == sound[data..], "seed {seed}: the data was touched");
    let (header, _) = Header::read(&after)
        .unwrap_or_else(|error| panic!("seed {seed}: a restore lost the header: {error}"));
    assert_eq!(header.uuid().to_string(), subject.header.uuid().to_string(), "seed {seed}");
    if let Some(key) = &subject.key {
        let opened = header.unlock(&after, PASSPHRASE, None);
        let opened = opened.unwrap_or_else(|error| panic!("seed {seed}: restored: {error}"));
        assert!(opened.volume_key == *key, "seed {seed}: another key");
    }
    true
}

/// Rotates the key of a mutated image. Afterwards the new one opens, or nothing is lost.
pub(crate) fn rotates(seed: u64, image: &[u8], subject: &Subject) {
    let medium = Recorder::new(image);
    let rotated = with_tools(seed, |tools| rotate(&medium, PASSPHRASE, &new_key(), tools));
    let after = medium.now.into_inner();
    let (header, _) = Header::read(&after)
        .unwrap_or_else(|error| panic!("seed {seed}: a rotation lost the header: {error}"));
    let Some(key) = &subject.key else { return };
    let right = if rotated.is_ok() { NEW } else { PASSPHRASE };
    let opened = header
        .unlock(&after, right, None)
        .unwrap_or_else(|error| panic!("seed {seed}: no key opens after a rotation: {error}"));
    assert!(opened.volume_key == *key);
}
