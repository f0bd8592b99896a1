//! Moves the other threads of the process into a mount namespace.
//!
//! setns(2) moves the calling thread only. A thread that stays keeps the old namespace, and all that is mounted in it,
//! until it ends. So a signal interrupts each thread, and its handler moves it: the C library changes the user of all
//! threads in this way, too.

#![expect(unsafe_code, reason = "a signal handler is set by pointer, and rustix signals no thread")]

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::fstat;

/// Ignored by default, so that one that comes late does nothing.
const SIGNAL: libc::c_int = libc::SIGURG;

/// How long threads may take until they run the handler.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_micros(200);

/// The descriptor of the namespace.
static NAMESPACE: AtomicI32 = AtomicI32::new(-1);

/// Moves the calling thread.
extern "C" fn enter(_: libc::c_int) {
    // SAFETY: system calls with numbers, which a signal handler may make; it leaves `errno` as it was. A thread that
    // shares its root with others cannot move.
    unsafe {
        let errno = *libc::__errno_location();
        if libc::unshare(libc::CLONE_FS) == 0 {
            libc::setns(NAMESPACE.load(Ordering::SeqCst), libc::CLONE_NEWNS);
        }
        *libc::__errno_location() = errno;
    }
}

/// Moves all threads of this process into the mount namespace of the calling one, which `namespace` is. Each gets its
/// root as root and working directory, of its own. What waits in a system call goes on with it, or gets `EINTR`.
///
/// # Errors
/// `ETIMEDOUT` if some have not moved in two seconds, because they are not permitted to or stand still in the kernel;
/// the system's errors.
pub fn move_other_threads(namespace: BorrowedFd<'_>) -> io::Result<()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let wanted = fstat(namespace)?;
    NAMESPACE.store(namespace.as_raw_fd(), Ordering::SeqCst);
    let before = handle(enter as extern "C" fn(libc::c_int) as usize)?;
    let moved = move_all((wanted.st_dev, wanted.st_ino));
    // Whoever has not run the handler by now does not.
    restore(&before);
    moved
}

fn move_all(namespace: (u64, u64)) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = threads_outside(namespace)?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        for thread in left {
            // SAFETY: a signal to a thread of this process, which handles it.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGNAL) };
        }
        sleep(PAUSE);
    }
}

/// The threads that are not in the namespace with these numbers.
fn threads_outside(namespace: (u64, u64)) -> io::Result<Vec<libc::pid_t>> {
    let threads = fs::read_dir("/proc/self/task")?.filter_map(Result::ok);
    let outside = threads.filter(|thread| {
        // One that has ended meanwhile is in none.
        let found = fs::metadata(thread.path().join("ns/mnt"));
        found.is_ok_and(|found| (found.dev(), found.ino()) != namespace)
    });
    Ok(outside.filter_map(|thread| thread.file_name().to_str()?.parse().ok()).collect())
}

/// Sets the handler of the signal, and returns what was there before.
fn handle(handler: usize) -> io::Result<libc::sigaction> {
    let mut before = MaybeUninit::uninit();
    // SAFETY: zeroes are a valid `sigaction`; the handler has the signature of one, and is safe in a signal.
    let set = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_RESTART;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(SIGNAL, &raw const action, before.as_mut_ptr())
    };
    if set != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has succeeded, and so filled it in.
    Ok(unsafe { before.assume_init() })
}

fn restore(before: &libc::sigaction) {
    // SAFETY: what the kernel has returned is valid.
    unsafe { libc::sigaction(SIGNAL, before, ptr::null_mut()) };
}
