//! What a key derivation leaves in the memory of its process, the stacks of its threads among it.
//!
//! The only test of its process, because it looks through all of it.

#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use ucrypt_luks::{Argon2Variant, Kdf};

/// No byte of it lies in memory as it is.
const HIDDEN: u8 = 0x55;
const PASSPHRASE_BYTES: usize = 32;
const KEY_BYTES: usize = 64;

/// Bytes to look for, which are not themselves in memory.
struct Hidden(Vec<u8>);

impl Hidden {
    /// Hides the bytes in their place.
    fn hide(bytes: &mut [u8]) -> Self {
        for byte in bytes.iter_mut() {
            *byte ^= HIDDEN;
        }
        Self(bytes.to_vec())
    }

    /// Where the process has 16 bytes in a row of them.
    fn found(&self) -> Vec<String> {
        let maps = fs::read_to_string("/proc/self/maps").expect("mappings");
        let memory = File::open("/proc/self/mem").expect("one's own memory");
        let (mut found, mut buf) = (Vec::new(), vec![0; 1 << 20]);
        for line in maps.lines() {
            let (range, rest) = line.split_once(' ').expect("a range");
            let (start, end) = range.split_once('-').expect("a start and an end");
            let number = |text| u64::from_str_radix(text, 16).expect("an address");
            let (mut at, end) = (number(start), number(end));
            if !rest.starts_with("rw") {
                continue;
            }
            while at < end {
                let len = buf.len().min((end - at) as usize);
                let bytes = &mut buf[..len];
                if memory.read_exact_at(bytes, at).is_ok() {
                    for part in self.0.chunks(16) {
                        let is_it = |window: &[u8]| {
                            window.iter().zip(part).all(|(byte, hidden)| byte ^ HIDDEN == *hidden)
                        };
                        let place = bytes.windows(part.len()).position(is_it);
                        found.extend(place.map(|place| format!("{place} behind {at:x} of {line}")));
                    }
                }
                at += len as u64;
            }
        }
        found
    }
}

#[test]
fn nothing_of_passphrase_and_key_is_left_of_a_derivation() {
    let argon2 = |lanes| Kdf::Argon2 { variant: Argon2Variant::Id, time: 4, memory_kib: 64, lanes };
    let pbkdf2 = |hash: &str| Kdf::Pbkdf2 { hash: hash.into(), iterations: 1000 };
    let hashes = ["sha1", "sha256", "sha512", "sha3-256", "ripemd160", "whirlpool", "blake2b-512"];
    let kdfs = [1, 4].map(argon2).into_iter().chain(hashes.map(pbkdf2));
    for (seed, kdf) in kdfs.enumerate() {
        let mut passphrase = [0; PASSPHRASE_BYTES];
        let mut random = fastrand::Rng::with_seed(seed as u64);
        random.fill(&mut passphrase);
        let mut key = [0; KEY_BYTES];
        kdf.derive(&passphrase, b"salt and more salt", &mut key).expect("a key");
        let hidden = [Hidden::hide(&mut passphrase), Hidden::hide(&mut key)];
        let found = hidden.map(|hidden| hidden.found());
        assert_eq!(found, [[""; 0], [""; 0]], "passphrase and key of {kdf:?}");
    }
}
