//! The policies: into how many chunks a request is cut and where each is encrypted.

use crate::machine::Op;

/// Where a chunk is encrypted or decrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On the thread that has the request, at once.
    Here,
}

/// Which of dm-crypt's ways to dispatch is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Every chunk is encrypted where its request arrived: dm-crypt's `no_read_workqueue` with
    /// `no_write_workqueue`.
    #[default]
    Inline,
}

/// A policy's answer for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Largest chunk, in 512-byte sectors.
    pub(crate) chunk_sectors: u64,
    /// Most chunks of the request that may be under way at once.
    pub(crate) window: u32,
    pub(crate) place: Place,
}

/// Chunks of a write of zeroes under way at once: it owns no buffer of its own size, so each
/// chunk borrows one from the queue, which others need too.
const ZEROES_WINDOW: u32 = 2;

impl Policy {
    /// What to do with a request; `transfer_sectors_max` is the backend's largest transfer.
    pub(crate) fn plan(self, op: Op, transfer_sectors_max: u64) -> Plan {
        match self {
            Self::Inline => Plan {
                chunk_sectors: transfer_sectors_max,
                window: if matches!(op, Op::EncryptZeroes { .. }) {
                    ZEROES_WINDOW
                } else {
                    u32::MAX
                },
                place: Place::Here,
            },
        }
    }

    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
        }
    }
}
