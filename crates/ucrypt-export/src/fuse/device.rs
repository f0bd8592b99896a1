//! The classic way between kernel and server: a read(2) of `/dev/fuse` takes one request, a
//! write(2) answers one.

#![expect(unsafe_code, reason = "an ioctl, by which threads get descriptors of their own")]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, readv, writev};
use rustix::ioctl;

use super::abi::{
    self, ANSWER_LEN, ARGUMENTS_MAX, Body, HEAD_LEN, Head, InitAnswer, Request, WRITE_LEN, init,
};
use super::mount::DEVICE;
use rustix::param::page_size;

/// Bytes before the data of a write.
pub(super) const FRONT_LEN: usize = HEAD_LEN + WRITE_LEN;

/// Requests that the kernel keeps waiting for us.
const BACKGROUND_MAX: u16 = 256;

/// Bytes that the kernel wants offered for a request before it knows the server's own limit.
const FIRST_BUFFER: usize = 64 << 10;

/// How long to wait until the kernel may have room for an answer.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(1);

/// One descriptor of a connection.
#[derive(Debug)]
pub(super) struct Device(OwnedFd);

/// What the server asks for. Without effect if the kernel does not support it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// Requests come by io_uring.
    pub(super) ring: bool,
    /// Programs may map the file shared; the kernel then caches it.
    pub(super) shared_mappings: bool,
}

/// The kernel's first request.
#[derive(Debug)]
pub(super) struct FirstRequest {
    unique: u64,
    minor: u32,
    readahead: u32,
    flags: u64,
}

impl FirstRequest {
    /// Whether the kernel can send requests by io_uring.
    pub(super) fn offers_rings(&self) -> bool {
        self.flags & init::OVER_IO_URING != 0
    }
}

/// What a read brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// A request of this many bytes.
    Bytes(usize),
    /// Nothing now. Try again, after waiting if the descriptor does not block.
    Nothing,
    /// The file system is no longer mounted.
    Gone,
}

impl Device {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Another descriptor, for another thread. Where the kernel can, it separates the requests of
    /// the two descriptors, so that neither thread is in the other's way.
    pub(super) fn another(&self) -> io::Result<Self> {
        match self.separate() {
            Some(separate) => Ok(separate),
            None => Ok(Self(rustix::io::fcntl_dupfd_cloexec(&self.0, 3)?)),
        }
    }

    /// Another descriptor of the same connection, with flags of its own. An answer must go to the
    /// descriptor that its request came by.
    pub(super) fn separate(&self) -> Option<Self> {
        const CLONE: ioctl::Opcode = ioctl::opcode::read::<u32>(229, 0);
        let new = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let number = self.0.as_raw_fd().cast_unsigned();
        // SAFETY: FUSE_DEV_IOC_CLONE reads one 32-bit descriptor number.
        let cloned = unsafe { ioctl::ioctl(&new, ioctl::Setter::<CLONE, u32>::new(number)) };
        cloned.is_ok().then_some(Self(new))
    }

    /// Whether the kernel still sends requests: what is served is still mounted somewhere, or open.
    pub(super) fn is_connected(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // The kernel reports an error of each descriptor of a connection that has ended.
        poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().is_empty()
    }

