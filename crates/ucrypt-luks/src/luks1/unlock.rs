//! Unlocking LUKS1 (on-disk format 1.2.3, section 4.2).

use std::collections::BTreeSet;

use subtle::ConstantTimeEq;
use ucrypt_sector::CipherSpec;
use zeroize::Zeroizing;

use super::header::{DIGEST_BYTES, Header};
use crate::area::Area;
use crate::attempt::Attempts;
use crate::error::{Error, Result};
use crate::hash::find_hash;
use crate::kdf::Kdf;
use crate::medium::ReadAt;
use crate::volume::{Format, Segment, Unlocked};

impl Header {
    /// Tries `passphrase` on `keyslot`, or on all active keyslots in order.
    pub fn unlock(
        &self,
        image: &dyn ReadAt,
        passphrase: &[u8],
        keyslot: Option<u32>,
    ) -> Result<Unlocked> {
        let cipher = self.cipher()?;
        let mut attempts = Attempts::default();
        for number in self.candidates(keyslot)? {
            let opened = self.open_keyslot(image, number, passphrase, &cipher);
            if let Some(key) = attempts.note(number, opened)? {
                return self.unlocked(key, &cipher, Some(number));
            }
        }
        Err(attempts.failed())
    }

    /// Unlocks with the volume key itself, which is checked against the digest.
    pub fn unlock_with_volume_key(&self, key: &[u8]) -> Result<Unlocked> {
        if key.len() != self.key_bytes as usize || !self.matches_digest(key)? {
            return Err(Error::WrongVolumeKey);
        }
        self.unlocked(Zeroizing::new(key.to_vec()), &self.cipher()?, None)
    }

    /// The cipher of the data and of the keyslot areas.
    pub fn cipher(&self) -> Result<CipherSpec> {
        CipherSpec::from_parts(&self.cipher_name, &self.cipher_mode).map_err(|problem| {
            Error::Cipher {
                place: format!("volume with \"{}-{}\"", self.cipher_name, self.cipher_mode),
                problem: problem.to_string(),
            }
        })
    }

    fn candidates(&self, keyslot: Option<u32>) -> Result<Vec<u32>> {
        let active = self.active_keyslots();
        match keyslot {
            Some(number) if active.contains(&number) => Ok(vec![number]),
            Some(number) => {
                self.check_state(number)?;
                Err(Error::InactiveKeyslot(number))
            }
            None => Ok(active),
        }
    }

    /// The volume key, or `None` if the passphrase does not open this keyslot.
    fn open_keyslot(
        &self,
        image: &dyn ReadAt,
        number: u32,
        passphrase: &[u8],
        cipher: &CipherSpec,
    ) -> Result<Option<Zeroizing<Vec<u8>>>> {
        let keyslot = &self.keyslots[number as usize];
        // The null cipher keeps nothing secret, and a passphrase would suggest that it does.
        if cipher.is_null() && !passphrase.is_empty() {
            return Ok(None);
        }
        let kdf = Kdf::Pbkdf2 { hash: self.hash.clone(), iterations: keyslot.iterations };
        let mut area_key = Zeroizing::new(vec![0; self.key_bytes as usize]);
        kdf.derive(passphrase, &keyslot.salt, &mut area_key)?;
        let area = Area {
            offset: keyslot.material_start(),
            key_len: self.key_bytes,
            stripes: keyslot.stripes,
            hash: find_hash(&self.hash)?,
            cipher,
        };
        let key = area.open(image, &area_key)?;
        Ok(self.matches_digest(&key)?.then_some(key))
    }

    fn matches_digest(&self, key: &[u8]) -> Result<bool> {
        let kdf = Kdf::Pbkdf2 { hash: self.hash.clone(), iterations: self.digest_iterations };
        let mut digest = [0; DIGEST_BYTES];
        kdf.derive(key, &self.digest_salt, &mut digest)?;
        Ok(digest.ct_eq(&self.digest).into())
    }

    fn unlocked(
        &self,
        volume_key: Zeroizing<Vec<u8>>,
        cipher: &CipherSpec,
        keyslot: Option<u32>,
    ) -> Result<Unlocked> {
        let segment = Segment {
            offset: self.data_offset(),
            length: None,
            iv_tweak: 0,
            cipher: cipher.clone(),
            sector_size: 512,
            iv_large_sectors: false,
        };
        segment.cipher(&volume_key)?;
        Ok(Unlocked {
            format: Format::Luks1,
            volume_key,
            segments: vec![segment],
            flags: BTreeSet::new(),
            keyslot,
            uuid: Some(self.uuid.to_string()),
            label: None,
        })
    }
}
