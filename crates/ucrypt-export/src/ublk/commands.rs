//! The commands of one queue: requests are fetched, and their results committed.
//!
//! They go through the ring of the engine's queue, and every command of a queue is given by the
//! thread that gave its first one; the kernel refuses others. A command is under way from then on
//! until the kernel has a request for its tag, or until the device ends.

#![expect(unsafe_code, reason = "entries of a ring name descriptors and memory by number")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{opcode, types};
use rustix::io::Errno;
use ucrypt_engine::Queue;

use super::abi::{COMMIT_AND_FETCH, FETCH, IoCommand};
use super::data::Data;

/// The commands to one queue of a device.
pub(super) struct Commands {
    device: Arc<File>,
    queue: u16,
}

/// What became of a command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fetched {
    pub(super) tag: u16,
    /// A request is there, or there will be none any more.
    pub(super) result: Result<(), Errno>,
}

impl Commands {
    pub(super) fn new(device: Arc<File>, queue: u16) -> Self {
        Self { device, queue }
    }

    /// Asks for the first request of a tag, whose data goes through `data`.
    pub(super) fn fetch(&self, engine: &mut Queue, data: &mut Data, tag: u16) {
        self.push(engine, data.address(tag), FETCH, tag, 0);
    }

    /// Ends a request, with bytes or a negative error, and asks for the tag's next one.
    pub(super) fn commit(&self, engine: &mut Queue, data: &mut Data, tag: u16, result: i32) {
        self.push(engine, data.address(tag), COMMIT_AND_FETCH, tag, result);
    }

    /// The same for an append that was written at `sector`. Its data is copied by us.
    pub(super) fn commit_append(&self, engine: &mut Queue, sector: u64, tag: u16) {
        self.push(engine, sector, COMMIT_AND_FETCH, tag, 0);
    }

    fn push(&self, engine: &mut Queue, address: u64, operation: u32, tag: u16, result: i32) {
        let command = IoCommand { queue: self.queue, tag, result, address };
        let fd = types::Fd(self.device.as_raw_fd());
        let entry = opcode::UringCmd16::new(fd, operation).cmd(command.to_bytes()).build();
        let Some(mut ring) = engine.ring() else { return };
        // SAFETY: `queue::Server` drops its engine queue, and the ring with it, before the device;
        // and it leaks the data if a command was still under way.
        unsafe { ring.push(entry.user_data(u64::from(tag))) };
    }
}

/// The next command that has ended.
pub(super) fn next(engine: &mut Queue) -> Option<Fetched> {
    let completion = engine.ring()?.next()?;
    let result = completion.result;
    let result = if result < 0 { Err(Errno::from_raw_os_error(-result)) } else { Ok(()) };
    Some(Fetched { tag: completion.user_data as u16, result })
}
