//! Access to a disk: the engine's queue, a connection, a device.

use std::io;

use ucrypt_backend::Errno;

use crate::model::Tag;
use crate::operation::Operation;

/// The outcome of a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submitted {
    /// The request will be answered.
    Accepted,
    /// No room now: submit again after the next answer.
    Busy,
    /// This disk does not support the operation.
    Refused,
}

/// The answer to a request.
#[derive(Debug)]
pub struct Completion {
    /// Tag of the request.
    pub tag: Tag,
    /// The result.
    pub result: Result<(), Errno>,
    /// The data of a read.
    pub data: Option<Vec<u8>>,
}

/// One queue or connection. Requests on several ports of a disk are not ordered; a request sees the
/// effects of all requests that were answered before it was submitted, on any port.
pub trait Port {
    /// Starts an operation; `data` is the data of a write.
    fn submit(&mut self, tag: Tag, operation: &Operation, data: &[u8]) -> Submitted;

    /// Takes the available answers. With `wait` it may sleep for some milliseconds if there are
    /// none.
    ///
    /// # Errors
    /// If the port is broken. Answers that came before are taken nevertheless.
    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> io::Result<()>;

    /// Cancels a request, where that is possible; it is still answered.
    fn cancel(&mut self, tag: Tag);

    /// The state of the requests in flight as seen by the other end, to report a hang.
    fn describe(&self) -> String;
}
