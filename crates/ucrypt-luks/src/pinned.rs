//! A header that is read once, and its digest.
//!
//! Whoever controls the image can answer each read in another way: show one header while it is
//! checked and another while it is used. A [`HeaderCopy`] reads each byte of the header once, into
//! memory of its own, and everything else is done with the copy.
//!
//! The digest is SHA-256 over all bytes that determine what is opened: from byte 0 to the end of the
//! last keyslot area. For LUKS2 this is both copies, binary part and JSON, and the whole keyslots
//! area; for LUKS1 the header and everything up to the end of its last area. It is the digest of the
//! first bytes of the image, as `head -c LENGTH IMAGE | sha256sum` prints it.

use std::fmt;
use std::io;
use std::str::FromStr;

use crate::backup::BACKUP_MAX;
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::header::Header;
use crate::luks1::{self, HEADER_BYTES};
use crate::luks2;
use crate::medium::{ReadAt, read_bytes};

/// The digest of a whole header; see [`HeaderCopy`]. Its text form is `sha256:` and 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HeaderDigest([u8; 32]);

impl fmt::Display for HeaderDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for HeaderDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for HeaderDigest {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let broken = || format!("'{text}' is no digest; write sha256: and 64 hex digits");
        let hex = text.strip_prefix("sha256:").ok_or_else(broken)?.as_bytes();
        let digit = |digit: u8| (digit as char).to_digit(16).map(|value| value as u8);
        let mut digest = [0; 32];
        if hex.len() != 2 * digest.len() {
            return Err(broken());
        }
        for (byte, pair) in digest.iter_mut().zip(hex.chunks_exact(2)) {
            let both = digit(pair[0]).zip(digit(pair[1]));
            *byte = both.map(|(high, low)| high << 4 | low).ok_or_else(broken)?;
        }
        Ok(Self(digest))
    }
}

/// All bytes of a header, of which each was read once.
pub struct HeaderCopy {
    bytes: Vec<u8>,
}

impl fmt::Debug for HeaderCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeaderCopy of {} bytes", self.bytes.len())
    }
}

impl HeaderCopy {
    /// Reads the header of `image`.
    ///
    /// # Errors
    /// Those of [`Header::read`]. A LUKS2 header one of whose copies is damaged has no digest: which
    /// copy counts would depend on the rest of the image.
    pub fn read(image: &dyn ReadAt) -> Result<Self> {
        let mut copy = Self { bytes: Vec::new() };
        copy.extend(image, HEADER_BYTES as u64)?;
        if !copy.bytes.starts_with(&luks1::MAGIC) {
            return Err(Error::NotLuks { found: None });
        }
        if copy.bytes[luks1::MAGIC.len()..].starts_with(&1_u16.to_be_bytes()) {
            let header = luks1::Header::parse(&copy.bytes)?;
            copy.extend(image, header.areas_end())?;
        } else {
            let binary = luks2::Binary::parse(&copy.bytes, luks2::Copy::Primary)?;
            copy.extend(image, 2 * binary.header_size)?;
            let primary = luks2::Header::of_primary(&copy.bytes[..binary.header_size as usize])?;
            copy.extend(image, primary.end())?;
        }
        match Header::read(&copy)? {
            (_, None) => Ok(copy),
            (_, Some(damage)) => Err(Error::Strict(format!(
                "{damage}; run \"ucrypt repair\" on it, then take its digest again"
            ))),
        }
    }

    /// The digest of all bytes.
    pub fn digest(&self) -> HeaderDigest {
        let mut digest = [0; 32];
        digest.copy_from_slice(&Hash::Sha256.digest(&[&self.bytes]));
        HeaderDigest(digest)
    }

    /// Refuses every header but the one with this digest.
    pub fn check(&self, wanted: HeaderDigest) -> Result<()> {
        let found = self.digest();
        if found == wanted { Ok(()) } else { Err(Error::OtherHeader { found, wanted }) }
    }

    /// Reads on up to byte `end`.
    fn extend(&mut self, image: &dyn ReadAt, end: u64) -> Result<()> {
        let start = self.bytes.len() as u64;
        if end > start {
            let more = read_bytes(image, "the header", start, end - start, BACKUP_MAX - start)?;
            self.bytes.extend(more);
        }
        Ok(())
    }
}

impl ReadAt for HeaderCopy {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.bytes.read_exact_at(offset, buf)
    }
}
