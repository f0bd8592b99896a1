//! The command opens, reads and writes volumes that cryptsetup made.

use std::fs;
use std::process::Command;

use ucrypt_testkit::Random;

use crate::image::{DATA, Image, KINDS, LUKS1, LUKS2, PASSPHRASE};
use crate::process::{cryptsetup, run};
use crate::scratch::Scratch;

/// Reads and writes, both judged by a decryption that shares no code with ours.
pub(crate) fn data_agrees_with_python(scratch: &Scratch, image: &Image) {
    let read = run(&mut image.ucrypt(scratch, "read"), b"").passes();
    assert!(read.len() as u64 == DATA && read == image.decrypted_by_python(scratch), "{image:?}");

    let (written, at) = (Random::new(7).bytes(300_001), 70_001);
    let mut write = image.ucrypt(scratch, "write");
    run(write.args(["--offset", &at.to_string()]), &written).passes();
    let mut expected = read;
    expected[at..at + written.len()].copy_from_slice(&written);
    assert!(image.decrypted_by_python(scratch) == expected, "{image:?}");
    assert!(run(&mut image.ucrypt(scratch, "read"), b"").passes() == expected, "{image:?}");
}

#[test]
fn every_kind_opens_with_a_key_file_and_a_passphrase_and_with_nothing_else() {
    for kind in KINDS {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, DATA);
        let before = image.bytes();
        let open = || {
            let mut command = scratch.ucrypt(&["open", "--test-passphrase"]);
            command.args(image.arguments());
            command
        };
        run(open().arg("--key-file").arg(&image.key), b"").passes();
        run(open().args(["--key-file", "-"]), PASSPHRASE).passes();
        let line = [PASSPHRASE, b"\nno part of it"].concat();
        run(&mut open(), &line).passes();
        run(&mut open(), b"wrong\n").refuses(2);
        run(open().args(["--key-file", "-"]), &[PASSPHRASE, b"\n"].concat()).refuses(2);
        run(open().args(["--key-file", "-"]), b"").refuses(1);
        assert!(image.bytes() == before, "opening changed {image:?}");
    }
}

#[test]
fn the_data_of_every_kind_is_what_an_independent_decryption_sees() {
    for kind in KINDS {
        let scratch = Scratch::new();
        data_agrees_with_python(&scratch, &Image::by_cryptsetup(&scratch, kind, DATA));
    }
}

#[test]
fn any_part_of_a_volume_is_read_and_what_lies_outside_is_refused() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let whole = run(&mut image.ucrypt(&scratch, "read"), b"").passes();
    let part = |offset: &str, length: &str| {
        let mut read = image.ucrypt(&scratch, "read");
        run(read.args(["--offset", offset, "--length", length]), b"")
    };
    assert!(part("4095", "4098").passes() == whole[4095..8193]);
    assert!(part("1M", "0").passes().is_empty());
    part("1M", "1").refuses(1);
    part("1048577", "0").refuses(1);
    part("0", "18446744073709551615").refuses(1);
    let before = image.bytes();
    let mut write = image.ucrypt(&scratch, "write");
    run(write.args(["--offset", "1048577"]), b"x").refuses(1);
    assert!(image.bytes() == before);
}

#[test]
fn more_keyslots_open_by_number_and_by_trying() {
    for kind in [LUKS1, LUKS2] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, DATA);
        let second = scratch.file("second", b"second\npassphrase\0");
        let mut add = cryptsetup();
        add.args(["luksAddKey", "--batch-mode", "--key-slot", "5", "--pbkdf", "pbkdf2"]);
        add.args(["--pbkdf-force-iterations", "1000", "--key-file"]).arg(&image.key);
        run(add.args([&image.path, &second]), b"").passes();
        let open = |slot: Option<&str>| {
            let mut command = scratch.ucrypt(&["open", "--test-passphrase", "--key-file"]);
            command.arg(&second).arg(&image.path);
            run(command.args(slot.iter().flat_map(|slot| ["--key-slot", slot])), b"")
        };
        open(None).passes();
        open(Some("5")).passes();
        open(Some("0")).refuses(2);
        // cryptsetup also reports a missing keyslot as a wrong passphrase or parameter.
        let absent = open(Some("3")).stderr;
        assert!(absent.contains('3'), "{absent}");
    }
}

