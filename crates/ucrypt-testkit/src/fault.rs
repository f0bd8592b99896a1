//! A backend around a backend that does what disks do on bad days.
//!
//! Fault model. What a [`FaultBackend`] may do, as its [`Faults`] say:
//!
//! - answer an operation with an error: by place ([`Rule::range`]), by kind, the n-th that a rule
//!   meets, or by chance; a write that fails may have been done in part, whole sectors of it;
//! - answer late, and in another order;
//! - not answer at all until [`Faults::release`];
//! - keep what is written in a volatile cache until a flush: [`Faults::crash`] loses any of it, and
//!   nothing works after that;
//! - fail a flush once and succeed afterwards, as the kernel's page cache does.
//!
//! The mapped bytes of the backend inside meet the same errors ([`FaultMap`]); with a volatile cache
//! there is no mapping. All of it follows from the seed, as long as one thread uses the backend.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use ucrypt_backend::map::{PutBytes, UseBytes};
use ucrypt_backend::{
    Backend, Buf, Done, Errno, Extent, Guest, Io, Limits, Map, Pool, Queue, Zones, total_len,
};

use crate::random::Random;

/// Bytes of the smallest piece that a disk writes as a whole.
const SECTOR: usize = 512;

/// What an operation does to a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// Discards, or has zeroes written.
    Punch,
}

/// What becomes of an operation that a rule meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is answered with an error and was not done.
    Fail(Errno),
    /// A write is done in part, and answered with an error.
    Tear(Errno),
    /// It is not answered before [`Faults::release`].
    Hang,
}

/// Which operations meet which fate.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Only these; empty: all.
    pub accesses: Vec<Access>,
    /// Only what touches these bytes of the backend; empty: all.
    pub range: Range<u64>,
    /// So many that would have met it are spared first.
    pub spare: u64,
    /// Then so many meet it.
    pub count: u64,
    /// Of those, in percent, by chance.
    pub percent: u64,
    /// What becomes of them.
    pub fate: Fate,
}

impl Rule {
    /// Every operation.
    pub fn new(fate: Fate) -> Self {
        Self { accesses: Vec::new(), range: 0..0, spare: 0, count: u64::MAX, percent: 100, fate }
    }

    /// Only those of that kind.
    #[must_use]
    pub fn on(mut self, access: Access) -> Self {
        self.accesses.push(access);
        self
    }

    /// Only what touches these bytes of the backend.
    #[must_use]
    pub fn range(mut self, range: Range<u64>) -> Self {
        self.range = range;
        self
    }

    /// Only the n-th that it would meet, counted from 0.
    #[must_use]
    pub fn nth(mut self, n: u64) -> Self {
        (self.spare, self.count) = (n, 1);
        self
    }

    /// Only so many in a hundred.
    #[must_use]
    pub fn chance(mut self, percent: u64) -> Self {
        self.percent = percent;
        self
    }

    fn matches(&self, access: Access, touched: &Range<u64>) -> bool {
        let here = self.range.is_empty()
            || touched.start < self.range.end && self.range.start < touched.end;
        here && (self.accesses.is_empty() || self.accesses.contains(&access))
    }
}

/// An operation that met a fate.
#[derive(Debug, Clone)]
pub struct Met {
    /// What it was.
    pub access: Access,
    /// Whether it was to be durable: a flush, or a write with FUA.
    pub durable: bool,
    /// Bytes of the backend that are at fault; empty for a flush.
    pub range: Range<u64>,
    /// What became of it.
    pub fate: Fate,
}

/// Says what goes wrong. Clones are one.
#[derive(Debug, Clone)]
pub struct Faults(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    rules: Vec<Rule>,
    random: Random,
    /// Polls that an operation may wait before it is carried out, and again before its answer.
    delay_max: u64,
    met: Vec<Met>,
    /// Sectors in the volatile cache, if there is one.
    cache: Option<BTreeMap<u64, Box<[u8; SECTOR]>>>,
    crashed: bool,
    released: bool,
    operations: u64,
}

