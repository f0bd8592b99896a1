//! One virtqueue: a thread with an engine queue of its own.
//!
//! The thread takes requests as long as the engine has room, has them carried out straight on the
//! guest's memory, and puts the answers into the ring. It sleeps in one place, when neither the
//! ring nor the engine can go on. A ring that makes no sense is broken: nothing more is taken from
//! it, what was taken is answered, and it waits to be stopped.
//!
//! When it is asked to stop it takes nothing more and ends when everything is answered.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use ucrypt_engine::{Buf, Op, Queue, QueueConfig, Rejected, Volume};
use vm_memory::{Bytes, GuestAddress};

use super::Report;
use super::config::SEGMENTS_MAX;
use super::inflight::Track;
use super::memory::GuestMap;
use super::request::{Command, ID_LEN, Parser, Request, Status};
use super::shared::Shared;
use super::split::{Broken, Place, SplitRing};

/// Buffer memory of a ring in bytes: room for the ciphertext of two of the largest writes. Pages
/// are used when they are first touched.
const MEMORY: usize = 64 << 20;

/// What a ring's thread is given.
pub(super) struct Setup {
    pub(super) index: usize,
    pub(super) place: Place,
    pub(super) kick: File,
    pub(super) event_idx: bool,
    pub(super) track: Option<Track>,
    pub(super) shared: Arc<Shared>,
    pub(super) device: Arc<DeviceState>,
}

/// What all rings of a device use.
pub(super) struct DeviceState {
    pub(super) volume: Arc<Volume>,
    /// The answer to `GET_ID`.
    pub(super) serial: [u8; ID_LEN],
    /// Writes need not be durable before they are answered.
    pub(super) writeback: AtomicBool,
    pub(super) report: Report,
}

/// Where the answer of a request goes that the engine has.
#[derive(Clone, Copy, Debug)]
struct Pending {
    status_at: Option<GuestAddress>,
    written: u32,
}

/// See the module.
pub(super) struct Ring {
    index: usize,
    virtqueue: SplitRing,
    place: Place,
    kick: File,
    track: Option<Track>,
    shared: Arc<Shared>,
    device: Arc<DeviceState>,
    map: Arc<GuestMap>,
    queue: Queue,
    parser: Parser,
    /// By first descriptor.
    pending: Vec<Option<Pending>>,
    under_way: usize,
    /// What the engine had no room for.
    waiting: Option<(u16, Request)>,
    /// The data of the request that is being submitted, or waits.
    pieces: Vec<Buf>,
    /// Requests that another server has left, to be done before others; the first one last.
    left_over: Vec<u16>,
    broken: bool,
}

impl Ring {
    /// Gets a ring ready, without taking anything from it.
    pub(super) fn new(setup: Setup) -> io::Result<Self> {
        let Setup { index, place, kick, event_idx, mut track, shared, device } = setup;
        let map = shared.memory();
        let mut virtqueue = SplitRing::locate(&place, &map, event_idx)?;
        let mut left_over = Vec::new();
        if let Some(track) = &mut track {
            left_over = track.recover(virtqueue.next_used());
            let taken = left_over.len() as u16;
            virtqueue.set_next_available(virtqueue.next_used().wrapping_add(taken));
            left_over.reverse();
        }
        let config = QueueConfig { memory: MEMORY, depth: u32::from(place.size) };
        let mut queue = device.volume.queue(config)?;
        queue.set_reads_in_place(true);
        Ok(Self {
            index,
            queue,
            pending: vec![None; usize::from(place.size)],
            under_way: 0,
            parser: Parser::new(),
            waiting: None,
            pieces: Vec::with_capacity(SEGMENTS_MAX as usize),
            left_over,
            broken: false,
            virtqueue,
            place,
            kick,
            track,
            shared,
            device,
            map,
        })
    }

    /// Serves until it is stopped. Returns the next request to be taken.
    pub(super) fn run(mut self) -> u16 {
        // Who served the ring before may have ended between an answer and its call.
        self.shared.call();
        loop {
            self.update_memory();
            let mut progress = self.take();
            if let Err(error) = self.queue.poll() {
                self.report(&format!("the volume's queue failed: {error}"));
                break;
            }
            progress |= self.finish();
            self.check_memory();
            self.call();
            if self.shared.is_stopped() && self.under_way == 0 && self.has_no_work() {
                break;
            }
            if !progress && let Err(error) = self.sleep() {
                self.report(&format!("cannot wait for requests: {error}"));
                break;
            }
        }
        self.virtqueue.next_available()
    }

    /// Whether nothing that was taken waits to be submitted.
    fn has_no_work(&self) -> bool {
        self.waiting.is_none() && (self.left_over.is_empty() || self.broken)
    }

    /// Looks for the ring again if the map of the memory has changed.
    fn update_memory(&mut self) {
        let Some(map) = self.shared.changed_memory() else { return };
        self.map = map;
        match self.virtqueue.relocate(&self.place, &self.map) {
            Ok(found) => self.virtqueue = found,
            Err(error) => self.fail(&error),
        }
    }

    /// Takes requests while the engine has room. Returns whether there was any.
    fn take(&mut self) -> bool {
        let mut any = false;
        loop {
            if let Some((head, request)) = self.waiting.take() {
                if !self.submit(head, request) {
                    return any;
                }
                any = true;
            }
            match self.next_head() {
                Ok(Some(head)) => self.parse(head),
                Ok(None) => return any,
                Err(broken) => {
                    self.fail(&broken);
                    return any;
                }
            }
        }
    }

