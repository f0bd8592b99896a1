//! Where open volumes are found again: one directory per user.
//!
//! `NAME` is the served file, `.NAME.sock` the control socket of its server, `.NAME.lock` what it
//! locks as long as it lives, `.NAME.log` what it had to say.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The longest name: the control socket's path must fit into a socket address.
const NAME_MAX: usize = 64;

/// The places that belong to one name.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    dir: PathBuf,
    name: String,
}

impl Places {
    /// The places of `name`; nothing is made yet.
    pub(crate) fn of(name: &str) -> Result<Self, Failure> {
        let fits = !name.is_empty()
            && name.len() <= NAME_MAX
            && !name.starts_with(['.', '-'])
            && !name.contains(|c: char| c == '/' || c.is_control());
        if !fits {
            return Err(Failure::wrong(format!(
                "'{name}' cannot name a volume; use up to {NAME_MAX} bytes without '/', and no dot \
                 at the start"
            )));
        }
        Ok(Self { dir: directory(), name: name.into() })
    }

    /// The places of a volume that should be open, by its name or by the path of its device or
    /// file, as `open` printed it.
    pub(crate) fn of_open(name: &str) -> Result<Self, Failure> {
        let path = Path::new(name);
        let known = [Path::new("/dev/ucrypt"), &directory()].map(|dir| path.strip_prefix(dir).ok());
        let short = known.into_iter().flatten().find_map(Path::to_str);
        Self::of(short.unwrap_or(name))
    }

    /// The places of all volumes that are open, or were when their server was killed; by name.
    pub(crate) fn all() -> Result<Vec<Self>, Failure> {
        let dir = directory();
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => {
                return Err(Failure::device(format!("cannot read {}: {error}", dir.display())));
            }
        };
        let name = |entry: fs::DirEntry| {
            let socket = entry.file_name().into_string().ok()?;
            Some(socket.strip_prefix('.')?.strip_suffix(".sock")?.to_owned())
        };
        let mut names: Vec<String> = entries.filter_map(Result::ok).filter_map(name).collect();
        names.sort_unstable();
        Ok(names.into_iter().map(|name| Self { dir: dir.clone(), name }).collect())
    }

    /// Makes the directory, for this user only.
    pub(crate) fn prepare(&self) -> Result<(), Failure> {
        let failed = |error| {
            Failure::denied(format!(
                "cannot use {}: {error}; set XDG_RUNTIME_DIR to a directory of your own",
                self.dir.display()
            ))
        };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir).map_err(failed)?;
        let found = fs::symlink_metadata(&self.dir).map_err(failed)?;
        let ours = found.is_dir()
            && found.uid() == rustix::process::geteuid().as_raw()
            && found.permissions().mode() & 0o022 == 0;
        if ours {
            return Ok(());
        }
        Err(Failure::denied(format!(
            "{} is not a directory that only you can write to; set XDG_RUNTIME_DIR to one",
            self.dir.display()
        )))
    }

    /// The directory of all of them.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The served file.
    pub(crate) fn file(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// The control socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join(format!(".{}.sock", self.name))
    }

    /// The NBD socket, if the volume is served as NBD.
    pub(crate) fn nbd(&self) -> PathBuf {
        self.dir.join(format!("{}.nbd", self.name))
    }

    /// Locked by the server as long as it lives.
    pub(crate) fn lock(&self) -> PathBuf {
        self.dir.join(format!(".{}.lock", self.name))
    }

    /// Removes what a server has in these places, but for the lock.
    pub(crate) fn clean_up(&self) {
        // Of the served file only what a killed server left: a live one removes its own.
        ucrypt_export::fuse::remove_stale(&self.file());
        // A log is kept until the next server of this name, if there is anything in it.
        let said = fs::metadata(self.log()).is_ok_and(|log| log.len() > 0);
        let log = Some(self.log()).filter(|_| !said);
        for path in [self.nbd(), self.socket()].into_iter().chain(log) {
            // What is not there needs no removing.
            let _ = fs::remove_file(path);
        }
    }

    /// What the server had to say.
    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join(format!(".{}.log", self.name))
    }
}

fn directory() -> PathBuf {
    let base = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let base = base.filter(|dir| dir.is_absolute());
    let user = rustix::process::geteuid();
    base.map_or_else(|| fallback(user.is_root(), user.as_raw()), |base| base.join("ucrypt"))
}

/// The directory where no session manager named one.
fn fallback(root: bool, user: u32) -> PathBuf {
    if root {
        return "/run/ucrypt".into();
    }
    let session = PathBuf::from(format!("/run/user/{user}"));
    if session.is_dir() {
        return session.join("ucrypt");
    }
    Path::new("/tmp").join(format!("ucrypt-{user}"))
}
