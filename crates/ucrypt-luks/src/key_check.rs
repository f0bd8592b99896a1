//! Recognizes a volume key without keeping it.

use subtle::ConstantTimeEq;

use crate::error::Result;
use crate::hash::Hash;
use crate::medium::{Random, fill_random};

/// A salted digest of a volume key, which tells nothing of a key that cannot be guessed.
pub struct KeyCheck {
    salt: [u8; 32],
    digest: Vec<u8>,
}

impl std::fmt::Debug for KeyCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyCheck")
    }
}

impl KeyCheck {
    /// Recognizes `key` from now on.
    pub fn new(key: &[u8], random: Random<'_>) -> Result<Self> {
        let mut salt = [0; 32];
        fill_random(random, &mut salt)?;
        Ok(Self { salt, digest: Hash::Sha256.digest(&[&salt, key]) })
    }

    /// Whether this is the key, in constant time.
    pub fn matches(&self, key: &[u8]) -> bool {
        Hash::Sha256.digest(&[&self.salt, key]).ct_eq(&self.digest).into()
    }
}

#[cfg(test)]
mod tests {
    use super::KeyCheck;

    #[test]
    fn only_the_same_key_matches() {
        let mut random = |buf: &mut [u8]| {
            buf.fill(3);
            Ok(())
        };
        let check = KeyCheck::new(b"0123456789abcdef", &mut random).unwrap();
        assert!(check.matches(b"0123456789abcdef"));
        for other in [&b"0123456789abcdeg"[..], b"0123456789abcdef\0", b"0123456789abcde", b""] {
            assert!(!check.matches(other));
        }
    }
}
