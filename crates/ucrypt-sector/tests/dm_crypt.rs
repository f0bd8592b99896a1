//! Compares this crate, byte for byte and in both directions, with the dm-crypt of a real kernel,
//! and also what both refuse.
//!
//! The files in `dm_crypt/` describe their own format; `guest/dm_crypt_vectors.py` in the
//! repository generates them. Nothing is skipped silently: each difference from the kernel is in
//! one of the lists below with its reason, and an outdated list fails the test.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    thread,
};

use sha2::{Digest, Sha256};
use ucrypt_sector::{CipherSpec, SectorCipher, SectorOptions};

/// What the kernel accepts and this crate refuses: specification, key length in bytes.
const NOT_TAKEN: &[(&str, usize)] = &[
    // More keys than loop-AES has, which is the only user of several keys.
    ("aes:128-cbc-plain64", 2048),
    // The kernel ignores the remaining byte.
    ("aes:2-cbc-plain64", 49),
    // No key and no encryption.
    ("serpent-cbc-plain64", 0),
    ("cipher_null-cbc-plain64", 0),
    // Combinations that the crypto API happens to allow, but that no program uses.
    ("capi:cts(cbc(aes))-plain64", 32),
    ("capi:essiv(cbc(aes),sha256)-plain64be", 32),
    ("xchacha12,serpent-adiantum-plain64", 32),
    ("xchacha20,twofish-adiantum-plain64", 32),
];

/// What this crate accepts but handles differently than the kernel.
const OTHERWISE: &[(&str, usize)] = &[
    // The kernel reads the bare name as cbc(cipher_null) with the IV plain, a chain of XORs. All
    // other programs use it for no encryption.
    ("cipher_null", 0),
];

/// What the kernel refuses and this crate accepts.
const MORE_THAN_THE_KERNEL: &[(&str, usize)] = &[
    // The name that other programs use.
    ("null-ecb", 0),
    // LUKS headers with the null cipher carry a key.
    ("cipher_null-ecb", 32),
];

/// Bytes of every run.
const RUN: usize = 8192;

/// A specification and a key length, with the kernel's runs.
struct Section {
    spec: String,
    key_len: usize,
    runs: Vec<Run>,
}

struct Run {
    /// The line of the file, for messages.
    line: String,
    options: SectorOptions,
    /// The first half of the SHA-256 of the ciphertext.
    digest: String,
    /// The start of the ciphertext.
    head: Option<String>,
    /// Whether dm-crypt read back what it had written.
    readable: bool,
}

/// Parses `512 0` or `4096L 8`: sector size, `iv_large_sectors` (`L`), `iv_offset`.
fn options(sector_size: &str, iv_offset: &str) -> SectorOptions {
    SectorOptions {
        sector_size: sector_size.trim_end_matches('L').parse().expect("a sector size"),
        iv_offset: iv_offset.parse().expect("an iv_offset"),
        iv_large_sectors: sector_size.ends_with('L'),
    }
}

fn run(line: &str) -> Run {
    let (fields, readable) = match line.strip_suffix(" !") {
        Some(fields) => (fields, false),
        None => (line, true),
    };
    let mut fields = fields.split_whitespace();
    let mut next = || fields.next().expect("sector size, iv_offset and digest");
    Run {
        line: line.trim().to_owned(),
        options: options(next(), next()),
        digest: next().to_owned(),
        head: fields.next().map(str::to_owned),
        readable,
    }
}

fn sections(text: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if line.starts_with(' ') {
            sections.last_mut().expect("a specification first").runs.push(run(line));
        } else {
            let (spec, key_len) = line.split_once(' ').expect("specification and key length");
            let key_len = key_len.parse().expect("a length");
            sections.push(Section { spec: spec.to_owned(), key_len, runs: Vec::new() });
        }
    }
    sections
}

/// The vector files, except for `refused.txt`.
fn vector_files() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dm_crypt");
    let files = fs::read_dir(folder).expect("the folder of the vectors");
    files.map(|file| file.unwrap().path()).filter(|path| !path.ends_with("refused.txt")).collect()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes all");
        text
    })
}

/// SHA-256("`label` 0") ‖ SHA-256("`label` 1") ‖ …
fn stream(label: &str, len: usize) -> Vec<u8> {
    let blocks = (0..len.div_ceil(32)).flat_map(|i| Sha256::digest(format!("{label} {i}")));
    blocks.take(len).collect()
}

