//! Mappings of files that others may cut off.
//!
//! An access behind the new end of such a file raises SIGBUS. A handler, installed once for the
//! process, puts a page of zeroes there that is ours alone, and marks the mapping as broken before
//! it does: whoever saw such a zero, or wrote where nobody will read it, finds the mark afterwards.
//! A SIGBUS elsewhere goes to whoever handled it before. Access by the kernel needs none of this: it
//! fails with `EFAULT`.

#![expect(unsafe_code, reason = "a signal handler is set by pointer, and maps memory by address")]

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering, fence};

use nix::libc;

/// What a mapping is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It is only read.
    Read,
    /// It is also written.
    ReadWrite,
}

/// What the signal handler knows of a mapping.
struct Watched {
    /// First address; 0: free, 1: about to be used.
    base: AtomicUsize,
    len: AtomicUsize,
    /// `PROT_` bits.
    protection: AtomicI32,
    broken: AtomicBool,
}

/// Mappings that can be watched at once: images, and the memory of a virtual machine.
const WATCHED_MAX: usize = 1024;

static WATCHED: [Watched; WATCHED_MAX] = [const {
    Watched {
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        protection: AtomicI32::new(0),
        broken: AtomicBool::new(false),
    }
}; WATCHED_MAX];

/// Who handled SIGBUS before, once our handler is installed.
static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// See the module. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watch(usize);

impl Watch {
    /// Watches the `len` bytes from `base`. `None` if too many are watched already, or no handler
    /// can be installed.
    ///
    /// # Safety
    /// - They are a mapping of a file, whose pages are the system's ordinary ones, that is there
    ///   until the watch is dropped.
    /// - It does not matter to memory safety what they hold, nor that each page may become another
    ///   one at any time, of zeroes.
    pub unsafe fn new(base: NonNull<u8>, len: usize, access: Access) -> Option<Self> {
        BEFORE.get_or_init(install).as_ref()?;
        let taken = |watched: &Watched| {
            watched.base.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let index = WATCHED.iter().position(taken)?;
        let protection = match access {
            Access::Read => libc::PROT_READ,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        WATCHED[index].broken.store(false, Ordering::SeqCst);
        WATCHED[index].protection.store(protection, Ordering::SeqCst);
        WATCHED[index].len.store(len, Ordering::SeqCst);
        WATCHED[index].base.store(base.as_ptr() as usize, Ordering::SeqCst);
        Some(Self(index))
    }

    /// Whether an access before this found no file.
    pub fn is_broken(&self) -> bool {
        // The mark was set before the zeroes appeared; it is looked for after they were read.
        fence(Ordering::SeqCst);
        WATCHED[self.0].broken.load(Ordering::SeqCst)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHED[self.0].base.store(0, Ordering::SeqCst);
    }
}

/// Installs the handler; returns what there was before.
fn install() -> Option<libc::sigaction> {
    // SAFETY: both are plain data, for which zeroes are valid.
    let (mut ours, mut before) =
        unsafe { (std::mem::zeroed::<libc::sigaction>(), std::mem::zeroed::<libc::sigaction>()) };
    ours.sa_sigaction = on_sigbus as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `on_sigbus` has the signature that SA_SIGINFO asks for and does only what a signal
    // handler may: atomic loads and stores, and system calls.
    let installed = unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, &raw mut before) };
    (installed == 0).then_some(before)
}

extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes the signal's information to a handler with SA_SIGINFO.
    let address = unsafe { (*info).si_addr() } as usize;
    let watched = WATCHED.iter().find(|watched| {
        let base = watched.base.load(Ordering::SeqCst);
        base > 1 && address >= base && address - base < watched.len.load(Ordering::SeqCst)
    });
    if let Some(watched) = watched {
        // First the mark, then the zeroes.
        watched.broken.store(true, Ordering::SeqCst);
        if put_zeroes(address, watched.protection.load(Ordering::SeqCst)) {
            return;
        }
    }
    // Not ours: the access is repeated under the handler that was there before.
    if let Some(Some(before)) = BEFORE.get() {
        // SAFETY: an action that the system gave us.
        unsafe { libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()) };
    }
}

/// Replaces the page at an address of a watched mapping.
fn put_zeroes(address: usize, protection: libc::c_int) -> bool {
    // SAFETY: the page belongs to a mapping whose owner has promised that its pages may become
    // others (`Watch::new`). The interrupted code finds its errno unchanged.
    unsafe {
        let errno = *libc::__errno_location();
        let page = libc::sysconf(libc::_SC_PAGESIZE).cast_unsigned() as usize;
        let put = libc::mmap(
            (address / page * page) as *mut libc::c_void,
            page,
            protection,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        );
        *libc::__errno_location() = errno;
        put != libc::MAP_FAILED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    const PAGE: usize = 4096;
    const LEN: usize = 16 * PAGE;

    #[test]
    fn memory_that_is_cut_off_under_a_writer_is_marked_and_takes_what_is_written() {
        let fd = rustix::fs::memfd_create("watched", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = std::fs::File::from(fd);
        file.set_len(LEN as u64).unwrap();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap(std::ptr::null_mut(), LEN, protection, MapFlags::SHARED, &file, 0).unwrap()
        };
        let base = NonNull::new(base.cast::<u8>()).unwrap();
        // SAFETY: the mapping just made, whose bytes mean nothing, until the end of this function.
        let watch = unsafe { Watch::new(base, LEN, Access::ReadWrite) }.unwrap();
        // SAFETY: within the mapping.
        let byte = |at: usize| unsafe { base.add(at) };
        // SAFETY: as above; plain bytes.
        unsafe { byte(9 * PAGE).write_volatile(1) };
        assert!(!watch.is_broken());
        file.set_len(8 * PAGE as u64).unwrap();
        // SAFETY: as above.
        unsafe {
            byte(7 * PAGE).write_volatile(2);
            assert!(!watch.is_broken(), "the file is there");
            assert_eq!(byte(9 * PAGE).read_volatile(), 0);
            assert!(watch.is_broken());
            byte(12 * PAGE + 5).write_volatile(3);
            assert_eq!(byte(12 * PAGE + 5).read_volatile(), 3);
        }
        assert_eq!(file.metadata().unwrap().len(), 8 * PAGE as u64);
        drop(watch);
        // SAFETY: the mapping made above, which nobody uses any more.
        unsafe { munmap(base.as_ptr().cast(), LEN) }.unwrap();
    }

    #[test]
    fn many_mappings_are_watched_and_places_come_back() {
        for _ in 0..4 {
            // Not all places: other tests of this process need some.
            let held = (0..WATCHED_MAX / 2)
                // SAFETY: nothing is accessed there.
                .map_while(|_| unsafe { Watch::new(NonNull::dangling(), 0, Access::Read) });
            assert_eq!(held.collect::<Vec<_>>().len(), WATCHED_MAX / 2);
        }
    }
}
