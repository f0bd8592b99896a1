//! A stack for work with keys.

use std::io;
use std::panic::resume_unwind;
use std::thread;

use ucrypt_image::secrecy::scrub_stack;

/// Bytes of stack, of which pages are taken when they are touched. Ciphers and hashes of all kinds need
/// less than a tenth.
const STACK: usize = 2 << 20;

/// Calls `work` on a stack of its own, and wipes that. A caller's stack may be small, and belongs to him.
///
/// # Errors
/// The system has no thread.
pub(crate) fn on_own_stack<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("ucrypt-key".into()).stack_size(STACK);
        let thread = thread.spawn_scoped(scope, || {
            let result = work();
            scrub_stack();
            result
        })?;
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}
