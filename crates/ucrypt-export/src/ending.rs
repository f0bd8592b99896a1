//! Tells the volume's listener when a thread of an export ends.

use std::sync::Arc;

use ucrypt_engine::Volume;

/// Tells the volume's listener when it is dropped, so also if the thread panics.
pub(crate) struct TellsAtItsEnd(pub(crate) Arc<Volume>);

impl Drop for TellsAtItsEnd {
    fn drop(&mut self) {
        self.0.tell();
    }
}
