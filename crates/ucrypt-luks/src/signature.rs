//! What an image holds that is not LUKS: a short list of magic numbers, to warn before something
//! is overwritten and to name what a foreign image is.

use crate::medium::{ReadAt, read_bytes};

/// Offset in bytes, magic, name; the more telling ones first.
const SIGNATURES: [(u64, &[u8], &str); 16] = [
    (0, b"QFI\xfb", "a qcow2 image"),
    (0, b"VDI_", "a VDI image"),
    (0, b"KDMV", "a VMDK image"),
    (0, b"vhdxfile", "a VHDX image"),
    (0, b"conectix", "a VHD image"),
    (0, b"XFSB", "an XFS file system"),
    (0, b"hsqs", "a squashfs file system"),
    (3, b"-FVE-FS-", "a BitLocker volume"),
    (3, b"NTFS    ", "an NTFS file system"),
    (0x438, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (0x1_0040, b"_BHRfS_M", "a btrfs file system"),
    (0x8001, b"CD001", "an ISO 9660 file system"),
    (4086, b"SWAPSPACE2", "swap space"),
    (512, b"LABELONE", "an LVM physical volume"),
    (512, b"EFI PART", "a GPT partition table"),
    (510, b"\x55\xaa", "a boot sector or MBR partition table"),
];

/// The name of what `image` seems to hold, if its magic number is known. LUKS is not among them.
pub fn find(image: &dyn ReadAt) -> Option<&'static str> {
    let is_there = |offset: u64, magic: &[u8]| {
        let length = magic.len() as u64;
        read_bytes(image, "a signature", offset, length, length).is_ok_and(|bytes| bytes == magic)
    };
    SIGNATURES.iter().find(|(offset, magic, _)| is_there(*offset, magic)).map(|(.., name)| *name)
}
