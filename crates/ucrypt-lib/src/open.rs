//! Opening a volume.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use ucrypt_backend::{Backend, FileBackend};
use ucrypt_engine::VolumeOptions;
use ucrypt_image::header::{Found, HeaderImage, UnlockedImage, Wanted};
use ucrypt_image::key_file::{Part, Secret};
use ucrypt_image::memory;
use ucrypt_image::segments::segments;
use ucrypt_luks::{Flag, HeaderDigest, Unlocked};

use crate::error::{OpenError, ToOpenError};
use crate::key::Key;
use crate::plain::Plain;
use crate::stack::on_own_stack;
use crate::volume::{Format, Volume, facts};

/// Bytes of buffer memory if no other size is asked for, as of the command.
const MEMORY: usize = 16 << 20;

/// The sizes that can be asked for.
const MEMORY_RANGE: std::ops::RangeInclusive<usize> = 1 << 20..=1 << 32;

/// How a volume is opened. The defaults open a LUKS volume for reading and writing, alone.
///
/// ```
/// use ucrypt_lib::{Key, OpenError, OpenOptions};
/// # use ucrypt_lib::{FormatOptions, KeyDerivation};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let image = dir.path().join("disk.img");
/// # std::fs::File::create(&image)?.set_len(20 << 20)?;
/// # let fast = KeyDerivation::pbkdf2().iterations(1000);
/// # FormatOptions::new().key_derivation(fast).format(&image, Key::Passphrase(b"secret"))?;
/// let options = OpenOptions::new().read_only(true);
/// let error = options.open(&image, Key::Passphrase(b"guess")).unwrap_err();
/// assert!(matches!(error, OpenError::WrongKey(_)));
///
/// let volume = options.open(&image, Key::Passphrase(b"secret"))?;
/// assert_eq!(volume.size(), 4 << 20);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    read_only: bool,
    shared: bool,
    direct: bool,
    allow_discards: bool,
    strict: bool,
    header: Option<PathBuf>,
    digest: Option<String>,
    format: Option<Format>,
    keyslot: Option<u32>,
    memory: Option<usize>,
    plain: Option<Plain>,
}

