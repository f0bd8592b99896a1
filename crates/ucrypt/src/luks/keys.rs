//! `luksAddKey`, `luksChangeKey`, `luksConvertKey`, `luksRemoveKey`, `luksKillSlot`.
//!
//! A passphrase is tried once on the header as it is, before the next one is asked for. The change
//! itself happens under the lock, on a header that is read again. The only derivations there are that
//! of the new keyslot, and that of the passphrase that has to open the volume without a keyslot that
//! is wiped: what opened it a moment ago may be gone.

use std::path::{Path, PathBuf};

use subtle::ConstantTimeEq;
use ucrypt_backend::FileBackend;
use ucrypt_luks::{Error, Header, NewKey, OpenedKey, Unlocked, Write};

use super::change::{HeaderArgs, Locked, with_tools};
use super::confirm::confirm_on_keys;
use super::image::HeaderImage;
use super::new_key_args::{KeyslotArgs, NewPassphraseArgs, bytes_of};
use crate::failure::Failure;
use crate::keyring;
use crate::memory;
use crate::passphrase::{KeyArgs, Secret, VerifiedKeyArgs, read_volume_key};
use crate::secrecy;
use crate::stdio::{say, say_verbose};
use crate::token_unlock::{TokenUnlockArgs, check_token, passphrase_of_token};

/// cryptsetup's words before the last key is removed.
const LAST: &str = "This is the last keyslot. Device will become unusable after purging this key.";

const KEPT: &str = ", the keyslot was NOT wiped";

/// Arguments of `luksAddKey`.
#[derive(Debug, clap::Args)]
pub(crate) struct AddKeyArgs {
    #[command(flatten)]
    header: HeaderArgs,
    #[command(flatten)]
    new: NewPassphraseArgs,
    #[command(flatten)]
    key: KeyArgs,
    /// Number of the new keyslot; with --new-key-slot, the keyslot that is unlocked
    #[arg(short = 'S', long, value_name = "NUMBER")]
    key_slot: Option<u32>,
    /// Number of the new keyslot
    #[arg(long, value_name = "NUMBER")]
    new_key_slot: Option<u32>,
    /// Use the volume key in this file instead of a passphrase; with --unbound, the key to be stored
    #[arg(long, alias = "master-key-file", value_name = "FILE")]
    volume_key_file: Option<PathBuf>,
    /// Use the volume key that the kernel's keyring holds under this name, as a key of the type user
    #[arg(long, value_name = "NAME", conflicts_with_all = ["volume_key_file", "unbound", "key_size"])]
    volume_key_keyring: Option<String>,
    /// Length of the key in --volume-key-file, or of the new key with --unbound
    #[arg(short = 's', long, value_name = "BITS")]
    key_size: Option<u32>,
    /// Store a key that encrypts nothing of this volume; random without --volume-key-file
    #[arg(long, requires = "key_size")]
    unbound: bool,
    /// Take the new passphrase from this token of the header, and assign the token to the new keyslot
    #[arg(long, value_name = "NUMBER", conflicts_with_all = [
        "new_key_file", "new_keyfile", "new_keyfile_size", "new_keyfile_offset", "new_key_description",
        "verify_passphrase", "unbound",
    ])]
    new_token_id: Option<u32>,
    #[command(flatten)]
    token: TokenUnlockArgs,
    #[command(flatten)]
    keyslot: KeyslotArgs,
}

/// Arguments of `luksChangeKey`.
#[derive(Debug, clap::Args)]
pub(crate) struct ChangeKeyArgs {
    #[command(flatten)]
    header: HeaderArgs,
    #[command(flatten)]
    new: NewPassphraseArgs,
    #[command(flatten)]
    key: KeyArgs,
    /// Change only this keyslot
    #[arg(short = 'S', long, value_name = "NUMBER")]
    key_slot: Option<u32>,
    #[command(flatten)]
    keyslot: KeyslotArgs,
}

