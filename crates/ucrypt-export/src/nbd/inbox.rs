//! The bytes that have come from the client but are not parsed yet.
//!
//! One receive takes many small requests. The payload of a large write goes directly into its
//! buffer instead, and only the next header is read ahead, so large data is not copied here.

use std::io::{self, IoSliceMut};
use std::os::fd::BorrowedFd;

use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};

use super::protocol::REQUEST_LEN;

/// Most bytes that one call takes when requests are small.
const CAPACITY: usize = 64 << 10;

pub(super) struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; CAPACITY].into_boxed_slice(), start: 0, end: 0 }
    }

    /// The bytes that are there.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Drops the first `count` bytes, or all if there are fewer.
    pub(super) fn consume(&mut self, count: usize) {
        self.start = self.end.min(self.start + count);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Takes the header of the next request, if it is complete.
    pub(super) fn take_header(&mut self) -> Option<[u8; REQUEST_LEN]> {
        let header = *self.bytes().first_chunk()?;
        self.consume(REQUEST_LEN);
        Some(header)
    }

    /// Moves bytes into `buffer`, as many as there are or fit; returns their number.
    pub(super) fn take_into(&mut self, buffer: &mut [u8]) -> usize {
        let count = buffer.len().min(self.bytes().len());
        buffer[..count].copy_from_slice(&self.bytes()[..count]);
        self.consume(count);
        count
    }

    /// Receives into `payload` first and then into the inbox: one header with `bulk`, otherwise as
    /// much as there is room for. Returns the number of bytes for each, and whether fewer came than
    /// were asked for, which means that the socket is empty.
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        payload: &mut [u8],
        bulk: bool,
        flags: RecvFlags,
    ) -> io::Result<Received> {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let limit = if bulk { REQUEST_LEN.max(self.end + 1) } else { CAPACITY };
        let limit = limit.min(CAPACITY);
        let asked = payload.len() + limit - self.end;
        let spare = &mut self.bytes[self.end..limit];
        let mut parts = [IoSliceMut::new(payload), IoSliceMut::new(spare)];
        let parts = if parts[0].is_empty() { &mut parts[1..] } else { &mut parts[..] };
        // The kernel closes descriptors that a client sends along, because there is no room.
        let mut ancillary = RecvAncillaryBuffer::default();
        let count = recvmsg(socket, parts, &mut ancillary, flags)?.bytes;
        let to_payload = count.min(payload.len());
        self.end += count - to_payload;
        Ok(Received { count, to_payload, drained: count < asked })
    }
}

/// The result of one receive.
pub(super) struct Received {
    /// Number of all bytes; 0 is the end of the stream.
    pub(super) count: usize,
    /// Number of bytes that went into the payload.
    pub(super) to_payload: usize,
    /// The socket had no more.
    pub(super) drained: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn bulk_reads_one_header_ahead_and_the_payload_in_place() {
        let (mut client, server) = UnixStream::pair().expect("a socket pair");
        client.write_all(&[1; REQUEST_LEN]).expect("sent");
        client.write_all(&[2; 1000]).expect("sent");
        client.write_all(&[3; 2 * REQUEST_LEN]).expect("sent");
        let mut inbox = Inbox::new();
        let flags = RecvFlags::empty();
        inbox.receive(server.as_fd(), &mut [], true, flags).expect("received");
        assert_eq!(inbox.take_header(), Some([1; REQUEST_LEN]));
        assert!(inbox.bytes().is_empty());
        let mut payload = [0; 1000];
        let got = inbox.receive(server.as_fd(), &mut payload, true, flags).expect("received");
        assert_eq!((got.to_payload, got.count, got.drained), (1000, 1000 + REQUEST_LEN, false));
        assert_eq!(payload, [2; 1000]);
        assert_eq!(inbox.take_header(), Some([3; REQUEST_LEN]));
    }

    #[test]
    fn small_requests_come_together_and_a_cut_header_waits() {
        let (mut client, server) = UnixStream::pair().expect("a socket pair");
        client.write_all(&[4; 2 * REQUEST_LEN + 5]).expect("sent");
        let mut inbox = Inbox::new();
        let flags = RecvFlags::DONTWAIT;
        let got = inbox.receive(server.as_fd(), &mut [], false, flags).expect("received");
        assert!(got.drained);
        assert!(inbox.take_header().is_some() && inbox.take_header().is_some());
        assert!(inbox.take_header().is_none());
        client.write_all(&[4; REQUEST_LEN - 5]).expect("sent");
        inbox.receive(server.as_fd(), &mut [], true, flags).expect("received");
        assert_eq!(inbox.take_header(), Some([4; REQUEST_LEN]));
        let error = inbox.receive(server.as_fd(), &mut [], false, flags).err().expect("empty");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
