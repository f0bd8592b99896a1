//! The engine's queue as a port, and volumes to make queues of.

use std::io;
use std::str::FromStr as _;
use std::sync::Arc;

use ucrypt_backend::{Backend, Buf, Pool};
use ucrypt_engine::{Op, Policies, Queue, QueueConfig, Rejected, Segment, Volume, VolumeOptions};
use ucrypt_sector::{CipherSpec, SectorCipher, SectorOptions};

use crate::model::Tag;
use crate::operation::{Kind, Operation};
use crate::port::{Completion, Port, Submitted};
use crate::random::Random;

/// AES-256-XTS with a key that everybody knows.
///
/// # Panics
/// If there is no sector of that size.
pub fn aes(sector_size: u32) -> SectorCipher {
    let spec = CipherSpec::from_str("aes-xts-plain64").expect("a known cipher");
    let key: Vec<u8> = (0..64).collect();
    let options = SectorOptions { sector_size, iv_offset: 0, iv_large_sectors: false };
    SectorCipher::new(&spec, &key, options).expect("a key that fits")
}

/// How the volumes of a test are made.
#[derive(Debug, Clone, Copy)]
pub struct VolumeKind {
    /// 512 or 4096; `None`: not encrypted.
    pub sector_size: Option<u32>,
    /// How requests are dispatched.
    pub policies: Policies,
    /// Crypto workers; 0: everything on the thread of the queue.
    pub workers: usize,
    /// Where the volume begins, in bytes of the backend.
    pub offset: u64,
}

impl VolumeKind {
    /// A volume of `len` bytes over that backend.
    ///
    /// # Panics
    /// If the backend is too short.
    pub fn over(&self, backend: Arc<dyn Backend>, len: u64) -> Arc<Volume> {
        let cipher = self.sector_size.map(aes);
        let segment = Segment { len, backend_offset: self.offset, cipher };
        let options = VolumeOptions {
            policies: self.policies,
            workers: Some(self.workers),
            allow_discards: true,
            ..VolumeOptions::default()
        };
        Arc::new(Volume::new(backend, vec![segment], options).expect("a volume"))
    }
}

/// See the module's comment. Uses every way there is to submit: buffers of the queue, borrowed
/// bytes, and the client's own memory in pieces.
pub struct EnginePort {
    queue: Queue,
    random: Random,
    /// The client's own memory.
    pool: Pool,
    /// [`Port::poll`] may sleep.
    waits: bool,
}

impl EnginePort {
    /// A queue of the volume. `waits`: [`Port::poll`] may sleep for an answer.
    ///
    /// # Errors
    /// Those of the queue.
    pub fn new(
        volume: &Arc<Volume>,
        config: QueueConfig,
        seed: u64,
        waits: bool,
    ) -> io::Result<Self> {
        let queue = volume.queue(config)?;
        Ok(Self { queue, random: Random::new(seed), pool: Pool::new(16 << 20)?, waits })
    }

    /// The client's bytes in pieces of its own memory.
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

    fn write(&mut self, tag: Tag, offset: u64, data: &[u8], fua: bool) -> Result<(), Rejected> {
        match self.random.below(3) {
            0 if let Some(mut buf) = self.queue.alloc(data.len()) => {
                buf.copy_from_slice(data);
                self.queue.submit(tag, Op::Write { offset, data: buf, fua })
            }
            1 if let Some(mut pieces) = self.pieces(data) => {
                self.queue.write_pieces(tag, offset, &mut pieces, fua)
            }
            _ => self.queue.write_from(tag, offset, data, fua),
        }
    }
}

impl Port for EnginePort {
    fn submit(&mut self, tag: Tag, operation: &Operation, data: &[u8]) -> Submitted {
        let Operation { kind, offset, len } = *operation;
        let submitted = match kind {
            Kind::Read => self.queue.submit(tag, Op::Read { offset, len: len as usize }),
            Kind::Write { fua } => self.write(tag, offset, data, fua),
            Kind::WriteZeroes { fua } => {
                let no_unmap = self.random.percent(50);
                self.queue.submit(tag, Op::WriteZeroes { offset, len, fua, no_unmap })
            }
            Kind::Discard => self.queue.submit(tag, Op::Discard { offset, len }),
            Kind::Flush => self.queue.submit(tag, Op::Flush),
        };
        match submitted {
            Ok(()) => Submitted::Accepted,
            Err(Rejected::Busy(_) | Rejected::BusyBorrowed) => Submitted::Busy,
            Err(_) => Submitted::Refused,
        }
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> io::Result<()> {
        if wait && self.waits {
            // Not `wait`, which knows no limit.
            self.queue.poll()?;
            if self.queue.may_sleep() {
                let patience = rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                let fd = rustix::event::PollFd::from_borrowed_fd(
                    self.queue.wait_fd(),
                    rustix::event::PollFlags::IN,
                );
                let _ = rustix::event::poll(&mut [fd], Some(&patience));
            }
        }
        self.queue.poll()?;
        while let Some(answer) = self.queue.next_done() {
            let data = answer.data.map(|data| data.to_vec());
            done.push(Completion { tag: answer.tag, result: answer.result, data });
        }
        Ok(())
    }

    fn cancel(&mut self, tag: Tag) {
        self.queue.cancel(|other| other == tag);
    }

    fn describe(&self) -> String {
        format!("the queue has {} requests", self.queue.in_flight())
    }
}
