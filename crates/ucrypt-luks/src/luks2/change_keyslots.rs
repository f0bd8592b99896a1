//! Adding, replacing and removing keyslots.

use ucrypt_sector::CipherSpec;

use super::change::{Change, add_reference, remove_reference};
use super::copies::Header;
use super::keyslot::{
    FALLBACK_AREA_CIPHER, FALLBACK_AREA_KEY_LEN, Plan, area_size, decimal, digest,
};
use super::metadata::SegmentKind;
use super::parse::{DIGESTS_MAX, KEYSLOTS_MAX};
use crate::area::parse_cipher;
use crate::error::{Error, Result};
use crate::json::Json;
use crate::kdf::KEY_LEN_MAX;
use crate::keys::NewKey;
use crate::medium::{Random, Write, wipe, wipe_range};
use crate::new_volume::Tools;

impl Change {
    /// Adds a keyslot that holds the key of the volume, under this number or the lowest free one.
    /// Returns its number. `volume_key` must have opened `header`, which this change began with.
    pub fn add_keyslot(
        &mut self,
        header: &Header,
        volume_key: &[u8],
        number: Option<u32>,
        new: &NewKey<'_>,
        tools: &mut Tools<'_>,
    ) -> Result<u32> {
        let (id, digest) = header.volume_digest()?;
        let of_volume = digest.keyslots.iter().filter_map(|id| header.metadata.keyslots.get(id));
        if of_volume.clone().any(|keyslot| keyslot.key_size as usize != volume_key.len()) {
            return Err(Error::WrongVolumeKey);
        }
        for segment in header.usable_segments()? {
            segment.cipher(volume_key)?;
        }
        let number = self.put_keyslot(volume_key, number, new, tools)?;
        let digests = self.objects("digests")?;
        if let Some(digest) = digests.get_mut(&id.to_string()) {
            add_reference(digest, "keyslots", number);
        }
        self.update()?;
        Ok(number)
    }

    /// Adds a keyslot for a key that encrypts nothing of this volume, with a digest of its own.
    /// Returns its number.
    pub fn add_unbound_keyslot(
        &mut self,
        key: &[u8],
        number: Option<u32>,
        new: &NewKey<'_>,
        tools: &mut Tools<'_>,
    ) -> Result<u32> {
        if key.is_empty() || key.len() > KEY_LEN_MAX {
            let problem = format!("a key has 1 to {KEY_LEN_MAX} bytes, not {}", key.len());
            return Err(Error::request(problem));
        }
        let is_free = |id: &u32| !self.metadata.digests.contains_key(id);
        let id = (0..DIGESTS_MAX).find(is_free).ok_or_else(|| {
            Error::request(
                "no digest is free for a key of its own; remove an unbound keyslot first",
            )
        })?;
        let number = self.put_keyslot(key, number, new, tools)?;
        let digest = digest(key, &new.pbkdf, &[&number.to_string()], &[], tools)?;
        self.objects("digests")?.set(&id.to_string(), digest);
        self.update()?;
        Ok(number)
    }

    /// Puts the key of `number` under another passphrase or key derivation. The new area is written
    /// beside the old one, which is wiped last. Number, priority, digest, tokens and unknown members
    /// stay.
    pub fn replace_keyslot(
        &mut self,
        number: u32,
        key: &[u8],
        new: &NewKey<'_>,
        tools: &mut Tools<'_>,
    ) -> Result<()> {
        let keyslot = self.metadata.keyslots.get(&number).ok_or(Error::InactiveKeyslot(number))?;
        if keyslot.key_size as usize != key.len() {
            return Err(Error::WrongVolumeKey);
        }
        let old = keyslot.area.clone();
        let offset = self.gap(area_size(keyslot.key_size)).ok_or_else(|| {
            Error::request(
                "the keyslots area has no room for the new key beside the old one, which is not \
                 overwritten before the new one is known to be good; remove a keyslot first",
            )
        })?;
        let (mut made, material) = self.plan(key, new, offset)?.make(tools)?;
        let json = self.keyslot_json(number)?;
        for member in ["af", "area", "kdf"] {
            if let Some(value) = made.get_mut(member) {
                json.set(member, std::mem::replace(value, Json::Null));
            }
        }
        self.before.push(Write { offset, bytes: material });
        self.after.push(wipe(old.offset, old.size, tools.random)?);
        self.update()
    }

    /// Wipes a keyslot, and removes it from digests and tokens. A digest that is left without
    /// keyslots and segments goes with it.
    pub fn remove_keyslot(&mut self, number: u32, random: Random<'_>) -> Result<()> {
        let keyslot = self.metadata.keyslots.get(&number).ok_or(Error::InactiveKeyslot(number))?;
        self.before.push(wipe(keyslot.area.offset, keyslot.area.size, random)?);
        self.forget_keyslot(number)
    }

    /// Wipes the whole keyslots area, and removes all keyslots. Outside of their areas may lie what
    /// an interrupted change has forgotten.
    pub fn remove_all_keyslots(&mut self, random: Random<'_>) -> Result<()> {
        let begin = 2 * self.binary.header_size;
        let area = begin..begin + self.metadata.config.keyslots_size;
        self.before.extend(wipe_range(area, random)?);
        let numbers: Vec<u32> = self.metadata.keyslots.keys().copied().collect();
        numbers.into_iter().try_for_each(|number| self.forget_keyslot(number))
    }

