//! What the actions say, and which options they take. cryptsetup is the reference.

mod luks;

use std::collections::BTreeSet;
use std::fs;
use std::process::Output;

use luks::both::{Both, LUKS1, LUKS2};
use luks::{CHEAP, Scratch, code, good, run, stderr, text, ucrypt};

/// The lines of `-v` that tell what happened.
fn told(output: &Output) -> Vec<String> {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    let all = String::from_utf8_lossy(&all).into_owned();
    let of_interest = |line: &&str| {
        let starts = ["Key slot", "Keyslot", "Token", "Command successful"];
        starts.iter().any(|start| line.starts_with(start))
    };
    all.lines().filter(of_interest).map(str::to_owned).collect()
}

#[test]
fn verbose_actions_say_what_cryptsetup_says() {
    for kind in [LUKS2, LUKS1] {
        let both = Both::new(kind);
        let says = |args: &[&str], stdin: &[u8]| {
            let args: Vec<&str> = [&args[..1], &["-v"], &args[1..], &["IMAGE"]].concat();
            let [ours, theirs] = both.act(&args, stdin);
            let words = told(&ours);
            assert_eq!(words, told(&theirs), "{args:?}");
            words
        };
        let with = |args: &[&'static str]| [args, CHEAP].concat();
        let words = says(&with(&["luksAddKey"]), b"one\ntwo");
        let expected = ["Key slot 0 unlocked.", "Key slot 1 created.", "Command successful."];
        assert_eq!(words, expected);
        says(&["open", "--test-passphrase"], b"two");
        says(&["open", "--test-passphrase", "-S", "0"], b"one");
        says(&with(&["luksChangeKey"]), b"two\nthree");
        says(&with(&["luksAddKey"]), b"one\nfour");
        says(&["luksRemoveKey"], b"four");
        says(&["luksUUID"], b"");
        says(&["isLuks"], b"");
        if kind == LUKS2 {
            says(&with(&["luksConvertKey"]), b"one");
            says(&["token", "add", "--key-description", "x"], b"");
            says(&["token", "remove", "--token-id", "0"], b"");
            says(&["config", "--label", "x"], b"");
            says(&with(&["luksAddKey", "--unbound", "--key-size", "256"]), b"other");
        }
        let file = text(&both.ours).to_owned();
        // The number stands behind the image.
        for (program, image) in [("ucrypt", &both.ours), ("cryptsetup", &both.theirs)] {
            let number = if kind == LUKS1 { "2" } else { "1" };
            let args = ["luksKillSlot", "-v", text(image), number];
            let ran = if program == "ucrypt" {
                ucrypt(&args, b"one")
            } else {
                run(program, &args, b"one")
            };
            let expected = [
                &*format!("Keyslot {number} is selected for deletion."),
                "Key slot 0 unlocked.",
                &*format!("Key slot {number} removed."),
                "Command successful.",
            ];
            assert_eq!(told(&ran), expected, "{program}: {}", stderr(&ran));
        }
        if kind == LUKS2 {
            // cryptsetup's erase leaves unbound keyslots.
            both.does(&["luksKillSlot", "-q", "IMAGE", "2"], b"");
        }
        says(&["erase", "-q"], b"");
        let format = [&["luksFormat", "-v", "-q"], kind, CHEAP, &[&*file]].concat();
        let ran = ucrypt(&format, b"one");
        assert_eq!(told(&ran), ["Key slot 0 created.", "Command successful."]);
        // Without -v, nothing.
        let add = [&["luksAddKey"], CHEAP, &[&*file]].concat();
        let ran = ucrypt(&add, b"one\ntwo");
        assert!(code(&ran) == 0 && stderr(&ran).is_empty(), "{}", stderr(&ran));
    }
}

/// Every option that cryptsetup's help names is done, accepted or refused by its name.
#[test]
fn no_option_of_cryptsetup_is_unknown() {
    let both = Both::new(LUKS2);
    let image = text(&both.ours);
    let before = fs::read(&both.ours).unwrap();
    let help = good(&run("cryptsetup", &["--help"], b""));
    let named = |line: &str| {
        let (_, rest) = line.split_once("--")?;
        let name = rest.split([' ', '=']).next()?;
        let takes = rest[name.len()..].starts_with('=');
        line.starts_with("  ").then(|| (format!("--{name}"), takes))
    };
    let options: BTreeSet<(String, bool)> = help
        .lines()
        .take_while(|line| !line.contains("is one of"))
        .filter_map(named)
        .filter(|(name, _)| !["--help", "--version"].contains(&&**name))
        .collect();
    assert!(options.len() > 100, "{options:?}");
    for action in ["luksUUID", "luksDump", "luksFormat", "open", "luksAddKey", "close", "config"] {
        for (option, takes) in &options {
            let mut args = vec![action, "--test-args", option.as_str()];
            args.extend(takes.then_some("1"));
            args.push(image);
            let ran = ucrypt(&args, b"");
            let said = stderr(&ran);
            assert!([0, 1].contains(&code(&ran)), "{args:?}: {said}");
            let unknown = format!("unexpected argument '{option}'");
            assert!(!said.contains(&unknown), "{args:?}: {said}");
            // A refusal names the option, the new name of an old one, or what it needs.
            let new = option.replace("--master-key-file", "--volume-key-file");
            let is_told = [option, &new, "required arguments were not provided"];
            let is_told = is_told.iter().any(|words| said.contains(*words));
            assert!(code(&ran) == 0 || is_told, "{args:?}: {said}");
        }
    }
    assert!(fs::read(&both.ours).unwrap() == before);
}

/// As popt does it for cryptsetup: one line on standard output, and nothing else is looked at.
#[test]
fn usage_prints_one_line_and_does_nothing() {
    for (args, line) in [
        (&["--usage"][..], "Usage: ucrypt [OPTIONS] <COMMAND>\n"),
        (&["-q", "--usage"], "Usage: ucrypt [OPTIONS] <COMMAND>\n"),
        (&["luksUUID", "--usage"], "Usage: ucrypt luksUUID [OPTIONS] <IMAGE>\n"),
        (&["--usage", "isLuks", "/nonexistent"], "Usage: ucrypt isLuks [OPTIONS] <IMAGE>\n"),
        (&["erase", "-q", "/nonexistent", "--usage"], "Usage: ucrypt erase [OPTIONS] <IMAGE>\n"),
    ] {
        let ran = ucrypt(args, b"");
        assert_eq!(good(&ran), line, "{args:?}");
        assert_eq!(stderr(&ran), "", "{args:?}");
        assert_eq!(code(&run("cryptsetup", args, b"")), 0, "{args:?}");
    }
}

/// A script that has it for cryptsetup 2.8 goes on.
#[test]
fn an_option_whose_wish_is_not_done_is_accepted_with_a_warning() {
    let scratch = Scratch::new();
    let image = scratch.image();
    let format = [&["luksFormat", "-q", "--disable-blkid"], CHEAP, &[text(&image)]].concat();
    let ran = ucrypt(&format, b"one");
    good(&ran);
    assert!(
        stderr(&ran).contains("--disable-blkid: signatures are looked for"),
        "{}",
        stderr(&ran)
    );
    good(&run("cryptsetup", &["open", "--test-passphrase", text(&image)], b"one"));
}

#[test]
fn accepted_options_say_with_v_what_they_mean_here() {
    let both = Both::new(LUKS2);
    let image = text(&both.ours);
    let test = ["open", "--test-passphrase", "--disable-external-tokens", "--disable-locks", image];
    let ran = ucrypt(&test, b"one");
    good(&ran);
    assert_eq!(stderr(&ran), "");
    let ran = ucrypt(&[&test[..], &["-v"]].concat(), b"one");
    good(&ran);
    assert!(
        stderr(&ran).contains("--disable-external-tokens: plugins for tokens are never loaded"),
        "{}",
        stderr(&ran)
    );
    // Nothing is done under --test-args, but wrong options are refused.
    let new = [&["luksAddKey", "--test-args"], CHEAP, &[image]].concat();
    let before = fs::read(&both.ours).unwrap();
    good(&ucrypt(&new, b"one\ntwo"));
    assert!(fs::read(&both.ours).unwrap() == before);
    let ran = ucrypt(&["luksAddKey", "--test-args", "--shared", image], b"");
    assert!(code(&ran) == 1 && stderr(&ran).contains("--shared"), "{}", stderr(&ran));
}

/// A script that takes a refusal of `-q` for "no LUKS" formats a volume that is there.
#[test]
fn batch_mode_is_taken_by_actions_that_ask_nothing() {
    let both = Both::new(LUKS2);
    let image = text(&both.ours);
    for args in [["-q", "isLuks", image], ["isLuks", "-q", image]] {
        assert_eq!(code(&run("cryptsetup", &args, b"")), 0, "{args:?}");
        good(&ucrypt(&args, b""));
    }
    for action in ["close", "status", "resize", "luksSuspend", "luksResume"] {
        let ran = ucrypt(&[action, "-q", "no such volume"], b"");
        assert!(code(&ran) == 4 && stderr(&ran).contains("no such volume"), "{}", stderr(&ran));
    }
    good(&ucrypt(&["benchmark", "-q", "--test-args"], b""));
}

#[test]
fn old_names_of_actions_work() {
    let both = Both::new(LUKS2);
    let add = [&["luksAddKey"], CHEAP, &[text(&both.ours)]].concat();
    good(&ucrypt(&add, b"one\ntwo"));
    let image = text(&both.ours);
    good(&ucrypt(&["luksOpen", "--test-passphrase", image], b"two"));
    good(&ucrypt(&["luksDelKey", "-q", image, "1"], b""));
    assert_eq!(code(&ucrypt(&["luksOpen", "--test-passphrase", image], b"two")), 2);
    good(&ucrypt(&["luksConfig", "--label", "x", image], b""));
    good(&ucrypt(&["luksErase", "-q", image], b""));
    for close in ["luksClose", "plainClose", "remove", "tcryptClose"] {
        let ran = ucrypt(&[close, "no such volume"], b"");
        assert!(!stderr(&ran).contains("unrecognized"), "{close}: {}", stderr(&ran));
    }
    let ran = ucrypt(&["tcryptOpen", image, "name"], b"");
    assert!(stderr(&ran).contains("tcryptOpen is not supported yet"), "{}", stderr(&ran));
}

#[test]
fn a_message_names_the_option_in_its_units_and_what_to_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str, len: u64| {
        let path = dir.path().join(name);
        fs::File::create(&path).and_then(|file| file.set_len(len)).expect("made");
        text(&path).to_owned()
    };
    let (image, empty) = (path("image", 20 << 20), path("empty", 20 << 20));
    let sizes = "aes-xts-plain64 takes keys of 256, 384 or 512 bits, not of 128";
    let format = [&["luksFormat", "-q"][..], CHEAP, &[&image]].concat();
    let refused = |line: &[&str], said: &str| {
        let ran = ucrypt(line, b"one");
        assert_eq!(code(&ran), 1, "{line:?}: {}", stderr(&ran));
        assert!(stderr(&ran).contains(said), "{line:?}: {}", stderr(&ran));
    };
    refused(&[&format[..], &["-s", "128"]].concat(), &format!("--key-size: {sizes}"));
    good(&ucrypt(&format, b"one"));
    let area = ["--keyslot-cipher", "aes-xts-plain64", "--keyslot-key-size", "128"];
    let said = format!("--keyslot-key-size: {sizes}");
    refused(&[&["luksAddKey", &image][..], &area].concat(), &said);
    refused(&["luksKillSlot", "-q", &image, "9"], "luksDump shows those that are");
    refused(&["luksDump", &empty], "--header");
    refused(&["open", "--test-passphrase", &empty], "--type plain");
    let backup = ["luksHeaderBackup", "--header-backup-file", &empty, &image];
    refused(&backup, "name a new one");
    let open = ["open", "--backend", "mem:1M", "--as", "nbd", "--key-size", "128", "volume"];
    refused(&open, "no key of 128 bits; use --key-size");
    let advise = ["lab", "advise", "--cipher", "aes-xts-plain64", "--key-size", "128", &image];
    refused(&advise, &format!("--key-size: {sizes}"));
    let uneven = "--key-size 100 is no multiple of 8 bits; 256 and 512 are usual";
    refused(&[&format[..], &["-s", "100"]].concat(), uneven);
    let pbkdf = ["luksAddKey", &image, "--pbkdf", "foo"];
    refused(&pbkdf, "PBKDF \"foo\" is not supported; use argon2id, argon2i or pbkdf2");
    refused(&["token", "add", &image], "token add needs --key-description NAME");
    refused(&["token", "unassign", "--token-id", "1", &image], "token unassign needs --key-slot");
    refused(&["config", &image], "config needs --label TEXT");
    for action in ["remove", "export"] {
        let unused = format!("token 3 is not in use; ucrypt luksDump {image} shows");
        refused(&["token", action, "--token-id", "3", &image], &unused);
    }
    let unbound = format!("holds no unbound key; ucrypt luksDump {image} shows");
    refused(&["luksDump", "--unbound", "-S", "0", &image], &unbound);
    let beyond = "offset 1G is behind the end of the volume, which has";
    refused(&["read", "--offset", "1G", &image], beyond);
    refused(&["resize", "--device-size", "1.5X", "x"], "'X' in '1.5X' is no unit of bytes");
    refused(&["status", "-x"], "unexpected argument");
    refused(&["status", "--", "-x"], "no '.' or '-' at the start");
    let restore = ["luksHeaderRestore", "-q", "--header-backup-file", &empty, &image];
    refused(&restore, &format!("{empty}: the backup cannot be used: no LUKS header"));
}

