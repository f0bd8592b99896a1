//! Every action on headers with seeded damage gives a result: no panic, and no change that leaves a
//! header worse than it was.
//!
//! `UCRYPT_FUZZ_S` sets for how many seconds each test goes on, `UCRYPT_SEED` the first seed.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use common::targets::{self, ACTIONS, Looked, Subject, image_of};
use common::{edit, flip, json_text, mutated, put_json, roomy_luks2, seal, small_luks1};
use fastrand::Rng;

/// Seeds of a test without `UCRYPT_FUZZ_S`.
const SEEDS: u64 = 1200;

#[derive(Default, Debug)]
struct Tally {
    refused: u32,
    taken: u32,
    changed: u32,
    restored: u32,
}

impl Tally {
    fn try_image(&mut self, seed: u64, image: &[u8]) {
        if targets::look(image) == Looked::Refused {
            self.refused += 1;
            return;
        }
        self.taken += 1;
        let Some(subject) = Subject::of(image) else { return };
        for action in ACTIONS {
            self.changed += u32::from(targets::acts(action, seed, image, &subject));
        }
        targets::rotates(seed, image, &subject);
        self.restored += u32::from(targets::restores(seed, image, &subject));
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
    assert!(tally.taken > 0 && tally.changed > 0 && tally.restored > 0, "{tally:?}");
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

/// What the fuzzer has found worth keeping, and what `fuzz/` once failed on.
#[test]
fn the_kept_corpus_of_the_fuzzer_passes() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut tally = Tally::default();
    for entry in fs::read_dir(&corpus).unwrap() {
        let input = fs::read(entry.unwrap().path()).unwrap();
        tally.try_image(0, &image_of(&input));
    }
    println!("{tally:?}");
    assert!(tally.refused > 5 && tally.taken > 5 && tally.changed > 5, "{tally:?}");
}

/// `scripts/fuzz` runs a target for each action.
#[test]
fn the_fuzzer_has_every_action() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/fuzz");
    let script = fs::read_to_string(script).unwrap();
    let listed = script.split("actions=\"").nth(1).and_then(|rest| rest.split('"').next());
    let listed: BTreeSet<&str> = listed.expect("a list").split_whitespace().collect();
    let actions =
        ACTIONS.iter().map(|action| action.name).chain([targets::ROTATION, targets::RESTORE]);
    assert_eq!(listed, actions.collect());
}
