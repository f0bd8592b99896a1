//! File systems in user space (FUSE), on a served file: for users who may not mount devices.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use ucrypt_luks::{ReadAt, signature};

use super::Wanted;
use super::table::{self, Mount};
use crate::failure::Failure;
use crate::programs;

/// How long a program has to answer. That of a dead one comes from the kernel, at once.
const ANSWER_PATIENCE: Duration = Duration::from_secs(4);

/// A program that mounts an image file.
struct Program {
    name: &'static str,
    /// Where it is had from.
    from: &'static str,
    /// The file systems that it knows, by the names of their signatures.
    kinds: &'static [&'static str],
    /// The options that it needs. The first value is the kind, the second the file.
    options: fn(&str, &str) -> Vec<String>,
}

/// The best first.
const PROGRAMS: &[Program] = &[
    Program {
        name: "fuse2fs",
        from: "apt-get install fuse2fs",
        kinds: &["ext4"],
        // The volume is the user's, whoever the owners in it are; and a user may not mount for others.
        options: |_, _| {
            let is_root = rustix::process::geteuid().is_root();
            if is_root { Vec::new() } else { vec!["fakeroot".into()] }
        },
    },
    Program {
        name: "lklfuse",
        from: "lklfuse of the Linux Kernel Library, which Debian does not have",
        kinds: &["ext4", "xfs", "btrfs", "vfat"],
        options: |kind, file| vec![format!("type={kind}"), format!("fsname={file}")],
    },
    Program {
        name: "squashfuse",
        from: "apt-get install squashfuse",
        kinds: &["squashfs"],
        options: |_, file| vec![format!("fsname={file}"), "subtype=squashfuse".into()],
    },
];

/// Other names of a kind on the command line.
const EXT: [&str; 3] = ["ext2", "ext3", "ext4"];

/// The installed programs, or how to get one.
pub(super) fn installed() -> Result<String, String> {
    let found = PROGRAMS.iter().filter(|program| programs::find(program.name).is_some());
    let names: Vec<_> = found.map(|program| program.name).collect();
    if names.is_empty() {
        return Err(
            "no file system in user space is installed, which a user who is not root needs to \
                    mount a volume: apt-get install fuse2fs (ext2, ext3, ext4)"
                .into(),
        );
    }
    Ok(format!("users can mount by {}", names.join(", ")))
}

/// Checks that there is a program, for the kind of file system if that is known.
pub(super) fn check(kind: Option<&str>) -> Result<(), Failure> {
    if let Some(kind) = kind {
        return program_for(kind).map(drop);
    }
    installed().map(drop).map_err(Failure::device)
}

/// Refuses a file whose path these programs would take for options: they write it into their own options,
/// and escape nothing.
pub(super) fn check_file(file: &Path) -> Result<(), Failure> {
    if !file.as_os_str().as_bytes().iter().any(|byte| b",\\".contains(byte)) {
        return Ok(());
    }
    Err(Failure::wrong(format!(
        "{} has a ',' or a '\\', which file systems in user space cannot mount; use another name for the \
         volume (or XDG_RUNTIME_DIR)",
        file.display()
    )))
}

fn program_for(kind: &str) -> Result<&'static Program, Failure> {
    let kind = if EXT.contains(&kind) { "ext4" } else { kind };
    let mut able = PROGRAMS.iter().filter(|program| program.kinds.contains(&kind));
    if let Some(program) = able.clone().find(|program| programs::find(program.name).is_some()) {
        return Ok(program);
    }
    Err(match able.next() {
        Some(first) => Failure::device(format!(
            "{kind} without root needs {}, which is missing: {}; or mount as root",
            first.name, first.from
        )),
        None => Failure::device(format!(
            "{kind} can be mounted only as root (or by --fstype of another kind)"
        )),
    })
}

/// The kinds of file system whose signatures are on a device or file.
pub(super) fn kinds(path: &Path) -> Result<Vec<&'static str>, Failure> {
    let failed =
        |error: io::Error| Failure::device(format!("cannot read {}: {error}", path.display()));
    let mut file = File::open(path).map_err(failed)?;
    let len = file.seek(SeekFrom::End(0)).map_err(failed)?;
    let found = signature::find(&Content { file, len })?;
    let mut kinds: Vec<_> = found.iter().map(|found| found.name).collect();
    kinds.dedup();
    Ok(kinds)
}

