//! Signatures on an image: the magic numbers of LUKS, file systems, RAID members, volume managers
//! and partition tables, at both ends of the image, under the names that `blkid` gives them.
//!
//! The search runs before a header is repaired, because nothing may be written to an image with a
//! foreign signature. It also runs before an image is formatted, because a leftover signature would
//! make other tools misidentify the volume. A range that cannot be read is an error: it may hold a
//! signature.

use std::fmt;

use crate::error::Result;
use crate::luks1;
use crate::luks2::HEADER_SIZES;
use crate::medium::{ReadAt, Write, read_bytes};

/// Bytes read at once at each end of an image; most signatures are there.
const WINDOW: u64 = 80 << 10;

/// The name of both versions of LUKS.
const LUKS: &str = "crypto_LUKS";

/// The names of the two partition tables of a PC: MBR and GPT.
const DOS: &str = "dos";
const GPT: &str = "gpt";

const MD: &str = "linux_raid_member";
const MD_LITTLE: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();
const MD_BIG: [u8; 4] = 0xa92b_4efc_u32.to_be_bytes();

const BCACHEFS: [u8; 16] = *b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";

/// Offset in bytes, magic, name. The more specific ones come first.
const AT_THE_START: &[(u64, &[u8], &str)] = &[
    (0, b"QFI\xfb", "qcow2"),
    (0, b"VDI_", "vdi"),
    (64, b"\x7f\x10\xda\xbe", "vdi"),
    (0, b"KDMV", "vmdk"),
    (0, b"vhdxfile", "vhdx"),
    (0, b"conectix", "vhd"),
    (0, b"bluestore block device", "ceph_bluestore"),
    (0, b"dmvdo001", "vdo"),
    (0, b"verity\0\0", "DM_verity_hash"),
    (0, b"integrt\0", "DM_integrity"),
    (0, b"SnAp", "DM_snapshot_cow"),
    (0, b"$DRBDmgr=q", "drbdmanage_control_volume"),
    (0, b"UBI#", "ubi"),
    (0, b"\x31\x18\x10\x06", "ubifs"),
    (0, b"SFOZ", "zonefs"),
    (0, b"XFSB", "xfs"),
    (0, b"EXFS", "exfs"),
    (0, b"hsqs", "squashfs"),
    (0, b"sqsh", "squashfs"),
    (0, b"\x45\x3d\xcd\x28", "cramfs"),
    (0, b"-rom1fs-", "romfs"),
    (0, b"\x0b\xe5\xa9\x41", "sgi"),
    (3, b"-FVE-FS-", "BitLocker"),
    (3, b"NTFS    ", "ntfs"),
    (3, b"EXFAT   ", "exfat"),
    (3, b"\0\0\0ReFS\0", "ReFS"),
    (32, b"NXSB", "apfs"),
    (0x36, b"MSDOS", "vfat"),
    (0x36, b"FAT12   ", "vfat"),
    (0x36, b"FAT16   ", "vfat"),
    (0x36, b"FAT     ", "vfat"),
    (0x52, b"MSWIN", "vfat"),
    (0x52, b"FAT32   ", "vfat"),
    (0, &MD_LITTLE, MD),
    (0x1000, &MD_LITTLE, MD),
    (0, b"LABELONE", "LVM2_member"),
    (0x200, b"LABELONE", "LVM2_member"),
    (0x400, b"LABELONE", "LVM2_member"),
    (0x600, b"LABELONE", "LVM2_member"),
    (0x204, b"!Stra0tis\x86\xff\x02^\x41rh", "stratis"),
    (0x1204, b"!Stra0tis\x86\xff\x02^\x41rh", "stratis"),
    (0x200, b"EFI PART", GPT),
    (0x1000, b"EFI PART", GPT),
    (0x200, b"\x57\x45\x56\x82", "bsd"),
    (0x400, b"BD", "hfs"),
    (0x400, b"H+", "hfsplus"),
    (0x400, b"HX", "hfsplus"),
    (0x400, b"\x10\x20\xf5\xf2", "f2fs"),
    (0x400, b"\xe2\xe1\xf5\xe0", "erofs"),
    (0x400, b"OCFSV2", "ocfs2"),
    (0x800, b"OCFSV2", "ocfs2"),
    (0x1000, b"OCFSV2", "ocfs2"),
    (0x2000, b"OCFSV2", "ocfs2"),
    (0x438, b"\x53\xef", "ext4"),
    (0xff6, b"SWAP-SPACE", "swap"),
    (0xff6, b"SWAPSPACE2", "swap"),
    (0x1ff6, b"SWAPSPACE2", "swap"),
    (0x3ff6, b"SWAPSPACE2", "swap"),
    (0x7ff6, b"SWAPSPACE2", "swap"),
    (0xfff6, b"SWAPSPACE2", "swap"),
    (0xff6, b"S1SUSPEND", "swsuspend"),
    (0xff6, b"S2SUSPEND", "swsuspend"),
    (0xff6, b"ULSUSPEND", "swsuspend"),
    (0xff6, b"LINHIB0001", "swsuspend"),
    (0x1018, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", "bcache"),
    (0x1018, &BCACHEFS, "bcachefs"),
    (0x20_0018, &BCACHEFS, "bcachefs"),
    (0x1220, b"\xf0\x16\x78\x5a", "hpt37x_raid_member"),
    (0x1220, b"\xfd\x16\x78\x5a", "hpt37x_raid_member"),
    (0x2000, b"\x49\xe8\x95\xf9", "hpfs"),
    (0x2034, b"ReIsErFs", "reiserfs"),
    (0x1_0034, b"ReIsErFs", "reiserfs"),
    (0x1_0034, b"ReIsEr2Fs", "reiserfs"),
    (0x1_0034, b"ReIsEr3Fs", "reiserfs"),
    (0x1_0000, b"ReIsEr4", "reiser4"),
    (0x1_0000, b"\x01\x16\x19\x70", "gfs2"),
    (0x1_0040, b"_BHRfS_M", "btrfs"),
    (0x8000, b"JFS1", "jfs"),
    (0x8001, b"CD001", "iso9660"),
    (0x8001, b"BEA01", "udf"),
    (0x8001, b"NSR02", "udf"),
    (0x8001, b"NSR03", "udf"),
    (0x10_0000, b"\x0d\xd0\x01\xc0", "VMFS_volume_member"),
    (0x20_0000, b"\x5e\xf1\xab\x2f", "VMFS"),
];

/// Distance from the end in whole 512-byte sectors, offset in that sector, magic, name.
const AT_THE_END: &[(u64, u64, &[u8], &str)] = &[
    (1, 0, b"\xde\x11\xde\x11", "ddf_raid_member"),
    (1, 0, b"\x11\xde\x11\xde", "ddf_raid_member"),
    (257, 0, b"\xde\x11\xde\x11", "ddf_raid_member"),
    (257, 0, b"\x11\xde\x11\xde", "ddf_raid_member"),
    (1, 0, b"\x37\xfc\x4d\x1e", "adaptec_raid_member"),
    (1, 0, b"$XIDE$", "lsi_mega_raid_member"),
    (2, 0, b"Intel Raid ISM Cfg Sig. ", "isw_raid_member"),
    (16, 0, b"Intel Raid ISM Cfg Sig. ", "isw_raid_member"),
    (2, 0, b"NVIDIA", "nvidia_raid_member"),
    (11, 0, b"\xf3\x16\x78\x5a", "hpt45x_raid_member"),
    (11, 0, b"\xfd\x16\x78\x5a", "hpt45x_raid_member"),
    (8, 60, b"\x83\x74\x02\x6b", "drbd"),
    (8, 60, b"\x83\x74\x02\x6c", "drbd"),
    (8, 60, b"\x83\x74\x02\x6d", "drbd"),
];

/// Where a Promise RAID signature may lie, in sectors before the end.
const PROMISE_SECTORS: [u64; 13] = [16, 63, 255, 256, 399, 591, 675, 735, 911, 951, 974, 991, 3087];

/// A signature that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// Its name, as `blkid` spells it.
    pub name: &'static str,
    /// Its first byte.
    pub offset: u64,
    /// Its length in bytes. Once these bytes are zero, the signature is no longer found.
    pub length: u64,
}

