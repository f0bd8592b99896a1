//! The experiments: what each asks, which published measurement it repeats, and its cells.
//!
//! A cell is one load: a pattern, a block size, a queue depth and a number of jobs. The published
//! figures of a cell stand beside it, so that everything that shows a cell can show both.

use serde::{Deserialize, Serialize};

use ucrypt_engine::Fixed;

use crate::Pattern;
use crate::published::{self, Table};

/// How an experiment is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// A load on each contender; speed and latency are compared.
    Load,
    /// As `Load`; the latency that each contender adds to the raw target is compared.
    Added,
    /// As `Load`, under the null cipher, and the speed is taken in slices of [`SLICE_MS`].
    Slices,
    /// As `Load`, and the order and length of the backend's writes are counted.
    Order,
    /// Files on file systems over loop devices; needs root.
    Tree,
    /// Many drives and cores, in virtual time.
    Drives,
}

/// Length of a slice of [`Method::Slices`], in milliseconds.
pub const SLICE_MS: u64 = 10;

/// How large an experiment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Every published cell.
    Full,
    /// A few cells.
    Quick,
}

/// One load of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cell {
    /// Unique within its experiment, such as `64k randread, 20 jobs of depth 1`.
    pub name: String,
    /// The access pattern.
    pub pattern: Pattern,
    /// Length of a request in bytes, a multiple of 4096.
    pub block_bytes: u64,
    /// Requests that each job keeps in flight.
    pub depth: u32,
    /// Jobs, each with a thread and a queue of its own.
    pub jobs: u32,
    /// What was published about this cell.
    pub published: Vec<Published>,
}

/// A published figure of a cell.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Published {
    /// The contender that repeats it: `raw`, or a policy of ucrypt as in `ucrypt:unbound`.
    pub contender: &'static str,
    /// What was measured, with its year.
    pub label: &'static str,
    /// MB/s.
    pub mb_s: Option<f64>,
    /// Mean latency in microseconds; for [`Method::Added`] the latency added.
    pub mean_us: Option<f64>,
    /// 99th percentile in microseconds.
    pub p99_us: Option<f64>,
    /// Run time over that without encryption.
    pub slowdown: Option<f64>,
    /// Run time in seconds.
    pub seconds: Option<f64>,
    /// Writes that reached the device.
    pub writes: Option<f64>,
    /// Their average length in KiB.
    pub kib_a_write: Option<f64>,
    /// Writes that reached the device below dm-crypt.
    pub writes_below: Option<f64>,
    /// Of a speed that jumps between two modes, both in MB/s.
    pub modes_mb_s: Option<(f64, f64)>,
    /// What it was measured on, where that is what the row is about.
    pub medium: Option<Medium>,
}

/// What a target or a published machine has its data on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    /// A disk, or the model of one.
    Disk,
    /// Memory.
    Memory,
    /// Nothing: what is read is zero, and what is written is dropped.
    Zero,
}

impl std::fmt::Display for Medium {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Disk => "a disk",
            Self::Memory => "memory",
            Self::Zero => "a zero device",
        })
    }
}

/// One experiment.
#[derive(Debug, Clone, Copy)]
pub struct Description {
    /// The name on the command line.
    pub name: &'static str,
    /// The question that it answers.
    pub question: &'static str,
    /// What its result shows.
    pub shows: &'static str,
    /// The published tables that it repeats.
    pub tables: &'static [Table],
    /// What it needs besides this program.
    pub needs: &'static str,
    /// How it is carried out.
    pub method: Method,
    /// The contenders it compares unless the user names others, besides `raw`.
    pub against: &'static [&'static str],
    /// Whether installed programs of others are compared unless the user names contenders.
    pub peers: bool,
    cells: fn(Scale) -> Vec<Cell>,
}

/// The experiment that compares servers.
pub const EXPORTS: &str = "exports";

