//! What keys leave on a stack.

/// Bytes of stack that setting up ciphers and deriving keys may use.
const SCRUBBED: usize = 128 << 10;

/// Overwrites the stack below the caller (128 KiB), where keys may have been left by what the caller has
/// called: values that move leave a copy behind.
pub fn scrub_stack() {
    ucrypt_sector::scrub_stack::<SCRUBBED>();
}
