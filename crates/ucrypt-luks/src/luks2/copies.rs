//! The two copies of a LUKS2 header: choosing the valid copy and repairing the other one.
//!
//! A change is written to one copy and then to the other, so at least one of them is whole at any
//! moment. Reading takes the whole copy with the higher sequence id. Reading repairs nothing: it
//! reports what is wrong ([`Damage`]), and the caller may carry out [`Header::repair`]. A repair
//! overwrites only a copy that is certainly a torn or damaged LUKS2 copy: its magic and version are
//! right, its checksum is wrong, and the image bears no foreign signature, or the other copy tells of
//! a conversion that tears this one.
//!
//! If the newer copy is whole but cannot be used (it breaks a rule that only this program has, or
//! follows one of the future), the header is refused: the older copy is no substitute.

use std::fmt;

use super::binary::{
    BINARY_BYTES, Binary, HEADER_SIZES, become_copy, check_place, has_right_checksum,
};
use super::metadata::Metadata;
use crate::convert::is_marked;
use crate::error::{Error, Result};
use crate::json::Json;
use crate::luks1;
use crate::medium::{Random, ReadAt, Write, fill_random, read_bytes};
use crate::signature::{self, Signature};

/// One of the two copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copy {
    /// The copy at byte 0.
    Primary,
    /// The copy that follows the primary.
    Secondary,
}

impl Copy {
    pub(crate) fn magic(self) -> [u8; 6] {
        match self {
            Self::Primary => luks1::MAGIC,
            Self::Secondary => *b"SKUL\xba\xbe",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::Secondary => "secondary",
        }
    }

    /// The offset of this copy if each copy is `header_size` bytes long.
    pub(crate) fn offset(self, header_size: u64) -> u64 {
        match self {
            Self::Primary => 0,
            Self::Secondary => header_size,
        }
    }
}

impl fmt::Display for Copy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The unusable copy of a header whose other copy can be used.
#[derive(Debug)]
pub struct Damage {
    /// Which copy.
    pub copy: Copy,
    /// What is wrong with it.
    pub problem: Error,
    kept: Option<Kept>,
    foreign: Option<Signature>,
}

impl Damage {
    /// Why the copy must stay as it is, if it must.
    pub fn kept(&self) -> Option<&Kept> {
        self.kept.as_ref()
    }

    /// The foreign signature that the image bears, too. [`Header::read`] refuses such an image.
    pub fn foreign(&self) -> Option<Signature> {
        self.foreign
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} LUKS2 header copy is unusable (", self.copy)?;
        match &self.problem {
            Error::NotLuks { .. } => f.write_str("there is none in its place)"),
            problem => write!(f, "{problem})"),
        }
    }
}

/// Why nothing is written over a copy that cannot be used.
#[derive(Debug)]
pub enum Kept {
    /// Nothing indicates that the bytes there belong to LUKS2.
    NoMagic,
    /// It could not be read.
    Unread,
    /// Its version, size or checksum algorithm is unknown.
    Unknown,
    /// It is a whole copy of an earlier state: a change was interrupted. The next change writes it.
    Older,
    /// Its checksum is right: the copy is as some program wrote it.
    Whole,
    /// The search for foreign signatures failed.
    Unprobed(Error),
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMagic => f.write_str("nothing says that what is there is LUKS"),
            Self::Unread => f.write_str("it cannot be read"),
            Self::Unknown => f.write_str("a newer program may have made it"),
            Self::Older | Self::Whole => f.write_str("its checksum is right"),
            Self::Unprobed(problem) => {
                write!(f, "foreign signatures cannot be ruled out: {problem}")
            }
        }
    }
}

/// A LUKS2 header that follows the rules of its format.
#[derive(Debug, Clone)]
pub struct Header {
    /// The binary part.
    pub binary: Binary,
    /// The parsed JSON metadata.
    pub metadata: Metadata,
    /// The JSON metadata as stored, including unknown members.
    pub json: Json,
    bytes: Bytes,
}

