//! `kernel-tree`: a tree of source-like files is unpacked, copied three times, removed, and
//! everything is synced, on a file system over a loop device.
//!
//! Images are in memory, or in the directory of the run's target, and filled before, so that no turn pays for pages or
//! blocks that are not there yet; file systems are made without discards for the same reason. The archive is always
//! in memory: what reaches the disk is the file system's. Each step ends with a sync of
//! its file system, within the measured time: the page cache holds everything, and what is removed
//! before it is written never reaches the device, whose writes are counted.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use crate::catalogue::Scale;
use crate::contender::Contender;
use crate::load::INTERRUPTED;
use crate::packages;
use crate::process;
use crate::sample::{Device, Sample, Watch};
use crate::served::{Filling, Generator, Images, Left, Service, bytes_of_images};
use crate::store::{About, Settings};

/// Where the archive is, and the images unless the run is on another directory.
pub(crate) const MEMORY: &str = "/dev/shm";

/// A turn that takes longer hangs.
const TURN_LIMIT: Duration = Duration::from_secs(900);

/// How long the programs of a turn that hangs may take to end before the server is killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// File system: how it is made, and how it is mounted. ext2 and ext3 are the ext4 driver's.
/// ext3 keeps its default of 2011, which journals metadata only.
const FILE_SYSTEMS: [(&str, &str, &str); 5] = [
    ("ext2", "mkfs.ext2 -q -b 4096 -E nodiscard", "-t ext4"),
    ("ext3", "mkfs.ext3 -q -b 4096 -E nodiscard", "-t ext4 -o data=ordered"),
    ("ext4", "mkfs.ext4 -q -b 4096 -E nodiscard", "-t ext4"),
    ("xfs", "mkfs.xfs -q -f -K", "-t xfs"),
    ("btrfs", "mkfs.btrfs -q -f -K", "-t btrfs"),
];

/// The program by whose version a file system is known: ext2 to ext4 are made by one.
pub(crate) fn maker(file_system: &str) -> &'static str {
    match file_system {
        "xfs" => "mkfs.xfs",
        "btrfs" => "mkfs.btrfs",
        _ => "mkfs.ext4",
    }
}

/// Why a file system cannot be made here, with the remedy; `None` if it can.
pub(crate) fn no_maker(file_system: &str) -> Option<String> {
    let (_, make, _) = FILE_SYSTEMS.iter().find(|(known, ..)| *known == file_system)?;
    packages::missing(make.split(' ').next().unwrap_or_default())
}

/// $1: the device, $2: how it is mounted, $3: the archive. Prints nanoseconds.
const SCRIPT: &str = r#"
set -eu
mkdir -p m
mount $2 "$1" m
begin=$(date +%s%N)
tar -C m -xf "$3"
sync -f m
for copy in 1 2 3; do
    cp -a m/tree m/copy$copy
    sync -f m
done
rm -r m/tree m/copy*
sync -f m
end=$(date +%s%N)
umount m
echo $((end - begin))
"#;

/// Files of the archive, and bytes of an image.
fn size(scale: Scale) -> (u32, u64) {
    match scale {
        Scale::Full => (70_000, 3 << 30),
        Scale::Quick => (2_000, 384 << 20),
    }
}

/// Bytes of a file of the archive with what `tar` and file systems add, a little above the average.
const FILE_BYTES: u64 = 12 << 10;

/// Bytes that the images of these contenders take.
pub(crate) fn image_bytes(scale: Scale, contenders: &[Contender]) -> u64 {
    bytes_of_images(size(scale).1, contenders)
}

/// Bytes that the archive takes. Its files are beside it until it is made.
pub(crate) fn archive_bytes(scale: Scale) -> u64 {
    2 * u64::from(size(scale).0) * FILE_BYTES
}

impl Settings {
    /// The directory of the images.
    pub(crate) fn tree_dir(&self) -> &Path {
        self.on.scratch_dir().unwrap_or(Path::new(MEMORY))
    }
}

/// The archive and the images.
pub(crate) struct Trees {
    images: Images,
    /// Holds the archive.
    archive: TempDir,
}

