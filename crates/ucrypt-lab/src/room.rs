//! Room for the files that a run makes, looked at before the run begins: a disk that is full in the
//! middle of a run costs the time that the run has taken.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::statvfs;
use ucrypt_image::machine::free_memory;
use ucrypt_image::memory::Bytes;

use crate::catalogue::{Method, Scale};
use crate::runner::Plan;
use crate::store::Settings;
use crate::target::{SPARE, Target, keeps_files, no_memory};
use crate::{served, tree};

/// Files that a run makes in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Need {
    dir: PathBuf,
    bytes: u64,
    what: &'static str,
    /// What the user can do if there is no room for them.
    remedy: &'static str,
}

/// The files of a run, by directory. Those of one directory are there at the same time.
fn needs(settings: &Settings, plans: &[Plan]) -> Vec<Need> {
    let mut needs = Vec::new();
    let has_target = plans.iter().any(Plan::has_target);
    if let (Target::Scratch(path), true) = (&settings.on, has_target) {
        let dir = path.parent().unwrap_or(Path::new("/")).to_owned();
        let (what, remedy) = ("the scratch file", "use a smaller --size or another --on");
        needs.push(Need { dir, bytes: settings.len, what, remedy });
    }
    let of_target = plans.iter().filter(|plan| plan.method() != Method::Tree);
    let mut served: Vec<_> = of_target.flat_map(Plan::contenders).collect();
    served.retain(|contender| contender.is_served());
    if let Some(dir) = settings.on.scratch_dir().filter(|_| !served.is_empty()) {
        let bytes = served::bytes_of_images(settings.len, &served);
        let what = "the images of servers";
        let remedy = "use a smaller --size, another --on, or --against without servers";
        needs.push(Need { dir: dir.into(), bytes, what, remedy });
    } else if settings.on.is_device() && !served.is_empty() {
        let (dir, what) = (std::env::temp_dir(), "the headers of servers");
        let remedy = "make room there, or name another directory in TMPDIR";
        needs.push(Need { dir, bytes: served::HEADERS_BYTES, what, remedy });
    }
    let trees = plans.iter().filter(|plan| plan.method() == Method::Tree);
    let mounted: Vec<_> = trees.flat_map(Plan::contenders).collect();
    if !mounted.is_empty() {
        let remedy = match settings.scale {
            Scale::Full => "use --quick, or leave kernel-tree out",
            Scale::Quick => "leave kernel-tree out, or make room there",
        };
        let (dir, what) = (settings.tree_dir().into(), "the images of kernel-tree");
        let bytes = tree::image_bytes(settings.scale, &mounted);
        needs.push(Need { dir, bytes, what, remedy });
        let (dir, what) = (tree::MEMORY.into(), "the archive of kernel-tree");
        needs.push(Need { dir, bytes: tree::archive_bytes(settings.scale), what, remedy });
    }
    needs
}

/// Refuses needs for which a file system has no room. `free`: which file system a directory is on, and
/// its free bytes.
fn check(needs: &[Need], free: impl Fn(&Path) -> Result<(u64, u64), String>) -> Result<(), String> {
    let mut on: Vec<(u64, u64, Vec<&Need>)> = Vec::new();
    for need in needs {
        let (device, bytes) = free(&need.dir)?;
        match on.iter_mut().find(|(known, ..)| *known == device) {
            Some((.., all)) => all.push(need),
            None => on.push((device, bytes, vec![need])),
        }
    }
    for (_, free, all) in on {
        let sum = all.iter().fold(SPARE, |sum, need| sum.saturating_add(need.bytes));
        if sum <= free {
            continue;
        }
        let parts = all.iter().map(|it| format!("{} {}", Bytes(it.bytes), it.what));
        let mut remedies: Vec<&str> = Vec::new();
        for need in &all {
            if !remedies.contains(&need.remedy) {
                remedies.push(need.remedy);
            }
        }
        return Err(format!(
            "{} has {free} bytes free, and the run needs {sum}: {}, and {} to spare; {}",
            all[0].dir.display(),
            parts.collect::<Vec<_>>().join(", "),
            Bytes(SPARE),
            remedies.join("; or ")
        ));
    }
    Ok(())
}

impl Settings {
    /// Refuses a run for whose files there is no room, or which others could put others in the place of. Writes nothing.
    ///
    /// # Errors
    /// Names the directory, the bytes that are needed and free, and what can be done; or an experiment that does not
    /// exist.
    pub fn check_room(&self) -> Result<(), String> {
        let needs = needs(self, &self.plans()?);
        for need in &needs {
            keeps_files(&need.dir).map_err(|error| error.to_string())?;
        }
        let in_memory = |dir: &Path| type_of(dir) == TMPFS_MAGIC;
        self.check_memory(&needs, in_memory, free_memory())?;
        check(&needs, |dir| {
            let failed =
                |error: &dyn std::fmt::Display| format!("cannot use {}: {error}", dir.display());
            let device = fs::metadata(dir).map_err(|error| failed(&error))?.dev();
            let fs = statvfs(dir).map_err(|error| failed(&error))?;
            Ok((device, fs.f_bavail.saturating_mul(fs.f_frsize)))
        })
    }

