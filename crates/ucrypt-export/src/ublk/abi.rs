//! The commands and structures of the kernel's ublk driver (`include/uapi/linux/ublk_cmd.h`).
//!
//! Structures are written to bytes and read from bytes field by field: the kernel never gets a
//! layout of ours, and everything that comes back is plain numbers. `zerocopy` would need the
//! declaration of every field, most of which are zero.

use ucrypt_engine::{Zone, ZoneKind};

/// The commands to `/dev/ublk-control`, encoded as ioctls of a [`Header`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Control {
    AddDevice = read_write(0x04, HEADER_LEN),
    DeleteDevice = read_write(0x05, HEADER_LEN),
    StartDevice = read_write(0x06, HEADER_LEN),
    StopDevice = read_write(0x07, HEADER_LEN),
    SetParameters = read_write(0x08, HEADER_LEN),
    GetParameters = read(0x09, HEADER_LEN),
    StartUserRecovery = read_write(0x10, HEADER_LEN),
    EndUserRecovery = read_write(0x11, HEADER_LEN),
    GetDeviceInfo2 = read(0x12, HEADER_LEN),
    GetFeatures = read(0x13, HEADER_LEN),
    /// Does not wait for the last user of the device to close it. Linux 6.9.
    DeleteDeviceAsync = read(0x14, HEADER_LEN),
}

/// The commands to `/dev/ublkcN`, encoded as ioctls of an [`IoCommand`].
pub(super) const FETCH: u32 = read_write(0x20, IO_COMMAND_LEN);
pub(super) const COMMIT_AND_FETCH: u32 = read_write(0x21, IO_COMMAND_LEN);

const fn read(number: u32, len: usize) -> u32 {
    2 << 30 | (len as u32) << 16 | (b'u' as u32) << 8 | number
}

const fn read_write(number: u32, len: usize) -> u32 {
    1 << 30 | read(number, len)
}

/// Features of a device, and of the driver.
pub(super) mod feature {
    pub(in super::super) const USER_RECOVERY: u64 = 1 << 3;
    pub(in super::super) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    pub(in super::super) const UNPRIVILEGED: u64 = 1 << 5;
    pub(in super::super) const IOCTL_ENCODING: u64 = 1 << 6;
    pub(in super::super) const USER_COPY: u64 = 1 << 7;
    pub(in super::super) const ZONED: u64 = 1 << 8;
}

/// [`DeviceInfo::state`]: the device has not started, or has ended.
pub(super) const STATE_DEAD: u16 = 0;
/// [`DeviceInfo::state`]: the device has a server.
pub(super) const STATE_LIVE: u16 = 1;
/// [`DeviceInfo::state`]: the device's server died, and its requests wait for another one.
pub(super) const STATE_QUIESCED: u16 = 2;

/// A header's device number that lets the kernel choose one.
pub(super) const ANY_DEVICE: u32 = u32::MAX;

const HEADER_LEN: usize = 32;
/// The room for a command in a ring's entry of 128 bytes.
pub(super) const COMMAND_LEN: usize = 80;

/// `struct ublksrv_ctrl_cmd`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) device: u32,
    /// Length of the payload in bytes.
    pub(super) len: u16,
    /// Address of the payload.
    pub(super) address: u64,
    pub(super) data: u64,
    /// Length in bytes of the character device's path, at the start of the payload.
    pub(super) path_len: u16,
}

impl Header {
    pub(super) fn to_bytes(self) -> [u8; COMMAND_LEN] {
        const NO_QUEUE: u16 = u16::MAX;
        let mut bytes = [0; COMMAND_LEN];
        put(&mut bytes, 0, self.device.to_ne_bytes());
        put(&mut bytes, 4, NO_QUEUE.to_ne_bytes());
        put(&mut bytes, 6, self.len.to_ne_bytes());
        put(&mut bytes, 8, self.address.to_ne_bytes());
        put(&mut bytes, 16, self.data.to_ne_bytes());
        put(&mut bytes, 24, self.path_len.to_ne_bytes());
        bytes
    }
}

/// `struct ublksrv_ctrl_dev_info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct DeviceInfo {
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) state: u16,
    /// Largest request, in bytes.
    pub(super) io_bytes_max: u32,
    pub(super) device: u32,
    pub(super) server_pid: i32,
    pub(super) features: u64,
    /// Kept for the server; the kernel does not read it.
    pub(super) server_data: u64,
}

impl DeviceInfo {
    pub(super) const LEN: usize = 64;

