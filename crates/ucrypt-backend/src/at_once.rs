//! A queue that carries operations out within `submit`.

use std::io;
use std::os::fd::BorrowedFd;

use crate::{Done, Io, Pool, Queue, SharedRing, hand_out};

/// A queue that calls `perform` for each operation.
pub(crate) struct AtOnce<F> {
    perform: F,
    depth: usize,
    answered: Vec<Done>,
}

impl<F: FnMut(Io) -> Done> AtOnce<F> {
    pub(crate) fn new(depth: u32, perform: F) -> Self {
        let depth = depth as usize;
        Self { perform, depth, answered: Vec::with_capacity(depth) }
    }
}

impl<F: FnMut(Io) -> Done + Send> Queue for AtOnce<F> {
    fn room(&self) -> usize {
        self.depth - self.answered.len()
    }

    fn submit(&mut self, io: Io) {
        assert!(self.room() > 0, "submit without room");
        self.answered.push((self.perform)(io));
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        hand_out(&mut self.answered, done);
        Ok(())
    }

    fn wait(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        self.poll(done)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn register(&mut self, _pool: &Pool) -> bool {
        false
    }

    fn shared_ring(&mut self) -> Option<SharedRing<'_>> {
        None
    }
}