/// All bytes of a copy.
#[derive(Clone)]
struct Bytes(Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// A copy that cannot be used.
struct Unusable {
    problem: Error,
    state: State,
}

/// The result of reading one copy.
type Candidate = std::result::Result<Header, Unusable>;

/// The state of an unusable copy.
enum State {
    /// Its magic is missing, or it lies outside the image.
    Absent,
    /// It could not be read.
    Unread,
    /// Its version, size or checksum algorithm is unknown.
    Unknown,
    /// Its checksum is wrong, or its version 0.
    Torn,
    /// Its checksum is right, but it breaks a rule.
    Whole { sequence_id: u64 },
}

impl State {
    fn with(self, problem: Error) -> Unusable {
        // A read error says nothing about the copy.
        let state = if matches!(problem, Error::Read { .. }) { Self::Unread } else { self };
        Unusable { problem, state }
    }

    /// Why a copy in this state must stay as it is.
    fn kept(&self) -> Option<Kept> {
        match self {
            Self::Absent => Some(Kept::NoMagic),
            Self::Unread => Some(Kept::Unread),
            Self::Unknown => Some(Kept::Unknown),
            Self::Torn => None,
            Self::Whole { .. } => Some(Kept::Whole),
        }
    }
}

impl Header {
    /// Reads and checks both copies. Returns the valid one, together with the damage of the other
    /// copy if there is any.
    pub fn read(image: &dyn ReadAt) -> Result<(Self, Option<Damage>)> {
        let (header, damage) = Self::read_beside_foreign(image)?;
        if let Some((damage, found)) = damage.as_ref().and_then(|d| Some((d, d.foreign?))) {
            return Err(Error::Ambiguous { damage: damage.to_string(), found });
        }
        Ok((header, damage))
    }

    /// As [`read`](Self::read). If one copy cannot be used and the image bears a foreign signature,
    /// the damage names it ([`Damage::foreign`]): whoever goes on must know whose the image is.
    pub fn read_beside_foreign(image: &dyn ReadAt) -> Result<(Self, Option<Damage>)> {
        let primary = Self::read_copy(image, Copy::Primary, 0);
        let secondary = match &primary {
            Ok(header) => Self::read_copy(image, Copy::Secondary, header.binary.header_size),
            // A LUKS magic with another version: do not look for a secondary copy.
            Err(Unusable { problem: Error::UnknownVersion(version), .. }) => {
                return Err(Error::UnknownVersion(*version));
            }
            Err(_) => Self::find_secondary(image),
        };
        let (header, mut damage) = choose(primary, secondary)?;
        header.check_size(image)?;
        // Two right checksums leave no doubt whose image it is, nor does a conversion, which tears the
        // primary copy.
        if let Some(damage) = &mut damage
            && !matches!(damage.kept, Some(Kept::Older))
            && !(damage.kept.is_none() && is_marked(&header.metadata))
        {
            match signature::find_foreign(image) {
                Ok(found) => damage.foreign = found,
                Err(problem) => damage.kept = Some(Kept::Unprobed(problem)),
            }
        }
        Ok((header, damage))
    }

    /// What keeps the copies of `image`, of which none can be used here, from being overwritten: one
    /// that is not torn may be what only another program understands. `None` also for LUKS1, which
    /// has no checksum.
    pub(crate) fn not_torn(image: &dyn ReadAt) -> Option<Error> {
        let primary = Self::read_copy(image, Copy::Primary, 0);
        if matches!(&primary, Err(Unusable { problem: Error::UnknownVersion(1), .. })) {
            return None;
        }
        let read_secondary = |offset| Self::read_copy(image, Copy::Secondary, offset);
        let copies = std::iter::once(primary).chain(HEADER_SIZES.into_iter().map(read_secondary));
        let mut problems = copies.filter_map(|copy| match copy {
            Ok(header) => header.check_size(image).err(),
            Err(Unusable { state: State::Absent | State::Torn, .. }) => None,
            Err(Unusable { problem, .. }) => Some(problem),
        });
        problems.next()
    }

    /// The write that turns the damaged copy into a valid copy of this header. Refused if the copy
    /// must stay as it is.
    pub fn repair(&self, damage: &Damage, random: Random<'_>) -> Result<Write> {
        if let Some(kept) = &damage.kept {
            return Err(Error::request(format!("the copy is not written again: {kept}")));
        }
        if let Some(found) = damage.foreign {
            return Err(Error::request(format!("the copy is not written again: there is {found}")));
        }
        self.write_of(damage.copy, random)
    }

    /// As [`repair`](Self::repair), for a user who knows that the image holds this volume: also
    /// writes over a copy that [`Damage::kept`] or a foreign signature protects, unless a newer
    /// program may have made it.
    pub fn repair_by_request(&self, damage: &Damage, random: Random<'_>) -> Result<Write> {
        if let Some(kept @ Kept::Unknown) = &damage.kept {
            return Err(Error::request(format!("the copy is not written again: {kept}")));
        }
        self.write_of(damage.copy, random)
    }

    /// The write that stores `copy` of this header.
    pub(crate) fn write_of(&self, copy: Copy, random: Random<'_>) -> Result<Write> {
        let mut salt = [0; 64];
        fill_random(random, &mut salt)?;
        let mut bytes = self.bytes.0.clone();
        become_copy(&mut bytes, copy, &salt)?;
        Ok(Write { offset: copy.offset(self.binary.header_size), bytes })
    }

    /// A new header with `json` as its metadata.
    pub(crate) fn new(binary: &Binary, json: &Json) -> Result<Self> {
        let bytes = binary.to_bytes(Copy::Primary, &[0; 64], &json.to_stored())?;
        Self::parse(bytes, Copy::Primary, 0).map_err(|unusable| unusable.problem)
    }

    /// The header in the bytes of a primary copy alone.
    pub(crate) fn of_primary(bytes: &[u8]) -> Result<Self> {
        Self::parse(bytes.to_vec(), Copy::Primary, 0).map_err(|unusable| unusable.problem)
    }

    fn read_copy(image: &dyn ReadAt, copy: Copy, offset: u64) -> Candidate {
        let what = format!("the {copy} LUKS2 header");
        let largest = HEADER_SIZES[HEADER_SIZES.len() - 1];
        let binary = read_bytes(image, &what, offset, BINARY_BYTES as u64, largest)
            .map_err(|problem| State::Absent.with(problem))?;
        let binary =
            Binary::parse(&binary, copy).map_err(|problem| not_parsed(&binary, problem))?;
        let bytes = read_bytes(image, &what, offset, binary.header_size, largest)
            .map_err(|problem| State::Absent.with(problem))?;
        Self::parse(bytes, copy, offset)
    }

    /// Parses the bytes of a whole copy that lies at byte `offset`.
    fn parse(bytes: Vec<u8>, copy: Copy, offset: u64) -> Candidate {
        let binary = Binary::parse(&bytes, copy).map_err(|problem| not_parsed(&bytes, problem))?;
        if !has_right_checksum(&bytes).map_err(|problem| State::Unknown.with(problem))? {
            let problem = Error::damaged(format!("{copy} LUKS2 header"), "its checksum is wrong");
            return Err(State::Torn.with(problem));
        }
        let sequence_id = binary.sequence_id;
        let whole = |problem| State::Whole { sequence_id }.with(problem);
        check_place(&bytes, copy, offset).map_err(whole)?;
        let json = parse_json_area(&bytes[BINARY_BYTES..]).map_err(whole)?;
        let metadata = Metadata::parse(&json, binary.header_size).map_err(whole)?;
        Ok(Self { binary, metadata, json, bytes: Bytes(bytes) })
    }

    /// Searches every offset at which a secondary copy may lie.
    fn find_secondary(image: &dyn ReadAt) -> Candidate {
        let mut first = State::Absent.with(Error::NotLuks { found: None });
        for offset in HEADER_SIZES {
            match Self::read_copy(image, Copy::Secondary, offset) {
                Ok(header) => return Ok(header),
                Err(Unusable { state: State::Absent, .. }) => {}
                Err(unusable) => {
                    if matches!(first.state, State::Absent) {
                        first = unusable;
                    }
                }
            }
        }
        Err(first)
    }

    /// The byte after the keyslots area, which is the last part of a header.
    pub(crate) fn end(&self) -> u64 {
        2 * self.binary.header_size + self.metadata.config.keyslots_size
    }

    /// Refuses an image that ends before the keyslots area does.
    fn check_size(&self, image: &dyn ReadAt) -> Result<()> {
        let (offset, end) = (2 * self.binary.header_size, self.end());
        let image_len = image.len();
        if end > image_len {
            let what = "the keyslots area of LUKS2".to_owned();
            return Err(Error::Truncated { what, offset, end, image_len });
        }
        Ok(())
    }
}

/// The valid copy, and what is wrong with the other one.
fn choose(primary: Candidate, secondary: Candidate) -> Result<(Header, Option<Damage>)> {
    match (primary, secondary) {
        (Ok(primary), Ok(secondary)) => {
            let (first, second) = (primary.binary.sequence_id, secondary.binary.sequence_id);
            let stale = |copy, old: u64, new: u64| {
                let problem = format!("it is older, sequence id {old} instead of {new}");
                let problem = Error::damaged("sequence id", problem);
                Some(Damage { copy, problem, kept: Some(Kept::Older), foreign: None })
            };
            Ok(match first.cmp(&second) {
                std::cmp::Ordering::Equal => (primary, None),
                std::cmp::Ordering::Greater => (primary, stale(Copy::Secondary, second, first)),
                std::cmp::Ordering::Less => (secondary, stale(Copy::Primary, first, second)),
            })
        }
        (Ok(header), Err(unusable)) => beside(header, Copy::Secondary, unusable),
        (Err(unusable), Ok(header)) => beside(header, Copy::Primary, unusable),
        // There is no magic at byte 0; the problem of the secondary copy says more.
        (Err(Unusable { problem: Error::NotLuks { .. }, .. }), Err(Unusable { problem, .. }))
        | (Err(Unusable { problem, .. }), Err(_)) => Err(problem),
    }
}

/// The valid header with the damage of the unusable copy. Refused if the unusable copy is whole and
/// newer.
fn beside(header: Header, copy: Copy, unusable: Unusable) -> Result<(Header, Option<Damage>)> {
    let Unusable { problem, state } = unusable;
    let older = header.binary.sequence_id;
    if let State::Whole { sequence_id } = state
        && sequence_id > older
    {
        let copy = copy.name();
        return Err(Error::NewerUnusable { copy, sequence_id, older, problem: problem.into() });
    }
    Ok((header, Some(Damage { copy, problem, kept: state.kept(), foreign: None })))
}

/// Parses a JSON area: an object that begins at the first byte, then zero bytes to the end.
/// A copy whose binary part, which `bytes` begin with, is none.
fn not_parsed(bytes: &[u8], problem: Error) -> Unusable {
    let state = match problem {
        Error::NotLuks { .. } => State::Absent,
        // No program makes headers of version 0.
        _ if bytes.get(6..8) == Some(&[0, 0]) => State::Torn,
        _ => State::Unknown,
    };
    state.with(problem)
}

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
