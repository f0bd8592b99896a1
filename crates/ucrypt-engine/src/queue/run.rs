//! The loop: carries out what the machine asks for and tells it what has happened.

use std::io;

use ucrypt_backend::{Buf, Done as Answer, Errno, Io};
use ucrypt_dispatch::{
    ChunkId, Op as MachineOp, Output, Part, Request, RequestId, StoreKind, Surroundings, Target,
    ZEROES_UNIT_SECTORS,
};

use super::job::{Kind, Middle, Role};
use super::pieces::Plain;
use super::{Done, Queue};
use crate::counters::add;
use crate::data::Whole;
use crate::range_lock::Mode;
use crate::segments::Way;
use crate::workers::{self, Crypted};

/// The plaintext of a request that is being submitted, while it is only borrowed.
type Borrowed<'a> = Option<(RequestId, &'a [u8])>;

/// A crypt of at least this many sectors takes long: it is timed always, a shorter one now and then,
/// and the backend and the workers do not wait for its end.
const LONG_SECTORS: u64 = 32;
const TIMED_EVERY: u32 = 16;

/// A chunk was encrypted to where the backend keeps it.
struct InPlace {
    /// What that took, in nanoseconds, if it was measured.
    spent_ns: Option<u64>,
}

/// Rounds of the loop between two looks that others may have at the queue's decisions.
const PUBLISH_EVERY: u32 = 64;
/// The same when nothing is in flight: after that there may be no further round.
const PUBLISH_IDLE: u32 = 8;

impl Queue {
    /// Accepts the job that was planned. `source`: the plaintext of its middle, if that is borrowed.
    pub(super) fn start(&mut self, source: Option<&[u8]>) {
        self.set_awake(true);
        let index = self.free.pop().expect("plan() saw a free job");
        let job = &self.jobs[index as usize];
        // Only edges ask for their range alone.
        let needs_range = job.middle.is_some() || job.mode == Mode::Exclusive;
        self.choose_clock(job.len);
        if !needs_range {
            self.end_job(index);
        } else if self.lock(index) {
            self.launch(index, source);
        } else {
            self.park(index, source);
        }
    }

    fn lock(&mut self, index: u32) -> bool {
        let job = &mut self.jobs[index as usize];
        job.locked = job.range.is_empty() || self.volume.locks.try_lock(&job.range, job.mode);
        job.locked
    }

    /// Keeps a job until its range is free; its data can no longer be borrowed then.
    fn park(&mut self, index: u32, source: Option<&[u8]>) {
        let job = &mut self.jobs[index as usize];
        if let (Some(source), Some(buf)) = (source, &mut job.buf) {
            buf.copy_from_slice(source);
        }
        self.parked.push_back(index);
        // The range may have become free meanwhile.
        self.retry_parked();
    }

    /// Starts the parked jobs whose range is free now; for the others the waker will be signalled.
    fn retry_parked(&mut self) {
        for _ in 0..self.parked.len() {
            let Some(index) = self.parked.pop_front() else { break };
            let job = &mut self.jobs[index as usize];
            job.locked = self.volume.locks.lock_or_sleep(&job.range, job.mode, &self.waker);
            if job.locked {
                self.launch(index, None);
            } else {
                self.parked.push_back(index);
            }
        }
        if !self.parked.is_empty() {
            (self.waker_used, self.waker_known) = (true, true);
        }
    }

