//! A queue: the machine under test, its clients, and what is known of each request.

use std::collections::VecDeque;

use ucrypt_dispatch::{
    ChunkId, Device, Limits, Machine, Op, Output, Policy, Request, RequestId, StoreKind,
};

use super::client::Client;
use super::content::Piece;
use super::disk::Failure;
use super::experiment::Experiment;
use super::judge::{Clock, Judge, Version};

/// What has come back for a chunk.
#[derive(Debug)]
pub(crate) enum Input {
    /// `carried`: by another core.
    Crypted {
        chunk: ChunkId,
        spent_ns: u64,
        carried: bool,
    },
    Stored {
        chunk: ChunkId,
        result: Result<(), Failure>,
        found: Vec<(u64, Version)>,
    },
}

/// A client's request: when it was sent, and since which clock it is under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) request: Request,
    pub(crate) sent_ns: u64,
    begun: Clock,
    version: Version,
}

impl Asked {
    fn is_durable_write(&self) -> bool {
        matches!(self.request.op, Op::Write { fua: true } | Op::EncryptZeroes { fua: true })
    }
}

/// An operation for the disk.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) chunk: ChunkId,
    pub(crate) kind: StoreKind,
    /// First sector, and how many.
    pub(crate) span: (u64, u64),
    pub(crate) pieces: Vec<Piece>,
    /// It was encrypted by another core.
    pub(crate) carried: bool,
}

/// A request in the machine.
#[derive(Debug)]
struct Tracked {
    asked: Asked,
    /// Counts requests as they were accepted.
    number: u64,
    stored: u64,
    crypted: u64,
    /// Sectors that another core has crypted.
    carried: u64,
    failed: bool,
    cancelled: bool,
}

pub(crate) struct Queue {
    pub(crate) machine: Machine<Failure>,
    pub(crate) client: Client,
    pub(crate) thread: usize,
    pub(crate) local: usize,
    pub(crate) answers: VecDeque<Input>,
    pub(crate) arrivals: VecDeque<Asked>,
    /// Operations on their way to the disk.
    pub(crate) staged: Vec<Staged>,
    /// Operations that the disk has and whose data this thread has still to copy, with the
    /// nanoseconds that takes.
    pub(crate) copies: VecDeque<(usize, u64)>,
    /// What the machine asked for and has to wait for them.
    pub(crate) next: Option<Output<Failure>>,
    requests: Vec<Option<Tracked>>,
    /// Whether each chunk under way is plaintext that may not be stored, by index.
    encrypted: Vec<bool>,
    /// Whether another core has crypted it.
    carried: Vec<bool>,
    /// Requests that were accepted.
    accepted: u64,
    /// Of the write that left last: the number of its request, and its sector.
    left: (u64, u64),
    keeps_order: bool,
}

fn machine(experiment: &Experiment) -> Machine<Failure> {
    let limits = Limits {
        requests_max: experiment.requests_max,
        chunks_max: experiment.chunks_max,
        transfer_sectors_max: experiment.transfer_sectors_max,
        zeroes_sectors_max: 2 * experiment.transfer_sectors_max,
        sector_sectors: experiment.sector_sectors,
        borders: Vec::new(),
    };
    let about = Device { copies: experiment.costs.copy.is_some(), ..experiment.device.about() };
    let mut machine = Machine::new(limits, experiment.policy, about);
    if experiment.calibrated {
        let (cipher, costs) = (experiment.cipher, experiment.costs);
        let learned = machine.learned_mut();
        learned.cipher(64 << 10, cipher.ns(128));
        learned.wake(costs.wake_call);
        learned.hand(2 * costs.enqueue);
        learned.carry(64 << 10, costs.carry_ns(128));
        learned.handover(costs.wake_call + costs.wake + 2 * costs.enqueue);
    }
    machine
}

impl Queue {
    pub(crate) fn new(
        experiment: &Experiment,
        client: Client,
        thread: usize,
        local: usize,
    ) -> Self {
        let unsorted = matches!(
            experiment.policy,
            Policy::SameCpu { sorted: false } | Policy::Unbound { sorted: false }
        );
        Self {
            machine: machine(experiment),
            client,
            thread,
            local,
            answers: VecDeque::new(),
            arrivals: VecDeque::new(),
            staged: Vec::new(),
            copies: VecDeque::new(),
            next: None,
            requests: (0..experiment.requests_max).map(|_| None).collect(),
            encrypted: vec![false; experiment.chunks_max as usize],
            carried: vec![false; experiment.chunks_max as usize],
            accepted: 0,
            left: (0, 0),
            keeps_order: !unsorted,
        }
    }

