//! A thread that takes requests by read(2) and answers them by write(2).
//!
//! Data is not copied in between: read data goes from the engine's buffer to the kernel, large
//! writes arrive in a buffer that the engine takes over, and small writes are encrypted out of the
//! buffer they arrived in.
//!
//! In each round the thread takes the requests that are there, up to some kilobytes, and sends the
//! answers together ([`Answers`]). It holds at most its queue's memory and depth: when a request
//! finds no room, it takes no more until something completes: other threads may have room. If all of
//! them wait for the key of a suspended volume, that may be hours: then more reads are put into the
//! backlog, so that requests that need no data (stat, open) are still answered. There are three ways
//! to sleep:
//!
//! - In a read of a blocking descriptor, if nothing is in flight. Further requests are then taken
//!   from a second descriptor, which does not block.
//! - For the queue only, over a backend that completes at once, or if the requests can be left to
//!   another thread ([`Peer`]). A lone request so takes three system calls: the read, one that
//!   hands it to the backend and sleeps, and the answer.
//! - For the queue and for requests, over the other backends, and whenever all requests in flight wait
//!   for others.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ucrypt_engine::{Buf, Done, Errno, Io, Queue, QueueConfig, Rejected};

use super::DEPTH;
use super::abi::{ARGUMENTS_MAX, Body, Head, Request};
use super::answers::{Answers, Payload};
use super::device::{Device, FRONT_LEN, Received, arguments};
use super::file::{Outcome, Success, VolumeFile};
use super::peers::Peer;
use crate::backlog::Submitter;
use crate::memory::Share;
use crate::table::Table;
use crate::waiter::{EventFlags, Waiter, sleep_for_either};

/// Writes of at least this many bytes are handed over with the buffer they arrived in.
const HANDED_OVER_BYTES_MIN: usize = 64 << 10;

/// Bytes to read and write before the answers leave: decrypted data is still in the cache when the
/// kernel copies it.
const ROUND_BYTES: usize = 64 << 10;

/// Most requests that a thread takes in a round; the rest are for the other threads.
const ROUND_MAX: usize = 16;

/// Over a backend that completes at once, one in this many requests that will probably be alone is followed
/// by a look for another one.
const LOOK_EVERY: u32 = 16;

/// How long to try to get a new queue, and the pause between two attempts.
const RENEW_PATIENCE: Duration = Duration::from_secs(5);
const RENEW_PAUSE: Duration = Duration::from_millis(20);

/// Most requests in the backlog. Each takes some 100 bytes; where there are more, a suspended volume
/// keeps them in the kernel, with the requests behind them.
const BACKLOG_MAX: usize = 256;

/// A request that the engine has.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    unique: u64,
    /// The descriptor that it came by.
    device: usize,
    success: Success,
}

/// The engine's work for a request.
pub(super) enum Work {
    Io(Io<'static>),
    /// A write whose data is in the receive buffer.
    FromBuffer {
        offset: u64,
        len: usize,
        fua: bool,
    },
}

pub(super) struct Classic {
    file: Arc<VolumeFile>,
    /// The last one does not block, unless it is the only one and there is no waiter.
    devices: Vec<Device>,
    /// The first of the devices blocks.
    blocks: bool,
    peer: Peer,
    share: Share,
    answers: Answers,
    queue: Queue,
    pending: Table<Pending>,
    /// The receive buffer, unless the engine has just taken it over.
    buffer: Option<Buf>,
    /// Requests for which the engine had no room. While there are any, the thread takes no more,
    /// unless it [takes more than it has room for](Self::takes_beyond_room).
    backlog: VecDeque<(Pending, Work)>,
    /// `None` over a backend that completes at once.
    waiter: Option<Waiter>,
    /// Bytes of the reads and writes of this round.
    round_bytes: usize,
    gone: bool,
}

impl Classic {
    /// `share` has memory for a receive buffer and for requests in flight.
    pub(super) fn new(
        file: Arc<VolumeFile>,
        device: Device,
        peer: Peer,
        share: Share,
    ) -> io::Result<Self> {
        let mut devices = vec![device];
        devices.extend(devices[0].separate());
        let blocks = devices.len() > 1 || file.volume.info().synchronous;
        if devices.len() > 1 || !blocks {
            devices[devices.len() - 1].set_nonblocking()?;
        }
        let (mut queue, waiter) = queue(&file, &devices, share)?;
        Ok(Self {
            buffer: queue.alloc(share.request_max),
            file,
            devices,
            blocks,
            peer,
            share,
            answers: Answers::new(),
            queue,
            pending: Table::new(DEPTH),
            backlog: VecDeque::with_capacity(1),
            waiter,
            round_bytes: 0,
            gone: false,
        })
    }

