//! The control groups of this process that limit its memory: cgroup v2 and v1, with all ancestors
//! that can be seen from here (Linux, admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst).

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use ucrypt_backend::kernel_table;

use super::Bytes;
use crate::machine;

/// Limits from here on are none: v1 shows the largest multiple of a page.
const UNLIMITED: u64 = 1 << 62;

/// A control group with limited memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Limit {
    /// What its processes may have together, in bytes, with the swap that they may use.
    pub(super) bytes: u64,
    /// How much of it is free, or can be freed by dropping caches.
    pub(super) room: u64,
    /// The file that holds the limit.
    file: PathBuf,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this container has {}", Bytes(self.bytes))?;
        if self.room < self.bytes {
            write!(f, ", {} of it free", Bytes(self.room))?;
        }
        write!(f, " ({})", self.file.display())
    }
}

/// The names of a version's files.
struct Names {
    /// The limits: above one, processes are killed, or slowed down so much that they never end.
    limits: &'static [&'static str],
    usage: &'static str,
    /// Members of `memory.stat` that the kernel frees when memory is short. Shared memory is not
    /// among them.
    reclaimable: &'static [&'static str],
    /// The files of the same version for memory and swap together.
    with_swap: Option<&'static Names>,
}

const V1: Names = Names {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    reclaimable: &["total_active_file", "total_inactive_file"],
    with_swap: Some(&Names {
        limits: &["memory.memsw.limit_in_bytes"],
        usage: "memory.memsw.usage_in_bytes",
        reclaimable: &["total_active_file", "total_inactive_file"],
        with_swap: None,
    }),
};

const V2: Names = Names {
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    reclaimable: &["active_file", "inactive_file", "slab_reclaimable"],
    with_swap: None,
};

/// The limits that apply to this process.
pub(super) fn limits() -> Vec<Limit> {
    let read = |path: &str| kernel_table(path).unwrap_or_default();
    let directories = directories(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
    let swap = machine::free_swap();
    directories.iter().flat_map(|(names, top, leaf)| chain(names, top, leaf, swap)).collect()
}

/// The limits of the group in `leaf` and of its ancestors up to `top`. `swap`: free swap of the machine
/// in bytes that this process may use.
fn chain(names: &Names, top: &Path, leaf: &Path, swap: u64) -> Vec<Limit> {
    let groups = || leaf.ancestors().take_while(|directory| directory.starts_with(top));
    // Whichever limit a process meets, it swaps out no more than each of its groups may.
    let swap = groups().filter_map(free_swap).fold(swap, u64::min);
    let limits = |group| {
        let with_swap = names.with_swap.and_then(|names| limit(names, group, 0));
        [limit(names, group, swap), with_swap]
    };
    groups().flat_map(limits).flatten().collect()
}

/// The hierarchies that account for memory: their mount point, and the directory of this process in
/// them. `cgroup` and `mounts` are /proc/self/cgroup and /proc/self/mountinfo.
fn directories(cgroup: &str, mounts: &str) -> Vec<(&'static Names, PathBuf, PathBuf)> {
    let own = |is_v2: bool| {
        cgroup.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let wanted = if is_v2 {
                controllers.is_empty()
            } else {
                controllers.split(',').any(|name| name == "memory")
            };
            wanted.then_some(path)
        })
    };
    let mut found: Vec<(&Names, PathBuf, PathBuf)> = Vec::new();
    for line in mounts.lines() {
        let Some((mount, kind)) = line.split_once(" - ") else { continue };
        let mut fields = mount.split(' ').skip(3);
        let (Some(root), Some(place)) = (fields.next(), fields.next()) else { continue };
        let mut kind = kind.split(' ');
        let names = match (kind.next(), kind.nth(1)) {
            (Some("cgroup2"), _) => &V2,
            (Some("cgroup"), Some(options)) if options.split(',').any(|o| o == "memory") => &V1,
            _ => continue,
        };
        let Some(path) = own(std::ptr::eq(names, &V2)) else { continue };
        let top = unescaped(place);
        // A path above the mounted root, or in another branch, cannot be seen from here. The mount
        // point is then the nearest ancestor.
        let below = Path::new(path).strip_prefix(unescaped(root)).unwrap_or(Path::new(""));
        let climbs = below.components().any(|part| part.as_os_str() == "..");
        let leaf = if climbs { top.clone() } else { top.join(below) };
        // The same hierarchy may be mounted twice: the deeper view is the better one.
        match found.iter_mut().find(|(known, ..)| std::ptr::eq(*known, names)) {
            Some(known) if leaf.components().count() > known.2.components().count() => {
                *known = (names, top, leaf);
            }
            Some(_) => {}
            None => found.push((names, top, leaf)),
        }
    }
    found
}

