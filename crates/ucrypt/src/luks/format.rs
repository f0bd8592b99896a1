//! `luksFormat`: a new LUKS volume over whatever was there.

use std::io;
use std::path::Path;

use rustix::rand::{GetRandomFlags, getrandom};
use ucrypt_backend::Backend;
use ucrypt_image::new_header::{check_room, has_room_for_data, sector_size};
use ucrypt_luks::signature::{self, Signature};
use ucrypt_luks::{
    Format, Header, NewVolume, Tools, Write, luks1, luks2, overwrite, random_volume_key,
};

use super::config::tell_of_cut;
use super::confirm::confirm;
use super::format_args::FormatArgs;
use super::image::{HeaderImage, NewFile, lock_and_reserve, open_to_format};
use super::keys::created;
use crate::failure::Failure;
use crate::machine::{clock, machine};
use crate::memory;
use crate::passphrase::{Secret, read_volume_key};
use crate::secrecy;
use crate::stdio::say;

/// Carries out `luksFormat`.
pub(crate) fn run(args: &FormatArgs) -> Result<(), Failure> {
    secrecy::lock_memory();
    if args.format() == Format::Luks1 {
        args.check_luks1()?;
    }
    // Report wrong and ignored options before touching anything.
    let mut volume = describe(args)?;
    memory::tell_of_bound(&volume.pbkdf);
    for option in args.ignored()? {
        say(&format!("WARNING: The {option} option is being ignored.\n"));
    }
    tell_of_cut("--label", args.luks2.label.as_deref());
    tell_of_cut("--subsystem", args.luks2.subsystem.as_deref());
    args.check_keys_are_kept()?;
    let data = open_to_format(&args.image).map_err(|error| no_image(error.into(), &args.image))?;
    let data_len = data.limits().len;
    let sector_size = sector_size(args.luks2.sector_size, &volume.cipher, &args.image, data_len)?;
    let detached = args.detached();
    let is_new = detached.map_or(Ok(false), |path| is_new_header_file(path, args))?;
    let mut header = detached.filter(|_| !is_new).map(open_to_format).transpose()?;
    let path = detached.unwrap_or(&args.image);
    let found = match &header {
        None if is_new => Vec::new(),
        medium => signature::find(&HeaderImage(medium.as_ref().unwrap_or(&data)))?,
    };
    if !args.batch_mode {
        warn_of(&found, path);
    }
    let warning = format!("This will overwrite data on {} irrevocably.", path.display());
    confirm(&warning, args.batch_mode)?;
    let passphrase = read_passphrase(args)?;
    volume.volume_key = volume_key(args)?;

    let (made, writes) = make(args, &volume, &passphrase, sector_size)?;
    let mut new_file = None;
    if is_new {
        let (made, opened) = NewFile::create_opened(path)?;
        (new_file, header) = (Some(made), Some(opened));
    }
    let medium = header.as_ref().unwrap_or(&data);
    check_room(&made, &writes, medium, path, detached.is_some())?;
    if !has_room_for_data(&made, &data) {
        say(&format!(
            "WARNING: {} is too small for activation, there is no room left for data.\n",
            args.image.display()
        ));
    }
    let _lock = lock_and_reserve(medium, path, &writes)?;
    overwrite(&HeaderImage(medium), &found, &writes).map_err(|error| unfinished(error, path))?;
    new_file.map_or(Ok(()), NewFile::keep)?;
    created(args.key_slot);
    Ok(())
}

/// The failure to open an image, with the way to make one if there is none.
fn no_image(failure: Failure, image: &Path) -> Failure {
    if image.symlink_metadata().is_ok() || !failure.message.starts_with("cannot open") {
        return failure;
    }
    let image = image.display();
    Failure::device(format!(
        "{image} does not exist; make it first, for example by truncate -s 1G {image}"
    ))
}