#[test]
fn a_file_that_is_not_there_is_named_with_what_it_was_to_be() {
    let both = Both::new(LUKS2);
    let image = text(&both.ours);
    let refused = |line: &[&str], expected: i32, said: &str| {
        let ran = ucrypt(line, b"one");
        assert_eq!(code(&ran), expected, "{line:?}: {}", stderr(&ran));
        assert!(stderr(&ran).contains(said), "{line:?}: {}", stderr(&ran));
        assert_eq!(stderr(&ran).lines().count(), 1, "{}", stderr(&ran));
    };
    let gone = "No such file or directory";
    refused(&["luksDump", "/no"], 4, &format!("cannot open /no: {gone}; check the path"));
    let header = format!("cannot open /no: {gone}; check the path; --header names the file");
    refused(&["open", "--test-passphrase", "--header", "/no", image], 4, &header);
    refused(&["luksUUID", "--header", "/no", image], 4, &header);
    refused(&["config", "--label", "x", "--header", "/no", image], 4, &header);
    refused(&["luksFormat", "-q", "/no"], 4, "/no does not exist; make it first");
    let key = ["open", "--test-passphrase", "--key-file", "/no", image];
    refused(&key, 1, &format!("cannot read --key-file /no: {gone}"));
    let new = [&["luksAddKey"][..], CHEAP, &[image, "/no"]].concat();
    refused(&new, 1, &format!("cannot read the new key file /no: {gone}"));
    refused(&["luksRemoveKey", image, "/no"], 1, "cannot read the key file /no");
    let volume = ["open", "--test-passphrase", "--volume-key-file", "/no", image];
    refused(&volume, 1, "cannot read --volume-key-file /no");
    let socket = ["serve", "--backend", "mem:1M", "--nbd", "unix:/no/s"];
    refused(&socket, 4, "; make its directory first");
}

