//! The engine's queue as a port, and the volumes of tests.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::str::FromStr as _;
use std::sync::Arc;

use ucrypt_backend::{Backend, Buf, Pool};
use ucrypt_engine::{
    Calibration, CipherModel, Io, Policies, Queue, QueueConfig, Rejected, Segment, Urgency, Volume,
    VolumeInfo, VolumeOptions,
};
use ucrypt_lab::world::World;
use ucrypt_sector::{CipherSpec, SectorCipher, SectorOptions};

use crate::client::Client;
use crate::foreign::{ForeignMemory, Places};
use crate::model::Tag;
use crate::operation::{Kind, Operation};
use crate::port::{Completion, Port, Submitted};
use crate::random::Random;

/// AES-256-XTS with a fixed key.
///
/// # Panics
/// If no sector has this size.
pub fn aes(sector_size: u32) -> SectorCipher {
    let spec = CipherSpec::from_str("aes-xts-plain64").expect("a known cipher");
    let key: Vec<u8> = (0..64).collect();
    let options = SectorOptions { sector_size, iv_offset: 0, iv_large_sectors: false };
    SectorCipher::new(&spec, &key, options).expect("a key that fits")
}

/// What exports tell their clients about a volume of 10 MiB with sectors of 512 bytes, which takes
/// no discards.
pub fn volume_info() -> VolumeInfo {
    VolumeInfo {
        len: 10 << 20,
        sector_size: 512,
        write_unit: 512,
        preferred_io: 4096,
        read_only: false,
        discard: false,
        fast_write_zeroes: false,
        synchronous: false,
        rotational: false,
    }
}

/// The properties of a test's volumes.
#[derive(Debug, Clone, Copy)]
pub struct VolumeKind {
    /// 512 or 4096; `None`: not encrypted.
    pub sector_size: Option<u32>,
    /// The policies that dispatch requests.
    pub policies: Policies,
    /// Number of workers; 0: the thread of the queue does all transforms.
    pub workers: usize,
    /// Where the volume begins, in bytes of the backend.
    pub offset: u64,
    /// Bytes of buffer memory that the queues share.
    pub shared_memory: usize,
}

impl VolumeKind {
    /// The same, with an offset of at least `offset` that the backend allows.
    #[must_use]
    pub fn fitting(self, backend: &dyn Backend) -> Self {
        let unit = u64::from(backend.limits().write_unit);
        Self { offset: self.offset.next_multiple_of(unit), ..self }
    }

    /// A volume of `len` bytes over `backend`.
    ///
    /// # Panics
    /// If the backend is too short, or does not allow the offset or length.
    pub fn over(&self, backend: Arc<dyn Backend>, len: u64) -> Arc<Volume> {
        Arc::new(Volume::new(backend, vec![self.segment(len)], self.options()).expect("a volume"))
    }

    /// The same in virtual time, with a cipher of 1 GB/s and the world's workers.
    ///
    /// # Panics
    /// If the backend is too short.
    pub fn in_world(&self, world: &World, backend: Arc<dyn Backend>, len: u64) -> Arc<Volume> {
        let cipher_model = Some(CipherModel { ns_per_byte: 1.0, ns_per_call: 60 });
        let options = VolumeOptions { cipher_model, ..self.options() };
        let executor = world.executor(None, Calibration::default());
        let volume = Volume::with_executor(backend, vec![self.segment(len)], options, executor);
        Arc::new(volume.expect("a volume"))
    }

    fn segment(&self, len: u64) -> Segment {
        Segment { len, backend_offset: self.offset, cipher: self.sector_size.map(aes) }
    }

    fn options(&self) -> VolumeOptions {
        VolumeOptions {
            policies: self.policies,
            workers: Some(self.workers),
            allow_discards: true,
            shared_memory: self.shared_memory,
            ..VolumeOptions::default()
        }
    }
}

