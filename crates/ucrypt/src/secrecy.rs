//! Keeps secrets inside the process.

use rustix::fs::Mode;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use zeroize::Zeroize;

/// Bytes of stack that setting up ciphers may use.
const SCRUBBED: usize = 128 << 10;

/// Keeps this process out of core dumps and debuggers.
pub(crate) fn guard_process() {
    // Neither call can fail for the process itself, and the program runs without them as well.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
}

/// Keeps memory out of swap from now on. Does nothing under a limit on locked memory, which the
/// rest of the program would hit.
pub(crate) fn lock_memory() {
    // Without the lock, memory can be swapped like that of any other process.
    let _ = ucrypt_backend::lock_on_fault();
}

/// Overwrites the stack below the caller, where keys may have been left by what the caller has
/// called: values that move leave a copy behind.
#[inline(never)]
#[expect(clippy::large_stack_arrays, reason = "that is its purpose")]
pub(crate) fn scrub_stack() {
    let mut space = [0_u8; SCRUBBED];
    space.zeroize();
}

/// Makes files that this process creates from now on private to its user, whatever umask it
/// inherited.
pub(crate) fn keep_files_private() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// Fills `buf` from the kernel's random number generator.
pub(crate) fn random(buf: &mut [u8]) -> std::io::Result<()> {
    let mut filled = 0;
    while filled < buf.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut buf[filled..], flags) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
