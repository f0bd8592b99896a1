//! Fixed-width fields of the binary headers.

use std::fmt;

use crate::error::{Error, Result};

/// Takes fixed-width fields off the front of a header.
pub(crate) struct Fields<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, rest: bytes }
    }

    /// The next `N` bytes.
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (field, rest) = self
            .rest
            .split_first_chunk()
            .ok_or_else(|| Error::damaged(self.what, "it is cut off"))?;
        self.rest = rest;
        Ok(*field)
    }
}

/// The text of a fixed-width field: any bytes, in any encoding or none.
///
/// `Display` escapes control characters and bytes that are not UTF-8, as in `\xe4`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct FieldText(Vec<u8>);

impl FieldText {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The first `len` bytes of a text, at most.
    pub(crate) fn cut(text: &str, len: usize) -> Self {
        Self(text.as_bytes().iter().copied().take(len).collect())
    }

    /// Whether the text has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for FieldText {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl fmt::Display for FieldText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let escaped = |f: &mut fmt::Formatter<'_>, bytes: &[u8]| {
            bytes.iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))
        };
        for chunk in self.0.utf8_chunks() {
            for char in chunk.valid().chars() {
                if char.is_control() {
                    escaped(f, char.encode_utf8(&mut [0; 4]).as_bytes())?;
                } else {
                    write!(f, "{char}")?;
                }
            }
            escaped(f, chunk.invalid())?;
        }
        Ok(())
    }
}

impl fmt::Debug for FieldText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// The text of a zero-padded field. The last byte is never part of the text.
pub(crate) fn text(field: &[u8]) -> FieldText {
    let field = field.split_last().map_or(field, |(_, field)| field);
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    FieldText(field[..end].to_vec())
}

/// As [`text`], for the name of a cipher or a hash: printable UTF-8 only.
pub(crate) fn name(place: &str, field: &[u8]) -> Result<String> {
    match String::from_utf8(text(field).0) {
        Ok(name) if !name.chars().any(char::is_control) => Ok(name),
        _ => Err(Error::damaged(place, "it is not printable text")),
    }
}

/// Appends `text` as a zero-padded field of `N` bytes; keeps at most `N - 1` bytes of the text.
pub(crate) fn put_text<const N: usize>(out: &mut Vec<u8>, text: &[u8]) {
    let end = out.len() + N;
    out.extend(text.iter().take(N - 1));
    out.resize(end, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_any_bytes_is_kept_and_shown_without_harm() {
        let field = text(b"\xc3\xa4\xc3\t\x1b[2J\xe4x\0behind\0");
        assert_eq!(field.to_string(), "\u{e4}\\xc3\\x09\\x1b[2J\\xe4x");
        let mut out = Vec::new();
        put_text::<16>(&mut out, field.as_bytes());
        assert_eq!(out, b"\xc3\xa4\xc3\t\x1b[2J\xe4x\0\0\0\0\0\0");
    }
}
