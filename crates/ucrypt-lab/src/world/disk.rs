//! The disk: a device model's timing, and its content.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ucrypt_backend::model::{Device, DeviceOp, Kind, Profile};
use ucrypt_backend::{
    Backend, Done, Errno, Extent, Guest, Io, Limits, Map, Pool, Queue, Zones, total_len,
};

use super::host::{Host, SharedHost};

/// An operation under way.
#[derive(Debug)]
pub(super) struct Operation {
    queue: usize,
    io: Io,
    at_ns: u64,
    content: Arc<Mutex<Vec<u8>>>,
    refused: bool,
}

/// A disk of a [`World`](super::World), shared by its queues.
pub struct VirtualDisk {
    host: Arc<SharedHost>,
    device: Arc<Mutex<Device>>,
    content: Arc<Mutex<Vec<u8>>>,
    limits: Limits,
    name: &'static str,
    queues: AtomicUsize,
}

impl VirtualDisk {
    pub(super) fn new(
        host: Arc<SharedHost>,
        profile: &'static Profile,
        len: u64,
        seed: u64,
    ) -> Self {
        Self {
            host,
            device: Arc::new(Mutex::new(Device::new(profile, seed))),
            content: Arc::new(Mutex::new(vec![0; len as usize])),
            limits: profile.limits(len),
            name: profile.name,
            queues: AtomicUsize::new(0),
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn device_op(io: &Io) -> DeviceOp {
    match io {
        Io::Read { offset, bufs, .. } => {
            DeviceOp { kind: Kind::Read, offset: *offset, len: total_len(bufs) as u64 }
        }
        Io::Write { offset, bufs, fua, .. } => {
            let kind = Kind::Write { fua: *fua };
            DeviceOp { kind, offset: *offset, len: total_len(bufs) as u64 }
        }
        Io::Flush { .. } => DeviceOp { kind: Kind::Flush, offset: 0, len: 0 },
        Io::Discard { offset, len, .. } => {
            DeviceOp { kind: Kind::Discard, offset: *offset, len: *len }
        }
        Io::WriteZeroes { offset, len, .. } => {
            DeviceOp { kind: Kind::WriteZeroes, offset: *offset, len: *len }
        }
    }
}

impl Host {
    /// The disk has carried an operation out. Returns whose it was, unless it was waited for.
    pub(super) fn disk_answers(&mut self, operation: u64) -> Option<usize> {
        let Operation { queue, io, content, refused, .. } = self.operations.remove(&operation)?;
        let done = carry_out(io, &mut lock(&content), refused);
        self.answers[queue].push(done);
        Some(queue)
    }
}

fn carry_out(mut io: Io, content: &mut [u8], refused: bool) -> Done {
    let DeviceOp { offset, len, .. } = device_op(&io);
    let range = offset as usize..(offset + len) as usize;
    let place = content.get_mut(range);
    let result = match (&mut io, place) {
        (Io::Flush { .. }, _) if !refused => Ok(()),
        (_, None) => Err(Errno::IO),
        _ if refused => Err(Errno::IO),
        (Io::Read { bufs, .. }, Some(mut place)) => {
            for buf in bufs {
                let (part, rest) = place.split_at_mut(buf.len());
                buf.copy_from_slice(part);
                place = rest;
            }
            Ok(())
        }
        (Io::Write { bufs, .. }, Some(mut place)) => {
            for buf in bufs {
                let (part, rest) = place.split_at_mut(buf.len());
                part.copy_from_slice(buf);
                place = rest;
            }
            Ok(())
        }
        (_, Some(place)) => {
            place.fill(0);
            Ok(())
        }
    };
    let (token, bufs) = io.into_parts();
    Done { token, result, bufs }
}

impl Backend for VirtualDisk {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn len_now(&self) -> io::Result<u64> {
        Ok(self.limits.len)
    }

    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
        let index = self.queues.fetch_add(1, Ordering::Relaxed) % self.host.lock().queues();
        Ok(Box::new(DiskQueue {
            host: self.host.clone(),
            device: self.device.clone(),
            content: self.content.clone(),
            synchronous: self.limits.synchronous,
            index,
            depth: depth as usize,
            staged: Vec::new(),
            under_way: 0,
        }))
    }

    fn extents(&self, _offset: u64, len: u64, max: usize) -> Vec<Extent> {
        (0..max.min(1)).map(|_| Extent { len, hole: false }).collect()
    }

    fn map(&self) -> Option<Arc<dyn Map>> {
        None
    }

    fn zones(&self) -> Option<&dyn Zones> {
        None
    }

    fn describe(&self) -> String {
        format!("{} in virtual time", self.name)
    }
}

struct DiskQueue {
    host: Arc<SharedHost>,
    device: Arc<Mutex<Device>>,
    content: Arc<Mutex<Vec<u8>>>,
    synchronous: bool,
    /// Of the world's queues.
    index: usize,
    depth: usize,
    staged: Vec<Io>,
    /// Accepted and not answered.
    under_way: usize,
}

impl DiskQueue {
    /// The operation reaches the device now.
    fn begin(&self, host: &mut Host, io: Io) -> u64 {
        let answered = lock(&self.device).submit(host.now_ns, device_op(&io));
        let refused = answered.is_err();
        let at_ns = answered.unwrap_or(host.now_ns).max(host.now_ns);
        let content = self.content.clone();
        let operation = Operation { queue: self.index, io, at_ns, content, refused };
        host.operation(at_ns, operation)
    }

    fn hand_on(&mut self, host: &mut Host) {
        if !self.staged.is_empty() {
            host.now_ns += host.costs.enter.unwrap_or(0);
        }
        for io in std::mem::take(&mut self.staged) {
            self.begin(host, io);
        }
    }

    fn take_answers(&mut self, host: &mut Host, done: &mut Vec<Done>) {
        let answers = &mut host.answers[self.index];
        self.under_way -= answers.len();
        host.now_ns += host.costs.answer * answers.len() as u64;
        done.append(&mut host.answers[self.index]);
    }
}

impl Queue for DiskQueue {
    fn room(&self) -> usize {
        self.depth.saturating_sub(self.under_way)
    }

    fn submit(&mut self, io: Io) {
        assert!(self.room() > 0, "submit without room");
        self.under_way += 1;
        let host = self.host.clone();
        let mut host = host.lock();
        host.now_ns += host.costs.submit;
        if self.synchronous {
            let number = self.begin(&mut host, io);
            let at_ns = host.operations[&number].at_ns;
            host.now_ns = host.now_ns.max(at_ns);
            host.disk_answers(number);
        } else {
            self.staged.push(io);
        }
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        let host = self.host.clone();
        let mut host = host.lock();
        self.hand_on(&mut host);
        self.take_answers(&mut host, done);
        Ok(())
    }

    /// Whoever waits, waits outside the order of events: for the next answer of this queue.
    fn wait(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        let host = self.host.clone();
        let mut host = host.lock();
        self.hand_on(&mut host);
        if host.answers[self.index].is_empty() {
            let mine = host.operations.iter().filter(|(_, of)| of.queue == self.index);
            let next = mine.map(|(number, of)| (of.at_ns, *number)).min();
            if let Some((at_ns, number)) = next {
                host.now_ns = host.now_ns.max(at_ns);
                host.disk_answers(number);
            }
        }
        self.take_answers(&mut host, done);
        Ok(())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn register(&mut self, _pool: &Pool) -> bool {
        false
    }

    fn guest(&mut self) -> Option<Guest<'_>> {
        None
    }
}
