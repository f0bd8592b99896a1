//! Headers with seeded damage: this crate accepts, opens and refuses the same headers as
//! cryptsetup, except for the differences that are listed here with their reasons.
//!
//! `UCRYPT_HEADERS` sets how many headers each test compares, `UCRYPT_SEED` the first seed.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use common::keys::{NEW, new_key};
use common::{
    CHEAP_PBKDF2, PASSPHRASE, Scratch, apply, cryptsetup, edit, edit_json, flip, is_quick,
    json_text, mutated, put_json, roomy_luks2, seal, small_luks1, small_luks2, text, with_tools,
};
use fastrand::Rng;
use serde_json::{Value, json};
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
    ("it is not base64", Ours, "salts and digests are decoded when the header is read"),
    ("it is not a number from", Ours, "numbers out of range are refused when the header is read"),
    ("/digests/*: \"", Ours, "a digest without its members is refused when the header is read"),
    ("/digests/*: it is not a string", Ours, "the same, with a member of another type"),
    ("not a number below", Ours, "the format has no more keyslots and digests than its number"),
    ("is too small for", Ours, "an area smaller than its stripes: the next area would be read"),
    ("it begins inside a sector", Ours, "cryptsetup reads an area from the begin of its sector"),
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
];

/// What stands where this crate has found no JSON, if it is one of the things that json-c takes besides: a
/// header that means one thing to one program and nothing to the other one is refused.
fn beyond_json(image: &[u8], problem: &str) -> Option<&'static str> {
    let (_, problem) = problem.split_once("JSON area: ")?;
    let (problem, at) = problem.rsplit_once(" at byte ")?;
    let at: String = at.chars().take_while(char::is_ascii_digit).collect();
    let json = json_text(image);
    let (before, rest) = json.split_at_checked(at.parse().ok()?)?;
    let is = |word: &&str| {
        rest.get(..word.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(word.as_bytes()))
    };
    let is_behind_comma = before.trim_ascii_end().ends_with(b",");
    match problem {
        "a number begins with 0" => Some("a number with zeroes in front of it"),
        "no digit" => Some("a number without digits behind its point, or -Infinity"),
        "a control character in a string" => Some("control characters in strings"),
        // The second half would begin with \u.
        "half of a character" | r"no '\'" | "no 'u'" => Some("half of a surrogate pair"),
        problem if problem.starts_with("the key ") && problem.ends_with(" has a NUL") => {
            Some("a key that ends at a NUL for json-c")
        }
        _ if is(&"/*") || is(&"//") => Some("comments"),
        _ if is(&"'") => Some("single quotes"),
        _ if is_behind_comma && (is(&"]") || is(&"}")) => Some("a comma behind the last value"),
        "no value" if ["nan", "infinity"].iter().any(is) => Some("NaN and Infinity"),
        "no value" if ["true", "false", "null"].iter().any(is) => {
            Some("true, false and null in capital letters")
        }
        _ => None,
    }
}

