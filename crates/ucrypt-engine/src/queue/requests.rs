//! A client's request from its range lock to its answer, with read-modify-write of the sectors that
//! it writes only in part.

use ucrypt_backend::{Buf, Errno};
use ucrypt_dispatch::{Op as MachineOp, Request, RequestId};

use super::tables::{Body, PIECES, Role};
use super::{Done, Queue};
use crate::data::Whole;
use crate::meters::Kind;
use crate::range_lock::Mode;
use crate::zones::ZoneChange;

impl Queue {
    /// Starts the planned request. `source`: the plaintext of its body, if that is borrowed.
    pub(super) fn start(&mut self, index: u32, source: Option<&[u8]>) {
        self.set_awake(true);
        let request = &mut self.requests[index];
        request.arrived_ns = self.counting.times_next().then(|| self.time.exact_ns());
        // A request without a body needs its range only if it has edges, or changes zones.
        let needs_range =
            request.body.is_some() || request.mode != Mode::Shared || request.zones.is_some();
        let len = request.len;
        self.counting.counters.cells.arrived(self.requests.in_use());
        self.choose_clock(len);
        if !needs_range {
            self.end_request(index);
        } else if self.lock(index) {
            self.launch(index, source);
        } else {
            self.park(index, source);
        }
    }

    fn lock(&mut self, index: u32) -> bool {
        let request = &mut self.requests[index];
        request.locked =
            request.range.is_empty() || self.volume.locks.try_lock(&request.range, request.mode);
        request.locked
    }

    /// Keeps a request until its range is free. Copies borrowed data, because the borrow ends when
    /// `submit` returns.
    fn park(&mut self, index: u32, source: Option<&[u8]>) {
        let request = &mut self.requests[index];
        if let (Some(source), Some(buf)) = (source, &mut request.buf) {
            buf.copy_from_slice(source);
        }
        // The attempt that was refused left no mark: this one does.
        if !self.retry(index) {
            self.parked.push_back(index);
            self.wakers.is_with_a_lock();
        }
    }

    /// Starts the parked requests whose turn it is now; a signal of the waker follows for the others.
    pub(super) fn retry_parked(&mut self) {
        for _ in 0..self.parked.len() {
            let Some(index) = self.parked.pop_front() else { break };
            if !self.retry(index) {
                self.parked.push_back(index);
            }
        }
        if !self.parked.is_empty() {
            self.wakers.is_with_a_lock();
        }
    }

    /// Starts or ends a request that waits for its range. Returns whether it waits no longer.
    fn retry(&mut self, index: u32) -> bool {
        let request = &mut self.requests[index];
        request.locked = self.volume.locks.lock_or_wait(
            &request.range,
            request.mode,
            &mut request.ticket,
            self.wakers.own(),
        );
        if request.locked {
            self.launch(index, None);
        } else if self.volume.is_abandoned() {
            self.give_up(index);
        } else {
            return false;
        }
        true
    }

    /// Ends a parked request of a volume that will not get its key again.
    fn give_up(&mut self, index: u32) {
        self.stop_waiting(index);
        let request = &mut self.requests[index];
        request.error = Some(Errno::IO);
        if matches!(request.kind, Kind::Write | Kind::Discard) {
            self.volume.count_unwritten(request.len);
        }
        self.end_request(index);
    }

    /// A request no longer waits for its range.
    pub(super) fn stop_waiting(&mut self, index: u32) {
        if let Some(ticket) = self.requests[index].ticket.take() {
            self.volume.locks.give_up(ticket);
        }
    }

    /// Passes a request that has its range to the machine.
    fn launch(&mut self, index: u32, source: Option<&[u8]>) {
        let request = &mut self.requests[index];
        let (body, buf) = (request.body, request.buf.take());
        if request.mode != Mode::Shared {
            for number in 0..2 {
                let edges = &mut self.requests[index].edges;
                let Some(edge) = &mut edges[number] else { continue };
                let (sector, sectors) = (edge.sector, edge.sectors);
                let (read, buf) = (Body { op: MachineOp::Read, sector, sectors }, edge.buf.take());
                self.ask(index, Role::Edge(number), read, buf);
            }
        }
        if let Some(body) = body {
            let id = self.ask(index, Role::Body, body, buf);
            if let Some(source) = source {
                self.time.read();
                self.round.environment = self.look_at_workers();
                self.round.planned = false;
                let mut source = Some((id, source));
                self.carry_out_all(&mut source);
                if let Some((id, source)) = source {
                    // Copy the plaintext that is not encrypted yet: the source goes back to its owner.
                    self.machine_requests[id.index()].data.fill_rest(source);
                }
            }
        } else if let Some(change) = self.requests[index].zones {
            self.change_zones(index, change);
        }
    }

