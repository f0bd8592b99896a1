//! Finds who uses a served file or device, as far as this process can see.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use ucrypt_backend::kernel_table;

use crate::mount::table::{self, Mount};
use crate::processes::{self, Process};
use crate::{ending, maps};

/// How many users a message names.
const NAMED_MAX: usize = 4;

/// Device managers, which open every device that changes and close it again by themselves.
const PASSING: [&str; 4] = ["systemd-udevd", "(udev-worker)", "udevd", "blkid"];

/// How long to look for users.
const PATIENCE: Duration = Duration::from_secs(4);
const _: () = assert!(
    PATIENCE.as_millis() < ending::USERS_PATIENCE.as_millis(),
    "who takes long to be found keeps a server from its end no longer than who is found"
);

/// What may be in use.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place<'a> {
    /// The node of a disk.
    Device(&'a Path),
    /// A served file, and the number of its file system if that is known: its path may be gone.
    File(&'a Path, Option<Number>),
}

/// Who uses something.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Users {
    /// Programs, as `NAME (process PID)`, and what else may use a volume.
    pub(crate) seen: Vec<String>,
    /// Programs that may be among them: they could not be looked at in time.
    pub(crate) unseen: Vec<String>,
}

impl Users {
    /// Whether nobody is there, for certain.
    pub(crate) fn are_none(&self) -> bool {
        self.seen.is_empty() && self.unseen.is_empty()
    }

    /// Those to name, the certain ones first.
    pub(crate) fn names(&self) -> Vec<String> {
        let perhaps = |it| format!("perhaps {it}, which does not let itself be looked at");
        self.seen.iter().cloned().chain(self.unseen.iter().map(perhaps)).collect()
    }

    /// ` (A, B and others)`, or nothing.
    pub(crate) fn by(&self) -> String {
        let mut names = self.names();
        if names.is_empty() {
            return String::new();
        }
        let others = if names.len() > NAMED_MAX { " and others" } else { "" };
        names.truncate(NAMED_MAX);
        format!(" ({}{others})", names.join(", "))
    }
}