    /// Removes a keyslot that is wiped from the metadata.
    fn forget_keyslot(&mut self, number: u32) -> Result<()> {
        let unused = self.metadata.digests_of_keyslot(number).into_iter().find(|id| {
            let digest = self.metadata.digests.get(id);
            digest.is_some_and(|digest| digest.segments.is_empty() && digest.keyslots == [number])
        });
        self.objects("keyslots")?.remove(&number.to_string());
        for list in ["digests", "tokens"] {
            if let Json::Object(objects) = self.objects(list)? {
                for (_, object) in objects {
                    remove_reference(object, "keyslots", number);
                }
            }
        }
        if let Some(id) = unused {
            self.objects("digests")?.remove(&id.to_string());
        }
        self.update()
    }

    /// Moves the area of a keyslot, whose bytes are `material`, to byte `to`. What is left of the old
    /// place is wiped last.
    pub(crate) fn move_area(
        &mut self,
        number: u32,
        to: u64,
        material: &[u8],
        random: Random<'_>,
    ) -> Result<()> {
        let keyslot = self.metadata.keyslots.get(&number).ok_or(Error::InactiveKeyslot(number))?;
        let (old, end) = (keyslot.area.offset, keyslot.area.offset + keyslot.area.size);
        let left = [(old, end.min(to)), (old.max(to + keyslot.area.size), end)];
        if let Some(area) = self.keyslot_json(number)?.get_mut("area") {
            area.set("offset", decimal(to));
        }
        self.before.push(Write { offset: to, bytes: material.to_vec() });
        for (from, to) in left.into_iter().filter(|(from, to)| from < to) {
            self.after.push(wipe(from, to - from, random)?);
        }
        self.update()
    }

    /// Makes a keyslot without a digest, and the write of its area.
    fn put_keyslot(
        &mut self,
        key: &[u8],
        number: Option<u32>,
        new: &NewKey<'_>,
        tools: &mut Tools<'_>,
    ) -> Result<u32> {
        let number = self.free_number(number)?;
        let offset = self.gap(area_size(key.len() as u32)).ok_or_else(|| {
            Error::request("no space for a new keyslot in the keyslots area; remove one first")
        })?;
        let (keyslot, material) = self.plan(key, new, offset)?.make(tools)?;
        self.objects("keyslots")?.set(&number.to_string(), keyslot);
        self.before.push(Write { offset, bytes: material });
        Ok(number)
    }

    fn free_number(&self, number: Option<u32>) -> Result<u32> {
        let is_free = |number: &u32| !self.metadata.keyslots.contains_key(number);
        match number {
            Some(number) if number >= KEYSLOTS_MAX => Err(Error::request(format!(
                "keyslot {number} is invalid, select one between 0 and {}",
                KEYSLOTS_MAX - 1
            ))),
            Some(number) if is_free(&number) => Ok(number),
            Some(number) => {
                Err(Error::request(format!("keyslot {number} is full, select another one")))
            }
            None => (0..KEYSLOTS_MAX)
                .find(is_free)
                .ok_or_else(|| Error::request("all keyslots are full; remove one first")),
        }
    }

    /// The first gap of `size` bytes between the areas, as cryptsetup allocates them.
    fn gap(&self, size: u64) -> Option<u64> {
        let begin = 2 * self.binary.header_size;
        let end = begin + self.metadata.config.keyslots_size;
        let keyslots = self.metadata.keyslots.values();
        let areas = keyslots.map(|keyslot| (keyslot.area.offset, keyslot.area.size));
        let mut areas: Vec<(u64, u64)> = areas.collect();
        areas.sort_unstable();
        let mut free = begin;
        for (offset, length) in areas {
            if offset.saturating_sub(free) >= size {
                break;
            }
            free = free.max(offset.saturating_add(length));
        }
        (end.saturating_sub(free) >= size).then_some(free)
    }

    fn plan<'a>(&self, key: &'a [u8], new: &NewKey<'a>, offset: u64) -> Result<Plan<'a>> {
        let (cipher, area_key_len) = match &new.area {
            Some((cipher, key_len)) => (cipher.clone(), *key_len),
            None => self.area_cipher()?,
        };
        let (passphrase, pbkdf) = (new.passphrase, new.pbkdf);
        Ok(Plan { key, passphrase, pbkdf, hash: pbkdf.hash, cipher, area_key_len, offset })
    }

    /// The cipher of a new area and the length of its key: those of the volume, if both are known
    /// and the cipher keeps a secret.
    fn area_cipher(&self) -> Result<(CipherSpec, u32)> {
        let metadata = &self.metadata;
        let first = metadata.segments.iter().next();
        if let Some((number, segment)) = first
            && let SegmentKind::Crypt { encryption, .. } = &segment.kind
        {
            let cipher = parse_cipher("keyslot area", encryption)?;
            let digest = metadata.digest_of_segment(*number);
            let keyslots = digest.iter().flat_map(|(_, digest)| &digest.keyslots);
            let mut keyslots = keyslots.filter_map(|number| metadata.keyslots.get(number));
            if let Some(keyslot) = keyslots.next().filter(|_| !cipher.is_null()) {
                return Ok((cipher, keyslot.key_size));
            }
        }
        Ok((parse_cipher("keyslot area", FALLBACK_AREA_CIPHER)?, FALLBACK_AREA_KEY_LEN))
    }
}
