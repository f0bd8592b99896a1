//! The bytes between the kernel and a FUSE server: `include/uapi/linux/fuse.h`, protocol 7.
//!
//! Requests are parsed and answers are built here, for both transports. All integers are in the
//! machine's byte order. A newer kernel's structure may be longer than the part read here; a
//! shorter one is refused with `EINVAL`. Of each structure a few fields are needed, so reading them
//! one by one is shorter than declaring all of them for `zerocopy`.

use std::time::Duration;

use ucrypt_engine::Errno;

/// Major version of the protocol.
pub(super) const MAJOR: u32 = 7;
/// The minor version to use unless the kernel's is older: the first with FUSE over io_uring.
pub(super) const MINOR: u32 = 42;
/// The oldest supported minor version; from it on, all structures have the lengths used here.
pub(super) const MINOR_MIN: u32 = 23;

/// Bytes of `fuse_in_header`.
pub(super) const HEAD_LEN: usize = 40;
/// Bytes of `fuse_write_in`, which lies between the head and the data of a write.
pub(super) const WRITE_LEN: usize = 40;
/// Bytes of `fuse_out_header`.
pub(super) const ANSWER_LEN: usize = 16;
/// Bytes of the longest structure that is read: `fuse_setattr_in`.
pub(super) const ARGUMENTS_MAX: usize = 88;

/// Flags of INIT; bits 32 and up are in the second word.
pub(super) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    /// There is a second word of flags.
    pub(crate) const EXT: u64 = 1 << 30;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
}

/// Flags of the answer to OPEN.
const FOPEN_DIRECT_IO: u32 = 1 << 0;
const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

mod opcode {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const INIT: u32 = 26;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const DESTROY: u32 = 38;
    pub(super) const BATCH_FORGET: u32 = 42;
    pub(super) const FALLOCATE: u32 = 43;
}

/// Bits of `fuse_setattr_in.valid`.
const FATTR_MODE: u32 = 1 << 0;
const FATTR_UID: u32 = 1 << 1;
const FATTR_GID: u32 = 1 << 2;
const FATTR_SIZE: u32 = 1 << 3;
const FATTR_MTIME: u32 = 1 << 5;
const FATTR_MTIME_NOW: u32 = 1 << 8;

/// Reads the fields of a structure one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }
}

/// The head of every request: `fuse_in_header`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// Bytes of the whole request.
    pub(super) len: u32,
    pub(super) opcode: u32,
    /// Identifies the request in its answer.
    pub(super) unique: u64,
}

impl Head {
    /// `None`: too short.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes.get(..HEAD_LEN)?);
        Some(Self { len: fields.u32()?, opcode: fields.u32()?, unique: fields.u64()? })
    }
}

/// A new time for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Time {
    Now,
    /// Since the epoch.
    At(Duration),
}

/// What the kernel asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    Init {
        major: u32,
        minor: u32,
        readahead: u32,
        flags: u64,
    },
    Getattr,
    Setattr {
        /// The new length, if there is one.
        size: Option<u64>,
        /// Whether the mode or an owner is to change.
        ownership: bool,
        /// The new time of the last change, if there is one.
        modified: Option<Time>,
    },
    Open,
    /// The last descriptor of an open file was closed.
    Release,
    Read {
        offset: u64,
        size: u32,
    },
    Write {
        offset: u64,
        size: u32,
        /// `O_*` flags of the open file.
        flags: u32,
    },
    Statfs,
    Fsync,
    Fallocate {
        offset: u64,
        len: u64,
        mode: u32,
    },
    /// There is nothing to do; the answer is success.
    Nothing,
    /// No answer is wanted.
    Silent,
}

