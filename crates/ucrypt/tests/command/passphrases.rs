//! Passphrases from a pipe: none, long ones, parts of them. cryptsetup is the reference.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use ucrypt_testkit::Random;

use crate::image::{DATA, Image, Kind, LUKS1, LUKS2, PASSPHRASE};
use crate::process::{cryptsetup, run, tool};
use crate::scratch::Scratch;
use crate::server::{await_end, await_reader};

fn format_line(kind: Kind) -> Vec<String> {
    kind.format_arguments()
}

#[test]
fn an_input_without_a_passphrase_is_not_an_empty_passphrase() {
    let scratch = Scratch::new();
    let image = Image::blank(&scratch, LUKS2, DATA);
    let before = image.bytes();
    for key in [&[][..], &["--key-file", "-"], &["--key-file", "/dev/null"]] {
        let mut format = scratch.ucrypt(&format_line(LUKS2));
        let message = run(format.args(key).arg(&image.path), b"").refuses(1);
        assert!(message.contains("nothing to read"), "{message}");
        // As cryptsetup does.
        let mut theirs = cryptsetup();
        theirs.args(LUKS2.format_arguments()).args(key);
        run(theirs.arg(&image.path), b"").exits(1);
        assert!(image.bytes() == before, "{key:?} has formatted");
    }

    // A volume with an empty passphrase: cryptsetup takes it from an empty line.
    let mut format = scratch.ucrypt(&format_line(LUKS2));
    run(format.arg(&image.path), b"\n").exits(0);
    let mut open = cryptsetup();
    run(open.args(["open", "--test-passphrase"]).arg(&image.path), b"\n").exits(0);
    let socket = format!("unix:{}", scratch.path("socket").display());
    for line in [
        &["open", "--test-passphrase"][..],
        &["open", "--as", "fuse"],
        &["read"],
        &["serve", "--nbd", &socket],
        &["luksDump", "-q", "--dump-volume-key"],
        &["read", "--type", "plain", "-q"],
    ] {
        for key in [&[][..], &["--key-file", "-"]] {
            let mut command = scratch.ucrypt(line);
            command.args(key).arg(&image.path);
            if line.contains(&"fuse") {
                command.arg("volume");
            }
            let message = run(&mut command, b"").refuses(1);
            assert!(message.contains("nothing to read"), "{line:?}: {message}");
        }
    }
}

#[test]
fn a_long_line_is_a_passphrase_to_its_end() {
    let scratch = Scratch::new();
    for (kind, len) in [(LUKS1, 513), (LUKS2, 600), (LUKS2, 100_000)] {
        let image = Image::blank(&scratch, kind, DATA);
        let passphrase: Vec<u8> =
            Random::new(len as u64).bytes(len).iter().map(|byte| b'a' + byte % 26).collect();
        let line = [&passphrase[..], b"\nnot this"].concat();
        let opens = |input: &[u8]| {
            let mut ours = scratch.ucrypt(&["open", "--test-passphrase"]);
            let mut theirs = cryptsetup();
            theirs.args(["open", "--test-passphrase"]);
            let ended = [run(ours.arg(&image.path), input), run(theirs.arg(&image.path), input)];
            ended.map(|ran| ran.code())
        };
        for by_cryptsetup in [false, true] {
            if by_cryptsetup {
                run(cryptsetup().args(kind.format_arguments()).arg(&image.path), &line).exits(0);
            } else {
                run(scratch.ucrypt(&format_line(kind)).arg(&image.path), &line).exits(0);
            }
            assert_eq!(opens(&line), [Some(0); 2], "{len} bytes");
            assert_eq!(opens(&passphrase[..512]), [Some(2); 2], "{len} bytes");
            assert_eq!(opens(&passphrase[..len - 1]), [Some(2); 2], "{len} bytes");
        }
    }
}

#[test]
fn a_part_of_standard_input_is_the_part_that_cryptsetup_takes() {
    let scratch = Scratch::new();
    let image = Image::blank(&scratch, LUKS2, DATA);
    run(scratch.ucrypt(&format_line(LUKS2)).arg(&image.path), b"3456").exits(0);
    for (options, input, code) in [
        (&["-l", "4"][..], &b"3456789\n"[..], 0),
        (&["-l", "4", "--keyfile-offset", "3"], b"0123456789", 0),
        (&["-l", "4", "--keyfile-offset", "3", "-d", "-"], b"0123456789", 0),
        (&["-l", "0"], b"3456\n", 0),
        (&["-l", "0", "-d", "-"], b"3456\n", 2),
        (&["-l", "5"], b"34567", 2),
        (&["-l", "5"], b"3456\n", 1),
        (&["-l", "5"], b"3456", 1),
        (&["--keyfile-offset", "9"], b"3456", 1),
    ] {
        let mut ours = scratch.ucrypt(&["open", "--test-passphrase"]);
        run(ours.args(options).arg(&image.path), input).exits(code);
        let mut theirs = cryptsetup();
        theirs.args(["open", "--test-passphrase"]).args(options);
        run(theirs.arg(&image.path), input).exits(code);
    }
}

