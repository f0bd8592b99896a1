//! An image that this command changes, and a copy that cryptsetup changes.
#![allow(dead_code, reason = "each test program uses a part of this module")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};

use super::{CHEAP, Scratch, UCRYPT, code, good, run, stderr, text};

pub(crate) const LUKS2: &[&str] =
    &["--type", "luks2", "--luks2-keyslots-size", "3M", "--offset", "8192"];
pub(crate) const LUKS1: &[&str] = &["--type", "luks1", "--key-size", "256"];

/// The same image twice.
pub(crate) struct Both {
    pub(crate) scratch: Scratch,
    pub(crate) ours: PathBuf,
    pub(crate) theirs: PathBuf,
}

impl Both {
    /// An image that `one` opens, in keyslot 0.
    pub(crate) fn new(kind: &[&str]) -> Self {
        let scratch = Scratch::new();
        let (ours, theirs) = (scratch.make("ours", 5 << 20), scratch.path("theirs"));
        let format = ["luksFormat", "-q", "--key-file", "-", text(&ours)];
        good(&run("cryptsetup", &[&format, kind, CHEAP].concat(), b"one"));
        fs::copy(&ours, &theirs).unwrap();
        Self { scratch, ours, theirs }
    }

    pub(crate) fn file(&self, name: &str, content: &[u8]) -> String {
        let path = self.scratch.path(name);
        fs::write(&path, content).unwrap();
        text(&path).to_owned()
    }

    /// Carries out an action with both programs, in which `IMAGE` stands for the image. The exit
    /// codes and the headers have to be the same afterwards.
    pub(crate) fn act(&self, args: &[&str], stdin: &[u8]) -> [Output; 2] {
        let outputs =
            [(UCRYPT, &self.ours), ("cryptsetup", &self.theirs)].map(|(program, image)| {
                let place = |arg: &&str| {
                    if *arg == "IMAGE" { text(image).to_owned() } else { (*arg).into() }
                };
                let words: Vec<String> = args.iter().map(place).collect();
                run(program, &words.iter().map(String::as_str).collect::<Vec<_>>(), stdin)
            });
        let [ours, theirs] = &outputs;
        let told = format!("{args:?}: {} / {}", stderr(ours), stderr(theirs));
        assert_eq!(code(ours), code(theirs), "{told}");
        assert_eq!(header(&self.ours), header(&self.theirs), "{args:?}");
        for image in [&self.ours, &self.theirs] {
            is_shown_the_same(image);
        }
        outputs
    }

    /// As [`Both::act`], for an action that has to succeed.
    pub(crate) fn does(&self, args: &[&str], stdin: &[u8]) {
        let [ours, _] = self.act(args, stdin);
        assert_eq!(code(&ours), 0, "{args:?}: {}", stderr(&ours));
    }

    /// Checks with both programs, on both images, which passphrases open the volume.
    pub(crate) fn opens(&self, right: &[&str], wrong: &[&str]) {
        for (passphrases, expected) in [(right, 0), (wrong, 2)] {
            for passphrase in passphrases {
                for image in [&self.ours, &self.theirs] {
                    for program in [UCRYPT, "cryptsetup"] {
                        let args = ["open", "--test-passphrase", "--key-file", "-", text(image)];
                        let ran = run(program, &args, passphrase.as_bytes());
                        let name = image.display();
                        let told = format!("{program} {name} {passphrase}: {}", stderr(&ran));
                        assert_eq!(code(&ran), expected, "{told}");
                    }
                }
            }
        }
    }
}

/// Both programs read the same in a header, whoever has written it.
fn is_shown_the_same(image: &Path) {
    for dump in [&["luksDump", text(image)][..], &["luksDump", "--dump-json-metadata", text(image)]]
    {
        let [ours, theirs] = [UCRYPT, "cryptsetup"].map(|program| run(program, dump, b""));
        assert_eq!(code(&ours), code(&theirs), "{dump:?}: {}", stderr(&ours));
        assert!(
            ours.stdout == theirs.stdout,
            "{dump:?}:\n{}\ncryptsetup:\n{}",
            String::from_utf8_lossy(&ours.stdout),
            String::from_utf8_lossy(&theirs.stdout)
        );
    }
}

/// The header as cryptsetup shows it, without what is random.
pub(crate) fn header(image: &Path) -> Value {
    let dump = run("cryptsetup", &["luksDump", "--dump-json-metadata", text(image)], b"");
    if code(&dump) == 0 {
        let mut json: Value = serde_json::from_str(&good(&dump)).unwrap();
        // The order of references has no meaning.
        without_random(&mut json);
        let shown = good(&run("cryptsetup", &["luksDump", text(image)], b""));
        let fields = ["UUID:", "Label:", "Subsystem:"];
        let named = shown.lines().filter(|line| fields.iter().any(|field| line.starts_with(field)));
        return json!({ "metadata": json, "named": named.collect::<Vec<_>>() });
    }
    let shown = good(&run("cryptsetup", &["luksDump", text(image)], b""));
    let fields = ["Key Slot", "\tIterations", "\tKey material", "UUID", "Hash", "MK bits"];
    let kept = shown.lines().filter(|line| fields.iter().any(|field| line.starts_with(field)));
    json!(kept.collect::<Vec<_>>())
}

fn without_random(json: &mut Value) {
    match json {
        Value::Object(members) => {
            for random in ["salt", "digest"] {
                if members.get(random).is_some_and(Value::is_string) {
                    members.remove(random);
                }
            }
            members.values_mut().for_each(without_random);
        }
        Value::Array(items) => {
            items.sort_by_key(ToString::to_string);
            items.iter_mut().for_each(without_random);
        }
        _ => {}
    }
}
