//! Turns a command line into a volume: opens the image, reads the header, unlocks, joins the
//! layers.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use clap::ValueEnum;
use serde::Serialize;
use ucrypt_backend::model::ModelBackend;
use ucrypt_backend::{Backend, FileBackend, OpenOptions, ZeroBackend};
use ucrypt_engine::{Volume, VolumeOptions};
pub(crate) use ucrypt_image::header::is_same;
use ucrypt_image::header::{Found, UnlockedImage, Wanted};
use ucrypt_image::segments::segments;
use ucrypt_luks::luks2::Damage;
use ucrypt_luks::{Flag, Format, Header, HeaderDigest, ReadAt, Unlocked, signature};
use zeroize::Zeroizing;

use crate::failure::{Failure, no_random};
use crate::json_path::bytes_of;
use crate::keyring;
use crate::luks::{HeaderImage, confirm, confirm_at};
use crate::memory;
use crate::passphrase::{KeyArgs, Secret, Source, read_volume_key};
use crate::stdio::{say, say_line, say_verbose};
use crate::token_unlock::TokenUnlockArgs;
use crate::{secrecy, size};

mod again;
mod dispatch;
mod plain;

pub(crate) use again::{Again, Resume};
use dispatch::DispatchArgs;
pub(crate) use dispatch::from_flags as policies_of;
use plain::{Asked, PlainArgs};

/// Bytes of buffer memory of a served volume.
pub(crate) const MEMORY: usize = 16 << 20;

/// Which volume, and how it is opened.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Volume")]
pub(crate) struct VolumeArgs {
    /// Kind of volume
    #[arg(short = 'M', long = "type", value_enum, value_name = "TYPE")]
    kind: Option<Kind>,
    #[command(flatten)]
    key: KeyArgs,
    /// Ask by systemd-ask-password, whose agents ask on the console, on the boot screen or at a terminal
    #[arg(long, conflicts_with_all = ["key_file", "key_description"])]
    ask_password: bool,
    /// How often a passphrase may be tried at a terminal; 0 is once
    #[arg(short = 'T', long, value_name = "COUNT", default_value_t = 3)]
    tries: u32,
    /// Ask for the passphrase twice
    #[arg(short = 'y', long)]
    verify_passphrase: bool,
    /// Try only this keyslot
    #[arg(short = 'S', long, value_name = "NUMBER")]
    key_slot: Option<u32>,
    /// Use the volume key in this file instead of a passphrase
    #[arg(long, alias = "master-key-file", value_name = "FILE")]
    volume_key_file: Option<PathBuf>,
    /// Use the volume key that the kernel's keyring holds under this name, as a key of the type user
    #[arg(long, value_name = "NAME", conflicts_with = "volume_key_file")]
    volume_key_keyring: Option<String>,
    /// Refuse writes; repair nothing
    #[arg(short = 'r', long)]
    readonly: bool,
    /// Where the LUKS header is, if not on the image
    #[arg(long, value_name = "FILE")]
    header: Option<PathBuf>,
    /// Open only the header with this digest, which luksDump --header-digest prints; it is read once
    #[arg(long, value_name = "sha256:HEX", value_parser = HeaderDigest::from_str)]
    header_digest: Option<HeaderDigest>,
    /// Refuse a header with anything that luksFormat does not make: null ciphers, further segments,
    /// fixed sizes, unknown flags, key derivations that cost next to nothing
    #[arg(long)]
    strict: bool,
    /// Pass discards to the image; tells an onlooker which sectors are unused
    #[arg(long)]
    allow_discards: bool,
    /// Bypass the page cache where alignment allows it
    #[arg(long)]
    direct: bool,
    /// Use something else than an image, under a key that is thrown away: mem:SIZE, zero:SIZE, or
    /// model:NAME,SIZE for memory with the timing of a device
    #[arg(long, value_name = "KIND:SIZE", value_parser = Scratch::from_str)]
    backend: Option<Scratch>,
    /// Most memory for buffers, however many cores there are; 16M if not given, 8M behind a loop
    /// device, 24M for FUSE over io_uring
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    memory: Option<usize>,
    /// Ask nothing but the passphrase, and do not warn
    #[arg(short = 'q', long)]
    batch_mode: bool,
    /// Accepted; keys are never put into the kernel's keyring
    #[arg(long)]
    disable_keyring: bool,
    /// Nothing is written, so the image may be in use or not writable
    #[arg(skip)]
    looks: bool,
    /// Bytes of buffer memory that the queues share
    #[arg(skip)]
    shared_memory: usize,
    /// Only the header is read, which needs no lock
    #[arg(skip)]
    unlocked: bool,
    #[command(flatten)]
    token: TokenUnlockArgs,
    #[command(flatten)]
    dispatch: DispatchArgs,
    #[command(flatten)]
    plain: PlainArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// A header of either version
    Luks,
    Luks1,
    Luks2,
    /// No header: dm-crypt with a key from a passphrase or a file
    Plain,
}

