//! The lock against other changes of a header: `flock` on the file of the header, which cryptsetup
//! takes for LUKS2 too. On a block device this lock excludes other changes by these programs only,
//! because cryptsetup locks a file of its own for each device.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::Error;

/// How long to wait for another change, which may derive a key meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);
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

/// Takes the lock against other changes of the header in this file or device. It lives as long as
/// the result.
pub fn lock_header(path: &Path) -> Result<File, Error> {
    lock(path, Access::Exclusive)
}

/// As [`lock_header`], to read or to change the header. Waits for others, for at most a minute.
pub fn lock(path: &Path, access: Access) -> Result<File, Error> {
    let failed = |error: io::Error| Error::Lock { path: path.into(), error };
    let changes = access == Access::Exclusive;
    let file = File::options().read(true).write(changes).open(path).map_err(failed)?;
    if WITHOUT_LOCKS.load(Ordering::Relaxed) {
        return Ok(file);
    }
    let operation = match access {
        Access::Shared => FlockOperation::NonBlockingLockShared,
        Access::Exclusive => FlockOperation::NonBlockingLockExclusive,
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        match flock(&file, operation) {
            // File systems without locks let everyone in.
            Ok(()) | Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => {
                return Ok(file);
            }
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            Err(Errno::WOULDBLOCK) => {
                let seconds = PATIENCE.as_secs();
                return Err(Error::HeaderBusy { path: path.into(), seconds });
            }
            Err(error) => return Err(failed(error.into())),
        }
    }
}
