//! A mount namespace for the server, with nothing in it but what it needs.
//!
//! In the namespace of its user, the server could come to wait for itself: by looking for a file on
//! a file system that is on its own device. A mere copy of that namespace would not do: it would
//! keep every file system mounted that its user unmounts. So it gets a root of its own, in which
//! the few places that it goes on to use are found where they were.
//!
//! The image was opened before: it stays busy for who unmounts the file system that it is on.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, open};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsmount, fsopen, mount_change, move_mount,
    open_tree, unmount,
};
use rustix::process::{chdir, fchdir, pivot_root};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// What a server needs of the system.
const SYSTEM: [&str; 3] = ["/dev", "/proc", "/sys"];

/// Where the new root is put before it becomes the root: any directory.
const STEP: &str = "/proc";

/// Moves this thread, and those it will start, to a namespace where only this directory is and
/// what the system has. If that fails, everything is as before.
pub(super) fn enter(own: &Path) -> io::Result<()> {
    let before = open("/proc/self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    #[expect(deprecated, reason = "unsafe only where descriptor tables are unshared")]
    rustix::thread::unshare(UnshareFlags::NEWNS)?;
    enter_root(own).inspect_err(|_| {
        // It is where we come from.
        let _ = move_into_link_name_space(before.as_fd(), Some(LinkNameSpaceType::Mount));
    })
}

fn enter_root(own: &Path) -> io::Result<()> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private)?;
    // With what is mounted below: in containers, single nodes of /dev are.
    let whole_tree = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    let mut places: Vec<&Path> = SYSTEM.iter().map(Path::new).collect();
    if !SYSTEM.iter().any(|dir| own.starts_with(dir)) {
        places.push(own);
    }
    let trees = places.into_iter().map(|path| Ok((path, open_tree(CWD, path, whole_tree)?)));
    let trees: Vec<(&Path, OwnedFd)> = trees.collect::<io::Result<_>>()?;
    let root = tmpfs()?;
    let whole = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    // From here, the step shows the new root.
    move_mount(&root, "", CWD, STEP, whole)?;
    for (path, tree) in &trees {
        let place: PathBuf =
            [Path::new(STEP), path.strip_prefix("/").unwrap_or(path)].iter().collect();
        fs::create_dir_all(&place)?;
        move_mount(tree, "", CWD, &place, whole)?;
    }
    fchdir(&root)?;
    pivot_root(".", ".")?;
    // The old root lies over the new one now.
    unmount(".", UnmountFlags::DETACH)?;
    Ok(chdir("/")?)
}

fn tmpfs() -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}