#[test]
fn a_wrong_passphrase_is_told_with_its_image_and_a_line_break_in_its_key_file() {
    let both = Both::new(LUKS2);
    let image = text(&both.ours);
    let key = both.file("key", b"one\n");
    let wrong = format!("{image}: no keyslot is available with this passphrase; ");
    let refused = |line: &[&str], remedy: &str| {
        let ran = ucrypt(line, b"two\n");
        assert_eq!(code(&ran), 2, "{line:?}: {}", stderr(&ran));
        let said = stderr(&ran);
        assert!(said.contains(&wrong) && said.contains(remedy), "{line:?}: {said}");
        assert!(!said.contains("two") && said.lines().count() == 1, "{said}");
    };
    let test = ["open", "--test-passphrase", "--key-file", &key, image];
    let cut =
        format!("the line break at the end of {key} is a part of it: write the file without one");
    refused(&test, &cut);
    good(&ucrypt(&[&test[..], &["--keyfile-size", "3"]].concat(), b""));
    let dump = format!("ucrypt luksDump {image} shows the keyslots");
    refused(&["open", "--test-passphrase", image], &dump);
    refused(&["luksAddKey", image], &dump);
    refused(&["luksChangeKey", image], &dump);
    refused(&["luksConvertKey", image], &dump);
    refused(&["luksRemoveKey", image, &key], &cut);
    refused(&["luksKillSlot", "-q", image, "0", "--key-file", &key], &cut);
    let new = both.file("new", b"three");
    refused(&["luksRotateKey", image, "--key-file", &key, &new], &cut);
    refused(&["luksDump", "-q", "--dump-volume-key", "--key-file", &key, image], &cut);
}
