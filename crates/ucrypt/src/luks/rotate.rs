//! `luksRotateKey`: one passphrase in place of another, for automation.

use serde_json::json;
use ucrypt_luks::{Rotation, rotate};

use super::change::{HeaderArgs, with_tools};
use super::keys::check_memory;
use super::new_key_args::{KeyslotArgs, NewPassphraseArgs};
use crate::failure::Failure;
use crate::passphrase::KeyArgs;
use crate::secrecy;
use crate::stdio::announce;

/// Arguments of `luksRotateKey`.
#[derive(Debug, clap::Args)]
pub(crate) struct RotateKeyArgs {
    #[command(flatten)]
    header: HeaderArgs,
    #[command(flatten)]
    new: NewPassphraseArgs,
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    keyslot: KeyslotArgs,
    /// Print what was found and done as JSON
    #[arg(long)]
    json: bool,
}

/// Carries out `luksRotateKey`.
pub(crate) fn run(args: &RotateKeyArgs) -> Result<(), Failure> {
    secrecy::lock_memory();
    let (_, header) = args.header.look()?;
    args.new.check(args.header.place())?;
    args.keyslot.check(header.format())?;
    check_memory(&header, None)?;
    let old = args.key.read("Enter passphrase to be replaced")?;
    let passphrase = args.new.read("Enter new passphrase", &args.key, args.header.batch_mode)?;
    let locked = args.header.lock()?;
    let new = args.keyslot.new_key(locked.header.format(), &passphrase)?;
    let done = with_tools(|tools| rotate(&locked, &old, &new, tools))
        .map_err(|error| args.key.failure(error, args.header.place(), &old))?;
    let line = if args.json { told(args, &locked.header, &done) } else { said(&done) };
    announce(&line).map_err(|failure| Failure {
        message: format!("the key is replaced ({}), but {failure}", said(&done)),
        ..failure
    })
}

fn told(args: &RotateKeyArgs, header: &ucrypt_luks::Header, done: &Rotation) -> String {
    json!({
        "image": args.header.name(),
        "uuid": header.uuid().to_string(),
        "found": { "old": done.found_old, "new": done.found_new },
        "added": done.added,
        "verified": done.verified,
        "retired": done.retired,
    })
    .to_string()
}

fn said(done: &Rotation) -> String {
    let added = match (done.added, done.found_new) {
        (Some(number), _) => format!("keyslot {number} was added"),
        (None, number) => format!("keyslot {} was there", number.unwrap_or(done.verified)),
    };
    if done.retired.is_empty() {
        return format!("{added} and opens the volume; no old keyslot was left");
    }
    let retired: Vec<String> = done.retired.iter().map(u32::to_string).collect();
    format!("{added} and opens the volume; removed: {}", retired.join(", "))
}