impl Signature {
    /// Whether it is a LUKS signature.
    pub fn is_luks(&self) -> bool {
        self.name == LUKS
    }

    /// What the signature belongs to, in cryptsetup's words: a partition table or a superblock.
    pub fn kind(&self) -> &'static str {
        if [DOS, GPT, "sgi", "bsd"].contains(&self.name) { "partition" } else { "superblock" }
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the signature of {} at byte {}", self.name, self.offset)
    }
}

/// Every known signature of `image`, including those of LUKS, in the order of the search.
pub fn find(image: &dyn ReadAt) -> Result<Vec<Signature>> {
    let ends = Ends::read(image)?;
    let mut found = Vec::new();
    for (offset, magic, name) in AT_THE_START {
        ends.look(Some(*offset), magic, name, &mut found)?;
    }
    gpt_backup(&ends, &mut found)?;
    if let Some(table) = dos_table(&ends)? {
        found.push(table);
    }
    ends.look(Some(0), &luks1::MAGIC, LUKS, &mut found)?;
    ends.look(Some(0), &luks1::REENCRYPTED_MAGIC, LUKS, &mut found)?;
    for offset in HEADER_SIZES {
        ends.look(Some(offset), b"SKUL\xba\xbe", LUKS, &mut found)?;
    }
    for (sectors, offset, magic, name) in AT_THE_END {
        let sector = ends.sector(*sectors).map(|sector| sector + offset);
        ends.look(sector, magic, name, &mut found)?;
    }
    for sectors in PROMISE_SECTORS {
        let name = "promise_fasttrack_raid_member";
        ends.look(ends.sector(sectors), b"Promise Technology, Inc.", name, &mut found)?;
    }
    // MD version 0.90 lies 64 to 128 KiB before the end, version 1.0 8 to 12 KiB.
    let old = (ends.len & !0xffff).checked_sub(0x1_0000);
    ends.look(old, &MD_LITTLE, MD, &mut found)?;
    ends.look(old, &MD_BIG, MD, &mut found)?;
    ends.look((ends.len & !0xfff).checked_sub(0x2000), &MD_LITTLE, MD, &mut found)?;
    checked_at_the_end(&ends, &mut found)?;
    zfs_labels(image, &mut found)?;
    Ok(found)
}

