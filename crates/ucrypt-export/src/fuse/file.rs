//! The one file: its attributes and its data.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::OFlags;
use ucrypt_engine::{Buf, Op, Queue, QueueConfig, Rejected, Volume};

/// Largest request, in bytes: what the kernel allows without privileges.
const REQUEST_MAX: u32 = 1 << 20;

/// Requests that the kernel keeps waiting for us.
const BACKGROUND_MAX: u16 = 256;

/// One thread serves one request at a time: twice the largest, for unaligned ones.
const QUEUE: QueueConfig = QueueConfig { memory: 4 << 20, depth: 4 };

/// The attributes never change.
const ATTR_TTL: Duration = Duration::from_secs(3600);

/// Longest range that a hole punched into the file may have. Plaintext zeroes are data to the
/// backend: `mkfs` punching a whole volume would write all of it. It goes on without.
const PUNCH_MAX: u64 = 64 << 20;

const FALLOC_KEEP_SIZE: i32 = 1;
const FALLOC_PUNCH_HOLE: i32 = 2;
const FALLOC_ZERO_RANGE: i32 = 16;

pub(super) struct VolumeFile {
    volume: Arc<Volume>,
    attr: FileAttr,
}

thread_local! {
    /// The queue of a serving thread. The threads belong to one session, and end with it.
    static QUEUE_HERE: RefCell<Option<Queue>> = const { RefCell::new(None) };
}

impl VolumeFile {
    pub(super) fn new(volume: Arc<Volume>) -> Self {
        let info = volume.info();
        let now = SystemTime::now();
        let attr = FileAttr {
            ino: INodeNo::ROOT,
            size: info.len,
            blocks: info.len.div_ceil(512),
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            kind: FileType::RegularFile,
            perm: if info.read_only { 0o400 } else { 0o600 },
            nlink: 1,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            rdev: 0,
            blksize: info.preferred_io,
            flags: 0,
        };
        Self { volume, attr }
    }

    /// Runs one request on this thread's queue and waits for its end.
    fn run(
        &self,
        submit: impl FnOnce(&mut Queue) -> Result<(), Rejected>,
    ) -> Result<Option<Buf>, Errno> {
        QUEUE_HERE.with_borrow_mut(|here| {
            let queue = match here {
                Some(queue) => queue,
                None => here.insert(self.volume.queue(QUEUE).map_err(|_| Errno::ENOMEM)?),
            };
            submit(queue).map_err(|rejected| refusal(&rejected))?;
            let done = queue.wait().map(|()| queue.next_done());
            let Ok(Some(done)) = done else {
                // The backend's queue is broken; the next request starts a new one.
                *here = None;
                return Err(Errno::EIO);
            };
            done.result.map_err(|error| Errno::from_i32(error.raw_os_error()))?;
            Ok(done.data)
        })
    }

    fn zero(&self, offset: u64, len: u64, mode: i32) -> Result<(), Errno> {
        let end = offset.saturating_add(len);
        if mode & FALLOC_KEEP_SIZE == 0 && end > self.attr.size {
            return Err(Errno::ENOSPC);
        }
        let no_unmap = match mode & !FALLOC_KEEP_SIZE {
            // Space cannot be reserved in an image that may have holes.
            0 => return Ok(()),
            FALLOC_PUNCH_HOLE if len > PUNCH_MAX && !self.volume.info().fast_write_zeroes => {
                return Err(Errno::EOPNOTSUPP);
            }
            FALLOC_PUNCH_HOLE => false,
            FALLOC_ZERO_RANGE => true,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        // As for a file: what lies behind its end is not there to be zeroed.
        let len = len.min(self.attr.size.saturating_sub(offset));
        self.run(|queue| queue.submit(0, Op::WriteZeroes { offset, len, fua: false, no_unmap }))?;
        Ok(())
    }
}

fn refusal(rejected: &Rejected) -> Errno {
    match rejected {
        Rejected::ReadOnly => Errno::EROFS,
        // What a block device says to a write behind its end.
        Rejected::OutOfRange => Errno::ENOSPC,
        Rejected::NotSupported => Errno::EOPNOTSUPP,
        Rejected::TooLarge => Errno::EINVAL,
        Rejected::Busy(_) | Rejected::BusyBorrowed => Errno::EAGAIN,
    }
}

fn answer(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for VolumeFile {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Refused values come back as the nearest that is accepted: take that one.
        if let Err(nearest) = config.set_max_write(REQUEST_MAX) {
            let _ = config.set_max_write(nearest);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        let _ = config.set_congestion_threshold(BACKGROUND_MAX / 4 * 3);
        // Each by itself: an old kernel lacks some of them, and the file works without.
        for flag in [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ] {
            let _ = config.add_capabilities(flag);
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, _: &std::ffi::OsStr, reply: ReplyEntry) {
        reply.error(Errno::ENOTDIR);
    }

    fn getattr(&self, _: &Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&ATTR_TTL, &self.attr);
    }

    fn setattr(
        &self,
        _: &Request,
        _: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // A disk keeps its size; who may use it was decided by who opened it.
        if size.is_some_and(|size| size != self.attr.size) {
            reply.error(Errno::EINVAL);
        } else if mode.is_some() || uid.is_some() || gid.is_some() {
            reply.error(Errno::EPERM);
        } else {
            reply.attr(&ATTR_TTL, &self.attr);
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // No page cache of decrypted data, and writes do not wait for each other.
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // As for a file: a read ends where the file does.
        let len = u64::from(size).min(self.attr.size.saturating_sub(offset)) as usize;
        if len == 0 {
            return reply.data(&[]);
        }
        match self.run(|queue| queue.submit(0, Op::Read { offset, len })) {
            Ok(Some(data)) => reply.data(&data),
            Ok(None) => reply.error(Errno::EIO),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // As for a block device: what fits is written, behind the end there is no space.
        let room = self.attr.size.saturating_sub(offset).min(data.len() as u64) as usize;
        if room == 0 && !data.is_empty() {
            return reply.error(Errno::ENOSPC);
        }
        let fua = flags.0 & OFlags::DSYNC.bits().cast_signed() != 0;
        match self.run(|queue| queue.write_from(0, offset, &data[..room], fua)) {
            Ok(_) => reply.written(room as u32),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Called at each close(2), which promises nothing about durability.
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer(reply, self.run(|queue| queue.submit(0, Op::Flush)).map(drop));
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        answer(reply, self.zero(offset, length, mode));
    }
}
