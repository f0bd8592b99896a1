//! What the system says of the drive below an image.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use serde::Serialize;

/// The drive of an image, as far as the system tells.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Drive {
    /// The kernel's name, as in `nvme0n1`; none for what is no disk, such as memory.
    pub name: Option<String>,
    /// Its model.
    pub model: Option<String>,
    /// Bytes that it writes as one.
    pub physical_block: Option<u32>,
    /// Whether it turns.
    pub rotational: bool,
    /// Its queues.
    pub queues: Option<u32>,
    /// It is accessed past the page cache.
    pub direct: bool,
    /// It is memory: a file in tmpfs.
    pub in_memory: bool,
    /// Part of an image file that has no room on the drive yet, 0 to 100.
    pub holes_percent: u32,
    /// The disks that it is made of: itself, or those below a mapping or an array.
    #[serde(skip)]
    pub disks: BTreeSet<String>,
}

/// The disks below a device in sysfs, by name.
fn disks(dir: &Path, depth: u32, found: &mut BTreeSet<String>) {
    let below = fs::read_dir(dir.join("slaves")).into_iter().flatten().filter_map(Result::ok);
    let mut below = below.filter_map(|entry| fs::canonicalize(entry.path()).ok()).peekable();
    // No stack of devices is as high: it goes round in a circle.
    if below.peek().is_none() || depth == 0 {
        let disk = if dir.join("partition").exists() { dir.parent() } else { Some(dir) };
        found
            .extend(disk.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned()));
        return;
    }
    below.for_each(|device| disks(&device, depth - 1, found));
}

impl Drive {
    /// Looks at the drive of a file or block device. What cannot be found out is left open.
    pub fn of(image: &Path) -> Self {
        let Ok(found) = fs::metadata(image) else { return Self::default() };
        let is_device = found.file_type().is_block_device();
        let number = if is_device { found.rdev() } else { found.dev() };
        let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
        let holes_percent = if is_device || found.len() == 0 {
            0
        } else {
            let there = found.blocks().saturating_mul(512).min(found.len());
            u32::try_from(100 - there.saturating_mul(100) / found.len()).unwrap_or(0)
        };
        let dir = fs::canonicalize(Path::new("/sys/dev/block").join(number)).ok();
        Self { holes_percent, ..dir.map_or_else(Self::default, Self::in_sysfs) }
    }

    /// A device in sysfs (kernel: `Documentation/ABI/stable/sysfs-block`).
    fn in_sysfs(mut dir: PathBuf) -> Self {
        if dir.join("partition").exists() {
            dir.pop();
        }
        let read = |name: &str| {
            let text = fs::read_to_string(dir.join(name)).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let mut below = BTreeSet::new();
        disks(&dir, 16, &mut below);
        let queues = fs::read_dir(dir.join("mq")).ok().map(|entries| entries.count() as u32);
        Self {
            name: dir.file_name().map(|name| name.to_string_lossy().into_owned()),
            model: read("device/model"),
            physical_block: read("queue/physical_block_size").and_then(|text| text.parse().ok()),
            rotational: read("queue/rotational").is_some_and(|text| text == "1"),
            queues,
            disks: below,
            ..Self::default()
        }
    }

    /// That a scratch file on the drive `scratch` says nothing of writes to this one; `None` if both are the
    /// same, as far as the system tells.
    pub fn elsewhere(&self, scratch: &Self) -> Option<String> {
        let called = |drive: &Self| drive.name.clone().unwrap_or_else(|| "no disk".into());
        let is_same = self.name == scratch.name || !self.disks.is_disjoint(&scratch.disks);
        (!is_same).then(|| {
            format!(
                "writes to this volume: the scratch file is on {}, the volume on {}, so the figures of writes \
                 are another drive's; name a directory on the volume's drive",
                called(scratch),
                called(self)
            )
        })
    }

    /// In one line.
    pub fn describe(&self) -> String {
        let mut parts = Vec::new();
        match &self.name {
            Some(name) => parts.push(name.clone()),
            None if self.in_memory => parts.push("in memory".to_owned()),
            None => parts.push("the system does not tell which".to_owned()),
        }
        parts.extend(self.model.clone());
        parts.extend(self.physical_block.map(|bytes| format!("blocks of {bytes} bytes")));
        parts.extend(self.queues.map(|count| match count {
            1 => "one queue".to_owned(),
            count => format!("{count} queues"),
        }));
        if self.rotational {
            parts.push("says that it turns".into());
        }
        if !self.direct && !self.in_memory {
            parts.push("there is no way past the page cache, which is measured with it".to_owned());
        }
        if self.holes_percent > 0 {
            parts.push(format!(
                "{} % of the image are holes, which are read without the drive",
                self.holes_percent
            ));
        }
        format!("drive: {}", parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_is_what_the_kernel_says_of_it_and_another_one_is_told_from_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = dir.path().join("vdx");
        for (name, text) in [
            ("queue/physical_block_size", "4096\n"),
            ("queue/rotational", "1\n"),
            ("device/model", "A disk   \n"),
            ("mq/0/cpu_list", "0\n"),
            ("vdx1/partition", "1\n"),
        ] {
            let file = disk.join(name);
            fs::create_dir_all(file.parent().expect("a parent")).expect("made");
            fs::write(file, text).expect("written");
        }
        let whole = Drive::in_sysfs(disk.clone());
        assert_eq!((whole.physical_block, whole.queues), (Some(4096), Some(1)));
        assert_eq!(Drive::in_sysfs(disk.join("vdx1")), whole);
        let said = Drive { direct: true, ..whole.clone() }.describe();
        assert_eq!(said, "drive: vdx, A disk, blocks of 4096 bytes, one queue, says that it turns");
        let disks = BTreeSet::from(["vdy".to_owned()]);
        let other = Drive { name: Some("vdy".into()), disks, ..whole.clone() };
        assert!(whole.elsewhere(&other).is_some_and(|it| it.contains("vdy") && it.contains("vdx")));
        assert!(whole.elsewhere(&Drive::default()).is_some_and(|it| it.contains("no disk")));
        assert_eq!(whole.elsewhere(&Drive { direct: true, ..whole.clone() }), None);
        // Two volumes of one disk, one of them on an array of two.
        let stack = |name: &str, below: &[&Path]| {
            let device = dir.path().join(name);
            fs::create_dir_all(device.join("slaves")).expect("made");
            for (at, below) in below.iter().enumerate() {
                let link = device.join("slaves").join(at.to_string());
                std::os::unix::fs::symlink(below, link).expect("linked");
            }
            device
        };
        let second = stack("vdz", &[]);
        let (one, array) = (stack("dm-0", &[&disk]), stack("md0", &[&disk.join("vdx1"), &second]));
        let on_array = Drive::in_sysfs(stack("dm-1", &[&array]));
        assert_eq!(on_array.disks, ["vdx", "vdz"].map(str::to_owned).into());
        assert_eq!(Drive::in_sysfs(one.clone()).elsewhere(&on_array), None);
        assert!(Drive::in_sysfs(second).elsewhere(&Drive::in_sysfs(one)).is_some());
        let sparse = dir.path().join("sparse");
        fs::File::create(&sparse).and_then(|file| file.set_len(1 << 20)).expect("a file");
        assert_eq!(Drive::of(&sparse).holes_percent, 100);
        assert_eq!(Drive::of(&dir.path().join("none")), Drive::default());
    }
}
