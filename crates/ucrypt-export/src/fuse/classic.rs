//! A thread that takes requests by read(2) and answers them by write(2).
//!
//! Data is not copied in between: read data goes from the engine's buffer to the kernel, large
//! writes arrive in a buffer that the engine takes over, and small writes are encrypted out of the
//! buffer they arrived in.
//!
//! In each round the thread takes the requests that are there, up to some kilobytes, and sends the
//! answers together ([`Answers`]). Over a backend that completes at once, it then sleeps in a read
//! of a blocking descriptor, and takes further requests from a second, non-blocking one. Otherwise
//! it sleeps until there is a request or a completion of the backend. It holds at most its queue's
//! memory and depth: when a request finds no room, it takes no more until something completes.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use ucrypt_engine::{Buf, Done, Errno, Io, Queue, QueueConfig, Rejected};

use super::abi::{ARGUMENTS_MAX, Body, Head, Request};
use super::answers::{Answers, Payload};
use super::device::{Device, FRONT_LEN, Received, arguments};
use super::file::{Outcome, VolumeFile};
use super::{DEPTH, REQUEST_MAX};
use crate::backlog::Submitter;
use crate::table::Table;
use crate::waiter::{EventFlags, Waiter, sleep_for_queue};

/// Memory for one receive buffer and for the requests in flight.
const QUEUE: QueueConfig = QueueConfig { memory: 32 << 20, depth: DEPTH };

/// Writes of at least this many bytes are handed over with the buffer they arrived in.
const HANDED_OVER_MIN: usize = 64 << 10;

/// Bytes to read and write before the answers leave: decrypted data is still in the cache when the
/// kernel copies it.
const ROUND_BYTES: usize = 64 << 10;

/// Most requests that a thread takes in a round; the rest are for the other threads.
const ROUND_MAX: usize = 16;

/// A request that the engine has.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    unique: u64,
    /// The descriptor that it came by.
    device: usize,
    success: Success,
}

/// What to answer after the engine has completed the request.
#[derive(Clone, Copy)]
enum Success {
    /// The data, if there is any.
    Data,
    /// This many bytes were written.
    Written(u32),
    /// The request is not supported.
    Refused,
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
    /// The first one blocks if the backend completes at once. The last one does not block, unless
    /// it is the first.
    devices: Vec<Device>,
    answers: Answers,
    queue: Queue,
    under_way: Table<Pending>,
    /// The receive buffer, unless the engine has just taken it over.
    buffer: Option<Buf>,
    /// Requests for which the engine had no room. While there are any, the thread takes no more.
    backlog: VecDeque<(Pending, Work)>,
    /// Waits for a request or a completion. `None`: the thread waits for requests only.
    waiter: Option<Waiter>,
    /// Bytes of the reads and writes of this round.
    round_bytes: usize,
    gone: bool,
}

impl Classic {
    pub(super) fn new(file: Arc<VolumeFile>, device: Device) -> io::Result<Self> {
        let mut queue = file.volume.queue(QUEUE)?;
        let mut devices = vec![device];
        let waiter = if file.volume.info().synchronous {
            if let Some(quick) = devices[0].separate() {
                quick.set_nonblocking()?;
                devices.push(quick);
            }
            None
        } else {
            devices[0].set_nonblocking()?;
            Some(waiter(&devices[0], &queue)?)
        };
        Ok(Self {
            buffer: queue.alloc(REQUEST_MAX as usize),
            file,
            devices,
            answers: Answers::new(),
            queue,
            under_way: Table::new(DEPTH as usize),
            backlog: VecDeque::with_capacity(1),
            waiter,
            round_bytes: 0,
            gone: false,
        })
    }

    /// Serves until the file is no longer mounted.
    pub(super) fn run(mut self) {
        while !(self.gone && self.under_way.len() == 0) {
            let mut progress = self.take_requests();
            // After a return, the last descriptor is closed and the kernel gives up the rest.
            if self.queue.poll().is_err() && self.renew().is_err() {
                return;
            }
            progress |= self.answer_done();
            self.answers.send(&self.devices);
            if !progress && self.sleep().is_err() && self.renew().is_err() {
                return;
            }
        }
    }

