//! Replies: their wire format, and how many are sent at a time.
//!
//! Read data stays in the buffer that the engine filled and goes from there to the socket. Every
//! reply in the outbox belongs to a request that still counts against the connection's depth, so
//! the outbox is bounded however slowly the client reads.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Deref;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::protocol::{BASE_ALLOCATION_ID, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk};
use super::request::Refusal;

/// Most parts of replies that one system call sends.
const IOVECS_MAX: usize = 64;
/// Bytes of the longest head: a structured chunk's header and an offset.
const HEAD_BYTES_MAX: usize = 28;

/// The part of a reply behind its head.
pub(super) enum Payload<D> {
    None,
    Text(&'static str),
    Bytes(Vec<u8>),
    Data(D),
}

/// One reply, ready to be sent.
pub(super) struct Reply<D> {
    head: [u8; HEAD_BYTES_MAX],
    head_len: usize,
    payload: Payload<D>,
}

impl<D: Deref<Target = [u8]>> Reply<D> {
    fn new(parts: &[&[u8]], payload: Payload<D>) -> Self {
        let mut reply = Self { head: [0; HEAD_BYTES_MAX], head_len: 0, payload };
        reply.append(parts);
        reply
    }

    /// Appends to the head.
    fn append(&mut self, parts: &[&[u8]]) {
        for part in parts {
            let end = self.head_len + part.len();
            self.head[self.head_len..end].copy_from_slice(part);
            self.head_len = end;
        }
    }

    fn simple(cookie: u64, error: u32, payload: Payload<D>) -> Self {
        let magic = SIMPLE_REPLY_MAGIC.to_be_bytes();
        Self::new(&[&magic, &error.to_be_bytes(), &cookie.to_be_bytes()], payload)
    }

    /// The only, and so last, chunk of a structured reply. `fields` precede the payload.
    fn structured(cookie: u64, kind: u16, fields: &[&[u8]], payload: Payload<D>) -> Self {
        let mut reply = Self::new(
            &[
                &STRUCTURED_REPLY_MAGIC.to_be_bytes(),
                &chunk::FLAG_DONE.to_be_bytes(),
                &kind.to_be_bytes(),
                &cookie.to_be_bytes(),
                &[0; 4],
            ],
            payload,
        );
        reply.append(fields);
        let length = (reply.len() - 20) as u32;
        reply.head[16..20].copy_from_slice(&length.to_be_bytes());
        reply
    }

    /// Success without data; a simple reply is valid whatever was negotiated.
    pub(super) fn success(cookie: u64) -> Self {
        Self::simple(cookie, 0, Payload::None)
    }

    /// The data of a read.
    pub(super) fn read(structured: bool, cookie: u64, offset: u64, data: D) -> Self {
        if !structured {
            return Self::simple(cookie, 0, Payload::Data(data));
        }
        let offset = offset.to_be_bytes();
        Self::structured(cookie, chunk::OFFSET_DATA, &[&offset], Payload::Data(data))
    }

    /// The reply to a read of no bytes, without data: a data chunk must not be empty.
    pub(super) fn read_nothing(structured: bool, cookie: u64) -> Self {
        if !structured {
            return Self::success(cookie);
        }
        Self::structured(cookie, chunk::NONE, &[], Payload::None)
    }

    /// An error, with its reason where the client can take it.
    pub(super) fn error(structured: bool, cookie: u64, refusal: Refusal) -> Self {
        let error = refusal.error as u32;
        if !structured {
            return Self::simple(cookie, error, Payload::None);
        }
        let fields = [&error.to_be_bytes()[..], &(refusal.message.len() as u16).to_be_bytes()];
        Self::structured(cookie, chunk::ERROR, &fields, Payload::Text(refusal.message))
    }

    /// The extents of a block status request: length in bytes and state of each.
    pub(super) fn block_status(cookie: u64, extents: &[(u32, u32)]) -> Self {
        let mut bytes = Vec::with_capacity(extents.len() * 8);
        for (length, state) in extents {
            bytes.extend(length.to_be_bytes());
            bytes.extend(state.to_be_bytes());
        }
        let id = BASE_ALLOCATION_ID.to_be_bytes();
        Self::structured(cookie, chunk::BLOCK_STATUS, &[&id], Payload::Bytes(bytes))
    }

    fn payload(&self) -> &[u8] {
        match &self.payload {
            Payload::None => &[],
            Payload::Text(text) => text.as_bytes(),
            Payload::Bytes(bytes) => bytes,
            Payload::Data(data) => data,
        }
    }

    fn len(&self) -> usize {
        self.head_len + self.payload().len()
    }
}

/// Whether a send has emptied the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// The outbox is empty.
    All,
    /// The socket is full; some bytes may have gone.
    Full,
}

/// The replies that are not sent yet, in the order of sending.
pub(super) struct Outbox<D> {
    replies: VecDeque<Reply<D>>,
    /// Bytes of the first reply that are sent already.
    sent: usize,
    /// Bytes of all replies, including those that are sent already.
    bytes: usize,
}

impl<D: Deref<Target = [u8]>> Outbox<D> {
    pub(super) fn new(depth: usize) -> Self {
        Self { replies: VecDeque::with_capacity(depth), sent: 0, bytes: 0 }
    }

    pub(super) fn push(&mut self, reply: Reply<D>) {
        self.bytes += reply.len();
        self.replies.push_back(reply);
    }

