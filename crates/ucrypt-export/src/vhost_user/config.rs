//! The device as its driver sees it: features and configuration space (virtio 1.2, 5.2.3 and
//! 5.2.4).

use ucrypt_engine::VolumeInfo;

/// Feature bits of a block device and of its rings.
pub(super) mod feature {
    pub(crate) const SIZE_MAX: u64 = 1 << 1;
    pub(crate) const SEG_MAX: u64 = 1 << 2;
    pub(crate) const RO: u64 = 1 << 5;
    pub(crate) const BLK_SIZE: u64 = 1 << 6;
    pub(crate) const FLUSH: u64 = 1 << 9;
    pub(crate) const TOPOLOGY: u64 = 1 << 10;
    pub(crate) const CONFIG_WCE: u64 = 1 << 11;
    pub(crate) const MQ: u64 = 1 << 12;
    pub(crate) const DISCARD: u64 = 1 << 13;
    pub(crate) const WRITE_ZEROES: u64 = 1 << 14;
    pub(crate) const INDIRECT_DESC: u64 = 1 << 28;
    pub(crate) const EVENT_IDX: u64 = 1 << 29;
    /// Of vhost-user: there are protocol features to be negotiated.
    pub(crate) const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub(crate) const VERSION_1: u64 = 1 << 32;
}

/// Most rings; a front end uses as many as it has processors.
pub(super) const QUEUES_MAX: u16 = 64;
/// Most entries of a ring.
pub(super) const RING_SIZE_MAX: u16 = 1024;
/// Most data segments of a request: with header and status it fits into a ring of 128 even
/// without indirect descriptors.
pub(super) const SEGMENTS_MAX: u32 = 126;
/// Largest segment in bytes: the largest request stays below 32 MiB.
pub(super) const SEGMENT_BYTES_MAX: u32 = 256 << 10;
/// Most 512-byte sectors that one request zeroes; on an encrypted volume the zeroes are written.
pub(super) const ZEROES_SECTORS_MAX: u32 = (16 << 20) / 512;
/// Most 512-byte sectors that one request discards.
pub(super) const DISCARD_SECTORS_MAX: u32 = (1 << 30) / 512;
/// Offset of the byte by which the driver switches the write cache.
pub(super) const WRITEBACK_AT: u32 = 32;
/// Bytes of the configuration space, including those for zoned devices, which read as zero.
const SPACE: usize = 96;

/// The features that are offered for a volume.
pub(super) fn features(info: &VolumeInfo) -> u64 {
    let mut features = feature::VERSION_1
        | feature::INDIRECT_DESC
        | feature::EVENT_IDX
        | feature::PROTOCOL_FEATURES
        | feature::SIZE_MAX
        | feature::SEG_MAX
        | feature::BLK_SIZE
        | feature::TOPOLOGY
        | feature::FLUSH
        | feature::MQ;
    if info.read_only {
        return features | feature::RO;
    }
    features |= feature::CONFIG_WCE | feature::WRITE_ZEROES;
    if info.discard {
        features |= feature::DISCARD;
    }
    features
}

/// The space as the driver reads it, except that the front end has the last word on `num_queues`.
pub(super) fn space(info: &VolumeInfo, writeback: bool) -> [u8; SPACE] {
    let mut space = [0; SPACE];
    let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
    let block = info.sector_size.max(512);
    let preferred = info.preferred_io.max(block) / block;
    put(0, &(info.len / 512).to_le_bytes());
    put(8, &SEGMENT_BYTES_MAX.to_le_bytes());
    put(12, &SEGMENTS_MAX.to_le_bytes());
    put(20, &block.to_le_bytes());
    // A physical block can be served without reading around it; it is also the minimum I/O.
    put(24, &[preferred.ilog2() as u8]);
    put(26, &(preferred.min(u32::from(u16::MAX)) as u16).to_le_bytes());
    put(32, &[u8::from(writeback)]);
    put(34, &QUEUES_MAX.to_le_bytes());
    put(36, &DISCARD_SECTORS_MAX.to_le_bytes());
    put(40, &1u32.to_le_bytes());
    put(44, &(block / 512).to_le_bytes());
    put(48, &ZEROES_SECTORS_MAX.to_le_bytes());
    put(52, &1u32.to_le_bytes());
    put(56, &[u8::from(info.fast_write_zeroes)]);
    space
}

/// `size` bytes of the space from `offset`; zeroes where it has nothing.
pub(super) fn read(space: &[u8], offset: u32, size: u32) -> Vec<u8> {
    let from = space.get(offset as usize..).unwrap_or(&[]);
    let mut bytes: Vec<u8> = from.iter().copied().take(size as usize).collect();
    bytes.resize(size as usize, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use ucrypt_testkit::engine::volume_info as info;

    use super::*;

    #[test]
    fn the_space_has_the_layout_of_the_standard() {
        let small = space(&info(), true);
        assert_eq!(small[..8], 20_480u64.to_le_bytes());
        assert_eq!((small[20], small[21], small[24], small[26], small[32]), (0, 2, 3, 8, 1));
        let large = space(&VolumeInfo { sector_size: 4096, ..info() }, false);
        assert_eq!(large[20..28], [0, 16, 0, 0, 0, 0, 1, 0]);
        assert_eq!((large[32], large[44]), (0, 8));
        assert_eq!(read(&large, 20, 4), [0, 16, 0, 0]);
        assert_eq!(read(&large, 94, 4), [0; 4]);
        assert_eq!(read(&large, u32::MAX, 2), [0; 2]);
    }

    #[test]
    fn what_a_volume_cannot_do_is_not_offered() {
        let all = features(&VolumeInfo { discard: true, ..info() });
        assert!(all & feature::DISCARD != 0 && all & feature::RO == 0);
        assert_eq!(all & !feature::DISCARD, features(&info()));
        let read_only = features(&VolumeInfo { read_only: true, ..info() });
        let writes = feature::WRITE_ZEROES | feature::DISCARD | feature::CONFIG_WCE;
        assert!(read_only & feature::RO != 0 && read_only & writes == 0);
    }
}
