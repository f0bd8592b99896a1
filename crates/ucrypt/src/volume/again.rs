//! A volume that is open and has lost its key: unlocking its header again.

use std::path::Path;

use ucrypt_backend::{FileBackend, OpenOptions};
use ucrypt_image::header::pinned_copy;
use ucrypt_image::segments::cipher;
use ucrypt_luks::{Format, Header, HeaderDigest, KeyCheck, ReadAt, Unlocked};
use ucrypt_sector::SectorCipher;

use super::{told, try_passphrases};
use crate::failure::Failure;
use crate::luks::HeaderImage;
use crate::passphrase::{Secret, VerifiedKeyArgs};
use crate::token_unlock::TokenUnlockArgs;
use crate::{memory, secrecy};

/// What is known of a volume without its key.
#[derive(Debug)]
pub(crate) struct Resume {
    segments: Vec<ucrypt_luks::Segment>,
    check: KeyCheck,
}

impl Resume {
    pub(super) fn of(unlocked: &Unlocked) -> Result<Option<Self>, Failure> {
        if unlocked.format == Format::Plain {
            return Ok(None);
        }
        let check = KeyCheck::new(&unlocked.volume_key, &mut secrecy::random)?;
        Ok(Some(Self { segments: unlocked.segments.clone(), check }))
    }

    /// The ciphers of the segments, if this is the key that the volume had.
    pub(crate) fn ciphers(&self, key: &[u8]) -> Result<Vec<Option<SectorCipher>>, Failure> {
        if !self.check.matches(key) {
            return Err(ucrypt_luks::Error::WrongVolumeKey.into());
        }
        let ciphers = self.segments.iter().map(|segment| Ok(cipher(segment, key)?));
        ciphers.collect()
    }
}

/// How the header of a volume is unlocked again.
pub(crate) struct Again<'a> {
    /// Where the header is.
    pub(crate) place: &'a Path,
    /// The digest of the only header that may be there.
    pub(crate) pinned: Option<HeaderDigest>,
    pub(crate) key: &'a VerifiedKeyArgs,
    /// How often a person may type a passphrase.
    pub(crate) tries: u32,
    /// The only keyslot to try.
    pub(crate) keyslot: Option<u32>,
    pub(crate) token: &'a TokenUnlockArgs,
    /// Warn of nothing.
    pub(crate) quiet: bool,
}

impl Again<'_> {
    /// Unlocks by a token or, as `open` does, by a passphrase. Returns the volume key.
    pub(crate) fn unlock(&self) -> Result<Secret, Failure> {
        let options = OpenOptions { read_only: true, unlocked: true, ..OpenOptions::default() };
        let image = FileBackend::open(self.place, options)?;
        let name = self.place.display().to_string();
        let about = |error| Failure::from(error).about(&name);
        let medium = HeaderImage(&image);
        let copy = self.pinned.map(|wanted| pinned_copy(&medium, wanted));
        let copy = copy.transpose().map_err(about)?;
        let source: &dyn ReadAt = copy.as_ref().map_or(&medium, |copy| copy);
        let (header, _) = Header::read(source).map_err(about)?;
        memory::check_unlock(&header, self.keyslot)?;
        if let Some(unlocked) = self.token.unlock(&header, source, self.keyslot, self.quiet)? {
            return Ok(told(unlocked).volume_key);
        }
        let open = |passphrase: &[u8]| header.unlock(source, passphrase, self.keyslot);
        let key = self.key.key(self.quiet);
        let unlocked = try_passphrases((&name, self.place), &key, self.tries, open)?;
        Ok(told(unlocked).volume_key)
    }
}
