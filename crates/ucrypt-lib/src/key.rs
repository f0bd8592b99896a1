//! What opens a volume.

use std::fmt;
use std::path::Path;

/// What opens a volume. Whoever makes one keeps the bytes, and wipes them.
///
/// ```
/// use std::path::Path;
/// use ucrypt_lib::Key;
///
/// let typed = Key::Passphrase(b"correct horse battery staple");
/// let stored = Key::File(Path::new("/etc/keys/disk.key"));
/// assert_eq!(format!("{typed:?}"), "Passphrase(..)");
/// # let _ = stored;
/// ```
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Key<'a> {
    /// A passphrase, without a line break at its end. For a [`Plain`](crate::Plain) volume it is hashed.
    Passphrase(&'a [u8]),
    /// A file of at most 8 MiB, all of which is the passphrase, line breaks included. For a
    /// [`Plain`](crate::Plain) volume the file's first bytes are the volume key.
    File(&'a Path),
    /// The volume key itself, in bytes; for a LUKS volume it is checked against the header.
    VolumeKey(&'a [u8]),
}

impl fmt::Debug for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passphrase(_) => f.write_str("Passphrase(..)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::VolumeKey(_) => f.write_str("VolumeKey(..)"),
        }
    }
}
