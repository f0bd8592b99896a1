//! The threads of exports: each tells the volume's listener when it ends. And a wait for an end.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ucrypt_engine::Volume;

/// Starts a thread that serves the volume and tells the volume's listener at its end.
pub(crate) fn spawn(
    name: String,
    volume: &Arc<Volume>,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let end = TellsAtItsEnd(volume.clone());
    thread::Builder::new().name(name).spawn(move || {
        let _end = end;
        run();
    })
}

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
struct TellsAtItsEnd(Arc<Volume>);

impl Drop for TellsAtItsEnd {
    fn drop(&mut self) {
        self.0.tell();
    }
}