/// All experiments, in the order in which `lab run` without names carries them out.
pub const ALL: &[Description] = &[
    Description {
        name: "block-sweep",
        question: "At which block sizes does encryption slow down reads at queue depth 1?",
        shows: "MB/s and the ratio to raw by block size",
        tables: &[published::LUKS_SWEEP_2017],
        needs: "nothing; root and mkfs.ext4 for reads through a file system",
        method: Method::Load,
        against: &["ucrypt", "ucrypt:inline", "ucrypt:unbound", "loop-ext4", "ucrypt-loop-ext4"],
        peers: true,
        cells: block_sweep,
    },
    Description {
        name: "workqueues",
        question: "What do dm-crypt's work queues cost, and what do they gain, at high depth?",
        shows: "MB/s, mean and p99 latency by policy",
        tables: &[published::WORKQUEUES_2020],
        needs: "nothing",
        method: Method::Load,
        against: &["ucrypt", "ucrypt:inline", "ucrypt:unbound"],
        peers: true,
        cells: workqueues,
    },
    Description {
        name: "heat-map",
        question: "Where is adaptive dispatch as good as the best fixed policy, and where not?",
        shows: "ratio to the cell's best policy, throughput and p99",
        tables: &[],
        needs: "nothing",
        method: Method::Load,
        against: &[
            "ucrypt",
            "ucrypt:inline",
            "ucrypt:same-cpu",
            "ucrypt:same-cpu,unsorted",
            "ucrypt:unbound",
            "ucrypt:unbound,unsorted",
            "ucrypt:merge",
            "ucrypt:inline-8k-idle",
            "ucrypt:inline-8k-free",
        ],
        peers: false,
        cells: heat_map,
    },
    Description {
        name: EXPORTS,
        question: "How fast is each way to an encrypted disk, from depth 1 to 128?",
        shows: "MB/s, mean and p99 latency, processor time of a request, each beside the bare image",
        tables: &[],
        needs: "fio for processor times; root for devices; a directory of a disk (--on DIR) to measure one",
        method: Method::Load,
        against: &[
            "copy-fuse",
            "copy-nbd",
            "copy-loop",
            "ucrypt-fuse-none",
            "ucrypt-nbd-none",
            "ucrypt-loop-none",
            "ucrypt-fuse-4096",
            "ucrypt-nbd-4096",
            "ucrypt-loop-4096",
            "ucrypt-ublk",
        ],
        peers: true,
        cells: exports,
    },
    Description {
        name: "added-latency",
        question: "How many microseconds does encryption add to a request?",
        shows: "mean latency added to the raw target",
        tables: &[published::LATENCY_2011],
        needs: "nothing; runs on zero, which takes no time of its own, unless --on names a target",
        method: Method::Added,
        against: &["ucrypt", "ucrypt:inline", "ucrypt:same-cpu", "ucrypt:unbound"],
        peers: false,
        cells: added_latency,
    },
    Description {
        name: "other-ssd",
        question: "What does encryption leave of linear reads and writes and of random writes?",
        shows: "MB/s and the ratio to raw",
        tables: &[published::LUKS_OTHER_2017],
        needs: "nothing",
        method: Method::Load,
        against: &["ucrypt", "ucrypt:inline", "ucrypt:unbound"],
        peers: true,
        cells: other_ssd,
    },
    Description {
        name: "instant",
        question: "Is the speed of small requests steady, or does it jump between two modes?",
        shows: "speed over slices of 10 ms, as a histogram, under the null cipher",
        tables: &[published::INSTANT_2020],
        needs: "nothing; the cipher is always the null cipher, a measurement at least 300 ms",
        method: Method::Slices,
        against: &["ucrypt", "ucrypt:inline", "ucrypt:unbound"],
        peers: false,
        cells: instant,
    },
    Description {
        name: "sorted-writes",
        question: "Does parallel encryption change the order in which writes reach the disk?",
        shows: "MB/s, writes that continue the one before, average length of a write",
        tables: &[published::PARALLEL_2013],
        needs: "nothing; order costs time on a rotating disk (--on model:hdd)",
        method: Method::Order,
        against: &["ucrypt", "ucrypt:inline", "ucrypt:unbound", "ucrypt:unbound,unsorted"],
        peers: false,
        cells: sorted_writes,
    },
    Description {
        name: "request-merge",
        question: "Does joining neighbours before the cipher help sequential I/O?",
        shows: "MB/s: one by one, joined, not encrypted",
        tables: &[published::REQUEST_BASED_2015, published::BLOCK_SIZES_2015],
        needs: "nothing",
        method: Method::Load,
        against: &["ucrypt", "ucrypt:inline", "ucrypt:merge"],
        peers: false,
        cells: request_merge,
    },
    Description {
        name: "kernel-tree",
        question: "What does encryption cost a file system with many small files?",
        shows: "run time of unpack, copy, remove and sync; writes, their length and time",
        tables: &[published::KERNEL_TREE_2011],
        needs: "root, loop devices, mkfs of the file systems; in memory (/dev/shm), or in a directory (--on DIR)",
        method: Method::Tree,
        against: &["loop", "ucrypt-loop-none", "ucrypt-loop", "dm-crypt"],
        peers: false,
        cells: kernel_tree,
    },
    Description {
        name: "many-drives",
        question: "Which policy serves many drives from many cores?",
        shows: "total GB/s, mean and p99 latency by policy, in virtual time",
        tables: &[published::MANY_DRIVES_2020],
        needs: "nothing; always the simulator",
        method: Method::Drives,
        against: &["ucrypt", "ucrypt:inline", "ucrypt:unbound"],
        peers: false,
        cells: many_drives,
    },
];

