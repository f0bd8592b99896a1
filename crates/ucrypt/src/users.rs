//! Finds who uses a served file or device, as far as this process can see.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// How many users a message names.
const NAMED_MAX: usize = 4;

/// Device managers, which open every device that changes and close it again by themselves.
const PASSING: [&str; 4] = ["systemd-udevd", "(udev-worker)", "udevd", "blkid"];

/// The programs that have one of these files or devices open, the paths where one is mounted, and the
/// devices on top of one.
pub(crate) fn of(paths: &[&Path]) -> Vec<String> {
    let watched: Vec<Watched> = paths.iter().filter_map(|place| Watched::new(place)).collect();
    let mut users = Vec::new();
    if watched.is_empty() {
        return users;
    }
    let mut namespaces = HashSet::new();
    for process in fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok) {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if pid == std::process::id() {
            continue;
        }
        let dir = process.path();
        // All processes in a mount namespace see the same mounts.
        if fs::read_link(dir.join("ns/mnt")).is_ok_and(|it| namespaces.insert(it)) {
            let mounts = fs::read_to_string(dir.join("mountinfo")).unwrap_or_default();
            users.extend(watched.iter().flat_map(|it| it.mounted(&mounts)));
        }
        let command = fs::read_to_string(dir.join("comm")).unwrap_or_default();
        let command = command.trim_end();
        let descriptors = fs::read_dir(dir.join("fd")).into_iter().flatten().filter_map(Result::ok);
        // Read only the names: a look at the files themselves may block for ever.
        let mut targets = descriptors.filter_map(|fd| fs::read_link(fd.path()).ok());
        if !PASSING.contains(&command)
            && targets.any(|target| watched.iter().any(|it| it.name == target.to_string_lossy()))
        {
            users.push(format!("{command} (process {pid})"));
        }
    }
    users.extend(watched.iter().flat_map(Watched::on_top));
    users.sort();
    users.dedup();
    users
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

/// A file or device that may be in use.
struct Watched {
    /// The path, as the kernel writes it.
    name: String,
    /// Major and minor number, if it is a device.
    number: Option<String>,
}

impl Watched {
    fn new(place: &Path) -> Option<Self> {
        let name = place.to_str()?.to_owned();
        // Look only at devices: a served file may no longer answer.
        let found =
            place.starts_with("/dev").then(|| fs::symlink_metadata(place)).transpose().ok()?;
        let number = found.filter(|found| found.file_type().is_block_device()).map(|found| {
            let number = found.rdev();
            format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number))
        });
        Some(Self { name, number })
    }

    /// The paths where `mounts`, a `mountinfo` table, shows it mounted.
    fn mounted(&self, mounts: &str) -> Vec<String> {
        let Some(number) = &self.number else { return Vec::new() };
        let is_it = |line: &&str| {
            let is_device = line.split(' ').nth(2) == Some(number);
            // A file system on several devices has a number of its own, so compare the source too.
            let source = line.split_once(" - ").and_then(|(_, end)| end.split(' ').nth(1));
            is_device || source == Some(&self.name)
        };
        let place = |line: &str| Some(format!("mounted at {}", line.split(' ').nth(4)?));
        mounts.lines().filter(is_it).filter_map(place).collect()
    }

    /// Swap on it, and devices on top of it.
    fn on_top(&self) -> Vec<String> {
        if self.number.is_none() {
            return Vec::new();
        }
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        let swap = swaps.lines().any(|line| line.split(' ').next() == Some(&self.name));
        let name = self.name.trim_start_matches("/dev/");
        let holders = fs::read_dir(Path::new("/sys/block").join(name).join("holders"));
        let holders = holders.into_iter().flatten().filter_map(Result::ok);
        let holders = holders.map(|holder| format!("/dev/{}", holder.file_name().display()));
        // Loop devices on top are not listed as holders.
        let loops = fs::read_dir("/sys/block").into_iter().flatten().filter_map(Result::ok);
        let loops = loops.filter_map(|device| {
            let file = fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
            let is_it = file.trim_end() == self.name;
            is_it.then(|| format!("/dev/{}", device.file_name().display()))
        });
        holders.chain(loops).chain(swap.then(|| "swap".to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn mounts_of_a_device_are_found_by_its_number_and_by_its_name() {
        let device = Watched { name: "/dev/loop7".into(), number: Some("7:7".into()) };
        let mounts = "\
            30 1 7:7 / /mnt/a rw,relatime shared:1 - ext4 /dev/root rw\n\
            31 1 0:55 / /mnt/b rw,relatime - btrfs /dev/loop7 rw\n\
            32 1 7:70 / /mnt/c rw,relatime - ext4 /dev/loop70 rw\n\
            nonsense\n";
        assert_eq!(device.mounted(mounts), ["mounted at /mnt/a", "mounted at /mnt/b"]);
        let file = Watched { name: "/run/x".into(), number: None };
        assert!(file.mounted(mounts).is_empty());
    }

    #[test]
    fn who_has_a_file_open_is_named_and_this_process_is_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(of(&[file.path()]).is_empty(), "only this process has it open");
        let mut child = std::process::Command::new("sleep");
        child.arg("60").stdin(File::open(file.path()).unwrap());
        let mut child = child.spawn().unwrap();
        let users = of(&[file.path()]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(users.len(), 1, "{users:?}");
        assert!(users[0].ends_with(&format!("(process {})", child.id())), "{users:?}");
        assert_eq!(by(&users), format!(" ({})", users[0]));
        assert_eq!(by(&vec!["x".to_owned(); 5]), " (x, x, x, x and others)");
    }
}
