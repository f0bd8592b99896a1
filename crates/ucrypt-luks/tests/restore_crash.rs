//! A restore of a backup is cut at every write and at every flush: the key of the header that was there
//! or one of the backup opens the volume, unless there is no room for a keyslot of both. The next restore
//! comes to the end in any case.

mod common;

use common::keys::{NEW, OTHER, images, new_key, one_of, opens, read};
use common::recorder::Recorder;
use common::{
    PASSPHRASE, apply, cheap_pbkdf2, new_volume, roomy_luks2, small_luks1, small_luks2, with_tools,
    zeroes,
};
use ucrypt_luks::{
    Error, Header, HeaderChange, NewVolume, Pbkdf, ReadAt, Tools, find_hash, luks1, restore,
    to_luks2, write_verified,
};
use zeroize::Zeroizing;

/// The image after `make`'s change.
fn changed(
    image: &[u8],
    make: impl FnOnce(&Header, &mut Tools<'_>) -> Result<HeaderChange, Error>,
) -> Vec<u8> {
    let mut image = image.to_vec();
    let writes = with_tools(61, |tools| make(&read(&image), tools)).unwrap().writes;
    apply(&mut image, &writes);
    image
}

/// The image with a further key in a keyslot of this number.
fn with_key(image: &[u8], passphrase: &[u8], number: u32) -> Vec<u8> {
    let volume = read(image).unlock_with_volume_key(&volume_key(image)).unwrap();
    changed(image, |header, tools| {
        header.add_key(None, &volume, Some(number), &new_key(passphrase), tools)
    })
}

fn without(image: &[u8], number: u32) -> Vec<u8> {
    changed(image, |header, tools| header.remove_key(None, number, tools.random))
}

/// The image with another passphrase in keyslot 0, whose key material may lie elsewhere then.
fn with_another(image: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let opened = read(image).open_key(&image, old, Some(0)).unwrap();
    changed(image, |header, tools| header.change_key(None, &opened, true, &new_key(new), tools))
}

fn volume_key(image: &[u8]) -> Vec<u8> {
    let keys = [PASSPHRASE, NEW, OTHER];
    let opened = keys.iter().find_map(|passphrase| opens(image, passphrase)).unwrap();
    opened.volume_key.to_vec()
}

fn backup_of(image: &[u8]) -> Vec<u8> {
    read(image).backup(&image).unwrap()
}

/// Cuts the restore of `backup` over `image` everywhere. Some key always opens the volume, if `one_opens`;
/// the next restore makes all keys open that `saved`, the image of the backup, has.
fn cut(what: &str, image: &[u8], saved: &[u8], one_opens: bool) {
    let backup = backup_of(saved);
    let (key, data) = (volume_key(image), read(image).data_offset() as usize);
    let medium = Recorder::new(image);
    let planned = restore(&medium, &backup, &mut zeroes).unwrap();
    let old = planned.old_backup(&medium, &mut zeroes).unwrap().expect("a header");
    assert_eq!(planned.survives, one_opens, "{what}");
    write_verified(&medium, &planned.writes).unwrap();
    let (mut without_key, mut number) = (0, 0);
    let keyslots = read(image).keyslots().len() + read(saved).keyslots().len();
    let every = if keyslots > 2 { one_of(7) } else { 1 };
    let count = medium.crashes(6, |crashed| {
        number += 1;
        if number % every != 0 {
            return;
        }
        assert!(crashed[data..] == image[data..], "{what}: the data was touched");
        let opened = [PASSPHRASE, NEW, OTHER].iter().find_map(|key| opens(crashed, key));
        without_key += usize::from(opened.is_none());
        assert!(opened.is_some() || !one_opens, "{what}: no key opens the volume");
        assert!(opened.is_none_or(|opened| *opened.volume_key == key), "{what}: another key");
        let mut again = crashed.clone();
        let next = restore(crashed, &backup, &mut zeroes).unwrap();
        assert!(next.survives || !one_opens, "{what}: the next restore has no room");
        assert!(next.is_old_in(&old), "{what}: the saved header is not recognised");
        apply(&mut again, &next.writes);
        assert!(backup_of(&again) == backup, "{what}: the next restore is not the end");
    });
    assert!(count > 20, "{what}: {count} crashes");
    assert!(one_opens || without_key > 0, "{what}: the exception is none");
    assert!(backup_of(&medium.now.borrow()) == backup, "{what}: not restored");
}

#[test]
fn a_crash_while_a_backup_with_other_keyslots_is_restored_leaves_a_key_that_opens() {
    for (what, image) in images() {
        // The old key is in keyslot 0. Since the backup, another one has taken its place.
        for number in [1, 6, 7] {
            let now = without(&with_key(&image, NEW, number), 0);
            cut(&format!("{what}, 0 over {number}"), &now, &image, true);
            cut(&format!("{what}, {number} over 0"), &image, &now, true);
        }
    }
    // Keyslot 6 of LUKS1 lies across a sector border, and 7 behind it.
    let image = small_luks1();
    for (one, other) in [(6, 7), (7, 6), (5, 6), (6, 5)] {
        let now = without(&with_key(&image, NEW, one), 0);
        let saved = without(&with_key(&image, OTHER, other), 0);
        cut(&format!("LUKS1, {other} over {one}"), &now, &saved, true);
    }
}

#[test]
fn a_crash_while_a_backup_with_some_of_the_same_keyslots_is_restored_leaves_a_key_that_opens() {
    for (what, image) in images() {
        // In the same place: keyslot 0. Beside it: one of the old header, of the backup, or of both.
        let same = with_another(&with_another(&image, PASSPHRASE, NEW), NEW, OTHER);
        for (old, saved) in [(Some(6), None), (None, Some(6)), (Some(6), Some(7)), (Some(3), None)]
        {
            let with = |image: &[u8], number: Option<u32>, key| {
                number.map_or(image.to_vec(), |number| with_key(image, key, number))
            };
            let (now, then) = (with(&same, old, NEW), with(&image, saved, NEW));
            cut(&format!("{what}, {saved:?} over {old:?}"), &now, &then, true);
        }
    }
}

/// A change writes the new key material of LUKS2 beside the old, under the same number.
#[test]
fn a_crash_while_the_key_before_a_change_is_restored_leaves_a_key_that_opens() {
    let image = roomy_luks2();
    let now = with_another(&image, PASSPHRASE, NEW);
    let area = |image: &[u8]| {
        let Header::Luks2(header) = read(image) else { panic!("not LUKS2") };
        header.metadata.keyslots[&0].area.offset
    };
    assert_ne!(area(&now), area(&image));
    cut("the one before", &now, &image, true);
    // The header of the backup is newer than that on the image.
    cut("the one after", &image, &now, true);
}

#[test]
fn a_crash_while_a_backup_with_the_same_keyslots_is_restored_leaves_a_key_that_opens() {
    for (what, image) in images() {
        let now = with_another(&with_another(&image, PASSPHRASE, NEW), NEW, OTHER);
        cut(what, &now, &image, true);
        // All keyslots that there are, or that have room.
        let all = if what == "LUKS1" { 8 } else { 7 };
        let full = |image: &[u8]| {
            (1..all).fold(image.to_vec(), |image, number| with_key(&image, NEW, number))
        };
        cut(&format!("{what}, full"), &full(&now), &full(&image), true);
        cut(&format!("{what}, one over all"), &full(&now), &image, true);
        cut(&format!("{what}, all over one"), &now, &full(&image), true);
    }
    // In the second sector of the header.
    let image = small_luks1();
    for number in [6, 7] {
        let now = without(&with_key(&image, NEW, number), 0);
        let saved = without(&with_key(&image, OTHER, number), 0);
        cut(&format!("LUKS1, {number} over {number}"), &now, &saved, true);
    }
}

/// Only one keyslot has room. The old header has to be saved elsewhere.
#[test]
fn a_restore_without_room_for_two_keyslots_says_so_and_is_completed_by_the_next_one() {
    let image = small_luks2();
    let mut now = image.clone();
    let volume_key = volume_key(&image);
    let writes = with_tools(63, |tools| {
        let header = read(&image);
        let emptied = header.remove_key(None, 0, tools.random)?;
        let volume = header.unlock_with_volume_key(&volume_key)?;
        let added = emptied.header.add_key(None, &volume, None, &new_key(NEW), tools)?;
        Ok::<_, Error>([emptied.writes, added.writes].concat())
    });
    apply(&mut now, &writes.unwrap());
    assert!(opens(&now, NEW).is_some());
    cut("no room", &now, &image, false);
}

/// A volume that was made anew with the same volume key: another digest, and in LUKS1 another hash.
#[test]
fn a_crash_while_another_header_of_luks1_is_restored_leaves_a_key_that_opens() {
    let image = small_luks1();
    let volume = |hash: &str| {
        let hash = find_hash(hash).unwrap();
        let pbkdf = Pbkdf { hash, ..cheap_pbkdf2() };
        let volume_key = Zeroizing::new(volume_key(&image));
        NewVolume { volume_key, hash, pbkdf, ..new_volume("aes-xts-plain64", 32, pbkdf) }
    };
    for hash in ["sha256", "sha512"] {
        let mut now = image.clone();
        let format = with_tools(64, |tools| luks1::format(&volume(hash), NEW, tools));
        apply(&mut now, &format.unwrap().1);
        assert!(opens(&now, NEW).is_some() && opens(&now, PASSPHRASE).is_none());
        cut(&format!("{hash}, back"), &now, &image, true);
        cut(&format!("{hash}, forth"), &image, &now, true);
        for number in [1, 5, 7] {
            let more = with_key(&now, OTHER, number);
            cut(&format!("{hash}, {number} too"), &more, &image, true);
            cut(&format!("{hash}, {number} too, forth"), &image, &more, true);
        }
    }
}

#[test]
fn a_crash_while_a_header_of_the_other_version_is_restored_leaves_a_key_that_opens() {
    let luks1 = small_luks1();
    let converted = |luks1: &[u8]| {
        let mut luks2 = luks1.to_vec();
        let Header::Luks1(header) = read(luks1) else { panic!("not LUKS1") };
        let plan = with_tools(62, |tools| to_luks2(&header, &luks1, tools.random));
        apply(&mut luks2, &plan.unwrap().writes);
        assert!(matches!(read(&luks2), Header::Luks2(_)));
        luks2
    };
    let one = luks1.clone();
    let two = with_key(&luks1, NEW, 3);
    let five = (1..5).fold(luks1.clone(), |image, number| with_key(&image, NEW, number));
    let last = without(&with_key(&luks1, NEW, 7), 0);
    for (what, old) in [("one", &one), ("two", &two), ("five", &five), ("the last", &last)] {
        for (which, new) in [("one", &one), ("two", &two), ("five", &five), ("the last", &last)] {
            cut(&format!("LUKS1 with {which} over LUKS2 with {what}"), &converted(old), new, true);
            cut(&format!("LUKS2 with {which} over LUKS1 with {what}"), old, &converted(new), true);
        }
    }
    // The copies of the old header are not both whole.
    let mut damaged = converted(&one);
    damaged[0x4000 + 5000] ^= 1;
    cut("LUKS1 over a damaged LUKS2", &damaged, &two, true);
}

/// One copy is damaged: the other one must not be written first.
#[test]
fn a_crash_while_a_damaged_header_is_restored_leaves_a_key_that_opens() {
    let image = roomy_luks2();
    let now = without(&with_key(&image, NEW, 1), 0);
    for copy in [0, 0x4000] {
        let mut damaged = now.clone();
        damaged[copy + 5000] ^= 1;
        assert!(Header::read(&damaged).unwrap().1.is_some());
        cut(&format!("the copy at {copy} damaged"), &damaged, &image, true);
    }
}

/// A copy of the backup is damaged: the good one is restored to both places.
#[test]
fn a_backup_with_a_damaged_copy_is_restored_whole_and_a_crash_meanwhile_leaves_a_key_that_opens() {
    let image = roomy_luks2();
    let now = without(&with_key(&image, NEW, 1), 0);
    let damaged = |image: &[u8], copy: usize| {
        let mut image = image.to_vec();
        image[copy + 5000] ^= 1;
        image
    };
    for (copy, before) in [(0, now.clone()), (0x4000, now.clone())]
        .into_iter()
        .flat_map(|(copy, now)| [(copy, damaged(&now, copy)), (copy, now)])
    {
        let backup = backup_of(&damaged(&image, copy));
        assert!(Header::read(&backup).unwrap().1.is_some(), "the backup is sound");
        let medium = Recorder::new(&before);
        let writes = restore(&medium, &backup, &mut zeroes).unwrap().writes;
        write_verified(&medium, &writes).unwrap();
        let count = medium.crashes(6, |crashed| {
            let opened = [PASSPHRASE, NEW].iter().find_map(|key| opens(crashed, key));
            assert!(opened.is_some(), "copy at {copy}: no key opens the volume");
        });
        assert!(count > 20, "copy at {copy}: {count} crashes");
        let restored = medium.now.borrow();
        let (_, damage) = Header::read(&*restored).unwrap();
        assert!(damage.is_none(), "copy at {copy}: {}", damage.unwrap());
        assert!(opens(&restored, PASSPHRASE).is_some(), "copy at {copy}");
    }
}

/// An image of which a sector cannot be read.
struct BadSector<'a>(&'a [u8], u64);

