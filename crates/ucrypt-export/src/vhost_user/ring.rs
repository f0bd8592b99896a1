//! One virtqueue: a thread with an engine queue of its own.
//!
//! The thread takes requests as long as the engine has room, submits them directly on the guest's
//! memory, and puts the answers into the ring. It sleeps in one place, when neither the ring nor
//! the engine can go on.
//!
//! The thread ends in one way: it takes nothing more, and ends when everything that it took is
//! answered. It does so when it is asked to stop; when the ring makes no sense and counts as broken;
//! and when a request is in memory that was just removed. That request stays in the ring until there
//! is another map.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use ucrypt_engine::{Buf, Io, Queue, QueueConfig, Rejected, Urgency, Volume};
use vm_memory::{Bytes, GuestAddress};

use super::Report;
use super::config::SEGMENTS_MAX;
use super::inflight::Track;
use super::memory::{Gone, GuestMap};
use super::request::{Command, ID_LEN, Parser, Request, Status};
use super::ring_control::RingControl;
use super::split::{Broken, NotThere, RingLayout, SplitRing};
use crate::backlog::Submitter;
use crate::memory;
use crate::stop::Stop;
use crate::visits::Visits;
use crate::waiter::{EventFlags, Waiter};

/// Rings that a virtual machine may have before their own buffers, for the ciphertext of writes,
/// exceed an export's share, and most bytes of each.
const RINGS: usize = 16;
const MEMORY_BYTES_MAX: usize = 1 << 20;
/// Bytes of the longest request: twice what is announced, for guests that do not take note.
const REQUEST_BYTES_MAX: usize = 64 << 20;

/// Everything that a ring's thread needs to start.
pub(super) struct Setup {
    pub(super) index: usize,
    pub(super) layout: RingLayout,
    pub(super) map: Arc<GuestMap>,
    pub(super) kick: File,
    pub(super) event_idx: bool,
    pub(super) track: Option<Track>,
    pub(super) control: Arc<RingControl>,
    pub(super) device: Arc<DeviceState>,
}

/// State shared by all rings of a device.
pub(super) struct DeviceState {
    pub(super) volume: Arc<Volume>,
    /// The answer to `GET_ID`.
    pub(super) serial: [u8; ID_LEN],
    /// Writes need not be durable before they are answered.
    pub(super) writeback: AtomicBool,
    pub(super) report: Report,
    /// Bounds what front ends and guests have reported.
    pub(super) complaints: Visits,
    pub(super) stop: Stop,
    /// How long requests may take to complete once the server is to stop.
    pub(super) patience: Duration,
    /// When that time is over.
    pub(super) deadline: OnceLock<Instant>,
}

impl DeviceState {
    /// Reports what a front end or a guest has done, which it can do over and over.
    pub(super) fn complain(&self, line: &str) {
        self.complaints.tell(&*self.report, || line.to_owned());
    }

    /// Waits until `ended` is readable; once the server is to stop, only as long as its patience
    /// lasts. Returns whether it is readable.
    pub(super) fn await_end(&self, ended: BorrowedFd<'_>) -> bool {
        loop {
            let left = self.stop.is_set().then(|| {
                let deadline = self.deadline.get_or_init(|| Instant::now() + self.patience);
                deadline.saturating_duration_since(Instant::now())
            });
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            let mut fds = [
                PollFd::new(&ended, PollFlags::IN),
                // Stays readable once it is set.
                PollFd::new(&self.stop, PollFlags::IN),
            ];
            let fds = if left.is_some() { &mut fds[..1] } else { &mut fds[..] };
            let polled = poll(fds, timeout.as_ref());
            if polled.is_ok() && !fds[0].revents().is_empty() {
                return true;
            }
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
        }
    }
}

/// How a ring's thread has ended.
pub(super) struct Ended {
    /// The next request to be taken.
    pub(super) base: u16,
    pub(super) why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The thread was asked to stop.
    Stopped,
    /// A request is in memory that was removed.
    Parked,
    /// The ring or the volume's queue must not be used any more.
    Broken,
}

/// Why a ring does not start.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    /// The ring is not in the guest's memory.
    #[error(transparent)]
    NotThere(#[from] NotThere),
    /// An error of the system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<StartError> for io::Error {
    fn from(error: StartError) -> Self {
        match error {
            StartError::NotThere(reason) => Self::new(io::ErrorKind::InvalidInput, reason),
            StartError::Io(error) => error,
        }
    }
}

