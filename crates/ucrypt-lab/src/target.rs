//! What an experiment runs on.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use rustix::fs::statvfs;
use serde::{Deserialize, Serialize};
use ucrypt_backend::model::{ModelBackend, Profile};
use ucrypt_backend::{Backend, FileBackend, OpenError, OpenOptions, ZeroBackend, memory};
use ucrypt_image::machine::machine;
use ucrypt_image::memory::Bytes;

/// Where an experiment's data lies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// A file in memory, without a name.
    Memory,
    /// Reads zeroes and drops writes: it has no time of its own.
    Zero,
    /// Memory with the timing of this device model.
    Model(String),
    /// A scratch file at this path, which is made for the run and removed after it.
    Scratch(PathBuf),
    /// A file that is there already; its content is lost.
    File(PathBuf),
    /// A block device; its content is lost.
    Device(PathBuf),
}

/// What a target turned out to be when a run began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Storage {
    /// It is on a disk, and accessed past the page cache.
    pub direct: bool,
    /// It is on a disk, and its file system has no direct I/O: the page cache is measured with it.
    pub cached: bool,
    /// The engine works in a mapping of it.
    pub mapped: bool,
    /// Bytes of its blocks.
    pub block_bytes: u32,
    /// Of a block device: which one it is.
    pub device: Option<DeviceId>,
}

/// What tells a block device from another one of the same name. Its number does not: the next disk in
/// the same place gets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceId {
    /// What its disk says of itself, or else the kernel's number of the disk that is in it now; `None`
    /// where there is neither.
    pub disk: Option<String>,
    /// Its length in bytes.
    pub len: u64,
}

impl DeviceId {
    /// The device of this number, which has `len` bytes.
    pub(crate) fn of_number(number: u64, len: u64) -> io::Result<Self> {
        let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        // A link into the directory of a disk, which holds those of its partitions.
        let dir = fs::canonicalize(Path::new("/sys/dev/block").join(number));
        let disk = dir.ok().and_then(|dir| Self::disk(&dir, boot.trim()));
        Ok(Self { disk, len })
    }

    /// The disk of the device whose directory in sysfs is `dir` (kernel:
    /// `Documentation/ABI/stable/sysfs-block`, and the drivers). The kernel counts disks anew at each
    /// `boot`.
    fn disk(dir: &Path, boot: &str) -> Option<String> {
        let read = |dir: &Path, name: &str| {
            let text = fs::read_to_string(dir.join(name)).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        if let Some(number) = read(dir, "partition") {
            let disk = Self::disk(dir.parent()?, boot)?;
            return Some(format!("partition {number} at {} of {disk}", read(dir, "start")?));
        }
        let named = |name: &&str| Some(format!("{name} {}", read(dir, name)?));
        // A reader of cards says the same of each card.
        let is_removable = read(dir, "removable").is_some_and(|it| it != "0");
        let own = ["wwid", "device/wwid", "device/cid", "serial", "dm/uuid", "md/uuid"];
        if let Some(own) = own.iter().find_map(named).filter(|_| !is_removable) {
            return Some(own);
        }
        // An NBD device keeps its number; each of its connections has a process.
        let process = named(&"pid").unwrap_or_default();
        Some(format!("{} {process} boot {boot}", named(&"diskseq")?))
    }
}

/// Why a target cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The name means nothing.
    #[error("{0}")]
    Unknown(String),
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The system refused something.
    #[error("{what}: {error}")]
    Io {
        /// What was to be done.
        what: String,
        /// The system's error.
        error: io::Error,
    },
    /// It is too small, or there is no room for it.
    #[error("{0}")]
    Room(String),
}

impl TargetError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |error| Self::Io { what: what.into(), error }
    }
}

impl From<TargetError> for io::Error {
    /// A lack of room is that of a full disk, which is nobody's failure.
    fn from(error: TargetError) -> Self {
        match &error {
            TargetError::Room(_) => Self::new(io::ErrorKind::StorageFull, error),
            _ => Self::other(error),
        }
    }
}

/// Shortest target in bytes.
pub const LEN_MIN: u64 = 16 << 20;
/// Longest part of a target that is used, in bytes: it is written once before anything is measured.
pub const LEN_MAX: u64 = 1 << 40;

