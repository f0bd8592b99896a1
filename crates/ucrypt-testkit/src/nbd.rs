//! A port to an NBD server over one connection. The client's side of the protocol was written from
//! its specification (`doc/proto.md` of the NBD project), not from the server's code.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use ucrypt_backend::Errno;

use crate::model::Tag;
use crate::operation::{Kind, Operation};
use crate::port::{Completion, Port, Submitted};

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const GO: u32 = 7;
const STRUCTURED_REPLY: u32 = 8;

/// Options of a connection.
#[derive(Debug, Clone, Copy)]
pub struct NbdOptions {
    /// Whether to request structured replies.
    pub structured: bool,
    /// Maximum bytes of unsent requests, which the socket has not taken, before submissions are
    /// refused.
    pub unsent_max: usize,
}

/// A port to an NBD server; see the module's comment.
pub struct NbdPort {
    socket: UnixStream,
    /// Requests that the socket has not taken yet.
    unsent: Vec<u8>,
    /// Received bytes of incomplete replies.
    received: Vec<u8>,
    under_way: HashMap<Tag, Asked>,
    options: NbdOptions,
}

struct Asked {
    operation: Operation,
    /// For a read: its bytes so far, and how many have arrived.
    data: Vec<u8>,
    come: usize,
    error: Option<Errno>,
}

