//! Prompts at a terminal.

use std::ffi::OsStr;
use std::fs;
use std::process::Command;

use ucrypt_testkit::Random;

use crate::image::{DATA, Image, LUKS2, PASSPHRASE};
use crate::process::{python, run, tool};
use crate::scratch::{Scratch, UCRYPT};

#[test]
fn write_asks_at_the_terminal_and_takes_all_of_its_input_for_data() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    // The first line of this file is not the passphrase.
    let data = [b"no passphrase\n".to_vec(), Random::new(7).bytes(300_000)].concat();
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
    let mut write = tool("setsid", "util-linux");
    write.args([OsStr::new("--wait"), UCRYPT.as_ref(), "write".as_ref()]).arg(&image.path);
    let message = run(&mut write, &input).refuses(1);
    assert!(message.contains("--key-file"), "{message}");
    let mut write = scratch.ucrypt(&["write", "--key-file", "-"]);
    let message = run(write.arg(&image.path), &input).refuses(1);
    assert!(message.contains("another file"), "{message}");
    assert!(fs::read(&image.path).expect("read") == before);
}

/// The terminal's output while these keys are typed at prompts of `open --test-passphrase`.
fn typed(image: &Image, keys: &[&[u8]]) -> String {
    typed_at(&["open", "--test-passphrase"], image, keys)
}

fn typed_at(line: &[&str], image: &Image, keys: &[&[u8]]) -> String {
    run(at_terminal(keys).arg(UCRYPT).args(line).arg(&image.path), b"").text()
}

/// What runs a program, which is to be added, at a terminal, and types these keys at its prompts.
pub(crate) fn at_terminal(keys: &[&[u8]]) -> Command {
    let hex =
        |keys: &&[u8]| keys.iter().fold(String::new(), |hex, key| hex + &format!("{key:02x}"));
    let mut terminal = python(include_str!("scripts/job.py"), "pty", "python3");
    terminal.arg(keys.iter().map(hex).collect::<Vec<_>>().join(","));
    terminal
}

#[test]
fn a_prompt_leaves_those_signals_ignored_that_were() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let text = "
        cd \"$(dirname \"$2\")\"
        trap '' HUP
        : >said # A message that it is not there would stand behind the prompt.
        $1 serve \"$2\" --nbd unix:$PWD/socket >said </dev/tty &
        until grep -q nbd+unix said; do kill -0 $!; sleep 0.02; done
        kill -HUP $!
        sleep 0.3
        nbdinfo --size \"nbd+unix:///?socket=$PWD/socket\"
        kill -TERM $!
        wait $!";
    let mut terminal = at_terminal(&[&[PASSPHRASE, b"\n"].concat()]);
    terminal.args(["/bin/sh", "-euc", text, "sh", UCRYPT]).arg(&image.path);
    let shown = run(&mut terminal, b"").text();
    assert!(shown.contains(&DATA.to_string()), "{shown}");
    assert!(shown.contains("ended with 0 echo True"), "{shown}");
}

#[test]
fn what_was_typed_is_corrected_by_characters() {
    let scratch = Scratch::new();
    let image = Image::blank(&scratch, LUKS2, DATA);
    let mut format = crate::process::cryptsetup();
    format.args(LUKS2.format_arguments()).arg(&image.path);
    run(&mut format, "pässword".as_bytes()).exits(0);
    let shown = typed(&image, &["pässä\x7fwoö\x7frd\n".as_bytes()]);
    assert!(shown.contains("ended with 0 echo True"), "{shown}");
    assert!(!shown.contains("word"), "{shown}");
}

#[test]
fn keys_that_stop_or_end_a_program_do_so_at_a_prompt_and_leave_the_echo_on() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    // It is stopped, brought back, and asks again.
    let shown = typed(&image, &[b"wrong\x1a", &[PASSPHRASE, b"\n"].concat()]);
    assert!(shown.contains("stopped by 20 echo True"), "{shown}");
    assert!(shown.matches("Enter passphrase for").count() == 2, "{shown}");
    assert!(shown.contains("ended with 0 echo True"), "{shown}");
    let shown = typed(&image, &[b"wrong\x1c"]);
    assert!(shown.contains("ended with -3 echo True"), "{shown}");
    let shown = typed(&image, &[b"wrong\x03"]);
    assert!(shown.contains("ended with 1 echo True") && shown.contains("interrupted"), "{shown}");
    // The end of the input is no passphrase, so none is tried.
    let shown = typed(&image, &[b"\x04"]);
    assert!(shown.contains("ended with 1 echo True"), "{shown}");
    assert!(shown.contains("input has ended") && !shown.contains("keyslot"), "{shown}");
}