impl Request {
    /// `arguments`: what follows the head, at least the first [`ARGUMENTS_MAX`] bytes if there are
    /// as many.
    ///
    /// # Errors
    /// The error to answer: `ENOSYS` for an unknown request, which the kernel then does without.
    pub(super) fn parse(opcode: u32, arguments: &[u8]) -> Result<Self, Errno> {
        let mut fields = Fields(arguments);
        let parsed = match opcode {
            opcode::INIT => Self::init(&mut fields),
            opcode::GETATTR => Some(Self::Getattr),
            opcode::SETATTR => Self::setattr(&mut fields),
            opcode::OPEN => Some(Self::Open),
            opcode::READ => Self::transfer(&mut fields)
                .map(|Transfer { offset, size, .. }| Self::Read { offset, size }),
            opcode::WRITE => Self::transfer(&mut fields)
                .map(|Transfer { offset, size, flags }| Self::Write { offset, size, flags }),
            opcode::STATFS => Some(Self::Statfs),
            opcode::FSYNC => Some(Self::Fsync),
            opcode::FALLOCATE => Self::fallocate(&mut fields),
            opcode::DESTROY => Some(Self::Nothing),
            opcode::RELEASE => Some(Self::Release),
            // An interrupt is ignored: requests end by themselves, or wait for the key of a suspended
            // volume as those of a suspended disk do. The program ends after that.
            opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => Some(Self::Silent),
            opcode::LOOKUP => return Err(Errno::NOTDIR),
            // FLUSH, too: a close(2) promises nothing about durability. The kernel asks once, and from then on
            // closes without: a program whose server stands still can close its file, and run another
            // program, which closes files as well.
            _ => return Err(Errno::NOSYS),
        };
        parsed.ok_or(Errno::INVAL)
    }

    fn init(fields: &mut Fields<'_>) -> Option<Self> {
        let (major, minor) = (fields.u32()?, fields.u32()?);
        let (readahead, low) = (fields.u32()?, u64::from(fields.u32()?));
        let high = if low & init::EXT != 0 { u64::from(fields.u32()?) } else { 0 };
        Some(Self::Init { major, minor, readahead, flags: high << 32 | low })
    }

    fn setattr(fields: &mut Fields<'_>) -> Option<Self> {
        let (valid, _, _) = (fields.u32()?, fields.u32()?, fields.u64()?);
        let (size, _lock_owner) = (fields.u64()?, fields.u64()?);
        let (_accessed, modified, _changed) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let (_accessed_ns, modified_ns) = (fields.u32()?, fields.u32()?);
        // Times before the epoch are negative; they become the epoch.
        let seconds = i64::from_ne_bytes(modified.to_ne_bytes()).max(0).cast_unsigned();
        let modified = match (valid & FATTR_MTIME != 0, valid & FATTR_MTIME_NOW != 0) {
            (false, _) => None,
            (true, true) => Some(Time::Now),
            // A second has fewer nanoseconds than this, whatever the kernel says.
            (true, false) => Some(Time::At(Duration::new(seconds, modified_ns % 1_000_000_000))),
        };
        Some(Self::Setattr {
            size: (valid & FATTR_SIZE != 0).then_some(size),
            ownership: valid & (FATTR_MODE | FATTR_UID | FATTR_GID) != 0,
            modified,
        })
    }

    /// `fuse_read_in` and `fuse_write_in`.
    fn transfer(fields: &mut Fields<'_>) -> Option<Transfer> {
        let (_, offset) = (fields.u64()?, fields.u64()?);
        let (size, _, _) = (fields.u32()?, fields.u32()?, fields.u64()?);
        Some(Transfer { offset, size, flags: fields.u32()? })
    }

    fn fallocate(fields: &mut Fields<'_>) -> Option<Self> {
        let (_, offset, len) = (fields.u64()?, fields.u64()?, fields.u64()?);
        Some(Self::Fallocate { offset, len, mode: fields.u32()? })
    }
}

struct Transfer {
    offset: u64,
    size: u32,
    flags: u32,
}

/// Bytes of the longest structure of an answer: `fuse_attr_out`.
const BODY_MAX: usize = 104;

/// The structure behind the head of an answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Body {
    bytes: [u8; BODY_MAX],
    len: usize,
}

impl Body {
    pub(super) const EMPTY: Self = Self { bytes: [0; BODY_MAX], len: 0 };

    fn put(mut self, field: &[u8]) -> Self {
        self.bytes[self.len..self.len + field.len()].copy_from_slice(field);
        self.len += field.len();
        self
    }

    fn u16(self, value: u16) -> Self {
        self.put(&value.to_ne_bytes())
    }

