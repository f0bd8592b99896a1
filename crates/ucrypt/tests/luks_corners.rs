//! Corners that few walk, done by this command on one image and by cryptsetup on a copy of it.

mod luks;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock, major, minor};

use luks::both::{Both, LUKS1, LUKS2, header};
use luks::{CHEAP, Scratch, Terminal, UCRYPT, code, good, run, stderr, text, ucrypt};

/// What concerns no keyslot with a key is computed again. Nothing of a keyslot with a key is touched.
#[test]
fn a_luks1_header_is_mended_as_cryptsetup_mends_it() {
    const KEYSLOT: usize = 48;
    let field = |number: usize, at: usize| 208 + KEYSLOT * number + at;
    let (offset, stripes) = (40, 44);
    let both = Both::new(LUKS1);
    both.does(&[&["luksAddKey", "-S", "3"], CHEAP, &["IMAGE"]].concat(), b"one\nthree");
    let sound = fs::read(&both.ours).unwrap();
    let set = |at: usize, bytes: &[u8]| (at, bytes.to_vec());
    for (damage, words) in [
        (
            vec![set(field(7, stripes), &[0, 0, 0, 3])],
            Ok("Keyslot 7: stripes repaired (3 -> 4000)."),
        ),
        (vec![set(field(2, offset), &[0; 4])], Ok("Keyslot 2: offset repaired (0 -> 520).")),
        // In the place of keyslot 0, and far behind the data.
        (vec![set(field(1, offset), &[0, 0, 0, 8])], Ok("Keyslot 1: offset repaired (8 -> 264).")),
        (vec![set(field(6, offset), &[0xff; 4])], Ok("Keyslot 6: salt wiped.")),
        (
            vec![set(field(6, stripes), &[9; 4]), set(510, &[0x55, 0xaa])],
            Ok("Keyslot 6: bogus partition signature."),
        ),
        // The partition table of a disk with one partition.
        (
            vec![set(446, &[0; 64]), set(450, &[0x83, 7, 7, 7, 0, 8]), set(510, &[0x55, 0xaa])],
            Ok("Keyslot 5: offset repaired"),
        ),
        (vec![set(72, b"SHA256")], Ok("Cipher hash repaired to lowercase (sha256).")),
        // What lies behind a name stays, and a name that is damaged keeps all of it from being written.
        (
            vec![set(40 + 20, b"left"), set(field(7, stripes), &[9; 4])],
            Ok("Keyslot 7: stripes repaired"),
        ),
        (vec![set(40, b"\0"), set(field(7, stripes), &[9; 4])], Err("cipher mode: it is empty")),
        (vec![set(8, b"nocipher\0"), set(field(7, stripes), &[9; 4])], Err("nocipher")),
        // These hold keys.
        (vec![set(field(0, stripes), &[0, 0, 0, 3])], Err("keyslot 0: 3 stripes")),
        (vec![set(field(3, offset), &[0, 0, 0, 1])], Err("keyslot 3: its key material")),
        (
            vec![set(field(0, offset), &[0, 0, 0, 2]), set(field(7, stripes), &[9; 4])],
            Err("keyslot 0: its key material begins"),
        ),
        // The length of the key, and where the data begins.
        (vec![set(108, &[0, 0, 0, 48])], Err("key bytes")),
        (vec![set(104, &[0, 0, 0, 1])], Err("reaches into the data")),
    ] {
        let mut image = sound.clone();
        for (at, bytes) in &damage {
            image[*at..][..bytes.len()].copy_from_slice(bytes);
        }
        for path in [&both.ours, &both.theirs] {
            fs::write(path, &image).unwrap();
        }
        let [ours, theirs] = [(UCRYPT, &both.ours), ("cryptsetup", &both.theirs)]
            .map(|(program, image)| run(program, &["repair", "-q", text(image)], b""));
        let said = stderr(&ours);
        let after = fs::read(&both.ours).unwrap();
        match words {
            Ok(words) => {
                assert_eq!((code(&ours), code(&theirs)), (0, 0), "{damage:?}: {said}");
                assert!(said.contains(words) && stderr(&theirs).contains(words), "{said}");
                let theirs = fs::read(&both.theirs).unwrap();
                assert_eq!(after[..592], theirs[..592], "{damage:?}");
                assert!(after[592..] == image[592..]);
                both.opens(&["one", "three"], &["two"]);
                let ran = ucrypt(&["repair", text(&both.ours)], b"");
                assert!(stderr(&ran).contains("No known problems"), "{}", stderr(&ran));
            }
            Err(words) => {
                assert!(code(&ours) == 1 && said.contains(words), "{damage:?}: {said}");
                assert!(after == image, "{damage:?}: it has written");
            }
        }
    }
    // A person is told what is mended, and asked.
    let mut image = sound.clone();
    image[field(5, stripes) + 3] = 1;
    fs::write(&both.ours, &image).unwrap();
    for (answer, expected) in [("no\n", 1), ("YES\n", 0)] {
        assert!(fs::read(&both.ours).unwrap() == image);
        let mut terminal = Terminal::start(&["repair", text(&both.ours)]);
        terminal.expect("Keyslot 5: stripes repaired (3841 -> 4000).", answer);
        assert_eq!(terminal.end().0, expected);
    }
    assert!(fs::read(&both.ours).unwrap()[..592] == sound[..592]);
}

