//! Images as the header code sees them.

use std::path::Path;

use ucrypt_backend::FileBackend;
pub(crate) use ucrypt_image::header::HeaderImage;
pub(super) use ucrypt_image::header::{NewFile, open_to_format, open_to_look, reserve};
use ucrypt_luks::Header;

use crate::failure::Failure;
use crate::stdio::say_line;

/// Reads the header. Reports a damaged LUKS2 copy and leaves it as it is.
pub(super) fn read_header(image: &FileBackend, path: &Path) -> Result<Header, Failure> {
    let (header, damage) = Header::read(&HeaderImage(image))
        .map_err(|error| Failure::from(error).about(path.display()))?;
    if let Some(damage) = damage {
        say_line(format_args!("{damage}; using the other one"));
    }
    Ok(header)
}