/// Checks a run under `cipher`.
fn check(run: &Run, cipher: &SectorCipher, plaintext: &[u8]) -> Result<(), String> {
    let mut data = plaintext.to_vec();
    cipher.encrypt_in_place(0, &mut data).map_err(|error| error.to_string())?;
    if hex(&Sha256::digest(&data)[..16]) != run.digest {
        return Err(match &run.head {
            Some(head) if hex(&data[..32]) == *head => "encryption, after 32 bytes".to_owned(),
            Some(_) => "encryption, from the first 32 bytes on".to_owned(),
            None => "encryption".to_owned(),
        });
    }
    cipher.decrypt_in_place(0, &mut data).map_err(|error| error.to_string())?;
    // If dm-crypt itself does not read the plaintext back, there is no right answer.
    if data != plaintext && run.readable {
        return Err("decryption".to_owned());
    }
    Ok(())
}

/// The outcome of a file's vectors.
#[derive(Default)]
struct Outcome {
    met: usize,
    wrong: Vec<String>,
    otherwise: BTreeSet<(String, usize)>,
    refused: BTreeSet<(String, usize)>,
}

impl Outcome {
    fn add(&mut self, section: &Section, plaintext: &[u8]) {
        let Section { spec, key_len, runs } = section;
        let key = stream("key", *key_len);
        for run in runs {
            let Some(cipher) = cipher(spec, &key, run.options) else {
                // Nobody can have stored data that dm-crypt itself does not read back.
                if run.readable {
                    self.refused.insert((spec.clone(), *key_len));
                }
                continue;
            };
            match check(run, &cipher, plaintext) {
                Ok(()) => self.met += 1,
                Err(_) if OTHERWISE.contains(&(spec, *key_len)) => {
                    self.otherwise.insert((spec.clone(), *key_len));
                }
                Err(what) => {
                    let line = &run.line;
                    self.wrong.push(format!("{spec}, key of {key_len} bytes, {line}: {what}"));
                }
            }
        }
    }

    fn of_file(path: &Path, plaintext: &[u8]) -> Self {
        let mut outcome = Self::default();
        for section in sections(&fs::read_to_string(path).expect("a vector file")) {
            outcome.add(&section, plaintext);
        }
        outcome
    }

    fn join(&mut self, other: Self) {
        self.met += other.met;
        self.wrong.extend(other.wrong);
        self.otherwise.extend(other.otherwise);
        self.refused.extend(other.refused);
    }
}

/// `None` if this crate refuses the specification, the key or the options.
fn cipher(spec: &str, key: &[u8], options: SectorOptions) -> Option<SectorCipher> {
    let spec: CipherSpec = spec.parse().ok()?;
    SectorCipher::new(&spec, key, options).ok()
}

fn as_set(list: &[(&str, usize)]) -> BTreeSet<(String, usize)> {
    list.iter().map(|(spec, key_len)| ((*spec).to_owned(), *key_len)).collect()
}

#[test]
fn every_run_of_the_kernel_is_met_in_both_directions() {
    let plaintext = stream("plaintext", RUN);
    let mut all = Outcome::default();
    thread::scope(|scope| {
        let of_file = |path: PathBuf| Outcome::of_file(&path, &plaintext);
        let threads: Vec<_> =
            vector_files().into_iter().map(|path| scope.spawn(move || of_file(path))).collect();
        for thread in threads {
            all.join(thread.join().expect("a file without panic"));
        }
    });
    assert!(all.wrong.is_empty(), "{} runs differ:\n{}", all.wrong.len(), all.wrong.join("\n"));
    assert_eq!(all.otherwise, as_set(OTHERWISE), "OTHERWISE has to name what differs");
    assert_eq!(all.refused, as_set(NOT_TAKEN), "NOT_TAKEN has to name what is refused here");
    assert!(all.met > 9000, "only {} runs", all.met);
}

/// Specification, key length and one example of the options, for each line of `refused.txt`.
fn refusals() -> Vec<(String, usize, SectorOptions)> {
    let text = include_str!("dm_crypt/refused.txt");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (what, _reason) = line.split_once(": ").expect("a reason");
            let fields: Vec<&str> =
                what.split(' ').map(|field| field.trim_end_matches(',')).collect();
            let options = match fields[2] {
                "*" => SectorOptions::default(),
                sector_size => options(sector_size, fields[3]),
            };
            (fields[0].to_owned(), fields[1].parse().expect("a length"), options)
        })
        .collect()
}

#[test]
fn what_the_kernel_refuses_is_refused() {
    let refusals = refusals();
    let taken = refusals.iter().filter(|(spec, key_len, options)| {
        cipher(spec, &stream("key", *key_len), *options).is_some()
    });
    let taken: BTreeSet<_> = taken.map(|(spec, key_len, _)| (spec.clone(), *key_len)).collect();
    assert_eq!(taken, as_set(MORE_THAN_THE_KERNEL), "the list has to name what is taken here");
    assert!(refusals.len() > 400, "only {} refusals", refusals.len());
}