/// What the format keeps for itself, a token that is not what its type says, and who may read an export.
#[test]
fn tokens_that_cryptsetup_refuses_are_refused_and_an_export_is_private() {
    let both = Both::new(LUKS2);
    for (token, expected) in [
        (&br#"{"type":"luks2-own","keyslots":[]}"#[..], 1),
        (br#"{"type":"luks2-keyring","keyslots":[]}"#, 1),
        (br#"{"type":"luks2-keyring","keyslots":[],"key_description":""}"#, 1),
        (br#"{"type":"luks2-keyring","keyslots":[],"key_description":3}"#, 1),
        (br#"{"type":"luks2-keyring","keyslots":[],"key_description":"k","more":1}"#, 1),
        (br#"{"type":"luks2-keyring","keyslots":["0"],"key_description":"k"}"#, 0),
        (br#"{"type":"luks","keyslots":[],"key_description":""}"#, 0),
        (br#"{"type":"other-luks2-keyring","keyslots":["0"],"more":1}"#, 0),
    ] {
        let [ours, _] = both.act(&["token", "import", "IMAGE"], token);
        let token = String::from_utf8_lossy(token);
        assert_eq!(code(&ours), expected, "{token}: {}", stderr(&ours));
    }
    let [ours, _] = both.act(&["token", "add", "--key-description", "", "IMAGE"], b"");
    assert_eq!(code(&ours), 1, "{}", stderr(&ours));
    for (program, image) in [(UCRYPT, &both.ours), ("cryptsetup", &both.theirs)] {
        let file = both.scratch.path("exported");
        let export =
            ["token", "export", "--token-id", "0", "--json-file", text(&file), text(image)];
        good(&run(program, &export, b""));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{program}");
        fs::remove_file(&file).unwrap();
    }
}

/// A header has room for 47 bytes, which may end inside a character.
#[test]
fn labels_are_cut_as_cryptsetup_cuts_them_and_that_is_told() {
    let both = Both::new(LUKS2);
    let uuid = ["--uuid", "01234567-89ab-cdef-0123-456789abcdef"];
    for (label, is_cut) in
        [("a".repeat(47), false), ("b".repeat(48), true), ("\u{e4}".repeat(24), true)]
    {
        let labels = ["--label", &label, "--subsystem", &label];
        let config = [&["config"], &labels[..]].concat();
        let format = [&["luksFormat", "-q"], LUKS2, CHEAP, &uuid, &labels].concat();
        for action in [config, format] {
            let stored =
                [(UCRYPT, &both.ours), ("cryptsetup", &both.theirs)].map(|(program, image)| {
                    let ran = run(program, &[&action[..], &[text(image)]].concat(), b"one");
                    good(&ran);
                    let warnings = stderr(&ran).matches("Only the first 47 bytes of --").count();
                    assert_eq!(warnings, if is_cut && program == UCRYPT { 2 } else { 0 });
                    let bytes = fs::read(image).unwrap();
                    [bytes[24..72].to_vec(), bytes[208..256].to_vec()]
                });
            assert_eq!(stored[0], stored[1], "{action:?}");
            assert_eq!(stored[0][0][..47], label.as_bytes()[..47]);
        }
    }
}

#[test]
fn sizes_of_0_are_the_default_and_types_may_be_in_capitals() {
    let scratch = Scratch::new();
    let uuid = ["--uuid", "01234567-89ab-cdef-0123-456789abcdef"];
    let sizes = ["--type", "LUKS2", "--luks2-metadata-size", "0", "--luks2-keyslots-size", "0"];
    let sizes = [&sizes[..], &["--key-size", "0"]].concat();
    let images = [(UCRYPT, "a"), ("cryptsetup", "b")].map(|(program, name)| {
        let image = scratch.make(name, 20 << 20);
        let format = [&["luksFormat", "-q", text(&image)], &sizes[..], &uuid, CHEAP].concat();
        good(&run(program, &format, b"one"));
        image
    });
    assert_eq!(header(&images[0]), header(&images[1]));
    for (kind, expected) in [("LUKS", 0), ("Luks2", 0), ("LUKS1", 1)] {
        let ran = ucrypt(&["isLuks", "--type", kind, text(&images[0])], b"");
        assert_eq!(code(&ran), expected, "{kind}: {}", stderr(&ran));
    }
}

/// The secondary copy lies at one of nine offsets, which are all that is known of it where the primary one is lost.
#[test]
fn either_copy_of_a_header_of_any_size_opens_the_volume_and_mends_the_other() {
    let scratch = Scratch::new();
    for (number, kib) in [16, 32, 64, 128, 256, 512, 1024, 2048, 4096].into_iter().enumerate() {
        let [writer, other] =
            if number % 2 == 0 { [UCRYPT, "cryptsetup"] } else { ["cryptsetup", UCRYPT] };
        let second = kib << 10;
        let image = scratch.make("copies", 2 * second as u64 + (2 << 20));
        let size = format!("{kib}k");
        let sizes = ["--type", "luks2", "--luks2-metadata-size", &size];
        let room = ["--luks2-keyslots-size", "256k"];
        let format = [&["luksFormat", "-q"], &sizes[..], &room, CHEAP, &[text(&image)]].concat();
        good(&run(writer, &format, b"one"));
        let sound = fs::read(&image).unwrap();
        // The magic of a copy, or a byte of its JSON that the checksum finds.
        for (lost, opens) in [
            (&[0][..], true),
            (&[4096 + 100], true),
            (&[second], true),
            (&[second + 4096 + 100], true),
            (&[0, second], false),
        ] {
            let mut damaged = sound.clone();
            for &at in lost {
                damaged[at] ^= 1;
            }
            for program in [writer, other] {
                let what = format!("{kib} KiB by {writer}, damage at {lost:?}, {program}");
                let open = ["open", "--test-passphrase", "--key-file", "-", text(&image)];
                let expected = i32::from(!opens);
                for act in [&["isLuks", text(&image)][..], &open, &["repair", "-q", text(&image)]] {
                    fs::write(&image, &damaged).unwrap();
                    let ran = run(program, act, b"one");
                    assert_eq!(code(&ran), expected, "{what}, {act:?}: {}", stderr(&ran));
                }
                // Mended to the last byte, but for a new salt and its checksum; or nothing was written.
                let mut expected = if opens { sound.clone() } else { damaged.clone() };
                let found = fs::read(&image).unwrap();
                if opens {
                    let copy = if lost[0] < second { 0 } else { second };
                    for fields in [104..168, 448..512] {
                        let fields = copy + fields.start..copy + fields.end;
                        expected[fields.clone()].copy_from_slice(&found[fields]);
                    }
                }
                assert!(found == expected, "{what}: it is not as it was");
            }
        }
    }
}

/// Whoever does not write YES has no permission to go on.
#[test]
fn dumps_and_conversions_without_consent_end_with_cryptsetups_code() {
    let both = Both::new(LUKS1);
    for args in
        [&["luksDump", "--dump-volume-key", "IMAGE"][..], &["convert", "--type", "luks2", "IMAGE"]]
    {
        for (program, image) in [(UCRYPT, &both.ours), ("cryptsetup", &both.theirs)] {
            let args: Vec<&str> =
                args.iter().map(|arg| if *arg == "IMAGE" { text(image) } else { arg }).collect();
            let mut terminal = Terminal::of(program, &args);
            terminal.expect("Are you sure? (Type 'yes' in capital letters): ", "no\n");
            assert_eq!(terminal.end().0, 2, "{program} {args:?}");
        }
    }
    both.opens(&["one"], &["two"]);
}

/// Actions on an open volume know where its header is, and take the option as cryptsetup does.
#[test]
fn every_action_takes_the_name_of_a_detached_header() {
    let scratch = Scratch::new();
    let (data, place) = (scratch.make("data", 1 << 20), scratch.path("header"));
    for kind in ["luks1", "luks2"] {
        let at = ["--header", text(&place), text(&data)];
        let format = ["luksFormat", "-q", "--type", kind];
        good(&ucrypt(&[&format[..], CHEAP, &at].concat(), b"one"));
        for program in [UCRYPT, "cryptsetup"] {
            let is_luks = |args: &[&str]| code(&run(program, &[&["isLuks"], args].concat(), b""));
            assert_eq!(is_luks(&at), 0, "{program}");
            assert_eq!(is_luks(&[&["--type", kind], &at[..]].concat()), 0, "{program}");
            assert_eq!(is_luks(&[text(&data)]), 1, "{program}");
        }
        fs::remove_file(&place).unwrap();
    }
    // No such volume is open: that is what is told, and not that the option is wrong.
    for action in ["status", "close", "resize", "luksSuspend", "luksResume"] {
        let ran = ucrypt(&[action, "--header", text(&place), "never-opened-here"], b"one");
        assert_eq!(code(&ran), 4, "{action}: {}", stderr(&ran));
    }
}

/// As cryptsetup's, the file of a detached header grows. An image whose data follows does not.
#[test]
fn a_detached_header_is_restored_into_an_empty_file() {
    for kind in [&["--type", "luks1"][..], &["--luks2-keyslots-size", "3M"]] {
        let scratch = Scratch::new();
        let (data, place) = (scratch.make("data", 1 << 20), scratch.path("header"));
        let backup = scratch.path("backup");
        let at = ["--header", text(&place), text(&data)];
        let file = ["--header-backup-file", text(&backup)];
        good(&ucrypt(&[&["luksFormat", "-q"], kind, CHEAP, &at].concat(), b"one"));
        good(&ucrypt(&[&["luksHeaderBackup"], &file[..], &at].concat(), b""));
        for target in [&at[..], &[text(&place)]] {
            for program in [UCRYPT, "cryptsetup"] {
                fs::write(&place, b"").unwrap();
                good(&run(
                    program,
                    &[&["luksHeaderRestore", "-q"], &file[..], target].concat(),
                    b"",
                ));
                for opener in [UCRYPT, "cryptsetup"] {
                    good(&run(opener, &[&["open", "--test-passphrase"], &at[..]].concat(), b"one"));
                }
            }
        }
    }
    let both = Both::new(LUKS2);
    let backup = both.scratch.path("backup");
    let file = ["--header-backup-file", text(&backup)];
    good(&ucrypt(&[&["luksHeaderBackup"], &file[..], &[text(&both.ours)]].concat(), b""));
    let short = both.scratch.make("short", 1 << 20);
    let restore = [&["luksHeaderRestore", "-q"], &file[..], &[text(&short)]].concat();
    let ran = ucrypt(&restore, b"");
    assert!(code(&ran) == 1 && stderr(&ran).contains("larger than its image"), "{}", stderr(&ran));
    assert_eq!(fs::metadata(&short).unwrap().len(), 1 << 20);
    // What is wrong with the backup is not said of the image.
    fs::write(&backup, [0; 8192]).unwrap();
    let ran = ucrypt(&restore, b"");
    assert!(code(&ran) == 1 && stderr(&ran).contains("the backup cannot be used: no LUKS header"));
}

/// Puts the keyslots of a LUKS1 image with 256-bit keys at other places, in sectors. Only keyslot 0 is active.
fn move_keyslots(image: &Path, first: u32, step: u32) {
    const MATERIAL: usize = 32 * 4000;
    let mut bytes = fs::read(image).unwrap();
    let material = bytes[4096..4096 + MATERIAL].to_vec();
    bytes[4096..4096 + MATERIAL].fill(0);
    for number in 0..8 {
        let at = 208 + 48 * number as usize + 40;
        bytes[at..at + 4].copy_from_slice(&(first + step * number).to_be_bytes());
    }
    let start = 512 * first as usize;
    bytes[start..start + MATERIAL].copy_from_slice(&material);
    fs::write(image, bytes).unwrap();
}

/// The first versions of cryptsetup did not align keyslots.
#[test]
fn luks1_headers_with_odd_offsets_are_changed_as_cryptsetup_does_it() {
    for (first, step) in [(2, 250), (3, 251), (2, 256), (9, 250)] {
        let both = Both::new(LUKS1);
        for image in [&both.ours, &both.theirs] {
            move_keyslots(image, first, step);
        }
        both.opens(&["one"], &["two"]);
        let cheap = |args: &[&'static str]| [args, CHEAP, &["IMAGE"]].concat();
        both.does(&cheap(&["luksAddKey"]), b"one\ntwo");
        both.does(&cheap(&["luksChangeKey"]), b"two\nthree");
        both.does(&["luksKillSlot", "IMAGE", "0"], b"three");
        both.opens(&["three"], &["one", "two"]);
        both.does(&["repair", "-q", "IMAGE"], b"");
        both.does(&["erase", "-q", "IMAGE"], b"");
    }
    // One sector earlier, it would lie in the header.
    let both = Both::new(LUKS1);
    for image in [&both.ours, &both.theirs] {
        move_keyslots(image, 1, 250);
        for program in [UCRYPT, "cryptsetup"] {
            assert_eq!(code(&run(program, &["isLuks", text(image)], b"")), 1, "{program}");
        }
    }
}

/// A loop device with sectors of 4 KiB over a file. It goes with the test.
struct Device(String);

impl Device {
    fn new(file: &Path) -> Self {
        let made = run("losetup", &["--find", "--show", "-b", "4096", text(file)], b"");
        Self(good(&made).trim().to_owned())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        run("losetup", &["--detach", &self.0], b"");
    }
}

#[test]
fn headers_on_devices_with_sectors_of_4_kib_are_changed_as_cryptsetup_does_it() {
    let scratch = Scratch::new();
    let uuid = ["--uuid", "01234567-89ab-cdef-0123-456789abcdef"];
    let files = ["ours", "theirs"].map(|name| scratch.make(name, 24 << 20));
    let [ours, theirs] = [&files[0], &files[1]].map(|file| Device::new(file));
    let data = scratch.make("data", 1 << 20);
    for (kind, is_detached) in [
        (&["--type", "luks2", "--luks2-keyslots-size", "3M"][..], false),
        (&["--type", "luks2", "--sector-size", "512", "--offset", "8192"], false),
        (&["--type", "luks1", "--offset", "8192"], false),
        (&["--type", "luks2", "--luks2-keyslots-size", "3M"], true),
        (&["--type", "luks1"], true),
    ] {
        let act = |action: &[&str], options: &[&str], stdin: &[u8]| {
            let ran = [(UCRYPT, &ours.0), ("cryptsetup", &theirs.0)].map(|(program, device)| {
                let at = ["--header", device, text(&data)];
                let place = if is_detached { &at[..] } else { &at[1..2] };
                let line = [&action[..1], options, place, &action[1..]].concat();
                code(&run(program, &line, stdin))
            });
            assert_eq!(ran, [0, 0], "{kind:?}: {action:?} {options:?}");
            assert_eq!(header(Path::new(&ours.0)), header(Path::new(&theirs.0)), "{action:?}");
        };
        act(&["luksFormat"], &[&["-q"], kind, &uuid, CHEAP].concat(), b"one");
        act(&["luksAddKey"], CHEAP, b"one\ntwo");
        act(&["luksAddKey"], &[&["-S", "5"], CHEAP].concat(), b"one\nfive");
        act(&["luksChangeKey"], CHEAP, b"two\nthree");
        act(&["luksKillSlot", "5"], &[], b"one");
        act(&["luksUUID"], &["-q", "--uuid", "11111111-89ab-cdef-0123-456789abcdef"], b"");
        act(&["repair"], &["-q"], b"");
        let backup = scratch.path("backup");
        let file = ["-q", "--header-backup-file", text(&backup)];
        for action in ["luksHeaderBackup", "luksHeaderRestore"] {
            for (program, device) in [(UCRYPT, &ours.0), ("cryptsetup", &theirs.0)] {
                // Each program restores what it has saved.
                let file = [file[0], file[1], &format!("{}-{}", file[2], code_name(program))];
                let at = ["--header", device, text(&data)];
                let place = if is_detached { &at[..] } else { &at[1..2] };
                good(&run(program, &[&[action], &file[..], place].concat(), b""));
            }
        }
        for device in [&ours.0, &theirs.0] {
            for program in [UCRYPT, "cryptsetup"] {
                for (passphrase, expected) in [("one", 0), ("three", 0), ("two", 2)] {
                    let at = ["--header", device, text(&data)];
                    let place = if is_detached { &at[..] } else { &at[1..2] };
                    let test = [&["open", "--test-passphrase"], place].concat();
                    assert_eq!(code(&run(program, &test, passphrase.as_bytes())), expected);
                }
            }
        }
        let at = ["--header", &ours.0, text(&data)];
        let place = if is_detached { &at[..] } else { &at[1..2] };
        let key = scratch.path("key");
        fs::write(&key, b"one").unwrap();
        let written = [9; 700];
        good(&run(UCRYPT, &[&["write", "-d", text(&key)], place].concat(), &written));
        let read =
            run(UCRYPT, &[&["read", "--length", "700", "-d", text(&key)], place].concat(), b"");
        assert_eq!((code(&read), &read.stdout[..]), (0, &written[..]), "{}", stderr(&read));
        act(&["erase"], &["-q"], b"");
        for name in ["ucrypt", "cryptsetup"] {
            fs::remove_file(format!("{}-{name}", text(&backup))).unwrap();
        }
    }
}

/// A device with a volume that `one` opens, and the file of cryptsetup's lock for it.
fn device_with_lock(scratch: &Scratch) -> (Device, String) {
    let device = Device::new(&scratch.make("disk", 8 << 20));
    let format = ["luksFormat", "-q", "--luks2-keyslots-size", "3M", "--offset", "8192", &device.0];
    good(&run("cryptsetup", &[&format[..], CHEAP].concat(), b"one"));
    let number = fs::metadata(&device.0).unwrap().rdev();
    (device, format!("/run/cryptsetup/L_{}:{}", major(number), minor(number)))
}

/// cryptsetup holds this lock while it derives a key, too.
#[test]
fn a_change_on_a_device_waits_for_cryptsetups_so_that_no_key_is_lost() {
    let scratch = Scratch::new();
    let (device, place) = device_with_lock(&scratch);
    let held = fs::File::options().create(true).truncate(false).write(true).open(place).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    for (action, input) in [("luksAddKey", &b"one\ntwo"[..]), ("luksChangeKey", b"one\nthree")] {
        let mut change = Command::new(UCRYPT)
            .args([&[action, "-q"], CHEAP, &[&device.0]].concat())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        change.stdin.take().unwrap().write_all(input).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        assert!(change.try_wait().unwrap().is_none(), "{action} has not waited");
        flock(&held, FlockOperation::Unlock).unwrap();
        assert!(change.wait().unwrap().success(), "{action}");
        flock(&held, FlockOperation::LockExclusive).unwrap();
    }
    drop(held);
    for (passphrase, expected) in [("one", 2), ("two", 0), ("three", 0)] {
        let test = ["open", "--test-passphrase", &device.0];
        assert_eq!(
            code(&run("cryptsetup", &test, passphrase.as_bytes())),
            expected,
            "{passphrase}"
        );
    }
}

/// Without it, cryptsetup could change the header at the same time.
#[test]
fn a_device_whose_lock_of_cryptsetup_cannot_be_taken_is_not_changed() {
    let scratch = Scratch::new();
    let (device, place) = device_with_lock(&scratch);
    let before = fs::read(&device.0).unwrap();
    // A directory in its place cannot be opened to be written. The mount is of this process alone.
    let script = "mount -t tmpfs -o mode=700 none /run/cryptsetup && mkdir $0 && exec \"$@\"";
    let shell = ["--mount", "--propagation", "private", "sh", "-c", script, &place];
    let label = [UCRYPT, "config", "--label", "new", &device.0];
    let ran = run("unshare", &[&shell[..], &label].concat(), b"");
    assert_eq!(code(&ran), 4, "{}", stderr(&ran));
    assert!(stderr(&ran).contains(&place), "{}", stderr(&ran));
    assert!(fs::read(&device.0).unwrap() == before);
    // Who wants no locks says so.
    let label = [&label[..], &["--disable-locks"]].concat();
    good(&run("unshare", &[&shell[..], &label].concat(), b""));
}

#[test]
fn no_header_is_saved_from_a_pipe_and_nobody_waits_for_its_other_end() {
    let scratch = Scratch::new();
    let (pipe, backup) = (scratch.path("pipe"), scratch.path("backup"));
    good(&run("mkfifo", &[text(&pipe)], b""));
    let save = [UCRYPT, "luksHeaderBackup", "--header-backup-file", text(&backup), text(&pipe)];
    let ran = run("timeout", &[&["10"], &save[..]].concat(), b"");
    assert!(code(&ran) == 4 && stderr(&ran).contains("is a pipe"), "{}", stderr(&ran));
}

/// The last part of a program's path.
fn code_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}
