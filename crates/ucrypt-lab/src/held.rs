//! A target for as long as it is used. It is opened once: what gets its name meanwhile, such as the next disk in the
//! same place, is neither written nor removed.
//!
//! A block device is claimed, so that nobody mounts it. In the turn of a server, or of dm-crypt, that claims it, the
//! claim is theirs.

use std::fs::{self, File};
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ucrypt_backend::{Backend, FileBackend, OpenOptions};

use crate::target::{DeviceId, Storage, Target, TargetError, file_options};

/// A target that is open.
pub struct Held {
    target: Target,
    /// Bytes of it that are used.
    len: u64,
    /// A file or a device; `None` of a scratch file that is not there yet, and of what lies in memory.
    file: Option<Arc<FileBackend>>,
    /// Of a block device: excludes other users.
    claim: Mutex<Option<FileBackend>>,
    /// Removed with this.
    _scratch: Option<Scratch>,
}

/// A scratch file, which is removed when this is dropped: it, and no other file that has got its
/// name.
#[derive(Debug)]
struct Scratch {
    path: PathBuf,
    /// Device and inode.
    file: (u64, u64),
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.file) {
            // Nobody can be told of a failure here.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Held {
    /// Takes what is there already, before anybody is asked whether it may be overwritten. Writes nothing. `len`: bytes
    /// that are to be used.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn take(target: &Target, len: u64) -> Result<Self, TargetError> {
        let file = match target {
            Target::File(path) => Some(FileBackend::open(path, file_options())?),
            Target::Device(path) => {
                Some(FileBackend::open(path, OpenOptions { unlocked: true, ..file_options() })?)
            }
            _ => None,
        };
        let (target, file) = (target.clone(), file.map(Arc::new));
        let held = Self { target, len, file, claim: Mutex::default(), _scratch: None };
        held.claim()?;
        Ok(held)
    }

    /// Claims a block device, if it is one and is not claimed yet.
    ///
    /// # Errors
    /// Another user has it, or another device has its name.
    pub(crate) fn claim(&self) -> Result<(), TargetError> {
        let (Target::Device(path), Some(held)) = (&self.target, &self.file) else { return Ok(()) };
        let mut claim = self.claim.lock().unwrap_or_else(PoisonError::into_inner);
        if claim.is_none() {
            let claimed = FileBackend::open(path, file_options())?;
            let device = File::open(path);
            let device = device.map_err(TargetError::io(path.display().to_string()))?;
            is_same(held, &device, path)?;
            is_same(&claimed, &device, path)?;
            *claim = Some(claimed);
        }
        Ok(())
    }

    /// Leaves a block device to a contender that claims it in `turn`, and claims it again. Of another target, nothing is claimed.
    ///
    /// # Errors
    /// Those of `turn`; or another user has the device, before the turn or after it.
    pub(crate) fn lend<T>(&self, turn: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.claim()?;
        drop(self.claim.lock().unwrap_or_else(PoisonError::into_inner).take());
        let ended = turn();
        let claimed = self.claim();
        let result = ended?;
        claimed?;
        Ok(result)
    }

    /// The block device, to write headers of encrypted images to it; `None` if it is none.
    ///
    /// # Errors
    /// Another user has it, or it cannot be opened.
    pub(crate) fn block_device(&self) -> io::Result<Option<(PathBuf, File)>> {
        let (Target::Device(path), Some(held)) = (&self.target, &self.file) else {
            return Ok(None);
        };
        self.claim()?;
        let file = File::options().read(true).write(true).open(path)?;
        is_same(held, &file, path)?;
        Ok(Some((path.clone(), file)))
    }

    /// Takes a target, and makes the scratch file if it is one.
    ///
    /// # Errors
    /// If it cannot be opened or made, or something has the name of the scratch file by now.
    pub fn make(target: &Target, len: u64) -> Result<Self, TargetError> {
        Self::take(target, len)?.made()
    }

    /// Makes the scratch file, if this is one.
    ///
    /// # Errors
    /// If it cannot be made, or something has its name by now.
    pub fn made(self) -> Result<Self, TargetError> {
        let Target::Scratch(path) = &self.target else { return Ok(self) };
        let failed = || TargetError::io(format!("cannot make {}", path.display()));
        let file = File::options().write(true).create_new(true).open(path).map_err(failed())?;
        let made = file.metadata().map_err(failed())?;
        let scratch = Scratch { path: path.clone(), file: (made.dev(), made.ino()) };
        file.set_len(self.len).map_err(failed())?;
        let opened = FileBackend::open(path, file_options())?;
        is_same(&opened, &file, path)?;
        Ok(Self { file: Some(Arc::new(opened)), _scratch: Some(scratch), ..self })
    }

    /// The target, past the page cache where it is on a disk that permits that. What lies in memory is new each time.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn open(&self) -> Result<Arc<dyn Backend>, TargetError> {
        self.open_part(self.len)
    }

    fn open_part(&self, len: u64) -> Result<Arc<dyn Backend>, TargetError> {
        match &self.file {
            Some(file) => Ok(file.clone()),
            None => self.target.in_memory(len),
        }
    }

    /// What it is, as far as the figures depend on it. A scratch file must have been made.
    ///
    /// # Errors
    /// If it cannot be looked at.
    pub fn storage(&self) -> Result<Storage, TargetError> {
        let backend = self.open_part(crate::target::LEN_MIN)?;
        let limits = backend.limits();
        let on_disk = !self.target.is_memory() && !limits.synchronous;
        Ok(Storage {
            direct: on_disk && !limits.copies,
            cached: on_disk && limits.copies,
            mapped: backend.map().is_some(),
            block_bytes: limits.block,
            device: self.device()?,
        })
    }

    /// Which block device it is; `None` if it is none.
    fn device(&self) -> Result<Option<DeviceId>, TargetError> {
        let (Target::Device(path), Some(held)) = (&self.target, &self.file) else {
            return Ok(None);
        };
        let failed = || TargetError::io(format!("cannot look at {}", path.display()));
        let mut device = File::open(path).map_err(failed())?;
        is_same(held, &device, path)?;
        let number = device.metadata().map_err(failed())?.rdev();
        let len = device.seek(SeekFrom::End(0)).map_err(failed())?;
        DeviceId::of_number(number, len).map(Some).map_err(failed())
    }
}

