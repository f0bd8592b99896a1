//! The operations that a program may do on an open file or disk, and a seeded generator of them.
//!
//! Positions and lengths are bytes. A generator keeps to a part of the file, so that several can
//! work on the file at once and each knows its part byte for byte. Only a generator whose part ends
//! with the file also tries positions behind the end.

use std::ops::Range;

use ucrypt_testkit::Random;

/// The descriptor by which a client reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// One of two without further flags.
    Plain(usize),
    /// One for direct I/O.
    Direct,
    /// A shared mapping.
    Mapping,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Read {
        at: u64,
        len: usize,
        by: By,
    },
    Write {
        at: u64,
        len: usize,
        by: By,
    },
    /// By a descriptor that is open for appending.
    Append {
        len: usize,
    },
    /// ftruncate(2).
    Resize {
        len: u64,
    },
    /// Another descriptor, opened with `O_TRUNC`.
    OpenTruncated,
    /// fallocate(2) that zeroes a range.
    Zero {
        at: u64,
        len: u64,
        keep_size: bool,
    },
    /// fallocate(2) that makes a hole.
    Punch {
        at: u64,
        len: u64,
    },
    /// fallocate(2) that reserves space.
    Reserve {
        at: u64,
        len: u64,
        keep_size: bool,
    },
    /// fallocate(2) that takes a range out of the file.
    Collapse {
        at: u64,
        len: u64,
    },
    /// lseek(2) to the next data.
    SeekData {
        at: u64,
    },
    /// lseek(2) to the next hole.
    SeekHole {
        at: u64,
    },
    /// `copy_file_range(2)` within the file.
    Copy {
        from: u64,
        to: u64,
        len: usize,
    },
    /// sendfile(2) to another file.
    Send {
        at: u64,
        len: usize,
    },
    /// The content no longer matters.
    Discard {
        at: u64,
        len: u64,
    },
    Sync,
    SyncData,
}

impl Operation {
    /// The range that the operation reads or writes.
    pub(crate) fn range(self) -> Range<u64> {
        match self {
            Self::Read { at, len, .. } | Self::Write { at, len, .. } | Self::Send { at, len } => {
                at..at + len as u64
            }
            Self::Copy { to, len, .. } => to..to + len as u64,
            Self::Zero { at, len, .. } | Self::Punch { at, len } | Self::Discard { at, len } => {
                at..at + len
            }
            _ => 0..0,
        }
    }
}

/// The operations that a client supports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Abilities {
    /// Descriptors for direct I/O take multiples of this.
    pub(crate) direct_unit: u64,
    /// Ranges of zeroes are multiples of this.
    pub(crate) zero_unit: u64,
    /// Holes are multiples of this.
    pub(crate) hole_unit: u64,
    pub(crate) mapping: bool,
    pub(crate) copy: bool,
    /// Whether `O_APPEND` has an effect.
    pub(crate) append: bool,
    pub(crate) discard: bool,
}

/// An endless sequence of operations.
#[derive(Debug)]
pub(crate) struct Generator {
    random: Random,
    part: Range<u64>,
    end: u64,
    abilities: Abilities,
}

/// Longest single operation, in bytes.
const LEN_MAX: u64 = 8 << 20;

impl Generator {
    /// Operations on `part` of a file of `end` bytes.
    pub(crate) fn new(seed: u64, part: Range<u64>, end: u64, abilities: Abilities) -> Self {
        Self { random: Random::new(seed), part, end, abilities }
    }

    pub(crate) fn next(&mut self) -> Operation {
        let choice = self.random.below(100);
        match choice {
            0..30 => {
                let by = self.by();
                let (at, len) = self.range(self.unit(by), by != By::Mapping);
                Operation::Read { at, len: len as usize, by }
            }
            30..66 => {
                let by = self.by();
                let (at, len) = self.range(self.unit(by), by != By::Mapping);
                Operation::Write { at, len: len as usize, by }
            }
            66..75 => {
                let kind = self.random.below(3);
                let unit =
                    if kind == 0 { self.abilities.hole_unit } else { self.abilities.zero_unit };
                let (at, len) = self.range(unit, true);
                match kind {
                    0 => Operation::Punch { at, len },
                    keep => Operation::Zero { at, len, keep_size: keep == 1 },
                }
            }
            75..82 => self.within_the_file(),
            82..86 => {
                let (at, len) = self.range(1, true);
                Operation::Send { at, len: len as usize }
            }
            86..92 => self.without_effect(),
            92..94 => Operation::SyncData,
            _ => Operation::Sync,
        }
    }

    fn by(&mut self) -> By {
        match self.random.below(8) {
            0..2 if self.abilities.mapping => By::Mapping,
            0..4 => By::Direct,
            other => By::Plain(other as usize % 2),
        }
    }

    fn unit(&self, by: By) -> u64 {
        if by == By::Direct { self.abilities.direct_unit } else { 1 }
    }

    /// Copies or discards, if supported.
    fn within_the_file(&mut self) -> Operation {
        if self.abilities.discard {
            let (at, len) = self.range(self.abilities.zero_unit, false);
            return Operation::Discard { at, len };
        }
        let (from, len) = self.range(1, false);
        let (to, room) = self.range(1, false);
        let (low, high) = (from.min(to), from.max(to));
        // Ranges of one file must not overlap.
        let len = len.min(room).min(high - low);
        if self.abilities.copy && len > 0 {
            Operation::Copy { from, to, len: len as usize }
        } else {
            Operation::Sync
        }
    }

    /// Operations that must leave everything as it is.
    fn without_effect(&mut self) -> Operation {
        let (at, len) = self.range(1, true);
        match self.random.below(8) {
            0 if self.abilities.append => Operation::Append { len: len as usize },
            0..2 => Operation::Resize { len: at },
            2 => Operation::Resize { len: self.end },
            3 => Operation::OpenTruncated,
            4 => Operation::Reserve { at, len, keep_size: len.is_multiple_of(2) },
            5 => Operation::Collapse { at: 0, len: 4096 },
            6 => Operation::SeekData { at },
            _ => Operation::SeekHole { at },
        }
    }

    /// Position and length in multiples of `unit`, length not 0. Some lie `behind` the end of the
    /// file.
    fn range(&mut self, unit: u64, behind: bool) -> (u64, u64) {
        let first = self.part.start.next_multiple_of(unit);
        let last = self.part.end / unit * unit;
        let behind = behind && self.part.end == self.end && self.random.below(20) == 0;
        if behind {
            let at = last.saturating_sub(self.random.below(3) * unit).max(first);
            return (at, self.length(4 * unit, unit));
        }
        let at = first + self.random.below((last - first) / unit) * unit;
        (at, self.length(last - at, unit))
    }

    /// A length: short ones as often as long ones.
    fn length(&mut self, max: u64, unit: u64) -> u64 {
        let bits = 64 - max.min(LEN_MAX).leading_zeros();
        let most = 1u64 << self.random.below(u64::from(bits) + 1);
        let len = 1 + self.random.below(most);
        len.next_multiple_of(unit).min(max / unit * unit).max(unit)
    }
}