/// A backend without an image.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Scratch {
    Memory(u64),
    Zero(u64),
    /// Name and length.
    Model(String, u64),
}

fn parse_memory(text: &str) -> Result<usize, String> {
    let bytes = size::parse(text)?;
    if !(1 << 20..=1 << 32).contains(&bytes) {
        return Err("buffers take at least 1M and at most 4G".into());
    }
    usize::try_from(bytes).map_err(|error| error.to_string())
}

impl FromStr for Scratch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, len) = text.split_once(':').unwrap_or((text, ""));
        match kind {
            "mem" => Ok(Self::Memory(size::parse(len)?)),
            "zero" => Ok(Self::Zero(size::parse(len)?)),
            "model" => {
                let (name, len) = len
                    .split_once(',')
                    .ok_or_else(|| format!("'{text}' names no size; use model:NAME,SIZE"))?;
                Ok(Self::Model(name.into(), size::parse(len)?))
            }
            _ => Err(format!("'{text}' is no backend; use mem:SIZE, zero:SIZE or model:NAME,SIZE")),
        }
    }
}

/// Where the key of a volume comes from.
#[derive(Debug)]
pub(crate) enum KeySource {
    /// From the arguments: prompt, key file, volume key file.
    Arguments,
    /// Known already: the volume key, or the table line that contains it.
    Known(Secret),
}

/// Properties of a volume, for people and scripts.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Facts {
    /// luks1, luks2, plain or raw.
    pub(crate) r#type: &'static str,
    pub(crate) image: String,
    pub(crate) backend: String,
    /// In dm-crypt's notation; `none` for a raw volume.
    pub(crate) cipher: String,
    pub(crate) key_bits: usize,
    pub(crate) sector_size: u32,
    /// Where the data starts in the image, in bytes.
    pub(crate) offset: u64,
    /// In bytes.
    pub(crate) size: u64,
    pub(crate) read_only: bool,
    pub(crate) discards: bool,
    pub(crate) dispatch: String,
    /// The file of a detached header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) header: Option<String>,
    /// The path of the image, byte for byte, if it is no UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) image_bytes: Option<Vec<u8>>,
    /// The same of the file of a detached header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) header_bytes: Option<Vec<u8>>,
    /// The digest of a pinned header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) header_digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keyslot: Option<u32>,
}

impl Facts {
    /// The serial number of the disk in a virtual machine: the first 20 hex digits of the UUID, or
    /// [`Facts::identity`] if there is no UUID.
    pub(crate) fn serial(&self) -> String {
        match &self.uuid {
            Some(uuid) => uuid.chars().filter(char::is_ascii_hexdigit).take(20).collect(),
            None => format!("{:016x}", self.identity()),
        }
    }

