//! File systems of the kernel, on a device.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Wanted, fuse};
use crate::failure::Failure;
use crate::programs;
use crate::progress::Waiting;
use crate::secrecy;

/// Signatures of partition tables.
const PARTITIONED: [&str; 2] = ["dos", "gpt"];

/// `mount` or `umount`.
pub(super) fn program(name: &str) -> Result<PathBuf, Failure> {
    programs::find(name)
        .ok_or_else(|| Failure::device(format!("{name} is missing: apt-get install mount")))
}

/// Checks that `mount` is there.
pub(super) fn check() -> Result<(), Failure> {
    program("mount").map(drop)
}

/// Mounts the device by mount(8), which knows all options and the kernel's helpers.
pub(super) fn mount(device: &Path, wanted: &Wanted<'_>) -> Result<(), Failure> {
    let mut command = Command::new(program("mount")?);
    if let Some(kind) = wanted.fstype {
        command.args(["-t", kind]);
    }
    if !wanted.options.is_empty() {
        command.args(["-o", &wanted.options.join(",")]);
    }
    command.arg("--").arg(device).arg(&wanted.dir);
    let place = wanted.dir.display();
    // It may have a journal to replay.
    let _waiting = Waiting::begin(&format!("mounting at {place}"));
    // Some file systems get their rights from it.
    let ran = secrecy::under_inherited_umask(|| programs::run(&mut command))
        .map_err(|error| Failure::device(format!("cannot run mount: {error}")))?;
    if ran.status.success() {
        return Ok(());
    }
    let mut said = ran.said.trim_start_matches("mount: ").to_owned();
    if wanted.fstype.is_none()
        && let Ok(kinds) = fuse::kinds(device)
    {
        if kinds.is_empty() {
            said = "the volume has no file system; ucrypt open opens it, and mkfs.ext4 makes one"
                .into();
        } else if kinds.iter().all(|kind| PARTITIONED.contains(kind)) {
            said = "the volume has a partition table; ucrypt open --as loop --partscan opens it, and each \
                    partition has a device beside that of the volume (lsblk)"
                .into();
        }
    }
    Err(Failure::device(format!("cannot mount at {place}: {said}")))
}

/// Has the kernel write back what the file system holds. Fails if some of it cannot be written.
pub(super) fn sync(place: &Path) -> Result<(), Failure> {
    let _waiting =
        Waiting::begin(&format!("unmounting {}: writing what it holds", place.display()));
    let synced = match File::open(place) {
        // A user whom the kernel lets unmount it all the same is told by the count of failed requests.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        Err(error) => Err(error),
        Ok(dir) => rustix::fs::syncfs(&dir).map_err(io::Error::from),
    };
    synced.map_err(|error| {
        let place = place.display();
        Failure::device(format!(
            "what was written to {place} cannot be stored: {error}; it stays mounted; umount {place} gives \
             it up"
        ))
    })
}