impl OpenOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Refuse writes, and repair nothing. Others may read the image meanwhile.
    #[must_use]
    pub fn read_only(mut self, yes: bool) -> Self {
        self.read_only = yes;
        self
    }

    /// Open the image also while another program may write to it, for reading only. Of what is written
    /// meanwhile, parts may be read; [`Volume::is_in_use`] tells whether that can be.
    #[must_use]
    pub fn shared(mut self, yes: bool) -> Self {
        self.shared = yes;
        self
    }

    /// Bypass the page cache where the alignment of a request allows it.
    #[must_use]
    pub fn direct(mut self, yes: bool) -> Self {
        self.direct = yes;
        self
    }

    /// Let discards reach the image, which shows an onlooker the sectors that are unused.
    #[must_use]
    pub fn allow_discards(mut self, yes: bool) -> Self {
        self.allow_discards = yes;
        self
    }

    /// Refuse a header with anything that `luksFormat` does not make: null ciphers, further segments,
    /// fixed sizes, unknown flags, key derivations that cost next to nothing. For images of strangers.
    #[must_use]
    pub fn strict(mut self, yes: bool) -> Self {
        self.strict = yes;
        self
    }

    /// The file of a detached header.
    #[must_use]
    pub fn header(mut self, path: impl Into<PathBuf>) -> Self {
        self.header = Some(path.into());
        self
    }

    /// Open only the header with this digest, `sha256:` and 64 hex digits, as `ucrypt luksDump
    /// --header-digest` prints it. It is then read once.
    #[must_use]
    pub fn header_digest(mut self, digest: &str) -> Self {
        self.digest = Some(digest.into());
        self
    }

    /// Refuse a header of another version than this.
    #[must_use]
    pub fn format(mut self, format: Format) -> Self {
        self.format = Some(format);
        self
    }

    /// Try only this keyslot.
    #[must_use]
    pub fn keyslot(mut self, number: u32) -> Self {
        self.keyslot = Some(number);
        self
    }

    /// Bytes of buffer memory for calls and one server, 1 MiB to 4 GiB; 16 MiB if not said. Half of them are
    /// shared by all, the other half is for the server, and as much for each further one. Each of the eight
    /// calls that are carried out at the same time takes at most 2 MiB beside. Pages are taken when they are
    /// first used.
    #[must_use]
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// A volume without a header.
    #[must_use]
    pub fn plain(mut self, plain: Plain) -> Self {
        self.plain = Some(plain);
        self
    }

    /// Opens the volume in `image`, a file or a block device. If a copy of its LUKS2 header is damaged and
    /// the volume is opened for writing, the copy is written again where that can lose nothing;
    /// [`Volume::notices`] tells.
    ///
    /// A key derivation takes seconds, and up to gigabytes of memory: as its keyslot asks.
    ///
    /// # Errors
    /// See [`OpenError`]. Nothing was changed.
    pub fn open(&self, image: impl AsRef<Path>, key: Key<'_>) -> Result<Volume, OpenError> {
        let image = image.as_ref();
        guard_memory();
        on_own_stack(|| self.open_here(image, key)).map_err(|error| {
            OpenError::System(format!("cannot start a thread: {error}; raise the limit on threads"))
        })?
    }

    fn open_here(&self, image: &Path, key: Key<'_>) -> Result<Volume, OpenError> {
        let memory = self.memory.unwrap_or(MEMORY);
        if !MEMORY_RANGE.contains(&memory) {
            return Err(OpenError::Options(format!(
                "buffers take at least 1 MiB and at most 4 GiB, not {memory} bytes"
            )));
        }
        if self.plain.is_some() && self.is_about_a_header() {
            return Err(OpenError::Options(
                "a plain volume has no header: leave out what is said of the header".into(),
            ));
        }
        let read_only = self.read_only || self.shared;
        let file =
            FileBackend::open(image, self.image_options()).map_err(ToOpenError::to_open_error)?;
        let unlocked = match &self.plain {
            Some(plain) => UnlockedImage::plain(plain.unlock(key)?),
            None => self.unlock(&file, image, key)?,
        };
        unlocked.check_data(&image.display().to_string()).map_err(ToOpenError::to_open_error)?;
        let flags = &unlocked.volume.flags;
        let options = VolumeOptions {
            read_only,
            allow_discards: self.allow_discards || flags.contains(&Flag::AllowDiscards),
            policies: ucrypt_image::segments::policies(flags),
            shared_memory: memory / 2,
            ..VolumeOptions::default()
        };
        let file = Arc::new(file);
        let segments =
            segments(&unlocked.volume, file.limits().len).map_err(ToOpenError::to_open_error)?;
        let volume = ucrypt_engine::Volume::new(file.clone(), segments, options)
            .map_err(ToOpenError::to_open_error)?;
        let place = self.header.as_deref().unwrap_or(image);
        // Last, when nothing else can fail.
        let damage = unlocked
            .settle_damage((!read_only).then_some((&file, place)))
            .map_err(ToOpenError::to_open_error)?;
        let facts = facts(&volume, &unlocked.volume);
        let notices = file.notice().into_iter().chain(damage).collect();
        Ok(Volume::new(Arc::new(volume), facts, notices, file.is_in_use()))
    }

    fn is_about_a_header(&self) -> bool {
        self.strict
            || self.header.is_some()
            || self.digest.is_some()
            || self.format.is_some()
            || self.keyslot.is_some()
    }

    fn image_options(&self) -> ucrypt_backend::OpenOptions {
        ucrypt_backend::OpenOptions {
            read_only: self.read_only || self.shared,
            direct: self.direct,
            unlocked: false,
            shared: self.shared,
        }
    }

    /// Reads the header and unlocks it.
    fn unlock(
        &self,
        file: &FileBackend,
        image: &Path,
        key: Key<'_>,
    ) -> Result<UnlockedImage, OpenError> {
        let digest = self.digest.as_deref().map(HeaderDigest::from_str).transpose();
        let wanted = Wanted {
            header: self.header.as_deref(),
            digest: digest.map_err(OpenError::Options)?,
            format: self.format.map(Format::to_luks),
            strict: self.strict,
        };
        let found = Found::read(file, image, &wanted, self.image_options())
            .map_err(ToOpenError::to_open_error)?;
        let volume = {
            let medium = HeaderImage(found.detached.as_ref().unwrap_or(file));
            self.unlock_header(&found, &medium, key)?
        };
        Ok(UnlockedImage::of(found, volume))
    }

    fn unlock_header(
        &self,
        found: &Found,
        medium: &HeaderImage<'_>,
        key: Key<'_>,
    ) -> Result<Unlocked, OpenError> {
        let secret: Secret;
        let passphrase = match key {
            Key::VolumeKey(key) => {
                return found
                    .header
                    .unlock_with_volume_key(key)
                    .map_err(ToOpenError::to_open_error);
            }
            Key::Passphrase(passphrase) => passphrase,
            Key::File(path) => {
                secret = Part { offset: 0, size: None, line: false }
                    .of_file(path, "the key file")
                    .map_err(ToOpenError::to_open_error)?;
                &secret
            }
        };
        memory::check_unlock(&found.header, self.keyslot).map_err(ToOpenError::to_open_error)?;
        found
            .header
            .unlock(found.source(medium), passphrase, self.keyslot)
            .map_err(ToOpenError::to_open_error)
    }
}

/// Has the key derivations of this process ask for their memory, unless the program has them ask
/// somebody else already.
pub(crate) fn guard_memory() {
    ucrypt_luks::guard_memory(|bytes| memory::permit(bytes, &|| {}));
}
