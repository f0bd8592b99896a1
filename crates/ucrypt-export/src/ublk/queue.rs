//! One queue of a device: the loop of a thread between the kernel's requests and the engine.
//!
//! - A tag is in one of three places: with the kernel (a command is in flight), with the engine (a
//!   request is in flight), or in `backlog`, because the engine had no room. An append to a zone may
//!   also be parked, see `zones`.
//! - A request ends in exactly one commit, which is also the tag's next fetch.
//! - The loop ends when the kernel has given every tag back, because the device was stopped or
//!   deleted; or when the engine's queue or the ring breaks. Its descriptors are then closed, and
//!   the kernel fails the requests or keeps them for the next server.
//!
//! Depth and the engine's pool bound the memory, which is all taken at start.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use ucrypt_engine::{Buf, Done, Io, Queue, VolumeZones};

use super::abi::Descriptor;
use super::commands::{self, Commands};
use super::data::Data;
use super::descriptors::Descriptors;
use super::zones::Zones;
use crate::backlog::Submitter;

/// Which queue of a device, and its bounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueueParams {
    pub(super) queue: u16,
    pub(super) depth: u16,
    /// Largest request, in bytes.
    pub(super) io_bytes_max: u32,
    /// Bytes of the engine queue's own buffer memory.
    pub(super) memory: usize,
    /// Whether we copy the data, not the kernel.
    pub(super) user_copy: bool,
}

/// A queue's state. Fields drop in order: first the engine's queue, whose ring has the commands.
pub(super) struct Server {
    engine: Queue,
    commands: Commands,
    data: Data,
    descriptors: Descriptors,
    zones: Option<Zones>,
    params: QueueParams,
    backlog: VecDeque<u16>,
    /// Tags that the kernel has not given back for good.
    live: u16,
}

/// Why a request did not go to the engine.
enum NotStarted {
    /// There will be room after a completion.
    Later,
    /// The request was already carried out, or refused.
    Ended(Result<(), Errno>),
}

fn refused(error: Errno) -> NotStarted {
    NotStarted::Ended(Err(error))
}

impl Server {
    /// Attaches to the device and fetches the first request of every tag. `engine` must have a
    /// ring; `zones` are those of a zoned device.
    pub(super) fn attach(
        engine: Queue,
        device: Arc<File>,
        params: QueueParams,
        zones: Option<VolumeZones>,
    ) -> io::Result<Self> {
        let QueueParams { queue, depth, io_bytes_max, user_copy, .. } = params;
        let mut server = Self {
            engine,
            descriptors: Descriptors::map(&device, queue, depth)?,
            data: if user_copy {
                Data::UserCopy { device: device.clone(), queue }
            } else {
                Data::buffers(depth, io_bytes_max)?
            },
            commands: Commands::new(device, queue),
            zones: zones.map(|zones| Zones::new(zones, depth)),
            params,
            backlog: VecDeque::with_capacity(usize::from(depth)),
            live: depth,
        };
        for tag in 0..depth {
            server.commands.fetch(&mut server.engine, &mut server.data, tag);
        }
        server.engine.poll()?;
        // The kernel refuses a fetch at once or not at all, and sends no requests before the device
        // runs. So any completion here is an error.
        match commands::next(&mut server.engine) {
            Some(fetched) => Err(fetched.result.err().unwrap_or(Errno::PROTO).into()),
            None => Ok(server),
        }
    }

    /// Serves until the device ends.
    pub(super) fn run(mut self) -> io::Result<()> {
        while self.live > 0 {
            while let Some(fetched) = commands::next(&mut self.engine) {
                match fetched.result {
                    Ok(()) => self.submit(fetched.tag),
                    // The device was stopped or is gone.
                    Err(_) => self.live -= 1,
                }
            }
            while let Some(done) = self.engine.next_done() {
                self.answer(&done);
            }
            self.submit_waiting();
            self.engine.wait()?;
        }
        Ok(())
    }

    /// The append that may start because that of `tag` has ended. `tag` must not be committed yet.
    fn next_append(&mut self, tag: u16) -> Option<u16> {
        let zones = self.zones.as_mut()?;
        let request = self.descriptors.read(tag)?;
        let is_append = request.op() == Descriptor::ZONE_APPEND;
        is_append.then(|| zones.next(request.start_sector.saturating_mul(512))).flatten()
    }

    fn start(&mut self, tag: u16) -> Result<(), NotStarted> {
        let request = self.descriptors.read(tag).ok_or(refused(Errno::INVAL))?;
        // The range of a flush means nothing. Any other request is refused if its saturated offset
        // lies beyond the volume.
        let offset = request.start_sector.saturating_mul(512);
        let len = u64::from(request.sectors) * 512;
        let io = match request.op() {
            Descriptor::READ => Io::read(offset, self.data_len(len)?),
            Descriptor::WRITE => {
                let data = self.take_data(tag, len)?;
                Io::write(offset, data, request.is_fua())
            }
            Descriptor::ZONE_APPEND => return self.append(tag, request),
            Descriptor::FLUSH => Io::Flush,
            Descriptor::DISCARD => Io::Discard { offset, len },
            Descriptor::WRITE_ZEROES => Io::WriteZeroes {
                offset,
                len,
                fua: request.is_fua(),
                no_unmap: request.is_no_unmap(),
                fast: false,
            },
            Descriptor::REPORT_ZONES => {
                return Err(NotStarted::Ended(self.report_zones(tag, request)));
            }
            op => match (&self.zones, Zones::change(op, offset)) {
                (Some(_), Some(change)) => Io::Zones(change),
                _ => return Err(refused(Errno::OPNOTSUPP)),
            },
        };
        self.hand_over(tag, io)
    }

