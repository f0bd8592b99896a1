//! Files that live in memory: each operation is a system call on the spot.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::{Files, ops};
use crate::{Done, Io, Queue, hand_out};

pub(super) struct SyncQueue {
    files: Arc<Files>,
    depth: usize,
    answered: Vec<Done>,
}

impl SyncQueue {
    pub(super) fn new(files: Arc<Files>, depth: u32) -> Self {
        let depth = depth as usize;
        Self { files, depth, answered: Vec::with_capacity(depth) }
    }
}

impl Queue for SyncQueue {
    fn room(&self) -> usize {
        self.depth - self.answered.len()
    }

    fn submit(&mut self, io: Io) {
        assert!(self.room() > 0, "submit without room");
        self.answered.push(ops::perform(&self.files, io));
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
}
