//! What goes into a queue and what comes out of it.

use ucrypt_backend::{Buf, Errno};

/// What a client wants of a volume, with the memory for it. Offsets and lengths in bytes of the volume.
#[derive(Debug)]
pub enum Io<'a> {
    /// Read and decrypt.
    Read {
        /// First byte.
        offset: u64,
        /// Where the plaintext goes, which also says how much of it.
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
    /// The range is no longer needed. Sectors that it covers only in part are left alone.
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
    },
}

/// Where a read's plaintext goes.
#[derive(Debug)]
pub enum ReadTo<'a> {
    /// To a buffer of the queue of so many bytes, which comes with the answer.
    Allocate(usize),
    /// To the client's own memory: the pieces one after the other. The answer carries no data. If the
    /// request fails, no ciphertext is left in foreign memory. The list is emptied when the request is
    /// accepted, and its memory belongs to the queue until the answer.
    Scattered(&'a mut Vec<Buf>),
}

/// Where a write's plaintext is.
#[derive(Debug)]
pub enum WriteFrom<'a> {
    /// In a buffer of the queue ([`Queue::alloc`](super::Queue::alloc)), which is encrypted in place.
    Owned(Buf),
    /// In memory that is free again when `submit` returns, and is never changed.
    Borrowed(&'a [u8]),
    /// In the client's own memory: the pieces one after the other. Their bytes may be read at any time
    /// until the answer, and are never changed. The list is emptied when the request is accepted.
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

    /// Writes what lies in the client's own memory.
    pub fn write_scattered(offset: u64, pieces: &'a mut Vec<Buf>, fua: bool) -> Self {
        Self::Write { offset, from: WriteFrom::Scattered(pieces), fua }
    }
}

/// Why a request was not accepted.
#[derive(Debug)]
pub enum Rejected<'a> {
    /// No room now: submit it again after the next answer.
    Busy(Io<'a>),
    /// It reaches beyond the end of the volume.
    OutOfRange,
    /// The volume is read-only.
    ReadOnly,
    /// The volume does not do this (discards that were not allowed).
    NotSupported,
    /// It needs more buffer memory than the queue has in all.
    TooLarge,
}

impl Rejected<'_> {
    /// What a block device says in this case; `None` if the request can be submitted again.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Busy(_) => None,
            Self::OutOfRange => Some(Errno::NOSPC),
            Self::ReadOnly => Some(Errno::ROFS),
            Self::NotSupported => Some(Errno::OPNOTSUPP),
            Self::TooLarge => Some(Errno::INVAL),
        }
    }
}

/// How one request ended.
#[derive(Debug)]
pub struct Done {
    /// The tag it was submitted with.
    pub tag: u64,
    /// Whether all of it was done.
    pub result: Result<(), Errno>,
    /// What was read, just the bytes that were asked for.
    pub data: Option<Buf>,
}
