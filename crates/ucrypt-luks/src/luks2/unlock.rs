//! Unlocking LUKS2: from a passphrase to the volume key and its segments.

use std::collections::BTreeSet;

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::copies::Header;
use super::metadata::{
    Digest, DigestKind, Keyslot, KeyslotKind, Pbkdf2Digest, Priority, SegmentKind,
};
use crate::area::{self, Area, STRIPES, parse_cipher};
use crate::attempt::Attempts;
use crate::error::{Error, Result};
use crate::hash::find_hash;
use crate::kdf::{KEY_LEN_MAX, Kdf};
use crate::keys::OpenedKey;
use crate::medium::ReadAt;
use crate::volume::{Flag, Format, Segment, Unlocked};

impl Header {
    /// Tries `passphrase` on `keyslot`, or on the keyslots of the volume by priority and number.
    pub fn unlock(
        &self,
        image: &dyn ReadAt,
        passphrase: &[u8],
        keyslot: Option<u32>,
    ) -> Result<Unlocked> {
        let segments = self.usable_segments()?;
        let (_, digest) = self.volume_digest()?;
        let mut attempts = Attempts::default();
        for number in self.candidates(keyslot, |number| digest.keyslots.contains(&number))? {
            let opened = self.open_keyslot(image, number, passphrase, digest);
            if let Some(key) = attempts.note(number, opened)? {
                return self.unlocked(key, segments, Some(number));
            }
        }
        Err(attempts.failed())
    }

    /// Unlocks with the volume key itself, whose length and digest are checked.
    ///
    /// The length matters: PBKDF2 gives a key the same digest with and without trailing zero bytes.
    pub fn unlock_with_volume_key(&self, key: &[u8]) -> Result<Unlocked> {
        let segments = self.usable_segments()?;
        let (_, digest) = self.volume_digest()?;
        let keyslots = digest.keyslots.iter().filter_map(|id| self.metadata.keyslots.get(id));
        let wrong_length =
            keyslots.map(|keyslot| keyslot.key_size as usize).any(|len| len != key.len());
        if wrong_length || key.len() > KEY_LEN_MAX || !matches_digest(digest, key)? {
            return Err(Error::WrongVolumeKey);
        }
        self.unlocked(Zeroizing::new(key.to_vec()), segments, None)
    }

    /// The data segments, if everything that they require is supported.
    pub fn usable_segments(&self) -> Result<Vec<Segment>> {
        let metadata = &self.metadata;
        metadata.check_requirements()?;
        let mut segments = Vec::with_capacity(metadata.segments.len());
        for (number, segment) in &metadata.segments {
            let (iv_tweak, encryption, sector_size) = match &segment.kind {
                SegmentKind::Crypt { integrity: Some(integrity), .. } => {
                    return Err(Error::unsupported("integrity protection", integrity));
                }
                SegmentKind::Crypt { iv_tweak, encryption, sector_size, .. } => {
                    (*iv_tweak, encryption, *sector_size)
                }
                SegmentKind::Other(name) => return Err(Error::unsupported("segment type", name)),
            };
            // The format lets a program ignore flags that it does not know.
            segments.push(Segment {
                offset: segment.offset,
                length: segment.size,
                iv_tweak,
                cipher: parse_cipher(&format!("segment {number}"), encryption)?,
                sector_size,
                iv_large_sectors: false,
            });
        }
        Ok(segments)
    }

    /// Tries `passphrase` on `keyslot`, or on all keyslots by priority and number, whether or not
    /// they hold the key of the volume.
    pub fn open_key(
        &self,
        image: &dyn ReadAt,
        passphrase: &[u8],
        keyslot: Option<u32>,
    ) -> Result<OpenedKey> {
        self.open_key_of(image, passphrase, keyslot, |_| true)
    }

