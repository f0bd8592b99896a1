//! The half of a connection that takes requests: from bytes to operations.

use std::io;

use rustix::net::RecvFlags;
use ucrypt_engine::{Buf, Io};

use super::{Connection, ConnectionError, Kind, Pending, Zeroing};
use crate::nbd::extents::join_extents;
use crate::nbd::outbox::Reply;
use crate::nbd::protocol::PAYLOAD_BYTES_MAX;
use crate::nbd::request::{Command, NO_MEMORY, Refusal, Request, Terms};

/// Writes with at least this many bytes of payload are received in place.
const BULK_BYTES_MIN: u32 = 16 << 10;
/// Bytes to submit to the engine before the loop looks for completions, so that the first replies
/// leave while the engine works on the rest.
const ROUND_BYTES: usize = 256 << 10;
/// Most extents in one block status reply; the client asks again from where it ends. The reply, of 8
/// bytes each, is not in the queue's memory: those of all requests of a connection take 128 KiB.
const EXTENTS_MAX: usize = 128;
/// Longest payload of a refused write that is skipped, in bytes. A client that announces more has lost
/// its way, and would keep the server busy for nothing.
const SKIPPED_MAX: u32 = 2 * PAYLOAD_BYTES_MAX;

/// The part of the stream that comes next.
pub(super) enum Incoming {
    /// A request.
    Header,
    /// The payload of a write that has no buffer yet.
    WantsBuffer { request: Request, fua: bool },
    /// The payload of a write.
    Data { request: Request, fua: bool, buffer: Buf, filled: usize },
    /// The payload of a refused write; the reply goes out when the payload is over.
    Refused { cookie: u64, refusal: Refusal, left: usize },
}

/// What taking requests waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// For bytes from the client.
    Input,
    /// For a reply to leave, or an operation to complete.
    Room,
    /// For nothing: the next step can follow at once.
    Nothing,
}

