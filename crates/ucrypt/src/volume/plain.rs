//! Volumes without a header: what cryptsetup's plain options and a dm-crypt table line say.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ucrypt_luks::plain::{self, Plain};
use ucrypt_luks::{Format, Segment, Table, Unlocked};
use ucrypt_sector::CipherSpec;

use super::{KeySource, random_key};
use crate::failure::Failure;
use crate::passphrase::{KeyArgs, Secret, read_key_file};

/// The options of a plain volume.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Plain volumes")]
pub(crate) struct PlainArgs {
    /// Cipher, mode and IV; `none` serves the image as it is
    #[arg(short = 'c', long, value_name = "SPEC")]
    pub(super) cipher: Option<String>,
    /// Length of the volume key in bits
    #[arg(short = 's', long, value_name = "BITS")]
    key_size: Option<u32>,
    /// Hash that makes the volume key of a passphrase; `plain` for none
    #[arg(short = 'h', long, value_name = "NAME")]
    hash: Option<String>,
    /// Where the data starts in the image, in 512-byte sectors
    #[arg(short = 'o', long = "offset", value_name = "SECTORS")]
    data_offset: Option<u64>,
    /// Number of the first sector for the IV, in 512-byte sectors
    #[arg(short = 'p', long, value_name = "SECTORS")]
    skip: Option<u64>,
    /// Length of the volume in 512-byte sectors
    #[arg(short = 'b', long, value_name = "SECTORS")]
    size: Option<u64>,
    /// Bytes that are encrypted as one: 512, 1024, 2048 or 4096
    #[arg(long, value_name = "BYTES")]
    sector_size: Option<u32>,
    /// Count IVs in units of the sector size
    #[arg(long)]
    iv_large_sectors: bool,
    /// A dm-crypt table line, as `dmsetup` takes it, or `-` to read it from standard input; IMAGE
    /// stands for its device. Everybody can see the line while the command starts
    #[arg(long, value_name = "LINE")]
    table: Option<String>,
    /// Read the table line from a file
    #[arg(long, value_name = "FILE", conflicts_with = "table")]
    table_file: Option<PathBuf>,
}

/// The cipher of a scratch volume, if none is named.
const SCRATCH_CIPHER: &str = "aes-xts-plain64";

impl PlainArgs {
    /// The first option that only makes sense without a header, for the error message.
    pub(super) fn first_given(&self) -> Option<&'static str> {
        [
            (self.cipher.is_some(), "--cipher"),
            (self.key_size.is_some(), "--key-size"),
            (self.hash.is_some(), "--hash"),
            (self.data_offset.is_some(), "--offset"),
            (self.skip.is_some(), "--skip"),
            (self.size.is_some(), "--size"),
            (self.sector_size.is_some(), "--sector-size"),
            (self.iv_large_sectors, "--iv-large-sectors"),
        ]
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    }

    /// Whether a table line describes the volume.
    pub(super) fn is_table(&self) -> bool {
        self.table.is_some() || self.table_file.is_some()
    }

    /// The table line, which has the key in it. It can be read once.
    pub(super) fn table_line(&self) -> Result<Secret, Failure> {
        let file = self.table_file.as_deref();
        match (&self.table, file) {
            (Some(line), _) if line != "-" => Ok(Secret::new(line.as_bytes().to_vec())),
            (_, file) => read_key_file(file.unwrap_or(Path::new("-")), 0, None),
        }
    }

    /// The volume that a table line describes.
    pub(super) fn parse_table(line: &[u8]) -> Result<Unlocked, Failure> {
        let line = str::from_utf8(line).map_err(|_| Failure::wrong("the table line is no text"))?;
        Ok(Table::parse(line.trim_end())?.unlocked)
    }

    /// A volume under a random key that ends with the process.
    pub(super) fn throwaway(&self) -> Result<Unlocked, Failure> {
        let cipher = self.cipher.as_deref().unwrap_or(SCRATCH_CIPHER);
        let cipher: CipherSpec = cipher.parse().map_err(Failure::wrong)?;
        let largest = cipher.key_sizes().iter().max().unwrap_or(0);
        let key = random_key(self.key_size.map_or(largest, |bits| bits as usize / 8))?;
        let segment = Segment {
            offset: 0,
            length: None,
            iv_tweak: 0,
            cipher,
            sector_size: self.sector_size.unwrap_or(512),
            iv_large_sectors: self.iv_large_sectors,
        };
        Ok(Unlocked {
            format: Format::Plain,
            volume_key: key,
            segments: vec![segment],
            flags: BTreeSet::new(),
            keyslot: None,
            uuid: None,
            label: None,
        })
    }

    /// The volume that these options or the table line describe.
    pub(super) fn unlock(
        &self,
        args: &KeyArgs,
        name: &str,
        key: KeySource,
    ) -> Result<Unlocked, Failure> {
        if self.is_table() {
            return match key {
                KeySource::Known(line) => Self::parse_table(&line),
                KeySource::Arguments => Self::parse_table(&self.table_line()?),
            };
        }
        let cipher = self.cipher.as_deref().unwrap_or(plain::DEFAULTS.0);
        let volume = Plain {
            cipher: cipher.parse().map_err(Failure::wrong)?,
            offset: self.data_offset.unwrap_or(0),
            skip: self.skip.unwrap_or(0),
            size: self.size,
            sector_size: self.sector_size.unwrap_or(512),
            iv_large_sectors: self.iv_large_sectors,
        };
        let key = match key {
            KeySource::Known(key) => key,
            KeySource::Arguments => self.key(args, name)?,
        };
        Ok(volume.unlock(&key)?)
    }

    /// The volume key: the hash of a passphrase, or the first bytes of a key file.
    fn key(&self, args: &KeyArgs, name: &str) -> Result<Secret, Failure> {
        let bits = self.key_size.unwrap_or(plain::DEFAULTS.2 * 8);
        if !bits.is_multiple_of(8) {
            return Err(Failure::wrong(format!(
                "a key of {bits} bits is no whole number of bytes"
            )));
        }
        let bytes = bits / 8;
        if args.key_file.is_none() {
            let passphrase = args.read(&format!("Enter passphrase for {name}"))?;
            let hash = self.hash.as_deref().unwrap_or(plain::DEFAULTS.1);
            return Ok(plain::key_from_passphrase(&passphrase, hash, bytes)?);
        }
        let size = args.keyfile_size.or(Some(u64::from(bytes)));
        let contents = KeyArgs { keyfile_size: size, ..args.clone() }.read("")?;
        Ok(plain::key_from_file(&contents, bytes)?)
    }
}
