//! cryptsetup opens, shows and decrypts volumes that the command made.

use std::fs;

use crate::cryptsetup_to_ucrypt::data_agrees_with_python;
use crate::image::{DATA, Image, KINDS, LUKS1, LUKS2, PASSPHRASE};
use crate::process::{cryptsetup, run};
use crate::scratch::Scratch;

#[test]
fn cryptsetup_opens_every_kind_with_the_right_passphrase_only() {
    for kind in KINDS {
        let scratch = Scratch::new();
        let image = Image::by_ucrypt(&scratch, kind, DATA);
        let open = || {
            let mut command = cryptsetup();
            command.args(["open", "--test-passphrase", "--key-file", "-"]).args(image.arguments());
            command
        };
        run(&mut open(), PASSPHRASE).passes();
        run(&mut open(), b"wrong").exits(2);
    }
}

#[test]
fn cryptsetup_and_the_command_dump_every_header_alike() {
    for kind in KINDS {
        let scratch = Scratch::new();
        let image = Image::by_ucrypt(&scratch, kind, DATA);
        let theirs = run(cryptsetup().arg("luksDump").arg(image.header_path()), b"").text();
        let ours = run(scratch.ucrypt(&["luksDump"]).arg(image.header_path()), b"").text();
        assert_eq!(ours, theirs);
        let spec: Vec<_> = kind.cipher.splitn(2, '-').collect();
        assert!(spec.iter().all(|part| theirs.contains(part)), "{theirs}");

        let uuid = run(cryptsetup().arg("luksUUID").arg(image.header_path()), b"").text();
        let ours = run(scratch.ucrypt(&["luksUUID"]).arg(image.header_path()), b"").text();
        assert!(uuid.len() > 30 && ours == uuid, "{ours:?} {uuid:?}");
        let is_luks = ["isLuks", "--type", &format!("luks{}", kind.version)];
        run(cryptsetup().args(is_luks).arg(image.header_path()), b"").passes();
        run(scratch.ucrypt(&is_luks).arg(image.header_path()), b"").passes();
    }
}

#[test]
fn the_command_dumps_what_cryptsetup_made_as_cryptsetup_does() {
    for kind in KINDS {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, DATA);
        let theirs = run(cryptsetup().arg("luksDump").arg(image.header_path()), b"").text();
        let ours = run(scratch.ucrypt(&["luksDump"]).arg(image.header_path()), b"").text();
        assert_eq!(ours, theirs);
    }
}

#[test]
fn the_data_of_every_kind_is_what_an_independent_decryption_sees() {
    for kind in KINDS {
        let scratch = Scratch::new();
        data_agrees_with_python(&scratch, &Image::by_ucrypt(&scratch, kind, DATA));
    }
}

#[test]
fn label_uuid_and_sizes_are_what_was_asked_for() {
    const UUID: &str = "12345678-1234-4321-abcd-0123456789ab";
    let scratch = Scratch::new();
    let image = Image::blank(&scratch, LUKS2, DATA);
    let mut format = scratch.ucrypt(&LUKS2.format_arguments());
    format.args(["--label", "cellar", "--subsystem", "wine", "--uuid", UUID, "--key-slot", "3"]);
    format.args(["--luks2-metadata-size", "64k", "--luks2-keyslots-size", "2m"]);
    run(format.args(image.with_key()), b"").passes();
    let dump = run(cryptsetup().arg("luksDump").arg(&image.path), b"").text();
    let lines: Vec<Vec<_>> = dump.lines().map(|line| line.split_whitespace().collect()).collect();
    for expected in [
        &["Metadata", "area:", "65536", "[bytes]"][..],
        &["Keyslots", "area:", "2097152", "[bytes]"],
        &["UUID:", UUID],
        &["Label:", "cellar"],
        &["Subsystem:", "wine"],
        &["3:", "luks2"],
        &["offset:", "16777216", "[bytes]"],
    ] {
        assert!(lines.iter().any(|line| line == expected), "{expected:?} in {dump}");
    }
    run(cryptsetup().args(["open", "--test-passphrase"]).args(image.with_key()), b"").passes();
}

#[test]
fn the_dump_as_json_names_what_scripts_need() {
    for kind in [LUKS1, LUKS2] {
        let scratch = Scratch::new();
        let image = Image::by_ucrypt(&scratch, kind, DATA);
        let dump = run(scratch.ucrypt(&["luksDump", "--json"]).arg(&image.path), b"").passes();
        let dump: serde_json::Value = serde_json::from_slice(&dump).expect("JSON");
        let uuid = run(cryptsetup().arg("luksUUID").arg(&image.path), b"").text();
        assert_eq!(dump["uuid"], uuid.trim());
        assert_eq!(dump["type"], format!("luks{}", kind.version));
    }
}

#[test]
fn formatting_a_volume_again_makes_the_old_passphrase_useless() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let other = scratch.file("other", b"another");
    let mut format = scratch.ucrypt(&LUKS1.format_arguments());
    run(format.arg("--key-file").arg(&other).arg(&image.path), b"").exits(0);
    let open = |key| {
        let mut command = cryptsetup();
        run(
            command.args(["open", "--test-passphrase", "--key-file"]).arg(key).arg(&image.path),
            b"",
        )
    };
    open(&other).exits(0);
    open(&image.key).exits(2);
    let dump = run(cryptsetup().arg("luksDump").arg(&image.path), b"").text();
    assert!(dump.lines().any(|line| line.split_whitespace().eq(["Version:", "1"])), "{dump}");
}

#[test]
fn an_image_too_small_for_its_header_is_refused_and_left_as_it_was() {
    for (kind, len) in [(LUKS1, 512), (LUKS1, 1 << 20), (LUKS2, 4096), (LUKS2, 15 << 20)] {
        let scratch = Scratch::new();
        let path = scratch.file("small", &vec![0x5a; len]);
        let key = scratch.file("key", PASSPHRASE);
        let mut format = scratch.ucrypt(&kind.format_arguments());
        run(format.arg("--key-file").arg(&key).arg(&path), b"").refuses(1);
        assert!(fs::read(&path).expect("read") == vec![0x5a; len]);
    }
}
