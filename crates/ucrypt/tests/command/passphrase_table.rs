//! Every way to give a passphrase, in one table. Each row is carried out by this command and by
//! cryptsetup: what one of them makes, both open, and only with the bytes that the row names.
//!
//! The keys of plain volumes are in `plain_keys`: cryptsetup opens none without device mapper.

use std::process::Command;

use ucrypt_testkit::Random;

use crate::image::{DATA, Image, Kind, LUKS1, LUKS2};
use crate::process::{cryptsetup, run};
use crate::scratch::Scratch;
use crate::terminal::at_terminal;

/// The longest passphrase in bytes, unless its length is given.
const MAX: usize = 8 << 20;

/// Longer than a pipe and any buffer, in bytes.
const LONG: usize = 200_000;

/// Where the passphrase comes from.
enum By {
    /// Standard input.
    Pipe(Vec<u8>),
    /// Keys typed at the prompts of a terminal.
    Typed(&'static [&'static [u8]]),
    /// The file KEY, which is not a pipe.
    File(Vec<u8>),
}
use By::{File, Pipe, Typed};

/// A row: its name, options (KEY is the file), the source, and the passphrase or the exit code.
type Row = (&'static str, &'static [&'static str], By, Result<Vec<u8>, i32>);

fn pipe(bytes: &[u8]) -> By {
    Pipe(bytes.to_vec())
}

fn file(bytes: &[u8]) -> By {
    File(bytes.to_vec())
}

/// What a row without a refusal comes to.
#[expect(clippy::unnecessary_wraps, reason = "other rows are refused")]
fn key(bytes: &[u8]) -> Result<Vec<u8>, i32> {
    Ok(bytes.to_vec())
}

const DASH: &[&str] = &["--key-file", "-"];
const KEY: &[&str] = &["--key-file", "KEY"];

/// A line of 600 bytes.
const TOO_LONG: &[u8] = &line_of::<601>();

/// A line of 512 bytes, which are those of the longer one.
const AS_LONG: &[u8] = &line_of::<513>();

/// A line of 515 bytes, of which the last five are erased.
const CORRECTED: &[u8] = &{
    let mut keys = line_of::<522>();
    let mut at = 515;
    while at < 520 {
        keys[at] = 127;
        at += 1;
    }
    keys[520] = b'!';
    keys
};

/// What it is then.
const CORRECTED_TO: [u8; 511] = {
    let mut bytes = line_of::<511>();
    bytes[510] = b'!';
    bytes
};

/// Digits that repeat, `N` bytes with the end of the line.
const fn line_of<const N: usize>() -> [u8; N] {
    let mut line = [b'\n'; N];
    let mut at = 0;
    while at < N - 1 {
        line[at] = b'0' + (at % 7) as u8;
        at += 1;
    }
    line
}

fn table() -> Vec<Row> {
    // No line ends in these bytes, and no key file is text.
    let line: Vec<u8> = Random::new(0x7061_7373).bytes(MAX + 1);
    let line: Vec<u8> = line.iter().map(|byte| b'a' + byte % 26).collect();
    let all = b"secret\n\x00\xff more\n";
    vec![
        ("a line", &[], pipe(b"secret\n"), key(b"secret")),
        ("a line without its end", &[], pipe(b"secret"), key(b"secret")),
        ("what is behind the line", &[], pipe(b"secret\nmore\n"), key(b"secret")),
        ("an empty line", &[], pipe(b"\n"), key(b"")),
        ("a carriage return", &[], pipe(b"secret\r\n"), key(b"secret\r")),
        ("spaces around it", &[], pipe(b" secret \n"), key(b" secret ")),
        ("UTF-8", &[], pipe("pässwörd ✓\n".as_bytes()), key("pässwörd ✓".as_bytes())),
        ("bytes that are no text", &[], pipe(b"\xff\x80\x01\n"), key(b"\xff\x80\x01")),
        // A line is read byte by byte; a longer one takes seconds, and has a test of its own.
        ("a long line", &[], Pipe([&line[..LONG], b"\n"].concat()), key(&line[..LONG])),
        ("nothing", &[], pipe(b""), Err(1)),
        ("a part of a line", &["-l", "3"], pipe(b"secret\n"), key(b"sec")),
        ("no limit", &["-l", "0"], pipe(b"secret\n"), key(b"secret")),
        ("more than the line has", &["-l", "9"], pipe(b"secret\n"), Err(1)),
        ("all of standard input", DASH, pipe(all), key(all)),
        ("a part of it", &["-d", "-", "-l", "8"], pipe(all), key(&all[..8])),
        (
            "the middle of it",
            &["-d", "-", "-l", "8", "--keyfile-offset", "3"],
            pipe(all),
            key(&all[3..11]),
        ),
        ("nothing at all", DASH, pipe(b""), Err(1)),
        ("a key file", KEY, file(all), key(all)),
        ("a key file with a line", KEY, file(b"secret\n"), key(b"secret\n")),
        ("a part of it", &["-d", "KEY", "-l", "8"], file(all), key(&all[..8])),
        ("its end", &["-d", "KEY", "--keyfile-offset", "3"], file(all), key(&all[3..])),
        (
            "its middle",
            &["-d", "KEY", "--keyfile-size=4", "--keyfile-offset=5"],
            file(all),
            key(&all[5..9]),
        ),
        ("more than it has", &["-d", "KEY", "-l", "99"], file(all), Err(1)),
        ("behind its end", &["-d", "KEY", "--keyfile-offset", "99"], file(all), Err(1)),
        ("the longest key file", KEY, File(line[..MAX].to_vec()), key(&line[..MAX])),
        ("a key file that is too long", KEY, File(line.clone()), Err(1)),
        ("a part of a long one", &["-d", "KEY", "-l", "9"], File(line.clone()), key(&line[..9])),
        ("no file", &["-d", "/nonexistent"], pipe(b""), Err(1)),
        ("a directory", &["-d", "/"], pipe(b""), Err(1)),
        ("a device that gives nothing", &["-d", "/dev/null"], pipe(b""), Err(1)),
        ("typed", &[], Typed(&[b"secret\n"]), key(b"secret")),
        ("typed in UTF-8", &[], Typed(&[b"p\xc3\xa4ssw\xc3\xb6rd\n"]), key("pässwörd".as_bytes())),
        ("typed, for a dash too", DASH, Typed(&[b"secret\n"]), key(b"secret")),
        ("typed and corrected", &[], Typed(&[b"secrex\x7ft\n"]), key(b"secret")),
        ("typed once more from its begin", &[], Typed(&[b"wrong\x15secret\n"]), key(b"secret")),
        ("typed, more than counts", &[], Typed(&[TOO_LONG]), key(&TOO_LONG[..512])),
        ("typed, as much as counts", &[], Typed(&[AS_LONG]), key(&TOO_LONG[..512])),
        ("typed, too much, and corrected", &[], Typed(&[CORRECTED]), key(&CORRECTED_TO)),
        ("typed with spaces", &[], Typed(&[b" a b \n"]), key(b" a b ")),
        ("only the end of the line", &[], Typed(&[b"\n"]), key(b"")),
        ("the end of the input", &[], Typed(&[b"\x04"]), Err(1)),
        ("the name of standard input", &["-d", "/dev/stdin"], pipe(all), key(all)),
        ("a part of no limit", &["-d", "KEY", "-l", "0"], file(all), key(all)),
        ("more than there may be", &["-d", "KEY", "-l", "8388609"], File(line.clone()), key(&line)),
        ("as much of it", &["-d", "-", "-l", "8388609"], Pipe(line.clone()), key(&line)),
        ("more than 32 bits tell", &["-d", "KEY", "-l", "4294967296"], file(all), Err(1)),
        ("a terminal is no file", &["-d", "/dev/tty"], Typed(&[]), Err(1)),
        ("a zero byte", &[], pipe(b"se\x00cret\n"), key(b"se\x00cret")),
    ]
}

/// Who carries out a row.
const PROGRAMS: [&str; 2] = ["ucrypt", "cryptsetup"];

fn program(scratch: &Scratch, name: &str) -> Command {
    if name == "ucrypt" { scratch.ucrypt::<&str>(&[]) } else { cryptsetup() }
}

/// Runs a program with a passphrase from this source. Returns its exit code.
fn runs(scratch: &Scratch, name: &str, words: &[String], by: &By) -> (i32, String) {
    let (keys, input) = match by {
        Typed(keys) => (keys, &b""[..]),
        Pipe(bytes) => {
            let ran = run(program(scratch, name).args(words), bytes);
            return (ran.code().expect("an exit code"), ran.stderr);
        }
        File(_) => {
            let ran = run(program(scratch, name).args(words), b"");
            return (ran.code().expect("an exit code"), ran.stderr);
        }
    };
    typed(scratch, name, words, keys, input)
}

/// As [`runs`], with keys typed at a terminal.
fn typed(
    scratch: &Scratch,
    name: &str,
    words: &[String],
    keys: &[&[u8]],
    input: &[u8],
) -> (i32, String) {
    let command = program(scratch, name);
    // `timeout` and its options stand in front of the program.
    let line: Vec<_> = command.get_args().skip(2).collect();
    let mut terminal = at_terminal(keys);
    terminal.env("XDG_RUNTIME_DIR", scratch.path("run"));
    let shown = run(terminal.args(line).args(words), input).text();
    let code = shown.split("ended with ").nth(1).and_then(|rest| rest.split(' ').next());
    let code = code.and_then(|code| code.parse().ok());
    (code.unwrap_or_else(|| panic!("no exit code in {shown}")), shown)
}

#[test]
fn every_way_to_give_a_passphrase_gives_the_bytes_that_cryptsetup_takes() {
    let scratch = Scratch::new();
    let exact = scratch.path("exact").display().to_string();
    for (name, options, by, expected) in table() {
        let file = match &by {
            File(content) => scratch.file("key", content),
            _ => scratch.path("none"),
        };
        let options: Vec<String> = options
            .iter()
            .map(|word| if *word == "KEY" { file.display().to_string() } else { (*word).into() })
            .collect();
        let image = Image::blank(&scratch, LUKS1, DATA);
        let path = image.path.display().to_string();
        let format = [LUKS1.format_arguments(), options.clone(), vec![path.clone()]].concat();
        let test = ["open".to_owned(), "--test-passphrase".to_owned()];
        let open = [&test[..], &options, std::slice::from_ref(&path)].concat();
        let by_file = |len: usize| {
            // Longer ones are read only if their length is given.
            let size = if len > MAX { len } else { 0 };
            let words = ["--key-file", &exact, "--keyfile-size", &size.to_string(), &path];
            [&test[..], &words.map(str::to_owned)].concat()
        };
        for maker in PROGRAMS {
            let before = image.bytes();
            let (code, said) = runs(&scratch, maker, &format, &by);
            let passphrase = match &expected {
                Err(refusal) => {
                    assert_eq!(code, *refusal, "{name}: {maker} formats: {said}");
                    assert!(image.bytes() == before, "{name}: {maker} has formatted");
                    continue;
                }
                Ok(passphrase) => passphrase,
            };
            assert_eq!(code, 0, "{name}: {maker} formats: {said}");
            scratch.file("exact", passphrase);
            for opener in PROGRAMS {
                let (code, said) = runs(&scratch, opener, &open, &by);
                assert_eq!(code, 0, "{name}: made by {maker}, opened by {opener}: {said}");
                // The very bytes, and no others.
                let line = by_file(passphrase.len());
                let (code, said) = runs(&scratch, opener, &line, &Pipe(Vec::new()));
                assert_eq!(code, 0, "{name}: made by {maker}, another passphrase: {said}");
            }
        }
        if let Err(refusal) = expected {
            run(cryptsetup().args(LUKS1.format_arguments()).arg(&image.path), b"other").exits(0);
            for opener in PROGRAMS {
                let (code, said) = runs(&scratch, opener, &open, &by);
                assert_eq!(code, refusal, "{name}: {opener} opens: {said}");
            }
        }
    }
}

/// cryptsetup does the same, and takes as long, because it too reads a line byte by byte.
#[test]
fn a_piped_line_of_8_mib_is_a_passphrase_and_a_longer_one_is_refused() {
    let scratch = Scratch::new();
    let mut line = Random::new(0x6c69_6e65).bytes(MAX + 1);
    for byte in &mut line {
        *byte = b'a' + *byte % 26;
    }
    let key = scratch.file("key", &line[..MAX]);
    let image = Image::blank(&scratch, LUKS1, DATA);
    let mut format = cryptsetup();
    format.args(LUKS1.format_arguments()).arg(&image.path).arg(&key);
    run(&mut format, b"").exits(0);
    let opens = |passphrase: &[u8]| {
        let mut open = scratch.ucrypt(&["open", "--test-passphrase"]);
        run(open.arg(&image.path), &[passphrase, b"\n"].concat())
    };
    std::thread::scope(|scope| {
        let longest = scope.spawn(|| opens(&line[..MAX]));
        let said = opens(&line).refuses(1);
        assert!(said.contains("longer than a key may be, 8388608 bytes"), "{said}");
        longest.join().expect("no panic").exits(0);
    });
}

/// An image that `one` and `two` open, in keyslots 0 and 1.
fn two_keys(scratch: &Scratch, kind: Kind) -> Image {
    let image = Image::blank(scratch, kind, DATA);
    run(cryptsetup().args(kind.format_arguments()).arg(&image.path), b"one").exits(0);
    let mut add = cryptsetup();
    add.args(["luksAddKey", "-q", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]);
    run(add.arg(&image.path), b"one\ntwo").exits(0);
    image
}

#[test]
fn actions_that_need_one_passphrase_have_it_typed_twice_if_that_is_asked_for() {
    let scratch = Scratch::new();
    let cheap = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1001"];
    for (kind, line, number) in [
        (LUKS1, &["luksRemoveKey", "-y"][..], None),
        (LUKS1, &["luksKillSlot", "--verify-passphrase"], Some("1")),
        (LUKS2, &[&["luksConvertKey", "-y"], &cheap[..]].concat(), None),
    ] {
        let image = two_keys(&scratch, kind);
        let before = image.bytes();
        let path = image.path.display().to_string();
        let words = line.iter().copied().chain([path.as_str()]).chain(number);
        let words: Vec<String> = words.map(str::to_owned).collect();
        for name in PROGRAMS {
            for (second, code) in [(&b"two\n"[..], 2), (b"one\n", 0)] {
                let (ended, shown) = typed(&scratch, name, &words, &[b"one\n", second], b"");
                assert_eq!(ended, code, "{name} {words:?}: {shown}");
                let asked = shown.matches("Verify passphrase:").count();
                assert_eq!(asked, 1, "{name} {words:?}: {shown}");
                assert_eq!(image.bytes() == before, code > 0, "{name} {words:?}: {shown}");
            }
            std::fs::write(&image.path, &before).expect("written");
            // What nobody types is no reason to fail.
            let (code, said) = runs(&scratch, name, &words, &pipe(b"one\n"));
            assert_eq!(code, 0, "{name} {words:?}: {said}");
            std::fs::write(&image.path, &before).expect("written");
        }
        let (_, said) = runs(&scratch, "ucrypt", &words, &pipe(b"one\n"));
        assert!(said.contains("--verify-passphrase option is being ignored"), "{said}");
    }
}

#[test]
fn tries_time_limits_and_verification_are_those_of_cryptsetup() {
    let scratch = Scratch::new();
    let image = Image::blank(&scratch, LUKS1, DATA);
    let path = image.path.display().to_string();
    run(cryptsetup().args(LUKS1.format_arguments()).arg(&image.path), b"secret").exits(0);
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let open =
        |options: &[&str]| words(&[&["open", "--test-passphrase"], options, &[&path]].concat());
    let (right, wrong): (&[u8], &[u8]) = (b"secret\n", b"wrong\n");
    for (options, keys, code, prompts) in [
        (&[][..], &[wrong, wrong, right][..], 0, 3),
        (&[], &[wrong, wrong, wrong, right], 2, 3),
        (&["--tries", "1"], &[wrong, right], 2, 1),
        (&["--tries", "0"], &[wrong, right], 2, 1),
        (&["-T", "0"], &[right], 0, 1),
        (&["-T", "2"], &[wrong, right], 0, 2),
        (&["-T", "5"], &[wrong, wrong, wrong, wrong, right], 0, 5),
        (&["--timeout", "1"], &[b"never finished"], 1, 1),
    ] {
        for name in PROGRAMS {
            let (ended, shown) = typed(&scratch, name, &open(options), keys, b"");
            assert_eq!(ended, code, "{name} {options:?}: {shown}");
            let asked = shown.matches("Enter passphrase for").count();
            assert_eq!(asked, prompts, "{name} {options:?}: {shown}");
        }
    }
    // To be verified, it is typed twice, and another one the second time ends the action.
    for (keys, code) in [(&[right, right][..], 0), (&[right, wrong, right, right], 2)] {
        for name in PROGRAMS {
            let (ended, shown) = typed(&scratch, name, &open(&["-y"]), keys, b"");
            assert_eq!(ended, code, "{name} {keys:?}: {shown}");
            assert_eq!(shown.matches("Verify passphrase:").count(), 1, "{name}: {shown}");
        }
    }
    for name in PROGRAMS {
        let (code, said) = runs(&scratch, name, &open(&["-y"]), &pipe(right));
        assert!(code == 0 && said.contains("verif"), "{name}: {said}");
        // A plain volume: cryptsetup asks before it needs device mapper.
        let plain = ["open", "--type", "plain", "-q", "--verify-passphrase", &path, "never"];
        let (ended, shown) = typed(&scratch, name, &words(&plain), &[right, wrong], b"");
        assert_eq!(ended, 2, "{name}: {shown}");
        assert_eq!(shown.matches("Verify passphrase:").count(), 1, "{name}: {shown}");
    }
    let plain = ["read", "--type", "plain", "-y", "-q", "--length", "512", &path];
    let (ended, shown) = typed(&scratch, "ucrypt", &words(&plain), &[right, wrong], b"");
    assert_eq!(ended, 2, "{shown}");
    // What comes from a pipe is tried once.
    for name in PROGRAMS {
        let (code, said) = runs(&scratch, name, &open(&["-T", "3"]), &pipe(b"wrong\nsecret\n"));
        assert_eq!(code, 2, "{name}: {said}");
    }
    let format = |options: &[&str]| {
        let path = vec![path.clone()];
        [LUKS1.format_arguments(), words(options), path].concat()
    };
    for (options, keys, code) in [
        (&["--verify-passphrase"][..], &[right, right][..], 0),
        (&["-y"], &[right, wrong], 2),
        (&[], &[right], 0),
    ] {
        for name in PROGRAMS {
            let (ended, shown) = typed(&scratch, name, &format(options), keys, b"");
            assert_eq!(ended, code, "{name} {options:?}: {shown}");
        }
    }
    assert_eq!(runs(&scratch, "cryptsetup", &open(&[]), &pipe(right)).0, 0);
}
