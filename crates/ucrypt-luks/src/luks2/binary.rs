//! The binary part of a LUKS2 header copy: its first 4096 bytes, of which 512 are used. All numbers
//! are big-endian (LUKS2 on-disk format 1.1, section 2.1).

use subtle::ConstantTimeEq;

use super::copies::Copy;
use crate::error::{Error, Result};
use crate::fields::{FieldText, Fields, name, put_text, text};
use crate::hash::find_hash;

/// Length of the binary part in bytes.
pub(crate) const BINARY_BYTES: usize = 4096;

/// The sizes that a header copy may have, binary part and JSON area together. The secondary copy
/// begins where the primary ends, so these are also its possible offsets.
pub const HEADER_SIZES: [u64; 9] =
    [0x4000, 0x8000, 0x1_0000, 0x2_0000, 0x4_0000, 0x8_0000, 0x10_0000, 0x20_0000, 0x40_0000];

/// Length of the label field and of the subsystem field; the last byte stays zero.
pub(crate) const LABEL_BYTES: usize = 48;

/// Most bytes of a label.
pub const LABEL_MAX: usize = LABEL_BYTES - 1;
const ALGORITHM_BYTES: usize = 32;
const ALGORITHM_OFFSET: usize = 72;
const SALT_BYTES: usize = 64;
const SALT_OFFSET: usize = 104;
const UUID_BYTES: usize = 40;
const PLACE_OFFSET: usize = 256;
const CHECKSUM_OFFSET: usize = 448;
const CHECKSUM_BYTES: usize = 64;

/// The fields of the binary part that both copies share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binary {
    /// Length of one copy in bytes: one of [`HEADER_SIZES`].
    pub header_size: u64,
    /// Grows with every change. The copy with the higher sequence id is the valid one.
    pub sequence_id: u64,
    /// The label.
    pub label: FieldText,
    /// Name of the hash that makes the checksum.
    pub checksum: String,
    /// The UUID in its text form.
    pub uuid: FieldText,
    /// The subsystem label.
    pub subsystem: FieldText,
}

impl Binary {
    /// Parses the binary part of `copy`. Does not check the checksum or the offset.
    pub(crate) fn parse(bytes: &[u8], copy: Copy) -> Result<Self> {
        let mut fields = Fields::new("LUKS2 binary header", bytes);
        if fields.take::<6>()? != copy.magic() {
            return Err(Error::NotLuks { found: None });
        }
        match u16::from_be_bytes(fields.take()?) {
            2 => {}
            0 => return Err(Error::damaged(format!("{copy} LUKS2 header"), "its version is 0")),
            version => return Err(Error::UnknownVersion(version)),
        }
        let header_size = u64::from_be_bytes(fields.take()?);
        if !HEADER_SIZES.contains(&header_size) {
            let problem = format!("its size of {header_size} bytes is none of the allowed ones");
            return Err(Error::damaged(format!("{copy} LUKS2 header"), problem));
        }
        let sequence_id = u64::from_be_bytes(fields.take()?);
        let label = text(&fields.take::<LABEL_BYTES>()?);
        let checksum = name("checksum algorithm", &fields.take::<ALGORITHM_BYTES>()?)?;
        fields.take::<SALT_BYTES>()?;
        let uuid = text(&fields.take::<UUID_BYTES>()?);
        let subsystem = text(&fields.take::<LABEL_BYTES>()?);
        Ok(Self { header_size, sequence_id, label, checksum, uuid, subsystem })
    }

    /// The bytes of a whole copy: the binary part with its checksum, and the JSON area.
    /// `json` must be shorter than the JSON area.
    pub(crate) fn to_bytes(
        &self,
        copy: Copy,
        salt: &[u8; SALT_BYTES],
        json: &[u8],
    ) -> Result<Vec<u8>> {
        let area = self.header_size - BINARY_BYTES as u64;
        if json.len() as u64 >= area {
            let problem =
                format!("{} bytes of JSON do not fit into the area of {area}", json.len());
            return Err(Error::request(problem));
        }
        let mut out = Vec::with_capacity(self.header_size as usize);
        out.extend(copy.magic());
        out.extend(2_u16.to_be_bytes());
        out.extend(self.header_size.to_be_bytes());
        out.extend(self.sequence_id.to_be_bytes());
        put_text::<LABEL_BYTES>(&mut out, self.label.as_bytes());
        put_text::<ALGORITHM_BYTES>(&mut out, self.checksum.as_bytes());
        out.resize(out.len() + SALT_BYTES, 0);
        put_text::<UUID_BYTES>(&mut out, self.uuid.as_bytes());
        put_text::<LABEL_BYTES>(&mut out, self.subsystem.as_bytes());
        out.resize(BINARY_BYTES, 0);
        out.extend(json);
        out.resize(self.header_size as usize, 0);
        become_copy(&mut out, copy, salt)?;
        Ok(out)
    }
}

/// Turns the bytes of either whole copy into those of `copy`: sets the magic, the offset, the salt
/// and the checksum, and leaves all other bytes unchanged.
pub(crate) fn become_copy(bytes: &mut [u8], copy: Copy, salt: &[u8; SALT_BYTES]) -> Result<()> {
    let place = copy.offset(bytes.len() as u64);
    bytes[..6].copy_from_slice(&copy.magic());
    bytes[SALT_OFFSET..][..SALT_BYTES].copy_from_slice(salt);
    bytes[PLACE_OFFSET..][..8].copy_from_slice(&place.to_be_bytes());
    bytes[CHECKSUM_OFFSET..][..CHECKSUM_BYTES].fill(0);
    let checksum = checksum_of(bytes)?;
    bytes[CHECKSUM_OFFSET..][..checksum.len()].copy_from_slice(&checksum);
    Ok(())
}

/// Whether the stored checksum of a whole copy is correct.
pub(crate) fn has_right_checksum(bytes: &[u8]) -> Result<bool> {
    let expected = checksum_of(bytes)?;
    Ok(bytes[CHECKSUM_OFFSET..][..expected.len()].ct_eq(&expected).into())
}

/// Refuses a whole copy that was made for an offset other than `offset`.
pub(crate) fn check_place(bytes: &[u8], copy: Copy, offset: u64) -> Result<()> {
    let mut fields = Fields::new("LUKS2 binary header", &bytes[PLACE_OFFSET..]);
    let stored = u64::from_be_bytes(fields.take()?);
    if stored == offset && copy.offset(bytes.len() as u64) == offset {
        return Ok(());
    }
    let problem = format!("it lies at byte {offset} and was made for {stored}");
    Err(Error::damaged(format!("{copy} LUKS2 header"), problem))
}

/// The checksum over a whole copy, with the checksum field taken as zeros.
fn checksum_of(bytes: &[u8]) -> Result<Vec<u8>> {
    let algorithm = name("checksum algorithm", &bytes[ALGORITHM_OFFSET..][..ALGORITHM_BYTES])?;
    let hash = find_hash(&algorithm)?;
    let (front, behind) = bytes.split_at(CHECKSUM_OFFSET);
    Ok(hash.digest(&[front, &[0; CHECKSUM_BYTES], &behind[CHECKSUM_BYTES..]]))
}
