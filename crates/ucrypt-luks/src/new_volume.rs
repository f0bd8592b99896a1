//! Shared parts of making a LUKS1 or LUKS2 volume.

use ucrypt_sector::{CipherSpec, SectorCipher, SectorOptions};
use zeroize::Zeroizing;

use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::kdf::KEY_LEN_MAX;
use crate::luks1::DIGEST_BYTES;
use crate::medium::{Clock, Medium, Random, Write, fill_random, write_durably, zeroed};
use crate::pbkdf::{Machine, Pbkdf};
use crate::signature::{self, Signature};
use crate::uuid;

/// Alignment of the default data offset, in bytes.
const DATA_ALIGNMENT: u64 = 1 << 20;

/// Alignment that a requested data offset must have, in bytes.
pub(crate) const OFFSET_ALIGNMENT: u64 = 4096;

/// The wipe in front of the data ends at this byte at the latest, unless the header's own areas
/// reach further.
const WIPE_MAX: u64 = 16 << 20;

/// The parameters of a new LUKS1 or LUKS2 volume.
pub struct NewVolume {
    /// Cipher, mode and IV.
    pub cipher: CipherSpec,
    /// The volume key. The cipher must take its length.
    pub volume_key: Zeroizing<Vec<u8>>,
    /// Hash of the anti-forensic splitter.
    pub hash: Hash,
    /// The key derivation of the first keyslot.
    pub pbkdf: Pbkdf,
    /// Number of the first keyslot.
    pub keyslot: u32,
    /// UUID; `None` makes a random one.
    pub uuid: Option<String>,
    /// First byte of the data, a multiple of 4096; `None` takes the end of the header, rounded up
    /// to 1 MiB.
    pub data_offset: Option<u64>,
    /// What the default data offset is a multiple of, in bytes; `None` takes 1 MiB.
    pub data_alignment: Option<u64>,
    /// Cipher of the first keyslot's area and the length of its key in bytes; `None` takes the
    /// volume's. LUKS1 has no other.
    pub area: Option<(CipherSpec, u32)>,
    /// Whether the header lies in an image of its own. The data then begins at byte 0 of the data
    /// image, unless `data_offset` says otherwise.
    pub detached: bool,
}

/// Puts a new header over whatever `medium` holds: wipes the signatures that were found on it
/// ([`signature::find`]), carries out the writes of a format, and checks that no foreign signature
/// is left.
///
/// The headers of an old volume are wiped first and the new headers are written last. An
/// interruption leaves the old volume with all its keyslots, the new volume, or no volume at all.
pub fn overwrite(medium: &dyn Medium, found: &[Signature], writes: &[Write]) -> Result<()> {
    write_durably(medium, &signature::wipe(found))?;
    write_durably(medium, writes)?;
    signature::find_foreign(medium)?.map_or(Ok(()), |left| Err(Error::NotWiped(left)))
}

/// What the caller supplies to make a volume.
pub struct Tools<'a> {
    /// Random bytes, for salts, stripes and the UUID.
    pub random: Random<'a>,
    /// A clock, to measure the key derivation.
    pub clock: Clock<'a>,
    /// The machine's CPUs and memory.
    pub machine: Machine,
}

/// What to say of a key of `len` bytes that a cipher does not take: people count its bits.
pub fn wrong_size(cipher: &CipherSpec, len: u32) -> String {
    let (sizes, bits) = (cipher.key_sizes().in_bits(), u64::from(len) * 8);
    format!("{cipher} takes keys of {sizes} bits, not of {bits}")
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

    /// Refuses what no header can hold, and what would make a volume that does not open.
    /// `sector_size` is in bytes.
    pub(crate) fn check(&self, keyslots: u32, sector_size: u32) -> Result<()> {
        let len = self.volume_key.len();
        let fits = if self.cipher.is_null() {
            (1..=KEY_LEN_MAX).contains(&len)
        } else {
            self.cipher.key_sizes().contains(len)
        };
        if !fits {
            return Err(Error::request(wrong_size(&self.cipher, len as u32)));
        }
        if self.cipher.cipher_mode().is_empty() {
            let cipher = &self.cipher;
            let problem = format!("{cipher} names no mode; write it out, as in {cipher}-cbc-plain");
            return Err(Error::request(problem));
        }
        // Old volumes with a weak key still open. A new one could not be used with a kernel in FIPS
        // mode.
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
        // Who opens the volume makes this cipher: what it refuses must not be put into a header.
        let options = SectorOptions { sector_size, ..SectorOptions::default() };
        let made = SectorCipher::new(&self.cipher, &self.volume_key, options);
        made.map(drop).map_err(|problem| Error::request(problem.to_string()))
    }

    /// The first possible data offset from byte `end` on.
    pub(crate) fn align_data(&self, end: u64) -> Result<u64> {
        let aligned = end.checked_next_multiple_of(self.data_alignment.unwrap_or(DATA_ALIGNMENT));
        let aligned = aligned.filter(|offset| offset.is_multiple_of(OFFSET_ALIGNMENT));
        aligned.ok_or_else(|| {
            Error::request("the alignment of the data has to lead to a multiple of 4096 bytes")
        })
    }

    pub(crate) fn uuid(&self, random: Random<'_>) -> Result<String> {
        self.uuid.as_ref().map_or_else(|| uuid::generate(random), |text| uuid::normalize(text))
    }
}

/// The region that a new header takes. All of it is overwritten, the keyslot areas with random
/// bytes, so that nobody sees which of them are used.
pub(crate) struct Region {
    bytes: Vec<u8>,
}

impl Region {
    /// A region for header areas that end at `areas_end` and data that begins at `data_offset`
    /// (0 if the data is in another image).
    pub(crate) fn new(areas_end: u64, data_offset: u64) -> Result<Self> {
        Ok(Self { bytes: zeroed(areas_end.max(data_offset.min(WIPE_MAX)))? })
    }

    /// Fills a keyslot area with random bytes.
    pub(crate) fn fill(&mut self, offset: u64, length: u64, random: Random<'_>) -> Result<()> {
        fill_random(random, &mut self.bytes[offset as usize..][..length as usize])
    }

    /// Places the key material of a keyslot.
    pub(crate) fn put(&mut self, offset: u64, material: &[u8]) {
        self.bytes[offset as usize..][..material.len()].copy_from_slice(material);
    }

    /// The writes of a format: the first invalidates the old header, the second writes the region
    /// without a header, and the `headers` that make the volume valid come last.
    pub(crate) fn into_writes(self, headers: impl IntoIterator<Item = Write>) -> Vec<Write> {
        let wipe = Write { offset: 0, bytes: vec![0; 4096] };
        let region = Write { offset: 0, bytes: self.bytes };
        [wipe, region].into_iter().chain(headers).collect()
    }
}
