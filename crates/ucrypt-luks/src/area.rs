//! A keyslot area: the volume key, split into stripes and encrypted under a key derived from the
//! passphrase. LUKS1 and LUKS2 share this module.

use subtle::ConstantTimeEq;
use ucrypt_sector::{CipherSpec, SectorCipher, SectorOptions};
use zeroize::Zeroizing;

use crate::af;
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::kdf::KEY_LEN_MAX;
use crate::medium::{Random, ReadAt, read_bytes, zeroed};
use crate::volume::SECTOR_BYTES;

/// The number of stripes. Every known implementation uses it, and cryptsetup requires it.
pub(crate) const STRIPES: u32 = 4000;

/// Bytes that `stripes` stripes of `key_len` bytes take on the medium, in whole sectors.
pub(crate) fn material_len(key_len: u32, stripes: u32) -> u64 {
    (u64::from(key_len) * u64::from(stripes)).next_multiple_of(SECTOR_BYTES)
}

/// How a keyslot area stores a volume key.
pub(crate) struct Area<'a> {
    /// First byte in the header image.
    pub(crate) offset: u64,
    /// Length of the volume key in bytes.
    pub(crate) key_len: u32,
    /// Number of stripes, at least 1.
    pub(crate) stripes: u32,
    /// Hash of the anti-forensic splitter.
    pub(crate) hash: Hash,
    /// Cipher of the area.
    pub(crate) cipher: &'a CipherSpec,
}

impl Area<'_> {
    /// Reads, decrypts and merges the area. The result is the volume key if `area_key` is right,
    /// and noise otherwise.
    pub(crate) fn open(&self, image: &dyn ReadAt, area_key: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
        self.check_place()?;
        let cipher = self.keyed(area_key)?;
        let limit = material_len(KEY_LEN_MAX as u32, STRIPES);
        let length = material_len(self.key_len, self.stripes);
        let area = read_bytes(image, "a keyslot area", self.offset, length, limit)?;
        let mut area = Zeroizing::new(area);
        cipher.decrypt_in_place(0, &mut area).map_err(|problem| self.failed(&problem))?;
        let split = self.key_len as usize * self.stripes as usize;
        af::merge(&area[..split], self.key_len as usize, self.hash)
    }

    /// cryptsetup uses the begin of the sector where an area begins inside one. Nobody makes such a header.
    fn check_place(&self) -> Result<()> {
        if self.offset.is_multiple_of(SECTOR_BYTES) {
            return Ok(());
        }
        let problem = format!("it begins inside a sector, at byte {}", self.offset);
        Err(Error::damaged("keyslot area", problem))
    }

    /// Splits and encrypts `volume_key`. Returns the bytes of the area, for the caller to write at
    /// [`offset`](Self::offset).
    pub(crate) fn seal(
        &self,
        volume_key: &[u8],
        area_key: &[u8],
        random: Random<'_>,
    ) -> Result<Vec<u8>> {
        self.check_place()?;
        let cipher = self.keyed(area_key)?;
        let split = af::split(volume_key, self.stripes, self.hash, random)?;
        let mut area = Zeroizing::new(zeroed(material_len(self.key_len, self.stripes))?);
        area[..split.len()].copy_from_slice(&split);
        cipher.encrypt_in_place(0, &mut area).map_err(|problem| self.failed(&problem))?;
        Ok(std::mem::take(&mut *area))
    }

    /// As [`seal`](Self::seal), and opens the result once: what is stored is known to hold the key
    /// before anything that it replaces is destroyed.
    pub(crate) fn seal_verified(
        &self,
        volume_key: &[u8],
        area_key: &[u8],
        random: Random<'_>,
    ) -> Result<Vec<u8>> {
        let material = self.seal(volume_key, area_key, random)?;
        let opened = Area { offset: 0, ..*self }.open(&material, area_key)?;
        if !bool::from(opened.as_slice().ct_eq(volume_key)) {
            return Err(Error::damaged("new keyslot", "it does not give back its key"));
        }
        Ok(material)
    }

    fn keyed(&self, area_key: &[u8]) -> Result<SectorCipher> {
        SectorCipher::new(self.cipher, area_key, SectorOptions::default())
            .map_err(|problem| self.failed(&problem))
    }

    fn failed(&self, problem: &dyn std::fmt::Display) -> Error {
        let place = format!("keyslot area with {}", self.cipher);
        Error::Cipher { place, problem: problem.to_string() }
    }
}

/// Parses the cipher of a segment or a keyslot area, which errors call `what`.
pub(crate) fn parse_cipher(what: &str, spec: &str) -> Result<CipherSpec> {
    spec.parse().map_err(|problem: ucrypt_sector::SpecError| Error::Cipher {
        place: format!("{what} with \"{spec}\""),
        problem: problem.to_string(),
    })
}

/// A zeroed buffer for a key of `len` bytes, if `cipher` takes keys of this length.
pub(crate) fn key_buffer(cipher: &CipherSpec, len: u32) -> Result<Vec<u8>> {
    if cipher.is_null() || cipher.key_sizes().contains(len as usize) {
        return zeroed(u64::from(len));
    }
    let (bits, sizes) = (u64::from(len) * 8, cipher.key_sizes().in_bits());
    let problem = format!("a key of {bits} bits is not one of {sizes} bits");
    Err(Error::Cipher { place: format!("keyslot area with {cipher}"), problem })
}
