//! What a header says, without a key.

use std::path::Path;

use ucrypt_image::header::{HeaderImage, open_to_look, read_header};
use ucrypt_luks::Header;
use ucrypt_luks::luks2::SegmentKind;

use crate::error::{OpenError, ToOpenError};
use crate::volume::Format;

/// What a header says. A header is not protected: whoever can write to the image can have it say anything.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeaderFacts {
    /// The version.
    pub format: Format,
    /// The UUID.
    pub uuid: String,
    /// The label of a LUKS2 header, if it has one.
    pub label: Option<String>,
    /// Cipher, mode and IV of the first segment in dm-crypt's notation; `None` if it is none that
    /// encrypts.
    pub cipher: Option<String>,
    /// Bytes that are encrypted as one in the first segment.
    pub sector_size: u32,
    /// Where the data starts in the image, in bytes; 0 if the header is detached.
    pub data_offset: u64,
    /// Numbers of the keyslots that hold a key.
    pub keyslots: Vec<u32>,
    /// What is wrong with one of the two copies of a LUKS2 header, if anything is.
    pub damage: Option<String>,
}

/// Reads the LUKS header of an image, or of the file of a detached header. The image may be in use; nothing
/// is written.
///
/// ```
/// use ucrypt_lib::{Format, OpenError, inspect};
/// # use ucrypt_lib::{FormatOptions, Key, KeyDerivation};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let image = dir.path().join("disk.img");
/// # let other = dir.path().join("other.img");
/// # for path in [&image, &other] {
/// #     std::fs::File::create(path)?.set_len(17 << 20)?;
/// # }
/// # let fast = KeyDerivation::pbkdf2().iterations(1000);
/// # FormatOptions::new().key_derivation(fast).format(&image, Key::Passphrase(b"secret"))?;
/// let facts = inspect(&image)?;
/// assert_eq!((facts.format, facts.data_offset), (Format::Luks2, 16 << 20));
/// assert_eq!(facts.keyslots, [0]);
///
/// assert!(matches!(inspect(&other), Err(OpenError::Header(_))));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// See [`OpenError`]: [`OpenError::Header`] if there is no LUKS header.
pub fn inspect(image: impl AsRef<Path>) -> Result<HeaderFacts, OpenError> {
    let path = image.as_ref();
    let image = open_to_look(path).map_err(ToOpenError::to_open_error)?;
    let (header, damage) =
        read_header(&HeaderImage(&image), path).map_err(ToOpenError::to_open_error)?;
    let (label, cipher, sector_size) = match &header {
        Header::Luks1(header) => {
            (None, Some(format!("{}-{}", header.cipher_name, header.cipher_mode)), 512)
        }
        Header::Luks2(header) => {
            let label = header.binary.label.to_string();
            let label = Some(label).filter(|label| !label.is_empty());
            match header.metadata.segments.values().next().map(|segment| &segment.kind) {
                Some(SegmentKind::Crypt { encryption, sector_size, .. }) => {
                    (label, Some(encryption.clone()), *sector_size)
                }
                _ => (label, None, 512),
            }
        }
    };
    Ok(HeaderFacts {
        format: Format::of_luks(header.format()),
        uuid: header.uuid().to_string(),
        label,
        cipher,
        sector_size,
        data_offset: header.data_offset(),
        keyslots: header.keyslots(),
        damage: damage.map(|damage| damage.to_string()),
    })
}
