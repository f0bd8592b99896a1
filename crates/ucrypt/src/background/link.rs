//! `/dev/ucrypt/NAME`: a link to the device node of an open volume, whatever its number.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use ucrypt_export::loop_device;

use crate::failure::Failure;

const DIR: &str = "/dev/ucrypt";

/// A link that this process made. Dropping it removes the link.
#[derive(Debug)]
pub(super) struct Link {
    path: PathBuf,
    device: PathBuf,
}

impl Link {
    /// Links the name, which this process has locked, to a device. `sequence` is the kernel's
    /// number of the disk that is attached to it, if it has one. The lock file keeps it for whoever
    /// finds the link stale.
    pub(super) fn make(name: &str, device: &Path, sequence: Option<u64>) -> Result<Self, Failure> {
        let path = path(name);
        let lock = lock_path(name);
        let known = sequence.map_or_else(String::new, |number| number.to_string());
        fs::write(&lock, known).map_err(|error| {
            Failure::device(format!("cannot write to {}: {error}", lock.display()))
        })?;
        symlink(device, &path).map_err(|error| {
            Failure::device(format!("cannot make the link {}: {error}", path.display()))
        })?;
        tell_udev(device);
        Ok(Self { path, device: device.into() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Keep a link that somebody else has put there.
        if fs::read_link(&self.path).is_ok_and(|device| device == self.device) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Has udev look at the device again, now that its name is known (`ucrypt udev`). Where nobody runs udev,
/// or /sys is read-only, this does nothing.
fn tell_udev(device: &Path) {
    if let Some(node) = device.file_name() {
        let _ = fs::write(Path::new("/sys/class/block").join(node).join("uevent"), "change");
    }
}

/// The names whose links lead to this device.
pub(super) fn names_of(device: &Path) -> Vec<String> {
    let entries = fs::read_dir(DIR).into_iter().flatten().filter_map(Result::ok);
    let named = entries.filter(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == device));
    named.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// The link of a name.
pub(super) fn path(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

/// The lock file of a name.
pub(super) fn lock_path(name: &str) -> PathBuf {
    Path::new(DIR).join(format!(".{name}.lock"))
}

/// The label by which `losetup` and a later server recognize the device of a name.
pub(super) fn label(name: &str) -> String {
    format!("ucrypt {name}")
}

/// Creates the directory: readable by all whatever the umask, and writable by its owner only.
pub(super) fn prepare() -> io::Result<()> {
    const MODE: u32 = 0o755;
    match DirBuilder::new().mode(MODE).create(DIR) {
        Ok(()) => return fs::set_permissions(DIR, Permissions::from_mode(MODE)),
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Err(_) => {}
    }
    let found = fs::symlink_metadata(DIR)?;
    // Users who follow its links trust its owner.
    let ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    if !ours {
        return Err(Errno::ACCESS.into());
    }
    if found.permissions().mode() & 0o777 != MODE {
        fs::set_permissions(DIR, Permissions::from_mode(MODE))?;
    }
    Ok(())
}

/// Whether the name has a link.
pub(super) fn exists(name: &str) -> bool {
    fs::symlink_metadata(path(name)).is_ok()
}

/// Whether there is a link or a lock of this name.
pub(super) fn has_remains(name: &str) -> bool {
    exists(name) || fs::symlink_metadata(lock_path(name)).is_ok()
}

/// Whether the device that the link leads to is still the one that was attached for it, as far as the kernel numbers
/// disks: what a killed server has left may lead to somebody else's device by now.
pub(super) fn is_its_own(name: &str) -> bool {
    let made = number_in(&lock_path(name));
    let now = || sequence_of(&fs::read_link(path(name)).ok()?);
    made.is_none_or(|made| now() == Some(made))
}

/// The kernel's sequence number of the disk that a device is now; `None` before Linux 5.15.
pub(super) fn sequence_of(device: &Path) -> Option<u64> {
    number_in(&Path::new("/sys/class/block").join(device.file_name()?).join("diskseq"))
}

fn number_in(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Removes the link of a server that was killed, and detaches its device as soon as nobody uses
/// it.
pub(super) fn remove_stale(name: &str) {
    if let Ok(device) = fs::read_link(path(name)) {
        let sequence = fs::read_to_string(lock_path(name)).ok();
        let sequence = sequence.and_then(|text| text.parse().ok());
        loop_device::detach_stale(&device, &label(name), sequence);
        let _ = fs::remove_file(path(name));
    }
}
