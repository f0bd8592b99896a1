//! Random numbers, and secrets that stay inside the process.

pub use ucrypt_luks::scrub_stack;

/// Keeps memory out of swap from now on. Does nothing under a limit on locked memory, which the
/// rest of the program would hit.
pub fn lock_memory() {
    // Without the lock, memory can be swapped like that of any other process.
    let _ = ucrypt_backend::lock_on_fault();
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
