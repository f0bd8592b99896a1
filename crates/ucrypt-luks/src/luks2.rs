//! LUKS2: two copies of a binary header with JSON metadata, and a keyslots area.

mod binary;
mod copies;
mod dump;
mod dump_json;
mod format;
mod metadata;
mod parse;
mod unlock;
mod validate;

pub use binary::{Binary, HEADER_SIZES};
pub use copies::{Copy, Damage, Header, Kept};
pub use format::{Options, format};
pub use metadata::{
    Af, Area, Config, Digest, DigestKind, Keyslot, KeyslotKind, Metadata, Pbkdf2Digest, Priority,
    Segment, SegmentKind, Token,
};