/// The experiment of that name.
pub fn by_name(name: &str) -> Option<&'static Description> {
    ALL.iter().find(|description| description.name == name)
}

impl Description {
    /// The cells, in their order.
    pub fn cells(&self, scale: Scale) -> Vec<Cell> {
        (self.cells)(scale)
    }

    /// Whether a load is sent to servers: not where the experiment looks into the engine.
    pub fn takes_servers(&self) -> bool {
        matches!(self.method, Method::Load | Method::Added)
    }

    /// Whether the targets and ceilings of `lab run` apply to it.
    pub fn has_target(&self) -> bool {
        !matches!(self.method, Method::Tree | Method::Drives)
    }
}

/// A size as fio writes it.
pub fn size_name(bytes: u64) -> String {
    match bytes.trailing_zeros() {
        30.. => format!("{}g", bytes >> 30),
        20..30 => format!("{}m", bytes >> 20),
        10..20 => format!("{}k", bytes >> 10),
        _ => bytes.to_string(),
    }
}

fn cell(pattern: Pattern, block_bytes: u64, depth: u32, jobs: u32) -> Cell {
    let of = if jobs == 1 { String::new() } else { format!(" × {jobs} jobs") };
    let name = format!("{} {} qd{depth}{of}", size_name(block_bytes), pattern.name());
    Cell { name, pattern, block_bytes, depth, jobs, published: Vec::new() }
}

fn mb_s(contender: &'static str, label: &'static str, mb_s: Option<f64>) -> Published {
    Published { contender, label, mb_s, ..Published::default() }
}

/// Cells that name the same load are one, with the published figures of all.
fn joined(cells: impl Iterator<Item = Cell>) -> Vec<Cell> {
    let mut all: Vec<Cell> = Vec::new();
    for cell in cells {
        match all.iter_mut().find(|other| other.name == cell.name) {
            Some(same) => same.published.extend(cell.published),
            None => all.push(cell),
        }
    }
    all
}

/// The policy that stands for the dm-crypt of 2017, and its contender: it encrypted the writes of one client on many
/// cores, but decrypted a bio as a whole when all of it was there (until 2024).
pub(crate) fn luks_2017(pattern: Pattern) -> (Fixed, &'static str) {
    match pattern {
        Pattern::Read | Pattern::RandRead => (Fixed::Inline, "ucrypt:inline"),
        _ => (Fixed::Unbound { sorted: true }, "ucrypt:unbound"),
    }
}

fn block_sweep(scale: Scale) -> Vec<Cell> {
    let rows = published::LUKS_SWEEP_2017.rows();
    let cells = rows.iter().filter_map(|row| {
        let block_bytes: u64 = row.number("block_size")?;
        let [raw, luks] = match row.text("where") {
            "device" => [
                ("raw", "raw device, 2017"),
                (luks_2017(Pattern::Read).1, "LUKS on a device, 2017"),
            ],
            _ => [
                ("loop-ext4", "raw, through a file system, 2017"),
                ("ucrypt-loop-ext4", "LUKS, through a file system, 2017"),
            ],
        };
        let published =
            vec![mb_s(raw.0, raw.1, row.number("raw")), mb_s(luks.0, luks.1, row.number("luks"))];
        Some(Cell { published, ..cell(Pattern::Read, block_bytes, 1, 1) })
    });
    let all = joined(cells);
    match scale {
        Scale::Full => all,
        // Every contender of every cell takes some seconds.
        Scale::Quick => {
            let few = [4 << 10, 1 << 20];
            all.into_iter().filter(|cell| few.contains(&cell.block_bytes)).collect()
        }
    }
}

