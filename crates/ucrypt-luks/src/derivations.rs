//! Tells a program of key derivations, which take seconds, so that it can show that it is busy.

use std::any::Any;
use std::sync::OnceLock;

use crate::kdf::Kdf;

type Watch = dyn Fn(&Kdf, Purpose) -> Box<dyn Any> + Send + Sync;

/// What a key derivation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A key.
    Key,
    /// Its time is measured.
    Measurement,
}

static WATCH: OnceLock<Box<Watch>> = OnceLock::new();

/// Has `watch` called when a key derivation begins, with its costs, measurements of the speed
/// included, whose time must not be made longer. What it returns is dropped when the derivation ends.
///
/// Only the first watch is taken.
pub fn watch_derivations(watch: impl Fn(&Kdf, Purpose) -> Box<dyn Any> + Send + Sync + 'static) {
    let _ = WATCH.set(Box::new(watch));
}

/// A derivation begins. Drop the result when it ends.
pub(crate) fn begin(kdf: &Kdf, purpose: Purpose) -> Option<Box<dyn Any>> {
    WATCH.get().map(|watch| watch(kdf, purpose))
}