    fn u32(self, value: u32) -> Self {
        self.put(&value.to_ne_bytes())
    }

    fn u64(self, value: u64) -> Self {
        self.put(&value.to_ne_bytes())
    }

    /// `count` bytes of zeroes.
    fn zeroes(mut self, count: usize) -> Self {
        self.len += count;
        self
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// `fuse_init_out`.
    pub(super) fn init(answer: &InitAnswer) -> Self {
        let InitAnswer { minor, readahead, flags, background_max, request_max, page } = *answer;
        Self::EMPTY
            .u32(MAJOR)
            .u32(minor)
            .u32(readahead)
            .u32(flags as u32)
            .u16(background_max)
            // The congestion threshold: three quarters.
            .u16(background_max / 4 * 3)
            .u32(request_max)
            // Granularity of times, in nanoseconds.
            .u32(1)
            // In pages of the kernel, which may be larger than the usual ones.
            .u16((request_max / page).max(1) as u16)
            .u16(0)
            .u32((flags >> 32) as u32)
            .zeroes(28)
    }

    /// `fuse_attr_out`. The kernel must not cache it: without its knowledge the size may change, and
    /// other exports may change the content.
    pub(super) fn attr(attr: &Attr) -> Self {
        let Attr { size, time, mode, uid, gid, block } = *attr;
        let (stamp, nanoseconds) = (time.as_secs(), time.subsec_nanos());
        let body = Self::EMPTY.u64(0).u32(0).u32(0);
        // Inode 1 is the root; times of access, of change and of the inode's change.
        let body = body.u64(1).u64(size).u64(size.div_ceil(512)).u64(stamp).u64(stamp).u64(stamp);
        let body = body.u32(nanoseconds).u32(nanoseconds).u32(nanoseconds);
        // One link, no device number, no flags.
        body.u32(mode).u32(1).u32(uid).u32(gid).u32(0).u32(block).u32(0)
    }

    /// `fuse_open_out`: no page cache of plaintext, and writes that do not wait for each other.
    pub(super) fn open() -> Self {
        Self::EMPTY.u64(0).u32(FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES).u32(0)
    }

    /// `fuse_write_out`.
    pub(super) fn written(bytes: u32) -> Self {
        Self::EMPTY.u32(bytes).u32(0)
    }

    /// `fuse_statfs_out`: a file system with blocks of `block` bytes that reports no space.
    pub(super) fn statfs(block: u32) -> Self {
        Self::EMPTY.zeroes(40).u32(block).u32(255).u32(block).zeroes(28)
    }
}

/// The server's answer to INIT.
#[derive(Debug, Clone, Copy)]
pub(super) struct InitAnswer {
    pub(super) minor: u32,
    pub(super) readahead: u32,
    pub(super) flags: u64,
    /// Requests that the kernel keeps waiting for the server.
    pub(super) background_max: u16,
    /// Bytes of the largest request, a multiple of `page`.
    pub(super) request_max: u32,
    /// Bytes of a page of the kernel.
    pub(super) page: u32,
}

/// Attributes of the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attr {
    /// Bytes.
    pub(super) size: u64,
    /// Since the epoch.
    pub(super) time: Duration,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Bytes that are best read or written together.
    pub(super) block: u32,
}

/// The head of an answer, `fuse_out_header`, before `len` bytes of a body.
pub(super) fn answer_head(unique: u64, error: Option<Errno>, len: usize) -> [u8; ANSWER_LEN] {
    let mut head = [0; ANSWER_LEN];
    head[..4].copy_from_slice(&((ANSWER_LEN + len) as u32).to_ne_bytes());
    head[4..8].copy_from_slice(&error.map_or(0, |error| -error.raw_os_error()).to_ne_bytes());
    head[8..].copy_from_slice(&unique.to_ne_bytes());
    head
}

/// FUSE over io_uring: `fuse_uring_req_header` and `fuse_uring_cmd_req`.
pub(super) mod ring {
    use super::{ANSWER_LEN, Fields, HEAD_LEN, Head};

    /// The commands that give the kernel an entry, and that answer a request and wait for the next.
    pub(crate) const REGISTER: u32 = 1;
    pub(crate) const COMMIT_AND_FETCH: u32 = 2;

