//! A client's request from its range lock to its answer, with read-modify-write of the sectors of which it
//! writes only a part.

use ucrypt_backend::{Buf, Errno};
use ucrypt_dispatch::{Op as MachineOp, Request, RequestId};

use super::job::{Kind, Middle, Role};
use super::{Done, Queue};
use crate::counters::add;
use crate::data::Whole;
use crate::range_lock::Mode;

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
    pub(super) fn retry_parked(&mut self) {
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
                self.environment = self.look_at_workers();
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

    /// A machine request has ended.
    pub(super) fn finish(&mut self, id: RequestId, result: Result<(), Errno>) {
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
