//! By FUSE.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;

use rustix::mount::{MountFlags, mount};

use super::{DATA_MAX, Image, PAGE_BYTES, Pages, THREADS, put};

/// The length of an answer's data, or a negative error.
type Answered = Result<usize, i32>;

const EIO: i32 = 5;

/// The kernel's protocol (`include/uapi/linux/fuse.h`, version 7.31). The export's own module is private to it: what
/// only copies shares no code with what it is the ceiling of.
mod abi {
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const BATCH_FORGET: u32 = 42;
    /// Bytes of `fuse_in_header`.
    pub(super) const IN_HEADER: usize = 40;
    /// Bytes of `fuse_write_in`.
    pub(super) const WRITE_IN: usize = 40;
    pub(super) const OUT_HEADER: usize = 16;
    pub(super) const INIT_OUT: usize = 64;
    pub(super) const ATTR_OUT: usize = 104;
    pub(super) const OPEN_OUT: usize = 16;
    pub(super) const WRITE_OUT: usize = 8;
    pub(super) const STATFS_OUT: usize = 80;
    pub(super) const FOPEN_DIRECT_IO: u32 = 1;
    /// Reads and direct I/O that need not wait for each other, writes and requests of more than a page.
    pub(super) const FLAGS: u32 = 1 | 1 << 5 | 1 << 15 | 1 << 22;
    pub(super) const ENOSYS: i32 = 38;
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Carries out a request of FUSE. `head` begins with its header, and `data` is what a write brings.
fn answer(image: &Image, head: &[u8], data: &[u8], out: &mut [u8]) -> Answered {
    let body = &head[abi::IN_HEADER..];
    out[..PAGE_BYTES].fill(0);
    match u32_at(head, 4) {
        abi::INIT => {
            put(out, 0, &7_u32.to_ne_bytes());
            put(out, 4, &31_u32.to_ne_bytes());
            put(out, 8, &body[8..12]);
            put(out, 12, &(u32_at(body, 12) & abi::FLAGS).to_ne_bytes());
            // Requests in the background, and so many that the kernel waits before it sends more.
            put(out, 16, &256_u16.to_ne_bytes());
            put(out, 18, &200_u16.to_ne_bytes());
            put(out, 20, &(DATA_MAX as u32).to_ne_bytes());
            put(out, 28, &((DATA_MAX / PAGE_BYTES) as u16).to_ne_bytes());
            Ok(abi::INIT_OUT)
        }
        abi::GETATTR => {
            // For an hour: inode, length, mode, links, block size.
            put(out, 0, &3600_u64.to_ne_bytes());
            put(out, 16, &1_u64.to_ne_bytes());
            put(out, 24, &image.len.to_ne_bytes());
            put(out, 76, &0o100_600_u32.to_ne_bytes());
            put(out, 80, &1_u32.to_ne_bytes());
            put(out, 96, &(PAGE_BYTES as u32).to_ne_bytes());
            Ok(abi::ATTR_OUT)
        }
        abi::OPEN => {
            put(out, 8, &abi::FOPEN_DIRECT_IO.to_ne_bytes());
            Ok(abi::OPEN_OUT)
        }
        abi::READ => {
            let wanted = (u32_at(body, 16) as usize).min(DATA_MAX);
            image.read(&mut out[..wanted], u64_at(body, 8)).map_err(|_| -EIO)
        }
        abi::WRITE => {
            let wanted = u32_at(body, 16);
            let data = data.get(..wanted as usize).ok_or(-EIO)?;
            image.write(data, u64_at(body, 8)).map_err(|_| -EIO)?;
            put(out, 0, &wanted.to_ne_bytes());
            Ok(abi::WRITE_OUT)
        }
        abi::FSYNC => image.flush().map(|()| 0).map_err(|_| -EIO),
        abi::FLUSH | abi::RELEASE => Ok(0),
        abi::STATFS => Ok(abi::STATFS_OUT),
        _ => Err(-abi::ENOSYS),
    }
}

/// Takes requests of FUSE until the file system is unmounted.
fn serve_fuse(mut device: &File, image: &Image) {
    // A write's data follows two structures, so that it begins on a page.
    let mut head = [0; abi::IN_HEADER + abi::WRITE_IN];
    let (mut data, mut out) = (Pages::new(DATA_MAX + PAGE_BYTES), Pages::new(DATA_MAX));
    loop {
        let data = data.front(DATA_MAX + PAGE_BYTES);
        let parts = &mut [IoSliceMut::new(&mut head), IoSliceMut::new(data)];
        let count = match device.read_vectored(parts) {
            Ok(count) if count >= abi::IN_HEADER => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // The request was taken back.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            _ => return,
        };
        if matches!(u32_at(&head, 4), abi::FORGET | abi::BATCH_FORGET | abi::INTERRUPT) {
            continue;
        }
        let brought = &data[..count.saturating_sub(head.len())];
        let out = out.front(DATA_MAX);
        let answered = answer(image, &head, brought, out);
        let (error, body) = answered.map_or_else(|error| (error, 0), |body| (0, body));
        let mut say = [0; abi::OUT_HEADER];
        put(&mut say, 0, &((abi::OUT_HEADER + body) as u32).to_ne_bytes());
        put(&mut say, 4, &error.to_ne_bytes());
        put(&mut say, 8, &head[8..16]);
        // It fails if the request was taken back meanwhile.
        let _ = device.write_vectored(&[IoSlice::new(&say), IoSlice::new(&out[..body])]);
    }
}

/// Serves an image over the regular file `place` until the file system is unmounted. Needs root.
///
/// # Errors
/// If the image cannot be opened, or nothing can be mounted.
pub fn serve(image: &Path, place: &Path) -> io::Result<()> {
    let image = Image::open(image)?;
    let device = File::options().read(true).write(true).open("/dev/fuse")?;
    let options = format!("fd={},rootmode=100000,user_id=0,group_id=0", device.as_raw_fd());
    let options = std::ffi::CString::new(options).map_err(io::Error::other)?;
    mount("ucrypt-copy", place, "fuse", MountFlags::empty(), Some(options.as_c_str()))?;
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| serve_fuse(&device, &image));
        }
    });
    Ok(())
}
