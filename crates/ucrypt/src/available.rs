//! Which exports this system supports and permits to this user. Actions check this before they ask
//! for a passphrase.
//!
//! The checks try to use each resource instead of looking at the user ID: root in a container or in
//! a user namespace may have fewer rights than a user on a desktop.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, fsopen};
use ucrypt_export::loop_device::LoopError;
use ucrypt_export::ublk::UblkError;

use crate::failure::Failure;
use crate::{programs, user};

const FUSE: &str = "/dev/fuse";
const LOOP: &str = "/dev/loop-control";
const UBLK: &str = "/dev/ublk-control";

/// The capability's bit in a set of `/proc/self/status`.
const CAP_SYS_ADMIN: u64 = 1 << 21;

/// The exports, most like a disk first.
const WAYS: [(&str, Check); 4] =
    [("ublk", has_ublk), ("loop", has_loop), ("fuse", has_fuse), ("nbd", || Ok(()))];

type Check = fn() -> Result<(), Lacking>;

/// Why an export is unavailable: the exit code, and the cause with its remedy.
struct Lacking {
    code: u8,
    cause: String,
}

/// Checks whether a FUSE file can be served.
pub(crate) fn fuse() -> Result<(), Failure> {
    has_fuse().map_err(|lacking| lacking.failure("fuse"))
}

/// Checks whether a loop device can be served.
pub(crate) fn loop_device() -> Result<(), Failure> {
    has_loop().map_err(|lacking| lacking.failure("loop"))
}

/// Checks whether a ublk device can be served.
pub(crate) fn ublk() -> Result<(), Failure> {
    has_ublk().map_err(|lacking| lacking.failure("ublk"))
}

/// Whether a ublk device can be served, or why not, with its remedy; `None` if the kernel has no ublk.
pub(crate) fn ublk_if_there() -> Option<Result<(), String>> {
    let found = ucrypt_export::ublk::check();
    let is_there = !matches!(found, Err(UblkError::Missing));
    is_there.then(|| lacking_ublk(found).map_err(|lacking| lacking.cause))
}

/// Why this user cannot have a loop device, with its remedy, if that is so.
pub(crate) fn why_no_loop_device() -> Option<String> {
    has_loop().err().map(|lacking| lacking.cause)
}

/// Why this user cannot have a FUSE file, with its remedy, if that is so.
pub(crate) fn why_no_fuse() -> Option<String> {
    has_fuse().err().map(|lacking| lacking.cause)
}

/// Every export, most like a disk first, with what it lacks here and the remedy.
pub(crate) fn exports() -> impl Iterator<Item = (&'static str, Option<String>)> {
    WAYS.iter().map(|(name, check)| (*name, check().err().map(|lacking| lacking.cause)))
}

/// The best export that needs no root.
pub(crate) fn without_root() -> &'static str {
    if has_fuse().is_ok() { "fuse" } else { "nbd" }
}

impl Lacking {
    /// The system lacks the resource.
    fn missing(cause: &str) -> Self {
        Self { code: 4, cause: cause.into() }
    }

    /// This user may not use the resource.
    fn denied(cause: impl Into<String>) -> Self {
        Self { code: 2, cause: cause.into() }
    }

    /// This user may not use the device. `remedy` is for who is not root: root may use all, unless the
    /// rules of a container forbid it.
    fn forbidden(device: &str, remedy: &str) -> Self {
        let by_rule = format!("allow this container to use it (--device {device})");
        let remedy = if user::is_root() { &by_rule } else { remedy };
        Self::denied(format!("no permission to use {device}: {remedy}"))
    }

    /// The device's node is missing: the kernel has no such driver, or a container was not given the node.
    fn without_node(device: &str, what: &str, module: &str) -> Self {
        let drivers = fs::read_to_string("/proc/misc").unwrap_or_default();
        let has_driver = drivers
            .lines()
            .any(|line| line.split_whitespace().nth(1) == device.strip_prefix("/dev/"));
        Self::missing(&if has_driver {
            format!(
                "{device} is missing, but the kernel has {what}: allow this container to use it \
                 (--device {device})"
            )
        } else {
            format!("this system has no {what} ({device} is missing): modprobe {module}")
        })
    }

