//! The transmission phase of one connection: one thread, one socket, one engine queue.
//!
//! The thread never holds more than its queue's memory and depth: when no buffer or no place is
//! free, it stops reading the socket, and the client waits. It sleeps only when neither the socket
//! nor the queue can go on. With nothing in flight it sleeps in the receive itself, so a client at
//! queue depth 1 costs one receive and one send per request.
//!
//! The end of the input (a disconnect, the end of the stream, a violation, a server that stops) does
//! not end the work: every request that was taken is completed, and its reply is sent if the client
//! still takes it. If the client takes no replies, reads are cancelled.

mod intake;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use ucrypt_engine::{Buf, Done, Errno, Io, Queue, QueueConfig, Rejected, Volume};

use super::inbox::Inbox;
use super::outbox::{Outbox, Reply, Sent};
use super::request::{NO_MEMORY, Refusal, Terms};
use crate::backlog::Submitter;
use crate::stop::Stop;
use crate::table::Table;
use crate::waiter::{EventFlags, Waiter};
use intake::{Incoming, Need};

/// How long a connection whose input has ended waits for the client to take a part of its replies.
const LINGER: Duration = Duration::from_secs(5);
/// How long it waits for the client to take all of them, while the server goes on.
const LINGER_MAX: Duration = Duration::from_secs(20);

/// Why a connection ended, unless the client ended it.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    /// The client sent something that is not NBD.
    #[error("the client broke the protocol: {0}")]
    Violation(&'static str),
    /// The handshake was not completed in time.
    #[error("the handshake took longer than {} s", .0.as_secs())]
    HandshakeTimeout(Duration),
    /// The volume gave no queue, or the queue broke.
    #[error("cannot serve the volume: {0}")]
    Queue(io::Error),
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Socket(#[from] io::Error),
}

/// Bytes of replies to prepare while the client takes none: enough to go on at once when it does,
/// but few enough to be still in the cache when they leave.
const READY_BYTES_MAX: usize = 4 << 20;

/// Numbers of the descriptors that a connection watches beside its queue.
const SOCKET: usize = 0;
const STOP: usize = 1;

/// What a connection serves.
pub(super) struct Service {
    pub(super) volume: Arc<Volume>,
    pub(super) means: Means,
    /// What the client was promised.
    pub(super) terms: Terms,
    /// Structured replies were negotiated.
    pub(super) structured: bool,
    /// Most requests that are taken before the first reply has left.
    pub(super) depth: u32,
    pub(super) is_tcp: bool,
}

/// What a connection needs of the system.
pub(super) struct Means {
    queue: Queue,
    waiter: Waiter,
}

impl Means {
    /// # Errors
    /// The system has no memory or no descriptors left.
    pub(super) fn new(volume: &Arc<Volume>, config: QueueConfig) -> io::Result<Self> {
        let queue = volume.queue(config)?;
        Ok(Self { waiter: Waiter::new(&queue)?, queue })
    }
}

/// What a reply needs of its request, kept while the request is in the engine.
#[derive(Clone, Copy)]
struct Pending {
    cookie: u64,
    kind: Kind,
}

/// What to do when the engine has completed the request.
#[derive(Clone, Copy)]
enum Kind {
    /// Send the data; the offset goes with it.
    Read { offset: u64 },
    /// Send the result.
    Plain,
    /// As `Plain`, once all of it is done.
    Zeroes(Zeroing),
    /// Flush, then send the result: the engine's discard has no FUA.
    TrimThenFlush,
}

/// Most bytes that are zeroed at a time: who writes a part of a sector nearby waits for no more than that.
const ZEROES_BYTES_MAX: u64 = 64 << 20;

/// What is left of a range to be zeroed, in bytes.
#[derive(Clone, Copy)]
struct Zeroing {
    offset: u64,
    len: u64,
    fua: bool,
    no_unmap: bool,
    fast: bool,
}

impl Zeroing {
    /// Length of the first piece: the next ones begin at whole sectors.
    fn piece(self) -> u64 {
        self.len.min(ZEROES_BYTES_MAX - self.offset % ZEROES_BYTES_MAX)
    }

    fn io(self) -> Io<'static> {
        let Self { offset, fua, no_unmap, fast, .. } = self;
        Io::WriteZeroes { offset, len: self.piece(), fua, no_unmap, fast }
    }

    /// What is left behind the first piece.
    fn rest(self) -> Option<Self> {
        let piece = self.piece();
        let (offset, len) = (self.offset + piece, self.len - piece);
        (len > 0).then_some(Self { offset, len, ..self })
    }
}

