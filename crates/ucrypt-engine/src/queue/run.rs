//! The loop: carries out what the machine asks for and tells it what has happened.

use std::io;

use ucrypt_backend::{Buf, Done as Answer, Errno, Io};
use ucrypt_dispatch::{ChunkId, Op as MachineOp, Output, Request, RequestId, Span, StoreKind};

use super::job::{Job, Kind, Middle, Role};
use super::{Done, Queue};
use crate::counters::add;

/// The plaintext of a request that is being submitted, while it is only borrowed.
type Borrowed<'a> = Option<(RequestId, &'a [u8])>;

impl Queue {
    /// Accepts a planned job. `source`: the plaintext of its middle, if that is borrowed.
    pub(super) fn start(&mut self, job: Job, source: Option<&[u8]>) {
        let index = self.free.pop().expect("plan() saw a free job");
        let needs_range = job.middle.is_some() || job.edges.iter().any(Option::is_some);
        self.jobs[index as usize] = Some(job);
        if !needs_range {
            self.end_job(index);
        } else if self.lock(index) {
            self.launch(index, source);
        } else {
            self.park(index, source);
        }
    }

    fn lock(&mut self, index: u32) -> bool {
        let job = self.jobs[index as usize].as_mut().expect("a job in flight");
        job.locked = job.range.is_empty() || self.volume.locks.try_lock(&job.range, job.mode);
        job.locked
    }

    /// Keeps a job until its range is free; its data can no longer be borrowed then.
    fn park(&mut self, index: u32, source: Option<&[u8]>) {
        let job = self.jobs[index as usize].as_mut().expect("a job in flight");
        if let (Some(source), Some(Middle { buf: Some(buf), .. })) = (source, &mut job.middle) {
            buf.copy_from_slice(source);
        }
        self.parked.push_back(index);
        self.volume.locks.sleep(&self.waker);
        // The range may have become free before the line above.
        self.retry_parked();
    }

    /// Starts the parked jobs whose range is free now. Returns whether there were any.
    fn retry_parked(&mut self) -> bool {
        let mut started = false;
        for _ in 0..self.parked.len() {
            let Some(index) = self.parked.pop_front() else { break };
            if self.lock(index) {
                started = true;
                self.launch(index, None);
            } else {
                self.parked.push_back(index);
            }
        }
        started
    }

    /// Hands a job that has its range to the machine.
    fn launch(&mut self, index: u32, source: Option<&[u8]>) {
        let job = self.jobs[index as usize].as_mut().expect("a job in flight");
        let middle = job.middle.take();
        let mut reads = [None, None];
        for (read, edge) in reads.iter_mut().zip(&mut job.edges) {
            *read = edge.as_mut().map(|edge| Middle {
                op: MachineOp::Read,
                sector: edge.sector,
                sectors: edge.sectors,
                buf: edge.buf.take(),
            });
        }
        for (edge, read) in reads.into_iter().enumerate() {
            if let Some(read) = read {
                self.request(index, Role::Edge(edge), read);
            }
        }
        if let Some(middle) = middle {
            let id = self.request(index, Role::Middle, middle);
            if let Some(source) = source {
                self.pump(Some((id, source)));
                // What was not encrypted yet needs a copy: the source goes back to its owner.
                self.slots[id.index()].data.fill_rest(source);
            }
        }
    }

    fn request(&mut self, job: u32, role: Role, what: Middle) -> RequestId {
        let Middle { op, sector, sectors, buf } = what;
        let id = self.machine.request(Request { op, sector, sectors });
        let id = id.expect("the machine has room for three requests of each job");
        self.jobs[job as usize].as_mut().expect("a job in flight").pending += 1;
        let slot = &mut self.slots[id.index()];
        (slot.job, slot.role, slot.op, slot.first_sector) = (job, role, op, sector);
        slot.data.set(buf);
        id
    }

