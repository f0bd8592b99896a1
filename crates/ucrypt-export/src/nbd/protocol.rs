//! The numbers and wire layouts of the NBD protocol.
//!
//! Everything here is a pure function of bytes: no socket, no volume. The source is the protocol
//! description `doc/proto.md` of the `NetworkBlockDevice/nbd` project; names are its names with
//! the `NBD_` prefix dropped. All integers on the wire are big-endian.

/// First word of the server's greeting, ASCII `NBDMAGIC`.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second word of the greeting and first word of every option, ASCII `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First word of every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First word of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First word of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First word of a structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Longest string (export name, query, message) that the protocol allows, in bytes.
pub const STRING_BYTES_MAX: usize = 4096;
/// Largest payload of a read or a write, in bytes; the default that every client may assume.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// Bytes of a request without its payload.
pub const REQUEST_LEN: usize = 28;

/// Handshake flags, server to client.
pub mod handshake_flag {
    /// The server understands options.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The server can leave out the 124 zero bytes after `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Client flags, the client's answer to the handshake flags.
pub mod client_flag {
    /// The client understands replies to options.
    pub const FIXED_NEWSTYLE: u32 = 1 << 0;
    /// The client wants no zero bytes after `EXPORT_NAME`.
    pub const NO_ZEROES: u32 = 1 << 1;
}

/// Transmission flags: what the export can do.
pub mod transmission_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` is understood.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The command flag `FUA` is understood.
    pub const SEND_FUA: u16 = 1 << 3;
    /// `TRIM` is understood.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` and the command flag `NO_HOLE` are understood.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The command flag `DF` is understood; only with structured replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers the writes of all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// The command flag `FAST_ZERO` is understood.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Options of the handshake.
pub mod option {
    /// Choose an export and start transmission; no error can be returned.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Upgrade to TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Choose an export and start transmission.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List the metadata contexts of an export.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select the metadata contexts for `BLOCK_STATUS`.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub mod option_reply {
    /// Success, the last reply to an option.
    pub const ACK: u32 = 1;
    /// One export of a list.
    pub const SERVER: u32 = 2;
    /// One fact about an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The option is not known.
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    /// The server does not want to serve this client.
    pub const ERR_POLICY: u32 = (1 << 31) + 2;
    /// The option is malformed.
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    /// The export does not exist.
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    /// The option is too large to process.
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// Types of facts about an export.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The canonical name.
    pub const NAME: u16 = 1;
    /// A line for a human.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum size of a request.
    pub const BLOCK_SIZE: u16 = 3;
}

/// The commands of the transmission phase.
pub mod command {
    /// Read bytes.
    pub const READ: u16 = 0;
    /// Write bytes.
    pub const WRITE: u16 = 1;
    /// End the session.
    pub const DISC: u16 = 2;
    /// Make acknowledged writes durable.
    pub const FLUSH: u16 = 3;
    /// Give up the content of a range.
    pub const TRIM: u16 = 4;
    /// Write zeroes without a payload.
    pub const WRITE_ZEROES: u16 = 6;
    /// Ask what is allocated.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Command flags.
pub mod command_flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// Zeroes must be allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// One data chunk only.
    pub const DF: u16 = 1 << 2;
    /// One extent only.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Zero only if that is faster than writing.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Structured reply chunks.
pub mod chunk {
    /// Flag: the last chunk of a reply.
    pub const FLAG_DONE: u16 = 1 << 0;
    /// Type: nothing but the end.
    pub const NONE: u16 = 0;
    /// Type: an offset and the bytes from there.
    pub const OFFSET_DATA: u16 = 1;
    /// Type: a metadata context and its extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// Type: an error and a message.
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// The name of the only metadata context.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The identifier that stands for [`BASE_ALLOCATION`] in block status replies.
pub const BASE_ALLOCATION_ID: u32 = 1;
/// `base:allocation`: the range is not allocated.
pub const STATE_HOLE: u32 = 1 << 0;
/// `base:allocation`: the range reads as zeroes.
pub const STATE_ZERO: u32 = 1 << 1;

/// The error values of the protocol; the numbers are fixed, whatever the system's are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NbdError {
    /// The export is read-only, or the backend forbids it.
    Perm = 1,
    /// The backend failed.
    Io = 5,
    /// No memory.
    NoMem = 12,
    /// The request is malformed or outside the export.
    Inval = 22,
    /// The backend is full, or a write is outside the export.
    NoSpc = 28,
    /// A `FAST_ZERO` that would not be fast.
    NotSup = 95,
}

/// Reads a big-endian `u16` at `at`; `None` if there are too few bytes.
pub fn get_u16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b))
}

/// Reads a big-endian `u32` at `at`; `None` if there are too few bytes.
pub fn get_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_be_bytes(*b))
}

/// Reads a big-endian `u64` at `at`; `None` if there are too few bytes.
pub fn get_u64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|b| u64::from_be_bytes(*b))
}
