//! Chunk I/O: passes a chunk's buffers to the cipher, to workers and to the backend, and back.

use ucrypt_backend::{Buf, Done as Answer, Errno, Io as BackendIo};
use ucrypt_dispatch::{
    ChunkId, IoKind, Op as MachineOp, Part, RequestId, Target, ZEROES_UNIT_SECTORS,
};

use super::Queue;
use super::pieces::Plain;
use super::tables::{CHUNK_BUFS, Chunk};
use super::time::timed_for;
use crate::segments::CipherOp;
use crate::workers;

/// The borrowed plaintext of the request that is being submitted, with the request's id, because the machine gives
/// the id to another request as soon as this one ends.
pub(super) type Borrowed<'a> = Option<(RequestId, &'a [u8])>;

/// A chunk was encrypted directly to where the backend keeps it.
struct InMapping {
    /// Nanoseconds of the transform, if measured.
    spent_ns: Option<u64>,
}

impl Queue {
    /// Encrypts or decrypts a chunk in its buffers, inline or on a worker.
    pub(super) fn transform(&mut self, chunk: ChunkId, target: Target, source: Borrowed<'_>) {
        let op = self.machine.op(chunk).expect("a chunk under way");
        let mut bufs = std::mem::take(&mut self.chunks[chunk.index()].bufs);
        match op {
            MachineOp::Read => self.transform_bufs(chunk, target, bufs, CipherOp::Decrypt),
            MachineOp::Write { .. } => match self.cut_write(chunk, &mut bufs) {
                Ok(()) => self.encrypt(chunk, target, source, bufs),
                Err(error) => self.machine.cipher_done(chunk, Err(error), None, self.time.now_ns()),
            },
            _ if self.take_zeroes(chunk, &mut bufs) => {
                self.transform_bufs(chunk, target, bufs, CipherOp::Encrypt);
            }
            _ => {
                bufs.clear();
                self.chunks[chunk.index()].bufs = bufs;
                self.machine.cipher_done(chunk, Err(Errno::NOMEM), None, self.time.now_ns());
            }
        }
    }

    /// Decrypts a chunk from the backend's mapping into its buffers, inline or on a worker.
    pub(super) fn decrypt_mapped(&mut self, chunk: ChunkId, target: Target) {
        let bufs = std::mem::take(&mut self.chunks[chunk.index()].bufs);
        self.transform_bufs(chunk, target, bufs, CipherOp::DecryptMapped);
    }

    /// Encrypts a write's chunk directly to where the backend keeps it, which saves the write;
    /// falls back to encrypting it into its buffers.
    pub(super) fn encrypt_mapped(&mut self, chunk: ChunkId, source: Borrowed<'_>) {
        let mut bufs = std::mem::take(&mut self.chunks[chunk.index()].bufs);
        if let Err(error) = self.cut_write(chunk, &mut bufs) {
            return self.machine.cipher_done(chunk, Err(error), None, self.time.now_ns());
        }
        let Some(InMapping { spent_ns }) = self.encrypt_to_mapping(chunk, source, &bufs) else {
            return self.encrypt(chunk, Target::Inline, source, bufs);
        };
        bufs.clear();
        self.chunks[chunk.index()].bufs = bufs;
        self.transformed_here(chunk, spent_ns);
        // Memory cannot be made more durable, so FUA needs no further step.
        let is_durable = matches!(self.machine.op(chunk), Some(MachineOp::Write { fua: true }));
        let failed = self.volume.flush_error().filter(|_| is_durable);
        self.machine.mapped_done(chunk, failed.map_or(Ok(()), Err), spent_ns, self.time.now_ns());
    }

    /// Encrypts a write's chunk into its buffers, whether they hold its plaintext or not.
    fn encrypt(
        &mut self,
        chunk: ChunkId,
        target: Target,
        source: Borrowed<'_>,
        mut bufs: Vec<Buf>,
    ) {
        let started_ns = self.time.start(sectors(self.machine.parts(chunk)));
        match self.gather(chunk, target, source, &mut bufs) {
            Ok(false) => self.transform_bufs(chunk, target, bufs, CipherOp::Encrypt),
            Ok(true) => {
                let spent_ns = self.time.since(started_ns);
                self.transformed_here(chunk, spent_ns);
                self.chunks[chunk.index()].bufs = bufs;
                self.machine.cipher_done(chunk, Ok(()), spent_ns, self.time.now_ns());
            }
            Err(error) => self.machine.cipher_done(chunk, Err(error), None, self.time.now_ns()),
        }
    }

