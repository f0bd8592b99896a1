//! How exports end: waits for that, and tells the volume's listener when a thread ends.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ucrypt_engine::Volume;

/// Waits until `is_so` holds, at most until then. Returns whether it holds.
pub(crate) fn holds_by(until: Instant, is_so: impl Fn() -> bool) -> bool {
    while !is_so() {
        if Instant::now() > until {
            return false;
        }
        thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Tells the volume's listener when it is dropped, so also if the thread panics.
pub(crate) struct TellsAtItsEnd(pub(crate) Arc<Volume>);

impl Drop for TellsAtItsEnd {
    fn drop(&mut self) {
        self.0.tell();
    }
}