#[test]
fn a_signal_from_outside_ends_a_prompt_and_leaves_the_echo_on() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let signals = [("kill15", "-15"), ("kill2", "-2"), ("kill1", "-1"), ("kill3", "-3")];
    for (signal, ended) in signals {
        let mut terminal = python(include_str!("scripts/job.py"), "pty", "python3");
        terminal.arg(signal).args([UCRYPT, "open", "--test-passphrase"]).arg(&image.path);
        let shown = run(&mut terminal, b"").text();
        assert!(shown.contains(&format!("ended with {ended} echo True")), "{shown}");
    }
}

#[test]
fn an_interrupt_at_a_prompt_ends_the_script_that_asks_too() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let mut terminal = python(include_str!("scripts/job.py"), "pty", "python3");
    terminal.args(["03", "/bin/dash", "-c", "\"$@\"; echo goes on", "sh"]);
    terminal.args([UCRYPT, "open", "--test-passphrase"]).arg(&image.path);
    let shown = run(&mut terminal, b"").text();
    assert!(shown.contains("interrupted") && !shown.contains("goes on"), "{shown}");
    assert!(shown.contains("ended with -2 echo True"), "{shown}");
}

#[test]
fn a_prompt_gives_up_after_as_many_tries_and_as_much_time_as_it_was_given() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let line = ["open", "--test-passphrase", "--tries", "2"];
    let shown = typed_at(&line, &image, &[b"one\n", b"two\n", b"three\n"]);
    assert!(shown.matches("Enter passphrase for").count() == 2, "{shown}");
    assert!(shown.contains("ended with 2 echo True"), "{shown}");
    let line = ["open", "--test-passphrase", "--timeout", "1"];
    let shown = typed_at(&line, &image, &[b"never finished"]);
    assert!(shown.contains("ended with 1 echo True") && shown.contains("time limit"), "{shown}");
}

#[test]
fn a_plain_volume_over_something_else_is_asked_about() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let before = image.bytes();
    let place = scratch.path("socket").display().to_string();
    let line = ["serve", "--type", "plain", "--vhost-user", &place];
    let shown = typed_at(&line, &image, &[b"no\n"]);
    assert!(shown.contains("contains a luks2 header"), "{shown}");
    assert!(shown.contains("ended with 1 echo True") && shown.contains("not YES"), "{shown}");
    assert!(!shown.contains("Enter passphrase"), "{shown}");
    let shown = typed_at(&line, &image, &[b"YES\n", b"\x03"]);
    assert!(shown.contains("Enter passphrase for"), "{shown}");
    assert!(image.bytes() == before);
}

#[test]
fn options_for_a_part_of_the_passphrase_are_refused_at_a_terminal() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let line = ["open", "--test-passphrase", "--keyfile-size", "3"];
    let shown = typed_at(&line, &image, &[b"abc\n"]);
    assert!(shown.contains("no effect on what is typed"), "{shown}");
    assert!(shown.contains("ended with 1 echo True"), "{shown}");
}

#[test]
fn a_derivation_of_seconds_shows_what_is_left_on_a_terminal_and_nothing_elsewhere() {
    let scratch = Scratch::new();
    let image = Image::blank(&scratch, LUKS2, DATA);
    let line = ["luksFormat", "-q", "--pbkdf", "pbkdf2", "--iter-time", "2500"];
    let shown = typed_at(&line, &image, &[&[PASSPHRASE, b"\n"].concat()]);
    assert!(shown.contains("ended with 0 echo True"), "{shown}");
    assert!(shown.contains("deriving a key (pbkdf2, sha256): "), "{shown}");
    assert!(shown.contains(" %, about ") && shown.contains(" left"), "{shown}");
    let ran = run(scratch.ucrypt(&line).arg(&image.path), PASSPHRASE).exits(0);
    assert_eq!(ran.stderr, "");
    // The first derivation of a process has none before it that tells the speed.
    let open = ["open", "--test-passphrase"];
    let shown = typed_at(&open, &image, &[&[PASSPHRASE, b"\n"].concat()]);
    assert!(shown.contains("ended with 0 echo True"), "{shown}");
    let is_estimated = shown.contains(" %, about ") || shown.contains(", longer than expected");
    assert!(is_estimated, "{shown}");
}

#[test]
fn a_time_limit_beyond_all_times_is_none() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let forever = u64::MAX.to_string();
    let line = ["open", "--test-passphrase", "--timeout", &forever];
    let shown = typed_at(&line, &image, &[&[PASSPHRASE, b"\n"].concat()]);
    assert!(shown.contains("ended with 0 echo True"), "{shown}");
}
