//! A backend that fails, and one that takes its time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use ucrypt_backend::{
    Backend, Buf, Done, Errno, Extent, FileBackend, Io, Limits, Queue, total_len,
};
use ucrypt_engine::VolumeOptions;

use crate::client::{Client, EIO, ENOSPC, FLUSH, READ};
use crate::harness::{Harness, SMALL, over};

/// From here on, writes fail with `ENOSPC` and reads with `EIO`.
const BROKEN_FROM: u64 = SMALL / 2;

/// Memory that fails in its second half, and that starts nothing while it is held.
struct Wrapped {
    inner: FileBackend,
    limits: Limits,
    hold: Arc<Hold>,
}

/// A gate before all operations.
struct Hold {
    closed: AtomicBool,
    /// Operations that came while the gate was closed.
    came: AtomicUsize,
    /// Readable while the gate is open.
    open: OwnedFd,
}

impl Hold {
    fn release(&self) {
        self.closed.store(false, Ordering::SeqCst);
        rustix::io::write(&self.open, &1u64.to_ne_bytes()).expect("signalled");
    }

    /// Waits until so many operations have reached the backend.
    fn await_operations(&self, count: usize) {
        let until = Instant::now() + Duration::from_secs(30);
        while self.came.load(Ordering::SeqCst) < count {
            assert!(Instant::now() < until, "the operations never came");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn wrapped(closed: bool) -> (Arc<Wrapped>, Arc<Hold>) {
    let inner = ucrypt_backend::memory(SMALL).expect("memory");
    let limits = Limits { synchronous: false, ..inner.limits().clone() };
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let open = eventfd(u32::from(!closed), flags).expect("an eventfd");
    let (closed, came) = (AtomicBool::new(closed), AtomicUsize::new(0));
    let hold = Arc::new(Hold { closed, came, open });
    (Arc::new(Wrapped { inner, limits, hold: Arc::clone(&hold) }), hold)
}

impl Backend for Wrapped {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
        let inner = self.inner.queue(depth)?;
        let hold = Arc::clone(&self.hold);
        Ok(Box::new(WrappedQueue { inner, hold, held: Vec::new(), broken: Vec::new() }))
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> Vec<Extent> {
        self.inner.extents(offset, len, max)
    }

    fn describe(&self) -> String {
        "a backend with faults".into()
    }

    fn len_now(&self) -> io::Result<u64> {
        self.inner.len_now()
    }

    fn map(&self) -> Option<Arc<dyn ucrypt_backend::Map>> {
        None
    }

    fn zones(&self) -> Option<&dyn ucrypt_backend::Zones> {
        self.inner.zones()
    }
}

struct WrappedQueue {
    inner: Box<dyn Queue>,
    hold: Arc<Hold>,
    held: Vec<Io>,
    broken: Vec<Done>,
}

impl WrappedQueue {
    fn start(&mut self, io: Io) {
        let reaches = |offset: u64, bufs: &[Buf]| offset + total_len(bufs) as u64 > BROKEN_FROM;
        match io {
            Io::Read { token, offset, bufs } if reaches(offset, &bufs) => {
                self.broken.push(Done { token, result: Err(Errno::IO), bufs });
            }
            Io::Write { token, offset, bufs, .. } if reaches(offset, &bufs) => {
                self.broken.push(Done { token, result: Err(Errno::NOSPC), bufs });
            }
            io => self.inner.submit(io),
        }
    }
}

impl Queue for WrappedQueue {
    fn room(&self) -> usize {
        self.inner.room() - self.broken.len() - self.held.len()
    }

    fn submit(&mut self, io: Io) {
        if self.hold.closed.load(Ordering::SeqCst) {
            self.held.push(io);
            self.hold.came.fetch_add(1, Ordering::SeqCst);
        } else {
            self.start(io);
        }
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        if self.hold.closed.load(Ordering::SeqCst) {
            return Ok(());
        }
        for io in std::mem::take(&mut self.held) {
            self.start(io);
        }
        done.append(&mut self.broken);
        self.inner.poll(done)
    }

    fn wait(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        self.poll(done)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.hold.open.as_fd())
    }

    fn register(&mut self, _pool: &ucrypt_backend::Pool) -> bool {
        false
    }

    fn guest(&mut self) -> Option<ucrypt_backend::Guest<'_>> {
        None
    }
}

#[test]
fn the_client_gets_the_backends_error_and_the_server_lives_on() {
    let (backend, _) = wrapped(false);
    let harness = Harness::start(over(backend, VolumeOptions::default()));
    for mut client in [Client::simple(&harness), Client::structured(&harness)] {
        assert_eq!(client.ask(READ, 0, BROKEN_FROM, 4096).error, EIO);
        assert_eq!(client.ask(READ, 0, BROKEN_FROM - 4096, 8192).error, EIO);
        assert_eq!(client.write(0, BROKEN_FROM, &[1; 4096]), ENOSPC);
        assert_eq!(client.write(0, 0, &[2; 4096]), 0);
        assert_eq!(client.read(0, 4096), [2; 4096]);
        assert_eq!(client.ask(FLUSH, 0, 0, 0).error, 0);
    }
}

#[test]
fn writes_of_a_client_that_is_gone_reach_the_backend() {
    let (backend, hold) = wrapped(true);
    let volume = over(backend, VolumeOptions::default());
    let mut harness = Harness::start(volume.clone());
    let mut client = Client::simple(&harness);
    // Apart from each other: neighbours would reach the backend as one operation.
    for at in 0..32 {
        client.request_write(0, at * 8192, &[7; 4096]);
    }
    client.hang_up();
    hold.await_operations(32);
    hold.release();
    harness.stop();
    let harness = Harness::start(volume);
    let mut client = Client::simple(&harness);
    for at in 0..32 {
        assert_eq!(client.read(at * 8192, 4096), [7; 4096]);
    }
}

#[test]
fn shutdown_waits_for_a_slow_backend() {
    let (backend, hold) = wrapped(true);
    let volume = over(backend, VolumeOptions::default());
    let mut harness = Harness::start(volume.clone());
    let mut client = Client::simple(&harness);
    client.request_write(0, 0, &[3; 4096]);
    hold.await_operations(1);
    let stopping = std::thread::spawn(move || harness.stop());
    hold.release();
    let reply = client.reply();
    assert_eq!((reply.cookie, reply.error), (1, 0), "taken, so done and answered");
    stopping.join().expect("stopped");
    assert_eq!(Client::simple(&Harness::start(volume)).read(0, 4096), [3; 4096]);
}
