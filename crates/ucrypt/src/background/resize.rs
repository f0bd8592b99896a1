//! A `resize` that is being served.
//!
//! A thread of its own asks the image for its length, tells the kernel the new one, and flushes. Each may take as long
//! as the image does not answer: meanwhile the server answers others, and ends when a signal asks it to.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};

use ucrypt_engine::{Volume, VolumeError};

use super::control::Asked;
use crate::ending::flush;
use crate::events::Event;
use crate::failure::Failure;

/// The result of the thread: the new length in bytes.
type Resized = Result<u64, Failure>;

/// The client that waits, and from where the result comes.
pub(super) struct Resizing {
    pub(super) stream: UnixStream,
    pub(super) resized: Receiver<Resized>,
}

/// Begins to change the length to so many bytes, or to what the image has room for. `tell` tells the users;
/// where that fails, the volume has the length `before` again. `events` is told when there is a result.
pub(super) fn begin(
    volume: &Arc<Volume>,
    before: u64,
    bytes: Option<u64>,
    tell: impl FnOnce() -> Result<(), Failure> + Send + 'static,
    events: Sender<Event<Asked>>,
) -> io::Result<Receiver<Resized>> {
    let (result, resized) = mpsc::channel();
    let volume = volume.clone();
    let resize = move || {
        let done = resize(&volume, bytes).and_then(|len| {
            // What was there before has room.
            tell().inspect_err(|_| _ = volume.resize(before))?;
            if len < before {
                // What was written behind the new end may be cut off from now on, and is no loss then.
                flush(&volume)?;
                volume.give_up_rest();
            }
            Ok(len)
        });
        // First, because a `close` may follow at once.
        drop(volume);
        // A server that has ended hears nothing.
        let _ = result.send(done);
        let _ = events.send(Event::Look);
    };
    std::thread::Builder::new().name("resize".into()).spawn(resize)?;
    Ok(resized)
}

impl Resizing {
    /// The result; `None` while the image has not answered.
    pub(super) fn result(&self) -> Option<Resized> {
        match self.resized.try_recv() {
            Ok(resized) => Some(resized),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(Err(Failure::device("the volume could not be resized; the log says why")))
            }
        }
    }
}

fn resize(volume: &Volume, bytes: Option<u64>) -> Resized {
    let failed = |error| Failure::device(format!("cannot tell the size of the image: {error}"));
    let len = bytes.map_or_else(|| volume.len_max().map_err(failed), Ok)?;
    volume.resize(len).map_err(|error| match (error, volume.len_max()) {
        (VolumeError::TooLarge { .. }, Ok(max)) => Failure::wrong(format!(
            "{len} bytes are more than the image has room for, which is {max}; make it longer first"
        )),
        (VolumeError::Unaligned { sector_size, .. }, _) => {
            Failure::wrong(format!("the size has to be a multiple of {sector_size} bytes"))
        }
        (error, _) => Failure::wrong(error),
    })?;
    Ok(len)
}
