//! How to call the command: by name or path, with cryptsetup's options. Also its messages about
//! what it does not have.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::image::{DATA, Image, LUKS1, LUKS2};
use crate::process::{python, run};
use crate::scratch::{Scratch, UCRYPT};

#[test]
fn help_comes_however_it_is_asked_for_and_each_option_stands_under_its_heading() {
    let scratch = Scratch::new();
    let help = |line: &[&str]| run(&mut scratch.ucrypt(line), b"").text();
    let open = help(&["open", "--help"]);
    assert!(help(&["help"]) == help(&["--help"]) && help(&["help", "open"]) == open);
    assert!(help(&["help", "open", "-h"]) == open && help(&["help", "luksOpen"]) == open);
    // What most people need, and where the rest is.
    let short = help(&["open", "-h"]);
    assert!(help(&["-h"]) == help(&["-?"]) && help(&["open", "-?"]) == short);
    assert!(short.contains("ucrypt open --help shows all options"), "{short}");
    assert!(short.lines().count() < open.lines().count() / 2, "{short}");
    for expert in ["--strict", "--poll", "--log-level", "--test-args", "--token-only"] {
        assert!(open.contains(expert) && !short.contains(expert), "{expert}");
    }
    for common in ["--as", "--key-file", "--readonly", "--type", "--header", "--log", "--metrics"] {
        assert!(short.contains(common), "{common}");
    }
    let heading = |help: &str, option: &str| {
        let mut heading = "";
        for line in help.lines() {
            if line.ends_with(':') && !line.starts_with(' ') {
                heading = line;
            }
            if line.trim_start().starts_with('-')
                && line.split([' ', '=', '[']).any(|w| w == option)
            {
                return heading.to_owned();
            }
        }
        panic!("{option} is missing in {help}")
    };
    for own in ["--as", "--test-passphrase", "--json"] {
        assert_eq!(heading(&open, own), "Options:", "{own}");
    }
    for (option, expected) in [
        ("--key-file", "Volume:"),
        ("--log", "Operation:"),
        ("--metrics", "Operation:"),
        ("--direct", "Experts:"),
        ("--dispatch", "Dispatch:"),
        ("--cipher", "Plain volumes (--type plain):"),
        ("--table", "Plain volumes (--type plain):"),
        ("--verbose", "Every action:"),
        ("--disable-locks", "Every action:"),
        ("--test-args", "Every action:"),
    ] {
        assert_eq!(heading(&open, option), expected, "{option}");
    }
    // Common ones first, those of experts last.
    let order = ["Volume", "Plain volumes", "Operation", "Dispatch", "Experts", "Every action"];
    let places = order.map(|it| open.find(&format!("\n{it}")).unwrap_or_else(|| panic!("{it}")));
    assert!(places.is_sorted(), "{places:?}");
    let format = help(&["luksFormat", "--help"]);
    for (option, expected) in [
        ("--key-file", "Passphrase:"),
        ("--volume-key-file", "Encryption:"),
        ("--cipher", "Encryption:"),
        ("--header", "Header:"),
        ("--pbkdf", "Key derivation:"),
        ("--use-random", "Experts:"),
        ("--help", "Every action:"),
    ] {
        assert_eq!(heading(&format, option), expected, "{option}");
    }
    let mount = help(&["mount", "--help"]);
    assert!(mount.contains("- fuse:") && !mount.contains("- nbd:"), "{mount}");
    let refused = run(&mut scratch.ucrypt(&["mount", "--as", "nbd", "i", "d"]), b"").refuses(1);
    assert!(refused.contains("[possible values: ublk, loop, fuse]"), "{refused}");
    let serve = run(&mut scratch.ucrypt(&["serve", "--help"]), b"").text();
    assert!(serve.find("\nExports (") < serve.find("\nVolume:"), "{serve}");
    assert!(serve.find("Dispatch:") < serve.find("Experts:"), "{serve}");
    assert_eq!(heading(&serve, "--json"), "Options:");
    assert_eq!(heading(&serve, "--nbd"), "Exports (EXPORT, at least one):");
    assert!(serve.contains("Usage: ucrypt serve [OPTIONS] EXPORT... IMAGE\n"), "{serve}");
    let read = run(&mut scratch.ucrypt(&["read", "--help"]), b"").text();
    assert_eq!(heading(&read, "--length"), "Options:");
    // cryptsetup's defaults for plain volumes.
    for default in ["[default: aes-xts-plain64]", "[default: 256]", "[default: sha256]"] {
        assert!(open.contains(default), "{default}");
    }
}

#[test]
fn an_action_that_is_not_there_yet_is_named_as_that() {
    let scratch = Scratch::new();
    for action in ["refresh", "reencrypt", "bitlkOpen"] {
        let message = run(scratch.ucrypt(&[action]).args(["image", "name"]), b"").refuses(1);
        assert!(message.contains(action) && message.contains("not supported"), "{message}");
    }
}