    /// A number that differs between volumes and is the same each time a volume is opened: a hash
    /// of the image's path, the cipher, the layout and the UUID. The key has no part in it.
    pub(crate) fn identity(&self) -> u64 {
        let image =
            std::fs::canonicalize(&self.image).unwrap_or_else(|_| self.image.clone().into());
        let layout = format!("{} {} {} {}", self.cipher, self.sector_size, self.offset, self.size);
        let uuid = self.uuid.as_deref().unwrap_or_default();
        let parts = [image.as_os_str().as_encoded_bytes(), layout.as_bytes(), uuid.as_bytes()];
        // FNV-1a, whose result is the same in all versions.
        let bytes = parts.iter().flat_map(|part| part.iter().chain(&[0]));
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

/// A volume ready to be served.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) volume: Arc<Volume>,
    pub(crate) facts: Facts,
    /// The length in bytes that the header or the user gives. Without one, the volume ends where
    /// its image does.
    pub(crate) fixed_len: Option<u64>,
    /// What a suspended volume needs to take its key back; `None` without a LUKS header.
    pub(crate) resume: Option<Resume>,
}

impl Opened {
    /// Whether a header has told that the key is the right one, or there is no key.
    pub(crate) fn is_key_verified(&self) -> bool {
        self.facts.r#type != "plain"
    }
}

impl VolumeArgs {
    /// For an action that reads data from standard input, which then supplies no passphrase.
    pub(crate) fn with_data_on_stdin(mut self) -> Self {
        self.key.stdin_is_data = true;
        self
    }

    /// For an action that serves the volume by `exports`, with this many bytes of buffer memory if the
    /// user names no other size. All queues share one part, and each export divides as large a part
    /// among its queues.
    pub(crate) fn for_serving(mut self, memory: usize, exports: usize) -> Self {
        self.shared_memory = self.memory.unwrap_or(memory) / (1 + exports);
        self
    }

    /// With the wish for an agent where passphrases are read, if it is not there yet.
    fn by_agent(&self) -> Option<Self> {
        let is_new = self.ask_password && !self.key.by_agent;
        is_new.then(|| {
            let mut asking = self.clone();
            asking.key.by_agent = true;
            asking
        })
    }

    /// For a volume that is mounted read-only.
    pub(crate) fn for_reading(mut self) -> Self {
        self.readonly = true;
        self
    }

    /// Whether writes are refused.
    pub(crate) fn is_readonly(&self) -> bool {
        self.readonly
    }

    /// For an action that writes nothing, neither data nor header.
    pub(crate) fn for_looking(mut self) -> Self {
        (self.looks, self.readonly) = (true, true);
        self
    }

    /// Opens the image and unlocks it. If the image is writable, repairs a damaged header copy:
    /// last, when nothing else can fail.
    pub(crate) fn open(&self, image: Option<&Path>, key: KeySource) -> Result<Opened, Failure> {
        if let Some(asking) = self.by_agent() {
            return asking.open(image, key);
        }
        secrecy::lock_memory();
        match (image, &self.backend) {
            (Some(_), Some(_)) => {
                Err(Failure::wrong("--backend replaces the image: name only one"))
            }
            (None, None) => Err(Failure::wrong("name an image, or --backend mem:SIZE")),
            (None, Some(scratch)) => self.open_scratch(scratch),
            (Some(image), None) => {
                let file = self.open_image(image)?;
                // Only here: a header is read without either.
                if let Some(notice) = file.notice() {
                    say_line(notice);
                }
                // An absolute path, which is right in any directory.
                let image = image.canonicalize().unwrap_or_else(|_| image.into());
                let name = image.display().to_string();
                if self.is_raw() {
                    return self.join(Arc::new(file), None, name);
                }
                if file.is_in_use() {
                    say_line(format_args!(
                        "{name} is in use; of what is written meanwhile, parts may be read"
                    ));
                }
                let unlocked = self.unlock(&file, &image, key)?;
                unlocked.check_data(&name)?;
                let file = Arc::new(file);
                let mut opened = self.join(file.clone(), Some(&unlocked.volume), name)?;
                opened.facts.image_bytes = bytes_of(&image);
                let detached = self.header.as_deref().filter(|_| unlocked.detached.is_some());
                if let Some(header) = detached {
                    let header = header.canonicalize().unwrap_or_else(|_| header.into());
                    opened.facts.header = Some(header.display().to_string());
                    opened.facts.header_bytes = bytes_of(&header);
                }
                opened.facts.header_digest = self.header_digest.map(|digest| digest.to_string());
                let place = self.header.as_deref().unwrap_or(&image);
                tell_of_damage(&unlocked, (!self.readonly).then_some((&file, place)))?;
                Ok(opened)
            }
        }
    }

