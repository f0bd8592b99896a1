//! Every action on headers with seeded damage gives a result: no panic, and no change that leaves a
//! header worse than it was.
//!
//! `UCRYPT_FUZZ_S` sets for how many seconds each test goes on, `UCRYPT_SEED` the first seed.

mod common;

use std::time::{Duration, Instant};

use common::recorder::Recorder;
use common::{
    PASSPHRASE, apply, cheap_pbkdf2, edit, flip, is_quick, json_text, mutated, put_json,
    roomy_luks2, seal, small_luks1, with_tools,
};
use fastrand::Rng;
use ucrypt_luks::luks2::{Damage, Priority};
use ucrypt_luks::{
    Error, Flag, Header, HeaderCopy, Json, NewKey, Result, Tools, Write, restore, rotate,
};

const NEW: &[u8] = b"the new one";

/// Seeds of a test without `UCRYPT_FUZZ_S`.
const SEEDS: u64 = 1500;

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

type Act = fn(&[u8], &Header, Option<&Damage>, &mut Tools<'_>) -> Result<Vec<Write>>;

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

const ACTIONS: &[(&str, Leaves, Act)] = &[
    ("add a key", Leaves::Key, |image, header, damage, tools| {
        let volume = header.unlock(&image, PASSPHRASE, None)?;
        Ok(header.add_key(damage, &volume, None, &new_key(), tools)?.writes)
    }),
    ("add an unbound key", Leaves::Key, |_, header, damage, tools| {
        Ok(header.add_unbound_key(damage, &[7; 32], Some(5), &new_key(), tools)?.writes)
    }),
    ("change the key", Leaves::NewKey, |image, header, damage, tools| {
        let opened = header.open_key(&image, PASSPHRASE, None)?;
        Ok(header.change_key(damage, &opened, false, &new_key(), tools)?.writes)
    }),
    ("remove keyslot 0", Leaves::Anything, |_, header, damage, tools| {
        Ok(header.remove_key(damage, 0, tools.random)?.writes)
    }),
    ("remove keyslot 1", Leaves::Anything, |_, header, damage, tools| {
        Ok(header.remove_key(damage, 1, tools.random)?.writes)
    }),
    ("erase", Leaves::Anything, |image, header, damage, tools| {
        Ok(header.erase(&image, damage, tools.random)?.writes)
    }),
    ("set the UUID", Leaves::Key, |_, header, damage, tools| {
        Ok(header.change_uuid(damage, None, tools.random)?.writes)
    }),
    ("set labels and flags", Leaves::Key, |_, header, damage, tools| {
        config(header, damage, tools, |change| {
            change.set_label("label")?;
            change.set_subsystem("subsystem")?;
            change.set_flags(&[Flag::AllowDiscards, Flag::NoReadWorkqueue])
        })
    }),
    ("set the priority", Leaves::Key, |_, header, damage, tools| {
        config(header, damage, tools, |change| change.set_priority(0, Priority::Prefer))
    }),
    ("add a token", Leaves::Key, |_, header, damage, tools| {
        let token = Json::parse(br#"{"type":"some","keyslots":["0"]}"#).expect("JSON");
        config(header, damage, tools, |change| change.put_token(None, token, false).map(drop))
    }),
    ("remove a token", Leaves::Key, |_, header, damage, tools| {
        config(header, damage, tools, |change| change.remove_token(0))
    }),
    ("repair", Leaves::Key, |_, header, damage, tools| {
        let damage = damage.ok_or_else(|| Error::Request("nothing is damaged".into()))?;
        Ok(vec![luks2(header)?.repair(damage, tools.random)?])
    }),
    ("repair by request", Leaves::Key, |_, header, damage, tools| {
        let damage = damage.ok_or_else(|| Error::Request("nothing is damaged".into()))?;
        Ok(vec![luks2(header)?.repair_by_request(damage, tools.random)?])
    }),
    ("back up and restore", Leaves::Key, |image, header, _, _| {
        let backup = header.backup(&image)?;
        Ok(restore(&image, &backup)?.writes)
    }),
];

#[derive(Default, Debug)]
struct Tally {
    refused: u32,
    taken: u32,
    changed: u32,
}

impl Tally {
    fn try_image(&mut self, seed: u64, image: &[u8]) {
        let _ = HeaderCopy::read(&image).map(|copy| copy.digest());
        let Ok((header, damage)) = Header::read(&image) else {
            self.refused += 1;
            return;
        };
        self.taken += 1;
        let _ = header.check_strictly(damage.as_ref());
        if !is_quick(&header) {
            return;
        }
        let key = header.unlock(&image, PASSPHRASE, None).map(|opened| opened.volume_key);
        let data = usize::try_from(header.data_offset()).unwrap_or(usize::MAX);
        for (what, leaves, act) in ACTIONS {
            let what = format!("seed {seed}: {what}");
            let writes = with_tools(seed, |tools| act(image, &header, damage.as_ref(), tools));
            let Ok(writes) = writes else { continue };
            self.changed += 1;
            let mut after = image.to_vec();
            apply(&mut after, &writes);
            assert_eq!(after.len(), image.len(), "{what}: the image grew");
            if data > 0 && data < image.len() {
                assert!(after[data..] == image[data..], "{what}: the data was touched");
            }
            let (header, _) = Header::read(&after)
                .unwrap_or_else(|error| panic!("{what}: the header is lost: {error}"));
            let opens = |passphrase| header.unlock(&after, passphrase, None);
            let (Ok(key), true) = (&key, *leaves != Leaves::Anything) else { continue };
            let right = if *leaves == Leaves::Key { PASSPHRASE } else { NEW };
            let opened = opens(right).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(opened.volume_key == *key, "{what}: another key");
        }
        let medium = Recorder::new(image);
        let rotated = with_tools(seed, |tools| rotate(&medium, PASSPHRASE, &new_key(), tools));
        let after = medium.now.into_inner();
        let (header, _) = Header::read(&after)
            .unwrap_or_else(|error| panic!("seed {seed}: a rotation lost the header: {error}"));
        if let (Ok(key), Ok(_)) = (&key, rotated) {
            let opened = header.unlock(&after, NEW, None).unwrap_or_else(|error| {
                panic!("seed {seed}: the new key does not open after a rotation: {error}")
            });
            assert!(opened.volume_key == *key);
        }
    }
}

/// Tries images that `damage` makes of a sound one.
fn fuzz(sound: &[u8], damage: impl Fn(&mut Vec<u8>, &mut Rng)) {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
    };
    let first = number("UCRYPT_SEED").unwrap_or(0);
    let seconds = number("UCRYPT_FUZZ_S").map(Duration::from_secs);
    let (begin, mut tally) = (Instant::now(), Tally::default());
    for seed in first.. {
        if seconds.map_or(seed >= first + SEEDS, |limit| begin.elapsed() >= limit) {
            println!("seeds {first} to {seed}: {tally:?}");
            break;
        }
        let (mut image, mut random) = (sound.to_vec(), Rng::with_seed(seed));
        damage(&mut image, &mut random);
        tally.try_image(seed, &image);
    }
    assert!(tally.taken > 0 && tally.changed > 0, "{tally:?}");
}

#[test]
fn actions_on_luks1_headers_with_flipped_bytes() {
    fuzz(&small_luks1(), |image, random| flip(&mut image[..592], random));
}

#[test]
fn actions_on_luks2_binary_headers_with_flipped_bytes() {
    fuzz(&roomy_luks2(), |image, random| {
        let which = random.u8(..3);
        for (number, copy) in (0..).zip(image[..0x8000].chunks_mut(0x4000)) {
            if number != which {
                flip(&mut copy[..512], random);
                if random.bool() {
                    seal(copy);
                }
            }
        }
    });
}

#[test]
fn actions_on_luks2_json_with_edits() {
    let sound = roomy_luks2();
    let json = json_text(&sound);
    fuzz(&sound, |image, random| {
        let mut json = json.clone();
        edit(&mut json, random);
        put_json(image, &json);
    });
}

#[test]
fn actions_on_luks2_metadata_with_other_values_and_members() {
    let sound = roomy_luks2();
    let metadata = serde_json::from_slice(&json_text(&sound)).unwrap();
    fuzz(&sound, |image, random| put_json(image, &mutated(&metadata, random)));
}
