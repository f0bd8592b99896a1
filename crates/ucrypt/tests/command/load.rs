//! A write load that knows what was acknowledged.
//!
//! Several writers, each with its own connection or open file and its own part of the volume, write
//! runs of blocks and flush now and then, until their disk fails because its server has gone. Every
//! block names the write it belongs to. Afterwards the volume must hold, for each block, the last
//! acknowledged write: the server dies, not the machine, and a write is acknowledged only once the
//! backend has it. This covers everything before the last acknowledged flush. Of the one request
//! that a writer had in flight, each sector may or may not have arrived.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use ucrypt_testkit::Random;

use crate::nbd_client::NbdClient;

/// Bytes of a block.
const BLOCK: usize = 4096;
/// The unit that arrives entirely or not at all: the smallest encryption sector.
const SECTOR: usize = 512;
/// Blocks of one writer's part of the volume.
const BLOCKS: u64 = 512;
/// Most blocks of one write.
const RUN_MAX: u64 = 24;
/// A writer flushes after one write in this many.
const FLUSH_EVERY: u64 = 12;
/// How long a load may take to make progress, or to notice that its disk has gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes that `writers` writers use.
pub(crate) const fn volume_len(writers: u64) -> u64 {
    writers * BLOCKS * BLOCK as u64
}

/// A disk as a program sees it: over NBD, or as a file over FUSE.
#[derive(Debug)]
pub(crate) enum Disk {
    Nbd(NbdClient),
    Fuse(File),
}

impl Disk {
    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        match self {
            Self::Nbd(client) => client.write(offset, data),
            Self::Fuse(file) => file.write_all_at(data, offset),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Nbd(client) => client.flush(),
            Self::Fuse(file) => file.sync_data(),
        }
    }
}

/// The record of one writer whose disk has gone.
#[derive(Debug)]
struct Record {
    /// First block of its part of the volume.
    first: u64,
    /// For each block, the number of the last write that was acknowledged; 0 for none.
    acknowledged: Vec<u64>,
    /// The same, at the last acknowledged flush.
    flushed: Vec<u64>,
    /// The write in flight: its blocks, counted from `first`, and its number.
    under_way: Option<(Range<u64>, u64)>,
}

/// A load while it runs.
#[derive(Debug)]
pub(crate) struct Load {
    seed: u64,
    writers: Vec<JoinHandle<Record>>,
    acknowledged: Receiver<Acknowledged>,
}

/// An acknowledged request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Acknowledged {
    Write,
    Flush,
}

impl Load {
    /// One writer for each disk.
    pub(crate) fn start(seed: u64, disks: Vec<Disk>) -> Self {
        println!("seed of the load: {seed}");
        let (tell, acknowledged) = mpsc::channel();
        let writers = disks.into_iter().zip(0_u64..).map(|(disk, number)| {
            let tell = tell.clone();
            std::thread::spawn(move || write_until_it_fails(disk, seed, number * BLOCKS, &tell))
        });
        Self { seed, writers: writers.collect(), acknowledged }
    }

    /// Waits until at least this many more writes, and a flush, were acknowledged.
    pub(crate) fn await_writes(&self, count: u64) {
        let (mut writes, mut flushes) = (0, 0);
        while writes < count || flushes == 0 {
            match self.acknowledged.recv_timeout(PATIENCE).expect("the load goes on") {
                Acknowledged::Write => writes += 1,
                Acknowledged::Flush => flushes += 1,
            }
        }
    }

    /// Waits for the writers, whose disks have gone, and checks what is on the volume now.
    pub(crate) fn check(self, volume: &[u8]) {
        // The channel closes with the last writer.
        loop {
            match self.acknowledged.recv_timeout(PATIENCE) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("a writer does not notice the end"),
            }
        }
        let (mut checked, mut flushed) = (0, 0);
        for writer in self.writers {
            let record = writer.join().expect("a writer ends");
            checked += record.check(self.seed, volume);
            flushed += record.flushed.iter().filter(|number| **number > 0).count();
        }
        assert!(checked > 0 && flushed > 0, "{checked} blocks checked, {flushed} of them flushed");
    }
}

fn write_until_it_fails(
    mut disk: Disk,
    seed: u64,
    first: u64,
    tell: &Sender<Acknowledged>,
) -> Record {
    let none = vec![0; BLOCKS as usize];
    let mut record = Record { first, acknowledged: none.clone(), flushed: none, under_way: None };
    let mut random = Random::new(seed ^ first);
    for number in 1.. {
        let len = 1 + random.below(RUN_MAX);
        let start = random.below(BLOCKS - len);
        let blocks = start..start + len;
        let data: Vec<u8> =
            blocks.clone().flat_map(|block| content(seed, first + block, number)).collect();
        record.under_way = Some((blocks.clone(), number));
        if disk.write((first + start) * BLOCK as u64, &data).is_err() {
            break;
        }
        record.under_way = None;
        record.acknowledged[blocks.start as usize..blocks.end as usize].fill(number);
        // The test may no longer listen.
        let _ = tell.send(Acknowledged::Write);
        if random.below(FLUSH_EVERY) == 0 {
            if disk.flush().is_err() {
                break;
            }
            record.flushed.clone_from(&record.acknowledged);
            let _ = tell.send(Acknowledged::Flush);
        }
    }
    record
}

/// The content of a block after a write.
fn content(seed: u64, block: u64, number: u64) -> Vec<u8> {
    Random::new(seed ^ (block << 40) ^ number).bytes(BLOCK)
}

impl Record {
    /// Returns how many blocks were checked.
    fn check(&self, seed: u64, volume: &[u8]) -> usize {
        let mut checked = 0;
        for (index, last) in (0..).zip(&self.acknowledged) {
            if *last == 0 {
                continue;
            }
            let block = self.first + index;
            let found = &volume[block as usize * BLOCK..][..BLOCK];
            let expected = content(seed, block, *last);
            let under_way = self.under_way.as_ref().filter(|(blocks, _)| blocks.contains(&index));
            let newer = under_way.map(|(_, number)| content(seed, block, *number));
            let right = (0..BLOCK).step_by(SECTOR).all(|at| {
                let sector = |of: &[u8]| of[at..at + SECTOR].to_vec();
                let is_newer = newer.as_ref().is_some_and(|newer| sector(newer) == sector(found));
                sector(&expected) == sector(found) || is_newer
            });
            assert!(
                right,
                "block {block} does not hold write {last}, which was acknowledged (flushed: {})",
                self.flushed[index as usize] == *last
            );
            checked += 1;
        }
        checked
    }
}