impl Connection<'_> {
    /// Takes requests until the input is used up, something is full, or the round has enough bytes.
    /// Returns whether there was any progress.
    pub(super) fn take_requests(&mut self) -> bool {
        let mut progress = false;
        self.round_bytes = 0;
        while self.input_open && self.round_bytes < ROUND_BYTES {
            self.need = self.step();
            match self.need {
                Need::Nothing => progress = true,
                Need::Room => break,
                Need::Input if !self.try_input && (self.is_tcp || !self.idle()) => break,
                Need::Input => progress |= self.receive(),
            }
        }
        progress
    }

    /// Receives what is there; false if there is nothing. Sleeps only if there is nothing else to
    /// do; a server that stops ends this sleep by shutting the socket down for reading. On TCP that would
    /// reset the connection as soon as more requests come, and the client would lose its last replies.
    fn receive(&mut self) -> bool {
        let flags = if self.idle() && !self.is_tcp {
            self.queue.rest();
            RecvFlags::empty()
        } else {
            RecvFlags::DONTWAIT
        };
        let payload = match &mut self.incoming {
            Incoming::Data { buffer, filled, .. } => &mut buffer[*filled..],
            _ => &mut [],
        };
        match self.inbox.receive(self.socket, payload, self.bulk, flags) {
            Ok(received) => {
                if let Incoming::Data { filled, .. } = &mut self.incoming {
                    *filled += received.to_payload;
                }
                self.try_input = !received.drained;
                if received.count == 0 {
                    self.close_input();
                }
                true
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => true,
            Err(error) => {
                self.try_input = false;
                if error.kind() == io::ErrorKind::WouldBlock {
                    return false;
                }
                self.fail(ConnectionError::Socket(error));
                true
            }
        }
    }

    /// Takes the next step that the received bytes allow.
    fn step(&mut self) -> Need {
        let full = self.full();
        match &mut self.incoming {
            Incoming::Header if full => Need::Room,
            Incoming::Header => match self.inbox.take_header() {
                Some(header) => {
                    match Request::parse(&header) {
                        Some(request) => self.begin(request),
                        None => self.fail(ConnectionError::Violation("bad request magic")),
                    }
                    Need::Nothing
                }
                None => Need::Input,
            },
            Incoming::WantsBuffer { request, fua } => {
                let (request, fua) = (*request, *fua);
                if let Some(buffer) = self.queue.alloc(request.length as usize) {
                    self.incoming = Incoming::Data { request, fua, buffer, filled: 0 };
                } else if self.idle() {
                    self.refuse(request, NO_MEMORY);
                } else {
                    return Need::Room;
                }
                Need::Nothing
            }
            Incoming::Data { buffer, filled, .. } => {
                *filled += self.inbox.take_into(&mut buffer[*filled..]);
                if *filled < buffer.len() {
                    return Need::Input;
                }
                self.finish_write();
                Need::Nothing
            }
            Incoming::Refused { cookie, refusal, left } => {
                let count = (*left).min(self.inbox.bytes().len());
                self.inbox.consume(count);
                // What is under way gets on meanwhile, for which other clients may wait.
                self.round_bytes += count;
                *left -= count;
                if *left > 0 {
                    return Need::Input;
                }
                let reply = Reply::error(self.structured, *cookie, *refusal);
                self.incoming = Incoming::Header;
                self.reply(reply);
                Need::Nothing
            }
        }
    }

    /// Starts a request whose header was just taken.
    fn begin(&mut self, request: Request) {
        self.bulk = request.payload_len() >= BULK_BYTES_MIN;
        // The volume may have become smaller than the client was promised.
        let size = self.terms.size.min(self.volume.info().len);
        let command = match request.check(&Terms { size, ..self.terms }) {
            Ok(command) => command,
            Err(refusal) => return self.refuse(request, refusal),
        };
        if request.length == 0 && !matches!(command, Command::Flush | Command::Disconnect) {
            return self.reply(self.nothing(command, request.cookie));
        }
        let (offset, len) = (request.offset, u64::from(request.length));
        let (kind, io) = match command {
            Command::Disconnect => return self.close_input(),
            Command::BlockStatus { one } => return self.block_status(request, one),
            Command::Write { fua } => {
                self.incoming = Incoming::WantsBuffer { request, fua };
                return;
            }
            Command::Flush => (Kind::Plain, Io::Flush),
            Command::Read => {
                self.round_bytes += len as usize;
                (Kind::Read { offset }, Io::read(offset, len as usize))
            }
            Command::Trim { fua } => {
                let kind = if fua { Kind::TrimThenFlush } else { Kind::Plain };
                (kind, Io::Discard { offset, len })
            }
            Command::WriteZeroes { fua, no_hole, fast } => {
                let all = Zeroing { offset, len, fua, no_unmap: no_hole, fast };
                (Kind::Zeroes(all), all.io())
            }
        };
        self.start(Pending { cookie: request.cookie, kind }, io);
    }

    /// The reply to a command on no bytes: success, without doing anything.
    fn nothing(&self, command: Command, cookie: u64) -> Reply<Buf> {
        match command {
            Command::Read => Reply::read_nothing(self.structured, cookie),
            _ => Reply::success(cookie),
        }
    }

    /// Submits the write whose payload is complete to the engine.
    fn finish_write(&mut self) {
        let incoming = std::mem::replace(&mut self.incoming, Incoming::Header);
        if let Incoming::Data { request, fua, buffer: data, .. } = incoming {
            self.round_bytes += data.len();
            let pending = Pending { cookie: request.cookie, kind: Kind::Plain };
            self.start(pending, Io::write(request.offset, data, fua));
        }
    }

    fn block_status(&mut self, request: Request, one: bool) {
        let most = if one { 1 } else { EXTENTS_MAX };
        let extents = self.volume.extents(request.offset, u64::from(request.length), most);
        let joined = join_extents(&extents, request.length, most);
        self.reply(Reply::block_status(request.cookie, &joined));
    }

    /// Answers with an error after skipping the payload, if there is one.
    fn refuse(&mut self, request: Request, refusal: Refusal) {
        if request.payload_len() > SKIPPED_MAX {
            return self.fail(ConnectionError::Violation("a refused write is too long to skip"));
        }
        // The payload goes nowhere: it is received in large pieces, not as what is read ahead.
        self.bulk = false;
        let left = request.payload_len() as usize;
        self.incoming = Incoming::Refused { cookie: request.cookie, refusal, left };
    }
}
