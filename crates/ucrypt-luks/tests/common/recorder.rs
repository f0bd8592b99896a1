//! A medium that records its writes and flushes, and every image that a crash may leave of it.
//!
//! A crash keeps everything up to one of the flushes, and any combination of sectors from the writes
//! after it.
//!
//! Above the medium lies the system's cache: reads show what was written, whether or not it is
//! stored. A process can be killed and leave unflushed writes to the next one ([`Fault`]).

use std::cell::{Cell, RefCell};
use std::io;

use fastrand::Rng;
use ucrypt_luks::{Medium, ReadAt};

const SECTOR: usize = 512;

/// A write: its offset and its bytes.
type Piece = (usize, Vec<u8>);

enum Event {
    Write(Piece),
    Flush,
}

/// What happens to the process that uses the medium. Writes and flushes are counted from 0.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// It is killed before this write or flush. What it has not flushed stays pending.
    Killed(usize),
    /// This flush fails. What was pending is lost, but still cached as if it were stored, as Linux
    /// does it. The process goes on.
    FlushFails(usize),
    /// The same, and the process is killed.
    FlushFailsAndKilled(usize),
}

/// An image in memory that records its writes and flushes.
pub(crate) struct Recorder {
    before: Vec<u8>,
    /// What reads show.
    pub(crate) now: RefCell<Vec<u8>>,
    /// What is stored for certain.
    medium: RefCell<Vec<u8>>,
    /// What was written since the last flush.
    pending: RefCell<Vec<Piece>>,
    events: RefCell<Vec<Event>>,
    fault: Option<Fault>,
    /// Calls so far: all, and flushes.
    calls: Cell<(usize, usize)>,
    killed: Cell<bool>,
}

impl Recorder {
    pub(crate) fn new(image: &[u8]) -> Self {
        Self {
            before: image.to_vec(),
            now: RefCell::new(image.to_vec()),
            medium: RefCell::new(image.to_vec()),
            pending: RefCell::default(),
            events: RefCell::default(),
            fault: None,
            calls: Cell::default(),
            killed: Cell::new(false),
        }
    }

    pub(crate) fn with_fault(image: &[u8], fault: Fault) -> Self {
        Self { fault: Some(fault), ..Self::new(image) }
    }

    /// The same medium below the same cache, for the next process.
    pub(crate) fn next_process(&self) -> Self {
        let pending = self.pending.borrow().clone();
        let medium = self.medium.borrow().clone();
        let events = pending.iter().cloned().map(Event::Write).collect();
        Self {
            now: self.now.clone(),
            pending: RefCell::new(pending),
            events: RefCell::new(events),
            ..Self::new(&medium)
        }
    }

    /// Counts a call of the process, which fails if the process is killed.
    fn call(&self, is_flush: bool) -> io::Result<()> {
        let killed = || Err(io::Error::other("killed"));
        if self.killed.get() {
            return killed();
        }
        let (calls, flushes) = self.calls.get();
        self.calls.set((calls + 1, flushes + usize::from(is_flush)));
        match self.fault {
            Some(Fault::Killed(at)) if at == calls => {
                self.killed.set(true);
                killed()
            }
            Some(Fault::FlushFails(at) | Fault::FlushFailsAndKilled(at))
                if is_flush && at == flushes =>
            {
                self.killed.set(matches!(self.fault, Some(Fault::FlushFailsAndKilled(_))));
                let lost = self.pending.take().len();
                let mut events = self.events.borrow_mut();
                let kept = events.len() - lost;
                events.truncate(kept);
                Err(io::Error::other("the flush failed"))
            }
            _ => Ok(()),
        }
    }

    /// Calls `check` with every image that a crash may leave, or for many pending sectors with a
    /// selection that depends on `seed`. Returns the number of images.
    pub(crate) fn crashes(&self, seed: u64, mut check: impl FnMut(&Vec<u8>)) -> usize {
        let mut count = 0;
        let mut durable = self.before.clone();
        let mut pending: Vec<Piece> = Vec::new();
        let mut random = Rng::with_seed(seed);
        for event in self.events.borrow().iter().chain([&Event::Flush]) {
            if let Event::Write(piece) = event {
                pending.push(piece.clone());
                continue;
            }
            let sectors: Vec<Piece> = pending.drain(..).flat_map(into_sectors).collect();
            for survivors in choices(sectors.len(), &mut random) {
                let mut image = durable.clone();
                put(
                    &mut image,
                    sectors.iter().zip(survivors).filter(|(_, here)| *here).map(|s| s.0),
                );
                check(&image);
                count += 1;
            }
            put(&mut durable, sectors.iter());
        }
        count
    }
}

fn put<'a>(image: &mut [u8], pieces: impl Iterator<Item = &'a Piece>) {
    for (at, bytes) in pieces {
        image[*at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// Splits a write at the medium's sectors, each of which is written as a unit.
fn into_sectors((at, bytes): Piece) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut done = 0;
    while done < bytes.len() {
        let len = (SECTOR - (at + done) % SECTOR).min(bytes.len() - done);
        pieces.push((at + done, bytes[done..done + len].to_vec()));
        done += len;
    }
    pieces
}

/// Which of `count` sectors survive. For few sectors, every combination. For many: none, all,
/// beginnings, ends, all but one, only one, and random combinations.
fn choices(count: usize, random: &mut Rng) -> Vec<Vec<bool>> {
    if count <= 8 {
        let all = 0..1_usize << count;
        return all.map(|bits| (0..count).map(|at| bits >> at & 1 == 1).collect()).collect();
    }
    let mut choices = vec![vec![false; count], vec![true; count]];
    for _ in 0..5 {
        let cut = random.usize(..count);
        choices.push((0..count).map(|at| at < cut).collect());
        choices.push((0..count).map(|at| at >= cut).collect());
        choices.push((0..count).map(|_| random.bool()).collect());
    }
    for one in (0..8).chain([count - 1, random.usize(..count)]) {
        choices.push((0..count).map(|at| at == one).collect());
        choices.push((0..count).map(|at| at != one).collect());
    }
    choices
}

impl ReadAt for Recorder {
    fn len(&self) -> u64 {
        self.before.len() as u64
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.now.borrow().read_exact_at(offset, buf)
    }
}

impl Medium for Recorder {
    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.call(false)?;
        let piece = (usize::try_from(offset).unwrap(), bytes.to_vec());
        put(&mut self.now.borrow_mut(), [&piece].into_iter());
        self.pending.borrow_mut().push(piece.clone());
        self.events.borrow_mut().push(Event::Write(piece));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.call(true)?;
        put(&mut self.medium.borrow_mut(), self.pending.take().iter());
        self.events.borrow_mut().push(Event::Flush);
        Ok(())
    }

    fn forget_cached(&self, offset: u64, length: u64) {
        if self.killed.get() {
            return;
        }
        let range = usize::try_from(offset).unwrap()..usize::try_from(offset + length).unwrap();
        let mut now = self.now.borrow_mut();
        now[range.clone()].copy_from_slice(&self.medium.borrow()[range]);
        put(&mut now, self.pending.borrow().iter());
    }
}
