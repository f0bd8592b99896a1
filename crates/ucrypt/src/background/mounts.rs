//! A mount namespace for the server that contains only what it needs.
//!
//! In the namespace of its user, the server could end up waiting for itself: by looking up a file
//! on a file system that is on its own device. A copy of that namespace would not do, because it
//! would keep every file system mounted that the user unmounts. The server therefore gets a root of
//! its own, in which the few directories that it still uses are at their old paths.
//!
//! Mounts below those directories are left out, except single device nodes below /dev, as
//! containers have them.
//!
//! The image was opened before, so the file system that holds it stays busy for whoever unmounts
//! it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, open, statx};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsmount, fsopen, mount_change, move_mount,
    open_tree, unmount,
};
use rustix::process::{chdir, fchdir, pivot_root};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use ucrypt_backend::move_other_threads;

use crate::mount::table;

/// The system directories that a server needs.
const SYSTEM: [&str; 3] = ["/dev", "/proc", "/sys"];

/// Where the new root is mounted before it becomes the root: any directory.
const STEP: &str = "/proc";

/// Why a server stays in the mount namespace of its user.
#[derive(Debug)]
pub(super) enum Stays {
    /// The root is not that of the namespace (chroot): a namespace of its own would keep what lies outside of the
    /// root, and the way back from a failure leads there.
    ChangedRoot,
    /// It has left, but not with all of its threads.
    InPart,
    /// The system refused a step, which is named as its system call is.
    Refused { step: &'static str, error: io::Error },
}

/// The failure of a step.
fn at<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> Stays {
    move |error| Stays::Refused { step, error: error.into() }
}

/// Moves this process, of which this is the main thread, to a namespace that contains only the directory `own` and the
/// system directories. On failure everything is as before, but for [`Stays::InPart`].
///
/// A thread that stayed would keep the user's file systems mounted. Were the server killed as the last that has the
/// user's namespace, that thread would also have to store what is on the server's own device, and never end.
pub(super) fn enter(own: &Path) -> Result<(), Stays> {
    let own_namespace =
        || open("/proc/self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let before = own_namespace().map_err(at("open"))?;
    if has_changed_root(before.as_fd())? {
        return Err(Stays::ChangedRoot);
    }
    #[expect(deprecated, reason = "unsafe only where descriptor tables are unshared")]
    rustix::thread::unshare(UnshareFlags::NEWNS).map_err(at("unshare"))?;
    let entered = enter_root(own).inspect_err(|_| {
        // Return to the old namespace, to its root.
        let _ = move_into_link_name_space(before.as_fd(), Some(LinkNameSpaceType::Mount));
    });
    entered?;
    let namespace = own_namespace().map_err(at("open"))?;
    move_other_threads(namespace.as_fd()).map_err(|_| Stays::InPart)
}

/// Whether the root of this process is not that of its mount namespace. Whoever moves into a namespace, the present one
/// too, gets its root: so a thread that shares its root with no other does, and looks.
fn has_changed_root(namespace: BorrowedFd<'_>) -> Result<bool, Stays> {
    let root = || {
        let asked = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        let found = statx(CWD, "/", AtFlags::empty(), asked).map_err(at("statx"))?;
        Ok::<_, Stays>((found.stx_mnt_id, found.stx_dev_major, found.stx_dev_minor, found.stx_ino))
    };
    let look = || {
        let present = root()?;
        #[expect(deprecated, reason = "unsafe only where descriptor tables are unshared")]
        rustix::thread::unshare(UnshareFlags::FS).map_err(at("unshare"))?;
        move_into_link_name_space(namespace, Some(LinkNameSpaceType::Mount))
            .map_err(at("setns"))?;
        Ok(root()? != present)
    };
    std::thread::scope(|scope| {
        let looks = std::thread::Builder::new().spawn_scoped(scope, look).map_err(at("clone"))?;
        looks.join().unwrap_or_else(|_| Err(at("setns")(io::Error::from(io::ErrorKind::Other))))
    })
}

fn enter_root(own: &Path) -> Result<(), Stays> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(at("mount"))?;
    // Leave out mounts below: they would stay busy for whoever unmounts them.
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mounted = mounted();
    let mut paths: Vec<&Path> = SYSTEM.iter().map(Path::new).collect();
    paths.extend(mounted.iter().map(PathBuf::as_path).filter(|path| is_node(path)));
    paths.push(place_of(own, &mounted));
    let tree = |path| Ok((path, open_tree(CWD, path, clone).map_err(at("open_tree"))?));
    let trees: Vec<(&Path, OwnedFd)> = paths.into_iter().map(tree).collect::<Result<_, Stays>>()?;
    let root = tmpfs()?;
    let whole = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    // From here on, `STEP` shows the new root.
    move_mount(&root, "", CWD, STEP, whole).map_err(at("move_mount"))?;
    for (path, tree) in &trees {
        let place: PathBuf =
            [Path::new(STEP), path.strip_prefix("/").unwrap_or(path)].iter().collect();
        if !place.exists() {
            fs::create_dir_all(&place).map_err(at("mkdir"))?;
        }
        move_mount(tree, "", CWD, &place, whole).map_err(at("move_mount"))?;
    }
    fchdir(&root).map_err(at("chdir"))?;
    pivot_root(".", ".").map_err(at("pivot_root"))?;
    // The old root lies over the new one now.
    unmount(".", UnmountFlags::DETACH).map_err(at("umount"))?;
    chdir("/").map_err(at("chdir"))
}

/// The paths where something is mounted.
fn mounted() -> Vec<PathBuf> {
    let mounts = table::of(Path::new("/proc/self")).unwrap_or_default();
    mounts.into_iter().map(|mount| mount.place).collect()
}

/// Whether the path is a single device node below /dev. Does not query a file system that does not
/// answer.
fn is_node(path: &Path) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    path.starts_with("/dev")
        && statx(CWD, path, flags, StatxFlags::TYPE).is_ok_and(|found| {
            let kind = FileType::from_raw_mode(found.stx_mode.into());
            matches!(kind, FileType::BlockDevice | FileType::CharacterDevice)
        })
}

/// The path to clone so that the directory `own` exists: `own` itself, or the mount that contains
/// it if it lies in a system directory.
fn place_of<'a>(own: &'a Path, mounted: &'a [PathBuf]) -> &'a Path {
    if !SYSTEM.iter().any(|dir| own.starts_with(dir)) {
        return own;
    }
    let holders = mounted.iter().map(PathBuf::as_path).filter(|path| own.starts_with(path));
    holders.max_by_key(|path| path.components().count()).unwrap_or(own)
}

fn tmpfs() -> Result<OwnedFd, Stays> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(at("fsopen"))?;
    fsconfig_create(context.as_fd()).map_err(at("fsconfig"))?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(at("fsmount"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_below_dev_comes_with_what_is_mounted_there_and_no_more() {
        let mounted = ["/", "/dev", "/dev/shm", "/dev/shm/other", "/run"].map(PathBuf::from);
        let place = |own: &'static str| place_of(Path::new(own), &mounted).to_path_buf();
        assert_eq!(place("/run/ucrypt"), Path::new("/run/ucrypt"));
        assert_eq!(place("/dev/shm/run/ucrypt"), Path::new("/dev/shm"));
        assert!(is_node(Path::new("/dev/null")) && !is_node(Path::new("/dev")));
    }
}