    pub(super) fn len(&self) -> usize {
        self.replies.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Bytes that are not sent.
    pub(super) fn bytes(&self) -> usize {
        self.bytes - self.sent
    }

    /// Drops all replies, because nobody takes them any more.
    pub(super) fn clear(&mut self) {
        self.replies.clear();
        (self.sent, self.bytes) = (0, 0);
    }

    /// Sends as much as the socket takes without waiting.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<Sent> {
        while !self.is_empty() {
            let mut parts = [IoSlice::new(&[]); IOVECS_MAX];
            let (count, asked) = self.parts(&mut parts);
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let mut ancillary = SendAncillaryBuffer::default();
            let sent = match sendmsg(socket, &parts[..count], &mut ancillary, flags) {
                Ok(sent) => sent,
                Err(Errno::AGAIN) => return Ok(Sent::Full),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            self.advance(sent);
            if sent < asked {
                return Ok(Sent::Full);
            }
        }
        Ok(Sent::All)
    }

    /// Fills `parts` from the front; returns how many there are and their bytes.
    fn parts<'a>(&'a self, parts: &mut [IoSlice<'a>; IOVECS_MAX]) -> (usize, usize) {
        let (mut count, mut bytes, mut skip) = (0, 0, self.sent);
        for reply in &self.replies {
            let (head, payload) = (&reply.head[..reply.head_len], reply.payload());
            // Only the first reply can be sent in part.
            let rest = [
                &head[skip.min(head.len())..],
                &payload[skip.saturating_sub(head.len()).min(payload.len())..],
            ];
            skip = 0;
            for part in rest.into_iter().filter(|part| !part.is_empty()) {
                if count == IOVECS_MAX {
                    return (count, bytes);
                }
                parts[count] = IoSlice::new(part);
                count += 1;
                bytes += part.len();
            }
        }
        (count, bytes)
    }

    fn advance(&mut self, count: usize) {
        self.sent += count;
        while let Some(first) = self.replies.front() {
            let length = first.len();
            if self.sent < length {
                break;
            }
            self.sent -= length;
            self.bytes -= length;
            self.replies.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::protocol::NbdError;
    use super::*;

    type Box = Outbox<Vec<u8>>;

    /// Takes the outbox's bytes in pieces of at most `piece`, as a slow socket would.
    fn drain(outbox: &mut Box, piece: usize) -> Vec<u8> {
        let mut wire = Vec::new();
        while !outbox.is_empty() {
            let mut parts = [IoSlice::new(&[]); IOVECS_MAX];
            let (count, bytes) = outbox.parts(&mut parts);
            let all: Vec<u8> = parts[..count].iter().flat_map(|part| part.to_vec()).collect();
            assert_eq!(all.len(), bytes);
            let now = piece.min(bytes);
            wire.extend(&all[..now]);
            outbox.advance(now);
        }
        wire
    }

    fn one(reply: Reply<Vec<u8>>) -> Vec<u8> {
        let mut outbox = Box::new(1);
        outbox.push(reply);
        drain(&mut outbox, usize::MAX)
    }

    #[test]
    fn simple_replies_have_the_layout_of_the_protocol() {
        let head = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let cookie = 0x0102_0304_0506_0708;
        assert_eq!(one(Reply::success(cookie)), head);
        assert_eq!(one(Reply::read_nothing(false, cookie)), head);
        let data = one(Reply::read(false, cookie, 512, b"data".to_vec()));
        assert_eq!(data, [&head[..], b"data"].concat());
        let refusal = Refusal { error: NbdError::NoSpc, message: "full" };
        let mut failed = head;
        failed[7] = 28;
        assert_eq!(one(Reply::error(false, cookie, refusal)), failed);
    }

    #[test]
    fn structured_replies_have_the_layout_of_the_protocol() {
        let head = |kind: [u8; 2], length: u8| {
            let mut head = vec![0x66, 0x8e, 0x33, 0xef, 0, 1, kind[0], kind[1]];
            head.extend([0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, length]);
            head
        };
        assert_eq!(one(Reply::read_nothing(true, 9)), head([0, 0], 0));
        let data = one(Reply::read(true, 9, 0x0203, b"data".to_vec()));
        let expected = [&head([0, 1], 12)[..], &[0, 0, 0, 0, 0, 0, 2, 3], b"data"].concat();
        assert_eq!(data, expected);
        let refusal = Refusal { error: NbdError::Inval, message: "why" };
        let expected = [&head([0x80, 1], 9)[..], &[0, 0, 0, 22, 0, 3], b"why"].concat();
        assert_eq!(one(Reply::error(true, 9, refusal)), expected);
        let status = one(Reply::block_status(9, &[(4096, 3)]));
        let expected =
            [&head([0, 5], 12)[..], &[0, 0, 0, 1], &[0, 0, 16, 0], &[0, 0, 0, 3]].concat();
        assert_eq!(status, expected);
    }

    #[test]
    fn replies_survive_sends_of_any_size() {
        let fill = |outbox: &mut Box| {
            for cookie in 0..100 {
                outbox.push(Reply::success(cookie));
                outbox.push(Reply::read(true, cookie, cookie, vec![cookie as u8; 40]));
            }
        };
        let mut outbox = Box::new(0);
        fill(&mut outbox);
        let whole = drain(&mut outbox, usize::MAX);
        assert_eq!(whole.len(), 100 * (16 + 28 + 40));
        for piece in [1, 15, 16, 17, 43, 44, 45, 1000] {
            fill(&mut outbox);
            assert_eq!(drain(&mut outbox, piece), whole, "pieces of {piece}");
        }
    }
}
