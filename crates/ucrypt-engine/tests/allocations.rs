//! Requests allocate nothing once a queue has warmed up, whatever the policy; lists of many pieces are given back.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{drain, volume_under};
use ucrypt_backend::{Backend, FileBackend, OpenOptions, Pool, memory};
use ucrypt_engine::{Buf, Io, PolicyKind, Queue, QueueConfig, Rejected};

/// Counts the allocations of the whole process, so there is one test: of two, the harness would handle the
/// first one's result while the second counts.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Bytes that are allocated now.
static HELD: AtomicU64 = AtomicU64::new(0);

// SAFETY: all calls are passed to the system's allocator unchanged.
#[expect(unsafe_code, reason = "an allocator can be counted in no other way")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        HELD.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's contract is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const LEN: u64 = 8 << 20;

/// The client's own memory, and the list that passes pieces of it.
struct Pieces {
    memory: Pool,
    list: Vec<Buf>,
}

impl Pieces {
    fn list(&mut self, count: usize) {
        self.list.clear();
        self.list.extend((0..count).map(|_| self.memory.alloc(4096).unwrap()));
    }
}

/// Reads and writes of all sizes, many at once, aligned and not, in one piece or (`in_pieces`) in
/// many.
fn requests(queue: &mut Queue, plain: &[u8], pieces: &mut Pieces, in_pieces: bool) {
    for round in 0..64u64 {
        for (index, len) in [4096, 4096, 65536, 100, 300_000].into_iter().enumerate() {
            let offset = (round * 65536 + index as u64 * 4096) % (LEN - (1 << 20));
            queue.submit(1, Io::read(offset, len)).unwrap();
            queue.submit(2, Io::write_borrowed(offset + (1 << 19), &plain[..len], false)).unwrap();
        }
        for index in 0..if in_pieces { 2 } else { 0 } {
            let offset = (round * 65536 + index * 65536) % (LEN - (1 << 20));
            pieces.list(16);
            queue.submit(3, Io::read_into(offset, &mut pieces.list)).unwrap();
            pieces.list(16);
            queue
                .submit(4, Io::write_scattered(offset + (1 << 19), &mut pieces.list, false))
                .unwrap();
        }
        drain(queue);
    }
}

#[test]
fn requests_allocate_nothing_after_the_first_ones_and_long_lists_are_given_back() {
    requests_allocate_nothing_after_the_first_ones();
    lists_of_pieces_are_bounded_by_the_depth_and_given_back();
}

fn requests_allocate_nothing_after_the_first_ones() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(LEN).unwrap();
    let plain = vec![7; 1 << 20];
    for policy in PolicyKind::ALL {
        let file = FileBackend::open(&path, OpenOptions::default()).unwrap();
        let backends: [Arc<dyn Backend>; 2] = [Arc::new(memory(LEN).unwrap()), Arc::new(file)];
        for backend in backends {
            let name = backend.describe();
            let volume = volume_under(policy, backend, 0, LEN, 512);
            let config = QueueConfig::new(16 << 20, 16);
            let mut queue = volume.queue(config).unwrap();
            let memory = Pool::new(1 << 20).unwrap();
            let mut pieces = Pieces { memory, list: Vec::with_capacity(16) };
            // The slot of a request depends on when others end. So slots that have never had a
            // request in pieces must have room for one.
            for _ in 0..4 {
                requests(&mut queue, &plain, &mut pieces, false);
            }
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            requests(&mut queue, &plain, &mut pieces, true);
            let made = ALLOCATIONS.load(Ordering::Relaxed) - before;
            assert_eq!(made, 0, "{policy} over {name}: allocations during 896 requests");
        }
    }
}

fn lists_of_pieces_are_bounded_by_the_depth_and_given_back() {
    const DEPTH: usize = 256;
    const COUNT: usize = 126;
    for policy in PolicyKind::ALL {
        let volume = volume_under(policy, Arc::new(memory(LEN).unwrap()), 0, LEN, 512);
        let mut queue = volume.queue(QueueConfig::new(16 << 20, DEPTH as u32)).unwrap();
        let pool = Pool::new(64 << 20).unwrap();
        let mut list = Vec::new();
        drain(&mut queue);
        let before = HELD.load(Ordering::Relaxed);
        for round in 0..4 {
            let mut most = 0;
            for tag in 0..DEPTH as u64 {
                list.clear();
                list.extend((0..COUNT).map(|_| pool.alloc(512).unwrap()));
                let submitted = if round % 2 == 0 {
                    queue.submit(tag, Io::read_into(tag * 65536 % LEN / 2, &mut list))
                } else {
                    queue.submit(tag, Io::write_scattered(tag * 65536 % LEN / 2, &mut list, false))
                };
                match submitted {
                    Ok(()) => most += COUNT,
                    Err(Rejected::Busy(_)) => break,
                    Err(error) => panic!("{error:?}"),
                }
            }
            assert!(most <= 16 * DEPTH && most > 8 * DEPTH, "{policy}: {most} pieces at once");
            drain(&mut queue);
        }
        drop(list);
        let kept = HELD.load(Ordering::Relaxed).saturating_sub(before);
        assert!(kept < 64 << 10, "{policy}: {kept} bytes are kept");
    }
}