/// Reads the content of a volume after a crash and checks it against the client's model.
///
/// # Panics
/// If the volume holds data that it may not hold.
pub fn check_after_crash(volume: &Arc<Volume>, client: &Client) {
    let len = volume.info().len as usize;
    let config = QueueConfig::new(2 * len.next_power_of_two(), 1);
    let mut queue = volume.queue(config).expect("a queue");
    queue.submit(0, Io::read(0, len)).expect("room for all of it");
    while !queue.has_done() {
        queue.wait().expect("the backend works");
    }
    let done = queue.next_done().expect("it was just there");
    done.result.expect("it is read");
    let bytes = done.data.expect("a read has data");
    if let Err(mismatch) = client.model().check_after_crash(0, &bytes) {
        panic!("{mismatch}");
    }
}

/// A queue of the engine as a port. Submits in every possible way: buffers of the queue, borrowed
/// bytes, and the client's own memory in pieces.
pub struct EnginePort {
    queue: Rc<RefCell<Queue>>,
    /// The world of the queue, and the queue's index there.
    world: Option<(Rc<RefCell<World>>, usize)>,
    random: Random,
    /// The client's own memory, for writes.
    pool: Pool,
    /// By read under way: the client's own memory, and where in it the data comes.
    reads: HashMap<Tag, (ForeignMemory, Places)>,
    /// Whether [`Port::poll`] may sleep.
    waits: bool,
}

impl EnginePort {
    /// A queue of the volume. `waits`: [`Port::poll`] may sleep for an answer.
    ///
    /// # Errors
    /// The errors of the queue.
    pub fn new(
        volume: &Arc<Volume>,
        config: QueueConfig,
        seed: u64,
        waits: bool,
    ) -> io::Result<Self> {
        let queue = Rc::new(RefCell::new(volume.queue(config)?));
        Self::over(queue, None, seed, waits)
    }

    /// Queue `index` of a world, which advances when the port is polled.
    ///
    /// # Errors
    /// The errors of the queue.
    pub fn in_world(
        world: &Rc<RefCell<World>>,
        index: usize,
        volume: &Arc<Volume>,
        config: QueueConfig,
        seed: u64,
    ) -> io::Result<Self> {
        let queue = world.borrow_mut().queue(volume, config)?;
        Self::over(queue, Some((world.clone(), index)), seed, false)
    }

    fn over(
        queue: Rc<RefCell<Queue>>,
        world: Option<(Rc<RefCell<World>>, usize)>,
        seed: u64,
        waits: bool,
    ) -> io::Result<Self> {
        let (random, pool) = (Random::new(seed), Pool::new(16 << 20)?);
        Ok(Self { queue, world, random, pool, reads: HashMap::new(), waits })
    }

    /// Polls the queue, or advances its world.
    fn work(&mut self, wait: bool) -> io::Result<()> {
        let Some((world, _)) = &self.world else { return self.poll_queue(wait) };
        while world.borrow_mut().advance() && wait && !self.queue.borrow().has_done() {}
        Ok(())
    }

    /// Tells the world that there is something new for the queue.
    fn call(&self) {
        if let Some((world, index)) = &self.world {
            world.borrow().call(*index);
        }
    }

    fn poll_queue(&mut self, wait: bool) -> io::Result<()> {
        let mut queue = self.queue.borrow_mut();
        queue.poll()?;
        // Not `wait`, which has no time limit; briefly, since this thread serves all queues and another
        // one may hold what this one waits for.
        if wait && self.waits && queue.may_sleep() {
            let patience = rustix::event::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            let fd = rustix::event::PollFd::from_borrowed_fd(
                queue.wait_fd(),
                rustix::event::PollFlags::IN,
            );
            let _ = rustix::event::poll(&mut [fd], Some(&patience));
            queue.poll()?;
        }
        Ok(())
    }

