//! LUKS1: one binary header with eight keyslots.

mod dump;
mod format;
mod header;
mod unlock;

pub use format::format;
pub use header::{DIGEST_BYTES, HEADER_BYTES, Header, KEYSLOTS, Keyslot, MAGIC, SALT_BYTES};
