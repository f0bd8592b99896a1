//! Volumes without a header.

use ucrypt_image::key_file::{Part, Secret};
use ucrypt_luks::Unlocked;
use ucrypt_luks::plain::{self, key_from_passphrase};
use ucrypt_sector::CipherSpec;
use zeroize::Zeroizing;

use crate::error::{OpenError, ToOpenError};
use crate::key::Key;

/// A plain dm-crypt volume: no header says what it is, so all of this has to be known.
/// [`OpenOptions::plain`](crate::OpenOptions::plain) takes it. The defaults are those of cryptsetup since
/// 2.7: `aes-xts-plain64` under a key of 256 bits, which is the SHA-256 digest of the passphrase.
///
/// Nothing tells a wrong key from the right one: with a wrong key the volume reads as noise.
///
/// ```
/// use ucrypt_lib::{Key, OpenOptions, Plain};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let image = dir.path().join("disk.img");
/// # std::fs::File::create(&image)?.set_len(2 << 20)?;
/// let plain = Plain::new().cipher("aes-cbc-essiv:sha256").offset(2048);
/// let volume = OpenOptions::new().plain(plain).open(&image, Key::Passphrase(b"secret"))?;
/// assert_eq!(volume.size(), (2 << 20) - 2048 * 512);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plain {
    cipher: String,
    key_bits: u32,
    hash: String,
    place: Place,
}

/// Where a plain volume is, in 512-byte sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    offset: u64,
    skip: u64,
    size: Option<u64>,
    sector_size: u32,
    iv_large_sectors: bool,
}

impl Default for Plain {
    fn default() -> Self {
        Self::new()
    }
}

impl Plain {
    /// cryptsetup's defaults: all of the image.
    pub fn new() -> Self {
        let (cipher, hash, key_bytes) = plain::DEFAULTS;
        let place =
            Place { offset: 0, skip: 0, size: None, sector_size: 512, iv_large_sectors: false };
        Self { cipher: cipher.into(), key_bits: key_bytes * 8, hash: hash.into(), place }
    }

    /// Cipher, mode and IV in dm-crypt's notation, such as `serpent-xts-plain64`.
    #[must_use]
    pub fn cipher(mut self, spec: &str) -> Self {
        self.cipher = spec.into();
        self
    }

    /// Length of the volume key in bits.
    #[must_use]
    pub fn key_bits(mut self, bits: u32) -> Self {
        self.key_bits = bits;
        self
    }

    /// The hash that makes the volume key of a passphrase; `plain` takes the passphrase itself.
    #[must_use]
    pub fn hash(mut self, name: &str) -> Self {
        self.hash = name.into();
        self
    }

    /// Where the data starts in the image, in 512-byte sectors.
    #[must_use]
    pub fn offset(mut self, sectors: u64) -> Self {
        self.place.offset = sectors;
        self
    }

    /// Number of the first sector for the IV, in 512-byte sectors.
    #[must_use]
    pub fn skip(mut self, sectors: u64) -> Self {
        self.place.skip = sectors;
        self
    }

    /// Length of the volume in 512-byte sectors; otherwise it ends with the image.
    #[must_use]
    pub fn size(mut self, sectors: u64) -> Self {
        self.place.size = Some(sectors);
        self
    }

    /// Bytes that are encrypted as one: 512, 1024, 2048 or 4096.
    #[must_use]
    pub fn sector_size(mut self, bytes: u32) -> Self {
        self.place.sector_size = bytes;
        self
    }

    /// Count IVs in units of the sector size, not of 512 bytes.
    #[must_use]
    pub fn iv_large_sectors(mut self, yes: bool) -> Self {
        self.place.iv_large_sectors = yes;
        self
    }

    /// The volume as `key` opens it.
    pub(crate) fn unlock(&self, key: Key<'_>) -> Result<Unlocked, OpenError> {
        let cipher: CipherSpec =
            self.cipher.parse().map_err(|error| OpenError::Options(format!("{error}")))?;
        let sizes = cipher.key_sizes();
        let bytes = self.key_bits / 8;
        if !self.key_bits.is_multiple_of(8) || !sizes.contains(bytes as usize) {
            let known: Vec<_> = sizes.iter().map(|bytes| (bytes * 8).to_string()).collect();
            return Err(OpenError::Options(format!(
                "{cipher} takes no key of {} bits; use one of {}",
                self.key_bits,
                known.join(" or ")
            )));
        }
        let key: Secret = match key {
            Key::Passphrase(passphrase) => {
                key_from_passphrase(passphrase, &self.hash, bytes).map_err(of_options)?
            }
            Key::File(path) => Part { offset: 0, size: Some(bytes.into()), line: false }
                .of_file(path, "the key file")
                .map_err(ToOpenError::to_open_error)?,
            Key::VolumeKey(key) => Zeroizing::new(key.to_vec()),
        };
        if key.len() != bytes as usize {
            return Err(OpenError::Options(format!(
                "the volume key has {} bits, {} were said; give the right one",
                key.len() * 8,
                self.key_bits
            )));
        }
        let Place { offset, skip, size, sector_size, iv_large_sectors } = self.place;
        let volume = plain::Plain { cipher, offset, skip, size, sector_size, iv_large_sectors };
        volume.unlock(&key).map_err(of_options)
    }
}

/// There is no header that could be wrong: what was said is.
fn of_options(error: ucrypt_luks::Error) -> OpenError {
    match error.to_open_error() {
        OpenError::Header(text) => OpenError::Options(text),
        other => other,
    }
}
