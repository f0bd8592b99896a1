//! What a change of a header keeps, and which headers are not changed at all.

mod common;

use std::cell::RefCell;

use common::recorder::Recorder;
use common::{
    PASSPHRASE, apply, cheap_pbkdf2, edit_json, json_text, luks2_options, new_volume, roomy_luks2,
    seal, small_luks1, small_luks2, with_tools, zeroes,
};
use ucrypt_luks::{Error, Header, Json, NewKey, restore, rotate, to_luks2, write_verified};

fn luks2(image: &[u8]) -> (Box<ucrypt_luks::luks2::Header>, Option<ucrypt_luks::luks2::Damage>) {
    match Header::read(&image).unwrap() {
        (Header::Luks2(header), damage) => (header, damage),
        (Header::Luks1(_), _) => panic!("not LUKS2"),
    }
}

fn new_key() -> NewKey<'static> {
    NewKey { passphrase: b"new", pbkdf: cheap_pbkdf2(), area: None }
}

/// Sets a label, the smallest change.
fn label(image: &mut Vec<u8>) -> Result<(), Error> {
    let (header, damage) = luks2(image);
    let mut change = header.change(damage.as_ref())?;
    change.set_label("changed")?;
    let (_, writes) = with_tools(70, |tools| change.finish(tools.random))?;
    apply(image, &writes);
    Ok(())
}

#[test]
fn unknown_members_survive_every_change_in_their_order() {
    let mut image = small_luks2();
    edit_json(
        &mut image,
        "\"tokens\":{}",
        "\"tokens\":{\"3\":{\"z\":1,\"type\":\"t\",\"keyslots\":[\"0\"],\"a\":[{}]}},\"new\":{\"b\":null,\"a\":2.5}",
    );
    edit_json(&mut image, "\"kdf\":", "\"x\":{\"y\":[1]},\"kdf\":");
    edit_json(&mut image, "\"config\":{", "\"config\":{\"later\":true,");
    let before = Json::parse(&json_text(&image)).unwrap();
    label(&mut image).unwrap();
    assert_eq!(Json::parse(&json_text(&image)).unwrap(), before);

    assert_eq!(luks2(&image).0.binary.sequence_id, 2);
}

#[test]
fn what_a_change_does_not_know_is_kept_byte_for_byte() {
    let mut image = small_luks2();
    let odd = r#""config":{"n":[123456789012345678901234567890,1.50,-0,2e+05],"\u006b":"\/\u00e4ä\ud83d\ude00","#;
    edit_json(&mut image, "\"config\":{", odd);
    edit_json(
        &mut image,
        "\"tokens\":{}",
        r#""tokens":{"0":{"type":"t\u0065st","keyslots":["0"],"big":1e999}}"#,
    );
    let before = json_text(&image);
    label(&mut image).unwrap();
    assert_eq!(String::from_utf8(json_text(&image)), String::from_utf8(before));
    // What the change touches is written anew, and its neighbours are not.
    let (header, damage) = luks2(&image);
    let mut change = header.change(damage.as_ref()).unwrap();
    change.remove_token(0).unwrap();
    let (_, writes) = with_tools(72, |tools| change.finish(tools.random)).unwrap();
    apply(&mut image, &writes);
    let after = String::from_utf8(json_text(&image)).unwrap();
    assert!(after.contains(odd) && after.contains("\"tokens\":{}"), "{after}");
}

/// A volume whose data cannot be used here: its keys can be looked at.
#[test]
fn keys_of_volumes_with_unusable_segments_open_and_an_unknown_type_is_not_changed() {
    for (from, to, name) in [
        ("\"type\":\"crypt\"", "\"type\":\"future-segment\"", "future-segment"),
        (
            "\"sector_size\":512",
            "\"sector_size\":512,\"integrity\":{\"type\":\"hmac(sha256)\",\"journal_encryption\":\"none\",\"journal_integrity\":\"none\"}",
            "hmac",
        ),
        (
            "\"encryption\":\"aes-xts-plain64\",\"sector",
            "\"encryption\":\"future-xts-plain64\",\"sector",
            "future",
        ),
    ] {
        let mut image = roomy_luks2();
        edit_json(&mut image, from, to);
        let (header, damage) = Header::read(&image).unwrap();
        assert!(damage.is_none());
        let refused = header.unlock(&image, PASSPHRASE, None).unwrap_err().to_string();
        assert!(refused.contains(name), "{refused}");
        assert_eq!(header.test_passphrase(&image, PASSPHRASE, None).unwrap().keyslot, 0);
        let wrong = header.test_passphrase(&image, b"wrong", None);
        assert!(matches!(wrong, Err(Error::WrongPassphrase { .. })), "{wrong:?}");
        assert!(!header.dump("image").is_empty());
        let backup = header.backup(&image).unwrap();
        assert!(Header::read(&backup).is_ok());
        let opened = header.open_key(&image, PASSPHRASE, None).unwrap();
        let changed = with_tools(75, |tools| {
            header.change_key(None, &opened, true, &new_key(), tools).map(drop)
        });
        let removed = with_tools(76, |tools| header.remove_key(None, 0, tools.random).map(drop));
        // A segment of a known type whose data cannot be used here keeps nobody from its keys.
        for change in [changed, removed] {
            match change {
                Err(refused) => {
                    assert!(refused.to_string().contains(name), "{refused}");
                }
                Ok(()) => assert_ne!(name, "future-segment"),
            }
        }
    }
}

