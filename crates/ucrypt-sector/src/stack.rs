//! What keys leave behind on a stack, where values that move leave a copy, and in registers.

use std::hint::black_box;

/// Overwrites this many bytes of the stack below the caller, and the vector registers.
///
/// What is left there is not only found on the stack: values of which parts are not initialised take it
/// along wherever they move.
// Never part of its caller: its array lies below all that the caller has called.
#[inline(never)]
pub fn scrub_stack<const BYTES: usize>() {
    scrub_registers();
    // By a mutable reference: another one could be to a constant.
    black_box(&mut [0_u8; BYTES]);
}

/// Clears the vector registers, where round keys may be left; on x86-64 only. Signals and, when it looks for a
/// function, the dynamic linker store them on the stack.
#[inline]
pub fn scrub_registers() {
    #[cfg(target_arch = "x86_64")]
    crate::x86::clear_vectors();
}