    /// Serves until the file is no longer mounted.
    pub(super) fn run(mut self) {
        while !(self.gone && self.pending.len() == 0) {
            let (taken, more) = self.take_requests();
            let sleeps = self.waiter.is_some() && !more && self.answers.is_empty();
            // After a return, the last descriptor is closed and the kernel gives up the rest.
            let polled = if sleeps { self.sleep() } else { self.queue.poll() };
            if polled.is_err() && !self.renew() {
                return;
            }
            let progress = self.answer_done() || taken || !self.answers.is_empty();
            self.answers.send(&self.devices);
            let waits = self.waiter.is_none() && !progress;
            if waits && self.sleep_synchronous().is_err() && !self.renew() {
                return;
            }
        }
    }

    /// Takes requests until there are none, there is no room, or it is time to answer. Returns
    /// whether there were any, and whether there may be more. Sleeps until the first one if
    /// nothing else can happen.
    fn take_requests(&mut self) -> (bool, bool) {
        self.submit_waiting();
        self.round_bytes = 0;
        let mut taken = 0;
        if self.is_idle() && self.may_block() && self.takes_more() {
            self.queue.rest();
            if self.take_request(0) == Received::Nothing {
                return (false, true);
            }
            taken = 1;
        }
        let (quick, never_blocks) = (self.devices.len() - 1, self.never_blocks());
        loop {
            if taken > 0 && self.is_probably_alone() {
                return (true, false);
            }
            if taken == ROUND_MAX {
                return (true, true);
            }
            if !never_blocks || !self.takes_more() {
                return (taken > 0, self.round_bytes >= ROUND_BYTES);
            }
            if self.take_request(quick) == Received::Nothing {
                return (taken > 0, false);
            }
            taken += 1;
            if taken > 1 {
                self.peer.has_several();
            }
        }
    }

    /// Whether a look for another request would find none: they come one at a time, to this thread and, as
    /// far as is known, to the others. Over a backend that takes time the others listen meanwhile, and
    /// tell.
    fn is_probably_alone(&self) -> bool {
        let Some(alone) = self.queue.alone() else { return false };
        if self.waiter.is_none() {
            return !alone.is_multiple_of(LOOK_EVERY);
        }
        !self.peer.others_had_several()
    }

    /// Whether nobody waits for this thread.
    fn is_idle(&self) -> bool {
        self.pending.len() == 0 && self.answers.is_empty()
    }

    /// Whether an idle thread sleeps in a read.
    fn may_block(&self) -> bool {
        self.blocks && (self.waiter.is_none() || self.queue.alone().is_some())
    }

    /// Whether the last descriptor does not block.
    fn never_blocks(&self) -> bool {
        self.devices.len() > 1 || !self.blocks
    }

    fn takes_more(&mut self) -> bool {
        self.round_bytes < ROUND_BYTES && self.has_room()
    }

    /// Whether a request could be taken.
    fn has_room(&mut self) -> bool {
        let is_full = !self.backlog.is_empty() || self.pending.len() == DEPTH as usize;
        if self.gone || is_full && !self.takes_beyond_room() {
            return false;
        }
        if self.buffer.is_none() {
            // Memory is short only while requests are under way.
            self.buffer = self.queue.alloc(self.share.request_max);
        }
        self.buffer.is_some()
    }

    /// Whether requests are taken even if they find no room, because what makes room may take hours.
    fn takes_beyond_room(&self) -> bool {
        let needs_buffer = |(_, work): &(Pending, Work)| matches!(work, Work::FromBuffer { .. });
        self.file.volume.is_halted()
            && self.queue.waits_for_others()
            && self.backlog.len() < BACKLOG_MAX
            && !self.backlog.iter().any(needs_buffer)
    }

    fn take_request(&mut self, device: usize) -> Received {
        let Some(buffer) = &mut self.buffer else { return Received::Nothing };
        let mut front = [0; FRONT_LEN];
        let received = self.devices[device].receive(&mut front, buffer);
        match received {
            Received::Bytes(count) => {
                let mut space = [0; ARGUMENTS_MAX];
                let arguments = arguments(&front, buffer, count, &mut space);
                // Without a head there is nobody to answer.
                if let Some(head) = Head::parse(&front[..count.min(FRONT_LEN)]) {
                    let outcome = match Request::parse(head.opcode, arguments) {
                        Ok(request) => {
                            let len = count.saturating_sub(FRONT_LEN);
                            self.file.take(request, len, || buffer[..len].iter().all(|b| *b == 0))
                        }
                        Err(error) => Outcome::Now(Err(error)),
                    };
                    self.start(device, head.unique, outcome);
                }
            }
            Received::Nothing => {}
            Received::Gone => self.gone = true,
        }
        received
    }