/// Arguments of `luksConvertKey`.
#[derive(Debug, clap::Args)]
pub(crate) struct ConvertKeyArgs {
    #[command(flatten)]
    header: HeaderArgs,
    #[command(flatten)]
    key: VerifiedKeyArgs,
    /// Convert only this keyslot
    #[arg(short = 'S', long, value_name = "NUMBER")]
    key_slot: Option<u32>,
    #[command(flatten)]
    keyslot: KeyslotArgs,
}

/// Arguments of `luksRemoveKey`.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveKeyArgs {
    #[command(flatten)]
    header: HeaderArgs,
    /// Key file with the passphrase to be removed
    #[arg(value_name = "KEY_FILE", conflicts_with_all = ["key_file", "key_description"])]
    old_key_file: Option<PathBuf>,
    #[command(flatten)]
    key: VerifiedKeyArgs,
}

/// Arguments of `luksKillSlot`.
#[derive(Debug, clap::Args)]
pub(crate) struct KillSlotArgs {
    #[command(flatten)]
    header: HeaderArgs,
    /// The keyslot to be wiped
    number: u32,
    #[command(flatten)]
    key: VerifiedKeyArgs,
}

/// Carries out `luksAddKey`.
pub(crate) fn add(args: &AddKeyArgs) -> Result<(), Failure> {
    secrecy::lock_memory();
    let (image, header) = args.header.look()?;
    args.check(&header)?;
    if args.unbound {
        return add_unbound(args, &header);
    }
    let key = args.volume_key(&header, &HeaderImage(&image))?;
    // The next passphrase may be waited for.
    secrecy::scrub_stack();
    let prompt = "Enter new passphrase for key slot";
    let passphrase = match args.new_token_id {
        Some(number) => passphrase_of_token(&header, number)?,
        None => args.new.read(prompt, &args.key, args.header.batch_mode)?,
    };
    let locked = args.header.lock()?;
    let volume = locked.header.unlock_with_volume_key(&key)?;
    let new = args.keyslot.new_key(locked.header.format(), &passphrase)?;
    let (keyslot, writes) = if let Some(number) = args.new_token_id {
        locked.check_token(&header, number)?;
        add_with_token(&locked, &volume, number, args.new_number(), &new)?
    } else {
        let (damage, number) = (locked.damage.as_ref(), args.new_number());
        let change =
            with_tools(|tools| locked.header.add_key(damage, &volume, number, &new, tools))?;
        (change.keyslot, change.writes)
    };
    locked.carry_out(&writes)?;
    created(keyslot);
    Ok(())
}

/// A keyslot for the passphrase of a token, which is assigned to it in the same change.
fn add_with_token(
    locked: &Locked,
    volume: &Unlocked,
    token: u32,
    number: Option<u32>,
    new: &NewKey<'_>,
) -> Result<(u32, Vec<Write>), Failure> {
    let header = locked.header.luks2("tokens")?;
    let mut change = header.change(locked.damage.as_ref())?;
    let key = &volume.volume_key;
    let keyslot = with_tools(|tools| change.add_keyslot(header, key, number, new, tools))?;
    change.assign_token(token, Some(keyslot))?;
    let (_, writes) = change.finish(&mut secrecy::random)?;
    Ok((keyslot, writes))
}

fn add_unbound(args: &AddKeyArgs, header: &Header) -> Result<(), Failure> {
    header.luks2("unbound keyslots")?;
    let len = bytes_of("--key-size", args.key_size.unwrap_or_default())?;
    let key = match &args.volume_key_file {
        Some(path) => read_volume_key(path, Some(u64::from(len)))?,
        None => ucrypt_luks::random_volume_key(len, &mut secrecy::random)?,
    };
    let prompt = "Enter new passphrase for key slot";
    let passphrase = args.new.read(prompt, &args.key, args.header.batch_mode)?;
    let locked = args.header.lock()?;
    let new = args.keyslot.new_key(locked.header.format(), &passphrase)?;
    let change = with_tools(|tools| {
        let damage = locked.damage.as_ref();
        locked.header.add_unbound_key(damage, &key, args.new_number(), &new, tools)
    })?;
    locked.carry_out(&change.writes)?;
    created(change.keyslot);
    Ok(())
}

