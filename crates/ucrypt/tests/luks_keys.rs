//! The actions that change keys and headers. Each is done by this command on one image and by
//! cryptsetup on a copy of it. The headers are compared field by field, and each program opens what
//! the other one has made.

mod luks;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use luks::both::{Both, LUKS1, LUKS2, header};
use luks::{CHEAP, Scratch, Terminal, UCRYPT, code, good, run, stderr, text, ucrypt};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock, inotify};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

fn cheap(args: &[&'static str]) -> Vec<&'static str> {
    [args, CHEAP, &["IMAGE"]].concat()
}

#[test]
fn keys_are_added_and_removed_as_cryptsetup_does_it() {
    for kind in [LUKS2, LUKS1] {
        let both = Both::new(kind);
        both.does(&cheap(&["luksAddKey"]), b"one\ntwo\n");
        both.does(&cheap(&["luksAddKey", "-S", "6"]), b"two\nsix");
        both.does(&cheap(&["luksAddKey", "--new-key-slot", "4", "--key-slot", "6"]), b"six\nfour");
        both.opens(&["one", "two", "six", "four"], &["five"]);
        // The gap of a removed keyslot is used again.
        both.does(&["luksRemoveKey", "-q", "IMAGE"], b"two");
        both.opens(&["one", "six", "four"], &["two"]);
        both.does(&cheap(&["luksAddKey"]), b"one\nagain");
        both.does(&["luksKillSlot", "IMAGE", "4"], b"six");
        both.does(&["luksDump", "IMAGE"], b"");
        both.opens(&["one", "six", "again"], &["two", "four"]);
        // The passphrase of the keyslot itself does not do, and nothing changes.
        let [ours, _] = both.act(&["luksKillSlot", "IMAGE", "6"], b"six");
        assert_eq!(code(&ours), 2, "{}", stderr(&ours));
        both.does(&["luksKillSlot", "-q", "IMAGE", "6"], b"");
        both.opens(&["one", "again"], &["six"]);
        both.does(&["luksRemoveKey", "IMAGE"], b"one");
        both.does(&["luksRemoveKey", "IMAGE"], b"again");
        let [ours, _] = both.act(&["luksRemoveKey", "IMAGE"], b"again");
        assert_eq!(code(&ours), 1);
    }
}

/// Both programs say each derivation of a keyslot's key with `--debug`.
#[test]
fn adding_and_changing_keys_takes_no_more_derivations_than_cryptsetup() {
    const COSTS: &[&str] =
        &["--pbkdf", "argon2id", "--pbkdf-memory", "1024", "--pbkdf-force-iterations", "4"];
    let both = Both::new(LUKS2);
    // From here on, each keyslot costs memory.
    for image in [&both.ours, &both.theirs] {
        let convert = [&["luksConvertKey"], COSTS, &[text(image)]].concat();
        good(&run("cryptsetup", &convert, b"one"));
    }
    for (args, stdin, needed) in [
        (&["luksAddKey"][..], &b"one\ntwo"[..], 2),
        (&["luksAddKey"], b"two\nthree", 3),
        (&["luksChangeKey"], b"three\nthird", 4),
        (&["luksChangeKey", "-S", "0"], b"one\nfirst", 2),
    ] {
        let args = [args, COSTS, &["--debug", "IMAGE"]].concat();
        let [ours, theirs] =
            [(UCRYPT, &both.ours), ("cryptsetup", &both.theirs)].map(|(program, image)| {
                let place = |arg: &&'static str| if *arg == "IMAGE" { text(image) } else { *arg };
                let ran = run(program, &args.iter().map(place).collect::<Vec<_>>(), stdin);
                good(&ran);
                let said = stderr(&ran) + &String::from_utf8_lossy(&ran.stdout);
                let words = ["# Running keyslot key derivation.", "# Deriving a key with "];
                said.lines().filter(|line| words.iter().any(|word| line.starts_with(word))).count()
            });
        // One for each keyslot that is tried, and one for the new keyslot.
        assert_eq!(ours, needed, "{args:?}");
        assert!(ours <= theirs, "{args:?}: {ours} derivations, cryptsetup {theirs}");
    }
}

#[test]
fn wrong_passphrases_and_numbers_are_refused_with_cryptsetups_codes_and_nothing_changes() {
    for kind in [LUKS2, LUKS1] {
        let both = Both::new(kind);
        let before = fs::read(&both.ours).unwrap();
        for (args, stdin, expected) in [
            (&cheap(&["luksAddKey"])[..], &b"wrong\nnew"[..], 2),
            (&cheap(&["luksChangeKey"]), b"wrong\nnew", 2),
            (&["luksRemoveKey", "-q", "IMAGE"], b"wrong", 2),
            (&["luksKillSlot", "IMAGE", "0"], b"wrong", 2),
            (&["luksKillSlot", "-q", "IMAGE", "0"], b"wrong", 2),
            (&["luksKillSlot", "-q", "IMAGE", "3"], b"", 1),
            (&cheap(&["luksAddKey", "-S", "0"]), b"one\nnew", 1),
            (&cheap(&["luksAddKey", "-S", "32"]), b"one\nnew", 1),
            (&cheap(&["luksAddKey", "--pbkdf", "scrypt"])[..], b"one\nnew", 1),
            (&["luksUUID", "-q", "--uuid", "nonsense", "IMAGE"], b"", 1),
            (&["config", "IMAGE"], b"", 1),
            (&["config", "--priority", "prefer", "-S", "3", "IMAGE"], b"", 1),
        ] {
            // clap refuses an option that stands twice.
            let args: Vec<&str> = if args.contains(&"scrypt") {
                vec!["luksAddKey", "--pbkdf", "scrypt", "IMAGE"]
            } else {
                args.to_vec()
            };
            let [ours, _] = both.act(&args, stdin);
            assert_eq!(code(&ours), expected, "{args:?}: {}", stderr(&ours));
            assert!(fs::read(&both.ours).unwrap() == before, "{args:?} has written");
        }
    }
}

#[test]
fn keys_are_changed_and_converted_as_cryptsetup_does_it() {
    for kind in [LUKS2, LUKS1] {
        let both = Both::new(kind);
        both.does(&cheap(&["luksAddKey"]), b"one\ntwo\n");
        both.does(&cheap(&["luksChangeKey"]), b"one\nuno\n");
        both.opens(&["uno", "two"], &["one"]);
        // cryptsetup overwrites the named keyslot. Here the new key is written beside it.
        for (program, image) in [(UCRYPT, &both.ours), ("cryptsetup", &both.theirs)] {
            let number = if kind == LUKS1 { "2" } else { "0" };
            let change = [&["luksChangeKey", "-S", number], CHEAP, &[text(image)]].concat();
            good(&run(program, &change, b"uno\neins"));
        }
        let numbers = |image| match header(image) {
            Value::Array(lines) => json!(lines),
            json => {
                json!(json["metadata"]["keyslots"].as_object().unwrap().keys().collect::<Vec<_>>())
            }
        };
        assert_eq!(numbers(&both.ours), numbers(&both.theirs));
        both.opens(&["eins", "two"], &["uno"]);
    }
    let both = Both::new(LUKS2);
    both.does(&["token", "add", "--key-description", "text", "IMAGE"], b"");
    let argon2 = ["--pbkdf", "argon2id", "--pbkdf-memory", "64", "--pbkdf-parallel", "1"];
    let forced = ["--pbkdf-force-iterations", "5", "--hash", "sha512", "IMAGE"];
    both.does(&[&["luksConvertKey"], &argon2[..], &forced].concat(), b"one");
    both.opens(&["one"], &["two"]);
    let [ours, _] =
        both.act(&[&["luksConvertKey", "-S", "3"], &argon2[..], &forced].concat(), b"one");
    assert_eq!(code(&ours), 1);
    let cipher = ["--keyslot-cipher", "aes-cbc-essiv:sha256", "--keyslot-key-size", "128"];
    both.does(&[&["luksAddKey"], &cipher[..], CHEAP, &["IMAGE"]].concat(), b"one\ntwo");
    both.opens(&["one", "two"], &[]);
}

#[test]
fn a_changed_key_keeps_its_priority() {
    let both = Both::new(LUKS2);
    good(&ucrypt(&["config", "--priority", "prefer", "-S", "0", text(&both.ours)], b""));
    let change = [&["luksChangeKey"], CHEAP, &[text(&both.ours)]].concat();
    good(&ucrypt(&change, b"one\nuno"));
    let shown = good(&run("cryptsetup", &["luksDump", text(&both.ours)], b""));
    assert!(shown.contains("Priority:   preferred"), "{shown}");
}

#[test]
fn key_files_and_volume_keys_are_cut_as_cryptsetup_cuts_them() {
    for kind in [LUKS2, LUKS1] {
        let both = Both::new(kind);
        let old = both.file("old", b"xxoneyy");
        let new = both.file("new", b"12345678");
        let args =
            ["luksAddKey", "--key-file", &old, "--keyfile-offset", "2", "--keyfile-size", "3"];
        let part = ["--new-keyfile-offset", "1", "--new-keyfile-size", "4", "IMAGE", &new];
        both.does(&[&args, CHEAP, &part[..]].concat(), b"");
        both.opens(&["one", "2345"], &["12345678"]);
        let named = ["luksAddKey", "--new-keyfile", &new, "IMAGE"];
        both.does(&[&named, CHEAP].concat(), b"one\n");
        both.opens(&["12345678"], &[]);

        let key = both.scratch.path("volume-key");
        let dump = ["luksDump", "-q", "--dump-volume-key", "--volume-key-file", text(&key)];
        good(&run("cryptsetup", &[&dump[..], &[text(&both.ours)]].concat(), b"one"));
        let with_key = ["luksAddKey", "--volume-key-file", text(&key), "IMAGE", &old];
        both.does(&[&with_key, CHEAP].concat(), b"");
        both.opens(&["xxoneyy"], &[]);
        // The volume key alone is enough, even with no keyslot left.
        both.does(&["erase", "-q", "IMAGE"], b"");
        let bits = if kind == LUKS1 { "256" } else { "512" };
        let again = ["luksAddKey", "--key-size", bits, "--volume-key-file", text(&key), "IMAGE"];
        both.does(&[&again, CHEAP, &[&old]].concat(), b"");
        both.opens(&["xxoneyy"], &["one"]);
        let wrong = both.file("wrong-key", &[7; 64]);
        let wrong = ["luksAddKey", "--key-size", bits, "--volume-key-file", &wrong, "IMAGE", &old];
        let [ours, _] = both.act(&[&wrong, CHEAP].concat(), b"");
        assert_ne!(code(&ours), 0);
    }
}

/// PBKDF2 gives a key and the same key with a zero byte behind it the same digest.
#[test]
fn a_volume_key_with_zero_bytes_behind_it_is_refused() {
    let both = Both::new(LUKS1);
    let key = both.scratch.path("volume-key");
    let image = text(&both.ours);
    let dump = ["luksDump", "-q", "--dump-volume-key", "--volume-key-file", text(&key), image];
    good(&run("cryptsetup", &dump, b"one"));
    let longer = both.file("longer", &[fs::read(&key).unwrap(), vec![0; 8]].concat());
    for kind in ["luks1", "luks2"] {
        if kind == "luks2" {
            good(&run("cryptsetup", &["convert", "-q", "--type", "luks2", image], b""));
        }
        let new = both.file("new", b"new");
        let args = ["luksAddKey", "--key-size", "320", "--volume-key-file", &longer, image, &new];
        let ran = ucrypt(&[&args[..], CHEAP].concat(), b"");
        assert_eq!(code(&ran), 2, "{kind}: {}", stderr(&ran));
        assert!(stderr(&ran).contains("volume key does not match"), "{}", stderr(&ran));
    }
}

#[test]
fn unbound_keys_have_a_digest_of_their_own_and_go_with_it() {
    let both = Both::new(LUKS2);
    let new = both.file("new", b"other");
    let unbound = ["luksAddKey", "--unbound", "--key-size", "256", "-S", "5", "IMAGE", &new];
    both.does(&[&unbound, CHEAP].concat(), b"");
    let json = header(&both.ours);
    assert_eq!(json["metadata"]["digests"]["1"]["keyslots"], json!(["5"]));
    // Its passphrase is tried if its number is given, or with --unbound.
    for (options, passphrase, expected) in [
        (&["-S", "5"][..], "other", 0),
        (&["--unbound"], "other", 0),
        (&["--unbound"], "one", 0),
        (&["-S", "0", "--unbound"], "one", 0),
        (&["-S", "5"], "one", 2),
        (&["-S", "6"], "other", 1),
    ] {
        let open = [&["open", "--test-passphrase"], options, &["IMAGE"]].concat();
        let [ours, _] = both.act(&open, passphrase.as_bytes());
        assert_eq!(code(&ours), expected, "{options:?}: {}", stderr(&ours));
    }
    // It opens nothing of the volume.
    assert_ne!(code(&ucrypt(&["open", "--test-passphrase", text(&both.ours)], b"other")), 0);
    both.does(&cheap(&["luksChangeKey"]), b"other\nanother");
    both.does(&["luksKillSlot", "-q", "IMAGE", "5"], b"");
    assert_eq!(header(&both.ours)["metadata"]["digests"]["1"], Value::Null);
    both.opens(&["one"], &["other"]);
    // Its passphrase removes it too, which cryptsetup 2.6 refuses.
    both.does(&[&unbound[..], CHEAP].concat(), b"");
    good(&ucrypt(&["luksRemoveKey", text(&both.ours)], b"other"));
    assert_eq!(header(&both.ours)["metadata"]["keyslots"]["5"], Value::Null);
}

/// What both programs print, where only the name of the image may differ, and the key in the file.
fn dumped(image: &str, key: &Path, args: &[&str], stdin: &[u8]) -> [(i32, String, Vec<u8>); 2] {
    [UCRYPT, "cryptsetup"].map(|program| {
        let _ = fs::remove_file(key);
        let ran = run(program, &[&["luksDump"], args, &[image]].concat(), stdin);
        let said = String::from_utf8(ran.stdout.clone()).unwrap();
        (code(&ran), said, fs::read(key).unwrap_or_default())
    })
}

#[test]
fn keys_are_dumped_as_cryptsetup_dumps_them() {
    for kind in [LUKS2, LUKS1] {
        let both = Both::new(kind);
        let is_luks2 = kind == LUKS2;
        let image = text(&both.ours);
        let (one, long) = (both.file("one", b"one"), both.file("long", b"xxoneyy"));
        let (other, secret) = (both.file("other", b"other"), both.file("secret", &[7; 24]));
        if is_luks2 {
            let unbound = ["luksAddKey", "-q", "--unbound", "-s", "192", "-S", "5"];
            let from = ["--volume-key-file", &secret, image, &other];
            good(&run("cryptsetup", &[&unbound, CHEAP, &from[..]].concat(), b""));
        }
        let key = both.scratch.path("key");
        let place = text(&key);
        let (same, another) = if is_luks2 { ("luks2", "luks1") } else { ("luks1", "luks2") };
        let unbound = i32::from(!is_luks2);
        let volume = "--dump-volume-key";
        for (args, stdin, expected) in [
            (&[volume][..], &b"one"[..], 0),
            (&[volume], b"one\nmore", 0),
            (&[volume], b"wrong", 2),
            (&[volume], b"", 1),
            (&["-q", volume, "--key-file", "-"], b"one", 0),
            (&["-q", volume, "--key-file", &one], b"", 0),
            (&[volume, "-d", &long, "--keyfile-offset", "2", "--keyfile-size", "3"], b"", 0),
            (&[volume, "-d", &long], b"", 2),
            (&[volume, "-d", "/nonexistent"], b"", 1),
            (&["--dump-master-key", "--timeout", "3", "-S", "0"], b"one", 0),
            (&[volume, "--type", same], b"one", 0),
            (&[volume, "--type", another], b"one", 1),
            (&["--type", same], b"", 0),
            (&["--type", another], b"", 1),
            (&["-q", volume, "--volume-key-file", place], b"one", 0),
            (&[volume, "--volume-key-file", place, "-d", &one], b"", 0),
            (&[volume, "--volume-key-file", place], b"wrong", 2),
            (&[volume, "--volume-key-file", "/nonexistent/key"], b"one", 1),
            (&["--unbound", "-S", "5"], b"other", unbound),
            (&["-q", "--unbound", "-S", "5", "--key-file", &other], b"", unbound),
            (&["--unbound", "-S", "5", "--volume-key-file", place], b"other", unbound),
            (&["--unbound", "-S", "5"], b"one", if is_luks2 { 2 } else { 1 }),
            (&["--unbound", "-S", "0"], b"one", 1),
            (&["--unbound", "-S", "6"], b"one", 1),
            (&["--unbound", "-S", "99"], b"one", 1),
            (&["--unbound"], b"other", 1),
        ] {
            let [ours, theirs] = dumped(image, &key, args, stdin);
            assert_eq!(ours.0, expected, "{same}: {args:?}");
            // Beside an unbound keyslot, cryptsetup 2.6 has the code 1 for a wrong passphrase too.
            let known = if is_luks2 && expected == 2 { [1, 2] } else { [expected; 2] };
            assert!(known.contains(&theirs.0), "{same}: {args:?}: {}", theirs.0);
            if expected == 0 {
                assert_eq!(ours, theirs, "{same}: {args:?}");
            } else {
                assert!(ours.1.is_empty() && ours.2.is_empty(), "{same}: {args:?}: {}", ours.1);
            }
        }
        // The file is new, nobody else can read it, and JSON has the same key.
        let mode = || fs::metadata(&key).unwrap().permissions().mode() & 0o777;
        let dump = |args: &[&str]| {
            ucrypt(&[&["luksDump", volume, "-q", image, "-d", &one], args].concat(), b"")
        };
        let _ = fs::remove_file(&key);
        good(&dump(&["--volume-key-file", place]));
        assert_eq!(mode(), 0o400);
        assert_eq!(code(&dump(&["--volume-key-file", place])), 1);
        let bytes = fs::read(&key).unwrap();
        let hex = bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        let shown: Value = serde_json::from_str(&good(&dump(&["--json"]))).unwrap();
        assert_eq!((&shown["volume_key"], &shown["keyslot"]), (&json!(hex), &json!(0)));
        assert_eq!(shown["key_bits"], json!(8 * bytes.len()));
        let _ = fs::remove_file(&key);
        let told = good(&dump(&["--json", "--volume-key-file", place]));
        let shown: Value = serde_json::from_str(&told).unwrap();
        assert!(shown["volume_key_file"] == place && !told.contains(&hex), "{told}");
        assert_eq!(fs::read(&key).unwrap(), bytes);
        if is_luks2 {
            let args = ["luksDump", "--json", "--unbound", "-S", "5", image];
            let shown: Value = serde_json::from_str(&good(&ucrypt(&args, b"other"))).unwrap();
            assert_eq!(shown["unbound_key"], json!("07".repeat(24)));
        }
    }
}

/// Costs that are forced: the same limits and, in a refusal, the same words.
#[test]
fn forced_costs_have_cryptsetups_limits_and_words() {
    let argon2 = |memory, passes| {
        let costs = ["--pbkdf-memory", memory, "--pbkdf-force-iterations", passes];
        [&["--pbkdf", "argon2id"][..], &costs].concat()
    };
    let pbkdf2 = |count| vec!["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", count];
    let both = Both::new(LUKS2);
    for (costs, expected) in [
        (argon2("32", "4"), 0),
        (argon2("33", "5"), 0),
        ([argon2("32", "4"), vec!["--pbkdf-parallel", "1"]].concat(), 0),
        // 0 is the default.
        ([argon2("32", "4"), vec!["--pbkdf-parallel", "0"]].concat(), 0),
        // No more than the machine has, and 4 at most.
        ([argon2("64", "4"), vec!["--pbkdf-parallel", "99"]].concat(), 0),
        (argon2("31", "4"), 1),
        (argon2("32", "3"), 1),
        (argon2("31", "3"), 1),
        (argon2("4194305", "4"), 1),
        (argon2("4194305", "0"), 1),
        (argon2("-1", "4"), 1),
        (argon2("4294967296", "4"), 1),
        (pbkdf2("1000"), 0),
        (pbkdf2("999"), 1),
        (pbkdf2("0"), 1),
        (pbkdf2("-1"), 1),
        (pbkdf2("4294967296"), 1),
        (pbkdf2("0x400"), 1),
        (pbkdf2("1k"), 1),
        (pbkdf2(""), 1),
        ([pbkdf2("1000"), vec!["--pbkdf-memory", "1"]].concat(), 0),
        ([pbkdf2("1000"), vec!["--iter-time", "100"]].concat(), 1),
        (vec!["--pbkdf", "pbkdf2", "--iter-time", "4294967296"], 1),
        (vec!["--pbkdf", "scrypt", "--pbkdf-force-iterations", "1000"], 1),
    ] {
        let change = [&["luksChangeKey"], &costs[..], &["IMAGE"]].concat();
        let [ours, theirs] = both.act(&change, b"one\none");
        assert_eq!(code(&ours), expected, "{costs:?}: {}", stderr(&ours));
        let said = stderr(&theirs);
        let words =
            said.lines().filter(|l| ["Forced ", "Requested "].iter().any(|w| l.starts_with(w)));
        for line in words {
            let words = line[1..].trim_end_matches('.');
            assert!(stderr(&ours).contains(words), "{costs:?}: {words}: {}", stderr(&ours));
        }
    }
    both.opens(&["one"], &[]);
    let one = Both::new(LUKS1);
    for (costs, expected) in [(pbkdf2("999"), 1), (argon2("32", "4"), 1), (pbkdf2("1001"), 0)] {
        let [ours, _] = one.act(&[&["luksAddKey"], &costs[..], &["IMAGE"]].concat(), b"one\ntwo");
        assert_eq!(code(&ours), expected, "{costs:?}: {}", stderr(&ours));
    }
}

#[test]
fn labels_priorities_and_uuids_are_those_of_cryptsetup() {
    let both = Both::new(LUKS2);
    both.does(&["config", "--label", "a label", "--subsystem", "s", "IMAGE"], b"");
    for priority in ["prefer", "ignore", "normal"] {
        both.does(&["config", "--priority", priority, "-S", "0", "IMAGE"], b"");
    }
    let uuid = "01234567-89AB-cdef-0123-456789abcdef";
    both.does(&["luksUUID", "-q", "--uuid", uuid, "IMAGE"], b"");
    assert_eq!(good(&ucrypt(&["luksUUID", text(&both.ours)], b"")), uuid.to_lowercase() + "\n");
    let json = good(&ucrypt(&["luksUUID", "--json", text(&both.ours)], b""));
    assert_eq!(json, format!("{{\"uuid\":\"{}\"}}\n", uuid.to_lowercase()));
    both.opens(&["one"], &[]);
    // One label does not remove the other.
    good(&ucrypt(&["config", "--label", "new", text(&both.ours)], b""));
    let shown = good(&run("cryptsetup", &["luksDump", text(&both.ours)], b""));
    assert!(
        shown.contains("Label:         \tnew") && shown.contains("Subsystem:     \ts"),
        "{shown}"
    );
    let both = Both::new(LUKS1);
    both.does(&["luksUUID", "-q", "--uuid", uuid, "IMAGE"], b"");
    let [ours, _] = both.act(&["config", "--label", "x", "IMAGE"], b"");
    assert!(stderr(&ours).contains("LUKS1"), "{}", stderr(&ours));
}

#[test]
fn tokens_are_kept_stored_and_assigned_as_cryptsetup_does_it() {
    let both = Both::new(LUKS2);
    both.does(&cheap(&["luksAddKey"]), b"one\ntwo\n");
    both.does(&["token", "add", "--key-description", "text", "IMAGE"], b"");
    both.does(
        &["token", "add", "--key-description", "two", "-S", "1", "--token-id", "7", "IMAGE"],
        b"",
    );
    let foreign = br#"{"type":"example-tpm2","keyslots":["1"],"tpm2-blob":"AAA=","n":[1,2.5,{}]}"#;
    both.does(&["token", "import", "IMAGE"], foreign);
    let file = both.file("token", br#"{"type":"other","keyslots":[],"x":1}"#);
    both.does(
        &["token", "import", "--json-file", &file, "--token-id", "3", "-S", "0", "IMAGE"],
        b"",
    );
    for id in ["0", "1", "3", "7"] {
        let [ours, theirs] = both.act(&["token", "export", "--token-id", id, "IMAGE"], b"");
        assert_eq!(good(&ours), good(&theirs));
    }
    both.does(&["token", "unassign", "--token-id", "0", "-S", "1", "IMAGE"], b"");
    both.does(&["token", "remove", "--token-id", "7", "IMAGE"], b"");
    for (args, stdin) in [
        (
            &["token", "import", "--token-id", "0", "IMAGE"][..],
            &b"{\"type\":\"x\",\"keyslots\":[]}"[..],
        ),
        (&["token", "import", "IMAGE"], b"{\"type\":\"x\",\"keyslots\":[\"9\"]}"),
        (&["token", "import", "IMAGE"], b"{\"keyslots\":[]}"),
        (&["token", "import", "IMAGE"], b"no JSON"),
        (&["token", "remove", "--token-id", "9", "IMAGE"], b""),
        (&["token", "add", "IMAGE"], b""),
    ] {
        assert_eq!(code(&both.act(args, stdin)[0]), 1, "{args:?}");
    }
    let replace = ["token", "import", "--token-replace", "--token-id", "0", "IMAGE"];
    both.does(&replace, br#"{"type":"replaced","keyslots":[]}"#);
    both.does(&["token", "add", "--key-description", "free", "--unbound", "IMAGE"], b"");
    for args in [
        &["token", "add", "--key-description", "free", "--unbound", "-S", "0", "IMAGE"][..],
        &["token", "remove", "--token-id", "0", "--unbound", "IMAGE"],
    ] {
        assert_eq!(code(&both.act(args, b"")[0]), 1, "{args:?}");
    }
    // A keyslot that goes takes its assignments with it, and the tokens stay.
    both.does(&["luksKillSlot", "-q", "IMAGE", "1"], b"");
    both.opens(&["one"], &["two"]);
}

#[test]
fn backups_are_cryptsetups_byte_for_byte_and_restore_what_was_erased() {
    for kind in [LUKS2, LUKS1] {
        let both = Both::new(kind);
        let (ours, theirs) = (both.scratch.path("a"), both.scratch.path("b"));
        let backup = |program, file: &PathBuf| {
            let args = ["luksHeaderBackup", "--header-backup-file", text(file), text(&both.ours)];
            run(program, &args, b"")
        };
        good(&backup(UCRYPT, &ours));
        good(&backup("cryptsetup", &theirs));
        assert!(fs::read(&ours).unwrap() == fs::read(&theirs).unwrap());
        for file in [&ours, &theirs] {
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o400);
        }
        let again = backup(UCRYPT, &ours);
        assert!(code(&again) == 1 && stderr(&again).contains("already exists"));

        let before = fs::read(&both.ours).unwrap();
        both.does(&["erase", "-q", "IMAGE"], b"");
        for passphrase in [&b"one"[..], b"two"] {
            let ran = ucrypt(&["open", "--test-passphrase", text(&both.ours)], passphrase);
            assert_eq!(code(&ran), 1, "{}", stderr(&ran));
        }
        both.does(&["luksHeaderRestore", "-q", "--header-backup-file", text(&ours), "IMAGE"], b"");
        assert!(fs::read(&both.ours).unwrap() == before);
        both.opens(&["one"], &["two"]);
    }
}

/// The keyslots area has room for a single keyslot, and both headers have one.
#[test]
fn a_restore_without_room_for_two_keyslots_saves_the_old_header_first() {
    let scratch = Scratch::new();
    let image = scratch.make("small", 5 << 20);
    let (image, key) = (text(&image), scratch.path("key"));
    let format = [&["luksFormat", "-q", "--luks2-keyslots-size", "256k"], CHEAP].concat();
    good(&ucrypt(&[&format[..], &["--offset", "8192", image]].concat(), b"one"));
    let dump = ["luksDump", "-q", "--dump-volume-key", "--volume-key-file", text(&key), image];
    good(&ucrypt(&dump, b"one"));
    let (backup, saved) = (scratch.path("backup"), scratch.path("saved"));
    good(&ucrypt(&["luksHeaderBackup", "--header-backup-file", text(&backup), image], b""));
    let again = ["--offset", "8192", "--volume-key-file", text(&key), image];
    good(&ucrypt(&[&format[..], &again].concat(), b"new"));
    let before = fs::read(image).unwrap();
    let opens = |passphrase: &[u8]| {
        let test = ["open", "--test-passphrase", image];
        [UCRYPT, "cryptsetup"].map(|program| code(&run(program, &test, passphrase)))
    };
    let restore = ["luksHeaderRestore", "-q", "--header-backup-file", text(&backup), image];
    let ran = ucrypt(&restore, b"");
    let told = ["no room", "--old-header-file FILE", "gets that header back"];
    assert_eq!(code(&ran), 1, "{}", stderr(&ran));
    assert!(told.iter().all(|words| stderr(&ran).contains(words)), "{}", stderr(&ran));
    assert!(fs::read(image).unwrap() == before);
    // What is there already and is no saved header of this volume is not touched.
    fs::write(&saved, b"something else").unwrap();
    let with_file = [&restore[..], &["--old-header-file", text(&saved)]].concat();
    let ran = ucrypt(&with_file, b"");
    assert!(
        code(&ran) == 1 && stderr(&ran).contains("exists and does not hold the keys of the header"),
        "{}",
        stderr(&ran)
    );
    assert!(fs::read(&saved).unwrap() == b"something else" && fs::read(image).unwrap() == before);
    fs::remove_file(&saved).unwrap();
    good(&ucrypt(&with_file, b""));
    assert_eq!((opens(b"one"), opens(b"new")), ([0, 0], [2, 2]));
    // Run again, as after an interruption: the saved header stays.
    let first = fs::read(&saved).unwrap();
    good(&ucrypt(&with_file, b""));
    assert!(fs::read(&saved).unwrap() == first);
    // A header that is another one by now is not taken for saved.
    good(&ucrypt(&[&format[..], &again].concat(), b"later"));
    let later = fs::read(image).unwrap();
    for (file, why) in [
        (text(&saved), "does not hold the keys of the header"),
        (text(&backup), "is the backup; name a new file"),
        (image, "is the header that is overwritten; name a new file"),
    ] {
        let ran = ucrypt(&[&restore[..], &["--old-header-file", file]].concat(), b"");
        assert!(code(&ran) == 1 && stderr(&ran).contains(why), "{}", stderr(&ran));
        assert!(fs::read(image).unwrap() == later && fs::read(&saved).unwrap() == first);
    }
    let back = ["luksHeaderRestore", "-q", "--header-backup-file", text(&saved)];
    let other = scratch.path("other");
    good(&ucrypt(&[&back[..], &["--old-header-file", text(&other), image]].concat(), b""));
    assert_eq!((opens(b"one"), opens(b"new")), ([2, 2], [0, 0]));
    assert!(fs::read(image).unwrap() == before);
}

/// Regression: the way out of a damaged header was refused for want of room for the damaged one.
#[test]
fn a_restore_over_a_damaged_header_asks_for_nothing() {
    let scratch = Scratch::new();
    for size in ["256k", "1M"] {
        let image = scratch.make("damaged", 6 << 20);
        let (image, backup) = (text(&image), scratch.path(&format!("backup-{size}")));
        let format = ["luksFormat", "-q", "--luks2-keyslots-size", size, "--offset", "8192", image];
        good(&ucrypt(&[&format[..], CHEAP].concat(), b"one"));
        good(&ucrypt(&["luksHeaderBackup", "--header-backup-file", text(&backup), image], b""));
        let before = fs::read(image).unwrap();
        // The first copy is gone; another file system lies over it; both are gone.
        for (lost, magic) in [(0..4096, None), (0..4096, Some(0x438)), (0..32768, None)] {
            let mut bytes = before.clone();
            bytes[lost].fill(0);
            if let Some(at) = magic {
                bytes[at..at + 2].copy_from_slice(&0xef53_u16.to_le_bytes());
            }
            fs::write(image, &bytes).unwrap();
            let restore = ["luksHeaderRestore", "-q", "--header-backup-file"];
            let from = |file| [&restore[..], &[text(file)]].concat();
            if magic.is_some() {
                // What is saved beforehand can be restored, too.
                let saved = scratch.path(&format!("saved-{size}"));
                let option = ["--old-header-file", text(&saved), image];
                good(&ucrypt(&[&from(&backup)[..], &option].concat(), b""));
                fs::write(image, &bytes).unwrap();
                good(&ucrypt(&[&from(&saved)[..], &[image]].concat(), b""));
            } else {
                good(&ucrypt(&[&from(&backup)[..], &[image]].concat(), b""));
            }
            let test = ["open", "--test-passphrase", image];
            for program in [UCRYPT, "cryptsetup"] {
                assert_eq!(code(&run(program, &test, b"one")), 0, "{size}, {magic:?}: {program}");
            }
        }
    }
}

/// The header names where the data begins in another file, which may be behind the header's end.
#[test]
fn a_detached_header_is_restored_wherever_its_data_begins() {
    for kind in [&["--type", "luks1"][..], &["--luks2-keyslots-size", "3M"]] {
        let scratch = Scratch::new();
        let (data, place) = (scratch.make("data", 1 << 20), scratch.path("header"));
        let at = ["--header", text(&place), text(&data)];
        let format = ["luksFormat", "-q", "--offset", "65536"];
        good(&ucrypt(&[&format[..], kind, CHEAP, &at].concat(), b"one"));
        let before = fs::read(&place).unwrap();
        assert!(before.len() < 65_536 * 512, "{}", before.len());
        let backup = scratch.path("backup");
        let file = ["--header-backup-file", text(&backup)];
        good(&ucrypt(&[&["luksHeaderBackup"], &file[..], &at].concat(), b""));
        good(&ucrypt(&[&["erase", "-q"], &at[..]].concat(), b""));
        good(&ucrypt(&[&["luksHeaderRestore", "-q"], &file[..], &at].concat(), b""));
        assert!(fs::read(&place).unwrap() == before, "{kind:?}");
    }
}

#[test]
fn a_backup_that_does_not_fit_is_refused_and_nothing_changes() {
    let scratch = Scratch::new();
    let image = |name: &str, args: &[&str]| {
        let path = scratch.make(name, 5 << 20);
        let format = ["luksFormat", "-q", "--key-file", "-", text(&path)];
        good(&run("cryptsetup", &[&format, args, CHEAP].concat(), b"one"));
        path
    };
    let base = image("base", LUKS2);
    let backup = scratch.path("backup");
    let save = ["luksHeaderBackup", "--header-backup-file", text(&backup), text(&base)];
    good(&ucrypt(&save, b""));
    let whole = fs::read(&backup).unwrap();
    let other = [LUKS2, &["--key-size", "256"]].concat();
    let offset = ["--type", "luks2", "--luks2-keyslots-size", "3M", "--offset", "7168"];
    let small = scratch.make("small", 1 << 20);
    for (target, words) in [
        (image("key", &other), "differs"),
        (image("offset", &offset), "differs"),
        (small, "larger than its image"),
    ] {
        let before = fs::read(&target).unwrap();
        let restore =
            ["luksHeaderRestore", "-q", "--header-backup-file", text(&backup), text(&target)];
        let ran = ucrypt(&restore, b"");
        assert!(code(&ran) == 1 && stderr(&ran).contains(words), "{}", stderr(&ran));
        assert!(fs::read(&target).unwrap() == before);
    }
    for (content, words) in
        [(&whole[..whole.len() - 1], "truncated"), (&[0; 9000], "no LUKS header")]
    {
        fs::write(&backup, content).unwrap();
        let restore =
            ["luksHeaderRestore", "-q", "--header-backup-file", text(&backup), text(&base)];
        let ran = ucrypt(&restore, b"");
        assert!(code(&ran) == 1 && stderr(&ran).contains(words), "{}", stderr(&ran));
    }
    good(&ucrypt(&["open", "--test-passphrase", text(&base)], b"one"));
}

#[test]
fn repair_writes_the_damaged_copy_again_and_says_so() {
    let both = Both::new(LUKS2);
    let ran = ucrypt(&["repair", text(&both.ours)], b"");
    good(&ran);
    assert!(stderr(&ran).contains("No known problems"), "{}", stderr(&ran));
    let before = header(&both.ours);
    for at in [4200, 0x4000 + 4200] {
        let mut image = fs::read(&both.ours).unwrap();
        image[at] ^= 1;
        fs::write(&both.ours, &image).unwrap();
        let ran = ucrypt(&["repair", "-q", text(&both.ours)], b"");
        good(&ran);
        assert!(stderr(&ran).contains("it was written again"), "{}", stderr(&ran));
        let ran = ucrypt(&["repair", text(&both.ours)], b"");
        assert!(stderr(&ran).contains("No known problems"), "{}", stderr(&ran));
        assert_eq!(header(&both.ours), before);
    }
    // Beside a foreign signature, nothing but this writes over the copy.
    let (mut image, md) = (fs::read(&both.ours).unwrap(), (5 << 20) - 0x2000);
    image[4200] ^= 1;
    image[md..md + 8].copy_from_slice(b"\xfc\x4e\x2b\xa9\x01\0\0\0");
    fs::write(&both.ours, &image).unwrap();
    let test = ["open", "--test-passphrase", text(&both.ours)];
    let ran = ucrypt(&test, b"one");
    assert!(code(&ran) == 1 && stderr(&ran).contains("\"ucrypt repair\""), "{}", stderr(&ran));
    let mut terminal = Terminal::start(&["repair", text(&both.ours)]);
    terminal.expect("There is the signature of linux_raid_member", "no\n");
    assert_eq!(terminal.end().0, 1);
    assert!(fs::read(&both.ours).unwrap() == image);
    good(&ucrypt(&["repair", "-q", text(&both.ours)], b""));
    good(&ucrypt(&test, b"one"));
    // A keyslot of LUKS1 that is neither active nor inactive is named, and nothing is written.
    let both = Both::new(LUKS1);
    good(&ucrypt(&["repair", text(&both.ours)], b""));
    let mut image = fs::read(&both.ours).unwrap();
    image[208 + 48 + 1] ^= 1;
    fs::write(&both.ours, &image).unwrap();
    let ran = ucrypt(&["repair", "-q", text(&both.ours)], b"");
    assert!(code(&ran) == 1 && stderr(&ran).contains("keyslot 1: its state"), "{}", stderr(&ran));
    assert!(fs::read(&both.ours).unwrap() == image);
}

/// A copy that is damaged on both images.
#[test]
fn a_repair_leaves_what_cryptsetups_leaves() {
    for at in [4200, 0x4000 + 4200] {
        let both = Both::new(LUKS2);
        for image in [&both.ours, &both.theirs] {
            let mut bytes = fs::read(image).unwrap();
            bytes[at] ^= 1;
            fs::write(image, &bytes).unwrap();
        }
        // Not by `does`: looking at a header, cryptsetup would repair it.
        good(&ucrypt(&["repair", "-q", text(&both.ours)], b""));
        good(&run("cryptsetup", &["repair", "-q", text(&both.theirs)], b""));
        // The copies differ in what is random: their salts and checksums.
        let copies = |image: &Path| {
            let mut bytes = fs::read(image).unwrap();
            for copy in bytes[..0x8000].chunks_mut(0x4000) {
                copy[104..168].fill(0);
                copy[448..512].fill(0);
            }
            bytes
        };
        assert!(copies(&both.ours) == copies(&both.theirs), "at {at}");
        for image in [&both.ours, &both.theirs] {
            let ran = ucrypt(&["luksDump", text(image)], b"");
            assert!(code(&ran) == 0 && ran.stderr.is_empty(), "{}", stderr(&ran));
        }
        both.opens(&["one"], &["two"]);
    }
}

#[test]
fn detached_headers_are_changed_and_the_data_left_alone() {
    for kind in ["luks1", "luks2"] {
        let scratch = Scratch::new();
        let (image, place) = (scratch.make("data", 1 << 20), scratch.path("header"));
        let args = ["luksFormat", "-q", "--type", kind, "--header", text(&place), text(&image)];
        good(&ucrypt(&[&args[..], CHEAP].concat(), b"one"));
        let before = fs::read(&image).unwrap();
        let at = ["--header", text(&place), text(&image)];
        good(&ucrypt(&[&["luksAddKey"], CHEAP, &at].concat(), b"one\ntwo"));
        good(&ucrypt(&[&["luksChangeKey"], CHEAP, &at].concat(), b"one\nuno"));
        good(&ucrypt(&[&["luksRemoveKey"], &at[..]].concat(), b"two"));
        let open = [&["open", "--test-passphrase"], &at[..]].concat();
        good(&run("cryptsetup", &open, b"uno"));
        assert_eq!(code(&run("cryptsetup", &open, b"one")), 2);
        assert!(fs::read(&image).unwrap() == before);
        let key = scratch.path("key");
        for args in [
            &["-q", "--dump-volume-key", "--header", text(&place)][..],
            &["-q", "--dump-volume-key", "--header", text(&place), "--volume-key-file", text(&key)],
        ] {
            let [ours, theirs] = dumped(text(&image), &key, args, b"uno");
            assert!(ours.0 == 0 && ours == theirs, "{args:?}: {ours:?} / {theirs:?}");
        }
    }
}

#[test]
fn a_rotation_says_what_it_did_and_can_be_run_again() {
    for kind in [LUKS2, LUKS1] {
        let both = Both::new(kind);
        let (old, new) = (both.file("old", b"one"), both.file("new", b"new"));
        let image = text(&both.ours);
        let args = ["luksRotateKey", "--json", "--key-file", &old, "--new-keyfile", &new, image];
        let rotate = || ucrypt(&[&args[..], CHEAP].concat(), b"");
        let told = |ran: &Output| serde_json::from_str::<Value>(&good(ran)).unwrap();
        let first = told(&rotate());
        let found = json!({ "old": [0], "new": null });
        assert_eq!((&first["found"], &first["added"]), (&found, &json!(1)));
        assert_eq!((&first["verified"], &first["retired"]), (&json!(1), &json!([0])));
        let after = fs::read(&both.ours).unwrap();
        let second = told(&rotate());
        assert_eq!(second["found"], json!({ "old": [], "new": 1 }));
        assert_eq!((&second["added"], &second["retired"]), (&Value::Null, &json!([])));
        assert!(fs::read(&both.ours).unwrap() == after, "the second run has written");
        let test = ["open", "--test-passphrase", image];
        good(&run("cryptsetup", &test, b"new"));
        assert_eq!(code(&run("cryptsetup", &test, b"one")), 2);
        let wrong = ["luksRotateKey", "--key-file", &old, "--new-keyfile", &old, image];
        assert_eq!(code(&ucrypt(&[&wrong[..], CHEAP].concat(), b"")), 1);
        let other = both.file("other", b"neither");
        let wrong = ["luksRotateKey", "--key-file", &old, "--new-keyfile", &other, image];
        assert_eq!(code(&ucrypt(&[&wrong[..], CHEAP].concat(), b"")), 2);
        assert!(fs::read(&both.ours).unwrap() == after);
    }
}

/// The passphrase opens the volume when it is given, and its keyslot is gone when the lock is free.
/// The keys are replaced by then.
/// PBKDF2 takes a key that ends in zero bytes for the one without them. cryptsetup makes such a change, after which the
/// old passphrase still opens.
#[test]
fn a_key_is_not_changed_to_one_that_the_old_passphrase_opens_too() {
    for kind in [LUKS2, LUKS1] {
        let both = Both::new(kind);
        let (old, new) = (both.file("old", b"one"), both.file("new", b"one\0"));
        let before = fs::read(&both.ours).unwrap();
        for action in ["luksChangeKey", "luksRotateKey"] {
            let line = [action, "-q", "--key-file", &old, "--new-keyfile", &new, text(&both.ours)];
            let ran = ucrypt(&[&line[..], CHEAP].concat(), b"");
            let told = stderr(&ran);
            assert!(code(&ran) == 1 && told.contains("the new key is the old one"), "{told}");
            assert!(fs::read(&both.ours).unwrap() == before, "{action}: something was written");
        }
        // Whoever names the same one gets a keyslot with other costs, as with cryptsetup.
        let same = ["luksChangeKey", "-q", "--key-file", &old, "--new-keyfile", &old];
        good(&ucrypt(&[&same[..], CHEAP, &[text(&both.ours)]].concat(), b""));
    }
}

#[test]
fn a_rotation_without_a_standard_output_is_no_failure() {
    let both = Both::new(LUKS2);
    let (old, new) = (both.file("old", b"one"), both.file("new", b"two"));
    let rotate = ["luksRotateKey", "--key-file", &old, "--new-keyfile", &new, text(&both.ours)];
    let shell = ["-c", "exec \"$@\" >&-", "sh", UCRYPT];
    good(&run("sh", &[&shell[..], &rotate, CHEAP].concat(), b""));
    good(&ucrypt(&["open", "--test-passphrase", text(&both.ours)], b"two"));
}

/// Another action looks at the header all the time, and finds the copies different for a moment.
#[test]
fn a_header_in_the_middle_of_a_change_is_not_called_damaged() {
    let both = Both::new(LUKS2);
    let image = text(&both.ours);
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..40 {
                good(&ucrypt(&["config", "--label", &number.to_string(), image], b""));
            }
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        while !ended.load(std::sync::atomic::Ordering::Relaxed) {
            let ran = ucrypt(&["luksDump", image], b"");
            assert!(code(&ran) == 0 && ran.stderr.is_empty(), "{}", stderr(&ran));
        }
    });
}

#[test]
fn a_keyslot_is_not_wiped_for_a_passphrase_whose_keyslot_another_program_removes_meanwhile() {
    for kind in [LUKS2, LUKS1] {
        let both = Both::new(kind);
        both.does(&cheap(&["luksAddKey"]), b"one\ntwo");
        both.does(&cheap(&["luksAddKey"]), b"one\nnobody knows");
        fs::copy(&both.ours, &both.theirs).unwrap();
        good(&ucrypt(&["luksKillSlot", text(&both.theirs), "1"], b"one"));

        let mut image = fs::File::options().write(true).open(&both.ours).unwrap();
        flock(&image, FlockOperation::LockExclusive).unwrap();
        // The command opens the image to write, and closes it again, before it waits for the lock.
        let notices = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&notices, &both.ours, inotify::WatchFlags::CLOSE_WRITE).unwrap();
        let child = Command::new(UCRYPT)
            .args(["luksKillSlot", text(&both.ours), "0"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.unwrap();
        child.stdin.take().unwrap().write_all(b"two").unwrap();
        let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
        let waits = poll(&mut [PollFd::new(&notices, PollFlags::IN)], Some(&minute)).unwrap();
        assert_eq!(waits, 1, "the command does not come to the lock");
        image.write_all(&fs::read(&both.theirs).unwrap()).unwrap();
        drop(image);

        let ran = child.wait_with_output().unwrap();
        assert_eq!(code(&ran), 2, "{}", stderr(&ran));
        both.opens(&["one"], &["two"]);
    }
}

/// The actions that ask before they overwrite what they have looked at. `IMAGE` and `BACKUP` are places.
const ASKED: [&[&str]; 4] = [
    &["luksHeaderRestore", "--header-backup-file", "BACKUP", "IMAGE"],
    &["erase", "IMAGE"],
    &["luksUUID", "--uuid", "01234567-89ab-cdef-0123-456789abcdef", "IMAGE"],
    &["repair", "IMAGE"],
];

/// Answers the question of an action with YES once `change` was called. Returns the exit code and what was said.
fn answered_after(args: &[&str], places: [&Path; 2], change: impl FnOnce()) -> (i32, String) {
    let [image, backup] = places.map(text);
    let place = |arg: &&str| match *arg {
        "IMAGE" => image.to_owned(),
        "BACKUP" => backup.to_owned(),
        arg => arg.to_owned(),
    };
    let args: Vec<String> = args.iter().map(place).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut terminal = Terminal::start(&args);
    terminal.expect(" (Type 'yes' in capital letters): ", "");
    change();
    terminal.answer("YES\n");
    terminal.end()
}

/// A volume, and a backup of its header. The second copy of a LUKS2 header is torn, so that there is something to
/// repair.
fn asked_about(kind: &[&str]) -> (Both, PathBuf) {
    let both = Both::new(kind);
    let backup = both.scratch.path("backup");
    let save = ["luksHeaderBackup", "--header-backup-file", text(&backup), text(&both.ours)];
    good(&ucrypt(&save, b""));
    if kind == LUKS2 {
        let image = fs::File::options().write(true).open(&both.ours).unwrap();
        image.write_all_at(b"torn", 0x4000 + 4200).unwrap();
    }
    (both, backup)
}

#[test]
fn a_volume_that_was_made_anew_at_the_question_is_left_alone() {
    for (kind, args) in [LUKS1, LUKS2].into_iter().flat_map(|kind| ASKED.map(|asked| (kind, asked)))
    {
        // There is nothing to repair in LUKS1.
        if kind == LUKS1 && args[0] == "repair" {
            continue;
        }
        let (both, backup) = asked_about(kind);
        let mut made = Vec::new();
        let (code, said) = answered_after(args, [&both.ours, &backup], || {
            let format = ["luksFormat", "-q", text(&both.ours)];
            good(&ucrypt(&[&format, kind, CHEAP].concat(), b"two"));
            made = fs::read(&both.ours).unwrap();
        });
        assert_eq!(code, 5, "{args:?}: {said}");
        assert!(said.contains("changed the header meanwhile"), "{args:?}: {said}");
        assert!(fs::read(&both.ours).unwrap() == made, "{args:?}: something was written");
    }
}

/// There was no header when a person was asked, so nothing was said of one.
#[test]
fn a_volume_that_was_made_at_the_question_is_not_restored_over() {
    let (both, backup) = asked_about(LUKS2);
    let blank = both.scratch.make("blank", 5 << 20);
    let mut made = Vec::new();
    let args = ASKED[0];
    let (code, said) = answered_after(args, [&blank, &backup], || {
        good(&ucrypt(&[&["luksFormat", "-q", text(&blank)], LUKS2, CHEAP].concat(), b"two"));
        made = fs::read(&blank).unwrap();
    });
    assert_eq!(code, 5, "{said}");
    assert!(fs::read(&blank).unwrap() == made);
}

/// Another file: a copy of the volume, which has the same header; and one without a header.
#[test]
fn a_file_that_has_taken_the_name_of_the_image_at_the_question_is_left_alone() {
    for args in ASKED {
        let (both, backup) = asked_about(LUKS2);
        let (precious, moved) = (both.scratch.path("precious"), both.scratch.path("moved"));
        fs::copy(&both.ours, &precious).unwrap();
        let before = fs::read(&precious).unwrap();
        let (code, said) = answered_after(args, [&both.ours, &backup], || {
            fs::rename(&both.ours, &moved).unwrap();
            symlink(&precious, &both.ours).unwrap();
        });
        assert_eq!(code, 5, "{args:?}: {said}");
        assert!(fs::read(&precious).unwrap() == before, "{args:?}: the other file was written");
        assert!(fs::read(&moved).unwrap() == before, "{args:?}: the file was written");
    }
    let (both, backup) = asked_about(LUKS2);
    let blank = both.scratch.make("blank", 5 << 20);
    let precious = both.scratch.path("precious");
    fs::write(&precious, vec![7; 5 << 20]).unwrap();
    let args = ASKED[0];
    let (code, said) = answered_after(args, [&blank, &backup], || {
        fs::remove_file(&blank).unwrap();
        symlink(&precious, &blank).unwrap();
    });
    assert_eq!(code, 5, "{said}");
    assert!(fs::read(&precious).unwrap() == vec![7; 5 << 20]);
}

/// A plain volume that is served, for one: nothing on its image says so.
#[test]
fn a_backup_is_not_restored_over_an_image_without_a_header_that_is_in_use() {
    let (both, backup) = asked_about(LUKS2);
    let plain = both.scratch.make("plain", 5 << 20);
    let (socket, said) = (both.scratch.path("socket"), both.scratch.path("said"));
    let nbd = format!("unix:{}", text(&socket));
    let mut server = Command::new("timeout")
        .args(["60", UCRYPT, "serve", "--cipher", "none", "--nbd", &nbd, text(&plain)])
        .stdout(fs::File::create(&said).unwrap())
        .spawn()
        .unwrap();
    // It says so when it serves.
    while !fs::read_to_string(&said).unwrap().contains("nbd+unix") {
        assert!(server.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(10));
    }
    let restore = ["luksHeaderRestore", "--header-backup-file", text(&backup), text(&plain)];
    let ran = ucrypt(&restore, b"");
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    server.wait().unwrap();
    assert_eq!(code(&ran), 5, "{}", stderr(&ran));
    assert!(fs::read(&plain).unwrap() == vec![0; 5 << 20]);
    // One that somebody opens at the question.
    let mut user = None;
    let args = ASKED[0];
    let (code, said) = answered_after(args, [&plain, &backup], || {
        let options = ucrypt_backend::OpenOptions::default();
        user = Some(ucrypt_backend::FileBackend::open(&plain, options).unwrap());
    });
    assert_eq!(code, 5, "{said}");
    drop(user);
    assert!(fs::read(&plain).unwrap() == vec![0; 5 << 20]);
    good(&ucrypt(&restore, b""));
    // What has a header may be open meanwhile, as with cryptsetup.
    let options = ucrypt_backend::OpenOptions::default();
    let _user = ucrypt_backend::FileBackend::open(&plain, options).unwrap();
    good(&ucrypt(&restore, b""));
}

/// Whoever owns the directory could make the file of another user longer.
#[test]
fn a_file_that_has_taken_the_name_of_a_header_at_the_question_does_not_grow() {
    let (both, backup) = asked_about(LUKS2);
    let (place, precious) = (both.scratch.path("header"), both.scratch.path("precious"));
    fs::write(&place, b"").unwrap();
    fs::write(&precious, b"precious").unwrap();
    let args =
        ["luksHeaderRestore", "--header-backup-file", "BACKUP", "--header", text(&place), "IMAGE"];
    let (code, said) = answered_after(&args, [&both.ours, &backup], || {
        fs::remove_file(&place).unwrap();
        symlink(&precious, &place).unwrap();
    });
    assert_eq!(code, 5, "{said}");
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
}

/// Its name is as durable as what is in it, and nobody but its owner may read it.
#[test]
fn a_key_that_was_written_to_a_file_has_a_name_after_a_power_failure() {
    let both = Both::new(LUKS2);
    let (key, report) = (both.scratch.path("key"), both.scratch.path("report"));
    let trace = ["-f", "-y", "-e", "trace=fsync,syncfs", "-o", text(&report), UCRYPT];
    let dump = ["luksDump", "-q", "--dump-volume-key", "--volume-key-file", text(&key)];
    good(&run("strace", &[&trace[..], &dump, &[text(&both.ours)]].concat(), b"one"));
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o400);
    let report = fs::read_to_string(&report).unwrap();
    let directory = format!("<{}>", text(&fs::canonicalize(key.parent().unwrap()).unwrap()));
    assert!(report.contains(&directory), "{report}");
}

#[test]
fn a_keyslot_whose_state_is_damaged_is_not_said_to_be_free() {
    let both = Both::new(LUKS1);
    both.does(&cheap(&["luksAddKey"]), b"one\ntwo");
    let mut image = fs::read(&both.ours).unwrap();
    image[208 + 48 + 1] ^= 1;
    fs::write(&both.ours, &image).unwrap();
    let (old, new) = (both.file("old", b"one"), both.file("new", b"new"));
    let rotate = ["luksRotateKey", "--key-file", &old, "--new-keyfile", &new, text(&both.ours)];
    for args in [&["luksKillSlot", "-q", text(&both.ours), "1"][..], &rotate] {
        let ran = ucrypt(args, b"");
        let said = stderr(&ran);
        assert!(code(&ran) == 1 && said.contains("keyslot 1: its state"), "{args:?}: {said}");
        assert!(fs::read(&both.ours).unwrap() == image, "{args:?} has written");
    }
}

/// A header of which this program does not know everything.
#[test]
fn a_header_of_a_newer_program_is_shown_and_not_changed() {
    let both = Both::new(LUKS2);
    let json = header(&both.ours)["metadata"].clone();
    assert!(json["config"]["requirements"].is_null());
    let backup = both.scratch.path("backup");
    let save = ["luksHeaderBackup", "--header-backup-file", text(&backup), text(&both.ours)];
    good(&ucrypt(&save, b""));
    // cryptsetup marks the volume for a reencryption that has not begun.
    let start = ["reencrypt", "-q", "--init-only", "--key-slot", "0", text(&both.ours)];
    let started = run("cryptsetup", &[&start[..], CHEAP].concat(), b"one");
    assert_eq!(code(&started), 0, "{}", stderr(&started));
    let before = fs::read(&both.ours).unwrap();
    let image = text(&both.ours);
    good(&ucrypt(&["luksDump", image], b""));
    for args in [
        &["config", "--label", "x", image][..],
        &["erase", "-q", image],
        &["luksUUID", "-q", "--uuid", "01234567-89ab-cdef-0123-456789abcdef", image],
        &["luksKillSlot", "-q", image, "0"],
        &["token", "add", "--key-description", "x", image],
        &["convert", "-q", "--type", "luks1", image],
        &["luksHeaderRestore", "-q", "--header-backup-file", text(&backup), image],
    ] {
        let ran = ucrypt(args, b"");
        assert_eq!(code(&ran), 1, "{args:?}: {}", stderr(&ran));
        assert!(stderr(&ran).contains("online-reencrypt"), "{args:?}: {}", stderr(&ran));
    }
    assert!(fs::read(&both.ours).unwrap() == before);
}

/// It has two volume keys, and part of its data is under each.
#[test]
fn a_volume_in_the_middle_of_a_reencryption_is_named_and_its_passphrases_are_tried() {
    let both = Both::new(LUKS2);
    for image in [&both.ours, &both.theirs] {
        let start = ["reencrypt", "-q", "--init-only", text(image)];
        let started = run("cryptsetup", &[&start[..], CHEAP].concat(), b"one");
        assert_eq!(code(&started), 0, "{}", stderr(&started));
    }
    let before = fs::read(&both.ours).unwrap();
    both.opens(&["one"], &[]);
    let image = text(&both.ours);
    assert_eq!(code(&ucrypt(&["open", "--test-passphrase", image], b"wrong")), 2);
    for args in [
        &["read", "--length", "512", image][..],
        &["open", "--readonly", "--as", "nbd", image, "never-opened"],
        &["luksDump", "-q", "--dump-volume-key", image],
        &["luksAddKey", image],
        &["luksChangeKey", image],
        &["config", "--label", "x", image],
        &["erase", "-q", image],
    ] {
        let ran = ucrypt(args, b"one\nnew\n");
        let said = stderr(&ran);
        assert_eq!(code(&ran), 1, "{args:?}: {said}");
        let words = "in the middle of a reencryption (requirement \"online-reencrypt";
        assert!(
            said.contains(words) && said.contains("cryptsetup reencrypt --resume-only"),
            "{said}"
        );
    }
    assert!(fs::read(&both.ours).unwrap() == before);
}

/// cryptsetup takes the header of LUKS1 out of use while it encrypts the volume with another key. A restore
/// would open data of which a part is under the new key with the old one.
#[test]
fn a_luks1_volume_in_the_middle_of_a_reencryption_is_named_and_stays_as_it_is() {
    let both = Both::new(LUKS1);
    let image = text(&both.ours);
    let (backup, again) = (both.scratch.path("backup"), both.scratch.path("again"));
    let saved = ucrypt(&["luksHeaderBackup", "--header-backup-file", text(&backup), image], b"");
    assert_eq!(code(&saved), 0, "{}", stderr(&saved));
    let mut before = fs::read(&both.ours).unwrap();
    before[4..6].copy_from_slice(&[0xde, 0xad]);
    fs::write(&both.ours, &before).unwrap();
    for args in [
        &["luksDump", image][..],
        &["open", "--test-passphrase", image],
        &["read", "--length", "512", image],
        &["luksAddKey", image],
        &["repair", "-q", image],
        &["erase", "-q", image],
        &["convert", "-q", "--type", "luks2", image],
        &["luksHeaderBackup", "--header-backup-file", text(&again), image],
        &["luksHeaderRestore", "-q", "--header-backup-file", text(&backup), image],
    ] {
        let ran = ucrypt(args, b"one\nnew\n");
        let said = stderr(&ran);
        assert_eq!(code(&ran), 1, "{args:?}: {said}");
        assert!(said.contains("in the middle of a reencryption"), "{args:?}: {said}");
    }
    assert_eq!(code(&ucrypt(&["isLuks", image], b"")), 1);
    assert!(fs::read(&both.ours).unwrap() == before, "something was written");
    // A program that does not ask for the header is told of it.
    let plain = ["read", "--type", "plain", "-c", "aes-xts-plain64", "-s", "256", "-h", "sha256"];
    let ran = ucrypt(&[&plain[..], &["--length", "512", image]].concat(), b"one");
    assert!(stderr(&ran).contains("crypto_LUKS"), "{}", stderr(&ran));
}

#[test]
fn options_without_effect_are_refused_by_name() {
    let (two, one) = (Both::new(LUKS2), Both::new(LUKS1));
    let (luks2, luks1) = (text(&two.ours), text(&one.ours));
    for (args, words) in [
        (&["luksAddKey", "--new-keyfile-size", "3", luks2][..], "--new-keyfile-size"),
        (&["luksAddKey", "--key-size", "256", luks2], "--key-size"),
        (&["luksAddKey", "--unbound", luks2], "--key-size"),
        (&["luksAddKey", "--unbound", "-s", "256", luks1], "unbound"),
        (&["luksAddKey", "--hash", "sha512", luks1], "--hash"),
        (&["luksAddKey", "--pbkdf", "argon2id", luks1], "pbkdf2"),
        (&["luksConvertKey", luks1], "LUKS1"),
        (&["luksAddKey", "--keyslot-cipher", "aes-xts-plain64", luks2], "--keyslot-key-size"),
        (&["config", "--priority", "prefer", luks2], "--key-slot"),
        (&["config", "-S", "0", "--label", "x", luks2], "--priority"),
        (&["token", "remove", "--token-id", "0", "--json-file", "x", luks2], "--json-file"),
        (&["token", "add", "--key-description", "x", luks1], "LUKS1"),
        (&["luksAddKey", "--type", "luks1", luks2], "--type"),
        (&["luksHeaderBackup", luks2], "--header-backup-file"),
    ] {
        let ran = ucrypt(args, b"one\ntwo");
        assert_eq!(code(&ran), 1, "{args:?}: {}", stderr(&ran));
        assert!(stderr(&ran).contains(words), "{args:?}: {}", stderr(&ran));
    }
    two.opens(&["one"], &["two"]);
}

#[test]
fn keys_change_while_the_volume_is_open_and_one_change_waits_for_another() {
    let both = Both::new(LUKS2);
    let image = both.ours.clone();
    let user = ucrypt_backend::FileBackend::open(&image, ucrypt_backend::OpenOptions::default());
    let user = user.unwrap();
    let add = [&["luksAddKey"], CHEAP, &[text(&image)]].concat();
    good(&ucrypt(&add, b"one\ntwo"));
    // Eight at once: each finds the header that the others have left.
    std::thread::scope(|scope| {
        for number in 0..8 {
            let add = &add;
            scope.spawn(move || good(&ucrypt(add, format!("one\nkey {number}").as_bytes())));
        }
    });
    drop(user);
    let keyslots = header(&image)["metadata"]["keyslots"].as_object().unwrap().len();
    assert_eq!(keyslots, 10);
    for number in 0..8 {
        let passphrase = format!("key {number}");
        good(&run(
            "cryptsetup",
            &["open", "--test-passphrase", text(&image)],
            passphrase.as_bytes(),
        ));
    }
}

#[test]
fn a_person_is_asked_in_cryptsetups_words() {
    let both = Both::new(LUKS2);
    let image = text(&both.ours);
    let mut terminal = Terminal::start(&[&["luksAddKey"], CHEAP, &[image]].concat());
    terminal.expect("Enter any existing passphrase: ", "one\n");
    terminal.expect("Enter new passphrase for key slot: ", "two\n");
    terminal.expect("Verify passphrase: ", "two\n");
    assert_eq!(terminal.end().0, 0);
    let mut terminal = Terminal::start(&[&["luksChangeKey"], CHEAP, &[image]].concat());
    terminal.expect("Enter passphrase to be changed: ", "two\n");
    terminal.expect("Enter new passphrase: ", "due\n");
    terminal.expect("Verify passphrase: ", "due\n");
    assert_eq!(terminal.end().0, 0);
    let mut terminal = Terminal::start(&["luksKillSlot", image, "1"]);
    terminal.expect("Enter any remaining passphrase: ", "one\n");
    assert_eq!(terminal.end().0, 0);
    let sure = "Are you sure? (Type 'yes' in capital letters): ";
    let mut terminal = Terminal::start(&["luksRemoveKey", image]);
    terminal.expect("Enter passphrase to be deleted: ", "one\n");
    terminal.expect(sure, "no\n");
    assert_eq!(terminal.end().0, 2);
    let mut terminal = Terminal::start(&["erase", image]);
    terminal.expect(sure, "no\n");
    assert_eq!(terminal.end().0, 2);
    good(&ucrypt(&["open", "--test-passphrase", image], b"one"));
    let mut terminal = Terminal::start(&["luksRemoveKey", image]);
    terminal.expect("Enter passphrase to be deleted: ", "one\n");
    terminal.expect(sure, "YES\n");
    assert_eq!(terminal.end().0, 0);
    assert_eq!(code(&ucrypt(&["open", "--test-passphrase", image], b"one")), 1);
}

#[test]
fn new_volumes_have_the_alignment_and_the_keyslot_cipher_that_cryptsetup_gives_them() {
    let cipher = ["--keyslot-cipher", "aes-cbc-essiv:sha256", "--keyslot-key-size", "128"];
    for (kind, options) in [
        ("luks1", &["--align-payload", "8"][..]),
        ("luks1", &["--align-payload", "8192"]),
        ("luks1", &["--align-payload", "0"]),
        ("luks2", &["--align-payload", "65536"]),
        ("luks2", &cipher),
    ] {
        let scratch = Scratch::new();
        let images = [(UCRYPT, "a"), ("cryptsetup", "b")].map(|(program, name)| {
            let image = scratch.make(name, 40 << 20);
            let uuid = ["--uuid", "01234567-89ab-cdef-0123-456789abcdef", "--sector-size", "512"];
            let format = ["luksFormat", "-q", "--type", kind, text(&image)];
            good(&run(program, &[&format[..], &uuid, options, CHEAP].concat(), b"one"));
            image
        });
        assert_eq!(header(&images[0]), header(&images[1]), "{kind} {options:?}");
        let offset = |image| {
            let shown = good(&run("cryptsetup", &["luksDump", text(image)], b""));
            let line =
                shown.lines().find(|l| l.contains("Payload offset") || l.contains("offset:"));
            line.expect("an offset").to_owned()
        };
        assert_eq!(offset(&images[0]), offset(&images[1]), "{kind} {options:?}");
        for image in &images {
            for program in [UCRYPT, "cryptsetup"] {
                good(&run(program, &["open", "--test-passphrase", text(image)], b"one"));
            }
        }
    }
    let scratch = Scratch::new();
    let image = scratch.image();
    for (kind, options, words) in [
        ("luks2", &["--align-payload", "36001"][..], "4096"),
        ("luks1", &cipher, "--keyslot-cipher"),
    ] {
        let format = ["luksFormat", "-q", "--type", kind, text(&image)];
        let ran = ucrypt(&[&format[..], options, CHEAP].concat(), b"one");
        assert!(code(&ran) == 1 && stderr(&ran).contains(words), "{options:?}: {}", stderr(&ran));
    }
}