/// Why no experiment gets `len` bytes of memory, if it does not: whoever takes the last of it is killed. Says the same
/// as long as this process lives.
pub(crate) fn no_memory(len: u64) -> Option<String> {
    static MOST: LazyLock<u64> = LazyLock::new(|| u64::from(machine().memory_kib) << 10);
    let why = || {
        let (len, most) = (Bytes(len), Bytes(*MOST));
        format!(
            "it takes {len} of memory, and at most {most} can be had here; use a smaller --size"
        )
    };
    (len > *MOST).then(why)
}

/// Bytes at the start of a block device that the header of an encrypted image takes, in a turn of who has one there. So
/// many behind those that a run uses belong to it, too. As many as cryptsetup keeps free for a LUKS2 header.
pub(crate) const HEADER_BYTES: u64 = 16 << 20;

/// Bytes that have to stay free beside scratch files.
pub(crate) const SPARE: u64 = 64 << 20;

impl Target {
    /// Finds out what `text` names: `memory`, `zero`, `model:NAME`, or a path. A directory, or a
    /// path where nothing is yet, stands for a scratch file.
    ///
    /// # Errors
    /// If it names nothing, or something that is neither a file nor a block device.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        if let Some(name) = text.strip_prefix("model:") {
            return match Profile::by_name(name) {
                Some(_) => Ok(Self::Model(name.into())),
                None => Err(TargetError::Unknown(format!(
                    "there is no device model '{name}'; known are {}",
                    Profile::names().collect::<Vec<_>>().join(", ")
                ))),
            };
        }
        match text {
            "memory" => Ok(Self::Memory),
            "zero" => Ok(Self::Zero),
            path => Self::of_path(Path::new(path)),
        }
    }

    fn of_path(path: &Path) -> Result<Self, TargetError> {
        let absolute = std::path::absolute(path)
            .map_err(TargetError::io(format!("cannot use {}", path.display())))?;
        let found = match fs::metadata(&absolute) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A link to nothing is somebody's: it may lead to a disk that is not there now.
                if fs::symlink_metadata(&absolute).is_ok() {
                    return Err(TargetError::Unknown(format!(
                        "{} is a symbolic link that leads nowhere; name its destination, or another \
                         path",
                        path.display()
                    )));
                }
                let parent = absolute.parent().filter(|parent| parent.is_dir());
                let missing = || {
                    TargetError::Unknown(format!(
                        "{} is not there, and no directory to make it in; --on takes memory, zero, \
                         model:NAME, a file, a directory or a block device",
                        path.display()
                    ))
                };
                return parent.map(|_| Self::Scratch(absolute.clone())).ok_or_else(missing);
            }
            Err(error) => {
                return Err(TargetError::io(format!("cannot look at {}", path.display()))(error));
            }
        };
        let kind = found.file_type();
        if kind.is_dir() {
            let name = format!("ucrypt-lab-{}.scratch", std::process::id());
            Ok(Self::Scratch(absolute.join(name)))
        } else if kind.is_file() {
            // Images of servers lie beside it, not beside a link to it.
            let file = fs::canonicalize(&absolute);
            let failed = TargetError::io(format!("cannot look at {}", path.display()));
            Ok(Self::File(file.map_err(failed)?))
        } else if kind.is_block_device() {
            Ok(Self::Device(absolute))
        } else {
            let message = "is neither a file, a directory nor a block device";
            Err(TargetError::Unknown(format!("{} {message}", path.display())))
        }
    }

    /// Whether data of the user is lost in a run.
    pub fn destroys(&self) -> Option<&Path> {
        match self {
            Self::File(path) | Self::Device(path) => Some(path),
            _ => None,
        }
    }

    /// A directory on the same storage, where scratch images of servers can be made.
    pub fn scratch_dir(&self) -> Option<&Path> {
        match self {
            Self::Memory => Some(Path::new("/dev/shm")),
            Self::Scratch(path) | Self::File(path) => path.parent(),
            Self::Zero | Self::Model(_) | Self::Device(_) => None,
        }
    }

    /// Whether it is a block device, on which servers work themselves, instead of on images beside it.
    pub fn is_device(&self) -> bool {
        matches!(self, Self::Device(_))
    }

    /// Whether its data lies in memory, so that direct I/O means nothing.
    pub fn is_memory(&self) -> bool {
        matches!(self, Self::Memory | Self::Zero | Self::Model(_))
    }

    /// Opens it without writing: refuses a device or file that is in use, too small, or not
    /// permitted. Returns the length that a run uses, at most `len`.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn check(&self, len: u64) -> Result<u64, TargetError> {
        let len = match self {
            Self::File(path) | Self::Device(path) => {
                let backend = FileBackend::open(path, file_options())?;
                let header = if self.is_device() { HEADER_BYTES } else { 0 };
                let most = backend.limits().len;
                if most < LEN_MIN + header {
                    return Err(TargetError::Room(format!(
                        "{} has {most} bytes; an experiment needs {} or more",
                        path.display(),
                        LEN_MIN + header
                    )));
                }
                (most - header).min(len)
            }
            Self::Scratch(path) => {
                // It may have come since the run was asked for. A link to nothing is there too.
                if fs::symlink_metadata(path).is_ok() {
                    return Err(TargetError::Unknown(format!(
                        "{} is there already; remove it first",
                        path.display()
                    )));
                }
                let dir = path.parent().unwrap_or(Path::new("/"));
                keeps_files(dir)?;
                room(dir, len, "use a smaller --size")?;
                len
            }
            Self::Memory | Self::Model(_) => {
                if let Some(why) = no_memory(len) {
                    return Err(TargetError::Room(why));
                }
                len
            }
            Self::Zero => len,
        };
        Ok(len / (1 << 20) * (1 << 20))
    }

    /// What lies in memory: new each time.
    pub(crate) fn in_memory(&self, len: u64) -> Result<Arc<dyn Backend>, TargetError> {
        Ok(match self {
            Self::Memory => Arc::new(memory(len).map_err(TargetError::io("cannot take memory"))?),
            Self::Zero => Arc::new(ZeroBackend::new(len)),
            Self::Model(name) => Arc::new(
                ModelBackend::new(name, len)
                    .map_err(|error| TargetError::Unknown(error.to_string()))?,
            ),
            Self::Scratch(path) | Self::File(path) | Self::Device(path) => {
                let failed = TargetError::io(path.display().to_string());
                return Err(failed(io::ErrorKind::NotFound.into()));
            }
        })
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Zero => f.write_str("zero"),
            Self::Model(name) => write!(f, "model:{name}"),
            Self::Scratch(path) | Self::File(path) | Self::Device(path) => path.display().fmt(f),
        }
    }
}

