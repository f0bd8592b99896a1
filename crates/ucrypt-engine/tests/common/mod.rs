//! What the tests of this crate share.
//!
#![allow(unreachable_pub, dead_code, reason = "shared by test binaries that each use a part")]

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::str::FromStr as _;
use std::sync::Arc;

use ucrypt_backend::{
    Backend, Done, Errno, Extent, FileBackend, Io, Limits, OpenOptions, memory, total_len,
};
use ucrypt_engine::{Op, Policy, Queue, Segment, Volume, VolumeOptions};
use ucrypt_sector::{CipherSpec, SectorCipher, SectorOptions};

/// xorshift64: the same run for the same seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// Backends whose operations are carried out at once, and through io_uring.
pub fn backends(len: u64) -> Vec<(&'static str, Arc<dyn Backend>, Option<tempfile::TempDir>)> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(len).unwrap();
    let file = FileBackend::open(&path, OpenOptions::default()).unwrap();
    vec![("memory", Arc::new(memory(len).unwrap()), None), ("file", Arc::new(file), Some(dir))]
}

/// AES-256-XTS with a fixed key.
pub fn aes(sector_size: u32) -> SectorCipher {
    let spec = CipherSpec::from_str("aes-xts-plain64").unwrap();
    let key: Vec<u8> = (0..64).collect();
    let options = SectorOptions { sector_size, iv_offset: 0, iv_large_sectors: false };
    SectorCipher::new(&spec, &key, options).unwrap()
}

/// A volume of one encrypted segment, under the default policy.
pub fn volume(backend: Arc<dyn Backend>, offset: u64, len: u64, sector_size: u32) -> Arc<Volume> {
    volume_under(Policy::default(), backend, offset, len, sector_size)
}

/// A volume of one encrypted segment.
pub fn volume_under(
    policy: Policy,
    backend: Arc<dyn Backend>,
    offset: u64,
    len: u64,
    sector_size: u32,
) -> Arc<Volume> {
    let segment = Segment { len, backend_offset: offset, cipher: Some(aes(sector_size)) };
    let options =
        VolumeOptions { policies: policy.into(), workers: Some(3), ..VolumeOptions::default() };
    Arc::new(Volume::new(backend, vec![segment], options).unwrap())
}

/// Submits one operation and waits for it.
pub fn run(queue: &mut Queue, op: Op) -> ucrypt_engine::Done {
    queue.submit(42, op).unwrap();
    queue.wait().unwrap();
    let done = queue.next_done().expect("an answer");
    assert_eq!(done.tag, 42);
    done
}

/// A backend whose transfers fail where they touch a range of bytes.
pub struct Faulty<B> {
    inner: B,
    broken: Range<u64>,
}

impl<B> Faulty<B> {
    pub fn new(inner: B, broken: Range<u64>) -> Self {
        Self { inner, broken }
    }
}

impl<B: Backend> Backend for Faulty<B> {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn queue(&self, depth: u32) -> io::Result<Box<dyn ucrypt_backend::Queue>> {
        let inner = self.inner.queue(depth)?;
        Ok(Box::new(FaultyQueue { inner, broken: self.broken.clone(), failed: Vec::new() }))
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> Vec<Extent> {
        self.inner.extents(offset, len, max)
    }

    fn describe(&self) -> String {
        format!("faulty {}", self.inner.describe())
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

struct FaultyQueue {
    inner: Box<dyn ucrypt_backend::Queue>,
    broken: Range<u64>,
    failed: Vec<Done>,
}

impl ucrypt_backend::Queue for FaultyQueue {
    fn room(&self) -> usize {
        self.inner.room().saturating_sub(self.failed.len())
    }

    fn submit(&mut self, io: Io) {
        match io {
            Io::Read { token, offset, bufs } | Io::Write { token, offset, bufs, .. }
                if offset < self.broken.end
                    && offset + total_len(&bufs) as u64 > self.broken.start =>
            {
                self.failed.push(Done { token, result: Err(Errno::NOSPC), bufs });
            }
            io => self.inner.submit(io),
        }
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        done.append(&mut self.failed);
        self.inner.poll(done)
    }

    fn wait(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        if self.failed.is_empty() { self.inner.wait(done) } else { self.poll(done) }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }

    fn register(&mut self, pool: &ucrypt_backend::Pool) -> bool {
        self.inner.register(pool)
    }

    fn guest(&mut self) -> Option<ucrypt_backend::Guest<'_>> {
        self.inner.guest()
    }
}
