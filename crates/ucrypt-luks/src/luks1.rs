//! LUKS1: one binary header with eight keyslots.

mod change;
mod dump;
mod format;
mod header;
mod keyslot;
mod repair;
mod unlock;

pub use format::format;
pub(crate) use header::NAME_BYTES;
pub use header::{
    DIGEST_BYTES, HEADER_BYTES, Header, KEYSLOTS, Keyslot, MAGIC, REENCRYPTED_MAGIC, SALT_BYTES,
    State,
};
pub use repair::Repair;