/// How files and devices are opened.
pub(crate) fn file_options() -> OpenOptions {
    OpenOptions { direct: true, ..OpenOptions::default() }
}

/// Refuses a directory in which another user could put something else in the place of a file.
pub(crate) fn keeps_files(dir: &Path) -> Result<(), TargetError> {
    let failed = TargetError::io(format!("cannot look at {}", dir.display()));
    let found = fs::metadata(dir).map_err(failed)?;
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let is_ours = [0, own.0].contains(&found.uid());
    // A group of one's own has no other members, where each user has one.
    let others = if found.gid() == own.1 { 0o0002 } else { 0o0022 };
    let others_may_rename = found.mode() & others != 0 && found.mode() & 0o1000 == 0;
    if is_ours && !others_may_rename {
        return Ok(());
    }
    Err(TargetError::Unknown(format!(
        "other users could put another file in the place of a scratch file in {}; use a directory of \
         your own",
        dir.display()
    )))
}

/// Refuses a directory without room for `len` bytes. `remedy`: what the user can do then.
///
/// # Errors
/// If there is no room, or nobody can tell.
pub(crate) fn room(dir: &Path, len: u64, remedy: &str) -> Result<(), TargetError> {
    let failed = |error: rustix::io::Errno| {
        TargetError::io(format!("cannot use {}", dir.display()))(error.into())
    };
    let fs = statvfs(dir).map_err(failed)?;
    let free = fs.f_bavail.saturating_mul(fs.f_frsize);
    if free < len.saturating_add(SPARE) {
        return Err(TargetError::Room(format!(
            "{} has {free} bytes free, and {} are needed; {remedy}",
            dir.display(),
            len.saturating_add(SPARE)
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::held::Held;

    #[test]
    fn a_directory_in_which_others_may_rename_gets_no_scratch_file() {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::Scratch(dir.path().join("a.scratch"));
        let takes = |modes: [(u32, bool); 4]| {
            for (mode, is_taken) in modes {
                fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
                assert_eq!(target.check(LEN_MIN).is_ok(), is_taken, "{mode:o}");
            }
        };
        takes([(0o700, true), (0o777, false), (0o1777, true), (0o755, true)]);
        // The own group has no other members; any other may have some.
        takes([(0o775, true), (0o2775, true), (0o1775, true), (0o770, true)]);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(dir.path(), None, Some(4242)).unwrap();
            takes([(0o775, false), (0o2770, false), (0o1775, true), (0o755, true)]);
        }
    }

    #[test]
    fn a_target_is_what_its_name_or_the_file_system_says() {
        assert_eq!(Target::parse("memory").unwrap(), Target::Memory);
        assert_eq!(Target::parse("model:hdd").unwrap(), Target::Model("hdd".into()));
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| dir.path().join(name);
        let parse = |path: &Path| Target::parse(path.to_str().unwrap());
        let scratch = parse(dir.path()).unwrap();
        assert!(matches!(&scratch, Target::Scratch(path) if path.starts_with(dir.path())));
        assert_eq!(parse(&place("new")).unwrap(), Target::Scratch(place("new")));
        fs::write(place("old"), [7; 100]).unwrap();
        let old = parse(&place("old")).unwrap();
        assert_eq!(old.destroys(), Some(place("old").as_path()));
        assert!(matches!(old.check(LEN_MIN), Err(TargetError::Room(_))), "too small");
        for bad in ["model:tape", "/nowhere/at/all", "/dev/null"] {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_link_that_leads_nowhere_is_refused_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path().join("gone"), &link).unwrap();
        let refused = Target::parse(link.to_str().unwrap()).unwrap_err().to_string();
        assert!(refused.contains("symbolic link"), "{refused}");
        // Nor is it replaced if it came after the name was looked at.
        let target = Target::Scratch(link.clone());
        assert!(target.check(LEN_MIN).is_err());
        assert!(Held::make(&target, LEN_MIN).is_err());
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "something was made");
    }

    #[test]
    fn a_disk_is_told_from_the_next_one_in_the_same_place() {
        let dir = tempfile::tempdir().unwrap();
        let sda = dir.path().join("sda");
        let part = sda.join("sda1");
        fs::create_dir_all(&part).unwrap();
        fs::create_dir(sda.join("device")).unwrap();
        let write = |name: &str, text: &str| fs::write(sda.join(name), text).unwrap();
        let disk = |boot: &str| DeviceId::disk(&sda, boot);
        assert_eq!(disk("a"), None, "an old kernel, and a disk without a name");
        // The number of the disk that is in the device holds until the machine is started again.
        write("diskseq", "7\n");
        write("serial", "\n");
        let seventh = disk("a").unwrap();
        assert!(disk("b").unwrap() != seventh);
        write("diskseq", "8\n");
        assert!(disk("a").unwrap() != seventh);
        // An NBD device that is connected again is in the same place, and may be another disk.
        let eighth = disk("a");
        write("pid", "77\n");
        assert!(disk("a") != eighth);
        // A disk that says who it is stays the same wherever and whenever it is found.
        write("device/wwid", "naa.5000c500a1b2c3d4\n");
        let named = disk("a").unwrap();
        write("diskseq", "9\n");
        assert_eq!(disk("b").as_ref(), Some(&named));
        fs::write(part.join("partition"), "1\n").unwrap();
        assert_eq!(DeviceId::disk(&part, "a"), None, "it begins nowhere");
        fs::write(part.join("start"), "2048\n").unwrap();
        let first = DeviceId::disk(&part, "a").unwrap();
        assert!(first.contains(&named) && first != named, "{first}");
        fs::write(part.join("start"), "4096\n").unwrap();
        assert!(DeviceId::disk(&part, "a").unwrap() != first);
        // A card says nothing of itself: its reader does.
        write("removable", "1\n");
        assert!(disk("a").unwrap().starts_with("diskseq 9"));
    }

    #[test]
    fn memory_that_this_machine_does_not_have_is_refused_before_it_is_taken() {
        for target in [Target::Memory, Target::Model("sata2017".into())] {
            assert_eq!(target.check(LEN_MIN).unwrap(), LEN_MIN);
            let refused = target.check(LEN_MAX).unwrap_err().to_string();
            assert!(refused.contains("--size"), "{refused}");
        }
        assert_eq!(Target::Zero.check(LEN_MAX).unwrap(), LEN_MAX);
    }
}
