//! Headers with seeded damage: this crate accepts, opens and refuses the same headers as
//! cryptsetup, except for the differences that are listed here with their reasons.
//!
//! `UCRYPT_HEADERS` sets how many headers each test compares, `UCRYPT_SEED` the first seed.

mod common;

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use common::{
    PASSPHRASE, Scratch, cryptsetup, edit, flip, is_quick, json_text, mutated, put_json,
    roomy_luks2, seal, small_luks1, small_luks2, text,
};
use fastrand::Rng;
use ucrypt_luks::Header;

/// Seconds after which an attempt of cryptsetup is given up.
const LIMIT_S: &str = "20";

/// Who refuses what the other one takes or opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refuses {
    Ours,
    Theirs,
}

use Refuses::{Ours, Theirs};

/// Where the verdicts may differ: words of this crate's error (`*` stands for any), who refuses, and the
/// reason.
const DIFFERENCES: &[(&str, Refuses, &str)] = &[
    ("occurs twice", Ours, "a key that occurs twice can be read in two ways"),
    (
        "JSON area: ",
        Ours,
        "json-c takes more than JSON: comments, single quotes; it ends keys at a NUL",
    ),
    ("it is not base64", Ours, "salts and digests are decoded when the header is read"),
    ("it is not a number from", Ours, "numbers out of range are refused when the header is read"),
    ("/digests/*: \"", Ours, "a digest without its members is refused when the header is read"),
    ("not a number below", Ours, "the format has no more keyslots and digests than its number"),
    ("is too small for", Ours, "an area smaller than its stripes: the next area would be read"),
    ("stripes instead of 4000", Ours, "other numbers of stripes are ignored by cryptsetup"),
    ("none of 512, 1024, 2048 and 4096", Ours, "sector sizes that no kernel takes"),
    ("key_size of", Ours, "key sizes that no cipher has"),
    ("none of 0, 1 and 2", Ours, "a priority that the format does not have"),
    ("segment 0 with \"", Ours, "a data cipher that no kernel has: cryptsetup asks on activation"),
    ("volume with \"", Ours, "the same in LUKS1"),
    ("data segment with", Ours, "the same, with a key of a size that the cipher does not have"),
    ("is not printable text", Ours, "names of ciphers that cannot be names"),
    ("it holds control characters", Ours, "names that would change the terminal"),
    (
        "copy is unusable (damaged header: JSON",
        Theirs,
        "a copy that breaks a rule only here, beside a sound one",
    ),
    // cryptsetup refuses the whole header.
    ("anti-forensic splitter \"", Theirs, "one such keyslot leaves the others alone here"),
    ("keyslot area type \"", Theirs, "one such keyslot leaves the others alone here"),
];

/// Whether a header is accepted, and whether the passphrase opens it.
#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    taken: bool,
    /// `None` if the attempt would take too long.
    opened: Option<bool>,
}

impl Verdict {
    /// Which of two verdicts refuses something and takes nothing that the other one refuses.
    fn refuses_more_than(&self, theirs: &Self) -> Option<Refuses> {
        // What was not tried might open.
        let opens = |verdict: &Self, other: &Self| verdict.opened.or(other.opened);
        let ours = (self.taken, opens(self, theirs));
        let theirs = (theirs.taken, opens(theirs, self));
        let is_less = |one: (bool, Option<bool>), other: (bool, Option<bool>)| {
            one.0 <= other.0 && one.1 <= other.1 && one != other
        };
        match (is_less(ours, theirs), is_less(theirs, ours)) {
            (true, _) => Some(Ours),
            (_, true) => Some(Theirs),
            _ => None,
        }
    }
}

