//! Making a volume.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ucrypt_backend::{Backend, FileBackend};
use ucrypt_image::header::{HeaderImage, NewFile, is_same, lock_and_reserve, open_to_format};
use ucrypt_image::key_file::{Part, Secret};
use ucrypt_image::machine::{clock, machine};
use ucrypt_image::new_header::{check_apart, check_room, sector_size};
use ucrypt_image::secrecy;
use ucrypt_luks::{
    Cost, Header, NewVolume, Pbkdf, PbkdfKind, Tools, Write, find_hash, luks1, luks2, overwrite,
    random_volume_key, signature,
};
use ucrypt_sector::{CipherSpec, Mode};
use zeroize::Zeroizing;

use crate::error::{FormatError, OpenError, ToOpenError};
use crate::key::Key;
use crate::open::guard_memory;
use crate::stack::on_own_stack;
use crate::volume::Format;

/// Default length of the volume key in bits; XTS takes two keys.
const KEY_BITS: u32 = 256;

/// What a passphrase costs whoever guesses it. By default as much as this machine computes in two seconds,
/// with at most 1 GiB of memory (half of what the machine or its container has) and four threads.
///
/// ```
/// use std::time::Duration;
/// use ucrypt_lib::KeyDerivation;
///
/// let usual = KeyDerivation::argon2id();
/// let for_small_machines = KeyDerivation::argon2id().memory_kib(65536).time(Duration::from_millis(500));
/// let for_old_programs = KeyDerivation::pbkdf2();
/// # let _ = (usual, for_small_machines, for_old_programs);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyDerivation(Pbkdf);

impl KeyDerivation {
    /// Argon2id, the default of LUKS2.
    pub fn argon2id() -> Self {
        Self(Pbkdf::new(PbkdfKind::Argon2id))
    }

    /// Argon2i.
    pub fn argon2i() -> Self {
        Self(Pbkdf::new(PbkdfKind::Argon2i))
    }

    /// PBKDF2, which needs no memory. The only one that LUKS1 has.
    pub fn pbkdf2() -> Self {
        Self(Pbkdf::new(PbkdfKind::Pbkdf2))
    }

    /// The time that unlocking may take on this machine.
    #[must_use]
    pub fn time(mut self, time: Duration) -> Self {
        self.0.cost = Cost::Time(time);
        self
    }

    /// Measure nothing, and take this many iterations (PBKDF2, at least 1000) or passes (Argon2, at least
    /// 4).
    #[must_use]
    pub fn iterations(mut self, count: u32) -> Self {
        self.0.cost = Cost::Iterations(count);
        self
    }

    /// Most memory for Argon2, in KiB, 32 to 4 GiB; with [`KeyDerivation::iterations`], all of it.
    #[must_use]
    pub fn memory_kib(mut self, kib: u32) -> Self {
        self.0.memory_kib = kib;
        self
    }

    /// Most threads for Argon2; with [`KeyDerivation::iterations`], all of them.
    #[must_use]
    pub fn threads(mut self, count: u32) -> Self {
        self.0.lanes = count;
        self
    }
}

/// How a LUKS volume is made. The defaults are cryptsetup's: LUKS2, AES-256 in XTS mode, Argon2id, sectors
/// of 4096 bytes where they fit, the header at the start of the image.
///
/// ```
/// use ucrypt_lib::{FormatOptions, Key, KeyDerivation};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let image = dir.path().join("disk.img");
/// std::fs::File::create(&image)?.set_len(32 << 20)?;
/// // PBKDF2 with few iterations is for volumes whose passphrase is a key of random bytes.
/// let derivation = KeyDerivation::pbkdf2().iterations(1000);
/// let options = FormatOptions::new().key_derivation(derivation);
/// let made = options.format(&image, Key::Passphrase(&[7; 32]))?;
/// println!("made the volume {}", made.uuid);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FormatOptions {
    version: Format,
    cipher: String,
    key_bits: Option<u32>,
    volume_key: Option<Secret>,
    hash: String,
    key_derivation: Option<KeyDerivation>,
    sector_size: Option<u32>,
    label: String,
    uuid: Option<String>,
    data_offset: Option<u64>,
    header: Option<PathBuf>,
    overwrite: bool,
}

impl std::fmt::Debug for FormatOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FormatOptions")
            .field("version", &self.version)
            .field("cipher", &self.cipher)
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// A volume that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Formatted {
    /// The UUID of its header.
    pub uuid: String,
    /// Where the data starts in the image, in bytes.
    pub data_offset: u64,
}