    /// Everything in memory is gone. Returns the number of requests that were under way.
    pub(crate) fn restart(&mut self, experiment: &Experiment) -> u64 {
        let lost = self.requests.iter_mut().filter_map(Option::take).count();
        let lost = lost + self.arrivals.len();
        self.machine = machine(experiment);
        self.answers.clear();
        self.arrivals.clear();
        self.left = (0, 0);
        self.staged.clear();
        self.copies.clear();
        self.next = None;
        lost as u64
    }

    /// The client sends a request.
    pub(crate) fn send(&mut self, request: Request, judge: &mut Judge, now_ns: u64) {
        let writes = !matches!(request.op, Op::Read | Op::Flush);
        let version = if writes { judge.begin_write() } else { 0 };
        let begun = judge.begin();
        self.arrivals.push_back(Asked { request, sent_ns: now_ns, begun, version });
    }

    /// Hands the oldest request that was sent to the machine; returns whether it was taken.
    pub(crate) fn accept(&mut self) -> bool {
        let Some(asked) = self.arrivals.front() else { return false };
        let Some(id) = self.machine.request(asked.request) else { return false };
        self.accepted += 1;
        let number = self.accepted;
        let tracked = Tracked {
            asked: *asked,
            number,
            stored: 0,
            crypted: 0,
            carried: 0,
            failed: false,
            cancelled: false,
        };
        self.requests[id.index()] = Some(tracked);
        self.arrivals.pop_front();
        true
    }

    /// The client gives a request up: the first from `index` on.
    pub(crate) fn cancel(&mut self, index: usize) {
        let of = |index| self.machine.request_at(index);
        let Some(id) = (index..self.requests.len()).find_map(of) else { return };
        if let Some(tracked) = &mut self.requests[id.index()] {
            tracked.cancelled = true;
            self.machine.cancel(id, Failure::Cancelled);
        }
    }

    /// Nanoseconds to copy all data up to that of `operation`, as far as that was not done yet.
    pub(crate) fn copy_up_to(&mut self, operation: usize) -> u64 {
        let last = self.copies.iter().position(|&(other, _)| other == operation);
        self.copies.drain(..last.map_or(0, |last| last + 1)).map(|(_, ns)| ns).sum()
    }

    /// A crypt was asked for.
    pub(crate) fn crypt_asked(&mut self, chunk: ChunkId) {
        self.encrypted[chunk.index()] = false;
    }

    /// The sectors of a chunk: its first one and how many.
    pub(crate) fn span(&self, chunk: ChunkId) -> (u64, u64) {
        let parts = self.machine.parts(chunk);
        let first = parts.first().map_or(0, |part| part.sector);
        (first, parts.last().map_or(0, |last| last.sector + last.sectors - first))
    }

    /// A store was asked for: checks that it may leave, and tells what is in it.
    pub(crate) fn leave(&mut self, chunk: ChunkId, kind: StoreKind) -> Result<Staged, String> {
        if matches!(kind, StoreKind::Write { .. }) {
            if !self.encrypted[chunk.index()] {
                return Err(format!("plaintext of {chunk:?} leaves"));
            }
            let again = self.machine.stored_again(chunk).is_some();
            if self.keeps_order && !again && !self.is_in_turn(chunk) {
                return Err(format!("{chunk:?} leaves out of turn"));
            }
        }
        let piece = |part: &ucrypt_dispatch::Part| {
            let version = self.tracked(part.request).map_or(0, |tracked| tracked.asked.version);
            Piece { sector: part.sector, sectors: part.sectors, version }
        };
        let pieces = self.machine.parts(chunk).iter().map(piece).collect();
        let carried = self.carried[chunk.index()];
        Ok(Staged { chunk, kind, span: self.span(chunk), pieces, carried })
    }

    /// Whether a write leaves after all that came before it. Requests that travel with an earlier
    /// one go before their turn; zeroes let others pass.
    fn is_in_turn(&mut self, chunk: ChunkId) -> bool {
        if self.machine.op(chunk).is_some_and(|op| matches!(op, Op::EncryptZeroes { .. })) {
            return true;
        }
        let first = self.machine.parts(chunk).first();
        let place = first.and_then(|part| Some((self.tracked(part.request)?.number, part.sector)));
        let previous = self.left;
        self.left = place.unwrap_or(previous);
        place.is_some_and(|place| place > previous)
    }

