//! `luksHeaderBackup`, `luksHeaderRestore`, `repair`, `erase`: the header as a whole.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ucrypt_backend::FileBackend;
use ucrypt_luks::signature::{Signature, find_foreign};
use ucrypt_luks::{Error as Luks, Header, ReadAt, Restore, luks1, restore as restore_from};

use super::change::{HeaderArgs, carry_out, changed, is_same_volume, lock_asked};
use super::confirm::{confirm, confirm_on_keys};
use super::image::{
    Grown, HeaderImage, NewFile, READ_ONLY, check_same, grow, open_to_format, open_to_look, reserve,
};
use super::keys::removed;
use crate::failure::Failure;
use crate::progress::{Waiting, write_shown};
use crate::secrecy;
use crate::stdio::{say, say_line};
use crate::volume::is_same;

/// Longest backup that is read, in bytes: two copies of 4 MiB, 128 MiB of keyslots, and a page.
const BACKUP_MAX: u64 = (136 << 20) + 4096;

// cryptsetup's words.
const REPAIR: &str = "Really try to repair LUKS device header?";
const NO_PROBLEMS: &str = "No known problems detected for LUKS header.\n";

/// Arguments of `luksHeaderBackup` and `luksHeaderRestore`.
#[derive(Debug, clap::Args)]
pub(crate) struct BackupArgs {
    #[command(flatten)]
    header: HeaderArgs,
    /// The backup: a new file or, for luksHeaderRestore, the one to put back
    #[arg(long, value_name = "FILE")]
    header_backup_file: PathBuf,
}

/// Arguments of `luksHeaderRestore`.
#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArgs {
    #[command(flatten)]
    backup: BackupArgs,
    /// Save the header that is there in this new file first
    #[arg(long, value_name = "FILE")]
    old_header_file: Option<PathBuf>,
}

/// Arguments of `repair` and `erase`.
#[derive(Debug, clap::Args)]
pub(crate) struct WholeArgs {
    #[command(flatten)]
    header: HeaderArgs,
}

/// Carries out `luksHeaderBackup`.
pub(crate) fn backup(args: &BackupArgs) -> Result<(), Failure> {
    // A backup in the middle of a change would hold keyslots that its header does not know.
    let (_lock, image, header) = args.header.look_locked()?;
    save(&header, &HeaderImage(&image), &args.header_backup_file)
}

/// Saves a header, which was read from `image`, in a new file.
pub(super) fn save(header: &Header, image: &HeaderImage<'_>, path: &Path) -> Result<(), Failure> {
    let _waiting = Waiting::begin(&format!("saving the header in {}", path.display()));
    store(&header.backup(image)?, path)
}

/// Stores a backup in a new file.
fn store(bytes: &[u8], path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    // As cryptsetup's: what is written over by mistake is lost.
    let Some(mut made) = NewFile::create(path, READ_ONLY)? else {
        return Err(Failure::wrong(format!(
            "requested header backup file {shown} already exists; name a new one, because an old backup may \
             be the only one"
        )));
    };
    made.write(bytes)
        .map_err(|error| Failure::device(format!("cannot write the backup to {shown}: {error}")))?;
    Ok(made.keep()?)
}

