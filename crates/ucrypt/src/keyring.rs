//! Passphrases in the kernel's keyring, where `keyctl add user NAME PASSPHRASE @s` or a login puts
//! them.

use linux_keyutils::{KeyError, KeyRing, KeyRingIdentifier};
use zeroize::Zeroizing;

use crate::failure::Failure;
use crate::passphrase::Secret;

/// Longest payload of a key of the type "user", in bytes, rounded up.
const PAYLOAD_MAX: usize = 32 << 10;

/// Reads a volume key. As in cryptsetup, `%user:NAME` is `NAME`. Only keys of the type "user" can be
/// read: the kernel gives the payload of a key of the type "logon" to nobody.
pub(crate) fn volume_key(description: &str) -> Result<Secret, Failure> {
    let typed = description.strip_prefix('%').and_then(|typed| typed.split_once(':'));
    let name = match typed {
        Some(("user" | "", name)) => name,
        Some((kind, _)) => {
            return Err(Failure::wrong(format!(
                "--volume-key-keyring: no program can read keys of the type {kind:?}; put the volume key \
                 there with the type user"
            )));
        }
        None => description,
    };
    user_key(name).map_err(Failure::wrong)
}

/// Reads the key of the type "user" with this description. Searches what the kernel searches for
/// `request_key`: the session keyring and all keyrings linked to it, the user's among them. Fails
/// with a sentence that says why.
pub(crate) fn user_key(description: &str) -> Result<Secret, String> {
    let session = KeyRing::from_special_id(KeyRingIdentifier::Session, false)
        .map_err(|error| format!("the kernel's keyring cannot be used: {}", why(error)))?;
    let key = session.search(description).map_err(|error| match error {
        KeyError::KeyDoesNotExist | KeyError::MissingFileOrDirectory => {
            format!(
                "the kernel's keyring has no key \"{}\"; put it there, for example with keyctl padd user NAME @s",
                description.escape_debug()
            )
        }
        error => cannot_read(description, error),
    })?;
    let mut payload = Zeroizing::new(vec![0; PAYLOAD_MAX]);
    let len = key.read(&mut *payload).map_err(|error| cannot_read(description, error))?;
    match payload.get(..len) {
        Some([]) | None => Err(format!(
            "the key \"{}\" of the kernel's keyring is empty or too long",
            description.escape_debug()
        )),
        Some(payload) => Ok(Zeroizing::new(payload.to_vec())),
    }
}

fn cannot_read(description: &str, error: KeyError) -> String {
    let description = description.escape_debug();
    format!("the key \"{description}\" of the kernel's keyring cannot be read: {}", why(error))
}

fn why(error: KeyError) -> &'static str {
    match error {
        KeyError::AccessDenied | KeyError::PermissionDenied => "no permission",
        KeyError::KeyExpired => "it has expired",
        KeyError::KeyRevoked => "it was revoked",
        KeyError::KeyRejected => "it was rejected",
        KeyError::OperationNotSupported => "it holds no passphrase",
        KeyError::Unknown(38) => "the kernel has none",
        _ => "the kernel refuses",
    }
}
