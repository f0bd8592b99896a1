//! `luksFormat`, `luksDump`, `isLuks`, `luksUUID` as processes: options, prompts, exit codes, with
//! cryptsetup as the reference.

mod luks;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use luks::{CHEAP, PASSPHRASE, Scratch, Terminal, UCRYPT, code, good, run, stderr, text, ucrypt};

const CHEAP_ARGON2: &[&str] = &["--pbkdf-memory", "32", "--pbkdf-force-iterations", "4"];

fn cryptsetup_opens(image: &Path, more: &[&str]) {
    let args = ["open", "--test-passphrase", "--key-file", "-", text(image)];
    good(&run("cryptsetup", &[&args[..], more].concat(), PASSPHRASE));
}

#[test]
fn cryptsetup_opens_and_dumps_every_format_the_same() {
    let offset = ["--offset", "8192", "--uuid", "01234567-89ab-cdef-0123-456789abcdef"];
    for (kind, cipher, bits, more) in [
        ("luks1", "aes-xts-plain64", "512", CHEAP),
        ("luks1", "aes-xts-plain64", "256", CHEAP),
        ("luks1", "aes-cbc-essiv:sha256", "256", CHEAP),
        ("luks2", "aes-xts-plain64", "512", CHEAP),
        ("luks2", "aes-xts-plain64", "512", CHEAP_ARGON2),
        ("luks2", "aes-cbc-essiv:sha256", "128", CHEAP_ARGON2),
    ] {
        for extra in [&[][..], &["--hash", "sha512", "--key-slot", "3"], &offset] {
            let scratch = Scratch::new();
            let args = ["--type", kind, "--cipher", cipher, "--key-size", bits];
            good(&scratch.format(&[&args, more, extra].concat()));
            let image = scratch.image();
            cryptsetup_opens(&image, &[]);

            let dump = ["luksDump", text(&image)];
            assert_eq!(good(&ucrypt(&dump, b"")), good(&run("cryptsetup", &dump, b"")));
            let key = ["luksDump", "-q", "--dump-volume-key", "--key-file", "-", text(&image)];
            let ours = good(&ucrypt(&key, PASSPHRASE));
            assert_eq!(ours, good(&run("cryptsetup", &key, PASSPHRASE)));
            assert_eq!(code(&ucrypt(&key, b"wrong")), 2);
            let uuid = ["luksUUID", text(&image)];
            assert_eq!(good(&ucrypt(&uuid, b"")), good(&run("cryptsetup", &uuid, b"")));
            let is_luks = |kind| code(&ucrypt(&["isLuks", "--type", kind, text(&image)], b""));
            assert_eq!((is_luks("luks"), is_luks(kind)), (0, 0));
            assert_eq!(is_luks(if kind == "luks1" { "luks2" } else { "luks1" }), 1);
        }
    }
}

