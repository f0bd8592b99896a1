//! Making a LUKS1 volume (on-disk format 1.2.3, section 4.1).

use super::header::{
    DIGEST_BYTES, HEADER_BYTES, Header, KEYSLOTS, Keyslot, NAME_BYTES, SALT_BYTES, State,
};
use super::keyslot::seal;
use crate::area::{STRIPES, material_len};
use crate::error::{Error, Result};
use crate::keys::NewKey;
use crate::medium::{Write, fill_random};
use crate::new_volume::{NewVolume, Region, Tools};
use crate::pbkdf::PbkdfKind;
use crate::volume::SECTOR_BYTES;

/// Alignment of keyslot areas, in bytes.
const AREA_ALIGNMENT: u64 = 4096;

/// Makes a header with one keyslot that `passphrase` opens. Returns the header and the writes that
/// put it on the image.
pub fn format(
    volume: &NewVolume,
    passphrase: &[u8],
    tools: &mut Tools<'_>,
) -> Result<(Header, Vec<Write>)> {
    volume.check(KEYSLOTS as u32, SECTOR_BYTES as u32)?;
    if volume.pbkdf.kind != PbkdfKind::Pbkdf2 {
        return Err(Error::request("LUKS1 has no other PBKDF than pbkdf2; use --type luks2"));
    }
    if volume.pbkdf.hash != volume.hash {
        return Err(Error::request("LUKS1 uses one hash for everything"));
    }
    let mut header = empty_header(volume, tools)?;
    let mut region = Region::new(header.areas_end(), header.data_offset())?;
    let length = material_len(volume.key_len(), STRIPES);
    for keyslot in &header.keyslots {
        region.fill(keyslot.material_start(), length, tools.random)?;
    }
    let new = NewKey { passphrase, pbkdf: volume.pbkdf, area: volume.area.clone() };
    let sealed = seal(&header, &volume.volume_key, &new, tools)?;
    let keyslot = &mut header.keyslots[volume.keyslot as usize];
    (keyslot.state, keyslot.iterations, keyslot.salt) =
        (State::Active, sealed.iterations, sealed.salt);
    region.put(keyslot.material_start(), &sealed.material);
    let bytes = header.to_bytes();
    // The new header has to parse.
    Header::parse(&bytes)?;
    Ok((header, region.into_writes([Write { offset: 0, bytes }])))
}

/// A header with the digest of the volume key and no active keyslot.
fn empty_header(volume: &NewVolume, tools: &mut Tools<'_>) -> Result<Header> {
    let (name, mode) = (volume.cipher.cipher_name(), volume.cipher.cipher_mode());
    if name.len() >= NAME_BYTES || mode.len() >= NAME_BYTES {
        let problem = format!("the name of {} does not fit into a LUKS1 header", volume.cipher);
        return Err(Error::request(problem));
    }
    let keyslots = free_keyslots(volume.key_len());
    let uuid = volume.uuid(tools.random)?;
    let mut digest_salt = [0; SALT_BYTES];
    fill_random(tools.random, &mut digest_salt)?;
    let iterations = volume.pbkdf.digest_iterations(volume.volume_key.len(), tools.clock)?;
    let mut digest = [0; DIGEST_BYTES];
    volume.hash.pbkdf2(&volume.volume_key, &digest_salt, iterations, &mut digest);
    let mut header = Header {
        cipher_name: name.to_owned(),
        cipher_mode: mode.to_owned(),
        hash: volume.hash.name().to_owned(),
        payload_offset: 0,
        key_bytes: volume.key_len(),
        digest,
        digest_salt,
        digest_iterations: iterations,
        uuid: uuid.as_str().into(),
        keyslots,
    };
    header.payload_offset = payload_offset(volume, header.areas_end())?;
    Ok(header)
}

/// Eight inactive keyslots, one after the other.
pub(super) fn free_keyslots(key_len: u32) -> [Keyslot; KEYSLOTS] {
    let step = material_len(key_len, STRIPES).next_multiple_of(AREA_ALIGNMENT);
    let first = (HEADER_BYTES as u64).next_multiple_of(AREA_ALIGNMENT);
    std::array::from_fn(|number| Keyslot {
        material_offset: ((first + number as u64 * step) / SECTOR_BYTES) as u32,
        stripes: STRIPES,
        ..Keyslot::default()
    })
}

/// Start of the data in sectors.
fn payload_offset(volume: &NewVolume, areas_end: u64) -> Result<u32> {
    let areas_end = areas_end.next_multiple_of(AREA_ALIGNMENT);
    let bytes = match volume.data_offset {
        None | Some(0) if volume.detached => 0,
        Some(offset) if offset >= areas_end => offset,
        Some(_) => {
            let problem = format!("the data must begin at byte {areas_end} or behind it");
            return Err(Error::request(problem));
        }
        None => volume.align_data(areas_end)?,
    };
    let too_far = || Error::request("LUKS1 has no data offset above 2 TiB; use --type luks2");
    u32::try_from(bytes / SECTOR_BYTES).map_err(|_| too_far())
}