    /// From now on reads do not wait for a request.
    pub(super) fn set_nonblocking(&self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.0)?;
        Ok(rustix::fs::fcntl_setfl(&self.0, flags | OFlags::NONBLOCK)?)
    }

    /// Receives a request into `front`, then `data`. Together they must hold 8 KiB, and the largest
    /// negotiated write.
    pub(super) fn receive(&self, front: &mut [u8; FRONT_LEN], data: &mut [u8]) -> Received {
        let mut parts = [IoSliceMut::new(front), IoSliceMut::new(data)];
        match readv(&self.0, &mut parts) {
            Ok(count) => Received::Bytes(count),
            // The request was given up while it was copied; a signal; or there is no request.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => Received::Nothing,
            // There was no memory to copy the request to: the kernel has failed it, and goes on.
            Err(Errno::NOMEM | Errno::FAULT) if self.is_connected() => {
                std::thread::sleep(NO_ROOM_PAUSE);
                Received::Nothing
            }
            Err(_) => Received::Gone,
        }
    }

    /// Answers a request. Ignores errors: the kernel may have given the request up meanwhile. What it has no room for
    /// now is sent later: without an answer the request never ends.
    pub(super) fn answer(&self, head: &[u8; ANSWER_LEN], body: &[u8]) {
        loop {
            match writev(&self.0, &[IoSlice::new(head), IoSlice::new(body)]) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOMEM) => std::thread::sleep(NO_ROOM_PAUSE),
                _ => return,
            }
        }
    }

    /// Receives the kernel's first request, which says what the kernel can do.
    pub(super) fn first_request(&self) -> io::Result<FirstRequest> {
        let mut front = [0; FRONT_LEN];
        let mut data = vec![0; FIRST_BUFFER];
        loop {
            let count = match self.receive(&mut front, &mut data) {
                Received::Bytes(count) => count,
                Received::Nothing => continue,
                Received::Gone => return Err(io::Error::other("unmounted at once")),
            };
            let unreadable = || io::Error::other("the kernel's first request cannot be read");
            let head = Head::parse(&front[..count.min(FRONT_LEN)]).ok_or_else(unreadable)?;
            let mut space = [0; ARGUMENTS_MAX];
            let arguments = arguments(&front, &data, count, &mut space);
            let Ok(Request::Init { major, minor, readahead, flags }) =
                Request::parse(head.opcode, arguments)
            else {
                return Err(unreadable());
            };
            let unique = head.unique;
            if major < abi::MAJOR || major == abi::MAJOR && minor < abi::MINOR_MIN {
                self.answer(&abi::answer_head(unique, Some(Errno::PROTO), 0), &[]);
                return Err(io::Error::other(format!(
                    "the kernel speaks FUSE {major}.{minor}, which is too old"
                )));
            }
            let first = FirstRequest { unique, minor, readahead, flags };
            if major == abi::MAJOR {
                return Ok(first);
            }
            // A kernel with a newer major version asks again in ours.
            self.accept(&first, 0, 0);
        }
    }

    /// Answers the kernel's first request: requests may be of up to `request_max` bytes. With
    /// `wanted.ring`, the kernel then waits for the ring's entries.
    pub(super) fn negotiate(&self, first: &FirstRequest, request_max: u32, wanted: Wanted) {
        // ATOMIC_O_TRUNC is left out: with it, the kernel would take the file for empty after
        // an open with O_TRUNC. Without it, the kernel sends SETATTR, which is refused.
        let mut known =
            init::ASYNC_READ | init::BIG_WRITES | init::ASYNC_DIO | init::MAX_PAGES | init::EXT;
        if wanted.ring {
            known |= init::OVER_IO_URING;
        }
        if wanted.shared_mappings {
            known |= init::DIRECT_IO_ALLOW_MMAP;
        }
        self.accept(first, request_max, known);
    }

    fn accept(&self, first: &FirstRequest, request_max: u32, known: u64) {
        let FirstRequest { unique, minor, readahead, flags } = *first;
        let body = Body::init(&InitAnswer {
            minor: minor.min(abi::MINOR),
            readahead,
            flags: known & flags,
            background_max: BACKGROUND_MAX,
            request_max,
            page: page_size() as u32,
        });
        self.answer(&abi::answer_head(unique, None, body.bytes().len()), body.bytes());
    }
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The arguments of a request of `count` bytes, as far as any parser reads them.
pub(super) fn arguments<'a>(
    front: &[u8; FRONT_LEN],
    data: &[u8],
    count: usize,
    space: &'a mut [u8; ARGUMENTS_MAX],
) -> &'a [u8] {
    let first = count.clamp(HEAD_LEN, FRONT_LEN) - HEAD_LEN;
    let more = count.saturating_sub(FRONT_LEN).min(ARGUMENTS_MAX - WRITE_LEN).min(data.len());
    space[..first].copy_from_slice(&front[HEAD_LEN..HEAD_LEN + first]);
    space[first..first + more].copy_from_slice(&data[..more]);
    &space[..first + more]
}