#[test]
fn a_replaced_keyslot_keeps_what_is_not_part_of_its_key() {
    let mut image = roomy_luks2();
    edit_json(&mut image, "\"kdf\":", "\"x\":{\"y\":[1]},\"priority\":2,\"kdf\":");
    let before = Json::parse(&json_text(&image)).unwrap();
    let (header, _) = Header::read(&image).unwrap();
    let opened = header.open_key(&image, PASSPHRASE, None).unwrap();
    let change = with_tools(71, |tools| header.change_key(None, &opened, true, &new_key(), tools));
    apply(&mut image, &change.unwrap().writes);
    let after = Json::parse(&json_text(&image)).unwrap();
    let member = |json: &Json, name: &str| {
        json.get("keyslots").unwrap().get("0").unwrap().get(name).unwrap().clone()
    };
    for kept in ["type", "key_size", "x", "priority", "af"] {
        assert_eq!(member(&after, kept), member(&before, kept), "{kept}");
    }
    assert_ne!(member(&after, "kdf"), member(&before, "kdf"));
    for kept in ["tokens", "segments", "digests", "config"] {
        assert_eq!(after.get(kept), before.get(kept), "{kept}");
    }
}

#[test]
fn a_key_is_not_changed_where_the_old_one_would_have_to_be_overwritten_first() {
    // This header has room for one key.
    let image = small_luks2();
    let (header, _) = Header::read(&image).unwrap();
    let opened = header.open_key(&image, PASSPHRASE, None).unwrap();
    let change = with_tools(73, |tools| header.change_key(None, &opened, true, &new_key(), tools));
    let error = change.unwrap_err().to_string();
    assert!(error.contains("no room") && error.contains("remove a keyslot first"), "{error}");
    // And here all keyslots are taken.
    let mut image = small_luks1();
    for number in 1..8 {
        let (header, _) = Header::read(&image).unwrap();
        let volume = header.unlock(&image, PASSPHRASE, Some(0)).unwrap();
        let change = with_tools(74 + u64::from(number), |tools| {
            header.add_key(None, &volume, None, &new_key(), tools).unwrap()
        });
        assert_eq!(change.keyslot, number);
        apply(&mut image, &change.writes);
    }
    let (header, _) = Header::read(&image).unwrap();
    let opened = header.open_key(&image, PASSPHRASE, None).unwrap();
    for keep_number in [false, true] {
        let change = with_tools(90, |tools| {
            header.change_key(None, &opened, keep_number, &new_key(), tools)
        });
        let error = change.unwrap_err().to_string();
        assert!(error.contains("all 8") && error.contains("remove a keyslot first"), "{error}");
    }
}

#[test]
fn both_copies_are_written_with_the_next_sequence_id() {
    let mut image = small_luks2();
    label(&mut image).unwrap();
    let sequence = |at: usize| u64::from_be_bytes(image[at + 16..at + 24].try_into().unwrap());
    assert_eq!((sequence(0), sequence(0x4000)), (2, 2));
    assert!(luks2(&image).1.is_none());
    // The salts of the copies differ from each other and from those before.
    assert!(image[104..168] != image[0x4000 + 104..0x4000 + 168]);
    assert!(image[104..168] != small_luks2()[104..168]);
}

/// Edits that make a header of a newer program, or one in the middle of a reencryption.
const NOT_KNOWN: [(&str, &str, &str); 5] = [
    ("\"config\":{", "\"config\":{\"requirements\":{\"mandatory\":[\"later\"]},", "later"),
    ("\"type\":\"crypt\"", "\"type\":\"future-segment\"", "future-segment"),
    ("\"type\":\"luks2\"", "\"type\":\"future-keyslot\"", "future-keyslot"),
    (
        "\"sector_size\":512",
        "\"sector_size\":512,\"flags\":[\"in-reencryption\"]",
        "in-reencryption",
    ),
    ("\"type\":\"pbkdf2\"", "\"type\":\"future-digest\"", "future-digest"),
];