impl AddKeyArgs {
    /// Refuses wrong options before anything is asked.
    fn check(&self, header: &Header) -> Result<(), Failure> {
        self.new.check(self.header.place())?;
        self.keyslot.check(header.format())?;
        if self.key_size.is_some() && !self.unbound && self.volume_key_file.is_none() {
            return Err(Failure::wrong(
                "--key-size has an effect only with --volume-key-file or --unbound",
            ));
        }
        if let Some(number) = self.new_token_id {
            check_token(header, number)?;
        }
        let no_passphrase =
            self.unbound || self.volume_key_file.is_some() || self.volume_key_keyring.is_some();
        let by_name = [
            (self.key.key_file.is_some(), "--key-file"),
            (self.key.key_description.is_some(), "--key-description"),
        ];
        let by_name = by_name.iter().find(|(given, _)| *given).map(|(_, option)| option);
        if no_passphrase && let Some(option) = by_name {
            return Err(Failure::wrong(format!(
                "{option} has no effect beside --volume-key-file, --volume-key-keyring or --unbound; \
                 the new key file is the last argument"
            )));
        }
        if no_passphrase && self.token.is_given() {
            return Err(Failure::wrong(
                "--token-id, --token-type and --token-only have no effect beside \
                 --volume-key-file, --volume-key-keyring or --unbound",
            ));
        }
        if self.token.is_given()
            && let Some(option) = by_name
        {
            return Err(Failure::wrong(format!(
                "{option} has no effect beside --token-id, --token-type and --token-only"
            )));
        }
        if self.key_slot.is_some() && self.new_key_slot.is_none() {
            say("WARNING: The --key-slot parameter is used for new keyslot number.\n");
        }
        if no_passphrase && self.key_slot.is_some() && self.new_key_slot.is_some() {
            return Err(Failure::wrong("--key-slot has no effect: no keyslot is unlocked"));
        }
        // Changes that cannot succeed are refused before a key is derived.
        if let Some(number) = self.new_number() {
            let limit = if matches!(header, Header::Luks1(_)) { 8 } else { 32 };
            if number >= limit {
                return Err(Failure::wrong(format!(
                    "keyslot {number} is invalid, select one between 0 and {}",
                    limit - 1
                )));
            }
            if header.keyslots().contains(&number) {
                let problem = format!("keyslot {number} is full, select another one");
                return Err(Failure::wrong(problem));
            }
        }
        Ok(())
    }

    /// The number that the new keyslot is to have.
    fn new_number(&self) -> Option<u32> {
        self.new_key_slot.or(self.key_slot)
    }

    /// The volume key, from a passphrase, from a file or from the keyring.
    fn volume_key(&self, header: &Header, image: &HeaderImage<'_>) -> Result<Secret, Failure> {
        if let Some(description) = &self.volume_key_keyring {
            let key = keyring::volume_key(description)?;
            return Ok(header.unlock_with_volume_key(&key)?.volume_key);
        }
        let Some(path) = &self.volume_key_file else {
            let keyslot = self.new_key_slot.and(self.key_slot);
            if self.token.is_given() {
                // As in cryptsetup, a keyslot that a token has unlocked is not named.
                return Ok(self.token.unlock_only(header, image, keyslot)?.volume_key);
            }
            memory::check_unlock(header, keyslot)?;
            let passphrase = self.key.read("Enter any existing passphrase")?;
            let opened = header
                .unlock(image, &passphrase, keyslot)
                .map_err(|error| self.key.failure(error, self.header.place(), &passphrase))?;
            opened.keyslot.iter().copied().for_each(unlocked);
            return Ok(opened.volume_key);
        };
        let len = match (self.key_size, header.volume_key_len()) {
            (Some(bits), _) => bytes_of("--key-size", bits)?,
            (None, Some(len)) => len,
            (None, None) => {
                return Err(Failure::wrong(
                    "the header has no keyslot that tells the length of the volume key; use \
                     --key-size",
                ));
            }
        };
        let key = read_volume_key(path, Some(u64::from(len)))?;
        Ok(header.unlock_with_volume_key(&key)?.volume_key)
    }
}

