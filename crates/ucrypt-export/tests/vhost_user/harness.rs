//! A server in this process, and volumes for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use ucrypt_backend::Backend;
use ucrypt_engine::{Segment, Volume, VolumeOptions};
use ucrypt_export::vhost_user::{Server, ServerConfig};
use ucrypt_testkit::{FaultBackend, Faults, Reports};

/// Bytes of the volumes.
pub(crate) const LEN: u64 = 4 << 20;

pub(crate) struct Harness {
    dir: TempDir,
    server: Option<Server>,
    pub(crate) reports: Reports,
    patience: Duration,
}

impl Harness {
    pub(crate) fn start(volume: Arc<Volume>) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let patience = ServerConfig::default().patience;
        let mut harness = Self { dir, server: None, reports: Reports::default(), patience };
        harness.restart(volume);
        harness
    }

    /// A server that does not wait long for requests when it ends.
    pub(crate) fn impatient(volume: Arc<Volume>) -> Self {
        let mut harness = Self::start(volume.clone());
        harness.stop();
        harness.patience = Duration::from_millis(100);
        harness.restart(volume);
        harness
    }

    /// Ends the server within a minute; otherwise the test fails and waits no longer. Returns the
    /// reports.
    pub(crate) fn stop_or_fail(mut self) -> Vec<String> {
        let (ended, end) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            self.stop();
            // Nobody listens after a failure.
            let _ = ended.send(self.reports.lines());
        });
        end.recv_timeout(Duration::from_secs(60)).expect("the server did not end within 60 s")
    }

    /// Starts another server in the place of the one that was stopped.
    pub(crate) fn restart(&mut self, volume: Arc<Volume>) {
        let (report, patience) = (self.reports.sink(), self.patience);
        let config =
            ServerConfig { serial: "test-disk".into(), report, patience, ..Default::default() };
        self.server = Some(Server::start(volume, &self.socket(), &config).expect("a server"));
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("vhost.sock")
    }

    pub(crate) fn stop(&mut self) {
        self.server.take().expect("running").shutdown();
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A server that hangs must not keep its test from failing.
            std::mem::forget(self.server.take());
        }
    }
}

/// An AES-256-XTS volume in memory that allows discards.
pub(crate) fn aes(sector_size: u32) -> Arc<Volume> {
    over(Arc::new(ucrypt_backend::memory(LEN).expect("memory")), sector_size)
}

pub(crate) fn over(backend: Arc<dyn Backend>, sector_size: u32) -> Arc<Volume> {
    let options = VolumeOptions { allow_discards: true, ..VolumeOptions::default() };
    with_options(backend, sector_size, options)
}

pub(crate) fn with_options(
    backend: Arc<dyn Backend>,
    sector_size: u32,
    options: VolumeOptions,
) -> Arc<Volume> {
    let cipher = Some(ucrypt_testkit::engine::aes(sector_size));
    let segment = Segment { len: LEN, backend_offset: 0, cipher };
    Arc::new(Volume::new(backend, vec![segment], options).expect("a volume"))
}

/// A disk in memory with injected faults.
pub(crate) fn faulty() -> (Arc<FaultBackend>, Faults) {
    let (memory, faults) = (ucrypt_backend::memory(LEN).expect("memory"), Faults::new(1));
    let disk = FaultBackend::new(Arc::new(memory), faults.clone()).without_map();
    (Arc::new(disk), faults)
}
