//! Requests and answers of a queue.

use ucrypt_backend::{Buf, Errno};

use crate::meters::Kind;
use crate::zones::ZoneChange;

/// A request of a client, with the memory for it. Offsets and lengths are bytes of the volume.
#[derive(Debug)]
pub enum Io<'a> {
    /// Read and decrypt.
    Read {
        /// First byte.
        offset: u64,
        /// Destination of the plaintext, which also gives the length.
        to: ReadTo<'a>,
    },
    /// Encrypt and write.
    Write {
        /// First byte.
        offset: u64,
        /// The plaintext.
        from: WriteFrom<'a>,
        /// Durable before it is answered.
        fua: bool,
    },
    /// Make every answered write durable.
    Flush,
    /// The range is no longer needed. Sectors that the range covers only in part are left alone.
    Discard {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Durable before it is answered.
        fua: bool,
        /// The backend keeps the space allocated.
        no_unmap: bool,
        /// Fails with `EOPNOTSUPP` where the zeroes have to be written as data.
        fast: bool,
    },
    /// Changes the state of zones of a zoned device. The queue's thread waits for the device.
    Zones(ZoneChange),
}

/// The destination of a read's plaintext.
#[derive(Debug)]
pub enum ReadTo<'a> {
    /// A buffer of the queue with this many bytes; the answer carries it.
    Allocate(usize),
    /// The client's own memory, as pieces one after the other. The answer carries no data. If the
    /// request fails, no ciphertext is left in foreign memory. The list is emptied when the request
    /// is accepted; its memory belongs to the queue until the answer.
    Scattered(&'a mut Vec<Buf>),
}

/// The source of a write's plaintext.
#[derive(Debug)]
pub enum WriteFrom<'a> {
    /// A buffer of the queue ([`Queue::alloc`](super::Queue::alloc)), which is encrypted in place.
    Owned(Buf),
    /// Memory that the queue never changes, and no longer uses once `submit` returns.
    Borrowed(&'a [u8]),
    /// The client's own memory, as pieces one after the other. The queue may read them at any time
    /// until the answer, and never changes them. The list is emptied when the request is accepted.
    Scattered(&'a mut Vec<Buf>),
}

impl<'a> Io<'a> {
    /// Reads `len` bytes from `offset` into a buffer of the queue.
    pub fn read(offset: u64, len: usize) -> Self {
        Self::Read { offset, to: ReadTo::Allocate(len) }
    }

    /// Reads from `offset` into the client's own memory.
    pub fn read_into(offset: u64, pieces: &'a mut Vec<Buf>) -> Self {
        Self::Read { offset, to: ReadTo::Scattered(pieces) }
    }

    /// Writes a buffer of the queue.
    pub fn write(offset: u64, data: Buf, fua: bool) -> Self {
        Self::Write { offset, from: WriteFrom::Owned(data), fua }
    }

    /// Writes borrowed bytes.
    pub fn write_borrowed(offset: u64, data: &'a [u8], fua: bool) -> Self {
        Self::Write { offset, from: WriteFrom::Borrowed(data), fua }
    }

    /// Writes data that lies in the client's own memory.
    pub fn write_scattered(offset: u64, pieces: &'a mut Vec<Buf>, fua: bool) -> Self {
        Self::Write { offset, from: WriteFrom::Scattered(pieces), fua }
    }
}

impl Io<'_> {
    /// What it counts as.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Read { .. } => Kind::Read,
            Self::Write { .. } | Self::WriteZeroes { .. } => Kind::Write,
            Self::Flush => Kind::Flush,
            Self::Discard { .. } | Self::Zones(_) => Kind::Discard,
        }
    }

    /// Pieces of the client's own memory.
    pub(super) fn pieces(&self) -> usize {
        match self {
            Self::Read { to: ReadTo::Scattered(pieces), .. }
            | Self::Write { from: WriteFrom::Scattered(pieces), .. } => pieces.len(),
            _ => 0,
        }
    }
}

/// Why a request was not accepted.
#[derive(Debug)]
pub enum Rejected<'a> {
    /// No room now: submit the request again after the next answer.
    Busy(Io<'a>),
    /// The request reaches beyond the end of the volume.
    OutOfRange,
    /// The volume is read-only.
    ReadOnly,
    /// The volume does not support the operation (a discard where discards are not allowed, a change of
    /// zones where there are none).
    NotSupported,
    /// The request is longer than the queue has memory for, and than
    /// [`QueueConfig::request_max`](super::QueueConfig::request_max).
    TooLarge,
    /// The system has no memory for a long request.
    NoMemory,
}

impl Rejected<'_> {
    /// The error that a block device reports; `None` if the request can be submitted again.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Busy(_) => None,
            Self::OutOfRange => Some(Errno::NOSPC),
            Self::ReadOnly => Some(Errno::ROFS),
            Self::NotSupported => Some(Errno::OPNOTSUPP),
            Self::TooLarge => Some(Errno::INVAL),
            Self::NoMemory => Some(Errno::NOMEM),
        }
    }
}

/// How one request ended.
#[derive(Debug)]
pub struct Done {
    /// The tag that the request was submitted with.
    pub tag: u64,
    /// Success only if all of the request was done.
    pub result: Result<(), Errno>,
    /// The data read: exactly the bytes that were requested.
    pub data: Option<Buf>,
    /// Whether a worker encrypted or decrypted a part of it; otherwise the thread that has the queue did all of it.
    pub offloaded: bool,
}
