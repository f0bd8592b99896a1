//! Volumes without a header, described by cryptsetup's plain options or a dm-crypt table line.
//!
//! The key of a plain volume is made as cryptsetup makes it (cryptsetup(8), "Passphrase processing
//! for PLAIN mode"). A passphrase that is typed or comes from standard input is hashed, also with
//! `--key-file -`. The bytes of a key file are the key.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ucrypt_luks::plain::{self, Plain};
use ucrypt_luks::{Format, Segment, Table, Unlocked};
use ucrypt_sector::CipherSpec;

use super::{KeySource, random_key};
use crate::failure::Failure;
use crate::luks::check_bits;
use crate::passphrase::{KeyArgs, Secret, Source, read_table_line, read_volume_key};
use crate::stdio::say;

/// The options of a plain volume.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Plain volumes (--type plain)")]
pub(crate) struct PlainArgs {
    /// Cipher, mode and IV; `none` serves the image as it is [default: aes-xts-plain64]
    #[arg(short = 'c', long, value_name = "SPEC")]
    pub(super) cipher: Option<String>,
    /// Length of the volume key in bits [default: 256]; with a LUKS header, of the key in --volume-key-file
    #[arg(short = 's', long, value_name = "BITS")]
    key_size: Option<u32>,
    /// Hash that makes the volume key of a passphrase; `plain` for none [default: sha256]
    #[arg(short = 'h', long, value_name = "NAME")]
    hash: Option<String>,
    /// Where the volume starts in the image, in 512-byte sectors [default: 0]
    #[arg(short = 'o', long = "offset", value_name = "SECTORS")]
    data_offset: Option<u64>,
    /// Number of the first sector for the IV, in 512-byte sectors [default: 0]
    #[arg(short = 'p', long, value_name = "SECTORS")]
    skip: Option<u64>,
    /// Length of the volume in 512-byte sectors [default: to the end of the image]
    #[arg(short = 'b', long, value_name = "SECTORS")]
    size: Option<u64>,
    /// Bytes that are encrypted as one: 512, 1024, 2048 or 4096 [default: 512]
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
    /// Whether a table line describes the volume.
    pub(super) fn is_table(&self) -> bool {
        self.table.is_some() || self.table_file.is_some()
    }

    /// The table line, which contains the key. It can be read only once.
    pub(super) fn table_line(&self) -> Result<Secret, Failure> {
        let file = self.table_file.as_deref();
        match (&self.table, file) {
            (Some(line), _) if line != "-" => Ok(Secret::new(line.as_bytes().to_vec())),
            (_, file) => read_table_line(file.unwrap_or(Path::new("-"))),
        }
    }

    /// The volume that a table line describes.
    pub(super) fn parse_table(line: &[u8]) -> Result<Unlocked, Failure> {
        let line = str::from_utf8(line).map_err(|_| Failure::wrong("the table line is no text"))?;
        Ok(Table::parse(line.trim_end())?.unlocked)
    }

    /// A volume under a random key, which is lost when the process ends.
    pub(super) fn throwaway(&self) -> Result<Unlocked, Failure> {
        let cipher = self.cipher.as_deref().unwrap_or(SCRATCH_CIPHER);
        let cipher: CipherSpec = cipher.parse().map_err(Failure::wrong)?;
        let largest = cipher.key_sizes().iter().max().unwrap_or(0);
        let chosen = self.key_size.map(|_| self.key_bytes(&cipher)).transpose()?;
        let key = random_key(chosen.map_or(largest, |bytes| bytes as usize))?;
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

    /// Whether the data begins where a header or a file system would.
    pub(super) fn starts_at_zero(&self) -> bool {
        self.data_offset.unwrap_or(0) == 0
    }

    /// The volume that these options or the table line describe.
    pub(super) fn unlock(&self, asked: &Asked<'_>, key: KeySource) -> Result<Unlocked, Failure> {
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
            // `key_bytes` checks the key size before a passphrase is asked for.
            KeySource::Arguments => self.key(asked, self.key_bytes(&volume.cipher)?)?,
        };
        Ok(volume.unlock(&key)?)
    }

