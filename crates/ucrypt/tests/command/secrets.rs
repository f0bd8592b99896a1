//! No secrets are left in the memory of a server.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

use rustix::process::Pid;
use ucrypt_testkit::Random;

use crate::image::{DATA, Image, LUKS1, LUKS2, LUKS2_ARGON2, PASSPHRASE};
use crate::plain::hex;
use crate::process::{cryptsetup, run, tool};
use crate::scratch::Scratch;
use crate::server::await_that;

/// Mappings larger than this, in bytes, are data buffers and are not searched.
const MAPPING_MAX: u64 = 256 << 20;

/// Passes the memory of a process on, except data buffers: the address of each mapping, its line in the list of
/// mappings, and its bytes.
pub(crate) fn each_mapping(process: Pid, mut look: impl FnMut(u64, &str, &[u8])) {
    let pid = process.as_raw_nonzero();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    let memory = File::open(format!("/proc/{pid}/mem")).expect("only root reads the memory");
    let mut read = 0;
    for line in maps.lines() {
        let (range, rest) = line.split_once(' ').expect("a range");
        let (start, end) = range.split_once('-').expect("a start and an end");
        let number = |text| u64::from_str_radix(text, 16).expect("an address");
        let (start, len) = (number(start), number(end) - number(start));
        if !rest.starts_with('r') || rest.contains("[v") || len > MAPPING_MAX {
            continue;
        }
        let mut bytes = vec![0; len as usize];
        // The end may have been unmapped meanwhile.
        let mut there = 0;
        while let Ok(more @ 1..) = memory.read_at(&mut bytes[there..], start + there as u64) {
            there += more;
        }
        read += there;
        look(start, line, &bytes[..there]);
    }
    assert!(read > 1 << 20, "the memory of {pid} was not read");
}

/// Where a process has these bytes in its memory.
pub(crate) fn found_in(process: Pid, secret: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    each_mapping(process, |start, line, bytes| {
        let at = bytes.windows(secret.len()).position(|window| window == secret);
        found.extend(at.map(|at| format!("{:x} in {line}", start + at as u64)));
    });
    found
}

pub(crate) fn volume_key(scratch: &Scratch, image: &Image) -> Vec<u8> {
    let file = scratch.path("volume-key");
    let mut dump = cryptsetup();
    dump.args(["luksDump", "--dump-volume-key", "--batch-mode", "--key-file"]);
    dump.arg(&image.key).arg("--volume-key-file").arg(&file);
    run(dump.arg(image.header_path()), b"").passes();
    fs::read(file).expect("the volume key")
}

#[track_caller]
fn assert_clean(process: Pid, secrets: &[&[u8]]) {
    // Check that the search finds bytes that exist.
    let line = fs::read(format!("/proc/{}/cmdline", process.as_raw_nonzero())).expect("read");
    let name = line.split(|byte| *byte == 0).nth(2).expect("an argument").to_vec();
    assert!(!found_in(process, &name).is_empty());
    for secret in secrets {
        let shown = String::from_utf8_lossy(secret);
        assert_eq!(found_in(process, secret), [""; 0], "left in one piece: {shown}");
    }
}

#[test]
fn nothing_of_passphrase_and_volume_key_is_left_in_a_server_in_the_background() {
    for kind in [LUKS1, LUKS2, LUKS2_ARGON2] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, DATA);
        let key = volume_key(&scratch, &image);
        let mut open = scratch.ucrypt(&["open", "--as", "nbd"]);
        run(open.arg(&image.path).arg("volume"), PASSPHRASE).passes();
        let server = scratch.server();
        assert_clean(server, &[PASSPHRASE, &key]);
        run(&mut scratch.ucrypt(&["close", "volume"]), b"").passes();
    }
}

#[test]
fn nothing_of_passphrase_and_volume_key_is_left_in_a_server_that_read_them_itself() {
    for kind in [LUKS1, LUKS2, LUKS2_ARGON2] {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, DATA);
        let key = volume_key(&scratch, &image);
        for by in [&[][..], &["--key-file", "-"], &["--key-file"]] {
            let socket = scratch.path("socket");
            let mut serve = scratch.ucrypt_child(&["serve", "--nbd"]);
            serve.arg(format!("unix:{}", socket.display())).arg(&image.path).args(by);
            if by.len() == 1 {
                serve.arg(&image.key);
            }
            let mut child =
                serve.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts");
            let mut stdin = child.stdin.take().expect("a pipe");
            // With a key file, the server does not read standard input.
            let _ = std::io::Write::write_all(&mut stdin, PASSPHRASE);
            drop(stdin);
            await_that("the server listens", || Path::new(&socket).exists());
            assert_clean(Pid::from_child(&child), &[PASSPHRASE, &key]);
            child.kill().and_then(|()| child.wait()).expect("it ends");
            let _ = fs::remove_file(&socket);
        }
    }
}

