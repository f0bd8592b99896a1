//! Images that are truncated, foreign or nonsense.

use std::fs::{self, File};
use std::path::Path;

use ucrypt_testkit::Random;

use crate::image::{DATA, Image, LUKS1, LUKS2, PASSPHRASE};
use crate::process::{Ran, cryptsetup, run, tool};
use crate::scratch::Scratch;

/// Every action that reads a header refuses the image with this exit code, says why in one line,
/// and leaves it as it is. Returns what `open` said.
#[track_caller]
fn is_refused(scratch: &Scratch, path: &Path, code: i32) -> String {
    let message = test_passphrase(scratch, path).refuses(code);
    assert!(has_no_volume(scratch, path, code) == message);
    message
}

fn test_passphrase(scratch: &Scratch, path: &Path) -> Ran {
    let key = scratch.file("key", PASSPHRASE);
    run(scratch.ucrypt(&["open", "--test-passphrase", "--key-file"]).args([&key, path]), b"")
}

/// The header exists and the data does not: the passphrase can be tested, as with cryptsetup
/// (header backups are such images), but nothing can be opened.
#[track_caller]
fn has_a_header_only(scratch: &Scratch, path: &Path) -> String {
    let before = fs::read(path).expect("the image is read");
    test_passphrase(scratch, path).exits(0);
    let mut theirs = cryptsetup();
    theirs.args(["open", "--test-passphrase", "--key-file", "-"]).arg(path);
    run(&mut theirs, PASSPHRASE).exits(0);
    assert!(fs::read(path).expect("the image is read") == before, "{} changed", path.display());
    has_no_volume(scratch, path, 1)
}

/// Every action that opens the volume refuses the image.
#[track_caller]
fn has_no_volume(scratch: &Scratch, path: &Path, code: i32) -> String {
    let before = fs::read(path).expect("the image is read");
    let key = scratch.file("key", PASSPHRASE);
    let with_key = |action: &[&str]| {
        let mut command = scratch.ucrypt(action);
        command.arg("--key-file").args([&key, path]);
        run(&mut command, b"")
    };
    let message = with_key(&["read"]).refuses(code);
    assert!(with_key(&["write"]).refuses(code) == message);
    let socket = format!("unix:{}", scratch.path("socket").display());
    assert!(with_key(&["serve", "--nbd", &socket]).refuses(code) == message);
    let mut open = scratch.ucrypt(&["open", "--as", "fuse", "--key-file"]);
    assert!(run(open.arg(&key).arg(path).arg("volume"), b"").refuses(code) == message);
    assert!(fs::read(path).expect("the image is read") == before, "{} changed", path.display());
    message
}

fn truncated(image: &Image, len: u64) {
    File::options().write(true).open(&image.path).and_then(|file| file.set_len(len)).expect("cut");
}

#[test]
fn truncated_images_are_refused_wherever_they_end() {
    for kind in [LUKS1, LUKS2] {
        // The lengths: nothing; in the first header, in the second, in the keyslots; before the
        // data.
        for len in
            [0, 5, 300, 4096, 5000, 0x4000, 0x5000, 0x8800, 100_000, kind.data_offset() - 512]
        {
            let scratch = Scratch::new();
            let image = Image::by_cryptsetup(&scratch, kind, DATA);
            truncated(&image, len);
            // The keyslots of LUKS1 end long before its data.
            if kind.version == LUKS1.version && len == kind.data_offset() - 512 {
                has_a_header_only(&scratch, &image.path);
            } else {
                is_refused(&scratch, &image.path, 1);
            }
        }
    }
}

#[test]
fn an_image_that_ends_where_its_data_starts_is_refused() {
    for kind in [LUKS1, LUKS2] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, DATA);
        truncated(&image, kind.data_offset());
        has_a_header_only(&scratch, &image.path);
    }
}

#[test]
fn a_volume_larger_than_its_image_is_refused() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let edit = include_str!("scripts/fix_segment_size.py");
    let mut python = tool("python3", "python3");
    let size = (DATA + 4096).to_string();
    run(python.args(["-c", edit]).arg(&image.path).arg(&size), b"").passes();
    // cryptsetup accepts the edited header as sound.
    let dump = run(cryptsetup().arg("luksDump").arg(&image.path), b"").text();
    assert!(dump.contains(&format!("length: {size} [bytes]")), "{dump}");
    let message = has_a_header_only(&scratch, &image.path);
    assert!(message.contains(&size) || message.contains("larger"), "{message}");
}