    /// Answers a request or submits it to the engine.
    fn start(&mut self, device: usize, unique: u64, outcome: Outcome) {
        let (success, work) = match outcome {
            Outcome::Silent => return,
            Outcome::Now(result) => {
                return self.answer(device, unique, result.map(Payload::Body));
            }
            Outcome::Read { offset, len } => {
                self.round_bytes += len;
                (Success::Data(len), Work::Io(Io::read(offset, len)))
            }
            Outcome::Do { io, refuse: false } => (Success::Nothing, Work::Io(io)),
            Outcome::Do { io, refuse: true } => (Success::Refused, Work::Io(io)),
            Outcome::Write { offset, len, fua } => {
                self.round_bytes += len;
                let buffer = if len < HANDED_OVER_BYTES_MIN { None } else { self.buffer.take() };
                let work = match buffer {
                    None => Work::FromBuffer { offset, len, fua },
                    Some(mut data) => {
                        data.truncate(len);
                        Work::Io(Io::write(offset, data, fua))
                    }
                };
                (Success::Written(len as u32), work)
            }
        };
        self.submit((Pending { unique, device, success }, work));
    }

    /// Answers what the engine has completed. Returns whether there was anything.
    fn answer_done(&mut self) -> bool {
        let mut any = false;
        while let Some(Done { tag, result, data, .. }) = self.queue.next_done() {
            any = true;
            let Some(Pending { unique, device, success }) = self.pending.remove(tag) else {
                continue;
            };
            let result = result.and_then(|()| match success {
                Success::Refused => Err(Errno::OPNOTSUPP),
                Success::Written(len) => Ok(Payload::Body(Body::written(len))),
                Success::Data(_) => Ok(data.map_or(Payload::NOTHING, Payload::Data)),
                Success::Nothing => Ok(Payload::NOTHING),
            });
            self.answer(device, unique, result);
        }
        any
    }

    fn answer(&mut self, device: usize, unique: u64, result: Result<Payload, Errno>) {
        self.answers.put(&self.devices, device, unique, result);
    }

    /// Replaces a broken engine queue: its requests fail, the next ones get the new queue. As long as none can be
    /// had, for want of memory or descriptors, other threads take new requests. Returns `false` if that takes too long,
    /// or the connection ends meanwhile.
    fn renew(&mut self) -> bool {
        for Pending { unique, device, .. } in self.pending.drain() {
            self.answers.put(&self.devices, device, unique, Err(Errno::IO));
        }
        self.answers.send(&self.devices);
        let until = Instant::now() + RENEW_PATIENCE;
        loop {
            match queue(&self.file, &self.devices, self.share) {
                Ok(new) => {
                    (self.queue, self.waiter) = new;
                    return true;
                }
                Err(_) if Instant::now() < until && self.devices[0].is_connected() => {
                    for (Pending { unique, device, .. }, _) in self.backlog.drain(..) {
                        self.answers.put(&self.devices, device, unique, Err(Errno::IO));
                    }
                    self.answers.send(&self.devices);
                    std::thread::sleep(RENEW_PAUSE);
                }
                Err(_) => return false,
            }
        }
    }

    /// Polls the queue, and sleeps until there is a completion, or a request that can be taken.
    fn sleep(&mut self) -> io::Result<()> {
        let is_idle = self.pending.len() == 0;
        if is_idle && self.may_block() {
            return Ok(());
        }
        if !self.has_room() {
            return self.queue.wait();
        }
        let Self { queue, waiter: Some(waiter), peer, .. } = self else { return Ok(()) };
        if !is_idle
            && queue.alone().is_some()
            && !queue.waits_for_others()
            && let Some(slept) = peer.leave(|| queue.wait())
        {
            return slept;
        }
        queue.poll()?;
        if queue.has_done() {
            return Ok(());
        }
        waiter.sleep(queue, None, |_, _| {})?;
        // What has ended is answered before the thread looks for requests, which are fewer then.
        queue.poll()
    }

    /// Sleeps until there is a completion, over a backend that completes at once.
    fn sleep_synchronous(&mut self) -> io::Result<()> {
        if !self.queue.waits_for_others() || !self.never_blocks() || !self.has_room() {
            return self.queue.wait();
        }
        sleep_for_either(&mut self.queue, &self.devices[self.devices.len() - 1])
    }
}

/// A queue of the volume, and over an asynchronous backend a waiter for requests and completions. A
/// request wakes one thread, not all.
fn queue(
    file: &VolumeFile,
    devices: &[Device],
    Share { memory, request_max, .. }: Share,
) -> io::Result<(Queue, Option<Waiter>)> {
    // A read that begins and ends within sectors takes more memory than it has bytes.
    let config = QueueConfig { memory, request_max: 2 * request_max, depth: DEPTH };
    let queue = file.volume.queue(config)?;
    if file.volume.info().synchronous {
        return Ok((queue, None));
    }
    let mut waiter = Waiter::new(&queue)?;
    waiter.watch(0, &devices[devices.len() - 1], EventFlags::IN | EventFlags::EXCLUSIVE)?;
    Ok((queue, Some(waiter)))
}

impl Submitter for Classic {
    type Request = (Pending, Work);

