//! What keeps secrets inside the process.

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit,
};
use rustix::thread::{CapabilitySet, capabilities};

/// Keeps this process out of core dumps and debuggers.
pub(crate) fn guard_process() {
    // Neither can fail for a process that asks it of itself; without them it runs as well.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
}

/// Keeps what is in memory out of swap from now on, where no limit of locked memory applies.
/// Under a limit, later allocations would run into it: a key derivation alone may take a GiB.
pub(crate) fn lock_memory() {
    let unlimited = getrlimit(Resource::Memlock).current.is_none();
    // Not the user's number: root in a container often lacks the capability.
    let exempt =
        capabilities(None).is_ok_and(|own| own.effective.contains(CapabilitySet::IPC_LOCK));
    if unlimited || exempt {
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
