//! Adding, changing and removing the keys of a header of either version.
//!
//! Each call returns the header afterwards and the writes, for
//! [`write_verified`](crate::write_verified). A key is destroyed only after what replaces it was
//! read back. An interruption leaves the old key, the new key, or both.

use subtle::ConstantTimeEq;
use ucrypt_sector::CipherSpec;
use zeroize::Zeroizing;

use crate::attempt::Attempts;
use crate::error::{Error, Result};
use crate::hash::find_hash;
use crate::header::Header;
use crate::kdf::Kdf;
use crate::luks2::{Damage, KeyslotKind, Priority};
use crate::medium::{Random, ReadAt, Write};
use crate::new_volume::Tools;
use crate::pbkdf::Pbkdf;
use crate::volume::Unlocked;

/// The refusal of a new key that the old one would open as well.
pub(crate) fn same_key() -> Error {
    Error::request("the new key is the old one")
}

/// A passphrase that is to open a keyslot, and how the keyslot stores the key.
#[derive(Debug, Clone)]
pub struct NewKey<'a> {
    /// The passphrase.
    pub passphrase: &'a [u8],
    /// The key derivation. Its hash is also that of the anti-forensic splitter. LUKS1 takes the
    /// header's hash instead of it.
    pub pbkdf: Pbkdf,
    /// Cipher of the keyslot's area and the length of its key in bytes; `None` takes the volume's.
    /// LUKS1 has no other.
    pub area: Option<(CipherSpec, u32)>,
}

/// A keyslot that a passphrase has opened.
pub struct OpenedKey {
    /// Its number.
    pub keyslot: u32,
    /// The key that it holds: the volume's, or one of its own. Wiped on drop.
    pub key: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for OpenedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenedKey").field("keyslot", &self.keyslot).finish_non_exhaustive()
    }
}

/// A change of a header: what it is afterwards, and the writes that lead there.
#[derive(Debug)]
pub struct HeaderChange {
    /// The keyslot that the change is about. A changed key of LUKS1 has a new number.
    pub keyslot: u32,
    /// The header afterwards.
    pub header: Header,
    /// The writes, for [`write_verified`](crate::write_verified).
    pub writes: Vec<Write>,
}

impl Header {
    /// The numbers of the active keyslots that hold the key of the volume.
    pub fn volume_keyslots(&self) -> Vec<u32> {
        match self {
            Self::Luks1(header) => header.active_keyslots(),
            Self::Luks2(header) => {
                let numbers = header.metadata.keyslots.keys().copied();
                numbers.filter(|number| !header.metadata.is_unbound(*number)).collect()
            }
        }
    }

    /// The numbers of all active keyslots.
    pub fn keyslots(&self) -> Vec<u32> {
        match self {
            Self::Luks1(header) => header.active_keyslots(),
            Self::Luks2(header) => header.metadata.keyslots.keys().copied().collect(),
        }
    }

    /// Refuses the number of a keyslot that holds no key, or of which nobody knows whether it does.
    pub fn check_keyslot(&self, number: u32) -> Result<()> {
        match self {
            Self::Luks1(header) => header.check_active(number),
            Self::Luks2(header) if header.metadata.keyslots.contains_key(&number) => Ok(()),
            Self::Luks2(_) => Err(Error::InactiveKeyslot(number)),
        }
    }

    /// Whether a keyslot is tried without its number: its priority is not `ignore`.
    pub(crate) fn is_tried(&self, number: u32) -> bool {
        match self {
            Self::Luks1(_) => true,
            Self::Luks2(header) => {
                let keyslot = header.metadata.keyslots.get(&number);
                keyslot.is_none_or(|keyslot| keyslot.priority != Priority::Ignore)
            }
        }
    }

    /// Whether `other`, another reading of this header, has the same keyslot under this number.
    pub fn has_same_keyslot(&self, other: &Self, number: u32) -> bool {
        let at = number as usize;
        self.uuid() == other.uuid()
            && match (self, other) {
                (Self::Luks1(one), Self::Luks1(two)) => {
                    one.keyslots.get(at) == two.keyslots.get(at)
                }
                (Self::Luks2(one), Self::Luks2(two)) => {
                    one.metadata.keyslots.get(&number) == two.metadata.keyslots.get(&number)
                }
                _ => false,
            }
    }

