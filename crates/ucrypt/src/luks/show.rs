//! `luksDump`, `isLuks`: the content of a header.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, ValueEnum};
use serde_json::json;
use ucrypt_backend::FileBackend;
use ucrypt_luks::{Error, Format, Header, HeaderCopy};
use zeroize::Zeroizing;

use super::confirm::confirm_on_keys;
use super::image::{HeaderImage, NewFile, open_to_look, read_header};
use crate::failure::Failure;
use crate::memory;
use crate::passphrase::KeyArgs;
use crate::secrecy;
use crate::stdio::{print, say_verbose};

/// The warning before a volume key leaves the header.
const KEY_WARNING: &str = "The volume key gives access to the encrypted data without a passphrase.\n\
                           Whatever it is written to should itself be encrypted and kept safe.";

/// The warning before another key does.
const UNBOUND_WARNING: &str = "The key of an unbound keyslot is a secret of whoever has stored it.\n\
                               Whatever it is written to should itself be encrypted and kept safe.";

/// Arguments of `luksDump`.
#[derive(Debug, clap::Args)]
#[command(
    group(ArgGroup::new("a_key").args(["dump_volume_key", "unbound"])),
    mut_arg("key_file", |arg| arg.requires("a_key")),
    mut_arg("keyfile_size", |arg| arg.requires("a_key")),
    mut_arg("keyfile_offset", |arg| arg.requires("a_key")),
    mut_arg("key_description", |arg| arg.requires("a_key")),
    mut_arg("timeout", |arg| arg.requires("a_key"))
)]
pub(crate) struct DumpArgs {
    /// The image: a file or a block device
    image: PathBuf,
    /// Where the LUKS header is, if not on the image
    #[arg(long, value_name = "FILE")]
    header: Option<PathBuf>,
    /// Refuse a header of another version
    #[arg(short = 'M', long = "type", value_enum, ignore_case = true, value_name = "TYPE", default_value_t = Kind::Luks)]
    kind: Kind,
    /// Print JSON: sizes and offsets in bytes, salts, digests and keys in hex
    #[arg(long, conflicts_with = "dump_json_metadata")]
    json: bool,
    /// Print the digest of the whole header, for open --header-digest
    #[arg(long, conflicts_with_all = ["json", "dump_json_metadata", "a_key"])]
    header_digest: bool,
    /// Print the JSON metadata of a LUKS2 header as it is stored
    #[arg(long, conflicts_with = "a_key")]
    dump_json_metadata: bool,
    /// Print the volume key, which a passphrase has to open
    #[arg(long, alias = "dump-master-key")]
    dump_volume_key: bool,
    /// Print the key of an unbound keyslot, which its passphrase has to open
    #[arg(long, requires = "key_slot")]
    unbound: bool,
    /// Write the key to this new file instead
    #[arg(long, alias = "master-key-file", value_name = "FILE", requires = "a_key")]
    volume_key_file: Option<PathBuf>,
    #[command(flatten)]
    key: KeyArgs,
    /// Try only this keyslot
    #[arg(short = 'S', long, value_name = "NUMBER", requires = "a_key")]
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
    /// Where the LUKS header is, if not on the image
    #[arg(long, value_name = "FILE")]
    header: Option<PathBuf>,
    /// Ask for this version only
    #[arg(short = 'M', long = "type", value_enum, ignore_case = true, value_name = "TYPE", default_value_t = Kind::Luks)]
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A header of either version
    Luks,
    Luks1,
    Luks2,
}

impl Kind {
    /// Whether this is the name of such a header.
    pub(crate) fn is_named(self, name: &str) -> bool {
        match self {
            Self::Luks => true,
            Self::Luks1 => name == Format::Luks1.name(),
            Self::Luks2 => name == Format::Luks2.name(),
        }
    }

    pub(super) fn includes(self, header: &Header) -> bool {
        self.is_named(header.format().name())
    }

    /// Refuses a header of another version. `place`: the image that holds it.
    pub(super) fn check(self, header: &Header, place: &Path) -> Result<(), Failure> {
        if self.includes(header) {
            return Ok(());
        }
        let (place, found) = (place.display(), header.format().name());
        Err(Failure::wrong(format!("{place}: the header is {found}, which --type excludes")))
    }
}

