//! A server in this process, and volumes for it.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use ucrypt_backend::{Backend, Done, Errno, Extent, FileBackend, Io, Limits};
use ucrypt_engine::{Segment, Volume, VolumeOptions};
use ucrypt_export::vhost_user::{Server, ServerConfig};
use ucrypt_sector::{CipherSpec, SectorCipher, SectorOptions};

/// Bytes of the volumes.
pub(crate) const LEN: u64 = 4 << 20;

pub(crate) struct Harness {
    dir: TempDir,
    server: Option<Server>,
    reports: Arc<Mutex<Vec<String>>>,
    patience: Duration,
}

impl Harness {
    pub(crate) fn start(volume: Arc<Volume>) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let patience = ServerConfig::default().patience;
        let mut harness = Self { dir, server: None, reports: Arc::default(), patience };
        harness.restart(volume);
        harness
    }

    /// One that does not wait long for requests when it ends.
    pub(crate) fn impatient(volume: Arc<Volume>) -> Self {
        let mut harness = Self::start(volume.clone());
        harness.stop();
        harness.patience = Duration::from_millis(100);
        harness.restart(volume);
        harness
    }

    /// Ends the server, which has to succeed within a minute; the test fails otherwise, and does not
    /// wait any longer. Returns what was reported.
    pub(crate) fn stop_or_fail(mut self) -> Vec<String> {
        let (ended, end) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            self.stop();
            // Nobody listens after a failure.
            let _ = ended.send(self.reports());
        });
        end.recv_timeout(Duration::from_secs(60)).expect("the server did not end within 60 s")
    }

    /// Another server in the place of the one that was stopped.
    pub(crate) fn restart(&mut self, volume: Arc<Volume>) {
        let sink = Arc::clone(&self.reports);
        let report = Arc::new(move |line: &str| {
            println!("report: {line}");
            sink.lock().expect("reports").push(line.to_owned());
        });
        let patience = self.patience;
        let config = ServerConfig { serial: "test-disk".into(), report, patience };
        self.server = Some(Server::start(volume, &self.socket(), &config).expect("a server"));
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("vhost.sock")
    }

    pub(crate) fn stop(&mut self) {
        self.server.take().expect("running").shutdown();
    }

    pub(crate) fn reports(&self) -> Vec<String> {
        self.reports.lock().expect("reports").clone()
    }

    /// Waits until a report holds `text`: threads report when they get to it.
    pub(crate) fn await_report(&self, text: &str) {
        let until = Instant::now() + Duration::from_secs(30);
        while !self.reports().iter().any(|line| line.contains(text)) {
            assert!(Instant::now() < until, "no report of '{text}': {:?}", self.reports());
            std::thread::sleep(Duration::from_millis(5));
        }
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
    let spec: CipherSpec = "aes-xts-plain64".parse().expect("a cipher");
    let key: Vec<u8> = (0..64).collect();
    let sectors = SectorOptions { sector_size, ..SectorOptions::default() };
    let cipher = SectorCipher::new(&spec, &key, sectors).expect("a key");
    let segment = Segment { len: LEN, backend_offset: 0, cipher: Some(cipher) };
    Arc::new(Volume::new(backend, vec![segment], options).expect("a volume"))
}

/// How long answers are held back at most.
const HELD_MAX: Duration = Duration::from_secs(60);

/// A disk whose answers can be held back, and that fails writes of its last megabyte.
pub(crate) struct Gate {
    inner: FileBackend,
    closed: Arc<AtomicBool>,
    held: Arc<AtomicUsize>,
    durable: Arc<Durable>,
}

/// How often something was to be durable.
#[derive(Default)]
struct Durable {
    writes: AtomicUsize,
    flushes: AtomicUsize,
}

impl Gate {
    pub(crate) fn new() -> Arc<Self> {
        let inner = ucrypt_backend::memory(LEN).expect("memory");
        let (closed, held) = (Arc::default(), Arc::default());
        Arc::new(Self { inner, closed, held, durable: Arc::default() })
    }

    /// Writes that had to be durable, and flushes, so far.
    pub(crate) fn durable(&self) -> (usize, usize) {
        let Durable { writes, flushes } = &*self.durable;
        (writes.load(Ordering::SeqCst), flushes.load(Ordering::SeqCst))
    }

    pub(crate) fn close(&self, closed: bool) {
        self.closed.store(closed, Ordering::SeqCst);
    }

    /// Waits until so many answers are held back.
    pub(crate) fn await_held(&self, count: usize) {
        let until = Instant::now() + Duration::from_secs(30);
        while self.held.load(Ordering::SeqCst) < count {
            assert!(Instant::now() < until, "{:?} of {count} requests came", self.held);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

struct GateQueue {
    inner: Box<dyn ucrypt_backend::Queue>,
    closed: Arc<AtomicBool>,
    held: Arc<AtomicUsize>,
    durable: Arc<Durable>,
    done: Vec<Done>,
    event: std::os::fd::OwnedFd,
    since: Instant,
}

impl Backend for Gate {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn queue(&self, depth: u32) -> std::io::Result<Box<dyn ucrypt_backend::Queue>> {
        let flags = rustix::event::EventfdFlags::NONBLOCK;
        Ok(Box::new(GateQueue {
            inner: self.inner.queue(depth)?,
            closed: self.closed.clone(),
            held: self.held.clone(),
            durable: self.durable.clone(),
            done: Vec::new(),
            // Always readable: whoever waits looks again and again.
            event: rustix::event::eventfd(1, flags)?,
            since: Instant::now(),
        }))
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> Vec<Extent> {
        self.inner.extents(offset, len, max)
    }

    fn describe(&self) -> String {
        "gate".into()
    }

    fn len_now(&self) -> std::io::Result<u64> {
        self.inner.len_now()
    }

    fn map(&self) -> Option<Arc<dyn ucrypt_backend::Map>> {
        None
    }

    fn zones(&self) -> Option<&dyn ucrypt_backend::Zones> {
        self.inner.zones()
    }
}

impl ucrypt_backend::Queue for GateQueue {
    fn room(&self) -> usize {
        self.inner.room().saturating_sub(self.done.len())
    }

    fn submit(&mut self, io: Io) {
        match &io {
            Io::Write { fua: true, .. } => self.durable.writes.fetch_add(1, Ordering::SeqCst),
            Io::Flush { .. } => self.durable.flushes.fetch_add(1, Ordering::SeqCst),
            _ => 0,
        };
        match io {
            Io::Write { token, offset, bufs, .. } if offset >= LEN - (1 << 20) => {
                self.done.push(Done { token, result: Err(Errno::IO), bufs });
            }
            io => self.inner.submit(io),
        }
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> std::io::Result<()> {
        let before = self.done.len();
        self.inner.poll(&mut self.done)?;
        self.held.fetch_add(self.done.len() - before, Ordering::SeqCst);
        // Not for ever: a test that has failed must end.
        if !self.closed.load(Ordering::SeqCst) || self.since.elapsed() > HELD_MAX {
            done.append(&mut self.done);
        }
        Ok(())
    }

    fn wait(&mut self, done: &mut Vec<Done>) -> std::io::Result<()> {
        std::thread::yield_now();
        self.poll(done)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(std::os::fd::AsFd::as_fd(&self.event))
    }

    fn register(&mut self, _pool: &ucrypt_backend::Pool) -> bool {
        false
    }

    fn guest(&mut self) -> Option<ucrypt_backend::Guest<'_>> {
        None
    }
}