impl ReadAt for BadSector<'_> {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        let bad = self.1..self.1 + 512;
        if offset < bad.end && bad.start < offset + buf.len() as u64 {
            return Err(std::io::Error::other("a bad sector"));
        }
        self.0.read_exact_at(offset, buf)
    }
}

/// Regression: to look for a keyslot that could be kept made a bad sector the failure of the restore.
#[test]
fn a_restore_goes_on_over_a_keyslot_or_a_copy_that_cannot_be_read() {
    for (image, bad) in [
        (small_luks2(), 32768),
        (roomy_luks2(), 32768),
        (roomy_luks2(), 0),
        (roomy_luks2(), 16384),
        (small_luks1(), 4096),
    ] {
        let backup = backup_of(&image);
        let restored = restore(&BadSector(&image, bad), &backup, &mut zeroes).expect("a plan");
        assert!(restored.survives, "sector at {bad}");
        let mut after = image.clone();
        after[bad as usize..bad as usize + 512].fill(0);
        apply(&mut after, &restored.writes);
        assert!(opens(&after, PASSPHRASE).is_some(), "sector at {bad}");
    }
}

#[test]
fn an_interrupted_restore_is_completed_by_the_next_one() {
    for (what, image) in images() {
        let backup = read(&image).backup(&image).unwrap();
        let damaged = changed(&image, |header, tools| header.erase(&image, None, tools.random));
        assert!(opens(&damaged, PASSPHRASE).is_none(), "{what}");
        let writes = restore(&damaged, &backup, &mut zeroes).unwrap().writes;
        let medium = Recorder::new(&damaged);
        write_verified(&medium, &writes).unwrap();
        medium.crashes(6, |crashed| {
            let mut image = crashed.clone();
            let writes = restore(&image, &backup, &mut zeroes).unwrap().writes;
            apply(&mut image, &writes);
            assert!(opens(&image, PASSPHRASE).is_some(), "{what}");
        });
        assert!(*medium.now.borrow() == image, "{what}: header or data differ");
    }
}
