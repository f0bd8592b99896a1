//! A backend around a backend that injects the faults of real disks.
//!
//! Fault model. A [`FaultBackend`] does the following, as its [`Faults`] say:
//!
//! - answer an operation with an error: by place ([`Rule::range`]), by kind, the n-th that a rule
//!   matches, or at random. A failed write or discard may have been done in part, in whole sectors;
//!   a failed read may have filled its buffers;
//! - answer late, and in another order;
//! - neither carry out nor answer an operation until [`Faults::release`] or [`Faults::resume`];
//! - keep writes in a volatile cache until a flush: [`Faults::crash`] loses any of it, and nothing
//!   works after that;
//! - fail a flush once and succeed afterwards, as the kernel's page cache does.
//!
//! The mapped bytes of the inner backend meet the same errors ([`FaultMap`]); with a volatile cache
//! there is no mapping. The seed determines everything, as long as one thread uses the backend.
//!
//! Without faults, operations are carried out in the order of submission. Operations that reach the
//! backend are logged ([`Faults::log`]), for tests of order and of saved operations.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, epoll, eventfd};
use ucrypt_backend::map::{PutBytes, UseBytes};
use ucrypt_backend::{
    Backend, Buf, Done, Errno, Extent, FileBackend, Io, Limits, Map, Pool, Queue, SharedRing,
    Zones, memory, total_len,
};

use crate::random::Random;

/// Bytes of the smallest unit that a disk writes as a whole.
const SECTOR: usize = 512;

/// How long a test waits for an expected operation.
const COMES_WITHIN: Duration = Duration::from_secs(30);

/// How long an operation hangs at most: a failed test must end.
const HANGS_MAX: Duration = Duration::from_secs(60);

/// The kind of access of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// Discards, or writes zeroes.
    Punch,
}

/// The outcome of an operation that matches a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is not carried out, and answered with an error.
    Fail(Errno),
    /// A write, a write of zeroes and a discard are carried out in part, a read completely; it is
    /// answered with an error.
    Tear(Errno),
    /// It waits until [`Faults::release`] answers it with `EIO` or [`Faults::resume`] carries it
    /// out. After a minute it fails, so that a failed test ends.
    Hang,
}

/// Maps operations to a fate.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Only these kinds of access; empty: all.
    pub accesses: Vec<Access>,
    /// Only operations that touch these bytes of the backend; empty: all.
    pub range: Range<u64>,
    /// Number of matching operations that are spared first.
    pub spare: u64,
    /// Number of matching operations that then meet the fate.
    pub count: u64,
    /// Probability, in percent, that a matching operation meets the fate.
    pub percent: u64,
    /// The outcome.
    pub fate: Fate,
}

impl Rule {
    /// A rule for every operation.
    pub fn new(fate: Fate) -> Self {
        Self { accesses: Vec::new(), range: 0..0, spare: 0, count: u64::MAX, percent: 100, fate }
    }

    /// Only operations of that kind.
    #[must_use]
    pub fn on(mut self, access: Access) -> Self {
        self.accesses.push(access);
        self
    }

    /// Only operations that touch these bytes of the backend.
    #[must_use]
    pub fn range(mut self, range: Range<u64>) -> Self {
        self.range = range;
        self
    }

    /// Only the n-th matching operation, counted from 0.
    #[must_use]
    pub fn nth(mut self, n: u64) -> Self {
        (self.spare, self.count) = (n, 1);
        self
    }

    /// Only with this probability, in percent.
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

/// An operation that reached the backend.
#[derive(Debug, Clone)]
pub struct Reached {
    /// The kind of access.
    pub access: Access,
    /// Whether it must be durable: a flush, or a write with FUA.
    pub durable: bool,
    /// Bytes of the backend that it touches; empty for a flush.
    pub range: Range<u64>,
    /// Whether it accessed the mapped bytes.
    pub in_place: bool,
}

/// An operation that met a fate.
#[derive(Debug, Clone)]
pub struct Met {
    /// The kind of access.
    pub access: Access,
    /// Whether it must be durable: a flush, or a write with FUA.
    pub durable: bool,
    /// Bytes of the backend that are at fault; empty for a flush.
    pub range: Range<u64>,
    /// The outcome.
    pub fate: Fate,
}

/// Controls the faults. Clones share one state.
#[derive(Debug, Clone)]
pub struct Faults(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Signalled when an operation has met its fate.
    met: Condvar,
}

/// The outcome of hanging operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Failed,
    Done,
}