pub(super) struct Connection<'a> {
    socket: BorrowedFd<'a>,
    stop: &'a Stop,
    volume: Arc<Volume>,
    queue: Queue,
    terms: Terms,
    structured: bool,
    depth: usize,
    inbox: Inbox,
    incoming: Incoming,
    need: Need,
    /// The socket may have bytes, so a receive is worth a system call.
    try_input: bool,
    /// Bytes that were submitted to the engine in this round of the loop.
    round_bytes: usize,
    /// The last request was a large write, so the next one probably is.
    bulk: bool,
    pending: Table<Pending>,
    /// Requests for which the engine had no room, in order; all of them are in `pending` too.
    backlog: VecDeque<(u64, Io<'static>)>,
    waiter: Waiter,
    outbox: Outbox<Buf>,
    /// The client does not keep up with the replies.
    socket_full: bool,
    /// Requests are still taken.
    input_open: bool,
    /// The client still takes replies.
    output_open: bool,
    failure: Option<ConnectionError>,
    linger: Option<Linger>,
    is_tcp: bool,
}

/// How long the client has to take its last replies.
struct Linger {
    /// Until the client must have taken more.
    give_up: Instant,
    /// Until it must have taken all.
    end: Instant,
}

impl Linger {
    fn new(now: Instant) -> Self {
        Self { give_up: now + LINGER, end: now + LINGER_MAX }
    }

    /// The client has taken a part.
    fn extend(&mut self, now: Instant) {
        self.give_up = self.end.min(now + LINGER);
    }

    /// The server is to end: what follows must not wait for a slow client.
    fn hurry(&mut self, now: Instant) {
        self.end = self.end.min(now + LINGER);
        self.give_up = self.give_up.min(self.end);
    }
}

impl<'a> Connection<'a> {
    pub(super) fn new(socket: &'a OwnedFd, stop: &'a Stop, service: Service) -> Self {
        let Service { volume, means, terms, structured, depth, is_tcp } = service;
        let Means { queue, waiter } = means;
        let places = depth as usize;
        Self {
            socket: socket.as_fd(),
            stop,
            volume,
            queue,
            terms,
            structured,
            depth: places,
            inbox: Inbox::new(),
            incoming: Incoming::Header,
            need: Need::Input,
            try_input: true,
            round_bytes: 0,
            bulk: false,
            pending: Table::new(depth),
            backlog: VecDeque::with_capacity(places),
            waiter,
            outbox: Outbox::new(places),
            socket_full: false,
            input_open: true,
            output_open: true,
            failure: None,
            linger: None,
            is_tcp,
        }
    }

    /// Serves until the input has ended and every request that was taken is done.
    pub(super) fn run(mut self) -> Result<(), ConnectionError> {
        loop {
            if self.stop.is_set() {
                self.close_input();
            }
            self.queue.set_holds_answers(!self.outbox.is_empty());
            let mut progress = self.submit_waiting();
            progress |= self.take_requests();
            self.queue.poll().map_err(ConnectionError::Queue)?;
            progress |= self.collect();
            progress |= self.send(Instant::now);
            if !self.input_open && self.idle() {
                self.hang_up();
                break;
            }
            if !progress {
                self.wait()?;
            }
        }
        self.failure.map_or(Ok(()), Err)
    }

    /// Whether nothing is in flight and nothing is left to send, so that no memory is held.
    fn idle(&self) -> bool {
        self.pending.len() == 0 && self.outbox.is_empty()
    }

    /// Whether no request can be taken now. A reply keeps its request's place until it is sent.
    fn full(&self) -> bool {
        !self.backlog.is_empty()
            || self.pending.len() + self.outbox.len() >= self.depth
            || self.socket_full && self.outbox.bytes() >= READY_BYTES_MAX
    }

    fn start(&mut self, pending: Pending, io: Io<'static>) {
        match self.pending.insert(pending) {
            Some(tag) => self.submit((tag, io)),
            None => self.reply(Reply::error(self.structured, pending.cookie, NO_MEMORY)),
        }
    }

    /// Takes the engine's completions. Returns whether there were any.
    fn collect(&mut self) -> bool {
        let mut progress = false;
        while let Some(Done { tag, result, data, .. }) = self.queue.next_done() {
            self.finish(tag, result, data);
            progress = true;
        }
        // The next request may be there. Behind a lone one it hardly ever is: it has yet to be answered.
        self.try_input |= progress && !(self.is_tcp && self.queue.alone().is_some());
        progress
    }