    /// Unlocks as [`VolumeArgs::open`] does, and returns only the volume key, or the line of a
    /// table.
    pub(crate) fn volume_key(&self, image: Option<&Path>) -> Result<Secret, Failure> {
        if let Some(asking) = self.by_agent() {
            return asking.volume_key(image);
        }
        let Some(image) = image else {
            // A volume without an image gets a random key when it is opened.
            return Ok(Secret::default());
        };
        if self.is_raw() {
            return Ok(Secret::default());
        }
        secrecy::lock_memory();
        let file = self.open_image(image)?;
        if self.plain.is_table() {
            let line = self.plain.table_line()?;
            PlainArgs::parse_table(&line)?.volume_len(file.limits().len)?;
            return Ok(line);
        }
        let unlocked = self.unlock(&file, image, KeySource::Arguments)?;
        unlocked.check_data(&image.display().to_string())?;
        // Refuse a volume that does not fit here, where the user sees the message.
        unlocked.volume.volume_len(file.limits().len)?;
        Ok(unlocked.volume.volume_key)
    }

    /// Tests whether the passphrase or key opens the volume, without locking the image. The data
    /// may be missing: the test accepts a header backup and the file of a detached header. With
    /// `unbound`, or if its keyslot is named, the passphrase may also be that of a key that encrypts
    /// nothing here.
    pub(crate) fn test(self, image: Option<&Path>, unbound: bool) -> Result<(), Failure> {
        if let Some(asking) = self.by_agent() {
            return asking.test(image, unbound);
        }
        let looking = Self { unlocked: true, ..self.for_looking() };
        let Some(image) = image.filter(|_| !looking.is_raw()) else {
            return looking.volume_key(image).map(drop);
        };
        secrecy::lock_memory();
        let file = looking.open_image(image)?;
        if unbound && looking.token.is_given() {
            return Err(Failure::wrong(
                "--unbound has no effect beside tokens, which open the volume",
            ));
        }
        if looking.volume_key_file.is_some() || looking.volume_key_keyring.is_some() {
            return tell_of_damage(&looking.unlock(&file, image, KeySource::Arguments)?, None);
        }
        let found = looking.find_header(&file, image)?;
        let medium = HeaderImage(found.detached.as_ref().unwrap_or(&file));
        let (source, name) = (found.source(&medium), image.display().to_string());
        let keyslot = looking.key_slot;
        memory::check_unlock(&found.header, keyslot)?;
        if unbound || !looking.unlocks_by_token(&found.header, source)? {
            let opened = looking.ask(&name, looking.place(image), |passphrase| {
                if unbound {
                    found.header.open_key(source, passphrase, keyslot)
                } else {
                    found.header.test_passphrase(source, passphrase, keyslot)
                }
            })?;
            say_verbose(format_args!("Key slot {} unlocked.", opened.keyslot));
        }
        tell_of_unrepaired(found.damage.as_ref());
        Ok(())
    }

    /// Whether `--backend` replaces the image.
    pub(crate) fn has_backend(&self) -> bool {
        self.backend.is_some()
    }

    /// Whether there is no encryption at all: the baseline of measurements.
    fn is_raw(&self) -> bool {
        self.plain.cipher.as_deref() == Some("none")
    }