    /// Changes zones, and ends the request.
    fn change_zones(&mut self, index: u32, change: ZoneChange) {
        let zones = self.volume.zones().ok().flatten().ok_or(Errno::NODEV);
        self.requests[index].error = zones.and_then(|zones| zones.change(change)).err();
        self.end_request(index);
    }

    /// Submits a part of the client's request to the machine. A read without a buffer goes to the
    /// client's own memory.
    fn ask(&mut self, client: u32, role: Role, what: Body, buf: Option<Buf>) -> RequestId {
        let Body { op, sector, sectors } = what;
        let request = &mut self.requests[client];
        request.pending += 1;
        let asked = Request { op, sector, sectors, urgency: request.urgency };
        let id = self.machine.request(asked);
        let id = id.expect("the machine has room for three requests of each client's");
        let part = &mut self.machine_requests[id.index()];
        (part.client, part.role, part.op, part.first_sector) = (client, role, op, sector);
        match (op, buf) {
            (MachineOp::Read, None) => part.data.set_scattered(&mut request.pieces),
            (_, buf) => part.data.set(buf),
        }
        id
    }

    /// Handles the end of a machine request.
    pub(super) fn finish(&mut self, id: RequestId, result: Result<(), Errno>) {
        let part = &mut self.machine_requests[id.index()];
        let (index, role, op, sector) = (part.client, part.role, part.op, part.first_sector);
        let request = &mut self.requests[index];
        request.pending -= 1;
        match (op, result) {
            (MachineOp::Read, Ok(())) => match (role, part.data.join()) {
                (Role::Body, Some(whole)) => request.buf = whole.into_buf(),
                (Role::Edge(edge), Some(Whole::One(buf))) => {
                    return self.write_back(index, edge, buf);
                }
                _ => request.error = Some(Errno::IO),
            },
            (MachineOp::BackendZeroes, Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL))
                if request.fast =>
            {
                request.error = request.error.or(Some(Errno::OPNOTSUPP));
            }
            (MachineOp::BackendZeroes, Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)) => {
                // The backend cannot zero this range, or only whole blocks of its own: write the
                // zeroes.
                let sectors = self.zeroes_left(index, sector);
                let op = MachineOp::EncryptZeroes { fua: false };
                self.ask(index, role, Body { op, sector, sectors }, None);
                return;
            }
            (_, Ok(())) => {}
            (_, Err(error)) => request.error = request.error.or(Some(error)),
        }
        part.data.clear();
        if request.pending == 0 {
            self.end_request(index);
        }
    }

    /// Patches the sector of an edge that was read, and writes it.
    fn write_back(&mut self, index: u32, edge: usize, mut buf: Buf) {
        let role = Role::Edge(edge);
        let Some(edge) = &self.requests[index].edges[edge] else { return };
        buf[edge.at..edge.at + edge.patch.len()].copy_from_slice(&edge.patch);
        let op = MachineOp::Write { fua: self.requests[index].fua };
        let write = Body { op, sector: edge.sector, sectors: edge.sectors };
        self.ask(index, role, write, Some(buf));
    }

    /// 512-byte sectors of a write of zeroes, from `sector` to the end of its last whole unit.
    fn zeroes_left(&self, index: u32, sector: u64) -> u64 {
        let request = &self.requests[index];
        let size = u64::from(self.volume.info().write_unit);
        request.range.end / size * size / 512 - sector
    }

    /// Unlocks the range of a request that has it.
    pub(super) fn unlock(&mut self, index: u32) {
        let request = &mut self.requests[index];
        if std::mem::take(&mut request.locked) && !request.range.is_empty() {
            self.volume.locks.unlock(&request.range, request.mode);
        }
    }

    pub(super) fn end_request(&mut self, index: u32) {
        self.unlock(index);
        let request = &mut self.requests[index];
        if request.mode != Mode::Shared {
            request.edges = [None, None];
        }
        request.range = 0..0;
        let (tag, result) = (request.tag, request.error.map_or(Ok(()), Err));
        let mut data = request.buf.take().filter(|_| result.is_ok());
        if let Some(buf) = &mut data {
            buf.advance(request.head);
            buf.truncate(request.len as usize);
        }
        if !request.pieces.is_empty() {
            self.deliver(index, data.take());
        }
        let request = &mut self.requests[index];
        let offloaded = std::mem::take(&mut request.offloaded);
        request.pieces.shrink_to(PIECES);
        self.pieces -= std::mem::take(&mut request.piece_count);
        self.counting.ended(&self.requests[index], &self.time, &self.volume);
        self.requests.give_back(index);
        self.counting.counters.cells.left(self.requests.in_use());
        self.done.push_back(Done { tag, result, data, offloaded });
    }
}
