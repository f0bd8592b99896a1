//! `luksSuspend` and `luksResume`: an open volume without its key.
//!
//! The server finishes the requests under way, then wipes the ciphers, which hold the only copies of
//! the key. New requests wait. Resuming unlocks the header in the foreground, as `open` does, and
//! passes the key to the server, which takes no other than the one it had.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::time::{Duration, Instant};

use serde_json::json;
use ucrypt_engine::Volume;
use ucrypt_luks::HeaderDigest;

use super::control::{self, Request};
use super::said;
use crate::failure::Failure;
use crate::json_path::path_in;
use crate::keyring;
use crate::log::{Level, event};
use crate::luks::Kind;
use crate::passphrase::VerifiedKeyArgs;
use crate::runtime::RuntimePaths;
use crate::secrecy;
use crate::token_unlock::TokenUnlockArgs;
use crate::volume::{Again, Opened};

/// How long requests under way may take to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// Arguments of `luksSuspend`.
#[derive(Debug, clap::Args)]
pub(crate) struct SuspendArgs {
    /// Name of the open volume, or the path of its device
    name: String,
}

/// Arguments of `luksResume`.
#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArgs {
    /// Name of the suspended volume, or the path of its device
    name: String,
    #[command(flatten)]
    key: VerifiedKeyArgs,
    /// How often a passphrase may be tried at a terminal; 0 is once
    #[arg(short = 'T', long, value_name = "COUNT", default_value_t = 3)]
    tries: u32,
    /// Try only this keyslot
    #[arg(short = 'S', long, value_name = "NUMBER")]
    key_slot: Option<u32>,
    /// Use the volume key in this file instead of a passphrase
    #[arg(long, alias = "master-key-file", value_name = "FILE", conflicts_with_all = [
        "key_file", "keyfile_size", "keyfile_offset", "key_description", "timeout", "verify_passphrase", "key_slot", "tries",
        "token_id", "token_type", "token_only",
    ])]
    volume_key_file: Option<PathBuf>,
    /// Use the volume key that the kernel's keyring holds under this name, as a key of the type user
    #[arg(long, value_name = "NAME", conflicts_with_all = [
        "key_file", "keyfile_size", "keyfile_offset", "key_description", "timeout", "verify_passphrase", "key_slot", "tries",
        "token_id", "token_type", "token_only", "volume_key_file",
    ])]
    volume_key_keyring: Option<String>,
    /// Where the LUKS header is now, if not where it was when the volume was opened
    #[arg(long, value_name = "FILE")]
    header: Option<PathBuf>,
    /// Refuse a volume of another kind
    #[arg(short = 'M', long = "type", value_enum, ignore_case = true, value_name = "TYPE", default_value_t = Kind::Luks)]
    kind: Kind,
    #[command(flatten)]
    token: TokenUnlockArgs,
    /// Do not warn
    #[arg(short = 'q', long)]
    batch_mode: bool,
}

/// Carries out `luksSuspend`.
pub(crate) fn suspend(args: &SuspendArgs) -> Result<(), Failure> {
    let paths = RuntimePaths::of_open(&args.name)?;
    said(&control::ask(&paths, Request::Suspend)?)
}

/// Carries out `luksResume`.
pub(crate) fn resume(args: &ResumeArgs) -> Result<(), Failure> {
    secrecy::lock_memory();
    let paths = RuntimePaths::of_open(&args.name)?;
    // Before a passphrase is asked for.
    let status = control::own_status(&paths)?;
    let name = paths.name();
    if status["suspended"] != true {
        return Err(not_suspended(name));
    }
    let found = status["volume"]["type"].as_str().unwrap_or_default();
    if !args.kind.is_named(found) {
        return Err(Failure::wrong(format!("{name} is {found}, which --type excludes")));
    }
    let volume = &status["volume"];
    let header = args.header.clone().or_else(|| path_in(volume, "header"));
    let place = header.or_else(|| path_in(volume, "image")).unwrap_or_default();
    let pinned = volume["header_digest"].as_str().map(HeaderDigest::from_str);
    let pinned = pinned.transpose().map_err(Failure::wrong)?;
    let again = Again {
        place: &place,
        pinned,
        key: &args.key,
        tries: args.tries,
        keyslot: args.key_slot,
        token: &args.token,
        quiet: args.batch_mode,
    };
    let key = match (&args.volume_key_file, &args.volume_key_keyring) {
        (_, Some(description)) => keyring::volume_key(description)?,
        (Some(path), None) => {
            // As much as `open` reads. The file may be longer.
            let bits = volume["key_bits"].as_u64();
            crate::passphrase::read_volume_key(path, bits.map(|bits| bits / 8))?
        }
        (None, None) => again.unlock()?,
    };
    said(&control::resume(&paths, &key)?)
}

