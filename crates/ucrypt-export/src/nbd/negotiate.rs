//! Runs a handshake on a socket, with a deadline.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::connection::ConnectionError;
use super::handshake::{Handshake, Negotiated, Step};
use crate::stop::Stop;

/// Most bytes to receive at a time.
const PIECE: usize = 4096;

/// Runs the handshake. `None`: the client left or was not admitted, or the server is to stop.
///
/// Calls `admit` before it tells the client that it is served.
pub(super) fn negotiate(
    socket: BorrowedFd<'_>,
    mut handshake: Handshake<'_>,
    timeout: Duration,
    stop: &Stop,
    admit: impl FnOnce() -> bool,
) -> Result<Option<Negotiated>, ConnectionError> {
    let line = Line { socket, stop, timeout, deadline: Instant::now() + timeout };
    let mut admit = Some(admit);
    let mut piece = [0; PIECE];
    if !line.send(&handshake.take_output())? {
        return Ok(None);
    }
    loop {
        let wanted = handshake.wanted().min(PIECE);
        let count = line.receive(&mut piece[..wanted])?;
        if count == 0 {
            return Ok(None);
        }
        let step = handshake.take_input(&piece[..count]);
        if let Step::Violation(what) = step {
            return Err(ConnectionError::Violation(what));
        }
        let ends = matches!(step, Step::Transmission(_));
        if ends && !admit.take().is_some_and(|admit| admit()) {
            return Ok(None);
        }
        let sent = line.send(&handshake.take_output())?;
        match step {
            _ if !sent => return Ok(None),
            Step::Transmission(negotiated) => return Ok(Some(negotiated)),
            Step::Continue => {}
            Step::Close | Step::Violation(_) => return Ok(None),
        }
    }
}

/// The socket, usable until the deadline or until the server is to stop.
struct Line<'a> {
    socket: BorrowedFd<'a>,
    stop: &'a Stop,
    timeout: Duration,
    deadline: Instant,
}

impl Line<'_> {
    /// Sends everything; false if the client has left or the server is to stop.
    fn send(&self, mut bytes: &[u8]) -> Result<bool, ConnectionError> {
        while !bytes.is_empty() {
            match send(self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => bytes = &bytes[count.min(bytes.len())..],
                Err(Errno::AGAIN) => {
                    if !self.wait(PollFlags::OUT)? {
                        return Ok(false);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Ok(false),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        Ok(true)
    }

    /// Receives some bytes; 0 if the client has left or the server is to stop.
    fn receive(&self, bytes: &mut [u8]) -> Result<usize, ConnectionError> {
        loop {
            if !self.wait(PollFlags::IN)? {
                return Ok(0);
            }
            match recv(self.socket, &mut *bytes, RecvFlags::DONTWAIT) {
                Ok((count, _)) => return Ok(count),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Ok(0),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// Sleeps until the socket is ready; false if the server is to stop.
    fn wait(&self, events: PollFlags) -> Result<bool, ConnectionError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        // Also for a client that sends all the time.
        if left.is_zero() {
            return Err(ConnectionError::HandshakeTimeout(self.timeout));
        }
        let timeout = Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut fds = [
            PollFd::from_borrowed_fd(self.socket, events),
            PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => Err(ConnectionError::HandshakeTimeout(self.timeout)),
            Ok(_) => Ok(fds[1].revents().is_empty()),
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }
}
