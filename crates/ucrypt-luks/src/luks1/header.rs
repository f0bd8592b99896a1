//! The LUKS1 header: 592 bytes at the start of the image, all numbers big-endian (LUKS on-disk
//! format 1.2.3, section 2.1).

use crate::area::{STRIPES, material_len};
use crate::error::{Error, Result};
use crate::fields::{FieldText, Fields, name, put_text, text};
use crate::hash::find_hash;
use crate::kdf::KEY_LEN_MAX;
use crate::medium::{ReadAt, read_bytes};
use crate::volume::SECTOR_BYTES;

/// The first six bytes of LUKS1 and of the first copy of LUKS2.
pub const MAGIC: [u8; 6] = *b"LUKS\xba\xbe";

/// What cryptsetup writes over [`MAGIC`] of a LUKS1 volume while it encrypts it with another key, so that
/// nobody opens the volume meanwhile (`NOMAGIC` in its `utils_reencrypt_luks1.c`).
pub const REENCRYPTED_MAGIC: [u8; 6] = *b"LUKS\xde\xad";

/// Length of the header in bytes, without the keyslot areas.
pub const HEADER_BYTES: usize = 592;

/// Number of keyslots.
pub const KEYSLOTS: usize = 8;

/// Length of the volume key digest in bytes.
pub const DIGEST_BYTES: usize = 20;

/// Length of every salt in bytes.
pub const SALT_BYTES: usize = 32;

const ACTIVE: u32 = 0x00ac_71f3;
const INACTIVE: u32 = 0x0000_dead;

pub(crate) const NAME_BYTES: usize = 32;
pub(crate) const UUID_BYTES: usize = 40;

/// A LUKS1 header that follows the rules of its format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The cipher, such as `aes`.
    pub cipher_name: String,
    /// Mode and IV, such as `xts-plain64`.
    pub cipher_mode: String,
    /// Hash of the PBKDF2s and of the anti-forensic splitter.
    pub hash: String,
    /// Start of the data, in 512-byte sectors; 0 if the header is detached.
    pub payload_offset: u32,
    /// Length of the volume key in bytes.
    pub key_bytes: u32,
    /// PBKDF2 digest of the volume key.
    pub digest: [u8; DIGEST_BYTES],
    /// Salt of the digest.
    pub digest_salt: [u8; SALT_BYTES],
    /// Iterations of the digest.
    pub digest_iterations: u32,
    /// The UUID in its text form.
    pub uuid: FieldText,
    /// The eight keyslots.
    pub keyslots: [Keyslot; KEYSLOTS],
}

/// Whether a keyslot holds a key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum State {
    /// It does.
    Active,
    /// It does not.
    #[default]
    Inactive,
    /// The header says neither: the word is damaged, and the keyslot may hold a key. It is neither
    /// tried nor used for another key, and the word stays.
    Unknown(u32),
}

impl State {
    fn from_word(word: u32) -> Self {
        match word {
            ACTIVE => Self::Active,
            INACTIVE => Self::Inactive,
            other => Self::Unknown(other),
        }
    }

    fn word(self) -> u32 {
        match self {
            Self::Active => ACTIVE,
            Self::Inactive => INACTIVE,
            Self::Unknown(word) => word,
        }
    }
}

/// One of the eight keyslots of a LUKS1 header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keyslot {
    /// Whether it holds a key.
    pub state: State,
    /// Iterations of PBKDF2.
    pub iterations: u32,
    /// Salt of PBKDF2.
    pub salt: [u8; SALT_BYTES],
    /// Start of the key material, in 512-byte sectors.
    pub material_offset: u32,
    /// Number of anti-forensic stripes.
    pub stripes: u32,
}

impl Keyslot {
    /// Whether it holds a key for certain.
    pub fn is_active(&self) -> bool {
        self.state == State::Active
    }

    /// Whether it holds no key for certain.
    pub fn is_free(&self) -> bool {
        self.state == State::Inactive
    }

    /// First byte of the key material.
    pub fn material_start(&self) -> u64 {
        u64::from(self.material_offset) * SECTOR_BYTES
    }
}

impl Header {
    /// Reads and checks the header at the start of `image`. The keyslot areas must lie inside it.
    pub fn read(image: &dyn ReadAt) -> Result<Self> {
        let bytes = read_bytes(image, "the LUKS1 header", 0, HEADER_BYTES as u64, 4096)?;
        let header = Self::parse(&bytes)?;
        let end = header.areas_end();
        if end > image.len() {
            let image_len = image.len();
            let what = "the keyslot areas of LUKS1".to_owned();
            return Err(Error::Truncated { what, offset: SECTOR_BYTES, end, image_len });
        }
        Ok(header)
    }