fn workqueues(scale: Scale) -> Vec<Cell> {
    let mut rows = published::WORKQUEUES_2020.rows();
    // The shortest and the longest: every contender of every cell takes some seconds.
    rows.retain(|row| scale == Scale::Full || row.text("block_size") != "64k");
    joined(rows.iter().filter_map(|row| {
        let block_bytes = match row.text("block_size") {
            "1m" => 1 << 20,
            "64k" => 64 << 10,
            _ => 4 << 10,
        };
        let (contender, label) = match row.text("device") {
            "nvme base" => ("raw", "raw, 2020"),
            "crypt default" => ("ucrypt:unbound", "dm-crypt, work queues, 2020"),
            _ => ("ucrypt:inline", "dm-crypt, no work queues, 2020"),
        };
        let published = vec![Published {
            contender,
            label,
            mb_s: row.number("mb_s"),
            mean_us: row.number("clat_mean_us"),
            p99_us: row.number("clat_p99_us"),
            ..Published::default()
        }];
        // The table does not say whether it read or wrote.
        let load =
            cell(Pattern::RandRead, block_bytes, row.number("iodepth")?, row.number("jobs")?);
        Some(Cell { published, ..load })
    }))
}

fn heat_map(scale: Scale) -> Vec<Cell> {
    let (blocks, depths): (&[u64], &[u32]) = match scale {
        Scale::Full => (&[4, 16, 64, 256, 1024], &[1, 4, 16, 64]),
        Scale::Quick => (&[4, 64, 1024], &[1, 8]),
    };
    let mut cells = Vec::new();
    for pattern in [Pattern::RandRead, Pattern::RandWrite] {
        for block in blocks {
            cells.extend(depths.iter().map(|&depth| cell(pattern, block << 10, depth, 1)));
        }
    }
    cells
}

fn exports(scale: Scale) -> Vec<Cell> {
    if scale == Scale::Quick {
        return vec![
            cell(Pattern::RandRead, 4 << 10, 1, 1),
            cell(Pattern::RandWrite, 4 << 10, 32, 1),
        ];
    }
    let mut cells = Vec::new();
    for (block_bytes, patterns) in [
        (4 << 10, [Pattern::RandRead, Pattern::RandWrite]),
        (64 << 10, [Pattern::RandRead, Pattern::RandWrite]),
        (1 << 20, [Pattern::Read, Pattern::Write]),
    ] {
        for pattern in patterns {
            cells.extend([1, 4, 32, 128].map(|depth| cell(pattern, block_bytes, depth, 1)));
        }
    }
    cells
}

fn added_latency(scale: Scale) -> Vec<Cell> {
    let blocks: &[u64] = match scale {
        Scale::Full => &[4, 8, 16, 32, 64, 128, 256, 512, 1024],
        Scale::Quick => &[4, 64, 1024],
    };
    let rows = published::LATENCY_2011.rows();
    let cells = blocks.iter().map(|block| {
        let mut cell = cell(Pattern::RandRead, block << 10, 1, 1);
        let row = rows.iter().find(|row| row.number("block_size") == Some(cell.block_bytes));
        cell.published.extend(row.map(|row| Published {
            contender: "ucrypt:unbound",
            label: "dm-crypt over a zero device, 2011",
            mean_us: row.number("added_latency_ms").map(|ms: f64| ms * 1000.0),
            medium: Some(Medium::Zero),
            ..Published::default()
        }));
        cell
    });
    cells.collect()
}