#[test]
fn a_difference_counts_in_one_direction() {
    let verdict = |taken, opened| Verdict { taken, opened };
    for (ours, theirs, refuses) in [
        (verdict(false, Some(false)), verdict(true, Some(true)), Some(Ours)),
        (verdict(true, Some(false)), verdict(true, Some(true)), Some(Ours)),
        (verdict(true, Some(true)), verdict(false, Some(false)), Some(Theirs)),
        (verdict(true, None), verdict(false, Some(false)), Some(Theirs)),
        (verdict(false, Some(false)), verdict(true, None), Some(Ours)),
        (verdict(true, Some(false)), verdict(false, Some(true)), None),
        (verdict(true, Some(true)), verdict(true, Some(true)), None),
    ] {
        assert_eq!(ours.refuses_more_than(&theirs), refuses, "{ours:?}, {theirs:?}");
    }
}

fn ours(image: &[u8]) -> (Verdict, String) {
    match Header::read(&image) {
        Err(error) => (Verdict { taken: false, opened: Some(false) }, error.to_string()),
        Ok((header, _)) if !is_quick(&header) => {
            (Verdict { taken: true, opened: None }, String::new())
        }
        Ok((header, damage)) => {
            let unlocked = header.test_passphrase(&image, PASSPHRASE, None);
            let verdict = Verdict { taken: true, opened: Some(unlocked.is_ok()) };
            let damage = damage.map(|damage| damage.to_string()).unwrap_or_default();
            (verdict, unlocked.err().map_or(damage, |error| error.to_string()))
        }
    }
}

fn theirs(scratch: &Scratch, image: &[u8], try_open: bool) -> Verdict {
    let path = scratch.image();
    // Written before each command, because cryptsetup repairs what it finds.
    fs::write(&path, image).unwrap();
    let taken = cryptsetup(&["luksDump", text(&path)], b"").status.success();
    fs::write(&path, image).unwrap();
    let opened = if try_open && taken { opened_by_cryptsetup(scratch, PASSPHRASE) } else { None };
    Verdict { taken, opened: if taken { opened } else { Some(false) } }
}

/// Whether cryptsetup opens the image. `None` if it does not tell within [`LIMIT_S`]: a header that is
/// refused here may ask for hours of iterations.
fn opened_by_cryptsetup(scratch: &Scratch, passphrase: &[u8]) -> Option<bool> {
    let path = scratch.image();
    let mut limited = Command::new("timeout");
    limited.args(["--signal=KILL", LIMIT_S, "cryptsetup", "open", "--test-passphrase"]);
    limited.args(["--key-file", "-", text(&path)]).stdin(Stdio::piped());
    limited.stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = limited.spawn().expect("timeout, of coreutils, starts");
    // A child that exits without reading closes the pipe.
    let _ = running.stdin.take().expect("a pipe").write_all(passphrase);
    match running.wait().expect("waited").code() {
        Some(127) => panic!("cryptsetup cannot be run: apt-get install cryptsetup-bin"),
        // The signal that ends it ends `timeout`, too.
        Some(137) | None => None,
        code => Some(code == Some(0)),
    }
}

#[derive(Default)]
struct Tally {
    cases: u32,
    taken: u32,
    opened: u32,
    listed: u32,
    unlisted: Vec<String>,
}

impl Tally {
    fn compare(&mut self, scratch: &Scratch, what: &str, image: &[u8]) {
        let (ours, problem) = ours(image);
        let theirs = theirs(scratch, image, ours.opened.is_some());
        self.cases += 1;
        self.taken += u32::from(ours.taken);
        self.opened += u32::from(ours.opened == Some(true));
        let agree = ours.taken == theirs.taken
            && (ours.opened == theirs.opened || ours.opened.is_none() || theirs.opened.is_none());
        if agree {
            return;
        }
        // If cryptsetup cannot compute the digest, it accepts every passphrase.
        let takes_all = theirs.opened == Some(true)
            && opened_by_cryptsetup(scratch, b"a wrong one") == Some(true);
        let refuses = ours.refuses_more_than(&theirs);
        let is_listed = |(words, by, _): &(&str, Refuses, &str)| {
            words.split('*').all(|part| problem.contains(part)) && Some(*by) == refuses
        };
        if takes_all || DIFFERENCES.iter().any(is_listed) {
            self.listed += 1;
            return;
        }
        self.unlisted.push(format!("{what}: {ours:?} {problem}; cryptsetup: {theirs:?}"));
    }

