//! Plain dm-crypt: there is no header, and the caller supplies every parameter (cryptsetup(8),
//! `open --type plain`). The key is the hash of a passphrase or the raw bytes of a key file.

use std::collections::BTreeSet;

use ucrypt_sector::CipherSpec;
use zeroize::Zeroizing;

use crate::error::{Error, Result};
use crate::hash::find_hash;
use crate::kdf::KEY_LEN_MAX;
use crate::volume::{Format, SECTOR_BYTES, Segment, Unlocked};

/// cryptsetup's defaults for plain volumes since 2.7: cipher, hash, key length in bytes.
pub const DEFAULTS: (&str, &str, u32) = ("aes-xts-plain64", "sha256", 32);

/// The defaults before 2.7, for volumes made with them.
pub const DEFAULTS_BEFORE_2_7: (&str, &str, u32) = ("aes-cbc-essiv:sha256", "ripemd160", 32);

/// The place and the cipher of a plain volume. `offset`, `skip` and `size` count 512-byte sectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plain {
    /// Cipher, mode and IV.
    pub cipher: CipherSpec,
    /// First sector in the image (`--offset`).
    pub offset: u64,
    /// Added to the sector number that makes the IV (`--skip`).
    pub skip: u64,
    /// Number of sectors (`--size`); `None` reaches to the end of the image.
    pub size: Option<u64>,
    /// Bytes that are encrypted as one unit.
    pub sector_size: u32,
    /// Whether IVs count encryption sectors instead of 512-byte sectors.
    pub iv_large_sectors: bool,
}

impl Plain {
    /// The volume as `key` opens it.
    pub fn unlock(&self, key: &[u8]) -> Result<Unlocked> {
        let segment = Segment {
            offset: in_bytes("offset", self.offset)?,
            length: self.size.map(|size| in_bytes("size", size)).transpose()?,
            iv_tweak: self.skip,
            cipher: self.cipher.clone(),
            sector_size: self.sector_size,
            iv_large_sectors: self.iv_large_sectors,
        };
        segment.cipher(key)?;
        let whole = segment
            .length
            .is_none_or(|length| length > 0 && length.is_multiple_of(u64::from(self.sector_size)));
        if !whole {
            let problem = format!("the size is not a multiple of {} bytes", self.sector_size);
            return Err(Error::request(problem));
        }
        Ok(Unlocked {
            format: Format::Plain,
            volume_key: Zeroizing::new(key.to_vec()),
            segments: vec![segment],
            flags: BTreeSet::new(),
            keyslot: None,
            uuid: None,
            label: None,
        })
    }
}

/// Converts a number of 512-byte sectors to bytes.
pub(crate) fn in_bytes(what: &str, sectors: u64) -> Result<u64> {
    sectors.checked_mul(SECTOR_BYTES).ok_or_else(|| {
        Error::request(format!("the {what} of {sectors} sectors is above 2^64 bytes"))
    })
}

/// Derives the key of `key_len` bytes from a passphrase. `hash` has the form of `--hash`: the name
/// of a hash or `plain`. With the suffix `:LENGTH`, only the first `LENGTH` bytes of the key come
/// from the passphrase and the rest are zeros. `plain` alone pads a short passphrase with zeros;
/// `plain:LENGTH` requires at least `LENGTH` bytes of passphrase.
///
/// A key longer than the digest continues with further digests, of the passphrase prefixed with
/// `A`, then `AA`, and so on, as in hashalot.
pub fn key_from_passphrase(
    passphrase: &[u8],
    hash: &str,
    key_len: u32,
) -> Result<Zeroizing<Vec<u8>>> {
    let mut key = empty_key(key_len)?;
    let (name, length) = match hash.split_once(':') {
        Some((name, length)) => (name, parse_length(length, key.len())?),
        None => (hash, key.len()),
    };
    let hashed = &mut key[..length];
    if name == "plain" {
        let taken = passphrase.len().min(length);
        if taken < length && hash != name {
            return Err(Error::request(format!(
                "the hash \"{hash}\" needs {length} bytes of passphrase, it has {taken}"
            )));
        }
        hashed[..taken].copy_from_slice(&passphrase[..taken]);
        return Ok(key);
    }
    let hash = find_hash(name)?;
    let prefix = vec![b'A'; length];
    for (round, part) in hashed.chunks_mut(hash.size()).enumerate() {
        hash.digest_into(&[&prefix[..round], passphrase], part);
    }
    Ok(key)
}