    /// Allocates the memory of a chunk of zeroes, which the machine has reserved. Returns whether
    /// the memory was there.
    fn take_zeroes(&mut self, chunk: ChunkId, bufs: &mut Vec<Buf>) -> bool {
        let mut left = sectors(self.machine.parts(chunk));
        while left > 0 {
            let unit = left.min(ZEROES_UNIT_SECTORS);
            let Some(mut buf) = self.memory.alloc_zeroes(unit as usize * 512) else {
                debug_assert!(false, "the machine starts no chunk without memory for it");
                return false;
            };
            buf.fill(0);
            bufs.push(buf);
            left -= unit;
        }
        true
    }

    /// Collects the buffers of a write's chunk, one per part.
    fn cut_write(&mut self, chunk: ChunkId, bufs: &mut Vec<Buf>) -> Result<(), Errno> {
        for part in self.machine.parts(chunk) {
            let whole = self.machine_requests[part.request.index()].cut(part, bufs);
            debug_assert!(whole, "a write has memory for all its sectors");
            if !whole {
                return Err(Errno::IO);
            }
        }
        Ok(())
    }

    /// The plaintext of a write's part; `None` if the part's buffer holds it.
    fn plaintext<'a>(&'a self, part: &Part, source: Borrowed<'a>) -> Option<Plain<'a>> {
        let request = &self.machine_requests[part.request.index()];
        let borrowed = source.filter(|(id, _)| *id == part.request).map(|(_, plain)| plain);
        Plain::of(part, request, borrowed, &self.requests[request.client])
    }

    /// Encrypts a write's chunk directly to where the backend keeps it. `None`: the chunk has to be
    /// written, whatever the backend holds there now; its plaintext is still in place. An error
    /// gives `None`, too: the write then reports which requests it concerns.
    fn encrypt_to_mapping(
        &self,
        chunk: ChunkId,
        source: Borrowed<'_>,
        bufs: &[Buf],
    ) -> Option<InMapping> {
        let parts = self.machine.parts(chunk);
        let (segments, bytes) = (&self.volume.segments, sectors(parts) as usize * 512);
        let (segment, sector) = self.volume.locate(parts.first()?.sector);
        if !segments.is_mapped(segment, sector, bytes) {
            return None;
        }
        let started_ns = self.time.start(bytes as u64 / 512);
        for (part, buf) in parts.iter().zip(bufs) {
            let plain = self.plaintext(part, source).unwrap_or(Plain::One(buf));
            let (segment, sector) = self.volume.locate(part.sector);
            plain.encrypt_mapped(segments, segment, sector, buf.len())?.ok()?;
        }
        Some(InMapping { spent_ns: self.time.since(started_ns) })
    }

    /// Puts the plaintext of a write's chunk into its buffers, unless they hold it. Plaintext that
    /// lies elsewhere is encrypted on the way if the transform is inline. Returns whether the
    /// buffers are encrypted now.
    fn gather(
        &self,
        chunk: ChunkId,
        target: Target,
        source: Borrowed<'_>,
        bufs: &mut [Buf],
    ) -> Result<bool, Errno> {
        let parts = self.machine.parts(chunk);
        let here = target == Target::Inline
            && parts.iter().all(|part| self.plaintext(part, source).is_some());
        let mut encrypted = here;
        for (part, buf) in parts.iter().zip(bufs) {
            let Some(plain) = self.plaintext(part, source) else { continue };
            let (segment, sector) = self.volume.locate(part.sector);
            let done = here.then(|| plain.encrypt(&self.volume.segments, segment, sector, buf));
            if let Some(done) = done.flatten() {
                done?;
            } else {
                plain.copy(buf);
                encrypted = false;
            }
        }
        Ok(encrypted)
    }

