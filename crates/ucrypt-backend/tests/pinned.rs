//! Memory that the kernel pins for direct I/O: none for idle queues, and a bounded amount for busy
//! ones.
//!
//! The only test of its process, because it counts the memory that the process has pinned.

#![forbid(unsafe_code)]

use std::fs::File;
use std::time::{Duration, Instant};

use ucrypt_backend::{Backend, FileBackend, Io, OpenOptions, Pool, Queue};

const POOL: usize = 64 << 20;

/// Bytes pinned by this process.
fn pinned() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("the status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("VmPin");
    let kib: usize = line.trim_end_matches("kB").trim().parse().expect("a number");
    kib << 10
}

fn write(queue: &mut dyn Queue, pool: &Pool) {
    let mut buf = pool.alloc(4096).expect("a page");
    buf.fill(7);
    queue.submit(Io::Write { token: 0, offset: 4096, bufs: vec![buf], fua: false });
    let mut done = Vec::new();
    while done.is_empty() {
        queue.wait(&mut done).expect("the queue works");
    }
    assert_eq!(done[0].result, Ok(()));
}

#[test]
fn queues_that_are_idle_pin_nothing_and_busy_ones_a_bounded_amount() {
    // Not in memory: the target's directory is on a disk.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = dir.path().join("image");
    File::create(&path).and_then(|file| file.set_len(1 << 20)).expect("an image");
    let direct = OpenOptions { direct: true, ..OpenOptions::default() };
    let backend = FileBackend::open(&path, direct).expect("opened");
    let before = pinned();
    let mut queues: Vec<_> = (0..64)
        .map(|_| {
            let pool = Pool::new(POOL).expect("a pool");
            let mut queue = backend.queue(8).expect("a queue");
            let may = queue.register(&pool);
            assert_eq!(may, backend.describe().contains("io_uring, direct"));
            (queue, pool)
        })
        .collect();
    assert_eq!(pinned(), before, "64 queues that are idle");
    let (first, pool) = &mut queues[0];
    write(&mut **first, pool);
    assert!(pinned() - before <= POOL, "one queue that is busy");
    for (queue, pool) in &mut queues {
        write(&mut **queue, pool);
    }
    assert!(pinned() - before <= 256 << 20, "all of them: {} bytes", pinned() - before);
    // Dropped queues give their share back, and others get it.
    drop(queues.split_off(1));
    let until = Instant::now() + Duration::from_secs(60);
    while pinned() - before > POOL {
        assert!(Instant::now() < until, "the kernel still has {} bytes pinned", pinned() - before);
        std::thread::sleep(Duration::from_millis(1));
    }
    let left = pinned();
    let pool = Pool::new(POOL).expect("a pool");
    let mut queue = backend.queue(8).expect("a queue");
    let may = queue.register(&pool);
    write(&mut *queue, &pool);
    assert_eq!(pinned() > left, may && left > before, "{left} bytes before, {} now", pinned());
}