fn empty_key(key_len: u32) -> Result<Zeroizing<Vec<u8>>> {
    let len = key_len as usize;
    if (1..=KEY_LEN_MAX).contains(&len) {
        Ok(Zeroizing::new(vec![0; len]))
    } else {
        Err(Error::request(format!("a key of {len} bytes is not in 1 to {KEY_LEN_MAX}")))
    }
}

fn parse_length(text: &str, key_len: usize) -> Result<usize> {
    let length = text.parse().ok().filter(|length| (1..=key_len).contains(length));
    length.ok_or_else(|| {
        Error::request(format!("the hash length \"{text}\" is not a number from 1 to {key_len}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        match crate::dump::hex(bytes) {
            crate::json::Json::String(text) => String::from(&*text),
            other => panic!("{other:?} is not a string"),
        }
    }

    /// Expected values: `python3 -c 'import hashlib as h; print(h.new("ripemd160",
    /// b"secret").hexdigest() + h.new("ripemd160", b"Asecret").hexdigest())'`, and so on.
    #[test]
    fn a_key_longer_than_the_digest_takes_further_digests_with_a_prefix() {
        let key = key_from_passphrase(b"secret", "ripemd160", 32).unwrap();
        assert_eq!(hex(&key), "cd98bf0202ef07e38e87f6bd9445e5e7331e2c78104677e9f86c16552856dae8");
        let key = key_from_passphrase(b"secret", "sha256", 64).unwrap();
        assert_eq!(
            hex(&key),
            "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b40a1e4d40dbee92612950e2d0657f16e2ef366d37d0adf587d3845ac27593b3a"
        );
        let key = key_from_passphrase(b"secret", "sha256", 16).unwrap();
        assert_eq!(hex(&key), "2bb80d537b1da3e38bd30361aa855686");
    }

    #[test]
    fn a_hash_length_leaves_zeros_behind_it() {
        let whole = key_from_passphrase(b"secret", "sha512", 32).unwrap();
        let part = key_from_passphrase(b"secret", "sha512:20", 32).unwrap();
        assert_eq!(part[..20], whole[..20]);
        assert_eq!(part[20..], [0; 12]);
        for bad in ["sha512:", "sha512:0", "sha512:33", "sha512:x", "nothing", "sha512:-1"] {
            assert!(key_from_passphrase(b"secret", bad, 32).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_hash_plain_takes_the_passphrase_itself() {
        assert_eq!(*key_from_passphrase(b"0123456789", "plain", 8).unwrap(), b"01234567");
        assert_eq!(*key_from_passphrase(b"0123", "plain:4", 8).unwrap(), b"0123\0\0\0\0");
        assert_eq!(*key_from_passphrase(b"0123", "plain", 8).unwrap(), b"0123\0\0\0\0");
        assert!(key_from_passphrase(b"0123", "plain:5", 8).is_err());
    }

    #[test]
    fn places_are_turned_into_bytes() {
        let plain = Plain {
            cipher: "aes-cbc-essiv:sha256".parse().unwrap(),
            offset: 2,
            skip: 8,
            size: Some(16),
            sector_size: 4096,
            iv_large_sectors: true,
        };
        let unlocked = plain.unlock(&[7; 32]).unwrap();
        let segment = &unlocked.segments[0];
        assert_eq!((segment.offset, segment.length, segment.iv_tweak), (1024, Some(8192), 8));
        assert!(segment.iv_large_sectors);
        assert!(plain.unlock(&[7; 31]).is_err());
        assert!(Plain { size: Some(15), ..plain.clone() }.unlock(&[7; 32]).is_err());
        assert!(Plain { offset: u64::MAX, ..plain }.unlock(&[7; 32]).is_err());
    }
}