    /// Transforms buffers, inline or on a worker.
    fn transform_bufs(&mut self, chunk: ChunkId, target: Target, mut bufs: Vec<Buf>, op: CipherOp) {
        let parts = self.machine.parts(chunk);
        let (segment, sector) = self.volume.locate(parts[0].sector);
        let count = sectors(parts);
        if let (Some(pool), true) = (&self.volume.workers, target != Target::Inline) {
            let (segments, inbox) = (self.volume.segments.clone(), self.offloads.inbox.clone());
            let job = workers::Job { chunk, segments, segment, sector, bufs, op, inbox };
            let from_ns = self.time.exact_ns();
            let taken = match target {
                Target::SameCore => pool.offload_same_core(job),
                _ => pool.offload(job, target == Target::Offload),
            };
            match taken {
                Ok(()) => {
                    self.offloads.count += 1;
                    self.time.keep(true);
                    self.time.read();
                    return self.machine.offloaded(chunk, target, from_ns, self.time.now_ns());
                }
                // The workers' queue is full: transform inline.
                Err(job) => bufs = job.bufs,
            }
        }
        let started_ns = self.time.start(count);
        let result = self.volume.segments.transform(segment, sector, &mut bufs, op);
        let spent_ns = self.time.since(started_ns);
        self.transformed_here(chunk, spent_ns);
        let result = self.settle(chunk, bufs, result);
        self.machine.cipher_done(chunk, result, spent_ns, self.time.now_ns());
    }

    /// Notes a transform on this thread, and how long it took if it was timed.
    fn transformed_here(&mut self, chunk: ChunkId, spent_ns: Option<u64>) {
        self.time.transformed(spent_ns);
        let decrypts = self.machine.op(chunk) == Some(MachineOp::Read);
        let stands_for = spent_ns.map_or(0, |_| timed_for(sectors(self.machine.parts(chunk))));
        let spent_ns = spent_ns.unwrap_or(0) * stands_for;
        self.counting.counters.cells.transformed(false, decrypts, spent_ns);
    }

    /// Puts the buffers of a transformed chunk where they are needed next.
    pub(super) fn settle(
        &mut self,
        chunk: ChunkId,
        mut bufs: Vec<Buf>,
        result: Result<(), Errno>,
    ) -> Result<(), Errno> {
        if result.is_ok() && self.machine.op(chunk) == Some(MachineOp::Read) {
            let mut pieces = bufs.drain(..);
            for part in self.machine.parts(chunk) {
                let request = &mut self.machine_requests[part.request.index()];
                let mut offset = (part.sector - request.first_sector) as usize * 512;
                let end = offset + part.sectors as usize * 512;
                while offset < end
                    && let Some(piece) = pieces.next()
                {
                    let len = piece.len();
                    request.data.put_back(offset, piece);
                    offset += len;
                }
            }
        }
        if result.is_err() && self.machine.will_retry(chunk) {
            // Partly decrypted: the parts are read again, one by one.
            self.chunks[chunk.index()].again.append(&mut bufs);
        }
        if result.is_err() {
            // Partly transformed data goes nowhere.
            bufs.clear();
        }
        bufs.shrink_to(CHUNK_BUFS);
        self.chunks[chunk.index()].bufs = bufs;
        result
    }

    /// Submits a chunk to the backend, unless its result is known already.
    pub(super) fn submit_io(&mut self, chunk: ChunkId, kind: IoKind) {
        let parts = self.machine.parts(chunk);
        let (segment, sector) = self.volume.locate(parts[0].sector);
        let offset = self.volume.segments[segment].backend_offset + sector * 512;
        let (token, len) = (chunk.token(), sectors(parts) * 512);
        let Chunk { bufs, again } = &mut self.chunks[chunk.index()];
        if self.machine.retried_after(chunk).is_some() {
            take_front(again, len as usize, bufs);
            if again.is_empty() {
                *again = Vec::new();
            }
        } else if kind == IoKind::Read {
            for part in parts {
                let whole = self.machine_requests[part.request.index()].cut(part, bufs);
                debug_assert!(whole, "a read has memory for all its sectors");
            }
        }
        if kind == IoKind::Read && self.volume.segments.at_hand(offset, len as usize) {
            // No disk to wait for, and the cipher copies the data as it decrypts.
            return self.machine.io_mapped(chunk, self.time.now_ns());
        }
        if matches!(kind, IoKind::Flush | IoKind::Write { fua: true })
            && let Some(error) = self.volume.flush_error()
        {
            // The machine submits a write again without FUA, unless it is to a zone; the request fails
            // all the same.
            if self.machine.will_retry(chunk) {
                again.append(bufs);
            } else {
                bufs.clear();
            }
            return self.machine.io_done(chunk, Err(error), self.time.now_ns());
        }
        // There is room: the machine has at most as many chunks as the backend's queue takes.
        let backend = self.backend.queue();
        match kind {
            IoKind::Flush => backend.submit(BackendIo::Flush { token }),
            IoKind::Discard => backend.submit(BackendIo::Discard { token, offset, len }),
            IoKind::Zeroes => backend.submit(BackendIo::WriteZeroes { token, offset, len }),
            IoKind::Read => {
                backend.submit(BackendIo::Read { token, offset, bufs: std::mem::take(bufs) });
            }
            IoKind::Write { fua } => {
                backend.submit(BackendIo::Write { token, offset, bufs: std::mem::take(bufs), fua });
            }
        }
    }

