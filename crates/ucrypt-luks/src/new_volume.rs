//! What LUKS1 and LUKS2 need alike when a volume is made.

use ucrypt_sector::CipherSpec;
use zeroize::Zeroizing;

use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::kdf::KEY_LEN_MAX;
use crate::luks1::DIGEST_BYTES;
use crate::medium::{Clock, Medium, Random, Write, fill_random, write_durably, zeroed};
use crate::pbkdf::{Machine, Pbkdf};
use crate::signature::{self, Signature};
use crate::uuid;

/// Where data begins if nothing else is asked for is a multiple of this, in bytes.
pub(crate) const DATA_ALIGNMENT: u64 = 1 << 20;

/// What a data offset that is asked for must be a multiple of, in bytes.
pub(crate) const OFFSET_ALIGNMENT: u64 = 4096;

/// Most bytes in front of the data that are wiped beyond the header's own areas.
const WIPE_MAX: u64 = 16 << 20;

/// The parameters of a new volume, of either version of LUKS.
pub struct NewVolume {
    /// Cipher, mode and IV.
    pub cipher: CipherSpec,
    /// The volume key, of a length that the cipher takes.
    pub volume_key: Zeroizing<Vec<u8>>,
    /// Hash of the anti-forensic splitter.
    pub hash: Hash,
    /// The key derivation of the first keyslot.
    pub pbkdf: Pbkdf,
    /// Number of the first keyslot.
    pub keyslot: u32,
    /// UUID; random if there is none.
    pub uuid: Option<String>,
    /// First byte of the data, a multiple of 4096; where the header ends if there is none.
    pub data_offset: Option<u64>,
    /// Whether the header lies in an image of its own. The data then begins at byte 0 of theirs,
    /// unless `data_offset` says otherwise.
    pub detached: bool,
}

/// Puts a new header over whatever `medium` holds: wipes the signatures that were found on it
/// ([`signature::find`]), carries out the writes of a format, and looks whether the image is nobody
/// else's now.
///
/// The headers of an old volume go first and the new ones come last. Whenever it is interrupted,
/// what is left is the old volume with all its keyslots, the new one, or no volume at all.
pub fn overwrite(medium: &dyn Medium, found: &[Signature], writes: &[Write]) -> Result<()> {
    write_durably(medium, &signature::wipe(found))?;
    write_durably(medium, writes)?;
    signature::find_foreign(medium)?.map_or(Ok(()), |left| Err(Error::NotWiped(left)))
}

/// What making a volume needs from outside.
pub struct Tools<'a> {
    /// Random bytes, for salts, stripes and the UUID.
    pub random: Random<'a>,
    /// A clock, to measure the key derivation.
    pub clock: Clock<'a>,
    /// What the machine can do.
    pub machine: Machine,
}

/// A random volume key of `len` bytes.
pub fn random_volume_key(len: u32, random: Random<'_>) -> Result<Zeroizing<Vec<u8>>> {
    if len as usize > KEY_LEN_MAX {
        return Err(Error::request(format!("a key of {len} bytes is longer than {KEY_LEN_MAX}")));
    }
    let mut key = Zeroizing::new(zeroed(u64::from(len))?);
    fill_random(random, &mut key)?;
    Ok(key)
}

impl NewVolume {
    pub(crate) fn key_len(&self) -> u32 {
        self.volume_key.len() as u32
    }

    pub(crate) fn check(&self, keyslots: u32) -> Result<()> {
        let len = self.volume_key.len();
        let fits = if self.cipher.is_null() {
            (1..=KEY_LEN_MAX).contains(&len)
        } else {
            self.cipher.key_sizes().contains(len)
        };
        if !fits {
            let (cipher, sizes) = (&self.cipher, self.cipher.key_sizes());
            let problem = format!("{cipher} takes keys of {sizes} bytes, not of {len}");
            return Err(Error::request(problem));
        }
        if self.cipher.cipher_mode().is_empty() {
            let cipher = &self.cipher;
            let problem = format!("{cipher} names no mode; write it out, as in {cipher}-cbc-plain");
            return Err(Error::request(problem));
        }
        // Old volumes with such a key open; a new one would be of no use where the kernel is in
        // FIPS mode.
        if let Some(rule) = self.cipher.weak_key_rule(&self.volume_key) {
            return Err(Error::request(format!("the volume key is weak: {rule}")));
        }
        for hash in [self.hash, self.pbkdf.hash] {
            if hash.size() < DIGEST_BYTES {
                let problem = format!("the hash {} is too short for LUKS", hash.name());
                return Err(Error::request(problem));
            }
        }
        if self.keyslot >= keyslots {
            let problem = format!("keyslot {} is not in 0 to {}", self.keyslot, keyslots - 1);
            return Err(Error::request(problem));
        }
        if let Some(offset) = self.data_offset
            && !offset.is_multiple_of(OFFSET_ALIGNMENT)
        {
            let problem = format!("the data offset of {offset} bytes is no multiple of 4096");
            return Err(Error::request(problem));
        }
        Ok(())
    }

    pub(crate) fn uuid(&self, random: Random<'_>) -> Result<String> {
        self.uuid.as_ref().map_or_else(|| uuid::generate(random), |text| uuid::normalize(text))
    }
}

/// The region that a new header takes: everything that was there before is wiped, keyslot areas
/// with random bytes so that nobody sees which of them are used.
pub(crate) struct Region {
    bytes: Vec<u8>,
}

impl Region {
    /// A region for header areas that end at `areas_end` and data that begins at `data_offset`
    /// (0 if the data is elsewhere).
    pub(crate) fn new(areas_end: u64, data_offset: u64) -> Result<Self> {
        Ok(Self { bytes: zeroed(areas_end.max(data_offset.min(WIPE_MAX)))? })
    }

    /// Fills a keyslot area with random bytes.
    pub(crate) fn fill(&mut self, offset: u64, length: u64, random: Random<'_>) -> Result<()> {
        fill_random(random, &mut self.bytes[offset as usize..][..length as usize])
    }

    /// Puts the material of a keyslot.
    pub(crate) fn put(&mut self, offset: u64, material: &[u8]) {
        self.bytes[offset as usize..][..material.len()].copy_from_slice(material);
    }

    /// The writes of a format: the old header is made invalid, then the region without a header
    /// is written, and last the `headers` that make it valid.
    pub(crate) fn into_writes(self, headers: impl IntoIterator<Item = Write>) -> Vec<Write> {
        let wipe = Write { offset: 0, bytes: vec![0; 4096] };
        let region = Write { offset: 0, bytes: self.bytes };
        [wipe, region].into_iter().chain(headers).collect()
    }
}