#[test]
fn cryptsetups_general_options_are_taken_before_and_behind_the_action() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let options = ["-q", "-v", "--debug", "-T", "2", "-t", "5", "--disable-keyring"];
    let mut open = scratch.ucrypt(&["-T1", "open", "--as", "fuse", "-q", "-v", "--debug"]);
    run(open.args(&options[5..]).arg("5").args(image.with_key()).arg("x"), b"").exits(1);
    let mut open = scratch.ucrypt(&["-q", "--debug", "luksOpen", "--as", "fuse"]);
    let ran = run(open.args(&options[3..]).args(image.with_key()).arg("volume"), b"").exits(0);
    assert_eq!(ran.stderr, "Key slot 0 unlocked.\nCommand successful.\n");
    run(&mut scratch.ucrypt(&["close", "volume"]), b"").passes();
    let mut open = scratch.ucrypt(&["open", "-v", "--test-passphrase"]);
    let ran = run(open.args(image.arguments()), b"wrong").exits(2);
    assert!(ran.stderr.ends_with("Command failed with code 2.\n"), "{}", ran.stderr);
}

#[test]
fn open_volumes_are_named_by_the_path_that_open_printed_and_several_are_closed_at_once() {
    let scratch = Scratch::new();
    for name in ["one", "two", "three"] {
        let mut open = scratch.ucrypt(&["open", "--as", "fuse", "--backend", "mem:1M"]);
        let path = run(open.arg(name), b"").text();
        assert_eq!(path.trim_end(), scratch.runtime(name).to_str().expect("text"));
        run(&mut scratch.ucrypt(&["status", path.trim_end()]), b"").passes();
    }
    let one = scratch.runtime("one").display().to_string();
    run(&mut scratch.ucrypt(&["close", &one, "two"]), b"").passes();
    // Close what can be closed, and report the rest.
    let message = run(&mut scratch.ucrypt(&["close", "two", "three"]), b"").refuses(4);
    assert!(message.contains("two is not open"), "{message}");
    run(&mut scratch.ucrypt(&["status", "three"]), b"").exits(4);
    for other in ["/dev/ucrypt/../three", "/elsewhere/three", "/dev/ucrypt/"] {
        run(&mut scratch.ucrypt(&["status", other]), b"").exits(1);
    }
}

#[test]
fn what_is_wrong_is_told_with_the_name_of_the_image_and_in_bits() {
    let scratch = Scratch::new();
    let image = scratch.file("nothing", &[0; 4096]);
    let name = image.display().to_string();
    for line in [&["read"][..], &["luksDump"], &["luksUUID"], &["open", "--test-passphrase"]] {
        let message = run(scratch.ucrypt(line).arg(&image), b"passphrase").refuses(1);
        assert!(message.contains(&name) && message.contains("no LUKS header"), "{message}");
    }
    let mut read = scratch.ucrypt(&["read", "--type", "plain", "-s", "128"]);
    let message = run(read.arg(&image), b"passphrase").refuses(1);
    assert!(message.contains("128 bits") && message.contains("256"), "{message}");
    assert!(!message.contains("bytes"), "{message}");
}

#[test]
fn a_plain_volume_over_something_else_is_warned_of() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let read = |options: &[&str]| {
        let mut read = scratch.ucrypt(&["read", "--type", "plain", "--length", "512"]);
        read.args(["--cipher", "aes-xts-plain64", "--key-size", "512", "--hash", "sha512"]);
        run(read.args(options).arg(&image.path), b"passphrase").exits(0).stderr
    };
    assert!(read(&[]).contains("contains a luks2 header"));
    // No warning in batch mode, nor if the data starts further back, as in cryptsetup.
    assert_eq!(read(&["-q"]), "");
    assert_eq!(read(&["--data-offset", "8"]), "");
}

#[test]
fn a_plain_volume_over_a_header_that_cannot_be_read_is_warned_of_and_asked_about() {
    const SECONDARY: u64 = 0x4000;
    let both_json: &[(u64, &[u8])] = &[(5000, b"torn"), (SECONDARY + 5000, b"torn")];
    let version: &[(u64, &[u8])] = &[(6, &[0, 3])];
    // What is left is the secondary copy, torn as well.
    let copy: &[(u64, &[u8])] = &[(0, &[0; 4096]), (SECONDARY + 5000, b"torn")];
    let hash: &[(u64, &[u8])] = &[(72, &[0xff; 32])];
    for (kind, damage) in [(LUKS2, both_json), (LUKS2, version), (LUKS2, copy), (LUKS1, hash)] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, DATA);
        let file = File::options().write(true).open(&image.path).expect("the image");
        for (offset, bytes) in damage {
            file.write_all_at(bytes, *offset).expect("damaged");
        }
        run(scratch.ucrypt(&["luksDump"]).arg(&image.path), b"").refuses(1);
        let before = image.bytes();
        let plain = ["--type", "plain", "--cipher", "aes-xts-plain64", "-s", "512", "-h", "sha512"];
        let mut read = scratch.ucrypt(&["read", "--length", "512"]);
        let ran = run(read.args(plain).arg(&image.path), b"passphrase").exits(0);
        assert!(ran.stderr.contains("contains a 'crypto_LUKS' superblock signature"), "{ran:?}");
        // A person who does not agree keeps what is there.
        let mut terminal = python(include_str!("scripts/job.py"), "pty", "python3");
        terminal.arg("6e6f0a").args([UCRYPT, "open", "--as", "nbd"]).args(plain);
        terminal.env("XDG_RUNTIME_DIR", scratch.path("run"));
        let shown = run(terminal.arg(&image.path).arg("volume"), b"").text();
        assert!(shown.contains("crypto_LUKS") && shown.contains("Are you sure?"), "{shown}");
        assert!(shown.contains("ended with 1 "), "{shown}");
        assert!(image.bytes() == before, "{damage:?}");
    }
}
