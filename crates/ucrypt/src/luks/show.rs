//! `luksDump`, `isLuks`: the content of a header.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use ucrypt_backend::FileBackend;
use ucrypt_luks::{Error, Header, HeaderCopy, Unlocked};

use super::confirm::confirm;
use super::image::{HeaderImage, open_to_look, read_header};
use crate::failure::Failure;
use crate::passphrase::KeyArgs;
use crate::secrecy;
use crate::stdio::print;

/// The warning before a volume key leaves the header.
const KEY_WARNING: &str = "The volume key gives access to the encrypted data without a passphrase.\n\
                           Whatever it is written to should itself be encrypted and kept safe.";

/// Arguments of `luksDump`.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("key_file", |arg| arg.requires("dump_volume_key")),
    mut_arg("keyfile_size", |arg| arg.requires("dump_volume_key")),
    mut_arg("keyfile_offset", |arg| arg.requires("dump_volume_key")),
    mut_arg("timeout", |arg| arg.requires("dump_volume_key"))
)]
pub(crate) struct DumpArgs {
    /// The image: a file or a block device
    image: PathBuf,
    /// Where the LUKS header is, if not on the image
    #[arg(long, value_name = "FILE")]
    header: Option<PathBuf>,
    /// Print JSON: sizes and offsets in bytes, salts and digests in hex
    #[arg(long, conflicts_with_all = ["dump_json_metadata", "dump_volume_key"])]
    json: bool,
    /// Print the digest of the whole header, for open --header-digest
    #[arg(long, conflicts_with_all = ["json", "dump_json_metadata", "dump_volume_key"])]
    header_digest: bool,
    /// Print the JSON metadata of a LUKS2 header as it is stored
    #[arg(long, conflicts_with = "dump_volume_key")]
    dump_json_metadata: bool,
    /// Print the volume key, which a passphrase has to open
    #[arg(long, alias = "dump-master-key")]
    dump_volume_key: bool,
    /// Write the volume key to this new file instead
    #[arg(long, alias = "master-key-file", value_name = "FILE", requires = "dump_volume_key")]
    volume_key_file: Option<PathBuf>,
    #[command(flatten)]
    key: KeyArgs,
    /// Try only this keyslot
    #[arg(short = 'S', long, value_name = "NUMBER", requires = "dump_volume_key")]
    key_slot: Option<u32>,
    /// Ask nothing
    #[arg(short = 'q', long)]
    batch_mode: bool,
}

/// Arguments of `isLuks`.
#[derive(Debug, clap::Args)]
pub(crate) struct IsLuksArgs {
    /// The image: a file or a block device
    image: PathBuf,
    /// Ask for this version only
    #[arg(short = 'M', long = "type", value_enum, value_name = "TYPE", default_value_t = Kind::Luks)]
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// A header of either version
    Luks,
    Luks1,
    Luks2,
}

impl Kind {
    pub(super) fn includes(self, header: &Header) -> bool {
        match self {
            Self::Luks => true,
            Self::Luks1 => matches!(header, Header::Luks1(_)),
            Self::Luks2 => matches!(header, Header::Luks2(_)),
        }
    }
}

/// Carries out `luksDump`.
pub(crate) fn dump(args: &DumpArgs) -> Result<(), Failure> {
    let path = args.header.as_ref().unwrap_or(&args.image);
    let image = open_to_look(path)?;
    if args.header_digest {
        let copy = HeaderCopy::read(&HeaderImage(&image))
            .map_err(|error| Failure::from(error).about(path.display()))?;
        return print(&format!("{}\n", copy.digest()));
    }
    let header = read_header(&image, path)?;
    let name = path.display().to_string();
    let text = if args.dump_volume_key {
        return dump_volume_key(args, &image, &header, &name);
    } else if args.json {
        format!("{}\n", header.dump_json().to_compact())
    } else if args.dump_json_metadata {
        match &header {
            Header::Luks2(header) => header.json.to_pretty(),
            Header::Luks1(_) => {
                return Err(Failure::wrong("a LUKS1 header has no JSON metadata; use --json"));
            }
        }
    } else {
        header.dump(&name)
    };
    print(&text)
}

fn dump_volume_key(
    args: &DumpArgs,
    image: &FileBackend,
    header: &Header,
    name: &str,
) -> Result<(), Failure> {
    secrecy::lock_memory();
    confirm(KEY_WARNING, args.batch_mode)?;
    let passphrase = args.key.read(&format!("Enter passphrase for {name}"))?;
    let unlocked = header.unlock(&HeaderImage(image), &passphrase, args.key_slot)?;
    let text = header.dump_volume_key(name, &unlocked)?;
    let Some(file) = &args.volume_key_file else {
        return print(&text);
    };
    write_key(file, &unlocked)?;
    let facts = text.split_once("MK dump:").map_or("", |(facts, _)| facts);
    print(&format!("{facts}Key stored to file {}.\n", file.display()))
}

/// Writes the volume key to a new file that only its owner can read.
fn write_key(path: &Path, unlocked: &Unlocked) -> Result<(), Failure> {
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o400).open(path)?;
        file.write_all(&unlocked.volume_key)?;
        file.sync_all()
    };
    write().map_err(|error: std::io::Error| {
        Failure::wrong(format!("cannot write the volume key to {}: {error}", path.display()))
    })
}

/// Carries out `isLuks`: the exit code is the answer.
pub(crate) fn is_luks(args: &IsLuksArgs) -> Result<(), Failure> {
    let image = open_to_look(&args.image)?;
    let no = Failure { code: 1, message: String::new() };
    match Header::read(&HeaderImage(&image)) {
        Ok((header, _)) if args.kind.includes(&header) => Ok(()),
        Ok(_) | Err(Error::NotLuks { .. }) => Err(no),
        Err(error) => Err(Failure::from(error).about(args.image.display())),
    }
}
