//! A way into a disk: the engine's queue, a connection, a device.

use std::io;

use ucrypt_backend::Errno;

use crate::model::Tag;
use crate::operation::Operation;

/// What became of a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submitted {
    /// It will be answered.
    Accepted,
    /// Not now: again after the next answer.
    Busy,
    /// Never: this disk does not do that.
    Refused,
}

/// An answer.
#[derive(Debug)]
pub struct Completion {
    /// Of the request.
    pub tag: Tag,
    /// How it ended.
    pub result: Result<(), Errno>,
    /// What was read.
    pub data: Option<Vec<u8>>,
}

/// One queue or connection. Requests on several ports of a disk are not ordered; an answer on one is
/// seen by what is submitted afterwards on any.
pub trait Port {
    /// Starts an operation; `data` is what a write writes.
    fn submit(&mut self, tag: Tag, operation: &Operation, data: &[u8]) -> Submitted;

    /// Takes what has been answered. With `wait` it may sleep for some milliseconds if nothing has.
    ///
    /// # Errors
    /// The way in is broken. The answers that had come before are taken nevertheless.
    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> io::Result<()>;

    /// Gives a request up, where that is possible; it is still answered.
    fn cancel(&mut self, tag: Tag);

    /// What the other end knows of what is under way, for the report of a hang.
    fn describe(&self) -> String;
}