/// Refuses a target whose name is another's by now.
fn is_same(held: &FileBackend, found: &File, path: &Path) -> Result<(), TargetError> {
    // What cannot be compared is not known to be the same.
    if held.is_file(found.as_fd()).unwrap_or(false) {
        return Ok(());
    }
    Err(TargetError::Unknown(format!(
        "{} is another file or device than a moment ago; nothing was written",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::LEN_MIN;

    #[test]
    fn a_scratch_file_is_there_while_it_is_needed() {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::Scratch(dir.path().join("scratch"));
        let len = target.check(LEN_MIN + 5).unwrap();
        assert_eq!(len, LEN_MIN);
        let held = Held::take(&target, len).unwrap();
        assert!(held.open().is_err(), "it was not made yet");
        let held = held.made().unwrap();
        let storage = held.storage().unwrap();
        assert!(storage.device.is_none() && storage.block_bytes >= 512, "{storage:?}");
        assert!(!(storage.direct && storage.cached), "{storage:?}");
        for _ in 0..2 {
            assert_eq!(held.open().unwrap().limits().len, len);
        }
        assert!(target.check(LEN_MIN).is_err(), "it is there already");
        drop(held);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(matches!(target.check(u64::MAX / 2), Err(TargetError::Room(_))));
    }

    #[test]
    fn a_file_that_has_the_name_of_the_scratch_file_is_neither_overwritten_nor_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scratch");
        let target = Target::Scratch(path.clone());
        target.check(LEN_MIN).unwrap();
        // It comes between the question and the run.
        fs::write(&path, "somebody's").unwrap();
        assert!(Held::make(&target, LEN_MIN).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"somebody's");
        fs::remove_file(&path).unwrap();
        // It comes while the run is under way.
        let held = Held::make(&target, LEN_MIN).unwrap();
        what_has_got_the_name_stays(&held, &path);
    }

    #[test]
    fn a_file_that_gets_the_name_of_the_target_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        fs::write(&path, vec![7; LEN_MIN as usize]).unwrap();
        let held = Held::take(&Target::File(path.clone()), LEN_MIN).unwrap();
        what_has_got_the_name_stays(&held.made().unwrap(), &path);
    }

    /// Moves the target at `path`, and puts another file there.
    fn what_has_got_the_name_stays(held: &Held, path: &Path) {
        let moved = path.with_extension("moved");
        fs::rename(path, &moved).unwrap();
        let of_others = vec![b's'; LEN_MIN as usize];
        fs::write(path, &of_others).unwrap();
        let bench =
            crate::bench::Bench::new(held.open().unwrap(), LEN_MIN, crate::catalogue::Method::Load);
        bench.fill(&false.into(), &|_, _| {}).unwrap();
        drop(bench);
        assert!(fs::read(path).unwrap() == of_others);
        let filled = fs::read(&moved).unwrap();
        assert!(filled.len() == LEN_MIN as usize && filled != vec![0; LEN_MIN as usize]);
    }

    #[test]
    fn what_lies_in_memory_is_neither_direct_nor_cached() {
        let storage = |target| Held::take(&target, LEN_MIN).unwrap().storage().unwrap();
        let memory = storage(Target::Memory);
        assert!(memory.mapped && !memory.direct && !memory.cached, "{memory:?}");
        let zero = storage(Target::Zero);
        assert!(!zero.direct && !zero.cached, "{zero:?}");
    }
}