/// The first signature that is not a LUKS signature.
pub fn find_foreign(image: &dyn ReadAt) -> Result<Option<Signature>> {
    Ok(find(image)?.into_iter().find(|signature| !signature.is_luks()))
}

/// The writes that erase `signatures`, from the end of the image to its start. The primary LUKS
/// header goes last, so an interruption leaves a whole volume or none.
pub fn wipe(signatures: &[Signature]) -> Vec<Write> {
    let mut places: Vec<(u64, u64)> =
        signatures.iter().map(|signature| (signature.offset, signature.length)).collect();
    places.sort_unstable();
    places.dedup();
    let zeros = |(offset, length): (u64, u64)| Write { offset, bytes: vec![0; length as usize] };
    places.into_iter().rev().map(zeros).collect()
}

/// An image with its first and last bytes in memory.
struct Ends<'a> {
    image: &'a dyn ReadAt,
    len: u64,
    start: Vec<u8>,
    end: Vec<u8>,
    end_offset: u64,
}

impl<'a> Ends<'a> {
    fn read(image: &'a dyn ReadAt) -> Result<Self> {
        let len = image.len();
        let window = len.min(WINDOW);
        let end_offset = len - window;
        let part = |offset| read_bytes(image, "signatures", offset, window, WINDOW);
        Ok(Self { image, len, start: part(0)?, end: part(end_offset)?, end_offset })
    }

