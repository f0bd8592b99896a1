//! The commands of one queue: they fetch requests and commit their results.
//!
//! The commands go through the ring of the engine's queue. All commands of a queue must come from
//! the thread that submitted the first one; the kernel refuses others. A command is in flight until
//! the kernel has a request for its tag, or until the device ends.

#![expect(unsafe_code, reason = "entries of a ring name descriptors and memory by number")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{opcode, types};
use rustix::io::Errno;
use ucrypt_engine::Queue;

use super::abi::{COMMIT_AND_FETCH, FETCH, IoCommand};
use super::data::Data;

/// Submits the commands of one queue of a device.
pub(super) struct Commands {
    device: Arc<File>,
    queue: u16,
}

/// A completed command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fetched {
    pub(super) tag: u16,
    /// `Ok`: a request has arrived. `Err`: there will be no more.
    pub(super) result: Result<(), Errno>,
}

impl Commands {
    pub(super) fn new(device: Arc<File>, queue: u16) -> Self {
        Self { device, queue }
    }

    /// Fetches the first request of a tag, whose data goes through `data`.
    pub(super) fn fetch(&self, engine: &mut Queue, data: &mut Data, tag: u16) {
        self.push(engine, data.address(tag), FETCH, tag, 0);
    }

    /// Completes a request, with a number of bytes or a negative error, and fetches the tag's next
    /// one.
    pub(super) fn commit(&self, engine: &mut Queue, data: &mut Data, tag: u16, result: i32) {
        self.push(engine, data.address(tag), COMMIT_AND_FETCH, tag, result);
    }

    /// The same for an append that was written at `sector`. We copy its data, so that no buffer
    /// address is needed.
    pub(super) fn commit_append(&self, engine: &mut Queue, sector: u64, tag: u16) {
        self.push(engine, sector, COMMIT_AND_FETCH, tag, 0);
    }

    fn push(&self, engine: &mut Queue, address: u64, operation: u32, tag: u16, result: i32) {
        let command = IoCommand { queue: self.queue, tag, result, address };
        let fd = types::Fd(self.device.as_raw_fd());
        let entry = opcode::UringCmd16::new(fd, operation).cmd(command.to_bytes()).build();
        let Some(mut ring) = engine.ring() else { return };
        // SAFETY: `queue::Server` drops its engine queue, and the ring with it, before the device;
        // and it leaks the data if a command is still in flight.
        unsafe { ring.push(entry.user_data(u64::from(tag))) };
    }
}

/// Takes the next completed command.
pub(super) fn next(engine: &mut Queue) -> Option<Fetched> {
    let completion = engine.ring()?.next()?;
    let result = completion.result;
    let result = if result < 0 { Err(Errno::from_raw_os_error(-result)) } else { Ok(()) };
    Some(Fetched { tag: completion.user_data as u16, result })
}
