//! Volumes without a header: cryptsetup's plain options and dm-crypt's table lines, judged by an
//! independent decryption.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use ucrypt_testkit::Random;

use crate::image::decrypt;
use crate::process::{run, tool};
use crate::scratch::Scratch;
use crate::server::{On, Server};

const LEN: usize = 1 << 20;

fn image(scratch: &Scratch) -> PathBuf {
    scratch.file("image", &Random::new(71).bytes(LEN))
}

fn ucrypt(scratch: &Scratch, action: &str, image: &Path, options: &[&str]) -> Command {
    let mut command = scratch.ucrypt(&[action]);
    command.args(options).arg(image);
    command
}

/// The digest of a passphrase, by coreutils: `sha256` or `sha512`.
fn digest(scratch: &Scratch, hash: &str, passphrase: &[u8]) -> PathBuf {
    let printed = run(&mut tool(&format!("{hash}sum"), "coreutils"), passphrase).text();
    let digits = printed.split(' ').next().expect("a digest");
    scratch.file("volume-key", &from_hex(digits))
}

fn from_hex(digits: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("a byte");
    (0..digits.len()).step_by(2).map(byte).collect()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |digits, byte| digits + &format!("{byte:02x}"))
}

#[test]
fn a_hashed_passphrase_decrypts_as_cryptsetup_documents_it() {
    for (cipher, bits, hash) in [
        ("aes-cbc-essiv:sha256", "256", "sha256"),
        ("aes-xts-plain64", "512", "sha512"),
        ("aes-xts-plain64", "256", "sha256"),
        ("aes-cbc-plain", "256", "sha256"),
    ] {
        let scratch = Scratch::new();
        let image = image(&scratch);
        let options = ["--type", "plain", "--cipher", cipher, "--key-size", bits, "--hash", hash];
        let key = digest(&scratch, hash, b"a passphrase");
        let mut read = ucrypt(&scratch, "read", &image, &options);
        let plain = run(&mut read, b"a passphrase\nnot this").passes();
        assert!(plain == decrypt(&image, &key, cipher, &[0, 512]), "{options:?}");
        // Nothing shows that a passphrase is wrong.
        let mut read = ucrypt(&scratch, "read", &image, &options);
        assert!(run(&mut read, b"another").passes() != plain);
    }
}

/// Under the wrong options a volume opens all the same, and whoever then makes a file system loses its data.
#[test]
fn defaults_that_a_volume_may_not_have_been_made_with_are_named() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let said = |options: &[&str]| {
        let mut read = ucrypt(&scratch, "read", &image, &["--type", "plain", "--length", "1"]);
        run(read.args(options), b"a passphrase\n").exits(0).stderr
    };
    let warning = said(&[]);
    for word in ["--cipher aes-xts-plain64", "--key-size 256", "--hash sha256", "ripemd160"] {
        assert!(warning.contains(word), "{warning}");
    }
    let warning = said(&["--cipher", "aes-cbc-plain", "--hash", "sha1"]);
    assert!(warning.contains("--key-size 256") && !warning.contains("--hash"), "{warning}");
    let all = ["--cipher", "aes-cbc-plain", "--key-size", "256", "--hash", "sha256"];
    assert_eq!((said(&all).as_str(), said(&["-q"]).as_str()), ("", ""));
}

#[test]
fn offset_skip_size_and_sector_size_are_honoured() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let key = scratch.file("key", &Random::new(72).bytes(64));
    let key_file = key.to_str().expect("a path");
    // `read` has its own `--offset`, so the image's offset has another name.
    for (sector, large, unit) in [("512", None, 512), ("4096", None, 512), ("4096", Some(()), 4096)]
    {
        let mut options = vec!["--type", "plain", "--cipher", "aes-xts-plain64"];
        options.extend(["--key-size", "512", "--key-file", key_file, "--sector-size", sector]);
        options.extend(["--data-offset", "16", "--skip", "64", "--size", "1000"]);
        options.extend(large.map(|()| "--iv-large-sectors"));
        let plain = run(&mut ucrypt(&scratch, "read", &image, &options), b"").passes();
        let numbers = [16 * 512, sector.parse().expect("a number"), 64, unit];
        let expected = decrypt(&image, &key, "aes-xts-plain64", &numbers);
        assert!(plain == expected[..512_000], "{options:?}");
    }
}