    pub(super) fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        put(&mut bytes, 0, self.queues.to_ne_bytes());
        put(&mut bytes, 2, self.depth.to_ne_bytes());
        put(&mut bytes, 4, self.state.to_ne_bytes());
        put(&mut bytes, 8, self.io_bytes_max.to_ne_bytes());
        put(&mut bytes, 12, self.device.to_ne_bytes());
        put(&mut bytes, 16, self.server_pid.to_ne_bytes());
        put(&mut bytes, 24, self.features.to_ne_bytes());
        put(&mut bytes, 32, self.server_data.to_ne_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            queues: u16::from_ne_bytes(get(bytes, 0)),
            depth: u16::from_ne_bytes(get(bytes, 2)),
            state: u16::from_ne_bytes(get(bytes, 4)),
            io_bytes_max: u32::from_ne_bytes(get(bytes, 8)),
            device: u32::from_ne_bytes(get(bytes, 12)),
            server_pid: i32::from_ne_bytes(get(bytes, 16)),
            features: u64::from_ne_bytes(get(bytes, 24)),
            server_data: u64::from_ne_bytes(get(bytes, 32)),
        }
    }
}

/// [`Parameters::attributes`].
pub(super) mod attribute {
    pub(in super::super) const READ_ONLY: u32 = 1 << 0;
    pub(in super::super) const ROTATIONAL: u32 = 1 << 1;
    pub(in super::super) const VOLATILE_CACHE: u32 = 1 << 2;
    pub(in super::super) const FUA: u32 = 1 << 3;
}

/// The zoned part of `struct ublk_params`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ZonedParameters {
    /// Most zones; 0: any number.
    pub(super) open: u32,
    pub(super) active: u32,
    /// Largest append, in 512-byte sectors; not 0.
    pub(super) append_sectors: u32,
}

/// `struct ublk_params` with its basic, discard and zoned parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Parameters {
    pub(super) attributes: u32,
    /// Block sizes as powers of two of bytes.
    pub(super) logical_shift: u8,
    pub(super) physical_shift: u8,
    pub(super) io_opt_shift: u8,
    pub(super) io_min_shift: u8,
    /// Largest request, in 512-byte sectors.
    pub(super) sectors_max: u32,
    /// No request crosses a multiple of this, the zone length of a zoned device. 0: no such limit.
    pub(super) chunk_sectors: u32,
    pub(super) sectors: u64,
    /// In bytes, not 0.
    pub(super) discard_granularity: u32,
    /// Largest discard, and below largest write of zeroes, in 512-byte sectors; 0: not supported.
    pub(super) discard_sectors_max: u32,
    pub(super) write_zeroes_sectors_max: u32,
    /// Only for a zoned device.
    pub(super) zoned: Option<ZonedParameters>,
}

impl Parameters {
    pub(super) const LEN: usize = 112;
    const TYPES: u32 = 1 << 0 | 1 << 1;
    const TYPE_ZONED: u32 = 1 << 3;

    pub(super) fn to_bytes(self) -> [u8; Self::LEN] {
        const DISCARD_SEGMENTS: u16 = 1;
        let mut bytes = [0; Self::LEN];
        put(&mut bytes, 0, (Self::LEN as u32).to_ne_bytes());
        let types = if self.zoned.is_some() { Self::TYPES | Self::TYPE_ZONED } else { Self::TYPES };
        put(&mut bytes, 4, types.to_ne_bytes());
        put(&mut bytes, 8, self.attributes.to_ne_bytes());
        let shifts =
            [self.logical_shift, self.physical_shift, self.io_opt_shift, self.io_min_shift];
        put(&mut bytes, 12, shifts);
        put(&mut bytes, 16, self.sectors_max.to_ne_bytes());
        put(&mut bytes, 20, self.chunk_sectors.to_ne_bytes());
        put(&mut bytes, 24, self.sectors.to_ne_bytes());
        put(&mut bytes, 44, self.discard_granularity.to_ne_bytes());
        put(&mut bytes, 48, self.discard_sectors_max.to_ne_bytes());
        put(&mut bytes, 52, self.write_zeroes_sectors_max.to_ne_bytes());
        put(&mut bytes, 56, DISCARD_SEGMENTS.to_ne_bytes());
        if let Some(zoned) = self.zoned {
            put(&mut bytes, 76, zoned.open.to_ne_bytes());
            put(&mut bytes, 80, zoned.active.to_ne_bytes());
            put(&mut bytes, 84, zoned.append_sectors.to_ne_bytes());
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let [logical_shift, physical_shift, io_opt_shift, io_min_shift] = get(bytes, 12);
        let is_zoned = u32::from_ne_bytes(get(bytes, 4)) & Self::TYPE_ZONED != 0;
        Self {
            attributes: u32::from_ne_bytes(get(bytes, 8)),
            logical_shift,
            physical_shift,
            io_opt_shift,
            io_min_shift,
            sectors_max: u32::from_ne_bytes(get(bytes, 16)),
            chunk_sectors: u32::from_ne_bytes(get(bytes, 20)),
            sectors: u64::from_ne_bytes(get(bytes, 24)),
            discard_granularity: u32::from_ne_bytes(get(bytes, 44)),
            discard_sectors_max: u32::from_ne_bytes(get(bytes, 48)),
            write_zeroes_sectors_max: u32::from_ne_bytes(get(bytes, 52)),
            zoned: is_zoned.then(|| ZonedParameters {
                open: u32::from_ne_bytes(get(bytes, 76)),
                active: u32::from_ne_bytes(get(bytes, 80)),
                append_sectors: u32::from_ne_bytes(get(bytes, 84)),
            }),
        }
    }
}

/// The kernel's descriptor of a request (`struct ublksrv_io_desc`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// Operation in the low byte, flags above.
    pub(super) op_flags: u32,
    /// Length in 512-byte sectors; for [`Descriptor::REPORT_ZONES`], the number of zones.
    pub(super) sectors: u32,
    pub(super) start_sector: u64,
}

