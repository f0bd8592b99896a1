//! `/dev/ucrypt/NAME`: a link to the node of an open volume's device, whatever number it has.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ucrypt_export::loop_device;

use crate::failure::Failure;

const DIR: &str = "/dev/ucrypt";

/// The link of a name.
pub(super) fn path(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

/// Where the name is locked.
pub(super) fn lock_path(name: &str) -> PathBuf {
    Path::new(DIR).join(format!(".{name}.lock"))
}

/// By what `losetup` and a later server know the device of a name.
pub(super) fn label(name: &str) -> String {
    format!("ucrypt {name}")
}

/// Makes the directory.
pub(super) fn prepare() -> io::Result<()> {
    match fs::create_dir(DIR) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Whether the name has a link.
pub(super) fn exists(name: &str) -> bool {
    fs::symlink_metadata(path(name)).is_ok()
}

/// Links the name to a device.
pub(super) fn make(name: &str, device: &Path) -> Result<PathBuf, Failure> {
    let link = path(name);
    symlink(device, &link).map_err(|error| {
        Failure::device(format!("cannot make the link {}: {error}", link.display()))
    })?;
    Ok(link)
}

/// Removes the link. It may be gone already.
pub(super) fn remove(name: &str) {
    let _ = fs::remove_file(path(name));
}

/// Removes the link of a server that was killed, and detaches its device as soon as nobody uses
/// it.
pub(super) fn remove_stale(name: &str) {
    if let Ok(device) = fs::read_link(path(name)) {
        loop_device::detach_stale(&device, &label(name));
        remove(name);
    }
}