    fn open_image(&self, image: &Path) -> Result<FileBackend, Failure> {
        Ok(FileBackend::open(image, self.open_options())?)
    }

    fn open_options(&self) -> OpenOptions {
        OpenOptions {
            read_only: self.readonly,
            direct: self.direct,
            unlocked: self.unlocked,
            shared: self.looks,
        }
    }

    fn unlock(
        &self,
        image: &FileBackend,
        path: &Path,
        key: KeySource,
    ) -> Result<UnlockedImage, Failure> {
        let name = &path.display().to_string();
        if self.kind == Some(Kind::Plain) || self.plain.is_table() {
            if matches!(key, KeySource::Arguments) && !self.plain.is_table() {
                self.warn_of_signature(image, name)?;
            }
            let passphrase = self.verified_key(&key);
            let asked = Asked {
                image: name,
                passphrase: &passphrase,
                volume_key_file: self.volume_key_file.as_deref(),
                batch_mode: self.batch_mode,
            };
            let volume = self.plain.unlock(&asked, key)?;
            return Ok(UnlockedImage::plain(volume));
        }
        let found = self.find_header(image, path)?;
        let medium = HeaderImage(found.detached.as_ref().unwrap_or(image));
        let volume = self.unlock_header(&found.header, found.source(&medium), path, key)?;
        Ok(UnlockedImage::of(found, volume))
    }

    /// Reads the header, and refuses one that the user has not asked for.
    fn find_header(&self, image: &FileBackend, path: &Path) -> Result<Found, Failure> {
        let wanted = Wanted {
            header: self.header.as_deref(),
            digest: self.header_digest,
            format: match self.kind {
                Some(Kind::Luks1) => Some(Format::Luks1),
                Some(Kind::Luks2) => Some(Format::Luks2),
                Some(Kind::Luks | Kind::Plain) | None => None,
            },
            strict: self.strict,
        };
        Found::read(image, path, &wanted, self.open_options())
            .map_err(|error| Failure::from(error).of_header(self.header.as_deref()))
    }

    fn unlock_header(
        &self,
        header: &Header,
        source: &dyn ReadAt,
        path: &Path,
        key: KeySource,
    ) -> Result<Unlocked, Failure> {
        if let KeySource::Known(key) = key {
            return Ok(header.unlock_with_volume_key(&key)?);
        }
        if let Some(description) = &self.volume_key_keyring {
            let key = keyring::volume_key(description)?;
            return Ok(header.unlock_with_volume_key(&key)?);
        }
        if let Some(path) = &self.volume_key_file {
            // The whole file if no keyslot is left that tells the length.
            let told = || header.volume_key_len().map(u64::from);
            let key = read_volume_key(path, self.plain.key_len()?.or_else(told))?;
            return Ok(header.unlock_with_volume_key(&key)?);
        }
        memory::check_unlock(header, self.key_slot)?;
        let tokens = self.token.unlock(header, source, self.key_slot, self.batch_mode);
        if let Some(unlocked) = tokens? {
            return Ok(told(unlocked));
        }
        let open = |key: &[u8]| header.unlock(source, key, self.key_slot);
        Ok(told(self.ask(&path.display().to_string(), self.place(path), open)?))
    }

    /// Where the header of an image is.
    fn place<'a>(&'a self, image: &'a Path) -> &'a Path {
        self.header.as_deref().unwrap_or(image)
    }

    /// Whether a token opens the volume.
    fn unlocks_by_token(&self, header: &Header, source: &dyn ReadAt) -> Result<bool, Failure> {
        let unlocked = self.token.unlock(header, source, self.key_slot, self.batch_mode)?;
        Ok(unlocked.map(told).is_some())
    }

    /// Asks for the passphrase of an image until it opens the header in `place`, as often as the user wants.
    fn ask<T>(
        &self,
        image: &str,
        place: &Path,
        open: impl Fn(&[u8]) -> ucrypt_luks::Result<T>,
    ) -> Result<T, Failure> {
        try_passphrases((image, place), &self.verified_key(&KeySource::Arguments), self.tries, open)
    }