/// Carries out `luksDump`.
pub(crate) fn dump(args: &DumpArgs) -> Result<(), Failure> {
    let path = args.header.as_ref().unwrap_or(&args.image);
    let image = open_to_look(path)?;
    if args.header_digest {
        let about = |error| Failure::from(error).about(path.display());
        let copy = HeaderCopy::read(&HeaderImage(&image)).map_err(about)?;
        args.kind.check(&Header::read(&copy).map_err(about)?.0, path)?;
        return print(&format!("{}\n", copy.digest()));
    }
    let header = read_header(&image, path)?;
    args.kind.check(&header, path)?;
    let name = path.display().to_string();
    let text = if args.dump_volume_key {
        return dump_volume_key(args, &image, &header, &name);
    } else if args.unbound {
        return dump_unbound_key(args, &image, &header, &name);
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
    confirm_on_keys(KEY_WARNING, args.batch_mode, "")?;
    memory::check_unlock(header, args.key_slot)?;
    let passphrase = args.key.read(&format!("Enter passphrase for {name}"))?;
    let opened = header
        .open_volume_key(&HeaderImage(image), &passphrase, args.key_slot)
        .map_err(|error| args.key.failure(error, Path::new(name), &passphrase))?;
    let key = &opened.key;
    if args.json {
        let facts = json!({
            "image": name,
            "uuid": header.uuid().to_string(),
            "cipher": cipher_of(header),
            "offset": header.data_offset(),
            "keyslot": opened.keyslot,
            "key_bits": 8 * key.len(),
        });
        return put_as_json(args, &facts, "volume_key", key);
    }
    put_as_text(args, &header.dump_volume_key(name, &opened), "MK dump:", key)
}

/// Cipher, mode and IV as one word.
fn cipher_of(header: &Header) -> String {
    match header.cipher_names() {
        (name, "") => name.to_owned(),
        (name, mode) => format!("{name}-{mode}"),
    }
}

/// As cryptsetup, asks for the passphrase of this keyslot only.
fn dump_unbound_key(
    args: &DumpArgs,
    image: &FileBackend,
    header: &Header,
    name: &str,
) -> Result<(), Failure> {
    let number = args.key_slot.unwrap_or_default();
    header.luks2("unbound keyslots")?;
    if !header.keyslots().contains(&number) || header.volume_keyslots().contains(&number) {
        return Err(Failure::wrong(format!(
            "keyslot {number} of {name} holds no unbound key; ucrypt luksDump {name} shows those that do"
        )));
    }
    secrecy::lock_memory();
    confirm_on_keys(UNBOUND_WARNING, args.batch_mode, "")?;
    memory::check_unlock(header, Some(number))?;
    let passphrase = args.key.read(&format!("Enter passphrase for keyslot {number} of {name}"))?;
    let opened = header
        .open_key(&HeaderImage(image), &passphrase, Some(number))
        .map_err(|error| args.key.failure(error, Path::new(name), &passphrase))?;
    if args.json {
        let facts = json!({
            "image": name,
            "uuid": header.uuid().to_string(),
            "keyslot": number,
            "key_bits": 8 * opened.key.len(),
        });
        return put_as_json(args, &facts, "unbound_key", &opened.key);
    }
    put_as_text(args, &header.dump_unbound_key(name, &opened), "Unbound Key:", &opened.key)
}

/// Prints `text`, or everything in front of `dump`, if the key behind it goes to a file.
fn put_as_text(args: &DumpArgs, text: &str, dump: &str, key: &[u8]) -> Result<(), Failure> {
    let Some(file) = &args.volume_key_file else {
        return print(text);
    };
    write_key(file, key)?;
    let facts = text.split_once(dump).map_or("", |(facts, _)| facts);
    print(&format!("{facts}Key stored to file {}.\n", file.display()))
}

/// Prints `facts` with the key as a further member, or with the name of the file that it goes to.
fn put_as_json(
    args: &DumpArgs,
    facts: &serde_json::Value,
    name: &str,
    key: &[u8],
) -> Result<(), Failure> {
    let mut facts = facts.clone();
    if let Some(file) = &args.volume_key_file {
        write_key(file, key)?;
        facts["volume_key_file"] = file.display().to_string().into();
        return print(&format!("{facts}\n"));
    }
    let facts = facts.to_string();
    // Allocated in full: a growing string would leave parts of the key in freed memory.
    let mut text =
        Zeroizing::new(String::with_capacity(facts.len() + name.len() + 2 * key.len() + 16));
    text.push_str(facts.trim_end_matches('}'));
    text.push_str(",\"");
    text.push_str(name);
    text.push_str("\":\"");
    for byte in key {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(digit.into(), 16).unwrap_or_default());
        }
    }
    text.push_str("\"}\n");
    print(&text)
}

/// Writes a key to a new file that only its owner can read. A part of a key is not kept: it is of no use
/// to anybody but an attacker.
fn write_key(path: &Path, key: &[u8]) -> Result<(), Failure> {
    let shown = path.display();
    let Some(mut made) = NewFile::create(path, 0o400).map_err(Failure::wrong)? else {
        return Err(Failure::wrong(format!("cannot write the key to {shown}: it already exists")));
    };
    made.write(key)
        .map_err(|error| Failure::wrong(format!("cannot write the key to {shown}: {error}")))?;
    Ok(made.keep()?)
}

/// Carries out `isLuks`: the exit code is the answer. As in cryptsetup, only `-v` says why a header
/// cannot be used.
pub(crate) fn is_luks(args: &IsLuksArgs) -> Result<(), Failure> {
    let path = args.header.as_ref().unwrap_or(&args.image);
    let image = open_to_look(path)?;
    let no = Failure::with(1, "");
    match Header::read(&HeaderImage(&image)) {
        Ok((header, _)) if args.kind.includes(&header) => Ok(()),
        Ok(_) | Err(Error::NotLuks { .. }) => Err(no),
        Err(error) => {
            let failure = Failure::from(error).about(path.display());
            if failure.code != 1 {
                return Err(failure);
            }
            say_verbose(failure.message);
            Err(no)
        }
    }
}
