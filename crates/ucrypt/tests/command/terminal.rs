//! What is asked on a terminal.

use std::ffi::OsStr;
use std::fs;

use crate::image::{DATA, Image, LUKS2, PASSPHRASE};
use crate::process::{judge, python, run};
use crate::random::Random;
use crate::scratch::{Scratch, UCRYPT};

#[test]
fn write_asks_at_the_terminal_and_takes_all_of_its_input_for_data() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    // Its first line would be no passphrase.
    let data = [b"no passphrase\n".to_vec(), Random(7).bytes(300_000)].concat();
    let input = scratch.file("input", &data);
    let passphrase = std::str::from_utf8(PASSPHRASE).expect("text");
    let mut terminal = python(include_str!("scripts/terminal.py"), "pty", "python3");
    terminal.arg(&input).arg(format!("wrong,{passphrase}"));
    let shown = run(terminal.args([OsStr::new(UCRYPT), "write".as_ref()]).arg(&image.path), b"");
    let shown = shown.text();
    assert!(shown.matches("Enter passphrase for").count() == 2, "{shown}");
    assert!(!shown.contains(passphrase) && shown.contains("no keyslot"), "{shown}");
    let mut read = image.ucrypt(&scratch, "read");
    read.args(["--length", &data.len().to_string()]);
    assert!(run(&mut read, b"").passes() == data);
}

#[test]
fn write_does_not_look_for_a_passphrase_in_its_data() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let before = fs::read(&image.path).expect("read");
    let input = [PASSPHRASE, b"\ndata"].concat();
    let mut write = judge("setsid", "util-linux");
    write.args([OsStr::new("--wait"), UCRYPT.as_ref(), "write".as_ref()]).arg(&image.path);
    let message = run(&mut write, &input).refuses(1);
    assert!(message.contains("--key-file"), "{message}");
    let mut write = scratch.ucrypt(&["write", "--key-file", "-"]);
    let message = run(write.arg(&image.path), &input).refuses(1);
    assert!(message.contains("another file"), "{message}");
    assert!(fs::read(&image.path).expect("read") == before);
}