/// Numbers of the descriptors that the thread watches beside its queue.
const CHANGE: usize = 0;
const KICK: usize = 1;

/// What the answer to a request in flight needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    status_at: Option<GuestAddress>,
    written: u32,
}

/// The state of a ring's thread.
pub(super) struct Ring {
    index: usize,
    virtqueue: SplitRing,
    /// Watched as long as it is open.
    _kick: File,
    waiter: Waiter,
    track: Option<Track>,
    control: Arc<RingControl>,
    device: Arc<DeviceState>,
    map: Arc<GuestMap>,
    queue: Queue,
    parser: Parser,
    /// Requests in flight, by their first descriptor.
    pending: Vec<Option<Pending>>,
    under_way: usize,
    /// The request for which the engine had no room: at most one, because the ring then takes no
    /// more.
    backlog: VecDeque<(u16, Request)>,
    /// The data of the request that is being submitted or waits.
    pieces: Vec<Buf>,
    /// Requests that another server has left, to carry out before others; the first one is last.
    left_over: Vec<u16>,
    /// Why the ring takes nothing more; `None` as long as it does.
    ends: Option<Why>,
    /// Answers since the guest last wanted a call.
    unnotified: u32,
}

/// A guest that wants no call for this many answers polls for them. A guest that sleeps wants a
/// call every few answers: drivers look for answers without calls only while they process some.
const POLLED_AFTER_ANSWERS: u32 = 1024;

impl Ring {
    /// Prepares a ring, without taking anything from it.
    pub(super) fn new(setup: Setup) -> Result<Self, StartError> {
        let Setup { index, layout, map, kick, event_idx, mut track, control, device } = setup;
        let mut virtqueue = SplitRing::locate(&layout, &map, event_idx)?;
        let mut left_over = Vec::new();
        if let Some(track) = &mut track {
            left_over = track.recover(virtqueue.next_used());
            let taken = left_over.len() as u16;
            virtqueue.set_next_available(virtqueue.next_used().wrapping_add(taken));
            left_over.reverse();
        }
        let depth = u32::from(layout.size);
        let memory = memory::each(&device.volume, RINGS, MEMORY_BYTES_MAX);
        let config = QueueConfig { memory, request_max: REQUEST_BYTES_MAX, depth };
        let mut queue = device.volume.queue(config)?;
        queue.set_reads_in_place(true);
        let waiter = waiter(&control, &queue, &kick)?;
        Ok(Self {
            index,
            queue,
            pending: vec![None; usize::from(layout.size)],
            under_way: 0,
            parser: Parser::new(),
            backlog: VecDeque::with_capacity(1),
            pieces: Vec::with_capacity(SEGMENTS_MAX as usize),
            left_over,
            ends: None,
            unnotified: 0,
            virtqueue,
            _kick: kick,
            waiter,
            track,
            control,
            device,
            map,
        })
    }

    /// Serves until the thread is to end.
    pub(super) fn run(mut self) -> Ended {
        // The previous server of the ring may have ended between an answer and its call.
        self.control.call();
        loop {
            let mut progress = self.take();
            if let Err(error) = self.queue.poll() {
                self.fail(&format!("the volume's queue failed: {error}"));
                break;
            }
            progress |= self.finish();
            self.check_memory();
            self.call();
            self.control.set_under_way(self.under_way + self.backlog.len());
            if self.is_ending() && self.under_way == 0 && self.has_no_work() {
                break;
            }
            if !progress && let Err(error) = self.sleep() {
                self.fail(&format!("cannot wait for requests: {error}"));
                break;
            }
        }
        let base = self.virtqueue.next_available();
        Ended { base, why: self.ends.unwrap_or(Why::Stopped) }
    }

    /// Whether nothing more is taken from the guest.
    fn is_ending(&self) -> bool {
        self.ends.is_some() || self.control.is_stopped()
    }

    /// Whether nothing that was taken waits to be submitted.
    fn has_no_work(&self) -> bool {
        self.backlog.is_empty() && (self.left_over.is_empty() || self.ends.is_some())
    }