    fn finish(self) {
        let Self { cases, taken, opened, listed, unlisted } = self;
        println!("{cases} headers: {taken} taken, {opened} opened, {listed} differ as listed");
        assert!(unlisted.is_empty(), "{} differ:\n{}", unlisted.len(), unlisted.join("\n"));
        assert!(taken > 0 && opened > 0);
    }
}

/// The seeds of a test that compares `count` headers by default.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
    };
    let first = number("UCRYPT_SEED").unwrap_or(0);
    let seeds = first..first + number("UCRYPT_HEADERS").unwrap_or(count);
    println!("seeds {seeds:?}");
    seeds
}

#[test]
fn luks1_headers_with_flipped_bytes() {
    let (sound, scratch, mut tally) = (small_luks1(), Scratch::new(0), Tally::default());
    for seed in seeds(60) {
        let mut image = sound.clone();
        flip(&mut image[..592], &mut Rng::with_seed(seed));
        tally.compare(&scratch, &format!("seed {seed}"), &image);
    }
    tally.finish();
}

#[test]
fn luks2_binary_headers_with_flipped_bytes_and_right_checksums() {
    let (sound, scratch, mut tally) = (small_luks2(), Scratch::new(0), Tally::default());
    for seed in seeds(60) {
        let mut image = sound.clone();
        for copy in image[..0x8000].chunks_mut(0x4000) {
            // The same damage in both copies, outside their magic and offset, which differ.
            flip(&mut copy[6..256], &mut Rng::with_seed(seed));
            seal(copy);
        }
        tally.compare(&scratch, &format!("seed {seed}"), &image);
    }
    tally.finish();
}

#[test]
fn luks2_copies_of_which_one_is_damaged() {
    let (sound, scratch, mut tally) = (small_luks2(), Scratch::new(0), Tally::default());
    for seed in seeds(60) {
        let (mut image, mut random) = (sound.clone(), Rng::with_seed(seed));
        let begin = 0x4000 * random.usize(..2);
        let copy = &mut image[begin..begin + 0x4000];
        match random.usize(..4) {
            0 => flip(&mut copy[..512], &mut random),
            1 => flip(copy, &mut random),
            2 => {
                flip(&mut copy[4096..5200], &mut random);
                seal(copy);
            }
            _ => {
                // Older or newer than the other copy, and whole.
                copy[23] = random.u8(..3);
                seal(copy);
            }
        }
        tally.compare(&scratch, &format!("seed {seed}"), &image);
    }
    tally.finish();
}

#[test]
fn luks2_json_with_edits_and_right_checksums() {
    let (sound, scratch, mut tally) = (small_luks2(), Scratch::new(0), Tally::default());
    let json = json_text(&sound);
    for seed in seeds(240) {
        let (mut image, mut random, mut json) = (sound.clone(), Rng::with_seed(seed), json.clone());
        for _ in 0..=random.usize(..2) {
            if !json.is_empty() {
                edit(&mut json, &mut random);
            }
        }
        put_json(&mut image, &json);
        tally.compare(&scratch, &format!("seed {seed}"), &image);
    }
    tally.finish();
}

#[test]
fn luks2_metadata_with_other_values_and_members() {
    let (sound, scratch, mut tally) = (roomy_luks2(), Scratch::new(0), Tally::default());
    let metadata = serde_json::from_slice(&json_text(&sound)).unwrap();
    for seed in seeds(200) {
        let (mut image, mut random) = (sound.clone(), Rng::with_seed(seed));
        put_json(&mut image, &mutated(&metadata, &mut random));
        tally.compare(&scratch, &format!("seed {seed}"), &image);
    }
    tally.finish();
}
