//! The directory in which the processes of a user find each other.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::user;

/// Creates the directory, for this user only. Refuses one that others can write to.
pub fn prepare(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let mode = check(dir)?;
    if mode & 0o777 != 0o700 {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Refuses a directory that others can write to. Returns its mode.
///
/// # Errors
/// `NotFound` if there is none.
pub fn check(dir: &Path) -> io::Result<u32> {
    let found = fs::symlink_metadata(dir)?;
    let mode = found.permissions().mode();
    let is_own = found.uid() == rustix::process::geteuid().as_raw();
    if !found.is_dir() || !is_own || mode & 0o022 != 0 {
        return Err(io::Error::other("it is not a directory that only you can write to"));
    }
    Ok(mode)
}

/// The directory; it may not exist yet.
pub fn path() -> PathBuf {
    let base = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let base = base.filter(|dir| dir.is_absolute());
    // Through no link: the kernel names files by their real paths.
    let base = base.map(|dir| fs::canonicalize(&dir).unwrap_or(dir));
    let base = base.filter(|dir| !user::is_root() || is_for_root(dir));
    base.map_or_else(fallback, |base| base.join("ucrypt"))
}

/// Whether root's volumes may be found there. The directories of sessions go with the session, root's
/// too, and `sudo -E` and `su` leave root that of somebody else.
fn is_for_root(base: &Path) -> bool {
    const SESSIONS: &str = "/run/user";
    !base.starts_with(SESSIONS)
        && fs::symlink_metadata(base)
            .map_or_else(|error| error.kind() == io::ErrorKind::NotFound, |found| found.uid() == 0)
}

/// The directory if no session manager named one.
fn fallback() -> PathBuf {
    // In a container, root of a user namespace has its own /run; elsewhere it has none.
    let is_own = |dir: &str| {
        let owner = fs::symlink_metadata(dir).map(|dir| dir.uid());
        owner.is_ok_and(|owner| owner == rustix::process::geteuid().as_raw())
    };
    if rustix::process::geteuid().is_root() && (user::is_root() || is_own("/run")) {
        return "/run/ucrypt".into();
    }
    let user = user::number();
    let session = format!("/run/user/{user}");
    if is_own(&session) {
        return Path::new(&session).join("ucrypt");
    }
    Path::new("/tmp").join(format!("ucrypt-{user}"))
}