impl Faults {
    /// No faults yet.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            rules: Vec::new(),
            random: Random::new(seed),
            delay_max: 0,
            met: Vec::new(),
            cache: None,
            crashed: false,
            released: false,
            operations: 0,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more rule; the first that meets an operation decides.
    pub fn add(&self, rule: Rule) -> &Self {
        self.state().rules.push(rule);
        self
    }

    /// From now on nothing new goes wrong.
    pub fn clear(&self) {
        self.state().rules.clear();
    }

    /// Operations and answers wait for up to so many polls, and so change places.
    pub fn delay(&self, polls_max: u64) -> &Self {
        self.state().delay_max = polls_max;
        self
    }

    /// What is written stays in a volatile cache until a flush.
    pub fn volatile(&self) -> &Self {
        self.state().cache.get_or_insert_default();
        self
    }

    /// What hangs is answered, with `EIO`, and nothing hangs any more.
    pub fn release(&self) {
        self.state().released = true;
    }

    /// Power fails: of the volatile cache, any sectors have reached the disk. Everything after it fails
    /// with `EIO`. The backend inside then holds what is left, once [`FaultBackend::settle`] was called.
    pub fn crash(&self) {
        let mut state = self.state();
        let State { random, cache, crashed, .. } = &mut *state;
        *crashed = true;
        if let Some(cache) = cache {
            // Mostly all or nothing of it, now and then half.
            let percent = [0, 50, 100][random.below(3) as usize];
            cache.retain(|_, _| random.percent(percent));
        }
    }

    /// What has met a fate so far.
    pub fn met(&self) -> Vec<Met> {
        self.state().met.clone()
    }

    /// Operations that have reached the backend.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }
}

impl State {
    /// Decides what becomes of an operation.
    fn judge(&mut self, access: Access, durable: bool, range: &Range<u64>) -> Option<Fate> {
        self.operations += 1;
        if self.crashed {
            return Some(Fate::Fail(Errno::IO));
        }
        for rule in &mut self.rules {
            if !rule.matches(access, range) {
                continue;
            }
            if rule.spare > 0 {
                rule.spare -= 1;
                continue;
            }
            if rule.count == 0 || !self.random.percent(rule.percent) {
                continue;
            }
            rule.count -= 1;
            let fate = rule.fate;
            // Of a longer operation, only what the rule names is at fault.
            let at_fault = match &rule.range {
                named if named.is_empty() => range.clone(),
                named => range.start.max(named.start)..range.end.min(named.end),
            };
            self.met.push(Met { access, durable, range: at_fault, fate });
            return Some(fate);
        }
        None
    }
}

/// See the module's comment.
pub struct FaultBackend {
    inner: Arc<dyn Backend>,
    faults: Faults,
    limits: Limits,
}

impl FaultBackend {
    /// Around a backend. Answers come when they are waited for, not at once.
    pub fn new(inner: Arc<dyn Backend>, faults: Faults) -> Self {
        let limits = Limits { synchronous: false, ..inner.limits().clone() };
        Self { inner, faults, limits }
    }

    /// As [`FaultBackend::new`], but where the backend inside is synchronous, this is, too: the engine
    /// uses the mapped bytes of such a backend.
    pub fn at_once(inner: Arc<dyn Backend>, faults: Faults) -> Self {
        let limits = inner.limits().clone();
        Self { inner, faults, limits }
    }

    /// Brings what is left in the volatile cache to the backend inside.
    ///
    /// # Errors
    /// Those of the backend inside.
    pub fn settle(&self) -> io::Result<()> {
        let cache = self.faults.state().cache.as_mut().map(std::mem::take).unwrap_or_default();
        let mut queue = self.inner.queue(1)?;
        write_out(&mut *queue, cache).map_err(Into::into)
    }
}

