//! What a process has mapped, from its `maps` (proc(5)).

use std::fs;
use std::path::Path;

use ucrypt_backend::kernel_table;

/// A file that a process has mapped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mapped<'a> {
    /// Its addresses, by which it has a link in `map_files`.
    pub(crate) range: &'a str,
    /// Major and minor number of the file system that it lies in.
    pub(crate) device: (u32, u32),
    pub(crate) inode: u64,
    pub(crate) path: &'a str,
}

/// The table of a process, given by its directory below /proc. Empty if a thread of it waits where it cannot be
/// interrupted: it may hold what the kernel needs to write the table, and whoever reads it would wait, too.
pub(crate) fn of(process: &Path) -> String {
    let mut threads = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    let waits = threads.any(|thread| {
        // Not `stat`, which may itself be waited for.
        let status = kernel_table(thread.path().join("status")).unwrap_or_default();
        let state = status.lines().find_map(|line| line.strip_prefix("State:"));
        state.is_some_and(|state| state.trim_start().starts_with('D'))
    });
    if waits { String::new() } else { kernel_table(process.join("maps")).unwrap_or_default() }
}

/// A line of the table; `None` if it is memory without a file.
pub(crate) fn parse(line: &str) -> Option<Mapped<'_>> {
    let mut fields = line.splitn(6, ' ');
    let (range, _access, _offset) = (fields.next()?, fields.next()?, fields.next()?);
    let (major, minor) = fields.next()?.split_once(':')?;
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    let device = (number(major)?, number(minor)?);
    let inode = fields.next()?.parse().ok()?;
    let path = fields.next().unwrap_or_default().trim_start();
    (device != (0, 0)).then_some(Mapped { range, device, inode, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_file_is_known_by_its_device_and_its_path() {
        let line = "7f00-7f01 r-xp 00000000 07:0a 12                         /lib/a name.so";
        let mapped =
            Mapped { range: "7f00-7f01", device: (7, 10), inode: 12, path: "/lib/a name.so" };
        assert_eq!(parse(line), Some(mapped));
        for none in [
            "7f00-7f01 rw-p 00000000 00:00 0",
            "7f00-7f01 rw-p 00000000 00:00 0    [heap]",
            "nonsense",
            "",
        ] {
            assert_eq!(parse(none), None, "{none}");
        }
    }
}
