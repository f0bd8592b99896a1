//! Tokens that unlock: passphrases in the kernel's keyring. cryptsetup is the reference.

mod luks;

use std::fs;
use std::process::Output;

use luks::both::{Both, LUKS1, LUKS2, header};
use luks::user_key::UserKey;
use luks::{CHEAP, UCRYPT, code, good, run, stderr, text, ucrypt};

/// cryptsetup stores the bytes that it is given.
#[test]
fn a_token_whose_description_is_no_utf8_keeps_no_volume_from_opening() {
    use std::os::unix::ffi::OsStrExt;
    let both = Both::new(LUKS2);
    for image in [&both.ours, &both.theirs] {
        let mut add = std::process::Command::new("cryptsetup");
        add.args(["token", "add", "--key-description"]);
        add.arg(std::ffi::OsStr::from_bytes(b"caf\xe9")).arg(image);
        assert!(add.status().unwrap().success());
    }
    let image = text(&both.ours);
    good(&ucrypt(&["open", "--test-passphrase", "--key-file", "-", image], b"one"));
    let before = ucrypt(&["token", "export", "--token-id", "0", image], b"").stdout;
    assert!(before.windows(4).any(|bytes| bytes == b"caf\xe9"));
    // A change keeps it byte for byte.
    good(&ucrypt(&[&["luksAddKey", "-q"], CHEAP, &[image]].concat(), b"one\ntwo"));
    let after = ucrypt(&["token", "export", "--token-id", "0", image], b"").stdout;
    assert!(before == after);
    good(&run("cryptsetup", &["open", "--test-passphrase", image], b"two"));
}

fn add_token(both: &Both, description: &str, id: &str, keyslot: &str) {
    let add = ["token", "add", "--key-description", description, "--token-id", id, "-S", keyslot];
    both.does(&[&add[..], &["IMAGE"]].concat(), b"");
}

/// An image with the keyslots "one" and "two".
fn two_keyslots() -> Both {
    let both = Both::new(LUKS2);
    let add = [&["luksAddKey", "-q"], CHEAP, &[text(&both.ours)]].concat();
    good(&run("cryptsetup", &add, b"one\ntwo"));
    fs::copy(&both.ours, &both.theirs).unwrap();
    both
}

/// Tries to open with both programs; standard input is `stdin`.
fn try_both(both: &Both, options: &[&str], stdin: &[u8]) -> [Output; 2] {
    let outputs = [UCRYPT, "cryptsetup"].map(|program| {
        let args = [&["open", "-v", "--test-passphrase"], options, &[text(&both.ours)]].concat();
        run(program, &args, stdin)
    });
    let [ours, theirs] = &outputs;
    let told = format!("{options:?}: {} / {}", stderr(ours), stderr(theirs));
    assert_eq!(code(ours), code(theirs), "{told}");
    outputs
}

/// The keyslot that a program says it has unlocked.
fn unlocked(output: &Output) -> Option<String> {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    let all = String::from_utf8_lossy(&all).into_owned();
    let line = all.lines().find(|line| line.contains(" unlocked."))?;
    Some(line.to_owned())
}

