//! Requests by chance: of all kinds and sizes, overlapping, adjacent, and in any pieces of memory.

use crate::driver::{DISCARD, FLUSH, READ, Run, WRITE, WRITE_ZEROES};
use crate::random::Random;

use super::content::SECTOR;

/// A request. Sectors of 512 bytes.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) kind: u32,
    pub(crate) first: u64,
    pub(crate) count: u64,
}

impl Asked {
    pub(crate) fn bytes(&self) -> usize {
        self.count as usize * SECTOR
    }

    /// Whether it changes sectors.
    pub(crate) fn changes(&self) -> bool {
        matches!(self.kind, WRITE | WRITE_ZEROES | DISCARD)
    }
}

/// What happens to the machine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A ring stops and goes on.
    Ring,
    /// All do.
    Machine,
    /// A region of memory goes and comes back.
    Region,
    /// The whole table of memory is given again.
    Table,
    /// The front end goes and comes back.
    Reconnect,
}

/// Most sectors that are zeroed or discarded at once.
const RANGE_MAX: u64 = (4 << 20) / 512;

pub(crate) struct Generator {
    random: Random,
    sectors: u64,
    /// Where the last request ended.
    last_end: u64,
}

impl Generator {
    /// For a disk of that many sectors.
    pub(crate) fn new(seed: u64, sectors: u64) -> Self {
        // The generator's state must not be 0, and seeds that follow each other not be alike.
        let random = Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        Self { random, sectors, last_end: 0 }
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.random.below(count) == 0
    }

    /// A request of at most so many bytes of data.
    pub(crate) fn request(&mut self, bytes_max: u64) -> Asked {
        let kind = match self.below(16) {
            0..6 => READ,
            6..12 => WRITE,
            12 | 13 => WRITE_ZEROES,
            14 => DISCARD,
            _ => FLUSH,
        };
        if kind == FLUSH {
            return Asked { kind, first: 0, count: 0 };
        }
        let has_data = kind == READ || kind == WRITE;
        let max = if has_data { bytes_max / 512 } else { RANGE_MAX };
        let count = match self.below(16) {
            // What takes no memory of the guest's is large more often.
            0..6 if !has_data => 1 + self.below(RANGE_MAX),
            0..6 => 1 + self.below(8),
            6..10 => 8 * (1 + self.below(16)),
            10..14 => 1 + self.below(256),
            14 => 1 + self.below(2048),
            _ => 1 + self.below(max),
        };
        let count = count.min(max).min(self.sectors);
        let room = self.sectors - count + 1;
        let first = match self.below(4) {
            // Where others are, too.
            0 => self.below(256.min(room)),
            1 => self.last_end.min(room - 1),
            2 => self.below(room) / 8 * 8,
            _ => self.below(room),
        };
        self.last_end = first + count;
        Asked { kind, first, count }
    }

    /// Runs of memory for so many bytes, from an address on: with gaps of 1 KiB at most.
    pub(crate) fn runs(&mut self, at: u64, bytes: u64) -> Vec<Run> {
        let unit = [bytes, 4096, 512, 1][self.below(4) as usize];
        let mut at = at + self.below(4) * self.below(1024);
        let mut runs = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let most = 2 * left.div_ceil(1 + self.below(16));
            let run = (1 + self.below(most)).next_multiple_of(unit);
            let run = if runs.len() == 100 { left } else { run.min(left) };
            runs.push((at, run as u32));
            at += run + self.below(2) * self.below(1024);
            left -= run;
        }
        runs
    }

    pub(crate) fn event(&mut self) -> Event {
        match self.below(8) {
            0 | 1 => Event::Ring,
            2 => Event::Machine,
            3 | 4 => Event::Region,
            5 => Event::Table,
            _ => Event::Reconnect,
        }
    }
}