    /// Parses and checks the 592 bytes of a header.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let header = Self::parse_unchecked(bytes)?;
        header.check()?;
        Ok(header)
    }

    /// Parses the 592 bytes of a header that may break the rules of its format.
    pub(super) fn parse_unchecked(bytes: &[u8]) -> Result<Self> {
        let mut fields = Fields::new("LUKS1 header", bytes);
        if fields.take::<6>()? != MAGIC {
            return Err(Error::NotLuks { found: None });
        }
        let version = u16::from_be_bytes(fields.take()?);
        if version != 1 {
            return Err(Error::UnknownVersion(version));
        }
        Ok(Self {
            cipher_name: name("cipher name", &fields.take::<NAME_BYTES>()?)?,
            cipher_mode: name("cipher mode", &fields.take::<NAME_BYTES>()?)?,
            hash: name("hash", &fields.take::<NAME_BYTES>()?)?,
            payload_offset: u32::from_be_bytes(fields.take()?),
            key_bytes: u32::from_be_bytes(fields.take()?),
            digest: fields.take()?,
            digest_salt: fields.take()?,
            digest_iterations: u32::from_be_bytes(fields.take()?),
            uuid: text(&fields.take::<UUID_BYTES>()?),
            keyslots: parse_keyslots(&mut fields)?,
        })
    }

    /// The 592 bytes of the header.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.extend(MAGIC);
        out.extend(1_u16.to_be_bytes());
        for name in [&self.cipher_name, &self.cipher_mode, &self.hash] {
            put_text::<NAME_BYTES>(&mut out, name.as_bytes());
        }
        out.extend(self.payload_offset.to_be_bytes());
        out.extend(self.key_bytes.to_be_bytes());
        out.extend(self.digest);
        out.extend(self.digest_salt);
        out.extend(self.digest_iterations.to_be_bytes());
        put_text::<UUID_BYTES>(&mut out, self.uuid.as_bytes());
        for keyslot in &self.keyslots {
            out.extend(keyslot.state.word().to_be_bytes());
            out.extend(keyslot.iterations.to_be_bytes());
            out.extend(keyslot.salt);
            out.extend(keyslot.material_offset.to_be_bytes());
            out.extend(keyslot.stripes.to_be_bytes());
        }
        out
    }

    /// Refuses a header with a keyslot of which nobody knows whether it holds a key.
    pub fn check_states(&self) -> Result<()> {
        (0..KEYSLOTS as u32).try_for_each(|number| self.check_state(number))
    }

    /// As [`check_states`](Self::check_states), for one keyslot.
    pub(super) fn check_state(&self, number: u32) -> Result<()> {
        match self.keyslots.get(number as usize).map(|keyslot| keyslot.state) {
            Some(State::Unknown(word)) => Err(Error::damaged(
                format!("keyslot {number}"),
                format!(
                    "its state {word:#010x} is neither active nor inactive; it may hold a key and \
                     is left as it is, a header backup brings it back"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// The byte after the last keyslot area.
    pub fn areas_end(&self) -> u64 {
        let length = material_len(self.key_bytes, STRIPES);
        let ends = self.keyslots.iter().map(|keyslot| keyslot.material_start() + length);
        ends.max().unwrap_or(0)
    }

    /// First byte of the data; 0 if the header is detached.
    pub fn data_offset(&self) -> u64 {
        u64::from(self.payload_offset) * SECTOR_BYTES
    }

    /// Checks the key length and the hash, and that no key material overlaps the header, the data
    /// or other key material.
    pub(super) fn check(&self) -> Result<()> {
        let key_bytes = self.key_bytes;
        if key_bytes == 0 || key_bytes as usize > KEY_LEN_MAX {
            let problem = format!("{key_bytes} is not in 1 to {KEY_LEN_MAX}");
            return Err(Error::damaged("key bytes", problem));
        }
        if find_hash(&self.hash)?.size() < DIGEST_BYTES {
            return Err(Error::unsupported("LUKS1 hash", &self.hash));
        }
        let length = material_len(key_bytes, STRIPES);
        let mut starts = Vec::with_capacity(KEYSLOTS);
        for (number, keyslot) in self.keyslots.iter().enumerate() {
            let broken = |problem| Err(Error::damaged(format!("keyslot {number}"), problem));
            let start = keyslot.material_start();
            if keyslot.stripes != STRIPES {
                return broken(format!("{} stripes instead of {STRIPES}", keyslot.stripes));
            }
            if start < HEADER_BYTES as u64 {
                return broken(format!("its key material at byte {start} lies in the header"));
            }
            if self.payload_offset != 0 && start + length > self.data_offset() {
                let data = self.data_offset();
                return broken(format!(
                    "its key material, bytes {start} to {}, reaches into the data at {data}",
                    start + length
                ));
            }
            starts.push(start);
        }
        starts.sort_unstable();
        if starts.windows(2).any(|pair| pair[1] - pair[0] < length) {
            return Err(Error::damaged("keyslots", "their key material overlaps"));
        }
        Ok(())
    }
}

fn parse_keyslots(fields: &mut Fields<'_>) -> Result<[Keyslot; KEYSLOTS]> {
    let mut keyslots = [Keyslot::default(); KEYSLOTS];
    for keyslot in &mut keyslots {
        *keyslot = Keyslot {
            state: State::from_word(u32::from_be_bytes(fields.take()?)),
            iterations: u32::from_be_bytes(fields.take()?),
            salt: fields.take()?,
            material_offset: u32::from_be_bytes(fields.take()?),
            stripes: u32::from_be_bytes(fields.take()?),
        };
    }
    Ok(keyslots)
}