    fn backlog(&mut self) -> &mut VecDeque<Self::Request> {
        &mut self.backlog
    }

    fn offer(&mut self, (pending, work): Self::Request) -> Result<(), Self::Request> {
        let Some(tag) = self.pending.insert(pending) else { return Err((pending, work)) };
        let (result, again) = match (work, &self.buffer) {
            (Work::Io(io), _) => match self.queue.submit(tag, io) {
                Err(Rejected::Busy(io)) => (Err(None), Some(Work::Io(io))),
                result => (result.map_err(|rejected| rejected.errno()), None),
            },
            (Work::FromBuffer { offset, len, fua }, Some(buffer)) => {
                let io = Io::write_borrowed(offset, &buffer[..len], fua);
                let result = self.queue.submit(tag, io).map_err(|rejected| rejected.errno());
                (result, Some(Work::FromBuffer { offset, len, fua }))
            }
            (Work::FromBuffer { .. }, None) => (Err(Some(Errno::INVAL)), None),
        };
        let Err(error) = result else { return Ok(()) };
        self.pending.remove(tag);
        match (error, again) {
            (None, Some(work)) => return Err((pending, work)),
            (error, _) => {
                let error = error.unwrap_or(Errno::NOMEM);
                self.answer(pending.device, pending.unique, Err(error));
            }
        }
        Ok(())
    }

    fn awaits_room(&self) -> bool {
        self.pending.len() > 0 || !self.answers.is_empty()
    }

    fn give_up(&mut self, (pending, _): Self::Request) {
        self.queue.given_up();
        self.answer(pending.device, pending.unique, Err(Errno::NOMEM));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use ucrypt_engine::{Volume, VolumeOptions};
    use ucrypt_testkit::fault::{Access, Fate, Rule};
    use ucrypt_testkit::{FaultBackend, Faults};

    use super::super::file::User;
    use super::*;

    /// A thread that serves the volume, and the kernel's end of its device.
    fn thread(volume: &Arc<Volume>) -> (Classic, UnixStream) {
        let (device, kernel) = UnixStream::pair().expect("a pair");
        let file = Arc::new(VolumeFile::new(volume.clone(), User::Programs));
        let peer = Peer::all(1).next().expect("a thread");
        let share = Share { queues: 1, memory: 1 << 20, request_max: 1 << 16 };
        let thread = Classic::new(file, Device::new(device.into()), peer, share);
        (thread.expect("a thread's state"), kernel)
    }

    #[test]
    fn reads_without_room_are_kept_from_other_threads_in_a_suspended_volume_only() {
        const LEN: u64 = 1 << 20;
        let (memory, faults) = (ucrypt_backend::memory(LEN).expect("memory"), Faults::new(1));
        faults.add(Rule::new(Fate::Hang).on(Access::Read));
        let backend = FaultBackend::new(Arc::new(memory), faults.clone()).without_map();
        let volume = Volume::raw(Arc::new(backend), VolumeOptions::default()).expect("a volume");
        let volume = Arc::new(volume);
        // A part of a sector: it holds its range until the sector was read.
        let mut other = volume.queue(QueueConfig::new(1 << 16, 1)).expect("a queue");
        assert!(other.submit(0, Io::write_borrowed(1, &[1; 9], false)).is_ok());

        let (mut thread, _kernel) = thread(&volume);
        let request = |work| (Pending { unique: 1, device: 0, success: Success::Data(512) }, work);
        let read = |_| request(Work::Io(Io::read(0, 512)));
        thread.submit(read(0));
        assert!(thread.queue.waits_for_others() && thread.has_room());
        thread.backlog.push_back(read(1));
        assert!(!thread.has_room(), "another thread may have room");
        volume.halt();
        assert!(thread.has_room(), "nobody else has");
        thread.backlog.extend((1..BACKLOG_MAX).map(read));
        assert!(!thread.has_room(), "the backlog is full");
        thread.backlog.truncate(1);
        thread.backlog.push_back(request(Work::FromBuffer { offset: 0, len: 512, fua: false }));
        assert!(!thread.has_room(), "the next request would overwrite its data");
        volume.unhalt();
        faults.resume();
    }
}
