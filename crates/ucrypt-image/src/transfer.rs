//! Runs of bytes into and out of a volume, with several requests in flight.
//!
//! After an error, requests may still be under way: drop the queue.

use std::io;
use std::ops::Range;

use ucrypt_engine::{Buf, Done, Errno, Io, Queue, QueueConfig, Rejected};

/// Bytes of the longest request.
pub const CHUNK: usize = 1 << 20;

/// Requests in flight.
pub const DEPTH: u32 = 8;

/// A queue for one long transfer, with memory for all its requests.
pub const QUEUE: QueueConfig = QueueConfig::new((DEPTH as usize + 2) * CHUNK * 2, DEPTH);

/// Why a transfer ended early.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The image answers no more.
    #[error("the image cannot be used any longer: {0}")]
    Broken(io::Error),
    /// The image failed a request.
    #[error("{what} of the volume at byte {offset} failed: {error}")]
    Failed {
        /// The kind of request.
        what: &'static str,
        /// Its first byte in the volume.
        offset: u64,
        /// The system's error.
        error: Errno,
    },
    /// The volume is read-only.
    #[error("the volume is read-only; open it without --readonly")]
    ReadOnly,
    /// The volume refused a request.
    #[error("the volume refused the request: {error}")]
    Refused {
        /// The kind of request.
        what: &'static str,
        /// What a block device would report.
        error: Errno,
    },
}

fn refused(what: &'static str, rejected: &Rejected<'_>) -> TransferError {
    match rejected {
        Rejected::ReadOnly => TransferError::ReadOnly,
        // Nothing is in flight, so waiting would free nothing.
        Rejected::Busy(_) => TransferError::Refused { what, error: Errno::NOMEM },
        other => TransferError::Refused { what, error: other.errno().unwrap_or(Errno::IO) },
    }
}

/// Takes the next answer that is there; fails if its request did.
fn taken(queue: &mut Queue, what: &'static str) -> Result<Option<Done>, TransferError> {
    let Some(done) = queue.next_done() else { return Ok(None) };
    match done.result {
        Ok(()) => Ok(Some(done)),
        Err(error) => Err(TransferError::Failed { what, offset: done.tag, error }),
    }
}

/// Reads the bytes in `range` of the volume. `take` gets each piece with its offset, in any order; what
/// it keeps of them, the queue has less memory for.
pub fn read<E: From<TransferError>>(
    queue: &mut Queue,
    range: Range<u64>,
    mut take: impl FnMut(u64, Buf) -> Result<(), E>,
) -> Result<(), E> {
    const WHAT: &str = "read";
    let mut next = range.start;
    loop {
        while next < range.end {
            let len = (range.end - next).min(CHUNK as u64) as usize;
            match queue.submit(next, Io::read(next, len)) {
                Ok(()) => next += len as u64,
                Err(Rejected::Busy(_)) if queue.in_flight() > 0 => break,
                Err(rejected) => return Err(refused(WHAT, &rejected).into()),
            }
        }
        if queue.in_flight() == 0 {
            return Ok(());
        }
        queue.wait().map_err(TransferError::Broken)?;
        while let Some(Done { tag: offset, data, .. }) = taken(queue, WHAT)? {
            data.map_or(Ok(()), |data| take(offset, data))?;
        }
    }
}

/// Writes to the volume from one byte on.
pub struct Writer<'a> {
    queue: &'a mut Queue,
    next: u64,
}

impl<'a> Writer<'a> {
    const WHAT: &'static str = "write";

    /// Begins at byte `offset` of the volume.
    pub fn new(queue: &'a mut Queue, offset: u64) -> Self {
        Self { queue, next: offset }
    }

    /// Where the next byte goes.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// A buffer of [`CHUNK`] bytes to fill. Waits for memory.
    pub fn alloc(&mut self) -> Result<Buf, TransferError> {
        loop {
            if let Some(buf) = self.queue.alloc(CHUNK) {
                return Ok(buf);
            }
            if self.queue.in_flight() == 0 {
                return Err(TransferError::Refused { what: Self::WHAT, error: Errno::NOMEM });
            }
            self.settle()?;
        }
    }

    /// Writes a buffer of the queue. Returns before it is written.
    pub fn put(&mut self, data: Buf) -> Result<(), TransferError> {
        let len = data.len();
        self.submit(Io::write(self.next, data, false), len)
    }

    /// Writes `data`, which is no longer used when this returns, before it is all written.
    pub fn put_borrowed(&mut self, data: &[u8]) -> Result<(), TransferError> {
        for piece in data.chunks(CHUNK) {
            self.submit(Io::write_borrowed(self.next, piece, false), piece.len())?;
        }
        Ok(())
    }

    /// Waits until everything is written. It is not durable then.
    pub fn finish(mut self) -> Result<(), TransferError> {
        while self.queue.in_flight() > 0 {
            self.settle()?;
        }
        Ok(())
    }

    fn submit(&mut self, mut io: Io<'_>, len: usize) -> Result<(), TransferError> {
        loop {
            io = match self.queue.submit(self.next, io) {
                Ok(()) => break,
                Err(Rejected::Busy(io)) if self.queue.in_flight() > 0 => io,
                Err(rejected) => return Err(refused(Self::WHAT, &rejected)),
            };
            self.settle()?;
        }
        self.next += len as u64;
        self.queue.poll().map_err(TransferError::Broken)
    }

    /// Waits for a completion and takes all that are there.
    fn settle(&mut self) -> Result<(), TransferError> {
        self.queue.wait().map_err(TransferError::Broken)?;
        while taken(self.queue, Self::WHAT)?.is_some() {}
        Ok(())
    }
}

/// Has one request carried out, and waits for it. `what` names it in errors; `offset` is where it is.
/// Nothing else may be in flight.
pub fn one(
    queue: &mut Queue,
    what: &'static str,
    offset: u64,
    io: Io<'_>,
) -> Result<Option<Buf>, TransferError> {
    queue.submit(offset, io).map_err(|rejected| refused(what, &rejected))?;
    loop {
        queue.wait().map_err(TransferError::Broken)?;
        if let Some(done) = taken(queue, what)? {
            return Ok(done.data);
        }
    }
}