/// A path of mountinfo, in which blanks are written in octal.
fn unescaped(text: &str) -> PathBuf {
    let mut path = text.to_owned();
    for (octal, character) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        path = path.replace(octal, character);
    }
    path.into()
}

/// The number in a file of the group in `directory`; `None` also for "max".
fn number(directory: &Path, file: &str) -> Option<u64> {
    fs::read_to_string(directory.join(file)).ok()?.trim().parse().ok()
}

/// The lowest limit of the group in `directory`, and its file.
fn lowest(names: &Names, directory: &Path) -> Option<(u64, &'static str)> {
    let limits = names.limits.iter().filter_map(|file| Some((number(directory, file)?, *file)));
    limits.min_by_key(|(bytes, _)| *bytes).filter(|(bytes, _)| *bytes < UNLIMITED)
}

/// Free swap of the group in `directory` in bytes, if it has a limit, which v1 does not know.
fn free_swap(directory: &Path) -> Option<u64> {
    let max = number(directory, "memory.swap.max")?;
    Some(max.saturating_sub(number(directory, "memory.swap.current").unwrap_or(0)))
}

/// The limit of the group in `directory`, if it has one. `swap`: free swap in bytes that this process
/// may use.
fn limit(names: &Names, directory: &Path, swap: u64) -> Option<Limit> {
    let (memory, file) = lowest(names, directory)?;
    let usage = number(directory, names.usage)?;
    let stat = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    let reclaimable: u64 = stat
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| names.reclaimable.contains(name))
        .filter_map(|(_, bytes)| bytes.parse::<u64>().ok())
        .sum();
    let free = memory.saturating_sub(usage.saturating_sub(reclaimable));
    let (bytes, room) = (memory.saturating_add(swap), free.saturating_add(swap));
    Some(Limit { bytes, room: room.min(bytes), file: directory.join(file) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directories_of_a_process_are_found_in_both_versions() {
        let cgroup = "4:memory,hugetlb:/docker/abc\n2:cpu:/x\n0::/user.slice/a b\n";
        let mounts = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
            41 31 0:38 / /sys/fs/cg\\040two rw,relatime - cgroup2 cgroup2 rw\n";
        let found = directories(cgroup, mounts);
        let places: Vec<_> =
            found.iter().map(|(_, top, leaf)| (top.as_path(), leaf.as_path())).collect();
        let (v1, v2) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cg two"));
        assert_eq!(places, [(v1, v1), (v2, &v2.join("user.slice/a b"))]);
        assert_eq!((found[0].0.limits, found[1].0.limits), (V1.limits, V2.limits));
        // A namespace that begins below this process's own group.
        let found = directories("0::/../other\n", "41 31 0:38 / /c rw - cgroup2 cgroup2 rw\n");
        assert_eq!(found[0].2, Path::new("/c"));
        assert!(directories("", mounts).is_empty() && directories(cgroup, "").is_empty());
    }

    #[test]
    fn caches_count_as_free_and_shared_memory_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let limits = |names: &Names, swap: u64| chain(names, dir.path(), dir.path(), swap);
        let limit = |names: &Names, swap: u64| limits(names, swap).pop();
        assert_eq!(limit(&V2, 0), None);
        write("memory.max", "max\n");
        assert_eq!(limit(&V2, 0), None);
        write("memory.max", "1000\n");
        write("memory.current", "900\n");
        write("memory.stat", "anon 300\nfile 600\nshmem 200\ninactive_file 300\nactive_file 100\n");
        write("memory.swap.max", "50\n");
        let found = limit(&V2, 10_000).unwrap();
        assert_eq!((found.bytes, found.room), (1050, 550));
        assert_eq!(limit(&V2, 0).unwrap().room, 500);

        write("memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit(&V1, 0), None);
        write("memory.limit_in_bytes", "2000\n");
        write("memory.usage_in_bytes", "1500\n");
        write("memory.stat", "total_inactive_file 500\ninactive_file 400\n");
        fs::remove_file(dir.path().join("memory.swap.max")).unwrap();
        write("memory.memsw.limit_in_bytes", "2500\n");
        write("memory.memsw.usage_in_bytes", "1600\n");
        let found: Vec<_> = limits(&V1, 300).iter().map(|it| (it.bytes, it.room)).collect();
        assert_eq!(found, [(2300, 1300), (2500, 1400)]);
    }

    /// The limit of memory and swap together, as high as that of the memory, leaves all the swap to
    /// who uses little memory.
    #[test]
    fn a_v1_parent_without_swap_of_its_own_takes_none_from_its_children() {
        let top = tempfile::tempdir().unwrap();
        let leaf = top.path().join("leaf");
        fs::create_dir(&leaf).unwrap();
        for (group, memory, both) in [(top.path(), "4000", "4000"), (&*leaf, "1000", "2000")] {
            let write = |name: &str, text: &str| fs::write(group.join(name), text).unwrap();
            write("memory.limit_in_bytes", memory);
            write("memory.usage_in_bytes", "10");
            write("memory.memsw.limit_in_bytes", both);
            write("memory.memsw.usage_in_bytes", "30");
        }
        let limits = chain(&V1, top.path(), &leaf, 8000);
        let found: Vec<_> = limits.iter().map(|it| (it.bytes, it.room)).collect();
        assert_eq!(found, [(9000, 8990), (2000, 1970), (12000, 11990), (4000, 3970)]);
        assert!(limits[1].to_string().contains("memsw"), "{}", limits[1]);
    }

    #[test]
    fn the_smallest_limit_of_a_group_counts_and_the_smallest_swap_of_all() {
        let top = tempfile::tempdir().unwrap();
        let leaf = top.path().join("a/b");
        fs::create_dir_all(&leaf).unwrap();
        let write = |group: &str, files: &[(&str, &str)]| {
            for (name, text) in files {
                fs::write(top.path().join(group).join(name), text).unwrap();
            }
        };
        let bytes = |swap: u64| -> Vec<u64> {
            chain(&V2, top.path(), &leaf, swap).iter().map(|limit| limit.bytes).collect()
        };
        write("", &[("memory.max", "5000\n"), ("memory.current", "0\n")]);
        write("a", &[("memory.max", "max\n"), ("memory.swap.max", "10\n")]);
        write("a/b", &[("memory.max", "1000\n"), ("memory.current", "100\n")]);
        assert_eq!(bytes(300), [1010, 5010], "the group between has no limit but that of its swap");
        write("a/b", &[("memory.swap.max", "max\n")]);
        assert_eq!(bytes(5), [1005, 5005], "the machine has less");
        write("a/b", &[("memory.swap.max", "0\n")]);
        assert_eq!(bytes(300), [1000, 5000]);
        // An unlock above this limit is not killed, but throttled for hours.
        write("a/b", &[("memory.high", "700\n")]);
        assert_eq!(bytes(300), [700, 5000]);
        let found = &chain(&V2, top.path(), &leaf, 0)[0];
        assert_eq!(found.room, 600);
        assert!(found.to_string().contains("memory.high"), "{found}");
        write("a/b", &[("memory.high", "max\n")]);
        assert_eq!(bytes(300), [1000, 5000]);
        assert!(chain(&V2, top.path(), &leaf, 0)[0].to_string().contains("memory.max"));
    }
}
