//! The kernel's tables below /proc and /sys.

use std::fs;
use std::io;
use std::path::Path;

/// A table of the kernel, such as `/proc/self/mountinfo`. What is no UTF-8 in it is replaced: a file or mount may have
/// any name, and its line is not to hide all others.
///
/// # Errors
/// If it cannot be read.
pub fn kernel_table(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = fs::read(path)?;
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::fd::AsFd;
    use std::os::unix::ffi::OsStrExt;
    use std::sync::Arc;

    use super::*;
    use crate::file::Cut;
    use crate::{Access, Mapping};

    #[test]
    fn a_name_that_is_no_text_hides_no_other_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(OsStr::from_bytes(b"odd\xff"));
        fs::write(&path, [0; 4096]).unwrap();
        let file = fs::File::open(&path).unwrap();
        let mapping =
            Mapping::file(file.as_fd(), 4096, Access::Read, Arc::new(Cut::new(false))).unwrap();
        let maps = kernel_table("/proc/self/maps").unwrap();
        assert!(maps.lines().any(|line| line.contains("odd")), "{maps}");
        assert!(maps.lines().any(|line| line.ends_with("[stack]")), "{maps}");
        drop(mapping);
    }
}
