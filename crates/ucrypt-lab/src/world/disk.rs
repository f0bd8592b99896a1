//! The disk: the timing of a device model, and optionally its content, which can be mapped.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use ucrypt_backend::model::{Device, DeviceOp, Kind, Profile};
use ucrypt_backend::{
    Backend, Done, Errno, Extent, Io, Limits, Map, Pool, Queue, SharedRing, Zones, total_len,
};

use super::caches::addresses;
use super::content::{Content, VirtualMap};
use super::host::{Host, SharedHost};

/// An operation under way.
#[derive(Debug)]
pub(super) struct Operation {
    queue: usize,
    io: Io,
    at_ns: u64,
    content: Option<Arc<Mutex<Content>>>,
    refused: bool,
}

/// A disk of a [`World`](super::World), shared by its queues.
pub struct VirtualDisk {
    host: Arc<SharedHost>,
    device: Arc<Mutex<Device>>,
    /// `None`: the disk keeps none.
    content: Option<Arc<Mutex<Content>>>,
    mapping: Option<Arc<VirtualMap>>,
    limits: Limits,
    name: &'static str,
}

impl VirtualDisk {
    pub(super) fn new(
        host: Arc<SharedHost>,
        profile: &'static Profile,
        len: u64,
        keeps: bool,
        seed: u64,
    ) -> Self {
        let copies = host.lock().costs.copy.is_some();
        Self {
            host,
            device: Arc::new(Mutex::new(Device::new(profile, seed))),
            content: keeps.then(|| Arc::new(Mutex::new(Content::new(len)))),
            mapping: None,
            limits: Limits { copies, ..profile.limits(len) },
            name: profile.name,
        }
    }

    /// The same disk with its bytes in place. The mapping breaks at its `breaks_at`-th use.
    pub(super) fn mapped(self, breaks_at: Option<u64>) -> Self {
        let content = self.content.clone();
        let mapping = content.map(|content| Arc::new(VirtualMap::new(content, breaks_at)));
        Self { mapping, ..self }
    }
}

pub(super) fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn device_op(io: &Io) -> DeviceOp {
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
    /// Completes an operation of the disk. Returns its queue, unless it is already completed.
    pub(super) fn disk_answers(&mut self, number: u64) -> Option<usize> {
        let Operation { queue, mut io, content, refused, .. } = self.operations.remove(&number)?;
        let result = match content {
            _ if refused => Err(Errno::IO),
            Some(content) => lock(&content).carry_out(&mut io),
            None => Ok(()),
        };
        let (token, bufs) = io.into_parts();
        self.answers[queue].push((number, Done { token, result, bufs }));
        Some(queue)
    }
}

impl Backend for VirtualDisk {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn len_now(&self) -> io::Result<u64> {
        Ok(self.limits.len)
    }

    fn use_until(&self, _end: u64) {}

    fn queue(&self, depth: u32) -> io::Result<Box<dyn Queue>> {
        let index = self.host.lock().making;
        Ok(Box::new(DiskQueue {
            host: self.host.clone(),
            device: self.device.clone(),
            content: self.content.clone(),
            len: self.limits.len,
            synchronous: self.limits.synchronous,
            index,
            depth: depth as usize,
            staged: Vec::new(),
            copies: VecDeque::new(),
            under_way: 0,
        }))
    }

    fn extents(&self, _offset: u64, len: u64, max: usize) -> Vec<Extent> {
        (0..max.min(1)).map(|_| Extent { len, hole: false }).collect()
    }

    fn map(&self) -> Option<Arc<dyn Map>> {
        self.mapping.clone().map(|mapping| mapping as Arc<dyn Map>)
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
    content: Option<Arc<Mutex<Content>>>,
    /// Bytes of the disk.
    len: u64,
    synchronous: bool,
    /// Index of this queue in the world.
    index: usize,
    depth: usize,
    /// Operations for the next call that submits them to the disk.
    staged: Vec<Io>,
    /// Operations submitted to the disk whose data this thread has still to copy, with the
    /// nanoseconds that takes.
    copies: VecDeque<(u64, u64)>,
    /// Operations accepted and not answered.
    under_way: usize,
}

impl DiskQueue {
    /// Submits the operation to the device now; returns its number.
    fn begin(&mut self, host: &mut Host, io: Io) -> u64 {
        let op = device_op(&io);
        let fits = op.offset.checked_add(op.len).is_some_and(|end| end <= self.len);
        let answered = lock(&self.device).submit(host.now_ns, op);
        let refused = answered.is_err() || !fits;
        let at_ns = answered.unwrap_or(host.now_ns).max(host.now_ns);
        let copy_ns = self.copy_ns(host, &io);
        let content = self.content.clone();
        let operation = Operation { queue: self.index, io, at_ns, content, refused };
        let number = host.operation(at_ns, operation);
        if copy_ns > 0 {
            self.copies.push_back((number, copy_ns));
        }
        number
    }

    /// Time for the submitting thread to copy the operation's data, including fetching data that
    /// another core has encrypted from that core's cache.
    fn copy_ns(&self, host: &mut Host, io: &Io) -> u64 {
        let mut carried = 0;
        if let Io::Write { bufs, .. } = io {
            let core = host.core_of(self.index);
            for buf in bufs {
                carried += host.caches.take(addresses(buf), core);
            }
        }
        match host.costs.copy_ns(io) {
            0 => 0,
            ns => ns + host.costs.carry_ns(carried),
        }
    }

    fn hand_on(&mut self, host: &mut Host) {
        if !self.staged.is_empty() {
            host.now_ns += host.costs.enter.unwrap_or(0);
        }
        for io in std::mem::take(&mut self.staged) {
            self.begin(host, io);
        }
    }

    /// Copies all data not copied yet, up to that of an operation.
    fn copy_up_to(&mut self, host: &mut Host, operation: u64) {
        let before = self.copies.partition_point(|&(number, _)| number <= operation);
        host.now_ns += self.copies.drain(..before).map(|(_, ns)| ns).sum::<u64>();
    }

    fn take_answers(&mut self, host: &mut Host, done: &mut Vec<Done>) {
        for (number, answer) in std::mem::take(&mut host.answers[self.index]) {
            self.copy_up_to(host, number);
            // A synchronous answer needs no search.
            host.now_ns += if self.synchronous { 0 } else { host.costs.answer };
            self.under_way -= 1;
            done.push(answer);
        }
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
            host.now_ns = host.now_ns.max(host.operations[&number].at_ns);
            host.disk_answers(number);
        } else if host.costs.enter.is_none() {
            self.begin(&mut host, io);
        } else {
            self.staged.push(io);
        }
    }

    /// Copies data when there is nothing else to do.
    fn poll(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        let host = self.host.clone();
        let mut host = host.lock();
        self.hand_on(&mut host);
        let before = done.len();
        self.take_answers(&mut host, done);
        if done.len() == before
            && let Some(&(number, _)) = self.copies.front()
        {
            self.copy_up_to(&mut host, number);
        }
        Ok(())
    }

    /// Waits outside the order of events, for the next answer of this queue.
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

    fn shared_ring(&mut self) -> Option<SharedRing<'_>> {
        None
    }
}
