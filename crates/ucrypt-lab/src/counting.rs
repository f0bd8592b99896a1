//! A backend around a backend that counts the writes that reach it, and whether each continues the
//! one before.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ucrypt_backend::{
    Backend, Done, Extent, Io, Limits, Map, Pool, Queue, SharedRing, Zones, total_len,
};

use crate::sample::Order;

/// Counts writes in the order in which they are submitted, over all queues.
pub(crate) struct Counting {
    backend: Arc<dyn Backend>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    order: Mutex<Order>,
    /// Where the last write ended.
    end: AtomicU64,
}

impl Counting {
    /// Counts the writes to `backend`.
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend, counts: Arc::default() }
    }

    /// The counts since the last call.
    pub(crate) fn take(&self) -> Order {
        std::mem::take(&mut *self.counts.order.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Counts {
    fn write(&self, offset: u64, len: u64) {
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.end.swap(offset + len, Ordering::Relaxed);
        order.writes += 1;
        order.bytes += len;
        order.continued += u64::from(before == offset);
    }
}

impl Backend for Counting {
    fn limits(&self) -> &Limits {
        self.backend.limits()
    }

    fn len_now(&self) -> io::Result<u64> {
        self.backend.len_now()
    }

    fn use_until(&self, end: u64) {
        self.backend.use_until(end);
    }

    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
        let queue = self.backend.queue(depth)?;
        Ok(Box::new(CountingQueue { queue, counts: self.counts.clone() }))
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> Vec<Extent> {
        self.backend.extents(offset, len, max)
    }

    /// None: what is written in place is not seen here.
    fn map(&self) -> Option<Arc<dyn Map>> {
        None
    }

    fn zones(&self) -> Option<&dyn Zones> {
        self.backend.zones()
    }

    fn describe(&self) -> String {
        self.backend.describe()
    }
}

struct CountingQueue {
    queue: Box<dyn Queue>,
    counts: Arc<Counts>,
}

impl Queue for CountingQueue {
    fn room(&self) -> usize {
        self.queue.room()
    }

    fn submit(&mut self, io: Io) {
        if let Io::Write { offset, bufs, .. } = &io {
            self.counts.write(*offset, total_len(bufs) as u64);
        }
        self.queue.submit(io);
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        self.queue.poll(done)
    }

    fn wait(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        self.queue.wait(done)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.queue.fd()
    }

    fn register(&mut self, pool: &Pool) -> bool {
        self.queue.register(pool)
    }

    fn shared_ring(&mut self) -> Option<SharedRing<'_>> {
        self.queue.shared_ring()
    }
}
