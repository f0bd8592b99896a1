//! A queue of a model backend: each operation is passed to the device when it is submitted, and
//! answered when the device says that it is complete.
//!
//! In between, operations are carried out in memory, in the order of submission, whenever the queue
//! has nothing else to do. A real device moves the data itself during its time, and the next
//! submission does not wait for that.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use slab::Slab;

use super::device::{Device, DeviceOp, Kind};
use super::timer::{Timer, now_ns};
use crate::{Done, Errno, Io, Pool, Queue, SharedRing, total_len};

pub(super) struct ModelQueue {
    device: Arc<Mutex<Device>>,
    /// A queue of the memory behind the model, which carries out operations one at a time.
    memory: Box<dyn Queue>,
    carried_out: Vec<Done>,
    /// Length of the backend in bytes.
    len: u64,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    depth: usize,
    /// By slot: the answer of an operation under way, once it was carried out.
    answers: Slab<Option<Done>>,
    /// Operations still to be carried out, and their slots.
    waiting: VecDeque<(usize, Io)>,
    submitted: u64,
    /// `None` if the device takes no time.
    timer: Option<Timer>,
    /// Consecutive polls without an answer since the last submission or answer.
    vain: u32,
}

/// After more consecutive polls without an answer, a poll yields: the caller has nothing else to
/// do.
const VAIN_MAX: u32 = 1;

/// An operation whose answer is not due yet.
struct UnderWay {
    due: u64,
    /// Submission order, among answers due at the same time.
    order: u64,
    slot: usize,
}

impl UnderWay {
    fn key(&self) -> (u64, u64) {
        (self.due, self.order)
    }
}

impl PartialEq for UnderWay {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for UnderWay {}

impl PartialOrd for UnderWay {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for UnderWay {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl ModelQueue {
    pub(super) fn new(
        device: Arc<Mutex<Device>>,
        memory: Box<dyn Queue>,
        len: u64,
        depth: u32,
        timed: bool,
    ) -> io::Result<Self> {
        let depth = depth as usize;
        Ok(Self {
            device,
            memory,
            carried_out: Vec::with_capacity(1),
            len,
            under_way: BinaryHeap::with_capacity(depth),
            depth,
            answers: Slab::with_capacity(depth),
            waiting: VecDeque::with_capacity(depth),
            submitted: 0,
            timer: if timed { Some(Timer::new()?) } else { None },
            vain: 0,
        })
    }

    /// Accepts an operation that arrives at the time that `clock` returns.
    fn admit(&mut self, io: Io, clock: impl FnOnce() -> u64) {
        assert!(self.room() > 0, "submit without room");
        let slot = self.answers.insert(None);
        let due = if let Some(due) = self.due(device_op(&io), clock) {
            self.waiting.push_back((slot, io));
            due
        } else {
            self.answers[slot] = Some(refuse(io));
            0
        };
        self.under_way.push(Reverse(UnderWay { due, order: self.submitted, slot }));
        self.submitted += 1;
        self.vain = 0;
    }

    /// When the device completes an operation, or `None` if it refuses it.
    fn due(&self, op: DeviceOp, clock: impl FnOnce() -> u64) -> Option<u64> {
        if op.offset.checked_add(op.len).is_none_or(|end| end > self.len) {
            return None;
        }
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        // The clock is read under the lock, so that the device's time never goes back.
        device.submit(clock(), op).ok()
    }

    /// Carries out the operation that has waited longest. Returns whether there was one.
    fn carry_out(&mut self) -> bool {
        let Some((slot, io)) = self.waiting.pop_front() else { return false };
        self.memory.submit(io);
        self.memory.wait(&mut self.carried_out).expect("memory needs no system that could fail");
        let done = self.carried_out.pop().expect("memory answers each operation at once");
        self.answers[slot] = Some(done);
        true
    }

