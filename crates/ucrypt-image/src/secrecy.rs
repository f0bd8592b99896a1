//! Random numbers, and secrets that stay inside the process.

use zeroize::Zeroize;

/// Bytes of stack that setting up ciphers may use.
const SCRUBBED: usize = 128 << 10;

/// Keeps memory out of swap from now on. Does nothing under a limit on locked memory, which the
/// rest of the program would hit.
pub fn lock_memory() {
    // Without the lock, memory can be swapped like that of any other process.
    let _ = ucrypt_backend::lock_on_fault();
}

/// Overwrites the stack below the caller (128 KiB), where keys may have been left by what the caller has
/// called: values that move leave a copy behind.
#[inline(never)]
#[expect(clippy::large_stack_arrays, reason = "that is its purpose")]
pub fn scrub_stack() {
    let mut space = [0_u8; SCRUBBED];
    space.zeroize();
}

/// Fills `buf` from the kernel's random number generator.
pub fn random(buf: &mut [u8]) -> std::io::Result<()> {
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
