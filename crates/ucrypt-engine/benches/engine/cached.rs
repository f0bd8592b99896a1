//! Reads of data in memory, by size: with and without the backend's mapping.
//!
//! Two images, larger than the core's caches: one on tmpfs, one in the page cache of the file
//! system of the temporary directory. Random offsets, depth 1. `copied` is the same engine over a
//! backend without a mapping, so that the kernel copies the data first.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ucrypt_backend::{Backend, Extent, FileBackend, Limits, OpenOptions, Queue as BackendQueue};
use ucrypt_engine::{Io, PolicyKind, Queue, QueueConfig};
use ucrypt_testkit::Random;
use ucrypt_testkit::engine::aes;

use crate::stand::{finish, median, name, volume};

const LEN: u64 = 256 << 20;
const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const ROUNDS: usize = 15;
const SLICE: Duration = Duration::from_millis(4);

/// The inner backend without its mapping.
struct Unmapped(FileBackend);

impl Backend for Unmapped {
    fn limits(&self) -> &Limits {
        self.0.limits()
    }

    fn use_until(&self, end: u64) {
        self.0.use_until(end);
    }

    fn queue(&self, depth: u32) -> io::Result<Box<dyn BackendQueue>> {
        self.0.queue(depth)
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> Vec<Extent> {
        self.0.extents(offset, len, max)
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn len_now(&self) -> io::Result<u64> {
        self.0.len_now()
    }

    fn map(&self) -> Option<Arc<dyn ucrypt_backend::Map>> {
        None
    }

    fn zones(&self) -> Option<&dyn ucrypt_backend::Zones> {
        self.0.zones()
    }
}

/// Nanoseconds per read of `bytes`, at random offsets.
fn time(queue: &mut Queue, bytes: usize, random: &mut Random) -> f64 {
    let (started, mut reads) = (Instant::now(), 0u32);
    while started.elapsed() < SLICE {
        let offset = random.below(LEN / bytes as u64) * bytes as u64;
        queue.submit(0, Io::read(offset, bytes)).expect("room");
        finish(queue);
        reads += 1;
    }
    started.elapsed().as_secs_f64() * 1e9 / f64::from(reads)
}

fn open(path: &Path) -> FileBackend {
    let options = OpenOptions { unlocked: true, ..OpenOptions::default() };
    FileBackend::open(path, options).expect("the image opens")
}

fn on(directory: &Path) {
    let image = tempfile::NamedTempFile::new_in(directory).expect("an image");
    let block = vec![7; 1 << 20];
    for _ in 0..LEN >> 20 {
        io::Write::write_all(&mut image.as_file(), &block).expect("space for the image");
    }
    let describe = open(image.path()).describe();
    let kind = describe.rsplit('(').next().unwrap_or_default().trim_end_matches(')');
    let config = QueueConfig::new(8 << 20, 4);
    let queue = |backend: Arc<dyn Backend>| {
        let volume = volume(backend, Some(aes(512)), None, PolicyKind::Adaptive);
        volume.queue(config).expect("a queue")
    };
    let mut mapped = queue(Arc::new(open(image.path())));
    let mut copied = queue(Arc::new(Unmapped(open(image.path()))));
    let mut random = Random::new(1);
    for bytes in SIZES {
        let (mut with, mut without, mut ratio) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (a, b) =
                (time(&mut mapped, bytes, &mut random), time(&mut copied, bytes, &mut random));
            with.push(a / 1e3);
            without.push(b / 1e3);
            ratio.push(b / a);
        }
        println!(
            "| {} ({kind}) | {} | {:.2} | {:.2} | {:.2} |",
            directory.display(),
            name(bytes as u64),
            median(&mut without),
            median(&mut with),
            median(&mut ratio)
        );
    }
}

pub(crate) fn run() {
    println!("| image on | read | copied µs | mapped µs | times as fast |");
    println!("|---|---:|---:|---:|---:|");
    on(Path::new("/dev/shm"));
    on(&std::env::temp_dir());
}