    /// The failure to serve as `wanted`. Its message suggests the next export that is available.
    fn failure(self, wanted: &str) -> Failure {
        let after = WAYS.iter().skip_while(|(name, _)| *name != wanted).skip(1);
        let next = after.into_iter().find(|(_, check)| check().is_ok());
        let next = next.map_or("nbd", |(name, _)| name);
        Failure::with(self.code, format_args!("{}, or use --as {next}", self.cause))
    }
}

/// Checks for `/dev/fuse`, and for either the right to mount or the helper that has it.
fn has_fuse() -> Result<(), Lacking> {
    openable(FUSE).map_err(|error| match error {
        Errno::ACCESS | Errno::PERM => Lacking::forbidden(FUSE, &grant(FUSE)),
        _ => Lacking::without_node(FUSE, "FUSE", "fuse"),
    })?;
    if may_mount() { Ok(()) } else { has_helper() }
}

/// The command by which root gives this user access to a device: membership in the group that has it, or an entry of
/// its own.
fn grant(device: &str) -> String {
    let user = rustix::process::geteuid().as_raw();
    let user = name_in("/etc/passwd", user).unwrap_or_else(|| user.to_string());
    let group = fs::metadata(device).ok().filter(|it| it.gid() != 0 && it.mode() & 0o060 == 0o060);
    match group.and_then(|it| name_in("/etc/group", it.gid())) {
        Some(group) => format!("as root, usermod -aG {group} {user}, then log in again"),
        None => format!("as root, setfacl -m u:{user}:rw {device}"),
    }
}

/// The name that has this number in a list of users or groups.
fn name_in(list: &str, number: u32) -> Option<String> {
    let number = number.to_string();
    let list = fs::read_to_string(list).ok()?;
    let mut entries = list.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let entry = entries.find(|entry| entry.get(2) == Some(&number.as_str()))?;
    Some(entry[0].to_owned())
}

/// Checks for the loop driver, and for the right to mount the file that it uses.
fn has_loop() -> Result<(), Lacking> {
    openable(LOOP).map_err(|error| match error {
        Errno::ACCESS | Errno::PERM => Lacking::forbidden(LOOP, "run as root"),
        _ => Lacking::without_node(LOOP, "loop devices", "loop"),
    })?;
    match openable(FUSE) {
        Ok(()) if may_mount() => has_free_loop(),
        Ok(()) | Err(Errno::ACCESS | Errno::PERM) => Err(Lacking::denied(
            "no right to mount a file for the loop driver: this needs CAP_SYS_ADMIN and /dev/fuse (in a \
             container --cap-add SYS_ADMIN --device /dev/fuse)",
        )),
        Err(_) => Err(Lacking::without_node(FUSE, "FUSE, on which loop devices stand", "fuse")),
    }
}

/// Checks for a free device of the loop driver: a container may have the driver and no device.
fn has_free_loop() -> Result<(), Lacking> {
    ucrypt_export::loop_device::check().map_err(|error| match error {
        LoopError::NoneFree(error) => Lacking::missing(&format!(
            "there is no free loop device: {error}: losetup -d /dev/loopN frees one that losetup --list shows"
        )),
        LoopError::Attach { device, error: Errno::ACCESS | Errno::PERM } => {
            Lacking::forbidden(&device.display().to_string(), "run as root")
        }
        LoopError::Attach { device, error } => {
            let device = device.display().to_string();
            let number = device.trim_start_matches("/dev/loop");
            Lacking::missing(&format!(
                "cannot attach {device}: {error}: make its node (mknod -m 660 {device} b 7 {number}), or give \
                 it to this container (--device {device})"
            ))
        }
        error => Lacking::missing(&error.to_string()),
    })
}

fn has_ublk() -> Result<(), Lacking> {
    lacking_ublk(ucrypt_export::ublk::check())
}

