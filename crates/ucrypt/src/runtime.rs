//! The runtime directory of a user, in which actions find the open volumes.
//!
//! `NAME` is the served file, `.NAME.sock` the control socket of its server, `.NAME.nbd` the socket
//! for NBD clients, `.NAME.lock` the file that the server locks while it lives, `.NAME.log` its
//! log. No name begins with a dot and each suffix has one meaning, so no two names share a path.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ucrypt_backend::lock_directory;
use ucrypt_image::runtime_directory;

use crate::background;
use crate::failure::Failure;
use crate::secrecy;

/// Longest name in bytes: the control socket's path must fit into a socket address.
const NAME_MAX: usize = 64;

/// Longest path of a Unix socket in bytes (unix(7)), including its terminator.
const SOCKET_PATH_MAX: usize = 108;

/// The paths that belong to one name.
#[derive(Debug, Clone)]
pub(crate) struct RuntimePaths {
    dir: PathBuf,
    name: String,
}

impl RuntimePaths {
    /// The paths of `name`. Creates nothing.
    pub(crate) fn of(name: &str) -> Result<Self, Failure> {
        let fits = !name.is_empty()
            && name.len() <= NAME_MAX
            && !name.starts_with(['.', '-'])
            && !name.contains(|c: char| c == '/' || c.is_control());
        if !fits {
            return Err(Failure::wrong(format!(
                "'{}' cannot name a volume; use 1 to {NAME_MAX} bytes without '/' and control \
                 characters, and no '.' or '-' at the start",
                background::clean(name)
            )));
        }
        Ok(Self { dir: runtime_directory::path(), name: name.into() })
    }

    /// The paths of a volume that should be open. `name` is its name, the path of its device, file or
    /// NBD socket or the URI of that as `open` printed it, or the device's own path, as in `/dev/loop3`.
    ///
    /// # Errors
    /// It cannot be a name. Code 5 if it is a device whose server has another runtime directory: a volume of this one
    /// may have the same name.
    pub(crate) fn of_open(name: &str) -> Result<Self, Failure> {
        // A name has no '/', so that what has one is a path.
        if !name.contains('/') {
            return Self::of(name);
        }
        let path = &nbd_socket(name).unwrap_or_else(|| name.into());
        let path = &std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let below = |dir: &Path| Some(path.strip_prefix(dir).ok()?.to_str()?.to_owned());
        if let Some(file) = below(&runtime_directory::path()) {
            // No name begins with a dot.
            let socket = file.strip_prefix('.').and_then(|file| file.strip_suffix(".nbd"));
            return Self::of(socket.unwrap_or(&file));
        }
        let linked = below(Path::new("/dev/ucrypt"));
        let Some(linked) = linked.or_else(|| background::name_of_device(path)) else {
            return Err(Failure::wrong(format!(
                "{} is no device, file or socket of an open volume; ucrypt list shows those that are open",
                background::clean(name)
            )));
        };
        let paths = Self::of(&linked)?;
        background::check_device(&paths)?;
        Ok(paths)
    }