    /// Bytes of `fuse_uring_req_header`.
    pub(crate) const HEADS_LEN: usize = 288;

    /// The head of a request or an answer is at the start; the other parts are at these offsets.
    const ARGUMENTS_AT: usize = 128;
    const ENTRY_AT: usize = 256;

    /// A request in an entry.
    #[derive(Debug, PartialEq, Eq)]
    pub(crate) struct Arrived<'a> {
        pub(crate) head: Head,
        pub(crate) arguments: &'a [u8],
        /// Identifies the request in the command that answers it.
        pub(crate) commit: u64,
        /// Bytes of the payload.
        pub(crate) payload: usize,
    }

    /// `None`: lengths that contradict each other.
    pub(crate) fn parse(heads: &[u8]) -> Option<Arrived<'_>> {
        let head = Head::parse(heads)?;
        let mut entry = Fields(heads.get(ENTRY_AT..HEADS_LEN)?);
        let (_flags, commit, payload) = (entry.u64()?, entry.u64()?, entry.u32()? as usize);
        let len = (head.len as usize).checked_sub(HEAD_LEN)?.checked_sub(payload)?;
        // Nothing here reads longer arguments (names).
        let arguments = &heads[ARGUMENTS_AT..ARGUMENTS_AT + len.min(ENTRY_AT - ARGUMENTS_AT)];
        Some(Arrived { head, arguments, commit, payload })
    }

    /// Puts the head of an answer into an entry whose payload is `len` bytes of it.
    pub(crate) fn put_answer(heads: &mut [u8], head: &[u8; ANSWER_LEN], len: usize) {
        heads[..ANSWER_LEN].copy_from_slice(head);
        heads[ENTRY_AT..HEADS_LEN].fill(0);
        heads[ENTRY_AT + 16..ENTRY_AT + 20].copy_from_slice(&(len as u32).to_ne_bytes());
    }

    /// The data of a command, beside its code.
    pub(crate) fn command(commit: u64, queue: u16) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[8..16].copy_from_slice(&commit.to_ne_bytes());
        bytes[16..18].copy_from_slice(&queue.to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every opcode whose arguments are parsed, with the bytes that it needs.
    const LENGTHS: [(u32, usize); 5] = [
        (opcode::INIT, 16),
        (opcode::SETATTR, 64),
        (opcode::READ, 36),
        (opcode::WRITE, 36),
        (opcode::FALLOCATE, 28),
    ];

    #[test]
    fn arguments_that_are_too_short_are_refused() {
        for (opcode, needed) in LENGTHS {
            let bytes = vec![0; needed];
            assert!(Request::parse(opcode, &bytes).is_ok(), "{opcode}");
            for len in 0..needed {
                assert_eq!(Request::parse(opcode, &bytes[..len]), Err(Errno::INVAL), "{opcode}");
            }
        }
        // With the second word of flags announced, it has to be there.
        let mut bytes = [0; 20];
        bytes[12..16].copy_from_slice(&(init::EXT as u32).to_ne_bytes());
        assert!(Request::parse(opcode::INIT, &bytes).is_ok());
        assert_eq!(Request::parse(opcode::INIT, &bytes[..19]), Err(Errno::INVAL));
        assert_eq!(Head::parse(&[0; HEAD_LEN - 1]), None);
    }

    #[test]
    fn requests_have_the_layout_of_the_kernel_header() {
        let mut bytes: Vec<u8> = (0..88).collect();
        let u32_at = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| (at + i) as u8));
        let u64_at = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| (at + i) as u8));
        let head = Head { len: u32_at(0), opcode: u32_at(4), unique: u64_at(8) };
        assert_eq!(Head::parse(&bytes), Some(head));
        let (offset, size, flags) = (u64_at(8), u32_at(16), u32_at(32));
        let read = Request::parse(opcode::READ, &bytes);
        assert_eq!(read, Ok(Request::Read { offset, size }));
        let write = Request::parse(opcode::WRITE, &bytes);
        assert_eq!(write, Ok(Request::Write { offset, size, flags }));
        let fallocate = Request::Fallocate { offset, len: u64_at(16), mode: u32_at(24) };
        assert_eq!(Request::parse(opcode::FALLOCATE, &bytes), Ok(fallocate));
        bytes[..4].copy_from_slice(&FATTR_SIZE.to_ne_bytes());
        let size = Some(u64_at(16));
        let setattr = Request::Setattr { size, ownership: false, modified: None };
        assert_eq!(Request::parse(opcode::SETATTR, &bytes), Ok(setattr));
        bytes[..4].copy_from_slice(&(FATTR_MTIME | FATTR_MODE).to_ne_bytes());
        let at = Duration::new(u64_at(40), u32_at(60) % 1_000_000_000);
        let modified = Some(Time::At(at));
        let setattr = Request::Setattr { size: None, ownership: true, modified };
        assert_eq!(Request::parse(opcode::SETATTR, &bytes), Ok(setattr));
    }

    #[test]
    fn answers_have_the_lengths_of_the_kernel_header() {
        let attr = Attr {
            size: 1,
            time: Duration::from_secs(1),
            mode: 0o100_600,
            uid: 0,
            gid: 0,
            block: 4096,
        };
        assert_eq!(Body::attr(&attr).bytes().len(), 104);
        assert_eq!(Body::open().bytes().len(), 16);
        assert_eq!(Body::written(1).bytes().len(), 8);
        assert_eq!(Body::statfs(512).bytes().len(), 80);
        let answer = InitAnswer {
            minor: MINOR,
            readahead: 0,
            flags: u64::MAX,
            background_max: 8,
            request_max: 1 << 20,
            page: 4096,
        };
        assert_eq!(Body::init(&answer).bytes().len(), 64);
        // A read is no longer than was said: the kernel counts in its own pages (arm64: 4, 16 or 64 KiB).
        for page in [4, 16, 64].map(|kib: u32| kib << 10) {
            let body = Body::init(&InitAnswer { page, ..answer });
            let pages = u16::from_ne_bytes([body.bytes()[28], body.bytes()[29]]);
            assert_eq!(u32::from(pages) * page, 1 << 20, "pages of {page} bytes");
        }
        let head = answer_head(7, Some(Errno::IO), 0);
        assert_eq!(head[4..8], (-5i32).to_ne_bytes());
        assert_eq!(head[..4], 16u32.to_ne_bytes());
    }

    #[test]
    fn a_ring_request_has_the_lengths_that_its_head_says() {
        let mut heads = [0; 4096];
        let put = |heads: &mut [u8], at: usize, value: u32| {
            heads[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        };
        put(&mut heads, 0, 40 + 40 + 4096);
        put(&mut heads, 4, opcode::WRITE);
        put(&mut heads, 8, 77);
        put(&mut heads, 128 + 16, 4096);
        put(&mut heads, 264, 78);
        put(&mut heads, 272, 4096);
        let arrived = ring::parse(&heads).expect("a request");
        assert_eq!((arrived.head.unique, arrived.commit, arrived.payload), (77, 78, 4096));
        assert_eq!(arrived.arguments.len(), WRITE_LEN);
        let request = Request::parse(arrived.head.opcode, arrived.arguments);
        assert_eq!(request, Ok(Request::Write { offset: 0, size: 4096, flags: 0 }));
        // Shorter than payload and head together, then longer than there is room for.
        for len in [0, 39, 40, 40 + 4095] {
            put(&mut heads, 0, len);
            assert_eq!(ring::parse(&heads), None, "{len}");
        }
        put(&mut heads, 0, u32::MAX);
        assert_eq!(ring::parse(&heads).map(|arrived| arrived.arguments.len()), Some(128));
        assert_eq!(ring::parse(&heads[..ring::HEADS_LEN - 1]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_an_error(opcode in 0u32..64, bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let head = Head::parse(&bytes);
            prop_assert_eq!(head.is_some(), bytes.len() >= HEAD_LEN);
            if let Err(error) = Request::parse(opcode, &bytes) {
                prop_assert!([Errno::INVAL, Errno::NOSYS, Errno::NOTDIR].contains(&error));
            }
        }
    }
}
