//! The rows of `passphrase_table` for the kernel's keyring: a passphrase by a token of the header, which this
//! command and cryptsetup use, and by its name, which cryptsetup does since 2.8 only: there the bytes are
//! compared.

use std::path::Path;
use std::process::Command;

use ucrypt_testkit::Random;

use crate::image::{DATA, Image, LUKS2};
use crate::process::{Ran, cryptsetup, run};
use crate::scratch::Scratch;
use crate::user_key::UserKey;

/// The longest key of the type "user" in bytes.
const MAX: usize = 32_767;

const CHEAP: [&str; 4] = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];

/// Who carries out a row.
const PROGRAMS: [&str; 2] = ["ucrypt", "cryptsetup"];

/// A row: its name, and the bytes in the keyring.
fn table() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("a word", b"secret".to_vec()),
        ("a line", b"secret\n".to_vec()),
        ("lines and bytes that are no text", b"secret\n\x00\xff more\n".to_vec()),
        ("a zero byte at its end", b"secret\x00".to_vec()),
        ("a space", b" ".to_vec()),
        ("UTF-8", "pässwörd ✓".into()),
        ("the longest key", Random::new(0x6b65_7973).bytes(MAX)),
    ]
}

struct Volume<'a> {
    scratch: &'a Scratch,
    image: Image,
}

impl<'a> Volume<'a> {
    /// A volume that `maker` makes, and that these bytes of a file open.
    fn new(scratch: &'a Scratch, maker: &str, passphrase: &[u8]) -> Self {
        let image = Image::blank(scratch, LUKS2, DATA);
        let volume = Self { scratch, image };
        let exact = scratch.file("exact", passphrase);
        let mut format = volume.program(maker);
        format.args(LUKS2.format_arguments()).arg("--key-file").arg(exact);
        run(format.arg(&volume.image.path), b"").exits(0);
        volume
    }

    fn program(&self, name: &str) -> Command {
        if name == "ucrypt" { self.scratch.ucrypt::<&str>(&[]) } else { cryptsetup() }
    }

    /// Runs an action on the image.
    fn act(&self, name: &str, words: &[&str], input: &[u8]) -> Ran {
        run(self.program(name).args(words).arg(&self.image.path), input)
    }

    fn add_token(&self, name: &str, description: &str) {
        let add = ["token", "add", "--token-id", "3", "--key-description", description];
        self.act(name, &add, b"").exits(0);
    }

    /// The exit code of an attempt to open the volume.
    fn opens(&self, name: &str, options: &[&str], input: &[u8]) -> Option<i32> {
        self.act(name, &[&["open", "--test-passphrase"], options].concat(), input).code()
    }

    fn opens_by(&self, name: &str, file: &Path) -> Option<i32> {
        self.opens(name, &["--key-file", file.to_str().expect("a name")], b"")
    }
}

#[test]
fn a_passphrase_in_the_keyring_is_its_bytes_for_both_programs() {
    for (name, passphrase) in table() {
        let scratch = Scratch::new();
        let key = UserKey::new(&passphrase);
        let by_name = ["--key-description", &key.description];
        for maker in PROGRAMS {
            let volume = Volume::new(&scratch, maker, &passphrase);
            assert_eq!(volume.opens("ucrypt", &by_name, b"other"), Some(0), "{name}: by its name");
            volume.add_token(maker, &key.description);
            for opener in PROGRAMS {
                let opened = volume.opens(opener, &["--token-only"], b"other");
                assert_eq!(opened, Some(0), "{name}: made by {maker}, opened by {opener}");
            }
        }
        // What this command stores of the key opens with the very bytes.
        let volume = Volume::new(&scratch, "cryptsetup", b"first");
        let add = ["luksAddKey", "-q", "--new-key-description", &key.description];
        volume.act("ucrypt", &[&add[..], &CHEAP].concat(), b"first").exits(0);
        let exact = scratch.file("exact", &passphrase);
        assert_eq!(volume.opens_by("cryptsetup", &exact), Some(0), "{name}: as a new key");
        volume.act("ucrypt", &["luksRemoveKey", "-q", by_name[0], by_name[1]], b"").exits(0);
        assert_eq!(volume.opens_by("cryptsetup", &exact), Some(2), "{name}: removed");
        let mut format = volume.program("ucrypt");
        format.args(LUKS2.format_arguments()).args(by_name);
        run(format.arg(&volume.image.path), b"other").exits(0);
        assert_eq!(volume.opens_by("cryptsetup", &exact), Some(0), "{name}: of a new volume");
        volume.add_token("cryptsetup", &key.description);
        assert_eq!(volume.opens("cryptsetup", &["--token-only"], b""), Some(0), "{name}");
    }
}

#[test]
fn a_key_that_is_missing_revoked_or_another_one_opens_nothing_by_either_program() {
    let scratch = Scratch::new();
    let volume = Volume::new(&scratch, "cryptsetup", b"first");
    let (revoked, wrong) = (UserKey::new(b"first"), UserKey::new(b"first\n"));
    revoked.revoke();
    let before = volume.image.bytes();
    for (name, description, by_name) in [
        ("missing", "ucrypt test, not there", 1),
        ("revoked", &revoked.description, 1),
        ("another one", &wrong.description, 2),
    ] {
        volume.add_token("cryptsetup", description);
        let with_token = volume.image.bytes();
        for program in PROGRAMS {
            let opened = volume.opens(program, &["--token-only"], b"first");
            assert_eq!(opened, Some(2), "{name}: {program}");
            let add = [&["luksAddKey", "--token-only"][..], &CHEAP].concat();
            assert_eq!(volume.act(program, &add, b"first").code(), Some(2), "{name}: {program}");
            // Without the limit, the passphrase is read as ever.
            assert_eq!(volume.opens(program, &[], b"first"), Some(0), "{name}: {program}");
        }
        assert!(volume.image.bytes() == with_token, "{name}: something was written");
        std::fs::write(&volume.image.path, &before).expect("written");
        // By its name, nothing else is tried.
        let opened = volume.opens("ucrypt", &["--key-description", description], b"first");
        assert_eq!(opened, Some(by_name), "{name}: by its name");
        let add = ["luksAddKey", "-q", "--new-key-description", description];
        let added = volume.act("ucrypt", &[&add[..], &CHEAP].concat(), b"first").code();
        // A key that is there can be added, whatever it opens.
        assert_eq!(added, Some(by_name % 2), "{name}: as a new key");
        std::fs::write(&volume.image.path, &before).expect("written");
    }
}