#[test]
fn a_keyring_token_opens_before_a_passphrase_is_asked_for() {
    let both = two_keyslots();
    let (right, wrong) = (UserKey::new(b"two"), UserKey::new(b"neither"));
    add_token(&both, "ucrypt test, not there", "0", "0");
    add_token(&both, &wrong.description, "1", "0");
    add_token(&both, &right.description, "4", "1");
    fs::copy(&both.ours, &both.theirs).unwrap();
    for (options, stdin, expected, keyslot) in [
        (&[][..], &b""[..], 0, Some(1)),
        (&["--token-only"], b"", 0, Some(1)),
        (&["--token-id", "4"], b"", 0, Some(1)),
        (&["--token-type", "luks2-keyring"], b"", 0, Some(1)),
        (&["-S", "1"], b"one", 0, Some(1)),
        // The key file is not even opened.
        (&["--key-file", "/nonexistent"], b"", 0, Some(1)),
        // A token that does not open leaves it to the passphrase.
        (&["--token-id", "0"], b"one", 0, Some(0)),
        (&["--token-id", "1"], b"one", 0, Some(0)),
        (&["--token-id", "9"], b"two", 0, Some(1)),
        (&["--token-type", "systemd-tpm2"], b"one", 0, Some(0)),
        (&["--token-id", "0"], b"neither", 2, None),
        (&["--token-id", "0", "--token-only"], b"one", 2, None),
        (&["--token-id", "1", "--token-only"], b"one", 2, None),
        (&["--token-id", "9", "--token-only"], b"one", 1, None),
        (&["--token-type", "other", "--token-only"], b"one", 1, None),
    ] {
        let [ours, theirs] = try_both(&both, options, stdin);
        assert_eq!(code(&ours), expected, "{options:?}: {}", stderr(&ours));
        let keyslot = keyslot.map(|number| format!("Key slot {number} unlocked."));
        assert_eq!(unlocked(&ours), keyslot, "{options:?}");
        assert_eq!(unlocked(&theirs), keyslot, "{options:?}");
    }
    // cryptsetup 2.6 opens keyslot 1 here, though keyslot 0 was asked for.
    let args = ["open", "-v", "--test-passphrase", "-S", "0", text(&both.ours)];
    assert_eq!(unlocked(&ucrypt(&args, b"one")).unwrap(), "Key slot 0 unlocked.");
    assert_eq!(code(&ucrypt(&args, b"two")), 2);
}

#[test]
fn what_keeps_a_token_from_opening_is_told() {
    let both = two_keyslots();
    let wrong = UserKey::new(b"neither");
    add_token(&both, "not there", "0", "0");
    add_token(&both, &wrong.description, "1", "0");
    let foreign = br#"{"type":"systemd-fido2","keyslots":["1"],"fido2-x":1}"#;
    good(&ucrypt(&["token", "import", "--token-id", "5", text(&both.ours)], foreign));
    let image = text(&both.ours);
    let test = |options: &[&str]| {
        ucrypt(&[&["open", "--test-passphrase"], options, &[image]].concat(), b"one")
    };
    for (options, words) in [
        (&["--token-id", "0"][..], "the kernel's keyring has no key \"not there\""),
        (&["--token-id", "1"], "token 1 cannot unlock keyslot 0"),
        (
            &["--token-id", "5"],
            "token 5 is of the type systemd-fido2, which this program cannot use",
        ),
        (&["--token-id", "7"], "no usable token 7 is available"),
        (&["--token-type", "x"], "no usable token (type x) is available"),
        // Without being asked for, too.
        (&[], "the kernel's keyring has no key \"not there\""),
    ] {
        let ran = test(options);
        good(&ran);
        assert!(stderr(&ran).contains(words), "{options:?}: {}", stderr(&ran));
    }
    let ran = test(&["-q"]);
    good(&ran);
    assert_eq!(stderr(&ran), "");
    let ran = test(&["--token-only"]);
    assert_eq!(code(&ran), 2);
    for words in ["no key \"not there\"", "token 1 cannot", "systemd-fido2"] {
        assert!(stderr(&ran).contains(words), "{words}: {}", stderr(&ran));
    }
    let shown = good(&ucrypt(&["luksDump", image], b""));
    assert!(shown.contains("5: systemd-fido2"), "{shown}");
    // LUKS1 has no tokens.
    let one = Both::new(LUKS1);
    let args = ["open", "--test-passphrase", "--token-only", text(&one.ours)];
    let ran = ucrypt(&args, b"one");
    assert!(code(&ran) == 1 && stderr(&ran).contains("no tokens"), "{}", stderr(&ran));
}

#[test]
fn an_ignored_keyslot_is_opened_only_by_a_token_that_is_named() {
    let both = two_keyslots();
    let right = UserKey::new(b"two");
    add_token(&both, &right.description, "4", "1");
    both.does(&["config", "--priority", "ignore", "-S", "1", "IMAGE"], b"");
    fs::copy(&both.ours, &both.theirs).unwrap();
    assert_eq!(code(&try_both(&both, &["--token-only"], b"")[0]), 1);
    assert_eq!(code(&try_both(&both, &["--token-only", "--token-id", "4"], b"")[0]), 0);
}