    /// As [`open_key`](Self::open_key); without a `keyslot`, only those that hold the key of the
    /// volume. The segments need not be usable, nor the requirements known: only a passphrase is tried.
    pub fn test_passphrase(
        &self,
        image: &dyn ReadAt,
        passphrase: &[u8],
        keyslot: Option<u32>,
    ) -> Result<OpenedKey> {
        let is_tried = |number| keyslot.is_some() || !self.metadata.is_unbound(number);
        self.open_key_of(image, passphrase, keyslot, is_tried)
    }

    /// As [`open_key`](Self::open_key), for the key of the volume only. The segments need not be usable, nor
    /// the requirements known. In the middle of a reencryption, a volume has two keys.
    pub fn open_volume_key(
        &self,
        image: &dyn ReadAt,
        passphrase: &[u8],
        keyslot: Option<u32>,
    ) -> Result<OpenedKey> {
        if let Err(error @ Error::Reencryption { .. }) = self.metadata.check_requirements() {
            return Err(error);
        }
        let (_, digest) = self.volume_digest()?;
        self.open_key_of(image, passphrase, keyslot, |number| digest.keyslots.contains(&number))
    }

    fn open_key_of(
        &self,
        image: &dyn ReadAt,
        passphrase: &[u8],
        keyslot: Option<u32>,
        is_tried: impl Fn(u32) -> bool,
    ) -> Result<OpenedKey> {
        let mut attempts = Attempts::default();
        for number in self.candidates(keyslot, is_tried)? {
            let digest = self.metadata.digests_of_keyslot(number);
            let Some(digest) = digest.first().and_then(|id| self.metadata.digests.get(id)) else {
                continue;
            };
            let opened = self.open_keyslot(image, number, passphrase, digest);
            if let Some(key) = attempts.note(number, opened)? {
                if !self.metadata.is_unbound(number) {
                    self.check_key_len(&key)?;
                }
                return Ok(OpenedKey { keyslot: number, key });
            }
        }
        Err(attempts.failed())
    }

