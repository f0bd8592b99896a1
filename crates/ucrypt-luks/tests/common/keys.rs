//! Images whose keys are changed, and what the tests of these changes ask of them.

use ucrypt_luks::{Header, NewKey, Unlocked};

use super::{cheap_pbkdf2, roomy_luks2, small_luks1};

/// Passphrases beside [`PASSPHRASE`](super::PASSPHRASE).
pub(crate) const NEW: &[u8] = b"the new one";
pub(crate) const OTHER: &[u8] = b"another one";

/// An image of each version, which [`PASSPHRASE`](super::PASSPHRASE) opens.
pub(crate) fn images() -> [(&'static str, Vec<u8>); 2] {
    [("LUKS1", small_luks1()), ("LUKS2", roomy_luks2())]
}

pub(crate) fn read(image: &[u8]) -> Header {
    Header::read(&image).unwrap().0
}

pub(crate) fn opens(image: &[u8], passphrase: &[u8]) -> Option<Unlocked> {
    Header::read(&image).ok()?.0.unlock(&image, passphrase, None).ok()
}

pub(crate) fn new_key(passphrase: &[u8]) -> NewKey<'_> {
    NewKey { passphrase, pbkdf: cheap_pbkdf2(), area: None }
}

/// Of every `count` crashes one is looked at where that takes a dozen derivations; all of them with
/// `UCRYPT_EVERY_CRASH` in the environment.
pub(crate) fn one_of(count: usize) -> usize {
    if std::env::var_os("UCRYPT_EVERY_CRASH").is_some() { 1 } else { count }
}
