//! What is left of keys in the memory of a program.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use ucrypt_lib::{Key, OpenOptions};

use crate::images::{Image, PASSPHRASE};

/// Mappings larger than this, in bytes, are data buffers and are not searched.
const MAPPING_MAX: u64 = 256 << 20;

/// Set in the process whose memory is searched: its image and its key file.
const CHILD: &str = "UCRYPT_LIB_TEST_SECRETS";

/// Whether another process has these bytes in its memory.
fn has(pid: u32, secret: &[u8]) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    let memory = File::open(format!("/proc/{pid}/mem")).expect("root, or the same user");
    let mut read = 0;
    let found = maps.lines().any(|line| {
        let (range, rest) = line.split_once(' ').expect("a range");
        let (start, end) = range.split_once('-').expect("a start and an end");
        let number = |text| u64::from_str_radix(text, 16).expect("an address");
        let (start, len) = (number(start), number(end) - number(start));
        if !rest.starts_with('r') || rest.contains("[v") || len > MAPPING_MAX {
            return false;
        }
        let mut bytes = vec![0; len as usize];
        let is_read = memory.read_exact_at(&mut bytes, start).is_ok();
        read += if is_read { bytes.len() } else { 0 };
        is_read && bytes.windows(secret.len()).any(|window| window == secret)
    });
    assert!(found || read > 1 << 20, "the memory of {pid} was not read");
    found
}

/// The other process: opens a volume, says so, waits, closes it, says so, waits.
#[test]
fn child_that_opens_a_volume() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let dir = std::path::Path::new(&dir);
    let (image, key) = (dir.join("image"), dir.join("key"));
    let say = |word: &str| {
        let mut out = std::io::stderr();
        writeln!(out, "{word}").and_then(|()| out.flush()).expect("said");
        let _ = std::io::stdin().read(&mut [0]);
    };
    let volume = OpenOptions::new().open(&image, Key::File(&key)).expect("it opens");
    volume.write_at(0, b"data").expect("written");
    say("open");
    volume.close().expect("flushed");
    say("closed");
}

#[test]
fn no_passphrase_is_left_after_opening_and_no_volume_key_after_closing() {
    let image = Image::by_cryptsetup(1 << 20, &["--type", "luks2"]);
    let volume_key = fs::read(image.volume_key()).expect("the volume key");
    // The passphrase of the other tests is a constant of this program.
    let passphrase: Vec<u8> = (0..32).map(|_| fastrand::u8(..)).collect();
    let (old, new) = (image.file("key", PASSPHRASE), image.file("new", &passphrase));
    let mut change = crate::images::tool("cryptsetup", "cryptsetup-bin");
    change.args(["luksChangeKey", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]);
    crate::images::passes(change.arg("--key-file").arg(&old).arg(&image.path).arg(&new));
    fs::rename(&new, image.dir.path().join("key")).expect("renamed");

    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child.args(["--exact", "secrets::child_that_opens_a_volume", "--nocapture"]);
    child.env(CHILD, image.dir.path()).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.stdout(Stdio::null()).spawn().expect("it starts");
    let mut said = child.stderr.take().expect("a pipe");
    let mut go_on = child.stdin.take().expect("a pipe");
    let pid = child.id();
    let mut hear = |word: &str| {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            let mut byte = [0];
            assert_eq!(said.read(&mut byte).expect("heard"), 1, "it ended before '{word}'");
            line.push(byte[0]);
        }
        assert_eq!(line, format!("{word}\n").as_bytes());
    };
    hear("open");
    let name = image.dir.path().to_str().expect("text").as_bytes();
    assert!(has(pid, name), "the search finds what is there");
    assert!(!has(pid, &passphrase), "the passphrase is left");
    go_on.write_all(b"x").expect("told");
    hear("closed");
    assert!(!has(pid, &passphrase), "the passphrase is left");
    assert!(!has(pid, &volume_key), "the volume key is left");
    assert!(!has(pid, &volume_key[..32]), "half of the volume key is left");
    assert!(!has(pid, &volume_key[32..]), "half of the volume key is left");
    go_on.write_all(b"x").expect("told");
    assert!(child.wait().expect("it ends").success());
}