    /// Hands a job that has its range to the machine.
    fn launch(&mut self, index: u32, source: Option<&[u8]>) {
        let job = &mut self.jobs[index as usize];
        let (middle, buf) = (job.middle, job.buf.take());
        if job.mode == Mode::Exclusive {
            for number in 0..2 {
                let Some(edge) = &mut self.edges[index as usize][number] else { continue };
                let (sector, sectors) = (edge.sector, edge.sectors);
                let (read, buf) =
                    (Middle { op: MachineOp::Read, sector, sectors }, edge.buf.take());
                self.request(index, Role::Edge(number), read, buf);
            }
        }
        if let Some(middle) = middle {
            let id = self.request(index, Role::Middle, middle, buf);
            if let Some(source) = source {
                self.read_clock();
                self.around = self.surroundings();
                self.planned = false;
                while self.carry_out_next(Some((id, source))) {}
                // What was not encrypted yet needs a copy: the source goes back to its owner.
                self.slots[id.index()].data.fill_rest(source);
            }
        }
    }

    fn request(&mut self, job: u32, role: Role, what: Middle, buf: Option<Buf>) -> RequestId {
        let Middle { op, sector, sectors } = what;
        let asked = &mut self.jobs[job as usize];
        asked.pending += 1;
        let request = Request { op, sector, sectors, urgency: asked.urgency };
        let id = self.machine.request(request);
        let id = id.expect("the machine has room for three requests of each job");
        let slot = &mut self.slots[id.index()];
        (slot.job, slot.role, slot.op, slot.first_sector) = (job, role, op, sector);
        match (op, buf) {
            (MachineOp::Read, None) => slot.data.set_scattered(&mut self.pieces[job as usize]),
            (_, buf) => slot.data.set(buf),
        }
        id
    }

    /// Reads the clock, for all that happens until it is read again: once for each round of the
    /// loop and after what takes time, not for each step.
    fn read_clock(&mut self) {
        if self.keeps_time {
            self.now_ns = self.volume.clock.now_ns();
        }
    }

    /// Where the backend answers at once and no worker has anything, time decides nothing: for short
    /// requests it is looked at now and then only, for the estimates. For as long as anything is in
    /// flight it is looked at or not.
    fn choose_clock(&mut self, bytes: u64) {
        if !self.synchronous || self.volume.workers.is_none() {
            self.keeps_time = !self.synchronous;
            return;
        }
        if self.machine.in_flight() == 0 {
            self.rounds = self.rounds.wrapping_add(1);
            self.keeps_time = self.rounds.is_multiple_of(TIMED_EVERY) || self.machine.needs_time();
        }
        self.keeps_time |= bytes >= LONG_SECTORS * 512;
    }

    /// Gets as far as possible; blocks for the backend only if `wait`, there is no answer yet, and
    /// nobody else could have something for this queue.
    pub(super) fn advance(&mut self, wait: bool) -> io::Result<()> {
        self.begin_round()?;
        while self.one_step(wait)? {}
        Ok(())
    }

    fn begin_round(&mut self) -> io::Result<()> {
        self.read_waker()?;
        self.poll_own_ring()?;
        self.read_clock();
        self.around = self.surroundings();
        Ok(())
    }

    /// One step of [`Queue::poll`]: carries out one thing that the machine asks for, or takes what
    /// others have done. Returns whether there was anything. For simulators, in which time passes
    /// between steps.
    ///
    /// # Errors
    /// As [`Queue::poll`].
    pub fn step(&mut self) -> io::Result<bool> {
        self.begin_round()?;
        self.one_step(false)
    }

    fn one_step(&mut self, wait: bool) -> io::Result<bool> {
        if self.carry_out_next(None) {
            return Ok(true);
        }
        let crypted = self.take_crypted();
        // What workers have encrypted goes to the backend before anything is waited for.
        let wait = wait && !crypted && self.awaits_backend_only();
        let any = self.take_stored(wait)? || crypted;
        if any {
            self.around = self.surroundings();
        } else {
            self.publish();
        }
        Ok(any)
    }

    /// Shows others what this queue knows, now and then.
    fn publish(&mut self) {
        self.unpublished += 1;
        if self.unpublished >= PUBLISH_EVERY
            || self.in_flight() == 0 && self.unpublished >= PUBLISH_IDLE
        {
            self.unpublished = 0;
            let workers = self.around.workers;
            self.counters.publish(self.machine.tally(), self.machine.learned(), workers);
        }
    }

