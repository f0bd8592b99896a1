//! Watches mappings of files that other programs may cut off.
//!
//! An access behind the new end of such a file raises SIGBUS. A handler, installed once for the
//! process, marks the mapping as broken and then maps private zeroes there. So a user who read such
//! a zero, or wrote where nobody will read it, finds the mark afterwards. A SIGBUS elsewhere goes
//! to the previous handler. Access by the kernel needs none of this: it fails with `EFAULT`.
//!
//! Each fault of a mapping replaces twice as many bytes as the one before. The kernel bounds the
//! number of mappings of a process (`vm.max_map_count`), and whoever cuts the file off may cause an
//! access to every second page. A mapping is thus split into at most some dozens of pieces.

#![expect(unsafe_code, reason = "a signal handler is set by pointer, and maps memory by address")]

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering, fence};

/// What a mapping is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It is only read.
    Read,
    /// It is also written.
    ReadWrite,
}

/// The signal handler's record of a mapping.
#[derive(Debug, Default)]
struct Watched {
    /// First address; 0: free, 1: reserved for a new mapping.
    base: AtomicUsize,
    len: AtomicUsize,
    /// Bytes of its pages.
    page: AtomicUsize,
    /// `PROT_` bits.
    protection: AtomicI32,
    broken: AtomicBool,
    faults: AtomicU32,
}

/// Mappings in a block of the table. Blocks are allocated on demand and never freed.
const BLOCK: usize = 1024;
/// Maximum number of blocks: room for more mappings than a process has by default
/// (`vm.max_map_count`, 65530).
const BLOCKS_MAX: usize = 64;

/// All watched mappings: images, and the memory of virtual machines.
static WATCHED: [OnceLock<Box<[Watched]>>; BLOCKS_MAX] = [const { OnceLock::new() }; BLOCKS_MAX];

/// The previous handler of SIGBUS, once our handler is installed.
static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// A watch over a mapping; see the module. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watch(&'static Watched);

impl Watch {
    /// Watches the `len` bytes from `base`, in pages of `page` bytes. `None` if too many are watched
    /// already, or no handler can be installed.
    ///
    /// # Safety
    /// - The bytes are a mapping of a file that exists until the watch is dropped; on a file system of
    ///   huge pages, `page` is their size and divides `len`.
    /// - Memory safety depends neither on their content nor on their pages staying the same: each
    ///   page may be replaced by zeroes at any time.
    pub unsafe fn new(base: NonNull<u8>, len: usize, page: usize, access: Access) -> Option<Self> {
        BEFORE.get_or_init(install).as_ref()?;
        let taken = |watched: &Watched| {
            watched.base.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let new_block = || (0..BLOCK).map(|_| Watched::default()).collect();
        let mut blocks = WATCHED.iter().map(|block| block.get_or_init(new_block));
        let watched = blocks.find_map(|block| block.iter().find(|watched| taken(watched)))?;
        let protection = match access {
            Access::Read => libc::PROT_READ,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        watched.broken.store(false, Ordering::SeqCst);
        watched.faults.store(0, Ordering::SeqCst);
        watched.protection.store(protection, Ordering::SeqCst);
        watched.len.store(len, Ordering::SeqCst);
        watched.page.store(page, Ordering::SeqCst);
        watched.base.store(base.as_ptr() as usize, Ordering::SeqCst);
        Some(Self(watched))
    }

    /// Whether an earlier access found no file.
    pub fn is_broken(&self) -> bool {
        // The mark was set before the zeroes appeared; it is read after they were.
        fence(Ordering::SeqCst);
        self.0.broken.load(Ordering::SeqCst)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.base.store(0, Ordering::SeqCst);
    }
}

/// Installs the handler; returns the previous one.
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

extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes the signal's information to a handler with SA_SIGINFO.
    let address = unsafe { (*info).si_addr() } as usize;
    // Blocks are allocated in order. `get` is one atomic load.
    let mut watched = WATCHED.iter().map_while(OnceLock::get).flatten();
    let watched = watched.find(|watched| {
        let base = watched.base.load(Ordering::SeqCst);
        base > 1 && address >= base && address - base < watched.len.load(Ordering::SeqCst)
    });
    if let Some(watched) = watched {
        // First the mark, then the zeroes.
        watched.broken.store(true, Ordering::SeqCst);
        if put_zeroes(address, watched) {
            return;
        }
    }
    // Not ours.
    if let Some(Some(before)) = BEFORE.get() {
        hand_on(before, signal, info, context);
    }
}

/// Calls a handler. Without one the action takes our handler's place, and the access is repeated under it.
fn hand_on(
    to: &libc::sigaction,
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    type WithInfo = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
    match to.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: an action that the system gave us.
            unsafe { libc::sigaction(signal, to, std::ptr::null_mut()) };
        }
        handler if to.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: whoever set this handler has told the system that it has this signature.
            unsafe { std::mem::transmute::<usize, WithInfo>(handler)(signal, info, context) }
        }
        handler => {
            // SAFETY: as above, without SA_SIGINFO.
            unsafe { std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler)(signal) }
        }
    }
}

