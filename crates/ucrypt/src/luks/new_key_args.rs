//! The options of a new passphrase and of the keyslot that stores it.

use std::path::{Path, PathBuf};

use ucrypt_image::new_header::check_apart;
use ucrypt_luks::{Format, NewKey, find_hash, wrong_size};
use ucrypt_sector::CipherSpec;

use super::pbkdf_args::PbkdfArgs;
use crate::failure::Failure;
use crate::memory;
use crate::passphrase::{KeyArgs, Secret};
use crate::stdio::say;

/// The hash of cryptsetup's default.
const HASH: &str = "sha256";

/// Where a new passphrase comes from.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct NewPassphraseArgs {
    /// Key file with the new passphrase
    #[arg(value_name = "NEW_KEY_FILE", conflicts_with = "new_keyfile")]
    new_key_file: Option<PathBuf>,
    /// Read the new passphrase from a file; `-` is standard input
    #[arg(long, value_name = "FILE")]
    new_keyfile: Option<PathBuf>,
    /// Use only this many bytes of the new key file
    #[arg(long, value_name = "BYTES")]
    new_keyfile_size: Option<u64>,
    /// Skip this many bytes of the new key file
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    new_keyfile_offset: u64,
    /// Use the new passphrase that the kernel's keyring holds under this name
    #[arg(long, value_name = "NAME", conflicts_with_all = [
        "new_key_file", "new_keyfile", "new_keyfile_size", "new_keyfile_offset",
    ])]
    new_key_description: Option<String>,
    /// Ask for the new passphrase twice, in batch mode too
    #[arg(short = 'y', long)]
    verify_passphrase: bool,
    /// Accepted; passphrases are not judged
    #[arg(long)]
    force_password: bool,
}

/// How a keyslot stores its key.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct KeyslotArgs {
    /// Hash of PBKDF2 and of the keyslot [default: sha256; LUKS1 has that of the header]
    #[arg(short = 'h', long, value_name = "NAME")]
    hash: Option<String>,
    /// Cipher of the keyslot [default: the volume's]; LUKS2 only
    #[arg(long, value_name = "SPEC", requires = "keyslot_key_size")]
    keyslot_cipher: Option<String>,
    /// Length of the keyslot's own key in bits
    #[arg(long, value_name = "BITS", requires = "keyslot_cipher")]
    keyslot_key_size: Option<u32>,
    #[command(flatten)]
    pbkdf: PbkdfArgs,
}

impl NewPassphraseArgs {
    /// Refuses options that have no effect, and a new key that the change of the header in `place` would
    /// overwrite. Warns of options that cryptsetup ignores.
    pub(super) fn check(&self, place: &Path) -> Result<(), Failure> {
        let file = self.file();
        let named = file.map(PathBuf::as_path).filter(|file| file.as_os_str() != "-");
        check_apart([place], named.as_slice())?;
        if file.is_none() && (self.new_keyfile_size.is_some() || self.new_keyfile_offset > 0) {
            return Err(Failure::wrong(
                "--new-keyfile-size and --new-keyfile-offset have an effect only with a new key \
                 file",
            ));
        }
        if self.verify_passphrase && !self.key(0).is_interactive() {
            say("WARNING: The --verify-passphrase option is being ignored.\n");
        }
        Ok(())
    }

    /// Reads the new passphrase. Asks a person twice, unless in batch mode.
    pub(super) fn read(
        &self,
        prompt: &str,
        old: &KeyArgs,
        batch_mode: bool,
    ) -> Result<Secret, Failure> {
        let key = self.key(old.timeout);
        if self.verify_passphrase || !batch_mode {
            key.read_verified(prompt)
        } else {
            key.read(prompt)
        }
    }

    fn file(&self) -> Option<&PathBuf> {
        self.new_keyfile.as_ref().or(self.new_key_file.as_ref())
    }

    fn key(&self, timeout: u64) -> KeyArgs {
        KeyArgs {
            key_file: self.file().cloned(),
            keyfile_size: self.new_keyfile_size,
            keyfile_offset: self.new_keyfile_offset,
            key_description: self.new_key_description.clone(),
            timeout,
            stdin_is_data: false,
            verify: false,
            by_agent: false,
            file_is: Some("the new key file"),
        }
    }
}

impl KeyslotArgs {
    /// Refuses options that a header of this version does not store. Warns of those that
    /// cryptsetup ignores.
    pub(super) fn check(&self, format: Format) -> Result<(), Failure> {
        if format == Format::Luks1 {
            let given = [
                (self.hash.is_some(), "--hash: the header has one hash for all keyslots"),
                (self.keyslot_cipher.is_some(), "--keyslot-cipher"),
            ];
            if let Some((_, option)) = given.iter().find(|(given, _)| *given) {
                return Err(Failure::wrong(format!("LUKS1 has no {option}")));
            }
        }
        let new = self.new_key(format, b"")?;
        memory::tell_of_bound(&new.pbkdf);
        for option in self.pbkdf.ignored(&new.pbkdf) {
            say(&format!("WARNING: The {option} option is being ignored.\n"));
        }
        Ok(())
    }

    /// What the keyslot of `passphrase` is to be.
    pub(super) fn new_key<'a>(
        &self,
        format: Format,
        passphrase: &'a [u8],
    ) -> Result<NewKey<'a>, Failure> {
        let hash = find_hash(self.hash.as_deref().unwrap_or(HASH))?;
        let pbkdf = self.pbkdf.pbkdf(format, hash)?;
        let area = area(self.keyslot_cipher.as_deref(), self.keyslot_key_size)?;
        Ok(NewKey { passphrase, pbkdf, area })
    }
}

/// Cipher and key length in bytes of a keyslot's area, if both were chosen.
pub(super) fn area(
    cipher: Option<&str>,
    key_size: Option<u32>,
) -> Result<Option<(CipherSpec, u32)>, Failure> {
    let (Some(cipher), Some(bits)) = (cipher, key_size) else { return Ok(None) };
    let (cipher, len): (CipherSpec, _) =
        (cipher.parse().map_err(Failure::wrong)?, bytes_of("--keyslot-key-size", bits)?);
    check_size("--keyslot-key-size", &cipher, len)?;
    Ok(Some((cipher, len)))
}

/// Refuses a key of `len` bytes, which `option` chooses, if the cipher takes none of that size.
pub(super) fn check_size(option: &str, cipher: &CipherSpec, len: u32) -> Result<(), Failure> {
    // It takes no key, and a header has one of any size.
    if cipher.is_null() || cipher.key_sizes().contains(len as usize) {
        return Ok(());
    }
    Err(Failure::wrong(format!("{option}: {}", wrong_size(cipher, len))))
}

/// The bytes of a key of `bits` bits, which `option` chooses.
pub(super) fn bytes_of(option: &str, bits: u32) -> Result<u32, Failure> {
    if bits == 0 {
        return Err(no_key_size(option, 0));
    }
    check_bits(option, bits as usize)?;
    Ok(bits / 8)
}

/// Refuses a part of a byte.
pub(crate) fn check_bits(option: &str, bits: usize) -> Result<(), Failure> {
    if bits.is_multiple_of(8) { Ok(()) } else { Err(no_key_size(option, bits)) }
}

fn no_key_size(option: &str, bits: usize) -> Failure {
    let what = if bits == 0 { "no key" } else { "no multiple of 8 bits" };
    Failure::wrong(format!("{option} {bits} is {what}; 256 and 512 are usual"))
}