    /// Takes one answer of the backend.
    pub(super) fn answered(&mut self, answer: Answer) {
        let Some(chunk) = ChunkId::from_token(answer.token) else { return };
        let Some(op) = self.machine.op(chunk) else { return };
        let mut bufs = answer.bufs;
        if answer.result.is_err() && self.machine.will_retry(chunk) {
            self.chunks[chunk.index()].again.append(&mut bufs);
        }
        if op != MachineOp::Read || answer.result.is_err() {
            bufs.clear();
            bufs.shrink_to(CHUNK_BUFS);
        }
        if bufs.capacity() > 0 {
            self.chunks[chunk.index()].bufs = bufs;
        }
        let result = self.check_durable(chunk, op, answer.result);
        self.machine.io_done(chunk, result, self.time.now_ns());
    }

    /// Checks the result of a flush or of a durable write. After a failed flush no flush of this
    /// volume succeeds any more: the kernel reports data that it could not write once, and then
    /// forgets the error.
    fn check_durable(
        &self,
        chunk: ChunkId,
        op: MachineOp,
        result: Result<(), Errno>,
    ) -> Result<(), Errno> {
        match (op, result) {
            (MachineOp::Flush, Err(error)) => {
                self.volume.fail_flushes(error);
                Err(error)
            }
            // A flush of another queue may have failed while this one was under way.
            (MachineOp::Flush, Ok(())) => self.volume.flush_error().map_or(Ok(()), Err),
            (MachineOp::Write { fua: true } | MachineOp::EncryptZeroes { fua: true }, result) => {
                let zoned = self.volume.backend.zones().is_some();
                let lost = match (result, self.machine.retried_after(chunk)) {
                    // The flush after two failures tells which of them it was.
                    (result, _) if self.machine.asks_flush(chunk) => result.err(),
                    // The retry without FUA succeeded: the data was written, but not made durable.
                    (Ok(()), first) => first,
                    (Err(_), Some(_)) => None,
                    // To a zone there is no retry that could tell.
                    (Err(error), None) => Some(error).filter(|&it| zoned && !is_refusal(it)),
                };
                if let Some(error) = lost {
                    self.volume.fail_flushes(error);
                }
                result
            }
            (_, result) => result,
        }
    }

    /// Releases the buffers of a chunk that no request needs any more.
    pub(super) fn drop_chunk(&mut self, chunk: ChunkId) {
        let bufs = &mut self.chunks[chunk.index()].bufs;
        bufs.clear();
        bufs.shrink_to(CHUNK_BUFS);
    }
}

/// Whether a zoned device gives this error before it writes anything, so that no data can be lost:
/// the block layer's errors for too many open or active zones, a full or write-protected device, and
/// operations that the device does not know or has no memory for.
fn is_refusal(error: Errno) -> bool {
    matches!(
        error,
        Errno::TOOMANYREFS
            | Errno::OVERFLOW
            | Errno::NOSPC
            | Errno::ROFS
            | Errno::PERM
            | Errno::INVAL
            | Errno::OPNOTSUPP
            | Errno::NOMEM
            | Errno::AGAIN
    )
}

/// Moves the first buffers that together hold `len` bytes.
fn take_front(from: &mut Vec<Buf>, len: usize, to: &mut Vec<Buf>) {
    let mut left = len;
    let count = from.iter().take_while(|buf| {
        let takes = left > 0;
        left = left.saturating_sub(buf.len());
        takes
    });
    let count = count.count();
    to.extend(from.drain(..count));
}

/// 512-byte sectors of all parts together.
pub(super) fn sectors(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.sectors).sum()
}
