//! Unlocking with the tokens of a LUKS2 header, before a passphrase is asked for, as cryptsetup
//! does.
//!
//! A token of the type `luks2-keyring` names a key of the kernel's keyring. All other types belong
//! to other programs, such as systemd: their tokens are named, and not used.

use std::collections::BTreeMap;

use ucrypt_luks::luks2::{Metadata, Priority, Token};
use ucrypt_luks::{Error, Header, Json, ReadAt, Unlocked};

use crate::failure::Failure;
use crate::keyring::user_key;
use crate::passphrase::Secret;
use crate::stdio::{say_line, say_verbose};

/// The only type of token that this program can use.
const KEYRING: &str = "luks2-keyring";

/// Which tokens unlock.
#[derive(Debug, Clone, Default, clap::Args)]
#[expect(clippy::struct_field_names, reason = "the names of the options")]
pub(crate) struct TokenUnlockArgs {
    /// Unlock with this token of the header
    #[arg(long, value_name = "NUMBER")]
    token_id: Option<u32>,
    /// Unlock only with tokens of this type
    #[arg(long, value_name = "TYPE")]
    token_type: Option<String>,
    /// Ask for no passphrase if no token unlocks
    #[arg(long)]
    token_only: bool,
}

/// What became of the tokens.
#[derive(Default)]
struct Outcome {
    /// Whether a token was tried, and its keyslots refused it or its key is missing.
    refused: bool,
    /// What is wrong with each of them.
    problems: Vec<String>,
}

impl TokenUnlockArgs {
    /// Whether the user chose tokens.
    pub(crate) fn is_given(&self) -> bool {
        self.token_id.is_some() || self.token_type.is_some() || self.token_only
    }

    /// Tries the tokens on `keyslot`, or on their keyslots by priority. `None` if none unlocks and
    /// a passphrase may be asked for.
    pub(crate) fn unlock(
        &self,
        header: &Header,
        image: &dyn ReadAt,
        keyslot: Option<u32>,
        quiet: bool,
    ) -> Result<Option<Unlocked>, Failure> {
        let metadata = match header {
            Header::Luks2(header) => &header.metadata,
            Header::Luks1(_) if self.is_given() => {
                return Err(Failure::wrong("a LUKS1 header has no tokens; LUKS2 is needed"));
            }
            Header::Luks1(_) => return Ok(None),
        };
        let mut outcome = Outcome::default();
        if let Some(unlocked) = self.attempt(header, metadata, image, keyslot, &mut outcome) {
            return Ok(Some(unlocked));
        }
        if outcome.problems.is_empty() && self.is_given() {
            outcome.problems.push(self.unusable());
        }
        if self.token_only {
            let why = outcome.problems.join("; ");
            return Err(if outcome.refused { Failure::denied(why) } else { Failure::wrong(why) });
        }
        for problem in outcome.problems {
            if self.is_given() || outcome.refused && !quiet {
                say_line(problem);
            } else {
                say_verbose(problem);
            }
        }
        Ok(None)
    }

    /// As [`unlock`](Self::unlock), for an action that asks for no passphrase then.
    pub(crate) fn unlock_only(
        &self,
        header: &Header,
        image: &dyn ReadAt,
        keyslot: Option<u32>,
    ) -> Result<Unlocked, Failure> {
        let only = Self { token_only: true, ..self.clone() };
        only.unlock(header, image, keyslot, false)?.ok_or_else(|| Failure::wrong(self.unusable()))
    }

    fn unusable(&self) -> String {
        let id = self.token_id.map(|id| format!(" {id}")).unwrap_or_default();
        let kind = self.token_type.as_ref().map(|kind| format!(" (type {kind})"));
        format!("no usable token{id}{} is available", kind.unwrap_or_default())
    }

    fn attempt(
        &self,
        header: &Header,
        metadata: &Metadata,
        image: &dyn ReadAt,
        keyslot: Option<u32>,
        outcome: &mut Outcome,
    ) -> Option<Unlocked> {
        let of_volume = header.volume_keyslots();
        let mut keys: BTreeMap<u32, Option<Secret>> = BTreeMap::new();
        // A keyslot of the lowest priority is tried only if it or the token is named.
        let named = keyslot.is_some() || self.token_id.is_some();
        let last = named.then_some(Priority::Ignore);
        for priority in [Priority::Prefer, Priority::Normal].into_iter().chain(last) {
            for (number, token) in self.chosen(metadata) {
                let keyslots = token.keyslots.iter().copied().filter(|candidate| {
                    let found = metadata.keyslots.get(candidate);
                    of_volume.contains(candidate)
                        && keyslot.is_none_or(|keyslot| keyslot == *candidate)
                        && found.is_some_and(|found| found.priority == priority)
                });
                for candidate in keyslots {
                    let key = keys.entry(number).or_insert_with(|| outcome.key(number, token));
                    let Some(key) = key else { break };
                    match header.unlock(image, key, Some(candidate)) {
                        Ok(unlocked) => return Some(unlocked),
                        Err(Error::WrongPassphrase { .. }) => outcome.refuse(format!(
                            "token {number} cannot unlock keyslot {candidate}: its key is another \
                             passphrase"
                        )),
                        Err(error) => outcome.refuse(format!("keyslot {candidate}: {error}")),
                    }
                }
            }
        }
        None
    }

    fn chosen<'a>(&self, metadata: &'a Metadata) -> impl Iterator<Item = (u32, &'a Token)> {
        let (id, kind) = (self.token_id, self.token_type.clone());
        let tokens = metadata.tokens.iter().map(|(number, token)| (*number, token));
        tokens.filter(move |(number, token)| {
            id.is_none_or(|id| id == *number)
                && kind.as_ref().is_none_or(|kind| *kind == token.kind)
        })
    }
}

/// Refuses a token that is not there, or gives no passphrase to this program.
pub(crate) fn check_token(header: &Header, number: u32) -> Result<&Token, Failure> {
    let token = header.luks2("tokens")?.metadata.tokens.get(&number);
    let token = token.ok_or_else(|| Failure::wrong(format!("token {number} is not in use")))?;
    if token.kind == KEYRING { Ok(token) } else { Err(Failure::wrong(foreign(number, token))) }
}

/// The passphrase that a token of the header gives.
pub(crate) fn passphrase_of_token(header: &Header, number: u32) -> Result<Secret, Failure> {
    let token = check_token(header, number)?;
    let mut outcome = Outcome::default();
    outcome.key(number, token).ok_or_else(|| Failure::denied(outcome.problems.join("; ")))
}

fn foreign(number: u32, token: &Token) -> String {
    let kind = &token.kind;
    let program = if kind.starts_with("systemd-") { "; systemd-cryptsetup can" } else { "" };
    format!("token {number} is of the type {kind}, which this program cannot use{program}")
}

impl Outcome {
    fn refuse(&mut self, problem: String) {
        self.refused = true;
        self.problems.push(problem);
    }

    /// The passphrase that a token gives.
    fn key(&mut self, number: u32, token: &Token) -> Option<Secret> {
        if token.kind != KEYRING {
            self.problems.push(foreign(number, token));
            return None;
        }
        let Some(Json::String(description)) = token.json.get("key_description") else {
            self.problems.push(format!("token {number} names no key"));
            return None;
        };
        match user_key(description) {
            Ok(key) => Some(key),
            Err(problem) => {
                self.refuse(format!("token {number}: {problem}"));
                None
            }
        }
    }
}
