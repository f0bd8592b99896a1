//! What a reply needs of its request, kept while the request is in the engine.

use crate::table::Table;

/// One request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) cookie: u64,
    pub(super) kind: Kind,
}

/// What to do when the engine has completed the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Send the data; the offset goes with it.
    Read { offset: u64 },
    /// Send the result.
    Plain,
    /// Flush, then send the result: the engine's discard has no FUA.
    TrimThenFlush,
}

/// The requests of a connection.
pub(super) type PendingTable = Table<Pending>;
