//! Flags that `open --persistent` stores in the header.

use serde_json::Value;

use crate::image::{DATA, Image, LUKS1, LUKS2};
use crate::process::{cryptsetup, run};
use crate::scratch::Scratch;

/// The flags that cryptsetup shows.
fn flags(image: &Image) -> String {
    let shown = run(cryptsetup().arg("luksDump").arg(&image.path), b"").text();
    let line = shown.lines().find_map(|line| line.strip_prefix("Flags:"));
    line.expect("a line of flags").trim().to_owned()
}

/// Opens the volume and closes it again. Returns what its server says.
fn opened(scratch: &Scratch, image: &Image, options: &[&str]) -> Value {
    let mut open = scratch.ucrypt(&["open", "--as", "nbd"]);
    run(open.args(options).args(image.with_key()).arg("volume"), b"").passes();
    let status = run(&mut scratch.ucrypt(&["status", "--json", "volume"]), b"").text();
    run(&mut scratch.ucrypt(&["close", "volume"]), b"").passes();
    let status: Value = serde_json::from_str(&status).expect("JSON");
    status["volume"].clone()
}

#[test]
fn flags_are_stored_used_by_every_open_and_replaced_by_the_next() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    assert_eq!(opened(&scratch, &image, &[])["discards"], false);
    assert_eq!(flags(&image), "(no flags)");
    let allow = ["--allow-discards", "--perf-no_read_workqueue"];
    // Without --persistent nothing is stored.
    assert_eq!(opened(&scratch, &image, &allow)["discards"], true);
    assert_eq!(flags(&image), "(no flags)");
    let before = opened(&scratch, &image, &[&allow[..], &["--persistent"]].concat());
    assert_eq!(before["discards"], true);
    assert_eq!(flags(&image), "allow-discards no-read-workqueue");
    let after = opened(&scratch, &image, &[]);
    assert_eq!(after["discards"], true);
    assert_eq!(after["dispatch"], before["dispatch"]);
    // The same flags again write nothing.
    let bytes = image.bytes();
    opened(&scratch, &image, &[&allow[..], &["--persistent"]].concat());
    assert!(image.bytes() == bytes);
    opened(&scratch, &image, &["--persistent"]);
    assert_eq!(flags(&image), "(no flags)");
    assert_eq!(opened(&scratch, &image, &[])["discards"], false);
}

#[test]
fn flags_that_cannot_be_stored_are_refused_before_anything_is_opened() {
    let scratch = Scratch::new();
    let one = Image::by_cryptsetup(&scratch, LUKS1, DATA);
    let open = |options: &[&str]| {
        let mut open = scratch.ucrypt(&["open", "--persistent", "--as", "nbd"]);
        open.args(options).args(one.with_key());
        open
    };
    for (options, name, words) in [
        (&[][..], Some("volume"), "LUKS"),
        (&["--readonly"], Some("volume"), "--readonly"),
        (&["--test-passphrase"], None, "no effect"),
    ] {
        let ran = run(open(options).args(name), b"").exits(1);
        assert!(ran.stderr.contains(words), "{options:?}: {}", ran.stderr);
    }
    let mut plain = scratch.ucrypt(&["open", "--persistent", "--as", "nbd", "--type", "plain"]);
    let ran = run(plain.arg(&one.path).arg("volume"), b"x").exits(1);
    assert!(ran.stderr.contains("--persistent"), "{}", ran.stderr);
    assert_eq!(run(&mut scratch.ucrypt(&["list", "--json"]), b"").text().trim(), "[]");
}
