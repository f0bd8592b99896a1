//! Fixed-width fields of the binary headers.

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

/// The text of a field that is filled up with zero bytes. The last byte is never part of it.
pub(crate) fn text(place: &str, field: &[u8]) -> Result<String> {
    let field = field.split_last().map_or(field, |(_, field)| field);
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    match std::str::from_utf8(&field[..end]) {
        Ok(text) if !text.chars().any(char::is_control) => Ok(text.to_owned()),
        _ => Err(Error::damaged(place, "it is not printable text")),
    }
}

/// Appends `text` as a field of `N` bytes, filled up with zeros; at most `N - 1` bytes are kept.
pub(crate) fn put_text<const N: usize>(out: &mut Vec<u8>, text: &str) {
    let end = out.len() + N;
    out.extend(text.bytes().take(N - 1));
    out.resize(end, 0);
}
