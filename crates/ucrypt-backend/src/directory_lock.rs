//! Turns of processes that use a directory.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

/// Locks a directory as flock(2) does, for processes that do something there one after the other. Dropping the result
/// unlocks it. `None` if the directory cannot be opened, or others have it locked for longer than `patience`.
pub fn lock_directory(dir: &Path, patience: Duration) -> Option<File> {
    let dir = File::open(dir).ok()?;
    let deadline = Instant::now() + patience;
    while flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Some(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_one_holders_at_a_time_and_nobody_waits_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock_directory(dir.path(), Duration::ZERO).expect("locked");
        assert!(lock_directory(dir.path(), Duration::from_millis(20)).is_none());
        drop(held);
        assert!(lock_directory(dir.path(), Duration::ZERO).is_some());
        assert!(lock_directory(&dir.path().join("none"), Duration::ZERO).is_none());
    }
}
