//! Hashes by the names that headers and options give them.

pub use ucrypt_sector::Hash;

use crate::error::{Error, Result};

/// Finds a hash by one of its names, ignoring case.
pub fn find_hash(name: &str) -> Result<Hash> {
    Hash::from_name(name).ok_or_else(|| Error::unsupported("hash", name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_that_is_not_known_is_named() {
        assert_eq!(find_hash("SHA256").unwrap(), Hash::Sha256);
        assert_eq!(find_hash("md6").unwrap_err().to_string(), "hash \"md6\" is not supported");
    }
}
