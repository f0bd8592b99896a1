//! Requests of clients, and the backend operations that they cause.

/// The operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Read and decrypt.
    Read,
    /// Encrypt and write; `fua`: durable before it finishes.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Encrypt and write sectors whose plaintext is zero, where the backend cannot write the zeroes
    /// (it would store zeroes as ciphertext).
    EncryptZeroes {
        /// Force unit access.
        fua: bool,
    },
    /// Make every finished write durable.
    Flush,
    /// Tell the backend that the content is no longer needed.
    Discard,
    /// Have the backend write zeroes itself (no cipher in between).
    BackendZeroes,
}

impl Op {
    pub(crate) fn is_write(self) -> bool {
        matches!(self, Self::Write { .. } | Self::EncryptZeroes { .. })
    }

    pub(crate) fn is_fua(self) -> bool {
        matches!(self, Self::Write { fua: true } | Self::EncryptZeroes { fua: true })
    }
}

/// How urgently a client waits for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Urgency {
    /// The client polls: never offloaded.
    Urgent,
    /// An ordinary request.
    #[default]
    Normal,
    /// Read-ahead or idle priority: left to workers.
    Background,
}

/// One request, in 512-byte sectors of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The operation.
    pub op: Op,
    /// First sector, in units of 512 bytes. 0 for a flush.
    pub sector: u64,
    /// Number of 512-byte sectors, at least 1. 0 for a flush.
    pub sectors: u64,
    /// How urgently the client waits.
    pub urgency: Urgency,
}

/// The backend operation of a `SubmitIo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoKind {
    /// Read the chunk's ciphertext.
    Read,
    /// Write the chunk's ciphertext; durable if `fua`.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Flush the backend.
    Flush,
    /// Discard the chunk's sectors.
    Discard,
    /// Write zeroes to the chunk's sectors.
    Zeroes,
}

impl From<Op> for IoKind {
    fn from(op: Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Write { fua } | Op::EncryptZeroes { fua } => Self::Write { fua },
            Op::Flush => Self::Flush,
            Op::Discard => Self::Discard,
            Op::BackendZeroes => Self::Zeroes,
        }
    }
}
