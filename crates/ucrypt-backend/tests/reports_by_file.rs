//! Images on a file system whose server tells what was lost to the open file alone that wrote it, once, as sshfs does.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{IoSlice, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::geteuid;
use rustix::thread::{self as namespaces, UnshareFlags};
use ucrypt_backend::{Backend, Errno, FileBackend, Io, OpenOptions, Pool, Queue};

/// Bytes of the image, and the greatest request's.
const LEN: u64 = 1 << 20;
const REQUEST_BYTES: usize = 1 << 17;

/// The kernel's protocol (`include/uapi/linux/fuse.h`, version 7.31), as far as one regular file needs it. A test of
/// the backend does not depend on the export, which has its own.
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
    pub(super) const BATCH_FORGET: u32 = 42;
    pub(super) const ENOSYS: i32 = 38;
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Numbers one after the other, as in a structure of the kernel.
fn body(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// Open files that a write was lost of: it was answered, and nobody knows yet.
struct Lost {
    files: Mutex<Vec<u64>>,
    /// What the server says of them.
    error: AtomicI32,
}

impl Lost {
    /// The answer to a request: its structure, or an error. `next` is the number of the next open file.
    fn answer(&self, request: &[u8], next: &mut u64) -> Result<Vec<u8>, i32> {
        let mut lost = self.files.lock().expect("no panic");
        match u32_at(request, 4) {
            abi::INIT => {
                let mut init = body(&[0; 8]);
                init[..4].copy_from_slice(&7_u32.to_ne_bytes());
                init[4..8].copy_from_slice(&31_u32.to_ne_bytes());
                init[20..24].copy_from_slice(&4096_u32.to_ne_bytes());
                Ok(init)
            }
            abi::GETATTR => {
                // For a second: inode, length, mode and links.
                let mode = u64::from(0o100_600_u32) << 32;
                Ok(body(&[1, 0, 1, LEN, 0, 0, 0, 0, 0, mode, 1, 0, 4096]))
            }
            abi::OPEN => {
                *next += 1;
                // Without the page cache: each write is a request of its open file.
                Ok(body(&[*next, 1]))
            }
            abi::READ => Ok(vec![0; u32_at(request, 56) as usize]),
            abi::WRITE => {
                lost.push(u64_at(request, 40));
                Ok(body(&[u64::from(u32_at(request, 56))]))
            }
            abi::FSYNC => {
                let file = u64_at(request, 40);
                let before = lost.len();
                lost.retain(|&other| other != file);
                if lost.len() == before {
                    Ok(Vec::new())
                } else {
                    Err(self.error.load(Ordering::SeqCst))
                }
            }
            abi::STATFS => Ok(body(&[0; 10])),
            abi::FLUSH | abi::RELEASE => Ok(Vec::new()),
            _ => Err(abi::ENOSYS),
        }
    }

    /// Answers until the file system is unmounted.
    fn serve(&self, mut device: &File) {
        let mut request = vec![0; REQUEST_BYTES + 4096];
        let mut next = 0;
        while let Ok(len) = device.read(&mut request) {
            let request = &request[..len];
            if matches!(u32_at(request, 4), abi::FORGET | abi::BATCH_FORGET) {
                continue;
            }
            let (error, body) = match self.answer(request, &mut next) {
                Ok(body) => (0, body),
                Err(error) => (-error, Vec::new()),
            };
            let mut head = (16 + body.len() as u32).to_ne_bytes().to_vec();
            head.extend(error.to_ne_bytes());
            head.extend(&request[8..16]);
            // It fails if the request was taken back meanwhile.
            let _ = device.write_vectored(&[IoSlice::new(&head), IoSlice::new(&body)]);
        }
    }
}

fn result_of(queue: &mut dyn Queue, io: Io) -> Result<(), Errno> {
    queue.submit(io);
    let mut done = Vec::new();
    while done.is_empty() {
        queue.wait(&mut done).expect("a sound queue");
    }
    done.remove(0).result
}

fn each_flush_fails_after_a_lost_write(
    path: &Path,
    (direct, len): (bool, usize),
    fua: bool,
    error: Errno,
) {
    let options = OpenOptions { direct, ..OpenOptions::default() };
    let backend = FileBackend::open(path, options).expect("a backend");
    let pool = Pool::new(1 << 16).expect("memory");
    let case = format!("direct {direct}, {len} bytes, fua {fua}, {error}");
    let mut queues = [(); 2].map(|()| backend.queue(4).expect("a queue"));
    assert_eq!(
        result_of(queues[0].as_mut(), Io::Flush { token: 0 }),
        Ok(()),
        "{case}: nothing is lost"
    );
    let bufs = vec![pool.alloc(len).expect("room")];
    let written = result_of(queues[0].as_mut(), Io::Write { token: 0, offset: 0, bufs, fua });
    assert_eq!(written, if fua { Err(error) } else { Ok(()) }, "{case}");
    for queue in [0, 1, 0] {
        let flushed = result_of(queues[queue].as_mut(), Io::Flush { token: 0 });
        assert_eq!(flushed, Err(error), "{case}");
    }
}

/// Regression: flushes went by another open file than writes, so such a server had nothing to tell.
#[test]
fn a_write_that_is_lost_on_a_server_that_tells_its_open_file_fails_every_flush() {
    if !geteuid().is_root() {
        println!("not checked: only root mounts a file system");
        return;
    }
    let Ok(device) = File::options().read(true).write(true).open("/dev/fuse") else {
        println!("not checked: there is no FUSE");
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    File::create(&path).expect("a file");
    let lost = Lost { files: Mutex::default(), error: AtomicI32::new(0) };
    thread::scope(|scope| {
        let (mounted, is_mounted) = mpsc::channel::<()>();
        let (lost, device) = (&lost, &device);
        scope.spawn(move || is_mounted.recv().map(|()| lost.serve(device)));
        // In a mount namespace of this thread, which ends with it.
        let path = &path;
        let user = scope.spawn(move || {
            #[expect(deprecated, reason = "unsafe only where descriptor tables are unshared")]
            if namespaces::unshare(UnshareFlags::NEWNS) == Err(Errno::PERM) {
                println!("not checked: root of a container mounts nothing");
                return;
            }
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            if mount_change("/", private).is_err() {
                println!("not checked: the root directory is no mount");
                return;
            }
            let options = format!("fd={},rootmode=100000,user_id=0,group_id=0", device.as_raw_fd());
            let options = std::ffi::CString::new(options).expect("text");
            mount("lossy", path, "fuse", MountFlags::empty(), Some(options.as_c_str()))
                .expect("mounted");
            mounted.send(()).expect("a server");
            for error in [Errno::IO, Errno::NOSPC] {
                lost.error.store(error.raw_os_error(), Ordering::SeqCst);
                for way in [(false, 4096), (true, 4096), (true, 512)] {
                    for fua in [false, true] {
                        each_flush_fails_after_a_lost_write(path, way, fua, error);
                    }
                }
            }
        });
        // The mount ends with the thread, and with it the server, if the thread failed, too.
        user.join().expect("no panic");
    });
}
