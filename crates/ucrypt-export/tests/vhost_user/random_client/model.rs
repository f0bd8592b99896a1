//! What each sector of a disk may hold, under requests that overlap in time.
//!
//! A write takes effect at some moment between its submission and its answer. So a sector holds what
//! was written by one of the writes that are under way, or by one that has ended and is not known to be
//! older than another that has ended: one that was submitted after it was answered. A read finds what
//! was allowed at some moment while it was under way.

use super::content::{self, Content};

/// Numbers the events of a run.
type Moment = u64;

/// A write that a sector may show.
#[derive(Clone, Copy, Debug)]
struct Written {
    content: Content,
    begun: Moment,
    /// `Moment::MAX`: it is under way.
    ended: Moment,
    /// From when on it cannot be what the sector holds; `Moment::MAX` as long as it can.
    replaced: Moment,
}

/// The disk, by 512-byte sectors.
pub(crate) struct Model {
    sectors: Vec<Vec<Written>>,
    now: Moment,
}

impl Model {
    /// A disk of which nothing is known.
    pub(crate) fn new(sectors: u64) -> Self {
        let unknown = Written { content: Content::Any, begun: 0, ended: 0, replaced: Moment::MAX };
        Self { sectors: vec![vec![unknown]; sectors as usize], now: 1 }
    }

    fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// A request is submitted. Returns its name.
    pub(crate) fn begin_read(&mut self) -> Moment {
        self.tick()
    }

    /// A request that changes sectors is submitted: `content` says, by its name, what each will hold.
    pub(crate) fn begin_write(
        &mut self,
        first: u64,
        count: u64,
        content: impl Fn(Moment) -> Content,
    ) -> Moment {
        let begun = self.tick();
        for sector in first..first + count {
            self.sectors[sector as usize].push(Written {
                content: content(begun),
                begun,
                ended: Moment::MAX,
                replaced: Moment::MAX,
            });
        }
        begun
    }

    /// It was answered. `oldest`: the earliest request that is still under way.
    pub(crate) fn end_write(&mut self, first: u64, count: u64, name: Moment, oldest: Moment) {
        let now = self.tick();
        for sector in first..first + count {
            let written = &mut self.sectors[sector as usize];
            for other in written.iter_mut() {
                if other.begun == name {
                    other.ended = now;
                } else if other.ended < name {
                    other.replaced = other.replaced.min(now);
                }
            }
            // Nobody who is under way can have seen it.
            written.retain(|written| written.replaced > oldest);
        }
    }

    /// Whether a read that was submitted as `name` and is answered now may have found these bytes.
    pub(crate) fn allows(&self, sector: u64, name: Moment, found: &[u8]) -> bool {
        let written = &self.sectors[sector as usize];
        let seen = || written.iter().filter(|written| written.replaced > name);
        let is = content::look(found, sector);
        if seen().any(|written| written.content == Content::Any || written.content == is) {
            return true;
        }
        // Nothing says that a sector is read at one moment while it is written.
        let is_written = seen().any(|written| written.ended > name);
        is_written && content::is_mix(found, sector, || seen().map(|written| written.content))
    }

    /// What it may hold, for messages.
    pub(crate) fn describe(&self, sector: u64) -> String {
        format!("{:?}", self.sectors[sector as usize])
    }
}

#[test]
fn a_sector_holds_the_last_write_or_one_that_overlaps_it() {
    let write = |model: &mut Model, tag| model.begin_write(0, 1, |_| Content::Tag(tag));
    let allows = |model: &Model, name, tag| {
        let mut bytes = [0; content::SECTOR];
        content::fill(&mut bytes, 0, tag);
        model.allows(0, name, &bytes)
    };
    let mut model = Model::new(1);
    let first = write(&mut model, 1);
    let early = model.begin_read();
    model.end_write(0, 1, first, early);
    assert!(allows(&model, early, 7), "nothing was known when it began");
    let late = model.begin_read();
    assert!(allows(&model, late, 1) && !allows(&model, late, 7));
    // Two that overlap, in either order; the first one is history for new reads.
    let (second, third) = (write(&mut model, 2), write(&mut model, 3));
    assert!((1..4).all(|tag| allows(&model, late, tag)));
    model.end_write(0, 1, third, late);
    model.end_write(0, 1, second, late);
    assert!(allows(&model, late, 1), "it began before they ended");
    let later = model.begin_read();
    assert!((2..4).all(|tag| allows(&model, later, tag)));
    assert!(!allows(&model, later, 1));
    let last = write(&mut model, 4);
    model.end_write(0, 1, last, last);
    let latest = model.begin_read();
    assert!(!(1..4).any(|tag| allows(&model, latest, tag)));
    assert!(allows(&model, latest, 4));
}

#[test]
fn a_sector_that_is_torn_is_allowed_only_while_it_is_written() {
    let mut model = Model::new(1);
    let mut torn = [0; content::SECTOR];
    content::fill(&mut torn, 0, 2);
    torn[..256].fill(0);
    let zeroes = model.begin_write(0, 1, |_| Content::Zeroes);
    model.end_write(0, 1, zeroes, zeroes);
    let write = model.begin_write(0, 1, |_| Content::Tag(2));
    let read = model.begin_read();
    assert!(model.allows(0, read, &torn));
    model.end_write(0, 1, write, read);
    assert!(model.allows(0, read, &torn));
    let read = model.begin_read();
    assert!(!model.allows(0, read, &torn));
}