/// The new volume that the options describe, still without its key.
fn describe(args: &FormatArgs) -> Result<NewVolume, Failure> {
    Ok(NewVolume {
        cipher: args.cipher()?.0,
        volume_key: Secret::default(),
        hash: args.hash()?,
        pbkdf: args.pbkdf()?,
        keyslot: args.key_slot,
        uuid: args.uuid.clone(),
        data_offset: args.data_offset()?,
        data_alignment: args.data_alignment()?,
        area: args.luks2.area()?,
        detached: args.detached().is_some(),
    })
}

/// Whether the file for a detached header is to be made. It is when there is something to be written:
/// who gives up at a prompt, or is killed there, leaves none.
fn is_new_header_file(path: &Path, args: &FormatArgs) -> Result<bool, Failure> {
    if path.exists() {
        return Ok(false);
    }
    let warning = format!("{} does not exist and will be created.", path.display());
    confirm(&warning, args.batch_mode)?;
    Ok(NewFile::is_possible(path)?)
}

/// Warns of what will be lost, in cryptsetup's words. Names a signature with several magic numbers
/// once.
fn warn_of(found: &[Signature], path: &Path) {
    let mut said = Vec::new();
    for signature in found {
        if said.contains(&signature.name) {
            continue;
        }
        said.push(signature.name);
        let (path, name, kind) = (path.display(), signature.name, signature.kind());
        say(&format!("WARNING: Device {path} already contains a '{name}' {kind} signature.\n"));
    }
}

/// The failure of a format that may have overwritten something.
fn unfinished(error: ucrypt_luks::Error, path: &Path) -> Failure {
    let is_whole = matches!(error, ucrypt_luks::Error::NotWiped(_));
    let failure = Failure::from(error);
    if is_whole {
        return failure;
    }
    let message = format!(
        "{}; {} holds no volume now: what was there is lost, luksFormat has to be run again",
        failure.message,
        path.display()
    );
    Failure { message, ..failure }
}

fn read_passphrase(args: &FormatArgs) -> Result<Secret, Failure> {
    let key = args.key();
    let prompt = format!("Enter passphrase for {}", args.image.display());
    if args.verifies() { key.read_verified(&prompt) } else { key.read(&prompt) }
}

/// The volume key: read from a file, or newly drawn.
fn volume_key(args: &FormatArgs) -> Result<Secret, Failure> {
    let (_, len) = args.cipher()?;
    let Some(path) = &args.volume_key_file else {
        let mut random = |buf: &mut [u8]| {
            if args.use_random { blocking_random(buf) } else { secrecy::random(buf) }
        };
        return Ok(random_volume_key(len, &mut random)?);
    };
    read_volume_key(path, Some(u64::from(len)))
}

/// As [`secrecy::random`], from the pool of `/dev/random`.
fn blocking_random(buf: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < buf.len() {
        match getrandom(&mut buf[filled..], GetRandomFlags::RANDOM) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The new header, and the writes that put it on the medium.
fn make(
    args: &FormatArgs,
    volume: &NewVolume,
    passphrase: &[u8],
    sector_size: u32,
) -> Result<(Header, Vec<Write>), Failure> {
    let (mut random, mut clock) = (secrecy::random, clock());
    let mut tools = Tools { random: &mut random, clock: &mut clock, machine: machine() };
    if args.format() == Format::Luks1 {
        let (header, writes) = luks1::format(volume, passphrase, &mut tools)?;
        return Ok((Header::Luks1(Box::new(header)), writes));
    }
    let luks2 = &args.luks2;
    let options = luks2::Options {
        label: luks2.label.clone().unwrap_or_default(),
        subsystem: luks2.subsystem.clone().unwrap_or_default(),
        sector_size,
        // 0 is the default, as in cryptsetup.
        metadata_size: luks2.luks2_metadata_size.filter(|size| *size > 0),
        keyslots_size: luks2.luks2_keyslots_size.filter(|size| *size > 0),
    };
    let (header, writes) = luks2::format(volume, &options, passphrase, &mut tools)?;
    let keyslots_size = header.metadata.config.keyslots_size;
    if options.keyslots_size.is_some_and(|asked| asked != keyslots_size) {
        say(&format!("WARNING: LUKS2 keyslots area size changed to {keyslots_size} bytes.\n"));
    }
    Ok((Header::Luks2(Box::new(header)), writes))
}
