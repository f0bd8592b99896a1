//! What keeps secrets inside the process.

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Keeps this process out of core dumps and debuggers.
pub(crate) fn guard_process() {
    // Neither can fail for a process that asks it of itself; without them it runs as well.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
}

/// Keeps what is in memory out of swap from now on, where the memory limit allows it (as root).
/// Without the permission the rest of the program would run into the limit, so it is left.
pub(crate) fn lock_memory() {
    if rustix::process::geteuid().is_root() {
        // A failure leaves things as they are everywhere else.
        let _ = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT);
    }
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
