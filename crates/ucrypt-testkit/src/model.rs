//! What a disk may hold: for each byte, the contents that are allowed now, and after a crash.
//!
//! Each write has unique content ([`fill`]), so that a byte tells which write it came from. The
//! rules are those of a disk with a volatile cache:
//!
//! - A read returns, for each sector, the content of one write that is not superseded. A write is
//!   superseded by one that began after it had ended, once that later write has ended successfully
//!   before the read began. Of concurrent writes either may win.
//! - A write that failed or was cancelled may be present or not, sector by sector.
//! - After a crash a sector may hold any write, ended or not, that is not superseded by a durable
//!   one: one with FUA, or one that ended before a successful flush began.
//! - Discarded ranges may hold anything.
//! - A read concurrent with a write may find a mix of old and new content, in smaller pieces than
//!   the units that are otherwise old or new as a whole ([`Whole`]).
//!
//! Time is counted in events (an operation begins or ends), so that "before" has one meaning.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;

use crate::operation::{Kind, Operation};
use crate::random::mix;

/// Identifies a request and determines the content of a write. 0 is the initial content.
pub type Tag = u64;

/// Fills `bytes` with the content of write `tag` for the disk from byte `offset` on.
pub fn fill(tag: Tag, offset: u64, bytes: &mut [u8]) {
    each_run(offset, bytes.len(), |word, skip, place| {
        let run = place.len();
        bytes[place].copy_from_slice(&content(tag, word)[skip..skip + run]);
    });
}

/// The content of eight bytes, from byte `8 * word` of the disk on.
fn content(tag: Tag, word: u64) -> [u8; 8] {
    mix(mix(tag) ^ word).to_le_bytes()
}

/// Walks `len` bytes from `offset` in words of 8. Passes the word, the number of its bytes to skip,
/// and the place in the range.
fn each_run(offset: u64, len: usize, mut visit: impl FnMut(u64, usize, Range<usize>)) {
    let mut at = 0;
    while at < len {
        let byte = offset + at as u64;
        let skip = (byte % 8) as usize;
        let run = (8 - skip).min(len - at);
        visit(byte / 8, skip, at..at + run);
        at += run;
    }
}

fn is_content(tag: Tag, offset: u64, bytes: &[u8]) -> bool {
    let mut same = true;
    each_run(offset, bytes.len(), |word, skip, place| {
        let run = place.len();
        same &= bytes[place] == content(tag, word)[skip..skip + run];
    });
    same
}

/// The initial content of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Initial {
    /// Zeroes.
    Zeroes,
    /// Unknown: a new encrypted volume.
    Anything,
}

/// The units that are old or new as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Whole {
    /// The unit while no write is in flight, in bytes.
    pub at_rest: u64,
    /// For a read concurrent with a write.
    pub beside: Beside,
}

/// What a read may find in a sector while it is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// Old or new, as at rest.
    AsAtRest,
    /// A mix, and where old and new meet, a cipher block that is neither: the page cache and mapped
    /// memory copy byte by byte. At least half of the blocks are old or new.
    Torn,
}

/// Bytes of a sector that is checked block by block.
const TORN: u64 = 512;

/// Bytes of a cipher block.
const BLOCK: usize = 16;

impl Whole {
    /// Sectors are whole at any time.
    pub fn sectors(sector: u64) -> Self {
        Self { at_rest: sector, beside: Beside::AsAtRest }
    }

    /// Sectors are whole at rest, on an image in the page cache.
    pub fn cached(sector: u64) -> Self {
        Self { at_rest: sector, beside: Beside::Torn }
    }

    /// Cipher blocks are whole: two writes in place may leave a mix. One block where they meet may
    /// be neither, because the kernel copies byte by byte.
    pub fn mapped() -> Self {
        Self::cached(BLOCK as u64)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Zeroes,
    Content,
    Anything,
}

#[derive(Debug, Clone, Copy)]
struct Write {
    source: Source,
    begun: u64,
    /// `None`: under way.
    ended: Option<u64>,
    /// It ended successfully.
    good: bool,
    fua: bool,
}

/// A range that holds content that it must not hold.
#[derive(Debug)]
pub struct Mismatch {
    offset: u64,
    len: u64,
    found: Vec<u8>,
    allowed: Vec<String>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, len, found, allowed } = self;
        write!(f, "bytes {offset} to {} hold {found:02x?}…; allowed: ", offset + len)?;
        f.write_str(&allowed.join("; "))
    }
}

