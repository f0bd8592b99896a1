//! Images for the tests, made by cryptsetup, the independent reference, or by this crate.
#![allow(dead_code, reason = "each test program uses a part of this module")]

pub(crate) mod keys;
pub(crate) mod recorder;
pub(crate) mod targets;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use fastrand::Rng;
use tempfile::TempDir;
use ucrypt_luks::luks2::{DigestKind, KeyslotKind};
use ucrypt_luks::{
    Cost, Hash, Header, Kdf, Machine, NewVolume, Pbkdf, PbkdfKind, Tools, Write, luks1, luks2,
};
use zeroize::Zeroizing;

pub(crate) const PASSPHRASE: &[u8] = b"correct horse battery staple";

/// Costs with which a keyslot takes milliseconds to make.
pub(crate) const CHEAP_PBKDF2: &[&str] = &["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
pub(crate) const CHEAP_ARGON2ID: &[&str] =
    &["--pbkdf", "argon2id", "--pbkdf-memory", "32", "--pbkdf-force-iterations", "4"];
pub(crate) const CHEAP_ARGON2I: &[&str] =
    &["--pbkdf", "argon2i", "--pbkdf-memory", "64", "--pbkdf-force-iterations", "5"];

/// Runs cryptsetup with `stdin`.
pub(crate) fn cryptsetup(args: &[&str], stdin: &[u8]) -> Output {
    let child = Command::new("cryptsetup")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.unwrap_or_else(|error| {
        panic!("cryptsetup cannot be run ({error}): apt-get install cryptsetup-bin")
    });
    // A child that exits without reading closes the pipe; its exit status is what counts.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    child.wait_with_output().unwrap()
}

/// Runs cryptsetup, which must succeed, and returns its standard output.
pub(crate) fn cryptsetup_ok(args: &[&str], stdin: &[u8]) -> String {
    let output = cryptsetup(args, stdin);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cryptsetup {args:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// A directory with an image in it.
pub(crate) struct Scratch {
    dir: TempDir,
}

impl Scratch {
    /// An empty image of `length` bytes.
    pub(crate) fn new(length: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Self { dir };
        let file = fs::File::create(scratch.image()).unwrap();
        file.set_len(length).unwrap();
        scratch
    }

    /// An image with these bytes.
    pub(crate) fn with(bytes: &[u8]) -> Self {
        let scratch = Self::new(0);
        fs::write(scratch.image(), bytes).unwrap();
        scratch
    }

    /// An image of 18 MiB that cryptsetup formats with `args`.
    pub(crate) fn formatted(args: &[&str]) -> Self {
        let scratch = Self::new(18 << 20);
        let path = scratch.image();
        let fixed = ["luksFormat", "--batch-mode", "--key-file", "-"];
        let args: Vec<&str> =
            fixed.iter().chain(args).copied().chain([path.to_str().unwrap()]).collect();
        cryptsetup_ok(&args, PASSPHRASE);
        scratch
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.path("image")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        fs::read(self.image()).unwrap()
    }

    /// The volume key that cryptsetup finds.
    pub(crate) fn volume_key(&self) -> Vec<u8> {
        let key = self.path("volume-key");
        let image = self.image();
        let args = [
            "luksDump",
            "--batch-mode",
            "--dump-volume-key",
            "--key-file",
            "-",
            "--volume-key-file",
            key.to_str().unwrap(),
            image.to_str().unwrap(),
        ];
        cryptsetup_ok(&args, PASSPHRASE);
        fs::read(key).unwrap()
    }
}

/// Carries out writes on an image.
pub(crate) fn apply(image: &mut Vec<u8>, writes: &[Write]) {
    for write in writes {
        let offset = usize::try_from(write.offset).unwrap();
        let end = offset + write.bytes.len();
        if image.len() < end {
            image.resize(end, 0);
        }
        image[offset..end].copy_from_slice(&write.bytes);
    }
}

/// Runs `make` with random bytes from `seed`, a clock that stands still and a small machine.
pub(crate) fn with_tools<T>(seed: u64, make: impl FnOnce(&mut Tools<'_>) -> T) -> T {
    let mut noise = Rng::with_seed(seed);
    let mut random = |buf: &mut [u8]| {
        noise.fill(buf);
        Ok(())
    };
    let mut clock = |_| Duration::ZERO;
    let machine = Machine { cpus: 2, memory_kib: 1 << 20 };
    make(&mut Tools { random: &mut random, clock: &mut clock, machine })
}

/// Fills with zeros where randomness does not matter.
#[expect(clippy::unnecessary_wraps, reason = "sources of random bytes may fail")]
pub(crate) fn zeroes(buf: &mut [u8]) -> io::Result<()> {
    buf.fill(0);
    Ok(())
}

/// A cheap PBKDF2.
pub(crate) fn cheap_pbkdf2() -> Pbkdf {
    Pbkdf { cost: Cost::Iterations(1000), ..Pbkdf::new(PbkdfKind::Pbkdf2) }
}

/// A cheap Argon2.
pub(crate) fn cheap_argon2(kind: PbkdfKind) -> Pbkdf {
    Pbkdf { cost: Cost::Iterations(4), memory_kib: 32, lanes: 2, ..Pbkdf::new(kind) }
}

/// Parameters of a volume with a fixed key.
pub(crate) fn new_volume(cipher: &str, key_len: usize, pbkdf: Pbkdf) -> NewVolume {
    let mut key = vec![0; key_len];
    Rng::with_seed(0x6b65_7900 + key_len as u64).fill(&mut key);
    NewVolume {
        cipher: cipher.parse().unwrap(),
        volume_key: Zeroizing::new(key),
        hash: Hash::Sha256,
        pbkdf,
        keyslot: 0,
        uuid: None,
        data_offset: None,
        data_alignment: None,
        area: None,
        detached: false,
    }
}

/// LUKS2 options as cryptsetup's defaults are.
pub(crate) fn luks2_options() -> luks2::Options {
    luks2::Options {
        label: String::new(),
        subsystem: String::new(),
        sector_size: 512,
        metadata_size: None,
        keyslots_size: None,
    }
}

/// The JSON text of the primary copy of a small LUKS2 image.
pub(crate) fn json_text(image: &[u8]) -> Vec<u8> {
    let area = &image[4096..0x4000];
    area.iter().copied().take_while(|byte| *byte != 0).collect()
}

/// Puts `json` into both 16 KiB copies of a LUKS2 image, with correct checksums. `json` need not be
/// valid and is truncated to the JSON area.
pub(crate) fn put_json(image: &mut [u8], json: &[u8]) {
    let length = json.len().min(0x3000);
    for copy in image[..0x8000].chunks_mut(0x4000) {
        copy[4096..].fill(0);
        copy[4096..][..length].copy_from_slice(&json[..length]);
        seal(copy);
    }
}

/// Sets the correct sha256 checksum of a LUKS2 header copy.
pub(crate) fn seal(copy: &mut [u8]) {
    copy[448..512].fill(0);
    let checksum = Hash::Sha256.digest(&[copy]);
    copy[448..][..checksum.len()].copy_from_slice(&checksum);
}

/// A small LUKS2 image that `PASSPHRASE` opens: 512 KiB of header, 512 KiB of data.
pub(crate) fn small_luks2() -> Vec<u8> {
    let volume = NewVolume {
        data_offset: Some(512 << 10),
        ..new_volume("aes-xts-plain64", 64, cheap_argon2(PbkdfKind::Argon2id))
    };
    let options = luks2_options();
    let format = with_tools(10, |tools| luks2::format(&volume, &options, PASSPHRASE, tools));
    let mut image = vec![0x77; 1 << 20];
    apply(&mut image, &format.unwrap().1);
    image
}

/// A small LUKS2 image with room for seven keys.
pub(crate) fn roomy_luks2() -> Vec<u8> {
    let volume = NewVolume {
        data_offset: Some(1 << 20),
        ..new_volume("aes-xts-plain64", 32, cheap_pbkdf2())
    };
    let options = luks2_options();
    let format = with_tools(49, |tools| luks2::format(&volume, &options, PASSPHRASE, tools));
    let mut image = vec![0x77; (1 << 20) + (64 << 10)];
    apply(&mut image, &format.unwrap().1);
    image
}

/// A small LUKS1 image that `PASSPHRASE` opens: 1 MiB of header, 512 KiB of data.
pub(crate) fn small_luks1() -> Vec<u8> {
    let volume = new_volume("aes-xts-plain64", 32, cheap_pbkdf2());
    let format = with_tools(11, |tools| luks1::format(&volume, PASSPHRASE, tools));
    let (header, writes) = format.unwrap();
    let mut image = vec![0x77; usize::try_from(header.data_offset()).unwrap() + (512 << 10)];
    apply(&mut image, &writes);
    image
}

/// Replaces `from` by `to` once in the JSON of both LUKS2 copies, with correct checksums. The result
/// need not be valid.
pub(crate) fn edit_json(image: &mut [u8], from: &str, to: &str) {
    let json = String::from_utf8(json_text(image)).unwrap();
    assert!(json.contains(from), "{from} is not in {json}");
    put_json(image, json.replacen(from, to, 1).as_bytes());
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn is_cheap(kdf: &Kdf) -> bool {
    match kdf {
        Kdf::Pbkdf2 { iterations, .. } => *iterations <= 10_000,
        Kdf::Argon2 { time, memory_kib, .. } => u64::from(*time) * u64::from(*memory_kib) <= 4096,
        Kdf::Unknown(_) => true,
    }
}

/// Whether an attempt on all keyslots is quick. A mutation may validly ask for hours.
pub(crate) fn is_quick(header: &Header) -> bool {
    match header {
        Header::Luks1(header) => {
            let keyslots = header.keyslots.iter().filter(|keyslot| keyslot.is_active());
            let mut costs = keyslots.map(|keyslot| keyslot.iterations);
            header.digest_iterations <= 10_000 && costs.all(|iterations| iterations <= 10_000)
        }
        Header::Luks2(header) => {
            let digests = header.metadata.digests.values().all(|digest| match &digest.kind {
                DigestKind::Pbkdf2(pbkdf2) => pbkdf2.iterations <= 10_000,
                DigestKind::Other(_) => true,
            });
            let keyslots = header.metadata.keyslots.values().all(|keyslot| match &keyslot.kind {
                KeyslotKind::Luks2 { kdf, .. } => is_cheap(kdf),
                KeyslotKind::Other(_) => true,
            });
            digests && keyslots
        }
    }
}

/// Changes one to four bytes of `bytes`.
pub(crate) fn flip(bytes: &mut [u8], random: &mut Rng) {
    for _ in 0..=random.usize(..4) {
        let at = random.usize(..bytes.len());
        bytes[at] = match random.usize(..4) {
            0 => 0,
            1 => 0xff,
            2 => bytes[at] ^ (1 << random.usize(..8)),
            _ => random.u8(..),
        };
    }
}

/// Changes digits, words or pieces of a JSON text, so that it often stays valid JSON.
pub(crate) fn edit(json: &mut Vec<u8>, random: &mut Rng) {
    const WORDS: &[&str] = &[
        "0",
        "1",
        "-1",
        "32",
        "4000",
        "18446744073709551615",
        "\"dynamic\"",
        "\"\"",
        "null",
        "[]",
        "{}",
        "true",
        "1e9",
        "\"crypt\"",
        "\"luks2\"",
        "\"0\"",
        "\"cipher_null\"",
        ",",
        "}",
        "\\u0000",
    ];
    let at = random.usize(..json.len());
    match random.usize(..10) {
        0 => flip(json, random),
        1 => {
            // One run of digits or one quoted word becomes another word.
            let is_end = |byte: &u8| !byte.is_ascii_alphanumeric();
            let start = json[..at].iter().rposition(is_end).map_or(0, |found| found + 1);
            let end = json[at..].iter().position(is_end).map_or(json.len(), |found| at + found);
            let word = WORDS[random.usize(..WORDS.len())];
            json.splice(start..end.max(start), word.bytes());
        }
        2 => {
            let end = (at + random.usize(..40)).min(json.len());
            json.drain(at..end);
        }
        3 => {
            let end = (at + random.usize(..200)).min(json.len());
            let piece = json[at..end].to_vec();
            let to = random.usize(..json.len());
            json.splice(to..to, piece);
        }
        4 => {
            let word = WORDS[random.usize(..WORDS.len())];
            json.splice(at..at, word.bytes());
        }
        _ => {
            // One digit becomes another.
            let digits = json[at..].iter().position(u8::is_ascii_digit);
            if let Some(found) = digits {
                json[at + found] = b'0' + random.u8(..10);
            }
        }
    }
}

/// LUKS2 metadata with one to three changes that keep it JSON: members that are missing, new,
/// renamed or of another type, numbers at their limits, objects that are there twice.
pub(crate) fn mutated(metadata: &serde_json::Value, random: &mut Rng) -> Vec<u8> {
    let mut metadata = metadata.clone();
    for _ in 0..=random.usize(..3) {
        mutate(&mut metadata, random);
    }
    metadata.to_string().into_bytes()
}

/// Values that a header may have somewhere.
fn some_value(random: &mut Rng) -> serde_json::Value {
    use serde_json::json;
    let values = [
        json!(0),
        json!(1),
        json!(2),
        json!(32),
        json!(64),
        json!(128),
        json!(4000),
        json!(4001),
        json!(-1),
        json!(1.5),
        json!(u32::MAX),
        json!(u64::from(u32::MAX) + 1),
        json!(u64::MAX),
        json!("0"),
        json!("1"),
        json!("7"),
        json!("31"),
        json!("32"),
        json!("00"),
        json!("512"),
        json!("4096"),
        json!("8192"),
        json!("32768"),
        json!("131072"),
        json!("1048576"),
        json!("18446744073709551615"),
        json!("18446744073709551616"),
        json!("-1"),
        json!("+1"),
        json!(" 1"),
        json!("1 "),
        json!("0x10"),
        json!("dynamic"),
        json!("Dynamic"),
        json!(""),
        json!("crypt"),
        json!("linear"),
        json!("luks2"),
        json!("reencrypt"),
        json!("raw"),
        json!("none"),
        json!("journal"),
        json!("checksum"),
        json!("datashift"),
        json!("datashift-checksum"),
        json!("encrypt"),
        json!("forward"),
        json!("backward"),
        json!("luks1"),
        json!("pbkdf2"),
        json!("argon2i"),
        json!("argon2id"),
        json!("sha1"),
        json!("sha256"),
        json!("SHA256"),
        json!("sha512"),
        json!("nohash"),
        json!("aes-xts-plain64"),
        json!("aes-cbc-essiv:sha256"),
        json!("cipher_null-ecb"),
        json!("AAAA"),
        json!("AAA="),
        json!("AAA"),
        json!("A A="),
        json!("=AAA"),
        json!("????"),
        json!([]),
        json!({}),
        json!(null),
        json!(true),
        json!(["0"]),
        json!(["1"]),
        json!([0]),
        json!(["0", "0"]),
        json!(["in-reencryption"]),
        json!(["backup-final"]),
        json!(["backup-previous"]),
        json!(["allow-discards"]),
        json!(["unknown-flag"]),
        json!([""]),
        json!([1]),
        json!({"mandatory": []}),
        json!({"mandatory": ["online-reencrypt"]}),
        json!({"mandatory": ["online-reencrypt-v2", "later"]}),
        json!({"mandatory": ["online-reencrypt-v7"]}),
        json!({"mandatory": ["offline-reencrypt"]}),
        json!({"mandatory": ["later"]}),
        json!({"mandatory": "x"}),
        json!({"0": {}}),
    ];
    values[random.usize(..values.len())].clone()
}

/// Changes one place of a JSON value.
fn mutate(value: &mut serde_json::Value, random: &mut Rng) {
    use serde_json::Value;
    // Names that a header knows, to be added where they are not.
    const NAMES: &[&str] = &[
        "0",
        "1",
        "2",
        "7",
        "31",
        "32",
        "01",
        "x",
        "type",
        "keyslots",
        "segments",
        "digests",
        "tokens",
        "config",
        "flags",
        "requirements",
        "priority",
        "integrity",
        "size",
        "offset",
        "json_size",
        "keyslots_size",
        "af",
        "area",
        "kdf",
        "salt",
        "digest",
        "key_size",
        "iterations",
        "time",
        "memory",
        "cpus",
        "hash",
        "stripes",
        "encryption",
        "sector_size",
        "iv_tweak",
        "key_description",
        "journal_encryption",
        "mode",
        "direction",
        "shift_size",
    ];
    let at_random = |random: &mut Rng, len: usize| random.usize(..len);
    match value {
        Value::Object(members) if !members.is_empty() && random.u8(..10) > 0 => {
            let keys: Vec<String> = members.keys().cloned().collect();
            let key = &keys[at_random(random, keys.len())];
            match random.u8(..10) {
                0 => drop(members.remove(key)),
                1 => {
                    // A copy under another name: a second keyslot, digest or segment.
                    let copy = members[key].clone();
                    members.insert(NAMES[at_random(random, NAMES.len())].into(), copy);
                }
                2 => {
                    let name = NAMES[at_random(random, NAMES.len())];
                    members.insert(name.into(), some_value(random));
                }
                _ => mutate(members.get_mut(key).unwrap(), random),
            }
        }
        Value::Array(items) if random.bool() => match items.len() {
            0 => items.push(some_value(random)),
            len => match random.u8(..3) {
                0 => drop(items.remove(at_random(random, len))),
                1 => items.push(items[0].clone()),
                _ => items[0] = some_value(random),
            },
        },
        _ => *value = some_value(random),
    }
}