impl Trees {
    pub(crate) fn new(
        about: &About,
        (ucrypt, left): (&Path, &Left),
        (stop, progress): (&AtomicBool, Filling<'_>),
    ) -> io::Result<Self> {
        let settings = &about.settings;
        let (files, len) = size(settings.scale);
        let remedy = match settings.scale {
            Scale::Full => "--quick needs less",
            Scale::Quick => "make room there",
        };
        let (before, direct) = (settings.other_build(), about.storage.direct);
        let (generator, device) = (Generator::BuiltIn, None);
        // Of memory and of a block device, images are in memory.
        let direct = direct && settings.on.scratch_dir().is_some();
        let service = Service { ucrypt, before, direct, generator, left, remedy, device };
        let images = Images::make(settings.tree_dir(), len, service, (stop, progress))?;
        let archive = tempfile::Builder::new().prefix("ucrypt-lab-").tempdir_in(MEMORY)?;
        make_archive(archive.path(), files, stop)?;
        Ok(Self { images, archive })
    }

    /// One turn of a contender on a file system.
    pub(crate) fn run(
        &self,
        contender: Contender,
        name: &str,
        stop: &AtomicBool,
    ) -> io::Result<Sample> {
        let (_, make, mount) = FILE_SYSTEMS
            .into_iter()
            .find(|(known, ..)| *known == name)
            .ok_or_else(|| io::Error::other(format!("no file system is called {name}")))?;
        let dir = self.images.dir();
        let (device, own, _end) = self.images.device(contender, stop)?;
        let mut words = make.split(' ');
        let mut command = process::program(words.next().unwrap_or_default());
        command.args(words).arg(&device);
        // What waits for a device cannot be ended before the device's server is.
        let limit = TURN_LIMIT + PATIENCE;
        process::guarded(own.server, limit, stop, || {
            process::run(&mut command, dir, TURN_LIMIT, stop)
        })?;
        // dm-crypt has a device below it, whose writes the file system does not see.
        let below = own.loop_device.as_ref().filter(|_| own.mapped.is_some());
        let below = below.map(|name| Path::new("/dev").join(name));
        let look = || -> io::Result<(Device, Option<Device>)> {
            Ok((device_stat(&device)?, below.as_deref().map(device_stat).transpose()?))
        };
        let before = look()?;
        let watch = Watch::start(own.clone());
        // A mount namespace of its own: nothing stays mounted, however it ends. What the user unmounts meanwhile is
        // unmounted there, too, and kept by nobody.
        let mut turn = process::program("unshare");
        turn.args(["--mount", "--propagation", "slave", "--", "sh", "-c", SCRIPT, "sh"])
            .arg(&device)
            .arg(mount)
            .arg(self.archive.path().join("tree.tar"))
            .current_dir(dir);
        let said = process::guarded(own.server, limit, stop, || {
            process::output(&mut turn, dir, TURN_LIMIT, stop)
        })?;
        let disturbance = watch.end();
        let after = look()?;
        let spent = said.lines().last().and_then(|line| line.trim().parse::<f64>().ok());
        let seconds = spent
            .ok_or_else(|| io::Error::other(format!("the turn printed no time: {said}")))?
            / 1e9;
        let device = after.0.since(&before.0);
        let below = after.1.zip(before.1).map(|(after, before)| after.since(&before));
        Ok(Sample {
            seconds,
            mb_s: device.bytes as f64 / 1e6 / seconds.max(1e-9),
            requests: device.writes,
            device: Some(device),
            below,
            load: "tar, cp, rm, sync".into(),
            disturbance,
            ..Sample::default()
        })
    }
}

/// The counters of a device (kernel: `Documentation/block/stat.rst`).
fn device_stat(device: &Path) -> io::Result<Device> {
    // By its number: the name in /dev may be a link, or that of a mapping.
    let number = fs::metadata(device)?.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let text = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat"))?;
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let at = |index: usize| numbers.get(index).copied().unwrap_or(0);
    Ok(Device { writes: at(4), merges: at(5), bytes: at(6) * 512, busy_ms: at(9) })
}

/// `tree.tar`: files of a few KiB, 17 to a directory, as in a kernel's source.
fn make_archive(dir: &Path, files: u32, stop: &AtomicBool) -> io::Result<()> {
    let mut random = fastrand::Rng::with_seed(2011);
    let mut text = vec![0; 1 << 20];
    random.fill(&mut text);
    for number in 0..files {
        if stop.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, INTERRUPTED));
        }
        // Log-normal, median 3.6 KiB, from 12 uniform numbers.
        let normal = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        #[expect(clippy::cast_sign_loss, reason = "an exponential is positive")]
        let len = ((8.2 + 1.1 * normal).exp() as usize).min(1 << 19);
        let start = random.usize(..text.len() - len);
        let place = dir.join(format!("tree/{}/{}", number / 289, number / 17 % 17));
        if number % 17 == 0 {
            fs::create_dir_all(&place)?;
        }
        fs::write(place.join(format!("{number}.c")), &text[start..start + len])?;
    }
    let mut tar = process::program("tar");
    process::run(tar.args(["-cf", "tree.tar", "tree"]).current_dir(dir), dir, TURN_LIMIT, stop)?;
    fs::remove_dir_all(dir.join("tree"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::catalogue::by_name;

    #[test]
    fn every_step_writes_its_data_to_the_device_before_the_next_begins() {
        let measured = SCRIPT.split("begin=").nth(1).expect("a begin");
        let measured = measured.split("end=").next().expect("an end");
        let steps: Vec<_> = measured.lines().skip(1).map(str::trim).collect();
        for (at, step) in steps.iter().enumerate() {
            if ["tar ", "cp ", "rm "].iter().any(|program| step.starts_with(program)) {
                assert_eq!(steps.get(at + 1), Some(&"sync -f m"), "after {step}");
            }
        }
        // The step that is synced last is within the time.
        assert_eq!(steps.iter().filter(|step| **step == "sync -f m").count(), 3);
        // A directory on no device of its own is synced as well: the option is known here.
        let dir = tempfile::tempdir().expect("a directory");
        let status = Command::new("sync").arg("-f").arg(dir.path()).status().expect("sync");
        assert!(status.success());
    }

    #[test]
    fn the_files_of_an_archive_take_no_more_than_is_said() {
        let dir = tempfile::tempdir().expect("a directory");
        make_archive(dir.path(), 2000, &AtomicBool::new(false)).expect("an archive");
        let len = fs::metadata(dir.path().join("tree.tar")).expect("it is there").len();
        assert!(len < 2000 * FILE_BYTES && len > 2000 * FILE_BYTES / 4, "{len} bytes");
    }

    #[test]
    fn every_file_system_of_the_experiment_can_be_made_and_the_archive_holds_every_file() {
        let cells = by_name("kernel-tree").expect("an experiment").cells(Scale::Full);
        for cell in cells {
            assert!(FILE_SYSTEMS.iter().any(|(name, ..)| *name == cell.name), "{}", cell.name);
        }
        let dir = tempfile::tempdir().expect("a directory");
        let go = AtomicBool::new(false);
        make_archive(dir.path(), 40, &go).expect("an archive");
        let mut tar = Command::new("tar");
        tar.args(["-tf", "tree.tar"]).current_dir(dir.path());
        let listed = tar.output().expect("tar");
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert_eq!(listed.matches(".c\n").count(), 40);
    }
}