/// Carries one operation out and waits for it.
fn carry_out(queue: &mut dyn Queue, io: Io) -> Done {
    queue.submit(io);
    let mut done = Vec::new();
    while done.is_empty() {
        if let Err(error) = queue.wait(&mut done) {
            panic!("the backend inside is broken: {error}");
        }
    }
    done.remove(0)
}

fn write_out(queue: &mut dyn Queue, cache: BTreeMap<u64, Box<[u8; SECTOR]>>) -> Result<(), Errno> {
    let pool = Pool::new(SECTOR).map_err(|_| Errno::NOMEM)?;
    for (sector, bytes) in cache {
        let mut buf = pool.alloc(SECTOR).ok_or(Errno::NOMEM)?;
        buf.copy_from_slice(&bytes[..]);
        let offset = sector * SECTOR as u64;
        carry_out(queue, Io::Write { token: 0, offset, bufs: vec![buf], fua: false }).result?;
    }
    Ok(())
}

impl Backend for FaultBackend {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn len_now(&self) -> io::Result<u64> {
        self.inner.len_now()
    }

    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
        Ok(Box::new(FaultQueue {
            inner: self.inner.queue(depth)?,
            faults: self.faults.clone(),
            depth: depth as usize,
            inside: 0,
            waiting: Vec::new(),
            hanging: Vec::new(),
            ready: Vec::new(),
            polls: 0,
            event: eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        }))
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> Vec<Extent> {
        self.inner.extents(offset, len, max)
    }

    fn map(&self) -> Option<Arc<dyn Map>> {
        if self.faults.state().cache.is_some() {
            return None;
        }
        let inner = self.inner.map()?;
        Some(Arc::new(FaultMap { inner, faults: self.faults.clone() }))
    }

    fn zones(&self) -> Option<&dyn Zones> {
        self.inner.zones()
    }

    fn describe(&self) -> String {
        format!("{} with faults", self.inner.describe())
    }
}

/// Mapped bytes that meet the faults of their backend.
#[derive(Debug)]
pub struct FaultMap {
    inner: Arc<dyn Map>,
    faults: Faults,
}

impl FaultMap {
    fn judge(&self, access: Access, offset: u64, len: usize) -> Option<Fate> {
        self.faults.state().judge(access, false, &(offset..offset + len as u64))
    }
}

impl Map for FaultMap {
    fn is_writable(&self) -> bool {
        self.inner.is_writable()
    }

    fn at_hand(&self, offset: u64, len: usize) -> bool {
        self.inner.at_hand(offset, len)
    }

    fn read(&self, offset: u64, len: usize, use_: UseBytes<'_>) -> Option<Result<(), Errno>> {
        match self.judge(Access::Read, offset, len) {
            None => self.inner.read(offset, len, use_),
            Some(Fate::Fail(error) | Fate::Tear(error)) => Some(Err(error)),
            // As a mapping whose file was cut off: the file is asked.
            Some(Fate::Hang) => None,
        }
    }

    fn write(&self, offset: u64, len: usize, put: PutBytes<'_>) -> Option<Result<(), Errno>> {
        match self.judge(Access::Write, offset, len) {
            None => self.inner.write(offset, len, put),
            Some(Fate::Fail(error)) => Some(Err(error)),
            Some(Fate::Tear(error)) => {
                let whole = self.inner.write(offset, len, put)?;
                Some(whole.and(Err(error)))
            }
            Some(Fate::Hang) => None,
        }
    }

    fn read_exact(&self, offset: u64, buf: &mut [u8]) -> Result<(), Errno> {
        match self.judge(Access::Read, offset, buf.len()) {
            Some(Fate::Fail(error) | Fate::Tear(error)) => Err(error),
            _ => self.inner.read_exact(offset, buf),
        }
    }
}

