//! What ciphers leave of the key in the memory of a server: nothing, once its volume is suspended.
//!
//! Round keys and intermediate states have no bytes that a test could know. So it compares servers: what two
//! with the same key have in common, and those with another key do not have, was made from the key. Their headers
//! have nothing in common.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::process::Pid;
use ucrypt_sector::{SectorCipher, SectorOptions};
use ucrypt_testkit::Random;

use crate::nbd_client::NbdClient;
use crate::process::run;
use crate::scratch::Scratch;
use crate::secrets::each_mapping;
use crate::server::await_that;

/// Bytes of data of an image.
const DATA: usize = 4 << 20;

/// Bytes at a multiple of eight in memory that can be written.
type Piece = [u8; 16];

/// Whether bytes look like those of a key, or like a word of a key that was repeated for vector instructions.
fn looks_random(piece: &Piece) -> bool {
    let differ = |bytes: &[u8]| {
        let mut seen = [0_u128; 2];
        for byte in bytes {
            seen[usize::from(byte >> 7)] |= 1 << (byte & 127);
        }
        seen[0].count_ones() + seen[1].count_ones()
    };
    let repeated =
        piece[..4] == piece[4..8] && piece[..8] == piece[8..] && differ(&piece[..4]) == 4;
    repeated || differ(piece) >= 12
}

/// Whether a part of these bytes is text.
fn has_text(piece: &Piece) -> bool {
    let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    piece.windows(7).any(|part| part.iter().all(is_text))
}

/// Whether a part of these bytes is in others.
fn has_part_of(piece: &Piece, others: &[u8]) -> bool {
    let parts: Vec<&[u8]> = piece.windows(6).collect();
    others.windows(6).any(|other| parts.contains(&other))
}

/// The program of a server, with its constants.
fn program(server: Pid) -> Vec<u8> {
    let mut program = Vec::new();
    each_mapping(server, |_, line, bytes| {
        if line.contains(" r") && !line.contains(" rw") && line.contains("/ucrypt") {
            program.extend_from_slice(bytes);
        }
    });
    program
}

/// The encrypted sector numbers of AES-XTS with this key and what follows from them: the halves of the tweak of each
/// block. They do not tell the key, and kernels leave them on stacks.
fn tweaks(key: &[u8]) -> HashSet<[u8; 8]> {
    let spec = "aes-ecb".parse().expect("a cipher");
    let cipher = SectorCipher::new(&spec, &key[key.len() / 2..], SectorOptions::default());
    let mut numbers: Vec<u8> = (0..DATA as u128 / 512).flat_map(u128::to_le_bytes).collect();
    cipher.expect("a key").encrypt_in_place(0, &mut numbers).expect("encrypted");
    let first = numbers.as_chunks().0.iter().map(|bytes| u128::from_le_bytes(*bytes));
    let double = |tweak: &u128| Some((tweak << 1) ^ ((tweak >> 127) * 0x87));
    let all = first.flat_map(|first| std::iter::successors(Some(first), double).take(512 / 16));
    all.flat_map(|tweak| [tweak as u64, (tweak >> 64) as u64].map(u64::to_le_bytes)).collect()
}

/// What the memory of a server holds and looks random.
fn pieces(server: Pid) -> HashSet<Piece> {
    let mut found = HashSet::new();
    each_mapping(server, |_, line, bytes| {
        if line.contains(" rw") {
            let pieces = bytes.windows(16).step_by(8);
            let pieces = pieces.map(|piece| Piece::try_from(piece).expect("16 bytes"));
            found.extend(pieces.filter(looks_random));
        }
    });
    found
}

enum Client {
    Nbd(NbdClient),
    File(File),
}

impl Client {
    fn of(place: &str) -> Self {
        match place.split_once("socket=") {
            Some((_, path)) => Self::Nbd(NbdClient::connect(Path::new(path)).expect("connected")),
            None => Self::File(File::options().read(true).write(true).open(place).expect("opened")),
        }
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        match self {
            Self::Nbd(nbd) => nbd.write(offset as u64, data),
            Self::File(file) => file.write_all_at(data, offset as u64),
        }
        .expect("written");
    }

    /// Reads from the start, after all writes.
    fn read(&mut self, len: u32) {
        match self {
            Self::Nbd(nbd) => nbd.read(0, len),
            Self::File(file) => {
                let mut read = vec![0; len as usize];
                file.sync_all().and_then(|()| file.read_exact_at(&mut read, 0)).map(|()| read)
            }
        }
        .expect("read");
    }
}

