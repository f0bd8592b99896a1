//! The lock against other changes of a header: `flock` on the file of the header, which cryptsetup
//! takes for LUKS2 too. For each block device cryptsetup locks a file of its own: as root, that one is
//! taken as well.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock, major, minor};
use rustix::io::Errno;

use crate::cryptsetup_locks;
use crate::error::Error;
use crate::flock::Locked;

/// How long to wait for another change, which may derive a key meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long who can do without the lock waits for it.
const SHORT_PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);

/// Whether the user wants no locks.
static WITHOUT_LOCKS: AtomicBool = AtomicBool::new(false);

/// From now on, headers are changed without a lock.
pub fn disable_locks() {
    WITHOUT_LOCKS.store(true, Ordering::Relaxed);
}

/// What a header is locked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// To read what nobody changes meanwhile.
    Shared,
    /// To change it.
    Exclusive,
}

/// A lock on a header. Dropping it gives the header free.
#[derive(Debug)]
pub struct HeaderLock {
    file: Locked,
    /// cryptsetup's lock of the device.
    _of_device: Option<Locked>,
}

impl HeaderLock {
    /// The file or device that is locked.
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// Takes the lock against other changes of the header in this file or device. It lives as long as
/// the result.
pub fn lock_header(path: &Path) -> Result<HeaderLock, Error> {
    lock(path, Access::Exclusive)
}

/// As [`lock_header`], for who can do without the lock: waits for others for seconds only.
pub(crate) fn lock_header_soon(path: &Path) -> Result<HeaderLock, Error> {
    lock_within(path, Access::Exclusive, SHORT_PATIENCE)
}

/// As [`lock_header`], to read or to change the header. Waits for others, for at most a minute.
pub fn lock(path: &Path, access: Access) -> Result<HeaderLock, Error> {
    lock_within(path, access, PATIENCE)
}

fn lock_within(path: &Path, access: Access, patience: Duration) -> Result<HeaderLock, Error> {
    let failed = |error: io::Error| Error::Lock { path: path.into(), error };
    let changes = access == Access::Exclusive;
    // Else a pipe would wait for somebody at its other end.
    let no_wait = OFlags::NONBLOCK.bits().cast_signed();
    let opened = File::options().read(true).write(changes).custom_flags(no_wait).open(path);
    let file = Locked::new(opened.map_err(failed)?);
    if WITHOUT_LOCKS.load(Ordering::Relaxed) {
        return Ok(HeaderLock { file, _of_device: None });
    }
    let wait = Wait { path, access, patience, until: Instant::now() + patience };
    wait.take(&file)?;
    let of_device = lock_device(&file, &wait)?;
    Ok(HeaderLock { file, _of_device: of_device })
}

/// Takes cryptsetup's lock of a block device. `None` for a file, and for a user who cannot have it.
fn lock_device(device: &File, wait: &Wait<'_>) -> Result<Option<Locked>, Error> {
    let Some(place) = place_of_device(device) else { return Ok(None) };
    loop {
        // Who went on without it would change the header at the same time as cryptsetup.
        let file = cryptsetup_locks::open(&place).map_err(|error| {
            let error = io::Error::new(error.kind(), format!("{}: {error}", place.display()));
            Error::Lock { path: wait.path.into(), error }
        })?;
        let file = Locked::new(file);
        wait.take(&file)?;
        if cryptsetup_locks::is_still(&file, &place) {
            return Ok(Some(file));
        }
    }
}

/// The file that cryptsetup locks for a block device.
fn place_of_device(device: &File) -> Option<PathBuf> {
    let found = device.metadata().ok().filter(|found| found.file_type().is_block_device())?;
    let (major, minor) = (major(found.rdev()), minor(found.rdev()));
    Some(cryptsetup_locks::directory()?.join(format!("L_{major}:{minor}")))
}

/// Who waits for locks, and how long.
struct Wait<'a> {
    /// What holds the header.
    path: &'a Path,
    access: Access,
    patience: Duration,
    until: Instant,
}

impl Wait<'_> {
    /// Waits for the lock of a file.
    fn take(&self, file: &File) -> Result<(), Error> {
        let path = self.path;
        let operation = match self.access {
            Access::Shared => FlockOperation::NonBlockingLockShared,
            Access::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        loop {
            match flock(file, operation) {
                // File systems without locks let everyone in.
                Ok(()) | Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => {
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if Instant::now() < self.until => std::thread::sleep(PAUSE),
                Err(Errno::WOULDBLOCK) => {
                    let seconds = self.patience.as_secs();
                    return Err(Error::HeaderBusy { path: path.into(), seconds });
                }
                Err(error) => return Err(Error::Lock { path: path.into(), error: error.into() }),
            }
        }
    }
}