#[test]
fn a_volume_key_file_opens_and_a_foreign_one_does_not() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    image.decrypted_by_python(&scratch);
    let open = |key: &std::path::Path| {
        let mut command = scratch.ucrypt(&["open", "--test-passphrase", "--volume-key-file"]);
        run(command.arg(key).arg(&image.path), b"")
    };
    open(&scratch.path("volume-key")).passes();
    open(&scratch.file("other", &Random::new(1).bytes(64))).refuses(2);
}

/// As many bytes as the key has, or as `--key-size` says, which have to be the key.
#[test]
fn as_much_of_a_volume_key_file_is_read_as_cryptsetup_reads() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    image.decrypted_by_python(&scratch);
    let key = fs::read(scratch.path("volume-key")).expect("a key");
    let (bits, short, zeroes) = (8 * key.len(), key.len() - 8, [&key[..], &[0; 8]].concat());
    let exact = scratch.file("exact", &key);
    let longer = scratch.file("longer", &zeroes);
    let shorter = scratch.file("shorter", &key[..short]);
    let sizes = [bits, bits + 64].map(|bits| bits.to_string());
    for (file, size, ours, theirs) in [
        (&exact, None, 0, 0),
        (&longer, None, 0, 0),
        (&shorter, None, 1, 1),
        (&exact, Some(&sizes[0]), 0, 0),
        (&longer, Some(&sizes[0]), 0, 0),
        // cryptsetup knows better, and does not say so.
        (&longer, Some(&sizes[1]), 2, 0),
        (&exact, Some(&sizes[1]), 1, 0),
    ] {
        let test = ["open", "--test-passphrase"];
        for (mut command, expected) in
            [(scratch.ucrypt(&test), ours), (prepared(cryptsetup(), &test), theirs)]
        {
            command.arg("--volume-key-file").arg(file);
            command.args(size.map(|size| ["--key-size", size]).into_iter().flatten());
            let ran = run(command.arg(&image.path), b"");
            assert_eq!(ran.code(), Some(expected), "{} {size:?}: {}", file.display(), ran.stderr);
        }
    }
    // Without a volume key file, it is the length of a plain volume's key.
    let mut command = scratch.ucrypt(&["open", "--test-passphrase", "--key-size", &sizes[0]]);
    let said = run(command.arg(&image.path), b"").refuses(1);
    assert!(said.contains("except with --volume-key-file"), "{said}");
}

/// The file may go on behind the key, such as with a newline, and for longer than a passphrase may be.
#[test]
fn every_action_reads_the_volume_key_at_the_start_of_a_longer_file() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    image.decrypted_by_python(&scratch);
    let path = image.path.display().to_string();
    let key = fs::read(scratch.path("volume-key")).expect("a key");
    let before = image.bytes();
    let with = |more: &[u8]| [&key[..], more].concat();
    let files = [key.clone(), with(b"\n"), with(&key), with(&vec![0; 9 << 20])];
    let cheap = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
    let new = scratch.file("new", b"new").display().to_string();
    let add = [&["luksAddKey"], &cheap[..], &[&path, &new]].concat();
    let format =
        |version| [&["luksFormat", "-q", "--type", version], &cheap[..], &[&path]].concat();
    for line in [vec!["open", "--test-passphrase", &path], add, format("luks1"), format("luks2")] {
        for (content, code) in files.iter().map(|file| (&file[..], 0)).chain([(&key[..63], 1)]) {
            let file = scratch.file("given", content);
            for command in [scratch.ucrypt(&line), prepared(cryptsetup(), &line)] {
                fs::write(&image.path, &before).expect("written");
                let mut command = command;
                let name = command.get_program().to_owned();
                let ran = run(command.arg("--volume-key-file").arg(&file), b"another");
                let about = format!("{name:?} {line:?} {}: {}", content.len(), ran.stderr);
                assert_eq!(ran.code(), Some(code), "{about}");
                if code > 0 {
                    assert!(image.bytes() == before, "{about}");
                    continue;
                }
                let mut test = prepared(cryptsetup(), &["open", "--test-passphrase", &path]);
                test.arg("--volume-key-file").arg(scratch.path("volume-key"));
                run(&mut test, b"").passes();
            }
        }
    }
}

fn prepared(mut command: Command, arguments: &[&str]) -> Command {
    command.args(arguments);
    command
}
