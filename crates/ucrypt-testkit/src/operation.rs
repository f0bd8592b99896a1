//! Random operations of a client.

use std::fmt;
use std::ops::Range;

use crate::random::Random;

/// The kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Read.
    Read,
    /// Write; durable before it is answered with `fua`.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Write zeroes, without data.
    WriteZeroes {
        /// Force unit access.
        fua: bool,
    },
    /// The content is no longer needed.
    Discard,
    /// Make every answered write durable.
    Flush,
}

impl Kind {
    /// Whether the operation must be durable when it is answered.
    pub fn is_fua(self) -> bool {
        matches!(self, Self::Write { fua: true } | Self::WriteZeroes { fua: true })
    }
}

/// One operation; bytes of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Its kind.
    pub kind: Kind,
    /// First byte.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub len: u64,
}

impl Operation {
    /// The bytes that it touches.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.len
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} bytes at {}", self.kind, self.len, self.offset)
    }
}

/// The distribution of a run's operations. Shares are in percent.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Bytes of the disk.
    pub disk_len: u64,
    /// Longest transfer in bytes.
    pub transfer_max: u64,
    /// Longest write of zeroes or discard in bytes.
    pub zeroes_max: u64,
    /// Share of operations whose offsets and lengths are multiples of `grain` only; the others are
    /// multiples of 512 or 4096.
    pub unaligned: u64,
    /// All offsets and lengths are multiples of this, in bytes.
    pub grain: u64,
    /// Shares of reads, writes, writes of zeroes, discards and flushes.
    pub mix: [u64; 5],
    /// Share of durable writes.
    pub fua: u64,
}

impl Shape {
    /// A mix of all operations on a disk of `disk_len` bytes, at any alignment.
    pub fn everything(disk_len: u64) -> Self {
        Self {
            disk_len,
            transfer_max: 256 << 10,
            zeroes_max: 1 << 20,
            unaligned: 30,
            grain: 1,
            mix: [35, 40, 10, 5, 10],
            fua: 10,
        }
    }

    /// A random one of several shapes that are hard in different ways.
    pub fn by_chance(random: &mut Random, disk_len: u64) -> Self {
        let everything = Self::everything(disk_len);
        match random.below(4) {
            // Many long writes of zeroes at once.
            0 => Self { mix: [20, 20, 50, 5, 5], zeroes_max: disk_len, ..everything },
            // Small transfers, mostly aligned.
            1 => Self { transfer_max: 4096, unaligned: 5, ..everything },
            _ => everything,
        }
    }
}

/// Generates operations that overlap and that follow each other.
#[derive(Debug)]
pub struct Generator {
    shape: Shape,
    /// Where the last operation ended.
    last_end: u64,
    /// A region that many operations hit, for a while.
    hot: Range<u64>,
}

impl Generator {
    /// A generator for that shape.
    pub fn new(shape: Shape) -> Self {
        let hot = 0..shape.disk_len;
        Self { shape, last_end: 0, hot }
    }

    /// The next operation.
    pub fn operation(&mut self, random: &mut Random) -> Operation {
        let shape = &self.shape;
        if random.percent(2) {
            let len = random.length(shape.disk_len).max(shape.grain);
            let start = random.below(shape.disk_len - len + 1);
            self.hot = start..start + len;
        }
        let fua = random.percent(shape.fua);
        let kinds = [
            Kind::Read,
            Kind::Write { fua },
            Kind::WriteZeroes { fua },
            Kind::Discard,
            Kind::Flush,
        ];
        let kind = pick(kinds, shape.mix, random);
        if kind == Kind::Flush {
            return Operation { kind, offset: 0, len: 0 };
        }
        let longest = match kind {
            Kind::WriteZeroes { .. } | Kind::Discard => shape.zeroes_max,
            _ => shape.transfer_max,
        };
        let unit = if random.percent(shape.unaligned) {
            shape.grain
        } else {
            [512, 4096][random.below(2) as usize].max(shape.grain)
        };
        let down = |at: u64| at / unit * unit;
        let len = random.length(longest.min(shape.disk_len)).next_multiple_of(unit);
        let len = len.min(down(shape.disk_len)).min(down(longest).max(unit));
        let offset = match random.below(4) {
            // Directly behind the last operation.
            0 => self.last_end,
            1 | 2 => self.hot.start + random.below(self.hot.end - self.hot.start),
            _ => random.below(shape.disk_len),
        };
        let offset = down(offset.min(shape.disk_len - len));
        self.last_end = offset + len;
        Operation { kind, offset, len }
    }
}

fn pick<T: Copy>(choices: [T; 5], shares: [u64; 5], random: &mut Random) -> T {
    let mut at = random.below(shares.iter().sum());
    for (choice, share) in choices.iter().zip(shares) {
        if at < share {
            return *choice;
        }
        at -= share;
    }
    choices[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_lie_on_the_disk_and_reach_every_corner_of_it() {
        for (grain, len) in [(1, 100_000), (512, 1 << 20), (4096, 1 << 16)] {
            let shape = Shape { grain, ..Shape::everything(len) };
            let (mut generator, mut random) = (Generator::new(shape), Random::new(1));
            let (mut ends, mut kinds) = ([false; 2], std::collections::HashSet::new());
            for _ in 0..20_000 {
                let operation = generator.operation(&mut random);
                let range = operation.range();
                assert!(range.end <= len, "{operation}");
                assert!(range.start % grain == 0 && range.end % grain == 0, "{operation}");
                assert_eq!(range.is_empty(), operation.kind == Kind::Flush, "{operation}");
                ends[0] |= range.start == 0 && !range.is_empty();
                ends[1] |= range.end > len - 4096;
                kinds.insert(operation.kind);
            }
            assert_eq!((ends, kinds.len()), ([true; 2], 7), "grain {grain}");
        }
    }
}