    /// The next request to be carried out, if there is one.
    fn next_head(&mut self) -> Result<Option<u16>, Broken> {
        if self.broken {
            return Ok(None);
        }
        let head = match self.left_over.pop() {
            Some(head) => Some(head),
            None if self.shared.is_stopped() => None,
            None => self.virtqueue.take(&self.map)?,
        };
        let is_taken = |head: u16| self.pending.get(usize::from(head)).is_none_or(Option::is_some);
        if head.is_some_and(is_taken) {
            return Err(Broken::Twice);
        }
        Ok(head)
    }

    /// Reads a request, which waits then.
    fn parse(&mut self, head: u16) {
        let chain = self.virtqueue.chain(&self.map, head);
        let request = self.parser.parse(&self.map, chain, &mut self.pieces);
        if let Some(track) = &mut self.track {
            track.taken(head);
        }
        self.waiting = Some((head, request));
    }

    /// Hands a request to the engine, or answers it. Returns whether there was room; if not, it
    /// waits.
    fn submit(&mut self, head: u16, request: Request) -> bool {
        let Request { command, status_at, written } = request;
        let pending = Pending { status_at, written };
        let result = match command {
            Ok(Command::Id) => {
                let mut id = &self.device.serial[..];
                for piece in &mut self.pieces {
                    let (part, rest) = id.split_at(piece.len().min(id.len()));
                    piece[..part.len()].copy_from_slice(part);
                    id = rest;
                }
                self.pieces.clear();
                return self.answer(head, pending, Status::Ok);
            }
            Ok(command) => self.carry_out(head, command),
            Err(status) => return self.answer(head, pending, status),
        };
        match result {
            Ok(()) => {
                self.pending[usize::from(head)] = Some(pending);
                self.under_way += 1;
                true
            }
            Err(Rejected::Busy(_) | Rejected::BusyBorrowed) if self.under_way > 0 => {
                self.waiting = Some((head, request));
                false
            }
            Err(rejected) => {
                self.pieces.clear();
                let status = match rejected {
                    Rejected::NotSupported => Status::Unsupported,
                    _ => Status::IoErr,
                };
                self.answer(head, pending, status)
            }
        }
    }

    fn carry_out(&mut self, head: u16, command: Command) -> Result<(), Rejected> {
        let tag = u64::from(head);
        let fua = !self.device.writeback.load(Ordering::Relaxed);
        let (queue, pieces) = (&mut self.queue, &mut self.pieces);
        match command {
            Command::Read { offset } => queue.read_into(tag, offset, pieces),
            Command::Write { offset } => queue.write_pieces(tag, offset, pieces, fua),
            Command::Flush => queue.submit(tag, Op::Flush),
            Command::Discard { offset, len } => queue.submit(tag, Op::Discard { offset, len }),
            Command::WriteZeroes { offset, len, unmap } => {
                queue.submit(tag, Op::WriteZeroes { offset, len, fua, no_unmap: !unmap })
            }
            // Answered without the engine.
            Command::Id => Err(Rejected::NotSupported),
        }
    }

    /// Answers what the engine has finished. Returns whether there was any.
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
                // Its data may be nobody's.
                Ok(()) if self.check_memory() => Status::IoErr,
                Ok(()) => Status::Ok,
                Err(Errno::OPNOTSUPP) => Status::Unsupported,
                Err(_) => Status::IoErr,
            };
            self.answer(done.tag as u16, pending, status);
        }
        any
    }

    /// Stops if the front end has cut its memory off. Returns whether it has.
    fn check_memory(&mut self) -> bool {
        let is_cut_off = self.map.is_cut_off();
        if is_cut_off {
            self.fail(&"the front end has cut its memory off");
        }
        is_cut_off
    }

    /// Puts an answer into the ring. Always returns true: the request is done.
    fn answer(&mut self, head: u16, pending: Pending, status: Status) -> bool {
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
        true
    }

    /// Calls the guest if it wants to hear of the answers.
    fn call(&mut self) {
        match self.virtqueue.wants_call(&self.map) {
            Ok(true) => self.shared.call(),
            Ok(false) => {}
            Err(broken) => self.fail(&broken),
        }
    }

    /// Waits for a kick, an answer of the engine, or a change.
    fn sleep(&mut self) -> io::Result<()> {
        let takes_more = !self.broken && !self.shared.is_stopped() && self.waiting.is_none();
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
        if !self.queue.may_sleep() {
            return Ok(());
        }
        let (is_kicked, is_changed) = {
            let engine = self.queue.wait_fd();
            let mut fds = [
                PollFd::new(&*self.shared, PollFlags::IN),
                PollFd::new(&engine, PollFlags::IN),
                PollFd::new(&self.kick, PollFlags::IN),
            ];
            let fds = if takes_more { &mut fds[..] } else { &mut fds[..2] };
            match poll(fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let ready = |fd: Option<&PollFd<'_>>| fd.is_some_and(|fd| !fd.revents().is_empty());
            (ready(fds.get(2)), ready(fds.first()))
        };
        if is_changed {
            self.shared.clear_wake();
        }
        if is_kicked {
            // An event without a writer is useless, and always ready.
            let kicked = rustix::io::read(&self.kick, &mut [0; 8]);
            if !matches!(kicked, Ok(1..) | Err(Errno::AGAIN | Errno::INTR)) {
                self.fail(&"its kick descriptor is no event");
            }
        }
        if takes_more && let Err(broken) = self.virtqueue.need_no_kick(&self.map) {
            self.fail(&broken);
        }
        Ok(())
    }

    /// Takes nothing more from this ring, because of what the front end or the guest has done.
    fn fail(&mut self, reason: &dyn std::fmt::Display) {
        if !self.broken {
            self.broken = true;
            self.report(&format!("stopped: {reason}"));
            self.shared.tell_broken();
        }
    }

    fn report(&self, what: &str) {
        (self.device.report)(&format!("vhost-user ring {}: {what}", self.index));
    }
}
