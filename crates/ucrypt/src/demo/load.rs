//! A load on a disk: requests of one size, at a fixed queue depth.

use std::io;
use std::time::{Duration, Instant};

use ucrypt_backend::{Backend, Buf, Io, Pool};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
}

/// A load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job {
    pub(super) kind: Kind,
    pub(super) random: bool,
    /// Bytes of a request.
    pub(super) block: usize,
    /// Queue depth.
    pub(super) depth: u32,
}

const fn job(kind: Kind, random: bool, block: usize, depth: u32) -> Job {
    Job { kind, random, block, depth }
}

/// Small and large requests, alone and many at once.
pub(super) const JOBS: [Job; 6] = [
    job(Kind::Read, true, 4096, 1),
    job(Kind::Read, true, 4096, 32),
    job(Kind::Write, true, 4096, 32),
    job(Kind::Read, false, 65536, 1),
    job(Kind::Read, false, 1 << 20, 8),
    job(Kind::Write, false, 1 << 20, 8),
];

impl Job {
    pub(super) fn name(&self) -> String {
        let random = if self.random { "rand" } else { "" };
        let kind = if self.kind == Kind::Read { "read" } else { "write" };
        let block = if self.block < 1 << 20 {
            format!("{}k", self.block >> 10)
        } else {
            format!("{}m", self.block >> 20)
        };
        format!("{block} {random}{kind} qd{}", self.depth)
    }

    /// Runs for `time` and returns the speed in MB/s (10^6 bytes); `None` if `stop` ended it.
    pub(super) fn run(
        &self,
        disk: &dyn Backend,
        time: Duration,
        stop: impl Fn() -> bool,
    ) -> io::Result<Option<f64>> {
        let mut queue = disk.queue(self.depth)?;
        let pool = Pool::new(self.block * self.depth as usize * 2)?;
        let mut free: Vec<Buf> = (0..self.depth).filter_map(|_| pool.alloc(self.block)).collect();
        let blocks = disk.limits().len / self.block as u64;
        let (mut next, mut bytes) = (0u64, 0u64);
        // The same offsets in each run.
        let mut random = fastrand::Rng::with_seed(1);
        let mut done = Vec::new();
        let started = Instant::now();
        let mut stopped = false;
        while !stopped && started.elapsed() < time || queue.room() < self.depth as usize {
            stopped = stopped || stop();
            while !stopped
                && started.elapsed() < time
                && let Some(buf) = free.pop()
            {
                let block = if self.random { random.u64(..blocks) } else { next % blocks };
                next += 1;
                let (token, offset) = (next, block * self.block as u64);
                queue.submit(match self.kind {
                    Kind::Read => Io::Read { token, offset, bufs: vec![buf] },
                    Kind::Write => Io::Write { token, offset, bufs: vec![buf], fua: false },
                });
            }
            if queue.room() == self.depth as usize {
                // Nothing is in flight to wait for.
                continue;
            }
            queue.wait(&mut done)?;
            for answer in done.drain(..) {
                answer.result?;
                bytes += self.block as u64;
                free.extend(answer.bufs);
            }
        }
        let megabytes = bytes as f64 / 1e6;
        Ok((!stopped).then(|| megabytes / started.elapsed().as_secs_f64()))
    }
}