    /// Refuses `new` in place of `old` if it opens this keyslot only as `old` does. HMAC, and with it PBKDF2,
    /// takes a key that ends in zero bytes for the one without them, and a long key for its digest.
    pub fn check_new_key(&self, number: u32, old: &[u8], new: &[u8]) -> Result<()> {
        let hash = match self {
            Self::Luks1(header) => &header.hash,
            Self::Luks2(header) => match header.metadata.keyslots.get(&number).map(|it| &it.kind) {
                Some(KeyslotKind::Luks2 { kdf: Kdf::Pbkdf2 { hash, .. }, .. }) => hash,
                _ => return Ok(()),
            },
        };
        let hash = find_hash(hash)?;
        let [old, new] = [old, new].map(|key| {
            let mut derived = Zeroizing::new([0; 32]);
            hash.pbkdf2(key, b"", 1, &mut *derived);
            derived
        });
        if bool::from(old.ct_eq(&*new)) { Err(same_key()) } else { Ok(()) }
    }

    /// Length of the volume key in bytes; `None` if there is no keyslot to tell it.
    pub fn volume_key_len(&self) -> Option<u32> {
        match self {
            Self::Luks1(header) => Some(header.key_bytes),
            Self::Luks2(header) => {
                let number = *self.volume_keyslots().first()?;
                header.metadata.keyslots.get(&number).map(|keyslot| keyslot.key_size)
            }
        }
    }

    /// Tries `passphrase` on `keyslot`, or on all keyslots in their order, whether or not they hold
    /// the key of the volume.
    pub fn open_key(
        &self,
        image: &dyn ReadAt,
        passphrase: &[u8],
        keyslot: Option<u32>,
    ) -> Result<OpenedKey> {
        match self {
            Self::Luks1(header) => {
                let unlocked = header.unlock(image, passphrase, keyslot)?;
                let keyslot = unlocked.keyslot.ok_or(Error::NoKeyslot)?;
                Ok(OpenedKey { keyslot, key: unlocked.volume_key })
            }
            Self::Luks2(header) => header.open_key(image, passphrase, keyslot),
        }
    }

    /// Tries `passphrase` as [`Header::unlock`] does, on volumes too whose segments cannot be used
    /// here, and on unbound keyslots if they are named.
    pub fn test_passphrase(
        &self,
        image: &dyn ReadAt,
        passphrase: &[u8],
        keyslot: Option<u32>,
    ) -> Result<OpenedKey> {
        match self {
            Self::Luks1(_) => self.open_key(image, passphrase, keyslot),
            Self::Luks2(header) => header.test_passphrase(image, passphrase, keyslot),
        }
    }

    /// Tries `passphrase` as [`Header::unlock`] does, for the key alone: the segments need not be usable here.
    pub fn open_volume_key(
        &self,
        image: &dyn ReadAt,
        passphrase: &[u8],
        keyslot: Option<u32>,
    ) -> Result<OpenedKey> {
        match self {
            Self::Luks1(_) => self.open_key(image, passphrase, keyslot),
            Self::Luks2(header) => header.open_volume_key(image, passphrase, keyslot),
        }
    }

    /// Tries `passphrase` on the keyslots of the volume other than `number`: whether the volume opens
    /// without that one.
    pub fn unlock_without(
        &self,
        image: &dyn ReadAt,
        passphrase: &[u8],
        number: u32,
    ) -> Result<Unlocked> {
        let mut attempts = Attempts::default();
        for other in self.volume_keyslots().into_iter().filter(|other| *other != number) {
            let opened = match self.unlock(image, passphrase, Some(other)) {
                Ok(unlocked) => Ok(Some(unlocked)),
                Err(Error::WrongPassphrase { .. }) => Ok(None),
                Err(error) => Err(error),
            };
            if let Some(unlocked) = attempts.note(other, opened)? {
                return Ok(unlocked);
            }
        }
        Err(attempts.failed())
    }

    /// Adds a keyslot for the key of the volume, under this number or the lowest free one.
    /// `volume` must come from this header.
    pub fn add_key(
        &self,
        damage: Option<&Damage>,
        volume: &Unlocked,
        number: Option<u32>,
        new: &NewKey<'_>,
        tools: &mut Tools<'_>,
    ) -> Result<HeaderChange> {
        match self {
            Self::Luks1(header) => {
                let (keyslot, header, writes) =
                    header.add_key(&volume.volume_key, number, new, tools)?;
                Ok(HeaderChange { keyslot, header: Self::Luks1(Box::new(header)), writes })
            }
            Self::Luks2(header) => {
                let mut change = header.change(damage)?;
                let key = &volume.volume_key;
                let keyslot = change.add_keyslot(header, key, number, new, tools)?;
                finished(keyslot, change, tools.random)
            }
        }
    }

