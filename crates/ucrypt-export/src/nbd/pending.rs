//! What a reply will need of its request, while the engine has it.

use crate::table::Table;

/// One request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) cookie: u64,
    pub(super) kind: Kind,
}

/// What is to be done when the engine is done.
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