/// Carries out `luksHeaderRestore`.
pub(crate) fn restore(args: &RestoreArgs) -> Result<(), Failure> {
    let RestoreArgs { backup: args, old_header_file: saved } = args;
    let file = args.header_backup_file.display();
    let backup = read_backup(&args.header_backup_file)?;
    let place = args.header.place();
    for (other, what) in
        [(place, "the header that is overwritten"), (&args.header_backup_file, "the backup")]
    {
        if let Some(saved) = saved.as_ref().filter(|saved| is_same(saved, other)) {
            let saved = saved.display();
            return Err(Failure::wrong(format!("{saved} is {what}; name a new file")));
        }
    }
    let name = place.display().to_string();
    let look = open_to_look(place)?;
    let image = HeaderImage(&look);
    let image_len = image.len();
    // The file of a detached header grows.
    let grown = Grown { image, len: if place.is_file() { backup.len() as u64 } else { 0 } };
    let about = |error| match error {
        Luks::Backup(_) => Failure::wrong(format!(
            "{file}: {error}; name a file that ucrypt luksHeaderBackup or cryptsetup has made"
        )),
        error => Failure::from(error).about(&name),
    };
    let asked = restore_from(&grown, &backup, &mut secrecy::random).map_err(about)?;
    check_survives(&name, &asked, saved.as_deref())?;
    let needed = asked.header.backup_len();
    let is_detached = args.header.is_detached() || asked.header.data_offset() == 0;
    if image_len < needed && !is_detached {
        return Err(Failure::from(Luks::LargerThanImage { needed, image_len }).about(&name));
    }
    // Behind a header begins the data, whoever uses it. Without one, the image itself is somebody's data.
    let unused = || asked.old.is_none().then(|| open_to_format(place)).transpose();
    drop(unused()?);
    confirm(&warning(&name, &asked), args.header.batch_mode)?;
    let unused = unused()?;
    if image_len < needed {
        grow(place, &look, needed)?;
    }
    let (lock, image) = lock_asked(place, &look)?;
    unused.as_ref().map_or(Ok(()), |unused| check_same(unused, lock.file(), place))?;
    let medium = HeaderImage(&image);
    // The header may have changed while a person was asked.
    let now = restore_from(&medium, &backup, &mut secrecy::random).map_err(about)?;
    if !overwrites_the_same(&asked, &now) {
        return Err(changed());
    }
    check_survives(&name, &now, saved.as_deref())?;
    reserve(&lock, place, &now.writes)?;
    if let Some(saved) = saved {
        save_old(&now, &medium, saved)?;
    }
    let what = format!("restoring the header of {name}");
    write_shown(&what, &medium, &now.writes).map_err(|error| {
        let back = saved.as_ref().filter(|_| now.old.is_some()).map(|saved| {
            format!("; to go back, luksHeaderRestore --header-backup-file {}", saved.display())
        });
        Failure::device(format!(
            "{error}; the header is half restored: keep the backup, and run this again{}",
            back.unwrap_or_default()
        ))
    })
}

/// Refuses to begin if an interruption might leave no key, and the old header is not saved before.
fn check_survives(name: &str, restore: &Restore, saved: Option<&Path>) -> Result<(), Failure> {
    if restore.survives || saved.is_some() {
        return Ok(());
    }
    Err(Failure::wrong(format!(
        "{name}: there is no room to keep a keyslot of the header that is there until the backup is, so an \
         interruption would leave no key; use --old-header-file FILE, from which luksHeaderRestore gets \
         that header back"
    )))
}

/// Saves the header that is about to be overwritten. A file that is there already may be the work of a
/// restore that was interrupted: it stays if it holds the keys of this header.
fn save_old(restore: &Restore, medium: &HeaderImage<'_>, path: &Path) -> Result<(), Failure> {
    if path.exists() {
        if restore.is_old_in(&read_backup(path)?) {
            return Ok(());
        }
        let shown = path.display();
        return Err(Failure::wrong(format!(
            "{shown} exists and does not hold the keys of the header that is there now; name a new file"
        )));
    }
    match restore.old_backup(medium, &mut secrecy::random)? {
        Some(bytes) => store(&bytes, path),
        None => Ok(()),
    }
}

/// Whether two readings of an image find the same to be overwritten.
fn overwrites_the_same(one: &Restore, other: &Restore) -> bool {
    let same_header = match (&one.old, &other.old) {
        (Some(one), Some(other)) => is_same_volume(one, other),
        (None, None) => true,
        _ => false,
    };
    same_header && one.foreign == other.foreign
}

/// What is lost, in cryptsetup's words.
fn warning(name: &str, restore: &Restore) -> String {
    let mut warning = match &restore.old {
        None => format!(
            "Device {name} does not contain LUKS header. Replacing header can destroy data on that \
             device."
        ),
        Some(old) => format!(
            "Device {name} already contains {} header. Replacing header will destroy existing \
             keyslots.",
            old.format().name().to_uppercase()
        ),
    };
    if restore.old.as_ref().is_some_and(|old| old.uuid() != restore.header.uuid()) {
        warning.push_str("\n\nWARNING: real device header has different UUID than backup!");
    }
    let foreign = restore.foreign.map(|found| format!("\n\nWARNING: there is {found}!"));
    warning + &foreign.unwrap_or_default()
}

