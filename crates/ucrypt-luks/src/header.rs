//! A LUKS header of either version: find it, read it, unlock it.

use crate::error::{Error, Result};
use crate::fields::FieldText;
use crate::medium::{ReadAt, read_bytes};
use crate::volume::{Format, Unlocked};
use crate::{luks1, luks2, signature};

/// A LUKS header that was read and checked.
#[derive(Debug, Clone)]
pub enum Header {
    /// Version 1.
    Luks1(Box<luks1::Header>),
    /// Version 2.
    Luks2(Box<luks2::Header>),
}

/// How the copies of a LUKS2 header are read.
type ReadLuks2 = fn(&dyn ReadAt) -> Result<(luks2::Header, Option<luks2::Damage>)>;

impl Header {
    /// Reads the header of `image`, the header image if the header is detached. If one LUKS2 copy
    /// cannot be used, the damage is returned beside the header; `image` is not changed.
    pub fn read(image: &dyn ReadAt) -> Result<(Self, Option<luks2::Damage>)> {
        Self::read_with(image, luks2::Header::read)
    }

    /// As [`read`](Self::read), and does not refuse a header whose one LUKS2 copy cannot be used on
    /// an image that bears a foreign signature: [`luks2::Damage::foreign`] names it.
    pub fn read_beside_foreign(image: &dyn ReadAt) -> Result<(Self, Option<luks2::Damage>)> {
        Self::read_with(image, luks2::Header::read_beside_foreign)
    }

    fn read_with(
        image: &dyn ReadAt,
        read_luks2: ReadLuks2,
    ) -> Result<(Self, Option<luks2::Damage>)> {
        let foreign = || Ok(Error::NotLuks { found: signature::find_foreign(image)? });
        if image.len() < 8 {
            return Err(foreign()?);
        }
        let start = read_bytes(image, "the magic", 0, 8, 8);
        if start.as_ref().is_ok_and(|start| start.starts_with(&luks1::REENCRYPTED_MAGIC)) {
            return Err(Error::Luks1Reencrypted);
        }
        let magic = start.as_ref().is_ok_and(|start| start.starts_with(&luks1::MAGIC));
        if magic && start.is_ok_and(|start| start.ends_with(&1_u16.to_be_bytes())) {
            return Ok((Self::Luks1(Box::new(luks1::Header::read(image)?)), None));
        }
        if !magic && image.len() < luks2::HEADER_SIZES[0] {
            return Err(foreign()?);
        }
        // Even if the first bytes cannot be read, there may be a secondary copy.
        match read_luks2(image) {
            Ok((header, damage)) => Ok((Self::Luks2(Box::new(header)), damage)),
            Err(Error::NotLuks { .. }) => Err(foreign()?),
            Err(problem) => Err(problem),
        }
    }

    /// The version.
    pub fn format(&self) -> Format {
        match self {
            Self::Luks1(_) => Format::Luks1,
            Self::Luks2(_) => Format::Luks2,
        }
    }

    /// The UUID in its text form.
    pub fn uuid(&self) -> &FieldText {
        match self {
            Self::Luks1(header) => &header.uuid,
            Self::Luks2(header) => &header.binary.uuid,
        }
    }

    /// First byte of the data; 0 if the header is detached.
    pub fn data_offset(&self) -> u64 {
        match self {
            Self::Luks1(header) => header.data_offset(),
            Self::Luks2(header) => header.metadata.data_offset(),
        }
    }

    /// Tries `passphrase` on `keyslot`, or on all keyslots in their order. `image` must be the one
    /// that the header was read from.
    pub fn unlock(
        &self,
        image: &dyn ReadAt,
        passphrase: &[u8],
        keyslot: Option<u32>,
    ) -> Result<Unlocked> {
        match self {
            Self::Luks1(header) => header.unlock(image, passphrase, keyslot),
            Self::Luks2(header) => header.unlock(image, passphrase, keyslot),
        }
    }

    /// The least memory in bytes that unlocking takes: of `keyslot`, or of the keyslot that costs
    /// least. `None` if one of them takes next to nothing, or if there is none.
    pub fn memory_to_unlock(&self, keyslot: Option<u32>) -> Option<u64> {
        let keyslots = self.volume_keyslots().into_iter();
        self.least_memory(keyslots.filter(|number| keyslot.is_none_or(|it| it == *number)))
    }

    /// The least memory in bytes that one of these keyslots takes. `None` if that is next to nothing, or
    /// if none of them is there.
    pub fn least_memory(&self, keyslots: impl IntoIterator<Item = u32>) -> Option<u64> {
        let Self::Luks2(header) = self else { return None };
        let memory = |number: u32| match &header.metadata.keyslots.get(&number)?.kind {
            luks2::KeyslotKind::Luks2 { kdf, .. } => Some(kdf.memory_bytes().unwrap_or(0)),
            luks2::KeyslotKind::Other(_) => None,
        };
        keyslots.into_iter().filter_map(memory).min().filter(|bytes| *bytes > 0)
    }

    /// Unlocks with the volume key itself, which is checked against the header.
    pub fn unlock_with_volume_key(&self, key: &[u8]) -> Result<Unlocked> {
        match self {
            Self::Luks1(header) => header.unlock_with_volume_key(key),
            Self::Luks2(header) => header.unlock_with_volume_key(key),
        }
    }
}