/// A table line for all of the image except its first 8 sectors.
fn table(key: &[u8], cipher: &str, iv_offset: u64, image: &Path, flags: &str) -> String {
    let sectors = LEN as u64 / 512 - 8;
    format!("0 {sectors} crypt {cipher} {} {iv_offset} {} 8{flags}", hex(key), image.display())
}

#[test]
fn a_table_line_is_read_and_written_as_dm_crypt_would() {
    for (cipher, key_len, iv_offset, flags, numbers) in [
        ("aes-cbc-essiv:sha256", 32, 0, "", [4096, 512, 0, 512]),
        ("aes-xts-plain64", 64, 8, " 1 allow_discards", [4096, 512, 8, 512]),
        ("aes-xts-plain64", 32, 8, " 1 sector_size:4096", [4096, 4096, 8, 512]),
        ("aes-xts-plain64", 64, 16, " 2 sector_size:4096 iv_large_sectors", [4096, 4096, 16, 4096]),
    ] {
        let scratch = Scratch::new();
        let image = image(&scratch);
        let key = scratch.file("key", &Random::new(73).bytes(key_len));
        let line = table(&Random::new(73).bytes(key_len), cipher, iv_offset, &image, flags);
        let options = ["--table", &line];
        let plain = run(&mut ucrypt(&scratch, "read", &image, &options), b"").passes();
        assert!(plain == decrypt(&image, &key, cipher, &numbers), "{line}");
        let first = fs::read(&image).expect("read")[..4096].to_vec();
        let data = Random::new(74).bytes(LEN - 4096);
        run(&mut ucrypt(&scratch, "write", &image, &options), &data).passes();
        assert!(data == decrypt(&image, &key, cipher, &numbers), "{line}");
        assert!(fs::read(&image).expect("read")[..4096] == first);
    }
}

#[test]
fn a_plain_volume_is_opened_shown_and_closed() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let key = scratch.file("key", &Random::new(75).bytes(64));
    let mut open = scratch.ucrypt(&["open", "--as", "fuse", "--type", "plain"]);
    open.args(["--cipher", "aes-xts-plain64"]);
    open.args(["--key-size", "512", "--offset", "8", "--key-file"]).args([&key, &image]);
    let path = run(open.arg("volume"), b"").text();
    let expected = decrypt(&image, &key, "aes-xts-plain64", &[4096, 512]);
    assert!(fs::read(path.trim_end()).expect("read") == expected);
    let status = run(&mut scratch.ucrypt(&["status", "--json", "volume"]), b"").passes();
    let status: Value = serde_json::from_slice(&status).expect("JSON");
    assert_eq!(status["volume"]["type"], "plain");
    assert_eq!(status["volume"]["offset"], 4096);
    run(&mut scratch.ucrypt(&["close", "volume"]), b"").passes();
}

#[test]
fn without_encryption_the_image_is_served_as_it_is() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let arguments = [image.as_os_str(), OsStr::new("--cipher"), OsStr::new("none")];
    let server = Server::start(&scratch, On::Fuse, &arguments);
    assert!(fs::read(server.file()).expect("read") == Random::new(71).bytes(LEN));
    server.terminate();
}

#[test]
fn a_plain_volume_larger_than_its_image_and_nonsense_tables_are_refused() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    let before = fs::read(&image).expect("read");
    let options = ["-q", "--type", "plain", "--size", "2041", "--data-offset", "8"];
    run(&mut ucrypt(&scratch, "read", &image, &options), b"pass\n").refuses(1);
    let key = Random::new(76).bytes(32);
    let right = table(&key, "aes-xts-plain64", 0, &image, "");
    for wrong in [
        right.replace("0 2040", "0 2041"),
        right.replace("0 2040", "8 2040"),
        right.replace("crypt", "linear"),
        right.replace("aes-xts", "aes-gcm"),
        right.replace(&hex(&key), "00ff"),
        right.replace(&hex(&key), "no-key"),
        format!("{right} 1 unheard_of"),
        format!("{right} 3 allow_discards"),
        "0 2040 crypt".into(),
        String::new(),
    ] {
        let mut write = ucrypt(&scratch, "write", &image, &["--table", &wrong]);
        let message = run(&mut write, b"data").refuses(1);
        assert!(!message.contains(&hex(&key)), "a key in {message}");
    }
    assert!(fs::read(&image).expect("read") == before);
}