#[test]
fn a_last_part_of_a_sector_is_left_out() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let whole = run(&mut image.ucrypt(&scratch, "read"), b"").passes();
    truncated(&image, LUKS2.data_offset() + DATA - 1);
    let before = image.bytes();
    let ran = run(&mut image.ucrypt(&scratch, "read"), b"");
    // The command may refuse, or leave out what it cannot decrypt. It must not invent bytes.
    if ran.stderr.is_empty() {
        assert!(ran.passes() == whole[..DATA as usize - 4096]);
    } else {
        ran.refuses(1);
    }
    assert!(image.bytes() == before);
}

#[test]
fn foreign_images_are_refused_with_what_they_are() {
    let scratch = Scratch::new();
    let garbage = scratch.file("garbage", &Random::new(41).bytes(1 << 20));
    is_refused(&scratch, &garbage, 1);
    is_refused(&scratch, &scratch.sparse("zeroes", 1 << 20), 1);
    is_refused(&scratch, &scratch.file("text", b"#!/bin/sh\necho no disk\n"), 1);

    let ext4 = scratch.sparse("ext4", 8 << 20);
    run(tool("mkfs.ext4", "e2fsprogs").args(["-q", "-F"]).arg(&ext4), b"").passes();
    let message = is_refused(&scratch, &ext4, 1);
    assert!(message.contains("ext"), "{message}");

    let qcow2 = scratch.path("qcow2");
    let mut create = tool("qemu-img", "qemu-utils");
    run(create.args(["create", "-q", "-f", "qcow2"]).arg(&qcow2).arg("8M"), b"").passes();
    let message = is_refused(&scratch, &qcow2, 1);
    assert!(message.to_lowercase().contains("qcow"), "{message}");
}

#[test]
fn what_is_no_image_at_all_is_refused_as_the_wrong_device() {
    let scratch = Scratch::new();
    let open = |path: &Path| {
        let mut open = scratch.ucrypt(&["open", "--test-passphrase"]);
        run(open.arg(path), b"passphrase\n")
    };
    open(&scratch.path("nothing")).refuses(4);
    open(&scratch.path("run")).refuses(4);
    open(Path::new("/dev/null")).refuses(4);
    let message = open(Path::new("/dev/tty0/nothing")).stderr;
    assert!(message.starts_with("ucrypt: "), "{message}");
}

#[test]
fn foreign_images_are_no_luks() {
    let scratch = Scratch::new();
    let garbage = scratch.file("garbage", &Random::new(42).bytes(1 << 20));
    run(scratch.ucrypt(&["isLuks"]).arg(&garbage), b"").exits(1);
    run(scratch.ucrypt(&["luksUUID"]).arg(&garbage), b"").refuses(1);
    run(scratch.ucrypt(&["luksDump"]).arg(&garbage), b"").refuses(1);
    let image = Image::by_cryptsetup(&scratch, LUKS1, DATA);
    let is = |version| run(scratch.ucrypt(&["isLuks", "--type", version]).arg(&image.path), b"");
    is("luks1").passes();
    is("luks2").exits(1);
    let mut wrong = scratch.ucrypt(&["open", "--test-passphrase", "--type", "luks2"]);
    run(wrong.args(image.with_key()), b"").refuses(1);
}

#[test]
fn wrong_command_lines_are_wrong_parameters() {
    let scratch = Scratch::new();
    for line in [
        &[][..],
        &["fly"],
        &["open"],
        &["open", "image"],
        &["serve", "--backend", "mem:1M"],
        &["serve", "--backend", "mem:1X", "--nbd", "unix:socket"],
        &["serve", "--backend", "mem:1M", "--nbd", "socket"],
        &["read", "--no-such-option"],
        &["close"],
        &["close", "../escape"],
        &["open", "--dispatch", "fastest", "image", "name"],
    ] {
        let ran = run(&mut scratch.ucrypt(line), b"").exits(1);
        assert!(ran.stdout.is_empty() && !ran.stderr.is_empty(), "{line:?}");
    }
}