    /// First byte of the whole sector that lies `sectors` sectors before the end; 0 gives the end
    /// of the last whole sector.
    fn sector(&self, sectors: u64) -> Option<u64> {
        (self.len / 512).checked_sub(sectors).map(|sector| sector * 512)
    }

    /// The `length` bytes at `offset`; `None` if the image does not reach that far.
    fn bytes(&self, offset: u64, length: usize) -> Result<Option<Vec<u8>>> {
        if offset.checked_add(length as u64).is_none_or(|end| end > self.len) {
            return Ok(None);
        }
        let within = |window: &[u8], begin: u64| {
            let start = usize::try_from(offset.checked_sub(begin)?).ok()?;
            window.get(start..start.checked_add(length)?).map(<[u8]>::to_vec)
        };
        match within(&self.start, 0).or_else(|| within(&self.end, self.end_offset)) {
            Some(bytes) => Ok(Some(bytes)),
            None => read_bytes(self.image, "a signature", offset, length as u64, WINDOW).map(Some),
        }
    }

    /// Records the signature if `magic` is at `offset`.
    fn look(
        &self,
        offset: Option<u64>,
        magic: &[u8],
        name: &'static str,
        found: &mut Vec<Signature>,
    ) -> Result<()> {
        let Some(offset) = offset else { return Ok(()) };
        if self.bytes(offset, magic.len())?.is_some_and(|bytes| bytes == magic) {
            found.push(Signature { name, offset, length: magic.len() as u64 });
        }
        Ok(())
    }
}

/// The backup of a GPT, in the last sector of 512 or 4096 bytes. As for `blkid` and the kernel, it
/// counts only with a protective MBR: it outlives the partition table on every disk that had one.
fn gpt_backup(ends: &Ends<'_>, found: &mut Vec<Signature>) -> Result<()> {
    let Some(sector) = ends.bytes(0, 512)? else { return Ok(()) };
    // The type of one of the four partitions.
    let protective = [450, 466, 482, 498].iter().any(|at| sector[*at] == 0xee);
    if sector.ends_with(b"\x55\xaa") && protective {
        for sectors in [1, 8] {
            ends.look(ends.sector(sectors), b"EFI PART", GPT, found)?;
        }
    }
    Ok(())
}

/// The MBR partition table: a two-byte magic, and four entries that are each active or not.
fn dos_table(ends: &Ends<'_>) -> Result<Option<Signature>> {
    let Some(sector) = ends.bytes(0, 512)? else { return Ok(None) };
    let entries_sound = [446, 462, 478, 494].iter().all(|at| matches!(sector[*at], 0 | 0x80));
    let table = sector.ends_with(b"\x55\xaa") && entries_sound;
    Ok(table.then_some(Signature { name: DOS, offset: 510, length: 2 }))
}

/// Signatures that are too short to be trusted without their checksum or the device's size.
fn checked_at_the_end(ends: &Ends<'_>, found: &mut Vec<Signature>) -> Result<()> {
    let last = ends.sector(1);
    if let Some(offset) = last
        && let Some(sector) = ends.bytes(offset, 512)?
    {
        let sum = |length: usize| {
            let words = sector[..length].chunks_exact(2);
            words.fold(0_u16, |sum, word| sum.wrapping_add(u16::from_le_bytes([word[0], word[1]])))
        };
        let bytes = sector[..50].iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        if sector.starts_with(b"\x55\xaa") && sector[2] <= 2 && bytes == sector[50] {
            found.push(Signature { name: "via_raid_member", offset, length: 2 });
        }
        if sector.starts_with(b"JM") && sum(128) <= 1 {
            found.push(Signature { name: "jmicron_raid_member", offset, length: 2 });
        }
        // The words up to and including the checksum sum to zero.
        if sector[0x60..0x64] == [0, 0, 0, 0x2f] && sector[0x116] < 8 && sum(0x140) == 0 {
            let offset = offset + 0x60;
            found.push(Signature { name: "silicon_medley_raid_member", offset, length: 4 });
        }
    }
    // NILFS2 stores the length of the device in both of its superblocks.
    for offset in [Some(0x400), ends.sector(8)].into_iter().flatten() {
        let Some(block) = ends.bytes(offset, 40)? else { continue };
        if block[6..8] == *b"\x34\x34" && block[32..] == ends.len.to_le_bytes() {
            found.push(Signature { name: "nilfs2", offset: offset + 6, length: 2 });
        }
    }
    Ok(())
}

