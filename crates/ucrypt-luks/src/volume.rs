//! The result of an unlock: the volume key, and the segments with their ciphers.

use std::collections::BTreeSet;

use ucrypt_sector::{CipherSpec, SectorCipher, SectorOptions};
use zeroize::Zeroizing;

use crate::error::{Error, Result};

/// The unit of dm-crypt's tables, IV numbers and LUKS1 offsets, in bytes.
pub const SECTOR_BYTES: u64 = 512;

/// Where a volume's description came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// No header: plain dm-crypt, or a table line.
    Plain,
    /// A LUKS1 header.
    Luks1,
    /// A LUKS2 header.
    Luks2,
}

impl Format {
    /// The name of the format as cryptsetup's `--type` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Luks1 => "luks1",
            Self::Luks2 => "luks2",
        }
    }
}

/// An activation flag, from a table line or a LUKS2 header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flag {
    /// Discards are passed down.
    AllowDiscards,
    /// Encryption runs on the CPU that submits the request.
    SameCpuCrypt,
    /// Encrypted writes are submitted directly, without being sorted.
    SubmitFromCryptCpus,
    /// Integrity protection without a journal.
    NoJournal,
    /// Reads are decrypted where they complete.
    NoReadWorkqueue,
    /// Writes are encrypted where they are submitted.
    NoWriteWorkqueue,
    /// Work queues run at high priority.
    HighPriority,
}

impl Flag {
    /// All flags, each with its name in LUKS2 headers and, if it has one, in table lines.
    const NAMES: [(Self, &'static str, Option<&'static str>); 7] = [
        (Self::AllowDiscards, "allow-discards", Some("allow_discards")),
        (Self::SameCpuCrypt, "same-cpu-crypt", Some("same_cpu_crypt")),
        (Self::SubmitFromCryptCpus, "submit-from-crypt-cpus", Some("submit_from_crypt_cpus")),
        (Self::NoJournal, "no-journal", None),
        (Self::NoReadWorkqueue, "no-read-workqueue", Some("no_read_workqueue")),
        (Self::NoWriteWorkqueue, "no-write-workqueue", Some("no_write_workqueue")),
        (Self::HighPriority, "high-priority", Some("high_priority")),
    ];

    /// Finds a flag by its name in a LUKS2 header.
    pub fn from_header_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, header, _)| *header == name).map(|(flag, ..)| *flag)
    }

    /// The name of the flag in a LUKS2 header.
    pub fn header_name(self) -> &'static str {
        Self::NAMES.iter().find(|(flag, ..)| *flag == self).map_or("", |(_, header, _)| header)
    }

    /// Finds a flag by its name in a dm-crypt table line.
    pub fn from_table_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(.., table)| *table == Some(name)).map(|(flag, ..)| *flag)
    }
}

/// A byte range of the data image that is encrypted in one way. The volume is the concatenation of
/// its segments in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// First byte in the data image; a multiple of 512.
    pub offset: u64,
    /// Length in bytes, a multiple of `sector_size`; `None` reaches to the end of the image.
    pub length: Option<u64>,
    /// Added to the sector number that makes the IV, in 512-byte sectors.
    pub iv_tweak: u64,
    /// Cipher, mode and IV.
    pub cipher: CipherSpec,
    /// Bytes that are encrypted as one unit: 512, 1024, 2048 or 4096.
    pub sector_size: u32,
    /// Whether IVs count encryption sectors instead of 512-byte sectors.
    pub iv_large_sectors: bool,
}

impl Segment {
    /// The options for a [`SectorCipher`] of this segment.
    pub fn options(&self) -> SectorOptions {
        SectorOptions {
            sector_size: self.sector_size,
            iv_offset: self.iv_tweak,
            iv_large_sectors: self.iv_large_sectors,
        }
    }

    /// The cipher of this segment under `key`.
    pub fn cipher(&self, key: &[u8]) -> Result<SectorCipher> {
        SectorCipher::new(&self.cipher, key, self.options()).map_err(|problem| Error::Cipher {
            place: format!("data segment with {}", self.cipher),
            problem: problem.to_string(),
        })
    }
}