fn broken(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

impl NbdPort {
    /// Connects and negotiates.
    ///
    /// # Errors
    /// The system's error, or `InvalidData` if the other end does not speak NBD.
    pub fn connect(path: &Path, options: NbdOptions) -> io::Result<Self> {
        let mut socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut greeting = [0; 18];
        socket.read_exact(&mut greeting)?;
        if &greeting[..16] != b"NBDMAGICIHAVEOPT" {
            return Err(broken("the greeting is not NBD's"));
        }
        // Fixed newstyle, no zeroes.
        socket.write_all(&3u32.to_be_bytes())?;
        if options.structured {
            negotiate(&mut socket, STRUCTURED_REPLY, &[])?;
        }
        // The default export, without requesting information.
        negotiate(&mut socket, GO, &[0; 6])?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            unsent: Vec::new(),
            received: Vec::new(),
            under_way: HashMap::new(),
            options,
        })
    }

    fn send(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.socket.write(&self.unsent) {
                Ok(0) => return Err(broken("the server takes nothing any more")),
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut bytes = vec![0; 256 << 10];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => return Err(broken("the server has hung up")),
                Ok(count) => self.received.extend(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes one reply, or one chunk of a reply, from the front of the received bytes. `false`: it
    /// is incomplete.
    fn take_reply(&mut self, done: &mut Vec<Completion>) -> io::Result<bool> {
        let Some(magic) = u32_at(&self.received, 0) else { return Ok(false) };
        let (used, ended) = match magic {
            0x6744_6698 => {
                let (Some(error), Some(cookie)) =
                    (u32_at(&self.received, 4), u64_at(&self.received, 8))
                else {
                    return Ok(false);
                };
                let asked = self.asked(cookie)?;
                let len = if error == 0 { asked.data.len() } else { 0 };
                if self.received.len() < 16 + len {
                    return Ok(false);
                }
                let bytes = self.received[16..16 + len].to_vec();
                let asked = self.asked(cookie)?;
                asked.data[..len].copy_from_slice(&bytes);
                asked.come += len;
                asked.error = (error != 0).then(|| Errno::from_raw_os_error(error.cast_signed()));
                (16 + len, Some(cookie))
            }
            0x668e_33ef => {
                let head = &self.received;
                let (Some(cookie), Some(len)) = (u64_at(head, 8), u32_at(head, 16)) else {
                    return Ok(false);
                };
                let used = 20 + len as usize;
                if head.len() < used {
                    return Ok(false);
                }
                let (last, kind) = (head[5] & 1 != 0, u16::from_be_bytes([head[6], head[7]]));
                let payload = head[20..used].to_vec();
                self.take_chunk(cookie, kind, &payload)?;
                (used, last.then_some(cookie))
            }
            other => return Err(broken(format!("no reply begins with {other:#x}"))),
        };
        self.received.drain(..used);
        if let Some(cookie) = ended {
            self.end(cookie, done)?;
        }
        Ok(true)
    }

    fn asked(&mut self, cookie: u64) -> io::Result<&mut Asked> {
        let asked = self.under_way.get_mut(&cookie);
        asked.ok_or_else(|| broken(format!("a reply to {cookie}, which is not under way")))
    }

    fn take_chunk(&mut self, cookie: u64, kind: u16, payload: &[u8]) -> io::Result<()> {
        let asked = self.asked(cookie)?;
        let place = |asked: &Asked, len: usize| {
            let at = u64_at(payload, 0)?.checked_sub(asked.operation.offset)? as usize;
            (at.checked_add(len)? <= asked.data.len()).then_some(at..at + len)
        };
        match kind {
            0 => {}
            1 => {
                let place = place(asked, payload.len().saturating_sub(8));
                let place = place.ok_or_else(|| broken("data outside of what was asked for"))?;
                asked.come += place.len();
                asked.data[place].copy_from_slice(&payload[8..]);
            }
            2 => {
                let len = u32_at(payload, 8).unwrap_or(0) as usize;
                let place = place(asked, len).ok_or_else(|| broken("a hole elsewhere"))?;
                asked.come += place.len();
                asked.data[place].fill(0);
            }
            kind if kind & 0x8000 != 0 => {
                let error = u32_at(payload, 0).unwrap_or(5);
                asked.error = Some(Errno::from_raw_os_error(error.cast_signed()));
            }
            other => return Err(broken(format!("a chunk of the unknown type {other}"))),
        }
        Ok(())
    }

    fn end(&mut self, cookie: u64, done: &mut Vec<Completion>) -> io::Result<()> {
        let Some(asked) = self.under_way.remove(&cookie) else { return Ok(()) };
        let result = asked.error.map_or(Ok(()), Err);
        if result.is_ok() && asked.come != asked.data.len() {
            return Err(broken(format!("{} bytes of {} came", asked.come, asked.data.len())));
        }
        let is_read = asked.operation.kind == Kind::Read && result.is_ok();
        done.push(Completion { tag: cookie, result, data: is_read.then_some(asked.data) });
        Ok(())
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Sends an option and reads its replies up to the acknowledgement.
fn negotiate(socket: &mut UnixStream, option: u32, data: &[u8]) -> io::Result<()> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    socket.write_all(&bytes)?;
    loop {
        let mut head = [0; 20];
        socket.read_exact(&mut head)?;
        let (kind, len) = (u32_at(&head, 12).unwrap_or(0), u32_at(&head, 16).unwrap_or(0));
        if u64_at(&head, 0) != Some(REPLY_MAGIC) || len > 4096 {
            return Err(broken("the reply to an option is not NBD's"));
        }
        socket.read_exact(&mut vec![0; len as usize])?;
        match kind {
            1 => return Ok(()),
            kind if kind & 1 << 31 != 0 => {
                return Err(broken(format!("option {option} is refused ({kind:#x})")));
            }
            _ => {}
        }
    }
}

impl Port for NbdPort {
    fn submit(&mut self, tag: Tag, operation: &Operation, data: &[u8]) -> Submitted {
        if self.unsent.len() > self.options.unsent_max {
            return Submitted::Busy;
        }
        let Operation { kind, offset, len } = *operation;
        let (command, flags) = match kind {
            Kind::Read => (0u16, 0),
            Kind::Write { fua } => (1, u16::from(fua)),
            Kind::Flush => (3, 0),
            Kind::Discard => (4, 0),
            // Every second one must leave the range allocated (NO_HOLE).
            Kind::WriteZeroes { fua } => (6, u16::from(fua) | ((tag % 2) as u16) << 1),
        };
        let Ok(length) = u32::try_from(len) else { return Submitted::Refused };
        self.unsent.extend(0x2560_9513u32.to_be_bytes());
        self.unsent.extend(flags.to_be_bytes());
        self.unsent.extend(command.to_be_bytes());
        self.unsent.extend(tag.to_be_bytes());
        self.unsent.extend(offset.to_be_bytes());
        self.unsent.extend(length.to_be_bytes());
        self.unsent.extend(data);
        let expected = if kind == Kind::Read { len as usize } else { 0 };
        let asked = Asked { operation: *operation, data: vec![0; expected], come: 0, error: None };
        self.under_way.insert(tag, asked);
        Submitted::Accepted
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> io::Result<()> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut sent = self.send();
        if wait && sent.is_ok() {
            let mut events = PollFlags::IN;
            events.set(PollFlags::OUT, !self.unsent.is_empty());
            let patience = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            let _ = poll(&mut [PollFd::new(&self.socket, events)], Some(&patience));
            sent = self.send();
        }
        // Answers that the server gave before it died count.
        let received = self.receive();
        while self.take_reply(done)? {}
        sent.and(received)
    }

    /// NBD has no request to cancel another.
    fn cancel(&mut self, _tag: Tag) {}

    fn describe(&self) -> String {
        format!(
            "the connection waits for {} replies; {} bytes are not sent, {} came of a reply",
            self.under_way.len(),
            self.unsent.len(),
            self.received.len()
        )
    }
}