/// Between two passphrases, an action that changes keys may wait for hours.
#[test]
fn no_key_is_left_on_the_stack_of_an_action_that_waits_for_the_next_passphrase() {
    for (kind, action) in [LUKS1, LUKS2, LUKS2_ARGON2]
        .into_iter()
        .zip(["luksAddKey", "luksChangeKey"].into_iter().cycle())
    {
        let scratch = Scratch::new();
        let image = Image::by_cryptsetup(&scratch, kind, DATA);
        let key = volume_key(&scratch, &image);
        let mut change = scratch.ucrypt_child(&[action, "-q"]);
        change.args(["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]).arg(&image.path);
        let mut child = change.stdin(Stdio::piped()).spawn().expect("it starts");
        let process = Pid::from_child(&child);
        let mut stdin = child.stdin.take().expect("a pipe");
        let line = [PASSPHRASE, b"\n"].concat();
        std::io::Write::write_all(&mut stdin, &line).expect("written");
        let held = || key.chunks(16).all(|part| !found_in(process, part).is_empty());
        await_that("the volume key is known, and the next line is waited for", || {
            reads_a_pipe(process) && held()
        });
        for part in key.chunks(16).chain([&PASSPHRASE[..16]]) {
            let left = found_in(process, part).into_iter().filter(|line| line.contains("[stack]"));
            assert_eq!(left.collect::<Vec<_>>(), [""; 0], "{action}: {part:02x?}");
        }
        std::io::Write::write_all(&mut stdin, b"new").expect("written");
        drop(stdin);
        assert!(child.wait().expect("it ends").success());
    }
}

/// Whether a process sleeps until there is something in a pipe.
fn reads_a_pipe(process: Pid) -> bool {
    let place = format!("/proc/{}/wchan", process.as_raw_nonzero());
    fs::read_to_string(place).is_ok_and(|place| place.contains("pipe_read"))
}

#[test]
fn nothing_of_the_key_of_a_volume_without_a_header_is_left_in_a_server() {
    let scratch = Scratch::new();
    let image = scratch.sparse("image", DATA);
    let key = Random::new(83).bytes(64);
    let hex = hex(&key);
    let file = scratch.file("key", &key);
    let mut hash = tool("sha512sum", "coreutils");
    let text = run(&mut hash, PASSPHRASE).text();
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("a hash");
    let hashed: Vec<u8> = (0..64).map(|byte| digit(2 * byte)).collect();
    let line = format!("0 2048 crypt aes-xts-plain64 {hex} 0 {} 0", image.display());
    let in_file = scratch.file("table", line.as_bytes());
    let plain = ["--type", "plain", "--cipher", "aes-xts-plain64", "--key-size", "512"];
    let key_file = [&plain[..], &["--key-file", file.to_str().expect("text")]].concat();
    let passphrase = [&plain[..], &["--hash", "sha512"]].concat();
    let ways: [(&[&str], &[u8]); 5] = [
        (&key_file, b""),
        (&passphrase, PASSPHRASE),
        (&["--table", &line], b""),
        (&["--table", "-"], line.as_bytes()),
        (&["--table-file", in_file.to_str().expect("text")], b""),
    ];
    for (options, input) in ways {
        let secrets = [&key, PASSPHRASE, &hashed, hex.as_bytes()];
        let mut open = scratch.ucrypt(&["open", "--as", "nbd"]);
        run(open.args(options).arg(&image).arg("volume"), input).passes();
        let server = scratch.server();
        assert_clean(server, &secrets);
        run(&mut scratch.ucrypt(&["close", "volume"]), b"").passes();
        scratch.await_end(server);

        let socket = scratch.path("socket");
        let mut serve = scratch.ucrypt_child(&["serve", "--nbd"]);
        serve.arg(format!("unix:{}", socket.display())).args(options).arg(&image);
        let mut child =
            serve.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts");
        // With a key file, the server does not read standard input.
        let _ = std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), input);
        await_that("the server listens", || socket.exists());
        assert_clean(Pid::from_child(&child), &secrets);
        child.kill().and_then(|()| child.wait()).expect("it ends");
        let _ = fs::remove_file(&socket);
    }
}
