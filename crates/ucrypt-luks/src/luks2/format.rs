//! Making a LUKS2 volume.

use ucrypt_sector::CipherSpec;

use super::binary::{BINARY_BYTES, Binary, HEADER_SIZES, LABEL_MAX};
use super::copies::{Copy, Header};
use super::keyslot::{
    FALLBACK_AREA_CIPHER, FALLBACK_AREA_KEY_LEN, Plan, area_size, decimal, digest,
};
use super::parse::KEYSLOTS_MAX;
use super::validate::{AREA_ALIGNMENT, KEYSLOTS_SIZE_MAX};
use crate::area::parse_cipher;
use crate::error::{Error, Result};
use crate::fields::FieldText;
use crate::json::Json;
use crate::medium::Write;
use crate::new_volume::{NewVolume, Region, Tools};

/// Default size of both header copies and the keyslots area together, in bytes.
const DEFAULT_SIZE: u64 = 16 << 20;

/// The LUKS2-only parameters of a new volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Label, of which the header holds [`LABEL_MAX`] bytes.
    pub label: String,
    /// Subsystem label, of which the header holds [`LABEL_MAX`] bytes.
    pub subsystem: String,
    /// Bytes that are encrypted as one unit: 512, 1024, 2048 or 4096.
    pub sector_size: u32,
    /// Length of one header copy in bytes: one of [`HEADER_SIZES`]; `None` means 16 KiB.
    pub metadata_size: Option<u64>,
    /// Length of the keyslots area in bytes, a multiple of 4096.
    pub keyslots_size: Option<u64>,
}

/// Makes a header with one keyslot that `passphrase` opens. Returns the header and the writes that
/// put it on the image.
pub fn format(
    volume: &NewVolume,
    options: &Options,
    passphrase: &[u8],
    tools: &mut Tools<'_>,
) -> Result<(Header, Vec<Write>)> {
    check_options(options)?;
    volume.check(KEYSLOTS_MAX, options.sector_size)?;
    let layout = Layout::new(volume, options)?;
    let binary = Binary {
        header_size: layout.header_size,
        sequence_id: 1,
        label: label("label", &options.label)?,
        checksum: "sha256".to_owned(),
        uuid: volume.uuid(tools.random)?.as_str().into(),
        subsystem: label("subsystem", &options.subsystem)?,
    };
    let mut region = Region::new(layout.areas_end(), layout.wiped_data_offset)?;
    region.fill(layout.area_offset(), layout.keyslots_size, tools.random)?;
    let (keyslot, material) = new_keyslot(volume, &layout, passphrase, tools)?;
    region.put(layout.area_offset(), &material);
    let number = volume.keyslot.to_string();
    let digest = digest(&volume.volume_key, &volume.pbkdf, &[&number], &["0"], tools)?;
    let json = Json::object([
        ("keyslots", vec![(number, keyslot)].into()),
        ("tokens", Json::object([])),
        ("segments", Json::object([("0", segment(volume, options, layout.data_offset))])),
        ("digests", Json::object([("0", digest)])),
        ("config", layout.config()),
    ]);
    // What was made has to be readable.
    let header = Header::new(&binary, &json)?;
    // The primary copy is written last; until then, readers fall back to the secondary copy.
    let copies = [
        header.write_of(Copy::Secondary, tools.random)?,
        header.write_of(Copy::Primary, tools.random)?,
    ];
    Ok((header, region.into_writes(copies)))
}

/// Offsets and lengths in bytes.
struct Layout {
    header_size: u64,
    keyslots_size: u64,
    data_offset: u64,
    /// The data offset if the data follows the header in the same image, otherwise 0.
    wiped_data_offset: u64,
}

