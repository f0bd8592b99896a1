//! The path that the file is mounted at: what is there before and after the mount.
//!
//! A mount needs something to cover. Where there is nothing, [`MountPoint`] creates a placeholder. No
//! program may ever take it for the volume: not before the mount, not after it, and not after the
//! server was killed. As root the placeholder is a socket, which open(2) refuses to everybody. The
//! setuid helper mounts over regular files only; for it the placeholder is an empty file, whose
//! mode becomes 0 as soon as the helper is done.
//!
//! [`MountPoint`] removes only its own placeholder, and only while that is empty: anything that somebody
//! puts there is theirs. An open descriptor keeps the inode, so that no other file can get its
//! number.

use std::fs::{self, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, fstat, mknodat, open, statat, statx,
};
use rustix::io::Errno;

use super::mount::unmount_stale;
use crate::creatable::check_creatable;

/// A path, with a file that the mount may cover.
#[derive(Debug)]
pub(super) struct MountPoint {
    path: PathBuf,
    /// The placeholder, if we created one. An `O_PATH` descriptor.
    made: Option<OwnedFd>,
}

impl MountPoint {
    /// Creates a placeholder unless there is an empty file already. First removes what a killed
    /// server left.
    pub(super) fn prepare(path: &Path) -> io::Result<Self> {
        check_answers(path)?;
        remove_stale(path);
        if is_there(path)? {
            return Ok(Self { path: path.canonicalize()?, made: None });
        }
        match mknodat(CWD, path, FileType::Socket, Mode::empty(), 0) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(Errno::EXIST.into()),
            // Not every file system has sockets.
            Err(_) => make_regular(path)?,
        }
        let pinned = pin(path).and_then(|made| Ok((made, path.canonicalize()?)));
        let (made, path) = pinned.inspect_err(|_| _ = fs::remove_file(path))?;
        Ok(Self { made: Some(made), path })
    }

    /// Whether [`MountPoint::prepare`] could succeed now. Creates and removes nothing at `path`.
    pub(super) fn check(path: &Path) -> io::Result<()> {
        check_answers(path)?;
        if is_dead_mount(path) || is_own_placeholder(path) || is_there(path)? {
            return Ok(());
        }
        check_creatable(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the placeholder by a file that the user could open, as the helper requires.
    pub(super) fn unlock(&mut self) -> io::Result<()> {
        if self.made.is_some() {
            self.remove();
            make_regular(&self.path)?;
            self.made = Some(pin(&self.path)?);
        }
        Ok(())
    }

    /// Undoes [`MountPoint::unlock`] as far as the helper lets us, once the mount covers it.
    pub(super) fn lock(&self) {
        if let Some(made) = &self.made {
            let file = format!("/proc/self/fd/{}", made.as_raw_fd());
            // If this fails: the mount covers the file as long as we serve, and we remove it after.
            let _ = fs::set_permissions(file, Permissions::from_mode(0o000));
        }
    }

    /// Removes the placeholder if it is still there and still empty.
    pub(super) fn remove(&self) {
        self.remove_at(&self.path);
    }

    /// As [`MountPoint::remove`], where the path of the file is `path` by now.
    pub(super) fn remove_at(&self, path: &Path) {
        let Some(made) = &self.made else { return };
        let there = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
        let (Ok(made), Ok(there)) = (fstat(made), there) else { return };
        if (there.st_dev, there.st_ino, there.st_size) == (made.st_dev, made.st_ino, 0) {
            // If somebody else has just removed it, that will do.
            let _ = fs::remove_file(path);
        }
    }
}

/// How long whoever serves what is mounted at a path may take to tell about it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Refuses a path where something is mounted that does not answer: to look at it would take for ever.
fn check_answers(path: &Path) -> io::Result<()> {
    let mount = |path: &Path| {
        let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::MNT_ID).ok()?;
        // Before Linux 5.8 there are no numbers of mounts.
        Some((found.stx_mnt_id, found.stx_dev_major, found.stx_dev_minor))
    };
    let around = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if mount(path).is_none_or(|there| Some(there) == mount(around)) {
        return Ok(());
    }
    let (said, heard) = mpsc::channel();
    let asked = path.to_owned();
    thread::Builder::new().name("look".into()).spawn(move || {
        // Nobody hears it if it comes too late.
        let _ = said.send(fs::metadata(asked).is_ok());
    })?;
    match heard.recv_timeout(PATIENCE) {
        Err(RecvTimeoutError::Timeout) => Err(io::Error::other(
            "something is mounted there, and whoever serves it does not answer; unmount it (umount --lazy)",
        )),
        Ok(_) | Err(RecvTimeoutError::Disconnected) => Ok(()),
    }
}