/// The programs that have one of these files or devices open or mapped, the paths where a device is mounted, and the
/// devices on top of one.
pub(crate) fn of(places: &[Place<'_>]) -> Users {
    beside(places, std::process::id())
}

/// As [`of`], without the process `server`.
pub(crate) fn beside(places: &[Place<'_>], server: u32) -> Users {
    let watched: Vec<Watched> = places.iter().filter_map(|place| Watched::new(*place)).collect();
    if watched.is_empty() {
        return Users::default();
    }
    let (watched, namespaces) = (Arc::new(watched), Mutex::new(HashSet::new()));
    let others = Mutex::new(HashSet::new());
    let (opened, mapped) = (watched.clone(), watched.clone());
    let mut users = among(
        processes::others().filter(|pid| *pid != server).collect(),
        move |process| {
            let mounts = mounted(&opened, &namespaces, process);
            (mounts, !is_passing(process) && is_open_in(&opened, process))
        },
        move |process| !is_passing(process) && is_mapped_by(&mapped, &process.dir, &others),
    );
    users.seen.extend(watched.iter().flat_map(Watched::on_top));
    users.seen.sort();
    users.seen.dedup();
    users
}

/// The users among these processes. `has_open` tells what else a process shows, and whether it has opened the thing;
/// the memory of all others is then looked at.
///
/// Memory that cannot be looked at does not count: who serves a file or a loop device knows who has it mapped, and the
/// kernel who keeps a file system.
pub(crate) fn among(
    processes: Vec<u32>,
    has_open: impl Fn(&Process) -> (Vec<String>, bool) + Send + Sync + 'static,
    has_mapped: impl Fn(&Process) -> bool + Send + Sync + 'static,
) -> Users {
    let until = Instant::now() + PATIENCE;
    let opened = processes::look(processes.iter().copied(), until, move |process| {
        let (shown, is_user) = has_open(process);
        let shown = shown.into_iter().map(|shown| (None, shown));
        let user = is_user.then(|| (Some(process.pid), process.name()));
        shown.chain(user).collect()
    });
    let known: HashSet<_> = opened.found.iter().filter_map(|(pid, _)| *pid).collect();
    let rest = processes.into_iter();
    let rest = rest.filter(|pid| !known.contains(pid) && !opened.unseen.contains(pid));
    let mapped = processes::look(rest, until, move |process| {
        has_mapped(process).then(|| process.name()).into_iter().collect()
    });
    let seen = opened.found.into_iter().map(|(_, user)| user).chain(mapped.found);
    let unseen = opened.unseen.into_iter().filter_map(processes::name_if_there);
    Users { seen: seen.collect(), unseen: unseen.collect() }
}

/// Whether a process is a device manager's.
fn is_passing(process: &Process) -> bool {
    PASSING.contains(&process.command().as_str())
}

/// Where a process sees one of these mounted. `namespaces` are those whose mounts have been looked at.
fn mounted(
    watched: &[Watched],
    namespaces: &Mutex<HashSet<PathBuf>>,
    process: &Process,
) -> Vec<String> {
    // All processes in a mount namespace see the same mounts.
    let is_new =
        |namespace| namespaces.lock().unwrap_or_else(PoisonError::into_inner).insert(namespace);
    if !fs::read_link(process.dir.join("ns/mnt")).is_ok_and(is_new) {
        return Vec::new();
    }
    let mounts = table::of(&process.dir).unwrap_or_default();
    watched.iter().flat_map(|it| it.mounted(&mounts)).collect()
}

fn is_open_in(watched: &[Watched], process: &Process) -> bool {
    let descriptors = fs::read_dir(process.dir.join("fd")).into_iter().flatten();
    let mut descriptors = descriptors.filter_map(Result::ok).map(|entry| entry.path());
    descriptors.any(|descriptor| watched.iter().any(|it| it.is_open_as(&descriptor)))
}

/// Whether a process has one of these mapped, which it need not have open any more. `others` are files that are known
/// to be no devices of theirs.
fn is_mapped_by(
    watched: &[Watched],
    process: &Path,
    others: &Mutex<HashSet<(Number, u64)>>,
) -> bool {
    let others = || others.lock().unwrap_or_else(PoisonError::into_inner);
    let has_devices = watched.iter().any(|it| !it.numbers.is_empty());
    let table = maps::of(process);
    table.lines().filter_map(maps::parse).any(|mapped| {
        if watched.iter().any(|it| {
            it.file_system.map_or_else(|| it.has_name(mapped.path), |it| it == mapped.device)
        }) {
            return true;
        }
        let file = (mapped.device, mapped.inode);
        if !has_devices || others().contains(&file) {
            return false;
        }
        let path = process.join("map_files").join(mapped.range);
        let is_one = watched.iter().any(|it| it.has_node(&path));
        // What cannot be looked at here may be seen through another process.
        if !is_one && can_be_looked_at(&path) {
            others().insert(file);
        }
        is_one
    })
}

/// Major and minor number of a device.
pub(crate) type Number = (u32, u32);

/// A file or device that may be in use. Who uses a partition of a disk uses the disk.
struct Watched {
    /// The path, as the kernel writes it; of a disk, also those of its partitions.
    names: Vec<String>,
    /// The numbers of the disk and of its partitions: a node may have any name.
    numbers: Vec<Number>,
    /// The number of a served file's file system, by which it is known under any name.
    file_system: Option<Number>,
}

impl Watched {
    fn new(place: Place<'_>) -> Option<Self> {
        let (path, file_system) = match place {
            Place::Device(path) => (path, None),
            Place::File(path, number) => (path, number.or_else(|| file_system_at(path))),
        };
        let names = vec![path.to_str()?.to_owned()];
        let mut watched = Self { names, numbers: Vec::new(), file_system };
        // Look only at devices: a served file may no longer answer.
        if !path.starts_with("/dev") {
            return Some(watched);
        }
        let found = fs::symlink_metadata(path).ok()?;
        if found.file_type().is_block_device() {
            let number = found.rdev();
            let number = (rustix::fs::major(number), rustix::fs::minor(number));
            watched.numbers.push(number);
            for (name, number) in partitions(&attributes(number)) {
                watched.names.push(name);
                watched.numbers.push(number);
            }
        }
        Some(watched)
    }

    fn has_name(&self, name: &str) -> bool {
        self.names.iter().any(|it| it == name)
    }

    /// Whether a descriptor, a link in `/proc/PID/fd`, is open on it.
    fn is_open_as(&self, descriptor: &Path) -> bool {
        let Ok(target) = fs::read_link(descriptor) else { return false };
        // By its name, a file of another mount namespace, or of the server before, could be taken for it.
        if self.file_system.is_some() {
            return target.is_absolute() && self.file_system == file_system_of(descriptor);
        }
        // Other names are those of pipes, sockets and the like.
        self.has_name(&target.to_string_lossy())
            || target.is_absolute() && self.has_node(descriptor)
    }

    /// Whether there is a node of it at `path`.
    fn has_node(&self, path: &Path) -> bool {
        !self.numbers.is_empty() && number_of(path).is_some_and(|it| self.numbers.contains(&it))
    }

    /// Whether this path, which another program has chosen, leads to it. Other directories than
    /// `/dev` may be on a file system that does not answer.
    fn is_at(&self, path: &str) -> bool {
        self.has_name(path) || path.starts_with("/dev/") && self.has_node(Path::new(path))
    }

    /// The paths where one of these mounts shows it.
    fn mounted(&self, mounts: &[Mount]) -> Vec<String> {
        if self.numbers.is_empty() {
            return Vec::new();
        }
        // A file system on several devices has a number of its own, so compare the source too.
        let is_it = |mount: &&Mount| {
            self.numbers.contains(&mount.device)
                || mount.source.to_str().is_some_and(|it| self.has_name(it))
        };
        let place = |mount: &Mount| format!("mounted at {}", mount.place.display());
        mounts.iter().filter(is_it).map(place).collect()
    }

    /// Swap on it, and devices on top of it.
    fn on_top(&self) -> Vec<String> {
        let swaps = kernel_table("/proc/swaps").unwrap_or_default();
        let mut swaps = swaps.lines().skip(1).filter_map(|line| line.split(' ').next());
        let swap = swaps.any(|path| self.is_at(path));
        let holders = self.numbers.iter().map(|number| attributes(*number).join("holders"));
        let holders = holders.filter_map(|holders| fs::read_dir(holders).ok()).flatten();
        let holders = holders.filter_map(Result::ok);
        let holders = holders.map(|holder| format!("/dev/{}", holder.file_name().display()));
        // Loop devices on top are not listed as holders.
        let loops = fs::read_dir("/sys/block").into_iter().flatten().filter_map(Result::ok);
        let loops = loops.filter_map(|device| {
            let file = kernel_table(device.path().join("loop/backing_file")).ok()?;
            let is_it = self.is_at(file.trim_end());
            is_it.then(|| format!("/dev/{}", device.file_name().display()))
        });
        holders.chain(loops).chain(swap.then(|| "swap".to_owned())).collect()
    }
}

/// The directory of a block device in sysfs.
fn attributes((major, minor): Number) -> PathBuf {
    format!("/sys/dev/block/{major}:{minor}").into()
}

/// The partitions of the disk with this directory: their nodes' usual paths, and their numbers.
fn partitions(disk: &Path) -> Vec<(String, Number)> {
    let entries = fs::read_dir(disk).into_iter().flatten().filter_map(Result::ok);
    let partition = |entry: fs::DirEntry| {
        let directory = entry.path();
        fs::symlink_metadata(directory.join("partition")).ok()?;
        let number = fs::read_to_string(directory.join("dev")).ok()?;
        let (major, minor) = number.trim_end().split_once(':')?;
        let name = format!("/dev/{}", entry.file_name().display());
        Some((name, (major.parse().ok()?, minor.parse().ok()?)))
    };
    entries.filter_map(partition).collect()
}

/// Whether there is a file behind `path` that this process may look at. A file system is not asked.
fn can_be_looked_at(path: &Path) -> bool {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    statx(CWD, path, flags, StatxFlags::TYPE).is_ok()
}

/// The number of the block device that `path` leads to. Takes what the kernel knows already: a file
/// system is not asked, because it may not answer.
fn number_of(path: &Path) -> Option<Number> {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = statx(CWD, path, flags, StatxFlags::TYPE).ok()?;
    let kind = FileType::from_raw_mode(found.stx_mode.into());
    (kind == FileType::BlockDevice).then_some((found.stx_rdev_major, found.stx_rdev_minor))
}

/// The number of the file system that `path` leads into; nobody is asked, as by [`number_of`].
fn file_system_of(path: &Path) -> Option<Number> {
    let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    // Of the file of another user the kernel tells nothing else.
    let found = statx(CWD, path, flags, StatxFlags::empty()).ok()?;
    Some((found.stx_dev_major, found.stx_dev_minor))
}

/// The number of the file system that is mounted at a path, if one is.
fn file_system_at(path: &Path) -> Option<Number> {
    let (there, around) = (file_system_of(path), file_system_of(path.parent()?));
    there.filter(|_| there != around)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn mounts_of_a_device_are_found_by_its_number_and_by_its_name() {
        let names = ["/dev/loop7", "/dev/loop7p1"].map(str::to_owned).to_vec();
        let device = Watched { names, numbers: vec![(7, 7), (259, 3)], file_system: None };
        let mounts = "\
            30 1 7:7 / /mnt/a rw,relatime shared:1 - ext4 /dev/root rw\n\
            31 1 0:55 / /mnt/b rw,relatime - btrfs /dev/loop7 rw\n\
            32 1 7:70 / /mnt/c rw,relatime - ext4 /dev/loop70 rw\n\
            33 1 259:3 / /mnt/d rw,relatime - ext4 /dev/other rw\n\
            34 1 0:56 / /mnt/e rw,relatime - btrfs /dev/loop7p1 rw\n\
            nonsense\n";
        let mounts = &table::parse(mounts.as_bytes());
        let places = ["/mnt/a", "/mnt/b", "/mnt/d", "/mnt/e"];
        assert_eq!(device.mounted(mounts), places.map(|place| format!("mounted at {place}")));
        let file = Watched {
            names: vec!["/run/x".into()],
            numbers: Vec::new(),
            file_system: Some((0, 55)),
        };
        assert!(file.mounted(mounts).is_empty());
    }

    #[test]
    fn the_partitions_of_a_disk_are_known_by_name_and_number() {
        let disk = tempfile::tempdir().unwrap();
        for (name, file, content) in [
            ("loop7p1", "partition", "1\n"),
            ("loop7p1", "dev", "259:3\n"),
            ("queue", "dev", "1:1\n"),
            ("loop7p2", "partition", "2\n"),
        ] {
            fs::create_dir_all(disk.path().join(name)).unwrap();
            fs::write(disk.path().join(name).join(file), content).unwrap();
        }
        assert_eq!(partitions(disk.path()), [("/dev/loop7p1".to_owned(), (259, 3))]);
        assert!(partitions(&disk.path().join("none")).is_empty());
    }

    #[test]
    fn who_has_a_file_open_is_named_and_this_process_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        // Not by this process: what it has open, a child of another test has until it runs its program.
        assert!(std::process::Command::new("touch").arg(&path).status().unwrap().success());
        let place = [Place::File(&path, None)];
        assert_eq!(of(&place).seen, [""; 0], "nobody has it open");
        // Nor its descriptor, which a child of another test would have.
        let mut child = std::process::Command::new("sh");
        child.args(["-c", "exec sleep 60 <\"$0\""]).arg(&path);
        let mut child = child.spawn().unwrap();
        let opened = format!("/proc/{}/fd/0", child.id());
        let until = Instant::now() + Duration::from_mins(1);
        while fs::read_link(&opened).is_ok_and(|it| it != path) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let users = of(&place);
        let of_another = of(&[Place::File(&path, Some((0, u32::MAX)))]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(users.seen.len(), 1, "{users:?}");
        assert!(users.seen[0].ends_with(&format!("(process {})", child.id())), "{users:?}");
        assert_eq!(of_another.seen, [""; 0], "another file system has a file of this name");
        let _own = File::open(&path).unwrap();
        let own = format!("(process {})", std::process::id());
        let users = of(&place);
        assert!(!users.seen.iter().any(|user| user.ends_with(&own)), "{users:?}");
    }

    #[test]
    fn users_are_named_up_to_a_number_and_who_may_be_one_is_told_from_them() {
        let users = |seen: usize, unseen: usize| Users {
            seen: vec!["x".to_owned(); seen],
            unseen: vec!["y (process 7)".to_owned(); unseen],
        };
        assert_eq!(users(0, 0).by(), "");
        assert!(users(0, 0).are_none() && !users(0, 1).are_none() && !users(1, 0).are_none());
        assert_eq!(users(5, 1).by(), " (x, x, x, x and others)");
        let perhaps = " (x, perhaps y (process 7), which does not let itself be looked at)";
        assert_eq!(users(1, 1).by(), perhaps);
    }
}