#[test]
fn places_of_data_and_sources_of_keys_are_cryptsetups() {
    for args in [
        &["--offset", "0"][..],
        &["--offset", "2048"],
        &["--offset", "8192", "--luks2-keyslots-size", "4m"],
        &["--volume-key-file", "/dev/urandom", "--key-size", "512"],
    ] {
        let (ours, theirs) = (Scratch::new(), Scratch::new());
        let said = stderr(&ours.format(&[args, CHEAP].concat()));
        let image = theirs.image();
        let format = [&["luksFormat", "-q", text(&image)], args, CHEAP].concat();
        good(&run("cryptsetup", &format, PASSPHRASE));
        let places = |image: &Path| {
            let dump = good(&run("cryptsetup", &["luksDump", text(image)], b""));
            let is_place = |line: &&str| line.contains("offset:") || line.contains("area:");
            dump.lines().filter(is_place).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(places(&ours.image()), places(&image), "{args:?}");
        cryptsetup_opens(&ours.image(), &[]);
        let shrunk = args.contains(&"4m");
        assert_eq!(said.contains("keyslots area size changed to 4161536 bytes"), shrunk, "{said}");
    }
}

#[test]
fn a_cipher_without_a_mode_is_stored_as_cryptsetup_stores_it() {
    for kind in ["luks1", "luks2"] {
        let (ours, theirs) = (Scratch::new(), Scratch::new());
        let args = ["--type", kind, "--cipher", "aes", "--key-size", "256"];
        good(&ours.format(&[&args, CHEAP].concat()));
        let image = theirs.image();
        let more = ["luksFormat", "-q", text(&image)];
        good(&run("cryptsetup", &[&more, &args[..], CHEAP].concat(), PASSPHRASE));
        cryptsetup_opens(&ours.image(), &[]);
        let ciphers = |scratch: &Scratch| {
            let dump = good(&run("cryptsetup", &["luksDump", text(&scratch.image())], b""));
            let lines = dump.lines().filter(|line| line.to_lowercase().contains("cipher"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(ciphers(&ours), ciphers(&theirs));
        assert!(ciphers(&ours).iter().any(|line| line.contains("cbc-plain")));
    }
}

#[test]
fn luks2_options_reach_the_header() {
    let scratch = Scratch::new();
    let mut args = vec!["--label", "a label", "--subsystem", "a subsystem"];
    args.extend(["--luks2-metadata-size", "64k", "--luks2-keyslots-size", "1M"]);
    args.extend(["--sector-size", "1024"]);
    args.extend(CHEAP_ARGON2);
    good(&scratch.format(&args));
    cryptsetup_opens(&scratch.image(), &[]);
    let image = scratch.image();
    let dump = good(&ucrypt(&["luksDump", text(&image)], b""));
    for line in [
        "Metadata area: \t65536 [bytes]",
        "Keyslots area: \t1048576 [bytes]",
        "Label:         \ta label",
        "Subsystem:     \ta subsystem",
        "\toffset: 2097152 [bytes]",
        "\tsector: 1024 [bytes]",
        "\tPBKDF:      argon2id",
    ] {
        assert!(dump.contains(line), "{line} is missing in\n{dump}");
    }
    let stored = ["luksDump", "--dump-json-metadata", text(&image)];
    assert_eq!(good(&ucrypt(&stored, b"")), good(&run("cryptsetup", &stored, b"")));
    let json = good(&ucrypt(&["luksDump", "--json", text(&image)], b""));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["label"], &json["keyslots_size"]), (&"a label".into(), &(1 << 20).into()));
}

/// With next to no time, the least that each program takes.
#[test]
fn a_measured_keyslot_has_no_less_memory_than_cryptsetups() {
    for (args, expected) in [
        (&[][..], (65536, 4)),
        (&["--pbkdf", "argon2i"], (65536, 4)),
        (&["--pbkdf-memory", "20000", "--pbkdf-parallel", "1"], (20000, 4)),
    ] {
        let (ours, theirs) = (Scratch::new(), Scratch::new());
        let options = [&["--iter-time", "1"], args].concat();
        good(&ours.format(&options));
        let image = theirs.image();
        let format = [&["luksFormat", "-q", text(&image)], &options[..]].concat();
        good(&run("cryptsetup", &format, PASSPHRASE));
        for image in [ours.image(), image] {
            let dump = ["luksDump", "--dump-json-metadata", text(&image)];
            let json = good(&run("cryptsetup", &dump, b""));
            let json: serde_json::Value = serde_json::from_str(&json).unwrap();
            let kdf = &json["keyslots"]["0"]["kdf"];
            let found = (kdf["memory"].as_u64().unwrap(), kdf["time"].as_u64().unwrap());
            assert_eq!(found, expected, "{args:?} {}", image.display());
        }
    }
}

#[test]
fn a_weak_volume_key_is_refused_by_the_rule_and_nothing_is_written() {
    let scratch = Scratch::new();
    let (image, volume_key) = (scratch.image(), scratch.path("volume-key"));
    let before = fs::read(&image).unwrap();
    fs::write(&volume_key, [7; 64]).unwrap();
    let output = scratch.format(&[CHEAP, &["--volume-key-file", text(&volume_key)]].concat());
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(code(&output), 1, "{message}");
    assert!(message.contains("the two halves of an XTS key have to differ"), "{message}");
    assert_eq!(fs::read(&image).unwrap(), before);
}

#[test]
fn key_files_offsets_and_volume_keys_are_read_as_cryptsetup_reads_them() {
    let scratch = Scratch::new();
    let (image, key_file) = (scratch.image(), scratch.path("key"));
    fs::write(&key_file, b"0123456789\nabc").unwrap();
    let volume_key = scratch.path("volume-key");
    let key: Vec<u8> = (0..64).collect();
    fs::write(&volume_key, &key).unwrap();
    let part = ["--keyfile-offset", "2", "--keyfile-size", "10"];
    let given = ["--key-file", text(&key_file), "--volume-key-file", text(&volume_key)];
    good(&scratch.format(&[CHEAP, &given, &part].concat()));
    let args = ["open", "--test-passphrase", "--key-file", text(&key_file), text(&image)];
    good(&run("cryptsetup", &[&args[..], &part].concat(), b""));
    assert_eq!(code(&run("cryptsetup", &args, b"")), 2);

    let copy = scratch.path("copy");
    let args = ["luksDump", "--dump-volume-key", "--volume-key-file", text(&copy), text(&image)];
    let dumped = good(&ucrypt(&[&args, &given[..2], &part].concat(), b""));
    assert!(dumped.ends_with(&format!("Key stored to file {}.\n", copy.display())), "{dumped}");
    assert_eq!(fs::read(&copy).unwrap(), key);
    // The key does not overwrite an existing file.
    assert_eq!(code(&ucrypt(&[&args, &given[..2], &part].concat(), b"")), 1);

    // The new key file as the second argument, as in cryptsetup: the whole file is the passphrase.
    good(&ucrypt(&[&["luksFormat"], CHEAP, &[text(&image), text(&key_file)]].concat(), b""));
    let args = ["open", "--test-passphrase", "--key-file", text(&key_file), text(&image)];
    good(&run("cryptsetup", &args, b""));
    // A passphrase on standard input ends at the newline.
    let stdin = b"one line\nanother";
    good(&ucrypt(&[&["luksFormat"], CHEAP, &[text(&image)]].concat(), stdin));
    good(&run("cryptsetup", &["open", "--test-passphrase", text(&image)], b"one line"));
}

#[test]
fn a_detached_header_is_made_and_the_data_left_alone() {
    for kind in ["luks1", "luks2"] {
        let scratch = Scratch::new();
        let (image, header) = (scratch.image(), scratch.path("header"));
        let before = vec![0x5a; 1 << 20];
        fs::write(&image, &before).unwrap();
        let args = ["--type", kind, "--header", text(&header)];
        good(&scratch.format(&[&args, CHEAP].concat()));
        cryptsetup_opens(&image, &["--header", text(&header)]);
        assert!(fs::read(&image).unwrap() == before);
        assert_eq!(code(&ucrypt(&["isLuks", text(&image)], b"")), 1);
        assert_eq!(code(&ucrypt(&["isLuks", text(&header)], b"")), 0);
        let dump = ["luksDump", text(&image), "--header", text(&header)];
        assert_eq!(good(&ucrypt(&dump, b"")), good(&run("cryptsetup", &dump, b"")));
    }
}

#[test]
fn the_image_itself_as_its_header_is_the_same_as_none() {
    for kind in ["luks1", "luks2"] {
        let (scratch, other) = (Scratch::new(), Scratch::new());
        let image = scratch.image();
        let uuid = ["--type", kind, "--uuid", "01234567-89ab-cdef-0123-456789abcdef"];
        good(&scratch.format(&[&uuid, &["--header", text(&image)][..], CHEAP].concat()));
        good(&other.format(&[&uuid, CHEAP].concat()));
        cryptsetup_opens(&image, &[]);
        let offsets = |image: &Path| {
            let dump = good(&ucrypt(&["luksDump", text(image)], b""));
            let lines = dump.lines().filter(|line| line.to_lowercase().contains("offset"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(offsets(&image), offsets(&other.image()));
    }
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_is_written() {
    let scratch = Scratch::new();
    let before = fs::read(scratch.image()).unwrap();
    for (args, expected, words) in [
        (&["--type", "luks1", "--label", "x"][..], 1, "LUKS1 has no --label"),
        (&["--type", "luks1", "--sector-size", "4096"], 1, "LUKS1 has no --sector-size"),
        (&["--type", "luks1", "--pbkdf", "argon2id"], 1, "no other PBKDF than pbkdf2"),
        (&["--type", "luks3"], 1, "luks3"),
        (&["--cipher", "aes-xyz-plain64"], 1, "xyz"),
        (&["--key-size", "500"], 1, "multiple of 8"),
        (&["--key-size", "504"], 1, "512 bits"),
        (&["--hash", "md5"], 1, "too short for LUKS"),
        (&["--hash", "md6"], 1, "hash \"md6\" is not supported"),
        (&["--pbkdf", "scrypt"], 1, "\"scrypt\""),
        (&["--pbkdf-force-iterations", "3"], 1, "too low for argon2id (minimum is 4)"),
        (
            &["--pbkdf-memory", "31", "--pbkdf-force-iterations", "4"],
            1,
            "(minimum is 32 kilobytes)",
        ),
        (&["--iter-time", "0"], 1, "gives no security"),
        (&["--iter-time", "10", "--pbkdf-force-iterations", "4"], 1, "cannot be used"),
        (&["--sector-size", "8192"], 1, "8192"),
        (&["--offset", "7"], 1, "multiple of 4096"),
        (&["--offset", "99999999999999999999"], 1, "number too large"),
        (&["--uuid", "nothing"], 1, "not a UUID"),
        (&["--key-slot", "32"], 1, "keyslot 32"),
        (&["--key-file", "/nonexistent"], 1, "/nonexistent"),
        (&["--luks2-metadata-size", "17k"], 1, "power of two"),
        (&["--offset", "65536"], 1, "enlarge it"),
    ] {
        let cheap: &[&str] =
            if args.iter().any(|arg| arg.starts_with("--pbkdf") || arg.starts_with("--iter")) {
                &[]
            } else {
                CHEAP
            };
        let output = scratch.format(&[args, cheap].concat());
        assert_eq!(code(&output), expected, "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{args:?}: {}", stderr(&output));
        assert!(fs::read(scratch.image()).unwrap() == before, "{args:?} has written");
    }
    let small = scratch.make("small", 1 << 20);
    let output = ucrypt(&[&["luksFormat"], CHEAP, &[text(&small)]].concat(), PASSPHRASE);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("enlarge it"), "{}", stderr(&output));
    let missing = scratch.path("missing");
    for action in ["luksFormat", "luksDump", "isLuks", "luksUUID"] {
        assert_eq!(code(&ucrypt(&[action, text(&missing)], b"")), 4, "{action}");
    }
    for action in ["luksDump", "luksUUID"] {
        let output = ucrypt(&[action, text(&small)], b"");
        assert_eq!(code(&output), 1);
        assert!(stderr(&output).contains("no LUKS header"), "{}", stderr(&output));
    }
    assert_eq!(code(&ucrypt(&["isLuks", text(&small)], b"")), 1);
}

/// The fields of a LUKS1 header, by their place: what cryptsetup does not know makes it no LUKS.
#[test]
fn a_header_with_unknown_names_is_luks_where_cryptsetup_says_so() {
    let scratch = Scratch::new();
    good(&scratch.format(&[&["--type", "luks1", "--key-size", "256"], CHEAP].concat()));
    let sound = fs::read(scratch.image()).unwrap();
    let path = scratch.image();
    for (at, bytes, expected) in [
        (72, &b"nohash\0"[..], 1),
        (72, b"md5\0\0\0\0", 1),
        (72, b"\0", 1),
        (72, b"SHA256\0", 0),
        (8, b"nocipher\0", 0),
        (40, b"nomode\0", 0),
        (6, &[0, 3], 1),
    ] {
        let mut image = sound.clone();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        fs::write(&path, &image).unwrap();
        for kind in ["luks", "luks1", "luks2"] {
            let args = ["isLuks", "--type", kind, text(&path)];
            let ours = ucrypt(&args, b"");
            let told = format!("{bytes:?} {kind}: {}", stderr(&ours));
            assert_eq!(code(&ours), if kind == "luks2" { 1 } else { expected }, "{told}");
            assert_eq!(code(&ours), code(&run("cryptsetup", &args, b"")), "{told}");
            // The exit code is the answer, and -v tells why.
            assert!(ours.stdout.is_empty() && ours.stderr.is_empty(), "{told}");
        }
        let ours = ucrypt(&["isLuks", "-v", text(&path)], b"");
        assert!(stderr(&ours).contains(if expected == 0 { "successful" } else { "failed" }));
        if bytes.starts_with(b"nohash") {
            assert!(stderr(&ours).contains("hash \"nohash\""), "{}", stderr(&ours));
        }
    }
}

/// The Whirlpool of old libgcrypt differs only where the last part of a key is short.
#[test]
fn a_header_with_the_whirlpool_of_old_libgcrypt_opens() {
    for (bits, is_same) in [("256", false), ("512", true)] {
        let scratch = Scratch::new();
        let args = ["--type", "luks1", "--key-size", bits, "--hash", "whirlpool_gcryptbug"];
        good(&scratch.format(&[&args, CHEAP].concat()));
        let image = scratch.image();
        let test = ["open", "--test-passphrase", text(&image)];
        good(&ucrypt(&test, PASSPHRASE));
        assert_eq!(code(&ucrypt(&test, b"wrong")), 2);
        let shown = good(&ucrypt(&["luksDump", text(&image)], b""));
        assert!(shown.contains("Hash spec:     \twhirlpool_gcryptbug\n"), "{shown}");
        // The same header, read with the right Whirlpool.
        let file = fs::File::options().write(true).open(&image).unwrap();
        file.write_all_at(b"whirlpool\0\0\0\0\0\0\0\0\0\0\0", 72).unwrap();
        for program in [UCRYPT, "cryptsetup"] {
            let ran = run(program, &test, PASSPHRASE);
            assert_eq!(code(&ran), if is_same { 0 } else { 2 }, "{program}: {}", stderr(&ran));
        }
    }
}

/// A superblock of md, version 1.0, which lies 8 KiB before the end.
fn md_superblock(offset: u64) -> Vec<u8> {
    let mut block = vec![0; 256];
    block[..8].copy_from_slice(b"\xfc\x4e\x2b\xa9\x01\0\0\0");
    block[16..32].fill(0x5a);
    block[144..152].copy_from_slice(&(offset / 512).to_le_bytes());
    block
}

/// The messages of a program that formats an image on which `bytes` lie at `offset`.
fn warnings(program: &str, offset: u64, bytes: &[u8]) -> Vec<String> {
    let scratch = Scratch::new();
    let image = scratch.image();
    let file = fs::File::options().write(true).open(&image).unwrap();
    file.write_all_at(bytes, offset).unwrap();
    let output = run(program, &[&["luksFormat"], CHEAP, &[text(&image)]].concat(), PASSPHRASE);
    let said = [good(&output), stderr(&output)].concat().replace(text(&image), "IMAGE");
    let seen = good(&run("wipefs", &["--no-act", "--parsable", text(&image)], b""));
    let left: Vec<&str> = seen.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(left.iter().all(|line| line.ends_with(",crypto_LUKS")), "{program}: {left:?}");
    said.lines().filter(|line| line.starts_with("WARNING")).map(str::to_owned).collect()
}

#[test]
fn signatures_at_both_ends_are_named_as_cryptsetup_names_them_and_wiped() {
    let len = 18 << 20;
    for (offset, bytes, name) in [
        (len - 0x2000, md_superblock(len - 0x2000), "linux_raid_member"),
        (0x1000, md_superblock(0x1000), "linux_raid_member"),
        (len - 1024, b"Intel Raid ISM Cfg Sig. 1.1.00".to_vec(), "isw_raid_member"),
        (len - 512, b"\xde\x11\xde\x11".to_vec(), "ddf_raid_member"),
        (0, b"bluestore block device\n".to_vec(), "ceph_bluestore"),
        (0xff6, b"S1SUSPEND".to_vec(), "swsuspend"),
    ] {
        let said = warnings(UCRYPT, offset, &bytes);
        let expected =
            format!("WARNING: Device IMAGE already contains a '{name}' superblock signature.");
        assert_eq!(said, [expected]);
        assert_eq!(said, warnings("cryptsetup", offset, &bytes));
    }
}

#[test]
fn in_batch_mode_signatures_are_wiped_without_a_word() {
    let scratch = Scratch::new();
    let image = scratch.image();
    let file = fs::File::options().write(true).open(&image).unwrap();
    let offset = (18 << 20) - 0x2000;
    file.write_all_at(&md_superblock(offset), offset).unwrap();
    let output = scratch.format(&[CHEAP, &["-q"]].concat());
    good(&output);
    assert_eq!(stderr(&output), "");
    let seen = good(&run("wipefs", &["--no-act", "--parsable", text(&image)], b""));
    assert!(!seen.contains("linux_raid_member"), "{seen}");
}

#[test]
fn an_old_header_is_named_and_nothing_of_it_is_left() {
    let scratch = Scratch::new();
    good(&scratch.format(&[&["--type", "luks2", "--luks2-metadata-size", "4m"], CHEAP].concat()));
    let output = scratch.format(&[&["--type", "luks1"], CHEAP].concat());
    good(&output);
    let words = "already contains a 'crypto_LUKS' superblock signature";
    assert!(stderr(&output).contains(words), "{}", stderr(&output));
    // The old second copy lay in the present data area.
    let image = fs::read(scratch.image()).unwrap();
    assert!(!image.windows(6).any(|window| window == b"SKUL\xba\xbe"));
}

#[test]
fn a_format_that_fails_leaves_no_file_behind() {
    let scratch = Scratch::new();
    let (image, header) = (scratch.image(), scratch.path("header"));
    let before = fs::read(&image).unwrap();
    for args in [&["--key-file", "/nonexistent"][..], &["--offset", "65"]] {
        let output = scratch.format(&[args, &["--header", text(&header)], CHEAP].concat());
        assert_eq!(code(&output), 1, "{}", stderr(&output));
        assert!(!header.exists(), "{args:?}");
        assert!(fs::read(&image).unwrap() == before, "{args:?}");
    }
}

#[test]
fn a_damaged_copy_is_told_and_not_repaired_by_looking() {
    let scratch = Scratch::new();
    good(&scratch.format(CHEAP));
    let mut image = fs::read(scratch.image()).unwrap();
    image[4100] ^= 1;
    fs::write(scratch.image(), &image).unwrap();
    let path = scratch.image();
    let output = ucrypt(&["luksDump", text(&path)], b"");
    good(&output);
    assert!(stderr(&output).contains("primary LUKS2 header copy is unusable"));
    good(&ucrypt(&["isLuks", text(&path)], b""));
    assert!(fs::read(&path).unwrap() == image);
}

#[test]
fn an_image_in_use_can_be_looked_at_and_not_formatted() {
    let scratch = Scratch::new();
    good(&scratch.format(CHEAP));
    let before = fs::read(scratch.image()).unwrap();
    let path = scratch.image();
    let user = ucrypt_backend::FileBackend::open(&path, ucrypt_backend::OpenOptions::default());
    let user = user.unwrap();
    let output = scratch.format(CHEAP);
    assert_eq!(code(&output), 5, "{}", stderr(&output));
    assert!(fs::read(&path).unwrap() == before);
    good(&ucrypt(&["luksDump", text(&path)], b""));
    good(&ucrypt(&["isLuks", text(&path)], b""));
    drop(user);
    good(&scratch.format(CHEAP));
}

#[test]
fn a_person_is_asked_for_consent_and_twice_for_the_passphrase() {
    let scratch = Scratch::new();
    let path = scratch.image();
    let before = fs::read(&path).unwrap();
    let args = [&["luksFormat"], CHEAP, &[text(&path)]].concat();
    let sure = "Are you sure? (Type 'yes' in capital letters): ";

    let mut terminal = Terminal::start(&args);
    terminal.expect(sure, "yes\n");
    let (code, said) = terminal.end();
    assert_eq!(code, 1, "{said}");
    assert!(fs::read(&path).unwrap() == before);

    let mut terminal = Terminal::start(&args);
    terminal.expect(sure, "YES\n");
    terminal.expect("Enter passphrase for ", "secret\n");
    terminal.expect("Verify passphrase: ", "sekret\n");
    let (code, said) = terminal.end();
    assert_eq!(code, 2, "{said}");
    assert!(fs::read(&path).unwrap() == before);

    let mut terminal = Terminal::start(&args);
    terminal.expect(sure, "YES\n");
    terminal.expect("Enter passphrase for ", "secret\n");
    terminal.expect("Verify passphrase: ", "secret\n");
    let (code, said) = terminal.end();
    assert_eq!(code, 0, "{said}");
    assert!(!said.contains("secret"), "the passphrase was echoed: {said}");
    good(&run("cryptsetup", &["open", "--test-passphrase", text(&path)], b"secret"));

    // Batch mode asks only for the passphrase.
    let mut terminal = Terminal::start(&[&args[..], &["-q"]].concat());
    terminal.expect("Enter passphrase for ", "other\n");
    assert_eq!(terminal.end().0, 0);
    good(&run("cryptsetup", &["open", "--test-passphrase", text(&path)], b"other"));
}

#[test]
fn a_volume_whose_iv_or_key_is_unusual_opens_with_the_default_sector_size() {
    for (cipher, bits, sector) in [
        ("aes-cbc-tcw", "448", "512"),
        ("aes:64-cbc-lmk", "8192", "512"),
        ("cipher_null-ecb", "4104", "4096"),
        ("cipher_null-ecb", "8192", "4096"),
    ] {
        let scratch = Scratch::new();
        let options = ["-q", "--cipher", cipher, "--key-size", bits];
        good(&scratch.format(&[&options, CHEAP].concat()));
        let image = scratch.image();
        let dump = good(&ucrypt(&["luksDump", text(&image)], b""));
        assert!(dump.contains(&format!("sector: {sector} [bytes]")), "{cipher}: {dump}");
        let key = scratch.path("key");
        fs::write(&key, PASSPHRASE).unwrap();
        let at = ["--key-file", text(&key), text(&image)];
        good(&ucrypt(&[&["write"], &at[..]].concat(), b"data"));
        let read = ucrypt(&[&["read", "--length", "4"], &at[..]].concat(), b"");
        assert_eq!(good(&read), "data", "{cipher} {bits}");
        // An option that does not go with the cipher leaves what is there.
        let before = fs::read(&image).unwrap();
        if sector == "512" {
            let large = [&options[..], &["--sector-size", "4096"], CHEAP].concat();
            let output = scratch.format(&large);
            assert_eq!(code(&output), 1, "{}", stderr(&output));
            assert!(stderr(&output).contains("512-byte sectors"), "{}", stderr(&output));
            assert!(fs::read(&image).unwrap() == before, "{cipher}");
        }
    }
}

/// dm-crypt does not activate a volume of a part of a sector.
#[test]
fn a_sector_size_that_does_not_divide_the_data_is_refused_as_by_cryptsetup() {
    const WORDS: &str = "Device size is not aligned to requested sector size";
    let scratch = Scratch::new();
    for (more, size, expected) in [
        (512, "512", 0),
        (512, "1024", 1),
        (512, "4096", 1),
        (1024, "1024", 0),
        (1024, "2048", 1),
        (2048, "4096", 1),
        (77, "512", 0),
        (77, "1024", 1),
        (0, "4096", 0),
    ] {
        for detached in [false, true] {
            for program in [UCRYPT, "cryptsetup"] {
                let image = scratch.make("image", (18 << 20) + more);
                let header = scratch.path("header");
                let _ = fs::remove_file(&header);
                let at: &[&str] = if detached { &["--header", text(&header)] } else { &[] };
                let format = ["luksFormat", "-q", "--sector-size", size, text(&image)];
                let ran = run(program, &[&format[..], at, CHEAP].concat(), PASSPHRASE);
                let told = stderr(&ran);
                assert_eq!(code(&ran), expected, "{program} {more} {size} {detached}: {told}");
                assert_eq!(told.contains(WORDS), expected == 1, "{told}");
                if program == UCRYPT && expected == 1 {
                    assert!(!header.exists());
                    assert!(fs::read(&image).unwrap().iter().all(|byte| *byte == 0));
                }
            }
        }
    }
}

/// As by cryptsetup, whose words are others; and told, too, of less than a sector.
#[test]
fn a_volume_without_room_for_data_is_told_wherever_its_header_is() {
    const HEADER: u64 = 16 << 20;
    for (len, args, told) in [
        (20 << 20, &["--header", "HEADER", "--offset", "65536"][..], true),
        (20 << 20, &["--header", "HEADER", "--offset", "40960"], true),
        (20 << 20, &["--header", "HEADER", "--offset", "40952"], false),
        (0, &["--header", "HEADER"], true),
        (0, &["--header", "HEADER", "--type", "luks1"], true),
        (511, &["--header", "HEADER"], true),
        (512, &["--header", "HEADER"], false),
        (HEADER, &[], true),
        (HEADER + 100, &[], true),
        (HEADER + 512, &[], false),
    ] {
        let scratch = Scratch::new();
        let (image, header) = (scratch.make("small", len), scratch.path("header"));
        let args: Vec<&str> =
            args.iter().map(|arg| if *arg == "HEADER" { text(&header) } else { arg }).collect();
        let format = ["luksFormat", "-q", text(&image)];
        let ran = ucrypt(&[&format[..], &args, CHEAP].concat(), b"one");
        good(&ran);
        let warned = stderr(&ran).contains(&format!("{} is too small", image.display()));
        assert_eq!(warned, told, "{len} {args:?}: {}", stderr(&ran));
    }
}

/// A limit of the shell (`ulimit -f`) on the size of files. cryptsetup meets it in the middle.
#[test]
fn a_limit_on_the_size_of_files_is_met_before_the_old_header_is_gone() {
    let scratch = Scratch::new();
    good(&scratch.format(CHEAP));
    let image = scratch.image();
    let before = fs::read(&image).unwrap();
    // In KiB: the second copy of the header, and the keyslots, lie behind it.
    for limit in ["8", "100"] {
        let shell = ["-c", "ulimit -f $0; exec \"$@\"", limit, UCRYPT];
        let format = [&["luksFormat", "-q"], CHEAP, &[text(&image)]].concat();
        let ran = run("bash", &[&shell[..], &format].concat(), b"other");
        assert_eq!(code(&ran), 4, "{}", stderr(&ran));
        assert!(stderr(&ran).contains("File too large"), "{}", stderr(&ran));
        assert!(fs::read(&image).unwrap() == before, "{limit} KiB: something was written");
    }
}