#[test]
fn headers_of_newer_programs_are_refused_by_name() {
    for (from, to, name) in NOT_KNOWN {
        let mut image = small_luks2();
        edit_json(&mut image, from, to);
        let before = image.clone();
        let error = label(&mut image).unwrap_err().to_string();
        assert!(error.contains(name), "{name}: {error}");
        assert!(image == before);
        assert!(Header::read(&image).unwrap().0.backup(&image).is_ok(), "{name}");
    }
}

/// As with cryptsetup, requirements keep a volume from being opened and changed, and nobody from trying a
/// passphrase.
#[test]
fn passphrases_are_tried_whatever_a_header_requires() {
    let with = |from: &str, to: &str| {
        let mut image = roomy_luks2();
        edit_json(&mut image, from, to);
        let (header, damage) = Header::read(&image).unwrap();
        assert!(damage.is_none());
        (image, header)
    };
    let required = |name: &str| {
        let config = format!("\"config\":{{\"requirements\":{{\"mandatory\":[\"{name}\"]}},");
        with("\"config\":{", &config)
    };
    let flagged =
        with("\"sector_size\":512", "\"sector_size\":512,\"flags\":[\"in-reencryption\"]");
    for ((image, header), is_reencrypted) in [
        (required("later"), false),
        // Of a version to come, whose keyslots and segments are not known.
        (required("online-reencrypt-v4"), true),
        (required("offline-reencrypt"), true),
        (flagged, true),
    ] {
        assert_eq!(header.test_passphrase(&image, PASSPHRASE, None).unwrap().keyslot, 0);
        let wrong = header.test_passphrase(&image, b"wrong", None);
        assert!(matches!(wrong, Err(Error::WrongPassphrase { .. })), "{wrong:?}");
        let key = header.open_volume_key(&image, PASSPHRASE, Some(0));
        assert_eq!(key.is_ok(), !is_reencrypted, "{key:?}");
        let refused = header.unlock(&image, PASSPHRASE, None).unwrap_err();
        let words = "reencrypt --resume-only";
        assert_eq!(refused.to_string().contains(words), is_reencrypted, "{refused}");
        let changed = with_tools(80, |tools| header.remove_key(None, 0, tools.random).map(drop));
        assert_eq!(changed.unwrap_err().to_string(), refused.to_string());
    }
}

#[test]
fn a_copy_that_must_stay_keeps_the_header_from_being_changed() {
    // A secondary copy of another size may come from a newer program.
    let mut image = small_luks2();
    image[0x4000 + 8..0x4000 + 16].copy_from_slice(&0x4001_u64.to_be_bytes());
    let error = label(&mut image).unwrap_err();
    assert!(matches!(error, Error::Unchangeable(_)), "{error}");
    // A torn copy is written again, and so is one that is out of date.
    let mut image = small_luks2();
    image[5000] ^= 1;
    label(&mut image).unwrap();
    assert!(luks2(&image).1.is_none());
    let mut image = small_luks2();
    image[0x4000 + 23] += 1;
    seal(&mut image[0x4000..0x8000]);
    label(&mut image).unwrap();
    let (header, damage) = luks2(&image);
    assert!(damage.is_none());
    assert_eq!(
        (header.binary.sequence_id, header.binary.label.to_string().as_str()),
        (3, "changed")
    );
}