/// The model of a disk; see the module's comment.
#[derive(Debug)]
pub struct Model {
    len: u64,
    whole: Whole,
    /// By first byte: the writes that may be there, up to the next entry.
    cells: BTreeMap<u64, Vec<Tag>>,
    writes: HashMap<Tag, Write>,
    reads: HashMap<Tag, u64>,
    flushes: HashMap<Tag, u64>,
    now: u64,
    /// When the last successful flush began.
    flushed: u64,
    /// Keep writes that only a crash could bring back.
    crashes: bool,
}

impl Model {
    /// A disk of `len` bytes. `crashes`: [`Model::check_after_crash`] will be called.
    pub fn new(len: u64, whole: Whole, initial: Initial, crashes: bool) -> Self {
        let source = match initial {
            Initial::Zeroes => Source::Zeroes,
            Initial::Anything => Source::Anything,
        };
        let first = Write { source, begun: 0, ended: Some(1), good: true, fua: true };
        Self {
            len,
            whole,
            cells: BTreeMap::from([(0, vec![0])]),
            writes: HashMap::from([(0, first)]),
            reads: HashMap::new(),
            flushes: HashMap::new(),
            now: 1,
            flushed: 0,
            crashes,
        }
    }

    /// Records that an operation was submitted.
    pub fn begin(&mut self, tag: Tag, operation: &Operation) {
        self.now += 1;
        let begun = self.now;
        let source = match operation.kind {
            Kind::Read => {
                self.reads.insert(tag, begun);
                return;
            }
            Kind::Flush => {
                self.flushes.insert(tag, begun);
                return;
            }
            Kind::Write { .. } => Source::Content,
            Kind::WriteZeroes { .. } => Source::Zeroes,
            Kind::Discard => Source::Anything,
        };
        let fua = operation.kind.is_fua();
        self.writes.insert(tag, Write { source, begun, ended: None, good: false, fua });
        let range = operation.range();
        self.split(range.start);
        self.split(range.end);
        for cell in self.cells.range_mut(range.clone()).map(|(_, cell)| cell) {
            cell.push(tag);
        }
    }

    /// Records the answer to a write, a flush or a discard.
    pub fn end(&mut self, tag: Tag, operation: &Operation, good: bool) {
        self.now += 1;
        let now = self.now;
        if let Some(begun) = self.flushes.remove(&tag) {
            if good {
                self.flushed = self.flushed.max(begun);
            }
            return;
        }
        if let Some(write) = self.writes.get_mut(&tag) {
            (write.ended, write.good) = (Some(now), good);
            self.tidy(operation.range());
        }
    }

    /// Checks the data of a read, or records that it failed.
    ///
    /// # Errors
    /// The disk holds content that it must not hold.
    pub fn end_read(
        &mut self,
        tag: Tag,
        operation: &Operation,
        bytes: Option<&[u8]>,
    ) -> Result<(), Mismatch> {
        let begun = self.reads.remove(&tag).unwrap_or(0);
        self.now += 1;
        let Some(bytes) = bytes else { return Ok(()) };
        let supersedes = |over: &Write| over.good && over.ended.is_some_and(|ended| ended < begun);
        let beside = |write: &Write| write.ended.is_none_or(|ended| ended > begun);
        let is_torn = |allowed: &[Tag]| {
            self.whole.beside == Beside::Torn && allowed.iter().any(|tag| beside(&self.writes[tag]))
        };
        self.check(operation.offset, bytes, &supersedes, &is_torn)
    }

    /// Checks the bytes that the disk holds after a crash, from `offset` on.
    ///
    /// # Panics
    /// If the model was not made for crashes.
    ///
    /// # Errors
    /// The disk holds content that it must not hold.
    pub fn check_after_crash(&self, offset: u64, bytes: &[u8]) -> Result<(), Mismatch> {
        assert!(self.crashes, "what a crash may bring back was not kept");
        self.check(offset, bytes, &|over| self.is_durable(over), &|_| false)
    }

