//! cryptsetup's directory of locks, in which the programs of root exclude each other.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// The directory, if this process may use it.
pub(crate) fn directory() -> Option<&'static Path> {
    // In a container this need not be the machine's root: its programs have a directory of their own.
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let dir = Path::new("/run/cryptsetup");
    // It exists wherever cryptsetup was run since the start of the machine.
    let _ = DirBuilder::new().mode(0o700).create(dir);
    let found = fs::symlink_metadata(dir).ok()?;
    let is_safe = found.is_dir() && found.uid() == 0 && found.mode() & 0o022 == 0;
    is_safe.then_some(dir)
}

/// Opens the file of a lock, which is made if it is not there.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .mode(0o600)
        .custom_flags(flags)
        .open(path)
}

/// Whether the file is the one that the path leads to. cryptsetup removes the file after use: a lock
/// on a removed file excludes nobody.
pub(crate) fn is_still(file: &File, path: &Path) -> bool {
    let identity = |found: fs::Metadata| (found.dev(), found.ino());
    let found = fs::symlink_metadata(path).map(identity).ok();
    found.is_some() && found == file.metadata().map(identity).ok()
}