fn other_ssd(scale: Scale) -> Vec<Cell> {
    let rows = published::LUKS_OTHER_2017.rows();
    let figures = |test: &str, job: &str, label: [&'static str; 2], pattern: Pattern| {
        let row = rows.iter().find(|row| row.text("test") == test && row.text("job").contains(job));
        let number = |column| row.and_then(|row| row.number(column));
        let is_memory = label[0].contains("tmpfs");
        let medium = Some(if is_memory { Medium::Memory } else { Medium::Disk });
        let of = [
            mb_s("raw", label[0], number("raw")),
            mb_s(luks_2017(pattern).1, label[1], number("luks")),
        ];
        of.map(|it| Published { medium, ..it }).to_vec()
    };
    let ssd = ["raw SSD, 2017", "LUKS on an SSD, 2017"];
    let write = figures("linear write", "rw=write", ssd, Pattern::Write);
    let read = [
        ("linear read", "whole", ssd),
        ("linear read", "another", ["another raw SSD, 2017", "LUKS on it, 2017"]),
        ("in memory read", "", ["raw tmpfs, 2017", "LUKS on tmpfs, 2017"]),
    ];
    let read =
        read.into_iter().flat_map(|(test, job, label)| figures(test, job, label, Pattern::Read));
    let read = read.collect();
    let random = figures("random write", "", ssd, Pattern::RandWrite);
    let mut cells = vec![
        Cell { published: write, ..cell(Pattern::Write, 1 << 20, 1, 1) },
        // A linear read comes with read-ahead: a few requests are in flight.
        Cell { published: read, ..cell(Pattern::Read, 1 << 20, 4, 1) },
        Cell { published: random, ..cell(Pattern::RandWrite, 64 << 10, 1, 20) },
    ];
    if scale == Scale::Quick {
        cells.remove(0);
    }
    cells
}

fn instant(_: Scale) -> Vec<Cell> {
    const BYTES_A_MIB: f64 = 1.048_576;
    let rows = published::INSTANT_2020.rows();
    let average = rows.iter().find_map(|row| row.number::<f64>("average_mib_s"));
    let modes = rows.iter().find_map(|row| {
        let (low, high) = row.text("modes_mib_s").split_once(';')?;
        let mb_s = |text: &str| text.parse::<f64>().ok().map(|mib_s| mib_s * BYTES_A_MIB);
        mb_s(low).zip(mb_s(high))
    });
    let published = vec![Published {
        contender: "ucrypt:unbound",
        label: "dm-crypt, work queues, null cipher, 2020",
        mb_s: average.map(|mib_s| mib_s * BYTES_A_MIB),
        modes_mb_s: modes,
        ..Published::default()
    }];
    vec![Cell { published, ..cell(Pattern::RandRw, 4 << 10, 1, 1) }]
}

fn sorted_writes(scale: Scale) -> Vec<Cell> {
    let rows = published::PARALLEL_2013.rows();
    let of = |device: &str, dispatch: &str| {
        let row = rows
            .iter()
            .find(|row| row.text("device").starts_with(device) && row.text("dispatch") == dispatch);
        row.and_then(|row| row.number("mb_s"))
    };
    let raid = |dispatch| of("2-disk", dispatch);
    let ramdisk = |dispatch| of("ramdisk", dispatch);
    let (sorted, unsorted) = ("ucrypt:unbound", "ucrypt:unbound,unsorted");
    let patched = ramdisk("unbound workqueue (with the workqueue patch)");
    // Nobody published the speed of the ramdisk: its rows stand before the raw one of the disks.
    let published = vec![
        mb_s(sorted, "hand-built dispatch, on a ramdisk, 2013", ramdisk("hand-built dispatch")),
        mb_s(unsorted, "Linux 3.8, on a ramdisk, 2013", ramdisk("unbound workqueue (3.8)")),
        mb_s(unsorted, "Linux 3.8 with a patch, on a ramdisk, 2013", patched),
        mb_s("raw", "raw RAID-0 of two disks, 2013", raid("none (raw)")),
        mb_s(sorted, "sorted, on the RAID-0, 2013", raid("hand-built dispatch")),
        mb_s(unsorted, "unbound work queue, on the RAID-0, 2013", raid("unbound workqueue")),
    ];
    let mut cells = vec![Cell { published, ..cell(Pattern::Write, 256 << 10, 16, 1) }];
    if scale == Scale::Full {
        cells.push(cell(Pattern::Write, 64 << 10, 32, 1));
        cells.push(cell(Pattern::Write, 4 << 10, 64, 1));
    }
    cells
}