impl Descriptor {
    /// Bytes from one descriptor to the next.
    pub(super) const LEN: usize = 24;

    pub(super) const READ: u8 = 0;
    pub(super) const WRITE: u8 = 1;
    pub(super) const FLUSH: u8 = 2;
    pub(super) const DISCARD: u8 = 3;
    pub(super) const WRITE_ZEROES: u8 = 5;
    pub(super) const ZONE_OPEN: u8 = 10;
    pub(super) const ZONE_CLOSE: u8 = 11;
    pub(super) const ZONE_FINISH: u8 = 12;
    pub(super) const ZONE_APPEND: u8 = 13;
    pub(super) const ZONE_RESET_ALL: u8 = 14;
    pub(super) const ZONE_RESET: u8 = 15;
    pub(super) const REPORT_ZONES: u8 = 18;

    /// Parses a descriptor from the words in the kernel's memory.
    pub(super) fn from_words([first, start_sector, _address]: [u64; 3]) -> Self {
        let bytes = first.to_ne_bytes();
        let (op_flags, sectors) =
            (u32::from_ne_bytes(get(&bytes, 0)), u32::from_ne_bytes(get(&bytes, 4)));
        Self { op_flags, sectors, start_sector }
    }

    const FUA: u32 = 1 << 13;
    const NO_UNMAP: u32 = 1 << 15;

    pub(super) fn op(self) -> u8 {
        self.op_flags as u8
    }

    pub(super) fn is_fua(self) -> bool {
        self.op_flags & Self::FUA != 0
    }

    pub(super) fn is_no_unmap(self) -> bool {
        self.op_flags & Self::NO_UNMAP != 0
    }
}

/// Most requests of a queue.
const DEPTH_MAX: u64 = 4096;

/// Bytes between the descriptors of two queues in the mapping of `/dev/ublkcN`, where the kernel's pages have so many
/// bytes.
pub(super) fn descriptors_stride(page: u64) -> u64 {
    (DEPTH_MAX * Descriptor::LEN as u64).next_multiple_of(page)
}

const IO_COMMAND_LEN: usize = 16;

/// `struct ublksrv_io_cmd`.
#[derive(Debug, Clone, Copy)]
pub(super) struct IoCommand {
    pub(super) queue: u16,
    pub(super) tag: u16,
    /// Number of bytes transferred, or a negative error number.
    pub(super) result: i32,
    /// Address of the request's buffer if the kernel copies the data; 0 if we do. For a completed
    /// append, the 512-byte sector where it was written.
    pub(super) address: u64,
}

impl IoCommand {
    pub(super) fn to_bytes(self) -> [u8; IO_COMMAND_LEN] {
        let mut bytes = [0; IO_COMMAND_LEN];
        put(&mut bytes, 0, self.queue.to_ne_bytes());
        put(&mut bytes, 2, self.tag.to_ne_bytes());
        put(&mut bytes, 4, self.result.to_ne_bytes());
        put(&mut bytes, 8, self.address.to_ne_bytes());
        bytes
    }
}

/// The bytes of a zone as `struct blk_zone` (`linux/blkzoned.h`).
pub(super) fn zone_to_bytes(zone: &Zone) -> [u8; ZONE_LEN] {
    let mut bytes = [0; ZONE_LEN];
    put(&mut bytes, 0, (zone.start / 512).to_ne_bytes());
    put(&mut bytes, 8, (zone.len / 512).to_ne_bytes());
    put(&mut bytes, 16, (zone.write_pointer / 512).to_ne_bytes());
    let kind = match zone.kind {
        ZoneKind::Conventional => 1,
        ZoneKind::SequentialRequired => 2,
        ZoneKind::SequentialPreferred => 3,
    };
    put(&mut bytes, 24, [kind, zone.condition]);
    put(&mut bytes, 32, (zone.capacity / 512).to_ne_bytes());
    bytes
}

