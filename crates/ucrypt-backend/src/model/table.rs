//! The devices, and the source of each number.
//!
//! The files named are the published measurements that the experiments repeat. `docs/models.md`
//! says who measured them and compares the models with them. "Chosen" marks numbers that nobody
//! published for that device; nothing is fitted to them.

use super::profile::{DiskProfile, FlashProfile, Media, Profile, Rate, ZoneLayout};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// All devices that `model:NAME,SIZE` knows.
pub(super) const PROFILES: [Profile; 7] = [SD2015, HDD, SATA2017, OPTANE2020, NULL, REMOTE, ZONED];

/// `block_sizes_2015.csv` was measured with encryption, in series with the card. Its rows and the
/// raw rows of `request_based_2015.csv` agree on one engine of 34.1 ns/byte; the remaining time is
/// the card's.
const SD2015: Profile = Profile {
    name: "sd2015",
    about: "SD card in a BeagleBone Black, linux-kernel 2015",
    block: 512,
    discard: true,
    media: Media::Flash(FlashProfile {
        // block_sizes_2015.csv, write: 1 MiB costs as much as eight writes of 128 KiB.
        command_max: 128 * KIB,
        // Included in read_ns and program_ns.
        command_ns: 0,
        // request_based_2015.csv, no_encryption, read: 65536 B at 18.4 MB/s, less read_ns.
        bus: Rate::kb_s(24_270),
        // block_sizes_2015.csv, read: long reads pay read_ns once. The host prepares one command
        // while the card carries out another.
        lanes: 2,
        // block_sizes_2015.csv, read: intercept of 4096 and 65536 B.
        read_ns: 862_000,
        // The bus is the limit.
        lane: Rate::kb_s(24_270),
        // Chosen.
        spread_percent: 5,
        // Included in program_ns.
        write_ns: 0,
        // request_based_2015.csv, no_encryption, write: 65536 B at 8.9 MB/s, less program_ns.
        program: Rate::kb_s(12_076),
        // block_sizes_2015.csv, write: intercept of 4096 and 65536 B.
        program_ns: 1_937_000,
        // Not published.
        program_far_ns: 0,
        // Every published write waited for the card.
        cache: 0,
        flush_ns: 0,
    }),
    zones: None,
};

const DISK: DiskProfile = DiskProfile {
    // parallel_2013.csv, "2-disk RAID-0, none (raw)": 260 MB/s, so 130 MB/s for one of the two. The
    // disk of kernel_tree_2011.csv wrote about 50 MB/s, in a machine of its own.
    rate: Rate::kb_s(130_000),
    // Not published; 7200 turns a minute, as disks of that speed had in 2013.
    rotation_ns: 8_333_333,
    // Chosen, as data sheets of such disks give them: 8.5 ms for a random seek.
    seek_min_ns: 1_000_000,
    seek_max_ns: 15_000_000,
    capacity: 1_000_000_000_000,
    // Chosen.
    command_ns: 100_000,
    // Chosen: 8 MiB at 130 MB/s.
    buffer_ns: 64_000_000,
};

const HDD: Profile = Profile {
    name: "hdd",
    about: "one disk of the RAID-0 of dm-devel 2013, no scheduler",
    block: 512,
    discard: false,
    media: Media::Disk(DISK),
    zones: None,
};