    /// Takes the signals that may have come while the queue slept.
    fn read_waker(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.waker_used) {
            return Ok(());
        }
        self.inbox.awake();
        match rustix::io::read(&*self.waker, &mut [0; 8]) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        self.retry_parked();
        Ok(())
    }

    /// Takes what workers have done. Returns whether there was anything.
    fn take_crypted(&mut self) -> bool {
        let mut any = false;
        while self.handed > 0
            && let Some(Crypted { chunk, bufs, result, spent_ns }) = self.inbox.answers.pop()
        {
            if !any {
                any = true;
                self.read_clock();
            }
            self.handed -= 1;
            let result = self.settle(chunk, bufs, result);
            self.machine.crypted(chunk, result, Some(spent_ns), self.now_ns);
        }
        any
    }

    /// Whether nothing but the backend, and guests on its ring, can end a wait.
    pub(super) fn awaits_backend_only(&self) -> bool {
        self.done.is_empty() && self.handed == 0 && self.parked.is_empty()
    }

    /// Takes the backend's answers, blocking for one if `wait`. Returns whether there was anything.
    pub(super) fn take_stored(&mut self, wait: bool) -> io::Result<bool> {
        let mut answers = std::mem::take(&mut self.answers);
        let backend = self.backend.as_mut().expect("the queue is alive");
        let polled = if !wait {
            backend.poll(&mut answers)
        } else if self.synchronous {
            backend.wait(&mut answers)
        } else {
            self.awake = self.volume.count_awake(self.awake, false);
            let waited = backend.wait(&mut answers);
            self.awake = self.volume.count_awake(self.awake, true);
            waited
        };
        let any = !answers.is_empty();
        if any {
            self.read_clock();
            for answer in answers.drain(..) {
                self.answered(answer);
            }
        }
        self.answers = answers;
        polled.map(|()| any)
    }

    /// Carries out one thing that the machine asks for. Returns whether there was one.
    fn carry_out_next(&mut self, source: Borrowed<'_>) -> bool {
        loop {
            if !self.planned {
                self.planned = true;
                self.machine.plan(self.now_ns, self.around);
            }
            if let Some(output) = self.machine.next_output() {
                self.carried_out = true;
                self.carry_out(output, source);
                return true;
            }
            self.planned = false;
            // What was carried out may have made room for more.
            if !std::mem::take(&mut self.carried_out) {
                return false;
            }
        }
    }

    fn carry_out(&mut self, output: Output<Errno>, source: Borrowed<'_>) {
        match output {
            Output::Crypt { chunk, target } => {
                if target == Target::Inline && sectors(self.machine.parts(chunk)) >= LONG_SECTORS {
                    self.look_around();
                }
                self.crypt(chunk, target, source);
            }
            Output::Store { chunk, kind } => self.store(chunk, kind),
            Output::Drop { chunk } => self.drop_chunk(chunk),
            Output::Finish { request, result } => self.finish(request, result),
        }
    }

    /// Hands what was submitted to the backend and takes answers, before something that takes long.
    fn look_around(&mut self) {
        self.take_crypted();
        // A broken queue breaks again when it is polled next, and says so there.
        let _ = self.take_stored(false);
    }

    /// The workers that this queue may use now.
    fn surroundings(&self) -> Surroundings {
        let Some(pool) = &self.volume.workers else { return Surroundings::default() };
        // Who has one request under way waits for it; who has more is busy with the others, on
        // another core or on this thread.
        let elsewhere = !self.clients_here && self.in_flight() > 1;
        let cores = self.volume.spare_cores(elsewhere);
        let workers = pool.count().min(cores);
        let awake = pool.count().saturating_sub(pool.idle());
        let idle_workers = workers.saturating_sub(awake);
        Surroundings { workers, idle_workers, reads_in_place: self.reads_in_place }
    }

    /// Tells the other queues whether this one keeps a core busy.
    pub(super) fn set_awake(&mut self, awake: bool) {
        self.awake = self.volume.count_awake(self.awake, awake);
    }

    fn crypt(&mut self, chunk: ChunkId, target: Target, source: Borrowed<'_>) {
        let op = self.machine.op(chunk).expect("a chunk under way");
        let mut bufs = std::mem::take(&mut self.chunks[chunk.index()]);
        let mut encrypted = false;
        match op {
            MachineOp::Read => {}
            MachineOp::Write { .. } => {
                if let Err(error) = self.cut_write(chunk, &mut bufs) {
                    return self.machine.crypted(chunk, Err(error), None, self.now_ns);
                }
                if target == Target::Inline
                    && let Some(done) = self.write_in_place(chunk, source, &bufs)
                {
                    self.chunks[chunk.index()] = bufs;
                    return self.written_in_place(chunk, done);
                }
                match self.gather(chunk, target, source, &mut bufs) {
                    Ok(done) => encrypted = done,
                    Err(error) => {
                        return self.machine.crypted(chunk, Err(error), None, self.now_ns);
                    }
                }
            }
            _ => {
                if !self.take_zeroes(chunk, &mut bufs) {
                    bufs.clear();
                    self.chunks[chunk.index()] = bufs;
                    return self.machine.crypted(chunk, Err(Errno::NOMEM), None, self.now_ns);
                }
            }
        }
        if encrypted {
            self.chunks[chunk.index()] = bufs;
            return self.machine.crypted(chunk, Ok(()), None, self.now_ns);
        }
        let way = match (op, std::mem::take(&mut self.mapped[chunk.index()])) {
            (MachineOp::Read, true) => Way::DecryptMapped,
            (MachineOp::Read, false) => Way::Decrypt,
            _ => Way::Encrypt,
        };
        self.crypt_bufs(chunk, target, bufs, way);
    }

    /// Takes memory for a chunk of zeroes, which the machine has reserved. Returns whether it was
    /// there.
    fn take_zeroes(&mut self, chunk: ChunkId, bufs: &mut Vec<Buf>) -> bool {
        let mut left = sectors(self.machine.parts(chunk));
        while left > 0 {
            let unit = left.min(ZEROES_UNIT_SECTORS);
            let Some(mut buf) = self.zeroes.alloc(unit as usize * 512) else {
                debug_assert!(false, "the machine starts no chunk without memory for it");
                return false;
            };
            buf.fill(0);
            bufs.push(buf);
            left -= unit;
        }
        true
    }

    /// Collects the buffers of a write's chunk, one for each part.
    fn cut_write(&mut self, chunk: ChunkId, bufs: &mut Vec<Buf>) -> Result<(), Errno> {
        for part in self.machine.parts(chunk) {
            let whole = self.slots[part.request.index()].cut(part, bufs);
            debug_assert!(whole, "a write has memory for all its sectors");
            if !whole {
                return Err(Errno::IO);
            }
        }
        Ok(())
    }

    /// The plaintext of a write's part; `None` if its buffer holds it.
    fn plaintext<'a>(&'a self, part: &Part, source: Borrowed<'a>) -> Option<Plain<'a>> {
        let slot = &self.slots[part.request.index()];
        let borrowed = source.filter(|(request, _)| *request == part.request);
        let pieces = &self.pieces[slot.job as usize];
        Plain::of(part, slot, borrowed.map(|(_, plain)| plain), &self.jobs, pieces)
    }

    /// Encrypts a write's chunk to where the backend keeps it, if it may leave at once and the backend
    /// is memory: that saves the write.
    /// `None`: it has to be written, whatever is there now; its plaintext is where it was. So it is after
    /// an error: the write then tells which requests that concerns.
    fn write_in_place(
        &self,
        chunk: ChunkId,
        source: Borrowed<'_>,
        bufs: &[Buf],
    ) -> Option<InPlace> {
        let parts = self.machine.parts(chunk);
        let (segments, bytes) = (&self.volume.segments, sectors(parts) as usize * 512);
        let (segment, sector) = self.volume.place(parts.first()?.sector);
        if !self.machine.leaves_next(chunk) || !segments.takes_in_place(segment, sector, bytes) {
            return None;
        }
        let clock = &self.volume.clock;
        let started_ns = self.times(bytes as u64 / 512).then(|| clock.now_ns());
        for (part, buf) in parts.iter().zip(bufs) {
            let plain = self.plaintext(part, source).unwrap_or(Plain::One(buf));
            let (segment, sector) = self.volume.place(part.sector);
            plain.encrypt_mapped(segments, segment, sector, buf.len())?.ok()?;
        }
        Some(InPlace { spent_ns: started_ns.map(|started_ns| clock.now_ns() - started_ns) })
    }

    fn written_in_place(&mut self, chunk: ChunkId, InPlace { spent_ns }: InPlace) {
        self.crypted_here = self.crypted_here.wrapping_add(1);
        self.now_ns += spent_ns.unwrap_or(0);
        self.mapped[chunk.index()] = true;
        self.machine.crypted(chunk, Ok(()), spent_ns, self.now_ns);
    }

    /// Puts the plaintext of a write's chunk into its buffers, if it is not there. Returns whether they
    /// are encrypted already: what is elsewhere is encrypted on its way, if that is to be done here.
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
            let (segment, sector) = self.volume.place(part.sector);
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

    /// Whether a crypt of so many sectors on this thread is timed.
    fn times(&self, sectors: u64) -> bool {
        sectors >= LONG_SECTORS || self.crypted_here.is_multiple_of(TIMED_EVERY)
    }

    /// Crypts buffers, here or by a worker.
    fn crypt_bufs(&mut self, chunk: ChunkId, target: Target, mut bufs: Vec<Buf>, way: Way) {
        let parts = self.machine.parts(chunk);
        let (segment, sector) = self.volume.place(parts[0].sector);
        let count = sectors(parts);
        if let (Some(pool), true) = (&self.volume.workers, target != Target::Inline) {
            let (segments, inbox) = (self.volume.segments.clone(), self.inbox.clone());
            let job = workers::Job { chunk, segments, segment, sector, bufs, way, inbox };
            let from_ns = self.volume.clock.now_ns();
            let handed = match target {
                Target::SameCore => pool.hand_same_core(job),
                _ => pool.hand(job, target == Target::Offload),
            };
            match handed {
                Ok(()) => {
                    self.handed += 1;
                    self.keeps_time = true;
                    self.read_clock();
                    return self.machine.handed(chunk, from_ns, self.now_ns);
                }
                // Too much waits for the workers already.
                Err(job) => bufs = job.bufs,
            }
        }
        self.crypted_here = self.crypted_here.wrapping_add(1);
        let clock = &self.volume.clock;
        let started_ns = self.times(count).then(|| clock.now_ns());
        let result = self.volume.segments.crypt(segment, sector, &mut bufs, way);
        let spent_ns = started_ns.map(|started_ns| clock.now_ns() - started_ns);
        self.now_ns += spent_ns.unwrap_or(0);
        let result = self.settle(chunk, bufs, result);
        self.machine.crypted(chunk, result, spent_ns, self.now_ns);
    }

    /// Puts the buffers of a crypted chunk where they go next.
    fn settle(
        &mut self,
        chunk: ChunkId,
        mut bufs: Vec<Buf>,
        result: Result<(), Errno>,
    ) -> Result<(), Errno> {
        if result.is_ok() && self.machine.op(chunk) == Some(MachineOp::Read) {
            let mut pieces = bufs.drain(..);
            for part in self.machine.parts(chunk) {
                let slot = &mut self.slots[part.request.index()];
                let mut offset = (part.sector - slot.first_sector) as usize * 512;
                let end = offset + part.sectors as usize * 512;
                while offset < end
                    && let Some(piece) = pieces.next()
                {
                    let len = piece.len();
                    slot.data.put_back(offset, piece);
                    offset += len;
                }
            }
        }
        if result.is_err() && self.machine.tries_again(chunk) {
            // Half decrypted: read again, part by part.
            self.again[chunk.index()].append(&mut bufs);
        }
        if result.is_err() {
            // Half crypted: it goes nowhere.
            bufs.clear();
        }
        self.chunks[chunk.index()] = bufs;
        result
    }

    fn store(&mut self, chunk: ChunkId, kind: StoreKind) {
        let parts = self.machine.parts(chunk);
        let (segment, sector) = self.volume.place(parts[0].sector);
        let offset = self.volume.segments[segment].backend_offset + sector * 512;
        let (token, len) = (chunk.token(), sectors(parts) * 512);
        let bufs = &mut self.chunks[chunk.index()];
        if self.machine.stored_again(chunk).is_some() {
            take_front(&mut self.again[chunk.index()], len as usize, bufs);
        } else if kind == StoreKind::Read {
            for part in parts {
                let whole = self.slots[part.request.index()].cut(part, bufs);
                debug_assert!(whole, "a read has memory for all its sectors");
            }
        }
        if kind == StoreKind::Read && self.volume.segments.at_hand(offset, len as usize) {
            // There is nothing to wait for, and the cipher does the copying.
            self.mapped[chunk.index()] = true;
            return self.machine.stored(chunk, Ok(()), self.now_ns);
        }
        if matches!(kind, StoreKind::Flush | StoreKind::Write { fua: true })
            && let Some(error) = self.volume.flush_error()
        {
            // A write is written all the same, and fails.
            self.again[chunk.index()].append(bufs);
            return self.machine.stored(chunk, Err(error), self.now_ns);
        }
        if std::mem::take(&mut self.mapped[chunk.index()]) {
            // It is there, and nothing makes memory more durable: that goes for FUA, too.
            bufs.clear();
            return self.machine.stored(chunk, Ok(()), self.now_ns);
        }
        // There is room: the machine has no more chunks than the backend's queue.
        let backend = self.backend.as_mut().expect("the queue is alive");
        match kind {
            StoreKind::Flush => backend.submit(Io::Flush { token }),
            StoreKind::Discard => backend.submit(Io::Discard { token, offset, len }),
            StoreKind::Zeroes => backend.submit(Io::WriteZeroes { token, offset, len }),
            StoreKind::Read => {
                backend.submit(Io::Read { token, offset, bufs: std::mem::take(bufs) });
            }
            StoreKind::Write { fua } => {
                backend.submit(Io::Write { token, offset, bufs: std::mem::take(bufs), fua });
            }
        }
    }

    fn answered(&mut self, answer: Answer) {
        let Some(chunk) = ChunkId::from_token(answer.token) else { return };
        let Some(op) = self.machine.op(chunk) else { return };
        let mut bufs = answer.bufs;
        if answer.result.is_err() && self.machine.tries_again(chunk) {
            self.again[chunk.index()].append(&mut bufs);
        }
        if op != MachineOp::Read || answer.result.is_err() {
            bufs.clear();
        }
        if bufs.capacity() > 0 {
            self.chunks[chunk.index()] = bufs;
        }
        let result = self.check_durable(chunk, op, answer.result);
        self.machine.stored(chunk, result, self.now_ns);
    }

    /// Takes the end of a flush into account, or of a write that should be durable: after a flush
    /// that failed none of this volume succeeds any more. The kernel tells of data that it could not
    /// write once, and forgets it then.
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
            // Another queue's may have failed while this one was under way.
            (MachineOp::Flush, Ok(())) => self.volume.flush_error().map_or(Ok(()), Err),
            (MachineOp::Write { fua: true } | MachineOp::EncryptZeroes { fua: true }, result) => {
                if let (Ok(()), Some(error)) = (result, self.machine.stored_again(chunk)) {
                    // What failed before was not the writing.
                    self.volume.fail_flushes(error);
                }
                result
            }
            (_, result) => result,
        }
    }

    /// Nobody wants the chunk any more.
    fn drop_chunk(&mut self, chunk: ChunkId) {
        self.chunks[chunk.index()].clear();
        self.mapped[chunk.index()] = false;
    }

    /// A machine request has ended.
    fn finish(&mut self, id: RequestId, result: Result<(), Errno>) {
        let slot = &mut self.slots[id.index()];
        let (index, role, op, sector) = (slot.job, slot.role, slot.op, slot.first_sector);
        let job = &mut self.jobs[index as usize];
        job.pending -= 1;
        match (op, result) {
            (MachineOp::Read, Ok(())) => match (role, slot.data.join()) {
                (Role::Middle, Some(whole)) => job.buf = whole.into_buf(),
                (Role::Edge(edge), Some(Whole::One(buf))) => {
                    return self.write_back(index, edge, buf);
                }
                _ => job.error = Some(Errno::IO),
            },
            (MachineOp::BackendZeroes, Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)) => {
                // The backend cannot, or not less than a block of its own: write them.
                let sectors = self.zeroes_left(index, sector);
                let op = MachineOp::EncryptZeroes { fua: false };
                self.request(index, role, Middle { op, sector, sectors }, None);
                return;
            }
            (_, Ok(())) => {}
            (_, Err(error)) => job.error = job.error.or(Some(error)),
        }
        slot.data.clear();
        if job.pending == 0 {
            self.end_job(index);
        }
    }

    /// The sector of an edge was read: it is changed and written.
    fn write_back(&mut self, index: u32, edge: usize, mut buf: Buf) {
        let role = Role::Edge(edge);
        let Some(edge) = &self.edges[index as usize][edge] else { return };
        buf[edge.at..edge.at + edge.patch.len()].copy_from_slice(&edge.patch);
        let op = MachineOp::Write { fua: self.jobs[index as usize].fua };
        let write = Middle { op, sector: edge.sector, sectors: edge.sectors };
        self.request(index, role, write, Some(buf));
    }

    /// Whole sectors of a write of zeroes, from its first one.
    fn zeroes_left(&self, index: u32, sector: u64) -> u64 {
        let job = &self.jobs[index as usize];
        let size = u64::from(self.volume.info().sector_size);
        job.range.end / size * size / 512 - sector
    }

    pub(super) fn end_job(&mut self, index: u32) {
        let job = &mut self.jobs[index as usize];
        if job.mode == Mode::Exclusive {
            self.edges[index as usize] = [None, None];
        }
        self.free.push(index);
        if std::mem::take(&mut job.locked) && !job.range.is_empty() {
            self.volume.locks.unlock(&job.range, job.mode);
        }
        job.range = 0..0;
        let (tag, result) = (job.tag, job.error.map_or(Ok(()), Err));
        let mut data = job.buf.take().filter(|_| result.is_ok());
        if let Some(buf) = &mut data {
            buf.advance(job.head);
            buf.truncate(job.len as usize);
        }
        self.count(index);
        if !self.pieces[index as usize].is_empty() {
            self.deliver(index, data.take());
        }
        self.done.push_back(Done { tag, result, data });
    }

    fn count(&self, job: u32) {
        let (job, counters) = (&self.jobs[job as usize], &self.counters);
        match job.error {
            None => {}
            // Its client wanted it so.
            Some(Errno::CANCELED) => return,
            Some(error) => return counters.count_error(error),
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

/// Moves the first buffers that hold so many bytes together.
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
fn sectors(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.sectors).sum()
}