    /// Takes requests while the engine has room, but at most as many as the ring has entries. Returns
    /// whether there were any.
    ///
    /// Requests that are answered at once need no room, so a guest can offer them without end. The
    /// requests under way hold their ranges meanwhile, which other clients may wait for.
    fn take(&mut self) -> bool {
        let mut any = self.submit_waiting();
        for _ in 0..self.pending.len() {
            if !self.backlog.is_empty() {
                break;
            }
            match self.next_head() {
                Ok(Some((head, is_left_over))) => {
                    let Ok(request) = self.parse(head) else {
                        self.park(head, is_left_over);
                        break;
                    };
                    self.submit((head, request));
                }
                Ok(None) => break,
                Err(broken) => {
                    self.fail(&broken);
                    break;
                }
            }
            any = true;
        }
        any
    }

    /// The next request to carry out, if there is one, and whether another server has left it.
    fn next_head(&mut self) -> Result<Option<(u16, bool)>, Broken> {
        if self.ends.is_some() {
            return Ok(None);
        }
        let next = match self.left_over.pop() {
            Some(head) => Some((head, true)),
            None if self.control.is_stopped() => None,
            None => self.virtqueue.take(&self.map)?.map(|head| (head, false)),
        };
        let is_taken = |head: u16| self.pending.get(usize::from(head)).is_none_or(Option::is_some);
        if next.is_some_and(|(head, _)| is_taken(head)) {
            return Err(Broken::Twice);
        }
        Ok(next)
    }

    /// Parses a request and marks it as taken.
    fn parse(&mut self, head: u16) -> Result<Request, Gone> {
        let chain = self.virtqueue.chain(&self.map, head);
        let request = self.parser.parse(&self.map, chain, &mut self.pieces)?;
        if let Some(track) = &mut self.track {
            track.taken(head);
        }
        Ok(request)
    }

    /// Leaves a request in the ring until there is another map of the memory.
    fn park(&mut self, head: u16, is_left_over: bool) {
        if is_left_over {
            self.left_over.push(head);
        } else {
            self.virtqueue.put_back();
        }
        self.ends = Some(Why::Parked);
    }

    /// Answers what the engine has completed. Returns whether there was anything.
    fn finish(&mut self) -> bool {
        let mut any = false;
        while let Some(done) = self.queue.next_done() {
            any = true;
            let Some(pending) = self.pending.get_mut(done.tag as usize).and_then(Option::take)
            else {
                continue;
            };
            self.under_way -= 1;
            let status = match done.result {
                // If memory was cut off, the data may have gone nowhere.
                Ok(()) if self.check_memory() => Status::IoErr,
                Ok(()) => Status::Ok,
                Err(Errno::OPNOTSUPP) => Status::Unsupported,
                Err(_) => Status::IoErr,
            };
            self.answer(done.tag as u16, pending, status);
        }
        any
    }

    /// Breaks the ring if the front end has cut its memory off. Returns whether it has.
    fn check_memory(&mut self) -> bool {
        let is_cut_off = self.map.is_cut_off();
        if is_cut_off {
            self.fail(&"the front end has cut its memory off");
        }
        is_cut_off
    }

    /// Puts an answer into the ring.
    fn answer(&mut self, head: u16, pending: Pending, status: Status) {
        self.unnotified = self.unnotified.saturating_add(1);
        let mut written = 0;
        if let Some(at) = pending.status_at
            && self.map.memory().write_obj(status as u8, at).is_ok()
        {
            written = if status == Status::Ok { pending.written } else { 1 };
        }
        if let Some(track) = &self.track {
            track.ends(head);
        }
        if let Err(broken) = self.virtqueue.answer(&self.map, head, written) {
            self.fail(&broken);
        }
        if let Some(track) = &self.track {
            track.ended(head, self.virtqueue.next_used());
        }
    }

    /// Calls the guest if it wants to be told of the answers.
    fn call(&mut self) {
        match self.virtqueue.wants_call(&self.map) {
            Ok(true) => {
                self.unnotified = 0;
                self.control.call();
            }
            Ok(false) => {}
            Err(broken) => self.fail(&broken),
        }
    }

