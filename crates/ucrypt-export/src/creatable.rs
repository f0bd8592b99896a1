//! Whether a file can be created at a path, found out without creating it there.

use std::fs::{OpenOptions, remove_file};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process;

use rustix::fs::{Mode, OFlags, open};

/// Names that are tried. Others leave some behind if they are killed, and in containers all have the same number.
const NAMES: u32 = 10_000;

/// Creates and removes a file beside `path`, without a name where the file system can: who waits for a file at `path`
/// must not see one before it is served.
pub(crate) fn check_creatable(path: &Path) -> io::Result<()> {
    let absolute = std::path::absolute(path)?;
    let dir = absolute.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let nameless = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    if open(dir, nameless, Mode::RUSR | Mode::WUSR).is_ok() {
        return Ok(());
    }
    create_named(dir)
}

fn create_named(dir: &Path) -> io::Result<()> {
    for number in 0..NAMES {
        let beside = dir.join(format!(".ucrypt-{}-{number}", process::id()));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => {
                created?;
                return remove_file(&beside);
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_and_nothing_appears_at_the_path() {
        let dir = tempfile::tempdir().expect("a directory");
        check_creatable(&dir.path().join("file")).expect("creatable");
        create_named(dir.path()).expect("creatable");
        assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 0);
        for bad in ["no/file", "/proc/self/file", "/"] {
            assert!(check_creatable(&dir.path().join(bad)).is_err(), "{bad}");
        }
    }

    /// One that was killed in another container, whose programs have the same numbers.
    #[test]
    fn what_another_one_has_left_is_in_nobodys_way() {
        let dir = tempfile::tempdir().expect("a directory");
        let left = dir.path().join(format!(".ucrypt-{}-0", process::id()));
        std::fs::write(&left, "").expect("written");
        create_named(dir.path()).expect("creatable");
        check_creatable(&dir.path().join("file")).expect("creatable");
        assert!(left.exists(), "it is another's");
    }
}
