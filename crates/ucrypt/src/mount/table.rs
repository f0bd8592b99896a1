//! The mounts of a process, from its `mountinfo` (proc(5)). No file system is
//! asked: one whose server is dead would not answer.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::background;
use crate::failure::Failure;
use crate::octal::unescaped;
use crate::runtime::RuntimePaths;

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(super) id: u64,
    pub(super) parent: u64,
    /// Major and minor number of the device, or those of a file system without one.
    pub(crate) device: (u32, u32),
    pub(crate) place: PathBuf,
    /// Such as `ext4` or `fuse.ext4`.
    pub(super) kind: String,
    pub(crate) source: PathBuf,
}

/// The mounts that this process sees, in the order in which they were made.
pub(super) fn read() -> Result<Vec<Mount>, Failure> {
    let own = Path::new("/proc/self");
    of(own).map_err(|error| {
        Failure::device(format!("cannot read {}/mountinfo: {error}", own.display()))
    })
}

/// The mounts that a process sees, in the order in which they were made. `process` is its directory below `/proc`.
pub(crate) fn of(process: &Path) -> io::Result<Vec<Mount>> {
    Ok(parse(&fs::read(process.join("mountinfo"))?))
}

/// The mounts in the text of a `mountinfo`.
pub(crate) fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut number = || str::from_utf8(fields.next()?).ok()?.parse().ok();
    let (id, parent) = (number()?, number()?);
    let (major, minor) = str::from_utf8(fields.next()?).ok()?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let place = unescaped(fields.nth(1)?).into();
    // Options, then fields whose number varies.
    let mut end = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = String::from_utf8_lossy(end.next()?).into_owned();
    Some(Mount { id, parent, device, place, kind, source: unescaped(end.next()?).into() })
}

impl Mount {
    /// The mount that is on top at `place`.
    pub(super) fn at<'a>(mounts: &'a [Self], place: &Path) -> Option<&'a Self> {
        mounts.iter().rev().find(|mount| mount.place == place)
    }

    pub(super) fn is_fuse(&self) -> bool {
        self.kind == "fuse" || self.kind.starts_with("fuse.")
    }

    /// Whether a file system of this open volume is mounted there.
    pub(super) fn is_of(&self, paths: &RuntimePaths) -> bool {
        if self.is_fuse() {
            return self.source == paths.file();
        }
        if !background::has_its_device(paths) {
            return false;
        }
        let Ok(node) = fs::read_link(Path::new("/dev/ucrypt").join(paths.name())) else {
            return false;
        };
        let Ok(found) = fs::symlink_metadata(&node) else { return false };
        let number = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
        // A file system on several devices has a number of its own.
        found.file_type().is_block_device() && (self.device == number || self.source == node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_is_read_whatever_names_it_has() {
        let table = b"22 1 0:21 / / rw - tmpfs none rw\n\
            30 22 7:7 / /mnt/two\\040words rw,relatime shared:1 master:2 - ext4 /dev/loop7 rw\n\
            nonsense\n\
            31 30 0:55 /sub /mnt/\\134\\x rw - fuse.ext4 /run/ucrypt/a\\040b rw\n\
            32 22 7:8 / /mnt/two\\040words rw - xfs /dev/loop8 rw\n\
            33 22 x:8 / /y rw - xfs /dev/loop8 rw\n\
            34 22 0:1 / /y rw shared:1\n";
        let mounts = parse(table);
        assert_eq!(mounts.len(), 4);
        assert_eq!(mounts[1].place, Path::new("/mnt/two words"));
        assert_eq!((mounts[1].id, mounts[1].parent, mounts[1].device), (30, 22, (7, 7)));
        assert_eq!(
            (mounts[1].kind.as_str(), mounts[1].source.as_path()),
            ("ext4", Path::new("/dev/loop7"))
        );
        assert_eq!(mounts[2].place, Path::new("/mnt/\\\\x"));
        assert_eq!(mounts[2].source, Path::new("/run/ucrypt/a b"));
        assert!(mounts[2].is_fuse() && !mounts[1].is_fuse());
        let top = Mount::at(&mounts, Path::new("/mnt/two words")).unwrap();
        assert_eq!(top.device, (7, 8), "the last one lies on top");
        assert_eq!(Mount::at(&mounts, Path::new("/mnt")), None);
    }

    #[test]
    fn this_process_sees_its_root() {
        assert!(Mount::at(&read().unwrap(), Path::new("/")).is_some());
    }
}