    fn finish(&mut self, tag: u64, result: Result<(), Errno>, data: Option<Buf>) {
        let Some(Pending { cookie, kind }) = self.pending.remove(tag) else { return };
        let reply = match (result, kind, data) {
            (Err(errno), ..) => Reply::error(self.structured, cookie, Refusal::from(errno)),
            (Ok(()), Kind::Read { offset }, Some(data)) => {
                Reply::read(self.structured, cookie, offset, data)
            }
            (Ok(()), Kind::Read { .. }, None) => {
                Reply::error(self.structured, cookie, Refusal::from(Errno::IO))
            }
            (Ok(()), Kind::Zeroes(done), _) => match done.rest().filter(|_| self.output_open) {
                Some(rest) => {
                    let pending = Pending { cookie, kind: Kind::Zeroes(rest) };
                    return self.start(pending, rest.io());
                }
                None => Reply::success(cookie),
            },
            (Ok(()), Kind::Plain, _) => Reply::success(cookie),
            (Ok(()), Kind::TrimThenFlush, _) => {
                return self.start(Pending { cookie, kind: Kind::Plain }, Io::Flush);
            }
        };
        self.reply(reply);
    }

    fn reply(&mut self, reply: Reply<Buf>) {
        if self.output_open {
            self.outbox.push(reply);
        }
    }

    /// Ends the input; once the work is done, the connection ends with this error.
    fn fail(&mut self, error: ConnectionError) {
        self.failure = Some(error);
        self.close_input();
    }

    /// Takes no more requests. Drops a request that has arrived only in part.
    fn close_input(&mut self) {
        self.input_open = false;
        self.incoming = Incoming::Header;
    }

    /// Sends no more replies, because nobody takes them. Cancels reads, and zeroing, which may take hours;
    /// all other requests are still completed.
    fn close_output(&mut self) {
        self.output_open = false;
        let Self { queue, pending, backlog, .. } = self;
        let is_in_vain =
            |pending: &Pending| matches!(pending.kind, Kind::Read { .. } | Kind::Zeroes(_));
        backlog.retain(|(tag, _)| {
            let keep = pending.get(*tag).is_some_and(|pending| !is_in_vain(pending));
            if !keep {
                pending.remove(*tag);
            }
            keep
        });
        queue.cancel(|tag| pending.get(tag).is_some_and(is_in_vain));
        self.outbox.clear();
        self.socket_full = false;
        self.close_input();
    }

    /// Sends as much as the socket takes; false if there was nothing to send or the socket is full.
    fn send(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if self.outbox.is_empty() {
            return false;
        }
        let before = self.outbox.bytes();
        match self.outbox.send(self.socket) {
            Ok(sent) => self.socket_full = sent == Sent::Full,
            Err(_) => self.close_output(),
        }
        if let Some(linger) = self.linger.as_mut().filter(|_| self.outbox.bytes() < before) {
            linger.extend(now());
        }
        !self.socket_full
    }

    /// Sleeps until the socket or the queue has something new, or the server is to stop.
    fn wait(&mut self) -> Result<(), ConnectionError> {
        let stopped = self.stop.is_set();
        let left = self.time_to_linger(stopped, Instant::now);
        // After a sleep the loop has tried to send: a socket takes bytes before it tells so.
        if left == Some(Duration::ZERO) {
            self.close_output();
            return Ok(());
        }
        let mut events = EventFlags::empty();
        events.set(EventFlags::IN, self.input_open && self.need == Need::Input);
        events.set(EventFlags::OUT, !self.outbox.is_empty());
        self.waiter.watch(SOCKET, self.socket, events)?;
        // Stays readable once it is set, so it is watched only until that is known.
        let watches_stop = self.input_open || !stopped;
        let stop = if watches_stop { EventFlags::IN } else { EventFlags::empty() };
        self.waiter.watch(STOP, self.stop, stop)?;
        let try_input = &mut self.try_input;
        *try_input = false;
        self.waiter.sleep(&mut self.queue, left, |number, flags| {
            // A receive also takes note of a hang-up.
            *try_input |= number == SOCKET && flags != EventFlags::OUT;
        })?;
        Ok(())
    }