/// Replaces the page at an address of a watched mapping, and pages behind it, by zeroes.
fn put_zeroes(address: usize, watched: &Watched) -> bool {
    // A huge page is replaced as a whole: the kernel does not split it.
    let page = watched.page.load(Ordering::SeqCst);
    let start = address / page * page;
    let mapped = watched.base.load(Ordering::SeqCst) + watched.len.load(Ordering::SeqCst);
    let left = mapped.saturating_sub(start).next_multiple_of(page).max(page);
    let faults = watched.faults.fetch_add(1, Ordering::SeqCst).min(usize::BITS - 1);
    let wanted = page.saturating_mul(1_usize << faults).min(left);
    let protection = watched.protection.load(Ordering::SeqCst);
    // If replacing all of it is refused, replace the one page needed.
    replace(start, wanted, protection) || replace(start, page, protection)
}

/// Maps zeroes over the `len` bytes from `start`, whole pages of a watched mapping.
fn replace(start: usize, len: usize, protection: libc::c_int) -> bool {
    // SAFETY: the pages belong to a mapping whose owner has promised that they may be replaced
    // (`Watch::new`). The interrupted code finds its errno unchanged.
    unsafe {
        let errno = *libc::__errno_location();
        let put = libc::mmap(
            start as *mut libc::c_void,
            len,
            protection,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
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
        let watch = unsafe { Watch::new(base, LEN, PAGE, Access::ReadWrite) }.unwrap();
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
        // SAFETY: the mapping made above, no longer in use.
        unsafe { munmap(base.as_ptr().cast(), LEN) }.unwrap();
    }

    #[test]
    fn a_mapping_that_is_cut_off_and_accessed_here_and_there_is_not_cut_to_pieces() {
        const PAGES: usize = 4096;
        for backwards in [false, true] {
            let fd = rustix::fs::memfd_create("watched", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            let file = std::fs::File::from(fd);
            file.set_len((PAGES * PAGE) as u64).unwrap();
            // SAFETY: a new mapping at an address of the kernel's choice.
            let base = unsafe {
                let (len, access) = (PAGES * PAGE, ProtFlags::READ | ProtFlags::WRITE);
                mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &file, 0).unwrap()
            };
            let base = NonNull::new(base.cast::<u8>()).unwrap();
            // SAFETY: the mapping just made, until the end of the round.
            let watch = unsafe { Watch::new(base, PAGES * PAGE, PAGE, Access::ReadWrite) }.unwrap();
            file.set_len(0).unwrap();
            for number in (0..PAGES).step_by(2) {
                let number = if backwards { PAGES - 1 - number } else { number };
                // SAFETY: within the mapping; plain bytes.
                unsafe { base.add(number * PAGE).write_volatile(1) };
            }
            assert!(watch.is_broken());
            let (start, end) = (base.as_ptr() as usize, base.as_ptr() as usize + PAGES * PAGE);
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let pieces = maps.lines().filter(|line| {
                let from = line.split('-').next().unwrap();
                (start..end).contains(&usize::from_str_radix(from, 16).unwrap())
            });
            assert!(pieces.count() <= 64, "backwards {backwards}: {maps}");
            drop(watch);
            // SAFETY: the mapping made above, no longer in use.
            unsafe { munmap(base.as_ptr().cast(), PAGES * PAGE) }.unwrap();
        }
    }

    /// In a process of its own, because a handler is one for all of it.
    #[test]
    fn a_fault_elsewhere_is_the_previous_handlers_and_the_watch_goes_on() {
        const NAME: &str =
            "watch::tests::a_fault_elsewhere_is_the_previous_handlers_and_the_watch_goes_on";
        const CHILD: &str = "UCRYPT_TEST_SIGBUS";
        static THEIRS: AtomicUsize = AtomicUsize::new(0);
        extern "C" fn on_theirs(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
            THEIRS.fetch_add(1, Ordering::SeqCst);
            // SAFETY: the kernel passes the signal's information.
            let address = unsafe { (*info).si_addr() } as usize;
            replace(address / PAGE * PAGE, PAGE, libc::PROT_READ | libc::PROT_WRITE);
        }
        if std::env::var_os(CHILD).is_none() {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", NAME, "--nocapture"]).env(CHILD, "1");
            let ran = child.output().unwrap();
            let said = String::from_utf8_lossy(&ran.stdout);
            assert!(ran.status.success() && said.contains("1 passed"), "{}: {said}", ran.status);
            return;
        }
        // SAFETY: plain data, for which zeroes are valid, and a handler of the signature that
        // SA_SIGINFO asks for.
        unsafe {
            let mut theirs = std::mem::zeroed::<libc::sigaction>();
            theirs.sa_sigaction = on_theirs as *const () as usize;
            theirs.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGBUS, &raw const theirs, std::ptr::null_mut()), 0);
        }
        let fd = rustix::fs::memfd_create("watched", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = std::fs::File::from(fd);
        file.set_len(LEN as u64).unwrap();
        let mapping = || {
            // SAFETY: a new mapping at an address of the kernel's choice.
            let base = unsafe {
                let access = ProtFlags::READ | ProtFlags::WRITE;
                mmap(std::ptr::null_mut(), LEN, access, MapFlags::SHARED, &file, 0).unwrap()
            };
            NonNull::new(base.cast::<u8>()).unwrap()
        };
        let (ours, theirs) = (mapping(), mapping());
        // SAFETY: the mapping just made, until the end of the process.
        let watch = unsafe { Watch::new(ours, LEN, PAGE, Access::ReadWrite) }.unwrap();
        file.set_len(0).unwrap();
        // SAFETY: within the mappings; plain bytes.
        unsafe {
            theirs.write_volatile(1);
            theirs.add(2 * PAGE).write_volatile(1);
            assert_eq!(THEIRS.load(Ordering::SeqCst), 2);
            assert!(!watch.is_broken());
            assert_eq!(ours.add(PAGE).read_volatile(), 0);
        }
        assert!(watch.is_broken());
        assert_eq!(THEIRS.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn many_mappings_are_watched_and_places_come_back() {
        const MANY: usize = 3 * BLOCK;
        for _ in 0..4 {
            let held = (0..MANY)
                // SAFETY: nothing is accessed there.
                .map_while(|_| unsafe { Watch::new(NonNull::dangling(), 0, PAGE, Access::Read) });
            assert_eq!(held.collect::<Vec<_>>().len(), MANY);
        }
        // Places are reused: no block was allocated without need.
        assert!(WATCHED[8..].iter().all(|block| block.get().is_none()));
    }
}
