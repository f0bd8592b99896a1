//! The content of a LUKS1 keyslot that a passphrase opens.

use zeroize::Zeroizing;

use super::header::{Header, SALT_BYTES};
use crate::area::{Area, STRIPES};
use crate::error::{Error, Result};
use crate::hash::find_hash;
use crate::kdf::Kdf;
use crate::keys::NewKey;
use crate::medium::{Random, fill_random};
use crate::new_volume::Tools;
use crate::pbkdf::{Pbkdf, PbkdfKind};

/// Salt, iterations and key material, for any keyslot of the header.
pub(super) struct Sealed {
    pub(super) iterations: u32,
    pub(super) salt: [u8; SALT_BYTES],
    pub(super) material: Vec<u8>,
    area_key: Zeroizing<Vec<u8>>,
}

/// Puts the volume key under the new passphrase, and opens the result once.
pub(super) fn seal(
    header: &Header,
    volume_key: &[u8],
    new: &NewKey<'_>,
    tools: &mut Tools<'_>,
) -> Result<Sealed> {
    if volume_key.len() != header.key_bytes as usize {
        return Err(Error::WrongVolumeKey);
    }
    if new.area.is_some() {
        return Err(Error::request("LUKS1 keyslots have no cipher of their own; LUKS2 is needed"));
    }
    if new.pbkdf.kind != PbkdfKind::Pbkdf2 {
        return Err(Error::request("LUKS1 has no other PBKDF than pbkdf2"));
    }
    if header.cipher()?.is_null() && !new.passphrase.is_empty() {
        return Err(Error::request("only an empty passphrase goes with the null cipher"));
    }
    let pbkdf = Pbkdf { hash: find_hash(&header.hash)?, ..new.pbkdf };
    let kdf = pbkdf.resolve(volume_key.len(), tools.machine, tools.clock)?;
    let Kdf::Pbkdf2 { iterations, .. } = kdf else {
        return Err(Error::unsupported("PBKDF for LUKS1", kdf.name()));
    };
    let mut salt = [0; SALT_BYTES];
    fill_random(tools.random, &mut salt)?;
    let mut area_key = Zeroizing::new(vec![0; volume_key.len()]);
    kdf.derive(new.passphrase, &salt, &mut area_key)?;
    let mut sealed = Sealed { iterations, salt, material: Vec::new(), area_key };
    sealed.split_again(header, volume_key, tools.random)?;
    Ok(sealed)
}

impl Sealed {
    /// Makes the key material anew, for another keyslot, with the same derived key.
    pub(super) fn split_again(
        &mut self,
        header: &Header,
        volume_key: &[u8],
        random: Random<'_>,
    ) -> Result<()> {
        let cipher = header.cipher()?;
        let hash = find_hash(&header.hash)?;
        let area =
            Area { offset: 0, key_len: header.key_bytes, stripes: STRIPES, hash, cipher: &cipher };
        self.material = area.seal_verified(volume_key, &self.area_key, random)?;
        Ok(())
    }
}