    /// Where the passphrase comes from. Warns if `--verify-passphrase` has no effect on it.
    fn verified_key(&self, key: &KeySource) -> KeyArgs {
        let is_asked = matches!(key, KeySource::Arguments) && self.verify_passphrase;
        self.key.verified(is_asked, self.batch_mode)
    }

    /// The files that the volume is made of and opened with.
    pub(crate) fn files<'a>(&'a self, image: Option<&'a Path>) -> impl Iterator<Item = &'a Path> {
        let key = self.key.key_file.as_deref();
        let named = [image, self.header.as_deref(), key, self.volume_key_file.as_deref()];
        named.into_iter().flatten()
    }

    /// Where the header is, and the flags that `--persistent` stores in it.
    pub(crate) fn flags(&self) -> (Option<&Path>, Vec<Flag>) {
        let discards = self.allow_discards.then_some(Flag::AllowDiscards);
        (self.header.as_deref(), discards.into_iter().chain(self.dispatch.flags()).collect())
    }

    /// Warns of a header or other signature on the image, because a plain volume lies over
    /// everything. Asks for consent if the volume may be written to. As in cryptsetup, does nothing
    /// if the data starts further back: the user chose that on purpose.
    fn warn_of_signature(&self, image: &FileBackend, name: &str) -> Result<(), Failure> {
        if self.batch_mode || !self.plain.starts_at_zero() {
            return Ok(());
        }
        let found = match Header::read(&HeaderImage(image)) {
            Ok((header, _)) => format!("a {} header", header.format().name()),
            // A header that cannot be read, or of which a copy is left, counts too: `repair` or
            // another program may know it.
            Err(_) => match signature::find(&HeaderImage(image))?.first() {
                Some(found) => format!("a '{}' {} signature", found.name, found.kind()),
                None => return Ok(()),
            },
        };
        say(&format!("WARNING: {name} contains {found}, which --type plain does not look at.\n"));
        if self.readonly {
            return Ok(());
        }
        let warning = format!("Writing to the volume will destroy what {name} contains.");
        match self.key.source() {
            Ok(Source::Terminal(terminal)) => confirm_at(&terminal, &warning),
            _ => confirm(&warning, false),
        }
    }

    /// A volume without an image, under a random key.
    fn open_scratch(&self, scratch: &Scratch) -> Result<Opened, Failure> {
        let (backend, name): (Arc<dyn Backend>, _) = match *scratch {
            Scratch::Memory(len) => {
                let failed = |error| Failure::memory(format!("cannot take {len} bytes: {error}"));
                (Arc::new(ucrypt_backend::memory(len).map_err(failed)?), format!("mem:{len}"))
            }
            Scratch::Zero(len) => (Arc::new(ZeroBackend::new(len)), format!("zero:{len}")),
            Scratch::Model(ref name, len) => {
                let backend = ModelBackend::new(name, len).map_err(Failure::wrong)?;
                (Arc::new(backend), format!("model:{name},{len}"))
            }
        };
        if self.is_raw() {
            return self.join(backend, None, name);
        }
        let unlocked = self.plain.throwaway()?;
        self.join(backend, Some(&unlocked), name)
    }