impl Layout {
    fn new(volume: &NewVolume, options: &Options) -> Result<Self> {
        let header_size = options.metadata_size.unwrap_or(HEADER_SIZES[0]);
        let both = 2 * header_size;
        // The format requires room for the header in front of data that does not begin at 0.
        let behind = volume.data_offset.filter(|offset| *offset != 0 || !volume.detached);
        let room = behind.map_or(KEYSLOTS_SIZE_MAX, |offset| offset.saturating_sub(both));
        let room = room.min(KEYSLOTS_SIZE_MAX) / AREA_ALIGNMENT * AREA_ALIGNMENT;
        let keyslots_size = match (options.keyslots_size, behind) {
            (Some(size), _) => size.min(room),
            (None, Some(_)) => room,
            (None, None) => DEFAULT_SIZE - both,
        };
        let end = both + keyslots_size;
        let data_offset = match volume.data_offset {
            Some(offset) => offset,
            None if volume.detached => 0,
            None => volume.align_data(end)?,
        };
        let area_size = area_size(volume.key_len());
        if area_size > keyslots_size || behind.is_some_and(|offset| offset < end) {
            return Err(Error::request(format!(
                "the data would begin inside the header: {} bytes are needed in front of it",
                both + keyslots_size.max(area_size)
            )));
        }
        let wiped_data_offset = if volume.detached { 0 } else { data_offset };
        Ok(Self { header_size, keyslots_size, data_offset, wiped_data_offset })
    }

    fn area_offset(&self) -> u64 {
        2 * self.header_size
    }

    fn areas_end(&self) -> u64 {
        self.area_offset() + self.keyslots_size
    }

    fn config(&self) -> Json {
        Json::object([
            ("json_size", decimal(self.header_size - BINARY_BYTES as u64)),
            ("keyslots_size", decimal(self.keyslots_size)),
        ])
    }
}

/// As much of a label as its field holds: as in cryptsetup, the rest is cut off.
pub(super) fn label(what: &str, text: &str) -> Result<FieldText> {
    if text.chars().any(char::is_control) {
        return Err(Error::request(format!("the {what} has to be printable")));
    }
    Ok(FieldText::cut(text, LABEL_MAX))
}

fn check_options(options: &Options) -> Result<()> {
    if !matches!(options.sector_size, 512 | 1024 | 2048 | 4096) {
        let size = options.sector_size;
        let problem = format!("the sector size {size} is none of 512, 1024, 2048 and 4096");
        return Err(Error::request(problem));
    }
    if options.metadata_size.is_some_and(|size| !HEADER_SIZES.contains(&size)) {
        return Err(Error::request("the metadata size has to be a power of two, 16 KiB to 4 MiB"));
    }
    let bad = |size: u64| size > KEYSLOTS_SIZE_MAX || !size.is_multiple_of(AREA_ALIGNMENT);
    if options.keyslots_size.is_some_and(bad) {
        let problem = "the keyslots size has to be a multiple of 4096 up to 128 MiB";
        return Err(Error::request(problem));
    }
    Ok(())
}

fn segment(volume: &NewVolume, options: &Options, data_offset: u64) -> Json {
    Json::object([
        ("type", "crypt".into()),
        ("offset", decimal(data_offset)),
        ("size", "dynamic".into()),
        ("iv_tweak", decimal(0)),
        ("encryption", volume.cipher.to_string().as_str().into()),
        ("sector_size", options.sector_size.into()),
    ])
}

/// The keyslot that `passphrase` opens, and its key material.
fn new_keyslot(
    volume: &NewVolume,
    layout: &Layout,
    passphrase: &[u8],
    tools: &mut Tools<'_>,
) -> Result<(Json, Vec<u8>)> {
    let (cipher, area_key_len) = area_cipher(volume)?;
    let plan = Plan {
        key: &volume.volume_key,
        passphrase,
        pbkdf: volume.pbkdf,
        hash: volume.hash,
        cipher,
        area_key_len,
        offset: layout.area_offset(),
    };
    plan.make(tools)
}

/// Keyslot areas use the cipher of the volume, unless another one was chosen or that is the null
/// cipher.
fn area_cipher(volume: &NewVolume) -> Result<(CipherSpec, u32)> {
    if let Some(area) = &volume.area {
        return Ok(area.clone());
    }
    if volume.cipher.is_null() {
        let cipher = parse_cipher("keyslot area", FALLBACK_AREA_CIPHER)?;
        return Ok((cipher, FALLBACK_AREA_KEY_LEN));
    }
    Ok((volume.cipher.clone(), volume.key_len()))
}
