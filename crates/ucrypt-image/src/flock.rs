//! A lock of a whole file (`flock`) that is given free when its holder drops it.
//!
//! Closing the file would do only while nobody shares the open file: a process that was forked meanwhile
//! has it for as long as it lives.

use std::fs::File;
use std::ops::Deref;

use rustix::fs::{FlockOperation, flock};

/// A file that is or will be locked.
#[derive(Debug)]
pub(crate) struct Locked(File);

impl Locked {
    pub(crate) fn new(file: File) -> Self {
        Self(file)
    }
}

impl Deref for Locked {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // If this fails, the lock goes with the last descriptor.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_given_free_although_a_child_has_the_open_file_too() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = || File::create(dir.path().join("lock")).map(Locked::new).expect("a file");
        let take = |file: &File| flock(file, FlockOperation::NonBlockingLockExclusive);
        let lock = open();
        take(&lock).expect("nobody has it");
        // A fork gives a child the same open file.
        let childs = lock.try_clone().expect("another descriptor");
        assert!(take(&open()).is_err(), "it is held");
        drop(lock);
        take(&open()).expect("it was given free");
        drop(childs);
    }
}