/// An unlocked volume.
pub struct Unlocked {
    /// The format that described the volume.
    pub format: Format,
    /// The key of all segments, wiped on drop.
    pub volume_key: Zeroizing<Vec<u8>>,
    /// The data segments in their order in the volume; at least one.
    pub segments: Vec<Segment>,
    /// Flags that the header or the table line asks for.
    pub flags: BTreeSet<Flag>,
    /// The keyslot that opened, if one was used.
    pub keyslot: Option<u32>,
    /// The UUID of the header.
    pub uuid: Option<String>,
    /// The label of a LUKS2 header.
    pub label: Option<String>,
}

impl std::fmt::Debug for Unlocked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unlocked")
            .field("format", &self.format)
            .field("segments", &self.segments)
            .field("flags", &self.flags)
            .field("keyslot", &self.keyslot)
            .field("uuid", &self.uuid)
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

impl Unlocked {
    /// Lengths of the segments in bytes, in order, inside a data image of `image_len` bytes.
    ///
    /// A segment without a length takes the rest of the image, rounded down to whole sectors. A
    /// segment that is empty or ends beyond the image is refused.
    pub fn segment_lengths(&self, image_len: u64) -> Result<Vec<u64>> {
        self.segments.iter().map(|segment| segment_length(segment, image_len)).collect()
    }

    /// Length of the volume in bytes inside a data image of `image_len` bytes. Fails as
    /// [`segment_lengths`](Self::segment_lengths) does.
    pub fn volume_len(&self, image_len: u64) -> Result<u64> {
        self.segment_lengths(image_len)?
            .into_iter()
            .try_fold(0_u64, u64::checked_add)
            .ok_or(Error::LargerThanImage { needed: u64::MAX, image_len })
    }
}

fn segment_length(segment: &Segment, image_len: u64) -> Result<u64> {
    let sector_size = u64::from(segment.sector_size.max(1));
    let rest = image_len.saturating_sub(segment.offset);
    let length = segment.length.unwrap_or(rest - rest % sector_size);
    let least = length.max(sector_size);
    let needed = segment.offset.saturating_add(least);
    if length == 0 || length > rest {
        return Err(Error::LargerThanImage { needed, image_len });
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(segments: &[(u64, Option<u64>)]) -> Unlocked {
        let segment = |&(offset, length)| Segment {
            offset,
            length,
            iv_tweak: 0,
            cipher: "aes-xts-plain64".parse().unwrap(),
            sector_size: 4096,
            iv_large_sectors: false,
        };
        Unlocked {
            format: Format::Luks2,
            volume_key: Zeroizing::new(vec![1; 64]),
            segments: segments.iter().map(segment).collect(),
            flags: BTreeSet::new(),
            keyslot: None,
            uuid: None,
            label: None,
        }
    }

    #[test]
    fn the_rest_of_the_image_is_cut_down_to_whole_sectors() {
        let volume = volume(&[(8192, None)]);
        assert_eq!(volume.volume_len(8192 + 4096 + 512).unwrap(), 4096);
        assert_eq!(volume.segment_lengths(8192 + 8192).unwrap(), [8192]);
    }

    #[test]
    fn a_segment_that_is_empty_or_ends_behind_the_image_is_refused() {
        for image_len in [0, 8191, 8192, 8192 + 4095] {
            let error = volume(&[(8192, None)]).volume_len(image_len).unwrap_err();
            assert!(matches!(error, Error::LargerThanImage { needed: 12288, .. }), "{error}");
        }
        let two = volume(&[(4096, Some(4096)), (8192, Some(8192))]);
        assert_eq!(two.volume_len(16384).unwrap(), 12288);
        assert!(matches!(
            two.volume_len(16383),
            Err(Error::LargerThanImage { needed: 16384, image_len: 16383 })
        ));
        assert!(volume(&[(u64::MAX - 511, Some(u64::MAX))]).volume_len(1 << 40).is_err());
    }
}
