//! The memory of key derivations, which a header asks for in gigabytes.
//!
//! Memory is the process's and not a volume's, so one guard decides for all derivations, as one
//! allocator does. The program installs it; this crate neither looks at the system nor waits.

use std::sync::OnceLock;

use crate::error::{Error, Result};

/// The right to take memory. Dropping it says that the memory was given back, or never taken.
pub trait Permit {
    /// All of the memory has been taken and touched, so the system can see that it is gone.
    fn taken(&mut self);
}

type Guard = dyn Fn(u64) -> std::result::Result<Box<dyn Permit>, String> + Send + Sync;

static GUARD: OnceLock<Box<Guard>> = OnceLock::new();

/// Has `guard` asked before a key derivation takes memory, with the number of bytes. It may wait. If
/// it refuses, the keyslot is not tried, and its text says why ([`Error::NoMemory`]).
///
/// Only the first guard is taken. Without one, every derivation takes what it needs.
pub fn guard_memory(
    guard: impl Fn(u64) -> std::result::Result<Box<dyn Permit>, String> + Send + Sync + 'static,
) {
    let _ = GUARD.set(Box::new(guard));
}

/// Asks the guard for `bytes`.
pub(crate) fn permit(bytes: u64) -> Result<Box<dyn Permit>> {
    let Some(guard) = GUARD.get() else { return Ok(Box::new(Unguarded)) };
    guard(bytes).map_err(Error::NoMemory)
}

struct Unguarded;

impl Permit for Unguarded {
    fn taken(&mut self) {}
}