    /// The paths of all volumes that are open or whose server was killed, sorted by name.
    pub(crate) fn all() -> Result<Vec<Self>, Failure> {
        let dir = runtime_directory::path();
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

    /// Creates the directory, for this user only.
    pub(crate) fn prepare(&self) -> Result<(), Failure> {
        // Under any umask and until the process ends, new files belong to this user alone.
        secrecy::keep_files_private();
        if self.socket().as_os_str().len() >= SOCKET_PATH_MAX {
            return Err(Failure::wrong(format!(
                "{} is too long for the path of a socket; use a shorter name, or set XDG_RUNTIME_DIR \
                 to a directory with a shorter one",
                self.socket().display()
            )));
        }
        runtime_directory::prepare(&self.dir).map_err(|error| denied(&self.dir, &error))
    }

    /// Refuses a directory in which others can put something in the way.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match runtime_directory::check(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(denied(&self.dir, &error)),
            _ => Ok(()),
        }
    }

    /// Whether a server is running, or a killed server has left something.
    pub(crate) fn are_in_use(&self) -> bool {
        self.are_served() || is_there(&self.lock())
    }

    /// Whether there is something that a server serves, or served until it was killed.
    pub(crate) fn are_served(&self) -> bool {
        [self.socket(), self.nbd()].iter().any(|path| is_there(path))
            || ucrypt_export::fuse::is_served(&self.file())
    }

    /// The directory of all these paths.
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
        self.dir.join(format!(".{}.nbd", self.name))
    }

    /// The file that the server locks while it lives.
    pub(crate) fn lock(&self) -> PathBuf {
        self.dir.join(format!(".{}.lock", self.name))
    }

    /// Waits for the other processes that are about to choose a name by themselves, but no longer than
    /// `patience`. The turn ends when this is dropped.
    pub(crate) fn turn(&self, patience: Duration) -> Option<File> {
        lock_directory(&self.dir, patience)
    }

    /// Removes the server's files except its lock.
    pub(crate) fn clean_up(&self) {
        // Only a killed server leaves its served file; a live one removes its own.
        ucrypt_export::fuse::remove_stale(&self.file());
        // Keep a log that is not empty; the next server of this name appends to it.
        let said = fs::metadata(self.log()).is_ok_and(|log| log.len() > 0);
        let log = Some(self.log()).filter(|_| !said);
        for path in [self.nbd(), self.socket()].into_iter().chain(log) {
            // A missing file is no error.
            let _ = fs::remove_file(path);
        }
    }

    /// The log of the server.
    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join(format!(".{}.log", self.name))
    }
}

/// The path of the socket in the URI that `open` prints of an NBD export.
pub(crate) fn nbd_socket(uri: &str) -> Option<PathBuf> {
    let encoded = uri.strip_prefix("nbd+unix:///?socket=")?;
    let mut parts = encoded.split('%');
    let mut path = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let digits =
            part.get(..2).filter(|it| it.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        path.push(u8::from_str_radix(digits, 16).ok()?);
        path.extend_from_slice(&part.as_bytes()[2..]);
    }
    Some(OsString::from_vec(path).into())
}

/// Whether there is a file. That of a killed server exists, but its metadata cannot be read.
fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path)
        .map_or_else(|error| error.kind() != io::ErrorKind::NotFound, |_| true)
}

fn denied(dir: &Path, error: &io::Error) -> Failure {
    Failure::denied(format!(
        "cannot use {}: {error}; set XDG_RUNTIME_DIR to a directory of your own",
        dir.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_uri_of_nbd_is_the_path_of_its_socket() {
        let path = |text: &str| nbd_socket(text).map(|path| path.display().to_string());
        let uri = |path: &str| format!("nbd+unix:///?socket={path}");
        assert_eq!(path(&uri("/run/.x.nbd")), Some("/run/.x.nbd".into()));
        assert_eq!(path(&uri("/a%20b%C3%A4/.x.nbd")), Some("/a bä/.x.nbd".into()));
        for none in
            ["/run/.x.nbd", "nbd://[::1]:10809", &uri("%"), &uri("%2"), &uri("%+1"), &uri("%ää")]
        {
            assert_eq!(path(none), None, "{none}");
        }
    }

    #[test]
    fn no_two_names_share_a_place() {
        let names = ["x", "x.nbd", "x.sock", "x.lock", "x.log", "x.nbd.nbd", "nbd", "sock", "x.x"];
        let mut paths = HashSet::new();
        for name in names {
            let of = RuntimePaths { dir: "/run/ucrypt".into(), name: name.into() };
            for place in [of.file(), of.socket(), of.nbd(), of.lock(), of.log()] {
                assert!(paths.insert(place.clone()), "{} is another's too", place.display());
            }
        }
    }
}
