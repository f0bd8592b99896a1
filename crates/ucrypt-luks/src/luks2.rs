//! LUKS2: two copies of a binary header with JSON metadata, and a keyslots area.

mod binary;
mod change;
mod change_keyslots;
mod change_tokens;
mod copies;
mod dump;
mod dump_json;
mod format;
mod keyslot;
mod metadata;
mod parse;
mod reencryption;
mod unlock;
mod validate;

pub(crate) use binary::BINARY_BYTES;
pub use binary::{Binary, HEADER_SIZES, LABEL_MAX};
pub use change::Change;
pub use change_tokens::keyring_token;
pub use copies::{Copy, Damage, Header, Kept};
pub use format::{Options, format};
pub(crate) use keyslot::{area_size, base64, decimal};
pub use metadata::{
    Af, Area, Config, Digest, DigestKind, Keyslot, KeyslotKind, Metadata, Pbkdf2Digest, Priority,
    Segment, SegmentKind, Token,
};
pub(crate) use validate::{AREA_ALIGNMENT, KEYSLOTS_SIZE_MAX};