#[test]
fn what_is_behind_the_line_is_left_for_the_next_program() {
    let scratch = Scratch::new();
    let image = Image::blank(&scratch, LUKS2, DATA);
    run(scratch.ucrypt(&format_line(LUKS2)).arg(&image.path), b"first").exits(0);
    let mut shell = tool("sh", "dash");
    shell.args(["-c", "\"$0\" open --test-passphrase \"$1\" && cat"]);
    shell.arg(crate::scratch::UCRYPT).arg(&image.path);
    assert_eq!(run(&mut shell, b"first\nsecond\n").passes(), b"second\n");
}

#[test]
fn what_writes_nothing_works_on_an_image_that_is_in_use_and_on_a_read_only_one() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let plain = run(&mut image.ucrypt(&scratch, "read"), b"").passes();
    let before = image.bytes();
    let mut open = scratch.ucrypt(&["open", "--as", "fuse"]);
    run(open.args(image.with_key()).arg("volume"), b"").passes();
    for options in [&["read"][..], &["read", "--readonly"], &["open", "--test-passphrase"]] {
        let mut command = scratch.ucrypt(options);
        let ran = run(command.args(image.with_key()), b"");
        assert_eq!(options[0] == "read", ran.stderr.contains("in use"), "{}", ran.stderr);
        assert!(ran.exits(0).stdout == if options[0] == "read" { &plain[..] } else { b"" });
    }
    // Serving the image still needs it exclusively.
    let socket = format!("unix:{}", scratch.path("socket").display());
    let mut serve = image.ucrypt(&scratch, "serve");
    run(serve.args(["--readonly", "--nbd", &socket]), b"").refuses(5);
    run(&mut scratch.ucrypt(&["close", "volume"]), b"").passes();

    assert!(image.bytes() == before);

    // Root may write to every file, but not to files on a file system that is mounted read-only.
    let mount_point = scratch.path("read-only");
    fs::create_dir(&mount_point).expect("a directory");
    let mount = |options: &str| {
        let mut mount = tool("mount", "mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&mount_point);
        run(&mut mount, b"").passes();
    };
    mount("size=32m");
    let copy = mount_point.join("image");
    run(tool("cp", "coreutils").arg(&image.path).arg(&copy), b"").passes();
    mount("remount,ro");
    let image = Image { path: copy, ..image };
    assert!(run(&mut image.ucrypt(&scratch, "read"), b"").passes() == plain);
    let mut test = scratch.ucrypt(&["open", "--test-passphrase"]);
    run(test.args(image.with_key()), b"").passes();
    run(&mut image.ucrypt(&scratch, "write"), b"data").exits(4);
}

#[test]
fn who_tries_a_passphrase_keeps_nobody_from_using_the_image() {
    let scratch = Scratch::new();
    let image = Image::by_cryptsetup(&scratch, LUKS2, DATA);
    let fifo = scratch.path("fifo");
    run(tool("mkfifo", "coreutils").arg(&fifo), b"").passes();
    for (action, code) in [(&["open", "--test-passphrase"][..], 0), (&["read"], 5)] {
        let mut command = scratch.ucrypt_child(action);
        command.arg(&image.path).arg("--key-file").arg(&fifo);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut waits = command.spawn().expect("it starts");
        // Once the pipe has a reader, the image is open and the key not yet read.
        let mut key = await_reader(&fifo);
        run(&mut image.ucrypt(&scratch, "write"), b"data").exits(code);
        key.write_all(PASSPHRASE).expect("the passphrase is read");
        drop(key);
        assert!(await_end(&mut waits).success(), "{action:?}");
    }
}

#[test]
fn what_luks_format_ignores_is_told() {
    let scratch = Scratch::new();
    let image = Image::blank(&scratch, LUKS2, DATA);
    let options = ["--pbkdf-memory", "64", "--pbkdf-parallel", "2", "--verify-passphrase"];
    let mut format = scratch.ucrypt(&format_line(LUKS2));
    let said = run(format.args(options).arg(&image.path), b"passphrase").exits(0).stderr;
    for option in ["--pbkdf-memory", "--pbkdf-parallel", "--verify-passphrase"] {
        assert!(said.contains(&format!("{option} option is being ignored")), "{said}");
    }
}