#[test]
fn keys_are_added_by_the_passphrase_of_a_token() {
    let both = two_keyslots();
    let (right, wrong) = (UserKey::new(b"two"), UserKey::new(b"neither"));
    add_token(&both, &right.description, "4", "1");
    add_token(&both, &wrong.description, "1", "0");
    let add = |options: &[&'static str]| [&["luksAddKey"], options, CHEAP, &["IMAGE"]].concat();
    both.does(&add(&["--token-id", "4"]), b"new");
    both.does(&add(&["--token-only"]), b"newer");
    both.opens(&["one", "two"], &[]);
    let keyslots = || header(&both.ours)["metadata"]["keyslots"].as_object().unwrap().len();
    assert_eq!(keyslots(), 4);
    let [ours, _] = both.act(&add(&["--token-id", "1"]), b"one\nnewest");
    assert_eq!(code(&ours), 2, "{}", stderr(&ours));
    assert_eq!(keyslots(), 4);
    // The passphrases: the new ones alone were read from standard input.
    good(&ucrypt(&["token", "remove", "--token-id", "4", text(&both.ours)], b""));
    for passphrase in [&b"new"[..], b"newer"] {
        let test = ["open", "-q", "--test-passphrase", text(&both.ours)];
        good(&ucrypt(&test, passphrase));
    }
    for (more, words) in [
        (&["--key-file", "x"][..], "--key-file has no effect"),
        (&["--volume-key-file", "x"], "--volume-key-file"),
    ] {
        let args = [&["luksAddKey", "--token-id", "1"], more, &[text(&both.ours)]].concat();
        let ran = ucrypt(&args, b"");
        assert!(code(&ran) == 1 && stderr(&ran).contains(words), "{}", stderr(&ran));
    }
}

/// Done by both programs, and compared: the new keyslot has the passphrase of the token, which is assigned
/// to it.
#[test]
fn a_new_keyslot_takes_the_passphrase_of_a_token() {
    let both = two_keyslots();
    let (new, one) = (UserKey::new(b"new"), UserKey::new(b"one"));
    add_token(&both, "ucrypt test, not there", "0", "0");
    for (token, id) in [(&new, "3"), (&one, "5")] {
        let add = ["token", "add", "--key-description", &token.description, "--token-id", id];
        both.does(&[&add[..], &["--unbound", "IMAGE"]].concat(), b"");
    }
    both.does(&["token", "import", "--token-id", "7", "IMAGE"], br#"{"type":"x","keyslots":[]}"#);
    let add = |options: &[&'static str]| [&["luksAddKey"], options, CHEAP, &["IMAGE"]].concat();
    both.does(&add(&["--new-token-id", "3"]), b"one");
    both.opens(&["one", "two", "new"], &[]);
    both.does(&add(&["--new-token-id", "3", "--new-key-slot", "9"]), b"new");
    both.does(&["token", "unassign", "--token-id", "0", "-S", "0", "IMAGE"], b"");
    both.does(&["token", "add", "--key-description", &one.description, "-S", "0", "IMAGE"], b"");
    // Both passphrases come from tokens, and from one of them.
    both.does(&add(&["--token-id", "1", "--new-token-id", "3"]), b"");
    both.does(&add(&["--token-id", "3", "--new-token-id", "3"]), b"");
    let assigned = &header(&both.ours)["metadata"]["tokens"]["3"]["keyslots"];
    assert_eq!(*assigned, serde_json::json!(["2", "3", "4", "9"]));
    // The key is not there; there is no such token; it is of another program; the passphrase is wrong.
    for (options, stdin, expected) in [
        (&["--new-token-id", "0"][..], &b"one"[..], 2),
        (&["--new-token-id", "8"], b"one", 1),
        (&["--new-token-id", "7"], b"one", 1),
        (&["--new-token-id", "3", "--new-key-slot", "1"], b"one", 1),
    ] {
        let [ours, _] = both.act(&add(options), stdin);
        assert_eq!(code(&ours), expected, "{options:?}: {}", stderr(&ours));
    }
    let image = text(&both.ours);
    let before = fs::read(image).unwrap();
    for (options, words, expected) in [
        (&["--new-token-id", "3"][..], "no keyslot", 2),
        (&["--new-token-id", "7"], "token 7 is of the type x, which this program cannot use", 1),
        (&["--new-token-id", "3", "--new-keyfile", "x"], "cannot be used with", 1),
        (&["--new-token-id", "3", "--unbound", "-s", "256"], "cannot be used with", 1),
    ] {
        let ran = ucrypt(&[&["luksAddKey"], options, CHEAP, &[image]].concat(), b"neither");
        assert_eq!(code(&ran), expected, "{options:?}: {}", stderr(&ran));
        assert!(stderr(&ran).contains(words), "{options:?}: {}", stderr(&ran));
    }
    assert!(fs::read(image).unwrap() == before);
    let ran = ucrypt(&["luksAddKey", "--new-token-id", "3", text(&Both::new(LUKS1).ours)], b"one");
    assert!(code(&ran) == 1 && stderr(&ran).contains("no tokens"), "{}", stderr(&ran));
}

/// As in cryptsetup 2.8, which is not here to compare with: the volume opens, and by the right key alone.
#[test]
fn a_volume_key_in_the_keyring_opens_the_volume_and_adds_keys() {
    let both = two_keyslots();
    let image = text(&both.ours);
    let file = both.scratch.path("key");
    let dump = ["luksDump", "-q", "--dump-volume-key", "--volume-key-file", text(&file), image];
    good(&run("cryptsetup", &dump, b"one"));
    let key = fs::read(&file).unwrap();
    let (right, short) = (UserKey::new(&key), UserKey::new(&key[..63]));
    let wrong = UserKey::new(&[&key[..63], &[!key[63]]].concat());
    let typed = format!("%user:{}", right.description);
    let act = |words: &[&str], by: &str| {
        ucrypt(&[words, &["--volume-key-keyring", by, image]].concat(), b"new")
    };
    let test = ["open", "--test-passphrase"];
    for by in [&right.description, &typed] {
        good(&act(&test, by));
    }
    for (by, expected, words) in [
        (&wrong.description[..], 2, "volume key"),
        (&short.description, 2, "volume key"),
        ("ucrypt test, not there", 1, "the kernel's keyring has no key"),
        ("%logon:x", 1, "no program can read keys of the type \"logon\""),
    ] {
        for words_of_action in [&test[..], &["read", "--length", "7"], &["luksAddKey"]] {
            let ran = act(words_of_action, by);
            assert_eq!(code(&ran), expected, "{by} {words_of_action:?}: {}", stderr(&ran));
            assert!(stderr(&ran).contains(words), "{by} {words_of_action:?}: {}", stderr(&ran));
        }
    }
    // Standard input is the new passphrase, or the data.
    good(&act(&[&["luksAddKey", "-q"][..], CHEAP].concat(), &right.description));
    good(&run("cryptsetup", &["open", "--test-passphrase", image], b"new"));
    good(&ucrypt(&["write", "--volume-key-keyring", &typed, image], b"content"));
    assert_eq!(good(&act(&["read", "--length", "7"], &right.description)), "content");
    let before = fs::read(image).unwrap();
    for (more, words) in [
        (&["luksAddKey", "--key-file", "x"][..], "--key-file has no effect"),
        (&["luksAddKey", "--volume-key-file", "x"], "cannot be used with"),
        (&["open", "--test-passphrase", "-S", "1"], "--key-slot has no effect beside"),
        (&["open", "--test-passphrase", "--volume-key-file", "x"], "cannot be used with"),
    ] {
        let ran = act(more, &right.description);
        assert!(code(&ran) == 1 && stderr(&ran).contains(words), "{more:?}: {}", stderr(&ran));
    }
    assert!(fs::read(image).unwrap() == before);
}

#[test]
fn volumes_are_read_and_written_by_tokens() {
    let both = two_keyslots();
    let right = UserKey::new(b"two");
    add_token(&both, &right.description, "0", "1");
    let image = text(&both.ours);
    // Standard input is the data.
    good(&ucrypt(&["write", image], b"content"));
    let read = ["read", "--length", "7", "--token-only", image];
    assert_eq!(good(&ucrypt(&read, b"")), "content");
}

/// As in cryptsetup 2.8, which is not here to compare with: the bytes are.
#[test]
fn a_passphrase_of_the_keyring_is_used_by_its_name() {
    let both = two_keyslots();
    let image = text(&both.ours);
    let (one, new) = (UserKey::new(b"one"), UserKey::new(b"new\n\0\xff"));
    let old = ["--key-description", &one.description];
    let by_new = ["--new-key-description", &new.description];
    // Nothing is read from standard input.
    let act = |words: &[&str]| ucrypt(&[words, &[image]].concat(), b"neither");
    let test = ["open", "--test-passphrase", "-v"];
    let ran = act(&[&test[..], &old].concat());
    good(&ran);
    assert_eq!(unlocked(&ran).unwrap(), "Key slot 0 unlocked.");
    let opens = |passphrase: &[u8]| {
        let test = ["open", "--test-passphrase", "--key-file", "-", image];
        code(&run("cryptsetup", &test, passphrase))
    };
    good(&act(&[&["luksAddKey"][..], &old, &by_new, CHEAP].concat()));
    assert_eq!(opens(b"new\n\0\xff"), 0, "the key is not stored byte for byte");
    let key = both.scratch.path("key");
    let dump = ["luksDump", "-q", "--dump-volume-key", "--volume-key-file", text(&key)];
    good(&act(&[&dump[..], &old].concat()));
    assert_eq!(fs::read(&key).unwrap().len(), 64);
    // Data comes from standard input.
    good(&ucrypt(&["write", old[0], old[1], image], b"content"));
    assert_eq!(good(&act(&["read", "--length", "7", old[0], old[1]])), "content");
    good(&act(&[&["luksConvertKey"][..], &old, CHEAP].concat()));
    good(&act(&["luksRemoveKey", "--key-description", &new.description]));
    assert_eq!(opens(b"new\n\0\xff"), 2);
    good(&act(&[&["luksChangeKey"][..], &old, &by_new, CHEAP].concat()));
    assert_eq!((opens(b"one"), opens(b"new\n\0\xff")), (2, 0));
    good(&ucrypt(&["luksKillSlot", "--key-description", &new.description, image, "1"], b"neither"));
    assert_eq!(opens(b"two"), 2);
    assert_eq!(code(&act(&[&test[..], &old].concat())), 2, "the old key opens");
    good(&act(&[&["luksFormat", "-q"][..], LUKS2, &old, CHEAP].concat()));
    assert_eq!(opens(b"one"), 0);
}

#[test]
fn a_keyring_without_the_passphrase_or_another_source_beside_it_is_refused() {
    let both = two_keyslots();
    let (image, one) = (text(&both.ours), UserKey::new(b"one"));
    let before = fs::read(&both.ours).unwrap();
    let missing = "ucrypt test, not there";
    let by = ["--key-description", &one.description];
    for (words, told) in [
        (&["open", "--test-passphrase", "--key-description", missing][..], "keyring has no key"),
        (&["luksAddKey", by[0], by[1], "--new-key-description", missing], "keyring has no key"),
        (&["open", "--test-passphrase", by[0], by[1], "--key-file", "x"], "cannot be used with"),
        (&["luksAddKey", by[0], by[1], "--token-only"], "--key-description has no effect beside"),
        (
            &["luksAddKey", by[0], by[1], "--volume-key-file", "x"],
            "--key-description has no effect",
        ),
        (&["luksAddKey", "--new-keyfile", "x", "--new-key-description", missing], "cannot be used"),
        (&["read", "--type", "plain", by[0], by[1]], "no effect on a plain volume"),
        (&["luksDump", by[0], by[1]], "--dump-volume-key"),
        (&["config", "--label", "x", by[0], by[1]], "--key-description has no effect on config"),
    ] {
        let ran = ucrypt(&[words, &[image]].concat(), b"one\nnew");
        assert!(code(&ran) == 1 && stderr(&ran).contains(told), "{words:?}: {}", stderr(&ran));
    }
    assert!(fs::read(&both.ours).unwrap() == before);
}
