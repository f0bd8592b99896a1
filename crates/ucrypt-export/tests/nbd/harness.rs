//! A server in this process, on a socket in a directory of its own.

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use tempfile::TempDir;
use ucrypt_backend::Backend;
use ucrypt_engine::{Segment, Volume, VolumeOptions};
use ucrypt_export::nbd::{Address, Server, ServerConfig};
use ucrypt_testkit::Reports;

/// Bytes of the volumes that need not be large.
pub(crate) const SMALL: u64 = 4 << 20;

/// A plain volume in memory.
pub(crate) fn plain(len: u64) -> Arc<Volume> {
    with_options(len, VolumeOptions::default())
}

/// A plain volume in memory, with these options.
pub(crate) fn with_options(len: u64, options: VolumeOptions) -> Arc<Volume> {
    over(Arc::new(ucrypt_backend::memory(len).expect("memory")), options)
}

/// A plain volume over a backend.
pub(crate) fn over(backend: Arc<dyn Backend>, options: VolumeOptions) -> Arc<Volume> {
    Arc::new(Volume::raw(backend, options).expect("a volume"))
}

/// An AES-256-XTS volume in memory.
pub(crate) fn aes(len: u64, sector_size: u32) -> Arc<Volume> {
    let cipher = Some(ucrypt_testkit::engine::aes(sector_size));
    let backend = Arc::new(ucrypt_backend::memory(len).expect("memory"));
    let segment = Segment { len, backend_offset: 0, cipher };
    Arc::new(Volume::new(backend, vec![segment], VolumeOptions::default()).expect("a volume"))
}

pub(crate) struct Harness {
    pub(crate) dir: TempDir,
    server: Option<Server>,
    pub(crate) reports: Reports,
}

impl Harness {
    pub(crate) fn start(volume: Arc<Volume>) -> Self {
        Self::with_config(volume, ServerConfig::default())
    }

    pub(crate) fn with_config(volume: Arc<Volume>, config: ServerConfig) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let address = Address::Unix(dir.path().join("nbd.sock"));
        Self::listening(volume, config, &address, dir)
    }

    /// On a free port of this machine.
    pub(crate) fn on_tcp(volume: Arc<Volume>) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let address = Address::Tcp("127.0.0.1:0".into());
        Self::listening(volume, ServerConfig::default(), &address, dir)
    }

    fn listening(
        volume: Arc<Volume>,
        mut config: ServerConfig,
        address: &Address,
        dir: TempDir,
    ) -> Self {
        let reports = Reports::default();
        config.report = reports.sink();
        let server = Some(Server::start(volume, address, config).expect("a server"));
        Self { dir, server, reports }
    }

    /// A connection, to a port too: what is done to it is the same.
    pub(crate) fn connect(&self) -> UnixStream {
        match self.uri().strip_prefix("nbd://") {
            Some(port) => OwnedFd::from(TcpStream::connect(port).expect("connected")).into(),
            None => UnixStream::connect(self.socket()).expect("connected"),
        }
    }

    pub(crate) fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("nbd.sock")
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().expect("running")
    }

    pub(crate) fn uri(&self) -> &str {
        self.server.as_ref().expect("running").uri()
    }

    pub(crate) fn stop(&mut self) {
        self.take().shutdown();
    }

    pub(crate) fn take(&mut self) -> Server {
        self.server.take().expect("running")
    }
}
