//! A medium that records its writes and flushes, and every image that a crash may leave of it.
//!
//! A crash keeps everything up to one of the flushes, and any combination of sectors from the writes
//! after it.

use std::cell::RefCell;
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

/// An image in memory that records its writes and flushes.
pub(crate) struct Recorder {
    before: Vec<u8>,
    pub(crate) now: RefCell<Vec<u8>>,
    events: RefCell<Vec<Event>>,
}

impl Recorder {
    pub(crate) fn new(image: &[u8]) -> Self {
        let (before, now) = (image.to_vec(), RefCell::new(image.to_vec()));
        Self { before, now, events: RefCell::default() }
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
        let piece = (usize::try_from(offset).unwrap(), bytes.to_vec());
        put(&mut self.now.borrow_mut(), [&piece].into_iter());
        self.events.borrow_mut().push(Event::Write(piece));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.events.borrow_mut().push(Event::Flush);
        Ok(())
    }

    fn forget_cached(&self, _offset: u64, _length: u64) {}
}