/// Bytes of a zone in a report.
pub(super) const ZONE_LEN: usize = 64;

/// Position in `/dev/ublkcN` at which a request's data is read and written (`UBLK_F_USER_COPY`).
pub(super) fn data_position(queue: u16, tag: u16) -> u64 {
    const BASE: u64 = 0x8000_0000;
    const TAG_SHIFT: u32 = 25;
    const QUEUE_SHIFT: u32 = 25 + 16;
    BASE + (u64::from(queue) << QUEUE_SHIFT) + (u64::from(tag) << TAG_SHIFT)
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, field: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&field);
}

fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptors_of_a_queue_begin_at_a_page_of_any_kernel() {
        let strides = [4, 16, 64].map(|kib| descriptors_stride(kib << 10));
        assert_eq!(strides, [96 << 10, 96 << 10, 128 << 10]);
    }

    #[test]
    fn commands_have_the_numbers_of_the_kernel_header() {
        // As `gcc -include linux/ublk_cmd.h` prints them for Linux 6.12.
        let known = [
            (Control::AddDevice, 0xc020_7504),
            (Control::DeleteDevice, 0xc020_7505),
            (Control::GetParameters, 0x8020_7509),
            (Control::EndUserRecovery, 0xc020_7511),
            (Control::GetDeviceInfo2, 0x8020_7512),
            (Control::GetFeatures, 0x8020_7513),
        ];
        for (command, number) in known {
            assert_eq!(command as u32, number, "{command:?}");
        }
        assert_eq!((FETCH, COMMIT_AND_FETCH), (0xc010_7520, 0xc010_7521));
    }

    #[test]
    fn device_info_survives_its_bytes() {
        let info = DeviceInfo {
            queues: 2,
            depth: 128,
            state: STATE_QUIESCED,
            io_bytes_max: 1 << 20,
            device: 7,
            server_pid: -1,
            features: feature::USER_COPY | feature::IOCTL_ENCODING,
            server_data: 0x0123_4567_89ab_cdef,
        };
        assert_eq!(DeviceInfo::from_bytes(&info.to_bytes()), info);
    }

    #[test]
    fn parameters_survive_their_bytes() {
        let parameters = Parameters {
            attributes: attribute::FUA | attribute::VOLATILE_CACHE,
            logical_shift: 9,
            physical_shift: 12,
            io_opt_shift: 16,
            io_min_shift: 12,
            sectors_max: 2048,
            chunk_sectors: 8192,
            sectors: u64::MAX / 512,
            discard_granularity: 4096,
            discard_sectors_max: 1 << 22,
            write_zeroes_sectors_max: 1 << 17,
            zoned: None,
        };
        let bytes = parameters.to_bytes();
        assert_eq!(Parameters::from_bytes(&bytes), parameters);
        assert_eq!(bytes[..8], [112, 0, 0, 0, 3, 0, 0, 0], "length and types");
        let zoned = ZonedParameters { open: 1, active: 2, append_sectors: 2048 };
        let parameters = Parameters { zoned: Some(zoned), ..parameters };
        let bytes = parameters.to_bytes();
        assert_eq!(Parameters::from_bytes(&bytes), parameters);
        assert_eq!(bytes[4..8], [11, 0, 0, 0], "types");
    }

    #[test]
    fn a_descriptor_is_read_from_the_kernels_words() {
        let mut bytes = [0; Descriptor::LEN];
        put(&mut bytes, 0, (1 << 13 | 1_u32).to_ne_bytes());
        put(&mut bytes, 4, 8_u32.to_ne_bytes());
        put(&mut bytes, 8, 77_u64.to_ne_bytes());
        let words = [0, 8, 16].map(|at| u64::from_ne_bytes(get(&bytes, at)));
        let read = Descriptor::from_words(words);
        assert_eq!((read.sectors, read.start_sector), (8, 77));
        assert_eq!(read.op(), Descriptor::WRITE);
        assert!(read.is_fua() && !read.is_no_unmap());
    }

    #[test]
    fn the_data_of_two_requests_is_32_mib_apart() {
        assert_eq!(data_position(0, 0), 0x8000_0000);
        assert_eq!(data_position(0, 2), 0x8000_0000 + (64 << 20));
        assert_eq!(data_position(1, 0) - data_position(0, u16::MAX), 32 << 20);
    }
}