    /// Starts an append: a write at an offset that we choose.
    fn append(&mut self, tag: u16, request: Descriptor) -> Result<(), NotStarted> {
        let len = u64::from(request.sectors) * 512;
        let zones = self.zones.as_mut().ok_or(refused(Errno::OPNOTSUPP))?;
        let start = request.start_sector.saturating_mul(512);
        let placed = zones.place(tag, start, len).map_err(refused)?;
        // `None`: the append was parked.
        let Some(offset) = placed else { return Ok(()) };
        let data = self.take_data(tag, len)?;
        self.hand_over(tag, Io::write(offset, data, request.is_fua()))?;
        if let Some(zones) = &mut self.zones {
            zones.appending(tag, offset);
        }
        Ok(())
    }

    /// Reports on zones, also while the volume has no key: the device knows them without it.
    fn report_zones(&mut self, tag: u16, request: Descriptor) -> Result<(), Errno> {
        let zones = self.zones.as_ref().ok_or(Errno::OPNOTSUPP)?;
        let start = request.start_sector.saturating_mul(512);
        zones.report(start, request.sectors, |bytes, at| self.data.give(tag, bytes, at))
    }

    fn take_data(&mut self, tag: u16, len: u64) -> Result<Buf, NotStarted> {
        let len = self.data_len(len)?;
        let mut data = self.engine.alloc(len).ok_or(NotStarted::Later)?;
        self.data.take(tag, &mut data).map_err(refused)?;
        Ok(data)
    }

    fn hand_over(&mut self, tag: u16, io: Io<'_>) -> Result<(), NotStarted> {
        self.engine
            .submit(u64::from(tag), io)
            .map_err(|rejected| rejected.errno().map_or(NotStarted::Later, refused))
    }

    /// The length of a request's data, if it is within the agreed limit.
    fn data_len(&self, len: u64) -> Result<usize, NotStarted> {
        match u32::try_from(len) {
            Ok(len) if len > 0 && len <= self.params.io_bytes_max => Ok(len as usize),
            _ => Err(refused(Errno::INVAL)),
        }
    }

    /// Answers a request that the engine has completed.
    fn answer(&mut self, done: &Done) {
        let Ok(tag) = u16::try_from(done.tag) else { return };
        let result = done.result.and_then(|()| match &done.data {
            Some(data) => self.data.give(tag, data, 0),
            None => Ok(()),
        });
        let Some(zones) = &mut self.zones else { return self.commit(tag, result) };
        let at = match self.descriptors.read(tag) {
            Some(request)
                if matches!(request.op(), Descriptor::WRITE | Descriptor::ZONE_APPEND) =>
            {
                let (start, len) = (request.start_sector, u64::from(request.sectors) * 512);
                zones.wrote(tag, start.saturating_mul(512), len, result.is_ok())
            }
            Some(request) => {
                zones.changed(request.op(), request.start_sector.saturating_mul(512));
                None
            }
            None => None,
        };
        let next = self.next_append(tag);
        match at.filter(|_| result.is_ok()) {
            Some(at) => self.commands.commit_append(&mut self.engine, at / 512, tag),
            None => self.commit(tag, result),
        }
        if let Some(next) = next {
            self.submit(next);
        }
    }

    fn commit(&mut self, tag: u16, result: Result<(), Errno>) {
        let result = match result {
            // All the bytes that the kernel counts for this request.
            Ok(()) => self.bytes(tag),
            Err(error) => -error.raw_os_error(),
        };
        self.commands.commit(&mut self.engine, &mut self.data, tag, result);
    }

    /// Bytes of a read, write or report; 0 for other requests.
    fn bytes(&self, tag: u16) -> i32 {
        let bytes = self.descriptors.read(tag).and_then(|request| match request.op() {
            Descriptor::READ | Descriptor::WRITE => request.sectors.checked_mul(512),
            // The kernel counts to the end of the buffer, which may be longer than the report.
            Descriptor::REPORT_ZONES => Some(self.params.io_bytes_max),
            _ => Some(0),
        });
        bytes.and_then(|bytes| i32::try_from(bytes).ok()).unwrap_or(0)
    }
}

impl Submitter for Server {
    type Request = u16;

    fn backlog(&mut self) -> &mut VecDeque<u16> {
        &mut self.backlog
    }

    /// The request that has to wait may also be an append that can start because this one ended.
    fn offer(&mut self, tag: u16) -> Result<(), u16> {
        let mut next = Some(tag);
        while let Some(tag) = next {
            match self.start(tag) {
                Ok(()) => return Ok(()),
                Err(NotStarted::Later) => return Err(tag),
                Err(NotStarted::Ended(result)) => {
                    next = self.next_append(tag);
                    self.commit(tag, result);
                }
            }
        }
        Ok(())
    }

    fn awaits_room(&self) -> bool {
        self.engine.in_flight() > 0
    }

    fn give_up(&mut self, tag: u16) {
        self.engine.given_up();
        let next = self.next_append(tag);
        self.commit(tag, Err(Errno::NOMEM));
        // The loop of `run` submits it before it waits.
        self.backlog.extend(next);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.engine.ring().is_some_and(|ring| ring.under_way() > 0) {
            self.data.leak();
        }
    }
}