fn request_merge(scale: Scale) -> Vec<Cell> {
    /// fio 2 writes KB for 1024 bytes.
    const MB_A_FIO_KB: f64 = 1.024e-3;
    let sizes = published::BLOCK_SIZES_2015.rows();
    let based = published::REQUEST_BASED_2015.rows();
    let blocks: &[u64] = match scale {
        Scale::Full => &[4, 16, 64, 256, 1024],
        Scale::Quick => &[4, 64],
    };
    let mut cells = Vec::new();
    for (pattern, name) in
        [(Pattern::Read, "sequential read"), (Pattern::Write, "sequential write")]
    {
        for block in blocks {
            let mut cell = cell(pattern, block << 10, 1, 1);
            let of_it = |rows: &[published::Row], tool: &str| {
                let is_it = |row: &&published::Row| {
                    row.text("pattern") == name
                        && row.text("tool") == tool
                        && row.number("block_size") == Some(cell.block_bytes)
                };
                rows.iter().find(is_it).cloned()
            };
            // Those without a raw figure of their own stand before it.
            let mut published = Vec::new();
            if let Some(row) = of_it(&sizes, "") {
                let speed = row.number("request_based_mb_s");
                published.push(mb_s("ucrypt:merge", "request-based, by block size, 2015", speed));
            }
            if let Some(row) = of_it(&based, "fio") {
                let speed = |column| row.number(column).map(|kb_s: f64| kb_s * MB_A_FIO_KB);
                let (bio, request) = (speed("bio_based"), speed("request_based"));
                published.push(mb_s("ucrypt:inline", "bio-based dm-crypt, by fio, 2015", bio));
                published.push(mb_s("ucrypt:merge", "request-based, by fio, 2015", request));
            }
            if let Some(row) = of_it(&based, "dd") {
                published.extend([
                    mb_s("raw", "raw SD card, 2015", row.number("no_encryption")),
                    mb_s("ucrypt:inline", "bio-based dm-crypt, 2015", row.number("bio_based")),
                    mb_s("ucrypt:merge", "request-based, 2015", row.number("request_based")),
                ]);
            }
            cell.published = published;
            cells.push(cell);
        }
    }
    cells
}

/// The cells of [`Method::Tree`] are file systems; their loads mean nothing.
fn kernel_tree(scale: Scale) -> Vec<Cell> {
    let names: &[&str] = match scale {
        Scale::Full => &["ext2", "ext3", "ext4", "xfs", "btrfs"],
        Scale::Quick => &["ext4"],
    };
    let rows = published::KERNEL_TREE_2011.rows();
    let named = |name: &&str| {
        let row = rows.iter().find(|row| row.text("filesystem") == *name);
        let published = row.map_or_else(Vec::new, |row| {
            let plain = Published {
                contender: "loop",
                label: "not encrypted, 2011",
                seconds: row.number("plain_s"),
                writes: row.number("plain_writes"),
                kib_a_write: row.number("plain_avg_write_kib"),
                ..Published::default()
            };
            let encrypted = Published {
                contender: "ucrypt-loop",
                label: "dm-crypt, 2011",
                slowdown: row.number("slowdown"),
                seconds: row.number("dm_crypt_s"),
                kib_a_write: row.number("dm_crypt_avg_write_kib"),
                ..Published::default()
            };
            let below = Published {
                contender: "dm-crypt",
                label: "below dm-crypt, 2011",
                writes_below: row.number("crypt_backend_writes"),
                ..Published::default()
            };
            vec![plain, encrypted, below]
        });
        Cell { name: (*name).into(), published, ..cell(Pattern::Write, 4096, 1, 1) }
    };
    names.iter().map(named).collect()
}

