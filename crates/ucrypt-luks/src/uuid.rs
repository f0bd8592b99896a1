//! UUIDs in the text form that headers store (RFC 9562, section 4).

use std::fmt::Write;

use crate::error::{Error, Result};
use crate::medium::{Random, fill_random};

/// Positions of the hyphens in the text form.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];
const TEXT_LEN: usize = 36;

/// A random UUID (version 4).
pub(crate) fn generate(random: Random<'_>) -> Result<String> {
    let mut bytes = [0; 16];
    fill_random(random, &mut bytes)?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = String::with_capacity(TEXT_LEN);
    for byte in bytes {
        if HYPHENS.contains(&text.len()) {
            text.push('-');
        }
        let _: std::fmt::Result = write!(text, "{byte:02x}");
    }
    Ok(text)
}

/// The lower-case form of `text`, if it is a UUID.
pub(crate) fn normalize(text: &str) -> Result<String> {
    let good = text.len() == TEXT_LEN
        && text.bytes().enumerate().all(|(at, byte)| {
            if HYPHENS.contains(&at) { byte == b'-' } else { byte.is_ascii_hexdigit() }
        });
    if good {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(Error::request(format!(
            "\"{text}\" is not a UUID of the form 01234567-89ab-cdef-0123-456789abcdef"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_uuid_is_well_formed_and_of_version_4() {
        let mut random = |buf: &mut [u8]| {
            buf.fill(0xff);
            Ok(())
        };
        let text = generate(&mut random).unwrap();
        assert_eq!(text, "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(normalize(&text.to_uppercase()).unwrap(), text);
    }

    #[test]
    fn what_is_no_uuid_is_refused() {
        for text in ["", "ffffffff-ffff-4fff-bfff-fffffffffff", "g".repeat(36).as_str()] {
            assert!(normalize(text).is_err(), "{text}");
        }
    }
}
