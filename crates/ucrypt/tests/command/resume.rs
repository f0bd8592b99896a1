//! Where `luksResume` takes the key from. Without device mapper, cryptsetup resumes nothing: `open` of
//! both programs is compared in `luks_tokens` and `passphrase_table`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use crate::image::{DATA, Image, Kind, LUKS2, PASSPHRASE};
use crate::process::{Ran, cryptsetup, run};
use crate::scratch::{Scratch, UCRYPT};
use crate::terminal::at_terminal;
use crate::user_key::UserKey;

/// Detached headers need no room for data in their file.
const DETACHED: Kind = Kind { detached: true, ..LUKS2 };

/// An open volume.
struct Volume<'a>(&'a Scratch);

impl<'a> Volume<'a> {
    fn open(scratch: &'a Scratch, image: &Image) -> Self {
        let mut open = scratch.ucrypt(&["open", "--as", "nbd"]);
        if let Some(header) = &image.header {
            open.arg("--header").arg(header);
        }
        run(open.arg("--key-file").arg(&image.key).arg(&image.path).arg("volume"), b"").passes();
        Self(scratch)
    }

    fn act(&self, action: &str, options: &[&str], input: &[u8]) -> Ran {
        let words = [&[action], options, &["volume"]].concat();
        run(&mut self.0.ucrypt(&words), input)
    }

    fn suspend(&self) {
        self.act("luksSuspend", &[], b"").passes();
    }

    fn is_suspended(&self) -> bool {
        let status = self.act("status", &["--json"], b"").text();
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        status["suspended"].as_bool().expect("told")
    }

    /// Resumes it, which has to end so. Suspends it again.
    fn resume(&self, options: &[&str], input: &[u8], code: i32) -> String {
        let ran = self.act("luksResume", options, input).exits(code);
        assert_eq!(self.is_suspended(), code > 0, "{options:?}: {}", ran.stderr);
        if code == 0 {
            self.suspend();
        }
        ran.stderr
    }

    fn close(self) {
        self.act("close", &[], b"").passes();
    }
}

#[test]
fn a_token_gives_the_key_back_before_a_passphrase_is_asked_for() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let key = UserKey::new(PASSPHRASE);
    let mut token = cryptsetup();
    token.args(["token", "add", "--token-id", "4", "--key-description", &key.description]);
    run(token.arg(&image.path), b"").exits(0);
    let volume = Volume::open(&scratch, &image);
    volume.suspend();
    for options in [
        &["-v"][..],
        &["-v", "--token-only"],
        &["-v", "--token-id", "4"],
        &["-v", "--token-type", "luks2-keyring", "-S", "0"],
        // The key file is not even opened.
        &["-v", "--key-file", "/nonexistent"],
    ] {
        let said = volume.resume(options, b"", 0);
        assert!(said.contains("Key slot 0 unlocked."), "{options:?}: {said}");
    }
    // A token that does not open leaves it to the passphrase, unless nothing else is wanted.
    let said = volume.resume(&["--token-id", "9"], PASSPHRASE, 0);
    assert!(said.contains("no usable token 9"), "{said}");
    for (options, words) in [
        (&["--token-id", "9", "--token-only"][..], "no usable token 9"),
        (&["--token-type", "x", "--token-only"], "no usable token (type x)"),
        (&["--volume-key-file", "x", "--token-only"], "cannot be used with"),
    ] {
        let said = volume.resume(options, PASSPHRASE, 1);
        assert!(said.contains(words), "{options:?}: {said}");
    }
    // The passphrase itself, without a token.
    let other = UserKey::new(b"wrong");
    volume.resume(&["--token-id", "9", "--key-description", &other.description], PASSPHRASE, 2);
    volume.resume(&["--token-id", "9", "--key-description", &key.description], b"wrong", 0);
    drop(key);
    let said = volume.resume(&["--token-only"], PASSPHRASE, 2);
    assert!(said.contains("the kernel's keyring has no key"), "{said}");
    let said = volume.resume(&[], PASSPHRASE, 0);
    assert!(said.contains("the kernel's keyring has no key"), "{said}");
    assert_eq!(volume.resume(&["-q"], PASSPHRASE, 0), "");
    volume.close();
}

#[test]
fn a_suspended_volume_of_another_kind_gets_no_key() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let key = crate::secrets::volume_key(&scratch, &image);
    let key = scratch.file("key", &key).display().to_string();
    let volume = Volume::open(&scratch, &image);
    volume.suspend();
    for by in [&[][..], &["--volume-key-file", &key]] {
        let said = volume.resume(&[&["--type", "luks1"], by].concat(), PASSPHRASE, 1);
        assert!(said.contains("volume is luks2, which --type excludes"), "{said}");
        volume.resume(&[&["-M", "luks2"], by].concat(), PASSPHRASE, 0);
        volume.resume(&[&["--type", "luks"], by].concat(), PASSPHRASE, 0);
    }
    volume.close();
}

#[test]
fn the_passphrase_of_a_suspended_volume_is_typed_twice_if_that_is_asked_for() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let volume = Volume::open(&scratch, &image);
    volume.suspend();
    let right = &[PASSPHRASE, b"\n"].concat()[..];
    for (second, code) in [(&b"wrong\n"[..], 2), (right, 0)] {
        let mut terminal = at_terminal(&[right, second]);
        terminal.env("XDG_RUNTIME_DIR", scratch.path("run"));
        let shown = run(terminal.args([UCRYPT, "luksResume", "-y", "volume"]), b"").text();
        assert!(shown.contains(&format!("ended with {code} echo True")), "{shown}");
        assert_eq!(shown.matches("Verify passphrase:").count(), 1, "{shown}");
        assert_eq!(volume.is_suspended(), code > 0, "{shown}");
    }
    volume.suspend();
    let said = volume.resume(&["-y"], PASSPHRASE, 0);
    assert!(said.contains("--verify-passphrase option is being ignored"), "{said}");
    volume.close();
}

/// The status of a volume is JSON, whose strings hold no such name.
#[test]
fn a_volume_whose_image_or_header_has_a_name_that_is_no_utf8_gets_its_key_back() {
    for kind in [LUKS2, DETACHED] {
        let scratch = Scratch::new();
        let mut image = Image::by_cryptsetup(&scratch, kind, DATA);
        let renamed = |path: &std::path::Path, name: &[u8]| {
            let new = path.with_file_name(OsStr::from_bytes(name));
            fs::rename(path, &new).expect("renamed");
            new
        };
        image.path = renamed(&image.path, b"caf\xe9.img");
        image.header = image.header.map(|header| renamed(&header, b"\xff\xfe"));
        let volume = Volume::open(&scratch, &image);
        volume.suspend();
        volume.resume(&[], b"wrong", 2);
        volume.resume(&[], PASSPHRASE, 0);
        // Who opens it again is told who has it.
        let mut again = scratch.ucrypt(&["open", "--as", "nbd", "--key-file"]);
        again.arg(&image.key);
        if let Some(header) = &image.header {
            again.arg("--header").arg(header);
        }
        let said = run(again.arg(&image.path).arg("other"), b"").refuses(5);
        assert!(said.contains("volume"), "{said}");
        volume.close();
    }
}
