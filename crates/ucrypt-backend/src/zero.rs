//! A disk of zeroes that forgets what is written to it: the limit of everything above a backend.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::{Backend, Done, Extent, Io, Limits, Mapping, Queue, hand_out};

/// Reads zeroes, accepts writes and drops them.
#[derive(Debug)]
pub struct ZeroBackend {
    limits: Limits,
}

impl ZeroBackend {
    /// A disk of `len` bytes.
    pub fn new(len: u64) -> Self {
        Self {
            limits: Limits {
                len,
                block: 512,
                transfer_max: 1 << 20,
                read_only: false,
                discard: true,
                rotational: false,
                synchronous: true,
                request_ns: 0,
                depth_max: u32::MAX,
            },
        }
    }
}

impl Backend for ZeroBackend {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
        let depth = depth as usize;
        Ok(Box::new(ZeroQueue { depth, answered: Vec::with_capacity(depth) }))
    }

    fn extents(&self, _offset: u64, len: u64, _max: usize) -> Vec<Extent> {
        vec![Extent { len, hole: true }]
    }

    fn map(&self) -> Option<Arc<Mapping>> {
        Mapping::zeroes(self.limits.transfer_max as usize).ok().map(Arc::new)
    }

    fn describe(&self) -> String {
        format!("zero:{}", self.limits.len)
    }
}

struct ZeroQueue {
    depth: usize,
    answered: Vec<Done>,
}

impl Queue for ZeroQueue {
    fn room(&self) -> usize {
        self.depth - self.answered.len()
    }

    fn submit(&mut self, io: Io) {
        assert!(self.room() > 0, "submit without room");
        let is_read = matches!(io, Io::Read { .. });
        let (token, mut bufs) = io.into_parts();
        if is_read {
            for buf in &mut bufs {
                buf.fill(0);
            }
        }
        self.answered.push(Done { token, result: Ok(()), bufs });
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