    fn is_durable(&self, write: &Write) -> bool {
        write.good && (write.fua || write.ended.is_some_and(|ended| ended < self.flushed))
    }

    fn check(
        &self,
        offset: u64,
        bytes: &[u8],
        supersedes: &dyn Fn(&Write) -> bool,
        is_torn: &dyn Fn(&[Tag]) -> bool,
    ) -> Result<(), Mismatch> {
        let end = offset + bytes.len() as u64;
        let first = self.cells.range(..=offset).next_back().map_or(0, |(start, _)| *start);
        let starts = self.cells.range(first..end).map(|(start, cell)| (*start, cell));
        for (start, cell) in starts {
            let next = self.cells.range(start + 1..).next().map_or(self.len, |(next, _)| *next);
            let allowed = self.allowed(cell, supersedes);
            let is_torn = is_torn(&allowed);
            let whole = if is_torn { TORN } else { self.whole.at_rest };
            let mut at = start.max(offset);
            while at < next.min(end) {
                let until = ((at / whole + 1) * whole).min(next).min(end);
                let found = &bytes[(at - offset) as usize..(until - offset) as usize];
                let right =
                    |at: u64, found: &[u8]| allowed.iter().any(|&tag| self.is_from(tag, at, found));
                let is_good = if is_torn {
                    is_half(at, found, right)
                } else {
                    right(at, found) || self.is_where_two_met(at, offset, bytes, &allowed)
                };
                if !is_good {
                    return Err(self.mismatch(at, found, &allowed));
                }
                at = until;
            }
        }
        Ok(())
    }

    /// Whether the block at `at`, of the read `bytes` from `offset` on, may be neither of two
    /// concurrent writes in place: it is one, and what stands next to it is of these writes.
    fn is_where_two_met(&self, at: u64, offset: u64, bytes: &[u8], allowed: &[Tag]) -> bool {
        const LEN: u64 = BLOCK as u64;
        if self.whole.at_rest != LEN || allowed.len() < 2 || !at.is_multiple_of(LEN) {
            return false;
        }
        let is_right = |at: u64| {
            let start = at.checked_sub(offset)? as usize;
            let found = bytes.get(start..start + BLOCK)?;
            Some(allowed.iter().any(|&tag| self.is_from(tag, at, found)))
        };
        let beside = [at.checked_sub(LEN).and_then(is_right), is_right(at + LEN)];
        beside.contains(&Some(true)) && !beside.contains(&Some(false))
    }

    /// The writes of a cell that no other write of it supersedes.
    fn allowed(&self, cell: &[Tag], supersedes: &dyn Fn(&Write) -> bool) -> Vec<Tag> {
        let over = cell.iter().map(|tag| &self.writes[tag]).filter(|write| supersedes(write));
        let begun = over.map(|write| write.begun).max().unwrap_or(0);
        let stays = |tag: &&Tag| self.writes[tag].ended.is_none_or(|ended| ended > begun);
        cell.iter().filter(stays).copied().collect()
    }

    fn is_from(&self, tag: Tag, offset: u64, bytes: &[u8]) -> bool {
        match self.writes[&tag].source {
            Source::Anything => true,
            Source::Zeroes => bytes.iter().all(|&byte| byte == 0),
            Source::Content => is_content(tag, offset, bytes),
        }
    }

    fn mismatch(&self, offset: u64, found: &[u8], allowed: &[Tag]) -> Mismatch {
        let known = self.writes.keys().copied().find(|&tag| {
            let write = &self.writes[&tag];
            write.source == Source::Content && is_content(tag, offset, found)
        });
        let mut allowed: Vec<_> =
            allowed.iter().map(|tag| format!("{tag} {:?}", self.writes[tag])).collect();
        let what = match known {
            Some(tag) => format!("found is write {tag} {:?}", self.writes[&tag]),
            None if found.iter().all(|&byte| byte == 0) => "found is zeroes".into(),
            None => "found is of no write".into(),
        };
        allowed.push(what);
        let found_start = found[..found.len().min(16)].to_vec();
        Mismatch { offset, len: found.len() as u64, found: found_start, allowed }
    }

