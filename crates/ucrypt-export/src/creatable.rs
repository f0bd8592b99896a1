//! Whether a file can be created at a path, found out without creating it there.

use std::fs::{OpenOptions, remove_file};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// Creates and removes a file of another name beside `path`: who waits for a file at `path` must not see one
/// before it is served.
pub(crate) fn check_creatable(path: &Path) -> io::Result<()> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let absolute = std::path::absolute(path)?;
    let dir = absolute.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let beside = dir.join(format!(".ucrypt-{}-{number}", process::id()));
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    remove_file(&beside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_and_nothing_appears_at_the_path() {
        let dir = tempfile::tempdir().expect("a directory");
        check_creatable(&dir.path().join("file")).expect("creatable");
        assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 0);
        for bad in ["no/file", "/proc/self/file", "/"] {
            assert!(check_creatable(&dir.path().join(bad)).is_err(), "{bad}");
        }
    }
}