/// Whether an empty file is at `path`, which the mount can cover. Anything else there is an error.
fn is_there(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() && found.len() == 0 => Ok(true),
        Ok(found) if found.is_file() => Err(io::Error::other(
            "the file has content, which the mount would hide; name an empty or a new file",
        )),
        Ok(_) => Err(io::Error::other("it exists and is no regular file; name a new file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn make_regular(path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map(drop)
}

fn pin(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

/// Whether a server serves its file at `path`, or did until it was killed. A file that somebody else has put there is
/// theirs.
pub fn is_served(path: &Path) -> bool {
    let in_dir = path.parent().and_then(|dir| fs::metadata(dir).ok());
    match fs::symlink_metadata(path) {
        // A mount has a number of its own.
        Ok(found) => is_placeholder(&found) || in_dir.is_some_and(|dir| dir.dev() != found.dev()),
        // The file of a killed server exists, but its metadata cannot be read.
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Removes what a killed server left at `path`: its mount, which only answers with errors, and its
/// placeholder. Anything else stays.
pub fn remove_stale(path: &Path) {
    if is_dead_mount(path) {
        unmount_stale(path);
    }
    if is_own_placeholder(path) {
        let _ = fs::remove_file(path);
    }
}

/// Whether the mount of a killed server is at `path`.
fn is_dead_mount(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| {
        [Some(Errno::NOTCONN), Some(Errno::CONNABORTED)].contains(&Errno::from_io_error(&error))
    })
}

fn is_own_placeholder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| is_placeholder(&found))
}

/// Whether the file can only be a placeholder of this user's servers.
fn is_placeholder(found: &Metadata) -> bool {
    let kind = found.file_type();
    let permissions = found.permissions().mode() & 0o7777;
    (kind.is_socket() || kind.is_file())
        && found.len() == 0
        && permissions == 0
        && found.nlink() == 1
        && found.uid() == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_cannot_be_opened_and_goes_away() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let place = MountPoint::prepare(&path).unwrap();
        // Root may open any file, but no socket.
        assert!(OpenOptions::new().write(true).open(&path).is_err());
        assert!(fs::read(&path).is_err());
        place.remove();
        assert!(!path.exists());
        place.remove();
    }

    #[test]
    fn a_check_finds_what_would_be_in_the_way_and_leaves_all_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        MountPoint::check(&path).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(MountPoint::check(&dir.path().join("no/file")).is_err());
        assert!(MountPoint::check(dir.path()).is_err());
        // What a killed server left is replaced.
        drop(MountPoint::prepare(&path).unwrap());
        MountPoint::check(&path).unwrap();
        assert!(is_own_placeholder(&path));
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        MountPoint::check(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        assert!(MountPoint::check(&path).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn a_file_of_the_user_that_took_the_name_is_never_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for content in ["", "precious"] {
            let mut place = MountPoint::prepare(&path).unwrap();
            place.unlock().unwrap();
            fs::remove_file(&path).unwrap();
            fs::write(&path, content).unwrap();
            place.remove();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
            fs::remove_file(&path).unwrap();
        }
        // The same if somebody wrote to the placeholder itself, which for a moment the helper's
        // file allows.
        let mut place = MountPoint::prepare(&path).unwrap();
        place.unlock().unwrap();
        fs::write(&path, "precious").unwrap();
        place.remove();
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn a_given_file_is_kept_and_what_a_killed_server_left_is_not_taken_for_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "").unwrap();
        MountPoint::prepare(&path).unwrap().remove();
        assert!(path.exists());
        fs::remove_file(&path).unwrap();
        // A killed server never removes its placeholder: a socket, or a file of mode 0 if it used
        // the helper.
        drop(MountPoint::prepare(&path).unwrap());
        let mut place = MountPoint::prepare(&path).unwrap();
        place.unlock().unwrap();
        place.lock();
        drop(place);
        let place = MountPoint::prepare(&path).unwrap();
        assert!(place.made.is_some());
        place.remove();
        assert!(!path.exists());
    }
}