/// The four labels of ZFS, two at each end, identified by the uberblocks in their second half.
fn zfs_labels(image: &dyn ReadAt, found: &mut Vec<Signature>) -> Result<()> {
    const LABEL: u64 = 256 << 10;
    const MAGIC: u64 = 0x00ba_b10c;
    let whole = image.len() / LABEL;
    // ZFS uses no device smaller than 64 MiB.
    if image.len() < 64 << 20 {
        return Ok(());
    }
    for number in [0, 1, whole - 2, whole - 1] {
        let offset = number * LABEL;
        let half = read_bytes(image, "a label", offset + LABEL / 2, LABEL / 2, LABEL)?;
        let is_uberblock = |block: &[u8]| {
            block.starts_with(&MAGIC.to_le_bytes()) || block.starts_with(&MAGIC.to_be_bytes())
        };
        if half.chunks(1024).any(is_uberblock) {
            found.push(Signature { name: "zfs_member", offset, length: LABEL });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// An image of zeros with bytes at one place.
    struct Sparse {
        len: u64,
        offset: u64,
        bytes: Vec<u8>,
    }

    impl ReadAt for Sparse {
        fn len(&self) -> u64 {
            self.len
        }

        fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            assert!(offset + buf.len() as u64 <= self.len, "a read behind the image");
            buf.fill(0);
            for (byte, at) in self.bytes.iter().zip(self.offset..) {
                if let Some(at) = at.checked_sub(offset)
                    && let Some(place) = buf.get_mut(at as usize)
                {
                    *place = *byte;
                }
            }
            Ok(())
        }
    }

    /// Lengths aligned to a MiB, to a page, to a sector, and to none of these.
    fn lengths(about: u64) -> [u64; 4] {
        [about, about + 4096, about - 512, about + 77]
    }

    /// Checks that the magic at `offset` is found, and that it is no longer found once wiped.
    fn comes_and_goes(len: u64, offset: u64, magic: &[u8], name: &str) {
        let mut image = Sparse { len, offset, bytes: magic.to_vec() };
        let found = find(&image).unwrap();
        assert!(found.iter().any(|signature| signature.name == name), "{name}: {found:?}");
        for write in wipe(&found) {
            for (place, at) in image.bytes.iter_mut().zip(offset..) {
                if (write.offset..write.offset + write.bytes.len() as u64).contains(&at) {
                    *place = 0;
                }
            }
        }
        assert_eq!(find(&image).unwrap(), []);
    }

    #[test]
    fn every_signature_is_found_and_is_gone_after_it_is_wiped() {
        for len in lengths(8 << 20) {
            for (offset, magic, name) in AT_THE_START {
                comes_and_goes(len, *offset, magic, name);
            }
            for (sectors, offset, magic, name) in AT_THE_END {
                comes_and_goes(len, (len / 512 - sectors) * 512 + offset, magic, name);
            }
            for sectors in PROMISE_SECTORS {
                let offset = (len / 512 - sectors) * 512;
                let magic = b"Promise Technology, Inc.";
                comes_and_goes(len, offset, magic, "promise_fasttrack_raid_member");
            }
            for offset in HEADER_SIZES {
                comes_and_goes(len, offset, b"SKUL\xba\xbe", LUKS);
            }
            comes_and_goes(len, 0, b"LUKS\xba\xbe", LUKS);
            comes_and_goes(len, len / 65536 * 65536 - 65536, &MD_BIG, MD);
            comes_and_goes(len, len / 65536 * 65536 - 65536, &MD_LITTLE, MD);
            comes_and_goes(len, len / 4096 * 4096 - 8192, &MD_LITTLE, MD);
            comes_and_goes(len, 510, b"\x55\xaa", DOS);
        }
        for len in lengths(80 << 20) {
            let uberblock = 0x00ba_b10c_u64;
            for label in [0, 1, len / (256 << 10) - 2, len / (256 << 10) - 1] {
                let offset = (label << 18) + (128 << 10) + 4096;
                comes_and_goes(len, offset, &uberblock.to_le_bytes(), "zfs_member");
                comes_and_goes(len, offset, &uberblock.to_be_bytes(), "zfs_member");
            }
        }
    }

    #[test]
    fn what_is_too_short_for_a_magic_number_is_believed_with_its_checksum_only() {
        let len = 80 << 20;
        let last = len - 512;
        for (magic, name) in [(&b"JM\0\0"[..], "jmicron_raid_member"), (b"\x55\xaa", "via_raid")] {
            let image = Sparse { len, offset: last, bytes: magic.to_vec() };
            assert_eq!(find(&image).unwrap(), [], "{name}");
        }
        let sum = 0_u16.wrapping_sub(u16::from_le_bytes(*b"JM")).to_le_bytes();
        comes_and_goes(len, last, &[b'J', b'M', 0, 0, sum[0], sum[1]], "jmicron_raid_member");
        let mut via = [0; 51];
        (via[0], via[1], via[50]) = (0x55, 0xaa, 0xff);
        comes_and_goes(len, last, &via, "via_raid_member");
        let mut silicon = [0; 0x140];
        silicon[0x63] = 0x2f;
        silicon[0x13f] = 0_u8.wrapping_sub(0x2f);
        comes_and_goes(len, last, &silicon, "silicon_medley_raid_member");
        silicon[5] = 1;
        assert_eq!(find(&Sparse { len, offset: last, bytes: silicon.to_vec() }).unwrap(), []);
        for offset in [0x400, len - 4096] {
            let mut nilfs = [0; 40];
            nilfs[6..8].fill(0x34);
            nilfs[32..].copy_from_slice(&len.to_le_bytes());
            comes_and_goes(len, offset, &nilfs, "nilfs2");
        }
    }

    #[test]
    fn the_backup_of_a_gpt_counts_only_with_a_protective_mbr() {
        for before in [512, 4096] {
            let mut image = vec![0; 1 << 20];
            let at = image.len() - before;
            image[at..at + 8].copy_from_slice(b"EFI PART");
            assert_eq!(find(&image).unwrap(), []);
            image[510..512].copy_from_slice(b"\x55\xaa");
            image[446 + 4] = 0xee;
            let found = find(&image).unwrap();
            assert_eq!(found[0], Signature { name: GPT, offset: at as u64, length: 8 });
            for write in wipe(&found) {
                let at = write.offset as usize;
                image[at..at + write.bytes.len()].copy_from_slice(&write.bytes);
            }
            assert_eq!(find(&image).unwrap(), []);
        }
    }

    #[test]
    fn images_of_any_length_are_searched_within_their_bounds() {
        for len in (0..2000).chain([4095, 4096, 65535, 65536, 1 << 20, 64 << 20]) {
            assert_eq!(find(&Sparse { len, offset: 0, bytes: Vec::new() }).unwrap(), []);
        }
    }

    #[test]
    fn the_first_header_of_luks_is_wiped_last() {
        let signature = |offset| Signature { name: LUKS, offset, length: 6 };
        let writes = wipe(&[signature(0), signature(0x4000), signature(1 << 30), signature(0)]);
        let offsets: Vec<u64> = writes.iter().map(|write| write.offset).collect();
        assert_eq!(offsets, [1 << 30, 0x4000, 0]);
    }
}