    /// The length of a volume key in bytes, if the user has named it.
    pub(super) fn key_len(&self) -> Result<Option<u64>, Failure> {
        // 0 is the default, as in cryptsetup.
        let Some(bits) = self.key_size.filter(|bits| *bits > 0) else { return Ok(None) };
        check_bits("--key-size", bits as usize)?;
        Ok(Some(u64::from(bits / 8)))
    }

    /// The length of the volume key in bytes. Fails if the cipher does not take it.
    fn key_bytes(&self, cipher: &CipherSpec) -> Result<u32, Failure> {
        // 0 is the default, as in cryptsetup.
        let bits = self.key_size.filter(|bits| *bits > 0).unwrap_or(plain::DEFAULTS.2 * 8);
        let sizes = cipher.key_sizes();
        if !bits.is_multiple_of(8) || !sizes.contains(bits as usize / 8) {
            let known: Vec<_> = sizes.iter().map(|bytes| (bytes * 8).to_string()).collect();
            return Err(Failure::wrong(format!(
                "{cipher} takes no key of {bits} bits; use --key-size with {}",
                known.join(" or ")
            )));
        }
        Ok(bits / 8)
    }

    /// Warns of defaults that a volume may not have been made with: whatever it is opened with, it opens.
    /// The hash matters where a passphrase is `hashed`.
    fn warn_of_defaults(&self, asked: &Asked<'_>, hashed: bool) {
        let (cipher, hash, bytes) = plain::DEFAULTS;
        let bits = (bytes * 8).to_string();
        let defaults = [
            ("--cipher", self.cipher.is_none(), cipher),
            ("--key-size", self.key_size.unwrap_or(0) == 0, &bits),
            ("--hash", hashed && self.hash.is_none(), hash),
        ];
        let unnamed = defaults.iter().filter(|(_, unnamed, _)| *unnamed);
        let unnamed: Vec<_> =
            unnamed.map(|(option, _, value)| format!("{option} {value}")).collect();
        if !unnamed.is_empty() {
            let (cipher, hash, _) = plain::DEFAULTS_BEFORE_2_7;
            asked.warn(&format!(
                "Opening with {}. Under other options than it was made with, a volume is noise; cryptsetup \
                 before 2.7 had {cipher} and {hash}. Always name them.",
                unnamed.join(", ")
            ));
        }
    }

    /// Reads or derives a volume key of `bytes` bytes.
    fn key(&self, asked: &Asked<'_>, bytes: u32) -> Result<Secret, Failure> {
        let exactly = Some(u64::from(bytes));
        if let Some(path) = asked.volume_key_file {
            self.warn_of_defaults(asked, false);
            return read_volume_key(path, exactly);
        }
        let args = asked.passphrase;
        let source = args.source()?;
        let hash = self.hash.as_deref().unwrap_or(plain::DEFAULTS.1);
        let is_file = matches!(source, Source::File(_));
        self.warn_of_defaults(asked, !is_file);
        let has_key_file =
            args.key_file.is_some() && !matches!(source, Source::Terminal(_) | Source::Agent(_));
        if is_file && self.hash.is_some() {
            asked.warn("The --hash parameter is being ignored: a key file is the key.");
        }
        // Input that is no passphrase is the key itself.
        if is_file || has_key_file && hash == "plain" {
            if args.keyfile_size.is_some() {
                asked.warn("The --keyfile-size option is being ignored: the key has --key-size.");
            }
            return args.read_from(source, "", exactly);
        }
        let prompt = format!("Enter passphrase for {}", asked.image);
        let passphrase = args.read_from(source, &prompt, args.keyfile_size)?;
        Ok(plain::key_from_passphrase(&passphrase, hash, bytes)?)
    }
}

/// Where the key of a plain volume comes from.
pub(super) struct Asked<'a> {
    pub(super) image: &'a str,
    pub(super) passphrase: &'a KeyArgs,
    pub(super) volume_key_file: Option<&'a Path>,
    /// Suppresses warnings.
    pub(super) batch_mode: bool,
}

impl Asked<'_> {
    /// Prints a warning that cryptsetup prints too, and goes on.
    fn warn(&self, warning: &str) {
        if !self.batch_mode {
            say(&format!("WARNING: {warning}\n"));
        }
    }
}