    /// Gets as far as possible; blocks for the backend only if `wait` and there is no answer yet.
    pub(super) fn advance(&mut self, wait: bool) -> io::Result<()> {
        if !self.parked.is_empty() {
            let mut count = [0; 8];
            match rustix::io::read(&*self.waker, &mut count) {
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.volume.locks.sleep(&self.waker);
            self.retry_parked();
        }
        loop {
            self.pump(None);
            let mut answers = std::mem::take(&mut self.answers);
            let backend = self.backend.as_mut().expect("the queue is alive");
            let polled = if wait && self.done.is_empty() {
                backend.wait(&mut answers)
            } else {
                backend.poll(&mut answers)
            };
            let idle = answers.is_empty();
            for answer in answers.drain(..) {
                self.answered(answer);
            }
            self.answers = answers;
            polled?;
            if idle {
                return Ok(());
            }
        }
    }

    /// Carries out everything that the machine asks for.
    fn pump(&mut self, source: Borrowed<'_>) {
        while let Some(output) = self.machine.next_output() {
            match output {
                Output::Crypt { chunk, span, .. } => self.crypt(chunk, span, source),
                Output::Store { chunk, span, kind } => self.store(chunk, span, kind),
                Output::Finish { request, result } => self.finish(request, result),
            }
        }
    }

    fn crypt(&mut self, chunk: ChunkId, span: Span, source: Borrowed<'_>) {
        let offset = (span.sector - self.slots[span.request.index()].first_sector) as usize * 512;
        let result = match self.slots[span.request.index()].op {
            MachineOp::Read => self.decrypt(chunk, span, offset),
            MachineOp::Write { .. } => {
                let len = span.sectors as usize * 512;
                let source = source
                    .filter(|(request, _)| *request == span.request)
                    .and_then(|(_, source)| source.get(offset..offset + len));
                match self.slots[span.request.index()].data.cut(len) {
                    Some(buf) => self.encrypt(chunk, span, buf, source),
                    None => Err(Errno::IO),
                }
            }
            _ => match self.zeroes.alloc(span.sectors as usize * 512) {
                Some(mut buf) => {
                    buf.fill(0);
                    self.encrypt(chunk, span, buf, None)
                }
                // Goes on when a chunk of zeroes comes back from the backend.
                None => return self.starved.push_back((chunk, span)),
            },
        };
        self.machine.crypted(chunk, result);
    }

    /// Decrypts a chunk in place and puts it back into its request.
    fn decrypt(&mut self, chunk: ChunkId, span: Span, offset: usize) -> Result<(), Errno> {
        let mut buf = self.chunks[chunk.index()].take().ok_or(Errno::IO)?;
        let (segment, sector) = self.place(span);
        if let Some(cipher) = &self.volume.segments[segment].cipher {
            cipher.decrypt_in_place(sector, &mut buf).map_err(|_| Errno::IO)?;
        }
        self.slots[span.request.index()].data.put_back(offset, buf);
        Ok(())
    }

    /// Encrypts a chunk into `buf`, from `source` or in place.
    fn encrypt(
        &mut self,
        chunk: ChunkId,
        span: Span,
        mut buf: Buf,
        source: Option<&[u8]>,
    ) -> Result<(), Errno> {
        let (segment, sector) = self.place(span);
        match (&self.volume.segments[segment].cipher, source) {
            (Some(cipher), Some(source)) => cipher.encrypt(sector, source, &mut buf),
            (Some(cipher), None) => cipher.encrypt_in_place(sector, &mut buf),
            (None, Some(source)) => {
                buf.copy_from_slice(source);
                Ok(())
            }
            (None, None) => Ok(()),
        }
        .map_err(|_| Errno::IO)?;
        self.chunks[chunk.index()] = Some(buf);
        Ok(())
    }

    /// A chunk's segment, and its first 512-byte sector there.
    fn place(&self, span: Span) -> (usize, u64) {
        let segment = self.volume.segment_at(span.sector * 512);
        (segment, span.sector - self.volume.starts[segment] / 512)
    }

    fn store(&mut self, chunk: ChunkId, span: Span, kind: StoreKind) {
        let (segment, sector) = self.place(span);
        let offset = self.volume.segments[segment].backend_offset + sector * 512;
        let (token, len) = (chunk.token(), span.sectors * 512);
        let io = match kind {
            StoreKind::Flush => Some(Io::Flush { token }),
            StoreKind::Discard => Some(Io::Discard { token, offset, len }),
            StoreKind::Zeroes => Some(Io::WriteZeroes { token, offset, len }),
            StoreKind::Read => self.slots[span.request.index()]
                .data
                .cut(len as usize)
                .map(|buf| Io::Read { token, offset, buf }),
            StoreKind::Write { fua } => {
                let buf = self.chunks[chunk.index()].take();
                buf.map(|buf| Io::Write { token, offset, buf, fua })
            }
        };
        match io {
            // There is room: the machine has no more chunks than the backend's queue.
            Some(io) => self.backend.as_mut().expect("the queue is alive").submit(io),
            None => self.machine.stored(chunk, Err(Errno::IO)),
        }
    }

    fn answered(&mut self, answer: Answer) {
        let Some(chunk) = ChunkId::from_token(answer.token) else { return };
        let Some(span) = self.machine.span(chunk) else { return };
        if self.slots[span.request.index()].op == MachineOp::Read && answer.result.is_ok() {
            self.chunks[chunk.index()] = answer.buf;
        } else {
            // Frees the memory that a starved chunk waits for.
            drop(answer.buf);
        }
        self.machine.stored(chunk, answer.result);
        if let Some((starved, span)) = self.starved.pop_front() {
            self.crypt(starved, span, None);
        }
    }

    /// A machine request has ended.
    fn finish(&mut self, id: RequestId, result: Result<(), Errno>) {
        let slot = &mut self.slots[id.index()];
        let (index, role, op) = (slot.job, slot.role, slot.op);
        let buf = (op == MachineOp::Read).then(|| slot.data.join()).flatten();
        let sector = slot.first_sector;
        slot.data.set(None);
        let job = self.jobs[index as usize].as_mut().expect("a job in flight");
        job.pending -= 1;
        match (role, op, result, buf) {
            (Role::Edge(edge), MachineOp::Read, Ok(()), Some(mut buf)) => {
                let fua = job.fua;
                if let Some(edge) = &job.edges[edge] {
                    buf[edge.at..edge.at + edge.patch.len()].copy_from_slice(&edge.patch);
                }
                let sectors = buf.len() as u64 / 512;
                let write =
                    Middle { op: MachineOp::Write { fua }, sector, sectors, buf: Some(buf) };
                self.request(index, role, write);
                return;
            }
            (Role::Middle, MachineOp::BackendZeroes, Err(Errno::OPNOTSUPP | Errno::NOSYS), _) => {
                // The backend cannot: write them.
                let sectors = self.zeroes_left(index, sector);
                let op = MachineOp::EncryptZeroes { fua: false };
                self.request(index, role, Middle { op, sector, sectors, buf: None });
                return;
            }
            (_, MachineOp::Read, Ok(()), None) => job.error = Some(Errno::IO),
            (Role::Middle, MachineOp::Read, Ok(()), buf) => job.data = buf,
            (_, _, Err(error), _) => job.error = job.error.or(Some(error)),
            _ => {}
        }
        if job.pending == 0 {
            self.end_job(index);
        }
    }

    /// Whole sectors of a write of zeroes, from its first one.
    fn zeroes_left(&self, index: u32, sector: u64) -> u64 {
        let job = self.jobs[index as usize].as_ref().expect("a job in flight");
        let size = u64::from(self.volume.info().sector_size);
        job.range.end / size * size / 512 - sector
    }

    fn end_job(&mut self, index: u32) {
        let mut job = self.jobs[index as usize].take().expect("a job in flight");
        self.free.push(index);
        if job.locked && !job.range.is_empty() {
            self.volume.locks.unlock(&job.range, job.mode);
        }
        let result = job.error.map_or(Ok(()), Err);
        self.count(&job, result.is_ok());
        let data = job.data.take().filter(|_| result.is_ok()).map(|mut buf| {
            buf.advance(job.head);
            buf.truncate(job.len as usize);
            buf
        });
        self.done.push_back(Done { tag: job.tag, result, data });
    }

    fn count(&self, job: &Job, ok: bool) {
        let counters = &self.counters;
        if !ok {
            add(&counters.errors, 1);
            return;
        }
        match job.kind {
            Kind::Read => {
                add(&counters.reads, 1);
                add(&counters.read_bytes, job.len);
            }
            Kind::Write => {
                add(&counters.writes, 1);
                add(&counters.written_bytes, job.len);
            }
            Kind::Flush => add(&counters.flushes, 1),
            Kind::Discard => add(&counters.discards, 1),
        }
    }
}
