//! Batches answers: one system call sends all that are ready.
//!
//! After an answer, the kernel runs whatever waits for it before it returns to us. Behind a loop
//! device that is a soft interrupt in a thread of its own: two thread switches for each request,
//! which take longer than the request itself. When answers leave in one call, their waiters run
//! only once, when the call ends.
//!
//! An answer is a write to `/dev/fuse`, which the kernel completes at once. Since Linux 6.12
//! io_uring does many such writes in one call. Older kernels hand each write to another thread, so
//! there the answers leave one by one.

#![expect(unsafe_code, reason = "the ring gets answers by address")]

use std::io::IoSlice;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};
use ucrypt_engine::ring::Ring;
use ucrypt_engine::{Buf, Errno};

use super::abi::{self, ANSWER_LEN, Body};
use super::device::Device;

/// Most answers that leave together.
const TOGETHER_MAX: usize = 32;

/// The part of an answer behind its head.
#[derive(Debug)]
pub(super) enum Payload {
    Body(Body),
    Data(Buf),
}

impl Payload {
    pub(super) const NOTHING: Self = Self::Body(Body::EMPTY);

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Body(body) => body.bytes(),
            Self::Data(data) => data,
        }
    }
}

struct Answer {
    /// The descriptor that the request came by.
    device: usize,
    head: [u8; ANSWER_LEN],
    payload: Payload,
}

pub(super) struct Answers {
    /// `None`: answers leave one by one.
    ring: Option<Ring>,
    staged: Vec<Answer>,
}

impl Answers {
    pub(super) fn new() -> Self {
        let ring = in_place().then(|| Ring::new(TOGETHER_MAX as u32).ok()).flatten();
        let ring = ring.and_then(|mut ring| ring.shared_ring().is_some().then_some(ring));
        Self { ring, staged: Vec::with_capacity(TOGETHER_MAX) }
    }

    /// Keeps an answer until [`Answers::send`], or until there are enough to send. `device` is an
    /// index into `devices`.
    pub(super) fn put(
        &mut self,
        devices: &[Device],
        device: usize,
        unique: u64,
        result: Result<Payload, Errno>,
    ) {
        let (error, payload) = match result {
            Ok(payload) => (None, payload),
            Err(error) => (Some(error), Payload::NOTHING),
        };
        let head = abi::answer_head(unique, error, payload.bytes().len());
        self.staged.push(Answer { device, head, payload });
        if self.staged.len() == TOGETHER_MAX {
            self.send(devices);
        }
    }

    /// Whether all answers have left.
    pub(super) fn is_empty(&self) -> bool {
        self.staged.is_empty()
    }

    /// Sends all answers.
    pub(super) fn send(&mut self, devices: &[Device]) {
        if self.staged.len() > 1
            && let Some(ring) = self.ring.take()
        {
            self.ring = self.send_together(ring, devices);
        }
        for Answer { device, head, payload } in self.staged.drain(..) {
            devices[device].answer(&head, payload.bytes());
        }
    }