    /// Refuses a key that the ciphers of the segments do not take. PBKDF2 gives a key the same
    /// digest with and without trailing zero bytes, so the digest alone does not tell the length.
    fn check_key_len(&self, key: &[u8]) -> Result<()> {
        match self.usable_segments() {
            Ok(segments) => segments.iter().try_for_each(|segment| segment.cipher(key).map(drop)),
            // Nobody here knows the ciphers, and nothing is decrypted by them.
            Err(Error::Unsupported { .. } | Error::Cipher { .. } | Error::Reencryption { .. }) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// The one digest of all segments, with its number.
    pub(super) fn volume_digest(&self) -> Result<(u32, &Digest)> {
        let metadata = &self.metadata;
        let mut digests = metadata.segments.keys().map(|id| metadata.digest_of_segment(*id));
        let missing = || Error::damaged("JSON/digests", "none belongs to the segments");
        let (number, digest) = digests.next().flatten().ok_or_else(missing)?;
        if digests.any(|other| other.map(|(id, _)| id) != Some(number)) {
            return Err(Error::unsupported("volume with more than one", "volume key"));
        }
        match &digest.kind {
            DigestKind::Pbkdf2(_) => Ok((number, digest)),
            DigestKind::Other(name) => Err(Error::unsupported("digest type", name)),
        }
    }

    /// The keyslots to try, in order, of those that `belongs` accepts.
    fn candidates(&self, keyslot: Option<u32>, belongs: impl Fn(u32) -> bool) -> Result<Vec<u32>> {
        let there = |number: u32| self.metadata.keyslots.contains_key(&number) && belongs(number);
        if let Some(number) = keyslot {
            return if there(number) {
                Ok(vec![number])
            } else {
                Err(Error::InactiveKeyslot(number))
            };
        }
        let of_priority = |priority: Priority| {
            let keyslots = self.metadata.keyslots.iter();
            keyslots
                .filter(move |(number, keyslot)| keyslot.priority == priority && there(**number))
                .map(|(number, _)| *number)
        };
        let tried: Vec<u32> =
            of_priority(Priority::Prefer).chain(of_priority(Priority::Normal)).collect();
        let ignored: Vec<u32> = of_priority(Priority::Ignore).collect();
        if tried.is_empty() && !ignored.is_empty() {
            return Err(Error::OnlyIgnored(ignored));
        }
        Ok(tried)
    }

    /// The volume key, or `None` if the passphrase does not open this keyslot.
    fn open_keyslot(
        &self,
        image: &dyn ReadAt,
        number: u32,
        passphrase: &[u8],
        digest: &Digest,
    ) -> Result<Option<Zeroizing<Vec<u8>>>> {
        let Some(keyslot) = self.metadata.keyslots.get(&number) else {
            return Err(Error::InactiveKeyslot(number));
        };
        let key = try_keyslot(image, number, keyslot, passphrase)?;
        Ok(matches_digest(digest, &key)?.then_some(key))
    }

    fn unlocked(
        &self,
        volume_key: Zeroizing<Vec<u8>>,
        segments: Vec<Segment>,
        keyslot: Option<u32>,
    ) -> Result<Unlocked> {
        for segment in &segments {
            segment.cipher(&volume_key)?;
        }
        let flags = self.metadata.config.flags.iter();
        Ok(Unlocked {
            format: Format::Luks2,
            volume_key,
            segments,
            // The format lets a program ignore flags that it does not know.
            flags: flags.filter_map(|name| Flag::from_header_name(name)).collect::<BTreeSet<_>>(),
            keyslot,
            uuid: Some(self.binary.uuid.to_string()),
            label: Some(self.binary.label.to_string()).filter(|label| !label.is_empty()),
        })
    }
}

/// Opens a keyslot with `passphrase`. Returns the volume key, or noise if the passphrase is wrong.
fn try_keyslot(
    image: &dyn ReadAt,
    number: u32,
    keyslot: &Keyslot,
    passphrase: &[u8],
) -> Result<Zeroizing<Vec<u8>>> {
    let KeyslotKind::Luks2 { kdf, salt, af, encryption, area_key_size } = &keyslot.kind else {
        return Err(Error::unsupported("keyslot type", keyslot.kind.name()));
    };
    if af.stripes != STRIPES {
        let problem = format!("{} stripes instead of {STRIPES}", af.stripes);
        return Err(Error::damaged(format!("JSON/keyslots/{number}/af"), problem));
    }
    let cipher = parse_cipher(&format!("area of keyslot {number}"), encryption)?;
    if cipher.is_null() {
        // Anybody could store a key of their own there; the passphrase would protect nothing.
        return Err(Error::unsupported("keyslot cipher", encryption));
    }
    let area = Area {
        offset: keyslot.area.offset,
        key_len: keyslot.key_size,
        stripes: af.stripes,
        hash: find_hash(&af.hash)?,
        cipher: &cipher,
    };
    // Checks the key length against the cipher before the costly derivation.
    let mut area_key = Zeroizing::new(area::key_buffer(&cipher, *area_key_size)?);
    kdf.derive(passphrase, salt, &mut area_key)?;
    area.open(image, &area_key)
}

fn matches_digest(digest: &Digest, key: &[u8]) -> Result<bool> {
    let Pbkdf2Digest { hash, iterations, salt, digest: stored } = match &digest.kind {
        DigestKind::Pbkdf2(pbkdf2) => pbkdf2,
        DigestKind::Other(name) => return Err(Error::unsupported("digest type", name)),
    };
    let kdf = Kdf::Pbkdf2 { hash: hash.clone(), iterations: *iterations };
    // Older versions of cryptsetup wrote 20 bytes for every hash; newer ones write the hash's
    // length. A shorter digest would let wrong keys pass.
    if stored.len() != 20 && stored.len() != find_hash(hash)?.size() {
        return Err(Error::damaged("JSON/digests", format!("one is {} bytes long", stored.len())));
    }
    let mut computed = vec![0; stored.len()];
    kdf.derive(key, salt, &mut computed)?;
    Ok(computed.ct_eq(stored).into())
}