    fn join(
        &self,
        backend: Arc<dyn Backend>,
        unlocked: Option<&Unlocked>,
        image: String,
    ) -> Result<Opened, Failure> {
        let flags = unlocked.map(|unlocked| unlocked.flags.clone()).unwrap_or_default();
        let options = VolumeOptions {
            read_only: self.readonly,
            allow_discards: self.allow_discards || flags.contains(&Flag::AllowDiscards),
            policies: self.dispatch.policies(&flags),
            cipher_model: self.dispatch.cipher_model,
            workers: None,
            shared_memory: self.shared_memory,
            poll: self.dispatch.poll(),
        };
        let volume = match unlocked {
            None => Volume::raw(backend, options),
            Some(unlocked) => {
                let segments = segments(unlocked, backend.limits().len)?;
                Volume::new(backend, segments, options)
            }
        }
        .map_err(Failure::wrong)?;
        let volume = Arc::new(volume);
        if self.allow_discards && !self.readonly && !volume.info().discard {
            say_line(format_args!("{image} takes no discards; --allow-discards has no effect"));
        }
        let facts = facts(&volume, unlocked, image);
        let last = unlocked.and_then(|unlocked| unlocked.segments.last());
        let fixed_len = last.and_then(|segment| segment.length).map(|_| facts.size);
        let resume = unlocked.map_or(Ok(None), Resume::of)?;
        Ok(Opened { volume, facts, fixed_len, resume })
    }
}

/// Asks for a passphrase of `image` until one opens the header in `place`, as often as a person may try.
fn try_passphrases<T>(
    (image, place): (&str, &Path),
    key: &KeyArgs,
    tries: u32,
    open: impl Fn(&[u8]) -> Result<T, ucrypt_luks::Error>,
) -> Result<T, Failure> {
    let mut tries = if key.is_interactive() { tries } else { 1 };
    loop {
        let passphrase = key.read(&format!("Enter passphrase for {image}"))?;
        let opened = open(&passphrase);
        let is_wrong = matches!(opened, Err(ucrypt_luks::Error::WrongPassphrase { .. }));
        match opened.map_err(|error| key.failure(error, place, &passphrase)) {
            Err(failure) if is_wrong && tries > 1 => {
                say_line(failure);
                // The next passphrase may be waited for.
                secrecy::scrub_stack();
                tries -= 1;
            }
            result => return result,
        }
    }
}

/// Says that a header copy is damaged and stays so.
fn tell_of_unrepaired(damage: Option<&Damage>) {
    if let Some(damage) = damage {
        say_line(format_args!("{damage}; using the other one; nothing was repaired"));
    }
}

/// Reports a damaged header copy, and repairs it as [`UnlockedImage::settle_damage`] does.
fn tell_of_damage(
    unlocked: &UnlockedImage,
    image: Option<(&FileBackend, &Path)>,
) -> Result<(), Failure> {
    if let Some(what) = unlocked.settle_damage(image)? {
        say_line(what);
    }
    Ok(())
}

/// Tells which keyslot has opened, in cryptsetup's words.
fn told(unlocked: Unlocked) -> Unlocked {
    if let Some(number) = unlocked.keyslot {
        say_verbose(format_args!("Key slot {number} unlocked."));
    }
    unlocked
}

fn facts(volume: &Volume, unlocked: Option<&Unlocked>, image: String) -> Facts {
    let info = volume.info();
    let first = unlocked.and_then(|unlocked| unlocked.segments.first());
    Facts {
        r#type: unlocked.map_or("raw", |unlocked| unlocked.format.name()),
        image,
        backend: volume.describe_backend(),
        cipher: first.map_or_else(|| "none".into(), |segment| segment.cipher.to_string()),
        key_bits: unlocked.map_or(0, |unlocked| unlocked.volume_key.len() * 8),
        sector_size: info.sector_size,
        offset: first.map_or(0, |segment| segment.offset),
        size: info.len,
        read_only: info.read_only,
        discards: info.discard,
        dispatch: volume.policies().to_string(),
        header: None,
        image_bytes: None,
        header_bytes: None,
        header_digest: None,
        uuid: unlocked.and_then(|unlocked| unlocked.uuid.clone()),
        keyslot: unlocked.and_then(|unlocked| unlocked.keyslot),
    }
}

/// A random key that nobody keeps.
fn random_key(len: usize) -> Result<Secret, Failure> {
    let mut key = Zeroizing::new(vec![0; len]);
    secrecy::random(&mut key).map_err(|error| no_random(&error))?;
    Ok(key)
}
