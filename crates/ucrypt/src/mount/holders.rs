//! Who keeps a file system from being unmounted, as far as this process can see.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use ucrypt_backend::kernel_table;

use super::table::{self, Mount};
use crate::users::{self, Users};
use crate::{maps, processes};

/// The programs that use a file system, what is mounted on it, and what lies in it.
pub(super) fn of(mount: &Mount) -> Users {
    let (opened, mapped) = (mount.clone(), mount.clone());
    let mut holders = users::among(
        processes::others().collect(),
        move |process| (Vec::new(), has_open(&opened, &process.dir)),
        move |process| has_mapped(&mapped, &process.dir),
    );
    let above = table::read().unwrap_or_default();
    let above = above.iter().filter(|other| other.parent == mount.id);
    holders.seen.extend(above.map(|other| format!("mounted on it: {}", other.place.display())));
    holders.seen.extend(
        files_of_the_kernel()
            .filter(|(file, _)| file.starts_with(&mount.place))
            .map(|(file, what)| format!("{what} {}", file.display())),
    );
    holders
}

fn has_open(mount: &Mount, process: &Path) -> bool {
    let single = ["cwd", "root", "exe"].map(|link| process.join(link));
    let open = fs::read_dir(process.join("fd")).into_iter().flatten().filter_map(Result::ok);
    single.into_iter().chain(open.map(|entry| entry.path())).any(|link| is_in(mount, &link))
}

fn has_mapped(mount: &Mount, process: &Path) -> bool {
    let table = maps::of(process);
    table.lines().filter_map(maps::parse).any(|mapped| mapped.device == mount.device)
}

/// Whether a link in /proc leads into the file system. Takes what the kernel knows already: a file
/// system may not answer.
fn is_in(mount: &Mount, link: &Path) -> bool {
    let Ok(target) = fs::read_link(link) else { return false };
    if !target.is_absolute() {
        return false;
    }
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    target.starts_with(&mount.place)
        || statx(CWD, link, flags, StatxFlags::TYPE)
            .is_ok_and(|found| (found.stx_dev_major, found.stx_dev_minor) == mount.device)
}

/// Files that the kernel itself uses, and as what.
fn files_of_the_kernel() -> impl Iterator<Item = (PathBuf, &'static str)> {
    let loops = fs::read_dir("/sys/block").into_iter().flatten().filter_map(Result::ok);
    let loops = loops.filter_map(|device| {
        let file = kernel_table(device.path().join("loop/backing_file")).ok()?;
        Some((PathBuf::from(file.trim_end()), "a loop device over"))
    });
    let swaps = kernel_table("/proc/swaps").unwrap_or_default();
    let swaps: Vec<_> = swaps
        .lines()
        .skip(1)
        .filter_map(|line| Some((PathBuf::from(line.split(' ').next()?), "swap on")))
        .collect();
    loops.chain(swaps)
}
