//! The fault backend does what its rules say, and no more.

use std::sync::Arc;

use ucrypt_backend::{Backend, Done, Errno, FileBackend, Io, Pool, Queue, memory};
use ucrypt_testkit::fault::{Access, Fate, Rule};
use ucrypt_testkit::{FaultBackend, Faults};

const LEN: u64 = 1 << 20;

struct Disk {
    inner: Arc<FileBackend>,
    faults: Faults,
    queue: Box<dyn Queue>,
    pool: Pool,
}

impl Disk {
    /// A disk filled with bytes of value 9.
    fn new() -> Self {
        let inner = Arc::new(memory(LEN).expect("memory"));
        inner.write_all_at(0, &vec![9; LEN as usize]).expect("written");
        let faults = Faults::new(1);
        let backend = FaultBackend::new(inner.clone(), faults.clone());
        let queue = backend.queue(16).expect("a queue");
        Self { inner, faults, queue, pool: Pool::new(LEN as usize).expect("memory") }
    }

    fn read(&mut self, token: u64, offset: u64) {
        let mut buf = self.pool.alloc(4096).expect("memory");
        buf.fill(1);
        self.queue.submit(Io::Read { token, offset, bufs: vec![buf] });
    }

    fn write(&mut self, token: u64, offset: u64, fua: bool) {
        let mut buf = self.pool.alloc(4096).expect("memory");
        buf.fill(2);
        self.queue.submit(Io::Write { token, offset, bufs: vec![buf], fua });
    }

    fn poll(&mut self) -> Vec<Done> {
        let mut done = Vec::new();
        self.queue.poll(&mut done).expect("the queue works");
        done
    }

    fn stored(&self, offset: u64) -> u8 {
        let mut byte = [0];
        self.inner.read_exact_at(offset, &mut byte).expect("memory");
        byte[0]
    }
}

#[test]
fn without_delays_operations_keep_their_order_and_are_told() {
    let mut disk = Disk::new();
    for token in 0..8 {
        disk.write(token, (8 - token) * 4096, token % 2 == 0);
    }
    disk.read(8, 0);
    disk.queue.submit(Io::Flush { token: 9 });
    assert_eq!(disk.poll().len(), 10);
    let log = disk.faults.log();
    let places: Vec<u64> = log.iter().map(|reached| reached.range.start / 4096).collect();
    assert_eq!(places, [8, 7, 6, 5, 4, 3, 2, 1, 0, 0]);
    let durable =
        |access| log.iter().filter(|reached| reached.access == access && reached.durable).count();
    assert_eq!([Access::Write, Access::Read, Access::Flush].map(durable), [4, 0, 1]);
    assert!(log.iter().all(|reached| !reached.in_place));
}

#[test]
fn a_torn_read_fills_its_buffers_and_fails_and_its_neighbour_does_not() {
    let mut disk = Disk::new();
    disk.faults.add(Rule::new(Fate::Tear(Errno::IO)).on(Access::Read).range(4096..8192));
    disk.read(0, 4096);
    disk.read(1, 8192);
    let mut done = disk.poll();
    done.extend(disk.poll());
    done.sort_by_key(|done| done.token);
    let results: Vec<_> = done.iter().map(|done| done.result).collect();
    assert_eq!(results, [Err(Errno::IO), Ok(())]);
    assert!(done.iter().all(|done| done.bufs[0].iter().all(|&byte| byte == 9)));
}

#[test]
fn what_hangs_is_not_done_until_it_is_resumed() {
    let mut disk = Disk::new();
    disk.faults.add(Rule::new(Fate::Hang).on(Access::Write));
    disk.write(0, 0, false);
    disk.read(1, 4096);
    let done = disk.poll();
    assert_eq!(done.iter().map(|done| done.token).collect::<Vec<_>>(), [1]);
    disk.faults.await_met(1);
    assert_eq!(disk.stored(0), 9, "nothing was written");
    disk.faults.resume();
    disk.write(2, 4096, false);
    let mut done = disk.poll();
    done.sort_by_key(|done| done.token);
    let answers: Vec<_> = done.iter().map(|done| (done.token, done.result)).collect();
    assert_eq!(answers, [(0, Ok(())), (2, Ok(()))], "nothing hangs any more");
    assert_eq!([disk.stored(0), disk.stored(4096)], [2, 2]);
}

#[test]
fn what_hangs_and_is_released_fails_and_was_not_done() {
    let mut disk = Disk::new();
    disk.faults.add(Rule::new(Fate::Hang));
    disk.write(0, 0, false);
    assert!(disk.poll().is_empty());
    disk.faults.release();
    let done = disk.poll();
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].result, Err(Errno::IO));
    assert_eq!(disk.stored(0), 9);
}

#[test]
fn a_queue_gives_up_what_hangs_when_it_is_dropped() {
    let mut disk = Disk::new();
    disk.faults.add(Rule::new(Fate::Hang));
    disk.write(0, 0, false);
    assert!(disk.poll().is_empty());
    // Also an operation that would hang, but was never polled.
    disk.write(1, 4096, false);
    let Disk { queue, faults, .. } = disk;
    drop(queue);
    assert_eq!(faults.met().len(), 2);
}
