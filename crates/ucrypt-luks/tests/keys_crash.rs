//! Every change of keys is cut at every write and at every flush, with unflushed sectors lost in any
//! combination: the volume opens afterwards with the old or the new key.

mod common;

use std::cell::RefCell;
use std::collections::HashSet;
use std::io;
use std::ops::Range;

use common::keys::{NEW, OTHER, images, new_key, one_of, opens, read};
use common::recorder::{Fault, Recorder};
use common::{PASSPHRASE, roomy_luks2, small_luks1, with_tools};
use ucrypt_luks::luks2::{Change, Damage, Priority, keyring_token};
use ucrypt_luks::{
    Error, Flag, Hash, Header, HeaderChange, Json, Medium, NewKey, PbkdfKind, ReadAt, Rotation,
    Tools, Unlocked, Write, rotate, settle_cache, write_verified,
};

/// The image after `make`'s change was carried out.
fn changed(
    image: &[u8],
    seed: u64,
    make: impl FnOnce(&Header, &Unlocked, &mut Tools<'_>) -> HeaderChange,
) -> Vec<u8> {
    let mut image = image.to_vec();
    let (header, volume) = (read(&image), opens(&image, PASSPHRASE).unwrap());
    let writes = with_tools(seed, |tools| make(&header, &volume, tools)).writes;
    common::apply(&mut image, &writes);
    image
}

fn with_new_key(image: &[u8], passphrase: &[u8], number: Option<u32>) -> Vec<u8> {
    changed(image, 50, |header, volume, tools| {
        header.add_key(None, volume, number, &new_key(passphrase), tools).unwrap()
    })
}

/// Cuts `writes` everywhere. One of `passphrases` has to open the volume afterwards.
fn survives(what: &str, image: &[u8], writes: &[Write], passphrases: &[&[u8]]) -> Vec<u8> {
    let key = opens(image, PASSPHRASE).unwrap().volume_key;
    let medium = Recorder::new(image);
    write_verified(&medium, writes).unwrap();
    let count = medium.crashes(3, |image| {
        let opened = passphrases.iter().find_map(|passphrase| opens(image, passphrase));
        let opened = opened.unwrap_or_else(|| panic!("{what}: no key opens the volume"));
        assert_eq!(opened.volume_key, key, "{what}");
    });
    assert!(count > writes.len(), "{what}: {count} crashes");
    medium.now.into_inner()
}

#[test]
fn a_crash_while_a_key_is_added_leaves_the_old_one() {
    for (what, image) in images() {
        for number in [None, Some(6), Some(7)] {
            let (header, volume) = (read(&image), opens(&image, PASSPHRASE).unwrap());
            let change = with_tools(51, |tools| {
                header.add_key(None, &volume, number, &new_key(NEW), tools).unwrap()
            });
            let after = survives(what, &image, &change.writes, &[PASSPHRASE]);
            let opened = opens(&after, NEW).unwrap();
            assert_eq!(opened.keyslot, Some(number.unwrap_or(1)));
            assert!(opens(&after, PASSPHRASE).is_some());
        }
    }
}

/// Keyslot 6 of LUKS1 lies across a sector border: no crash may leave it active and half written.
#[test]
fn no_crash_leaves_a_keyslot_of_luks1_half_valid() {
    let image = small_luks1();
    let with_six = with_new_key(&image, NEW, Some(6));
    let (before, after) = (read(&image), read(&with_six));
    let (Header::Luks1(before), Header::Luks1(after)) = (before, after) else { panic!() };
    let whole = [before.keyslots[6], after.keyslots[6]];
    let change = with_tools(52, |tools| read(&with_six).remove_key(None, 6, tools.random).unwrap());
    let add = with_tools(50, |tools| {
        let volume = opens(&image, PASSPHRASE).unwrap();
        read(&image).add_key(None, &volume, Some(6), &new_key(NEW), tools).unwrap()
    });
    for (start, writes) in [(&image, add.writes), (&with_six, change.writes)] {
        let medium = Recorder::new(start);
        write_verified(&medium, &writes).unwrap();
        medium.crashes(4, |image| {
            let Header::Luks1(header) = read(image) else { panic!() };
            let keyslot = header.keyslots[6];
            assert!(keyslot.is_free() || whole.contains(&keyslot), "{keyslot:?}");
        });
    }
}

#[test]
fn a_crash_while_a_key_is_changed_leaves_the_old_or_the_new_one() {
    for (what, image) in images() {
        for keep_number in [false, true] {
            for at in [0, 6] {
                let image =
                    if at == 0 { image.clone() } else { with_new_key(&image, OTHER, Some(at)) };
                let old = if at == 0 { PASSPHRASE } else { OTHER };
                let header = read(&image);
                let opened = header.open_key(&image, old, None).unwrap();
                assert_eq!(opened.keyslot, at);
                let change = with_tools(53, |tools| {
                    header.change_key(None, &opened, keep_number, &new_key(NEW), tools).unwrap()
                });
                let after = survives(what, &image, &change.writes, &[old, NEW]);
                assert!(opens(&after, old).is_none(), "{what}: the old key still opens");
                let moved = matches!(header, Header::Luks1(_)) && !keep_number;
                let expected = if moved { 1 } else { at };
                assert_eq!(opens(&after, NEW).unwrap().keyslot, Some(expected), "{what}");
                assert_eq!(read(&after).keyslots().len(), header.keyslots().len());
            }
        }
    }
}

#[test]
fn a_crash_while_a_key_is_removed_leaves_the_others() {
    for (what, image) in images() {
        let image = with_new_key(&image, NEW, Some(6));
        let change =
            with_tools(54, |tools| read(&image).remove_key(None, 6, tools.random).unwrap());
        let after = survives(what, &image, &change.writes, &[PASSPHRASE]);
        assert!(opens(&after, NEW).is_none());
        assert_eq!(read(&after).keyslots(), [0]);
    }
}

#[test]
fn a_crash_while_a_label_a_priority_or_the_uuid_changes_leaves_the_volume() {
    for (what, image) in images() {
        let uuid = "01234567-89ab-cdef-0123-456789abcdef";
        let change = with_tools(55, |tools| {
            read(&image).change_uuid(None, Some(uuid), tools.random).unwrap()
        });
        let after = survives(what, &image, &change.writes, &[PASSPHRASE]);
        assert_eq!(read(&after).uuid().to_string(), uuid);
    }
    let image = roomy_luks2();
    let Header::Luks2(header) = read(&image) else { panic!() };
    let mut change = header.change(None).unwrap();
    change.set_label("a label").unwrap();
    change.set_priority(0, Priority::Prefer).unwrap();
    let (_, writes) = with_tools(56, |tools| change.finish(tools.random)).unwrap();
    survives("config", &image, &writes, &[PASSPHRASE]);
}

/// The change of a LUKS2 header that `edit` makes.
fn edited(image: &[u8], edit: Edit) -> Vec<Write> {
    let Header::Luks2(header) = read(image) else { panic!("not LUKS2") };
    let mut change = header.change(None).unwrap();
    edit(&mut change).unwrap();
    with_tools(57, |tools| change.finish(tools.random)).unwrap().1
}

type Edit = fn(&mut Change) -> Result<(), Error>;

#[test]
fn a_crash_while_tokens_or_flags_change_leaves_all_of_the_old_or_of_the_new_header() {
    let mut image = roomy_luks2();
    let assigned = edited(&image, |change| {
        change.put_token(Some(3), keyring_token("a key"), false)?;
        change.assign_token(3, Some(0))
    });
    common::apply(&mut image, &assigned);
    let edits: [(&str, Edit); 5] = [
        ("token add", |change| {
            change.put_token(None, keyring_token("another key"), false)?;
            change.assign_token(0, None)
        }),
        ("token import", |change| {
            let token = Json::parse(br#"{"type":"x","keyslots":["0"],"y":"z"}"#).unwrap();
            change.put_token(Some(3), token, true).map(drop)
        }),
        ("token remove", |change| change.remove_token(3)),
        ("token unassign", |change| change.unassign_token(3, 0)),
        ("open --persistent", |change| {
            change.set_flags(&[Flag::AllowDiscards, Flag::NoReadWorkqueue])
        }),
    ];
    let json = |image: &[u8]| {
        let Header::Luks2(header) = read(image) else { panic!("not LUKS2") };
        header.json.to_stored().clone()
    };
    for (what, edit) in edits {
        let writes = edited(&image, edit);
        let after = survives(what, &image, &writes, &[PASSPHRASE]);
        let whole = [json(&image), json(&after)];
        assert!(whole[0] != whole[1], "{what}: nothing has changed");
        let medium = Recorder::new(&image);
        write_verified(&medium, &writes).unwrap();
        medium.crashes(3, |crashed| assert!(whole.contains(&json(crashed)), "{what}"));
    }
}

#[test]
fn a_crash_while_an_unbound_key_is_added_leaves_the_volume() {
    let image = roomy_luks2();
    let change = with_tools(59, |tools| {
        read(&image).add_unbound_key(None, &[7; 32], Some(5), &new_key(NEW), tools).unwrap()
    });
    let after = survives("unbound", &image, &change.writes, &[PASSPHRASE]);
    let opened = read(&after).open_key(&after, NEW, Some(5)).unwrap();
    assert_eq!(*opened.key, [7; 32]);
    assert!(opens(&after, NEW).is_none(), "an unbound key opens the volume");
}

/// The header of LUKS1 crosses a sector border: a repair may be half done. Then it is repaired again.
#[test]
fn a_crash_while_luks1_is_repaired_leaves_what_the_next_repair_mends() {
    let mut image = small_luks1();
    let begin = ucrypt_luks::luks1::HEADER_BYTES;
    // In both sectors: the spelling of the hash, and the places of keyslots without a key.
    image[72..78].copy_from_slice(b"SHA256");
    for number in [2, 7] {
        let place = 208 + 48 * number + 40;
        image[place..place + 4].copy_from_slice(&9_u32.to_be_bytes());
    }
    assert!(Header::read(&image).is_err(), "nothing has to be mended");
    let repair = ucrypt_luks::luks1::Header::repair(&image).unwrap().unwrap();
    assert_eq!(repair.mended.len(), 5, "{:?}", repair.mended);
    let medium = Recorder::new(&image);
    write_verified(&medium, &[repair.write]).unwrap();
    let mut half = 0;
    medium.crashes(3, |crashed| {
        let mut again = crashed.clone();
        if let Some(repair) = ucrypt_luks::luks1::Header::repair(crashed).unwrap() {
            half += usize::from(repair.mended.len() < 5);
            common::apply(&mut again, &[repair.write]);
        }
        assert!(opens(&again, PASSPHRASE).is_some());
        assert!(again[begin..] == image[begin..], "more than the header was touched");
    });
    assert!(half > 0, "no crash left a half-done repair");
}

/// The image after an interrupted change: one copy is newer than the other. The next change is cut
/// too.
#[test]
fn a_crash_while_an_interrupted_change_is_made_up_for_leaves_a_good_copy() {
    let image = roomy_luks2();
    let (header, volume) = (read(&image), opens(&image, PASSPHRASE).unwrap());
    let add = |seed, header: &Header, damage: Option<&Damage>, passphrase: &[u8]| {
        with_tools(seed, |tools| {
            header.add_key(damage, &volume, None, &new_key(passphrase), tools).unwrap().writes
        })
    };
    let first = add(57, &header, None, NEW);
    for cut in 1..first.len() {
        let mut image = image.clone();
        common::apply(&mut image, &first[..cut]);
        let (header, damage) = Header::read(&image).unwrap();
        let second = add(58, &header, damage.as_ref(), OTHER);
        let after = survives("second change", &image, &second, &[PASSPHRASE]);
        assert!(opens(&after, OTHER).is_some(), "after {cut} writes");
        assert!(Header::read(&after).unwrap().1.is_none());
    }
}

fn rotated(medium: &Recorder, old: &[u8]) -> Result<Rotation, Error> {
    rotated_to(medium, old, NEW)
}

fn rotated_to(medium: &Recorder, old: &[u8], new: &[u8]) -> Result<Rotation, Error> {
    with_tools(60, |tools| rotate(medium, old, &new_key(new), tools))
}

#[test]
fn a_rotation_comes_to_the_same_end_after_any_interruption() {
    for (what, image) in images() {
        // The old key is in two keyslots, and somebody else has a key of their own.
        let image = with_new_key(&image, OTHER, Some(3));
        let image = with_new_key(&image, PASSPHRASE, Some(6));
        let medium = Recorder::new(&image);
        let done = rotated(&medium, PASSPHRASE).unwrap();
        assert_eq!(done.found_old, [0, 6]);
        assert_eq!((done.added, done.verified), (Some(1), 1));
        assert_eq!(done.retired, [0, 6]);
        assert_at_the_end(what, &medium.now.borrow());

        let mut restarts = 0;
        medium.crashes(5, |crashed| {
            assert!(
                opens(crashed, PASSPHRASE).is_some() || opens(crashed, NEW).is_some(),
                "{what}: no key opens the volume"
            );
            restarts += 1;
            if restarts % one_of(7) > 0 {
                return;
            }
            let again = Recorder::new(crashed);
            rotated(&again, PASSPHRASE).unwrap();
            assert_at_the_end(what, &again.now.borrow());
        });
        // Once more changes nothing.
        let end = medium.now.borrow().clone();
        let again = Recorder::new(&end);
        let found = rotated(&again, PASSPHRASE).unwrap();
        assert_eq!((found.found_new, found.added), (Some(1), None));
        assert!(found.retired.is_empty() && *again.now.borrow() == end);
        assert!(rotated(&Recorder::new(&image), b"neither").is_err());
    }
}

/// An action as the command carries it out.
type Action = fn(&Recorder) -> Result<(), Error>;

fn rotate_key(medium: &Recorder) -> Result<(), Error> {
    settle_cache(medium)?;
    rotated(medium, PASSPHRASE).map(drop)
}

/// Reads the header and writes what `change` makes of it.
fn act(
    medium: &Recorder,
    change: impl FnOnce(&Header, Option<&Damage>, &mut Tools<'_>) -> Result<HeaderChange, Error>,
) -> Result<(), Error> {
    settle_cache(medium)?;
    let (header, damage) = Header::read(medium)?;
    let change = with_tools(66, |tools| change(&header, damage.as_ref(), tools))?;
    write_verified(medium, &change.writes)
}

fn add_new(medium: &Recorder) -> Result<(), Error> {
    act(medium, |header, damage, tools| {
        let volume = header.unlock(medium, PASSPHRASE, None)?;
        header.add_key(damage, &volume, None, &new_key(NEW), tools)
    })
}

fn change_to_new(medium: &Recorder) -> Result<(), Error> {
    act(medium, |header, damage, tools| {
        let opened = header.open_key(medium, PASSPHRASE, None)?;
        header.change_key(damage, &opened, true, &new_key(NEW), tools)
    })
}

/// Removes the old key if the new one opens the volume.
fn remove_old(medium: &Recorder) -> Result<(), Error> {
    act(medium, |header, damage, tools| {
        header.unlock(medium, NEW, None)?;
        let opened = header.open_key(medium, PASSPHRASE, None)?;
        header.remove_key(damage, opened.keyslot, tools.random)
    })
}

/// Everything that a fault of the first action may leave of it in the cache and on the medium, and
/// every crash of the second one.
fn two_actions_survive(what: &str, image: &[u8]) {
    let pairs: [(Action, Action); 4] = [
        (rotate_key, rotate_key),
        (rotate_key, remove_old),
        (add_new, remove_old),
        (change_to_new, change_to_new),
    ];
    let mut count = 0;
    for (pair, (first, second)) in pairs.into_iter().enumerate() {
        for fault in [Fault::Killed, Fault::FlushFails, Fault::FlushFailsAndKilled] {
            for at in 0.. {
                let fault = fault(at);
                let medium = Recorder::with_fault(image, fault);
                let ended = first(&medium).is_ok();
                let next = medium.next_process();
                // It may be refused: then it has written nothing.
                let _ = second(&next);
                next.crashes(at as u64, |crashed| {
                    count += 1;
                    if count % one_of(12) > 0 {
                        return;
                    }
                    let keys = [PASSPHRASE, NEW];
                    let opened = keys.iter().any(|key| opens(crashed, key).is_some());
                    assert!(opened, "{what}, pair {pair}, {fault:?}: no key opens the volume");
                });
                if ended {
                    break;
                }
            }
        }
    }
    assert!(count > 2000, "{count}");
}

#[test]
fn no_key_of_luks1_is_wiped_for_one_that_an_interrupted_change_has_left_in_the_cache() {
    two_actions_survive("LUKS1", &small_luks1());
}

#[test]
fn no_key_of_luks2_is_wiped_for_one_that_an_interrupted_change_has_left_in_the_cache() {
    two_actions_survive("LUKS2", &roomy_luks2());
}

/// A rotation was interrupted, and a marked keyslot got another key before the next rotation.
#[test]
fn a_rotation_leaves_a_keyslot_that_was_changed_after_an_interruption() {
    let image = with_new_key(&roomy_luks2(), PASSPHRASE, Some(3));
    let medium = Recorder::new(&image);
    rotated(&medium, PASSPHRASE).unwrap();
    let mut tried = 0;
    medium.crashes(8, |crashed| {
        let header = read(crashed);
        let Ok(opened) = header.open_key(crashed, PASSPHRASE, Some(3)) else { return };
        tried += 1;
        if tried % one_of(5) > 0 {
            return;
        }
        let (_, damage) = Header::read(crashed).unwrap();
        let change = with_tools(63, |tools| {
            header.change_key(damage.as_ref(), &opened, true, &new_key(OTHER), tools).unwrap()
        });
        let mut image = crashed.clone();
        common::apply(&mut image, &change.writes);
        let again = Recorder::new(&image);
        rotated(&again, PASSPHRASE).unwrap();
        let end = again.now.borrow();
        assert_eq!(opens(&end, OTHER).unwrap().keyslot, Some(3));
        assert!(opens(&end, NEW).is_some() && opens(&end, PASSPHRASE).is_none());
        assert!(!common::json_text(&end).windows(8).any(|word| word == b"rotation"));
    });
    assert!(tried > 5, "{tried}");
}

/// A rotation was interrupted and given up, with or without its new keyslot. Later another key is
/// replaced: the mark that was left must not remove the key that was kept.
#[test]
fn a_rotation_that_was_given_up_costs_no_key_when_another_key_is_replaced() {
    const LATER: &[u8] = b"a later one";
    let image = with_new_key(&roomy_luks2(), OTHER, Some(3));
    let medium = Recorder::new(&image);
    rotated(&medium, PASSPHRASE).unwrap();
    let mut tried = 0;
    medium.crashes(10, |crashed| {
        let (header, damage) = Header::read(crashed).unwrap();
        let Header::Luks2(luks2) = &header else { panic!("not LUKS2") };
        let both = luks2.metadata.tokens.len() == 1
            && [PASSPHRASE, NEW].iter().all(|key| opens(crashed, key).is_some());
        tried += usize::from(both);
        if !both || tried % one_of(5) > 0 {
            return;
        }
        for take_back in [true, false] {
            let mut image = crashed.clone();
            if take_back {
                let change = with_tools(67, |tools| {
                    header.remove_key(damage.as_ref(), 1, tools.random).unwrap()
                });
                common::apply(&mut image, &change.writes);
            }
            // Back to the old key by a rotation, which must not remove it either.
            let back = Recorder::new(&image);
            if rotated_to(&back, NEW, PASSPHRASE).is_ok() {
                assert!(opens(&back.now.borrow(), PASSPHRASE).is_some());
            }
            let again = Recorder::new(&image);
            rotated_to(&again, OTHER, LATER).unwrap();
            let end = again.now.borrow();
            assert!(opens(&end, PASSPHRASE).is_some(), "the key that was kept is lost");
            assert_eq!(opens(&end, NEW).is_some(), !take_back);
            assert!(opens(&end, LATER).is_some() && opens(&end, OTHER).is_none());
            let Header::Luks2(header) = read(&end) else { panic!("not LUKS2") };
            assert!(header.metadata.tokens.is_empty());
        }
    });
    assert!(tried > 5, "{tried}");
}

/// As above, and the key that is replaced later gets the new key of the rotation that was given up.
/// With a mark or without one, only the key that is named goes.
#[test]
fn a_rotation_that_was_given_up_costs_no_key_when_another_key_becomes_the_same_new_one() {
    // The old key is in two keyslots, of which one may be wiped already.
    let image = with_new_key(&roomy_luks2(), OTHER, Some(3));
    let image = with_new_key(&image, PASSPHRASE, Some(6));
    let medium = Recorder::new(&image);
    rotated(&medium, PASSPHRASE).unwrap();
    let (mut count, mut unmarked, mut marked, mut wiped) = (0, 0, 0, 0);
    medium.crashes(12, |crashed| {
        count += 1;
        let Header::Luks2(header) = read(crashed) else { panic!("not LUKS2") };
        let has_mark = !header.metadata.tokens.is_empty();
        let kept = |image: &[u8]| read(image).unlock(&image, PASSPHRASE, Some(6)).is_ok();
        if count % one_of(3) > 0 || opens(crashed, NEW).is_none() || !kept(crashed) {
            return;
        }
        let again = Recorder::new(crashed);
        rotated_to(&again, OTHER, NEW).unwrap();
        let end = again.now.borrow();
        assert!(kept(&end), "the key that was kept is lost");
        assert!(opens(&end, OTHER).is_none() && opens(&end, NEW).is_some());
        let Header::Luks2(header) = read(&end) else { panic!("not LUKS2") };
        assert!(header.metadata.tokens.is_empty());
        *if has_mark { &mut marked } else { &mut unmarked } += 1;
        // What opens nothing costs no key, mark or not: only a keyslot that is wiped goes.
        let again = Recorder::new(crashed);
        let retired = rotated_to(&again, b"neither", NEW).unwrap().retired;
        let is_wiped = read(crashed).unlock(crashed, PASSPHRASE, Some(0)).is_err();
        assert_eq!(retired, if has_mark && is_wiped { vec![0] } else { vec![] });
        assert!(kept(&again.now.borrow()), "a wrong key has cost another one");
        wiped += usize::from(is_wiped);
    });
    assert!(unmarked > 5 && marked > 5 && wiped > 2, "{unmarked}, {marked}, {wiped}");
}

/// A rotation that has no room for its mark is refused before anything is written.
#[test]
fn a_rotation_without_a_free_token_is_refused_and_nothing_changes() {
    let mut image = roomy_luks2();
    let tokens: Vec<String> =
        (0..32).map(|number| format!(r#""{number}":{{"type":"x","keyslots":[]}}"#)).collect();
    let tokens = format!(r#""tokens":{{{}}}"#, tokens.join(","));
    common::edit_json(&mut image, r#""tokens":{}"#, &tokens);
    let medium = Recorder::new(&image);
    let refused = rotated(&medium, PASSPHRASE).unwrap_err().to_string();
    assert!(refused.contains("no token is free"), "{refused}");
    assert!(*medium.now.borrow() == image);
}

/// A medium with bytes that cannot be read until they are written.
struct BadSectors(Recorder, RefCell<Range<u64>>);

impl BadSectors {
    fn new(image: &[u8], bad: Range<u64>) -> Self {
        Self(Recorder::new(image), RefCell::new(bad))
    }
}

impl ReadAt for BadSectors {
    fn len(&self) -> u64 {
        ReadAt::len(&self.0)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let bad = self.1.borrow();
        if offset < bad.end && bad.start < offset + buf.len() as u64 {
            return Err(io::Error::other("bad sector"));
        }
        self.0.read_exact_at(offset, buf)
    }
}

impl Medium for BadSectors {
    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut bad = self.1.borrow_mut();
        if offset <= bad.start && bad.end <= offset + bytes.len() as u64 {
            *bad = 0..0;
        }
        self.0.write_all_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn forget_cached(&self, offset: u64, length: u64) {
        self.0.forget_cached(offset, length);
    }
}

#[test]
fn an_unreadable_keyslot_leaves_the_others_alone_and_is_named() {
    for (what, image) in images() {
        let image = with_new_key(&image, OTHER, Some(3));
        let header = read(&image);
        let first = match &header {
            Header::Luks1(header) => header.keyslots[0].material_start(),
            Header::Luks2(header) => header.metadata.keyslots[&0].area.offset,
        };
        let bad = BadSectors::new(&image, first + 5000..first + 5512);
        assert_eq!(header.unlock(&bad, OTHER, None).unwrap().keyslot, Some(3), "{what}");
        assert_eq!(header.open_key(&bad, OTHER, None).unwrap().keyslot, 3, "{what}");
        assert_eq!(header.unlock_without(&bad, OTHER, 2).unwrap().keyslot, Some(3), "{what}");
        let named = |error: Error| {
            let text = error.to_string();
            assert!(text.contains("keyslot 0: ") && text.contains("bad sector"), "{what}: {text}");
        };
        named(header.unlock(&bad, PASSPHRASE, None).unwrap_err());
        named(header.unlock_without(&bad, NEW, 2).unwrap_err());
        let alone = header.unlock_without(&bad, PASSPHRASE, 3).unwrap_err();
        assert!(matches!(alone, Error::Read { .. }), "{what}: {alone}");
        let wrong = header.unlock_without(&bad, OTHER, 3).unwrap_err();
        assert!(matches!(wrong, Error::Read { .. }), "{what}: {wrong}");
        // The old key may open that keyslot, too: nothing is added, nothing is removed.
        for (old, new) in [(OTHER, NEW), (NEW, OTHER)] {
            let rotation = with_tools(69, |tools| rotate(&bad, old, &new_key(new), tools));
            let refused = rotation.unwrap_err();
            assert!(refused.to_string().contains("luksKillSlot"), "{what}: {refused}");
            named(refused);
        }
        named(with_tools(69, |tools| rotate(&bad, NEW, &new_key(b"x"), tools)).unwrap_err());
        assert!(*bad.0.now.borrow() == image, "{what}: something was written");
    }
}

/// The power fails while the old keyslot is wiped, and a sector of it cannot be read any more.
#[test]
fn an_interrupted_rotation_goes_on_where_a_keyslot_that_it_was_wiping_cannot_be_read() {
    let image = with_new_key(&roomy_luks2(), OTHER, Some(3));
    let medium = Recorder::new(&image);
    rotated(&medium, PASSPHRASE).unwrap();
    let mut half_wiped = None;
    medium.crashes(13, |crashed| {
        let header = read(crashed);
        if half_wiped.is_none()
            && header.keyslots() == [0, 1, 3]
            && header.unlock(crashed, PASSPHRASE, Some(0)).is_err()
        {
            half_wiped = Some(crashed.clone());
        }
    });
    let image = half_wiped.unwrap();
    let Header::Luks2(header) = read(&image) else { panic!("not LUKS2") };
    let first = header.metadata.keyslots[&0].area.offset;
    let unreadable = || BadSectors::new(&image, first + 5000..first + 5512);
    let bad = unreadable();
    let rotation = with_tools(60, |tools| rotate(&bad, PASSPHRASE, &new_key(NEW), tools));
    assert_eq!(rotation.unwrap().retired, [0]);
    assert_at_the_end("LUKS2", &bad.0.now.borrow());
    // It may hold a key of another rotation.
    let bad = unreadable();
    let rotation = with_tools(60, |tools| rotate(&bad, OTHER, &new_key(NEW), tools));
    let refused = rotation.unwrap_err().to_string();
    assert!(refused.contains("keyslot 0: ") && refused.contains("bad sector"), "{refused}");
    assert!(*bad.0.now.borrow() == image, "something was written");
}

/// A keyslot of the priority "ignore" opens nothing without its number.
/// PBKDF2 takes a key that ends in zero bytes for the one without them, and a long one for its digest.
#[test]
fn a_rotation_to_a_key_that_pbkdf2_takes_for_the_old_one_is_refused_and_nothing_changes() {
    let long = [b'x'; 65];
    let digest = Hash::Sha256.digest(&[&long]);
    for (what, image) in images() {
        for (old, new) in [(&b"x"[..], &b"x\0"[..]), (b"x\0\0", b"x"), (&long, &digest)] {
            let image = with_new_key(&image, old, Some(1));
            assert!(opens(&image, new).is_some(), "{what}: it is the same key");
            let medium = Recorder::new(&image);
            let error = rotated_to(&medium, old, new).unwrap_err().to_string();
            assert!(error.contains("the new key is the old one"), "{what}: {error}");
            assert!(medium.now.into_inner() == image, "{what}: something was written");
        }
    }
}

/// Argon2 takes every byte of a key.
#[test]
fn a_rotation_to_argon2_takes_a_new_key_that_differs_in_zero_bytes_alone() {
    let image = with_new_key(&roomy_luks2(), b"x", Some(1));
    let medium = Recorder::new(&image);
    let new = NewKey { pbkdf: common::cheap_argon2(PbkdfKind::Argon2id), ..new_key(b"x\0") };
    let rotation = with_tools(60, |tools| rotate(&medium, b"x", &new, tools)).unwrap();
    assert_eq!(rotation.retired, [1]);
    let end = medium.now.into_inner();
    assert!(opens(&end, b"x\0").is_some() && opens(&end, b"x").is_none());
}

#[test]
fn a_rotation_does_not_take_a_keyslot_that_is_ignored_for_the_new_one() {
    let image = with_new_key(&roomy_luks2(), NEW, Some(2));
    let ignored = |keyslot: u32| {
        let Header::Luks2(header) = read(&image) else { panic!("not LUKS2") };
        let mut change = header.change(None).unwrap();
        change.set_priority(keyslot, Priority::Ignore).unwrap();
        let (_, writes) = with_tools(68, |tools| change.finish(tools.random)).unwrap();
        let mut image = image.clone();
        common::apply(&mut image, &writes);
        image
    };
    let medium = Recorder::new(&ignored(2));
    let done = rotated(&medium, PASSPHRASE).unwrap();
    assert_eq!((done.found_new, done.added, done.verified), (None, Some(1), 1));
    let end = medium.now.borrow();
    assert_eq!(opens(&end, NEW).unwrap().keyslot, Some(1));
    assert_eq!(read(&end).keyslots(), [1, 2]);
    // An old keyslot that is ignored is removed all the same.
    let medium = Recorder::new(&ignored(0));
    let done = rotated(&medium, PASSPHRASE).unwrap();
    assert_eq!((done.found_old, done.found_new, done.added), (vec![0], Some(2), None));
    assert_eq!(read(&medium.now.borrow()).keyslots(), [2]);
}

fn assert_at_the_end(what: &str, image: &[u8]) {
    let (header, damage) = Header::read(&image).unwrap();
    assert!(damage.is_none(), "{what}: {damage:?}");
    assert!(opens(image, PASSPHRASE).is_none(), "{what}: the old key still opens");
    assert!(opens(image, OTHER).is_some(), "{what}: another key was lost");
    assert_eq!(opens(image, NEW).unwrap().keyslot, Some(1), "{what}");
    assert_eq!(header.keyslots(), [1, 3], "{what}");
    match header {
        Header::Luks1(header) => {
            assert!(header.keyslots.iter().all(|slot| slot.is_active() || slot.iterations == 0));
        }
        Header::Luks2(header) => assert!(header.metadata.tokens.is_empty()),
    }
}

#[test]
fn erased_keyslots_are_gone_and_their_areas_overwritten() {
    for (what, image) in images() {
        let areas: Vec<(u64, u64)> = match read(&image) {
            Header::Luks1(header) => {
                header.keyslots.iter().map(|keyslot| (keyslot.material_start(), 128_000)).collect()
            }
            Header::Luks2(header) => {
                let keyslots = header.metadata.keyslots.values();
                keyslots.map(|keyslot| (keyslot.area.offset, keyslot.area.size)).collect()
            }
        };
        let erased = changed(&image, 62, |header, _, tools| {
            header.erase(&image, None, tools.random).unwrap()
        });
        assert!(read(&erased).keyslots().is_empty(), "{what}");
        for (offset, length) in areas {
            let range = offset as usize..(offset + length) as usize;
            let same = image[range.clone()].iter().zip(&erased[range]).filter(|(a, b)| a == b);
            // 1 of 256 random bytes is the same by chance.
            assert!((same.count() as u64) < length / 100, "{what}: the area at {offset}");
        }
        let data = read(&image).data_offset() as usize;
        assert!(image[data..] == erased[data..], "{what}: the data was touched");
    }
}

/// Erasing has no half way: whatever is left, the header can be read, what is listed can be erased
/// again, and a keyslot that is listed no more has been overwritten.
#[test]
fn a_crash_while_all_keys_are_erased_leaves_a_header_that_can_be_erased_again() {
    for (what, image) in images() {
        let image = with_new_key(&image, NEW, Some(6));
        let data = read(&image).data_offset() as usize;
        let change =
            with_tools(64, |tools| read(&image).erase(&image, None, tools.random).unwrap());
        let medium = Recorder::new(&image);
        write_verified(&medium, &change.writes).unwrap();
        let count = medium.crashes(7, |crashed| {
            let (header, damage) = Header::read(crashed).unwrap();
            assert!(crashed[data..] == image[data..], "{what}: the data was touched");
            for (number, passphrase) in [(0, PASSPHRASE), (6, NEW)] {
                if !header.keyslots().contains(&number) {
                    // With the header of before, its key material must not open any more.
                    let mut back = crashed.clone();
                    let end = header_end(&image);
                    back[..end].copy_from_slice(&image[..end]);
                    let opened = read(&back).unlock(&back, passphrase, Some(number));
                    assert!(opened.is_err(), "{what}: keyslot {number} was forgotten, not erased");
                }
            }
            let again =
                with_tools(65, |tools| header.erase(crashed, damage.as_ref(), tools.random));
            let mut end = crashed.clone();
            common::apply(&mut end, &again.unwrap().writes);
            let (header, damage) = Header::read(&end).unwrap();
            assert!(header.keyslots().is_empty() && damage.is_none(), "{what}");
            assert!(opens(&end, PASSPHRASE).is_none() && opens(&end, NEW).is_none(), "{what}");
        });
        assert!(count > change.writes.len(), "{what}: {count} crashes");
        assert!(read(&medium.now.into_inner()).keyslots().is_empty(), "{what}");
    }
}

/// An interrupted change may leave key material that no keyslot names: the old one, after the header
/// names the new one, or the new one, before the header does.
#[test]
fn erasing_leaves_no_key_material_that_an_interrupted_change_has_forgotten() {
    for (what, image) in images() {
        let header = read(&image);
        let opened = header.open_key(&image, PASSPHRASE, None).unwrap();
        let change = with_tools(70, |tools| {
            header.change_key(None, &opened, true, &new_key(NEW), tools).unwrap()
        });
        let old = match &header {
            Header::Luks1(header) => header.keyslots[0].material_start(),
            Header::Luks2(header) => header.metadata.keyslots[&0].area.offset,
        };
        let old = &image[old as usize..][..128_000];
        let made = change.writes.iter().filter(|write| write.bytes.len() == 128_000);
        let made = made.flat_map(|write| write.bytes.chunks(512));
        let secret: HashSet<&[u8]> = old.chunks(512).chain(made).collect();
        assert!(secret.len() >= 500, "{what}: {}", secret.len());
        let medium = Recorder::new(&image);
        write_verified(&medium, &change.writes).unwrap();
        let mut count = 0;
        medium.crashes(11, |crashed| {
            count += 1;
            if count % one_of(3) > 0 {
                return;
            }
            let (header, damage) = Header::read(crashed).unwrap();
            let erase =
                with_tools(71, |tools| header.erase(crashed, damage.as_ref(), tools.random));
            let mut end = crashed.clone();
            common::apply(&mut end, &erase.unwrap().writes);
            let left = end.chunks(512).filter(|sector| secret.contains(sector)).count();
            assert_eq!(left, 0, "{what}: sectors of key material after crash {count}");
            let data = header.data_offset() as usize;
            assert!(end[data..] == image[data..], "{what}: the data was touched");
        });
        assert!(count > 100, "{what}: {count}");
    }
}

/// Where the header ends and the keyslot areas begin.
fn header_end(image: &[u8]) -> usize {
    match read(image) {
        Header::Luks1(_) => ucrypt_luks::luks1::HEADER_BYTES,
        Header::Luks2(header) => 2 * header.binary.header_size as usize,
    }
}
