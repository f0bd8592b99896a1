//! `token`: add, remove, import, export, unassign. Tokens of other programs are kept as they are.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use ucrypt_luks::Json;
use ucrypt_luks::luks2::{self, Change, keyring_token};

use super::change::HeaderArgs;
use super::image::{NewFile, PRIVATE};
use crate::failure::Failure;
use crate::secrecy;
use crate::stdio::{Stdin, Stdout, say_verbose};

/// Longest token that is read, in bytes: the largest JSON area.
const TOKEN_MAX: u64 = 4 << 20;

/// Arguments of `token`.
#[derive(Debug, clap::Args)]
pub(crate) struct TokenArgs {
    /// What to do with the token
    action: Action,
    #[command(flatten)]
    header: HeaderArgs,
    /// Number of the token
    #[arg(long, value_name = "NUMBER")]
    token_id: Option<u32>,
    /// The keyslot that it belongs to; `add` without it takes all
    #[arg(short = 'S', long, value_name = "NUMBER")]
    key_slot: Option<u32>,
    /// add: the token belongs to no keyslot
    #[arg(long, conflicts_with = "key_slot")]
    unbound: bool,
    /// add: description of the key in the kernel's keyring
    #[arg(long, value_name = "TEXT")]
    key_description: Option<String>,
    /// import, export: read or write JSON here, not on standard input or output
    #[arg(long, value_name = "FILE")]
    json_file: Option<PathBuf>,
    /// add, import: replace the token that has the number
    #[arg(long, requires = "token_id")]
    token_replace: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Add a token for a passphrase in the kernel's keyring
    Add,
    /// Remove a token
    Remove,
    /// Store a token that is given as JSON
    Import,
    /// Print a token as JSON
    Export,
    /// Separate a token from a keyslot
    Unassign,
}

/// Carries out `token`.
pub(crate) fn token(args: &TokenArgs) -> Result<(), Failure> {
    args.check()?;
    match args.action {
        Action::Add => {
            let token = keyring_token(args.key_description.as_deref().unwrap_or_default());
            store(args, &token, !args.unbound)
        }
        Action::Import => store(args, &read_token(args.json_file.as_deref())?, false),
        Action::Export => export(args),
        Action::Remove => {
            edit(args, Change::remove_token)?;
            say_verbose(format_args!("Token {} removed.", args.token_id.unwrap_or_default()));
            Ok(())
        }
        Action::Unassign => edit(args, |change, number| {
            change.unassign_token(number, args.key_slot.unwrap_or_default())
        }),
    }
}

impl TokenArgs {
    /// Refuses options without effect, and asks for those that are missing.
    fn check(&self) -> Result<(), Failure> {
        use Action::{Add, Export, Import, Remove, Unassign};
        let options = [
            ("--token-id", self.token_id.is_some(), &[Add, Remove, Import, Export, Unassign][..]),
            ("--key-slot", self.key_slot.is_some(), &[Add, Import, Unassign]),
            ("--unbound", self.unbound, &[Add]),
            ("--key-description", self.key_description.is_some(), &[Add]),
            ("--json-file", self.json_file.is_some(), &[Import, Export]),
            ("--token-replace", self.token_replace, &[Add, Import]),
        ];
        for (option, given, actions) in options {
            if given && !actions.contains(&self.action) {
                return Err(Failure::wrong(format!("{option} has no effect on this token action")));
            }
        }
        let needed = [
            ("--key-description NAME", self.key_description.is_some(), &[Add][..]),
            ("--token-id NUMBER", self.token_id.is_some(), &[Remove, Export, Unassign]),
            ("--key-slot NUMBER", self.key_slot.is_some(), &[Unassign]),
        ];
        for (option, given, actions) in needed {
            if !given && actions.contains(&self.action) {
                let action = self.action.to_possible_value();
                let action = action.as_ref().map_or("", |value| value.get_name());
                return Err(Failure::wrong(format!("token {action} needs {option}")));
            }
        }
        Ok(())
    }

    /// Refuses a token that the header does not have.
    fn check_token(&self, header: &luks2::Header) -> Result<u32, Failure> {
        let number = self.token_id.unwrap_or_default();
        if header.metadata.tokens.contains_key(&number) {
            return Ok(number);
        }
        let place = self.header.place().display();
        Err(Failure::wrong(format!(
            "token {number} is not in use; ucrypt luksDump {place} shows those that are"
        )))
    }
}

/// Stores a token, and assigns it to the keyslot that is named, or else to `all` if wanted.
fn store(args: &TokenArgs, token: &Json, all: bool) -> Result<(), Failure> {
    let locked = args.header.lock()?;
    let mut change = locked.header.luks2("tokens")?.change(locked.damage.as_ref())?;
    let number = change.put_token(args.token_id, token.clone(), args.token_replace)?;
    if all || args.key_slot.is_some() {
        change.assign_token(number, args.key_slot)?;
    }
    let (_, writes) = change.finish(&mut secrecy::random)?;
    locked.carry_out(&writes)?;
    say_verbose(format_args!("Token {number} created."));
    Ok(())
}

fn edit(
    args: &TokenArgs,
    edit: impl FnOnce(&mut Change, u32) -> ucrypt_luks::Result<()>,
) -> Result<(), Failure> {
    let locked = args.header.lock()?;
    let header = locked.header.luks2("tokens")?;
    let number = args.check_token(header)?;
    let mut change = header.change(locked.damage.as_ref())?;
    edit(&mut change, number)?;
    let (_, writes) = change.finish(&mut secrecy::random)?;
    locked.carry_out(&writes)
}

fn export(args: &TokenArgs) -> Result<(), Failure> {
    let (_, header) = args.header.look()?;
    let header = header.luks2("tokens")?;
    let number = args.check_token(header)?;
    let text = header.metadata.tokens[&number].json.to_stored();
    let Some(path) = args.json_file.as_deref().filter(|path| *path != Path::new("-")) else {
        return Stdout::get()?.put(&text);
    };
    let shown = path.display();
    // A token may hold a secret, wrapped or not: nobody else may read the file.
    let Some(mut made) = NewFile::create(path, PRIVATE)? else {
        return Err(Failure::wrong(format!("cannot write {shown}: it already exists")));
    };
    made.write(&text).map_err(|error| Failure::device(format!("cannot write {shown}: {error}")))?;
    Ok(made.keep()?)
}

/// Reads a token from a file or from standard input.
fn read_token(path: Option<&Path>) -> Result<Json, Failure> {
    let mut text = Vec::new();
    let named = path.filter(|path| *path != Path::new("-"));
    let read = match (named, Stdin::get()) {
        (Some(path), _) => {
            File::open(path).and_then(|file| file.take(TOKEN_MAX).read_to_end(&mut text))
        }
        (None, Some(stdin)) => stdin.take(TOKEN_MAX).read_to_end(&mut text),
        (None, None) => return Err(Failure::wrong("standard input is closed; use --json-file")),
    };
    read.map_err(|error| Failure::wrong(format!("cannot read the token: {error}")))?;
    Json::parse(text.trim_ascii())
        .map_err(|error| Failure::wrong(format!("the token is no JSON: {error}")))
}