/// Carries out `luksChangeKey`.
pub(crate) fn change(args: &ChangeKeyArgs) -> Result<(), Failure> {
    secrecy::lock_memory();
    let (image, header) = args.header.look()?;
    args.new.check(args.header.place())?;
    args.keyslot.check(header.format())?;
    check_memory(&header, args.key_slot)?;
    let old = args.key.read("Enter passphrase to be changed")?;
    let opened = header
        .open_key(&HeaderImage(&image), &old, args.key_slot)
        .map_err(|error| args.key.failure(error, args.header.place(), &old))?;
    unlocked(opened.keyslot);
    // The next passphrase may be waited for.
    secrecy::scrub_stack();
    let passphrase = args.new.read("Enter new passphrase", &args.key, args.header.batch_mode)?;
    let replaced = Replaced { image: &image, header: &header, opened: &opened, passphrase: &old };
    let keep_number = args.key_slot.is_some();
    replace(&args.header, &replaced, &args.keyslot, &passphrase, keep_number)
}

/// Carries out `luksConvertKey`.
pub(crate) fn convert_key(args: &ConvertKeyArgs) -> Result<(), Failure> {
    secrecy::lock_memory();
    let (image, header) = args.header.look()?;
    header.luks2("key derivation to convert")?;
    args.keyslot.check(header.format())?;
    args.key_slot.map_or(Ok(()), |number| header.check_keyslot(number))?;
    check_memory(&header, args.key_slot)?;
    let key = args.key.key(args.header.batch_mode);
    let passphrase = key.read("Enter passphrase for keyslot to be converted")?;
    let opened = header
        .open_key(&HeaderImage(&image), &passphrase, args.key_slot)
        .map_err(|error| key.failure(error, args.header.place(), &passphrase))?;
    let replaced =
        Replaced { image: &image, header: &header, opened: &opened, passphrase: &passphrase };
    replace(&args.header, &replaced, &args.keyslot, &passphrase, true)
}

/// As [`memory::check_unlock`], for an action that opens unbound keyslots, too.
pub(super) fn check_memory(header: &Header, keyslot: Option<u32>) -> Result<(), Failure> {
    let keyslots = header.keyslots().into_iter();
    Ok(memory::check_keyslots(
        header,
        keyslots.filter(|it| keyslot.is_none_or(|only| only == *it)),
    )?)
}

/// The key that is to be replaced, as it was found.
struct Replaced<'a> {
    image: &'a FileBackend,
    header: &'a Header,
    opened: &'a OpenedKey,
    passphrase: &'a [u8],
}

fn replace(
    place: &HeaderArgs,
    old: &Replaced<'_>,
    keyslot: &KeyslotArgs,
    passphrase: &[u8],
    keep_number: bool,
) -> Result<(), Failure> {
    let locked = place.lock()?;
    locked.check_keyslot(old.image, old.header, old.opened.keyslot)?;
    let new = keyslot.new_key(locked.header.format(), passphrase)?;
    let change = with_tools(|tools| {
        locked.header.change_key(locked.damage.as_ref(), old.opened, keep_number, &new, tools)
    })?;
    // The same passphrase once more gets another keyslot, as with cryptsetup. Another one has to replace it.
    if !bool::from(old.passphrase.ct_eq(passphrase)) {
        change.header.check_new_key(change.keyslot, old.passphrase, passphrase)?;
    }
    locked.carry_out(&change.writes)?;
    created(change.keyslot);
    Ok(())
}

// cryptsetup's words.

pub(super) fn unlocked(keyslot: u32) {
    say_verbose(format_args!("Key slot {keyslot} unlocked."));
}

pub(super) fn created(keyslot: u32) {
    say_verbose(format_args!("Key slot {keyslot} created."));
}

pub(super) fn removed(keyslot: u32) {
    say_verbose(format_args!("Key slot {keyslot} removed."));
}

fn selected(keyslot: u32) {
    say_verbose(format_args!("Keyslot {keyslot} is selected for deletion."));
}