struct FaultQueue {
    inner: Box<dyn Queue>,
    faults: Faults,
    depth: usize,
    /// Operations that the backend inside has.
    inside: usize,
    /// What waits to be carried out or answered, and until which poll.
    waiting: Vec<(u64, Step)>,
    hanging: Vec<Io>,
    /// Answers of the backend inside.
    ready: Vec<Done>,
    polls: u64,
    /// Always readable: who waits looks again and again.
    event: OwnedFd,
}

enum Step {
    Do(Io),
    Answer(Done),
}

fn touched(io: &Io) -> (Access, Range<u64>) {
    match io {
        Io::Read { offset, bufs, .. } => (Access::Read, *offset..*offset + total_len(bufs) as u64),
        Io::Write { offset, bufs, .. } => {
            (Access::Write, *offset..*offset + total_len(bufs) as u64)
        }
        Io::Flush { .. } => (Access::Flush, 0..0),
        Io::Discard { offset, len, .. } | Io::WriteZeroes { offset, len, .. } => {
            (Access::Punch, *offset..offset + len)
        }
    }
}

fn failed(io: Io, error: Errno) -> Done {
    let (token, bufs) = io.into_parts();
    Done { token, result: Err(error), bufs }
}

impl FaultQueue {
    fn under_way(&self) -> usize {
        self.inside + self.waiting.len() + self.hanging.len() + self.ready.len()
    }

    fn later(&mut self, step: Step) {
        let mut state = self.faults.state();
        let delay = state.delay_max;
        let due = self.polls + if delay > 0 { state.random.below(delay + 1) } else { 0 };
        drop(state);
        self.waiting.push((due, step));
    }

    /// Meets an operation's fate, or carries it out.
    fn act(&mut self, io: Io) {
        let (access, range) = touched(&io);
        let durable = matches!(io, Io::Flush { .. } | Io::Write { fua: true, .. });
        let fate = self.faults.state().judge(access, durable, &range);
        match fate {
            None if self.faults.state().cache.is_some() => {
                let done = self.through_cache(io);
                self.later(Step::Answer(done));
            }
            None => {
                self.inside += 1;
                self.inner.submit(io);
            }
            Some(Fate::Fail(error)) => self.later(Step::Answer(failed(io, error))),
            Some(Fate::Tear(error)) => {
                let done = self.tear(io, error);
                self.later(Step::Answer(done));
            }
            Some(Fate::Hang) => self.hanging.push(io),
        }
    }

    /// Does some of a write's buffers, each whole or not at all, and fails.
    fn tear(&mut self, io: Io, error: Errno) -> Done {
        let Io::Write { token, offset, bufs, fua } = io else { return failed(io, error) };
        let (mut at, mut kept) = (offset, Vec::new());
        for buf in bufs {
            let len = buf.len() as u64;
            let write = Io::Write { token, offset: at, bufs: vec![buf], fua };
            let done = if self.faults.state().random.percent(50) {
                if self.faults.state().cache.is_some() {
                    self.through_cache(write)
                } else {
                    self.aside(write)
                }
            } else {
                failed(write, error)
            };
            kept.extend(done.bufs);
            at += len;
        }
        Done { token, result: Err(error), bufs: kept }
    }

    /// Carries an operation out at once, keeping the answers that come in between.
    fn aside(&mut self, io: Io) -> Done {
        while self.inside > 0 {
            self.take_ready();
        }
        carry_out(&mut *self.inner, io)
    }

    fn take_ready(&mut self) {
        let before = self.ready.len();
        if let Err(error) = self.inner.wait(&mut self.ready) {
            panic!("the backend inside is broken: {error}");
        }
        self.inside -= self.ready.len() - before;
    }