fn lacking_ublk(found: Result<(), UblkError>) -> Result<(), Lacking> {
    found.map_err(|error| match error {
        UblkError::Denied => Lacking::forbidden(UBLK, "run as root"),
        UblkError::Missing => Lacking::missing(
            "this kernel has no ublk (/dev/ublk-control is missing): modprobe ublk_drv, in Linux 6.5 or \
             newer",
        ),
        UblkError::TooOld => Lacking::missing(
            "this kernel's ublk cannot copy data at a server's request: Linux 6.5 or newer can",
        ),
        UblkError::NoRing { error } => Lacking::missing(&format!(
            "io_uring, which ublk needs, is not available: {error}: allow it (sysctl \
             kernel.io_uring_disabled=0)"
        )),
        UblkError::Control { what, error } => Lacking::missing(&format!("cannot {what}: {error}")),
        error => Lacking::missing(&error.to_string()),
    })
}

fn openable(path: &str) -> Result<(), Errno> {
    let opened = File::options().read(true).write(true).open(path);
    opened.map(drop).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Whether this process may mount in its mount namespace.
pub(crate) fn may_mount() -> bool {
    fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC).is_ok()
}

/// Checks whether `fusermount3` can mount for this user: it is setuid, its owner is a root that this user
/// namespace knows, and this process may start programs with more rights than its own; the capabilities that they
/// get include the right to mount; and the user has a name, without which `fusermount3` does nothing.
fn has_helper() -> Result<(), Lacking> {
    // It gains no rights by being setuid where it is root already, also as root of a user namespace.
    if rustix::process::geteuid().is_root() {
        let remedy = if user::is_root() {
            " (in a container --cap-add SYS_ADMIN)"
        } else {
            " and a mount namespace of its own (unshare --mount)"
        };
        return Err(Lacking::denied(format!(
            "no right to mount a file: this needs CAP_SYS_ADMIN{remedy}"
        )));
    }
    let setuid = |program: &Path| {
        fs::metadata(program).is_ok_and(|it| it.uid() == 0 && it.permissions().mode() & 0o4000 != 0)
    };
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let is_bound = status_field(&status, "NoNewPrivs") == Some("1");
    if is_bound || !programs::find("fusermount3").is_some_and(|program| setuid(&program)) {
        return Err(Lacking::denied(
            "no right to mount a file: this needs CAP_SYS_ADMIN, or the setuid program fusermount3 \
             where such programs may act: apt-get install fuse3",
        ));
    }
    let bounding =
        status_field(&status, "CapBnd").and_then(|set| u64::from_str_radix(set, 16).ok());
    if bounding.is_some_and(|set| set & CAP_SYS_ADMIN == 0) {
        return Err(Lacking::denied(
            "fusermount3 has no right to mount a file here: give this container CAP_SYS_ADMIN (--cap-add \
             SYS_ADMIN)",
        ));
    }
    if !has_name() {
        return Err(Lacking::denied(format!(
            "fusermount3 mounts only for users with a name, and user {0} has none here: as root, useradd --uid {0} \
             NAME",
            rustix::process::geteuid().as_raw()
        )));
    }
    // It mounts without the list of mounts, and then refuses to unmount.
    if !Path::new("/etc/mtab").exists() {
        return Err(Lacking::missing(
            "fusermount3 cannot unmount a file here, because /etc/mtab is missing: as root, \
             ln -s ../proc/self/mounts /etc/mtab",
        ));
    }
    Ok(())
}

/// The field of `/proc/self/status`.
fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.strip_prefix(name)?.strip_prefix(':');
    status.lines().find_map(value).map(str::trim)
}

/// Whether this user has a name: in `/etc/passwd`, or where else the system looks, which id(1) knows.
fn has_name() -> bool {
    let user = rustix::process::geteuid().as_raw();
    if name_in("/etc/passwd", user).is_some() {
        return true;
    }
    let asked = programs::find("id").map(|id| {
        Command::new(id)
            .args(["-un", &user.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
    });
    matches!(asked, Some(Ok(status)) if status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_gives_access_names_the_user_and_the_device() {
        let text = grant("/dev/null/nothing");
        let user = rustix::process::geteuid().as_raw();
        let user = name_in("/etc/passwd", user).unwrap_or_else(|| user.to_string());
        assert_eq!(text, format!("as root, setfacl -m u:{user}:rw /dev/null/nothing"));
        assert_eq!(name_in("/etc/passwd", 0).as_deref(), Some("root"));
        assert_eq!(name_in("/nowhere", 0), None);
    }
}