    /// The client's bytes, copied to pieces of its own memory.
    fn pieces(&mut self, data: &[u8]) -> Option<Vec<Buf>> {
        let mut pieces = Vec::new();
        let mut rest = data;
        while !rest.is_empty() {
            let len = (self.random.length(64 << 10) as usize).min(rest.len());
            let mut piece = self.pool.alloc(len)?;
            piece.copy_from_slice(&rest[..len]);
            pieces.push(piece);
            rest = &rest[len..];
        }
        Some(pieces)
    }

    fn alloc(&self, len: usize) -> Option<Buf> {
        self.queue.borrow_mut().alloc(len)
    }

    fn submit_io(&self, tag: Tag, io: Io<'_>) -> Submitted {
        match self.queue.borrow_mut().submit(tag, io) {
            Ok(()) => Submitted::Accepted,
            Err(Rejected::Busy(_)) => Submitted::Busy,
            Err(_) => Submitted::Refused,
        }
    }

    fn read(&mut self, tag: Tag, offset: u64, len: usize) -> Submitted {
        let own = ForeignMemory::new(len + len / 8 + 1000);
        let align = [1, 512, 4096][self.random.below(3) as usize];
        let placed = match self.random.below(2) {
            0 => own.pieces(&mut self.random, len, align),
            _ => None,
        };
        let Some((mut pieces, places)) = placed else {
            return self.submit_io(tag, Io::read(offset, len));
        };
        let submitted = self.submit_io(tag, Io::read_into(offset, &mut pieces));
        if submitted == Submitted::Accepted {
            self.reads.insert(tag, (own, places));
        }
        submitted
    }

    fn write(&mut self, tag: Tag, offset: u64, data: &[u8], fua: bool) -> Submitted {
        match self.random.below(3) {
            0 if let Some(mut buf) = self.alloc(data.len()) => {
                buf.copy_from_slice(data);
                self.submit_io(tag, Io::write(offset, buf, fua))
            }
            1 if let Some(mut pieces) = self.pieces(data) => {
                self.submit_io(tag, Io::write_scattered(offset, &mut pieces, fua))
            }
            _ => self.submit_io(tag, Io::write_borrowed(offset, data, fua)),
        }
    }
}

impl Port for EnginePort {
    fn submit(&mut self, tag: Tag, operation: &Operation, data: &[u8]) -> Submitted {
        let Operation { kind, offset, len } = *operation;
        if let Some((world, index)) = &self.world {
            world.borrow().act_for(*index);
        }
        let urgency = match self.random.below(8) {
            0 => Urgency::Urgent,
            1 => Urgency::Background,
            _ => Urgency::Normal,
        };
        self.queue.borrow_mut().set_urgency(urgency);
        let submitted = match kind {
            Kind::Read => self.read(tag, offset, len as usize),
            Kind::Write { fua } => self.write(tag, offset, data, fua),
            Kind::WriteZeroes { fua } => {
                let no_unmap = self.random.percent(50);
                self.submit_io(tag, Io::WriteZeroes { offset, len, fua, no_unmap, fast: false })
            }
            Kind::Discard => self.submit_io(tag, Io::Discard { offset, len }),
            Kind::Flush => self.submit_io(tag, Io::Flush),
        };
        if submitted == Submitted::Accepted {
            self.call();
        }
        submitted
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> io::Result<()> {
        self.work(wait)?;
        let mut queue = self.queue.borrow_mut();
        while let Some(answer) = queue.next_done() {
            let own = self.reads.remove(&answer.tag).filter(|_| answer.result.is_ok());
            let own = own.map(|(memory, places)| memory.at(&places));
            let data = own.or(answer.data.map(|data| data.to_vec()));
            done.push(Completion { tag: answer.tag, result: answer.result, data });
        }
        if !done.is_empty() {
            self.call();
        }
        Ok(())
    }

    fn cancel(&mut self, tag: Tag) {
        self.queue.borrow_mut().cancel(|other| other == tag);
        self.call();
    }

    fn describe(&self) -> String {
        let world = self.world.as_ref().map(|(world, _)| world.borrow().describe());
        self.queue.borrow().describe() + &world.unwrap_or_default()
    }
}