    /// Appends the answers that are due; returns the time of the next answer.
    fn hand_out(&mut self, now: u64, done: &mut Vec<Done>) -> Option<u64> {
        while let Some(Reverse(next)) = self.under_way.peek() {
            let (due, slot) = (next.due, next.slot);
            if due > now {
                return Some(due);
            }
            while self.answers[slot].is_none() && self.carry_out() {}
            done.extend(self.answers.remove(slot));
            self.under_way.pop();
            self.vain = 0;
        }
        None
    }

    /// Appends the answers that are due, and carries out waiting operations until any is. Returns
    /// the time of the next answer.
    fn go_on(&mut self, done: &mut Vec<Done>) -> Option<u64> {
        let before = done.len();
        loop {
            let next = self.hand_out(now_ns(), done);
            if done.len() > before || !self.carry_out() {
                return next;
            }
        }
    }
}

fn device_op(io: &Io) -> DeviceOp {
    let (kind, offset, len) = match io {
        Io::Read { offset, bufs, .. } => (Kind::Read, *offset, total_len(bufs) as u64),
        Io::Write { offset, bufs, fua, .. } => {
            (Kind::Write { fua: *fua }, *offset, total_len(bufs) as u64)
        }
        Io::Flush { .. } => (Kind::Flush, 0, 0),
        Io::Discard { offset, len, .. } => (Kind::Discard, *offset, *len),
        Io::WriteZeroes { offset, len, .. } => (Kind::WriteZeroes, *offset, *len),
    };
    DeviceOp { kind, offset, len }
}

fn refuse(io: Io) -> Done {
    let (token, bufs) = io.into_parts();
    Done { token, result: Err(Errno::IO), bufs }
}

impl Queue for ModelQueue {
    fn room(&self) -> usize {
        self.depth - self.answers.len()
    }

    fn submit(&mut self, io: Io) {
        self.admit(io, now_ns);
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        let before = done.len();
        let next = self.go_on(done);
        let Some(timer) = &mut self.timer else { return Ok(()) };
        timer.announce(next, now_ns())?;
        if done.len() == before && timer.is_near() {
            self.vain += 1;
            if self.vain > VAIN_MAX {
                // The caller is polling for the answer in a loop.
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    fn wait(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        let before = done.len();
        let next = self.go_on(done);
        if let (Some(due), Some(timer), true) = (next, &mut self.timer, done.len() == before) {
            timer.wait(due)?;
            self.hand_out(now_ns(), done);
        }
        Ok(())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.timer.as_ref().map(Timer::fd)
    }

    fn register(&mut self, _pool: &Pool) -> bool {
        false
    }

    fn shared_ring(&mut self) -> Option<SharedRing<'_>> {
        None
    }
}

impl Drop for ModelQueue {
    fn drop(&mut self) {
        let mut done = Vec::new();
        while !self.under_way.is_empty() && self.wait(&mut done).is_ok() {
            done.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Profile;
    use crate::{Backend, Pool, memory};

    #[test]
    fn answers_come_in_the_order_of_their_times() {
        let len = 16 << 20;
        let device = Device::new(Profile::by_name("sata2017").unwrap(), 1);
        let behind = memory(len).unwrap().queue(1).unwrap();
        let device = Arc::new(Mutex::new(device));
        let mut queue = ModelQueue::new(device, behind, len, 8, true).unwrap();
        let pool = Pool::new(1 << 20).unwrap();
        let now = now_ns();
        // Due after 710 us, after 70 us, and, as the bus is busy with that one, after 84 us.
        for (token, len) in [(0, 262_144), (1, 4096), (2, 4096)] {
            let buf = pool.alloc(len).unwrap();
            queue.admit(Io::Read { token, offset: token << 20, bufs: vec![buf] }, || now);
        }
        let mut done = Vec::new();
        while done.len() < 3 {
            queue.wait(&mut done).unwrap();
        }
        let tokens: Vec<_> = done.iter().map(|done| done.token).collect();
        assert_eq!(tokens, [1, 2, 0]);
    }
}
