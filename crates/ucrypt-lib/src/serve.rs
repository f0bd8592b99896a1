//! Serving a volume to other programs.

use std::fmt;
use std::mem;
use std::path::{Path, PathBuf};

use ucrypt_export::fuse::{FuseExport, FuseOptions, Preference, Transport};
use ucrypt_export::nbd::{Address, Server, ServerConfig};

use crate::error::{ServeError, fuse_error, nbd_error};
use crate::volume::Volume;

/// A volume that is served by NBD on a Unix socket. Dropping it ends the service, and flushes nothing.
///
/// ```
/// # use ucrypt_lib::{Key, OpenOptions, Plain};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let image = dir.path().join("disk.img");
/// # let socket = dir.path().join("socket");
/// # std::fs::File::create(&image)?.set_len(1 << 20)?;
/// # let volume = OpenOptions::new().plain(Plain::new()).open(&image, Key::Passphrase(b"secret"))?;
/// let server = volume.serve_nbd(&socket)?;
/// // qemu-img info, nbdcopy, nbdfuse … take this:
/// println!("{}", server.uri());
/// # assert!(server.uri().starts_with("nbd+unix:"));
/// server.stop()?;
/// # Ok(())
/// # }
/// ```
pub struct NbdServer {
    service: Service<Server>,
    uri: String,
}

/// What serves a volume. Its threads, socket and mount are those of the process that has started it: a child
/// that was forked has no threads to wait for, and nothing to take away.
struct Service<T> {
    /// `None` once it is stopped.
    of: Option<T>,
    volume: Volume,
}

impl<T> Service<T> {
    fn new(of: T, volume: &Volume) -> Self {
        Self { of: Some(of), volume: volume.clone() }
    }
}

impl<T> Drop for Service<T> {
    fn drop(&mut self) {
        if self.volume.engine().is_err() {
            mem::forget(self.of.take());
        }
    }
}

impl fmt::Debug for NbdServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NbdServer").field("uri", &self.uri()).finish_non_exhaustive()
    }
}

impl NbdServer {
    pub(crate) fn start(volume: &Volume, path: &Path) -> Result<Self, ServeError> {
        let address = Address::Unix(path.into());
        let engine = volume.engine()?.clone();
        let server = Server::start(engine, &address, ServerConfig::default())
            .map_err(|error| nbd_error(&error))?;
        let uri = server.uri().to_owned();
        Ok(Self { service: Service::new(server, volume), uri })
    }

    /// What clients take to find the server: `nbd+unix:///?socket=PATH`.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Clients that are connected now; none in a child that was forked.
    pub fn clients(&self) -> usize {
        // The lock of the list may be held for ever in a child, by a thread that is not there.
        let Service { of, volume } = &self.service;
        of.as_ref().filter(|_| volume.engine().is_ok()).map_or(0, Server::clients)
    }

    /// Takes no more requests, carries out those that were taken, closes all connections, and makes
    /// everything durable. Clients have 5 s to take their last replies.
    ///
    /// # Errors
    /// [`ServeError::Flush`] if something was lost, or if this is a child that was forked, which cannot
    /// stop its parent's server.
    pub fn stop(self) -> Result<(), ServeError> {
        let mut service = self.service;
        service.volume.engine()?;
        if let Some(server) = service.of.take() {
            server.shutdown();
        }
        Ok(service.volume.flush()?)
    }
}

/// A volume that is served as a file, by FUSE. Dropping it ends the service, and flushes nothing.
///
/// ```no_run
/// # use ucrypt_lib::{Key, OpenOptions};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let volume = OpenOptions::new().open("disk.img", Key::Passphrase(b"secret"))?;
/// let served = volume.serve_file("disk")?;
/// std::process::Command::new("fsck.ext4").arg("-n").arg(served.path()).status()?;
/// served.stop()?;
/// # Ok(())
/// # }
/// ```
pub struct ServedFile {
    service: Service<FuseExport>,
    path: PathBuf,
}

impl fmt::Debug for ServedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedFile").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl ServedFile {
    pub(crate) fn start(volume: &Volume, path: &Path) -> Result<Self, ServeError> {
        let others = !volume.facts().read_only;
        let options = FuseOptions { transport: Preference::Only(Transport::Classic), others };
        let export = FuseExport::start(volume.engine()?, path, options)
            .map_err(|error| fuse_error(&error))?;
        let path = export.path().to_owned();
        Ok(Self { service: Service::new(export, volume), path })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the service has ended by itself: somebody unmounted the file.
    pub fn has_ended(&self) -> bool {
        self.service.of.as_ref().is_none_or(FuseExport::has_ended)
    }

    /// Unmounts the file, and makes everything durable. Programs that still have it open get errors after
    /// 2 s.
    ///
    /// # Errors
    /// [`ServeError::Flush`] if something was lost, or if this is a child that was forked, which cannot
    /// stop its parent's service; [`ServeError::System`] if somebody had aborted the service before, or
    /// if it goes on: the file was moved with its directory, or a program has it open that this user may
    /// not part from it. What clients write from then on is not flushed.
    pub fn stop(self) -> Result<(), ServeError> {
        let mut service = self.service;
        service.volume.engine()?;
        let stopped = service.of.take().map_or(Ok(()), FuseExport::stop);
        service.volume.flush()?;
        stopped.map_err(|error| fuse_error(&error))
    }
}
