//! The two copies of a LUKS2 header: which one is valid, and how to make the other one so again.
//!
//! A change is written to one copy and then to the other, so at any moment at least one of them is
//! whole. Reading takes the whole one with the higher sequence id. Nothing is repaired here: the
//! caller learns what is wrong ([`Damage`]) and may carry out [`Header::repair`].

use std::fmt;

use super::binary::{BINARY_BYTES, Binary, HEADER_SIZES};
use super::metadata::Metadata;
use crate::error::{Error, Result};
use crate::json::Json;
use crate::luks1;
use crate::medium::{Random, ReadAt, Write, fill_random, read_bytes};
use crate::signature;

/// One of the two copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copy {
    /// The one at byte 0.
    Primary,
    /// The one behind it.
    Secondary,
}

impl Copy {
    pub(crate) fn magic(self) -> [u8; 6] {
        match self {
            Self::Primary => luks1::MAGIC,
            Self::Secondary => *b"SKUL\xba\xbe",
        }
    }

    /// Where this copy lies if each is `header_size` bytes long.
    pub(crate) fn offset(self, header_size: u64) -> u64 {
        match self {
            Self::Primary => 0,
            Self::Secondary => header_size,
        }
    }
}

impl fmt::Display for Copy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Primary => "primary",
            Self::Secondary => "secondary",
        })
    }
}

/// The copy that cannot be used while the other one can.
#[derive(Debug)]
pub struct Damage {
    /// Which copy.
    pub copy: Copy,
    /// What is wrong with it.
    pub problem: Error,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} LUKS2 header copy is unusable ({}); ", self.copy, self.problem)?;
        write!(f, "using the other one")
    }
}

/// A LUKS2 header that follows the rules of its format.
#[derive(Debug, Clone)]
pub struct Header {
    /// The binary part.
    pub binary: Binary,
    /// The JSON metadata, understood.
    pub metadata: Metadata,
    /// The JSON metadata as it is stored, with everything that is not known here.
    pub json: Json,
}

impl Header {
    /// Reads both copies, checks them, and gives the valid one, together with the damage of the
    /// other one if there is any.
    pub fn read(image: &dyn ReadAt) -> Result<(Self, Option<Damage>)> {
        let primary = Self::read_copy(image, Copy::Primary, 0);
        let secondary = match &primary {
            Ok(header) => Self::read_copy(image, Copy::Secondary, header.binary.header_size),
            Err(_) => Self::find_secondary(image),
        };
        if let (Err(Error::NotLuks { .. }), Some(found)) = (&primary, signature::find(image)) {
            // Something else was put over an old LUKS2 header: its remains are not the owner.
            return Err(Error::NotLuks { found: Some(found) });
        }
        let (header, damage) = choose(primary, secondary)?;
        header.check_size(image)?;
        Ok((header, damage))
    }

    /// The write that makes `copy` a valid copy of this header again.
    pub fn repair(&self, copy: Copy, random: Random<'_>) -> Result<Write> {
        let mut salt = [0; 64];
        fill_random(random, &mut salt)?;
        let bytes = self.binary.to_bytes(copy, &salt, &self.json.to_compact())?;
        Ok(Write { offset: copy.offset(self.binary.header_size), bytes })
    }

    fn read_copy(image: &dyn ReadAt, copy: Copy, offset: u64) -> Result<Self> {
        let what = format!("the {copy} LUKS2 header");
        let largest = HEADER_SIZES[HEADER_SIZES.len() - 1];
        let binary = read_bytes(image, &what, offset, BINARY_BYTES as u64, largest)?;
        let binary = Binary::parse(&binary, copy, offset)?;
        let bytes = read_bytes(image, &what, offset, binary.header_size, largest)?;
        binary.verify_checksum(copy, &bytes)?;
        let json = parse_json_area(&bytes[BINARY_BYTES..])?;
        let metadata = Metadata::parse(&json, binary.header_size)?;
        Ok(Self { binary, metadata, json })
    }

    fn find_secondary(image: &dyn ReadAt) -> Result<Self> {
        let mut first_problem = Error::NotLuks { found: None };
        for offset in HEADER_SIZES {
            match Self::read_copy(image, Copy::Secondary, offset) {
                Ok(header) => return Ok(header),
                Err(Error::NotLuks { .. } | Error::Truncated { .. }) => {}
                Err(problem) => {
                    if matches!(first_problem, Error::NotLuks { .. }) {
                        first_problem = problem;
                    }
                }
            }
        }
        Err(first_problem)
    }

    /// Refuses an image that ends inside the keyslot areas.
    fn check_size(&self, image: &dyn ReadAt) -> Result<()> {
        let offset = 2 * self.binary.header_size;
        let end = offset + self.metadata.config.keyslots_size;
        let image_len = image.len();
        if end > image_len {
            let what = "the keyslots area of LUKS2".to_owned();
            return Err(Error::Truncated { what, offset, end, image_len });
        }
        Ok(())
    }
}

/// The valid copy, and what is wrong with the other one.
fn choose(primary: Result<Header>, secondary: Result<Header>) -> Result<(Header, Option<Damage>)> {
    match (primary, secondary) {
        (Ok(primary), Ok(secondary)) => {
            let (newer, older) = (&primary.binary.sequence_id, &secondary.binary.sequence_id);
            let stale = |copy, old: u64, new: u64| {
                let problem = format!("it is older, sequence id {old} instead of {new}");
                Some(Damage { copy, problem: Error::damaged("sequence id", problem) })
            };
            match newer.cmp(older) {
                std::cmp::Ordering::Equal => Ok((primary, None)),
                std::cmp::Ordering::Greater => {
                    let damage = stale(Copy::Secondary, *older, *newer);
                    Ok((primary, damage))
                }
                std::cmp::Ordering::Less => {
                    let damage = stale(Copy::Primary, *newer, *older);
                    Ok((secondary, damage))
                }
            }
        }
        (Ok(header), Err(problem)) => Ok((header, Some(Damage { copy: Copy::Secondary, problem }))),
        (Err(problem), Ok(header)) => Ok((header, Some(Damage { copy: Copy::Primary, problem }))),
        // No magic at byte 0, but the remains of a second copy: they tell more.
        (Err(Error::NotLuks { .. }), Err(problem)) | (Err(problem), Err(_)) => Err(problem),
    }
}

/// Parses a JSON area: an object at its first byte, filled up with zero bytes behind it.
fn parse_json_area(area: &[u8]) -> Result<Json> {
    let broken = |problem: &str| Error::damaged("JSON area", problem);
    if area.first() != Some(&b'{') {
        return Err(broken("it does not begin with a curly bracket"));
    }
    let end = area.iter().position(|byte| *byte == 0);
    let end = end.ok_or_else(|| broken("no zero byte ends the text"))?;
    if area[end..].iter().any(|byte| *byte != 0) {
        return Err(broken("there are bytes behind the text"));
    }
    Json::parse(&area[..end]).map_err(|problem| broken(&problem.to_string()))
}
