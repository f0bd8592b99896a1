//! Detects which standard streams were closed when this process started.
//!
//! Before `main`, Rust's runtime opens `/dev/null` in place of each closed standard stream. Reads
//! from it are empty and writes to it are lost, without an error. A program that moves data through
//! standard input and output has to refuse instead, so this module looks earlier: in an initialiser
//! that the C library calls before it hands over (`.init_array` of the ELF format).

#![expect(unsafe_code, reason = "an initialiser is found by the name of its section")]

use std::sync::atomic::{AtomicU8, Ordering};

use rustix::io::{Errno, fcntl_getfd};

/// One bit for each descriptor.
static CLOSED: AtomicU8 = AtomicU8::new(0);

// SAFETY: the section is a table of functions of the C calling convention, each called once, before
// `main`. This function cannot unwind, needs nothing of Rust's runtime, and returns.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    let streams = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
    for (number, stream) in streams.into_iter().enumerate() {
        if fcntl_getfd(stream) == Err(Errno::BADF) {
            CLOSED.fetch_or(1 << number, Ordering::Relaxed);
        }
    }
}

/// Whether this standard stream (0, 1 or 2) was closed when the process was started.
pub fn was_closed_at_start(stream: u8) -> bool {
    CLOSED.load(Ordering::Relaxed) & 1_u8.checked_shl(stream.into()).unwrap_or(0) != 0
}

#[cfg(test)]
mod tests {
    use super::was_closed_at_start;

    #[test]
    fn the_streams_of_a_test_were_open() {
        assert!((0..=9).all(|stream| !was_closed_at_start(stream)));
    }
}
