//! A client that speaks the protocol byte by byte, so that it can also break it. Its numbers come
//! from the protocol description and not from the server's code.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::harness::Harness;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISC: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const WRITE_ZEROES: u16 = 6;
pub(crate) const BLOCK_STATUS: u16 = 7;

pub(crate) const EIO: u32 = 5;
pub(crate) const EINVAL: u32 = 22;
pub(crate) const ENOSPC: u32 = 28;
pub(crate) const ENOTSUP: u32 = 95;

/// A reply of the transmission phase.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) cookie: u64,
    pub(crate) error: u32,
    /// Read data, or a structured reply's message, or the payload of a block status.
    pub(crate) data: Vec<u8>,
}

pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    structured: bool,
    cookie: u64,
    /// Lengths of the reads in flight: a simple reply does not carry them.
    reads: HashMap<u64, usize>,
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().expect("four bytes"))
}

fn be64(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
}

impl Client {
    /// Connects, takes the greeting and answers with `flags`.
    pub(crate) fn with_flags(harness: &Harness, flags: u32) -> Self {
        let stream = harness.connect();
        // A server that hangs must fail the test.
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        stream.set_write_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let mut client = Self { stream, structured: false, cookie: 0, reads: HashMap::new() };
        assert_eq!(&client.take(18)[..], b"NBDMAGICIHAVEOPT\0\x03");
        client.send(&flags.to_be_bytes());
        client
    }

    /// Connects as an up-to-date client.
    pub(crate) fn connect(harness: &Harness) -> Self {
        Self::with_flags(harness, 3)
    }

    /// A client that has finished the handshake, with simple replies.
    pub(crate) fn simple(harness: &Harness) -> Self {
        let mut client = Self::connect(harness);
        client.go();
        client
    }

    /// A client that has finished the handshake, with structured replies and block status.
    pub(crate) fn structured(harness: &Harness) -> Self {
        let mut client = Self::connect(harness);
        assert_eq!(client.option(8, &[]), [(1, vec![])]);
        client.structured = true;
        let query = b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation";
        let replies = client.option(10, query);
        assert_eq!(replies[0], (4, b"\0\0\0\x01base:allocation".to_vec()));
        client.go();
        client
    }

    /// Enters transmission with `GO`; returns the size and the transmission flags.
    pub(crate) fn go(&mut self) -> (u64, u16) {
        let replies = self.option(7, &[0; 6]);
        assert_eq!(replies.last(), Some(&(1, vec![])), "accepted");
        let info = replies.iter().find(|(_, data)| data.len() == 12 && data[..2] == [0, 0]);
        let data = &info.expect("NBD_INFO_EXPORT").1;
        (be64(&data[2..10]), u16::from_be_bytes([data[10], data[11]]))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("sent");
    }

    pub(crate) fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).expect("received");
        bytes
    }

    /// Whether the server has closed the connection, after anything that it still sent.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut rest = [0; 4096];
        loop {
            match self.stream.read(&mut rest) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return true,
                Err(_) => return false,
            }
        }
    }

    pub(crate) fn hang_up(self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Sends an option and takes its replies, including the final one.
    pub(crate) fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send(b"IHAVEOPT");
        self.send(&option.to_be_bytes());
        self.send(&(data.len() as u32).to_be_bytes());
        self.send(data);
        let mut replies = Vec::new();
        loop {
            let head = self.take(20);
            assert_eq!(be64(&head[..8]), 0x0003_e889_0455_65a9);
            assert_eq!(be32(&head[8..12]), option);
            let kind = be32(&head[12..16]);
            let data = self.take(be32(&head[16..20]) as usize);
            replies.push((kind, data));
            if kind == 1 || kind & 1 << 31 != 0 {
                return replies;
            }
        }
    }

    /// A request's 28 bytes.
    pub(crate) fn header(
        command: u16,
        flags: u16,
        cookie: u64,
        offset: u64,
        length: u32,
    ) -> Vec<u8> {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes
    }

    /// Sends a request without a payload; returns its cookie.
    pub(crate) fn request(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> u64 {
        self.cookie += 1;
        if command == READ {
            self.reads.insert(self.cookie, length as usize);
        }
        self.send(&Self::header(command, flags, self.cookie, offset, length));
        self.cookie
    }

    /// Sends so many reads from offset 0 in one message.
    pub(crate) fn request_reads(&mut self, count: usize, length: u32) {
        let mut bytes = Vec::new();
        for _ in 0..count {
            self.cookie += 1;
            self.reads.insert(self.cookie, length as usize);
            bytes.extend(Self::header(READ, 0, self.cookie, 0, length));
        }
        self.send(&bytes);
    }

    /// Sends a write; returns its cookie.
    pub(crate) fn request_write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u64 {
        let cookie = self.request(WRITE, flags, offset, data.len() as u32);
        self.send(data);
        cookie
    }

    /// Takes the next reply.
    pub(crate) fn reply(&mut self) -> Reply {
        let magic = be32(&self.take(4));
        if magic == 0x6744_6698 {
            let head = self.take(12);
            let (error, cookie) = (be32(&head[..4]), be64(&head[4..]));
            let read = self.reads.remove(&cookie).unwrap_or(0);
            assert!(!self.structured || read == 0, "a simple reply to a read");
            let data = if error == 0 { self.take(read) } else { vec![] };
            return Reply { cookie, error, data };
        }
        assert_eq!(magic, 0x668e_33ef);
        assert!(self.structured, "a structured reply was not negotiated");
        let head = self.take(16);
        assert_eq!(head[..2], [0, 1], "one chunk, the last");
        let kind = u16::from_be_bytes([head[2], head[3]]);
        let cookie = be64(&head[4..12]);
        let payload = self.take(be32(&head[12..16]) as usize);
        let read = self.reads.remove(&cookie);
        let (error, data) = match kind {
            0 => (0, vec![]),
            1 => {
                assert_eq!(payload.len() - 8, read.expect("a read"));
                (0, payload[8..].to_vec())
            }
            5 => (0, payload),
            0x8001 => {
                let length = usize::from(u16::from_be_bytes([payload[4], payload[5]]));
                assert_eq!(payload.len(), 6 + length);
                (be32(&payload[..4]), payload[6..].to_vec())
            }
            _ => panic!("a chunk of unknown type {kind}"),
        };
        Reply { cookie, error, data }
    }

    /// Sends a request and takes its reply. No other request may be in flight.
    pub(crate) fn ask(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> Reply {
        let cookie = self.request(command, flags, offset, length);
        let reply = self.reply();
        assert_eq!(reply.cookie, cookie);
        reply
    }

    /// Writes and waits; returns the error.
    pub(crate) fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        let cookie = self.request_write(flags, offset, data);
        let reply = self.reply();
        assert_eq!(reply.cookie, cookie);
        reply.error
    }

    /// Reads and waits; the read must succeed.
    pub(crate) fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        let reply = self.ask(READ, 0, offset, length);
        assert_eq!(reply.error, 0);
        reply.data
    }
}