impl FormatOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self {
            version: Format::Luks2,
            cipher: "aes-xts-plain64".into(),
            key_bits: None,
            volume_key: None,
            hash: "sha256".into(),
            key_derivation: None,
            sector_size: None,
            label: String::new(),
            uuid: None,
            data_offset: None,
            header: None,
            overwrite: false,
        }
    }

    /// [`Format::Luks1`], for programs that know no other, or [`Format::Luks2`].
    #[must_use]
    pub fn version(mut self, version: Format) -> Self {
        self.version = version;
        self
    }

    /// Cipher, mode and IV in dm-crypt's notation, such as `serpent-xts-plain64`.
    #[must_use]
    pub fn cipher(mut self, spec: &str) -> Self {
        self.cipher = spec.into();
        self
    }

    /// Length of the volume key in bits; 256 if not said, and 512 for XTS.
    #[must_use]
    pub fn key_bits(mut self, bits: u32) -> Self {
        self.key_bits = Some(bits);
        self
    }

    /// The volume key, instead of a random one. The copy is wiped.
    #[must_use]
    pub fn volume_key(mut self, key: &[u8]) -> Self {
        self.volume_key = Some(Zeroizing::new(key.to_vec()));
        self
    }

    /// The hash of PBKDF2, of the keyslot and of the digest; `sha256` if not said.
    #[must_use]
    pub fn hash(mut self, name: &str) -> Self {
        self.hash = name.into();
        self
    }

    /// The key derivation of the passphrase.
    #[must_use]
    pub fn key_derivation(mut self, derivation: KeyDerivation) -> Self {
        self.key_derivation = Some(derivation);
        self
    }

    /// Bytes that are encrypted as one: 512, 1024, 2048 or 4096. LUKS1 has only 512. The length of the image
    /// has to be a multiple of more than 512.
    #[must_use]
    pub fn sector_size(mut self, bytes: u32) -> Self {
        self.sector_size = Some(bytes);
        self
    }

    /// The label of a LUKS2 header, at most 47 bytes; a longer one is refused.
    #[must_use]
    pub fn label(mut self, label: &str) -> Self {
        self.label = label.into();
        self
    }

    /// The UUID, instead of a random one.
    #[must_use]
    pub fn uuid(mut self, uuid: &str) -> Self {
        self.uuid = Some(uuid.into());
        self
    }

    /// Where the data starts in the image, in bytes, a multiple of 4096.
    #[must_use]
    pub fn data_offset(mut self, bytes: u64) -> Self {
        self.data_offset = Some(bytes);
        self
    }

    /// Put the header into this file, which is made if it does not exist: the image then looks like noise.
    #[must_use]
    pub fn header(mut self, path: impl Into<PathBuf>) -> Self {
        self.header = Some(path.into());
        self
    }

    /// Make the volume although the image has a file system, a volume or something else on it, which is
    /// lost then.
    #[must_use]
    pub fn overwrite(mut self, yes: bool) -> Self {
        self.overwrite = yes;
        self
    }

    /// Makes the volume in `image`, a file or a block device that nobody else uses, with one keyslot that
    /// `key` opens: a passphrase or a key file. All that was in the image is lost.
    ///
    /// # Errors
    /// See [`FormatError`]: nothing was changed, but for [`FormatError::Unfinished`].
    pub fn format(&self, image: impl AsRef<Path>, key: Key<'_>) -> Result<Formatted, FormatError> {
        let image = image.as_ref();
        guard_memory();
        on_own_stack(|| self.format_here(image, key)).map_err(|error| {
            let text = format!("cannot start a thread: {error}; raise the limit on threads");
            OpenError::System(text)
        })?
    }

    fn format_here(&self, image: &Path, key: Key<'_>) -> Result<Formatted, FormatError> {
        let elsewhere = self.header.as_deref().filter(|header| !is_same(header, image));
        if let Key::File(path) = key {
            check_apart([Some(image), elsewhere].into_iter().flatten(), &[path])
                .map_err(ToOpenError::to_open_error)?;
        }
        let secret: Secret;
        let passphrase = match key {
            Key::Passphrase(passphrase) => passphrase,
            Key::File(path) => {
                secret = Part { offset: 0, size: None, line: false }
                    .of_file(path, "the key file")
                    .map_err(ToOpenError::to_open_error)?;
                &secret
            }
            Key::VolumeKey(_) => {
                return Err(refused(
                    "a keyslot is opened by a passphrase or a key file; FormatOptions::volume_key takes \
                     the volume key",
                ));
            }
        };
        let data = open_to_format(image).map_err(ToOpenError::to_open_error)?;
        // The file itself is made when all is ready to be written.
        let new_header = elsewhere.map_or(Ok(false), NewFile::is_possible);
        let new_header = new_header.map_err(ToOpenError::to_open_error)?;
        let mut header = elsewhere
            .filter(|_| !new_header)
            .map(open_to_format)
            .transpose()
            .map_err(ToOpenError::to_open_error)?;
        let path = elsewhere.unwrap_or(image);
        let found = match (&header, new_header) {
            (_, true) => Vec::new(),
            (medium, false) => signature::find(&HeaderImage(medium.as_ref().unwrap_or(&data)))
                .map_err(ToOpenError::to_open_error)?,
        };
        if let Some(first) = found.first().filter(|_| !self.overwrite) {
            let image = path.display().to_string();
            return Err(FormatError::NotEmpty { image, found: first.name.to_string() });
        }
        let volume = self.describe(elsewhere.is_some())?;
        let (made, writes) = self.make(&volume, passphrase, image, &data)?;
        let mut new_file = None;
        if new_header {
            let made = NewFile::create_opened(path).map_err(ToOpenError::to_open_error)?;
            (new_file, header) = (Some(made.0), Some(made.1));
        }
        let medium = header.as_ref().unwrap_or(&data);
        check_room(&made, &writes, medium, path, elsewhere.is_some())
            .map_err(ToOpenError::to_open_error)?;
        let _lock = lock_and_reserve(medium, path, &writes).map_err(ToOpenError::to_open_error)?;
        let lost = match elsewhere {
            None => "the image holds no volume now: what was there is lost, format it again",
            Some(_) if new_header => "there is no header; the image is as it was",
            Some(_) => {
                "the file holds no header now: what was there is lost; the image is as it was"
            }
        };
        overwrite(&HeaderImage(medium), &found, &writes)
            .map_err(|error| FormatError::Unfinished(format!("{error}; {lost}")))?;
        // The header is complete.
        new_file
            .map_or(Ok(()), NewFile::keep)
            .map_err(|error| FormatError::Unfinished(error.to_string()))?;
        Ok(Formatted { uuid: made.uuid().to_string(), data_offset: made.data_offset() })
    }

    /// The new volume, with its key.
    fn describe(&self, detached: bool) -> Result<NewVolume, FormatError> {
        if self.label.len() > luks2::LABEL_MAX {
            let (len, max) = (self.label.len(), luks2::LABEL_MAX);
            return Err(refused(&format!("a label has at most {max} bytes, not {len}")));
        }
        let cipher: CipherSpec =
            self.cipher.parse().map_err(|error| refused(&format!("{error}")))?;
        let doubled = if cipher.mode() == Mode::Xts { 2 } else { 1 };
        let bits = self.key_bits.unwrap_or(KEY_BITS * doubled);
        if !bits.is_multiple_of(8) {
            return Err(refused("the key size has to be a multiple of 8 bits"));
        }
        let volume_key = match &self.volume_key {
            Some(key) if self.key_bits.is_some() && key.len() as u32 != bits / 8 => {
                let text = format!("the volume key has {} bits, {bits} were said", key.len() * 8);
                return Err(refused(&text));
            }
            Some(key) => key.clone(),
            None => random_volume_key(bits / 8, &mut secrecy::random)
                .map_err(ToOpenError::to_open_error)?,
        };
        let hash = find_hash(&self.hash).map_err(|error| OpenError::Options(error.to_string()))?;
        let usual = match self.version {
            Format::Luks1 => KeyDerivation::pbkdf2(),
            _ => KeyDerivation::argon2id(),
        };
        let pbkdf = Pbkdf { hash, ..self.key_derivation.unwrap_or(usual).0 };
        Ok(NewVolume {
            cipher,
            volume_key,
            hash,
            pbkdf,
            keyslot: 0,
            uuid: self.uuid.clone(),
            data_offset: self.data_offset,
            data_alignment: None,
            area: None,
            detached,
        })
    }

    /// The new header, and the writes that put it on the medium.
    fn make(
        &self,
        volume: &NewVolume,
        passphrase: &[u8],
        image: &Path,
        data: &FileBackend,
    ) -> Result<(Header, Vec<Write>), FormatError> {
        let (mut random, mut clock) = (secrecy::random, clock());
        let mut tools = Tools { random: &mut random, clock: &mut clock, machine: machine() };
        match self.version {
            Format::Luks1 => {
                if self.sector_size.is_some_and(|size| size != 512) || !self.label.is_empty() {
                    return Err(refused("LUKS1 has no sector size and no label; use LUKS2"));
                }
                let (header, writes) = luks1::format(volume, passphrase, &mut tools)
                    .map_err(ToOpenError::to_open_error)?;
                Ok((Header::Luks1(Box::new(header)), writes))
            }
            Format::Luks2 => {
                let len = data.limits().len;
                let sector_size = sector_size(self.sector_size, &volume.cipher, image, len)
                    .map_err(ToOpenError::to_open_error)?;
                let options = luks2::Options {
                    label: self.label.clone(),
                    subsystem: String::new(),
                    sector_size,
                    metadata_size: None,
                    keyslots_size: None,
                };
                let (header, writes) = luks2::format(volume, &options, passphrase, &mut tools)
                    .map_err(ToOpenError::to_open_error)?;
                Ok((Header::Luks2(Box::new(header)), writes))
            }
            Format::Plain => Err(refused("a plain volume has no header, and need not be made")),
        }
    }
}

fn refused(why: &str) -> FormatError {
    FormatError::Refused(OpenError::Options(why.into()))
}
