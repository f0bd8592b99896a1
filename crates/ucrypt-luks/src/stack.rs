//! What keys leave on a stack.

use zeroize::Zeroize;

/// Bytes of stack that setting up ciphers and deriving keys may use.
const SCRUBBED: usize = 128 << 10;

/// Overwrites the stack below the caller (128 KiB), where keys may have been left by what the caller has
/// called: values that move leave a copy behind.
#[inline(never)]
#[expect(clippy::large_stack_arrays, reason = "that is its purpose")]
pub fn scrub_stack() {
    let mut space = [0_u8; SCRUBBED];
    space.zeroize();
}