#[test]
fn a_backup_is_restored_neither_over_nor_from_a_header_that_no_change_touches() {
    let sound = small_luks2();
    let backup = Header::read(&sound).unwrap().0.backup(&sound).unwrap();
    let refused = |image: &[u8], backup: &[u8], words: &str| {
        let error = restore(&image, backup, &mut zeroes).unwrap_err();
        assert!(matches!(error, Error::Unchangeable(_)), "{words}: {error}");
        let error = error.to_string();
        assert!(error.contains(words) && error.contains("cryptsetup luksHeaderRestore"), "{error}");
    };
    for (from, to, name) in NOT_KNOWN {
        let mut image = sound.clone();
        edit_json(&mut image, from, to);
        refused(&image, &backup, name);
        refused(&sound, &image, name);
    }
    // The other copy of a newer program.
    let mut image = sound.clone();
    image[0x4000 + 8..0x4000 + 16].copy_from_slice(&0x4001_u64.to_be_bytes());
    assert!(label(&mut image).is_err());
    refused(&image, &backup, "unusable");
    // Headers that cannot even be read.
    let mut image = sound.clone();
    image[6..8].copy_from_slice(&3_u16.to_be_bytes());
    refused(&image, &backup, "version 3");
    for copy in [0, 0x4000] {
        let mut image = sound.clone();
        let json = String::from_utf8(json_text(&image)).unwrap();
        let json = json.replacen(r#""tokens":{}"#, r#""tokens":[]"#, 1);
        image[copy + 4096..][..json.len()].copy_from_slice(json.as_bytes());
        image[copy + 23] += 1;
        seal(&mut image[copy..copy + 0x4000]);
        refused(&image, &backup, "is the newer one");
    }
    // Both copies are whole and break a rule, or one of them beside a torn one.
    let mut whole = sound.clone();
    edit_json(&mut whole, r#""tokens":{}"#, r#""tokens":[]"#);
    for torn in [None, Some(5000_usize), Some(0x4000 + 5000)] {
        let mut image = whole.clone();
        if let Some(at) = torn {
            image[at] ^= 1;
        }
        refused(&image, &backup, "JSON/tokens: it is not an object");
    }
    // The place of a copy that nobody can tell.
    let mut image = sound.clone();
    image[5000] ^= 1;
    image[0x4000 + 7] = 3;
    refused(&image, &backup, "version 3");
}

#[test]
fn a_backup_is_restored_where_there_is_no_header_and_names_what_is_there_instead() {
    let sound = small_luks2();
    let backup = Header::read(&sound).unwrap().0.backup(&sound).unwrap();
    let blank = vec![0; sound.len()];
    let mut torn = sound.clone();
    (torn[5000], torn[0x4000 + 5000]) = (b'!', b'!');
    let mut foreign = blank.clone();
    foreign[0x438..0x43a].copy_from_slice(b"\x53\xef");
    // One copy is whole, and the other one is ext4's now.
    let mut both = sound.clone();
    both[0x438..0x43a].copy_from_slice(b"\x53\xef");
    // One copy is torn, and the other one is ext4's now.
    let mut torn_and_foreign = both.clone();
    (torn_and_foreign[0], torn_and_foreign[0x4000 + 5000]) = (0, b'!');
    for (image, has_header, name) in [
        (&blank, false, None),
        (&torn, false, None),
        (&foreign, false, Some("ext4")),
        (&both, true, Some("ext4")),
        (&torn_and_foreign, false, Some("ext4")),
        (&sound, true, None),
    ] {
        let done = restore(image, &backup, &mut zeroes).unwrap();
        assert_eq!(done.old.is_some(), has_header);
        assert_eq!(done.foreign.map(|found| found.name), name);
        let mut image = image.clone();
        apply(&mut image, &done.writes);
        assert!(luks2(&image).0.unlock(&image, PASSPHRASE, None).is_ok());
    }
}

#[test]
fn a_backup_with_other_sizes_is_refused() {
    let sound = small_luks2();
    let backup = Header::read(&sound).unwrap().0.backup(&sound).unwrap();
    for (metadata_size, keyslots_size) in [(0x8000, None), (0x4000, Some(256 << 10))] {
        let volume = ucrypt_luks::NewVolume {
            data_offset: Some(512 << 10),
            ..new_volume("aes-xts-plain64", 64, cheap_pbkdf2())
        };
        let options = ucrypt_luks::luks2::Options {
            metadata_size: Some(metadata_size),
            keyslots_size,
            ..luks2_options()
        };
        let format = with_tools(78, |tools| {
            ucrypt_luks::luks2::format(&volume, &options, PASSPHRASE, tools).unwrap()
        });
        let mut image = vec![0; sound.len()];
        apply(&mut image, &format.1);
        assert_eq!(luks2(&image).0.metadata.data_offset(), 512 << 10);
        let error = restore(&image, &backup, &mut zeroes).unwrap_err().to_string();
        assert!(error.contains("differs"), "{error}");
    }
}

fn with_key(image: &[u8], number: u32, passphrase: &[u8]) -> Vec<u8> {
    let (header, _) = Header::read(&image).unwrap();
    let volume = header.unlock(&image, PASSPHRASE, None).unwrap();
    let new = NewKey { passphrase, ..new_key() };
    let change =
        with_tools(91, |tools| header.add_key(None, &volume, Some(number), &new, tools).unwrap());
    let mut image = image.to_vec();
    apply(&mut image, &change.writes);
    image
}

/// A damaged bit must not cost a key: the keyslot comes back when the bit does.
#[test]
fn a_keyslot_of_luks1_whose_state_is_damaged_is_left_alone_by_every_action() {
    let image = with_key(&with_key(&small_luks1(), 3, b"three"), 5, b"five");
    let at = 208 + 48 * 3;
    let right: [u8; 4] = image[at..at + 4].try_into().unwrap();
    for bit in 0..32 {
        let mut damaged = image.clone();
        damaged[at + bit / 8] ^= 1 << (bit % 8);
        let (header, _) = Header::read(&damaged).unwrap();
        assert_eq!(header.keyslots(), [0, 5]);
        assert!(header.dump("image").contains("Key Slot 3: INVALID (0x"), "{}", header.dump("x"));
        let named = |problem: Error| {
            let text = problem.to_string();
            assert!(text.contains("keyslot 3") && text.contains("neither active nor"), "{text}");
        };
        named(header.unlock(&damaged, b"three", Some(3)).unwrap_err());
        named(header.check_strictly(None, None).unwrap_err());
        let Header::Luks1(luks1) = &header else { panic!("not LUKS1") };
        named(with_tools(92, |tools| to_luks2(luks1, &damaged, tools.random)).unwrap_err());
        let comes_back = |what: &str, changed: &[u8]| {
            let mut changed = changed.to_vec();
            assert!(changed[at..at + 4] == damaged[at..at + 4], "{what}: the state was changed");
            changed[at..at + 4].copy_from_slice(&right);
            let (header, _) = Header::read(&changed).unwrap();
            let opened = header.unlock(&changed, b"three", Some(3));
            assert!(opened.is_ok(), "bit {bit}, {what}: the key is lost");
        };
        with_tools(93, |tools| {
            let volume = header.unlock(&damaged, PASSPHRASE, None).unwrap();
            let mut full = damaged.clone();
            for _ in 0..5 {
                let (header, _) = Header::read(&full).unwrap();
                let added = header.add_key(None, &volume, None, &new_key(), tools).unwrap();
                assert_ne!(added.keyslot, 3);
                apply(&mut full, &added.writes);
            }
            comes_back("add", &full);
            let (full, _) = Header::read(&full).unwrap();
            assert!(full.add_key(None, &volume, None, &new_key(), tools).is_err());
            named(full.add_key(None, &volume, Some(3), &new_key(), tools).unwrap_err());
            named(header.remove_key(None, 3, tools.random).unwrap_err());
            for (what, change) in [
                ("remove", header.remove_key(None, 5, tools.random)),
                ("UUID", header.change_uuid(None, None, tools.random)),
                ("change", {
                    let opened = header.open_key(&damaged, b"five", None).unwrap();
                    header.change_key(None, &opened, false, &new_key(), tools)
                }),
                ("change and keep", {
                    let opened = header.open_key(&damaged, PASSPHRASE, None).unwrap();
                    header.change_key(None, &opened, true, &new_key(), tools)
                }),
            ] {
                let mut changed = damaged.clone();
                apply(&mut changed, &change.unwrap().writes);
                comes_back(what, &changed);
            }
            // The keyslot may be one of those that a rotation has to remove.
            let medium = Recorder::new(&damaged);
            for old in [&b"five"[..], b"three"] {
                named(rotate(&medium, old, &new_key(), tools).unwrap_err());
            }
            assert!(*medium.now.borrow() == damaged, "bit {bit}: a rotation has written");
        });
    }
}

/// A medium that loses every write, below a cache that does not.
struct Forgetful {
    medium: Vec<u8>,
    cache: RefCell<Option<Vec<u8>>>,
}

impl ucrypt_luks::ReadAt for Forgetful {
    fn len(&self) -> u64 {
        self.medium.len() as u64
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.cache.borrow().as_ref().unwrap_or(&self.medium).read_exact_at(offset, buf)
    }
}

impl ucrypt_luks::Medium for Forgetful {
    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        let mut cache = self.cache.borrow_mut();
        let cached = cache.get_or_insert_with(|| self.medium.clone());
        cached[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn forget_cached(&self, _offset: u64, _length: u64) {
        self.cache.take();
    }
}

#[test]
fn nothing_is_destroyed_before_what_was_written_can_be_read_from_the_medium() {
    let image = small_luks2();
    let (header, _) = Header::read(&image).unwrap();
    let change = with_tools(72, |tools| header.remove_key(None, 0, tools.random)).unwrap();
    let medium = Forgetful { medium: image, cache: RefCell::default() };
    let error = write_verified(&medium, &change.writes).unwrap_err();
    assert!(matches!(error, Error::NotStored { .. }), "{error}");
}