    /// Takes requests until there are none, there is no room, or it is time to answer. Returns
    /// whether there were any. Sleeps until the first one if nothing else can happen.
    fn take_requests(&mut self) -> bool {
        self.submit_waiting();
        let quick = self.devices.len() - 1;
        let never_blocks = self.waiter.is_some() || quick > 0;
        let somebody_waits = self.under_way.len() > 0 || !self.answers.is_empty();
        let mut device = if somebody_waits { quick } else { 0 };
        let mut taken = 0;
        self.round_bytes = 0;
        if self.waiter.is_none() && !somebody_waits {
            // Tells the queue that the thread may sleep, in `receive`.
            let _ = self.queue.may_sleep();
        }
        while self.takes_more() && (never_blocks || !somebody_waits) {
            let received = self.take_request(device);
            taken += usize::from(received != Received::Nothing);
            if received == Received::Nothing || !never_blocks || taken == ROUND_MAX {
                break;
            }
            device = quick;
        }
        taken > 0
    }

    fn takes_more(&mut self) -> bool {
        if self.gone
            || !self.backlog.is_empty()
            || self.under_way.len() == DEPTH as usize
            || self.round_bytes >= ROUND_BYTES
        {
            return false;
        }
        if self.buffer.is_none() {
            // Memory is short only while requests are under way.
            self.buffer = self.queue.alloc(REQUEST_MAX as usize);
        }
        self.buffer.is_some()
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
                (Success::Data, Work::Io(Io::read(offset, len)))
            }
            Outcome::Do { io, refuse: false } => (Success::Data, Work::Io(io)),
            Outcome::Do { io, refuse: true } => (Success::Refused, Work::Io(io)),
            Outcome::Write { offset, len, fua } => {
                self.round_bytes += len;
                let buffer = if len < HANDED_OVER_MIN { None } else { self.buffer.take() };
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
        while let Some(Done { tag, result, data }) = self.queue.next_done() {
            any = true;
            let Some(Pending { unique, device, success }) = self.under_way.remove(tag) else {
                continue;
            };
            let result = result.and_then(|()| match success {
                Success::Refused => Err(Errno::OPNOTSUPP),
                Success::Written(len) => Ok(Payload::Body(Body::written(len))),
                Success::Data => Ok(data.map_or(Payload::NOTHING, Payload::Data)),
            });
            self.answer(device, unique, result);
        }
        any
    }

    fn answer(&mut self, device: usize, unique: u64, result: Result<Payload, Errno>) {
        self.answers.put(&self.devices, device, unique, result);
    }

    /// Replaces a broken engine queue: its requests fail, the next ones get the new queue.
    fn renew(&mut self) -> io::Result<()> {
        for Pending { unique, device, .. } in self.under_way.drain() {
            self.answers.put(&self.devices, device, unique, Err(Errno::IO));
        }
        self.answers.send(&self.devices);
        self.queue = self.file.volume.queue(QUEUE)?;
        if self.waiter.is_some() {
            self.waiter = Some(waiter(&self.devices[0], &self.queue)?);
        }
        Ok(())
    }

    /// Sleeps until there is a request that can be taken, or a completion.
    fn sleep(&mut self) -> io::Result<()> {
        let is_full = !self.backlog.is_empty()
            || self.buffer.is_none()
            || self.under_way.len() == DEPTH as usize;
        match &self.waiter {
            None => self.queue.wait(),
            Some(_) if self.gone || is_full => sleep_for_queue(&mut self.queue),
            Some(waiter) => waiter.sleep(&mut self.queue, None, |_, _| {}),
        }
    }
}

impl Submitter for Classic {
    type Request = (Pending, Work);

    fn backlog(&mut self) -> &mut VecDeque<Self::Request> {
        &mut self.backlog
    }

    fn offer(&mut self, (pending, work): Self::Request) -> Result<(), Self::Request> {
        let Some(tag) = self.under_way.insert(pending) else { return Err((pending, work)) };
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
        self.under_way.remove(tag);
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
        self.under_way.len() > 0 || !self.answers.is_empty()
    }

    fn give_up(&mut self, (pending, _): Self::Request) {
        self.answer(pending.device, pending.unique, Err(Errno::NOMEM));
    }
}

/// Creates a waiter for requests and completions. A request wakes one thread, not all.
fn waiter(device: &Device, queue: &Queue) -> io::Result<Waiter> {
    let mut waiter = Waiter::new(queue)?;
    waiter.watch(0, device, EventFlags::IN | EventFlags::EXCLUSIVE)?;
    Ok(waiter)
}
