//! Who asks: clients that keep a number of requests in flight, as fio's jobs do.

use ucrypt_dispatch::{Op, Request, Urgency};

use super::experiment::{Job, Pattern};
use super::random::Random;

/// The clients of one queue.
#[derive(Debug)]
pub(crate) struct Client {
    job: Job,
    /// Requests are whole multiples of this.
    unit: u64,
    random: Random,
    /// Where the next sequential request starts: in blocks, for `Torture` in units.
    next: u64,
    issued: u64,
}

impl Client {
    /// The clients of queue `index` of `queues`; sequential ones start evenly spread. Requests
    /// are aligned to `unit` sectors.
    pub(crate) fn new(job: Job, unit: u64, (index, queues): (u64, u64), seed: u64) -> Self {
        let blocks = job.region_sectors / job.block_sectors;
        assert!(blocks > 0 && job.block_sectors.is_multiple_of(unit), "blocks that do not fit");
        let random = Random::new(seed, 1000 + index);
        Self { job, unit, random, next: blocks * index / queues, issued: 0 }
    }

    /// The next request; `None` when the job is done.
    pub(crate) fn next(&mut self) -> Option<Request> {
        if self.issued >= self.job.requests {
            return None;
        }
        self.issued += 1;
        let Job { pattern, block_sectors: sectors, region_sectors, .. } = self.job;
        let blocks = region_sectors / sectors;
        let block = match pattern {
            Pattern::Read | Pattern::Write => {
                self.next += 1;
                (self.next - 1) % blocks
            }
            Pattern::RandRead | Pattern::RandWrite | Pattern::RandRw => self.random.below(blocks),
            Pattern::Torture => return Some(self.torture()),
        };
        let op = match pattern {
            Pattern::Read | Pattern::RandRead => Op::Read,
            Pattern::RandRw if self.random.below(2) == 0 => Op::Read,
            _ => Op::Write { fua: false },
        };
        Some(Request { op, sector: block * sectors, sectors, urgency: Urgency::Normal })
    }

    fn torture(&mut self) -> Request {
        let fua = self.random.below(4) == 0;
        let op = match self.random.below(12) {
            0..=3 => Op::Read,
            4..=7 => Op::Write { fua },
            8 => Op::EncryptZeroes { fua },
            9 => Op::Discard,
            10 => Op::BackendZeroes,
            _ => Op::Flush,
        };
        let urgency = match self.random.below(8) {
            0 => Urgency::Urgent,
            1 => Urgency::Background,
            _ => Urgency::Normal,
        };
        if op == Op::Flush {
            return Request { op, sector: 0, sectors: 0, urgency };
        }
        // Half of them short; now and then one that continues the last, to be joined.
        let longest = self.job.block_sectors / self.unit;
        let longest = if self.random.below(2) == 0 { longest.min(8) } else { longest };
        let length = self.random.below(longest) + 1;
        let room = self.job.region_sectors / self.unit - length;
        let start = if self.random.below(3) == 0 && self.next <= room {
            self.next
        } else {
            self.random.below(room + 1)
        };
        self.next = start + length;
        Request { op, sector: start * self.unit, sectors: length * self.unit, urgency }
    }
}