/// The loads of `crate::sim::drives`, which has the same names.
fn many_drives(_: Scale) -> Vec<Cell> {
    crate::sim::drives::cells()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_table_is_repeated_and_every_cell_has_a_name_of_its_own() {
        let files: BTreeSet<_> =
            ALL.iter().flat_map(|d| d.tables).map(|table| table.file).collect();
        for table in published::ALL {
            assert!(files.contains(table.file), "nothing repeats {}", table.file);
        }
        for description in ALL {
            for scale in [Scale::Full, Scale::Quick] {
                let cells = description.cells(scale);
                let names: BTreeSet<_> = cells.iter().map(|cell| &cell.name).collect();
                assert!(!cells.is_empty(), "{}", description.name);
                assert_eq!(names.len(), cells.len(), "{} {scale:?}", description.name);
                for cell in &cells {
                    assert_eq!(cell.block_bytes % 4096, 0, "{}", cell.name);
                }
            }
        }
    }

    #[test]
    fn an_experiment_names_the_tables_whose_figures_it_shows() {
        for description in ALL {
            let cells = description.cells(Scale::Full);
            let has_figures = cells.iter().any(|cell| !cell.published.is_empty());
            assert_eq!(has_figures, !description.tables.is_empty(), "{}", description.name);
        }
    }

    /// Every figure of a cell, in the units of [`Published`].
    fn figures(it: &Published) -> Vec<f64> {
        let modes = it.modes_mb_s.into_iter().flat_map(|(low, high)| [low, high]);
        let others = [
            it.mb_s,
            it.mean_us,
            it.p99_us,
            it.slowdown,
            it.seconds,
            it.writes,
            it.kib_a_write,
            it.writes_below,
        ];
        others.into_iter().flatten().chain(modes).collect()
    }

    /// What a figure of a column is multiplied by for the units of [`Published`].
    fn factor(column: &str, unit: &str) -> f64 {
        match (column, unit) {
            (_, "KB/s") => 1.024e-3,
            _ if column.ends_with("_mib_s") => 1.048_576,
            _ if column.ends_with("_gb_s") || column.ends_with("_ms") => 1000.0,
            _ => 1.0,
        }
    }

    #[test]
    fn every_published_number_stands_at_a_cell_or_in_the_list_of_those_left_out() {
        // What a row was measured with.
        const KEYS: [&str; 3] = ["block_size", "iodepth", "jobs"];
        let mut left_out = 0;
        for table in published::ALL {
            let repeat = ALL.iter().filter(|it| it.tables.contains(table));
            let cells = repeat.flat_map(|it| it.cells(Scale::Full));
            // Each figure stands for one field of the tables.
            let mut shown: Vec<f64> =
                cells.flat_map(|cell| cell.published).flat_map(|it| figures(&it)).collect();
            for row in table.rows() {
                for (column, text) in row.columns() {
                    let numbers: Option<Vec<f64>> =
                        text.split(';').map(|part| part.parse().ok()).collect();
                    let numbers = numbers.filter(|_| !KEYS.contains(&column)).unwrap_or_default();
                    for number in numbers {
                        let wanted = number * factor(column, row.text("unit"));
                        let same = |it: &f64| (it / wanted - 1.0).abs() < 1e-9;
                        let Some(at) = shown.iter().position(same) else {
                            let listed = published::LEFT_OUT.iter().any(|left| {
                                left.file == table.file
                                    && left.column == column
                                    && left.text == text
                            });
                            assert!(listed, "nothing shows {text} ({column} of {})", table.file);
                            left_out += 1;
                            continue;
                        };
                        shown.swap_remove(at);
                    }
                }
            }
        }
        assert_eq!(left_out, published::LEFT_OUT.iter().filter(|it| it.column != "note").count());
        for left in published::LEFT_OUT {
            let table = published::ALL.iter().find(|table| table.file == left.file);
            let rows = table.expect("a table").rows();
            assert!(rows.iter().any(|row| row.text(left.column).contains(left.text)), "{left:?}");
        }
    }

    #[test]
    fn published_figures_stand_at_their_cells() {
        let of = |name: &str, cell: &str, contender: &str| {
            let cells = by_name(name).unwrap().cells(Scale::Full);
            let cell = cells.into_iter().find(|it| it.name == cell).expect("the cell");
            let mut found = cell.published.into_iter().filter(|it| it.contender == contender);
            found.next().expect("a figure")
        };
        assert_eq!(of("block-sweep", "1m read qd1", "ucrypt:inline").mb_s, Some(327.0));
        assert_eq!(of("block-sweep", "1g read qd1", "raw").mb_s, Some(512.0));
        let workqueues = of("workqueues", "4k randread qd128 × 4 jobs", "ucrypt:inline");
        assert_eq!((workqueues.mb_s, workqueues.p99_us), (Some(1703.0), Some(1319.0)));
        assert_eq!(of("request-merge", "64k read qd1", "raw").mb_s, Some(18.4));
        assert_eq!(of("request-merge", "256k write qd1", "ucrypt:merge").mb_s, Some(7.5));
        assert_eq!(
            of("added-latency", "1m randread qd1", "ucrypt:unbound").mean_us,
            Some(10_000.0)
        );
        assert_eq!(of("other-ssd", "64k randwrite qd1 × 20 jobs", "raw").mb_s, Some(320.0));
    }
}