    /// Sectors that a request reads, and how many of them another core has decrypted.
    pub(crate) fn read_by_client(&self, id: RequestId) -> (u64, u64) {
        let reads = |tracked: &&Tracked| tracked.asked.request.op == Op::Read;
        let read = self.tracked(id).filter(reads);
        read.map_or((0, 0), |tracked| (tracked.asked.request.sectors, tracked.carried))
    }

    fn tracked(&self, id: RequestId) -> Option<&Tracked> {
        self.requests.get(id.index())?.as_ref()
    }

    /// Gives the machine what came back. A complaint if that is not what may be there.
    pub(crate) fn input(&mut self, input: Input, judge: &Judge, now_ns: u64) -> Result<(), String> {
        let mut verdict = Ok(());
        match input {
            Input::Crypted { chunk, spent_ns, carried } => {
                self.encrypted[chunk.index()] = true;
                self.carried[chunk.index()] = carried;
                self.credit(chunk, |tracked, sectors| {
                    tracked.crypted += sectors;
                    tracked.carried += if carried { sectors } else { 0 };
                });
                self.machine.crypted(chunk, Ok(()), Some(spent_ns), now_ns);
            }
            Input::Stored { chunk, result, found } => {
                verdict = self.judge(chunk, &found, judge);
                // What is stored again part by part has neither failed nor been done yet.
                if result.is_ok() || !self.machine.tries_again(chunk) {
                    // A durable write that could only be written has failed.
                    let again = self.machine.stored_again(chunk).is_some();
                    self.credit(chunk, |tracked, sectors| {
                        tracked.stored += sectors;
                        tracked.failed |=
                            result.is_err() || again && tracked.asked.is_durable_write();
                    });
                }
                self.machine.stored(chunk, result, now_ns);
            }
        }
        verdict
    }

    fn credit(&mut self, chunk: ChunkId, credit: impl Fn(&mut Tracked, u64)) {
        for part in self.machine.parts(chunk) {
            if let Some(tracked) = self.requests[part.request.index()].as_mut() {
                credit(tracked, part.sectors);
            }
        }
    }

    fn judge(&self, chunk: ChunkId, found: &[(u64, Version)], judge: &Judge) -> Result<(), String> {
        let parts = self.machine.parts(chunk);
        for &(sector, version) in found {
            let part = parts.iter().find(|part| sector < part.sector + part.sectors);
            let tracked = part.and_then(|part| self.tracked(part.request));
            let begun = tracked.map_or(0, |tracked| tracked.asked.begun);
            if !judge.may_read(sector, version, begun) {
                return Err(format!("a read found version {version} in sector {sector}"));
            }
        }
        Ok(())
    }

    /// A request has ended: what was asked, or a complaint if it must not end like this.
    pub(crate) fn finish(
        &mut self,
        id: RequestId,
        ok: bool,
        judge: &mut Judge,
        verify: bool,
    ) -> Result<Asked, String> {
        let tracked = self.requests.get_mut(id.index()).and_then(Option::take);
        let Tracked { asked, stored, crypted, failed, cancelled, .. } =
            tracked.ok_or_else(|| format!("{id:?} ends and is not under way"))?;
        let Request { op, sector, sectors, .. } = asked.request;
        if ok == failed && (ok || !cancelled) {
            return Err(format!("{asked:?} ends with ok = {ok}, though failed = {failed}"));
        }
        let crypts = matches!(op, Op::Read | Op::Write { .. } | Op::EncryptZeroes { .. });
        if ok && (stored, crypted) != (sectors, if crypts { sectors } else { 0 }) {
            return Err(format!("{asked:?} ends with {stored} stored, {crypted} crypted"));
        }
        if verify {
            match op {
                Op::Flush if ok => judge.end_flush(asked.begun),
                Op::Read | Op::Flush => {}
                Op::Write { fua } | Op::EncryptZeroes { fua } => {
                    judge.end_write(asked.version, sector..sector + sectors, ok, fua);
                }
                Op::Discard | Op::BackendZeroes => {
                    judge.end_write(asked.version, sector..sector + sectors, ok, false);
                }
            }
        }
        Ok(asked)
    }

    /// Whether nothing is under way and nothing waits.
    pub(crate) fn is_done(&self) -> bool {
        self.machine.in_flight() == 0 && self.arrivals.is_empty() && self.answers.is_empty()
    }
}
