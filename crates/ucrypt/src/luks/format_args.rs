//! The options of `luksFormat`, and what they mean for a new volume.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use ucrypt_image::new_header::check_apart;
use ucrypt_luks::{Format, Hash, Pbkdf, SECTOR_BYTES, find_hash};
use ucrypt_sector::{CipherSpec, Mode};

use super::new_key_args::{area, check_bits, check_size};
use super::pbkdf_args::PbkdfArgs;
use crate::failure::Failure;
use crate::passphrase::KeyArgs;
use crate::size;
use crate::volume::is_same;

/// Default length of the volume key in bits; XTS takes two keys.
const KEY_BITS: u32 = 256;

/// Arguments of `luksFormat`.
#[derive(Debug, clap::Args)]
pub(crate) struct FormatArgs {
    /// The image: a file or a block device; everything on it is lost
    pub(super) image: PathBuf,
    /// Key file of the first keyslot
    #[arg(conflicts_with_all = ["key_file", "key_description"])]
    new_key_file: Option<PathBuf>,
    /// Kind of header
    #[arg(short = 'M', long = "type", value_enum, ignore_case = true, value_name = "TYPE", default_value_t = Kind::Luks2)]
    kind: Kind,
    /// Cipher, mode and IV
    #[arg(short = 'c', long, value_name = "SPEC", default_value = "aes-xts-plain64")]
    cipher: String,
    /// Length of the volume key in bits [default: 256, and 512 for XTS]
    #[arg(short = 's', long, value_name = "BITS")]
    key_size: Option<u32>,
    /// Hash of key derivation, keyslot and digest
    #[arg(short = 'h', long, value_name = "NAME", default_value = "sha256")]
    hash: String,
    #[command(flatten)]
    key: KeyArgs,
    /// Number of the first keyslot
    #[arg(short = 'S', long, value_name = "NUMBER", default_value_t = 0)]
    pub(super) key_slot: u32,
    /// Use the volume key in this file instead of a random one
    #[arg(long, alias = "master-key-file", value_name = "FILE")]
    pub(super) volume_key_file: Option<PathBuf>,
    /// Draw the volume key from /dev/random
    #[arg(long, conflicts_with_all = ["use_urandom", "volume_key_file"])]
    pub(super) use_random: bool,
    /// Draw the volume key from /dev/urandom (the default)
    #[arg(long, conflicts_with = "volume_key_file")]
    use_urandom: bool,
    /// Put the header into this file, which is made if it does not exist
    #[arg(long, value_name = "FILE")]
    header: Option<PathBuf>,
    /// Where the data starts in the image, in 512-byte sectors
    #[arg(short = 'o', long, value_name = "SECTORS")]
    offset: Option<u64>,
    /// What the start of the data is a multiple of, in 512-byte sectors [default: 2048]
    #[arg(long, value_name = "SECTORS", conflicts_with_all = ["offset", "header"])]
    align_payload: Option<u64>,
    /// UUID of the header; random without it
    #[arg(long, value_name = "UUID")]
    pub(super) uuid: Option<String>,
    #[command(flatten)]
    pub(super) luks2: Luks2Args,
    #[command(flatten)]
    pbkdf: PbkdfArgs,
    /// Ask nothing
    #[arg(short = 'q', long)]
    pub(super) batch_mode: bool,
    /// Ask for the passphrase twice, in batch mode too
    #[arg(short = 'y', long)]
    verify_passphrase: bool,
}

/// What only LUKS2 headers have.
#[derive(Debug, clap::Args)]
pub(crate) struct Luks2Args {
    /// Bytes that are encrypted as one: 512, 1024, 2048 or 4096 [default: 4096 if the length allows it]
    #[arg(long, value_name = "BYTES")]
    pub(super) sector_size: Option<u32>,
    /// Label of the header
    #[arg(long, value_name = "TEXT")]
    pub(super) label: Option<String>,
    /// Subsystem label of the header
    #[arg(long, value_name = "TEXT")]
    pub(super) subsystem: Option<String>,
    /// Cipher of the keyslot [default: the volume's]
    #[arg(long, value_name = "SPEC", requires = "keyslot_key_size")]
    keyslot_cipher: Option<String>,
    /// Length of the keyslot's own key in bits
    #[arg(long, value_name = "BITS", requires = "keyslot_cipher")]
    keyslot_key_size: Option<u32>,
    /// Length of one header copy
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub(super) luks2_metadata_size: Option<u64>,
    /// Length of the keyslots area
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub(super) luks2_keyslots_size: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Luks1,
    #[value(alias = "luks")]
    Luks2,
}

impl FormatArgs {
    pub(super) fn format(&self) -> Format {
        match self.kind {
            Kind::Luks1 => Format::Luks1,
            Kind::Luks2 => Format::Luks2,
        }
    }