    /// Adds a keyslot for a key that encrypts nothing of the volume. LUKS2 only.
    pub fn add_unbound_key(
        &self,
        damage: Option<&Damage>,
        key: &[u8],
        number: Option<u32>,
        new: &NewKey<'_>,
        tools: &mut Tools<'_>,
    ) -> Result<HeaderChange> {
        let mut change = self.luks2("unbound keyslots")?.change(damage)?;
        let keyslot = change.add_unbound_keyslot(key, number, new, tools)?;
        finished(keyslot, change, tools.random)
    }

    /// Replaces the passphrase or the key derivation of a keyslot. LUKS2 keeps its number. LUKS1
    /// moves the key to the lowest free keyslot, unless `keep_number` is set.
    pub fn change_key(
        &self,
        damage: Option<&Damage>,
        opened: &OpenedKey,
        keep_number: bool,
        new: &NewKey<'_>,
        tools: &mut Tools<'_>,
    ) -> Result<HeaderChange> {
        match self {
            Self::Luks1(header) => {
                let (keyslot, header, writes) =
                    header.change_key(opened, keep_number, new, tools)?;
                Ok(HeaderChange { keyslot, header: Self::Luks1(Box::new(header)), writes })
            }
            Self::Luks2(header) => {
                let mut change = header.change(damage)?;
                change.replace_keyslot(opened.keyslot, &opened.key, new, tools)?;
                finished(opened.keyslot, change, tools.random)
            }
        }
    }

    /// Wipes a keyslot and removes it.
    pub fn remove_key(
        &self,
        damage: Option<&Damage>,
        number: u32,
        random: Random<'_>,
    ) -> Result<HeaderChange> {
        match self {
            Self::Luks1(header) => {
                let (header, writes) = header.remove_key(number, random)?;
                let header = Self::Luks1(Box::new(header));
                Ok(HeaderChange { keyslot: number, header, writes })
            }
            Self::Luks2(header) => {
                let mut change = header.change(damage)?;
                change.remove_keyslot(number, random)?;
                finished(number, change, random)
            }
        }
    }

    /// Wipes the areas of all keyslots, with what lies between them, and removes the keyslots: without
    /// a header backup or the volume key, nobody opens the volume again. `image` must be the one that
    /// the header was read from; `damage` came with it.
    pub fn erase(
        &self,
        image: &dyn ReadAt,
        damage: Option<&Damage>,
        random: Random<'_>,
    ) -> Result<HeaderChange> {
        match self {
            Self::Luks1(header) => {
                let (header, writes) = header.erase(image, random)?;
                Ok(HeaderChange { keyslot: 0, header: Self::Luks1(Box::new(header)), writes })
            }
            Self::Luks2(header) => {
                let mut change = header.change(damage)?;
                change.remove_all_keyslots(random)?;
                finished(0, change, random)
            }
        }
    }

    /// Changes the UUID, to a random one if none is given.
    pub fn change_uuid(
        &self,
        damage: Option<&Damage>,
        uuid: Option<&str>,
        random: Random<'_>,
    ) -> Result<HeaderChange> {
        match self {
            Self::Luks1(header) => {
                let (header, writes) = header.change_uuid(uuid, random)?;
                Ok(HeaderChange { keyslot: 0, header: Self::Luks1(Box::new(header)), writes })
            }
            Self::Luks2(header) => {
                let mut change = header.change(damage)?;
                change.set_uuid(uuid, random)?;
                finished(0, change, random)
            }
        }
    }

    /// The LUKS2 header, for what LUKS1 does not have.
    pub fn luks2(&self, what: &str) -> Result<&crate::luks2::Header> {
        match self {
            Self::Luks2(header) => Ok(header),
            Self::Luks1(_) => {
                Err(Error::request(format!("a LUKS1 header has no {what}; LUKS2 is needed")))
            }
        }
    }
}

fn finished(
    keyslot: u32,
    change: crate::luks2::Change,
    random: Random<'_>,
) -> Result<HeaderChange> {
    let (header, writes) = change.finish(random)?;
    Ok(HeaderChange { keyslot, header: Header::Luks2(Box::new(header)), writes })
}
