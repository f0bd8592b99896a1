//! What keeps secrets inside the process.

use rustix::fs::Mode;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Keeps this process out of core dumps and debuggers.
pub(crate) fn guard_process() {
    // Neither can fail for a process that asks it of itself; without them it runs as well.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
}

/// Keeps what is in memory out of swap from now on, where the system allows it without a limit, into
/// which the rest of the program would run.
pub(crate) fn lock_memory() {
    // A failure leaves things as they are everywhere else.
    let _ = ucrypt_backend::lock_on_fault();
}

/// Lets nobody else have what this process makes from now on, whatever it was started with.
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