    /// Splits a cell so that one begins at `at`.
    fn split(&mut self, at: u64) {
        if at >= self.len || self.cells.contains_key(&at) {
            return;
        }
        if let Some((_, cell)) = self.cells.range(..at).next_back() {
            let cell = cell.clone();
            self.cells.insert(at, cell);
        }
    }

    /// Forgets writes that can no longer be seen in a range, and merges cells that have become
    /// equal.
    fn tidy(&mut self, range: Range<u64>) {
        let oldest_read = self.reads.values().copied().min().unwrap_or(u64::MAX);
        let starts: Vec<u64> = self.cells.range(range).map(|(start, _)| *start).collect();
        let mut before: Option<u64> = None;
        for start in starts {
            let kept = self.allowed(&self.cells[&start], &|over| {
                let gone = over.good && over.ended.is_some_and(|ended| ended < oldest_read);
                gone && (!self.crashes || self.is_durable(over))
            });
            if before.is_some_and(|before| self.cells[&before] == kept) {
                self.cells.remove(&start);
            } else {
                self.cells.insert(start, kept);
                before = Some(start);
            }
        }
    }
}

/// Whether at least half of the blocks of `found`, which lie at `offset`, are right. Of a few
/// blocks, all may be wrong.
fn is_half(offset: u64, found: &[u8], right: impl Fn(u64, &[u8]) -> bool) -> bool {
    let blocks = || found.chunks(BLOCK).zip((offset..).step_by(BLOCK));
    let wrong = blocks().filter(|(block, at)| !right(*at, block)).count();
    wrong <= (blocks().count() / 2).max(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(kind: Kind, offset: u64, len: u64) -> Operation {
        Operation { kind, offset, len }
    }

    const WRITE: Kind = Kind::Write { fua: false };

    fn bytes(tag: Tag, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        fill(tag, offset, &mut bytes);
        bytes
    }

    /// Whether a read of the range may return the content of that write now.
    fn reads(model: &mut Model, tag: Tag, offset: u64, len: usize) -> bool {
        let read = operation(Kind::Read, offset, len as u64);
        model.begin(1000, &read);
        model.end_read(1000, &read, Some(&bytes(tag, offset, len))).is_ok()
    }

    #[test]
    fn the_last_write_is_what_is_read_and_of_two_at_once_either() {
        let mut model = Model::new(8192, Whole::sectors(512), Initial::Zeroes, false);
        let write = operation(WRITE, 100, 1000);
        model.begin(1, &write);
        assert!(reads(&mut model, 1, 100, 1000), "it may be there already");
        model.end(1, &write, true);
        model.begin(2, &write);
        let other = operation(WRITE, 600, 1000);
        model.begin(3, &other);
        assert!(reads(&mut model, 1, 100, 1000));
        model.end(2, &write, true);
        model.end(3, &other, true);
        assert!(!reads(&mut model, 1, 100, 1000), "superseded");
        assert!(reads(&mut model, 2, 100, 1000) && reads(&mut model, 3, 600, 1000));
        assert!(!reads(&mut model, 3, 100, 1000) && !reads(&mut model, 4, 100, 1));
        model.begin(5, &write);
        model.end(5, &write, true);
        assert!(!reads(&mut model, 3, 600, 500) && reads(&mut model, 3, 1100, 500));
    }

    #[test]
    fn a_write_that_failed_may_be_there_or_not_sector_by_sector() {
        let mut model = Model::new(8192, Whole::sectors(512), Initial::Zeroes, false);
        let write = operation(WRITE, 0, 1024);
        model.begin(1, &write);
        model.end(1, &write, true);
        model.begin(2, &write);
        model.end(2, &write, false);
        let read = operation(Kind::Read, 0, 1024);
        let mut torn = [bytes(1, 0, 512), bytes(2, 512, 512)].concat();
        model.begin(9, &read);
        assert!(model.end_read(9, &read, Some(&torn)).is_ok());
        torn[..100].copy_from_slice(&bytes(2, 0, 100));
        model.begin(9, &read);
        assert!(model.end_read(9, &read, Some(&torn)).is_err(), "within a sector it is whole");
    }

    #[test]
    fn a_read_may_find_torn_blocks_only_beside_a_write_and_not_everywhere() {
        let mut model = Model::new(8192, Whole::cached(512), Initial::Zeroes, false);
        let (write, read) = (operation(WRITE, 0, 512), operation(Kind::Read, 0, 512));
        let mut torn = bytes(1, 0, 512);
        torn[160..].fill(0);
        torn[155..165].fill(7);
        model.begin(8, &read);
        model.begin(1, &write);
        model.begin(9, &read);
        model.begin(10, &read);
        assert!(model.end_read(8, &read, Some(&torn)).is_ok());
        model.end(1, &write, true);
        assert!(model.end_read(9, &read, Some(&torn)).is_ok(), "it began before the write ended");
        assert!(model.end_read(10, &read, Some(&bytes(2, 0, 512))).is_err(), "of no write");
        model.begin(9, &read);
        assert!(model.end_read(9, &read, Some(&torn)).is_err(), "the write has ended");
        model.begin(9, &read);
        assert!(model.end_read(9, &read, Some(&bytes(1, 0, 512))).is_ok());
    }

    #[test]
    fn in_memory_two_concurrent_writes_may_leave_one_block_that_is_neither() {
        for (concurrent, wrong, good) in
            [(true, 1, true), (true, 2, false), (false, 1, false), (true, 0, true)]
        {
            let mut model = Model::new(8192, Whole::mapped(), Initial::Zeroes, false);
            let write = operation(WRITE, 0, 512);
            model.begin(1, &write);
            if !concurrent {
                model.end(1, &write, true);
            }
            model.begin(2, &write);
            if concurrent {
                model.end(1, &write, true);
            }
            model.end(2, &write, true);
            let mut found =
                [bytes(if concurrent { 1 } else { 2 }, 0, 256), bytes(2, 256, 256)].concat();
            found[256..256 + 16 * wrong].fill(7);
            let read = operation(Kind::Read, 0, 512);
            model.begin(9, &read);
            let answer = model.end_read(9, &read, Some(&found));
            assert_eq!(answer.is_ok(), good, "{concurrent} {wrong} {answer:?}");
        }
    }

    #[test]
    fn after_a_crash_what_was_flushed_is_there_and_nothing_older() {
        let mut model = Model::new(8192, Whole::sectors(512), Initial::Zeroes, true);
        let write = operation(WRITE, 0, 512);
        let flush = operation(Kind::Flush, 0, 0);
        for tag in 1..=4 {
            model.begin(tag, &write);
            model.end(tag, &write, true);
            if tag == 2 {
                model.begin(7, &flush);
                model.begin(8, &operation(WRITE, 1024, 512));
                model.end(8, &operation(WRITE, 1024, 512), true);
                model.end(7, &flush, true);
            }
        }
        let may_hold = |tag| model.check_after_crash(0, &bytes(tag, 0, 512)).is_ok();
        assert_eq!([1, 2, 3, 4, 5].map(may_hold), [false, true, true, true, false]);
        assert!(model.check_after_crash(0, &[0; 512]).is_err());
        assert!(model.check_after_crash(1024, &[0; 512]).is_ok(), "it ended after the flush began");
        let fua = operation(Kind::Write { fua: true }, 0, 512);
        model.begin(20, &fua);
        model.end(20, &fua, true);
        assert!(model.check_after_crash(0, &bytes(4, 0, 512)).is_err());
        assert!(model.check_after_crash(0, &bytes(20, 0, 512)).is_ok());
    }

    #[test]
    fn a_flush_that_failed_makes_nothing_durable() {
        let mut model = Model::new(512, Whole::sectors(512), Initial::Zeroes, true);
        let write = operation(WRITE, 0, 512);
        model.begin(1, &write);
        model.end(1, &write, true);
        let flush = operation(Kind::Flush, 0, 0);
        model.begin(2, &flush);
        model.end(2, &flush, false);
        assert!(model.check_after_crash(0, &[0; 512]).is_ok());
    }
}