/// Carries out `luksRemoveKey`.
pub(crate) fn remove(args: &RemoveKeyArgs) -> Result<(), Failure> {
    secrecy::lock_memory();
    let (image, header) = args.header.look()?;
    if header.keyslots().is_empty() {
        return Err(Error::NoKeyslot.into());
    }
    let key = args.key.clone().or_file(args.old_key_file.as_deref()).key(args.header.batch_mode);
    check_memory(&header, None)?;
    let passphrase = key.read("Enter passphrase to be deleted")?;
    let opened = header
        .open_key(&HeaderImage(&image), &passphrase, None)
        .map_err(|error| key.failure(error, args.header.place(), &passphrase))?;
    unlocked(opened.keyslot);
    selected(opened.keyslot);
    // An answer may be waited for.
    secrecy::scrub_stack();
    if is_last(&header, opened.keyslot) {
        confirm_on_keys(LAST, args.header.batch_mode, KEPT)?;
    }
    let locked = lock_to_wipe(&args.header, &image, &header, opened.keyslot)?;
    wipe(&locked, opened.keyslot)
}

/// Carries out `luksKillSlot`.
pub(crate) fn kill_slot(args: &KillSlotArgs) -> Result<(), Failure> {
    secrecy::lock_memory();
    let (image, header) = args.header.look()?;
    header.check_keyslot(args.number)?;
    let last = is_last(&header, args.number);
    selected(args.number);
    if last {
        confirm_on_keys(LAST, args.header.batch_mode, KEPT)?;
    }
    let passphrase = args.passphrase(&header, last)?;
    let locked = lock_to_wipe(&args.header, &image, &header, args.number)?;
    if let Some(passphrase) = passphrase {
        // A keyslot that opened before the lock may have been removed since, or never been stored.
        let medium = HeaderImage(&locked.image);
        let opened = if last {
            locked.header.unlock(&medium, &passphrase, Some(args.number))
        } else {
            locked.header.unlock_without(&medium, &passphrase, args.number)
        };
        let key = args.key.key(true);
        let opened =
            opened.map_err(|error| key.failure(error, args.header.place(), &passphrase))?;
        opened.keyslot.iter().copied().for_each(unlocked);
    }
    wipe(&locked, args.number)
}

impl KillSlotArgs {
    /// The passphrase of a keyslot that remains. In batch mode there need not be one.
    fn passphrase(&self, header: &Header, last: bool) -> Result<Option<Secret>, Failure> {
        let prompt = "Enter any remaining passphrase";
        let key = self.key.key(self.header.batch_mode);
        // The last one is opened itself, otherwise one of the others.
        let tried = header.keyslots().into_iter().filter(|it| (*it == self.number) == last);
        if !self.header.batch_mode {
            memory::check_keyslots(header, tried)?;
            return key.read(prompt).map(Some);
        }
        let named = key.key_file.as_deref().is_some_and(|file| file != Path::new("-"));
        if !named && key.is_interactive() {
            return Ok(None);
        }
        memory::check_keyslots(header, tried)?;
        key.read_if_any(prompt)
    }
}

/// Whether nothing but the volume key opens the volume without this keyslot.
fn is_last(header: &Header, number: u32) -> bool {
    header.volume_keyslots() == [number]
}

/// Locks the header, in which the keyslot has to be as it was when `before` was read from `look`.
fn lock_to_wipe(
    place: &HeaderArgs,
    look: &FileBackend,
    before: &Header,
    number: u32,
) -> Result<Locked, Failure> {
    let locked = place.lock()?;
    locked.check_keyslot(look, before, number)?;
    if is_last(&locked.header, number) && !is_last(before, number) {
        return Err(Failure::busy(
            "another program has removed the other keyslots meanwhile; nothing was done",
        ));
    }
    Ok(locked)
}

fn wipe(locked: &Locked, number: u32) -> Result<(), Failure> {
    let change = locked.header.remove_key(locked.damage.as_ref(), number, &mut secrecy::random)?;
    locked.carry_out(&change.writes)?;
    removed(number);
    Ok(())
}