const SATA2017: Profile = Profile {
    name: "sata2017",
    about: "240 GB SATA SSD of the dm-crypt list 2017",
    block: 4096,
    discard: true,
    media: Media::Flash(FlashProfile {
        // luks_sweep_2017.csv, device, raw: from 256 to 512 KiB the time stops growing as it did
        // below and grows with the bus rate: from there on there are two commands.
        command_max: 256 * KIB,
        // The rest of the time of 72 000 reads of 4 KiB a second at depth 32, according to a data
        // sheet of that class and year (Intel SSD DC S4500/S4600, 240 GB SATA, 2017); not measured.
        command_ns: 6_000,
        // Same column, the rows of 1 MiB to 1 GiB; command_ns and bus together are 509 MB/s.
        bus: Rate::kb_s(515_000),
        // Chosen: the channels of a controller of that class; fewer than 4 would not fill the bus.
        lanes: 8,
        // Same column, rows of 4 to 256 KiB: intercept and slope.
        read_ns: 60_000,
        lane: Rate::kb_s(404_000),
        // Chosen.
        spread_percent: 5,
        // Chosen: an answer from the cache.
        write_ns: 20_000,
        // luks_other_2017.csv, linear write, raw: 450 MB/s.
        program: Rate::kb_s(450_000),
        program_ns: 0,
        // luks_other_2017.csv, random write of 64 KiB by 20 jobs, raw: 320 MB/s; less program.
        program_far_ns: 59_200,
        // Chosen: 2.3 ms of writing.
        cache: MIB,
        // Chosen.
        flush_ns: 500_000,
    }),
    zones: None,
};

const OPTANE2020: Profile = Profile {
    name: "optane2020",
    about: "Intel Optane 900P of dm-devel 2020",
    block: 512,
    discard: true,
    // workqueues_2020.csv does not say whether it read or wrote: both have the same numbers.
    media: Media::Flash(FlashProfile {
        // The controller's maximum data transfer size.
        command_max: 128 * KIB,
        // workqueues_2020.csv, nvme base: 4k (527 100 commands/s) and 64k at 2273 MB/s.
        command_ns: 102,
        bus: Rate::kb_s(2_281_000),
        // The controller has seven channels.
        lanes: 7,
        // Not in the file; the data sheet says 10 us for 4 KiB at depth 1, including the bus.
        read_ns: 8_200,
        lane: Rate::kb_s(2_281_000),
        // Chosen.
        spread_percent: 5,
        write_ns: 8_200,
        program: Rate::kb_s(2_281_000),
        program_ns: 0,
        program_far_ns: 0,
        // Writes go to the medium at once.
        cache: 0,
        flush_ns: 0,
    }),
    zones: None,
};

/// Stands for the `null_blk` devices of `many_drives_2020.csv`, which took no time of their own.
const NULL: Profile = Profile {
    name: "null",
    about: "memory without a device's time",
    block: 512,
    discard: true,
    media: Media::Flash(FlashProfile {
        command_max: u64::MAX,
        command_ns: 0,
        bus: Rate::INFINITE,
        lanes: 1,
        read_ns: 0,
        lane: Rate::INFINITE,
        spread_percent: 0,
        write_ns: 0,
        program: Rate::INFINITE,
        program_ns: 0,
        program_far_ns: 0,
        cache: 0,
        flush_ns: 0,
    }),
    zones: None,
};

/// Not a measurement: 0.5 ms, 1 GB/s and a charge for each request are its definition.
const REMOTE: Profile = Profile {
    name: "remote",
    about: "a network volume: 0.5 ms, 1 GB/s, charged per request",
    block: 4096,
    discard: true,
    media: Media::Flash(FlashProfile {
        command_max: MIB,
        // The charge, chosen: 100 000 requests a second without data, 71 000 of 4 KiB.
        command_ns: 10_000,
        bus: Rate::kb_s(1_000_000),
        // Chosen: the link saturates before the lanes do.
        lanes: 256,
        read_ns: 500_000,
        lane: Rate::INFINITE,
        // Chosen.
        spread_percent: 5,
        write_ns: 500_000,
        program: Rate::INFINITE,
        program_ns: 0,
        program_far_ns: 0,
        // The remote side answers when the data is safe.
        cache: 0,
        flush_ns: 0,
    }),
    zones: None,
};

/// The mechanics of `hdd`. Host-managed disks are where dm-crypt learned that order matters.
const ZONED: Profile = Profile {
    name: "zoned",
    about: "host-managed zoned disk: writes only at the write pointers",
    block: 4096,
    discard: true,
    media: Media::Disk(DISK),
    // Real zones have 256 MiB; these are small so that a small model has many. The first zone may
    // be written anywhere: it has room for a LUKS2 header.
    zones: Some(ZoneLayout { zone_bytes: 16 * MIB, conventional: 1 }),
};