    /// Where a detached header goes. Naming the image itself is the same as naming none.
    pub(super) fn detached(&self) -> Option<&Path> {
        self.header.as_deref().filter(|header| !is_same(header, &self.image))
    }

    /// Where the passphrase comes from, with the key file in either place.
    pub(super) fn key(&self) -> KeyArgs {
        self.key.clone().or_file(self.new_key_file.as_deref())
    }

    /// Refuses to overwrite what a key is read from.
    pub(super) fn check_keys_are_kept(&self) -> Result<(), Failure> {
        let key = self.key();
        let named = key.key_file.as_deref().filter(|file| *file != Path::new("-"));
        let keys: Vec<&Path> = named.into_iter().chain(self.volume_key_file.as_deref()).collect();
        let overwritten = [Some(&*self.image), self.header.as_deref()];
        Ok(check_apart(overwritten.into_iter().flatten(), &keys)?)
    }

    /// Whether a typed passphrase is asked for twice.
    pub(super) fn verifies(&self) -> bool {
        self.verify_passphrase || !self.batch_mode
    }

    /// The cipher, and the length of its key in bytes.
    pub(super) fn cipher(&self) -> Result<(CipherSpec, u32), Failure> {
        // A bare name stands for what cryptsetup takes it for; a header names the mode as well.
        let spec = match self.cipher.as_str() {
            "null" | "cipher_null" => "cipher_null-ecb".to_owned(),
            name if !name.contains(['-', ':']) => format!("{name}-cbc-plain"),
            spec => spec.to_owned(),
        };
        let cipher: CipherSpec = spec.parse().map_err(Failure::wrong)?;
        let doubled = if cipher.mode() == Mode::Xts { 2 } else { 1 };
        let bits = match self.key_size {
            None => KEY_BITS * doubled,
            // As in cryptsetup, which does not double it then.
            Some(0) => KEY_BITS,
            Some(bits) => bits,
        };
        check_bits("--key-size", bits as usize)?;
        check_size("--key-size", &cipher, bits / 8)?;
        Ok((cipher, bits / 8))
    }

    pub(super) fn hash(&self) -> Result<Hash, Failure> {
        Ok(find_hash(&self.hash)?)
    }

    /// The key derivation of the first keyslot.
    pub(super) fn pbkdf(&self) -> Result<Pbkdf, Failure> {
        self.pbkdf.pbkdf(self.format(), self.hash()?)
    }

    /// The options given that have no effect, but that cryptsetup accepts.
    pub(super) fn ignored(&self) -> Result<Vec<&'static str>, Failure> {
        let mut ignored = self.pbkdf.ignored(&self.pbkdf()?);
        if self.verify_passphrase && !self.key().is_interactive() {
            ignored.push("--verify-passphrase");
        }
        Ok(ignored)
    }

    /// First byte of the data, if it was chosen. As in cryptsetup, 0 in front of the header's own image
    /// chooses nothing.
    pub(super) fn data_offset(&self) -> Result<Option<u64>, Failure> {
        let chosen = self.offset.filter(|sectors| *sectors > 0 || self.detached().is_some());
        chosen.map(|sectors| in_bytes("--offset", sectors)).transpose()
    }

    /// What the default data offset is a multiple of. 0 is the default, as in cryptsetup.
    pub(super) fn data_alignment(&self) -> Result<Option<u64>, Failure> {
        let sectors = self.align_payload.filter(|sectors| *sectors > 0);
        sectors.map(|sectors| in_bytes("--align-payload", sectors)).transpose()
    }

    /// Refuses options that a LUKS1 header has no field for.
    pub(super) fn check_luks1(&self) -> Result<(), Failure> {
        let luks2 = &self.luks2;
        let given = [
            (luks2.sector_size.is_some_and(|size| size != 512), "--sector-size"),
            (luks2.label.is_some(), "--label"),
            (luks2.subsystem.is_some(), "--subsystem"),
            (luks2.keyslot_cipher.is_some(), "--keyslot-cipher"),
            (luks2.luks2_metadata_size.is_some(), "--luks2-metadata-size"),
            (luks2.luks2_keyslots_size.is_some(), "--luks2-keyslots-size"),
        ];
        match given.iter().find(|(given, _)| *given) {
            Some((_, option)) => {
                Err(Failure::wrong(format!("LUKS1 has no {option}; use --type luks2")))
            }
            None => Ok(()),
        }
    }
}

impl Luks2Args {
    /// Cipher and key length in bytes of the first keyslot, if they were chosen.
    pub(super) fn area(&self) -> Result<Option<(CipherSpec, u32)>, Failure> {
        area(self.keyslot_cipher.as_deref(), self.keyslot_key_size)
    }
}

fn in_bytes(option: &str, sectors: u64) -> Result<u64, Failure> {
    let too_large = || Failure::wrong(format!("{option} {sectors} is too large"));
    sectors.checked_mul(SECTOR_BYTES).ok_or_else(too_large)
}
