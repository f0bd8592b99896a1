//! The parameters of the disk that the kernel is told.

use ucrypt_engine::{VolumeInfo, VolumeZones};

use super::abi::{Parameters, ZonedParameters, attribute};

/// Largest discard, in 512-byte sectors: 2 GiB.
const DISCARD_SECTORS_MAX: u32 = 1 << 22;

/// Longest write of zeroes where they are encrypted, in 512-byte sectors: 64 MiB.
const ENCRYPTED_ZEROES_SECTORS_MAX: u32 = 1 << 17;

/// The parameters of a volume's device whose requests have at most `io_bytes_max` bytes.
///
/// The kernel kills a server without privileges (`privileged` is false) if a request takes longer
/// than 30 seconds. So there a write of zeroes is no longer than a write: all tags together may
/// otherwise be 2 GiB, for which a slow disk takes minutes.
pub(super) fn parameters(info: &VolumeInfo, io_bytes_max: u32, privileged: bool) -> Parameters {
    let attributes = [
        (true, attribute::VOLATILE_CACHE | attribute::FUA),
        (info.read_only, attribute::READ_ONLY),
        (info.rotational, attribute::ROTATIONAL),
    ];
    // All sizes are powers of two; the sector size is at most 4096.
    let logical_shift = info.sector_size.ilog2() as u8;
    let preferred_shift = info.preferred_io.ilog2() as u8;
    Parameters {
        attributes: attributes.iter().filter(|(has, _)| *has).map(|(_, bits)| bits).sum(),
        logical_shift,
        // For shorter writes a backend has to read first.
        physical_shift: preferred_shift,
        io_min_shift: preferred_shift,
        io_opt_shift: preferred_shift,
        sectors_max: io_bytes_max / 512,
        chunk_sectors: 0,
        sectors: info.len / 512,
        discard_granularity: info.sector_size,
        discard_sectors_max: if info.discard { DISCARD_SECTORS_MAX } else { 0 },
        write_zeroes_sectors_max: match (info.read_only, privileged, info.fast_write_zeroes) {
            (true, ..) => 0,
            (false, false, _) => io_bytes_max / 512,
            (false, true, true) => DISCARD_SECTORS_MAX,
            (false, true, false) => ENCRYPTED_ZEROES_SECTORS_MAX,
        },
        zoned: None,
    }
}

/// The same for a zoned device. Its data goes away only by zones, so there are no discards and no
/// writes of zeroes.
pub(super) fn zoned(basic: Parameters, zones: &VolumeZones) -> Parameters {
    let limits = zones.limits();
    // A write that has to read first (read-modify-write) would not be in order.
    let logical_shift = basic.physical_shift;
    let zone_sectors = u32::try_from(limits.len / 512).unwrap_or(1 << 31);
    let count = u32::try_from(zones.count()).unwrap_or(u32::MAX);
    Parameters {
        logical_shift,
        chunk_sectors: zone_sectors,
        discard_sectors_max: 0,
        write_zeroes_sectors_max: 0,
        zoned: Some(ZonedParameters {
            open: limits.open_max.min(count),
            active: limits.active_max.min(count),
            append_sectors: basic.sectors_max.min(zone_sectors),
        }),
        ..basic
    }
}

#[cfg(test)]
mod tests {
    use ucrypt_testkit::engine::volume_info as info;

    use super::*;

    #[test]
    fn a_disk_has_the_volumes_sectors_and_a_cache_to_flush() {
        let made = parameters(&info(), 1 << 20, true);
        assert_eq!((made.logical_shift, made.physical_shift), (9, 12));
        assert_eq!((made.sectors, made.sectors_max), (20 << 10, 2048));
        assert_eq!(made.attributes, attribute::VOLATILE_CACHE | attribute::FUA);
        assert_eq!(made.discard_sectors_max, 0, "discards were not allowed");
        assert_eq!(made.write_zeroes_sectors_max * 512, 64 << 20);
    }

    #[test]
    fn a_write_of_zeroes_to_a_users_disk_is_no_longer_than_a_write() {
        for fast_write_zeroes in [false, true] {
            let info = VolumeInfo { fast_write_zeroes, ..info() };
            let made = parameters(&info, 128 << 10, false);
            assert_eq!(made.write_zeroes_sectors_max * 512, 128 << 10);
        }
    }

    #[test]
    fn a_read_only_disk_takes_nothing_that_writes() {
        let made = parameters(&VolumeInfo { read_only: true, ..info() }, 1 << 20, true);
        assert_ne!(made.attributes & attribute::READ_ONLY, 0);
        assert_eq!((made.discard_sectors_max, made.write_zeroes_sectors_max), (0, 0));
    }

    #[test]
    fn discards_and_seeks_are_the_backends() {
        let made = parameters(
            &VolumeInfo { discard: true, rotational: true, sector_size: 4096, ..info() },
            1 << 20,
            true,
        );
        assert_eq!((made.discard_sectors_max, made.discard_granularity), (1 << 22, 4096));
        assert_ne!(made.attributes & attribute::ROTATIONAL, 0);
    }
}