    /// Lets a client on TCP take its last replies. The system drops those if the socket is closed while
    /// requests are unread or still come; so they are read, until the client has closed its end or as long
    /// as it may take for replies.
    fn hang_up(&mut self) {
        if !self.is_tcp || !self.output_open || shutdown(self.socket, Shutdown::Write).is_err() {
            return;
        }
        let now = Instant::now();
        let until = self.linger.as_ref().map_or(now + LINGER, |linger| linger.give_up);
        let mut requests = [0; 4096];
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            match recv(self.socket, &mut requests, RecvFlags::DONTWAIT) {
                Ok((_, 1..)) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let limit = Timespec::try_from(left).ok();
                    // Whatever this returns, the loop looks again.
                    let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], limit.as_ref());
                }
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// How long to wait for the client to take its last replies; `None`: without a limit.
    fn time_to_linger(&mut self, stopped: bool, now: impl FnOnce() -> Instant) -> Option<Duration> {
        if self.input_open || self.queue.in_flight() > 0 || self.outbox.is_empty() {
            return None;
        }
        let now = now();
        let linger = self.linger.get_or_insert_with(|| Linger::new(now));
        if stopped {
            linger.hurry(now);
        }
        Some(linger.give_up.saturating_duration_since(now))
    }
}

impl Submitter for Connection<'_> {
    type Request = (u64, Io<'static>);

    fn backlog(&mut self) -> &mut VecDeque<Self::Request> {
        &mut self.backlog
    }

    fn offer(&mut self, (tag, io): Self::Request) -> Result<(), Self::Request> {
        match self.queue.submit(tag, io) {
            Ok(()) => {}
            Err(Rejected::Busy(io)) => return Err((tag, io)),
            Err(rejected) => {
                let error = rejected.errno().unwrap_or(Errno::NOMEM);
                self.finish(tag, Err(error), None);
            }
        }
        Ok(())
    }

    fn awaits_room(&self) -> bool {
        self.queue.in_flight() > 0 || !self.outbox.is_empty()
    }

    fn give_up(&mut self, (tag, _): Self::Request) {
        self.queue.given_up();
        self.finish(tag, Err(Errno::NOMEM), None);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use ucrypt_engine::VolumeOptions;

    use super::*;

    fn volume() -> Arc<Volume> {
        let memory = Arc::new(ucrypt_backend::memory(1 << 20).expect("memory"));
        Arc::new(Volume::raw(memory, VolumeOptions::default()).expect("a volume"))
    }

    /// A connection whose input has ended, with more to say than its socket takes.
    fn with_last_replies<'a>(socket: &'a OwnedFd, stop: &'a Stop) -> Connection<'a> {
        const LEN: usize = 8 << 20;
        let volume = volume();
        let queue = QueueConfig::new(2 * LEN, 4);
        let service = Service {
            means: Means::new(&volume, queue).expect("a queue"),
            volume,
            terms: Terms { size: 1 << 20, flags: 0, block_status: false, fast_zero: false },
            structured: false,
            depth: 4,
            is_tcp: false,
        };
        let mut connection = Connection::new(socket, stop, service);
        let data = connection.queue.alloc(LEN).expect("memory");
        connection.reply(Reply::read(false, 1, 0, data));
        connection.close_input();
        connection
    }

    #[test]
    fn a_connection_gives_a_client_more_time_when_it_takes_a_part_and_only_then() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let (ours, stop) = (OwnedFd::from(ours), Stop::new().expect("an eventfd"));
        let mut connection = with_last_replies(&ours, &stop);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let left = |connection: &mut Connection<'_>, seconds, stopped| {
            connection.time_to_linger(stopped, || at(seconds)).expect("a limit").as_secs()
        };
        assert!(!connection.send(|| at(0)), "the socket is full");
        assert_eq!(left(&mut connection, 0, false), 5);
        assert!(!connection.send(|| at(4)));
        assert_eq!(left(&mut connection, 4, false), 1, "the client takes nothing");
        let mut part = vec![0; 128 << 10];
        theirs.read_exact(&mut part).expect("replies");
        connection.send(|| at(4));
        assert_eq!(left(&mut connection, 4, false), 5, "it has taken a part");
        assert_eq!(left(&mut connection, 6, false), 3);
        // The server stops: 5 s from there, whatever the client takes.
        assert_eq!(left(&mut connection, 6, true), 3);
        theirs.read_exact(&mut part).expect("replies");
        connection.send(|| at(8));
        assert_eq!(left(&mut connection, 8, true), 3);
        assert_eq!(left(&mut connection, 11, true), 0);
    }

    #[test]
    fn a_client_that_takes_its_last_replies_has_more_time_but_not_for_ever() {
        let start = Instant::now();
        let mut linger = Linger::new(start);
        assert_eq!(linger.give_up, start + LINGER);
        for seconds in [4, 8, 12] {
            let now = start + Duration::from_secs(seconds);
            linger.extend(now);
            assert_eq!(linger.give_up, now + LINGER);
        }
        linger.extend(start + Duration::from_secs(19));
        assert_eq!(linger.give_up, start + LINGER_MAX);
    }
}
