//! Adding, removing and assigning tokens. Their content belongs to other programs and is kept as it
//! is.

use super::change::{Change, add_reference, remove_reference};
use super::parse::TOKENS_MAX;
use crate::error::{Error, Result};
use crate::json::Json;

/// The type of a token that names a key of the kernel's keyring.
const KEYRING: &str = "luks2-keyring";

/// How the types begin that the format keeps for itself.
const RESERVED: &str = "luks2-";

/// The token of a passphrase in the kernel's keyring, still without keyslots.
pub fn keyring_token(description: &str) -> Json {
    Json::object([
        ("type", KEYRING.into()),
        ("keyslots", Json::Array(Vec::new())),
        ("key_description", description.into()),
    ])
}

/// Refuses tokens of the format's own types that other programs would refuse.
fn check_type(token: &Json) -> Result<()> {
    match token.get("type") {
        Some(Json::String(kind)) if **kind == *KEYRING => {
            let Json::Object(members) = token else { return Ok(()) };
            match token.get("key_description") {
                Some(Json::String(description))
                    if members.len() == 3 && !description.is_empty() =>
                {
                    Ok(())
                }
                _ => Err(Error::request(
                    "a token of type luks2-keyring has \"key_description\", a string that is not empty, and \
                     nothing else",
                )),
            }
        }
        Some(Json::String(kind)) if kind.starts_with(RESERVED) => {
            let kind: &str = kind;
            Err(Error::request(format!(
                "LUKS2 keeps types that begin with {RESERVED}, such as {kind}"
            )))
        }
        _ => Ok(()),
    }
}

impl Change {
    /// Stores a token under this number or the lowest free one, and returns its number. A token that
    /// has the number is replaced only if `replace` says so.
    pub fn put_token(&mut self, number: Option<u32>, token: Json, replace: bool) -> Result<u32> {
        let is_free = |number: &u32| !self.metadata.tokens.contains_key(number);
        let number = match number {
            Some(number) if number >= TOKENS_MAX => {
                return Err(Error::request(format!(
                    "token {number} is invalid, select one between 0 and {}",
                    TOKENS_MAX - 1
                )));
            }
            Some(number) if is_free(&number) || replace => number,
            Some(number) => {
                return Err(Error::request(format!(
                    "token {number} is in use; see --token-replace"
                )));
            }
            None => (0..TOKENS_MAX)
                .find(is_free)
                .ok_or_else(|| Error::request("no token is free; remove one first"))?,
        };
        check_type(&token)?;
        self.objects("tokens")?.set(&number.to_string(), token);
        self.update()?;
        Ok(number)
    }

    /// Removes a token.
    pub fn remove_token(&mut self, number: u32) -> Result<()> {
        self.token_json(number)?;
        self.objects("tokens")?.remove(&number.to_string());
        self.update()
    }

    /// Assigns a token to a keyslot, or to all of them.
    pub fn assign_token(&mut self, number: u32, keyslot: Option<u32>) -> Result<()> {
        let all = || self.metadata.keyslots.keys().copied().collect();
        let keyslots: Vec<u32> = keyslot.map_or_else(all, |keyslot| vec![keyslot]);
        for keyslot in keyslots {
            if !self.metadata.keyslots.contains_key(&keyslot) {
                return Err(Error::InactiveKeyslot(keyslot));
            }
            add_reference(self.token_json(number)?, "keyslots", keyslot);
        }
        self.update()
    }

    /// Removes the assignment of a token to a keyslot.
    pub fn unassign_token(&mut self, number: u32, keyslot: u32) -> Result<()> {
        if !remove_reference(self.token_json(number)?, "keyslots", keyslot) {
            let problem = format!("token {number} is not assigned to keyslot {keyslot}");
            return Err(Error::request(problem));
        }
        self.update()
    }

    fn token_json(&mut self, number: u32) -> Result<&mut Json> {
        let token = self.objects("tokens")?.get_mut(&number.to_string());
        token.ok_or_else(|| Error::request(format!("token {number} is not in use")))
    }
}