/// Each thing that json-c takes and this crate does not, and things that neither of them takes.
#[test]
fn json_with_what_only_one_parser_knows() {
    let (sound, scratch, mut tally) = (roomy_luks2(), Scratch::new(0), Tally::default());
    let json = String::from_utf8(json_text(&sound)).unwrap();
    for value in [
        "1",
        "007",
        "1.",
        "1e",
        "-1",
        "-",
        "+1",
        ".5",
        "1-2",
        "NaN",
        "nan",
        "Infinity",
        "-Infinity",
        "TRUE",
        "nUll",
        "False",
        "'a'",
        "{'a':1}",
        "/* a */1",
        "1//a\n",
        "1/**/",
        "[1,]",
        "[,1]",
        "{\"a\":1,}",
        "[1,,2]",
        "\"a\tb\"",
        "\"\\x\"",
        "\"\\ud800\"",
        "\"\\udc00\"",
        "\"\\u12\"",
        "abc",
        "{\"a\\u0000\":1}",
        "{\"a\":1,\"a\":2}",
        "{\"a\" 1}",
        "{\"\":1}",
        "\u{a0}1",
    ] {
        let token = format!(r#""tokens":{{"0":{{"type":"t","keyslots":[],"x":{value}}}}}"#);
        let mut image = sound.clone();
        put_json(&mut image, json.replace(r#""tokens":{}"#, &token).as_bytes());
        tally.compare(&scratch, value, &image);
    }
    // Each reason of `beyond_json`, and a key that occurs twice.
    assert_eq!(tally.listed.len(), 11, "{:?}", tally.listed);
    tally.finish();
}

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
    /// Whether no attempt is made to open the headers.
    is_taken_only: bool,
    cases: u32,
    taken: u32,
    opened: u32,
    /// How often each of the listed reasons counted.
    listed: BTreeMap<&'static str, u32>,
    unlisted: Vec<String>,
}

impl Tally {
    fn compare(&mut self, scratch: &Scratch, what: &str, image: &[u8]) {
        let (mut ours, problem) = ours(image);
        if ours.taken && self.is_taken_only {
            ours.opened = None;
        }
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
        let listed = DIFFERENCES.iter().find(|difference| is_listed(difference));
        let listed = listed.map(|(.., reason)| *reason);
        let beyond = || (refuses == Some(Ours)).then(|| beyond_json(image, &problem)).flatten();
        let all = takes_all.then_some("cryptsetup cannot compute the digest");
        if let Some(reason) = all.or(listed).or_else(beyond) {
            *self.listed.entry(reason).or_default() += 1;
            return;
        }
        self.unlisted.push(format!("{what}: {ours:?} {problem}; cryptsetup: {theirs:?}"));
    }

    fn finish(self) {
        let Self { is_taken_only, cases, taken, opened, listed, unlisted } = self;
        println!("{cases} headers: {taken} taken, {opened} opened; differ as listed: {listed:?}");
        assert!(unlisted.is_empty(), "{} differ:\n{}", unlisted.len(), unlisted.join("\n"));
        assert!(taken > 0 && (opened > 0 || is_taken_only));
    }
}

/// What of two programs differs after the same action on the same damaged header.
fn act(scratch: &Scratch, image: &[u8], seed: u64) -> Vec<String> {
    let read = Header::read(&image).ok().filter(|(header, _)| is_quick(header));
    let (Some((header, damage)), mut differs) = (read, Vec::new()) else { return Vec::new() };
    let path = scratch.image();
    fs::write(&path, image).unwrap();
    let shown = cryptsetup(&["luksDump", text(&path)], b"");
    if !shown.status.success() {
        // Who takes the header is compared elsewhere.
        return differs;
    }
    let dump = header.dump(text(&path));
    if shown.stdout != dump.as_bytes() {
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        // What is behind the first one has moved.
        let first = dump.lines().zip(shown.lines()).find(|(ours, theirs)| ours != theirs);
        differs.push(format!("luksDump: {first:?}"));
    }
    let key_file = scratch.path("new");
    fs::write(&key_file, NEW).unwrap();
    let mut add = vec!["luksAddKey", "-q", "--key-file", "-", text(&path), text(&key_file)];
    add.extend(CHEAP_PBKDF2);
    fs::write(&path, image).unwrap();
    let theirs = cryptsetup(&add, PASSPHRASE);
    let added = header.unlock(&image, PASSPHRASE, None).and_then(|volume| {
        with_tools(seed, |tools| {
            header.add_key(damage.as_ref(), &volume, None, &new_key(NEW), tools)
        })
    });
    let refusal = match added {
        Err(error) => error.to_string(),
        Ok(change) => {
            let mut ours = image.to_vec();
            apply(&mut ours, &change.writes);
            fs::write(&path, &ours).unwrap();
            if opened_by_cryptsetup(scratch, NEW) != Some(true) {
                differs.push("luksAddKey: cryptsetup does not open what was added here".into());
            }
            String::new()
        }
    };
    let is_added = refusal.is_empty();
    let said = String::from_utf8_lossy(&theirs.stderr).trim().to_owned();
    if is_added != theirs.status.success() {
        differs.push(format!("luksAddKey: {refusal:?}; cryptsetup: {} {said}", theirs.status));
    }
    differs
}

/// Where actions on headers that both programs take may differ: words that tell it, and the reason.
const DIFFERENCES_OF_ACTIONS: &[(&str, &str)] = &[
    ("INVALID (0x", "a state that is neither active nor inactive is shown: there may be a key"),
    (r"\\x", "bytes that would change a terminal, or are no text, are shown by their numbers"),
    (
        "nothing says that what is there is LUKS; see repair",
        "what is no copy any more may be somebody else's, and is not overwritten unasked",
    ),
];

/// A key is added by the right passphrase, and the header is shown.
#[test]
fn actions_on_damaged_headers_that_both_programs_take() {
    let scratch = Scratch::new(0);
    let (luks1, luks2) = (small_luks1(), roomy_luks2());
    let metadata = serde_json::from_slice(&json_text(&luks2)).unwrap();
    let (mut listed, mut unlisted) = (0, Vec::new());
    for seed in seeds(120) {
        let mut random = Rng::with_seed(seed);
        let mut flipped = luks1.clone();
        flip(&mut flipped[..592], &mut random);
        let mut damaged = luks2.clone();
        let begin = 0x4000 * random.usize(..2);
        flip(&mut damaged[begin..begin + 0x4000], &mut random);
        let mut changed = luks2.clone();
        put_json(&mut changed, &mutated(&metadata, &mut random));
        for (what, image) in [("LUKS1", flipped), ("one copy", damaged), ("metadata", changed)] {
            for differs in act(&scratch, &image, seed) {
                if DIFFERENCES_OF_ACTIONS.iter().any(|(words, _)| differs.contains(words)) {
                    listed += 1;
                } else {
                    unlisted.push(format!("{what}, seed {seed}: {differs}"));
                }
            }
        }
    }
    println!("{listed} differ as listed");
    assert!(unlisted.is_empty(), "{} differ:\n{}", unlisted.len(), unlisted.join("\n"));
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

/// Each copy alone, and both, with a keyslot of LUKS2 that is not what its type says.
#[test]
fn luks2_keyslots_with_unknown_parts() {
    let (sound, scratch, mut tally) = (small_luks2(), Scratch::new(0), Tally::default());
    for (from, to) in
        [(r#""type":"raw""#, r#""type":"cooked""#), (r#""type":"luks1""#, r#""type":"luks9""#)]
    {
        let mut damaged = sound.clone();
        edit_json(&mut damaged, from, to);
        for copies in [&[0][..], &[0x4000], &[0, 0x4000]] {
            let mut image = sound.clone();
            for at in copies {
                image[*at..at + 0x4000].copy_from_slice(&damaged[*at..at + 0x4000]);
            }
            tally.compare(&scratch, &format!("{to} in copies at {copies:?}"), &image);
        }
    }
    tally.finish();
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

/// What is read before a checksum is compared: magic, version, size, checksum algorithm. Each copy alone, and both, with
/// checksums that are right, if there is an algorithm, and that are not.
#[test]
fn luks2_bytes_that_are_read_before_the_checksum() {
    let (sound, scratch, mut tally) = (small_luks2(), Scratch::new(0), Tally::default());
    let whole = [(0, 8), (8, 8), (72, 32)].map(|(from, len)| from..from + len);
    let mut random = Rng::with_seed(seeds(1).start);
    for at in whole.into_iter().flatten() {
        for copies in [&[0][..], &[0x4000], &[0, 0x4000]] {
            for value in [0, sound[at] ^ 1, random.u8(..)] {
                let mut image = sound.clone();
                for from in copies {
                    let copy = &mut image[*from..from + 0x4000];
                    copy[at] = value;
                    if random.bool() {
                        seal(copy);
                    }
                }
                tally.compare(&scratch, &format!("byte {at} of {copies:?} is {value}"), &image);
            }
        }
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

#[test]
fn luks2_keyslots_of_an_unknown_kdf() {
    let (sound, scratch) = (roomy_luks2(), Scratch::new(0));
    let mut tally = Tally { is_taken_only: true, ..Tally::default() };
    let mut metadata: Value = serde_json::from_slice(&json_text(&sound)).unwrap();
    metadata["keyslots"]["0"]["kdf"]["type"] = json!("later");
    let members = metadata["keyslots"]["0"]["kdf"].as_object().unwrap().clone();
    for name in members.keys() {
        for value in [None, Some(json!(7)), Some(json!("!")), Some(json!("")), Some(json!({}))] {
            let mut changed = metadata.clone();
            let kdf = changed["keyslots"]["0"]["kdf"].as_object_mut().unwrap();
            match &value {
                Some(value) => drop(kdf.insert(name.clone(), value.clone())),
                None => drop(kdf.remove(name)),
            }
            let mut image = sound.clone();
            put_json(&mut image, changed.to_string().as_bytes());
            tally.compare(&scratch, &format!("{name}: {value:?}"), &image);
        }
    }
    tally.finish();
}

/// A header in the middle of a reencryption, with a keyslot for what survives a crash.
fn reencrypted(metadata: &Value) -> Value {
    let mut metadata = metadata.clone();
    let segment = metadata["segments"]["0"].clone();
    for (number, flag) in [("1", "backup-previous"), ("2", "backup-final")] {
        metadata["segments"][number] = segment.clone();
        metadata["segments"][number]["flags"] = json!([flag]);
    }
    metadata["digests"]["0"]["segments"] = json!(["0", "1", "2"]);
    metadata["config"]["requirements"] = json!({"mandatory": ["online-reencrypt-v2"]});
    let area = metadata["keyslots"]["0"]["area"].clone();
    let number = |name: &str| area[name].as_str().unwrap().parse::<u64>().unwrap();
    let offset = (number("offset") + number("size")).to_string();
    metadata["keyslots"]["1"] = json!({
        "type": "reencrypt",
        "key_size": 1,
        "mode": "reencrypt",
        "direction": "forward",
        "area": {"type": "none", "offset": offset, "size": "4096"},
    });
    metadata
}

// Opening is another matter: cryptsetup looks at a digest of the reencryption's metadata then.
#[test]
fn reencryptions_whose_parts_do_not_agree() {
    let (sound, scratch) = (roomy_luks2(), Scratch::new(0));
    let mut tally = Tally { is_taken_only: true, ..Tally::default() };
    let metadata = reencrypted(&serde_json::from_slice(&json_text(&sound)).unwrap());
    let names = |names: &[&str]| json!({ "mandatory": names });
    let checksum = json!({"type": "checksum", "hash": "sha256", "sector_size": 512});
    let shift = json!({"type": "datashift", "shift_size": "512"});
    let is_sound = metadata["keyslots"]["0"].clone();
    let edits = [
        ("", Value::Null),
        ("/keyslots/1", is_sound),
        ("/keyslots/1/type", json!("later")),
        ("/keyslots/1/key_size", json!(2)),
        ("/keyslots/1/key_size", json!("1")),
        ("/keyslots/1/mode", json!("encrypt")),
        ("/keyslots/1/mode", json!("decrypt")),
        ("/keyslots/1/mode", json!("copy")),
        ("/keyslots/1/mode", json!(1)),
        ("/keyslots/1/direction", json!("backward")),
        ("/keyslots/1/direction", json!("both")),
        ("/keyslots/1/area+", json!({"type": "journal"})),
        ("/keyslots/1/area+", json!({"type": "later"})),
        ("/keyslots/1/area+", json!({"type": "checksum"})),
        ("/keyslots/1/area+", json!({"type": "datashift"})),
        ("/keyslots/1/area+", json!({"type": "datashift-checksum"})),
        ("/keyslots/1/area+", json!({"type": "datashift-journal"})),
        ("/keyslots/1/area+", checksum.clone()),
        (
            "/keyslots/1/area+",
            json!({"type": "datashift-checksum", "hash": "x", "sector_size": 4096}),
        ),
        ("/keyslots/1/area+", json!({"type": "checksum", "hash": "", "sector_size": 512})),
        ("/keyslots/1/area+", json!({"type": "checksum", "hash": "sha256", "sector_size": 256})),
        ("/keyslots/1/area+", json!({"type": "checksum", "hash": "sha256", "sector_size": 768})),
        ("/keyslots/1/area+", json!({"type": "checksum", "hash": "sha256", "sector_size": "512"})),
        ("/keyslots/1/area+", shift.clone()),
        ("/keyslots/1/area+", json!({"type": "datashift", "shift_size": "0"})),
        ("/keyslots/1/area+", json!({"type": "datashift", "shift_size": "100"})),
        ("/keyslots/1/area+", json!({"type": "datashift", "shift_size": 512})),
        ("/keyslots/1/area+", json!({"type": "datashift-journal", "shift_size": "100"})),
        ("/keyslots/1/area+", json!({"type": "datashift-checksum", "shift_size": "100"})),
        ("/config/requirements", names(&[])),
        ("/config/requirements", names(&["later"])),
        ("/config/requirements", names(&["offline-reencrypt"])),
        ("/config/requirements", names(&["online-reencrypt"])),
        ("/config/requirements", names(&["online-reencrypt-v3", "later"])),
        ("/config/requirements", names(&["online-reencrypt-v9"])),
        ("/config/requirements", names(&["online-reencrypt", "online-reencrypt-v2"])),
        ("/config/requirements", names(&["online-reencrypt-v2", "online-reencrypt-v2"])),
        ("/config/requirements", names(&["online-reencrypt-v2", "online-reencrypt-v9"])),
        ("/config/requirements", names(&["online-reencrypt-v8", "online-reencrypt-v9"])),
        ("/config/requirements", names(&["online-reencrypt-v2", "offline-reencrypt"])),
        ("/config/requirements", names(&["online-reencrypt-v9x"])),
        ("/config/requirements", names(&["online-reencrypt-v+9"])),
        ("/config/requirements", names(&["online-reencrypt-v99999999999"])),
        ("/config/requirements", names(&["online-reencrypt-v"])),
        ("/config/requirements", names(&["online-reencryption"])),
        ("/segments/0/flags", json!(["in-reencryption"])),
        ("/segments/0/sector_size", json!(4096)),
        ("/segments/0/encryption", json!("aes-cbc-essiv:sha256")),
        ("/segments/0/type", json!("linear")),
        ("/segments/0/offset", json!("131072")),
        ("/segments/1/offset", json!("131072")),
        ("/segments/1/encryption", json!("aes-cbc-essiv:sha256")),
        ("/segments/2/encryption", json!("aes-cbc-essiv:sha256")),
        ("/segments/1/flags", json!(["backup-final"])),
        ("/segments/1/flags", json!(["backup-moved-segment"])),
        ("/segments/2/flags", json!(["backup-final", "backup-previous"])),
        ("/segments/2/flags", json!(["backup-later"])),
    ];
    let mut compare = |what: &str, metadata: &[u8]| {
        let mut image = sound.clone();
        put_json(&mut image, metadata);
        tally.compare(&scratch, what, &image);
    };
    for (path, value) in &edits {
        let mut changed = metadata.clone();
        set(&mut changed, path, value);
        compare(&format!("{path} {value}"), changed.to_string().as_bytes());
    }
    // What one edit breaks, another one may mend.
    for seed in seeds(200) {
        let (mut changed, mut random) = (metadata.clone(), Rng::with_seed(seed));
        for _ in 0..2 {
            let (path, value) = &edits[random.usize(..edits.len())];
            set(&mut changed, path, value);
        }
        compare(&format!("seed {seed}, edits"), changed.to_string().as_bytes());
        compare(&format!("seed {seed}, values"), &mutated(&metadata, &mut random));
    }
    tally.finish();
}

/// Puts a value into the place at `path`, its members if that ends with `+`, and nothing at the empty path.
fn set(metadata: &mut Value, path: &str, value: &Value) {
    if let Some(object) = path.strip_suffix('+') {
        for (name, value) in value.as_object().unwrap() {
            metadata.pointer_mut(object).unwrap()[name] = value.clone();
        }
    } else if let Some((object, name)) = path.rsplit_once('/') {
        // An edit before may have put another object there.
        metadata.pointer_mut(object).unwrap()[name] = value.clone();
    }
}
