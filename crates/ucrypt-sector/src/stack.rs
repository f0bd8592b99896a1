//! What keys leave behind on a stack, where values that move leave a copy, and in registers.

use std::hint::black_box;

/// Overwrites this many bytes of the stack below the caller and, on x86-64, the vector registers.
///
/// What is left there is not only found on the stack: values of which parts are not initialised take it
/// along wherever they move.
// Never part of its caller: its array lies below all that the caller has called.
#[inline(never)]
pub fn scrub_stack<const BYTES: usize>() {
    #[cfg(target_arch = "x86_64")]
    crate::x86::clear_vectors();
    // By a mutable reference: another one could be to a constant.
    black_box(&mut [0_u8; BYTES]);
}