    /// Refuses a run that takes more memory than is `free`, in bytes: the target, the ceiling of memory alone, and the
    /// files that are in memory, are there at the same time.
    fn check_memory(
        &self,
        needs: &[Need],
        in_memory: impl Fn(&Path) -> bool,
        free: u64,
    ) -> Result<(), String> {
        let has_target = self.plans()?.iter().any(Plan::has_target);
        let target = matches!(self.on, Target::Memory | Target::Model(_)) && has_target;
        // The target itself is that ceiling, where it is memory.
        let ceiling = has_target && self.on != Target::Memory && no_memory(self.len).is_none();
        let files = needs.iter().filter(|need| in_memory(&need.dir)).map(|need| need.bytes);
        let all = [target, ceiling].into_iter().filter(|it| *it).map(|_| self.len).chain(files);
        let sum = all.fold(SPARE, u64::saturating_add);
        if sum <= free {
            return Ok(());
        }
        Err(format!(
            "the run takes {} of memory, for its target, for the ceiling of memory alone and for files in memory, and \
             {} are free; use a smaller --size, or another directory for --on",
            Bytes(sum),
            Bytes(free)
        ))
    }
}

/// tmpfs (linux/magic.h).
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// The type of a file system; 0 if the system does not tell.
fn type_of(dir: &Path) -> i64 {
    rustix::fs::statfs(dir).map_or(0, |fs| fs.f_type)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender;
    use crate::served::Generator;

    fn settings(on: Target, experiments: &[&str], against: &str) -> Settings {
        Settings {
            experiments: experiments.iter().map(ToString::to_string).collect(),
            on,
            against: Some(contender::list(against).expect("contenders")),
            rounds: 1,
            scale: Scale::Quick,
            len: 1 << 30,
            time_ms: 10,
            added_on_zero: false,
            before: None,
            generator: Generator::BuiltIn,
            command: String::new(),
        }
    }

    #[test]
    fn everything_that_a_run_makes_is_counted_and_where() {
        let of = |on, experiments: &[&str], against| {
            let settings = settings(on, experiments, against);
            let needs = needs(&settings, &settings.plans().expect("plans"));
            needs.into_iter().map(|it| (it.dir, it.bytes >> 20)).collect::<Vec<_>>()
        };
        let scratch = || Target::Scratch("/some/where/scratch".into());
        let dir = || PathBuf::from("/some/where");
        assert_eq!(of(Target::Memory, &["instant"], "ucrypt"), []);
        assert_eq!(of(scratch(), &["instant"], "ucrypt"), [(dir(), 1024)]);
        let served = of(scratch(), &["block-sweep", "workqueues"], "ucrypt-nbd");
        assert_eq!(served, [(dir(), 1024), (dir(), 2 * 1024 + 4)]);
        let memory = PathBuf::from("/dev/shm");
        assert_eq!(of(Target::Memory, &["workqueues"], "ucrypt-nbd"), [(memory, 2052)]);
        // A device is served itself.
        let headers = (std::env::temp_dir(), 24);
        assert_eq!(
            of(Target::Device("/dev/none".into()), &["workqueues"], "ucrypt-nbd"),
            [headers]
        );
        for more in ["gocryptfs", "ucrypt-nbd-4096"] {
            let contenders = ["ucrypt-nbd", more].map(|name| name.parse().expect("a contender"));
            assert!(served::bytes_of_images(1 << 30, &contenders) > 3 << 30, "{more}");
        }
    }

    #[test]
    fn what_lies_in_memory_adds_up() {
        let of = |on, experiment, against, free_mib: u64| {
            let settings = settings(on, &[experiment], against);
            let needs = needs(&settings, &settings.plans().expect("plans"));
            settings.check_memory(&needs, |dir| dir.starts_with("/dev/shm"), free_mib << 20)
        };
        let scratch = || Target::Scratch("/some/where/scratch".into());
        let model = || Target::Model("sata2017".into());
        // A target or a ceiling of 1 GiB, images of 2 GiB and 4 MiB, and 64 MiB to spare.
        for (on, against, mib) in [
            (Target::Memory, "ucrypt", 1024),
            (Target::Memory, "ucrypt-nbd", 1024 + 2052),
            (scratch(), "ucrypt-nbd", 1024),
            (model(), "ucrypt", 2048),
            (Target::Zero, "ucrypt", 1024),
        ] {
            assert_eq!(of(on.clone(), "workqueues", against, mib + 64), Ok(()), "{on}");
            let refused = of(on.clone(), "workqueues", against, mib + 63).expect_err("too little");
            assert!(refused.contains("--size"), "{refused}");
        }
        assert_eq!(of(Target::Memory, "many-drives", "ucrypt", 64), Ok(()));
    }

    #[test]
    fn what_has_no_room_is_refused_with_bytes_directory_and_remedy() {
        let need =
            |dir: &str, bytes, remedy| Need { dir: dir.into(), bytes, what: "the files", remedy };
        let all = [need("/a", 600 << 20, "use less"), need("/b", 500 << 20, "leave it out")];
        let free = |same: bool, mib: u64| {
            move |dir: &Path| Ok((u64::from(!same && dir.ends_with("b")), mib << 20))
        };
        assert_eq!(check(&all, free(false, 664)), Ok(()));
        assert_eq!(check(&[], free(false, 0)), Ok(()));
        let said = check(&all, free(false, 600)).expect_err("too little");
        let bytes = (600_u64 << 20) + SPARE;
        for needed in ["/a has 629145600 bytes free", &bytes.to_string(), "use less"] {
            assert!(said.contains(needed), "{needed}: {said}");
        }
        // On one file system they add up.
        let said = check(&all, free(true, 1100)).expect_err("too little");
        assert!(said.contains("use less; or leave it out"), "{said}");
        assert_eq!(check(&all, free(true, 1164)), Ok(()));
    }
}
