//! Finds who uses a served file or device, as far as this process can see.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use ucrypt_backend::kernel_table;

use crate::mount::table::{self, Mount};
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

/// The user if nobody can be looked for in time.
pub(crate) const UNKNOWN: &str = "perhaps a program that cannot be looked at";

/// What may be in use.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place<'a> {
    /// The node of a disk.
    Device(&'a Path),
    /// A served file, and the number of its file system if that is known: its path may be gone.
    File(&'a Path, Option<Number>),
}

/// The programs that have one of these files or devices open or mapped, the paths where a device is mounted, and the
/// devices on top of one.
pub(crate) fn of(places: &[Place<'_>]) -> Vec<String> {
    beside(places, std::process::id())
}

/// As [`of`], without the process `server`.
pub(crate) fn beside(places: &[Place<'_>], server: u32) -> Vec<String> {
    static UNDER_WAY: AtomicBool = AtomicBool::new(false);
    let watched: Vec<Watched> = places.iter().filter_map(|place| Watched::new(*place)).collect();
    if watched.is_empty() {
        return Vec::new();
    }
    let found = within(PATIENCE, &UNDER_WAY, move || look(&watched, server));
    found.unwrap_or_else(|| vec![UNKNOWN.into()])
}

/// What `find` returns, or `None` if that takes longer than `limit`. It then goes on; until it has ended, no other is
/// begun.
fn within<T: Send + 'static>(
    limit: Duration,
    under_way: &'static AtomicBool,
    find: impl Fn() -> T + Send + Sync + 'static,
) -> Option<T> {
    if under_way.swap(true, Ordering::SeqCst) {
        return None;
    }
    let find = Arc::new(move || {
        let found = find();
        under_way.store(false, Ordering::SeqCst);
        found
    });
    let (tell, told) = mpsc::channel();
    let looks = find.clone();
    // Nobody may wait for the answer any more.
    let begun = thread::Builder::new().name("users".into()).spawn(move || drop(tell.send(looks())));
    if begun.is_err() {
        // There is no thread to have.
        return Some(find());
    }
    told.recv_timeout(limit).ok()
}

/// Looks at all processes. May wait for as long as one of them does: one that is about to run another program, or
/// waits for a file system that does not answer, makes whoever looks at it wait.
fn look(watched: &[Watched], server: u32) -> Vec<String> {
    let mut users = Vec::new();
    let (mut namespaces, mut others) = (HashSet::new(), HashSet::new());
    for process in fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok) {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if pid == server {
            continue;
        }
        let dir = process.path();
        // All processes in a mount namespace see the same mounts.
        if fs::read_link(dir.join("ns/mnt")).is_ok_and(|it| namespaces.insert(it)) {
            let mounts = table::of(&dir).unwrap_or_default();
            users.extend(watched.iter().flat_map(|it| it.mounted(&mounts)));
        }
        let command = kernel_table(dir.join("comm")).unwrap_or_default();
        let command = command.trim_end();
        if PASSING.contains(&command) {
            continue;
        }
        let descriptors = fs::read_dir(dir.join("fd")).into_iter().flatten().filter_map(Result::ok);
        let mut descriptors = descriptors.map(|entry| entry.path());
        if descriptors.any(|descriptor| watched.iter().any(|it| it.is_open_as(&descriptor)))
            || is_mapped_by(watched, &dir, &mut others)
        {
            users.push(format!("{command} (process {pid})"));
        }
    }
    users.extend(watched.iter().flat_map(Watched::on_top));
    users.sort();
    users.dedup();
    users
}

/// Whether a process has one of these mapped, which it need not have open any more. `others` are files that are known
/// to be no devices of theirs.
fn is_mapped_by(watched: &[Watched], process: &Path, others: &mut HashSet<(Number, u64)>) -> bool {
    let has_devices = watched.iter().any(|it| !it.numbers.is_empty());
    let table = maps::of(process);
    table.lines().filter_map(maps::parse).any(|mapped| {
        if watched
            .iter()
            .any(|it| it.has_name(mapped.path) || it.file_system == Some(mapped.device))
        {
            return true;
        }
        let file = (mapped.device, mapped.inode);
        if !has_devices || others.contains(&file) {
            return false;
        }
        let path = process.join("map_files").join(mapped.range);
        let is_one = watched.iter().any(|it| it.has_node(&path));
        // What cannot be looked at here may be seen through another process.
        if !is_one && can_be_looked_at(&path) {
            others.insert(file);
        }
        is_one
    })
}

/// ` (by A, B and others)`, or nothing.
pub(crate) fn by(users: &[String]) -> String {
    if users.is_empty() {
        return String::new();
    }
    let named = users.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    let others = if users.len() > NAMED_MAX { " and others" } else { "" };
    format!(" ({named}{others})")
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
        // Other names are those of pipes, sockets and the like.
        self.has_name(&target.to_string_lossy())
            || target.is_absolute()
                && (self.has_node(descriptor)
                    || self.file_system.is_some() && self.file_system == file_system_of(descriptor))
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
    use std::sync::atomic::AtomicUsize;

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
    fn who_looks_does_not_wait_for_ever_and_not_in_ever_more_threads() {
        static UNDER_WAY: AtomicBool = AtomicBool::new(false);
        let begun = Arc::new(AtomicUsize::new(0));
        let (gate, wait) = mpsc::channel::<()>();
        let wait = Arc::new(std::sync::Mutex::new(wait));
        for _ in 0..5 {
            let (begun, wait) = (begun.clone(), wait.clone());
            let find = move || {
                begun.fetch_add(1, Ordering::SeqCst);
                // Until the gate is dropped.
                let _ = wait.lock().unwrap().recv();
            };
            assert_eq!(within(Duration::from_millis(50), &UNDER_WAY, find), None);
        }
        assert!(begun.load(Ordering::SeqCst) <= 1);
        drop(gate);
        let until = std::time::Instant::now() + Duration::from_secs(30);
        while UNDER_WAY.load(Ordering::SeqCst) {
            assert!(std::time::Instant::now() < until, "it ends");
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(within(Duration::from_secs(30), &UNDER_WAY, || 7), Some(7));
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
        let file = tempfile::NamedTempFile::new().unwrap();
        let place = [Place::File(file.path(), None)];
        assert!(of(&place).is_empty(), "only this process has it open");
        let mut child = std::process::Command::new("sleep");
        child.arg("60").stdin(File::open(file.path()).unwrap());
        let mut child = child.spawn().unwrap();
        let users = of(&place);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(users.len(), 1, "{users:?}");
        assert!(users[0].ends_with(&format!("(process {})", child.id())), "{users:?}");
        assert_eq!(by(&users), format!(" ({})", users[0]));
        assert_eq!(by(&vec!["x".to_owned(); 5]), " (x, x, x, x and others)");
    }
}