fn not_suspended(name: &str) -> Failure {
    Failure::wrong(format!("{name} is not suspended"))
}

/// The refusal to suspend a volume that is about to end.
pub(super) fn ends(name: &str) -> Failure {
    Failure::busy(format!("{name} is about to end, and is not suspended"))
}

/// Whether an open volume has its key.
pub(super) enum Suspension {
    /// It has.
    None,
    /// It has, until it is known whether the volume ends; the client that waits.
    Asked(UnixStream),
    /// Requests are under way; the client that waits, and since when.
    Ending(UnixStream, Instant),
    /// It has not.
    Suspended,
}

impl Suspension {
    pub(super) fn is_ending(&self) -> bool {
        matches!(self, Self::Ending(..))
    }

    pub(super) fn is_suspended(&self) -> bool {
        matches!(self, Self::Suspended)
    }

    /// Takes a client's request, or refuses it. [`Suspension::begin`] carries it out.
    pub(super) fn ask(&mut self, name: &str, opened: &Opened, stream: UnixStream) {
        let refusal = match self {
            Self::Suspended => Some(Failure::wrong(format!("{name} is suspended already"))),
            Self::Asked(_) | Self::Ending(..) => {
                Some(Failure::busy(format!("{name} is being suspended already")))
            }
            Self::None if opened.resume.is_none() => Some(Failure::wrong(format!(
                "{name} has no LUKS header, so nobody could tell whether the key that comes back \
                 is the right one"
            ))),
            Self::None => None,
        };
        if let Some(failure) = refusal {
            return control::reply(stream, &control::refusal(&failure));
        }
        *self = Self::Asked(stream);
    }

    /// Begins to suspend if somebody has asked for it; [`Suspension::step`] answers the client.
    pub(super) fn begin(&mut self, volume: &Volume) {
        *self = match std::mem::replace(self, Self::None) {
            Self::Asked(stream) => {
                volume.halt();
                Self::Ending(stream, Instant::now())
            }
            other => other,
        };
    }

    /// Wipes the key once nothing is under way. Gives up if that takes too long.
    pub(super) fn step(&mut self, name: &str, volume: &Volume) {
        if !self.is_ending() {
            return;
        }
        let Self::Ending(stream, since) = std::mem::replace(self, Self::Suspended) else {
            return;
        };
        if volume.suspend() {
            secrecy::scrub_stack();
            event(Level::Info, "suspended", "has lost its key; requests wait");
            return control::reply(stream, &json!({ "suspended": true }));
        }
        if since.elapsed() < PATIENCE {
            *self = Self::Ending(stream, since);
            return;
        }
        volume.unhalt();
        *self = Self::None;
        let failure = Failure::device(format!(
            "{name} is not suspended: requests under way did not end in {} s",
            PATIENCE.as_secs()
        ));
        control::reply(stream, &control::refusal(&failure));
    }

    /// Takes a suspension back that is not complete, because the volume ends: nothing waits for the
    /// key then.
    pub(super) fn cancel(&mut self, name: &str, volume: &Volume) {
        let refuse = |stream| control::reply(stream, &control::refusal(&ends(name)));
        *self = match std::mem::replace(self, Self::None) {
            Self::Asked(stream) => {
                refuse(stream);
                Self::None
            }
            Self::Ending(stream, _) => {
                volume.unhalt();
                refuse(stream);
                Self::None
            }
            other => other,
        };
    }

    /// Gives the volume its key again.
    pub(super) fn end(&mut self, name: &str, opened: &Opened, key: &[u8]) -> Result<(), Failure> {
        let resume = opened.resume.as_ref().filter(|_| self.is_suspended());
        let resume = resume.ok_or_else(|| not_suspended(name))?;
        let resumed = resume
            .ciphers(key)
            .and_then(|ciphers| opened.volume.resume(ciphers).map_err(Failure::wrong));
        secrecy::scrub_stack();
        resumed?;
        *self = Self::None;
        Ok(())
    }
}