    /// Sends the staged answers in one call; those still staged afterwards have to be sent one by
    /// one. Returns the ring unless it is broken.
    fn send_together(&mut self, mut ring: Ring, devices: &[Device]) -> Option<Ring> {
        let parts: [[IoSlice<'_>; 2]; TOGETHER_MAX] =
            std::array::from_fn(|index| match self.staged.get(index) {
                Some(answer) => [IoSlice::new(&answer.head), IoSlice::new(answer.payload.bytes())],
                None => [IoSlice::new(&[]); 2],
            });
        for (index, answer) in self.staged.iter().enumerate() {
            let fd = types::Fd(devices[answer.device].as_raw_fd());
            let entry = opcode::Writev::new(fd, parts[index].as_ptr().cast(), 2).build();
            // SAFETY: an `IoSlice` is an iovec. The answers stay where they are until all
            // completions were taken; if those do not come, the ring is never entered again, so
            // `parts` is not read any more, and the answers, which `parts` names, are leaked.
            unsafe { ring.shared_ring()?.push(entry.user_data(index as u64)) };
        }
        let (mut done, mut left) = (0, 0_u32);
        while done < self.staged.len() {
            if ring.enter(self.staged.len() - done).is_err() {
                std::mem::forget(ring);
                // Some may have left already: the kernel refuses a second answer.
                for Answer { device, head, payload } in &self.staged {
                    devices[*device].answer(head, payload.bytes());
                }
                std::mem::forget(std::mem::take(&mut self.staged));
                return None;
            }
            ring.reap(|_, _| {});
            while let Some(sent) = ring.shared_ring().and_then(|mut ring| ring.next()) {
                done += 1;
                left |= u32::from(!is_over(sent.result)) << sent.user_data;
            }
        }
        self.send_again(devices, left);
        self.staged.clear();
        Some(ring)
    }

    /// Sends those of the staged answers that have a bit in `left`, one by one.
    fn send_again(&self, devices: &[Device], left: u32) {
        for (index, Answer { device, head, payload }) in self.staged.iter().enumerate() {
            if left & 1 << index != 0 {
                devices[*device].answer(head, payload.bytes());
            }
        }
    }
}

/// Whether an answer has left, or nobody waits for it any more. Other errors are those of io_uring itself, such as a
/// lack of memory. A second answer would be refused, but a request without one never ends.
fn is_over(result: i32) -> bool {
    result >= 0 || result == -Errno::NOENT.raw_os_error()
}

/// Whether io_uring writes to `/dev/fuse` on the calling thread, judged by a feature that came with
/// the same kernel version.
fn in_place() -> bool {
    IoUring::new(1).is_ok_and(|ring| ring.params().is_feature_min_timeout())
}

#[cfg(test)]
mod tests {
    use rustix::io::read;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn every_answer_leaves_whole_and_once_where_its_request_came_from() {
        // Preserves message boundaries, as `/dev/fuse` does.
        let pairs = [(); 2].map(|()| {
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None)
                .unwrap()
        });
        let [(ours, theirs), (ours2, theirs2)] = pairs;
        let (devices, sides) = ([Device::new(ours), Device::new(ours2)], [theirs, theirs2]);
        let mut answers = Answers::new();
        for count in [1, 2, TOGETHER_MAX - 1, TOGETHER_MAX, TOGETHER_MAX + 1] {
            for unique in 0..count as u64 {
                let result = if unique % 3 == 0 {
                    Err(Errno::IO)
                } else {
                    Ok(Payload::Body(Body::written(unique as u32)))
                };
                answers.put(&devices, unique as usize % 2, unique, result);
            }
            answers.send(&devices);
            for unique in 0..count as u64 {
                let (error, len) = if unique % 3 == 0 { (Some(Errno::IO), 0) } else { (None, 8) };
                let mut message = [0; 64];
                let received = read(&sides[unique as usize % 2], &mut message).unwrap();
                assert_eq!(received, ANSWER_LEN + len, "{unique} of {count}");
                assert_eq!(message[..ANSWER_LEN], abi::answer_head(unique, error, len));
                assert_eq!(
                    &message[ANSWER_LEN..received],
                    &Body::written(unique as u32).bytes()[..len]
                );
            }
            for side in &sides {
                assert_eq!(read(side, &mut [0; 64]), Err(Errno::AGAIN));
            }
        }
    }

    /// Its request would never end.
    #[test]
    fn an_answer_that_the_ring_could_not_send_is_sent_again_and_no_other() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None)
                .unwrap();
        let devices = [Device::new(ours)];
        let mut answers = Answers::new();
        let of_ring = [Errno::NOMEM, Errno::AGAIN, Errno::INTR, Errno::CANCELED];
        let results = of_ring.map(|error| -error.raw_os_error());
        let results = [24, -Errno::NOENT.raw_os_error()].into_iter().chain(results);
        let mut left = 0;
        for (unique, result) in results.enumerate() {
            let body = Payload::Body(Body::written(unique as u32));
            answers.put(&devices, 0, unique as u64, Ok(body));
            left |= u32::from(!is_over(result)) << unique;
        }
        answers.send_again(&devices, left);
        for unique in 2..6 {
            let mut message = [0; 64];
            assert_eq!(read(&theirs, &mut message), Ok(ANSWER_LEN + 8));
            assert_eq!((message[8], message[ANSWER_LEN]), (unique, unique));
        }
        assert_eq!(read(&theirs, &mut [0; 64]), Err(Errno::AGAIN), "another was sent");
    }
}
