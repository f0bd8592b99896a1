//! What ciphers leave behind on the thread that runs them: round keys in vector registers and, with most ciphers,
//! parts of the key and of intermediate states on the stack.
//!
//! A thread scrubs both before it sleeps. So when the ciphers of a volume are taken away, nothing is left, because
//! its threads sleep or soon will.
//!
//! Until then, values of which parts are not initialised take what lies on the stack along, and may move to the
//! heap. So these ciphers run further down the stack than nearly everything else. That costs some tens of
//! nanoseconds, which AES-XTS would notice; it leaves no part of a key there ([`SectorCipher::stack_bytes`]).

use std::cell::Cell;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ptr;

use ucrypt_sector::{SectorCipher, scrub_registers, scrub_stack};

/// Bytes of stack between whoever runs a cipher and the cipher.
const GAP_BYTES: usize = 32 << 10;

/// Bytes of this gap that need not be scrubbed. A thread may have more of its stack in use when it scrubs than when
/// it ran a cipher, but not by as much as the rest of the gap.
const SKIPPED_BYTES: usize = GAP_BYTES - (2 << 10);

/// Bytes of stack of a call without a buffer.
const CALL_BYTES: usize = 256;

thread_local! {
    /// Whether this thread has run a cipher since it was last scrubbed.
    static RAN: Cell<bool> = const { Cell::new(false) };
    /// What ciphers have used of its stack since then.
    static USED: Cell<Used> = const { Cell::new(Used::NOTHING) };
}

/// A part of a stack, by addresses: it is used from its end to its start.
#[derive(Clone, Copy)]
struct Used {
    start: usize,
    end: usize,
}

impl Used {
    const NOTHING: Self = Self { start: usize::MAX, end: 0 };
}

/// Runs a cipher on this thread.
#[inline]
pub(crate) fn run<T>(cipher: &SectorCipher, run: impl FnOnce(&SectorCipher) -> T) -> T {
    RAN.set(true);
    if cipher.stack_bytes() == 0 {
        return run(cipher);
    }
    further_down::<GAP_BYTES, _>(|| run_noted(cipher, run))
}

/// Removes what ciphers have left on this thread. Call this before it sleeps.
#[inline]
pub(crate) fn scrub() {
    if RAN.replace(false) {
        scrub_registers();
        let used = USED.replace(Used::NOTHING);
        if used.end > 0 {
            scrub_used(used);
        }
    }
}

/// Runs a cipher, and notes what it may use of the stack.
// Never part of its caller, whose gap may lie below its other variables.
#[inline(never)]
fn run_noted<T>(cipher: &SectorCipher, run: impl FnOnce(&SectorCipher) -> T) -> T {
    let (here, used) = (stack_address(), USED.get());
    USED.set(Used {
        start: used.start.min(here - CALL_BYTES - cipher.stack_bytes()),
        end: used.end.max(here + CALL_BYTES),
    });
    run(cipher)
}

#[inline(never)]
fn scrub_used(used: Used) {
    if !further_down::<SKIPPED_BYTES, _>(|| scrub_from_here(used)) {
        scrub_from_here(used);
    }
}

/// Scrubs the stack from here to the start of this part. Returns false, and does nothing, if here is beyond the end
/// of this part.
#[inline(never)]
fn scrub_from_here(used: Used) -> bool {
    let here = stack_address();
    if here < used.end {
        return false;
    }
    // The second is for a thread that could not skip the gap.
    match here - used.start {
        0..=0x6000 => scrub_stack::<0x6000>(),
        _ => scrub_stack::<0xd000>(),
    }
    true
}

/// Where the stack of this thread ends now, or less than [`CALL_BYTES`] above or below.
#[inline]
fn stack_address() -> usize {
    let here = 0_u8;
    ptr::from_ref(black_box(&here)).addr()
}

/// Calls `work` so many bytes further down the stack.
#[inline(never)]
fn further_down<const BYTES: usize, T>(work: impl FnOnce() -> T) -> T {
    let gap = MaybeUninit::<[u8; BYTES]>::uninit();
    black_box(&gap);
    work()
}