/// A server of a volume to which data of its own was written, in parts of all sizes.
struct Server {
    scratch: Scratch,
    process: Pid,
    open: HashSet<Piece>,
}

impl Server {
    fn of(image: &[u8], served: &str, seed: u64) -> Self {
        let scratch = Scratch::new();
        let path = scratch.file("image", image);
        let open = ["open", "--as", served, path.to_str().expect("text"), "volume"];
        let served_at = run(&mut scratch.ucrypt(&open), b"one").text();
        let mut random = Random::new(seed);
        let mut client = Client::of(served_at.trim_end());
        // All of it first: what was never written is decrypted to the same in each server.
        for offset in (0..DATA).step_by(1 << 20) {
            client.write(offset, &random.bytes(1 << 20));
        }
        for _ in 0..40 {
            let len = 1 + random.below(9000) as usize;
            client.write(random.below((DATA - len) as u64) as usize, &random.bytes(len));
        }
        client.read(1 << 20);
        let process = scratch.server();
        let open = pieces(process);
        run(&mut scratch.ucrypt(&["luksSuspend", "volume"]), b"").passes();
        drop(client);
        Self { scratch, process, open }
    }

    fn close(self) {
        run(&mut self.scratch.ucrypt(&["luksResume", "volume"]), b"one").passes();
        run(&mut self.scratch.ucrypt(&["close", "volume"]), b"").passes();
    }
}

/// A volume with this key.
fn image(cipher: &str, key: &[u8]) -> Vec<u8> {
    let scratch = Scratch::new();
    let path = scratch.sparse("image", (2 << 20) + DATA as u64);
    let (key_file, bits) = (scratch.file("key", key), (key.len() * 8).to_string());
    let mut format = scratch.ucrypt(&["luksFormat", "-q", "--type", "luks1", "--cipher", cipher]);
    format.args(["--pbkdf-force-iterations", "1000", "--offset", "4096", "--key-size", &bits]);
    run(format.arg("--volume-key-file").arg(key_file).arg(&path), b"one").passes();
    fs::read(Path::new(&path)).expect("read")
}

#[test]
fn ciphers_leave_nothing_of_the_key_in_the_memory_of_a_suspended_volume() {
    for (cipher, key_len, served) in [
        ("aes-xts-plain64", 64, "fuse"),
        ("aes-cbc-essiv:sha256", 32, "nbd"),
        ("serpent-xts-plain64", 64, "fuse"),
        ("twofish-xts-plain64", 64, "nbd"),
        ("camellia-xts-plain64", 64, "fuse"),
        ("xchacha12,aes-adiantum-plain64", 32, "fuse"),
        ("xchacha20,aes-adiantum-plain64", 32, "nbd"),
    ] {
        let mut random = Random::new(0x7e1d);
        let (one, other) = (random.bytes(key_len), random.bytes(key_len));
        let servers = [(&one, 1), (&one, 2), (&other, 3), (&other, 4)]
            .map(|(key, seed)| Server::of(&image(cipher, key), served, seed));
        let of_the_key = |seen: [&HashSet<Piece>; 4]| -> Vec<Piece> {
            let [one, same, others @ ..] = seen;
            let is_elsewhere = |piece: &Piece| others.iter().any(|other| other.contains(piece));
            one.intersection(same).filter(|piece| !is_elsewhere(piece)).copied().collect()
        };
        // Parts of text and of constants are no parts of the key, and are not always elsewhere too.
        let program = program(servers[0].process);
        assert!(program.len() > 1 << 20, "{} bytes of program", program.len());
        let tweaks = if cipher == "aes-xts-plain64" { tweaks(&one) } else { HashSet::new() };
        let is_tweak = |piece: &Piece| piece.as_chunks().0.iter().any(|half| tweaks.contains(half));
        let is_known =
            |piece: &Piece| has_text(piece) || is_tweak(piece) || has_part_of(piece, &program);
        let found = of_the_key(servers.each_ref().map(|server| &server.open)).len();
        // Camellia's are stored with each byte sixteen times, as counters are.
        let is_found = found > 0 || cipher.starts_with("camellia");
        assert!(is_found, "{cipher}: the search finds no round keys of an open volume");
        // Its threads may not sleep yet.
        await_that("the threads have scrubbed their stacks", || {
            let seen = servers.each_ref().map(|server| pieces(server.process));
            let mut left = of_the_key(seen.each_ref());
            left.retain(|piece| !is_known(piece));
            if !left.is_empty() {
                eprintln!("{cipher}: left of {found}: {left:02x?}");
            }
            left.is_empty()
        });
        servers.into_iter().for_each(Server::close);
    }
}