    /// Carries an operation out on the volatile cache and what is below it.
    fn through_cache(&mut self, io: Io) -> Done {
        match io {
            Io::Write { token, offset, bufs, fua } => {
                self.write_cache(offset, &bufs);
                let result = if fua { self.flush_cache() } else { Ok(()) };
                Done { token, result, bufs }
            }
            Io::Read { token, offset, bufs } => {
                let mut done = self.aside(Io::Read { token, offset, bufs });
                let state = self.faults.state();
                let (mut at, cache) = (offset, state.cache.as_ref());
                for buf in &mut done.bufs {
                    for bytes in buf.chunks_mut(SECTOR) {
                        if let Some(kept) = cache.and_then(|cache| cache.get(&(at / SECTOR as u64)))
                        {
                            bytes.copy_from_slice(&kept[..bytes.len()]);
                        }
                        at += bytes.len() as u64;
                    }
                }
                drop(state);
                done
            }
            Io::Flush { token } => Done { token, result: self.flush_cache(), bufs: Vec::new() },
            Io::Discard { token, offset, len } | Io::WriteZeroes { token, offset, len } => {
                let mut state = self.faults.state();
                let sectors = offset / SECTOR as u64..(offset + len) / SECTOR as u64;
                if let Some(cache) = &mut state.cache {
                    cache.extend(sectors.map(|sector| (sector, Box::new([0; SECTOR]))));
                }
                Done { token, result: Ok(()), bufs: Vec::new() }
            }
        }
    }

    fn write_cache(&mut self, offset: u64, bufs: &[Buf]) {
        let mut state = self.faults.state();
        let Some(cache) = &mut state.cache else { return };
        let mut at = offset;
        for buf in bufs {
            for bytes in buf.chunks(SECTOR) {
                let mut sector = Box::new([0; SECTOR]);
                sector[..bytes.len()].copy_from_slice(bytes);
                cache.insert(at / SECTOR as u64, sector);
                at += bytes.len() as u64;
            }
        }
    }

    fn flush_cache(&mut self) -> Result<(), Errno> {
        let cache = self.faults.state().cache.as_mut().map(std::mem::take).unwrap_or_default();
        while self.inside > 0 {
            self.take_ready();
        }
        write_out(&mut *self.inner, cache)
    }

    /// Does what is due.
    fn advance(&mut self) {
        self.polls += 1;
        let mut due: VecDeque<Step> = VecDeque::new();
        let mut index = 0;
        while index < self.waiting.len() {
            if self.waiting[index].0 <= self.polls {
                due.push_back(self.waiting.swap_remove(index).1);
            } else {
                index += 1;
            }
        }
        for step in due {
            match step {
                Step::Do(io) => self.act(io),
                Step::Answer(done) => self.ready.push(done),
            }
        }
        let free = self.faults.state().released || self.faults.state().crashed;
        if free {
            for io in std::mem::take(&mut self.hanging) {
                self.ready.push(failed(io, Errno::IO));
            }
        }
    }
}

impl Queue for FaultQueue {
    fn room(&self) -> usize {
        self.depth.saturating_sub(self.under_way())
    }

    fn submit(&mut self, io: Io) {
        assert!(self.room() > 0, "submit without room");
        self.later(Step::Do(io));
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        self.advance();
        let before = self.ready.len();
        self.inner.poll(&mut self.ready)?;
        self.inside -= self.ready.len() - before;
        done.append(&mut self.ready);
        Ok(())
    }

    fn wait(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        while self.under_way() > 0 && done.is_empty() {
            self.poll(done)?;
            if done.is_empty() && self.waiting.is_empty() {
                if self.inside > 0 {
                    self.take_ready();
                } else {
                    // Only what hangs is left.
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.event.as_fd())
    }

    fn register(&mut self, pool: &Pool) -> bool {
        self.inner.register(pool)
    }

    /// None: entries of others would see no faults, and `wait` does not return for them.
    fn guest(&mut self) -> Option<Guest<'_>> {
        None
    }
}

impl Drop for FaultQueue {
    fn drop(&mut self) {
        // What hangs is given up; what is inside, the queue inside waits for.
        self.hanging.clear();
        let mut done = Vec::new();
        while self.under_way() > 0 && self.wait(&mut done).is_ok() {
            done.clear();
        }
    }
}