#[derive(Debug)]
struct State {
    rules: Vec<Rule>,
    random: Random,
    /// Maximum polls that an operation waits before it is carried out, and again before its answer.
    delay_max: u64,
    /// Bytes of the units that a torn operation does or leaves as a whole.
    tear_unit: usize,
    met: Vec<Met>,
    log: Vec<Reached>,
    /// Sectors in the volatile cache, if there is one.
    cache: Option<BTreeMap<u64, Box<[u8; SECTOR]>>>,
    crashed: bool,
    /// `None`: such operations hang.
    end: Option<End>,
}

impl Faults {
    /// No faults yet.
    pub fn new(seed: u64) -> Self {
        let state = State {
            rules: Vec::new(),
            random: Random::new(seed),
            delay_max: 0,
            tear_unit: SECTOR,
            met: Vec::new(),
            log: Vec::new(),
            cache: None,
            crashed: false,
            end: None,
        };
        Self(Arc::new(Shared { state: Mutex::new(state), met: Condvar::new() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a rule; the first rule that an operation meets decides.
    pub fn add(&self, rule: Rule) -> &Self {
        self.state().rules.push(rule);
        self
    }

    /// Removes all rules: no new faults from now on.
    pub fn clear(&self) {
        self.state().rules.clear();
    }

    /// Delays operations and answers by up to this many polls, which changes their order.
    pub fn delay(&self, polls_max: u64) -> &Self {
        self.state().delay_max = polls_max;
        self
    }

    /// Torn operations do or leave units of this many bytes as a whole, counted from where the
    /// operation begins. 512 at first.
    pub fn tears_between(&self, unit: u64) -> &Self {
        self.state().tear_unit = unit as usize;
        self
    }

    /// Keeps writes in a volatile cache until a flush.
    pub fn volatile(&self) -> &Self {
        self.state().cache.get_or_insert_default();
        self
    }

    /// In three of four cases, adds rules by chance: some writes are torn, writes of zeroes and
    /// discards are torn, or the flush that comes after some others fails.
    pub fn fail_now_and_then(&self, random: &mut Random) -> &Self {
        match random.below(4) {
            0 => self,
            1 => self.add(Rule::new(Fate::Tear(Errno::NOSPC)).on(Access::Write).chance(10)),
            2 => self.add(Rule::new(Fate::Tear(Errno::IO)).on(Access::Punch).chance(20)),
            _ => {
                let flush = Rule::new(Fate::Fail(Errno::IO)).on(Access::Flush);
                self.add(flush.nth(random.below(8)))
            }
        }
    }

    /// Answers hanging operations with `EIO`; no operation hangs from now on.
    pub fn release(&self) {
        self.state().end = Some(End::Failed);
    }

    /// Carries hanging operations out; no operation hangs from now on.
    pub fn resume(&self) {
        self.state().end = Some(End::Done);
    }

    /// Simulates a power failure: any sectors of the volatile cache have reached the disk. All
    /// later operations fail with `EIO`. After [`FaultBackend::settle`], the inner backend holds
    /// what is left.
    pub fn crash(&self) {
        let mut state = self.state();
        let survivors = state.survivors();
        (state.crashed, state.cache) = (true, survivors);
    }

    /// The operations that have met a fate so far.
    pub fn met(&self) -> Vec<Met> {
        self.state().met.clone()
    }

    /// Waits until this many operations have met a fate.
    ///
    /// # Panics
    /// If they have not within 30 seconds.
    pub fn await_met(&self, count: usize) {
        let until = Instant::now() + COMES_WITHIN;
        let mut state = self.state();
        while state.met.len() < count {
            let left = until.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "of {count} operations these have met a fate: {:?}; these came: {:?}",
                state.met,
                state.log
            );
            (state, _) =
                self.0.met.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The operations that have reached the backend so far, in order.
    pub fn log(&self) -> Vec<Reached> {
        self.state().log.clone()
    }

    /// Logs an operation and decides its fate.
    fn judge(&self, reached: Reached) -> Option<Fate> {
        let fate = self.state().judge(reached);
        self.0.met.notify_all();
        fate
    }
}

impl State {
    /// What a power failure now would leave of the volatile cache: nothing, about half, or all of
    /// it.
    fn survivors(&mut self) -> Option<BTreeMap<u64, Box<[u8; SECTOR]>>> {
        let State { random, cache, .. } = self;
        let percent = [0, 50, 100][random.below(3) as usize];
        let all = cache.as_ref()?.iter();
        let some = all.filter(|_| random.percent(percent));
        Some(some.map(|(sector, bytes)| (*sector, bytes.clone())).collect())
    }

    fn judge(&mut self, reached: Reached) -> Option<Fate> {
        let Reached { access, durable, range, .. } = reached.clone();
        self.log.push(reached);
        if self.crashed {
            return Some(Fate::Fail(Errno::IO));
        }
        for rule in &mut self.rules {
            if !rule.matches(access, &range) {
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
            // Only the part of an operation that the rule names is at fault.
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

/// A backend with faults; see the module's comment.
pub struct FaultBackend {
    inner: Arc<dyn Backend>,
    faults: Faults,
    limits: Limits,
    has_map: bool,
}

impl FaultBackend {
    /// Wraps a backend. Answers come when they are polled or waited for, not at once.
    pub fn new(inner: Arc<dyn Backend>, faults: Faults) -> Self {
        let limits = Limits { synchronous: false, ..inner.limits().clone() };
        Self { inner, faults, limits, has_map: true }
    }

    /// As [`FaultBackend::new`], but reports a synchronous inner backend as synchronous.
    pub fn at_once(inner: Arc<dyn Backend>, faults: Faults) -> Self {
        let limits = inner.limits().clone();
        Self { inner, faults, limits, has_map: true }
    }

    /// Hides the mapped bytes: every operation goes through a queue, and so may hang.
    #[must_use]
    pub fn without_map(mut self) -> Self {
        self.has_map = false;
        self
    }

    /// Reports that `bytes` must be written as a whole, and refuses to write parts of that: as a disk
    /// of such blocks does in direct I/O.
    #[must_use]
    pub fn with_write_unit(mut self, bytes: u32) -> Self {
        self.limits.write_unit = bytes;
        self
    }

    /// Reports that memory should lie at multiples of `bytes`, and refuses other memory.
    #[must_use]
    pub fn with_memory_align(mut self, bytes: u32) -> Self {
        self.limits.memory_align = bytes;
        self
    }

    /// A copy of the disk as a power failure now would leave it: any sectors of the volatile cache
    /// have reached it. Everything goes on here.
    ///
    /// # Errors
    /// The errors of the inner backend, which must be synchronous.
    pub fn after_a_crash(&self) -> io::Result<FileBackend> {
        let len = self.inner.len_now()?;
        let image = memory(len)?;
        let pool = Pool::new(2 * len.next_power_of_two() as usize)?;
        let whole = pool.alloc(len as usize).ok_or(Errno::NOMEM)?;
        let read = Io::Read { token: 0, offset: 0, bufs: vec![whole] };
        let read = carry_out(&mut *self.inner.queue(1)?, read);
        read.result?;
        image.write_all_at(0, &read.bufs[0])?;
        let survivors = self.faults.state().survivors().unwrap_or_default();
        write_out(&mut *image.queue(1)?, survivors)?;
        Ok(image)
    }

    /// Writes the remaining volatile cache to the inner backend.
    ///
    /// # Errors
    /// The errors of the inner backend.
    pub fn settle(&self) -> io::Result<()> {
        let cache = self.faults.state().cache.as_mut().map(std::mem::take).unwrap_or_default();
        let mut queue = self.inner.queue(1)?;
        write_out(&mut *queue, cache).map_err(Into::into)
    }
}

/// Carries out one operation and waits for it.
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

    fn use_until(&self, end: u64) {
        self.inner.use_until(end);
    }

    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
        let inner = self.inner.queue(depth)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let both = inner.fd().map(|inside| join(inside, event.as_fd())).transpose()?;
        Ok(Box::new(FaultQueue {
            inner,
            faults: self.faults.clone(),
            write_unit: self.limits.write_unit,
            memory_align: self.limits.memory_align as usize,
            depth: depth as usize,
            inside: 0,
            waiting: Vec::new(),
            hanging: Vec::new(),
            ready: Vec::new(),
            polls: 0,
            event,
            is_set: false,
            both,
        }))
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> Vec<Extent> {
        self.inner.extents(offset, len, max)
    }

    fn map(&self) -> Option<Arc<dyn Map>> {
        if !self.has_map || self.faults.state().cache.is_some() {
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

/// Mapped bytes with the faults of their backend.
#[derive(Debug)]
pub struct FaultMap {
    inner: Arc<dyn Map>,
    faults: Faults,
}

impl FaultMap {
    fn judge(&self, access: Access, offset: u64, len: usize) -> Option<Fate> {
        let range = offset..offset + len as u64;
        self.faults.judge(Reached { access, durable: false, range, in_place: true })
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
            Some(Fate::Fail(error)) => Some(Err(error)),
            Some(Fate::Tear(error)) => {
                let whole = self.inner.read(offset, len, use_)?;
                Some(whole.and(Err(error)))
            }
            // Like a mapping whose file was cut off: the caller asks the file.
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
            Some(Fate::Fail(error)) => Err(error),
            Some(Fate::Tear(error)) => self.inner.read_exact(offset, buf).and(Err(error)),
            _ => self.inner.read_exact(offset, buf),
        }
    }
}

struct FaultQueue {
    inner: Box<dyn Queue>,
    faults: Faults,
    write_unit: u32,
    memory_align: usize,
    depth: usize,
    /// Operations submitted to the inner backend.
    inside: usize,
    /// Steps to carry out, and the poll at which each is due.
    waiting: Vec<(u64, Step)>,
    /// Hanging operations, and since when.
    hanging: Vec<(Instant, Io)>,
    /// Answers ready to be taken.
    ready: Vec<Done>,
    polls: u64,
    /// Readable while anything waits here, so that a sleeping caller keeps polling.
    event: OwnedFd,
    is_set: bool,
    /// Readable if `event` or the inner backend's descriptor is, if the inner backend has one.
    both: Option<OwnedFd>,
}

/// A descriptor that is readable when either of the two is.
fn join(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for fd in [one, other] {
        epoll::add(&both, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok(both)
}

enum Step {
    Do(Io),
    Answer(Done),
}

fn reached(io: &Io) -> Reached {
    let (access, range) = match io {
        Io::Read { offset, bufs, .. } => (Access::Read, *offset..*offset + total_len(bufs) as u64),
        Io::Write { offset, bufs, .. } => {
            (Access::Write, *offset..*offset + total_len(bufs) as u64)
        }
        Io::Flush { .. } => (Access::Flush, 0..0),
        Io::Discard { offset, len, .. } | Io::WriteZeroes { offset, len, .. } => {
            (Access::Punch, *offset..offset + len)
        }
    };
    let durable = matches!(io, Io::Flush { .. } | Io::Write { fua: true, .. });
    Reached { access, durable, range, in_place: false }
}

/// A buffer with these bytes; `None` if there is no memory.
fn copy(bytes: &[u8]) -> Option<Buf> {
    let mut buf = Pool::new(2 * bytes.len().next_power_of_two()).ok()?.alloc(bytes.len())?;
    buf.copy_from_slice(bytes);
    Some(buf)
}

/// The operation's buffers.
fn bufs(io: &Io) -> &[Buf] {
    match io {
        Io::Read { bufs, .. } | Io::Write { bufs, .. } => bufs,
        Io::Flush { .. } | Io::Discard { .. } | Io::WriteZeroes { .. } => &[],
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
        self.signal();
    }

    fn signal(&mut self) {
        let waits = !(self.waiting.is_empty() && self.hanging.is_empty() && self.ready.is_empty());
        if waits == std::mem::replace(&mut self.is_set, waits) {
            return;
        }
        // Neither call fails for a counter of 0 or 1.
        let _ = if waits {
            rustix::io::write(&self.event, &1u64.to_ne_bytes())
        } else {
            rustix::io::read(&self.event, &mut [0; 8])
        };
    }

    /// Applies an operation's fate, or carries it out.
    fn act(&mut self, io: Io) {
        let reached = reached(&io);
        let Range { start, end } = reached.range;
        let is_whole = (start | end).is_multiple_of(u64::from(self.write_unit));
        let is_aligned = bufs(&io).iter().all(|buf| buf.as_ptr().addr() % self.memory_align == 0);
        if reached.access == Access::Write && !is_whole || !is_aligned {
            return self.later(Step::Answer(failed(io, Errno::INVAL)));
        }
        match self.faults.judge(reached) {
            None => self.carry_on(io),
            Some(Fate::Fail(error)) => self.later(Step::Answer(failed(io, error))),
            Some(Fate::Tear(error)) => {
                let done = self.tear(io, error);
                self.later(Step::Answer(done));
            }
            Some(Fate::Hang) => self.hanging.push((Instant::now(), io)),
        }
    }

    /// Carries out an operation without a fault.
    fn carry_on(&mut self, io: Io) {
        if self.faults.state().cache.is_some() {
            let done = self.through_cache(io);
            self.later(Step::Answer(done));
        } else {
            self.inside += 1;
            self.inner.submit(io);
        }
    }

    /// Carries out a read, or random parts of another operation, and fails.
    fn tear(&mut self, io: Io, error: Errno) -> Done {
        match &io {
            Io::Read { .. } => return Done { result: Err(error), ..self.at_once(io) },
            Io::Flush { .. } => {}
            &Io::Discard { token, offset, len } => {
                for (offset, len) in self.parts(offset, len as usize) {
                    self.at_once(Io::Discard { token, offset, len: len as u64 });
                }
            }
            &Io::WriteZeroes { token, offset, len } => {
                for (offset, len) in self.parts(offset, len as usize) {
                    self.at_once(Io::WriteZeroes { token, offset, len: len as u64 });
                }
            }
            Io::Write { token, offset, bufs, fua } => {
                let (token, fua) = (*token, *fua);
                let whole: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
                for (at, len) in self.parts(*offset, whole.len()) {
                    let from = (at - offset) as usize;
                    let Some(part) = copy(&whole[from..from + len]) else { continue };
                    self.at_once(Io::Write { token, offset: at, bufs: vec![part], fua });
                }
            }
        }
        failed(io, error)
    }

    /// Random parts of a torn operation, in whole units: for each its offset and length.
    fn parts(&self, offset: u64, len: usize) -> Vec<(u64, usize)> {
        let mut state = self.faults.state();
        let (unit, mut at, mut parts) = (state.tear_unit, 0, Vec::new());
        while at < len {
            let part = (unit * state.random.length((len / unit) as u64 + 1) as usize).min(len - at);
            if state.random.percent(50) {
                parts.push((offset + at as u64, part));
            }
            at += part;
        }
        parts
    }

    /// Carries out an operation at once, on the volatile cache if there is one.
    fn at_once(&mut self, io: Io) -> Done {
        if self.faults.state().cache.is_some() { self.through_cache(io) } else { self.aside(io) }
    }

    /// Carries out an operation on the inner backend, keeping answers that arrive meanwhile.
    fn aside(&mut self, io: Io) -> Done {
        while self.inside > 0 {
            self.take_ready();
        }
        carry_out(&mut *self.inner, io)
    }

    /// Waits for answers of the inner backend. Returns how many there were.
    fn take_ready(&mut self) -> usize {
        let before = self.ready.len();
        if let Err(error) = self.inner.wait(&mut self.ready) {
            panic!("the backend inside is broken: {error}");
        }
        let taken = self.ready.len() - before;
        self.inside -= taken;
        taken
    }

    /// Carries out an operation on the volatile cache and the inner backend below it.
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

    /// Whether a completion of somebody else's entry waits to be taken.
    fn has_foreign(&mut self) -> bool {
        self.inner.shared_ring().is_some_and(|ring| ring.has_next())
    }

    /// Carries out the steps that are due.
    fn advance(&mut self) {
        self.polls += 1;
        let polls = self.polls;
        let due: Vec<_> = self.waiting.extract_if(.., |(due, _)| *due <= polls).collect();
        for (_, step) in due {
            match step {
                Step::Do(io) => self.act(io),
                Step::Answer(done) => self.ready.push(done),
            }
        }
        let State { crashed, end, .. } = *self.faults.state();
        let ends = |since: &Instant| crashed || end.is_some() || since.elapsed() > HANGS_MAX;
        let ended: Vec<_> = self.hanging.extract_if(.., |(since, _)| ends(since)).collect();
        for (_, io) in ended {
            if !crashed && end == Some(End::Done) {
                self.carry_on(io);
            } else {
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
        self.signal();
        Ok(())
    }

    fn wait(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        if self.under_way() == 0 {
            // For entries of others.
            return self.inner.wait(done);
        }
        while self.under_way() > 0 && done.is_empty() && !self.has_foreign() {
            self.poll(done)?;
            if done.is_empty() && self.waiting.is_empty() {
                if self.inside > 0 && self.take_ready() > 0 {
                    continue;
                }
                if self.inside == 0 {
                    // Only hanging operations are left.
                    std::thread::sleep(Duration::from_millis(1));
                }
                // Perhaps what the ring watches has become readable.
                return Ok(());
            }
        }
        Ok(())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.both.as_ref().map_or(self.event.as_fd(), |both| both.as_fd()))
    }

    fn register(&mut self, pool: &Pool) -> bool {
        self.inner.register(pool)
    }

    /// Entries of others see no faults.
    fn shared_ring(&mut self) -> Option<SharedRing<'_>> {
        self.inner.shared_ring()
    }
}

impl Drop for FaultQueue {
    fn drop(&mut self) {
        // Hanging operations are dropped; the inner queue waits for its own operations.
        self.hanging.clear();
        let mut done = Vec::new();
        while self.under_way() > 0 && self.wait(&mut done).is_ok() {
            self.hanging.clear();
            done.clear();
        }
    }
}
