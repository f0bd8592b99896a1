//! Claims a name for one server.
//!
//! A server holds a file lock until its process ends, however that happens. Whoever gets the lock
//! finds only what a killed server left. An orderly server leaves nothing: it removes its files, and
//! the lock's last. One lock is in the runtime directory. Another is beside
//! the links of devices, which all runtime directories share. A lock file is removed under its
//! lock; a process that then gets the lock of the removed file takes a new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::{LOOK_PATIENCE, control, link, show};
use crate::available;
use crate::failure::Failure;
use crate::runtime::RuntimePaths;

/// How long a server may take to start to answer, or to end after it was killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// The names that only this process holds. Drop it to release them.
#[derive(Debug)]
pub(super) struct NameLock {
    _name: Lock,
    _link: Option<Lock>,
    /// Whether a killed server had left something, which is removed.
    pub(super) had_remains: bool,
}

impl NameLock {
    /// Claims the name, and its link if it is for a `device`. Removes what a killed server left of
    /// either. Touches nothing in a directory where others may have put it.
    pub(super) fn take(paths: &RuntimePaths, device: bool) -> Result<Self, Failure> {
        paths.check()?;
        let name = paths.name();
        let busy = || {
            let status = control::status_within(paths, LOOK_PATIENCE).ok().flatten();
            let closing = status.is_some_and(|status| show::is_closing(&status));
            Failure::busy(if closing {
                format!("{name} is being closed, but still in use; it ends with its last user")
            } else {
                format!("{name} is open already; ucrypt close {name} closes it")
            })
        };
        let failed = |path: &Path, error: io::Error| match Errno::from_io_error(&error) {
            Some(Errno::WOULDBLOCK) => busy(),
            Some(Errno::ACCESS | Errno::PERM) => Failure::denied(format!(
                "no permission to use {}; run as root, or use --as {}",
                path.display(),
                available::without_root()
            )),
            _ => Failure::device(format!("cannot lock {}: {error}", path.display())),
        };
        let lock =
            Lock::wait(&paths.lock(), paths).map_err(|error| failed(&paths.lock(), error))?;
        // Who removes old files may have removed that of a lock: then its server lives without.
        if lives(paths) {
            return Err(busy());
        }
        let mut had_remains = lock.was_held || paths.are_served();
        lock.mark();
        let mut link = None;
        if device || link::has_remains(name) {
            let path = link::lock_path(name);
            // Who wants no device does not wait for another server's.
            let lock = || if device { Lock::wait(&path, paths) } else { Lock::take(&path) };
            match link::prepare().and_then(|()| lock()) {
                Ok(lock) => {
                    had_remains |= link::exists(name) || lock.was_held;
                    link::remove_stale(name);
                    link = Some(lock).filter(|_| device);
                }
                Err(error) if device => return Err(failed(&path, error)),
                // The link belongs to another server's device of the same name.
                Err(_) => {}
            }
        }
        paths.clean_up();
        Ok(Self { _name: lock, _link: link, had_remains })
    }
}

/// Whether a server of this name lives, whose lock is free. The socket of a killed one may take
/// connections for a moment after its lock was released.
fn lives(paths: &RuntimePaths) -> bool {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if !control::is_heard(paths, left) {
            return false;
        }
        if left.is_zero() || control::is_answered(paths, left) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a server of this name lives, or starts.
pub(super) fn is_held(paths: &RuntimePaths) -> bool {
    !Lock::is_free(&paths.lock())
}

/// Whether a killed server has left a link of this name.
pub(super) fn is_link_stale(name: &str) -> bool {
    link::exists(name) && Lock::is_free(&link::lock_path(name))
}

/// A locked file.
#[derive(Debug)]
struct Lock {
    file: File,
    path: PathBuf,
    /// The file had content: its last holder was killed.
    was_held: bool,
}

impl Lock {
    /// As [`Lock::take`], but waits up to [`PATIENCE`] for a holder that does not answer: the
    /// threads of a killed server do not all end at once.
    fn wait(path: &Path, paths: &RuntimePaths) -> io::Result<Self> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let taken = Self::take(path);
            let is_busy =
                taken.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
            let left = deadline.saturating_duration_since(Instant::now());
            if !is_busy || left.is_zero() || control::is_answered(paths, left) {
                return taken;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether nobody holds the lock: no server locks a link. Keeps the content of the file.
    fn is_free(path: &Path) -> bool {
        match opened(OpenOptions::new().read(true), path) {
            // Shared: two that look at the same time do not see each other.
            Ok(file) => flock(&file, FlockOperation::NonBlockingLockShared).is_ok(),
            Err(error) => {
                error.kind() == io::ErrorKind::NotFound
                    || Errno::from_io_error(&error) == Some(Errno::LOOP)
            }
        }
    }

    /// Takes the lock. Never waits: fails with `EWOULDBLOCK` if another process holds it.
    fn take(path: &Path) -> io::Result<Self> {
        loop {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(0o600);
            let file = opened(&mut options, path)?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            // Its last holder may have removed it meanwhile.
            let found = file.metadata()?;
            if found.nlink() > 0 {
                let is_own = found.uid() == rustix::process::geteuid().as_raw();
                if !found.is_file() || !is_own || found.nlink() > 1 {
                    return Err(io::Error::other("it is not a file of this user's alone"));
                }
                return Ok(Self { file, path: path.into(), was_held: found.len() > 0 });
            }
        }
    }

    /// Marks the file as held. That it exists says nothing: others create it to try the lock.
    fn mark(&self) {
        // Without the mark, only a server that is killed while it starts goes unnoticed.
        let _ = (&self.file).write_all(b"held\n");
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file would unlock it too. A file that cannot be removed does no harm. If somebody has
        // removed it, that of another lock may be there by now.
        if self.file.metadata().is_ok_and(|file| file.nlink() > 0) {
            let _ = fs::remove_file(&self.path);
        }
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Opens the file at a path, and nothing that a link there leads to. Does not wait for the other end of a
/// pipe.
fn opened(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.custom_flags(flags.bits().cast_signed()).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_one_holders_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = Lock::take(&path).unwrap();
        let error = Lock::take(&path).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::WOULDBLOCK));
        assert!(!Lock::is_free(&path));
        assert!(!held.was_held);
        held.mark();
        drop(held);
        assert!(!path.exists() && Lock::is_free(&path));
        fs::write(&path, "12").unwrap();
        assert!(Lock::is_free(&path) && path.exists());
        let held = Lock::take(&path).unwrap();
        assert!(held.was_held, "its holder did not remove it");
        drop(held);
    }

    #[test]
    fn nothing_is_written_through_what_others_have_put_in_the_place_of_a_lock() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("lock"), dir.path().join("other"));
        fs::write(&other, "kept").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        Lock::take(&path).unwrap_err();
        assert!(Lock::is_free(&path), "no server locks a link");
        fs::remove_file(&path).unwrap();
        fs::hard_link(&other, &path).unwrap();
        Lock::take(&path).unwrap_err();
        fs::remove_file(&path).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        // Nobody has the other end, and nobody is waited for.
        Lock::take(&path).unwrap_err();
        assert!(Lock::is_free(&path), "it can be locked, and is no file of a server");
        assert_eq!(fs::read_to_string(&other).unwrap(), "kept");
    }

    #[test]
    fn only_one_of_many_has_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let Ok(lock) = Lock::take(&path) else { continue };
                        assert!(!lock.was_held, "every holder removed it");
                        lock.mark();
                        assert_eq!(held.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        held.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        drop(lock);
                    }
                });
            }
        });
    }
}