struct Content {
    file: File,
    len: u64,
}

impl ReadAt for Content {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }
}

/// The kind of the only file system on a file.
fn kind_of(file: &Path) -> Result<&'static str, Failure> {
    let found = kinds(file)?;
    let known = |kind: &&&str| PROGRAMS.iter().any(|program| program.kinds.contains(*kind));
    let mut mountable = found.iter().filter(known);
    match (mountable.next(), mountable.next()) {
        (Some(kind), None) => Ok(kind),
        (Some(one), Some(other)) => Err(Failure::wrong(format!(
            "the volume has signatures of {one} and {other}; choose one by --fstype"
        ))),
        (None, _) if found.is_empty() => Err(Failure::device(
            "the volume has no file system; ucrypt open opens it, and mkfs.ext4 makes one",
        )),
        (None, _) => Err(Failure::device(format!(
            "the volume holds {}, which can be mounted only as root",
            found.join(" and ")
        ))),
    }
}

/// Mounts a served file.
pub(super) fn mount(file: &Path, wanted: &Wanted<'_>) -> Result<(), Failure> {
    check_file(file)?;
    let kind = wanted.fstype.map_or_else(|| kind_of(file), Ok)?;
    let program = program_for(kind)?;
    let path = programs::find(program.name).unwrap_or_else(|| program.name.into());
    let mut options: Vec<String> = wanted.options.iter().map(|option| (*option).into()).collect();
    for option in (program.options)(kind, &file.display().to_string()) {
        if !options.contains(&option) {
            options.push(option);
        }
    }
    let mut command = Command::new(path);
    command.arg(file).arg(&wanted.dir);
    if !options.is_empty() {
        command.args(["-o", &options.join(",")]);
    }
    let place = wanted.dir.display();
    let ran = programs::run(&mut command)
        .map_err(|error| Failure::device(format!("cannot run {}: {error}", program.name)))?;
    let is_there = || {
        let mounts = table::read()?;
        Ok::<_, Failure>(Mount::at(&mounts, &wanted.dir).is_some_and(|it| it.source == file))
    };
    if ran.status.success() && is_there()? {
        return Ok(());
    }
    let said = if ran.said.is_empty() { ran.status.to_string() } else { ran.said };
    Err(Failure::device(format!("cannot mount at {place}: {}: {said}", program.name)))
}

/// The first of these users, as `users::of` names them, that is such a program.
pub(super) fn among(users: &[String]) -> Option<&str> {
    let is_one = |user: &&String| {
        PROGRAMS.iter().any(|program| user.starts_with(&format!("{} (process ", program.name)))
    };
    users.iter().find(is_one).map(String::as_str)
}

/// Whether the program that keeps this file system has ended, for certain.
pub(super) fn is_dead(mount: &Mount) -> bool {
    let (tell, told) = mpsc::sync_channel(1);
    let place = mount.place.clone();
    // A program that hangs never answers.
    let asked = thread::Builder::new().spawn(move || tell.send(rustix::fs::statfs(&place).err()));
    asked.is_ok() && told.recv_timeout(ANSWER_PATIENCE) == Ok(Some(Errno::NOTCONN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_in_user_space_is_known_among_users() {
        let users = ["cat (process 1)".into(), "fuse2fs (process 7)".into()];
        assert_eq!(among(&users), Some("fuse2fs (process 7)"));
        assert_eq!(among(&["fuse2fs-log (process 7)".into(), "mounted at /x".into()]), None);
    }

    #[test]
    fn a_kind_without_a_program_names_what_has_to_be_installed_or_root() {
        let refusal = |kind: &str| program_for(kind).err().map(|failure| failure.message);
        assert!(refusal("zfs_member").unwrap().contains("only as root"));
        if let Some(refusal) = refusal("ext3") {
            assert!(refusal.contains("apt-get install fuse2fs"), "{refusal}");
        }
    }

    #[test]
    fn a_new_volume_has_no_file_system() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        assert!(kind_of(file.path()).unwrap_err().message.contains("no file system"));
        file.as_file().write_all_at(b"\x53\xef", 0x438).unwrap();
        assert_eq!(kind_of(file.path()).unwrap(), "ext4");
        file.as_file().write_all_at(b"hsqs", 0).unwrap();
        assert!(kind_of(file.path()).unwrap_err().message.contains("--fstype"));
    }
}
