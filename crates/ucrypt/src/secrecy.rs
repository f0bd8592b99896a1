//! Keeps secrets inside the process.

use std::sync::OnceLock;

use rustix::fs::Mode;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
pub(crate) use ucrypt_image::secrecy::{lock_memory, random, scrub_stack};

/// Keeps this process out of core dumps and debuggers.
pub(crate) fn guard_process() {
    // Neither call can fail for the process itself, and the program runs without them as well.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
}

/// Makes files that this process creates from now on private to its user, whatever umask it
/// inherited.
pub(crate) fn keep_files_private() {
    let inherited = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let _ = INHERITED.set(inherited);
}

/// The umask before [`keep_files_private`].
static INHERITED: OnceLock<Mode> = OnceLock::new();

/// Runs `act`, which starts a program of the user's, under the umask that this process inherited. Other threads must
/// make no files meanwhile.
pub(crate) fn under_inherited_umask<T>(act: impl FnOnce() -> T) -> T {
    let Some(inherited) = INHERITED.get() else { return act() };
    let private = rustix::process::umask(*inherited);
    let result = act();
    rustix::process::umask(private);
    result
}