fn read_backup(path: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |error: io::Error| {
        Failure::wrong(format!("cannot read the backup {}: {error}", path.display()))
    };
    let len = fs::metadata(path).map_err(failed)?.len();
    if len > BACKUP_MAX {
        let path = path.display();
        return Err(Failure::wrong(format!("{path} is no backup: it has {len} bytes")));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(BACKUP_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Carries out `repair`.
pub(crate) fn repair(args: &WholeArgs) -> Result<(), Failure> {
    let place = args.header.place();
    let image = open_to_look(place)?;
    match luks1::Header::repair(&HeaderImage(&image)) {
        // It is not LUKS1. What cannot be read may be LUKS2, which has another copy.
        Err(
            Luks::NotLuks { .. }
            | Luks::UnknownVersion(_)
            | Luks::Truncated { .. }
            | Luks::Read { .. },
        ) => repair_luks2(args),
        Ok(Some(found)) => repair_luks1(args, &image, &found),
        Ok(None) => {
            if let (_, Header::Luks1(header)) = args.header.look()? {
                header.check_states()?;
            }
            say(NO_PROBLEMS);
            Ok(())
        }
        Err(error) => Err(Failure::from(error).about(place.display())),
    }
}

fn repair_luks1(
    args: &WholeArgs,
    image: &FileBackend,
    found: &luks1::Repair,
) -> Result<(), Failure> {
    args.header.check_kind(&Header::Luks1(Box::new(found.header.clone())))?;
    let foreign = named(find_foreign(&HeaderImage(image))?);
    confirm(&format!("{REPAIR}\n{}{foreign}", found.mended.join("\n")), args.header.batch_mode)?;
    let place = args.header.place();
    let (lock, image) = lock_asked(place, image)?;
    // The header may have changed while a person was asked.
    let repair = match luks1::Header::repair(&HeaderImage(&image)) {
        Ok(Some(repair)) if repair.header == found.header => repair,
        _ => return Err(changed()),
    };
    carry_out(&image, &lock, place, &[repair.write])?;
    repair.mended.iter().for_each(say_line);
    Ok(())
}

fn repair_luks2(args: &WholeArgs) -> Result<(), Failure> {
    let (look, before, found) = args.header.look_at_damage()?;
    let Some(found) = found else {
        say(NO_PROBLEMS);
        return Ok(());
    };
    let kept = found.kept().map(|kept| format!(" ({kept})")).unwrap_or_default();
    let foreign = named(found.foreign());
    let warning = format!("{REPAIR}\n{found}{kept}; it is overwritten.{foreign}");
    confirm(&warning, args.header.batch_mode)?;
    let locked = args.header.lock_to_repair()?;
    // The header may have changed while a person was asked.
    locked.check_volume(&look, &before)?;
    let (Header::Luks2(header), Some(damage)) = (&locked.header, &locked.damage) else {
        return Err(changed());
    };
    if damage.to_string() != found.to_string() {
        return Err(changed());
    }
    let write = header.repair_by_request(damage, &mut secrecy::random)?;
    locked.carry_out(&[write])?;
    say_line(format_args!("{damage}; it was written again from the other one"));
    Ok(())
}

/// What a foreign signature means.
fn named(foreign: Option<Signature>) -> String {
    let told = |found| format!("\nThere is {found}: the image may belong to another program now.");
    foreign.map(told).unwrap_or_default()
}

/// Carries out `erase`.
pub(crate) fn erase(args: &WholeArgs) -> Result<(), Failure> {
    let (look, before) = args.header.look()?;
    let name = args.header.name();
    let warning = format!(
        "This operation will erase all keyslots on device {name}.\nDevice will become unusable \
         after this operation."
    );
    confirm_on_keys(&warning, args.header.batch_mode, ", keyslots were NOT wiped")?;
    let locked = args.header.lock()?;
    locked.check_volume(&look, &before)?;
    let (image, damage) = (HeaderImage(&locked.image), locked.damage.as_ref());
    let change = locked.header.erase(&image, damage, &mut secrecy::random)?;
    locked.destroy(&format!("erasing the keyslots of {name}"), &change.writes)?;
    locked.header.keyslots().into_iter().for_each(removed);
    Ok(())
}
