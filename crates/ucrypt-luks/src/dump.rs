//! Shared parts of showing a header of either version as cryptsetup's `luksDump` does.

use std::fmt::Write;

use zeroize::Zeroizing;

use crate::header::Header;
use crate::json::Json;
use crate::keys::OpenedKey;
use crate::luks2::{self, SegmentKind};
use crate::volume::SECTOR_BYTES;

/// Bytes per line of a hex dump.
const WRAP: usize = 16;

/// Appends `bytes` in hex, each followed by a space; every line but the first begins with `indent`.
pub(crate) fn put_hex(out: &mut String, bytes: &[u8], indent: &str) {
    for (number, line) in bytes.chunks(WRAP).enumerate() {
        if number > 0 {
            out.push('\n');
            out.push_str(indent);
        }
        put_hex_line(out, line);
    }
    out.push('\n');
}

/// Appends `bytes` in hex, each followed by a space.
pub(crate) fn put_hex_line(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Formatting into a string cannot fail.
        let _: std::fmt::Result = write!(out, "{byte:02x} ");
    }
}

/// Appends one line.
macro_rules! line {
    ($out:expr, $($format:tt)*) => {{
        // Formatting into a string cannot fail.
        let _: std::fmt::Result = std::fmt::Write::write_fmt($out, format_args!($($format)*));
        $out.push('\n');
    }};
}
pub(crate) use line;

/// The bytes as one JSON string of hex digits.
pub(crate) fn hex(bytes: &[u8]) -> Json {
    let mut out = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _: std::fmt::Result = write!(out, "{byte:02x}");
    }
    out.into()
}

impl Header {
    /// The text of `luksDump`; the first line for LUKS1 names the image as `path`.
    pub fn dump(&self, path: &str) -> String {
        match self {
            Self::Luks1(header) => header.dump(path),
            Self::Luks2(header) => header.dump(),
        }
    }

    /// The content of [`dump`](Self::dump) for programs: sizes and offsets in bytes, salts and
    /// digests in hex.
    pub fn dump_json(&self) -> Json {
        match self {
            Self::Luks1(header) => header.dump_json(),
            Self::Luks2(header) => header.dump_json(),
        }
    }

    /// The text of `luksDump --dump-volume-key`; its first line names the image as `path`.
    pub fn dump_volume_key(&self, path: &str, opened: &OpenedKey) -> Zeroizing<String> {
        let (name, mode) = self.cipher_names();
        let key = &opened.key;
        // Allocated in full: a growing string would leave parts of the key in freed memory.
        let mut out = Zeroizing::new(String::with_capacity(512 + path.len() + 5 * key.len()));
        line!(&mut *out, "LUKS header information for {path}");
        line!(&mut *out, "Cipher name:   \t{name}");
        line!(&mut *out, "Cipher mode:   \t{mode}");
        line!(&mut *out, "Payload offset:\t{}", self.data_offset() / SECTOR_BYTES);
        line!(&mut *out, "UUID:          \t{}", self.uuid());
        line!(&mut *out, "MK bits:       \t{}", 8 * key.len());
        out.push_str("MK dump:\t");
        put_hex(&mut out, key, "\t\t");
        out
    }

    /// The cipher of the volume, or of its first segment, and mode and IV, as the header gives them.
    pub fn cipher_names(&self) -> (&str, &str) {
        match self {
            Self::Luks1(header) => (&header.cipher_name, &header.cipher_mode),
            Self::Luks2(header) => match header.metadata.segments.values().next() {
                Some(luks2::Segment { kind: SegmentKind::Crypt { encryption, .. }, .. }) => {
                    encryption.split_once('-').unwrap_or((encryption, ""))
                }
                _ => ("", ""),
            },
        }
    }

    /// The text of `luksDump --unbound` for the key of an unbound keyslot.
    pub fn dump_unbound_key(&self, path: &str, opened: &OpenedKey) -> Zeroizing<String> {
        let key = &opened.key;
        let mut out = Zeroizing::new(String::with_capacity(512 + path.len() + 5 * key.len()));
        line!(&mut *out, "LUKS header information for {path}");
        line!(&mut *out, "UUID:    \t{}", self.uuid());
        line!(&mut *out, "Keyslot: \t{}", opened.keyslot);
        line!(&mut *out, "Key bits:\t{}", 8 * key.len());
        out.push_str("Unbound Key:\t");
        put_hex(&mut out, key, "\t\t");
        out
    }
}