    /// Waits for a kick, a completion of the engine, or a change.
    fn sleep(&mut self) -> io::Result<()> {
        let takes_more = !self.is_ending() && self.backlog.is_empty();
        if takes_more {
            match self.virtqueue.ask_for_kick(&self.map) {
                Ok(false) => {}
                Ok(true) => return Ok(()),
                Err(broken) => {
                    self.fail(&broken);
                    return Ok(());
                }
            }
        }
        let Self { waiter, queue, control, .. } = self;
        waiter.sleep(queue, None, |number, _| {
            if number == CHANGE {
                control.clear_wake();
            }
        })?;
        if takes_more && let Err(broken) = self.virtqueue.need_no_kick(&self.map) {
            self.fail(&broken);
        }
        Ok(())
    }

    /// Breaks the ring: reports the reason and takes nothing more.
    fn fail(&mut self, reason: &dyn std::fmt::Display) {
        if self.ends != Some(Why::Broken) {
            self.ends = Some(Why::Broken);
            self.report(&format!("stopped: {reason}"));
            self.control.tell_broken();
        }
    }

    fn report(&self, what: &str) {
        self.device.complain(&format!("vhost-user ring {}: {what}", self.index));
    }
}

impl Submitter for Ring {
    type Request = (u16, Request);

    fn backlog(&mut self) -> &mut VecDeque<Self::Request> {
        &mut self.backlog
    }

    /// `pieces` must hold the data of the request.
    fn offer(&mut self, (head, request): Self::Request) -> Result<(), Self::Request> {
        let Request { command, status_at, written, urgency } = request;
        let is_polled = self.unnotified >= POLLED_AFTER_ANSWERS && urgency == Urgency::Normal;
        self.queue.set_urgency(if is_polled { Urgency::Urgent } else { urgency });
        let fua = !self.device.writeback.load(Ordering::Relaxed);
        let pieces = &mut self.pieces;
        let io = match command {
            Ok(Command::Read { offset }) => Ok(Io::read_into(offset, pieces)),
            Ok(Command::Write { offset }) => Ok(Io::write_scattered(offset, pieces, fua)),
            Ok(Command::Flush) => Ok(Io::Flush),
            Ok(Command::Discard { offset, len }) => Ok(Io::Discard { offset, len }),
            Ok(Command::WriteZeroes { offset, len, unmap }) => {
                Ok(Io::WriteZeroes { offset, len, fua, no_unmap: !unmap, fast: false })
            }
            Ok(Command::Id) => {
                put_id(&self.device.serial, pieces);
                Err(Status::Ok)
            }
            Err(status) => Err(status),
        };
        let pending = Pending { status_at, written };
        let ended = match io.map(|io| self.queue.submit(u64::from(head), io)) {
            Ok(Ok(())) => {
                self.pending[usize::from(head)] = Some(pending);
                self.under_way += 1;
                return Ok(());
            }
            Ok(Err(Rejected::Busy(_))) => return Err((head, request)),
            Ok(Err(Rejected::NotSupported)) => Status::Unsupported,
            Ok(Err(_)) => Status::IoErr,
            Err(status) => status,
        };
        self.pieces.clear();
        self.answer(head, pending, ended);
        Ok(())
    }

    fn awaits_room(&self) -> bool {
        self.under_way > 0
    }

    fn give_up(&mut self, (head, request): Self::Request) {
        self.queue.given_up();
        self.pieces.clear();
        let Request { status_at, written, .. } = request;
        self.answer(head, Pending { status_at, written }, Status::IoErr);
    }
}

/// Copies the device's ID to where the guest wants it, as far as it fits.
fn put_id(mut id: &[u8], pieces: &mut [Buf]) {
    for piece in pieces {
        let (part, rest) = id.split_at(piece.len().min(id.len()));
        piece[..part.len()].copy_from_slice(part);
        id = rest;
    }
}

/// Creates a waiter for a change, the engine and kicks. It sees every kick though nobody reads the
/// event's counter, as the kernel's vhost does not either: a front end that fills the counter changes
/// nothing, and one that reads it takes away its own kicks.
fn waiter(control: &RingControl, queue: &Queue, kick: &File) -> io::Result<Waiter> {
    let mut waiter = Waiter::new(queue)?;
    waiter.watch(CHANGE, control, EventFlags::IN)?;
    waiter.watch(KICK, kick, EventFlags::IN | EventFlags::ET)?;
    Ok(waiter)
}
